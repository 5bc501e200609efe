"""`make sweep`: groups of one file, what has ended is kept, and a run that was killed is continued."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import sweep

KIND = sweep.Kind("sweep", 1)
TESTS = """
    import os, pathlib, time, pytest

    pytestmark = pytest.mark.sweep
    here = pathlib.Path(__file__).parent

    @pytest.mark.parametrize("number", range(3))
    def test_quick(number, capsys):
        with capsys.disabled():
            print("printed in the middle of a line")
        (here / f"ran-{number}").open("a").write(".")

    def test_that_waits():
        (here / "waits").touch()
        while not (here / "goes on").exists():
            time.sleep(0.05)

    def test_in_which_a_failure_may_be_planted():
        assert not os.environ.get("PLANTED")
"""


def test_groups_are_of_one_file(tmp_path: Path) -> None:
    """Of what has not passed, and of so many tests at most."""
    names = [f"tests/a.py::test[{n}]" for n in range(450)] + ["tests/b.py::one", "tests/b.py::other"]
    groups = list(sweep.grouped(KIND, names, {"tests/a.py::test[3]", "tests/b.py::one"}, tmp_path))
    assert [(group.file, len(group.tests)) for group in groups] == [
        ("tests/a.py", 200),
        ("tests/a.py", 200),
        ("tests/a.py", 49),
        ("tests/b.py", 1),
    ]
    assert len({group.record for group in groups}) == 4


def test_the_last_word_counts(tmp_path: Path) -> None:
    """Of a test and its teardown, of two runs; half a line is none."""
    (tmp_path / "1-1.record").write_text(
        "failed\tt.py::a\npassed\tt.py::b\nfailed\tt.py::b\n3\tt.py\n", encoding="utf-8"
    )
    (tmp_path / "1-2.record").write_text("passed\tt.py::a\npass", encoding="utf-8")
    (tmp_path / "4-1.record").write_text("failed\tt.py::a\n", encoding="utf-8")
    os.utime(tmp_path / "1-1.record", (0, 0))
    assert sweep.outcomes(tmp_path, KIND) == {"t.py::a": "passed", "t.py::b": "failed"}


@pytest.mark.sweep
def test_a_run_that_was_killed_is_continued(tmp_path: Path) -> None:
    """Nothing that has passed runs again, what failed does, and the summary is of both runs."""
    for name in ("tools/sweep.py", *sweep.THOROUGH):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("def test_a_law(): pass\n", encoding="utf-8")
    laws = len(sweep.THOROUGH)
    shutil.copy(sweep.__file__, tmp_path / "tools")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -q\nmarkers =\n  sweep: long\n", encoding="utf-8"
    )
    (tmp_path / "tests" / "test_slow.py").write_text(textwrap.dedent(TESTS), encoding="utf-8")
    killed = _started(tmp_path)
    while not (tmp_path / "tests" / "waits").exists():
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    (tmp_path / "tests" / "goes on").touch()
    said = _started(tmp_path, PLANTED="1").communicate()[0]
    assert f"{5 + laws} tests, of which 3 have passed before; {1 + laws} groups" in said
    assert re.search(r"^ +\d+  tests/test_slow.py: 1 failed, 4 passed$", said, re.MULTILINE)
    assert re.search(rf"^ +\d+  in all: 1 failed, {4 + laws} passed$", said, re.MULTILINE)
    assert said.endswith(f"1 of {1 + laws} groups have failures\n")
    said = _started(tmp_path).communicate()[0]
    assert f"{5 + laws} tests, of which {4 + laws} have passed before; 1 groups" in said
    assert said.endswith(f"in all: {5 + laws} passed\nall passed\n")
    assert [(tmp_path / "tests" / f"ran-{n}").read_text(encoding="utf-8") for n in range(3)] == ["."] * 3


def _started(folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "tools/sweep.py", "1"],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
