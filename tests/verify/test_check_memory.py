"""What a check of many numbers takes in memory, beside what one pass of the function takes by itself."""

import numpy as np
import pytest
import torch

import covector
from covector.verify import judge
from forked import printed
from mutants import ruled

_MEASURE = """
from pathlib import Path
import torch, covector

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

def peak(call):
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    call()
    return status("VmHWM") - before

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum()

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]

function = {}

def one_pass():
    y = function(x)
    torch.autograd.grad(y, x, torch.ones_like(y))

torch.set_num_threads(1)
x = torch.linspace(-1, 1, 100, dtype=torch.float64, requires_grad=True)
one_pass(), covector.check(function, x)  # loads what is loaded late
x = torch.rand(10_000_000, dtype=torch.float64).mul_(2).sub_(1).requires_grad_()
alone = peak(one_pass)
checked = peak(lambda: print(bool(covector.check(function, x))))
print((checked - alone) / (8 * x.numel()))
"""


@pytest.mark.parametrize(
    ("function", "copies"),
    [
        ("torch.sin", 2),
        ("lambda x: (x * x).sum()", 2),
        ("torch.sum", 1),
        ("Square.apply", 3),  # of a program of the user's, a second gradient is compared
        ("lambda x: x[::2] * x[1::2]", 2),
    ],
)
def test_a_check_of_many_numbers_keeps_few_of_them(function, copies):
    """A copy of the input, and the gradient unless one number stands for it; of large outputs, the value.

    A little more for what the process itself takes.
    """
    verdict, share = printed(_MEASURE.format(function)).split()
    assert verdict == "True"
    assert float(share) < copies + 0.3


def test_judging_an_entry_keeps_the_outputs_that_move(monkeypatch):
    """A stencil is many times as large as an output, so it holds only those that its column moves."""
    held = []

    def slopes_of(stencil: np.ndarray, *others):
        held.append(stencil.shape[1])
        return original(stencil, *others)

    original = judge.slopes_of
    monkeypatch.setattr(judge, "slopes_of", slopes_of)
    wrong = ruled(torch.sin, lambda g, x: 1.5 * g * x.cos())
    x = torch.linspace(-1, 1, 2000, dtype=torch.float64, requires_grad=True)
    assert not covector.check(wrong, x)
    assert held
    assert max(held) == 1
