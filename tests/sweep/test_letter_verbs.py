"""Calls of transforms and of `functional`, one for each thing that torch's do: the same result in both.

A result is a tree of tensors (values, shapes, dtypes, whether they require grad) or an exception, of which
the class is compared. Where they differ, a table says why, and a difference that is gone is noticed.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, graph
from torch.utils._pytree import tree_flatten

import covector

pytestmark = pytest.mark.sweep

Use = Callable[[Any], Any]
DOUBLE, COMPLEX = torch.float64, torch.complex64


def result(library: Any, use: Use) -> Any:
    """What a call gives with one library: a tree, or an exception."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return use(library)
        except Exception as error:
            return error


def described(leaf: Any) -> Any:
    """What is compared of a leaf, beside the numbers."""
    if not isinstance(leaf, Tensor):
        return type(leaf) if callable(leaf) else leaf
    return leaf.shape, leaf.dtype, leaf.requires_grad, leaf.layout


def agree(theirs: Any, ours: Any) -> bool:
    """The same tree of the same numbers, or an exception that code which catches torch's catches too."""
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        return isinstance(theirs, Exception) and isinstance(ours, type(theirs))
    (leaves, spec), (others, other_spec) = tree_flatten(theirs), tree_flatten(ours)
    if spec != other_spec or [*map(described, leaves)] != [*map(described, others)]:
        return False
    pairs = [(a, b) for a, b in zip(leaves, others, strict=True) if isinstance(a, Tensor)]
    return all(torch.allclose(a.to_dense(), b.to_dense(), rtol=1e-4, atol=1e-6) for a, b in pairs)


def assert_as_listed(library: Any, ours: Any, name: str, use: Use, different: dict[str, str]) -> None:
    same = agree(result(library, use), result(ours, use))
    assert same == (name not in different), different.get(name, "not in the table of differences")


def under(context: AbstractContextManager[Any], call: Callable[[], Any]) -> Any:
    with context:
        return call()


# torch.func


def vector(size: int = 3) -> Tensor:
    return torch.randn(size)


def partly_recorded(x: Tensor) -> Tensor:
    with torch.no_grad():
        constant = x**2
    return x - constant


def pulled(library: Any, function: Any, cotangent: Any, **keywords: Any) -> Any:
    return library.vjp(function, vector())[1](cotangent, **keywords)


def with_dual(call: Callable[[Tensor], Any]) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(call(forward_ad.make_dual(vector(), vector())))


def two(a: Tensor, b: Tensor) -> Tensor:
    return a + b**2


ONES, NO_HOOK = torch.ones(3), lambda tensor: tensor

# What functions return.
OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "a tuple": lambda a: (a.sin(), a.cos()),
    "a dict": lambda a: {"first": a.sin(), "second": [a.sum()]},
    "integers": lambda a: a.long(),
    "booleans": lambda a: a > 0,
    "None": lambda a: None,
    "an empty tuple": lambda a: (),
    "a number": lambda a: 2.0,
    "a string beside": lambda a: (a, "s"),
    "None beside": lambda a: (a, None),
    "a constant": lambda a: torch.ones(2),
    "two dtypes": lambda a: (a, a.double()),
    "nothing in it": lambda a: a[:0],
    "complex numbers": lambda a: torch.complex(a, a),
}
ARGNUMS: list[Any] = [0, 1, -1, -2, (0, 1), (1, 0), (1,), (-1, 0)]
ARGNUMS += [2, -3, (0, 0), (0, -2), (), [0], "0", 1.0, (0, 2), None]
CHUNKS = (None, 0, -1, 1, 2, 5, 100)


