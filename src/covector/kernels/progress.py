"""A line that says what a check is at, once it has taken a while."""

from __future__ import annotations

import sys
import time
from typing import Any

# Nothing is said before this many seconds.
QUIET = 2.0


class Progress:
    """Writes to a terminal alone, on one line that is wiped at the end."""

    def __init__(self, what: str, file: Any = None) -> None:
        self._what, self._file = what, sys.stderr if file is None else file
        self._started, self._shown = time.monotonic(), 0

    def at(self, step: str) -> None:
        """Say which step begins."""
        if time.monotonic() - self._started < QUIET or not self._file.isatty():
            return
        line = f"{self._what}: {step}"
        self._file.write("\r" + line.ljust(self._shown))
        self._file.flush()
        self._shown = len(line)

    def done(self) -> None:
        """Wipe the line."""
        if self._shown:
            self._file.write("\r" + " " * self._shown + "\r")
            self._file.flush()
