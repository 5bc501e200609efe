"""Run all tests with several releases of torch, each in an environment of its own, and make a table of it.

    python tools/versions.py                                 the oldest release, the pinned and the newest
    python tools/versions.py 2.9.1 2.15.0                    these
    python tools/versions.py 2.15.0 -- tests/test_rooms.py   some of the tests only

This is the one place that installs without `constraints.txt`. An environment is deleted after its run, and
nothing that was downloaded is kept.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent

# What one environment takes at most, with the CUDA libraries that a release without CUDA cannot be told from.
DOWNLOAD, DISK = 4, 8  # gigabytes

HEADER = """
| torch | Python | passed | failed | skipped | minutes |
| --- | --- | --- | --- | --- | --- |"""


@dataclass(frozen=True)
class Result:
    """What came of the tests with one release."""

    torch: str
    passed: int
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    minutes: float

    def __str__(self) -> str:
        python = ".".join(map(str, sys.version_info[:3]))
        counts = f"{self.passed} | {len(self.failed)} | {len(self.skipped)}"
        return f"| {self.torch} | {python} | {counts} | {self.minutes:.0f} |"


def tested() -> tuple[str, ...]:
    """The releases that covector says it was tested with; read, because torch may not be installed here."""
    source = (ROOT / "src/covector/_engine/versions.py").read_text()
    return ast.literal_eval(re.search(r"^TESTED = (\(.*?\))", source, re.MULTILINE).group(1))


def pinned() -> str:
    """The release that everything else is run with."""
    return re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE).group(1)


def read(path: Path, torch: str, seconds: float) -> Result:
    """The result of a run, from pytest's own record of it."""
    passed, outcomes = 0, {"failed": [], "skipped": []}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else None
        if outcome is None:
            passed += 1
        else:
            outcomes[outcome].append(f"{case.get('classname')}::{case.get('name')}")
    return Result(torch, passed, tuple(outcomes["failed"]), tuple(outcomes["skipped"]), seconds / 60)


def install(python: Path, *requirements: str) -> None:
    """Install into an environment; what is downloaded is not kept."""
    command = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", *requirements]
    subprocess.run(command, cwd=ROOT, check=True)


def release(python: Path) -> str:
    """The torch of an environment."""
    code = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def run(version: str, tests: list[str]) -> Result:
    """Make an environment with this release, run the tests in it, and delete it."""
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
        subprocess.run(command, cwd=ROOT)
        if not record.exists():
            raise SystemExit(f"the tests could not be run with torch {version}; pytest says why above.")
        return read(record, version, time.monotonic() - begun)


def main(arguments: list[str]) -> int:
    """Run, and print the table."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    versions = arguments[:cut] or list(dict.fromkeys([tested()[0], pinned(), tested()[-1]]))
    free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
    print(
        f"torch {', '.join(versions)}: one after the other, each a download of up to {DOWNLOAD} GB and up to "
        f"{DISK} GB on disk in {tempfile.gettempdir()} ({free:.0f} GB free), deleted after its run.",
        flush=True,
    )
    if free < DISK:
        print(f"There have to be {DISK} GB free. TMPDIR says where to look for them.", file=sys.stderr)
        return 2
    results = [run(version, arguments[cut + 1 :]) for version in versions]
    print(f"\n{datetime.now(UTC):%Y-%m-%d}\n{HEADER}")
    for result in results:
        print(result)
    for result in results:
        for outcome in ("failed", "skipped"):
            for name in getattr(result, outcome):
                print(f"{result.torch}: {outcome} {name}")
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
