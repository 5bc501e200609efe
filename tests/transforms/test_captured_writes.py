"""A function that writes to a tensor it captures: refused by name, and nothing of the write stays."""

import contextlib
import functools
import itertools
import threading
import types

import pytest
import torch
from torch.autograd import forward_ad

import covector
from covector.errors import UnsupportedError

x = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
assert_close = torch.testing.assert_close

VERBS = {
    "grad": lambda f: covector.grad(f)(x),
    "grad, general": lambda f: covector.grad(f, argnums=(0,))(x),
    "grad_and_value": lambda f: covector.grad_and_value(f)(x),
    "vjp": lambda f: covector.vjp(f, x),
    "jvp": lambda f: covector.jvp(f, (x,), (x,)),
    "jacrev": lambda f: covector.jacrev(f)(x),
    "jacfwd": lambda f: covector.jacfwd(f)(x),
    "jacfwd, one by one": lambda f: covector.jacfwd(f, chunk_size=1)(x),
    "jacobian": lambda f: covector.jacobian(f)(x),
    "hessian": lambda f: covector.hessian(f)(x),
    "hvp": lambda f: covector.hvp(f, (x,), (x,)),
    "linearize": lambda f: covector.linearize(f, x),
    "functional.vjp": lambda f: covector.functional.vjp(f, x),
    "functional.jvp": lambda f: covector.functional.jvp(f, x, x),
    "functional.jacobian": lambda f: covector.functional.jacobian(f, x),
    "functional.hessian": lambda f: covector.functional.hessian(f, x),
    "functional.hvp": lambda f: covector.functional.hvp(f, x, x),
    "vjp, positions": lambda f: covector.vjp(lambda a, b: f(a * b), x, x),
    "vmap of grad": lambda f: torch.vmap(covector.grad(f))(x[None]),
    "vmap of jvp": lambda f: torch.vmap(lambda a: covector.jvp(f, (a,), (a,)))(x[None]),
    "grad of grad": lambda f: covector.grad(lambda a: covector.grad(f)(a).sum())(x),
    "jvp of grad": lambda f: covector.jvp(covector.grad(f), (x,), (x,)),
    "grad of jvp": lambda f: covector.grad(lambda a: covector.jvp(f, (a,), (a,))[1])(x),
    "jvp of jvp": lambda f: covector.jvp(lambda a: covector.jvp(f, (a,), (a,))[1], (x,), (x,)),
    "torch.func.grad of grad": lambda f: torch.func.grad(lambda a: covector.grad(f)(a).sum())(x),
    "grad, of the caller's graph": lambda f: covector.grad(f)(x.clone().requires_grad_()),
    "jvp, of the caller's graph": lambda f: covector.jvp(f, (x.clone().requires_grad_(),), (x,)),
    "jacrev, of a result": lambda f: covector.jacrev(f)(x.clone().requires_grad_() * 2),
    "functional.jacobian, create_graph": lambda f: covector.functional.jacobian(f, x, create_graph=True),
}

GLOBAL = torch.zeros(3, dtype=torch.float64)


class Inner(torch.nn.Module):
    pass


class Remembers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.inner.register_buffer("last", torch.zeros(3, dtype=torch.float64))

    def forward(self, a):
        self.inner.last.copy_(a)
        return (self.inner.last**2).sum()


def copied():
    captured = torch.zeros(3, dtype=torch.float64)

    def function(a):
        captured.copy_(a)
        return (captured**2).sum()

    return function, captured, "captured"


def sliced():
    captured = torch.zeros(2, 3, dtype=torch.float64)

    def function(a):
        captured[1] += a
        return (a**2).sum()

    return function, captured, "captured"


def through_a_view():
    whole = torch.zeros(2, 3, dtype=torch.float64)
    row = whole[0]

    def function(a):
        row.mul_(a)
        return (a**2).sum()

    return function, row, "row"


def in_a_helper():
    def helper(a):
        GLOBAL.copy_(a)
        return a

    return (lambda a: (helper(a) ** 2).sum()), GLOBAL, "GLOBAL"


def of_a_module():
    module = Remembers()
    return module, module.inner.last, "inner.last"


def of_a_module_in_a_closure():
    module = Remembers()
    return (lambda a: module(a)), module.inner.last, "module.inner.last"


def of_a_method():
    module = Remembers()
    return module.forward, module.inner.last, "self.inner.last"


def in_a_partial():
    captured = torch.zeros(3, dtype=torch.float64)

    def function(target, a):
        target.copy_(a)
        return (a**2).sum()

    return functools.partial(function, captured), captured, "an argument of a partial"


