"""Every case under every transform, and under every pair of them: covector against torch.func.

Where torch.func raises or is wrong, `DEVIATIONS` says so and why, and the truth is taken from `Loop`:
nothing but `torch.autograd.grad`, one row at a time. An entry that is no longer true fails.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as registry

import covector
from cases import BY_NAME, CASES, Case, norm_by_hand
from covector.errors import CovectorWarning
from covering import covered, paired

pytestmark = [
    # torch's remarks on its own internals, which its transforms make here as well.
    pytest.mark.filterwarnings("ignore:.*:UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*by the weight of a norm:covector.errors.BatchingWarning"),
    pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning"),
]

Function = Callable[..., Any]


# Comparing


@cache
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
    "jvp aux": lambda api, case, x: api.jvp(_outputs_and_extra(case), x, tree_of_weights(x), has_aux=True),
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
    verbs = TRANSFORMS.keys() & set(dir(torch.func))
    found = {verb: getattr(module, verb) for verb in verbs}
    return SimpleNamespace(**{**found, "vmap": torch.vmap, **replaced})


OWN = _api(covector)
TORCH = _api(torch.func)

# torch.func.linearize traces the function. It refuses to be composed with itself and with most other
# transforms, and is silently wrong with some (see test_linearize_composes_where_torch_does_not), so
# in a chain it is replaced by what it stands for.
TORCH_IN_CHAINS = _api(torch.func, linearize=lambda f, x: (None, lambda u: torch.func.jvp(f, (x,), (u,))[1]))


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


@cache
def torch_chain(steps: tuple[str, ...], case: Case) -> Any:
    """What torch.func makes of a chain, computed once: its value, or what it raised."""
    plain = tuple("jvp" if step == "linearize" else step for step in steps)
    if plain != steps:
        return torch_chain(plain, case)
    return outcome(lambda: chain(steps, [TORCH_IN_CHAINS] * len(steps), case))


# Where torch.func does not give the right answer

FORWARD = ("jacfwd", "hessian")  # hessian is jacfwd(jacrev) in torch.func
PUSHES = ("jvp", "linearize")
REVERSE = ("grad", "jacrev", "vjp")

RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
NEVER = (1_000_000, 0)

RIGHT = "right"
MAY_RAISE = "may raise, or be right"
INHERITED = "whatever torch's formulas give"


def pairs(text: str) -> Callable[[str, str], bool]:
    """A predicate from a list of compositions, written outer/inner."""
    listed = {tuple(pair.split("/")) for pair in text.split()}
    return lambda outer, inner: (outer, inner) in listed


@dataclass(frozen=True)
class Deviation:
    """Compositions of which torch.func makes something else than the right answer, and why."""

    cases: tuple[str, ...]
    when: Callable[[str, str], bool]
    torch: str  # "raises", "wrong", or "right" where covector warns that it went around an obstacle
    own: str  # RIGHT; or where the fault is in torch below both, MAY_RAISE or INHERITED
    reason: str
    until: tuple[int, int] = NEVER  # the first release of torch in which torch.func is right

    @property
    def holds(self) -> bool:
        """Whether this is so in the release that is tested."""
        return self.until > RELEASE


# They hold for every release from 2.9 on, unless an entry says until when.
DEVIATIONS = (
    Deviation(
        ("empty_to_empty", "empty_to_scalar"),
        lambda outer, inner: inner in FORWARD or (outer in FORWARD and inner != "vmap"),
        "raises",
        RIGHT,
        "torch.func.jacfwd looks at the first of no columns",
    ),
    Deviation(
        ("branch", "while_loop", "fill_buffer"),
        lambda outer, inner: "vmap" in (outer, inner),
        "raises",
        MAY_RAISE,
        "vmap itself refuses to branch on values, and to write a batch into an unbatched buffer",
    ),
    Deviation(
        ("lstm_cell",),
        lambda outer, inner: inner == "vmap",
        "raises",
        MAY_RAISE,
        "vmap has no rule for aten::lstm_cell",
    ),
    Deviation(
        ("inplace_chain", "inplace_assignment", "inplace_columns"),
        lambda outer, inner: outer == "vmap" and inner in PUSHES,
        "raises",
        MAY_RAISE,
        "the tangent is not batched while the point is, and vmap cannot write one into the other",
    ),
    Deviation(
        ("inplace_slice",),
        lambda outer, inner: outer in FORWARD and inner in (*FORWARD, *PUSHES),
        "raises",
        RIGHT,
        "torch.func writes into the symbolic zero that is the tangent's tangent",
    ),
    Deviation(
        ("while_loop", "deviation", "norm"),
        lambda outer, inner: outer in (*REVERSE, "hessian") and inner == "hessian",
        "raises",
        RIGHT,
        "the forward formula of norm and std writes in place into what reverse mode saved",
    ),
    Deviation(
        ("eigenvalues",),
        lambda outer, inner: outer in (*REVERSE, "hessian") and inner == "hessian",
        "wrong",
        RIGHT,
        "nan from the third derivative of eigh with forward mode innermost",
    ),
    Deviation(
        ("solve", "determinant", "log_determinant"),
        pairs(
            "grad/hessian jacrev/hessian vjp/hessian linearize/hessian vmap/hessian "
            "grad/linearize jacrev/linearize vjp/linearize jacfwd/linearize hessian/linearize "
            "linearize/linearize jvp/linearize vmap/jacfwd "
            "grad/jacfwd jacrev/jacfwd vjp/jacfwd jacfwd/jacfwd hessian/jacfwd linearize/jacfwd jvp/jacfwd "
            "grad/jvp jacrev/jvp vjp/jvp jacfwd/jvp hessian/jvp linearize/jvp jvp/jvp"
        ),
        "wrong",
        RIGHT,
        "the forward formula solves with the LU factors as if they were constants",
        until=(2, 15),
    ),
    Deviation(
        ("solve", "log_determinant"),
        pairs("jacfwd/hessian hessian/hessian jvp/hessian"),
        "wrong",
        RIGHT,
        "the forward formula solves with the LU factors as if they were constants",
        until=(2, 15),
    ),
    Deviation(
        ("determinant",),
        pairs("hessian/grad hessian/jacrev hessian/vjp"),
        "wrong",
        RIGHT,
        "nan from forward over the reverse of the reverse",
        until=(2, 15),
    ),
    Deviation(
        ("determinant",),
        pairs("jacfwd/hessian hessian/hessian jvp/hessian"),
        "wrong",
        INHERITED,
        "the backward of the backward of det has LU factors as constants too",
    ),
    Deviation(
        ("layer_norm",),
        pairs("grad/jacrev jacrev/jacrev jacfwd/jacrev jvp/jacrev vjp/jacrev linearize/jacrev vmap/hessian"),
        "wrong",
        RIGHT,
        "the batched formula of native_layer_norm_backward has its statistics as constants",
    ),
    Deviation(
        ("layer_norm",),
        pairs(
            "jacfwd/linearize grad/jacfwd jacrev/jacfwd vjp/jacfwd jacfwd/jacfwd linearize/jacfwd jvp/jacfwd "
            "grad/jvp jacrev/jvp vjp/jvp jacfwd/jvp linearize/jvp jvp/jvp"
        ),
        "wrong",
        RIGHT,
        "the forward formula of native_layer_norm has its statistics as constants",
    ),
    Deviation(
        ("layer_norm",),
        pairs(
            "grad/hessian jacrev/hessian jacfwd/hessian hessian/hessian jvp/hessian vjp/hessian "
            "linearize/hessian hessian/jacrev hessian/jacfwd hessian/jvp hessian/linearize grad/linearize "
            "jacrev/linearize jvp/linearize vjp/linearize linearize/linearize hessian/grad hessian/vjp"
        ),
        "wrong",
        RIGHT,
        "third derivatives of native_layer_norm are wrong in plain autograd as well",
    ),
    Deviation(
        ("logcumsumexp",),
        pairs(
            "grad/hessian jacrev/hessian vjp/hessian linearize/hessian hessian/grad hessian/jacrev "
            "hessian/jacfwd hessian/hessian hessian/vjp hessian/linearize"
        ),
        "wrong",
        INHERITED,
        "third derivatives of logcumsumexp are nan in plain autograd as well",
    ),
    Deviation(
        ("logcumsumexp",),
        pairs(
            "grad/linearize jacrev/linearize vjp/linearize linearize/grad linearize/jacrev linearize/vjp "
            "linearize/linearize"
        ),
        "right",
        INHERITED,
        "a defect of ours: linearize needs one reverse derivative more than torch's jvp, and gives nan",
    ),
    Deviation(
        ("logcumsumexp",), pairs("hessian/vmap"), "wrong", RIGHT, "the batching rule under forward mode"
    ),
    Deviation(
        ("huber",),
        lambda outer, inner: outer in (*FORWARD, *PUSHES) and inner not in ("jacrev", "vmap"),
        "raises",
        RIGHT,
        "huber_loss_backward has no forward formula",
    ),
    Deviation(
        ("huber",),
        lambda outer, inner: outer in (*FORWARD, *PUSHES) and inner == "jacrev",
        "right",
        RIGHT,
        "a Jacobian of one row is no batch, so covector meets huber_loss_backward as it is, and says so",
    ),
    Deviation(
        ("custom_cube",),
        pairs(
            "jacfwd/hessian jacfwd/linearize hessian/jacfwd hessian/hessian hessian/jvp hessian/linearize "
            "jvp/hessian jvp/linearize linearize/jacfwd linearize/hessian linearize/jvp "
            "linearize/linearize"
        ),
        "wrong",
        RIGHT,
        "the tangents of an outer forward level are lost in the jvp of a custom Function",
    ),
    Deviation(
        ("custom_scale",),
        pairs("jacfwd/hessian jvp/hessian linearize/hessian"),
        "wrong",
        RIGHT,
        "the tangents of an outer forward level are lost in the jvp of a custom Function",
    ),
    Deviation(
        ("custom_reverse_only",),
        pairs("jacfwd/jacfwd jacfwd/hessian jacfwd/vmap hessian/hessian jvp/jacfwd jvp/hessian jvp/vmap"),
        "raises",
        MAY_RAISE,
        "a batched custom Function without jvp fails an assertion inside torch",
    ),
    Deviation(
        ("custom_reverse_only",),
        pairs("hessian/jacfwd hessian/vmap linearize/jacfwd linearize/hessian linearize/vmap"),
        "raises",
        RIGHT,
        "a batched custom Function without jvp fails an assertion inside torch",
    ),
    Deviation(
        ("custom_reverse_only",),
        pairs(
            "grad/jacfwd grad/hessian grad/jvp grad/linearize jacrev/jacfwd jacrev/hessian jacrev/jvp "
            "jacrev/linearize jacfwd/grad jacfwd/jacrev jacfwd/jvp jacfwd/vjp jacfwd/linearize "
            "hessian/grad hessian/jacrev hessian/jvp hessian/vjp hessian/linearize jvp/grad jvp/jacrev "
            "jvp/jvp jvp/vjp jvp/linearize vjp/jacfwd vjp/hessian vjp/jvp vjp/linearize linearize/grad "
            "linearize/jacrev linearize/jvp linearize/vjp linearize/linearize vmap/jacfwd vmap/hessian "
            "vmap/jvp vmap/linearize"
        ),
        "raises",
        RIGHT,
        "the Function has no jvp; covector differentiates its pullback instead",
    ),
    Deviation(
        ("polar",),
        lambda outer, inner: outer in ("jacrev", "hessian") and inner in ("jacfwd", *PUSHES),
        "raises",
        RIGHT,
        "vmap has no rule for aten::_neg_view, which the conjugate makes",
    ),
)


def deviation(case: Case, outer: str, inner: str) -> Deviation | None:
    """What is known about torch.func on this composition, if it is anything special."""
    found = [d for d in DEVIATIONS if d.holds and case.name in d.cases and d.when(outer, inner)]
    assert len(found) <= 1, f"{case} {outer}/{inner} is listed twice: {found}"
    return found[0] if found else None


@dataclass(frozen=True)
class Refusal:
    """A single transform that torch.func refuses or gets wrong; the truth is then in ALTERNATIVES."""

    transforms: tuple[str, ...]
    cases: tuple[str, ...]
    torch: str  # "raises" or "wrong"
    own: str  # RIGHT, or MAY_RAISE where the fault is in torch below both
    reason: str


REFUSALS = (
    Refusal(
        ("jacfwd aux",),
        ("empty_to_empty", "empty_to_scalar"),
        "raises",
        RIGHT,
        "torch.func.jacfwd takes aux from the first of no columns",
    ),
    Refusal(
        ("linearize",), ("branch", "while_loop"), "raises", RIGHT, "a traced function cannot branch on values"
    ),
    Refusal(
        ("linearize",),
        ("inplace_columns",),
        "wrong",
        RIGHT,
        "the traced tangent program loses what was written through a view",
    ),
    Refusal(
        ("jacfwd", "jacfwd aux", "hessian", "jvp", "jvp aux", "linearize"),
        ("custom_reverse_only",),
        "raises",
        RIGHT,
        "the Function has no jvp; covector differentiates its pullback instead",
    ),
    Refusal(
        ("hessian",),
        ("layer_norm",),
        "wrong",
        RIGHT,
        "the batched formula of native_layer_norm_backward has its statistics as constants",
    ),
    Refusal(
        ("functionalize",),
        ("custom_cube", "custom_scale", "custom_reverse_only"),
        "raises",
        MAY_RAISE,
        "torch has no functionalization of custom Functions that are written with setup_context",
    ),
)


def _pushed_by_pulling(case: Case, primals: tuple[Any, ...]) -> Any:
    """J u from reverse mode alone: the pullback is linear in v, and its own pullback is J."""
    outputs, pull = torch.func.vjp(case.function, *primals)
    _, push = torch.func.vjp(pull, tree_of_weights(outputs))
    return outputs, push(tree_of_weights(primals))[0]


def _twice_reversed(case: Case, primals: tuple[Any, ...]) -> Any:
    # Row by row, without batches.
    first = torch.func.jacrev(case.function, case.argnums, chunk_size=1)
    return torch.func.jacrev(first, case.argnums, chunk_size=1)(*primals)


def _aux(primals: tuple[Any, ...]) -> Any:
    return {"extra": [registry.tree_leaves(primals)[0] * 2]}


ALTERNATIVES: dict[str, Callable[[Case, tuple[Any, ...]], Any]] = {
    "jacfwd": lambda case, x: torch.func.jacrev(case.function, case.argnums)(*x),
    "jacfwd aux": lambda case, x: (torch.func.jacrev(case.function, case.argnums)(*x), _aux(x)),
    "hessian": _twice_reversed,
    "jvp": _pushed_by_pulling,
    "jvp aux": lambda case, x: (*_pushed_by_pulling(case, x), _aux(x)),
    "linearize": _pushed_by_pulling,
    "functionalize": lambda case, x: case.function(*x),
}


def refusal(case: Case, transform: str) -> Refusal | None:
    """Why torch.func refuses this transform of this case, if it does."""
    return next((r for r in REFUSALS if case.name in r.cases and transform in r.transforms), None)


# Tests


def ids(values: Iterable[Any]) -> list[str]:
    return [str(value) for value in values]


every_case = pytest.mark.parametrize("case", CASES, ids=ids(CASES))


@every_case
def test_flags_tell_the_truth(case: Case) -> None:
    """What the table says about the output of a case is so, and its inputs are the same each time."""
    primals = case.primals()
    outputs = case.function(*primals)
    leaves = registry.tree_leaves((primals, outputs))
    assert case.complex == any(leaf.is_complex() for leaf in leaves)
    assert case.scalar == (isinstance(outputs, Tensor) and not outputs.shape and not outputs.is_complex())
    for again, leaf in zip(registry.tree_leaves(case.primals()), registry.tree_leaves(primals), strict=True):
        assert torch.equal(again, leaf)


def tracked(primals: tuple[Any, ...]) -> tuple[Any, ...]:
    return registry.tree_map(lambda leaf: leaf.requires_grad_(), primals)


SINGLES = [(case, name) for case in CASES for name in TRANSFORMS if not (case.complex and name in REAL_ONLY)]

# The same transform with another output beside, or in chunks: `make test` runs each with every third case.
# So it does `linearize`, for which torch traces the function, in 70 ms; the next test has it beside `vjp`.
VARIANTS = [name for name in TRANSFORMS if " " in name or name == "linearize"]
THIRD = 3


def is_chosen(case: Case, transform: str) -> bool:
    """Whether `make test` runs a transform of a case: a variant with every third, and where torch differs."""
    if transform not in VARIANTS or refusal(case, transform) is not None:
        return True
    return (CASES.index(case) + VARIANTS.index(transform)) % THIRD == 0


single = pytest.mark.parametrize(
    ("case", "transform"), covered(SINGLES, is_chosen), ids=[f"{c}-{t}" for c, t in SINGLES]
)


@single
def test_each_transform_of_each_case(case: Case, transform: str) -> None:
    """Structure, shape, dtype and values are those of torch.func, or the truth; nothing requires grad."""
    apply, digits = TRANSFORMS[transform], digits_of(case)
    refused = refusal(case, transform)
    if refused is None:
        assert_same(apply(OWN, case, case.primals()), apply(TORCH, case, case.primals()), digits=digits)
        return
    theirs = outcome(lambda: apply(TORCH, case, case.primals()))
    ours = outcome(lambda: apply(OWN, case, case.primals()))
    truth = ALTERNATIVES[transform](case, case.primals())
    if refused.torch == "raises":
        assert isinstance(theirs, Exception), f"torch.func no longer raises: {refused}"
    else:
        assert not agree(theirs, truth, digits=digits), f"torch.func is right now: {refused}"
    if refused.own == RIGHT or not isinstance(ours, Exception):
        assert_same(ours, truth, digits=digits)


def digits_of(case: Case) -> float:
    return 1e-5 if is_single(case) else 1e-11


def outcome(compute: Callable[[], Any]) -> Any:
    """The value, or what was raised; covector may say that it goes around an obstacle."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CovectorWarning)
        try:
            return compute()
        except (RuntimeError, IndexError, AssertionError) as error:
            return error


