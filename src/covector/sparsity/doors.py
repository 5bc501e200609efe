"""The doors: sparse derivatives at a point, plans for many points, and the pattern alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from covector._chart import Chart
from covector._engine.compiled import outside_graphs
from covector._engine.memory import give_back
from covector._tree import Argnames, Argnums, Arguments
from covector.errors import ArgumentValueError, Caller, PatternError
from covector.sparsity.assembly import check_layout
from covector.sparsity.checking import require
from covector.sparsity.coloring import Coloring, best, color
from covector.sparsity.derivative import Derivative, Hessian, Jacobian
from covector.sparsity.detect import Detected, detect
from covector.sparsity.pattern import SparsityPattern
from covector.sparsity.plan import Selection, SparsePlan, mode_of
from covector.sparsity.saving import Saved, read
from covector.sparsity.structure import Structure
from covector.transforms._door import check_batching, check_function
from covector.transforms._plan import check_mode


class _Options(NamedTuple):
    """How a plan is to be made."""

    selection: Selection
    mode: str
    pattern: Any
    local: bool
    chunk_size: int | None
    verify: bool

    def checked(self, verb: str) -> _Options:
        check_mode(verb, self.mode)
        check_layout(verb, self.selection.layout)
        check_batching(verb, self.chunk_size, "error")
        return self


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
        count. argnums, argnames: which arguments to differentiate by; see `grad`.
        mode: "forward" (groups of columns), "reverse" (groups of rows), or "auto" for what is cheaper, which
        may be
            both.
        layout: of the results: "coo", "csr", "csc", or "scipy" for a `scipy.sparse.csr_array`.
        pattern: a matrix (torch, SciPy, NumPy, `SparsityPattern`) that is not zero where the Jacobian may
        be; None to
            detect it.
        local: find the pattern of the path that the function takes here, if it branches on numbers. It is
        checked
            against products at every point.
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
    options = _Options(Selection(argnums, argnames, layout), mode, pattern, local, chunk_size, verify)
    caller = check_function("jacobian_plan", func)
    return _planned(Jacobian(caller), options.checked("jacobian_plan"), args, kwargs)


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

    Takes what `jacobian_plan` takes; `func` returns one real scalar. A Hessian is symmetric, so that an
    entry has to be read off once for both triangles; often this needs fewer products than there are entries
    in a row.

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
    options = _Options(Selection(argnums, argnames, layout), "auto", pattern, local, chunk_size, verify)
    caller = check_function("hessian_plan", func)
    return _planned(Hessian(caller), options.checked("hessian_plan"), args, kwargs)


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
) -> Callable[..., Any]:
    """The Jacobian of a function as a sparse matrix.

    At the first call the pattern is detected and coloured; later calls with arguments of the same structure
    use the plan again, which is there as `plan`. Takes what `jacobian_plan` takes.

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
    options = _Options(Selection(argnums, argnames, layout), mode, pattern, local, chunk_size, verify)
    derivative = Jacobian(check_function("sparse_jacobian", func))
    return _remembering(derivative, options.checked("sparse_jacobian"), func)


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
) -> Callable[..., Any]:
    """The Hessian of a scalar function as a sparse matrix.

    At the first call the pattern is detected and coloured; later calls with arguments of the same structure
    use the plan again, which is there as `plan`. Takes what `hessian_plan` takes.

    Example:
        >>> import torch, covector
        >>> hessian = covector.sparse_hessian(lambda x: (x[1:] * x[:-1] ** 2).sum())
        >>> hessian(torch.tensor([1.0, 2.0, 3.0])).to_dense()
        tensor([[4., 2., 0.],
                [2., 6., 4.],
                [0., 4., 0.]])
    """
    options = _Options(Selection(argnums, argnames, layout), "auto", pattern, local, chunk_size, verify)
    derivative = Hessian(check_function("sparse_hessian", func))
    return _remembering(derivative, options.checked("sparse_hessian"), func)


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


def _remembering(derivative: Derivative, options: _Options, func: Any) -> Callable[..., Any]:
    """A function that makes a plan for each structure of arguments that it meets."""
    plans: dict[Structure, SparsePlan] = {}

    def sparse_fn(*args: Any, **kwargs: Any) -> Any:
        arguments = options.selection.bind(derivative.caller, args, kwargs)
        structure = Structure.of(arguments, derivative.caller.function)
        plan = plans.get(structure)
        if plan is None:
            plan = plans[structure] = _planned(derivative, options, args, kwargs)
        sparse_fn.plan = plan  # type: ignore[attr-defined]
        return plan(*args, **kwargs)

    sparse_fn.plan = None  # type: ignore[attr-defined]
    return outside_graphs(sparse_fn, like=func)


