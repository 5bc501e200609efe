"""The wrong parts of a Jacobian, one for each input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from covector._lazy import lazy
from covector.evidence.jacobians import Jacobians, Part
from covector.evidence.sample import index_of, is_gridded

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

    @property
    def is_whole(self) -> bool:
        """Whether there is one tensor and all of it was looked at."""
        return self.part is not None and prod(self.part.place.real_shape) == self.coordinates.numel()

    @lazy
    def shape(self) -> tuple[int, ...] | None:
        """The shape of what was looked at, in real coordinates: of a tensor, or of a grid of its indices."""
        if self.part is None:
            return None
        if self.is_whole:
            return self.part.place.real_shape
        if self.along is None:
            return None
        shape = (*map(len, self.along), *((2,) if self.part.is_complex else ()))
        return shape if prod(shape) == self.coordinates.numel() else None

    @lazy
    def along(self) -> tuple[Tensor, ...] | None:
        """The indices along each axis of which some element was looked at; None as for `index`."""
        return None if self.index is None else tuple(column.unique() for column in self.index.T)

    @lazy
    def index(self) -> Tensor | None:
        """The index in the tensor of each coordinate, one row each; None for several, or a sparse one."""
        if self.part is None or not is_gridded(self.part.place):
            return None
        index = index_of(self.part.place, self.coordinates)
        count = self.coordinates.numel()
        return torch.stack(index, dim=1) if index else torch.zeros(count, 0, dtype=torch.int64)

    def has_indices_of(self, other: Side) -> bool:
        """Whether the same indices were looked at in two tensors of one shape."""
        if self.shape is None or self.shape != other.shape:
            return False
        if self.is_whole and other.is_whole:
            return True
        return self.index is not None and other.index is not None and torch.equal(self.index, other.index)

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
    everything: Tensor
    """The whole input, of which `point` has the coordinates that were looked at."""
    all_outputs: bool
    beyond: Tensor
    """Which columns an output depends on that was not looked at."""

    @property
    def where(self) -> str:
        """Which part of the Jacobian this is."""
        word = "input" if len(self.inputs.parts) == 1 else "inputs"
        return f"{word} {self.inputs.name}" + ("" if self.all_outputs else f" and {self.outputs.name}")

    @property
    def turned(self) -> Suspect:
        """The same entries, with outputs and inputs in each other's place."""
        return replace(
            self,
            analytic=self.analytic.T,
            numeric=self.numeric.T,
            bound=self.bound.T,
            bad=self.bad.T,
            outputs=self.inputs,
            inputs=self.outputs,
            point=self.value,
            value=self.point,
        )

    @lazy
    def scale(self) -> float:
        """The largest entry of either side."""
        values = torch.cat([self.analytic.flatten(), self.numeric.flatten()]).abs()
        return float(values.nan_to_num(0.0, 0.0, 0.0).max()) if values.numel() else 0.0

    @lazy
    def slack(self) -> Tensor:
        """How far apart two numbers may be that are the same but for the noise of differences."""
        return self.bound + _SAME_RTOL * self.numeric.abs() + _SAME_ATOL * self.scale

    def same(self, got: Tensor, expected: Tensor, where: Tensor | None = None, *, noise: float = 1.0) -> bool:
        """Whether two derivatives agree, as closely as differences, times `noise`, can tell."""
        slack = self.slack + _SAME_RTOL * expected.abs() + (1 + noise) * self.bound.max()
        close = (got - expected).abs() <= slack
        return bool((close if where is None else close[where]).all())

    def explains(self, expected: Tensor, *, noise: float = 1.0) -> bool:
        """Whether the analytic derivative is this, and this is much closer to it than the numeric one is."""
        left, before = (self.analytic - expected).abs().max(), (self.analytic - self.numeric).abs().max()
        return bool(left <= 0.1 * before) and self.same(self.analytic, expected, noise=noise)

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
        return (self.analytic.abs() > 4 * self.slack) | self.analytic.isnan()

    @lazy
    def used(self) -> Tensor:
        """Which columns some output depends on, looked at or not."""
        return self.support.any(0) | self.beyond

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
        jacobians.everything[part.place.start : part.place.stop],
        {id(o) for o in concerned} <= {id(o) for o in wrong},
        jacobians.beyond[over],
    )


def listed(names: Sequence[str]) -> str:
    """Names as a person lists them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
