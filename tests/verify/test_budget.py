"""How often a check runs the function, beside torch's own check of the same function.

Torch's counts are taken here, with the same keywords, so that they are never out of date. A point of a batch
is a run: of functions that can be batched the report says how many there were, and of those that cannot, the
report has to agree with a counter in the function.

| check                                    | runs at most                                             |
| ---------------------------------------- | -------------------------------------------------------- |
| passes, fast                             | torch's fast count + 2                                   |
| passes, exhaustive, cannot be batched    | torch's exhaustive count + 8                             |
| passes, exhaustive, can be batched       | 2 n + 8 points; five calls, if it is small               |
| fails, in either mode                    | torch's exhaustive count + 60                            |
| noisy                                    | as one that fails, and it does not fail                  |
| noisy, many inputs                       | torch's exhaustive count + 64 + 2 n, and it does not fail |
| one input number                         | 4 if right, 16 if wrong, and 2 that look for its line    |
| float32 module, fast                     | torch's fast count for the same module in float64, + 4   |
| pullbacks of one that passes             | torch's number + 2                                       |
| pullbacks of one that fails              | torch's exhaustive number + 24                           |
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

import covector
from covector import Report
from covector.verify import constants
from watched import Counted

# Outcomes, as a report gives them.
PASSED, INCONCLUSIVE, FAILED = "passed", "inconclusive", "failed"

FAST_SLACK, EXHAUSTIVE_SLACK, FAILING_SLACK, MODULE_SLACK = 2, 8, 60, 4
PULLBACK_SLACK, FAILING_PULLBACK_SLACK = 2, 24
CALLS_OF_A_BATCH, RIGHT_NUMBER, WRONG_NUMBER, LINE_RUNS, NOISY_SLACK = 5, 4, 16, 2, 64

REVERSE: dict[str, Any] = {}
FORWARD = {"check_forward_ad": True, "check_backward_ad": False}
each_mode = pytest.mark.parametrize("mode", [REVERSE, FORWARD], ids=["reverse", "forward"])
each_speed = pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])


def looking(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that looks at a value, and so cannot be batched."""

    def alone(*inputs: Tensor) -> Any:
        inputs[0].detach().abs().sum().item()
        return function(*inputs)

    return alone


class Budgeted(Counted):
    """A function that counts its runs, in batches or alone."""

    def __init__(self, function: Callable[..., Any], *, alone: bool = False) -> None:
        super().__init__(looking(function) if alone else function)
        self.alone = alone


