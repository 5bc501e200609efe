"""Operations of a graph by torch's Python functions, which take less time to call than operators by schema.

On small tensors a call costs more than what it computes: `aten.mul.Tensor(a, b)` takes half as long again as
`torch.mul(a, b)`. Which function stands for an operator is not taken for granted: the graph is run once by
both, and an operation is exchanged where they give the same tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

_aten = torch.ops.aten


class _Call(NamedTuple):
    """How a node may be computed instead; `kind` is that of the node."""

    kind: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def by_functions(module: GraphModule, example: Sequence[Tensor]) -> GraphModule:
    """The same graph, its operations called by functions and methods of torch where these give the same."""
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    quick = GraphModule(module, graph)
    trial = _Trial(quick)
    with torch.no_grad():
        trial.run(*example)
    for node, call in trial.exchanged.items():
        node.op, node.target, node.args, node.kwargs = call
    quick.recompile()
    return quick


class _Trial(Interpreter):
    """Runs a graph, and each of its operations once more by a function."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.exchanged: dict[Node, _Call] = {}

    def run_node(self, node: Node) -> Any:
        """The value of a node; what gives the same is remembered."""
        value = super().run_node(node)
        call = _called_by_function(node)
        if call is not None and _same(self._attempt(node, call), value):
            self.exchanged[node] = call
        return value

    def _attempt(self, node: Node, call: _Call) -> Any:
        args: Any = self.map_nodes_to_values(call.args, node)
        kwargs: Any = self.map_nodes_to_values(call.kwargs, node)
        function = getattr(Tensor, call.target) if call.kind == "call_method" else call.target
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError, RuntimeError):  # it takes other arguments than the operator
            return None


def _called_by_function(node: Node) -> _Call | None:
    """The function or method with the name of an operator, which changes nothing in place."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or schema.is_mutable:
        return None
    other = _OTHERWISE.get(node.target)
    if other is not None:
        return other(node)
    space, _, name = schema.name.partition("::")
    if space != "aten" or not node.args or not isinstance(node.args[0], Node | list | tuple):
        return None
    function, method = getattr(torch, name, None), getattr(Tensor, name, None)
    if isinstance(function, BuiltinFunctionType):
        return _Call("call_function", function, node.args, dict(node.kwargs))
    if isinstance(method, MethodDescriptorType):
        return _Call("call_method", name, node.args, dict(node.kwargs))
    return None


def _slice(node: Node) -> _Call | None:
    given: tuple[Any, ...] = node.args
    defaults: tuple[Any, ...] = (None, 0, None, None, 1)
    source, dim, start, end, step = given + defaults[len(given) :]
    if dim < 0:
        return None
    return _Call("call_function", getitem, (source, (*[slice(None)] * dim, slice(start, end, step))), {})


def _pad(node: Node) -> _Call | None:
    """A gradient of a slice: zeros around it."""
    given: tuple[Any, ...] = node.args
    gradient, sizes, dim, start, end, step = given
    if step != 1:
        return None
    first, stop, _ = slice(start, end).indices(sizes[dim])
    around = [0, 0] * (len(sizes) - 1 - dim % len(sizes)) + [first, sizes[dim] - stop]
    return _Call("call_function", torch.constant_pad_nd, (gradient, around), {})


def _alias(node: Node) -> _Call:
    return _Call("call_method", "view_as", (node.args[0], node.args[0]), {})


# Operators that have no function of their name, or one that takes longer.
_OTHERWISE: dict[Any, Callable[[Node], _Call | None]] = {
    _aten.alias.default: _alias,
    _aten.slice.Tensor: _slice,
    _aten.slice_backward.default: _pad,
}


def _same(found: Any, expected: Any) -> bool:
    """Whether two results are the same numbers, stored in the same way."""
    if isinstance(expected, tuple | list):
        several = isinstance(found, tuple | list) and len(found) == len(expected)
        return several and all(map(_same, found, expected))
    if not isinstance(found, Tensor) or not isinstance(expected, Tensor):
        return False
    alike = (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)
    return alike and torch.allclose(found, expected, rtol=0.0, atol=0.0, equal_nan=True)
