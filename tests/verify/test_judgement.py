"""No false accusation, and the right outcome for every kind of function, input and mistake."""

import dataclasses
import warnings
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import covector
from covector.errors import ArgumentTypeError, ArgumentValueError, GradcheckError, OptionError
from covector.verify.finding import Outcome
from covering import covered

pytestmark = pytest.mark.usefixtures("unexplained")

DOUBLE, SINGLE, COMPLEX = torch.float64, torch.float32, torch.complex128
PASSED, FAILED, INCONCLUSIVE = Outcome.PASSED, Outcome.FAILED, Outcome.INCONCLUSIVE
BETWEEN = "not differentiable here; the analytic value lies between the one-sided slopes"
MODES = {
    "reverse": {},
    "fast": {"fast_mode": True},
    "forward": {"check_forward_ad": True, "check_backward_ad": False},
    "fast forward": {"check_forward_ad": True, "check_backward_ad": False, "fast_mode": True},
}
each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())


def leaf(*values, dtype=DOUBLE):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def random(*shape, dtype=DOUBLE):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def report_of(function, inputs, *args, **keywords):
    """The report, and whether low precision was warned about or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", covector.errors.PrecisionWarning)
        return covector.check(function, inputs, *args, **keywords)


def custom(forward, backward, forward_rule=None):
    """A Function of one tensor from its rules: forward(x), backward(x, g), forward_rule(x, t)."""

    class Custom(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return forward(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return backward(ctx.saved_tensors[0], g)

        @staticmethod
        def jvp(ctx, t):
            return (forward_rule or backward)(ctx.saved_tensors[0], t)

    return Custom.apply


def doubled(function):
    """The same values with derivatives twice as large."""
    return lambda *args: (lambda y: 2 * y - y.detach())(function(*args))


# Scales.

FAR = {
    "1e10": (lambda x: x.sin() * 0 + x / 3, (leaf(1e10, -3e10, 7e9),)),
    "square at 1e10": (lambda x: x * x, (leaf(1e10, -3e10),)),
    "log at 1e10": (torch.log, (leaf(1e10, 2e10),)),
    "sqrt at 1e10": (torch.sqrt, (leaf(1e10, 2e10),)),
    "log at 1e-7": (torch.log, (leaf(1e-7, 3e-7),)),
    "sqrt at 1e-7": (torch.sqrt, (leaf(1e-7, 3e-7),)),
    "reciprocal at 1e-7": (torch.reciprocal, (leaf(1e-7, -3e-7),)),
    "log at 1e-12": (torch.log, (leaf(1e-12, 5e-12),)),
    "sqrt at 1e-12": (torch.sqrt, (leaf(1e-12, 5e-12),)),
    "reciprocal at 1e-12": (torch.reciprocal, (leaf(1e-12, -2e-12),)),
    "x log x at 1e-12": (lambda x: x * x.log(), (leaf(1e-12, 1e-3),)),
    "mixture, log": (torch.log, (leaf(1e10, 1e-7, 1.0, 1e-12),)),
    "mixture, logs that mix": (
        lambda x: x.log().sum() * torch.ones(2, dtype=DOUBLE),
        (leaf(1e10, 1e-7, 1.0),),
    ),
    "mixture, product": (lambda x, y: x * y, (leaf(1e10, 1e-12), leaf(1e-7, 1e6))),
    "mixture, quotient": (lambda x, y: x / y, (leaf(1e3, 1e-3), leaf(1e-5, 1e6))),
    "norm of tiny": (lambda x: x.norm(), (leaf(3e-8, -4e-8),)),
    "1e8 sin": (lambda x: 1e8 * x.sin(), (leaf(0.3, -2.0, 5.0),)),
    "1e-8 sin": (lambda x: 1e-8 * x.sin(), (leaf(0.3, -2.0, 5.0),)),
    "1e8 sin, summed": (lambda x: 1e8 * x.sin().sum(), (leaf(0.3, -2.0, 5.0),)),
    "large constant": (lambda x: 1e6 + x.sin(), (leaf(0.3, -2.0),)),
    "larger constant": (lambda x: 1e8 + x.sin(), (leaf(0.3, -2.0),)),
    "outputs of all sizes": (
        lambda x: x.sin() * torch.tensor([1e9, 1.0, 1e-9]).double(),
        (leaf(0.3, 1.0, 2.0),),
    ),
    "steep": (lambda x: (200 * x).sin(), (leaf(0.3, 1.0),)),
    "exp of 30": (torch.exp, (leaf(30.0, -30.0),)),
    "tanh saturated": (torch.tanh, (leaf(20.0, -20.0, 0.1),)),
    "softplus far": (F.softplus, (leaf(50.0, -50.0, 0.0),)),
}


@pytest.mark.parametrize(("function", "inputs"), FAR.values(), ids=FAR.keys())
@each_mode
def test_scales_do_not_accuse(function, inputs, mode):
    """Correct gradients pass at 1e10, 1e-7, 1e-12, at mixtures, and with ill-scaled outputs."""
    report = report_of(function, inputs, **mode)
    assert report.outcome is PASSED, str(report)


# Where a factor of two is a matter of more than atol, it has to be found at any scale.
BELOW_ATOL = ("1e-8 sin", "tanh saturated", "log at 1e10", "sqrt at 1e10")
FOUND = [name for name in FAR if name not in BELOW_ATOL]


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("fast", [False, True])
def test_scales_do_not_hide(name, fast):
    """The same functions with twice the gradient fail."""
    function, inputs = FAR[name]
    report = report_of(doubled(function), inputs, fast_mode=fast)
    assert report.outcome is FAILED, str(report)
    assert report.worst.mismatches


def test_large_fast_mode_over_scales():
    """Fast mode with many entries of many sizes: right passes, one wrong one is found."""
    x = torch.logspace(-6, 6, 3000, dtype=DOUBLE).requires_grad_()
    assert report_of(torch.log, x, fast_mode=True).outcome is PASSED
    wrong = custom(torch.log, lambda x, g: g / x * (1 + 0.5 * (torch.arange(x.shape[-1]) == 2000)))
    report = report_of(wrong, x, fast_mode=True)
    assert report.outcome is FAILED, str(report)
    assert any("[2000]" in str(m.entry) for m in report.worst.mismatches), str(report)


# Low precision.

WEIGHT = torch.linspace(-1, 1, 12, dtype=SINGLE).reshape(3, 4)
mlp = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


class HalfInside(nn.Module):
    """A layer that keeps its weight in single precision, whatever it is given."""

    def forward(self, x):
        return x @ WEIGHT.T.to(x.dtype)


SINGLES = {
    "elementwise": (lambda x: x.sin() * x.exp(), (random(5, dtype=SINGLE),)),
    "division": (lambda x, y: x / (1 + y * y), (random(5, dtype=SINGLE), random(5, dtype=SINGLE))),
    "matmul": (torch.mm, (random(3, 4, dtype=SINGLE), random(4, 2, dtype=SINGLE))),
    "large matmul": (torch.mm, (random(4, 60, dtype=SINGLE), random(60, 3, dtype=SINGLE))),
    "softmax": (lambda x: F.softmax(x, -1), (random(3, 5, dtype=SINGLE),)),
    "log_softmax": (lambda x: F.log_softmax(x, -1), (random(3, 5, dtype=SINGLE),)),
    "mlp by arguments": (
        lambda x, w, v: torch.tanh(x @ w) @ v,
        (random(2, 3, dtype=SINGLE), random(3, 8, dtype=SINGLE), random(8, 2, dtype=SINGLE)),
    ),
    "argument that is not differentiated": (lambda x, w: x @ w.T, (random(2, 4, dtype=SINGLE), WEIGHT)),
    "cross entropy": (F.cross_entropy, (random(4, 3, dtype=SINGLE), torch.tensor([0, 2, 1, 1]))),
    "complex64": (lambda z: z * z.exp(), (random(3, dtype=torch.complex64),)),
    "layer norm": (lambda x: F.layer_norm(x, (6,)), (random(3, 6, dtype=SINGLE),)),
    "variance of far numbers": (lambda x: (x - x.mean()) ** 2, (leaf(100.0, 101.0, 102.5, dtype=SINGLE),)),
}


@pytest.mark.parametrize(("function", "inputs"), SINGLES.values(), ids=SINGLES.keys())
@each_mode
def test_single_precision_that_is_right_passes(function, inputs, mode):
    """Where the function takes float64, it is differenced in float64; no warning is given."""
    report = covector.check(function, inputs, **mode)
    assert report.outcome is PASSED, str(report)


COARSE = {
    "cast inside": (lambda x: x.float().sin(), (random(4),)),
    "cast inside, float32": (lambda x: x.float().sin(), (random(4, dtype=SINGLE),)),
    "captured weight": (lambda x: x @ WEIGHT.T, (random(2, 4, dtype=SINGLE),)),
    "captured module": (mlp, (random(2, 4, dtype=SINGLE),)),
    "bfloat16": (lambda x: x.sin(), (random(4, dtype=torch.bfloat16),)),
    "bfloat16 matmul": (torch.mm, (random(3, 4, dtype=torch.bfloat16), random(4, 2, dtype=torch.bfloat16))),
    "half": (lambda x: x * x, (random(4, dtype=torch.float16),)),
    "cast to bfloat16 inside": (lambda x: x.bfloat16().sin(), (random(4),)),
    "cast to complex half inside": (lambda x: x.chalf(), (random(4),)),
    "cast to half and back": (lambda x: x.half().sin().double(), (random(4),)),
    "cast to float and back": (lambda x: x.float().exp().double(), (random(4),)),
    "bfloat16 with captured weight": (
        lambda x: x @ WEIGHT.T.bfloat16(),
        (random(2, 4, dtype=torch.bfloat16),),
    ),
    "bfloat16 softmax": (lambda x: x.softmax(-1), (random(2, 5, dtype=torch.bfloat16),)),
    "sum of a thousand": (
        lambda x: x.float().sum() + 1000 * x.float()[0].sin(),
        (random(40, dtype=SINGLE),),
    ),
    "far float32": (lambda x: x.float() ** 2, (leaf(1e4, 3e5, dtype=SINGLE),)),
    "tiny float32": (lambda x: x.float().log(), (leaf(1e-6, 3e-5, dtype=SINGLE),)),
}


@pytest.mark.parametrize(("function", "inputs"), COARSE.values(), ids=COARSE.keys())
@each_mode
@pytest.mark.usefixtures("explained")
def test_precision_that_does_not_suffice_is_no_failure(function, inputs, mode):
    """Float32-only functions and half precision: passed or inconclusive, never failed."""
    report = report_of(function, inputs, **mode)
    assert report.outcome in (PASSED, INCONCLUSIVE), str(report)
    if report.outcome is INCONCLUSIVE:
        assert report.worst.summary
        assert "float64" in report.worst.diagnoses[0].look, str(report)


@pytest.mark.parametrize("seed", range(20))
@each_mode
def test_rounded_points_accuse_nobody(seed, mode):
    """In bfloat16 a step is off by a large share of it, also where terms cancel and the output is small."""
    torch.manual_seed(seed)
    weight, x = torch.randn(3, 4).bfloat16(), torch.randn(2, 4).bfloat16().requires_grad_()
    assert report_of(lambda x: x @ weight.T, (x,), **mode).outcome in (PASSED, INCONCLUSIVE)


@pytest.mark.parametrize("name", [n for n in SINGLES if n != "argument that is not differentiated"])
@pytest.mark.parametrize("fast", [False, True])
def test_single_precision_that_is_wrong_fails(name, fast):
    """A factor of two is seen in float32."""
    function, inputs = SINGLES[name]
    report = report_of(doubled(function), inputs, fast_mode=fast)
    assert report.outcome is FAILED, str(report)


@pytest.mark.parametrize(
    "name",
    ["cast inside", "cast inside, float32", "captured weight", "captured module", "cast to float and back"],
)
def test_float32_only_that_is_wrong_fails(name):
    """A factor of two is seen through the noise of float32, too."""
    function, inputs = COARSE[name]
    report = report_of(doubled(function), inputs)
    assert report.outcome is FAILED, str(report)


def test_low_precision_is_warned_about():
    """A check that has to difference in float32 says so, once, naming the input."""
    with pytest.warns(covector.errors.PrecisionWarning, match="an input has less than double precision"):
        covector.check(lambda x: x.float() @ WEIGHT.T, random(2, 4, dtype=SINGLE))


# Kinks.

KINKS = {
    "relu": (torch.relu, (leaf(0.0, 1.0, -1.0),), "[0]"),
    "max with a tie": (lambda x: x.max(0).values, (leaf(2.0, 2.0, -1.0),), "["),
    "sort with a tie": (lambda x: x.sort().values[:2], (leaf(2.0, 2.0, 3.0),), "["),
    "where with a tie": (lambda x, y: torch.where(x >= y, x, y), (leaf(1.0, 2.0), leaf(1.0, 0.0)), "[0]"),
    "clamp at the bound": (lambda x: x.clamp(min=0.5), (leaf(0.5, 1.0),), "[0]"),
    "leaky": (lambda x: F.leaky_relu(x, 0.1), (leaf(1.0, 0.0),), "[1]"),
    "hardtanh": (F.hardtanh, (leaf(1.0, 0.0),), "[0]"),
    "scaled kink": (lambda x: 1e4 * torch.relu(x - 300.0), (leaf(300.0, 1.0),), "[0]"),
    "kink in a sum": (lambda x: x.relu().sum() + x.sin().sum(), (leaf(0.0, 1.0),), "[0]"),
    "relu of a product": (lambda x, w: torch.relu(x @ w), (leaf(1.0, -1.0), leaf(2.0, 2.0)), "["),
}


@pytest.mark.parametrize(("function", "inputs", "where"), KINKS.values(), ids=KINKS.keys())
@each_mode
def test_kinks_are_told_apart_from_bugs(function, inputs, where, mode):
    """As torch it fails, but says why and where; on request it passes."""
    report = report_of(function, inputs, **mode)
    assert report.outcome is FAILED, str(report)
    notes = {m.note for m in report.worst.mismatches}
    assert notes, str(report)
    assert all(note.startswith(BETWEEN) for note in notes), str(report)
    assert any(where in m.entry.input for m in report.worst.mismatches), str(report)
    assert report.worst.summary == "the function is not differentiable at this point"
    passed = report_of(function, inputs, kinks="pass", **mode)
    assert passed.outcome is PASSED, str(passed)


BALANCED = {
    "abs": (torch.abs, (leaf(2.0, 0.0, -1.0),)),
    "max with a tie": (lambda x: x.max(), (leaf(2.0, 2.0, -1.0),)),
    "amax with a tie": (lambda x: x.amax(), (leaf(1.0, 2.0, 2.0),)),
    "maximum with a tie": (torch.maximum, (leaf(1.0, 2.0), leaf(1.0, 0.0))),
    "norm at 0": (lambda x: x.norm(), (leaf(0.0, 0.0),)),
}


@pytest.mark.parametrize(("function", "inputs"), BALANCED.values(), ids=BALANCED.keys())
@each_mode
def test_kinks_where_the_mean_of_the_slopes_is_given(function, inputs, mode):
    """The abs at 0 and evenly shared ties give the central value, which passes here as it does in torch."""
    assert torch.autograd.gradcheck(function, inputs)
    assert report_of(function, inputs, **mode).outcome is PASSED


@each_mode
@pytest.mark.parametrize("kinks", ["fail", "pass"])
def test_a_kink_is_no_excuse(mode, kinks):
    """A value outside the slopes at a kink fails, whatever is asked for."""
    wrong = custom(torch.relu, lambda x, g: g * torch.where(x > 0, 1.0, torch.where(x == 0, 3.0, 0.0)))
    report = report_of(wrong, leaf(0.0, 1.0, -2.0), kinks=kinks, **mode)
    assert report.outcome is FAILED, str(report)
    assert not any(
        m.note.startswith("not differentiable") and BETWEEN in m.note for m in report.worst.mismatches
    )


def kinked(factor):
    """A relu with a gradient that is wrong by a factor where x > 1.5."""
    return custom(torch.relu, lambda x, g: g * (x > 0) * torch.where(x > 1.5, factor, 1.0))


@pytest.mark.parametrize("size", [2, 30, 40, 100])
@pytest.mark.parametrize("factor", [1.1, 3.0])
@each_mode
def test_passing_kinks_hide_no_bug(size, factor, mode):
    """Every entry but one at a kink, more of them than are named, and that one wrong."""
    x = torch.zeros(size, dtype=DOUBLE)
    x[-1] = 2.0
    right = report_of(kinked(1.0), x.clone().requires_grad_(), kinks="pass", **mode)
    assert right.outcome is PASSED, str(right)
    report = report_of(kinked(factor), x.clone().requires_grad_(), kinks="pass", **mode)
    assert report.outcome is FAILED, str(report)
    assert any(f"[{size - 1}]" in m.entry.input for m in report.worst.mismatches), str(report)


@each_mode
def test_passing_kinks_of_one_column_hide_no_wrong_entry_of_it(mode):
    """More rows of one column at a kink than are judged at once, and one more that is wrong."""
    wrong = custom(torch.sin, lambda x, g: 1.1 * g * x.cos())
    function = lambda x: torch.cat([torch.relu(x).expand(12), wrong(x)])
    report = report_of(function, leaf(0.0), kinks="pass", **mode)
    assert report.outcome is FAILED, str(report)
    assert any("[12]" in m.entry.output for m in report.worst.mismatches), str(report)


@each_mode
def test_a_passing_kink_hides_no_missing_entry(mode):
    """One output, a steep kink in one input, and a derivative that is missing for another."""
    x = leaf(0.0, 0.3)
    function = lambda x: 1e3 * torch.relu(x[0]) + 5 * custom(torch.sin, lambda x, g: 0 * g)(x[1])
    report = report_of(function, x, kinks="pass", **mode)
    assert report.outcome is FAILED, str(report)
    assert any("[1]" in m.entry.input for m in report.worst.mismatches), str(report)


def test_jumps_are_not_kinks():
    """At a jump no slope exists; a gradient of zero is not called right by kinks="pass"."""
    report = report_of(lambda x: torch.floor(x) + 0 * x, leaf(1.0, 0.5), kinks="pass")
    assert report.outcome is not PASSED, str(report)


# Domains.

DOMAINS = {
    "sqrt at 0": (torch.sqrt, (leaf(0.0, 1.0),), "[0]"),
    "log at 0": (torch.log, (leaf(1.0, 0.0),), "[1]"),
    "log of a negative": (torch.log, (leaf(-1.0, 2.0),), "[0]"),
    "reciprocal at 0": (torch.reciprocal, (leaf(1.0, 2.0, 0.0),), "[2]"),
    "asin beyond 1": (torch.asin, (leaf(0.5, 1.5),), "[1]"),
    "norm at 0": (lambda x: x.log().sum(), (leaf(0.5, -1.0),), "[1]"),
}


@pytest.mark.parametrize(("function", "inputs", "where"), DOMAINS.values(), ids=DOMAINS.keys())
@each_mode
def test_outside_the_domain(function, inputs, where, mode):
    """NaN and infinity are named as that, with the entry, and never compared."""
    report = report_of(function, inputs, **mode)
    assert report.outcome in (FAILED, INCONCLUSIVE), str(report)
    assert "outside the domain at entries" in report.worst.summary, str(report)
    assert any(where in m.entry.input for m in report.worst.mismatches), str(report)
    with pytest.raises(GradcheckError, match="outside the domain"):
        covector.gradcheck(function, inputs, **mode)


@pytest.mark.usefixtures("explained")
def test_a_nan_gradient_of_a_smooth_function_is_a_failure():
    """Only the derivative is NaN: that is wrong, not a matter of the domain."""
    wrong = custom(torch.sin, lambda x, g: g * torch.where(x > 0, x.cos(), torch.nan))
    for mode in MODES.values():
        report = report_of(wrong, leaf(1.0, -1.0), **mode)
        assert report.outcome is FAILED, str(report)
        assert any("[1]" in m.entry.input for m in report.worst.mismatches), str(report)
        assert "not finite" in report.worst.mismatches[0].note, str(report)


def test_the_trap_of_where_is_a_failure():
    """A NaN from the branch that was not taken: the function is smooth there, its backward is wrong."""
    function = lambda x: torch.where(x > 0, x.sqrt(), 0 * x)
    for mode in (MODES["reverse"], MODES["fast"]):
        report = report_of(function, leaf(-1.0, 4.0), **mode)
        assert report.outcome is FAILED, str(report)
        assert "not finite" in report.worst.mismatches[0].note, str(report)


def test_a_bug_beside_a_domain_is_found():
    """An entry outside the domain does not hide a wrong one elsewhere."""
    wrong = custom(torch.sqrt, lambda x, g: g / (2 * x.sqrt()) * torch.where(x > 3, 1.5, 1.0))
    for mode in MODES.values():
        report = report_of(wrong, leaf(-1.0, 4.0), **mode)
        assert report.outcome is FAILED, str(report)


@pytest.mark.parametrize("size", [6, 300])
def test_a_bug_beside_a_column_at_the_border_of_its_domain(size):
    """What can be computed is judged before what cannot: the runs that judging may take are few."""
    wrong = custom(torch.sin, lambda x, g: g * x.cos() * torch.where(x == x[3], 1.1, 1.0))
    point = torch.linspace(0.3, 0.9, size, dtype=DOUBLE)
    point[1] = 0.0
    for mode in (MODES["reverse"], MODES["fast"]):
        report = report_of(lambda x: wrong(x) + x[1:2].sqrt(), point.clone().requires_grad_(), **mode)
        assert report.outcome is FAILED, str(report)
        assert report.worst.mismatches[0].column == 3, str(report)


@pytest.mark.parametrize("mode", [{}, {"check_forward_ad": True}])
def test_infinite_values_that_do_not_move(mode):
    """An output that is -inf whatever the input (a mask) does not disturb the others."""
    mask = torch.tensor([True, False, False])
    report = report_of(lambda x: x.masked_fill(mask, -torch.inf).softmax(0), random(3), **mode)
    assert report.outcome is PASSED, str(report)


# Closures.


def test_parameters_of_a_captured_module():
    """Pass and fail like torch, exhaustive and fast."""
    module = nn.Linear(3, 2, dtype=DOUBLE)
    x = torch.randn(4, 3, dtype=DOUBLE)
    parameters = tuple(module.parameters())
    right, wrong = (lambda *p: module(x).sin()), (lambda *p: doubled(module)(x))
    for fast in (False, True):
        assert torch.autograd.gradcheck(right, parameters, fast_mode=fast)
        assert report_of(right, parameters, fast_mode=fast).outcome is PASSED
        assert not torch.autograd.gradcheck(wrong, parameters, fast_mode=fast, raise_exception=False)
        report = report_of(wrong, parameters, fast_mode=fast)
        assert report.outcome is FAILED, str(report)
        assert "draws random" not in str(report)


def test_captured_beside_given():
    """One input is captured, another is given: both are checked."""
    w, x = random(3), random(3)
    assert report_of(lambda x, _: x * w, (x, w)).outcome is PASSED
    assert report_of(lambda x, _: x * doubled(torch.sin)(w), (x, w)).outcome is FAILED
    assert report_of(lambda x, _: doubled(torch.sin)(x) * w, (x, w)).outcome is FAILED


def test_captured_through_a_detach():
    """A function of captured inputs whose graph was cut is not taken for a constant."""
    w = random(3)
    torch_says = torch.autograd.gradcheck(lambda _: w.detach() * 2, w, raise_exception=False)
    assert torch_says is False
    assert report_of(lambda _: w.detach() * 2, w).outcome is FAILED


def test_captured_and_given_with_one_of_them_cut():
    """The graph leads to the argument only, the values come from the captured one too."""
    w = random(3)
    torch_says = torch.autograd.gradcheck(lambda x: x * w.detach(), w, raise_exception=False)
    assert torch_says is False
    assert report_of(lambda x: x * w.detach(), w).outcome is FAILED


def test_a_constant_from_outside_is_no_closure():
    """A captured tensor that requires grad but is not an input stays a constant."""
    w = random(3)
    assert report_of(lambda x: x * w, random(3)).outcome is PASSED


# Outputs.


@each_mode
def test_outputs_of_which_some_have_no_derivative(mode):
    """Integers, detached tensors, None and plain numbers beside a differentiable output."""
    x = random(4)
    functions = [
        lambda x: (x.detach() * 3, x * 2),
        lambda x: (x * 2, x.detach() * 3),
        lambda x: (x.argmax(), x.sin()),
        lambda x: x.sort(),
        lambda x: (x.sin(), x > 0),
        lambda x: (None, x.sin(), None),
        lambda x: [x.sin(), 3.0, "name"],
        lambda x: {"loss": x.sin().sum(), "count": 3, "nothing": None, "index": x.argmax()},
    ]
    for function in functions:
        report = report_of(function, x, **mode)
        assert report.outcome is PASSED, str(report)


def test_no_differentiable_output():
    """Constant functions pass, others that lost their graph fail; integers alone pass."""
    x = leaf(0.3, 0.7)
    assert report_of(lambda x: torch.ones(3, dtype=DOUBLE), x).outcome is PASSED
    assert report_of(lambda x: x.argmax(), x).outcome is PASSED
    assert report_of(lambda x: x.detach() * 0 + 1, x).outcome is PASSED
    assert report_of(lambda x: (), x).outcome is PASSED
    for mode in MODES.values():
        report = report_of(lambda x: x.detach() * 3, x, **mode)
        assert report.outcome is FAILED, str(report)
        assert "no output requires grad" in report.worst.summary


def test_an_input_that_is_returned():
    """The identity, and a view, and an input that is not used."""
    x, y = random(3), random(2, 2)
    for mode in MODES.values():
        assert report_of(lambda x: x, x, **mode).outcome is PASSED
        assert report_of(lambda x, y: (x, y.T), (x, y), **mode).outcome is PASSED
        assert report_of(lambda x, y: x.sin(), (x, y), **mode).outcome is PASSED
        assert report_of(lambda x, y: y[0], (x, y), **mode).outcome is PASSED


# Inputs.


@dataclasses.dataclass
class Point:
    """A dataclass that torch's registry knows."""

    x: torch.Tensor
    y: torch.Tensor


