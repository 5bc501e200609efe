"""Products of a plan as tasks: each computes those with some of the groups of rows or columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covector._chart import Chart
from covector._images import Gathered
from covector._tasks.mapping import TASKS, blocks, named_arguments, spans
from covector._tasks.sending import Span
from covector._tree import Arguments
from covector.errors import Caller, RandomnessError
from covector.sparsity.derivative import Derivative
from covector.sparsity.plan import Selection, SparsePlan, rows_of, sums


@dataclass(frozen=True)
class ProductsJob:
    """What it takes to multiply with any of the groups, anywhere; `colors` has the group of each element."""

    derivative: Derivative
    selection: Selection
    args: Sequence[Any]
    kwargs: dict[str, Any]
    colors: Any
    chart: Chart
    forward: bool

    @property
    def caller(self) -> Caller:
        """Who asked."""
        return self.derivative.caller

    def images(self, span: Span) -> list[Tensor]:
        """The products with some of the groups, in one batch."""
        arguments = self.selection.bind(self.caller, tuple(self.args), self.kwargs)
        inside = (self.colors >= span.start) & (self.colors < span.stop)
        groups = sums(np.where(inside, self.colors - span.start, -1), span.stop - span.start, self.chart)
        before = torch.get_rng_state()
        derivative = (self.derivative.forward if self.forward else self.derivative.reverse)(arguments)
        images = derivative.apply_batch(groups)
        if not torch.equal(before, torch.get_rng_state()):
            raise RandomnessError(
                f"{self.caller}: the function draws random numbers, and each block would see its own. Draw "
                "them before, and pass them as an argument."
            )
        return images

    def named(self) -> dict[str, Any]:
        """The function and the arguments, by their names."""
        return named_arguments(self.caller, self.args, self.kwargs)


def products(plan: SparsePlan, arguments: Arguments, executor: Any) -> list[Tensor]:
    """The products with all groups of columns, and those with all groups of rows, each flat."""
    coloring, (inputs, outputs) = plan.coloring, plan.charts
    args, kwargs = arguments.rebuild([_detached(leaf) for leaf in arguments.leaves])
    parts = []
    # A Hessian is symmetric: its columns are pulled back like rows.
    forward = not plan.derivative.symmetric
    for colors, count, chart, pushed in (
        (coloring.columns, coloring.forward, inputs, forward),
        (coloring.rows, coloring.reverse, outputs, False),
    ):
        if count:
            job = ProductsJob(plan.derivative, plan.selection, args, kwargs, colors, chart, pushed)
            parts.append(_computed(job, count, min(plan.chunk, -(-count // TASKS)), executor))
    return parts


def _computed(job: ProductsJob, count: int, size: int, executor: Any) -> Tensor:
    gathered = Gathered(count)
    each = job.chart.size * 8
    for block in blocks(executor, job, spans(0, count, size), size * each):
        gathered.add(block.span.start, block.images)
    return rows_of(gathered.whole()).reshape(-1)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf
