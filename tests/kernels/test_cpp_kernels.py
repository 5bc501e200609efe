"""A real operator in C++ (make kernels): the right one passes, planted bugs are caught.

It is built once, in a directory for temporary files, which takes some ten seconds.
"""

import runpy
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import is_ninja_available

import covector
from covector.verify.finding import Outcome

pytestmark = pytest.mark.sweep

if shutil.which("c++") is None or not is_ninja_available():
    pytest.skip("there is no C++ compiler, or no ninja, to build an operator with", allow_module_level=True)

EXAMPLES = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "kernels" / "cpp_kernels.py"))

# What sees each bug; the fake kernel is right by chance in single precision. A batch at the end is not
# contiguous, and other numbers.
SEEN = {
    1: {"layout", "modes"},
    2: {"as given"},
    3: {"again", "modes", "registration"},
    4: {"registration"},
}


@pytest.fixture(scope="module")
def operators():
    directory = Path(tempfile.gettempdir()) / f"covector-examples-torch-{torch.__version__}"
    directory.mkdir(exist_ok=True)
    return EXAMPLES["operators"](directory)


def check(operator, dtype, lenses=None):
    return covector.check_kernel(
        operator, EXAMPLES["rms_norm_reference"], EXAMPLES["inputs"](dtype), lenses=lenses
    )


def rows(report):
    return {(row[0], row[1]): row[3] for row in report.tables[1].rows}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_right_operator_passes(operators, dtype):
    """Through every lens: compiled by its fake kernel, batched, and asked torch's questions."""
    report = check(operators[0], dtype)
    assert report, report
    seen = rows(report)
    assert seen["modes", "torch.compile (fullgraph)"] == seen["modes", "torch.vmap"] == "passed"
    assert seen["registration", "test_faketensor"] == "passed"
    assert seen["second order", "double backward"] == "unsupported"


@pytest.mark.parametrize("bug", EXAMPLES["BUGS"])
def test_a_planted_bug_is_caught(operators, bug):
    """By the lenses that are named for it, and by no other."""
    report = check(operators[bug], torch.bfloat16)
    assert {f.check for f in report.findings if f.outcome is Outcome.FAILED} == SEEN[bug], report


def test_a_backward_that_is_not_registered_has_a_silent_second_derivative(operators):
    """The operator of the backward without a backward of its own."""
    backward = torch.ops.covector_examples.rms_norm_0_backward

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return operators[0](x.detach(), weight.detach())

        @staticmethod
        def backward(ctx, g):
            with torch.no_grad():
                return backward(g, *ctx.saved_tensors)

    report = check(Norm.apply, torch.float32, lenses=["second order"])
    assert {f.check for f in report.findings if f.outcome is Outcome.FAILED} == {"second order"}, report
