"""Inside `torch.compile`: every verb is traced into one graph, with the numbers that it gives eagerly."""

from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import covector
from covering import covered

torch.manual_seed(0)
DOUBLE = {"dtype": torch.float64}
x = torch.randn(4, **DOUBLE)
u = torch.randn(4, **DOUBLE)
rows = torch.randn(5, 4, **DOUBLE)
weight = torch.randn(4, **DOUBLE, requires_grad=True)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)).double()
module, params = covector.as_function(net)
CAPTURED = [weight, *net.parameters()]


def energy(x):
    return (x.sin() * weight * x).sum()


def loss(x):
    return net(x).square().sum()


def total(params, x):
    return module(params, x).sum()


def square(x):
    return x * x * weight


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Legacy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def in_place(x):
    y = x.clone()
    y[0] = y[1] * 2
    return y.mul_(weight)


def attention(x):
    q = x.view(1, 1, 2, 2)
    return torch.nn.functional.scaled_dot_product_attention(q, 2 * q, q)


def batched(function):
    return lambda x: torch.vmap(function)(x * rows)


# By group: what is compiled together, as one function of x.
TABLE = {
    "gradients": {
        "grad": covector.grad(energy),
        "of a module": covector.grad(loss),
        "of a gradient": lambda x: covector.grad(lambda y: covector.grad(energy)(y).sum())(x),
        "with value": covector.grad_and_value(energy),
        "with aux": covector.grad(lambda x: (energy(x), {"double": x * 2}), has_aux=True),
        "by a dict": lambda x: covector.grad(lambda p: (p["a"] * p["b"]).sum())({"a": x, "b": 2 * weight}),
        "by name": lambda x: covector.grad(lambda a, *, b: (a * b).sum(), argnames="b")(x, b=x + 1),
        "by parameters": lambda x: covector.grad(lambda p: module(p, x).sum())(params),
        "with torch's": lambda x: torch.func.grad(lambda y: covector.grad(energy)(y).sum())(x),
    },
    "products": {
        "vjp": lambda x: covector.vjp(net, x)[1](torch.ones(2, **DOUBLE)),
        "jvp": lambda x: covector.jvp(net, (x,), (u,)),
        "jvp of grad": lambda x: covector.jvp(covector.grad(energy), (x,), (u,)),
        "hvp": lambda x: covector.hvp(energy, (x,), (u,)),
        "linearize": lambda x: covector.linearize(net, x)[1](u),
        "functionalize": covector.functionalize(lambda x: x.clone().add_(1)),
    },
    "Jacobians": {
        "jacrev": covector.jacrev(net),
        "jacfwd": covector.jacfwd(net),
        "jacobian": covector.jacobian(net),
        "of samples": lambda x: covector.jacobian(net, batch_dim=0)(x * rows),
        "holomorphic": lambda x: covector.jacobian(torch.sin, complex="holomorphic")(torch.complex(x, u)),
        "in place": covector.jacfwd(in_place),
    },
    "second derivatives": {
        "hessian": covector.hessian(energy),
        "forward over reverse": covector.hessian(energy, mode="forward"),
        "diagonal": covector.hessian_diagonal(energy),
    },
    "batches": {
        "grad": batched(covector.grad(energy)),
        "jacrev": batched(covector.jacrev(net)),
        "jacfwd": batched(covector.jacfwd(lambda x: 2 * x * weight + 1)),
        "hessian": batched(covector.hessian(energy)),
        "per sample": lambda x: torch.vmap(covector.grad(total), (None, 0))(params, x * rows),
    },
    "functional": {
        "jacobian": lambda x: covector.functional.jacobian(lambda a, b: (a * b, a.sum()), (x, x + 1)),
        "hessian": lambda x: covector.functional.hessian(energy, x, create_graph=True),
        "jvp": lambda x: covector.functional.jvp(net, x, u),
        "in a batch": batched(lambda x: covector.functional.jacobian(square, x, create_graph=True)),
    },
}  # fmt: skip

