"""`functionalize`: a function without mutations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from covector._engine.compiled import eager_alone, named_after, tracing
from covector._engine.levels import FunctionalLevel
from covector._tree import Arguments, flatten, unflatten
from covector.errors import ArgumentValueError
from covector.transforms._door import check_function

REMOVE = ("mutations", "mutations_and_views")


@eager_alone
def functionalize(func: Callable[..., Any], *, remove: str = "mutations") -> Callable[..., Any]:
    """The same function, computed without in-place operations.

    What `func` does to its arguments in place is still done to them, once, at the end. Traced with
    `make_fx`, the result is a graph without mutations.

    Args:
        func: takes trees, returns a tree.
        remove: "mutations", or "mutations_and_views" to replace views by copies as well.

    Returns:
        A function with the arguments and the result of `func`.

    Raises:
        ArgumentValueError: `remove` is another word.

    Example:
        >>> import torch, covector
        >>> def f(x):
        ...     y = x.clone()
        ...     y[0].add_(1)
        ...     return y
        >>> covector.functionalize(f)(torch.zeros(2))
        tensor([1., 0.])
    """
    check_function("functionalize", func)
    if remove not in REMOVE:
        raise ArgumentValueError(
            f"functionalize: remove must be {' or '.join(map(repr, REMOVE))}, got {remove!r}. The first "
            "replaces in-place operations, the second replaces views by copies as well."
        )

    def pure(*args: Any, **kwargs: Any) -> Any:
        return _without_mutations(func, args, kwargs, remove)

    return named_after(pure, like=func)


@eager_alone
def _without_mutations(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], remove: str
) -> Any:
    if tracing():
        return func(*args, **kwargs)  # the compiler takes mutations out itself
    arguments = Arguments(args, kwargs)
    with FunctionalLevel(keep_views=remove == "mutations") as level:
        wrapped = [level.wrap(x) if isinstance(x, Tensor) else x for x in arguments.leaves]
        inner_args, inner_kwargs = arguments.rebuild(wrapped)
        outputs, spec = flatten(func(*inner_args, **inner_kwargs))
        outputs = [level.unwrap(x) if isinstance(x, Tensor) else x for x in outputs]
        for original, stand_in in zip(arguments.leaves, wrapped, strict=True):
            if isinstance(original, Tensor):
                level.write_back(original, stand_in)
    return unflatten(outputs, spec)
