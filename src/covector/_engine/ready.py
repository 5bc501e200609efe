"""Graphs made ready: what a traced program need not compute at each call, and what a compiler cannot take.

`untransposed` is for every backend. `short` is for operations that are run one by one, each of which takes a
pass over memory; a compiler does better to compute a constant in its loops than to read it. `written_out` is
for inductor. Numbers stay the same, but for the order in which the terms of a matrix product are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

_aten = torch.ops.aten

# Numbers that depend on the shape alone.
_SHAPES_ALONE = {_aten.ones_like.default, _aten.zeros_like.default, _aten.full_like.default}
_SHAPES_ALONE |= {_aten.new_zeros.default, _aten.new_ones.default, _aten.new_full.default}
# How the names of operations begin that copy a tensor and write into some places of the copy.
_WRITERS = (
    "index_add",
    "index_put",
    "index_copy",
    "index_fill",
    "index_reduce",
    "scatter",
    "masked_scatter",
    "put",
)
_POWER = _aten.pow.Tensor_Scalar
_PRODUCTS = {_aten.mul.Tensor, _aten.mul.Scalar, _aten.div.Tensor, _aten.div.Scalar}
_MATRIX_PRODUCTS = {_aten.mm.default, _aten.bmm.default}
# Of no effect where the result lies in memory as the argument does, which nothing changes in place.
_REPEATED = {_aten.clone.default, _aten.view.default, _aten.expand.default}
# Views that depend on how a tensor lies in memory: some can be made a copy instead, some cannot.
_VIEWS = {_aten.view.default, _aten._unsafe_view.default}
_BY_STRIDES = {_aten.as_strided.default, _aten.view.dtype, _aten.view_as_complex.default}


def untransposed(module: GraphModule) -> None:
    """Write A^T B^T as (B A)^T, and leave out what is transposed twice.

    A batched pullback through `weight @ x` is a product of two transposed matrices, for which BLAS takes up
    to twelve times as long (float64, 32 x 512 by 512 x 256). Tensors on the way then lie otherwise in memory,
    so a graph in which that matters is left as it is, and results that were contiguous are made so.
    """
    graph = module.graph
    products = [n for n in graph.nodes if n.target in _MATRIX_PRODUCTS and all(map(_is_transposed, n.args))]
    if not products or any(_mutates(node) or node.target in _BY_STRIDES for node in graph.nodes):
        return
    for node in products:
        first, second = (factor.args[0] for factor in node.args)
        with graph.inserting_before(node):
            product = graph.call_function(node.target, (second, first))
            turned = graph.call_function(_aten.transpose.int, (product, -2, -1))
        product.meta["val"], turned.meta["val"] = node.meta["val"].mT, node.meta["val"]
        node.replace_all_uses_with(turned)
    for node in graph.nodes:
        if _is_transposed(node) and _is_transposed(node.args[0]) and not _returned(node):
            node.replace_all_uses_with(node.args[0].args[0])
        if node.target in _VIEWS:
            node.target = _aten.reshape.default
    (output,) = (node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(output):
        output.args = ([_contiguous(graph, node) for node in output.args[0]],)
    graph.eliminate_dead_code()


def _contiguous(graph: Graph, node: Node) -> Node:
    """The node, contiguous if it was so in the trace."""
    if node.op != "call_function" or not node.meta["val"].is_contiguous():
        return node
    made = graph.call_function(_aten.contiguous.default, (node,))
    made.meta.update(node.meta)
    return made


def _is_transposed(node: Any) -> bool:
    """Whether a node is another one with its last two axes exchanged."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, Tensor) or value.dim() < 2:
        return False
    if node.target is _aten.t.default:
        return True
    axes = list(range(value.dim()))
    if node.target is _aten.transpose.int:
        return sorted(axis % value.dim() for axis in node.args[1:]) == axes[-2:]
    exchanged = [*axes[:-2], axes[-1], axes[-2]]
    return node.target is _aten.permute.default and [a % value.dim() for a in node.args[1]] == exchanged


def short(module: GraphModule, constants: Mapping[int, Tensor]) -> GraphModule:
    """The same program without what can be left out, given the inputs that are always the same.

    What depends on constants alone is computed now (the groups of a sparse plan, the parts of a Jacobian that
    are the same everywhere), x ** 1, x * 1 and a copy of x are x, what is computed twice is computed once. A
    graph that changes tensors in place is left as it is.
    """
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    if any(_mutates(node) for node in graph.nodes):
        return module
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    shortened = GraphModule({}, graph)
    _compute_once(graph)
    _fold(shortened, {inputs[position]: tensor for position, tensor in constants.items()})
    keep_apart(graph, {node for node in graph.nodes if node.op == "get_attr"})
    graph.eliminate_dead_code()
    shortened.recompile()
    return shortened


