"""Structures: what the arguments of a plan look like, and what is wrong with others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covector._tree import Arguments, describe
from covector.errors import ArgumentValueError, Caller


@dataclass(frozen=True)
class Structure:
    """The leaves of all arguments, each by its name and what it is, and which are differentiated by."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    chosen: tuple[int, ...]
    # What a call is compared with. No part of what makes structures equal: names and kinds say the same.
    facts: tuple[Any, ...] = field(compare=False)

    @classmethod
    def of(cls, arguments: Arguments, function: Any) -> Structure:
        """The structure of a call."""
        whole = arguments.at(arguments.leaves)
        whole.select(whole.slots, single=False)
        names, kinds = tuple(whole.paths(function)), tuple(map(_kind, arguments.leaves))
        return cls(names, kinds, tuple(arguments.chosen), _facts(arguments))

    def fits(self, arguments: Arguments) -> bool:
        """Whether another call looks the same: the pattern was found for this one."""
        return _facts(arguments) == self.facts

    def refusal(self, caller: Caller, arguments: Arguments) -> ArgumentValueError:
        """What is wrong with a call that does not look the same."""
        given = Structure.of(arguments, caller.function)
        differs = [
            i for i, (one, other) in enumerate(zip(given.kinds, self.kinds, strict=False)) if one != other
        ]
        if given.facts[:2] == self.facts[:2] and differs:
            first = differs[0]
            return ArgumentValueError(
                f"{caller}: the plan was made for {self.names[first]} with {self.kinds[first]}, got "
                f"{given.kinds[first]}. Make a plan for these arguments."
            )
        trees = ", ".join(describe(slot.spec) for slot in arguments.slots)
        return ArgumentValueError(
            f"{caller}: the plan was made for the leaves {', '.join(self.names)}, got a call with "
            f"{', '.join(given.names) or 'none'}, in {trees}. Make a plan for these arguments."
        )


def _facts(arguments: Arguments) -> tuple[Any, ...]:
    """What two calls of one structure have in common: where trees stand, what is chosen, and every leaf."""
    leaves = [
        (leaf.shape, leaf.dtype, leaf.device, leaf.layout) if isinstance(leaf, Tensor) else repr(leaf)
        for leaf in arguments.leaves
    ]
    return arguments.slots, list(arguments.chosen), leaves


def _kind(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        layout = "" if leaf.layout is torch.strided else f", {leaf.layout}"
        return f"shape {tuple(leaf.shape)}, {leaf.dtype}, {leaf.device}{layout}"
    return f"the value {leaf!r}"
