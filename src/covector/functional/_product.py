"""The product of a Hessian with one vector, by a second pass through the graph of the gradient.

For the Hessian of a function whose gradient is right, H v and v^T H are the same numbers, and the
second takes one pass less than a product from the right would by reverse mode alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._engine.reverse import Recording
from covector.functional._door import check_reached, open_call, vector
from covector.functional._gradient import second_order


def hessian_product(
    verb: str, func: Callable[..., Any], inputs: Any, v: Any, *, create_graph: bool, strict: bool
) -> tuple[Any, Any]:
    """The value of the function, and the product."""
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
