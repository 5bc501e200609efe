"""Detection: the pattern of a derivative, found by following the program that computes products with it.

The tangent program u -> J u is run once, and of each of its tensors is known which elements of u each
element can depend on. Where forward mode has no rule for an operation, the program v -> J^T v is followed
instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from scipy import sparse
from torch import Tensor

from covector._engine import forward, reverse
from covector._engine.memory import give_back
from covector._engine.reverse import Run
from covector._tree import Arguments, Evaluation
from covector.errors import Caller, ResourceError
from covector.sparsity.dependence import ALL, MOST_TOLD_APART, Dependence
from covector.sparsity.pattern import SparsityPattern
from covector.sparsity.rules.table import rule_of
from covector.sparsity.tracker import NoTangents, Tracker

# A pattern with more entries than this is not made: its indices alone would take gigabytes.
_MOST_ENTRIES = 500_000_000
# Sums by both modes agree within this many units of rounding of their terms. If they differ without a cause,
# both programs are followed, which takes time and loses nothing.
_ROUNDING = 100.0


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
        pushed = _follow(caller, run, arguments, _pushed, "forward", local=local)
    except (NotImplementedError, NoTangents):
        # No forward-mode rule for an operation, or for one of a sparse tensor.
        return _follow(caller, run, arguments, _pulled, "reverse", local=local).found
    give_back()  # what following took is not held beside what the comparison takes
    if _modes_agree(run, arguments, pushed.program):
        return pushed.found
    # A hook, no_grad, a Function whose rules disagree, a forward-mode rule that loses tangents: the entries
    # of either mode.
    pulled = _follow(caller, run, arguments, _pulled, "reverse", local=local)
    both = pushed.found.with_pattern(pushed.found.pattern | pulled.found.pattern)
    return both.with_fallbacks(pushed.found.fallbacks | pulled.found.fallbacks)


class _Program(NamedTuple):
    """A program that was followed: a product, and the run that it came from."""

    evaluation: Evaluation
    direction: list[Tensor]
    images: list[Tensor]


class _Followed(NamedTuple):
    """What was found by following a program."""

    found: Detected
    program: _Program


def _follow(
    caller: Caller, run: Run, arguments: Arguments, program: Any, name: str, *, local: bool
) -> _Followed:
    tracker = Tracker(caller, rule_of, local=local, forward=name == "forward")
    leaves = _copies(arguments)
    tracker.distrust([leaf for leaf in leaves if isinstance(leaf, Tensor)])
    followed: _Program = program(tracker, run, leaves, arguments.chosen)
    size = sum(part.numel() for part in followed.direction)
    rows = sparse.vstack([_rows(caller, tracker, image, size) for image in followed.images], format="csr")
    pattern = SparsityPattern.from_csr(rows)
    pattern = pattern if name == "forward" else pattern.T
    found = Detected(pattern, followed.evaluation, tracker.fallbacks)
    return _Followed(found, followed)


def _copies(arguments: Arguments) -> list[Any]:
    return [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in arguments.leaves]


def _pushed(tracker: Tracker, run: Run, leaves: list[Any], chosen: Sequence[int]) -> _Program:
    """The tangents of the outputs."""
    tangents = _random_like([leaves[index] for index in chosen])
    tracker.follow(tangents)
    with tracker.observer():
        pushed = forward.push(run, leaves, chosen, tangents)
        images = pushed.filled()
    return _Program(pushed.evaluation, tangents, images)


def _pulled(tracker: Tracker, run: Run, leaves: list[Any], chosen: Sequence[int]) -> _Program:
    """The cotangents of the inputs."""
    with tracker.observer():
        recording = reverse.record(run, leaves, chosen)
    cotangents = _random_like(recording.evaluation.outputs)
    tracker.follow(cotangents)
    with tracker.observer():
        images = recording.pull(cotangents)
    return _Program(recording.evaluation, cotangents, images)


def _random_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Random numbers, which are none of the caller's: the same at every call."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(tensor.shape, dtype=torch.float64, generator=generator).to(tensor) for tensor in tensors
    ]


def _modes_agree(run: Run, arguments: Arguments, pushed: _Program) -> bool:
    """Whether v . (J u), of the J u that forward mode has computed, is (J^T v) . u by reverse mode."""
    images, along = pushed.images, _random_like(pushed.images)
    try:
        pulled = reverse.record(run, _copies(arguments), arguments.chosen).pull(along, keep=False)
    except (NotImplementedError, RuntimeError):
        return True  # there is no reverse mode to disagree with
    here = [(image.detach() * v).double() for image, v in zip(images, along, strict=True)]
    there = [(image.detach() * u).double() for image, u in zip(pulled, pushed.direction, strict=True)]
    size = sum(float(part.abs().sum()) for part in (*here, *there))
    difference = sum(float(part.sum()) for part in here) - sum(float(part.sum()) for part in there)
    precision = max((torch.finfo(image.dtype).eps for image in (*images, *pulled)), default=0.0)
    # Not "larger than": numbers that are not finite agree with nothing.
    return abs(difference) <= _ROUNDING * precision * size


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
            "derivative is not sparse; or it has so many entries that they were not told apart (at most "
            f"{MOST_TOLD_APART:,} are). Use jacobian or products (jvp, vjp, hvp); or pass a pattern of your "
            "own."
        )
