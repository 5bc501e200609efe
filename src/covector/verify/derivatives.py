"""A problem, and the derivatives of it that several checks need, each computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from covector.verify.maps import ForwardMap, Matrix, ReverseMap, forward_matrix, reverse_matrix
from covector.verify.probes import Probes, draw
from covector.verify.problem import Problem, Tolerance, within

# Below this many entries looking at each is as cheap as probing.
_FEW_ENTRIES = 1 << 10


@dataclass(frozen=True)
class Options:
    """What is to be checked, and how."""

    tol: Tolerance
    fast: bool = False
    probes: int = 4
    max_entries: int | None = None
    nondet_tol: float = 0.0
    reverse: bool = True
    forward: bool = False
    undefined: bool = True
    dtypes: bool = False
    batched: bool = False
    batched_forward: bool = False


class Derivatives:
    """A problem, and the derivatives of it that several checks need, each computed once."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem = problem
        self.options = options
        self.reverse = ReverseMap(problem)
        self._linear = True
        self.raised: BaseException | None = None

    @property
    def probing(self) -> bool:
        """Whether random signs are used instead of every entry."""
        entries = self.problem.inputs.size * self.problem.outputs.size
        return self.options.fast and entries > _FEW_ENTRIES

    @cached_property
    def cotangents(self) -> list[Tensor]:
        """One random cotangent, the same for every check."""
        return self.problem.outputs.from_coords(self._cotangent)

    @cached_property
    def _cotangent(self) -> Tensor:
        return normal(self.problem.outputs.size, self.options.tol.seed)

    @cached_property
    def pulled(self) -> list[Tensor | None]:
        """Its pullback, as the graph gave it."""
        return list(self.reverse.pull(self.cotangents))

    def pull(self, cotangents: list[Tensor]) -> Tensor:
        """A pullback in coordinates."""
        return self.coordinates(self.reverse.apply(cotangents))

    def coordinates(self, tensors: list[Tensor]) -> Tensor:
        """Gradients in coordinates."""
        return self.problem.inputs.to_coords([t.detach() for t in tensors]).to(torch.float64)

    @cached_property
    def forward(self) -> ForwardMap:
        """The derivative by forward mode."""
        return ForwardMap(self.problem)

    @cached_property
    def forward_matrix(self) -> Matrix:
        """The Jacobian by forward mode."""
        return forward_matrix(self.problem, self.forward)

    def push(self, tangent: Tensor) -> Tensor:
        """A push in coordinates."""
        return self.pushed(self.forward.apply(self.problem.inputs.from_coords(tangent)))

    def pushed(self, tensors: list[Tensor]) -> Tensor:
        """Tangents of the outputs in coordinates."""
        return self.problem.outputs.to_coords([t.detach() for t in tensors]).to(torch.float64)

    @cached_property
    def pulled_coordinates(self) -> Tensor:
        """The pullback of the random cotangent, in coordinates."""
        return self.filled(self.pulled)

    def filled(self, pulled: Sequence[Tensor | None]) -> Tensor:
        """Gradients in coordinates, zeros where there is none."""
        return self.coordinates(self.reverse.filled(pulled))

    @cached_property
    def matrix(self) -> Matrix:
        """The Jacobian by reverse mode, by a loop if the batch disagrees with a single pullback."""
        matrix = reverse_matrix(self.problem, self.reverse)
        if self.consistent(matrix):
            return matrix
        looping = self._looping()
        matrix = reverse_matrix(self.problem, looping)
        if self.consistent(matrix):
            self.reverse = looping
        else:
            self._linear = False
        return matrix

    def consistent(self, matrix: Matrix) -> bool:
        """Whether the pullback of a sum is the sum of the pullbacks."""
        v, got = self._cotangent, self.pulled_coordinates
        if matrix.dense is not None:
            summed = v @ matrix.dense
            if within(got, summed, self.options.tol.rtol, self.options.tol.atol):
                return True
            size = v.abs() @ matrix.dense.abs()
        else:
            weighted = v[matrix.rows] * matrix.values
            zeros = torch.zeros(matrix.shape[1], dtype=torch.float64)
            summed = zeros.index_add(0, matrix.columns, weighted)
            size = zeros.index_add(0, matrix.columns, weighted.abs())
        return self.close(got, summed, size)

    def close(self, got: Tensor, expected: Tensor, size: Tensor) -> bool:
        """Equal by the tolerance, relative to the size of what was added up; NaN tells nothing here."""
        rtol, atol = self.options.tol.rtol, self.options.tol.atol + self.options.nondet_tol
        if within(got, expected, rtol, atol):
            return True
        allowed = rtol * size + atol
        rounded = (got - expected).abs() <= allowed + 16 * self.problem.derivative_rounding * size
        return bool((rounded | got.isnan() | expected.isnan() | ~size.isfinite()).all())

    @cached_property
    def probes(self) -> Probes:
        """Random signs, pulled back; by a loop if the batch disagrees with a single pullback."""
        probes = self._draw(self.reverse)
        if self._adds_up(probes):
            return probes
        looping = self._looping()
        probes = self._draw(looping)
        if self._adds_up(probes):
            self.reverse = looping
        else:
            self._linear = False
        return probes

    def is_linear(self) -> bool:
        """Whether pullbacks added up when they were computed."""
        return (self.probes if self.probing else self.matrix) is not None and self._linear

    def of_zero(self) -> Tensor:
        """The pullback of a cotangent of zero."""
        known = None if self.probing else self.matrix.of_zero
        if known is not None:
            return known
        return self.pull([torch.zeros_like(t) for t in self.problem.graph_outputs])

    def _draw(self, reverse: ReverseMap) -> Probes:
        return draw(self.problem, reverse, self.options.probes, self.options.tol.seed)

    def _adds_up(self, probes: Probes) -> bool:
        got = self.pull(self.problem.outputs.from_coords(probes.cotangents.sum(0)))
        size = probes.pulled.abs().sum(0) + self.problem.outputs.size**0.5
        return self.close(got, probes.pulled.sum(0), size)

    def _looping(self) -> ReverseMap:
        looping = ReverseMap(self.problem)
        looping.batching = looping.batching.down("loop", "the batch disagrees with a single pullback")
        return looping


@lru_cache(maxsize=128)
def normal(size: int, seed: int) -> Tensor:
    """Normally distributed numbers, the same for the same arguments."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
