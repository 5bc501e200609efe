"""Colouring: every entry of the pattern alone in its cell, in as few colours as the pattern allows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covector.verify.directions import coloured, singly


def groups_of(pattern, seed=0):
    rows, columns = pattern.nonzero().unbind(1)
    return coloured(rows, columns, tuple(pattern.shape), seed)


def entries_stand_alone(pattern, groups):
    """In each row, no colour occurs twice among the columns of the pattern."""
    for row in pattern:
        colours = groups.colour[row.nonzero().flatten()]
        if colours.unique().numel() != colours.numel():
            return False
    return True


def tridiagonal(size):
    return (torch.arange(size)[:, None] - torch.arange(size)[None]).abs() <= 1


def linear_layer(outputs, inputs):
    return torch.cat([torch.kron(torch.eye(outputs), torch.ones(1, inputs)), torch.eye(outputs)], 1) != 0


@pytest.mark.parametrize(
    ("name", "pattern", "count"),
    [
        ("diagonal", torch.eye(100, dtype=torch.bool), 1),
        ("empty", torch.zeros(5, 100, dtype=torch.bool), 1),
        ("tridiagonal", tridiagonal(200), 3),
        ("linear layer in weight and bias", linear_layer(20, 30), 31),
        ("dense", torch.ones(5, 100, dtype=torch.bool), 100),
        ("one dense row", torch.eye(100, dtype=torch.bool) | (torch.arange(100) == 0)[:, None], 100),
    ],
)
def test_number_of_colours(name, pattern, count):
    """The number of function evaluations that each pattern needs."""
    groups = groups_of(pattern)
    assert groups.count == count
    assert entries_stand_alone(pattern, groups)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(65, 120), st.floats(0.0, 0.3))
def test_entries_stand_alone_for_any_pattern(seed, height, width, density):
    """The one property that a comparison along colours rests on."""
    generator = torch.Generator().manual_seed(seed)
    pattern = torch.rand(height, width, generator=generator) < density
    groups = groups_of(pattern, seed)
    assert entries_stand_alone(pattern, groups)
    assert int(groups.colour.max()) < groups.count
    assert groups.colour.numel() == groups.weight.numel() == width


def test_weights_are_random_in_sign_and_size():
    """Two entries that the pattern lacks must not cancel in a cell."""
    weight = groups_of(torch.eye(200, dtype=torch.bool)).weight
    assert weight.abs().min() >= 0.5
    assert weight.abs().max() <= 1.0
    assert weight.unique().numel() == 200
    assert 60 < int((weight > 0).sum()) < 140


def test_singly():
    groups = singly(4)
    assert groups.count == 4
    assert [groups.members(c).tolist() for c in range(4)] == [[0], [1], [2], [3]]
