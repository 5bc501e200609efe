"""`jvp`: the value of a function, and J u for one u."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from covector._engine.compiled import eager_alone
from covector._linear import Linearized
from covector._tree import Evaluation
from covector.errors import StrictError
from covector.functional import _forward
from covector.functional._door import (
    Call,
    Tensors,
    check_reached,
    open_call,
    output_name,
    runner,
    vector,
)


@eager_alone
def jvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The value of `func` at the inputs, and J v.

    One run in forward mode where that gives the same as reverse mode; otherwise, and always with
    `create_graph` or `strict`, the graph of the pullback is pulled back.

    Args:
        func: takes the inputs, returns a tensor or a tuple of tensors.
        inputs: a tensor or a tuple of tensors.
        v: like `inputs`; may be left out if that is one real element, and is then 1.
        create_graph: whether both results can be differentiated; they are detached if not.
        strict: refuse an input that the output does not depend on, instead of giving zeros.

    Returns:
        `(output, product)`, both as `func` returns its output.

    Raises:
        ArgumentTypeError, ArgumentValueError: inputs or `v` cannot work.
        OutputError: `func` returned something other than a tensor or a tuple of tensors.
        StrictError: with `strict`, something does not depend on an input.

    Example:
        >>> import torch, covector
        >>> x, v = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0])
        >>> covector.functional.jvp(lambda x: x**2, x, v)
        (tensor([1., 4.]), tensor([ 2., 40.]))
    """
    call = open_call("jvp", func, inputs, create_graph=create_graph, strict=strict)
    with call.modes():
        direction = vector(call, "v", v, call.inputs, "input")
        pushed = _forward.push(call, direction)
        if pushed is not None:
            evaluation, images = pushed.evaluation, pushed.filled()
        else:
            evaluation, images = _through_pullback(call, direction)
        return call.like_outputs(evaluation, evaluation.outputs), call.like_outputs(evaluation, images)


def _through_pullback(call: Call, direction: Tensors) -> tuple[Evaluation, Tensors]:
    """J u as the derivative of v -> J^T v."""
    linear = Linearized(call.caller, runner(call), call.arguments(), call.scope())
    if call.strict:
        check_reached(call, linear.pulled(), "the Jacobian", "the output")
    images = linear.reach(direction, keep=False)
    if call.strict:
        _check_dependent(call, linear.evaluation, images)
    return linear.evaluation, linear.filled(images)


def _check_dependent(call: Call, evaluation: Evaluation, images: Sequence[Tensor | None]) -> None:
    """With `strict`, every output moves; and with `create_graph`, in a way that depends on the inputs."""
    for position, image in enumerate(images):
        name = output_name(evaluation, position)
        if image is None:
            raise StrictError(
                f"{call.caller}: {name} does not depend on the inputs; strict=True refuses that. Without "
                "strict its derivative is zero."
            )
        if call.create_graph and not image.requires_grad:
            raise StrictError(
                f"{call.caller}: the Jacobian of {name} does not depend on the inputs, so the product cannot "
                "be differentiated again; strict=True refuses that when create_graph=True."
            )
