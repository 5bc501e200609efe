"""The entries that a failed check shows: the wrong one is among them, whatever lies beside it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import covector

both_modes = pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])


def wrong_by(amount: float, row: int, column: int, y: Tensor, x: Tensor) -> Tensor:
    """The same numbers, with one entry of the derivative off."""
    off = torch.zeros(y.numel(), dtype=y.dtype)
    off[row] = amount
    one = x.flatten()[column]
    return y + off.view(y.shape) * (one - one.detach())


@both_modes
@pytest.mark.parametrize(("size", "kinks"), [(20, [5, 7, 12]), (200, list(range(20, 200, 20)))])
def test_right_entries_next_to_a_kink_do_not_stand_before_the_wrong_one(
    size: int, kinks: list[int], fast: bool
) -> None:
    x = torch.linspace(-1, 1, size, dtype=torch.float64)
    x[kinks] = 1e-7
    report = covector.check(lambda x: wrong_by(2e-3, 3, 9, x.abs(), x), x.requires_grad_(), fast_mode=fast)
    assert [(m.row, m.column) for m in report.worst.mismatches] == [(3, 9)]


@both_modes
def test_rows_are_those_of_a_single_pullback(fast: bool) -> None:
    """The batched backward of cdist is wrong in torch; the graph is not."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(20, 7, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2))
    report = covector.check(lambda a, b: wrong_by(0.02, 64, 0, torch.cdist(a, b), a), (a, b), fast_mode=fast)
    assert [(m.row, m.column) for m in report.worst.mismatches] == [(64, 0)]


@both_modes
def test_what_was_judged_is_shown_beside_entries_that_are_not_finite(fast: bool) -> None:
    x = torch.tensor([0.0, 0.5, 0.3, 0.0, 0.7], dtype=torch.float64, requires_grad=True)
    report = covector.check(lambda x: wrong_by(0.05, 1, 1, x.sqrt(), x), x, fast_mode=fast)
    assert (1, 1) in [(m.row, m.column) for m in report.worst.mismatches]


@both_modes
def test_right_entries_of_a_fast_wave_are_not_shown(fast: bool) -> None:
    """A single difference is a tenth off; so was that of the entry that was judged."""
    x = torch.tensor([13.0, 13.1781, -9.23], dtype=torch.float64, requires_grad=True)
    report = covector.check(lambda x: wrong_by(1e3, 1, 1, (1e5 * x).sin(), x), x, fast_mode=fast)
    assert [(m.row, m.column) for m in report.worst.mismatches] == [(1, 1)]
