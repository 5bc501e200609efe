"""One Jacobian: the mode chosen, within a memory limit, of whole functions or of samples, as blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple, cast
from weakref import ref

import torch
from torch import Tensor

from covector._chart import AnyPlace, Repeated
from covector._engine import levels
from covector._engine.compiled import eager_alone, named_after, tracing
from covector._engine.memory import NoZeroProducts, Watch
from covector._engine.messages import writes_to_leaf
from covector._engine.reverse import Recording, record
from covector._lazy import Remembered
from covector._linear import LinearMap, NoForwardRule, Pullback
from covector._tree import LEAF, Evaluation, flatten
from covector.errors import BudgetError, Caller, RandomnessError, UnsupportedError, first_sentence
from covector.transforms._batch import Blocks, Samples, check_columns, check_rows, samples_first
from covector.transforms._door import called
from covector.transforms._plan import TRIAL, Budget, Plan, by_sizes, in_units, worth_a_trial
from covector.transforms._question import Coordinates, Problem, Question, Request, accept_real

Choose = Callable[[int, int], tuple[str, str]]

# What a verb makes of a request and a call: the result, and how it was computed.
Answer = Callable[[Caller, "Request", Sequence[Any], dict[str, Any]], tuple[Any, Plan]]

ASKED = "it was asked for"


class Derived(NamedTuple):
    """A Jacobian, as one block per output and input, of shape (samples) + output + input."""

    blocks: Blocks
    evaluation: Evaluation
    plan: Plan

    def flat(self) -> list[Tensor]:
        """The blocks, output by output."""
        return [block for row in self.blocks for block in row]


def jacobian_of(
    caller: Caller, request: Request, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, Plan]:
    """The Jacobian that a verb asks for, as its caller gets it, and how it was computed."""
    recording, again = None, _was_tall(caller, request)
    if not again and request.is_plain(args, kwargs):
        recording = _plain_recording(caller, request, args)
        found = None if recording is None else _at_once(recording, request)
        if found is not None:
            return found
    question = Question(caller, request, args, kwargs)
    if request.work is not None:
        from covector.transforms._blocks import in_blocks

        return in_blocks(question, args, kwargs, attrgetter("problem"), by_sizes, order=1)
    problem = question.problem
    pullback = None if recording is None else Pullback(caller, recording, problem.arguments)
    derived = _tall_again(problem, request) if again else None
    derived = derived or derive(problem, request, pullback=pullback)
    return question.answer(derived.flat(), derived.evaluation, order=1), derived.plan


def _plain_recording(caller: Caller, request: Request, args: Sequence[Any]) -> Recording | None:
    """One run on the caller's tensors; None if the function works in place and is to be given copies.

    With small functions, to bind, rebuild and check arguments takes as long as the operations.
    """

    def run(leaves: list[Any]) -> Evaluation:
        returned = called(caller, leaves, {}, leaves)
        evaluation = Evaluation(*flatten(returned), [], None)
        accept_real(caller, evaluation)
        return evaluation

    try:
        return record(run, args, (cast(int, request.argnums),))
    except RuntimeError as error:
        if not (request.copies and writes_to_leaf(error)):
            raise
    return None


def _at_once(recording: Recording, request: Request) -> tuple[Tensor, Plan] | None:
    """The Jacobian as the caller gets it, if it is one tensor that the recording gives as it is."""
    if recording.evaluation.spec is not LEAF:
        return None
    outputs, inputs = recording.outputs[0].shape.numel(), recording.variables[0].shape.numel()
    mode, reason = by_sizes(outputs, inputs) if request.mode == "auto" else (request.mode, ASKED)
    block = recording.whole() if mode == "reverse" else None
    return None if block is None else (block, Plan(mode, outputs, inputs, outputs, reason))


def planned(caller: Caller, request: Request, answer: Answer = jacobian_of) -> Callable[..., Any]:
    """The function that a verb returns; after a call, its `plan` says how the derivative was computed.

    It does not hold itself: dropped, it is gone. Where the mode is open, `by_mode` makes the same by a mode
    that somebody else chose.
    """

    def derivative(*args: Any, **kwargs: Any) -> Any:
        result, plan = _answered(caller, request, answer, args, kwargs)
        itself = None if tracing() or myself is None else myself()
        if itself is not None:
            itself.plan = plan
        return result

    def by_mode(mode: str) -> Callable[..., Any]:
        return planned(caller, request._replace(mode=mode), answer)

    myself: Any = None if tracing() else ref(derivative)
    if not tracing():
        derivative.plan = None  # type: ignore[attr-defined]
        derivative.by_mode = by_mode if request.mode == "auto" else None  # type: ignore[attr-defined]
    return named_after(derivative, like=caller.function)


@eager_alone
def _answered(
    caller: Caller, request: Request, answer: Answer, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Any, Plan]:
    return answer(caller, request, args, kwargs)


# Functions with so many outputs that forward mode was chosen. Asked again, they are not run to count these,
# if there are so few inputs that a wrong expectation costs little.
_tall = Remembered()
_FEW_INPUTS = 512


def _was_tall(caller: Caller, request: Request) -> bool:
    """Whether forward mode is to be tried first: it was chosen for this function the last time."""
    # A run less would leave a function that draws other random numbers.
    left_open = request.mode == "auto" and request.randomness == "error"
    unlimited = request.max_memory is None and request.work is None
    return left_open and unlimited and not levels.active() and caller.function in _tall


def _tall_again(problem: Problem, request: Request) -> Derived | None:
    """The Jacobian by forward mode; None if that would not have been chosen this time."""
    inputs = problem.inputs.size
    if inputs > _FEW_INPUTS:
        return None
    try:
        derived = by_columns(problem, problem.derivative("forward", go_around=False), request, "")
    except NOT_FORWARD:
        return None
    mode, reason = by_sizes(derived.plan.outputs, inputs)
    return derived._replace(plan=replace(derived.plan, reason=reason)) if mode == "forward" else None


def derive(
    problem: Problem, request: Request, choose: Choose = by_sizes, pullback: LinearMap | None = None
) -> Derived:
    """The Jacobian by the mode that is asked for, or that seems best; from a pullback, if there is one."""
    if request.max_memory is not None:
        return _within_memory(problem, request, choose)
    if request.mode == "forward":
        return by_columns(problem, problem.derivative("forward"), request, ASKED)
    if pullback is None:
        pullback = problem.pullback()
    if request.mode == "reverse":
        return by_rows(problem, pullback, request, ASKED)
    outputs, inputs = problem.outputs(pullback.evaluation.outputs), problem.inputs
    mode, reason = choose(outputs.size, inputs.size)
    if mode == "forward" and choose is by_sizes and worth_a_trial(outputs.size, inputs.size):
        mode, reason = (mode, reason) if levels.active() else _by_trial(problem, pullback, outputs, inputs)
    if mode == "forward":
        try:
            derived = by_columns(problem, problem.derivative("forward", go_around=False), request, reason)
            if choose is by_sizes and not tracing():
                _tall.add(problem.caller.function)
            return derived
        except NOT_FORWARD as error:
            reason = why_not_forward(error)
    return by_rows(problem, pullback, request, reason)


# What forward mode may raise where reverse mode need not.
NOT_FORWARD = (NoForwardRule, RandomnessError, UnsupportedError)


def why_not_forward(error: Exception) -> str:
    """Why it is reverse mode after all."""
    if isinstance(error, NoForwardRule):
        return f"torch has no forward-mode rule for {error}"
    if isinstance(error, RandomnessError):
        return "the function draws random numbers, which reverse mode does once"
    return f"forward mode did not do: {first_sentence(error)}"


def _by_trial(
    problem: Problem, pullback: LinearMap, outputs: Coordinates, inputs: Coordinates
) -> tuple[str, str]:
    """The mode whose first few directions take less time, extrapolated to all of them."""
    try:
        column = _seconds_per_direction(problem.derivative("forward", go_around=False), inputs)
    except NOT_FORWARD:
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


def assembled(
    problem: Problem,
    derivative: LinearMap,
    mode: str,
    request: Request,
    reason: str,
    pace: Budget | None = None,
) -> Derived:
    """The Jacobian from the images of the basis, of which a mode makes rows or columns."""
    return (by_rows if mode == "reverse" else by_columns)(problem, derivative, request, reason, pace)


def by_rows(
    problem: Problem, pullback: LinearMap, request: Request, reason: str, pace: Budget | None = None
) -> Derived:
    """The Jacobian by reverse mode."""
    if pace is None and request.chunk_size is None and problem.samples is None:
        block = pullback.whole()
        if block is not None:
            evaluation = pullback.evaluation
            count = evaluation.outputs[0].shape.numel()
            plan = Plan("reverse", count, block.shape.numel() // count, count, reason)
            return Derived([[block]], evaluation, plan)
    outputs, inputs = problem.outputs(pullback.evaluation.outputs), problem.inputs
    rows = pullback.matrix(outputs, chunk_size=request.chunk_size, randomness=request.randomness, pace=pace)
    blocks = [[_row_block(stack, place, problem.samples) for stack in rows] for place in outputs.places]
    if problem.samples is not None:
        check_rows(problem.caller, pullback, problem.arguments.primals(), blocks, problem.samples)
    chunk = request.chunk_size or outputs.size if pace is None else pace.largest
    plan = Plan("reverse", outputs.size, inputs.size, chunk, reason, request.max_memory)
    return Derived(blocks, pullback.evaluation, plan)


def _row_block(stack: Tensor, place: AnyPlace, samples: Samples | None) -> Tensor:
    """The rows that belong to one output, of shape (samples) + output + input."""
    if samples is not None:
        stack = samples_first(stack, samples.inputs)[:, place.start : place.stop]
        return stack.reshape((stack.shape[0], *place.shape, *stack.shape[2:]))
    if stack.shape[0] != place.stop - place.start:
        stack = stack[place.start : place.stop]
    return stack if len(place.shape) == 1 else stack.reshape((*place.shape, *stack.shape[1:]))


def by_columns(
    problem: Problem, forward: LinearMap, request: Request, reason: str, pace: Budget | None = None
) -> Derived:
    """The Jacobian by forward mode."""
    inputs = problem.inputs
    # Inside a batch an in-place operation needs tangents that belong to the batch.
    like = problem.arguments.primals() if levels.active() else None
    columns = forward.matrix(
        inputs, chunk_size=request.chunk_size, randomness=request.randomness, like=like, pace=pace
    )
    blocks = [[_column_block(stack, place, problem.samples) for place in inputs.places] for stack in columns]
    if problem.samples is not None:
        with nullcontext() if pace is None else NoZeroProducts():
            check_columns(problem.caller, forward, problem.arguments.primals(), blocks, problem.samples)
    chunk = request.chunk_size or inputs.size if pace is None else pace.largest
    count = sum(stack.shape[1:].numel() for stack in columns)
    if isinstance(inputs, Repeated):
        count //= max(inputs.samples, 1)
    plan = Plan("forward", count, inputs.size, chunk, reason, request.max_memory)
    return Derived(blocks, forward.evaluation, plan)


def _column_block(stack: Tensor, place: AnyPlace, samples: Samples | None) -> Tensor:
    """The columns that belong to one input, of shape (samples) + output + input."""
    lead = 0
    if samples is not None:
        stack, lead = samples_first(stack, samples.outputs), 1
    count = place.stop - place.start
    if stack.shape[lead] != count:
        stack = stack.narrow(lead, place.start, count)
    columns = stack.movedim(lead, -1)
    return columns if len(place.shape) == 1 else columns.reshape((*columns.shape[:-1], *place.shape))


# Memory


def _within_memory(problem: Problem, request: Request, choose: Choose) -> Derived:
    """The Jacobian by the mode that fits, in chunks that fit."""
    if tracing():
        raise UnsupportedError(
            f"{problem.caller}: max_memory cannot be kept to inside torch.compile, where nothing can be "
            "measured while the program is traced. Pass chunk_size instead, or call it outside."
        )
    sizes = sized(problem, measured=True)
    sizes.require_room(problem.caller, request.max_memory)
    first, reason = sizes.choose(request.max_memory, choose)
    order = {"forward": ("forward", "reverse"), "reverse": ("reverse", "forward")}[first]
    modes = [(mode, reason) for mode in order] if request.mode == "auto" else [(request.mode, ASKED)]
    obstacles: list[Exception] = []
    for mode, why in modes:
        why = f"{first} mode did not do: {obstacles[0]}" if obstacles else why
        try:
            derivative, pace = paced(problem, mode, request, go_around=request.mode != "auto")
            return assembled(problem, derivative, mode, request, why, pace)
        except (BudgetError, *NOT_FORWARD) as obstacle:
            obstacles.append(obstacle)
    raise next((o for o in obstacles if isinstance(o, BudgetError)), obstacles[0])


def paced(
    problem: Problem, mode: str, request: Request, *, go_around: bool = True
) -> tuple[LinearMap, Budget | None]:
    """The derivative by one mode, and the pace that keeps to the memory limit, if there is one."""
    limit = request.max_memory
    if limit is None:
        return problem.derivative(mode, go_around=go_around), None
    with Watch() as watch:
        derivative = problem.derivative(mode, go_around=go_around)
    if watch.live >= limit:
        raise BudgetError(
            f"{problem.caller}: the graph for reverse mode takes {in_units(watch.live)}, which leaves "
            f"nothing of max_memory={in_units(limit)}. Allow more, or use mode='forward'."
        )
    return derivative, Budget(problem.caller, limit - watch.live, request.chunk_size)


class Sizes(NamedTuple):
    """What one run of the function tells: its value, the sides of the matrix, the bytes of a graph."""

    evaluation: Evaluation
    outputs: Coordinates
    inputs: Coordinates
    dtype: torch.dtype
    graph: int
    drew: bool
    """Whether the function draws random numbers."""

    @property
    def samples(self) -> int:
        """How many matrices there are."""
        return self.inputs.samples if isinstance(self.inputs, Repeated) else 1

    @property
    def direction(self) -> dict[str, int]:
        """How many bytes the image of one direction has, by mode."""
        each = self.samples * self.dtype.itemsize
        return {"reverse": self.inputs.size * each, "forward": self.outputs.size * each}

    def choose(self, limit: int | None, choose: Choose) -> tuple[str, str]:
        """The mode that the sizes suggest, and why: forward mode, if a graph might not fit."""
        if limit is not None and self.graph > limit:
            return "forward", f"a graph of up to {in_units(self.graph)} would not fit"
        return choose(self.outputs.size, self.inputs.size)

    def require_room(self, caller: Caller, limit: int | None) -> None:
        """Refuse a result that is larger than the memory that is allowed."""
        result = self.outputs.size * self.direction["reverse"]
        if limit is not None and result > limit:
            raise BudgetError(
                f"{caller}: the Jacobian is {'' if self.samples == 1 else f'{self.samples} x '}"
                f"{self.outputs.size} x {self.inputs.size} with {in_units(result)}, which is more than "
                f"max_memory={in_units(limit)}. Allow more; write it to a file (out='jacobian.npy'); or ask "
                "for products with it (vjp, jvp, hvp) instead of the matrix."
            )


def sized(problem: Problem, *, measured: bool) -> Sizes:
    """The sizes, by one run without a graph; `measured`, with the most that a graph can take."""
    arguments, watch = problem.arguments, Watch()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        with watch if measured else nullcontext():
            evaluation = problem.run(list(arguments.leaves))
        drew = not torch.equal(before, torch.get_rng_state())
    dtype = torch.bool
    for tensor in (*evaluation.outputs, *arguments.primals()):
        dtype = torch.promote_types(dtype, tensor.dtype)
    outputs, inputs = problem.outputs(evaluation.outputs), problem.inputs
    return Sizes(evaluation, outputs, inputs, dtype, watch.total, drew)
