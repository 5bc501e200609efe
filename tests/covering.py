"""Covering designs: of a product, `make test` runs a part that has every pair, `make sweep` all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pytest


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
