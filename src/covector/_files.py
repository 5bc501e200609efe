"""Files that are written whole or not at all: a full disk or a kill leaves what was there before.

And streams on which every text can be written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from covector.errors import ArgumentTypeError, StorageError

# What to do about an error of writing; about any other, the last.
_ADVICE = {
    errno.ENOENT: "Create the folder {folder}, or name another place.",
    errno.ENOTDIR: "A part of the path is a file, not a folder: name another place.",
    errno.EACCES: "Give yourself the right to write there, or name another place.",
    errno.EPERM: "Give yourself the right to write there, or name another place.",
    errno.ENOSPC: "Make room, or name another place.",
    errno.EFBIG: "Make room, or name another place.",
}
_ELSEWHERE = "Name another place."

# Of the name of a file, what the one beside it is called by: names have at most 255 bytes.
_LONGEST = 50
_PART = "." + 32 * "[0-9a-f]" + ".part"


def path_of(path: Any) -> Path:
    """The path that a caller gives; what no file can be called is refused."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        raise ArgumentTypeError(f"A path must be a text or a Path, got {path!r}.") from None
    if "\0" in name:
        raise StorageError(errno.EINVAL, f"{name!r} is no path: it has a null character. Name another place.")
    return Path(name)


def advice(error: OSError, path: Path) -> str:
    """What to do about a file that could not be written."""
    return _ADVICE.get(error.errno or 0, _ELSEWHERE).format(folder=path.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text in UTF-8; what it lacks, such as half of a surrogate pair, is written as an escape."""
    write(path, lambda file: file.write(text.encode("utf-8", errors="backslashreplace")))


def write(path: str | os.PathLike[str], content: Callable[[IO[bytes]], Any]) -> None:
    """Let `content` write to a file beside `path`, which then takes its place."""
    path = Path(os.path.realpath(path_of(path)))
    # Beside a pipe or a device nothing can be put.
    straight = os.path.exists(path) and not os.path.isfile(path)
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
            f"{advice(error, path)}",
        ) from error
    finally:
        if not straight:
            with suppress(OSError):  # it was not begun
                beside.unlink()


@contextmanager
def escaping(*streams: Any) -> Iterator[None]:
    """Inside, what a stream of text cannot encode is written to it as an escape."""
    before = [(stream, stream.errors) for stream in streams if isinstance(stream, TextIOWrapper)]
    for stream, _ in before:
        stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in before:
            stream.reconfigure(errors=errors)


def remove_parts(path: str | os.PathLike[str]) -> None:
    """Remove what processes that were killed left beside a path while they wrote it."""
    path = Path(os.path.realpath(path_of(path)))
    if path.name[:_LONGEST] == path.name:  # a part of a name may be another file's
        _remove(path.parent, escape(f".{path.name}"))


def remove_parts_in(folder: Path) -> None:
    """Remove what processes that were killed left in a folder while they wrote files of any name."""
    _remove(folder, ".*")


def _remove(folder: Path, begins: str) -> None:
    for part in folder.glob(begins + _PART):
        with suppress(OSError):  # it is gone, or somebody else's
            part.unlink()
