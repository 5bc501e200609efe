"""Every rule names its planted bug, word for word, and keeps silent on its near miss."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import covector
from covector.checks import forgiving
from covector.diagnose.rules import table
from covector.diagnose.rules.table import RULES
from mutants import (
    MUTANTS,
    away,
    complex_square_pull,
    cube,
    cube_pull,
    linear_pull,
    normal,
    only,
    quotient,
    ruled,
    stale_square,
    trembling_cube,
)
from planted import KEPT, KERNEL, MIXING, PLANTED, SQUARES, VECTOR, causal, cubed, product, rounded, weighted

ROOT = Path(__file__).parent.parent.parent
SNAPSHOTS = Path(__file__).parent / "snapshots"

pytestmark = pytest.mark.filterwarnings("ignore::covector.errors.PrecisionWarning")

each_rule = pytest.mark.parametrize("name", PLANTED)


def diagnoses(report):
    """Everything that a report says about mistakes."""
    return [] if report is None else [d for finding in report.findings for d in finding.diagnoses]


def said(function, inputs, **keywords):
    """The diagnoses of a function, as pairs of rule and evidence."""
    report = covector.check(function, inputs(0) if callable(inputs) else inputs, **keywords)
    return [(d.rule, d.evidence) for d in diagnoses(report)]


def text_of(report):
    """A report on a planted bug, without what varies from machine to machine."""
    text = str(report)
    text = re.sub(r"\+- \S+", "+- .....", text[: text.rindex("how: ")])
    return re.sub(r"of line \d+", "of line ...", text)


def test_every_rule_has_a_planted_bug():
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert set(PLANTED) == set(names)
    assert all(set(rule.yields_to) <= set(names) - {rule.name} for rule in RULES)


def test_the_table_is_in_the_documents():
    """Word for word, and in this order."""
    document = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    rows = [f"| {rule.name} | {rule.sees} | {rule.look} |" for rule in RULES]
    assert "\n".join(rows) in document


@each_rule
def test_a_rule_names_its_planted_bug_first_and_word_for_word(name):
    report = PLANTED[name].wrong_report()
    found = diagnoses(report)
    assert found[0].rule == name
    assert 0 < found[0].confidence <= 1
    assert found[0].look
    assert "{" not in found[0].evidence
    text = text_of(report)
    assert text == (SNAPSHOTS / f"{name.replace(' ', '_')}.txt").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 100


@each_rule
def test_a_rule_keeps_silent_on_a_near_miss(name, monkeypatch):
    """By itself, not because another rule explains it better or is surer."""
    (rule,) = [rule for rule in RULES if rule.name == name]
    monkeypatch.setattr(table, "RULES", (replace(rule, yields_to=()),))
    assert [d.rule for d in diagnoses(PLANTED[name].wrong_report())] == [name]
    report = PLANTED[name].near_report()
    assert diagnoses(report) == [], str(report)


class Lookup(torch.autograd.Function):
    """Rows of a table; of a row that is taken twice, the gradient of the last one counts."""

    @staticmethod
    def forward(ctx, table, rows):
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return table[rows]

    @staticmethod
    def backward(ctx, grad):
        (rows,) = ctx.saved_tensors
        gradient = grad.new_zeros(ctx.shape)
        gradient[rows] = grad
        return gradient, None


def test_a_row_that_is_taken_twice_is_no_sum_over_what_was_broadcast():
    """Through another layer: rows that are taken once have all of their gradient."""
    torch.manual_seed(0)
    table, weight = (torch.randn(6, n, dtype=torch.float64) for n in (3, 3))
    rows = torch.tensor([1, 4, 1, 0, 5])
    report = covector.check(
        lambda table: torch.tanh(Lookup.apply(table, rows) @ weight[:3]), table.requires_grad_()
    )
    first = diagnoses(report)[0]
    assert "wrong in row 1 of `table`" in first.evidence


FACTORS = {
    "2": (2.0, "2.000 x the numeric gradient for input `x`, everywhere"),
    "0.5": (0.5, "0.500 x the numeric gradient for input `x`, everywhere"),
    "batch": (5.0, "everywhere; 5 is the size of dimension 0 of `output` (the batch?)"),
    "mean over the batch": (0.2, "which is 1 / 5; 5 is the size of dimension 0 of `output`"),
    "dimension": (3.0, "everywhere; 3 is the size of dimension 1 of `output`"),
    "mean of all": (1 / 15, "which is 1 / 15; 15 is the number of elements of `output`"),
    "close to one": (1.0031, "1.0031 x the numeric gradient"),
}


@pytest.mark.parametrize(("factor", "text"), FACTORS.values(), ids=FACTORS)
def test_which_factor(factor, text):
    ((rule, evidence),) = said(cubed(lambda d: factor * d), away((5, 3)))
    assert rule == "factor"
    assert text in evidence


@pytest.mark.parametrize(("factor", "text"), [(0.7, "0.700 is `t`"), (1 / 0.7, "1.429 is 1 / `t`")])
@pytest.mark.parametrize("make", [float, torch.tensor])
def test_a_factor_that_is_a_number_among_the_inputs(factor, text, make):
    """A temperature, given as a number or as a tensor of one."""

    def tempered(x, t):
        return ruled(cube, lambda g, x: factor * 3 * x**2 * g)(x) / t

    (found,) = diagnoses(covector.check(tempered, (*away((5, 3))(0), make(0.7))))
    assert found.evidence.endswith(text)
    assert found.look == "the factor `t`, left out or applied twice"


def test_a_factor_that_is_an_input_is_said_in_words():
    """Without an exponent or a factor of 1."""
    scaled = ruled(torch.mul, lambda g, x, w: (g * w, (g * x).sum(0) * w))
    ((rule, evidence),) = said(scaled, away((4, 3), (3,)))
    assert rule == "power"
    assert evidence == "`backward` returns a gradient that has the extra factor `arg1` for input `arg1`"


def test_a_backward_that_writes_into_its_cotangent_is_all_that_is_told():
    """What else is wrong follows from it: the second gradient is computed with the first."""
    scaled = ruled(torch.mul, lambda g, x, w: (g.mul_(w), (g * x).sum(0)))
    report = covector.check(scaled, away((4, 3), (3,))(0))
    assert {diagnosis.rule for diagnosis in diagnoses(report)} == {"cotangent changed"}


def unflipped(g, x, w):
    """The gradients of a convolution, its kernel not flipped."""
    by_w = torch.autograd.functional.vjp(lambda w: F.conv2d(x, w, padding=1), w, g)[1]
    return F.conv2d(g, w.transpose(0, 1), padding=1), by_w


def without_variance(g, x):
    """The gradient of group normalisation, in two groups, without the term of the variance."""
    rows, grad = x.reshape(x.shape[0], 2, -1), g.reshape(x.shape[0], 2, -1)
    scale = (rows.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return ((grad - grad.mean(-1, keepdim=True)) / scale).reshape(x.shape)


def by_spectrum(x, w):
    """A circular convolution along the last dimension, as the product of the spectra."""
    return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(w), n=x.shape[-1])


def pulled(x, g):
    """The gradient of a softmax along dimension 1."""
    y = x.softmax(1)
    return y * (g - (g * y).sum(1, keepdim=True))


NEAR = ((torch.arange(6)[:, None] - torch.arange(6)).abs() < 2).double()
GROUPS = torch.block_diag(torch.ones(2, 2), torch.ones(3, 3)).double()
SIMPSON = torch.tensor([1.0, 4, 2, 4, 2, 4, 1], dtype=torch.float64)
SPOTS = MIXING * torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 1, 1]])
UNLIKE = torch.rand(5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64).triu() + 0.1

KINDS = {
    "convolution of images": (
        ruled(lambda x, w: F.conv2d(x, w, padding=1), unflipped),
        normal((1, 2, 4, 5), (2, 2, 3, 3)),
        "reads each window along dimensions 2 and 3 backwards",
    ),
    "convolution around a ring": (
        ruled(by_spectrum, lambda g, x, w: (by_spectrum(g, w), None)),
        lambda seed: (*normal((2, 7))(seed), *(w.detach() for w in normal((7,))(seed + 1))),
        "reads each window along dimension 1 backwards",
    ),
    "a weight that is broadcast, left out": (
        ruled(lambda x, w: x * w, lambda g, x, w: (g, (g * x).sum(0))),
        normal((4, 6), (6,)),
        "returns a derivative that lacks the factor `w` for input `x`",
    ),
    "a weight of the output, left out": (
        ruled(lambda x, w: x.softmax(1) * w, lambda g, x, w: (pulled(x, g), (g * x.softmax(1)).sum(0))),
        normal((4, 6), (6,)),
        "returns a derivative that lacks the factor `w` for input `x`",
    ),
    "the other factor of a product": (
        ruled(
            lambda a, b: a[:, None] * b,
            lambda g, a, b: ((g * a[:, None]).sum(1), (g * a[:, None]).sum(0)),
        ),
        normal((3,), (3,)),
        "returns `a` for input `a`, where differences show `b`",
    ),
    "a magnitude that is not divided by": (
        ruled(torch.abs, lambda g, z: g * z),
        normal((5,), dtype=torch.complex128),
        "returns a derivative that has the extra factor `output` for input `arg0`",
    ),
    "group normalisation": (
        ruled(lambda x: F.group_norm(x, 2), without_variance),
        normal((2, 4, 3)),
        "lacks the term of the deviation or norm along dimensions 1 and 2, in groups of 6 elements",
    ),
    "sum of magnitudes": (
        ruled(lambda x: x / x.abs().sum(1, keepdim=True), lambda g, x: g / x.abs().sum(1, keepdim=True)),
        away((3, 5)),
        "that is proportional to the output: the term of a norm or a sum, by which it divides",
    ),
    "softmax over another dimension": (
        ruled(lambda x: x.logsumexp(1), lambda g, x: g[:, None] * x.softmax(0)),
        normal((4, 5)),
        "sums to the same number along dimension 0, the true one along dimension 1",
    ),
    "layer norm with another eps": (
        ruled(
            lambda x: F.layer_norm(x, (5,), eps=0.1),
            lambda g, x: torch.func.vjp(lambda x: F.layer_norm(x, (5,), eps=1e-5), x)[1](g)[0],
        ),
        normal((3, 5)),
        "has other coefficients for every term along dimension 1: another divisor, as of another eps",
    ),
    "kernel turned round": (
        ruled(cube, lambda g, x: cube_pull(g, x).flip(1, 2)),
        away((2, 3, 3)),
        "has the right numbers in reverse order, along dimensions 1 and 2",
    ),
    "windows summed": (
        ruled(lambda x: F.avg_pool1d(x, 3), lambda g, x: g.repeat_interleave(3, -1)),
        normal((1, 2, 9)),
        "everywhere; 3 is the number of elements of `x` that each output depends on",
    ),
    "hinge with another margin": (
        ruled(
            lambda x, y: (1 - y.sign() * x).clamp(min=0),
            lambda g, x, y: (-g * y.sign() * (y.sign() * x < 0), torch.zeros_like(y)),
        ),
        normal((16,), (16,)),
        "the gradient is wrong where `output` is below a value between",
    ),
    "gradient transposed": (
        product(lambda g, x, w: (g @ w.T, g.T @ x)),
        SQUARES,
        "the gradient for input `w` is right except that it is transposed (dimensions 0 and 1)",
    ),
    "transposed and reshaped": (
        ruled(cube, lambda g, x: cube_pull(g, x).T.reshape(x.shape)),
        away((3, 5)),
        "it is transposed (dimensions 0 and 1), and reshaped",
    ),
    "cotangent transposed": (
        product(lambda g, x, w: linear_pull(g.T, x, w)),
        SQUARES,
        "dimensions 0 and 1 of the cotangent of `output` are exchanged",
    ),
    "sum over the wrong dimension": (
        weighted(lambda g, x, w: (g * x.sin()).sum(1)),
        normal((4, 4), (4,)),
        "a sum runs over dimension 1 of `output` where it should run over 0",
    ),
    "a bias summed over the wrong dimension": (
        ruled(torch.add, lambda g, x, b: (g, g.sum(1))),
        normal((4, 4), (4,)),
        "dimensions 0 and 1 of the cotangent of `output` are exchanged: a sum runs over dimension 1 of "
        "`output` where it should run over 0",
    ),
    "one index of a sum": (
        weighted(lambda g, x, w: (g * x.sin())[0]),
        normal((6, 3), (3,)),
        "is not summed over dimension 0 of `output`: only index 0 counts",
    ),
    "all but one index of a sum": (
        weighted(lambda g, x, w: (g * x.sin())[:-1].sum(0)),
        normal((6, 3), (3,)),
        "is a sum over dimension 0 of `output` that leaves out index 5",
    ),
    "sum of everything": (
        weighted(lambda g, x, w: (g * x.sin()).sum().expand(3)),
        normal((6, 3), (3,)),
        "is summed over the input too, and spread",
    ),
    "result conjugated": (
        ruled(torch.square, lambda g, z: complex_square_pull(g, z).conj()),
        normal((5,), dtype=torch.complex128),
        "the result is conjugated in the gradient for input `arg0`",
    ),
    "cotangent conjugated": (
        ruled(torch.square, lambda g, z: complex_square_pull(g.conj(), z)),
        normal((5,), dtype=torch.complex128),
        "the cotangent is conjugated in the gradient for input `arg0`",
    ),
    "cotangent real": (
        ruled(torch.square, lambda g, z: complex_square_pull(g.real + 0j, z)),
        normal((5,), dtype=torch.complex128),
        "the imaginary part of the cotangent is lost on the way to input `arg0`",
    ),
    "a constant in the derivative": (
        ruled(torch.sin, lambda g, x: g * x.cos() + 1e-2 * g),
        VECTOR,
        "`backward` is off by 0.01 for input `arg0`, wherever it is not zero",
    ),
    "one column": (
        cubed(only((slice(None), 3), 0.0)),
        away((4, 5)),
        "the gradient is wrong in column 3 of `x` and right elsewhere; it is zero there",
    ),
    "one index of three dimensions": (
        cubed(only((slice(None), 1), -1.0)),
        away((2, 3, 4)),
        "the gradient is wrong in index 1 of dimension 1 of `x` and right elsewhere; it has the wrong sign",
    ),
    "all sides of a matrix": (
        cubed(lambda d: d * frame(4, 5)),
        away((4, 5)),
        "the gradient is wrong at the boundary of `x` and right inside",
    ),
    "positive inputs": (
        ruled(cube, lambda g, x: cube_pull(g, x) * torch.where(x > 0, -1.0, 1.0)),
        VECTOR,
        "the gradient is wrong where `x` is positive and right elsewhere; it has the wrong sign there",
    ),
    "two elements": (
        cubed(only([2, 5], 3.0)),
        away((12,)),
        "the gradient is wrong at `x[2]` and `x[5]` only; it is 3.000 x the numeric one there",
    ),
    "rounded to bfloat16": (rounded(torch.bfloat16), VECTOR, "was rounded to bfloat16"),
    "several inputs at once": (
        ruled(quotient, lambda g, x, y: (-g / y, g * x / y**2)),
        away((6,), (6,)),
        "returns the negative of the gradient for inputs `x` and `y`, everywhere",
    ),
}


def frame(height, width):
    """Ones inside, twos at the boundary."""
    result = torch.full((height, width), 2.0, dtype=torch.float64)
    result[1:-1, 1:-1] = 1.0
    return result


@pytest.mark.parametrize(("function", "inputs", "text"), KINDS.values(), ids=KINDS)
def test_kinds_of_a_mistake(function, inputs, text):
    assert any(text in evidence for _, evidence in said(function, inputs)), said(function, inputs)


def test_a_factor_along_a_batch_is_not_a_variance():
    """3 / 2 with a batch of three: its samples do not act on each other, so that no variance is of them."""
    wrong = product(lambda g, x, w: (1.5 * (g @ w.T), x.T @ g))
    ((rule, evidence),) = said(wrong, normal((3, 4), (4, 2)))
    assert rule == "factor"
    assert evidence.endswith("1.500 x the numeric gradient for input `x`, everywhere")


def test_a_size_may_be_a_factor_by_chance():
    """Three times the gradient, in a batch of three whose elements do not act on each other."""
    (found,) = diagnoses(covector.check(cubed(lambda d: 3 * d), away((3, 4))(0)))
    assert "3 is the size of dimension 0 of `output`" in found.evidence
    assert found.look.endswith("or a factor that was left out or applied twice")


def test_rivals_for_the_same_entries_are_not_sure():
    """Both ends of a line are also where the input is largest: either may be the reason."""
    x = torch.tensor(
        [2.0, -0.3, 0.5, -0.8, 0.7, 0.2, -0.1, 0.4, 1.5], dtype=torch.float64, requires_grad=True
    )
    report = covector.check(ruled(F.hardtanh, lambda g, x: g.clone()), x)
    assert {d.rule for d in diagnoses(report)} == {"boundary", "threshold"}
    assert {d.sure for d in diagnoses(report)} == {"likely"}


def test_the_scale_of_the_input_is_a_fact():
    """Where no rule fits: whether the error changes with the size of the input."""
    x = torch.tensor([0.5, -0.8, 1.1, -1.4, 1.7, 2.0, -2.3], dtype=torch.float64, requires_grad=True)
    report = covector.check(ruled(cube, lambda g, x: cube_pull(g, x) * (1 + 0.1 * x.abs().sqrt())), x)
    assert not diagnoses(report)
    assert "the error grows with the size of `x`." in report.worst.facts[-1]


def test_a_multiple_says_nothing_about_entries_that_should_be_zero():
    """A coupling that is smaller than the tolerance at the largest entry is not explained by a factor."""
    wrong = ruled(torch.sin, lambda g, x: 2 * g * x.cos() + 1e-4 * g.sum())
    assert not said(wrong, away((20,)))


def test_a_number_that_is_missing_everywhere_is_no_formula():
    """The largest of two elements that are added up: the other one gets no gradient."""
    wrong = ruled(
        lambda x: x.topk(2, dim=1).values.sum(1),
        lambda g, x: torch.zeros_like(x).scatter_(1, x.topk(1, dim=1).indices, 1.0) * g[:, None],
    )
    assert "chain rule" not in {rule for rule, _ in said(wrong, normal((5, 6)))}


def test_an_error_that_is_a_function_of_the_input_is_a_fact():
    """The product rule, with one of its two terms, and a function in it that no rule knows."""
    x = torch.tensor([0.5, 0.8, 1.1, 1.4, 1.7, 2.0, 0.3], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.9, 0.1, 0.7, 0.2, 1.2, 0.4, 1.6], dtype=torch.float64)
    wrong = ruled(lambda x: (x.atan() * (x - y)).sum(), lambda g, x: g * (x - y) / (1 + x**2))
    report = covector.check(wrong, x)
    assert not diagnoses(report)
    assert "the difference analytic - numeric lies between" in report.worst.facts[-1]
    assert "and changes steadily with `x`; the error grows" in report.worst.facts[-1]


def _focal(x):
    return -((1 - x.sigmoid()) ** 2 * x.sigmoid().log()).sum()


# Losses with a wrong gradient, and what is said of it: each entry of the one row is a function of its x.
ONE_ROW = {
    "a factor": (
        ruled(lambda x: x.square().log1p().mean(), lambda g, x: g * 2 * x / x.numel()),
        "has the extra factor (1 + `x`^2) for input `x`",
    ),
    "another function": (
        ruled(lambda x: x.cosh().log().sum(), lambda g, x: g * (1 - x.tanh() ** 2)),
        "returns (1 - tanh(`x`)^2) for input `x`, where differences show tanh(`x`)",
    ),
    "a term": (
        ruled(lambda x: (x.exp() * x).sum(), lambda g, x: g * x.exp() * x),
        "returns for input `x` the numeric gradient plus -exp(`x`)",
    ),
    "a term of a probability": (
        ruled(_focal, lambda g, x: g * (x.sigmoid() - 1) * (1 - x.sigmoid()) ** 2),
        "plus -2 sigmoid(`x`) (1 - sigmoid(`x`))^2 log(sigmoid(`x`))",
    ),
}


@pytest.mark.parametrize("name", ONE_ROW)
def test_a_loss_is_seen_element_by_element(name):
    """Of a sum or a mean, the Jacobian has one row."""
    wrong, said = ONE_ROW[name]
    report = covector.check(wrong, away((9,))(0))
    (diagnosis, *_) = report.worst.diagnoses
    assert diagnosis.rule == "chain rule"
    assert said in diagnosis.evidence.replace("arg0", "x")


def test_magnitudes_of_complex_numbers_are_seen_in_a_loss():
    wrong = ruled(lambda z: z.abs().sum(), lambda g, z: g * z)
    (diagnosis, *_) = covector.check(wrong, normal((7,), dtype=torch.complex128)(0)).worst.diagnoses
    assert diagnosis.rule == "chain rule"
    assert "has the extra factor |`arg0`|" in diagnosis.evidence.replace("`z`", "`arg0`")


@pytest.mark.parametrize("size", [9, 40])
def test_a_loss_whose_error_is_no_function_of_the_element_gets_no_formula(size):
    """Noise on each entry, and entries of another element."""
    noise = 1 + 0.2 * torch.sin(7.3 * torch.arange(size, dtype=torch.float64) ** 2)
    for pull in (lambda g, x: g * x.cosh() * noise, lambda g, x: g * x.cosh() * x.cumsum(0)):
        report = covector.check(ruled(lambda x: x.sinh().sum(), pull), away((size,))(0))
        assert not report
        assert "chain rule" not in {diagnosis.rule for diagnosis in report.worst.diagnoses}


def test_the_few_elements_that_are_right_are_a_fact():
    """The only element inside of the quadratic part of Huber's loss."""
    x = torch.tensor([2.0, -3.0, 1.5, 0.25, -2.5], dtype=torch.float64, requires_grad=True)
    wrong = ruled(
        lambda x: F.huber_loss(x, 0 * x, reduction="none", delta=0.5), lambda g, x: g * x.clamp(-1, 1)
    )
    report = covector.check(wrong, x)
    assert not diagnoses(report)
    (fact,) = report.worst.facts
    assert "right at `x[3]` = 0.25 only; the ratio analytic / numeric is 2 in all of them" in fact


