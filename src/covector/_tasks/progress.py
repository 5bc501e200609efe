"""A bar on the terminal while something takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock, Timer

# Nothing is shown before this many seconds.
QUIET = 2.0

# Held by the bar that is shown: a terminal has one last line.
_LAST_LINE = Lock()


@contextmanager
def progress(what: str, total: int | None = None, done: int = 0) -> Iterator[Callable[..., None]]:
    """A bar, if standard error is a terminal; call what it gives for each piece, perhaps with a new text.

    Without a total it shows only that something goes on. A bar within another is not shown.
    """
    if not sys.stderr.isatty() or not _LAST_LINE.acquire(blocking=False):
        yield lambda text="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    counted = () if total is None else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *counted, TimeElapsedColumn())
    # Lines printed meanwhile go above the bar if both are seen, and untouched into a file if not.
    both = sys.stdout.isatty()
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=both)
    task = bar.add_task(what, total=total, completed=done)
    shown = Timer(QUIET, bar.start)  # by a timer, because one piece may take long
    shown.daemon = True
    shown.start()
    try:
        yield lambda text=what: bar.update(task, advance=1, description=text, refresh=True)
    finally:
        shown.cancel()
        shown.join()
        bar.stop()
        _LAST_LINE.release()
