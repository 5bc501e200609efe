"""Causes that are easily taken for others: an order, a single entry, a cut, a mask, a Function inside."""

import pytest
import torch

import covector
from mutants import cube, cube_pull, normal, only, ruled

FORTH = torch.tensor([2, 5, 3, 0, 1, 4])
LONG = torch.randperm(30, generator=torch.Generator().manual_seed(0))
TURNED = torch.tensor([[0.0, -1.0, 0.5], [2.0, 0.3, 0.0], [0.1, 0.7, 1.0]], dtype=torch.float64)


def rearranged(order):
    """Elements in another order, and a gradient that is put in that order once more."""
    return ruled(lambda x: x[order], lambda g, x: g[order])


def worst(function, inputs, **keywords):
    """The worst finding of a check."""
    return covector.check(function, inputs, **keywords).worst


ORDERS = {
    "elements": (rearranged(FORTH), (6,)),
    "thirty elements": (rearranged(LONG), (30,)),
    "rows": (rearranged(FORTH), (6, 4)),
    "with a factor": (lambda x: 3 * rearranged(FORTH)(x), (6,)),
    "of a factor of each": (lambda x: rearranged(FORTH)(x.exp()), (6,)),
    "squares": (lambda x: rearranged(FORTH)(x) ** 2, (6,)),
    "squares of rows": (lambda x: rearranged(FORTH)(x) ** 2, (6, 4)),
    "rows, then a product": (lambda x: rearranged(FORTH)(x) @ TURNED, (6, 3)),
    "both sides": (lambda x: rearranged(FORTH)(x.exp()).sin(), (6,)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_that_is_not_undone_is_no_matrix(name):
    function, shape = ORDERS[name]
    (found,) = worst(function, normal(shape)(0)).diagnoses
    assert found.rule == "order not undone"
    assert "along dimension 0, the function puts the elements of `x` in another order" in found.evidence
    assert "argsort" in found.look


def test_an_order_that_is_its_own_inverse_is_right():
    assert covector.check(rearranged(torch.tensor([1, 0, 2, 4, 3])), normal((5,))(0))


def huber(x):
    return torch.where(x.abs() <= 1.5, 0.5 * x * x, 1.5 * (x.abs() - 0.75))


def test_one_wrong_entry_is_no_evidence_of_an_index():
    """Here it is a branch; the condition of the backward lacks an absolute value."""
    wrong = ruled(huber, lambda g, x: g * torch.where(x <= 1.5, x, 1.5 * x.sign()))
    (found,) = worst(wrong, torch.tensor([-3, -0.2, 0.3, 1, 2]).double().requires_grad_()).diagnoses
    assert (found.claim, found.rule) == ("possible", "few elements")
    assert "in one entry of the Jacobian; it is 2.000 x the numeric one" in found.evidence
    assert "a branch of a piecewise function that is taken at the value -3, or an index" in found.look
    assert "check more inputs with values like that one" in found.look


def strange(g, x):
    """A gradient that is wrong in no known way."""
    return g * (x.cos() + 0.1 * x**2)


class Strange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return strange(g, *ctx.saved_tensors)


class Odd(Strange):
    pass


def test_the_only_function_inside_is_named():
    (x,) = normal((3, 4))(0)
    found = worst(lambda x: (Strange.apply(x @ x.T) + x.sum()).tanh(), x)
    assert not found.diagnoses
    line = Strange.backward.__code__.co_firstlineno
    assert found.facts[0] == (
        f"The only custom Function on the way is `Strange` (test_causes.py:{line}): check it alone, "
        "covector.check(Strange.apply, ...)."
    )


def test_a_few_functions_inside_are_named():
    (x,) = normal((3, 4))(0)
    found = worst(lambda x: (Odd.apply(x @ x.T) * Strange.apply(x).sum()).tanh(), x)
    assert found.facts[0].startswith("The custom Functions on the way are `Odd` (")


def test_a_function_that_is_all_is_not_named():
    assert not any("Function" in fact for fact in worst(Strange.apply, normal((5,))(0)).facts)


SPARSE = torch.tensor([[1.0, 0, 2], [0, 0, 3]], dtype=torch.float64).to_sparse()


def test_a_masked_gradient_is_the_first_that_is_said():
    matrix, other = SPARSE.clone().requires_grad_(), normal((3, 2))(0)[0]
    report = covector.check(torch.sparse.mm, (matrix, other))
    (found,) = report.findings[0].diagnoses
    assert found.rule == "unspecified"
    assert "is masked: it does not specify the elements" in found.evidence
    assert found.look.startswith("`masked=True`")
    assert "No known kind" not in str(report)
    assert covector.check(torch.sparse.mm, (matrix, other), masked=True)


def whole(x):
    h = torch.tanh(x)
    return h.detach() * 3


def through_numpy(x):
    return torch.from_numpy(x.detach().numpy() ** 2)


def through_numbers(x):
    return torch.tensor([value**2 for value in x.tolist()], dtype=x.dtype)


def without_grad(x):
    with torch.no_grad():
        return x.exp()


CUTS = {
    whole: ("`h` is cut by `detach()`", 2),
    through_numpy: ("`x` is cut by `detach()`", 1),
    through_numbers: ("`x` is cut by `tolist()`", 1),
    without_grad: ("`x.exp()` is cut by `no_grad`", 2),
}


@pytest.mark.parametrize("function", CUTS)
def test_a_result_that_is_cut_as_a_whole_has_its_line(function):
    words, line = CUTS[function]
    found = worst(function, normal((4,))(0))
    (diagnosis,) = found.diagnoses
    place = f"test_causes.py:{function.__code__.co_firstlineno + line}"
    assert f"the derivative through {words} at {place}" in diagnosis.evidence
    assert diagnosis.evidence.endswith("with what is cut held constant, differences are zero too")
    assert found.advice == ""


def test_a_cut_that_is_not_found_is_guessed():
    """A custom Function that marks its result takes it out of the graph without an operation that shows."""

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.sin()
            ctx.mark_non_differentiable(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g

    found = worst(Marked.apply, normal((4,))(0))
    assert not found.diagnoses
    assert found.advice == "The function detaches its result, or runs under no_grad."


def test_where_the_second_derivative_is_of_a_whole_result_that_is_cut():
    with pytest.raises(covector.GradcheckError) as raised:
        covector.gradgradcheck(whole, normal((4,))(0))
    place = f"test_causes.py:{whole.__code__.co_firstlineno + 2}"
    assert f"The derivative through `h` is cut by `detach()` at {place}." in str(raised.value)


def test_constants_of_an_error_are_told_apart():
    """How many entries each has, and how many are right."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, generator=generator, dtype=torch.float64).requires_grad_()
    off = torch.tensor([-1.0, 1, 0], dtype=torch.float64).repeat(4)
    (found,) = worst(ruled(torch.sin, lambda g, x: g * (x.cos() + off)), x).diagnoses
    assert found.evidence == (
        "`backward` is off for input `arg0` by -1 at 4 entries and by 1 at 4 entries; the other 4 are right"
    )


def test_one_entry_of_many_is_possible_too():
    assert worst(ruled(cube, lambda g, x: only(3, 1.1)(cube_pull(g, x))), normal((40,))(0)).diagnoses[
        0
    ].sure == ("possible")


def test_axes_that_are_compared_are_said_in_their_order():
    """An axis of the output stands beside another one of the input."""
    repeated = ruled(lambda x: x.cumsum(0).expand(3, 5), lambda g, x: (g @ torch.ones(5, 5).double()).sum(0))
    (found,) = worst(repeated, normal((5,))(0)).diagnoses
    assert found.rule == "reach"
    assert found.evidence.startswith(
        "along dimension 0 of `x`, compared with dimension 1 of `output`, an output depends on elements at "
        "the same index and at earlier ones; "
    )
