"""`check_adjoint`: whether two linear operators are adjoint to each other, in their own precision."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covector._chart import dense
from covector._engine.rounding import EVERY, RandomRounding
from covector._random import seeded
from covector._tree import flatten, unflatten
from covector.checks.arguments import caller_of
from covector.checks.state import unchanged
from covector.errors import ArgumentTypeError
from covector.kernels.truth import nudged
from covector.report.report import Report
from covector.transforms._door import check_seed, summary
from covector.verify.finding import Finding, Outcome, Table
from covector.verify.leaves import is_differentiable

# Along how many random pairs the identity is asked, beside the one that is given and one that is aligned.
_PAIRS = 4

# How often x becomes At A x before it is the aligned one: near the largest singular value of A, the norms of
# A x and At y are no larger than what the two inner products are.
_POWERS = 3

# What one rounding of every result may do, in units of eps times the product of the norms.
_ROUNDING = 2

# Where that does not explain a difference, the noise is measured: by so many runs, in which numbers and the
# results of operations are rounded at random. The difference of a right pair has one degree of freedom, so
# that its square over the noise's has Fisher's F distribution with 1 and 16: below 6 squared but for one in
# 50,000.
_RUNS = 16
_SPREAD = 6

# An adjoint that is wrong by this share has to show, or the noise is too large to tell.
_SHARE = 0.2


def check_adjoint(A: Callable[..., Any], At: Callable[..., Any], x: Any, y: Any, *, seed: int = 0) -> Report:
    """Whether <A x, y> = <x, At y>: the test of a linear operator and its adjoint, without differences.

    It is asked for the given vectors and for random ones of their shapes, and both operators are asked
    whether they are linear. What rounding may do follows from the dtype and the norms; where that does not
    explain a difference, the noise of the operators is measured, by runs that are rounded at random. If an
    adjoint that is a fifth off could hide in it, the outcome is INCONCLUSIVE.

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
    A, At = _Operator("A", "x", A, _sizes(y), seed), _Operator("At", "y", At, _sizes(x), seed)
    with unchanged(A.function), torch.no_grad():
        random = [(_like(x, generator), _like(y, generator)) for _ in range(_PAIRS)]
        try:
            found, rows = _identity(A, At, _pairs(A, At, (x, y), random))
            findings = [found]
            if found.outcome is Outcome.PASSED:
                (a, c), (b, d) = random[:2]
                findings += [_linear(A, a, b), _linear(At, c, d)]
        except _WrongSize as wrong:
            findings, rows = [Finding("adjoint", Outcome.FAILED, str(wrong))], ()
    return Report(
        caller.name,
        "check_adjoint",
        tuple(findings),
        method=f"{_PAIRS + 2} pairs of vectors",
        seed=seed,
        evaluations=A.calls,
        seconds=time.perf_counter() - started,
        tables=(Table("inner products", ("pair", "<A x, y>", "<x, At y>", "difference", "allowed"), rows),),
    )


class _WrongSize(Exception):
    """An operator gave other tensors than the vectors on its other side, in this run or in every one."""


@dataclass
class _Operator:
    """A or At, counted, with the sizes of the tensors that it has to give."""

    name: str
    argument: str
    function: Callable[..., Any]
    sizes: list[int]
    seed: int
    calls: int = 0

    def __call__(self, tree: Any) -> Any:
        self.calls += 1
        image = self.function(tree)
        if _sizes(image) != self.sizes:
            text = f"{self.name}({self.argument}) has {_sizes(image)} numbers, expected {self.sizes}"
            raise _WrongSize(text)
        return image

    def perturbed(self, tree: Any) -> Iterator[list[Tensor]]:
        """What it gives if the vector, and all that it computes, are rounded at random."""
        leaves, spec = flatten(tree)
        generator = seeded(self.seed)
        for number in range(_RUNS):
            moved = [nudged(t, generator) if is_differentiable(t) else t for t in map(_dense, leaves)]
            vector = unflatten(moved, spec)
            try:
                with RandomRounding(self.seed + number, EVERY):
                    image = self(vector)
            except Exception:  # it does not run in torch's modes: the vector alone is rounded
                image = self(vector)
            yield _wide(image)


def _dense(leaf: Any) -> Any:
    return dense(leaf.detach()) if is_differentiable(leaf) else leaf


def _pairs(
    A: _Operator, At: _Operator, given: tuple[Any, Any], random: Sequence[tuple[Any, Any]]
) -> Iterator[tuple[Any, Any]]:
    """The pair that was given, random ones, and last x with A x.

    Random vectors are nearly orthogonal to each other: what a factor is off by is small beside their norms,
    and in low precision rounding could hide it. A x is not orthogonal to itself.
    """
    yield given
    yield from random
    x, y = random[0]
    for _ in range(_POWERS):
        x = _scaled(At(_scaled(A(x), y)), x)
    yield x, _scaled(A(x), y)


