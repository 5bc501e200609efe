"""Dependences: for each element of a tensor, the set of inputs that it can depend on.

Many elements share a set (a row of a matrix product, a mean that is broadcast), so a dependence is a number
for each element, `ids`, and a table of sets as the rows of a sparse boolean matrix. Two sets have fixed
numbers: NONE and ALL. ALL is never written out, and what is united with it is ALL, so that a function that
mixes everything costs nothing to follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

Integers = NDArray[np.int64]

NONE, ALL = 0, 1
_FIXED = 2
# A table of sets with more entries than this is not made: its sets become ALL, which is never too few.
MOST_TOLD_APART = 100_000_000


@dataclass(frozen=True, eq=False)
class Dependence:
    """`sets[ids[e]]` is the set of inputs that element e depends on."""

    ids: Tensor
    sets: Any

    @classmethod
    def identity(cls, shape: Sequence[int], start: int, total: int) -> Dependence:
        """Each element depends on an input of its own, from number `start` on, of `total`."""
        count = int(np.prod(shape, dtype=np.int64))
        ids = torch.arange(start + _FIXED, start + _FIXED + count).reshape(tuple(shape))
        return cls(ids, _identity(total))

    @property
    def inputs(self) -> int:
        """How many inputs there are."""
        return int(self.sets.shape[1])

    def with_ids(self, ids: Tensor) -> Dependence:
        """The same sets for other elements."""
        return Dependence(ids, self.sets)

    def reshape(self, *shape: Any) -> Dependence:
        """The same elements in another shape."""
        return self.with_ids(self.ids.reshape(*shape))

    def expand(self, *shape: Any) -> Dependence:
        """Elements repeated, as by broadcasting."""
        return self.with_ids(self.ids.expand(*shape))

    def anything(self) -> bool:
        """Whether any element depends on any input."""
        return bool((self.ids != NONE).any())

    def rows(self) -> Any:
        """The sets of all elements in order, as a SciPy matrix with a row for each; ALL is written out."""
        ids = self.ids.reshape(-1).numpy()
        sets = self.sets
        if (ids == ALL).any():
            full = sparse.csr_array(np.ones((1, self.inputs), dtype=bool))
            sets = sparse.vstack([sets[:ALL], full, sets[_FIXED:]], format="csr")
        return sets[ids]


@lru_cache(maxsize=8)
def _identity(total: int) -> Any:
    indptr = np.concatenate([np.zeros(_FIXED, dtype=np.int32), np.arange(total + 1, dtype=np.int32)])
    ones = np.ones(total, dtype=bool)
    return sparse.csr_array((ones, np.arange(total, dtype=np.int32), indptr), shape=(total + _FIXED, total))


def merged(dependences: Sequence[Dependence]) -> tuple[Any, list[Tensor]]:
    """One table of sets for several dependences, and the numbers of each in it."""
    sets, offsets = [dependences[0].sets], {id(dependences[0].sets): 0}
    rows = sets[0].shape[0]
    for dependence in dependences[1:]:
        if id(dependence.sets) not in offsets:
            offsets[id(dependence.sets)] = rows - _FIXED
            sets.append(dependence.sets[_FIXED:])
            rows += sets[-1].shape[0]
    table = sets[0] if len(sets) == 1 else sparse.vstack(sets, format="csr")
    ids = []
    for dependence in dependences:
        offset = offsets[id(dependence.sets)]
        ids.append(
            torch.where(dependence.ids >= _FIXED, dependence.ids + offset, dependence.ids)
            if offset
            else dependence.ids
        )
    return table, ids


def united(dependences: Sequence[Dependence], shape: Sequence[int]) -> Dependence:
    """The union, element by element, after broadcasting to a shape."""
    result = dependences[0]
    result = result.expand(tuple(shape))
    for other in dependences[1:]:
        result = _united_pair(result, other.expand(tuple(shape)))
    return result


def _united_pair(one: Dependence, other: Dependence) -> Dependence:
    if one.sets is other.sets and torch.equal(one.ids, other.ids):
        return one
    if _all_written_out(one) and _all_written_out(other):
        new = _pairs(one.sets, one.ids.reshape(-1), other.sets, other.ids.reshape(-1))
        if new is not None:
            return new.reshape(one.ids.shape)
    table, (first, second) = merged([one, other])
    both = (first != second) & (first >= _FIXED) & (second >= _FIXED)
    # Where one of the two is empty, or all, the larger set is the union.
    ids = torch.where((first == ALL) | (second == ALL), ALL, torch.where(first == NONE, second, first))
    if bool(both.any()):
        new = _pairs(table, first[both], table, second[both])
        ids = ids.clone()
        if new is None:
            ids[both] = ALL
        else:
            table, (kept, replaced) = merged([Dependence(ids, table), new])
            ids = kept.clone()
            ids[both] = replaced
    return _compact(ids, table)


def _all_written_out(dependence: Dependence) -> bool:
    """Whether no element has the set of none or of all inputs."""
    return bool((dependence.ids >= _FIXED).all())


def _pairs(left: Any, first: Tensor, right: Any, second: Tensor) -> Dependence | None:
    """The unions of pairs of sets from two tables; None if these would be too large to write out."""
    keys, place = _distinct((first * right.shape[0] + second).numpy(), first.numpy())
    rows, columns = keys // right.shape[0], keys % right.shape[0]
    entries = np.diff(left.indptr)[rows].sum(dtype=np.int64) + np.diff(right.indptr)[columns].sum(
        dtype=np.int64
    )
    if entries > MOST_TOLD_APART:
        return None
    table, numbers = _appended(_identity(left.shape[1])[:_FIXED], left[rows] + right[columns])
    return Dependence(torch.from_numpy(numbers[place]), table)


def united_groups(ids: Tensor, starts: Integers, sets: Any) -> Dependence:
    """The union over groups of elements: group g is `ids[starts[g]:starts[g + 1]]`."""
    flat = ids.numpy()
    lengths = np.diff(starts)
    result = np.zeros(len(lengths), dtype=np.int64)
    filled = np.flatnonzero(lengths)
    if len(filled):
        low = np.minimum.reduceat(np.where(flat == NONE, np.iinfo(np.int64).max, flat), starts[filled])
        high = np.maximum.reduceat(flat, starts[filled])
        whole = low == ALL
        several = (low < high) & ~whole
        result[filled] = np.where(whole, ALL, high)
        groups = filled[several]
        if len(groups):
            members, indptr = _members(flat, starts, groups)
            if float(np.diff(sets.indptr)[members].sum()) > 8.0 * MOST_TOLD_APART:
                result[groups] = ALL
            else:
                ones = np.ones(len(members), dtype=bool)
                chosen = sparse.csr_array((ones, members, indptr), shape=(len(groups), sets.shape[0]))
                sets, new = _appended(sets, sparse.csr_array(chosen @ sets))
                result[groups] = new
    return _compact(torch.from_numpy(result), sets)


def united_rows(ids: Tensor, sets: Any) -> Dependence:
    """The union over the last axis of `ids`."""
    groups, width = ids.shape[:-1], ids.shape[-1]
    count = groups.numel()
    starts = np.arange(count + 1, dtype=np.int64) * width
    result = united_groups(ids.reshape(-1), starts, sets)
    return result.reshape(groups)


def _members(flat: Integers, starts: Integers, groups: Integers) -> tuple[Integers, Integers]:
    """The elements of some of the groups, one group after the other, and where each begins."""
    lengths = np.diff(starts)[groups]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    if len(groups) == len(starts) - 1:
        return flat, indptr
    offsets = np.repeat(starts[groups] - indptr[:-1], lengths)
    return flat[offsets + np.arange(indptr[-1])], indptr


def _distinct(keys: Integers, low: Integers) -> tuple[Integers, Integers]:
    """The different keys, and which of them each one is; quick where a part of each is in no other."""
    if len(keys) < 2 or np.bincount(low).max() == 1:
        return keys, np.arange(len(keys))
    found, place = np.unique(keys, return_inverse=True)
    return found, place.reshape(-1)


def _appended(table: Any, new: Any) -> tuple[Any, Integers]:
    """The table with more sets, and their numbers; a set of all inputs is ALL."""
    numbers = np.arange(new.shape[0], dtype=np.int64) + table.shape[0]
    full = np.diff(new.indptr) == table.shape[1]
    if full.any():
        numbers[full] = ALL
        kept = np.flatnonzero(~full)
        numbers[kept] = np.arange(len(kept)) + table.shape[0]
        new = new[kept]
    return sparse.vstack([table, new], format="csr"), numbers


def _compact(ids: Tensor, table: Any) -> Dependence:
    """Without the sets that no element has, if these are many."""
    used = np.zeros(table.shape[0], dtype=bool)
    used[ids.reshape(-1).numpy()] = True
    used[:_FIXED] = True
    count = int(used.sum())
    if count > table.shape[0] // 2:
        return Dependence(ids, table)
    numbers = torch.from_numpy(np.cumsum(used) - 1)
    return Dependence(numbers[ids], table[np.flatnonzero(used)])
