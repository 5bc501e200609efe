"""`jacobian`: agreement, the choice of a mode, samples, and every mistake."""

import copy

import pytest
import torch
from torch.utils import _pytree as registry

import covector
from cases import CASES
from covector.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BatchingWarning,
    CovectorError,
    ForwardModeWarning,
    OutputError,
    RandomnessError,
    UnsupportedError,
)
from covector.transforms._plan import Plan, by_sizes, worth_a_trial
from watched import Counted

x = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
wide = torch.linspace(-1, 1, 200, dtype=torch.float64)
assert_close = torch.testing.assert_close
real_cases = pytest.mark.parametrize("case", [case for case in CASES if not case.complex], ids=str)
WAYS = [{}, {"mode": "forward"}, {"mode": "reverse"}, {"chunk_size": 2}, {"max_memory": "1GB"}]
ways = pytest.mark.parametrize("way", WAYS, ids=str)
# Each case by two ways, and each way by two of five cases; the rest is left to the sweep.
CASES_AND_WAYS = [
    pytest.param(case, way, marks=() if (number - place) % len(WAYS) in (0, 2) else pytest.mark.sweep)
    for number, case in enumerate(case for case in CASES if not case.complex)
    for place, way in enumerate(WAYS)
]


def spread(x):
    """Many outputs of few inputs."""
    return (wide * x.sum()).sin() * x[0]


def assert_same(got, expected, **keywords):
    assert registry.tree_structure(got) == registry.tree_structure(expected)
    for mine, theirs in zip(registry.tree_leaves(got), registry.tree_leaves(expected), strict=True):
        assert_close(mine, theirs, **keywords)


# Agreement


@pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning")
@pytest.mark.parametrize(("case", "way"), CASES_AND_WAYS, ids=str)
def test_agrees_with_torch(case, way):
    """The tree, the shapes and the numbers of `torch.func.jacrev`, by every way; and the value."""
    primals = case.primals()
    expected = torch.func.jacrev(case.function, case.argnums)(*primals)
    check_dtype = way.get("mode") != "forward"  # forward mode has the dtype of the output
    assert_same(
        covector.jacobian(case.function, case.argnums, **way)(*primals), expected, check_dtype=check_dtype
    )
    value, got = covector.value_and_jacobian(case.function, case.argnums, **way)(*primals)
    assert_same(got, expected, check_dtype=check_dtype)
    assert_same(value, case.function(*primals))


@ways
def test_has_aux_and_keywords(way):
    """Auxiliary values of any kind, keyword arguments, and selection by name."""

    def f(x, *, factor):
        return factor * x**2, {"x": x, "label": "square"}

    result, aux = covector.jacobian(f, argnames="factor", has_aux=True, **way)(x, factor=2 * x)
    assert_close(result, (x**2).diag())
    assert_close(aux["x"], x)
    assert aux["label"] == "square"
    value, result, aux = covector.value_and_jacobian(f, has_aux=True, **way)(x, factor=2 * x)
    assert_close((value, result, aux["x"]), (2 * x**3, (4 * x**2).diag(), x))


@pytest.mark.parametrize("argnums", [0, -1, (0, 1), (1, 0), (-1,)])
def test_argnums(argnums):
    f = lambda a, b: a.sin() * b.sum()
    assert_same(covector.jacobian(f, argnums)(x, x), torch.func.jacrev(f, _positive(argnums))(x, x))


def _positive(argnums):
    return tuple(i % 2 for i in argnums) if isinstance(argnums, tuple) else argnums % 2


