"""`covector.compile`: traced once, compared with the eager result, right when something outside changes."""

import contextlib
import copy
import functools
import itertools
import shutil
import sys
import threading
import types
import warnings
from collections import deque

import numpy
import pytest
import torch
from torch import is_grad_enabled as enabled
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map

import covector
from covector._tasks.progress import progress
from covector.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CompiledMismatchError,
    CompileWarning,
    UnsupportedError,
    UntraceableError,
)
from covector.transforms._plan import least_seconds
from covering import covered
from watched import Terminal, errors_shown

DOUBLE = {"dtype": torch.float64}
GENERATOR = torch.Generator().manual_seed(0)


def random(*shape):
    return torch.randn(*shape, **DOUBLE, generator=GENERATOR)


x, u = random(4), random(4)
rows = random(5, 4)
weight = random(4).requires_grad_()
exponent = 3


def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)).double()


net = network()
module, params = covector.as_function(net)


def energy(x):
    return (x**exponent * weight).sum()


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def attention(x):
    q = x.view(1, 1, 2, 2)
    return torch.nn.functional.scaled_dot_product_attention(q, 2 * q, q)


def replay(function, **options):
    return covector.compile(function, backend="replay", **options)


VERBS = {
    "grad": (covector.grad(energy), (x,)),
    "grad and value": (covector.grad_and_value(energy), (x,)),
    "aux": (covector.grad(lambda x: (energy(x), {"number": 3, "x": x + 1}), has_aux=True), (x,)),
    "custom Function": (covector.grad(lambda x: (StraightThrough.apply(x) * x).sum()), (x,)),
    "vjp": (lambda x, v: covector.vjp(net, x)[1](v), (x, torch.ones(2, **DOUBLE))),
    "jvp": (lambda x, u: covector.jvp(net, (x,), (u,)), (x, u)),
    "linearize": (lambda x, u: covector.linearize(net, x)[1](u), (x, u)),
    "hvp": (lambda x, u: covector.hvp(energy, (x,), (u,)), (x, u)),
    "jacrev": (covector.jacrev(net), (x,)),
    "jacfwd in chunks": (covector.jacfwd(net, chunk_size=3), (x,)),
    "jacobian": (covector.jacobian(net), (x,)),
    "of samples": (covector.jacobian(net, batch_dim=0), (rows,)),
    "holomorphic": (covector.jacobian(torch.sin, complex="holomorphic"), (torch.complex(x, u),)),
    "cdist": (covector.jacrev(lambda x: torch.cdist(x.view(2, 2), x.view(2, 2) + 1)), (x,)),
    "hessian": (covector.hessian(energy), (x,)),
    "hessian of attention": (covector.hessian(lambda x: attention(x).sum()), (x,)),
    "diagonal": (covector.hessian_diagonal(energy), (x,)),
    "vmap of hessian": (torch.vmap(covector.hessian(energy)), (rows,)),
    "per sample": (torch.vmap(covector.grad(lambda p, x: module(p, x).sum()), (None, 0)), (params, rows)),
    "functional": (lambda x: covector.functional.jacobian(net, x), (x,)),
    "a keyword": (lambda x, *, k: covector.grad(lambda x: (k * x**3).sum())(x), (x,)),
    "a constant": (covector.jacrev(lambda x: torch.tensor([1.0, 2.0], **DOUBLE) * x[:2]), (x,)),
    "no argument": (lambda: 2 * weight, ()),
    "a plain function": (energy, (x,)),
}


@pytest.mark.filterwarnings("ignore:.*directions are applied one by one")
@pytest.mark.parametrize(
    "name", covered([(name,) for name in VERBS], lambda name: name != "hessian of attention")
)
def test_every_verb(name):
    """The eager result, without a graph, at new arguments and with a captured weight changed in place."""
    function, args = VERBS[name]
    keywords = {"k": 2.5} if name == "a keyword" else {}
    fast = replay(function)
    fast(*args, **keywords)
    nearby = tree_map(lambda t: t + 0.5, args)
    for factor in (1.5, 0.5):
        with torch.no_grad():
            weight.mul_(factor)
            net[0].weight.mul_(factor)
        got = fast(*nearby, **keywords)
        assert_close(got, function(*nearby, **keywords))
        assert not any(getattr(leaf, "requires_grad", False) for leaf in tree_leaves(got))
    assert len(fast.plans) == 1


