"""Scans: each element reads those before it on its line."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from covector.sparsity.rules.lines import selected
from covector.sparsity.tracker import Dependences, Operation


def scan(operation: Operation) -> Dependences:
    """Sums and products of all elements so far."""
    source = operation.moving("self")
    if source.ids.ndim == 0:
        return [source]
    axis, length = operation["dim"], source.ids.shape[operation["dim"]]
    before = sparse.csr_array(np.tri(length, dtype=bool))
    lines = selected(source.with_ids(source.ids.movedim(axis, -1)), before)
    return [lines.with_ids(lines.ids.movedim(-1, axis))]


RULES = dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), scan)
