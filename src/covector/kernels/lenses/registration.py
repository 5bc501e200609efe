"""Operators of `torch.library`: torch's own questions about how one is registered, in the same report."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.library import CustomOpDef  # type: ignore[attr-defined]

from covector.errors import first_sentence
from covector.kernels.bench import Bench
from covector.kernels.combined import Combined
from covector.kernels.row import Row, Status
from covector.kernels.subject import variables

# An overload, an operator with all its overloads, and what torch.library.custom_op makes.
_OPERATORS = (type(torch.ops.aten.add.Tensor), type(torch.ops.aten.add), CustomOpDef)


def registration(bench: Bench, combined: Combined) -> Iterator[Row]:
    """The schema, the autograd registration, the fake kernel, and tracing with dynamic shapes."""
    operator = bench.kernel.function
    if not isinstance(operator, _OPERATORS):
        yield Row("registration", Status.SKIPPED, "the kernel is not an operator of torch.library")
        return
    args, kwargs = bench.arguments.rebuild(variables(bench.leaves, bench.arguments.chosen))
    found = torch.library.opcheck(operator, tuple(args), kwargs, raise_exception=False)
    bench.kernel.count.forward += len(found)
    for question, answer in found.items():
        if answer == "SUCCESS":
            yield Row(question, Status.PASSED)
        else:
            yield Row(question, Status.FAILED, first_sentence(Exception(str(answer))))
