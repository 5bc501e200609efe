"""A page that lists checks and links to their pages: one file, no network, no script, in their style."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from covector._files import remove_parts_in, write_text
from covector.report.page import GENERATOR, page, ticked
from covector.report.report import Report

NAME = "index.html"

# What is no reason to look: it ended as was expected.
_CALM = {"passed", "skipped", "xfailed", "expected failure"}


@dataclass(frozen=True)
class Line:
    """One check: where it is from, what was checked, how it ended, and its page if it has one."""

    where: str
    what: str
    outcome: str
    seconds: float
    text: str = ""
    page: str = ""
    hint: str = ""
    """The surest diagnosis."""
    test: str = ""
    """How the test ended that the check belongs to, which may expect a failure."""


def hint_of(report: Report | None) -> str:
    """One line on what is wrong: the surest diagnosis, or a fact, or the summary of the worst finding."""
    if report is None or report.worst is None or report:
        return ""
    worst = report.worst
    if worst.diagnoses:
        return f"{worst.diagnoses[0].sure}: {worst.diagnoses[0].evidence}"
    return worst.facts[-1] if worst.facts else worst.summary


def clear(folder: Path) -> None:
    """Remove the pages of an earlier run, whole or not, and nothing that was not written here."""
    remove_parts_in(folder)
    for path in folder.glob("*.html"):
        with path.open(encoding="utf-8", errors="replace") as file:
            if GENERATOR in file.read(2000):
                path.unlink()


def stem_of(text: str) -> str:
    """The name of a page, without its ending, for a test or a case: no other one has the same."""
    stem = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")
    short = stem[-120:].lstrip("-.")
    usual = re.fullmatch(r"[\w./]+(::[\w.]+)*", text, re.ASCII) is not None
    whole = short == text.replace("::", "-").replace("/", "-")
    return short if usual and whole else f"{short}-{zlib.crc32(text.encode(errors='backslashreplace')):08x}"


def write_page(folder: Path, name: str, report: Report, of: str) -> None:
    """Write the page of a check that belongs to a test or a case, with a link back to the index."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / name, page(report, of=of, index=NAME))


def write_index(folder: Path, title: str, lines: Sequence[Line]) -> Path:
    """Write `index.html` into a folder, which is made if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    write_text(path, _page(title, lines))
    return path


def _page(title: str, lines: Sequence[Line]) -> str:
    style = files("covector.report").joinpath("page.css").read_text(encoding="utf-8")
    rows = "\n".join(map(_row, lines))
    body = f'<ul class="checks">\n{rows}\n</ul>' if lines else "<p>Nothing to show.</p>"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{GENERATOR}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f'<body>\n<header class="top"><h1>{escape(title)}</h1></header>\n<main><section>\n{body}\n'
        "</section></main>\n</body>\n</html>\n"
    )


def _row(line: Line) -> str:
    what = f"<code>{escape(line.what)}</code>"
    if line.page:
        what = f'<a href="{escape(line.page)}">{what}</a>'
    hint = f'<p class="hint" title="{escape(line.hint)}">{ticked(line.hint)}</p>' if line.hint else ""
    text = f"<details><summary>text</summary><pre>{escape(line.text)}</pre></details>" if line.text else ""
    return (
        f"<li>{_chips(line)} {what} "
        f'<span class="soft small">{escape(line.where)} &middot; {line.seconds:.3f} s</span>{hint}{text}</li>'
    )


def _chips(line: Line) -> str:
    """How the check ended; beside it how its test did, if that is another thing."""
    calm = line.test in _CALM if line.test else line.outcome == "passed"
    kind = "passed" if line.outcome == "passed" else "calm" if calm else "failed"
    chips = f'<span class="chip {kind}">{escape(line.outcome)}</span>'
    if line.test:
        chips += f' <span class="chip {"calm" if calm else "failed"}">test {escape(line.test)}</span>'
    return chips
