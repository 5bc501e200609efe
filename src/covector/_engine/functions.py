"""Custom Functions that torch does not batch, evaluated on batches all the same.

vmap refuses a custom Function without a `setup_context` or a rule for vmap, since it would not know how to
batch its derivative. Its value is that of its forward, which is made of operations that can be batched. So
where nobody asks for a derivative, torch is told that no transform is active when it looks whether it has
to refuse, and applies the forward to the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, local

import torch
from torch._functorch.utils import enable_single_level_autograd_function

_asked = torch._C._are_functorch_transforms_active
_here = local()
_lock = Lock()
_inside = 0


def _answered() -> bool:
    """What torch asks: whether a transform is active; not in a thread that is inside."""
    return not getattr(_here, "inside", False) and _asked()


@contextmanager
def forwards_alone() -> Iterator[None]:
    """Inside, a custom Function is its forward, whatever transform is active. No graph may be wanted."""
    global _inside
    with _lock:
        _inside += 1
        torch._C._are_functorch_transforms_active = _answered
    _here.inside = True
    try:
        with enable_single_level_autograd_function():
            yield
    finally:
        _here.inside = False
        with _lock:
            _inside -= 1
            if not _inside:
                torch._C._are_functorch_transforms_active = _asked
