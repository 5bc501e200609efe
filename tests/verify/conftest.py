"""Verdicts without what a report says about them."""

import pytest

from covector import api
from covering import THOROUGH


@pytest.fixture
def explained() -> None:
    """For tests that read what a report says about a failure, among others that do not."""


@pytest.fixture
def unexplained(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are not explained, which is half of the work of a check that fails; in the sweep they are."""
    if not THOROUGH and "explained" not in request.fixturenames:
        monkeypatch.setattr(api, "_explained", lambda run, findings: findings)
