"""The numbers that fit the wrong entries: multiples of the true derivative, or a constant added to it."""

from __future__ import annotations

import torch
from torch import Tensor

from covector.diagnose.suspects import Suspect

# A factor this close to a number is that number.
NEAR = 1e-5

# A factor is that of the entries whose numeric value is known to this share of itself, if there are any.
_SHARP = 1e-3

# The factors that most mistakes have.
_SIMPLE = (-1.0, 2.0, 0.5)


def written(factor: float) -> str:
    """A factor with as many digits as tell it from one, and from zero."""
    if not 0.1 <= abs(factor) < 1000:
        return f"{factor:.3g}" if abs(factor) < 1 else f"{factor:.6g}"
    return f"{factor:.3f}" if abs(factor - 1) >= 5e-3 else f"{factor:.7g}"


def rounded(factor: float) -> float:
    """The simple number that a factor is to three digits, if it is; noise may have put it off."""
    return next((c for c in _SIMPLE if abs(factor - c) < 1e-3 * abs(c)), factor)


def ratio(suspect: Suspect, where: Tensor | None = None) -> float | None:
    """The number c with analytic = c x numeric on these entries, if there is one."""
    analytic, numeric = suspect.analytic, suspect.numeric
    mask = suspect.support if where is None else suspect.support & where
    if not mask.any() or (where is not None and bool((where & ~suspect.support).any())):
        return None
    sharp = mask & (suspect.bound <= _SHARP * numeric.abs())
    of = sharp if sharp.any() else mask
    factor = float((analytic[of] * numeric[of]).sum() / (numeric[of] ** 2).sum())
    if where is None:
        fits = [c for c in (rounded(factor), factor) if suspect.explains(c * numeric, noise=max(1.0, abs(c)))]
        return fits[0] if fits else None
    return factor if suspect.same(analytic, factor * numeric, where) else None


def offset(suspect: Suspect, where: Tensor) -> float | None:
    """The number c with analytic = numeric + c on these entries, if there is one."""
    off = (suspect.analytic - suspect.numeric)[where]
    mean = off.mean()
    same = (off - mean).abs() <= torch.minimum(2 * suspect.slack[where], 0.1 * mean.abs()) + 1e-4 * mean.abs()
    return float(mean) if bool(same.all()) else None


def clustered(values: Tensor) -> tuple[Tensor, Tensor]:
    """The different values among these, in their order, and the number of each."""
    order = values.argsort()
    rises = values[order].diff() > 2 * NEAR * values[order][1:].abs().clamp_min(NEAR)
    number = torch.cat([torch.zeros(1, dtype=torch.int64), rises.cumsum(0)])
    group = torch.empty_like(number)
    group[order] = number
    counts = group.bincount()
    return torch.zeros(len(counts), dtype=values.dtype).index_add_(0, group, values) / counts, group


def manner(suspect: Suspect) -> str:
    """In what way the wrong entries are wrong, if in one."""
    bad = suspect.bad
    if not suspect.analytic[bad].any():
        return "; it is zero there"
    if not (suspect.support & bad).any():
        return "; it should be zero there"
    factor = ratio(suspect, bad)
    if factor is None:
        off = offset(suspect, bad) if int(bad.sum()) > 2 else None
        return "" if off is None else f"; it is off by {off:.3g} there"
    if abs(factor + 1) < NEAR:
        parts = suspect.inputs.imaginary.any() or suspect.outputs.imaginary.any()
        return "; imaginary parts have the wrong sign there" if parts else "; it has the wrong sign there"
    return f"; it is {written(factor)} x the numeric one there"
