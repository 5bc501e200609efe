"""Faults from outside: full disks, kills, limits of memory, clocks that jump."""

from __future__ import annotations

import ast
import errno
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from test_faults import DOUBLE, SOURCE, point, wrong_entries

import covector
from covector import _files, cli
from covector._pool import Pool
from covector.errors import StorageError
from covering import covered
from forked import printed
from test_rooms import parsed, walked

pytestmark = pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning")


# --- disks


@contextmanager
def small_files() -> Iterator[None]:
    """No file may grow beyond 4 KB, which is what a full disk looks like to who writes.

    No fixture, which would still hold while pytest writes its progress, perhaps to a file. Python itself
    would keep half of the bytecode of what is imported meanwhile, and could not import that again.
    """
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = bytecode
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("old", [None, "the page of yesterday"])
def test_a_page_for_which_there_is_no_room(old: str | None, tmp_path: Path) -> None:
    """The error is ours, the old page is as it was, and nothing else is left."""
    report = covector.check(wrong_entries, point())
    page = tmp_path / "page.html"
    if old is not None:
        page.write_text(old, encoding="utf-8")
    message = r"page\.html could not be written: File too large"
    with small_files(), pytest.raises(StorageError, match=message):
        report.to_html(page)
    assert [path.name for path in tmp_path.iterdir()] == ([] if old is None else ["page.html"])
    assert old is None or page.read_text(encoding="utf-8") == old


