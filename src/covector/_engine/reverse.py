"""Reverse mode: run a function once, keep the graph, pull cotangents back through it.

At top level this is plain autograd on leaves of our own; inside another transform it takes a nesting
level. The two scopes differ in nothing that a caller can see, except that the first is faster and
also works where levels do not (legacy Functions, activation checkpointing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from covector._engine import graph, levels
from covector._engine.compiled import tracing
from covector._engine.traced import TracedScope, run_without_fused_attention
from covector._tree import LEAF, Evaluation
from covector.errors import UnsupportedError

Run = Callable[[list[Any]], Evaluation]


def detached(tensor: Tensor, *, keep_graph_of_tangent: bool = False) -> Tensor:
    """The tensor without its reverse-mode history; an outer forward mode still sees its tangent."""
    if tracing():
        return tensor.detach()
    if forward_ad._current_level >= 0:
        tangent = levels.tangent_of(tensor)
        if tangent is not None:
            if not (keep_graph_of_tangent and graph.leads_outside(tangent)):
                tangent = tangent.detach()
            return forward_ad.make_dual(forward_ad.unpack_dual(tensor).primal.detach(), tangent)
    return tensor.clone().detach() if tensor.is_inference() else tensor.detach()


class PlainScope:
    """Reverse mode with no nesting level, on detached leaves."""

    __slots__ = (
        "_connected",
        "_eager",
        "_leaves",
        "_linked",
        "custom",
        "dead_end",
        "once",
        "shared",
        "since",
        "singly",
    )

    def __init__(self) -> None:
        self.since, self.shared = lasting(), False
        self._connected = torch.is_grad_enabled()
        self._linked = False
        self.dead_end = self.once = self.custom = self.singly = False
        self._leaves: list[Tensor] = []

    @classmethod
    def after(cls, leaves: list[Tensor], *, connected: bool, shared: bool) -> Self:
        """The scope of a run that is over, in which these were the leaves to differentiate by."""
        scope = cls()
        scope._leaves, scope._connected, scope.shared = leaves, connected, shared
        return scope

    def __enter__(self) -> Self:
        self._eager = levels.EagerTensors().__enter__() if torch.is_inference_mode_enabled() else None
        torch._C._set_grad_enabled(True)
        return self

    def __exit__(self, *exception: Any) -> None:
        self.shared = lasting() != self.since
        for leaf in self._leaves:
            graph.close_leaf(leaf)
        torch._C._set_grad_enabled(self._connected)
        if self._eager is not None:
            self._eager.__exit__(*exception)

    def open(self, leaves: Sequence[Any], chosen: Sequence[int]) -> list[Any]:
        """Stand-ins for the caller's tensors, the chosen ones ready to be differentiated by."""
        inner = list(leaves)
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                inner[index] = self._stand_in(leaf)
        for index in chosen:
            tensor = inner[index]
            # Connected to the caller's graph already: a new node of that graph is enough.
            if tensor.requires_grad:
                inner[index] = _alias(tensor)
            else:
                self._leaves.append(graph.open_leaf(tensor))
        return inner

    def _stand_in(self, tensor: Tensor) -> Tensor:
        if self._connected and tensor.requires_grad:
            self._linked = True
            return tensor
        if forward_ad._current_level < 0 and not tensor.is_inference():
            return tensor.detach()
        return detached(tensor, keep_graph_of_tangent=self._connected)

    def track(self, tensor: Tensor) -> Tensor:
        """This new tensor as a leaf to differentiate by."""
        self._leaves.append(graph.open_leaf(tensor))
        return tensor

    def must_record(self, cotangents: Sequence[Tensor]) -> bool:
        """Whether somebody could differentiate what a pull computes."""
        if forward_ad._current_level >= 0:
            # Backward formulas take short cuts through saved results when nothing is recorded, and
            # those have no tangents.
            return True
        if not torch.is_grad_enabled():
            return False
        if self._linked:
            return True
        for cotangent in cotangents:
            if cotangent.requires_grad:
                return True
        return levels.recording()

    def hand_out(self, output: Tensor) -> Tensor:
        """An output as the caller may have it: without a graph if the caller records none."""
        if not output.requires_grad:
            return output
        found = graph.survey(output)
        if found is not graph.NOWHERE:
            self._note(found)
            # A pull may be asked for where grad mode is on again.
            self._linked = self._linked or found.outside
            if self._connected and found.outside:
                return output
        return detached(output, keep_graph_of_tangent=self._connected)

    def _note(self, found: graph.Survey) -> None:
        """Keep what the pulls that follow have to know."""
        self.dead_end = self.dead_end or found.dead_end
        self.once = self.once or found.once
        self.custom = self.custom or found.custom
        self.singly = self.singly or found.singly

    def settle(self, pulled: Tensor, related: Sequence[Tensor]) -> Tensor:
        """What was pulled back from outputs to a variable (`related`), as the caller may have it."""
        return self.close(pulled)

    def close(self, tensor: Tensor) -> Tensor:
        """The tensor with its graph only if that leads to something of the caller's."""
        if not tensor.requires_grad or levels.active() or not self._leaves:
            return tensor  # without leaves of our own, there is nothing inside to lead to
        if graph.leads_outside(tensor):
            return tensor
        return detached(tensor, keep_graph_of_tangent=self._connected)