torch.utils._pytree.register_dataclass(Point)


def test_trees():
    """Lists, dicts, dataclasses: checked, and named as the user would write them."""
    x, y = random(3), random(3)
    cases = [
        (lambda p: p["a"].sin() * p["b"], ({"a": x, "b": y},), "p['a']"),
        (lambda p: [p[0].sin() * p[1]], ([x, y],), "p[0]"),
        (lambda p: Point(p.x.sin() * p.y, p.x), (Point(x, y),), "p.x"),
        (lambda p: {"out": p["a"][0].sin() * p["b"]["c"]}, ({"a": [x], "b": {"c": y}},), "p['a'][0]"),
    ]
    for function, inputs, name in cases:
        assert report_of(function, inputs).outcome is PASSED

        def wrong(p, function=function):
            return torch.utils._pytree.tree_map(lambda t: 2 * t - t.detach(), function(p))

        report = report_of(wrong, inputs)
        assert report.outcome is FAILED
        assert any(m.entry.input.startswith(name) for m in report.worst.mismatches), str(report)


def test_a_single_tree_as_inputs():
    """In place of the tuple, a dict is one argument, a list is the arguments, as in torch."""
    x, y = random(3), random(3)
    assert report_of(lambda p: p["a"] * p["b"], {"a": x, "b": y}).outcome is PASSED
    assert report_of(lambda a, b: a * b, [x, y]).outcome is PASSED


