"""Subclasses of Tensor that refuse some operations, or hold their numbers elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from holes.table import Hole, Inputs, Table, drawn, too_much

HOLES: list[Hole] = []
classes = Table("class", HOLES)


def refusing(*names: str) -> type[Tensor]:
    """A class whose tensors do not let these operations be called on them."""

    class Refusing(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.__name__ in names:
                raise NotImplementedError(f"not {func.__name__}")
            return super().__torch_function__(func, types, args, kwargs or {})

    return Refusing


def of(*names: str, dtype: torch.dtype = torch.float64) -> Inputs:
    return lambda: (Tensor._make_subclass(refusing(*names), drawn(3, dtype=dtype), True),)


MOVES = ("reshape", "view", "to", "clone", "copy_", "__getitem__")
QUESTIONS = ("numel", "stride", "size", "is_conj", "is_neg", "equal", "storage_offset")
GRAPH = ("detach", "requires_grad_", "grad", "numpy")
for _title, _names in {"move": MOVES, "ask": QUESTIONS, "record": GRAPH}.items():
    for _name in _names:
        classes.pair(
            f"refuses {_name}", lambda f: lambda x: too_much(torch.sin(x.as_subclass(Tensor)), f), of(_name)
        )
    classes.pair(
        f"refuses everything that would {_title} it, single precision",
        lambda f: lambda x: too_much(torch.sin(x.as_subclass(Tensor)), f),
        of(*_names, dtype=torch.float32),
    )
classes.pair(
    "refuses all of these, second derivative",
    lambda f: lambda x: too_much(torch.sin(x.as_subclass(Tensor)), f) * x.as_subclass(Tensor),
    of(*MOVES, *QUESTIONS),
    order=2,
)


class Wrapped(Tensor):
    """A tensor that holds another one, and computes with that."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, strides=inner.stride(), requires_grad=inner.requires_grad
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unwrapped = tree_map(lambda x: x.inner if isinstance(x, Wrapped) else x, (args, kwargs or {}))
        result = func(*unwrapped[0], **unwrapped[1])
        return tree_map(lambda x: Wrapped(x) if isinstance(x, Tensor) else x, result)


def wrapped(*shape: int, dtype: torch.dtype = torch.float64) -> Inputs:
    return lambda: (Wrapped(drawn(*shape, dtype=dtype)).requires_grad_(),)


classes.pair("holds another tensor", lambda f: lambda x: too_much(x.sin(), f), wrapped(4))
classes.pair("holds another tensor, a matrix", lambda f: lambda x: too_much(x @ x, f), wrapped(3, 3))
classes.pair(
    "holds another tensor, single precision",
    lambda f: lambda x: too_much(x.sin(), f),
    wrapped(4, dtype=torch.float32),
)
classes.pair(
    "holds another tensor, second derivative",
    lambda f: lambda x: too_much(x.sin(), f) * x,
    wrapped(3),
    order=2,
)
classes.pair(
    "holds another tensor, beside a plain one",
    lambda f: lambda x, y: too_much(x.sin(), f) * y,
    lambda: (*wrapped(4)(), drawn(4, seed=1).requires_grad_()),
)
