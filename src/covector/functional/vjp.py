"""`vjp`: the value of a function, and J^T v for one v."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._engine.compiled import eager_alone
from covector.functional._door import check_reached, open_call, record, runner, vector


@eager_alone
def vjp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The value of `func` at the inputs, and J^T v.

    Args:
        func: takes the inputs, returns a tensor or a tuple of tensors.
        inputs: a tensor or a tuple of tensors.
        v: like the output; may be left out if that has one real element, and is then 1.
        create_graph: whether both results can be differentiated; they are detached if not.
        strict: refuse an input that the output does not depend on, instead of giving zeros.

    Returns:
        `(output, product)`: `output` as `func` returns it, `product` like `inputs`.

    Raises:
        ArgumentTypeError, ArgumentValueError: inputs or `v` cannot work.
        OutputError: `func` returned something other than a tensor or a tuple of tensors.
        StrictError: with `strict`, something does not depend on an input.

    Example:
        >>> import torch, covector
        >>> x = torch.tensor([1.0, 2.0])
        >>> covector.functional.vjp(lambda x: x**2, x, torch.tensor([1.0, 10.0]))
        (tensor([1., 4.]), tensor([ 2., 40.]))
    """
    call = open_call("vjp", func, inputs, create_graph=create_graph, strict=strict)
    with call.modes():
        recording = record(call, runner(call))
        evaluation = recording.evaluation
        cotangents = vector(call, "v", v, evaluation.outputs, "output")
        pulled = recording.reach(cotangents, keep=False)
        if strict:
            check_reached(call, pulled, "the Jacobian", "the output")
        product = recording.filled(pulled)
        return call.like_outputs(evaluation, evaluation.outputs), call.like_inputs(product)
