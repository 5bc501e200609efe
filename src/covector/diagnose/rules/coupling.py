"""Elements that act on each other through a mean, a sum or a norm: a term that is missing, or a wrong axis.

Within each group of elements that are normalised together, the Jacobian of a normalisation is a combination
of few matrices: of y = (x - mean) / deviation it is (I - 1 1'/n - y y'/n) / deviation, of softmax
diag(y) - y y'. Both Jacobians are written in such terms, and their coefficients compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from covector.diagnose.case import Case
from covector.diagnose.rules.fit import written
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Suspect, listed

# Two coefficients this close, relative to the largest, are the same.
_CLOSE = 1e-4

# A coefficient this close to a number of two digits, relative to it, is that number.
_WRITTEN = 1e-6

# What is smaller than this, relative to the largest coefficient, may be noise.
_NOISE = 1e-3

# The share of the entries in a group that are not zero where elements are normalised together.
_MOST = 0.5

# Fewer elements than this in a group fit too many things.
_LEAST = 3


@dataclass(frozen=True)
class _Term:
    """A matrix that the Jacobian of a normalisation is made of, from the outputs of a group."""

    name: str
    like: str
    matrix: Callable[[Tensor], Tensor]


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)


_DIRECT = _Term("", "", lambda y: torch.diag_embed(torch.ones_like(y)))
_FAMILIES = (
    (
        _DIRECT,
        _Term("the mean", "constant", lambda y: _outer(torch.ones_like(y), torch.ones_like(y))),
        _Term("the deviation or norm", "proportional to the output", lambda y: _outer(y, y)),
    ),
    (
        _Term("", "", torch.diag_embed),
        _Term("the sum of the others", "proportional to the output", lambda y: _outer(y, y)),
    ),
    (
        _DIRECT,
        _Term(
            "the sum of exponentials",
            "proportional to the exponential of the output",
            lambda y: _outer(torch.ones_like(y), y.exp()),
        ),
    ),
    (
        _DIRECT,
        _Term("the sum it is divided by", "constant", lambda y: _outer(y, torch.ones_like(y))),
    ),
)


def coupled(s: Suspect, entries: Tensor) -> tuple[int, ...] | None:
    """The axes along which elements act on others at these entries; None if shapes or indices differ."""
    return _between(s, entries) if s.inputs.has_indices_of(s.outputs) else None


def _between(s: Suspect, entries: Tensor) -> tuple[int, ...] | None:
    """The axes along which an output stands at another index than the input; None if shapes differ."""
    outputs, inputs = s.outputs.index, s.inputs.index
    if s.outputs.part is None or s.inputs.part is None or outputs is None or inputs is None:
        return None
    if s.outputs.part.shape != s.inputs.part.shape:
        return None
    if s.inputs.part.is_complex or s.outputs.part.is_complex:
        return None
    row, column = entries.nonzero(as_tuple=True)
    differs = (outputs[row] != inputs[column]).any(0) if row.numel() else torch.zeros(outputs.shape[1])
    return tuple(differs.nonzero().flatten().tolist())


def dimensions(axes: tuple[int, ...]) -> str:
    """Axes as a person names them."""
    return f"dimension{'s' if len(axes) > 1 else ''} {listed([str(axis) for axis in axes])}"


def wrong_axis(case: Case) -> Iterator[Observation]:
    """Elements act on each other along one axis in the function, along another in the gradient."""
    for s in case.suspects:
        true, got = _between(s, s.support), _between(s, s.nonzero)
        if true and got and set(true) != set(got):
            text = f"in the {case.noun} for {{where}}, elements interact along {dimensions(got)}"
            yield Observation(f"{text}; in the function, along {dimensions(true)}", 0.93, s.where)
        elif text := _normalised_along_another(s):
            yield Observation(f"the {case.noun} for {{where}} {text}", 0.93, s.where)


def _normalised_along_another(s: Suspect) -> str:
    """The derivatives of all outputs together sum to one number along an axis, the gradient along another."""
    if s.inputs.part is None or s.inputs.part.is_complex or not s.inputs.is_whole:
        return ""
    assert s.inputs.shape is not None
    true, got = (_steady_sums(matrix.sum(0).reshape(s.inputs.shape)) for matrix in (s.numeric, s.analytic))
    if not true or not got or true & got:
        return ""
    along, where = dimensions(tuple(sorted(got))), dimensions(tuple(sorted(true)))
    return f"sums to the same number along {along}, the true one along {where}"


def _steady_sums(total: Tensor) -> set[int]:
    """The axes along which every sum of a tensor is the same, and not zero."""
    steady = set()
    for axis in range(total.dim()):
        sums = total.sum(axis)
        same = (sums.max() - sums.min()) <= _CLOSE * sums.abs().max()
        if sums.numel() > 1 and total.shape[axis] > 1 and bool(same) and bool(sums.abs().max() > 0):
            steady.add(axis)
    return steady


def normalisation(case: Case) -> Iterator[Observation]:
    """A term of a normalisation is missing, or has another coefficient."""
    for s in case.suspects:
        axes = coupled(s, s.support)
        if axes is None and (text := _of_a_quotient(s)):
            yield Observation(f"the {case.noun} for {{where}} {text}", 0.93, s.where)
        if not axes or not each_with_each(s, axes):
            if text := _of_a_weighted_sum(s):
                yield Observation(f"the {case.noun} for {{where}} {text}", 0.9, s.where)
            continue
        if text := _alone(s, axes) or _of_a_family(s, axes) or _of_rank_one(s, axes) or _of_a_weighted_sum(s):
            yield Observation(f"the {case.noun} for {{where}} {text}", 0.95, s.where)


def _of_a_quotient(s: Suspect) -> str:
    """For each output, the wrong part is proportional to the elements that it depends on, or constant."""
    if s.inputs.part is None or s.inputs.part.is_complex or bool(s.outputs.imaginary.any()):
        return ""
    rows = s.support.any(1)
    used, wrong = s.support[rows], (s.analytic - s.numeric)[rows]
    if not rows.any() or int(used.sum(1).min()) <= _LEAST or not bool((used == (used | s.bad[rows])).all()):
        return ""
    slack = s.slack[rows] + 2 * s.bound.max()
    for values, like in ((s.point, "the input: the term of a norm"), (torch.ones_like(s.point), "")):
        along = torch.where(used, values, 0.0)
        fits = [_left_beside(along, matrix) <= slack for matrix in (wrong, s.numeric[rows])]
        if bool(fits[0].all()) and not bool(fits[1].all()) and not term_of_a_sum(wrong, along):
            what = f"proportional to {like}" if like else "constant: the term of a sum or a mean"
            return f"has an error that is, for each output, {what} that it is divided by is missing or wrong"
    return ""


def term_of_a_sum(wrong: Tensor, along: Tensor) -> float:
    """By what a vector is multiplied in the gradient of one output, if people write such a number; or 0.

    It is a term that was added, as of a weight decay. What a statistic is divided by is no such number.
    """
    if len(wrong) != 1:
        return 0.0
    share = float((wrong * along).sum() / along.square().sum().clamp(min=1e-300))
    written = float(f"{share:.2g}")
    return written if abs(share - written) <= _WRITTEN * abs(share) else 0.0


def _of_a_weighted_sum(s: Suspect) -> str:
    """The wrong part follows the output along one of its axes, as in a sum with weights that sum to one."""
    index = s.outputs.index
    if index is None or s.outputs.part is None or s.outputs.part.is_complex:
        return ""
    wrong, y = s.analytic - s.numeric, s.value
    for axis in range(index.shape[1]):
        others = index.clone()
        others[:, axis] = 0
        _, group, counts = others.unique(dim=0, return_inverse=True, return_counts=True)
        several = counts[group] >= _LEAST  # fewer outputs follow anything
        if 2 * int(s.bad[several].sum()) <= int(s.bad.sum()) or not bool(y[several].any()):
            continue
        if _follows(s, wrong, y, group) and not (
            _follows(s, s.numeric, y, group) or _follows(s, wrong, torch.ones_like(y), group)
        ):
            name = f"dimension {axis} of {s.outputs.name}"
            return f"has an error that is proportional to the output along {name}: {_DIVIDED}"
    return ""


def _follows(s: Suspect, matrix: Tensor, vector: Tensor, group: Tensor) -> bool:
    """Whether the rows of each group are multiples of one row, by the elements of a vector."""
    count = int(group.max()) + 1
    shares = torch.zeros(count, matrix.shape[1], dtype=matrix.dtype).index_add(
        0, group, matrix * vector[:, None]
    )
    shares /= torch.zeros(count, dtype=matrix.dtype).index_add(0, group, vector**2).clamp(min=1e-300)[:, None]
    left = matrix - shares[group] * vector[:, None]
    return bool((left.abs() <= s.slack + 2 * s.bound.max()).all())


def _left_beside(along: Tensor, matrix: Tensor) -> Tensor:
    """What remains of each row of a matrix without its part along a vector."""
    share = (matrix * along).sum(1) / along.square().sum(1).clamp(min=1e-300)
    return (matrix - share[:, None] * along).abs()


def each_with_each(s: Suspect, axes: tuple[int, ...]) -> bool:
    """Whether there are enough elements in a group, and most of them act on most of the others."""
    _, size = _order(s, axes)
    return size >= _LEAST and float(blocks(s, s.support, axes).double().mean()) > _MOST


def _alone(s: Suspect, axes: tuple[int, ...]) -> str:
    """Nothing but the diagonal of the true Jacobian."""
    diagonal = torch.diag(s.numeric.diagonal())
    if not s.explains(diagonal):
        return ""
    return (
        "is only the diagonal of the Jacobian: the terms that couple elements along "
        f"{dimensions(axes)} (a mean, a sum, a norm, a recurrent state) are missing"
    )


def _order(s: Suspect, axes: tuple[int, ...]) -> tuple[Tensor, int]:
    """The elements, those of one group after each other, and how many there are in a group.

    A group has the elements that act on each other, if all groups have as many: those of a part of an axis,
    as in group normalisation, or of whole axes.
    """
    assert s.inputs.shape is not None
    labels = _connected(s.support)
    kinds, counts = labels.unique(return_counts=True)
    if bool((counts == counts[0]).all()):
        return labels.argsort(stable=True), int(counts[0])
    if not s.inputs.is_whole:  # of some groups a grid has fewer elements
        largest = torch.isin(labels, kinds[counts == counts.max()])
        order = labels.argsort(stable=True)
        return order[largest[order]], int(counts.max())
    shape = s.inputs.shape
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    order = torch.arange(prod(shape)).reshape(shape).permute(*kept, *axes).flatten()
    return order, prod(shape[axis] for axis in axes)


def _connected(support: Tensor) -> Tensor:
    """For each element the first one that it is connected with."""
    labels = torch.arange(support.shape[0])
    touching = support | support.T | torch.eye(support.shape[0], dtype=torch.bool)
    while True:
        lowest = torch.where(touching, labels, support.shape[0]).amin(1)
        if torch.equal(lowest, labels):
            return labels
        labels = lowest


def _along(s: Suspect, axes: tuple[int, ...]) -> str:
    """The dimensions along which elements act on each other, and the size of groups that are parts of it."""
    size, part = _size(s, axes)
    groups = f", in groups of {size} elements" if s.inputs.is_whole else ", in groups"
    return f"along {dimensions(axes)}" + (groups if part else "")


def _size(s: Suspect, axes: tuple[int, ...]) -> tuple[int, bool]:
    """How many elements a group has in the whole tensor, and whether it is a part of its axes.

    Of such a part a grid has not all elements, so that its size is not known.
    """
    assert s.inputs.shape is not None
    assert s.inputs.part is not None
    _, size = _order(s, axes)
    if size < prod(s.inputs.shape[axis] for axis in axes):
        return size if s.inputs.is_whole else 0, True
    return prod(s.inputs.part.shape[axis] for axis in axes), False


def _means(s: Suspect, axes: tuple[int, ...]) -> Tensor:
    """For each element of the input that was looked at, the mean of its group."""
    assert s.inputs.part is not None
    assert s.inputs.index is not None
    order, size = _order(s, axes)
    if _size(s, axes)[1]:
        means = torch.zeros_like(s.point)
        means[order] = s.point[order].reshape(-1, size).mean(1, keepdim=True).expand(-1, size).flatten()
        return means
    whole = s.everything.reshape(s.inputs.part.shape)
    return whole.mean(axes, keepdim=True).expand_as(whole)[s.inputs.index.unbind(1)]


def _grouped(s: Suspect, vector: Tensor, axes: tuple[int, ...]) -> Tensor:
    order, size = _order(s, axes)
    return vector[order].reshape(-1, size)


def blocks(s: Suspect, matrix: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A matrix for each group of elements that act on each other along these axes."""
    order, size = _order(s, axes)
    groups = matrix[order][:, order].reshape(-1, size, order.numel() // size, size)
    return groups.diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def _of_a_family(s: Suspect, axes: tuple[int, ...]) -> str:
    """Both Jacobians are combinations of the same terms, and one coefficient differs."""
    if coupled(s, s.nonzero) not in (axes, ()):
        return ""
    y = _grouped(s, s.value, axes)
    numeric, analytic = (blocks(s, matrix, axes) for matrix in (s.numeric, s.analytic))
    slack = blocks(s, s.slack, axes) + 2 * s.bound.max()
    if not bool(numeric.isfinite().all() & analytic.isfinite().all()):
        return ""
    for family in _FAMILIES:
        terms = torch.stack([term.matrix(y) for term in family], -1).flatten(1, 2)
        if not bool(terms.isfinite().all()):
            continue
        true, got = (_coefficients(terms, given, slack) for given in (numeric, analytic))
        if true is None or got is None:
            continue
        if text := _difference(family, true, got, _size(s, axes)[0], _along(s, axes)):
            return text
    return ""


def _coefficients(terms: Tensor, given: Tensor, slack: Tensor) -> Tensor | None:
    """The combination of terms that these blocks are; None if they are none."""
    flat = given.flatten(1).unsqueeze(-1)
    found = torch.linalg.lstsq(terms, flat).solution
    left = (terms @ found - flat).abs().squeeze(-1)
    return found.squeeze(-1) if bool((left <= slack.flatten(1)).all()) else None


def _difference(family: tuple[_Term, ...], true: Tensor, got: Tensor, size: int, along: str) -> str:
    """Which coefficients differ, and how."""
    scale = true.abs().max(1, keepdim=True).values
    own = torch.maximum(true.abs(), got.abs()).amax(0).clamp(min=_NOISE * scale)
    off = ((got - true).abs() > _CLOSE * torch.minimum(scale, 10 * own)).any(0)
    if bool(off[0]):  # no term is missing, and one factor for each group is no matter of terms
        ratios = got / true
        same = ((ratios - ratios[:, :1]).abs() < _CLOSE * ratios.abs()).all()
        return (
            ""
            if same
            else f"has other coefficients for every term {along}: another divisor, as of another eps"
        )
    if not bool(off.any()):
        return ""
    wrong = [index for index in range(1, len(family)) if bool(off[index])]
    names = listed([family[index].name for index in wrong])
    if bool((got[:, wrong].abs() <= _CLOSE * scale).all()):
        like = listed([family[index].like for index in wrong])
        terms = "terms" if len(wrong) > 1 else "term"
        return f"lacks the {terms} of {names} {along}: the error is {like} there"
    if len(wrong) > 1:
        return f"has other coefficients for the terms of {names} {along}"
    ratios = got[:, wrong[0]] / true[:, wrong[0]]
    if not bool(((ratios - ratios[0]).abs() < 10 * _CLOSE).all()):
        return f"has another coefficient for the term of {names} {along}"
    return f"has {written(float(ratios[0]))} x the term of {names} {along}{unbiased(float(ratios[0]), size)}"


def unbiased(ratio: float, size: int) -> str:
    """The words for a factor that comes from n - 1 for n, if it does."""
    if size < _LEAST:
        return ""
    shrunk = (size - 1) / size
    for value, text in (
        (shrunk, f"{size - 1} / {size}"),
        (1 / shrunk, f"{size} / {size - 1}"),
        (shrunk**0.5, f"the root of {size - 1} / {size}"),
        (shrunk**-0.5, f"the root of {size} / {size - 1}"),
    ):
        if abs(ratio - value) < 1e-5:
            return f", which is {text}: a variance that is biased on one side and unbiased on the other"
    return ""


def _of_rank_one(s: Suspect, axes: tuple[int, ...]) -> str:
    """The wrong part of each group is constant or follows the input, or follows the output."""
    if coupled(s, s.bad) != axes:
        return ""
    wrong = blocks(s, s.analytic - s.numeric, axes)
    slack = blocks(s, s.slack, axes) + 2 * s.bound.max()
    x, centred = _grouped(s, s.point, axes), _grouped(s, s.point - _means(s, axes), axes)
    ones = torch.ones_like(x)
    for vectors, text in (
        ((ones,), "constant: the term of a mean or a sum is missing or wrong"),
        ((centred,), "proportional to the input less its mean: the term of the variance is missing or wrong"),
        ((x,), "proportional to the input: the term of the norm is missing or wrong"),
        (
            (ones, centred),
            "a constant plus a multiple of the input: terms of mean and variance are missing or wrong",
        ),
    ):
        if x.shape[1] <= len(vectors) + 1:
            continue
        basis = torch.linalg.qr(torch.stack(vectors, -1)).Q
        left = wrong - wrong @ basis @ basis.mT
        if bool((left.abs() <= slack).all()):
            return f"has an error {_along(s, axes)} that is {text}"
    y = _grouped(s, s.value, axes)
    y = (y / y.norm(dim=1, keepdim=True)).unsqueeze(-1)
    if y.shape[1] > _LEAST and bool(((wrong - y @ (y.mT @ wrong)).abs() <= slack).all()):
        return f"has an error {_along(s, axes)} that is proportional to the output: {_DIVIDED}"
    return ""


_DIVIDED = "the term of a norm or a sum, by which it divides or multiplies, is missing or wrong"
