"""Plans in files: arrays and text, no code. What is read is checked like what a stranger gives."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covector._files import write
from covector.errors import ArgumentValueError
from covector.sparsity.coloring import KINDS, Coloring, check_valid
from covector.sparsity.pattern import SparsityPattern
from covector.sparsity.plan import SparsePlan

_VERSION = 1
# What is in a file, and the most bytes of each when unpacked: a small file may unpack to anything. The text
# is about the arguments; an array of 2**32 bytes is one of half a billion entries.
_TEXT, _MOST_TEXT = "facts", 2**24
_ARRAYS, _MOST_ARRAY = ("indptr", "indices", "columns", "rows", "source"), 2**32


class Saved(NamedTuple):
    """What a file holds of a plan."""

    pattern: SparsityPattern
    coloring: Coloring
    facts: dict[str, Any]


class _Damage(Exception):
    """What is wrong with a file."""


def save(plan: SparsePlan, path: Any) -> None:
    """Write the pattern, the colouring and the facts about a plan."""
    facts = {
        "version": _VERSION,
        "verb": plan.derivative.verb,
        "shape": plan.pattern.shape,
        "kind": plan.coloring.kind,
        "mode": plan.mode,
        "reason": plan.reason,
        "kinds": plan.structure.kinds,
        "chosen": plan.structure.chosen,
        "local": plan.local,
        "fallbacks": plan.fallbacks,
    }
    arrays: dict[str, Any] = {
        "indptr": plan.pattern.indptr,
        "indices": plan.pattern.indices,
        "columns": plan.coloring.columns,
        "rows": plan.coloring.rows,
        "source": plan.coloring.source,
        _TEXT: np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
    }
    write(path, lambda file: np.savez_compressed(file, **arrays))


def read(verb: str, path: Any) -> Saved:
    """What is in a file, checked: the colouring has to be one of the pattern."""
    try:
        facts, arrays = _unpacked(Path(path))
    except Exception as error:  # whatever a reader says of a stranger's bytes
        raise ArgumentValueError(f"{verb}: {path} is not a saved plan: {error}.") from error
    if facts.get("version") != _VERSION or facts.get("verb") != verb:
        raise ArgumentValueError(
            f"{verb}: {path} holds a {facts.get('verb')} of format {facts.get('version')}; expected a "
            f"{verb} of format "
            f"{_VERSION}. Make the plan again and save it."
        )
    try:
        return _fitting(facts, arrays)
    except _Damage as damage:
        raise ArgumentValueError(
            f"{verb}: {path} is damaged: {damage}. Make the plan again and save it."
        ) from damage


def _unpacked(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.int64]]]:
    """The text and the arrays of a file, as they are; none is unpacked that would be too large."""
    with zipfile.ZipFile(path) as archive:
        for name in (_TEXT, *_ARRAYS):
            size, most = (
                archive.getinfo(f"{name}.npy").file_size,
                _MOST_TEXT if name == _TEXT else _MOST_ARRAY,
            )
            if size > most:
                raise ValueError(f"{name} would unpack to {size} bytes")
    with np.load(path, allow_pickle=False) as file:
        facts = json.loads(bytes(file[_TEXT]))
        if not isinstance(facts, dict):
            raise ValueError("its text is not a table of facts")
        return facts, {name: file[name] for name in _ARRAYS}


# What each fact has to be.
_FACTS: dict[str, type] = {
    "shape": list,
    "kind": str,
    "mode": str,
    "reason": str,
    "kinds": list,
    "chosen": list,
    "local": bool,
    "fallbacks": dict,
}


def _fitting(facts: dict[str, Any], arrays: dict[str, NDArray[np.int64]]) -> Saved:
    """The plan that facts and arrays make, if they fit together."""
    for name, kind in _FACTS.items():
        if not isinstance(facts.get(name), kind):
            raise _Damage(f"{name} is {facts.get(name)!r}")
    texts, numbers = facts["kinds"], [*facts["shape"], *facts["chosen"], *facts["fallbacks"].values()]
    if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
        raise _Damage("its facts are of another kind than a plan's")
    if len(facts["shape"]) != 2 or min(facts["shape"]) < 0 or facts["kind"] not in KINDS:
        raise _Damage(f"it holds a {facts['kind']!r} of shape {facts['shape']}")
    if any(array.dtype != np.int64 or array.ndim != 1 for array in arrays.values()):
        raise _Damage("its arrays are not rows of integers")
    shape = (facts["shape"][0], facts["shape"][1])
    try:
        pattern = SparsityPattern(shape, arrays["indptr"], arrays["indices"])
    except ArgumentValueError as error:
        raise _Damage(str(error)) from None
    coloring = Coloring(facts["kind"], shape, arrays["columns"], arrays["rows"], arrays["source"])
    wrong = _misfit(pattern, coloring)
    if wrong is not None:
        raise _Damage(wrong)
    return Saved(pattern, coloring, facts)


def _misfit(pattern: SparsityPattern, coloring: Coloring) -> str | None:
    """What does not fit together in a file."""
    rows, columns = pattern.shape
    sizes = (len(coloring.columns), len(coloring.rows), len(coloring.source))
    if sizes != (columns, rows, pattern.nnz):
        return "its arrays do not fit together"
    if _outside(coloring.columns, -1, columns) or _outside(coloring.rows, -1, rows):
        return "it has more colours than columns or rows"
    elements = coloring.forward * rows + coloring.reverse * columns
    if _outside(coloring.source, 0, elements):
        return "an index lies outside of the matrix"
    return check_valid(pattern, coloring)


def _outside(numbers: NDArray[np.int64], least: int, end: int) -> bool:
    """Whether one of the numbers is not among those from `least` to `end`, without the last."""
    return len(numbers) > 0 and bool(numbers.min() < least or numbers.max() >= end)
