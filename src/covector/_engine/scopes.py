"""Scopes: where a function is recorded for reverse mode, and how tensors get in and out.

At top level that is plain autograd on leaves of our own; inside another transform it is a nesting level; in
code that dynamo traces, a level in steps that it knows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from covector._engine import graph, levels
from covector._engine.compiled import tracing
from covector._engine.traced import TracedScope
from covector._engine.twice import elementary_norms
from covector._tree import Evaluation

Run = Callable[[list[Any]], Evaluation]
T = TypeVar("T")


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


def is_simple(args: Sequence[Any]) -> bool:
    """Whether these are real tensors that no graph leads to, with no transform and no other mode around."""
    if levels.active() or forward_ad._current_level >= 0 or torch.is_inference_mode_enabled():
        return False
    for value in args:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return False
        if value.requires_grad or value.is_inference() or value.layout is not torch.strided:
            return False
    return bool(args)


class _Here(threading.local):
    """How many functions of this thread are being recorded at top level, where no nesting level tells."""

    recorded = 0


here = _Here()

# How many pullbacks were handed out, to live as long as the caller likes. The graph of a run in which that
# happened is shared with them, so it must not be freed.
_lasting = 0


class _Surveyed:
    """Where the graphs of what a run returned lead, which is looked at when somebody has to know."""

    @staticmethod
    def in_batches_of(tensor: Tensor, like: Tensor) -> Tensor:
        """The tensor, batched where the other one is."""
        return levels.in_batches_of(tensor, (like,))

    _gathered: set[type] | None = None
    _seen = graph.NOWHERE
    _unseen: tuple[Tensor, ...] = ()

    def gather(self) -> None:
        """Have the `kinds` of nodes gathered, in the one walk through each graph."""
        self._gathered = set()

    @property
    def kinds(self) -> set[type]:
        """The types of the nodes behind all of these."""
        self._look()
        return self._gathered or set()

    @property
    def found(self) -> graph.Survey:
        """What all of these lead to."""
        if self._unseen:
            self._look()
        return self._seen

    def _look(self) -> None:
        for output in self._unseen:
            found = graph.survey(output, self._gathered)
            if found is not graph.NOWHERE:
                self._seen |= found
        self._unseen = ()


class PlainScope(_Surveyed):
    """Reverse mode with no nesting level, on detached leaves."""

    shared = False  # what few runs are; one that is says so itself
    records_formulas = False
    _linked = _lasts = False
    _leaves: list[Tensor]
    variables: list[Tensor]
    """What the function was given for the chosen tensors."""

    def run(self, function: Callable[[list[Any]], T], leaves: Sequence[Any], chosen: Sequence[int]) -> T:
        """Run a function on stand-ins for the caller's tensors, the chosen ones to be differentiated by."""
        global _lasting
        since, connected = _lasting, torch.is_grad_enabled()
        eager = levels.EagerTensors().__enter__() if torch.is_inference_mode_enabled() else None
        self._connected = connected
        self.variables, self._leaves = variables, own = [], []
        if not connected:
            torch._C._set_grad_enabled(True)
        here.recorded += 1
        try:
            inner, alone = [], forward_ad._current_level < 0
            for leaf in leaves:
                if isinstance(leaf, Tensor):
                    simple = alone and not leaf.requires_grad and not leaf.is_inference()
                    leaf = leaf.detach() if simple else self._stand_in(leaf)
                inner.append(leaf)
            for index in chosen:
                # Connected to the caller's graph already: a new node of that graph is enough.
                if inner[index].requires_grad:
                    inner[index] = _alias(inner[index])
                else:
                    own.append(inner[index].requires_grad_())
                variables.append(inner[index])
            if alone and not (self._linked and here.recorded > 1):
                return function(inner)
            with elementary_norms():  # of torch's, third derivatives are wrong, and those of batched rows
                return function(inner)
        finally:
            here.recorded -= 1
            self.shared = _lasting != since
            _lasting += self._lasts
            for leaf in own:
                setattr(leaf, graph.CLOSED, True)
            torch._C._set_grad_enabled(connected)
            if eager is not None:
                eager.__exit__(None, None, None)

    def _stand_in(self, tensor: Tensor) -> Tensor:
        if self._connected and tensor.requires_grad:
            self._linked = True
            return tensor
        return detached(tensor, keep_graph_of_tangent=self._connected)

    def track(self, tensor: Tensor) -> Tensor:
        """This new tensor as a leaf to differentiate by."""
        self._leaves.append(tensor.requires_grad_())
        return tensor

    def must_record(self, cotangents: Sequence[Tensor]) -> bool:
        """Whether somebody could differentiate what a pull computes."""
        if forward_ad._current_level >= 0:
            # Backward formulas take short cuts through saved results when nothing is recorded, and
            # those have no tangents.
            return True
        if not torch.is_grad_enabled():
            return False
        if self._linked or self.found.outside:
            return True
        for cotangent in cotangents:
            if cotangent.requires_grad:
                return True
        return levels.recording()

    def hand_out(self, output: Tensor) -> Tensor:
        """An output as the caller may have it: without a graph if the caller records none."""
        if not output.requires_grad:
            return output
        if not self._connected:
            self._unseen += (output,)
        else:
            found = graph.survey(output, self._gathered)
            if found is not graph.NOWHERE:
                self._seen |= found
                if found.outside:
                    return output
        if forward_ad._current_level < 0:
            return output.detach()
        return detached(output, keep_graph_of_tangent=self._connected)

    def settle(self, pulled: Tensor, variable: Tensor, outputs: Sequence[Tensor]) -> Tensor:
        """What was pulled back from outputs to a variable, as the caller may have it."""
        return self.close(pulled) if pulled.requires_grad else pulled

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

    def _stand_in(self, tensor: Tensor) -> Tensor:
        return detached(tensor) if tensor.is_inference() else super()._stand_in(tensor)

    def must_record(self, cotangents: Sequence[Tensor]) -> bool:
        """Always: the graph was asked for."""
        return True

    def hand_out(self, output: Tensor) -> Tensor:
        """An output as the caller may have it: as it is."""
        self._unseen += (output,)
        return output

    def close(self, tensor: Tensor) -> Tensor:
        """The tensor as it is."""
        return tensor


