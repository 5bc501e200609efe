"""Forward mode through operations with a constant operand: the rules of ours give what torch's give."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import linear
from torch.utils._pytree import tree_leaves

import covector
from forked import printed

X = torch.linspace(-1, 2, 6, dtype=torch.float64).reshape(2, 3)
U = torch.linspace(3, 1, 6, dtype=torch.float64).reshape(2, 3)
ROW = torch.tensor([2.0, -0.5, 3.0], dtype=torch.float64)
TALL = torch.arange(1.0, 25.0, dtype=torch.float64).reshape(4, 2, 3)
SINGLE = ROW.to(torch.float32)
WEIGHT = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
BIAS = torch.arange(4.0, dtype=torch.float64)

CONSTANTS = {
    "int": 3,
    "float": 0.1,
    "complex": 2 + 1j,
    "scalar tensor": torch.tensor(1.5),
    "row": ROW,
    "taller": TALL,
    "single precision": SINGLE,
    "integers": torch.tensor([1, 2, 3]),
    "complex tensor": torch.complex(ROW, ROW + 1),
    "infinite": torch.tensor([float("inf"), 1.0, 2.0], dtype=torch.float64),
    "not a number": torch.tensor([float("nan"), 1.0, 2.0], dtype=torch.float64),
}

OPERATIONS = {
    "x + c": lambda x, c: x + c,
    "c + x": lambda x, c: c + x,
    "x - c": lambda x, c: x - c,
    "c - x": lambda x, c: c - x,
    "x * c": lambda x, c: x * c,
    "c * x": lambda x, c: c * x,
    "x / c": lambda x, c: x / c,
    "c / x": lambda x, c: c / (x + 5),
    "torch.add": lambda x, c: torch.add(x, c),
    "torch.mul": lambda x, c: torch.mul(x, c),
    "torch.div": lambda x, c: torch.div(x, c),
    "torch.sub": lambda x, c: torch.sub(x, c),
    "torch.subtract": lambda x, c: torch.subtract(x, c),
    "torch.multiply": lambda x, c: torch.multiply(x, c),
    "torch.divide": lambda x, c: torch.divide(x, c),
    "torch.true_divide": lambda x, c: torch.true_divide(c, x + 5),
    "twice": lambda x, c: (x * c) * (x + c),
    "chain": lambda x, c: ((x + c) * c - c) / 2,
}


def torch_jvp(function, x, u):
    return torch.func.jvp(function, (x,), (u,))


def assert_same(got, expected):
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(torch.nan_to_num(ours), torch.nan_to_num(theirs))
        assert torch.equal(ours.isnan(), theirs.isnan())


@pytest.mark.parametrize("constant", CONSTANTS.values(), ids=CONSTANTS)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_every_operation_with_every_kind_of_constant(operation, constant):
    """Value and derivative are bit for bit those of torch.func, of the same dtype."""

    def function(x):
        return operation(x, constant)

    assert_same(covector.jvp(function, (X,), (U,)), torch_jvp(function, X, U))
    if not function(X).is_complex():
        torch.testing.assert_close(
            covector.jacfwd(function)(X), torch.func.jacfwd(function)(X), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("operation", [torch.dot, torch.vdot, torch.inner])
@pytest.mark.parametrize("constant", [ROW, torch.complex(ROW, ROW + 1)], ids=["real", "complex"])
def test_products_of_vectors(operation, constant):
    """With the constant on either side."""
    x, u = X[0].to(constant.dtype), U[0].to(constant.dtype)
    for function in (lambda x: operation(x, constant), lambda x: operation(constant, x)):
        assert_same(covector.jvp(function, (x,), (u,)), torch_jvp(function, x, u))


def _without_grad(x):
    with torch.no_grad():
        y = x * 2 + 1
    return y * x


FUNCTIONS = {
    "a factor between the operands": lambda x: torch.add(ROW, 2, x) + torch.sub(ROW, 3, x),
    "keywords": lambda x: torch.add(x, ROW, alpha=3) + torch.div(x, 2, rounding_mode=None),
    "zero-dimensional": lambda x: x.sum() * 2 - torch.tensor(1),
    "zero-dimensional times more": lambda x: ROW * x.sum() + ROW,
    "empty": lambda x: x[:0] * 2 + 1,
    "size one": lambda x: x[:1, :1] * ROW,
    "linear": lambda x: linear(x, WEIGHT, BIAS),
    "linear without bias": lambda x: linear(x, WEIGHT),
    "linear in the weight": lambda x: linear(ROW, x, BIAS[:2]),
    "linear in the bias": lambda x: linear(ROW, WEIGHT[:3], x.sum(0)),
    "constants from x": lambda x: x * torch.ones_like(x) + x.detach(),
    "no tangent at all": lambda x: (ROW * 2 + SINGLE) * x,
    "strides": lambda x: (x.T * 2 + 1).T - x.flip(0) / 3,
    "a view of the result": lambda x: (x * 2)[0] * (x + 1)[:, 0].sum(),
    "in place": lambda x: (x * 2).add_(1).mul_(x),
    "in place, on a sum": lambda x: (x + 1).mul_(3) + x,
    "in place, a part": lambda x: torch.where(x > 0, (x * ROW).fill_diagonal_(4), x - 1),
    "detached in place": lambda x: (x * 2).detach_() * x,
    "without grad": _without_grad,
    "batch inside": lambda x: torch.vmap(lambda row: row * 2 + ROW)(x),
    "gradient inside": lambda x: covector.grad(lambda y: (y * y * 2 + y * ROW).sum())(x),
    "torch's gradient inside": lambda x: torch.func.grad(lambda y: (y * y * 2 + y * ROW).sum())(x),
    "jvp inside": lambda x: covector.jvp(lambda y: (y * 3 + x) * y, (x * 2,), (U * 2,))[1],
    "jacobian inside": lambda x: covector.jacfwd(lambda y: y * 2 * y + x)(x * 3),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_what_a_function_does_with_the_results(function):
    """Views, operations in place, transforms inside: as with torch.func."""
    assert_same(covector.jvp(function, (X,), (U,)), torch_jvp(function, X, U))
    torch.testing.assert_close(covector.jacfwd(function)(X), torch.func.jacfwd(function)(X))


@pytest.mark.parametrize("size", [2**8, 2**8 + 1, 2**14, 2**14 + 1])
def test_large_tensors_too(size):
    """From some size on torch's own rules are used."""
    x, u = torch.linspace(0, 1, size), torch.linspace(1, 2, size)

    def function(x):
        return (x * 2 + 1) / 3

    assert_same(covector.jvp(function, (x,), (u,)), torch_jvp(function, x, u))
    if size < 2**10:
        assert torch.equal(covector.jacfwd(function)(x), torch.func.jacfwd(function)(x))


