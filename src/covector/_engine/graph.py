"""The autograd graph: run it backwards, and ask what it leads to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from inspect import unwrap
from math import prod
from operator import or_
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._functorch.eager_transforms import _autograd_grad
from torch.autograd import Function, Variable
from torch.autograd.function import BackwardCFunction, once_differentiable

from covector._engine import levels
from covector._engine.compiled import tracing
from covector.errors import UnsupportedError

_LeafNode = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
_run = Variable._execution_engine.run_backward

# A leaf that a recording made for itself gets this attribute once the function has returned: until then it is
# a tensor from outside, to a transform nested inside; afterwards nobody can ask for it.
CLOSED = "_covector_closed"


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
    if tracing():
        return _autograd_grad(outputs, inputs, cotangents, retain_graph=True, create_graph=record)
    # The last two: inputs need not be reached, and nothing is added to their `.grad`.
    found = _run(tuple(outputs), tuple(cotangents), keep or record, record, tuple(inputs), True, False)
    return [g if g is None or not g._is_zerotensor() else written_out(g) for g in found]


def leads_outside(tensor: Tensor) -> bool:
    """Whether the tensor depends on one that requires grad and is not a closed leaf of ours."""
    return survey(tensor).outside


class Survey(NamedTuple):
    """Where the graph behind a tensor leads."""

    outside: bool
    """To a leaf that requires grad and is not a closed leaf of ours."""
    dead_end: bool
    """To a derivative that torch refuses: a node that leads nowhere and is no leaf, or compiled code."""
    once: bool
    """Through a custom Function whose backward has no derivative itself."""
    custom: bool = False
    """Through any custom Function."""
    singly: bool = False
    """Through a node whose batching rule is wrong."""
    factored: bool = False
    """Through a node whose backward solves with a factorization, if it is not recorded itself."""
    normed: bool = False
    """Through a norm with a weight, whose batched gradient has no right derivative."""

    def __or__(self, other: Survey) -> Survey:
        """Where the graphs behind two tensors lead."""
        return Survey(*map(or_, self, other))


NOWHERE = Survey(outside=False, dead_end=False, once=False)

# All functions that the decorator returns share their code.
_ONCE = once_differentiable(lambda ctx: None).__code__


# Where torch makes the custom Functions of compiled code. Differentiating their backwards is an error in some
# releases; in others the gradients just have no graph, so that a second derivative would be zero.
_COMPILED = "torch._functorch._aot_autograd"

# Nodes whose batching rule gives wrong numbers unless one of these operands is batched too (torch 2.13; found
# by a sweep over torch's operators). Factors may be in no batch, but not in one around the others.
_WRONG_IN_BATCHES = {
    "CdistBackward0": ("_saved_x1", "_saved_x2"),
    "LinalgLuSolveBackward0": ("_saved_LU",),
}
_RIGHT_IN_ONE_BATCH = {"LinalgLuSolveBackward0"}

# Nodes whose backward, while nothing is recorded, solves with the factors that were saved. Where these are of
# one batch and the cotangents of another one inside it, torch's kernel takes the wrong factors (torch 2.13).
# That of eigenvalues solves when it is recorded, and so does its own backward.
_FACTORED = {f"Linalg{kind}Backward0" for kind in ("SolveEx", "Det", "Slogdet", "Eig")}

# A loss that computes its gradients in the forward, for operands that say there that they require grad, and
# multiplies them in the backward (torch 2.13). That has no derivative of its own, and gives nothing for an
# operand that was in a batch, where none says so. By operand, where it keeps whether it has a gradient.
_STORES_GRADIENTS = "GeneratedBackwardFor_torch_nn__linear_cross_entropy_batch_chunked_default"
_STORED = {0: "compute_input_grad", 1: "compute_linear_weight_grad", 3: "compute_linear_bias_grad"}

# Norms, the gradient of whose weight torch computes in a batch from the saved mean and deviation, as if these
# did not depend on the input: its own derivative is wrong (torch 2.13).
_NORMED = {"NativeLayerNormBackward0", "NativeBatchNormBackward0"}

# What torch calls the nodes of C++ Functions that are not its own.
_OF_EXTENSIONS = "CppFunction"

# The node at which the cotangent of a strided tensor becomes that of a sparse one.
_TO_STRIDED = "ToDenseBackward0"

# Types of node, as they are met, of which nobody has to ask anything again: torch makes them, without faults.
_plain: set[type] = {_LeafNode}

# Up to here it takes longer to remember nodes than to meet them twice.
_FEW_NODES = 32


def _backward_only(custom: Any) -> bool:
    """Whether the backward of a custom Function has no derivative itself: marked so, compiled, or stored."""
    marked = getattr(custom.backward, "__code__", None) is _ONCE
    return marked or custom.__module__.startswith(_COMPILED) or custom.__name__ == _STORES_GRADIENTS


def _refuse_lost(found: list[Any]) -> None:
    """Raise if a gradient is missing that the forward should have stored."""
    for node in found:
        stored = getattr(getattr(type(node), "_forward_cls", None), "__name__", "") == _STORES_GRADIENTS
        if stored and any(
            node.needs_input_grad[i] and not getattr(node, name) for i, name in _STORED.items()
        ):
            raise UnsupportedError(
                "torch's linear_cross_entropy in chunks has no gradient by what is in a batch, and gives "
                "zeros without a word. Call it without options, or outside of vmap."
            )


def _walk(starts: list[Any]) -> tuple[list[Any], list[Any]]:
    """The nodes of the graph behind these, and the ends of it: leaves, and other nodes that lead nowhere.

    In a small graph, a node with several ways to it is there several times. This is on the path of every
    gradient.
    """
    found, ends = starts, []
    seen: set[Any] = set()
    for node in found:  # it grows on the way
        leads_on = False
        for parent, _ in node.next_functions:
            if parent is not None:
                leads_on = True
                if len(found) < _FEW_NODES:
                    found.append(parent)
                elif parent not in seen:
                    seen.add(parent)
                    found.append(parent)
        if not leads_on:
            ends.append(node)
    return found, ends


def survey(tensor: Tensor, kinds: set[type] | None = None) -> Survey:
    """Where the graph behind a tensor leads; the types of its nodes are added to `kinds`."""
    if not tensor.requires_grad:
        return NOWHERE
    if tensor.grad_fn is None:
        return NOWHERE if hasattr(tensor, CLOSED) else Survey(outside=True, dead_end=False, once=False)
    dead_end = outside = once = by_hand = singly = factored = normed = False
    found, ends = _walk([tensor.grad_fn])
    if kinds is not None:
        kinds.update(map(type, found))
    for node in ends:
        if type(node) is not _LeafNode:
            dead_end = True
        elif not hasattr(node.variable, CLOSED):
            outside = True
    for kind in () if _plain.issuperset(map(type, found)) else set(map(type, found)):
        custom = getattr(kind, "_forward_cls", None)
        if kind.__name__ == "CompiledFunctionBackwardBackward":
            dead_end = True
        elif custom is not None:
            by_hand = True
            once = once or _backward_only(custom)
            if custom.__name__ == _STORES_GRADIENTS:
                _refuse_lost(found)
        elif kind.__name__ in _WRONG_IN_BATCHES:
            singly = True
        elif kind.__name__ in _FACTORED:
            factored = True
        elif kind.__name__ in _NORMED:
            normed = True
        elif kind.__name__ != _OF_EXTENSIONS:
            _plain.add(kind)
    if not (outside or dead_end or by_hand or singly or factored or normed):
        return NOWHERE
    # A dead end counts as outside: the tensor keeps it, so that asking for the derivative raises.
    return Survey(outside or dead_end, dead_end, once, by_hand, singly, factored, normed)


def nodes(*tensors: Tensor) -> Iterable[Any]:
    """Every node of the graph behind these tensors, once."""
    return dict.fromkeys(_walk([tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None])[0])


def custom_functions(outputs: Sequence[Tensor]) -> list[Any]:
    """The custom Functions behind these outputs, each once."""
    found = (getattr(type(node), "_forward_cls", None) for node in nodes(*outputs))
    return list(dict.fromkeys(custom for custom in found if custom not in (None, WithoutNumbers, Constant)))


def functions_inside(outputs: Sequence[Tensor]) -> list[Any]:
    """The custom Functions behind these outputs; none if one of them is all that is there."""
    found = custom_functions(outputs)
    every = [node for node in nodes(*outputs) if type(node) is not _LeafNode]
    alone = len(found) == 1 and all(hasattr(type(node), "_forward_cls") for node in every)
    return [] if alone else found


def once_on_the_way(output: Tensor, variables: Sequence[Tensor]) -> bool:
    """Whether a backward that is marked `once_differentiable` stands between the output and a variable."""
    marked = [
        node
        for node in nodes(output)
        if (custom := getattr(type(node), "_forward_cls", None)) is not None and _backward_only(custom)
    ]
    return _leads_to(variables, marked)


def _leads_to(variables: Sequence[Tensor], starts: list[Any]) -> bool:
    """Whether one of the variables stands behind these nodes."""
    inner = {variable.grad_fn for variable in variables if variable.grad_fn is not None}
    leaves = {id(variable) for variable in variables}
    return any(below in inner or id(getattr(below, "variable", None)) in leaves for below in _walk(starts)[0])


def refuse_normed(outputs: Sequence[Tensor], variables: Sequence[Tensor]) -> None:
    """Raise if the gradient by the weight of a norm leads to a variable."""
    norms = [node for node in nodes(*outputs) if type(node).__name__ in _NORMED]
    weights = [node.next_functions[1][0] for node in norms if node.next_functions[0][0] is not None]
    if _leads_to(variables, [weight for weight in weights if weight is not None]):
        raise UnsupportedError(
            "torch's batched gradient by the weight of a norm has no right derivative. Pull the cotangents "
            "back one by one, without vmap, or use jacrev, which does so."
        )


@lru_cache(maxsize=1024)
def is_forward(code: CodeType) -> bool:
    """Whether this is the code of the forward of a custom Function. Its `apply` need not have a frame."""
    pending: list[Any] = [Function]
    while pending:
        custom = pending.pop()
        if getattr(unwrap(custom.forward), "__code__", None) is code:
            return True
        pending += custom.__subclasses__()
    return False


def is_backward(code: CodeType) -> bool:
    """Whether this is the code by which torch runs the backward of a custom Function."""
    return code is BackwardCFunction.apply.__code__


def derivative_of(custom: Any) -> Any:
    """The function that a custom Function says its derivative by."""
    return unwrap(custom.backward if custom.vjp is Function.vjp else custom.vjp)


def functions_without(rule: str, outputs: Sequence[Tensor]) -> list[str]:
    """Names of the custom Functions behind these outputs that do not define this static method."""
    lacking = (c for c in custom_functions(outputs) if getattr(c, rule) is getattr(Function, rule))
    return list(dict.fromkeys(custom.__name__ for custom in lacking))


def first_undifferentiable(tensors: Sequence[Tensor]) -> str | None:
    """The name of a node behind these tensors that can only refuse to be run backwards."""
    for node in nodes(*tensors):
        if type(node).__name__ in ("NotImplemented", "Error", "DelayedError"):
            return node.name()
    return None


def refuse_wrong_batches(outputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> None:
    """Raise if a cotangent is batched where the operands of a node are not that cannot deal with it."""
    hidden = set[int]().union(*map(levels.batches, (*outputs, *cotangents)))
    for node in nodes(*outputs) if hidden else ():
        kind = type(node).__name__
        known = [levels.batches(getattr(node, name)) for name in _WRONG_IN_BATCHES.get(kind, ())]
        if not known or (kind in _RIGHT_IN_ONE_BATCH and not any(known)):
            continue
        if hidden.difference(*known):
            raise UnsupportedError(
                f"torch's batching rule for {node.name()} gives wrong numbers where cotangents are "
                "batched and its operands are not. Pull the cotangents back one by one, without vmap, "
                "or use jacrev, which does so."
            )


def is_known(kind: type) -> bool:
    """Whether this type of node stands for one operation of torch's own."""
    return kind.__name__ != _OF_EXTENSIONS and not hasattr(kind, "_forward_cls")