def transforms() -> dict[str, Use]:
    """Names, and what is done with `covector` or with `torch.func`."""
    calls: dict[str, Use] = {
        "vjp of two": lambda F: F.vjp(torch.matmul, torch.randn(3, 2), torch.randn(2, 3))[1](torch.eye(3)),
        "vjp, defaults": lambda F: F.vjp(lambda x, scale=4.0: x * scale, vector())[1](ONES),
        "vjp, no_grad inside": lambda F: pulled(F, partly_recorded, ONES),
        "vjp, no_grad outside": lambda F: under(torch.no_grad(), lambda: pulled(F, partly_recorded, ONES)),
        "vjp, saved-tensor hooks": lambda F: under(
            graph.saved_tensors_hooks(NO_HOOK, NO_HOOK), lambda: pulled(F, torch.sin, ONES)
        ),
        "vjp by a number": lambda F: F.vjp(torch.sin, 3.0),
        "vjp by None": lambda F: F.vjp(lambda a, b: a, vector(), None),
        "vjp by integers": lambda F: F.vjp(lambda a: a.float(), torch.arange(3)),
        "vjp by nothing": lambda F: F.vjp(vector)[0],
        "vjp, unused": lambda F: F.vjp(lambda a, b: a * 2, vector(), vector(2))[1](ONES),
        "vjp, aux": lambda F: F.vjp(lambda a: (a.sin(), {"k": [a.cos()]}), vector(), has_aux=True)[2],
        "vjp, aux a number": lambda F: F.vjp(lambda a: (a, 3), vector(), has_aux=True)[2],
        "vjp, aux missing": lambda F: F.vjp(lambda a: a, vector(), has_aux=True),
        "vjp, aux in a list": lambda F: F.vjp(lambda a: [a, a], vector(), has_aux=True),
        "cotangent too few": lambda F: pulled(F, lambda a: (a, a), ONES),
        "cotangent in a list": lambda F: pulled(F, lambda a: (a, a), [ONES, ONES]),
        "cotangent too long": lambda F: pulled(F, torch.sin, torch.ones(4)),
        "cotangent to broadcast": lambda F: pulled(F, torch.sin, torch.ones(1)),
        "cotangent a number": lambda F: pulled(F, torch.sum, 1.0),
        "cotangent double": lambda F: pulled(F, torch.sin, torch.ones(3, dtype=DOUBLE)),
        "cotangent complex": lambda F: pulled(F, torch.sin, torch.ones(3, dtype=COMPLEX)),
        "vjp_fn, not retained": lambda F: pulled(F, torch.exp, ONES, retain_graph=False),
        "vjp_fn, no graph": lambda F: F.vjp(torch.sin, vector().requires_grad_())[1](
            ONES, create_graph=False
        ),
        "jvp of two": lambda F: F.jvp(torch.mul, (vector(), vector()), (ONES, ONES)),
        "jvp, a list": lambda F: F.jvp(torch.sin, [vector()], [ONES]),
        "jvp, tangents in a list": lambda F: F.jvp(torch.sin, (vector(),), [ONES]),
        "jvp, two tangents": lambda F: F.jvp(torch.sin, (vector(),), (ONES, ONES)),
        "jvp, no tangent": lambda F: F.jvp(torch.mul, (vector(), vector()), (ONES, None)),
        "jvp by nothing": lambda F: F.jvp(vector, (), ()),
        "jvp by a number": lambda F: F.jvp(lambda a: a, (2.0,), (1.0,)),
        "jvp by integers": lambda F: F.jvp(lambda a: a * 2.0, (torch.arange(3),), (torch.arange(3),)),
        "tangent too long": lambda F: F.jvp(torch.sin, (vector(),), (torch.ones(4),)),
        "tangent double": lambda F: F.jvp(torch.sin, (vector(),), (torch.ones(3, dtype=DOUBLE),)),
        "tangent complex": lambda F: F.jvp(torch.sin, (vector(),), (torch.ones(3, dtype=COMPLEX),)),
        "tangent of a dict": lambda F: F.jvp(lambda p: p["a"] * 2, ({"a": vector()},), ({"a": ONES},)),
        "tangent of another dict": lambda F: F.jvp(lambda p: p["a"], ({"a": vector()},), ({"b": ONES},)),
        "jvp, strict": lambda F: F.jvp(torch.sin, (vector(),), (ONES,), strict=True),
        "jvp, strict, constant": lambda F: F.jvp(lambda a: (a, ONES), (vector(),), (ONES,), strict=True),
        "jvp, no_grad inside": lambda F: F.jvp(partly_recorded, (vector(),), (ONES,)),
        "jvp, forward mode off": lambda F: under(
            forward_ad._set_fwd_grad_enabled(False), lambda: F.jvp(torch.sin, (vector(),), (ONES,))
        ),
        "jvp, at a dual": lambda F: with_dual(lambda d: F.jvp(torch.sin, (d,), (ONES,))[1]),
        "jvp along a dual": lambda F: with_dual(lambda d: F.jvp(torch.sin, (vector(),), (d,))[1]),
        "grad at a dual": lambda F: with_dual(lambda d: F.grad(lambda a: a.sin().sum())(d)),
        "jacrev by a number": lambda F: F.jacrev(lambda a, n: a * n, argnums=1)(vector(), 3),
        "jacfwd by a number": lambda F: F.jacfwd(lambda a, n: a * n, argnums=1)(vector(), 3),
        "jacrev by complex": lambda F: F.jacrev(torch.abs)(torch.randn(3, dtype=COMPLEX)),
        "jacfwd by complex": lambda F: F.jacfwd(torch.abs)(torch.randn(3, dtype=COMPLEX)),
        "jacrev by a dict": lambda F: F.jacrev(lambda p: p["a"] * p["b"])({"a": vector(), "b": vector()}),
        "jacfwd by a dict": lambda F: F.jacfwd(lambda p: p["a"] * p["b"])({"a": vector(), "b": vector()}),
        "jacrev, keywords": lambda F: F.jacrev(lambda a, *, k: a * k)(vector(), k=2.0),
        "jacrev, aux by position": lambda F: F.jacrev(lambda a: (a, a), 0, True)(vector()),
        "jacfwd, aux by position": lambda F: F.jacfwd(lambda a: (a, a), 0, True)(vector()),
        "jacrev, one row of none": lambda F: F.jacrev(lambda a: a * 2, chunk_size=1)(vector(0)),
        "jacrev in vmap": lambda F: torch.vmap(F.jacrev(torch.sin))(torch.randn(4, 3)),
        "jacfwd of jacrev": lambda F: F.jacfwd(F.jacrev(lambda a: a.sin().sum()))(vector()),
        "grad of many": lambda F: F.grad(torch.sin)(vector()),
        "grad of one in a tuple": lambda F: F.grad(lambda a: (a.sum(),))(vector()),
        "grad by complex": lambda F: F.grad(lambda z: z.abs().sum())(torch.randn(3, dtype=COMPLEX)),
        "grad_and_value": lambda F: F.grad_and_value(lambda a: (a.sum() ** 2, {"k": a}), has_aux=True)(
            vector()
        ),
        "linearize": lambda F: F.linearize(torch.sin, vector())[1](ONES),
        "linearize, two tangents": lambda F: F.linearize(torch.sin, vector())[1](ONES, ONES),
        "linearize, too long": lambda F: F.linearize(torch.sin, vector())[1](torch.ones(4)),
        "linearize, double": lambda F: F.linearize(torch.sin, vector())[1](torch.ones(3, dtype=DOUBLE)),
        "linearize by a number": lambda F: F.linearize(torch.mul, vector(), 2.0)[0],
        "functionalize": lambda F: F.functionalize(lambda a: a.clone().add_(1), remove="mutations")(vector()),
        "functionalize, unknown": lambda F: F.functionalize(torch.sin, remove="other")(vector()),
    }
    for name, function in OUTPUTS.items():
        calls[f"vjp of {name}"] = lambda F, f=function: F.vjp(f, vector())[0]
        calls[f"jvp of {name}"] = lambda F, f=function: F.jvp(f, (vector(),), (ONES,))
        calls[f"jacrev of {name}"] = lambda F, f=function: F.jacrev(f)(vector())
        calls[f"jacfwd of {name}"] = lambda F, f=function: F.jacfwd(f)(vector())
    for verb, argnums in itertools.product(("jacrev", "jacfwd", "grad", "hessian"), ARGNUMS):
        f = (lambda a, b: two(a, b).sum()) if verb in ("grad", "hessian") else two
        calls[f"{verb}, argnums={argnums!r}"] = lambda F, verb=verb, f=f, argnums=argnums: getattr(F, verb)(
            f, argnums=argnums
        )(vector(), vector())
    for chunk, copied in itertools.product(CHUNKS, (False, True)):
        calls[f"jacrev, chunk_size={chunk}, copied={copied}"] = lambda F, chunk=chunk, copied=copied: (
            F.jacrev(lambda a: (a.sin(), a.sum()), chunk_size=chunk, _preallocate_and_copy=copied)(vector(5))
        )
    for kind in ("error", "same", "different", "other"):
        calls[f"jacfwd, randomness={kind}"] = lambda F, kind=kind: F.jacfwd(torch.sin, randomness=kind)(
            vector()
        )
    return calls


