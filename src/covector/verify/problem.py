"""What is to be checked: a function, a point, and how the function behaves there.

The function is run on stand-ins for the caller's tensors, so that nothing of the caller's changes. A
function that closes over its own inputs does not see the stand-ins; it is found out by its graph, and
is then evaluated on the caller's tensors themselves, which are put back whatever happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from covector._chart import Chart, Sampled, ShapeChange, is_sparse, moved, refusal, sampled
from covector._engine import graph
from covector._engine.batch import batched
from covector._engine.levels import GradMode
from covector._lazy import lazy
from covector._tree import Arguments, flatten, leaf_paths
from covector.errors import Caller, OutputError, UnsupportedError
from covector.transforms._door import summary
from covector.verify.stand_ins import doubled, filled, guarded, is_differentiable, same_bits, shifted
from covector.verify.steps import Steps
from covector.verify.surprises import Impure, NeedsGraph, NotBatchable
from covector.verify.tolerance import HasRows, Tolerance

# A batch of evaluations holds at most this many numbers of input and output: what fits a cache.
_BATCH_NUMBERS = 1 << 19

# Next to the point, values may be off their mean by curvature; by more than this, the function may be one
# that gives another value each time; by more than that, it jumps or has a pole, or its batches are wrong.
_CURVED = 1e-9
_JUMP = 1e-3

# What operations say that refuse slices of a larger tensor.
_OF_SLICES = ("contiguous", "stride")

_DOUBLE = torch.finfo(torch.float64).eps
_PRECISE = {torch.float64, torch.complex128}

# Classes of tensors without rules of their own.
_CLASSES = {Tensor, Parameter}


class Problem:
    """A function of the chosen leaves at a point, with its outputs there."""

    def __init__(
        self,
        caller: Caller,
        arguments: Arguments,
        max_entries: int | None = None,
        seed: int = 0,
        *,
        in_place: bool = False,
        masked: bool = False,
        recording: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self.caller = caller
        self.arguments = arguments
        self.evaluations = 0
        self.raised: BaseException | None = None
        self._subclasses = not _CLASSES.issuperset(map(type, arguments.primals()))
        self._recording = recording
        self.device = device  # where the caller's code makes new tensors, if it said so
        self._batchable = not (self._subclasses or recording or any(map(_is_sparse, arguments.leaves)))
        self._batch_trusted = False
        self._contiguous = False
        self._randomness = "error"
        self._pure = False
        self._lifted = False
        self.originals: list[Tensor] = arguments.primals()
        self._most, self._seed, self.masked = max_entries, seed, masked
        whole = Chart.around(self.originals, masked=masked)
        base = whole.point(self.originals).to("cpu", torch.float64)
        self.inputs = sampled(whole, max_entries, None, seed)
        self._point_chart = sampled(whole, max_entries, base, seed)
        self.point = base[self.inputs.kept] if isinstance(self.inputs, Sampled) else base
        self.steps = Steps(self.point)
        self.variables = [
            place.stand_in(tensor).requires_grad_()
            for place, tensor in zip(whole.places, self.originals, strict=True)
        ]
        self._others = list(arguments.leaves)
        if len(arguments.chosen) < len(self._others):
            chosen = set(arguments.chosen)
            for index, leaf in enumerate(self._others):
                if index not in chosen:
                    self._others[index] = guarded(leaf)
        try:
            self._record()
        except RuntimeError as error:
            # The function looks beyond its input, into the storage that the caller's tensor is a view of.
            if "out of bounds for storage" not in str(error):
                raise
            in_place = True
        self.closes_over = in_place or self._closes_over()
        if self.closes_over:
            self._refuse_materialised()
            self.variables = self.originals
            self._others = list(arguments.leaves)
            self._record()
        self._take()
        self._point_others = self._others
        if self.low_precision:
            self._lift()

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
        self._reached = graph.reached([t for t in self._leaves if isinstance(t, Tensor) and t.requires_grad])

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
        self._batchable = self._batchable and self.outputs.can_batch
        self.stackable = self._batchable

    @property
    def rounding(self) -> float:
        """The rounding error of differenced outputs, relative to their size."""
        return _DOUBLE if self._lifted else self.derivative_rounding

    @lazy
    def output_names(self) -> list[str]:
        """How a person would write each output."""
        single = isinstance(self._returned, tuple) and len(self._returned) == 1
        names = leaf_paths(self._returned[0] if single else self._returned, "output")
        return [names[i] for i in self.kept]

    @lazy
    def input_names(self) -> list[str]:
        """How a person would write each input."""
        return self.arguments.paths(self.caller.function)

    @lazy
    def low_precision(self) -> bool:
        """Whether some input or output has fewer digits than a difference needs."""
        return not self._dtypes <= _PRECISE

    @lazy
    def _dtypes(self) -> set[torch.dtype]:
        return {place.dtype for place in (*self.inputs.places, *self.outputs.places)}

    @lazy
    def derivative_rounding(self) -> float:
        """The rounding error of a derivative, relative to its size: also that of a cast on the way."""
        dtypes = self._dtypes | graph.dtypes(self._reached.inner)
        if dtypes <= _PRECISE:
            return _DOUBLE
        return max(torch.finfo(d).eps for d in dtypes if d.is_floating_point or d.is_complex)

    @property
    def coarse(self) -> list[str]:
        """The inputs that have to be differenced in less than double precision."""
        if self._lifted:
            return []
        eps = [torch.finfo(place.dtype).eps for place in self.inputs.places]
        return [self.input_names[i] for i, value in enumerate(eps) if value > _DOUBLE]

    def _lift(self) -> None:
        """Difference in double precision, if the function takes it and answers in it."""
        if self.closes_over:
            return
        try:
            others = [doubled(leaf) for leaf in self._others]
            primals = [doubled(variable.detach()) for variable in self.variables]
            with GradMode(enabled=self._recording):
                leaves, _ = flatten(self.call(self._leaves_of(primals), others))
            kept = [leaves[i] for i in self.kept]
        except Exception:  # the function refuses: it is differenced as it is
            return
        if all(is_differentiable(leaf) and torch.finfo(leaf.dtype).eps <= _DOUBLE for leaf in kept):
            whole = Chart.around(primals, masked=self.masked)
            base = whole.point(primals).to("cpu", torch.float64)
            self._point_chart = sampled(whole, self._most, base, self._seed)
            self._point_others = others
            self._lifted = True

    def tolerance(self, tol: Tolerance, derivative: HasRows) -> Tolerance:
        """The tolerance, widened by the rounding of a derivative in low precision."""
        if not self.low_precision:
            return tol
        rounding = self.derivative_rounding
        step = tol.eps if self._lifted else max(tol.eps, rounding ** (1 / 3))
        # A row is what one cotangent gives: its rounding is in proportion to its own largest entry.
        slack = 32 * rounding * derivative.row_sizes() if self._lifted else 0.0
        return tol._replace(eps=step, slack=slack)

    def again(self) -> Tensor:
        """The outputs of another run at the same point."""
        with GradMode(enabled=self._recording):
            if self.closes_over:
                return self.value(self.variables)
            return self.value(self._leaves_of([variable.detach().clone() for variable in self.variables]))

    def _leaves_of(self, primals: list[Tensor]) -> list[Tensor]:
        """Tensors for the function to be evaluated on."""
        return [primal.requires_grad_() for primal in primals] if self._recording else primals

    def _recorded(self, primals: Sequence[Tensor], others: Sequence[Any] | None = None) -> Tensor | None:
        """The outputs of a run that is recorded; None if it raises."""
        try:
            with GradMode(enabled=True):
                return self.value([primal.detach().clone().requires_grad_() for primal in primals], others)
        except Exception:
            return None

    def require_pure(self) -> None:
        """Raise `Impure` if another run at the same point gives other values; asked once."""
        if self._pure:
            return
        before = torch.get_rng_state()
        first, second = self.known, self.again()
        if torch.equal(first, second):
            self._pure = True
            return
        slack = 1e3 * self.rounding * (1 + first.abs())
        same = ((first - second).abs() <= slack) | (first == second) | (first.isnan() & second.isnan())
        if not same.all():
            third = None if self._recording else self._recorded(self.variables)
            if third is not None and torch.equal(first, third):
                raise NeedsGraph
            where = self.outputs.label(int((~same).nonzero()[0]), self.output_names)
            raise Impure(where, draws=not torch.equal(before, torch.get_rng_state()))
        self._pure = True

    def name_after(self, first: Problem) -> None:
        """Call inputs and outputs what they are when the function is the backward of another problem."""
        cotangents = [f"grad_{name}" for name in first.output_names]
        self.__dict__["input_names"] = (first.input_names + cotangents)[: len(self.originals)]
        self.__dict__["output_names"] = [f"grad_{name}" for name in first.input_names]

    def call(self, primals: Sequence[Tensor], others: Sequence[Any] | None = None) -> Any:
        """The function with these tensors in place of the chosen leaves."""
        leaves = list(self._others if others is None else others)
        for index, tensor in zip(self.arguments.chosen, primals, strict=True):
            leaves[index] = tensor
        args, kwargs = self.arguments.rebuild(leaves)
        self.evaluations += 1
        try:
            if self.device is None:
                return self.caller.function(*args, **kwargs)
            with self.device:
                return self.caller.function(*args, **kwargs)
        except Exception as error:
            self.raised = error
            raise

    def fresh(self) -> list[Tensor]:
        """The kept outputs of another run, with a graph of their own."""
        with torch.enable_grad():
            leaves, _ = flatten(self.call(self.variables))
        return [leaves[i] for i in self.kept]

    @property
    def _custom(self) -> bool:
        """Whether a custom Function is on the way."""
        return graph.through_custom(self._reached.inner)

    @lazy
    def one_by_one(self) -> bool:
        """Whether a batch saves nothing, because torch goes through it point by point."""
        return graph.through_operator(self._reached.inner)

    def _closes_over(self) -> bool:
        """Whether the function uses the caller's own tensors beside, or instead of, what it is given."""
        leaves, inner = self._reached
        for tensor in self.originals:
            if id(tensor) in leaves or (tensor.grad_fn is not None and tensor.grad_fn in inner):
                return True
        if not self._captures() and leaves.issuperset(map(id, self.variables)):
            return False
        outputs = [leaf for leaf in self._leaves if is_differentiable(leaf)]
        # The graph does not tell: move the caller's tensors, and see whether the outputs move.
        away = [moved(tensor) for tensor in self.originals]
        with torch.enable_grad(), shifted(self.originals, away):
            there = [leaf for leaf in flatten(self.call(self.variables))[0] if is_differentiable(leaf)]
        return not all(map(same_bits, [t.detach() for t in outputs], [t.detach() for t in there]))

    def _captures(self) -> bool:
        """Whether one of the caller's tensors stands in the closure of the function."""
        cells = getattr(self.caller.function, "__closure__", None) or ()
        held = {id(cell.cell_contents) for cell in cells if filled(cell)}
        return not held.isdisjoint(map(id, self.originals))

    def mutated(self) -> list[str]:
        """The inputs whose stand-ins the function has changed."""
        if self.closes_over:
            return []
        pairs = enumerate(zip(self.originals, self.variables, strict=True))
        return [self.input_names[i] for i, (was, now) in pairs if not same_bits(was.detach(), now.detach())]

    # Evaluations of the kept outputs, as coordinates.

    def value(self, primals: Sequence[Tensor], others: Sequence[Any] | None = None) -> Tensor:
        """The coordinates of the outputs at one point."""
        leaves, _ = flatten(self.call(self._like_originals(primals), others))
        kept = [leaves[i] for i in self.kept] if len(leaves) > max(self.kept, default=-1) else []
        if len(kept) < len(self.kept) or any(
            not place.fits(t) for t, place in zip(kept, self.outputs.places, strict=True)
        ):
            raise ShapeChange(
                "the function returns other shapes at a nearby point: "
                f"{[tuple(t.shape) for t in kept]} instead of {[tuple(p.shape) for p in self.outputs.places]}"
            )
        return self.outputs.coordinates(kept)

    def _like_originals(self, primals: Sequence[Tensor]) -> Sequence[Tensor]:
        """The same tensors, of the classes of the caller's."""
        if not self._subclasses:
            return primals
        pairs = zip(primals, self.originals, strict=True)
        return [primal.as_subclass(type(original)) for primal, original in pairs]

    def values(self, points: Tensor, *, batch: bool = True, loop: bool = True) -> Tensor:
        """The coordinates of the outputs at many points, a row for each: in a batch, else in a loop."""
        if points.shape[0] == 0:
            return points.new_zeros(0, self.outputs.size)
        with GradMode(enabled=self._recording):
            if self.closes_over:
                return torch.stack([self._value_in_place(point) for point in points])
            if batch and self._batchable and points.shape[0] > 1:
                try:
                    return self._batched_values(points)
                except (Impure, NeedsGraph):
                    raise
                except Exception as error:  # whatever it was, the loop below works or raises it again
                    if not self._contiguous and any(word in str(error) for word in _OF_SLICES):
                        # Several inputs are slices of one stack.
                        self._contiguous = True
                        return self.values(points, loop=loop)
                    self._batchable = False
            if not loop:
                raise NotBatchable
            return torch.stack([self._value_at(point) for point in points])

    def _value_at(self, point: Tensor) -> Tensor:
        # In memory of its own: a function may look at the storage of its inputs.
        primals = [tensor.clone() for tensor in self._point_chart.from_coords(point)]
        try:
            return self.value(self._leaves_of(primals), self._point_others)
        except Exception as error:
            if error is not self.raised or self._recording:
                raise
            if self._recorded(primals, self._point_others) is not None:
                raise NeedsGraph from error
            self.raised = error
            raise

    @property
    def batchable(self) -> bool:
        """Whether many points can be evaluated at once, as far as is known."""
        return self._batchable and not self.closes_over

    def differences(self, moves: Tensor, *, loop: bool = True) -> Tensor:
        """(f(x + s) - f(x - s)) / 2 for every row s, unscaled. Without `loop` it may raise `NotBatchable`."""
        return torch.from_numpy(self.differences_and_values(moves.numpy(), (), loop=loop)[0])

    def differences_and_values(
        self, moves: np.ndarray, points: Sequence[np.ndarray], *, loop: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same, and the outputs at more points, all evaluated at once."""
        here = self.point.numpy()
        return self._halved(np.concatenate([here + moves, here - moves, *points]), len(moves), loop)

    def column_differences(self, step: np.ndarray, columns: slice, *, loop: bool = True) -> np.ndarray:
        """The same for each of these coordinates moved by itself."""
        size, made = step.size, step[columns]
        points = np.empty((2, made.size * size))
        rows = points.reshape(2 * made.size, size)
        rows[:] = self.point.numpy()
        # Coordinate `first + i` of row i.
        moved = points[:, columns.start :: size + 1][:, : made.size]
        moved[0] += made
        moved[1] -= made
        return self._halved(rows, made.size, loop)[0]

    def _halved(self, points: np.ndarray, count: int, loop: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Half of f at the first so many points minus f at the next, and f at the rest."""
        values = self.values(torch.from_numpy(points), loop=loop).numpy()
        plus, minus = values[:count], values[count : 2 * count]
        if self._batchable and not self._batch_trusted:
            # A custom Function may have a batching rule of its own.
            known = self._around(plus[0], minus[0]) and not self._custom
            if not known and not self._as_singly(points[[0, -1]], values[[0, -1]]):
                self._batchable = False  # a batching rule is wrong: evaluate singly
                return self._halved(points, count, loop)
            self._batch_trusted = True
        with np.errstate(all="ignore"):
            return 0.5 * (plus - minus), values[2 * count :]

    @lazy
    def known(self) -> Tensor:
        """The coordinates of the outputs at the point itself."""
        return self.outputs.coordinates(self.graph_outputs)

    def _around(self, plus: np.ndarray, minus: np.ndarray) -> bool:
        """Whether two values lie around the known one, as far as a wrong batching rule would put them off."""
        known = self.known.numpy()
        if known.size == 0:
            return True
        with np.errstate(all="ignore"):
            off = abs(plus + minus - 2 * known).max()
            if off <= _CURVED:
                return True
            off = (abs(plus + minus - 2 * known) / (1 + abs(known))).max()
        # Compared such that NaN does not count as far off.
        if off > _CURVED:
            self.require_pure()
        return not off > _JUMP

    def _as_singly(self, points: np.ndarray, values: np.ndarray) -> bool:
        """Whether the function gives the same values without a batch."""
        alone = self.values(torch.from_numpy(points), batch=False).numpy()
        with np.errstate(all="ignore"):
            return not (abs(alone - values) / (1 + abs(alone))).max(initial=0.0) > _CURVED

    def block_size(self) -> int:
        """How many points are evaluated at once."""
        return max(1, _BATCH_NUMBERS // max(1, self.inputs.size + self.outputs.size))

    def _batched_values(self, points: Tensor) -> Tensor:
        size = self.block_size()
        blocks = []
        for start in range(0, points.shape[0], size):
            block = points if points.shape[0] <= size else points[start : start + size]
            stacks = self._point_chart.from_coords(block)
            if self._contiguous:
                stacks = [stack.contiguous() for stack in stacks]

            def apply(primals: list[Tensor]) -> list[Tensor]:
                leaves, _ = flatten(self.call(primals, self._point_others))
                return [leaves[i] for i in self.kept]

            try:
                values = batched(apply, stacks, self._randomness)
            except RuntimeError as error:
                if "randomness error mode" not in str(error):
                    raise
                # It draws numbers. If they make no difference, as with a seed inside, one draw will do.
                self.require_pure()
                self._randomness = "same"
                values = batched(apply, stacks, self._randomness)
            blocks.append(self.outputs.stack_to_coords(values).cpu())
            if blocks[-1].shape[0] != block.shape[0]:
                raise NotBatchable  # a batching rule lost points
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    def _value_in_place(self, point: Tensor) -> Tensor:
        with shifted(self.originals, self._point_chart.from_coords(point)):
            return self.value(self.originals)


def _is_sparse(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and is_sparse(leaf)
