"""Patterns: which entries of a matrix can be different from zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from covector.errors import ArgumentTypeError, ArgumentValueError
from covector.sparsity.picture import picture

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SparsityPattern:
    """The entries of a matrix that can be different from zero, row by row.

    Row i has its entries in the columns `indices[indptr[i]:indptr[i + 1]]`, in order. Printed, it is a
    picture: a dot for each entry of a small matrix, a braille character for each 4 x 2 cells of a large one.

    Example:
        >>> import torch, covector
        >>> print(covector.sparsity(lambda x: x[1:] * x[:-1], torch.ones(5)))
        SparsityPattern: 4 x 5, 8 nonzeros (40 %)
        ● ● · · ·
        · ● ● · ·
        · · ● ● ·
        · · · ● ●
    """

    shape: tuple[int, int]
    indptr: Integers
    indices: Integers

    def __post_init__(self) -> None:
        if not all(isinstance(array, np.ndarray) for array in (self.indptr, self.indices)):
            raise ArgumentTypeError(
                f"SparsityPattern: indptr and indices must be NumPy arrays, got {type(self.indptr).__name__} "
                f"and {type(self.indices).__name__}. SparsityPattern.of makes a pattern of any matrix."
            )
        if (wrong := _misfit(self.shape, self.indptr, self.indices)) is not None:
            raise ArgumentValueError(
                f"SparsityPattern: {wrong}. SparsityPattern.of makes a pattern of any matrix."
            )

    @classmethod
    def of(cls, matrix: Any) -> SparsityPattern:
        """The pattern of a torch tensor (dense or sparse), a SciPy matrix, an array, or a pattern itself.

        What a sparse matrix stores counts as an entry, also if it is a zero.
        """
        if isinstance(matrix, SparsityPattern):
            return matrix
        if isinstance(matrix, Tensor):
            matrix = _from_torch(matrix.detach())
        elif not sparse.issparse(matrix):
            matrix = _from_anything(matrix)
        if matrix.ndim != 2 or matrix.dtype == object:
            raise ArgumentTypeError(
                "SparsityPattern.of: a pattern is made from a matrix (torch, SciPy or NumPy), got "
                f"{type(matrix).__name__} with {matrix.ndim} dimensions. A boolean matrix that is True where "
                "an entry can be different from zero will do."
            )
        rows = sparse.csr_array(matrix != 0 if isinstance(matrix, np.ndarray) else matrix)
        return cls.from_csr(rows)

    @classmethod
    def from_csr(cls, rows: Any) -> SparsityPattern:
        """The pattern of what a SciPy CSR array stores; each entry once, in order."""
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
        shape = (int(rows.shape[0]), int(rows.shape[1]))
        return cls(shape, rows.indptr.astype(np.int64), rows.indices.astype(np.int64))

    @property
    def nnz(self) -> int:
        """How many entries there are."""
        return len(self.indices)

    @property
    def density(self) -> float:
        """The share of the matrix that is not zero."""
        cells = self.shape[0] * self.shape[1]
        return self.nnz / cells if cells else 0.0

    @property
    def rows(self) -> Integers:
        """The row of each entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))

    @property
    def T(self) -> SparsityPattern:  # noqa: N802 - what NumPy and torch call it
        """The pattern of the transposed matrix."""
        return SparsityPattern.from_csr(self.to_scipy().T.tocsr())

    def to_scipy(self) -> Any:
        """A boolean `scipy.sparse.csr_array`, True at each entry."""
        return sparse.csr_array((np.ones(self.nnz, dtype=bool), self.indices, self.indptr), shape=self.shape)

    def to_dense(self) -> Tensor:
        """A boolean tensor, True at each entry."""
        dense = torch.zeros(self.shape, dtype=torch.bool)
        dense[torch.from_numpy(self.rows), torch.from_numpy(self.indices)] = True
        return dense

    def _beside(self, other: Any) -> SparsityPattern:
        """The other pattern, if it is of the same shape."""
        other = SparsityPattern.of(other)
        if other.shape != self.shape:
            raise ArgumentValueError(
                f"SparsityPattern: this needs two patterns of one shape, got {_size(self.shape)} and "
                f"{_size(other.shape)}."
            )
        return other

    def __or__(self, other: Any) -> SparsityPattern:
        other = self._beside(other)
        return SparsityPattern.from_csr(sparse.csr_array(self.to_scipy() + other.to_scipy()))

    union = __or__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SparsityPattern):
            return NotImplemented
        return (
            self.shape == other.shape
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.indices, other.indices)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.nnz))

    def missing(self, other: SparsityPattern) -> SparsityPattern:
        """The entries of another pattern that this one lacks."""
        extra = self._beside(other).to_scipy().astype(np.int8) - self.to_scipy().astype(np.int8)
        return SparsityPattern.from_csr(sparse.csr_array(extra > 0))

    def covers(self, other: SparsityPattern) -> bool:
        """Whether this pattern has every entry of another."""
        return self.missing(other).nnz == 0

    @property
    def summary(self) -> str:
        """Its size, and how much of it is not zero."""
        entries = f"{self.nnz} nonzero{'' if self.nnz == 1 else 's'}"
        return f"{_size(self.shape)}, {entries} ({_percent(self.density)})"

    def __repr__(self) -> str:
        return f"SparsityPattern: {self.summary}"

    def __str__(self) -> str:
        return f"{self!r}\n{picture(self.shape, self.rows, self.indices)}".rstrip()

    def plot(self, coloring: Any = None, *, axes: Any = None) -> Any:
        """The pattern as a matplotlib figure; with a coloring, coloured, and the compressed matrix beside it.

        Needs matplotlib, which comes with `pip install covector[plot]`. Returns the axes.
        """
        from covector.sparsity.plot import plot

        return plot(self, coloring, axes)


def _misfit(shape: Any, indptr: NDArray[Any], indices: NDArray[Any]) -> str | None:
    """What does not fit together."""
    is_shape = type(shape) is tuple and len(shape) == 2 and all(type(size) is int for size in shape)
    if not is_shape or min(shape) < 0:
        return f"the shape is {shape!r}, not that of a matrix"
    if any(array.dtype != np.int64 or array.ndim != 1 for array in (indptr, indices)):
        return "its arrays are not rows of integers (int64)"
    if len(indptr) != shape[0] + 1:
        return f"{shape[0]} rows need {shape[0] + 1} numbers in indptr, not {len(indptr)}"
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        return "its rows overlap"
    if len(indices) > 0 and (indices.min() < 0 or indices.max() >= shape[1]):
        return "an index lies outside of the matrix"
    return None


def _size(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]}"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"


def _from_anything(value: Any) -> Any:
    try:
        return np.asarray(value)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ) as error:  # lists of unequal length, or of tensors with a graph
        raise ArgumentTypeError(
            f"SparsityPattern.of: this cannot be made an array ({error}). Pass a boolean matrix."
        ) from error


def _from_torch(tensor: Tensor) -> Any:
    if tensor.layout is torch.strided:
        return (tensor != 0).cpu().numpy()  # NumPy has not every dtype
    coo = tensor.cpu().to_sparse_coo().coalesce()
    places = coo.indices().numpy()
    return sparse.coo_array((np.ones(places.shape[1], dtype=bool), tuple(places)), shape=tuple(tensor.shape))
