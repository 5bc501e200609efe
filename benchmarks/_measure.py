"""The instrument: two ways to compute the same thing, compared in time and in memory.

On a shared machine the speed drifts by the second, so absolute times are not worth keeping. What is
stable is the ratio of two neighbouring blocks of calls; the median of many such pairs is reported.
Calls run on one thread and are measured in processor time, which other processes disturb least.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Self, TypeVar

from torch.profiler import ProfilerActivity, profile

from covector.bench import one_thread as one_thread

Call = Callable[[], Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Ratio:
    """Ours over theirs: the median of pairwise ratios and its quartiles, and the medians of both sides."""

    median: float
    low: float
    high: float
    ours: float
    theirs: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Self:
        """The ratio of measurements that were made in pairs."""
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        return cls(median, low, high, statistics.median(ours), statistics.median(theirs))


# A comparison of long calls ends when it took so many seconds, with no fewer than this many pairs.
ENOUGH, FEWEST = 10.0, 3


def compare(ours: Call, theirs: Call, *, pairs: int = 25, block: float = 0.02) -> Ratio:
    """The ratio of the times of two calls, in alternating blocks of about `block` seconds.

    Garbage collection stays on: a side that leaves cycles behind should pay for them.
    """
    start = process_time()
    with one_thread():
        counts = {call: _repetitions(call, block) for call in (ours, theirs)}
        times: dict[Call, list[float]] = {ours: [], theirs: []}
        for done in range(pairs):
            if done >= FEWEST and process_time() - start > ENOUGH:
                break
            for call in random.sample((ours, theirs), 2):
                times[call].append(_seconds(call, counts[call]))
    return Ratio.of(times[ours], times[theirs])


def compare_memory(ours: Call, theirs: Call) -> Ratio:
    """The ratio of the peaks of two calls, which have to be importable (see `peak_memory`)."""
    return Ratio.of([peak_memory(ours)], [peak_memory(theirs)])


def compare_statements(ours: str, theirs: str, *, pairs: int = 15) -> Ratio:
    """The ratio of the times of two programs, each run in a fresh interpreter."""
    for program in (ours, theirs):
        _seconds_of_program(program)
    times: dict[str, list[float]] = {ours: [], theirs: []}
    for _ in range(pairs):
        for program in random.sample((ours, theirs), 2):
            times[program].append(_seconds_of_program(program))
    return Ratio.of(times[ours], times[theirs])


def peak_memory(call: Call) -> float:
    """The most bytes of tensors alive at once during a call, beyond those alive before it.

    It is measured in a fresh process, which has to be able to import the call. torch's profiler sees
    every allocation and release of its allocator, so the number is exact and repeatable.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself otherwise
    return fresh(_peak_memory_here, call)


def fresh(call: Callable[..., T], *args: Any) -> T:
    """The result of a call in a process of its own, which has loaded nothing before."""
    with multiprocessing.get_context("spawn").Pool(1, _ignore_interrupts) as pool:
        return pool.apply(call, args)


def _peak_memory_here(call: Call) -> float:
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    changes = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        alive += change.nbytes()
        peak = max(peak, alive)
    return float(peak)


def resident_peak(call: Callable[[], T]) -> tuple[T, float]:
    """The result of a call, and how far it raises the resident memory of this process, in bytes.

    The mark that Linux keeps is set back first: it remembers what was done before the call, too. Unlike
    ru_maxrss it knows nothing of the parent process.
    """
    before = _status("self", "VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    result = call()
    return result, _status("self", "VmHWM") - before


def _status(process: str | int, key: str) -> float:
    """A line of the status of a process, in bytes; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((float(line.split()[1]) * 1024 for line in lines if line.startswith(key)), 0)


def clean_fork(module: str) -> Any:
    """Processes forked from one that has loaded this module, torch with it, and has run nothing.

    They are as good as fresh, and start at once; threads, which do not survive a fork, are not there yet.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    return context


class Stopped(Exception):
    """A measurement that was ended at one of its limits, which is the text."""


def elsewhere(
    context: Any,
    call: Callable[[], T],
    patience: float,
    *,
    seconds: int | None = None,
    memory: float | None = None,
) -> T:
    """The result of a call in another process, which is ended at its limits.

    These are `patience` by the clock, `seconds` of processor time, and `memory`, the resident bytes. They are
    watched from here: under a limit of its own (RLIMIT_CPU) the clock of a process ticks in steps of 4 ms.

    Raises:
        Stopped: at a limit, or if the system ended it.
        RuntimeError: with the traceback, if the call raises; or if the process dies.
    """
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_report_to, args=(sender, call))
    child.start()
    sender.close()
    deadline = perf_counter() + patience
    try:
        while not receiver.poll(0.02):
            if perf_counter() > deadline:
                raise Stopped(f"over {patience:.0f} s by the clock")
            if seconds is not None and _processor_time(child.pid) > seconds:
                raise Stopped(f"over {seconds} s")
            if memory is not None and _status(child.pid, "VmRSS") > memory:
                raise Stopped(f"over {memory / 1e9:.1f} GB")
        answer = receiver.recv()
    except EOFError:
        child.join()
        if child.exitcode == -signal.SIGKILL:
            raise Stopped("killed by the system") from None
        raise RuntimeError(f"a measurement ended with exit code {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
    if isinstance(answer, _Raised):
        raise RuntimeError(answer.text)
    return answer


def _processor_time(process: int) -> float:
    """Seconds that a process took so far; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Raised:
    """What went wrong in the other process."""

    text: str


def _ignore_interrupts() -> None:
    """In a process that is ended by the one that was interrupted with it, which says so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _report_to(sender: Connection, call: Callable[[], Any]) -> None:
    _ignore_interrupts()
    try:
        # If memory runs out, the system is to end the measurement, and nothing else that runs here.
        Path("/proc/self/oom_score_adj").write_text("1000")
        sender.send(call())
    except Exception as error:
        sender.send(_Raised("".join(traceback.format_exception(error))))


def seconds_of(call: Call, *, times: int, enough: float, block: float = 0.02) -> list[float]:
    """The times of a call, of blocks of it if it is short: so many, or fewer when `enough` seconds passed."""
    found: list[float] = []
    start = process_time()
    count = 1
    while len(found) < times and (not found or process_time() - start < enough):
        found.append(_seconds(call, count))
        if found[-1] * count < block / 2:
            count *= 2
            found.pop()
    return found


def _repetitions(call: Call, block: float) -> int:
    """How often to call in one block, after a warm-up of the same length."""
    call()
    count = 1
    while (seconds := _seconds(call, count) * count) < block / 2:
        count *= 2
    return max(1, round(count * block / seconds))


def _seconds(call: Call, count: int) -> float:
    start = process_time()
    for _ in range(count):
        call()
    return (process_time() - start) / count


def _seconds_of_program(program: str) -> float:
    start = perf_counter()
    # In a group of its own: an interrupt from the terminal is told here, where it ends the program.
    subprocess.run([sys.executable, "-c", program], check=True, process_group=0)
    return perf_counter() - start