_STUMBLES = "torch's own code stumbles; ours says what is wrong, or goes on"
TRANSFORMS = transforms()
DIFFERENT_TRANSFORMS = {
    "vjp, saved-tensor hooks": "they work at top level",
    "vjp by nothing": "nothing to differentiate by",
    "vjp, aux a number": "what is not differentiated may be anything",
    "jacrev, one row of none": _STUMBLES,
    "jacrev, keywords": "keyword arguments are passed on",
    "jacfwd by a number": _STUMBLES,
    "linearize by a number": _STUMBLES,
    "linearize, double": "converted, as by jvp",
    "tangent double": "converted to the dtype of the primal",
    "tangent complex": "there is no derivative along it",
    "jvp, at a dual": "forward mode nests",
    "jvp along a dual": "forward mode nests",
    **{f"{verb}, argnums=None": "all arguments" for verb in ("jacrev", "grad", "hessian")},
    **{f"jacfwd, argnums={n}": "zeros in torch" for n in (-1, -2, (-1, 0))},
    **{f"hessian, argnums={n}": "zeros in torch" for n in (-1, (-1, 0))},
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    assert_as_listed(torch.func, covector, name, TRANSFORMS[name], DIFFERENT_TRANSFORMS)


# torch.autograd.functional

PRODUCTS, MATRICES = ("vjp", "jvp", "vhp", "hvp"), ("jacobian", "hessian")


def cubes(*tensors: Tensor) -> Tensor:
    return sum((tensor**3).sum() for tensor in tensors)


def functional_calls() -> dict[str, Use]:
    """Names, and what is done with `covector.functional` or with `torch.autograd.functional`."""
    calls: dict[str, Use] = {}
    options = itertools.product(("forward-mode", "reverse-mode", "other"), *[(False, True)] * 3)
    for strategy, batch, strict, graphs in options:
        name, keywords = f"{strategy}, {batch}, {strict}, {graphs}", {"vectorize": batch, "strict": strict}
        calls[f"jacobian, {name}"] = lambda F, s=strategy, k=keywords, g=graphs: F.jacobian(
            torch.exp, vector(), strategy=s, create_graph=g, **k
        )
        calls[f"hessian, {name}"] = lambda F, s=strategy, k=keywords, g=graphs: F.hessian(
            cubes, vector(), outer_jacobian_strategy=s, create_graph=g, **k
        )
    for verb in (*PRODUCTS, *MATRICES):
        for name, (function, inputs) in SUBJECTS.items():
            for strict, graphs in itertools.product((False, True), repeat=2):
                calls[f"{verb}, {name}, strict={strict}, create_graph={graphs}"] = (
                    lambda F, v=verb, f=function, i=inputs, s=strict, g=graphs: getattr(F, v)(
                        f, i(), strict=s, create_graph=g
                    )
                )
    for verb, (name, v) in itertools.product(PRODUCTS, VECTORS.items()):
        function = (lambda a: a**3) if verb == "vjp" else cubes
        calls[f"{verb}, v {name}"] = lambda F, verb=verb, f=function, v=v: getattr(F, verb)(f, vector(), v)
    return calls


def one() -> Tensor:
    return torch.rand(1)


SUBJECTS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "cubes": (cubes, one),
    "cubes of two": (cubes, lambda: (torch.rand(1), torch.rand(1))),
    "requires grad": (cubes, lambda: torch.rand(1).requires_grad_()),
    "a sum": (torch.sum, one),
    "constant": (lambda a: torch.ones(()), one),
    "unused": (lambda a, b: cubes(a), lambda: (torch.rand(1), torch.rand(1))),
    "detached": (lambda a: cubes(a).detach(), one),
    "of shape (1, 1)": (lambda a: cubes(a).reshape(1, 1), one),
    "in a tuple": (lambda a: (cubes(a),), one),
    "in a list": (lambda a: [cubes(a)], one),
    "a number": (lambda a: 3.0, one),
    "None": (lambda a: None, one),
    "integers": (lambda a: a.long().sum(), one),
    "by a number": (cubes, lambda: 3.0),
    "by a list": (cubes, lambda: [torch.rand(1)]),
    "by a tuple with a number": (cubes, lambda: (torch.rand(1), 3.0)),
    "by integers": (lambda a: cubes(a.float()), lambda: torch.arange(1)),
    "by nothing": (lambda a: a.sum(), lambda: torch.rand(0)),
    "by double": (cubes, lambda: torch.rand(1, dtype=DOUBLE)),
}
VECTORS = {
    "missing": None,
    "too long": torch.ones(4),
    "to broadcast": torch.ones(1),
    "twice": (ONES, ONES),
    "in a tuple": (ONES,),
    "in a list": [ONES],
    "a number": 1.0,
    "double": torch.ones(3, dtype=DOUBLE),
    "integers": torch.ones(3, dtype=torch.int64),
    "right": ONES,
}
FUNCTIONAL = functional_calls()
DIFFERENT_FUNCTIONAL = {
    "hessian, forward-mode, True, False, False": "the result has no graph that nobody asked for",
    **{f"jvp, integers, strict=False, create_graph={g}": "zeros; torch stumbles" for g in (False, True)},
    **{f"hessian, by nothing, strict=False, create_graph={g}": _STUMBLES for g in (False, True)},
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional(name: str) -> None:
    assert_as_listed(
        torch.autograd.functional, covector.functional, name, FUNCTIONAL[name], DIFFERENT_FUNCTIONAL
    )