# The same verbs otherwise, which takes a while to compile.
MORE = {
    "products, more": {
        "jvp of jvp": lambda x: covector.jvp(lambda y: covector.jvp(energy, (y,), (u,))[1], (x,), (u,)),
        "grad of jvp": lambda x: covector.grad(lambda y: covector.jvp(energy, (y,), (u,))[1])(x),
        "complex": lambda x: covector.vjp(lambda z: z * z, torch.complex(x, x))[1](torch.complex(x, u)),
        "vhp": lambda x: covector.vhp(energy, (x,), (u,)),
    },
    "Jacobians, more": {
        "jacfwd in chunks": covector.jacfwd(net, chunk_size=3),
        "constant": covector.jacfwd(lambda x: weight.clone()),
        "same draw": covector.jacfwd(lambda x: torch.dropout(x, 0.0, train=True), randomness="same"),
        "with value": covector.value_and_jacobian(net),
        "named tuple": covector.jacrev(lambda x: Pair(x * weight, x.sum())),
        "one number": lambda x: covector.jacfwd(lambda a: a * 2)(x[:1]),
        "aux": covector.jacfwd(lambda x: (x * weight, {"more": x + 1, "number": 3}), has_aux=True),
        "several arguments": lambda x: covector.jacrev(lambda a, b: a * b * weight, argnums=(0, 1))(x, x + 1),
        "attention": covector.jacfwd(attention),
        "jacrev in chunks": covector.jacrev(net, chunk_size=1),
        "nothing": lambda x: covector.jacrev(lambda a: a * 2)(x[:0]),
    },
    "second derivatives, more": {
        "third": covector.jacrev(covector.hessian(energy)),
        "hessian of hessian": covector.hessian(covector.hessian(loss)),
        "attention": covector.hessian(lambda x: attention(x).sum()),
        "of several outputs": covector.hessian(net),
        "blocks": covector.hessian_blocks(energy),
        "of a linear function": covector.hessian(lambda x: (x * weight).sum()),
    },
    "batches, more": {
        "vjp": batched(lambda x: covector.vjp(net, x)[1](torch.ones(2, **DOUBLE))),
        "jvp": batched(lambda x: covector.jvp(energy, (x,), (u,))),
        "linearize": batched(lambda x: covector.linearize(energy, x)[1](u)),
    },
    "functional, more": {
        "forward": lambda x: covector.functional.jacobian(
            net, x, strategy="forward-mode", vectorize=True
        ),
        "vjp": lambda x: covector.functional.vjp(net, x, torch.ones(2, **DOUBLE)),
        "hvp": lambda x: covector.functional.hvp(energy, x, u),
        "vhp": lambda x: covector.functional.vhp(energy, x, u),
    },
}  # fmt: skip


# Verbs that are compiled by the tests of unknown sizes, too.
ELSEWHERE = {"gradients", "Jacobians"}


def by_captured(result):
    """The gradient of all that is in a result by the captured tensors."""
    total = sum(leaf.sum() for leaf in tree_leaves(result) if getattr(leaf, "requires_grad", False))
    return torch.autograd.grad(total, CAPTURED, materialize_grads=True)


def check_in_one_graph(functions):
    """Also after a captured weight was changed in place, and by the captured weights."""

    def together(x):
        return {name: function(x) for name, function in functions.items()}

    expected = together(x)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(together, fullgraph=True, backend=counter)
    assert_close(compiled(x), expected)
    with torch.no_grad():
        weight.mul_(1.5)
        net[0].weight.mul_(0.5)
    result, expected = compiled(2 * x), together(2 * x)
    assert_close(result, expected)
    assert_close(by_captured(result), by_captured(expected))
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("error:Dynamo detected", "ignore:.*no forward-mode rule")
@pytest.mark.parametrize(
    "group", covered([(group,) for group in TABLE], lambda group: group not in ELSEWHERE)
)
def test_one_graph_with_the_right_numbers(group):
    """Every verb, alone, composed and in batches."""
    check_in_one_graph(TABLE[group])


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*no forward-mode rule")
@pytest.mark.parametrize("group", MORE)
def test_more_in_one_graph(group):
    """The same for what differs less."""
    check_in_one_graph(MORE[group])


def test_a_transform_itself_is_compiled():
    """As `torch.compile(covector.grad(f))`, for new shapes and other functions too."""
    torch._dynamo.reset()
    for function in (lambda x: (x.sin() * x).sum(), lambda x: x.prod()):
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(covector.grad(function), fullgraph=True, backend=counter)
        for size in (3, 5, 6):
            point = torch.linspace(1, 2, size)
            assert_close(compiled(point), covector.grad(function)(point))
        assert counter.frame_count <= 2  # the second shape makes the graph one for any