class Steep(torch.autograd.Function):
    """Wrong in one entry, beside entries that are hard to difference."""

    @staticmethod
    def forward(ctx, x, rate, place, factor):
        ctx.save_for_backward(x, rate)
        ctx.wrong = (place, factor)
        return (rate * x).sin()

    @staticmethod
    def backward(ctx, g):
        x, rate = ctx.saved_tensors
        place, factor = ctx.wrong
        scale = torch.ones_like(x)
        scale[place] = factor
        return g * rate * (rate * x).cos() * scale, None, None, None


@pytest.mark.parametrize("hard", [1e3, 1e4, 1e5])
@pytest.mark.parametrize("factor", [1.01, 1.5, -1.0])
def test_fast_mode_is_not_deafened_by_a_steep_entry(hard, factor):
    """One entry with a large error of its difference does not raise the threshold for the others."""
    x = torch.linspace(0.5, 1.5, 1500, dtype=DOUBLE).requires_grad_()
    rate = torch.ones(1500, dtype=DOUBLE)
    rate[3] = hard
    assert report_of(lambda x: Steep.apply(x, rate, 1000, 1.0), x, fast_mode=True).outcome is PASSED
    report = report_of(lambda x: Steep.apply(x, rate, 1000, factor), x, fast_mode=True)
    assert report.outcome is FAILED, str(report)
    assert any("[1000]" in m.entry.input for m in report.worst.mismatches), str(report)


