"""Checking a plan: products with the matrix that it gives against products with the derivative itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from covector._chart import Chart
from covector._engine import levels
from covector._engine.compiled import outside_graphs
from covector._engine.memory import give_back
from covector._linear import LinearMap, NoForwardRule, Pushforward
from covector._tree import Arguments
from covector.errors import ArgumentTypeError, ArgumentValueError, ForwardModeWarning, PatternError, warn
from covector.sparsity.derivative import Jacobian
from covector.sparsity.plan import SparsePlan
from covector.transforms._door import check_seed

# How far products may differ, relative to the sizes of the terms of each row, in units of sqrt(eps): both
# ways round in another order. A missing entry is of the order of its row.
_TOLERANCE = 100.0
# How far the second point lies away, relative to the size of each number and to one.
_AWAY = 0.1
# The rounding of a product is measured on this many splits of its direction into two, and a difference counts
# from this many times the rounding on.
_SPLITS = 4
_NOISE = 10.0
# A function that is called again and moves a product by this part of a difference does not repeat itself.
_PART = 1e-2
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


@outside_graphs
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
    check_seed("check_pattern", seed)
    if not isinstance(points, int) or isinstance(points, bool) or points < 1:
        raise ArgumentValueError(f"check_pattern: points must be a positive int, got {points!r}.")
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
        if number:
            give_back()  # what one point took is not held beside what the next takes
        at = arguments if number == 0 else _moved(arguments, generator)
        found = plan._read_off(plan._products(at).numbers) if values is None or number else values
        found = levels.bare(found)
        used |= found.cpu() != 0
        for turned in (False, True):
            error = _examined(plan, at, found, generator, number, turned=turned)
            if error is not None:
                products += 1
                largest = max(largest, error)
    return PatternCheck(points, products, largest, int((~used).sum()))


def _examined(
    plan: SparsePlan, at: Arguments, values: Tensor, generator: torch.Generator, number: int, *, turned: bool
) -> float | None:
    """The largest difference of one product, relative to its row; None if there is nothing to compare."""
    probe = _Probe(plan, at, _random(plan.charts[turned], generator), turned=turned)
    if probe.image is None:
        return None
    comparison = _Comparison.of(plan, values, probe)
    if len(comparison.wrong):
        _explain(plan, probe, comparison, generator, number)
    return comparison.largest


class _Probe:
    """A product with the derivative itself: J u by forward mode or (`turned`) J^T v by reverse mode."""

    def __init__(self, plan: SparsePlan, at: Arguments, direction: Tensor, *, turned: bool) -> None:
        self.plan = plan
        self.at = at
        self.direction = direction
        self.turned = turned
        self.image = self.of(direction)

    def _made(self) -> LinearMap:
        derivative = self.plan.derivative
        if self.turned:
            return self.plan.pullback(self.at)
        return Pushforward(derivative.caller, derivative.run(self.at), self.at, go_around=False)

    def of(self, direction: Tensor) -> Tensor | None:
        """The product with a direction; None where forward mode has no rule. Each one runs the function."""
        inputs, outputs = self.plan.charts
        before, after = (outputs, inputs) if self.turned else (inputs, outputs)
        try:
            image = self._made().apply(before.from_coords(direction))
        except (NoForwardRule, NotImplementedError):
            if self.turned:
                raise
            return None
        return after.to_coords(image).detach().cpu().double()

    def noise(self, generator: torch.Generator) -> Tensor:
        """How far the product is from being linear, which is its rounding, whatever precision that has."""
        assert self.image is not None
        noise = torch.zeros_like(self.image)
        for _ in range(_SPLITS):
            part = torch.randn(self.direction.shape, dtype=torch.float64, generator=generator)
            first, second = self.of(part), self.of(self.direction - part)
            assert first is not None
            assert second is not None
            noise = torch.maximum(noise, (first + second - self.image).abs())
        return noise

    @property
    def by(self) -> str:
        """The verb that computes such products."""
        return "vjp" if self.turned else "jvp"


@dataclass(frozen=True)
class _Comparison:
    """A product by the sparse matrix beside the one by the derivative, and the rows that differ."""

    product: Tensor
    image: Tensor
    largest: float
    wrong: Tensor

    @classmethod
    def of(cls, plan: SparsePlan, values: Tensor, probe: _Probe) -> _Comparison:
        """What differs by more than rounding in the precision of inputs and outputs."""
        rows, columns = torch.from_numpy(plan.pattern.rows), torch.from_numpy(plan.pattern.indices)
        rows, columns = (columns, rows) if probe.turned else (rows, columns)
        terms = values.detach().cpu().double() * probe.direction[columns]
        image = probe.image
        assert image is not None
        product = torch.zeros_like(image).index_add(0, rows, terms)
        size = torch.zeros_like(image).index_add(0, rows, terms.abs()) + image.abs()
        difference = (product - image).abs() / size.clamp_min(torch.finfo(torch.float64).tiny)
        # Outside of the domain nothing can be compared.
        difference[~(product.isfinite() & image.isfinite())] = 0.0
        precision = max(torch.finfo(place.dtype).eps for chart in plan.charts for place in chart.places)
        wrong = torch.nonzero(difference > _TOLERANCE * precision**0.5).reshape(-1)
        return cls(product, image, float(difference.max()) if len(difference) else 0.0, wrong)

    def beyond(self, noise: Tensor) -> _Comparison:
        """The rows that differ by more than this rounding."""
        difference = (self.product - self.image).abs()
        kept = (difference > _NOISE * noise)[self.wrong]
        return replace(self, wrong=self.wrong[kept])

    @property
    def worst(self) -> int:
        """The row that differs most."""
        return int(self.wrong[(self.product - self.image).abs()[self.wrong].argmax()])

    def moves_with(self, again: Tensor | None) -> bool:
        """Whether the product is another one if it is computed again, by a part of the difference."""
        if again is None:
            return True
        moved, difference = (again - self.image).abs(), (self.product - self.image).abs()
        return bool((moved > _PART * difference)[self.wrong].any())


def _explain(
    plan: SparsePlan, probe: _Probe, comparison: _Comparison, generator: torch.Generator, number: int
) -> None:
    """Find out why products differ, and raise unless the pattern is not to blame."""
    if comparison.moves_with(probe.of(probe.direction)):
        raise _unsteady(plan, probe)
    comparison = comparison.beyond(probe.noise(generator))
    if not len(comparison.wrong):
        return
    if plan.mode != ("reverse" if probe.turned else "forward") and _modes_disagree(probe, comparison):
        if plan.mode == "both":
            raise PatternError(
                f"{plan.derivative.caller}: forward and reverse mode give different derivatives of this "
                "function (no_grad inside, a hook, a Function whose rules disagree), and the plan uses both. "
                "Pass mode='reverse' or mode='forward'."
            )
        warn(
            f"{plan.derivative.caller}: forward and reverse mode give different derivatives of this function "
            f"(no_grad inside, a hook, a Function whose rules disagree). The plan is that of {plan.mode} "
            "mode.",
            ForwardModeWarning,
        )
        return
    raise _mismatch(plan, probe, comparison, number)


def _modes_disagree(probe: _Probe, comparison: _Comparison) -> bool:
    """Whether in the row that differs most the other mode gives what the plan does, rather than the probe."""
    row = comparison.worst
    other = torch.zeros_like(comparison.image)
    other[row] = 1.0
    opposite = _Probe(probe.plan, probe.at, other, turned=not probe.turned)
    if opposite.image is None:
        return False
    there = opposite.image @ probe.direction
    return bool((there - comparison.product[row]).abs() < (there - comparison.image[row]).abs())


def _unsteady(plan: SparsePlan, probe: _Probe) -> PatternError:
    return PatternError(
        f"{plan.derivative.caller}: the plan cannot be checked, because {probe.by} gives another product "
        "when the function is called again: it draws random numbers, or keeps something from call to call. "
        "Make it repeatable (a fixed mask, module.eval()), or pass verify=False."
    )


def _mismatch(plan: SparsePlan, probe: _Probe, comparison: _Comparison, number: int) -> PatternError:
    where = "at the point" if number == 0 else "at a point nearby"
    wrong, first = comparison.wrong, int(comparison.wrong[0])
    kind = "column" if probe.turned else "row"
    shown = ", ".join(map(str, wrong[:_SHOWN].tolist())) + (", ..." if len(wrong) > _SHOWN else "")
    advice = (
        "Pass a pattern that has all entries, or none to have it detected."
        if isinstance(plan.derivative, Jacobian) or plan.coloring.kind != "star"
        else "If the function holds a custom Function, its second derivative may not be symmetric."
    )
    return PatternError(
        f"{plan.derivative.caller}: the sparse matrix disagrees with {probe.by} {where}, so its pattern "
        "lacks entries.\n"
        f"  {len(wrong)} {kind}s differ: {shown}\n"
        f"  {kind} {first}: product {float(comparison.product[first]):.6g} by the sparse matrix, "
        f"{float(comparison.image[first]):.6g} by {probe.by}\n"
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
