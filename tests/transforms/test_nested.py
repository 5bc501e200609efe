"""Derivatives inside batches and inside one another, against plain autograd, row by row.

The functions are those whose formulas in torch are right by themselves and not where they are nested, and
one of each family beside them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, vmap
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import covector
from covector.errors import BatchingWarning, ForwardModeWarning, UnsupportedError

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
    "norm by a weight": lambda x: functional.layer_norm(x**2, (3,), x.sin(), x),
    "norm of a batch by a weight": lambda x: functional.batch_norm(
        (x**2)[:, None], None, None, x[:1].sin(), x[1:2], training=True
    )[:, 0],
    "norm of a module": torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Tanh()
    ).double(),
    "norm of a batch": lambda x: (
        functional.batch_norm((x**2)[:, None], None, None, RIGHT_SIDE[:1], x[:1], training=True)[:, 0] * x
    ),
    "norm of a batch by torch": lambda x: (
        torch.batch_norm((x**2)[:, None], None, None, None, None, True, 0.1, 1e-5, False)[:, 0] * x
    ),
    "norm in evaluation": lambda x: (
        functional.batch_norm((x**2)[None], RIGHT_SIDE, RIGHT_SIDE.exp(), x, x)[0] * x
    ),
    "norm of instances": lambda x: functional.instance_norm(torch.stack([x**2, x])[None]).flatten() * x[0],
    "inverse of a factor": lambda x: torch.cholesky_inverse((matrix(x) @ matrix(x).T).tril())[0] * x,
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


NORMED = ("norm by a weight", "norm of a batch by a weight")


@pytest.mark.parametrize("name", NORMED)
def test_the_derivative_of_a_batch_of_gradients(name: str) -> None:
    """A batch inside of what differentiates it: torch's batched gradient by a weight is a constant there."""
    loss = summed(FUNCTIONS[name])
    expected = torch.stack([twice(loss, x) for x in POINTS]).detach()
    gradients = vmap(covector.grad(loss))
    second = covector.jacrev(gradients)(POINTS)
    torch.testing.assert_close(torch.stack([second[i, :, i] for i in range(len(POINTS))]), expected)
    leaf = POINTS.clone().requires_grad_()
    gradients(leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, expected.sum(1))
    pushed = covector.jvp(gradients, (POINTS,), (torch.ones_like(POINTS),))[1]
    torch.testing.assert_close(pushed, expected.sum(2))


@pytest.mark.parametrize("name", NORMED)
def test_rows_that_are_differentiated_again_are_made_one_by_one(name: str) -> None:
    """With a warning; a Jacobian that nobody differentiates is batched."""
    function = FUNCTIONS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(covector.jacrev(function)(POINTS[0]), rows(function, POINTS[0]).detach())
    leaf = POINTS[0].clone().requires_grad_()
    with pytest.warns(BatchingWarning, match="by the weight of a norm"):
        jacobian = covector.jacrev(function)(leaf)
    second = torch.stack([torch.autograd.grad(y, leaf, retain_graph=True)[0] for y in jacobian.flatten()])
    torch.testing.assert_close(second.reshape(3, 3, 3), twice(function, POINTS[0]).detach())
    _, pull = covector.vjp(function, POINTS[0].clone().requires_grad_())
    with pytest.raises(UnsupportedError, match="by the weight of a norm"):
        vmap(pull)(torch.eye(3, dtype=torch.float64))


def test_running_statistics_are_updated_once() -> None:
    """By a nested forward mode as by the function itself, and with the same numbers."""

    def loss(x: Tensor) -> Tensor:
        mean, variance = torch.zeros(1).to(x), torch.ones(1).to(x)
        y = functional.batch_norm(x[:, None], mean, variance, training=True)
        return (y**3).sum() + (y.detach() * 0).sum() + (mean * variance).sum()

    x = POINTS[0]
    second = covector.jacfwd(covector.jacfwd(loss))(x)
    torch.testing.assert_close(second, covector.hessian(loss)(x))
    with torch.no_grad():
        torch.testing.assert_close(covector.jvp(loss, (x,), (ALONG,))[0], loss(x))


