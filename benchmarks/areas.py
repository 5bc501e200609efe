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
    Headline("torch's operator database, exhaustive", "gradcheck", "operators", EXHAUSTIVE),
    Headline("the same, fast", "gradcheck", "operators, fast", "torch, fast"),
    Headline("elementwise function of 2,000 numbers", "gradcheck", "2000 elements", EXHAUSTIVE),
    Headline("linear layer 256 x 256, by weight and bias", "gradcheck", "linear 256 x 256", EXHAUSTIVE),
    Headline("sparse tensors", "gradcheck", "sparse tensors", "torch, as_sparse_gradcheck"),
    Headline("every function of an image library, fast", "library", "fast, sum", "torch, fast"),
    Headline("the same, exhaustive", "library", "exhaustive, sum", EXHAUSTIVE),
    Headline("wrong derivatives of the zoo", "zoo", "sum: wrong, exhaustive", EXHAUSTIVE),
    Headline("those held aside", "zoo-held-out", "sum: wrong, exhaustive", EXHAUSTIVE),
    Headline("`grad` of ten numbers", "transforms", "small grad chain", "torch.func"),
    Headline("`hessian` of ten numbers", "transforms", "small hessian chain", "torch.func"),
    Headline(
        "Jacobian of a 256 -> 256 network", "functional", "jacobian mlp 256", "torch.autograd.functional"
    ),
    Headline(
        "`hvp` by a network's weights", "functional", "hvp mlp loss, weights", "torch.autograd.functional"
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