class Reached(NamedTuple):
    """What stands behind some tensors."""

    leaves: set[int]
    """The ids of the leaves, and of the tensors themselves."""
    inner: set[Any]
    """The nodes that are no leaves."""


def reached(tensors: Sequence[Tensor]) -> Reached:
    """What stands behind these tensors."""
    leaves, inner = set(map(id, tensors)), set()
    for node in nodes(*tensors):
        if type(node) is _LeafNode:
            leaves.add(id(node.variable))
        else:
            inner.add(node)
    return Reached(leaves, inner)


def only_leaf(tensor: Any) -> Tensor | None:
    """The leaf behind a tensor, if there is one and no other."""
    found = nodes(tensor) if isinstance(tensor, Tensor) else ()
    leaves = [node.variable for node in found if type(node) is _LeafNode]
    return leaves[0] if len(leaves) == 1 else None


def through_custom(inner: set[Any]) -> bool:
    """Whether one of these nodes belongs to a custom Function, in Python or in C++."""
    kinds = set(map(type, inner))
    return any(hasattr(kind, "_forward_cls") or kind.__name__ == _OF_EXTENSIONS for kind in kinds)


def from_sparse(inner: set[Any]) -> bool:
    """Whether at one of these nodes a sparse tensor was made strided: its backward may leave zeros out."""
    return any(kind.__name__ == _TO_STRIDED for kind in set(map(type, inner)))


