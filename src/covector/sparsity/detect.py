"""Detection: the pattern of a derivative, found by following the program that computes products with it.

The tangent program u -> J u is run once, and of each of its tensors is known which elements of u each
element can depend on. Where forward mode has no rule for an operation, the program v -> J^T v is followed
instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy import sparse
from torch import Tensor

from covector._engine import forward, reverse
from covector._engine.reverse import Run
from covector._tree import Arguments, Evaluation
from covector.errors import Caller, ResourceError
from covector.sparsity.dependence import ALL, Dependence
from covector.sparsity.pattern import SparsityPattern
from covector.sparsity.rules.table import rule_of
from covector.sparsity.tracker import NoTangents, Tracker

# A pattern with more entries than this is not made: its indices alone would take gigabytes.
_MOST_ENTRIES = 500_000_000


@dataclass(frozen=True)
class Detected:
    """A pattern, what the function returned, and the operations that had no rule."""

    pattern: SparsityPattern
    evaluation: Evaluation
    fallbacks: dict[str, int]

    @classmethod
    def given(cls, pattern: SparsityPattern, run: Run, arguments: Arguments) -> Detected:
        """A pattern that somebody else found; the function is run to see what it returns."""
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in arguments.leaves]
        return cls(pattern, run(leaves), {})

    def with_pattern(self, pattern: SparsityPattern) -> Detected:
        """The same with another pattern."""
        return replace(self, pattern=pattern)

    def with_fallbacks(self, fallbacks: dict[str, int]) -> Detected:
        """The same with other operations that had no rule."""
        return replace(self, fallbacks=fallbacks)


def detect(caller: Caller, run: Run, arguments: Arguments, *, local: bool) -> Detected:
    """The pattern of the derivative by the chosen arguments, at every point or (`local`) near this."""
    try:
        return _follow(caller, run, arguments, _pushed, "forward", local=local)
    except (NotImplementedError, NoTangents):
        # No forward-mode rule for an operation, or for one of a sparse tensor.
        return _follow(caller, run, arguments, _pulled, "reverse", local=local)


def _follow(
    caller: Caller, run: Run, arguments: Arguments, program: Any, name: str, *, local: bool
) -> Detected:
    tracker = Tracker(caller, rule_of, local=local, forward=name == "forward")
    leaves = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in arguments.leaves]
    tracker.distrust([leaf for leaf in leaves if isinstance(leaf, Tensor)])
    evaluation, images, size = program(tracker, run, leaves, arguments.chosen)
    rows = sparse.vstack([_rows(caller, tracker, image, size) for image in images], format="csr")
    pattern = SparsityPattern.from_csr(rows)
    pattern = pattern if name == "forward" else pattern.T
    return Detected(pattern, evaluation, tracker.fallbacks)


def _pushed(
    tracker: Tracker, run: Run, leaves: list[Any], chosen: Sequence[int]
) -> tuple[Evaluation, list[Tensor], int]:
    """The tangents of the outputs, and the number of inputs."""
    tangents = [torch.ones_like(leaves[index]) for index in chosen]
    tracker.follow(tangents)
    with tracker.observer():
        pushed = forward.push(run, leaves, chosen, tangents)
        images = pushed.filled()
    return pushed.evaluation, images, sum(tangent.numel() for tangent in tangents)


def _pulled(
    tracker: Tracker, run: Run, leaves: list[Any], chosen: Sequence[int]
) -> tuple[Evaluation, list[Tensor], int]:
    """The cotangents of the inputs, and the number of outputs."""
    with tracker.observer():
        recording = reverse.record(run, leaves, chosen)
    cotangents = [torch.ones_like(output) for output in recording.evaluation.outputs]
    tracker.follow(cotangents)
    with tracker.observer():
        images = recording.pull(cotangents)
    return recording.evaluation, images, sum(cotangent.numel() for cotangent in cotangents)


def _rows(caller: Caller, tracker: Tracker, image: Tensor, inputs: int) -> Any:
    """The pattern of the rows of one tensor."""
    found = tracker.dependence(image)
    if found is None:
        return sparse.csr_array((image.numel(), inputs), dtype=bool)
    _check_size(caller, found)
    return found.rows()


def _check_size(caller: Caller, found: Dependence) -> None:
    full = int((found.ids == ALL).sum()) * found.inputs
    if full > _MOST_ENTRIES:
        raise ResourceError(
            f"{caller}: {full // max(found.inputs, 1)} rows of {found.inputs} entries are full, so the "
            "derivative is not "
            "sparse. Use jacobian or products (jvp, vjp, hvp); or pass a pattern of your own."
        )