def _scaled(tree: Any, otherwise: Any) -> Any:
    """The vector with numbers about as large as one; another one if it is zero or not finite."""
    norm, count = _norm(_wide(tree)), sum(t.numel() for t in _wide(tree))
    if not 0 < norm < float("inf"):
        return otherwise
    leaves, spec = flatten(tree)
    factor = count**0.5 / norm
    return unflatten([(t.detach() * factor).to(t.dtype) if is_differentiable(t) else t for t in leaves], spec)


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
    A: _Operator, At: _Operator, pairs: Iterable[tuple[Any, Any]]
) -> tuple[Finding, tuple[tuple[Any, ...], ...]]:
    """The two inner products for each pair."""
    rows: list[tuple[Any, ...]] = []
    largest, doubt = 0.0, 0.0
    for number, (x, y) in enumerate(pairs):
        pushed, pulled = A(x), At(y)
        images, (from_x, from_y) = (_wide(pushed), _wide(pulled)), (_wide(x), _wide(y))
        left, right = _inner(images[0], from_y), _inner(from_x, images[1])
        largest = max(largest, _norm(images[0]) if number else 0.0)
        scale = _norm(images[0]) * _norm(from_y) + _norm(from_x) * _norm(images[1])
        allowed = _ROUNDING * _eps(pushed, y, x, pulled) * scale
        if not abs(left - right) <= allowed:
            lefts = [_inner(image, from_y) - left for image in A.perturbed(x)]
            rights = [_inner(from_x, image) - right for image in At.perturbed(y)]
            allowed += _SPREAD * math.hypot(_rms(lefts), _rms(rights))
        rows.append((number, str(_short(left)), str(_short(right)), abs(left - right), allowed))
        if not abs(left - right) <= allowed:
            text = f"<A x, y> = {_short(left)}, <x, At y> = {_short(right)}"
            return Finding("adjoint", Outcome.FAILED, text, advice=_advice(left, right)), tuple(rows)
        doubt = (
            allowed / max(abs(left), abs(right)) if left or right else 0.0
        )  # of the aligned pair, the last
    if not largest:
        return Finding("adjoint", Outcome.INCONCLUSIVE, "A x is zero for random vectors"), tuple(rows)
    if doubt > _SHARE:
        text = f"noise is {doubt:.2g} of the inner products: an adjoint that is so far off would pass"
        return Finding("adjoint", Outcome.INCONCLUSIVE, text, advice=_NOISY), tuple(rows)
    return Finding("adjoint", Outcome.PASSED), tuple(rows)


_NOISY = "The operators lose their digits: ask them in a wider dtype, or choose better conditioned ones."


def _rms(values: Sequence[complex]) -> float:
    return math.sqrt(sum(abs(value) ** 2 for value in values) / len(values))


def _sizes(tree: Any) -> list[int]:
    return [t.numel() for t in flatten(tree)[0] if is_differentiable(t)]


def _short(value: complex) -> complex | float:
    return float(f"{value.real:.6g}") if value.imag == 0 else complex(f"{value:.6g}")


def _advice(left: complex, right: complex) -> str:
    """What the quotient of the two says."""
    if right and abs(left / right.conjugate() - 1) < 1e-3 and abs(left.imag) > 1e-3 * abs(left):
        return "The two are conjugates of each other: At is the transpose, and should be conjugated too."
    return f"<A x, y> is {abs(left / right):.4g} x <x, At y> in size." if right else "<x, At y> is zero."


def _linear(operator: _Operator, a: Any, b: Any) -> Finding:
    """Whether an operator takes a sum to the sum."""
    name = f"{operator.name} is linear"
    (first, spec), second = flatten(a), flatten(b)[0]
    both = [s + t if is_differentiable(s) else s for s, t in zip(first, second, strict=True)]
    added = unflatten(both, spec)
    got, apart = _wide(operator(added)), (_wide(operator(a)), _wide(operator(b)))
    left = [g - s - t for g, s, t in zip(got, *apart, strict=True)]
    size = _norm(apart[0]) + _norm(apart[1])
    allowed = _ROUNDING * _eps(a) * size
    if _norm(left) > allowed:
        runs = operator.perturbed(added)
        allowed += _SPREAD * _rms([_norm([r - g for r, g in zip(run, got, strict=True)]) for run in runs])
    text = f"{operator.name}(a + b) is {_norm(left):.2g} from {operator.name}(a) + {operator.name}(b)"
    if not _norm(left) <= allowed:
        return Finding(name, Outcome.FAILED, text)
    if allowed > _SHARE * size:
        return Finding(name, Outcome.INCONCLUSIVE, f"{text}, noise is {allowed:.2g}", advice=_NOISY)
    return Finding(name, Outcome.PASSED)