def only_custom(outputs: Sequence[Tensor], variable: Tensor) -> bool:
    """Whether every node that gives this variable its gradient belongs to a custom Function."""
    givers = {
        node
        for node in nodes(*outputs)
        for parent, _ in node.next_functions
        if type(parent) is _LeafNode and parent.variable is variable
    }
    return bool(givers) and all(getattr(type(node), "_forward_cls", None) is not None for node in givers)


def undefined(output: Tensor) -> Any:
    """The output, made so that its cotangent reaches the graph as undefined, whatever is passed."""
    return torch._C._functions.UndefinedGrad()(output)


def written_out(tensor: Tensor) -> Tensor:
    """The tensor, with memory of its own: some derivatives of torch's are zeros that have none.

    Such can neither be written to nor be made an array.
    """
    return torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor


def bytes_by_dtype(inner: set[Any]) -> dict[torch.dtype, int]:
    """How many bytes the tensors take together, of each dtype, that these nodes stand behind."""
    found: dict[torch.dtype, int] = {}
    for node in inner:
        known = getattr(node, "_input_metadata", ())
        for metadata in known:
            shape, dtype = metadata.shape, metadata.dtype
            # Of several, an undefined one looks like a number.
            undefined = len(known) > 1 and len(shape) == 0 and dtype is torch.float32
            if dtype is not None and not metadata.is_nested_tensor and not undefined:
                found[dtype] = found.get(dtype, 0) + prod(shape) * dtype.itemsize
    return found


