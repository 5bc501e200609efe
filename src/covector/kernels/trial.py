"""One dtype: the kernel as it was given, then through the lenses, and its derivative in float64."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from covector._engine import graph
from covector.kernels import base
from covector.kernels.bench import Bench, raised
from covector.kernels.combined import Combined
from covector.kernels.comparison import Comparison
from covector.kernels.findings import base_finding, lens_finding
from covector.kernels.lenses.table import Lens
from covector.kernels.precise import precise
from covector.kernels.row import Row, Status, row_of_error
from covector.kernels.subject import variables
from covector.verify.finding import Finding, Outcome
from covector.verify.leaves import doubled, is_differentiable

_FIX_REFERENCE = (
    "The reference has to be plain torch code that follows the dtype of its inputs: make new tensors like "
    "them (torch.zeros_like(x), x.new_zeros(...)), and do not cast to a dtype by name."
)


@dataclass(frozen=True)
class Trial:
    """What was seen in one dtype."""

    dtype: str
    compared: list[Comparison]
    looked: list[tuple[str, list[Row]]]
    findings: list[Finding]


def tried(bench: Bench, lenses: tuple[Lens, ...], begin: Callable[[str], None], label: str) -> Trial:
    """The kernel as it was given decides first: through the lenses a wrong one shows the same again.

    `begin` is told which step begins.
    """
    begin(f"outputs and gradients{label}")
    compared, findings = _as_given(bench, label)
    combined = Combined(bench)
    looked = []
    for lens in lenses:
        begin(f"{lens.name}{label}")
        rows = _rows(lens, bench, combined)
        looked.append((lens.name, rows))
        if any(row.status is not Status.SKIPPED for row in rows):
            findings.append(lens_finding(f"{lens.name}{label}", rows, lens.look_at))
    if not bench.unjudged:
        begin(f"gradient check in float64{label}")
        findings += precise(bench, f"float64{label}")
    return Trial(bench.dtype, compared, looked, findings)


def _as_given(bench: Bench, label: str) -> tuple[list[Comparison], list[Finding]]:
    """The kernel beside the truth, if there is one; without, it is run for the lenses that do not need it."""
    try:
        bench.truths  # noqa: B018 - made here, where it can fail
        text = coarse_reference(bench)
    except Exception as error:
        text = f"the reference {raised(error)}"
    if text:
        bench.unjudged = "the reference gives no golden values"
        with suppress(Exception):  # lenses say so
            bench.run_first()
        return [], [Finding(f"reference{label}", Outcome.INCONCLUSIVE, text, advice=_FIX_REFERENCE)]
    compared = base.compared(bench)
    if any(one.outcome is Outcome.FAILED for one in compared):
        bench.unjudged = "the kernel is wrong as it was given"
    return compared, [base_finding(f"as given{label}", compared, base.around(bench))]


# Golden values have to be this many times as sharp as the dtype that is checked.
_SHARPER = 64


def coarse_reference(bench: Bench) -> str:
    """What is wrong with a reference that takes float64, and computes in less."""
    leaves = variables([doubled(leaf) for leaf in bench.leaves], bench.arguments.chosen)
    with torch.enable_grad():
        outputs = [output for output in bench.reference(leaves) if is_differentiable(output)]
    if bench.arguments.chosen:  # a constant has the dtype that it has
        outputs = [output for output in outputs if output.requires_grad]
    reached = graph.reached([output for output in outputs if output.requires_grad])
    used = {output.dtype for output in outputs} | graph.bytes_by_dtype(reached.inner).keys()
    coarsest = max(used, key=lambda dtype: _eps(dtype), default=torch.float64)
    checked = min((_eps(leaf.dtype) for leaf in bench.leaves if is_differentiable(leaf)), default=1.0)
    if _eps(coarsest) <= max(checked / _SHARPER, _eps(torch.float64)):
        return ""
    name = str(coarsest).removeprefix("torch.")
    return (
        f"the reference computes in {name} where it is given float64, so that its values are no golden ones"
    )


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _rows(lens: Lens, bench: Bench, combined: Combined) -> list[Row]:
    """What a lens shows; one that breaks says so, and the others go on."""
    if bench.first is None:
        return [Row(lens.name, Status.SKIPPED, "the kernel raises as it was given")]
    if bench.unjudged and lens.rests_on_truth:
        return [Row(lens.name, Status.SKIPPED, bench.unjudged)]
    rows: list[Row] = []
    try:
        rows.extend(lens.look(bench, combined))
    except Exception as error:
        rows.append(row_of_error(lens.name, error))
    return rows