@pytest.mark.parametrize("large", [1e4, 1e7, 1e10])
def test_fast_mode_is_not_deafened_by_a_large_output(large):
    """One output with a large rounding error does not raise the threshold for the others."""
    x = torch.linspace(0.5, 1.5, 1500, dtype=DOUBLE)
    x[3] = large
    rule = lambda x, g: 2 * x * g * torch.where(torch.arange(x.shape[-1]) == 1000, 1.1, 1.0)
    right = custom(torch.square, lambda x, g: 2 * x * g)
    assert report_of(right, x.requires_grad_(), fast_mode=True).outcome is PASSED
    report = report_of(custom(torch.square, rule), x, fast_mode=True)
    assert report.outcome is FAILED, str(report)
    assert any("[1000]" in m.entry.input for m in report.worst.mismatches), str(report)


def test_kwargs_argnums_argnames():
    """Which arguments are checked can be said, instead of by requires_grad."""
    x, y = torch.randn(3, dtype=DOUBLE), torch.randn(3, dtype=DOUBLE)

    def f(x, y, *, scale=1.0, shift=None):
        return x.sin() * doubled(torch.sin)(y) * scale + (0 if shift is None else shift)

    assert report_of(f, (x, y), argnums=0).outcome is PASSED
    assert report_of(f, (x, y), argnums=1).outcome is FAILED
    assert report_of(f, (x, y), argnums=(0, 1)).outcome is FAILED
    assert report_of(f, (x, y), argnames="x").outcome is PASSED
    assert report_of(f, (x, y), {"scale": 3.0, "shift": y}, argnames=("x", "shift")).outcome is PASSED
    assert report_of(f, (x, y), {"shift": y}, argnames="shift").outcome is PASSED
    assert report_of(f, (x,), {"y": y}, argnames="y").outcome is FAILED
    assert not x.requires_grad
    report = report_of(f, (x.clone().requires_grad_(), y), {"shift": y.clone().requires_grad_()})
    assert report.outcome is PASSED
    assert report.inputs == ("x", "shift")


