"""Colourings are valid, compiled and interpreted, and need few colours."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from covector import SparsityPattern
from covector.errors import ArgumentValueError
from covector.sparsity import kernels
from covector.sparsity.coloring import Coloring, best, check_valid, color


def band(size, width):
    offsets = range(-width, width + 1)
    return SparsityPattern.of(
        sparse.diags_array([np.ones(size - abs(k)) for k in offsets], offsets=list(offsets)).tocsr()
    )


def arrow(size):
    matrix = sparse.eye_array(size, format="lil")
    matrix[0, :] = matrix[:, 0] = 1
    return SparsityPattern.of(matrix.tocsr())


def grid(side):
    line = sparse.diags_array([np.ones(side - 1), np.ones(side), np.ones(side - 1)], offsets=[-1, 0, 1])
    one = sparse.eye_array(side)
    return SparsityPattern.of((sparse.kron(line, one) + sparse.kron(one, line)).tocsr())


def triangles(count):
    """A mesh of random points, each connected to some that are near."""
    points = np.random.default_rng(0).random((count, 2))
    from scipy.spatial import Delaunay

    edges = Delaunay(points).simplices[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)
    mesh = sparse.coo_array((np.ones(len(edges)), edges.T), shape=(count, count))
    return SparsityPattern.of((mesh + mesh.T + sparse.eye_array(count)).tocsr())


def power_law(rows, columns):
    random = np.random.default_rng(1)
    lengths = np.minimum(random.zipf(1.6, rows), columns)
    entries = [
        (row, column) for row, length in enumerate(lengths) for column in random.permutation(columns)[:length]
    ]
    where = np.array(entries).T
    return SparsityPattern.of(sparse.coo_array((np.ones(len(entries)), where), shape=(rows, columns)).tocsr())


def scattered(rows, columns, density):
    return SparsityPattern.of(
        sparse.random_array((rows, columns), density=density, rng=np.random.default_rng(2), format="csr")
    )


PATTERNS = {
    "band": band(200, 2),
    "arrow": arrow(100),
    "grid": grid(12),
    "triangles": triangles(150),
    "power law": power_law(80, 60),
    "random": scattered(70, 90, 0.05),
    "tall": scattered(300, 8, 0.3),
    "full": SparsityPattern.of(np.ones((6, 4))),
    "empty": SparsityPattern.of(np.zeros((5, 3))),
    "no rows": SparsityPattern.of(np.zeros((0, 3))),
    "one": SparsityPattern.of(np.ones((1, 1))),
}
KINDS = ["column", "row", "bidirectional", "star"]


def of_kind(pattern, kind):
    """The pattern, made symmetric for a star colouring."""
    if kind != "star":
        return pattern
    size = max(pattern.shape)
    square = SparsityPattern.of(
        sparse.coo_array((np.ones(pattern.nnz), (pattern.rows, pattern.indices)), shape=(size, size)).tocsr()
    )
    return square | square.T


def recovered(pattern, coloring, matrix):
    """A matrix from its products with the groups, as a plan does it."""
    columns = np.zeros((pattern.shape[1], coloring.forward))
    columns[coloring.columns >= 0, coloring.columns[coloring.columns >= 0]] = 1
    rows = np.zeros((pattern.shape[0], coloring.reverse))
    rows[coloring.rows >= 0, coloring.rows[coloring.rows >= 0]] = 1
    flat = np.concatenate([(matrix @ columns).T.reshape(-1), (matrix.T @ rows).T.reshape(-1)])
    found = np.zeros(pattern.shape)
    found[pattern.rows, pattern.indices] = flat[coloring.source]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PATTERNS)
def test_a_matrix_is_recovered_from_its_products(name, kind):
    """Whatever numbers stand at the entries."""
    pattern = of_kind(PATTERNS[name], kind)
    matrix = np.zeros(pattern.shape)
    matrix[pattern.rows, pattern.indices] = np.random.default_rng(0).random(pattern.nnz) + 1
    matrix = matrix + matrix.T if kind == "star" else matrix
    coloring = color(pattern, kind)
    assert check_valid(pattern, coloring) is None
    np.testing.assert_allclose(recovered(pattern, coloring, matrix), matrix, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "kind", "most"),
    [("band", "column", 5), ("band", "row", 5), ("band", "star", 5), ("arrow", "bidirectional", 3),
     ("arrow", "star", 2), ("grid", "column", 7), ("grid", "star", 6), ("triangles", "star", 14),
     ("full", "row", 6)],
)  # fmt: skip
def test_few_colors_are_needed(name, kind, most):
    assert color(of_kind(PATTERNS[name], kind), kind).products <= most


def test_the_cheapest_kind_is_chosen():
    """Pulling a row back costs a third of pushing a column forward."""
    assert best(PATTERNS["band"], "auto").kind == "row"
    assert best(PATTERNS["tall"], "auto").kind == "column"
    assert best(PATTERNS["arrow"], "auto").kind == "bidirectional"
    assert best(PATTERNS["tall"], "reverse").kind == "row"


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_coloring_is_valid(data):
    rows, columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    cells = data.draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))
    pattern = SparsityPattern.of(np.array(cells).reshape(rows, columns))
    for kind in KINDS:
        chosen = of_kind(pattern, kind)
        assert check_valid(chosen, color(chosen, kind)) is None


def test_an_invalid_coloring_is_found_out():
    """By the entry that two columns share."""
    pattern = PATTERNS["band"]
    one = np.zeros(200, dtype=np.int64)
    source = one[pattern.indices] * 200 + pattern.rows
    wrong = Coloring("column", pattern.shape, one, np.full(200, -1), source)
    assert "entry (0, 0) shares" in check_valid(pattern, wrong)
    good = color(pattern, "column")
    moved = Coloring("column", pattern.shape, good.columns, good.rows, np.roll(good.source, 1))
    assert check_valid(pattern, moved) is not None


def test_a_star_coloring_needs_a_symmetric_pattern():
    with pytest.raises(ArgumentValueError, match="symmetric"):
        color(PATTERNS["tall"], "star")


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_compiler_the_colors_are_the_same(kind, monkeypatch):
    """The kernels are one source: numba compiles what Python runs otherwise."""
    pattern = of_kind(PATTERNS["triangles"], kind)
    assert kernels.has_compiler()
    compiled = color(pattern, kind)
    monkeypatch.setattr("covector.sparsity.coloring.compiled", lambda kernel: kernel)
    interpreted = color(pattern, kind)
    assert np.array_equal(compiled.source, interpreted.source)
    assert np.array_equal(compiled.columns, interpreted.columns)


def test_patterns_from_everywhere():
    """torch, SciPy, NumPy; what is stored counts, also if it is zero."""
    dense = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    expected = SparsityPattern.of(dense)
    matrices = [dense.bool(), dense.to_sparse(), dense.to_sparse_csr(), dense.numpy(), [[1, 0], [1, 1]],
                sparse.csc_array(dense.numpy()), sparse.coo_matrix(dense.numpy()), expected]  # fmt: skip
    assert all(SparsityPattern.of(matrix) == expected for matrix in matrices)
    assert expected.to_dense().tolist() == [[True, False], [True, True]]
    assert SparsityPattern.of(sparse.csr_array(([0.0], [0], [0, 1, 1]), shape=(2, 2))).nnz == 1
    assert (expected | expected.T).nnz == 4
    assert expected.covers(SparsityPattern.of([[1, 0], [0, 0]]))
    assert expected.to_scipy().dtype == bool


def test_pictures():
    """Dots when small, braille when large."""
    assert str(SparsityPattern.of([[1, 0], [1, 1]])) == "SparsityPattern: 2 x 2, 3 nonzeros (75 %)\n● ·\n● ●"
    title, *lines = str(band(1000, 1)).splitlines()
    assert title == "SparsityPattern: 1000 x 1000, 2998 nonzeros (0.3 %)"
    assert len(lines) == 32
    assert {len(line) for line in lines} == {64}
    assert lines[0][0] != "⠀"
    assert lines[0][-1] == "⠀"
    assert str(SparsityPattern.of(np.zeros((0, 3)))) == "SparsityPattern: 0 x 3, 0 nonzeros (0 %)"


def test_figures():
    """The pattern alone, and coloured with what the products return."""
    import matplotlib as mpl

    mpl.use("Agg")
    pattern = band(20, 1)
    assert pattern.plot().get_title() == repr(pattern)
    coloring = color(pattern, "column")
    left, right = pattern.plot(coloring)
    assert left.get_title() == "column coloring: 3 groups of columns"
    assert right.get_title() == "what 3 products return"
    assert len(right.collections[0].get_offsets()) == pattern.nnz
