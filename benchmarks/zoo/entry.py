"""An entry of the zoo: a function with its inputs, and one mistake that makes its derivative wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]
Mistake = Callable[[Function], Function]
Subject = tuple[Function, tuple[Tensor, ...]]

HELD_OUT_SEED = 20_13

ENTRIES: dict[str, Entry] = {}


@dataclass(frozen=True)
class Entry:
    """What is checked: `build` makes the function and its inputs, `mistake` the wrong variant of it."""

    name: str
    package: str
    build: Callable[[], Subject]
    mistake: Mistake
    keywords: dict[str, Any] = field(default_factory=dict)

    def subject(self, *, wrong: bool) -> Subject:
        """The function and its inputs, always with the same random numbers."""
        torch.manual_seed(0)
        function, inputs = self.build()
        return (self.mistake(function) if wrong else function), inputs


def entry(
    package: str, mistake: Mistake, **keywords: Any
) -> Callable[[Callable[[], Subject]], Callable[[], Subject]]:
    """Put what the decorated function builds into the zoo; the keywords are those of `gradcheck`."""

    def register(build: Callable[[], Subject]) -> Callable[[], Subject]:
        name = build.__name__.replace("_", " ")
        assert name not in ENTRIES, name
        ENTRIES[name] = Entry(name, package, build, mistake, keywords)
        return build

    return register


def held_out() -> frozenset[str]:
    """The names of a third of the entries, which nothing is tuned on. It changes only with the list."""
    names = sorted(ENTRIES)
    random.Random(HELD_OUT_SEED).shuffle(names)
    return frozenset(names[: len(names) // 3])


def normal(*shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal random numbers to differentiate by."""
    return constant(*shape, seed=seed, scale=scale, dtype=dtype).requires_grad_()


def constant(*shape: int, seed: int = 100, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal random numbers that belong to the function."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, dtype=dtype, generator=generator)


def uniform(*shape: int, seed: int = 0, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform random numbers to differentiate by."""
    generator = torch.Generator().manual_seed(seed)
    return (low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=generator)).requires_grad_()
