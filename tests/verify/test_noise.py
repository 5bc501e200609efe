"""What rounding, poles and long steps may not do: hide a wrong derivative, or accuse a right one."""

import warnings

import pytest
import torch
from torch import Tensor

import covector
from covector.errors import PrecisionWarning
from covector.verify.finding import Outcome

each_verdict = pytest.mark.parametrize(
    "keywords",
    [{"fast_mode": fast, "raise_exception": raising} for fast in (False, True) for raising in (False, True)],
    ids=lambda k: (
        f"{'fast' if k['fast_mode'] else 'exhaustive'}-{'raise' if k['raise_exception'] else 'bool'}"
    ),
)


def point(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def accepts(function, inputs, keywords) -> bool:
    try:
        return covector.gradcheck(function, inputs, **keywords)
    except covector.GradcheckError:
        return False


HIDDEN = {
    "ten too much, at 1e10": lambda x: x.sin() + 1e10 + 10 * (x - x.detach()),
    "no derivative, at 1e9": lambda x: x.sin().detach() + 1e9,
    "half a derivative, at 1e9": lambda x: x * x.detach() + 1e9,
    "a hundredth too much, at 1e6": lambda x: x.sin() + 1e6 + 0.01 * (x - x.detach()),
}


@each_verdict
@pytest.mark.parametrize("function", HIDDEN.values(), ids=HIDDEN.keys())
def test_a_large_output_hides_nothing(function, keywords):
    assert not accepts(function, point(0.3, 0.6, 0.9), keywords)


@each_verdict
@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6, 1e9])
def test_a_large_output_accuses_nobody(offset, keywords):
    assert accepts(lambda x: x.sin() + offset, point(0.3, 0.6, 0.9), keywords)


def test_an_output_too_large_for_any_step_is_inconclusive():
    assert covector.check(lambda x: x.sin() + 1e15, point(0.3, 0.6)).outcome is Outcome.INCONCLUSIVE


STEEP = {
    "next to the pole of a square": (lambda x: x**-2.0, (5e-8,)),
    "fast waves near zero": (lambda x: torch.sin(1 / x), (1e-5,)),
    "fast waves far from zero": (lambda x: torch.sin(1e4 * x), (150.0, 77.0, 33.0)),
    "a narrow bell": (lambda x: torch.exp(-((x * 1e7) ** 2)), (1e-7, 1.5e-7, 2e-7)),
    "next to the pole of a tangent": (torch.tan, (0.3, torch.pi / 2 - 1e-6)),
    "many poles": (lambda x: 1 / (x - 1e-4), tuple(1e-4 * k for k in (-2, -1, 0, 0.5, 3))),
}


@each_verdict
@pytest.mark.parametrize(("function", "values"), STEEP.values(), ids=STEEP.keys())
def test_steep_functions_are_not_accused(function, values, keywords):
    assert accepts(function, point(*values), keywords)


