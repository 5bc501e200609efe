"""`hvp` and `vhp`: the Hessian of a scalar function times a vector, without the Hessian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._described import described_by
from covector._engine.compiled import eager_alone
from covector._tree import Evaluation
from covector.errors import Caller
from covector.transforms._door import check_direction, check_function
from covector.transforms._second import Gradient, auxiliary, reverse_first, value_of


@eager_alone
def hvp(func: Callable[..., Any], primals: Any, tangents: Any, *, has_aux: bool = False) -> tuple[Any, ...]:
    """The value of a scalar function at the primals, and H u for one tangent u.

    The function runs once; its gradient is recorded, and u is pulled back through that (H is
    symmetric), which costs about two gradients and never makes the matrix. Where an operation cannot
    be differentiated twice by reverse mode, the gradient is pushed forward along u instead.

    Args:
        func: takes the primals, returns one real tensor of shape ().
        primals: a tuple of trees of tensors; a module's parameters, for one (see `as_function`).
        tangents: a tuple like `primals`.
        has_aux: `func` returns `(scalar, aux)`.

    Returns:
        `(value, product)`, or `(value, product, aux)`; `product` is a tuple like `primals`.

    Raises:
        ArgumentTypeError, ArgumentValueError: primals and tangents do not fit each other.
        OutputError: `func` did not return a real scalar.

    Example:
        >>> import torch, covector
        >>> x, u = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0])
        >>> covector.hvp(lambda x: (x**3).sum(), (x,), (u,))
        (tensor(9.), (tensor([  6., 120.]),))
    """
    return _product(check_function("hvp", func), primals, tangents, "tangent", has_aux)


@eager_alone
@described_by(hvp)
def vhp(func: Callable[..., Any], primals: Any, cotangents: Any, *, has_aux: bool = False) -> tuple[Any, ...]:
    """The value of a scalar function at the primals, and v^T H for one cotangent v.

    H is symmetric, so that v^T H and H v, which `hvp` gives, are the same tuple.

    Args:
        cotangents: a tuple like `primals`.

    Returns:
        `(value, product)`, or `(value, product, aux)`; `product` is a tuple like `primals`.

    Raises:
        ArgumentTypeError, ArgumentValueError: primals and cotangents do not fit each other.
        OutputError: `func` did not return a real scalar.

    Example:
        >>> import torch, covector
        >>> x, v = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0])
        >>> covector.vhp(lambda x: (x**3).sum(), (x,), (v,))
        (tensor(9.), (tensor([  6., 120.]),))
    """
    return _product(check_function("vhp", func), primals, cotangents, "cotangent", has_aux)


def _product(caller: Caller, primals: Any, along: Any, kind: str, has_aux: bool) -> tuple[Any, ...]:
    arguments, direction = check_direction(caller, primals, along, kind)
    gradient = Gradient.of(caller, arguments, has_aux=has_aux)

    def by_reverse() -> tuple[list[Any], Evaluation]:
        pullback = gradient.pullback()
        return pullback.apply(direction, keep=False), pullback.evaluation

    def by_forward() -> tuple[list[Any], Evaluation]:
        forward = gradient.pushforward()
        return forward.apply(direction), forward.evaluation

    images, evaluation = reverse_first(by_reverse, by_forward)
    result = (value_of(evaluation), arguments.tree_of(images))
    return (*result, auxiliary(evaluation)) if has_aux else result
