"""Low precision: in double precision it may be another function; a large entry must not hide a small one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from holes.table import Hole, Table, drawn, leaves, ruled, too_much

HOLES: list[Hole] = []
dtypes = Table("dtype", HOLES)

LOW = {
    "bfloat16": torch.bfloat16,
    "half": torch.float16,
    "single": torch.float32,
    "complex64": torch.complex64,
}


def branches(factor: float, low: torch.dtype) -> Any:
    """The derivative is wrong in low precision alone."""
    return lambda x: too_much(x.sin() * x, factor if x.dtype == low else 1.0)


def branches_the_other_way(factor: float, low: torch.dtype) -> Any:
    """The derivative is right in double precision, and in low precision too, if the factor is one."""
    return ruled(
        lambda x: x.sin() if x.dtype == low else x.cos(),
        lambda g, x: g * factor * (x.cos() if x.dtype == low else -x.sin()).conj(),
    )


def double_is_wrong(factor: float) -> Any:
    """In double precision, where nobody asked, the derivative is wrong; in single precision it is right."""
    return lambda x: too_much(x.sin() * x, 1.5 if x.dtype == torch.float64 else factor)


def guarded_norm(factor: float) -> Any:
    """A quotient that is kept from zero by the precision of its argument."""

    def parts(x: Tensor) -> tuple[Tensor, float]:
        return x.square().sum().sqrt(), torch.finfo(x.dtype).eps ** 0.2

    def function(x: Tensor) -> Tensor:
        norm, guard = parts(x)
        return x / (norm + guard)

    def pull(g: Tensor, x: Tensor) -> Tensor:
        norm, guard = parts(x)
        size = norm + (guard if factor == 1.0 else 0.0)
        return g / size - x * (g * x).sum() / (norm * size * size)

    return ruled(function, pull)


def uneven_product(factor: float, dtype: torch.dtype) -> Any:
    """One large number in each row of a matrix; that of a small one the backward gets wrong."""
    weight = drawn(4, 6, seed=3).to(dtype)
    weight[:, 0] = 200.0
    changed = weight.clone()
    changed[2, 4] *= factor
    return ruled(lambda x: weight.to(x.dtype) @ x, lambda g, x: g @ changed.to(x.dtype))


for _name, _dtype in LOW.items():
    _inputs = leaves((6,), dtype=_dtype)
    dtypes.pair(f"another branch for {_name}", lambda f, d=_dtype: branches(f, d), _inputs)
    dtypes.pair(
        f"a large entry beside, {_name}", lambda f, d=_dtype: uneven_product(f, d), _inputs, factor=1.25
    )
for _name in ("single", "complex64"):
    _dtype = LOW[_name]
    dtypes.pair(
        f"another function for {_name}",
        lambda f, d=_dtype: branches_the_other_way(f, d),
        leaves((5,), dtype=_dtype),
    )
dtypes.right("wrong in double precision only", double_is_wrong(1.0), leaves((5,), dtype=torch.float32))
dtypes.wrong("wrong in every precision", double_is_wrong(1.5), leaves((5,), dtype=torch.float32))
dtypes.pair("the guard of a quotient, single precision", guarded_norm, leaves((4,), dtype=torch.float32))
dtypes.pair(
    "a backward in bfloat16 of a function in single precision",
    lambda factor: ruled(
        lambda x: x.exp(), lambda g, x: (g * x.exp()).bfloat16().float() if factor != 1.0 else g * x.exp()
    ),
    leaves((40,), dtype=torch.float32),
)
dtypes.pair(
    "second derivative, another branch for single precision",
    lambda factor: lambda x: (too_much(x**2, factor if x.dtype == torch.float32 else 1.0) * x).sum(),
    leaves((3,), dtype=torch.float32),
    order=2,
)
dtypes.pair(
    "forward mode, another branch for single precision",
    lambda factor: ruled(
        torch.sin,
        lambda g, x: g * x.cos(),
        lambda t, x: t * x.cos() * (factor if x.dtype == torch.float32 else 1.0),
    ),
    leaves((5,), dtype=torch.float32),
    keywords={"check_forward_ad": True},
)
dtypes.pair(
    "one of two inputs in single precision",
    lambda factor: lambda x, w: x.sin() * too_much(w.exp(), factor if w.dtype == torch.float32 else 1.0),
    lambda: (drawn(4).requires_grad_(), drawn(4, dtype=torch.float32, seed=1).requires_grad_()),
)
dtypes.pair(
    "single precision inside",
    lambda factor: lambda x: too_much(x.float().sin().double(), factor) * x,
    leaves((5,)),
)


def only_single(x: Tensor) -> Tensor:
    if x.dtype != torch.float32:
        raise TypeError("expected single precision")
    return x.sin()


dtypes.right("refuses double precision", only_single, leaves((5,), dtype=torch.float32))
for _name, _dtype in {"bfloat16": torch.bfloat16, "half": torch.float16, "single": torch.float32}.items():
    for _title, _function in {
        "softmax": lambda x: x.softmax(-1),
        "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        "logsumexp": lambda x: x.logsumexp(-1),
        "gelu of a product": lambda x: torch.nn.functional.gelu(x @ x.T),
        "cumulative sum": lambda x: x.cumsum(-1).tanh(),
        "softmax near one": lambda x: (8 * x).softmax(-1),
    }.items():
        dtypes.right(f"{_title}, {_name}", _function, leaves((3, 8), dtype=_dtype, low=-0.5))

# --- a backward that computes in lower precision than its function

coarser = Table("a backward in lower precision", HOLES)


def square_with(backward: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    class Square(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return g * (backward(2 * x) if x.dtype is torch.float32 else 2 * x)

    return Square.apply


for _dtype in (torch.bfloat16, torch.float16):
    coarser.wrong(
        f"{_dtype} for float32",
        square_with(lambda twice, dtype=_dtype: twice.to(dtype).float()),
        leaves((200,), dtype=torch.float32, low=0.6),
        keywords={"rtol": 1e-4},
    )
coarser.right("float32", square_with(lambda twice: twice), leaves((200,), dtype=torch.float32, low=0.6))
