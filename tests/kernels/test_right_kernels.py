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
