"""Observation: every operation that torch runs, below differentiation and batching."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage
from torch.overrides import TorchFunctionMode

from covector._engine.modes import DispatchMode

_POINTWISE = torch.Tag.pointwise
_DATA_DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

# Ways out of torch, by which the numbers of a tensor become Python's or NumPy's.
_WAYS_OUT = {Tensor.numpy: "numpy", Tensor.__array__: "numpy", Tensor.tolist: "tolist"}


class Call(NamedTuple):
    """One operation: its name without the mark of working in place, its arguments by name, its results."""

    name: str
    operation: str
    function: Any
    arguments: dict[str, Any]
    results: list[Tensor | None]
    mutates: bool
    pointwise: bool
    data_dependent: bool
    random: bool
    writes: tuple[str, ...]

    def written(self) -> Iterator[Tensor]:
        """The tensors among the arguments that were worked on in place."""
        return tensors_in(self.arguments.get(name) for name in self.writes)

    def tensors(self) -> Iterator[Tensor]:
        """The tensors among the arguments."""
        return tensors_in(self.arguments.values())


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors among values, and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, Tensor))


class Observer(DispatchMode):
    """Inside, `seen` is told of every operation after it was run.

    `before` is told of operations that look at numbers, before they do, and `leaves` of tensors that leave
    torch.
    """

    def __init__(
        self,
        seen: Callable[[Call], None],
        before: Callable[[Call], None],
        leaves: Callable[[str, Tensor], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen
        self._before = before
        self._ways_out = WaysOut(leaves)

    def __enter__(self) -> Any:
        self._ways_out.__enter__()  # type: ignore[no-untyped-call]
        try:
            return super().__enter__()
        except BaseException:  # an interrupt: who enters in vain does not leave
            self._ways_out.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            raise

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._ways_out.__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and tell of it."""
        kwargs = kwargs or {}
        if func._schema.name in _IGNORED:
            return func(*args, **kwargs)
        traits = _traits(func)
        arguments = dict(zip(traits.names, args, strict=False)) | kwargs
        if traits.data_dependent:
            self._before(Call(traits.name, traits.operation, func, arguments, [], *traits.flags))
        result = func(*args, **kwargs)
        results = [
            value if isinstance(value, Tensor) else None
            for value in (result if isinstance(result, tuple | list) else [result])
        ]
        self._seen(Call(traits.name, traits.operation, func, arguments, results, *traits.flags))
        return result


class WaysOut(TorchFunctionMode):
    """Inside, `leaves` is told of tensors whose numbers leave torch, before they do."""

    def __init__(self, leaves: Callable[[str, Tensor], None]) -> None:
        super().__init__()
        self._leaves = leaves

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WAYS_OUT:
            self._leaves(_WAYS_OUT[func], args[0])
        return func(*args, **(kwargs or {}))


class _Traits(NamedTuple):
    name: str
    operation: str
    names: tuple[str, ...]
    mutates: bool
    pointwise: bool
    data_dependent: bool
    random: bool
    writes: tuple[str, ...]

    @property
    def flags(self) -> tuple[bool, bool, bool, bool, tuple[str, ...]]:
        return self.mutates, self.pointwise, self.data_dependent, self.random, self.writes


_known: dict[Any, _Traits] = {}

# Questions about shapes, which forward mode asks of every tangent.
_IGNORED = frozenset({"aten::is_same_size", "aten::_has_same_storage_numel"})


def _traits(func: Any) -> _Traits:
    """What is known of an operation from its schema and its tags; kept, as every call asks."""
    found = _known.get(func)
    if found is None:
        schema = func._schema
        _, _, bare = schema.name.partition("::")
        base = bare if bare.endswith("__") else bare.removesuffix("_")
        packets = [func, *_overloads(schema.name.removesuffix(bare) + base)]
        found = _known[func] = _Traits(
            base,
            schema.name.replace("::", "."),
            tuple(argument.name for argument in schema.arguments),
            schema.is_mutable and torch.Tag.inplace_view not in func.tags,  # else only the view changes
            any(_POINTWISE in packet.tags for packet in packets),
            any(tag in func.tags for tag in _DATA_DEPENDENT),
            torch.Tag.nondeterministic_seeded in func.tags,
            tuple(
                argument.name
                for argument in schema.arguments
                if argument.alias_info is not None and argument.alias_info.is_write
            ),
        )
    return found


def _overloads(name: str) -> list[Any]:
    """Every variant of an operation, given its name with the namespace."""
    space, _, bare = name.partition("::")
    packet = getattr(getattr(torch.ops, space), bare, None)
    return [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]


class Storages:
    """Something known about storages, for as long as each of them lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[UntypedStorage], Any]] = {}

    def get(self, tensor: Tensor) -> Any:
        """What is known about the storage of a tensor; None if nothing is."""
        storage = storage_of(tensor)
        found = None if storage is None else self._known.get(storage._cdata)
        return None if found is None else found[1]

    def set(self, tensor: Tensor, value: Any) -> None:
        """Know this about the storage of a tensor, or nothing any more."""
        storage = storage_of(tensor)
        if storage is None:
            return
        key = storage._cdata
        if value is None:
            self._known.pop(key, None)
            return

        mine = weakref.ref(self)  # not itself, or what is known would outlive it until garbage is collected

        def released(_: Any) -> None:
            if (storages := mine()) is not None:
                storages._known.pop(key, None)

        self._known[key] = (weakref.ref(storage, released), value)


def storage_of(tensor: Tensor) -> UntypedStorage | None:
    """Where the numbers of a tensor are; None for what has no such place (zeros of forward mode, meta)."""
    if tensor._is_zerotensor() or tensor.device.type == "meta":
        return None
    try:
        return stored(tensor).untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def stored(tensor: Tensor) -> Tensor:
    """The numbers that a sparse tensor stores; a strided one itself."""
    if tensor.layout is torch.strided:
        return tensor
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def shares_storage(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are views of the same numbers."""
    one, other = storage_of(first), storage_of(second)
    return one is not None and other is not None and one._cdata == other._cdata
