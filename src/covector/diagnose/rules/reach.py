"""How far an output reaches along an axis: to earlier elements, to near ones, to its group, to all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from covector.diagnose.case import Case
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Side, Suspect, listed

# Windows that move farther at each step, or are wider, are not looked for.
_STRIDES, _WIDEST = 4, 9

# On a shorter axis too many patterns look alike.
_LEAST = 3


def reach(case: Case) -> Iterator[Observation]:
    """Outputs depend on some indices of an axis, and the gradient on more of them, or on fewer."""
    for s in case.suspects:
        for axes in pairs_of_axes(s):
            true, got = axes.pattern(s.support), axes.pattern(s.nonzero)
            differ = true != got
            if not bool(differ.any()) or bool((got & ~true).any()) == bool((true & ~got).any()):
                continue
            reaches = [axes.reach(pattern) for pattern in (true, got)]
            # What acts on nothing but itself, and should act on all, lacks a sum or a mean and no mask.
            if not all(reaches) or reaches[0] == reaches[1] or set(reaches) == {_ALL, _ITSELF}:
                continue
            text = (
                f"along {axes.name(s)}, an output depends on elements {reaches[0]}; the {case.noun} for "
                f"{{where}} assumes that it depends on those {reaches[1]}"
            )
            # Outputs that reach equally far in both have to be right, if a mask is all that is wrong.
            alike = ~differ.any(1)[axes.row]
            explained = int((s.bad & differ[axes.row][:, axes.column]).sum())
            yield Observation(text, 0.8 if bool(s.bad[alike].any()) else 0.95, s.where, explained=explained)
            break
        else:
            if text := _windows(s):
                text = text.replace("{noun}", case.noun)
                yield Observation(text, 0.93, s.where)


def _windows(s: Suspect) -> str:
    """Outputs depend on a window that begins, moves or is spaced in another way than the gradient assumes."""
    for axes in pairs_of_axes(s, alike=False):
        true, got = (axes.window(axes.pattern(entries)) for entries in (s.support, s.nonzero))
        if true and got and true != got:
            return (
                f"along {axes.name(s)}, output i depends on elements {true}; the {{noun}} for {{where}} "
                f"assumes that it depends on {got}"
            )
    return ""


def between(s: Suspect, entries: Tensor) -> str:
    """Between which indices of an output and of the input these entries stand, if those are a band."""
    for axes in pairs_of_axes(s):
        found = axes.reach(axes.pattern(entries))
        if found not in ("", _ALL, _ITSELF):
            return f"along {axes.name(s)}, between an output and elements of {s.inputs.name} {found}"
    return ""


_ALL, _ITSELF = "at every index", "at the same index"


@dataclass(frozen=True)
class Axes:
    """An axis of the output and one of the input, along which indices can be compared."""

    output: int
    input: int
    rows: Tensor
    """The indices along the axis of the output, and which of them each row of the Jacobian has."""
    row: Tensor
    columns: Tensor
    column: Tensor

    def pattern(self, entries: Tensor) -> Tensor:
        """For each index of the output and each of the input, whether there is an entry."""
        found = torch.zeros(self.rows.numel(), self.columns.numel(), dtype=torch.bool)
        row, column = entries.nonzero(as_tuple=True)
        found[self.row[row], self.column[column]] = True
        return found

    def name(self, s: Suspect) -> str:
        """The axes in words."""
        if self.output == self.input:
            return f"dimension {self.input}"
        beside = f"compared with dimension {self.output} of {s.outputs.name}"
        return f"dimension {self.input} of {s.inputs.name}, {beside}"

    def reach(self, pattern: Tensor) -> str:
        """To which indices an output reaches, if it is a band or groups; nothing for other patterns.

        An output that depends on nothing is left out: the softmax of one number is a constant.
        """
        used = pattern.any(1)
        apart = (self.columns[None, :] - self.rows[:, None])[used]
        pattern = pattern[used]
        if used.sum() < _LEAST - 1:
            return ""
        if bool(pattern.all()):
            return _ALL
        low, high = int(apart[pattern].min()), int(apart[pattern].max())
        if torch.equal((apart >= low) & (apart <= high), pattern):
            before = None if low == int(apart.min()) else -low
            after = None if high == int(apart.max()) else high
            return _band(before, after)
        square = bool(used.all()) and pattern.shape[0] == pattern.shape[1]
        if square and bool(pattern.diagonal().all()) and torch.equal(pattern, pattern.T):
            steps = pattern.double()
            return "of the same group of indices" if torch.equal(steps @ steps > 0, pattern) else ""
        return ""

    def window(self, pattern: Tensor) -> str:
        """On which elements output i depends, if on those of a window that moves along with i."""
        for stride in range(1, _STRIDES + 1):
            apart = self.columns[None, :] - stride * self.rows[:, None]
            inside = apart[pattern].unique()
            if len(inside) > _WIDEST or not torch.equal(torch.isin(apart, inside), pattern):
                continue
            spacing = inside.diff().unique()
            if len(inside) < 2 or len(spacing) != 1:
                return ""
            own = "i" if stride == 1 else f"{stride} i"
            named = [f"{own} {'-' if by < 0 else '+'} {abs(by)}" if by else own for by in inside.tolist()]
            return f"{named[0]} to {named[-1]}" if int(spacing) == 1 else listed(named)
        return ""


def pairs_of_axes(s: Suspect, *, alike: bool = True) -> Iterator[Axes]:
    """Axes with the same indices, those at the same place first, and axes of nearly the same length.

    If they need not be alike, all axes at the same place.
    """
    outputs, inputs = s.outputs.along, s.inputs.along
    if outputs is None or inputs is None:
        return
    pairs = product(range(len(outputs)), range(len(inputs)))
    for out, into in sorted(pairs, key=lambda pair: pair[0] != pair[1]):
        rows, columns = outputs[out], inputs[into]
        whole = s.outputs.is_whole and s.inputs.is_whole
        fit = torch.equal(rows, columns) or (out == into and (whole or not alike))
        if fit and min(rows.numel(), columns.numel()) >= _LEAST:
            yield Axes(out, into, rows, _numbers(s.outputs, out), columns, _numbers(s.inputs, into))


def _numbers(side: Side, axis: int) -> Tensor:
    """Which of the indices along an axis each coordinate of a side has."""
    assert side.index is not None
    return side.index[:, axis].unique(return_inverse=True)[1]


def _band(before: int | None, after: int | None) -> str:
    """From so many indices before the output's own to so many after it; None for no limit."""
    if (before, after) == (0, 0):
        return _ITSELF
    if before is None and after is not None:
        return _up_to(after, "earlier", "later")
    if after is None and before is not None:
        return _up_to(before, "later", "earlier")
    assert before is not None
    assert after is not None
    if before == after:
        return f"at most {after} away"
    if before == -after:
        return f"{abs(after)} {'later' if after > 0 else 'earlier'}"
    return f"from {_beside(-before)} to {_beside(after)}"


def _beside(apart: int) -> str:
    return "its own index" if apart == 0 else f"{abs(apart)} {'later' if apart > 0 else 'earlier'}"


def _up_to(beyond: int, side: str, other: str) -> str:
    if beyond == 0:
        return f"at the same index and at {side} ones"
    if beyond < 0:
        return f"at {side} indices" if beyond == -1 else f"at indices at least {-beyond} {side}"
    return f"at {side} indices and up to {beyond} {other}"
