"""The command `covector`: check the derivatives in files of cases, and measure them against torch's."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from covector import bench
from covector._files import escaping, remove_parts, write_text
from covector._index import NAME as INDEX
from covector._index import Line, clear, hint_of, write_index
from covector._pool import Pool, Spread
from covector._results import Request, Result, handle, handle_in
from covector._tasks.progress import progress
from covector.cases import chosen, load, require_file
from covector.errors import CaseError, StorageError
from covector.report.report import finite

DESCRIPTION = "Check derivatives of PyTorch functions, and measure how long that takes."
EPILOG = """\
A file of cases is a Python file in which functions are given inputs:

    import torch, covector

    @covector.case((4, 3))                       # a random tensor of this shape
    def norm(x):
        return x.square().sum().sqrt()

    covector.case(torch.ones(3), order=2)(torch.sin)    # any function, also its second derivative

Then:

    covector check cases.py                      # every case
    covector check cases.py::norm other.py       # one case of this file, all of that one
    covector check cases.py --html pages         # and a page for each
    covector check cases.py --dask tcp://host:8786   # on the workers of a Dask cluster
    covector bench cases.py                      # how fast, beside torch

A file of cases is run as Python runs a script: it can do whatever you can.
Exit codes: 0 all passed, 1 some did not, 2 the command was misused or what it found could not be written,
130 interrupted.
"""


class Exit(IntEnum):
    """What the shell is told."""

    PASSED = 0
    FAILED = 1
    MISUSED = 2
    INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        # By the command itself, whose usage is then shown.
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    with escaping(sys.stdout, sys.stderr):
        return _ended(options)


def _ended(options: argparse.Namespace) -> int:
    """Run the chosen command; what ends it is told in a line."""
    try:
        with interruptible() as raise_lost:
            return int(options.run(options, raise_lost))
    except (CaseError, StorageError) as error:
        print(f"covector {options.command}: {error}", file=sys.stderr)
        return Exit.MISUSED
    except KeyboardInterrupt:
        print(f"covector {options.command}: interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`); the interpreter must not complain of that at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="covector",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"covector {version('covector')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="check every case in the given files")
    check.set_defaults(run=_check, parser=check)
    check.add_argument(
        "--jobs", "-j", type=_positive(int), default=os.cpu_count() or 1, help="processes [one per core]"
    )
    check.add_argument(
        "--timeout",
        type=_positive(float),
        default=300.0,
        metavar="SECONDS",
        help="the time limit of one case [%(default)g]",
    )
    check.add_argument(
        "--dask", metavar="ADDRESS", help="run the cases on the workers of this Dask scheduler, not here"
    )
    check.add_argument("--html", type=Path, metavar="DIR", help="write a page for each case, and an index")
    measure = commands.add_parser("bench", help="measure covector against torch on the given cases")
    measure.set_defaults(run=_bench, parser=measure)
    measure.add_argument(
        "--seconds",
        type=_positive(float),
        default=2.0,
        help="time for each comparison; a slow function takes longer [%(default)g]",
    )
    for command in (check, measure):
        command.add_argument("targets", nargs="+", metavar="FILE[::NAME]", help="a file, or one case of it")
        command.add_argument("--json", metavar="PATH", help="save what was found as JSON; - for the terminal")
    return parser


def _positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be positive, got {text}")
        return value

    convert.__name__ = kind.__name__
    return convert


# --- check

_PRINTED = 20
# How many seconds a scheduler may take to answer.
_CONNECTING = 10
# Seconds between two savings of what was found so far.
_OFTEN = 1.0
# Of what --json writes; another number when what is there already changes its meaning.
_VERSION = 1


@dataclass
class CasesRun:
    """A check of files so far: the results, of so many cases."""

    total: int
    started: float
    results: list[Result] = field(default_factory=list)

    @property
    def interrupted(self) -> bool:
        """Whether cases have no result."""
        return len(self.results) < self.total

    def __str__(self) -> str:
        outcomes = sorted(result.outcome for result in self.results)
        counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
        seconds = time.monotonic() - self.started
        cases = f"{self.total} case" if self.total == 1 else f"{self.total} cases"
        if self.interrupted:
            ended = f"{len(self.results)} of {cases}"
            return f"interrupted: {ended} in {seconds:.1f} s: {counts or 'none ended'}"
        return f"{cases} in {seconds:.1f} s: {counts}"

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        results = [result.to_dict() for result in self.results]
        return {"interrupted": self.interrupted, "cases": self.total, "results": results}


def _check(options: argparse.Namespace, raise_lost: Callable[[], None]) -> Exit:
    """Run the cases in processes; what was found is shown and saved also after an interruption.

    It is saved meanwhile too, as interrupted, so that it can be read after a kill.
    """
    started = saved = time.monotonic()
    _require_places(options)
    if options.html is not None:
        clear(options.html)
    if options.json not in (None, "-"):
        remove_parts(options.json)
    with _workers(options) as pool:
        requests = _listed(pool, options)
        found = CasesRun(len(requests), started)
        _keep(options, found)
        try:
            with progress("checking", found.total) as advance:
                for ended in pool.run(requests):
                    found.results.append(_result(ended))
                    _say(options, _line(found.results[-1]))
                    advance()
                    raise_lost()
                    if time.monotonic() > saved + _OFTEN:
                        _keep(options, found)
                        saved = time.monotonic()
        except KeyboardInterrupt:
            pass  # what was found is shown
    order = {str(request): position for position, request in enumerate(requests)}
    found.results.sort(key=lambda result: order[str(result)])
    _show(options, found)
    if found.interrupted:
        return Exit.INTERRUPTED
    return Exit.PASSED if all(result.passed for result in found.results) else Exit.FAILED


def _require_places(options: argparse.Namespace) -> None:
    """Refuse paths that cannot be read or written before anything is run."""
    for target in options.targets:
        require_file(Path(_split(target)[0]))
    if options.json not in (None, "-") and not os.path.isdir(Path(options.json).absolute().parent):
        raise CaseError(f"--json {options.json}: there is no folder {Path(options.json).parent}.")
    if options.json not in (None, "-") and os.path.isdir(options.json):
        raise CaseError(f"--json {options.json}: this is a folder.")
    if getattr(options, "html", None) is not None:
        _require_folder(options.html)


def _require_folder(folder: Path) -> None:
    """Make the folder of the pages, or say why it cannot be."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise CaseError(f"--html {folder}: this is a file, and pages go into a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        raise CaseError(f"--html {folder}: pages cannot be written there: {error}.") from error


