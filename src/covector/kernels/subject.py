"""A function that is run forward and backward on leaves that were made for it, and counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covector._random import seeded
from covector._tree import Arguments, Spec, flatten, leaf_paths
from covector.verify.leaves import is_differentiable

Gradients = list[Tensor | None]


@dataclass
class Count:
    """How often a function was run forward, and how often backward."""

    forward: int = 0
    backward: int = 0


@dataclass(frozen=True)
class Run:
    """What a function gave: its outputs, and the gradient by each chosen leaf (None if it has none)."""

    outputs: list[Any]
    gradients: Gradients = field(default_factory=list)


@dataclass(frozen=True)
class Subject:
    """The kernel or the reference: a function of the arguments' leaves."""

    function: Callable[..., Any]
    arguments: Arguments
    count: Count = field(default_factory=Count)

    def __call__(self, leaves: Sequence[Any], function: Callable[..., Any] | None = None) -> list[Any]:
        """The outputs, flat; of this function or of another one made from it."""
        args, kwargs = self.arguments.rebuild(leaves)
        self.count.forward += 1
        return flatten((function or self.function)(*args, **kwargs))[0]

    def returned(self, leaves: Sequence[Any]) -> tuple[list[Any], Spec, list[str]]:
        """The outputs, their structure, and how a person would write each."""
        args, kwargs = self.arguments.rebuild(leaves)
        self.count.forward += 1
        tree = self.function(*args, **kwargs)
        outputs, spec = flatten(tree)
        return outputs, spec, leaf_paths(tree, "output")

    def pull(
        self,
        outputs: Sequence[Any],
        leaves: Sequence[Any],
        cotangents: Sequence[Tensor | None],
        **options: bool,
    ) -> Gradients:
        """The gradients by the chosen leaves; outputs without a cotangent or a graph are left out.

        Outputs that the cotangents do not fit have none: that they are others is seen without.
        """
        if len(outputs) != len(cotangents):
            cotangents = [None] * len(outputs)
        pairs = [
            (output, cotangent.to(output.dtype))  # autocast gives outputs of another dtype
            for output, cotangent in zip(outputs, cotangents, strict=True)
            if cotangent is not None and _fits(cotangent, output) and output.requires_grad
        ]
        wanted = [index for index in self.arguments.chosen if leaves[index].requires_grad]
        found: dict[int, Tensor | None] = {}
        if pairs and wanted:
            self.count.backward += 1
            ends, pulled = zip(*pairs, strict=True)
            gradients = torch.autograd.grad(
                ends, [leaves[index] for index in wanted], pulled, allow_unused=True, **options
            )
            found = dict(zip(wanted, gradients, strict=True))
        return [found.get(index) for index in self.arguments.chosen]

    def run(self, leaves: Sequence[Any], cotangents: Sequence[Tensor | None]) -> Run:
        """Forward and backward."""
        with torch.enable_grad():
            outputs = self(leaves)
            gradients = self.pull(outputs, leaves, cotangents)
        return Run([detached(output) for output in outputs], gradients)


def _fits(cotangent: Tensor, output: Any) -> bool:
    return isinstance(output, Tensor) and output.shape == cotangent.shape


def detached(value: Any) -> Any:
    """A tensor without its graph; anything else as it is."""
    return value.detach() if isinstance(value, Tensor) else value


def variables(leaves: Sequence[Any], wanted: Sequence[int]) -> list[Any]:
    """Leaves of a new graph on the same memory: those that are wanted require grad."""
    return [
        leaf.detach().requires_grad_(index in wanted) if is_differentiable(leaf) else leaf
        for index, leaf in enumerate(leaves)
    ]


def random_like(tensors: Sequence[Any], seed: int) -> list[Tensor | None]:
    """Standard normal numbers for every floating-point tensor, in its dtype."""
    generator = seeded(seed)
    return [_random(t, generator) if is_differentiable(t) else None for t in tensors]


def _random(tensor: Tensor, generator: torch.Generator) -> Tensor:
    double = torch.complex128 if tensor.is_complex() else torch.float64
    return torch.randn(tensor.shape, dtype=double, generator=generator).to(tensor.device, tensor.dtype)
