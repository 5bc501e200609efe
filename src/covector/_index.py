"""A page that lists checks and links to their pages: one file, no network, no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
       color-scheme: light dark; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0;
         border-bottom: 1px solid #8884; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.passed { color: #2a7f3f; } td.bad { color: #c0392b; font-weight: 600; }
pre { white-space: pre-wrap; margin: 0; font-size: 12px; }
"""


@dataclass(frozen=True)
class Line:
    """One check: where it is from, what was checked, how it ended, and its page if it has one."""

    where: str
    what: str
    outcome: str
    seconds: float
    text: str = ""
    page: str = ""


def write_index(folder: Path, title: str, lines: Sequence[Line]) -> Path:
    """Write `index.html` into a folder, which is made if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(_page(title, lines), encoding="utf-8")
    return path


def _page(title: str, lines: Sequence[Line]) -> str:
    rows = "\n".join(_row(line) for line in lines)
    head = "<tr><th>outcome</th><th>check</th><th>from</th><th>seconds</th></tr>"
    table = f"<table>\n{head}\n{rows}\n</table>" if lines else "<p>Nothing to show.</p>"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{table}\n</body>\n</html>\n"
    )


def _row(line: Line) -> str:
    kind = "passed" if line.outcome == "passed" else "bad"
    what = escape(line.what)
    if line.page:
        what = f'<a href="{escape(line.page)}">{what}</a>'
    if line.text:
        what += f"<details><summary>text</summary><pre>{escape(line.text)}</pre></details>"
    return (
        f'<tr><td class="{kind}">{escape(line.outcome)}</td><td>{what}</td>'
        f'<td>{escape(line.where)}</td><td class="number">{line.seconds:.3f}</td></tr>'
    )
