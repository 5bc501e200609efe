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
from torch.autograd.gradcheck import GradcheckError

import covector
from samples import MOST_ELEMENTS, Sample, operators, samples

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
    many: int = MOST_ELEMENTS  # of the inputs
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


_COARSE_OUTPUT = "the operator converts to low precision, in which torch differences; the gradient is exact"
_COARSE_WEIGHTS = "the weights are float32, in which torch differences; with float64 weights torch agrees"
_RESIDUALS = (
    "the residuals, an output, are empty while torch records and not otherwise, so torch's comparison raises "
    "an error about shapes; on the solution alone torch agrees"
)
_LARGE_VALUES = (
    "the backward is in the thousands and torch's one step loses too many digits; it is linear in the "
    "cotangent, and applied to unit cotangents, without differences, it agrees to 1e-12"
)

# Where torch is mistaken. Each was settled by differences in higher precision, or without any.
EXPLAINED = {
    **{
        (name, dtype, check): Explained(RIGHT, _COARSE_OUTPUT)
        for name, dtype, check in (
            ("float", "float64", "gradcheck"),
            ("half", "float64", "gradcheck"),
            ("cfloat", "float64", "gradcheck"),
            ("chalf", "float64", "gradcheck"),
            ("float", "complex128", "gradcheck"),
            ("float", "complex128", "gradgradcheck"),
            ("cfloat", "complex128", "gradcheck"),
            ("half", "complex128", "gradcheck"),
            ("chalf", "complex128", "gradcheck"),
        )
    },
    ("cov", "float64", "gradcheck"): Explained(RIGHT, _COARSE_WEIGHTS),
    ("cov", "complex128", "gradcheck"): Explained(RIGHT, _COARSE_WEIGHTS),
    ("linalg.lstsq", "float64", "gradcheck"): Explained(RIGHT, _RESIDUALS),
    ("linalg.lstsq", "complex128", "gradcheck"): Explained(RIGHT, _RESIDUALS),
    ("linalg.householder_product", "complex128", "gradgradcheck"): Explained(RIGHT, _LARGE_VALUES),
}

# Operators without a dense sample of at most 1,200 elements, where torch's exhaustive check would take hours.
NOT_COMPARED = (
    "_upsample_bilinear2d_aa",
    "nn.functional.ctc_loss",
    "slice_scatter",
    "sparse.mm.reduce",
    "sparse.sampled_addmm",
)


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
    except (covector.GradcheckError, GradcheckError):
        return WRONG
    except Exception:
        return REFUSED
    return RIGHT


@dataclass
class Tally:
    """What was compared so far."""

    compared: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[Verdicts] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"{count} operators in {dtype}" for dtype, count in sorted(self.compared.items())]
        lines += [
            f"  {v.check}: covector {v.ours}, covector fast {v.fast}, torch {v.theirs}: {count}"
            for v, count in sorted(self.verdicts.items(), key=lambda pair: (pair[0].check, -pair[1]))
        ]
        return "\n".join(lines)


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


def compared(check: str, sample: Sample) -> Verdicts:
    """All checkers on one sample."""
    kind = CHECKS[check]
    return Verdicts(
        check,
        ours=verdict(kind.ours, sample, **kind.keywords),
        fast=verdict(kind.ours, sample, fast_mode=True, **kind.keywords),
        theirs=verdict(kind.theirs, sample, **kind.keywords),
    )


@pytest.mark.parametrize(("name", "dtype"), OPERATORS, ids=map("-".join, OPERATORS))
def test_verdicts(name: str, dtype: str, tally: Tally) -> None:
    """Both libraries give the same verdict on the operator, or the other one is known to be mistaken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = samples(OPERATORS[name, dtype], DTYPES[dtype])
        verdicts = [
            compared(check, sample)
            for check, kind in CHECKS.items()
            if name in ASKED[check, dtype]
            for sample in chosen
            if sample.size <= kind.many
        ]
    tally.compared[dtype] += bool(verdicts)
    tally.verdicts.update(verdicts)

    assert bool(chosen) == (name not in NOT_COMPARED)
    explained = {check: EXPLAINED[key] for check in CHECKS if (key := (name, dtype, check)) in EXPLAINED}
    differing = [v for v in verdicts if not v.agree]
    assert [v for v in differing if v.check not in explained] == []
    assert {v.check for v in differing} == set(explained), "an entry of EXPLAINED is no longer needed"
    assert all(v.ours == v.fast == explained[v.check].verdict for v in differing)


def test_tables_name_operators() -> None:
    """Every entry of the tables belongs to an operator and a check that are compared."""
    assert all(name in ASKED[check, dtype] for name, dtype, check in EXPLAINED)
    assert set(NOT_COMPARED) <= {name for name, _ in OPERATORS}


def test_summary(tally: Tally, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    """Every operator that was to be compared was, and there are more than 400 of them in float64."""
    with capsys.disabled():
        print(f"\n{tally}")
    chosen = [item for item in request.session.items if item.originalname == "test_verdicts"]
    whole = len(chosen) == len(OPERATORS)
    left_out = [item for item in chosen if item.callspec.params["name"] in NOT_COMPARED]
    assert tally.compared.total() == len(chosen) - len(left_out)
    assert tally.compared["float64"] > 400 or not whole
    assert tally.compared["complex128"] > 250 or not whole
    assert len(OPERATORS) > 800
