"""A report as a page: one file, no network, readable without JavaScript.

Everything that the user named is escaped; the policy in the head forbids any script but ours, by its
hash, and any load at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Any

from covector.evidence.jacobians import Part
from covector.report.figures import Figures
from covector.report.heatmaps import Pair, View
from covector.report.plot import slope_plot, step_plot
from covector.report.report import Report, heading
from covector.report.terminal import cell
from covector.verify.finding import Finding, Mismatch, Outcome, Table

# A cell of more letters than this is a sentence, which takes the width to be read.
_SENTENCE = 40

# The largest side of a Jacobian that is also written out as a table.
_TABLE_SIDE = 12


# By which a page is known as one of ours.
GENERATOR = '<meta name="generator" content="covector">'


def page(report: Report, *, of: str = "", index: str = "") -> str:
    """The whole page; `of` is the test or case that it belongs to, `index` the page that lists them."""
    style, script = _asset("page.css"), _asset("page.js")
    figures, excuse = _figures(report)
    body = "\n".join(
        [
            _header(report, of, index),
            "<main>",
            _findings(report),
            _worst(report),
            _tables(report),
            "" if report.tables and report.source is None else _jacobians(figures, excuse),
            _scans(figures),
            _reproduction(report),
            "</main>",
            _footer(report),
        ]
    )
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"{GENERATOR}\n"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(report.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        f'<script type="application/json" id="data">{_data(figures)}</script>\n<script>{script}</script>\n'
        "</body>\n</html>\n"
    )


def fragment(report: Report) -> str:
    """The report for a notebook: compact, with no style but its own."""
    colour = {Outcome.PASSED: "#0b6e4f", Outcome.FAILED: "#b3261e"}.get(report.outcome, "#8a5a00")
    parts = [
        f'<div style="border-left:4px solid {colour};padding:.2em 1em"><strong>{escape(report.verb)}('
        f'{escape(report.function)})</strong> <span style="color:{colour};font-weight:bold">'
        f"{report.outcome.value.upper()}</span>"
    ]
    for finding in report.findings:
        if finding.outcome is not Outcome.PASSED:
            name, rest = heading(finding)
            parts.append(f"<p><strong>{escape(name)}</strong>{escape(rest)}</p>")
            parts.append(_entries(finding.mismatches) if finding.mismatches else "")
            parts += [f"<p>{ticked(d.claim)}: {ticked(d.evidence)}</p>" for d in finding.diagnoses]
            parts += [f"<p>{ticked(text)}</p>" for text in (finding.advice, *finding.facts) if text]
    parts.append(f"<small>{escape(report.how)}</small></div>")
    return "".join(parts)


def _asset(name: str) -> str:
    return files("covector.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The name by which the policy admits a piece of ours."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _figures(report: Report) -> tuple[Figures | None, str]:
    """The figures, or why there are none."""
    if report.source is None:
        return None, "This report no longer has its function (it was pickled), so there are no Jacobians."
    if any(f.check == "purity" and f.outcome is Outcome.FAILED for f in report.findings):
        return None, "What is not a function of its inputs has no Jacobian to show."
    try:
        return report.source.figures(report.findings), ""
    except Exception as error:  # the function, or its derivative, raises: the findings say so
        return None, f"The Jacobians could not be computed: {type(error).__name__}: {error}"


def ticked(text: str) -> str:
    """Escaped text, with what stands between backticks as code."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces))


def _chip(outcome: Outcome) -> str:
    return f'<span class="chip {outcome.value}">{outcome.value}</span>'


def _header(report: Report, of: str, index: str) -> str:
    back = f'<a href="{escape(index)}">all checks</a>' if index else ""
    name = f"<code>{escape(of)}</code>" if of else ""
    above = " &middot; ".join(filter(None, (back, name)))
    line = f'<p class="soft">{above}</p>' if above else ""
    return (
        f'<header class="top">{line}<h1>{escape(report.verb)}({escape(report.function)}) '
        f"{_chip(report.outcome)}"
        f'</h1><p class="soft">{escape(report.how)}</p>'
        '<button id="theme" class="js-only" type="button" aria-label="Switch colours">Dark</button></header>'
    )