def written_out(module: GraphModule, example: Sequence[Tensor]) -> None:
    """Give every operation tensors that have a place for each element, as inductor takes for granted.

    It reads the zeros of forward mode, which are stored nowhere, and crashes; of an expanded tensor that an
    operation writes into a copy of, it makes the copy too small.

    Sums at given places are turned such that they follow the order of memory: inductor takes that of the
    axes, and goes through all places for each of the directions that are stacked along the first axis.
    """
    graph = module.graph
    _turn_sums(graph, example)
    for node in graph.nodes:
        if node.target is _aten._efficientzerotensor.default:
            node.target = _aten.zeros.default
    for node in [node for node in graph.nodes if _copies_and_writes(node) and _is_expanded(node.args[0])]:
        with graph.inserting_before(node):
            whole = graph.call_function(
                _aten.clone.default, (node.args[0],), {"memory_format": torch.contiguous_format}
            )
        node.args = (whole, *node.args[1:])
    module.recompile()


def _turn_sums(graph: Graph, example: Sequence[Tensor]) -> None:
    """Move the first axis last in sums of what came from an input whose first axis is the innermost."""
    inputs = dict(zip((node for node in graph.nodes if node.op == "placeholder"), example, strict=True))
    reached = {node for node, tensor in inputs.items() if _first_is_innermost(tensor)}
    for node in list(graph.nodes):
        if reached.isdisjoint(node.all_input_nodes):
            continue
        added = _Sum.of(node)
        if added is not None and added.leaves_first_axis(inputs):
            node = added.turned(graph, inputs)
        reached.add(node)


def _first_is_innermost(tensor: Tensor) -> bool:
    return tensor.dim() > 1 and tensor.shape[0] > 1 and tensor.stride(0) == 1 < min(tensor.stride()[1:])


class _Sum(NamedTuple):
    """What an operation adds to a tensor, at which places: indices of its axes, or None."""

    result: Node
    target: Any
    places: Any
    source: Any

    @classmethod
    def of(cls, node: Node) -> _Sum | None:
        if node.target is _aten.index_put.default and node.args[3:] == (True,):
            return cls(node, *node.args[:3])
        if node.target is _aten.index_add.default and len(node.args) == 4 and not node.kwargs:
            target, axis, index, source = node.args
            return cls(node, target, [*[None] * axis, index], source)  # type: ignore[operator]
        return None

    def leaves_first_axis(self, inputs: Mapping[Node, Tensor]) -> bool:
        """Whether the first axes of target and source are the same, and no axis is added by broadcasting."""
        used = [index for index in self.places if index is not None]
        first = self.places.index(used[0])
        whole, source, *indices = (_axes(node, inputs) for node in (self.result, self.source, *used))
        adjacent = first > 0 and None not in self.places[first:]
        return adjacent and source == whole - len(used) + max(indices)

    def turned(self, graph: Graph, inputs: Mapping[Node, Tensor]) -> Node:
        """The same sum with the first axis of both moved last, in place of what computes it."""
        node, permute = self.result, _aten.permute.default
        whole, source = _axes(node, inputs), _axes(self.source, inputs)
        with graph.inserting_before(node):
            into = graph.call_function(permute, (self.target, [*range(1, whole), 0]))
            into = graph.call_function(
                _aten.clone.default, (into,), {"memory_format": torch.contiguous_format}
            )
            what = graph.call_function(permute, (self.source, [*range(1, source), 0]))
            added = graph.call_function(_aten.index_put.default, (into, self.places[1:], what, True))
            result = graph.call_function(permute, (added, [whole - 1, *range(whole - 1)]))
        result.meta.update(node.meta)
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        return result


def _axes(node: Node, inputs: Mapping[Node, Tensor]) -> int:
    return int(inputs[node].dim() if node in inputs else node.meta["val"].dim())


def _copies_and_writes(node: Node) -> bool:
    """Whether an operation has a variant that works in place on its first argument at given places."""
    name = getattr(getattr(node.target, "_schema", None), "name", "")
    return name.removeprefix("aten::").startswith(_WRITERS)


def _is_expanded(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, Tensor):
        return False
    return any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True))


def _mutates(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def _compute_once(graph: Graph) -> None:
    """Use the first of several operations that compute the same."""
    known: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or _returned(node):
            continue
        key = repr((node.target, node.args, sorted(node.kwargs.items())))
        if key in known:
            node.replace_all_uses_with(known[key])
            graph.erase_node(node)
        else:
            known[key] = node


def _fold(module: GraphModule, values: dict[Node, Any]) -> None:
    """Compute now what depends on these values and on shapes alone, and leave out factors of one."""
    graph, given = module.graph, set(values)
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if _is_known(node, values):
            with torch.no_grad():
                values[node] = _evaluated(node, values)
        elif (dim := _added_along(node, values)) is not None:
            _add_along(graph, node, dim)
        elif (same := _unchanged(node, values)) is not None and not _returned(node):
            node.replace_all_uses_with(same)
    for node in [node for node in values if node not in given]:
        if isinstance(values[node], Tensor) and any(user not in values for user in node.users):
            name = f"folded_{node.name}"
            module.register_buffer(name, values[node], persistent=False)
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(name))


