"""Real kernels in Triton, by its interpreter (make kernels): right ones pass, planted bugs are caught."""

import os
import runpy
from pathlib import Path

import pytest
import torch

import covector
from covector.verify.finding import Outcome

if os.environ.get("TRITON_INTERPRET") != "1":  # Triton reads it when it is first imported, by whomever
    pytest.skip("Triton's interpreter is not switched on; make kernels does that", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed; make kernels installs it and runs these")

EXAMPLES = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "kernels" / "triton_kernels.py"))
KERNELS = EXAMPLES["KERNELS"]

# What sees each bug, where it is not the comparison of outputs and gradients.
SEEN = {("softmax", 3): "layout", ("cross entropy", 3): "again"}

# What the report makes of each.
NAMED = {
    "softmax": ("never written", "multiple", "layout"),
    "layer norm": ("missing term", "partial sum", "precision"),
    "cross entropy": ("region", "multiple", "stale value"),
    "attention": ("region", "never written", "precision"),
}


def check(name, bug, lens, dtype=torch.float32):
    make, reference, _ = KERNELS[name]
    return covector.check_kernel(make(bug), reference, EXAMPLES["inputs"](name, dtype), lenses=[lens])


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("bug", [1, 2, 3])
def test_a_planted_bug_is_caught(name, bug):
    """By the comparison, or by the lens that is named for it."""
    lens = SEEN.get((name, bug), "registration")
    report = check(name, bug, lens)
    failed = {found.check for found in report.findings if found.outcome is Outcome.FAILED}
    assert failed == {SEEN.get((name, bug), "as given")}, report
    seen = [d.rule for found in report.findings for d in found.diagnoses]
    assert NAMED[name][bug - 1] in seen, report


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_right_kernel_passes(name, dtype):
    """In its own precision, called twice and from two threads."""
    report = check(name, 0, "again", dtype)
    assert report, report


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_passes_every_lens(name):
    """Compiled and batched: unsupported, which does not speak against the kernel, and is said."""
    make, reference, _ = KERNELS[name]
    report = covector.check_kernel(make(), reference, EXAMPLES["inputs"](name))
    assert report, report
    assert "remark: modes: torch.compile (fullgraph), torch.vmap" in str(report)
    status = {row[1]: row[3] for row in report.tables[1].rows}
    assert status["torch.compile (fullgraph)"] == status["torch.vmap"] == "unsupported"
    assert status["no_grad"] == "passed"
