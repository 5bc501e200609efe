"""Every mistake at the door: our class, torch's class too, and a text that says what to do."""

import re

import pytest
import torch

import covector
from covector.errors import ArgumentTypeError, ArgumentValueError, CovectorError, OutputError

x = torch.arange(1.0, 4.0, dtype=torch.float64)
integers = torch.arange(3)


def total(x):
    return x.sum()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def identity(x):
    return x


def two(a, b):
    return (a * b).sum()


def constant(x):
    return torch.ones(2)


# name, what is done with a namespace of transforms, our class, what the text must hold
MISTAKES = [
    ("not callable", lambda t: t.grad(3)(x), ArgumentTypeError, "grad: the first argument must be a function, got 3 (int). Write grad(f)(x), not grad(f(x))."),
    ("class of a Function", lambda t: t.grad(Doubled)(x), ArgumentTypeError, "grad: got Doubled, a subclass of autograd.Function. Pass Doubled.apply."),
    ("class of a Module", lambda t: t.grad(torch.nn.ReLU)(x), ArgumentTypeError, "grad: got ReLU, a subclass of nn.Module. Pass ReLU(...), a module of that class."),
    ("vector output, sparse", lambda t: covector.sparse_hessian(identity)(x), OutputError, "or use sparse_jacobian for the whole Jacobian"),
    ("not callable vjp", lambda t: t.vjp(x, x), ArgumentTypeError, "vjp: the first argument must be a function"),
    ("no arguments", lambda t: t.grad(total)(), ArgumentValueError, "argnums=0 is out of range: the call has 0 positional arguments"),
    ("float", lambda t: t.grad(total)(3.0), ArgumentTypeError, "grad(total): can only differentiate by tensors, but x is 3.0 (float)"),
    ("float vjp", lambda t: t.vjp(total, 3.0), ArgumentTypeError, "vjp(total): can only differentiate by tensors"),
    ("float in dict", lambda t: t.grad(total)({"w": x, "lr": 0.1}), ArgumentTypeError, "x['lr'] is 0.1 (float)"),
    ("None in tree", lambda t: t.jacrev(total)([x, None]), ArgumentTypeError, "x[1] is None (NoneType)"),
    ("integers", lambda t: t.grad(total)(integers), ArgumentTypeError, "x has dtype torch.int64"),
    ("integers jvp", lambda t: t.jvp(total, (integers,), (integers,)), ArgumentTypeError, "x has dtype torch.int64"),
    ("integers in dict", lambda t: t.jacrev(total)({"k": integers}), ArgumentTypeError, "x['k'] has dtype torch.int64"),
    ("argnums range", lambda t: t.grad(total, argnums=2)(x), ArgumentValueError, "argnums=2 is out of range: the call has 1 positional argument."),
    ("argnums duplicate", lambda t: t.jacrev(two, argnums=(0, 0))(x, x), ArgumentValueError, "selected twice"),
    ("argnums duplicate negative", lambda t: t.jacfwd(two, argnums=(0, -2))(x, x), ArgumentValueError, "selected twice"),
    ("argnums empty", lambda t: t.grad(two, argnums=())(x, x), ArgumentValueError, "nothing to differentiate: argnums=(), argnames=None"),
    ("argnums list", lambda t: t.grad(two, argnums=[0])(x, x), ArgumentTypeError, "argnums must be an int, a tuple of ints, or None for all, got [0] (list)"),
    ("argnums string", lambda t: t.hessian(two, argnums="a")(x, x), ArgumentTypeError, "got 'a' (str)"),
    ("vector output", lambda t: t.grad(identity)(x), OutputError, "grad(identity): the function must return a scalar (a tensor of shape ()), got shape (3,). Reduce it (.sum() or .mean()); or use jacrev/jacfwd for the whole Jacobian; or use vjp for the product with one cotangent."),
    ("one-element output", lambda t: t.grad(lambda x: x.sum().reshape(1))(x), OutputError, "got shape (1,)"),
    ("number output of jacrev", lambda t: t.jacrev(lambda x: 3.0)(x), OutputError, "must return tensors only, but output is 3.0 (float). Did it call .item(), or forget to return?"),
    ("number output", lambda t: t.grad(lambda x: 3.0)(x), OutputError, "must return one scalar tensor, got 3.0 (float). Did it call .item(), or forget to return?"),
    ("tuple output", lambda t: t.grad(lambda x: (x.sum(), x))(x), OutputError, "got a tuple of 2. To return more than the value, use has_aux=True"),
    ("complex output", lambda t: t.grad(lambda x: (x * 1j).sum())(x), OutputError, "must return a real scalar, got torch.complex128"),
    ("None output", lambda t: t.jacrev(lambda x: None)(x), OutputError, "output is None (NoneType)"),
    ("empty output", lambda t: t.vjp(lambda x: (), x), OutputError, "must return at least one tensor"),
    ("string output", lambda t: t.jacrev(lambda x: {"y": x, "tag": "a"})(x), OutputError, "output['tag'] is 'a' (str). Return what is not to be differentiated as aux"),
    ("string output jacfwd", lambda t: t.jacfwd(lambda x: (x, "a"))(x), OutputError, "output[1] is 'a' (str)"),
    ("string output jvp", lambda t: t.jvp(lambda x: (x, "a"), (x,), (x,)), OutputError, "output[1] is 'a' (str)"),
    ("integer output", lambda t: t.vjp(lambda x: x.long(), x), OutputError, "output has dtype torch.int64. Return it as aux"),
    ("primals not a tuple", lambda t: t.jvp(torch.sin, x, (x,)), ArgumentTypeError, "primals must be a tuple, so that func(*primals) can be called, got Tensor. For one primal write (x,)."),
    ("no primals", lambda t: t.jvp(lambda: x, (), ()), ArgumentTypeError, "there is no tensor to differentiate by"),
    ("tangent structure", lambda t: t.jvp(torch.sin, (x,), (x, x)), ArgumentValueError, "the tangents must have the structure (*,), got (*, *)"),
    ("tangent list", lambda t: t.jvp(torch.sin, (x,), [x]), ArgumentValueError, "the tangents must have the structure (*,), got [*]"),
    ("tangent shape", lambda t: t.jvp(total, (x,), (x[:2],)), ArgumentValueError, "the tangent for x must be like it: expected shape (3,), torch.float64, cpu, got shape (2,), torch.float64, cpu."),
    ("tangent number", lambda t: t.jvp(total, (x,), (1.0,)), ArgumentTypeError, "the tangent for x must be a tensor, got 1.0 (float)"),
    ("cotangent structure", lambda t: t.vjp(identity, x)[1]((x, x)), ArgumentValueError, "the cotangents must have the structure *, got (*, *)"),
    ("cotangent shape", lambda t: t.vjp(identity, x)[1](x[:2]), ArgumentValueError, "the cotangent for output must be like it: expected shape (3,)"),
    ("cotangent broadcast", lambda t: t.vjp(identity, x)[1](x[:1]), ArgumentValueError, "expected shape (3,)"),
    ("cotangent complex", lambda t: t.vjp(identity, x)[1](x + 0j), ArgumentValueError, "torch.complex128"),
    ("cotangent path", lambda t: t.vjp(lambda x: {"y": x}, x)[1]({"y": x[:2]}), ArgumentValueError, "for output['y'] must be"),
    ("linearize tangent shape", lambda t: t.linearize(total, x)[1](x[:2]), ArgumentValueError, "the tangent for x must be like it"),
    ("linearize tangent dtype", lambda t: t.linearize(total, x)[1](x + 1j), ArgumentValueError, "torch.complex128"),
    ("linearize tangent structure", lambda t: t.linearize(total, x)[1](x, x), ArgumentValueError, "structure (*,), got (*, *)"),
    ("linearize number", lambda t: t.linearize(torch.sin, 1.0), ArgumentTypeError, "can only differentiate by tensors"),
    ("has_aux", lambda t: t.grad(total, has_aux=True)(x), OutputError, "with has_aux=True the function must return a tuple (output, aux), got a tensor of shape ()."),
    ("has_aux vjp", lambda t: t.vjp(lambda x: (x, x, x), x, has_aux=True), OutputError, "got a tuple of 3"),
    ("has_aux jacfwd", lambda t: t.jacfwd(lambda x: [x, x], has_aux=True)(x), OutputError, "got a list of 2"),
    ("has_aux jvp", lambda t: t.jvp(total, (x,), (x,), has_aux=True), OutputError, "must return a tuple (output, aux)"),
    ("strict", lambda t: t.jvp(lambda x: {"a": x, "b": torch.ones(2)}, (x,), (x,), strict=True), OutputError, "output['b'] does not depend on the primals, which strict=True refuses"),
    ("remove", lambda t: t.functionalize(total, remove="views")(x), ArgumentValueError, "remove must be 'mutations' or 'mutations_and_views', got 'views'"),
    ("randomness", lambda t: t.jacfwd(total, randomness="maybe")(x), ArgumentValueError, "jacfwd: randomness must be one of 'error', 'same', 'different', got 'maybe'"),
    ("chunk_size zero", lambda t: t.jacrev(total, chunk_size=0)(x), ArgumentValueError, "jacrev: chunk_size must be positive, got 0"),
    ("chunk_size negative", lambda t: t.jacrev(total, chunk_size=-1)(x), ArgumentValueError, "got -1"),
    ("chunk_size string", lambda t: t.jacrev(total, chunk_size="all")(x), ArgumentTypeError, "chunk_size must be None or a positive int, got 'all' (str)"),
    ("complex input", lambda t: t.jacrev(total)(x + 0j), ArgumentTypeError, "jacrev(total): x is complex (torch.complex128), and there is more than one derivative"),
    ("complex input jacfwd", lambda t: t.jacfwd(total)(x + 0j), ArgumentTypeError, "jacfwd(total): x is complex"),
    ("complex input hessian", lambda t: t.hessian(total)(x + 0j), ArgumentTypeError, "hessian(total): x is complex"),
    ("complex output jacrev", lambda t: t.jacrev(lambda x: x * 1j)(x), ArgumentTypeError, "output is complex"),
    ("complex output jacfwd", lambda t: t.jacfwd(lambda x: x * 1j)(x), ArgumentTypeError, "output is complex"),
]  # fmt: skip

