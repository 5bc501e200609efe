"""Run the tests of `make sweep`, several at a time: here, or on the workers of a Dask cluster.

    python tools/sweep.py                               as many at a time as there are cores
    python tools/sweep.py 4                             four at a time
    python tools/sweep.py tcp://scheduler:8786          on a cluster; its workers see this folder
    python tools/sweep.py 4 -- tests/sweep -k sin       some of the tests only
    python tools/sweep.py --again                       also those that have passed

The tests are collected once, and cut into groups of one file each. A group is a run of pytest in a process
of its own, so that a test that crashes takes no other group with it. How each test has ended is
kept below `.sweep`, so that the same command continues a run that was stopped or killed, as long as neither
the source nor torch has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
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
# Where a group says how each of its tests has ended, as soon as it has.
_RECORD = "SWEEP_RECORD"
_WELL = ("passed", "skipped")


@dataclass(frozen=True)
class Kind:
    """Tests by their mark and place, and how many times as many examples of a law they draw."""

    mark: str
    examples: int
    files: tuple[str, ...] = ()


# Tests of `make test` as well, there with fewer examples, and without an explanation of each failure.
THOROUGH = (
    "tests/test_laws.py",
    "tests/verify/test_holes.py",
    "tests/verify/test_judgement.py",
    "tests/verify/test_mutants.py",
    "tests/verify/test_sparse.py",
    "tests/verify/test_verdict_laws.py",
)
KINDS = (Kind("sweep", 1), Kind("not sweep", 10, THOROUGH))


@dataclass(frozen=True)
class Group:
    """Tests of one file, for one run of pytest, and the file in which it says how each has ended."""

    kind: Kind
    tests: tuple[str, ...]
    record: Path

    @property
    def file(self) -> str:
        """Where the tests are."""
        return file_of(self.tests[0])

    @property
    def printed(self) -> Path:
        """What pytest prints."""
        return self.record.with_suffix(".txt")


def file_of(test: str) -> str:
    """Where a test is, by its name."""
    return test.partition("::")[0]


def main(arguments: Sequence[str]) -> int:
    """Collect, run, and say what failed."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("where", nargs="?", default=str(os.cpu_count() or 1), help="a number, or an address")
    parser.add_argument("--again", action="store_true", help="run what has passed, too")
    parser.add_argument("chosen", nargs="*", help="after --: what pytest is to choose from")
    options = parser.parse_args(arguments)
    kept = ROOT / ".sweep" / source()
    if options.again:
        shutil.rmtree(kept, ignore_errors=True)
    for old in kept.parent.glob("*"):
        if old != kept:  # of other source
            shutil.rmtree(old)
    kept.mkdir(parents=True, exist_ok=True)
    tests = {kind: collected(kind, options.chosen) for kind in KINDS}
    if not any(tests.values()):
        raise SystemExit("no tests were collected")
    done = {kind: well(outcomes(kept, kind)) for kind in KINDS}
    groups = [group for kind in KINDS for group in grouped(kind, tests[kind], done[kind], kept)]
    before = sum(len(set(tests[kind]) & done[kind]) for kind in KINDS)
    every = sum(map(len, tests.values()))
    print(f"{every} tests, of which {before} have passed before; {len(groups)} groups", flush=True)
    try:
        bad = run_all(groups, options.where)
    except KeyboardInterrupt:
        print("\nstopped; what has passed is kept, and the same command continues", flush=True)
        return 130
    summary(tests, kept)
    for group in bad:
        print(f"failures in {group.file}: {group.printed.relative_to(ROOT)}")
    print(f"{len(bad)} of {len(groups)} groups have failures" if bad else "all passed")
    return 1 if bad else 0