def remembered(function):
    """A decorator that hides the function in an attribute, as `functools.cache` does."""

    class Wrapper:
        __wrapped__ = staticmethod(function)

        def __call__(self, *args):
            return function(*args)

    return Wrapper()


class Model:
    """Something that holds tensors and values in several ways."""

    shift = 1.0

    @staticmethod
    def squared(x):
        return x.square() * exponent

    @property
    def doubled(self):
        return 2 * self._hidden

    def __init__(self):
        self.weight = random(4)
        self.power = 2
        self._hidden = 1.0
        self.many = list(range(2000))
        self.table = {"shift": [random(4)]}
        self.net = network()

    def __call__(self, x):
        inner = self.weight * x**self.power + self.table["shift"][0] + self.shift + self.doubled
        return self.squared(inner).sum() + self.net(x).sum()

    def method(self, x):
        return self(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda model: model,
        pytest.param(lambda model: model.method, marks=pytest.mark.sweep),
        lambda model: lambda x: model(x),
        pytest.param(
            lambda model: functools.partial(lambda model, x: model(x), model), marks=pytest.mark.sweep
        ),
        pytest.param(lambda model: lambda x, models=(model,): models[0](x), marks=pytest.mark.sweep),
        lambda model: remembered(lambda x: model(x)),
    ],
    ids=["object", "method", "closure", "partial", "default", "wrapper"],
)
def test_what_is_captured_is_read_from_where_it_stands(function):
    """Another tensor in the same place is seen at once; another value, object or shape compiles anew."""
    model = Model()
    gradient = covector.grad(function(model))
    fast = replay(gradient)

    def plans():
        assert_close(fast(x), gradient(x))
        return len(fast.plans)

    assert plans() == 1
    model.weight = random(4)
    model.table["shift"][0] = random(4)
    model.net[0].weight = torch.nn.Parameter(random(3, 4))
    assert plans() == 1
    model.power = 3
    assert plans() == 2
    model.power = 2
    assert plans() == 2
    model.net.eval()
    assert plans() == 3
    model.net = network()
    assert plans() == 4
    model.table = {"shift": [random(1)]}
    assert plans() == 5
    model._hidden = 2.0
    assert plans() == 6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "shift", 3.0)
        assert plans() == 7
    assert any("many with 2000 items" in name for name in fast.plans[0].fixed)


def test_globals_and_defaults():
    """A global number is compared; tensors that were one and are two compile anew."""
    fast = replay(covector.grad(energy))
    assert_close(fast(x), covector.grad(energy)(x))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "exponent", 2)
        assert_close(fast(x), covector.grad(energy)(x))
        patch.setitem(globals(), "weight", random(4))
        assert_close(fast(x), covector.grad(energy)(x))
    assert len(fast.plans) == 2
    tied = {"a": x, "b": x}
    fast = replay(covector.grad(lambda y: (y * tied["a"] * tied["b"]).sum()))
    fast(u)
    tied["b"] = u
    assert_close(fast(u), u * x)


def test_structures():
    """Shapes, dtypes, strides, trees and values each have a plan of their own, and are found again."""
    fast = replay(lambda tree, power: covector.grad(lambda t: (t["a"] ** power).sum())(tree))
    calls = [
        ({"a": x}, 2),
        ({"a": x}, 3),
        ({"a": x.float()}, 2),
        ({"a": rows}, 2),
        ({"a": rows.T}, 2),
        ({"a": x, "b": u}, 2),
    ]
    for tree, power in calls * 2:
        got, expected = fast(tree, power), {"a": power * tree["a"] ** (power - 1)}
        assert_close(got["a"], expected["a"])
    assert len(fast.plans) == len(calls)


