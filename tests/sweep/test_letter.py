"""Calls of gradient checks, one for each thing that torch's keywords and doors do: the same answer in both.

An answer is True, False, or an exception, of which the class is compared. Where they differ, a table says
why, and a difference that is gone is noticed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

import covector

pytestmark = pytest.mark.sweep

DOUBLE, COMPLEX = torch.float64, torch.complex128


def normal(*shape: int, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_()


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE, requires_grad=True)


def ruled(
    forward: Callable[..., Any],
    pull: Callable[..., Any],
    push: Callable[..., Any] = lambda *_: None,
    *,
    filled: bool = True,
) -> Callable[..., Any]:
    """A custom Function; with `filled`, undefined cotangents and tangents reach its rules as zeros."""

    class Ruled(Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return forward(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)
            ctx.set_materialize_grads(filled)

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            return pull(ctx.saved_tensors, *cotangents)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            return push(ctx.saved_tensors, *tangents)

    return Ruled.apply


class Noisy(Function):
    """A little off at every run."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g + 1e-7 * torch.rand_like(g) * g


class Legacy(Function):
    """Without a jvp."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


class Call(NamedTuple):
    """A call of a check, with inputs that are made anew for each library."""

    verb: str
    function: Any
    inputs: Callable[[], Any]
    keywords: dict[str, Any]


def three() -> Tensor:
    """The inputs of most calls."""
    return normal(3)


both = {"check_forward_ad": True}
batched = {"check_batched_grad": True}
everything = {**both, **batched, "check_batched_forward_grad": True}
captured = normal(2)

# Doors, inputs and outputs: function, inputs, keywords.
PLAIN: dict[str, tuple[Any, Callable[[], Any], dict[str, Any]]] = {
    "no input requires grad": (torch.sin, lambda: torch.ones(3, dtype=DOUBLE), {}),
    "integers": (lambda x: x * 2.0, lambda: torch.tensor([1, 2]), {}),
    "no inputs": (torch.sin, tuple, {}),
    "not a function": (3, three, {}),
    "a string beside": (lambda _, x: x * 2, lambda: ("a", normal(3)), {}),
    "None beside": (lambda _, x: x * 2, lambda: (None, normal(3)), {}),
    "integers beside": (lambda i, x: x[i], lambda: (torch.tensor([0, 2]), normal(3)), {}),
    "a constant beside": (torch.mul, lambda: (torch.ones(3, dtype=DOUBLE), normal(3)), {}),
    "a list of inputs": (torch.mul, lambda: [normal(3), normal(3)], {}),
    "one tensor twice": (torch.mul, lambda: (captured, captured), {}),
    "a parameter": (torch.sin, lambda: torch.nn.Parameter(torch.ones(3, dtype=DOUBLE)), {}),
    "no leaf": (torch.sin, lambda: (normal(3) * 2,), {}),
    "a view": (torch.sin, lambda: (normal(6)[::2],), {}),
    "transposed": (torch.sin, lambda: torch.ones(3, 2, dtype=DOUBLE).t().requires_grad_(), {}),
    "a stride of zero": (torch.sin, lambda: torch.ones(1, dtype=DOUBLE).expand(3).requires_grad_(), {}),
    "closes over": (lambda _: captured * 2, lambda: captured, {}),
    "a module": (torch.nn.Linear(3, 2).double(), lambda: normal(4, 3), {}),
    "float32": (torch.sin, lambda: normal(3, dtype=torch.float32), {}),
    "float32, long steps": (
        torch.sin,
        lambda: normal(3, dtype=torch.float32),
        {"eps": 1e-2, "atol": 1e-2, "rtol": 1e-1},
    ),
    "a list of outputs": (lambda x: [x * 2, x.sin()], three, {}),
    "no outputs": (lambda x: (), three, {}),
    "a number": (lambda x: 2.0, three, {}),
    "nothing": (lambda x: None, three, {}),
    "integers out": (lambda x: x.argmax(), three, {}),
    "booleans beside an output": (lambda x: (x > 0, x * 2), three, {}),
    "a constant beside an output": (lambda x: (torch.ones(3, dtype=DOUBLE), x * 2), three, {}),
    "a shorter constant beside an output": (lambda x: (torch.ones(2, dtype=DOUBLE), x * 2), three, {}),
    "the input itself": (lambda x: x, three, {}),
    "outputs that are views": (lambda x: (x[1:], x[:2]), three, {}),
    "one output twice": (lambda x: (x, x), three, {}),
    "another graph beside": (lambda x: (x * 2, captured.sin()), three, {}),
    "a sparse output": (lambda x: x.to_sparse(), lambda: normal(3, 3), {}),
    "no steps": (torch.sin, three, {"eps": 0.0}),
    "long steps": (torch.sin, three, {"eps": 1e-2}),
    "atol of zero": (torch.sin, three, {"atol": 0.0}),
    "rtol of zero": (torch.sin, three, {"rtol": 0.0}),
    "neither mode": (torch.sin, three, {"check_backward_ad": False}),
    "batched without reverse mode": (torch.sin, three, {**both, **batched, "check_backward_ad": False}),
    "batched forward without forward mode": (torch.sin, three, {"check_batched_forward_grad": True}),
    "the function raises": (lambda x: x.reshape(7), three, {}),
    "in place on a copy": (lambda x: x.clone().sin_(), three, both),
    "without grad inside": (torch.no_grad()(torch.sin), three, {}),
    "detached": (lambda x: x.detach() * 2, three, {}),
    "batched": (torch.sin, three, everything),
    "batched, several outputs": (lambda x: (x * 2, x.sum()), three, everything),
    "batched, not used": (lambda x, y: x * 2, lambda: (normal(3), normal(2)), everything),
    "batched, legacy": (Legacy.apply, three, batched),
    "no jvp": (Legacy.apply, three, both),
    "random": (lambda x: F.dropout(x, 0.5), lambda: torch.ones(50, dtype=DOUBLE, requires_grad=True), {}),
    "relu at 0": (torch.relu, lambda: leaf(0.0, 1.0), {}),
    "abs at 0": (torch.abs, lambda: leaf(0.0, 1.0), {}),
    "sqrt at 0": (torch.sqrt, lambda: leaf(0.0, 1.0), {}),
    "outside the domain": (torch.log, lambda: leaf(-1.0, 1.0), {}),
    **{
        f"shape {shape}": (lambda x: x.sin() * 2, lambda shape=shape: normal(*shape), {**both, **batched})
        for shape in [(), (0,), (1,), (2, 0), (1, 1), (2, 3)]
    },
    **{
        f"noise, nondet_tol={tol}": (Noisy.apply, three, {"nondet_tol": tol})
        for tol in (0.0, 1e-9, 1e-6, 1.0)
    },
}

BACKWARDS: dict[str, Callable[..., Any]] = {
    "right": lambda s, g: 2 * g,
    "none": lambda s, g: None,
    "wrong": lambda s, g: 3 * g,
    "float32": lambda s, g: (2 * g).float(),
    "complex": lambda s, g: torch.complex(2 * g, 0 * g),
    "sparse": lambda s, g: (2 * g).to_sparse(),
    "too short": lambda s, g: (2 * g)[:1],
    "too long": lambda s, g: torch.stack([2 * g, 0 * g]),
    "nan": lambda s, g: g * torch.nan,
    "infinite": lambda s, g: g * torch.inf,
    "of another cotangent": lambda s, g: 2 * torch.ones_like(s[0]),
    "not linear": lambda s, g: 2 * g + 1e-3,
    "raises a KeyError": lambda s, g: {}["lost"],
    "raises a RuntimeError": lambda s, g: g.reshape(7),
    "two for one": lambda s, g: (2 * g, None),
    "written into the cotangent": lambda s, g: g.mul_(2),
    "a list": lambda s, g: [2 * g],
}
PUSHES: dict[str, Callable[..., Any]] = {
    "right": lambda s, t: 2 * t,
    "wrong": lambda s, t: 3 * t,
    "none": lambda s, t: None,
    "complex": lambda s, t: torch.complex(2 * t, 0 * t),
    "float32": lambda s, t: (2 * t).float(),
    "raises a KeyError": lambda s, t: {}["lost"],
}
UNDEFINED: dict[str, Callable[..., Any]] = {
    "taken as zero": lambda s, g: None if g is None else 2 * g,
    "raises": lambda s, g: 2 * g,
    "taken as one": lambda s, g: torch.ones(3, dtype=DOUBLE) if g is None else 2 * g,
}
COMPLEX_FUNCTIONS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "holomorphic": (lambda z: z**2, lambda: normal(3, dtype=COMPLEX)),
    "not holomorphic": (lambda z: z.conj() * z * z, lambda: normal(3, dtype=COMPLEX)),
    "to real": (torch.abs, lambda: normal(3, dtype=COMPLEX)),
    "from real": (lambda x: torch.complex(x, x**2), three),
    "beside real": (torch.mul, lambda: (normal(3), normal(3, dtype=COMPLEX))),
    "conjugate missing": (
        ruled(lambda z: z * z, lambda s, g: 2 * g * s[0], lambda s, t: 2 * s[0] * t),
        lambda: normal(3, dtype=COMPLEX),
    ),
}


def calls() -> dict[str, Call]:
    """Every call by its name, in both modes."""
    table = dict(PLAIN)
    for dtypes in (False, True):
        kinds = {"check_grad_dtypes": dtypes}
        for name, pull in BACKWARDS.items():
            table[f"gradient {name}, dtypes {dtypes}"] = (ruled(lambda x: 2 * x, pull), three, kinds)
        for name, push in PUSHES.items():
            function = ruled(lambda x: 2 * x, BACKWARDS["right"], push)
            table[f"tangent {name}, dtypes {dtypes}"] = (function, three, {**kinds, **both})
    for name, pull in UNDEFINED.items():
        for asked in (True, False):
            function = ruled(lambda x: 2 * x, pull, filled=False)
            table[f"undefined {name}, {asked}"] = (function, three, {"check_undefined_grad": asked})
    for name, (function, inputs) in COMPLEX_FUNCTIONS.items():
        for keywords in ({}, both, batched):
            table[f"complex {name}, {', '.join(keywords)}"] = (function, inputs, keywords)
    return {
        f"{name}{', fast' if fast else ''}": Call(
            "gradcheck", function, inputs, {**keywords, "fast_mode": fast}
        )
        for name, (function, inputs, keywords) in table.items()
        for fast in (False, True)
    }


CALLS = calls()

_ANSWERS = "an answer was asked for, or is given; torch raises something else"
# The beginning of a name, and why the answers differ.
DIFFERENT = {
    "a number": "an error of ours, which says what is wrong; torch stumbles",
    "nothing": "an error of ours, which says what is wrong; torch stumbles",
    "booleans beside": _ANSWERS,
    "a constant beside an output, fast": _ANSWERS,
    "a shorter constant beside an output, fast": _ANSWERS,
    "a sparse output": _ANSWERS,
    "no steps": "refused as a wrong call",
    "float32": "the gradient is right",
    "gradient complex": _ANSWERS,
    "gradient too short": _ANSWERS,
    "gradient raises": _ANSWERS,
    "gradient a list": _ANSWERS,
    "gradient written into the cotangent": "a fault that shows in torch's fast mode alone",
    "tangent none": _ANSWERS,
    "tangent raises": _ANSWERS,
    "no jvp": _ANSWERS,
    "undefined raises, True": _ANSWERS,
}
# Some of which do not differ in every way of asking.
SAME = {"float32, long steps", "gradient written into the cotangent"}


def answer(library: Any, call: Call, raises: bool) -> Any:
    """What a library says: an answer, or an exception."""
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return getattr(library, call.verb)(
                call.function, call.inputs(), raise_exception=raises, **call.keywords
            )
        except Exception as error:
            return error


def agree(theirs: Any, ours: Any) -> bool:
    """The same answer, or an exception that code which catches torch's catches too."""
    if isinstance(theirs, Exception):
        return isinstance(ours, type(theirs))
    return theirs is ours


@pytest.mark.parametrize("name", CALLS)
def test_the_same_answer(name: str) -> None:
    """In both, with and without an exception asked for; or a reason why not."""
    call = CALLS[name]
    same = all(
        agree(answer(torch.autograd, call, raises), answer(covector, call, raises))
        for raises in (True, False)
    )
    expected = [beginning for beginning in DIFFERENT if name.startswith(beginning)]
    assert same or expected
    if expected and not any(name.startswith(beginning) for beginning in SAME):
        assert not same, "the answers are the same now: take it out of the table"
