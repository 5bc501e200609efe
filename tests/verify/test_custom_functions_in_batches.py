"""Custom Functions that vmap refuses: columns are differenced in a batch of their forward, if that agrees."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import covector
from covector._engine.batch import batched
from covector._engine.functions import forwards_alone
from watched import Counted


class WithContext(Function):
    """The older way to write a Function, with a factor too much in one number of its backward."""

    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        ctx.power = power
        return x**power

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        right = ctx.power * grad * x ** (ctx.power - 1)
        return right * (1 + 0.1 * (torch.arange(x.numel()) == 3)), None


class WithoutRule(Function):
    """The newer way, without a rule for vmap."""

    @staticmethod
    def forward(x, power):
        return x**power

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.power = inputs[1]

    backward = WithContext.backward


class InNumpy(WithContext):
    """A forward that no batch can run."""

    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        ctx.power = power
        return torch.from_numpy(x.detach().numpy() ** power)


class OnlyFirst(WithContext):
    """A forward that mixes the points of a batch, if it gets one: it reads the shape of what is behind it."""

    @staticmethod
    def forward(ctx, x, power):
        ctx.save_for_backward(x)
        ctx.power = power
        hidden = torch._C._functorch.is_batchedtensor(x)
        return x**power * (1.5 if hidden else 1.0)


POINT = torch.linspace(0.5, 1.5, 20, dtype=torch.float64)


def checked(function: type[Function]) -> tuple[covector.Report, int]:
    counted = Counted(lambda x: function.apply(x, 3))
    report = covector.check(counted, POINT.clone().requires_grad_())
    return report, counted.runs


@pytest.mark.parametrize("function", [WithContext, WithoutRule])
def test_columns_are_differenced_in_batches(function: type[Function]) -> None:
    """Twenty columns take a few calls, and the report counts every point."""
    report, calls = checked(function)
    assert report.worst.mismatches[0].column == 3
    assert report.evaluations > 40 > calls


@pytest.mark.parametrize("function", [InNumpy, OnlyFirst])
def test_a_forward_that_no_batch_can_run_is_evaluated_one_by_one(function: type[Function]) -> None:
    """Because it raises, or because a batch gives other values than a single evaluation."""
    report, calls = checked(function)
    assert report.worst.mismatches[0].column == 3
    assert calls > 40


def test_torch_refuses_again_afterwards() -> None:
    """Also where another thread is inside, and where the function raises."""

    def cubes(stack: Tensor) -> Tensor:
        with torch.no_grad():
            return batched(lambda some: [WithContext.apply(some[0], 3)], [stack], "error")[0]

    stack, asked = torch.stack([POINT, 2 * POINT]), torch._C._are_functorch_transforms_active
    with pytest.raises(RuntimeError, match="setup_context"):
        cubes(stack)
    with forwards_alone():
        assert torch.equal(cubes(stack), stack**3)
        with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="setup_context"):
            pool.submit(cubes, stack).result()
    with pytest.raises(ZeroDivisionError), forwards_alone():
        raise ZeroDivisionError
    assert torch._C._are_functorch_transforms_active is asked
    with pytest.raises(RuntimeError, match="setup_context"):
        cubes(stack)
