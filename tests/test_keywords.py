"""Every function and keyword of torch's is taken, with its default, and stands in the table."""

import importlib
import inspect
from pathlib import Path

import pytest
import torch

import covector
from covector import compat

TABLE = Path(__file__).parents[1].joinpath("docs", "coming-from-torch.md").read_text(encoding="utf-8")

# Of torch.func, these are about batches and modules, not about derivatives.
NO_DERIVATIVES = {
    "vmap",
    "replace_all_batch_norm_modules_",
    "rearrange",
    "functional_call",
    "stack_module_state",
    "debug_unwrap",
}
checks = importlib.import_module("torch.autograd.gradcheck")
PAIRS = {
    "as_sparse_gradcheck": (torch.sparse.as_sparse_gradcheck, covector.as_sparse_gradcheck),
    **{name: (getattr(checks, name), getattr(covector, name)) for name in ("gradcheck", "gradgradcheck")},
    **{
        name: (getattr(checks, name), getattr(compat, name))
        for name in checks.__all__
        if name.startswith("get_")
    },
    **{
        f"func.{name}": (getattr(torch.func, name), getattr(covector, name))
        for name in torch.func.__all__
        if name not in NO_DERIVATIVES
    },
    **{
        f"functional.{name}": (getattr(torch.autograd.functional, name), getattr(covector.functional, name))
        for name in torch.autograd.functional.__all__
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_keyword(name):
    """In the same place, of the same kind, with the same default, and in the table."""
    theirs, ours = (inspect.signature(function).parameters for function in PAIRS[name])
    assert f"`{name.rpartition('.')[2]}" in TABLE or f".{name}(" in TABLE
    assert [key for key in ours if key in theirs] == list(theirs)
    for key, parameter in theirs.items():
        assert (ours[key].default, ours[key].kind) == (parameter.default, parameter.kind), key
        assert key in TABLE, key


def test_nothing_is_left_out():
    """Of what torch.autograd.gradcheck shows, the error is there too."""
    assert set(checks.__all__) - set(PAIRS) == {"GradcheckError"}
    assert issubclass(covector.GradcheckError, checks.GradcheckError)