def _findings(report: Report) -> str:
    order = sorted(report.findings, key=lambda f: f.outcome is Outcome.PASSED)
    bad = [_finding(f) for f in order if f.outcome is not Outcome.PASSED or f.summary]
    passed = dict.fromkeys(f.check for f in order if f.outcome is Outcome.PASSED and not f.summary)
    if passed:
        names = ", ".join(map(escape, passed))
        bad.append(f'<div class="finding">{_chip(Outcome.PASSED)}<span class="soft">{names}</span></div>')
    return f'<section aria-labelledby="found"><h2 id="found">What was found</h2>{"".join(bad)}</section>'


def _finding(finding: Finding) -> str:
    name, rest = heading(finding)
    parts = [
        f'<div class="finding"><p>{_chip(finding.outcome)}<strong>{escape(name)}</strong>{ticked(rest)}</p>'
    ]
    for diagnosis in finding.diagnoses:
        parts.append(
            f'<div class="diagnosis"><strong>{escape(diagnosis.claim.capitalize())}:</strong> '
            f'{ticked(diagnosis.evidence)}<br><span class="soft">Look at: {ticked(diagnosis.look)}</span>'
            "</div>"
        )
    parts += [f"<h3>{escape(table.title)}</h3>{_table(table)}" for table in finding.tables]
    texts = [*finding.notes, finding.extent, finding.advice, *finding.facts]
    parts += [f'<p class="soft">{ticked(text)}</p>' for text in texts if text]
    return "".join(parts) + "</div>"


def _number(value: float, digits: int = 6) -> str:
    return f"{value + 0.0:.{digits}g}"  # no -0


