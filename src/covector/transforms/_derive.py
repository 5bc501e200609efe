"""Jacobians by a plan: the mode chosen, within a memory limit, of whole functions or of samples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from covector._chart import AnyPlace, Chart, Repeated
from covector._engine import levels
from covector._engine.compiled import tracing, without_values
from covector._engine.memory import NoZeroProducts, Watch
from covector._engine.reverse import Run
from covector._images import Pace
from covector._linear import LinearMap, NoForwardRule, Pullback, Pushforward
from covector._tree import Arguments, Evaluation
from covector.errors import BudgetError, Caller, RandomnessError, UnsupportedError, first_sentence
from covector.transforms._batch import (
    Blocks,
    Probe,
    check_batch_dim,
    check_batchwise,
    samples_first,
    scattered_like,
    telling,
)
from covector.transforms._complex import check_convention
from covector.transforms._jacobian import Request
from covector.transforms._plan import (
    TRIAL,
    Budget,
    Plan,
    by_sizes,
    check_mode,
    in_units,
    memory_limit,
    worth_a_trial,
)

Coordinates = Chart | Repeated
Choose = Callable[[int, int], tuple[str, str]]

_ASKED = "it was asked for"


@dataclass(frozen=True)
class Options(Request):
    """What is asked of `jacobian` and `hessian`, beyond what is asked of `jacrev`."""

    mode: str = "auto"
    max_memory: Any = None
    batch_dim: int | None = None
    complex: str | None = None

    def has_no_extras(self) -> bool:
        """Whether nothing is asked for beyond what `jacrev` takes."""
        return (
            self.mode == "auto"
            and self.max_memory is None
            and self.batch_dim is None
            and self.complex is None
        )

    def checked(self, verb: str) -> Options:
        """These options, if their values make sense, with the memory limit in bytes."""
        super().checked(verb)
        check_mode(verb, self.mode)
        check_batch_dim(verb, self.batch_dim)
        check_convention(verb, self.complex)
        if self.max_memory is None:
            return self
        return replace(self, max_memory=memory_limit(verb, self.max_memory))


class Samples(NamedTuple):
    """Where the samples lie: their axis in the inputs, and in the outputs."""

    inputs: int
    outputs: int


class Problem(NamedTuple):
    """A function of real tensors on flat leaves, the point, and who asked."""

    caller: Caller
    arguments: Arguments
    run: Run
    samples: Samples | None = None

    def inputs(self) -> Coordinates:
        """The coordinates to differentiate by."""
        primals = self.arguments.primals()
        return Chart.of(primals) if self.samples is None else Repeated.of(primals, self.samples.inputs)

    def outputs(self, outputs: list[Tensor]) -> Coordinates:
        """The coordinates of what the function returned."""
        return Chart.of(outputs) if self.samples is None else Repeated.of(outputs, self.samples.outputs)

    def at(self, leaves: list[Any]) -> Problem:
        """The same function at another point."""
        return self._replace(arguments=self.arguments.at(leaves))

    def pullback(self) -> Pullback:
        """The derivative by reverse mode."""
        return Pullback(self.caller, self.run, self.arguments)


class Derived(NamedTuple):
    """A Jacobian, as one block per output and input, of shape (samples) + output + input."""

    blocks: Blocks
    evaluation: Evaluation
    plan: Plan


def derive(
    problem: Problem, options: Options, choose: Choose = by_sizes, pullback: Pullback | None = None
) -> Derived:
    """The Jacobian by the mode that is asked for, or that seems best; from a pullback, if there is one."""
    if options.max_memory is not None:
        return _within_memory(problem, options, choose)
    if options.mode == "forward":
        return _by_columns(problem, options, _ASKED)
    if pullback is None:
        pullback = problem.pullback()
    outputs, inputs = problem.outputs(pullback.evaluation.outputs), problem.inputs()
    if options.mode == "reverse":
        return _by_rows(problem, pullback, outputs, inputs, options, _ASKED)
    mode, reason = choose(outputs.size, inputs.size)
    if mode == "forward":
        if choose is by_sizes and worth_a_trial(outputs.size, inputs.size) and not levels.active():
            mode, reason = _by_trial(problem, pullback, outputs, inputs)
        if mode == "forward":
            try:
                return _by_columns(problem, options, reason, go_around=False)
            except NoForwardRule as missing:
                reason = f"torch has no forward-mode rule for {missing}"
            except UnsupportedError as error:
                reason = f"forward mode did not do: {first_sentence(error)}"
            except RandomnessError:
                reason = "the function draws random numbers, which reverse mode does once"
    return _by_rows(problem, pullback, outputs, inputs, options, reason)


def _by_trial(
    problem: Problem, pullback: Pullback, outputs: Coordinates, inputs: Coordinates
) -> tuple[str, str]:
    """The mode whose first few directions take less time, extrapolated to all of them."""
    forward = Pushforward(problem.caller, problem.run, problem.arguments, go_around=False)
    try:
        column = _seconds_per_direction(forward, inputs)
    except (NoForwardRule, RandomnessError, UnsupportedError):
        return "forward", "sizes suggest it"  # and the attempt says why not
    row = _seconds_per_direction(pullback, outputs)
    ratio = column * inputs.size / (row * outputs.size)
    if ratio < 1:
        return "forward", f"a trial took {ratio:.2g} of the time of reverse mode"
    return "reverse", f"a trial took {1 / ratio:.2g} of the time of forward mode"


def _seconds_per_direction(derivative: LinearMap, over: Coordinates) -> float:
    count = min(TRIAL, over.size)
    start = perf_counter()
    derivative.apply_batch(over.basis(0, count))
    return (perf_counter() - start) / count


def _by_rows(
    problem: Problem,
    pullback: Pullback,
    outputs: Coordinates,
    inputs: Coordinates,
    options: Options,
    reason: str,
    pace: Budget | None = None,
) -> Derived:
    """The Jacobian by reverse mode."""
    rows = _matrix(pullback, outputs, options, pace)
    blocks = [[_row_block(stack, place, problem.samples) for stack in rows] for place in outputs.places]
    if problem.samples is not None:
        _check_rows(problem, pullback, blocks, problem.samples)
    chunk = options.chunk_size or outputs.size if pace is None else pace.largest
    plan = Plan("reverse", outputs.size, inputs.size, chunk, reason, options.max_memory)
    return Derived(blocks, pullback.evaluation, plan)


def _row_block(stack: Tensor, place: AnyPlace, samples: Samples | None) -> Tensor:
    """The rows that belong to one output, of shape (samples) + output + input."""
    if samples is not None:
        stack = samples_first(stack, samples.inputs)[:, place.start : place.stop]
        return stack.reshape((stack.shape[0], *place.shape, *stack.shape[2:]))
    if stack.shape[0] != place.stop - place.start:
        stack = stack[place.start : place.stop]
    return stack if len(place.shape) == 1 else stack.reshape((*place.shape, *stack.shape[1:]))


def _by_columns(
    problem: Problem,
    options: Options,
    reason: str,
    pace: Budget | None = None,
    *,
    go_around: bool = True,
) -> Derived:
    """The Jacobian by forward mode."""
    forward = Pushforward(problem.caller, problem.run, problem.arguments, go_around=go_around)
    inputs = problem.inputs()
    # Inside a batch an in-place operation needs tangents that belong to the batch.
    like = problem.arguments.primals() if levels.active() else None
    columns = _matrix(forward, inputs, options, pace, like)
    blocks = [[_column_block(stack, place, problem.samples) for place in inputs.places] for stack in columns]
    if problem.samples is not None:
        with nullcontext() if pace is None else NoZeroProducts():
            _check_columns(problem, forward, blocks, problem.samples)
    chunk = options.chunk_size or inputs.size if pace is None else pace.largest
    count = sum(stack.shape[1:].numel() for stack in columns)
    if isinstance(inputs, Repeated):
        count //= max(inputs.samples, 1)
    plan = Plan("forward", count, inputs.size, chunk, reason, options.max_memory)
    return Derived(blocks, forward.evaluation, plan)


def _column_block(stack: Tensor, place: AnyPlace, samples: Samples | None) -> Tensor:
    """The columns that belong to one input, of shape (samples) + output + input."""
    lead = 0
    if samples is not None:
        stack, lead = samples_first(stack, samples.outputs), 1
    columns = stack.narrow(lead, place.start, place.stop - place.start).movedim(lead, -1)
    return columns.reshape((*columns.shape[:-1], *place.shape))


def _matrix(
    derivative: LinearMap,
    over: Coordinates,
    options: Options,
    pace: Pace | None,
    like: list[Tensor] | None = None,
) -> list[Tensor]:
    return derivative.matrix(
        over, chunk_size=options.chunk_size, randomness=options.randomness, like=like, pace=pace
    )


# Samples


def _check_rows(problem: Problem, pullback: Pullback, blocks: Blocks, samples: Samples) -> None:
    """The pullback of a random cotangent is, sample by sample, the transposed blocks times it."""
    outputs, primals = pullback.evaluation.outputs, problem.arguments.primals()
    if outputs[0].shape[samples.outputs] < 2:
        return
    matrices = [
        [_matrices(block, out.ndim) for block in row] for out, row in zip(outputs, blocks, strict=True)
    ]
    turned = [[matrix.mT for matrix in column] for column in zip(*matrices, strict=True)]
    _check_samples(
        problem.caller, pullback, turned, _Sides(outputs, samples.outputs, primals, samples.inputs)
    )


def _check_columns(problem: Problem, forward: Pushforward, blocks: Blocks, samples: Samples) -> None:
    """The image of a random tangent is, sample by sample, the blocks times it."""
    primals = problem.arguments.primals()
    if primals[0].shape[samples.inputs] < 2:
        return
    axes = [row[0].ndim - primals[0].ndim + 1 for row in blocks]
    matrices = [[_matrices(block, n) for block in row] for row, n in zip(blocks, axes, strict=True)]
    outputs = [
        row[0].new_empty(row[0].shape[:n]).movedim(0, samples.outputs)
        for row, n in zip(blocks, axes, strict=True)
    ]
    _check_samples(
        problem.caller, forward, matrices, _Sides(primals, samples.inputs, outputs, samples.outputs)
    )


class _Sides(NamedTuple):
    """What a linear map takes and what it gives, and the axes of the samples there."""

    source: list[Tensor]
    source_axis: int
    target: list[Tensor]
    target_axis: int


def _check_samples(caller: Caller, derivative: LinearMap, matrices: Blocks, sides: _Sides) -> None:
    """The map does what the matrices of the samples do, which stand by target and source."""
    if without_values():
        return
    # A norm, not a sum of absolute values: these would take as much memory as the result.
    sizes = [_total([vector_norm(m, 1, dim=1) for m in column]) for column in zip(*matrices, strict=True)]
    rows = [_per_sample(tensor, sides.source_axis) for tensor in scattered_like(sides.source)]
    for vectors in telling(rows, sizes):
        products = [
            [_placed(p, tensor, sides.target_axis) for p in _product(row, vectors.rows)]
            for tensor, row in zip(sides.target, matrices, strict=True)
        ]
        placed = zip(vectors.rows, sides.source, strict=True)
        directions = [_placed(v, tensor, sides.source_axis) for v, tensor in placed]
        probe = Probe(directions, sides.source_axis, sides.target_axis, vectors.ground)
        check_batchwise(caller, derivative, probe, products)


def _matrices(block: Tensor, axes: int) -> Tensor:
    """A block as a matrix for each sample; `axes` of its axes come before those of the input."""
    shape = block.shape
    return block.detach().reshape(shape[0], shape[1:axes].numel(), shape[axes:].numel())


def _per_sample(tensor: Tensor, axis: int) -> Tensor:
    """A row for each sample."""
    first = tensor.movedim(axis, 0)
    return first.reshape(first.shape[0], first.shape[1:].numel())


def _product(matrices: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    """The sum of matrix times vector, sample by sample, and the same of absolute values."""
    pairs = [(m, v.to(m).unsqueeze(-1)) for m, v in zip(matrices, vectors, strict=True)]
    plain = _total([(m @ v).squeeze(-1) for m, v in pairs])
    return [plain, _total([(m.abs() @ v.abs()).squeeze(-1) for m, v in pairs])]


def _total(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], start=parts[0])


def _placed(product: Tensor, like: Tensor, axis: int) -> Tensor:
    """A row for each sample in the shape of a tensor that has its samples along this axis."""
    shape = like.movedim(axis, 0).shape
    return product.reshape(shape).movedim(0, axis)


# Memory


def _within_memory(problem: Problem, options: Options, choose: Choose) -> Derived:
    """The Jacobian by the mode that fits, in chunks that fit."""
    if tracing():
        raise UnsupportedError(
            f"{problem.caller}: max_memory cannot be kept to inside torch.compile, where nothing can be "
            "measured while the program is traced. Pass chunk_size instead, or call it outside."
        )
    outputs, needed = _size_up(problem, options)
    inputs = problem.inputs()
    first, reason = choose(outputs.size, inputs.size)
    if needed > options.max_memory:
        first, reason = "forward", f"a graph of up to {in_units(needed)} would not fit"
    order = {"forward": ("forward", "reverse"), "reverse": ("reverse", "forward")}[first]
    modes = [(mode, reason) for mode in order] if options.mode == "auto" else [(options.mode, _ASKED)]
    obstacles: list[Exception] = []
    for mode, why in modes:
        why = f"{first} mode did not do: {obstacles[0]}" if obstacles else why
        try:
            if mode == "reverse":
                return _rows_within_memory(problem, options, why)
            pace = Budget(problem.caller, options.max_memory, options.chunk_size)
            return _by_columns(problem, options, why, pace, go_around=options.mode != "auto")
        except (BudgetError, NoForwardRule, RandomnessError, UnsupportedError) as obstacle:
            obstacles.append(obstacle)
    raise next((o for o in obstacles if isinstance(o, BudgetError)), obstacles[0])


def _rows_within_memory(problem: Problem, options: Options, reason: str) -> Derived:
    with Watch() as watch:
        pullback = problem.pullback()
    left = options.max_memory - watch.live
    if left <= 0:
        raise BudgetError(
            f"{problem.caller}: the graph for reverse mode takes {in_units(watch.live)}, which leaves "
            f"nothing of max_memory={in_units(options.max_memory)}. Allow more, or use mode='forward'."
        )
    pace = Budget(problem.caller, left, options.chunk_size)
    outputs = problem.outputs(pullback.evaluation.outputs)
    return _by_rows(problem, pullback, outputs, problem.inputs(), options, reason, pace)


def _size_up(problem: Problem, options: Options) -> tuple[Coordinates, int]:
    """The chart of the outputs, and the most that a graph can take, by one run without a graph."""
    arguments = problem.arguments
    with torch.no_grad(), torch.random.fork_rng(devices=[]), Watch() as watch:
        evaluation = problem.run(list(arguments.leaves))
    outputs = problem.outputs(evaluation.outputs)
    inputs = problem.inputs()
    entry = max(t.element_size() for t in (*evaluation.outputs, *arguments.primals()))
    count = 1 if problem.samples is None else arguments.primals()[0].shape[problem.samples.inputs]
    result = count * outputs.size * inputs.size * entry
    if result > options.max_memory:
        raise BudgetError(
            f"{problem.caller}: the Jacobian is {'' if count == 1 else f'{count} x '}{outputs.size} x "
            f"{inputs.size} with {in_units(result)}, which is more than max_memory="
            f"{in_units(options.max_memory)}. Allow more; or ask for products with it (vjp, jvp, hvp) "
            "instead of the matrix."
        )
    return outputs, watch.total