def in_a_list():
    held = [torch.zeros(3, dtype=torch.float64)]

    def function(a):
        held[0].copy_(a)
        return (a**2).sum()

    return function, held[0], r"held\[0\]"


def in_a_dict():
    held = {"last": torch.zeros(3, dtype=torch.float64)}

    def function(a):
        held["last"].add_(a)
        return (a**2).sum()

    return function, held["last"], r"held\['last'\]"


class Object:
    def __init__(self):
        self.last = torch.zeros(3, dtype=torch.float64)

    def __call__(self, a):
        self.last.copy_(a)
        return (a**2).sum()


def of_an_object():
    held = Object()
    return held, held.last, "last"


class Caches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = torch.zeros(3, dtype=torch.float64)

    def forward(self, a):
        self.cache.copy_(a)
        return (a**2).sum()


def of_an_attribute():
    module = Caches()
    return module, module.cache, "cache"


def of_a_distribution():
    normal = torch.distributions.Normal(torch.zeros(3, dtype=torch.float64), 1.0)

    def function(a):
        normal.loc.copy_(a)
        return (normal.loc * a).sum()

    return function, normal.loc, "normal.loc"


def by_out():
    captured = torch.zeros(3, dtype=torch.float64)

    def function(a):
        torch.add(a, a, out=captured)
        return (a**2).sum()

    return function, captured, "captured"


def by_a_list_of_tensors():
    captured = torch.zeros(3, dtype=torch.float64)

    def function(a):
        torch._foreach_add_([captured], [a])
        return (a**2).sum()

    return function, captured, "captured"


def by_its_data():
    captured = torch.zeros(3, dtype=torch.float64)

    def function(a):
        captured.data.copy_(a)
        return (a**2).sum()

    return function, captured, "captured"


def by_assignment_to_its_data():
    captured = torch.zeros(3, dtype=torch.float64)

    def function(a):
        captured.data = a
        return (a**2).sum()

    return function, captured, "captured"


def by_augmented_assignment():
    captured = torch.zeros(3, dtype=torch.float64)

    def function(a):
        same = captured
        same *= a
        return (a**2).sum()

    return function, captured, "captured"


def by_a_view_of_a_view():
    captured = torch.zeros(4, 3, dtype=torch.float64)

    def function(a):
        captured[1:].t().select(1, 0).sub_(a)
        return (a**2).sum()

    return function, captured, "captured"


def by_a_method_taken_before():
    captured = torch.zeros(3, dtype=torch.float64)
    write = captured.copy_

    def function(a):
        write(a)
        return (a**2).sum()

    return function, captured, "the tensor of write"


def by_a_name_made_up():
    captured = torch.zeros(3, dtype=torch.float64)

    def function(a):
        getattr(captured, "copy_")(a)  # noqa: B009
        return (a**2).sum()

    return function, captured, "captured"


def by_a_hook():
    captured = torch.zeros(3, dtype=torch.float64)
    module = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Softplus())

    def remember(module, inputs, output):
        captured.copy_(output)

    module[0].register_forward_hook(remember)
    return (lambda a: module(a).sum()), captured, "captured"


def to_the_numbers_of_an_argument():
    def function(a):
        x.add_(a)
        return (a**2).sum()

    return function, x, "x"


def to_a_default():
    captured = torch.zeros(3, dtype=torch.float64)

    def function(a, *, buffer=captured):
        buffer.copy_(a)
        return (a**2).sum()

    return function, captured, "buffer"


class Shared:
    last = torch.zeros(3, dtype=torch.float64)

    @classmethod
    def keep(cls, a):
        cls.last.copy_(a)


def of_a_class():
    def function(a):
        Shared.keep(a)
        return (a**2).sum()

    return function, Shared.last, "Shared.last"


notes = types.ModuleType("notes_of_the_user")
code = "import torch\nlast = torch.zeros(3, dtype=torch.float64)\ndef keep(a):\n    last.copy_(a)\n"
exec(code, notes.__dict__)


def of_a_module_of_python():
    def function(a):
        notes.keep(a)
        return (a**2).sum()

    return function, notes.last, "last"


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("total", torch.zeros(3, dtype=torch.float64))

    def forward(self, a):
        self.note(a)
        return (self.weight * a**2).sum()

    def note(self, a):
        self.total += a


def of_a_module_by_a_helper():
    module = Counts()
    return module, module.total, "total"


def before_an_error():
    captured = torch.zeros(3, dtype=torch.float64)

    def function(a):
        captured.copy_(a)
        raise KeyError("not reached")

    return function, captured, "captured"


