"""Images of many directions: how many are computed at once, and where they are gathered."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from covector._engine import levels, scopes

Tensors = list[Tensor]


class Directions(Protocol):
    """Directions that are made when they are needed."""

    @property
    def size(self) -> int:
        """How many there are."""

    def basis(self, start: int, stop: int, like: Sequence[Tensor] | None = None) -> Tensors:
        """Directions start..stop, stacked along a new first axis."""


class Pace(Protocol):
    """Decides how many directions are applied at once."""

    def next(self, left: int) -> int:
        """How many of the directions that are left to take now."""

    def step(self, count: int) -> AbstractContextManager[Any]:
        """What to be inside of while that many directions are applied."""


class Steady(NamedTuple):
    """The same number of directions each time."""

    size: int

    def next(self, left: int) -> int:
        """As many as asked for, while there are that many."""
        return min(self.size, left)

    def step(self, count: int) -> AbstractContextManager[Any]:
        """Nothing to do."""
        return nullcontext()


class Gathered:
    """The images of all directions, as they come chunk by chunk.

    They are written into one tensor that is made at the first chunk, so that no moment needs both the
    chunks and the whole; where somebody differentiates or batches the result, they are joined at the end.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._chunks: dict[int, Tensors] = {}
        self._whole: Tensors | None = None

    @property
    def any(self) -> bool:
        """Whether there was a chunk."""
        return len(self._chunks) > 0 or self._whole is not None

    def add(self, start: int, images: Tensors) -> None:
        """Take the images of the directions from `start` on."""
        if not self.any and self._may_write(images):
            self._whole = [image.new_empty((self._count, *image.shape[1:])) for image in images]
        if self._whole is None:
            self._chunks[start] = images
        else:
            for whole, image in zip(self._whole, images, strict=True):
                whole[start : start + image.shape[0]] = image

    def _may_write(self, images: Tensors) -> bool:
        size = images[0].shape[0] if images else self._count
        if size >= self._count or levels.active() or levels.dual_level_open():
            return False
        return not any(image.requires_grad or image.layout is not torch.strided for image in images)

    def whole(self) -> Tensors:
        """All of them, stacked along the first axis."""
        if self._whole is not None:
            return self._whole
        return joined([self._chunks[start] for start in sorted(self._chunks)])  # they come in any order


def released(images: Tensors) -> Tensors:
    """Images without graphs that lead nowhere, once no transform is left that could need them."""
    return images if levels.active() else [scopes.released(image) for image in images]


def joined(chunks: list[Tensors]) -> Tensors:
    if len(chunks) == 1:
        return chunks[0]
    return [torch.cat(parts) for parts in zip(*chunks, strict=True)]