def test_a_captured_tensor_that_requires_grad_stays_connected():
    """d/dw of d/dx (w x 2 + w) is 2 u."""
    w = ROW.clone().requires_grad_()
    _, image = covector.jvp(lambda x: w * x * 2 + w, (X,), (U,))
    (gradient,) = torch.autograd.grad(image.sum(), w)
    assert torch.equal(gradient, 2 * U.sum(0))


def test_the_tangents_of_the_caller_are_left_alone():
    """A sum has the tangent of its operand, which an operation in place must not write to."""
    direction = U.clone()
    covector.jvp(lambda x: (x + 1).mul_(5), (X,), (direction,))
    assert torch.equal(direction, U)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays_switched_on(fails):
    """After the call, and after an error in it, no mode is left behind."""

    def function(x: Tensor) -> Tensor:
        if fails:
            raise KeyError("of the user")
        return x * 2

    before = torch.overrides._get_current_function_mode_stack()
    if fails:
        with pytest.raises(KeyError, match="of the user"):
            covector.jvp(function, (X,), (U,))
    else:
        covector.jvp(function, (X,), (U,))
    assert torch.overrides._get_current_function_mode_stack() == before


def test_the_mode_of_a_caller_sees_every_operation():
    """A mode that was there before is asked too."""
    seen = []

    class Listener(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    with Listener():
        covector.jvp(lambda x: x.sin() * 2, (X,), (U,))
    assert "sin" in seen
    assert "mul" in seen


def test_no_symbolic_algebra_is_loaded():
    """The rules of torch for a constant operand import sympy, on first use."""
    program = (
        "import sys, torch, covector; x = torch.ones(3); "
        "covector.jvp(lambda x: (x * 2 + 1) / 3 - x, (x,), (x,)); print('sympy' in sys.modules)"
    )
    assert printed(program) == "False\n"


OTHER = torch.tensor([[0.5, -1.0, 3.0], [2.0, 0.0, 1.0]], dtype=torch.float64)
SQUARE = torch.eye(3, dtype=torch.float64) + 0.1 * WEIGHT[:3]
INFINITE = torch.tensor([float("inf"), float("nan"), 0.0], dtype=torch.float64)
FACTORS = [torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.atan2, torch.arctan2, torch.hypot]
FACTORS += [torch.logaddexp, torch.logaddexp2, torch.xlogy, torch.pow, torch.dist, torch.linalg.cross]
FACTORS += [functional.cosine_similarity]

BY_ZEROS = {
    **{f"{f.__name__}, left": lambda x, c, f=f: f(x, c) for f in FACTORS},
    **{f"{f.__name__}, right": lambda x, c, f=f: f(c, x) for f in FACTORS},
    "operator pow": lambda x, c: x**c + c**x,
    "c / x": lambda x, c: (2 / x) * (c / x) + x.__rdiv__(c) + c.__rdiv__(x),
    "weights without a tangent": lambda x, c: functional.binary_cross_entropy_with_logits(x, c, weight=c),
    "vectors": lambda x, c: x[0] @ c[0] + c[1] @ x[1] + torch.matmul(c[0], x[0]),
    "matrices": lambda x, c: (x @ c.mT) @ (c @ x.mT) @ x[:, 0],
    "addcmul": lambda x, c: torch.addcmul(c, x, c) + torch.addcmul(x, c, c, value=2) + x.addcmul(c, x),
    "addcdiv": lambda x, c: torch.addcdiv(c, x, c + 4) + torch.addcdiv(x, c, x + 7),
    "addmm": lambda x, c: torch.addmm(c[:, :2], x, c.mT) + torch.addmm(c[:, :2], c, x.mT, beta=2),
    "addmv": lambda x, c: torch.addmv(c[:, 0], x, c[0]) + torch.addmv(x[:, 0], c, c[0]),
    "addr": lambda x, c: torch.addr(c, x[:, 0], c[0]) + torch.addr(c, c[:, 0], x[0]),
    "addbmm": lambda x, c: torch.addbmm(c[:, :2], x[None], c.mT[None]),
    "baddbmm": lambda x, c: torch.baddbmm(c[None, :, :2], x[None], c.mT[None]),
    "solve, matrix": lambda x, c: torch.linalg.solve(SQUARE + x.mT @ c, ROW),
    "solve, right-hand side": lambda x, c: torch.linalg.solve(SQUARE, x.mT),
    "prelu": lambda x, c: functional.prelu(x, c[0, :1]) + functional.prelu(x, c[1]),
    "layer_norm": lambda x, c: (
        functional.layer_norm(x, (3,), ROW, c[0]) * functional.layer_norm(c, (3,), x[0])
    ),
    "group_norm": lambda x, c: functional.group_norm(x, 3, weight=ROW, bias=c[0]),
    "rms_norm": lambda x, c: functional.rms_norm(x, (3,), weight=c[0]),
    "in place": lambda x, c: (x * x).add_(c).sub_(c[0]).mul_(c).div_(ROW).add_(1).mul_(x).add_(c, alpha=2),
    "in place, to a constant": lambda x, c: torch.ones_like(c).mul_(x).sub_(x[0]),
    "in place, a part": lambda x, c: torch.stack(
        [x.clone()[0].mul_(c[0]), torch.zeros(3).double().add_(x[1])]
    ),
}


@pytest.mark.parametrize("constant", [OTHER, OTHER * INFINITE], ids=["finite", "infinite"])
@pytest.mark.parametrize("operation", BY_ZEROS.values(), ids=BY_ZEROS)
def test_operations_that_torch_gives_zeros(operation, constant):
    """Bit for bit what torch.func gives, also where zero times infinity would not be zero."""

    def function(x):
        return operation(x, constant)

    assert_same(covector.jvp(function, (X,), (U,)), torch_jvp(function, X, U))
    torch.testing.assert_close(
        covector.functional.jvp(function, X, U), torch_jvp(function, X, U), equal_nan=True
    )
    torch.testing.assert_close(
        covector.jacfwd(function)(X), torch.func.jacfwd(function)(X), rtol=0, atol=0, equal_nan=True
    )


with torch.inference_mode():
    MADE_IN_INFERENCE_MODE = OTHER.clone()

KINDS = {
    "expanded": ROW[:1].expand(2, 3),
    "a number, expanded": torch.tensor(2.0).expand(4, 2, 3),
    "every second": TALL[::2, 0],
    "transposed": torch.stack([ROW, ROW], 1).T,
    "negative": torch.complex(OTHER, OTHER).conj().imag,
    "single precision": SINGLE,
    "a parameter": torch.nn.Parameter(OTHER.clone()),
    "of inference mode": MADE_IN_INFERENCE_MODE,
    "integers": torch.tensor([1, 2, 3]),
}


@pytest.mark.parametrize("constant", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("operation", [torch.atan2, torch.pow, torch.maximum, torch.addcmul])
def test_constants_of_which_torch_may_make_no_dual(operation, constant):
    """What the constant is in memory makes no difference."""

    def function(x):
        return operation(x, x, constant) if operation is torch.addcmul else operation(x, constant)

    with torch.no_grad():
        assert_same(covector.jvp(function, (X,), (U,)), torch_jvp(function, X, U))
        assert_same([covector.jacfwd(function)(X)], [torch.func.jacfwd(function)(X)])


def test_a_write_that_torch_refuses_is_refused():
    """What does not fit the tensor that is written to is left to torch."""
    for write in (
        lambda x: torch.ones(3).double().add_(x),
        lambda x: torch.ones(2, 3, dtype=torch.int).mul_(x),
    ):
        with pytest.raises(RuntimeError):
            covector.jvp(write, (X,), (U,))


def test_where_values_are_not_to_be_looked_at():
    """Traced by `compile`, and on the meta device; arguments may be given by name."""

    def function(x):
        return torch.atan2(x, OTHER) @ torch.matmul(input=x[0], other=OTHER[0]).expand(3)

    for derivative in (covector.jacfwd(function), lambda x: covector.jvp(function, (x,), (U,))):
        assert_same(
            tree_leaves(covector.compile(derivative, backend="replay")(X)), tree_leaves(derivative(X))
        )
    abstract = X.to("meta")
    value, image = covector.jvp(lambda x: torch.atan2(x, torch.ones_like(x)), (abstract,), (abstract,))
    assert value.is_meta
    assert image.shape == X.shape