def signed(x, number):
    """A sum with the sign of a number, which is 1 for one that is none."""
    sign = (
        1.0 if number != number else torch.copysign(torch.ones(()), torch.tensor(number.imag + number.real))
    )
    return (x * sign).sum()


@pytest.mark.parametrize("captured", [False, True])
def test_numbers_are_compared_as_they_are(captured):
    """A zero has a sign, also in a complex number, and what is no number is found again."""
    number = 0.0
    derivative = covector.grad(signed)
    fast = replay((lambda x: derivative(x, number)) if captured else derivative)
    numbers = [0.0, -0.0, float("nan"), complex(-0.0, 0.0), complex(-0.0, -0.0)]
    for number in [*numbers, float("nan"), -0.0]:
        got = fast(x) if captured else fast(x, number)
        assert_close(got, derivative(x, number))
    assert len(fast.plans) == len(numbers)


def test_each_dtype_of_autocast_has_a_plan():
    """What is computed in one of them is not what is computed in another."""
    matrix = random(4, 4).float()
    product = covector.jacrev(lambda x: matrix @ x)
    fast = replay(product)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            assert_close(fast(x.float()), product(x.float()))


trained = torch.tensor([3.0, -1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)


def by_grad_mode(x):
    """A function of grad mode, which it asks for by a name of its own."""
    return (x * (2 if enabled() else 3)).sum()


# Functions that ask for something that no argument and no variable tells.
ASKING = {
    "grad mode": by_grad_mode,
    "grad mode in forward mode": lambda x: covector.jvp(by_grad_mode, (x,), (u,))[1],
    "grad mode in a batch": lambda x: torch.vmap(by_grad_mode)(x.expand(2, 4)),
    "an argument": lambda x: x * (2 if x.requires_grad else 3),
    "a captured tensor": lambda x: x * (2 if trained.requires_grad else 3),
    "a result": lambda x: x * (2 if (x * trained).requires_grad else 3),
    "a gradient": lambda x: torch.autograd.grad((x * trained).sin().sum(), trained)[0],
    "inference mode": lambda x: x * (2 if torch.is_inference_mode_enabled() else 3),
    "determinism": lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3),
}


