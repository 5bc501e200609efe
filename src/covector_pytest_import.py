"""Waiting for torch: the pytest plugin acts when a test imports it, and does not load it before.

Outside the package for the same reason as the plugin.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any


class when_imported:  # noqa: N801 - used as a context manager, and read as one
    """Inside, call a function once torch has been imported: at once if it is there already.

    It waits for the end of the outermost import: where covector is imported first, torch is ready before
    covector is.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act
        self.waits = {"torch", "covector"}
        self.depth = 0

    def __enter__(self) -> None:
        if "torch" in sys.modules:
            self.act()
        else:
            sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As a finder: the module as others find it, with a word to us before and after it runs."""
        if name not in self.waits:
            return None
        self.waits.remove(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._run(run, module)  # type: ignore[method-assign]
        return spec

    def _run(self, run: Callable[[Any], None], module: Any) -> None:
        self.depth += 1
        try:
            run(module)
        finally:
            self.depth -= 1
        if self.depth == 0:
            self.waits.clear()
            self.__exit__()
            self.act()
