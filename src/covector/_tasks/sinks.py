"""Where the blocks of a matrix go: an array of the caller's, or a file that can be continued."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from covector._engine.graph import written_out
from covector._files import advice, path_of, remove_parts
from covector._tasks.manifest import Manifest, read
from covector._tasks.mapping import Block, spans
from covector._tasks.sending import Span
from covector.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    Caller,
    CovectorError,
    ResumeError,
    StorageError,
)

_SUFFIXES = (".npy", ".zarr")
# Arrays of the older format can name pickle as a codec, so they are not read.
_ZARR_FORMAT = 3


class Sink(Protocol):
    """Takes blocks, in any order."""

    array: Any

    def missing(self) -> list[Span]:
        """The blocks that it does not have."""

    def finished(self) -> Span | None:
        """A block that it has from before, to be computed again and compared."""

    def held(self, span: Span) -> Any:
        """The numbers of such a block."""

    def take(self, block: Block) -> None:
        """Write a block."""


def check_out(verb: str, out: Any) -> None:
    """`out` is a path of a known kind, or something like an array."""
    if isinstance(out, str | Path):
        if path_of(out).suffix not in _SUFFIXES:
            raise ArgumentValueError(
                f"{verb}: out={str(out)!r} must end in .npy (a memory-mapped NumPy file) or "
                ".zarr (a Zarr array)."
            )
    elif not all(hasattr(out, name) for name in ("shape", "dtype", "__setitem__")) or torch.is_tensor(out):
        raise ArgumentTypeError(
            f"{verb}: out must be a path or an array (numpy.memmap, zarr.Array), got {type(out).__name__}."
        )


def begun(caller: Caller, out: Any) -> Manifest | None:
    """The manifest of a matrix in a file that exists already."""
    if not isinstance(out, str | Path):
        return None
    path = _manifest_path(Path(out))
    if os.path.exists(path):
        return read(caller, path)
    if os.path.exists(out):
        raise ResumeError(
            f"{caller}: {out} exists, and there is no {path.name} beside it that says what it is. Give "
            "another path, or delete it."
        )
    return None


def sink(caller: Caller, out: Any, wanted: Manifest, before: Manifest | None) -> Sink:
    """Where the blocks of the wanted matrix go; what was begun before is continued."""
    if not isinstance(out, str | Path):
        return _Given(caller, out, wanted)
    return _File(caller, Path(out), wanted, before)


class _Given:
    """An array of the caller's, which is filled."""

    def __init__(self, caller: Caller, array: Any, wanted: Manifest) -> None:
        _check_array(caller, "out", array, wanted)
        self.array, self._wanted = array, wanted

    def missing(self) -> list[Span]:
        """All blocks."""
        return spans(0, self._wanted.directions, self._wanted.block)

    def finished(self) -> Span | None:
        """Nothing is known of what it held before."""
        return None

    def held(self, span: Span) -> Any:
        """What stands there."""
        return self.array[place(self._wanted, span)]

    def take(self, block: Block) -> None:
        """Write a block."""
        self.array[place(self._wanted, block.span)] = as_part(self._wanted, block)


class _File:
    """A matrix in a file, with a manifest beside it that says which blocks are finished.

    A block is written and flushed before the manifest is replaced by one that counts it, so that the process
    can be killed at any moment: a block that is not counted is computed again, and a file without one is made
    again.
    """

    def __init__(self, caller: Caller, path: Path, wanted: Manifest, before: Manifest | None) -> None:
        self._caller, self._path, self._manifest_path = caller, path, _manifest_path(path)
        kind = _Zarr if path.suffix == ".zarr" else _Npy
        if before is not None:
            _require_same(caller, path, wanted, before)
        remove_parts(self._manifest_path)
        self._manifest = wanted if before is None else before
        if self._manifest.finished:
            with _reading(caller, path):
                self._storage: _Npy | _Zarr = kind.opened(path)
            _check_array(caller, str(path), self._storage.array, wanted)
        else:
            self._storage = self._made(kind)
        self.array = self._storage.array

    def _made(self, kind: type[_Npy] | type[_Zarr]) -> _Npy | _Zarr:
        """A new file, with a manifest that says whose it is; neither, if one of them cannot be written."""
        try:
            with _storing(self._caller, self._path):
                self._manifest.write(self._manifest_path)
                return kind.made(self._path, self._manifest)
        except BaseException:
            shutil.rmtree(self._path, ignore_errors=True)
            for file in (self._path, self._manifest_path):
                with suppress(OSError):
                    file.unlink()
            raise

    def missing(self) -> list[Span]:
        """The blocks that are not finished."""
        block = self._manifest.block
        return [piece for gap in self._manifest.missing() for piece in spans(*gap, block)]

    def finished(self) -> Span | None:
        """The last of the blocks that were finished before."""
        done = self._manifest.finished
        if not done:
            return None
        start = done[-1].start
        return spans(start, done[-1].stop, self._manifest.block)[-1]

    def held(self, span: Span) -> Any:
        """The numbers in the file."""
        with _reading(self._caller, self._path):
            return self.array[place(self._manifest, span)]

    def take(self, block: Block) -> None:
        """Write a block, and count it once it is there."""
        with _storing(self._caller, self._path):
            self.array[place(self._manifest, block.span)] = as_part(self._manifest, block)
            self._storage.flush()
        self._manifest = self._manifest.with_finished(block.span)
        self._manifest.write(self._manifest_path)


