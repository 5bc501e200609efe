"""Gradient checks against torch's: torch's operator database, and a few large functions.

All default checks are included. Where both libraries do not come to the same verdict, the time of
neither is counted.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

import covector
from benchmarks._measure import Ratio, compare, one_thread, resident_peak
from benchmarks._table import Row

ROUNDS = 3
LIMIT = 1e9  # bytes, of an exhaustive check of 4,000 x 4,000

Checker = Callable[..., bool]

CHECKERS: dict[str, Checker] = {
    "ours": covector.gradcheck,
    "theirs": torch.autograd.gradcheck,
    "ours, fast": partial(covector.gradcheck, fast_mode=True),
    "theirs, fast": partial(torch.autograd.gradcheck, fast_mode=True),
}


# What is compared with what, and the target.
PAIRS = {
    "gradcheck operators": ("ours", "theirs", 0.12),
    "gradcheck operators, torch fast": ("ours", "theirs, fast", 1.2),
    "gradcheck operators, both fast": ("ours, fast", "theirs, fast", 0.9),
}


def database() -> Iterator[Row]:
    """The ratios of the total times over the samples that the sweep compares verdicts on.

    A pair takes turns with each other and with nobody else: after torch's exhaustive check, which runs ten
    times as long, whoever comes next finds the caches cold.
    """
    totals = {(task, name): [0.0] * ROUNDS for task, (*names, _) in PAIRS.items() for name in names}
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in _samples():
            verdicts = {}
            for name, checker in CHECKERS.items():  # also a warm-up
                _seed()
                verdicts[name] = _verdict(checker, sample)
            if verdicts["ours"] != verdicts["theirs"]:
                continue
            for task, (*names, _) in PAIRS.items():
                for turn in range(ROUNDS):
                    for name in random.sample(names, len(names)):
                        _seed()
                        totals[task, name][turn] += _seconds(partial(_verdict, CHECKERS[name], sample))
    for task, (ours, theirs, target) in PAIRS.items():
        yield Row(task, "time", Ratio.of(totals[task, ours], totals[task, theirs]), target)


def _samples() -> Iterator[Any]:
    """The samples of the sweep, which is no package."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    try:
        from samples import every_sample
    finally:
        sys.path.pop(0)
    return every_sample(torch.float64)


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


def elementwise() -> Iterator[Row]:
    """A diagonal Jacobian."""
    x = _random(2_000).requires_grad_()
    ours, theirs = (partial(CHECKERS[name], _wave, (x,)) for name in ("ours", "theirs"))
    yield Row("gradcheck 2000 elements", "time", compare(ours, theirs, pairs=5), 0.06)


def layer() -> Iterator[Row]:
    """A linear layer, on four rows, in its weight and bias. torch takes half a minute, so it runs once."""
    x, weight, bias = _random(4, 256), _random(256, 256).requires_grad_(), _random(256).requires_grad_()
    ours, theirs = (
        partial(CHECKERS[name], partial(linear, x), (weight, bias)) for name in ("ours", "theirs")
    )
    with one_thread():
        ours()
        times = [_seconds(ours) for _ in range(ROUNDS)]
        ratio = Ratio.of(times, [_seconds(theirs)] * ROUNDS)
    yield Row("gradcheck linear 256 x 256", "time", ratio, 0.02)


def _seconds(call: Callable[[], Any]) -> float:
    start = process_time()
    call()
    return process_time() - start


def _dense() -> Callable[[Tensor], Tensor]:
    matrix = _random(4_000, 4_000).div_(4_000**0.5)
    return lambda x: torch.tanh(matrix @ x)


def _diagonal() -> Callable[[Tensor], Tensor]:
    return _wave


def memory() -> Iterator[Row]:
    """The peak of an exhaustive check as a share of the limit, which stands in the column of theirs."""
    for task, function_of in (
        ("gradcheck 4000 x 4000, dense", _dense),
        ("gradcheck 4000 x 4000, diagonal", _diagonal),
    ):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peak = pool.apply(_peak, (function_of,))
        yield Row(task, "memory", Ratio.of([peak], [LIMIT]), 1.0)


def _peak(function_of: Callable[[], Callable[[Tensor], Tensor]]) -> float:
    """How far a check raises the resident memory of this process above what it takes before."""
    torch.set_num_threads(1)
    check = CHECKERS["ours"]
    check(_wave, (_random(3).requires_grad_(),))  # loads what is loaded late
    function, x = function_of(), _random(4_000).requires_grad_()
    _, peak = resident_peak(lambda: check(function, (x,)))
    return peak


TASKS: dict[str, Callable[[], Iterator[Row]]] = {
    "gradcheck operators": database,
    "gradcheck 2000 elements": elementwise,
    "gradcheck linear 256 x 256": layer,
    "gradcheck 4000 x 4000": memory,
}


def rows(wanted: Callable[[str], bool]) -> Iterator[Row]:
    """The rows of the tasks that are wanted."""
    for name, task in TASKS.items():
        if wanted(name):
            yield from task()
