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
        self._arrays: dict[float, np.ndarray] = {}

    def tensor(self, eps: float) -> Tensor:
        """A step for each coordinate."""
        return torch.from_numpy(self.array(eps))

    def array(self, eps: float) -> np.ndarray:
        """The same as an array, which is not to be written to."""
        if eps not in self._arrays:
            wanted = eps * self._scale
            exact = eps >= _LOST and self._finite
            self._arrays[eps] = (self._point + wanted) - self._point if exact else self.made(wanted)
        return self._arrays[eps]

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