def test_forward_mode_is_called_by_its_name():
    wrong = ruled(cube, cube_pull, lambda t, x: -3 * t * x * x)
    ((rule, evidence),) = said(wrong, VECTOR, check_forward_ad=True)
    assert (rule, evidence) == (
        "sign",
        "`jvp` returns the negative of the derivative for input `x`, everywhere",
    )


def test_large_functions_in_fast_mode_are_diagnosed_from_a_sample():
    """Signs found the entry; the rules look at a few rows and columns around it."""
    x = away((3000,))(0)
    (found, *_) = diagnoses(covector.check(cubed(only(733, -1.0)), x, fast_mode=True))
    assert (found.rule, found.evidence, found.tested) == (
        "few elements",
        "the gradient is wrong at `x[733]`, in one entry of the Jacobian, and right at 65 others in a "
        "sample; it has the wrong sign there",
        "",
    )
    assert said(cubed(lambda d: 2 * d), x, fast_mode=True)[0][0] == "factor"


def test_a_function_that_cannot_be_batched_is_diagnosed_from_the_runs_of_its_check():
    """Every column was differenced by the check, in a loop; the diagnosis takes no more of them."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x

        @staticmethod
        def backward(ctx, g):
            return 6 * g

    x = torch.ones(100, dtype=torch.float64, requires_grad=True)
    report = covector.check(lambda x: Twice.apply(x).cumsum(0), x)
    assert report.evaluations <= 2 * 100 + 2 + 60
    text = "`backward` returns 2.000 x the numeric gradient for input `x`, everywhere"
    assert [d.evidence for d in diagnoses(report)] == [text]


class Product(torch.autograd.Function):
    """A product of matrices that cannot be batched, with a transpose missing."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, x.T @ g