def _entries(mismatches: Iterable[Mismatch]) -> str:
    """The table of entries."""
    rows = "".join(
        f'<tr><td><code>{escape(str(m.entry))}</code></td><td class="value">{_number(m.analytic)}</td>'
        f'<td class="value">{_number(m.numeric)}</td><td class="value">{_number(m.bound, 1)}</td>'
        f'<td class="value{" beyond" if m.beyond else ""}">{_number(m.error, 3)}</td>'
        f'<td class="value">{_number(m.allowed, 3)}</td></tr>'
        for m in mismatches
    )
    names = ("analytic", "numeric", "&plusmn;", "error", "allowed")
    head = "".join(f'<th class="value" scope="col">{name}</th>' for name in names)
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">entry</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _table(table: Table) -> str:
    """Any table of a report."""
    head = "".join(
        f'<th{_kind([row[at] for row in table.rows])} scope="col">{escape(name)}</th>'
        for at, name in enumerate(table.columns)
    )
    rows = "".join(
        ('<tr class="wrong">' if Outcome.FAILED.value in row else "<tr>")
        + "".join(f"<td{_kind([value])}>{ticked(cell(value))}</td>" for value in row)
        + "</tr>"
        for row in table.rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _kind(values: list[Any]) -> str:
    """How cells are shown that hold numbers, an outcome, or a sentence."""
    if any(type(value) in (int, float) for value in values):
        return ' class="value"'
    if values == [Outcome.FAILED.value]:
        return ' class="beyond"'
    return ' class="sentence"' if any(len(str(value)) > _SENTENCE for value in values) else ""


def _tables(report: Report) -> str:
    return "".join(
        f"<section><h2>{escape(table.title.capitalize())}</h2>{_table(table)}</section>"
        for table in report.tables
    )


def _worst(report: Report) -> str:
    tables = [f"<h3>{escape(f.check)}</h3>{_entries(f.mismatches)}" for f in report.findings if f.mismatches]
    if not tables:
        return ""
    return f'<section aria-labelledby="worst"><h2 id="worst">Worst entries</h2>{"".join(tables)}</section>'


def _jacobians(figures: Figures | None, excuse: str) -> str:
    if figures is None or not figures.pairs:
        text = excuse or "The Jacobian has no entries."
        return f'<section><h2>Jacobians</h2><p class="soft">{escape(text)}</p></section>'
    sample = "" if figures.whole else " A sample of the rows and columns is shown."
    return (
        f'<section aria-labelledby="jacobians"><h2 id="jacobians">Jacobians: {escape(figures.mode)} and '
        f'differences</h2><p class="soft">One map for each output and input, rows are numbers of the output, '
        f"columns numbers of the input.{sample}</p>{_pair_table(figures.pairs)}{_MAPS}"
        f"{''.join(_written_out(pair) for pair in figures.pairs)}</section>"
    )


def _size(part: Part) -> str:
    shape = " &times; ".join(map(str, part.shape)) or "scalar"
    return shape + (" complex" if part.is_complex else "")


def _pair_table(pairs: tuple[Pair, ...]) -> str:
    rows = []
    for index, pair in enumerate(pairs):
        name = f"d {escape(pair.output.name)} / d {escape(pair.input.name)}"
        rows.append(
            f'<tr><td><button type="button" class="link js-only" data-pair="{index}"><code>{name}</code>'
            f'</button><code class="no-js">{name}</code></td><td>{_size(pair.output)}</td>'
            f'<td>{_size(pair.input)}</td><td class="value">{pair.looked_at[0]} &times; '
            f"{pair.looked_at[1]}</td>"
            f'<td class="value{" beyond" if pair.differing else ""}">{pair.differing}</td>'
            f'<td class="value">{_number(pair.error, 3)}</td></tr>'
        )
    return (
        '<div class="scroll"><table id="pairs"><thead><tr><th scope="col">pair</th>'
        '<th scope="col">output</th>'
        '<th scope="col">input</th><th class="value" scope="col">entries</th><th class="value" scope="col">'
        'differing</th><th class="value" scope="col">largest error</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _map(kind: str, title: str, low: str, high: str) -> str:
    return (
        f'<figure><figcaption>{title}</figcaption><canvas id="map-{kind}" tabindex="0" role="img" '
        f'aria-label="{title} as a heat map; arrow keys move, plus and minus zoom" '
        'aria-describedby="readout"></canvas>'
        f'<div class="legend"><span id="low-{kind}">{low}</span><canvas id="legend-{kind}" '
        f'aria-hidden="true"></canvas><span id="high-{kind}">{high}</span></div></figure>'
    )


_MAPS = (
    '<div class="bar js-only"><strong id="pair-name" class="mono"></strong><span class="space"></span>'
    '<span class="choice"><label for="view">Show</label><select id="view"></select></span>'
    '<span class="choice"><label for="scale">Colours</label><select id="scale">'
    '<option value="log">logarithmic</option><option value="linear">linear</option></select></span>'
    '<button type="button" id="zoom-in">Zoom in</button><button type="button" id="zoom-out">Zoom out</button>'
    '<button type="button" id="zoom-reset">Whole</button></div>'
    '<div class="js-only"><div class="maps">'
    + _map("analytic", "Analytic", "", "")
    + _map("numeric", "Numeric", "", "")
    + _map("error", "Error", "10<sup>&minus;6</sup>", "10<sup>4</sup> &times; allowed")
    + '</div><div class="readout" id="readout" role="status" aria-live="polite"></div></div>'
)


def _written_out(pair: Pair) -> str:
    """The pair as a table: its entries if they are few, otherwise none."""
    view = pair.views[0]
    if max(len(view.rows), len(view.columns)) > _TABLE_SIDE:
        return ""
    name = f"d {escape(pair.output.name)} / d {escape(pair.input.name)}"
    what = "analytic / numeric" if view.step == (1, 1) else "worst entry of each cell, analytic / numeric"
    head = "".join(f'<th class="value" scope="col">{escape(pair.input.label(c))}</th>' for c in view.columns)
    width = len(view.columns)
    rows = "".join(
        f'<tr><th class="value" scope="row">{escape(pair.output.label(r))}</th>'
        + "".join(_written_cell(view, i * width + j) for j in range(width))
        + "</tr>"
        for i, r in enumerate(view.rows)
    )
    return (
        f'<details><summary>{name} as a table</summary><div class="scroll"><table class="matrix"><caption>'
        f"{what}</caption><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _written_cell(view: View, at: int) -> str:
    return f'<td class="value">{_number(view.analytic[at], 4)} / {_number(view.numeric[at], 4)}</td>'


def _scans(figures: Figures | None) -> str:
    if figures is None or not figures.scans:
        return ""
    drawn = []
    for scan in figures.scans:
        caption = f"<figcaption><code>{escape(scan.entry)}</code></figcaption>"
        drawn.append(f"<figure>{caption}{step_plot(scan)}</figure>")
        if scan.kink:
            left, right = (_number(_last(side), 4) for side in (scan.left, scan.right))
            text = f" one-sided slopes: {left} from the left, {right} from the right"
            caption = f"<figcaption><code>{escape(scan.entry)}</code>{text}</figcaption>"
            drawn.append(f"<figure>{caption}{slope_plot(scan)}</figure>")
    return (
        '<section aria-labelledby="steps"><h2 id="steps">Step by step</h2><p class="soft">How far central '
        "differences are from the analytic value and from the refined slope, against the step. Towards large "
        "steps truncation grows, towards small ones rounding. If the derivative is wrong, the first curve "
        'stays up where the second comes down.</p><div class="key"><span><i class="a"></i>from the analytic '
        'value</span><span><i class="n"></i>from the refined slope</span><span><i class="l"></i>what is '
        f'allowed</span></div><div class="plots">{"".join(drawn)}</div></section>'
    )


def _last(values: tuple[float, ...]) -> float:
    """The one-sided slope with a step of 1e-6, where truncation and rounding are both small."""
    return values[len(values) // 2 - 1]


def _reproduction(report: Report) -> str:
    if not report.reproduce:
        return ""
    return f"<section><h2>Reproduce</h2><pre><code>{escape(report.reproduce)}</code></pre></section>"


def _footer(report: Report) -> str:
    return f"<footer><p>covector &middot; seed {report.seed} &middot; {report.seconds:.2f} s</p></footer>"


def _data(figures: Figures | None) -> str:
    """What the script draws, as JSON that cannot end its element."""
    data: dict[str, Any] = {"pairs": []}
    if figures is not None:
        data = {
            "atol": figures.tol.atol,
            "rtol": figures.tol.rtol,
            "pairs": [_pair_data(pair, figures) for pair in figures.pairs],
        }
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _pair_data(pair: Pair, figures: Figures) -> dict[str, Any]:
    return {
        "output": _part_data(pair.output),
        "input": _part_data(pair.input),
        "views": [_view_data(view, figures) for view in pair.views],
    }


def _part_data(part: Part) -> dict[str, Any]:
    return {"name": part.name, "shape": list(part.shape), "complex": part.is_complex}


def _view_data(view: View, figures: Figures) -> dict[str, Any]:
    data: dict[str, Any] = {
        "title": view.title,
        "rows": view.rows,
        "columns": view.columns,
        "step": view.step,
        "analytic": [_short(value) for value in view.analytic],
        "numeric": [_short(value) for value in view.numeric],
        "error": [_short(value, 3) for value in view.error],
    }
    if figures.rounded:  # what each entry is allowed does not follow from its size
        data["allowed"] = [_short(value, 3) for value in view.allowed]
    if view.undecided:
        data["undecided"] = view.undecided
    if view.step != (1, 1):
        data |= {"worstRow": view.worst_row, "worstColumn": view.worst_column}
    return data


def _short(value: float, digits: int = 6) -> float | int | str:
    """The number with as many digits as are shown; what JSON cannot write, in words."""
    if not math.isfinite(value):
        return "NaN" if value != value else "inf" if value > 0 else "-inf"
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e6 else rounded
