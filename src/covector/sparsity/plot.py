"""Patterns and colourings as figures; matplotlib is loaded here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from covector.errors import UnsupportedError

if TYPE_CHECKING:
    from covector.sparsity.coloring import Coloring
    from covector.sparsity.pattern import SparsityPattern


def plot(pattern: SparsityPattern, coloring: Coloring | None, axes: Any) -> Any:
    """Draw the pattern; with a coloring, coloured by group, and what the products return beside it."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise UnsupportedError(
            "SparsityPattern.plot: matplotlib is not installed. Install it (pip install covector[plot]), or "
            "print "
            "the pattern, which draws it in the terminal."
        ) from error
    if coloring is None:
        axes = axes if axes is not None else pyplot.subplots()[1]
        _draw(axes, pattern.shape, pattern.rows, pattern.indices, "black", repr(pattern))
        return axes
    if axes is None:
        axes = pyplot.subplots(1, 2, figsize=(11, 5.5), layout="constrained")[1]
    groups, positions, compressed = coloring.layout(pattern)
    _draw(axes[0], pattern.shape, pattern.rows, pattern.indices, groups, repr(coloring))
    title = f"what {coloring.products} products return"
    _draw(axes[1], compressed, groups, positions, groups, title)
    return axes


def _draw(axes: Any, shape: tuple[int, int], rows: Any, columns: Any, colors: Any, title: str) -> None:
    size = np.clip(20_000 / max(*shape, 1) ** 1.5, 0.05, 80)
    axes.scatter(
        columns, rows, c=colors, s=size, marker="s", cmap="tab20" if not isinstance(colors, str) else None
    )
    axes.set(xlim=(-0.5, shape[1] - 0.5), ylim=(shape[0] - 0.5, -0.5))
    axes.set_title(title, fontsize="medium")
    if max(shape) <= 4 * min(shape):
        axes.set_aspect("equal")