@contextlib.contextmanager
def deterministic():
    """Torch's deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ASKING)
def test_what_a_function_asks_of_torch_is_guarded(name):
    """Each call gives what the function gives in the modes of that call, an error included; no graph."""
    function = ASKING[name]
    fast, arguments = replay(function), [x, x.clone().requires_grad_()]
    modes = [contextlib.nullcontext, torch.no_grad, torch.inference_mode, deterministic]
    for mode, argument, required in [*itertools.product(modes, arguments, [True, False])] * 2:
        trained.requires_grad_(required)
        with mode():
            try:
                expected = function(argument)
            except RuntimeError:
                with pytest.raises(RuntimeError, match="does not require grad"):
                    fast(argument)
                continue
            got = fast(argument)
        assert_close(got, expected.detach(), rtol=0, atol=0)
        assert not got.requires_grad


def test_a_function_that_asks_nothing_has_one_plan_for_all_grad_modes():
    """Also where it switches grad mode itself, or is differentiated."""

    def switching(x):
        with torch.no_grad():
            scale = x.square().sum()
        return (scale * x * trained).sin().sum()

    for function in (switching, covector.grad(switching), covector.jacfwd(switching)):
        fast = replay(function)
        for mode in (contextlib.nullcontext, torch.no_grad, torch.enable_grad):
            with mode():
                assert_close(fast(x.clone().requires_grad_()), function(x).detach())
        assert len(fast.plans) == 1


def test_plans_print():
    """One on a line, with what is read and what is fixed."""
    fast = replay(covector.jacobian(lambda x: (x * weight, torch.tensor(2.0, **DOUBLE) * x.sum())))
    assert repr(fast.plans) == "nothing compiled yet"
    fast(x)
    (plan,) = fast.plans
    assert plan.captured == ("weight",)
    assert plan.fixed == ("a tensor of shape () made in the function or out of sight",)
    assert plan.operations > 0
    assert plan.seconds > 0
    line = repr(fast.plans)
    assert line.startswith("float64[4]: ")
    assert "mode, whose operations took" in line
    assert "reads weight" in line


normalized = torch.nn.BatchNorm1d(4).double()
REFUSED = {
    "a branch": (lambda x: x.sum() if x.sum() > 0 else -x.sum(), r"looks at the value.*test_compile.py"),
    "item": (lambda x: x.sum() * x[0].detach().item(), "looks at the value"),
    "NumPy": (lambda x: x.sum() * float(numpy.sum(x.detach().numpy())), r"numpy\), at .*test_compile.py"),
    "a list": (lambda x: x.sum() * x.detach().tolist()[0], r"tolist\), at .*test_compile.py"),
    "dropout": (lambda x: torch.dropout(x, 0.5, train=True).sum(), "random numbers with aten.bernoulli"),
    "noise": (lambda x: (x * torch.randn(4)).sum(), r"aten.randn.default, at .*test_compile.py"),
    "statistics": (lambda x: normalized(x.expand(3, 4)).sum(), "changes normalized.num_batches_tracked"),
    "a write": (lambda x: weight.detach().copy_(x.detach()).sum() * x.sum(), "changes weight in place"),
    "a size by values": (lambda x: x[x > 0].mean(), r"size depends on values, at .*test_compile\.py"),
    "a size that is only looked at": (
        lambda x: x.sum() * len(torch.nonzero(x > 0)), r"size depends on values, at .*test_compile\.py"
    ),
    "a size by repetition": (
        lambda x: x.repeat_interleave((x > 0).long()).sum(), "size depends on values"
    ),
    "a generator": (
        lambda x: (x * torch.randn(len(x), generator=torch.Generator(), **DOUBLE)).sum(),
        "draws random numbers with aten.randn.generator",
    ),
}  # fmt: skip


def test_the_line_of_a_user_whose_folders_are_called_like_packages(tmp_path):
    file = tmp_path / "torch" / "covector" / "net.py"
    file.parent.mkdir(parents=True)
    file.write_text("def net(x):\n    return x.sum() if x.sum() > 0 else -x.sum()\n")
    scope = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    with pytest.raises(UntraceableError, match=r"net\.py:2"):
        replay(covector.grad(scope["net"]))(x)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compiled_is_refused(name):
    """With the operation and the line; with a fallback it is run eagerly, and said once."""
    function, message = REFUSED[name]
    kept = weight.detach().clone()
    with pytest.raises(UntraceableError, match=message):
        replay(covector.grad(function))(x)
    fast = replay(covector.grad(function), fallback="eager")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", CompileWarning)
        fast(x)
        fast(-x)
    assert ["It is run eagerly" in str(warning.message) for warning in warned] == [True]
    assert fast.plans == ()
    if name in ("a branch", "item"):
        assert_close(fast(-x), covector.grad(function)(-x))
    weight.data.copy_(kept)


def test_a_captured_mask_decides_on_sizes():
    """While nothing is written to it; a new one, or another in its place, compiles anew."""
    point = torch.arange(4, **DOUBLE)
    mask = torch.tensor([True, False, True, True])

    def mean(x):
        return (x[mask] ** 2).mean() + x[: len(mask.nonzero())].sum()

    fast = replay(covector.grad(mean))
    for _ in range(2):
        assert_close(fast(point), covector.grad(mean)(point))
        assert len(fast.plans) == 1
    mask[0] = False
    assert_close(fast(point), covector.grad(mean)(point))
    mask = torch.ones(4, dtype=torch.bool)
    assert_close(fast(point), covector.grad(mean)(point))
    assert len(fast.plans) == 3


def test_an_operator_that_takes_functions_is_refused_by_name():
    """No program is made of a graph that has others inside."""

    def branch(x):
        return torch.cond(x.sum() > 0, lambda y: y**2, lambda y: y + 1, (x,))

    with pytest.raises(UntraceableError, match=r"an operator that takes functions \(torch.cond"):
        replay(branch)(x)


def test_a_compiled_function_is_copied_as_a_function_is():
    """A deep copy is the same function."""
    fast = replay(covector.grad(lambda x: x.sum()))
    assert copy.deepcopy({"fast": fast})["fast"] is fast


def test_the_first_result_is_compared():
    """A function that is not one, and a backend that is wrong."""
    calls, numbers = [], itertools.count(1)

    def counting(x):
        calls.append(1)
        return x * len(calls)

    with pytest.raises(UntraceableError, match="the length of calls outside of the function changes"):
        replay(counting)(torch.ones(2))
    with pytest.raises(CompiledMismatchError, match="is 3 compiled and 1 eagerly"):
        replay(lambda x: x * next(numbers))(torch.ones(2))

    def wrong(graph, inputs):
        return lambda *inputs: [result + 1e-6 for result in graph(*inputs)]

    with pytest.raises(CompiledMismatchError, match=r"result is .* compiled and .* eagerly"):
        covector.compile(covector.grad(energy), backend=wrong)(x)


def test_a_value_that_changes_at_each_call():
    """After some programs for the same arguments, the error names it."""
    factor = 0.0
    fast = replay(lambda x: x * factor)
    for _ in range(8):
        factor += 1
        assert_close(fast(x), x * factor)
    factor += 1
    with pytest.raises(UntraceableError, match="because factor outside of the function changes"):
        fast(x)
    fast = covector.compile(lambda x: x * factor, backend="replay", fallback="eager")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", CompileWarning)
        for _ in range(10):
            factor += 1
            assert_close(fast(x), x * factor)
    (one,) = warned
    assert "because factor outside of the function changes" in str(one.message)


def test_inside_others():
    """In a batch, a derivative or a compiled function it is the function itself."""
    hessian = covector.hessian(energy)
    fast = replay(hessian)
    fast(x)
    assert_close(torch.vmap(fast)(rows), torch.vmap(hessian)(rows))
    for verb in (covector.jacfwd, covector.jacrev, covector.jacobian, torch.func.jacrev):
        assert_close(verb(fast)(x), verb(hessian)(x))
    assert_close(covector.vjp(fast, x)[1](hessian(x)), covector.vjp(hessian, x)[1](hessian(x)))
    assert_close(covector.functional.jacobian(fast, x), covector.jacrev(hessian)(x))
    total = covector.grad(lambda x: replay(lambda y: (x * y).sum())(u))
    assert_close(total(x), u)
    assert_close(replay(lambda x: fast(x) + 1)(x), hessian(x) + 1)
    assert_close(torch.compile(lambda x: fast(x) + 1, fullgraph=True, backend="eager")(x), hessian(x) + 1)


def test_results_are_the_callers():
    """To change one in place changes neither the program nor what the function captures."""
    for function in (lambda x: x, lambda x: x.flip(0), lambda x: weight * x):
        fast, expected = replay(covector.jacrev(function)), covector.jacrev(function)(x)
        fast(x).zero_()
        assert_close(fast(x), expected.detach())


def test_data_of_another_kind():
    """A parameter may have become a tensor of another shape by `.data`."""
    parameter = torch.nn.Parameter(random(4))
    fast = replay(covector.grad(lambda x: (x * parameter).sum()))
    fast(x)
    parameter.data = random(1)
    assert_close(fast(x), parameter.detach().expand(4))
    assert len(fast.plans) == 2


def test_threads():
    """Several threads share one program."""
    fast, expected = replay(covector.hessian(energy)), covector.hessian(energy)(x).detach()
    wrong = []

    def work():
        for _ in range(20):
            if not torch.allclose(fast(x), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(fast.plans) == 1


def test_differentiable():
    """The result can be differentiated by arguments and captured tensors, or is refused."""
    gradient = covector.grad(energy)
    fast = replay(gradient, differentiable=True)
    point = x.clone().requires_grad_()
    expected = torch.autograd.grad(gradient(point).sum(), [point, weight])
    assert_close(torch.autograd.grad(fast(point).sum(), [point, weight]), expected)
    assert repr(fast.plans).startswith("float64[4]: replay, differentiable, ")


# Dynamo of torch 2.9 refuses a custom Function inside.
# Dynamo of 2.11 gives no reason.
THROUGH_CUSTOM = r"takes the backward of a custom|must override the setup_context|Observed exception"


def test_differentiable_through_a_custom_function():
    """Refused, and why; at a later call, too, if what requires grad is new."""
    through = covector.grad(lambda x: (StraightThrough.apply(x) * x * weight).sum())
    with pytest.raises(UntraceableError, match=THROUGH_CUSTOM):
        replay(through, differentiable=True)(x)
    scale = torch.full((), 2.0, **DOUBLE)
    through = covector.grad(lambda x: (StraightThrough.apply(x) * x * scale).sum())
    fast = replay(through, differentiable=True, fallback="eager")

    def differentiated():
        assert not fast(x).requires_grad
        scale.requires_grad_()
        return fast(x)

    with pytest.warns(CompileWarning, match=THROUGH_CUSTOM):
        found = differentiated()
    assert_close(torch.autograd.grad(found.sum(), scale), torch.autograd.grad(through(x).sum(), scale))
    scale.requires_grad_(False)
    point = x.clone().requires_grad_()
    assert_close(
        torch.autograd.grad(fast(point).sum(), point), torch.autograd.grad(through(point).sum(), point)
    )


def test_differentiable_is_compared_for_what_requires_grad():
    """A structure of arguments that require grad is another one."""
    fast = replay(lambda x: x.sin() * x, differentiable=True)
    for point in (x, x.clone().requires_grad_(), x):
        assert fast(point).requires_grad == point.requires_grad
    assert len(fast.plans) == 2
    factor = torch.ones(4, **DOUBLE)
    fast = replay(lambda x: x * factor, differentiable=True)
    assert not fast(x).requires_grad
    factor.requires_grad_()
    assert fast(x).requires_grad
    assert len(fast.plans) == 2


def test_inductor():
    """Machine code, of the mode that was measured to be faster."""
    fast = covector.compile(covector.hessian(energy))
    assert_close(fast(x), covector.hessian(energy)(x).detach())
    with torch.no_grad():
        weight.mul_(1.5)
    assert_close(fast(u), covector.hessian(energy)(u).detach())
    assert "inductor" in repr(fast.plans)
    assert "mode, whose operations took" in repr(fast.plans)


def test_without_a_compiler(monkeypatch):
    """The error says what needs none."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UnsupportedError, match="pass backend='replay'"):
        covector.compile(covector.grad(energy))(x)
    monkeypatch.undo()
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    with pytest.raises(UnsupportedError, match=r"there is none \(CXX=/nonexistent/g\+\+\)"):
        covector.compile(covector.grad(energy))(x)


