"""The writer: rows as lines of a terminal, as Markdown, and in the marked regions of pages.

A region begins with `<!-- bench: NAME -->` and ends with `<!-- /bench -->`; what stands between is never
written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks._board import COUNT, Area, Row
from benchmarks._results import Record

HEADER = ("", "peer", "covector / peer", "quartiles", "target", "", "covector", "peer takes")
_REGION = re.compile(r"(<!-- bench: (.+?) -->\n).*?(<!-- /bench -->)", re.DOTALL)


def cells(row: Row) -> tuple[str, ...]:
    """A row as it is shown. Of a count there is no ratio."""
    spread = "" if row.low is None or row.low == row.high else f"{_number(row.low)} to {_number(row.high)}"
    target = "" if row.target is None else _number(row.target)
    ratio = "" if row.ratio is None else _number(row.ratio)
    last = (row.amount(row.ours), row.amount(row.theirs))
    return row.title, row.peer, ratio, spread, target, row.verdict, *last


def _number(value: float) -> str:
    """Three digits, without powers of ten down to a hundred-thousandth."""
    if value == 0 or value >= 100:
        return f"{value:.0f}"
    return f"{value:.{max(0, 2 - _exponent(value))}f}" if value >= 1e-5 else f"{value:.1e}"


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


_WIDTHS = (46, 30, 8, 16, 7, 5, 10, 10)


def line(row: Row) -> str:
    """A row for the terminal."""
    shown = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells(row), _WIDTHS, strict=True)).rstrip()
    return f"  {shown}  {row.note}".rstrip()


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for a page."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in one)} |" for one in lines)


def table(rows: Sequence[Row]) -> str:
    """Rows as Markdown; the over ones in bold, and a column of notes if there are any."""
    noted = any(row.note for row in rows)
    body = []
    for row in rows:
        shown = list(cells(row))
        if row.verdict == "over":
            place = 6 if row.unit == COUNT else 2
            shown[place], shown[5] = f"**{shown[place]}**", "**over**"
        body.append([*shown, *([row.note] if noted else [])])
    return markdown((*HEADER, *(["note"] if noted else [])), body)


Found = Mapping[str, tuple[str, Record]]


@dataclass(frozen=True)
class Headline:
    """A row that the README shows, in words of its own."""

    text: str
    area: str
    name: str
    peer: str


class Pages:
    """What each region shows, from the newest complete records."""

    def __init__(self, areas: Sequence[Area], found: Found, headlines: Sequence[Headline]) -> None:
        self.areas, self.found, self.headlines = areas, found, headlines

    def region(self, name: str) -> str:
        """The text of a region: `all`, `overview`, `headlines`, or the table of one area."""
        makers: dict[str, Callable[[], str]] = {
            "all": self._all,
            "overview": self._overview,
            "headlines": self._headlines,
            **{area.name: lambda area=area: self._area(area) for area in self.areas},
        }
        if name not in makers:
            raise KeyError(f"no region is called {name!r}; there are {', '.join(makers)}")
        return makers[name]()

    def rewritten(self, text: str) -> str:
        """A page with its regions as they should be."""
        return _REGION.sub(lambda found: f"{found[1]}\n{self.region(found[2])}\n\n{found[3]}", text)

    def write(self, pages: Iterable[Path]) -> list[Path]:
        """Bring pages up to date; which of them changed."""
        changed = []
        for page in pages:
            before = page.read_text(encoding="utf-8")
            after = self.rewritten(before)
            if after != before:
                page.write_text(after, encoding="utf-8")
                changed.append(page)
        return changed

    def rows(self, area: Area) -> list[Row]:
        """The rows of an area, and first what they come to."""
        if area.name not in self.found:
            return []
        rows = self.found[area.name][1].rows
        return [*(replace(total, area=area.name) for total in area.totals(rows)), *rows]

    def _all(self) -> str:
        parts = []
        for area in self.areas:
            drawn = [area.figures] if area.figures and area.name in self.found else []
            parts += [f"## {area.name}", area.about, *drawn, self._area(area)]
        return "\n\n".join(parts)

    def _area(self, area: Area) -> str:
        if area.name not in self.found:
            return f"Not measured yet: `make bench ONLY={area.name}`."
        file, record = self.found[area.name]
        return f"{table(self.rows(area))}\n\n{provenance(area, file, record)}"

    def _overview(self) -> str:
        body = []
        for area in self.areas:
            rows = self.rows(area)
            verdicts = [row.verdict for row in rows if row.verdict]
            blank = sum(row.ratio is None and row.ours is None for row in rows)
            met = f"{verdicts.count('ok')} of {len(verdicts)}" if verdicts else ""
            minutes = f"{self.found[area.name][1].seconds / 60:.1f} min" if rows else "not measured yet"
            body.append((f"[{area.name}](#{area.name})", len(rows), met, blank or "", minutes))
        return markdown(("area", "rows", "within target", "not measured", "took"), body)

    def _headlines(self) -> str:
        every = {(row.area, row.name, row.peer): row for area in self.areas for row in self.rows(area)}
        body = []
        for one in self.headlines:
            if row := every.get((one.area, one.name, one.peer)):
                _, _, ratio, spread, *_ = cells(row)
                body.append((one.text, one.peer, ratio, spread))
        return markdown(("", "beside", "time of covector / its time", "quartiles"), body)


def provenance(area: Area, file: str, record: Record) -> str:
    """Where a table comes from."""
    about = record.environment
    settings = [f"{name} {about[name]}" for name in area.settings if name in about]
    packages = [f"{name} {about[name]}" for name in ("torch", "jax", "asdex", "casadi") if name in about]
    where = [
        f"Python {about['python']}",
        f"{about['cpus']} x {about['cpu']}",
        f"load {about['load']} at the start",
    ]
    date = about["date"].partition("T")[0]
    return (
        f"Measured on {date} at commit {about['commit']} in {record.seconds / 60:.1f} minutes "
        f"(`benchmarks/results/{file}`): {', '.join([*packages, *where, *settings])}."
    )
