"""`python -m benchmarks [part of a name ...] [--json PATH]`: ours against torch's, as a table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from functools import partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import torch

from benchmarks import (
    compiled,
    detection,
    diagnosis,
    functional,
    gradcheck,
    jacobian,
    kernels,
    sparse,
    sparsity,
    zoo,
)
from benchmarks._measure import compare, compare_memory, compare_statements
from benchmarks._table import HEADER, Row, line, markdown
from benchmarks.transforms import TASKS, Task, run
from benchmarks.zoo.table import saved as saved_result

IMPORT = "import covector"
IMPORT_TARGET = 1.10
DETECTION = "detection"
ZOO = "zoo"  # it takes ten minutes and many packages, so it runs only if it is named
UNWANTED = {"sympy", "matplotlib", "rich"}


def rows_of(task: Task, pairs: int) -> Iterator[Row]:
    task.check()
    yield Row(task.name, "time", compare(task.ours, task.theirs, pairs=pairs), task.target)
    if task.memory_target is not None:
        ratio = compare_memory(partial(run, task.name, "ours"), partial(run, task.name, "theirs"))
        yield Row(task.name, "memory", ratio, task.memory_target)


def import_row(pairs: int) -> Row:
    ratio = compare_statements("import torch, covector", "import torch", pairs=pairs)
    return Row(IMPORT, "time", ratio, IMPORT_TARGET)


def unwanted_imports() -> list[str]:
    """The packages that `import covector` loads and should not."""
    program = "import sys, torch, covector; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return sorted(UNWANTED & set(loaded.stdout.split()))


def environment() -> dict[str, str]:
    return {
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "covector": version("covector"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpus": str(os.cpu_count()),
    }


def page(rows: list[Row], answers: list[diagnosis.Answer]) -> str:
    """What was measured, as a page."""
    where = ", ".join(f"{key} {value}" for key, value in environment().items())
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    parts = [
        "# Figures",
        f"Written by `{command}`: {where}. Ratios are medians of interleaved pairs in one process, with "
        "their quartiles; below 1 is faster, or smaller, than torch.",
        markdown(HEADER, (row.cells() for row in rows)),
    ]
    if answers:
        parts += ["## Diagnoses of planted bugs", diagnosis.table(answers)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="run the tasks whose name contains one of these")
    parser.add_argument("--pairs", type=int, default=25, help="pairs of blocks per task")
    parser.add_argument("--json", type=Path, help="save the table here")
    parser.add_argument(
        "--page", type=Path, help="write the tables here as Markdown, as docs/figures.md has them"
    )
    options = parser.parse_args()

    def wanted(name: str) -> bool:
        return not options.names or any(part in name for part in options.names)

    print("  ".join(f"{key} {value}" for key, value in environment().items()), end="\n\n")
    print(line(HEADER))
    rows = []
    for task in filter(lambda task: wanted(task.name), TASKS):
        for row in rows_of(task, options.pairs):
            rows.append(row)
            print(line(row.cells()), flush=True)
    for row in chain(
        functional.rows(wanted, options.pairs),
        gradcheck.rows(wanted),
        sparse.rows(wanted),
        sparsity.rows(lambda name: name in options.names),  # it takes ten minutes and other packages
        jacobian.rows(wanted),
    ):
        rows.append(row)
        print(line(row.cells()), flush=True)
    if wanted(IMPORT):
        rows.append(import_row(min(options.pairs, 15)))
        print(line(rows[-1].cells()))
        print(f"\nloaded by import, but should not be: {', '.join(unwanted_imports()) or 'nothing'}")
    met = [row.verdict == "ok" for row in rows if row.verdict]
    print(f"\n{sum(met)} of {len(met)} within target")
    shares = detection.report() if wanted(DETECTION) else []
    answers = diagnosis.report() if wanted(diagnosis.NAME) else []
    beside = jacobian.report() if wanted(jacobian.JAX) else []
    # It compiles for minutes, so it runs only if it is named.
    programs = compiled.report() if compiled.NAME in options.names else []
    # Three minutes, so only if it is named.
    tried = kernels.report() if kernels.NAME in options.names else []
    checked = zoo.report(zoo.chosen()) if ZOO in options.names else []
    if options.page:
        options.page.write_text(page(rows, answers), encoding="utf-8")
    if options.json:
        table = [{**asdict(row), "verdict": row.verdict} for row in rows]
        saved = {
            "environment": environment(),
            "rows": table,
            DETECTION: [asdict(share) for share in shares],
            diagnosis.NAME: [diagnosis.saved(answer) for answer in answers],
            jacobian.JAX: beside,
            compiled.NAME: programs,
            kernels.NAME: [asdict(result) for result in tried],
            ZOO: [saved_result(result) for result in checked],
        }
        options.json.write_text(json.dumps(saved, indent=2) + "\n")


if __name__ == "__main__":
    main()
