"""Operations whose kernel lacks a derivative, and others that compute the same and have every one.

Fused attention has neither a forward-mode rule nor a second derivative. The distances of `cdist` and `pdist`
have no second derivative either, and torch's batching rule for the first one of `cdist` is wrong. The
forward-mode rules of norms and of solving with a matrix are right by themselves only (torch 2.13).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from covector._engine.messages import names_distances, names_fused_attention
from covector._engine.norms import NORMS
from covector._engine.right import NoRightRule
from covector.errors import text_of


def differentiable_attention() -> AbstractContextManager[None]:
    """Inside, attention is computed by operations that have every derivative."""
    return sdpa_kernel(SDPBackend.MATH)


class Substitutes(TorchFunctionMode):
    """Inside, a distance is the norm of a difference, and factors are multiplied to be solved with.

    `nested`, norms are elementary too. It is a mode that dynamo knows.
    """

    def __init__(self, *, nested: bool = False) -> None:
        super().__init__()
        self._instead = {**_SUBSTITUTES, **NORMS} if nested else _SUBSTITUTES

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or what stands for it."""
        return self._instead.get(function, function)(*args, **(kwargs or {}))


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    return torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, dim=-1)


def _pdist(input: Tensor, p: float = 2.0) -> Tensor:
    first, second = torch.triu_indices(len(input), len(input), 1, device=input.device)
    return torch.linalg.vector_norm(input[first] - input[second], p, dim=-1)


def _lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False, out: None = None
) -> Tensor:
    permutation, lower, upper = torch.lu_unpack(LU, pivots)
    matrix = permutation @ lower @ upper
    matrix = matrix.mH if adjoint else matrix
    whole = B.expand(*matrix.shape[:-2], *B.shape[-2:]) if matrix.dim() > B.dim() else B
    return torch.linalg.solve(matrix, whole, left=left)


_SUBSTITUTES: dict[Any, Any] = {torch.cdist: _cdist, torch.pdist: _pdist, torch.linalg.lu_solve: _lu_solve}


def named(*names: str) -> list[Any]:
    """The functions and methods of torch's with these names."""
    rooms = (torch, Tensor, torch.linalg, functional)
    return [getattr(room, name) for name in names for room in rooms if hasattr(room, name)]


class _Instead:
    """Inside, some functions are answered by others. It takes less time than a `TorchFunctionMode`."""

    __slots__ = ("_instead",)

    def __init__(self, instead: dict[Any, Any]) -> None:
        self._instead = instead

    def __enter__(self) -> Self:
        torch._C._push_on_torch_function_stack(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        torch._C._pop_torch_function_stack()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or what stands for it."""
        function = self._instead.get(function, function)
        return function(*args, **kwargs) if kwargs else function(*args)


class NestedRules(_Instead):
    """Inside, operations whose forward-mode rule is right by itself only are computed by others, or refused.

    That is where forward mode may be differentiated again, or is in a batch inside another batch. The rules
    of norms take the mean and the variance for constants, so norms are computed by operations whose rules are
    right. What solves with a matrix is refused: its rule takes the factors that were saved. These have no
    derivative of their own, and where they are of one batch and the tangents of another one inside it,
    torch's kernel takes the wrong ones. `graph` has the nodes whose backward solves so.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_NESTED)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or what stands for it; or refuse."""
        instead = self._instead.get(function)
        if instead is not None:
            if instead is NoRightRule:
                raise NoRightRule(function.__name__, nested=True)
            function = instead
        return function(*args, **kwargs) if kwargs else function(*args)


# Right by themselves only.
_SINGLE = frozenset(
    named("solve", "solve_ex", "tensorsolve", "lu_solve", "det", "slogdet", "logdet", "eig", "eigvals")
)
_NESTED: dict[Any, Any] = {**dict.fromkeys(_SINGLE, NoRightRule), **NORMS}


def elementary_norms() -> AbstractContextManager[Any]:
    """Inside, norms are computed by operations whose derivatives are right to any order, in a batch too."""
    return _Instead(NORMS)


def another_way(error: Exception) -> AbstractContextManager[Any] | None:
    """In what to do again what raised this, so that it has a derivative; None if there is no other way."""
    text = text_of(error)
    if names_fused_attention(text):
        return differentiable_attention()
    return Substitutes() if names_distances(text) else None
