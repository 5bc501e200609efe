"""Gradient checks against torch's: torch's operator database, and a few large functions.

All default checks are included. Where both libraries do not come to the same verdict, the time of
neither is counted.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

import covector
from benchmarks._board import BYTES, Area, Effort, Row, Task, from_tests, pair
from benchmarks._measure import Ratio, fresh, one_thread, resident_peak

LIMIT = 1e9  # bytes, of an exhaustive check of 4,000 x 4,000

Checker = Callable[..., bool]

CHECKERS: dict[str, Checker] = {
    "ours": covector.gradcheck,
    "theirs": torch.autograd.gradcheck,
    "ours, fast": partial(covector.gradcheck, fast_mode=True),
    "theirs, fast": partial(torch.autograd.gradcheck, fast_mode=True),
}


EXHAUSTIVE, FAST = "torch, exhaustive", "torch, fast"
# What is compared with what, the name of the peer, and the target.
PAIRS = {
    "operators": ("ours", "theirs", EXHAUSTIVE, 0.12),
    "operators, exhaustive against fast": ("ours", "theirs, fast", FAST, 1.2),
    "operators, fast": ("ours, fast", "theirs, fast", FAST, 0.9),
}


def database(effort: Effort) -> Iterator[Row]:
    """The ratios of the total times over the samples that the sweep compares verdicts on.

    A pair takes turns with each other and with nobody else: after torch's exhaustive check, which runs ten
    times as long, whoever comes next finds the caches cold.
    """
    totals = {(task, name): [0.0] * effort.rounds for task, (*names, _, _) in PAIRS.items() for name in names}
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in _samples(effort.every):
            verdicts = {}
            for name, checker in CHECKERS.items():  # also a warm-up
                _seed()
                verdicts[name] = _verdict(checker, sample)
            if verdicts["ours"] != verdicts["theirs"]:
                continue
            for task, (*names, _, _) in PAIRS.items():
                for turn in range(effort.rounds):
                    for name in random.sample(names, len(names)):
                        _seed()
                        totals[task, name][turn] += _seconds(partial(_verdict, CHECKERS[name], sample))
    for task, (ours, theirs, peer, target) in PAIRS.items():
        yield Row.of(task, peer, Ratio.of(totals[task, ours], totals[task, theirs]), target)


def _samples(every: int) -> Iterator[Any]:
    """Those of every so-many-th operator."""
    table = from_tests("samples")
    for operator in list(table.operators(torch.float64).values())[::every]:
        yield from table.samples(operator, torch.float64)


def _seed() -> None:
    """Before every check, outside of its time: `torch.manual_seed` takes a third of a small one."""
    torch.default_generator.manual_seed(0)


def _verdict(checker: Checker, sample: Any) -> bool | None:
    """True, False, or None for a call that is refused."""
    try:
        return checker(sample.function, sample.inputs, nondet_tol=sample.nondet_tol, raise_exception=False)
    except Exception:
        return None


def _random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _wave(x: Tensor) -> Tensor:
    return torch.sin(x) * torch.exp(-x * x)


def elementwise() -> Task:
    """A diagonal Jacobian."""
    x = _random(2_000).requires_grad_()
    ours, theirs = (partial(CHECKERS[name], _wave, (x,)) for name in ("ours", "theirs"))
    return pair("2000 elements", EXHAUSTIVE, ours, theirs, 0.06)


def layer(effort: Effort) -> Iterator[Row]:
    """A linear layer, on four rows, in its weight and bias. torch takes half a minute, so it runs once."""
    x, weight, bias = _random(4, 256), _random(256, 256).requires_grad_(), _random(256).requires_grad_()
    ours, theirs = (
        partial(CHECKERS[name], partial(linear, x), (weight, bias)) for name in ("ours", "theirs")
    )
    with one_thread():
        ours()
        times = [_seconds(ours) for _ in range(effort.rounds)]
        ratio = Ratio.of(times, [_seconds(theirs)] * effort.rounds)
    yield Row.of("linear 256 x 256", EXHAUSTIVE, ratio, 0.02)


def _seconds(call: Callable[[], Any]) -> float:
    start = process_time()
    call()
    return process_time() - start


def _dense() -> Callable[[Tensor], Tensor]:
    matrix = _random(4_000, 4_000).div_(4_000**0.5)
    return lambda x: torch.tanh(matrix @ x)


def _diagonal() -> Callable[[Tensor], Tensor]:
    return _wave


def memory(function_of: Callable[[], Callable[[Tensor], Tensor]], name: str, effort: Effort) -> Iterator[Row]:
    """The peak of an exhaustive check as a share of the limit, which stands in the place of a peer."""
    peak = Ratio.of([fresh(_peak, function_of)], [LIMIT])
    yield Row.of(name, "a limit of 1 GB", peak, 1.0, unit=BYTES)


def _peak(function_of: Callable[[], Callable[[Tensor], Tensor]]) -> float:
    """How far a check raises the resident memory of this process above what it takes before."""
    torch.set_num_threads(1)
    check = CHECKERS["ours"]
    check(_wave, (_random(3).requires_grad_(),))  # loads what is loaded late
    function, x = function_of(), _random(4_000).requires_grad_()
    _, peak = resident_peak(lambda: check(function, (x,)))
    return peak


SPARSE_PEER = "torch, as_sparse_gradcheck"
SPARSE_CHECKERS: dict[str, Checker] = {
    "ours": covector.gradcheck,
    "theirs": torch.sparse.as_sparse_gradcheck(torch.autograd.gradcheck),
}


def sparse(effort: Effort) -> Iterator[Row]:
    """The ratio of the total times over the cases of docs/sparse.md that both pass."""
    totals = {name: [0.0] * effort.rounds for name in SPARSE_CHECKERS}
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = from_tests("sparse_cases").every_case()
        # That both pass is also a warm-up.
        cases = [case for case in every if all(_passes(name, case) for name in SPARSE_CHECKERS)]
        for turn in range(effort.rounds):
            for case in cases:
                for name in random.sample(list(SPARSE_CHECKERS), len(SPARSE_CHECKERS)):
                    totals[name][turn] += _seconds(partial(_passes, name, case))
    yield Row.of("sparse tensors", SPARSE_PEER, Ratio.of(totals["ours"], totals["theirs"]), 0.3)


def _passes(name: str, case: Any) -> bool:
    try:
        return SPARSE_CHECKERS[name](case.function, case.inputs(), masked=case.masked)
    except Exception:
        return False


def tasks() -> Iterator[Task]:
    """Torch's operator database, large functions, memory, sparse tensors."""
    yield Task("operators", database, peer=EXHAUSTIVE)
    yield elementwise()
    yield Task("linear 256 x 256", layer, peer=EXHAUSTIVE, slow=True)
    for name, function_of in (("4000 x 4000, dense", _dense), ("4000 x 4000, diagonal", _diagonal)):
        yield Task(name, partial(memory, function_of, name), peer="a limit of 1 GB", slow=True)
    yield Task("sparse tensors", sparse, peer=SPARSE_PEER, slow=True)


AREA = Area(
    "gradcheck",
    "Whole gradient checks that pass, exhaustive where nothing else is said. The operators are torch's own "
    "database; its row is the ratio of the sums. Where verdicts differ, the time of neither is counted.",
    tasks,
)