def wave(x):
    return x.sin() * x


# Verbs and compositions for which one program does for all sizes.
OF_ANY_SIZE = {
    "products": {
        "grad": covector.grad_and_value(lambda x: wave(x).sum()),
        "vjp": lambda x: covector.vjp(wave, x)[1](x),
        "jvp": lambda x: covector.jvp(wave, (x,), (x,)),
        "linearize": lambda x: covector.linearize(wave, x)[1](x),
        "hvp": lambda x: covector.hvp(lambda x: wave(x).sum(), (x,), (x,)),
        "in a batch": lambda x: torch.vmap(covector.grad(lambda x: wave(x).sum()))(x[:, None] * x),
    },
    "Jacobians": {
        "jacfwd": covector.jacfwd(wave),
        "hessian": covector.hessian(lambda x: wave(x).sum()),
    },
    "Jacobians, more": {
        "jacrev": covector.jacrev(wave),
        "jacobian": covector.value_and_jacobian(wave),
        "of samples": lambda x: covector.jacobian(wave, batch_dim=0)(x[:, None] * x),
        "hessian, forward": covector.hessian(lambda x: wave(x).sum(), mode="forward"),
        "in a batch": lambda x: torch.vmap(covector.jacfwd(wave))(x[:, None] * x),
    },
}


@pytest.mark.parametrize(
    "group", ["products", "Jacobians", pytest.param("Jacobians, more", marks=pytest.mark.sweep)]
)
def test_sizes_that_are_unknown(group):
    """`dynamic=True` compiles once for all sizes."""
    functions = OF_ANY_SIZE[group]

    def together(x):
        return {name: function(x) for name, function in functions.items()}

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(together, fullgraph=True, dynamic=True, backend=counter)
    for size in (3, 5):
        point = torch.linspace(0.3, 1.2, size, **DOUBLE)
        assert_close(compiled(point), together(point))
    assert counter.frame_count == 1


def test_attention_of_what_is_trained():
    """The gradient can be differentiated by a captured weight, which that of the fused kernel cannot."""
    torch._dynamo.reset()
    derivative = covector.grad(lambda x: attention(x * weight).square().sum())
    result = torch.compile(derivative, fullgraph=True, backend="aot_eager")(x)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = derivative(x)
    assert_close(result, expected)
    (got,), (wanted,) = (torch.autograd.grad(r.sum(), weight) for r in (result, expected))
    assert_close(got, wanted)


@pytest.mark.parametrize("p", covered([(1.0,), (2.0,), (3.0,)], lambda p: p == 2.0))
def test_distances(p):
    """Jacobians of `cdist`, whose batched backward is wrong in torch, and its second derivative."""
    torch._dynamo.reset()
    points = torch.linspace(-1, 2, 6, **DOUBLE).cos().reshape(3, 2)

    def distances(y):
        return torch.cdist(y, points, p)

    def by_hand(y):
        return (y.unsqueeze(1) - points).abs().pow(p).sum(-1).pow(1 / p)

    def every(f, transforms):
        total = lambda y: f(y).sum()
        return lambda y: (transforms.jacrev(f)(y), transforms.jacfwd(f)(y), transforms.hessian(total)(y))

    point = rows[:4, :2]
    compiled = torch.compile(every(distances, covector), fullgraph=True, backend="aot_eager")
    assert_close(compiled(point), every(by_hand, torch.func)(point))


@pytest.mark.filterwarnings("ignore")
def test_maps_that_were_made_outside():
    """They are called eagerly, also after one of the same kind was traced."""
    torch._dynamo.reset()
    pull = covector.vjp(lambda x: {"y": x.sin()}, x)[1]
    push = covector.linearize(torch.sin, x)[1]

    def maps(y):
        inner = covector.vjp(torch.sin, y)[1](y), covector.linearize(torch.sin, y)[1](y)
        return inner, pull({"y": y}), push(y)

    assert_close(torch.compile(maps, backend="aot_eager")(u), maps(u))


