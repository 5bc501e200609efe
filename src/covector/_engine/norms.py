"""Norms by elementary operations, which have every derivative, in batches too.

Torch's own take the mean and the deviation that were saved for constants: the forward-mode rules where they
are differentiated again, the batched backward in the gradient by the weight (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _normalized(input: Tensor, axes: list[int], eps: float) -> Tensor:
    """The input with mean zero and variance one along some axes."""
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    centred = wide - wide.mean(axes, keepdim=True)
    return (centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()).to(input.dtype)


def _scaled(normalized: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    result = normalized if weight is None else normalized * weight
    return result if bias is None else result + bias


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    return _scaled(_normalized(input, list(range(-len(normalized_shape), 0)), eps), weight, bias)


def _by_channel(parameter: Tensor | None, input: Tensor) -> Tensor | None:
    return parameter if parameter is None else parameter.reshape(-1, *[1] * (input.dim() - 2))


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    own = (running_mean, running_var, weight, bias, training, momentum, eps)
    return _of_images(functional.batch_norm, [0, *range(2, input.dim())], input, own)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    own = (running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    return _of_images(functional.instance_norm, list(range(2, input.dim())), input, own)


def _of_images(
    function: Callable[..., Tensor], axes: list[int], input: Tensor, own: tuple[Any, ...]
) -> Tensor:
    """A norm along these axes of a batch of images; torch's own, if it takes the running statistics."""
    running_mean, _, weight, bias, from_input, _, eps = own
    if not from_input:
        return function(input, *own)
    if running_mean is not None:
        function(input, *own)  # which updates it
    normalized = _normalized(input, axes, eps)
    return _scaled(normalized, _by_channel(weight, input), _by_channel(bias, input))


def _torch_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def _torch_instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    return _instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


NORMS: dict[Any, Callable[..., Tensor]] = {
    functional.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    functional.batch_norm: _batch_norm,
    torch.batch_norm: _torch_batch_norm,
    functional.instance_norm: _instance_norm,
    torch.instance_norm: _torch_instance_norm,
}
