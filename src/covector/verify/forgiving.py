"""What raises while a failure is explained costs the report an explanation, never the user the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# Whether it is raised all the same; the tests want to see it.
RAISING = False


@contextmanager
def forgiving() -> Iterator[None]:
    """Leave the block where it raises: by then the verdict stands, and only its explanation is lost."""
    try:
        yield
    except Exception:
        if RAISING:
            raise
