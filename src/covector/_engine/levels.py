"""Nesting levels: which of torch's function transforms are being run right now, and how to enter one.

Each class here is a context manager that leaves the stack of levels as it found it, whatever the
body raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from threading import Lock
from typing import Any, Self

import torch
from torch import Tensor
from torch._C import _functorch as stack
from torch._functorch import eager_transforms as peer
from torch._functorch.vmap import lazy_load_decompositions
from torch.autograd import forward_ad

from covector._engine.compiled import tracing

_Kind: Any = stack.TransformType
# Kinds of level as numbers: to compare these takes a fifth of the time.
_GRAD, _BATCH, _JVP = map(int, (_Kind.Grad, _Kind.Vmap, _Kind.Jvp))
_DERIVATIVES = frozenset([_GRAD, _JVP])

_hooks = torch._C._autograd
wrap = stack._wrap_for_grad
unwrap = stack._unwrap_for_grad
unwrap_if_dead = stack.unwrap_if_dead


def active() -> bool:
    """Whether any function transform (torch's or ours, vmap included) is being run, or a function traced."""
    return tracing() or stack.get_dynamic_layer_stack_depth() > 0


def _depth() -> int:
    """How many levels there are."""
    return stack.get_dynamic_layer_stack_depth()


# What `torch.compiler.assume_constant_result` does, without its imports: dynamo calls it while it traces. Not
# every release knows the function inside as one to be called so. A program is guarded by the stack of levels.
_depth._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _kinds() -> list[int]:
    """The kind of each level, from the outermost on."""
    every: Any = stack.get_interpreter_stack() or ()
    return [int(level.key()) for level in every]


def gradients_around() -> int:
    """How many levels of reverse mode there are around the innermost one, while dynamo traces."""
    return _kinds()[:-1].count(_GRAD)


gradients_around._dynamo_marked_constant = True  # type: ignore[attr-defined]


def traced_inside() -> bool:
    """Whether what is traced by dynamo runs inside another transform."""
    return tracing() and _depth() > 0


def current() -> int | None:
    """The number of the innermost level that is being run; None outside of all."""
    innermost = stack.peek_interpreter_stack()
    return None if innermost is None else innermost.level()


def recording() -> bool:
    """Whether an enclosing reverse-mode level would have to record what is computed now."""
    if tracing() or not stack.get_dynamic_layer_stack_depth():
        return False
    return _GRAD in _kinds()


def nested_batches() -> bool:
    """Whether there is a batching level inside another one."""
    return _kinds().count(_BATCH) > 1


def batches(tensor: Tensor) -> set[int]:
    """The numbers of the batching levels at which this tensor has a hidden axis."""
    found = set()
    while stack.is_functorch_wrapped_tensor(tensor):
        if stack.is_batchedtensor(tensor):
            found.add(stack.maybe_get_level(tensor))
        tensor = stack.get_unwrapped(tensor)
    return found


def in_batches_of(tensor: Tensor, others: Iterable[Tensor]) -> Tensor:
    """The tensor, with a hidden axis at every level at which one of the others has one.

    A result that happens to be the same for all of a batch would otherwise come out of it without the axis.
    """
    if tracing():
        return tensor  # `TracedScope.settle` did that
    there = batches(tensor)
    for other in others:
        if not batches(other) <= there:
            tensor = tensor + unwrap_if_dead(other).new_zeros(tensor.shape, dtype=tensor.dtype)
            there = batches(tensor)
    return tensor


def differentiated(tensors: Iterable[Any]) -> bool:
    """Whether what is computed with these is differentiated by a level, or is in a batch and from outside."""
    kinds = _kinds()
    return not _DERIVATIVES.isdisjoint(kinds) or (_BATCH in kinds and _with_history(tensors))


def differentiated_from_outside(tensors: Iterable[Any]) -> bool:
    """Whether what is computed with these is in a batch, and differentiated outside of that batch."""
    inner = False
    for kind in reversed(_kinds()):
        if kind == _BATCH:
            inner = True
        elif inner and kind in _DERIVATIVES:
            return True
    return inner and _with_history(tensors)


def _with_history(tensors: Iterable[Any]) -> bool:
    """Whether one of these has a graph that is recorded, or a tangent, outside of all levels."""
    bare = [innermost(tensor) for tensor in tensors if isinstance(tensor, Tensor)]
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in bare)
    return recorded or (dual_level_open() and any(tangent_of(tensor) is not None for tensor in bare))


