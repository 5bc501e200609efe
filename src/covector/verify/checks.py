"""The table of checks. Each takes a problem and what was computed of it, and gives a finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from covector._chart import Chart, Sampled, dense
from covector._engine import graph
from covector._engine.batch import Apply, batched, looped
from covector.errors import CovectorError, UnsupportedError
from covector.verify.compare import Verdict, compare
from covector.verify.maps import ForwardMap, Matrix, ReverseMap, forward_matrix, reverse_matrix
from covector.verify.probes import Probes, compare_probes, compare_pushes, draw
from covector.verify.problem import Problem, ShapeChange, Tolerance, within
from covector.verify.report import Finding, Outcome

# Below this many entries looking at each is as cheap as probing.
_FEW_ENTRIES = 1 << 10


@dataclass(frozen=True)
class Options:
    """What is to be checked, and how."""

    tol: Tolerance
    fast: bool = False
    probes: int = 4
    nondet_tol: float = 0.0
    reverse: bool = True
    forward: bool = False
    undefined: bool = True
    dtypes: bool = False
    batched: bool = False
    batched_forward: bool = False


class Derivatives:
    """A problem, and the derivatives of it that several checks need, each computed once."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem = problem
        self.options = options
        self.reverse = ReverseMap(problem)
        self.nonlinear = False

    @property
    def probing(self) -> bool:
        """Whether random signs are used instead of every entry."""
        entries = self.problem.inputs.size * self.problem.outputs.size
        return self.options.fast and entries > _FEW_ENTRIES

    @cached_property
    def cotangents(self) -> list[Tensor]:
        """One random cotangent, the same for every check."""
        return self.problem.outputs.from_coords(self._cotangent)

    @cached_property
    def _cotangent(self) -> Tensor:
        return normal(self.problem.outputs.size, self.options.tol.seed)

    @cached_property
    def pulled(self) -> list[Tensor | None]:
        """Its pullback, as the graph gave it."""
        return list(self.reverse.pull(self.cotangents))

    def pull(self, cotangents: list[Tensor]) -> Tensor:
        """A pullback in coordinates."""
        return self.coordinates(self.reverse.apply(cotangents))

    def coordinates(self, tensors: list[Tensor]) -> Tensor:
        """Gradients in coordinates."""
        return self.problem.inputs.to_coords([t.detach() for t in tensors]).to(torch.float64)

    @cached_property
    def forward(self) -> ForwardMap:
        """The derivative by forward mode."""
        return ForwardMap(self.problem)

    @cached_property
    def forward_matrix(self) -> Matrix:
        """The Jacobian by forward mode."""
        return forward_matrix(self.problem, self.forward)

    def push(self, tangent: Tensor) -> Tensor:
        """A push in coordinates."""
        return self.pushed(self.forward.apply(self.problem.inputs.from_coords(tangent)))

    def pushed(self, tensors: list[Tensor]) -> Tensor:
        """Tangents of the outputs in coordinates."""
        return self.problem.outputs.to_coords([t.detach() for t in tensors]).to(torch.float64)

    @cached_property
    def pulled_coordinates(self) -> Tensor:
        """The pullback of the random cotangent, in coordinates."""
        return self.filled(self.pulled)

    def filled(self, pulled: Sequence[Tensor | None]) -> Tensor:
        """Gradients in coordinates, zeros where there is none."""
        return self.coordinates(self.reverse.filled(pulled))

    @cached_property
    def matrix(self) -> Matrix:
        """The Jacobian by reverse mode, by a loop if the batch disagrees with a single pullback."""
        matrix = reverse_matrix(self.problem, self.reverse)
        if self.consistent(matrix):
            return matrix
        looping = self._looping()
        matrix = reverse_matrix(self.problem, looping)
        if self.consistent(matrix):
            self.reverse = looping
        else:
            self.nonlinear = True
        return matrix

    def consistent(self, matrix: Matrix) -> bool:
        """Whether the pullback of a sum is the sum of the pullbacks."""
        v, got = self._cotangent, self.pulled_coordinates
        if matrix.dense is not None:
            summed = v @ matrix.dense
            if within(got, summed, self.options.tol.rtol, self.options.tol.atol):
                return True
            size = v.abs() @ matrix.dense.abs()
        else:
            weighted = v[matrix.rows] * matrix.values
            zeros = torch.zeros(matrix.shape[1], dtype=torch.float64)
            summed = zeros.index_add(0, matrix.columns, weighted)
            size = zeros.index_add(0, matrix.columns, weighted.abs())
        return self.close(got, summed, size)

    def close(self, got: Tensor, expected: Tensor, size: Tensor) -> bool:
        """Equal by the tolerance, relative to the size of what was added up; NaN tells nothing here."""
        rtol, atol = self.options.tol.rtol, self.options.tol.atol + self.options.nondet_tol
        if within(got, expected, rtol, atol):
            return True
        allowed = rtol * size + atol
        rounded = (got - expected).abs() <= allowed + 16 * self.problem.derivative_rounding * size
        return bool((rounded | got.isnan() | expected.isnan() | ~size.isfinite()).all())

    @cached_property
    def probes(self) -> Probes:
        """Random signs, pulled back; by a loop if the batch disagrees with a single pullback."""
        probes = self._draw(self.reverse)
        if self._adds_up(probes):
            return probes
        looping = self._looping()
        probes = self._draw(looping)
        if self._adds_up(probes):
            self.reverse = looping
        else:
            self.nonlinear = True
        return probes

    def _draw(self, reverse: ReverseMap) -> Probes:
        return draw(self.problem, reverse, self.options.probes, self.options.tol.seed)

    def _adds_up(self, probes: Probes) -> bool:
        got = self.pull(self.problem.outputs.from_coords(probes.cotangents.sum(0)))
        size = probes.pulled.abs().sum(0) + self.problem.outputs.size**0.5
        return self.close(got, probes.pulled.sum(0), size)

    def _looping(self) -> ReverseMap:
        looping = ReverseMap(self.problem)
        looping.batching = looping.batching.down("loop", "the batch disagrees with a single pullback")
        return looping


