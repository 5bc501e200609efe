"""A report for the terminal: plain text, or laid out and coloured with rich where that can be shown."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from covector._files import escaping
from covector.report.report import Report, heading
from covector.verify.finding import Finding, Mismatch, Outcome, Table

_WIDTH = 100
_COLUMNS = ("entry", "analytic", "numeric", "error", "allowed")

_STYLES = {
    Outcome.PASSED: "bold green",
    Outcome.UNSUPPORTED: "bold yellow",
    Outcome.INCONCLUSIVE: "bold yellow",
    Outcome.FAILED: "bold red",
}


def plain(report: Report) -> str:
    """The report as text, no wider than a hundred columns."""
    lines = _wrapped(report.title)
    bad = _bad(report)
    for finding in bad:
        lines += _plain_finding(finding)
    for remark in _remarks(report):
        lines += _wrapped(remark)
    if not bad:
        lines += _wrapped(f"checks: {_checks(report)}")
    for table in report.tables:
        lines += _plain_table(table)
    lines += _reproduction(report)
    return "\n".join([*lines, *_wrapped(f"how: {report.how}")])


def _bad(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.outcome is not Outcome.PASSED]


def _remarks(report: Report) -> list[str]:
    """What a check that passed has to say all the same."""
    told = [f"remark: {f.summary}" for f in report.findings if f.outcome is Outcome.PASSED and f.summary]
    return list(dict.fromkeys(told))


def _checks(report: Report) -> str:
    return ", ".join(dict.fromkeys(finding.check for finding in report.findings))


def _reproduction(report: Report) -> list[str]:
    """Python that makes the same check again; one line stands beside the word, several below it."""
    lines = report.reproduce.splitlines()
    if len(lines) == 1 and len(lines[0]) + len("reproduce: ") <= _WIDTH:
        return [f"reproduce: {lines[0]}"]
    return ["reproduce:", *(f"  {line}" for line in lines)] if lines else []


def _plain_finding(finding: Finding) -> list[str]:
    lines = _wrapped(_headline(finding))
    lines += _table([_cells(m) for m in finding.mismatches])
    for table in finding.tables:
        lines += _plain_table(table, "  ")
    for text in (*finding.notes, finding.extent):
        lines += _wrapped(text, "  ")
    for diagnosis in finding.diagnoses:
        lines += _wrapped(f"{diagnosis.claim}: {diagnosis.evidence}", "  ")
        lines += _wrapped(f"look at: {diagnosis.look}", "    ")
    for text in (finding.advice, *finding.facts):
        lines += _wrapped(text, "  ")
    return lines


def _headline(finding: Finding) -> str:
    """How the check ended, and why; that it failed is said by a summary that begins with its name."""
    said = finding.outcome is Outcome.FAILED and finding.summary.startswith(finding.check)
    return finding.summary if said else finding.headline


def _cells(m: Mismatch) -> tuple[str, ...]:
    """One row of the table of entries; adding zero makes a zero of -0."""
    numeric = f"{m.numeric + 0.0:.6g}" + (f" +- {m.bound:.0e}" if m.bound else "")
    relation = ">" if m.beyond else "<="
    return str(m.entry), f"{m.analytic + 0.0:.6g}", numeric, f"{m.error:.1e}", f"{relation} {m.allowed:.1e}"


def cell(value: Any) -> str:
    """A number with as many digits as are worth reading; nothing for what was not measured."""
    if value is None:
        return ""
    return f"{value + 0.0:.4g}" if isinstance(value, float) else str(value)


def _written(table: Table) -> list[tuple[str, ...]]:
    return [tuple(map(cell, row)) for row in table.rows]


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Aligned columns under their names; an entry that leaves no room for them has a line of its own."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    room = _WIDTH - 2 - sum(widths[1:]) - 3 * (len(widths) - 1)
    lines = []
    widths[0] = min(widths[0], room)
    for first, *rest in (_COLUMNS, *rows):
        cells = [f"{cell:<{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        while len(first) > room:
            lines.append(f"  {first[: _WIDTH - 2]}")
            first = first[_WIDTH - 2 :]
        lines.append(("  " + "   ".join([f"{first:<{widths[0]}}", *cells])).rstrip())
    return lines


def _plain_table(table: Table, indent: str = "") -> list[str]:
    """Any table: what is too long for its column goes on in the next line."""
    rows = [table.columns, *_written(table)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while len(indent) + 2 + sum(widths) + 3 * (len(widths) - 1) > _WIDTH and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    lines = [f"{indent}{table.title}:"]
    for row in rows:
        pieces = [textwrap.wrap(text, width) or [""] for text, width in zip(row, widths, strict=True)]
        for line in zip_longest(*pieces, fillvalue=""):
            cells = [f"{text:<{width}}" for text, width in zip(line, widths, strict=True)]
            lines.append((f"{indent}  " + "   ".join(cells)).rstrip())
    return lines


def _wrapped(text: str, indent: str = "") -> list[str]:
    """The text in lines that fit."""
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "    ")


def show(report: Report, file: Any = None) -> None:
    """Print the report, in colour if the file is a terminal that shows it."""
    file = sys.stdout if file is None else file
    with escaping(file):
        _show(report, file)


def _show(report: Report, file: Any) -> None:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not file.isatty():
        print(report, file=file)
        return
    try:
        from rich.console import Console
    except ImportError:
        print(report, file=file)
        return
    Console(file=file).print(report)


def rendered(report: Report) -> Any:
    """The report as rich shows it, no wider than plain text."""
    from rich.console import Group
    from rich.constrain import Constrain

    return Constrain(Group(*_rich_parts(report)), _WIDTH)


def _rich_parts(report: Report) -> Iterator[Any]:
    from rich.padding import Padding
    from rich.text import Text

    title = Text(f"{report.verb}({report.function}) ", style="bold")
    title.append(f" {report.outcome.value.upper()} ", style=f"{_STYLES[report.outcome]} reverse")
    yield title
    bad = _bad(report)
    for finding in bad:
        yield Text()
        yield from _rich_finding(finding)
    yield from map(Text, _remarks(report))
    if not bad:
        yield Text(f"checks: {_checks(report)}")
    for table in report.tables:
        yield Text(f"\n{table.title}", style="bold")
        yield _rich_table(table)
    if report.reproduce:
        yield Text("\nreproduce", style="bold")
        yield Padding(Text(report.reproduce), (0, 0, 0, 2))
    yield Text(f"\n{report.how}", style="dim")


def _rich_table(table: Table) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", padding=(0, 1))
    for name in table.columns:
        shown.add_column(Text(name), overflow="fold", justify="left")  # not markup: "error [ulp]"
    for row in _written(table):
        shown.add_row(*map(Text, row))
    return Padding(shown, (0, 0, 0, 2))


def _rich_finding(finding: Finding) -> Iterator[Any]:
    from rich.box import SIMPLE_HEAD
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    name, rest = heading(finding)
    head = Text(name, style="bold")
    head.append(rest, style="not bold")
    yield head
    if finding.mismatches:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", padding=(0, 1))
        for name, style in zip(_COLUMNS, ("cyan", "red", "green", "", ""), strict=True):
            table.add_column(name, style=style, overflow="fold", justify="left")
        for m in finding.mismatches:
            table.add_row(*map(Text, _cells(m)))
        yield Padding(table, (0, 0, 0, 2))
    for extra in finding.tables:
        yield Padding(Text(extra.title, style="dim"), (0, 0, 0, 2))
        yield _rich_table(extra)
    for text in (*finding.notes, finding.extent, finding.advice, *finding.facts):
        if text:
            yield Padding(Text(text), (0, 0, 0, 2))
    for diagnosis in finding.diagnoses:
        found = Text(f"{diagnosis.claim}: ", style="bold yellow")
        found.append(diagnosis.evidence, style="not bold default")
        yield Padding(found, (1, 0, 0, 2))
        yield Padding(Text(f"look at: {diagnosis.look}", style="dim"), (0, 0, 0, 4))
