"""`jacobian` and `value_and_jacobian`: the Jacobian by the mode that suits it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._described import described_by
from covector._engine.compiled import eager_alone
from covector._tree import Argnames, Argnums
from covector.transforms._derive import planned
from covector.transforms._door import check_function
from covector.transforms._question import Request


@eager_alone
def jacobian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    argnames: Argnames = None,
    mode: str = "auto",
    chunk_size: int | None = None,
    max_memory: int | str | None = None,
    has_aux: bool = False,
    batch_dim: int | None = None,
    complex: str | None = None,
    randomness: str = "error",
    executor: Any = None,
    out: Any = None,
) -> Callable[..., Any]:
    """The Jacobian of a function, by the mode that suits its sizes.

    Reverse mode takes a pullback for each element of the output, forward mode a push for each element
    of the input. After a call the `plan` of the returned function says what was done and why. The
    function runs once or, where forward mode seems better or memory is limited, up to three times.

    Args:
        func: takes trees, returns a tree of tensors.
        argnums, argnames: which arguments to differentiate by; see `grad`.
        mode: "forward", "reverse", or "auto" to choose by the sizes, and by a short trial of both where
            these do not decide and there is much to do.
        chunk_size: how many rows or columns to compute at once; None for all, 1 for a loop.
        max_memory: how much memory may be used beside the result: bytes, or a string such as "500MB" or
            "2GiB". It decides on the mode and the chunks; a result that is itself larger is refused.
        has_aux: `func` returns `(output, aux)`; the result is then `(jacobian, aux)`.
        batch_dim: the axis along which samples lie in every input and output. Each sample's output may
            depend on that sample's input alone (which is checked); the result has the Jacobian of each
            sample, at the cost of one.
        complex: what the derivative of a complex function is. "holomorphic": dy/dz, after checking
            that the function is holomorphic. "wirtinger": the pair `(dz, dz_conj)` for each complex
            input. "real": the derivatives of `view_as_real(y)` by `view_as_real(z)`.
        randomness: what a random operation inside a batch does: "error", "same" or "different".
        executor: a `concurrent.futures.Executor`, such as a `ProcessPoolExecutor` or `client.get_executor()`
            of Dask, that computes blocks of `chunk_size` rows or columns, each with a run of the function;
            `max_memory` then holds for each worker. The result carries no graph.
        out: where the matrix is written, block by block, with a row for each element of the output and a
            column for each of the input: an array, or a path that ends in ".npy" or ".zarr", which is
            returned opened. A path continues where an earlier call with the same arguments was stopped.

    Returns:
        A function whose result is a tree like the output, in which each tensor y is replaced by a
        tree like the selected arguments, in which each tensor x is replaced by dy/dx, of shape
        `y.shape + x.shape`; with `batch_dim`, `(samples,) + sample of y + sample of x`; with
        `complex="real"`, with an axis of two behind each complex y and x.

    Raises:
        ArgumentTypeError, ArgumentValueError: the selection, or what it selects, cannot work.
        OutputError: `func` returned something that cannot be differentiated, or is not what
            `batch_dim` or `complex` say it is.
        BudgetError: the result, or the work for a single row or column, exceeds `max_memory`.
        SendError: the function, or what it captures, cannot be sent to the workers of `executor`.
        WorkerError: these were lost.
        ResumeError: the file at `out` was begun by another call, or is damaged.

    Example:
        >>> import torch, covector
        >>> def circle(t):
        ...     return torch.stack([t.cos(), t.sin()])
        >>> jacobian_fn = covector.jacobian(circle)
        >>> jacobian_fn(torch.tensor(0.0))
        tensor([0., 1.])
        >>> print(jacobian_fn.plan)
        reverse mode: 2 rows of 2 x 1, 2 at once, because 2 outputs are too few for forward mode to pay
    """
    caller = check_function("jacobian", func, argnums)
    request = (
        Request(argnums, argnames, has_aux, chunk_size, randomness, mode, max_memory, batch_dim, complex)
        .checked("jacobian")
        .working("jacobian", executor, out)
    )

    return planned(caller, request)


@eager_alone
@described_by(jacobian)
def value_and_jacobian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    argnames: Argnames = None,
    mode: str = "auto",
    chunk_size: int | None = None,
    max_memory: int | str | None = None,
    has_aux: bool = False,
    batch_dim: int | None = None,
    complex: str | None = None,
    randomness: str = "error",
    executor: Any = None,
) -> Callable[..., Any]:
    """The value of a function together with its Jacobian, from the same run.

    Args:
        has_aux: `func` returns `(output, aux)`; the result is then `(value, jacobian, aux)`.

    Returns:
        A function whose result is `(value, jacobian)`; the Jacobian is that of `jacobian`.

    Raises:
        ArgumentTypeError, ArgumentValueError, OutputError: as `jacobian`.
        BudgetError, SendError, WorkerError: as `jacobian`.

    Example:
        >>> import torch, covector
        >>> covector.value_and_jacobian(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        (tensor([1., 4.]), tensor([[2., 0.],
                [0., 4.]]))
    """
    caller = check_function("value_and_jacobian", func, argnums)
    request = (
        Request(argnums, argnames, has_aux, chunk_size, randomness, mode, max_memory, batch_dim, complex)
        .checked("value_and_jacobian")
        .working("value_and_jacobian", executor, None)
    )

    return planned(caller, request._replace(value=True))