def innermost(tensor: Tensor) -> Tensor:
    """The tensor without the wrappers of any level."""
    while stack.is_functorch_wrapped_tensor(tensor):
        tensor = stack.get_unwrapped(tensor)
    return tensor


def bare(tensor: Tensor) -> Tensor:
    """The numbers of a tensor, for looking at: without the wrappers of any level, batches as axes."""
    return innermost(tensor).detach()


def default_device() -> torch.device | None:
    """Where new tensors are made, if somebody has said so."""
    # A default device is a mode; to ask for it takes longer than to see that there is no mode at all.
    return torch.get_default_device() if torch._C._len_torch_function_stack() else None


class EagerTensors:
    """Ordinary tensors inside, also when the caller is in inference mode."""

    __slots__ = ("_guard",)

    def __enter__(self) -> Self:
        self._guard = None
        if not tracing() and torch.is_inference_mode_enabled():
            self._guard = torch.inference_mode(False)
            self._guard.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._guard is not None:
            self._guard.__exit__(*exception)


class GradMode:
    """Grad mode on or off, and ordinary tensors, inside; whatever the caller's modes are."""

    __slots__ = ("_before", "_eager", "_enabled")

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def __enter__(self) -> Self:
        self._eager = None
        if not tracing() and torch.is_inference_mode_enabled():
            self._eager = EagerTensors().__enter__()
        self._before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(self._enabled)
        return self

    def __exit__(self, *exception: Any) -> None:
        torch._C._set_grad_enabled(self._before)
        if self._eager is not None:
            self._eager.__exit__(*exception)


def _allow_hooks(before: str | None) -> None:
    """Hooks on saved tensors as before."""
    if before is None:
        _hooks._saved_tensors_hooks_enable()
    else:
        _hooks._saved_tensors_hooks_disable(before)


class GradLevel:
    """A level on which reverse mode records; `number` tells it from the others."""

    __slots__ = ("_before", "number")

    def __enter__(self) -> Self:
        # A saved-tensor hook would see the wrapped tensors of this level and outlive it.
        # What `torch.autograd.graph.disable_saved_tensors_hooks` does, without a generator.
        self._before = _hooks._saved_tensors_hooks_get_disabled_error_message()
        try:
            _hooks._saved_tensors_hooks_disable(
                "saved tensor hooks (activation checkpointing among them) do not work in a reverse-mode "
                "transform that is nested in another transform; use the transform at top level, or leave "
                "the hooks out."
            )
            self.number = stack._grad_increment_nesting()
        except BaseException:  # where there are some, they are disabled all the same
            _allow_hooks(self._before)
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        stack._grad_decrement_nesting()
        # Not by a function, in which it could be interrupted.
        if self._before is None:
            _hooks._saved_tensors_hooks_enable()
        else:
            _hooks._saved_tensors_hooks_disable(self._before)

    def variable(self, tensor: Tensor) -> Tensor:
        """A wrapped tensor of this level, to be differentiated by."""
        allowed = stack.get_inplace_requires_grad_allowed()
        stack.set_inplace_requires_grad_allowed(True)
        try:
            return tensor.requires_grad_()
        finally:
            stack.set_inplace_requires_grad_allowed(allowed)


class _SharedLevel:
    """Torch's dual level, which all threads of a process share: who leaves it last closes it.

    To close it takes the tangents from all tensors, whichever thread they belong to.
    """

    __slots__ = ("_level", "_lock", "_users")

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0

    def join(self) -> bool:
        """Open the level, or stay in the one that is open; False if that is not ours to close."""
        with self._lock:
            not_ours = not self._users and dual_level_open()
            # torch.func.jvp reads this counter to know that a dual level is open.
            peer.JVP_NESTING += 1
            if not_ours:
                return False
            if not self._users:
                # What forward_ad.enter_dual_level does, without its imports in every call.
                self._level = torch._C._enter_dual_level()
                forward_ad._current_level = self._level
            self._users += 1
            return True

    def leave(self, *, joined: bool) -> None:
        """Undo what `join` did, given its answer."""
        with self._lock:
            peer.JVP_NESTING -= 1
            if joined:
                self._users -= 1
                if not self._users:
                    forward_ad._current_level = self._level - 1
                    torch._C._exit_dual_level(level=self._level)