def test_a_person_who_waits_is_told_for_what(monkeypatch):
    """On a terminal; a bar within that of another call is not shown."""
    terminal = errors_shown(monkeypatch, Terminal())
    loud = covector.compile(covector.grad(energy), backend="replay")
    loud(x)
    assert "compile(energy): compiling" in terminal.getvalue()
    before = terminal.getvalue()
    with progress("all of it"):
        covector.compile(covector.grad(energy), backend="replay")(x)
    assert "all of it" in terminal.getvalue()
    assert terminal.getvalue().count("compiling") == before.count("compiling")


def test_nothing_is_said_of_what_is_soon_done(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    covector.compile(covector.grad(energy), backend="replay")(x)
    assert terminal.getvalue() == ""


def test_options():
    """Checked at the door."""
    with pytest.raises(ArgumentTypeError, match="first argument must be a function"):
        covector.compile(x)
    with pytest.raises(ArgumentValueError, match="fallback must be None or 'eager'"):
        covector.compile(energy, fallback="loop")
    with pytest.raises(ArgumentTypeError, match="backend must be"):
        covector.compile(energy, backend=3)
    with pytest.raises(
        ArgumentValueError, match=r"one of inductor, replay, .* got 'reply'. Did you mean 'replay'"
    ):
        covector.compile(energy, backend="reply")
    with pytest.raises(ArgumentValueError, match="backend must be") as raised:
        covector.compile(energy, backend="zzz")
    assert "TESTING" not in str(raised.value)
    assert "mean" not in str(raised.value)
    with pytest.raises(ArgumentTypeError, match="arguments must be dense tensors"):
        replay(energy)(x.to_sparse())
    with pytest.raises(ArgumentTypeError, match="arguments must be dense tensors"):
        replay(lambda x, extra: x)(x, {1, 2})


def test_settings_of_modules_are_compared():
    """Of torch's own modules too, and what was put on one by hand."""
    norm = torch.nn.LayerNorm(4).double()
    norm.gain = 2.0
    derivative = covector.grad(lambda x: (norm(x) * x).sum() * norm.gain)
    fast = covector.compile(derivative, backend="replay")
    for change in ({}, {"eps": 0.5}, {"gain": 3.0}):
        vars(norm).update(change)
        assert_close(fast(x), derivative(x))
    assert len(fast.plans) == 3


class _Settings:
    scale = 2.0

    @functools.cached_property
    def offset(self):
        return 0.5


def _parts_from_outside():
    """A function, and changes of what it uses: each adds something, or exchanges what has nothing inside."""
    tensors, functions, settings = [torch.ones(4, **DOUBLE)], {"f": torch.sin}, _Settings()
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4, **DOUBLE))

    def function(x):
        total = sum((functions["f"](w * x) * settings.scale).sum() for w in tensors) + settings.offset
        return total + layers(x).square().sum() + sum(functions.get("more", ()))

    changes = {
        "a longer list": lambda: tensors.append(torch.full((4,), 2.0, **DOUBLE)),
        "another builtin": lambda: functions.update(f=torch.cos),
        "another key": lambda: functions.update(more=(x.sum() * 0 + 1,)),
        "an attribute that hides one of the class": lambda: setattr(settings, "scale", 5.0),
        "another layer": lambda: layers.append(torch.nn.Tanh()),
        "a hook": lambda: layers[0].register_forward_hook(lambda module, args, output: output * 3),
    }
    return function, changes