class OpenScope(PlainScope):
    """Reverse mode whose results keep their graph, also where that leads to leaves of ours alone.

    To be entered with grad mode on.
    """

    __slots__ = ()

    def _stand_in(self, tensor: Tensor) -> Tensor:
        return detached(tensor) if tensor.is_inference() else super()._stand_in(tensor)

    def must_record(self, cotangents: Sequence[Tensor]) -> bool:
        """Always: the graph was asked for."""
        return True

    def hand_out(self, output: Tensor) -> Tensor:
        """An output as the caller may have it: as it is."""
        self._note(graph.survey(output))
        return output

    def close(self, tensor: Tensor) -> Tensor:
        """The tensor as it is."""
        return tensor


# How many pullbacks were handed out, to live as long as the caller likes. The graph of a run in which that
# happened is shared with them, so it must not be freed.
_lasting = 0


def lasting() -> int:
    """A number that grows with every pullback that is handed out."""
    return _lasting


def _count_pullback() -> None:
    global _lasting
    _lasting += 1


class LastingScope(PlainScope):
    """Reverse mode whose pullback is handed out.

    It may be asked where grad mode is on again, and when the run that it was made in is over.
    """

    __slots__ = ()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        _count_pullback()

    @classmethod
    def after(cls, leaves: list[Tensor], *, connected: bool, shared: bool) -> Self:
        """The scope of a run that is over, in which these were the leaves to differentiate by."""
        _count_pullback()
        return super().after(leaves, connected=connected, shared=shared)

    def _stand_in(self, tensor: Tensor) -> Tensor:
        if tensor.requires_grad and not tensor.is_inference():
            self._linked = True
            return tensor
        return super()._stand_in(tensor)

    def close(self, tensor: Tensor) -> Tensor:
        """The tensor with its graph only if that leads to something of the caller's."""
        return tensor if levels.active() else released(tensor)


def released(tensor: Tensor) -> Tensor:
    """The tensor, without its graph if that leads to leaves of runs that are over and nowhere else."""
    if not tensor.requires_grad or graph.leads_outside(tensor):
        return tensor
    return detached(tensor, keep_graph_of_tangent=torch.is_grad_enabled())


