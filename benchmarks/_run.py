"""The runner: tasks one after the other, each kept as soon as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from benchmarks._board import Area, Effort, Row, Task
from benchmarks._results import Record, Store, environment
from benchmarks._tables import line
from covector._tasks.progress import progress


@dataclass(frozen=True)
class Choice:
    """An area, the tasks of it that were asked for, and all that make it complete."""

    area: Area
    tasks: list[Task]
    every: frozenset[str]


def choose(areas: Sequence[Area], words: Sequence[str], effort: Effort) -> list[Choice]:
    """What the words ask for: areas by name, or tasks by a part of theirs; without words, everything."""
    names = {area.name for area in areas}
    choices = []
    for area in areas:
        tasks = [task for task in area.tasks() if not (effort.quick and task.slow)]
        wanted = [task for task in tasks if not words or _asked(area, task, words, names)]
        if wanted:
            choices.append(Choice(area, wanted, frozenset(task.name for task in tasks)))
    return choices


def _asked(area: Area, task: Task, words: Sequence[str], names: set[str]) -> bool:
    return any(word == area.name if word in names else word in f"{area.name} {task.name}" for word in words)


@dataclass
class Run:
    """A run of what was chosen: it continues what an earlier one left, unless it is to measure anew.

    `between` is called after each task that was measured.
    """

    store: Store
    effort: Effort
    say: Callable[[str], None] = print
    again: bool = False
    between: Callable[[], None] = lambda: None

    def measure(self, choices: Sequence[Choice]) -> list[Row]:
        """The rows of every chosen task, measured now or kept from before."""
        rows = []
        here = environment()
        with progress("", sum(len(choice.tasks) for choice in choices), done=-1) as advance:
            for choice in choices:
                rows += self._area(choice, {**here, **choice.area.settings}, advance)
        return rows

    def _area(self, choice: Choice, here: dict[str, Any], advance: Callable[[str], None]) -> list[Row]:
        area, record, kept = choice.area, *self._record(choice, here)
        self.say(f"\n{area.name}: {area.about}")
        for task in choice.tasks:
            advance(f"{area.name}: {task.name}")
            if task.name not in record.done:
                self._task(area, task, record)
                self.store.keep(area.name, record)
                self.between()
            for row in record.rows:
                if row.task == task.name:
                    self.say(line(row))
        if not kept and choice.every <= set(record.done):
            self.store.finish(area.name, record)
        wanted = {task.name for task in choice.tasks}
        return [row for row in record.rows if row.task in wanted]

    def _record(self, choice: Choice, here: dict[str, Any]) -> tuple[Record, bool]:
        """What is there of an area, and whether that is complete and in its file already."""
        name, fresh = choice.area.name, Record(here)
        if self.again:
            self.store.forget(name)
            return fresh, False
        waiting = self.store.unfinished_record(name)
        if waiting is not None and waiting.matches(here):
            return waiting, False
        if waiting is not None:
            self.say(f"\n{name}: what was kept is of other source or another machine, and is measured anew")
        _, complete = self.store.complete().get(name, ("", None))
        if complete is not None and complete.matches(here) and choice.every <= set(complete.done):
            return complete, True
        return fresh, False

    def _task(self, area: Area, task: Task, record: Record) -> None:
        """Put the rows of a task into the record; one that says why, if a peer is missing or it raises."""
        start = perf_counter()
        try:
            missing = task.missing()
            found = [task.skipped(missing)] if missing else list(task.measure(self.effort))
            record.done.append(task.name)
        except Exception as error:  # the other rows are worth having, and this task is tried again
            found = [Row(task.name, task.peer, note=f"raised {type(error).__name__}: {str(error)[:200]}")]
        found = [replace(row, area=area.name, task=task.name) for row in found]
        record.rows = [row for row in record.rows if row.task != task.name] + found
        record.seconds += perf_counter() - start
