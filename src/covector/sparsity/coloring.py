"""Colourings: which columns or rows of a sparse matrix can share one product, and where entries are read off.

A product with a sum of columns gives each of them where no two have an entry in one row, so the columns are
coloured such that these differ; likewise rows with products from the left. A symmetric matrix needs each
entry only once, in either triangle, which a star colouring makes use of. A matrix with a few full rows and a
few full columns takes both kinds of product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from covector.errors import ArgumentValueError
from covector.sparsity.kernels import alone_in_row, color_columns, color_stars, compiled, smallest_last
from covector.sparsity.pattern import SparsityPattern

Integers = NDArray[np.int64]

# What a column costs beside a row: a push runs the function again, a pullback does not. Measured on 4
# colours of a function with 10,000 inputs; compiled by inductor, it is between 0.8 and 1.5.
FORWARD_COST = 3.0
# Colourings whose costs differ by less than this factor are timed: the cost above is that of one function.
_NEAR = 2.0
# Compiled, a push and a pullback cost the same within a factor of two or so.
_RIVAL = 1.5
# A bidirectional colouring is tried where it may take less than this share of the products of the others.
_PROMISING = 0.5
# Rows longer than one of these quantiles are tried as the long ones of a bidirectional colouring.
_LIMITS = (0.0, 0.5, 0.9, 0.99, 0.999)
# Vertices with more neighbours than this many times the average get a colour of their own in a star
# colouring.
_HUB = 50
# Work (pairs of columns in a row) beyond which only the first order is tried.
_MUCH_WORK = 50_000_000


@dataclass(frozen=True, eq=False)
class Coloring:
    """Groups of columns and of rows, one product each, and where each entry of the pattern is read off.

    `columns` has the colour of each column, `rows` of each row; -1 where it takes part in no product. The
    products with column groups give a matrix of shape (colors of columns, rows), those with row groups one
    of shape (colors of rows, columns). Entry k of the pattern is element `source[k]` of the two, flat, one
    after the other.
    """

    kind: str
    shape: tuple[int, int]
    columns: Integers
    rows: Integers
    source: Integers

    @property
    def forward(self) -> int:
        """How many products with groups of columns there are."""
        return int(self.columns.max(initial=-1)) + 1

    @property
    def reverse(self) -> int:
        """How many products with groups of rows there are."""
        return int(self.rows.max(initial=-1)) + 1

    @property
    def products(self) -> int:
        """How many products there are in all."""
        return self.forward + self.reverse

    @property
    def cost(self) -> float:
        """The price of the products, a pullback taken as one."""
        return self.reverse + FORWARD_COST * self.forward

    def layout(self, pattern: SparsityPattern) -> tuple[Integers, Integers, tuple[int, int]]:
        """The product of each entry, its place in that, and the size of all of them as one matrix."""
        split = self.forward * self.shape[0]
        ahead = self.source < split
        rest = np.maximum(self.source - split, 0)
        group = np.where(
            ahead, self.source // max(self.shape[0], 1), self.forward + rest // max(self.shape[1], 1)
        )
        place = np.where(ahead, self.source % max(self.shape[0], 1), rest % max(self.shape[1], 1))
        return group, place, (self.products, max(self.shape))

    def interleaved(self, pattern: SparsityPattern) -> Integers:
        """`source` for products that are stored element by element, all products of one together."""
        group, place, _ = self.layout(pattern)
        back = self.forward * self.shape[0] + place * self.reverse + group - self.forward
        return np.where(group < self.forward, place * self.forward + group, back)

    def __repr__(self) -> str:
        parts = [
            f"{count} group{'' if count == 1 else 's'} of {what}"
            for count, what in ((self.forward, "columns"), (self.reverse, "rows"))
            if count
        ]
        return f"{self.kind} coloring: {' and '.join(parts) or 'nothing to compute'}"


def color(pattern: SparsityPattern, kind: str) -> Coloring:
    """The best colouring of one kind: "column", "row", "star" (symmetric patterns) or "bidirectional"."""
    return KINDS[kind](pattern)


def best(pattern: SparsityPattern, mode: str) -> Coloring:
    """The cheapest colouring by which a Jacobian can be computed in this mode."""
    return contenders(pattern, mode)[0]


def contenders(pattern: SparsityPattern, mode: str) -> list[Coloring]:
    """The cheapest colouring by which a Jacobian can be computed in this mode, and those that come near."""
    if mode != "auto":
        return [color(pattern, "column" if mode == "forward" else "row")]
    across = pattern.T
    pure = [
        _Candidate(float(_longest(across)), lambda: _by_rows(pattern)),
        _Candidate(FORWARD_COST * _longest(pattern), lambda: _by_columns(pattern)),
    ]
    promising = _PROMISING * min(candidate.bound for candidate in pure)
    both = [c for c in _splits(pattern, across) if c.bound < promising]
    return _cheapest([*pure, *both], margin=_NEAR)


def rivals(pattern: SparsityPattern, coloring: Coloring) -> list[Coloring]:
    """This colouring, and that of the other mode if its products are few enough to be faster compiled."""
    if coloring.kind not in ("row", "column"):
        return [coloring]
    bound = _longest(pattern if coloring.kind == "row" else pattern.T)
    if bound > _RIVAL * coloring.products:
        return [coloring]
    other = color(pattern, "column" if coloring.kind == "row" else "row")
    return [coloring, *([other] if other.products <= _RIVAL * coloring.products else [])]


class _Candidate(NamedTuple):
    """A colouring that may be made, and what it costs at least."""

    bound: float
    make: Callable[[], Coloring]


def _cheapest(candidates: list[_Candidate], *, margin: float) -> list[Coloring]:
    """The cheapest of these first, then those within a margin of it; none is made that cannot be one."""
    made: list[Coloring] = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.bound):
        if not made or candidate.bound < margin * made[0].cost:
            made = sorted([*made, candidate.make()], key=lambda coloring: coloring.cost)
    near = [coloring for coloring in made[1:] if coloring.cost <= margin * made[0].cost]
    # Of one kind, the cheapest.
    kinds = {coloring.kind: coloring for coloring in reversed([made[0], *near])}
    return sorted(kinds.values(), key=lambda coloring: coloring.cost)


def check_valid(pattern: SparsityPattern, coloring: Coloring) -> str | None:
    """What is wrong with a colouring: the first entry that a product mixes with another; None if nothing is.

    Independent of how the colouring was made: each entry is read off an element of a product, which is the
    sum of the entries of that row (or column) in one group; this sum must have one term, the entry itself
    or, in a symmetric matrix, its mirror image.
    """
    matrix = pattern.to_scipy().astype(np.int64)
    ahead = matrix @ _groups(coloring.columns, coloring.forward)
    back = matrix.T @ _groups(coloring.rows, coloring.reverse)
    group, place, _ = coloring.layout(pattern)
    rows, columns = pattern.rows, pattern.indices
    by_columns = group < coloring.forward
    terms = np.zeros(pattern.nnz, dtype=np.int64)
    terms[by_columns] = _elements(ahead, place[by_columns], group[by_columns])
    terms[~by_columns] = _elements(back, place[~by_columns], group[~by_columns] - coloring.forward)
    itself = np.where(
        by_columns,
        (place == rows) & (coloring.columns[columns] == group),
        (place == columns) & (coloring.rows[rows] == group - coloring.forward),
    )
    if coloring.kind == "star":
        mirrored = (place == columns) & (coloring.columns[rows] == group)
        itself |= mirrored & by_columns
    wrong = np.flatnonzero(~itself | (terms != 1))
    if not len(wrong):
        return None
    row, column = rows[wrong[0]], columns[wrong[0]]
    return (
        f"entry ({row}, {column}) shares element {place[wrong[0]]} of product {group[wrong[0]]} with another"
    )


def _elements(matrix: sparse.csr_array, rows: Integers, columns: Integers) -> Integers:
    """Single elements of a sparse matrix, which is never made dense."""
    stored = matrix.tocoo()
    keys = stored.row.astype(np.int64) * matrix.shape[1] + stored.col
    order = np.argsort(keys)
    keys, values = np.append(keys[order], -1), np.append(stored.data[order], 0)
    wanted = rows * matrix.shape[1] + columns
    at = np.searchsorted(keys[:-1], wanted)
    return np.where(keys[at] == wanted, values[at], 0)


def _groups(colors: Integers, count: int) -> sparse.csr_array:
    """The sums of columns of each colour, as a matrix to multiply with."""
    members = np.flatnonzero(colors >= 0)
    data = np.ones(len(members), dtype=np.int64)
    return sparse.csr_array((data, (members, colors[members])), shape=(len(colors), count))


def _by_columns(pattern: SparsityPattern) -> Coloring:
    return _split(pattern, np.zeros(pattern.nnz, dtype=bool), "column")


def _by_rows(pattern: SparsityPattern) -> Coloring:
    return _split(pattern, np.ones(pattern.nnz, dtype=bool), "row")


def _split(pattern: SparsityPattern, back: NDArray[np.bool_], kind: str = "bidirectional") -> Coloring:
    """Entries that are marked are read off products with groups of rows, the others off those of columns.

    Marked are whole rows, or all but whole columns: then the element that an entry is read off has no other.
    """
    columns, rows = _fewest(_only(pattern, ~back)), _fewest(_only(pattern, back).T)
    forward = (int(columns.max(initial=-1)) + 1) * pattern.shape[0]
    source = np.where(
        back,
        forward + rows[pattern.rows] * pattern.shape[1] + pattern.indices,
        columns[pattern.indices] * pattern.shape[0] + pattern.rows,
    )
    return Coloring(kind, pattern.shape, columns, rows, source)


def _by_stars(pattern: SparsityPattern) -> Coloring:
    """Symmetric: entry (i, j) is read in row i if only column j of its group has an entry there."""
    if pattern.shape[0] != pattern.shape[1] or pattern != pattern.T:
        raise ArgumentValueError(
            f"color: a star colouring needs a symmetric pattern, got {pattern!r}. Take its union with its "
            "transpose, or colour its columns."
        )
    size, rows, columns = pattern.shape[0], pattern.rows, pattern.indices
    lengths = np.diff(pattern.indptr)
    # A colour that is used once cannot be part of a path of two colours, so the hub can be left out of the
    # graph.
    hubs = lengths > _HUB * max(1.0, float(lengths.mean() if size else 0.0))
    graph = _only(pattern, (rows != columns) & ~hubs[rows] & ~hubs[columns])
    edges = _undirected(graph)
    kernel = compiled(color_stars)
    colors = _first_best(
        lambda order: kernel(graph.indptr, graph.indices, edges, order), _orders(graph, graph), bound=0
    )
    colors[hubs] = colors.max(initial=-1) + 1 + np.arange(hubs.sum())
    used = np.bincount(rows, minlength=size) > 0
    colors = _renumbered(np.where(used, colors, -1))
    alone = compiled(alone_in_row)(pattern.indptr, columns, colors) == 1
    source = np.where(alone, colors[columns] * size + rows, colors[rows] * size + columns)
    return Coloring("star", pattern.shape, colors, np.full(size, -1), source)


def _by_both(pattern: SparsityPattern) -> Coloring:
    return _cheapest(_splits(pattern, pattern.T), margin=1.0)[0]


def _splits(pattern: SparsityPattern, across: SparsityPattern) -> list[_Candidate]:
    """Long rows one by one from the left and the rest by columns; or long columns and the rest by rows."""
    candidates = []
    for matrix, row_cost, column_cost in ((pattern, 1.0, FORWARD_COST), (across, FORWARD_COST, 1.0)):
        lengths = np.diff(matrix.indptr)
        for limit in sorted({int(n) for n in np.quantile(lengths, _LIMITS)} if len(lengths) else {0}):
            long = lengths > limit
            in_columns = np.bincount(matrix.indices[long[matrix.rows]], minlength=1).max()
            bound = column_cost * lengths[~long].max(initial=0) + row_cost * in_columns
            make = partial(_peeled, pattern, long, rows=matrix is pattern)
            candidates.append(_Candidate(float(bound), make))
    return candidates


def _peeled(pattern: SparsityPattern, long: NDArray[np.bool_], *, rows: bool) -> Coloring:
    """Rows that are long from the left and the others from the right; or columns the other way round."""
    return _split(pattern, long[pattern.rows] if rows else ~long[pattern.indices])


def _only(pattern: SparsityPattern, kept: NDArray[np.bool_]) -> SparsityPattern:
    """The entries that are kept, in a matrix of the same shape."""
    if kept.all():
        return pattern
    counts = np.bincount(pattern.rows[kept], minlength=pattern.shape[0])
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return SparsityPattern(pattern.shape, indptr, pattern.indices[kept])


def _fewest(pattern: SparsityPattern) -> Integers:
    """The colours of the columns, by the order of columns that needs the fewest; -1 for an empty column."""
    across = pattern.T
    used = np.diff(across.indptr) > 0
    if _longest(pattern) == used.sum():  # a full row: each column has a colour of its own
        return np.where(used, np.cumsum(used) - 1, -1)
    kernel = compiled(color_columns)
    colors = _first_best(
        lambda order: kernel(pattern.indptr, pattern.indices, across.indptr, across.indices, order),
        _orders(pattern, across),
        bound=_longest(pattern),
    )
    return _renumbered(np.where(used, colors, -1))


def _first_best(paint: Callable[[Integers], Integers], orders: Iterator[Integers], bound: int) -> Integers:
    """The colouring with the fewest colours; no more are tried after one that cannot be bettered."""
    found: Integers | None = None
    for order in orders:
        colors = paint(order)
        if found is None or colors.max(initial=-1) < found.max(initial=-1):
            found = colors
        if found.max(initial=-1) + 1 <= bound:
            break
    assert found is not None
    return found


def _orders(pattern: SparsityPattern, across: SparsityPattern) -> Iterator[Integers]:
    """As they come, largest first, smallest last."""
    count = pattern.shape[1]
    yield np.arange(count)
    lengths = np.diff(pattern.indptr)
    if float((lengths.astype(np.float64) ** 2).sum()) > _MUCH_WORK:
        return
    degrees = np.bincount(pattern.indices, weights=np.repeat(lengths, lengths), minlength=count)
    yield np.argsort(-degrees, kind="stable")
    yield compiled(smallest_last)(pattern.indptr, pattern.indices, across.indptr, across.indices)


def _undirected(graph: SparsityPattern) -> Integers:
    """A number for the edge of each entry, the same for (i, j) and (j, i)."""
    above = graph.rows < graph.indices
    numbers = np.cumsum(above) - 1
    # Below the diagonal the entry has the number of its mirror image, which stands where the transpose has
    # it.
    mirror = sparse.csr_array((numbers, graph.indices, graph.indptr), shape=graph.shape).T.tocsr().data
    return np.where(above, numbers, mirror).astype(np.int64)


def _renumbered(colors: Integers) -> Integers:
    """The same groups, numbered without gaps; -1 stays."""
    used = np.unique(colors[colors >= 0])
    numbers = np.searchsorted(used, colors)
    return np.where(colors >= 0, numbers, -1)


def _longest(pattern: SparsityPattern) -> int:
    return int(np.diff(pattern.indptr).max(initial=0))


KINDS: dict[str, Callable[[SparsityPattern], Coloring]] = {
    "column": _by_columns,
    "row": _by_rows,
    "star": _by_stars,
    "bidirectional": _by_both,
}