@lru_cache(maxsize=128)
def normal(size: int, seed: int) -> Tensor:
    """Normally distributed numbers, the same for the same arguments."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Check = Callable[[Derivatives], Finding | None]


def finding(name: str, verdict: Verdict, what: str) -> Finding:
    """A finding from the verdict of a comparison."""
    if verdict.outcome is Outcome.PASSED:
        return Finding(name, verdict.outcome, entries=verdict.entries)
    notes = {m.note for m in verdict.mismatches}
    summary, advice = f"{what} disagrees with central differences", ""
    if any(note.startswith("outside the domain") for note in notes):
        places = ", ".join(str(m.entry) for m in verdict.mismatches[:4])
        summary = f"outside the domain at entries {places}"
        advice = "Move the inputs away from where the function is not defined."
    elif verdict.outcome is Outcome.INCONCLUSIVE:
        summary = "the noise of the difference exceeds the tolerance"
        advice = "Give inputs in float64, a function that accepts them, or larger atol and rtol."
    elif notes and all(note.startswith("not differentiable") for note in notes):
        summary = "the function is not differentiable at this point"
        advice = 'Move the inputs away from the kink, or pass kinks="pass".'
    elif factor := _common_factor(verdict):
        advice = f"The analytic value is {factor:.3f} x the numeric one there."
    return Finding(name, verdict.outcome, summary, verdict.mismatches, verdict.count, verdict.entries, advice)


def _common_factor(verdict: Verdict) -> float | None:
    factors = [m.analytic / m.numeric for m in verdict.mismatches if m.numeric]
    if not factors or len(factors) < len(verdict.mismatches):
        return None
    return factors[0] if max(factors) - min(factors) <= 1e-3 * abs(factors[0]) else None


def failed(name: str, summary: str, advice: str = "") -> Finding:
    """A finding without entries."""
    return Finding(name, Outcome.FAILED, summary, advice=advice)


def mutation(changed: list[str]) -> Finding:
    """The function does not leave its inputs alone."""
    return failed(
        "purity",
        f"the function changes its input {', '.join(changed)} in place",
        "A derivative is taken at a point; let the function work on a copy.",
    )


def purity(d: Derivatives) -> Finding:
    """The function gives the same value for the same input."""
    name, problem = "purity", d.problem
    before = torch.get_rng_state()
    first = problem.known
    second = problem.again()
    if torch.equal(first, second):
        return Finding(name, Outcome.PASSED)
    slack = 1e3 * problem.rounding * (1 + first.abs())
    same = ((first - second).abs() <= slack) | (first == second) | (first.isnan() & second.isnan())
    if same.all():
        return Finding(name, Outcome.PASSED)
    where = problem.outputs.label(int((~same).nonzero()[0]), problem.output_names)
    if not torch.equal(before, torch.get_rng_state()):
        return failed(
            name,
            f"the function draws random numbers: {where} differs between two runs on the same input",
            "Draw the numbers outside and pass them in, or seed the generator inside the function.",
        )
    return failed(
        name,
        f"the function is not a function of its inputs: {where} differs between two runs on the same input",
        "It keeps state from one call to the next, or an operation in it is not deterministic.",
    )


def reverse_mode(d: Derivatives) -> Finding | None:
    """Reverse mode agrees with differences."""
    if not d.options.reverse or not d.problem.differentiable:
        return None
    if d.probing:
        verdict = compare_probes(d.problem, d.reverse, d.probes, d.options.tol)
        if verdict.outcome is not Outcome.INCONCLUSIVE or verdict.mismatches:
            return finding("reverse mode", verdict, "reverse mode")
    tol = d.problem.tolerance(d.options.tol, d.matrix)
    return finding("reverse mode", compare(d.problem, d.matrix, tol), "reverse mode")


def forward_mode(d: Derivatives) -> Finding | None:
    """Forward mode agrees with differences."""
    if not d.options.forward or not d.problem.differentiable:
        return None
    if d.probing:
        verdict = compare_pushes(d.problem, d.forward, d.options.probes, d.options.tol)
        if verdict.outcome is not Outcome.INCONCLUSIVE or verdict.mismatches:
            return finding("forward mode", verdict, "forward mode")
    matrix = d.forward_matrix
    verdict = compare(d.problem, matrix, d.problem.tolerance(d.options.tol, matrix))
    return finding("forward mode", verdict, "forward mode")


def forward_linearity(d: Derivatives) -> Finding | None:
    """Forward mode is linear in the tangent: the push of a sum is the sum of the pushes."""
    if not d.options.forward or not d.problem.differentiable:
        return None
    size = d.problem.inputs.size
    if d.probing:
        first, second = (normal(size, d.options.tol.seed + i) for i in (1, 2))
        parts = torch.stack([d.push(first), d.push(second)])
        got, summed, total = d.push(first + second), parts.sum(0), parts.abs().sum(0)
    else:
        tangent, matrix = normal(size, d.options.tol.seed), d.forward_matrix.dense
        assert matrix is not None
        got, summed, total = d.push(tangent), matrix @ tangent, matrix.abs() @ tangent.abs()
    if d.close(got, summed, total):
        return Finding("linearity", Outcome.PASSED)
    return failed("linearity", "forward mode is not linear in the tangent: the push of a sum is not the sum")


def no_derivative(d: Derivatives) -> Finding | None:
    """Where no output is differentiable, the function must be constant."""
    problem = d.problem
    if problem.differentiable or not (d.options.reverse or d.options.forward):
        return None
    none = torch.zeros(0, dtype=torch.int64)
    shape = (problem.outputs.size, problem.inputs.size)
    zero = Matrix(shape, None, none, none, torch.zeros(0, dtype=torch.float64))
    verdict = compare(problem, zero, replace(d.options.tol, atol=1e-12, rtol=0.0))
    found = finding("no derivative", verdict, "an output without a graph")
    if found.outcome is Outcome.FAILED:
        return replace(
            found,
            summary="no output requires grad, so every derivative should be zero, but differences are not",
            advice="The function detaches its result, or runs under no_grad.",
        )
    return found


def gradient_kind(d: Derivatives) -> Finding | None:
    """Each gradient has the dtype, shape, device and layout of its input."""
    if not d.options.reverse or not d.problem.differentiable:
        return None
    words = ("shape", "device", "layout", "dtype") if d.options.dtypes else ("shape", "device", "layout")
    for index, (variable, value) in enumerate(zip(d.problem.variables, d.pulled, strict=True)):
        if value is None:
            continue
        for word in words:
            got, expected = getattr(value, word), getattr(variable, word)
            if got != expected:
                name = d.problem.input_names[index]
                return failed(
                    "gradient kind", f"the gradient for {name} has {word} {got}, expected {expected}"
                )
    return Finding("gradient kind", Outcome.PASSED)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(dense(a), dense(b)))


def determinism(d: Derivatives) -> Finding | None:
    """Pulling the same cotangent back again gives the same gradient."""
    if not d.options.reverse or not d.problem.differentiable:
        return None
    repeated = d.reverse.pull(d.cotangents)
    if all(map(_same, d.pulled, repeated)):
        return Finding("determinism", Outcome.PASSED)
    again, first = d.filled(repeated), d.pulled_coordinates
    spread = torch.where(first.isnan() & again.isnan(), 0.0, (again - first).abs().nan_to_num(torch.inf))
    worst = float(spread.max()) if spread.numel() else 0.0
    if worst <= d.options.nondet_tol:
        return Finding("determinism", Outcome.PASSED)
    where = d.problem.inputs.label(int(spread.argmax()), d.problem.input_names)
    return failed(
        "determinism",
        f"two runs of the backward on the same cotangent differ by {worst:.1e} at {where}, "
        f"more than nondet_tol={d.options.nondet_tol:g}",
        "Pass nondet_tol if that is the nature of the operation.",
    )


def linearity(d: Derivatives) -> Finding | None:
    """The backward is linear in the cotangent: zero gives zero, a sum the sum, a negative the negative."""
    if not d.options.reverse or not d.problem.differentiable:
        return None
    name, problem = "linearity", d.problem
    zero = None if d.probing else d.matrix.of_zero
    if zero is None:
        zero = d.pull([torch.zeros_like(t) for t in problem.graph_outputs])
    wrong = (zero != 0) & zero.isfinite() if zero.any() else None  # zero times infinity is NaN
    if wrong is not None and wrong.any():
        where = problem.inputs.label(int(wrong.nonzero()[0]), problem.input_names)
        return failed(
            name,
            f"a cotangent of zero gives a gradient that is not zero, at {where}",
            "The backward has to multiply by its grad_output.",
        )
    known = d.probes if d.probing else d.matrix
    linear = known is not None and not d.nonlinear
    if linear:
        return Finding(name, Outcome.PASSED)
    negative = d.pull([-t for t in d.cotangents])
    odd = d.close(negative, -d.pulled_coordinates, d.pulled_coordinates.abs() + 1)
    what = "the pullback of a sum is not the sum of the pullbacks"
    if not odd:
        what = "a negative cotangent does not give the negative gradient"
    return failed(name, f"the backward is not linear in the cotangent: {what}")


def undefined_cotangents(d: Derivatives) -> Finding | None:
    """The backward takes an undefined cotangent as zero."""
    problem = d.problem
    if not (d.options.reverse and d.options.undefined and problem.differentiable):
        return None
    name = "undefined cotangents"
    outputs = problem.graph_outputs
    everything: list[list[int]] = [list(range(len(outputs)))]
    if len(outputs) > 1:
        everything += [[i] for i in range(len(outputs))]
    for missing in everything:
        which = "every cotangent"
        if len(missing) < len(outputs):
            which = f"the cotangent of {problem.output_names[missing[0]]}"
        through = [graph.undefined(t) if i in missing else t for i, t in enumerate(outputs)]
        zeros = [torch.zeros_like(c) if i in missing else c for i, c in enumerate(d.cotangents)]
        try:
            pulled = ReverseMap(problem, through).pull(zeros)
        except Exception as error:
            return failed(
                name,
                f"the backward fails when {which} is undefined: {first_line(error)}",
                "A cotangent may be None: treat it as zero, or pass check_undefined_grad=False.",
            )
        if all(value is None or not dense(value).any() for value in pulled) and len(missing) == len(outputs):
            continue
        got = d.filled(pulled)
        expected = torch.zeros_like(got) if len(missing) == len(outputs) else d.pull(zeros)
        if not d.close(got, expected, expected.abs() + 1):
            return failed(name, f"when {which} is undefined the gradient is not that of a zero cotangent")
    return Finding(name, Outcome.PASSED)


def undefined_tangents(d: Derivatives) -> Finding | None:
    """Forward mode takes an input without a tangent as one with a tangent of zero."""
    problem = d.problem
    if not (d.options.forward and d.options.undefined and problem.differentiable):
        return None
    tangents = problem.inputs.from_coords(normal(problem.inputs.size, d.options.tol.seed))
    for missing in range(len(tangents)):
        zeros = [torch.zeros_like(t) if i == missing else t for i, t in enumerate(tangents)]
        some = [i for i in range(len(tangents)) if i != missing]
        with_zero = d.pushed(d.forward.apply(zeros))
        without = d.pushed(d.forward.push(some, [tangents[i] for i in some]))
        if not d.close(without, with_zero, with_zero.abs() + 1):
            return failed(
                "undefined tangents",
                f"without a tangent for {problem.input_names[missing]} the result is not that of a zero one",
            )
    return Finding("undefined tangents", Outcome.PASSED)


def batched_reverse(d: Derivatives) -> Finding | None:
    """Pulling two cotangents back at once gives what pulling each gives."""
    if not (d.options.batched and d.options.reverse and d.problem.differentiable):
        return None
    return _batching(d, "batched gradients", d.reverse.apply, d.problem.outputs)


def batched_forward(d: Derivatives) -> Finding | None:
    """Pushing two tangents forward at once gives what pushing each gives."""
    if not (d.options.batched_forward and d.problem.differentiable):
        return None
    return _batching(d, "batched forward gradients", d.forward.apply, d.problem.inputs)


def _batching(d: Derivatives, name: str, apply: Apply, chart: Chart | Sampled) -> Finding:
    stacks = chart.from_coords(normal(2 * chart.size, d.options.tol.seed).reshape(2, chart.size))
    expected = looped(apply, stacks)
    try:
        got = batched(apply, stacks, "error")
    except RuntimeError as error:
        return failed(
            name,
            f"vmap over the derivative fails: {first_line(error)}",
            "Pass check_batched_grad=False if the operation is not meant to be batched.",
        )
    for a, b in zip(got, expected, strict=True):
        if not torch.allclose(a, b, equal_nan=True):
            return failed(
                name, "the batched derivative differs from the looped one: a batching rule is wrong"
            )
    return Finding(name, Outcome.PASSED)


def first_line(error: BaseException) -> str:
    """The beginning of an error's text."""
    return str(error).strip().partition("\n")[0][:200]


