"""Faults from outside: memory that runs out, interrupts, kills, full disks, clocks that jump.

Whatever happens where, the state of torch, of Python and of the caller is as before.
"""

from __future__ import annotations

import ast
import errno
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import covector
import doors
from covector import _files, cli
from covector._pool import Pool
from covector.checks import forgiving
from covector.errors import StorageError
from covector.verify.finding import Outcome
from covering import covered
from doors import DOORS, suited, used
from forked import printed
from fuzzed import Wrong
from test_rooms import parsed, walked
from watched import Counted, marks, state

SOURCE = Path(covector.__file__).parent
DOUBLE = torch.float64

pytestmark = pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning")


# --- at an evaluation


def point(size: int = 3) -> torch.Tensor:
    x = torch.linspace(-1.3, 0.9, size, dtype=DOUBLE).requires_grad_()
    x.grad = torch.ones_like(x)
    return x


TRANSFORMS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "grad": lambda f, x: covector.grad(lambda x: f(x).sum())(x),
    "vjp": lambda f, x: covector.vjp(f, x)[1](torch.ones(3, dtype=DOUBLE)),
    "jvp": lambda f, x: covector.jvp(f, (x,), (torch.ones_like(x),)),
    "linearize": lambda f, x: covector.linearize(f, x)[1](torch.ones_like(x)),
    "jacrev": lambda f, x: covector.jacrev(f)(x),
    "jacfwd": lambda f, x: covector.jacfwd(f, chunk_size=1)(x),
    "jacobian": lambda f, x: covector.jacobian(f, max_memory="1MB")(x),
    "hessian": lambda f, x: covector.hessian(lambda x: f(x).sum())(x),
    "hvp": lambda f, x: covector.hvp(lambda x: f(x).sum(), (x,), (torch.ones_like(x),)),
    "sparse_jacobian": lambda f, x: covector.sparse_jacobian(f)(x),
    "functional.jacobian": lambda f, x: covector.functional.jacobian(f, x),
    "functional.hvp": lambda f, x: covector.functional.hvp(lambda x: f(x).sum(), x, torch.ones_like(x)),
}
CHECKS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "gradcheck": lambda f, x: covector.gradcheck(f, x, raise_exception=False, check_forward_ad=True),
    "gradgradcheck": lambda f, x: covector.gradgradcheck(f, x, raise_exception=False),
    "check, fast": lambda f, x: bool(covector.check(f, x, fast_mode=True, taylor=True)),
    "kernelcheck": lambda f, x: covector.kernelcheck(f, torch.sin, x, raise_exception=False),
    "agree": lambda f, x: bool(covector.agree(f, x, modes=("eager", "forward", "vmapped"))),
}


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("verb", [*TRANSFORMS, *CHECKS])
def test_at_an_evaluation(verb: str, error: type[BaseException]) -> None:
    """A sample of what the next one tries."""
    at_evaluations(verb, error, most=3)


@pytest.mark.sweep
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("verb", [*TRANSFORMS, *CHECKS])
def test_at_every_evaluation(verb: str, error: type[BaseException]) -> None:
    """The k-th run of the function raises, for every k."""
    at_evaluations(verb, error, most=1000)


@pytest.mark.sweep
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("door", sorted(set(DOORS) - {"compile"}))  # which refuses a function that counts
def test_at_every_evaluation_of_any_door(door: str, error: type[BaseException]) -> None:
    """The same through every public function."""
    evaluations_of(lambda f, x: used(door, f, x), suited(door), error, most=1000)


def at_evaluations(verb: str, error: type[BaseException], most: int) -> None:
    """Of a right function, and for a check of a wrong one as well."""
    for body in (torch.sin, Wrong.apply) if verb in CHECKS else (torch.sin,):
        evaluations_of({**TRANSFORMS, **CHECKS}[verb], body, error, most)


