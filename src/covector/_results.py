"""What becomes of a case: it is listed, and run, in a process of its own."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from covector._engine.messages import is_out_of_memory
from covector._files import escaping
from covector._index import stem_of, write_page
from covector.api import check, gradgradcheck
from covector.cases import Case, chosen, load, user_traceback
from covector.errors import CaseError, GradcheckError, StorageError
from covector.kernels.door import check_kernel
from covector.report.report import Report


@dataclass(frozen=True)
class Request:
    """Cases to be listed or, with `run`, one case to be run; `pages` is the folder for its page."""

    file: str
    name: str | None
    run: bool = False
    pages: str | None = None

    def __str__(self) -> str:
        return self.file if self.name is None else f"{self.file}::{self.name}"


@dataclass(frozen=True)
class Result:
    """How a case ended."""

    file: str
    name: str
    outcome: str
    seconds: float = 0.0
    text: str = ""
    output: str = ""
    reports: tuple[Report, ...] = ()
    page: str = ""

    def __str__(self) -> str:
        return f"{self.file}::{self.name}"

    @property
    def passed(self) -> bool:
        """Whether there is nothing to look at."""
        return self.outcome == "passed"

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data."""
        return {
            "file": self.file,
            "name": self.name,
            "outcome": self.outcome,
            "seconds": self.seconds,
            "text": self.text,
            "output": self.output,
            "page": self.page,
            "reports": [report.to_dict() for report in self.reports],
        }


def handle(request: Request) -> Any:
    """In a worker: the names that a request stands for, the result of a case, or why there is neither."""
    try:
        cases = _loaded(request.file)
        names = [case.name for case in chosen(cases, request.name, request.file)]
    except CaseError as error:
        return error
    if not request.run:
        return names
    return _run(next(case for case in cases if case.name == request.name), request)


def handle_in(folder: str, request: Request) -> Any:
    """The same in a worker of another machine, which has to see the files under the same paths."""
    try:
        os.chdir(folder)
    except OSError as error:
        return CaseError(
            f"a worker cannot go to {folder}: {error}. It has to see the files that are checked."
        )
    return handle(request)


@cache
def _loaded(file: str) -> list[Case]:
    return load(Path(file))


def _run(case: Case, request: Request) -> Result:
    started = time.perf_counter()
    outcome, text, page, reports = "passed", "", "", []
    try:
        reports = [_first(case)]
        if reports[0] and case.order == 2:
            reports += _second(case)
        reports = [replace(r, reproduce=f"covector check {shlex.quote(str(request))}") for r in reports]
        worst = next((report for report in reports if not report), None)
        if worst is not None:
            outcome, text = str(worst.outcome.value), str(worst)
        if request.pages:
            page = _page(worst or reports[-1], request)
    except Exception as error:
        outcome, text = "raised", user_traceback(error)
        if is_out_of_memory(error):
            text = f"the case ran out of memory\n{text}"
    seconds = time.perf_counter() - started
    return Result(request.file, case.name, outcome, seconds, text, "", tuple(reports), page)


def _first(case: Case) -> Report:
    """The report on the case itself: on a kernel beside its reference, or on a derivative."""
    if case.reference is None:
        return check(case.function, case.arguments(), case.kwargs, seed=case.seed, **case.options)
    return check_kernel(
        case.function, case.reference, case.arguments(), case.kwargs, seed=case.seed, **case.options
    )


def _second(case: Case) -> list[Report]:
    """The report on the second derivative, if its check did not pass."""
    known = inspect.signature(gradgradcheck).parameters
    options = {name: value for name, value in case.options.items() if name in known}
    function = case.function if not case.kwargs else _with_keywords(case)
    try:
        gradgradcheck(function, case.arguments(), seed=case.seed, **options)
    except GradcheckError as error:
        return [error.report]
    return []


def _with_keywords(case: Case) -> Any:
    def function(*args: Any) -> Any:
        return case.function(*args, **case.kwargs)

    function.__name__ = case.name
    return function


def _page(report: Report, request: Request) -> str:
    """The name of the page that shows a report; none if it could not be written."""
    name = f"{stem_of(str(request))}.html"
    folder = Path(request.pages or "")
    try:
        write_page(folder, name, report, str(request))
    except StorageError as error:
        with escaping(sys.stdout):
            print(error)  # the verdict stands, and is shown with this
        return ""
    return name
