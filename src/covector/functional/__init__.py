"""The verbs of `torch.autograd.functional`, on covector's engine."""

from covector.functional.hessian import hessian
from covector.functional.hvp import hvp, vhp
from covector.functional.jacobian import jacobian
from covector.functional.jvp import jvp
from covector.functional.vjp import vjp

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]
