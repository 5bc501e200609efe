"""Verdicts without what a report says about them."""

from collections.abc import Callable

import pytest

from covector import api


@pytest.fixture
def unexplained(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Once it is called, failures are not explained, which takes half of the time of a check that fails."""
    return lambda: monkeypatch.setattr(api, "_explained", lambda run, findings: findings)
