"""`hvp` and `vhp`: the Hessian of a scalar function times a vector, without the Hessian."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._described import described_by
from covector._engine.compiled import eager_alone
from covector._engine.reverse import Recording
from covector.functional._door import check_reached, open_call, vector
from covector.functional._second import second_order


@eager_alone
def hvp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The value of `func` at the inputs, and H v, without the matrix.

    The function runs once; the graph of its gradient is pulled back once. A Hessian is symmetric, so
    `vhp` gives the same.

    Args:
        func: takes the inputs, returns a tensor with one real element.
        inputs: a tensor or a tuple of tensors.
        v: like `inputs`; may be left out if that is one real element, and is then 1.
        create_graph: whether both results can be differentiated; they are detached if not.
        strict: refuse what does not depend on an input, instead of giving zeros.

    Returns:
        `(output, product)`: `output` as `func` returns it, `product` like `inputs`.

    Raises:
        ArgumentTypeError, ArgumentValueError: inputs or `v` cannot work.
        OutputError: `func` returned something other than a tensor with one real element.
        StrictError: with `strict`, the output, the gradient or the Hessian does not depend on an input.
        UnsupportedError: a backward on the way has no derivative of its own.

    Example:
        >>> import torch, covector
        >>> x, v = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0])
        >>> covector.functional.hvp(lambda x: (x**3).sum(), x, v)
        (tensor(9.), tensor([  6., 120.]))
    """
    return _product("hvp", func, inputs, v, create_graph=create_graph, strict=strict)


@eager_alone
@described_by(hvp)
def vhp(
    func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The value of `func` at the inputs, and v^T H, without the matrix.

    H is symmetric, so that v^T H and H v, which `hvp` gives, are the same.

    Args:
        v: like `inputs`; may be left out if that is one real element, and is then 1.

    Returns:
        `(output, product)`: `output` as `func` returns it, `product` like `inputs`.

    Raises:
        ArgumentTypeError, ArgumentValueError, OutputError: the call, or the function, cannot work.
        StrictError, UnsupportedError: as `hvp`.

    Example:
        >>> import torch, covector
        >>> x, v = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0])
        >>> covector.functional.vhp(lambda x: (x**3).sum(), x, v)
        (tensor(9.), tensor([  6., 120.]))
    """
    return _product("vhp", func, inputs, v, create_graph=create_graph, strict=strict)


def _product(
    verb: str, func: Callable[..., Any], inputs: Any, v: Any, *, create_graph: bool, strict: bool
) -> tuple[Any, Any]:
    """The value, and v pulled back through the graph of the gradient."""
    call = open_call(verb, func, inputs, create_graph=create_graph, strict=strict)
    with call.modes():
        direction = vector(call, "v", v, call.inputs, "input")

        def product(recording: Recording) -> tuple[Any, Any]:
            pulled = recording.reach(direction, keep=False)
            if strict:
                check_reached(call, pulled, "the Hessian", "the gradient")
            (value,) = call.handed_over(recording.evaluation.aux)
            return value, call.like_inputs(recording.filled(pulled))

        return second_order(call, product)