class LevelScope:
    """Reverse mode on a nesting level, inside another transform."""

    __slots__ = (
        "_eager",
        "_grad_enabled",
        "_level",
        "custom",
        "dead_end",
        "once",
        "shared",
        "since",
        "singly",
    )

    def __enter__(self) -> Self:
        self.since, self.shared = lasting(), False
        self._eager = levels.EagerTensors().__enter__()
        self._level = levels.GradLevel().__enter__()
        self.dead_end = self.once = self.custom = self.singly = False
        self._grad_enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(True)
        return self

    def __exit__(self, *exception: Any) -> None:
        self.shared = lasting() != self.since
        torch._C._set_grad_enabled(self._grad_enabled)
        self._level.__exit__(*exception)
        self._eager.__exit__(*exception)

    def open(self, leaves: Sequence[Any], chosen: Sequence[int]) -> list[Any]:
        """Stand-ins for the caller's tensors, the chosen ones ready to be differentiated by."""
        number = self._level.number
        inner = [levels.wrap(leaf, number) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        for index in chosen:
            self._level.variable(inner[index])
        return inner

    def track(self, tensor: Tensor) -> Tensor:
        """This new tensor as a leaf to differentiate by."""
        return self._level.variable(levels.wrap(tensor, self._level.number))

    def must_record(self, cotangents: Sequence[Tensor]) -> bool:
        """Whether somebody could differentiate what a pull computes."""
        return torch.is_grad_enabled() or levels.dual_level_open()

    def settle(self, pulled: Tensor, related: Sequence[Tensor]) -> Tensor:
        """What was pulled back, as the caller may have it: batched where the variable or an output is."""
        return levels.in_batches_of(self.close(pulled), related)

    def close(self, tensor: Tensor) -> Tensor:
        """The tensor as the caller may have it, once the level is left."""
        return levels.unwrap_if_dead(tensor)

    def hand_out(self, output: Tensor) -> Tensor:
        """An output as the caller may have it."""
        found = graph.survey(output)
        self.dead_end = self.dead_end or found.dead_end
        self.custom = self.custom or found.custom
        self.singly = self.singly or found.singly
        return levels.unwrap_if_dead(output)


def _alias(tensor: Tensor) -> Tensor:
    """Another node of the graph with the same value."""
    return tensor.view_as(tensor) if tensor.layout is torch.strided else tensor.clone()


Scope: TypeAlias = PlainScope | LevelScope | TracedScope


def _scope(at_top: type[PlainScope] = PlainScope) -> Scope:
    if tracing():
        return TracedScope()
    return LevelScope() if levels.active() else at_top()


class Recording(NamedTuple):
    """One run of a function, ready to be pulled back through as often as asked."""

    evaluation: Evaluation
    outputs: list[Tensor]
    variables: list[Tensor]
    scope: Scope

    def pull(self, cotangents: Sequence[Tensor], *, keep: bool = True) -> list[Tensor]:
        """J^T v: one cotangent per output to one per variable; zeros where there is no path."""
        return self.filled(self.reach(cotangents, keep=keep))

    def filled(self, pulled: Sequence[Tensor | None]) -> list[Tensor]:
        """What was pulled back, with zeros where there is no path."""
        filled: list[Any] = list(pulled)
        for index, value in enumerate(pulled):
            if value is None:
                filled[index] = self.scope.close(torch.zeros_like(self.variables[index]))
        return filled

    def reach(self, cotangents: Sequence[Tensor], *, keep: bool = True) -> list[Tensor | None]:
        """J^T v, with None where there is no path."""
        for output in self.outputs:
            if not output.requires_grad:
                break
        else:
            return _reach(self.scope, self.outputs, cotangents, self.variables, keep=keep)
        pairs = [pair for pair in zip(self.outputs, cotangents, strict=True) if pair[0].requires_grad]
        outputs, along = [output for output, _ in pairs], [cotangent for _, cotangent in pairs]
        return _reach(self.scope, outputs, along, self.variables, keep=keep)

    def only(self, position: int) -> Recording:
        """The same run, of which one output is looked at."""
        return self._replace(outputs=[self.outputs[position]])

    def part(self, output: int, variable: int) -> Recording:
        """The same run, seen as a function of one variable with one output."""
        evaluation = Evaluation([self.evaluation.outputs[output]], LEAF, [], None)
        return Recording(evaluation, [self.outputs[output]], [self.variables[variable]], self.scope)

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
    if not outputs:
        return [None] * len(variables)
    if scope.dead_end:
        raise UnsupportedError(graph.NO_SECOND_DERIVATIVE)
    if scope.singly:
        graph.refuse_wrong_batches(outputs, cotangents)
    record = scope.must_record(cotangents)
    keep = keep or scope.shared
    pulled: list[Tensor | None] = list(
        graph.backward(outputs, cotangents, variables, keep=keep, record=record)
    )
    for index, value in enumerate(pulled):
        if value is not None:
            value = graph.refused(value, variables) if record and scope.once else value
            pulled[index] = scope.settle(value, (variables[index], *outputs))
    return pulled


def _closed(scope: Scope, evaluation: Evaluation) -> Evaluation:
    outputs, spec, aux, aux_spec = evaluation
    if aux:
        aux = [scope.hand_out(leaf) if isinstance(leaf, Tensor) else leaf for leaf in aux]
    return Evaluation(list(map(scope.hand_out, outputs)), spec, aux, aux_spec)


def record(
    run: Run, leaves: Sequence[Any], chosen: Sequence[int], at_top: type[PlainScope] = PlainScope
) -> Recording:
    """Run the function once on these leaves and keep the graph that leads to the chosen ones."""
    nested = levels.traced_inside()
    with _scope(at_top) as scope:
        inner = scope.open(leaves, chosen)
        evaluation = _run(run, inner, nested=nested)
    variables = list(map(inner.__getitem__, chosen))
    return Recording(_closed(scope, evaluation), evaluation.outputs, variables, scope)


def _run(run: Run, leaves: list[Any], *, nested: bool) -> Evaluation:
    """Run the function on these leaves; `nested`: traced by dynamo, and the derivative is differentiated."""
    return run_without_fused_attention(run, leaves) if nested else run(leaves)


def resumed(
    evaluation: Evaluation,
    variables: list[Tensor],
    at_top: type[PlainScope],
    *,
    connected: bool,
    shared: bool,
) -> Recording:
    """The recording of a run that was made elsewhere at top level, on these leaves.

    `connected` says whether the caller had grad mode on, `shared` whether a pullback was handed out inside.
    """
    scope = at_top.after(variables, connected=connected, shared=shared)
    return Recording(_closed(scope, evaluation), evaluation.outputs, variables, scope)


def record_gradient(
    run: Run, leaves: Sequence[Any], chosen: Sequence[int], at_top: type[PlainScope] = PlainScope
) -> Recording:
    """Run a scalar function and its backward once; the outputs are the gradients, the value is aux.

    A gradient without a path to it is a zero that requires no grad.
    """
    with _scope(at_top) as scope:
        inner = scope.open(leaves, chosen)
        evaluation = _run(run, inner, nested=tracing())
        variables = [inner[index] for index in chosen]
        (value,) = evaluation.outputs
        pulled: Sequence[Tensor | None] = [None] * len(variables)
        if value.requires_grad:
            along = torch.ones_like(value, requires_grad=False)
            pulled = graph.backward([value], [along], variables, keep=True, record=True)
        gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(variables, pulled, strict=True)]
    shown = scope.hand_out(value)
    if scope.custom:
        # The backward of a custom Function may lead nowhere; those of torch's own operations do not.
        if graph.once_on_the_way(value, variables):
            raise UnsupportedError(graph.NO_SECOND_DERIVATIVE)
        for gradient in gradients:
            scope.hand_out(gradient)
    return Recording(Evaluation(gradients, evaluation.spec, [shown], None), gradients, variables, scope)


