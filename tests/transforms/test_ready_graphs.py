"""Graphs made ready: a replayed program computes what the function does, with fewer operations."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import covector
from covector._engine.bindings import by_functions
from covector._engine.program import trace
from covector._engine.ready import short, written_out
from covector.errors import Caller

X = torch.tensor([0.5, -1.0, 2.0, 1.5, -0.3], dtype=torch.float64)
INDEX = torch.tensor([0, 3, 3, 1])
WEIGHTS = torch.arange(5, dtype=torch.float64)
put = torch.ops.aten.index_put


def in_place(x):
    y = WEIGHTS.clone()
    y.add_(x)
    return y * 1


FUNCTIONS = {
    "constants alone": lambda x: (WEIGHTS * 2).sin() + 1,
    "constants and the argument": lambda x: (WEIGHTS * 2).sin() * x,
    "a factor of one": lambda x: (x * 1).sin() * torch.ones_like(x) + x,
    "one over": lambda x: 1 / (x / 1),
    "one times an integer": lambda x: (x.long() * 1.0) / 2,
    "powers": lambda x: (x**1).sin() + (x.log() ** 0) * x,
    "twice the same": lambda x: x.sin() * x.sin() + x[1:].sum() * x[1:].sum(),
    "a view of a constant": lambda x: (WEIGHTS[1:3], x),
    "the argument itself": lambda x: x * 1,
    "in place": in_place,
    "zeros": lambda x: torch.zeros_like(x).index_add(0, INDEX, x[:4]),
    "a gradient of an index": lambda x: put(x.new_zeros(2, 5), [None, INDEX], x.new_ones(2, 1) * x[:4], True),
    "an index from the end": lambda x: x.new_zeros(5).index_put((INDEX - 5,), x[:4], accumulate=True),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_short_program_computes_the_same(name):
    """To the last bit; also after its results, which belong to the caller, were changed."""
    function = FUNCTIONS[name]
    fast = covector.compile(function, backend="replay")
    for x in (X, X.flip(0) - 1):
        for _ in range(2):
            kept = x.clone()
            results, expected = fast(kept), function(x)
            torch.testing.assert_close(results, expected, rtol=0, atol=0, equal_nan=True)
            for result in results if isinstance(results, tuple) else (results,):
                if result is not kept:
                    result.fill_(7.0)


def operations(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("name", "left"), [("constants alone", 1), ("constants and the argument", 1), ("a factor of one", 2),
                       ("powers", 2), ("a gradient of an index", 3), ("in place", 3)],
)  # fmt: skip
def test_what_is_left_out(name, left):
    def on_constants(x, weights, index):
        replaced = {"WEIGHTS": weights, "INDEX": index}
        function = FUNCTIONS[name]
        return [type(function)(function.__code__, globals() | replaced)(x)]

    module = make_fx(on_constants, tracing_mode="real")(X, WEIGHTS, INDEX)
    shortened = short(module, {1: WEIGHTS, 2: INDEX})
    expected = FUNCTIONS[name](X)
    assert torch.equal(shortened(X, WEIGHTS, INDEX)[0].nan_to_num(), expected.nan_to_num())
    assert len(operations(shortened)) <= left, shortened.code
    assert ("aten.index_add.default" in operations(shortened)) == (name == "a gradient of an index")


# Each with how many of its operations are left to operators by schema.
BY_FUNCTIONS = {
    "elementwise": (lambda x: (x * 2 + x.sin()) / x.exp(), 0),
    "slices": (lambda x: x[1:3] * x[:2] + x[::2][:2], 0),
    "slices of axes": (lambda x: x[:4].reshape(2, 2)[:, 1:].t()[:1] * 2, 0),
    "a gradient of slices": (covector.grad(lambda x: (x[1:-1].sin() * x[2:]).sum()), 0),
    "a gradient of steps": (covector.grad(lambda x: (x[::2] ** 2).sum()), 1),
    "several results": (lambda x: torch.sort(x)[0] + torch.max(x, 0)[0], 0),
    "lists": (lambda x: torch.cat([x, torch.stack([x, x]).sum(0)]), 0),
    "not a number": (lambda x: (x - 10).sqrt() * x, 0),
    "another dtype": (lambda x: x.float() + x.double(), 1),
}


@pytest.mark.parametrize("name", BY_FUNCTIONS)
def test_operations_by_functions_give_the_same(name):
    function, left = BY_FUNCTIONS[name]
    module = make_fx(lambda x: [function(x)], tracing_mode="real")(X)
    quick = by_functions(module, [X])
    for x in (X, X.flip(0) - 1):
        torch.testing.assert_close(quick(x)[0], function(x), rtol=0, atol=0, equal_nan=True)
    assert sum(name.startswith("aten") for name in operations(quick)) == left, quick.code
    assert all(name.startswith("aten") or "getitem" in name for name in operations(module))  # as it was


def test_a_function_that_gives_something_else_is_not_used(monkeypatch):
    """Nor one that raises: which function stands for an operator is tried out, not known."""
    module = make_fx(lambda x: [torch.relu(x)], tracing_mode="real")(X)
    monkeypatch.setattr(torch, "relu", torch.neg)
    assert operations(by_functions(module, [X])) == ["aten.relu.default"]
    monkeypatch.setattr(torch, "relu", torch.mm)
    assert operations(by_functions(module, [X])) == ["aten.relu.default"]


def test_the_constant_part_of_a_sparse_jacobian_is_computed_once():
    """A linear function has no other part: nothing is left but to hand out a copy."""
    plan = covector.jacobian_plan(lambda x: x.roll(1) - 2 * x + x.roll(-1), torch.rand(12))
    fast, x = plan.compile("replay"), torch.rand(12)
    first = fast(x).values()
    first.fill_(7.0)
    assert torch.equal(fast(x).values(), plan(x).values())


def test_every_tensor_has_a_place_for_the_compiler():
    """Zeros of forward mode and expanded tensors, into which `index_add` writes."""

    def pushed(tangents):
        zeros = torch.ops.aten._efficientzerotensor([5], dtype=torch.float64).clone()
        return zeros.expand(2, 5).index_add(1, INDEX, tangents)

    tangents = torch.rand(2, 4, dtype=torch.float64)
    module = make_fx(pushed, tracing_mode="real")(tangents)
    written_out(module, [tangents])
    assert "aten._efficientzerotensor.default" not in operations(module)
    assert operations(module)[-2:] == ["aten.clone.default", "aten.index_add.default"]
    assert torch.equal(module(tangents), pushed(tangents))


# Of a stack, indices and a matrix of them; the shape of the stack; how many sums are turned.
SUMS = {
    "along an axis": (lambda g, i, m: g.new_zeros(3, 5).index_add(1, i, g), (3, 4), 1),
    "at a matrix of places": (lambda g, i, m: put(g.new_zeros(3, 5), [None, m], g, True), (3, 2, 2), 1),
    "at pairs": (lambda g, i, m: put(g.new_zeros(3, 5, 5), [None, i, i], g.sin(), True), (3, 4), 1),
    "twice": (lambda g, i, m: g.index_add(1, i % 4, g).cos().index_add(1, i % 4, g), (3, 4, 2), 2),
    "along the first axis": (lambda g, i, m: g.new_zeros(9, 4).index_add(0, i[1:], g), (3, 4), 0),
    "at two axes apart": (
        lambda g, i, m: put(g.new_zeros(3, 5, 3, 5), [None, i, None, i], g, True),
        (4, 3, 3),
        0,
    ),
    "broadcast": (lambda g, i, m: put(g.new_zeros(2, 3, 5), [None, None, i], g, True), (3, 4), 0),
    "times a factor": (lambda g, i, m: g.new_zeros(3, 5).index_add(1, i, g, alpha=2), (3, 4), 0),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_follow_the_order_of_memory(name):
    """Where the first axis is the innermost, it is moved last; the numbers stay what they are."""
    function, shape, turned = SUMS[name]
    stack = torch.rand(*shape[1:], shape[0], dtype=torch.float64).movedim(-1, 0)
    for given, count in ((stack, turned), (stack.contiguous(), 0)):
        arguments = (given, INDEX, INDEX.reshape(2, 2))
        module = make_fx(function, tracing_mode="real")(*arguments)
        written_out(module, arguments)
        assert operations(module).count("aten.permute.default") == 3 * count
        assert torch.equal(module(*arguments), function(*arguments))


@pytest.mark.sweep
def test_forward_mode_through_index_add_compiles():
    def flow(x):
        return torch.zeros_like(x).index_add(0, INDEX, (x[:4] - x[1:]).tanh())

    plan = covector.jacobian_plan(flow, X, mode="forward")
    torch.testing.assert_close(plan.compile("inductor")(X).values(), plan(X).values())


SQUARE = torch.arange(9, dtype=torch.float64).reshape(3, 3).cos()
WIDE = torch.arange(12, dtype=torch.float64).reshape(3, 4).sin()
BATCH = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4).sin()
PAIR = (SQUARE, WIDE.t())
PRODUCTS = {
    "returned": (lambda a, b: a.t() @ b.t(), PAIR),
    "returned flat": (lambda a, b: (a.t() @ b.t()).view(-1), PAIR),
    "transposed back": (lambda a, b: (a.t() @ b.t()).t().exp(), PAIR),
    "used in two ways": (lambda a, b: ((a.t() @ b.t()).sin().view(-1), (a.t() @ b.t()).t()), PAIR),
    "a chain, flat at the end": (
        lambda a, b: (a.t() @ (a.t() @ b.t()).t().tanh().permute(-1, 0)).t().sin().t().contiguous().view(12),
        PAIR,
    ),
    "a batch": (lambda a, b: torch.bmm(a.mT, b.mT).mT.tanh(), (BATCH, BATCH.cos().mT.clone())),
    "by strides": (lambda a, b: (a.t() @ b.t()).as_strided((2, 2), (4, 1)), PAIR),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["replay", "aot_eager"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_transposed_matrices(name, backend):
    """They are computed the other way around; what is contiguous without that is so with it."""
    function, arguments = PRODUCTS[name]
    results, expected = covector.compile(function, backend=backend)(*arguments), function(*arguments)
    torch.testing.assert_close(results, expected)
    pairs = zip(results, expected, strict=True) if isinstance(results, tuple) else [(results, expected)]
    assert all(result.is_contiguous() for result, eager in pairs if eager.is_contiguous())


def test_no_product_of_two_transposed_matrices_is_left():
    """The rows of the Jacobian of a network are computed by products of matrices as they are."""
    layer = torch.nn.Linear(4, 3).double()
    program = trace(
        Caller("compile", layer), covector.jacrev(lambda x: torch.tanh(layer.weight @ x)), [X[:4]]
    )
    products = [node for node in program.module.graph.nodes if node.target is torch.ops.aten.mm.default]
    assert len(products) == 1
    assert all(factor.target is not torch.ops.aten.t.default for factor in products[0].args)
