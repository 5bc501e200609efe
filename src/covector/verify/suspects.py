"""What the rules of a diagnosis look at: the wrong parts of a Jacobian, one for each input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from covector._engine import graph
from covector._lazy import lazy
from covector.verify.derivatives import Derivatives
from covector.verify.evidence import DIAGNOSIS, Evidence, Part, gather
from covector.verify.report import Finding

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
    def active(self) -> Tensor:
        """Which columns have a derivative to be wrong about."""
        return (self.support | (self.analytic.abs() > 4 * self.slack)).any(0)


@dataclass(frozen=True)
class Case:
    """A failed check, and what its rules may look at; what takes time is computed when asked for."""

    derivatives: Derivatives
    finding: Finding
    mode: str

    @lazy
    def evidence(self) -> Evidence:
        """Both Jacobians, within the budget of a diagnosis."""
        return gather(self.derivatives, self.mode, self.finding.mismatches, DIAGNOSIS)

    @lazy
    def suspects(self) -> tuple[Suspect, ...]:
        """One for each input with wrong entries."""
        parts = [_suspect(self.evidence, part) for part in self.evidence.inputs]
        return tuple(suspect for suspect in parts if suspect is not None)

    @lazy
    def readable(self) -> bool:
        """Whether there are entries to look at; the function may not let itself be run again."""
        try:
            return bool(self.finding.mismatches) and bool(self.suspects)
        except Exception:
            return False

    @lazy
    def of_zero(self) -> Tensor | None:
        """The pullback of a cotangent of zero, on the columns of the evidence."""
        if self.mode != "reverse mode":
            return None
        return self.derivatives.of_zero()[self.evidence.column_numbers]

    @property
    def second_order(self) -> bool:
        """Whether what is differentiated is the backward of a function."""
        return self.derivatives.problem.caller.verb == "gradgradcheck"

    @lazy
    def rule(self) -> str:
        """What computes the derivative, as a person would call it."""
        if not graph.custom_functions(self.derivatives.problem.graph_outputs):
            return self.mode
        return "`jvp`" if self.mode == "forward mode" else "`backward`"

    @property
    def noun(self) -> str:
        """What the mode computes."""
        return "derivative" if self.mode == "forward mode" else "gradient"

    def column(self, part: Part) -> Tensor:
        """The columns of the evidence that belong to an input."""
        return _inside(self.evidence.columns, part)


def _inside(coordinates: Tensor, part: Part) -> Tensor:
    return ((coordinates >= part.place.start) & (coordinates < part.place.stop)).nonzero().flatten()


def _suspect(evidence: Evidence, part: Part) -> Suspect | None:
    """The input's part of the Jacobian, on the outputs where it is wrong; None if it is right."""
    over = _inside(evidence.columns, part)
    if over.numel() == 0 or not evidence.bad[:, over].any():
        return None
    wrong, concerned = [], []
    for output in evidence.outputs:
        at = _inside(evidence.rows, output)
        if at.numel() == 0:
            continue
        if evidence.bad[at][:, over].any():
            wrong.append(output)
        if evidence.numeric[at][:, over].any():
            concerned.append(output)
    at = torch.cat([_inside(evidence.rows, output) for output in wrong])
    return Suspect(
        evidence.analytic[at][:, over],
        evidence.numeric[at][:, over],
        evidence.bound[at][:, over],
        evidence.bad[at][:, over],
        Side(tuple(wrong), evidence.rows[at]),
        Side((part,), evidence.columns[over]),
        evidence.point[over],
        {id(o) for o in concerned} <= {id(o) for o in wrong},
    )


def listed(names: Sequence[str]) -> str:
    """Names as a person lists them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
