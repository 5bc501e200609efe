"""`check_adjoint`: whether two linear operators are adjoint to each other, in their own precision."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from covector._chart import dense
from covector._random import seeded
from covector._tree import flatten, unflatten
from covector.errors import ArgumentTypeError, Caller
from covector.report.report import Report
from covector.transforms._door import check_seed, summary
from covector.verify.arguments import caller_of
from covector.verify.finding import Finding, Outcome, Table
from covector.verify.leaves import is_differentiable
from covector.verify.state import unchanged

# Along how many random pairs the identity is asked, beside the one that is given and one that is aligned.
_PAIRS = 4

# What rounding may do, in units of eps times the product of the norms. An inner product of n terms is rounded
# to about sqrt(n) eps times its terms, and the product of the norms is about sqrt(n) times the inner product.
_ROUNDING = 8


def check_adjoint(A: Callable[..., Any], At: Callable[..., Any], x: Any, y: Any, *, seed: int = 0) -> Report:
    """Whether <A x, y> = <x, At y>: the test of a linear operator and its adjoint, without differences.

    It is asked for the given vectors and for random ones of their shapes, and both operators are asked
    whether they are linear. What rounding may do follows from the dtype and from the norms.

    Args:
        A: a linear operator: takes a tree like `x`, returns one like `y`.
        At: its adjoint: takes a tree like `y`, returns one like `x`.
        x, y: vectors, as tensors or trees of them.
        seed: of the random vectors.

    Returns:
        A `Report`, true if everything passed.

    Raises:
        ArgumentTypeError: the call itself is wrong.

    Example:
        >>> import torch, covector
        >>> M = torch.randn(3, 4)
        >>> bool(covector.check_adjoint(lambda x: M @ x, lambda y: M.T @ y, torch.ones(4), torch.ones(3)))
        True
    """
    started = time.perf_counter()
    caller = caller_of("check_adjoint", A)
    for name, tree in (("x", x), ("y", y)):
        if not any(map(is_differentiable, flatten(tree)[0])):
            raise ArgumentTypeError(f"{caller}: {name} holds no floating-point tensor, got {summary(tree)}.")
    if not callable(At):
        raise ArgumentTypeError(f"{caller}: the adjoint must be a function, got {summary(At)}.")
    check_seed("check_adjoint", seed)
    generator = seeded(seed)
    with unchanged(A), torch.no_grad():
        random = [(_like(x, generator), _like(y, generator)) for _ in range(_PAIRS)]
        found, rows = _identity(caller, A, At, _pairs(A, (x, y), random))
        findings = [found]
        if found.outcome is Outcome.PASSED:
            (a, c), (b, d) = random[:2]
            findings += [_linear("A", A, a, b), _linear("At", At, c, d)]
    return Report(
        caller.name,
        "check_adjoint",
        tuple(findings),
        method=f"{_PAIRS + 2} pairs of vectors",
        seed=seed,
        evaluations=len(rows) + (4 if len(findings) > 1 else 0),
        seconds=time.perf_counter() - started,
        tables=(Table("inner products", ("pair", "<A x, y>", "<x, At y>", "difference", "allowed"), rows),),
    )


def _pairs(
    A: Callable[..., Any], given: tuple[Any, Any], random: Sequence[tuple[Any, Any]]
) -> Iterator[tuple[Any, Any]]:
    """The pair that was given, random ones, and last x with A x.

    Random vectors are nearly orthogonal to each other: what a factor is off by is small beside their norms,
    and in low precision rounding could hide it. A x is not orthogonal to itself.
    """
    yield given
    yield from random
    x, _ = random[0]
    yield x, A(x)


def _like(tree: Any, generator: torch.Generator) -> Any:
    """Standard normal numbers in the shapes and dtypes of a tree."""
    leaves, spec = flatten(tree)
    drawn = [
        torch.randn(
            t.shape, generator=generator, dtype=torch.complex128 if t.is_complex() else torch.float64
        ).to(t.device, t.dtype)
        if is_differentiable(t)
        else t
        for t in leaves
    ]
    return unflatten(drawn, spec)


def _wide(tree: Any) -> list[Tensor]:
    """The numbers of a tree in double precision."""
    return [
        dense(t.detach()).to("cpu", torch.complex128 if t.is_complex() else torch.float64).flatten()
        for t in flatten(tree)[0]
        if is_differentiable(t)
    ]


def _inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> complex:
    """The sum of a conj(b)."""
    return sum((complex((s * t.conj()).sum()) for s, t in zip(a, b, strict=True)), 0j)


def _norm(tree: Sequence[Tensor]) -> float:
    return float(sum(float(t.abs().square().sum()) for t in tree) ** 0.5)


def _eps(*trees: Any) -> float:
    tensors = [t for tree in trees for t in flatten(tree)[0] if is_differentiable(t)]
    return max(torch.finfo(t.dtype).eps for t in tensors)


def _identity(
    caller: Caller, A: Callable[..., Any], At: Callable[..., Any], pairs: Iterable[tuple[Any, Any]]
) -> tuple[Finding, tuple[tuple[Any, ...], ...]]:
    """The two inner products for each pair."""
    rows: list[tuple[Any, ...]] = []
    largest = 0.0
    for number, (x, y) in enumerate(pairs):
        pushed, pulled = A(x), At(y)
        for what, got, expected in (("A(x)", pushed, y), ("At(y)", pulled, x)):
            if [t.shape for t in _wide(got)] != [t.shape for t in _wide(expected)]:
                text = f"{what} has {_sizes(got)} numbers, expected {_sizes(expected)}"
                return Finding("adjoint", Outcome.FAILED, text), tuple(rows)
        wide = [_wide(tree) for tree in (pushed, y, x, pulled)]
        left, right = _inner(wide[0], wide[1]), _inner(wide[2], wide[3])
        largest = max(largest, _norm(wide[0]) if number else 0.0)
        scale = _norm(wide[0]) * _norm(wide[1]) + _norm(wide[2]) * _norm(wide[3])
        allowed = _ROUNDING * _eps(pushed, y, x, pulled) * scale
        rows.append((number, str(_short(left)), str(_short(right)), abs(left - right), allowed))
        if not abs(left - right) <= allowed:
            text = f"<A x, y> = {_short(left)}, <x, At y> = {_short(right)}"
            return Finding("adjoint", Outcome.FAILED, text, advice=_advice(left, right)), tuple(rows)
    if not largest:
        return Finding("adjoint", Outcome.INCONCLUSIVE, "A x is zero for random vectors"), tuple(rows)
    return Finding("adjoint", Outcome.PASSED), tuple(rows)


def _sizes(tree: Any) -> list[int]:
    return [t.numel() for t in _wide(tree)]


def _short(value: complex) -> complex | float:
    return float(f"{value.real:.6g}") if value.imag == 0 else complex(f"{value:.6g}")


def _advice(left: complex, right: complex) -> str:
    """What the quotient of the two says."""
    if right and abs(left / right.conjugate() - 1) < 1e-3 and abs(left.imag) > 1e-3 * abs(left):
        return "The two are conjugates of each other: At is the transpose, and should be conjugated too."
    return f"<A x, y> is {abs(left / right):.4g} x <x, At y> in size." if right else "<x, At y> is zero."


def _linear(name: str, operator: Callable[..., Any], a: Any, b: Any) -> Finding:
    """Whether an operator takes a sum to the sum."""
    (first, spec), second = flatten(a), flatten(b)[0]
    both = [s + t if is_differentiable(s) else s for s, t in zip(first, second, strict=True)]
    got, apart = _wide(operator(unflatten(both, spec))), (_wide(operator(a)), _wide(operator(b)))
    left = [g - s - t for g, s, t in zip(got, *apart, strict=True)]
    allowed = _ROUNDING * _eps(a) * (_norm(apart[0]) + _norm(apart[1]))
    if _norm(left) <= allowed:
        return Finding(f"{name} is linear", Outcome.PASSED)
    text = f"{name}(a + b) is {_norm(left):.2g} from {name}(a) + {name}(b)"
    return Finding(f"{name} is linear", Outcome.FAILED, text)
