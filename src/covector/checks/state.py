"""State of torch, of Python and of the caller that a check changes, and puts back whatever happens."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch.nn import Module

from covector._engine.batch import show_remarks
from covector._engine.levels import EagerTensors, default_device
from covector._engine.messages import NO_BATCHING_RULE

_REMARKS = (
    ("ignore", NO_BATCHING_RULE, Warning, None, 0),
    # What the caller's code warns about while it is followed: it did so before, at a line of its own.
    ("ignore", None, Warning, re.compile(r"covector\.evidence\.cuts$"), 0),
)
_lock = Lock()
_inside = 0


class quiet:  # noqa: N801 - it is used as a function
    """Without torch's remarks on batching rules that it misses, and without warnings that come back through
    code of ours, in any number of threads.

    `warnings.catch_warnings` is made for one.
    """

    def __enter__(self) -> None:
        global _inside
        with _lock:
            if _inside == 0:
                # What `warnings.filterwarnings` would do, without compiling the expression.
                for remark in _REMARKS:
                    warnings.filters.insert(0, remark)  # type: ignore[attr-defined]
                show_remarks(False)  # those on registered operators are no warnings of Python's
            _inside += 1

    def __exit__(self, *exception: Any) -> None:
        global _inside
        with _lock:
            _inside -= 1
            if _inside == 0:
                show_remarks(True)
                for remark in _REMARKS:
                    if remark in warnings.filters:
                        warnings.filters.remove(remark)  # type: ignore[attr-defined]


class unchanged:  # noqa: N801 - it is used as a function
    """The random state, the modes and a module's buffers are as before, whatever happens.

    New tensors are made on the CPU inside; the default device of the caller is what it gives.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __enter__(self) -> torch.device | None:
        self._state = torch.default_generator.get_state()
        self._grad = torch.is_grad_enabled()
        self._states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        buffers = self._function.buffers() if isinstance(self._function, Module) else ()
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in buffers]
        self._eager = EagerTensors().__enter__()
        device = default_device()
        self._here = None if device is None else torch.device("cpu").__enter__()
        return device

    def __exit__(self, *exception: Any) -> None:
        if self._here is not None:
            self._here.__exit__(*exception)
        self._eager.__exit__(*exception)
        torch.set_grad_enabled(self._grad)  # the function may have turned it off
        torch.default_generator.set_state(self._state)
        if self._states:
            torch.cuda.set_rng_state_all(self._states)
        for buffer, value in self._buffers:
            buffer.data.copy_(value)