def test_composes():
    """Under vmap, inside other transforms, three deep, and differentiated by backward."""
    points = torch.randn(4, 3, dtype=torch.float64)
    for f in (torch.sin, spread):
        expected = torch.vmap(torch.func.jacrev(f))(points)
        for mode in ("auto", "forward", "reverse"):
            assert_close(torch.vmap(covector.jacobian(f, mode=mode))(points), expected)
            assert_close(torch.vmap(covector.jacobian(f, mode=mode, max_memory="1GB"))(points), expected)
    thrice = covector.jacobian(covector.jacobian(covector.jacobian(spread)))(x)
    assert_close(thrice, torch.func.jacfwd(torch.func.jacfwd(torch.func.jacfwd(spread)))(x))
    leaf = x.clone().requires_grad_()
    for keywords in ({}, {"chunk_size": 2}, {"max_memory": "1GB"}, {"mode": "forward", "chunk_size": 2}):
        (gradient,) = torch.autograd.grad(covector.jacobian(lambda x: x**3, **keywords)(leaf).sum(), leaf)
        assert_close(gradient, 6 * x)


def test_nothing_of_the_callers_is_changed():
    leaf = x.clone().requires_grad_()
    before, state = copy.deepcopy(leaf), torch.get_rng_state()

    def f(x):
        raise KeyError("mine")

    for keywords in [*WAYS, {"batch_dim": 0}]:
        with pytest.raises(KeyError, match="mine"):
            covector.jacobian(f, **keywords)(leaf)
        covector.jacobian(torch.sin, **keywords)(leaf)
    assert torch.equal(leaf, before)
    assert leaf.grad is None
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_float32_scalars_and_empties():
    for f, point in (
        (torch.sin, torch.tensor(0.5)),
        (torch.sin, torch.randn(1, 1)),
        (torch.sin, torch.zeros(0)),
        (lambda x: x.sum(), torch.zeros(0, 2)),
        (lambda x: x[:0], torch.ones(3)),
        (lambda x: x.expand(300), torch.tensor(2.0)),
    ):
        for way in WAYS:
            assert_same(covector.jacobian(f, **way)(point), torch.func.jacrev(f)(point))


# The choice


def test_plan_says_what_was_chosen():
    """Few inputs go forward, few outputs in reverse; the plan is there after the call, and prints."""
    forward = covector.jacobian(spread)
    assert forward.plan is None
    forward(x)
    assert (forward.plan.mode, forward.plan.outputs, forward.plan.inputs, forward.plan.chunk) == (
        "forward", 200, 3, 3,
    )  # fmt: skip
    assert str(forward.plan) == (
        "forward mode: 3 columns of 200 x 3, 3 at once, because 3 inputs are fewer than 200 outputs"
    )
    backward = covector.jacobian(lambda x: x[:2] ** 2, chunk_size=1)
    backward(x)
    assert str(backward.plan) == (
        "reverse mode: 2 rows of 2 x 3, 1 at once, because 2 outputs are no more than 3 inputs"
    )
    asked = covector.jacobian(spread, mode="reverse")
    asked(x)
    assert asked.plan.mode == "reverse"
    assert asked.plan.reason == "it was asked for"
    with pytest.raises(AttributeError):
        asked.plan.mode = "forward"


@pytest.mark.parametrize(
    ("outputs", "inputs", "mode"),
    [(1, 1, "reverse"), (10, 1, "reverse"), (2000, 2, "forward"), (2, 2000, "reverse"), (500, 500, "reverse"),
     (1000, 300, "forward"), (0, 5, "reverse"), (5, 0, "reverse")],
)  # fmt: skip
def test_by_sizes(outputs, inputs, mode):
    assert by_sizes(outputs, inputs)[0] == mode


def test_a_trial_decides_where_sizes_do_not():
    """Between clear cases, and with much to do, both modes are tried on a few directions."""
    assert worth_a_trial(2000, 1000)
    assert not worth_a_trial(1000, 2000)
    assert not worth_a_trial(200, 100)
    assert not worth_a_trial(100_000, 1000)
    jacobian = covector.jacobian(lambda x: torch.cat([x.sin(), x.cos()]))
    point = torch.linspace(0, 1, 1000)
    assert_close(jacobian(point), torch.cat([point.cos().diag(), -point.sin().diag()]))
    assert "a trial took" in jacobian.plan.reason


