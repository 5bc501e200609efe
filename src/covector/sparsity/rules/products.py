"""Matrix products: an element of the result reads a row of the one factor and a column of the other.

A constant factor keeps its zeros: what they are multiplied with is not read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from covector.sparsity.dependence import Dependence, united
from covector.sparsity.pattern import SparsityPattern
from covector.sparsity.rules.lines import over, selected
from covector.sparsity.tracker import Dependences, Operation

# Which arguments are the two factors, and which is added to the product.
FACTORS: dict[str, tuple[str, str, str | None]] = {
    "mm": ("self", "mat2", None),
    "_sparse_mm": ("sparse", "dense", None),
    "bmm": ("self", "mat2", None),
    "mv": ("self", "vec", None),
    "dot": ("self", "tensor", None),
    "vdot": ("self", "other", None),
    "addmm": ("mat1", "mat2", "self"),
    "_sparse_addmm": ("mat1", "mat2", "self"),
    "addmv": ("mat", "vec", "self"),
    "baddbmm": ("batch1", "batch2", "self"),
    "linear": ("input", "weight", "bias"),
}
# A constant with a larger share of entries than this is taken to be full.
_FULL = 0.75


def product(operation: Operation) -> Dependences:
    """The union of what the factors and the summand give."""
    first, second, added = FACTORS[operation.name]
    left, right = operation[first], operation[second]
    if operation.name == "linear":
        right = right.mT
    shape = operation.result.shape
    parts: list[Dependence] = []
    columns = operation.dependence(right)
    if columns is not None:
        parts.append(_shaped(_times(_constant(operation, left), _matrix(columns)), shape))
    rows = operation.dependence(left)
    if rows is not None:
        mirrored = rows.with_ids(rows.ids.mT if rows.ids.ndim > 1 else rows.ids)
        other = _constant(operation, right)
        turned = _times(None if other is None else _turned(other, right), _matrix(mirrored))
        parts.append(_shaped(turned.with_ids(turned.ids.mT), shape))
    summand = operation.dependence(operation[added]) if added else None
    if summand is not None:
        parts.append(summand)
    return [united(parts, shape)]


def _matrix(dependence: Dependence) -> Dependence:
    """A vector as a matrix with one column."""
    return dependence if dependence.ids.ndim > 1 else dependence.with_ids(dependence.ids.unsqueeze(1))


def _turned(nonzero: Tensor, factor: Tensor) -> Tensor:
    """The right factor as one from the left; a vector is one row either way."""
    return nonzero if factor.ndim == 1 else nonzero.transpose(-1, -2)


def _shaped(dependence: Dependence, shape: torch.Size) -> Dependence:
    """The product of matrices as the operation returned it; a full factor leaves an axis of one."""
    wanted = [*dependence.ids.shape]
    if dependence.ids.numel() == shape.numel():
        return dependence.reshape(shape)
    if len(wanted) == len(shape) + 1:
        squeezed = dependence.ids.squeeze(-1) if dependence.ids.shape[-1] == 1 else dependence.ids.squeeze(-2)
        dependence = dependence.with_ids(squeezed)
    return dependence.expand(shape)


def _times(factor: Tensor | None, columns: Dependence) -> Dependence:
    """A matrix from the left, by where it is not zero; None if it is full."""
    lines = columns.with_ids(columns.ids.mT)
    if factor is None:
        whole = over(lines, [-1], keepdim=True)
        return whole.with_ids(whole.ids.mT)
    found = selected(lines, SparsityPattern.of(factor).to_scipy())
    return found.with_ids(found.ids.mT)


def _constant(operation: Operation, factor: Any) -> Tensor | None:
    """Where a factor is not zero, over all batches; None if it is not known, or (nearly) full."""
    if not operation.known(factor):
        return None
    if factor.layout is not torch.strided:
        if factor.ndim != 2:
            return None
        return factor.detach().to_sparse_coo()
    nonzero = (factor.detach() != 0).cpu()
    if nonzero.ndim == 1:
        nonzero = nonzero.unsqueeze(0)
    if nonzero.ndim == 3:
        nonzero = nonzero.any(0)
    share = float(nonzero.sum()) / max(nonzero.numel(), 1)
    return None if share > _FULL else nonzero


def outer(operation: Operation) -> Dependences:
    """Self + vec1 vec2^T."""
    parts = [dependence for dependence in [operation.dependence(operation["self"])] if dependence is not None]
    for name, axis in (("vec1", 1), ("vec2", 0)):
        vector = operation.dependence(operation[name])
        if vector is not None:
            parts.append(vector.with_ids(vector.ids.unsqueeze(axis)))
    return [united(parts, operation.result.shape)]


RULES = {**dict.fromkeys(FACTORS, product), "addr": outer}
