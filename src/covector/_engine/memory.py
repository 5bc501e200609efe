"""Memory: how many bytes a piece of work takes at most at once, and products that take some for nothing."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from covector._engine.modes import DispatchMode

_aten = torch.ops.aten

# Products, and where their factors stand among the arguments.
_FACTORS = {
    _aten.mv.default: (0, 1),
    _aten.mm.default: (0, 1),
    _aten.bmm.default: (0, 1),
    _aten.addmv.default: (1, 2),
    _aten.addmm.default: (1, 2),
    _aten.baddbmm.default: (1, 2),
}
# Blocks whose gaps count. Larger ones go straight back when they are freed, and are no part of the heap;
# smaller ones find a place in what the process holds anyway.
_IN_HEAP = range(2**20, 32 * 2**20)
# Operations that may copy all they take and give into an order of their own.
_REORDERING = {_aten.convolution.default, _aten.convolution_backward.default}


class Watch(DispatchMode):
    """Inside, every tensor that an operation makes is counted until nobody holds it any more.

    It sees what torch's operations return, under batching and inside the autograd engine too, and so is
    exact and repeatable. What a kernel borrows while it runs is not seen, but for two kinds that can be
    told beforehand: copies of factors that a product cannot read in place, and reorderings.
    `resident` is the peak with room for gaps in the heap, as which the operating system may see it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self.total = 0
        self.resident = 0
        self._in_heap = 0
        self._alive: dict[int, weakref.ref[UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation, and count what is new in its result."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        copies = sum(_copied(args[position]) for position in _FACTORS.get(func, ()))
        if func in _REORDERING:
            copies = sum(storage.nbytes() for storage in _storages((args, result)))
        self.live += copies
        borrowed = None
        for storage in _storages(result):
            if storage._cdata not in self._alive:
                if borrowed is None:
                    borrowed = {given._cdata for given in _storages((args, tuple(kwargs.values())))}
                if storage._cdata not in borrowed:
                    self._count(storage)
        self.live -= copies
        return result

    def _count(self, storage: UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        in_heap = size if size in _IN_HEAP else 0
        self.live += size
        self.total += size
        self._in_heap += in_heap
        self.peak = max(self.peak, self.live)
        self.resident = max(self.resident, self.live + self._in_heap)

        def released(_: Any) -> None:
            self.live -= size
            self._in_heap -= in_heap
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, released)


class NoZeroProducts(DispatchMode):
    """Inside, a product with a factor of nothing but zeros is zero, and not computed.

    Forward mode takes a constant to have a tangent of zeros, one number seen as a whole matrix, and
    multiplies with it. The kernel would first write that matrix out.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation, if there is something to do."""
        if func in _SHAPES:
            first, second = args
            if _vanishes(first, second) or _vanishes(second, first):
                return first.new_zeros(_SHAPES[func](first, second))
        return func(*args, **(kwargs or {}))


_SHAPES: dict[Any, Callable[[Tensor, Tensor], tuple[int, ...]]] = {
    _aten.mv.default: lambda a, b: (a.shape[0],),
    _aten.mm.default: lambda a, b: (a.shape[0], b.shape[1]),
    _aten.bmm.default: lambda a, b: (a.shape[0], a.shape[1], b.shape[2]),
}


def _vanishes(zeros: Tensor, other: Tensor) -> bool:
    """Whether the first is one zero seen as many, and the second is finite, so that their product is zero."""
    if any(zeros.stride()) or zeros.numel() < 2 or type(zeros) is not Tensor:
        return False
    return not zeros.flatten()[0].item() and bool(other.isfinite().all())


def _copied(factor: Tensor) -> int:
    """The bytes of the copy that a product makes of this factor: of none whose rows or columns lie dense."""
    if factor.ndim < 2 or factor.layout is not torch.strided:
        return 0
    (rows, columns), (down, right) = factor.shape[-2:], factor.stride()[-2:]
    if (right == 1 and down >= columns) or (down == 1 and right >= rows) or rows == 1 or columns == 1:
        return 0
    return factor.numel() * factor.element_size()


def give_back() -> None:
    """Have the C library return the memory that it holds back for later, where it can."""
    if (trim := _trim()) is not None:
        trim(0)


@cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return None


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