def torch_runs(
    function: Callable[..., Any],
    inputs: tuple[Tensor, ...],
    door: Callable[..., bool] = torch.autograd.gradcheck,
    **keywords: Any,
) -> int:
    """How often torch's check runs a function."""
    counted = Budgeted(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        door(counted, inputs, raise_exception=False, **keywords)
    return counted.runs


def runs(counted: Budgeted, report: Report) -> int:
    """How often covector's check ran it, which is known twice if it cannot be batched."""
    if counted.alone:
        assert report.evaluations == counted.runs
    assert report.evaluations >= counted.runs
    return report.evaluations


def coordinates(inputs: tuple[Tensor, ...]) -> int:
    """The number n of real coordinates."""
    return sum(x.numel() * (2 if x.is_complex() else 1) for x in inputs)


# Functions


def normal(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Callable[[], tuple[Tensor, ...]]:
    """Inputs of these shapes, the same ones at every call."""

    def draw() -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn(s, dtype=dtype, generator=generator).requires_grad_() for s in shapes)

    return draw


@functools.cache
def matrix(rows: int, columns: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A dense matrix whose rows have a length of about one."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, columns, dtype=dtype, generator=generator) / columns**0.5


def dense(rows: int, columns: int) -> Callable[[Tensor], Tensor]:
    return lambda x: matrix(rows, columns) @ x.sin()


def extra(amount: float, function: Callable[..., Tensor], *at: int) -> Callable[..., Tensor]:
    """The function with this much too much in one entry of its derivative, or in all of them."""

    def wrong(x: Tensor, *others: Tensor) -> Tensor:
        y = function(x, *others)
        if not at:
            return y + amount * (x.sum() - x.sum().detach())
        row, column = at
        mask = (torch.arange(y.numel()).reshape(y.shape) == row).double()
        return y + amount * mask * (x.reshape(-1)[column] - x.reshape(-1)[column].detach())

    return wrong


def scaled(
    factor: float, function: Callable[[Tensor], Tensor], row: int | None = None
) -> Callable[[Tensor], Tensor]:
    """The function with its derivative multiplied by a factor: all of it, or that of one output."""

    def wrong(x: Tensor) -> Tensor:
        y = function(x)
        factors = factor if row is None else torch.where(torch.arange(y.numel()) == row, factor, 1.0).double()
        return y.detach() + factors * (y - y.detach())

    return wrong


def ruled(
    function: Callable[..., Any], pull: Callable[..., Any], *, batch: bool = True
) -> Callable[..., Any]:
    """The function with pull(cotangent, *inputs) as its backward."""

    class Rule(Function):
        generate_vmap_rule = batch

        @staticmethod
        def forward(*inputs: Tensor) -> Any:
            return function(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> Any:
            return pull(cotangent, *ctx.saved_tensors)

    return Rule.apply


@dataclass(frozen=True)
class Case:
    """A function of some inputs; without a rule for forward mode it is checked in reverse mode alone."""

    function: Callable[..., Any]
    inputs: Callable[[], tuple[Tensor, ...]]
    forward: bool = True


COMPLEX = torch.complex128
RIGHT = {
    "dense": Case(dense(4, 6), normal((6,))),
    "elementwise": Case(lambda x: x.sin() * x, normal((20,))),
    "tall": Case(dense(30, 3), normal((3,))),
    "wide": Case(dense(2, 30), normal((30,))),
    "scalar output": Case(lambda x: x.sin().sum() * x[0], normal((7,))),
    "two inputs": Case(lambda x, y: matrix(4, 6) @ (x.sin() * y), normal((6,), (6,))),
    "layer": Case(lambda x, w, b: (x @ w + b).tanh(), normal((2, 3), (3, 4), (4,))),
    "an empty input": Case(lambda x, y: torch.cat([x.sin() * x.sum(), y]), normal((5,), (0,))),
    "three outputs": Case(lambda x: (matrix(4, 6) @ x.sin(), x.exp(), x.sum()), normal((6,))),
    "complex": Case(lambda z: z.sin() * z.sum(), normal((3,), dtype=COMPLEX)),
    "complex to real": Case(lambda z: z.abs() * z[0].real, normal((4,), dtype=COMPLEX)),
    "real to complex": Case(lambda x: torch.complex(x.sin(), x.flip(0)) * x.sum(), normal((5,))),
    "custom Function": Case(
        ruled(lambda x: matrix(4, 6) @ x.sin(), lambda g, x: (g @ matrix(4, 6)) * x.cos()),
        normal((6,)),
        forward=False,
    ),
    "off by less than a hundredth of what is allowed": Case(extra(1e-7, dense(4, 6), 2, 3), normal((6,))),
    "large": Case(dense(7, 300), normal((300,))),
}
WRONG = {
    "factor": Case(scaled(2.0, dense(4, 6)), normal((6,))),
    "sign": Case(scaled(-1.0, dense(4, 6)), normal((6,))),
    "no derivative by one input": Case(
        lambda x, y: matrix(4, 6) @ (x.sin() * y.detach()), normal((6,), (6,))
    ),
    "one entry": Case(extra(1e-2, dense(4, 6), 2, 3), normal((6,))),
    "one that should be zero, by twice what is allowed": Case(extra(2e-5, torch.sin, 3, 5), normal((20,))),
    "one entry of an elementwise function": Case(extra(1e-2, torch.sin, 11, 11), normal((20,))),
    "an entry that is missing": Case(
        lambda x: x.sin() + 1e-2 * x.detach().roll(1) * (torch.arange(20) == 4), normal((20,))
    ),
    "every entry by a constant": Case(extra(0.1, dense(4, 6)), normal((6,))),
    "one row of many": Case(scaled(0.0, dense(30, 3), 17), normal((3,))),
    "one of three outputs": Case(
        lambda x: (matrix(4, 6) @ x.sin(), x * x.detach(), x.sum()),
        normal((6,)),
    ),
    "conjugate": Case(
        ruled(lambda z: z * z * z, lambda g, z: 3 * g * z * z), normal((3,), dtype=COMPLEX), forward=False
    ),
    "imaginary part": Case(
        lambda z: torch.complex(z.real.sin(), (z.imag * z.real.detach()).exp()), normal((3,), dtype=COMPLEX)
    ),
    "custom Function": Case(
        ruled(lambda x: matrix(4, 6) @ x.sin(), lambda g, x: (g @ matrix(4, 6)) * x.cos().roll(1)),
        normal((6,)),
        forward=False,
    ),
    "transposed layer": Case(
        ruled(lambda x, w: x @ w, lambda g, x, w: (g @ w, x.T @ g)), normal((3, 3), (3, 3)), forward=False
    ),
    "one entry of a large one": Case(extra(1e-2, dense(7, 300), 5, 211), normal((300,))),
    "every entry of a large one": Case(scaled(1.1, dense(7, 300)), normal((300,))),
}


def of_cases(cases: dict[str, Case], *, modes: bool = True) -> pytest.MarkDecorator:
    """Every case, in the modes that it has."""
    return pytest.mark.parametrize(
        ("case", "mode"),
        [
            pytest.param(case, mode, id=f"{name}-{'forward' if mode else 'reverse'}")
            for name, case in cases.items()
            for mode in ((REVERSE, FORWARD) if case.forward and modes else (REVERSE,))
        ],
    )


each_writing = pytest.mark.parametrize("alone", [False, True], ids=["batched", "one by one"])


def each_way_of(cases: dict[str, Case]) -> pytest.MarkDecorator:
    """Every case in its modes, of both writings at both speeds; two of these four are left to the sweep."""
    return pytest.mark.parametrize(
        ("case", "mode", "alone", "fast"),
        [
            pytest.param(
                *row.values,
                alone,
                fast,
                id=f"{row.id}-{'one by one' if alone else 'batched'}-{'fast' if fast else 'exhaustive'}",
                marks=() if (alone is fast) == (number % 2 == 0) else pytest.mark.sweep,
            )
            for number, row in enumerate(of_cases(cases).args[1])
            for alone in (False, True)
            for fast in (False, True)
        ],
    )


# What passes


@each_writing
@of_cases(RIGHT)
def test_a_right_derivative_in_fast_mode(case: Case, mode: dict[str, Any], alone: bool) -> None:
    """Passes within torch's own count for its fast mode, and two more."""
    counted = Budgeted(case.function, alone=alone)
    report = covector.check(counted, case.inputs(), fast_mode=True, **mode)
    assert report.outcome == PASSED
    assert (
        runs(counted, report) <= torch_runs(case.function, case.inputs(), fast_mode=True, **mode) + FAST_SLACK
    )


@of_cases(RIGHT)
def test_a_right_derivative_that_cannot_be_batched(case: Case, mode: dict[str, Any]) -> None:
    """Passes an exhaustive check within torch's own count, and eight more."""
    counted = Budgeted(case.function, alone=True)
    report = covector.check(counted, case.inputs(), **mode)
    assert report.outcome == PASSED
    assert runs(counted, report) <= torch_runs(case.function, case.inputs(), **mode) + EXHAUSTIVE_SLACK


@of_cases(RIGHT, modes=False)
def test_an_exhaustive_check_takes_two_runs_for_each_direction(case: Case, mode: dict[str, Any]) -> None:
    """However many numbers there are: the graph, and no more than four directions; not in a batch."""
    counted, inputs = Budgeted(case.function), case.inputs()
    report = covector.check(counted, inputs, **mode)
    assert report.outcome == PASSED
    assert runs(counted, report) == counted.runs <= 1 + 2 * min(4, coordinates(inputs))


@of_cases(RIGHT, modes=False)
def test_every_column_takes_few_batches(case: Case, mode: dict[str, Any]) -> None:
    """On request: two points for each coordinate, eight more, and hardly any calls."""
    counted, inputs = Budgeted(case.function), case.inputs()
    report = covector.check(counted, inputs, probes=0, **mode)
    assert report.outcome == PASSED
    assert runs(counted, report) <= 2 * coordinates(inputs) + EXHAUSTIVE_SLACK
    if 4 < coordinates(inputs) <= 40:
        assert counted.runs <= CALLS_OF_A_BATCH


@each_speed
def test_a_function_that_closes_over_its_inputs(fast: bool) -> None:
    """The parameters of a module, which are moved in place: the same budget as for any other function."""
    model = nn.Linear(3, 2, dtype=torch.float64)
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
    inputs = tuple(model.parameters())
    counted = Budgeted(lambda *parameters: model(x).tanh(), alone=True)
    report = covector.check(counted, inputs, fast_mode=fast)
    assert report.outcome == PASSED
    slack = FAST_SLACK if fast else EXHAUSTIVE_SLACK
    assert runs(counted, report) <= torch_runs(counted.function, inputs, fast_mode=fast) + slack


class Points(Function):
    """A dense function with a batching rule of its own, which knows how many points a batch has."""

    count = 0

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        Points.count += 1
        return matrix(4, 6) @ x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return (cotangent @ matrix(4, 6)) * ctx.saved_tensors[0].cos()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any], x: Tensor) -> tuple[Tensor, int]:
        Points.count += info.batch_size
        return x.movedim(in_dims[0], 0).sin() @ matrix(4, 6).T, 0


@each_speed
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_every_point_of_a_batch_is_counted(wrong: bool, fast: bool) -> None:
    """The report gives the number of points that the batching rule saw, not the number of batches."""
    Points.count = 0
    report = covector.check(
        extra(0.1, Points.apply) if wrong else Points.apply, normal((6,))(), fast_mode=fast
    )
    assert bool(report) is not wrong
    assert report.evaluations == Points.count


def test_on_request_every_coordinate_is_moved_by_itself() -> None:
    """Fewer points than coordinates could not tell its columns apart."""
    inputs = normal((20,))()
    assert covector.check(dense(5, 20), inputs, probes=0).evaluations >= 2 * coordinates(inputs)


@each_speed
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e7])
def test_outputs_without_a_graph_that_do_not_move_cost_no_column_each(scale: float, fast: bool) -> None:
    """Exactly equal outputs have no rounding error, however large they are."""
    inputs, count = normal((8, 8))(), constants.DIRECTIONS

    def order(x: Tensor) -> Tensor:
        return scale * x.flatten().argsort().double()

    report = covector.check(order, inputs, fast_mode=fast)
    assert report.outcome == PASSED
    allowed = torch_runs(order, inputs, fast_mode=True) + FAST_SLACK if fast else 2 * count + RIGHT_NUMBER
    assert report.evaluations <= allowed
    moving = covector.check(lambda x: order(x) + x.detach().flatten(), inputs, fast_mode=fast)
    assert moving.outcome == FAILED


