"""What was measured, in files: `results/<date>.json`; `results/unfinished.json` until an area is complete.

A file has a record for each area, with what it was measured on. A record is kept for as long as that stays
the same, the source of covector and of the benchmarks included; the newest complete one makes the table.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks._board import Row
from covector._files import write_text

SCHEMA = "covector-bench/1"
ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "results"
PACKAGES = ("covector", "torch", "numpy", "jax", "asdex", "sparsejac", "casadi")
# What may differ between two parts of one record.
_PASSING = ("date", "commit", "load")
# A change of a ratio below this is never said to be one: a peak of memory has no quartiles, and varies by it.
NOISE = 0.03


class ResultsError(Exception):
    """A file that is not one of ours, or of another schema."""


@dataclass
class Record:
    """One area: where it was measured, what is done, and the rows."""

    environment: dict[str, Any]
    seconds: float = 0.0
    done: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def matches(self, environment: dict[str, Any]) -> bool:
        """Whether more of it may be measured there."""
        return _lasting(self.environment) == _lasting(environment)


def _lasting(environment: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in environment.items() if key not in _PASSING}


def environment() -> dict[str, Any]:
    """Versions, processor, commit, and a fingerprint of the source."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "commit": _commit(),
        "load": round(os.getloadavg()[0], 1),
        "source": _source(),
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        **{name: found for name in PACKAGES if (found := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _commit() -> str:
    try:
        said = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()


def _source() -> str:
    """A digest of what is measured and of what measures: a result of other source is not continued."""
    digest = hashlib.sha256()
    for folder in ("src", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


Records = dict[str, Record]


def read(path: Path) -> Records:
    """The records of a file; none if there is no file."""
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        schema = data["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path}: not a file of results ({type(error).__name__}: {error})") from error
    if schema != SCHEMA:
        raise ResultsError(f"{path}: has the schema {schema!r}, expected {SCHEMA!r}. Measure again.")
    try:
        return {name: _record(saved) for name, saved in data["areas"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ResultsError(f"{path}: damaged ({type(error).__name__}: {error}). Measure again.") from error


def read_quick(path: Path) -> bool:
    """Whether a file is of a quick run."""
    return bool(json.loads(path.read_text(encoding="utf-8")).get("quick"))


def _record(saved: dict[str, Any]) -> Record:
    rows = [Row(**row) for row in saved["rows"]]
    return Record(saved["environment"], saved["seconds"], saved["done"], rows)


def write(path: Path, records: Records, *, quick: bool) -> None:
    """Replace a file as a whole, so that it is never half written."""
    areas = {
        name: {**vars(record), "rows": list(map(_compact, record.rows))} for name, record in records.items()
    }
    text = json.dumps({"schema": SCHEMA, "quick": quick, "areas": areas}, indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text + "\n")


_DEFAULTS = {one.name: one.default for one in fields(Row)}


def _compact(row: Row) -> dict[str, Any]:
    """A row without what it does not say."""
    return {key: value for key, value in asdict(row).items() if value != _DEFAULTS[key] and value != {}}


@dataclass(frozen=True)
class Store:
    """The files of full runs, or of quick ones, which are kept apart."""

    folder: Path
    quick: bool

    @property
    def _suffix(self) -> str:
        return "-quick" if self.quick else ""

    @property
    def unfinished(self) -> Path:
        """Where areas wait that are not complete."""
        return self.folder / f"unfinished{self._suffix}.json"

    @property
    def today(self) -> Path:
        """Where complete areas go."""
        return self.folder / f"{datetime.now():%Y-%m-%d}{self._suffix}.json"

    def complete(self) -> dict[str, tuple[str, Record]]:
        """The newest complete record of each area, with the name of its file."""
        found = {}
        for path in sorted(self.folder.glob(f"[0-9]*-[0-9][0-9]{self._suffix}.json")):
            found.update({area: (path.name, record) for area, record in read(path).items()})
        return found

    def unfinished_record(self, area: str) -> Record | None:
        """What was kept of an area that is not complete."""
        return read(self.unfinished).get(area)

    def keep(self, area: str, record: Record) -> None:
        """Save what was measured so far."""
        write(self.unfinished, {**read(self.unfinished), area: record}, quick=self.quick)

    def finish(self, area: str, record: Record) -> None:
        """Move a record to the file of the day."""
        write(self.today, {**read(self.today), area: record}, quick=self.quick)
        self.forget(area)

    def forget(self, area: str) -> None:
        """Drop what was kept of an area that is not complete."""
        waiting = read(self.unfinished)
        waiting.pop(area, None)
        if waiting:
            write(self.unfinished, waiting, quick=self.quick)
        else:
            self.unfinished.unlink(missing_ok=True)


@dataclass(frozen=True)
class Move:
    """A row in two runs; one of them None where it was not measured."""

    before: Row | None
    after: Row | None

    @property
    def moved(self) -> bool:
        """Whether the quartiles of both lie apart, by more than noise; any change of a count."""
        if self.before is None or self.after is None:
            return True
        old, new = self.before, self.after
        if old.value is None or new.value is None:
            return old.value is not new.value
        if old.unit == "count":
            return old.ours != new.ours
        (low, high), (other_low, other_high) = _quartiles(old), _quartiles(new)
        return other_low > high * (1 + NOISE) or low > other_high * (1 + NOISE)

    def __str__(self) -> str:
        row = self.after or self.before
        assert row is not None
        said = "better" if (_value(self.after) or 0) < (_value(self.before) or 0) else "worse"
        word = "new" if self.before is None else "gone" if self.after is None else said
        return f"{word:7}{row.area}: {row.title} / {row.peer}  {_shown(self.before)} -> {_shown(self.after)}"


def _quartiles(row: Row) -> tuple[float, float]:
    assert row.ratio is not None
    return (row.ratio if row.low is None else row.low), (row.ratio if row.high is None else row.high)


def _value(row: Row | None) -> float | None:
    return None if row is None else row.value


def _shown(row: Row | None) -> str:
    if row is None or row.value is None:
        return "-" if row is None else row.note or "-"
    if row.unit == "count":
        return f"{row.ours:g}"
    low, high = _quartiles(row)
    return f"{row.ratio:.3g} ({low:.3g}-{high:.3g})"


def moves(before: Iterable[Row], after: Iterable[Row]) -> list[Move]:
    """What moved beyond the quartiles, of the rows of the areas that both have."""
    old, new = ({row.key: row for row in rows} for rows in (before, after))
    shared = {key[0] for key in old} & {key[0] for key in new}
    keys = [key for key in {**old, **new} if key[0] in shared]
    every = [Move(old.get(key), new.get(key)) for key in keys]
    return [move for move in every if move.moved]
