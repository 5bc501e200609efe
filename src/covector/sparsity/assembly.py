"""Assembly: values become torch or SciPy matrices, a block for each output and input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from covector._lazy import lazy
from covector.errors import ArgumentValueError
from covector.sparsity.pattern import SparsityPattern

LAYOUTS = ("coo", "csr", "csc", "scipy")


def check_layout(verb: str, layout: Any) -> None:
    """`layout` is one of four words."""
    if layout not in LAYOUTS:
        raise ArgumentValueError(
            f"{verb}: layout must be one of {', '.join(map(repr, LAYOUTS))}, got {layout!r}."
        )


class Span(NamedTuple):
    """The rows or columns of one tensor."""

    start: int
    stop: int


class Block:
    """A part of a matrix: which of the values belong to it, and where they stand."""

    def __init__(self, pattern: SparsityPattern, entries: Tensor | None) -> None:
        self.pattern = pattern
        self._entries = entries

    @classmethod
    def cut(cls, pattern: SparsityPattern, down: Span, across: Span) -> Block:
        """The block of some rows and columns."""
        if down == (0, pattern.shape[0]) and across == (0, pattern.shape[1]):
            return cls(pattern, None)
        rows, columns = pattern.rows, pattern.indices
        inside = (
            (rows >= down.start) & (rows < down.stop) & (columns >= across.start) & (columns < across.stop)
        )
        shape = (down.stop - down.start, across.stop - across.start)
        counts = np.bincount(rows[inside] - down.start, minlength=shape[0])
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        part = SparsityPattern(shape, indptr, columns[inside] - across.start)
        return cls(part, torch.from_numpy(np.flatnonzero(inside)))

    @lazy
    def _coo(self) -> Tensor:
        return torch.from_numpy(np.stack([self.pattern.rows, self.pattern.indices]))

    @lazy
    def _csr(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.pattern.indptr), torch.from_numpy(self.pattern.indices)

    @lazy
    def _csc(self) -> tuple[Tensor, Tensor, Tensor]:
        order = np.lexsort((self.pattern.rows, self.pattern.indices))
        starts = np.concatenate(
            [[0], np.cumsum(np.bincount(self.pattern.indices, minlength=self.pattern.shape[1]))]
        )
        return torch.from_numpy(starts), torch.from_numpy(self.pattern.rows[order]), torch.from_numpy(order)

    def built(self, values: Tensor, layout: str) -> Any:
        """The block with these values of the whole matrix."""
        own = values if self._entries is None else values[self._entries.to(values.device)]
        shape = self.pattern.shape
        if layout == "coo":
            return torch.sparse_coo_tensor(
                self._coo, own, shape, is_coalesced=True, check_invariants=False, device=own.device
            )
        if layout == "csr":
            return torch.sparse_csr_tensor(*self._csr, own, shape, check_invariants=False, device=own.device)
        if layout == "csc":
            starts, rows, order = self._csc
            ordered = own[order.to(own.device)]
            return torch.sparse_csc_tensor(
                starts, rows, ordered, shape, check_invariants=False, device=own.device
            )
        return as_scipy(self.pattern, own)


def as_scipy(pattern: SparsityPattern, values: Tensor) -> Any:
    """A `scipy.sparse.csr_array` with these values."""
    from scipy import sparse

    data = values.detach().cpu()
    data = data.float() if data.dtype in (torch.bfloat16, torch.float16) else data
    return sparse.csr_array((data.numpy(), pattern.indices, pattern.indptr), shape=pattern.shape)


def blocks_of(pattern: SparsityPattern, rows: Sequence[Span], columns: Sequence[Span]) -> list[list[Block]]:
    """The block of each output (down) and each input (across)."""
    return [[Block.cut(pattern, down, across) for across in columns] for down in rows]