# Mistakes that torch lets pass, or that its transforms have no keyword for.
OURS_ALONE = [
    ("chunk_size float", lambda t: t.jacrev(total, chunk_size=1.5)(x), ArgumentTypeError, "got 1.5 (float)"),
    ("tangent dtype", lambda t: t.jvp(total, (x,), (x + 1j,)), ArgumentValueError, "expected shape (3,), torch.float64, cpu, got shape (3,), torch.complex128, cpu"),
    ("tangent device", lambda t: t.jvp(total, (x,), (x.to("meta"),)), ArgumentValueError, "got shape (3,), torch.float64, meta"),
    ("cotangent dtype", lambda t: t.vjp(identity, x)[1](x + 1j), ArgumentValueError, "got shape (3,), torch.complex128, cpu"),
    ("cotangent device", lambda t: t.vjp(identity, x)[1](x.to("meta")), ArgumentValueError, "got shape (3,), torch.float64, meta"),
    ("no primals vjp", lambda t: t.vjp(lambda: x), ArgumentTypeError, "there is no tensor to differentiate by"),
    ("empty tree", lambda t: t.grad(lambda d: x.sum())({}), ArgumentTypeError, "there is no tensor to differentiate by"),
    ("functionalize not callable", lambda t: t.functionalize(3), ArgumentTypeError, "functionalize: the first argument must be a function"),
    ("argnames unknown", lambda t: t.grad(two, argnames="c")(x, b=x), ArgumentValueError, "grad(two): the call has no argument named 'c'; it has: a, b."),
    ("argnames type", lambda t: t.grad(two, argnames=(1,))(x, x), ArgumentTypeError, "argnames must be a string or a tuple of strings"),
    ("hessian chunk", lambda t: t.hessian(total, chunk_size=0)(x), ArgumentValueError, "hessian: chunk_size must be positive"),
    ("hessian randomness", lambda t: t.hessian(total, randomness="x")(x), ArgumentValueError, "hessian: randomness must be one of"),
    ("jacfwd chunk", lambda t: t.jacfwd(total, chunk_size=0)(x), ArgumentValueError, "jacfwd: chunk_size must be positive"),
    ("as_function", lambda t: t.as_function(torch.sin), ArgumentTypeError, "as_function: expected an nn.Module"),
    ("as_function names", lambda t: t.as_function(torch.nn.Linear(2, 2), "w*x"), ArgumentValueError, "as_function(Linear): no parameter is called 'w*x'; there are: weight, bias."),
]  # fmt: skip

