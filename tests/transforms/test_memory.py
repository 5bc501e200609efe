"""`max_memory`: what is allowed is kept to, and what cannot be done is refused."""

import pytest
import torch

import covector
from covector._engine.memory import NoZeroProducts, Watch
from covector.errors import ArgumentTypeError, ArgumentValueError, BudgetError, ResourceError
from covector.transforms._plan import Budget, in_units, memory_limit
from covering import covered
from forked import printed

assert_close = torch.testing.assert_close
generator = torch.Generator().manual_seed(0)
A = torch.randn(2000, 150, dtype=torch.float64, generator=generator) / 12
B = torch.randn(160, 2000, dtype=torch.float64, generator=generator) / 40
x = torch.randn(150, dtype=torch.float64, generator=generator)


def wide(x):
    h = A @ x
    return B @ (h.sin() * h.tanh())


def peak_above_result(call):
    with Watch() as watch:
        result = call()
    return watch.peak - result.numel() * result.element_size(), result


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("limit", ["6MB", "2MB", 500_000])
def test_peak_stays_below(mode, limit):
    """The tensors alive beside the result never exceed what is allowed, though all at once would."""
    unlimited, expected = peak_above_result(lambda: covector.jacobian(wide, mode=mode)(x))
    jacobian = covector.jacobian(wide, mode=mode, max_memory=limit)
    peak, result = peak_above_result(lambda: jacobian(x))
    assert_close(result, expected)
    assert peak < memory_limit("", limit) < unlimited
    assert 1 < jacobian.plan.chunk < 150
    assert jacobian.plan.max_memory == memory_limit("", limit)
    assert "above the result" in str(jacobian.plan)


def test_hessian_keeps_to_it_too():
    loss = lambda x: wide(x).pow(2).sum()
    hessian = covector.hessian(loss, max_memory="2MB")
    peak, result = peak_above_result(lambda: hessian(x))
    assert_close(result, covector.hessian(loss)(x))
    assert peak < 2e6
    assert hessian.plan.chunk < 150


_MEASURE = """
from pathlib import Path
import torch, covector

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

def peak_above_result(call):
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    result = call()
    return status("VmHWM") - before - result.numel() * result.element_size()

torch.set_num_threads(1)
VALUES
first, second = torch.ones(12_000, 300, dtype=dtype) / 300, torch.ones(280, 12_000, dtype=dtype) / 12_000
network = lambda x: torch.tanh(second @ torch.tanh(first @ x))
samples = lambda x: torch.tanh(torch.tanh(x @ first[:, :20].T) @ second.T)
calls = {
    "jacobian": (covector.jacobian(network, mode=mode, max_memory=limit), torch.ones(300, dtype=dtype)),
    "batch_dim": (
        covector.jacobian(samples, mode=mode, max_memory=limit, batch_dim=0), torch.ones(12, 20, dtype=dtype)
    ),
    "hessian": (
        covector.hessian(lambda x: network(x).pow(2).sum(), mode=mode, max_memory=limit),
        torch.ones(300, dtype=dtype),
    ),
}
function, x = calls[verb]
for small in (torch.ones(3), torch.ones(3, 3)):  # loads what is loaded late
    covector.jacobian(lambda x: small @ x, mode=mode, max_memory="1MB")(torch.ones(3))
    covector.hessian(lambda x: (small @ x).pow(3).sum(), mode=mode, max_memory="1MB")(torch.ones(3))
print(peak_above_result(lambda: function(x)), function.plan.chunk)
"""


# Each verb, each dtype and each mode; every one of these starts a process.
RESIDENT = {
    ("jacobian", "float32", "forward"),
    ("jacobian", "float64", "reverse"),
    ("batch_dim", "float64", "reverse"),
    ("hessian", "float64", "forward"),
}


