"""Functions of sparse tensors, and the tensors they are checked on: one table for tests, docs and benchmarks.

A case is an operation on one kind of tensor, with real or complex numbers, masked or not. Not all of them
exist in torch; which do is found out by running them (see `sparse_table.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SHAPE = (4, 6)
BLOCK = (2, 3)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Numbers away from zero, the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(shape, dtype=dtype, generator=generator)
    return drawn + drawn.sgn()


def _scattered(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers with zeros among them, in every row and column of the last two axes."""
    rows, columns = torch.arange(shape[-2])[:, None], torch.arange(shape[-1])
    kept = (rows + 2 * columns) % 3 == 0
    return numbers(*shape, dtype=dtype, seed=seed) * kept


def _blocks(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Whole blocks of numbers among blocks of zeros."""
    kept = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).repeat_interleave(2, 0).repeat_interleave(3, 1)
    return numbers(*shape, dtype=dtype, seed=seed) * kept


def _uncoalesced(dtype: torch.dtype, seed: int) -> Tensor:
    indices = torch.tensor([[0, 2, 0, 3, 1], [1, 5, 1, 0, 4]])
    return torch.sparse_coo_tensor(indices, numbers(5, dtype=dtype, seed=seed), SHAPE)


def _hybrid_coo(dtype: torch.dtype, seed: int) -> Tensor:
    indices = torch.tensor([[0, 1, 3], [5, 2, 0]])
    return torch.sparse_coo_tensor(
        indices, numbers(3, 2, dtype=dtype, seed=seed), (*SHAPE, 2), is_coalesced=True
    )


def _hybrid(layout: torch.layout) -> Callable[[torch.dtype, int], Tensor]:
    def draw(dtype: torch.dtype, seed: int) -> Tensor:
        kept = _scattered(*SHAPE, dtype=torch.float64, seed=seed) != 0
        return (numbers(*SHAPE, 2, dtype=dtype, seed=seed) * kept[..., None]).to_sparse(
            layout=layout, dense_dim=1
        )

    return draw


# How each kind of sparse tensor is made.
KINDS: dict[str, Callable[[torch.dtype, int], Tensor]] = {
    "COO": lambda dtype, seed: _scattered(*SHAPE, dtype=dtype, seed=seed).to_sparse_coo(),
    "COO, uncoalesced": _uncoalesced,
    "COO, hybrid": _hybrid_coo,
    "CSR": lambda dtype, seed: _scattered(*SHAPE, dtype=dtype, seed=seed).to_sparse_csr(),
    "CSR, batch": lambda dtype, seed: _scattered(2, *SHAPE, dtype=dtype, seed=seed).to_sparse_csr(),
    "CSR, hybrid": _hybrid(torch.sparse_csr),
    "CSC": lambda dtype, seed: _scattered(*SHAPE, dtype=dtype, seed=seed).to_sparse_csc(),
    "CSC, hybrid": _hybrid(torch.sparse_csc),
    "BSR": lambda dtype, seed: _blocks(*SHAPE, dtype=dtype, seed=seed).to_sparse_bsr(BLOCK),
    "BSR, square": lambda dtype, seed: _blocks(*SHAPE, dtype=dtype, seed=seed).to_sparse_bsr((2, 2)),
    "BSR, batch": lambda dtype, seed: _blocks(2, *SHAPE, dtype=dtype, seed=seed).to_sparse_bsr(BLOCK),
    "BSC": lambda dtype, seed: _blocks(*SHAPE, dtype=dtype, seed=seed).to_sparse_bsc(BLOCK),
}

DTYPES = (torch.float64, torch.complex128)
MASKED = (True, False)

# The values of `masked` under which a derivative is right: torch's operations follow one rule, or either.
MASKS = (True,)
DENSE = (False,)


@dataclass(frozen=True)
class Operation:
    """A function of tensors, of which the first is of some sparse kind, or is to become so."""

    name: str
    side: str  # on which the function is sparse: "in", "out" or "both"
    function: Callable[..., Any]
    others: Callable[[torch.dtype], tuple[Tensor, ...]] = lambda dtype: ()
    follows: tuple[bool, ...] = MASKED


def _factor(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (numbers(6, 2, dtype=dtype, seed=1).requires_grad_(),)


def _left_factor(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (numbers(2, 4, dtype=dtype, seed=1).requires_grad_(),)


def _sum_and_factor(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (*_factor(dtype), numbers(4, 2, dtype=dtype, seed=2).requires_grad_())


def _same_shape(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (numbers(*SHAPE, dtype=dtype, seed=1).requires_grad_(),)


def _values(x: Tensor, masked: bool) -> Tensor:
    return x.coalesce().values() if x.layout is torch.sparse_coo else x.values()


def _square(x: Tensor, masked: bool) -> Tensor:
    return torch.mm(x, x.transpose(0, 1))


def _square_sparse(x: Tensor, masked: bool) -> Tensor:
    return torch.sparse.mm(x, x.transpose(0, 1))


# Every function takes `masked` last, for the operations that have to be told.
IN = (
    Operation("x.to_dense(masked_grad=masked)", "in", lambda x, masked: x.to_dense(masked_grad=masked)),
    Operation("x.to_dense()", "in", lambda x, masked: x.to_dense(), follows=MASKS),
    Operation("x.values()", "in", _values, follows=MASKS),
    Operation("x.sum()", "in", lambda x, masked: x.sum(), follows=DENSE),
    Operation("torch.sparse.sum(x)", "in", lambda x, masked: torch.sparse.sum(x), follows=MASKS),
    Operation("x @ D", "in", lambda x, d, masked: x @ d, _factor, follows=DENSE),
    Operation("D @ x", "in", lambda x, d, masked: d @ x, _left_factor, follows=DENSE),
    Operation("torch.mm(x, D)", "in", lambda x, d, masked: torch.mm(x, d), _factor, follows=DENSE),
    Operation(
        "torch.sparse.mm(x, D)", "in", lambda x, d, masked: torch.sparse.mm(x, d), _factor, follows=MASKS
    ),
    Operation(
        "torch.addmm(E, x, D)",
        "in",
        lambda x, d, e, masked: torch.addmm(e, x, d),
        _sum_and_factor,
        follows=DENSE,
    ),
    Operation(
        "torch.sparse.addmm(E, x, D)",
        "in",
        lambda x, d, e, masked: torch.sparse.addmm(e, x, d),
        _sum_and_factor,
        follows=MASKS,
    ),
    Operation("torch.mv(x, d)", "in", lambda x, d, masked: torch.mv(x, d[:, 0]), _factor, follows=DENSE),
    Operation("D + x", "in", lambda x, d, masked: d + x, _same_shape, follows=DENSE),
)

BOTH = (
    Operation("x.clone()", "both", lambda x, masked: x.clone()),
    Operation("x.coalesce()", "both", lambda x, masked: x.coalesce()),
    Operation("x.to_sparse_coo()", "both", lambda x, masked: x.to_sparse_coo()),
    Operation("x.to_sparse_csr()", "both", lambda x, masked: x.to_sparse_csr()),
    Operation("x.to_sparse_csc()", "both", lambda x, masked: x.to_sparse_csc()),
    Operation("x.to_sparse_bsr()", "both", lambda x, masked: x.to_sparse_bsr(BLOCK)),
    Operation("x.to_sparse_bsc()", "both", lambda x, masked: x.to_sparse_bsc(BLOCK)),
    Operation("x.transpose(0, 1)", "both", lambda x, masked: x.transpose(0, 1)),
    Operation("-x", "both", lambda x, masked: -x),
    Operation("2 * x", "both", lambda x, masked: 2 * x),
    Operation("x + x", "both", lambda x, masked: x + x),
    Operation("x * x", "both", lambda x, masked: x * x),
    Operation("x * D", "both", lambda x, d, masked: x * d, _same_shape),
    Operation("x * C", "both", lambda x, masked: x * numbers(*SHAPE, dtype=x.dtype, seed=1)),
    Operation("x.pow(2)", "both", lambda x, masked: x.pow(2)),
    Operation("x.abs()", "both", lambda x, masked: x.abs()),
    Operation("x.sparse_mask(x)", "both", lambda x, masked: x.sparse_mask(x.detach()), follows=MASKS),
    Operation("torch.mm(x, x.T)", "both", _square),
    Operation("torch.sparse.mm(x, x.T)", "both", _square_sparse, follows=MASKS),
    Operation("torch.sparse.sum(x, 0)", "both", lambda x, masked: torch.sparse.sum(x, 0), follows=MASKS),
    Operation("torch.sparse.sum(x, -1)", "both", lambda x, masked: torch.sparse.sum(x, -1), follows=MASKS),
    Operation(
        "torch.sparse.softmax(x, 1)", "both", lambda x, masked: torch.sparse.softmax(x, 1), follows=MASKS
    ),
    Operation("x.select(0, 1)", "both", lambda x, masked: x.select(0, 1)),
    Operation("torch.cat([x, x])", "both", lambda x, masked: torch.cat([x, x])),
)


def _like(x: Tensor, template: Tensor) -> Tensor:
    """A strided tensor in the layout of a template, with its dense dimensions and its blocks."""
    if template.layout is torch.sparse_coo:
        return x.to_sparse(template.sparse_dim())
    blocked = template.layout in (torch.sparse_bsr, torch.sparse_bsc)
    blocks = tuple(template.values().shape[-2:]) if blocked else None
    return x.to_sparse(layout=template.layout, blocksize=blocks, dense_dim=template.dense_dim())


OUT = (
    Operation("D.to_sparse(...)", "out", _like),
    Operation("D.sparse_mask(x)", "out", lambda x, template: x.sparse_mask(template)),
)

OPERATIONS = IN + OUT + BOTH
BLOCKS_OF_COO = {"x.to_sparse_bsr()", "x.to_sparse_bsc()"}


@dataclass(frozen=True)
class Case:
    """An operation on one kind of tensor."""

    operation: Operation
    kind: str
    dtype: torch.dtype
    masked: bool

    def __str__(self) -> str:
        part = "complex" if self.dtype.is_complex else "real"
        return f"{self.operation.name}, {self.kind}, {part}, {'masked' if self.masked else 'unmasked'}"

    def function(self, *args: Tensor) -> Any:
        """What is checked."""
        return self.operation.function(*args, self._last)

    @property
    def follows(self) -> bool:
        """Whether the derivative, if torch has it, is the one that is asked for."""
        if self.masked and self.kind.startswith("COO") and self.operation.name in BLOCKS_OF_COO:
            return False  # the blocks specify more elements than the input
        return self.masked in self.operation.follows

    @property
    def _last(self) -> Any:
        return self.template() if self.operation.side == "out" else self.masked

    def template(self) -> Tensor:
        """A tensor of the kind."""
        x = KINDS[self.kind](self.dtype, 0)
        return x.coalesce() if self.operation.side == "out" and x.layout is torch.sparse_coo else x

    def inputs(self) -> tuple[Tensor, ...]:
        """Fresh inputs; a function that makes its output sparse gets a strided one without zeros."""
        if self.operation.side == "out":
            return (numbers(*self.template().shape, dtype=self.dtype, seed=3).requires_grad_(),)
        return (self.template().requires_grad_(), *self.operation.others(self.dtype))


def every_case() -> Iterator[Case]:
    """The whole table."""
    for operation in OPERATIONS:
        for kind in KINDS:
            for dtype in DTYPES:
                for masked in MASKED:
                    yield Case(operation, kind, dtype, masked)
