"""Every case under every transform, and under every pair of them: covector against torch.func.

Where torch.func raises or is wrong, `DEVIATIONS` says so and why, and the truth is taken from `Loop`:
nothing but `torch.autograd.grad`, one row at a time. An entry that is no longer true fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cases import BY_NAME, CASES, Case
from torch import Tensor
from torch.utils import _pytree as registry

import covector
from covector.errors import CovectorWarning

pytestmark = [
    # torch's remarks on its own internals, which its transforms make here as well.
    pytest.mark.filterwarnings("ignore:.*:UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning"),
]

Function = Callable[..., Any]


# Comparing


def is_single(case: Case) -> bool:
    """Whether single precision takes part, so that only seven digits can agree."""
    leaves = registry.tree_leaves((case.primals(), case.function(*case.primals())))
    return any(leaf.dtype == torch.float32 for leaf in leaves)


def assert_close(got: Tensor, expected: Tensor, *, digits: float) -> None:
    """The same shape and dtype, and values that agree to `digits` of the largest one."""
    assert isinstance(got, Tensor)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    largest = float(expected.detach().abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(
        got.detach(), expected.detach(), rtol=digits, atol=digits * max(1.0, largest), equal_nan=False
    )


def assert_same(got: Any, expected: Any, *, digits: float) -> None:
    """The same tree of tensors: structure, shape, dtype, requires_grad and values."""
    got_leaves, got_spec = registry.tree_flatten(got)
    leaves, spec = registry.tree_flatten(expected)
    assert got_spec == spec
    for got_leaf, leaf in zip(got_leaves, leaves, strict=True):
        assert_close(got_leaf, leaf, digits=digits)
        assert got_leaf.requires_grad == leaf.requires_grad


def weights(tensor: Tensor) -> Tensor:
    """Fixed numbers in the shape of a tensor, all different, none of them zero."""
    line = torch.linspace(0.4, 1.3, tensor.numel(), dtype=torch.float64)
    line = line * (1 + 0.5j) if tensor.is_complex() else line
    return line.reshape(tensor.shape).to(tensor.dtype)


def tree_of_weights(tree: Any) -> Any:
    return registry.tree_map(weights, tree)


def as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def to_scalar(outputs: Any) -> Tensor:
    """One number that depends on all outputs, quadratically."""
    parts = [as_real(output) for output in registry.tree_leaves(outputs)]
    return sum((weights(part) * part * (1 + part / 2)).sum() for part in parts)


# Each transform of a case as it stands, with trees in and out


def _vjp(api: Any, case: Case, primals: tuple[Any, ...]) -> Any:
    outputs, pull = api.vjp(case.function, *primals)
    return outputs, pull(tree_of_weights(outputs))


def _linearize(api: Any, case: Case, primals: tuple[Any, ...]) -> Any:
    outputs, push = api.linearize(case.function, *primals)
    return outputs, push(*tree_of_weights(primals))


def _loss(case: Case) -> Function:
    if case.scalar:
        return case.function
    return lambda *primals: to_scalar(case.function(*primals))


def _loss_and_outputs(case: Case) -> Function:
    def loss(*primals: Any) -> tuple[Tensor, Any]:
        outputs = case.function(*primals)
        return to_scalar(outputs), outputs

    return loss


def _outputs_and_extra(case: Case) -> Function:
    def function(*primals: Any) -> tuple[Any, Any]:
        return case.function(*primals), {"extra": [registry.tree_leaves(primals)[0] * 2]}

    return function


def _vjp_aux(api: Any, case: Case, primals: tuple[Any, ...]) -> Any:
    outputs, pull, aux = api.vjp(_outputs_and_extra(case), *primals, has_aux=True)
    return outputs, pull(tree_of_weights(outputs)), aux


TRANSFORMS: dict[str, Callable[[Any, Case, tuple[Any, ...]], Any]] = {
    "grad": lambda api, case, x: api.grad(_loss(case), argnums=case.argnums)(*x),
    "grad aux": lambda api, case, x: api.grad(_loss_and_outputs(case), case.argnums, has_aux=True)(*x),
    "grad_and_value": lambda api, case, x: api.grad_and_value(_loss(case), argnums=case.argnums)(*x),
    "jacrev": lambda api, case, x: api.jacrev(case.function, argnums=case.argnums)(*x),
    "jacrev chunks": lambda api, case, x: api.jacrev(case.function, case.argnums, chunk_size=2)(*x),
    "jacfwd": lambda api, case, x: api.jacfwd(case.function, argnums=case.argnums)(*x),
    "jacfwd aux": lambda api, case, x: api.jacfwd(_outputs_and_extra(case), case.argnums, True)(*x),
    "hessian": lambda api, case, x: api.hessian(case.function, argnums=case.argnums)(*x),
    "vjp": _vjp,
    "vjp aux": _vjp_aux,
    "jvp": lambda api, case, x: api.jvp(case.function, x, tree_of_weights(x)),
    "jvp aux": lambda api, case, x: api.jvp(
        _outputs_and_extra(case), x, tree_of_weights(x), has_aux=True
    ),
    "linearize": _linearize,
    "functionalize": lambda api, case, x: api.functionalize(case.function)(*x),
}

REAL_ONLY = ("jacrev", "jacrev chunks", "jacfwd", "jacfwd aux", "hessian")


# Transforms as steps from a function of a vector to another one, so that they can be chained


@dataclass(frozen=True)
class Flat:
    """A case as a function of one vector, with a scalar value."""

    function: Function
    point: Tensor


def flat(case: Case) -> Flat:
    """The case between flattened inputs and a weighted sum of all outputs."""
    leaves, spec = registry.tree_flatten(case.primals())
    shapes = [as_real(leaf) for leaf in leaves]
    sizes = [shape.numel() for shape in shapes]

    def function(x: Tensor) -> Tensor:
        parts = [
            part.reshape(shape.shape).to(shape.dtype)
            for part, shape in zip(x.split(sizes), shapes, strict=True)
        ]
        parts = [
            torch.view_as_complex(part) if leaf.is_complex() else part
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return to_scalar(case.function(*registry.tree_unflatten(parts, spec)))

    return Flat(function, torch.cat([shape.reshape(-1).double() for shape in shapes]))


def contracted(function: Function) -> Function:
    def scalar(x: Tensor) -> Tensor:
        value = function(x)
        return (weights(value) * value).sum()

    return scalar


def _pulled(api: Any, function: Function) -> Function:
    def pulled(x: Tensor) -> Tensor:
        value, pull = api.vjp(function, x)
        return pull(weights(value))[0]

    return pulled


Step = Callable[[Any, Function], Function]

STEPS: dict[str, Step] = {
    "grad": lambda api, f: api.grad(contracted(f)),
    "jacrev": lambda api, f: api.jacrev(f),
    "jacfwd": lambda api, f: api.jacfwd(f),
    "hessian": lambda api, f: api.hessian(f),
    "jvp": lambda api, f: lambda x: api.jvp(f, (x,), (weights(x),))[1],
    "vjp": _pulled,
    "linearize": lambda api, f: lambda x: api.linearize(f, x)[1](weights(x)),
    "vmap": lambda api, f: lambda x: api.vmap(f)(torch.stack([x, 0.9 * x])),
}

PAIRS = [pair for pair in product(STEPS, STEPS) if pair != ("vmap", "vmap")]


def _api(module: Any, **replaced: Any) -> SimpleNamespace:
    verbs = "grad grad_and_value jacrev jacfwd hessian vjp jvp linearize functionalize".split()
    found = {verb: getattr(module, verb) for verb in verbs}
    return SimpleNamespace(**{**found, "vmap": torch.vmap, **replaced})


OWN = _api(covector)
TORCH = _api(torch.func)

# torch.func.linearize traces the function. It refuses to be composed with itself and with most other
# transforms, and is silently wrong with some (see test_linearize_composes_where_torch_does_not), so
# in a chain it is replaced by what it stands for.
TORCH_IN_CHAINS = _api(
    torch.func, linearize=lambda f, x: (None, lambda u: torch.func.jvp(f, (x,), (u,))[1])
)


class Loop:
    """The truth, slowly: rows from plain autograd, and everything else from rows."""

    @staticmethod
    def jacrev(function: Function) -> Function:
        """One backward per element of the output."""

        def jacobian(x: Tensor) -> Tensor:
            x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
            y = function(x)
            rows = [Loop._row(element, x) for element in y.reshape(-1)]
            return torch.stack(rows).reshape(y.shape + x.shape) if rows else x.new_zeros(y.shape + x.shape)

        return jacobian

    @staticmethod
    def _row(element: Tensor, x: Tensor) -> Tensor:
        if not element.requires_grad:
            return torch.zeros_like(x)
        (row,) = torch.autograd.grad(element, x, create_graph=True, allow_unused=True)
        return torch.zeros_like(x) if row is None else row

    jacfwd = jacrev
    grad = jacrev

    @staticmethod
    def hessian(function: Function) -> Function:
        """Rows of rows."""
        return Loop.jacrev(Loop.jacrev(function))

    @staticmethod
    def linearize(function: Function, x: Tensor) -> tuple[None, Function]:
        """The matrix times u."""
        return None, lambda u: Loop.jacrev(function)(x) @ u

    @staticmethod
    def jvp(function: Function, primals: Sequence[Tensor], tangents: Sequence[Tensor]) -> Any:
        """The matrix times u."""
        return None, Loop.jacrev(function)(primals[0]) @ tangents[0]

    @staticmethod
    def vjp(function: Function, x: Tensor) -> tuple[Tensor, Function]:
        """The transpose times v."""
        jacobian = Loop.jacrev(function)(x)
        value = torch.zeros(jacobian.shape[: jacobian.dim() - 1], dtype=jacobian.dtype)
        return value, lambda v: (torch.tensordot(v, jacobian, dims=v.dim()),)

    @staticmethod
    def vmap(function: Function) -> Function:
        """One call per point."""
        return lambda points: torch.stack([function(point) for point in points])


def chain(steps: Sequence[str], apis: Sequence[Any], case: Case) -> Tensor:
    """The value of steps[0](steps[1](...(case))), each step from its own api."""
    made = flat(case)
    function = made.function
    for step, api in zip(reversed(steps), reversed(apis), strict=True):
        function = STEPS[step](api, function)
    return function(made.point)


# Where torch.func does not give the right answer


@dataclass(frozen=True)
class Deviation:
    """Compositions of which torch.func makes something else than the right answer, and why."""

    cases: tuple[str, ...]
    when: Callable[[str, str], bool]
    torch: str  # "raises", "wrong", or "right" (and covector is not)
    own: str  # "right", or, where the fault is in torch below both, "raises" or "wrong"
    reason: str


DEVIATIONS: tuple[Deviation, ...] = ()


def deviation(case: Case, outer: str, inner: str) -> Deviation | None:
    """What is known about torch.func on this composition, if it is anything special."""
    found = [d for d in DEVIATIONS if case.name in d.cases and d.when(outer, inner)]
    assert len(found) <= 1, f"{case} {outer}/{inner} is listed twice: {found}"
    return found[0] if found else None
