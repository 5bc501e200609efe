"""Derivatives of PyTorch programs, and proof that they are right."""

from covector import functional as functional
from covector.cases import case
from covector.compat import swap
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
from covector.verify.api import check, gradcheck, gradgradcheck
from covector.verify.report import Report
from covector.verify.sparse import as_sparse_gradcheck

__all__ = [
    "GradcheckError",
    "Report",
    "as_function",
    "as_sparse_gradcheck",
    "case",
    "check",
    "functionalize",
    "grad",
    "grad_and_value",
    "gradcheck",
    "gradgradcheck",
    "hessian",
    "hessian_blocks",
    "hessian_diagonal",
    "hvp",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "linearize",
    "swap",
    "value_and_jacobian",
    "vhp",
    "vjp",
]