def test_what_is_added_outside_is_seen():
    """A program that was traced without it is not run again."""
    function, changes = _parts_from_outside()
    fast = replay(covector.value_and_jacobian(function))
    assert_close(fast(x), covector.value_and_jacobian(function)(x))
    for plans, (name, change) in enumerate(changes.items(), 2):
        change()
        assert_close(fast(x), covector.value_and_jacobian(function)(x), msg=lambda text: f"{name}: {text}")
        assert len(fast.plans) == plans, name


def _square(x):
    return (x**2).sum()


def _cube(x, power=3, *, factor=1.0):
    return factor * (x**power).sum()


def _replaced():
    """Functions, each with a change that leaves every object that it leads through where it was."""

    class Energy(torch.nn.Module):
        __slots__ = ("power",)

        def forward(self, x):
            return self.total(x)

        def total(self, x):
            return (x**self.exponent).sum() + self.constant(x)

        @staticmethod
        def constant(x):
            return x[0]

        @property
        def exponent(self):
            return self.power

    class Other(Energy):
        pass

    class Quartic(Energy):
        def total(self, x):
            return (x**4).sum()

    def copy(function):
        return types.FunctionType(function.__code__, globals(), "copy", function.__defaults__)

    module = Other()
    module.power = 2
    inner, holder, numbers, queue = copy(_cube), types.SimpleNamespace(power=2), {1, 2}, deque([2])
    inner.__kwdefaults__ = {"factor": 1.0}
    cube = staticmethod(lambda x: (x**3).sum())
    return {
        "a method": (module, lambda: setattr(Energy, "total", lambda self, x: _cube(x))),
        "a static method": (module, lambda: setattr(Energy, "constant", cube)),
        "a property": (module, lambda: setattr(Energy, "exponent", 5)),
        "a method that hides an inherited one": (
            module,
            lambda: setattr(Other, "forward", lambda _, x: _cube(x)),
        ),
        "a slot": (module, lambda: setattr(module, "power", 4)),
        "the class": (module, lambda: setattr(module, "__class__", Quartic)),
        "forward of an object": (module, lambda: setattr(module, "forward", _cube)),
        "a default": (lambda x: inner(x), lambda: setattr(inner, "__defaults__", (4,))),
        "a keyword default": (lambda x: inner(x), lambda: setattr(inner, "__kwdefaults__", {"factor": 2.0})),
        "the code": (lambda x: inner(x), lambda: setattr(inner, "__code__", _square.__code__)),
        "a namespace": (lambda x: (x**holder.power).sum(), lambda: setattr(holder, "power", 3)),
        "a set": (lambda x: (x ** len(numbers)).sum(), lambda: numbers.add(3)),
        "a queue": (lambda x: (x ** queue[0]).sum(), lambda: queue.appendleft(3)),
    }


