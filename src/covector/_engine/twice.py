"""Operations whose kernel lacks a derivative, and others that compute the same and have every one.

Fused attention has neither a forward-mode rule nor a second derivative. The distances of `cdist` and `pdist`
have no second derivative either, and torch's batching rule for the first one of `cdist` is wrong.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from covector._engine.messages import names_distances, names_fused_attention
from covector.errors import text_of


def differentiable_attention() -> AbstractContextManager[None]:
    """Inside, attention is computed by operations that have every derivative."""
    return sdpa_kernel(SDPBackend.MATH)


class DifferentiableDistances(TorchFunctionMode):
    """Inside, a distance is the norm of a difference."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or what stands for it."""
        return _DISTANCES.get(function, function)(*args, **(kwargs or {}))


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, dim=-1)


def _pdist(input: Tensor, p: float = 2.0) -> Tensor:
    first, second = torch.triu_indices(len(input), len(input), 1, device=input.device)
    return torch.linalg.vector_norm(input[first] - input[second], p, dim=-1)


_DISTANCES: dict[Any, Any] = {torch.cdist: _cdist, torch.pdist: _pdist}


def another_way(error: Exception) -> AbstractContextManager[Any] | None:
    """In what to do again what raised this, so that it has a derivative; None if there is no other way."""
    text = text_of(error)
    if names_fused_attention(text):
        return differentiable_attention()
    return DifferentiableDistances() if names_distances(text) else None