@dataclass(frozen=True)
class Linearization:
    """One run of a function and its derivative there, as a graph that is linear in the tangents."""

    evaluation: Evaluation
    obstacle: str | None
    _outputs: list[Tensor]
    _pulled: list[Tensor | None]
    _cotangents: list[Tensor | None]
    _scope: Scope

    def is_adjoint(self) -> bool:
        """Whether <u, J^T v> = <J u, v> for some u and the recorded v = 1, as far as numbers can tell.

        Some backwards of torch's give no derivative by their cotangent, silently; this finds them.
        """
        along = [torch.zeros(0) if p is None else _uneven(p) for p in self._pulled]
        with torch.no_grad():
            try:
                pushed = self.push(along)
            except RuntimeError:
                return False
            try:
                products = [u * p for u, p in zip(along, self._pulled, strict=True) if p is not None]
                pulled = sum(_total(product) for product in products)
                total = sum(_total(image) for image in pushed)
                size = sum(float(term.abs().sum()) for term in (*products, *pushed))
            except RuntimeError:  # the values cannot be looked at, as when the call is being traced
                return True
        return not abs(pulled - total) > 1e-2 * size

    def reached(self) -> list[Tensor | None]:
        """For each output, None if no variable leads to it."""
        return self._cotangents

    def without_jvp(self) -> list[str]:
        """Names of the custom Functions on the way that define no forward-mode rule."""
        return graph.functions_without("jvp", self._outputs)

    def push(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        """J u, as the derivative of v -> J^T v with respect to v, applied to u."""
        return self.filled(self.reach(tangents))

    def filled(self, images: Sequence[Tensor | None]) -> list[Tensor]:
        """What was pushed forward, with zeros where there is no path."""
        return [
            self._scope.close(torch.zeros_like(output)) if image is None else image
            for output, image in zip(self.evaluation.outputs, images, strict=True)
        ]

    def reach(self, tangents: Sequence[Tensor], *, keep: bool = True) -> list[Tensor | None]:
        """J u, with None where there is no path."""
        pairs = [
            (pulled, tangent)
            for pulled, tangent in zip(self._pulled, tangents, strict=True)
            if pulled is not None and pulled.requires_grad
        ]
        variables = [cotangent for cotangent in self._cotangents if cotangent is not None]
        along = [tangent for _, tangent in pairs]
        pushed = iter(_reach(self._scope, [p for p, _ in pairs], along, variables, keep=keep))
        return [None if cotangent is None else next(pushed) for cotangent in self._cotangents]

    def pulled(self) -> list[Tensor | None]:
        """J^T applied to ones, for each variable; None where no output leads to it."""
        return self._pulled


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
    with _scope(at_top) as scope:
        inner = scope.open(leaves, chosen)
        evaluation = _run(run, inner, nested=tracing())
        variables = [inner[index] for index in chosen]
        # The pullback is linear, so any cotangent would do; at zero some backwards are not smooth.
        cotangents = [
            scope.track(_cotangent(out)) if out.requires_grad else None for out in evaluation.outputs
        ]
        outputs = [out for out in evaluation.outputs if out.requires_grad]
        along = [cotangent for cotangent in cotangents if cotangent is not None]
        pulled: Sequence[Tensor | None] = [None] * len(variables)
        if outputs:
            pulled = graph.backward(outputs, along, variables, keep=True, record=True)
    closed = _closed(scope, evaluation)
    linear = Linearization(closed, None, evaluation.outputs, list(pulled), cotangents, scope)
    if tracing():  # neither the graph nor the values can be looked at
        return linear
    kinds = graph.kinds(outputs)
    return linear if kinds <= _proven else _examined(linear, kinds)


# Types of node whose backward is known to have a derivative, and to have all of it.
_proven: set[type] = set()


def _examined(linear: Linearization, kinds: set[type]) -> Linearization:
    """The linearization, with the obstacle to its being pushed through if there is one."""
    pulled = [tensor for tensor in linear.pulled() if tensor is not None]
    obstacle = graph.first_undifferentiable(pulled)
    if obstacle is not None:
        return replace(linear, obstacle=obstacle)
    if levels.active() or any(tensor.layout is not torch.strided for tensor in pulled):
        return linear  # the values cannot be looked at
    if not linear.is_adjoint():
        return replace(linear, obstacle="a backward that loses part of its own derivative")
    if any(bool((tensor != 0).any()) for tensor in pulled):
        _proven.update(kind for kind in kinds if graph.is_known(kind))
    return linear
