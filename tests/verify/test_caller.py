"""Nothing of the caller's changes: tensors, gradients, modes, levels, random state; also on an exception."""

import warnings

import pytest
import torch
from torch.autograd import forward_ad

import covector
from watched import Counted, Stop, marks, state

DOUBLE = torch.float64


class Numpy(torch.autograd.Function):
    """x ** 3 by numpy: no vmap, no forward mode."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 3)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Wrong(torch.autograd.Function):
    """x ** 2 with a gradient of 3 x, so that every rung of the second look is climbed."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] * g


class WrongTwice(torch.autograd.Function):
    """x ** 3 with every rule wrong: reverse, forward, and the derivative of the reverse."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x.detach() ** 2 * g * 1.5

    @staticmethod
    def jvp(ctx, t):
        return 7 * t


def vector(size=2):
    return torch.linspace(-1.3, 0.9, size, dtype=DOUBLE).requires_grad_()


def with_grad(x):
    x.grad = torch.ones_like(x)
    return x


def linear_layer():
    module = torch.nn.Linear(2, 1, dtype=DOUBLE)
    x = torch.linspace(0.5, 1, 2, dtype=DOUBLE)
    parameters = tuple(module.parameters())
    with_grad(parameters[0])
    return (lambda *parameters: module(x).sin()), parameters


def closure():
    x = vector()
    return (lambda y: x.sin() * x), (x,)


def half_closure():
    x, y = vector(), vector()
    return (lambda x, z: x.sin() * y), (x, y)


def non_leaf():
    base = vector(4)
    x = base * 2
    return (lambda x: x.sin()), (x,)


def wrong_closure():
    x = vector()
    return (lambda y: Wrong.apply(x)), (x,)


# Functions with their inputs: what is returned is made afresh for each run.
SUBJECTS = {
    "elementwise": lambda: (lambda x: x.sin() * x, (with_grad(vector()),)),
    "two outputs": lambda: (lambda x, y: (x.sin() * y, x.cumsum(0)), (vector(), vector())),
    "wrong": lambda: (Wrong.apply, (vector(),)),
    "numpy": lambda: (Numpy.apply, (vector(),)),
    "not contiguous": lambda: (torch.exp, (vector(4).detach()[::2].requires_grad_(),)),
    "view of the caller's": lambda: (torch.exp, (vector(4).detach().clone()[1:3].requires_grad_(),)),
    "complex": lambda: (
        lambda z: z * z.conj(),
        (torch.complex(vector(), vector()).detach().requires_grad_(),),
    ),
    "kink": lambda: (torch.relu, (torch.tensor([0.0, 1.0], dtype=DOUBLE, requires_grad=True),)),
    "not a leaf": non_leaf,
    "captured module": linear_layer,
    "captured input": closure,
    "one input captured": half_closure,
    "wrong and captured": wrong_closure,
}

MODES = {
    "exhaustive": (covector.gradcheck, {}),
    "fast": (covector.gradcheck, {"fast_mode": True}),
    "everything": (
        covector.gradcheck,
        {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True},
    ),
    "forward only": (
        covector.gradcheck,
        {"check_forward_ad": True, "check_backward_ad": False, "fast_mode": True},
    ),
    "second order": (covector.gradgradcheck, {}),
    "second order, fast, forward": (covector.gradgradcheck, {"fast_mode": True, "check_fwd_over_rev": True}),
}
each_mode = pytest.mark.parametrize(("verb", "keywords"), MODES.values(), ids=MODES.keys())
# Each subject in every second mode; the rest is left to the sweep.
SUBJECTS_AND_MODES = [
    pytest.param(
        subject,
        *mode,
        id=f"{subject_name}-{mode_name}",
        marks=() if (number + place) % 2 == 0 else pytest.mark.sweep,
    )
    for number, (subject_name, subject) in enumerate(SUBJECTS.items())
    for place, (mode_name, mode) in enumerate(MODES.items())
]


def call(verb, keywords, function, inputs):
    """A verdict, or the exception that the function was told to raise."""
    try:
        return verb(function, inputs, raise_exception=False, **keywords)
    except Stop as stop:
        return stop


@pytest.mark.parametrize(("subject", "verb", "keywords"), SUBJECTS_AND_MODES)
def test_nothing_changes_whether_it_returns_or_raises_at_any_evaluation(subject, verb, keywords):
    """The k-th evaluation raises, for every k: what was the caller's is as it was, bit by bit."""
    function, inputs = subject()
    counted = Counted(function)
    before, tensors = state(), marks(inputs)
    clean = call(verb, keywords, counted, inputs)
    assert state() == before
    assert marks(inputs) == tensors
    assert isinstance(clean, bool)
    swallowed = []
    for k in range(1, counted.runs + 1):
        function, inputs = subject()
        fails = Counted(function, fails_at=k)
        before, tensors = state(), marks(inputs)
        result = call(verb, keywords, fails, inputs)
        assert state() == before, f"raised at run {k}"
        assert marks(inputs) == tensors, f"raised at run {k}"
        if not isinstance(result, Stop):
            swallowed.append((k, result))
    # A batch that fails is repeated in a loop, so one exception may be survived; the verdict may not change.
    assert all(result == clean for _, result in swallowed), (clean, swallowed)


