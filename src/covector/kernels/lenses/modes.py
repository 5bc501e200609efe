"""Modes of torch: compiled, batched, forward mode, nested, autocast, without grad, checkpointed, captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from covector._engine.levels import DualLevel, GradLevel, unwrap, wrap
from covector._engine.modes import TRACING
from covector._tree import flatten, unflatten
from covector.errors import first_sentence
from covector.kernels.batches import Batch, batched_rows
from covector.kernels.bench import Bench, Sample
from covector.kernels.combined import Combined
from covector.kernels.comparison import compare
from covector.kernels.row import Row, Status, row_of
from covector.kernels.subject import Run, Subject, detached, random_like, variables
from covector.verify.leaves import is_differentiable

Call = Callable[..., Any]
Look = Callable[[Bench, str], Iterator[Row]]


def modes(bench: Bench, combined: Combined) -> Iterator[Row]:
    """Each gives what the kernel gives without it; what raises is not supported there."""
    for name, look in MODES:
        yield from _supported(bench, name, look)


def _supported(bench: Bench, name: str, look: Look) -> Iterator[Row]:
    """What a mode gives, or that it is not supported."""
    try:
        yield from look(bench, name)
    except Exception as error:
        yield Row(name, Status.UNSUPPORTED, f"{type(error).__name__}: {first_sentence(error)}")


def _leaves(bench: Bench) -> list[Any]:
    return variables(bench.leaves, bench.arguments.chosen)


def through(bench: Bench, name: str, function: Call) -> Iterator[Row]:
    """Forward and backward of a function made from the kernel, beside the truth."""
    leaves = _leaves(bench)
    with torch.enable_grad():
        outputs = bench.kernel(leaves, function)
        gradients = bench.kernel.pull(outputs, leaves, bench.sample.cotangents)
    yield row_of(name, bench.compared(Run([detached(o) for o in outputs], gradients), bench.truths))


def compiled(bench: Bench, name: str) -> Iterator[Row]:
    """Traced as a whole, forward and backward, without generated code: what a compiler relies on."""
    function = bench.kernel.function

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # torch keeps what it compiled with the code of a function, and only so much of it: this one is new.
    call.__code__ = call.__code__.replace()
    with TRACING:
        rows = list(through(bench, name, torch.compile(call, fullgraph=True, backend="aot_eager")))
    yield from rows


def _checkpointed(bench: Bench, name: str) -> Iterator[Row]:
    function = bench.kernel.function
    yield from through(
        bench, name, lambda *args, **kwargs: checkpoint(function, *args, use_reentrant=False, **kwargs)
    )


def _batched(bench: Bench, name: str) -> Iterator[Row]:
    """Two points as a batch, with the gradient of it if there is one."""
    rows = list(batched_rows(bench, name, {"its gradient": Batch.of_the_batch}))
    if rows[0].status is Status.UNSUPPORTED:
        outputs = list(batched_rows(bench, name, {"its outputs": Batch.without_gradients}))
        refused = replace(rows[0], way=f"{name}: its gradient")
        rows = outputs if outputs[0].status is Status.UNSUPPORTED else [*outputs, refused]
    yield from rows


def pushed(subject: Subject, leaves: Sequence[Any], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The derivative of each output along the tangents, by forward mode."""
    with DualLevel():  # which threads share
        duals = [
            forward_ad.make_dual(leaf.detach(), tangent, level=0) if tangent is not None else leaf
            for leaf, tangent in zip(leaves, tangents, strict=True)
        ]
        outputs = subject(duals)
        return [
            forward_ad.unpack_dual(output, level=0).tangent if is_differentiable(output) else None
            for output in outputs
        ]


def _forward(bench: Bench, name: str) -> Iterator[Row]:
    """Along a random tangent, beside the reference's."""
    drawn = random_like(bench.leaves, bench.settings.seed + 3)
    tangents = [t if i in bench.arguments.chosen else None for i, t in enumerate(drawn)]
    found = pushed(bench.kernel, bench.leaves, tangents)
    seen = bench.seen(partial(pushed, bench.reference), Sample(bench.leaves, tangents), nudge_both=True)
    compared = []
    for i, output in enumerate(bench.output_names):
        truth, got = seen.truth(f"tangent of {output}", i), found[i]
        if truth is None:
            continue
        if got is None:
            yield Row(name, Status.UNSUPPORTED, f"{output} comes out without a tangent")
            return
        compared.append(compare(got, truth, bench.settings.ratio, bench.alpha))
    yield row_of(name, compared)


