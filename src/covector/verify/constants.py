"""The tuned numbers of a check, each with its reason.

They are read as `constants.NAME` wherever they are used, so that a test can move one and see what follows.
"""

from __future__ import annotations

# What a look compares.

DIRECTIONS = 4
"""Random directions of a check that is not fast. Two errors of one row, twice as large as is allowed, cancel
along one of them for one seed in fifty."""

SUM_SHARE = 0.04
"""The share of `atol` by which a directional derivative may be off. Two wrong entries are missed only if
they cancel to within it; an entry that is off by a hundredth of `atol`, with a weight of up to four, raises
no suspicion."""

FAST_SHARE = 0.25
"""The same in fast mode, where a suspicion costs more than the check. Errors that are allowed add up: 150
columns, each off by a fiftieth of `atol`, reach it."""

SCALE = 2.0**20
"""A cotangent is divided by this to see whether its pullback scales. Programs cut small gradients off at
1e-4 or below; multiplying by a power of two is exact."""

LARGE = 2.0**10
"""A cotangent is multiplied by this to see whether large ones are clipped. Programs clip at 1 to 100."""

HALF = 2.0**4
"""Replaces both factors in half precision, where numbers below 6e-5 lose digits and those above 65504 are
infinite."""

HALVING_SHARE = 1 / 64
"""Halving may take this share of the runs that moving every column takes, or of `FAST_RUNS` if those are
fewer. They are wasted if every column has to be moved after all."""

ROUNDED_RUNS = 6
"""Runs with random rounding that measure the rounding error of a function in low precision, once its
derivative looks wrong. The root mean square of six errors is below a quarter of their standard deviation
once in 30,000 times."""

FEW_ULPS = 8.0
"""A value in low precision may differ from that in double precision by this many units in the last place, or
measured rounding errors. A function that differs by more is another function."""

FAR_SHARES = (2.0**-5, 2.0**-2)
"""Relative distances from the point at which a function in low precision is compared with itself in double
precision. Most functions are defined at the first; at the second, another slope shows in spite of
rounding."""

REPEATED_ROWS = 16
"""Rows of the Jacobian that are pulled back twice in succession through a custom backward; torch does this
with all rows. A backward that differs at random, or with some period, differs in one of these."""

ROUNDINGS_OF_A_SUM = 2.0**10
"""A sum of pullbacks that should be zero may be off by this many rounding errors. If it is off by more, one
pullback may have differed, so some are repeated; those of a backward that solves to a tolerance agree
then."""

ROUNDINGS_OF_A_PULLBACK = 16.0
"""Two ways to compute the same derivative may differ by this many rounding errors, relative to the size of
what is added up on the way."""

HIDDEN_SHARE = 0.5
"""Noise above this share of `atol` could hide that an entry is wrong: with the share by which a sum may be
off, it has to stay below `atol`."""

# The steps.

NEAR = 1e3
"""Steps are in proportion to the size of a coordinate, up to this size: a function of 1e7 may change within
a unit."""

NEXT_LENGTH = 4.0
"""The ratio between neighbouring steps: longer where rounding hides an entry, shorter to confirm a verdict.
A power of two, so that steps stay exact."""

# The judge.

SHORTER = 64
"""The ratio by which a step shrinks where the truncation error exceeds the noise: of 6th order, the error
falls by eleven digits while the noise grows by two. Where noise hides the slope, a step grows by at most its
square."""

STENCILS = 5
"""How many step lengths the judge tries: from 1e-6 down to 1e-13, or up to `LONGEST_STEP`."""

LONGEST_STEP = 2.0**-5
"""The longest step, in units of max(1, |x|)."""

SIGMAS = 4.0
"""The bound of a difference in standard deviations of its noise: one in 16,000 is further off. Second
differences beyond it show a curve, since those of a line in steps are at most 3.5 times its noise."""

QUIET_SHARE = 1 / 8
"""The share of what an entry is allowed that noise may take where a step is chosen: the rest is for the
truncation error and for the derivative."""

LOUDER = 8.0
"""The ratio by which noise may differ between two stencils, or between both sides of one. A larger ratio
means that a wave, a kink or a jump fills the louder one."""

CURVATURE = 1e-3
"""The share of one-sided slopes by which they may differ because the function is curved. Curvature makes
them differ by about a millionth at the usual step, a kink by as much as the slopes: a margin to both."""

GAP = 0.7
"""At a kink, the gap between one-sided slopes keeps at least this share of itself when the step shrinks;
where the function is smooth it shrinks with the step."""

# What a check may take.

WHOLE_COLUMNS = 128
"""Up to this many columns (an input of 8 x 16 numbers), all of them are differenced once something is wrong.
Beyond, halving finds those that disagree, and the report shows a sample; from about here on that takes less
time than torch's exhaustive mode."""

EXTRA_RUNS = 32
"""Runs that judging entries may take beyond those of looks and of halving: two columns with two or three
stencils each. With a second difference of every suspect column, a check stays within torch's number of runs
and 60."""

SPARE_RUNS = 56
"""Runs beyond two for each column that a check may take in all where entries stay undecided. With those that
look for the line of a lost derivative it stays within torch's number and 60."""

FAST_RUNS = 20_000
"""The most runs in fast mode: those of torch's exhaustive mode for 10,000 numbers. Beyond, a fast check
would take hours."""

BATCH_BYTES = 32 * 2**20
"""The memory of a batch of evaluations beyond that of a single one, and of the differences that are kept.
Larger batches leave the cache and are slower: convolutions of 128 channels by a tenth."""

COPIES = 8
"""Copies of a point and of its outputs that are in memory at once: both points, both outputs, their
difference, and what these are computed from."""

BATCH_ROUNDING = 1e4
"""How far a batch may be from a single evaluation, in units of rounding: kernels add up in another order.
With a step of 1e-6, a batching rule that lacks 2e-6 of a slope is off by more."""