@pytest.mark.parametrize("name", _replaced())
def test_what_is_replaced_in_place_is_seen(name):
    """Also where no attribute, global or closure of the function itself is another one."""
    function, change = _replaced()[name]
    fast, derivative = replay(covector.grad(function)), covector.grad(function)
    before = fast(x)
    change()
    assert_close(fast(x), derivative(x))
    assert not torch.equal(fast(x), before)
    assert len(fast.plans) == 2


def test_a_container_of_tensors_may_be_replaced():
    """What makes new dictionaries of new tensors at each step needs no new program for each."""
    inner = {"w": torch.ones(4, dtype=torch.float64), "b": torch.zeros(4, dtype=torch.float64)}
    state = ([inner, 2.0], "kept")
    data = torch.linspace(-1, 1, 4, dtype=torch.float64)

    def loss(x):
        held, power = state[0]
        return ((held["w"] * x + held["b"]).sin() ** power).sum()

    fast = covector.compile(covector.grad(loss), backend="replay")
    for _ in range(12):
        torch.testing.assert_close(fast(data), covector.grad(loss)(data))
        moved = {key: value + 0.1 * fast(data) for key, value in state[0][0].items()}
        state = ([moved, 2.0], "kept")
    assert len(fast.plans) == 1
    for other in ({"b": inner["b"], "w": inner["w"]}, {**inner, "more": inner["w"]}):
        state = ([other, 2.0], "kept")
        torch.testing.assert_close(fast(data), covector.grad(loss)(data))
    assert len(fast.plans) == 3  # the keys, or their order, are others
    state = ([inner, 3.0], "kept")
    torch.testing.assert_close(fast(data), covector.grad(loss)(data))
    assert len(fast.plans) == 4


