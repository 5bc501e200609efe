"""Sparse Jacobians and Hessians: detect the pattern, colour it once, evaluate with few products.

The room is a verb too: `covector.sparsity(f, x)` is the pattern of the Jacobian of a function.

Example:
    >>> import torch, covector
    >>> print(covector.sparsity(lambda x: x.cumsum(0)[1:], torch.ones(4)))
    SparsityPattern: 3 x 4, 9 nonzeros (75 %)
    ● ● · ·
    ● ● ● ·
    ● ● ● ●
"""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """A module that can be called: `covector.sparsity` names both the room and what it finds."""

    @property
    def __wrapped__(self) -> Any:
        """The verb; `inspect.signature` and `help` look for it here."""
        from covector.sparsity.doors import sparsity

        return sparsity

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