@pytest.mark.parametrize("size", [3, 150])
@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_narrow_bell_with_a_wrong_derivative_is_found(size, fast_mode):
    x = (1e-7 * torch.linspace(1, 2, size, dtype=torch.float64)).requires_grad_()
    wrong = lambda x: torch.exp(-((x * 1e7) ** 2)) + 1e5 * (x - x.detach())
    assert not covector.gradcheck(wrong, x, fast_mode=fast_mode, raise_exception=False)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_bfloat16_is_judged_the_same_in_both_modes(fast_mode):
    x = torch.randn(120, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        assert covector.check(torch.sin, x, fast_mode=fast_mode).outcome is not Outcome.FAILED
        assert covector.check(lambda x: x.softmax(0), x, fast_mode=fast_mode).outcome is not Outcome.FAILED


@pytest.mark.parametrize("fast_mode", [False, True])
def test_numbers_that_overflow_when_squared_raise_no_warning(fast_mode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert covector.gradcheck(lambda x: x * 1e-150, point(1e200, 3e200), fast_mode=fast_mode)
        assert covector.gradcheck(lambda x: 1e250 * x, point(1e-50, 3e-50), fast_mode=fast_mode)


def test_infinite_gradients_that_repeat_are_deterministic():
    report = covector.check(
        lambda x: x.sqrt() * torch.tensor([1.0, 0.0], dtype=torch.float64), point(0.0, 0.0)
    )
    assert report.outcome is Outcome.INCONCLUSIVE
    assert [f.check for f in report.findings if f.outcome is Outcome.FAILED] == []


@pytest.mark.parametrize("scale", [1e3, 1e4])
def test_fast_mode_takes_a_longer_step_where_outputs_are_large(scale):
    """One difference cannot show an entry of 1e-3 beside these; two longer ones can."""
    x = torch.linspace(0.5, 1.5, 100, dtype=torch.float64, requires_grad=True)
    matrix = torch.linspace(0.0, 0.02, 5_000, dtype=torch.float64).reshape(100, 50)

    def right(x):
        return scale * (matrix @ x[:50].exp()).sin() + 1e-3 * x[60]

    def wrong(x):
        return scale * (matrix @ x[:50].exp()).sin() + 1e-3 * x[60].detach()

    assert covector.gradcheck(right, x, fast_mode=True)
    assert not covector.gradcheck(wrong, x, fast_mode=True, raise_exception=False)


def test_a_verdict_alone_takes_no_more_runs_than_one_with_a_report():
    calls = []

    def doubled(x):
        calls.append(x)
        assert float(x.sum()) < 1e9  # not in a batch
        return x.detach() + x

    x = torch.tensor([1.25, 0.75], dtype=torch.float64, requires_grad=True)
    assert covector.gradcheck(doubled, x, raise_exception=False) is False
    briefly = len(calls)
    calls.clear()
    assert not covector.check(doubled, x)
    assert briefly <= len(calls) <= 2 * 2 + 2 + 60


SMALL = {
    "relu next to its kink": (torch.relu, 1e-8),
    "relu on its flat side": (torch.relu, -1e-9),
    "a kink beside a slope": (lambda x: x.abs() + 2 * x, 1e-9),
    "a bend of 1e-8": (lambda x: (x * x + 1e-16).sqrt() + x, 1e-8),
    "a step of 1e-9": (lambda x: x * torch.sigmoid(1e9 * x), 1e-9),
    "a wave whose period the steps are multiples of": (
        lambda x: torch.sin(2 * torch.pi * x) + 0.5 * x,
        2.0**20 + 1,
    ),
    "a ripple whose period the steps are multiples of": (
        lambda x: torch.sin(2 * torch.pi * 2.0**19 * x) / 2.0**19 + x,
        0.3,
    ),
    "a grid of powers of two": (lambda x: torch.round(x * 2.0**19) / 2.0**19, -0.4123),
}


@each_verdict
@pytest.mark.parametrize("name", SMALL)
def test_what_is_smaller_than_steps_accuses_nobody(name, keywords):
    """The slope at a distance is the same for many steps, and another one than that at the point."""
    function, value = SMALL[name]
    x = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    assert covector.gradcheck(function, x, **keywords)


@each_verdict
def test_longer_steps_do_not_leave_the_domain_of_a_function_that_raises(keywords):
    """The outputs are large enough for a longer step, but it would be taken in a loop."""

    def positive(x):
        if x.min().item() < 0:
            raise ValueError("outside the domain")
        return 1e3 * (x + 1)

    x = torch.linspace(1, 2, 100, dtype=torch.float64)
    x[0] = 1e-4
    assert covector.gradcheck(positive, x.requires_grad_(), **keywords)


CONSTANT = {
    "the sum of a layer norm": (lambda x: torch.nn.functional.layer_norm(x, (20,)).sum(), 1.0),
    "there and back by a Fourier transform": (lambda x: torch.fft.ifft(torch.fft.fft(x)).real, 1e-4),
    "a centred sum": (lambda x: (x - x.mean()).sum(), 1e-3),
}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", CONSTANT)
def test_a_derivative_of_what_moves_by_rounding_alone_is_wrong(name: str, fast: bool) -> None:
    """The function is flat but for rounding, in which no wave can hide that would have this slope."""
    function, entry = CONSTANT[name]
    x = torch.linspace(-1, 1, 40, dtype=torch.float64).sin().reshape(2, 20)

    def wrong(x):
        y = function(x)
        return y + entry * (x[0, 3] - x[0, 3].detach()) * (torch.arange(y.numel()) == 7 % y.numel()).reshape(
            y.shape
        )

    assert covector.check(wrong, x.requires_grad_(), fast_mode=fast).outcome == "failed"
    assert covector.check(function, x, fast_mode=fast)


@pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])
def test_one_noisy_output_is_enough_to_tell_its_noise(fast: bool) -> None:
    """A single estimate of the noise is too small by chance, for one seed in six; several are not."""
    counts = []
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        weight, x = torch.randn(2, 300, dtype=torch.float64, generator=generator)
        rounded = lambda x, weight=weight: (weight * ((x + 2.0**20) - 2.0**20)).sum()
        report = covector.check(rounded, x.requires_grad_(), fast_mode=fast)
        assert report, seed
        counts.append(report.evaluations)
    assert sum(count > 60 for count in counts) <= 1