SHAPES = {
    "scalar": (torch.sin, (torch.tensor(0.3, dtype=DOUBLE, requires_grad=True),)),
    "empty": (torch.sin, (random(0),)),
    "empty beside full": (lambda x, y: x.sum() + y.sin(), (random(0, 3), random(2))),
    "empty output": (lambda x: x[:0], (random(3),)),
    "size one": (torch.exp, (random(1),)),
    "size one in three dimensions": (lambda x: x.sum(0), (random(1, 1, 1),)),
    "mixed dtypes": (lambda x, z: x * z, (random(3), random(3, dtype=COMPLEX))),
    "mixed precision": (lambda x, y: x.double() * y, (random(3, dtype=SINGLE), random(3))),
    "not contiguous": (lambda x: x.sin().cumsum(0), (torch.randn(4, 6, dtype=DOUBLE).T.requires_grad_(),)),
    "strided": (torch.exp, (torch.randn(9, dtype=DOUBLE)[::2].requires_grad_(),)),
    "expanded with size one": (torch.exp, (torch.randn(1, dtype=DOUBLE).expand(1, 1).requires_grad_(),)),
    "conjugated": (torch.sin, (torch.randn(3, dtype=COMPLEX).conj().requires_grad_(),)),
    "not a leaf": (torch.sin, (random(3) * 2,)),
    "parameter": (torch.sin, (nn.Parameter(torch.randn(3, dtype=DOUBLE)),)),
    "others pass through": (
        lambda x, n, name, index, none: x[index] * n if name == "a" and none is None else None,
        (random(4), 3, "a", torch.tensor([0, 2]), None),
    ),
    "float that needs no grad": (lambda x, y: x * y.log(), (random(3), torch.full((3,), 2.0).double())),
    "the same tensor twice": (lambda x, y: x * y.sin(), (lambda t: (t, t))(random(3))),
    "several outputs and inputs": (lambda x, y: (x @ y, y @ x, x.sum()), (random(2, 3), random(3, 2))),
}


@pytest.mark.parametrize(("function", "inputs"), SHAPES.values(), ids=SHAPES.keys())
@each_mode
def test_inputs_of_every_shape(function, inputs, mode):
    """Scalars, empties, views, mixtures, and what is passed through."""
    report = report_of(function, inputs, **mode)
    assert report.outcome is PASSED, str(report)


class Tagged(torch.Tensor):
    """A tensor subclass without behaviour of its own."""


def test_tensor_subclass():
    """The function gets what the caller gave: a subclass stays one."""
    x = torch.randn(3, dtype=DOUBLE).as_subclass(Tagged).requires_grad_()
    kinds = set()

    def function(x):
        kinds.add(type(x))
        return x.sin() * x

    assert report_of(function, x).outcome is PASSED
    assert kinds == {Tagged}
    assert report_of(doubled(torch.sin), x).outcome is FAILED
    assert report_of(function, x, check_forward_ad=True).outcome is PASSED


@pytest.mark.parametrize("fast", [False, True])
def test_mkldnn(fast):
    """An mkldnn input, which is float32 only: torch passes this with wider tolerances."""
    x = torch.rand(2, 3, dtype=SINGLE).to_mkldnn().requires_grad_()
    keywords = {"atol": 1e-1, "rtol": 1e-1, "eps": 1e-2, "check_batched_grad": False}
    assert torch.autograd.gradcheck(lambda x: x.to_dense() ** 2, x, **keywords)
    assert report_of(lambda x: x.to_dense() ** 2, x, fast_mode=fast, **keywords).outcome is PASSED
    assert report_of(lambda x: x.to_dense() ** 2, x, fast_mode=fast).outcome in (PASSED, INCONCLUSIVE)
    wrong = lambda x: doubled(torch.square)(x.to_dense())
    assert report_of(wrong, x, fast_mode=fast, **keywords).outcome is FAILED


# Complex numbers.


def holds(function, dtype):
    x = torch.randn(3, dtype=dtype).requires_grad_()
    return function, (x,)


COMPLEXES = {
    "real to complex": holds(lambda x: torch.complex(x.sin(), x**2), DOUBLE),
    "complex to real": holds(lambda z: z.abs(), COMPLEX),
    "real part": holds(lambda z: z.real * z.imag, COMPLEX),
    "holomorphic": holds(lambda z: z.exp() * z**2, COMPLEX),
    "not holomorphic": holds(lambda z: z * z.conj() + z.conj() ** 2, COMPLEX),
    "angle": holds(lambda z: z.angle(), COMPLEX),
    "fft": holds(torch.fft.fft, COMPLEX),
    "real fft": holds(torch.fft.rfft, DOUBLE),
    "several outputs": holds(lambda z: (z.real, z.conj(), z.abs()), COMPLEX),
    "scalar": (lambda z: z**3, (torch.tensor(0.3 + 1j, dtype=COMPLEX, requires_grad=True),)),
    "inner product": (
        lambda a, b: torch.vdot(a, b),
        (torch.randn(3, dtype=COMPLEX).requires_grad_(), torch.randn(3, dtype=COMPLEX).requires_grad_()),
    ),
}


@pytest.mark.parametrize(("function", "inputs"), COMPLEXES.values(), ids=COMPLEXES.keys())
@each_mode
def test_complex_functions(function, inputs, mode):
    """Right ones pass, with twice the derivative they fail."""
    assert report_of(function, inputs, **mode).outcome is PASSED
    wrong = lambda *args: torch.utils._pytree.tree_map(lambda t: 2 * t - t.detach(), function(*args))
    report = report_of(wrong, inputs, **mode)
    # A dual tensor that is detached keeps no tangent, so forward mode sees the factor too.
    assert report.outcome is FAILED, str(report)


@each_mode
def test_missing_conjugate(mode):
    """A backward of z**2 without the conjugate, a forward rule with one too many: named by its part."""
    right = custom(torch.square, lambda z, g: 2 * z.conj() * g, lambda z, t: 2 * z * t)
    wrong = custom(torch.square, lambda z, g: 2 * z * g, lambda z, t: 2 * z.conj() * t)
    z = torch.randn(3, dtype=COMPLEX).requires_grad_()
    assert report_of(right, z, **mode).outcome is PASSED
    report = report_of(wrong, z, **mode)
    assert report.outcome is FAILED, str(report)
    parts = {m.entry.input.rpartition(".")[2] for m in report.worst.mismatches}
    assert parts <= {"real", "imag"}
    assert parts


# Functions that are not functions.


def test_randomness_is_reported_as_that():
    """Dropout, and a drawn factor."""
    for function in (lambda x: F.dropout(x, 0.5), lambda x: x * torch.rand(40, dtype=DOUBLE)):
        for mode in MODES.values():
            report = report_of(function, random(40), **mode)
            assert report.outcome is FAILED
            assert "draws random numbers" in report.worst.summary, str(report)
            assert report.worst.check == "purity"


def test_seeded_randomness_is_a_function():
    """A function that seeds its own generator, or forks it, is pure."""

    def seeded(x):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return x * torch.rand(5, dtype=DOUBLE)

    for mode in MODES.values():
        assert report_of(seeded, random(5), **mode).outcome is PASSED


def test_mutation_is_reported_as_that():
    """Writing to the input, in place, with or without a graph."""

    def under_no_grad(x):
        with torch.no_grad():
            x.mul_(2)
        return x.sin()

    for function in (under_no_grad, lambda x: x.data.add_(1).sin() + x):
        report = report_of(function, random(5))
        assert report.outcome is FAILED
        assert "changes its input" in report.worst.summary, str(report)


def test_state_is_reported_as_that():
    """A counter inside, and a buffer that moves."""
    count = [0]

    def counts(x):
        count[0] += 1
        return x * count[0]

    report = report_of(counts, random(5))
    assert report.outcome is FAILED
    assert "not a function of its inputs" in report.worst.summary, str(report)
    assert "Jacobian" not in str(report)


@pytest.mark.parametrize("runs", [1, 2, 3, 5])
@each_mode
def test_state_that_shows_late(runs, mode):
    """A function that changes after a few runs: passed if it was not run so often, else reported as that."""
    count = [0]

    def late(x):
        count[0] += 1
        return x.sin() * (2.0 if count[0] > runs else 1.0)

    report = report_of(late, random(3), **mode)
    assert report.outcome is PASSED or report.worst.check == "purity", str(report)


