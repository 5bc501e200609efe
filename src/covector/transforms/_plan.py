"""Plans: by which mode a Jacobian is computed, how many directions at once, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any

from covector._engine.compiled import tracing
from covector._engine.memory import NoZeroProducts, Watch, give_back
from covector.errors import ArgumentTypeError, ArgumentValueError, BudgetError, Caller

MODES = ("auto", "forward", "reverse")

# Measured in benchmarks/jacobian.py: a column costs about what a row costs, but forward mode runs the
# function once more and has some thirty rows' worth of overhead.
_OVERHEAD = 32
# Five rows cost what four columns cost; in whole numbers, as torch.compile fixes sizes that meet a fraction.
_ROWS, _COLUMNS = 5, 4
# Rows beyond which no function was seen to be faster by reverse mode, per column.
_CLEARLY = 8
# Entries from which on a trial of both modes costs a few per cent of the whole.
_WORTH_A_TRIAL = 2_000_000
TRIAL = 8


@dataclass(frozen=True)
class Plan:
    """How a Jacobian was computed: `chunk` directions at once, each a row (reverse) or a column (forward).

    Of a Hessian it says how the Jacobian of the gradient was computed.
    """

    mode: str
    outputs: int
    inputs: int
    chunk: int
    reason: str
    max_memory: int | None = None

    def __str__(self) -> str:
        count, kind = (self.inputs, "column") if self.mode == "forward" else (self.outputs, "row")
        limit = "" if self.max_memory is None else f", within {in_units(self.max_memory)} above the result"
        return (
            f"{self.mode} mode: {count} {kind}{'' if count == 1 else 's'} of {self.outputs} x "
            f"{self.inputs}, {self.chunk} at once{limit}, because {self.reason}"
        )


def _forward_pays(outputs: int, inputs: int) -> bool:
    """Whether the numbers of outputs and inputs speak for forward mode."""
    return _COLUMNS * outputs > _ROWS * inputs + _COLUMNS * _OVERHEAD


def by_sizes(outputs: int, inputs: int) -> tuple[str, str]:
    """The mode that the numbers of outputs and inputs suggest, and why.

    While torch.compile traces, nobody reads why, and a size that is written out would be a constant.
    """
    forward = _forward_pays(outputs, inputs)
    if tracing():
        return "forward" if forward else "reverse", ""
    if forward:
        return "forward", f"{inputs} inputs are fewer than {outputs} outputs"
    if outputs > inputs:
        return "reverse", f"{outputs} outputs are too few for forward mode to pay"
    return "reverse", f"{outputs} outputs are no more than {inputs} inputs"


# Measured in benchmarks/transforms.py: forward over reverse is several times dearer than the other way.
FEW_OUTPUTS = 4


def by_sizes_of_gradient(outputs: int, inputs: int) -> tuple[str, str]:
    """The mode for a Hessian, whose gradient has `outputs` elements, and why."""
    if outputs > FEW_OUTPUTS * inputs:
        return "forward", f"the function has more than {FEW_OUTPUTS} outputs"
    return "reverse", f"the function has no more than {FEW_OUTPUTS} outputs"


def worth_a_trial(outputs: int, inputs: int) -> bool:
    """Whether sizes alone do not decide, and there is enough work for measuring to pay."""
    close = _forward_pays(outputs, inputs) and outputs < _CLEARLY * inputs
    return close and outputs * inputs >= _WORTH_A_TRIAL


# Runs of each of several programs, of which the fastest counts; fewer after so many seconds.
_RUNS = 25
_RUN_SECONDS = 0.1


def least_seconds(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """How long each call takes at best, after a first run of each; one alone is not run.

    They take turns, so that what else the machine does for a moment slows all of them alike.
    """
    if len(calls) == 1:
        return [0.0]
    least, start = [inf] * len(calls), perf_counter()
    for done in range(_RUNS + 1):
        if done > 1 and perf_counter() - start > _RUN_SECONDS:
            break
        for index, call in enumerate(calls):
            before = perf_counter()
            call()
            if done:
                least[index] = min(least[index], perf_counter() - before)
    return least


def check_mode(verb: str, mode: Any) -> None:
    """`mode` is one of three words."""
    if mode not in MODES:
        raise ArgumentValueError(f"{verb}: mode must be one of {', '.join(map(repr, MODES))}, got {mode!r}.")


_UNITS = {"": 1, "B": 1, **{f"{prefix}{i}B": (1024 if i else 1000) ** power
          for power, prefix in enumerate("KMGT", start=1) for i in ("i", "")}}  # fmt: skip
_ADDRESSABLE = 2**63
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]?i?B?)\s*", re.IGNORECASE)


def memory_limit(verb: str, max_memory: Any) -> int | None:
    """`max_memory` in bytes: None, a positive int, or a string such as "500MB" or "2 GiB"."""
    if max_memory is None:
        return None
    if isinstance(max_memory, bool) or not isinstance(max_memory, int | str):
        raise ArgumentTypeError(
            f"{verb}: max_memory must be None, a number of bytes or a string such as '2GB', got "
            f"{max_memory!r} ({type(max_memory).__name__})."
        )
    limit = max_memory if isinstance(max_memory, int) else _bytes_of(verb, max_memory)
    if abs(limit) > _ADDRESSABLE:
        # Not shown: Python refuses to print an int of some thousand digits.
        raise ArgumentValueError(
            f"{verb}: max_memory is beyond 2**63 bytes, which no machine can address. Give the bytes that "
            "may be used, or None for no limit."
        )
    if limit <= 0:
        raise ArgumentValueError(f"{verb}: max_memory must be positive, got {max_memory!r}.")
    return limit


def _bytes_of(verb: str, text: str) -> int:
    units = {unit.upper(): size for unit, size in _UNITS.items()}
    found = _SIZE.fullmatch(text)
    if found is None or found.group(2).upper() not in units:
        raise ArgumentValueError(
            f"{verb}: max_memory={text!r} is not a size. Write a number and a unit: '500MB', '2GB', "
            "'1.5GiB'; or give a number of bytes."
        )
    size = float(found.group(1)) * units[found.group(2).upper()]
    return int(min(size, 2.0 * _ADDRESSABLE))  # a long number is infinite as a float


def in_units(size: float) -> str:
    """A number of bytes as a person would write it."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"


