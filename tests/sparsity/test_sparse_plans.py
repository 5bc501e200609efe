"""Plans: the values are those of the dense derivative, at any point, in any layout, through every door."""

import itertools
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse
from sparse_functions import FUNCTIONS, burgers
from test_detection import dense_jacobian

import covector
from covector._tree import flatten
from covector.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BatchingWarning,
    ForwardModeWarning,
    OutputError,
    PatternError,
    RandomnessError,
    UnsupportedError,
)
from covector.transforms._plan import Plan
from covering import covered
from watched import Counted


def chain(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def arrow(x):
    return torch.cat([(x**2).sum().reshape(1), x[1:] * x[0]])


def neighbors(x):
    return x[1:] * x[:-1] ** 2


X = torch.tensor([0.5, -1.0, 2.0, 1.5, -0.3], dtype=torch.float64)
NEIGHBORS = covector.jacobian_plan(neighbors, X)


def dense(result):
    return torch.cat([block.to_dense() for block in flatten(result)[0]])


@pytest.mark.parametrize("case", FUNCTIONS, ids=str)
def test_values_are_those_of_the_dense_jacobian(case):
    """At a point that the plan has not seen, by both modes."""
    expected = dense_jacobian(case.function, case.at(3))
    for mode in ("auto", "forward")[: 1 + case.forward]:
        with warnings.catch_warnings():
            if not case.batched:
                warnings.simplefilter("ignore", BatchingWarning)
            if "checkpoint" in str(case):  # by a custom Function without forward mode, in torch 2.9
                warnings.simplefilter("ignore", ForwardModeWarning)
            plan = covector.jacobian_plan(case.function, case.at(4), mode=mode)
            found = dense(plan(case.at(3)))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        assert mode == "auto" or plan.mode == mode or not plan.pattern.nnz


HESSIANS = {
    "chain": chain,
    "quartic without a diagonal": lambda x: (x[1:] * x[:-1]).sum(),
    "softmax": lambda x: x.softmax(0).square().sum(),
    "relu": lambda x: (torch.relu(x) * x.roll(1) ** 2).sum(),
    "linear": lambda x: x.sum(),
    "gated units": lambda x: torch.nn.functional.glu(x[:4].reshape(2, 2)).square().sum() + x[4] ** 2,
    "arrow": lambda x: (x[0] * x).sin().sum(),
    "where": lambda x: torch.where(x > 0, x**3, x.roll(1) * x).sum(),
    "gather": lambda x: (x[[0, 2, 4]] ** 2 * x[[1, 3, 1]]).sum(),
    "norm": lambda x: (x[:3] ** 2).sum().sqrt() + x[3] * x[4],
}


@pytest.mark.parametrize("name", HESSIANS)
def test_hessians(name):
    plan = covector.hessian_plan(HESSIANS[name], X)
    x = X.flip(0) + 0.1
    torch.testing.assert_close(
        plan(x).to_dense(), torch.func.hessian(HESSIANS[name])(x), rtol=1e-10, atol=1e-12
    )
    assert plan.coloring.kind == "star"


def test_the_number_of_products_is_the_number_of_colors():
    """Ten thousand inputs, four pullbacks; and the function runs once."""
    counted = Counted(burgers)
    plan = covector.jacobian_plan(counted, torch.rand(10_000))
    assert plan.coloring.products <= 4
    counted.runs = 0
    assert plan(torch.rand(10_000)).values().shape == (30_000,)
    assert counted.runs == 1
    value, _ = plan.value_and_jacobian(torch.rand(10_000))
    assert value.shape == (10_000,)
    assert counted.runs == 2


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "scipy"])
def test_layouts(layout):
    result = NEIGHBORS.with_layout(layout)(X)
    array = result.toarray() if layout == "scipy" else result.to_dense().numpy()
    np.testing.assert_allclose(array, torch.func.jacrev(neighbors)(X).numpy())
    assert isinstance(result, sparse.csr_array) if layout == "scipy" else layout in str(result.layout)
    if layout != "scipy":
        torch.testing.assert_close(result @ torch.eye(5, dtype=X.dtype), torch.func.jacrev(neighbors)(X))


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_results_can_be_differentiated(layout):
    """Through the values, in every layout."""
    x = X.clone().requires_grad_()
    NEIGHBORS.with_layout(layout)(x).values().pow(2).sum().backward()
    y = X.clone().requires_grad_()
    torch.func.jacrev(neighbors)(y).pow(2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    hessian = covector.hessian_plan(chain, X)
    x = X.clone().requires_grad_()
    hessian(x).values().sum().backward()
    y = X.clone().requires_grad_()
    torch.func.hessian(chain)(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_under_other_transforms_the_values_work_and_the_matrix_says_that_it_does_not():
    points = torch.stack([X, X + 1, X * 2])
    values = torch.vmap(NEIGHBORS.values)(points)
    torch.testing.assert_close(values[1], NEIGHBORS(X + 1).values())
    torch.testing.assert_close(covector.jacobian(NEIGHBORS.values)(X), torch.func.jacfwd(NEIGHBORS.values)(X))
    with pytest.raises(UnsupportedError, match=r"plan\.values"):
        torch.vmap(NEIGHBORS)(points)


def test_trees_are_blocks():
    """A tree like the output of trees like the input, each block a matrix."""
    point = {"a": X, "b": (torch.ones(2, 2, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64))}

    def function(p, scale):
        return {"y": p["a"][:4] * p["b"][0].reshape(-1) * scale, "z": p["b"][1] ** 2}

    result = covector.sparse_jacobian(function)(point, 3.0)
    expected = torch.func.jacrev(function)(point, 3.0)
    assert result["y"]["b"][0].shape == (4, 4)
    torch.testing.assert_close(result["y"]["b"][0].to_dense(), expected["y"]["b"][0].reshape(4, 4))
    torch.testing.assert_close(result["y"]["a"].to_dense(), expected["y"]["a"])
    assert result["z"]["a"].values().shape == (0,)
    both = covector.sparse_jacobian(lambda x, y: x * y, argnums=(0, 1))(X, X + 1)
    torch.testing.assert_close(both[1].to_dense(), torch.diag(X))
    energy = lambda p: (p["a"] ** 2).sum() * p["b"][1]
    hessian = covector.sparse_hessian(energy)(point)
    torch.testing.assert_close(hessian["a"]["b"][1].to_dense()[:, 0], 2 * X)
    assert hessian["b"][0]["a"].shape == (4, 5)


def test_plans_are_remembered():
    """A plan for each structure of arguments that was met."""
    counted = Counted(neighbors)
    jacobian = covector.sparse_jacobian(counted)
    assert jacobian.plan is None
    jacobian(X)
    first, made = jacobian.plan, counted.runs
    jacobian(X + 1)
    assert jacobian.plan is first
    assert counted.runs == made + 1
    jacobian(X[:4])
    assert jacobian.plan is not first
    assert isinstance(first, Plan)


def test_what_a_plan_says():
    assert repr(NEIGHBORS) == "jacobian_plan(neighbors): 4 x 5, 8 nonzeros (40 %), 2 colors, reverse mode"
    assert str(NEIGHBORS).splitlines()[1:] == [
        "  row coloring: 2 groups of rows, because it takes the cheapest products"
    ]
    assert (NEIGHBORS.mode, NEIGHBORS.outputs, NEIGHBORS.inputs, NEIGHBORS.chunk) == ("reverse", 4, 5, 2)
    forward = covector.jacobian_plan(neighbors, X, mode="forward")
    assert repr(forward).endswith("2 colors, forward mode")


def test_dense_rows_and_columns_take_both_modes():
    def arrow(x):
        return torch.cat([(x**2).sum().reshape(1), x[1:] * x[0]])

    x = torch.rand(40, dtype=torch.float64)
    plan = covector.jacobian_plan(arrow, x)
    assert plan.mode == "both"
    assert plan.coloring.products <= 3
    torch.testing.assert_close(plan(x).to_dense(), torch.func.jacrev(arrow)(x))


def test_chunks():
    plan = covector.jacobian_plan(lambda x: x.softmax(0), X, chunk_size=2)
    torch.testing.assert_close(plan(X).to_dense(), torch.func.jacrev(lambda x: x.softmax(0))(X))


PATTERNS = [
    torch.eye(5, dtype=torch.bool)[:4] | torch.eye(5, dtype=torch.bool)[1:],
    NEIGHBORS.pattern,
    NEIGHBORS.to_scipy(X),
    NEIGHBORS(X),
    NEIGHBORS.pattern.to_dense().numpy(),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: type(pattern).__name__)
def test_a_pattern_of_ones_own(pattern):
    """It is used in place of detection."""
    plan = covector.jacobian_plan(neighbors, X, pattern=pattern)
    torch.testing.assert_close(plan(X).to_dense(), torch.func.jacrev(neighbors)(X))


def test_a_pattern_that_lacks_entries_is_found_out():
    """The text names rows; nothing is checked if that is not wanted."""
    lacking = NEIGHBORS.pattern.to_dense()
    lacking[2, 3] = False
    with pytest.raises(PatternError, match="row 2: product") as caught:
        covector.jacobian_plan(neighbors, X, pattern=lacking)
    assert "rows differ: 2" in str(caught.value)
    plan = covector.jacobian_plan(neighbors, X, pattern=lacking, verify=False)
    with pytest.raises(PatternError):
        covector.check_pattern(plan, X)


def test_a_pattern_that_is_right_here_and_wrong_nearby():
    """An entry that vanishes at the point is seen at the second one."""
    with pytest.raises(PatternError, match="at a point nearby"):
        covector.jacobian_plan(lambda x: x * x.roll(1), torch.zeros(4), pattern=torch.eye(4))


def test_a_local_plan_is_checked_at_every_point():
    def branch(x):
        return x * 2 if x[0] > 0 else x.roll(1)

    plan = covector.jacobian_plan(branch, X, local=True)
    torch.testing.assert_close(plan(X + 1).to_dense(), 2 * torch.eye(5, dtype=torch.float64))
    with pytest.raises(PatternError):
        plan(-X)


def test_check_pattern_counts():
    check = covector.check_pattern(NEIGHBORS, X, points=3)
    assert (check.points, check.products, check.unused) == (3, 6, 0)
    assert check.largest < 1e-12
    unused = covector.check_pattern(
        covector.jacobian_plan(lambda x: torch.where(x > 100, x.roll(1), x), X), X
    )
    assert unused.unused == 5
    assert "5 entries were zero" in str(unused)
    with pytest.raises(ArgumentTypeError, match="check_pattern"):
        covector.check_pattern(neighbors, X)


def test_a_second_derivative_that_is_not_symmetric():
    """A backward of one's own can say anything; rows are then read off one by one."""

    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0].roll(1)

    plan = covector.hessian_plan(lambda x: Odd.apply(x).sum(), X)
    assert plan.coloring.kind == "row"
    torch.testing.assert_close(plan(X).to_dense(), torch.func.jacrev(lambda x: x.roll(1))(X))


REFUSED = {
    "dtype": (lambda: NEIGHBORS(X.float()), ArgumentValueError, "made for x with shape (5,), torch.float64, cpu, got shape (5,), torch.float32"),
    "shape": (lambda: NEIGHBORS(X[:4]), ArgumentValueError, "got shape (4,)"),
    "structure": (lambda: NEIGHBORS((X, X)), ArgumentValueError, "the plan was made for the leaves x"),
    "value": (lambda: covector.jacobian_plan(lambda x, k: x * k, X, 2)(X, 3), ArgumentValueError, "made for k with the value 2, got the value 3"),
    "layout": (lambda: covector.jacobian_plan(neighbors, X, layout="bsr"), ArgumentValueError, "layout must be one of 'coo', 'csr', 'csc', 'scipy'"),
    "mode": (lambda: covector.sparse_jacobian(neighbors, mode="sideways"), ArgumentValueError, "mode must be one of"),
    "pattern shape": (lambda: covector.jacobian_plan(neighbors, X, pattern=torch.eye(5)), ArgumentValueError, "the pattern must be 4 x 5"),
    "pattern": (lambda: covector.SparsityPattern.of(torch.ones(3)), ArgumentTypeError, "made from a matrix"),
    "complex": (lambda: covector.jacobian_plan(neighbors, X.cfloat()), ArgumentTypeError, "x is complex"),
    "no scalar": (lambda: covector.hessian_plan(neighbors, X), OutputError, "must return a scalar"),
    "no function": (lambda: covector.sparsity(X), ArgumentTypeError, "must be a function"),
    "vector": (lambda: NEIGHBORS.to_scipy(np.ones(3)), ArgumentValueError, "must have 5 elements"),
    "no file": (lambda: covector.jacobian_plan.load("nowhere.npz", neighbors, X), ArgumentValueError, "is not a saved plan"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    call, kind, text = REFUSED[name]
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)


def test_plans_are_saved_without_pickle(tmp_path):
    path = tmp_path / "plan.npz"
    NEIGHBORS.save(path)
    loaded = covector.jacobian_plan.load(path, neighbors, X)
    assert repr(loaded) == repr(NEIGHBORS)
    assert torch.equal(loaded(X).to_dense(), NEIGHBORS(X).to_dense())
    with np.load(path, allow_pickle=False) as file:
        facts = json.loads(bytes(file["facts"]))
        arrays = {name: file[name] for name in file.files}
    assert facts["verb"] == "jacobian_plan"
    with pytest.raises(ArgumentValueError, match="holds a jacobian_plan"):
        covector.hessian_plan.load(path, chain, X)
    with pytest.raises(ArgumentValueError, match="holds a plan for arguments with shape"):
        covector.jacobian_plan.load(path, neighbors, X.float())
    with pytest.raises(PatternError):
        covector.jacobian_plan.load(path, lambda x: x[1:] * x.sum(), X)
    arrays["source"] = np.roll(arrays["source"], 1)
    np.savez(path, **arrays)
    with pytest.raises(ArgumentValueError, match="is damaged"):
        covector.jacobian_plan.load(path, neighbors, X)
    hessian = covector.hessian_plan(chain, X)
    hessian.save(path)
    assert torch.equal(covector.hessian_plan.load(path, chain, X)(X).values(), hessian(X).values())


def test_single_precision_and_modules():
    """A module by its input, in float32; its parameters take part in the graph of the result."""
    layer = torch.nn.Conv1d(1, 1, 3, padding=1)
    x = torch.rand(1, 1, 50)
    plan = covector.jacobian_plan(layer, x)
    matrix = plan(x)
    torch.testing.assert_close(matrix.to_dense(), torch.func.jacrev(lambda x: layer(x))(x).reshape(50, 50))
    matrix.values().sum().backward()
    assert layer.weight.grad is not None


def test_inputs_and_the_random_state_stay_as_they_are():
    x = X.clone()
    state = torch.get_rng_state()
    plan = covector.jacobian_plan(lambda x: x.mul_(2).roll(1) * x, x)
    plan(x)
    covector.check_pattern(plan, x)
    assert torch.equal(x, X)
    assert torch.equal(state, torch.get_rng_state())


def test_compiled_plans():
    """Replayed: the same values, captured tensors are read at each call, and what is refused stays refused."""
    scale = torch.tensor(2.0, dtype=torch.float64)
    layer = torch.nn.Linear(3, 2).double()

    def function(x, y):
        return layer(x.reshape(-1, 3)).tanh().sum(1) * scale * y

    x, y = torch.rand(6, dtype=torch.float64), torch.rand(2, dtype=torch.float64)
    plan = covector.jacobian_plan(function, x, y)
    fast = plan.compile("replay")
    assert repr(fast).endswith("reverse mode, replay")
    torch.testing.assert_close(fast(x, y).to_dense(), torch.func.jacrev(function)(x, y))
    with torch.no_grad():
        scale.fill_(5.0)
        layer.weight.mul_(0.5)
    torch.testing.assert_close(fast(x + 1, y).to_dense(), torch.func.jacrev(function)(x + 1, y))
    value, matrix = fast.value_and_jacobian(x, y)
    torch.testing.assert_close(value, function(x, y).detach())
    torch.testing.assert_close(matrix.to_dense(), plan(x, y).to_dense())
    with pytest.raises(ArgumentValueError, match="the plan was made for x"):
        fast(x.float(), y)
    points = torch.stack([x, x + 1])
    torch.testing.assert_close(torch.vmap(lambda x: fast.values(x, y))(points)[1], plan(x + 1, y).values())


class Scaled:
    """A function with an attribute of each kind that may change after a plan was compiled."""

    def __init__(self):
        self.scale = torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64)
        self.gain = 2.0

    def __call__(self, x):
        return (self.scale * self.gain) * x**2 + x.roll(1) * self.scale[0]


def twice_as_large(function):
    function.scale.mul_(2)


def another_tensor(function):
    function.scale = function.scale + 1


def another_number(function):
    function.gain += 1


CHANGES = [twice_as_large, another_tensor, another_number]
PLANS = ["jacobian", "hessian", "value", "entries"]


@pytest.mark.parametrize(
    ("way", "change"),
    covered(
        itertools.product(PLANS, CHANGES),
        lambda way, change: (PLANS.index(way) + CHANGES.index(change)) % 2 == 0,
    ),
)
def test_a_compiled_plan_sees_what_changes_outside(change, way):
    """Also where what is captured enters only products with other constants, which are computed once."""
    function, x = Scaled(), torch.rand(3, dtype=torch.float64)
    if way == "hessian":
        plan = covector.hessian_plan(lambda x: function(x).sum(), x)
    else:
        plan = covector.jacobian_plan(function, x)
    compiled = covector.compile(plan.values, backend="replay") if way == "entries" else plan.compile("replay")
    ask = {"value": lambda plan: plan.value_and_jacobian(x), "entries": lambda plan: plan(x)}.get(way)
    ask = ask or (lambda plan: plan(x).values())
    before = ask(compiled)
    change(function)
    torch.testing.assert_close(ask(compiled), plan.values(x) if way == "entries" else ask(plan))
    assert not torch.equal(flatten(ask(compiled))[0][0].to_dense(), flatten(before)[0][0].to_dense())


def test_compiled_hessians_and_modes():
    x = torch.rand(30, dtype=torch.float64)
    for plan in (covector.jacobian_plan(burgers, x, mode="forward"), covector.hessian_plan(chain, x)):
        torch.testing.assert_close(plan.compile("replay")(x).to_dense(), plan(x).to_dense())


def several(x):
    return {"wide": torch.outer(x, x)[:2], "none": x[:0], "one": x.sum(), "half": x.float() * 2}


@pytest.mark.parametrize(
    ("function", "mode"),
    [(burgers, "forward"), (burgers, "reverse"), (several, "forward"), (several, "reverse"), (arrow, "auto")],
)
def test_products_that_are_interleaved_in_memory_give_the_same(function, mode):
    """Also of several outputs, an empty one and a scalar among them, and by both modes at once."""
    x = torch.rand(12, dtype=torch.float64)
    plan = covector.jacobian_plan(function, x, mode=mode)
    other = replace(plan, interleaved=True)
    torch.testing.assert_close(dense(other(x)), dense(plan(x)))
    stacks = [stack for stack in (*other._column_groups, *other._row_groups) if min(stack.shape) > 1]
    assert stacks
    assert all(stack.stride(0) == 1 for stack in stacks)


@pytest.mark.sweep
def test_inductor():
    """Once, to see that a plan goes through a real compiler."""
    x = torch.rand(30, dtype=torch.float64)
    plan = covector.hessian_plan(chain, x)
    fast = plan.compile()
    torch.testing.assert_close(fast(x).values(), plan(x).values())
    assert "interleaved" in fast.reason or fast.interleaved  # both ways were tried


class Crossed(torch.autograd.Function):
    """Its jvp is diagonal, its backward turns around."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient.flip(0)

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * 1


def hooked(x):
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient.flip(0))
    return y * x.roll(1)


def without_grad(x):
    with torch.no_grad():
        factor = x**2
    return factor * x.roll(1)


def test_tangents_that_torch_loses_are_no_missing_entries():
    """Forward mode of torch returns zeros here."""

    def products(x):
        return x.new_ones(3).scatter_reduce(0, torch.tensor([0, 1, 1, 2, 0]), x, "prod")

    assert covector.sparsity(products, X).nnz == 5
    plan = covector.jacobian_plan(products, X)
    torch.testing.assert_close(plan(X + 0.1).to_dense(), dense_jacobian(products, X + 0.1))


# Forward and reverse mode see different derivatives: by rules of the caller's own, by a hook, by a part that
# forward mode does not leave out.
TWO_DERIVATIVES = {
    "custom Function": Crossed.apply,
    "hook": hooked,
    "no_grad": without_grad,
}


@pytest.mark.parametrize("name", TWO_DERIVATIVES)
def test_where_the_modes_disagree_no_entry_of_either_is_missing(name):
    """The plan computes what its mode does, and says so; reverse mode is torch's own `backward`."""
    f = TWO_DERIVATIVES[name]
    with pytest.warns(ForwardModeWarning, match="The plan is that of reverse mode"):
        plan = covector.jacobian_plan(f, X, mode="reverse")
    torch.testing.assert_close(plan(X + 0.1).to_dense(), dense_jacobian(f, X + 0.1))
    with pytest.warns(ForwardModeWarning, match="The plan is that of forward mode"):
        plan = covector.jacobian_plan(f, X, mode="forward")
    torch.testing.assert_close(plan(X + 0.1).to_dense(), torch.func.jacfwd(f)(X + 0.1))


def test_a_plan_of_both_modes_is_refused_where_they_disagree():
    def f(x):
        return torch.cat([(hooked(x) ** 2).sum().reshape(1), x[1:] * x[0]])

    with pytest.raises(PatternError, match=r"(?s)uses both.*Pass mode='reverse'"):
        covector.jacobian_plan(f, torch.rand(50, dtype=torch.float64))


class Remembering(torch.nn.Module):
    """Multiplies with a running mean of what it was given, which is another one at each call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5, dtype=torch.float64))

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.detach(), alpha=0.1)
        return x.roll(1) * self.mean


@pytest.mark.parametrize("f", [Remembering(), torch.nn.Dropout(0.5)], ids=["state", "random"])
def test_a_function_that_does_not_repeat_itself_is_said_to_be_that(f):
    with pytest.raises(PatternError, match="gives another product when the function is called again"):
        covector.jacobian_plan(f, X)
    assert covector.jacobian_plan(f, X, verify=False).pattern.nnz == 5


ROUGH = {
    "bfloat16 inside": lambda x: x.bfloat16().double() * x.roll(1),
    "rows of nothing but rounding": lambda x: torch.corrcoef(x.reshape(1, -1).expand(2, -1) ** 3).reshape(-1),
}


@pytest.mark.parametrize("name", ROUGH)
def test_rounding_is_not_taken_for_a_missing_entry(name):
    """The rounding of products is measured where they differ; an entry that lacks is still found."""
    x = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    covector.check_pattern(covector.jacobian_plan(ROUGH[name], x), x)
    if name == "bfloat16 inside":
        with pytest.raises(PatternError, match="lacks entries"):
            covector.jacobian_plan(ROUGH[name], x, pattern=torch.eye(5))


def test_inside_of_torch_compile():
    """Doors, and plans that were made outside, are run eagerly, and derivatives go through them."""
    jacobian, weight = covector.sparse_jacobian(neighbors), torch.ones((), requires_grad=True)
    ways = {
        "a plan": lambda x: NEIGHBORS(x).to_dense(),
        "the values of a plan": lambda x: NEIGHBORS.values(x),
        "a door that was opened outside": lambda x: jacobian(x).to_dense(),
        "a door that is opened inside": lambda x: covector.sparse_jacobian(lambda y: neighbors(y) * weight)(x).to_dense(),
        "a plan that is made inside": lambda x: covector.jacobian_plan(lambda y: y * x.detach(), x)(x).to_dense(),
    }  # fmt: skip
    for name, way in ways.items():
        torch._dynamo.reset()
        x = X.clone().requires_grad_()
        compiled, eager = torch.compile(way, backend="eager")(x), way(x)
        torch.testing.assert_close(compiled, eager, msg=name)
        if eager.requires_grad:
            expected = torch.autograd.grad(eager.square().sum(), x, allow_unused=True)
            assert str(torch.autograd.grad(compiled.square().sum(), x, allow_unused=True)) == str(expected)


def test_modes_whose_costs_come_near_are_timed():
    """One push beside three pullbacks: what a push costs depends on the function, so both are measured."""

    def powers(x):
        return torch.stack([x, x**2, x**3])

    x = torch.rand(40, dtype=torch.float64)
    plan = covector.jacobian_plan(powers, x)
    assert "measured to be the fastest" in plan.reason
    assert (plan.mode, plan.coloring.products) in [("forward", 1), ("reverse", 3)]
    torch.testing.assert_close(dense(plan(x + 1)), dense_jacobian(powers, x + 1))
    assert "measured" not in covector.jacobian_plan(powers, x, mode="forward").reason
    assert "cheapest" in covector.jacobian_plan(burgers, x).reason


def test_a_compiled_plan_has_the_mode_that_is_faster():
    """Both were compiled and timed; a mode that was asked for stays."""
    x = torch.rand(30, dtype=torch.float64)
    plan = covector.jacobian_plan(burgers, x).compile("replay")
    assert "measured to be the fastest" in plan.reason
    assert plan.mode in ("forward", "reverse")
    torch.testing.assert_close(plan(x + 1).to_dense(), dense_jacobian(burgers, x + 1))
    torch.testing.assert_close(plan.value_and_jacobian(x)[0], burgers(x))
    assert covector.jacobian_plan(burgers, x, mode="reverse").compile("replay").mode == "reverse"


def test_a_mode_with_another_derivative_is_no_rival():
    with pytest.warns(ForwardModeWarning):
        plan = covector.jacobian_plan(without_grad, X)
    fast = plan.compile("replay")
    assert fast.mode == "reverse"
    assert "measured" not in fast.reason
    torch.testing.assert_close(fast(X).to_dense(), dense_jacobian(without_grad, X))


def test_arguments_by_name_may_come_in_any_order():
    """And another name is another structure, which is refused by its leaves."""

    def function(x, *, a=1.0, b=1.0, c=1.0):
        return x * a * b**2 * c

    plan = covector.jacobian_plan(function, X, a=X, b=X + 1)
    expected = torch.diag(2 * X * (X + 1) ** 2)
    torch.testing.assert_close(plan(X, b=X + 1, a=2 * X).to_dense(), expected)
    with pytest.raises(ArgumentValueError, match="for the leaves x, a, b, got a call with x, a, c"):
        plan(X, a=X, c=X)
    with pytest.raises(ArgumentValueError, match=r"for a with .* got .*sparse_coo"):
        plan(X, a=X.to_sparse(), b=X)


@pytest.mark.parametrize("given", [(X,), [X], {"x": X}], ids=["tuple", "list", "dict"])
def test_a_tree_of_the_same_leaves_is_another_structure(given):
    with pytest.raises(ArgumentValueError, match="the plan was made for the leaves x, got a call with x"):
        NEIGHBORS(given)
    plan = covector.jacobian_plan(lambda p: neighbors(p["x"]), {"x": X})
    assert plan({"x": X})["x"].shape == (4, 5)
    with pytest.raises(ArgumentValueError, match="Make a plan for these arguments"):
        plan({"y": X})


@pytest.mark.parametrize("number", range(20))
def test_modes_that_differ_are_told_from_a_wrong_pattern_at_every_point(number):
    """Not only where random sums of their differences happen to be large."""
    x = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
    with pytest.warns(ForwardModeWarning, match="different derivatives"):
        plan = covector.jacobian_plan(without_grad, x)
    assert plan.mode == "reverse"


def test_random_numbers_inside_are_refused_with_what_can_be_done():
    def noisy(x):
        return x * torch.rand(3).roll(1).cumsum(0) * torch.nn.functional.dropout(x, 0.5)

    with pytest.raises((RandomnessError, PatternError), match="draws random numbers") as caught:
        covector.jacobian_plan(noisy, torch.rand(3))
    assert "randomness=" not in str(caught.value)
