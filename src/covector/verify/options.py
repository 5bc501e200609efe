"""What is to be checked, how, and the entry rule: how far a derivative may be from a difference."""

from __future__ import annotations

from typing import NamedTuple

from covector.verify import constants


class Tolerance(NamedTuple):
    """The entry rule, the step of a look, and what to make of a kink."""

    atol: float
    rtol: float
    eps: float
    kinks: str = "fail"

    def allowed(self, value: float) -> float:
        """How far a derivative may be from this difference."""
        return self.atol + self.rtol * abs(value)


class Options(NamedTuple):
    """What is to be checked, and how."""

    tol: Tolerance
    fast: bool = False
    probes: int | None = None
    max_entries: int | None = None
    nondet_tol: float = 0.0
    reverse: bool = True
    forward: bool = False
    undefined: bool = True
    masked: bool = False
    dtypes: bool = False
    batched: bool = False
    batched_forward: bool = False
    seed: int = 0
    max_memory: int | None = None
    taylor: bool = False
    brief: bool = False
    """Whether the verdict alone is asked for, so that the first thing wrong is enough."""

    @property
    def directions(self) -> int:
        """Along how many random directions the function is differenced first."""
        if self.probes is not None:
            return self.probes
        return 1 if self.fast else constants.DIRECTIONS