def test_of_a_large_function_every_entry_of_the_suspect_is_looked_at():
    """One of its inputs is wrong, and has few enough columns."""
    report = covector.check(Product.apply, normal((6, 20), (20, 20))(0))
    assert [d.rule for d in diagnoses(report)] == ["transposed"]
    assert report.evaluations <= 2 * 520 + 60


def _slope_of_another(g, x, b):
    slope = torch.where(x > 0, g, 0.1 * g)  # the branch is that of x + b
    return slope, slope.sum(0)


def _leaky(seed, *shape):
    function = ruled(lambda x, b: F.leaky_relu(x + b, 0.1), _slope_of_another)
    return covector.check(function, normal(shape, shape[1:])(seed))


@pytest.mark.parametrize("seed", range(6))
def test_where_entries_are_is_not_said_of_a_sample(seed):
    """What was looked at is not all that is wrong, and no input is called right that is not."""
    report = _leaky(seed, 20, 20)
    assert not diagnoses(report)
    about_x, about_b = report.worst.facts
    for fact, name in ((about_x, "x"), (about_b, "b")):
        assert re.match(rf"\d+ wrong entries in a sample for input `{name}`: the ratio analytic / nu", fact)


def test_a_few_entries_are_no_block():
    report = _leaky(3, 6, 7)
    assert report.worst.facts
    assert not any("block" in fact or "same along" in fact for fact in report.worst.facts)


