"""Torch's remarks on batching rules that it misses, kept back while a check runs."""

from __future__ import annotations

import re
import warnings
from threading import Lock
from typing import Any

from covector._engine.batch import show_remarks

_REMARK = ("ignore", re.compile("There is a performance drop"), Warning, None, 0)
_lock = Lock()
_inside = 0


class quiet:  # noqa: N801 - it is used as a function
    """Without these remarks, in any number of threads; `warnings.catch_warnings` is made for one."""

    def __enter__(self) -> None:
        global _inside
        with _lock:
            if _inside == 0:
                # What `warnings.filterwarnings` would do, without compiling the expression.
                warnings.filters.insert(0, _REMARK)  # type: ignore[attr-defined]
                show_remarks(False)  # those on registered operators are no warnings of Python's
            _inside += 1

    def __exit__(self, *exception: Any) -> None:
        global _inside
        with _lock:
            _inside -= 1
            if _inside == 0:
                show_remarks(True)
                if _REMARK in warnings.filters:
                    warnings.filters.remove(_REMARK)  # type: ignore[attr-defined]
