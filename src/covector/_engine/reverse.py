"""Reverse mode: run a function once, keep the graph, pull cotangents back through it.

At top level this is plain autograd on leaves of our own; inside another transform it takes a nesting
level. The two scopes differ in nothing that a caller can see, except that the first is faster and
also works where levels do not (legacy Functions, activation checkpointing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covector._engine import graph, levels
from covector._engine.compiled import tracing, without_values
from covector._engine.messages import writes_to_unbatched
from covector._engine.scopes import PlainScope, Scope, scope_here
from covector._engine.scopes import Run as Run
from covector._engine.traced import TracedScope
from covector._tree import LEAF, Evaluation
from covector.errors import UnsupportedError


class Recording(NamedTuple):
    """One run of a function, ready to be pulled back through as often as asked."""

    evaluation: Evaluation
    outputs: list[Tensor]
    variables: list[Tensor]
    scope: Scope

    def pull(self, cotangents: Sequence[Tensor], *, keep: bool = True) -> list[Tensor]:
        """J^T v: one cotangent per output to one per variable; zeros where there is no path."""
        pulled = _reach(self.scope, self.outputs, cotangents, self.variables, keep=keep)
        for value in pulled:
            if value is None:
                return self.filled(pulled)
        return pulled  # type: ignore[return-value]

    def filled(self, pulled: list[Tensor | None]) -> list[Any]:
        """What was pulled back, with zeros where there is no path."""
        for index, value in enumerate(pulled):
            if value is None:
                pulled[index] = self.scope.close(torch.zeros_like(self.variables[index]))
        return pulled

    def reach(self, cotangents: Sequence[Tensor], *, keep: bool = True) -> list[Tensor | None]:
        """J^T v, with None where there is no path."""
        return _reach(self.scope, self.outputs, cotangents, self.variables, keep=keep)

    def whole(self) -> Tensor | None:
        """The Jacobian between the only output and the only variable, its rows in one batch.

        None where there is more to ask than whether a batch goes through the graph: of several tensors, of
        what else the graph leads to, of somebody around who records, of an operation that cannot be batched.
        """
        _, outputs, variables, scope = self
        if len(outputs) != 1 or len(variables) != 1 or type(scope) is not PlainScope:
            return None
        if scope.found is not graph.NOWHERE or scope.must_record(()):
            return None
        shape = outputs[0].shape
        count = shape.numel()
        if count < 2:
            return None
        basis = torch.eye(count, dtype=outputs[0].dtype, device=outputs[0].device)
        try:
            with levels.BatchLevel(count, "error") as level:
                along = (level.hide(basis.reshape(count, *shape)),)
                (pulled,) = graph.backward(outputs, along, variables, keep=True, record=False)
                if pulled is None:
                    return None
                rows = level.show(pulled)
        except (RuntimeError, TypeError):
            return None
        return rows.reshape(*shape, *variables[0].shape)

    def only(self, position: int) -> Recording:
        """The same run, of which one output is looked at."""
        if self.evaluation.spec is LEAF and len(self.outputs) == 1:
            return self
        evaluation = self.evaluation._replace(outputs=[self.evaluation.outputs[position]], spec=LEAF)
        return self._replace(evaluation=evaluation, outputs=[self.outputs[position]])

    def part(self, output: int, variable: int) -> Recording:
        """The same run, seen as a function of one variable with one output."""
        return self.only(output)._replace(variables=[self.variables[variable]])

    def is_flat(self, which: Sequence[int]) -> bool:
        """Whether the derivative of these outputs is zero, by the pullback of ones."""
        ones = [
            torch.ones_like(out) if i in which else torch.zeros_like(out)
            for i, out in enumerate(self.evaluation.outputs)
        ]
        with torch.no_grad():
            return not any(bool((value != 0).any()) for value in self.pull(ones))


def _reach(
    scope: Scope,
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    variables: Sequence[Tensor],
    *,
    keep: bool,
) -> list[Tensor | None]:
    for output in outputs:
        if not output.requires_grad:
            outputs, cotangents = _with_graph(outputs, cotangents)
            break
    if not outputs:
        return [None] * len(variables)
    if levels.active():
        if scope.found.singly:
            graph.refuse_wrong_batches(outputs, cotangents)
        keep = True  # for another try
        if tracing():
            cotangents = list(map(scope.in_batches_of, cotangents, outputs))
    asked = scope.must_record(cotangents)
    if asked and scope.found.normed and levels.differentiated_from_outside(variables):
        graph.refuse_normed(outputs, variables)
    record = asked or scope.records_formulas
    try:
        pulled = list(
            graph.backward(outputs, cotangents, variables, keep=keep or scope.shared, record=record)
        )
    except RuntimeError as error:
        _refuse_dead_ends(scope, error)
        if not writes_to_unbatched(error):
            raise
        # A backward works in place on what it makes of a cotangent, which has to be batched for that. Where
        # all are, small Jacobians take a quarter longer.
        cotangents = list(map(scope.in_batches_of, cotangents, outputs))
        pulled = list(graph.backward(outputs, cotangents, variables, keep=True, record=record))
    refused = record and scope.found.once
    for index, value in enumerate(pulled):
        if value is None:
            _refuse_dead_ends(scope)
        else:
            value = graph.refused(value, variables) if refused else value
            value = value if asked or not record else value.detach()
            pulled[index] = scope.settle(value, variables[index], outputs)
    return pulled


def _refuse_dead_ends(scope: Scope, cause: Exception | None = None) -> None:
    """Say what is the matter, if that is where a pull ended."""
    if scope.found.dead_end:
        raise UnsupportedError(graph.NO_SECOND_DERIVATIVE) from cause


def _with_graph(
    outputs: Sequence[Tensor], cotangents: Sequence[Any]
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The outputs that have a graph, with their cotangents."""
    pairs = [pair for pair in zip(outputs, cotangents, strict=True) if pair[0].requires_grad]
    return [output for output, _ in pairs], [cotangent for _, cotangent in pairs]


