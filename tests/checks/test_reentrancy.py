"""Backwards that differ from run to run, beside torch's verdict, and what `nondet_tol` bounds."""

import tracemalloc
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import covector
from covering import covered

each_speed = pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])


def faulty(off: Callable[[int], float], *, batch: bool = False) -> Any:
    """2 x, with a backward that is off by so much at its n-th run, relative to a right one of 2."""
    runs = 0

    class Doubling(Function):
        generate_vmap_rule = batch

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor | None) -> Tensor | None:
            nonlocal runs
            if cotangent is None:
                return None
            runs += 1
            return (2 + off(runs)) * cotangent

    return Doubling.apply


def leaf(size: int) -> Tensor:
    return torch.linspace(0.5, 1.5, size, dtype=torch.float64).requires_grad_()


# name: off at the n-th run, whether fast mode finds it too
FAULTS = {
    "the first run by a factor": (lambda n: 2.0 * (n == 1), True),
    "the first run a little": (lambda n: 1e-3 * (n == 1), True),
    "the first run by a bit": (lambda n: 1e-15 * (n == 1), True),
    "the second run": (lambda n: 1e-3 * (n == 2), False),
    "every other run": (lambda n: 1e-3 * (n % 2), True),
    "every other run, from the second": (lambda n: 1e-3 * (n % 2 == 0), True),
    "every third run": (lambda n: 1e-3 * (n % 3 == 0), False),
    "every fourth run": (lambda n: 1e-9 * (n % 4 == 0), False),
    "from the fourth run on": (lambda n: 1e-3 * (n > 3), False),
    "more with each run": (lambda n: 1e-9 * n, True),
}


