"""Lines: unions along axes, and over chosen elements of each line. What most rules are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from covector.sparsity.dependence import Dependence, united_groups, united_rows

# Elements to gather beyond which a constant matrix is taken to be full.
_MOST_READS = 50_000_000


def over(dependence: Dependence, axes: Sequence[int], *, keepdim: bool) -> Dependence:
    """The union along some axes."""
    ids = dependence.ids
    axes = sorted({axis % max(ids.ndim, 1) for axis in axes})
    if not axes or ids.ndim == 0:
        return dependence
    kept = [axis for axis in range(ids.ndim) if axis not in axes]
    shape = [ids.shape[axis] for axis in kept]
    width = int(np.prod([ids.shape[axis] for axis in axes], dtype=np.int64))
    lines = ids.permute(*kept, *axes).reshape(*shape, width)
    joined = united_rows(lines, dependence.sets)
    if keepdim:
        shape = [1 if axis in axes else size for axis, size in enumerate(ids.shape)]
        return joined.reshape(shape)
    return joined


def selected(dependence: Dependence, pattern: Any) -> Dependence:
    """For each line along the last axis, the unions over the elements in each row of a SciPy pattern."""
    lead, length = dependence.ids.shape[:-1], dependence.ids.shape[-1]
    lines = dependence.ids.reshape(-1, length)
    count = lines.shape[0]
    if count * pattern.nnz > _MOST_READS:
        whole = united_rows(dependence.ids, dependence.sets)
        return whole.with_ids(whole.ids.unsqueeze(-1).expand(*lead, pattern.shape[0]))
    read = lines[:, torch.from_numpy(pattern.indices.astype(np.int64))].reshape(-1)
    starts = pattern.indptr[:-1].astype(np.int64) + pattern.nnz * np.arange(count)[:, None]
    starts = np.append(starts.reshape(-1), count * pattern.nnz)
    joined = united_groups(read, starts, dependence.sets)
    return joined.reshape(*lead, pattern.shape[0])


def by_plane(dependence: Dependence, pattern: Any, shape: Sequence[int]) -> Dependence:
    """The same for each plane of a tensor, whose positions the pattern counts."""
    return selected(dependence.reshape(-1, pattern.shape[1]), pattern).reshape(tuple(shape))
