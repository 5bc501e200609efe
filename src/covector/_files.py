"""Files that are written whole or not at all: a full disk or a kill leaves what was there before."""

from __future__ import annotations

import os
from collections.abc import Callable
from glob import escape
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from covector.errors import StorageError

# Of the name of a file, what the one beside it is called by: names have at most 255 bytes.
_LONGEST = 50


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text in UTF-8; what it lacks, such as half of a surrogate pair, is written as an escape."""
    write(path, lambda file: file.write(text.encode("utf-8", errors="backslashreplace")))


def write(path: str | os.PathLike[str], content: Callable[[IO[bytes]], Any]) -> None:
    """Let `content` write to a file beside `path`, which then takes its place."""
    path = Path(os.path.realpath(path))
    # Beside a pipe or a device nothing can be put.
    straight = path.exists() and not path.is_file()
    beside = path if straight else path.with_name(f".{path.name[:_LONGEST]}.{uuid4().hex}.part")
    try:
        with beside.open("wb" if straight else "xb") as file:
            content(file)
        if not straight:
            beside.replace(path)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{path} could not be written: {error.strerror or error}. Nothing was changed there. "
            "Make room, or name another place.",
        ) from error
    finally:
        if not straight:
            beside.unlink(missing_ok=True)


def remove_parts(path: str | os.PathLike[str]) -> None:
    """Remove what processes that were killed left beside a path while they wrote it."""
    path = Path(os.path.realpath(path))
    if path.name[:_LONGEST] == path.name:  # a part of a name may be another file's
        for part in path.parent.glob(escape(f".{path.name}.") + 32 * "?" + ".part"):
            part.unlink(missing_ok=True)
