"""The autograd graph: run it backwards, and ask what it leads to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, Variable

_LeafNode = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
_run = Variable._execution_engine.run_backward

# A leaf that a recording made for itself carries this attribute: True while the function runs (to a
# transform nested inside, it is a tensor from outside), False afterwards (nobody can ask for it).
_MARK = "_covector_open"


def backward(
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    inputs: Sequence[Tensor],
    *,
    keep: bool,
    record: bool,
) -> Sequence[Tensor | None]:
    """Pull cotangents of the outputs back to the inputs; None where an input is not reached.

    The engine is called directly: the checks of `torch.autograd.grad` were made at the door, and they
    import a symbolic algebra package on first use.
    """
    return _run(
        tuple(outputs),
        tuple(cotangents),
        keep or record,
        record,
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )


def open_leaf(tensor: Tensor) -> Tensor:
    """Make this tensor a leaf to differentiate by."""
    tensor.requires_grad_()
    setattr(tensor, _MARK, True)
    return tensor


def close_leaf(tensor: Tensor) -> None:
    """Say that the function that received this leaf has returned."""
    setattr(tensor, _MARK, False)


def leads_outside(tensor: Tensor) -> bool:
    """Whether the tensor depends on one that requires grad and is not a closed leaf of ours."""
    if not tensor.requires_grad:
        return False
    if tensor.grad_fn is None:
        return getattr(tensor, _MARK, True)
    # Written out instead of looping over `nodes`: this is on the path of every gradient.
    pending: list[Any] = [tensor.grad_fn]
    seen = set()
    while pending:
        node = pending.pop()
        if type(node) is _LeafNode:
            if getattr(node.variable, _MARK, True):
                return True
        elif node not in seen:
            seen.add(node)
            for parent, _ in node.next_functions:
                if parent is not None:
                    pending.append(parent)
    return False


def nodes(tensor: Tensor) -> Iterator[Any]:
    """Every node of the graph behind a tensor, once."""
    pending: list[Any] = [tensor.grad_fn]
    seen = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        pending.extend(parent for parent, _ in node.next_functions if parent is not None)


def functions_without(rule: str, outputs: Sequence[Tensor]) -> list[str]:
    """Names of the custom Functions behind these outputs that do not define this static method."""
    names = []
    for output in outputs:
        for node in nodes(output) if output.grad_fn is not None else ():
            custom = getattr(type(node), "_forward_cls", None)
            if custom is not None and getattr(custom, rule) is getattr(Function, rule):
                names.append(custom.__name__)
    return list(dict.fromkeys(names))


def first_undifferentiable(tensors: Sequence[Tensor]) -> str | None:
    """The name of a node behind these tensors that can only refuse to be run backwards."""
    for tensor in tensors:
        for node in nodes(tensor) if tensor.grad_fn is not None else ():
            if type(node).__name__ in ("NotImplemented", "Error", "DelayedError"):
                return node.name()
    return None


def reached(tensors: Sequence[Tensor]) -> tuple[set[int], set[Any]]:
    """The ids of the leaves behind these tensors (themselves included), and the inner nodes."""
    leaves = {id(tensor) for tensor in tensors}
    pending: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if type(node) is _LeafNode:
            leaves.add(id(node.variable))
        elif node not in seen:
            seen.add(node)
            for parent, _ in node.next_functions:
                if parent is not None:
                    pending.append(parent)
    return leaves, seen


def undefined(output: Tensor) -> Any:
    """The output, made so that its cotangent reaches the graph as undefined, whatever is passed."""
    return torch._C._functions.UndefinedGrad()(output)


def coarsest_dtype_eps(tensors: Sequence[Tensor]) -> float:
    """The largest rounding error of any floating-point tensor that the graph behind these went through."""
    eps = 0.0
    for tensor in tensors:
        for node in nodes(tensor) if tensor.grad_fn is not None else ():
            for metadata in getattr(node, "_input_metadata", ()):
                dtype = metadata.dtype
                if dtype is not None and (dtype.is_floating_point or dtype.is_complex):
                    eps = max(eps, torch.finfo(dtype).eps)
    return eps