class LastingScope(PlainScope):
    """Reverse mode whose pullback is handed out.

    It may be asked where grad mode is on again, and when the run that it was made in is over.
    """

    _lasts = True

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


_NOTHING: AbstractContextManager[Any] = nullcontext()


class LevelScope(_Surveyed):
    """Reverse mode on a nesting level, inside another transform."""

    shared = False

    @property
    def found(self) -> graph.Survey:
        """What all of these lead to; on a level, torch itself refuses what has a derivative `once`."""
        found = super().found
        return found._replace(once=False) if found.once else found

    @property
    def records_formulas(self) -> bool:
        """Whether a pull is recorded even if nobody differentiates it: other formulas would be wrong."""
        return self.found.factored

    def run(self, function: Callable[[list[Any]], T], leaves: Sequence[Any], chosen: Sequence[int]) -> T:
        """Run a function on stand-ins for the caller's tensors, the chosen ones to be differentiated by."""
        since = _lasting
        norms = _NOTHING
        if levels.differentiated(leaves):
            norms = elementary_norms()
        with levels.EagerTensors(), levels.GradLevel() as self._level, levels.GradMode(enabled=True), norms:
            number = self._level.number
            inner = [levels.wrap(leaf, number) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            self.variables = [self._level.variable(inner[index]) for index in chosen]
            try:
                return function(inner)
            finally:
                self.shared = _lasting != since

    def track(self, tensor: Tensor) -> Tensor:
        """This new tensor as a leaf to differentiate by."""
        return self._level.variable(levels.wrap(tensor, self._level.number))

    def must_record(self, cotangents: Sequence[Tensor]) -> bool:
        """Whether somebody could differentiate what a pull computes."""
        return torch.is_grad_enabled() or levels.dual_level_open()

    def settle(self, pulled: Tensor, variable: Tensor, outputs: Sequence[Tensor]) -> Tensor:
        """What was pulled back, as the caller may have it: batched where the variable or an output is."""
        return levels.in_batches_of(self.close(pulled), (variable, *outputs))

    def close(self, tensor: Tensor) -> Tensor:
        """The tensor as the caller may have it, once the level is left."""
        return levels.unwrap_if_dead(tensor)

    def hand_out(self, output: Tensor) -> Tensor:
        """An output as the caller may have it."""
        self._unseen += (output,)
        return levels.unwrap_if_dead(output)


def _alias(tensor: Tensor) -> Tensor:
    """Another node of the graph with the same value."""
    return tensor.view_as(tensor) if tensor.layout is torch.strided else tensor.clone()


Scope: TypeAlias = PlainScope | LevelScope | TracedScope


def scope_here(at_top: type[PlainScope] = PlainScope, *, order: int = 1) -> Scope:
    """The scope for a run of which this many derivatives are taken."""
    if not levels.active():
        return at_top()
    return TracedScope(order) if tracing() else LevelScope()