@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "batched"])
@pytest.mark.parametrize("size", [4, 30])
@pytest.mark.parametrize(("off", "fast_too"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_that_comes_and_goes(off: Any, fast_too: bool, size: int, batch: bool) -> None:
    """Every one is found exhaustively, also below the tolerance; what torch's fast mode finds, ours does."""
    report = covector.check(faulty(off, batch=batch), leaf(size))
    assert "determinism" in [found.check for found in report.findings if found.outcome == "failed"]
    keywords = {"raise_exception": False, "fast_mode": True}
    if fast_too:
        assert torch.autograd.gradcheck(faulty(off), leaf(size), **keywords) is False
        assert covector.gradcheck(faulty(off), leaf(size), **keywords) is False


@pytest.mark.parametrize(
    ("size", "period"),
    covered(product(range(1, 10), range(2, 10)), lambda size, period: (size + period) % 3 == 0),
)
def test_a_fault_of_some_period(size: int, period: int) -> None:
    """Whenever it is off for the first time, what torch finds exhaustively is found."""
    for first in range(period):

        def off(n: int, first: int = first) -> float:
            return 2e-3 * (n % period == first)

        if not torch.autograd.gradcheck(faulty(off), leaf(size), raise_exception=False):
            report = covector.check(faulty(off, batch=size % 2 == 0), leaf(size))
            assert "determinism" in [found.check for found in report.findings if found.outcome == "failed"]


def test_a_backward_that_is_not_quite_linear() -> None:
    """One that solves to a tolerance is the same each time: made again to see that, it passes."""
    calls = 0

    class Solved(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return 2 * x

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return 2 * cotangent + 1e-9 * cotangent.norm()

    assert torch.autograd.gradcheck(Solved.apply, leaf(5))
    theirs, calls = calls, 0
    assert covector.gradcheck(Solved.apply, leaf(5))
    # The slack of every check; three as a small cotangent gives another gradient; two for each made once.
    assert calls <= theirs + 2 + 3 + 6


@each_speed
@pytest.mark.parametrize("size", [1, 2, 3, 30])
def test_no_fault(size: int, fast: bool) -> None:
    assert covector.gradcheck(faulty(lambda _: 0.0), leaf(size), fast_mode=fast)


def test_second_derivatives() -> None:
    """A backward of the backward that is off at every other run."""
    off = faulty(lambda n: 1e-3 * (n % 2))
    assert torch.autograd.gradgradcheck(lambda x: off(x) * x, leaf(3), raise_exception=False) is False
    assert covector.gradgradcheck(lambda x: off(x) * x, leaf(3), raise_exception=False) is False


def test_where_it_differs() -> None:
    """In a row, the entry is named."""
    report = covector.check(faulty(lambda n: 1e-3 * (n == 7)), leaf(30))
    (found,) = [found for found in report.findings if found.check == "determinism"]
    assert found.summary.startswith(
        "two runs of the backward on the same cotangent differ by 1.0e-03 at d output["
    )


# What nondet_tol bounds


def tall(size: int, noise: float) -> Any:
    """One number, repeated; the backward adds so much noise for each unit of cotangent."""

    class Repeated(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.set_materialize_grads(False)
            return 2 * x.expand(size)

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor | None) -> Tensor | None:
            if cotangent is None:
                return None
            return 2 * cotangent.sum(0, keepdim=True) + noise * torch.rand(1).double() * cotangent.abs().sum()

    return Repeated.apply


# fast, nondet_tol: the verdict on noise of 1e-7 for each unit of cotangent, of a thousand outputs. A row is a
# unit; a cotangent of length one comes to about 27 of them.
BOUNDS = {
    (False, 0.0): False,
    (False, 1e-8): False,
    (False, 1e-6): True,
    (False, 1e-5): True,
    (True, 0.0): False,
    (True, 1e-8): False,
    (True, 1e-7): False,
    (True, 1e-5): True,
}


@pytest.mark.parametrize(("fast", "tolerance", "expected"), [(*key, value) for key, value in BOUNDS.items()])
def test_what_is_bounded(fast: bool, tolerance: float, expected: bool) -> None:
    """An entry of the Jacobian, or in fast mode the gradient of a cotangent of length one."""
    for library in (torch.autograd, covector):
        got = library.gradcheck(
            tall(1000, 1e-7), leaf(1), nondet_tol=tolerance, fast_mode=fast, raise_exception=False
        )
        assert got is expected


# Functions without a derivative


@pytest.mark.parametrize(
    ("slope", "tolerance", "fast", "expected"),
    [
        (1e-2, 0.0, False, False),
        (1e-2, 1.0, False, False),
        (1e-2, 0.0, True, False),
        (1e-2, 1e-3, True, False),
        (1e-2, 1.0, True, True),
        (0.0, 0.0, False, True),
        (0.0, 0.0, True, True),
    ],
)
def test_a_function_without_a_graph(slope: float, tolerance: float, fast: bool, expected: bool) -> None:
    """Has to be constant, in fast mode to `nondet_tol`, as in torch."""
    for library in (torch.autograd, covector):
        got = library.gradcheck(
            lambda x: slope * x.detach(), leaf(3), nondet_tol=tolerance, fast_mode=fast, raise_exception=False
        )
        assert got is expected


# Cotangents that are not contiguous


def watching(seen: list[tuple[int, ...]], *, batch: bool) -> Any:
    """The square, with a backward that notes how its cotangents lie in memory."""

    class Square(Function):
        generate_vmap_rule = batch

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> Tensor:
            seen.append(tuple(cotangent.stride()))
            (x,) = ctx.saved_tensors
            return (2 * x.reshape(-1) * cotangent.view(-1)).reshape(x.shape)

    return Square.apply


@each_speed
@pytest.mark.parametrize("batch", [False, True], ids=["one by one", "batched"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (3, 1), (2, 3, 2)], ids=str)
def test_scattered_cotangents(shape: tuple[int, ...], batch: bool, fast: bool) -> None:
    """Every run of the backward sees them as torch lays them out, batches too; a view(-1) of them works."""
    x = torch.linspace(0.5, 1.5, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
    layouts = []
    for library in (torch.autograd, covector):
        seen: list[tuple[int, ...]] = []
        function = watching(seen, batch=batch)
        assert library.gradgradcheck(
            function, x.clone().requires_grad_(), gen_non_contig_grad_outputs=True, fast_mode=fast
        )
        layouts.append(set(seen))
    assert layouts[0] == layouts[1]


def peak_of_a_check(factor: float, size: int) -> int:
    """What Python and NumPy take at most for a check of a custom sine, whose backward is off by a factor."""

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            return factor * grad * ctx.saved_tensors[0].cos()

    x = torch.linspace(-1, 1, size, dtype=torch.float64, requires_grad=True)
    tracemalloc.start()
    try:
        assert covector.gradcheck(Sine.apply, x, raise_exception=False) is (factor == 1.0)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_custom_backward_of_many_numbers_takes_no_memory_for_a_matrix(factor):
    """Neither a right nor a wrong one: a square matrix of them would take 72 MB."""
    assert peak_of_a_check(factor, 3000) < 20 * 2**20


def test_relations_of_many_cotangents_are_found_piece_by_piece():
    """Twenty vectors of an output, as a matrix with its factors, would take a hundred times the input."""
    assert peak_of_a_check(1.0, 500_000) < 25 * 8 * 500_000


@pytest.mark.parametrize("size", [3, 600])
def test_in_fast_mode_a_backward_that_fails_is_repeated(size):
    """What a direction found may be a matter of the run, and then the report says so."""
    report = covector.check(faulty(lambda n: 0.5 * (n % 2)), leaf(size), fast_mode=True)
    assert "determinism" in [finding.check for finding in report.findings if finding.outcome == "failed"]