WRITERS = [
    before_an_error,
    by_a_hook,
    by_a_list_of_tensors,
    by_a_method_taken_before,
    by_a_name_made_up,
    by_a_view_of_a_view,
    by_assignment_to_its_data,
    by_augmented_assignment,
    by_its_data,
    by_out,
    copied,
    in_a_dict,
    in_a_helper,
    in_a_list,
    in_a_partial,
    of_a_class,
    of_a_distribution,
    of_a_method,
    of_a_module,
    of_a_module_by_a_helper,
    of_a_module_in_a_closure,
    of_a_module_of_python,
    of_an_attribute,
    of_an_object,
    sliced,
    through_a_view,
    to_a_default,
    to_the_numbers_of_an_argument,
]


def assert_untouched(captured, was, at, version):
    """The tensor, what it is a view of, and a new view of it have neither other numbers nor a graph."""
    for tensor in (captured, captured[...], captured if captured._base is None else captured._base):
        assert not tensor.requires_grad
        assert tensor.grad_fn is None
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(captured).tangent is None
    assert captured.data_ptr() == at
    assert captured._version == version
    assert torch.equal(captured, was)


# Every verb refuses some writes, and a few verbs refuse all of them.
SOME = (copied, through_a_view, by_out, by_a_list_of_tensors)
FEW = ("grad", "jvp", "hessian", "jacfwd", "functional.jacobian", "vmap of grad", "jvp of grad")
WRITES = [(writer, verb) for writer in WRITERS for verb in VERBS if writer in SOME or verb in FEW]


@pytest.mark.parametrize(("writer", "verb"), WRITES, ids=lambda x: x if isinstance(x, str) else x.__name__)
def test_refused_and_untouched(writer, verb):
    """Whichever verb asks, wherever the tensor is captured, however it would be written to."""
    function, captured, name = writer()
    was, at, version = captured.clone(), captured.data_ptr(), captured._version
    with pytest.raises(UnsupportedError, match=rf"to (f\.)?{name}, a captured tensor"):
        VERBS[verb](function)
    assert_untouched(captured, was, at, version)


@pytest.mark.parametrize("verb", [*FEW, "vjp", "linearize"])
def test_large_tensors_are_not_copied(verb):
    """More than is kept: the operations are watched instead, and the write is refused before it is done."""
    captured = torch.zeros(10_000, dtype=torch.float64)

    def function(a):
        captured[:3].add_(a)
        return (captured[:3] * a).sum()

    with pytest.raises(UnsupportedError, match="to captured, a captured tensor"):
        VERBS[verb](function)
    assert_untouched(captured, torch.zeros_like(captured), captured.data_ptr(), 0)


@pytest.mark.parametrize("size", [3, 10_000])
@pytest.mark.parametrize("verb", ["grad", "vjp", "jvp", "jacrev"])
def test_refused_although_the_function_goes_on(verb, size):
    """One that catches what its own operation raises is refused too, whether the write was done or not."""
    captured = torch.zeros(size, dtype=torch.float64)

    def function(a):
        with contextlib.suppress(Exception):
            captured[:3].copy_(a)
        return (a**2).sum()

    with pytest.raises(UnsupportedError, match="to captured, a captured tensor"):
        VERBS[verb](function)
    assert_untouched(captured, torch.zeros_like(captured), captured.data_ptr(), 0)


def by_a_thread(captured, a):
    thread = threading.Thread(target=captured.copy_, args=(a,))
    thread.start()
    thread.join()


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, target, a):
        target.add_(a)
        ctx.mark_dirty(target)
        return target

    @staticmethod
    def backward(ctx, g):
        return g, g

    @staticmethod
    def jvp(ctx, of_target, of_a):
        return of_target.add_(of_a) if of_target is not None else of_a


def by_a_dirty_tensor(captured, a):
    Doubles.apply(captured, a)


class Slotted:
    __slots__ = ("run",)


def by_a_computed_name(captured, a):
    getattr(captured, "_".join(["copy", ""]))(a)


def by_text(captured, a):
    exec("t.copy_(a)", {"t": captured, "a": a})


def beside_a_watched_write(captured, a):
    torch.zeros(3).detach().add_(1)
    by_a_thread(captured, a)


def by_a_slot(captured, a):
    write = Slotted()
    write.run = captured.copy_
    (lambda b: write.run(b))(a)


UNSEEN = [by_a_thread, by_a_dirty_tensor, by_a_slot, by_a_computed_name, by_text, beside_a_watched_write]


