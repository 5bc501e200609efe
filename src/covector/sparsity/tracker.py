"""The tracker: what is known about every tensor while a program of derivatives runs.

A tensor of tangents carries, for each element, the inputs that it depends on. A tensor that was computed
from the arguments of the function is unknown: its numbers will be others at another point. All other tensors
are constants, whose numbers count. All of this is kept for storages, so that views and operations in place
need no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covector._engine.observe import Call, Observer, Storages, shares_storage, storage_of, tensors_in
from covector.errors import Caller, DataDependenceError
from covector.sparsity.dependence import NONE, Dependence, merged, united, united_rows

Dependences = Sequence[Dependence | None]
Rule = Callable[["Operation"], Dependences]


class NoTangents(Exception):
    """A signal: this operation is not torch's own, and would lose tangents without a word."""


class NoRule(Exception):
    """A signal from a rule: this case is not one of mine."""


class _Stored(NamedTuple):
    """The dependence of each element of a storage, and how many bytes an element has."""

    ids: Tensor
    sets: Any
    itemsize: int


class Operation:
    """One operation with what is known about its arguments, as rules see it."""

    def __init__(self, call: Call, tracker: Tracker) -> None:
        self.call = call
        self.name = call.name
        self.tracker = tracker

    def __getitem__(self, name: str) -> Any:
        """An argument by name; None if it was not given."""
        return self.call.arguments.get(name)

    @property
    def results(self) -> list[Tensor | None]:
        """What the operation returned."""
        return self.call.results

    @property
    def result(self) -> Tensor:
        """The only, or the first, tensor that the operation returned; gradients may be left out."""
        return next(result for result in self.call.results if result is not None)

    def dependence(self, tensor: Any) -> Dependence | None:
        """What each element of an argument depends on; None if nothing does."""
        return self.tracker.dependence(tensor) if isinstance(tensor, Tensor) else None

    def moving(self, name: str) -> Dependence:
        """What each element of an argument depends on; where nothing does, no rule is asked about it."""
        found = self.dependence(self[name])
        if found is None:
            raise NoRule
        return found

    def known(self, *tensors: Any) -> bool:
        """Whether these are constants."""
        return all(self.tracker.known(tensor) for tensor in tensors_in(tensors))

    def tracked(self) -> Iterator[tuple[Tensor, Dependence]]:
        """The arguments that depend on the inputs."""
        for tensor in self.call.tensors():
            dependence = self.dependence(tensor)
            if dependence is not None:
                yield tensor, dependence


