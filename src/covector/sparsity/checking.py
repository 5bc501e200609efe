"""Checking a plan: products with the matrix that it gives against products with the derivative itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covector._chart import Chart
from covector._engine import levels
from covector._linear import NoForwardRule, Pushforward
from covector._tree import Arguments
from covector.errors import ArgumentTypeError, PatternError
from covector.sparsity.derivative import Jacobian
from covector.sparsity.plan import SparsePlan

# How far products may differ, relative to the sizes of the terms of each row, in units of sqrt(eps): both
# ways round in another order. A missing entry is of the order of its row.
_TOLERANCE = 100.0
# How far the second point lies away, relative to the size of each number and to one.
_AWAY = 0.1
# Rows that a message names.
_SHOWN = 5


@dataclass(frozen=True)
class PatternCheck:
    """What a check of a pattern found: nothing wrong, or it would have raised.

    `unused` counts the entries that were zero at every point: a pattern that holds everywhere has such
    entries where the function branches.
    """

    points: int
    products: int
    largest: float
    unused: int

    def __str__(self) -> str:
        return (
            f"the pattern holds: {self.products} random products at {self.points} points, largest difference "
            f"{self.largest:.1e} of a row; {self.unused} entries were zero at all of them"
        )


def check_pattern(plan: Any, *args: Any, points: int = 10, seed: int = 0, **kwargs: Any) -> PatternCheck:
    """Compare a plan with products of the derivative, at a point and at random points around it.

    At each point J u and J^T v are computed for random u and v, once from the sparse matrix and once by
    `jvp` and `vjp`, which know nothing of the pattern. An entry that the pattern lacks makes them differ.

    Args:
        plan: what `jacobian_plan` or `hessian_plan` returned.
        args, kwargs: the arguments of the function.
        points: how many points to try; the first is the one given.
        seed: of the points and products.

    Returns:
        A `PatternCheck`: how much was compared, the largest difference, and the entries that were never used.

    Raises:
        PatternError: the pattern lacks entries; the text names rows.

    Example:
        >>> import torch, covector
        >>> f = lambda x: x[1:] * x[:-1]
        >>> x = torch.arange(1.0, 6.0, dtype=torch.float64)
        >>> check = covector.check_pattern(covector.jacobian_plan(f, x), x)
        >>> check.points, check.products, check.unused
        (10, 20, 0)
    """
    if not isinstance(plan, SparsePlan):
        raise ArgumentTypeError(
            f"check_pattern: the first argument must be a plan from jacobian_plan or hessian_plan, got "
            f"{type(plan).__name__}."
        )
    arguments = plan._bound(args, kwargs)
    return require(plan, arguments, None, points=points, seed=seed)


def require(
    plan: SparsePlan, arguments: Arguments, values: Tensor | None, *, points: int, seed: int = 0
) -> PatternCheck:
    """Raise if the plan is wrong at one of the points; `values` are those at the first, if known."""
    generator = torch.Generator().manual_seed(seed)
    largest, products = 0.0, 0
    used = torch.zeros(plan.pattern.nnz, dtype=torch.bool)
    for number in range(points):
        at = arguments if number == 0 else _moved(arguments, generator)
        found = plan._read_off(plan._products(at).flat) if values is None or number else values
        found = levels.bare(found)
        used |= found.cpu() != 0
        for check in (_pushed, _pulled):
            error = check(plan, at, found, generator, number)
            if error is not None:
                products += 1
                largest = max(largest, error)
    return PatternCheck(points, products, largest, int((~used).sum()))


def _pushed(plan: SparsePlan, at: Arguments, values: Tensor, generator: Any, number: int) -> float | None:
    """J u, where forward mode can."""
    inputs, outputs = plan.charts
    direction = _random(inputs, generator)
    try:
        derivative = Pushforward(plan.derivative.caller, plan.derivative.run(at), at, go_around=False)
        image = derivative.apply(inputs.from_coords(direction))
    except (NoForwardRule, NotImplementedError):
        return None
    return _compared(plan, values, direction, outputs.to_coords(image), number, turned=False)


def _pulled(plan: SparsePlan, at: Arguments, values: Tensor, generator: Any, number: int) -> float:
    """J^T v."""
    inputs, outputs = plan.charts
    direction = _random(outputs, generator)
    image = plan.derivative.reverse(at).apply(outputs.from_coords(direction))
    return _compared(plan, values, direction, inputs.to_coords(image), number, turned=True)


def _compared(
    plan: SparsePlan, values: Tensor, direction: Tensor, image: Tensor, number: int, *, turned: bool
) -> float:
    """The largest difference of a row, relative to its terms; raises if that is more than rounding."""
    rows, columns = torch.from_numpy(plan.pattern.rows), torch.from_numpy(plan.pattern.indices)
    rows, columns = (columns, rows) if turned else (rows, columns)
    terms = values.detach().cpu().double() * direction[columns]
    image = image.detach().cpu().double()
    product = torch.zeros_like(image).index_add(0, rows, terms)
    size = torch.zeros_like(image).index_add(0, rows, terms.abs()) + image.abs()
    difference = (product - image).abs() / size.clamp_min(torch.finfo(torch.float64).tiny)
    difference[~(product.isfinite() & image.isfinite())] = (
        0.0  # outside of the domain nothing can be compared
    )
    precision = max(torch.finfo(place.dtype).eps for chart in plan.charts for place in chart.places)
    wrong = torch.nonzero(difference > _TOLERANCE * precision**0.5).reshape(-1)
    if len(wrong):
        raise _mismatch(plan, wrong, product, image, number, turned=turned)
    return float(difference.max()) if len(difference) else 0.0


def _mismatch(
    plan: SparsePlan, wrong: Tensor, product: Tensor, image: Tensor, number: int, *, turned: bool
) -> PatternError:
    first = int(wrong[0])
    kind, by = ("column", "vjp") if turned else ("row", "jvp")
    shown = ", ".join(map(str, wrong[:_SHOWN].tolist())) + (", ..." if len(wrong) > _SHOWN else "")
    where = "at the point" if number == 0 else "at a point nearby"
    advice = (
        "Pass a pattern that has all entries, or none to have it detected."
        if isinstance(plan.derivative, Jacobian) or plan.coloring.kind != "star"
        else "If the function holds a custom Function, its second derivative may not be symmetric."
    )
    return PatternError(
        f"{plan.derivative.caller}: the sparse matrix disagrees with {by} {where}, so its pattern lacks "
        "entries.\n"
        f"  {len(wrong)} {kind}s differ: {shown}\n"
        f"  {kind} {first}: product {float(product[first]):.6g} by the sparse matrix, "
        f"{float(image[first]):.6g} by {by}\n"
        f"  {advice}"
    )


def _random(chart: Chart, generator: Any) -> Tensor:
    return torch.randn(chart.size, dtype=torch.float64, generator=generator)


def _moved(arguments: Arguments, generator: Any) -> Arguments:
    """The arguments with the numbers to differentiate by moved a little."""
    leaves = list(arguments.leaves)
    for index in arguments.chosen:
        leaf = leaves[index].detach()
        noise = torch.randn(leaf.shape, dtype=torch.float64, generator=generator).to(leaf)
        leaves[index] = leaf + _AWAY * (leaf.abs() + 1) * noise
    return arguments.at(leaves)
