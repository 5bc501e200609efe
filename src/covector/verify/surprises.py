"""What a function may turn out to be while it is evaluated."""

from __future__ import annotations


class Impure(Exception):
    """The function gives another value for the same input."""

    def __init__(self, where: str, draws: bool) -> None:
        super().__init__(where, draws)
        self.where = where
        self.draws = draws


class NeedsGraph(Exception):
    """The function looks at its graph, so that it has to be recorded also where only its values are asked."""


class NotBatchable(Exception):
    """The function can be evaluated at one point at a time only, and a batch was asked for."""