def _closed(scope: Scope, evaluation: Evaluation) -> Evaluation:
    outputs, spec, aux, aux_spec = evaluation
    if aux:
        aux = _handed_out(scope, aux)
    return Evaluation(list(map(scope.hand_out, outputs)), spec, aux, aux_spec)


def _handed_out(scope: Scope, aux: list[Any]) -> list[Any]:
    return [scope.hand_out(leaf) if isinstance(leaf, Tensor) else leaf for leaf in aux]


def record(
    run: Run, leaves: Sequence[Any], chosen: Sequence[int], at_top: type[PlainScope] = PlainScope
) -> Recording:
    """Run the function once on these leaves and keep the graph that leads to the chosen ones."""
    scope = scope_here(at_top)
    evaluation = scope.run(run, leaves, chosen)
    return Recording(_closed(scope, evaluation), evaluation.outputs, scope.variables, scope)


def record_gradient(
    run: Run, leaves: Sequence[Any], chosen: Sequence[int], at_top: type[PlainScope] = PlainScope
) -> Recording:
    """Run a scalar function and its backward once; its outputs are the gradients, aux begins with the value.

    A gradient without a path to it is a zero that requires no grad.
    """
    scope = scope_here(at_top, order=2)

    def run_twice(inner: list[Any]) -> Evaluation:
        (value,), spec, aux, aux_spec = run(inner)
        variables = scope.variables
        pulled: Sequence[Tensor | None] = [None] * len(variables)
        if value.requires_grad:
            along = torch.ones_like(value, requires_grad=False)
            pulled = graph.backward([value], [along], variables, keep=True, record=True)
        gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(variables, pulled, strict=True)]
        return Evaluation(gradients, spec, [value, *aux], aux_spec)

    gradients, spec, aux, aux_spec = scope.run(run_twice, leaves, chosen)
    variables, shown = scope.variables, _handed_out(scope, aux)
    if scope.found.custom:
        # The backward of a custom Function may lead nowhere; those of torch's own operations do not.
        if graph.once_on_the_way(aux[0], variables):
            raise UnsupportedError(graph.NO_SECOND_DERIVATIVE)
        for gradient in gradients:
            scope.hand_out(gradient)
        _refuse_dead_ends(scope)
    return Recording(Evaluation(gradients, spec, shown, aux_spec), gradients, variables, scope)