def test_a_rule_that_is_wrong_by_itself_is_not_used() -> None:
    """The forward-mode rule of this inverse multiplies in the wrong order; the pullback is right."""
    factor = torch.linalg.cholesky(matrix(POINTS[0]) @ matrix(POINTS[0]).T)
    with pytest.warns(ForwardModeWarning, match="no forward-mode rule for cholesky_inverse that is right"):
        jacobian = covector.jacfwd(torch.cholesky_inverse)(factor)
    torch.testing.assert_close(jacobian, rows(torch.cholesky_inverse, factor).detach())
    _, pushed = covector.functional.jvp(torch.cholesky_inverse, factor, factor)
    torch.testing.assert_close(pushed, -2 * torch.cholesky_inverse(factor))  # homogeneous of degree -2


def test_a_compiled_function_with_such_a_rule_is_differentiated_as_it_is() -> None:
    """In a batch, the attempt that is refused leaves nothing behind that a later call would use."""

    def inverse(x: Tensor) -> Tensor:
        return torch.cholesky_inverse(torch.diag(x.exp()) + 0.1 * x[0])

    compiled, expected = torch.compile(inverse, backend="eager"), covector.jacrev(inverse)(POINTS[0])
    with pytest.warns(ForwardModeWarning, match="cholesky_inverse"):
        jacobian = covector.jacfwd(compiled)(POINTS[0])
    torch.testing.assert_close(jacobian, expected)
    with pytest.warns(ForwardModeWarning, match="cholesky_inverse"):
        _, pushed = covector.jvp(compiled, (POINTS[0],), (torch.ones_like(POINTS[0]),))
    torch.testing.assert_close(pushed, expected.sum(-1))


def test_a_wrong_rule_is_caught_on_any_branch_and_whoever_calls_it() -> None:
    """A function that first took another branch, an operation by its full name, a recomputed part."""
    factor = torch.linalg.cholesky(matrix(POINTS[0]) @ matrix(POINTS[0]).T)
    inverted = False

    def branching(x: Tensor) -> Tensor:
        return torch.cholesky_inverse(x) if inverted else x.sin()

    def recomputed(x: Tensor) -> Tensor:
        return checkpoint(torch.cholesky_inverse, x, use_reentrant=False).sum()

    along, expected = torch.randn_like(factor), rows(torch.cholesky_inverse, factor).detach()
    covector.jvp(branching, (factor,), (along,))
    inverted = True
    for function in (branching, torch.ops.aten.cholesky_inverse.default):
        _, pushed = covector.jvp(function, (factor,), (along,))
        torch.testing.assert_close(pushed, torch.tensordot(expected, along, 2))
    _, pushed = covector.jvp(covector.grad(recomputed), (factor,), (along,))
    _, plain = covector.hvp(lambda x: torch.cholesky_inverse(x).sum(), (factor,), (along,))
    torch.testing.assert_close(pushed, plain[0])


