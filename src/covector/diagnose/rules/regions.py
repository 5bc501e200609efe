"""Where the derivative is wrong: an element, a slice, the diagonal, the ends, a range of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite, nan

import torch
from torch import Tensor

from covector._lazy import lazy
from covector.diagnose.case import Case
from covector.diagnose.rules.coupling import coupled
from covector.diagnose.rules.fit import manner
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Side, Suspect, listed

_SLICES = ("row", "column")

# More wrong elements than this are not told one by one.
_FEW = 3

# One wrong entry shows neither a value that several have nor a place.
_ONE_ENTRY = 0.45


# Of an element with so many wrong entries, several outputs depend on it: as on a maximum. Otherwise so many
# extreme elements, each of a group, are no chance.
_COUPLED, _SEVERAL = 2, 3

# More than this share of the entries of wrong elements are wrong, if it is what these hold that matters.
_MOST = 0.5

# Slopes that differ by less than this, relative to the largest, are the same.
_SLOPE = 1e-5

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
        alone = int(s.bad.sum()) == 1
        single = ", in one entry of the Jacobian" if alone else ""
        right = f", and right at {int(p.right.sum())} others{case.coverage}" if case.coverage else ""
        only = "" if case.coverage else " only"
        text = f"the {case.noun} is wrong at {names}{only}{single}{right}{manner(s)}"
        confidence = _ONE_ENTRY if alone else 0.85 if len(p.wrong) == 1 else 0.7
        yield Observation(text, confidence, s.where, _value_or_index(s, p) if alone else "")


def _value_or_index(s: Suspect, p: _Elements) -> str:
    """What one wrong entry may come from: the value of that element, or its place."""
    value = float((s.point if p.side is s.inputs else s.value)[p.bad][0])
    return (
        f"a branch of a piecewise function that is taken at the value {value:.4g}, or an index in the "
        "backward; one entry does not tell which: check more inputs with values like that one"
    )


def extremes(case: Case) -> Iterator[Observation]:
    """The largest or smallest elements are wrong, of several outputs each."""
    for s, p in _elements(case):
        part = s.inputs.part
        if p.side is not s.inputs or part is None or part.is_complex or not s.inputs.is_whole:
            continue
        coupled_to_several = int(s.bad.sum(0)[p.bad].min()) >= _COUPLED
        by_chance = not coupled_to_several and (int(p.bad.sum()) < _SEVERAL or _apart(s.point, p))
        if by_chance or int(p.right.sum()) < 2 * int(p.bad.sum()):
            continue
        for what, region in _extremes(s.point.reshape(p.shape)):
            if torch.equal(region.flatten(), p.bad):
                text = f"the {case.noun} is wrong at the {what} of {s.inputs.name} and right elsewhere"
                yield Observation(f"{text}{manner(s)}", p.confidence(0.93), s.where)
                break


def _apart(point: Tensor, p: _Elements) -> bool:
    """Whether some value lies between the wrong elements and the right ones, or between their sizes."""
    for values in (point, -point, point.abs(), -point.abs()):
        if bool(values[p.bad].min() > values[p.right].max()):
            return True
    return False


def _extremes(values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Where the extreme elements are, of all and along each dimension, and what they are called."""
    every = tuple(range(values.dim()))
    spans = [(every, "", "")] + [((a,), f" along dimension {a}", "s") for a in every[1:] and every]
    for axes, along, plural in spans:
        largest, smallest = (values == pick(values, axes, True) for pick in (torch.amax, torch.amin))
        size = values.abs()
        yield f"largest element{plural}{along}", largest
        yield f"smallest element{plural}{along}", smallest
        yield f"largest and smallest element{plural}{along}", largest | smallest
        yield f"element{plural} of the largest size{along}", size == size.amax(axes, True)


def one_slice(case: Case) -> Iterator[Observation]:
    """One row, one column, one index of a dimension is wrong."""
    for s, p in _elements(case):
        for axis in range(len(p.shape)) if len(p.shape) > 1 and len(p.wrong) > 1 else ():
            at = p.wrong[0][axis]
            if not p.exactly(p.index[:, axis] == at):
                continue
            what = f"{_SLICES[axis]} {at}" if len(p.shape) == 2 else f"index {at} of dimension {axis}"
            where = f"in {what} of {p.side.name} and right elsewhere{case.coverage}"
            text = f"the {case.noun} is wrong {where}{manner(s)}"
            yield Observation(text, p.confidence(0.93), s.where)


def diagonal(case: Case) -> Iterator[Observation]:
    """The diagonal of a matrix is wrong."""
    for s, p in _elements(case):
        if len(p.shape) == 2 and len(p.wrong) > 1 and p.exactly(p.index[:, 0] == p.index[:, 1]):
            where = f"on the diagonal of {p.side.name} and right elsewhere{case.coverage}"
            text = f"the {case.noun} is wrong {where}{manner(s)}"
            yield Observation(text, p.confidence(0.94), s.where)


