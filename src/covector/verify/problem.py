"""What is to be checked: a function, a point, and the one set of leaves that every graph is made from.

The leaves stand for the caller's tensors and are like them in everything that a function can see: class,
strides, attributes, hooks. A function that closes over its own inputs does not see them; its graph tells, and
then the caller's own tensors are the leaves, which are put back whatever happens.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covector._chart import Chart, Sampled, ShapeChange, moved, refusal, sampled
from covector._engine import graph
from covector._engine.leaves import like
from covector._engine.levels import GradMode
from covector._engine.messages import reads_beyond_storage
from covector._lazy import lazy
from covector._tree import Arguments, flatten, leaf_paths, unflatten
from covector.errors import Caller, OutputError, UnsupportedError
from covector.transforms._door import summary
from covector.verify.finding import Entry
from covector.verify.leaves import guarded, has_value, is_differentiable, same_bits, shifted
from covector.verify.likes import tensors_for_outputs
from covector.verify.moved import Moved, Shift
from covector.verify.vectors import PIECE

_DOUBLE = torch.finfo(torch.float64).eps
_HALF = {torch.float16, torch.complex32}
_PRECISE = {torch.float64, torch.complex128}

# Two runs may differ by this many roundings: parallel sums are added up in any order.
_ROUNDINGS = 1e3


class Impure(Exception):
    """The function gives another value for the same input."""

    def __init__(self, where: str, draws: bool) -> None:
        super().__init__(where, draws)
        self.where = where
        self.draws = draws


_Kind = tuple[torch.Size, torch.dtype, torch.layout] | None


def _kinds(leaves: Sequence[Any]) -> list[_Kind]:
    """What must be the same of outputs at all points; nothing is asked of those that are no tensors."""
    return [(t.shape, t.dtype, t.layout) if isinstance(t, Tensor) else None for t in leaves]


def _described(kind: _Kind) -> str:
    if kind is None:
        return "no tensor"
    shape, dtype, layout = kind
    return f"{'' if layout is torch.strided else f'{layout} '}{dtype} of shape {tuple(shape)}"


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether two lists of outputs have the same shapes and numbers, to the last bit."""
    if [t.shape for t in some] != [t.shape for t in others]:
        return False
    return all(same_bits(one.detach(), other.detach()) for one, other in zip(some, others, strict=True))


