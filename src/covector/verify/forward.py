"""The derivative by forward mode, as a linear map: each push runs the function."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from covector._engine import forward, graph
from covector._engine.messages import CUSTOM_FUNCTION, missing_forward_rule, missing_kernel
from covector._lazy import lazy
from covector._tree import Evaluation, flatten
from covector.errors import UnsupportedError
from covector.verify.analytic import QuietMap
from covector.verify.vectors import (
    combined,
    normal,
    products,
    unit,
)


class ForwardMap(QuietMap):
    """u -> J u by forward mode."""

    label = "forward mode"
    _pushed: tuple[np.ndarray, np.ndarray] | None = None

    def apply(self, direction: list[Tensor]) -> list[Tensor]:
        """J u, zeros where an output has no tangent."""
        return [tangent.detach() for tangent in self.push(range(len(direction)), direction)]

    def push(self, chosen: Sequence[int], tangents: list[Tensor]) -> list[Tensor]:
        """The same with tangents for some of the inputs only, as the function gave it."""
        problem = self.problem
        if problem.closes_over:
            raise UnsupportedError(
                "the function uses tensors from outside in place of its inputs, which forward mode does not "
                "see; pass them as arguments"
            )
        if layouts := problem.inputs.sparse_layouts:
            raise UnsupportedError(
                f"torch has no forward mode for inputs of layout {', '.join(layouts)}: such a tensor takes "
                "no tangent"
            )

        def run(leaves: list[Tensor]) -> Evaluation:
            outputs, _ = flatten(problem.call(leaves))
            return Evaluation([outputs[i] for i in problem.kept], problem.spec, [], None)

        primals = [variable.detach() for variable in problem.variables]
        try:
            pushed = forward.push(run, primals, chosen, tangents, recorded=False)
        except Exception as error:
            if forward.raised_by_rule(error):
                problem.raised = None  # the function itself does not raise at the point
            operation = missing_forward_rule(error) or missing_kernel(error)
            if operation is None or not isinstance(error, NotImplementedError):
                raise
            names = graph.functions_without("jvp", problem.graph_outputs)
            if operation == CUSTOM_FUNCTION and names:
                raise UnsupportedError(
                    f"{', '.join(names)} defines no jvp, which forward mode needs; define it, or leave "
                    "check_forward_ad out"
                ) from error
            raise UnsupportedError(f"torch has no forward-mode rule for {operation}") from error
        filled = zip(problem.outputs.places, pushed.filled(), strict=True)
        return [place.strided(tangent) for place, tangent in filled]

    def coordinates(self, pushed: list[Tensor]) -> Tensor:
        """Tangents of the outputs in coordinates."""
        return graph.written_out(self.problem.outputs.coordinates(pushed)).clone()

    def push_coordinates(self, tangent: Tensor) -> Tensor:
        """A push from and to coordinates."""
        return self.coordinates(self.apply(self.problem.inputs.from_coords(tangent.clone())))

    @lazy
    def mixed(self) -> np.ndarray:
        """v^T A for each random cotangent."""
        return combined(self.cotangents, self.columns(np.arange(self.problem.inputs.size)))

    def mixed_along(self, moves: np.ndarray) -> np.ndarray:
        """v^T A u for each random cotangent and each u."""
        images = np.stack([self.push_coordinates(torch.from_numpy(move)).numpy() for move in moves])
        self._pushed = self._pushed or (moves, images)
        return products(self.cotangents, images)

    @property
    def knows_columns(self) -> bool:
        """Whether every column of A was computed."""
        return self._matrix is not None

    def sum_of_pushes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A tangent, its image as a sum of images that are known, and the size of what was added up.

        It is the random one if all of A is known, else a multiple of the sum of the first that were pushed.
        """
        tangent = self.along
        if self._matrix is not None:
            return tangent, *self._image_of(tangent, self._matrix)
        if self._pushed is None:
            self.mixed_along(np.stack([tangent, tangent[::-1]]))
        assert self._pushed is not None
        moves, images = self._pushed
        scale = 1.0 / max(abs(moves).max(initial=0.0), 1e-300)
        return scale * moves.sum(0), scale * images.sum(0), scale * abs(images).sum(0)

    def columns(self, which: np.ndarray) -> np.ndarray:
        """These columns of A. All of them are kept, once batches agreed with a single push."""
        if self._matrix is not None:
            return self._matrix[:, which]
        matrix = self.unchecked_columns(which)
        if len(which) == self.problem.inputs.size:
            if self.batching.rung != "loop" and self._disagrees(matrix):
                self.batching = self.batching.down("loop", "the batch disagrees with a single push")
                matrix = self.unchecked_columns(which)
            self._matrix = matrix
        return matrix

    @staticmethod
    def _image_of(tangent: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The image of a tangent by all columns, and the size of what was added up."""
        return combined(tangent, matrix.T), combined(abs(tangent), abs(matrix.T))

    @lazy
    def along(self) -> np.ndarray:
        """A random tangent."""
        return normal(self.problem.inputs.size, self._seed).numpy()

    def _disagrees(self, matrix: np.ndarray) -> bool:
        """Whether these columns do not add up to what a single push gives."""
        alone = self.push_coordinates(torch.from_numpy(self.along)).numpy()
        with np.errstate(all="ignore"):
            image, size = self._image_of(self.along, matrix)
        return not self._adds_up(image, alone, size).all()

    def unchecked_columns(self, which: np.ndarray) -> np.ndarray:
        """These columns of A, computed anew."""
        height, width = self.problem.shape
        matrix = np.empty((height, len(which)))
        for start in range(0, len(which), self.chunk):
            some = which[start : start + self.chunk]
            basis = torch.zeros(len(some), width, dtype=torch.float64)
            basis[torch.arange(len(some)), torch.from_numpy(some)] = 1.0
            images = self.apply_batch(self.problem.inputs.from_coords(basis))
            block = graph.written_out(self.problem.outputs.stack_to_coords(images).cpu())
            matrix[:, start : start + len(some)] = block.numpy().T
        return matrix

    def entry(self, row: int, column: int) -> float:
        """One entry of A."""
        return float(self.push_coordinates(unit(self.problem.inputs.size, column))[row])
