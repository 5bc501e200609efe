"""The derivatives that are compared: reverse mode, forward mode, and differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from covector._engine import forward, graph
from covector._lazy import lazy
from covector._linear import LinearMap, missing_forward_rule
from covector._tree import Evaluation, flatten
from covector.errors import ResourceError, UnsupportedError
from covector.verify.problem import Problem

# A chunk of a Jacobian holds at most this many numbers of input and output: what fits a cache.
_CHUNK_NUMBERS = 1 << 18

# A Jacobian with fewer entries than this share is kept as a list of them.
_SPARSE = 0.1
_SMALL = 1 << 14

# The largest dense Jacobian that is held in memory, in entries (256 MB).
_LARGEST = 1 << 25


class _QuietMap(LinearMap):
    """A map of a problem: a lower rung is remembered, not warned about."""

    _refuses_draws = False

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.caller)
        self.problem = problem
        if not (problem.inputs.can_batch and problem.outputs.can_batch):
            self.batching = self.batching.down("loop", "torch does not stack sparse tensors")

    def _lowered(self, reason: str) -> None:
        self.batching = self.batching.down("loop", reason)


class ReverseMap(_QuietMap):
    """v -> J^T v by reverse mode."""

    label = "reverse mode"

    def __init__(self, problem: Problem, outputs: Sequence[Tensor] | None = None) -> None:
        super().__init__(problem)
        self._outputs = list(problem.graph_outputs if outputs is None else outputs)

    def pull(
        self, cotangents: Sequence[Tensor], outputs: Sequence[Tensor] | None = None
    ) -> Sequence[Tensor | None]:
        """What the graph behind the outputs gives, None where it leads nowhere."""
        problem = self.problem
        if not problem.differentiable:
            return [None] * len(problem.variables)
        outputs = self._outputs if outputs is None else outputs
        if problem.device is None:
            return graph.backward(outputs, cotangents, problem.variables, keep=True, record=False)
        with problem.device:
            return graph.backward(outputs, cotangents, problem.variables, keep=True, record=False)

    def apply(self, direction: list[Tensor]) -> list[Tensor]:
        """J^T v, zeros where the graph leads nowhere."""
        pulled = self.filled(self.pull(direction))
        # A backward may return the same workspace every time.
        return [part.clone() for part in pulled] if self.batching.rung == "loop" else pulled

    def filled(self, pulled: Sequence[Tensor | None]) -> list[Tensor]:
        """Gradients in strided layout, zeros where there is none."""
        places = self.problem.inputs.places
        return [place.strided(value) for place, value in zip(places, pulled, strict=True)]


class ForwardMap(_QuietMap):
    """u -> J u by forward mode."""

    label = "forward mode"

    def apply(self, direction: list[Tensor]) -> list[Tensor]:
        """J u, zeros where an output has no tangent."""
        return self.push(range(len(direction)), direction)

    def push(self, chosen: Sequence[int], tangents: list[Tensor]) -> list[Tensor]:
        """The same with tangents for some of the inputs only."""
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
            pushed = forward.push(run, primals, chosen, tangents)
        except NotImplementedError as error:
            operation = missing_forward_rule(error) or missing_kernel(error)
            if operation is None:
                raise
            names = graph.functions_without("jvp", problem.graph_outputs)
            if "custom" in operation and names:
                raise UnsupportedError(
                    f"{', '.join(names)} defines no jvp, which forward mode needs; define it, or leave "
                    "check_forward_ad out"
                ) from error
            raise UnsupportedError(f"torch has no forward-mode rule for {operation}") from error
        filled = zip(problem.outputs.places, pushed.filled(), strict=True)
        return [place.strided(tangent.detach()) for place, tangent in filled]


# What torch says when it does not have an operation for sparse tensors, or not its derivative.
_LACKING = {
    r"Could not run '([^']+)' with arguments from the '((?:Sparse|Mkldnn)\w+)' backend": r"\1 on \2 tensors",
    r"derivative for (aten::_sparse\w+) is not implemented": r"a derivative of \1",
    r"(\w+) does not support automatic differentiation for outputs with complex dtype": (
        r"a derivative of \1 for complex numbers"
    ),
    r"Sparse (\w+) tensors do not have (strides|is_contiguous)": (
        r"an operation of this backward on \1 tensors"
    ),
    r"conversion from (Sparse\w*) to (Sparse\w+) for input tensors with sparse_dim\(\)!=2": (
        r"a conversion from \1 to \2 with batch dimensions"
    ),
    r"Expect the same number of specified elements per batch": (
        "a batch of compressed tensors that differ in their number of elements"
    ),
    r"unsupported tensor layout: (Sparse\w+)": r"an operation of this backward on \1 tensors",
    r"addmm: computation on \w+ is not implemented for (.+)": r"addmm for \1",
    r"Sparse division requires a scalar": "a division by a sparse tensor",
    r"cannot raise to zeroth power on sparse tensor": "the zeroth power of a sparse tensor",
}


def missing_kernel(error: Exception) -> str | None:
    """The operation that torch does not have for sparse tensors, if that is what this error says."""
    text = str(error)
    for said, meant in _LACKING.items():
        if found := re.search(said, text):
            return found.expand(meant)
    return None


def row_sizes(matrix: Tensor) -> Tensor:
    """The largest finite entry of each row, without its sign."""
    if matrix.shape[1] == 0:
        return torch.zeros(matrix.shape[0], dtype=torch.float64)
    return matrix.abs().nan_to_num(0.0, 0.0, 0.0).amax(1)


class Entries(NamedTuple):
    """The entries of a matrix that are not zero."""

    rows: Tensor
    columns: Tensor
    values: Tensor

    @classmethod
    def of(cls, block: Tensor, start: int = 0) -> Entries:
        """Those of a block whose first row is row `start` of the matrix."""
        rows, columns = block.nonzero().unbind(1)
        return cls(rows + start if start else rows, columns, block[rows, columns])

    @classmethod
    def joined(cls, parts: Sequence[Entries]) -> Entries:
        """Those of several blocks."""
        return parts[0] if len(parts) == 1 else cls(*(torch.cat(part) for part in zip(*parts, strict=True)))


class Matrix:
    """A Jacobian: dense, or as a list of its entries where few of them differ from zero."""

    def __init__(
        self,
        shape: tuple[int, int],
        dense: Tensor | None = None,
        entries: Sequence[Entries] = (),
        of_zero: Tensor | None = None,
    ) -> None:
        self.shape = shape
        self.of_zero = of_zero
        self.dense = torch.zeros(shape, dtype=torch.float64) if dense is None and not entries else dense
        self._entries = entries

    @lazy
    def entries(self) -> Entries:
        """The entries that are not zero."""
        return Entries.joined(self._entries) if self.dense is None else Entries.of(self.dense)

    def along(self, step: Tensor, colour: Tensor, first: int, last: int) -> Tensor:
        """J applied to the directions of colours first..last: one row for each colour."""
        if self.dense is not None and last - first == self.shape[1]:
            return (self.dense * step).T
        result = torch.zeros(last - first, self.shape[0], dtype=torch.float64)
        if self.dense is not None:
            inside = ((colour >= first) & (colour < last)).nonzero().flatten()
            scaled = (self.dense[:, inside] * step[inside]).T
            return result.index_add_(0, colour[inside] - first, scaled)
        rows, columns, values = self.entries
        of = colour[columns]
        inside = ((of >= first) & (of < last)).nonzero().flatten()
        place = (of[inside] - first, rows[inside])
        return result.index_put_(place, values[inside] * step[columns[inside]], accumulate=True)

    def row_sizes(self) -> Tensor:
        """The largest entry of each row, without its sign."""
        if self.dense is not None:
            return row_sizes(self.dense)
        sizes = torch.zeros(self.shape[0], dtype=torch.float64)
        return sizes.scatter_reduce_(0, self.entries.rows, self.entries.values.abs(), "amax")

    def filled(self) -> Tensor:
        """The matrix with its zeros written out."""
        if self.dense is not None:
            return self.dense
        result = torch.zeros(self.shape, dtype=torch.float64)
        result[self.entries.rows, self.entries.columns] = self.entries.values
        return result

    @property
    def listed(self) -> bool:
        """Whether its entries are few enough to look for a pattern."""
        return self.dense is None or self.dense.numel() <= _SMALL

    def entry(self, row: int, column: int) -> float:
        """One entry."""
        if self.dense is not None:
            return float(self.dense[row, column])
        rows, columns, values = self.entries
        at = ((rows == row) & (columns == column)).nonzero().flatten()
        return float(values[at].sum()) if at.numel() else 0.0

    def row_columns(self, row: int) -> Tensor:
        """The columns in which this row has an entry."""
        if self.dense is not None:
            return self.dense[row].nonzero().flatten()
        return self.entries.columns[self.entries.rows == row]


def chunk_of(problem: Problem) -> int:
    """How many rows or columns of the Jacobian are computed at once."""
    return max(1, _CHUNK_NUMBERS // max(1, problem.inputs.size + problem.outputs.size))


def reverse_matrix(problem: Problem, reverse: ReverseMap) -> Matrix:
    """The Jacobian by reverse mode, a chunk of rows at a time."""
    shape = (problem.outputs.size, problem.inputs.size)
    size, small = chunk_of(problem), shape[0] * shape[1] <= _SMALL
    of_zero: Tensor | None = None
    whole: list[Tensor] = []
    entries: list[Entries] = []
    for start in range(0, shape[0], size):
        stop = min(start + size, shape[0])
        # One row past the end of the basis: the image of a cotangent of zero.
        basis = problem.outputs.basis(start, stop + (stop == shape[0]))
        block = graph.written_out(problem.inputs.stack_to_coords(reverse.apply_batch(basis)).cpu())
        if stop == shape[0]:
            of_zero, block = block[-1], block[:-1]
        if not small and not whole:
            entries.append(Entries.of(block, start))
        if small or whole or entries[-1].rows.numel() > _SPARSE * block.numel():
            if shape[0] * shape[1] > _LARGEST:
                raise ResourceError(
                    f"the Jacobian has {shape[0]} x {shape[1]} entries, most of them not zero; checking "
                    "each would take too much memory. Pass fast_mode=True, or max_entries=."
                )
            if not whole and start:
                whole.append(Matrix((start, shape[1]), None, entries[:-1]).filled())
            whole.append(block)
            entries = []
    dense = None if not whole else whole[0] if len(whole) == 1 else torch.cat(whole)
    return Matrix(shape, dense, entries, of_zero)


def forward_matrix(problem: Problem, forward_map: ForwardMap) -> Matrix:
    """The Jacobian by forward mode, a chunk of columns at a time."""
    shape = (problem.outputs.size, problem.inputs.size)
    size = chunk_of(problem)
    blocks = []
    for start in range(0, shape[1], size):
        basis = problem.inputs.basis(start, min(start + size, shape[1]))
        block = problem.outputs.stack_to_coords(forward_map.apply_batch(basis)).cpu()
        blocks.append(graph.written_out(block))
    return Matrix(shape, torch.cat(blocks).T.contiguous() if blocks else None)
