"""The rows of the tables, and what their functions are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

Inputs = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Hole:
    """A function, and whether its derivative is right where the inputs are."""

    kind: str
    name: str
    function: Callable[[], Callable[..., Any]]
    """Makes the function: some keep state, and every check has to see a fresh one."""
    inputs: Inputs
    right: bool
    order: int = 1
    keywords: dict[str, Any] = field(default_factory=dict)
    undecided: str = ""
    """Why the outcome may be INCONCLUSIVE."""

    @property
    def label(self) -> str:
        """For the id of a test."""
        return f"{self.kind}: {self.name}"


class Table:
    """The rows of one kind."""

    def __init__(self, kind: str, rows: list[Hole]) -> None:
        self._kind, self._rows = kind, rows

    def wrong(self, name: str, function: Callable[..., Any], inputs: Inputs, **fields: Any) -> None:
        """A function that has to be rejected."""
        self._rows.append(Hole(self._kind, name, lambda: function, inputs, right=False, **fields))

    def right(self, name: str, function: Callable[..., Any], inputs: Inputs, **fields: Any) -> None:
        """A function that has to be accepted."""
        self._rows.append(Hole(self._kind, name, lambda: function, inputs, right=True, **fields))

    def pair(
        self,
        name: str,
        make: Callable[[float], Callable[..., Any]],
        inputs: Inputs,
        factor: float = 1.1,
        **fields: Any,
    ) -> None:
        """Twins: the function made with a factor of one is right, with another it is wrong."""
        for one in (factor, 1.0):
            self._rows.append(
                Hole(self._kind, name, lambda one=one: make(one), inputs, right=one == 1.0, **fields)
            )


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0, low: float = 0.5) -> Tensor:
    """Numbers between `low` and `low` + 1, with both signs where `low` is negative."""
    generator = torch.Generator().manual_seed(seed)
    real = low + torch.rand(shape, dtype=torch.float64, generator=generator)
    if dtype.is_complex:
        real = torch.complex(real, low + torch.rand(shape, dtype=torch.float64, generator=generator))
    return real.to(dtype)


def leaves(*shapes: Sequence[int], dtype: torch.dtype = torch.float64, low: float = 0.5) -> Inputs:
    """Inputs of these shapes that require grad."""
    return lambda: tuple(
        drawn(*shape, dtype=dtype, seed=seed, low=low).requires_grad_() for seed, shape in enumerate(shapes)
    )


def at(*values: float, dtype: torch.dtype = torch.float64) -> Inputs:
    """One input with these values."""
    return lambda: (torch.tensor(values, dtype=dtype).requires_grad_(),)


def ruled(
    function: Callable[..., Any],
    pull: Callable[..., Any],
    push: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | None = None,
    *,
    materialize: bool = True,
) -> Callable[..., Any]:
    """The function with rules of its own: pull(*cotangents, *inputs), push(*tangents, *inputs)."""

    class Rule(Function):
        @staticmethod
        def forward(*inputs: Tensor) -> Any:
            return function(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)
            ctx.set_materialize_grads(materialize)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Any:
            return pull(*cotangents, *ctx.saved_tensors)

        @staticmethod
        def jvp(ctx: Any, *tangents: Tensor) -> Any:
            assert push is not None
            return push(*tangents, *ctx.saved_tensors)

    if vmap is None:
        Rule.generate_vmap_rule = True
    else:
        Rule.vmap = staticmethod(vmap)
    return Rule.apply


def too_much(y: Tensor, amount: float | Tensor) -> Tensor:
    """The same numbers, with a derivative that is multiplied."""
    return y.detach() + amount * (y - y.detach())
