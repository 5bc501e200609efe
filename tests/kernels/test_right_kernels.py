"""Noise that is the reference's own affair: right kernels pass whatever the seed."""

import pytest
import torch

import covector
import kernel_families as families
from covector.verify.finding import Outcome
from drawn import randn
from kernel_table import TWINS


def twin(text, number):
    return [entry for entry in TWINS if str(entry) == text][number]


def rows(report, lens):
    return {row[1]: row for row in report.tables[1].rows if row[0] == lens}


@pytest.mark.parametrize("seed", range(4))
def test_a_single_rounding_may_turn_a_row_of_large_inputs(seed):
    """An attention of inputs times 2^20 takes one key of each row, and which depends on the last bit."""
    entry = twin("attention, right, bfloat16", 1)
    assert covector.check_kernel(entry.kernel, entry.reference, entry.inputs, lenses=["scale"], seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_the_noise_of_a_tangent_is_that_of_its_own_rounding_too(seed):
    """A sum has tangents that do not depend on its inputs: four runs on other inputs would give the same."""
    inputs = randn(24, 90, dtype=torch.float32)
    scan, reference = families.scan_in_two_stages, families.scan_reference
    report = covector.check_kernel(scan, reference, inputs, lenses=["modes"], seed=seed)
    assert rows(report, "modes")["forward mode"][3] == "passed", report


def recurrent(q, k, v):
    """Causal attention with a linear kernel, as sums that are carried on."""
    f, g = q.exp(), k.exp()
    carried, total = (g[..., :, None] * v[..., None, :]).cumsum(-3), g.cumsum(-2)
    return (f[..., None, :] @ carried)[..., 0, :] / (f * total).sum(-1, keepdim=True)


def recurrent_reference(q, k, v):
    weights = (q.exp() @ k.exp().mT).tril()
    return weights @ v / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("seed", range(4))
def test_what_cancels_has_the_noise_of_the_tensor(seed):
    """The first row has one key, of weight one whatever the query: its gradient is zero, but for rounding."""
    inputs = tuple(randn(2, 20, 8, dtype=torch.float32, seed=number) for number in range(3))
    assert covector.check_kernel(recurrent, recurrent_reference, inputs, lenses=["layout"], seed=seed)


def test_what_could_not_be_judged_is_not_explained():
    """A right kernel whose gradient is zero: no rule says what is wrong with it."""
    report = covector.check_kernel(torch.round, torch.round, randn(12, 9), lenses=["in place"])
    assert report.outcome is Outcome.INCONCLUSIVE
    assert not any(finding.diagnoses for finding in report.findings)


def test_no_gradient_is_a_gradient_of_zeros():
    """Of an input without entries, a kernel that writes block by block has none."""

    def blocks(x):
        y = torch.zeros_like(x)
        for start in range(0, x.shape[-1], 32):
            y[..., start : start + 32] = x[..., start : start + 32].tanh()
        return y

    report = covector.check_kernel(blocks, torch.tanh, lambda n: (randn(6, n),), lenses=["sizes"])
    assert rows(report, "sizes")["size 0"][3] == "passed", report


def test_a_gradient_without_a_graph_is_said_to_be_that():
    """Rather than how far the second derivative, which is zero, is off."""

    class Detached(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return (g * 3 * ctx.saved_tensors[0] ** 2).detach()

    report = covector.check_kernel(Detached.apply, lambda x: x**3, randn(12, 9), lenses=["second order"])
    assert "silently zero" in rows(report, "second order")["double backward"][5]


def test_every_layout_has_its_ratio():
    """Also where it passed, in a run that it shared."""
    report = covector.check_kernel(torch.tanh, torch.tanh, randn(12, 9), lenses=["layout"])
    assert all(row[4] is not None for row in rows(report, "layout").values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_the_reference_has_on_purpose(dtype):
    """Straight through a rounding: in float64, differences disagree with kernel and reference alike."""

    def rounded(x):
        return x + (x.round() - x).detach()

    x = 3 * randn(12, 9, dtype=dtype).detach()
    report = covector.check_kernel(
        lambda x: x - (x - x.round()).detach(), rounded, x.requires_grad_(), lenses=["in place"]
    )
    assert report, report
    report = covector.check_kernel(rounded, lambda x: 0 * x + x.round(), x, lenses=["in place"])
    assert not report


def test_autocast_takes_other_operations_of_a_kernel():
    """Sums by a product of matrices are taken to bfloat16, and sums by index are not."""
    places = torch.arange(12) % 5

    def by_matrix(x):
        return torch.nn.functional.one_hot(places, 5).to(x.dtype).T @ x

    def by_index(x):
        return x.new_zeros(5, x.shape[1]).index_add(0, places, x)

    def wrong(x):
        y = by_matrix(x)
        return 1.2 * y if torch.is_autocast_enabled("cpu") else y

    for kernel, status in ((by_matrix, "passed"), (wrong, "failed")):
        report = covector.check_kernel(kernel, by_index, randn(12, 9), lenses=["modes"])
        assert rows(report, "modes")["autocast"][3] == status, report


def divergence(p, q):
    return (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1)


def divergence_by_sums(p, q):
    dtype, p, q = p.dtype, p.float(), q.float()
    e = p.exp()
    return ((e * (p - q)).sum(-1) / e.sum(-1) - e.sum(-1).log() + q.exp().sum(-1).log()).to(dtype)


def test_a_reference_whose_terms_cancel_to_the_last_bit():
    """Of two distributions that are nearly uniform: no noise in bfloat16, and no digits either."""
    inputs = tuple(randn(12, 20, dtype=torch.bfloat16, seed=seed) for seed in range(2))
    report = covector.check_kernel(divergence_by_sums, divergence, inputs, lenses=["scale"])
    small = [row[3] for row in rows(report, "scale").values() if row[1].startswith("inputs x 2^-")]
    assert len(small) == 1
    assert "failed" not in small, report


@pytest.mark.parametrize("seed", range(4))
def test_cotangents_below_the_smallest_normal_number(seed):
    """Every operation of an unfused kernel rounds to the same step there."""
    x = randn(24, 60, dtype=torch.float16, seed=seed)
    kernel, reference = (lambda x: x / (1 + (-x).exp())), torch.nn.functional.silu
    report = covector.check_kernel(kernel, reference, x, lenses=["scale"], seed=seed)
    assert rows(report, "scale")["inputs x 2^0, cotangents x 2^-20"][3] != "failed", report
