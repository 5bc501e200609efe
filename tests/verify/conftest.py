"""Verdicts without what a report says about them."""

from collections.abc import Iterator

import pytest

from covector import api
from covering import THOROUGH


@pytest.fixture
def explained() -> None:
    """For tests that read what a report says about a failure, among others that do not."""


@pytest.fixture
def unexplained(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are not explained, which is half of the work of a check that fails; in the sweep they are."""
    if "explained" not in request.fixturenames:
        leave_unexplained(monkeypatch)


@pytest.fixture(scope="module")
def all_unexplained() -> Iterator[None]:
    """The same for a whole module, because Hypothesis takes no fixture of a single test."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        leave_unexplained(monkeypatch)
        yield


def leave_unexplained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts are reported as they are found."""
    if not THOROUGH:
        monkeypatch.setattr(api, "_explained", lambda run, findings: findings)
