"""What a caller says about blocks: who computes them, and where they go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from covector._tasks.mapping import check_executor
from covector._tasks.sinks import check_out


@dataclass(frozen=True, eq=False)
class Work:
    """An executor (None: this process) and an array or a path (None: the result is returned)."""

    executor: Any
    out: Any


def work_of(verb: str, executor: Any, out: Any) -> Work:
    """The two, checked."""
    check_executor(verb, executor)
    if out is not None:
        check_out(verb, out)
    return Work(executor, out)
