"""Scatters: elements of a source are added to, or combined with, elements of a target at given places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covector.sparsity.dependence import Dependence, united, united_groups
from covector.sparsity.rules.lines import over
from covector.sparsity.rules.moves import move
from covector.sparsity.tracker import Dependences, NoRule, Operation


def collected(source: Dependence, places: Tensor, shape: Sequence[int]) -> Dependence:
    """The union of all source elements at each place of a target; places count its elements in order."""
    count = int(np.prod(shape, dtype=np.int64))
    flat = places.reshape(-1).numpy()
    order = np.argsort(flat, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=count))])
    ids = source.ids.expand(places.shape).reshape(-1)[torch.from_numpy(order)]
    found = united_groups(ids, starts, source.sets)
    return found.reshape(tuple(shape))


def _positions(shape: Sequence[int]) -> Tensor:
    return torch.arange(int(np.prod(shape, dtype=np.int64))).reshape(tuple(shape))


def _index_put(operation: Operation) -> tuple[Tensor, Any]:
    indices = [slice(None) if index is None else index for index in operation["indices"]]
    return _positions(operation["self"].shape)[tuple(indices)], operation["values"]


def _scatter(operation: Operation) -> tuple[Tensor, Any]:
    index = operation["index"]
    narrow = tuple(slice(size) for size in index.shape)
    source = operation["src"]
    return _positions(operation["self"].shape).gather(operation["dim"], index), (source, narrow)


def _index_add(operation: Operation) -> tuple[Tensor, Any]:
    return _positions(operation["self"].shape).index_select(operation["dim"], operation["index"]), operation[
        "source"
    ]


# For each operation: the place in the target of each element of the source, and the source.
_PLACES: dict[str, Callable[[Operation], tuple[Tensor, Any]]] = {
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "_index_put_impl": _index_put,
    "scatter_add": _scatter,
    "scatter_reduce": _scatter,
    "scatter": _scatter,
    "index_add": _index_add,
    "index_reduce": _index_add,
}


def scatter(operation: Operation) -> Dependences:
    """The target, united with what is put there."""
    shape = operation.result.shape
    kept = operation.dependence(operation["self"])
    indices = [index for index in (operation["indices"] or [operation["index"]]) if isinstance(index, Tensor)]
    parts = [] if kept is None else [kept]
    if operation.known(*indices):
        places, given = _PLACES[operation.name](operation)
        given, narrow = given if isinstance(given, tuple) else (given, ...)
        source = operation.dependence(given)
        if source is not None:
            parts.append(collected(source.with_ids(source.ids[narrow]), places, shape))
    else:
        parts.extend(_anywhere(operation))
    return [united(parts, shape) if parts else None]


def _anywhere(operation: Operation) -> list[Dependence]:
    """Unknown places: along the axis, each element of the source may be put at each element of the target."""
    name = next(key for key in ("src", "source", "values") if operation[key] is not None)
    source = operation.dependence(operation[name])
    if source is None:
        return []
    if operation["dim"] is None or source.ids.ndim == 0:
        return [over(source.reshape(-1), [0], keepdim=False)]
    joined = over(source, [operation["dim"]], keepdim=True)
    fits = all(a in (1, b) for a, b in zip(joined.ids.shape, operation.result.shape, strict=True))
    return [joined if fits else over(source.reshape(-1), [0], keepdim=False)]


def put(operation: Operation) -> Dependences:
    """`index_put` adds or replaces."""
    if operation["accumulate"] or not operation.known(*[i for i in operation["indices"] if i is not None]):
        return scatter(operation)
    return move(operation)


def spread(operation: Operation) -> Dependences:
    """`scatter` replaces, or combines if it is told how."""
    if operation["reduce"] is not None or not operation.known(operation["index"]):
        if operation["src"] is None:
            raise NoRule
        return scatter(operation)
    return move(operation)


def embedding_backward(operation: Operation) -> Dependences:
    """The gradient by a table collects the rows that were looked up."""
    gradient, indices = operation.moving("grad_output"), operation["indices"]
    if not operation.known(indices):
        raise NoRule
    rows = operation.result.shape[1]
    places = indices.reshape(-1, 1) * rows + torch.arange(rows)
    return [collected(gradient.reshape(-1, rows), places, operation.result.shape)]


def unfold_backward(operation: Operation) -> Dependences:
    """Each element collects the windows that it was part of."""
    shape = operation.result.shape
    places = _positions(shape).unfold(operation["dim"], operation["size"], operation["step"])
    return [collected(operation.moving("grad_in"), places, shape)]


def col2im(operation: Operation) -> Dependences:
    """Each pixel collects the columns that it was part of, channel by channel."""
    columns = operation.moving("self")
    if operation.result.ndim != 4:
        raise NoRule
    shape = operation.result.shape
    geometry = (operation[name] for name in ("kernel_size", "dilation", "padding", "stride"))
    # Counted from one, so that what lies in the padding is zero, which is then left out.
    pixels = (_positions(shape) + 1).double()
    places = torch.ops.aten.im2col(pixels, *geometry).long()
    inside = places > 0
    return [collected(columns.with_ids(columns.ids[inside]), places[inside] - 1, shape)]


RULES = {
    **dict.fromkeys(_PLACES, scatter),
    **dict.fromkeys(("index_put", "_unsafe_index_put", "_index_put_impl"), put),
    "scatter": spread,
    "embedding_dense_backward": embedding_backward,
    "unfold_backward": unfold_backward,
    "col2im": col2im,
}
