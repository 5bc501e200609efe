"""Where a kernel is tried in one dtype: its inputs, the truth about them, and what runs have shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from covector._lazy import lazy
from covector._random import seeded
from covector._tree import Arguments
from covector.errors import first_sentence
from covector.kernels import limits
from covector.kernels.comparison import Comparison, compare
from covector.kernels.layouts import memory
from covector.kernels.slices import slicings
from covector.kernels.subject import Run, Subject, random_like, variables
from covector.kernels.truth import Truth, nudged, truth_of
from covector.verify.finding import Outcome
from covector.verify.leaves import doubled, is_differentiable, same_bits

# Slices are looked at in so many runs, among which the false alarms are divided.
MOST_RUNS = 60


# Numbers of the inputs beyond which a run is long.
_LONG = 4096


@dataclass(frozen=True)
class Settings:
    """What the caller asked for."""

    ratio: float = 3.0
    nondet_tol: float = 0.0
    seed: int = 0


# Something that is run by leaves and cotangents (or tangents).
RunOf = Callable[[list[Any], list[Tensor | None]], Any]


@dataclass(frozen=True)
class Sample:
    """The numbers of a call: all leaves of its arguments, and a cotangent for each output (None: none)."""

    leaves: list[Any]
    cotangents: list[Tensor | None]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    """The mode in which the reference is run in the dtype."""


class Seen(NamedTuple):
    """What the reference gave: in float64, in the dtype, and there with the inputs nudged."""

    golden: Any
    eager: Any
    nudged: list[Any]

    def part(self, of: Callable[[Any], Any]) -> Seen:
        """A part of each."""
        return Seen(of(self.golden), of(self.eager), list(map(of, self.nudged)))

    def truth(self, name: str, key: Any) -> Truth | None:
        """What is true of the tensor under a key; None where there are no numbers to be right about."""
        golden, eager, nudged = self.part(itemgetter(key))
        if not all(map(is_differentiable, (golden, eager, *nudged))):
            return None
        return truth_of(name, golden, eager, nudged)


@dataclass(frozen=True)
class Truths:
    """What is true of a sample: of every output that has a derivative, and of every gradient."""

    outputs: list[Truth | None]
    gradients: list[Truth | None]
    exact: list[Any]
    """Outputs of the reference that are no floating-point tensors, which a kernel has to give as they are."""


@dataclass(frozen=True)
class First:
    """The first run: what it gave, saved for its backward and spoiled there, and where its outputs lie."""

    run: Run
    saved: int
    spoiled: int
    aliases: set[tuple[int, int, str]]


@dataclass
class Bench:
    """One dtype: the kernel and the reference on the same numbers."""

    kernel: Subject
    reference: Subject
    leaves: list[Any]
    settings: Settings
    dtype: str
    names: list[str]
    """Of the chosen leaves."""
    other_size: list[Any] | None = None
    """Leaves of another size, where they are made from one."""
    sizes: Callable[[int], list[Any]] | None = None
    """How the leaves are made from a size, if the caller said it."""
    changed: dict[str, str] = field(default_factory=dict)
    """What the kernel wrote into, and in which way of calling it that was seen first."""
    output_names: list[str] = field(default_factory=list)
    unjudged: str = ""
    """Why runs are not compared with the truth, if they are not: it is not there, or the kernel is wrong."""
    first: First | None = None
    """The first run of the kernel, as it was given; None if it raised."""

    @property
    def arguments(self) -> Arguments:
        """Of the calls."""
        return self.kernel.arguments

    @property
    def is_large(self) -> bool:
        """Whether a run is so long that there should be few of them."""
        return sum(self.leaves[i].numel() for i in self.arguments.chosen) > _LONG

    def names_of(self, outputs: Sequence[Any]) -> list[str]:
        """How a person would write outputs of the kernel, which may be others than the reference's."""
        if len(outputs) == len(self.output_names):
            return self.output_names
        return [f"output[{number}]" for number in range(len(outputs))]

    @lazy
    def sample(self) -> Sample:
        """The inputs as they were given, with random cotangents of full scale."""
        outputs, _, self.output_names = self.reference.returned(self.leaves)
        return Sample(self.leaves, random_like(outputs, self.settings.seed + 1))

    @lazy
    def truths(self) -> Truths:
        """Of the inputs as they were given."""
        return self.truths_of(self.sample)

    @lazy
    def alpha(self) -> float:
        """The share of false alarms for each slice."""
        known = [t for t in (*self.truths.outputs, *self.truths.gradients) if t is not None]
        count = sum(2 + sum(s.count for s in slicings(t.golden.shape)) for t in known)
        return limits.FALSE_ALARMS / (max(1, count) * MOST_RUNS)

    def truths_of(self, sample: Sample) -> Truths:
        """Of these numbers: every output and gradient."""

        def run(leaves: list[Any], cotangents: list[Tensor | None]) -> Run:
            return self.reference.run(variables(leaves, self.arguments.chosen), cotangents)

        seen = self.seen(run, sample)
        outputs, gradients = seen.part(attrgetter("outputs")), seen.part(attrgetter("gradients"))
        return Truths(
            [outputs.truth(name, i) for i, name in enumerate(self.output_names)],
            [gradients.truth(f"grad {name}", i) for i, name in enumerate(self.names)],
            outputs.eager,
        )

    def seen(self, run: RunOf, sample: Sample, *, nudge_both: bool = False) -> Seen:
        """What a run of the reference gives by leaves and cotangents; the latter may be nudged, too.

        The reference gets contiguous tensors: it is not the one that is tried.
        """
        golden = run(
            [doubled(compact(leaf)) for leaf in sample.leaves], list(map(doubled, sample.cotangents))
        )
        generator = seeded(self.settings.seed)
        with sample.context():
            eager = run(list(map(compact, sample.leaves)), sample.cotangents)
            nudged = [
                run(
                    self.nudged(sample.leaves, generator),
                    self.nudged(sample.cotangents, generator) if nudge_both else sample.cotangents,
                )
                for _ in range(limits.RUNS)
            ]
        return Seen(golden, eager, nudged)

    def nudged(self, leaves: Sequence[Any], generator: torch.Generator) -> list[Any]:
        """The leaves, those that are differentiated moved by half an ulp."""
        chosen = set(self.arguments.chosen)
        return [nudged(leaf, generator) if i in chosen else leaf for i, leaf in enumerate(leaves)]

    # Runs of the kernel.

    def run_first(self) -> Run:
        """Forward and backward as given, kept for the lenses that compare with it or look into its memory."""
        saved: list[tuple[Tensor, Tensor]] = []

        def pack(tensor: Tensor) -> Tensor:
            saved.append((tensor, tensor.detach().clone()))
            return tensor

        leaves = variables(self.leaves, self.arguments.chosen)
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            run = self.run(leaves, self.sample.cotangents, "")
        spoiled = sum(not same_bits(tensor.detach(), before) for tensor, before in saved)
        self.first = First(run, len(saved), spoiled, aliases(run.outputs, leaves))
        return run

    def run(self, leaves: Sequence[Any], cotangents: Sequence[Tensor | None], way: str) -> Run:
        """Forward and backward; what the kernel writes into is noted."""
        watched = [
            (name, tensor, memory(tensor).clone()) for name, tensor in self._watched(leaves, cotangents)
        ]
        run = self.kernel.run(leaves, cotangents)
        for name, tensor, before in watched:
            if not same_bits(memory(tensor), before):
                self.changed.setdefault(name, way)
        return run

    def _watched(
        self, leaves: Sequence[Any], cotangents: Sequence[Tensor | None]
    ) -> list[tuple[str, Tensor]]:
        inputs = zip(self.names, (leaves[i] for i in self.arguments.chosen), strict=True)
        pulled = [(f"the cotangent of {n}", c) for n, c in zip(self.output_names, cotangents, strict=True)]
        others = [
            (f"argument {i}", leaf)
            for i, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and i not in self.arguments.chosen
        ]
        return [(name, t) for name, t in (*inputs, *others, *pulled) if isinstance(t, Tensor)]

    def compared(self, run: Run, truths: Truths, wanted: Sequence[int] | None = None) -> list[Comparison]:
        """Outputs and gradients beside the truth; `wanted` are the leaves whose gradients were asked for."""
        wanted = self.arguments.chosen if wanted is None else wanted
        compared = self.compared_outputs(run, truths)
        if any(c.outcome is Outcome.FAILED and c.truth is None for c in compared):
            return compared
        for index, name, got, truth in zip(
            self.arguments.chosen, self.names, run.gradients, truths.gradients, strict=True
        ):
            if index in wanted:
                compared.append(self._gradient(f"grad {name}", got, truth))
        return compared

    def compared_outputs(self, run: Run, truths: Truths) -> list[Comparison]:
        """The outputs alone."""
        if len(run.outputs) != len(truths.outputs):
            text = f"{len(run.outputs)} outputs, the reference has {len(truths.outputs)}"
            return [Comparison("outputs", Outcome.FAILED, text)]
        rows = zip(self.output_names, run.outputs, truths.outputs, truths.exact, strict=True)
        return [self._output(name, got, truth, exact) for name, got, truth, exact in rows]

    def _output(self, name: str, got: Any, truth: Truth | None, exact: Any) -> Comparison:
        if truth is not None:
            return self._tensor(name, got, truth)
        tensors = isinstance(got, Tensor) or isinstance(exact, Tensor)
        same = same_bits(got, exact) if _same_kind(got, exact) else not tensors and bool(got == exact)
        return Comparison(
            name, Outcome.PASSED if same else Outcome.FAILED, "" if same else "differs from the reference's"
        )

    def _gradient(self, name: str, got: Tensor | None, truth: Truth | None) -> Comparison:
        there = got is not None and bool(got.any())
        expected = truth is not None and bool(truth.golden.any())
        if not there and not expected:  # none is the same as zeros
            return Comparison(name, Outcome.PASSED, truth=truth)
        if truth is None:
            return Comparison(name, Outcome.FAILED, "there is one, the reference has none")
        if got is None:
            text = "there is none, the reference has one"
            return Comparison(name, Outcome.FAILED, text, advice=_NO_GRADIENT)
        return self._tensor(name, got, truth)

    def _tensor(self, name: str, got: Any, truth: Truth) -> Comparison:
        if not isinstance(got, Tensor):
            return Comparison(name, Outcome.FAILED, f"a {type(got).__name__}, the reference gives a tensor")
        shape = tuple(truth.golden.shape)[: got.dim() if got.is_complex() else None]
        if tuple(got.shape) != shape or got.dtype is not truth.dtype:
            theirs, ours = _kind(shape, truth.dtype), _kind(tuple(got.shape), got.dtype)
            text = f"{theirs} in the reference, {ours} in the kernel"
            return Comparison(name, Outcome.FAILED, text)
        return compare(got, truth, self.settings.ratio, self.alpha)


_NO_GRADIENT = "Return a gradient for this input from backward, or do not detach it in forward."


def _kind(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"shape {shape} and {str(dtype).removeprefix('torch.')}"


def _same_kind(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype is b.dtype


def aliases(outputs: Sequence[Any], leaves: Sequence[Any]) -> set[tuple[int, int, str]]:
    """Which outputs share their storage with an input, or with an earlier output."""

    def places(values: Sequence[Any]) -> list[int]:
        return [v.untyped_storage().data_ptr() if is_differentiable(v) and v.numel() else 0 for v in values]

    out, into = places(outputs), places(leaves)
    found = {(i, j, "input") for i, a in enumerate(out) for j, b in enumerate(into) if a and a == b}
    return found | {
        (i, j, "output") for i, a in enumerate(out) for j, b in enumerate(out[:i]) if a and a == b
    }


def compact(leaf: Any) -> Any:
    """A leaf with memory of its own, in order."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().clone(memory_format=torch.contiguous_format)


def raised(error: BaseException) -> str:
    """What a function raised, in one line."""
    return f"raised {type(error).__name__}: {first_sentence(error)}"
