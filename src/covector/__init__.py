"""Derivatives of PyTorch programs, and checks that they are right."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from covector.errors import GradcheckError
from covector.transforms.functionalize import functionalize
from covector.transforms.grad import grad, grad_and_value
from covector.transforms.hessian import hessian
from covector.transforms.hessian_blocks import hessian_blocks, hessian_diagonal
from covector.transforms.hvp import hvp, vhp
from covector.transforms.jacfwd import jacfwd
from covector.transforms.jacobian import jacobian, value_and_jacobian
from covector.transforms.jacrev import jacrev
from covector.transforms.jvp import jvp
from covector.transforms.linearize import linearize
from covector.transforms.module import as_function
from covector.transforms.vjp import vjp

if TYPE_CHECKING:
    from covector import api as api
    from covector import cases as cases
    from covector import checks as checks
    from covector import compat as compat
    from covector import functional as functional
    from covector import scipy as scipy
    from covector.adjoint import check_adjoint
    from covector.agreement import agree
    from covector.api import check, gradcheck, gradgradcheck
    from covector.cases import case
    from covector.checks.sparse import as_sparse_gradcheck
    from covector.compat import swap
    from covector.kernels.door import check_kernel, kernelcheck
    from covector.report.report import Report
    from covector.sparsity.checking import check_pattern
    from covector.sparsity.doors import (
        hessian_plan,
        jacobian_plan,
        sparse_hessian,
        sparse_jacobian,
        sparsity,
    )
    from covector.sparsity.pattern import SparsityPattern
    from covector.transforms.compile import compile

__all__ = [
    "GradcheckError",
    "Report",
    "SparsityPattern",
    "agree",
    "as_function",
    "as_sparse_gradcheck",
    "case",
    "check",
    "check_adjoint",
    "check_kernel",
    "check_pattern",
    "compile",
    "functionalize",
    "grad",
    "grad_and_value",
    "gradcheck",
    "gradgradcheck",
    "hessian",
    "hessian_blocks",
    "hessian_diagonal",
    "hessian_plan",
    "hvp",
    "jacfwd",
    "jacobian",
    "jacobian_plan",
    "jacrev",
    "jvp",
    "kernelcheck",
    "linearize",
    "sparse_hessian",
    "sparse_jacobian",
    "sparsity",
    "swap",
    "value_and_jacobian",
    "vhp",
    "vjp",
]

# What is loaded on first use, so that a program that takes a gradient does not wait for the checks: where
# each name is, and what to load for a room as a whole.
_ROOM_OF = {
    "compile": "covector.transforms.compile",
    "Report": "covector.report.report",
    "SparsityPattern": "covector.sparsity.pattern",
    "agree": "covector.agreement",
    "as_sparse_gradcheck": "covector.checks.sparse",
    "case": "covector.cases",
    "check": "covector.api",
    "check_adjoint": "covector.adjoint",
    "check_kernel": "covector.kernels.door",
    "check_pattern": "covector.sparsity.checking",
    "gradcheck": "covector.api",
    "gradgradcheck": "covector.api",
    "hessian_plan": "covector.sparsity.doors",
    "jacobian_plan": "covector.sparsity.doors",
    "kernelcheck": "covector.kernels.door",
    "sparse_hessian": "covector.sparsity.doors",
    "sparse_jacobian": "covector.sparsity.doors",
    "swap": "covector.compat",
}
_ROOMS = {
    "api": "covector.api",
    "cases": "covector.cases",
    "compat": "covector.compat",
    "functional": "covector.functional",
    "scipy": "covector.scipy",
    "sparsity": "covector.sparsity",
    "checks": "covector.api",
}


# The rooms that programs use, beside the names of the public list.
_PUBLIC = ("__version__", "compat", "errors", "functional", "scipy")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("covector")
    if name in _ROOMS:
        import_module(_ROOMS[name])
        return sys.modules[f"covector.{name}"]
    if name in _ROOM_OF:
        value = globals()[name] = getattr(import_module(_ROOM_OF[name]), name)
        return value
    raise AttributeError(f"module 'covector' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_PUBLIC})
