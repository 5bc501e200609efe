"""What can be learnt about a check that did not pass: both Jacobians, and experiments with the derivative.

Everything that explains a failure and takes evaluations is here, and is computed when it is first asked for;
the rules of a diagnosis read it and evaluate nothing. By then the verdict stands, so an experiment that
raises tells nothing and is no reason to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from covector._chart import values_of
from covector._engine import graph
from covector._engine.levels import GradMode
from covector._lazy import lazy
from covector.checks.forgiving import forgiving
from covector.checks.run import CheckRun
from covector.evidence.cuts import Cut, Cuts, Holding, traced
from covector.evidence.jacobians import DIAGNOSIS, Jacobians, gather
from covector.verify.finding import Finding, Outcome
from covector.verify.leaves import same_bits
from covector.verify.reverse import ReverseMap
from covector.verify.vectors import weights

# Differences of a function whose cuts are held may be off by this share of the error that they explain.
_HELD = 0.05

# A line whose being held changes a difference by less than this share of the error loses nothing.
_LOST = 1e-3

# So many lines are tried by themselves.
_TRIED = 12

# A multiple of the true derivative may differ by this share of a random sum of its entries.
_EVERYWHERE = 1e-3

# The dtypes that a backward may have rounded to, coarsest first, and how many numbers show it.
COARSE = (torch.bfloat16, torch.float16, torch.float32)
_SEVERAL = 3

# The backward is called so often to see which elements of a gradient change.
_CALLS = 4

_REVERSE, _FORWARD = "reverse mode", "forward mode"

# Of a function without a graph, whose derivatives are all zero then.
NO_DERIVATIVE = "no derivative"


_Told = TypeVar("_Told")


def _experiment(*modes: str) -> Callable[[Callable[..., _Told]], Callable[..., _Told | None]]:
    """What an experiment tells: nothing about other modes, and nothing if it raises."""

    def experiment(ask: Callable[..., _Told]) -> Callable[..., _Told | None]:
        @wraps(ask)
        def told(evidence: Evidence, *given: Any) -> _Told | None:
            # That it raises is no surprise if the derivative did so in the check.
            with forgiving() if evidence.run.raised is None else suppress(Exception):
                return ask(evidence, *given) if evidence.mode in modes else None
            return None

        return told

    return experiment


class _Probe(NamedTuple):
    """A random direction u and cotangent v, with what both Jacobians give for them."""

    move: np.ndarray
    cotangent: Tensor
    analytic: float
    numeric: float


@dataclass(frozen=True)
class Evidence:
    """What can be learnt about one finding, in the mode that it is about."""

    run: CheckRun
    finding: Finding
    mode: str
    steady: bool = True
    """Whether the backward gives the same gradient twice; if not, its entries tell nothing."""

    @lazy
    @_experiment(_REVERSE, _FORWARD, NO_DERIVATIVE)
    def jacobians(self) -> Jacobians:
        """Both Jacobians, within the budget of a diagnosis; None if they cannot be computed."""
        return gather(self.run, self.mode, self.finding.mismatches, DIAGNOSIS)

    @lazy
    def has_wrong_entries(self) -> bool:
        """Whether the finding is about entries, and the Jacobians show some that are wrong."""
        both = self.jacobians if self.finding.mismatches else None
        return both is not None and bool(both.bad.any())

    @lazy
    @_experiment(_REVERSE)
    def pullback_of_zero(self) -> Tensor:
        """The gradient of a cotangent of zero, in coordinates."""
        return self.run.reverse.of_zero

    @lazy
    @_experiment(_REVERSE)
    def pulled(self) -> Tensor:
        """The gradient of a random cotangent, in coordinates."""
        return self.run.reverse.pulled_coordinates

    @lazy
    @_experiment(_REVERSE)
    def unspecified(self) -> Tensor | None:
        """The coordinates of sparse inputs that the gradient of a random cotangent leaves out, if any."""
        inputs = self.run.problem.inputs
        pairs = zip(inputs.places, self.run.reverse.pulled if inputs.sparse_layouts else (), strict=False)
        left_out = [i for place, value in pairs if value is not None for i in place.unspecified(value)]
        return torch.tensor(left_out, dtype=torch.int64) if left_out else None

    @lazy
    def cotangent_is_ignored(self) -> bool:
        """Whether a random cotangent gives the same gradient as one of zero, and not zero."""
        zero = self.pullback_of_zero
        if zero is None or not zero.any():
            return False
        return self.run.close(self.run.reverse.pulled_coordinates, zero, zero.abs())

    @_experiment(_REVERSE)
    def is_multiple(self, coordinates: range, factor: float) -> bool | None:
        """Whether all derivatives by these coordinates are this multiple of the true ones, by two runs.

        Along a random direction u in them, v . J u is compared with (A' v) . u / factor. None: not known.
        """
        run = self.run
        if run.problem.low_precision or run.sampled:
            return None
        cotangent = weights(run.problem.outputs.size, run.options.seed + 5)
        move = self._move(np.arange(coordinates.start, coordinates.stop), run.options.seed + 6)
        moved = torch.from_numpy(run.numeric.differences(move[None])[0])
        terms = run.reverse.pull_coordinates(cotangent) * torch.from_numpy(move) / factor
        return bool((cotangent @ moved - terms.sum()).abs() <= _EVERYWHERE * terms.norm())

    def _move(self, columns: np.ndarray, seed: int) -> np.ndarray:
        """A random move of some coordinates."""
        steps, random = self.run.numeric.steps, np.zeros(self.run.problem.inputs.size)
        random[columns] = weights(len(columns), seed)
        return steps.made(steps.array(self.run.numeric.eps) * random)

    @lazy
    @_experiment(_REVERSE)
    def rounded_to(self) -> torch.dtype | None:
        """The dtype less precise than their own that the numbers of a random gradient are all in."""
        pulled = self.run.reverse.pulled_coordinates
        # A clipped gradient is one number many times, which any dtype may hold.
        if self.run.problem.low_precision or pulled.abs().unique().numel() <= _SEVERAL:
            return None
        return next((d for d in COARSE if torch.equal(pulled, pulled.to(d).to(pulled.dtype))), None)

    @lazy
    @_experiment(_REVERSE)
    def overwritten_cotangents(self) -> list[str]:
        """The names of the outputs whose cotangents the backward writes into."""
        problem = self.run.problem
        given = problem.outputs.from_coords(torch.ones(problem.outputs.size, dtype=torch.float64))
        before = [values_of(cotangent).clone() for cotangent in given]
        ReverseMap(problem).pull(given)
        compared = zip(problem.output_names, before, map(values_of, given), strict=True)
        return [name for name, was, now in compared if not same_bits(was, now)]

    @lazy
    @_experiment(_REVERSE)
    def gradient_changes_with_another_run(self) -> bool:
        """Whether the pullback of one run of the function changes when the function is run elsewhere."""
        problem = self.run.problem
        # A gradient that was the same after the runs of the check is the same after one more.
        if problem.closes_over or (self.steady and self.run.raised is None):
            return False
        another = ReverseMap(problem, self.run.options.seed, outputs=problem.fresh())
        cotangent = torch.from_numpy(another.cotangents[0])
        before, again = (another.pull_coordinates(cotangent) for _ in range(2))
        if not torch.equal(before, again):
            return False
        problem.run_elsewhere(problem.point + 0.5 * self.run.numeric.steps.array(1.0))
        return not torch.equal(before, another.pull_coordinates(cotangent))

    @lazy
    @_experiment(_REVERSE)
    def changing_zeros(self) -> tuple[int, int] | None:
        """How many elements of the gradient of one cotangent are zero at some calls of the backward only.

        Of how many, too; None if that is not all that changes, or little of it.
        """
        if self.steady:
            return None
        another = ReverseMap(self.run.problem, self.run.options.seed)
        cotangent = torch.from_numpy(another.cotangents[0])
        pulled = torch.stack([another.pull_coordinates(cotangent) for _ in range(_CALLS)])
        largest, zero = pulled.abs().amax(0), pulled == 0
        same = ((pulled.abs() - largest).abs() <= 1e-12 * largest) | zero
        changing = int((zero.any(0) & ~zero.all(0)).sum())
        return (changing, pulled.shape[1]) if bool(same.all()) and changing >= _SEVERAL else None

    @lazy
    @_experiment(_REVERSE, NO_DERIVATIVE)
    def cuts(self) -> Cuts:
        """Where the function takes tensors out of the graph, by one more run; None in forward mode."""
        problem = self.run.problem
        with GradMode(enabled=True):
            return traced(lambda: problem.call(problem.variables), through_backwards=self.is_second_order)

    @lazy
    def cut_lines(self) -> tuple[tuple[Cut, ...], bool | None]:
        """Where the derivative is cut, and whether that explains what it lacks; None if that is not known.

        Lines at which numbers leave torch are among them if the others do not explain it. Where there are
        several, those through which nothing is lost are left out.
        """
        every = self.cuts
        if every is None or not (every.lines or every.exits):
            return (), None
        for cuts in [every.without(*every.exits), every] if every.lines and every.exits else [every]:
            if (explained := self._explained_by(cuts)) is not False:
                break
        lines = (*cuts.lines, *cuts.exits)
        if self.is_second_order and not explained:
            return (), None  # a line there may matter for nothing
        if explained and len(lines) > 1:
            lines = tuple(line for line in lines[:_TRIED] if self._loses(cuts, line)) or lines
        return lines, explained

    def _explained_by(self, cuts: Cuts) -> bool | None:
        """Whether differences agree with the derivative once these cuts are held; None if not known."""
        if (probe := self._probe) is None or (held := self._held(cuts, probe)) is None:
            return None
        return abs(held - probe.analytic) <= _HELD * abs(probe.numeric - probe.analytic)

    def _loses(self, cuts: Cuts, line: Cut) -> bool:
        """Whether a part of the derivative is lost at one line: differences change if it alone is held."""
        others = {*cuts.lines, *cuts.exits} - {line}
        if (probe := self._probe) is None or (held := self._held(cuts.without(*others), probe)) is None:
            return True
        return abs(held - probe.numeric) > _LOST * abs(probe.numeric - probe.analytic)

    @lazy
    @_experiment(_REVERSE, _FORWARD, NO_DERIVATIVE)
    def _probe(self) -> _Probe | None:
        """What both Jacobians give along a random direction in the columns that are known."""
        both, seed = self.jacobians, self.run.options.seed
        if both is None or self.run.problem.low_precision:
            return None
        move = self._move(both.column_numbers.numpy(), seed + 2)
        direction = torch.from_numpy(move)[both.column_numbers]
        cotangent = weights(both.row_numbers.numel(), seed + 3)
        products = (matrix @ direction for matrix in (both.analytic, both.numeric))
        return _Probe(move, cotangent, *(float(cotangent @ product) for product in products))

    @_experiment(_REVERSE, _FORWARD, NO_DERIVATIVE)
    def _held(self, cuts: Cuts, probe: _Probe) -> float | None:
        """The difference along the probe with these cuts held, by one run; None outside of the domain."""
        problem, both = self.run.problem, self.jacobians
        with Holding(cuts):
            moved = self.run.numeric.single(problem.point + probe.move)
        held = torch.from_numpy(moved - problem.value)
        if both is None or not held.isfinite().all():
            return None
        return float(probe.cotangent @ held[both.row_numbers])

    @lazy
    def has_custom_function(self) -> bool:
        """Whether the derivative is computed by a `torch.autograd.Function` of the user's."""
        return bool(graph.custom_functions(self.run.problem.graph_outputs))

    @lazy
    def functions_inside(self) -> tuple[tuple[str, str], ...]:
        """Each `torch.autograd.Function` of the user's, if it is not all that the derivative goes through.

        Its name, and where its derivative is defined, if that is known.
        """
        inside = graph.functions_inside(self.run.problem.graph_outputs)
        return tuple((one.__name__, _place(graph.derivative_of(one))) for one in inside)

    @property
    def is_low_precision(self) -> bool:
        """Whether the function was evaluated in less than double precision."""
        return self.run.problem.low_precision

    @property
    def is_second_order(self) -> bool:
        """Whether what is differentiated is the backward of a function."""
        return self.run.problem.caller.verb == "gradgradcheck"


def evidence_of(run: CheckRun, findings: Sequence[Finding]) -> tuple[Evidence | None, ...]:
    """The evidence on each finding; None where there is nothing to explain, or nothing to learn."""
    if any(f.check == "determinism" and f.outcome is Outcome.FAILED for f in findings):
        # There are other entries the next time; only what makes them differ can be told.
        return tuple(
            Evidence(run, f, _REVERSE, steady=False) if f.check == "determinism" else None for f in findings
        )
    return tuple(Evidence(run, f, mode) if (mode := _mode(f, findings)) else None for f in findings)


def _mode(found: Finding, findings: Sequence[Finding]) -> str:
    """The mode that a finding is about, if it is one to be explained."""
    if found.outcome not in (Outcome.FAILED, Outcome.INCONCLUSIVE):
        return ""
    if found.check in (_REVERSE, _FORWARD, NO_DERIVATIVE):
        return found.check
    right = any(f.check == _REVERSE and f.outcome is Outcome.PASSED for f in findings)
    return _REVERSE if found.check == "linearity" and right else ""


def _place(function: Any) -> str:
    """The file and line of a function's code, in brackets; nothing if it is not known."""
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({Path(code.co_filename).name}:{code.co_firstlineno})"