def test_a_backward_that_is_not_deterministic():
    """Its own check, with the spread; nondet_tol allows it."""
    noisy = custom(torch.sin, lambda x, g: x.cos() * g + g * 1e-7 * torch.rand_like(x))
    report = report_of(noisy, random(5))
    assert report.outcome is FAILED
    assert any(f.check == "determinism" and f.outcome is FAILED for f in report.findings), str(report)
    assert report_of(noisy, random(5), nondet_tol=1e-5).outcome is PASSED


# Size.


@pytest.mark.parametrize("place", [0, 7, 12345, 19999])
def test_one_wrong_entry_of_twenty_thousand(place):
    """Fast mode finds it and names it; the correct twin passes."""
    x = torch.randn(20000, dtype=DOUBLE).requires_grad_()
    factor = torch.ones(20000, dtype=DOUBLE)
    factor[place] = 1.1
    right = custom(torch.sin, lambda x, g: g * x.cos())
    wrong = custom(torch.sin, lambda x, g: g * x.cos() * factor)
    assert report_of(right, x, fast_mode=True).outcome is PASSED
    report = report_of(wrong, x, fast_mode=True)
    assert report.outcome is FAILED
    assert any(f"[{place}]" in m.entry.input for m in report.worst.mismatches), str(report)
    assert "random direction" in report.method


FACTORS = [-1.0, 1.01, 0.0]


@pytest.mark.parametrize(
    ("seed", "factor"),
    covered(product(range(3), FACTORS), lambda seed, factor: FACTORS.index(factor) == seed),
)
def test_one_wrong_entry_of_two_thousand_in_both_modes(seed, factor):
    """Both modes give the same verdict, on a function that mixes its inputs, too."""
    x = torch.linspace(0.5, 2.5, 2000, dtype=DOUBLE).requires_grad_()
    place = 1234
    rule = lambda x, g: 2 * x * g * torch.where(torch.arange(x.shape[-1]) == place, factor, 1.0)
    for function in (custom(torch.square, rule), lambda x: custom(torch.square, rule)(x).roll(3) * 2):
        for fast in (True, False):
            report = report_of(function, x, fast_mode=fast, seed=seed)
            assert report.outcome is FAILED, str(report)
            assert any("[1234]" in m.entry.input for m in report.worst.mismatches), str(report)


# All kinds of code.


class Cube(torch.autograd.Function):
    """By numpy, without a rule for vmap or forward mode."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.power(x.detach().numpy(), 3))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class CubeTwice(Cube):
    @staticmethod
    def backward(ctx, g):
        return 2 * Cube.backward(ctx, g)


def branches(x):
    if x.sum() > 0:
        return x.sin()
    return x.cos()


def iterates(x):
    while x.norm().item() < 10:
        x = x * 2
    return x


class Root(torch.autograd.Function):
    """A root by Newton's method, differentiated implicitly; the loop's length depends on the data."""

    @staticmethod
    def forward(ctx, a):
        y = a.clone()
        while float((y * y - a).abs().max()) > 1e-14:
            y = (y + a / y) / 2
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g / (2 * ctx.saved_tensors[0])


CODE = {
    "branches": (branches, (leaf(0.4, 0.8),)),
    "the other branch": (branches, (leaf(-0.4, -0.8),)),
    "item": (lambda x: x * x.sum().item() ** 0 + x.sin(), (random(3),)),
    "iterates": (iterates, (leaf(0.4, 0.8),)),
    "numpy": (Cube.apply, (random(4),)),
    "numpy, dense": (lambda x: Cube.apply(x).cumsum(0), (random(4),)),
    "root": (Root.apply, (leaf(0.5, 2.0, 9.0),)),
    "compiled": (torch.compile(lambda x: (x.sin() * x).sum(), backend="eager"), (random(3),)),
    "module": (nn.Sequential(nn.Linear(3, 4, dtype=DOUBLE), nn.Tanh()), (random(2, 3),)),
    "checkpointed": (
        lambda x: torch.utils.checkpoint.checkpoint(lambda x: x.sin() * x, x, use_reentrant=False),
        (random(3),),
    ),
    "in place on a copy": (lambda x: x.clone().mul_(2).sin_(), (random(3),)),
    "no_grad inside": (lambda x: x * (torch.no_grad()(torch.ones_like)(x)), (random(3),)),
    "python loop": (lambda x: sum(t**2 for t in x), (random(3),)),
    "linear algebra": (lambda x: torch.linalg.solve(x @ x.T + torch.eye(3).double(), x), (random(3, 3),)),
    "index_put": (lambda x: torch.zeros(4, dtype=DOUBLE).index_put((torch.tensor([1, 3]),), x), (random(2),)),
    "functools.partial": (__import__("functools").partial(torch.sum, dim=0), (random(2, 3),)),
    "builtin": (torch.matmul, (random(2, 3), random(3))),
    "grad inside": (lambda x: covector.grad(lambda x: (x**3).sum())(x), (random(3),)),
    "torch.func inside": (lambda x: torch.func.vmap(torch.sin)(x), (random(3),)),
}


@pytest.mark.parametrize(("function", "inputs"), CODE.values(), ids=CODE.keys())
@pytest.mark.parametrize("fast", [False, True])
def test_all_kinds_of_code(function, inputs, fast):
    """Data-dependent control flow, .item(), numpy, no vmap, compiled, modules: the right ones pass."""
    report = report_of(function, inputs, fast_mode=fast)
    assert report.outcome is PASSED, str(report)


@pytest.mark.parametrize("name", [name for name in CODE if name != "no_grad inside"])
def test_all_kinds_of_code_that_are_wrong(name):
    """The same with twice the derivative."""
    function, inputs = CODE[name]
    report = report_of(doubled(function), inputs)
    assert report.outcome is FAILED, str(report)
    assert report.worst.mismatches, str(report)


@pytest.mark.usefixtures("explained")
def test_a_large_function_without_vmap_in_fast_mode():
    """Probing and narrowing down work by a loop, too."""
    x = random(100)
    assert report_of(Cube.apply, x, fast_mode=True).outcome is PASSED
    report = report_of(CubeTwice.apply, x, fast_mode=True)
    assert report.outcome is FAILED
    assert "returns 2.000 x the numeric gradient" in report.worst.diagnoses[0].evidence


def test_a_forward_rule_that_is_missing_is_unsupported():
    """A Function without jvp: the report names it, and the reverse mode's verdict stands beside it."""
    for keywords in ({}, {"fast_mode": True}, {"check_undefined_grad": False}):
        report = report_of(Cube.apply, random(3), check_forward_ad=True, **keywords)
        assert report.outcome is Outcome.UNSUPPORTED, str(report)
        assert {f.check: f.outcome for f in report.findings}["reverse mode"] is PASSED
        assert "Cube" in str(report)
    assert report_of(CubeTwice.apply, random(3), check_forward_ad=True).outcome is FAILED


def test_an_output_whose_shape_depends_on_the_value():
    """Said as that; False, not an exception, on request."""
    x = leaf(1.0, 2.0)
    function = lambda x: x.sum().expand(2 if x[0] > 1.0 else 3)
    report = report_of(function, x)
    assert report.outcome is FAILED, str(report)
    assert "shape" in str(report), str(report)
    assert covector.gradcheck(function, x, raise_exception=False) is False


def test_an_exception_of_the_functions_own():
    """What the function raises on the first run is what the caller gets."""

    class OwnError(RuntimeError):
        pass

    def raises(x):
        raise OwnError("mine")

    with pytest.raises(OwnError, match="mine"):
        covector.gradcheck(raises, random(3))
    with pytest.raises(OwnError, match="mine"):
        covector.gradcheck(raises, random(3), raise_exception=False)


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_backward_that_raises(kind):
    """A failing backward is a failed check that carries the text; torch lets the exception through."""

    def fails(x, g):
        raise kind("not today")

    for fast in (False, True):
        report = report_of(custom(torch.sin, fails), random(40), fast_mode=fast)
        assert report.outcome is FAILED, str(report)
        assert "not today" in str(report)


