"""Plans in files: arrays and text, no code. What is read is checked like what a stranger gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covector.errors import ArgumentValueError
from covector.sparsity.coloring import Coloring, check_valid
from covector.sparsity.pattern import SparsityPattern
from covector.sparsity.plan import SparsePlan

_VERSION = 1


class Saved(NamedTuple):
    """What a file holds of a plan."""

    pattern: SparsityPattern
    coloring: Coloring
    facts: dict[str, Any]


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
    }
    with Path(path).open("wb") as file:
        np.savez_compressed(file, **arrays, facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8))


def read(verb: str, path: Any) -> Saved:
    """What is in a file, checked: the colouring has to be one of the pattern."""
    try:
        with np.load(Path(path), allow_pickle=False) as file:
            facts = json.loads(bytes(file["facts"]))
            arrays = {
                name: file[name].astype(np.int64)
                for name in ("indptr", "indices", "columns", "rows", "source")
            }
    except (OSError, ValueError, KeyError) as error:
        raise ArgumentValueError(f"{verb}: {path} is not a saved plan: {error}.") from error
    if facts.get("version") != _VERSION or facts.get("verb") != verb:
        raise ArgumentValueError(
            f"{verb}: {path} holds a {facts.get('verb')} of format {facts.get('version')}; expected a "
            f"{verb} of format "
            f"{_VERSION}. Make the plan again and save it."
        )
    shape = (int(facts["shape"][0]), int(facts["shape"][1]))
    pattern = SparsityPattern(shape, arrays["indptr"], arrays["indices"])
    coloring = Coloring(facts["kind"], shape, arrays["columns"], arrays["rows"], arrays["source"])
    wrong = _damage(pattern, coloring)
    if wrong is not None:
        raise ArgumentValueError(f"{verb}: {path} is damaged: {wrong}. Make the plan again and save it.")
    return Saved(pattern, coloring, facts)


def _damage(pattern: SparsityPattern, coloring: Coloring) -> str | None:
    """What does not fit together in a file."""
    rows, columns = pattern.shape
    sizes = (len(pattern.indptr), len(coloring.columns), len(coloring.rows), len(coloring.source))
    if sizes != (rows + 1, columns, rows, pattern.nnz) or pattern.indptr[-1] != pattern.nnz:
        return "its arrays do not fit together"
    elements = coloring.forward * rows + coloring.reverse * columns
    outside = pattern.nnz and (pattern.indices.min() < 0 or pattern.indices.max() >= columns)
    if outside or (pattern.nnz and (coloring.source.min() < 0 or coloring.source.max() >= elements)):
        return "an index lies outside of the matrix"
    return check_valid(pattern, coloring)
