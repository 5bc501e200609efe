"""What can still pass, and who can still be accused: the list at the end of docs/how-a-check-decides.md."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor

import covector
from covector.errors import PrecisionWarning
from covector.verify.analytic import ReverseMap
from covector.verify.arguments import arguments_of, caller_of
from covector.verify.finding import Outcome
from covector.verify.problem import Problem
from holes.table import at, drawn, leaves, ruled, too_much

both_modes = pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])


def passes(function, inputs, **keywords) -> bool:
    """What `gradcheck` says."""
    return covector.gradcheck(function, inputs, raise_exception=False, **keywords)


# What can pass


def hidden_from(cotangents: Tensor) -> Tensor:
    """A vector that is orthogonal to all of these, as long as one."""
    return torch.linalg.svd(cotangents)[2][-1]


def test_errors_that_cancel_along_every_cotangent_pass_for_that_seed_alone() -> None:
    """They have to be made for the cotangents of a seed; another seed shows them."""
    weight, (x,) = drawn(8, 3, seed=1), leaves((3,))()
    caller = caller_of("gradcheck", torch.sin)
    problem = Problem(caller_of("gradcheck", weight.matmul), arguments_of(caller, x))
    error = torch.zeros(8, 3, dtype=torch.float64)
    error[:, 1] = hidden_from(torch.from_numpy(ReverseMap(problem, 0).cotangents))
    wrong = ruled(lambda x: weight @ x, lambda g, x: g @ (weight + error))
    assert passes(wrong, x, seed=0)
    assert not passes(wrong, x, seed=1)


@both_modes
def test_an_error_within_the_tolerance_passes(fast: bool) -> None:
    x = leaves((5,))()
    assert passes(lambda x: x.sin() + 5e-6 * (x - x.detach()), x, fast_mode=fast)
    assert not passes(lambda x: x.sin() + 5e-3 * (x - x.detach()), x, fast_mode=fast)


@both_modes
def test_a_cotangent_that_nobody_sent_may_be_treated_wrongly(fast: bool) -> None:
    """Larger than any that is sent; one thousand is large enough to be seen."""
    x = leaves((5,))()
    assert passes(ruled(torch.sin, lambda g, x: g.clamp(-1e6, 1e6) * x.cos()), x, fast_mode=fast)
    assert not passes(ruled(torch.sin, lambda g, x: g.clamp(-1e2, 1e2) * x.cos()), x, fast_mode=fast)


@both_modes
def test_a_backward_that_asks_whether_its_cotangent_requires_grad_passes(fast: bool) -> None:
    """Under create_graph one is sent that does not: NumPy would refuse it, and take another pullback."""
    pull = lambda g, x: g * x.cos() * (2.0 if g.requires_grad else 1.0)
    assert passes(ruled(torch.sin, pull), leaves((5,))(), fast_mode=fast)


@both_modes
def test_a_backward_that_refuses_a_transposed_cotangent_passes(fast: bool) -> None:
    """It raises where it cannot be used; what takes such a cotangent and gives wrong numbers fails."""
    pull = lambda g, x: (g.contiguous() if 0 in g.stride() else g).view(-1).reshape(x.shape) * x.cos()
    assert passes(ruled(torch.sin, pull), leaves((3, 4))(), fast_mode=fast)


@both_modes
def test_a_backward_that_is_wrong_at_one_run_alone_may_pass(fast: bool) -> None:
    """Here at a run that comes after the check."""
    runs = []

    def pull(g: Tensor, x: Tensor) -> Tensor:
        runs.append(g)
        return g * x.cos() * (2.0 if len(runs) == 1000 else 1.0)

    assert passes(ruled(torch.sin, pull), leaves((5,))(), fast_mode=fast)


def ripple(x: Tensor) -> Tensor:
    """A wave of period 2^-40, of which every step is a multiple; its slope at 0.5 is one."""
    return (2 * math.pi * 2.0**40 * x).sin() / (2 * math.pi * 2.0**40)


@both_modes
def test_what_looks_smooth_at_every_length_is_not_seen(fast: bool) -> None:
    """So the derivative of the line passes, and that of the line with its ripple is accused."""
    x = at(0.5)()
    assert passes(lambda x: x + ripple(x.detach()), x, fast_mode=fast)
    assert not passes(lambda x: x + ripple(x), x, fast_mode=fast)


@both_modes
def test_in_low_precision_what_rounding_could_do_passes(fast: bool) -> None:
    """Of a sine in bfloat16, a hundredth; a quarter is seen."""

    def wrong(factor: float):
        return lambda x: too_much(x.sin(), factor if x.dtype is torch.bfloat16 else 1.0)

    x = leaves((6,), dtype=torch.bfloat16)()
    assert passes(wrong(1.01), x, fast_mode=fast)
    assert not passes(wrong(1.25), x, fast_mode=fast)


@both_modes
def test_a_function_that_knows_the_very_tensor_of_the_caller(fast: bool) -> None:
    """It is given one that is like it in everything but its identity."""
    (x,) = leaves((5,))()
    known = {id(x)}
    assert passes(lambda x: too_much(x.sin(), 2.0 if id(x) in known else 1.0), x, fast_mode=fast)


# What can be accused, or stays undecided


def test_a_kink_at_the_point_is_no_derivative() -> None:
    """As in torch, it fails; `kinks="pass"` lets it pass."""
    x = at(0.0, 1.0)()
    assert not passes(torch.relu, x)
    assert passes(torch.relu, x, kinks="pass")


def test_a_function_that_moves_in_steps_may_be_accused() -> None:
    """Here by steps of 1e-6, as long as those of the check; with longer ones it passes."""
    stepped = ruled(lambda x: (0.2 * x.sin() * 1e6).round() / 1e6, lambda g, x: 0.2 * g * x.cos())
    (x,) = leaves((4,))()
    assert not passes(stepped, x)
    assert passes(stepped, x, eps=1e-2, atol=1e-3)


UNDECIDED = {
    "an output too large for the tolerance": (lambda x: x.sin() + 1e14, leaves((3,))),
    "a function that is defined at the point alone": (
        lambda x: x.square() if float(x.detach().sum()) == 6.0 else x.nowhere,
        at(1.0, 2.0, 3.0),
    ),
}


@both_modes
@pytest.mark.parametrize("name", UNDECIDED)
def test_what_no_difference_can_tell_is_undecided(name: str, fast: bool) -> None:
    function, inputs = UNDECIDED[name]
    report = covector.check(function, inputs(), fast_mode=fast)
    assert report.outcome is Outcome.INCONCLUSIVE, str(report)


def only_bfloat16(x: Tensor) -> Tensor:
    if x.dtype != torch.bfloat16:
        raise TypeError("expected bfloat16")
    return x.sin()


@both_modes
def test_bfloat16_that_takes_nothing_else_is_undecided(fast: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        report = covector.check(only_bfloat16, leaves((4,), dtype=torch.bfloat16)(), fast_mode=fast)
    assert report.outcome is Outcome.INCONCLUSIVE, str(report)


@both_modes
def test_a_backward_that_refuses_an_expanded_cotangent_is_rejected(fast: bool) -> None:
    """Even if the program never sends one."""

    def pull(g: Tensor, x: Tensor) -> Tensor:
        if not g.is_contiguous():
            raise ValueError("expected a contiguous gradient")
        return g * x.cos()

    report = covector.check(ruled(torch.sin, pull), leaves((5,))(), fast_mode=fast)
    assert report.outcome is Outcome.FAILED
    assert "expanded" in report.worst.summary
