"""Plans of sparse derivatives: what depends on structure only is found once, and applied at many points."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from covector._chart import Chart
from covector._engine import levels
from covector._engine.compiled import outside_graphs
from covector._lazy import lazy
from covector._linear import LinearMap
from covector._tree import Argnames, Argnums, Arguments, Evaluation, Spec, select, unflatten
from covector.errors import ArgumentValueError, Caller, OutputError, RandomnessError, UnsupportedError
from covector.sparsity.assembly import Block, Span, as_scipy, blocks_of, check_layout
from covector.sparsity.coloring import Coloring
from covector.sparsity.derivative import Derivative
from covector.sparsity.pattern import SparsityPattern
from covector.sparsity.structure import Structure
from covector.transforms._complex import check_dtypes
from covector.transforms._door import bind, check_dense
from covector.transforms._plan import Plan

if TYPE_CHECKING:
    from covector.sparsity.programs import Programs


class Selection(NamedTuple):
    """By which arguments to differentiate, and how the result is given."""

    argnums: Argnums
    argnames: Argnames
    layout: str

    def bind(self, caller: Caller, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """The arguments of a call, those to differentiate by marked and checked."""
        arguments = bind(caller, args, in_order(kwargs), self.argnums, self.argnames)
        check_dense(caller, arguments.primals(), lambda: arguments.paths(caller.function))
        check_dtypes(caller, arguments.primals(), None, lambda: arguments.paths(caller.function))
        return arguments


class Products(NamedTuple):
    """What the products with all groups returned, one after the other, and the run they came from."""

    numbers: Tensor
    evaluation: Evaluation | None


@dataclass(frozen=True, eq=False, repr=False)
class SparsePlan(Plan):
    """How a sparse Jacobian or Hessian is computed at any point: `plan(x)` does it.

    `pattern` says which entries there are, `coloring` which rows or columns share a product, `mode` whether
    these are pulled back ("reverse"), pushed forward ("forward") or both, `fallbacks` which operations were
    taken to mix all that they touch because there is no rule for them, with how often, `interleaved` whether
    in memory the products stand element by element instead of one after the other.
    """

    derivative: Derivative = field(kw_only=True)
    selection: Selection = field(kw_only=True)
    structure: Structure = field(kw_only=True)
    pattern: SparsityPattern = field(kw_only=True)
    coloring: Coloring = field(kw_only=True)
    charts: tuple[Chart, Chart] = field(kw_only=True)
    output_spec: Spec = field(kw_only=True)
    local: bool = field(kw_only=True)
    fallbacks: dict[str, int] = field(kw_only=True)
    interleaved: bool = field(kw_only=True, default=False)

    @property
    def __wrapped__(self) -> Any:
        """The function, where a compiler looks for what is captured."""
        return self.derivative.caller.function

    @outside_graphs
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The derivative at these arguments, as a sparse matrix; of trees, a tree of such blocks."""
        arguments = self._bound(args, kwargs)
        return self._arranged(self._numbers(arguments), arguments)

    @outside_graphs
    def value_and_jacobian(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The value of the function and the derivative, from the same run where rows are pulled back."""
        arguments = self._bound(args, kwargs)
        compute = self._value_and_products if self._programs is None else self._programs.value_and_products
        value, products = compute(arguments)
        return value, self._arranged(self._checked(self._read_off(products), arguments), arguments)

    def compile(self, backend: Any = "inductor") -> SparsePlan:
        """The same plan, whose products are traced once and then only computed.

        By what `covector.compile` is made of: the first call traces, compiles and compares with the eager
        result; tensors that the function captures are read at each call. Results carry no graph; inside
        other transforms the plan is applied eagerly. Where there are several ways to compute the same (both
        modes, if that was left open and they take about as many products; for inductor, two orders of
        the products in memory), each is compiled now, and the one that is measured to be the fastest is kept.

        Args:
            backend: "inductor" compiles to machine code, "replay" runs the traced operations one by one.
        """
        from covector.sparsity.choice import compiled

        return compiled(replace(self, _executor=None), backend)

    def values(self, *args: Any, **kwargs: Any) -> Tensor:
        """The entries row by row, as one dense vector, which every transform can go through."""
        return self._numbers(self._bound(args, kwargs))

    @outside_graphs
    def to_scipy(self, *args: Any, **kwargs: Any) -> Any:
        """The whole derivative as a `scipy.sparse.csr_array`.

        Takes what the function takes; or one flat NumPy vector with all that is differentiated by, as
        SciPy's solvers pass it (then nothing else may vary).
        """
        if len(args) == 1 and isinstance(args[0], np.ndarray) and not kwargs:
            args = tuple(self.tree(args[0]))
        return as_scipy(self.pattern, self.values(*args, **kwargs))

    def tree(self, vector: Any) -> tuple[Any, ...]:
        """The positional arguments with the numbers of a flat NumPy vector."""
        inputs, _ = self.charts
        if len(self.structure.kinds) != len(inputs.places):
            raise ArgumentValueError(
                f"{self.derivative.caller}: a flat vector can stand for the arguments only if all of them "
                "are "
                "differentiated by. Close over the others: lambda x: f(x, other)."
            )
        flat = torch.as_tensor(np.asarray(vector))
        if flat.shape != (inputs.size,):
            raise ArgumentValueError(
                f"{self.derivative.caller}: the vector must have {inputs.size} elements, got shape "
                f"{tuple(flat.shape)}."
            )
        positional, _ = self._example.rebuild(inputs.from_coords(flat))
        return tuple(positional)

    _example: Arguments = field(kw_only=True)
    _point: Arguments = field(kw_only=True)
    _free: bool = field(kw_only=True)
    _programs: Programs | None = field(kw_only=True, default=None)
    _executor: Any = field(kw_only=True, default=None)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        caller, selection = self.derivative.caller, self.selection
        arguments = select(caller, args, in_order(kwargs), selection.argnums, selection.argnames)
        if not self.structure.fits(arguments):
            # Wrong for any plan, or for this one.
            raise self.structure.refusal(caller, selection.bind(caller, args, kwargs))
        return arguments

    def _numbers(self, arguments: Arguments) -> Tensor:
        # Read off outside of the program: a compiler would compute what is read once for each entry.
        products = (
            self._products(arguments).numbers
            if self._programs is None
            else self._programs.products(arguments)
        )
        return self._checked(self._read_off(products), arguments)

    def _value_and_products(self, arguments: Arguments) -> tuple[Any, Tensor]:
        products = self._products(arguments)
        evaluation = products.evaluation
        if evaluation is None:
            evaluation = self.derivative.run(arguments)(arguments.leaves)
        return self.derivative.value(evaluation), products.numbers

    def _checked(self, values: Tensor, arguments: Arguments) -> Tensor:
        """The values; those of a local pattern are compared with products at this point first."""
        if self.local:
            from covector.sparsity.checking import require

            require(self, arguments, values, points=1)
        return values

    def _products(self, arguments: Arguments) -> Products:
        """The products with all groups of columns, then those with all groups of rows."""
        parts, evaluation = self._parts(arguments)
        if not parts:
            like = arguments.primals()[0]
            return Products(like.new_zeros(0), None)
        if len(parts) == 1:
            return Products(parts[0], evaluation)
        return Products(torch.cat([part.reshape(-1) for part in _promoted(parts)]), evaluation)

    def _parts(self, arguments: Arguments) -> tuple[list[Tensor], Evaluation | None]:
        """The products by each side, and the run that they came from if there was one here."""
        if self._executor is not None and not levels.active():
            from covector.sparsity.spread import products

            return products(self, arguments, self._executor), None
        parts: list[Tensor] = []
        evaluation = None
        if self.coloring.forward:
            turn = self.derivative.reverse if self.derivative.symmetric else self.derivative.forward
            derivative = turn(arguments)
            columns = self._applied(derivative, self._column_groups)
            self._require_outputs(columns.numel() // self.coloring.forward)
            parts.append(columns)
            evaluation = derivative.evaluation if self.derivative.symmetric else None
        if self.coloring.reverse:
            derivative = self.pullback(arguments)
            parts.append(self._applied(derivative, self._row_groups))
            evaluation = derivative.evaluation
        return parts, evaluation

    def pullback(self, arguments: Arguments) -> LinearMap:
        """V -> J^T v at a point where the function returns what the plan was made for."""
        derivative = self.derivative.reverse(arguments)
        if not self.derivative.symmetric:  # a gradient has as many numbers as its inputs
            self._require_outputs(sum(output.numel() for output in derivative.evaluation.outputs))
        return derivative

    def _require_outputs(self, size: int) -> None:
        """The function returns as many numbers as when the plan was made."""
        if size != self.pattern.shape[0]:
            raise OutputError(
                f"{self.derivative.caller}: the function returns {size} numbers here; the plan is for "
                f"{self.pattern.shape[0]}. A plan is for outputs of one size: make another."
            )

    def _applied(self, derivative: LinearMap, groups: list[Tensor]) -> Tensor:
        try:
            products = rows_of(derivative.apply_batch(groups, chunk_size=self.chunk))
        except RandomnessError as error:
            raise RandomnessError(
                f"{self.derivative.caller}: the function draws random numbers, and each product would see "
                "its own. Draw them before, and pass them as an argument."
            ) from error
        # Not flat yet: a compiler would go through the elements of a transposed matrix one by one.
        return products.T.contiguous() if self.interleaved else products

    def _read_off(self, products: Tensor) -> Tensor:
        """The entries of the pattern, row by row, from all products."""
        return products.reshape(-1).index_select(0, self._source.to(products.device))

    @lazy
    def _source(self) -> Tensor:
        coloring = self.coloring
        return torch.from_numpy(coloring.interleaved(self.pattern) if self.interleaved else coloring.source)

    @lazy
    def _column_groups(self) -> list[Tensor]:
        return self._groups(self.coloring.columns, self.coloring.forward, self.charts[0])

    @lazy
    def _row_groups(self) -> list[Tensor]:
        return self._groups(self.coloring.rows, self.coloring.reverse, self.charts[1])

    def _groups(self, colors: Any, count: int, chart: Chart) -> list[Tensor]:
        groups = sums(colors, count, chart)
        return [_innermost(stack) for stack in groups] if self.interleaved else groups

    @lazy
    def _blocks(self) -> list[list[Block]]:
        inputs, outputs = self.charts
        return blocks_of(self.pattern, _spans(outputs), _spans(inputs))

    def _arranged(self, values: Tensor, arguments: Arguments) -> Any:
        """A block for each output and input, in trees like theirs."""
        if levels.active():
            raise UnsupportedError(
                f"{self.derivative.caller}: torch has no sparse tensors inside of vmap and other "
                "transforms. Use "
                "plan.values(...), the entries as one dense vector, there; plan.pattern says where they "
                "stand."
            )
        rows = [
            arguments.tree_of([block.built(values, self.selection.layout) for block in row])
            for row in self._blocks
        ]
        if self.derivative.symmetric:
            return arguments.tree_of(rows)
        return unflatten(rows, self.output_spec)

    def with_layout(self, layout: str) -> SparsePlan:
        """The same plan with results in another layout: "coo", "csr", "csc" or "scipy"."""
        check_layout(self.derivative.caller.verb, layout)
        return replace(self, selection=self.selection._replace(layout=layout))

    def with_executor(self, executor: Any) -> SparsePlan:
        """The same plan, whose products are computed by a `concurrent.futures.Executor`; see `jacobian`.

        A task runs the function and computes one product; of more than 64 products, several, but at most
        `chunk_size`. Results carry no graph. Inside other transforms the executor is not used. A plan has an
        executor or a compiler, whichever it was given last.
        """
        from covector._tasks.mapping import check_executor

        check_executor(self.derivative.caller.verb, executor)
        return replace(self, _executor=executor, _programs=None, interleaved=False)

    def save(self, path: Any) -> None:
        """Write what was decided to a file (`.npz`, without pickle); `jacobian_plan.load` reads it."""
        from covector.sparsity.saving import save

        save(self, path)

    def __repr__(self) -> str:
        what = self.pattern.summary
        mixed = f", {len(self.fallbacks)} operations without a rule" if self.fallbacks else ""
        count = self.coloring.products
        mixed += "" if self._programs is None else f", {self._programs.backend}"
        colors = f"{count} color{'' if count == 1 else 's'}"
        return f"{self.derivative.caller}: {what}, {colors}, {self.mode} mode{mixed}"

    def __str__(self) -> str:
        lines = [repr(self), f"  {self.coloring!r}, because {self.reason}"]
        lines += [
            f"  {name} has no rule: everything that it touches is taken to be mixed"
            for name in self.fallbacks
        ]
        return "\n".join(lines)


def in_order(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name are the same in whatever order they are given."""
    return dict(sorted(kwargs.items())) if len(kwargs) > 1 else kwargs


def mode_of(coloring: Coloring) -> str:
    """The mode, or both, by which a Jacobian is computed."""
    if not coloring.forward:
        return "reverse"
    return "both" if coloring.reverse else "forward"


def _promoted(parts: list[Tensor]) -> list[Tensor]:
    """The same numbers in one dtype."""
    dtype = reduce(torch.promote_types, [part.dtype for part in parts])
    return [part.to(dtype) for part in parts]


def _innermost(stack: Tensor) -> Tensor:
    """The same tensors, stacked in memory along the last axis."""
    return stack.movedim(0, -1).contiguous().movedim(-1, 0)


def _spans(chart: Chart) -> list[Span]:
    return [Span(place.start, place.stop) for place in chart.places]


def rows_of(images: list[Tensor]) -> Tensor:
    """A row for each group: its images in several tensors side by side."""
    rows = [image.reshape(image.shape[0], prod(image.shape[1:])) for image in images]
    return torch.cat(_promoted(rows), dim=1) if len(rows) > 1 else rows[0]


def sums(colors: Any, count: int, chart: Chart) -> list[Tensor]:
    """The sum of the basis vectors of each colour, stacked, as tensors of the chart."""
    sums = torch.zeros(count, chart.size, dtype=torch.bool)
    members = torch.from_numpy(np.flatnonzero(colors >= 0))
    sums[torch.from_numpy(colors)[members], members] = True
    return [
        sums[:, place.start : place.stop].to(place.device, place.dtype).reshape(count, *place.shape)
        for place in chart.elementwise()
    ]
