"""Where the derivative is wrong: an element, a slice, the diagonal, the ends, a range of values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from covector._lazy import lazy
from covector.diagnose.case import Case
from covector.diagnose.rules.fit import manner
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Side, Suspect, listed

_SLICES = ("row", "column")

# More wrong elements than this are not told one by one.
_FEW = 3


# More than this share of the entries of wrong elements are wrong, if it is what these hold that matters.
_MOST = 0.5

# Fewer elements than this lie on either side of some value too often.
_BOTH = 6


@dataclass(frozen=True)
class _Elements:
    """Which elements of a tensor are wrong, and which are right, of those that could be wrong."""

    side: Side
    index: Tensor
    bad: Tensor
    right: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return () if self.side.part is None else self.side.part.shape

    @lazy
    def wrong(self) -> list[list[int]]:
        """The indices of the wrong elements."""
        return self.index[self.bad].unique(dim=0).tolist()

    def exactly(self, region: Tensor) -> bool:
        """Whether what is wrong is this region, as far as it could be wrong."""
        return bool(region[self.bad].all()) and not bool(region[self.right].any())

    def confidence(self, best: float) -> float:
        """Less where few elements are witnesses on either side."""
        witnesses = min(int(self.bad.sum()), 3) + min(int(self.right.sum()), 3)
        return best * (1 - 0.5**witnesses)


def _elements(case: Case) -> Iterator[tuple[Suspect, _Elements]]:
    """For each suspect the elements of its input, and if all of them are wrong those of its output."""
    for s in case.suspects:
        rows = (s.support | s.nonzero).any(1)
        for side, axis, active in ((s.inputs, 0, s.active), (s.outputs, 1, rows)):
            bad = s.bad.any(axis)
            right = active & ~bad
            if not bool((bad | s.exact.all(axis)).all()):
                continue
            if side.index is not None and side.index.shape[1] and right.any():
                yield s, _Elements(side, side.index, bad, right)
                break


def _named(side: Side, index: list[int]) -> str:
    return f"`{side.parts[0].name}[{', '.join(map(str, index))}]`"


def few_elements(case: Case) -> Iterator[Observation]:
    """One element is wrong, or a few."""
    for s, p in _elements(case):
        if len(p.wrong) > _FEW or int(p.right.sum()) < 2 * len(p.wrong):
            continue
        names = listed([_named(p.side, index) for index in p.wrong])
        single = ", in one entry of the Jacobian" if int(s.bad.sum()) == 1 else ""
        right = f", and right at {int(p.right.sum())} others{case.in_a_sample}" if case.is_sampled else ""
        only = "" if case.is_sampled else " only"
        text = f"the {case.noun} is wrong at {names}{only}{single}{right}{manner(s)}"
        yield Observation(text, 0.85 if len(p.wrong) == 1 else 0.7, s.where)


def one_slice(case: Case) -> Iterator[Observation]:
    """One row, one column, one index of a dimension is wrong."""
    for s, p in _elements(case):
        for axis in range(len(p.shape)) if len(p.shape) > 1 and len(p.wrong) > 1 else ():
            at = p.wrong[0][axis]
            if not p.exactly(p.index[:, axis] == at):
                continue
            what = f"{_SLICES[axis]} {at}" if len(p.shape) == 2 else f"index {at} of dimension {axis}"
            where = f"in {what} of {p.side.name} and right elsewhere{case.in_a_sample}"
            text = f"the {case.noun} is wrong {where}{manner(s)}"
            yield Observation(text, p.confidence(0.93), s.where)


def diagonal(case: Case) -> Iterator[Observation]:
    """The diagonal of a matrix is wrong."""
    for s, p in _elements(case):
        if len(p.shape) == 2 and len(p.wrong) > 1 and p.exactly(p.index[:, 0] == p.index[:, 1]):
            where = f"on the diagonal of {p.side.name} and right elsewhere{case.in_a_sample}"
            text = f"the {case.noun} is wrong {where}{manner(s)}"
            yield Observation(text, p.confidence(0.94), s.where)


def diagonal_of_jacobian(case: Case) -> Iterator[Observation]:
    """The diagonal of the Jacobian is wrong."""
    for s in case.suspects:
        eye = torch.eye(*s.bad.shape, dtype=torch.bool)
        square = s.bad.shape[0] == s.bad.shape[1] > 2
        if square and torch.equal(s.bad, eye) and bool((s.support & ~eye).any()):
            text = (
                f"the diagonal of the Jacobian is wrong for {{where}}, what is beside it is right{manner(s)}"
            )
            yield Observation(text, 0.92, s.where)


def boundary(case: Case) -> Iterator[Observation]:
    """The first and last elements along a dimension, or along all, are wrong."""
    for s, p in _elements(case):
        if min(p.shape) < 3 or len(p.wrong) < 2 or int(p.right.sum()) < 2:  # one inside shows little
            continue
        first, last = p.index == 0, p.index == torch.tensor(p.shape) - 1
        ends, seen = first | last, first[p.bad].any(0) & last[p.bad].any(0)
        regions = {
            f"both ends of dimension {axis}": ends[:, axis] for axis in seen.nonzero().flatten().tolist()
        }
        if len(p.shape) > 1 and bool(seen.all()):
            regions["the boundary"] = ends.any(1)
        for what, region in regions.items():
            if p.exactly(region):
                where = f"at {what} of {p.side.name} and right inside{case.in_a_sample}"
                text = f"the {case.noun} is wrong {where}{manner(s)}"
                # Two elements may be wrong for what they hold: a reason that says so is named first.
                yield Observation(text, p.confidence(0.95 if len(p.wrong) > 2 else 0.8), s.where)


def _divided(case: Case) -> Iterator[tuple[Suspect, Tensor, Tensor]]:
    """For each suspect, the values of the input where it is wrong and where it is right.

    What an element holds is no reason if most outputs that depend on it are right.
    """
    for s in case.suspects:
        bad = s.bad.any(0)
        right = s.active & ~bad
        if float(s.bad[:, bad][(s.support | s.nonzero)[:, bad]].double().mean()) <= _MOST:
            continue
        if int(bad.sum()) > 1 and int(right.sum()) > 1 and bool(s.exact.all(0)[right].all()):
            yield s, s.point[bad], s.point[right]


def negative(case: Case) -> Iterator[Observation]:
    """The gradient is wrong where the input is negative, or positive."""
    for s, wrong, right in _divided(case):
        sure = 0.95 * (1 - 0.5 ** (wrong.numel() + right.numel() - 1))
        for what, sign in (("negative", -1), ("positive", 1)):
            if bool((sign * wrong > 0).all()) and bool((sign * right <= 0).all()):
                place = f"where {s.inputs.name} is {what} and right elsewhere{case.in_a_sample}"
                yield Observation(f"the {case.noun} is wrong {place}{manner(s)}", sure, s.where)


def threshold(case: Case) -> Iterator[Observation]:
    """The gradient is wrong where the input is above, or below, some value."""
    for s, wrong, right in _divided(case):
        for word, low, high in (("above", right.max(), wrong.min()), ("below", wrong.max(), right.min())):
            if low < high and right.numel() > 2:
                between = f"a value between {float(low):.4g} and {float(high):.4g}"
                text = f"the {case.noun} is wrong where {s.inputs.name} is {word} {between}{manner(s)}"
                yield Observation(text, 0.8, s.where)


def both_sides(case: Case) -> Iterator[Observation]:
    """The gradient is wrong where the size of the input is above, or below, some value."""
    for s, wrong, right in _divided(case):
        if wrong.numel() + right.numel() < _BOTH or not (bool((wrong > 0).any()) and bool((wrong < 0).any())):
            continue
        sizes, others = wrong.abs(), right.abs()
        for word, low, high in (("above", others.max(), sizes.min()), ("below", sizes.max(), others.min())):
            if low < high:
                between = f"a value between {float(low):.4g} and {float(high):.4g}"
                place = f"where {s.inputs.name} is {word} {between} in size, on both sides of zero"
                yield Observation(f"the {case.noun} is wrong {place}{manner(s)}", 0.9, s.where)