class _Npy(NamedTuple):
    """A NumPy file, memory-mapped; a block lies in one piece."""

    array: Any

    @classmethod
    def made(cls, path: Path, wanted: Manifest) -> _Npy:
        by_columns = wanted.mode == "forward"
        make = np.lib.format.open_memmap
        array = make(path, "w+", np.dtype(wanted.dtype), wanted.shape, fortran_order=by_columns)
        _reserve(path)
        return cls(array)

    @classmethod
    def opened(cls, path: Path) -> _Npy:
        return cls(np.lib.format.open_memmap(path, "r+"))

    def flush(self) -> None:
        self.array.flush()


class _Zarr(NamedTuple):
    """A Zarr array whose chunks are the blocks; Zarr moves each into place when it is complete."""

    array: Any

    @classmethod
    def made(cls, path: Path, wanted: Manifest) -> _Zarr:
        rows, columns = wanted.shape
        chunk = (rows, wanted.block) if wanted.mode == "forward" else (wanted.block, columns)
        chunks = tuple(max(1, min(*pair)) for pair in zip(chunk, wanted.shape, strict=True))
        return cls(
            _zarr().create_array(
                store=str(path),
                shape=wanted.shape,
                chunks=chunks,
                dtype=wanted.dtype,
                zarr_format=_ZARR_FORMAT,
                overwrite=True,
            )
        )

    @classmethod
    def opened(cls, path: Path) -> _Zarr:
        for part in path.rglob("*.partial"):  # of a chunk that was being written when the process was killed
            part.unlink()
        return cls(_zarr().open_array(str(path), mode="r+", zarr_format=_ZARR_FORMAT))

    def flush(self) -> None:
        """Nothing is held back."""


def _reserve(path: Path) -> None:
    """Take the room that a file needs: where the disk is full, writing to mapped memory ends the process."""
    if hasattr(os, "posix_fallocate"):  # Windows and macOS lack it
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


@contextmanager
def _storing(caller: Caller, path: Path) -> Iterator[None]:
    """Inside, what cannot be written is an error of ours."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{caller}: {path} could not be written: {error.strerror or error}. {advice(error, path)} "
            "Blocks that are finished are kept.",
        ) from error


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise ArgumentValueError(
            "out=...zarr needs the package zarr: pip install 'covector[dask]'; or give a path in .npy."
        ) from error
    return zarr


@contextmanager
def _reading(caller: Caller, path: Path) -> Iterator[None]:
    """Inside, whatever is raised about a file that others may have changed is an error of ours."""
    try:
        yield
    except (MemoryError, CovectorError):
        raise
    except Exception as error:
        raise ResumeError(
            f"{caller}: {path} cannot be read, though {_manifest_path(path).name} says that it was begun: "
            f"{error}. Delete both, or give another path as out."
        ) from error


def _manifest_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _require_same(caller: Caller, path: Path, wanted: Manifest, before: Manifest) -> None:
    """Refuse to continue what another call began."""
    for name in ("function", "inputs", "shape", "dtype", "mode", "block"):
        now, then = getattr(wanted, name), getattr(before, name)
        if now == then:
            continue
        shown = "" if name in ("function", "inputs") else f" ({name} {then!r} there, {now!r} here)"
        what = {
            "function": "another function (its code, or numbers that it captures)",
            "inputs": "other arguments",
        }.get(name, f"another {name}")
        raise ResumeError(
            f"{caller}: {path} was begun with {what}{shown}, so it cannot be continued by this call. Call it "
            "as it was called then, or give another path as out."
        )


def _check_array(caller: Caller, name: str, array: Any, wanted: Manifest) -> None:
    """Refuse an array that is not the matrix, or that cannot be written to."""
    if getattr(array, "read_only", False) or not getattr(getattr(array, "flags", None), "writeable", True):
        raise ArgumentValueError(f"{caller}: {name} is read-only. Open it for writing.")
    if tuple(array.shape) != wanted.shape or np.dtype(array.dtype) != np.dtype(wanted.dtype):
        raise ArgumentValueError(
            f"{caller}: {name} must be {wanted.shape[0]} x {wanted.shape[1]} (elements of the output, "
            f"elements of the input) of {wanted.dtype}, got shape {tuple(array.shape)} of {array.dtype}."
        )


def place(matrix: Manifest, span: Span) -> tuple[slice, slice]:
    """Where a block stands: some rows, or in forward mode some columns."""
    along, whole = slice(*span), slice(None)
    return (whole, along) if matrix.mode == "forward" else (along, whole)


def as_part(matrix: Manifest, block: Block) -> Any:
    """The images of a block as the rows or columns that they are."""
    count = block.span.stop - block.span.start
    flat = [written_out(image.detach()).cpu().reshape(count, -1) for image in block.images]
    flat = [part.float() if part.dtype is torch.bfloat16 else part for part in flat]
    rows = np.concatenate([part.numpy() for part in flat], axis=1).astype(matrix.dtype, copy=False)
    return rows.T if matrix.mode == "forward" else rows