@each_speed
def test_a_kink_among_many_numbers_costs_no_column_each(fast: bool) -> None:
    """It is found by halving, also where the Jacobian is small because there is one output."""
    x = torch.linspace(-1, 1, 8_001, dtype=torch.float64)
    x[4_000] = 3e-7
    report = covector.check(lambda x: x.abs().sum(), x.requires_grad_(), fast_mode=fast)
    assert report.outcome == PASSED
    assert report.evaluations < 300


NORMS = {
    "batch norm": (lambda x: nn.functional.batch_norm(x, None, None, training=True), (16, 3, 16, 16)),
    "instance norm": (nn.functional.instance_norm, (1, 3, 64, 64)),
    "standardised": (lambda x: (x - x.mean()) / x.std(), (12_000,)),
    "cumulative sum": (lambda x: x.cumsum(0), (12_000,)),
}


@each_speed
@pytest.mark.parametrize("name", NORMS)
def test_rounding_that_outputs_share_costs_no_column_each(name: str, fast: bool) -> None:
    """The rounding of a mean is that of all outputs, and adds up; with longer steps it does not show."""
    function, shape = NORMS[name]
    x = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    for seed in range(3):
        report = covector.check(function, x, fast_mode=fast, seed=seed)
        assert report.outcome == PASSED
        assert report.evaluations < 200


