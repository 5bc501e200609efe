"""The right numbers along the wrong axes: transposed, displaced, summed over the wrong dimension."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, permutations

import torch
from torch import Tensor

from covector.diagnose.case import Case
from covector.diagnose.rules.coupling import blocks, coupled, dimensions, each_with_each
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Suspect

# The most dimensions whose orders are tried.
_RANK = 4

# Fewer elements than this fit factors too easily; how closely these have to agree.
_SEVERAL, _CLOSE = 4, 1e-4

_NOT_TRANSPOSED = "is that of a matrix W where W^T belongs, or of W^T where W belongs"

_EXCEPT = "is right except that"

# A displacement by more than this is not looked for.
_FARTHEST = 4


def transposed(case: Case) -> Iterator[Observation]:
    """Two axes are exchanged: in the numbers, or only in where they are not zero."""
    for s in case.suspects:
        if not s.support.any():
            continue
        if text := _transposed(s):
            yield Observation(f"the {case.noun} for {{where}} {text}", 0.95, s.where)
        elif text := _between_factors(s):
            yield Observation(f"the {case.noun} for {{where}} {text}", 0.9, s.where)
        elif text := _symmetrised(s):
            yield Observation(f"the {case.noun} for {{where}} {text}", 0.94, s.where, _BOTH_SIDES)
        elif text := _pattern(s):
            misplaced = f"the {case.noun} for {{where}} stands in the wrong places: {text}"
            yield Observation(misplaced, 0.75, s.where)


_BOTH_SIDES = "the product rule: the input stands on both sides of a product, as in x @ x.T"


def _symmetrised(s: Suspect) -> str:
    """An output that is symmetric in two axes takes the cotangent and its transpose; only one was taken."""
    for i, j, _ in _pairs(s):
        if s.outputs.shape is None or j >= len(s.outputs.shape) or s.outputs.shape[i] != s.outputs.shape[j]:
            continue
        turned = _turned(s, s.numeric, i, j)
        both = s.analytic + _turned(s, s.analytic, i, j)
        for times, what in ((1.0, "the cotangent alone"), (0.5, "twice the cotangent")):
            if s.same(turned, s.numeric) and s.same(times * both, s.numeric):
                return (
                    f"takes {what}, where it should take the cotangent and its transpose (dimensions {i} and "
                    f"{j} of {s.outputs.name}), in which the output is symmetric"
                )
    return ""


def _axes(s: Suspect) -> list[int]:
    """The axes of output and input that may be exchanged: not the one of real and imaginary parts."""
    outputs, inputs = s.outputs.shape, s.inputs.shape
    if outputs is None or inputs is None or s.outputs.part is None or s.inputs.part is None:
        return []
    first = range(len(s.outputs.part.shape))
    second = range(len(outputs), len(outputs) + len(s.inputs.part.shape))
    return [*first, *second]


def _indices(s: Suspect, axis: int) -> Tensor | None:
    """The indices that were looked at along an axis of the output, or after these of the input."""
    assert s.outputs.shape is not None
    side = s.outputs if axis < len(s.outputs.shape) else s.inputs
    place = axis if side is s.outputs else axis - len(s.outputs.shape)
    return None if side.along is None else side.along[place]


def _exchangeable(s: Suspect, i: int, j: int) -> bool:
    """Whether the elements that were looked at are those of the exchanged axes too."""
    if s.outputs.is_whole and s.inputs.is_whole:
        return True
    first, second = _indices(s, i), _indices(s, j)
    return first is not None and second is not None and torch.equal(first, second)


def _turned(s: Suspect, matrix: Tensor, i: int, j: int) -> Tensor:
    """The matrix with two axes exchanged, read back in the shape that it had."""
    assert s.outputs.shape is not None
    assert s.inputs.shape is not None
    shaped = matrix.reshape(*s.outputs.shape, *s.inputs.shape)
    last = shaped.movedim((i, j), (-2, -1))
    turned = last.transpose(-2, -1).reshape(last.shape)
    return turned.movedim((-2, -1), (i, j)).reshape(matrix.shape)


def _pairs(s: Suspect) -> Iterator[tuple[int, int, str]]:
    """Pairs of axes, and what it is called if they are exchanged."""
    axes = _axes(s)
    split = 0 if s.outputs.shape is None else len(s.outputs.shape)
    for i, j in combinations(axes, 2):
        if not _exchangeable(s, i, j):
            continue
        if j < split:
            yield i, j, f"{_EXCEPT} dimensions {i} and {j} of the cotangent of {s.outputs.name} are exchanged"
        elif i >= split:
            yield i, j, f"{_EXCEPT} it is transposed (dimensions {i - split} and {j - split})"
        else:
            yield i, j, _NOT_TRANSPOSED


def _transposed(s: Suspect) -> str:
    for i, j, text in _pairs(s):
        if s.explains(_turned(s, s.numeric, i, j)):
            shape = (*(s.outputs.shape or ()), *(s.inputs.shape or ()))
            if i < j < len(s.outputs.shape or ()) and (sums := _sums(s, i, j)):
                return f"{text}: {sums}"
            return text if shape[i] == shape[j] else f"{text}, and reshaped"
    if text := _permuted(s):
        return text
    square = s.numeric.shape[0] == s.numeric.shape[1] > 1 and _axes(s)
    known = (s.inputs.is_whole and s.outputs.is_whole) or s.inputs.has_indices_of(s.outputs)
    if square and known and s.explains(s.numeric.T):
        if int(s.support.sum(1).max()) == 1:
            return (
                f"{_EXCEPT} elements that are rearranged are rearranged once more, instead of being put back"
            )
        return f"{_EXCEPT} the Jacobian is transposed (J where J^T belongs)"
    return ""


def _permuted(s: Suspect) -> str:
    """More than two dimensions of the input, or of the cotangent, stand in another order."""
    outputs, inputs = s.outputs.part, s.inputs.part
    if not _axes(s) or outputs is None or inputs is None or s.outputs.shape is None or s.inputs.shape is None:
        return ""
    shaped = s.numeric.reshape(*s.outputs.shape, *s.inputs.shape)
    split = len(s.outputs.shape)
    for first, part, what in (
        (split, inputs, "the result"),
        (0, outputs, f"the cotangent of {s.outputs.name}"),
    ):
        rank = len(part.shape)
        for order in permutations(range(rank)) if 3 <= rank <= _RANK else ():
            axes = [first + axis for axis in order]
            if not all(_exchangeable(s, first + place, axis) for place, axis in enumerate(axes)):
                continue
            every = [*range(first), *axes, *range(first + rank, shaped.dim())]
            if s.explains(shaped.permute(every).reshape(s.numeric.shape)):
                return f"{_EXCEPT} the dimensions of {what} stand in another order: {order} of the right one"
    return ""


def _between_factors(s: Suspect) -> str:
    """A matrix is not transposed, beside a factor of each output, as the slope of an activation.

    Where J = diag(a) W and the gradient is that of diag(a) W^T, what it is divided by the transpose of J is
    a_i / a_j.
    """
    axes = coupled(s, s.support)
    if not axes or not each_with_each(s, axes):
        return ""
    true, got, used = (blocks(s, matrix, axes) for matrix in (s.numeric, s.analytic, s.support & s.nonzero))
    if true.shape[1] < _SEVERAL or not bool(used.all()):
        return ""
    ratio = got / true.mT
    if not bool((ratio > 0).all()) or float((ratio - 1).abs().max()) < 100 * _CLOSE:
        return ""
    logs = ratio.log()
    factor = logs.mean(2)
    off = (logs - (factor[:, :, None] - factor[:, None, :])).abs()
    return f"{_NOT_TRANSPOSED}, beside a factor of each output" if float(off.max()) < _CLOSE else ""


def _pattern(s: Suspect) -> str:
    """Where the analytic derivative is not zero is the transpose of where the true one is not."""
    got = s.analytic.abs() > 4 * s.slack
    if bool((got == s.support).all()):
        return ""
    for i, j, _ in _pairs(s):
        if bool((got == _turned(s, s.support, i, j)).all()):
            split = len(s.outputs.shape or ())
            if j < split:
                return _sums(s, i, j) or f"dimensions {i} and {j} of {s.outputs.name} are exchanged"
            return "rows and columns are exchanged, as in a sum that runs the wrong way"
    return ""


def _sums(s: Suspect, i: int, j: int) -> str:
    """Over which of two dimensions of the output a sum runs, and over which it should, if these differ."""
    assert s.outputs.shape is not None
    shape = s.outputs.shape
    got, true = (
        [axis for axis in (i, j) if bool((used.reshape(*shape, -1).sum(axis) > 1).any())]
        for used in (s.nonzero, s.support)
    )
    if len(got) != 1 or len(true) != 1 or got == true:
        return ""
    return f"a sum runs over dimension {got[0]} of {s.outputs.name} where it should run over {true[0]}"


def displaced(case: Case) -> Iterator[Observation]:
    """The right numbers, moved along an axis of the input, or else of the output."""
    for s in case.suspects:
        if not s.support.any():
            continue
        found = [*_moved(s)] or [f"{text} of {s.outputs.name}" for text in _moved(s.turned)]
        for text in found:
            yield Observation(f"the {case.noun} for {{where}} has the right numbers {text}", 0.95, s.where)


def _moved(s: Suspect) -> Iterator[str]:
    """How numbers are moved, and along which axis of the input."""
    if s.inputs.shape is None or s.inputs.part is None:
        return
    if s.inputs.is_whole:  # numbers that are moved have the sum that they had
        apart = (s.analytic - s.numeric).sum(1).abs()
        if bool((apart > 2 * (s.slack + s.bound.max()).sum(1)).any()):
            return
    for axis, size in enumerate(s.inputs.part.shape):
        if size < 3:
            continue
        for what, came in _origins(s, axis, size).items():
            if _explains_moved(s, axis, came):
                yield f"{what}, along dimension {axis}"
    long = [axis for axis, size in enumerate(s.inputs.part.shape) if size > 1]
    if s.inputs.is_whole:
        shaped = s.numeric.reshape(-1, *s.inputs.part.shape)
        for axes in chain.from_iterable(combinations(long, count) for count in range(2, len(long) + 1)):
            if s.explains(shaped.flip([axis + 1 for axis in axes]).reshape(s.numeric.shape)):
                yield f"in reverse order, along {dimensions(axes)}"


def _origins(s: Suspect, axis: int, size: int) -> dict[str, Tensor]:
    """How numbers may be moved along an axis, and for each index looked at the one they came from then."""
    along = torch.arange(size) if s.inputs.along is None else s.inputs.along[axis]
    moved = {_places(by, size): (along - by) % size for by in _shifts(s, axis, size)}
    return moved | {"in reverse order": size - 1 - along}


def _explains_moved(s: Suspect, axis: int, came: Tensor) -> bool:
    """Whether the analytic numbers are numeric ones from other indices, as far as these are known."""
    assert s.inputs.shape is not None
    along = torch.arange(len(came)) if s.inputs.along is None else s.inputs.along[axis]
    at = torch.searchsorted(along, came).clamp(max=len(along) - 1)
    known = along[at] == came
    numeric, analytic, wrong = (m.reshape(-1, *s.inputs.shape) for m in (s.numeric, s.analytic, s.bad))
    expected = numeric.index_select(axis + 1, at)
    if bool(known.all()):
        return s.explains(expected.reshape(s.numeric.shape))
    inside = known.reshape(-1, *[1] * (len(s.inputs.shape) - axis - 1)).expand_as(wrong)
    mostly = bool(inside[wrong].double().mean() > 0.5) and bool((expected != 0)[inside].any())
    filled = torch.where(inside, expected, analytic).reshape(s.numeric.shape)
    return mostly and s.explains(filled)


def _shifts(s: Suspect, axis: int, size: int) -> list[int]:
    """How far numbers may be moved, nearest first; and as far as the largest of a row is."""
    near = [by for far in range(1, min(_FARTHEST, size // 2) + 1) for by in (far, -far)]
    if s.inputs.index is None:
        return near
    both = s.support.any(1) & s.nonzero.any(1)
    row = int(torch.where(both, (s.analytic - s.numeric).abs().amax(1), -1.0).argmax())
    got, true = (s.inputs.index[int(matrix[row].abs().argmax()), axis] for matrix in (s.analytic, s.numeric))
    by = int(got - true) % size
    by = by - size if by > size // 2 else by
    return near if by in (0, *near) else [*near, by]


def _places(by: int, size: int) -> str:
    if 2 * abs(by) == size:
        return "moved by half of the axis"
    counts = ("one place", "two places", "three places", "four places")
    count = counts[abs(by) - 1] if abs(by) <= len(counts) else f"{abs(by)} places"
    return f"{count} too {'far' if by > 0 else 'early'}"


def broadcast(case: Case) -> Iterator[Observation]:
    """A sum over a dimension that was broadcast is missing, partial, or a mean."""
    for s in case.suspects:
        shape = s.outputs.shape
        if shape is None or s.outputs.part is None or not s.support.any():
            continue
        text = _spread(s)
        for axis, size in enumerate(s.outputs.part.shape):
            counted = s.support.reshape(*shape, -1).sum(axis)
            if not text and size > 1 and bool((counted > 1).any()):
                text = _mean(case, s, axis, size) or _partial(s, shape, axis)
        if text:
            yield Observation(f"the {case.noun} for {{where}} {text}", 0.97, s.where)


def _spread(s: Suspect) -> str:
    """Every element of the gradient is the sum of all."""
    total = s.numeric.sum(1, keepdim=True).expand_as(s.numeric)
    several = s.inputs.is_whole and s.numeric.shape[1] > 1 and s.explains(total)
    return "is summed over the input too, and spread" if several else ""


def _mean(case: Case, s: Suspect, axis: int, size: int) -> str:
    if not s.explains(s.numeric / size):
        return ""
    # A factor 2 that was left out is more frequent, and one that several inputs lack is no mean for each.
    shared = sum(abs(one.factor * size - 1) < 1e-3 for one in case.multiples.values()) > 1
    if (size == 2 or shared) and not _is_broadcast(s, axis):
        return ""
    return f"is a mean over dimension {axis} of {s.outputs.name}, which has size {size}, not a sum"


def _is_broadcast(s: Suspect, axis: int) -> bool:
    """Whether the shape of the input is that of the output, but for this axis and others that it lacks."""
    if s.inputs.part is None or s.outputs.part is None:
        return False
    to = s.outputs.part.shape
    own = (1,) * (len(to) - len(s.inputs.part.shape)) + tuple(s.inputs.part.shape)
    return len(own) == len(to) and own[axis] == 1 and all(n in (1, m) for n, m in zip(own, to, strict=True))


def _partial(s: Suspect, shape: tuple[int, ...], axis: int) -> str:
    """Along this axis, some indices are counted in full and the others not at all."""
    analytic, numeric = (m.reshape(*shape, -1).movedim(axis, 0).flatten(1) for m in (s.analytic, s.numeric))
    slack = 2 * float(s.slack.max())
    right = ((analytic - numeric).abs() <= slack).all(1)
    missing = (analytic.abs() <= slack).all(1) & ~right
    if not missing.any() or not bool((right | missing).all()):
        return ""
    used = (numeric.abs() > 2 * slack).unflatten(1, (-1, s.numeric.shape[1])).any(1)
    lost_in_part = used[missing].any(0) & used[right].any(0)
    if not bool((lost_in_part == used.any(0)).all()):
        return ""  # what was broadcast is all there several times
    counted, lost = right.nonzero().flatten().tolist(), missing.nonzero().flatten().tolist()
    over = f"dimension {axis} of {s.outputs.name}"
    if len(counted) == 1:
        return f"is not summed over {over}: only index {counted[0]} counts"
    if len(lost) == 1:
        return f"is a sum over {over} that leaves out index {lost[0]}"
    return f"is a sum over {over} that leaves out {len(lost)} of {right.numel()} indices"
