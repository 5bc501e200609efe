"""The derivative is a multiple of the true one, by a sign, a factor or a power, or off by a constant."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import prod

import torch

from covector.diagnose.case import Case
from covector.diagnose.rules.coupling import dimensions, term_of_a_sum, unbiased
from covector.diagnose.rules.fit import NEAR, clustered, offset, rounded, written
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Side, Suspect, listed

# So many entries of either sign show that the sign is lost everywhere.
_BOTH_SIGNS = 2

# So many different constants that a derivative is off by are told, each of so many entries at least.
_FEW, _MANY = 3, 4

_EXPONENTS = (-3, -2, -1, 1, 2, 3)

# A multiple but for the error of a solver, which is as large at small entries as at large ones: of so many
# wrong entries at least, this share is a multiple to within the tolerance at the largest entry, and none is
# off by more than this share of the largest error. Nearer to one, and to zero, the tolerance is too large.
_LEAST, _MOST_OF_THEM, _LEFT, _APART = 10, 0.95, 0.02, 0.05


def sign(case: Case) -> Iterator[Observation]:
    """Analytic = -numeric."""
    for s in case.suspects:
        many = case.multiples.get(s.where)
        if many is not None and many.extent and abs(many.factor + 1) < NEAR:
            text = f"{case.rule} returns the negative of the {case.noun} for {{where}}, {many.extent}"
            yield Observation(text, 0.97, s.where)


def without_sign(case: Case) -> Iterator[Observation]:
    """Analytic = |numeric|, or its negative, where the numeric gradient has both signs."""
    for s in case.suspects:
        signs = s.numeric[s.support].sign()
        if min(int((signs > 0).sum()), int((signs < 0).sum())) < _BOTH_SIGNS:
            continue
        for c, word in ((1, "right where that is positive"), (-1, "right where that is negative")):
            if s.explains(c * s.numeric.abs()):
                text = (
                    f"{case.rule} returns the {case.noun} for {{where}} without its sign: it has the size of "
                    f"the numeric one everywhere, and is {word}"
                )
                yield Observation(text, 0.93, s.where)


def factor(case: Case) -> Iterator[Observation]:
    """Analytic = c x numeric, for another c than 1, 0 and -1."""
    for s in case.suspects:
        many = case.multiples.get(s.where)
        if many is None or not many.extent:
            continue
        c = many.factor
        if min(abs(c - 1), abs(c + 1), abs(c)) < NEAR:
            continue
        named, look = _given(c, case) or _named(c, s)
        extent = f"{many.extent}{named}"
        text = f"{case.rule} returns {written(c)} x the numeric {case.noun} for {{where}}, {extent}"
        yield Observation(text, 0.96 if named or look else 0.9, s.where, look)


def nearly(case: Case) -> Iterator[Observation]:
    """Analytic = c x numeric to within the tolerance of the check, at most of the entries."""
    tol = case.evidence.run.options.tol
    for s in case.suspects:
        many = s.bad & s.support
        if s.where in case.multiples or int(many.sum()) < _LEAST:
            continue
        c = rounded(float((s.analytic[many] / s.numeric[many]).median()))
        if min(abs(c - 1), abs(c)) < _APART:
            continue
        left = (s.analytic - c * s.numeric).abs()
        # Where nothing should be, something is no multiple of it.
        size = torch.where(s.support, s.numeric.abs().max(), 0.0)
        fits = left <= abs(c) * (tol.atol + tol.rtol * size) + (1 + abs(c)) * s.bound
        explained = s.bad & fits
        enough = min(float(fits.double().mean()), int(explained.sum()) / int(s.bad.sum()))
        if enough < _MOST_OF_THEM or bool(left.max() > _LEFT * (s.analytic - s.numeric).abs().max()):
            continue
        what = "the negative of the" if c == -1 else f"{written(c)} x the numeric"
        text = f"{case.rule} returns {what} {case.noun} for {{where}}, to within the tolerance of the check"
        yield Observation(text, 0.8, s.where, explained=int(explained.sum()))


def _act_along(s: Suspect, side: Side, axes: tuple[int, ...]) -> bool:
    """Whether elements along each of these axes act together, as in a variance, which is of several."""
    support = s.support if side is s.inputs else s.support.T
    if side.index is None:
        return bool((support.sum(1) > 1).any())
    for axis in axes:
        place = side.index[:, axis].expand_as(support)
        far = side.index.shape[0] + int(side.index.max())
        last, first = torch.where(support, place, -1).amax(1), torch.where(support, place, far).amin(1)
        if not bool((last > first).any()):
            return False
    return True


def _sizes(side: Side) -> Iterator[tuple[tuple[int, ...], int, str]]:
    """The sizes that a factor may come from, of which axes, and what to call them."""
    if side.part is None:
        return
    name, shape = side.part.name, side.part.shape
    for axis, size in enumerate(shape):
        batch = " (the batch?)" if axis == 0 and len(shape) > 1 else ""
        yield (axis,), size, f"the size of dimension {axis} of `{name}`{batch}"
    if len(shape) > 1:
        yield tuple(range(len(shape))), prod(shape), f"the number of elements of `{name}`"
    for count in range(2, len(shape)):
        for axes in combinations(range(len(shape)), count):
            several = prod(shape[axis] for axis in axes)
            yield axes, several, f"the number of elements along {dimensions(axes)} of `{name}`"


def _given(c: float, case: Case) -> tuple[str, str] | None:
    """The number among the arguments that a factor is, or one over it, and what to look at then."""
    for name, value in case.numbers.items():
        for text, known in ((f"`{name}`", value), (f"1 / `{name}`", 1 / value)):
            if abs(abs(value) - 1) > 0.01 and abs(c - known) < 1e-5 * abs(c):
                return f"; {written(c)} is {text}", f"the factor `{name}`, left out or applied twice"
    return None


def _named(c: float, s: Suspect) -> tuple[str, str]:
    """What a factor is the size of, if of anything, and what to look at then."""
    if s.value.numel() == 1 and (name := _of_value(c, float(s.value[0]))):
        return f"; {written(c)} is {name}", "the chain rule: the output itself may be a factor in it"
    if abs(c - 2) < NEAR:
        return "", "a term that is added twice, or a factor 1/2 that was left out"
    if abs(c - 0.5) < NEAR:
        return "", "a term that is missing from a product rule, or a factor 2 that was left out"
    sizes = [(side, *found) for side in (s.outputs, s.inputs) for found in _sizes(side)]
    together = [(size, name, len(axes)) for side, axes, size, name in sizes if _act_along(s, side, axes)]
    for size, name, _ in together:
        if text := unbiased(c, size):
            return f"{text}; {size} is {name}", "the n, or n - 1, that a variance is divided by"
    alone = [
        (size, name, len(axes))
        for side, axes, size, name in sizes
        if len(axes) == 1 or (side.part is not None and len(axes) == len(side.part.shape))
    ]
    for size, name in _counts(s):
        together.append((size, name, 0))
    # Elements that do not act together may have a factor that is the size of an axis by chance.
    by_chance = ", or a factor that was left out or applied twice"
    return _of_size(c, together) or _of_root(c, together) or _of_size(c, alone, by_chance) or ("", "")


def _of_size(c: float, sizes: list[tuple[int, str, int]], or_else: str = "") -> tuple[str, str] | None:
    """That a factor is a size, or one over it: a mean on one side, a sum on the other."""
    for size, name, count in sizes:
        over = ("these elements", "that dimension")[count] if count < 2 else "these dimensions"
        if size > 2 and abs(c - size) < 1e-4 * size:
            return f"; {size} is {name}", f"a mean in the forward that the backward takes for a sum{or_else}"
        if size > 2 and abs(c * size - 1) < 1e-4:
            return (
                f", which is 1 / {size}; {size} is {name}",
                f"a sum that became a mean over {over}{or_else}",
            )
    return None


def _counts(s: Suspect) -> Iterator[tuple[int, str]]:
    """How many elements each output depends on, as those of a window, if it is the same number for all."""
    counts = s.support.sum(1)
    counts = counts[counts > 0].unique()
    if len(counts) == 1 and s.inputs.is_whole:
        yield int(counts), f"the number of elements of {s.inputs.name} that each output depends on"


def _of_root(c: float, sizes: list[tuple[int, str, int]]) -> tuple[str, str] | None:
    """That a factor is the root of a size, or one over it."""
    for size, name, count in sizes:
        for root, what in ((size**0.5, "the root"), (size**-0.5, "one over the root")):
            if count == 1 and size > 8 and abs(c - root) < 1e-5 * root:
                return f"; {written(c)} is {what} of {size}, {name}", _SCALED
    return None


_SCALED = "a scale by the root of a size, as in attention, or another factor, left out or applied twice"


def _of_value(c: float, value: float) -> str:
    """What a factor is of the only output, if anything."""
    names = {1: "the output itself", -1: "one over the output", 2: "the square of the output"}
    for exponent, name in names.items():
        if value and abs(abs(value) - 1) > 0.1 and abs(c - value**exponent) < 1e-5 * abs(c):
            return name
    return ""


def power(case: Case) -> Iterator[Observation]:
    """The analytic value is the numeric one times a power of the input."""
    for s in case.suspects:
        size = s.point[s.active].abs()
        if size.numel() < 3 or not s.support.any() or float(size.min()) < 1e-3:
            continue
        if float(size.max() / size.min()) < 1.1:
            continue
        for exponent in _EXPONENTS:
            values = s.numeric * torch.where(s.active, s.point, 1.0) ** exponent
            c = float((s.analytic * values).sum() / (values**2).sum())
            if c and s.explains(c * values):
                name = f"`{s.inputs.parts[0].name}`"
                text = f"{c:.3g} x {name}^{exponent} x the numeric {case.noun}"
                if abs(c - 1) < NEAR:
                    base = name if abs(exponent) == 1 else f"{name}^{abs(exponent)}"
                    has = f"has the extra factor {base}" if exponent > 0 else f"lacks the factor {base}"
                    text = f"a {case.noun} that {has}"
                yield Observation(f"{case.rule} returns {text} for {{where}}", 0.9, s.where)
                break


def _one_each(s: Suspect) -> str:
    """That one element is wrong for each index of an axis, and which axis that is."""
    wrong = s.bad.any(0)
    if s.inputs.index is None or s.inputs.part is None or s.bad.shape[0] > 1:
        return ""
    for axis, size in enumerate(s.inputs.part.shape):
        places = s.inputs.index[wrong, axis]
        if 2 < size == places.numel() < wrong.numel() and places.unique().numel() == size:
            return f"at one element for each index of dimension {axis}, and right elsewhere"
    return ""


def constant(case: Case) -> Iterator[Observation]:
    """A constant is added: to the gradient itself, or to the derivative in it."""
    for s in case.suspects:
        mine = case.gradient_of_zero(s)
        if mine is not None and mine.any():
            if s.explains(s.numeric + mine):
                size = f"{float(mine[0]):.4g}" if bool((mine == mine[0]).all()) else "the same tensor"
                text = f"{case.rule} adds {size} to the {case.noun} for {{where}}, for every cotangent"
                yield Observation(text, 0.97, s.where)
            continue
        places = [(torch.ones_like(s.bad), "everywhere"), (s.support, "wherever it is not zero")]
        if (what := _one_each(s)) and bool(s.exact[~s.bad].all()):
            places.append((s.bad, what))
        for region, what in places:
            if int(region.sum()) < 3 or not bool(s.bad[region].all()) or bool(s.bad[~region].any()):
                continue
            if (off := offset(s, region)) is not None:
                yield Observation(f"{case.rule} is off by {off:.4g} for {{where}}, {what}", 0.93, s.where)
                break
        else:
            if text := _offsets(s):
                text = f"{case.rule} is off for {{where}} {text}{case.coverage}"
                yield Observation(
                    text, 0.75, s.where, "a constant in the derivative, as the target of a loss"
                )


def term(case: Case) -> Iterator[Observation]:
    """A multiple of the input is missing in the gradient of one output, or one too many."""
    for s in case.suspects:
        if s.inputs.part is None or s.inputs.part.is_complex or s.bad.numel() <= _FEW or len(s.bad) > 1:
            continue
        wrong, along = s.analytic - s.numeric, s.point[None]
        share = term_of_a_sum(wrong, along)
        if share and s.explains(s.numeric + share * along) and not s.explains(s.numeric):
            name, size = s.inputs.part.name, f"{abs(share):.4g}"
            what = (
                f"lacks the term `{size} * {name}`" if share < 0 else f"has the extra term `{size} * {name}`"
            )
            yield Observation(f"the {case.noun} for {{where}} {what}", 0.93, s.where)


def _offsets(s: Suspect) -> str:
    """The few constants that a derivative of many values is off by, and at how many entries each."""
    numeric, off = s.numeric[s.support], (s.analytic - s.numeric)[s.support]
    if bool(s.bad[~s.support].any()) or off.numel() < _FEW * _MANY:
        return ""
    size = float(off.abs().max())
    # Right entries are off by the noise of differences.
    off = torch.where(s.exact[s.support], 0.0, off / size)
    values, group = clustered(off)
    counts = group.bincount().tolist()
    if len(values) > _FEW or min(counts) < _MANY or len(clustered(numeric / numeric.abs().max())[0]) <= _FEW:
        return ""
    said = [f"by {size * v:.4g} at {n} entries" for v, n in zip(values.tolist(), counts, strict=True) if v]
    right = [f"; the other {n} are right" for v, n in zip(values.tolist(), counts, strict=True) if not v]
    return f"{listed(said)}{''.join(right)}" if said else ""