def nested(bench: Bench, name: str) -> Iterator[Row]:
    """On a level of torch's function transforms, as torch.func.grad and ours make when they are nested."""
    plain = variables(bench.leaves, ())  # on the level, a detached tensor belongs to it
    with torch.enable_grad(), GradLevel() as level:
        leaves = [
            level.variable(wrap(leaf, level.number)) if i in bench.arguments.chosen else leaf
            for i, leaf in enumerate(plain)
        ]
        outputs = bench.kernel(leaves)
        gradients = bench.kernel.pull(outputs, leaves, bench.sample.cotangents)
        run = Run(
            [unwrap(o, level.number).detach() if isinstance(o, Tensor) else o for o in outputs],
            [None if g is None else unwrap(g, level.number).detach() for g in gradients],
        )
    yield row_of(name, bench.compared(run, bench.truths))


_AUTOCAST = torch.bfloat16


def _autocast(bench: Bench, name: str) -> Iterator[Row]:
    """As without it, as the reference under it, or as the reference with everything in its dtype.

    Which operations autocast takes to its dtype depends on what the kernel is made of.
    """
    device = next((x.device.type for x in bench.leaves if isinstance(x, Tensor)), "cpu")

    def context() -> Any:
        return torch.autocast(device, dtype=_AUTOCAST)

    leaves = _leaves(bench)
    with torch.enable_grad(), context():
        outputs = bench.kernel(leaves)
    gradients = bench.kernel.pull(outputs, leaves, bench.sample.cotangents)
    run = Run([detached(o) for o in outputs], gradients)
    row = row_of(name, bench.compared(run, bench.truths))
    sample = Sample(bench.leaves, bench.sample.cotangents, context)
    for reference in (bench.reference.function, _lowered(bench.reference.function)):
        if row.status is not Status.PASSED:
            other = replace(bench, reference=Subject(reference, bench.arguments))
            truths = other.truths_of(sample)
            # A kernel that gives its own dtype is compared in that of the reference.
            fitted = [
                o.to(t.dtype) if isinstance(o, Tensor) and t is not None else o
                for o, t in zip(run.outputs, truths.outputs, strict=True)
            ]
            row = row_of(name, bench.compared(Run(fitted, gradients), truths))
    yield row


def _lowered(function: Call) -> Call:
    """The function with every number in autocast's dtype, but for golden ones."""

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = flatten((args, kwargs))
        given, wanted = unflatten([_rounded(leaf) for leaf in leaves], spec)
        return function(*given, **wanted)

    return call


def _rounded(leaf: Any) -> Any:
    low = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype is not torch.float64
    return leaf.to(_AUTOCAST) if low else leaf


def _outputs_in(context: Callable[[], Any]) -> Look:
    """The outputs alone."""

    def look(bench: Bench, name: str) -> Iterator[Row]:
        with context():
            outputs = bench.kernel(_leaves(bench))
        yield row_of(name, bench.compared_outputs(Run([detached(o) for o in outputs]), bench.truths))

    return look


def _without_grad(bench: Bench, name: str) -> Iterator[Row]:
    """Inference mode and no_grad; where runs are long, the first for both, as grad is disabled in both."""
    (row,) = _supported(bench, "inference mode", _outputs_in(torch.inference_mode))
    yield row
    if bench.is_large and row.status is Status.PASSED:
        yield replace(row, way="no_grad")
    else:
        yield from _supported(bench, "no_grad", _outputs_in(torch.no_grad))


def _captured(bench: Bench, name: str) -> Iterator[Row]:
    """Captured as a CUDA graph and replayed."""
    if not any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in bench.leaves):
        yield Row(name, Status.SKIPPED, "no input is on a GPU")
        return
    args, _ = bench.arguments.rebuild(_leaves(bench))
    yield from through(bench, name, torch.cuda.make_graphed_callables(bench.kernel.function, tuple(args)))


MODES: tuple[tuple[str, Look], ...] = (
    ("torch.compile (fullgraph)", compiled),
    ("torch.vmap", _batched),
    ("forward mode", _forward),
    ("torch.func", nested),
    ("autocast", _autocast),
    ("inference mode, no_grad", _without_grad),
    ("activation checkpointing", _checkpointed),
    ("CUDA graphs", _captured),
)
