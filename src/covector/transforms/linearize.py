"""`linearize`: the value of a function and its derivative there, as a map to be applied many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._engine.compiled import eager_alone, held
from covector._engine.scopes import LastingScope
from covector._engine.watch import always_recording
from covector._linear import Linearized
from covector._tree import flatten, select_all, unflatten
from covector.transforms._door import (
    accept_tensors,
    check_function,
    check_match,
    check_primals,
    runner,
)


@eager_alone
def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """The value of `func` at the primals, and the map u -> J u there.

    The function and its pullback run once, here; each application of the map only runs the part that
    is linear in the tangents. The function may branch on the values of its tensors, and the map may
    be applied under `torch.vmap`. As `jvp`, it does not obey a `torch.no_grad()` inside the function.

    Args:
        func: takes the primals, returns a tree of tensors.
        primals: trees of tensors.

    Returns:
        `(output, jvp_fn)`; `jvp_fn(*tangents)` takes a tree like each primal and returns one like
        `output`.

    Raises:
        ArgumentTypeError: a primal holds something that cannot be differentiated by.
        ArgumentValueError: (from `jvp_fn`) the tangents do not fit the primals.
        OutputError: `func` returned something other than tensors.

    Example:
        >>> import torch, covector
        >>> x = torch.tensor([1.0, 2.0])
        >>> output, jvp_fn = covector.linearize(lambda x: x**2 if x.sum() > 0 else -x, x)
        >>> jvp_fn(torch.tensor([1.0, 10.0]))
        tensor([ 2., 40.])
    """
    caller = check_function("linearize", func)
    arguments = check_primals(caller, select_all(primals))
    run = always_recording(runner(caller, arguments, accept_tensors, has_aux=False))
    linear = Linearized(caller, run, arguments, LastingScope)
    like = arguments.primals()
    structure = flatten(primals)[1]
    spec = linear.evaluation.spec

    def jvp_fn(*tangents: Any) -> Any:
        direction = check_match(caller, "tangent", tangents, like, structure, lambda: arguments.paths(func))
        return unflatten(linear.apply(direction), spec)

    return linear.evaluation.value(), held(jvp_fn)
