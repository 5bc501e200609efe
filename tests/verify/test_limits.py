"""What can still pass, and who can still be accused: the list at the end of docs/how-a-check-decides.md."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import covector
from covector.checks.arguments import arguments_of, caller_of
from covector.errors import PrecisionWarning
from covector.verify.finding import Outcome
from covector.verify.problem import Problem
from covector.verify.reverse import ReverseMap
from holes.table import at, drawn, leaves, ruled, too_much

both_modes = pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])


def passes(function, inputs, **keywords) -> bool:
    """What `gradcheck` says."""
    return covector.gradcheck(function, inputs, raise_exception=False, **keywords)


# What can pass


def hidden_from(cotangents: Tensor) -> Tensor:
    """A vector that is orthogonal to all of these, as long as one."""
    return torch.linalg.svd(cotangents)[2][-1]


def test_errors_that_cancel_along_every_cotangent_pass_for_that_seed_alone() -> None:
    """They have to be made for the cotangents of a seed; another seed shows them."""
    weight, (x,) = drawn(8, 3, seed=1), leaves((3,))()
    caller = caller_of("gradcheck", torch.sin)
    problem = Problem(caller_of("gradcheck", weight.matmul), arguments_of(caller, x))
    error = torch.zeros(8, 3, dtype=torch.float64)
    error[:, 1] = hidden_from(torch.from_numpy(ReverseMap(problem, 0).cotangents))
    wrong = ruled(lambda x: weight @ x, lambda g, x: g @ (weight + error))
    assert passes(wrong, x, seed=0)
    assert covector.check(wrong, x, seed=0, probes=0)
    assert not passes(wrong, x, seed=1)


@both_modes
def test_an_error_within_the_tolerance_passes(fast: bool) -> None:
    x = leaves((5,))()
    assert passes(lambda x: x.sin() + 5e-6 * (x - x.detach()), x, fast_mode=fast)
    assert not passes(lambda x: x.sin() + 5e-3 * (x - x.detach()), x, fast_mode=fast)


@both_modes
def test_a_cotangent_that_nobody_sent_may_be_treated_wrongly(fast: bool) -> None:
    """Larger than any that is sent; one thousand is large enough to be seen."""
    x = leaves((5,))()
    assert passes(ruled(torch.sin, lambda g, x: g.clamp(-1e6, 1e6) * x.cos()), x, fast_mode=fast)
    assert not passes(ruled(torch.sin, lambda g, x: g.clamp(-1e2, 1e2) * x.cos()), x, fast_mode=fast)
    negative = lambda g, x: g * x.cos() * (2.0 if bool((g < 0).all()) else 1.0)
    assert passes(ruled(torch.sin, negative), x, fast_mode=fast)
    along_one = lambda g, x: g * x.cos() * (2.0 if g.stride()[0] == 0 != g.stride()[1] else 1.0)
    assert passes(ruled(torch.sin, along_one), leaves((3, 4))(), fast_mode=fast)


def wrong_for_one_number(where: Callable[[Tensor], Tensor]):
    """The sine, with a backward that doubles cotangents of one number, if that stands in some places."""

    def pull(g: Tensor, x: Tensor) -> Tensor:
        return g * x.cos() * (2.0 if int(g.count_nonzero()) == int(where(g).count_nonzero()) == 1 else 1.0)

    return ruled(torch.sin, pull)


DIAGONAL = wrong_for_one_number(torch.diag)


@pytest.mark.parametrize("size", [3, 4, 9], ids=lambda size: f"{size} x {size}")
def test_in_fast_mode_one_number_in_another_place_may_be_treated_wrongly(size: int) -> None:
    """One is sent, beside the diagonal; exhaustively, up to 16 more."""
    x = leaves((size, size))()
    assert passes(DIAGONAL, x, fast_mode=True)
    report = covector.check(DIAGONAL, x)
    assert report.outcome is Outcome.FAILED
    assert "with one number that is not zero" in str(report)


def test_exhaustively_one_number_in_a_place_that_was_not_tried_may_be_treated_wrongly() -> None:
    """Two rows are left to others to tell about, within torch's number of pullbacks."""
    assert passes(wrong_for_one_number(lambda g: g[:1]), leaves((7,))())
    assert not passes(wrong_for_one_number(lambda g: g[2:3]), leaves((7,))())