# What kernels borrow for themselves is not all seen by a watch.
_SHARE = 0.85
_MEASURED = 3


class Budget:
    """A pace that stays within a memory limit: the first chunks are small, and measured.

    The memory of a chunk is a fixed part and a part for each direction; both follow from two chunks.
    """

    def __init__(self, caller: Caller, allowed: float, chunk_size: int | None) -> None:
        self._caller = caller
        self._allowed = allowed * _SHARE
        self._limit = chunk_size
        self._seen: list[tuple[int, int]] = []
        self._least = 0.0
        self.largest = 0

    def next(self, left: int) -> int:
        """How many directions fit, by what was measured so far."""
        # Otherwise chunks of various sizes leave gaps behind that add up to more than is allowed.
        give_back()
        fitting = self._fitting()
        if self._limit is not None:
            fitting = min(fitting, self._limit)
        # Chunks of nearly the same size: a small last one would cost as much as a large one.
        count = -(-left // -(-left // fitting)) if left else 0
        self.largest = max(self.largest, count)
        return count

    def step(self, count: int) -> AbstractContextManager[Any]:
        """Measure the first chunks; none of them spends memory on zeros."""
        return self._measured(count) if len(self._seen) < _MEASURED else NoZeroProducts()

    @contextmanager
    def _measured(self, count: int) -> Iterator[None]:
        with Watch() as watch, NoZeroProducts():
            yield
        if count:
            self._seen.append((count, watch.resident))
            self._least = watch.peak / count

    def _fitting(self) -> int:
        if not self._seen:
            return 1
        if self._least > self._allowed:
            raise BudgetError(
                f"{self._caller}: one direction alone needs some {in_units(self._least)}, and "
                f"{in_units(max(0.0, self._allowed))} of max_memory can be used for it. Allow more."
            )
        count, peak = self._seen[-1]
        if len(self._seen) == 1:
            # One direction is not batched, so what it takes says no more than the order of magnitude.
            return max(1, int(self._allowed * count / max(peak, 1) / 2))
        before, below = self._seen[-2]
        each = (peak - below) / (count - before) if count != before else 0.0
        each = each if each > 0 else max(peak, 1) / count
        fixed = max(0.0, peak - each * count)
        return max(1, int((self._allowed - fixed) / each))
