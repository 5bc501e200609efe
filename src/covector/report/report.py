"""What a check found, as data: truthy, printable, JSON, a page."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covector._files import path_of, write_text
from covector.errors import ArgumentValueError
from covector.verify.finding import Finding, Outcome, Table

if TYPE_CHECKING:
    from covector.report.figures import Source

# Of the data that `to_dict` gives: raised when a key is renamed, removed or changes its meaning.
VERSION = 1


# From the best to the worst.
_RANK = list(Outcome)


@dataclass(frozen=True)
class Report:
    """What was checked, how, and what was found. True if everything passed."""

    function: str
    verb: str
    findings: tuple[Finding, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    method: str = ""
    seed: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    reproduce: str = ""
    cause: BaseException | None = field(default=None, repr=False, compare=False)
    source: Source | None = field(default=None, repr=False, compare=False)
    tables: tuple[Table, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of all checks."""
        return max((f.outcome for f in self.findings), key=_RANK.index, default=Outcome.PASSED)

    def __bool__(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def worst(self) -> Finding | None:
        """The first finding with the report's outcome."""
        return next((f for f in self.findings if f.outcome is self.outcome), None)

    @property
    def title(self) -> str:
        """What was called, and how it ended."""
        return f"{self.verb}({self.function}): {self.outcome.value.upper()}"

    @property
    def how(self) -> str:
        """How much was looked at, and what it took."""
        calls = "1 call" if self.evaluations == 1 else f"{self.evaluations} calls"
        return f"{self.method}; {calls} of the function"

    def __repr__(self) -> str:
        """One line, which is what a failing `assert check(f, x)` shows."""
        text = self.title
        if not self and (worst := self.worst) is not None:
            text += f": {worst.summary}"
            if worst.mismatches:
                first = worst.mismatches[0]
                text += f", {first.entry} is {first.analytic:.6g}, numeric {first.numeric:.6g}"
        return f"<{text}; print() shows all of it>"

    def __str__(self) -> str:
        from covector.report.terminal import plain

        return plain(self)

    def __rich__(self) -> Any:
        from covector.report.terminal import rendered

        return rendered(self)

    def _repr_html_(self) -> str:
        from covector.report.page import fragment

        return fragment(self)

    def __getstate__(self) -> dict[str, Any]:
        # The problem holds the caller's function and tensors, which stay where they are.
        return {**self.__dict__, "cause": None, "source": None}

    def show(self, file: Any = None) -> None:
        """Print the report: in colour where the terminal allows it and `rich` is installed."""
        from covector.report.terminal import show

        show(self, file)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; `docs/report.md` describes it."""
        return {
            "version": VERSION,
            "function": self.function,
            "verb": self.verb,
            "outcome": self.outcome.value,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "method": self.method,
            "seed": self.seed,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "reproduce": self.reproduce,
            "findings": [_finding_data(finding) for finding in self.findings],
            "tables": [asdict(table) for table in self.tables],
        }

    def to_json(self) -> str:
        """The report as JSON; numbers that are not finite are written as strings."""
        return json.dumps(finite(self.to_dict()), indent=2)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """The report that `to_dict` gave; its function and its tensors are not part of the data.

        Raises:
            ArgumentValueError: The data are not those of a report, or of another version of the format.
        """
        from covector.report.reading import report_from

        return report_from(data)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that `to_json` gave. The text is read as data: nothing in it is run.

        Raises:
            ArgumentValueError: The text is not that of a report, or of another version of the format.
        """
        from covector.report.reading import report_from_text

        return report_from_text(text)

    def save_inputs(self, path: str | os.PathLike[str]) -> Path:
        """Save the inputs that `reproduce` loads, as `.npz`; the path is returned.

        Raises:
            ArgumentValueError: there is nothing to save: the code under `reproduce` makes the inputs itself,
                the check passed, the report was read from data, or an array cannot hold the inputs.
        """
        again = None if self.source is None else self.source.again
        if again is None or not again.save(path_of(path)):
            raise ArgumentValueError(
                "Report.save_inputs: there is nothing to save: the code under `reproduce` reads no file. "
                "It reads one where a check failed on strided tensors on the CPU that the code can neither "
                "write out nor draw again; a report that was read from data has lost them."
            )
        return path_of(path)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that shows the report, both Jacobians and the suspects step by step; give its path.

        One file that needs no network. The Jacobians are computed now, by running the function again;
        a report that was pickled has lost the function, and its page has the findings alone. Inputs that
        `reproduce` can neither write out nor draw again are saved beside the page, as `.npz`.
        """
        from covector.report.page import page

        shown, path = self, path_of(path)
        again = None if self.source is None else self.source.again
        if again is not None and again.save(path.with_suffix(".npz")):
            shown = replace(self, reproduce=again.text(str(path.with_suffix(".npz"))))
        write_text(path, page(shown))
        return path


def heading(finding: Finding) -> tuple[str, str]:
    """The name of a check, and what follows it: a summary that begins with the name goes on from there."""
    if finding.summary.startswith(finding.check):
        return finding.check, finding.summary.removeprefix(finding.check)
    return finding.check, f": {finding.summary}" if finding.summary else ""


def _finding_data(finding: Finding) -> dict[str, Any]:
    data = asdict(finding)
    data["outcome"] = finding.outcome.value
    data["mismatches"] = [{**asdict(m), "error": m.error} for m in finding.mismatches]
    data["diagnoses"] = [{**asdict(diagnosis), "sure": diagnosis.sure} for diagnosis in finding.diagnoses]
    return data


def finite(value: Any) -> Any:
    """The data with numbers that JSON lacks written as strings."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
