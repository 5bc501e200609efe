"""Work spread over processes that can be stopped: each piece has a time limit, and may crash."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torch

from covector._tasks.mapping import mapped, result_of
from covector.errors import WorkerError

Handle = Callable[[Any], Any]

# What a worker says: it has begun the piece that it was given; and how that ended.
_BEGUN = "begun"

# How many seconds are waited for at once; the system refuses to wait for all the ages of an endless limit.
_NAP = 3600.0

# How many bytes of what a piece printed are kept.
_LOGGED = 2**16


@dataclass(frozen=True)
class Ended:
    """A piece of work that came to an end: with a value, or lost, which `why` explains."""

    piece: Any
    value: Any
    seconds: float
    output: str
    lost: str = ""
    why: str = ""


class _Worker:
    """A process that handles one piece after the other."""

    def __init__(self, context: Any, handle: Handle, log: Path) -> None:
        self.log = log
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, str(log), handle), daemon=True)
        with _may_have_children():
            self.process.start()
        theirs.close()
        self.piece: Any = None
        self.subject: Any = None
        self.since = 0.0

    def give(self, piece: Any, subject: Any) -> None:
        """Hand over a piece; a worker stays with the subject of its first one."""
        self.piece, self.subject, self.since = piece, subject, time.monotonic()
        self.connection.send(piece)

    def ended(self, value: Any, lost: str = "", why: str = "") -> Ended:
        """How the present piece ended, with what was printed meanwhile."""
        seconds, piece, self.piece = time.monotonic() - self.since, self.piece, None
        return Ended(piece, value, seconds, _tail(self.log), lost, why)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


# Workers of Dask have several threads, each of which may start a process.
_starting = Lock()


@contextmanager
def _may_have_children() -> Iterator[None]:
    """Inside, this process may start others, though it is a daemon, as workers of Dask are."""
    this = multiprocessing.current_process()
    with _starting:
        daemon = this.daemon
        if daemon:
            this.daemon = False
        try:
            yield
        finally:
            if daemon:
                this.daemon = True


class Spread:
    """Pieces on the workers of an executor, each in a process that its worker starts for it alone.

    So it has a time limit and may crash, as in a pool of this machine.
    """

    def __init__(self, handle: Handle, executor: Any, limit: float) -> None:
        self.handle, self.executor, self.limit = handle, executor, limit

    def run(self, pieces: Sequence[Any]) -> Iterator[Ended]:
        """Each piece as it ends, in whatever order that is."""
        for piece, future in mapped(self.executor, "check", alone, (self.handle, self.limit), pieces):
            try:
                yield result_of(future, "check")
            except WorkerError as error:
                yield Ended(piece, None, 0.0, "", "crashed", str(error))


def alone(handle: Handle, limit: float, piece: Any) -> Ended:
    """How a piece ends in a process of its own."""
    with Pool(handle, 1, limit, subject=lambda _: None) as pool:
        return next(pool.run([piece]))


class Pool:
    """So many processes, started when there is work for them; they end with the `with` block.

    Pieces of different subjects never share a process, so what one of them imports or changes there is
    not seen by another.
    """

    def __init__(self, handle: Handle, jobs: int, limit: float, subject: Callable[[Any], Any]) -> None:
        self.handle, self.jobs, self.limit, self.subject = handle, jobs, limit, subject
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self.context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            # torch and what handles the pieces are loaded once, in the process from which workers are forked.
            self.context.set_forkserver_preload(["covector", handle.__module__])
        self.workers: list[_Worker] = []
        self.folder = tempfile.TemporaryDirectory(prefix="covector-", ignore_cleanup_errors=True)
        self.started = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stop()
        self.folder.cleanup()

    def run(self, pieces: Sequence[Any]) -> Iterator[Ended]:
        """Each piece as it ends, in whatever order that is."""
        waiting = list(reversed(pieces))
        while waiting or any(worker.piece is not None for worker in self.workers):
            while waiting and (idle := self._idle(self.subject(waiting[-1]))):
                piece = waiting.pop()
                idle.give(piece, self.subject(piece))
            busy = [worker for worker in self.workers if worker.piece is not None]
            left = min(worker.since + self.limit for worker in busy) - time.monotonic()
            ready = wait([worker.connection for worker in busy], min(max(0.0, left), _NAP))
            for worker in busy:
                ended = self._news(worker) if worker.connection in ready else self._overdue(worker)
                if ended is not None:
                    yield ended

    def _idle(self, subject: Any) -> _Worker | None:
        """A worker for a subject, if one is free or may be started."""
        idle = [worker for worker in self.workers if worker.piece is None]
        for worker in idle:
            if worker.subject == subject:
                return worker
        if len(self.workers) == self.jobs:
            if not idle:
                return None
            idle[0].stop()
            self.workers.remove(idle[0])
        self.started += 1
        log = Path(self.folder.name) / f"{self.started}.log"
        self.workers.append(_Worker(self.context, self.handle, log))
        return self.workers[-1]

    def _news(self, worker: _Worker) -> Ended | None:
        try:
            message = worker.connection.recv()
        except (EOFError, ConnectionError):
            worker.process.join()
            return self._lost(worker, "crashed", _exit(worker.process.exitcode))
        if message == _BEGUN:
            worker.since = time.monotonic()
            return None
        return worker.ended(message)

    def _overdue(self, worker: _Worker) -> Ended | None:
        if time.monotonic() < worker.since + self.limit:
            return None
        return self._lost(worker, "timed out", f"the time limit of {self.limit:g} s was reached")

    def _lost(self, worker: _Worker, lost: str, why: str) -> Ended:
        """The end of a piece whose worker cannot go on; another one will take its place."""
        ended = worker.ended(None, lost, why)
        worker.stop()
        self.workers.remove(worker)
        return ended


def _tail(log: Path) -> str:
    """The end of what was printed, from the beginning of a line."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        before = max(0, file.seek(0, os.SEEK_END) - _LOGGED)
        file.seek(before)
        text = file.read().decode(errors="replace")
    return text.partition("\n")[2] if before else text


def _exit(code: int | None) -> str:
    """How a process ended, for people."""
    if code is not None and code < 0:
        with suppress(ValueError):
            name = signal.Signals(-code).name
            memory = " (which the system does when memory runs out)" if name == "SIGKILL" else ""
            return f"the process was killed by {name}{memory}"
    return f"the process ended with exit code {code}"


def _end_with_parent() -> None:
    """End a piece that takes long, or hangs, once the process is gone that would stop it at its limit."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _serve(connection: Connection, log: str, handle: Handle) -> None:
    """What a worker does: answer pieces until nobody asks any more; what is printed goes to its log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    while True:
        try:
            piece = connection.recv()
        except (EOFError, ConnectionError):
            return
        os.ftruncate(file, 0)
        connection.send(_BEGUN)
        value = handle(piece)
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(value)