class AsNeeded(torch.autograd.Function):
    """A product, with a backward that is wrong where only one of its gradients is needed."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g: Tensor):
        x, y = ctx.saved_tensors
        factor = 1.0 if all(ctx.needs_input_grad) else 2.0
        return factor * g * y, factor * g * x


@both_modes
def test_a_backward_that_asks_which_gradients_are_needed_is_asked_for_all(fast: bool) -> None:
    """What depends on one input alone is checked with the other as a constant."""
    x, y = leaves((3,), (3,))()
    assert passes(AsNeeded.apply, (x, y), fast_mode=fast)
    assert not passes(AsNeeded.apply, (x, y.detach()), fast_mode=fast)


class RightAtBothEnds(torch.autograd.Function):
    """The square, off in one entry; its rule for vmap makes up for that, but for the first and last point."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * g * x * torch.where(torch.arange(x.numel()) == 7, 1.1, 1.0)

    @staticmethod
    def vmap(info, dims, x: Tensor):
        x = x.movedim(dims[0], 0)
        y = x**2
        y[1:-1, 7] += 0.2 * x[0, 7] * (x[1:-1, 7] - x[0, 7])
        return y, 0


@both_modes
def test_a_batching_rule_that_is_wrong_in_the_midst_of_a_batch_hides_the_same_mistake(fast: bool) -> None:
    """What is known stands first and last in a batch; evaluations one by one do not ask the rule."""
    x = leaves((16,))()
    assert passes(RightAtBothEnds.apply, x, fast_mode=fast)
    one_by_one = lambda x: RightAtBothEnds.apply(x) if float(x.detach().sum()) else x
    assert not passes(one_by_one, x, fast_mode=fast)


@both_modes
def test_a_backward_that_asks_whether_its_cotangent_requires_grad_passes(fast: bool) -> None:
    """Under create_graph one is sent that does not: NumPy would refuse it, and take another pullback."""
    pull = lambda g, x: g * x.cos() * (2.0 if g.requires_grad else 1.0)
    assert passes(ruled(torch.sin, pull), leaves((5,))(), fast_mode=fast)


def doubled_if(odd: Callable[[Tensor], bool], factor: float = 1.5) -> Callable[..., Tensor]:
    """Twice the input, with a backward that is off by a factor for some cotangents."""
    return ruled(lambda x: 2 * x, lambda g, x: 2 * g * (factor if odd(g) else 1.0))


@both_modes
def test_ones_in_a_memory_of_their_own_may_be_treated_wrongly(fast: bool) -> None:
    """They are sent expanded, as the gradient of a sum is."""
    x = leaves((5,))()
    own = doubled_if(lambda g: g.is_contiguous() and bool((g == 1).all()))
    assert passes(own, x, fast_mode=fast)
    assert not passes(doubled_if(lambda g: bool((g == 1).all())), x, fast_mode=fast)


def test_in_fast_mode_cotangents_of_the_last_row_alone_may_be_treated_wrongly() -> None:
    """Rows one by one show it."""
    x = leaves((8, 5))()
    last = doubled_if(lambda g: bool((g[:-1] == 0).all()) and bool((g[-1] != 0).any()))
    assert passes(last, x, fast_mode=True)
    assert not passes(last, x)