def source() -> str:
    """A digest of everything that a test may depend on: what passed with other source says nothing."""
    digest = hashlib.sha256(f"{sys.version} {version('torch')}".encode())
    for folder in ("src", "tests", "benchmarks", "tools", "examples", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md", ".css", ".js"):
                digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def collected(kind: Kind, chosen: Sequence[str]) -> list[str]:
    """The names of the tests of a kind."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-m", kind.mark, "-p", "no:xdist"]
    found = subprocess.run([*command, *(chosen or kind.files)], cwd=ROOT, capture_output=True, text=True)
    if found.returncode not in _GOOD:
        raise SystemExit(f"the tests cannot be collected:\n{found.stdout}{found.stderr}")
    names = [line for line in found.stdout.splitlines() if "::" in line]
    return [name for name in names if not kind.files or file_of(name) in kind.files]


def lines(kept: Path, kind: Kind) -> Iterator[tuple[str, str]]:
    """What groups of a kind have said, in this run and in those that it continues: a word, and of what."""
    for path in sorted(kept.glob(f"{kind.examples}-*.record"), key=lambda path: path.stat().st_mtime):
        for line in path.read_text(encoding="utf-8").splitlines():
            word, tab, name = line.partition("\t")
            if tab:  # else it was killed while it wrote
                yield word, name


def outcomes(kept: Path, kind: Kind) -> dict[str, str]:
    """The last word on each test."""
    return {name: word for word, name in lines(kept, kind) if "::" in name}


def well(outcomes: dict[str, str]) -> set[str]:
    """Those that need not be run again."""
    return {name for name, word in outcomes.items() if word in _WELL}


def grouped(kind: Kind, tests: Iterable[str], done: set[str], kept: Path) -> Iterator[Group]:
    """Those that are to be run, in groups of one file each."""
    left = [test for test in tests if test not in done]
    number = len(list(kept.glob("*.record")))
    for _, ones in groupby(left, key=file_of):
        names = tuple(ones)
        for start in range(0, len(names), _GROUP):
            number += 1
            yield Group(kind, names[start : start + _GROUP], kept / f"{kind.examples}-{number}.record")


def run_all(groups: Sequence[Group], where: str) -> list[Group]:
    """Those that have failures; a line for each that has ended, and what a bad one printed."""
    bad = []
    with executor(where) as workers, progress("groups", len(groups)) as advance:
        for group, future in mapped(workers, "sweep", run, (str(ROOT), dict(os.environ)), groups):
            code = result_of(future, "sweep")
            advance()
            printed = group.printed.read_text(errors="replace", encoding="utf-8")
            last = printed.strip().rpartition("\n")[2]
            print(f"{group.file}: {last}", flush=True)
            if code not in _GOOD:
                bad.append(group)
                print(printed[-_SHOWN:], flush=True)
    return bad


def summary(tests: dict[Kind, list[str]], kept: Path) -> None:
    """A line for each file: how its tests ended, and how long they took."""
    seconds: Counter[str] = Counter()
    ended: dict[str, Counter[str]] = {}
    for kind, names in tests.items():
        seconds.update(dict.fromkeys(map(file_of, names), 0))
        for word, file in lines(kept, kind):
            if file in seconds:
                seconds[file] += int(word)
        known = outcomes(kept, kind)
        for name in names:
            ended.setdefault(file_of(name), Counter())[known.get(name, "not ended")] += 1
    print("\n  seconds")
    for file, counts in ended.items():
        print(f"{seconds[file]:9.0f}  {file}: {_counted(counts)}")
    print(f"{sum(seconds[file] for file in ended):9.0f}  in all: {_counted(sum(ended.values(), Counter()))}")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


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


def run(root: str, environment: dict[str, str], group: Group) -> int:
    """On a worker: one run of pytest, with this environment; its exit code."""
    started = time.monotonic()
    environment = {**environment, "EXAMPLES": str(group.kind.examples), _RECORD: str(group.record)}
    # This file is the plugin that keeps the record.
    paths = [str(Path(root, "tools")), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    with (
        tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as names,
        group.printed.open("w") as printed,
    ):
        names.write("\n".join(group.tests))  # by a file, because a command cannot be that long
        names.flush()
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "sweep", f"@{names.name}"]
        ended = subprocess.run(command, cwd=root, env=environment, stdout=printed, stderr=subprocess.STDOUT)
    said(group.record, f"{time.monotonic() - started:.0f}", group.file)
    return ended.returncode


def said(record: Path, word: str, name: str) -> None:
    """Add a line to a record."""
    with record.open("a", encoding="utf-8") as file:
        file.write(f"{word}\t{name}\n")


def pytest_runtest_logreport(report: Any) -> None:
    """In the process of a group, called by pytest: setup, test or teardown has ended."""
    if report.when == "call" or report.outcome != "passed":
        said(Path(os.environ[_RECORD]), report.outcome, report.nodeid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
