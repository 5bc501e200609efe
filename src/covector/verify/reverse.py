"""The derivative by reverse mode, as a linear map: what the graph behind the outputs gives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from covector._chart import Chart, Sampled
from covector._engine import graph
from covector._lazy import lazy
from covector.verify import constants
from covector.verify.analytic import QuietMap
from covector.verify.leaves import kind_of
from covector.verify.problem import Problem
from covector.verify.vectors import (
    PIECE,
    Cotangent,
    Pieces,
    combined,
    has_infinite,
    in_pieces,
    products,
    unit,
    weights,
)


class ReverseMap(QuietMap):
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

    def _over(self, pulled: Sequence[Tensor | None], factor: float, row: Tensor | None = None) -> Tensor:
        """The same divided by a number; into a row, if there is one for it."""
        inputs = self.problem.inputs
        if len(inputs.places) > 1 and isinstance(inputs, Chart):  # no copy of them but this one
            return inputs.coordinates(pulled, row).div_(factor)
        numbers = graph.written_out(inputs.coordinates(pulled))
        if row is not None:
            return torch.div(numbers, factor, out=row)
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
        if self.random.factor > 1 and has_infinite(numbers):
            sent, large = self.random, self.pulled
            self.random = sent.moderate()
            self.pulled = list(self.pull(self.sent))
            plain = self.scaled_back(self.pulled)
            if not self._overflows(plain, sent.factor):
                self.random, self.pulled = sent, large
            else:
                numbers = plain
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
        again = self._known_or_over(self.pull(self.sent), self.random.factor)
        self.repeated = [*(self.repeated or [first]), again]

    def _known_or_over(self, pulled: Sequence[Tensor | None], factor: float) -> Tensor:
        """Gradients divided by a number; where that is what is known already, no copy is made of it."""
        known, inputs = self.pulled_coordinates, self.problem.inputs
        if inputs.size <= PIECE or isinstance(inputs, Sampled):
            over = self._over(pulled, factor)
            return known if torch.equal(over, known) else over
        for place, tensor in zip(inputs.places, pulled, strict=True):
            parts = in_pieces(known[place.start : place.stop], place.coordinates(tensor))
            if not all(torch.equal(one, other / factor) for one, other in parts):
                return self._over(pulled, factor)
        return known

    def is_zero(self, pulled: Sequence[Tensor | None]) -> bool:
        """Whether gradients are zero everywhere, which is seen without a copy of them."""
        pairs = zip(self.problem.inputs.places, pulled, strict=True)
        return not any(value is not None and place.coordinates(value).any() for place, value in pairs)

    def prepare(self) -> None:
        """Pull the random cotangents back."""
        _ = self.mixed

    @lazy
    def mixed(self) -> np.ndarray:
        """v^T A for each random cotangent."""
        others = self.random.others
        if not others:
            return self.pulled_coordinates[None].numpy()
        mixed = torch.empty(1 + len(others), self.problem.inputs.size, dtype=torch.float64)
        first, mixed[0] = self.pulled_coordinates, self.pulled_coordinates
        self.repeated = [mixed[0] if one is first else one for one in self.repeated]
        self.pulled_coordinates = first = mixed[0]
        for row, cotangent in zip(mixed[1:], others, strict=True):
            if (pulled := self.pulled_as_sent(cotangent, row)) is not row:
                row[:] = pulled
        return mixed.numpy()

    def pulled_as_sent(self, cotangent: Cotangent, row: Tensor | None = None) -> Tensor:
        """The pullback of a cotangent, in coordinates and scaled back; into a row, if there is one for it."""
        pulled = self._over(self._pull_as_sent(cotangent), cotangent.factor, row)
        if cotangent.factor > 1 and has_infinite(pulled):
            plain = self._over(self._pull_as_sent(cotangent._replace(factor=1.0)), 1.0)
            return plain if self._overflows(plain, cotangent.factor) else pulled
        return pulled

    def _overflows(self, plain: Tensor, factor: float) -> bool:
        """Whether a gradient is so large that one that is this many times as large may be no number."""
        return bool(factor * plain.abs().max() > self.problem.largest**0.5)

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
        return self._known_or_over(self.pull(sent), self.random.again)

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
