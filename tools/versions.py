"""Run all tests with several releases of torch, each in an environment of its own, and make a table of it.

    python tools/versions.py                                 the oldest release, the pinned and the newest
    python tools/versions.py 2.9.1 2.15.0                    these
    python tools/versions.py --write 2.9.1 2.15.0            these, and put the table into docs/versions.md
    python tools/versions.py 2.15.0 -- tests/test_rooms.py   some of the tests only

WORKERS=1 runs them in one process. A release that has been run with this commit is not run again: `.versions`
has what came of it. This is the one place that installs without `constraints.txt`. An environment is deleted
after its run, and nothing that was downloaded is kept.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "versions.md"
KEPT = ROOT / ".versions"

# What one environment takes at most, with the CUDA libraries that a release without CUDA cannot be told from.
DOWNLOAD, DISK = 4, 8  # gigabytes

BEGIN, END = "<!-- versions -->\n", "<!-- /versions -->\n"
RUNS = """\
| torch | date | commit | Python | passed | failed | skipped | minutes |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
DIFFERENCES = """
| test | what became of it | torch |
| --- | --- | --- |
"""


@dataclass(frozen=True)
class Result:
    """What came of the tests with one release."""

    torch: str
    commit: str
    date: str
    python: str
    seconds: float
    passed: list[str]
    failed: list[str]
    skipped: dict[str, str]  # with the reason

    @property
    def tests(self) -> set[str]:
        """All of them, by name."""
        return {*self.passed, *self.failed, *self.skipped}

    def __str__(self) -> str:
        counts = [len(self.passed), len(self.failed), len(self.skipped)]
        numbers = " | ".join(f"{number:,}" for number in [*counts, round(self.seconds / 60)])
        return f"| {self.torch} | {self.date} | {self.commit} | {self.python} | {numbers} |\n"


def outcomes(results: Sequence[Result]) -> Iterator[tuple[str, str, str]]:
    """Every test that did not pass, or that some release lacks: its name, what became of it, and where."""
    everywhere = set().union(*(result.tests for result in results))
    for result in results:
        for name in result.failed:
            yield name, "failed", result.torch
        for name, reason in result.skipped.items():
            yield name, f"skipped: {reason}", result.torch
        missing: dict[str, int] = {}
        for name in everywhere - result.tests:
            test = name.partition("[")[0]
            missing[test] = missing.get(test, 0) + 1
        for test, count in missing.items():
            yield test, f"{count} cases are not there", result.torch


def table(results: Sequence[Result]) -> str:
    """The runs, and what is not the same with every release."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, outcome, torch in outcomes(results):
        found.setdefault((name.replace("|", r"\|"), outcome), []).append(torch)
    rows = [f"| `{name}` | {what} | {', '.join(where)} |\n" for (name, what), where in sorted(found.items())]
    return RUNS + "".join(map(str, results)) + (DIFFERENCES + "".join(rows) if rows else "")


def written(page: str, results: Sequence[Result]) -> str:
    """The page with this table in its place."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} has no lines {BEGIN.strip()} and {END.strip()} for the table.")
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


def tested() -> tuple[str, ...]:
    """The releases that covector says it was tested with; read, because torch may not be installed here."""
    source = (ROOT / "src/covector/_engine/versions.py").read_text(encoding="utf-8")
    return ast.literal_eval(re.search(r"^TESTED = (\(.*?\))", source, re.MULTILINE).group(1))


def pinned() -> str:
    """The release that everything else is run with."""
    return re.search(
        r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
    ).group(1)


