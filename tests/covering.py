"""What `make test` runs of what `make sweep` does: of a product a part with every pair, of examples a few."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings

# How many times as many examples `make sweep` draws.
_TIMES = int(os.environ.get("EXAMPLES", "1"))
THOROUGH = _TIMES > 1
# What a fuzzer draws by: `FUZZ_SEED=7` draws other examples.
_SEED = int(os.environ.get("FUZZ_SEED", "0"))


def examples(count: int) -> settings:
    """So many examples, the same ones in every run."""
    return settings(max_examples=count * _TIMES, deadline=None, derandomize=True)


def random_examples(count: int, part: int = 0) -> Callable[[Any], Any]:
    """A decorator: so many examples, whatever they take, of which is said how they can be had again."""
    print(f"FUZZ_SEED={_SEED}")
    unchecked = list(HealthCheck)
    chosen = settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=unchecked, print_blob=True
    )
    return lambda test: chosen(seed(_SEED + part)(test))


def covered(rows: Iterable[Any], chosen: Callable[..., bool]) -> list[Any]:
    """Rows of parameters, of which those that are not chosen are left to the sweep."""
    return [pytest.param(*row, marks=() if chosen(*row) else pytest.mark.sweep) for row in rows]


def paired(*factors: Sequence[Any]) -> list[Any]:
    """The product of the factors, of which rows are chosen so that every two values of two factors meet."""
    chosen = design([len(factor) for factor in factors])
    rows = []
    for places in product(*(range(len(factor)) for factor in factors)):
        row = [factor[place] for factor, place in zip(factors, places, strict=True)]
        rows.append(pytest.param(*row, marks=() if places in chosen else pytest.mark.sweep))
    return rows


def design(sizes: Sequence[int]) -> set[tuple[int, ...]]:
    """Rows of places, one for each factor of so many values, in which all pairs of places are met.

    The two largest factors are multiplied; each other one then takes, in one row after the other, the place
    that meets most of what it has not met, and what is left gets rows of its own.
    """
    order = sorted(range(len(sizes)), key=lambda factor: -sizes[factor])
    rows = [list(row) for row in product(*(range(sizes[factor]) for factor in order[:2]))]
    for number, factor in enumerate(order[2:], 2):
        count = sizes[factor]
        places = [(before, place) for before in range(number) for place in range(sizes[order[before]])]
        missing = {(before, place, value) for before, place in places for value in range(count)}
        for at, row in enumerate(rows):
            turned = [(at + value) % count for value in range(count)]  # so that ties are shared out
            met = {value: missing & {(b, place, value) for b, place in enumerate(row)} for value in turned}
            best = max(turned, key=lambda value: len(met[value]))
            missing -= met[best]
            row.append(best)
        for before, place, value in sorted(missing):
            rows.append([place if other == before else 0 for other in range(number)] + [value])
    return {tuple(row[order.index(factor)] for factor in range(len(sizes))) for row in rows}
