"""One run of a check: the problem, its derivatives and differences, and what was decided about each mode."""

from __future__ import annotations

from torch import Tensor

from covector._chart import Sampled
from covector._engine import graph
from covector._engine.messages import is_out_of_memory
from covector._lazy import lazy
from covector.checks.precision import Map, Rounding, differences_of, same_at_the_point, same_elsewhere
from covector.checks.promotion import lifted
from covector.checks.taylor import Taylor
from covector.errors import ResourceError, text_of
from covector.verify import constants
from covector.verify.analytic import ZeroMap
from covector.verify.decide import decide, decide_constant, undoubted
from covector.verify.finding import Outcome
from covector.verify.forward import ForwardMap
from covector.verify.numeric import Numeric
from covector.verify.options import Options
from covector.verify.problem import Problem
from covector.verify.record import Verdict
from covector.verify.reverse import ReverseMap
from covector.verify.vectors import in_pieces

# A derivative below this is zero, where it should be.
_ZERO = 1e-12

# What each look is called in a report.
_LOOKS = {
    "signs": "along {} random direction{}",
    "singles": "column by column",
}


class CheckRun:
    """A problem, the derivatives of it that several checks need, and the verdict on each mode."""

    def __init__(self, problem: Problem, options: Options) -> None:
        self.problem, self.options = problem, options
        self.above = lifted(problem) if problem.low_precision else None
        """The same function in double precision, if the caller's has less."""
        self._lifted = self.above
        self.numeric = Numeric(self.differenced, options.tol.eps, options.seed, options.max_memory)
        self.reverse = ReverseMap(problem, options.seed, varied=self.varied)
        self.verdicts: dict[str, Verdict] = {}
        """By the label of the derivative."""
        self.raised: BaseException | None = None

    @property
    def differenced(self) -> Problem:
        """The function that is differenced."""
        return self.problem if self.above is None else self.above

    @lazy
    def forward(self) -> ForwardMap:
        """The derivative by forward mode."""
        return ForwardMap(self.problem, self.options.seed, varied=self.varied)

    @lazy
    def taylor(self) -> Taylor:
        """The function along a random direction."""
        return Taylor(self.numeric, self.options.seed)

    @lazy
    def custom(self) -> bool:
        """Whether the backward is a program of the user's; torch's own do not differ from time to time."""
        return graph.through_custom(self.problem.reached.inner)

    @property
    def varied(self) -> bool:
        """Whether many kinds of cotangents are pulled back: through programs of the user's, and sparse ones.

        For sparse tensors torch lacks some operations, or has them wrong, if a cotangent has many zeros.
        """
        problem = self.problem
        ends_sparse = not (problem.inputs.can_batch and problem.outputs.can_batch)
        return self.custom or ends_sparse or graph.from_sparse(problem.reached.inner)

    @property
    def sampled(self) -> bool:
        """Whether a random sample of the inputs or outputs is looked at."""
        return isinstance(self.problem.inputs, Sampled) or isinstance(self.problem.outputs, Sampled)

    @property
    def runs(self) -> int:
        """How often the function was run."""
        return self.problem.runs + (0 if self._lifted is None else self._lifted.runs)

    def verdict(self, analytic: Map | ZeroMap) -> Verdict:
        """What was decided about a derivative, held against differences; decided once."""
        if analytic.label not in self.verdicts:
            if isinstance(analytic, ZeroMap):
                verdict = self._constant(analytic)
            elif self.above is None:
                verdict = self._as_given(analytic)
            else:
                verdict = self._in_double_precision(analytic, self.above)
            self.verdicts[analytic.label] = verdict
        return self.verdicts[analytic.label]

    def _constant(self, zero: ZeroMap) -> Verdict:
        # As in torch, the tolerance of fast mode.
        atol = max(_ZERO, self.options.nondet_tol) if self.options.fast else _ZERO
        exact = self.options.tol._replace(atol=atol, rtol=0.0)
        return decide_constant(self.numeric, zero, self.options._replace(tol=exact))

    def _in_double_precision(self, analytic: Map, high: Problem) -> Verdict:
        """The verdict on the same function in double precision, if it is one, with what rounding adds."""
        low, seed = self.problem, self.options.seed
        if not same_at_the_point(low, high, self.rounding):
            return self._as_given(analytic)
        # Its rounding may be too small to matter.
        if (agreed := undoubted(self.numeric, analytic, self.options)) is not None:
            return agreed
        precise = type(analytic)(high, seed, varied=self.varied)
        verdict = decide(self.numeric, precise, self.options)
        differing = differences_of(analytic, precise, self.options.tol, self.rounding)
        if isinstance(analytic, ReverseMap) and isinstance(precise, ReverseMap):
            explained = analytic.odd is not None and self.rounding.explains_sums(analytic)
            analytic.odd = precise.odd if explained else analytic.odd or precise.odd
            analytic.refused = precise.refused
        right = verdict.outcome is Outcome.PASSED
        if differing.mismatches and not (right and same_elsewhere(low, high, self.rounding, seed)):
            # Of a derivative that is wrong in double precision alone, nobody asked.
            return self._as_given(analytic)
        return differing.added_to(verdict)

    def _as_given(self, analytic: Map) -> Verdict:
        """The verdict on the function in its own precision: in another it is another one, or refuses."""
        if self.above is not None:
            self.above, options = None, self.options
            self.numeric = Numeric(self.problem, options.tol.eps, options.seed, options.max_memory)
        verdict = decide(self.numeric, analytic, self.options)
        if self.problem.low_precision and isinstance(analytic, ReverseMap) and analytic.odd is not None:
            analytic.odd = None if self.rounding.explains_sums(analytic) else analytic.odd
        return verdict

    def require_memory(self, error: Exception) -> None:
        """A derivative that runs out of memory may be right: that is no finding."""
        if is_out_of_memory(error):
            text = f"{self.problem.caller}: a derivative ran out of memory: {text_of(error)}"
            raise ResourceError(text) from error

    @lazy
    def rounding(self) -> Rounding:
        """The rounding errors of a function in low precision."""
        return Rounding(self.problem, self.options.seed)

    @property
    def method(self) -> str:
        """What was looked at, and how far an entry of a derivative that passed may be off."""
        problem, seed, count = self.problem, self.options.seed, self.options.directions
        size = f"{problem.outputs.size} x {problem.inputs.size} entries"
        if self.sampled:
            size = f"a random sample of {size}, seed {seed}"
        verdicts = [verdict for verdict in self.verdicts.values() if verdict.looks]
        if not verdicts:
            return size
        taken = dict.fromkeys(_LOOKS[look] for verdict in verdicts for look in verdict.looks)
        looks = ", then ".join(taken).format(count, "" if count == 1 else "s")
        text = f"{size} {looks}, step {self.numeric.eps:.2g}"
        if any(verdict.outcome is not Outcome.PASSED for verdict in verdicts):
            return text
        which = "no other" if any(v.kinks for v in verdicts) else "none"
        shown = f"{text}; {which} is off by more than {max(v.visible for v in verdicts):.2g}"
        if any(verdict.looks[-1] == "signs" for verdict in verdicts):
            shown += f", unless several errors cancel along every direction (seed {seed})"
        return shown

    def close(self, got: Tensor, expected: Tensor, size: Tensor) -> bool:
        """Equal by the tolerance, relative to the size of what was added up; NaN tells nothing here."""
        rtol, atol = self.options.tol.rtol, self.options.tol.atol + self.options.nondet_tol
        relative = rtol + constants.ROUNDINGS_OF_A_PULLBACK * self.problem.rounding
        return all(_within(a, b, relative * s + atol, s) for a, b, s in in_pieces(got, expected, size))


def _within(got: Tensor, expected: Tensor, allowed: Tensor, size: Tensor) -> bool:
    near = (got - expected).abs() <= allowed
    return bool((near | got.isnan() | expected.isnan() | ~size.isfinite()).all())