class OffForNegative(torch.autograd.Function):
    """Twice the input, with a forward rule that is off where all tangents are negative."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        """Nothing is needed."""

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def jvp(ctx, t: Tensor) -> Tensor:
        return 3 * t if bool((t < 0).all()) else 2 * t


def test_a_forward_rule_that_is_off_for_tangents_that_nobody_pushed_passes() -> None:
    """All of them negative, of many numbers; one negative number alone shows it."""
    assert passes(OffForNegative.apply, leaves((12,))()[0], check_forward_ad=True)
    assert not passes(OffForNegative.apply, leaves((1,))()[0], check_forward_ad=True)


@both_modes
def test_an_output_without_a_graph_beside_others_is_not_looked_at(fast: bool) -> None:
    """As in torch: it may be meant that way. The report says so."""
    x = leaves((3,))()[0]
    report = covector.check(lambda x: (x.sin(), x.cos().detach()), x, fast_mode=fast)
    assert report
    assert "not of `output[1]`, which has no graph" in report.how


@both_modes
def test_a_backward_that_refuses_a_transposed_cotangent_passes(fast: bool) -> None:
    """It raises where it cannot be used; what takes such a cotangent and gives wrong numbers fails."""
    pull = lambda g, x: (g.contiguous() if 0 in g.stride() else g).view(-1).reshape(x.shape) * x.cos()
    assert passes(ruled(torch.sin, pull), leaves((3, 4))(), fast_mode=fast)


@both_modes
def test_a_backward_that_refuses_a_lazy_conjugate_passes(fast: bool) -> None:
    """It raises where it cannot be used; what takes such a cotangent and gives wrong numbers fails."""
    pull = lambda g, z: torch.view_as_complex(2 * torch.view_as_real(g.contiguous())) * z.conj()
    assert passes(ruled(torch.square, pull), leaves((3,), dtype=torch.complex128)(), fast_mode=fast)


@both_modes
def test_a_backward_that_is_wrong_at_one_run_alone_may_pass(fast: bool) -> None:
    """Here at a run that comes after the check."""
    runs = []

    def pull(g: Tensor, x: Tensor) -> Tensor:
        runs.append(g)
        return g * x.cos() * (2.0 if len(runs) == 1000 else 1.0)

    assert passes(ruled(torch.sin, pull), leaves((5,))(), fast_mode=fast)


def off_at(run: int, off: float):
    """The sine, with a backward that is off at one of its runs."""
    runs = []

    def pull(g: Tensor, x: Tensor) -> Tensor:
        runs.append(g)
        return g * x.cos() * (1 + off * (len(runs) == run))

    return ruled(torch.sin, pull)


def test_in_fast_mode_a_fault_between_two_runs_of_a_cotangent_may_pass() -> None:
    """Torch repeats its cotangent at once, here it comes again at the end; each misses something."""
    x, keywords = leaves((5,))(), {"raise_exception": False, "fast_mode": True}
    assert passes(off_at(2, 1e-9), x, fast_mode=True)
    assert not torch.autograd.gradcheck(off_at(2, 1e-9), x, **keywords)
    assert not passes(off_at(5, 1e-9), x, fast_mode=True)
    assert torch.autograd.gradcheck(off_at(5, 1e-9), x, **keywords)
    assert not passes(off_at(2, 1e-9), x)


def ripple(x: Tensor) -> Tensor:
    """A wave of period 2^-40, of which every step is a multiple; its slope at 0.5 is one."""
    return (2 * math.pi * 2.0**40 * x).sin() / (2 * math.pi * 2.0**40)


@both_modes
def test_what_looks_smooth_at_every_length_is_not_seen(fast: bool) -> None:
    """So the derivative of the line passes, and that of the line with its ripple is accused."""
    x = at(0.5)()
    assert passes(lambda x: x + ripple(x.detach()), x, fast_mode=fast)
    assert not passes(lambda x: x + ripple(x), x, fast_mode=fast)


def zigzag(x: Tensor, period: float) -> Tensor:
    """A wave of straight pieces with the slopes 1 and -1."""
    return ((x / period) - (x / period).round()).abs() * period


@both_modes
def test_a_narrow_zigzag_is_noise(fast: bool) -> None:
    """So its derivative may be forgotten; that of a wider one may not."""
    for period, forgotten in ((1e-8, True), (1e-5, False)):
        wrong = lambda x, period=period: x + 0.5 * zigzag(x.detach(), period)
        assert passes(wrong, at(0.3 + 0.2 * period)(), fast_mode=fast) is forgotten


@both_modes
def test_a_function_in_large_steps_may_have_a_derivative_of_zero(fast: bool) -> None:
    """It is flat at the point, whatever it is meant to be."""
    assert passes(lambda x: (x.sin() * 1e4).round() / 1e4, at(0.3, 0.7)(), fast_mode=fast)


@both_modes
def test_in_low_precision_what_rounding_could_do_passes(fast: bool) -> None:
    """Of a sine in bfloat16, a hundredth; a quarter is seen."""

    def wrong(factor: float):
        return lambda x: too_much(x.sin(), factor if x.dtype is torch.bfloat16 else 1.0)

    x = leaves((6,), dtype=torch.bfloat16)()
    assert passes(wrong(1.01), x, fast_mode=fast)
    assert not passes(wrong(1.25), x, fast_mode=fast)


@both_modes
def test_a_function_that_knows_the_very_tensor_of_the_caller(fast: bool) -> None:
    """It is given one that is like it in everything but its identity."""
    (x,) = leaves((5,))()
    known = {id(x)}
    assert passes(lambda x: too_much(x.sin(), 2.0 if id(x) in known else 1.0), x, fast_mode=fast)


# What can be accused, or stays undecided


def test_a_kink_at_the_point_is_no_derivative() -> None:
    """As in torch, it fails; `kinks="pass"` lets it pass."""
    x = at(0.0, 1.0)()
    assert not passes(torch.relu, x)
    assert passes(torch.relu, x, kinks="pass")


def in_steps(size: float, slope: float = 1.0):
    """A line that is rounded, with the derivative of the line."""
    return ruled(lambda x: (slope * x / size).round() * size, lambda g, x: slope * g)


@both_modes
def test_steps_that_are_too_large_for_the_tolerance_are_undecided(fast: bool) -> None:
    """What the longest stencil leaves of them is more than is allowed."""
    report = covector.check(in_steps(1e-4), at(0.3, 0.7)(), fast_mode=fast)
    assert report.outcome is Outcome.INCONCLUSIVE, str(report)
    assert passes(in_steps(1e-4), at(0.3, 0.7)(), fast_mode=fast, rtol=1e-2)


def test_steps_that_no_stencil_meets_accuse() -> None:
    """The function does not move within a tenth of the point."""
    x = at(0.3)()
    assert not passes(in_steps(1e-3, slope=1e-3), x)
    assert covector.check(in_steps(1e-3, slope=1e-3), x).outcome is Outcome.FAILED


def test_the_list_of_a_noisy_function_may_hold_right_entries() -> None:
    """The judged ones, which decide, are wrong; what noise puts off is counted among the rest."""
    weight = torch.randn(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def rounded(x: Tensor) -> Tensor:
        y = x.sin()
        value = y + (torch.round(y, decimals=8) - y).detach()
        return weight @ (value + 0.3 * (y - y.detach()) * (torch.arange(20) == 3))

    report = covector.check(rounded, torch.linspace(0.1, 1.2, 20, dtype=torch.float64, requires_grad=True))
    assert {entry.column for entry in report.worst.mismatches} == {3}
    assert report.worst.count > 20, str(report)


def half_way(x: Tensor) -> Tensor:
    """The root of y^3 + y = x by iterations that stop once y moves by less than 1e-3."""
    y, move = torch.zeros_like(x), torch.ones_like(x)
    while float(move.abs().max()) > 1e-3:
        move = 0.3 * (x - y**3 - y)
        y = y + move
    return y


def test_a_solver_that_stops_early_has_the_derivative_of_its_iterations() -> None:
    """Which is smooth, and not that of the solution."""
    slope_of_the_root = lambda g, x: g / (3 * half_way(x) ** 2 + 1)
    x = at(0.3)()
    assert covector.check(ruled(half_way, slope_of_the_root), x).outcome is Outcome.FAILED
    assert passes(half_way, x)


def tabulated(x: Tensor, spacing: float) -> Tensor:
    """The sine, by linear interpolation in a table."""
    below = (x / spacing).floor()
    share = x / spacing - below
    return (1 - share) * (below * spacing).sin() + share * ((below + 1) * spacing).sin()


def test_a_coarse_table_has_the_slopes_of_its_pieces() -> None:
    x = at(1.2003)()
    assert not passes(ruled(lambda x: tabulated(x, 0.01), lambda g, x: g * x.cos()), x)
    assert passes(ruled(lambda x: tabulated(x, 1e-4), lambda g, x: g * x.cos()), x)


def median_of_three(x: Tensor) -> Tensor:
    return 2 * x.median()


UNDECIDED = {
    "kinks on both sides": (median_of_three, at(0.5, 0.5 + 1e-12, 0.5 - 1e-12)),
    "an output too large for the tolerance": (lambda x: x.sin() + 1e14, leaves((3,))),
    "a function that is defined at the point alone": (
        lambda x: x.square() if float(x.detach().sum()) == 6.0 else x.nowhere,
        at(1.0, 2.0, 3.0),
    ),
}


@both_modes
@pytest.mark.parametrize("name", UNDECIDED)
def test_what_no_difference_can_tell_is_undecided(name: str, fast: bool) -> None:
    function, inputs = UNDECIDED[name]
    report = covector.check(function, inputs(), fast_mode=fast)
    assert report.outcome is Outcome.INCONCLUSIVE, str(report)


def test_of_many_numbers_with_large_values_fast_mode_leaves_the_outcome_open() -> None:
    """The rounding of the outputs hides what `atol` allows; a larger one settles it in a few runs."""
    x = torch.linspace(0.5, 1.5, 12_000, dtype=torch.float64, requires_grad=True)
    report = covector.check(lambda x: 1e6 * x.sin(), x, fast_mode=True)
    assert report.outcome is Outcome.INCONCLUSIVE
    settled = covector.check(lambda x: 1e6 * x.sin(), x, fast_mode=True, atol=1e-2)
    assert settled
    assert settled.evaluations < 10


def only_bfloat16(x: Tensor) -> Tensor:
    if x.dtype != torch.bfloat16:
        raise TypeError("expected bfloat16")
    return x.sin()


@both_modes
def test_bfloat16_that_takes_nothing_else_is_undecided(fast: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        report = covector.check(only_bfloat16, leaves((4,), dtype=torch.bfloat16)(), fast_mode=fast)
    assert report.outcome is Outcome.INCONCLUSIVE, str(report)


class Remembers:
    """The exponential, kept for as long as the input says that it is the same."""

    def __init__(self, key: Callable[[Tensor], object]) -> None:
        self._key, self._kept = key, (None, None)

    def __call__(self, x: Tensor) -> Tensor:
        if self._kept[0] != self._key(x):
            self._kept = self._key(x), x.exp()
        return 2 * self._kept[1]


@both_modes
def test_a_function_that_remembers_by_version_is_accused(fast: bool) -> None:
    """Its input is moved without a new version; one that compares numbers sees that."""
    x, keywords = leaves((3,))(), {"fast_mode": fast, "raise_exception": False}
    by_version, by_numbers = lambda x: (id(x), x._version), lambda x: x.tolist()
    assert not passes(Remembers(by_version), x, fast_mode=fast)
    assert not torch.autograd.gradcheck(Remembers(by_version), x, **keywords)
    assert passes(Remembers(by_numbers), x, fast_mode=fast)


class Secretive(Tensor):
    """A tensor that does not say whether it can be differentiated."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ == "is_floating_point":
            raise NotImplementedError("no answer")
        return super().__torch_function__(func, types, args, kwargs or {})


