"""The table that is printed: a line for each comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks._measure import Ratio

UNITS = {"time": ((1, "s"), (1e-3, "ms"), (1e-6, "us")), "memory": ((2**20, "MiB"), (2**10, "KiB"))}

HEADER = ("task", "kind", "ratio", "quartiles", "target", "verdict", "ours", "theirs")
WIDTHS = (34, 7, 6, 10, 6, 7, 10, 10)
ALIGN = "<<>>><>>"


def line(cells: tuple[str, ...]) -> str:
    return "  ".join(f"{c:{a}{w}}" for c, a, w in zip(cells, ALIGN, WIDTHS, strict=True)).rstrip()


def markdown(header: tuple[str, ...], rows: Iterable[Iterable[object]]) -> str:
    """A table for a page."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    task: str
    kind: str
    ratio: Ratio
    target: float | None

    @property
    def verdict(self) -> str:
        """Whether the target is met; a row without one is there to compare with."""
        if self.target is None:
            return ""
        return "ok" if self.ratio.median <= self.target else "over"

    def cells(self) -> tuple[str, ...]:
        """What is printed."""
        ratio = self.ratio
        spread = "" if self.kind == "memory" else f"{ratio.low:.2f}-{ratio.high:.2f}"
        sides = (self._amount(ratio.ours), self._amount(ratio.theirs))
        return (
            self.task,
            self.kind,
            f"{ratio.median:.3f}",
            spread,
            "" if self.target is None else f"{self.target:.2f}",
            self.verdict,
            *sides,
        )

    def _amount(self, value: float) -> str:
        units = UNITS[self.kind]
        scale, unit = next((pair for pair in units if value >= pair[0]), units[-1])
        return f"{value / scale:.1f} {unit}"
