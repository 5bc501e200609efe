"""`jvp`: the value of a function and the derivative along one tangent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._engine.compiled import eager_alone
from covector._linear import Pushforward
from covector._tree import unflatten
from covector.errors import OutputError
from covector.transforms._door import accept_tensors, check_direction, check_function, output_paths, runner


@eager_alone
def jvp(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """The value of `func` at the primals, and J u for one tangent u.

    Where an operation has no forward-mode rule, the pullback is differentiated instead, with a
    `ForwardModeWarning` that names the operation.

    Args:
        func: takes the primals, returns a tree of tensors.
        primals: a tuple of trees of tensors.
        tangents: a tuple like `primals`.
        strict: refuse an output that does not depend on the primals, instead of giving zeros.
        has_aux: `func` returns `(output, aux)`, of which only `output` is differentiated.

    Returns:
        `(output, jvp_out)`, or `(output, jvp_out, aux)`; `jvp_out` is a tree like `output`.

    Raises:
        ArgumentTypeError, ArgumentValueError: primals and tangents do not fit each other.
        OutputError: `func` returned something other than tensors, or, with `strict`, an output that
            does not depend on the primals.

    Example:
        >>> import torch, covector
        >>> x, u = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0])
        >>> covector.jvp(lambda x: x**2, (x,), (u,))
        (tensor([1., 4.]), tensor([ 2., 40.]))
    """
    caller = check_function("jvp", func)
    arguments, direction = check_direction(caller, primals, tangents, "tangent")
    forward = Pushforward(caller, runner(caller, arguments, accept_tensors, has_aux=has_aux), arguments)
    images = forward.apply(direction)
    evaluation = forward.evaluation
    if strict and (independent := forward.independent()):
        raise OutputError(
            f"{caller}: {output_paths(evaluation)[independent[0]]} does not depend on the primals, "
            "which strict=True refuses. Without strict its derivative is zero."
        )
    result = (evaluation.value(), unflatten(images, evaluation.spec))
    return (*result, evaluation.aux_value()) if has_aux else result
