"""The table of rules. `docs/diagnosis.md` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from covector.diagnose.case import Case
from covector.diagnose.rules import (
    axes,
    complex_parts,
    coupling,
    factors,
    formulas,
    function,
    inputs,
    masks,
    order,
    places,
    reach,
    regions,
    uneven,
)
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
    places: bool = False  # it says where entries are wrong, and not always how
    steady: bool = True  # it needs a backward that gives the same gradient twice


def _rules(names: str) -> tuple[str, ...]:
    """The rules with these names, which commas divide."""
    return tuple(names.split(", "))


_ORDER = "the order of the gradients that `backward` returns: it must be that of the inputs of `forward`"

_EXACT = (
    Rule(
        "sign",
        factors.sign,
        "the gradient of an input has the wrong sign everywhere",
        "a minus sign",
    ),
    Rule(
        "without sign",
        factors.without_sign,
        "the gradient has the right size everywhere, and the same sign where the true one changes its sign",
        "an abs, or a sign() that was left out: the derivative of an absolute value is a sign",
        ("sign", "negative inputs", "one slice", "few elements", "transposed", "displaced"),
    ),
    Rule(
        "factor",
        factors.factor,
        "the gradient is the same multiple of the true one everywhere; the size of a dimension is named",
        "a factor that was left out or applied twice",
        ("broadcast",),
    ),
    Rule(
        "power",
        factors.power,
        "the gradient is off by a power of the input",
        "an exponent in the derivative",
        ("factor", "sign", "zero", "swapped inputs", "another input"),
    ),
    Rule(
        "chain rule",
        formulas.chain_rule,
        "a factor that depends on an input or the output is missing, one too many, or stands for another",
        "the formula of the derivative: the chain rule, the product rule",
        _rules("power, factor, sign, zero, constant, cotangent ignored, swapped inputs, another input"),
    ),
    Rule(
        "factors by place",
        uneven.by_place,
        "the gradient is off by a factor that differs by place: at an edge, in a triangle, by index",
        "a weight, a count or a scale that is not the same everywhere (padding, classes, segments), or the "
        "product rule, where another factor is the same for each index",
        _rules(
            "factor, sign, without sign, power, chain rule, wrong side, normalisation, zero, broadcast, "
            "masked, another mask, conjugate, real part, one slice, few elements, diagonal, boundary, "
            "negative inputs, threshold, both sides, two slopes, swapped inputs, another input, cotangent "
            "ignored, precision"
        ),
    ),
    Rule(
        "wrong side",
        formulas.wrong_side,
        "the result is multiplied by another input where the cotangent should be, or the other way round",
        "the order of the chain rule: `backward` starts with what the function does last",
    ),
    Rule(
        "normalisation",
        coupling.normalisation,
        "a term of a mean, a sum, a variance or a norm is missing, or has another coefficient",
        "the derivative of the statistic, which depends on every element of its group",
        ("factor", "sign", "zero", "wrong axis", "wrong side", "masked"),
    ),
    Rule(
        "wrong axis",
        coupling.wrong_axis,
        "elements interact along another axis than in the function",
        "the `dim` of a sum or a mean in `backward`, or a matrix product that lacks a transpose",
        ("masked", "transposed", "broadcast", "zero", "swapped inputs", "another input"),
    ),
    Rule(
        "constant",
        factors.constant,
        "a constant is added to the gradient, or to the derivative in it",
        "an extra term in the derivative, or one that is not multiplied by the cotangent",
        _rules(
            "cotangent ignored, factor, sign, zero, normalisation, two slopes, factors by place, extremes"
        ),
    ),
    Rule(
        "term",
        factors.term,
        "the gradient of a number lacks a multiple of the input, or has it in addition",
        "a term that is added, such as a weight decay, and its factor",
        _rules("factor, sign, zero, power, chain rule"),
    ),
    Rule(
        "zero",
        inputs.zero,
        "the gradient of an input is zero, differences are not",
        "a detach(), .data, .item() or no_grad on its way, or a None that `backward` returns",
    ),
    Rule(
        "stop-gradient",
        inputs.cut,
        "a tensor that depends on the input leaves the graph: detach(), .data, .item(), no_grad, .long()",
        'that line; if it is intended, `stop_gradients="constant"` checks the rest',
        alone=True,
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
        "the order of the cotangents in `backward`: it is that of the outputs of `forward`",
    ),
    Rule(
        "cotangent ignored",
        inputs.ignored,
        "the gradient is the same for every cotangent",
        "grad_output, by which `backward` has to multiply",
        entries=False,
    ),
    Rule(
        "saved intermediate",
        inputs.saved,
        "a second derivative lacks the part through a tensor that `forward` computes and `backward` uses",
        "that tensor: save the inputs and compute it again in `backward`, or return it as an output of "
        "`forward`",
        alone=True,
    ),
    Rule(
        "transposed",
        axes.transposed,
        "the gradient, the cotangent or a matrix in it is transposed",
        "a transpose that is missing or one too many; of a filter by FFT, a conjugate",
        _rules(
            "swapped inputs, another input, broadcast, conjugate, wrong way, wrong side, flipped window, "
            "displaced, order not undone"
        ),
    ),
    Rule(
        "displaced",
        axes.displaced,
        "the right numbers in the wrong places: shifted, or reversed",
        "an index that is off by one; a roll or flip that is not undone, or in the same direction",
    ),
    Rule(
        "order not undone",
        order.not_undone,
        "elements are put in another order, as by x[perm], and the gradient in that order once more",
        "the inverse of that order, as in grad_output[perm.argsort()], or a scatter to the same indices",
        _rules("displaced, sign, factor, swapped inputs, another input"),
    ),
    Rule(
        "wrong way",
        places.backwards,
        "an accumulation along an axis, such as a cumulative sum, runs the wrong way",
        "the direction: the gradient of a cumulative sum is one from the other end (flip, cumsum, flip)",
    ),
    Rule(
        "flipped window",
        places.flipped,
        "windows that slide along an axis, as in a convolution, are read backwards",
        "the kernel: the gradient of a convolution takes it flipped, by FFT conjugated",
        ("sign", "factor"),
    ),
    Rule(
        "another element",
        places.another_element,
        "each output takes one element, as in a maximum or a sort, and the gradient goes to another one",
        "the index that `forward` chose, which `backward` has to use, or the order that it has to undo",
        ("displaced", "transposed", "order not undone"),
    ),
    Rule(
        "exchanged",
        places.exchanged,
        "of the elements that an output depends on, each has the derivative of another",
        "the order of the weights of an interpolation, of the terms of a sum, or of the indices",
        _rules(
            "sign, factor, transposed, displaced, flipped window, another element, swapped inputs, "
            "another input, few elements, order not undone"
        ),
    ),
    Rule(
        "overwritten",
        places.overwritten,
        "of several outputs that take the same element, only one counts in its gradient",
        "an assignment or a slice where a sum belongs (index_add_, scatter_add_, accumulate=True)",
        ("broadcast",),
    ),
    Rule(
        "broadcast",
        axes.broadcast,
        "a sum over a dimension that was broadcast is missing, partial, a mean, or over too much",
        "the sum over broadcast dimensions in `backward`",
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
        "unspecified",
        masks.unspecified,
        "the gradient of a sparse input leaves out the elements by which entries are wrong",
        "`masked=True`, if only the elements that the input specifies are variables; otherwise give the "
        "gradient of every element",
        alone=True,
    ),
    Rule(
        "masked",
        masks.masked,
        "the gradient is not zero at elements that no output depends on, and right at the others",
        "a mask, a `where` or an index that `forward` applies and `backward` does not",
        _rules(
            "inverted mask, another mask, negative inputs, threshold, both sides, one slice, boundary, "
            "few elements"
        ),
        places=True,
    ),
    Rule(
        "inverted mask",
        masks.inverted,
        "the gradient is zero exactly where it should not be",
        "a comparison or a mask in `backward` that is the opposite of the one in `forward`",
    ),
    Rule(
        "another mask",
        masks.another,
        "the gradient is zero at some elements where it should not be, not zero at others where it should be",
        "a mask that `backward` computes again: save the mask of `forward`, or its seed",
        _rules(
            "another element, displaced, transposed, swapped inputs, another input, overwritten, "
            "order not undone"
        ),
    ),
    Rule(
        "drawn again",
        masks.drawn_again,
        "of one cotangent, the gradient is zero at other elements each time, and the same where it is not",
        "a random mask in `backward`: save that of `forward`, or its seed",
        entries=False,
        steady=False,
    ),
    Rule(
        "reach",
        reach.reach,
        "outputs depend on some indices of an axis (earlier ones, near ones), the gradient on others",
        "a mask, such as a causal one, that only one of `forward` and `backward` applies; or the stride, the "
        "dilation or the padding of a window",
        _rules(
            "wrong way, normalisation, wrong axis, masked, zero, transposed, displaced, broadcast, "
            "flipped window, another element, overwritten, swapped inputs, another input, swapped "
            "outputs, cotangent ignored, constant, inverted mask, another mask, real part, one slice, "
            "diagonal of the Jacobian, order not undone"
        ),
        places=True,
    ),
    Rule(
        "few elements",
        regions.few_elements,
        "one element is wrong, or a few, the others are right",
        "an index in the backward, or an entry that an in-place operation overwrites",
        _rules(
            "extremes, one slice, diagonal, boundary, negative inputs, threshold, both sides, another element"
        ),
        places=True,
    ),
    Rule(
        "extremes",
        regions.extremes,
        "the largest or the smallest elements are wrong, of all or along a dimension",
        "the derivative of a maximum or a minimum, which belongs to the element that is taken",
        _rules("normalisation, zero, another element, overwritten, broadcast, masked, wrong axis"),
        places=True,
    ),
    Rule(
        "one slice",
        regions.one_slice,
        "one row, one column or one index of a dimension is wrong",
        "an index or a slice in the backward",
        ("negative inputs", "extremes", "broadcast", "real part"),
        places=True,
    ),
    Rule(
        "diagonal",
        regions.diagonal,
        "the diagonal of a matrix is wrong",
        "the term of an element with itself",
        places=True,
    ),
    Rule(
        "diagonal of the Jacobian",
        regions.diagonal_of_jacobian,
        "the diagonal of the Jacobian is wrong, the other entries are right",
        "the derivative of an output by the input at the same index, as the s_i in s_i (1 - s_i)",
        places=True,
    ),
    Rule(
        "boundary",
        regions.boundary,
        "the first and last elements along a dimension are wrong",
        "padding, and the ends of slices",
        places=True,
    ),
    Rule(
        "negative inputs",
        regions.negative,
        "the gradient is wrong where the input is negative (or positive)",
        "an abs, a sign, a power or a branch that takes the sign of the input for granted",
        ("chain rule",),
        places=True,
    ),
    Rule(
        "threshold",
        regions.threshold,
        "the gradient is wrong where the input is above or below some value",
        "a branch or a clamp at that value",
        ("negative inputs", "extremes", "one slice", "diagonal", "chain rule", "without sign"),
        places=True,
    ),
    Rule(
        "both sides",
        regions.both_sides,
        "the gradient is wrong where the size of the input is above or below some value",
        "a branch or a clamp at that value and at its negative",
        _rules("negative inputs, extremes, threshold, one slice, diagonal, chain rule, without sign"),
        places=True,
    ),
    Rule(
        "two slopes",
        regions.slopes,
        "the slopes for positive and for negative inputs are both wrong",
        "the two branches of the function, and which of them belongs to which sign",
        ("factor", "sign", "without sign", "inverted mask"),
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
        alone=True,
        entries=False,
        steady=False,
    ),
    Rule(
        "rounded",
        function.rounded,
        "a small cotangent gives another gradient, because the backward computes in a smaller dtype",
        "a cast to a smaller dtype in `backward`: small cotangents lose their digits there, or become zero",
        entries=False,
    ),
    Rule(
        "precision",
        function.precision,
        "errors are of the size of float32, float16 or bfloat16 rounding",
        "a cast to a smaller dtype, or a constant that was made in one",
    ),
    Rule(
        "not finite",
        function.not_finite,
        "the gradient is infinite or nan where the derivative is finite",
        "zero times infinity: the branch of a torch.where that is not taken (make its input safe first, as "
        "in where(x > 0, x, 1).sqrt()), or a root or a norm at zero",
        alone=True,
    ),
    Rule(
        "kink",
        function.kink,
        "the slopes on the two sides of the point differ",
        'the inputs: move them away from the kink, or pass kinks="pass"',
        alone=True,
    ),
    Rule(
        "jump",
        function.jump,
        "the function jumps at the point: it has no derivative there",
        "the inputs: move them away from the jump",
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

# Rules that explain the entries to the last digit go before the one that does not.
RULES = (
    *_EXACT,
    Rule(
        "factor, nearly",
        factors.nearly,
        "the gradient is the same multiple of the true one, but for a small error, as that of a solver",
        "a sign or a factor that was left out or applied twice; what remains is as small as the error of a "
        "solver that stops at a tolerance",
        tuple(rule.name for rule in _EXACT),
    ),
)
