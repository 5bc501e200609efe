"""A line that says what a check is at, once it has taken a while."""

from __future__ import annotations

import sys
from threading import Lock, Timer
from typing import Any

# Nothing is said before this many seconds.
QUIET = 2.0


class Progress:
    """Writes to a terminal alone, on one line that is wiped at the end."""

    def __init__(self, what: str, file: Any = None) -> None:
        self._what, self._file = what, sys.stderr if file is None else file
        self._shown, self._step, self._lock = 0, "", Lock()
        self._loud = False
        # By a timer, because one step may take long.
        self._timer = Timer(QUIET, self._speak)
        self._timer.daemon = True
        if self._file.isatty():
            self._timer.start()

    def at(self, step: str) -> None:
        """Say which step begins."""
        with self._lock:
            self._step = step
            if self._loud:
                self._write()

    def done(self) -> None:
        """Wipe the line."""
        self._timer.cancel()
        with self._lock:
            self._loud = False
            if self._shown:
                self._file.write("\r" + " " * self._shown + "\r")
                self._file.flush()
                self._shown = 0

    def _speak(self) -> None:
        """The time is up: from now on steps are shown."""
        with self._lock:
            self._loud = True
            self._write()

    def _write(self) -> None:
        line = f"{self._what}: {self._step}"
        self._file.write("\r" + line.ljust(self._shown))
        self._file.flush()
        self._shown = len(line)
