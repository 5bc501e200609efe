"""Tests that expect a check to fail, and tests that meddle with torch themselves."""

import inspect

import pytest
import torch
from helpers import double
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError


def test_expects_the_error(x):
    with pytest.raises(GradcheckError):
        gradcheck(double, x)


def test_expects_a_runtime_error(x):
    with pytest.raises(RuntimeError):
        gradcheck(double, x)


def test_asks_for_an_answer(x):
    assert gradcheck(double, x, raise_exception=False) is False


def test_every_argument_by_name(x):
    assert gradcheck(func=torch.sin, inputs=(x,), eps=1e-6, atol=1e-5, rtol=1e-3, fast_mode=True)


def test_misuse(x):
    with pytest.raises(ValueError, match="grad"):
        gradcheck(torch.sin, x.detach())


def test_wraps_what_is_there(x, monkeypatch):
    seen = []
    original = torch.autograd.gradcheck

    def counting(*args, **kwargs):
        seen.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "gradcheck", counting)
    assert torch.autograd.gradcheck(torch.sin, x)
    assert len(seen) == 1


def test_looks_at_the_signature():
    parameters = inspect.signature(gradcheck).parameters
    assert parameters["eps"].default == 1e-6
    assert gradcheck.__name__ == "gradcheck"
    assert gradcheck.__module__ == "torch.autograd.gradcheck"
