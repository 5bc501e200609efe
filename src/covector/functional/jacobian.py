"""`jacobian`: the whole Jacobian of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from covector._engine.compiled import eager_alone
from covector._tree import Evaluation
from covector.errors import NoGraphWarning, OutputError, warn
from covector.functional._door import (
    Call,
    accept_dense,
    check_dense_inputs,
    one_output,
    open_call,
    output_name,
    record,
    runner,
)
from covector.functional._matrix import arranged, by_columns, by_rows, check_strategy


@eager_alone
def jacobian(
    func: Callable[..., Any],
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian of a function: dy/dx for each output y and each input x.

    Args:
        func: takes the inputs, returns a tensor or a tuple of tensors.
        inputs: a tensor or a tuple of tensors.
        create_graph: whether the result can be differentiated; it is detached if not.
        strict: refuse an output that does not depend on an input, instead of giving zeros.
        vectorize: accepted as in torch. Rows are computed in batches either way, and one by one where an
            operation cannot be batched. With True all outputs go in one batch.
        strategy: "reverse-mode", or "forward-mode" (with `vectorize=True`; neither `strict` nor
            `create_graph`), which is faster for more outputs than inputs.

    Returns:
        A tensor of shape `y.shape + x.shape`; a tuple of them if either side is a tuple; a tuple (by
        output) of tuples (by input) if both are.

    Raises:
        ArgumentTypeError: the inputs cannot work.
        OutputError: `func` returned something other than a tensor or a tuple of tensors, or a complex
            one in reverse mode.
        OptionError, ExclusiveOptionsError: an unknown strategy; options that exclude each other.
        StrictError: with `strict`, an output does not depend on an input.

    Example:
        >>> import torch, covector
        >>> covector.functional.jacobian(lambda x: x**2, torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    check_strategy("jacobian", "strategy", strategy, vectorize=vectorize, strict=strict, graph=create_graph)
    if strategy == "forward-mode":
        call = open_call("jacobian", func, inputs)
        check_dense_inputs(call)
        evaluation, blocks = by_columns(call, runner(call, accept_dense))
        return arranged(call, blocks, one_row=one_output(evaluation))
    call = open_call("jacobian", func, inputs, create_graph=create_graph, strict=strict)
    check_dense_inputs(call)
    with call.modes():
        recording = record(call, runner(call, _accept_real))
        _warn_without_graph(call, recording.outputs)
        evaluation = recording.evaluation
        blocks = by_rows(
            call,
            recording,
            together=vectorize,
            derivative="the Jacobian",
            name=lambda i: output_name(evaluation, i),
        )
        return arranged(call, blocks, one_row=one_output(evaluation))


def _warn_without_graph(call: Call, outputs: Sequence[Tensor]) -> None:
    """Zeros are what torch gives; of numbers that are not integers they are seldom what was meant."""
    could = [output for output in outputs if output.is_floating_point() or output.is_complex()]
    if could and not any(output.requires_grad for output in could):
        warn(
            f"{call.caller}: no output has a graph, so the Jacobian is zero. The function does not use its "
            "input, or takes it out of the graph: look for detach(), .data, .item(), torch.tensor(...) or "
            "no_grad. strict=True refuses such a function.",
            NoGraphWarning,
        )


def _accept_real(call: Call, evaluation: Evaluation) -> None:
    """A row belongs to one real number, so no output may be complex."""
    for position, output in enumerate(evaluation.outputs):
        if output.is_complex():
            raise OutputError(
                f"{call.caller}: {output_name(evaluation, position)} is complex ({output.dtype}), and "
                "reverse mode has no single row for a complex number. Return torch.view_as_real(...) of it; "
                "or pass vectorize=True, strategy='forward-mode', which differentiates holomorphic functions."
            )