# Wrong calls: our class is an instance of what torch raises.


def same_mistake(function, inputs, verb="gradcheck", **keywords):
    """The exceptions of torch and of covector for the same call."""
    raised = []
    for library in (torch.autograd, covector):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            getattr(library, verb)(function, inputs, **keywords)
        raised.append(caught.value)
    return raised


MISTAKES = {
    "no input requires grad": (
        torch.sin,
        (torch.ones(3, dtype=DOUBLE),),
        {},
        ArgumentValueError,
        "requires grad",
    ),
    "a number": (
        torch.sin,
        (1.0,),
        {},
        ArgumentValueError,
        "is float. Pass a tensor that requires grad, such as torch.tensor(1.0, dtype=torch.float64, "
        "requires_grad=True).",
    ),
    "integers only": (
        torch.neg,
        (torch.ones(3, dtype=torch.int64),),
        {},
        ArgumentValueError,
        "requires grad",
    ),
    "no inputs": (lambda: None, (), {}, ArgumentValueError, "there are no inputs"),
    "overlapping memory": (
        torch.sin,
        (torch.ones(1, dtype=DOUBLE).expand(3).requires_grad_(),),
        {},
        ArgumentValueError,
        "share memory",
    ),
    "numbers that are nowhere": (
        torch.sin,
        (torch.ones(3, device="meta", requires_grad=True),),
        {},
        ArgumentTypeError,
        "is a meta tensor",
    ),
    "nothing to check": (
        torch.sin,
        (random(3),),
        {"check_backward_ad": False},
        OptionError,
        "nothing to check",
    ),
    "batched without reverse": (
        torch.sin,
        (random(3),),
        {"check_backward_ad": False, "check_forward_ad": True, "check_batched_grad": True},
        OptionError,
        "check_batched_grad needs check_backward_ad",
    ),
    "batched forward without forward": (
        torch.sin,
        (random(3),),
        {"check_batched_forward_grad": True},
        OptionError,
        "check_batched_forward_grad needs check_forward_ad",
    ),
    "not callable": (3, (random(3),), {}, ArgumentTypeError, "must be a function"),
}


@pytest.mark.parametrize(
    ("function", "inputs", "keywords", "kind", "text"), MISTAKES.values(), ids=MISTAKES.keys()
)
def test_wrong_calls(function, inputs, keywords, kind, text):
    """Our class, which is also torch's, with or without raise_exception."""
    theirs, ours = same_mistake(function, inputs, **keywords)
    assert type(ours) is kind
    assert isinstance(ours, type(theirs)), (type(ours).__mro__, type(theirs))
    assert text in str(ours)
    assert str(ours).startswith("gradcheck")
    with pytest.raises(kind):
        covector.gradcheck(function, inputs, raise_exception=False, **keywords)


SECOND = {
    "nothing to check": {"check_rev_over_rev": False},
    "batched without reverse": {
        "check_rev_over_rev": False,
        "check_fwd_over_rev": True,
        "check_batched_grad": True,
        "check_undefined_grad": False,
    },
}


@pytest.mark.parametrize("keywords", SECOND.values(), ids=SECOND.keys())
def test_wrong_calls_of_the_second_order(keywords):
    """As for the first order, named after gradgradcheck."""
    theirs, ours = same_mistake(torch.sin, (random(3),), "gradgradcheck", **keywords)
    assert isinstance(ours, OptionError)
    assert isinstance(ours, type(theirs))
    assert str(ours).startswith("gradgradcheck")


def test_the_kinks_keyword_is_checked():
    """A word that is neither of the two."""
    with pytest.raises(ArgumentValueError, match="kinks must be 'fail' or 'pass'"):
        covector.check(torch.sin, random(3), kinks="maybe")


def test_what_does_not_require_grad_is_said():
    """The message names the inputs that were given, so that the one meant can be found."""
    with pytest.raises(ArgumentValueError, match="no input requires grad") as caught:
        covector.gradcheck(
            lambda weight, bias: weight + bias, (torch.ones(2).double(), torch.ones(2).double())
        )
    assert "weight" in str(caught.value)
    assert "bias" in str(caught.value)


def test_a_gradcheck_error_is_a_runtime_error_with_a_report():
    """Code written for torch catches it; the report is data."""
    with pytest.raises(RuntimeError) as caught:
        covector.gradcheck(doubled(torch.sin), random(3))
    assert isinstance(caught.value, GradcheckError)
    assert caught.value.report.outcome is FAILED
    assert not caught.value.report
    assert caught.value.report.to_dict()["outcome"] == "failed"


def test_a_relative_tolerance_below_that_of_shared_cells():
    """One group of columns for all: an error of 5e-8 is not within a tolerance of 1e-9."""
    x = torch.linspace(0.5, 1.5, 80, dtype=DOUBLE).requires_grad_()

    class Cubed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return g * 3 * ctx.saved_tensors[0] ** 2 * (1 + 5e-8)

    assert report_of(Cubed.apply, x, rtol=1e-6, atol=0.0).outcome is PASSED
    report = report_of(Cubed.apply, x, rtol=1e-9, atol=0.0)
    assert report.outcome is FAILED
    assert report.worst.check == "reverse mode"


class Refusing(torch.autograd.Function):
    """The square root, which raises outside its domain; its backward is off by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        if (x < 0).any():
            raise ValueError("outside the domain")
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.sqrt()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return ctx.factor * g / (2 * x.sqrt()), None


@pytest.mark.parametrize("at", [0.001, 0.5])
def test_a_wide_step_that_the_function_refuses(at):
    """The second look takes wide steps; one that leaves the domain says nothing about the derivative."""
    x = torch.tensor([at, 0.7], dtype=torch.float64, requires_grad=True)
    assert covector.check(lambda x: Refusing.apply(x, 1.0), x).outcome is PASSED
    report = covector.check(lambda x: Refusing.apply(x, 2.0), x)
    assert report.outcome is FAILED
    assert report.worst.mismatches[0].numeric == pytest.approx(0.5 / at**0.5)


def test_a_near_step_that_the_function_refuses():
    """Where the look leaves the domain, shorter steps are taken."""
    x = torch.tensor([1e-9, 0.7], dtype=torch.float64, requires_grad=True)
    assert covector.check(lambda x: Refusing.apply(x, 1.0), x).outcome is PASSED
    assert covector.check(lambda x: Refusing.apply(x, 2.0), x).outcome is FAILED
    at_the_edge = torch.tensor([0.0, 0.7], dtype=torch.float64, requires_grad=True)
    report = covector.check(lambda x: Refusing.apply(x, 1.0), at_the_edge)
    assert report.outcome is INCONCLUSIVE
    assert "the function raised ValueError: outside the domain" in str(report)


def _tall(rows, columns, scale, error):
    """A linear map whose derivative is off in one entry that is zero."""
    generator = torch.Generator().manual_seed(0)
    matrix = scale * torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    matrix[7, 2] = 0
    wrong = torch.zeros_like(matrix)
    wrong[7, 2] = error
    return lambda x: matrix @ x + (wrong @ x - (wrong @ x).detach())


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "scale", "error"),
    [
        (400, 60, 1e4, 0.1),
        pytest.param(5000, 100, 1, 2e-5, marks=pytest.mark.sweep),
        (400, 60, 1, 2e-5),
        (200, 90, 1e2, 1e-4),
        (3000, 10, 1e4, 1.0),
    ],
)
def test_one_small_wrong_entry_among_large_ones(rows, columns, scale, error, fast_mode):
    """Sums over a column do not hide what one entry is not allowed."""
    x = torch.randn(columns, dtype=torch.float64, requires_grad=True)
    for seed in range(3):
        function = _tall(rows, columns, scale, error)
        report = covector.check(function, x, fast_mode=fast_mode, seed=seed)
        assert report.outcome is FAILED
        right = covector.check(_tall(rows, columns, scale, 0.0), x, fast_mode=fast_mode, seed=seed)
        assert right.outcome is PASSED


@pytest.mark.parametrize(("diagonal", "missing"), [(1e6, 9e-2), (1e4, 9e-4), (1e3, 9e-5)])
def test_a_small_entry_that_the_pattern_lacks_beside_a_large_one(diagonal, missing):
    """In a cell that two columns share, the large entry does not hide the small one."""
    x = torch.zeros(300, dtype=torch.float64, requires_grad=True)
    lacking = torch.zeros(300, 300, dtype=torch.float64)
    lacking[5, 9] = missing
    report = covector.check(lambda x: diagonal * x + (lacking @ x).detach(), x)
    assert report.outcome is FAILED
    assert str(report.worst.mismatches[0].entry) == "d output[5] / d x[9]"


class Thresholded(torch.autograd.Function):
    """The sine, whose backward drops small cotangents."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(g.abs() < 0.5, 0.0, g) * x.cos()


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize("size", [6, 300])
def test_a_backward_that_does_not_scale_with_its_cotangent(size, fast_mode):
    """A cotangent that is many times smaller has to give a gradient that is as many times smaller."""
    x = torch.linspace(-1, 1, size, dtype=torch.float64).requires_grad_()
    report = covector.check(Thresholded.apply, x, fast_mode=fast_mode)
    assert report.outcome is FAILED
    assert [f.check for f in report.findings if f.outcome is FAILED] == ["linearity"]
    assert "for a cotangent of numbers around 1e-06" in report.worst.summary