_shared = _SharedLevel()


class DualLevel:
    """Forward mode without a nesting level: for the outermost push of a program."""

    __slots__ = ("_joined", "_mode")

    def __enter__(self) -> Self:
        self._mode = torch._C._is_fwd_grad_enabled()
        if not self._mode:
            torch._C._set_fwd_grad_enabled(True)
        try:
            self._joined = _shared.join()
        except BaseException:  # an interrupt: who enters in vain does not leave
            torch._C._set_fwd_grad_enabled(self._mode)
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        _shared.leave(joined=self._joined)
        if not self._mode:
            torch._C._set_fwd_grad_enabled(False)


class JvpLevel:
    """A level on which forward mode carries tangents, whatever else is going on."""

    __slots__ = ("_dual", "number")

    def __enter__(self) -> Self:
        self.number = stack._jvp_increment_nesting()
        try:
            self._dual = DualLevel().__enter__()
        except BaseException:
            stack._jvp_decrement_nesting()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self._dual.__exit__(*exception)
        finally:
            stack._jvp_decrement_nesting()


@cache
def _load_batching_rules() -> None:
    lazy_load_decompositions()


class BatchLevel:
    """A level on which the first axis of some tensors is hidden from the code that runs."""

    __slots__ = ("_number", "_randomness", "_size")

    def __init__(self, size: int, randomness: str) -> None:
        self._size = size
        self._randomness = randomness

    def __enter__(self) -> Self:
        _load_batching_rules()
        self._number = stack._vmap_increment_nesting(self._size, self._randomness)
        return self

    def __exit__(self, *exception: Any) -> None:
        stack._vmap_decrement_nesting()

    def hide(self, tensor: Tensor) -> Tensor:
        """The tensor without its first axis."""
        return stack._add_batch_dim(tensor, 0, self._number)

    def show(self, tensor: Tensor) -> Tensor:
        """The tensor with the batch as its first axis."""
        return stack._remove_batch_dim(tensor, self._number, self._size, 0)


class FunctionalLevel:
    """A level on which mutations (and, on request, views) are rewritten without them."""

    __slots__ = ("_keep_views", "_number")

    def __init__(self, *, keep_views: bool) -> None:
        self._keep_views = keep_views

    def __enter__(self) -> Self:
        self._number = stack._func_increment_nesting(self._keep_views)
        return self

    def __exit__(self, *exception: Any) -> None:
        stack._func_decrement_nesting()

    def wrap(self, tensor: Tensor) -> Tensor:
        """The tensor as the function may mutate it."""
        return stack._wrap_functional_tensor(tensor, self._number)

    def unwrap(self, tensor: Tensor) -> Tensor:
        """The value of a tensor of this level; a tensor from outside (a captured one) is its own value."""
        if not torch._is_functional_tensor(tensor):
            return tensor
        torch._functionalize_sync(tensor)  # a mutation through a view may still be pending
        return stack._unwrap_functional_tensor(tensor, self._keep_views)

    def write_back(self, original: Tensor, wrapped: Tensor) -> None:
        """Do to the caller's tensor what the function did to its stand-in."""
        torch._functionalize_sync(wrapped)
        stack._propagate_functional_input_mutation(original, wrapped)


def dual_level_open() -> bool:
    """Whether a forward-mode level is open, the user's own and those of other threads included."""
    return forward_ad._current_level >= 0


def tangent_of(tensor: Tensor) -> Tensor | None:
    """The tangent that forward mode carries with this tensor; only strided tensors have one."""
    if tensor.layout is not torch.strided:
        return None
    try:
        return forward_ad.unpack_dual(tensor).tangent
    except RuntimeError:
        if dual_level_open():
            raise
        return None  # the last thread left the level meanwhile
