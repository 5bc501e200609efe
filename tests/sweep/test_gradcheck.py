"""Every operator that torch can differentiate: covector's verdicts against those of torch's gradcheck.

Each operator is a test for each dtype. On its samples covector's exhaustive verdict has to be torch's
exhaustive verdict, and covector's fast verdict its own exhaustive one; so too for second derivatives
and forward mode, on a subset. Where the verdicts differ, EXPLAINED says which one is right and why, and
an entry that is no longer needed fails.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from samples import Sample, operators, samples

import covector

pytestmark = pytest.mark.sweep

DTYPES = {"float64": torch.float64, "complex128": torch.complex128}
OPERATORS = {(name, dtype): op for dtype in DTYPES for name, op in operators(DTYPES[dtype]).items()}

RIGHT, WRONG, REFUSED = "right", "wrong", "refused"


@dataclass(frozen=True)
class Check:
    """One kind of check: the door of each library, its keywords, and what it is asked about."""

    ours: Callable[..., bool]
    theirs: Callable[..., bool]
    supported: Callable[[Any], bool] = lambda op: True
    every: int = 1  # of the operators that support it
    many: int = 300  # elements of the inputs
    keywords: dict[str, bool] = field(default_factory=dict)

    def operators(self, dtype: str) -> set[str]:
        """The operators it is asked about."""
        able = [name for (name, kind), op in OPERATORS.items() if kind == dtype and self.supported(op)]
        return set(able[:: self.every])


FIRST = (covector.gradcheck, torch.autograd.gradcheck)
SECOND = (covector.gradgradcheck, torch.autograd.gradgradcheck)

CHECKS = {
    "gradcheck": Check(*FIRST),
    "gradgradcheck": Check(*SECOND, lambda op: op.supports_gradgrad, every=5, many=60),
    "forward mode": Check(
        *FIRST, lambda op: op.supports_forward_ad, every=4, keywords={"check_forward_ad": True}
    ),
}
ASKED = {(check, dtype): CHECKS[check].operators(dtype) for check in CHECKS for dtype in DTYPES}


@dataclass(frozen=True)
class Explained:
    """The verdict that is right although torch's differs, and why."""

    verdict: str
    reason: str


EXPLAINED: dict[tuple[str, str, str], Explained] = {}


@dataclass(frozen=True)
class Verdicts:
    """What the checkers say about one sample."""

    check: str
    ours: str
    fast: str
    theirs: str

    @property
    def agree(self) -> bool:
        """Whether all say the same."""
        return self.ours == self.fast == self.theirs


def verdict(door: Callable[..., bool], sample: Sample, **keywords: Any) -> str:
    """What one checker says about one sample."""
    torch.manual_seed(0)
    try:
        door(sample.function, sample.inputs, nondet_tol=sample.nondet_tol, **keywords)
    except (covector.GradcheckError, torch.autograd.gradcheck.GradcheckError):
        return WRONG
    except Exception:
        return REFUSED
    return RIGHT
