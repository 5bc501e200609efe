"""How much more error than the reference a right kernel may show, and why.

Let e be the kernel's error in an entry, and sigma^2 the expected square of the reference's there. A right
kernel orders and fuses its operations in its own way, so its errors have the size c sigma, with c up to
`ratio`, which the caller states. What is measured of a slice of n entries is

    r^2 = sum e^2 / floor^2 / n,   floor^2 = mean square error of RUNS runs of the reference + ulp^2 / 12.

If errors are normal, r^2 is about c^2 times a chi-square over its degrees of freedom nu, divided by another
one, that of the floor, with RUNS nu. Their quotient has Fisher's F distribution, so

    r^2 <= ratio^2 F(1 - alpha; nu, RUNS nu)

holds but for a share alpha of right kernels. `alpha` is FALSE_ALARMS over the number of slices that a check
looks at (Bonferroni), so that FALSE_ALARMS is the rate of a whole check, at the noisiest kernel that `ratio`
allows; kernels with less noise are accused less often.

Degrees of freedom are not the number of entries: the rounding error of a row's sum is common to the row. A
chi-square over nu has variance 2 / nu, so nu is measured, twice:
  - on the reference: the scatter of the sums over a slice between the runs, averaged over an axis;
  - on the kernel: the scatter of log r^2 over the slices of an axis, by its quartiles, which wrong slices do
    not move until a quarter of them is wrong (and then the ratio of the whole tensor tells). The logarithm of
    a chi-square over nu has about the standard deviation sqrt(2 / nu), and a normal distribution has its
    quartiles 1.349 standard deviations apart.
The smaller one is used. RUNS runs may by chance agree better than they should in an entry, which would make
its quotient large. So the floor of an entry is no less than what is typical of the tensor relative to the
values, and than a share of the mean of its slice (`truth.py`, `comparison.py`). Then it rests on all slices
of the axis, and has RUNS nu degrees of freedom for each of them; half of these are counted, because a median
is less sharp than a mean.

For the largest error of a tensor: of n independent normal errors the largest exceeds m with a chance of at
most n erfc(m / sqrt 2), and the largest of RUNS n errors of the reference stays below m with a chance of
erf(m / sqrt 2)^(RUNS n). Half of alpha for each gives the largest quotient that chance explains. n is counted
as nu of the whole tensor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# How often the reference is run for the noise floor.
RUNS = 4

# The share of right kernels that a check may accuse.
FALSE_ALARMS = 1e-4

# From the lower to the upper quartile of a normal distribution, in standard deviations.
_QUARTILES = 1.349


def freedom_of_reference(sums: Tensor) -> float:
    """Degrees of freedom, from the sums of squares of the runs (rows) over slices (columns)."""
    mean = sums.mean(0)
    known = mean > 0
    if not bool(known.any()):
        return math.inf
    scatter = float((sums.var(0)[known] / mean[known] ** 2).mean())
    return 2 / scatter if scatter > 0 else math.inf


def freedom_of_kernel(squared_ratios: Tensor) -> float:
    """Degrees of freedom, from the scatter of the kernel's ratios over the slices of an axis."""
    known = squared_ratios[squared_ratios > 0]
    if known.numel() < 8:
        return math.inf
    low, high = torch.quantile(known.log(), torch.tensor([0.25, 0.75], dtype=known.dtype)).tolist()
    return 2 * (_QUARTILES / (high - low)) ** 2 if high > low else math.inf


def largest_ratio(ratio: float, alpha: float, freedom: float, slices: int = 1) -> float:
    """The largest r of a slice that a right kernel shows."""
    from scipy.special import betaincinv

    above = min(max(freedom, 1.0), 1e6)
    below = RUNS * above * max(1.0, slices / 2)
    # Fisher's F is (1 - b) / b * below / above, where b has the beta distribution of halves of the two.
    share = float(betaincinv(below / 2, above / 2, alpha))
    return ratio * math.sqrt((1 - share) / share * below / above)


def largest_quotient(ratio: float, alpha: float, freedom: float) -> float:
    """The largest error of a right kernel over the largest of the reference's runs."""
    from scipy.special import erfcinv, erfinv

    count = min(max(freedom, 1.0), 1e9)
    highest = math.sqrt(2) * float(erfcinv(min(1.0, alpha / 2 / count)))
    lowest = math.sqrt(2) * float(erfinv((alpha / 2) ** (1 / (RUNS * count))))
    return ratio * max(1.0, highest / lowest)
