"""How far each coordinate of a point is moved."""

from __future__ import annotations

import numpy as np

from covector._lazy import lazy

# Smaller steps, relative to the point, are lost in its rounding.
_LOST = 1e-12


class Steps:
    """Steps from a point, in proportion to the size of each coordinate where that is more than one."""

    def __init__(self, point: np.ndarray) -> None:
        self._point = point
        self._arrays: dict[float, np.ndarray] = {}

    def array(self, eps: float) -> np.ndarray:
        """A step for each coordinate; not to be written to."""
        if eps not in self._arrays:
            wanted = eps * self._scale
            exact = eps >= _LOST and self._finite
            self._arrays[eps] = (self._point + wanted) - self._point if exact else self.made(wanted)
        return self._arrays[eps]

    def made(self, wanted: np.ndarray) -> np.ndarray:
        """The steps that are really made: the point plus the step is rounded."""
        return _made(self._point, wanted)

    def made_at(self, columns: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """The same for some of the coordinates."""
        return _made(self._point[columns], wanted)

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


def _made(here: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        made = (here + wanted) - here
        return np.where(made * wanted > 0, made, wanted)
