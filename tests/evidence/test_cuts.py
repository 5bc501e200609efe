"""Where a derivative is lost: the line is named, and what is cut there can be held constant."""

import inspect

import numpy as np
import pytest
import torch

import covector
from covector.evidence.cuts import traced


def line_of(function, mark="# cut"):
    """The number of the marked line of a function."""
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    (found,) = [first + i for i, text in enumerate(lines) if mark in text]
    return found


def point(*shape):
    return torch.linspace(0.3, 1.7, int(np.prod(shape)), dtype=torch.float64).reshape(shape).requires_grad_()


def detached(x):
    return x * x.mean().detach()  # cut


def through_data(x):
    return x * x.exp().data  # cut


def through_a_number(x):
    return x * x.sum().item()  # cut


def through_numpy(x):
    return x * torch.from_numpy(np.sin(x.detach().numpy()))  # cut


def through_an_array(x):
    return x * torch.as_tensor(np.asarray(x.detach()) ** 2)  # cut


def through_a_list(x):
    return x * torch.tensor(x.tolist(), dtype=x.dtype)  # cut


def through_a_copy(x):
    return x * torch.tensor(x)  # cut


def through_a_parameter(x):
    return x * torch.nn.Parameter(x.exp())  # cut


def without_grad(x):
    with torch.no_grad():
        scale = x.square()  # cut
    return x * scale


def into_data(x):
    kept = torch.zeros_like(x)
    kept.data.add_(x)  # cut
    return x * kept


def into_a_buffer(x):
    kept = torch.zeros(x.shape, dtype=x.dtype)
    with torch.no_grad():
        kept[0] = 1.0
        kept.copy_(x)  # cut
    return x * kept


def inner_gradient(x):
    with torch.enable_grad():
        leaf = x * 1.0
        (slope,) = torch.autograd.grad((leaf**3).sum(), leaf)  # cut
    return x * slope


def in_a_loop(x):
    state = x
    for _ in range(3):
        state = state.sin() * state.max().detach()  # cut
    return state


def state_of_a_loop(x):
    state = torch.zeros((), dtype=x.dtype)  # which depends on no input when it is first detached
    for step in x:
        state = torch.tanh(step + 0.5 * state.detach())  # cut
    return state + x.sum()


def as_integers(x):
    return (x * 2**40).long().double() / 2**40 + x.sin()  # cut


LOSING = [
    detached,
    through_data,
    through_a_number,
    through_numpy,
    through_an_array,
    through_a_list,
    through_a_copy,
    through_a_parameter,
    without_grad,
    into_data,
    into_a_buffer,
    inner_gradient,
    in_a_loop,
    state_of_a_loop,
    as_integers,
]


@pytest.mark.parametrize("function", LOSING, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:To copy construct", "ignore:Converting a tensor")
class TestLost:
    def test_the_line_is_named(self, function):
        report = covector.check(function, point(4))
        (diagnosis,) = report.worst.diagnoses
        assert diagnosis.rule == "stop-gradient"
        assert f"test_cuts.py:{line_of(function)}" in diagnosis.evidence
        assert "held constant, differences agree" in diagnosis.evidence
        assert diagnosis.sure == "almost certain"

    def test_what_is_cut_can_be_held(self, function):
        report = covector.check(function, point(4), stop_gradients="constant")
        assert report, str(report)
        assert f"test_cuts.py:{line_of(function)}" in report.how

    def test_the_caller_is_left_alone(self, function):
        x = point(4)
        before = x.detach().clone()
        covector.check(function, x, stop_gradients="constant")
        assert torch.equal(x, before)
        assert x.grad is None


def test_a_mistake_behind_a_cut_that_is_meant_is_found():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0].cos()

    report = covector.check(
        lambda x: Doubled.apply(x) * x.mean().detach(), point(5), stop_gradients="constant"
    )
    assert [d.rule for d in report.worst.diagnoses] == ["factor"]