@pytest.mark.parametrize("size", [40, 200])
@pytest.mark.parametrize(
    "function", [Wrong.apply, lambda x: Wrong.apply(x).cumsum(0)], ids=["sparse", "dense"]
)
def test_nothing_changes_while_an_entry_is_looked_for(function, size):
    """Fast mode that narrows down, interrupted at every evaluation."""
    counted = Counted(function)
    x = vector(size)
    assert call(covector.gradcheck, {"fast_mode": True}, counted, x) is False
    for k in range(1, counted.runs + 1, 7):
        before, tensors = state(), marks([x])
        result = call(covector.gradcheck, {"fast_mode": True}, Counted(function, fails_at=k), x)
        assert isinstance(result, Stop) or result is False
        assert state() == before
        assert marks([x]) == tensors


@each_mode
def test_around_it_no_grad_and_inference_mode(verb, keywords):
    """The verdict does not depend on the mode around the call, and the mode is put back."""
    for mode in (torch.no_grad, torch.inference_mode):
        x = vector()
        with mode():
            before, tensors = state(), marks([x])
            assert call(verb, keywords, lambda x: x.sin() * x, x) is True
            assert call(verb, keywords, WrongTwice.apply, x) is False
            assert isinstance(call(verb, keywords, Counted(torch.sin, fails_at=1), x), Stop)
            assert state() == before
            assert marks([x]) == tensors


@each_mode
def test_around_it_a_dual_level(verb, keywords):
    """A forward-mode level of the caller's stays open, and the same one."""
    x = vector()
    with forward_ad.dual_level():
        before = state()
        assert call(verb, keywords, lambda x: x.sin() * x, x) is True
        assert isinstance(call(verb, keywords, Counted(torch.sin, fails_at=1), x), Stop)
        assert state() == before


def test_keyboard_interrupt_is_not_swallowed_and_all_is_put_back():
    """An interrupt at any evaluation gets through, also one that is not an Exception."""
    for subject in (SUBJECTS["elementwise"], SUBJECTS["captured module"], SUBJECTS["wrong and captured"]):
        function, inputs = subject()
        counted = Counted(function)
        covector.gradcheck(counted, inputs, raise_exception=False)
        counted_runs = counted.runs
        for k in range(1, min(counted_runs, 40) + 1):
            function, inputs = subject()

            counted = Counted(function)

            def interrupted(*args):
                if counted.runs == k - 1:
                    raise KeyboardInterrupt
                return counted(*args)

            before, tensors = state(), marks(inputs)
            try:
                covector.gradcheck(interrupted, inputs, raise_exception=False)
                finished = True
            except KeyboardInterrupt:
                finished = False
            assert not finished or k > counted_runs
            assert state() == before
            assert marks(inputs) == tensors


def test_the_callers_arguments_that_are_not_differentiated():
    """A function that writes to an argument that it does not differentiate writes to a copy."""
    table, x = torch.zeros(3, dtype=DOUBLE), vector()

    def writes(x, table):
        table += 1
        return x * 2

    tensors = marks([x, table])
    covector.gradcheck(writes, (x, table), raise_exception=False)
    assert marks([x, table]) == tensors


def test_a_function_that_mutates_its_input_does_not_reach_the_callers():
    """The stand-in is changed, the caller's tensor is not."""
    x = vector()
    tensors = marks([x])

    def mutates(x):
        with torch.no_grad():
            x.mul_(2)
        return x.sin()

    assert covector.gradcheck(mutates, x, raise_exception=False) is False
    assert marks([x]) == tensors


@pytest.mark.parametrize("verb", [covector.check, covector.gradcheck, covector.gradgradcheck])
def test_a_module_keeps_its_buffers_and_gradients(verb):
    """Batch norm in training mode counts its batches: after a check, as many as before."""
    module = torch.nn.BatchNorm1d(2, dtype=DOUBLE)
    x = torch.randn(4, 2, dtype=DOUBLE, requires_grad=True)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    assert verb(module, x)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in module.named_buffers())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_default_dtype_and_threads_and_warnings_filters():
    """Settings of the process are left alone."""
    before = (torch.get_default_dtype(), torch.get_num_threads(), list(warnings.filters))
    covector.gradcheck(torch.sin, vector())
    covector.gradcheck(Wrong.apply, vector(), raise_exception=False)
    assert (torch.get_default_dtype(), torch.get_num_threads(), list(warnings.filters)) == before


@pytest.mark.parametrize("draws", [torch.rand, torch.randn])
def test_a_function_that_draws_leaves_the_generator_where_it_was(draws):
    """The random state is put back, on success, on failure and on an exception."""
    x = vector()
    before = state()
    assert call(covector.gradcheck, {}, lambda x: x * draws(2, dtype=DOUBLE), x) is False
    assert state() == before
    seeded = lambda x: (torch.manual_seed(5), x * draws(2, dtype=DOUBLE))[1]
    assert call(covector.gradcheck, {}, seeded, x) is True
    assert state() == before
    assert call(covector.gradgradcheck, {}, seeded, x) is True
    assert state() == before


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")], ids=str)
def test_running_out_of_memory_away_from_the_point_is_said_as_such(error):
    """It does not say that the function is not defined there."""
    runs = []

    def function(x):
        runs.append(x)
        if len(runs) > 1:
            raise error
        return x * 2

    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(covector.errors.ResourceError, match="the function ran out of memory"):
        covector.gradcheck(function, x)


@each_mode
def test_a_function_that_keeps_tensors_can_be_called_afterwards(verb, keywords):
    """It is not run in a batch, of which it would keep a tensor that nobody can use."""
    kept = []

    def function(x):
        distance = (x.detach() - kept[0]).norm() if kept else torch.zeros(())
        kept[:] = [x.detach()]
        return x.sin() * x + 0 * distance

    x = vector(12)
    assert call(verb, keywords, function, x) is True
    assert torch.equal(function(x), x.sin() * x)
