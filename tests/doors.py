"""Every public function, and how a program calls it and uses what it gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as registry

import covector
from covector import compat, functional
from covector import scipy as covector_scipy

Directions = Callable[[Any], Any]
"""Makes tangents or cotangents that are like a tree."""


class Call(NamedTuple):
    """One call of a door: the function, its inputs, the keywords, and what makes directions."""

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    directions: Directions


def ones(tree: Any) -> Any:
    """Directions of ones."""
    return registry.tree_map_only(Tensor, lambda t: torch.ones(t.shape, dtype=t.dtype), tree)


def _transform(verb: Callable[..., Any], call: Call) -> Any:
    return verb(call.function, **call.keywords)(*call.inputs)


def _vjp(call: Call) -> Any:
    result = covector.vjp(call.function, *call.inputs, **call.keywords)
    return result[0], result[1](call.directions(result[0]))


def _linearize(call: Call) -> Any:
    value, push = covector.linearize(call.function, *call.inputs, **call.keywords)
    tangents = call.directions(call.inputs)
    return value, push(*tangents) if isinstance(tangents, tuple | list) else push(tangents)


def _product(verb: Callable[..., Any], call: Call) -> Any:
    return verb(call.function, call.inputs, call.directions(call.inputs), **call.keywords)


def _functional(verb: Callable[..., Any], call: Call) -> Any:
    keywords = dict(call.keywords)
    if verb.__name__ in ("jvp", "hvp", "vhp"):
        keywords["v"] = call.directions(call.inputs)
    return verb(call.function, call.inputs, **keywords)


def _check(verb: Callable[..., Any], call: Call) -> Any:
    found = verb(call.function, call.inputs, **call.keywords)
    return _shown(found) if isinstance(found, covector.Report) else found


def _agree(call: Call) -> Any:
    # Without those that compile, which takes seconds.
    keywords = {"modes": ("eager", "reverse", "forward", "vmapped"), **call.keywords}
    return _shown(covector.agree(call.function, call.inputs, **keywords))


def _shown(report: covector.Report) -> Any:
    return bool(report), str(report), report.to_json(), report._repr_html_()


def _sparse_gradcheck(call: Call) -> Any:
    return covector.as_sparse_gradcheck(covector.gradcheck)(call.function, call.inputs, **call.keywords)


def _kernel(verb: Callable[..., Any], call: Call) -> Any:
    found = verb(call.function, call.function, call.inputs, **call.keywords)
    return _shown(found) if isinstance(found, covector.Report) else found


def _adjoint(call: Call) -> Any:
    x = call.inputs[0]
    return _shown(covector.check_adjoint(call.function, call.function, x, x, **call.keywords))


def _plan(verb: Callable[..., Any], call: Call) -> Any:
    plan = verb(call.function, *call.inputs, **call.keywords)
    return str(plan), plan(*call.inputs), plan.values(*call.inputs)


def _pattern(call: Call) -> Any:
    return str(covector.sparsity(call.function, *call.inputs, **call.keywords))


def _check_pattern(call: Call) -> Any:
    plan = covector.jacobian_plan(call.function, *call.inputs, verify=False)
    return str(covector.check_pattern(plan, *call.inputs, **call.keywords))


def _pattern_of(call: Call) -> Any:
    return str(covector.SparsityPattern.of(call.inputs[0]))


def _compile(call: Call) -> Any:
    compiled = covector.compile(call.function, **{"backend": "replay", **call.keywords})
    return compiled(*call.inputs), compiled(*call.inputs)


def _module(call: Call) -> Any:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, *args: Any) -> Any:
            return call.function(*args, self.weight)

    function, parameters = covector.as_function(Module(), **call.keywords)
    return function(parameters, *call.inputs)


def _case(call: Call) -> Any:
    from covector import cases

    before = len(cases._registered)
    try:
        covector.case(*call.inputs, **call.keywords)(call.function)
        return [one.name for one in cases._registered[before:]]
    finally:
        del cases._registered[before:]


def _swap(call: Call) -> Any:
    with covector.swap():
        return torch.func.grad(call.function)(*call.inputs)


def _operator(make: Callable[..., Any], call: Call) -> Any:
    operator = make(call.function, *call.inputs)
    return operator @ _vector(operator.shape[1]), operator.T @ _vector(operator.shape[0])


def _vector(size: int) -> Any:
    return torch.ones(size, dtype=torch.float64).numpy()


def _objective(call: Call) -> Any:
    problem = covector_scipy.objective(call.function, *call.inputs)
    x = problem.x0
    return problem.fun(x), problem.jac(x), problem.hessp(x, x), problem.hess(x)


def _residuals(call: Call) -> Any:
    problem = covector_scipy.residuals(call.function, *call.inputs)
    return problem.fun(problem.x0), problem.jac(problem.x0)


def _value(call: Call) -> Any:
    """What the function returns to a program that calls it, and keeps its own grad mode."""
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        return call.function(*call.inputs)


def _analytical(call: Call) -> Any:
    return compat.get_analytical_jacobian(call.inputs, _value(call), **call.keywords)


def _numerical(call: Call) -> Any:
    return compat.get_numerical_jacobian(call.function, call.inputs, **call.keywords)


def _numerical_of_one(call: Call) -> Any:
    outputs = registry.tree_leaves(_value(call))
    eps = call.keywords.get("eps", 1e-6)
    return compat.get_numerical_jacobian_wrt_specific_input(call.function, 0, call.inputs, outputs, eps)


class Door(NamedTuple):
    """A public function, and a call of it."""

    verb: Callable[..., Any]
    use: Callable[[Call], Any]


def _doors(verbs: Any, use: Callable[..., Any]) -> dict[str, Door]:
    """Doors that are used alike, by the name that a program knows them by."""
    return {
        f"{'functional.' if verb.__module__.startswith('covector.functional') else ''}{verb.__name__}": Door(
            verb, partial(use, verb)
        )
        for verb in verbs
    }


TRANSFORMS = {
    **_doors(
        (
            covector.grad,
            covector.grad_and_value,
            covector.jacrev,
            covector.jacfwd,
            covector.jacobian,
            covector.value_and_jacobian,
            covector.hessian,
            covector.hessian_blocks,
            covector.hessian_diagonal,
            covector.functionalize,
            covector.sparse_jacobian,
            covector.sparse_hessian,
        ),
        _transform,
    ),
    **_doors((covector.jvp, covector.hvp, covector.vhp), _product),
    "vjp": Door(covector.vjp, _vjp),
    "linearize": Door(covector.linearize, _linearize),
    "compile": Door(covector.compile, _compile),
    "as_function": Door(covector.as_function, _module),
    **_doors([getattr(functional, name) for name in functional.__all__], _functional),
    "swap": Door(covector.swap, _swap),
    "scipy.jacobian_operator": Door(
        covector_scipy.jacobian_operator, partial(_operator, covector_scipy.jacobian_operator)
    ),
    "scipy.hessian_operator": Door(
        covector_scipy.hessian_operator, partial(_operator, covector_scipy.hessian_operator)
    ),
    "scipy.objective": Door(covector_scipy.objective, _objective),
    "scipy.residuals": Door(covector_scipy.residuals, _residuals),
    **_doors((covector.jacobian_plan, covector.hessian_plan), _plan),
    "sparsity": Door(covector.jacobian_plan, _pattern),
    "check_pattern": Door(covector.check_pattern, _check_pattern),
    "SparsityPattern": Door(covector.SparsityPattern, _pattern_of),
}
CHECKS = {
    **_doors((covector.check, covector.gradcheck, covector.gradgradcheck), _check),
    "agree": Door(covector.agree, _agree),
    **_doors((covector.check_kernel, covector.kernelcheck), _kernel),
    "as_sparse_gradcheck": Door(covector.gradcheck, _sparse_gradcheck),
    "check_adjoint": Door(covector.check_adjoint, _adjoint),
    "case": Door(covector.case, _case),
    "compat.get_analytical_jacobian": Door(compat.get_analytical_jacobian, _analytical),
    "compat.get_numerical_jacobian": Door(compat.get_numerical_jacobian, _numerical),
    "compat.get_numerical_jacobian_wrt_specific_input": Door(
        compat.get_numerical_jacobian_wrt_specific_input, _numerical_of_one
    ),
}
DOORS = {**TRANSFORMS, **CHECKS}

# Classes that a program meets but does not call.
NOT_CALLED = {"GradcheckError", "Report", "scipy.Objective", "scipy.Residuals", "compat.swap"}


# --- ordinary calls


def cubes(*inputs: torch.Tensor) -> torch.Tensor:
    return sum((x**3).sum() for x in inputs)


def waves(*inputs: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.sin() * x for x in inputs])


SCALAR = {
    "grad",
    "grad_and_value",
    "hessian",
    "hessian_blocks",
    "hessian_diagonal",
    "hvp",
    "vhp",
    "functional.hessian",
    "functional.hvp",
    "functional.vjp",
    "functional.vhp",
    "sparse_hessian",
    "hessian_plan",
    "swap",
    "scipy.objective",
    "scipy.hessian_operator",
}
LINEAR = {"check_adjoint"}


def suited(name: str) -> Callable[..., Any]:
    """A function of the kind that a door takes."""
    if name == "compat.get_numerical_jacobian":
        return lambda inputs: waves(*inputs)
    return cubes if name in SCALAR else torch.neg if name in LINEAR else waves


def used(name: str, function: Callable[..., Any], x: Tensor) -> Any:
    """What a door gives for a function of its kind at a vector."""
    inputs = (x.detach().diag(),) if name == "SparsityPattern" else (x,)
    return DOORS[name].use(Call(function, inputs, {}, ones))
