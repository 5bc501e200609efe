"""The right numbers at the wrong elements: another of a window, a window read backwards, one of several."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from covector.diagnose.case import Case
from covector.diagnose.rules.coupling import dimensions
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Side, Suspect

# So many outputs whose elements are exchanged are no chance.
_SEVERAL = 3

# Strides of windows that are tried, and the longest axis on which they are.
_STRIDES = (1, 2, 3)
_LONGEST = 128


def another_element(case: Case) -> Iterator[Observation]:
    """Each output takes one element of the input, and the gradient goes to another one."""
    for s in case.suspects:
        seen = _with_both_elements(s)
        if seen is None:
            continue
        true, got, kept = s.support[seen], s.nonzero[seen], s.numeric[seen].sum(1)
        if s.bad.shape[0] == s.bad.shape[1] and bool(s.support.diagonal().all()):
            continue  # nothing is taken from elsewhere
        if not bool(((s.analytic[seen].sum(1) - kept).abs() <= 4 * s.slack[seen].max(1).values).all()):
            continue
        wrong = (true != got).any(1)
        if not torch.equal(wrong, s.bad[seen].any(1)):
            continue
        text = (
            f"each output takes one element of {s.inputs.name}, and the {case.noun} goes to another one"
            f"{_which(s, got)}, for {int(wrong.sum())} of {len(kept)} outputs{case.coverage}"
        )
        yield Observation(text, 0.95, s.where)


def _with_both_elements(s: Suspect) -> Tensor | None:
    """The outputs whose element, and that of the gradient, were looked at; None if some take several."""
    true, got = s.support.sum(1), s.nonzero.sum(1)
    both = (true == 1) & (got == 1)
    if s.inputs.is_whole:
        return both if bool(both.all()) and s.bad.shape[0] <= s.bad.shape[1] else None
    few = bool((true <= 1).all()) and bool((got <= 1).all())
    return both if few and bool(s.bad[both].any()) else None


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
        if not taken or not several.any():
            continue
        uneven = s.support & ((s.numeric.abs() - s.numeric.abs().amax(0)).abs() > 4 * s.slack)
        if uneven[:, several].any():
            continue  # the element as it is has the same derivative in each of them
        kept = torch.where(s.nonzero, s.numeric, torch.zeros_like(s.numeric))
        if bool((got[several] == 1).all()) and s.explains(kept):
            once = ", those that occur once are right" if bool((counts == 1).any()) else ""
            text = (
                f"elements of {s.inputs.name} that occur in several outputs get the {case.noun} of one of "
                f"them{once}"
            )
            yield Observation(text, 0.96, s.where)


def flipped(case: Case) -> Iterator[Observation]:
    """A window that slides over axes is read backwards: a convolution whose kernel is not flipped."""
    for s in case.suspects:
        windows = _windows(s)
        choices = [(window,) for window in windows] + ([windows] if len(windows) > 1 else [])
        for chosen in choices:
            if _reads_backwards(s, chosen):
                along = dimensions(tuple(window.in_axis for window in chosen))
                text = f"the {case.noun} for {{where}} reads each window along {along} backwards"
                yield Observation(text, 0.95, s.where)
                break


# The share of entries, along each axis that is read backwards, whose mirror lies inside.
_INSIDE = 0.5


class _Window(NamedTuple):
    """A window that slides along an axis of the input while the output moves along one of its own."""

    out_axis: int
    in_axis: int
    mirror: Tensor
    """For each place in the output and in the input, the place on the other side of the window's middle."""


def _windows(s: Suspect) -> tuple[_Window, ...]:
    """The windows of a function that does the same at every place: where numbers move with the output."""
    outputs, inputs = s.outputs.part, s.inputs.part
    if s.outputs.shape is None or s.inputs.shape is None or outputs is None or inputs is None:
        return ()
    if outputs.is_complex or inputs.is_complex:
        return ()
    found: dict[int, _Window] = {}
    for out_axis, in_axis in product(range(len(outputs.shape)), range(len(inputs.shape))):
        fits = s.outputs.shape[out_axis] >= 3 and 3 <= s.inputs.shape[in_axis] <= _LONGEST
        if fits and in_axis not in found:
            mirror = _mirror(s, out_axis, in_axis)
            if mirror is not None:
                found[in_axis] = _Window(out_axis, in_axis, mirror)
    return tuple(found.values())


def _over(s: Suspect, matrix: Tensor, out_axis: int, in_axis: int) -> Tensor:
    """A matrix by an axis of the output, one of the input, and all the rest."""
    assert s.outputs.shape is not None
    assert s.inputs.shape is not None
    shaped = matrix.reshape(*s.outputs.shape, *s.inputs.shape, 1)
    return shaped.movedim((out_axis, len(s.outputs.shape) + in_axis), (0, 1)).flatten(2)


