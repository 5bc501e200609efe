"""How far each coordinate of a point is moved."""

from __future__ import annotations

import numpy as np

from covector.verify import constants

# So many units in the last place of its point a step is long at least.
_FEW = 8.0


# Some of the coordinates of a point.
Columns = slice | np.ndarray
ALL = slice(None)


class Steps:
    """Steps from a point, in proportion to the size of a coordinate if that is more than one, up to a limit.

    A function of a large number need not be a flat one: steps in proportion to 1e7 step over a sine. So steps
    begin near, and a judge takes longer ones where noise asks for it.
    """

    def __init__(self, point: np.ndarray, rounding: float) -> None:
        self._point, self._rounding = point, rounding
        self._arrays: dict[float, np.ndarray] = {}

    def array(self, eps: float) -> np.ndarray:
        """A step for each coordinate; not to be written to."""
        if eps not in self._arrays:
            self._arrays[eps] = self.made(self.wanted(eps))
        return self._arrays[eps]

    def wanted(self, eps: float, columns: Columns = ALL) -> np.ndarray:
        """The same before the point plus the step is rounded."""
        scale = self.scale_of(columns)
        near = np.minimum(scale, constants.NEAR)
        scale -= near  # how far it is beyond; there a step is not to be lost in the last places of the point
        scale *= _FEW * self._rounding
        near *= eps
        return np.maximum(near, scale, out=near)

    def made(self, wanted: np.ndarray) -> np.ndarray:
        """The steps that are really made: the point plus the step is rounded."""
        return steps_made(self._point, wanted)

    def made_at(self, columns: Columns, wanted: np.ndarray) -> np.ndarray:
        """The same for some of the coordinates."""
        return steps_made(self._point[columns], wanted)

    def scale_of(self, columns: Columns = ALL) -> np.ndarray:
        """The size of each of these coordinates, or one; a new array."""
        size = abs(self._point[columns])
        scale = np.fmax(size, 1.0, out=size)  # of NaN and 1 it is 1
        scale[scale == np.inf] = 1.0
        return scale


def steps_made(here: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The steps that are really made from here: rounded such that x + s and x - s are both exact.

    Both are multiples of the last place of |x| + |s|, and no larger than that.
    """
    with np.errstate(all="ignore"):
        made = np.copysign(wanted, here)
        made += here
        made -= here
        np.copysign(made, wanted, out=made)
        kept = made * wanted > 0
    return made if kept.all() else np.where(kept, made, wanted)
