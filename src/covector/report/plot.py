"""Plots of a scan as SVG: error against step, and one-sided slopes against step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from covector.report.scan import Scan

_WIDTH, _HEIGHT = 420, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 36

# Below this an error is drawn at the bottom: differences that agree to the last digit.
_FLOOR = 1e-16


@dataclass(frozen=True)
class _Frame:
    """The plane of a plot: what its corners mean."""

    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The place of a point in the drawing."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    def curve(self, points: Sequence[tuple[float, float]], kind: str) -> str:
        """A curve through points, each marked."""
        places = [self.at(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        return f'<polyline class="curve {kind}" points="{path}"/>' + "".join(_mark(*p, kind) for p in places)

    def level(self, y: float, kind: str) -> str:
        """A horizontal line."""
        (x1, at), (x2, _) = self.at(self.x[0], y), self.at(self.x[1], y)
        return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>'


def _mark(x: float, y: float, kind: str) -> str:
    """Different shapes, so that colour is not needed to tell the curves apart."""
    if kind == "analytic":
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>'
    return f'<rect class="{kind}" x="{x - 2.8:.1f}" y="{y - 2.8:.1f}" width="5.6" height="5.6"/>'


def step_plot(scan: Scan) -> str:
    """|difference - analytic| and |difference - refined slope| against the step, both logarithmic."""
    allowed = scan.allowed
    distances = {
        kind: [
            (math.log10(step), math.log10(max(abs(slope - target), _FLOOR)))
            for step, slope in zip(scan.steps, scan.central, strict=True)
            if math.isfinite(slope - target)
        ]
        for kind, target in (("numeric", scan.value), ("analytic", scan.analytic))
    }
    heights = [y for points in distances.values() for _, y in points]
    if allowed > 0:
        heights.append(math.log10(max(allowed, _FLOOR)))
    low, high = _range([math.floor(h) for h in heights] + [math.ceil(h) for h in heights])
    frame = _Frame(_decades(scan.steps), (low, high))
    parts = [_grid(frame, _every(low, high), _power), frame.curve(distances["numeric"], "numeric")]
    parts.append(frame.curve(distances["analytic"], "analytic"))
    if allowed > 0:
        parts.append(frame.level(math.log10(max(allowed, _FLOOR)), "limit"))
    return _drawn(parts, f"error against step for {_number(scan.analytic)} and {_number(scan.value)}")


def slope_plot(scan: Scan) -> str:
    """The slopes on both sides against the step, with the analytic value as a line."""
    sides = {
        kind: [
            (math.log10(step), slope)
            for step, slope in zip(scan.steps, values, strict=True)
            if math.isfinite(slope) and step >= 1e-9
        ]
        for kind, values in (("numeric", scan.left), ("analytic", scan.right))
    }
    heights = [y for points in sides.values() for _, y in points]
    if math.isfinite(scan.analytic):
        heights.append(scan.analytic)
    low, high = _range(heights)
    margin = 0.08 * (high - low)
    frame = _Frame(_decades(scan.steps), (low - margin, high + margin))
    ticks = [low + i * (high - low) / 4 for i in range(5)]
    parts = [_grid(frame, ticks, _number), *(frame.curve(points, kind) for kind, points in sides.items())]
    if math.isfinite(scan.analytic):
        parts.append(frame.level(scan.analytic, "limit"))
    for kind, word in (("numeric", "left"), ("analytic", "right")):
        if sides[kind]:
            x, y = frame.at(*sides[kind][0])
            parts.append(f'<text x="{x - 4:.1f}" y="{y - 8:.1f}" text-anchor="end">{word}</text>')
    return _drawn(parts, "one-sided slopes against step")


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def _decades(steps: Sequence[float]) -> tuple[float, float]:
    return math.log10(min(steps)), math.log10(max(steps))


def _every(low: float, high: float) -> list[float]:
    """Whole decades, at most eight of them."""
    stride = max(1, math.ceil((high - low) / 8))
    return [float(tick) for tick in range(math.ceil(low), math.floor(high) + 1, stride)]


def _power(exponent: float) -> str:
    return f"1e{exponent:.0f}"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _grid(frame: _Frame, ticks: Iterable[float], written: Callable[[float], str]) -> str:
    parts = []
    for tick in ticks:
        parts.append(frame.level(tick, "grid"))
        x, y = frame.at(frame.x[0], tick)
        parts.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{written(tick)}</text>')
    for exponent in range(math.ceil(frame.x[0]), math.floor(frame.x[1]) + 1, 2):
        x, y = frame.at(exponent, frame.y[0])
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{_power(exponent)}</text>')
    x, y = frame.at(sum(frame.x) / 2, frame.y[0])
    parts.append(frame.level(frame.y[0], "axis"))
    parts.append(f'<text x="{x:.1f}" y="{y + 33:.1f}" text-anchor="middle">step</text>')
    return "".join(parts)


def _drawn(parts: Iterable[str], title: str) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{title}</title>'
        f"{''.join(parts)}</svg>"
    )
