"""Reductions: each element of the result reads whole lines, and operations that mix along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from covector.sparsity.dependence import Dependence, united
from covector.sparsity.rules.lines import over
from covector.sparsity.tracker import Dependences, NoRule, Operation


def axes_of(dim: Any, ndim: int) -> list[int]:
    """The axes that an argument names; all for none."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(ndim))
    return [axis % max(ndim, 1) for axis in (dim if isinstance(dim, list | tuple) else [dim])]


def reduce(operation: Operation) -> Dependences:
    """One element for each line along the axes."""
    source = operation.moving("self")
    joined = over(source, axes_of(operation["dim"], source.ids.ndim), keepdim=False)
    return [_shaped(joined, result) for result in operation.results]


def _shaped(dependence: Dependence, result: Tensor | None) -> Dependence | None:
    if result is None:
        return None
    if dependence.ids.numel() != result.numel():
        raise NoRule
    return dependence.reshape(result.shape)


def along(dependences: Sequence[Dependence], axes: Sequence[int], shape: Sequence[int]) -> Dependence:
    """Each element depends on all elements along some axes."""
    joined = [over(dependence, axes, keepdim=True) for dependence in dependences]
    return united(joined, shape)


def mix(operation: Operation) -> Dependences:
    """Results of the same shape, mixed along an axis: softmax, sorting, and their derivatives."""
    tracked = [dependence for _, dependence in operation.tracked()]
    if any(part.ids.shape != operation.result.shape for part in tracked):
        raise NoRule
    dim = operation["dim"]
    axes = axes_of(-1 if dim is None else dim, operation.result.ndim)
    return [None if result is None else along(tracked, axes, result.shape) for result in operation.results]


def trace(operation: Operation) -> Dependences:
    """The sum of the diagonal."""
    source = operation.moving("self")
    return [over(source.with_ids(source.ids.diagonal()), [0], keepdim=False)]


_REDUCING = (
    "sum", "mean", "nansum", "nanmean", "prod", "amax", "amin", "max", "min", "aminmax", "norm",
    "linalg_vector_norm", "var", "std", "logsumexp", "any", "all", "count_nonzero", "argmax", "argmin",
)  # fmt: skip
_MIXING = (
    "_softmax", "_log_softmax", "_safe_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
    "sort", "cummax", "cummin", "linalg_cross", "renorm",
)  # fmt: skip

RULES = {**dict.fromkeys(_REDUCING, reduce), **dict.fromkeys(_MIXING, mix), "trace": trace}
