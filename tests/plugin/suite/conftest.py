"""Imported before anything else, as the conftest of a library is."""

import pytest
import torch
from torch.autograd import gradcheck as imported_by_conftest


@pytest.fixture
def x():
    return torch.linspace(0.1, 0.9, 3, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def checker():
    return imported_by_conftest
