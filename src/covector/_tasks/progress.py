"""A bar on the terminal while something takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """A bar, if standard error is a terminal; call what it gives for each piece, perhaps with a new text."""
    if not sys.stderr.isatty():
        yield lambda text="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Lines printed meanwhile go above the bar if both are seen, and untouched into a file if not.
    both = sys.stdout.isatty()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=both) as bar:
        task = bar.add_task(what, total=total, completed=done)
        yield lambda text=what: bar.update(task, advance=1, description=text)
