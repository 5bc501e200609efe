"""What a kernel writes into, and what memory its outputs share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from covector.kernels.bench import Bench
from covector.kernels.combined import Combined
from covector.kernels.row import Row, Status
from covector.kernels.subject import variables
from covector.verify.leaves import is_differentiable, same_bits


def in_place(bench: Bench, combined: Combined) -> Iterator[Row]:
    """Inputs and cotangents unchanged in all runs so far; saved tensors; memory that is shared."""
    for name, way in bench.changed.items():
        yield Row(name, Status.FAILED, f"the kernel writes into it ({way or 'as it was given'})")
    if not bench.changed:
        yield Row("inputs and cotangents", Status.PASSED)
    yield from _memory(bench)


def _memory(bench: Bench) -> Iterator[Row]:
    """Saved tensors stay as they are; outputs share memory as the reference's do."""
    saved: list[tuple[Tensor, Tensor]] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append((tensor, tensor.detach().clone()))
        return tensor

    leaves = variables(bench.leaves, bench.arguments.chosen)
    with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = bench.kernel(leaves)
        bench.kernel.pull(outputs, leaves, bench.sample.cotangents)
    spoiled = [tensor for tensor, before in saved if not same_bits(tensor.detach(), before)]
    if spoiled:
        text = f"the backward writes into {len(spoiled)} of {len(saved)} of them, so a second one is wrong"
        yield Row("saved tensors", Status.FAILED, text)
    elif saved:
        yield Row("saved tensors", Status.PASSED)
    theirs = variables(bench.leaves, bench.arguments.chosen)
    expected = _aliases(bench.reference(theirs), theirs)
    found = _aliases(outputs, leaves) - expected
    names = dict(zip(bench.arguments.chosen, bench.names, strict=True))
    for output, other, kind in sorted(found):
        what = names.get(other, f"argument {other}") if kind == "input" else bench.output_names[other]
        text = f"{bench.output_names[output]} shares its memory, the reference's does not"
        yield Row(what, Status.FAILED, text)
    if not found:
        yield Row("memory of the outputs", Status.PASSED)


def _aliases(outputs: list[Any], leaves: list[Any]) -> set[tuple[int, int, str]]:
    """Which outputs share their storage with an input, or with an earlier output."""

    def places(values: list[Any]) -> list[int]:
        return [v.untyped_storage().data_ptr() if is_differentiable(v) and v.numel() else 0 for v in values]

    out, into = places(outputs), places(leaves)
    found = {(i, j, "input") for i, a in enumerate(out) for j, b in enumerate(into) if a and a == b}
    return found | {
        (i, j, "output") for i, a in enumerate(out) for j, b in enumerate(out[:i]) if a and a == b
    }