CHECKS: tuple[Check, ...] = (
    no_derivative,
    reverse_mode,
    forward_mode,
    forward_linearity,
    gradient_kind,
    determinism,
    linearity,
    undefined_cotangents,
    undefined_tangents,
    batched_reverse,
    batched_forward,
)


def run_checks(d: Derivatives) -> tuple[Finding, ...]:
    """Every check that applies; a function that is not one is reported as that and nothing else."""
    if changed := d.problem.mutated():
        return (mutation(changed),)
    if d.probing and (pure := purity(d)).outcome is not Outcome.PASSED:
        return (pure,)
    findings = []
    for check in CHECKS:
        try:
            found = check(d)
        except UnsupportedError as error:
            found = Finding(check.__name__.replace("_", " "), Outcome.UNSUPPORTED, str(error))
        except ShapeChange as error:
            return (failed("purity", str(error), "A derivative needs outputs of a fixed shape."),)
        except Exception as error:
            if isinstance(error, CovectorError) or error is d.problem.raised:
                raise
            found = failed(check.__name__.replace("_", " "), f"the derivative raised: {first_line(error)}")
        if found is not None:
            findings.append(found)
    # An impure function differs from its differences, so entry by entry it is asked for on failure only.
    if not d.probing and any(f.outcome in (Outcome.FAILED, Outcome.INCONCLUSIVE) for f in findings):
        pure = purity(d)
        if pure.outcome is not Outcome.PASSED:
            return (pure,)
    return tuple(findings)
