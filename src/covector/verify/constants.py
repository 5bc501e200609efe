"""The tuned numbers of a check, each with its reason.

They are read as `constants.NAME` wherever they are used, so that a test can move one and see what follows.
"""

from __future__ import annotations

# What a look compares.

DIRECTIONS = 4
"""Random directions of a check that is not fast. Two errors of one row, twice as large as is allowed, cancel
along one of them for one seed in fifty."""

SUM_SHARE = 0.04
"""A sum of entries may be off by this share of `atol`: two wrong entries are missed only if they cancel to
within it. An entry that is off by a hundredth, and weighs four times as much, is not looked at again."""

FAST_SHARE = 0.25
"""In fast mode a direction may be off by this share of `atol`, because small errors that are allowed add up:
150 columns, each off by a fiftieth, reach it."""

SCALE = 2.0**20
"""By what a cotangent is divided to see whether its pullback scales; a power of two rounds nothing. Programs
cut small gradients off at 1e-4 or below."""

LARGE = 2.0**10
"""By what a cotangent is multiplied to see whether large ones are clipped: programs clip at 1 to 100."""

HALF = 2.0**4
"""Both in half precision, in which numbers below 6e-5 lose digits, and those above 65504 are infinite."""

HALVING_SHARE = 1 / 64
"""The share of the runs of moving every column that halving a direction may take before: it is lost if every
column has to be moved after all."""

ROUNDED_RUNS = 6
"""How often a function in low precision is run with random rounding, once its derivative looks wrong: the
root mean square of six errors is below a quarter of their standard deviation once in 30,000 times."""

FEW_ULPS = 8.0
"""How many units in the last place, or times its measured rounding error, a value in low precision may be
off to be that of the same function: another function is off by more."""

FAR_SHARES = (2.0**-5, 2.0**-2)
"""How far from the point, relative to it, a function in low precision and in double precision are compared:
at the first most functions are defined, and at the second another slope shows in spite of rounding."""

REPEATED_ROWS = 16
"""Rows of the Jacobian that are pulled back twice, one by one, through a custom backward. torch does so with
all of them; a backward that differs from run to run, or at every so many runs, differs in some of these."""

ROUNDINGS_OF_A_SUM = 2.0**10
"""Roundings by which a sum of pullbacks that is to be zero may be off. Beyond, a run of the backward may have
been off, and some are made again to see; for a backward that solves something to a tolerance, they agree."""

# The steps.

NEAR = 1e3
"""Up to this size of a coordinate, steps are in proportion to it; of a larger one, as long as for this one: a
function of 1e7 may change within a unit."""

NEXT_LENGTH = 4.0
"""How many times longer the next step is where rounding hides an entry, and shorter the one that confirms a
verdict: a power of two, by which no step is rounded again."""

# The judge.

SHORTER = 64
"""How much shorter the next step is where the truncation error exceeds the noise: 6th order, so the error
falls by eleven digits, while the noise grows by two. Where noise hides the slope, the next one is at most
longer by the square of this, and so are steps of single columns."""

STENCILS = 5
"""How many step lengths the judge tries: from 1e-6 down to 1e-13, or up to `LONGEST_STEP`."""

LONGEST_STEP = 2.0**-5
"""The longest step, in units of max(1, |x|)."""

SIGMAS = 4.0
"""A difference is known to this many standard deviations of its noise: one in 16,000 is further off. Second
differences beyond that show a curve: those of a line in steps are at most 3.5 times as large as its noise."""

LOUDER = 8.0
"""By what noise may differ from one stencil to another, or to one of its sides. If a stencil shows more, it
is no noise that fills it, but a wave, or a jump beside the point."""

CURVATURE = 1e-3
"""The share of one-sided slopes by which they may differ because the function is curved."""

GAP = 0.7
"""The gap between one-sided slopes is in proportion to the step where the function is smooth, and does not
shrink at a kink: between two lengths it has to keep this share of itself."""

# What a check may take.

WHOLE_COLUMNS = 128
"""Up to so many columns are all differenced once something is wrong, those of an input of 8 x 16 numbers; of
more, those that disagree are found by halving, and the report is made of a sample. A check that fails takes
less time than torch's from about here on."""

EXTRA_RUNS = 32
"""Runs of the function that judging entries takes at most, beyond those of a look and of halving a direction:
two columns with two or three stencils each. With a second difference of every suspect column, a check stays
within torch's own number of runs and 60."""

SPARE_RUNS = 56
"""Where entries stay undecided, runs of a check beyond two for each column: with those that look for the line
of a lost derivative it stays within torch's own number and 60."""

FAST_RUNS = 20_000
"""Runs of the function in fast mode at most, as many as torch's exhaustive mode takes for 10,000 numbers. Who
asked for a fast check of more would wait for hours to be told what every column does."""

BATCH_BYTES = 32 * 2**20
"""Memory of one batch of evaluations beside what a single one takes, and of differences that are kept. What
is far from a cache is slower to compute, convolutions of 128 channels by a tenth."""

COPIES = 8
"""How many times the numbers of a point, and of the outputs there, are in memory at once: both points,
both outputs, their difference, and what these are computed from."""

BATCH_ROUNDING = 1e4
"""How far a batch may be from a single evaluation, in units of rounding: kernels add up in another order.
With a step of 1e-6, a batching rule that lacks 2e-6 of a slope is off by more."""
