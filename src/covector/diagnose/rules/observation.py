"""What a rule gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Observation:
    """What a rule sees in one part of a Jacobian, how sure it is, and what to look at if not as usual.

    `explained` counts the wrong entries that it accounts for; None for all of this part.
    """

    evidence: str
    confidence: float
    where: str = ""
    look: str = ""
    explained: int | None = None