# The same call on the verbs of torch.autograd.functional: refused before the result is called.
INPUTS = (x, [1.0, 2.0], x.numpy(), 2.0, (x,))
DOORS = (
    "grad", "grad_and_value", "jacrev", "jacfwd", "jacobian", "value_and_jacobian", "hessian", "hessian_blocks",
    "hessian_diagonal", "sparse_jacobian", "sparse_hessian",
)  # fmt: skip


@pytest.mark.parametrize("verb", DOORS)
@pytest.mark.parametrize("value", INPUTS, ids=lambda value: type(value).__name__)
def test_an_input_in_place_of_argnums_is_refused_at_once(verb, value):
    """And the call that was meant is written."""
    with pytest.raises(ArgumentTypeError) as caught:
        getattr(covector, verb)(total, value)
    start, _, instead = str(caught.value).partition(" got ")
    expected = "hold ints" if isinstance(value, tuple) else "be an int, a tuple of ints, or None for all"
    assert start == f"{verb}(total): argnums must {expected},"
    functional = f"{verb}(f, x) is in covector.functional; here it is {verb}(f)(x)."
    plain = f"Write {verb}(f)(x), not {verb}(f, x)."
    assert instead.endswith(functional if hasattr(covector.functional, verb) else plain)


def test_argnums_that_no_input_can_be_are_refused_at_once():
    """Without the advice."""
    with pytest.raises(ArgumentTypeError, match=r"None for all, got \[0\] \(list\)\.$"):
        covector.grad(total, [0])
    with pytest.raises(ArgumentTypeError, match=r"check\(total\): argnums must .*, got a tensor\.$"):
        covector.check(total, x, argnums=x)