def git(*arguments: str) -> str:
    """What git says; nothing, where there is no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def commit() -> str:
    """The commit that is tested; nothing, where files differ from it."""
    changed = git("status", "--porcelain", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    return "" if changed else git("rev-parse", "--short", "HEAD")


def read(path: Path) -> tuple[list[str], list[str], dict[str, str]]:
    """The tests that passed, failed and were skipped, from pytest's own record."""
    passed, failed, skipped = [], [], {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif (skip := case.find("skipped")) is not None:
            reason = skip.get("message") or ""
            found = re.search(r"Skipped: (.*?)['\"]?\)?\s*$", skip.text or "")  # of a whole file
            skipped[name] = found.group(1) if found else reason
        else:
            passed.append(name)
    return passed, failed, skipped


def install(python: Path, *requirements: str) -> None:
    """Install into an environment; what is downloaded is not kept."""
    command = [python, "-m", "pip", "install", "-qq", "--no-cache-dir", *requirements]
    subprocess.run(command, cwd=ROOT, check=True)


def release(python: Path) -> str:
    """The torch of an environment."""
    code = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def run(version: str, tests: Sequence[str]) -> Result:
    """Make an environment with this release, run the tests in it, and delete it."""
    state = commit()
    with tempfile.TemporaryDirectory(prefix=f"torch-{version}-") as folder:
        python, record = Path(folder, "bin/python"), Path(folder, "tests.xml")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install(python, f"torch=={version}")
        before = release(python)
        install(python, "-e", ".[dev]")
        if release(python) != before:
            raise SystemExit(f"pip replaced torch {before} by {release(python)}: a requirement excludes it.")
        begun = time.monotonic()
        options = ["-n", os.environ.get("WORKERS", "auto"), "-m", "not sweep and not browser"]
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={record}", *options, *tests]
        if subprocess.run(command, cwd=ROOT).returncode not in (0, 1):  # all passed, or some failed
            raise SystemExit(f"the tests did not end with torch {version}; pytest says why above.")
        seconds = time.monotonic() - begun
        python_release = ".".join(map(str, sys.version_info[:3]))
        date = f"{datetime.now(UTC):%Y-%m-%d}"
        return Result(version, state, date, python_release, seconds, *read(record))


def result_of(version: str, tests: Sequence[str]) -> Result:
    """What was kept of a run of all tests with this commit, or a new run."""
    state = commit()
    path = KEPT / f"{state}-{version}.json"
    whole = bool(state) and not tests
    if whole and path.exists():
        print(f"torch {version}: has been run with {state}.", flush=True)
        return Result(**json.loads(path.read_text(encoding="utf-8")))
    print(f"torch {version}: installing, then running the tests.", flush=True)
    result = run(version, tests)
    if whole and commit() == state:
        KEPT.mkdir(exist_ok=True)
        path.write_text(json.dumps(asdict(result)), encoding="utf-8")
    return result


def main(arguments: list[str]) -> int:
    """Run, and print the table."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the environment is deleted
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    chosen, tests = arguments[:cut], arguments[cut + 1 :]
    write = "--write" in chosen
    versions = [name for name in chosen if name != "--write"]
    versions = versions or list(dict.fromkeys([tested()[0], pinned(), tested()[-1]]))
    if write and (tests or not commit()):
        print("--write is for all tests of a commit, without changes to it.", file=sys.stderr)
        return 2
    free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
    print(
        f"torch {', '.join(versions)}: one after the other, each a download of up to {DOWNLOAD} GB and up to "
        f"{DISK} GB on disk in {tempfile.gettempdir()} ({free:.0f} GB free), deleted after its run.",
        flush=True,
    )
    if free < DISK:
        print(f"There have to be {DISK} GB free. TMPDIR says where to look for them.", file=sys.stderr)
        return 2
    if not commit():
        print("There are changes since the last commit, so what comes of a run is not kept.", flush=True)
    begun, results = time.monotonic(), []
    for number, version in enumerate(versions, start=1):
        results.append(result_of(version, tests))
        minutes = (time.monotonic() - begun) / 60
        counts = f"{len(results[-1].passed):,} passed, {len(results[-1].failed)} failed"
        print(
            f"torch {version}: {counts}; {number} of {len(versions)}, {minutes:.0f} minutes so far.",
            flush=True,
        )
    print(f"\n{table(results)}")
    if write:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
        print(f"{PAGE.relative_to(ROOT)} has this table.")
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
