"""How often the caller's function runs is part of the contract."""

import pytest
import torch

import covector
from watched import Counted

x = torch.linspace(-1, 1, 6, dtype=torch.float64)


COUNTS = [
    ("grad", lambda f: covector.grad(f)(x), 1),
    ("grad_and_value", lambda f: covector.grad_and_value(f)(x), 1),
    ("vjp", lambda f: [covector.vjp(f, x)[1](torch.ones((), dtype=x.dtype)) for _ in range(1)], 1),
    ("jvp", lambda f: covector.jvp(f, (x,), (x,)), 1),
    ("jacrev", lambda f: covector.jacrev(f)(x), 1),
    ("jacrev in chunks", lambda f: covector.jacrev(f, chunk_size=2)(x), 1),
    ("jacfwd", lambda f: covector.jacfwd(f)(x), 1),
    ("jacfwd in chunks", lambda f: covector.jacfwd(f, chunk_size=2)(x), 3),
    ("jacfwd in a loop", lambda f: covector.jacfwd(f, chunk_size=1)(x), 6),
    ("hessian", lambda f: covector.hessian(f)(x), 1),
    ("linearize", lambda f: covector.linearize(f, x)[1](x), 1),
    ("functionalize", lambda f: covector.functionalize(f)(x), 1),
]


@pytest.mark.parametrize(("name", "act", "runs"), COUNTS, ids=[row[0] for row in COUNTS])
def test_runs_of_a_scalar_function(name, act, runs):
    """The number of runs for a function of six numbers with a scalar value."""
    counted = Counted(lambda x: (x.sin() * x).sum())
    act(counted)
    assert counted.runs == runs


def test_runs_of_a_vector_function():
    """The Hessian of many outputs looks at their number first, and then goes forward over reverse."""
    counted = Counted(lambda x: x.sin() * x)
    covector.hessian(counted)(x)
    assert counted.runs == 2


def test_vjp_fn_does_not_run_the_function_again():
    counted = Counted(lambda x: x.sin())
    _, vjp_fn = covector.vjp(counted, x)
    first = vjp_fn(x)
    torch.testing.assert_close(vjp_fn(x), first)
    assert counted.runs == 1


def test_a_tall_function_is_not_run_again_to_count_its_outputs():
    """The first Jacobian looks at the number of outputs; the next one expects as many, and looks after."""
    counted = Counted(lambda x: x.repeat(100).sin())
    first, second = (covector.jacobian(counted) for _ in range(2))
    expected = first(x)
    assert counted.runs == 2
    assert torch.equal(second(x), expected)
    assert counted.runs == 3
    assert second.plan == first.plan


def test_a_function_that_is_no_longer_tall():
    """What forward mode was expected for and is not chosen for is done by reverse mode, as at first."""
    length = 100

    def changing(x):
        with torch.no_grad():  # which forward mode does not see
            offset = x * 2
        return (x.sin() + offset).repeat(length)

    assert covector.jacobian(changing)(x).shape == (600, 6)
    length = 1
    short = covector.jacobian(changing)
    torch.testing.assert_close(short(x), torch.diag(x.cos()))
    assert short.plan.mode == "reverse"