def evaluations_of(call: Any, body: Any, error: type[BaseException], most: int) -> None:
    """The function raises at one of its runs: all is put back, and an interrupt gets through."""
    counted = Counted(body)
    call(counted, point())
    every = range(1, counted.runs + 1)
    for k in every[:: max(1, -(-counted.runs // most))]:
        x = point()
        before, marked = state(), marks([x])
        raised = None
        try:
            call(Counted(body, fails_at=k, error=error), x)
        except BaseException as caught:
            raised = caught
        assert state() == before, f"run {k}"
        assert marks([x]) == marked, f"run {k}"
        if error is KeyboardInterrupt:
            assert isinstance(raised, KeyboardInterrupt), f"run {k}"
        else:
            assert raised is None or isinstance(raised, MemoryError | covector.errors.CovectorError)


# --- inside our own code


class Fault:
    """Raises an error when the k-th of our functions of some kind is entered."""

    def __init__(self, wanted: Callable[[Any], bool], error: Any = None, name: str = "") -> None:
        self.wanted, self.error, self.name = wanted, error, name
        self.entered: dict[str, int] = {}

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event != "call" or not self.wanted(frame.f_code):
            return
        name = f"{Path(frame.f_code.co_filename).relative_to(SOURCE)}:{frame.f_code.co_qualname}"
        self.entered[name] = self.entered.get(name, 0) + 1
        if name == self.name and self.error is not None:
            error, self.error = self.error, None
            raise error(f"in {name}")

    def __enter__(self) -> Fault:
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


# Where looks are taken and judged, rules are asked, and reports are written.
ROOMS = ("verify", "checks", "evidence", "diagnose", "report", "kernels", "adjoint", "agreement")
# The one function of this file runs when the file is loaded.
LOADED = {"diagnose/rules/table.py"}


# Where derivatives are taken.
BELOW = ("transforms", "functional", "sparsity", "scipy", "_linear", "_images", "_tasks", "_engine")
# Who leaves cannot be interrupted and leave all the same; callbacks of weak references raise to nobody.
LEAVING = ("__enter__", "__exit__", "<module>", "leave", "released")


@cache
def in_rooms(rooms: tuple[str, ...], file: str) -> bool:
    """Whether a file is in one of the rooms; asked at every call of a function."""
    return file.startswith(tuple(str(SOURCE / room) for room in rooms))


def of_rooms(code: Any) -> bool:
    """Whether code is a look, a rule or a writer of ours."""
    return in_rooms(ROOMS, code.co_filename) and code.co_name not in LEAVING


def of_derivatives(code: Any) -> bool:
    """Whether code takes derivatives."""
    return in_rooms(BELOW, code.co_filename) and code.co_name not in LEAVING


def wrong_entries(x: torch.Tensor) -> torch.Tensor:
    return Wrong.apply(x).cumsum(0)


class OneEntry(torch.autograd.Function):
    """A running sum, of whose derivatives one is wrong: it has to be looked for among many."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        found = g.flip(0).cumsum(0).flip(0)
        found[1] += g[2]
        return found


def point_of(dtype: torch.dtype) -> torch.Tensor:
    return point(4).detach().to(dtype).requires_grad_()


def linear(x: torch.Tensor) -> torch.Tensor:
    return Wrong.apply(torch.nn.functional.linear(x, torch.ones(2, 4, dtype=x.dtype)))


class Wrongly(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 4, dtype=DOUBLE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Wrong.apply(torch.nn.functional.linear(x, self.weight))


def verdict_of(found: Any, folder: Path) -> str:
    """How a check ended, after everything that shows its report."""
    if isinstance(found, covector.Report):
        str(found), found._repr_html_()
        assert covector.Report.from_json(found.to_json()) == found
        found.to_html(folder / "page.html")
        if not found and all(finding.outcome is not Outcome.FAILED for finding in found.findings):
            return "inconclusive"
    return "passed" if found else "failed"


every_check = {"check_forward_ad": True, "check_batched_grad": True, "check_grad_dtypes": True}
SCENARIOS: dict[str, Callable[[], Any]] = {
    "wrong": lambda: covector.check(wrong_entries, point(4)),
    "wrong, fast, with Taylor": lambda: covector.check(wrong_entries, point(4), fast_mode=True, taylor=True),
    "one wrong entry of many, fast": lambda: covector.check(OneEntry.apply, point(40), fast_mode=True),
    "a kink": lambda: covector.check(lambda x: torch.relu(x - 0.9), point(4)),
    "right, every check": lambda: covector.check(lambda x: x.sin(), point(4), **every_check),
    "a module": lambda: covector.check(Wrongly(), point(4)),
    "low precision, right": lambda: covector.check(lambda x: x.sin().sum(), point_of(torch.bfloat16)),
    "low precision, wrong": lambda: covector.check(linear, point_of(torch.float32)),
    "second derivatives": lambda: covector.gradgradcheck(torch.sin, point(3), raise_exception=False),
    "sparse": lambda: covector.as_sparse_gradcheck(covector.gradcheck)(
        lambda x: x * 2, point_of(DOUBLE).detach().diag().to_sparse().requires_grad_(), raise_exception=False
    ),
    "a kernel, wrong": lambda: covector.check_kernel(Wrong.apply, torch.square, (point(6),)),
    "a kernel, right": lambda: covector.check_kernel(
        torch.sin,
        torch.sin,
        (point(6),),
        lenses=("layout", "requires grad", "sizes", "scale", "again", "second order"),
    ),  # the modes, of which one compiles, are those of the last one
    "an adjoint, wrong": lambda: covector.check_adjoint(torch.neg, torch.abs, point(4), point(4)),
    "modes that differ": lambda: covector.agree(linear, point(4), modes=("eager", "forward", "vmapped")),
}


def faults(scenario: str, error: Any, tmp_path: Path, every: int) -> None:
    run = SCENARIOS[scenario]
    with Fault(of_rooms) as seen:
        expected = verdict_of(run(), tmp_path)
    names = sorted(seen.entered)
    assert len(names) > 5
    forgiving.RAISING = False
    try:
        for name in names[every // 2 :: every]:
            before = state()
            raised = None
            try:
                with Fault(of_rooms, error, name):
                    found = verdict_of(run(), tmp_path)
            except BaseException as caught:
                raised = caught
            assert state() == before, name
            assert not list(tmp_path.glob("*.part")), name
            if error is KeyboardInterrupt:
                assert isinstance(raised, KeyboardInterrupt), f"{name}: {raised!r}"
            elif raised is None:
                assert found in (expected, "inconclusive"), name  # what explains or decides may be lost
            else:
                assert isinstance(raised, MemoryError | covector.errors.CovectorError), f"{name}: {raised!r}"
    finally:
        forgiving.RAISING = True


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_inside_looks_rules_and_writers(scenario: str, error: Any, tmp_path: Path) -> None:
    """A sample of what the next one tries."""
    faults(scenario, error, tmp_path, every=61)


def test_the_scenarios_enter_every_file(tmp_path: Path) -> None:
    """One that is added or has moved would go without faults."""
    with Fault(of_rooms) as seen:
        for run in SCENARIOS.values():
            verdict_of(run(), tmp_path)
    files = {path for room in ROOMS for path in (*SOURCE.glob(f"{room}.py"), *SOURCE.glob(f"{room}/**/*.py"))}
    code = {
        str(path.relative_to(SOURCE))
        for path in files
        if re.search(r"^ *def ", path.read_text(encoding="utf-8"), re.M)
    }
    assert code - {name.partition(":")[0] for name in seen.entered} == LOADED


@pytest.mark.sweep
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_inside_every_look_rule_and_writer(scenario: str, error: Any, tmp_path: Path) -> None:
    """Each function of these rooms that the scenario enters raises once."""
    faults(scenario, error, tmp_path, every=1)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize(
    "door", covered([(door,) for door in doors.TRANSFORMS], lambda door: door == "jacfwd")
)
def test_inside_every_function_that_takes_derivatives(door: str, error: Any) -> None:
    """No level, no mode and no graph is left open."""
    used(door, suited(door), point())
    with Fault(of_derivatives) as seen:
        used(door, suited(door), point())
    for name in sorted(seen.entered):
        x = point()
        before, marked = state(), marks([x])
        raised = None
        try:
            with Fault(of_derivatives, error, name):
                used(door, suited(door), x)
        except BaseException as caught:
            raised = caught
        assert state() == before, name
        assert marks([x]) == marked, name
        if error is KeyboardInterrupt:
            assert isinstance(raised, KeyboardInterrupt), name
        else:
            assert raised is None or isinstance(raised, MemoryError | covector.errors.CovectorError), name


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
        encoding="utf-8",
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
    """The verdicts are shown all the same, and what could not be written is said."""
    (tmp_path / "cases.py").write_text(
        "import covector, torch\ncovector.case((2,))(torch.sin)\n", encoding="utf-8"
    )

    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    command = [sys.executable, "-m", "covector", "check", "cases.py", "--jobs", "1", "--html", "pages"]
    apart = {"env": {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, "cwd": tmp_path, "preexec_fn": no_room}
    ended = subprocess.run(command, **apart, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "PASSED        cases.py::sin" in ended.stdout
    assert "could not be written: File too large" in ended.stderr
    assert not list((tmp_path / "pages").iterdir())


# --- kills

MANY_CASES = """
    import time, covector, torch

    def slow(x):
        time.sleep(0.01)
        return x.sin()

    for number in range(40):
        covector.case((2,), name=f"case {number}")(slow)
"""


@pytest.mark.parametrize(
    "part", [0.3, pytest.param(0.6, marks=pytest.mark.sweep), pytest.param(0.9, marks=pytest.mark.sweep)]
)
def test_killed_in_the_middle(part: float, tmp_path: Path) -> None:
    """After a kill -9, what was found so far can be read: the JSON, the index, and each page of it."""
    (tmp_path / "cases.py").write_text(textwrap.dedent(MANY_CASES), encoding="utf-8")
    command = [sys.executable, "-m", "covector", "check", "cases.py", "--jobs", "2"]
    command += ["--json", "found.json", "--html", "pages"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for _ in range(int(40 * part)):
        process.stdout.readline()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["interrupted"] is True
    assert found["cases"] == 40
    assert len(found["results"]) < 40
    assert all(result["outcome"] == "passed" for result in found["results"])
    index = (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")
    assert index.endswith("</html>\n")
    for result in found["results"]:
        assert (tmp_path / "pages" / result["page"]).read_text(encoding="utf-8").rstrip().endswith("</html>")


def test_saved_meanwhile(tmp_path: Path, monkeypatch: Any) -> None:
    """What is saved while cases run is what an interruption leaves; the last one says that it is whole."""
    (tmp_path / "cases.py").write_text(
        textwrap.dedent(MANY_CASES).replace("range(40)", "range(4)"), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_OFTEN", 0.0)
    saved = []
    monkeypatch.setattr(cli, "write_text", lambda path, text: saved.append(json.loads(text)))
    assert cli.main(["check", "cases.py", "--jobs", "1", "--json", "found.json"]) == 0
    assert [len(data["results"]) for data in saved] == [0, 1, 2, 3, 4, 4]
    assert [data["interrupted"] for data in saved] == [True] * 5 + [False]


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