def test_a_straight_through_estimator_passes_if_it_is_declared():
    def rounded(x):
        return x + (x.round() - x).detach()

    assert not covector.check(rounded, point(5))
    assert covector.check(rounded, point(5), stop_gradients="constant")


def test_statistics_of_a_module_are_held():
    class Centred(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 2, dtype=torch.float64)

        def forward(self, x):
            y = self.layer(x)
            return y - y.mean(0).detach()

    assert not covector.check(Centred(), point(4, 3))
    assert covector.check(Centred(), point(4, 3), stop_gradients="constant")


def test_a_detach_that_changes_nothing_is_not_accused():
    """The largest exponent is subtracted and added again; the mistake is elsewhere."""

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 1.0 * x

        @staticmethod
        def backward(ctx, g):
            return 0.5 * g

    def stable(x):
        top = x.max().detach()
        return (Halved.apply(x) - top).exp().sum().log() + top

    (first, *_) = covector.check(stable, point(5)).worst.diagnoses
    assert first.rule == "factor"


def said_of(function):
    (first, *_) = covector.check(function, point(3, 4)).worst.diagnoses
    return first.evidence


def test_a_number_that_leaves_is_named_beside_another_cut_if_it_matters():
    def standardised(x):
        with torch.no_grad():
            mean = x.mean()
        return (x - mean) / x.std().item()

    said = said_of(standardised)
    assert "cut by `no_grad`" in said
    assert "cut by `item()`" in said
    assert "with what is cut held constant, differences agree" in said


def softmax(x, top):
    """The shift by `top` changes no value."""
    weights = (x - top).exp()
    return weights / weights.sum(-1, keepdim=True)


def test_a_cut_through_which_nothing_is_lost_is_not_named():
    """Beside one that loses something; the softmax does not depend on the largest element."""

    def beside(x):
        return softmax(x, x.amax(-1, keepdim=True).detach()) * x.mean().detach()

    assert said_of(beside).startswith("the derivative through `x.mean()` is cut by `detach()`")
    assert "amax" not in said_of(beside)


def test_a_cut_that_matters_only_where_another_is_held_is_not_named():
    """The largest element cancels in the function, and not where the sum is held constant."""

    def within(x):
        weights = (x - x.amax(-1, keepdim=True).detach()).exp()
        return weights / weights.sum(-1, keepdim=True).detach()

    assert said_of(within).startswith("the derivative through `weights.sum(-1, keepdim=True)` is cut")
    assert "amax" not in said_of(within)


def test_a_number_that_is_only_printed_is_not_named():
    seen = []

    def logged(x):
        seen.append(x.sum().item())
        return x - x.mean().detach()

    said = said_of(logged)
    assert "cut by `detach()`" in said
    assert "item" not in said


def test_what_only_the_shape_is_taken_of_is_no_cut():
    x = point(3)
    cuts = traced(lambda: x * torch.ones_like(x) + x.new_zeros(3) + x.new_tensor([1.0, 2.0, 3.0]))
    assert cuts.lines == ()


def test_an_index_of_an_integer_cast_is_not_accused():
    table = torch.arange(4.0, dtype=torch.float64)
    wrong = covector.check(lambda x: Doubled.apply(x) * table[x.long()], point(4)).worst.diagnoses[0]
    assert wrong.rule == "factor"


class Doubled(torch.autograd.Function):
    """The identity, with twice its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def test_a_decision_by_a_number_is_no_cut():
    def branching(x):
        return x.sin() if x.sum() > 0 else x.cos()

    assert covector.check(branching, point(3))
    assert covector.check(branching, point(3), stop_gradients="constant")


@pytest.mark.parametrize("door", [covector.check, covector.gradcheck, covector.gradgradcheck])
def test_an_unknown_word_is_refused(door):
    with pytest.raises(
        covector.errors.ArgumentValueError, match="stop_gradients must be 'fail' or 'constant'"
    ):
        door(torch.sin, point(3), stop_gradients="ignore")


@pytest.mark.parametrize("door", [covector.gradcheck, covector.gradgradcheck])
def test_cuts_that_are_meant_are_held_by_every_door(door):
    assert not door(detached, point(4), raise_exception=False)
    assert door(detached, point(4), stop_gradients="constant")


def twice(forward, backward):
    """A function whose backward is given what its forward returns beside the output."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y, kept = forward(x)
            ctx.save_for_backward(x, *kept)
            return y

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)

    return Twice.apply