def agree(got: Any, expected: Any, *, digits: float) -> bool:
    try:
        assert_same(got, expected, digits=digits)
    except AssertionError:
        return False
    return True


# torch.func computes a Hessian forward over reverse, and linearize with a trace that does not take
# inputs that require grad. Which results are connected to the inputs, of those that do not depend on
# them, is then an accident: what counts is that the derivatives of the results agree.
OTHERWISE_CONNECTED = ("hessian", "linearize")


CONNECTED = [
    (case, transform) for case, transform in SINGLES if transform in set(dir(torch.func)) - {"functionalize"}
]


def is_every_other(case: Case, transform: str) -> bool:
    """Whether `make test` runs it: each transform with every other case, and where torch differs."""
    if refusal(case, transform) is not None or (case.name, transform) in UNCONNECTED:
        return True
    return (CASES.index(case) + list(TRANSFORMS).index(transform)) % 2 == 0


# What torch.func returns here cannot be differentiated again: its forward formulas write in place into
# what reverse mode saved, or solve with factors as if they were constants.
UNCONNECTED = (
    ("while_loop", "hessian"),
    ("deviation", "hessian"),
    ("norm", "hessian"),
    ("log_determinant", "jvp"),
    ("log_determinant", "jacfwd"),
)


@pytest.mark.parametrize(
    ("case", "transform"), covered(CONNECTED, is_every_other), ids=[f"{c}-{t}" for c, t in CONNECTED]
)
def test_each_transform_of_inputs_that_require_grad(case: Case, transform: str) -> None:
    """The results are connected to the caller's tensors as those of torch.func are."""
    own, other = tracked(case.primals()), tracked(case.primals())
    got = outcome(lambda: TRANSFORMS[transform](OWN, case, own))
    if (
        refusal(case, transform) is not None
        or (case.name, transform) in UNCONNECTED
        or transform == "linearize"
    ):
        expected = ALTERNATIVES[transform](case, other)
    else:
        expected = TRANSFORMS[transform](TORCH, case, other)
    if transform not in OTHERWISE_CONNECTED:
        assert_same(got, expected, digits=digits_of(case))
    without_graph = registry.tree_map(Tensor.detach, (got, expected))
    assert_same(*without_graph, digits=digits_of(case))
    if case.name not in WRONG_BELOW:
        for mine, theirs in zip(sensitivity(got, own), sensitivity(expected, other), strict=True):
            assert_close(mine, theirs, digits=10 * digits_of(case))


