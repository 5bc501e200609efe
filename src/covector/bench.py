"""The user's own function, ours against torch's: gradient checks, Jacobians and Hessians, as ratios.

The two sides take turns, in blocks of calls on one thread, and the median of the ratios of neighbouring
blocks is reported: on a shared machine absolute times drift, and that ratio does not.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor

from covector import functional
from covector.api import gradcheck, gradgradcheck
from covector.cases import Case
from covector.compat import peer
from covector.errors import first_sentence
from covector.transforms.hessian import hessian
from covector.transforms.jacfwd import jacfwd
from covector.transforms.jacrev import jacrev

Call = Callable[[], Any]

_BLOCK = 0.02
_PAIRS = 25
_SLOW = 5
_CHECK = "torch.autograd.gradcheck"


@dataclass(frozen=True)
class Row:
    """One comparison: seconds per call on both sides and their ratio, or why there is none."""

    case: str
    task: str
    ratio: float | None = None
    ours: float | None = None
    theirs: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Subject:
    """A case made ready: a function of positional arguments, and which of them are differentiated by."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    argnums: tuple[int, ...]

    @classmethod
    def of(cls, case: Case) -> Subject:
        """The function with its keyword arguments bound, and inputs as the case makes them."""
        args = case.arguments()
        function = case.function
        if case.kwargs:

            def function(*args: Any) -> Any:
                return case.function(*args, **case.kwargs)

        argnums = tuple(i for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad)
        return cls(case.name, function, args, argnums)

    def detached(self) -> tuple[Any, ...]:
        """The arguments outside any graph."""
        return tuple(a.detach() if isinstance(a, Tensor) else a for a in self.args)

    def is_scalar(self) -> bool:
        """Whether there is a Hessian: one output, which is one number."""
        value = self.function(*self.args)
        return isinstance(value, Tensor) and value.dim() == 0

    def check(self, checker: Callable[..., Any], **options: Any) -> Call:
        """A check, as a call without arguments."""
        return lambda: checker(self.function, self.args, raise_exception=False, **options)

    def transform(self, verb: Callable[..., Any]) -> Call:
        """A Jacobian or Hessian by all arguments, as a call without arguments."""
        args = self.detached()
        return lambda: verb(self.function, argnums=self.argnums)(*args)

    def functional(self, verb: Callable[..., Any]) -> Call:
        """The same with the arguments that the functional verbs take."""
        args = self.detached()
        places = self.argnums

        def partial(*chosen: Any) -> Any:
            given = dict(zip(places, chosen, strict=True))
            return self.function(*(given.get(i, a) for i, a in enumerate(args)))

        partial.__name__ = self.name
        return lambda: verb(partial, tuple(args[i] for i in places))


def rows(case: Case, seconds: float) -> Iterator[Row]:
    """Every comparison that a case allows, each taking about so many seconds; one that raises has one row."""
    try:
        with _quietly():
            tasks = list(_tasks(case, Subject.of(case)))
    except Exception as error:
        yield Row(case.name, "", note=f"raised {type(error).__name__}: {first_sentence(error)}")
        return
    for task, ours, theirs in tasks:
        yield _row(case.name, task, ours, theirs, seconds)


def _tasks(case: Case, subject: Subject) -> Iterator[tuple[str, Call, Call]]:
    """What is compared: a name and a call for each side."""
    torchs = peer(_CHECK, "gradcheck")
    yield "gradcheck", subject.check(gradcheck), subject.check(torchs)
    fast = {"fast_mode": True}
    yield "gradcheck, fast mode", subject.check(gradcheck, **fast), subject.check(torchs, **fast)
    if case.order == 2:
        second = peer(_CHECK, "gradgradcheck")
        yield "gradgradcheck", subject.check(gradgradcheck), subject.check(second)
    for verb in (jacrev, jacfwd):
        theirs = peer("torch.func", verb.__name__)
        yield verb.__name__, subject.transform(verb), subject.transform(theirs)
    jacobian = peer("torch.autograd.functional", "jacobian")
    yield "functional.jacobian", subject.functional(functional.jacobian), subject.functional(jacobian)
    if subject.is_scalar():
        yield "hessian", subject.transform(hessian), subject.transform(peer("torch.func", "hessian"))


def _row(case: str, task: str, ours: Call, theirs: Call, seconds: float) -> Row:
    """The comparison, or which side refuses, and why."""
    with _quietly(), one_thread():
        first = {"covector": _First.of(ours), "torch": _First.of(theirs)}
        if refused := {side: call.refusal for side, call in first.items() if call.refusal}:
            return Row(case, task, note=f"refused by {' and '.join(refused)}: {next(iter(refused.values()))}")
        seen = ([first["covector"].seconds], [first["torch"].seconds])
        # What takes very long is not run again: its first run is the measurement.
        slow = sum(map(sum, seen)) > _SLOW * seconds
        times = seen if slow else _alternate(ours, theirs, seconds)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    note = f"{len(times[0])} pair" if len(times[0]) == 1 else f"{len(times[0])} pairs"
    if failed := [side for side, call in first.items() if call.value is False]:
        note += f"; the check fails by {' and '.join(failed)}"
    return Row(case, task, ratio, statistics.median(times[0]), statistics.median(times[1]), note)


@dataclass(frozen=True)
class _First:
    """The first call of one side: its value and its time, or the words with which it refused."""

    value: Any
    seconds: float
    refusal: str = ""

    @classmethod
    def of(cls, call: Call) -> _First:
        start = process_time()
        try:
            value = call()
        except Exception as error:
            return cls(None, 0.0, f"{type(error).__name__}: {first_sentence(error)}")
        return cls(value, max(process_time() - start, 1e-9))


def warm_up() -> None:
    """What both sides load on first use is loaded before anything is measured."""
    case = Case("sum", torch.sum, Path(), ((2,),), {}, torch.float64, 2, 0)
    for row in rows(case, seconds=1e-3):
        if row.ratio is None:
            raise AssertionError(f"{row.task} of a sum: {row.note}")


def _alternate(ours: Call, theirs: Call, seconds: float) -> tuple[list[float], list[float]]:
    """Times per call of both sides, in pairs of blocks, the order within a pair drawn at random."""
    counts = [max(1, round(_BLOCK / max(_seconds(call, 1), 1e-9))) for call in (ours, theirs)]
    times: tuple[list[float], list[float]] = ([], [])
    spent = 0.0
    while not times[0] or (spent < seconds and len(times[0]) < _PAIRS):
        for side in random.sample((0, 1), 2):
            times[side].append(_seconds((ours, theirs)[side], counts[side]))
            spent += times[side][-1] * counts[side]
    return times


def _seconds(call: Call, count: int) -> float:
    """Processor time per call, which other processes disturb least."""
    start = process_time()
    for _ in range(count):
        call()
    return max(process_time() - start, 1e-9) / count


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _quietly() -> Iterator[None]:
    """Inside, nothing is printed: what a function says, it would say once per call."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in kept:
            os.dup2(nowhere, stream)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for stream, copy in kept.items():
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)