def second(function, x, **keywords):
    """What is said about the second derivative of a function."""
    with pytest.raises(covector.GradcheckError) as caught:
        covector.gradgradcheck(function, x, **keywords)
    return caught.value.report.worst.diagnoses[0]


def whole(x):
    s = x * x  # cut
    return s * x, [s]


def in_part(x):
    e = x.exp()  # cut
    return x * e, [e]


def in_two_steps(x):
    centred = x - x.mean(0)
    inverse = centred.square().mean(0).rsqrt()  # cut
    return centred * inverse, [inverse, (centred * inverse).detach().clone()]


def normal_pull(g, x, inverse, normal):
    return inverse * (g - g.mean(0) - normal * (g * normal).mean(0))


SECOND = {
    whole: lambda g, x, s: 3 * s * g,
    in_part: lambda g, x, e: g * (e + x * e),
    in_two_steps: normal_pull,
}


class TestSavedIntermediates:
    @pytest.mark.parametrize("forward", SECOND, ids=lambda f: f.__name__)
    def test_what_forward_computes_and_backward_uses_is_named(self, forward):
        found = second(twice(forward, SECOND[forward]), point(4, 3) if forward is in_two_steps else point(5))
        assert found.rule == "saved intermediate"
        assert f"test_cuts.py:{line_of(forward)}" in found.evidence
        assert found.sure == "almost certain"

    def test_what_is_behind_other_operations(self):
        function = twice(whole, SECOND[whole])
        found = second(lambda x: (function(2 * x) + x.sin()).tanh(), point(5) / 5)
        assert found.rule == "saved intermediate"

    def test_an_attribute_of_the_context(self):
        class Kept(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                ctx.square = x.square()
                return ctx.square * x

            @staticmethod
            def backward(ctx, g):
                return g * (2 * ctx.square + ctx.saved_tensors[0].square())

        found = second(Kept.apply, point(5))
        assert found.rule == "saved intermediate"
        assert "`x.square()`" in found.evidence

    def test_a_cut_in_backward_is_named_by_its_line(self):
        def halved(g, x):
            return 3 * g * x * x.detach()  # cut

        function = twice(lambda x: (x**3, []), halved)
        found = second(function, point(5))
        assert found.rule == "stop-gradient"
        assert f"test_cuts.py:{line_of(halved)}" in found.evidence
        assert covector.gradgradcheck(function, point(5), stop_gradients="constant")

    def test_it_is_no_cut_that_is_meant(self):
        found = second(twice(whole, SECOND[whole]), point(5), stop_gradients="constant")
        assert found.rule == "saved intermediate"

    def test_what_is_saved_and_changes_nothing_is_not_accused(self):
        def masked(x):
            return x.sign() * x**3, [x.sign(), x.exp()]

        function = twice(masked, lambda g, x, sign, e: 3 * g * sign * x.square() + 0.0 * e)
        assert covector.gradgradcheck(function, point(5))
        doubled = second(lambda x: function(x) * Doubled.apply(x), point(5))
        assert "exp" not in doubled.evidence


def test_what_the_function_warns_about_is_said_at_its_own_line_alone(recwarn):
    """It is run again to find the cut, by a call of ours."""
    x = torch.linspace(1, 2, 5, dtype=torch.float64, requires_grad=True)
    report = covector.check(lambda x: x * torch.tensor(x).mean(), x)
    assert "is cut by `tensor()`" in str(report)
    assert {warning.filename for warning in recwarn} == {__file__}