def test_a_wrong_entry_of_a_function_that_cannot_be_batched_costs_no_column_each_in_fast_mode() -> None:
    """A few columns tell whether it can be; the others are not looked at for a diagnosis."""
    counted = Budgeted(extra(0.1, dense(5, 900)), alone=True)
    report = covector.check(counted, normal((900,))(), fast_mode=True)
    assert report.outcome == FAILED
    assert runs(counted, report) < 900


# What fails


@each_way_of(WRONG)
def test_a_wrong_derivative(case: Case, mode: dict[str, Any], alone: bool, fast: bool) -> None:
    """Fails, with its report, within torch's exhaustive count and sixty more."""
    counted = Budgeted(case.function, alone=alone)
    report = covector.check(counted, case.inputs(), fast_mode=fast, **mode)
    assert report.outcome == FAILED
    assert runs(counted, report) <= torch_runs(case.function, case.inputs(), **mode) + FAILING_SLACK


@each_speed
@of_cases(WRONG, modes=False)
def test_a_wrong_derivative_of_which_nobody_reads_a_report(
    case: Case, mode: dict[str, Any], fast: bool
) -> None:
    """With `raise_exception=False` the same number of runs is enough, and fewer would do."""
    counted = Budgeted(case.function, alone=True)
    assert not covector.gradcheck(counted, case.inputs(), fast_mode=fast, raise_exception=False, **mode)
    assert counted.runs <= torch_runs(case.function, case.inputs(), **mode) + FAILING_SLACK


