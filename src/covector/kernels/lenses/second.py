"""Second derivatives: double backward beside the reference's, or a clear refusal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covector.errors import UnsupportedError, first_sentence
from covector.kernels.bench import Bench, Seen, raised
from covector.kernels.combined import Combined
from covector.kernels.comparison import Comparison, compare
from covector.kernels.row import Row, Status, beyond_doubt, row_of
from covector.kernels.subject import Subject, random_like, variables
from covector.verify.finding import Outcome

_DETACHED = (
    "has no graph, so second derivatives through it are silently zero: make backward differentiable, or "
    "mark it @torch.autograd.function.once_differentiable"
)


def second_order(bench: Bench, combined: Combined) -> Iterator[Row]:
    """Gradients of a random combination of the gradients, by the inputs and by the cotangents."""
    way = "double backward"
    if not bench.arguments.chosen:
        yield Row(way, Status.SKIPPED, "no input requires grad")
        return
    try:
        seen = bench.seen(partial(_twice, bench, bench.reference), bench.sample)
    except Exception as error:
        yield Row(way, Status.SKIPPED, f"the reference {raised(error)}")
        return
    try:
        found = _twice(bench, bench.kernel, bench.leaves, bench.sample.cotangents)
    except Exception as error:
        yield Row(way, Status.UNSUPPORTED, f"refused: {first_sentence(error)}")
        return
    # The noise of a second derivative is that of how the first is written, which is the kernel's own affair.
    yield row_of(way, list(map(beyond_doubt, _compared(bench, found, seen))))


class Twice(NamedTuple):
    """Which gradients have a graph, and the second derivatives by inputs and cotangents."""

    attached: dict[str, bool]
    seconds: dict[str, Tensor | None]


def _twice(
    bench: Bench, subject: Subject, leaves: Sequence[Any], cotangents: Sequence[Tensor | None]
) -> Twice:
    """Differentiate a random combination of the gradients."""
    leaves = variables(leaves, subject.arguments.chosen)
    pulled = [None if c is None else c.detach().requires_grad_() for c in cotangents]
    with torch.enable_grad():
        outputs = subject(leaves)
        first = subject.pull(outputs, leaves, pulled, create_graph=True)
        attached = {n: g is not None and g.requires_grad for n, g in zip(bench.names, first, strict=True)}
        ends = [g for g in first if g is not None and g.requires_grad]
        if any(map(_refuses, ends)):
            raise UnsupportedError("backward is marked once_differentiable")
        by = {f"by {n}": leaves[i] for i, n in zip(subject.arguments.chosen, bench.names, strict=True)}
        by |= {
            f"by the cotangent of {n}": c
            for n, c in zip(bench.output_names, pulled, strict=True)
            if c is not None
        }
        seconds: Sequence[Tensor | None] = [None] * len(by)
        if ends:
            subject.count.backward += 1
            weights = random_like(ends, bench.settings.seed + 2)
            seconds = torch.autograd.grad(ends, list(by.values()), weights, allow_unused=True)
    return Twice(attached, dict(zip(by, seconds, strict=True)))


def _refuses(gradient: Tensor) -> bool:
    """Whether an error waits in the graph of a gradient: torch leaves it out where it is asked by inputs."""
    waiting, seen = [gradient.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if type(node).__name__ == "Error":
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False


def _compared(bench: Bench, found: Twice, seen: Seen) -> Iterator[Comparison]:
    for name, attached in found.attached.items():
        if seen.golden.attached[name] and not attached:
            yield Comparison(f"grad {name}", Outcome.FAILED, _DETACHED)
    seconds = seen.part(attrgetter("seconds"))
    for name, got in found.seconds.items():
        truth = seconds.truth(f"second derivative {name}", name)
        if truth is None or not bool(truth.golden.any()):
            continue
        got = torch.zeros_like(seconds.eager[name]) if got is None else got
        yield compare(got, truth, bench.settings.ratio, bench.alpha)
