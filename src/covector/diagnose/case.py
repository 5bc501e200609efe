"""What the rules of a diagnosis look at: a finding, the evidence on it, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor

from covector._chart import dense
from covector._lazy import lazy
from covector.diagnose.rules.fit import NEAR, ratio
from covector.diagnose.suspects import Side, Suspect, suspects_of
from covector.evidence.evidence import Evidence
from covector.verify.finding import Finding


@dataclass(frozen=True)
class Multiple:
    """A derivative that is a multiple of the true one on the entries that were looked at."""

    factor: float
    extent: str
    """Where it is, in words; nothing if it is another multiple, or none, elsewhere."""


def _number(leaf: Any) -> float:
    """A real number, or that in a tensor of one; 0 for anything else. A whole number may be a size."""
    if isinstance(leaf, Tensor):
        single = leaf.numel() == 1 and leaf.is_floating_point()
        return float(dense(leaf.detach())) if single else 0.0
    return leaf if isinstance(leaf, float) else 0.0


@dataclass(frozen=True)
class Case:
    """A check that did not pass, and what its rules may look at."""

    evidence: Evidence

    @property
    def finding(self) -> Finding:
        """What the check found."""
        return self.evidence.finding

    @lazy
    def suspects(self) -> tuple[Suspect, ...]:
        """One for each input with wrong entries; none if the Jacobians are not known."""
        jacobians = self.evidence.jacobians
        return () if jacobians is None else suspects_of(jacobians)

    @lazy
    def numbers(self) -> dict[str, float]:
        """The numbers among the arguments, and the tensors of one number, which are not zero."""
        problem = self.evidence.run.problem
        if problem.asked is not problem:
            return {}
        given = problem.arguments.named(problem.caller.function)
        return {name: number for name, leaf in given.items() if (number := _number(leaf))}

    @lazy
    def is_sampled(self) -> bool:
        """Whether the rules see some entries of the Jacobians only."""
        jacobians = self.evidence.jacobians
        return jacobians is not None and not jacobians.whole

    @property
    def coverage(self) -> str:
        """The words for it, if the rules see some entries only, or know some too little."""
        jacobians = self.evidence.jacobians
        return "" if jacobians is None else jacobians.coverage

    @lazy
    def multiples(self) -> dict[str, Multiple]:
        """By the name of each suspect, the number that its derivative is a multiple by, if there is one."""
        found = {s.where: (s, c) for s in self.suspects if (c := ratio(s)) is not None}
        return {where: Multiple(c, self._extent(s, c)) for where, (s, c) in found.items()}

    def _extent(self, s: Suspect, factor: float) -> str:
        place = s.inputs.parts[0].place
        if not self.coverage or abs(factor) < NEAR:
            return "everywhere"
        everywhere = self.evidence.is_multiple(range(place.start, place.stop), factor)
        known = "at every entry of a sample" if self.is_sampled else "everywhere as far as is known"
        return {True: "everywhere", False: "", None: known}[everywhere]

    def others_over(self, suspect: Suspect, side: Side) -> Iterator[tuple[Tensor, str]]:
        """The name of each other input that can be broadcast over a tensor, and its value at each place."""
        jacobians, index = self.evidence.jacobians, side.index
        if jacobians is None or side.part is None or side.part.is_complex or index is None:
            return
        for part in jacobians.inputs:
            values = jacobians.everything[part.place.start : part.place.stop]
            apart = len(side.part.shape) - len(part.shape)
            fits = apart >= 0 and all(
                n in (1, m) for n, m in zip(part.shape, side.part.shape[apart:], strict=True)
            )
            if (
                part is suspect.inputs.part
                or part.is_complex
                or not fits
                or values.numel() != prod(part.shape)
            ):
                continue
            places = [index[:, apart + axis] % size for axis, size in enumerate(part.shape)]
            yield values.reshape(part.shape)[tuple(places)].expand(len(index)), part.name

    def gradient_of_zero(self, suspect: Suspect) -> Tensor | None:
        """What a cotangent of zero gives for the input of a suspect; None where that is not known."""
        zero, jacobians = self.evidence.pullback_of_zero, self.evidence.jacobians
        if zero is None or jacobians is None:
            return None
        return zero[jacobians.column_numbers][jacobians.columns_of(suspect.inputs.parts[0])]

    def has_gradient(self, suspect: Suspect) -> bool:
        """Whether a random cotangent has a gradient somewhere in the input of a suspect, seen or not."""
        pulled, part = self.evidence.pulled, suspect.inputs.parts[0]
        if pulled is None or not self.is_sampled:
            return False
        return bool(pulled[part.place.start : part.place.stop].any())

    @lazy
    def rule(self) -> str:
        """What computes the derivative, as a person would call it."""
        if not self.evidence.has_custom_function:
            return self.evidence.mode
        return "`jvp`" if self.is_forward else "`backward`"

    @property
    def is_forward(self) -> bool:
        """Whether the derivative is that of forward mode."""
        return self.evidence.mode == "forward mode"

    @property
    def noun(self) -> str:
        """What the mode computes."""
        return "derivative" if self.is_forward else "gradient"
