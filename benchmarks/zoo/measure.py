"""What a check costs: processor time, runs of the function, memory; under a limit that cannot be passed.

Every check runs in a forked process first. That gives its verdict, its peak of memory and the number of
runs, and it is ended at the limit, whatever it is doing. Short checks are then timed in turns, in
one process on one thread; of a long one the time in its own process counts.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import warnings
from dataclasses import dataclass, replace
from functools import partial
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd.gradcheck import GradcheckError

import covector
from benchmarks._measure import Stopped, clean_fork, elsewhere, resident_peak
from benchmarks.zoo.entry import ENTRIES, Entry, Function, Subject

LIMIT = 60  # seconds of processor time, for one check
PATIENCE = 5  # seconds by the clock for each of them: the machine may be shared
LONG = 2.0  # seconds; a check that takes longer is timed once
BRIEF = 0.05  # seconds; one that takes less is timed more often
ROUNDS, BRIEF_ROUNDS = 3, 9

RIGHT, WRONG, OVER = "right", "wrong", "limit"


@dataclass(frozen=True)
class Check:
    """One of the ways to check an entry."""

    side: str
    wrong: bool
    fast: bool

    @property
    def group(self) -> str:
        """The checks that are compared: of a wrong derivative, both modes with torch's exhaustive one."""
        return "wrong" if self.wrong else "right, fast" if self.fast else "right, exhaustive"

    def __str__(self) -> str:
        return f"{self.side}, {'wrong' if self.wrong else 'right'}, {'fast' if self.fast else 'exhaustive'}"


CHECKS = tuple(
    Check(side, wrong, fast)
    for side in ("ours", "theirs")
    for wrong in (False, True)
    for fast in (False, True)
)
GRADCHECK = {"ours": covector.gradcheck, "theirs": torch.autograd.gradcheck}


