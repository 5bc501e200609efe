"""How far each coordinate of a point is moved."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from covector._lazy import lazy

# Smaller steps, relative to the point, are lost in its rounding.
_LOST = 1e-12


class Steps:
    """Steps from a point, in proportion to the size of each coordinate where that is more than one."""

    def __init__(self, point: Tensor) -> None:
        self._point = point.numpy()

    def tensor(self, eps: float) -> Tensor:
        """A step for each coordinate."""
        return torch.from_numpy(self.array(eps))

    def array(self, eps: float) -> np.ndarray:
        """The same as an array."""
        if eps < _LOST or not self._finite:
            return self.made(eps * self._scale)
        return (self._point + eps * self._scale) - self._point

    def made(self, wanted: np.ndarray) -> np.ndarray:
        """The steps that are really made: the point plus the step is rounded."""
        with np.errstate(all="ignore"):
            made = (self._point + wanted) - self._point
            return np.where(made * wanted > 0, made, wanted)

    @lazy
    def _scale(self) -> np.ndarray:
        size = abs(self._point)
        if self._finite:
            return np.maximum(size, 1.0)
        scale = np.fmax(size, 1.0)  # of NaN and 1 it is 1
        return np.where(scale < np.inf, scale, 1.0)

    @lazy
    def _finite(self) -> bool:
        return bool(abs(self._point).max(initial=0.0) < np.inf)
