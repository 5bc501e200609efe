"""Factors that differ from place to place: at an edge, in a triangle, at every second index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from covector.diagnose.case import Case
from covector.diagnose.rules.fit import NEAR, clustered, written
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Side, Suspect, listed

# So many different factors are told with their places, and so many of those that go by an index.
_FEW, _LISTED = 4, 8

# So many elements of either sign show that it is their sign that matters.
_MANY = 4

# So many indices are named one by one.
_NAMED = 4

# So many indices that are even, or odd, are no chance.
_REGULAR = 3


@dataclass(frozen=True)
class Uneven:
    """A factor for each element of one side of a Jacobian, of which there are few different ones."""

    side: Side
    active: Tensor
    """The elements that have a derivative."""
    group: Tensor
    """For each of these the number of its factor."""
    factors: Tensor
    entries: Tensor
    """How many entries have each factor."""

    @property
    def index(self) -> Tensor | None:
        """The indices of the elements."""
        return None if self.side.index is None else self.side.index[self.active]


def uneven(s: Suspect, side: Side) -> Uneven | None:
    """The factors by which the elements of a side are wrong; None if there is not one for each."""
    along = 1 if side is s.outputs else 0
    active = s.support.any(along)
    if int(active.sum()) < _FEW - 1:
        return None
    weight = (s.numeric**2).sum(along).clamp_min(1e-300)
    factors = (s.analytic * s.numeric).sum(along) / weight
    if not s.explains(factors.unsqueeze(along) * s.numeric, noise=max(1.0, float(factors.abs().max()))):
        return None
    if float(factors[active].abs().min()) < NEAR:
        return None  # that is a mask
    values, group = clustered(factors[active])
    entries = torch.zeros(len(values), dtype=torch.int64)
    entries.index_add_(0, group, s.support.sum(along)[active])
    return Uneven(side, active, group, values, entries)


def by_place(case: Case) -> Iterator[Observation]:
    """The gradient of each element, or of each output, is off by a factor of its own."""
    for s in case.suspects:
        many = case.multiples.get(s.where)
        if many is not None:
            if not many.extent:
                place = "at every entry of a sample, and by another one, or none, elsewhere"
                text = f"{case.rule} is off by a factor for {{where}}: {written(many.factor)} x {place}"
                yield Observation(text, 0.9, s.where)
            continue
        found = [one for side in (s.inputs, s.outputs) if (one := uneven(s, side)) is not None]
        found = [one for one in found if len(one.factors) > 1]
        text = next((t for one in found if (t := _few(one) or _for_each_index(one) or _by_sign(s, one))), "")
        if text:
            yield Observation(f"{case.rule} is off by a factor for {{where}}: {text}", 0.9, s.where)
            continue
        rows = next((one for one in found if one.side is s.outputs), None)
        if rows is not None and int(s.support.sum(1).max()) > 1:
            text = f"{case.rule} is off by a factor for {{where}} that depends on the output element alone"
            look = "the derivative of what is applied to each output last, or a weight or a count of its own"
            yield Observation(text, 0.75, s.where, look)


def _few(found: Uneven) -> str:
    """Few factors, and where each of them is; nothing if one of the places cannot be described."""
    count, name = len(found.factors), found.side.name
    if not 1 < count <= _FEW or int(found.entries.min()) < 2:  # one entry is no place
        return ""
    groups = [found.group == number for number in range(count)]
    largest = max(range(count), key=lambda n: int(groups[n].sum()))
    for what, describe in _places(found).items():
        places = [describe(group) for group in groups]
        places[largest] = places[largest] or "elsewhere"
        if all(places):
            right = [n for n in range(count) if abs(float(found.factors[n]) - 1) < NEAR]
            order = sorted(
                (n for n in range(count) if n not in right), key=lambda n: (n == largest, places[n])
            )
            said = [f"{written(float(found.factors[n]))} x {places[n]}" for n in order]
            return f"{listed([*said, *(f'right {places[n]}' for n in right)])}, {what}{name}"
    return ""


def _by_sign(s: Suspect, found: Uneven) -> str:
    """One factor where the derivative is positive, another where it is negative: targets of two classes."""
    if found.side is not s.inputs or bool((s.support.sum(0)[found.active] != 1).any()):
        return ""
    signs = s.numeric.sign().sum(0)[found.active]
    sides = {"positive": signs > 0, "negative": signs < 0}
    if len(found.factors) != len(sides) or min(int(mine.sum()) for mine in sides.values()) < _MANY:
        return ""
    if any(len(found.group[mine].unique()) != 1 for mine in sides.values()):
        return ""
    factors = {name: float(found.factors[found.group[mine][0]]) for name, mine in sides.items()}
    order = sorted(factors, key=lambda name: abs(factors[name] - 1) < NEAR)  # what is right last
    first, last = (
        f"{'right' if abs(factors[name] - 1) < NEAR else f'{written(factors[name])} x'} where"
        for name in order
    )
    return f"{first} the derivative by {found.side.name} is {order[0]}, {last} it is {order[1]}"


def _places(found: Uneven) -> dict[str, Callable[[Tensor], str]]:
    """Ways to say where some elements are: by the axis, and how. They give nothing if that is not known."""
    index, part = found.index, found.side.part
    if index is None or part is None:
        return {}
    ways: dict[str, Callable[[Tensor], str]] = {
        f"along dimension {axis} of ": partial(_along, index[:, axis], size)
        for axis, size in enumerate(part.shape)
    }
    if len(part.shape) > 1:
        row, column = index[:, -2], index[:, -1]
        last = torch.tensor(part.shape[-2:]) - 1
        ends = ((index[:, -2:] == 0) | (index[:, -2:] == last)).sum(1)
        regions = {
            "in the corners": ends == 2,
            "at the edges": ends == 1,
            "inside": ends == 0,
            "on the diagonal": row == column,
            "above the diagonal": column > row,
            "below the diagonal": column < row,
            "beside the diagonal": column != row,
        }
        ways["in "] = partial(_named, regions)
    return ways


def _named(regions: dict[str, Tensor], mine: Tensor) -> str:
    return next((text for text, region in regions.items() if torch.equal(region, mine)), "")


def _along(at: Tensor, size: int, mine: Tensor) -> str:
    """The indices along an axis of these elements, if no other element has them."""
    places, every = at[mine].unique(), at.unique()
    if not torch.equal(torch.isin(at, places), mine):
        return ""
    inside = every[(every > 0) & (every < size - 1)]
    regular = {
        "at both ends": torch.tensor([0, size - 1]),
        "inside": inside,
        "at even indices": every[every % 2 == 0],
        "at odd indices": every[every % 2 == 1],
        "at even indices inside": inside[inside % 2 == 0],
        "at odd indices inside": inside[inside % 2 == 1],
    }
    for text, those in regular.items():
        if those.numel() >= (2 if "indices" not in text else _REGULAR) and torch.equal(places, those):
            return text
    if every.numel() == at.numel():  # in a list of elements, any few of them are no place
        return ""
    numbers = places.tolist()
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"at indices {numbers[0]} to {numbers[-1]}"
    named = listed([str(number) for number in numbers])
    return f"at {'index' if len(numbers) == 1 else 'indices'} {named}" if len(numbers) <= _NAMED else ""


def _for_each_index(found: Uneven) -> str:
    """A factor for each index of an axis."""
    if found.index is None or found.side.part is None:
        return ""
    for axis, size in enumerate(found.side.part.shape):
        at = found.index[:, axis]
        low, high = (_by_index(found, at, size, which) for which in ("amin", "amax"))
        seen = at.unique()
        several = int(found.entries.sum()) > seen.numel()
        if len(seen) < 3 or not several or not torch.equal(low[seen], high[seen]):
            continue
        pairs = zip(low[seen].tolist(), seen.tolist(), strict=True)
        numbers = [f"{float(found.factors[n]):.4g} at {place}" for n, place in pairs]
        shown = ", ".join(numbers[:_LISTED]) + (", ..." if len(numbers) > _LISTED else "")
        return f"one for each index of dimension {axis} of {found.side.name}, {shown}"
    return ""


def _by_index(found: Uneven, at: Tensor, size: int, which: str) -> Tensor:
    return torch.zeros(size, dtype=torch.int64).scatter_reduce(0, at, found.group, which, include_self=False)