class OnlyReverse(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


def test_auto_goes_back_to_reverse_mode():
    """Where forward mode has no rule, or the function draws numbers: silently, and the plan says so."""
    f = lambda x: OnlyReverse.apply(x).sum() * wide
    jacobian = covector.jacobian(f)
    assert_close(jacobian(x), torch.outer(wide, x.cos()))
    assert jacobian.plan.mode == "reverse"
    assert "no forward-mode rule" in jacobian.plan.reason
    with pytest.warns((ForwardModeWarning, BatchingWarning)):
        covector.jacobian(f, mode="forward")(x)
    noisy = covector.jacobian(lambda x: torch.rand(1).double() * x.sum() * wide)
    assert noisy(x).shape == (200, 3)
    assert "draws random numbers" in noisy.plan.reason
    with pytest.raises(RandomnessError):
        covector.jacobian(lambda x: torch.rand(1).double() * x.sum() * wide, mode="forward")(x)


@pytest.mark.parametrize(
    ("function", "keywords", "runs"),
    [(torch.sin, {}, 1), (spread, {}, 2), (spread, {"mode": "forward"}, 1), (spread, {"mode": "reverse"}, 1),
     (torch.sin, {"max_memory": "1GB"}, 2), (torch.sin, {"chunk_size": 1}, 1)],
)  # fmt: skip
def test_runs(function, keywords, runs):
    """How often the function runs is part of the contract."""
    counted = Counted(function)
    covector.jacobian(counted, **keywords)(x)
    assert counted.runs == runs


@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize("way", [*WAYS, *(
    {"mode": mode, **more} for mode in ("forward", "reverse")
    for more in ({"chunk_size": 1}, {"max_memory": "1GB"}, {"max_memory": "1GB", "chunk_size": 1})
)], ids=str)  # fmt: skip
def test_functions_that_work_in_place(way, value):
    """Every run meets the same point, and nothing of the caller's moves, whatever argument is written to."""

    def f(x, y, times):
        x.mul_(2)
        y.add_(x)
        return (times * x.sum()).sin() * y[0]

    verb = covector.value_and_jacobian if value else covector.jacobian
    by_hand = lambda x, y, times: (times * (2 * x).sum()).sin() * (y + 2 * x)[0]
    for times in (wide[:2], wide):
        for point in (x.clone(), x.clone().requires_grad_(), x.clone().requires_grad_() * 1):
            y = x.clone()
            got = verb(f, **way)(point, y, times)
            expected = torch.func.jacrev(by_hand)(x, x, times)
            assert_close(got, (by_hand(x, x, times), expected) if value else expected)
            assert torch.equal(point, x)
            assert torch.equal(y, x)


def test_hessians_of_functions_that_work_in_place():
    point = x.clone()
    for way in WAYS:
        assert_close(covector.hessian(lambda x: x.mul_(2).pow(3).sum(), **way)(point), (48 * x).diag())
    assert torch.equal(point, x)


# Samples

batch = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
weights = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def layer(xs):
    return torch.tanh(xs @ weights.T)


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
@pytest.mark.parametrize(
    "keywords", [{}, {"chunk_size": 2}, {"chunk_size": 1}, {"max_memory": "1GB"}], ids=str
)
def test_samples(mode, keywords):
    """The Jacobian of each sample, as vmap gives it, at the cost of one."""
    expected = torch.vmap(torch.func.jacrev(lambda x: torch.tanh(weights @ x)))(batch)
    assert_close(covector.jacobian(layer, mode=mode, batch_dim=0, **keywords)(batch), expected)
    turned = lambda xs: layer(xs.T).T
    assert_close(covector.jacobian(turned, mode=mode, batch_dim=1, **keywords)(batch.T), expected)


def test_samples_of_trees():
    """Several inputs and outputs, with matrices and numbers as samples."""

    def f(p, xs):
        return {"a": p["m"] @ xs[:, :, None], "b": (xs**2).sum(1) * p["s"]}

    p = {"m": torch.randn(5, 2, 3).double(), "s": torch.randn(5).double()}
    for mode in ("forward", "reverse"):
        got = covector.jacobian(f, (0, 1), batch_dim=0, mode=mode)(p, batch)
        one = lambda p, x: {"a": p["m"] @ x[:, None], "b": (x**2).sum() * p["s"]}
        assert_same(got, torch.vmap(torch.func.jacrev(one, (0, 1)))(p, batch))


def test_samples_take_one_pass_each():
    """Three pushes or four pulls for five samples, in one batch of that size."""
    jacobian = covector.jacobian(layer, batch_dim=0)
    jacobian(batch)
    assert (jacobian.plan.outputs, jacobian.plan.inputs) == (4, 3)


@pytest.mark.parametrize("count", [0, 1])
def test_few_samples(count):
    for mode in ("forward", "reverse"):
        result = covector.jacobian(layer, batch_dim=0, mode=mode)(batch[:count])
        assert result.shape == (count, 4, 3)


def test_samples_compose():
    """Per-sample Jacobians inside vmap and inside a gradient; per-sample Hessians."""
    both = torch.stack([batch, 2 * batch])
    expected = torch.stack([covector.jacobian(layer, batch_dim=0)(b) for b in both])
    assert_close(torch.vmap(covector.jacobian(layer, batch_dim=0))(both), expected)
    gradient = covector.grad(lambda b: covector.jacobian(layer, batch_dim=0)(b).sum())(batch)
    assert_close(
        gradient,
        torch.func.grad(lambda b: torch.vmap(torch.func.jacrev(lambda x: torch.tanh(weights @ x)))(b).sum())(
            batch
        ),
    )
    energy = lambda xs: layer(xs).pow(2).sum(1)
    for mode in ("auto", "forward", "reverse"):
        hessians = covector.hessian(energy, batch_dim=0, mode=mode)(batch)
        expected = torch.vmap(torch.func.hessian(lambda x: torch.tanh(weights @ x).pow(2).sum()))(batch)
        assert_close(hessians, expected)


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixed_samples_are_noticed(mode, dtype):
    """Batch normalization, a mean, a shift along the batch: not functions of each sample."""
    for f in (
        lambda xs: xs - xs.mean(0),
        lambda xs: torch.nn.functional.batch_norm(xs, None, None, training=True),
        lambda xs: xs * xs.roll(1, 0),
    ):
        with pytest.raises(OutputError, match="mixes the samples"):
            covector.jacobian(f, batch_dim=0, mode=mode)(batch.to(dtype))
    with pytest.raises(OutputError, match="mixes the samples"):
        torch.vmap(covector.jacobian(lambda xs: xs - xs.mean(0), batch_dim=0, mode=mode))(
            batch[None].to(dtype)
        )


def test_noise_is_no_mixing():
    """A derivative that is zero by cancellation, and a leak between two samples of many."""
    flat = lambda xs: (xs @ torch.ones(300, 300)).softmax(1)
    points = torch.randn(64, 300)
    for mode in ("forward", "reverse"):
        assert covector.jacobian(flat, batch_dim=0, mode=mode)(points).abs().max() < 1e-5
    leak = lambda xs: torch.cat([xs[:1] + 1e-3 * xs[5:6], xs[1:]])
    for mode in ("forward", "reverse"):
        with pytest.raises(OutputError, match="mixes the samples"):
            covector.jacobian(leak, batch_dim=0, mode=mode)(points)


points = torch.randn(8, 2, generator=torch.Generator().manual_seed(3))
far = points.clone()
far[0], far[7] = 1e6, -1e6
one_of_many = torch.zeros(1000).index_fill(0, torch.tensor(17), 0.1)
spreading = torch.randn(1000, 2, generator=torch.Generator().manual_seed(4))
HIDDEN = {
    "another output": (lambda x: (1e9 * x, x - 0.1 * x.mean(0)), points),
    "another column": (lambda x: torch.stack([1e4 * x[:, 0], x[:, 1] - x[:, 1].mean()], 1), points),
    "a larger column": (lambda x: torch.stack([1e9 * x[:, 0], x[:, 1].roll(1)], 1), points),
    "other samples": (lambda x: x**2 + 0.1 * (x.sum(0) - x), far),
    "many outputs": (lambda x: x @ spreading.T + one_of_many * x.sum(), points),
    "cancelled": (lambda x: {"a": 1e12 * x, "b": 1e-12 * (x - x.mean(0))}, points.double()),
    "infinite": (lambda x: torch.stack([(0 * x[:, 0]).sqrt(), x[:, 1] - 0.1 * x[:, 1].mean()], 1), points),
    "small": (lambda x: 1e-6 * x.mean(0).expand(8, 2), points),
}


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("name", HIDDEN)
def test_large_numbers_hide_no_mixing(mode, name):
    function, at = HIDDEN[name]
    with pytest.raises(OutputError, match="mixes the samples"):
        covector.jacobian(function, batch_dim=0, mode=mode)(at)


many = torch.randn(64, 5, generator=torch.Generator().manual_seed(5))
turn = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(6)))[0]
UNMIXED = {
    "there and back": (lambda x: torch.fft.ifft(torch.fft.fft(x, dim=0), dim=0).real, many),
    "turned back": (lambda x: turn @ (turn.T @ x), many),
    "many sizes": (lambda x: (1e9 * x, 1e-9 * x.sin()), many),
    "cancelling": (lambda x: x.log_softmax(1).exp().sum(1), many),
    "constant": (lambda x: (x.sin(), torch.ones(64, 2)), many),
    "exponents": (lambda x: (40 * x).exp(), many),
    "infinite": (lambda x: x.abs().sqrt(), many * torch.tensor([0.0, 1, 1, 1, 1])),
    "bfloat16": (lambda x: x.sin(), many.bfloat16()),
}


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize("name", UNMIXED)
def test_rounding_is_no_mixing(mode, name):
    """What the Jacobian of the whole says about each sample."""
    function, at = UNMIXED[name]
    got = covector.jacobian(function, batch_dim=0, mode=mode)(at)
    # An infinite derivative times zero is no number, which one depends on the mode.
    whole = {"forward": torch.func.jacfwd, "reverse": torch.func.jacrev}[mode](function)(at)
    for mine, all_pairs in zip(registry.tree_leaves(got), registry.tree_leaves(whole), strict=True):
        own = all_pairs.movedim(-2, 1).diagonal(dim1=0, dim2=1).movedim(-1, 0)
        assert_close(mine, own, equal_nan=True, rtol=1e-3, atol=1e-4)