HALF = {
    "one that should be zero": Case(extra(5e-6, torch.sin, 3, 5), normal((20,))),
    "every one that should be zero": Case(extra(5e-6, torch.sin), normal((20,))),
    "every entry by a factor": Case(scaled(1.0005, dense(4, 6)), normal((6,))),
    "every entry of a large one": Case(scaled(1.0005, dense(7, 300)), normal((300,))),
}


@each_way_of(HALF)
def test_a_derivative_off_by_half_of_what_is_allowed(
    case: Case, mode: dict[str, Any], alone: bool, fast: bool
) -> None:
    """Passes, and costs as one that fails and what halving a direction in vain took before."""
    counted = Budgeted(case.function, alone=alone)
    report = covector.check(counted, case.inputs(), fast_mode=fast, **mode)
    assert report.outcome == PASSED
    theirs = torch_runs(case.function, case.inputs(), **mode)
    assert runs(counted, report) <= theirs * (1 + constants.HALVING_SHARE) + FAILING_SLACK


# Noise


def bisected(x: Tensor) -> Tensor:
    """The root of y^3 + y = x, to 1e-8."""
    low, high = torch.full_like(x, -4.0), torch.full_like(x, 4.0)
    for _ in range(29):
        middle = (low + high) / 2
        above = middle**3 + middle > x
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (low + high) / 2


def root_pull(cotangent: Tensor, x: Tensor) -> Tensor:
    return cotangent / (3 * bisected(x) ** 2 + 1)


def iterated(x: Tensor) -> Tensor:
    """The fixed point of y = x + cos(y) / 2, until it moves by less than 1e-8."""
    y, last = x, torch.full_like(x, torch.inf)
    while (y - last).abs().max().item() > 1e-8:
        y, last = x + 0.5 * y.cos(), y
    return y


def fixed_point_pull(cotangent: Tensor, x: Tensor) -> Tensor:
    return cotangent / (1 + 0.5 * iterated(x).sin())


BISECTION = ruled(bisected, root_pull)
FIXED_POINT = ruled(iterated, fixed_point_pull, batch=False)

