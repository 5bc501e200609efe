"""The doors: sparse derivatives at a point, plans for many points, and the pattern alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covector._described import described_by
from covector._engine.compiled import outside_graphs
from covector._tree import Argnames, Argnums
from covector.sparsity.derivative import Hessian, Jacobian
from covector.sparsity.detect import detect
from covector.sparsity.making import Options, loading, planned, remembering
from covector.sparsity.pattern import SparsityPattern
from covector.sparsity.plan import Selection, SparsePlan
from covector.transforms._door import check_function


@outside_graphs
def jacobian_plan(
    func: Callable[..., Any],
    *args: Any,
    argnums: Argnums = 0,
    argnames: Argnames = None,
    mode: str = "auto",
    layout: str = "coo",
    pattern: Any = None,
    local: bool = False,
    chunk_size: int | None = None,
    verify: bool = True,
    **kwargs: Any,
) -> SparsePlan:
    """What it takes to compute a sparse Jacobian at any point: its pattern, found once, and a colouring of
    it.

    The function is run once to find which entries of the Jacobian can be different from zero, at this point
    or at any other; rows or columns that have no entry in common are then computed together. A Jacobian of
    10,000 x 10,000 with three entries in a row takes three products instead of ten thousand.

    Args:
        func: takes trees, returns a tree of real tensors.
        args, kwargs: arguments like those that the plan will be used with; of tensors, only sizes and dtypes
            count.
        argnums, argnames: which arguments to differentiate by; see `grad`.
        mode: "forward" (groups of columns), "reverse" (groups of rows), or "auto" for what is cheaper, which
            may be both.
        layout: of the results: "coo", "csr", "csc", or "scipy" for a `scipy.sparse.csr_array`.
        pattern: a matrix (torch, SciPy, NumPy, `SparsityPattern`) that is not zero where the Jacobian may be;
            None to detect it.
        local: find the pattern of the path that the function takes here, if it branches on numbers. It is
            checked against products at every point.
        chunk_size: how many products to compute at once; None for all.
        verify: compare with products of the derivative, here and at a point nearby.

    Returns:
        A `SparsePlan`. `plan(x)` is the Jacobian: a matrix with a row for each element of the output and a
        column for each element of the input, in order; of trees, a tree of such blocks.
        `plan.value_and_jacobian(x)`, `plan.values(x)`, `plan.to_scipy(x)`, `plan.pattern`, `plan.coloring`,
        `plan.mode`, `plan.save(path)`; `jacobian_plan.load(path, func, *args)` reads it.

    Raises:
        DataDependenceError: `func` branches on numbers.
        PatternError: the pattern lacks entries.
        ArgumentTypeError, ArgumentValueError: the selection, or what it selects, cannot work.

    Example:
        >>> import torch, covector
        >>> def burgers(u):
        ...     left, right = u.roll(1), u.roll(-1)
        ...     return u * (left - right) + (left - 2 * u + right)
        >>> plan = covector.jacobian_plan(burgers, torch.ones(1000, dtype=torch.float64))
        >>> plan
        jacobian_plan(burgers): 1000 x 1000, 3000 nonzeros (0.3 %), 4 colors, reverse mode
        >>> plan(torch.rand(1000, dtype=torch.float64)).shape
        torch.Size([1000, 1000])
    """
    options = Options(Selection(argnums, argnames, layout), mode, pattern, local, chunk_size, verify)
    return planned(Jacobian, "jacobian_plan", func, options, args, kwargs)


@outside_graphs
@described_by(jacobian_plan)
def hessian_plan(
    func: Callable[..., Any],
    *args: Any,
    argnums: Argnums = 0,
    argnames: Argnames = None,
    layout: str = "coo",
    pattern: Any = None,
    local: bool = False,
    chunk_size: int | None = None,
    verify: bool = True,
    **kwargs: Any,
) -> SparsePlan:
    """What it takes to compute a sparse Hessian at any point: its pattern, found once, and a star colouring
    of it.

    A Hessian is symmetric, so that an entry has to be read off once for both triangles; often this needs
    fewer products than there are entries in a row.

    Args:
        func: takes trees, returns one real scalar.
        pattern: a matrix (torch, SciPy, NumPy, `SparsityPattern`) that is not zero where the Hessian may be;
            None to detect it.

    Returns:
        A `SparsePlan`, as `jacobian_plan` does; `plan(x)` is the Hessian.

    Raises:
        DataDependenceError, PatternError, ArgumentTypeError, ArgumentValueError: as `jacobian_plan`.
        OutputError: `func` did not return a real scalar.

    Example:
        >>> import torch, covector
        >>> def rosenbrock(x):
        ...     return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
        >>> covector.hessian_plan(rosenbrock, torch.ones(1000, dtype=torch.float64))
        hessian_plan(rosenbrock): 1000 x 1000, 2998 nonzeros (0.3 %), 3 colors, reverse mode
    """
    options = Options(Selection(argnums, argnames, layout), "auto", pattern, local, chunk_size, verify)
    return planned(Hessian, "hessian_plan", func, options, args, kwargs)


@outside_graphs
@described_by(jacobian_plan)
def sparse_jacobian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    argnames: Argnames = None,
    mode: str = "auto",
    layout: str = "coo",
    pattern: Any = None,
    local: bool = False,
    chunk_size: int | None = None,
    verify: bool = True,
    executor: Any = None,
) -> Callable[..., Any]:
    """The Jacobian of a function as a sparse matrix.

    At the first call the pattern is detected and coloured; later calls with arguments of the same structure
    use the plan again, which is there as `plan`.

    Args:
        executor: a `concurrent.futures.Executor` by which the products are computed; see
            `SparsePlan.with_executor`.

    Returns:
        A function whose result is a sparse matrix with a row for each element of the output and a column for
        each element of the input; of trees, a tree of such blocks.

    Example:
        >>> import torch, covector
        >>> jacobian = covector.sparse_jacobian(lambda x: x[1:] * x[:-1])
        >>> jacobian(torch.tensor([1.0, 2.0, 3.0])).to_dense()
        tensor([[2., 1., 0.],
                [0., 3., 2.]])
    """
    options = Options(Selection(argnums, argnames, layout), mode, pattern, local, chunk_size, verify)
    return remembering(Jacobian, "sparse_jacobian", func, options, executor)


@outside_graphs
@described_by(hessian_plan)
def sparse_hessian(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    argnames: Argnames = None,
    layout: str = "coo",
    pattern: Any = None,
    local: bool = False,
    chunk_size: int | None = None,
    verify: bool = True,
    executor: Any = None,
) -> Callable[..., Any]:
    """The Hessian of a scalar function as a sparse matrix.

    At the first call the pattern is detected and coloured; later calls with arguments of the same structure
    use the plan again, which is there as `plan`.

    Args:
        executor: a `concurrent.futures.Executor` by which the products are computed; see
            `SparsePlan.with_executor`.

    Returns:
        A function whose result is a sparse matrix with a row and a column for each element of the input; of
        trees, a tree of such blocks.

    Example:
        >>> import torch, covector
        >>> hessian = covector.sparse_hessian(lambda x: (x[1:] * x[:-1] ** 2).sum())
        >>> hessian(torch.tensor([1.0, 2.0, 3.0])).to_dense()
        tensor([[4., 2., 0.],
                [2., 6., 4.],
                [0., 4., 0.]])
    """
    options = Options(Selection(argnums, argnames, layout), "auto", pattern, local, chunk_size, verify)
    return remembering(Hessian, "sparse_hessian", func, options, executor)


@outside_graphs
def sparsity(
    func: Callable[..., Any],
    *args: Any,
    argnums: Argnums = 0,
    argnames: Argnames = None,
    local: bool = False,
    **kwargs: Any,
) -> SparsityPattern:
    """Which entries of the Jacobian of a function can be different from zero, at any point.

    Args:
        func: takes trees, returns a tree of real tensors.
        args, kwargs: arguments of `func`; of tensors, only sizes and dtypes count.
        argnums, argnames: which arguments to differentiate by; see `grad`.
        local: the pattern of the path that the function takes here, if it branches on numbers.

    Returns:
        A `SparsityPattern`: never an entry too few. It prints as a picture; `plot` draws it.

    Raises:
        DataDependenceError: `func` branches on numbers.

    Example:
        >>> import torch, covector
        >>> print(covector.sparsity(lambda x: x.cumsum(0)[1:], torch.ones(4)))
        SparsityPattern: 3 x 4, 9 nonzeros (75 %)
        ● ● · ·
        ● ● ● ·
        ● ● ● ●
    """
    caller = check_function("sparsity", func)
    arguments = Selection(argnums, argnames, "coo").bind(caller, args, kwargs)
    return detect(caller, Jacobian(caller).run(arguments), arguments, local=local).pattern


jacobian_plan.load = loading(Jacobian, "jacobian_plan")  # type: ignore[attr-defined]
hessian_plan.load = loading(Hessian, "hessian_plan")  # type: ignore[attr-defined]
