"""Moves: each element of the result is one of an argument. The operation is run on numbers of sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covector._engine.observe import tensors_in
from covector.sparsity.dependence import NONE, Dependence, merged
from covector.sparsity.rules.lines import over, selected
from covector.sparsity.tracker import Dependences, NoRule, Operation

# The arguments whose elements are moved; all others say where to.
MOVED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("cat", "stack", "hstack", "vstack", "block_diag"), ("tensors",)),
    **dict.fromkeys(("index_select", "gather", "index", "_unsafe_index", "take", "masked_select"), ("self",)),
    **dict.fromkeys(("flip", "roll", "rot90", "tril", "triu", "constant_pad_nd", "repeat"), ("self",)),
    **dict.fromkeys(("diag_embed", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"), ("self",)),
    **dict.fromkeys(("native_channel_shuffle", "repeat_interleave", "im2col"), ("self",)),
    **dict.fromkeys((f"reflection_pad{n}d" for n in (1, 2, 3)), ("self",)),
    **dict.fromkeys((f"replication_pad{n}d" for n in (1, 2, 3)), ("self",)),
    **dict.fromkeys((f"upsample_nearest{n}d" for n in (1, 2, 3)), ("self",)),
    **dict.fromkeys((f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)), ("self",)),
    **dict.fromkeys(("slice_scatter", "select_scatter"), ("self", "src")),
    **dict.fromkeys(("diagonal_scatter", "as_strided_scatter"), ("self", "src")),
    **dict.fromkeys(("slice_backward", "select_backward", "diagonal_backward"), ("grad_output",)),
    **dict.fromkeys(
        (f"{name}_copy" for name in ("expand", "permute", "view", "slice", "select", "t", "transpose",
        "squeeze",
                                     "unsqueeze", "diagonal", "as_strided", "unfold", "unbind", "split",
                                     "_reshape", "split_with_sizes", "narrow")),
        ("self",),
    ),
    "index_fill": ("self", "value"),
    "index_copy": ("self", "source"),
    "index_put": ("self", "values"),
    "scatter": ("self", "src", "value"),
    "masked_scatter": ("self", "source"),
    "embedding": ("weight",),
}  # fmt: skip
# They have no kernel for integers.
_AS_FLOAT = ("pad1d", "pad2d", "pad3d", "im2col", "nearest", "embedding")


def move(operation: Operation) -> Dependences:
    """Run the operation on numbers of sets in place of what it moves."""
    moved = MOVED[operation.name]
    if operation["accumulate"]:
        raise NoRule
    places = {name: value for name, value in operation.call.arguments.items() if name not in moved}
    if not operation.known(*tensors_in(places.values())):
        return _moved_to_anywhere(operation, moved)
    return _run(operation, moved, {})


def _moved_to_anywhere(operation: Operation, moved: Sequence[str]) -> Dependences:
    """Unknown places: of all elements along the axes in question, one is taken."""
    if operation.name not in ("gather", "index_select", "index", "_unsafe_index"):
        raise NoRule
    source = operation.moving("self")
    if operation.name == "gather" and (chosen := _among_choices(operation, source)) is not None:
        return [chosen]
    if operation.name in ("gather", "index_select"):
        axes = [operation["dim"] % max(source.ids.ndim, 1)]
        places: dict[str, Any] = {"index": torch.zeros_like(operation["index"])}
    else:
        indices = operation["indices"]
        axes = [axis for axis, index in enumerate(indices) if index is not None]
        if any(index is not None and index.dtype == torch.bool for index in indices):
            raise NoRule
        places = {"indices": [None if index is None else torch.zeros_like(index) for index in indices]}
    return _run(operation, moved, {"self": over(source, axes, keepdim=True), **places})


def _among_choices(operation: Operation, source: Dependence) -> Dependence | None:
    """Unknown indices of which the candidates are known, as those of a pooling window."""
    choices = operation.tracker.choices(operation["index"])
    last = source.ids.ndim - 1
    if (
        choices is None
        or source.ids.shape[:-1] != choices.ids.shape[:-1]
        or operation["dim"] % (last + 1) != last
    ):
        return None
    pattern = choices.sets[choices.ids.reshape(-1, choices.ids.shape[-1])[0].numpy()]
    return selected(source, pattern)


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """The function of an argument; of a list, of each item."""
    return [function(item) for item in value] if isinstance(value, list | tuple) else function(value)


def _run(operation: Operation, moved: Sequence[str], given: dict[str, Any]) -> Dependences:
    parts: list[Dependence] = []

    def stand_in(value: Any, name: str) -> Any:
        """A place among the numbers for each tensor that is moved."""
        if not isinstance(value, Tensor):
            return NONE if name == "value" else value
        found = given.get(name, operation.dependence(value))
        if found is None:
            return torch.zeros(value.shape, dtype=torch.int64)
        parts.append(found)
        return found

    arguments = dict(operation.call.arguments)
    for name in moved:
        if name in arguments:
            arguments[name] = _each(partial(stand_in, name=name), arguments[name])
    for name in ("value", "padding_idx"):
        if name in arguments and not isinstance(arguments[name], Tensor | Dependence):
            arguments[name] = NONE if name == "value" else -1
    arguments |= {name: value for name, value in given.items() if not isinstance(value, Dependence)}
    sets, numbers = merged(parts)
    ids = iter(numbers)
    as_float = any(part in operation.name for part in _AS_FLOAT)

    def fill(value: Any) -> Any:
        tensor = next(ids) if isinstance(value, Dependence) else value
        if isinstance(tensor, Tensor):
            tensor = tensor.double() if as_float else tensor
            return tensor.clone() if operation.call.mutates else tensor
        return tensor

    for name in moved:
        if name in arguments:
            arguments[name] = _each(fill, arguments[name])
    if "out" in arguments:
        raise NoRule
    found = operation.call.function(**arguments)
    found = list(found) if isinstance(found, tuple | list) else [found]
    return [None if result is None else Dependence(result.long(), sets) for result in found]


RULES = dict.fromkeys(MOVED, move)
