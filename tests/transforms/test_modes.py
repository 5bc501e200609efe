"""Grad mode, inference mode, forward-AD mode, levels: obeyed inside, ignored outside, put back after."""

import pytest
import torch
from torch._C import _functorch as stack
from torch.autograd import forward_ad

import covector
from covector.errors import InferenceModeError

x = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
u = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)


def scalar(x):
    return (x.sin() * x).sum()


CALLS = {
    "grad": lambda f, x: covector.grad(f)(x),
    "grad_and_value": lambda f, x: covector.grad_and_value(f)(x)[0],
    "vjp": lambda f, x: covector.vjp(f, x)[1](torch.ones((), dtype=x.dtype))[0],
    "jvp": lambda f, x: covector.jvp(f, (x,), (u,))[1],
    "jacrev": lambda f, x: covector.jacrev(f)(x),
    "jacfwd": lambda f, x: covector.jacfwd(f)(x),
    "hessian": lambda f, x: covector.hessian(f)(x),
    "linearize": lambda f, x: covector.linearize(f, x)[1](u),
    "functionalize": lambda f, x: covector.functionalize(f)(x),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


def state():
    """Everything global that a transform touches."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch._C._is_fwd_grad_enabled(),
        forward_ad._current_level,
        torch._functorch.eager_transforms.JVP_NESTING,
        stack.peek_interpreter_stack() is None,
        stack.get_inplace_requires_grad_allowed(),
        torch.random.get_rng_state().sum().item(),
    )


def partly_hidden(x):
    with torch.no_grad():
        hidden = x**2
    return (x * hidden).sum()


def test_inner_no_grad_is_obeyed():
    """What is computed under no_grad inside the function is a constant to reverse mode."""
    for verb in ("grad", "jacrev"):
        torch.testing.assert_close(getattr(covector, verb)(partly_hidden)(x), x**2)
    torch.testing.assert_close(covector.vjp(partly_hidden, x)[1](torch.tensor(1.0).double())[0], x**2)
    torch.testing.assert_close(
        covector.grad(lambda x: covector.grad(partly_hidden)(x).sum())(x), torch.zeros_like(x)
    )


@each_call
def test_outer_no_grad_is_ignored(call):
    """A transform does not depend on the grad mode around it; its result has no graph there."""
    expected = call(scalar, x)
    with torch.no_grad():
        result = call(scalar, x.clone().requires_grad_())
        assert not torch.is_grad_enabled()
    torch.testing.assert_close(result, expected)
    assert not result.requires_grad


def test_no_grad_around_an_inner_transform_hides_it_from_the_outer_one():
    """As in torch.func: the inner gradient is computed, the outer sees a constant."""

    def function(t):
        def f(x):
            with torch.no_grad():
                inner = t.grad(scalar)(x)
            return (x * inner).sum()

        return t.grad(f)(x)

    torch.testing.assert_close(function(covector), function(torch.func))


@each_call
def test_inference_mode(call):
    """Under inference_mode, on tensors made there or outside, results are those of ordinary mode."""
    expected = call(scalar, x)
    with torch.inference_mode():
        made_inside = x.clone()
        torch.testing.assert_close(call(scalar, made_inside), expected)
        torch.testing.assert_close(call(scalar, x), expected)
        assert torch.is_inference_mode_enabled()
    torch.testing.assert_close(call(scalar, made_inside), expected)


def test_captured_inference_tensor_is_explained():
    """A captured tensor that can keep no graph gives a clear error, not zeros."""
    with torch.inference_mode():
        weight = u.clone()
    for verb in ("grad", "jacrev", "hessian"):
        with pytest.raises(InferenceModeError, match=rf"{verb}\(.*made under torch.inference_mode"):
            getattr(covector, verb)(lambda x: (weight * x).sum())(x)


@each_call
@pytest.mark.parametrize("depth", [0, 1])
def test_everything_is_put_back_when_the_function_raises(call, depth):
    """Levels, modes and the random state are as before, however deep the exception came from."""

    class Stop(Exception):
        pass

    def fails(x):
        raise Stop

    def nested(x):
        return covector.jacfwd(lambda y: covector.grad(lambda z: fails(z))(y))(x).sum()

    before = state()
    with pytest.raises(Stop):
        call((fails, nested)[depth], x)
    assert state() == before
    torch.testing.assert_close(covector.grad(scalar)(x), torch.func.grad(scalar)(x))


@each_call
def test_everything_is_put_back_after_success(call):
    """A successful call leaves no trace in any global mode, and none on its input."""
    before, copy, version = state(), x.clone(), x._version
    call(scalar, x)
    assert state() == before
    assert torch.equal(x, copy)
    assert x._version == version
    assert x.grad is None
    assert not x.requires_grad


@each_call
def test_inside_the_users_own_dual_level(call):
    """A forward-mode level that the user opened does not disturb ours, and still sees through it."""
    if call is CALLS["functionalize"]:
        call = CALLS["grad"]  # torch's functionalization does not carry dual tensors

    expected = torch.func.jvp(lambda x: call_by_torch(call, x), (x,), (u,))[1]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, u)
        tangent = forward_ad.unpack_dual(call(scalar, dual)).tangent
    torch.testing.assert_close(tangent, expected)


def call_by_torch(call, x):
    """The same derivative from torch.func, to be differentiated once more."""
    gradient = torch.func.grad(scalar)
    along = {
        "jvp": lambda x: (gradient(x) * u).sum(),
        "linearize": lambda x: (gradient(x) * u).sum(),
        "hessian": torch.func.jacrev(gradient),
    }
    name = next(name for name, known in CALLS.items() if known is call)
    return along.get(name, gradient)(x)


def test_forward_mode_works_where_it_was_switched_off():
    """Like grad mode, the forward-AD mode of the caller does not change a transform."""
    with forward_ad._set_fwd_grad_enabled(False):
        torch.testing.assert_close(covector.jvp(torch.sin, (x,), (u,))[1], x.cos() * u)
        torch.testing.assert_close(covector.jacfwd(torch.sin)(x), x.cos().diag())
        assert not torch._C._is_fwd_grad_enabled()


@pytest.mark.parametrize("name", ["grad", "grad_and_value", "vjp", "jacrev", "hessian", "linearize"])
def test_a_mode_of_the_caller_sees_what_the_function_does_and_no_questions(name):
    """What is asked of captured tensors, whether they were written to, is not shown to it."""
    seen = []

    class Listener(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if any(value is weight for value in args):
                seen.append(getattr(function, "__name__", str(function)))
            return function(*args, **(kwargs or {}))

    weight = torch.tensor([2.0, 0.5, 1.0], dtype=torch.float64)
    with Listener():
        CALLS[name](lambda x: (weight * x).sum(), x)
    assert set(seen) <= {"mul", "__mul__"}


def test_hooks_on_saved_tensors_are_the_callers_again():
    """Inside a batch a gradient refuses them, and leaves them as they were."""
    seen = []

    def pack(tensor):
        seen.append(tensor)
        return tensor

    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            with pytest.raises(RuntimeError, match="saved tensor hooks"):
                torch.vmap(covector.grad(scalar))(x.expand(2, 3))
            seen.clear()
            covector.grad(scalar)(x)
            assert seen
    torch.vmap(covector.grad(scalar))(x.expand(2, 3))
