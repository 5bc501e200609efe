"""The figures of growth: a panel for each curve, a line for each side, time and memory in a figure each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._results import ROOT

if TYPE_CHECKING:
    from benchmarks.growth import Line

FOLDER = ROOT / "docs" / "images"
OURS = "covector"
# Colours that differ for every kind of colour vision (Okabe and Ito), and markers for those without any.
STYLES = {
    OURS: ("#0072B2", "o", "-"),
    "torch, exhaustive": ("#D55E00", "s", "--"),
    "torch.func": ("#D55E00", "s", "--"),
    "torch.autograd.functional": ("#D55E00", "s", "--"),
    "torch.func, dense": ("#D55E00", "s", "--"),
    "JAX, jitted": ("#009E73", "^", "-."),
    "asdex": ("#CC79A7", "D", "-."),
}
COLUMNS = 4
UNITS = {"s": ("growth-time", 1.0, "seconds"), "bytes": ("growth-memory", 2**20, "MiB")}


def draw(lines: Sequence[Line]) -> list[Path]:
    """Write a PNG and an SVG of time, and of memory."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "covector", "svg.fonttype": "path", "font.size": 9})
    written = []
    for unit, (name, scale, label) in UNITS.items():
        figure = _figure([line for line in lines if line.unit == unit], scale, label)
        for suffix, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            path = FOLDER / f"{name}.{suffix}"
            figure.savefig(path, metadata=metadata, dpi=130)
            written.append(path)
    return written


def _figure(lines: Sequence[Line], scale: float, label: str) -> Any:
    from matplotlib.figure import Figure

    curves = list(dict.fromkeys(line.curve for line in lines))
    rows = -(-len(curves) // COLUMNS)
    figure = Figure(figsize=(3.1 * min(COLUMNS, len(curves)), 2.9 * rows), layout="constrained")
    panels = figure.subplots(rows, min(COLUMNS, len(curves)), squeeze=False).flat
    for panel, curve in zip(panels, curves, strict=False):
        for line in lines:
            if line.curve == curve:
                _plot(panel, line, scale)
        panel.set_title(curve, fontsize=9.5)
        panel.set_xlabel("n")
        panel.set_ylabel(label)
        panel.grid(True, which="major", color="#dddddd", linewidth=0.6)
        panel.legend(fontsize=7.5, loc="upper left", frameon=True, framealpha=0.85, edgecolor="none")
        _ticks(panel)
        _room_for_the_legend(panel)
    for panel in list(panels)[len(curves) :]:
        panel.set_axis_off()
    return figure


def _plot(panel: Any, line: Line, scale: float) -> None:
    color, marker, style = STYLES[line.side]
    exponent = line.exponent
    fitted = "" if exponent is None else f"  n$^{{{exponent:.1f}}}$"
    amounts = [amount / scale for amount in line.amounts]
    width = 2.0 if line.side == OURS else 1.4
    panel.loglog(
        line.sizes, amounts, style, color=color, marker=marker, markersize=4, linewidth=width,
        label=f"{line.side}{fitted}", zorder=3 if line.side == OURS else 2,
    )  # fmt: skip


def _ticks(panel: Any) -> None:
    """Powers of ten; over less than two of them, also twice and five times, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (panel.xaxis, panel.yaxis):
        axis.set_minor_formatter(NullFormatter())
    low, high = panel.get_xlim()
    if high < 100 * low:
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))


def _room_for_the_legend(panel: Any) -> None:
    """The lines rise to the right; the legend stands above them on the left."""
    low, high = panel.get_ylim()
    panel.set_ylim(low, high * (high / low) ** 0.35)
