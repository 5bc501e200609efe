"""Watching a function run: whether it does what only reverse mode would notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class ReverseOnly(Exception):
    """The function looks at, or changes, what reverse mode records; forward mode would not see it."""


# What a function may do whose effect, or answer, is another one when nothing is recorded.
_NOTICED: frozenset[Any] = frozenset(
    {
        torch._C._set_grad_enabled,
        torch.autograd.grad,
        torch.autograd.backward,
        Tensor.backward,
        Tensor.register_hook,
        Tensor.register_post_accumulate_grad_hook,
        Tensor.requires_grad_,
        Tensor.retain_grad,
        Tensor.detach_,
        Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
        Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
        Tensor.grad_fn.__get__,  # type: ignore[attr-defined]
        Tensor.grad.__get__,  # type: ignore[attr-defined]
        Tensor.is_leaf.__get__,  # type: ignore[attr-defined]
    }
)


class ForwardWatch(TorchFunctionMode):
    """Raises `ReverseOnly` when the function that runs inside does something of that kind.

    The function may catch that; `noticed` tells all the same.
    """

    noticed = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
    ) -> Any:
        if function in _NOTICED:
            self.noticed = True
            raise ReverseOnly(getattr(function, "__name__", str(function)))
        return function(*arguments, **keywords) if keywords else function(*arguments)
