"""Whole Jacobians, by rows (reverse mode) or by columns (forward mode), as the tree the user gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from covector._chart import Chart
from covector._engine import levels, short
from covector._linear import Pullback, Pushforward
from covector._tree import Argnames, Argnums, Arguments, Evaluation, Spec, unflatten
from covector.errors import Caller
from covector.transforms._door import (
    accept_differentiable,
    accept_tensors,
    bind,
    check_batching,
    check_real,
    evaluated,
    output_paths,
    run_short,
    runner,
)


@dataclass(frozen=True)
class Request:
    """What is asked of a Jacobian; the same words as the keywords of `jacrev` and `jacfwd`."""

    argnums: Argnums
    argnames: Argnames
    has_aux: bool
    chunk_size: int | None
    randomness: str

    def is_plain(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether nothing more is asked for than the derivative by one of several tensors."""
        if type(self.argnums) is not int or not 0 <= self.argnums < len(args) or kwargs or self.has_aux:
            return False
        if self.argnames is not None or self.chunk_size is not None or self.randomness != "error":
            return False
        return short.applies(args)

    def checked(self, verb: str) -> Request:
        """This request, if its values make sense."""
        check_batching(verb, self.chunk_size, self.randomness)
        return self

    def bind(self, caller: Caller, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        """The call's arguments, those to differentiate marked, and real."""
        arguments = bind(caller, args, kwargs, self.argnums, self.argnames)
        check_real(caller, arguments.primals(), lambda: arguments.paths(caller.function))
        return arguments

    def answer(self, jacobian: Any, evaluation: Evaluation) -> Any:
        """The result, with the auxiliary part of the evaluation beside it if that is asked for."""
        return (jacobian, evaluation.aux_value()) if self.has_aux else jacobian


def by_rows(caller: Caller, arguments: Arguments, request: Request) -> Any:
    """The Jacobian by reverse mode."""
    run = runner(caller, arguments, accept_differentiable, has_aux=request.has_aux)
    return rows_of(Pullback(caller, run, arguments), caller, arguments, request)


def by_one_tensor(caller: Caller, args: Sequence[Any], kwargs: dict[str, Any], request: Request) -> Any:
    """The Jacobian by reverse mode by one of several tensors, the short way as far as that goes."""
    run = run_short(caller, args, (cast(int, request.argnums),))
    shown = run.shown()
    rows = None if shown is None else run.rows(shown)
    if rows is not None:
        return rows
    evaluation = evaluated(caller, run.returned, accept_differentiable, has_aux=False)
    pullback = Pullback.of(caller, run.recording(evaluation))
    return rows_of(pullback, caller, request.bind(caller, args, kwargs), request)


def rows_of(pullback: Pullback, caller: Caller, arguments: Arguments, request: Request) -> Any:
    """The Jacobian from a pullback."""
    evaluation = pullback.evaluation
    check_real(caller, evaluation.outputs, lambda: output_paths(evaluation))
    outputs = Chart.of(evaluation.outputs)
    rows = pullback.matrix(outputs, chunk_size=request.chunk_size, randomness=request.randomness)
    return request.answer(_from_rows(rows, outputs, evaluation.spec, arguments), evaluation)


def by_columns(caller: Caller, arguments: Arguments, request: Request) -> Any:
    """The Jacobian by forward mode."""
    run = runner(caller, arguments, accept_tensors, has_aux=request.has_aux)
    forward = Pushforward(caller, run, arguments)
    inputs = Chart.of(arguments.primals())
    columns = forward.matrix(
        inputs,
        chunk_size=request.chunk_size,
        randomness=request.randomness,
        # Inside a batch an in-place operation needs tangents that belong to the batch.
        like=arguments.primals() if levels.active() else None,
    )
    evaluation = forward.evaluation
    check_real(caller, columns, lambda: output_paths(evaluation))
    return request.answer(_from_columns(columns, inputs, evaluation.spec, arguments), evaluation)


def _from_rows(rows: Sequence[Tensor], outputs: Chart, spec: Spec, arguments: Arguments) -> Any:
    """J^T applied to the basis of the outputs, one stack of rows per input, arranged as J."""
    if len(outputs.places) == 1:
        shape = outputs.places[0].shape
        if len(shape) != 1:
            rows = [stack.reshape((*shape, *stack.shape[1:])) for stack in rows]
        return unflatten([arguments.tree_of(rows)], spec)
    blocks = [
        [stack[place.start : place.stop].reshape((*place.shape, *stack.shape[1:])) for stack in rows]
        for place in outputs.places
    ]
    return unflatten([arguments.tree_of(block) for block in blocks], spec)


def _from_columns(columns: Sequence[Tensor], inputs: Chart, spec: Spec, arguments: Arguments) -> Any:
    """J applied to the basis of the inputs, one stack of columns per output, arranged as J."""
    blocks = [
        [
            stack[place.start : place.stop].movedim(0, -1).reshape((*stack.shape[1:], *place.shape))
            for place in inputs.places
        ]
        for stack in columns
    ]
    return unflatten([arguments.tree_of(block) for block in blocks], spec)