@both_modes
def test_a_subclass_that_refuses_to_say_its_dtype_cannot_be_checked(fast: bool) -> None:
    (x,) = leaves((3,))()
    with pytest.raises(NotImplementedError, match="no answer"):
        covector.gradcheck(torch.sin, x.detach().as_subclass(Secretive).requires_grad_(), fast_mode=fast)
    inside = lambda x: x.as_subclass(Secretive).sin().as_subclass(Tensor)
    assert passes(inside, x, fast_mode=fast)


def workspace(returned: Callable[[Tensor], Tensor]):
    """The sine, computed in memory that every call uses again."""
    memory = torch.zeros(4, dtype=torch.float64)
    return ruled(lambda x: returned(torch.sin(x, out=memory)), lambda g, x: g * x.cos())


@both_modes
def test_a_function_that_returns_a_view_of_its_workspace_is_rejected(fast: bool) -> None:
    x = leaves((4,))()
    report = covector.check(workspace(lambda y: y.view(4)), x, fast_mode=fast)
    assert report.outcome is Outcome.FAILED
    assert "view" in str(report)
    assert passes(workspace(Tensor.clone), x, fast_mode=fast)


@both_modes
def test_a_backward_that_refuses_an_expanded_cotangent_is_rejected(fast: bool) -> None:
    """Even if the program never sends one."""

    def pull(g: Tensor, x: Tensor) -> Tensor:
        if not g.is_contiguous():
            raise ValueError("expected a contiguous gradient")
        return g * x.cos()

    report = covector.check(ruled(torch.sin, pull), leaves((5,))(), fast_mode=fast)
    assert report.outcome is Outcome.FAILED
    assert "expanded" in report.worst.summary


