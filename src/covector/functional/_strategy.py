"""Which ways of computing a matrix may be asked for, and which exclude each other."""

from __future__ import annotations

from covector.errors import ExclusiveOptionsError, OptionError

STRATEGIES = ("reverse-mode", "forward-mode")


def check_strategy(
    verb: str, keyword: str, strategy: object, *, vectorize: bool, strict: bool, graph: bool
) -> None:
    """The strategy is known, and what else is asked for goes with it."""
    if strategy not in STRATEGIES:
        raise OptionError(
            f"functional.{verb}: {keyword} must be 'reverse-mode' or 'forward-mode', got {strategy!r}."
        )
    forward = strategy == "forward-mode"
    conflicts = (
        (forward and graph, "create_graph=True", f"{keyword}='forward-mode'"),
        (forward and strict, "strict=True", f"{keyword}='forward-mode'"),
        (forward and not vectorize, "vectorize=False", f"{keyword}='forward-mode'"),
        (strict and vectorize, "strict=True", "vectorize=True"),
    )
    for met, one, other in conflicts:
        if met:
            raise ExclusiveOptionsError(
                f"functional.{verb}: {one} and {other} exclude each other. Change one of the two."
            )
