"""Structures: what the arguments of a plan look like, and what is wrong with others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from covector._tree import Arguments, Spec, describe
from covector.errors import ArgumentValueError, Caller


@dataclass(frozen=True)
class Structure:
    """The leaves of all arguments, each by its name and what it is, and which are differentiated by."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    chosen: tuple[int, ...]
    # No part of what makes structures equal: the names of leaves say the same.
    trees: tuple[Spec, ...] = field(compare=False)

    @classmethod
    def of(cls, arguments: Arguments, function: Any) -> Structure:
        """The structure of a call."""
        whole = arguments.at(arguments.leaves)
        whole.select(whole.slots, single=False)
        names = whole.paths(function)
        return cls(
            tuple(names), tuple(map(_kind, arguments.leaves)), tuple(arguments.chosen), _trees(arguments)
        )

    def check(self, caller: Caller, arguments: Arguments) -> None:
        """Another call has to look the same: the pattern was found for this one."""
        if _trees(arguments) == self.trees and tuple(arguments.chosen) == self.chosen:
            kinds = tuple(map(_kind, arguments.leaves))
            if kinds == self.kinds:
                return
            names = self.names
            wrong = next(i for i, kind in enumerate(kinds) if kind != self.kinds[i])
            raise ArgumentValueError(
                f"{caller}: the plan was made for {names[wrong]} with {self.kinds[wrong]}, got "
                f"{kinds[wrong]}. Make a "
                "plan for these arguments."
            )
        given = ", ".join(describe(slot.spec) for slot in arguments.slots)
        raise ArgumentValueError(
            f"{caller}: the plan was made for the leaves {', '.join(self.names)}, got a call with "
            f"{len(arguments.leaves)} leaves in {given}. Make a plan for these arguments."
        )


def _trees(arguments: Arguments) -> tuple[Spec, ...]:
    return tuple(slot.spec for slot in arguments.slots)


def _kind(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"shape {tuple(leaf.shape)}, {leaf.dtype}, {leaf.device}"
    return f"the value {leaf!r}"
