"""A function that writes to a tensor it captures: refused by name, and our graph does not stay behind."""

import functools

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
    "inside vmap": lambda f: torch.vmap(covector.grad(f))(x[None]),
    "inside grad": lambda f: covector.grad(lambda a: covector.grad(f)(a).sum())(x),
}
every_verb = pytest.mark.parametrize("verb", VERBS)

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

    return functools.partial(function, captured), captured, ""


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


WRITERS = [
    in_a_list,
    in_a_dict,
    of_an_object,
    of_an_attribute,
    copied,
    sliced,
    through_a_view,
    in_a_helper,
    of_a_module,
    of_a_module_in_a_closure,
    of_a_method,
    in_a_partial,
]


@every_verb
def test_every_verb_refuses(verb):
    """It says to which tensor the function wrote, and that tensor is a plain one afterwards."""
    function, captured, _ = copied()
    with pytest.raises(UnsupportedError, match="captured"):
        VERBS[verb](function)
    assert captured.is_leaf
    assert not captured.requires_grad
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(captured).tangent is None


@pytest.mark.parametrize("writer", WRITERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("verb", ["grad", "jvp", "functional.jacobian"])
def test_wherever_it_is_captured(writer, verb):
    """In a closure, a global, a helper, a module; whole, in part, through a view."""
    function, captured, name = writer()
    with pytest.raises(UnsupportedError, match=f"to {name}"):
        VERBS[verb](function)
    plain = captured if captured._base is None else captured._base  # torch takes no graph off a view
    assert not plain.requires_grad
    assert plain.grad_fn is None


@pytest.mark.parametrize("verb", ["grad", "vjp", "functional.vjp"])
def test_after_an_error_of_the_function(verb):
    """What the function raises reaches the caller, and no graph stays behind."""
    captured = torch.zeros(3, dtype=torch.float64)

    def function(a):
        captured.copy_(a)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        VERBS[verb](function)
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
