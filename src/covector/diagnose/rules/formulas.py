"""A formula with a factor missing, one too many, or another one in its place.

The values of the input and of the output are known at every element, so the ratio of the two derivatives,
each of them, and their difference can be compared with short expressions of these. One constant is free;
everything else has to agree at every element. Of a sum or a mean, each entry of the only row belongs to the
element it is the derivative by; the output is one number there, and no expression of it is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from covector.diagnose.case import Case
from covector.diagnose.rules.coupling import coupled
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Suspect

# Fewer elements than this fit too many expressions.
_LEAST = 5

# How closely an expression has to agree, relative to its size.
_CLOSE = 1e-5

_Expressions = dict[str, Tensor]

# What is left of a derivative where one factor of it is forgotten, or written twice.
_POWERS: dict[str, Callable[[Tensor], Tensor]] = {
    "the square of": torch.square,
    "the square root of": torch.sqrt,
    "one over": torch.reciprocal,
}


def of_output(y: Tensor) -> _Expressions:
    """Factors that the derivative of a function has where it is written with its output."""
    t = "`output`"
    return {
        t: y,
        f"{t}^2": y**2,
        f"(1 - {t})": 1 - y,
        f"(1 + {t})": 1 + y,
        f"(1 - {t}^2)": 1 - y**2,
        f"(1 + {t}^2)": 1 + y**2,
        f"exp({t})": y.exp(),
        f"sqrt({t})": y.abs().sqrt(),
        f"{t} (1 - {t})": y * (1 - y),
        f"cos({t})": y.cos(),
        f"sin({t})": y.sin(),
        f"log({t})": y.abs().log(),
        f"sigmoid({t})": y.sigmoid(),
        f"sigmoid({t}) (1 - sigmoid({t}))": y.sigmoid() * (1 - y.sigmoid()),
        f"(1 - tanh({t})^2)": 1 - y.tanh() ** 2,
    }


def of_input(x: Tensor, t: str) -> _Expressions:
    """Factors that it has where it is written with its input."""
    s = x.sigmoid()
    return {
        t: x,
        f"{t}^2": x**2,
        f"{t}^3": x**3,
        f"sqrt({t})": x.abs().sqrt(),
        f"(1 - {t})": 1 - x,
        f"(1 + {t})": 1 + x,
        f"(1 + {t}^2)": 1 + x**2,
        f"(1 - {t}^2)": 1 - x**2,
        f"exp({t})": x.exp(),
        f"cos({t})": x.cos(),
        f"sin({t})": x.sin(),
        f"cosh({t})": x.cosh(),
        f"tanh({t})": x.tanh(),
        f"log({t})": x.abs().log(),
        f"sigmoid({t})": s,
        f"(1 - sigmoid({t}))": 1 - s,
        f"{t} (1 - {t})": x * (1 - x),
        f"sigmoid({t}) (1 - sigmoid({t}))": s * (1 - s),
        f"(1 - sigmoid({t})^2)": 1 - s**2,
        f"(1 - tanh({t})^2)": 1 - x.tanh() ** 2,
        f"exp(-{t}^2)": (-(x**2)).exp(),
        f"exp(-{t}^2 / 2)": (-(x**2) / 2).exp(),
    }


def of_probability(x: Tensor, t: str) -> _Expressions:
    """Terms of losses of a probability, given as it is or by its logit: powers of p, 1 - p and their logs."""
    found: _Expressions = {}
    for p, name in ((x.sigmoid(), f"sigmoid({t})"), (x, t)):
        if not bool(((p > 0) & (p < 1)).all()):
            continue
        bases = {name: p, f"(1 - {name})": 1 - p, f"log({name})": p.log(), f"log(1 - {name})": (1 - p).log()}
        for powers in product(range(3), repeat=len(bases)):
            factors = [
                (base if power == 1 else f"{base}^{power}", values**power)
                for (base, values), power in zip(bases.items(), powers, strict=True)
                if power
            ]
            if factors:
                text = " ".join(text for text, _ in factors)
                found[text] = torch.stack([values for _, values in factors]).prod(0)
    return found


def of_both(x: Tensor, y: Tensor, t: str) -> _Expressions:
    """And where it is written with both."""
    return {f"`output` {t}": x * y, f"`output` / {t}": y / x, f"{t} / `output`": x / y}


@dataclass(frozen=True)
class _Found:
    """An expression and the constant before it."""

    constant: float
    text: str

    def __str__(self) -> str:
        near = round(self.constant)
        number = (
            f"{near}" if abs(self.constant - near) < _CLOSE * abs(self.constant) else f"{self.constant:.4g}"
        )
        if not self.text:
            return number
        return {"1": self.text, "-1": f"-{self.text}"}.get(number, f"{number} {self.text}")


def _is(values: Tensor, expressions: _Expressions) -> _Found | None:
    """The first expression that these values are a multiple of."""
    return _first(values, torch.stack([*expressions.values()]), [*expressions])


def _first(values: Tensor, table: Tensor, names: Sequence[str]) -> _Found | None:
    """The first row of a table that these values are a multiple of; only one without a name may be even."""
    size = table.abs()
    constants = (values * table).sum(1) / (table**2).sum(1)
    room = _CLOSE * (values.abs() + constants.abs()[:, None] * size)
    fits = table.isfinite().all(1) & ((values - constants[:, None] * table).abs() <= room).all(1)
    varied = size.amax(1) > (1 + 1e-3) * size.amin(1)
    for row in (fits & (constants != 0)).nonzero().flatten().tolist():
        if bool(varied[row]) or not names[row]:
            return _Found(float(constants[row]), names[row])
    return None


def chain_rule(case: Case) -> Iterator[Observation]:
    """A factor of the chain rule is missing or one too many, or stands for another."""
    for s in case.suspects:
        if s.inputs.part is None or s.outputs.imaginary.any():
            continue
        name = f"`{s.inputs.part.name}`"
        if s.inputs.part.is_complex:
            by_input = _by_magnitude(s, case, name)
        else:
            by_input = _by_element(s, case, name) or _for_another(s, case, name)
        if text := by_input or _by_output(s, case):
            yield Observation(text, 0.92, s.where)


@dataclass(frozen=True)
class _Entries:
    """The entries of both derivatives that are known well enough, with their rows and columns."""

    row: Tensor
    column: Tensor
    analytic: Tensor
    numeric: Tensor


def _entries(s: Suspect) -> _Entries | None:
    """One entry for each element; None if some wrong one is not known well, or they are nearly right."""
    row, column = _pairs(s)
    numeric, analytic = s.numeric[row, column], s.analytic[row, column]
    used = numeric.abs() > 100 * s.slack[row, column]
    if not row.numel() or not bool(used[s.bad[row, column]].all()):
        return None
    if s.point[column[used]].unique().numel() < _LEAST:
        return None
    if float((analytic[used] / numeric[used] - 1).abs().max()) < 100 * _CLOSE:
        return None  # too close to the true one to tell expressions apart
    return _Entries(row[used], column[used], analytic[used], numeric[used])


def _by_magnitude(s: Suspect, case: Case, name: str) -> str:
    """The gradient of a number by complex ones is off by a function of their magnitudes."""
    entries = _entries(s) if len(s.bad) == 1 and s.inputs.is_whole else None
    if entries is None:
        return ""
    size = s.point.reshape(-1, 2).norm(dim=1).repeat_interleave(2)[entries.column]
    if size.unique().numel() < _LEAST or not (text := _factor_of(entries, of_input(size, f"|{name}|"))):
        return ""
    return f"{case.rule} returns {text} for {{where}}"


def _factor_of(entries: _Entries, expressions: _Expressions) -> str:
    return _factor(entries.analytic / entries.numeric, expressions)


def _by_element(s: Suspect, case: Case, name: str) -> str:
    """Each element acts on one output, at its own place or at another; or all of them on the only one."""
    if (entries := _entries(s)) is None:
        return ""
    row, column, analytic, numeric = entries.row, entries.column, entries.analytic, entries.numeric
    x, y = s.point[column], s.value[row]
    single = len(s.bad) == 1
    expressions = of_input(x, name) if single else of_output(y) | of_input(x, name)
    returns = f"{case.rule} returns"
    if text := _factor(analytic / numeric, expressions):
        return f"{returns} {text} for {{where}}"
    for values, other in case.others_over(s, s.inputs):
        if text := _factor(analytic / numeric, of_input(values[column], f"`{other}`")):
            return f"{returns} {text} for {{where}}"
    several = {f"{number:.3e}" for number in numeric.tolist()}  # a slope of 0.01 is the square of one of 0.1
    for what, power in _POWERS.items() if len(several) >= _LEAST else ():
        found = _is(analytic, {what: power(numeric)})
        if found is not None and abs(found.constant - 1) < _CLOSE:
            return f"{returns} {what} the numeric {case.noun} for {{where}}"
    all_of_them = {"": torch.ones_like(x)} | expressions | ({} if single else of_both(x, y, name))
    inverse = {f"1 / {text}": 1 / values for text, values in expressions.items()}
    others = {f"`{other}`": values[column] for values, other in case.others_over(s, s.inputs)}
    for other, values in {"": torch.ones_like(x)}.items() | others.items():
        times = f" {other}" if other else ""
        got, true = (
            _is(side / values, all_of_them | inverse) or (None if other else _of_a_multiple(side, x, name))
            for side in (analytic, numeric)
        )
        if got is not None and true is not None and str(got) != str(true):
            return f"{returns} {got}{times} for {{where}}, where differences show {true}{times}"
    if not single and _is(analytic, {"`output`": y / x}) is not None:
        return (
            f"{returns} `output` / {name} for {{where}}: right if the other factor of the product were "
            "constant"
        )
    if not single and (text := _second_term(analytic - y / x, numeric - y / x, expressions)):
        return (
            f"{returns} for {{where}} the derivative of {name} times a function of it, with a second term "
            f"({name} times the derivative of that function) that {text}"
        )
    if len(several) < _LEAST:
        del all_of_them[""]  # what is one number on both sides is off by a number whatever is wrong
    if single:
        if _is(analytic - numeric, {name: x}) is not None:
            return ""  # of a multiple of the input, other rules speak: a term, a norm
        all_of_them = others | all_of_them
    if (wrong := _is(analytic - numeric, all_of_them)) is not None:
        return f"{returns} for {{where}} the numeric {case.noun} plus {wrong}"
    if single and (wrong := _is(analytic - numeric, of_probability(x, name))) is not None:
        return f"{returns} for {{where}} the numeric {case.noun} plus {wrong}"
    second = of_input(x, name) if single else of_output(y)
    for other, values in others.items():
        second |= of_input(values, other)
    if (wrong := _product(analytic - numeric, of_input(x, name), second)) is not None:
        return f"{returns} for {{where}} the numeric {case.noun} plus {wrong}: a term of the product rule"
    return ""


def _of_a_multiple(values: Tensor, x: Tensor, name: str) -> _Found | None:
    """The function whose value at a multiple of the input these are."""
    for text, inverse in _INVERSES.items():
        found = _is(inverse(values), {name: x})
        if found is not None and abs(found.constant - 1) > _CLOSE:
            return _Found(1.0, text.format(found))
    return None


# The inverses of functions whose argument may have a factor.
_INVERSES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid({})": torch.logit,
    "exp({})": torch.log,
    "tanh({})": torch.atanh,
}


def _product(values: Tensor, first: _Expressions, second: _Expressions) -> _Found | None:
    """The product of two expressions that these values are a multiple of, small ones within noise."""
    size = values.abs().max()
    clear = values.abs() > 1e-3 * size
    if values[clear].unique().numel() < _LEAST:
        return None
    table = torch.stack([*first.values()])[:, None] * torch.stack([*second.values()])
    table = table.flatten(0, 1)
    names = [f"{a} {b}" for a, b in product(first, second)]
    found = _first(values[clear], table[:, clear], names)
    if found is None:
        return None
    close = (values - found.constant * table[names.index(found.text)]).abs() <= _CLOSE * size
    return found if bool(close.all()) else None


def _pairs(s: Suspect) -> tuple[Tensor, Tensor]:
    """For each element the one output that it acts on: all elements of a tensor, or those that are wrong."""
    entries = s.support | s.nonzero
    if len(s.bad) == 1 and len(s.point) > 1:
        column = entries[0].nonzero().flatten()
        return torch.zeros_like(column), column
    if coupled(s, entries) == ():
        return torch.arange(len(s.point)), torch.arange(len(s.point))
    wrong = s.bad.any(0)
    mine = entries & wrong
    nothing = torch.zeros(0, dtype=torch.int64)
    if bool((mine.sum(0)[wrong] != 1).any()) or bool((mine.sum(1) > 1).any()):
        return nothing, nothing
    row, column = mine.nonzero(as_tuple=True)
    return row, column


def _second_term(got: Tensor, true: Tensor, expressions: _Expressions) -> str:
    """What is wrong with a term of the product rule, once the other one is subtracted from both sides."""
    clear = true.abs() > 1e-3 * true.abs().max()  # the rest is noise of the numeric side
    if bool((~clear & ((got - true).abs() > _CLOSE * true.abs().max())).any()):
        return ""  # what is wrong lies elsewhere
    got, true = got[clear], true[clear]
    if got.unique().numel() < _LEAST:
        return ""
    if (found := _is(got, {"": true})) is not None:
        return f"is {found} x the right one"
    factor = _factor(got / true, {text: values[clear] for text, values in expressions.items()})
    return factor.removeprefix("a derivative that ")


def _factor(ratio: Tensor, expressions: _Expressions) -> str:
    """The ratio of the two derivatives is a factor, or one over it."""
    inverse = {text: 1 / values for text, values in expressions.items()}
    if (found := _is(ratio, inverse)) is not None:
        lacking = _Found(1 / found.constant, found.text)
        return f"a derivative that lacks the factor {lacking}"
    if (found := _is(ratio, expressions)) is not None:
        return f"a derivative that has the extra factor {found}"
    return ""


def _for_another(s: Suspect, case: Case, name: str) -> str:
    """Every entry is the value of one tensor, and should be that of another: a factor of a product."""
    row, column = s.support.nonzero(as_tuple=True)
    true, got = s.numeric[row, column], s.analytic[row, column]
    if true.numel() < _LEAST or bool((s.nonzero & ~s.support).any()):
        return ""
    known = {f"`{other}`": values[row] for values, other in case.others_over(s, s.outputs)}
    known |= {name: s.point[column], "`output`": s.value[row]}
    shown, returned = _is(true, known), _is(got, known | {"": torch.ones_like(got)})
    if shown is None or returned is None or shown.text == returned.text:
        return ""
    return f"{case.rule} returns {returned} for {{where}}, where differences show {shown}"


def wrong_side(case: Case) -> Iterator[Observation]:
    """The result is multiplied by another input where the cotangent should be, or the other way round."""
    for s in case.suspects:
        if not coupled(s, s.support):
            continue
        for values, name in case.others_over(s, s.inputs):
            if float(values.abs().min()) < 1e-3 or float(values.abs().max()) < 1.1 * float(
                values.abs().min()
            ):
                continue
            for expected, got, belongs in (
                (s.numeric / values[:, None] * values, "result", "cotangent"),
                (s.numeric * values[:, None] / values, "cotangent", "result"),
            ):
                if s.explains(expected, noise=float(values.abs().max() / values.abs().min())):
                    text = f"for {{where}}, {case.rule} multiplies the {got} by `{name}`"
                    yield Observation(f"{text}; it should multiply the {belongs}", 0.96, s.where)


def _by_output(s: Suspect, case: Case) -> str:
    """Each row of the Jacobian is wrong by a factor of its own."""
    rows = s.support.any(1)
    if int(rows.sum()) < 3 or int(s.support.sum(1).max()) < 2:
        return ""
    factors = (s.analytic * s.numeric).sum(1) / (s.numeric**2).sum(1).clamp_min(1e-300)
    if not s.explains(factors[:, None] * s.numeric):
        return ""
    values = s.value[rows]
    text = _factor(factors[rows], of_output(values)) if values.unique().numel() > 2 else ""
    for other, name in case.others_over(s, s.outputs):
        text = text or _factor(factors[rows], of_input(other[rows], f"`{name}`"))
    return f"{case.rule} returns {text} for {{where}}" if text else ""
