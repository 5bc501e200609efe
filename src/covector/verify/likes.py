"""Objects that torch's functions take for tensors, by `__torch_function__`, and that are none.

Such an object is checked by the tensor in it: the function gets the object, as from the caller, and so closes
over the tensor, which is moved in place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import is_tensor_like

from covector._engine import graph
from covector._tree import flatten, unflatten
from covector.errors import ArgumentTypeError, Caller, OutputError


def _is_like(leaf: Any) -> bool:
    return not isinstance(leaf, Tensor) and is_tensor_like(leaf)


def tensors_for_inputs(caller: Caller, inputs: Any) -> tuple[Caller, Any]:
    """The call with the tensor in each object that requires grad; the function still gets the object."""
    leaves, spec = flatten(inputs)
    likes = {i: x for i, x in enumerate(leaves) if _is_like(x) and getattr(x, "requires_grad", False)}
    if not likes:
        return caller, inputs
    for index, like in likes.items():
        leaf = graph.only_leaf(torch.clone(like))
        if leaf is None:
            raise ArgumentTypeError(
                f"{caller}: an input is a {type(like).__name__}, which has __torch_function__, but "
                "torch.clone leads to no leaf in it that requires grad; pass a tensor."
            )
        leaves[index] = leaf
    return Caller(caller.verb, _of_tensors(caller.function, likes)), unflatten(leaves, spec)


def _of_tensors(function: Callable[..., Any], likes: dict[int, Any]) -> Callable[..., Any]:
    """The function, which gets these objects for the tensors in them."""

    @functools.wraps(function, updated=())
    def of_tensors(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = flatten(args)
        for index, like in likes.items():
            leaves[index] = like
        return function(*unflatten(leaves, spec), **kwargs)

    return of_tensors


def tensors_for_outputs(caller: Caller, returned: Any) -> Any:
    """What a function returned, with a tensor for each object that is like one."""
    if isinstance(returned, Tensor):
        return returned
    leaves, spec = flatten(returned)
    if not any(map(_is_like, leaves)):
        return returned
    tensors = [torch.clone(leaf) if _is_like(leaf) else leaf for leaf in leaves]
    for leaf, tensor in zip(leaves, tensors, strict=True):
        if _is_like(tensor):
            raise OutputError(
                f"{caller}: an output is a {type(leaf).__name__}, which has __torch_function__, but "
                "torch.clone gives no tensor for it; return a tensor."
            )
    return unflatten(tensors, spec)