def _planned(
    derivative: Derivative, options: _Options, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SparsePlan:
    """The first of the plans that may do which is right; the last one has to be."""
    arguments = options.selection.bind(derivative.caller, args, kwargs)
    found = _pattern(derivative, options, arguments)
    give_back()
    *earlier, (last, last_reason) = _colorings(derivative, found.pattern, options.mode)
    for coloring, reason in earlier if options.verify else ():
        plan = _made(derivative, options, arguments, found, coloring(), reason)
        try:
            _verify(plan, options, arguments)
        except PatternError:
            continue
        return plan
    first, first_reason = earlier[0] if earlier and not options.verify else (last, last_reason)
    plan = _made(derivative, options, arguments, found, first(), first_reason)
    if options.verify:
        _verify(plan, options, arguments)
    return plan


def _verify(plan: SparsePlan, options: _Options, arguments: Arguments) -> None:
    """Compare with products, here and nearby; a path that was taken here may end before the point nearby."""
    require(plan, arguments, None, points=1 if options.local else 2)


def _pattern(derivative: Derivative, options: _Options, arguments: Arguments) -> Detected:
    """The pattern, detected or the caller's own."""
    caller, run = derivative.caller, derivative.run(arguments)
    if options.pattern is None:
        found = detect(caller, run, arguments, local=options.local)
        if derivative.symmetric:
            found = found.with_pattern(found.pattern | found.pattern.T)
        return found
    found = Detected.given(SparsityPattern.of(options.pattern), run, arguments)
    outputs, inputs = Chart.of(found.evaluation.outputs).size, Chart.of(arguments.primals()).size
    if found.pattern.shape != (outputs, inputs):
        raise ArgumentValueError(
            f"{caller}: the pattern must be {outputs} x {inputs} (elements of the output, elements of the "
            "input), got "
            f"{found.pattern.shape[0]} x {found.pattern.shape[1]}."
        )
    return found.with_pattern(found.pattern | found.pattern.T) if derivative.symmetric else found


def _colorings(
    derivative: Derivative, pattern: SparsityPattern, mode: str
) -> list[tuple[Callable[[], Coloring], str]]:
    """The colouring to use, and what to go back to if the matrix is not what it should be."""
    if derivative.symmetric:
        return [
            (lambda: color(pattern, "star"), "a Hessian is symmetric"),
            (lambda: color(pattern, "row"), "the second derivative of this function is not symmetric"),
        ]
    reason = "it takes the cheapest products" if mode == "auto" else f"mode={mode!r}"
    return [(lambda: best(pattern, mode), reason)]


def _made(
    derivative: Derivative,
    options: _Options,
    arguments: Arguments,
    found: Detected,
    coloring: Coloring,
    reason: str,
) -> SparsePlan:
    give_back()  # what detection and colouring took is not held beside what evaluation takes
    inputs, outputs = Chart.of(arguments.primals()), Chart.of(found.evaluation.outputs)
    return SparsePlan(
        "reverse" if derivative.symmetric else mode_of(coloring),
        outputs.size,
        inputs.size,
        options.chunk_size or max(coloring.products, 1),
        reason,
        derivative=derivative,
        selection=options.selection,
        structure=Structure.of(arguments, derivative.caller.function),
        pattern=found.pattern,
        coloring=coloring,
        charts=(inputs, outputs),
        output_spec=found.evaluation.spec,
        local=options.local,
        fallbacks=found.fallbacks,
        _example=arguments.at([None if isinstance(leaf, Tensor) else leaf for leaf in arguments.leaves]),
    )


def _loading(make: Callable[[Caller], Derivative], verb: str) -> Callable[..., SparsePlan]:
    """The reader of plans that a verb has saved."""

    def load(
        path: Any,
        func: Callable[..., Any],
        *args: Any,
        argnums: Argnums = 0,
        argnames: Argnames = None,
        layout: str = "coo",
        chunk_size: int | None = None,
        verify: bool = True,
        **kwargs: Any,
    ) -> SparsePlan:
        """A plan that was saved, for the function that it was made for.

        The file holds the pattern and the colouring, not the function. Arguments are given as to the verb
        that made the plan; the file has to be for arguments like these, and (with `verify`) is checked
        against products.
        """
        selection = Selection(argnums, argnames, layout)
        options = _Options(selection, "auto", None, False, chunk_size, verify).checked(verb)
        derivative = make(check_function(verb, func))
        arguments = selection.bind(derivative.caller, args, kwargs)
        saved = read(verb, path)
        _check_saved(derivative, arguments, saved, path)
        found = Detected.given(saved.pattern, derivative.run(arguments), arguments)
        options = options._replace(local=bool(saved.facts["local"]))
        found = found.with_fallbacks({str(k): int(v) for k, v in saved.facts["fallbacks"].items()})
        plan = _made(derivative, options, arguments, found, saved.coloring, str(saved.facts["reason"]))
        if verify:
            require(plan, arguments, None, points=1)
        return plan

    return load


def _check_saved(derivative: Derivative, arguments: Arguments, saved: Saved, path: Any) -> None:
    structure = Structure.of(arguments, derivative.caller.function)
    kept = tuple(saved.facts["kinds"])
    if kept != structure.kinds or tuple(saved.facts["chosen"]) != structure.chosen:
        raise ArgumentValueError(
            f"{derivative.caller}: {path} holds a plan for arguments with {'; '.join(kept)}, got "
            f"{'; '.join(structure.kinds)}. Make a plan for these arguments."
        )


jacobian_plan.load = _loading(Jacobian, "jacobian_plan")  # type: ignore[attr-defined]
hessian_plan.load = _loading(Hessian, "hessian_plan")  # type: ignore[attr-defined]