@both_modes
@pytest.mark.parametrize("passing", [False, True], ids=["alone", "beside steps"])
def test_a_wave_of_the_size_of_another_columns_steps_can_pass(passing: bool, fast: bool) -> None:
    """The step that suits a column of steps is longer than the wave, and shows its mean slope, 1 for 1.3."""
    size, rate = 3e-6, 1e5
    wave = lambda t: t + 0.3 / rate * torch.sin(rate * (t - 1))
    steps = (lambda t: torch.round(t / size) * size) if passing else (lambda t: t.clone())
    function = ruled(lambda x: torch.stack([steps(x[0]), wave(x[1])]), lambda g, x: g.clone())
    x = torch.tensor([round(0.7 / size) * size, 1.0], dtype=torch.float64, requires_grad=True)
    assert passes(function, x, fast_mode=fast) is passing


@both_modes
def test_a_bump_beside_steps_can_pass(fast: bool) -> None:
    """Steps of 1e-8 hide the slope at the usual step; longer ones step over the bump, 1e-3 wide."""
    generator = torch.Generator().manual_seed(0)
    weights = 0.5 + torch.rand(40, generator=generator, dtype=torch.float64)
    x = torch.randn(40, generator=generator, dtype=torch.float64)
    smooth, off = lambda t: 4 * torch.sin(t @ weights / 4), lambda t: t[3] - x[3]
    bumpy = lambda t: smooth(t) + 0.2 * off(t) * torch.exp(-((off(t) / 1e-3) ** 2))
    slope = lambda g, t: g * (t @ weights / 4).cos() * weights
    stepped = ruled(lambda t: (bumpy(t) / 1e-8).round() * 1e-8, slope)
    assert passes(stepped, x.clone().requires_grad_(), fast_mode=fast)
    assert not passes(ruled(bumpy, slope), x.clone().requires_grad_(), fast_mode=fast)


