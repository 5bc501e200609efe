"""Detection: the table of mutants against torch's checker and ours, as shares.

A mutant is caught if the checker does not call it right, in whatever words; a twin is accused if the
checker does not call it right either. Both sides see the same inputs, the same keywords, the same seeds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import covector
from benchmarks._board import Area, Effort, Row, Task, from_tests
from benchmarks._measure import one_thread

SEEDS = range(3)


@dataclass(frozen=True)
class Checker:
    """A checker in one of its modes: its door for first and for second derivatives."""

    doors: tuple[Callable[..., bool], Callable[..., bool]]
    fast: bool

    def accepts(self, mutant: Any, function: Callable[..., Any], seed: int) -> bool:
        """Whether it calls this derivative right."""
        torch.manual_seed(seed)
        door = self.doors[mutant.order - 1]
        try:
            return door(function, mutant.draw(seed), fast_mode=self.fast, **mutant.keywords)
        except Exception:  # a wrong derivative, or an error on the way: not called right
            return False


OURS = (covector.gradcheck, covector.gradgradcheck)
THEIRS = (torch.autograd.gradcheck, torch.autograd.gradgradcheck)


@dataclass(frozen=True)
class Detection:
    """What a checker made of the table: names of what it missed and whom it accused, in which runs."""

    runs: int
    missed: list[str]
    accused: list[str]


def detect(checker: Checker) -> Detection:
    """Run one checker over the table that the tests use; in fast mode, which draws vectors, several times."""
    missed, accused, runs = [], [], 0
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mutant in from_tests("mutants").MUTANTS:
            for seed in SEEDS if checker.fast else SEEDS[:1]:
                runs += 1
                accepts = partial(checker.accepts, mutant, seed=seed)
                missed += [mutant.name] if accepts(mutant.wrong) else []
                accused += [] if accepts(mutant.correct) else [mutant.name]
    return Detection(runs, missed, accused)


def measure(mode: str, effort: Effort) -> Iterator[Row]:
    """Both checkers in one mode."""
    ours, theirs = (detect(Checker(doors, fast=mode == "fast")) for doors in (OURS, THEIRS))
    for what, mine, peers in (
        ("bugs missed", ours.missed, theirs.missed),
        ("right twins accused", ours.accused, theirs.accused),
    ):
        note = "; ".join(dict.fromkeys(mine))
        yield Row.count(f"{what}, {mode}, of {ours.runs}", f"torch, {mode}", len(mine), len(peers), note=note)


def tasks() -> Iterator[Task]:
    """Exhaustive and fast."""
    for mode in ("exhaustive", "fast"):
        yield Task(mode, partial(measure, mode), peer=f"torch, {mode}", slow=True)


AREA = Area(
    "detection",
    "Planted bugs and their right twins, `tests/mutants.py`: a bug is caught if the check does anything but "
    "pass. The table is our own, written with covector's checks in mind; the fast modes run it with three "
    "seeds.",
    tasks,
)
