"""Torch's operator database as gradient checks: small samples, as functions of what requires grad.

The sweep compares verdicts on these samples, and the benchmark compares times on the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

SAMPLES = 3  # per operator, spread over the small ones among those tried
TRIED = 100  # some generators yield thousands
MANY_ELEMENTS = 300  # of the inputs together
MOST_ELEMENTS = 1200  # of the smallest sample, where an operator has no small one


@dataclass(frozen=True)
class Sample:
    """One sample of an operator: what a gradient checker is called with."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    nondet_tol: float

    @property
    def size(self) -> int:
        """The number of elements to differentiate by."""
        return sum(tensor.numel() for tensor in self.inputs)

    @property
    def usable(self) -> bool:
        """Whether there is something to differentiate by, and all of it is dense."""
        return bool(self.inputs) and all(tensor.layout is torch.strided for tensor in self.inputs)


def operators(dtype: torch.dtype) -> dict[str, Any]:
    """Every operator of the database that can be differentiated in this dtype, by name."""
    return {op.full_name: op for op in op_db if op.supports_autograd and dtype in op.dtypes}


def samples(op: Any, dtype: torch.dtype) -> list[Sample]:
    """A few small samples of the operator, the same ones every time."""
    torch.manual_seed(0)
    tried = islice(op.sample_inputs("cpu", dtype, requires_grad=True), TRIED)
    usable = [sample for sample in (_sample(op, raw) for raw in tried) if sample.usable]
    empty = [sample for sample in usable if sample.size == 0]
    full = [sample for sample in usable if 0 < sample.size <= MANY_ELEMENTS]
    if not full:
        larger = [sample for sample in usable if 0 < sample.size <= MOST_ELEMENTS]
        full = sorted(larger, key=lambda sample: sample.size)[:1]
    small = [*empty[:1], *full]
    spread = {index * (len(small) - 1) // (SAMPLES - 1) for index in range(SAMPLES)} if small else ()
    return [small[index] for index in sorted(spread)]


def every_sample(dtype: torch.dtype) -> Iterator[Sample]:
    """The samples of all operators."""
    for op in operators(dtype).values():
        yield from samples(op, dtype)


def _sample(op: Any, raw: Any) -> Sample:
    leaves, spec = tree_flatten((raw.input, raw.args, raw.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]

    def function(*inputs: Tensor) -> Any:
        inner = list(leaves)
        for place, tensor in zip(places, inputs, strict=True):
            inner[place] = tensor
        value, args, kwargs = tree_unflatten(inner, spec)
        return raw.output_process_fn_grad(op.gradcheck_wrapper(op, value, *args, **kwargs))

    return Sample(function, tuple(leaves[place] for place in places), op.gradcheck_nondet_tol)
