"""Operations whose forward-mode rule gives wrong numbers, for as long as something is pushed forward.

They are caught where torch dispatches, so that it does not matter who calls them in this thread: the
function, the backward of a custom Function in it, a hook, C++. Every other operation runs as fast as without.
What torch's own transforms call on a level inside is not caught.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, fallthrough_kernel
from torch.nn import functional

# A key of torch's dispatcher at which torch itself registers nothing.
_LEVEL = "TESTING_ONLY_GenericMode"
_KEY: Any = torch._C._parse_dispatch_key(_LEVEL)

# Operators that torch dispatches in Python (custom Functions on a level, `torch.cond`), which have to be told
# that there is nothing for them.
_in_python = torch._ops._higher_order_ops
_told: set[str] = set()


class NoRightRule(NotImplementedError):
    """The forward-mode rule of this operation would give wrong numbers here."""

    def __init__(self, operation: str, *, nested: bool) -> None:
        super().__init__(operation)
        self.operation = f"{operation} that {'can be nested' if nested else 'is right'}"


def right_rules() -> AbstractContextManager[Any]:
    """Inside, these operations are computed by others, or refused."""
    if len(_told) != len(_in_python):
        for name in _in_python.keys() - _told:
            _in_python[name].fallthrough(_KEY)
            _told.add(name)
    return torch._C._IncludeDispatchKeyGuard(_KEY)


def _inverse(*args: Any, **kwargs: Any) -> Any:
    """The rule of this inverse multiplies in the wrong order (torch 2.13)."""
    raise NoRightRule("cholesky_inverse", nested=False)


# With chunks this loss drops the tangent, and inside a batch it has no gradient (torch 2.13).
def _in_one_piece(*operands: Any, ignored: int, **how: Any) -> Tensor:
    input, matrix, target, bias, weight = operands
    index = None if target.is_floating_point() else ignored
    return functional.linear_cross_entropy(
        input, matrix, target, linear_bias=bias, weight=weight, ignore_index=index, **how
    )


def _reduced_loss(*args: Any) -> tuple[Tensor, ...]:
    """The loss, and nothing in place of the gradients that come with it."""
    reduction, ignored, smoothing = args[5:8]
    loss = _in_one_piece(*args[:5], ignored=ignored, reduction=reduction, label_smoothing=smoothing)
    return loss, *(loss.new_empty(0) for _ in range(3))


def _loss(*args: Any) -> Tensor:
    return _in_one_piece(*args[:5], ignored=args[5], reduction="none")


_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::cholesky_inverse": _inverse,
    "torch_nn::_linear_cross_entropy_batch_chunked": _reduced_loss,
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction": _loss,
}

# They are registered for as long as this list is there.
_libraries = [Library("_", "IMPL"), *(Library(name.partition("::")[0], "IMPL") for name in _KERNELS)]
with suppress(RuntimeError):  # there is one already, where covector is imported anew
    _libraries[0].fallback(fallthrough_kernel, _LEVEL)
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="[^$]*Overriding a previously registered kernel")  # likewise
    for _library, (_name, _kernel) in zip(_libraries[1:], _KERNELS.items(), strict=True):
        _library.impl(_name, _kernel, _LEVEL)