@dataclass(frozen=True)
class Cost:
    """What one check said and took.

    A run is a call of the Python function, which under `vmap` evaluates several points; `evaluations` is
    what our report says of them.
    """

    verdict: str
    seconds: float
    runs: int = 0
    points: int = 0
    evaluations: int | None = None
    memory: float = 0.0
    error: str = ""
    turns: tuple[float, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether the derivative was called right or wrong, rather than given up on."""
        return self.verdict in (RIGHT, WRONG)


@dataclass(frozen=True)
class Result:
    """All checks of one entry, or why there are none."""

    entry: str
    package: str
    numbers: tuple[int, int] = (0, 0)
    batched: bool = False
    costs: dict[Check, Cost] | None = None
    note: str = ""


def measure(entry: Entry, sides: tuple[str, ...] = ("ours", "theirs"), limit: int = LIMIT) -> Result:
    """The checks of an entry, in a process of their own: what its package changes is gone afterwards.

    It is forked from one that has run nothing: threads do not survive a fork.
    """
    context = clean_fork("benchmarks.zoo")
    checks = tuple(check for check in CHECKS if check.side in sides)
    try:
        return elsewhere(
            context, partial(_measured, entry.name, checks, limit), PATIENCE * limit * len(checks)
        )
    except RuntimeError as error:  # one that does not survive a fork is no reason to lose the others
        return Result(entry.name, entry.package, note=f"not measured: {str(error).strip().splitlines()[-1]}")


def _measured(name: str, checks: tuple[Check, ...], limit: int) -> Result:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    entry = ENTRIES[name]
    try:
        entry.subject(wrong=False)
    except ImportError as missing:
        return Result(entry.name, entry.package, note=f"skipped: {missing.name} not installed")
    costs, fork = {}, multiprocessing.get_context("fork")
    for check in checks:  # the function has not run here yet: threads that it starts do not survive a fork
        try:
            costs[check] = elsewhere(fork, partial(_look, check, entry), PATIENCE * limit, seconds=limit)
        except Stopped:
            costs[check] = Cost(OVER, float(limit))
    for side in dict.fromkeys(check.side for check in checks):
        _warm_up(side)
    subjects = {wrong: entry.subject(wrong=wrong) for wrong in (False, True)}
    _same_values(subjects)
    _timed(costs, entry, subjects)
    numbers, batched = _numbers(*subjects[False]), _can_be_batched(*subjects[False])
    return Result(entry.name, entry.package, numbers, batched, costs)


def _warm_up(side: str) -> None:
    """Load what is loaded late; after a fork, because some packages start threads of their own."""
    GRADCHECK[side](torch.sin, (torch.ones(8, dtype=torch.float64, requires_grad=True),))


def _look(check: Check, entry: Entry) -> Cost:
    """A check with everything that is counted. Ours makes a report, which can also be undecided."""
    _warm_up(check.side)
    subject = entry.subject(wrong=check.wrong)
    subject[0](*subject[1])  # what is done only the first time is done
    if check.side == "theirs":
        cost, memory = resident_peak(lambda: _run(check, entry, subject))
        return replace(cost, memory=memory)
    function, inputs = subject
    counted = _Counted(function)
    torch.manual_seed(0)
    start = process_time()
    try:
        report, memory = resident_peak(
            lambda: covector.check(counted, inputs, fast_mode=check.fast, **entry.keywords)
        )
    except Exception as error:
        return Cost("error", process_time() - start, counted.runs, counted.points, error=_said(error))
    seconds, outcome = process_time() - start, report.outcome.value
    verdict = {"passed": RIGHT, "failed": WRONG}.get(outcome, outcome)
    said = "" if report else report.worst.headline
    return Cost(verdict, seconds, counted.runs, counted.points, report.evaluations, memory, said)


def _run(check: Check, entry: Entry, subject: Subject) -> Cost:
    """A check as it is called in a test."""
    function, inputs = subject
    counted = _Counted(function)
    torch.manual_seed(0)
    verdict, said = RIGHT, ""
    start = process_time()
    try:
        GRADCHECK[check.side](counted, inputs, fast_mode=check.fast, **entry.keywords)
    except (GradcheckError, covector.GradcheckError) as error:
        verdict, said = WRONG, _said(error)
    except Exception as error:
        verdict, said = "error", _said(error)
    return Cost(verdict, process_time() - start, counted.runs, counted.points, error=said)


def _timed(costs: dict[Check, Cost], entry: Entry, subjects: dict[bool, Subject]) -> None:
    """Replace the times of the short checks by the medians of several rounds, in turns.

    Checks that are compared take turns with each other and with nobody else: after one that runs ten times
    as long, whoever comes next finds the caches cold.
    """
    short = [check for check, cost in costs.items() if cost.seconds < LONG and cost.verdict != OVER]
    times: dict[Check, list[float]] = {check: [] for check in short}
    for group in dict.fromkeys(check.group for check in short):
        members = [check for check in short if check.group == group]
        brief = [check for check in members if costs[check].seconds < BRIEF]
        for turn in range(BRIEF_ROUNDS):
            turns = members if turn < ROUNDS else brief
            for check in random.sample(turns, len(turns)):
                times[check].append(_run(check, entry, subjects[check.wrong]).seconds)
    for check, seconds in times.items():
        costs[check] = replace(costs[check], seconds=statistics.median(seconds), turns=tuple(seconds))


class _Counted:
    """The function, with a count of its runs and of the points that they evaluate."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.runs = self.points = 0

    def __call__(self, *inputs: Tensor) -> Any:
        self.runs += 1
        self.points += max(map(_points, inputs))
        return self.function(*inputs)


def _points(x: Tensor) -> int:
    """How many tensors this one stands for under `vmap`."""
    points = 1
    while functorch.is_functorch_wrapped_tensor(x):
        axis, inner = functorch.maybe_get_bdim(x), functorch.get_unwrapped(x)
        points *= inner.shape[axis] if axis >= 0 else 1
        x = inner
    return points


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:300]}"


def _outputs(function: Function, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    outputs = function(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _numbers(function: Function, inputs: tuple[Tensor, ...]) -> tuple[int, int]:
    outputs = _outputs(function, inputs)
    return sum(x.numel() for x in inputs), sum(y.numel() for y in outputs)


def _same_values(subjects: dict[bool, Subject]) -> None:
    """A mistake that changes the value would be another function, not a wrong derivative."""
    for right, wrong in zip(*(_outputs(*subject) for subject in subjects.values()), strict=True):
        torch.testing.assert_close(wrong, right, rtol=1e-12, atol=1e-12)


def _can_be_batched(function: Function, inputs: tuple[Tensor, ...]) -> bool:
    """Whether `vmap` can run it, which decides the target of an exhaustive check."""
    with torch.no_grad():
        expected = _outputs(function, inputs)
        try:
            batched = torch.vmap(lambda *x: _outputs(function, x), randomness="same")
            outputs = batched(*(torch.stack([x, x]) for x in inputs))
        except Exception:
            return False
    return all(torch.allclose(y[1], e, rtol=1e-4, atol=1e-6) for y, e in zip(outputs, expected, strict=True))
