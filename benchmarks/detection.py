"""Detection: the table of mutants against torch's checker and ours, as shares.

A mutant is caught if the checker does not call it right, in whatever words; a twin is accused if the
checker does not call it right either. Both sides see the same inputs, the same keywords, the same seeds.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import covector
from benchmarks._measure import one_thread

SEEDS = range(3)


@dataclass(frozen=True)
class Checker:
    """A checker in one of its modes: its door for first and for second derivatives."""

    name: str
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

CHECKERS = [
    Checker("covector exhaustive", OURS, fast=False),
    Checker("torch exhaustive", THEIRS, fast=False),
    Checker("covector fast", OURS, fast=True),
    Checker("torch fast", THEIRS, fast=True),
]


@dataclass(frozen=True)
class Detection:
    """What a checker made of the table: names of what it missed and whom it accused, in which runs."""

    checker: str
    runs: int
    missed: tuple[str, ...]
    accused: tuple[str, ...]
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """What is printed."""
        caught = self.runs - len(self.missed)
        return (
            self.checker,
            f"{caught} of {self.runs}",
            f"{caught / self.runs:.1%}",
            f"{len(self.accused)} of {self.runs}",
            f"{len(self.accused) / self.runs:.1%}",
            f"{self.seconds:.1f} s",
        )


def mutants() -> list[Any]:
    """The table that the tests use, which is no package."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    try:
        from mutants import MUTANTS
    finally:
        sys.path.pop(0)
    return MUTANTS


def detect(checker: Checker, table: Iterable[Any]) -> Detection:
    """Run one checker over the table."""
    start = time.perf_counter()
    missed, accused, runs = [], [], 0
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for mutant in table:
            for seed in SEEDS if checker.fast else SEEDS[:1]:
                runs += 1
                accepts = partial(checker.accepts, mutant, seed=seed)
                missed += [mutant.name] if accepts(mutant.wrong) else []
                accused += [] if accepts(mutant.correct) else [mutant.name]
    return Detection(checker.name, runs, tuple(missed), tuple(accused), time.perf_counter() - start)


HEADER = ("detection", "caught", "share", "twins accused", "share", "time")


def line(cells: tuple[str, ...]) -> str:
    return f"{cells[0]:<22}" + "".join(f"{cell:>16}" for cell in cells[1:])


def report() -> list[Detection]:
    """Print the shares of every checker, and the names behind them."""
    table = mutants()
    print(f"\n{line(HEADER)}")
    results = []
    for checker in CHECKERS:
        results.append(detect(checker, table))
        print(line(results[-1].cells()), flush=True)
    for result in results:
        for what, names in (("missed", result.missed), ("accused the twin of", result.accused)):
            if names:
                print(f"\n{result.checker} {what}: {'; '.join(dict.fromkeys(names))}")
    return results


if __name__ == "__main__":
    report()