NO_SECOND_DERIVATIVE = (
    "a backward on the way has no derivative of its own: it is marked once_differentiable, or it belongs to "
    "a compiled function. Write it with differentiable operations, or take the outer derivative by forward "
    "mode (jvp, jacfwd)."
)


class WithoutNumbers(Function):
    """An output whose graph is needed and whose numbers are not."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        """One number in place of all."""
        ctx.set_materialize_grads(False)
        return output.new_empty(()).expand(output.shape)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        """The cotangent, as it is."""
        return cotangent


def without_numbers(output: Tensor) -> Tensor:
    """A tensor that takes the same cotangents and holds nothing, of plain ones that were computed."""
    if type(output) is not Tensor or output.grad_fn is None or output.layout is not torch.strided:
        return output
    with torch.enable_grad():
        return WithoutNumbers.apply(output)  # type: ignore[no-untyped-call]


class Refused(Function):
    """A gradient that must not be differentiated: torch would silently give zeros."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *variables: Tensor) -> Tensor:
        """The gradient, tied to the variables."""
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        """Refuse."""
        raise UnsupportedError(NO_SECOND_DERIVATIVE)


class Constant(Function):
    """A gradient without a graph, as an output that does not depend on the variables."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *variables: Tensor) -> Tensor:
        """The gradient, tied to the variables."""
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        """Nothing, for each of them."""
        return (None,) * len(ctx.needs_input_grad)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *tangents: Tensor) -> Tensor:
        """The tangent that the gradient has: forward mode needs no graph."""
        return tangent.clone()


def constant(gradient: Tensor, variables: Sequence[Tensor]) -> Any:
    """The gradient with a graph that says what torch makes of one that has none: its derivative is zero."""
    return Constant.apply(gradient, *variables)  # type: ignore[no-untyped-call]


def refused(gradient: Tensor, variables: Sequence[Tensor]) -> Any:
    """The gradient, such that differentiating it by the variables raises."""
    return Refused.apply(gradient, *variables)  # type: ignore[no-untyped-call]