def test_a_plan_for_which_there_is_no_room(tmp_path: Path) -> None:
    x = torch.rand(1000)
    plan = covector.jacobian_plan(lambda x: x[torch.randperm(1000)] * x, x, verify=False)
    with small_files(), pytest.raises(StorageError):
        plan.save(tmp_path / "plan.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".npy", ".zarr"])
def test_a_matrix_for_which_there_is_no_room(suffix: str, tmp_path: Path) -> None:
    """Room for a mapped file is taken at once, and of others each block; what was finished is continued."""
    out = tmp_path / f"matrix{suffix}"
    matrix = torch.rand(100, 100, dtype=DOUBLE)
    jacobian = covector.jacobian(lambda x: matrix @ x, mode="reverse", chunk_size=10, out=out)
    x = torch.ones(100, dtype=DOUBLE)
    with small_files(), pytest.raises(StorageError, match=rf"matrix\{suffix} could not be written: File too"):
        jacobian(x)
    assert {path.name for path in tmp_path.iterdir()} <= {"matrix.zarr", "matrix.zarr.json"}
    assert torch.equal(torch.from_numpy(jacobian(x)[:]), covector.jacobian(lambda x: matrix @ x)(x))


def in_blocks(path: Any) -> Any:
    return f"{path}.zarr" if isinstance(path, str) else path


WRITERS: dict[str, Callable[[Any], Any]] = {
    "a page": lambda path: covector.check(wrong_entries, point()).to_html(path),
    "a plan": lambda path: covector.jacobian_plan(torch.sin, point().detach(), verify=False).save(path),
    "a matrix": lambda path: covector.jacobian(torch.sin, out=path)(point().detach()),
    "blocks": lambda path: covector.jacobian(torch.sin, out=in_blocks(path))(point().detach()),
}
PLACES = ("null\0.npy", f"{'long' * 100}.npy", "file/matrix.npy", "folder.npy", 3, ())


@pytest.mark.parametrize("place", PLACES, ids=[str(place)[:15] for place in PLACES])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_place_that_no_file_can_have(writer: str, place: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """What the system refuses is an error of ours, and nothing is left."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for name in ("folder.npy", "folder.npy.zarr"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "inside").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(covector.errors.CovectorError):
        WRITERS[writer](place)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_terminal_that_lacks_characters(monkeypatch: Any, tmp_path: Path) -> None:
    """They are written as escapes, by a report and by the command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cases.py").write_text(
        "import covector\n@covector.case((2,), name='\\u0394\\udce9')\ndef f(x): return x.detach() * x\n",
    )
    plain = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", plain)
    assert cli.main(["check", "cases.py", "--jobs", "1"]) == 1
    covector.check(lambda x: wrong_entries(x["\u0394"]), ({"\u0394": point()},)).show()
    monkeypatch.undo()
    said = plain.buffer.getvalue().decode("ascii")
    assert plain.errors == "strict"
    assert "FAILED        cases.py::\\u0394\\udce9" in said
    assert "/ d x['\\u0394'][0]" in said


# What stands in the way of a file, and what to do about it.
ADVICE: dict[str, tuple[str, str]] = {
    "no folder": (
        "nodir/a.html",
        "No such file or directory. Nothing was changed there. Create the folder {folder}/nodir, or name "
        "another place.",
    ),
    "a file for a folder": (
        "file/a.html",
        "Not a directory. Nothing was changed there. A part of the path is a file, not a folder: name "
        "another place.",
    ),
    "a folder": (
        "folder",
        "Is a directory. Nothing was changed there. Name another place.",
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_a_file_that_cannot_be_written_says_what_to_do(name: str, tmp_path: Path) -> None:
    """By the kind of the error."""
    place, said = ADVICE[name]
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    path = tmp_path / place
    with pytest.raises(StorageError) as caught:
        covector.check(wrong_entries, point()).to_html(path)
    assert str(caught.value).endswith(f"{path} could not be written: {said.format(folder=tmp_path)}")


KINDS = {
    errno.EACCES: "Give yourself the right to write there, or name another place.",
    errno.ENOSPC: "Make room, or name another place.",
    errno.EIO: "Name another place.",
}


@pytest.mark.parametrize("number", KINDS)
def test_an_error_of_writing_says_what_to_do(number: int, tmp_path: Path) -> None:
    """Where the system raises it, whoever is the user."""

    def content(file: Any) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(StorageError) as caught:
        _files.write(tmp_path / "a.html", content)
    assert str(caught.value).endswith(f"{os.strerror(number)}. Nothing was changed there. {KINDS[number]}")


def test_a_device_that_is_full() -> None:
    with pytest.raises(OSError, match="No space left on device") as caught:
        _files.write_text("/dev/full", "text")
    assert isinstance(caught.value, StorageError)


def test_the_command_without_room(tmp_path: Path) -> None:
    """The verdicts are shown, the small file is written all the same, and what could not be is said."""
    (tmp_path / "cases.py").write_text(
        "import covector, torch\ncovector.case((2,))(torch.sin)\n", encoding="utf-8"
    )

    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    command = [sys.executable, "-m", "covector", "check", "cases.py", "--jobs", "1"]
    command += ["--html", "pages", "--json", "found.json"]
    apart = {
        "env": {**os.environ, "PYTHONPATH": str(SOURCE.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        "cwd": tmp_path,
        "preexec_fn": no_room,
    }
    ended = subprocess.run(command, **apart, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "PASSED        cases.py::sin" in ended.stdout
    assert "could not be written: File too large" in ended.stderr
    assert not list((tmp_path / "pages").iterdir())
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["interrupted"] is False


# --- kills

MANY_CASES = """
    import time, covector, torch

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g

    def slow(x):
        time.sleep(0.002)
        return x.sin()

    for number in range(40):
        covector.case((2,), name=f"case {number}")(slow if number % 3 else Wrong.apply)
"""
HANGING = """
    import time, covector

    @covector.case((2,))
    def hangs(x):
        open("begun", "w")
        time.sleep(10000)
"""
# The command, which saves what it has found as often as it can if the first argument is 0.
COMMAND = """
import sys
from covector import cli
cli._OFTEN = float(sys.argv[1])
sys.exit(cli.main(sys.argv[2:]))
"""
SEED = int(os.environ.get("KILL_SEED") or random.SystemRandom().randrange(10**6))
# Seconds in which processes end that nobody asks for anything any more, on a busy machine.
PATIENCE = 300


def command(folder: Path, often: float, *options: str) -> subprocess.Popen[str]:
    """`covector check` in a group of processes of its own."""
    words = ["check", "cases.py", "--jobs", "2", "--json", "found.json", "--html", "pages", *options]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(often), *words],
        cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def killed(process: subprocess.Popen[str]) -> None:
    """Kill the command alone: what works for it notices, and ends too."""
    assert process.stdout is not None
    process.stdout.close()
    process.kill()
    process.wait()
    deadline = time.monotonic() + PATIENCE
    while left := running(process.pid):
        if time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
        assert time.monotonic() < deadline, f"these went on: {left}"
        time.sleep(0.02)


def running(group: int) -> list[str]:
    """The processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of, *_ = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(of) == group and state not in "ZX":
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize("number", covered([(number,) for number in range(40)], lambda number: number == 0))
def test_killed_at_a_random_moment(number: int, tmp_path: Path) -> None:
    """After a kill -9, what was found so far can be read: the JSON, the index, and each page of it."""
    print(f"KILL_SEED={SEED}")
    chosen = random.Random(f"{SEED} {number}")
    (tmp_path / "cases.py").write_text(textwrap.dedent(MANY_CASES), encoding="utf-8")
    often, lines = chosen.choice((0.0, cli._OFTEN)), chosen.randrange(40)
    process = command(tmp_path, often)
    assert process.stdout is not None
    read = sum(bool(process.stdout.readline()) for _ in range(lines))
    time.sleep(chosen.uniform(0, 0.05 if lines else 5))
    killed(process)
    pages = tmp_path / "pages"
    assert all(page.read_text(encoding="utf-8").rstrip().endswith("</html>") for page in pages.glob("*.html"))
    if lines == 0 and not (tmp_path / "found.json").exists():
        return  # it had not yet listed the cases
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    outcomes = {result["name"]: result["outcome"] for result in found["results"]}
    assert found["cases"] == 40
    assert found["interrupted"] or len(outcomes) == 40
    assert len(outcomes) >= (read - 1 if often == 0.0 else 0)
    for name, outcome in outcomes.items():
        assert outcome == ("passed" if int(name.split()[1]) % 3 else "failed")
    assert (pages / "index.html").read_text(encoding="utf-8").endswith("</html>\n")
    assert all((pages / result["page"]).exists() for result in found["results"])


def test_killed_while_a_case_hangs(tmp_path: Path) -> None:
    """Its process ends too."""
    (tmp_path / "cases.py").write_text(textwrap.dedent(HANGING), encoding="utf-8")
    process = command(tmp_path, 0.0)
    while not (tmp_path / "begun").exists():
        time.sleep(0.02)
    killed(process)
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["results"] == []


def test_what_a_kill_left_is_removed(tmp_path: Path, monkeypatch: Any) -> None:
    """By the next run: parts of pages and of the JSON, and nothing else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cases.py").write_text(
        "import covector, torch\ncovector.case((2,))(torch.sin)\n", encoding="utf-8"
    )
    (tmp_path / "pages").mkdir()
    names = {".found.json": True, ".other.json": False, "pages/.index.html": True, "pages/.page.html": True}
    parts = {tmp_path / f"{name}.{'0a' * 16}.part": gone for name, gone in names.items()}
    parts[tmp_path / "pages" / "notes.part"] = False
    for part in parts:
        part.touch()
    assert cli.main(["check", "cases.py", "--jobs", "1", "--json", "found.json", "--html", "pages"]) == 0
    assert {part: not part.exists() for part in parts} == parts


def test_saved_meanwhile(tmp_path: Path, monkeypatch: Any) -> None:
    """What is saved while cases run is what an interruption leaves; what has every result says so."""
    (tmp_path / "cases.py").write_text(
        textwrap.dedent(MANY_CASES).replace("range(40)", "range(1, 3)"), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_OFTEN", 0.0)
    saved = []
    monkeypatch.setattr(cli, "write_text", lambda path, text: saved.append(json.loads(text)))
    assert cli.main(["check", "cases.py", "--jobs", "1", "--json", "found.json"]) == 0
    assert [len(data["results"]) for data in saved] == [0, 1, 2, 2]
    assert [data["interrupted"] for data in saved] == [True, True, False, False]


# --- memory

LIMITED = """
    import resource, torch, covector
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    f = lambda x: (x.sin() @ torch.ones(4000, 4000)).cumsum(0)
    x = torch.rand(4000)
    try:
        print(covector.jacobian(f, max_memory=MEMORY)(x).shape)
    except covector.errors.CovectorError as error:
        print(type(error).__name__)
    except MemoryError:
        print("MemoryError")
    except RuntimeError as error:
        print("allocate" in str(error) and "out of memory, said by torch")
    print(torch.is_grad_enabled(), torch._C._functorch.peek_interpreter_stack())
    print(covector.grad(lambda x: x.sum())(torch.ones(2)).tolist())
"""


def limited(limit: int, memory: str) -> list[str]:
    """What a program prints that may use so many bytes of addresses beyond those of torch."""
    program = textwrap.dedent(LIMITED).replace("MEMORY", repr(memory))
    used = "int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()"
    program = program.replace("(LIMIT, LIMIT)", f"({used} + {limit}, -1)")
    return printed(program).splitlines()


@pytest.mark.parametrize(
    ("limit", "memory", "first"),
    [
        pytest.param(2**31, "300MB", "torch.Size([4000, 4000])", marks=pytest.mark.sweep, id="enough"),
        pytest.param(2**31, "1MB", "BudgetError", marks=pytest.mark.sweep, id="too little asked for"),
        pytest.param(2**26, "4GB", "out of memory, said by torch", id="too little there"),
    ],
)
def test_under_a_limit_of_addresses(limit: int, memory: str, first: str) -> None:
    """`max_memory` is kept, or the error is one that a program can catch and go on after."""
    assert limited(limit, memory) == [first, "True None", "[1.0, 1.0]"]


# --- clocks


def test_no_clock_that_can_be_set() -> None:
    """Limits and durations come from clocks that only go forward."""
    settable = {"time", "time_ns", "ctime", "localtime", "gmtime", "now", "utcnow", "today"}
    for path in [*SOURCE.rglob("*.py"), *SOURCE.parent.glob("covector_pytest*.py")]:
        for node in walked(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
                assert not settable & {alias.name for alias in node.names}, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert not (node.value.id in ("time", "datetime", "date") and node.attr in settable), path


@pytest.fixture(params=[1e9, pytest.param(-1e9, marks=pytest.mark.sweep)])
def _jumping(request: Any, monkeypatch: Any) -> None:
    """The clock is set on by thirty years each second, or back."""
    true_time, started = time.time, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: true_time() + request.param * (time.monotonic() - started))


# Limits that are kept on a busy machine: one that nothing reaches, and one that may be reached at any moment.
@pytest.mark.usefixtures("_jumping")
def test_a_clock_that_jumps_ends_no_case(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """A case that is within its time limit is not lost when the clock is set."""
    (tmp_path / "cases.py").write_text(
        "import covector, torch\ncovector.case((2,))(torch.sin)\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", "cases.py", "--jobs", "1", "--timeout", "inf"]) == 0
    assert "PASSED        cases.py::sin" in capsys.readouterr().out


@pytest.mark.usefixtures("_jumping")
def test_a_clock_that_jumps_keeps_no_case_alive(monkeypatch: Any) -> None:
    """One that hangs is stopped at its limit, and the next one is given a process of its own."""
    with Pool(time.sleep, 1, 1.0, subject=lambda seconds: seconds) as pool:
        ended = list(pool.run([1000, 2000]))
    assert [(one.piece, one.lost) for one in ended] == [(1000, "timed out"), (2000, "timed out")]
    assert all(one.seconds >= 1 for one in ended)
