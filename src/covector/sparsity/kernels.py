"""The loops of colouring, written for a compiler.

With numba (`pip install covector[sparse]`) they are compiled at first use and kept on disk; 100,000 columns
take some ten milliseconds. Without it the same functions run as Python, with the same result, some hundred
times as slow. They take and return NumPy arrays of int64 and nothing else, so that both ways are one source.

A matrix is given by its rows (`row_start`, `row_columns`) and by its columns (`column_start`,
`column_rows`), a symmetric one by its rows. Colours count from 0; -1 is no colour yet.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])


@cache
def has_compiler() -> bool:
    """Whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


@cache
def compiled(kernel: Kernel) -> Kernel:
    """The kernel, compiled where numba is installed."""
    if not has_compiler():
        return kernel
    from numba import njit

    return cast(Kernel, njit(cache=True, nogil=True)(kernel))


def color_columns(
    row_start: Integers, row_columns: Integers, column_start: Integers, column_rows: Integers, order: Integers
) -> Integers:
    """The first colour that fits for each column in turn: no row has two columns of one colour."""
    count = len(column_start) - 1
    colors = np.full(count, -1, dtype=np.int64)
    taken = np.full(count + 1, -1, dtype=np.int64)  # by which column a colour was last seen to be taken
    for column in order:
        for position in range(column_start[column], column_start[column + 1]):
            row = column_rows[position]
            for other in range(row_start[row], row_start[row + 1]):
                color = colors[row_columns[other]]
                if color >= 0:
                    taken[color] = column
        color = 0
        while taken[color] == column:
            color += 1
        colors[column] = color
    return colors


def smallest_last(
    row_start: Integers, row_columns: Integers, column_start: Integers, column_rows: Integers
) -> Integers:
    """The order in which the column with the fewest neighbours among those left is put last, again and again.

    Columns are neighbours once for each row that they share.
    """
    count = len(column_start) - 1
    # What is known of a column stands together in memory: its degree, the columns after and before it in the
    # doubly linked list of those of its degree, and whether it was removed.
    known = np.full((count, 4), -1, dtype=np.int32)
    largest = 0
    for column in range(count):
        total = 0
        for position in range(column_start[column], column_start[column + 1]):
            row = column_rows[position]
            total += row_start[row + 1] - row_start[row] - 1
        known[column, 0] = total
        known[column, 3] = 0
        largest = max(largest, total)
    first = np.full(largest + 1, -1, dtype=np.int32)
    for column in range(count):
        head = first[known[column, 0]]
        known[column, 1] = head
        if head >= 0:
            known[head, 2] = column
        first[known[column, 0]] = column
    order = np.empty(count, dtype=np.int64)
    degree = 0
    for step in range(count):
        degree = max(degree - 1, 0)
        while first[degree] < 0:
            degree += 1
        column = first[degree]
        first[degree] = known[column, 1]
        if known[column, 1] >= 0:
            known[known[column, 1], 2] = -1
        known[column, 3] = 1
        order[count - 1 - step] = column
        for position in range(column_start[column], column_start[column + 1]):
            row = column_rows[position]
            for place in range(row_start[row], row_start[row + 1]):
                other = row_columns[place]
                if known[other, 3] == 1:
                    continue
                after, before = known[other, 1], known[other, 2]
                fewer = known[other, 0] - 1
                if before >= 0:
                    known[before, 1] = after
                else:
                    first[fewer + 1] = after
                if after >= 0:
                    known[after, 2] = before
                head = first[fewer]
                known[other, 0] = fewer
                known[other, 1] = head
                known[other, 2] = -1
                if head >= 0:
                    known[head, 2] = other
                first[fewer] = other
                degree = min(degree, fewer)
    return order


def color_stars(start: Integers, neighbors: Integers, edges: Integers, order: Integers) -> Integers:
    """A star colouring of a graph: proper, and every path of four vertices has three colours or more.

    The algorithm of Gebremedhin, Tarafdar, Manne and Pothen (New acyclic and star coloring algorithms with
    application to computing Hessians, 2007): the edges of two colours form stars, each with a hub. `edges`
    numbers the undirected edge of each place in `neighbors`.
    """
    count = len(start) - 1
    total = 0
    for place in range(len(edges)):
        total = max(total, edges[place] + 1)
    colors = np.full(count, -1, dtype=np.int32)
    taken = np.full(count + 1, -1, dtype=np.int32)
    treated = np.full(count, -1, dtype=np.int32)
    seen_by = np.full(count + 1, -1, dtype=np.int32)  # the last vertex with a neighbour of this colour,
    seen = np.full(count + 1, -1, dtype=np.int64)  # and its first neighbour of this colour,
    seen_edge = np.full(count + 1, -1, dtype=np.int32)  # and the edge between them
    star = np.full(total, -1, dtype=np.int32)  # the star of each edge
    hub = np.full(total, -1, dtype=np.int32)  # the hub of each star; a single edge has none
    stars = 0
    for vertex in order:
        for place in range(start[vertex], start[vertex + 1]):
            near = neighbors[place]
            color = colors[near]
            if color < 0:
                continue
            taken[color] = vertex
            if seen_by[color] == vertex:
                # Two neighbours of one colour: the vertex would be a hub, so it differs from all of theirs.
                for both in (seen[color], near):
                    if treated[both] != vertex:
                        for far in range(start[both], start[both + 1]):
                            if colors[neighbors[far]] >= 0:
                                taken[colors[neighbors[far]]] = vertex
                        treated[both] = vertex
            else:
                seen_by[color] = vertex
                seen[color] = near
                seen_edge[color] = edges[place]
                for far in range(start[near], start[near + 1]):
                    end = neighbors[far]
                    if end != vertex and colors[end] >= 0 and hub[star[edges[far]]] == end:
                        taken[colors[end]] = vertex
        color = 0
        while taken[color] == vertex:
            color += 1
        colors[vertex] = color
        for place in range(start[vertex], start[vertex + 1]):
            near = neighbors[place]
            if colors[near] < 0:
                continue
            found = -1
            for far in range(start[near], start[near + 1]):
                if neighbors[far] != vertex and colors[neighbors[far]] == color:
                    found = star[edges[far]]
                    hub[found] = near
                    break
            if found < 0 and seen[colors[near]] != near:
                found = star[seen_edge[colors[near]]]
                hub[found] = vertex
            if found < 0:
                found = stars
                stars += 1
            star[edges[place]] = found
    return colors.astype(np.int64)


def alone_in_row(row_start: Integers, row_columns: Integers, colors: Integers) -> Integers:
    """For each entry, 1 if no other column of its colour has an entry in its row, else 0."""
    alone = np.zeros(len(row_columns), dtype=np.int64)
    seen = np.zeros(len(colors) + 1, dtype=np.int64)  # entries of each colour in the row at hand
    for row in range(len(row_start) - 1):
        for position in range(row_start[row], row_start[row + 1]):
            seen[colors[row_columns[position]]] += 1
        for position in range(row_start[row], row_start[row + 1]):
            alone[position] = 1 if seen[colors[row_columns[position]]] == 1 else 0
        for position in range(row_start[row], row_start[row + 1]):
            seen[colors[row_columns[position]]] = 0
    return alone
