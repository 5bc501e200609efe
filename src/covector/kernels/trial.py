"""One dtype: the kernel as it was given, then through the lenses, and its derivative in float64."""

from __future__ import annotations

from dataclasses import dataclass

from covector.kernels import base
from covector.kernels.bench import Bench, raised
from covector.kernels.combined import Combined
from covector.kernels.comparison import Comparison
from covector.kernels.findings import base_finding, lens_finding
from covector.kernels.lenses.table import Lens
from covector.kernels.precise import precise
from covector.kernels.progress import Progress
from covector.kernels.row import Row, Status
from covector.verify.finding import Finding, Outcome

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


def tried(bench: Bench, lenses: tuple[Lens, ...], progress: Progress, label: str) -> Trial:
    """The kernel as it was given decides first: through the lenses a wrong one shows the same again."""
    progress.at(f"outputs and gradients{label}")
    try:
        bench.truths  # noqa: B018 - made here, where it can fail
    except Exception as error:
        text = f"the reference {raised(error)}"
        found = Finding(f"reference{label}", Outcome.INCONCLUSIVE, text, advice=_FIX_REFERENCE)
        return Trial(bench.dtype, [], [], [found])
    compared = base.compared(bench)
    findings = [base_finding(f"as given{label}", compared)]
    wrong = any(one.outcome is Outcome.FAILED for one in compared)
    combined = Combined(bench)
    looked = []
    for lens in lenses:
        progress.at(f"{lens.name}{label}")
        rows = _rows(lens, bench, combined, wrong)
        looked.append((lens.name, rows))
        findings.append(lens_finding(f"{lens.name}{label}", rows))
    if not wrong:
        progress.at(f"gradient check in float64{label}")
        findings += precise(bench, f"float64{label}")
    return Trial(bench.dtype, compared, looked, findings)


def _rows(lens: Lens, bench: Bench, combined: Combined, wrong: bool) -> list[Row]:
    """What a lens shows; one that breaks says so, and the others go on."""
    if wrong and lens.rests_on_truth:
        return [Row(lens.name, Status.SKIPPED, "the kernel is wrong as it was given")]
    rows: list[Row] = []
    try:
        rows.extend(lens.look(bench, combined))
    except Exception as error:
        rows.append(Row(lens.name, Status.FAILED, raised(error)))
    return rows