NOISY = {
    "bisection": Case(BISECTION, normal((3,))),
    "mixed bisections": Case(lambda x: matrix(5, 12) @ BISECTION(x), normal((12,))),
    "fixed point": Case(FIXED_POINT, normal((3,))),
    "mixed fixed points": Case(lambda x: matrix(5, 12) @ FIXED_POINT(x), normal((12,))),
    "float32 inside": Case(lambda x: x.float().sin().double(), normal((3,))),
    "mixed in float32": Case(
        lambda x: (matrix(5, 12, torch.float32) @ x.float().sin()).double(), normal((12,))
    ),
    "float32 inside a function of two inputs": Case(
        lambda x, y: (x.float().exp() * y.float().sum()).double(), normal((4,), (5,))
    ),
}


@each_speed
@each_writing
@of_cases(NOISY, modes=False)
def test_a_noisy_function(case: Case, mode: dict[str, Any], alone: bool, fast: bool) -> None:
    """Is never accused of its noise, and costs no more than one that fails."""
    counted = Budgeted(case.function, alone=alone)
    report = covector.check(counted, case.inputs(), fast_mode=fast, **mode)
    assert report.outcome in (PASSED, INCONCLUSIVE)
    assert runs(counted, report) <= torch_runs(case.function, case.inputs(), **mode) + FAILING_SLACK


@each_speed
@each_writing
@pytest.mark.parametrize("digits", [7, 8])
def test_a_noisy_function_of_many_inputs(digits: int, alone: bool, fast: bool) -> None:
    """Every column looks wrong, and is differenced once more, with the step that suited the first."""
    rounded = ruled(lambda x: x.sin().round(decimals=digits), lambda g, x: g * x.cos())
    counted, inputs = Budgeted(rounded, alone=alone), normal((30,))()
    report = covector.check(counted, inputs, fast_mode=fast)
    assert report.outcome == PASSED
    assert runs(counted, report) <= torch_runs(rounded, inputs) + NOISY_SLACK + 2 * coordinates(inputs)


@each_speed
@each_writing
@pytest.mark.parametrize("digits", [10, 12])
def test_small_steps_of_a_function_cost_no_column_each(digits: int, alone: bool, fast: bool) -> None:
    """Its noise is measured along a direction, and a longer one passes."""
    rounded = ruled(lambda x: x.sin().round(decimals=digits), lambda g, x: g * x.cos())
    counted = Budgeted(rounded, alone=alone)
    report = covector.check(counted, normal((60,))(), fast_mode=fast)
    assert report.outcome == PASSED
    assert runs(counted, report) < 48


