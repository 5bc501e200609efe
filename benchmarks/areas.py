"""Everything that is measured, which of it the README shows, and the pages that are written from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks import (
    compiled,
    detection,
    diagnosis,
    functional,
    gradcheck,
    growth,
    jacobian,
    kernels,
    library,
    sparsity,
    transforms,
    zoo,
)
from benchmarks._results import ROOT, Record
from benchmarks._tables import Headline, Pages

AREAS = (
    gradcheck.AREA,
    detection.AREA,
    diagnosis.AREA,
    zoo.AREA,
    zoo.HELD_OUT,
    library.AREA,
    transforms.AREA,
    functional.AREA,
    jacobian.AREA,
    sparsity.AREA,
    compiled.AREA,
    kernels.AREA,
    growth.AREA,
)

EXHAUSTIVE = "torch, exhaustive"
HEADLINES = (
    Headline("`gradcheck` of torch's own operator tests", "gradcheck", "operators", EXHAUSTIVE),
    Headline("the same, fast mode", "gradcheck", "operators, fast", "torch, fast"),
    Headline("`gradcheck` of a linear layer 256 x 256", "gradcheck", "linear 256 x 256", EXHAUSTIVE),
    Headline("`gradcheck` of an image library, fast mode", "library", "fast, sum", "torch, fast"),
    Headline(
        "`gradcheck` of wrong derivatives held aside while tuning",
        "zoo-held-out", "sum: wrong, exhaustive", EXHAUSTIVE,
    ),
    Headline("`grad` of ten numbers", "transforms", "small grad chain", "torch.func"),
    Headline(
        "Jacobian of a 256 -> 256 network", "functional", "jacobian mlp 256", "torch.autograd.functional"
    ),
    Headline(
        "sparse Jacobian, 10,000 x 10,000, three entries in a row",
        "sparsity", "Burgers 1e+04, eager", "torch.func, dense",
    ),
    Headline("`covector.compile`, ten derivatives, median", "compiled", "median", "torch.compile"),
    Headline("the same", "compiled", "median", "JAX, jitted"),
)  # fmt: skip

PAGES = tuple(
    ROOT / name
    for name in ("README.md", "benchmarks/README.md", "docs/sparsity.md", "docs/how-to/kernels.md")
)


def pages(found: Mapping[str, tuple[str, Record]]) -> Pages:
    """The writer of the tables of these records."""
    return Pages(AREAS, found, HEADLINES)


def scoreboard(found: Mapping[str, tuple[str, Record]]) -> list[Path]:
    """Write the tables and the figures; which files changed."""
    drawn = growth.draw(found[growth.AREA.name][1].rows) if growth.AREA.name in found else []
    return [*pages(found).write(PAGES), *drawn]