class Problem:
    """A function of the chosen leaves at a point, with its outputs there."""

    def __init__(
        self,
        caller: Caller,
        arguments: Arguments,
        max_entries: int | None = None,
        seed: int = 0,
        *,
        masked: bool = False,
        device: torch.device | None = None,
        inside: AbstractContextManager[Any] | None = None,
        first: Problem | None = None,
    ) -> None:
        self.caller = caller
        self.arguments = arguments
        self.device = device  # where the caller's code makes new tensors, if it said so
        self.inside = device if inside is None else inside
        """Where the function and its derivative run, if not plainly."""
        self.masked = masked
        self.runs = 0
        self.raised: BaseException | None = None
        self.is_lifted = False
        """Whether it stands for a function in low precision, which takes the same cotangents."""
        self._named_as: Problem | None = None
        """The problem whose names the inputs and outputs have, if not its own."""
        self.closes_over: bool = first is not None and first.closes_over
        self._repeated = 0
        self.unsteady: np.ndarray | None = None
        """By how much the outputs of two runs at the point differ beyond rounding, if that was asked."""
        self._first, self._most, self._seed = first, max_entries, seed
        self.originals: list[Tensor] = arguments.primals()
        whole = Chart.around(self.originals, masked=masked)
        base = whole.point(self.originals).cpu()
        self.inputs = sampled(whole, max_entries, None, seed)
        self.chart = sampled(whole, max_entries, base, seed)  # of points: what is not looked at stays at base
        at = base[self.inputs.kept] if isinstance(self.inputs, Sampled) else base
        self.point: np.ndarray = at.to(torch.float64).numpy()
        self.variables = self._made_leaves(whole)
        self._others = list(arguments.leaves)
        if len(arguments.chosen) < len(self._others):
            chosen = set(arguments.chosen)
            for index, leaf in enumerate(self._others):
                if index not in chosen:
                    self._others[index] = guarded(leaf)
        if not self.closes_over:
            self.closes_over = self._record_or_close_over()
        if self.closes_over:
            self._refuse_materialised()
            self.variables = self.originals
            self.point = self.point.copy()  # these are moved, and it may be a view of them
            self._others = list(arguments.leaves)
            self._record()
        self._take()
        self._moved = Moved(self._leaves_to_move(whole), self.inputs, self.chart, self.point)

    def _made_leaves(self, whole: Chart) -> list[Tensor]:
        """The leaves; those of the first problem, where its backward is looked at."""
        known = [] if self._first is None else self._first.variables
        rest = zip(whole.places[len(known) :], self.originals[len(known) :], strict=True)
        return known[: len(self.originals)] + [like(tensor, place.stand_in(tensor)) for place, tensor in rest]

    def _leaves_to_move(self, whole: Chart) -> list[Tensor]:
        """The leaves that differences move: those of graphs, or what specifies every element instead."""
        moved = list(self.variables)
        for index, (place, original) in enumerate(zip(whole.places, self.originals, strict=True)):
            if (filled := place.filled(original)) is not None:
                leaf = like(original, filled)
                moved[index] = leaf if moved[index].is_leaf else leaf.clone()
        return moved

    def _record_or_close_over(self) -> bool:
        """Run the function with its graph; whether it has to see the caller's own tensors."""
        try:
            self._record()
        except RuntimeError as error:
            if reads_beyond_storage(error):
                return True
            if all(tensor.is_leaf for tensor in self.originals):
                raise
            # torch lets a function work in place on a tensor that is no leaf.
            pairs = zip(self.variables, self.originals, strict=True)
            self.variables = [leaf if tensor.is_leaf else leaf.clone() for leaf, tensor in pairs]
            self._record()
            return False
        return self._uses_originals()

    def _refuse_materialised(self) -> None:
        if self.inputs.sparse_layouts and not self.masked:
            raise UnsupportedError(
                f"{self.caller}: the function uses a sparse tensor from outside in place of its input, which "
                "specifies too few elements for masked=False; pass it as an argument, or masked=True."
            )

    def _record(self) -> None:
        """Run the function with its graph, and look at what it returns."""
        with GradMode(enabled=True):
            self._returned = self.call(self.variables)
        self._leaves, self.spec = flatten(self._returned)
        for leaf in self._leaves:
            if is_differentiable(leaf) and (reason := refusal(leaf, is_output=True)) is not None:
                raise OutputError(f"{self.caller}: an output {reason}")
        self.reached = graph.reached([t for t in self._leaves if isinstance(t, Tensor) and t.requires_grad])

    def _take(self) -> None:
        leaves = self._leaves
        if leaves and not any(isinstance(leaf, Tensor) for leaf in leaves):
            raise OutputError(
                f"{self.caller}: the function must return tensors, got {summary(self._returned)}. Did it "
                "call .item(), or forget to return?"
            )
        self.kept = [i for i, leaf in enumerate(leaves) if is_differentiable(leaf) and leaf.requires_grad]
        self.differentiable = bool(self.kept)
        if not self.differentiable:
            self.kept = [i for i, leaf in enumerate(leaves) if is_differentiable(leaf)]
        self.graph_outputs: list[Tensor] = [leaves[i] for i in self.kept]
        whole = Chart.around(self.graph_outputs, masked=self.masked, is_output=True)
        self.outputs = sampled(whole, self._most, None, self._seed)
        self._recorded = self._copied(self.graph_outputs)
        self._kinds = _kinds(leaves)
        if self.outputs.size > PIECE and self.differentiable:
            self._let_go()

    def _let_go(self) -> None:
        """Keep of many outputs what leads to their graph alone: their numbers are copied."""
        self.graph_outputs = [graph.without_numbers(tensor) for tensor in self.graph_outputs]
        for index, tensor in zip(self.kept, self.graph_outputs, strict=True):
            self._leaves[index] = tensor
        self._returned = unflatten(self._leaves, self.spec)

    @lazy
    def value(self) -> np.ndarray:
        """The outputs at the point, for what differences are taken of."""
        return self.evaluate() if self._fills else self._recorded

    @property
    def _fills(self) -> bool:
        """Whether differences are taken with more elements specified than the caller's tensors do."""
        return any(map(operator.is_not, self._moved.leaves, self.variables))

    @property
    def shape(self) -> tuple[int, int]:
        """Of the Jacobian."""
        return self.outputs.size, self.inputs.size

    def entry(self, row: int, column: int) -> Entry:
        """The name of an entry of the Jacobian."""
        return Entry(self.outputs.label(row, self.output_names), self.inputs.label(column, self.input_names))

    # What the function and its tensors are like.

    @property
    def asked(self) -> Problem:
        """The problem of the caller's own function; this one may be that of its backward."""
        return self if self._first is None else self._first

    @lazy
    def output_names(self) -> list[str]:
        """How a person would write each output."""
        if self._named_as is not None:
            return self._named_as.output_names
        if self._first is not None:
            return [f"grad_{self._first.input_names[i]}" for i in self.kept]
        single = isinstance(self._returned, tuple) and len(self._returned) == 1
        names = leaf_paths(self._returned[0] if single else self._returned, "output")
        return [names[i] for i in self.kept]

    @property
    def numbers_returned(self) -> list[str]:
        """The names of outputs that are floating-point or complex numbers, and no tensors."""
        names = leaf_paths(self._returned, "output")
        return [f"`{names[i]}`" for i, leaf in enumerate(self._leaves) if isinstance(leaf, float | complex)]

    @property
    def graphless(self) -> list[str]:
        """The names of differentiable outputs that have no graph, where others have one."""
        names = leaf_paths(self._returned, "output")
        leaves = enumerate(self._leaves) if self.differentiable else ()
        return [f"`{names[i]}`" for i, leaf in leaves if is_differentiable(leaf) and i not in self.kept]

    @lazy
    def input_names(self) -> list[str]:
        """How a person would write each input."""
        if self._named_as is not None:
            return self._named_as.input_names
        if self._first is not None:
            cotangents = [f"grad_{name}" for name in self._first.output_names]
            return (self._first.input_names + cotangents)[: len(self.originals)]
        return self.arguments.paths(self.caller.function)

    @lazy
    def low_precision(self) -> bool:
        """Whether some input or output has fewer digits than a difference needs."""
        return not self._dtypes <= _PRECISE

    @lazy
    def _dtypes(self) -> set[torch.dtype]:
        return {place.dtype for place in (*self.inputs.places, *self.outputs.places)}

    @lazy
    def _dtypes_inside(self) -> set[torch.dtype]:
        """Those of inputs, outputs and what is computed between them."""
        return self._dtypes | self.bytes_inside.keys()

    @lazy
    def bytes_inside(self) -> dict[torch.dtype, int]:
        """How many bytes the tensors in the graph take, of each dtype."""
        return graph.bytes_by_dtype(self.reached.inner)

    @lazy
    def rounding(self) -> float:
        """The rounding error of the function and its derivative, relative to their size: of casts too."""
        dtypes = self._dtypes_inside
        if dtypes <= _PRECISE:
            return _DOUBLE
        return max(torch.finfo(d).eps for d in dtypes if d.is_floating_point or d.is_complex)

    @lazy
    def largest(self) -> float:
        """The largest number that everything inside of the function can hold."""
        dtypes = self._dtypes_inside
        return float(min(torch.finfo(d).max for d in dtypes if d.is_floating_point or d.is_complex))

    @lazy
    def half_inside(self) -> bool:
        """Whether numbers pass through half precision, which holds few sizes of them."""
        return not _HALF.isdisjoint(self._dtypes_inside)

    @property
    def coarse(self) -> bool:
        """Whether some input has less than double precision."""
        return any(torch.finfo(place.dtype).eps > _DOUBLE for place in self.inputs.places)

    def beside(self, leaves: Sequence[Any], inside: AbstractContextManager[Any]) -> Problem:
        """The same function of other leaves, under the same names, which runs elsewhere."""
        other = Problem(
            self.caller,
            self.arguments.at(list(leaves)),
            self._most,
            self._seed,
            masked=self.masked,
            device=self.device,
            inside=inside,
        )
        other._named_as = self
        return other

    # Runs of the function.

    def call(self, primals: Sequence[Tensor]) -> Any:
        """The function with these tensors in place of the chosen leaves."""
        leaves = list(self._others)
        for index, tensor in zip(self.arguments.chosen, primals, strict=True):
            leaves[index] = tensor
        args, kwargs = self.arguments.rebuild(leaves)
        self.runs += 1
        try:
            if self.inside is None:
                return tensors_for_outputs(self.caller, self.caller.function(*args, **kwargs))
            with self.inside:
                return tensors_for_outputs(self.caller, self.caller.function(*args, **kwargs))
        except Exception as error:
            self.raised = error
            raise

    def outputs_of(self, primals: Sequence[Tensor]) -> list[Tensor]:
        """The kept outputs of a run with these tensors."""
        return self._kept_of(self.call(primals))

    def _kept_of(self, returned: Any) -> list[Tensor]:
        """The kept ones of what a run returned, if they are of the kinds that they are at the point."""
        leaves, _ = flatten(returned)
        if (kinds := _kinds(leaves)) != self._kinds:
            got, expected = (", ".join(map(_described, some)) or "nothing" for some in (kinds, self._kinds))
            where = "where every element is specified" if self._fills else "at a nearby point"
            raise ShapeChange(f"the function returns {got} {where}, instead of {expected}")
        return [leaves[i] for i in self.kept]

    def evaluate(
        self,
        point: np.ndarray | None = None,
        shift: Shift | None = None,
        use: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> np.ndarray:
        """The outputs of a run as the caller would make it: on the leaves, moved in place, grad mode on.

        What is used of them is taken before the leaves are moved back: an output may be a view of an input.
        """
        try:
            if point is not None:
                self._moved.to(point, shift)
            with GradMode(enabled=True):
                outputs = self._kept_of(self.call(self._moved.leaves))
                if use is None:
                    return self._copied(outputs)
                return use(self.outputs.coordinates(outputs).numpy())
        finally:
            if point is not None:
                self._moved.back()

    def _copied(self, outputs: Sequence[Tensor]) -> np.ndarray:
        """The coordinates of outputs, as no view of them; those of several are put together anyway."""
        numbers: np.ndarray = self.outputs.coordinates(outputs).numpy()
        return numbers.copy() if len(self.outputs.places) == 1 else numbers

    def stored(self, point: np.ndarray) -> np.ndarray:
        """The point as the leaves hold it, in their own precision."""
        tensors = self.chart.from_coords(torch.from_numpy(point))
        return self.inputs.coordinates(tensors).numpy().copy()

    def fresh(self) -> list[Tensor]:
        """The kept outputs of another run at the point, with a graph of their own."""
        with GradMode(enabled=True):
            return self.outputs_of(self.variables)

    def run_elsewhere(self, point: np.ndarray) -> None:
        """Run the function on other tensors, at another point, which may be outside of its domain."""
        with GradMode(enabled=False), suppress(Exception):
            self.call([tensor.clone() for tensor in self.chart.from_coords(torch.from_numpy(point))])

    def require_pure(self, runs: int = 1) -> None:
        """Raise `Impure` if one of so many runs in succession gives other values at the point.

        What differs by rounding is the same. What differs in the second half of the digits is noise: a solver
        may begin at its last result.
        """
        if self._repeated >= runs:
            return
        self._repeated = runs
        for _ in range(runs):
            before = torch.get_rng_state()
            again = self.evaluate()
            with np.errstate(all="ignore"):
                off = np.where(again == self.value, 0.0, abs(again - self.value))
                off[np.isnan(again) & np.isnan(self.value)] = 0.0
                off[off <= _ROUNDINGS * self.rounding * (1 + abs(self.value))] = 0.0
                same = (off == 0) | (off <= np.sqrt(self.rounding) * (1 + abs(self.value)))
            if not same.all():
                where = self.outputs.label(int(np.flatnonzero(~same)[0]), self.output_names)
                raise Impure(where, draws=not torch.equal(before, torch.get_rng_state()))
            self.unsteady = off if self.unsteady is None else np.maximum(off, self.unsteady)

    def mutated(self) -> list[str]:
        """The inputs whose leaves the function has changed."""
        if self._first is not None:
            return self._first.mutated()
        if self.closes_over:
            return []
        pairs = enumerate(zip(self.originals, self.variables, strict=True))
        return [self.input_names[i] for i, (was, now) in pairs if not same_bits(was, now)]

    # Whether the function sees what it is given.

    def _uses_originals(self) -> bool:
        """Whether the function uses the caller's own tensors beside, or instead of, what it is given."""
        leaves, inner = self.reached
        for tensor in self.originals:
            if id(tensor) in leaves or (tensor.grad_fn is not None and tensor.grad_fn in inner):
                return True
        if not self._captures() and leaves.issuperset(map(id, self.variables)):
            return False
        outputs = [leaf for leaf in self._leaves if is_differentiable(leaf)]
        # The graph does not tell: move the caller's tensors, and see whether the outputs move.
        away = [moved(tensor) for tensor in self.originals]
        before = torch.get_rng_state()
        try:
            with shifted(self.originals, away):
                there = self._differentiable_outputs()
        except Exception:  # that these were moved is what it minds
            self.raised = None
            return True
        if not _same(outputs, there) and not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)  # it draws random numbers: the same ones for both runs
            outputs = self._differentiable_outputs()
        return not _same(outputs, there)

    def _differentiable_outputs(self) -> list[Tensor]:
        """Those of another run on the leaves."""
        with torch.enable_grad():
            return [leaf for leaf in flatten(self.call(self.variables))[0] if is_differentiable(leaf)]

    def _captures(self) -> bool:
        """Whether one of the caller's tensors stands in the closure of the function."""
        function = self.caller.function
        function = function.__func__ if isinstance(function, MethodType) else function
        cells = (function.__closure__ or ()) if isinstance(function, FunctionType) else ()
        held = {id(cell.cell_contents) for cell in cells if has_value(cell)}
        return not held.isdisjoint(map(id, self.originals))