def diagonal_of_jacobian(case: Case) -> Iterator[Observation]:
    """The diagonal of the Jacobian is wrong."""
    for s in case.suspects:
        eye = torch.eye(*s.bad.shape, dtype=torch.bool)
        square = s.bad.shape[0] == s.bad.shape[1] > 2
        if square and torch.equal(s.bad, eye) and bool((s.support & ~eye).any()):
            text = (
                f"the diagonal of the Jacobian is wrong for {{where}}, the other entries are right{manner(s)}"
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
                where = f"at {what} of {p.side.name} and right inside{case.coverage}"
                text = f"the {case.noun} is wrong {where}{manner(s)}"
                # Two elements may be wrong for what they hold: a reason that says so is named first.
                yield Observation(text, p.confidence(0.95 if len(p.wrong) > 2 else 0.8), s.where)


@dataclass(frozen=True)
class _Divided:
    """The values of an input, of its output or of a sum of inputs, where entries are wrong, and right."""

    suspect: Suspect
    name: str
    wrong: Tensor
    right: Tensor
    flat: Tensor
    """The values where the function is constant, and the gradient zero."""


def _divided(case: Case, s: Suspect) -> Iterator[_Divided]:
    """The values by which wrong elements of a suspect may be told from right ones: the simplest first.

    What an element holds is no reason if most outputs that depend on it are right.
    """
    bad = s.bad.any(0)
    right = s.active & ~bad
    if int(bad.sum()) < 2 or int(right.sum()) < 2 or not bool(s.exact.all(0)[right].all()):
        return
    if float(s.bad[:, bad][(s.support | s.nonzero)[:, bad]].double().mean()) <= _MOST:
        return
    yield _Divided(s, s.inputs.name, *(s.point[which] for which in (bad, right, ~s.active)))
    acts = s.support | s.nonzero
    # Where each element has an output of its own, which `backward` takes for clamped.
    if bool((acts[:, bad | right].sum(0) == 1).all()) and not bool(s.nonzero[:, bad].any()):
        value = s.value[acts.int().argmax(0)]
        flat = s.value[~s.active] if s.inputs.has_indices_of(s.outputs) else s.value[:0]
        yield _Divided(s, s.outputs.name, value[bad], value[right], flat)
    if int(bad.sum()) + int(right.sum()) < _BOTH:
        return
    for other, name in case.others_over(s, s.inputs):
        # In one order for both inputs, so that it is said once.
        mine = (s.inputs.name, s.point)
        (first, a), (second, b) = sorted([mine, (f"`{name}`", other)], key=lambda named: named[0])
        for sign, values in (("+", a + b), ("-", a - b)):
            yield _Divided(
                s, f"{first} {sign} {second}", *(values[which] for which in (bad, right, ~s.active))
            )


def _first(
    case: Case, told: Callable[[_Divided], str], sure: Callable[[_Divided], float]
) -> Iterator[Observation]:
    """For each suspect, the first values by which this tells wrong elements from right ones."""
    for s in case.suspects:
        for divided in _divided(case, s):
            if place := told(divided):
                yield Observation(
                    f"the {case.noun} is wrong where {place}{manner(s)}", sure(divided), s.where
                )
                break


def negative(case: Case) -> Iterator[Observation]:
    """The gradient is wrong where the input is negative, or positive."""

    def told(of: _Divided) -> str:
        if of.name != of.suspect.inputs.name:  # of a sum, zero is a threshold like others
            return ""
        for what, sign in (("negative", -1), ("positive", 1)):
            if bool((sign * of.wrong > 0).all()) and bool((sign * of.right <= 0).all()):
                return f"{of.name} is {what} and right elsewhere{case.coverage}"
        return ""

    return _first(case, told, lambda of: 0.95 * (1 - 0.5 ** (of.wrong.numel() + of.right.numel() - 1)))


def threshold(case: Case) -> Iterator[Observation]:
    """The gradient is wrong where the input is above, or below, some value."""

    def told(of: _Divided) -> str:
        side = _beyond(of.wrong, of.right) if of.right.numel() > 2 else ""
        # On the same side of that value, the function may be constant, and its gradient of zero right.
        except_flat = of.flat.numel() and not _beyond(of.wrong, torch.cat([of.right, of.flat]))
        return (
            f"{of.name} is {side}{', unless the function is constant there' if except_flat else ''}"
            * bool(side)
        )

    return _first(case, told, lambda _: 0.8)


def both_sides(case: Case) -> Iterator[Observation]:
    """The gradient is wrong where the size of the input is above, or below, some value."""

    def told(of: _Divided) -> str:
        few = of.wrong.numel() + of.right.numel() < _BOTH
        if few or not (bool((of.wrong > 0).any()) and bool((of.wrong < 0).any())):
            return ""
        side = _beyond(of.wrong.abs(), of.right.abs())
        return f"{of.name} is {side} in size, on both sides of zero" if side else ""

    return _first(case, told, lambda _: 0.9)


def _beyond(wrong: Tensor, right: Tensor) -> str:
    """On which side of what value all of these lie that are wrong, and none that is right."""
    for word, low, high in (("above", right.max(), wrong.min()), ("below", wrong.max(), right.min())):
        if low < high:
            return f"{word} a value between {float(low):.4g} and {float(high):.4g}"
    return ""


def slopes(case: Case) -> Iterator[Observation]:
    """The function has one slope where the input is positive and another where not: both are wrong."""
    for s in case.suspects:
        if coupled(s, s.support | s.nonzero) != () or not bool(s.bad.diagonal().all()):
            continue
        sides = (s.point > 0, s.point < 0)
        if min(int(side.sum()) for side in sides) < 2:
            continue
        true, got = (
            [_constant(m.diagonal()[side], s.scale) for side in sides] for m in (s.numeric, s.analytic)
        )
        if not isfinite(sum(true + got)) or abs(true[0] - true[1]) < _SLOPE * s.scale:
            continue
        text = (
            f"differences show a slope of {true[0]:.4g} where {s.inputs.name} is positive and {true[1]:.4g} "
            f"where it is negative; {case.rule} returns {got[0]:.4g} and {got[1]:.4g}"
        )
        yield Observation(text, 0.95, s.where)


def _constant(values: Tensor, scale: float) -> float:
    """The number that all of these are; not a number if they differ."""
    return float(values.mean()) if float(values.max() - values.min()) < _SLOPE * scale else nan
