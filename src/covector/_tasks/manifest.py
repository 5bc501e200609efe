"""The manifest of a matrix in a file: which call began it, and what is finished. JSON, never pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from covector._files import write
from covector._tasks.sending import Span
from covector.errors import Caller, ResumeError

_SCHEMA = 1
# A manifest is small: a hundred bytes for each gap between blocks. A larger file is not read.
_LARGEST = 64 * 2**20


@dataclass(frozen=True)
class Manifest:
    """The call that a matrix belongs to, and which directions are finished, in order and without overlap."""

    function: str
    inputs: str
    mode: str
    shape: tuple[int, int]
    dtype: str
    block: int
    finished: tuple[Span, ...] = ()

    @property
    def directions(self) -> int:
        """How many rows (reverse mode) or columns (forward mode) there are."""
        return self.shape[1] if self.mode == "forward" else self.shape[0]

    def missing(self) -> list[Span]:
        """What is not finished."""
        edges = [0, *(edge for span in self.finished for edge in span), self.directions]
        gaps = [Span(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
        return [gap for gap in gaps if gap.start < gap.stop]

    def with_finished(self, span: Span) -> Manifest:
        """The manifest after one more block; neighbours become one."""
        merged: list[Span] = []
        for one in sorted((*self.finished, span)):
            if merged and merged[-1].stop == one.start:
                merged[-1] = Span(merged[-1].start, one.stop)
            else:
                merged.append(one)
        return replace(self, finished=tuple(merged))

    def write(self, path: Path) -> None:
        """Replace the file by an atomic rename: a reader sees the old manifest or the new one."""
        text = json.dumps({"schema": _SCHEMA, **asdict(self)})

        def content(file: IO[bytes]) -> None:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())

        write(path, content)


def read(caller: Caller, path: Path) -> Manifest:
    """The manifest in a file, checked as what a stranger gives."""
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("the file is too large")
        return _validated(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise ResumeError(
            f"{caller}: {path} is not a manifest that can be continued: {error}. Delete it and the matrix "
            "that it belongs to, or give another path as out."
        ) from error


_TEXTS = ("function", "inputs", "mode", "dtype")


def _validated(data: Any) -> Manifest:
    if not isinstance(data, dict) or data.get("schema") != _SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"expected schema {_SCHEMA}, got {found!r}")
    fields = {*_TEXTS, "shape", "block", "finished"}
    if set(data) != fields | {"schema"}:
        raise ValueError(f"expected the fields {sorted(fields)}, got {sorted(map(str, data))}")
    if not all(isinstance(data[name], str) for name in _TEXTS) or data["mode"] not in ("forward", "reverse"):
        raise ValueError("a text is missing, or the mode is unknown")
    shape, block = _whole_numbers(data["shape"]), _whole_numbers([data["block"]])[0]
    finished = [_whole_numbers(span) for span in _listed(data["finished"])]
    if len(shape) != 2 or block < 1 or any(len(span) != 2 for span in finished):
        raise ValueError("a shape, a block or a span is malformed")
    manifest = Manifest(
        data["function"],
        data["inputs"],
        data["mode"],
        (shape[0], shape[1]),
        data["dtype"],
        block,
        tuple(Span(start, stop) for start, stop in finished),
    )
    edges = [0, *(edge for span in manifest.finished for edge in span), manifest.directions]
    if edges != sorted(edges) or any(span.start == span.stop for span in manifest.finished):
        raise ValueError("the finished spans overlap, or lie outside of the matrix")
    return manifest


def _listed(value: Any) -> Iterable[Any]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {type(value).__name__}")
    return value


def _whole_numbers(value: Any) -> list[int]:
    numbers = list(_listed(value))
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("expected whole numbers")
    return numbers
