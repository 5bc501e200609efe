"""The derivatives that are checked: reverse mode and forward mode, as linear maps.

Each answers the same questions: what are v^T A for some cotangents v (`mixed`), what are whole columns of A
(`columns`), what is one entry.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from covector._engine import forward, graph
from covector._engine.messages import CUSTOM_FUNCTION, missing_forward_rule, missing_kernel
from covector._lazy import lazy
from covector._linear import LinearMap
from covector._tree import Evaluation, flatten
from covector.errors import UnsupportedError
from covector.verify import constants
from covector.verify.leaves import kind_of
from covector.verify.problem import Problem
from covector.verify.vectors import (
    Cotangent,
    Cotangents,
    Pieces,
    combined,
    cotangents_of,
    normal,
    products,
    stacked,
    unit,
    weights,
)

# A chunk of a Jacobian holds at most this many numbers of input and output: what fits a cache.
_CHUNK_NUMBERS = 1 << 18


class Analytic(Protocol):
    """A derivative A that differences are held against."""

    label: str

    @property
    def cotangents(self) -> np.ndarray:
        """The random cotangents v, a row for each."""

    @property
    def mixed(self) -> np.ndarray:
        """The products v^T A."""

    def mixed_along(self, moves: np.ndarray) -> np.ndarray:
        """The products v^T A u for some directions u: cotangent, direction."""

    def mixed_in_pieces(self, move: Pieces) -> np.ndarray:
        """The same for one direction, which comes in pieces."""

    def columns(self, which: np.ndarray) -> np.ndarray:
        """These columns of A."""

    def entry(self, row: int, column: int) -> float:
        """One entry of A."""


class _QuietMap(LinearMap):
    """A map of a problem: that a batch became a loop is remembered, not warned about."""

    _refuses_draws = False
    _held: Callable[[], np.ndarray | None] = staticmethod(lambda: None)
    _matrix: np.ndarray | None = None
    """A, once all of it is known."""

    def __init__(self, problem: Problem, seed: int = 0, *, varied: bool = True) -> None:
        super().__init__(problem.caller)
        self.problem = problem
        self._seed, self.varied = seed, varied
        if not (problem.inputs.can_batch and problem.outputs.can_batch):
            self.batching = self.batching.down("loop", "torch does not stack sparse tensors")

    def _lowered(self, reason: str) -> None:
        self.batching = self.batching.down("loop", reason)

    @lazy
    def random(self) -> Cotangents:
        """Random cotangents of the outputs."""
        problem = self.problem
        return cotangents_of(
            problem.outputs,
            self._seed,
            varied=self.varied,
            few_digits=problem.low_precision or problem.is_lifted,
            half=problem.half_inside,
        )

    @property
    def cotangents(self) -> np.ndarray:
        """The random cotangents, a row for each: many are drawn anew, unless somebody holds them."""
        held = self._held()
        if held is None:
            held = self.random.rows.numpy()
            self._held = weakref.ref(held)
        return held

    def mixed_along(self, moves: np.ndarray) -> np.ndarray:
        """V^T A u for each random cotangent and each u."""
        raise NotImplementedError

    def mixed_in_pieces(self, move: Pieces) -> np.ndarray:
        """The same for one u, which is put together."""
        return self.mixed_along(np.concatenate([piece for _, piece in move], axis=1))

    def _adds_up(self, got: np.ndarray, expected: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Where a sum of images is the image of the sum; `size` is that of what was added up."""
        relative = 1e-3 + constants.ROUNDINGS_OF_A_PULLBACK * self.problem.rounding
        with np.errstate(all="ignore"):
            return ~(abs(got - expected) > 1e-5 + relative * size)

    @property
    def chunk(self) -> int:
        """How many rows or columns of the Jacobian are computed at once."""
        return max(1, _CHUNK_NUMBERS // max(1, sum(self.problem.shape)))


class ReverseMap(_QuietMap):
    """v -> J^T v by reverse mode."""

    label = "reverse mode"

    def __init__(
        self,
        problem: Problem,
        seed: int = 0,
        *,
        varied: bool = True,
        outputs: Sequence[Tensor] | None = None,
    ) -> None:
        super().__init__(problem, seed, varied=varied)
        self._outputs = list(problem.graph_outputs if outputs is None else outputs)
        self.odd: Cotangent | None = None
        """The cotangent of which the pullback is not the sum of the rows, where these were pulled back."""
        self.refused: Exception | None = None
        """What the backward raised for a cotangent that is expanded."""
        self.writes = False
        """Whether the backward wrote to the random cotangent that it was given."""
        self.repeated: list[Tensor] = []
        """Gradients of the random cotangent, if it was pulled back more than once."""

    @property
    def linear(self) -> bool:
        """Whether the pullback of a sum was the sum of the pullbacks, where rows were pulled back."""
        return self.odd is None and self.refused is None

    def pull(
        self,
        cotangents: Sequence[Tensor],
        outputs: Sequence[Tensor] | None = None,
        *,
        record: bool = False,
    ) -> Sequence[Tensor | None]:
        """What the graph behind the outputs gives, None where it leads nowhere."""
        problem = self.problem
        if not problem.differentiable:
            return [None] * len(problem.variables)
        outputs = self._outputs if outputs is None else outputs
        if problem.inside is None:
            return graph.backward(outputs, cotangents, problem.variables, keep=True, record=record)
        with problem.inside:
            return graph.backward(outputs, cotangents, problem.variables, keep=True, record=record)

    def apply(self, direction: list[Tensor]) -> list[Tensor]:
        """J^T v, zeros where the graph leads nowhere."""
        places = self.problem.inputs.places
        pulled = [p.strided(value) for p, value in zip(places, self.pull(direction), strict=True)]
        # A backward may return the same workspace every time.
        return [part.clone() for part in pulled] if self.batching.rung == "loop" else pulled

    def coordinates(self, pulled: Sequence[Tensor | None]) -> Tensor:
        """Gradients in coordinates, zeros where there is none: a copy, of what may be a workspace."""
        return self._over(pulled, 1.0)

    def _over(self, pulled: Sequence[Tensor | None], factor: float) -> Tensor:
        """The same divided by a number."""
        inputs = self.problem.inputs
        numbers = graph.written_out(inputs.coordinates(pulled))
        if len(inputs.places) > 1:  # those of several are put together
            return numbers.div_(factor)
        if numbers.stride() == (0,):  # of a sum, one number stands for all of them
            return (numbers[:1] / factor).expand(numbers.shape)
        return numbers / factor

    def pull_coordinates(self, cotangent: Tensor) -> Tensor:
        """The same from and to coordinates."""
        return self.coordinates(self.pull(self.problem.outputs.from_coords(cotangent.clone())))

    @property
    def sent(self) -> list[Tensor]:
        """The random cotangent as it is sent: a copy, to which a backward may write."""
        return self.random.sent(self.problem.outputs)

    @lazy
    def pulled(self) -> list[Tensor | None]:
        """The pullback of the random cotangent, as the graph gave it."""
        given = self.sent
        pulled = list(self.pull(given))
        self.writes = not self.random.unchanged(self.problem.outputs, given)
        return pulled

    @lazy
    def pulled_coordinates(self) -> Tensor:
        """The same in coordinates, scaled back."""
        numbers = self.scaled_back(self.pulled)
        if not self.problem.inputs.sparse_layouts:  # of those, a check looks at the numbers beyond the mask
            self.pulled = [None if value is None else kind_of(value) for value in self.pulled]
        return numbers

    def scaled_back(self, pulled: Sequence[Tensor | None]) -> Tensor:
        """Gradients of the random cotangent as it is sent, in coordinates: those of v itself."""
        return self._over(pulled, self.random.factor)

    def pull_again(self) -> None:
        """Pull the random cotangent back again; the gradients are kept in `repeated`."""
        first = self.pulled_coordinates
        # A copy: a backward may have written to the one that it was given.
        again = self.scaled_back(self.pull(self.sent))
        # Of those that are the same, one is enough.
        self.repeated = [*(self.repeated or [first]), first if torch.equal(first, again) else again]

    @lazy
    def mixed(self) -> np.ndarray:
        """v^T A for each random cotangent."""
        mixed = stacked([self.pulled_coordinates, *map(self.pulled_as_sent, self.random.others)])
        self.pulled_coordinates = mixed[0]
        return mixed.numpy()

    def pulled_as_sent(self, cotangent: Cotangent) -> Tensor:
        """The pullback of a cotangent, in coordinates and scaled back."""
        return self._over(self._pull_as_sent(cotangent), cotangent.factor)

    def _pull_as_sent(self, cotangent: Cotangent) -> Sequence[Tensor | None]:
        chart = self.problem.outputs
        try:
            return self.pull(cotangent.tensors(chart), record=cotangent.recorded)
        except Exception as error:
            if cotangent.recorded:  # without a second derivative, create_graph may be refused
                return self._pull_as_sent(cotangent._replace(recorded=False))
            if not (cotangent.expanded or cotangent.reordered or cotangent.part):
                raise
            # So may views of a cotangent that is transposed or lazily conjugate; an expanded one may not.
            pulled = self.pull(chart.from_coords(cotangent.row * cotangent.factor))
            if cotangent.expanded:
                self.refused = error
            return pulled

    def mixed_along(self, moves: np.ndarray) -> np.ndarray:
        """v^T A u for each random cotangent and each u."""
        return products(self.mixed, moves)

    def mixed_in_pieces(self, move: Pieces) -> np.ndarray:
        """The same for one u, of which no more than a piece is there."""
        return reduce(np.add, (products(self.mixed[:, span], piece) for span, piece in move))

    @lazy
    def again(self) -> Tensor:
        """The pullback of the random cotangent as it is sent a second time, scaled back."""
        return self.pulled_as_again()

    def pulled_as_again(self) -> Tensor:
        """The same by another run."""
        sent = self.random.sent_again(self.problem.outputs)
        return self._over(self.pull(sent), self.random.again)

    @lazy
    def of_zero(self) -> Tensor:
        """The pullback of a cotangent of zero."""
        return self.pull_coordinates(torch.zeros(self.problem.outputs.size, dtype=torch.float64))

    def rows(self, which: np.ndarray) -> np.ndarray:
        """These rows of A, by one batched pullback that adds up to a single one."""
        if self._matrix is not None:
            return self._matrix[which]
        basis = torch.zeros(len(which), self.problem.outputs.size, dtype=torch.float64)
        basis[torch.arange(len(which)), torch.from_numpy(which)] = 1.0
        stacks = self.problem.outputs.from_coords(basis)
        matrix = self._pulled_back(stacks)
        if self.batching.rung != "loop":
            mixture = weights(len(which), self._seed)
            together, mixed = self.pull_coordinates(mixture @ basis).numpy(), mixture.numpy()
            if not self._adds_up(combined(mixed, matrix), together, combined(abs(mixed), abs(matrix))).all():
                self.batching = self.batching.down("loop", "the batch disagrees with a single pullback")
                matrix = self._pulled_back(stacks)
        return matrix

    def _pulled_back(self, stacks: list[Tensor]) -> np.ndarray:
        pulled = self.problem.inputs.stack_to_coords(self.apply_batch(stacks)).detach().cpu()
        return graph.written_out(pulled).numpy()

    def columns(self, which: np.ndarray) -> np.ndarray:
        """These columns of A: every row is pulled back, in batches that agree with a single pullback.

        All columns are kept, where memory allows: each row is whole, whatever is asked of it.
        """
        if self._matrix is not None:
            return self._matrix[:, which]
        height, width = self.problem.shape
        keep = 8 * height * width <= constants.BATCH_BYTES
        asked = np.arange(width) if keep else which
        matrix = self.unchecked_columns(asked)
        odd = self._odd(matrix, asked)
        if odd is not None and self.batching.rung != "loop":
            self.batching = self.batching.down("loop", "the batch disagrees with a single pullback")
            matrix = self.unchecked_columns(asked)
            odd = self._odd(matrix, asked)
        self.odd = self.odd or odd
        if not keep:
            return matrix
        self._matrix = matrix
        return matrix[:, which]

    def unchecked_columns(self, which: np.ndarray) -> np.ndarray:
        """These columns of A, whether or not a batch agrees with a single pullback."""
        height = self.problem.outputs.size
        matrix = np.empty((height, len(which)))
        for start in range(0, height, self.chunk):
            stop = min(start + self.chunk, height)
            matrix[start:stop] = self._pulled_back(self.problem.outputs.basis(start, stop))[:, which]
        return matrix

    def _odd(self, matrix: np.ndarray, which: np.ndarray) -> Cotangent | None:
        """The first cotangent of which the pullback is not what these rows add up to."""
        with np.errstate(all="ignore"):
            sums, size = combined(self.cotangents, matrix), combined(abs(self.cotangents), abs(matrix))
            right = self._adds_up(sums, self.mixed[:, which], size).all(1)
        return next((self.every_cotangent[index] for index in np.flatnonzero(~right)), None)

    @property
    def every_cotangent(self) -> tuple[Cotangent, ...]:
        """The random cotangents as they are sent, in the order of `mixed`."""
        return Cotangent(self.random.rows[0], "", self.random.factor), *self.random.others

    def missing_from_sums(self) -> np.ndarray:
        """By how much the pullback of each cotangent is not what the rows of A add up to."""
        rows = self.unchecked_columns(np.arange(self.problem.inputs.size))
        return combined(self.cotangents, rows) - self.mixed

    def entry(self, row: int, column: int) -> float:
        """One entry of A."""
        return float(self.pull_coordinates(unit(self.problem.outputs.size, row))[column])


class ForwardMap(_QuietMap):
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


class ZeroMap(_QuietMap):
    """The derivative of a function whose outputs have no graph: zero."""

    label = "an output without a graph"

    @lazy
    def mixed(self) -> np.ndarray:
        """Zero."""
        return np.zeros((len(self.cotangents), self.problem.inputs.size))

    def mixed_along(self, moves: np.ndarray) -> np.ndarray:
        """Zero."""
        return np.zeros((len(self.cotangents), len(moves)))

    def columns(self, which: np.ndarray) -> np.ndarray:
        """Zero."""
        return np.zeros((self.problem.outputs.size, len(which)))

    def entry(self, row: int, column: int) -> float:
        """Zero."""
        return 0.0