@pytest.mark.parametrize(
    ("verb", "dtype", "mode"),
    covered(
        [
            ("jacobian", "float32", "forward"),
            ("jacobian", "float32", "reverse"),
            ("jacobian", "float64", "forward"),
            ("jacobian", "float64", "reverse"),
            ("batch_dim", "float64", "forward"),
            ("batch_dim", "float64", "reverse"),
            ("hessian", "float64", "forward"),
            ("hessian", "float64", "reverse"),
        ],
        lambda verb, dtype, mode: (verb, dtype, mode) in RESIDENT,
    ),
)
def test_resident_memory_of_a_process_stays_below(verb, dtype, mode):
    """What the operating system sees, kernels included; in chunks of several directions."""
    limit = 50_000_000 * (2 if dtype == "float64" else 1)
    values = f"verb, mode, dtype, limit = {verb!r}, {mode!r}, torch.{dtype}, {limit}"
    peak, chunk = map(int, printed(_MEASURE.replace("VALUES", values)).split())
    assert peak < limit
    assert 1 < chunk < 280


def test_chunk_size_is_an_upper_bound():
    jacobian = covector.jacobian(wide, max_memory="1GB", chunk_size=7)
    assert_close(jacobian(x), covector.jacrev(wide)(x))
    assert jacobian.plan.chunk == 7


def test_forward_mode_where_a_graph_does_not_fit():
    """A long chain whose graph would exceed the limit is pushed through instead."""

    def chain(x):
        for _ in range(60):
            x = x.sin()
        return x

    point = torch.linspace(0, 1, 400)
    jacobian = covector.jacobian(chain, max_memory=650_000)
    assert_close(jacobian(point), torch.func.jacrev(chain)(point))
    assert jacobian.plan.mode == "reverse"
    point = torch.linspace(0, 1, 100)
    jacobian = covector.jacobian(lambda x: chain(x.expand(200, 100))[0], max_memory=2_000_000)
    jacobian(point)
    assert jacobian.plan.mode == "forward"
    assert "would not fit" in jacobian.plan.reason


def test_large_result_is_refused_before_any_work():
    """One run to learn the sizes, no derivative; and the text has them."""
    runs = []

    def f(x):
        runs.append(torch.is_grad_enabled())
        return x.expand(10**5, 150).sin()

    with pytest.raises(
        BudgetError, match=r"15000000 x 150 with 18 GB, .* more than max_memory=2 GB"
    ) as caught:
        covector.jacobian(f, max_memory="2GB")(x)
    assert runs == [False]
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, ResourceError)


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
def test_too_little_for_one_direction(mode):
    heavy = lambda x: (x.sum() * torch.ones(10**6)).sin().sum().expand(3)
    with pytest.raises(BudgetError, match=r"needs some|leaves nothing"):
        covector.jacobian(heavy, mode=mode, max_memory="100kB")(torch.ones(3))


def test_draws_are_not_disturbed():
    """The run that learns the sizes leaves the random state alone."""
    f = lambda x: x * torch.rand(3)
    torch.manual_seed(3)
    expected = covector.jacobian(f, mode="reverse")(torch.ones(3))
    torch.manual_seed(3)
    assert_close(covector.jacobian(f, mode="reverse", max_memory="1MB")(torch.ones(3)), expected)


@pytest.mark.parametrize(
    ("given", "size"),
    [(5, 5), ("5", 5), ("1kB", 1000), ("2 MB", 2_000_000), ("1.5GB", 1_500_000_000), ("1GiB", 2**30),
     (".5KiB", 512), ("3tb", 3 * 10**12), (None, None)],
)  # fmt: skip
def test_sizes(given, size):
    assert memory_limit("jacobian", given) == size


@pytest.mark.parametrize("given", ["", "GB", "2 giga", "-1GB", "1e9", "1XB", "1G B"])
def test_malformed_sizes(given):
    with pytest.raises(ArgumentValueError, match="is not a size"):
        covector.jacobian(torch.sin, max_memory=given)