class Force(torch.nn.Module):
    """A module with a derivative inside, which trains by its parameters."""

    def __init__(self):
        super().__init__()
        self.potential = torch.nn.Linear(3, 3)
        self.sign = 1

    def forward(self, x):
        return covector.grad(lambda y: self.sign * self.potential(y).sin().sum())(x) + x


def test_a_module_that_uses_a_verb_trains():
    """The gradient by its parameters is right, and another value in it is noticed."""
    force, point = Force(), torch.ones(3)
    torch._dynamo.reset()
    compiled = torch.compile(force, fullgraph=True, backend="aot_eager")
    for sign in (1, -1):
        force.sign = sign
        expected = torch.autograd.grad(force(point).sum(), list(force.parameters()))
        assert_close(compiled(point), force(point))
        assert_close(torch.autograd.grad(compiled(point).sum(), list(force.parameters())), expected)


normalized = torch.nn.Sequential(
    torch.nn.Linear(4, 6), torch.nn.GroupNorm(2, 6), torch.nn.LayerNorm(6)
).double()


in_chunks = partial(covector.jacfwd, chunk_size=3)


@pytest.mark.parametrize(
    "verb",
    covered([(covector.jacfwd,), (covector.jacrev,), (in_chunks,)], lambda verb: verb is covector.jacfwd),
)
def test_norms_with_weights(verb):
    """Their forward-mode rules cannot be traced, so that forward mode goes another way."""
    jacobian = verb(lambda x: normalized(x[None])[0])
    torch._dynamo.reset()
    compiled = torch.compile(jacobian, fullgraph=True, backend="aot_eager")
    for point in (x, 2 * x):
        assert_close(compiled(point), jacobian(point))


SECOND_IN_A_BATCH = {
    "hessian": covector.hessian,
    "hessian, forward": partial(covector.hessian, mode="forward"),
    "jacfwd of grad": lambda f: covector.jacfwd(covector.grad(f)),
    "hvp along one direction": lambda f: (
        lambda x: covector.hvp(f, (x,), (torch.arange(4.0, **DOUBLE),))[1][0]
    ),
}


@pytest.mark.parametrize(
    "name", covered([(name,) for name in SECOND_IN_A_BATCH], lambda name: name == "hessian")
)
def test_second_derivatives_of_norms_in_a_batch(name):
    """A backward that works in place on what it makes of a cotangent, which is the same for all samples."""
    derivative = SECOND_IN_A_BATCH[name](lambda x: torch.nn.functional.layer_norm(x, x.shape).pow(3).sum())
    points = torch.stack([x, 2 * x, -x])
    expected = torch.stack([derivative(point) for point in points])
    in_a_batch = torch.vmap(derivative)
    torch._dynamo.reset()
    assert_close(in_a_batch(points), expected)
    assert_close(torch.compile(in_a_batch, fullgraph=True, backend="aot_eager")(points), expected)


class Energy(torch.nn.Module):
    """Operations that `torch.export` keeps whole above autograd, or whose results the pullback keeps."""

    def __init__(self, derivative):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 1)
        self.derivative = derivative

    def hidden(self, x):
        return torch.tanh(self.norm(self.first(x)))

    def energy(self, x):
        return torch.einsum("i,i->", self.hidden(x), self.hidden(x).exp()) + self.last(self.hidden(x)).sum()

    def forward(self, x):
        return self.derivative(self, 2 * x), x.sin()


EXPORTED = {
    "grad": lambda m, x: covector.grad(m.energy)(x),
    "by a parameter": lambda m, x: covector.grad(lambda w: (w @ x).exp().sum())(m.first.weight),
    "vjp": lambda m, x: covector.vjp(m.hidden, x)[1](torch.ones(4)),
    "jvp": lambda m, x: covector.jvp(m.hidden, (x,), (x,)),
    "jacrev": lambda m, x: covector.jacrev(m.hidden)(x),
    "jacfwd": lambda m, x: covector.jacfwd(m.hidden)(x),
    "jacobian": lambda m, x: covector.jacobian(m.hidden, chunk_size=2)(x),
    "hessian": lambda m, x: covector.hessian(m.energy)(x),
    "hvp": lambda m, x: covector.hvp(m.energy, (x,), (x,)),
    "linearize": lambda m, x: covector.linearize(m.hidden, x)[1](x),
    "grad of hvp": lambda m, x: covector.grad(lambda y: covector.hvp(m.energy, (y,), (y,))[1][0].sum())(x),
    "functional.jacobian": lambda m, x: covector.functional.jacobian(m.hidden, x),
}