# Derivatives beyond the second that are wrong in torch, below both; see DEVIATIONS.
WRONG_BELOW = (
    "layer_norm",
    "logcumsumexp",
    "solve",
    "determinant",
    "log_determinant",
    "custom_cube",
    "eigenvalues",
)


def sensitivity(results: Any, primals: Any) -> tuple[Tensor, ...]:
    """The gradient of a weighted sum of the results with respect to the primals, by plain autograd."""
    leaves = registry.tree_leaves(primals)
    connected = [leaf for leaf in registry.tree_leaves(results) if leaf.requires_grad]
    if not connected:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    cotangents = [weights(leaf) for leaf in connected]
    return torch.autograd.grad(connected, leaves, cotangents, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("transform", REAL_ONLY)
@pytest.mark.parametrize("case", [case for case in CASES if case.complex], ids=str)
def test_jacobians_of_complex_functions_are_refused_by_both(case: Case, transform: str) -> None:
    """A Jacobian of a complex function has no agreed shape."""
    with pytest.raises(RuntimeError, match=r"complex|real"):
        TRANSFORMS[transform](TORCH, case, case.primals())
    with pytest.raises(RuntimeError, match="complex"):
        TRANSFORMS[transform](OWN, case, case.primals())


# Own and foreign transforms meet in every fifth case of a composition.
MIXED_EVERY = 5


def is_mixed(case: Case, outer: str, inner: str) -> bool:
    """Whether a composition is also tried with one of its transforms taken from torch.func."""
    return (CASES.index(case) - PAIRS.index((outer, inner))) % MIXED_EVERY == 0


def designed() -> Iterator[tuple[str, str, str]]:
    """What `make test` runs of all compositions of cases: two pairs of a case, others of the next.

    `test_each_transform_of_each_case` has every transform of every case. A deviation of torch.func is met
    once for each case that it is listed for, and each pair once together with torch.func.
    """
    for number, case in enumerate(CASES):
        for place in (number, number + len(PAIRS) // 2):
            yield case.name, *PAIRS[place % len(PAIRS)]
        special = {known: pair for pair in PAIRS if (known := deviation(case, *pair)) is not None}
        for pair in special.values():
            yield case.name, *pair
    for pair in PAIRS:
        mixed = (case for case in CASES if is_mixed(case, *pair) and deviation(case, *pair) is None)
        yield next(mixed).name, *pair


DESIGN = set(designed())
COMPOSITIONS = [
    pytest.param(
        case,
        *pair,
        id=f"{'/'.join(pair)}-{case}",
        marks=() if (case.name, *pair) in DESIGN else pytest.mark.sweep,
    )
    for case in CASES
    for pair in PAIRS
]


def test_the_design_has_every_pair_often_and_every_deviation() -> None:
    """What is left to the sweep is met elsewhere; each pair also with torch.func inside and outside."""
    plain = [row for row in DESIGN if deviation(BY_NAME[row[0]], *row[1:]) is None]
    times = Counter(tuple(pair) for _, *pair in plain)
    assert set(times) == set(PAIRS)
    assert min(times.values()) >= 2
    assert {tuple(pair) for name, *pair in plain if is_mixed(BY_NAME[name], *pair)} == set(PAIRS)
    met = {deviation(BY_NAME[row[0]], *row[1:]) for row in DESIGN}
    assert {known for known in DEVIATIONS if known.holds} <= met


# Where the inner transform of torch.func has no backward, which our `linearize` takes.
NO_BACKWARD = {("deviation", "linearize", "hessian")}


@pytest.mark.parametrize(("case", "outer", "inner"), COMPOSITIONS)
def test_each_pair_of_transforms_of_each_case(case: Case, outer: str, inner: str) -> None:
    """Two transforms on top of each other give what torch.func gives, or the truth where it does not."""
    steps = (outer, inner)
    digits = 1e-4 if is_single(case) else 1e-8
    known = deviation(case, outer, inner)
    if known is not None:
        check_deviation(known, case, steps, digits)
        return
    expected = torch_chain(steps, case)
    assert isinstance(expected, Tensor), expected
    assert_same(chain(steps, (OWN, OWN), case), expected, digits=digits)
    if is_mixed(case, *steps):
        if (str(case), *steps) not in NO_BACKWARD:
            assert_same(chain(steps, (OWN, TORCH_IN_CHAINS), case), expected, digits=digits)
        assert_same(chain(steps, (TORCH_IN_CHAINS, OWN), case), expected, digits=digits)


def true_value(steps: tuple[str, str], case: Case) -> Tensor:
    """The truth from `Loop`; fourth derivatives, which take it half a minute, from reverse mode alone."""
    if case.name == "layer_norm":  # of torch's, plain autograd has wrong third derivatives
        case = replace(case, function=lambda parameters, x: norm_by_hand(x, parameters["weight"]))
    if steps == ("hessian", "hessian"):
        return chain(("jacrev",) * 4, [TORCH] * 4, case)
    return chain(steps, (Loop, Loop), case).detach()


def check_deviation(known: Deviation, case: Case, steps: tuple[str, str], digits: float) -> None:
    """torch.func fails as listed, and covector does what is listed beside it."""
    theirs = torch_chain(steps, case)
    ours = outcome(lambda: chain(steps, (OWN, OWN), case))
    if known.own == INHERITED:
        assert isinstance(ours, Tensor)
        assert isinstance(theirs, Tensor)
        assert ours.shape == theirs.shape
        return
    truth = true_value(steps, case)
    if known.torch == "raises":
        assert isinstance(theirs, Exception), f"torch.func no longer raises: {known}"
    elif known.torch == "right":
        assert_close(theirs, truth, digits=digits)
    else:
        assert isinstance(theirs, Tensor)
        assert not agree(theirs, truth, digits=digits), f"torch.func is right now: {known}"
    if known.own == RIGHT or isinstance(ours, Tensor):
        assert isinstance(ours, Tensor), ours
        assert_close(ours, truth, digits=digits)


DEEP = (
    ("grad", "jacrev", "jvp"),
    ("jacfwd", "vjp", "grad"),
    ("hessian", "grad", "vjp"),
    ("jvp", "jacfwd", "jacrev"),
    ("linearize", "grad", "jvp"),
    ("vjp", "jvp", "linearize"),
    ("jacrev", "hessian", "grad"),
)
DEEP_CASES = ("horner", "spherical", "complex_energy", "deep")


@pytest.mark.parametrize(("deep", "place", "name"), paired(DEEP, range(4), DEEP_CASES), ids=str)
def test_four_transforms_with_vmap_in_every_position(deep: tuple[str, ...], place: int, name: str) -> None:
    """Three transforms and vmap on top of each other give what torch.func gives."""
    case, steps = BY_NAME[name], (*deep[:place], "vmap", *deep[place:])
    expected = torch_chain(steps, case)
    assert isinstance(expected, Tensor), expected
    assert_same(chain(steps, [OWN] * 4, case), expected, digits=1e-8)


EXACT = [case for case in CASES if case.jacobian is not None]


@pytest.mark.parametrize("verb", ["jacrev", "jacfwd"])
@pytest.mark.parametrize("case", EXACT, ids=str)
def test_jacobians_written_by_hand(case: Case, verb: str) -> None:
    """Both modes give the Jacobian that was derived on paper."""
    assert case.jacobian is not None
    expected = case.jacobian(*case.primals())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CovectorWarning)
        got = getattr(covector, verb)(case.function, argnums=case.argnums)(*case.primals())
    assert_same(got, expected, digits=1e-12)


LINEARIZE_IN_CHAINS = {
    "grad/linearize": "raises",
    "jacrev/linearize": "raises",
    "vjp/linearize": "raises",
    "jacfwd/linearize": "raises",
    "hessian/linearize": "raises",
    "jvp/linearize": "raises",
    "vmap/linearize": "raises",
    "linearize/linearize": "raises",
    "linearize/jacfwd": "raises",
    "linearize/hessian": "raises",
    "linearize/jvp": "raises",
    "linearize/jacrev": "wrong",
    "linearize/grad": "right",
    "linearize/vjp": "right",
    "linearize/vmap": "right",
}


@pytest.mark.parametrize(("composition", "theirs"), LINEARIZE_IN_CHAINS.items(), ids=LINEARIZE_IN_CHAINS)
def test_linearize_composes_where_torch_does_not(composition: str, theirs: str) -> None:
    """torch.func.linearize traces: it refuses forward mode and data, and takes a Jacobian for constant."""
    steps, case = tuple(composition.split("/")), BY_NAME["horner"]
    truth = chain(steps, (Loop, Loop), case).detach()
    found = outcome(lambda: chain(steps, (TORCH, TORCH), case))
    if theirs == "raises":
        assert isinstance(found, Exception)
    else:
        assert agree(found, truth, digits=1e-10) == (theirs == "right")
    assert_close(chain(steps, (OWN, OWN), case), truth, digits=1e-10)