def test_rows_that_are_not_looked_at_are_no_mask():
    """Numbers that are rolled the wrong way come from beyond the sample."""
    report = covector.check(ruled(lambda x: x.roll(1, -1), lambda g, x: g.roll(1, -1)), normal((8, 40))(0))
    assert [d.rule for d in diagnoses(report)] == ["displaced"]


@pytest.mark.parametrize("rows", [6, 40])
def test_one_end_is_no_boundary(rows):
    """The first row gets a gradient that it should not, and nobody takes the last one."""
    taken = torch.tensor([0, 1, 2, 3, 0, 4, 2])
    report = covector.check(
        ruled(
            lambda w: w[taken] * (taken != 0)[:, None],
            lambda g, w: torch.zeros_like(w).index_add(0, taken, g),
        ),
        normal((rows, 8))(0),
    )
    assert [d.rule for d in diagnoses(report)] == ["one slice"]


def test_a_loss_that_ignores_its_cotangent():
    """Every entry is right, because a check asks for that of one; only linearity tells."""
    loss = ruled(lambda x: (x * x).sum(), lambda g, x: 2 * x)
    assert said(loss, VECTOR) == [
        ("cotangent ignored", "`backward` returns the same gradient for every cotangent")
    ]
    offset = ruled(lambda x: (x * x).sum(), lambda g, x: 2 * x * g.abs())
    assert not covector.check(offset, VECTOR(0))
    assert said(offset, VECTOR) == []


