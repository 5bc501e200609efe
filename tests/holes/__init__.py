"""What a gradient check can overlook, by kind: wrong functions that look right, right ones that look wrong.

The mutants of `tests/mutants.py` have a wrong formula. Here the formula is right where a careless check looks
and wrong where the caller is: on another memory layout, class or dtype, for another cotangent, on a shorter
step, without the noise. Each kind has a module of its own, and each wrong function a right twin nearby.
"""

from __future__ import annotations

from holes import (
    by_hand,
    constants,
    cotangents,
    customs,
    given,
    lost,
    nearby,
    precision,
    programs,
    refusing,
    solvers,
    steps,
    vectors,
    views,
    within,
)
from holes.table import Hole

MODULES = (
    given, precision, cotangents, steps, programs, customs, solvers, vectors, views, nearby, by_hand,
    constants, refusing, within, lost,
)  # fmt: skip
HOLES: list[Hole] = [hole for module in MODULES for hole in module.HOLES]
WRONG = [hole for hole in HOLES if not hole.right]
RIGHT = [hole for hole in HOLES if hole.right]
