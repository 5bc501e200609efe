"""The pytest plugin: `pytest --covector` has covector answer the gradchecks of an existing suite.

It stands outside the package and loads neither torch nor covector before a test does.
"""

from __future__ import annotations

import argparse
import inspect
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from covector_pytest_import import when_imported
from covector_pytest_summary import EXPECTED, Accepted, Check, counted, summary, write_differences

OUTSIDE = "(outside a test)"
WAYS = {"--covector": "answer", "--covector=compare": "compare"}
SESSION = pytest.StashKey["Session"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; a value of its own would make `--covector` swallow the path that follows it."""
    group = parser.getgroup("covector", "derivative checks by covector")
    group.addoption(
        *WAYS,
        dest="covector",
        action=Way,
        help="answer every torch.autograd.gradcheck and gradgradcheck by covector; with =compare, run "
        "covector beside torch, and report where the verdicts differ and the ratio of times: the tests end "
        "as torch has them",
    )
    group.addoption(
        "--covector-report",
        metavar="DIR",
        help="write a page for each check that did not pass, and an index, into this folder; it implies "
        "--covector",
    )
    group.addoption(
        "--covector-accept",
        metavar="FILE",
        help="with --covector=compare: verdicts that differ and are listed in this file are accepted",
    )
    group.addoption(
        "--covector-differences",
        metavar="FILE",
        help="with --covector=compare: write the verdicts that differ into this file, for --covector-accept",
    )


class Way(argparse.Action):
    """One option for all ways to write it, so that an error about one of them lists the others."""

    def __init__(self, option_strings: list[str], dest: str, **keywords: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **keywords)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Keep what the way stands for."""
        setattr(namespace, self.dest, WAYS[option_string or "--covector"])


def pytest_configure(config: pytest.Config) -> None:
    """Begin the session of this run."""
    config.addinivalue_line(
        "markers",
        "covector(**keywords): keywords for the derivative checks of a test (atol, fast_mode, ...), where "
        "the call itself does not give them.",
    )
    if config.option.covector and "compare" in config.args and not Path("compare").exists():
        raise pytest.UsageError("there is no file compare; to compare, write --covector=compare.")
    _check_lists(config)
    if config.option.covector_report:
        config.option.covector = config.option.covector or "answer"
        # Workers of pytest-xdist get the options from here, and may run elsewhere.
        folder = config.invocation_params.dir / config.option.covector_report
        config.option.covector_report = str(folder.absolute())
        if not hasattr(config, "workerinput"):
            _prepare(folder)
    session = Session(config)
    config.stash[SESSION] = session
    config.pluginmanager.register(session, "covector-session")
    session.start()


def _check_lists(config: pytest.Config) -> None:
    """Refuse lists of differences that cannot be read, or not be written, before any test runs."""
    read, written = config.option.covector_accept, config.option.covector_differences
    if (read or written) and config.option.covector != "compare":
        raise pytest.UsageError(
            f"--covector-{'accept' if read else 'differences'} is about verdicts that differ, which "
            "--covector=compare finds."
        )
    try:
        if read:
            Accepted.listed_in(config.invocation_params.dir / read)
    except FileNotFoundError as error:
        raise pytest.UsageError(
            f"--covector-accept={read}: there is no such file. --covector-differences={read} writes the "
            "verdicts that differ into it."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise pytest.UsageError(f"--covector-accept={read}: {error}") from error
    path = config.invocation_params.dir / (written or "")
    if written and (os.path.isdir(path) or not os.path.isdir(path.parent)):
        what = "it is a folder" if os.path.isdir(path) else f"there is no folder {path.parent}"
        raise pytest.UsageError(f"--covector-differences={written}: {what}.")


def _prepare(folder: Path) -> None:
    """Make the folder of the pages, and remove those of an earlier run."""
    marker = '<meta name="generator" content="covector">'
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.html"):
            if marker in path.read_text(encoding="utf-8", errors="replace")[:2000]:
                path.unlink()
    except OSError as error:
        raise pytest.UsageError(
            f"--covector-report={folder}: pages cannot be written there: {error}"
        ) from error


def pytest_unconfigure(config: pytest.Config) -> None:
    """Put everything back."""
    if session := config.stash.get(SESSION, None):
        session.stop()


@pytest.fixture
def gradcheck(request: pytest.FixtureRequest) -> Callable[..., bool]:
    """`covector.gradcheck`, counted in the summary, with the keywords of `@pytest.mark.covector(...)`."""
    return request.config.stash[SESSION].answering("gradcheck", compare=False)


@pytest.fixture
def gradgradcheck(request: pytest.FixtureRequest) -> Callable[..., bool]:
    """`covector.gradgradcheck`, counted in the summary, with the keywords of the marker."""
    return request.config.stash[SESSION].answering("gradgradcheck", compare=False)


@pytest.fixture
def kernelcheck(request: pytest.FixtureRequest) -> Callable[..., bool]:
    """`covector.kernelcheck`, counted in the summary, with the keywords of the marker."""
    return request.config.stash[SESSION].answering("kernelcheck", compare=False)


@dataclass(frozen=True)
class Call:
    """What a test asked for: `gradcheck` or `gradgradcheck`, with these arguments."""

    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        from covector.errors import Caller

        function = self.args[0] if self.args else self.kwargs.get("func", self.kwargs.get("kernel"))
        return str(Caller(self.verb, function)) if callable(function) else self.verb


@dataclass(frozen=True)
class Trial:
    """How a call of one checker ended: with a value, or with an error."""

    value: Any
    error: Exception | None
    seconds: float

    @property
    def report(self) -> Any:
        """The report that the error carries, if it does."""
        return getattr(self.error, "report", None)

    @property
    def outcome(self) -> str:
        """One word; for an error that is not a verdict, its class."""
        from torch.autograd.gradcheck import GradcheckError

        if self.error is None:
            return "passed" if self.value else "failed"
        if self.report is not None:
            return str(self.report.outcome.value)
        return "failed" if isinstance(self.error, GradcheckError) else f"raised {type(self.error).__name__}"


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Session:
    """One run of pytest: what is redirected, the test that runs now, and the checks so far."""

    config: pytest.Config
    item: pytest.Item | None = None
    fresh: list[tuple[Check, Exception | None]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    pages: list[str] = field(default_factory=list)
    reports: list[Any] = field(default_factory=list)
    """Those of `covector.check` in the test that runs that did not pass."""
    undo: ExitStack = field(default_factory=ExitStack)
    count: int = 0

    def start(self) -> None:
        """Have torch's checks answered as soon as there is a torch."""
        if self.config.option.covector:
            self.undo.enter_context(when_imported(self._redirect))

    def stop(self) -> None:
        """Put torch's functions back."""
        self.undo.close()

    def _redirect(self) -> None:
        try:
            from covector import api, compat
        except ImportError as error:  # a torch that it does not work with
            raise pytest.UsageError(f"--covector: {error}") from error
        from covector.errors import UnsupportedError

        api.seen_by.append(self._see)
        self.undo.callback(api.seen_by.remove, self._see)
        compare = self.config.option.covector == "compare"
        doors = {
            module: tuple(self.answering(ours.__name__, compare=compare) for ours in functions)
            for module, functions in compat.CHECKS.items()
        }
        try:
            self.undo.enter_context(compat.redirected(doors))
        except UnsupportedError as error:
            raise pytest.UsageError(f"--covector: {error}") from error

    def answering(self, verb: str, *, compare: bool) -> Callable[..., bool]:
        """The function that answers for `gradcheck` or `gradgradcheck` during this session."""
        import covector

        decide = self._compare if compare else self._answer

        def answer(*args: Any, **kwargs: Any) -> bool:
            __tracebackhide__ = True
            return decide(Call(verb, args, kwargs))

        answer.__name__ = verb
        answer.__doc__ = getattr(covector, verb).__doc__
        return answer

    def _answer(self, call: Call) -> bool:
        """What covector says."""
        __tracebackhide__ = True
        ours = self._ours(call)
        self._record(call, ours)
        raises = {**self._keywords(call.verb), **call.kwargs}.get("raise_exception", True)
        if ours.report is not None and not raises:
            return False
        return conclude(ours)

    def _compare(self, call: Call) -> bool:
        """What torch says, with covector beside it; they take turns at going first."""
        __tracebackhide__ = True
        self.count += 1
        if self.count % 2:
            ours, theirs = self._ours(call), self._theirs(call)
        else:
            theirs, ours = self._theirs(call), self._ours(call)
        self._record(call, ours, theirs)
        return conclude(theirs)

    def _ours(self, call: Call) -> Trial:
        import covector

        # It is made to raise, because the error carries the report.
        keywords = {**self._keywords(call.verb), **call.kwargs, "raise_exception": True}
        return self._named(attempt(getattr(covector, call.verb), call.args, keywords))

    def _named(self, trial: Trial) -> Trial:
        """The trial, in whose report the way to repeat the check is the test: its functions are its own."""
        if trial.report is None or trial.error is None or self.item is None:
            return trial
        file, *names = self.item.nodeid.split("::")
        file = os.path.relpath(self.config.rootpath / file, self.config.invocation_params.dir)
        command = ["pytest", "::".join([file, *names]), *(["--covector"] * bool(self.config.option.covector))]
        report = replace(trial.report, reproduce=shlex.join(command))
        error = type(trial.error)(str(report), report)
        error.__cause__ = trial.error.__cause__
        return replace(trial, error=error)

    def _theirs(self, call: Call) -> Trial:
        from covector.compat import peer

        function = peer("torch.autograd.gradcheck", call.verb)
        known = inspect.signature(function).parameters
        marked = {name: value for name, value in self._keywords(call.verb).items() if name in known}
        return attempt(function, call.args, {**marked, **call.kwargs})

    def _keywords(self, verb: str) -> dict[str, Any]:
        """What the markers of the test that runs now say; the nearest one wins."""
        markers = list(self.item.iter_markers("covector")) if self.item else []
        if not markers:
            return {}
        merged: dict[str, Any] = {}
        for marker in reversed(markers):
            merged |= marker.kwargs
        known = _takes(verb, merged, markers)
        return {name: value for name, value in merged.items() if name in known}

    def _record(self, call: Call, ours: Trial, theirs: Trial | None = None) -> None:
        check = Check(
            test=self.item.nodeid if self.item else OUTSIDE,
            what=str(call),
            outcome=ours.outcome,
            seconds=ours.seconds,
            text="" if ours.error is None else str(ours.error),
            page=self._page(ours.report),
            hint=self._hint(ours.report),
            peer_outcome="" if theirs is None else theirs.outcome,
            peer_seconds=0.0 if theirs is None else theirs.seconds,
        )
        self.fresh.append((check, ours.error))

    def _see(self, report: Any) -> None:
        if report.verb != "check":  # called by covector's own name, it returned False
            self._record_report(report, None)
        elif not report:
            self.reports.append(report)

    def _record_raised(self, error: BaseException | None) -> None:
        """A check that the test called by covector's own name is known by the error it ended with."""
        report = getattr(error, "report", None)
        loaded = sys.modules.get("covector.errors")
        if not self.config.option.covector or loaded is None or report is None:
            return
        if isinstance(error, loaded.GradcheckError) and all(error is not known for _, known in self.fresh):
            self._record_report(report, error)

    def _record_report(self, report: Any, error: Exception | None) -> None:
        """A report without a call of ours, and the error that carries it, if one does."""
        check = Check(
            test=self.item.nodeid if self.item else OUTSIDE,
            what=f"{report.verb}({report.function})",
            outcome=str(report.outcome.value),
            seconds=report.seconds,
            text=str(report),
            page=self._page(report),
            hint=self._hint(report),
        )
        self.fresh.append((check, error))

    def _hint(self, report: Any) -> str:
        """What is likely wrong, for the index."""
        if not self.config.option.covector_report:
            return ""
        from covector._index import hint_of

        return hint_of(report)

    def _page(self, report: Any) -> str:
        """The name of the page written for a report, if pages are wanted."""
        folder = self.config.option.covector_report
        if not folder or report is None:
            return ""
        from covector._index import stem_of, write_page
        from covector.errors import StorageError

        # A test runs in one worker; what runs outside of tests may run in each.
        worker = getattr(self.config, "workerinput", {}).get("workerid", "")
        test = self.item.nodeid if self.item else f"outside {worker}"
        stem = stem_of(test)
        self.pages.append(stem)
        name = f"{stem}-{self.pages.count(stem)}.html"
        try:
            write_page(Path(folder), name, report, test)
        except StorageError as error:  # a test does not fail for its page
            warnings.warn(str(error), stacklevel=1)
            return ""
        return name

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Checks belong to the test that runs."""
        self.item = item
        try:
            return (yield)
        finally:
            self.item = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Checks travel with the report of their test, from workers too; failures are shown there."""
        report: Any = yield
        shown = call.excinfo.value if call.excinfo else None
        self._record_raised(shown)
        for seen in self.reports if shown is not None else ():
            self._record_report(seen, None)  # the test may have failed for it: it was asserted, say
        self.reports.clear()
        report.covector = [asdict(check) for check, _ in self.fresh]
        for check, error in self.fresh:
            if check.text and (error is None or error is not shown):
                report.sections.append((f"covector: {check.what}", check.text))
        self.fresh.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count, in the process that people look at."""
        self.checks += [Check(**data) for data in getattr(report, "covector", [])]
        if report.when == "call" or report.outcome != "passed":
            expected = {"skipped": EXPECTED, "passed": "passed in spite of xfail"}
            in_words = expected if hasattr(report, "wasxfail") else {}
            self.ended[report.nodeid] = in_words.get(report.outcome, report.outcome)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Write the index; a worker leaves that to its controller."""
        self.checks += [check for check, _ in self.fresh]
        self.fresh.clear()
        folder = self.config.option.covector_report
        if folder and not hasattr(self.config, "workerinput"):
            from covector._index import Line, write_index
            from covector.errors import StorageError

            lines = [
                Line(c.test, c.what, c.outcome, c.seconds, c.text, c.page, c.hint, self.ended.get(c.test, ""))
                for c in self.checks
                if c.outcome != "passed"
            ]
            try:
                write_index(Path(folder), f"{counted(len(lines), 'check')} did not pass", lines)
            except StorageError as error:
                warnings.warn(str(error), stacklevel=1)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """What was checked, in how much time."""
        option = self.config.option
        if not (self.checks or option.covector):
            return
        terminalreporter.write_sep("=", "covector")
        listed = self.config.option.covector_accept
        accepted = Accepted.listed_in(self.config.invocation_params.dir / listed if listed else None)
        for line in summary(self.checks, self.ended, accepted):
            terminalreporter.write_line(line)
        if option.covector_differences:
            path = self.config.invocation_params.dir / option.covector_differences
            terminalreporter.write_line(write_differences(path, self.checks))
        if option.covector_report:
            terminalreporter.write_line(f"pages: {Path(option.covector_report) / 'index.html'}")


def attempt(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Trial:
    """Call, time, and keep the error if there is one."""
    value, error = None, None
    started = time.perf_counter()
    try:
        value = function(*args, **kwargs)
    except Exception as caught:
        error = caught
    return Trial(value, error, time.perf_counter() - started)


def conclude(trial: Trial) -> bool:
    """The value of a call, or its error; a verdict, ours or torch's, is raised without the way it came."""
    __tracebackhide__ = True
    if trial.error is None:
        return trial.value
    from torch.autograd.gradcheck import GradcheckError

    is_verdict = trial.report is not None or isinstance(trial.error, GradcheckError)
    raise trial.error.with_traceback(None) if is_verdict else trial.error


# What a call gives itself, so that a marker cannot.
_POSITIONAL = {"func", "inputs", "kernel", "reference"}


def _takes(verb: str, keywords: dict[str, Any], markers: list[pytest.Mark]) -> set[str]:
    """The keywords of a checker; what neither of them takes, and what has no name, is a mistake."""
    import covector

    checkers = (covector.gradcheck, covector.gradgradcheck, covector.kernelcheck)
    names = {checker.__name__: set(inspect.signature(checker).parameters) for checker in checkers}
    unknown = (set(keywords) - set().union(*names.values())) | (set(keywords) & _POSITIONAL)
    if unknown or any(marker.args for marker in markers):
        what = ", ".join(sorted(unknown)) or "a value without a name"
        pytest.fail(
            f"@pytest.mark.covector got {what}; it takes keywords of covector.gradcheck, gradgradcheck "
            "and kernelcheck, such as atol=1e-4 or fast_mode=True.",
            pytrace=False,
        )
    return names[verb]
