"""Make the plot of how sparse Jacobians grow: `python -m docs.make_growth`, from the top of the repository.

Time and memory of a first and of a repeated call of `sparse_jacobian`, on the Burgers equation, are measured
by benchmarks/sparsity.py; it takes some minutes and needs matplotlib.
"""

from pathlib import Path

import matplotlib as mpl
from benchmarks.sparsity import growth

IMAGE = Path(__file__).parent / "images" / "sparsity-growth.svg"
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)


def draw(rows):
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "covector"
    from matplotlib import pyplot

    entries = [row["nonzeros"] for row in rows]
    figure, (time, memory) = pyplot.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for key, label in (
        ("first", "first call: detect, color, check, evaluate"),
        ("repeated", "repeated call"),
    ):
        time.loglog(entries, [row[key] for row in rows], "o-", label=label)
    memory.loglog(entries, [row["bytes"] / 1e6 for row in rows], "o-", label="first call")
    last = rows[-1]
    for axes, end in ((time, last["first"]), (memory, last["bytes"] / 1e6)):
        axes.loglog(entries, [end * n / entries[-1] for n in entries], ":", color="gray", label="linear")
        axes.set_xlabel("nonzeros")
        axes.legend(fontsize="small")
    time.set_ylabel("processor time, seconds")
    memory.set_ylabel("peak memory, MB")
    figure.savefig(IMAGE, metadata={"Date": None})


if __name__ == "__main__":
    draw(list(growth(SIZES)))