@contextmanager
def _workers(options: argparse.Namespace) -> Iterator[Pool | Spread]:
    """Processes of this machine, or of the workers of a Dask cluster."""
    if options.dask is None:
        with Pool(handle, options.jobs, options.timeout, subject=lambda request: request.file) as pool:
            yield pool
        return
    if not options.dask:  # for Dask, that is a cluster of its own
        raise CaseError("--dask needs the address of a scheduler, such as tcp://host:8786.")
    try:
        from distributed import Client
    except ImportError as error:
        raise CaseError("--dask needs the package distributed: pip install 'covector[dask]'.") from error
    try:
        client = Client(options.dask, timeout=_CONNECTING, set_as_default=False)
    except Exception as error:  # whatever Dask says of an address
        raise CaseError(f"--dask {options.dask}: no scheduler answers there: {error}.") from error
    with client:
        yield Spread(partial(handle_in, os.getcwd()), client, options.timeout)


def _listed(pool: Pool | Spread, options: argparse.Namespace) -> list[Request]:
    """A request for each case that the targets stand for, each once."""
    targets = [Request(*_split(target)) for target in options.targets]
    names: dict[Request, list[str]] = {}
    for ended in pool.run(targets):
        if isinstance(ended.value, CaseError):
            raise ended.value
        if ended.lost:
            raise CaseError(f"{ended.piece.file} could not be loaded: {ended.why}.\n{ended.output}".rstrip())
        names[ended.piece] = ended.value
    pages = None if options.html is None else str(options.html.absolute())
    requests = [Request(target.file, name, True, pages) for target in targets for name in names[target]]
    return list(dict.fromkeys(requests))


def _split(target: str) -> tuple[str, str | None]:
    file, separator, name = target.partition("::")
    return file, name if separator else None


def _result(ended: Any) -> Result:
    if isinstance(ended.value, Result):
        return replace(ended.value, output=ended.output)
    raised = isinstance(ended.value, CaseError)
    outcome, text = ("raised", str(ended.value)) if raised else (ended.lost, ended.why)
    return Result(ended.piece.file, ended.piece.name, outcome, ended.seconds, text, ended.output)


def _line(result: Result) -> str:
    return f"{result.outcome.upper():12}  {result}  {result.seconds:.2f} s"


def _show(options: argparse.Namespace, found: CasesRun) -> None:
    """The failures, the summary, and the same as pages and JSON."""
    for result in found.results:
        if not result.passed:
            _show_failure(options, result)
    unwritten = _keep(options, found)
    if options.html is not None:
        _say(options, f"\npages: {options.html / INDEX}")
    _say(options, f"\n{found}")
    if options.json == "-":
        _save("-", found.to_dict())
    if unwritten is not None:
        raise unwritten


