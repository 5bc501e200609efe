"""Planes: operations that are linear on the positions of each channel, by a matrix that depends on sizes
only.

Where that matrix is not zero is found by running the operation on each position.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy import sparse
from torch import Tensor

from covector.sparsity.rules.lines import by_plane
from covector.sparsity.tracker import Dependences, NoRule, Operation

# Entries of that matrix beyond which it is not made.
_MOST = 2**24
_DIMENSIONS = {"1d": 1, "2d": 2, "3d": 3}

_FORWARD = [
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
]
_BACKWARD = [f"{name}_backward" for name in _FORWARD] + [
    *(f"{kind}_pad{n}d_backward" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    *(
        f"{kind}nearest{exact}{n}d_backward"
        for kind, exact in (("upsample_", ""), ("_upsample_", "_exact"))
        for n in (1, 2, 3)
    ),
]


def plane(operation: Operation) -> Dependences:
    """Run the operation on a batch with a one at each position."""
    name = next(key for key in ("grad_output", "self", "input") if operation[key] is not None)
    source = operation.moving(name)
    count = next(number for mark, number in _DIMENSIONS.items() if mark in operation.name)
    size, result = tuple(operation[name].shape[-count:]), operation.result
    positions = math.prod(size)
    if positions * math.prod(result.shape[-count:]) > _MOST:
        raise NoRule
    units = torch.eye(positions, dtype=torch.float64).reshape(positions, 1, *size)
    arguments = {
        key: _resized(key, value, positions, result, count) for key, value in operation.call.arguments.items()
    }
    found = operation.call.function(**(arguments | {name: units}))
    pattern = sparse.csr_array(found.reshape(positions, -1).T.numpy() != 0)
    return [by_plane(source, pattern, result.shape)]


def _resized(key: str, value: Any, positions: int, result: Tensor, count: int) -> Any:
    """An argument for one channel and as many samples as there are positions."""
    if isinstance(value, Tensor):  # the input of the forward pass, of which only the size counts
        return torch.zeros(positions, 1, *result.shape[-count:], dtype=torch.float64)
    return [positions, 1, *value[2:]] if key == "input_size" else value


RULES = dict.fromkeys([*_FORWARD, *_BACKWARD], plane)