def test_running_statistics():
    """What forward mode cannot write to in a batch of runs is named; reverse mode sees the mixing."""
    norm = torch.nn.BatchNorm1d(3).double()
    with pytest.raises(
        UnsupportedError, match=r"jacobian\(BatchNorm1d\): .* captured Tensor.*mode='reverse'"
    ):
        covector.jacobian(norm, batch_dim=0, mode="forward")(batch)
    for keywords in ({}, {"mode": "reverse"}, {"max_memory": "1GB"}):
        with pytest.raises(OutputError, match="mixes the samples"):
            covector.jacobian(norm, batch_dim=0, **keywords)(batch)
    widened = lambda x: norm(x).sum() * wide
    jacobian = covector.jacobian(widened)
    assert jacobian(batch).shape == (200, 5, 3)
    assert jacobian.plan.mode == "reverse"
    assert "captured Tensor" in jacobian.plan.reason
    assert covector.jacobian(norm.eval(), batch_dim=0, mode="forward")(batch).shape == (5, 3, 3)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_empty_samples(mode):
    assert covector.jacobian(lambda x: x * 2, batch_dim=0, mode=mode)(torch.zeros(4, 0)).shape == (4, 0, 0)
    assert covector.jacobian(lambda x: x[:, :0], batch_dim=0, mode=mode)(torch.ones(4, 2)).shape == (4, 0, 2)