@pytest.mark.parametrize("fast_mode", [False, True])
def test_state_that_drifts_from_call_to_call(fast_mode):
    """All points of a batch see the same state, so the batch is compared with the run before it."""
    calls = []

    def drifting(x):
        calls.append(None)
        return x.sin() + 1e-4 * len(calls)

    x = torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()
    report = covector.check(drifting, x, fast_mode=fast_mode)
    assert report.worst.check == "purity"


class Elsewhere(torch.autograd.Function):
    """Batched, it is another function than singly: the same at zero, not next to it."""

    @staticmethod
    def forward(x):
        return x.sin() + 0.05 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()

    @staticmethod
    def vmap(info, in_dims, x):
        return x.sin(), in_dims[0]


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_batching_rule_does_not_hide_a_wrong_derivative(fast_mode):
    """A custom Function may have a batching rule of its own: one of its points is evaluated singly too."""
    x = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    assert covector.check(Elsewhere.apply, x, fast_mode=fast_mode).outcome is FAILED


class TwoScales(torch.autograd.Function):
    """A large map and a small one, of which the small one's gradient is missing."""

    @staticmethod
    def forward(ctx, a, b):
        return 1e4 * a, 0.01 * b

    @staticmethod
    def backward(ctx, ga, gb):
        return 1e4 * ga, 0 * gb


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_low_precision_a_large_output_does_not_excuse_a_small_one(dtype):
    """What rounding may do to a derivative is in proportion to its own row."""
    a, b = (torch.ones(3, dtype=dtype, requires_grad=True) for _ in range(2))
    assert covector.check(TwoScales.apply, (a, b)).outcome is FAILED
    assert covector.check(lambda a, b: (1e4 * a, 0.01 * b), (a, b)).outcome is PASSED


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize("size", [5, 400])
def test_a_backward_that_returns_zeros_without_memory(size, fast_mode):
    """The gradient of sgn is a tensor that torch keeps no memory for."""
    x = torch.linspace(0.5, 1, size, dtype=torch.float64).requires_grad_()
    assert covector.check(torch.sgn, x, fast_mode=fast_mode).outcome is PASSED


def test_a_mistake_of_the_judge_is_not_blamed_on_the_derivative(monkeypatch):
    """Under test it is raised; else a wrong function would seem to be rejected for a reason."""
    monkeypatch.setattr("covector.verify.slopes._typical", None)
    with pytest.raises(TypeError, match="not callable"):
        covector.check(doubled(torch.sin), random(3))


def test_entries_beside_a_pole_are_not_listed_as_wrong():
    """The difference at a pole is no estimate, and tells nothing of other columns."""
    factors = torch.tensor([1.0, 1.0, 1.05, 1.0], dtype=DOUBLE)
    function = custom(torch.reciprocal, lambda x, g: -g / x**2 * factors)
    report = report_of(function, torch.tensor([1e-6, 1.0, -2.0, 3.0], dtype=DOUBLE, requires_grad=True))
    (only,) = report.worst.mismatches
    assert only.entry.input == "x[2]"


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("shape", [(16, 64, 40), (32, 128, 100)])
def test_a_large_product_in_single_precision_takes_few_runs(shape, fast):
    """Its rounding error is measured along the random cotangents, and no Jacobian is made."""
    rows, inner, columns = shape
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, inner, generator=generator)
        weight = torch.randn(inner, columns, generator=generator).requires_grad_()
        wrong = torch.ones(inner, columns)
        right = lambda w, x=x: custom(lambda w: x.to(w.dtype) @ w, lambda w, g: x.to(w.dtype).mT @ g)(w)
        report = report_of(right, weight, fast_mode=fast)
        assert report.outcome is PASSED
        assert report.evaluations < 40
        wrong[3, 5] = 1.05
        pull = lambda w, g, x=x: (x.to(w.dtype).mT @ g) * wrong.to(w.dtype)
        report = report_of(custom(lambda w, x=x: x.to(w.dtype) @ w, pull), weight, fast_mode=fast)
        assert report.outcome is FAILED
        assert "[3, 5]" in report.worst.mismatches[0].entry.input


@pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])
@pytest.mark.parametrize("first", [torch.abs, torch.clone], ids=["beside a kink", "alone"])
def test_a_bend_of_the_width_of_the_step_is_seen(first, fast):
    """The slope is 2 at the point, and 1 beyond 1e-6 of it."""
    bend = lambda t: t + 1e-6 * torch.tanh((t - 0.7) / 1e-6)
    function = custom(lambda x: torch.stack([first(x[0]), bend(x[1])]), lambda x, g: g.clone())
    x = torch.tensor([2e-8, 0.7], dtype=DOUBLE, requires_grad=True)
    report = report_of(function, x, fast_mode=fast)
    assert report.outcome is not PASSED, str(report)


@pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])
@pytest.mark.parametrize(
    ("offset", "width", "slope"), [(1e5, 1e-5, 0.05), (1e6, 1e-5, 0.2), (1e7, 1e-4, 0.2)]
)
def test_a_wave_beside_an_offset_is_not_stepped_over(offset, width, slope, fast):
    """Rounding asks for longer steps, but the slope at the usual one is known well enough to tell."""
    generator = torch.Generator().manual_seed(0)
    weights = 0.5 + torch.rand(40, generator=generator, dtype=DOUBLE)
    x = torch.randn(40, generator=generator, dtype=DOUBLE)
    wave = lambda z: slope * width * torch.sin((z[3] - x[3]) / width)
    wrong = report_of(
        lambda z: z @ weights + wave(z.detach()) + offset, x.clone().requires_grad_(), fast_mode=fast
    )
    assert wrong.outcome is FAILED, str(wrong)
    right = report_of(lambda z: z @ weights + wave(z) + offset, x.clone().requires_grad_(), fast_mode=fast)
    assert right.outcome is not FAILED, str(right)


def test_a_certainly_wrong_entry_decides_beside_an_undecided_one():
    """The root has no slope at zero, and takes most of the runs that judging may take."""
    factors = torch.tensor([1.0, 1.01, 1.0], dtype=DOUBLE)
    function = custom(lambda x: x * x.abs().sqrt(), lambda x, g: 1.5 * g * x.abs().sqrt() * factors)
    report = report_of(function, torch.tensor([0.0, 1.0, 2.0], dtype=DOUBLE, requires_grad=True))
    assert report.outcome is FAILED
    assert report.worst.mismatches[0].column == 1
