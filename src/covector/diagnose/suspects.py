"""The wrong parts of a Jacobian, one for each input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from covector._lazy import lazy
from covector.evidence.jacobians import Jacobians, Part

# Two derivatives are the same if they agree to this, beside the bound of the numeric side.
_SAME_RTOL, _SAME_ATOL = 1e-6, 1e-9


@dataclass(frozen=True)
class Side:
    """The tensors on one side of a suspect, and the coordinates of them that were looked at."""

    parts: tuple[Part, ...]
    coordinates: Tensor

    @property
    def part(self) -> Part | None:
        """The tensor, if there is one only."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def name(self) -> str:
        """How a person would write the tensors."""
        return listed([f"`{part.name}`" for part in self.parts])

    @lazy
    def shape(self) -> tuple[int, ...] | None:
        """The shape in real coordinates, if there is one tensor and all of it was looked at."""
        if self.part is None:
            return None
        shape = self.part.place.real_shape
        return shape if prod(shape) == self.coordinates.numel() else None

    @lazy
    def index(self) -> Tensor | None:
        """The index in the tensor of each coordinate, one row each; None for several, or a sparse one."""
        if (
            self.part is None
            or not self.part.place.has_strides
            or self.part.place.stop - self.part.place.start != prod(self.part.place.real_shape)
        ):
            return None
        flat = self.coordinates - self.part.place.start
        if self.part.is_complex:
            flat = flat // 2
        index = []
        for size in reversed(self.part.shape):
            index.append(flat % size)
            flat = flat // size
        return torch.stack(index[::-1], dim=1) if index else torch.zeros(flat.numel(), 0, dtype=torch.int64)

    @lazy
    def imaginary(self) -> Tensor:
        """Which coordinates are imaginary parts."""
        result = torch.zeros(self.coordinates.numel(), dtype=torch.bool)
        for part in self.parts:
            if part.is_complex:
                inside = (self.coordinates >= part.place.start) & (self.coordinates < part.place.stop)
                result |= inside & ((self.coordinates - part.place.start) % 2 == 1)
        return result


@dataclass(frozen=True)
class Suspect:
    """The Jacobian of the outputs concerned by one input, of which some entries are wrong."""

    analytic: Tensor
    numeric: Tensor
    bound: Tensor
    bad: Tensor
    outputs: Side
    inputs: Side
    point: Tensor
    value: Tensor
    all_outputs: bool

    @property
    def where(self) -> str:
        """Which part of the Jacobian this is."""
        word = "input" if len(self.inputs.parts) == 1 else "inputs"
        return f"{word} {self.inputs.name}" + ("" if self.all_outputs else f" and {self.outputs.name}")

    @lazy
    def scale(self) -> float:
        """The largest entry of either side."""
        values = torch.cat([self.analytic.flatten(), self.numeric.flatten()]).abs()
        return float(values.nan_to_num(0.0, 0.0, 0.0).max()) if values.numel() else 0.0

    @property
    def slack(self) -> Tensor:
        """How far apart two numbers may be that are the same but for the noise of differences."""
        return self.bound + _SAME_RTOL * self.numeric.abs() + _SAME_ATOL * self.scale

    def same(self, got: Tensor, expected: Tensor, where: Tensor | None = None) -> bool:
        """Whether two derivatives agree, as closely as differences can tell."""
        slack = self.slack + _SAME_RTOL * expected.abs() + 2 * self.bound.max()
        close = (got - expected).abs() <= slack
        return bool((close if where is None else close[where]).all())

    def explains(self, expected: Tensor) -> bool:
        """Whether the analytic derivative is this, and this is much closer to it than the numeric one is."""
        left, before = (self.analytic - expected).abs().max(), (self.analytic - self.numeric).abs().max()
        return bool(left <= 0.1 * before) and self.same(self.analytic, expected)

    @lazy
    def support(self) -> Tensor:
        """Where the true derivative is not zero."""
        return self.numeric.abs() > 4 * self.slack

    @lazy
    def exact(self) -> Tensor:
        """Where the derivative is right as far as differences can tell, not only by a loose tolerance."""
        return (self.analytic - self.numeric).abs() <= 4 * self.slack + 2 * self.bound.max()

    @lazy
    def nonzero(self) -> Tensor:
        """Where the analytic derivative is not zero."""
        return self.analytic.abs() > 4 * self.slack

    @lazy
    def active(self) -> Tensor:
        """Which columns have a derivative to be wrong about."""
        return (self.support | self.nonzero).any(0)


def suspects_of(jacobians: Jacobians) -> tuple[Suspect, ...]:
    """One for each input with wrong entries."""
    parts = [_suspect(jacobians, part) for part in jacobians.inputs]
    return tuple(suspect for suspect in parts if suspect is not None)


def _suspect(jacobians: Jacobians, part: Part) -> Suspect | None:
    """The input's part of the Jacobian, on the outputs where it is wrong; None if it is right."""
    over = jacobians.columns_of(part)
    if over.numel() == 0 or not jacobians.bad[:, over].any():
        return None
    wrong, concerned = [], []
    for output in jacobians.outputs:
        at = jacobians.rows_of(output)
        if at.numel() == 0:
            continue
        if jacobians.bad[at][:, over].any():
            wrong.append(output)
        if jacobians.numeric[at][:, over].any():
            concerned.append(output)
    at = torch.cat([jacobians.rows_of(output) for output in wrong])
    return Suspect(
        jacobians.analytic[at][:, over],
        jacobians.numeric[at][:, over],
        jacobians.bound[at][:, over],
        jacobians.bad[at][:, over],
        Side(tuple(wrong), jacobians.rows[at]),
        Side((part,), jacobians.columns[over]),
        jacobians.point[over],
        jacobians.value[at],
        {id(o) for o in concerned} <= {id(o) for o in wrong},
    )


def listed(names: Sequence[str]) -> str:
    """Names as a person lists them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