# One of each way to a derivative; the others share all but their last step with one of these.
WAYS = {"grad", "by a parameter", "jvp", "jacrev", "jacfwd", "hvp", "functional.jacobian"}


@pytest.mark.parametrize("name", covered([(name,) for name in EXPORTED], lambda name: name in WAYS))
def test_export(name):
    """A module that uses a verb is exported, and the program follows its input and its parameters."""
    module, point = Energy(EXPORTED[name]), torch.tensor([0.3, -0.2, 0.5])
    exported = torch.export.export(module, (torch.ones(3),)).module()
    assert_close(exported(point), module(point))
    weight = torch.linspace(-1, 1, 12).reshape(4, 3)
    for each in (module, exported):
        each.first.load_state_dict({"weight": weight, "bias": torch.ones(4)})
    assert_close(exported(point), module(point))


def test_export_of_a_batch():
    """The verb is called on the whole batch; inside `vmap` it is refused."""
    points = torch.linspace(0, 1, 6).reshape(2, 3)
    whole = Energy(lambda m, x: covector.jacobian(m.hidden, batch_dim=0)(x))
    assert_close(torch.export.export(whole, (points,)).module()(points / 2), whole(points / 2))
    single = Energy(lambda m, x: torch.vmap(covector.grad(m.energy))(x))
    with pytest.raises(Exception, match=r"torch.export cannot take a derivative inside torch.vmap"):
        torch.export.export(single, (points,))


def branching(x):
    if x.sum() > 0:
        return (x.sin() * weight).sum()
    return (x.cos() * weight).sum()


def compiled(function, **options):
    """The result of a compiled call; dynamo of torch 2.9 refuses a custom Function, in words of its own."""
    torch._dynamo.reset()
    try:
        return torch.compile(function, **options)(x)
    except torch._dynamo.exc.InternalTorchDynamoError as error:
        return function(x) if "must override the setup_context" in str(error) else None


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [StraightThrough, Legacy])
def test_a_custom_function(function, dynamic):
    """In one graph, too."""
    gradient = covector.grad(lambda x: (function.apply(x) * x).sum())
    result = compiled(gradient, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    assert_close(result, 2 * x + x.round())


AGAIN = {
    "gradient of a gradient": lambda f: covector.grad(lambda x: covector.grad(f)(x).sum()),
    "hessian": covector.hessian,
    "forward over reverse": lambda f: covector.jacfwd(covector.grad(f)),
    "forward": lambda f: lambda x: covector.jvp(f, (x,), (u,))[1],
}


@pytest.mark.parametrize(
    "name", covered([(name,) for name in AGAIN], lambda name: name.startswith("forward"))
)
@pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning")
def test_the_backward_of_a_custom_function_that_is_differentiated(name):
    """It is taken as constant by torch, silently: refused, or without fullgraph computed eagerly."""
    function = AGAIN[name](lambda x: (Legacy.apply(x) * x).sum())
    refusals = torch._dynamo.exc.Unsupported, torch._dynamo.exc.InternalTorchDynamoError
    # The last two are what dynamo says in torch 2.9 and 2.11.
    words = r"takes the backward of a custom|must override the setup_context|UnsupportedError.* has a C/C\+\+"
    torch._dynamo.reset()
    with pytest.raises(refusals, match=words):
        torch.compile(function, backend="eager", fullgraph=True)(x)
    assert_close(compiled(function, backend="eager"), function(x))


@pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning")
def test_a_gradient_through_a_custom_function_that_is_differentiated():
    """By what is captured: refused, or without fullgraph computed eagerly; not where nothing is recorded."""
    gradient = covector.grad(lambda x: (Legacy.apply(x * weight) ** 2).sum())
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"takes the backward of a custom|must override the setup_context"):
        torch.compile(gradient, backend="aot_eager", fullgraph=True)(x)
    found, expected = compiled(gradient, backend="aot_eager"), gradient(x)
    assert_close(torch.autograd.grad(found.sum(), weight), torch.autograd.grad(expected.sum(), weight))
    with torch.no_grad():
        assert_close(compiled(gradient, backend="aot_eager", fullgraph=True), expected.detach())


