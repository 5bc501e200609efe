"""What functions are made of: fingerprints that change with the code and the data, and with nothing else."""

import sys
from functools import partial

import numpy as np
import pytest
import torch
from executor_functions import mixing

from covector._tasks.parts import fingerprint

weight = torch.ones(3)


def with_global(x):
    return x * weight


def with_captured(value):
    return lambda x: x * value


def nested(x):
    def inner(y):
        return y + 1

    return inner(x)


def nested_differently(x):
    def inner(y):
        return y + 2

    return inner(x)


class Scaled(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.factor * self.weight


class Shifted(Scaled):
    def forward(self, x):
        return x + self.factor


def looped():
    held = []
    held.append(held)
    return held


SAME = {
    "captured numbers": lambda: with_captured(2.0),
    "captured tensors": lambda: with_captured(torch.arange(3.0)),
    "modules": lambda: Scaled(2.0),
    "methods": lambda: Scaled(2.0).forward,
    "partial": lambda: partial(with_captured, value={"a": [1, 2]}),
    "arrays": lambda: np.arange(3),
    "sparse tensors": lambda: torch.eye(3).to_sparse(),
    "conjugates": lambda: torch.tensor([1 + 2j]).conj(),
    "sets": lambda: with_captured({"b", "a", "c"}),
    "what contains itself": looped,
    "nothing": lambda: None,
    "low precision": lambda: torch.ones(3, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_is_the_same(name):
    """Made twice, it has one fingerprint."""
    assert fingerprint(SAME[name]()) == fingerprint(SAME[name]())


DIFFERENT = {
    "numbers": (with_captured(2.0), with_captured(3.0)),
    "types": (with_captured(2), with_captured(2.0)),
    "tensors": (with_captured(torch.ones(3)), with_captured(torch.tensor([1.0, 1.0, 1.5]))),
    "dtypes": (torch.ones(2), torch.ones(2).double()),
    "shapes": (torch.ones(2, 3), torch.ones(3, 2)),
    "code inside": (nested, nested_differently),
    "modules": (Scaled(2.0), Scaled(3.0)),
    "classes": (Scaled(2.0), Shifted(2.0)),
    "bound methods": (Scaled(2.0).forward, Scaled(3.0).forward),
    "keywords": (partial(mixing, x=1), partial(mixing, x=2)),
    "builtins": (torch.sin, torch.cos),
    "order": ([1, 2], [2, 1]),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_has_another(name):
    """Whatever it is that differs."""
    first, second = DIFFERENT[name]
    assert fingerprint(first) != fingerprint(second)


def test_globals_count(monkeypatch):
    """A function is what its names stand for."""
    before = fingerprint(with_global)
    monkeypatch.setattr(sys.modules[__name__], "weight", torch.zeros(3))
    assert fingerprint(with_global) != before