# Mistakes

MISTAKES = [
    ("function", lambda: covector.jacobian(3), ArgumentTypeError, "jacobian: the first argument must be a function"),
    ("mode", lambda: covector.jacobian(torch.sin, mode="fwd"), ArgumentValueError, "jacobian: mode must be one of 'auto', 'forward', 'reverse', got 'fwd'"),
    ("chunk", lambda: covector.jacobian(torch.sin, chunk_size=0), ArgumentValueError, "jacobian: chunk_size must be positive"),
    ("complex", lambda: covector.jacobian(torch.sin, complex="c"), ArgumentValueError, "complex must be None or one of 'holomorphic', 'wirtinger', 'real', got 'c'"),
    ("batch_dim type", lambda: covector.jacobian(torch.sin, batch_dim="0"), ArgumentTypeError, "batch_dim must be None or an int, got '0' (str)"),
    ("batch_dim negative", lambda: covector.jacobian(torch.sin, batch_dim=-1), ArgumentValueError, "batch_dim=-1 is negative"),
    ("batch_dim range", lambda: covector.jacobian(torch.sin, batch_dim=1)(x), ArgumentValueError, "arg0 has shape (3,), which has no axis 1"),
    ("batch_dim inputs", lambda: covector.jacobian(torch.add, (0, 1), batch_dim=0)(batch, batch[:1]), ArgumentValueError, "has shape (1, 3): 1 along axis 0 instead of 5"),
    ("batch_dim output", lambda: covector.jacobian(lambda x: x.sum(), batch_dim=0)(batch), OutputError, "output has shape (), which has no axis 0"),
    ("batch_dim output size", lambda: covector.jacobian(lambda x: {"y": x[1:]}, batch_dim=0)(batch), OutputError, "output['y'] has shape (4, 3): 4 along axis 0 instead of 5"),
    ("argnums", lambda: covector.jacobian(torch.sin, 3)(x), ArgumentValueError, "argnums=3 is out of range"),
    ("argnums twice", lambda: covector.jacobian(torch.add, (0, -2))(x, x), ArgumentValueError, "selected twice"),
    ("integers", lambda: covector.jacobian(torch.sin)(torch.arange(3)), ArgumentTypeError, "has dtype torch.int64"),
    ("output", lambda: covector.jacobian(lambda x: "a")(x), OutputError, "output is 'a' (str)"),
    ("integer output", lambda: covector.jacobian(lambda x: x.long(), mode="forward")(x), OutputError, "output has dtype torch.int64"),
    ("aux", lambda: covector.jacobian(torch.sin, has_aux=True)(x), OutputError, "must return a tuple (output, aux)"),
    ("value", lambda: covector.value_and_jacobian(torch.sin, mode="no"), ArgumentValueError, "value_and_jacobian: mode must be one of"),
    ("hessian mode", lambda: covector.hessian(torch.sin, mode="no"), ArgumentValueError, "hessian: mode must be one of"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "act", "kind", "text"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_mistake_is_explained(name, act, kind, text):
    with pytest.raises(kind) as caught:
        act()
    assert text in str(caught.value)
    assert isinstance(caught.value, CovectorError)


def test_plan_of_one_row_is_grammatical():
    assert str(Plan("reverse", 1, 3, 1, "x", 2_000_000)) == (
        "reverse mode: 1 row of 1 x 3, 1 at once, within 2 MB above the result, because x"
    )
