"""A function of a batch of two points: by torch.vmap, beside one point after another.

A rule for vmap is asked in every way it may be called. Inputs have the batch in front, at the end, or none;
gradients are taken of the batched function (which differentiates the rule itself) and within the batch (which
runs the backward of the function on batched tensors). Either way can be wrong where the other is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from covector._tree import Arguments, unflatten
from covector.errors import first_sentence
from covector.kernels.bench import Bench
from covector.kernels.row import Row, Status, row_of
from covector.kernels.subject import Run, Subject, detached, variables
from covector.transforms.vjp import vjp
from covector.verify.leaves import is_differentiable

# The second point of a batch is the first times this: so near that it is in the domain, so far that a batch
# that mixes the two shows it.
_ELSEWHERE = 1 - 2.0**-4

# Where an input may have its batch: in front, at the end, or nowhere.
_PLACES = (0, -1, None)
_WORDS = {0: "batched in front", -1: "batched at the end", None: "not batched"}

Function = Callable[..., Any]
Way = Callable[["Batch"], Run]


def placements(count: int) -> Iterator[tuple[int | None, ...]]:
    """A place for each input: at the end and in front by turns; then so that each has every place."""
    first = tuple(_PLACES[(1 + number) % 2] for number in range(count))
    yield first
    for turn in range(len(_PLACES)):
        places = tuple(_PLACES[(turn + number) % len(_PLACES)] for number in range(count))
        if places != first and any(place is not None for place in places):
            yield places


@dataclass(frozen=True)
class Batch:
    """Two points as a batch: the bench of a loop over them, and the same function by torch.vmap."""

    bench: Bench
    inner: Subject
    """Of one point."""
    places: dict[int, int | None]
    """Where each leaf that may be batched has its batch."""

    @property
    def words(self) -> str:
        """How a person would say it."""
        names = dict(zip(self.bench.arguments.chosen, self.bench.names, strict=True))
        return ", ".join(f"{names.get(i, f'argument {i}')} {_WORDS[p]}" for i, p in self.places.items())

    def vmapped(self, leaves: list[Any]) -> list[Any]:
        """The outputs by torch.vmap."""
        return list(_over(leaves, self.places, self.inner))

    def of_the_batch(self) -> Run:
        """The gradient of the batched function."""
        bench = self.bench
        leaves = variables(bench.leaves, bench.arguments.chosen)
        with torch.enable_grad():
            outputs = self.vmapped(leaves)
            gradients = self.inner.pull(outputs, leaves, bench.sample.cotangents)
        return Run([detached(output) for output in outputs], gradients)

    def within_the_batch(self) -> Run:
        """The gradient of each point, batched; by an input without a batch, their sum."""
        bench, chosen = self.bench, list(self.bench.arguments.chosen)
        cotangents = bench.sample.cotangents
        kept = [i for i, cotangent in enumerate(cotangents) if cotangent is not None]

        def pulled(weights: list[Tensor], *given: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            def call(*primals: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
                leaves = list(given)
                for index, primal in zip(chosen, primals, strict=True):
                    leaves[index] = primal
                outputs = _tensors(self.inner(leaves))
                return tuple(outputs[i] for i in kept), tuple(outputs)

            _, pull, outputs = vjp(call, *(given[i] for i in chosen), has_aux=True)
            self.inner.count.backward += 1
            return tuple(outputs), pull(tuple(weights))

        dims = [self.places.get(i) for i in range(len(bench.leaves))]
        leaves = variables(bench.leaves, ())
        outputs, found = torch.vmap(pulled, (0, *dims))([cotangents[i] for i in kept], *leaves)
        gradients = [
            gradient.sum(0) if self.places[i] is None else gradient.movedim(0, self.places[i])
            for i, gradient in zip(chosen, found, strict=True)
        ]
        return Run([output.detach() for output in outputs], [gradient.detach() for gradient in gradients])

    def without_gradients(self) -> Run:
        """The outputs alone."""
        with torch.no_grad():
            return Run(self.vmapped(variables(self.bench.leaves, ())))


def batches(bench: Bench) -> Iterator[Batch]:
    """Batches of the inputs and of numbers nearby, with the batch in several places."""
    chosen = list(bench.arguments.chosen) or [i for i, x in enumerate(bench.leaves) if is_differentiable(x)]
    for places in placements(len(chosen)):
        yield _batch(bench, dict(zip(chosen, places, strict=True)))


def _batch(bench: Bench, places: dict[int, int | None]) -> Batch:
    leaves = list(bench.leaves)
    for index, place in places.items():
        leaf = leaves[index].detach()
        leaves[index] = leaf if place is None else torch.stack([leaf, leaf * _ELSEWHERE], place)
    loops = [_looped(subject, places) for subject in (bench.kernel, bench.reference)]
    return Batch(replace(bench, kernel=loops[0], reference=loops[1], leaves=leaves), bench.kernel, places)


def _looped(subject: Subject, places: dict[int, int | None]) -> Subject:
    """One point after another, and their outputs as a batch."""

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(args, kwargs)
        leaves = arguments.select(arguments.slots, single=False).leaves
        points = [
            [x if (p := places.get(i)) is None else x.select(p, n) for i, x in enumerate(leaves)]
            for n in range(2)
        ]
        (first, spec, _), (second, _, _) = map(subject.returned, points)
        stacked = [torch.stack(pair) for pair in zip(_tensors(first), _tensors(second), strict=True)]
        return unflatten(stacked, spec) if len(stacked) == len(first) else stacked

    return Subject(call, subject.arguments)


def _over(leaves: list[Any], places: dict[int, int | None], subject: Subject) -> tuple[Tensor, ...]:
    """The outputs of a function that is batched over some of its leaves."""
    indices = [i for i, place in places.items() if place is not None]

    def call(*batched: Tensor) -> tuple[Tensor, ...]:
        point = list(leaves)
        for index, leaf in zip(indices, batched, strict=True):
            point[index] = leaf
        return tuple(_tensors(subject(point)))

    dims = tuple(places[i] for i in indices)
    return tuple(torch.vmap(call, dims)(*(leaves[i] for i in indices)))


def _tensors(outputs: list[Any]) -> list[Tensor]:
    return [output for output in outputs if isinstance(output, Tensor)]


def batched_rows(bench: Bench, name: str, ways: Mapping[str, Way]) -> Iterator[Row]:
    """What all batches come to: what is wrong in one of them, or that they passed; and what cannot be run.

    Where runs are long, one batch that can be run is enough.
    """
    passed: Row | None = None
    refused: Row | None = None
    for batch in batches(bench):
        for words, way in ways.items():
            try:
                run = way(batch)
            except Exception as error:
                text = f"{type(error).__name__}: {first_sentence(error)}"
                refused = refused or Row(f"{name}: {words}, {batch.words}", Status.UNSUPPORTED, text)
                continue
            compared = batch.bench.compared if run.gradients else batch.bench.compared_outputs
            row = row_of(name, compared(run, batch.bench.truths))
            if row.status is not Status.PASSED:
                yield replace(row, text=f"{words}, {batch.words}: {row.text}")
                return
            passed = passed or row
        if passed is not None and bench.is_large:
            break
    if passed is None:
        text = refused.text if refused is not None else "there is nothing to batch"
        yield Row(name, Status.UNSUPPORTED, text)
        return
    yield passed
    if refused is not None:
        yield refused