def test_other_bad_limits():
    for given in (0, -5, "0", "0MB"):
        with pytest.raises(ArgumentValueError, match="must be positive"):
            covector.jacobian(torch.sin, max_memory=given)
    for given in (1.5, True, [1]):
        with pytest.raises(ArgumentTypeError, match="max_memory must be None"):
            covector.jacobian(torch.sin, max_memory=given)


@pytest.mark.parametrize(
    "given",
    ["9" * 400 + "GB", "9" * 400, "9" * 5000, 10**400, -(10**5000), 2**63 + 1, "99999999999TB"],
    ids=range(7),
)
def test_limits_beyond_all_memory(given):
    with pytest.raises(ArgumentValueError, match=r"jacobian: max_memory is beyond 2\*\*63 bytes"):
        covector.jacobian(torch.sin, max_memory=given)


def test_limits_that_are_no_numbers():
    for given in ("nan", "inf", "-inf"):
        with pytest.raises(ArgumentValueError, match="is not a size"):
            covector.jacobian(torch.sin, max_memory=given)
    for given in (float("nan"), float("inf")):
        with pytest.raises(ArgumentTypeError, match="max_memory must be None"):
            covector.jacobian(torch.sin, max_memory=given)


def test_units():
    assert [in_units(n) for n in (12, 1500, 2e6, 3.456e9, 7e12)] == [
        "12 bytes",
        "1.5 kB",
        "2 MB",
        "3.46 GB",
        "7 TB",
    ]


def test_watch_counts_what_is_alive():
    """Views are not counted, released tensors no more; also under vmap and inside the engine."""
    base = torch.zeros(1000)
    with Watch() as watch:
        base.view(10, 100).t()
        assert watch.peak == 0
        kept = base + 1
        base * 2
        assert (watch.live, watch.peak, watch.total) == (4000, 8000, 8000)
        kept.view(-1).add_(1)
        assert watch.live == 4000
        torch.vmap(lambda x: x + 1)(base[:, None])
        assert watch.live == 4000
    del kept
    assert watch.live == 0


def test_watch_counts_the_copies_that_products_make():
    """A factor without dense rows or columns is copied by the kernel."""
    strided = torch.zeros(100, 400)[:, ::2]
    vector, matrix = torch.ones(200), torch.ones(100, 5)
    for product in (lambda: strided @ vector, lambda: strided.T @ matrix):
        with Watch() as watch:
            result = product()
        assert watch.peak == strided.numel() * 4 + result.numel() * 4
        assert watch.live == result.numel() * 4
    for dense in (torch.zeros(100, 200), torch.zeros(200, 100).T, torch.zeros(100, 400)[:, :200]):
        with Watch() as watch:
            result = dense @ vector
        assert watch.peak == result.numel() * 4


def test_products_with_zeros_are_not_computed():
    """One zero seen as a matrix times something finite is zero; all else is computed as ever."""
    zeros, ones = torch.zeros(()).expand(40, 30), torch.ones(()).expand(40, 30)
    v, m = torch.randn(30), torch.randn(30, 5)
    pairs = [(zeros, v), (zeros, m), (m.T, zeros.T), (zeros.expand(2, 40, 30), m.expand(2, 30, 5)), (ones, m)]
    for a, b in pairs:
        expected = a @ b
        with NoZeroProducts(), Watch() as watch:
            skipped = a @ b
        with Watch() as outside, NoZeroProducts():
            skipped = a @ b
        assert_close(skipped, expected)
        assert (outside.peak < watch.peak) == (a is not ones)
    with NoZeroProducts():
        assert (zeros @ torch.full((30,), torch.inf)).isnan().all()


def test_budget_reckons_with_a_fixed_part():
    """Chunks follow from a fixed part and a part for each direction."""
    budget = Budget(covector.errors.Caller("jacobian", torch.sin), 1000 / 0.85, None)
    budget._seen = [(2, 320), (6, 360)]
    assert budget.next(10_000) == 70
    budget._seen = [(2, 320)]
    assert budget.next(10_000) == 3
