"""Gradient checks of sparse functions against the original's, over the table in docs/sparse.md.

Cases that the original cannot run, or on which the verdicts differ, count for neither.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import torch

import covector
from benchmarks._measure import Ratio, one_thread
from benchmarks._table import Row

ROUNDS = 3
TARGET = 0.3
TASK = "gradcheck sparse"

CHECKERS: dict[str, Callable[..., bool]] = {
    "ours": covector.gradcheck,
    "theirs": torch.sparse.as_sparse_gradcheck(torch.autograd.gradcheck),
}


def _cases() -> list[Any]:
    """The cases of the tests, which are no package."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    try:
        from sparse_cases import every_case
    finally:
        sys.path.pop(0)
    return list(every_case())


def _passes(name: str, case: Any) -> bool:
    try:
        return CHECKERS[name](case.function, case.inputs(), masked=case.masked)
    except Exception:
        return False


def table() -> Iterator[Row]:
    """The ratio of the total times over the cases that both pass."""
    totals = {name: [0.0] * ROUNDS for name in CHECKERS}
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in _cases() if all(_passes(name, case) for name in CHECKERS)]  # also a warm-up
        for turn in range(ROUNDS):
            for case in cases:
                for name in random.sample(list(CHECKERS), len(CHECKERS)):
                    start = process_time()
                    _passes(name, case)
                    totals[name][turn] += process_time() - start
    yield Row(TASK, "time", Ratio.of(totals["ours"], totals["theirs"]), TARGET)


def rows(wanted: Callable[[str], bool]) -> Iterator[Row]:
    """The rows of the tasks that are wanted."""
    if wanted(TASK):
        yield from table()