@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
def test_a_backward_whose_solver_has_an_absolute_tolerance_is_not_linear(relative: bool) -> None:
    """A fixed point z = tanh(z / 4 + x): its backward sums a series up to a last term."""

    class FixedPoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            z = torch.zeros_like(x)
            for _ in range(60):
                z = (z / 4 + x).tanh()
            ctx.save_for_backward(1 - z * z)
            return z

        @staticmethod
        def backward(ctx, grad):
            (slope,) = ctx.saved_tensors
            term, total = grad, grad
            least = 1e-7 * float(grad.abs().max()) if relative else 1e-7
            while float((term := term * slope / 4).abs().max()) > least:
                total = total + term
            return total * slope

    x = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
    report = covector.check(FixedPoint.apply, x)
    assert torch.autograd.gradcheck(FixedPoint.apply, x)
    assert bool(report) is relative
    if not relative:
        assert {finding.check for finding in report.findings if finding.outcome == "failed"} == {"linearity"}
        assert "tolerance is absolute" in str(report)


@both_modes
def test_a_derivative_of_the_same_value_in_double_precision_may_belong_to_another_function(
    fast: bool,
) -> None:
    """In float32 it is another function, which has the same value at the point and another slope."""
    square = lambda x: x**2 if x.dtype == torch.float32 else x**3
    cubed = ruled(square, lambda g, x: 3 * g * x * x)
    assert passes(cubed, torch.ones(6, requires_grad=True), fast_mode=fast)
    assert not passes(cubed, torch.full((6,), 1.5, requires_grad=True), fast_mode=fast)


@both_modes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.filterwarnings("ignore::covector.errors.PrecisionWarning")
def test_a_function_that_computes_in_single_precision_is_inconclusive(dtype: torch.dtype, fast: bool) -> None:
    """Larger tolerances settle it, and let no wrong factor pass."""

    def squares(x: Tensor) -> Tensor:
        return (x.float() ** 2).sum()

    x, loose = torch.linspace(-2, 2, 50, dtype=dtype).requires_grad_(), {"atol": 1e-3, "rtol": 1e-2}
    assert covector.check(squares, x, fast_mode=fast).outcome is Outcome.INCONCLUSIVE
    assert passes(squares, x, fast_mode=fast, **loose)
    wrong = ruled(squares, lambda g, x: 2.2 * g * x)
    assert not passes(wrong, x, fast_mode=fast, **loose)