class Linearization(NamedTuple):
    """One run of a function and its derivative there, as a graph that is linear in the tangents."""

    evaluation: Evaluation
    outputs: list[Tensor]
    pulled: list[Tensor | None]
    """J^T applied to ones, for each variable; None where no output leads to it."""
    cotangents: list[Tensor | None]
    """What it was applied to; None for an output that no variable leads to."""
    scope: Scope
    obstacle: str | None = None

    def is_adjoint(self) -> bool:
        """Whether <u, J^T v> = <J u, v> for some u and the recorded v = 1, as far as numbers can tell.

        Some backwards of torch's give no derivative by their cotangent, silently; this finds them.
        """
        along = [torch.zeros(0) if p is None else _uneven(p) for p in self.pulled]
        with torch.no_grad():
            try:
                pushed = self.filled(self.reach(along))
            except RuntimeError:
                return False
            try:
                products = [u * p for u, p in zip(along, self.pulled, strict=True) if p is not None]
                pulled = sum(_total(product) for product in products)
                total = sum(_total(image) for image in pushed)
                size = sum(float(term.abs().sum()) for term in (*products, *pushed))
            except RuntimeError:  # the values cannot be looked at, as when the call is being traced
                return True
        return not abs(pulled - total) > 1e-2 * size

    def filled(self, images: Sequence[Tensor | None]) -> list[Tensor]:
        """What was pushed forward, with zeros where there is no path."""
        return [
            self.scope.close(torch.zeros_like(output)) if image is None else image
            for output, image in zip(self.evaluation.outputs, images, strict=True)
        ]

    def reach(self, tangents: Sequence[Tensor], *, keep: bool = True) -> list[Tensor | None]:
        """J u, the derivative of v -> J^T v along u, with None where there is no path."""
        pairs = [
            (pulled, tangent)
            for pulled, tangent in zip(self.pulled, tangents, strict=True)
            if pulled is not None and pulled.requires_grad
        ]
        variables = [cotangent for cotangent in self.cotangents if cotangent is not None]
        along = [tangent for _, tangent in pairs]
        pushed = iter(_reach(self.scope, [p for p, _ in pairs], along, variables, keep=keep))
        return [None if cotangent is None else next(pushed) for cotangent in self.cotangents]


def _uneven(tensor: Tensor) -> Tensor:
    """A direction like this tensor, along which what sums to zero does not vanish."""
    steps = torch.linspace(1, 2, tensor.numel(), dtype=torch.float64, device=tensor.device)
    return steps.reshape(tensor.shape).to(tensor.dtype)


def _total(tensor: Tensor) -> float:
    return float(tensor.detach().sum().real)


def _cotangent(output: Tensor) -> Tensor:
    """Some cotangent of an output; torch cannot make ones in a sparse layout."""
    if output.layout is torch.strided:
        return torch.ones_like(output, requires_grad=False)
    return torch.zeros_like(output, requires_grad=False)


def linearize(
    run: Run, leaves: Sequence[Any], chosen: Sequence[int], at_top: type[PlainScope] = PlainScope
) -> Linearization:
    """Run the function and its pullback once, and keep the graph of the pullback."""
    scope = scope_here(at_top, order=2)
    if not isinstance(scope, TracedScope):
        scope.gather()
    cotangents: list[Tensor | None] = []
    pulled: list[Tensor | None] = []

    def run_twice(inner: list[Any]) -> Evaluation:
        evaluation = run(inner)
        # The pullback is linear, so any cotangent would do; at zero some backwards are not smooth.
        for out in evaluation.outputs:
            cotangents.append(scope.track(_cotangent(out)) if out.requires_grad else None)
        outputs, along = _with_graph(evaluation.outputs, cotangents)
        if outputs:
            pulled.extend(graph.backward(outputs, along, scope.variables, keep=True, record=True))
        return evaluation

    evaluation = scope.run(run_twice, leaves, chosen)
    closed = _closed(scope, evaluation)
    pulled = pulled or [None] * len(chosen)
    linear = Linearization(closed, evaluation.outputs, pulled, cotangents, scope)
    if isinstance(scope, TracedScope):  # neither the graph nor the values can be looked at
        return linear
    kinds = scope.kinds
    return linear if kinds <= _proven else _examined(linear, kinds)


# Types of node whose backward is known to have a derivative, and to have all of it.
_proven: set[type] = set()


def _examined(linear: Linearization, kinds: set[type]) -> Linearization:
    """The linearization, with the obstacle to its being pushed through if there is one."""
    pulled = [tensor for tensor in linear.pulled if tensor is not None]
    obstacle = graph.first_undifferentiable(pulled)
    if obstacle is not None:
        return linear._replace(obstacle=obstacle)
    if levels.active() or without_values() or any(t.layout is not torch.strided for t in pulled):
        return linear  # the values cannot be looked at
    if not linear.is_adjoint():
        return linear._replace(obstacle="a backward that loses part of its own derivative")
    if any(bool((tensor != 0).any()) for tensor in pulled):
        _proven.update(kind for kind in kinds if graph.is_known(kind))
    return linear
