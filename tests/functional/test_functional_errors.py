"""Every mistake: a class of ours, which is also the class that torch raises, and words that help."""

import pytest
import torch

from covector import functional
from covector.errors import CovectorError, NoGraphWarning, StrictError, UnsupportedError
from functional_table import LIBRARIES, WEIGHT, outcome

x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
y = torch.tensor([4.0, 5.0], dtype=torch.float64)
z = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128)
TWO = (x, y)


def cubes(x):
    return (x**3).sum()


MISTAKES = [
    # What is given
    ("inputs is a list", lambda f: f.jacobian(torch.sin, [x]), "inputs must be a tensor or a tuple"),
    ("inputs is a number", lambda f: f.vjp(torch.sin, 3.0), "inputs must be a tensor or a tuple"),
    ("an input is a number", lambda f: f.hvp(torch.sin, (x, 3.0)), "inputs[1] must be a tensor"),
    ("inputs is empty", lambda f: f.jacobian(lambda: x, ()), "empty tuple"),
    ("inputs is empty, by columns", lambda f: f.jacobian(lambda: x, (), vectorize=True, strategy="forward-mode"), "empty tuple"),
    ("integers", lambda f: f.jacobian(torch.abs, torch.arange(3)), "has dtype torch.int64"),
    ("integers, by columns", lambda f: f.jacobian(torch.abs, torch.arange(3), vectorize=True, strategy="forward-mode"), "has dtype torch.int64"),
    ("integers beside", lambda f: f.hessian(lambda x, n: (x**3).sum(), (x, torch.arange(3))), "inputs[1] has dtype"),
    ("no function", lambda f: f.jacobian(x, x), "must be a function"),
    # The vector
    ("vjp without v", lambda f: f.vjp(torch.sin, x), "v can be left out only if"),
    ("vjp without v, two outputs", lambda f: f.vjp(lambda x: (x.sum(), x.sum()), x), "v can be left out only if"),
    ("jvp without v", lambda f: f.jvp(torch.sin, x), "one input with one element"),
    ("hvp without v", lambda f: f.hvp(cubes, x), "one input with one element"),
    ("vhp without v", lambda f: f.vhp(cubes, x), "one input with one element"),
    ("vjp, wrong shape", lambda f: f.vjp(torch.sin, x, y), "expected (3,), got (2,)"),
    ("jvp, wrong shape", lambda f: f.jvp(torch.sin, x, y), "expected (3,), got (2,)"),
    ("hvp, wrong shape", lambda f: f.hvp(cubes, x, y), "expected (3,), got (2,)"),
    ("vhp, wrong shape", lambda f: f.vhp(cubes, x, y), "expected (3,), got (2,)"),
    ("jvp, wrong number", lambda f: f.jvp(torch.sin, x, (x, y)), "expected 1, got 2"),
    ("jvp, too few", lambda f: f.jvp(lambda x, y: x, TWO, x), "expected 2, got 1"),
    ("jvp, second one wrong", lambda f: f.jvp(lambda x, y: x, TWO, (x, x)), "v[1] has the wrong shape"),
    ("v is a list", lambda f: f.vjp(torch.sin, x, [x]), "v must be a tensor or a tuple"),
    ("v holds a number", lambda f: f.jvp(lambda x, y: x, TWO, (x, 1.0)), "v[1] must be a tensor"),
    ("complex v", lambda f: f.vjp(torch.sin, x, x + 0j), "must be real"),
    ("real v for complex", lambda f: f.vjp(torch.sin, z, z.real), "must be complex"),
    ("no v for complex", lambda f: f.vjp(torch.sum, z), "which direction is meant"),
    # What the function returns
    ("a list", lambda f: f.jacobian(lambda x: [x], x), "a tensor or a tuple of tensors"),
    ("a dict", lambda f: f.vjp(lambda x: {"y": x}, x, x), "a tensor or a tuple of tensors"),
    ("nothing", lambda f: f.jvp(lambda x: None, x, x), "got None"),
    ("a number", lambda f: f.jacobian(lambda x: x.sum().item(), x), "(float). Did it call .item(), or forget to return?"),
    ("a number in a tuple", lambda f: f.jacobian(lambda x: (x, 1.0), x), "output[1]"),
    ("a nested tuple", lambda f: f.jacobian(lambda x: (x, (x,)), x), "output[1]"),
    ("an empty tuple", lambda f: f.jacobian(lambda x: (), x), "empty tuple"),
    ("a tuple to hessian", lambda f: f.hessian(lambda x: (cubes(x),), x), "a single tensor"),
    ("a tuple to hvp", lambda f: f.hvp(lambda x: (cubes(x),), x, x), "a single tensor"),
    ("a tuple to vhp", lambda f: f.vhp(lambda x: (cubes(x),), x, x), "a single tensor"),
    ("a vector to hessian", lambda f: f.hessian(torch.sin, x), "one element"),
    ("a vector to hvp", lambda f: f.hvp(torch.sin, x, x), "one element"),
    ("a vector to vhp", lambda f: f.vhp(torch.sin, x, x), "one element"),
    # Complex
    ("complex output", lambda f: f.jacobian(torch.sin, z), "is complex"),
    ("complex output of reals", lambda f: f.jacobian(lambda x: x * 1j, x), "is complex"),
    ("complex number to hvp", lambda f: f.hvp(lambda z: (z**3).sum(), z, z), "a real number"),
    ("complex number to hessian", lambda f: f.hessian(lambda z: (z**3).sum(), z), "is complex"),
    ("complex inputs to hessian", lambda f: f.hessian(lambda z: z.abs().pow(2).sum(), z), "is complex"),
    # Options
    ("unknown strategy", lambda f: f.jacobian(torch.sin, x, strategy="sideways"), "'sideways'"),
    ("unknown outer strategy", lambda f: f.hessian(cubes, x, outer_jacobian_strategy="up"), "outer_jacobian_strategy must be"),
    ("columns with a graph", lambda f: f.jacobian(torch.sin, x, create_graph=True, vectorize=True, strategy="forward-mode"), "create_graph=True"),
    ("columns, strict", lambda f: f.jacobian(torch.sin, x, strict=True, vectorize=True, strategy="forward-mode"), "strict=True"),
    ("columns without vectorize", lambda f: f.jacobian(torch.sin, x, strategy="forward-mode"), "vectorize=False"),
    ("strict and vectorize", lambda f: f.jacobian(torch.sin, x, strict=True, vectorize=True), "vectorize=True"),
    ("hessian: columns with a graph", lambda f: f.hessian(cubes, x, create_graph=True, vectorize=True, outer_jacobian_strategy="forward-mode"), "create_graph=True"),
    ("hessian: columns, strict", lambda f: f.hessian(cubes, x, strict=True, vectorize=True, outer_jacobian_strategy="forward-mode"), "strict=True"),
    ("hessian: columns without vectorize", lambda f: f.hessian(cubes, x, outer_jacobian_strategy="forward-mode"), "vectorize=False"),
    ("hessian: strict and vectorize", lambda f: f.hessian(cubes, x, strict=True, vectorize=True), "vectorize=True"),
    # In place on an input
    ("in place", lambda f: f.jacobian(lambda x: x.mul_(2), x.clone()), "in-place"),
    ("jvp in place", lambda f: f.jvp(lambda x: x.mul_(x), x.clone(), x), "in-place"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "act", "words"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_mistake(name, act, words):
    """Ours is an instance of what torch raises, and says what is wrong."""
    theirs, ours = (outcome(lambda: act(library)) for library in LIBRARIES)
    assert isinstance(theirs, Exception), theirs
    assert isinstance(ours, type(theirs)), (ours, theirs)
    assert words in str(ours)
    if "place" not in name:  # what the function itself raises is passed on
        assert isinstance(ours, CovectorError)
        assert str(ours).startswith("functional.")


def constant(x, *rest):
    return torch.ones((), dtype=x.dtype)


STRICT = [
    # An output that requires no grad
    ("vjp, constant", lambda f, k: f.vjp(constant, x, **k), "does not require grad"),
    ("jvp, constant", lambda f, k: f.jvp(constant, x, x, **k), "does not require grad"),
    ("jacobian, constant", lambda f, k: f.jacobian(constant, x, **k), "does not require grad"),
    ("hessian, constant", lambda f, k: f.hessian(constant, x, **k), "does not require grad"),
    ("hvp, constant", lambda f, k: f.hvp(constant, x, x, **k), "does not require grad"),
    ("vhp, constant", lambda f, k: f.vhp(constant, x, x, **k), "does not require grad"),
    ("second output constant", lambda f, k: f.jacobian(lambda x: (x, constant(x)), x, **k), "output[1]"),
    # An output that is independent of an input, though it requires grad
    ("vjp, one unused", lambda f, k: f.vjp(lambda x, y: x.sin(), TWO, x, **k), "depend on inputs[1]"),
    ("jvp, one unused", lambda f, k: f.jvp(lambda x, y: x.sin(), TWO, TWO, **k), "depend on inputs[1]"),
    ("jacobian, one unused", lambda f, k: f.jacobian(lambda x, y: x.sin(), TWO, **k), "depend on inputs[1]"),
    ("hessian, one unused", lambda f, k: f.hessian(lambda x, y: cubes(x), TWO, **k), "inputs[1]"),
    ("hvp, one unused", lambda f, k: f.hvp(lambda x, y: cubes(x), TWO, TWO, **k), "inputs[1]"),
    ("vhp, one unused", lambda f, k: f.vhp(lambda x, y: cubes(x), TWO, TWO, **k), "inputs[1]"),
    ("jacobian, a block", lambda f, k: f.jacobian(lambda x, y: (x.sin() * y.sum(), y.sin()), TWO, **k), "output[1] does not depend on inputs[0]"),
    ("only a captured weight", lambda f, k: f.vjp(lambda x: WEIGHT * 2, x, x, **k), "depend on inputs[0]"),
    ("jvp, only a captured weight", lambda f, k: f.jvp(lambda x: WEIGHT * 2, x, x, **k), "depend on inputs[0]"),
    # A gradient that is independent of the inputs
    ("hessian, linear", lambda f, k: f.hessian(lambda x: 2 * x.sum(), x, **k), "is linear"),
    ("hvp, linear", lambda f, k: f.hvp(lambda x: 2 * x.sum(), x, x, **k), "is linear"),
    ("vhp, linear", lambda f, k: f.vhp(lambda x: 2 * x.sum(), x, x, **k), "is linear"),
    ("hvp, linear in a captured weight", lambda f, k: f.hvp(lambda x: (WEIGHT * x).sum(), x, x, **k), "depend on inputs[0]"),
    ("vhp, linear in a captured weight", lambda f, k: f.vhp(lambda x: (WEIGHT * x).sum(), x, x, **k), "depend on inputs[0]"),
    ("hessian, separable", lambda f, k: f.hessian(lambda x, y: cubes(x) + cubes(y), TWO, **k), "depend on inputs[1]"),
]  # fmt: skip

STRICT_WITH_GRAPH = [
    ("vjp, linear", lambda f: f.vjp(lambda x: 2 * x, x, x, create_graph=True, strict=True), "the Jacobian"),
    ("jvp, linear", lambda f: f.jvp(lambda x: 2 * x, x, x, create_graph=True, strict=True), "the Jacobian"),
    ("jacobian, linear", lambda f: f.jacobian(lambda x: 2 * x, x, create_graph=True, strict=True), "the Jacobian"),
    ("hessian, quadratic", lambda f: f.hessian(lambda x: (x * x).sum(), x, create_graph=True, strict=True), "the Hessian"),
    ("hvp, quadratic", lambda f: f.hvp(lambda x: (x * x).sum(), x, x, create_graph=True, strict=True), "the Hessian"),
    ("vhp, quadratic", lambda f: f.vhp(lambda x: (x * x).sum(), x, x, create_graph=True, strict=True), "the Hessian"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::covector.errors.NoGraphWarning")
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(("name", "act", "words"), STRICT, ids=[row[0] for row in STRICT])
def test_strict(name, act, words, create_graph):
    """What strict refuses is refused by both; without strict both give zeros there."""
    keywords = {"strict": True, "create_graph": create_graph}
    theirs, ours = (outcome(lambda: act(library, keywords)) for library in LIBRARIES)
    assert isinstance(theirs, RuntimeError), theirs
    assert isinstance(ours, StrictError), ours
    assert words in str(ours)
    for library in LIBRARIES:
        act(library, {"strict": False, "create_graph": create_graph})


@pytest.mark.parametrize(("name", "act", "words"), STRICT_WITH_GRAPH, ids=[r[0] for r in STRICT_WITH_GRAPH])
def test_strict_with_graph(name, act, words):
    """With create_graph a derivative that is constant is refused too."""
    theirs, ours = (outcome(lambda: act(library)) for library in LIBRARIES)
    assert isinstance(theirs, RuntimeError), theirs
    assert isinstance(ours, StrictError), ours
    assert words in str(ours)


class Once(torch.autograd.Function):
    """A cube whose backward cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


@pytest.mark.parametrize("verb", ["hvp", "vhp", "hessian"])
def test_a_backward_without_a_derivative_is_named(verb):
    """The original gives zeros, or something about a delayed error; ours says what is missing."""
    arguments = (x,) if verb == "hessian" else (x, x)
    with pytest.raises(UnsupportedError, match="once_differentiable"):
        getattr(functional, verb)(lambda x: Once.apply(x).sum(), *arguments)
    with pytest.raises(UnsupportedError, match="once_differentiable"):
        getattr(functional, verb)(lambda x: Once.apply(x).sum() + cubes(x), *arguments)


def test_a_backward_without_a_derivative_elsewhere_is_no_obstacle():
    """Only what stands between the output and an input counts."""
    weight = torch.ones(3, dtype=x.dtype, requires_grad=True)
    got = functional.hvp(lambda x: (Once.apply(weight) * x**3).sum(), x, x)[1]
    torch.testing.assert_close(got, 6 * x * x)


def test_first_derivatives_of_it_are_there():
    """The first derivative exists, also the product from the right, which the original cannot give."""
    expected = 3 * x**2
    torch.testing.assert_close(functional.vjp(Once.apply, x, x)[1], expected * x)
    torch.testing.assert_close(functional.jvp(Once.apply, x, x)[1], expected * x)
    torch.testing.assert_close(functional.jacobian(Once.apply, x), expected.diag())


def test_texts():
    """Whole messages, as the user reads them."""
    assert str(outcome(lambda: functional.jvp(cubes, x, y))) == (
        "functional.jvp(cubes): v has the wrong shape: expected (3,), got (2,)."
    )
    assert str(outcome(lambda: functional.jacobian(lambda x, y: x.sin(), TWO, strict=True))) == (
        "functional.jacobian(<lambda>): the output does not depend on inputs[1]; strict=True refuses that. "
        "Without strict its derivative is zero."
    )
    assert str(outcome(lambda: functional.hessian(cubes, x, strict=True, vectorize=True))) == (
        "functional.hessian: strict=True and vectorize=True exclude each other. Change one of the two."
    )


def test_a_jacobian_without_a_graph_is_zero_and_says_why():
    with pytest.warns(NoGraphWarning, match=r"detach\(\), \.data, \.item\(\)") as caught:
        found = functional.jacobian(lambda x: x.detach() * 2, torch.ones(2))
    assert torch.equal(found, torch.zeros(2, 2))
    assert caught[0].filename == __file__
