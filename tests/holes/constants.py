"""Inputs that are not differentiated: the function sees their layout, class and attributes, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from holes.table import Hole, Table, drawn, too_much

HOLES: list[Hole] = []
constants = Table("constant", HOLES)


class Grid(Tensor):
    """A tensor with a class of its own."""


def spaced() -> Tensor:
    weight = drawn(4, 3, seed=1)
    weight.spacing = 0.5
    return weight


class Constant(NamedTuple):
    """A weight, and what a function may ask of it."""

    make: Callable[[], Tensor]
    told_by: Callable[[Tensor], bool]


CONSTANTS = {
    "expanded": Constant(lambda: drawn(3, seed=1).expand(4, 3), lambda w: 0 in w.stride()),
    "with others between": Constant(lambda: drawn(4, 6, seed=1)[:, ::2], lambda w: w.stride() == (6, 2)),
    "not aligned": Constant(lambda: drawn(13, seed=1)[1:].view(4, 3), lambda w: w.data_ptr() % 16 != 0),
    "of windows that overlap": Constant(
        lambda: drawn(6, seed=1).as_strided((4, 3), (1, 1)), lambda w: w.stride() == (1, 1)
    ),
    "frozen": Constant(
        lambda: nn.Parameter(drawn(4, 3, seed=1), requires_grad=False), lambda w: isinstance(w, nn.Parameter)
    ),
    "of a subclass": Constant(lambda: drawn(4, 3, seed=1).as_subclass(Grid), lambda w: isinstance(w, Grid)),
    "with an attribute": Constant(spaced, lambda w: getattr(w, "spacing", 1.0) == 0.5),
    "of integers, expanded": Constant(lambda: torch.tensor([[2]]).expand(4, 3), lambda w: 0 in w.stride()),
    "lazily conjugate": Constant(
        lambda: drawn(4, 3, dtype=torch.complex128, seed=1).conj(), lambda w: w.is_conj()
    ),
    "of single precision, with others between": Constant(
        lambda: drawn(4, 6, dtype=torch.float32, seed=1)[:, ::2], lambda w: w.stride() == (6, 2)
    ),
}


def weighted(factor: float, told_by: Callable[[Tensor], bool], order: int) -> Any:
    """Wrong where the weight is what the caller gave."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        y = too_much(x * x * weight, factor if told_by(weight) else 1.0)
        return y if order == 1 else y * x

    return function


for _name, _constant in CONSTANTS.items():
    for _order in (1, 2):
        constants.pair(
            f"a weight {_name}, derivative of order {_order}",
            lambda f, c=_constant, o=_order: weighted(f, c.told_by, o),
            lambda c=_constant: (drawn(4, 3).requires_grad_(), c.make()),
            order=_order,
        )


def refuses_another_layout(factor: float) -> Any:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        if weight.stride() != (2,):
            raise ValueError("expected every second number")
        return too_much(x.sin(), factor) * weight

    return function


for _name, _dtype in {"double": torch.float64, "single": torch.float32}.items():
    constants.pair(
        f"refuses a weight in another layout, {_name} precision",
        refuses_another_layout,
        lambda d=_dtype: (drawn(6, dtype=d).requires_grad_(), drawn(12, dtype=d, seed=2)[::2]),
    )