def _is_known(node: Node, values: Mapping[Node, Any]) -> bool:
    """Whether a node is a number that does not depend on the arguments."""
    if (node.target in _SHAPES_ALONE and _like(node.args[0], node.args[0])) or _is_power(node, 0):
        return True
    return bool(node.all_input_nodes) and all(source in values for source in node.all_input_nodes)


def _evaluated(node: Node, values: Mapping[Node, Any]) -> Any:
    if all(source in values for source in node.all_input_nodes):
        return node.target(*map_arg(node.args, values.get), **map_arg(node.kwargs, values.get))  # type: ignore[operator]
    like = node.args[0].meta["val"]  # type: ignore[union-attr]
    anything = torch.ones(like.shape, dtype=like.dtype, device=like.device)
    return node.target(anything, *node.args[1:], **node.kwargs)  # type: ignore[operator]


def _unchanged(node: Node, values: Mapping[Node, Any]) -> Node | None:
    """What a node is equal to, if it is a copy, a factor of one, or a power of one, of it."""
    if _is_power(node, 1) or (node.target in _REPEATED and _stored_alike(node, node.args[0])):
        return node.args[0]  # type: ignore[return-value]
    if node.target not in _PRODUCTS or len(node.args) != 2:
        return None
    for factor, other in (node.args[::-1], node.args):
        if isinstance(other, Node) and _is_one(factor, values) and _like(node, other):
            if node.target in (_aten.div.Tensor, _aten.div.Scalar) and factor is node.args[0]:
                continue
            return other
    return None


def _added_along(node: Node, values: Mapping[Node, Any]) -> int | None:
    """The axis along which an operation adds up, at places that are known and not counted from the end.

    A gradient of `x[index]` is written by torch as the general `index_put`, which takes three times as long.
    """
    if node.target is not _aten.index_put.default or len(node.args) < 4 or node.args[3] is not True:
        return None
    target, indices, source, _ = node.args
    used = [(dim, index) for dim, index in enumerate(indices) if index is not None]  # type: ignore[arg-type]
    if len(used) != 1 or not _like(node, target) or not _like(source, source):
        return None
    (dim, index), shapes = used[0], (target.meta["val"].shape, source.meta["val"].shape)  # type: ignore[union-attr]
    places = values.get(index)
    if not isinstance(places, Tensor) or places.dtype != torch.int64 or places.dim() != 1:
        return None
    whole = (*shapes[0][:dim], len(places), *shapes[0][dim + 1 :])
    return dim if tuple(shapes[1]) == whole and bool((places >= 0).all()) else None


def _add_along(graph: Graph, node: Node, dim: int) -> None:
    target, indices, source, _ = node.args
    with graph.inserting_before(node):
        arguments = (target, dim, indices[dim], source)  # type: ignore[index]
        added = graph.call_function(_aten.index_add.default, arguments)
    added.meta.update(node.meta)
    node.replace_all_uses_with(added)


def _is_power(node: Node, exponent: int) -> bool:
    return node.target is _POWER and bool(node.args[1] == exponent) and _like(node, node.args[0])


def _is_one(factor: Any, values: Mapping[Node, Any]) -> bool:
    if isinstance(factor, Node):
        value = values.get(factor)
        return isinstance(value, Tensor) and value.numel() > 0 and bool((value == 1).all())
    return isinstance(factor, int | float) and factor == 1


def _like(node: Any, other: Any) -> bool:
    """Whether two nodes are known to have the same shape and dtype."""
    mine, theirs = (each.meta.get("val") if isinstance(each, Node) else None for each in (node, other))
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
        return False
    return mine.shape == theirs.shape and mine.dtype == theirs.dtype


def _stored_alike(node: Any, other: Any) -> bool:
    """Whether two nodes have the same shape and dtype, and the same strides."""
    return _like(node, other) and bool(node.meta["val"].stride() == other.meta["val"].stride())


def _returned(node: Node) -> bool:
    """Whether a node, or a view of it, is a result, which has to be a tensor of its own."""
    return any(user.op == "output" or (_is_view(user.target) and _returned(user)) for user in node.users)


def keep_apart(graph: Graph, constants: set[Node]) -> None:
    """Copy results that are views of a constant: the caller may change them."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(output):
        results = [
            graph.call_function(_aten.clone.default, (node,)) if _viewed(node) in constants else node
            for node in output.args[0]
        ]
    output.args = (results,)


def _viewed(node: Node) -> Node:
    """What this is a view of, or the node itself."""
    while node.op == "call_function" and (node.target is getitem or _is_view(node.target)):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _is_view(operation: Any) -> bool:
    returns = operation._schema.returns if hasattr(operation, "_schema") else ()
    return any(value.alias_info is not None and not value.alias_info.is_write for value in returns)