def _mirror(s: Suspect, out_axis: int, in_axis: int) -> Tensor | None:
    """The mirror of a window, if there is one: its middle is that of all offsets with an entry."""
    numeric, slack = _over(s, s.numeric, out_axis, in_axis), 4 * s.slack.max()
    rows, columns = torch.arange(numeric.shape[0]), torch.arange(numeric.shape[1])
    if not (_is_run(s.outputs, out_axis) and _is_run(s.inputs, in_axis)):
        return None
    if s.inputs.is_whole and s.outputs.is_whole and _turns(numeric, slack):
        return (2 * rows[:, None] - columns) % len(columns)
    for stride in _STRIDES:
        if _slides(numeric, stride, slack):
            offsets = (columns - stride * rows[:, None])[numeric.abs().amax(2) > slack]
            ends = int(offsets.min() + offsets.max())
            return ends + 2 * stride * rows[:, None] - columns
    return None


def _is_run(side: Side, axis: int) -> bool:
    """Whether the indices along an axis follow each other."""
    return side.along is not None and bool((side.along[axis].diff() == 1).all())


def _reads_backwards(s: Suspect, windows: tuple[_Window, ...]) -> bool:
    """Whether the analytic values are the numeric ones of the other side of the windows' middle."""
    expected, known = s.numeric, torch.ones_like(s.numeric)
    for window in windows:
        expected, known = (_mirrored(s, matrix, window) for matrix in (expected, known))
    inside = known > 0
    close = (s.analytic - expected).abs() <= 4 * s.slack.max()
    enough = inside[s.support | s.bad].double().mean() > _INSIDE ** len(windows)
    # What is wrong at the ends alone, where no mirror lies inside, tells nothing about the windows.
    return bool(close[inside].all()) and bool(enough) and bool((inside & s.bad).any())


def _mirrored(s: Suspect, matrix: Tensor, window: _Window) -> Tensor:
    """A matrix read backwards along a window, zero where the mirror lies outside."""
    assert s.outputs.shape is not None
    assert s.inputs.shape is not None
    values = _over(s, matrix, window.out_axis, window.in_axis)
    rows, width = torch.arange(values.shape[0])[:, None], values.shape[1]
    inside = (window.mirror >= 0) & (window.mirror < width)
    turned = torch.where(inside[..., None], values[rows, window.mirror.clamp(0, width - 1)], 0.0)
    axes = (window.out_axis, len(s.outputs.shape) + window.in_axis)
    shape = [*s.outputs.shape, *s.inputs.shape]
    rest = [size for axis, size in enumerate(shape) if axis not in axes]
    return turned.reshape(*turned.shape[:2], *rest).movedim((0, 1), axes).reshape(matrix.shape)


def _turns(numeric: Tensor, slack: Tensor) -> bool:
    """Whether each row is the one before, turned by one place: a circular convolution, as by an FFT."""
    if numeric.shape[0] != numeric.shape[1]:
        return False
    off = (numeric[1:] - numeric[:-1].roll(1, dims=1)).abs()
    ends = numeric[0, -1].abs().max() > slack  # the first output depends on the last element
    return bool((off <= slack).all()) and bool(ends)


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
                    f"an accumulation along dimension {axis} runs the wrong way: an element of "
                    f"{s.inputs.name} affects {after} outputs, but its {case.noun} comes from {before} ones"
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
    if far < 2 or int(where.sum(1).max()) < 2:  # a band is no accumulation, nor is a shift
        return 0
    if bool((apart >= 0).all()):
        return 1
    return -1 if bool((apart <= 0).all()) else 0


def exchanged(case: Case) -> Iterator[Observation]:
    """Each output depends on the right elements with the right numbers, but in another order."""
    for s in case.suspects:
        several = s.support.sum(1) > 1
        if int((s.bad.any(1) & several).sum()) < _SEVERAL or not torch.equal(s.support, s.nonzero):
            continue
        if s.explains(_in_order_of(s.analytic, s.numeric)):
            text = (
                f"for each output, the {case.noun} for {{where}} has the right numbers at the wrong elements"
            )
            yield Observation(text, 0.9, s.where)


def _in_order_of(order: Tensor, values: Tensor) -> Tensor:
    """The values of each row, the largest where the largest of the other is, and so on."""
    ranks = order.argsort(1).argsort(1)
    return values.sort(1).values.gather(1, ranks)
