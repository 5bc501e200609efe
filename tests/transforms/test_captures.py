"""What a result is connected to: captured tensors, the caller's own graph, or nothing."""

import gc
import weakref

import pytest
import torch

import covector

x = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
u = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)


def weights():
    return torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64, requires_grad=True)


def results(t, function, x):
    """Every result of every transform of a scalar function, flat, with a name."""
    gradient, value = t.grad_and_value(function)(x)
    output, vjp_fn = t.vjp(function, x)
    primal, tangent = t.jvp(function, (x,), (u,))
    return {
        "grad": t.grad(function)(x),
        "grad_and_value gradient": gradient,
        "grad_and_value value": value,
        "vjp output": output,
        "vjp product": vjp_fn(torch.ones_like(output))[0],
        "jvp output": primal,
        "jvp product": tangent,
        "jacrev": t.jacrev(function)(x),
        "jacfwd": t.jacfwd(function)(x),
        "hessian": t.hessian(function)(x),
    }


def gradients(result, by):
    if not result.requires_grad:
        return None
    return torch.autograd.grad(result.sum(), by, allow_unused=True, retain_graph=True)[0]


@pytest.mark.parametrize("mode", ["captured", "input", "both", "neither", "captured unused", "linear"])
def test_connections_are_those_of_torch_func(mode):
    """Same requires_grad, and the same gradient by `.backward()`, for every result of every transform."""
    w = weights()
    functions = {
        "captured": lambda x: (w * x.sin() * x).sum(),
        "input": lambda x: (x.sin() * x).sum(),
        "both": lambda x: (w * x.sin() * x).sum(),
        "neither": lambda x: (x.sin() * x).sum(),
        "captured unused": lambda x: (x.sin() * x).sum() + 0 * w.detach().sum(),
        "linear": lambda x: (w * x).sum(),
    }
    ours_x = x.clone().requires_grad_(mode in ("input", "both"))
    theirs_x = x.clone().requires_grad_(mode in ("input", "both"))
    ours = results(covector, functions[mode], ours_x)
    theirs = results(torch.func, functions[mode], theirs_x)
    for name, expected in theirs.items():
        got = ours[name]
        torch.testing.assert_close(got, expected, msg=name)
        if name == "hessian" and mode == "linear":
            # The Hessian of a function linear in x is zero; torch keeps a graph of zeros, we need not.
            continue
        assert got.requires_grad == expected.requires_grad, name
        for mine, their in ((w, w), (ours_x, theirs_x)):
            if not their.requires_grad:
                continue
            a, b = gradients(got, mine), gradients(expected, their)
            a = torch.zeros_like(their) if a is None else a
            b = torch.zeros_like(their) if b is None else b
            torch.testing.assert_close(a, b, msg=name)


def test_each_result_is_judged_by_itself():
    """Of two gradients and two outputs, only those that depend on the captured tensor require grad."""
    w = weights()
    by_x, by_y = covector.grad(lambda x, y: (w * x).sum() + (y**2).sum(), argnums=(0, 1))(x, u)
    assert by_x.requires_grad
    assert not by_y.requires_grad
    (first, second), _ = covector.vjp(lambda x: (w * x, x**2), x)
    assert first.requires_grad
    assert not second.requires_grad


def test_gradient_penalty():
    """A gradient can be part of a loss, and the loss reaches the captured parameters."""
    model = torch.nn.Linear(3, 1).double()
    penalty = covector.grad(lambda x: model(x).tanh().sum())(x).pow(2).sum()
    penalty.backward()
    ours = model.weight.grad.clone()
    model.zero_grad()
    torch.func.grad(lambda x: model(x).tanh().sum())(x).pow(2).sum().backward()
    torch.testing.assert_close(ours, model.weight.grad)


def test_meta_learning_step():
    """A step of inner gradient descent can be differentiated by its starting point."""
    start = weights()

    def loss(w):
        return ((w * x).sum() - 1) ** 2

    adapted = start - 0.1 * covector.grad(loss)(start)
    (outer,) = torch.autograd.grad(loss(adapted), start)
    theirs = start - 0.1 * torch.func.grad(loss)(start)
    torch.testing.assert_close(outer, torch.autograd.grad(loss(theirs), start)[0])


def test_cotangents_and_tangents_that_require_grad():
    """The products are differentiable in the vector they were made with."""
    v = u.clone().requires_grad_()
    _, vjp_fn = covector.vjp(lambda x: x.sin() * x, x)
    (product,) = vjp_fn(v)
    assert product.requires_grad
    (by_v,) = torch.autograd.grad(product.sum(), v)
    torch.testing.assert_close(by_v, x.sin() + x * x.cos())
    _, jvp_fn = covector.linearize(lambda x: x.sin() * x, x)
    (by_v,) = torch.autograd.grad(jvp_fn(v).sum(), v)
    torch.testing.assert_close(by_v, x.sin() + x * x.cos())
    assert not jvp_fn(u).requires_grad


def test_no_graph_is_kept_alive():
    """A result that requires no grad holds nothing of the run that made it."""
    kept = []

    def function(x):
        y = x.sin()
        kept.append(weakref.ref(y))
        return (y * y.exp()).sum()

    results = [
        covector.grad(function)(x),
        covector.jacrev(function)(x),
        covector.hessian(function)(x),
        covector.grad_and_value(function)(x),
    ]
    gc.collect()
    assert len(results) == 4
    assert [ref() for ref in kept] == [None] * len(kept)


def test_a_pullback_used_inside_another_transform():
    """A `vjp_fn` made at top level can be differentiated, batched and pushed by later transforms."""
    _, vjp_fn = covector.vjp(lambda x: x**3, x)
    expected = 3 * x**2
    for t in (covector, torch.func):
        by_v = t.grad(lambda v: vjp_fn(v)[0].sum())(u)
        torch.testing.assert_close(by_v, expected)
        torch.testing.assert_close(t.jacrev(lambda v: vjp_fn(v)[0])(u), expected.diag())
        torch.testing.assert_close(t.jacfwd(lambda v: vjp_fn(v)[0])(u), expected.diag())
        torch.testing.assert_close(t.jvp(lambda v: vjp_fn(v)[0], (u,), (u,))[1], expected * u)
    assert not covector.grad(lambda v: vjp_fn(v)[0].sum())(u).requires_grad
    batched = torch.vmap(vjp_fn)(torch.eye(3, dtype=x.dtype))[0]
    torch.testing.assert_close(batched, expected.diag())
    assert not batched.requires_grad


def test_tensor_subclasses_and_parameters_stay_the_callers():
    """Differentiating by a Parameter leaves its `.grad` alone and returns a plain tensor."""
    parameter = torch.nn.Parameter(x.clone())
    gradient = covector.grad(lambda p: (p**2).sum())(parameter)
    assert parameter.grad is None
    assert gradient.requires_grad
    assert type(gradient) is torch.Tensor


def test_another_argument_mutated_in_place_stays_without_graph():
    """As with torch.func the values change, but the caller's tensor does not join our graph."""
    y = u.clone()
    gradient = covector.grad(lambda x, y: (y.add_(x) * x).sum())(x, y)
    torch.testing.assert_close(gradient, u + 2 * x)
    torch.testing.assert_close(y, u + x)
    assert not y.requires_grad
    assert y.grad_fn is None
