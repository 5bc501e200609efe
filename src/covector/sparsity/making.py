"""Making plans: what was asked for becomes a pattern, a colouring and a plan that was seen to be right."""

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
from covector.sparsity.choice import fastest
from covector.sparsity.coloring import Coloring, best, color, contenders
from covector.sparsity.derivative import Derivative
from covector.sparsity.detect import Detected, detect
from covector.sparsity.pattern import SparsityPattern
from covector.sparsity.plan import Selection, SparsePlan, mode_of
from covector.sparsity.saving import Saved, read
from covector.sparsity.structure import Structure
from covector.transforms._door import check_batching, check_function
from covector.transforms._plan import check_mode

Make = Callable[[Caller], Derivative]

_CHEAPEST = "it takes the cheapest products"


class Options(NamedTuple):
    """How a plan is to be made."""

    selection: Selection
    mode: str
    pattern: Any
    local: bool
    chunk_size: int | None
    verify: bool

    def checked(self, verb: str) -> Options:
        """The same, or an error that names what cannot be."""
        check_mode(verb, self.mode)
        check_layout(verb, self.selection.layout)
        check_batching(verb, self.chunk_size, "error")
        return self


def planned(
    make: Make,
    verb: str,
    func: Callable[..., Any],
    options: Options,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> SparsePlan:
    """The plan for arguments like these."""
    return _planned(make(check_function(verb, func)), options.checked(verb), args, kwargs)


def remembering(
    make: Make, verb: str, func: Callable[..., Any], options: Options, executor: Any
) -> Callable[..., Any]:
    """A function that makes a plan for each structure of arguments that it meets."""
    derivative = make(check_function(verb, func, options.selection.argnums))
    options = options.checked(verb)
    if executor is not None:
        from covector._tasks.mapping import check_executor

        check_executor(verb, executor)
    plans: dict[Structure, SparsePlan] = {}

    def sparse_fn(*args: Any, **kwargs: Any) -> Any:
        arguments = options.selection.bind(derivative.caller, args, kwargs)
        structure = Structure.of(arguments, derivative.caller.function)
        plan = plans.get(structure)
        if plan is None:
            plan = _planned(derivative, options, args, kwargs)
            plans[structure] = plan = plan if executor is None else plan.with_executor(executor)
        sparse_fn.plan = plan  # type: ignore[attr-defined]
        return plan(*args, **kwargs)

    sparse_fn.plan = None  # type: ignore[attr-defined]
    return outside_graphs(sparse_fn, like=func)


def _planned(
    derivative: Derivative, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> SparsePlan:
    """The first of the plans that may do which is right; the last one has to be."""
    arguments = options.selection.bind(derivative.caller, args, kwargs)
    found = _pattern(derivative, options, arguments)
    give_back()
    *earlier, (last, last_reason) = _colorings(derivative, found, options, arguments)
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


def _verify(plan: SparsePlan, options: Options, arguments: Arguments) -> None:
    """Compare with products, here and nearby; a path that was taken here may end before the point nearby."""
    require(plan, arguments, None, points=1 if options.local else 2)
    give_back()


def _pattern(derivative: Derivative, options: Options, arguments: Arguments) -> Detected:
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
    derivative: Derivative, found: Detected, options: Options, arguments: Arguments
) -> list[tuple[Callable[[], Coloring], str]]:
    """The colouring to use, and what to go back to if the matrix is not what it should be."""
    pattern, mode = found.pattern, options.mode
    if derivative.symmetric:
        return [
            (lambda: color(pattern, "star"), "a Hessian is symmetric"),
            (lambda: color(pattern, "row"), "the second derivative of this function is not symmetric"),
        ]
    if mode != "auto":
        return [(lambda: best(pattern, mode), f"mode={mode!r}")]
    near = contenders(pattern, mode)
    if len(near) == 1:
        return [(lambda: near[0], _CHEAPEST)]
    plans = [
        _made(derivative, options._replace(local=False), arguments, found, coloring, _CHEAPEST)
        for coloring in near
    ]
    chosen = fastest(plans, arguments)
    return [(lambda: chosen.coloring, chosen.reason)]


def _made(
    derivative: Derivative,
    options: Options,
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
        _free=options.mode == "auto",
        _point=arguments.at([_detached(leaf) for leaf in arguments.leaves]),
        _example=arguments.at([None if isinstance(leaf, Tensor) else leaf for leaf in arguments.leaves]),
    )


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def loading(make: Make, verb: str) -> Callable[..., SparsePlan]:
    """The reader of plans that a verb has saved."""

    @outside_graphs
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
        options = Options(selection, "auto", None, False, chunk_size, verify).checked(verb)
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
