"""Faults inside: memory that runs out and interrupts, at an evaluation and in our own code.

Whatever happens where, the state of torch, of Python and of the caller is as before.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import covector
import doors
from covector.checks import forgiving
from covector.verify.finding import Outcome
from covering import covered
from doors import DOORS, suited, used
from fuzzed import Wrong
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


def _raised(check: Callable[..., Any], *args: Any) -> Any:
    """The report of a check that raises."""
    with pytest.raises(covector.GradcheckError) as caught:
        check(*args)
    return caught.value.report


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
    "no backward": lambda: _raised(covector.gradgradcheck, torch.detach, point(3)),
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
                with Fault(of_rooms, error, name) as fault:
                    found = verdict_of(run(), tmp_path)
            except BaseException as caught:
                raised = caught
            if raised is None and fault.error is not None:
                continue  # it has been called, and its result is kept
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
