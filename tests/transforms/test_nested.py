"""Derivatives inside batches and inside one another, against plain autograd, row by row.

The functions are those whose formulas in torch are right by themselves and not where they are nested, and
one of each family beside them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, vmap
from torch.nn import functional

import covector
from covector.errors import ForwardModeWarning

# Said of what is gone around; the result is what counts here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::covector.errors.ForwardModeWarning"),
    pytest.mark.filterwarnings("ignore::covector.errors.BatchingWarning"),
]

Function = Callable[[Tensor], Tensor]
Transform = Callable[[Function], Function]

POINTS = torch.tensor([[0.7, -0.4, 1.3], [0.8, 0.2, -1.1], [-0.5, 0.9, 0.3]], dtype=torch.float64)
ALONG = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
RIGHT_SIDE = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
PLACES = torch.tensor([2, 0, 2])


def matrix(x: Tensor) -> Tensor:
    """A matrix with distinct eigenvalues that depends on a vector."""
    return torch.outer(x, x.sin()) + torch.diag(x**2 + torch.arange(3.0, 6.0, dtype=x.dtype))


def in_place(x: Tensor) -> Tensor:
    """A function that writes to a copy."""
    y = x.clone()
    y[1:] *= x[:-1]
    return y.add_(x.sin())


FUNCTIONS: dict[str, Function] = {
    "solve": lambda x: torch.linalg.solve(matrix(x), RIGHT_SIDE),
    "solve, right side": lambda x: torch.linalg.solve(torch.diag(RIGHT_SIDE), x**2),
    "determinant": lambda x: matrix(x).det() * x,
    "log determinant": lambda x: torch.linalg.slogdet(matrix(x))[1] * x,
    "logdet": lambda x: torch.logdet(matrix(x)) * x,
    "inverse": lambda x: torch.linalg.inv(matrix(x))[0],
    "factors": lambda x: torch.linalg.lu_solve(*torch.linalg.lu_factor(matrix(x)), x[:, None])[:, 0],
    "eigenvalues": lambda x: torch.linalg.eigvals(matrix(x)).real.prod() * x,
    "symmetric": lambda x: torch.linalg.eigvalsh(matrix(x) + matrix(x).T),
    "norm of a layer": lambda x: functional.layer_norm(x**2, (3,), RIGHT_SIDE, x) * x,
    "norm of a module": torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Tanh()
    ).double(),
    "cumulative sum": lambda x: (x**2).cumsum(0).sin(),
    "cumulative product": lambda x: x.cumprod(0) * x,
    "scatter": lambda x: torch.zeros_like(x).scatter_add(0, PLACES, x**2) * x[PLACES],
    "sorted": lambda x: x.sort()[0] ** 3,
    "spectrum": lambda x: torch.fft.rfft(x).abs() ** 2,
    "in place": in_place,
}


def rows(function: Function, x: Tensor) -> Tensor:
    """The Jacobian by one pullback after another; it can be differentiated again."""
    x = x if x.requires_grad else x.clone().requires_grad_()
    y = function(x.clone())
    pulled = [torch.autograd.grad(entry, x, create_graph=True)[0] for entry in y.reshape(-1)]
    return torch.stack(pulled).reshape(*y.shape, *x.shape)


def pushed(function: Function) -> Function:
    """J u."""
    return lambda x: covector.jvp(function, (x,), (ALONG,))[1]


def twice(function: Function, x: Tensor) -> Tensor:
    """The derivative of the Jacobian."""
    return rows(lambda x: rows(function, x), x)


def summed(function: Function) -> Function:
    """A scalar function."""
    return lambda x: (function(x) ** 2).sum()


ONCE: dict[str, Transform] = {
    "jacfwd": covector.jacfwd,
    "jacrev": covector.jacrev,
    "jacobian": covector.jacobian,
    "vmap(jvp)": lambda f: (
        lambda x: vmap(lambda u: covector.jvp(f, (x,), (u,))[1], out_dims=-1)(torch.eye(3).to(x))
    ),
    "linearize": lambda f: lambda x: vmap(covector.linearize(f, x)[1], out_dims=-1)(torch.eye(3).to(x)),
}

TWICE: dict[str, Transform] = {
    "jacfwd(jacfwd)": lambda f: covector.jacfwd(covector.jacfwd(f)),
    "jacrev(jacfwd)": lambda f: covector.jacrev(covector.jacfwd(f)),
    "jacfwd(jacrev)": lambda f: covector.jacfwd(covector.jacrev(f)),
    "hessian": covector.hessian,
}


@pytest.mark.parametrize("transform", ONCE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_derivative_in_a_batch(name: str, transform: str) -> None:
    """Sample by sample it is that of plain autograd, whether gradients are recorded or not."""
    function = FUNCTIONS[name]
    expected = torch.stack([rows(function, x) for x in POINTS]).detach()
    batched = vmap(ONCE[transform](function))
    torch.testing.assert_close(batched(POINTS).detach(), expected)
    with torch.no_grad():
        torch.testing.assert_close(batched(POINTS), expected)


@pytest.mark.parametrize("transform", TWICE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_derivative_of_a_derivative(name: str, transform: str) -> None:
    """At one point and in a batch."""
    function = FUNCTIONS[name]
    expected = torch.stack([twice(function, x) for x in POINTS]).detach()
    second = TWICE[transform](function)
    torch.testing.assert_close(second(POINTS[0]).detach(), expected[0])
    torch.testing.assert_close(vmap(second)(POINTS).detach(), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_gradient_of_a_push(name: str) -> None:
    """Reverse mode over forward mode, by covector and by `.backward()`."""
    function = FUNCTIONS[name]
    (expected,) = rows(lambda x: (rows(function, x) @ ALONG).sum(dim=0, keepdim=True), POINTS[0])
    push = pushed(function)
    torch.testing.assert_close(covector.grad(lambda x: push(x).sum())(POINTS[0]).detach(), expected.detach())
    leaf = POINTS[0].clone().requires_grad_()
    push(leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, expected.detach())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_diagonal_in_a_batch_without_gradients(name: str) -> None:
    """The diagonal of the Hessian, where nothing is recorded."""
    scalar = summed(FUNCTIONS[name])
    expected = torch.stack([rows(lambda x: rows(scalar, x), x).diagonal() for x in POINTS]).detach()
    with torch.no_grad():
        torch.testing.assert_close(vmap(covector.hessian_diagonal(scalar))(POINTS), expected)


def test_what_is_gone_around_is_said() -> None:
    """The warning names the operation."""
    with pytest.warns(ForwardModeWarning, match="no forward-mode rule for linalg_solve that can be nested"):
        vmap(covector.jacfwd(FUNCTIONS["solve"]))(POINTS)


# Whose backward solves with factors, in one way each.
SOLVING = ("solve", "factors")


def test_a_compiled_derivative_in_a_batch() -> None:
    """Inside torch.compile, where no graph can be looked at, the batched backward is right as well."""

    def all_of_them(points: Tensor) -> list[Tensor]:
        return [vmap(covector.jacrev(FUNCTIONS[name]))(points) for name in SOLVING]

    torch._dynamo.reset()
    found = torch.compile(all_of_them, fullgraph=True, backend="aot_eager")(POINTS)
    for name, jacobians in zip(SOLVING, found, strict=True):
        expected = torch.stack([rows(FUNCTIONS[name], x) for x in POINTS])
        torch.testing.assert_close(jacobians.detach(), expected.detach())


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("adjoint", [True, False])
def test_factors_that_are_compiled(left: bool, adjoint: bool) -> None:
    """What stands for `lu_solve` inside torch.compile takes its keywords, and right sides of fewer axes."""
    matrices = torch.stack([matrix(x) for x in POINTS])
    factors, pivots = torch.linalg.lu_factor(matrices)

    def solved(side: Tensor) -> Tensor:
        return torch.linalg.lu_solve(factors, pivots, side, left=left, adjoint=adjoint).sin().sum()

    torch._dynamo.reset()
    gradient = torch.compile(covector.grad(solved), fullgraph=True, backend="eager")(matrices[0])
    torch.testing.assert_close(gradient, covector.grad(solved)(matrices[0]))