class InvertedInBackward(torch.autograd.Function):
    """The sum, with a backward whose forward rule is wrong in torch, and is right if it is looked at."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.tril().matmul(x.tril().mT).sum()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * torch.cholesky_inverse(x.sin().tril())

    @staticmethod
    def jvp(ctx, t: Tensor) -> Tensor:
        return t.sum()


def test_a_derivative_is_looked_at_though_its_function_was() -> None:
    """A backward may call what its function does not."""
    x, function = POINTS + torch.eye(3, dtype=torch.float64), InvertedInBackward.apply
    u = torch.ones_like(x)

    def expected(x: Tensor) -> Tensor:
        lower = x.sin().tril()
        return torch.linalg.inv(lower @ lower.mT)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForwardModeWarning)
        covector.jvp(function, (x,), (u,))
        _, got = covector.jvp(covector.grad(function), (x,), (u,))
    torch.testing.assert_close(got, torch.func.jvp(expected, (x,), (u,))[1])


# Whose backward solves with factors, in one way each.
SOLVING = ("solve", "factors")


def test_a_compiled_derivative_in_a_batch() -> None:
    """Inside torch.compile, where no graph can be looked at, the batched backward is right as well."""

    def all_of_them(points: Tensor) -> list[Tensor]:
        return [vmap(covector.jacrev(FUNCTIONS[name]))(points) for name in SOLVING]

    def seconds(x: Tensor) -> list[Tensor]:
        return [covector.hessian(FUNCTIONS[name])(x) for name in NORMED]

    torch._dynamo.reset()
    found = torch.compile(all_of_them, fullgraph=True, backend="aot_eager")(POINTS)
    for name, jacobians in zip(SOLVING, found, strict=True):
        expected = torch.stack([rows(FUNCTIONS[name], x) for x in POINTS])
        torch.testing.assert_close(jacobians.detach(), expected.detach())
    found = torch.compile(seconds, fullgraph=True, backend="aot_eager")(POINTS[0])
    for name, hessian in zip(NORMED, found, strict=True):
        torch.testing.assert_close(hessian, twice(FUNCTIONS[name], POINTS[0]).detach())


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


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyLoss"), reason="newer than this torch")
class TestALossInChunks:
    """Its backward multiplies gradients that the forward computed: never zeros without a word."""

    weight = torch.tensor([[1.0, 2.0, 0.5], [0.3, -1.0, 2.0]], dtype=torch.float64)
    target = torch.tensor([1])

    def loss(self, x: Tensor) -> Tensor:
        from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

        options = LinearCrossEntropyOptions(batch_chunk_size=1)
        return functional.linear_cross_entropy(x[None], self.weight, self.target, options=options)

    def expected(self, x: Tensor) -> Tensor:
        return functional.cross_entropy((self.weight @ x)[None], self.target)

    def test_derivatives_that_it_has(self) -> None:
        """The first by either mode, in a batch by forward mode, and the second."""
        first, second = rows(self.expected, POINTS[0]).detach(), twice(self.expected, POINTS[0]).detach()
        torch.testing.assert_close(covector.grad(self.loss)(POINTS[0]), first)
        torch.testing.assert_close(covector.jacfwd(self.loss)(POINTS[0]), first)
        torch.testing.assert_close(vmap(covector.jacfwd(self.loss))(POINTS)[0], first)
        torch.testing.assert_close(covector.hessian(self.loss)(POINTS[0]), second)

    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_beside_a_path_that_has_a_tangent(self, reduction: str) -> None:
        """A dropped tangent is noticed where another one is there."""
        from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

        def loss(x: Tensor, options: LinearCrossEntropyOptions | None) -> Tensor:
            keywords = {"reduction": reduction, "options": options}
            total = functional.linear_cross_entropy(x[None], self.weight, self.target, **keywords).sum()
            return total + x.sin()

        options = LinearCrossEntropyOptions(batch_chunk_size=1)
        got, expected = (covector.jacfwd(loss)(POINTS[0], each) for each in (options, None))
        torch.testing.assert_close(got, expected)

    def test_derivatives_that_it_does_not_have(self) -> None:
        """The gradient of a batch, and the gradient of the gradient."""
        with pytest.raises(UnsupportedError, match="no gradient by what is in a batch"):
            covector.grad(lambda points: vmap(self.loss)(points).sum())(POINTS)
        with torch.no_grad(), pytest.raises(UnsupportedError, match="no gradient by what is in a batch"):
            covector.jacrev(vmap(self.loss))(POINTS)
        with pytest.raises(UnsupportedError, match="no derivative of its own"):
            covector.jacrev(covector.grad(self.loss))(POINTS[0])
