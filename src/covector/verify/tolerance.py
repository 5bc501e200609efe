"""The entry rule: how far a derivative may be from a difference."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

# How many wrong entries a report names.
NAMED = 8


class HasRows(Protocol):
    """A derivative that knows how large its rows are."""

    def row_sizes(self) -> Tensor:
        """The largest entry of each row, without its sign."""


class Tolerance(NamedTuple):
    """The entry rule, the step of the first look, and what to make of a kink or of a wrong entry."""

    atol: float
    rtol: float
    eps: float
    kinks: str = "fail"
    seed: int = 0
    named: int = NAMED
    """How many entries that are wrong are looked for."""
    slack: Tensor | float = 0.0
    """What rounding in low precision may add to atol: the same for all entries, or one for each output."""

    @property
    def atols(self) -> Tensor | float:
        """Atol with the slack of each output."""
        return self.atol + self.slack

    def allowed(self, row: int, value: float) -> float:
        """How far the derivative of one output may be from this value."""
        slack = float(self.slack[row]) if isinstance(self.slack, Tensor) else self.slack
        return self.atol + slack + self.rtol * abs(value)


def within(got: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> bool:
    """Whether |got - expected| <= atol + rtol |expected| everywhere.

    Coordinates are compared in NumPy: on small arrays it takes half the time of torch.
    """
    if got.size == 0:
        return True
    with np.errstate(all="ignore"):
        error = abs(got - expected)
        return bool(error.max() <= atol) or bool((error - rtol * abs(expected)).max() <= atol)
