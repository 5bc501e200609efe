"""What the derivative of a complex function is, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from covector._chart.place import Place


class Wirtinger(NamedTuple):
    """The pair of derivatives by a complex z: df/dz and df/dz*."""

    dz: Any
    dz_conj: Any


class Sides(NamedTuple):
    """What a block of a derivative is between: an output, the inputs, and whether samples come first."""

    output: Place
    inputs: tuple[Place, ...]
    lead: int = 0

    @property
    def output_axis(self) -> int:
        """The axis of the output's real and imaginary part."""
        return len(self.output.shape)

    def first_axis(self) -> int:
        """The first axis that belongs to an input."""
        return len(self.output.real_shape)


def _real_blocks(block: Tensor, sides: Sides) -> Tensor:
    return block


def _wirtinger(block: Tensor, sides: Sides) -> Any:
    return _pairs(block, sides, sides.first_axis(), sides.inputs)


def _pairs(block: Tensor, sides: Sides, axis: int, inputs: tuple[Place, ...]) -> Any:
    """The derivatives by these inputs and their conjugates, nested in the order of the inputs."""
    if not inputs:
        return _with_complex_output(block, sides)
    place, rest = inputs[0], inputs[1:]
    axis += len(place.shape) - sides.lead
    if not place.dtype.is_complex:
        return _pairs(block, sides, axis, rest)
    return Wirtinger(*(_pairs(part, sides, axis, rest) for part in _by_z(block, axis)))


def _by_z(block: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """d/dz = (d/dx - i d/dy) / 2, and d/dz* = (d/dx + i d/dy) / 2."""
    by_real, by_imaginary = block.unbind(axis)
    return (by_real - 1j * by_imaginary) / 2, (by_real + 1j * by_imaginary) / 2


def _with_complex_output(block: Tensor, sides: Sides) -> Tensor:
    if not sides.output.dtype.is_complex:
        return block
    real, imaginary = block.unbind(sides.output_axis)
    return real + 1j * imaginary


def _holomorphic(block: Tensor, sides: Sides) -> Tensor:
    derivative = _wirtinger(block, sides)
    while isinstance(derivative, Wirtinger):
        derivative = derivative.dz
    return derivative


CONVENTIONS: dict[str, Callable[[Tensor, Sides], Any]] = {
    "holomorphic": _holomorphic,
    "wirtinger": _wirtinger,
    "real": _real_blocks,
}