class Tracker:
    """Follows a program, operation by operation; `rule_of` finds the rule of an operation."""

    def __init__(
        self, caller: Caller, rule_of: Callable[[Call], Rule | None], *, local: bool, forward: bool
    ) -> None:
        self._caller = caller
        self._forward = forward
        self._rule_of = rule_of
        self._local = local
        self._stored = Storages()
        self._unknown = Storages()
        self._choices = Storages()
        self.fallbacks: dict[str, int] = {}
        self.looked: list[str] = []

    def observer(self) -> Observer:
        """The context in which a program is followed."""
        return Observer(self._seen, self._look, self._leave)

    def follow(self, tensors: Sequence[Tensor]) -> None:
        """Each element of these is an input."""
        total, start = sum(tensor.numel() for tensor in tensors), 0
        for tensor in tensors:
            self._write(tensor, Dependence.identity(tensor.shape, start, total))
            start += tensor.numel()

    def distrust(self, tensors: Sequence[Tensor]) -> None:
        """The numbers in these are not to be used."""
        for tensor in tensors:
            self._unknown.set(tensor, True)

    def dependence(self, tensor: Tensor) -> Dependence | None:
        """What each element of a tensor depends on; None if nothing does."""
        found = self._stored.get(tensor)
        if found is None:
            return None
        if tensor.layout is not torch.strided:
            return Dependence(found.ids, found.sets)
        size = tensor.element_size()
        if size == found.itemsize:
            ids, sets = found.ids, found.sets
        elif size < found.itemsize:
            ids, sets = found.ids.repeat_interleave(found.itemsize // size), found.sets
        else:
            several = size // found.itemsize
            joined = united_rows(
                found.ids[: len(found.ids) // several * several].reshape(-1, several), found.sets
            )
            ids, sets = joined.ids, joined.sets
        if tensor.is_contiguous() and tensor.numel() == len(ids):
            return Dependence(ids.reshape(tensor.shape), sets)
        return Dependence(ids.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()), sets)

    def known(self, tensor: Tensor) -> bool:
        """Whether a tensor has the same numbers at every point. Parameters may be trained, so not they."""
        if tensor.requires_grad or self._stored.get(tensor) is not None:
            return False
        return self._unknown.get(tensor) is None

    def choices(self, tensor: Tensor) -> Dependence | None:
        """For a tensor of unknown indices: among which each of them is, where that is known."""
        found = self._choices.get(tensor)
        if found is None or found.ids.numel() != tensor.numel() or not tensor.is_contiguous():
            return None
        return Dependence(found.ids.reshape(tensor.shape), found.sets)

    def choose(self, tensor: Tensor, choices: Dependence) -> None:
        """Remember among what the indices in a tensor are."""
        self._choices.set(tensor, choices)

    def _look(self, call: Call) -> None:
        """An operation is about to make something of numbers that the program can branch on."""
        looked = [tensor for tensor in _looked_at(call) if not self.known(tensor)]
        if not looked:
            return
        if not self._local:
            raise self._depends_on_data(call.operation)
        self.looked.append(call.operation)
        for tensor in looked:
            if tensor.dtype == torch.bool:  # which elements it marks is part of the path that is taken here
                self._unknown.set(tensor, None)

    def _leave(self, name: str, tensor: Tensor) -> None:
        if not self._local and not self.known(tensor):
            raise self._depends_on_data(f"Tensor.{name}")

    def _depends_on_data(self, operation: str) -> DataDependenceError:
        return DataDependenceError(
            f"{self._caller}: the function looks at numbers that were computed from its arguments "
            f"({operation}), so what it computes, and with it the pattern, may differ from point to point. "
            "Write the "
            "choice as torch.where; or pass local=True for the pattern of the path that is taken here, "
            "which is then "
            "checked at every new point; or pass a pattern of your own."
        )

    def _seen(self, call: Call) -> None:
        tensors = list(call.tensors())
        operation = Operation(call, self)
        tracked = any(self._stored.get(tensor) is not None for tensor in tensors)
        if not tracked and all(map(self.known, tensors)):
            if call.random:
                self._mark(call)
            return
        if call.name in _CONSTANTS or (call.data_dependent and call.name not in _PLACES):
            return
        if not call.mutates and not any(r is not None and storage_of(r) is not None for r in call.results):
            return
        self._mark(call)
        if not tracked:
            if self._forward and _is_foreign(call):
                raise NoTangents(call.operation)
            if (rule := self._rule_of(call)) is not None and getattr(rule, "chooses", False):
                rule(operation)
            return
        if not call.mutates and self._only_views(call, tensors):
            return
        if call.mutates and not any(isinstance(result, Tensor) for result in call.results):
            self._mix_into(operation)
            return
        dependences = self._apply(operation)
        for result, dependence in zip(call.results, dependences, strict=True):
            if result is not None and not self._is_view(call, result, tensors):
                self._write(result, dependence)

    def _apply(self, operation: Operation) -> Dependences:
        """The dependence of each result by its rule; without one, on all that is touched."""
        rule = self._rule_of(operation.call)
        sparse = any(tensor.layout is not torch.strided for tensor, _ in operation.tracked())
        if rule is not None and not sparse:
            try:
                return rule(operation)
            except NoRule:
                pass
        name = operation.call.operation
        self.fallbacks[name] = self.fallbacks.get(name, 0) + 1
        return mixed(operation)

    def _mix_into(self, operation: Operation) -> None:
        """An operation that returns nothing: what it works on may depend on all that it touches."""
        name = operation.call.operation
        self.fallbacks[name] = self.fallbacks.get(name, 0) + 1
        whole = everything(operation)
        for tensor in operation.call.written():
            self._write(tensor, whole.expand(tensor.shape))

    def _only_views(self, call: Call, tensors: list[Tensor]) -> bool:
        return all(result is None or self._is_view(call, result, tensors) for result in call.results)

    def _is_view(self, call: Call, result: Tensor, tensors: list[Tensor]) -> bool:
        return not call.mutates and any(shares_storage(result, tensor) for tensor in tensors)

    def _mark(self, call: Call) -> None:
        """What is computed from unknown numbers is unknown."""
        for tensor in (*call.results, *call.written()):
            if tensor is not None:
                self._unknown.set(tensor, True)

    def _write(self, tensor: Tensor, dependence: Dependence | None) -> None:
        """Each element of a tensor depends on this now, the rest of its storage on what it did."""
        storage = storage_of(tensor)
        before = self._stored.get(tensor)
        if storage is None or (dependence is None and before is None):
            return
        if tensor.layout is not torch.strided:
            dependence = None if dependence is None else _joined(dependence)
            ids = torch.zeros(storage.nbytes() // tensor.element_size(), dtype=torch.int64)
            if dependence is not None:
                self._stored.set(
                    tensor, _Stored(ids + dependence.ids, dependence.sets, tensor.element_size())
                )
            return
        size, count = tensor.element_size(), storage.nbytes() // tensor.element_size()
        if dependence is not None and tensor.is_contiguous() and tensor.numel() == count:
            new = _own(dependence.ids.expand(tensor.shape).reshape(-1))
            value = _Stored(new, dependence.sets, size) if bool((new != NONE).any()) else None
            self._stored.set(tensor, value)
            return
        parts = [] if dependence is None else [dependence]
        ids = torch.zeros(count, dtype=torch.int64)
        if before is not None:
            whole = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (count,), (1,))
            known = self.dependence(whole)
            assert known is not None
            parts.append(known)
        sets, numbers = merged(parts)
        if before is not None:
            ids.copy_(numbers[-1])
        there = ids.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        there.copy_(numbers[0] if dependence is not None else torch.zeros((), dtype=torch.int64))
        self._stored.set(tensor, _Stored(ids, sets, size) if bool((ids != NONE).any()) else None)


def _own(ids: Tensor) -> Tensor:
    """The numbers from the beginning of their storage on, one after the other, as views count them."""
    return (
        ids
        if ids.is_contiguous() and not ids.storage_offset()
        else ids.clone(memory_format=torch.contiguous_format)
    )


def _is_foreign(call: Call) -> bool:
    """Whether an operation was registered from outside; forward mode passes it without a tangent."""
    own = call.operation.partition(".")[0] in ("aten", "prims")
    return not own and any(r is not None and r.is_floating_point() for r in call.results)


def everything(operation: Operation) -> Dependence:
    """All that any argument of an operation depends on, as one element."""
    return united([_joined(dependence) for _, dependence in operation.tracked()], ())


def mixed(operation: Operation) -> Dependences:
    """Every element of every result depends on all that any argument depends on."""
    whole = everything(operation)
    return [None if r is None else whole.expand(r.shape) for r in operation.results]


def _joined(dependence: Dependence) -> Dependence:
    """The union over all elements."""
    joined = united_rows(dependence.ids.reshape(1, -1), dependence.sets)
    return joined.reshape(())


# Operations whose result does not depend on the numbers of what they are given.
_CONSTANTS = frozenset(
    {"zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full"}
    | {
        "new_empty_strided",
        "_new_zeros_with_same_feature_meta",
        "_efficientzerotensor",
        "sym_size",
        "sym_numel",
        "sym_stride",
    }
)

# Operations whose result has a size that depends on numbers, and the arguments that these are in; of other
# operations that look at numbers, it is every argument.
_PLACES = {
    "linalg_lstsq": "rcond",  # torch tags it for a result that may be empty
    "index": "indices",
    "_unsafe_index": "indices",
    "index_put": "indices",
    "masked_select": "mask",
    "repeat_interleave": "repeats",
}


def _looked_at(call: Call) -> list[Tensor]:
    """The tensors whose numbers decide about what the program does next."""
    if call.name not in _PLACES:
        return list(call.tensors())
    places = tensors_in([call.arguments.get(_PLACES[call.name])])
    return [tensor for tensor in places if tensor.dtype == torch.bool or call.name == "repeat_interleave"]
