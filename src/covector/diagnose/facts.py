"""What can be said of the wrong entries without knowing the mistake: where they are, how values relate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from covector.diagnose.case import Case
from covector.diagnose.rules.fit import clustered
from covector.diagnose.rules.reach import between
from covector.diagnose.suspects import Suspect, listed
from covector.evidence.jacobians import Jacobians, Part

# Ratios and differences that vary by less than this, relative to their size, are the same.
_SAME = 1e-4

# Fewer values than this are not called steady.
_SEVERAL = 6

# So many elements that are right are named.
_FEW_RIGHT = 3

# So many different ratios or differences are told one by one.
_FEW_VALUES = 4

# So many indices along an axis are told one by one.
_FEW_INDICES = 4

# So many custom Functions are named.
_FEW_FUNCTIONS = 3

# So many entries are looked at before all of them are.
_FEW = 64


def right_parts(case: Case) -> tuple[str, ...]:
    """Which inputs and outputs are right, if others are not."""
    both = case.evidence.jacobians if case.evidence.has_wrong_entries else None
    if both is None:
        return ()
    wrong = both.bad | both.doubtful
    inputs = _right(both.inputs, wrong.any(0), both.columns)
    outputs = _right(both.outputs, wrong.any(1), both.rows)
    sides = [f"with respect to {listed(inputs)}"] if inputs else []
    sides += [f"of {listed(outputs)}"] if outputs else []
    seen = "" if both.whole else " in the sample that was examined"
    return tuple(f"The derivative {side} is right{seen}." for side in sides)


def _right(parts: tuple[Part, ...], bad: Tensor, coordinates: Tensor) -> list[str]:
    """The names of the tensors without a wrong entry; none if that is true of all."""
    names = []
    for part in parts:
        mine = (coordinates >= part.place.start) & (coordinates < part.place.stop)
        if bool(mine.any()) and not bool(bad[mine].any()):
            names.append(f"`{part.name}`")
    return names if len(names) < len(parts) else []


def facts(case: Case) -> tuple[str, ...]:
    """What the wrong entries of each input have in common."""
    both = case.evidence.jacobians
    if both is None:
        return ()
    inside = _custom_functions(case)
    return (*inside, *(fact for suspect in case.suspects for fact in _facts(suspect, both)))


def _custom_functions(case: Case) -> tuple[str, ...]:
    """The few custom Functions inside of what was checked, each of which can be checked alone."""
    inside = case.evidence.functions_inside
    if not 0 < len(inside) <= _FEW_FUNCTIONS:
        return ()
    named = listed([f"`{name}`{place}" for name, place in inside])
    alone = f"{case.evidence.run.problem.caller.verb}({inside[0][0]}.apply, ...)"
    if len(inside) == 1:
        return (f"The only custom Function on the way is {named}: check it alone, covector.{alone}.",)
    return (f"The custom Functions on the way are {named}: check each alone, as by covector.{alone}.",)


def _facts(s: Suspect, both: Jacobians) -> Iterator[str]:
    # Where entries are is known only if all of them were looked at, and are known well enough.
    parts_are_whole = s.inputs.is_whole and s.outputs.is_whole and not bool(both.doubtful.any())
    coverage = "" if parts_are_whole else both.coverage
    places = () if coverage else (_places(s), _exceptions(s))
    found = [text for text in (*places, _zero(s) or _relation(s), _scaling(s)) if text]
    if found:
        where = f" for {s.where}" if len(both.inputs) > 1 else ""
        count = int(s.bad.sum())
        what = f"{count} wrong entries{coverage}" if count > 1 else f"One wrong entry{coverage}"
        yield f"{what}{where}: {'; '.join(found)}."


def _places(s: Suspect) -> str:
    """Where in the Jacobian they are."""
    rows, columns = (s.bad.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
    height, width = s.bad.shape
    if len(rows) == 1 < height:
        return f"all in one row, that of `{_label(s.outputs.parts, int(s.outputs.coordinates[rows[0]]))}`"
    if len(columns) == 1 < width:
        return f"all in one column, that of `{_label(s.inputs.parts, int(s.inputs.coordinates[columns[0]]))}`"
    square = height == width > 1
    diagonal = torch.eye(height, width, dtype=torch.bool)
    if square and not bool(s.bad[~diagonal].any()):
        return "all on the diagonal" + (
            ", the other entries are right" if bool(s.support[~diagonal].any()) else ""
        )
    if bool(s.bad[s.support].all()):
        return "every entry that is not zero"
    if text := _few_indices(s) or between(s, s.bad):
        return text
    if square and not bool(s.bad[diagonal].any()):
        return "all off the diagonal, which is right"
    block = len(rows) * len(columns)
    few = min(len(rows), len(columns)) > 1 and 2 * block < s.bad.numel() and 2 * int(s.bad.sum()) > block
    return f"in a block of {len(rows)} rows and {len(columns)} columns" if few else ""


def _few_indices(s: Suspect) -> str:
    """The index along an axis of the input, or of the output, that they all have, or few of many indices."""
    for side, wrong in ((s.inputs, s.bad.any(0)), (s.outputs, s.bad.any(1))):
        for axis, along in enumerate(side.along or ()):
            at = (side.index[wrong, axis] if side.index is not None else wrong).unique().tolist()
            if len(at) == 1 < along.numel() or len(at) <= min(_FEW_INDICES, along.numel() // 4):
                named = f"{'index' if len(at) == 1 else 'indices'} {listed([str(int(i)) for i in at])}"
                return f"all at {named} of dimension {axis} of {side.name}"
    return ""


def _exceptions(s: Suspect) -> str:
    """The few elements of the input that are right, and their values."""
    right = (s.active & ~s.bad.any(0)).nonzero().flatten().tolist()
    if not 0 < len(right) <= _FEW_RIGHT or int(s.active.sum()) < 3 * len(right):
        return ""
    named = [
        f"`{_label(s.inputs.parts, int(s.inputs.coordinates[i]))}` = {float(s.point[i]):.4g}" for i in right
    ]
    return f"right at {listed(named)} only"


def _label(parts: tuple[Part, ...], coordinate: int) -> str:
    part = next(part for part in parts if part.place.start <= coordinate < part.place.stop)
    return part.label(coordinate - part.place.start)


def _zero(s: Suspect) -> str:
    """Whether one side alone is zero there, or in how many of them."""
    sides = (("analytic", s.support & ~s.nonzero), ("numeric", s.nonzero & ~s.support))
    zeros = {name: int(zero[s.bad].sum()) for name, zero in sides}
    found = {name: count for name, count in zeros.items() if count}
    if set(found.values()) == {int(s.bad.sum())}:
        return f"the {listed([*found])} value is zero there"
    return listed([f"the {name} value is zero in {count}" for name, count in found.items()] or [""]) + (
        " of them" if found else ""
    )


@dataclass(frozen=True)
class _Values:
    """A number for each wrong entry, and in which row and column it stands."""

    values: Tensor
    row: Tensor
    column: Tensor

    @property
    def spread(self) -> tuple[float, float]:
        return float(self.values.min()), float(self.values.max())

    def same_along(self, group: Tensor) -> bool:
        """Whether the values of each group are the same, and there are groups of several."""
        counts = group.bincount()
        low, high = (
            self.values.new_zeros(len(counts)).scatter_reduce(
                0, group, self.values, which, include_self=False
            )
            for which in ("amin", "amax")
        )
        same = high - low <= _SAME * low.abs().maximum(high.abs())
        return bool(same.all()) and bool((counts > 1).any())


def _relation(s: Suspect) -> str:
    """How the two values relate."""
    where = s.bad & s.support
    if not bool(where[s.bad].all()):
        return ""
    row, column = where.nonzero(as_tuple=True)
    quotient = _Values((s.analytic / s.numeric)[where], row, column)
    difference = _Values((s.analytic - s.numeric)[where], row, column)
    low, high = quotient.spread
    if high - low <= _SAME * abs(high):
        everywhere = " in all of them" if quotient.values.numel() > 1 else ""
        return f"the ratio analytic / numeric is {high:.4g}{everywhere}"
    for name, one in (("ratio analytic / numeric", quotient), ("difference analytic - numeric", difference)):
        if text := _few_values(one.values):
            return f"the {name} is {text} of them"
    for name, one in (("ratio analytic / numeric", quotient), ("difference", difference)):
        low, high = one.spread
        span = f"from {low:.4g} to {high:.4g}"
        if one.same_along(row):
            return f"the {name} is the same along each row, {span}"
        if one.same_along(column):
            return f"the {name} is the same along each column, {span}"
    said = []
    for name, one in (("ratio analytic / numeric", quotient), ("difference analytic - numeric", difference)):
        low, high = one.spread
        said.append(f"the {name} lies between {low:.4g} and {high:.4g}")
        for values, of in ((s.point[column], s.inputs.name), (s.value[row], s.outputs.name)):
            if _steady(one.values, values):
                return f"{said[-1]}, and changes steadily with {of}"
    return said[0]


def _few_values(numbers: Tensor) -> str:
    """The values and how often they occur, if there are few."""
    if numbers.numel() < _SEVERAL:
        return ""
    size = float(numbers.abs().max())
    values, group = clustered(numbers / size)
    if len(values) > min(_FEW_VALUES, numbers.numel() // 2):
        return ""
    counts: Counter[str] = Counter()
    for value, count in zip((size * values).tolist(), group.bincount().tolist(), strict=True):
        counts[f"{value:.4g}"] += count  # what is written alike is the same to a reader
    return listed([f"{value} in {count}" for value, count in counts.items()])


def _scaling(s: Suspect) -> str:
    """Whether the error changes with the scale of the input: of the elements with a wrong entry."""
    errors = torch.where(s.bad, (s.analytic - s.numeric).abs(), 0.0).amax(0)
    wrong = s.bad.any(0)
    errors, sizes = errors[wrong], s.point[wrong].abs()
    order = sizes.argsort()
    if errors.numel() < _SEVERAL or not bool(errors.isfinite().all()) or not _steady(errors, sizes):
        return ""
    grows = bool(errors[order][-1] > errors[order][0])
    return f"the error {'grows' if grows else 'shrinks'} with the size of {s.inputs.name}"


def _steady(ratios: Tensor, values: Tensor) -> bool:
    """Whether ratios rise, or fall, all the way when sorted by these values."""
    if ratios.numel() < _SEVERAL:
        return False
    # Mostly a few of them show that they do not.
    return _monotone(ratios[:_FEW], values[:_FEW]) and _monotone(ratios, values)


def _monotone(ratios: Tensor, values: Tensor) -> bool:
    steps = ratios[values.argsort()].diff()
    return bool((steps > 0).all()) or bool((steps < 0).all())
