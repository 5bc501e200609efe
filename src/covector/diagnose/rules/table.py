"""The table of rules. `docs/diagnosis.md` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from covector.diagnose.case import Case
from covector.diagnose.rules import axes, complex_parts, factors, function, inputs, regions
from covector.diagnose.rules.observation import Observation


@dataclass(frozen=True)
class Rule:
    """A row of the table: what the rule sees, what to look at then, and which rules explain it better."""

    name: str
    find: Callable[[Case], Iterator[Observation]]
    sees: str
    look: str
    yields_to: tuple[str, ...] = ()
    alone: bool = False  # the point is to blame, so no formula is
    entries: bool = True  # it looks at entries, of which there are none if the derivative raises
    steady: bool = True  # it needs a backward that gives the same gradient twice


_ORDER = "the order in which `backward` returns its gradients, which is that of the inputs of `forward`"

RULES = (
    Rule(
        "sign",
        factors.sign,
        "the gradient of an input has the wrong sign everywhere",
        "a minus sign",
    ),
    Rule(
        "factor",
        factors.factor,
        "the gradient is the same multiple of the true one everywhere; the size of a dimension is named",
        "a factor that was left out or applied twice",
        ("broadcast", "saved intermediate"),
    ),
    Rule(
        "power",
        factors.power,
        "the gradient is off by a power of the input",
        "an exponent in the derivative",
        ("factor", "sign", "zero"),
    ),
    Rule(
        "constant",
        factors.constant,
        "a constant is added to the gradient, or to the derivative in it",
        "a term that does not belong into the derivative, or is not multiplied by the cotangent",
        ("cotangent ignored", "factor", "sign", "zero", "saved intermediate"),
    ),
    Rule(
        "zero",
        inputs.zero,
        "the gradient of an input is zero, differences are not",
        "a detach(), .data, .item() or no_grad on its way, or a None that `backward` returns",
        ("saved intermediate",),
    ),
    Rule(
        "swapped inputs",
        inputs.swapped,
        "the gradients of two inputs stand in each other's place",
        _ORDER,
    ),
    Rule(
        "another input",
        inputs.another,
        "the gradient of one input is that of another",
        f"{_ORDER}, and which saved tensor it uses",
        ("swapped inputs",),
    ),
    Rule(
        "swapped outputs",
        inputs.outputs_swapped,
        "the cotangents of two outputs stand in each other's place",
        "the order in which `backward` takes its cotangents, which is that of the outputs of `forward`",
    ),
    Rule(
        "cotangent ignored",
        inputs.ignored,
        "the gradient is the same whatever the cotangent is",
        "grad_output, by which `backward` has to multiply",
        entries=False,
    ),
    Rule(
        "saved intermediate",
        inputs.saved,
        "a second derivative is zero, differences of the first are not",
        "an intermediate that `forward` computes and saves: save the inputs, compute it again in `backward`; "
        "or a detach(), .data or no_grad in `backward`",
    ),
    Rule(
        "transposed",
        axes.transposed,
        "the gradient, the cotangent or a matrix in it is transposed",
        "a transpose that is missing or one too many",
        ("swapped inputs", "another input", "broadcast", "conjugate"),
    ),
    Rule(
        "displaced",
        axes.displaced,
        "the right numbers in the wrong places: shifted by one, or reversed",
        "an index that is off by one; a roll or flip that is not undone",
        ("transposed",),
    ),
    Rule(
        "broadcast",
        axes.broadcast,
        "a sum over a dimension that was broadcast is missing, partial, a mean, or over too much",
        "how `backward` brings its result to the shape of the input: a sum over what was broadcast",
        ("zero",),
    ),
    Rule(
        "conjugate",
        complex_parts.conjugate,
        "imaginary parts have the wrong sign",
        "torch's convention: grad_input is grad_output * derivative.conj()",
        ("real part", "sign"),
    ),
    Rule(
        "real part",
        complex_parts.real_part,
        "imaginary parts are lost",
        "a .real, or a cast from complex to real",
    ),
    Rule(
        "few elements",
        regions.few_elements,
        "one element is wrong, or a few, the others are right",
        "an index in the backward, or an entry that an in-place operation overwrites",
        ("one slice", "diagonal", "boundary", "negative inputs", "threshold"),
    ),
    Rule(
        "one slice",
        regions.one_slice,
        "one row, one column or one index of a dimension is wrong",
        "an index or a slice in the backward",
        ("negative inputs", "broadcast", "real part"),
    ),
    Rule(
        "diagonal",
        regions.diagonal,
        "the diagonal of a matrix is wrong",
        "the term of an element with itself",
    ),
    Rule(
        "diagonal of the Jacobian",
        regions.diagonal_of_jacobian,
        "the diagonal of the Jacobian is wrong, what is beside it is right",
        "the derivative of an output by the input at the same index, as the s_i in s_i (1 - s_i)",
    ),
    Rule(
        "boundary",
        regions.boundary,
        "the first and last elements along a dimension are wrong",
        "padding, and the ends of slices",
    ),
    Rule(
        "negative inputs",
        regions.negative,
        "the gradient is wrong where the input is negative (or positive)",
        "an abs, a sign, a power or a branch that takes the sign of the input for granted",
    ),
    Rule(
        "threshold",
        regions.threshold,
        "the gradient is wrong where the input is above or below some value",
        "a branch or a clamp at that value",
        ("negative inputs", "boundary", "one slice", "diagonal"),
    ),
    Rule(
        "stale value",
        function.stale,
        "the backward of one call changes when the function is called elsewhere",
        "values kept outside of ctx (an attribute, a global, a cache): use ctx.save_for_backward",
        entries=False,
        steady=False,
    ),
    Rule(
        "cotangent changed",
        function.changed,
        "the backward changes its cotangent in place",
        "an operation in `backward` that writes into grad_output, as mul_ or out=: work on a new tensor",
        entries=False,
        steady=False,
    ),
    Rule(
        "precision",
        function.precision,
        "errors are of the size of float32, float16 or bfloat16 rounding",
        "a cast to a smaller dtype, or a constant that was made in one",
    ),
    Rule(
        "kink",
        function.kink,
        "the slopes on the two sides of the point differ",
        'the inputs: move them away from the kink, or pass kinks="pass"',
        alone=True,
    ),
    Rule(
        "domain",
        function.domain,
        "the function is not finite around the point",
        "the inputs: move them away from where the function is not defined",
        alone=True,
    ),
    Rule(
        "noise",
        function.noise,
        "differences are too coarse for the tolerance",
        "the precision: give float64 inputs, a function that takes them, or larger atol and rtol",
        alone=True,
    ),
)
