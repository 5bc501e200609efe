"""What a check of many numbers takes in memory, beside what one pass of the function takes by itself."""

import numpy as np
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

def one_pass():
    y = torch.sin(x)
    torch.autograd.grad(y, x, torch.ones_like(y))

torch.set_num_threads(1)
x = torch.linspace(-1, 1, 100, dtype=torch.float64, requires_grad=True)
one_pass(), covector.check(torch.sin, x)  # loads what is loaded late
x = torch.linspace(-1, 1, 10_000_000, dtype=torch.float64, requires_grad=True)
alone = peak(one_pass)
checked = peak(lambda: print(bool(covector.check(torch.sin, x))))
print((checked - alone) / (8 * x.numel()))
"""


def test_a_check_of_many_numbers_keeps_few_of_them():
    """A copy of the input, the value and the gradient; a fifth more for what the process itself takes."""
    verdict, share = printed(_MEASURE).split()
    assert verdict == "True"
    assert float(share) < 3.2


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
