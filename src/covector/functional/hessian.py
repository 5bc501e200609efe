"""`hessian`: the whole Hessian of a scalar function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._engine.compiled import eager_alone
from covector._engine.reverse import Recording
from covector.functional._door import check_dense_inputs, check_real_inputs, open_call
from covector.functional._matrix import arranged, by_columns, by_rows, check_strategy
from covector.functional._second import gradient, second_order


@eager_alone
def hessian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The Hessian of a scalar function: the Jacobian of its gradient.

    Args:
        func: takes the inputs, returns a tensor with one real element.
        inputs: a tensor or a tuple of tensors.
        create_graph: whether the result can be differentiated; it is detached if not.
        strict: refuse what does not depend on an input, instead of giving zeros.
        vectorize: accepted as in torch; see `jacobian`.
        outer_jacobian_strategy: "reverse-mode", or "forward-mode" (with `vectorize=True`; neither
            `strict` nor `create_graph`): how the gradient is differentiated.

    Returns:
        A tensor of shape `x.shape + x.shape`; for a tuple of inputs a tuple of tuples, in which
        `result[i][j]` has the shape `x_i.shape + x_j.shape`.

    Raises:
        ArgumentTypeError: the inputs cannot work.
        OutputError: `func` returned something other than a tensor with one real element.
        OptionError, ExclusiveOptionsError: an unknown strategy; options that exclude each other.
        StrictError: with `strict`, the output, the gradient or the Hessian does not depend on an input.
        UnsupportedError: a backward on the way has no derivative of its own.

    Example:
        >>> import torch, covector
        >>> covector.functional.hessian(lambda x: x[0] ** 2 * x[1], torch.tensor([1.0, 2.0]))
        tensor([[4., 2.],
                [2., 0.]])
    """
    check_strategy(
        "hessian", "outer_jacobian_strategy", outer_jacobian_strategy,
        vectorize=vectorize, strict=strict, graph=create_graph,
    )  # fmt: skip
    call = open_call("hessian", func, inputs, create_graph=create_graph, strict=strict)
    check_real_inputs(call)
    check_dense_inputs(call)
    if outer_jacobian_strategy == "forward-mode":
        _, blocks = by_columns(call, gradient(call).run)
        return arranged(call, blocks, one_row=call.one_input)

    def second_derivative(recording: Recording) -> Any:
        blocks = by_rows(
            call,
            recording,
            together=vectorize,
            derivative="the Hessian",
            name=lambda i: f"the gradient with respect to inputs[{i}]",
        )
        return arranged(call, blocks, one_row=call.one_input)

    with call.modes():
        return second_order(call, second_derivative)