def five_percent_off(
    function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """The derivative of an elementwise function, wrong at one number."""
    return ruled(function, lambda g, x: g * slope(x) * torch.where(torch.arange(x.numel()) == 11, 1.05, 1.0))


LOUD = {
    "a million times as large": five_percent_off(lambda x: 1e6 * x.sin(), lambda x: 1e6 * x.cos()),
    "some of them large": five_percent_off(
        lambda x: 1e6 ** (torch.arange(30) % 7 == 0) * x.sin(),
        lambda x: 1e6 ** (torch.arange(30) % 7 == 0) * x.cos(),
    ),
    "beside a hundred thousand": five_percent_off(lambda x: 1e5 + x.sin(), torch.cos),
    "beside ten million": five_percent_off(lambda x: 1e7 + x.sin(), torch.cos),
    "of very different sizes": five_percent_off(lambda x: (20 * x).exp(), lambda x: 20 * (20 * x).exp()),
    "in small steps": five_percent_off(lambda x: x.sin().round(decimals=10), torch.cos),
    "in large steps": five_percent_off(lambda x: x.sin().round(decimals=8), torch.cos),
    "float32 inside": five_percent_off(lambda x: x.float().sin().double(), torch.cos),
}


@each_speed
@each_writing
@pytest.mark.parametrize("name", LOUD)
def test_a_wrong_derivative_of_a_large_or_noisy_function(name: str, alone: bool, fast: bool) -> None:
    """Large values and steps of the function cost no second difference of each column."""
    counted, inputs = Budgeted(LOUD[name], alone=alone), normal((30,))()
    report = covector.check(counted, inputs, fast_mode=fast)
    assert report.outcome == FAILED
    assert report.worst.mismatches[0].column == 11
    assert runs(counted, report) <= torch_runs(LOUD[name], inputs) + FAILING_SLACK


# One number


NUMBER = {
    "no axes": Case(lambda x: x.sin(), normal(())),
    "one axis": Case(lambda x: x.sin() * x, normal((1,))),
    "five outputs": Case(lambda x: (x * torch.arange(1, 6)).sin(), normal((1,))),
    "two outputs": Case(lambda x: (x.sin(), x.exp()), normal((1,))),
}
WRONG_NUMBERS = {
    "factor": Case(lambda x: x.sin() + x.sin().detach(), normal(())),
    "sign": Case(lambda x: 2 * x.exp().detach() - x.exp(), normal((1,))),
    "one output of five": Case(
        lambda x: (x * torch.arange(1, 6)).sin() + 1e-2 * (torch.arange(5) == 3).double() * (x - x.detach()),
        normal((1,)),
    ),
    "no derivative of one output": Case(lambda x: (x.sin(), x.detach() * 2 + 0 * x), normal((1,))),
}


@each_speed
@each_writing
@of_cases(NUMBER, modes=False)
def test_one_input_number_with_a_right_derivative(
    case: Case, mode: dict[str, Any], alone: bool, fast: bool
) -> None:
    """Takes the point, one step to either side, and one run more."""
    counted = Budgeted(case.function, alone=alone)
    report = covector.check(counted, case.inputs(), fast_mode=fast, **mode)
    assert report.outcome == PASSED
    assert runs(counted, report) <= RIGHT_NUMBER


@each_speed
@each_writing
@of_cases(WRONG_NUMBERS, modes=False)
def test_one_input_number_with_a_wrong_derivative(
    case: Case, mode: dict[str, Any], alone: bool, fast: bool
) -> None:
    """Takes sixteen runs to decide, and two to find the line at which the derivative is cut."""
    decided = Budgeted(case.function, alone=True)
    assert not covector.gradcheck(decided, case.inputs(), fast_mode=fast, raise_exception=False, **mode)
    assert decided.runs <= WRONG_NUMBER
    counted = Budgeted(case.function, alone=alone)
    report = covector.check(counted, case.inputs(), fast_mode=fast, **mode)
    assert report.outcome == FAILED
    assert runs(counted, report) <= WRONG_NUMBER + LINE_RUNS


# Float32 modules


class Network(nn.Module):
    """Two layers; one that looks at a value cannot be batched."""

    def __init__(self, *, alone: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.alone, self.calls = alone, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.alone:
            x.detach().abs().sum().item()
        return self.second(self.first(x).tanh())


@each_writing
def test_a_float32_module_in_fast_mode(alone: bool) -> None:
    """Passes, by its parameters and its input, within torch's fast count for it in float64, and four more."""
    network = Network(alone=alone)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    twin = copy.deepcopy(network).double()
    names = [name for name, _ in twin.named_parameters()]

    def functional(*tensors: Tensor) -> Tensor:
        return torch.func.functional_call(twin, dict(zip(names, tensors, strict=False)), tensors[-1])

    inputs = (*(p.detach().clone().requires_grad_() for p in twin.parameters()), x.detach().double())
    inputs[-1].requires_grad_()
    assert torch.autograd.gradcheck(functional, inputs, fast_mode=True)
    theirs = torch_runs(functional, inputs, fast_mode=True)

    report = covector.check(network, x, fast_mode=True)
    assert report.outcome == PASSED
    assert max(report.evaluations, network.calls) <= theirs + MODULE_SLACK


# Pullbacks


class Pullbacks:
    """A function whose backward counts its calls."""

    def __init__(self, rows: int, columns: int, *, numpy: bool, factor: float = 1.0) -> None:
        self.calls, weight = 0, matrix(rows, columns)

        def pull(cotangent: Tensor, x: Tensor) -> Tensor:
            self.calls += 1
            cotangent = factor * cotangent
            if numpy:
                return torch.from_numpy((cotangent.numpy() @ weight.numpy()) * x.detach().cos().numpy())
            return (cotangent @ weight) * x.cos()

        self.function = ruled(lambda x: weight @ x.sin(), pull, batch=not numpy)


@each_speed
@each_writing
@pytest.mark.parametrize(("rows", "columns"), [(4, 6), (1, 1), (40, 3), (2, 50)])
def test_pullbacks_of_a_right_derivative(rows: int, columns: int, alone: bool, fast: bool) -> None:
    """The backward is called as often as torch calls it, and twice more; `alone` it is NumPy's."""
    theirs, ours = (Pullbacks(rows, columns, numpy=alone) for _ in range(2))
    assert torch.autograd.gradcheck(theirs.function, normal((columns,))(), fast_mode=fast)
    assert covector.check(ours.function, normal((columns,))(), fast_mode=fast).outcome == PASSED
    assert 0 < ours.calls <= theirs.calls + PULLBACK_SLACK


@each_speed
@pytest.mark.parametrize(("rows", "columns"), [(4, 6), (40, 3), (30, 20)])
def test_pullbacks_of_a_wrong_derivative(rows: int, columns: int, fast: bool) -> None:
    """Each row is pulled back once, for the verdict and for the report: torch pulls each back twice."""
    theirs, ours = (Pullbacks(rows, columns, numpy=True, factor=1.5) for _ in range(2))
    assert not torch.autograd.gradcheck(theirs.function, normal((columns,))(), raise_exception=False)
    report = covector.check(ours.function, normal((columns,))(), fast_mode=fast)
    assert report.outcome == FAILED
    assert ours.calls <= theirs.calls + FAILING_PULLBACK_SLACK


# The second order


SECOND = {
    "dense": Case(dense(4, 6), normal((6,))),
    "two inputs": Case(lambda x, y: x.sin() * y**2, normal((3,), (3,))),
    "complex": Case(lambda z: z.sin() * z.sum(), normal((2,), dtype=COMPLEX)),
    "two outputs": Case(lambda x: (x.sin() * x.sum(), x.exp()), normal((4,))),
}
WRONG_SECOND = {
    "saved intermediate": Case(ruled(lambda x: x**3, lambda g, x: 3 * g * x * x.detach()), normal((5,))),
    "one entry": Case(
        ruled(
            lambda x: x.sin().sum(),
            lambda g, x: g * (x.cos() + 0.1 * (torch.arange(5) == 2).double() * (x - x.detach()).sum()),
        ),
        normal((5,)),
    ),
}


@each_speed
@each_writing
@of_cases(SECOND, modes=False)
def test_a_right_second_derivative(case: Case, mode: dict[str, Any], alone: bool, fast: bool) -> None:
    """`gradgradcheck` keeps to torch's own counts, and two more if it is fast, eight if it is exhaustive."""
    counted, door = Budgeted(case.function, alone=alone), torch.autograd.gradgradcheck
    assert covector.gradgradcheck(counted, case.inputs(), fast_mode=fast)
    slack = FAST_SLACK if fast else EXHAUSTIVE_SLACK
    assert counted.runs <= torch_runs(case.function, case.inputs(), door, fast_mode=fast) + slack


@each_speed
@each_writing
@of_cases(WRONG_SECOND, modes=False)
def test_a_wrong_second_derivative(case: Case, mode: dict[str, Any], alone: bool, fast: bool) -> None:
    """Fails, with its report, within torch's exhaustive count and sixty more."""
    counted, door = Budgeted(case.function, alone=alone), torch.autograd.gradgradcheck
    with pytest.raises(covector.GradcheckError) as caught:
        covector.gradgradcheck(counted, case.inputs(), fast_mode=fast)
    assert caught.value.report.outcome == FAILED
    assert counted.runs <= torch_runs(case.function, case.inputs(), door) + FAILING_SLACK
