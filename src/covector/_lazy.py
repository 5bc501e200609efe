"""What is found out once: attributes computed when they are first asked for, and facts about functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from functools import cached_property as lazy
else:

    class lazy:  # noqa: N801 - it is used as a function
        """`functools.cached_property` without the lock that it takes in Python 3.11, on each first access."""

        def __init__(self, function: Any) -> None:
            self._function = function
            self.__doc__ = function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._function(instance)
            return value


class Remembered:
    """Functions of which something was found out, for as long as they live. They need not be hashable."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, ref[Any]] = {}

    def __contains__(self, function: Any) -> bool:
        return id(function) in self._known

    def add(self, function: Any) -> None:
        """Remember this one, if it can be referred to weakly."""
        key, known = id(function), self._known
        try:
            known[key] = ref(function, lambda _: known.pop(key, None))
        except TypeError:
            return


__all__ = ["Remembered", "lazy"]