def ids(table):
    return [row[0] for row in table]


@pytest.mark.parametrize(
    ("name", "act", "kind", "text"), MISTAKES + OURS_ALONE, ids=ids(MISTAKES + OURS_ALONE)
)
def test_mistake_is_explained(name, act, kind, text):
    """Our class, and a message with the fact, the place, what was got and what to do."""
    with pytest.raises(CovectorError, match=re.escape(text)) as caught:
        act(covector)
    assert type(caught.value) is kind


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "act", "kind", "text"), MISTAKES, ids=ids(MISTAKES))
def test_mistake_is_caught_by_code_written_for_torch(name, act, kind, text):
    """What torch.func raises for the mistake, our class is an instance of as well."""
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - the class is what is being found out
        act(torch.func)
    assert issubclass(kind, type(theirs.value)), f"torch raises {type(theirs.value).__name__}"


def test_errors_of_the_function_itself_pass_through():
    """An exception of the caller's own is not wrapped, whatever its class."""

    class Mine(RuntimeError):
        pass

    def fails(x):
        raise Mine("no")

    for act in (
        lambda: covector.grad(fails)(x),
        lambda: covector.vjp(fails, x),
        lambda: covector.jvp(fails, (x,), (x,)),
        lambda: covector.jacrev(fails)(x),
        lambda: covector.jacfwd(fails)(x),
        lambda: covector.hessian(fails)(x),
        lambda: covector.linearize(fails, x),
        lambda: covector.functionalize(fails)(x),
    ):
        with pytest.raises(Mine, match="no"):
            act()
