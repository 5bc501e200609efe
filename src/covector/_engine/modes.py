"""Dispatch modes and tracing, in several threads at once.

While a dispatch mode is on, or a program is traced, torch says so by flags of the whole process. It sets
them, and later puts back what it found. Of two threads, the one that leaves last found what the other had
set: the flags stay set, and `torch.compile` may do nothing for the rest of the process. So the first that
enters here notes the flags, and the last that leaves puts them back.
"""

from __future__ import annotations

from threading import Lock, RLock
from typing import Any, Self

from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from covector._engine.versions import USED_BY_MODES, is_there

_FLAGS = [name for name in vars(_python_dispatch) if name.startswith("_is_in_")]
# Newer releases keep a copy of one of them for the guards of compiled functions.
_HAS_COPY = all(map(is_there, USED_BY_MODES))

_lock = Lock()
_inside = 0
_before: dict[str, bool] = {}


class _Noted:
    """Inside, torch may set its flags; they are put back when nobody is inside any more."""

    def __enter__(self) -> None:
        global _inside, _before
        with _lock:
            if not _inside:
                _before = {name: getattr(_python_dispatch, name) for name in _FLAGS}
            _inside += 1

    def __exit__(self, *exception: Any) -> None:
        global _inside
        with _lock:
            _inside -= 1
            if not _inside:
                vars(_python_dispatch).update(_before)
                if _HAS_COPY:
                    _python_dispatch.set_is_in_mode_without_ignore_compile_internals(  # type: ignore[attr-defined]
                        _python_dispatch._is_in_any_mode_without_ignore_compile_internals
                    )


_NOTED = _Noted()


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that several threads may be in, each in its own instance."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not to be wrapped for the compiler, which would be loaded for that."""
        return False

    def __enter__(self) -> Self:
        _NOTED.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        _NOTED.__exit__()


class _Tracing:
    """Held by whoever traces, compiles or exports a program: one thread at a time.

    Those set further flags, which say that everything in the process is being compiled or exported.
    """

    def __init__(self) -> None:
        self._alone = RLock()

    def __enter__(self) -> None:
        self._alone.acquire()
        _NOTED.__enter__()

    def __exit__(self, *exception: Any) -> None:
        _NOTED.__exit__()
        self._alone.release()


TRACING = _Tracing()