RECORDING = {
    "grad": covector.grad,
    "grad_and_value": covector.grad_and_value,
    "jacrev": covector.jacrev,
    "hessian": covector.hessian,
    "vjp": lambda f: lambda x: covector.vjp(f, x)[1](torch.ones((), **DOUBLE)),
    "linearize": lambda f: lambda x: covector.linearize(f, x)[1](u),
    "gradient of a gradient": lambda f: lambda x: covector.grad(lambda y: covector.grad(f)(y).sum())(x),
}


@pytest.mark.parametrize(
    "name", covered([(name,) for name in RECORDING], lambda name: name in ("vjp", "linearize", "jacrev"))
)
def test_without_grad_mode_nothing_is_recorded(name):
    """As without torch.compile, also where the function captures what requires grad."""
    torch._dynamo.reset()
    with torch.no_grad():
        result = torch.compile(RECORDING[name](energy), fullgraph=True, backend="eager")(x)
    assert not any(leaf.requires_grad for leaf in tree_leaves(result))


@pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning")
@pytest.mark.parametrize(
    "verb",
    covered([(covector.grad,), (covector.jacrev,), (covector.hessian,)], lambda verb: verb is covector.grad),
)
def test_what_raised_once_is_compiled_again(verb):
    """The functions that a verb makes share their code, which dynamo leaves alone once it raised."""

    def failing(x):
        raise ValueError("not here")

    torch._dynamo.reset()
    for wrapped in (verb(failing), lambda x: 2 * verb(failing)(x)):
        with pytest.raises(ValueError, match="not here"):
            torch.compile(wrapped, backend="eager")(x)
    counter = CompileCounterWithBackend("eager")
    assert_close(torch.compile(verb(energy), fullgraph=True, backend=counter)(x), verb(energy)(x))
    assert counter.frame_count == 1


BRANCHING = {
    "gradient": lambda y: covector.grad(branching)(y) + 1,
    "pullback": lambda y: covector.vjp(branching, y)[1](branching(y)),
    "hessian": lambda y: covector.hessian(branching)(y),
    "functional": lambda y: covector.functional.jacobian(branching, y),
    "jacrev": lambda y: covector.jacrev(lambda a: branching(a) * a)(y),
    "jacfwd": lambda y: covector.jacfwd(lambda a: branching(a) * a)(y),
    "jacobian": lambda y: covector.jacobian(branching)(y),
    "diagonal": lambda y: covector.hessian_diagonal(branching)(y),
    "linearize": lambda y: covector.linearize(branching, y)[1](y),
}


def test_a_branch_on_values():
    """With `fullgraph` the error names the line; without, the whole transform is run eagerly.

    Where dynamo of older releases does not name the line, it names what it cannot leave.
    """
    torch._dynamo.reset()
    named = r"without fullgraph=True it breaks here(.|\n)*line \d+, in branching|Graph break under"
    with pytest.raises(Exception, match=named):
        torch.compile(covector.grad(branching), fullgraph=True, backend="aot_eager")(x)
    compiled = torch.compile(covector.grad(branching), backend="aot_eager")
    for point in (x, -x):
        assert_close(compiled(point), covector.grad(branching)(point))


@pytest.mark.parametrize(
    "names", [["gradient", "pullback", "jacfwd"], pytest.param(list(BRANCHING), marks=pytest.mark.sweep)]
)
def test_transforms_of_a_branch_among_other_code(names):
    """Each is run eagerly, and what stands around it is compiled."""

    def together(x):
        y = 2 * x
        return {name: BRANCHING[name](y) for name in names}

    torch._dynamo.reset()
    compiled = torch.compile(together, backend="aot_eager")
    for point in (x, -x):
        assert_close(compiled(point), together(point))


def test_a_memory_limit_is_refused():
    """Nothing can be measured while a program is traced."""
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"max_memory cannot be kept to inside torch.compile"):
        torch.compile(covector.jacobian(torch.sin, max_memory="1 MB"), fullgraph=True, backend="eager")(x)