def _keep(options: argparse.Namespace, found: CasesRun) -> StorageError | None:
    """Write the JSON and the index of the pages; why not, of the first that failed: the cases go on."""
    unwritten = None
    for write in (_keep_data, _keep_index):
        try:
            write(options, found)
        except StorageError as error:
            unwritten = unwritten or error
    return unwritten


def _keep_data(options: argparse.Namespace, found: CasesRun) -> None:
    if options.json != "-":
        _save(options.json, found.to_dict())


def _keep_index(options: argparse.Namespace, found: CasesRun) -> None:
    if options.html is not None:
        lines = [Line(r.file, r.name, r.outcome, r.seconds, r.text, r.page, _hint(r)) for r in found.results]
        write_index(options.html, str(found), lines)


def _hint(result: Result) -> str:
    """One line on what is wrong: of the report, or of what was raised."""
    lines = [] if result.passed else result.text.splitlines()
    raised = lines[-1 if lines[0].startswith("Traceback") else 0] if lines else ""
    return next((hint_of(report) for report in result.reports if not report), raised)


def _show_failure(options: argparse.Namespace, result: Result) -> None:
    _say(options, f"\n--- {result} {result.outcome}")
    bad = next((report for report in result.reports if not report), None)
    if bad is not None and options.json != "-":
        bad.show()
    else:
        _say(options, result.text)
    if printed := result.output.rstrip().splitlines():
        last = f", the last {_PRINTED} lines" if len(printed) > _PRINTED else ""
        _say(options, "\n".join([f"--- printed by {result}{last}", *printed[-_PRINTED:]]))


# --- bench


_WIDTHS = (28, 22, 8, 10, 10)


def _bench(options: argparse.Namespace, raise_lost: Callable[[], None]) -> Exit:
    """Measure in this process, one comparison after the other; each row is shown when it is there."""
    _require_places(options)
    cases = []
    for target in options.targets:
        file, name = _split(target)
        cases += chosen(load(Path(file)), name, file)
    rows: list[bench.Row] = []
    interrupted = False
    _say(options, _columns(("case", "task", "ratio", "covector", "torch")) + "  note")
    try:
        bench.warm_up()
        for case in cases:
            for row in bench.rows(case, options.seconds):
                rows.append(row)
                _say(options, _row(row))
                raise_lost()
    except KeyboardInterrupt:
        interrupted = True
    _say(options, "\nratio: covector's time over torch's, the median of pairs; below 1 is faster than torch")
    _save(options.json, {"interrupted": interrupted, "rows": [row.to_dict() for row in rows]})
    if interrupted:
        return Exit.INTERRUPTED
    measured = {row.case for row in rows if row.ratio is not None}
    return Exit.PASSED if measured == {row.case for row in rows} else Exit.FAILED


def _row(row: bench.Row) -> str:
    ratio = "-" if row.ratio is None else f"{row.ratio:.3f}"
    return f"{_columns((row.case, row.task, ratio, _amount(row.ours), _amount(row.theirs)))}  {row.note}"


def _columns(cells: tuple[str, ...]) -> str:
    return "  ".join(
        f"{cell:{'<' if i < 2 else '>'}{width}}"
        for i, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    )


def _amount(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    scale, unit = next(((s, u) for s, u in ((1, "s"), (1e-3, "ms")) if seconds >= s), (1e-6, "us"))
    return f"{seconds / scale:.1f} {unit}"


# --- both


def _say(options: argparse.Namespace, text: str) -> None:
    """Print for people, unless the JSON goes where they read."""
    if options.json != "-":
        print(text, flush=True)


def _save(path: str | None, data: dict[str, Any]) -> None:
    if path is None:
        return
    text = json.dumps(finite({"version": _VERSION, **data}), indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        write_text(path, text)


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Inside, being asked to end raises KeyboardInterrupt; what is given raises it again, if it was lost.

    It is lost where Python drops what is raised: in callbacks of weak references and of the garbage
    collector, which other packages have run at any moment. A signal that was ignored before stays so.
    """
    asked = False

    def interrupt(*_: object) -> None:
        nonlocal asked
        asked = True
        raise KeyboardInterrupt

    def raise_lost() -> None:
        if asked:
            raise KeyboardInterrupt

    heeded = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) != signal.SIG_IGN]
    before = {signum: signal.signal(signum, interrupt) for signum in heeded}
    try:
        yield raise_lost
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
