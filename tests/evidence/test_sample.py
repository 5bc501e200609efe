"""Which rows and columns of a large Jacobian a diagnosis looks at."""

from __future__ import annotations

import tracemalloc

import torch
import torch.nn.functional as F

import covector
from covector._chart.place import Place
from covector.evidence.sample import Grid, grids, index_of, widened
from mutants import ruled

CPU = torch.device("cpu")


def place(*shape: int, start: int = 0, dtype: torch.dtype = torch.float64) -> Place:
    """A tensor in a chart."""
    size = torch.Size(shape).numel() * (2 if dtype.is_complex else 1)
    return Place(torch.Size(shape), dtype, CPU, start, start + size)


def test_a_grid_has_every_combination_of_its_indices():
    made = Grid(place(5, 7, start=100), (torch.tensor([1, 3]), torch.tensor([0, 6])))
    assert made.coordinates.tolist() == [107, 113, 121, 127]
    rows, columns = index_of(made.place, made.coordinates)
    assert (rows.tolist(), columns.tolist()) == ([1, 1, 3, 3], [0, 6, 0, 6])


def test_a_complex_element_has_both_of_its_parts():
    made = Grid(place(4, dtype=torch.complex128), (torch.tensor([1, 2]),))
    assert made.coordinates.tolist() == [2, 3, 4, 5]


def test_grids_have_their_anchors_and_no_more_than_there_is_room_for():
    places = [place(64, 512), place(64, 512), place(512)]
    made = grids(places, [37 * 512 + 300, 37 * 512 + 11, None], [100, 100, 100])
    assert all(grid.coordinates.numel() <= 100 for grid in made)
    assert 37 * 512 + 300 in made[0].coordinates
    assert 37 * 512 + 11 in made[1].coordinates


def test_axes_of_one_size_have_the_same_indices():
    """So that elements whose indices are exchanged, or that stand at the same place, are both looked at."""
    x, y = grids([place(8, 64, 64), place(8, 64, 64)], [3 * 4096 + 70, 3 * 4096 + 5], [192, 192])
    assert all(torch.equal(a, b) for a, b in zip(x.indices, y.indices, strict=True))
    assert torch.equal(x.indices[1], x.indices[2])


def test_where_anchors_take_the_room_indices_of_axes_differ():
    """The three axes of 16 would need six indices each; neighbours are more worth."""
    anchors = [((1 * 16 + 3) * 16 + 8) * 16 + 12, ((1 * 16 + 14) * 16 + 9) * 16 + 13]
    x, _ = grids([place(4, 16, 16, 16)] * 2, anchors, [192, 192])
    assert 1 in x.indices[2].diff()
    assert not torch.equal(x.indices[1], x.indices[2])


def test_coordinates_become_a_grid_if_they_nearly_are_one():
    assert widened(place(10, 10), torch.tensor([0, 1, 10]), 100).tolist() == [0, 1, 10, 11]
    scattered = torch.tensor([0, 11, 22, 33])
    assert torch.equal(widened(place(10, 10), scattered, 100), scattered)
    assert widened(place(10, 10), torch.tensor([0, 1, 10]), 3).tolist() == [0, 1, 10]


def drawn(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)


def said(function, *inputs: torch.Tensor, **keywords) -> str:
    """The first diagnosis of a check."""
    report = covector.check(function, inputs, **keywords)
    return next((d.evidence for f in report.findings for d in f.diagnoses), "")


def test_a_normalisation_of_many_rows_is_recognised():
    def pull(g, x):
        scale = (x.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
        return scale * (g - g.mean(-1, keepdim=True))

    wrong = ruled(lambda x: F.layer_norm(x, x.shape[-1:]), pull)
    for fast in (False, True):
        text = said(wrong, drawn(64, 512), fast_mode=fast)
        assert "lacks the term of the deviation or norm along dimension 1" in text


def test_a_row_far_from_the_others_that_alone_counts_is_found():
    """The gradient of a bias comes from the first row, which is not around the mismatch."""
    wrong = ruled(lambda x, b: x + b, lambda g, x, b: (g, g[0]))
    text = said(wrong, drawn(64, 512), drawn(512))
    assert "is not summed over dimension 0 of `output`: only index 0 counts" in text


def test_what_is_zero_in_a_sample_is_not_called_zero():
    """Each element is sent to a place far away, where nothing was differenced."""
    order = torch.randperm(6000, generator=torch.Generator().manual_seed(3))
    text = said(ruled(lambda x: 2 * x, lambda g, x: 2 * g[order]), drawn(6000))
    assert "zero" not in text


def test_a_gradient_with_its_halves_exchanged_is_displaced():
    def pull(g, x):
        a, b = x.chunk(2, -1)
        return torch.cat([g * a.sin(), g * a.cos() * b], -1)

    wrong = ruled(lambda x: x.chunk(2, -1)[0].sin() * x.chunk(2, -1)[1], pull)
    assert "has the right numbers moved by half of the axis, along dimension 1" in said(wrong, drawn(64, 512))


def test_a_factor_names_the_sizes_that_it_is_the_product_of():
    def pull(g, x, b):
        return g, g.mean((0, 2, 3))

    wrong = ruled(lambda x, b: x + b[:, None, None], pull)
    text = said(wrong, drawn(8, 32, 12, 12), drawn(32))
    assert "0.000868 x the numeric gradient" in text
    assert "1152 is the number of elements along dimensions 0, 2 and 3 of `output`" in text


def test_a_factor_by_chance_is_no_size_and_the_root_of_one_is_named():
    def pull(g, q, k):
        return g @ k, g.mT @ q

    def scores(q, k):
        return q @ k.mT / 8

    text = said(ruled(scores, pull), drawn(8, 64, 64), drawn(8, 64, 64))
    assert "8.000 is the root of 64, the size of dimension 2 of `output`" in text


def test_what_leaves_an_input_unexplained_is_not_almost_certain():
    """Of two wrong inputs, a rule knows one."""

    def pull(g, x, w):
        return -g * w, g * (x.sin() + 0.3 * x * w.cos())

    report = covector.check(ruled(lambda x, w: x * w, pull), (drawn(60, 80), drawn(60, 80) + 3))
    (found, *_) = [d for f in report.findings for d in f.diagnoses]
    assert (found.rule, found.tested) == ("sign", "explains 120 of 240 wrong entries in a sample")
    assert "  likely (explains 120 of 240" in str(report)


def test_indices_of_a_long_axis_take_no_memory():
    """Only those that are chosen are made: a list of all is several times as large as the tensor."""
    tracemalloc.start()
    try:
        (grid,) = grids([place(10**6)], [5 * 10**5], [4])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grid.coordinates.tolist() == [500000, 500001, 500002, 500003]
    assert peak < 10**5
