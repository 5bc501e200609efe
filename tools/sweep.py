"""Run the tests of `make sweep` on the workers of an executor: a Dask cluster, or processes of this machine.

    python tools/sweep.py tcp://scheduler:8786                on a cluster; its workers see this folder
    python tools/sweep.py 4                                   four at a time here
    python tools/sweep.py 4 -- tests/sweep -k sin             some of the tests only

The tests are collected once, and cut into groups of one file each. A group is a run of pytest in a process
of its own, so that a test that crashes takes no other group with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from covector._tasks.mapping import mapped, result_of
from covector._tasks.progress import progress

ROOT = Path(__file__).parent.parent
# Tests in a group: some minutes of the slow ones, and enough that starting torch does not matter.
_GROUP = 200
# How much of what a failing group printed is shown.
_SHOWN = 20_000
# Exit codes of pytest when there is nothing to look at: all tests passed, or none was chosen.
_GOOD = (0, 5)


@dataclass(frozen=True)
class Ended:
    """How a group ended: the exit code of pytest, what it printed, and how long it took."""

    code: int
    printed: str
    seconds: float


def main(arguments: Sequence[str]) -> int:
    """Collect, run, and say what failed."""
    if not arguments or arguments[0] == "--":
        print(__doc__, file=sys.stderr)
        return 2
    where, chosen = arguments[0], list(arguments[2:])
    groups = collected(chosen)
    print(f"{sum(map(len, groups))} tests in {len(groups)} groups")
    bad = 0
    with executor(where) as workers, progress("groups", len(groups)) as advance:
        for group, future in mapped(workers, "sweep", run, (str(ROOT), dict(os.environ)), groups):
            ended = result_of(future, "sweep")
            advance()
            last = ended.printed.strip().rpartition("\n")[2]
            print(f"{group[0].partition('::')[0]}: {last}  ({ended.seconds:.0f} s)", flush=True)
            if ended.code not in _GOOD:
                bad += 1
                print(ended.printed[-_SHOWN:], flush=True)
    print(f"{bad} of {len(groups)} groups have failures" if bad else "all passed")
    return 1 if bad else 0


def collected(chosen: Sequence[str]) -> list[list[str]]:
    """The names of the tests, in groups of one file each."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-m", "sweep", "-p", "no:xdist", *chosen]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    names = [line for line in found.stdout.splitlines() if "::" in line]
    if not names:
        raise SystemExit(f"no tests were collected:\n{found.stdout}{found.stderr}")
    groups = []
    for _, ones in groupby(names, key=lambda name: name.partition("::")[0]):
        tests = list(ones)
        groups += [tests[start : start + _GROUP] for start in range(0, len(tests), _GROUP)]
    return groups


@contextmanager
def executor(where: str) -> Iterator[Any]:
    """A cluster by its address, or so many threads, each of which waits for a process."""
    if where.isdigit():
        with ThreadPoolExecutor(int(where)) as threads:
            yield threads
        return
    from distributed import Client

    with Client(where, timeout=10, set_as_default=False) as client:
        yield client


def run(root: str, environment: dict[str, str], group: list[str]) -> Ended:
    """On a worker: one run of pytest, with this environment."""
    started = time.monotonic()
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as names:
        names.write("\n".join(group))  # by a file, because a command cannot be that long
        names.flush()
        command = [sys.executable, "-m", "pytest", "-m", "sweep", "-p", "no:xdist", f"@{names.name}"]
        ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    return Ended(ended.returncode, ended.stdout + ended.stderr, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
