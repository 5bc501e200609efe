"""Dask's distributed scheduler: tasks are submitted to its client, and waited for by its own futures.

The futures of `client.get_executor()` can fail if the worker that holds a result is killed before
the result was fetched. Dask's own have it computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from covector._tasks.sending import Packed

# The module of the class that `client.get_executor()` makes.
_EXECUTORS = "distributed.cfexecutor"


def is_dask_client(executor: Any) -> bool:
    """Whether this is a `distributed.Client`."""
    return type(executor).__module__.partition(".")[0] == "distributed" and hasattr(executor, "scatter")


class Cluster:
    """A queue of tasks for the workers of a client, each submitted with the same keywords."""

    def __init__(self, client: Any, keywords: dict[str, Any]) -> None:
        from distributed import as_completed

        self.client = client
        self.keywords = {**keywords, "pure": False}  # equal tasks are different tasks
        self.waiting = as_completed(loop=client.loop)

    @classmethod
    def of(cls, executor: Any) -> Self | None:
        """That of a client, or of an executor which a client made; None if it is neither.

        Raises:
            RuntimeError: if it takes no tasks.
        """
        if is_dask_client(executor):
            return cls(executor, {})
        client = getattr(executor, "_client", None)
        if type(executor).__module__ != _EXECUTORS or client is None:
            return None
        if getattr(executor, "_shutdown", False):
            raise RuntimeError("it was shut down")
        return cls(client, getattr(executor, "_kwargs", {}))

    @property
    def enough(self) -> int:
        """Twice as many tasks as it has threads: a worker has its next task when it has ended one."""
        return 2 * sum(self.client.nthreads().values())

    def kept(self, job: Packed) -> Any:
        """A job as an argument of tasks: sent once, and then passed on from worker to worker.

        It is a task itself, so that it is made again if the workers that have it are lost; scattered data
        would be gone.
        """
        import dask

        with dask.config.set({"distributed.admin.large-graph-warning-threshold": 2 * len(job.data) + 2**20}):
            return self.client.submit(Packed, job.data, **self.keywords)

    def submit(self, call: Callable[..., Any], *args: Any) -> Any:
        """A future of Dask's."""
        future = self.client.submit(call, *args, **self.keywords)
        self.waiting.add(future)
        return future

    def ended(self, running: Iterable[Any]) -> list[Any]:
        """Some of those that are running, which have ended; it waits for the first."""
        return [next(self.waiting)]
