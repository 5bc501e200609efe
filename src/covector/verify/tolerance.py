"""The entry rule: how far a derivative may be from a difference."""

from __future__ import annotations

from typing import NamedTuple


class Tolerance(NamedTuple):
    """The entry rule, the step of a look, and what to make of a kink."""

    atol: float
    rtol: float
    eps: float
    kinks: str = "fail"

    def allowed(self, value: float) -> float:
        """How far a derivative may be from this difference."""
        return self.atol + self.rtol * abs(value)
