"""Element by element: each element of the result reads the elements at the same place, after broadcasting."""

from __future__ import annotations

import torch
from torch import Tensor

from covector.sparsity.dependence import NONE, Dependence, merged, united
from covector.sparsity.tracker import Dependences, NoRule, Operation

# Elementwise operations that torch does not tag as such.
NAMES = frozenset(
    {"elu_backward", "hardtanh_backward", "softplus_backward", "leaky_relu_backward", "log_sigmoid_backward"}
    | {
        "hardswish_backward",
        "hardsigmoid_backward",
        "mish_backward",
        "softshrink_backward",
        "hardshrink_backward",
    }
    | {"mse_loss_backward", "huber_loss_backward", "smooth_l1_loss_backward", "binary_cross_entropy_backward"}
    | {"soft_margin_loss_backward", "kl_div", "native_dropout_backward", "rrelu_with_noise_backward"}
    | {
        "_prelu_kernel",
        "_prelu_kernel_backward",
        "_to_copy",
        "lift_fresh",
        "lift_fresh_copy",
        "complex",
        "polar",
    }
    | {"real", "imag", "resolve_conj", "resolve_neg", "detach_copy", "alias_copy"}
    | {"silu", "mish", "hardswish", "celu", "selu", "elu", "softplus"}
)


def elementwise(operation: Operation) -> Dependences:
    """The union of what is read."""
    parts = [dependence for _, dependence in operation.tracked()]
    return [_spread(parts, result) for result in operation.results]


def _spread(parts: list[Dependence], result: Tensor | None) -> Dependence | None:
    if result is None:
        return None
    try:
        return united(parts, result.shape)
    except RuntimeError as error:  # an argument that is not broadcast
        raise NoRule from error


def multiply(operation: Operation) -> Dependences:
    """A product with a constant is zero where that is."""
    first, second = operation["self"], operation["other"]
    one, other = operation.dependence(first), operation.dependence(second)
    if one is not None and other is not None:
        return elementwise(operation)
    moving, factor = (one, second) if one is not None else (other, first)
    assert moving is not None
    ids = moving.ids.expand(operation.result.shape)
    if not isinstance(factor, Tensor):
        return [moving.with_ids(ids) if factor != 0 else None]
    if operation.known(factor) and factor.layout is torch.strided and factor.device.type == "cpu":
        zero = factor.detach() == 0
        if bool(zero.any()):
            ids = torch.where(zero, NONE, ids)
    return [moving.with_ids(ids)]


def where(operation: Operation) -> Dependences:
    """Of two: the one that a constant condition takes, or both if the condition is not known."""
    condition = operation["condition"]
    if not operation.known(condition):
        return elementwise(operation)
    return [_chosen(operation, condition, operation["self"], operation["other"])]


def masked_fill(operation: Operation) -> Dependences:
    """A constant mask leaves nothing where it is set, but the value."""
    mask = operation["mask"]
    if not operation.known(mask):
        return elementwise(operation)
    return [_chosen(operation, mask, operation["value"], operation["self"])]


def _chosen(operation: Operation, condition: Tensor, yes: object, no: object) -> Dependence | None:
    pair = [operation.dependence(yes), operation.dependence(no)]
    sets, moving = merged([part for part in pair if part is not None])
    numbers = iter(moving)
    first, second = (torch.tensor(NONE) if part is None else next(numbers) for part in pair)
    ids = torch.where(condition, first, second).expand(operation.result.shape)
    return Dependence(ids, sets)


def halves(operation: Operation) -> Dependences:
    """Gated units: an element of one half of an axis, and the one at the same place of the other half."""
    shape = min((tensor.shape for tensor in operation.call.tensors()), key=lambda shape: shape.numel())
    axis = operation["dim"]
    parts: list[Dependence] = []
    for tensor, dependence in operation.tracked():
        whole = tensor.shape[axis] != shape[axis]
        pieces = dependence.ids.chunk(2, axis) if whole else (dependence.ids,)
        parts += [dependence.with_ids(piece) for piece in pieces]
    unit = united(parts, parts[0].ids.shape)
    repeated = unit.with_ids(torch.cat([unit.ids, unit.ids], axis))
    return [unit if r is not None and r.shape == unit.ids.shape else repeated for r in operation.results]


def copy(operation: Operation) -> Dependences:
    """What is copied replaces what was there."""
    source = operation.dependence(operation["src"])
    return [None if source is None else _spread([source], operation.result)]


def fill(operation: Operation) -> Dependences:
    """One element everywhere, or a number."""
    value = operation.dependence(operation["value"])
    return [None if value is None else _spread([value], operation.result)]


def nothing(operation: Operation) -> Dependences:
    """Numbers that were not computed from anything."""
    return [None for _ in operation.results]


RULES = {
    "mul": multiply,
    "multiply": multiply,
    "where": where,
    "masked_fill": masked_fill,
    **dict.fromkeys(("glu_jvp", "glu_backward", "glu_backward_jvp"), halves),
    "copy": copy,
    "fill": fill,
    "zero": nothing,
    "normal": nothing,
    "uniform": nothing,
    "bernoulli": nothing,
    **dict.fromkeys(NAMES, elementwise),
}
