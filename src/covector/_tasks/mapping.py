"""Tasks mapped over an executor: a few ahead of what was taken, each result as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from covector._tasks.cluster import Cluster, is_dask_client
from covector._tasks.sending import Answer, Job, Packed, Span, answer, packed
from covector._tree import parameter_names
from covector.errors import ArgumentTypeError, Caller, WorkerError, first_sentence, warn

# Work is cut into at least this many tasks, so that many workers have work until the end.
TASKS = 64
# Tasks that are submitted before the first of them has ended: enough for a machine with many cores.
AHEAD = 64
# Small results may be waited for in larger numbers, as long as all of them fit into this many bytes.
_IN_FLIGHT = 512 * 2**20


class Block(NamedTuple):
    """The images of some directions, stacked along the first axis."""

    span: Span
    images: list[Tensor]


def check_executor(verb: str, executor: Any) -> None:
    """`executor` is None, an Executor of concurrent.futures, or a client of Dask's scheduler."""
    if executor is None or isinstance(executor, Executor) or is_dask_client(executor):
        return
    hint = ""
    if isinstance(executor, type) and issubclass(executor, Executor):
        hint = f" Make one: {executor.__name__}()."
    raise ArgumentTypeError(
        f"{verb}: executor must be a concurrent.futures.Executor (a ProcessPoolExecutor, or "
        f"client.get_executor() of dask.distributed), got {executor!r} ({type(executor).__name__}).{hint}"
    )


def named_arguments(caller: Caller, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The function and its arguments, by the names that the user knows them by."""
    names = [*parameter_names(caller.function)[: len(args)], *(f"arg{i}" for i in range(len(args)))]
    return {caller.name: caller.function, **dict(zip(names, args, strict=False)), **kwargs}


def spans(start: int, stop: int, size: int) -> list[Span]:
    """Directions cut into blocks of this size."""
    return [Span(first, min(first + size, stop)) for first in range(start, stop, size)]


class _Queue:
    """A queue of tasks for an executor; `Cluster` is the one for Dask's."""

    enough = AHEAD

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def kept(self, job: Packed) -> Any:
        """A job as an argument of tasks: it is sent with each."""
        return job

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """The future of a task."""
        return self.executor.submit(call, *args)

    def ended(self, running: Iterable[Future[Any]]) -> Iterable[Future[Any]]:
        """Some of those that are running, which have ended; it waits for the first."""
        return wait(running, return_when=FIRST_COMPLETED).done


def blocks(executor: Any, job: Job, wanted: Sequence[Span], bytes_each: int) -> Iterator[Block]:
    """The blocks of a job, in the order in which they come; without an executor, computed here."""
    if executor is None:
        yield from (Block(span, job.images(span)) for span in wanted)
        return
    told: set[str] = set()
    ahead = max(AHEAD, _IN_FLIGHT // max(1, bytes_each))
    for span, future in mapped(executor, job.caller, *_task(executor, job), wanted, ahead):
        result = result_of(future, job.caller)
        if isinstance(result, Answer):
            for category, text in result.warnings:
                if text not in told:
                    told.add(text)
                    warn(text, category)
            result = [wire.tensor() for wire in result.images]
        yield Block(span, result)


def _task(executor: Any, job: Job) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What to call with each span, and its leading arguments: threads share the job, others get bytes."""
    return (job.images, ()) if isinstance(executor, ThreadPoolExecutor) else (answer, (packed(job),))


def mapped(
    executor: Any,
    caller: Caller | str,
    call: Callable[..., Any],
    leading: tuple[Any, ...],
    pieces: Sequence[Any],
    ahead: int = AHEAD,
) -> Iterator[tuple[Any, Future[Any]]]:
    """Each piece with the future of `call(*leading, piece)`, which is done, as they come."""
    waiting = list(reversed(pieces))
    running: dict[Future[Any], Any] = {}
    try:
        with _taking(caller):
            queue = Cluster.of(executor) or _Queue(executor)
            ahead = max(ahead, queue.enough)
            leading = tuple(queue.kept(one) if isinstance(one, Packed) else one for one in leading)
        while waiting or running:
            while waiting and len(running) < ahead:
                piece = waiting.pop()
                with _taking(caller):
                    running[queue.submit(call, *leading, piece)] = piece
            for future in queue.ended(running):
                yield running.pop(future), future
    finally:
        for future in running:
            future.cancel()


@contextmanager
def _taking(caller: Caller | str) -> Iterator[None]:
    """Inside, an executor that takes no tasks is an error of ours."""
    try:
        yield
    except BrokenExecutor as error:
        raise _lost(caller, error) from error
    except RuntimeError as error:
        raise WorkerError(f"{caller}: the executor takes no tasks: {first_sentence(error)}.") from error


def result_of(future: Future[Any], caller: Caller | str) -> Any:
    """What a task returned, or raised; an error of ours if its workers were lost."""
    try:
        return future.result()
    except (BrokenExecutor, CancelledError) as error:
        raise _lost(caller, error) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "distributed":
            raise _lost(caller, error) from error
        raise


def _lost(caller: Caller | str, error: BaseException) -> WorkerError:
    return WorkerError(
        f"{caller}: the executor lost its workers (killed, out of memory, or shut down): "
        f"{type(error).__name__}: {first_sentence(error)}. Make a new executor and call again; blocks that "
        "were written to out=PATH are not computed twice."
    )
