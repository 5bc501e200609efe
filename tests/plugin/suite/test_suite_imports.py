"""Every way to get hold of gradcheck that we have seen in libraries."""

import functools
import importlib
import sys

import pytest
import suite_helpers as helpers
import torch
import torch.autograd
import torch.autograd.gradcheck
import torch.autograd.gradcheck as function_in_spite_of_its_import
from suite_helpers import loose
from torch import autograd
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd import gradcheck as gc
from torch.autograd.gradcheck import gradcheck as from_module
from torch.autograd.gradcheck import gradgradcheck as second_from_module
from torch.testing._internal.common_utils import gradcheck as internal
from torch.testing._internal.common_utils import gradgradcheck as second_internal

here = functools.partial(gc, eps=1e-5)
by_name = getattr(torch.autograd, "gradcheck")  # noqa: B009
module = sys.modules["torch.autograd.gradcheck"]
imported = importlib.import_module("torch.autograd.gradcheck")

WAYS = {
    "name": gradcheck,
    "second name": gradgradcheck,
    "alias": gc,
    "from the module": from_module,
    "second from the module": second_from_module,
    "attribute of torch.autograd": lambda fn, x: torch.autograd.gradcheck(fn, x),
    "second attribute": lambda fn, x: torch.autograd.gradgradcheck(fn, x),
    "attribute of autograd": lambda fn, x: autograd.gradcheck(fn, x),
    "imported as": function_in_spite_of_its_import,
    "getattr": by_name,
    "module in sys.modules": lambda fn, x: module.gradcheck(fn, x),
    "importlib": lambda fn, x: imported.gradgradcheck(fn, x),
    "partial here": here,
    "partial elsewhere": loose,
    "helper": helpers.assert_gradients,
    "two in a helper": helpers.assert_all_gradients,
    "list": helpers.CHECKS[0],
    "closure": helpers.make_checker(),
    "torch.testing": internal,
    "second torch.testing": second_internal,
}


@pytest.mark.parametrize("way", WAYS)
def test_way(way, x):
    assert WAYS[way](torch.sin, x) is not False


def test_imported_in_the_test(x):
    from torch.autograd import gradcheck as late

    assert late(torch.sin, x)


def test_from_conftest(checker, x):
    assert checker(torch.sin, (x,))


def test_default_argument(x, check=gradcheck):
    assert check(torch.sin, (x,))


class TestAttribute:
    check = staticmethod(gradcheck)

    def test_class_attribute(self, x):
        assert self.check(torch.sin, (x,))
