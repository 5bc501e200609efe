"""What a kernel writes into, and what memory its outputs share."""

from __future__ import annotations

from collections.abc import Iterator

from covector.kernels.bench import Bench, aliases
from covector.kernels.combined import Combined
from covector.kernels.row import Row, Status
from covector.kernels.subject import variables


def in_place(bench: Bench, combined: Combined) -> Iterator[Row]:
    """Inputs and cotangents unchanged in all runs so far; saved tensors; memory that is shared."""
    for name, way in bench.changed.items():
        yield Row(name, Status.FAILED, f"the kernel writes into it ({way or 'as it was given'})")
    if not bench.changed:
        yield Row("inputs and cotangents", Status.PASSED)
    yield from _memory(bench)


def _memory(bench: Bench) -> Iterator[Row]:
    """Saved tensors stay as they are; outputs share memory as the reference's do."""
    first = bench.first
    if first is None:
        yield Row("memory", Status.SKIPPED, "the kernel raises as it was given")
        return
    if first.spoiled:
        text = f"the backward writes into {first.spoiled} of {first.saved} of them, so a second one is wrong"
        yield Row("saved tensors", Status.FAILED, text)
    elif first.saved:
        yield Row("saved tensors", Status.PASSED)
    theirs = variables(bench.leaves, bench.arguments.chosen)
    found = first.aliases - aliases(bench.reference(theirs), theirs)
    names = dict(zip(bench.arguments.chosen, bench.names, strict=True))
    outputs = bench.names_of(first.run.outputs)
    for output, other, kind in sorted(found):
        what = names.get(other, f"argument {other}") if kind == "input" else outputs[other]
        text = f"{outputs[output]} shares its memory, the reference's does not"
        yield Row(what, Status.FAILED, text)
    if not found:
        yield Row("memory of the outputs", Status.PASSED)
