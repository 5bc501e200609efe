"""What `make test` runs of what `make sweep` does: of a product a part with every pair, of examples a few."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import settings

# How many times as many examples `make sweep` draws.
_TIMES = int(os.environ.get("EXAMPLES", "1"))


def examples(count: int) -> settings:
    """So many examples, the same ones in every run."""
    return settings(max_examples=count * _TIMES, deadline=None, derandomize=True)


def covered(rows: Iterable[Any], chosen: Callable[..., bool]) -> list[Any]:
    """Rows of parameters, of which those that are not chosen are left to the sweep."""
    return [pytest.param(*row, marks=() if chosen(*row) else pytest.mark.sweep) for row in rows]


def halved(*factors: Sequence[Any]) -> list[Any]:
    """The product of three or more factors, every other row chosen: all pairs of values are met."""
    rows = []
    for places in product(*(range(len(factor)) for factor in factors)):
        row = [factor[place] for factor, place in zip(factors, places, strict=True)]
        rows.append(pytest.param(*row, marks=() if sum(places) % 2 == 0 else pytest.mark.sweep))
    return rows
