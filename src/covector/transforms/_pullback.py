"""The pullback of a call: the function is run once, and J^T v can be asked for from then on.

Most calls are simple: tensors in, one tensor out, and nobody else who records. With small functions the steps
of the general way, from arguments in trees to results in trees, take as long as the operations, so these go a
shorter one. What turns out to be less simple is handed over to the general way, without a second run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from covector._engine import graph, levels
from covector._engine.compiled import outside_graphs
from covector._engine.reverse import Recording, recorded
from covector._engine.scopes import PlainScope, is_simple
from covector._engine.writes import WriteRefused, run_watched
from covector._images import Tensors
from covector._linear import Pullback
from covector._tree import LEAF, Argnames, Argnums, Evaluation, flatten, select_all
from covector.errors import Caller
from covector.transforms._door import (
    Accept,
    alike,
    bind,
    check_match,
    check_primals,
    explained,
    output_paths,
    runner,
)

_NO_KEYWORDS: dict[str, Any] = {}


def pullback_by(
    caller: Caller,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    argnums: Argnums,
    argnames: Argnames,
    accept: Accept,
    *,
    has_aux: bool,
) -> Pullback:
    """The pullback of a call by the selected arguments."""
    by_one = type(argnums) is int and argnames is None and 0 <= argnums < len(args)
    if by_one and not kwargs and not has_aux and is_simple(args):
        pullback = ShortPullback(caller, args, (argnums,), accept)
        accept(caller, pullback.evaluation)
        return pullback
    arguments = bind(caller, args, kwargs, argnums, argnames)
    return Pullback.of(caller, runner(caller, arguments, accept, has_aux=has_aux), arguments)


def pullback_by_all(
    caller: Caller, args: Sequence[Any], accept: Accept, at_top: type[PlainScope], *, has_aux: bool
) -> Pullback:
    """The pullback of a call by all its arguments."""
    if not has_aux and is_simple(args):
        return ShortPullback(caller, args, range(len(args)), accept, at_top, single=False)
    arguments = check_primals(caller, select_all(args))
    return Pullback.of(caller, runner(caller, arguments, accept, has_aux=has_aux), arguments, at_top)


def vjp_fn(
    caller: Caller,
    pullback: Pullback,
    cotangents: Any,
    retain_graph: bool = True,
    create_graph: bool | None = None,
) -> tuple[Any, ...]:
    """J^T v for one v."""
    if create_graph is not None:
        with levels.GradMode(enabled=create_graph):
            return vjp_fn(caller, pullback, cotangents, retain_graph)
    outputs, spec, _, _ = evaluation = pullback.evaluation
    leaves = check_match(caller, "cotangent", cotangents, outputs, spec, lambda: output_paths(evaluation))
    return pullback.arranged(pullback.apply(leaves, keep=retain_graph))


class ShortPullback(Pullback):
    """The pullback of a function of simple tensors, by some of them (`chosen`).

    Whether the function is `simple` too is known after the run: if so, it returned one real tensor, whose
    graph leads to these alone. Otherwise what it returned was checked by `accept`.
    """

    def __init__(
        self,
        caller: Caller,
        args: Sequence[Tensor],
        chosen: Sequence[Any],
        accept: Accept,
        at_top: type[PlainScope] = PlainScope,
        *,
        single: bool = True,
    ) -> None:
        self._caller, self._single = caller, single
        self._scope = scope = at_top()
        try:
            self._returned = output = scope.run(self._run, args, chosen)
        except (RuntimeError, WriteRefused) as error:
            raise explained(caller, error) from error
        real = isinstance(output, Tensor) and output.requires_grad and output.is_floating_point()
        self.simple = simple = real and graph.survey(output) is graph.NOWHERE
        if simple:
            self.evaluation = Evaluation([output.detach()], LEAF, [], None)
        else:
            evaluation = Evaluation(*flatten(output), [], None)
            accept(caller, evaluation)
            self._recording = recorded(scope, evaluation)
            self.evaluation = self._recording.evaluation

    def _run(self, args: list[Tensor]) -> Any:
        return run_watched(self._caller.function, args, _NO_KEYWORDS, self._scope.variables)

    @cached_property
    def _recording(self) -> Recording:  # type: ignore[override]
        """The same run, for the general way."""
        return Recording(self.evaluation, [self._returned], self._scope.variables, self._scope)

    def apply(self, direction: Tensors, *, keep: bool = True) -> Tensors:
        scope = self._scope
        if not self.simple or scope.must_record(direction):
            return self._recording.pull(direction, keep=keep)
        keep = keep or scope.shared
        pulled = graph.backward((self._returned,), direction, scope.variables, keep=keep, record=False)
        for value in pulled:
            if value is None:
                return self._recording.filled(list(pulled))
        return pulled  # type: ignore[return-value]

    __name__ = "vjp_fn"

    @outside_graphs
    def __call__(
        self, cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None
    ) -> tuple[Any, ...]:
        """J^T v for one v: `vjp` hands out the pullback itself."""
        plain = self.simple and create_graph is None and isinstance(cotangents, Tensor)
        if plain and alike(cotangents, self.evaluation.outputs[0]):
            return tuple(self.apply([cotangents], keep=retain_graph))
        return vjp_fn(self._caller, self, cotangents, retain_graph, create_graph)

    def __deepcopy__(self, memo: dict[int, Any]) -> ShortPullback:
        return self  # as a function is

    def arranged(self, pulled: Sequence[Tensor]) -> Any:
        return pulled[0] if self._single else tuple(pulled)

    def rows(self) -> Tensor | None:
        """The Jacobian of a simple function by the only variable, its rows in one batch.

        To be asked where the function was run; None where more care is needed.
        """
        shown, variable = self.evaluation.outputs[0], self._scope.variables[0]
        count = shown.numel()
        if count < 2:
            return None
        basis = torch.eye(count, dtype=shown.dtype, device=shown.device).reshape(count, *shown.shape)
        try:
            with levels.BatchLevel(count, "error") as level:
                along, outputs = (level.hide(basis),), (self._returned,)
                (pulled,) = graph.backward(outputs, along, (variable,), keep=True, record=False)
                if pulled is None:
                    return None
                rows = level.show(pulled)
        except (RuntimeError, TypeError):  # an operation that cannot be batched; the general way says which
            return None
        return rows.reshape(*shown.shape, *variable.shape)
