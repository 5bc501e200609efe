"""For tests that watch: functions that count their runs, terminals, and what must be as it was afterwards."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import sympy  # noqa: F401 - torch loads it late, and it adds filters of warnings
import torch
from torch import Tensor
from torch._C import _functorch as stack
from torch.autograd import forward_ad


class Stop(Exception):
    """What a function raises that was told to."""


class Counted:
    """A function that counts its runs, and raises at the k-th."""

    def __init__(self, function: Callable[..., Any], fails_at: int | None = None, error: Any = Stop) -> None:
        self.function, self.fails_at, self.error = function, fails_at, error
        self.runs = 0
        self.__name__ = getattr(function, "__name__", "function")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        if self.runs == self.fails_at:
            raise self.error(f"run {self.runs}")
        return self.function(*args, **kwargs)


class Terminal(io.StringIO):
    """What a terminal would show."""

    def isatty(self) -> bool:
        return True


class _AtOnce:
    """A timer that does not wait."""

    def __init__(self, seconds: float, start: Callable[[], None]) -> None:
        assert seconds > 0
        self.start = start

    def cancel(self) -> None:
        """It is too late."""

    def join(self) -> None:
        """It has ended."""


def errors_shown(monkeypatch: Any, stream: io.StringIO) -> io.StringIO:
    """Standard error goes there, and bars are shown from the beginning."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("covector._tasks.progress.Timer", _AtOnce)
    return stream


def state(*, random: bool = True) -> dict[str, Any]:
    """Everything global that a call could leave changed; the random numbers only if they are asked for."""
    found = {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "forward mode": torch._C._is_fwd_grad_enabled(),
        "dual level": forward_ad._current_level,
        "levels of jvp": torch._functorch.eager_transforms.JVP_NESTING,
        "levels": stack.get_dynamic_layer_stack_depth(),
        "requires_grad_ inside": stack.get_inplace_requires_grad_allowed(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "hooks of saved tensors": torch._C._autograd._saved_tensors_hooks_is_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "filters of warnings": list(warnings.filters),
    }
    if random:
        found["random state"] = torch.random.get_rng_state().numpy().tobytes()
    return found


class Marks(NamedTuple):
    """Everything about a tensor that a call could leave a trace on."""

    values: bytes
    grad: tuple[int, bytes] | None
    requires_grad: bool
    is_leaf: bool
    version: int
    layout: Any
    attributes: dict[str, Any]

    @classmethod
    def of(cls, tensor: Tensor) -> Marks:
        """The tensor as it is now."""
        grad = tensor.grad if tensor.is_leaf else None
        strided = tensor.layout is torch.strided
        return cls(
            _bytes(tensor),
            None if grad is None else (id(grad), _bytes(grad)),
            tensor.requires_grad,
            tensor.is_leaf,
            tensor._version,
            (tensor.shape, tensor.dtype, tensor.stride(), tensor.data_ptr()) if strided else tensor.layout,
            dict(tensor.__dict__),
        )


def marks(tensors: Iterable[Tensor]) -> list[Marks]:
    """The tensors as they are now, to be compared with how they are later."""
    return [Marks.of(tensor) for tensor in tensors]


def _bytes(tensor: Tensor) -> bytes:
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        return _bytes(tensor._indices()) + _bytes(tensor._values())
    if tensor.layout is not torch.strided:
        return b"".join(_bytes(getattr(tensor, part)()) for part in _PARTS[tensor.layout])
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes()


_PARTS = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
}