@pytest.mark.parametrize("write", UNSEEN)
@pytest.mark.parametrize(
    "verb", ["grad", "vjp", "jacrev", "hessian", "functional.vjp", "functional.jacobian"]
)
def test_what_operations_do_not_show_is_undone(verb, write):
    """No operation of this thread writes to the tensor; its version tells, and its numbers are put back."""
    captured = torch.zeros(3, dtype=torch.float64)
    product = (torch.ones(3, dtype=torch.float64, requires_grad=True) * captured).sum()

    def function(a):
        write(captured, a)
        return (captured * a).sum()

    with pytest.raises(UnsupportedError, match="to captured, a captured tensor"):
        VERBS[verb](function)
    assert_untouched(captured, torch.zeros_like(captured), captured.data_ptr(), 0)
    product.backward()  # what was saved before is still right


def hidden(captured):
    """Ways to write whose name stands nowhere in code."""
    return itertools.repeat(captured.copy_)


@pytest.mark.parametrize("verb", ["grad", "vjp", "jvp", "functional.vjp"])
def test_what_the_code_does_not_show_is_found_afterwards(verb):
    """The name of the operation stands nowhere in the code; the version of the tensor tells."""
    captured = torch.zeros(3, dtype=torch.float64)
    ways = hidden(captured)

    def function(a):
        next(ways)(a)
        return (captured * a).sum()

    with pytest.raises(UnsupportedError, match="to captured, a captured tensor"):
        VERBS[verb](function)
    assert not captured.requires_grad


@pytest.mark.parametrize("way", [lambda captured: [captured.copy_], hidden])
@pytest.mark.parametrize("verb", ["grad", "vjp", "functional.vjp"])
def test_after_an_error_of_the_function(verb, way):
    """What the function raised after the write is the cause, and no graph stays behind."""
    captured = torch.zeros(3, dtype=torch.float64)
    ways = way(captured)

    def function(a):
        next(iter(ways))(a)
        raise KeyError("mine", captured.shape)

    with pytest.raises(UnsupportedError, match="to captured, a captured tensor") as caught:
        VERBS[verb](function)
    assert isinstance(caught.value.__cause__.__cause__, KeyError)
    assert not captured.requires_grad


@pytest.mark.parametrize("verb", ["grad", "vjp", "jvp", "jacrev", "hessian", "functional.hvp", "linearize"])
def test_what_is_not_refused(verb):
    """Writing what does not depend on the inputs, or detached, or to tensors of the function's own."""
    calls = torch.zeros((), dtype=torch.int64)
    record = torch.zeros(3, dtype=torch.float64)
    with torch.inference_mode():
        seen = torch.zeros(3)
    collected, state = [], {"last": record}

    def function(a):
        calls.add_(seen.shape[0])
        record.copy_(a.detach())
        own = torch.zeros_like(a)
        own += a
        collected.append(own)
        state["last"] = own
        return (own**3).sum()

    VERBS[verb](function)
    assert calls > 0
    assert_close(record, x)
    assert not record.requires_grad


class Averages(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def forward(self, a):
        with torch.no_grad():
            self.mean += 0.1 * a.mean()
        return ((a - self.mean) ** 2).sum()


@pytest.mark.parametrize("verb", ["grad", "vjp", "jacrev", "hessian", "functional.hvp", "linearize", "hvp"])
def test_running_statistics(verb):
    """What is written under no_grad has no graph, and is written; torch's own do the same."""
    module = Averages()
    VERBS[verb](module)
    assert_close(module.mean, 0.1 * x.mean())
    assert not module.mean.requires_grad
    norm = torch.nn.BatchNorm1d(1).double()
    VERBS[verb](lambda a: (norm(a[:, None]) ** 3).sum())
    assert_close(norm.running_mean, 0.1 * x.mean()[None])


@pytest.mark.parametrize("verb", ["jvp", "jacfwd", "vmap of jvp"])
def test_running_statistics_in_forward_mode(verb):
    """A tangent is written under no_grad too, so forward mode refuses, here as in torch.func."""
    module = Averages()
    with pytest.raises(UnsupportedError, match="to mean, a captured tensor"):
        VERBS[verb](module)
    assert_untouched(module.mean, torch.zeros_like(module.mean), module.mean.data_ptr(), 0)


def test_what_belongs_to_the_caller_is_left():
    """A captured tensor that gets the caller's own graph keeps it, as in a plain call."""
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    captured = torch.zeros(3, dtype=torch.float64)

    def function(a):
        captured.copy_(weight * 2)
        return (a * captured).sum()

    gradient = covector.grad(function)(x)
    assert_close(torch.autograd.grad(gradient.sum(), weight)[0], torch.full_like(x, 2))
    assert captured.requires_grad
