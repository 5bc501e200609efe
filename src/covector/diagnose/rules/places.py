"""The right numbers at the wrong elements: another of a window, a window read backwards, one of several."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from covector.diagnose.case import Case
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Suspect

# Strides of windows that are tried, and the longest axis on which they are.
_STRIDES = (1, 2, 3)
_LONGEST = 128


def another_element(case: Case) -> Iterator[Observation]:
    """Each output takes one element of the input, and the gradient goes to another one."""
    for s in case.suspects:
        true, got = s.support, s.nonzero
        if s.bad.shape[0] >= s.bad.shape[1] or not bool((true.sum(1) == 1).all()):
            continue
        if not bool((got.sum(1) == 1).all()):
            continue
        kept = s.numeric.sum(1)
        if not bool(((s.analytic.sum(1) - kept).abs() <= 4 * s.slack.max(1).values).all()):
            continue
        wrong = int((true != got).any(1).sum())
        text = (
            f"each output takes one element of {s.inputs.name}, and the {case.noun} goes to another one"
            f"{_which(s, got)}, for {wrong} of {len(kept)} outputs"
        )
        yield Observation(text, 0.95, s.where)


def _which(s: Suspect, got: Tensor) -> str:
    """The one index along a dimension that always gets the gradient."""
    index = s.inputs.index
    if index is None or s.inputs.part is None:
        return ""
    places = index[got.nonzero()[:, 1]]
    for axis, size in enumerate(s.inputs.part.shape):
        if size > 2 and bool((places[:, axis] == places[0, axis]).all()):
            return f" (always index {int(places[0, axis])} of dimension {axis})"
    return ""


def overwritten(case: Case) -> Iterator[Observation]:
    """Of several outputs that take the same element, only one counts."""
    for s in case.suspects:
        counts, got = s.support.sum(0), s.nonzero.sum(0)
        several = counts > 1
        taken = bool((s.support.sum(1) <= 1).all())  # by index: an output is one element of the input
        if not taken or not several.any() or not bool((counts == 1).any()):
            continue
        uneven = s.support & ((s.numeric.abs() - s.numeric.abs().amax(0)).abs() > 4 * s.slack)
        if uneven[:, several].any():
            continue  # the element as it is has the same derivative in each of them
        kept = torch.where(s.nonzero, s.numeric, torch.zeros_like(s.numeric))
        if bool((got[several] == 1).all()) and s.explains(kept):
            text = (
                f"elements of {s.inputs.name} that occur in several outputs get the {case.noun} of one of "
                "them, those that occur once are right"
            )
            yield Observation(text, 0.96, s.where)


def flipped(case: Case) -> Iterator[Observation]:
    """A window that slides over an axis is read backwards: a convolution whose kernel is not flipped."""
    for s in case.suspects:
        outputs, inputs = s.outputs.part, s.inputs.part
        if s.outputs.shape is None or s.inputs.shape is None or outputs is None or inputs is None:
            continue
        if outputs.is_complex or inputs.is_complex:
            continue
        for out_axis, in_axis in product(range(len(outputs.shape)), range(len(inputs.shape))):
            size = inputs.shape[in_axis]
            if (
                3 <= size <= _LONGEST
                and outputs.shape[out_axis] >= 3
                and _reads_backwards(s, out_axis, in_axis)
            ):
                text = f"the {case.noun} for {{where}} reads each window along dimension {in_axis} backwards"
                yield Observation(text, 0.95, s.where)
                break


def _reads_backwards(s: Suspect, out_axis: int, in_axis: int) -> bool:
    """Whether the analytic value at o, i is the numeric one at o, c + 2 stride o - i, for some c."""
    assert s.outputs.shape is not None
    assert s.inputs.shape is not None
    shape = (*s.outputs.shape, *s.inputs.shape)
    over = (out_axis, len(s.outputs.shape) + in_axis)
    numeric, analytic, slack = (
        matrix.reshape(*shape, 1).movedim(over, (0, 1)).flatten(2)
        for matrix in (s.numeric, s.analytic, s.slack)
    )
    height, width = numeric.shape[:2]
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    for stride in _STRIDES:
        if not _slides(numeric, stride, 4 * slack.max()):
            continue
        for start in range(2 * width):
            mirror = start - stride * (height - 1) + 2 * stride * rows - columns
            inside = (mirror >= 0) & (mirror < width)
            expected = torch.where(inside[..., None], numeric[rows, mirror.clamp(0, width - 1)], analytic)
            if bool(((analytic - expected).abs() <= 4 * slack.max()).all()) and bool(inside.any()):
                return bool(inside[numeric.abs().amax(2) > 4 * slack.max()].float().mean() > 0.5)
    return False


def _slides(numeric: Tensor, stride: int, slack: Tensor) -> bool:
    """Whether each row is the one before, moved by the stride, where both are inside; and is not constant."""
    if numeric.shape[1] <= stride:
        return False
    off = (numeric[1:, stride:] - numeric[:-1, : numeric.shape[1] - stride]).abs()
    several = (numeric.abs().amax(2) > slack).sum(1).max() > 1
    return bool((off <= slack).all()) and bool(several)


def backwards(case: Case) -> Iterator[Observation]:
    """A sum that runs along an axis runs the wrong way: the Jacobian is triangular, on the other side."""
    for s in case.suspects:
        shape = s.inputs.shape
        if shape is None or s.outputs.shape != shape or s.inputs.part is None or s.outputs.part is None:
            continue
        for axis, size in enumerate(s.inputs.part.shape):
            if size < 3:
                continue
            sides = [_side(s, where, axis) for where in (s.support, s.nonzero)]
            if 0 not in sides and sides[0] == -sides[1]:
                after, before = ("later", "earlier") if sides[0] > 0 else ("earlier", "later")
                text = (
                    f"something that accumulates along dimension {axis} runs the wrong way: an element of "
                    f"{s.inputs.name} acts on {after} outputs, and its {case.noun} comes from {before} ones"
                )
                yield Observation(text, 0.96, s.where)
                break


def _side(s: Suspect, where: Tensor, axis: int) -> int:
    """1 if every output depends on inputs up to its own place along an axis, -1 if from there on, else 0."""
    outputs, inputs = s.outputs.index, s.inputs.index
    if outputs is None or inputs is None:
        return 0
    row, column = where.nonzero(as_tuple=True)
    apart = outputs[row, axis] - inputs[column, axis]
    far = int(apart.abs().max()) if apart.numel() else 0
    if far < 2:  # a band is no accumulation
        return 0
    if bool((apart >= 0).all()):
        return 1
    return -1 if bool((apart <= 0).all()) else 0