def test_a_derivative_that_raises_may_be_stale_too():
    """In fast mode the batch comes first, and the backward meets a value that it left behind."""
    report = covector.check(stale_square(), normal((40,))(0), fast_mode=True)
    assert [d.rule for d in diagnoses(report)] == ["stale value"]


def test_a_verdict_that_nobody_reads_is_not_diagnosed(monkeypatch):
    seen = []
    watching = [replace(rule, find=lambda case: iter(seen.append(case) or ())) for rule in RULES]
    monkeypatch.setattr(table, "RULES", tuple(watching))
    wrong = cubed(lambda d: 2 * d)
    assert covector.gradcheck(wrong, VECTOR(0), raise_exception=False) is False
    assert covector.gradcheck(torch.sin, VECTOR(0))
    assert seen == []
    assert not covector.check(wrong, VECTOR(0))
    assert seen


# The mutants that a rule has to name; about the others the entries say nothing that a rule knows.
NAMED = {
    "sign": [
        "sign",
        "sign of one of two inputs",
        "forward: sign",
        "second order: sign",
    ],
    "factor": [
        "factor 2",
        "factor 0.5",
        "factor 1.01",
        "wrong only for a transposed input",
        "wrong only for every second element of a storage",
        "one of two outputs",
        "half of a real function of complex numbers",
        "forward: factor 1.01",
        "forward: wrong where reverse is not asked for",
        "reverse wrong, forward right",
        "wrong backward that a wrong batch rule confirms",
        "second order: factor 1.01",
        "second order: by the cotangent",
    ],
    "zero": [
        "zero",
        "no gradient for one of two inputs",
        "zero gradient for one of two inputs",
        "forward: ignores one of two tangents",
    ],
    "stop-gradient": [
        "detached branch",
        "detached at one entry",
        "detached for one of two inputs",
        "second order: input detached",
        "second order: cotangent detached",
        "second order: coupling of two inputs detached",
        "second order: half detached",
        "detached result",
        "result through numbers",
    ],
    "wrong way": [
        "sum run forwards instead of backwards",
    ],
    "chain rule": [
        "uses the output for the input",
    ],
    "few elements": [
        "one entry of 2000 by a tenth",
        "one entry of 2000 by a hundredth",
        "one entry of 2000 with its sign flipped",
        "one entry of 2000 missing",
        "first element",
        "last element",
        "last element of a matrix",
        "two entries that cancel in a sum",
        "off by 1e-3 in one entry",
        "one entry of a fast oscillation",
        "one entry of a fast oscillation by a hundredth",
        "product: one entry by a hundredth",
        "one boundary entry",
        "missing coupling",
        "missing coupling in 600 elements",
        "spurious coupling",
        "spurious coupling in 600 elements",
        "small missing coupling beside large entries",
        "small missing coupling beside large entries, 600 elements",
        "small spurious coupling beside large entries, 600 elements",
        "missing conjugate at one entry",
        "one of 24 complex entries",
        "turned by a right angle at one entry",
        "forward: one entry",
        "forward: two of 40 tangents swapped",
        "two of 40 gradients swapped",
        "second order: one entry",
    ],
    "one slice": [
        "one row",
        "one column",
        "product: one entry of the weight",
    ],
    "displaced": [
        "off by one",
        "reversed",
        "forward: off by one",
    ],
    "negative inputs": [
        "wrong only for negative inputs",
    ],
    "threshold": [
        "wrong only above a threshold",
    ],
    "power": [
        "square instead of cube",
        "power of the denominator",
    ],
    "transposed": [
        "transposed",
        "transposed, not square",
        "broadcast: sum over the wrong dimension",
        "product: weight not transposed",
        "product: order of factors",
        "product: reshaped for transposed",
    ],
    "constant": [
        "off by 1e-3",
        "adds a constant",
        "forward: adds a constant",
    ],
    "cotangent ignored": [
        "ignores the cotangent",
        "second order: ignores the cotangent",
    ],
    "swapped outputs": [
        "cotangents of two outputs swapped",
    ],
    "broadcast": [
        "broadcast: mean for sum",
        "broadcast: first row only",
        "broadcast: last row left out",
        "broadcast: spread instead of summed",
    ],
    "swapped inputs": [
        "gradients of two inputs swapped",
        "forward: tangents swapped",
    ],
    "boundary": [
        "boundary entries",
    ],
    "conjugate": [
        "missing conjugate",
        "missing conjugate for one of two inputs",
        "conjugate of the whole",
        "conjugate of the cotangent",
        "conjugate of a real function of complex numbers",
        "missing conjugate, real input",
        "forward: missing conjugate",
    ],
    "real part": [
        "real part only",
        "imaginary part of the cotangent dropped",
        "imaginary part dropped, real input",
    ],
    "stale value": [
        "stale saved tensor",
    ],
    "saved intermediate": [
        "second order: saved intermediate",
    ],
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutants_are_called_what_they_are(mutant):
    """The surest diagnosis is the right one, and what no rule knows is given no name; few are shown."""
    door = covector.gradcheck if mutant.order == 1 else covector.gradgradcheck
    with pytest.raises(covector.GradcheckError) as caught:
        door(mutant.wrong, mutant.draw(), **mutant.keywords)
    found = diagnoses(caught.value.report)
    expected = [rule for rule, names in NAMED.items() if mutant.name in names]
    assert [d.rule for d in found[:1]] == expected
    sure = [d.confidence for d in found]
    assert len(sure) <= 3
    assert sure == sorted(sure, reverse=True)


def test_every_named_mutant_exists():
    names = [name for names in NAMED.values() for name in names]
    assert set(names) <= {mutant.name for mutant in MUTANTS}
    assert len(set(names)) == len(names)


def test_a_backward_that_draws_random_numbers_is_not_explained():
    source = torch.Generator().manual_seed(0)
    report = covector.check(trembling_cube(0.1, lambda: source), VECTOR(0))
    assert not report
    assert diagnoses(report) == []


def test_a_rule_that_raises_leaves_the_report_as_it_is(monkeypatch):
    def broken(case):
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(forgiving, "RAISING", False)
    expected = said(cubed(lambda d: -d), VECTOR)
    spoilt = [replace(rule, find=broken) if rule.name != "sign" else rule for rule in RULES]
    monkeypatch.setattr(table, "RULES", tuple(spoilt))
    assert said(cubed(lambda d: -d), VECTOR) == expected == [("sign", expected[0][1])]


def test_a_mistake_of_a_rule_is_seen_by_the_tests(monkeypatch):
    def broken(case):
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(table, "RULES", (replace(RULES[0], find=broken),))
    with pytest.raises(ZeroDivisionError, match="a mistake of ours"):
        said(cubed(lambda d: -d), VECTOR)


def test_a_derivative_that_fails_while_it_is_diagnosed_is_reported_all_the_same(monkeypatch):
    """The evidence takes pullbacks after the check; what these need may no longer be there."""
    monkeypatch.setattr(forgiving, "RAISING", False)
    pulls, limit = [], float("inf")

    def fragile(d):
        pulls.append(d)
        if len(pulls) > limit:
            raise OSError("the sensor is gone")
        return 2 * d

    whole, lost = covector.check(cubed(fragile), VECTOR(0), fast_mode=True), []
    for limit in range(1, len(pulls)):
        pulls.clear()
        cut = covector.check(cubed(fragile), VECTOR(0), fast_mode=True)
        assert len(pulls) > limit
        assert cut.outcome is whole.outcome
        lost += [cut] if cut.findings[0].mismatches and diagnoses(cut) != diagnoses(whole) else []
    assert lost


def write_snapshots():
    """Make the texts anew, to be read before they are committed."""
    SNAPSHOTS.mkdir(exist_ok=True)
    torch.manual_seed(0)  # as every test does: it is the seed by which inputs are drawn again
    for name in PLANTED:
        (SNAPSHOTS / f"{name.replace(' ', '_')}.txt").write_text(
            text_of(PLANTED[name].wrong_report()), encoding="utf-8"
        )


FORMULAS = {
    "the square": (
        ruled(lambda x: x.lgamma(), lambda g, x: g * x.digamma() ** 2),
        "`backward` returns the square of the numeric gradient for input `x`",
    ),
    "a factor of another input": (
        ruled(lambda x, p: x**p, lambda g, x, p: (g * p * x ** (p - 1), g * x**p)),
        "`backward` returns a derivative that lacks the factor log(`x`) for input `p`",
    ),
    "a factor in a product": (
        ruled(
            lambda x: x * (1.5 * x).sigmoid(),
            lambda g, x: g * ((1.5 * x).sigmoid() + x * (1.5 * x).sigmoid() * (1 - (1.5 * x).sigmoid())),
        ),
        "with a second term (`x` times the derivative of that function) that is 0.6667 x the right one",
    ),
    "a function in a product": (
        ruled(
            lambda x: F.mish(x), lambda g, x: g * (F.softplus(x).tanh() + x * (1 - F.softplus(x).tanh() ** 2))
        ),
        "with a second term (`x` times the derivative of that function) that lacks the factor sigmoid(`x`)",
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_what_a_formula_lacks_is_written_out(name):
    function, words = FORMULAS[name]
    count = 2 if name == "a factor of another input" else 1
    inputs = [draw.detach().abs().add(0.5).requires_grad_() for draw in normal(*[(8,)] * count)(0)]
    (rule, evidence), *_ = said(function, inputs)
    assert rule == "chain rule"
    assert words in evidence


def test_the_square_of_few_slopes_is_another_slope():
    """0.01 is the square of 0.1, and of one it is one: a leaky slope is no square."""
    leaky = ruled(lambda x: F.leaky_relu(x, 0.1), lambda g, x: g * torch.where(x > 0, 1.0, 0.01))
    assert [rule for rule, _ in said(leaky, normal((12,)))] == ["negative inputs"]


if __name__ == "__main__":
    write_snapshots()


def _cosine(a, b):
    return F.cosine_similarity(a, b, dim=-1)


def _unprojected(g, a, b):
    size = (a.norm(dim=-1) * b.norm(dim=-1))[:, None]
    return g[:, None] * b / size, g[:, None] * a / size


def _normalised(x):
    return (x - x.mean(-1, keepdim=True)) * (x.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()


def _without_variance(g, x):
    return (x.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt() * (g - g.mean(-1, keepdim=True))


def _one_branch(g, x, y):
    slope = g * torch.where(x - y < 1, x - y, (x - y).sign())
    return slope, -slope


def _by_channel(g, x):
    y = F.group_norm(x, 2)
    scale = (x.reshape(3, 2, -1).var(-1, unbiased=False) + 1e-5).rsqrt().repeat_interleave(4, 1)[..., None]
    return scale * (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True))


KINDS = {
    "a branch by the difference of two inputs": (
        ruled(lambda x, y: F.huber_loss(x, y, reduction="none"), _one_branch),
        ((400,), (400,)),
        "threshold",
        "the gradient is wrong where `x` - `y` is below a value between -1.",
    ),
    "an index of a sum over segments that is off by one": (
        ruled(
            lambda x: torch.zeros(6, 10, dtype=x.dtype).index_add(0, torch.arange(40) ** 2 % 6, x),
            lambda g, x: g[(torch.arange(40) ** 2 + 1) % 6],
        ),
        ((40, 10),),
        "displaced",
        "the right numbers one place too far, along dimension 0 of `output`",
    ),
    "a weight that is not transposed, of many rows": (
        ruled(lambda x, w, b: x @ w.T + b, lambda g, x, w, b: (g @ w.T, g.T @ x, g.sum(0))),
        ((20, 16), (16, 16), (16,)),
        "transposed",
        "of a matrix W where W^T belongs",
    ),
    "a product of large matrices that is not transposed": (
        ruled(lambda x, w: x @ w, lambda g, x, w: (g @ w, x.T @ g)),
        ((30, 30), (30, 30)),
        "transposed",
        "of a matrix W where W^T belongs",
    ),
    "a variance that is left out, of many rows": (
        ruled(_normalised, _without_variance),
        ((12, 30),),
        "normalisation",
        "lacks the term of the deviation or norm along dimension 1",
    ),
    "groups that are averaged by channel": (
        ruled(lambda x: F.group_norm(x, 2), _by_channel),
        ((3, 8, 16),),
        "wrong axis",
        "along dimension 2; in the function, along dimensions 1 and 2",
    ),
    "a quotient by a norm": (
        ruled(_cosine, _unprojected),
        ((3, 5), (3, 5)),
        "normalisation",
        "proportional to the input: the term of a norm",
    ),
    "a target that is not subtracted": (
        ruled(lambda x: F.cross_entropy(x, torch.tensor([2, 0, 3, 1])), lambda g, x: g * x.softmax(-1) / 4),
        ((4, 5),),
        "constant",
        "at one element for each index of dimension 0, and right elsewhere",
    ),
    "a product of a matrix with itself": (
        ruled(lambda x: x @ x.T, lambda g, x: g @ x),
        ((4, 3),),
        "transposed",
        "the cotangent alone, where it should take the cotangent and its transpose",
    ),
    "a sort that is not undone": (
        ruled(lambda x: x.sort(-1).values, lambda g, x: g.clone()),
        ((3, 5),),
        "another element",
        "each output takes one element of",
    ),
    "the only output as a factor": (
        ruled(lambda x: x.norm(), lambda g, x: g * x),
        ((7,),),
        "factor",
        "is the output itself",
    ),
    "a window that the backward forgets": (
        ruled(lambda x: NEAR @ x, lambda g, x: torch.ones(6, 6).double() @ g),
        ((6, 2),),
        "reach",
        "an output depends on elements at most 1 away; the gradient for input `x` assumes that it depends on "
        "those at every index",
    ),
    "groups that the backward mixes": (
        ruled(lambda x: GROUPS @ x, lambda g, x: torch.ones(5, 5).double() @ g),
        ((5, 2),),
        "reach",
        "of the same group of indices",
    ),
    "steps that the backward does not go back": (
        ruled(lambda x: x.cumsum(0), lambda g, x: g + F.pad(g[1:], (0, 0, 0, 1))),
        ((6, 2),),
        "reach",
        "assumes that it depends on those from 1 earlier to its own index",
    ),
    "padding that is counted": (
        ruled(
            lambda x: F.avg_pool2d(x[None], 3, 1, 1, count_include_pad=False)[0],
            lambda g, x: F.conv2d(g[:, None], torch.full((1, 1, 3, 3), 1 / 9).double(), padding=1)[:, 0],
        ),
        ((1, 5, 6),),
        "factors by place",
        "0.444 x in the corners, 0.667 x at the edges and right inside, in `output`",
    ),
    "weights of a rule, exchanged": (
        ruled(
            lambda x: x.exp() @ SIMPSON, lambda g, x: g[:, None] * x.exp() * SIMPSON[[0, 2, 1, 2, 1, 2, 0]]
        ),
        ((3, 7),),
        "factors by place",
        "2.000 x at indices 2 and 4, 0.500 x at odd indices and right at both ends, along dimension 1",
    ),
    "a running mean as a sum": (
        ruled(
            lambda x: x.cumsum(1) / torch.arange(1, 6),
            lambda g, x: g.flip(1).cumsum(1).flip(1),
        ),
        ((3, 5),),
        "factors by place",
        "one for each index of dimension 1 of `output`, 1 at 0, 2 at 1, 3 at 2, 4 at 3, 5 at 4",
    ),
    "scores that are masked, and softmax of all": (
        ruled(
            lambda s: s.masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf).softmax(-1),
            lambda g, s: s.softmax(-1) * (g - (g * s.softmax(-1)).sum(-1, keepdim=True)),
        ),
        ((5, 5),),
        "reach",
        "at the same index and at earlier ones",
    ),
    "a row that gets nothing": (
        ruled(
            lambda w: w[[3, 1, 1, 0, 3]],
            lambda g, w: (
                torch.zeros_like(w)
                .index_add(0, torch.tensor([3, 1, 1, 0, 3]), g)
                .index_fill(0, torch.tensor([0]), 0.0)
            ),
        ),
        ((4, 3),),
        "one slice",
        "row 0",
    ),
}


FACTS = {
    "few ratios": (
        ruled(torch.exp, lambda g, x: g * x.exp() * torch.tensor([2.0, 2, 3, 2, 4, 3, 2, 3])),
        (8,),
        "the ratio analytic / numeric is 2 in 4, 3 in 3 and 4 in 1 of them",
    ),
    "one index": (
        ruled(
            lambda x: x.cumsum(0),
            lambda g, x: g.flip(0).cumsum(0).flip(0) + F.pad(UNLIKE @ g[:, 2:], (2, 0, 0, 2)),
        ),
        (7, 3),
        "all at index 2 of dimension 1 of `x`",
    ),
    "a triangle": (
        ruled(causal, lambda g, x: (MIXING.tril() + MIXING.cos().tril(-1)).T @ g),
        (4, 3),
        "along dimension 0, between an output and elements of `x` at earlier indices",
    ),
    "zeros": (
        ruled(lambda x: SPOTS @ x, lambda g, x: (MIXING + MIXING.sin()).T @ g),
        (4, 3),
        "the numeric value is zero in 21 of them",
    ),
}


@pytest.mark.parametrize("name", FACTS)
def test_facts_where_no_rule_fits(name):
    function, shape, words = FACTS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    worst = covector.check(function, x).worst
    assert not worst.diagnoses
    assert words in worst.facts[-1]


@pytest.mark.parametrize("name", KINDS)
def test_everyday_mistakes_have_their_name(name):
    function, shapes, rule, words = KINDS[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    first = covector.check(function, inputs).worst.diagnoses[0]
    assert first.rule == rule
    assert words in first.evidence


def _halves(x):
    """Means of the first three quarters of the rows, and of the last quarter."""
    cut = 3 * len(x) // 4
    return torch.stack([x[:cut].mean(0), x[cut:].mean(0)])


def _summed(g, x):
    cut = 3 * len(x) // 4
    return torch.cat([g[:1].expand(cut, -1), g[1:].expand(len(x) - cut, -1)])


def _drawn(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


def test_a_factor_of_a_sample_is_not_said_of_everything():
    """Rows that lie together have one factor; others, that were not looked at, have another."""
    ((rule, evidence),) = said(ruled(_halves, _summed), _drawn((120, 64)))
    assert rule == "factors by place"
    assert "at every entry of a sample, and by another one, or none, elsewhere" in evidence


def test_a_factor_that_a_random_direction_confirms_is_said_of_everything():
    ((rule, evidence),) = said(ruled(torch.sin, lambda g, x: 3 * g * x.cos()), _drawn((120, 64)))
    assert rule == "factor"
    assert "returns 3.000 x the numeric gradient for input `arg0`, everywhere" in evidence


def _attend(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def _attend_without_sum(g, q, k, v):
    weights = (q @ k.mT).softmax(-1)
    scores = weights * (g @ v.mT)
    return scores @ k, scores.mT @ q, weights.mT @ g


def _unsmoothed(g, x):
    return g * (x.softmax(-1) - F.one_hot(torch.arange(6) % 5, 5))


LABELS = torch.tensor([1.0, -1, -1, 1, 1, -1], dtype=torch.float64).repeat(4)

ASSORTED = {
    "a stride that the backward does not take": (
        ruled(
            lambda x: F.conv1d(x[None, None], KERNEL[None, None], stride=2)[0, 0],
            lambda g, x: F.pad(F.conv_transpose1d(g[None, None], KERNEL[None, None])[0, 0], (0, 3)),
        ),
        ((9,),),
        "reach",
        "output i depends on elements 2 i to 2 i + 2; the gradient for input `x` assumes that it depends "
        "on i to i + 2",
    ),
    "attention without the sum of its softmax": (
        ruled(_attend, _attend_without_sum),
        ((4, 3), (4, 3), (4, 3)),
        "normalisation",
        "has an error that is proportional to the output along dimension 1 of `output`",
    ),
    "a target that is not smoothed": (
        ruled(
            lambda x: F.cross_entropy(x, torch.arange(6) % 5, label_smoothing=0.2, reduction="sum"),
            _unsmoothed,
        ),
        ((6, 5),),
        "constant",
        "is off for input `x` by -0.16 at 6 entries and by 0.04 at 24 entries",
    ),
    "a weight of one class": (
        ruled(
            lambda x: F.binary_cross_entropy_with_logits(x, KEPT, pos_weight=KEPT.new_tensor(3.0)),
            lambda g, x: g * (x.sigmoid() - KEPT) / x.numel(),
        ),
        ((4, 5),),
        "factors by place",
        "0.333 x where the derivative by `x` is negative, right where it is positive",
    ),
    "a factor inside of a function": (
        ruled(lambda x: F.softplus(x, beta=3.0), lambda g, x: g * x.sigmoid()),
        ((12,),),
        "chain rule",
        "returns sigmoid(`x`) for input `x`, where differences show sigmoid(3 `x`)",
    ),
    "another function beside another input": (
        ruled(
            lambda f, c: f.sigmoid() * c, lambda g, f, c: (g * c * (1 - f.sigmoid() ** 2), g * f.sigmoid())
        ),
        ((12,), (12,)),
        "chain rule",
        "returns (1 - sigmoid(`f`)^2) `c` for input `f`, where differences show sigmoid(`f`) "
        "(1 - sigmoid(`f`)) `c`",
    ),
    "a term of the product rule": (
        ruled(
            lambda x: (1 - x.sigmoid()) ** 2 * -F.logsigmoid(x),
            lambda g, x: -g * (1 - x.sigmoid()) ** 3,
        ),
        ((12,),),
        "chain rule",
        "the numeric gradient plus 2 sigmoid(`x`) `output`: a term of the product rule",
    ),
    "a hinge with another margin": (
        ruled(
            lambda x: (1 - LABELS * x).clamp(min=0),
            lambda g, x: -g * LABELS * (LABELS * x < 0),
        ),
        ((24,),),
        "threshold",
        "unless the function is constant there; it is zero there",
    ),
}


@pytest.mark.parametrize("name", ASSORTED)
def test_mistakes_of_many_fields_have_their_name(name):
    function, shapes, rule, words = ASSORTED[name]
    first = covector.check(function, _drawn(*shapes)).worst.diagnoses[0]
    assert first.rule == rule
    assert words in first.evidence


def attention_pull(g, q, k, v):
    """The gradient of attention, with the sum in that of its softmax along the wrong axis."""
    size = q.shape[-1] ** 0.5
    weights = (q @ k.transpose(-1, -2) / size).softmax(-1)
    pulled_weights = g @ v.transpose(-1, -2)
    pulled_scores = weights * (pulled_weights - (pulled_weights * weights).sum(-2, keepdim=True)) / size
    return pulled_scores @ k, pulled_scores.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ g


def unflipped_pull(g, x, w):
    """The gradient of a convolution, whose kernel is not flipped for that of the image."""
    return F.conv2d(g, w.transpose(0, 1), padding="same"), torch.nn.grad.conv2d_weight(
        x, w.shape, g, padding=w.shape[-1] // 2
    )


LARGE = {
    "attention": (
        ruled(F.scaled_dot_product_attention, attention_pull),
        normal((16, 16), (16, 16), (16, 16)),
        "in the gradient for input `arg0`, elements interact along dimensions 0 and 1; in the function, "
        "along dimension 1",
    ),
    "attention of several heads": (
        ruled(F.scaled_dot_product_attention, attention_pull),
        normal((2, 3, 12, 8), (2, 3, 12, 8), (2, 3, 12, 8)),
        "elements interact along dimensions 2 and 3; in the function, along dimension 3",
    ),
    "convolution": (
        ruled(lambda x, w: F.conv2d(x, w, padding="same"), unflipped_pull),
        normal((2, 8, 16, 16), (9, 8, 5, 5)),
        "reads each window along dimensions 2 and 3 backwards",
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_functions_are_diagnosed_by_a_sample(name):
    function, inputs, said = LARGE[name]
    report = covector.check(function, inputs(0))
    first = diagnoses(report)[0]
    assert said in first.evidence
    assert "in a sample" in first.tested