def test_a_container_with_two_names_is_not_taken_for_another():
    """Of a container that stands in two places, one may be replaced, and the other be as it was."""
    first = second = [torch.ones(3, dtype=torch.float64)]

    def loss(x):
        return (x * first[0]).sum() + (x**2 * second[0]).sum()

    fast, x = covector.compile(covector.grad(loss), backend="replay"), torch.ones(3, dtype=torch.float64)
    torch.testing.assert_close(fast(x), torch.full_like(x, 3))
    second = [5 * first[0]]
    torch.testing.assert_close(fast(x), torch.full_like(x, 11))
    first = [7 * first[0]]
    torch.testing.assert_close(fast(x), torch.full_like(x, 17))


def test_a_sparse_result_is_refused_by_name():
    """With what to compile instead."""
    with pytest.raises(UntraceableError, match=r"returns a sparse tensor.*jacobian_plan\(f, x\).compile"):
        replay(covector.sparse_jacobian(lambda x: x * x))(x)


def test_programs_that_are_compared_take_turns():
    """So that other work on the machine does not make the faster one look slow; one alone is not run."""
    called = []
    first, second = functools.partial(called.append, 1), functools.partial(called.append, 2)
    assert len(least_seconds([first, second])) == 2
    assert called[:6] == [1, 2, 1, 2, 1, 2]
    called.clear()
    least_seconds([first])
    assert not called
