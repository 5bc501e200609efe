"""Memory: how many bytes of tensors a piece of work keeps alive, and at most kept alive at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """Inside, every tensor that an operation makes is counted until nobody holds it any more.

    It sees what torch's operations return, under batching and inside the autograd engine too, and so is
    exact and repeatable; what a kernel borrows for itself while it runs is not seen.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not to be wrapped for the compiler, which would be loaded for that."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self.total = 0
        self._alive: dict[int, weakref.ref[UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation, and count what is new in its result."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        borrowed = None
        for storage in _storages(result):
            if storage._cdata not in self._alive:
                if borrowed is None:
                    borrowed = {given._cdata for given in _storages((args, tuple(kwargs.values())))}
                if storage._cdata not in borrowed:
                    self._count(storage)
        return result

    def _count(self, storage: UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.live += size
        self.total += size
        self.peak = max(self.peak, self.live)

        def released(_: Any) -> None:
            self.live -= size
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, released)


def _storages(value: Any) -> Iterator[UntypedStorage]:
    """The storages of the tensors among the arguments or results of an operation."""
    if isinstance(value, Tensor):
        if value._is_zerotensor():  # what forward mode puts where there is no tangent; it takes no memory
            return
        try:
            yield value.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse and opaque tensors have none
            return
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _storages(item)
