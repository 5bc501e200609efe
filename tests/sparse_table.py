"""What works with sparse tensors: in torch, in its checker, in ours.

`python tests/sparse_table.py` writes the table into docs/sparse.md, between two markers. A cell counts, of
the four cases of an operation on a kind of tensor (real or complex, masked or not), how many torch
differentiates, how many pass `torch.autograd.gradcheck` (sparse outputs made strided, as it asks), and how
many pass `covector.gradcheck`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError as TorchError

import covector
from covector._chart import Chart
from sparse_cases import DTYPES, KINDS, MASKED, OPERATIONS, Case, Operation

PAGE = Path(__file__).parents[1] / "docs" / "sparse.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"

# Of the values inside the tensors; torch's own decorator.
decorated = torch.sparse.as_sparse_gradcheck(torch.autograd.gradcheck)


def verdict(
    checker: Callable[..., bool], function: Callable[..., Any], inputs: Any, masked: bool
) -> bool | None:
    """True, False, or None where the checker does not get to a verdict."""
    try:
        return checker(function, inputs, masked=masked)
    except TorchError:
        return False
    except (RuntimeError, ValueError, IndexError):
        return None


def original(function: Callable[..., Any], inputs: Any, *, masked: bool) -> bool:
    """Torch's own check. It takes no sparse outputs, but says which strided ones to give instead."""

    def strided(*args: Any) -> Any:
        output = function(*args)
        return output if output.layout is torch.strided else output.to_dense(masked_grad=masked)

    return torch.autograd.gradcheck(strided, inputs, masked=masked)


def exists(case: Case) -> bool:
    """Whether torch has the operation, and its derivative, at all."""
    inputs = case.inputs()
    try:
        output = case.function(*inputs)
        cotangents = Chart.around([output], masked=case.masked, is_output=True)
        for index in range(min(cotangents.size, 2)):
            along = cotangents.from_coords(torch.eye(cotangents.size, dtype=torch.float64)[index])
            gradients = torch.autograd.grad(output, inputs, along, retain_graph=True)
            whole = [gradient.to_dense() for gradient in gradients]
    except (RuntimeError, TypeError):
        return False
    pairs = zip(inputs, gradients, strict=True)
    return len(whole) == len(inputs) and all(
        x.layout is not torch.strided or gradient.layout is torch.strided for x, gradient in pairs
    )


def counts(operation: Operation, kind: str) -> str:
    """One cell: how many of its four cases work in torch, pass the original checker, pass ours."""
    cases = [Case(operation, kind, dtype, masked) for dtype in DTYPES for masked in MASKED]
    works = [exists(case) for case in cases]
    if not any(works):
        return "-"
    passed = [
        sum(verdict(checker, case.function, case.inputs(), case.masked) is True for case in cases)
        for checker in (original, covector.gradcheck)
    ]
    return " ".join(map(str, (sum(works), *passed)))


def table() -> str:
    """The table, in Markdown."""
    header = ["operation", *KINDS]
    lines = [header, ["---"] * len(header)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines += [[f"`{each.name}`", *(counts(each, kind) for kind in KINDS)] for each in OPERATIONS]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def written() -> str:
    """The table that stands in the page."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Write the table into the page."""
    torch.set_num_threads(1)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
