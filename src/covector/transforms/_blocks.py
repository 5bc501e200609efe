"""A derivative in blocks of directions: computed by an executor or here, gathered or written to a file.

A block is a task: it makes the linear map anew, from the function and the point, and applies it to its
directions. Nothing is kept in a worker between tasks, so that one may be lost or join at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covector._engine import levels
from covector._engine.compiled import tracing
from covector._images import Gathered, Tensors
from covector._linear import LinearMap
from covector._tasks.manifest import Manifest
from covector._tasks.mapping import TASKS, Block, blocks, named_arguments, spans
from covector._tasks.parts import fingerprint
from covector._tasks.progress import progress
from covector._tasks.sending import Span
from covector._tasks.sinks import Sink, as_part, begun, sink
from covector._tree import Evaluation
from covector.errors import (
    Caller,
    RandomnessError,
    ResumeError,
    UnsupportedError,
)
from covector.transforms._derive import (
    ASKED,
    NOT_FORWARD,
    Choose,
    Sizes,
    assembled,
    paced,
    sized,
    why_not_forward,
)
from covector.transforms._plan import Plan
from covector.transforms._question import Coordinates, Problem, Question, Request
from covector.transforms._second import reverse_first

MakeProblem = Callable[[Question], Problem]

# A block is at most this large, so that some of them fit into any worker and through any connection.
_BLOCK_BYTES = 32 * 2**20
# No block has fewer directions than this, because each costs a run of the function beside its directions.
_FEWEST = 16


@dataclass(frozen=True)
class MatrixJob:
    """What it takes to compute any block of a derivative, anywhere."""

    caller: Caller
    request: Request
    args: Sequence[Any]
    kwargs: dict[str, Any]
    make: MakeProblem
    mode: str

    def images(self, span: Span) -> list[Tensor]:
        """The images of some directions, within the memory limit if there is one."""
        return reverse_first(lambda: self._images(span))

    def _images(self, span: Span) -> list[Tensor]:
        problem = self.make(Question(self.caller, self.request, self.args, self.kwargs))
        derivative, pace = paced(problem, self.mode, self.request)
        over = problem.inputs if self.mode == "forward" else problem.outputs(derivative.evaluation.outputs)
        part = _Part(over, span)
        return derivative.matrix(part, chunk_size=None, randomness=self.request.randomness, pace=pace)

    def named(self) -> dict[str, Any]:
        """The function and the arguments, by their names."""
        return named_arguments(self.caller, self.args, self.kwargs)


class _Part(NamedTuple):
    """Some directions of a basis."""

    whole: Coordinates
    span: Span

    @property
    def size(self) -> int:
        return self.span.stop - self.span.start

    def basis(self, start: int, stop: int, like: Sequence[Tensor] | None = None) -> list[Tensor]:
        return self.whole.basis(self.span.start + start, self.span.start + stop, like)


class _InBlocks(LinearMap):
    """The linear map of a job, whose matrix an executor computes; single directions are applied here."""

    label = "in blocks"

    def __init__(self, problem: Problem, evaluation: Evaluation, job: MatrixJob, executor: Any) -> None:
        super().__init__(problem.caller)
        self.evaluation = evaluation
        self._problem, self._job, self._executor = problem, job, executor

    def apply(self, direction: Tensors) -> Tensors:
        return self._problem.derivative(self._job.mode).apply(direction)

    def matrix(self, over: Any, *, chunk_size: int | None, **_: Any) -> Tensors:
        wanted = spans(0, over.size, chunk_size or over.size) or [Span(0, 0)]
        gathered = Gathered(over.size)
        with progress("blocks", len(wanted)) as advance:
            for block in blocks(self._executor, self._job, wanted, _BLOCK_BYTES):
                gathered.add(block.span.start, block.images)
                advance()
        return gathered.whole()


def in_blocks(
    question: Question,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    make: MakeProblem,
    choose: Choose,
    *,
    order: int,
) -> tuple[Any, Plan]:
    """The derivative by blocks; the array that was written, or the result as any other call gives it."""
    request, work = question.request._replace(work=None), question.request.work
    assert work is not None
    caller, problem = question.problem.caller, make(question)
    _require_top_level(caller)
    before = begun(caller, work.out)
    # Before the function runs, which may change what it captures.
    identity = None if work.out is None else _identity(caller, request, args, kwargs)
    sizes = sized(problem, measured=request.max_memory is not None)
    if sizes.drew:
        raise RandomnessError(
            f"{caller}: the function draws random numbers, and each block would see its own. Draw them "
            "before, and pass them as an argument."
        )
    mode, reason = _mode(problem, request, sizes, before, choose)
    request = request._replace(chunk_size=_block_size(request, sizes, mode, before))
    job = MatrixJob(caller, request._replace(chunk_size=None), args, kwargs, make, mode)
    if identity is not None:
        matrix = _manifest(identity, mode, request, sizes)
        target = sink(caller, work.out, matrix, before)
        _write(job, matrix, target, work.executor, sizes.direction[mode])
        return target.array, Plan(mode, *matrix.shape, matrix.block, reason, request.max_memory)
    sizes.require_room(caller, request.max_memory)
    derivative = _InBlocks(problem, sizes.evaluation, job, work.executor)
    derived = assembled(problem, derivative, mode, request, reason)
    return question.answer(derived.flat(), derived.evaluation, order=order), derived.plan


def _require_top_level(caller: Caller) -> None:
    if tracing() or levels.active():
        raise UnsupportedError(
            f"{caller}: blocks are computed outside of other transforms and of torch.compile: their results "
            "carry no graph. Leave executor and out away here."
        )


def _mode(
    problem: Problem, request: Request, sizes: Sizes, before: Manifest | None, choose: Choose
) -> tuple[str, str]:
    """By which mode, and why."""
    if request.mode != "auto":
        return request.mode, ASKED
    if before is not None:
        return before.mode, "the file was begun with it"
    mode, reason = sizes.choose(request.max_memory, choose)
    if mode == "forward":
        try:
            problem.derivative(mode, go_around=False).apply_batch(sizes.inputs.basis(0, 1))
        except NOT_FORWARD as error:
            return "reverse", why_not_forward(error)
    return mode, reason


def _block_size(request: Request, sizes: Sizes, mode: str, before: Manifest | None) -> int:
    """How many directions a block has."""
    count = sizes.inputs.size if mode == "forward" else sizes.outputs.size
    if request.chunk_size is not None:
        return max(1, min(request.chunk_size, count))
    if before is not None:
        return before.block
    allowed = _BLOCK_BYTES if request.max_memory is None else min(_BLOCK_BYTES, request.max_memory)
    fitting = allowed // max(1, sizes.direction[mode])
    return max(1, min(max(_FEWEST, -(-count // TASKS)), fitting, count))


# Into an array


class _Identity(NamedTuple):
    """Fingerprints of a call."""

    function: str
    inputs: str


def _identity(caller: Caller, request: Request, args: Sequence[Any], kwargs: dict[str, Any]) -> _Identity:
    asked = (request.argnums, request.argnames, caller.verb)
    return _Identity(fingerprint(caller.function), fingerprint((tuple(args), kwargs, asked)))


def _manifest(identity: _Identity, mode: str, request: Request, sizes: Sizes) -> Manifest:
    """The matrix that a call is to write."""
    dtype = torch.float32 if sizes.dtype is torch.bfloat16 else sizes.dtype
    assert request.chunk_size is not None
    shape = (sizes.outputs.size, sizes.inputs.size)
    name = str(torch.empty(0, dtype=dtype).numpy().dtype)
    return Manifest(*identity, mode, shape, name, request.chunk_size)


def _write(job: MatrixJob, matrix: Manifest, target: Sink, executor: Any, direction: int) -> None:
    """The blocks that are missing; of those that are there, one is computed again and compared."""
    missing, known, size = target.missing(), target.finished(), matrix.block * direction
    if known is not None:
        _compare(next(blocks(executor, job, [known], size)), job, matrix, target)
    done = -(-matrix.directions // matrix.block) - len(missing)
    with progress("blocks", done + len(missing), done) as advance:
        for block in blocks(executor, job, missing, size):
            target.take(block)
            advance()


def _compare(block: Block, job: MatrixJob, matrix: Manifest, target: Sink) -> None:
    """What was finished before is what this call gives, up to rounding."""
    again = torch.from_numpy(as_part(matrix, block).copy())
    there = torch.from_numpy(target.held(block.span).copy())
    size = float(again.abs().nan_to_num().max()) if again.numel() else 0.0
    precision = torch.finfo(again.dtype).eps ** 0.75
    if not torch.allclose(there, again, rtol=precision, atol=precision * size, equal_nan=True):
        rows = "columns" if job.mode == "forward" else "rows"
        raise ResumeError(
            f"{job.caller}: the {rows} {block.span.start} to {block.span.stop - 1} that are finished in out "
            "differ from what this call gives there, so it cannot be continued: the function depends on "
            "something that changed, or the file is damaged. Give another path."
        )
