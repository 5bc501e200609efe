"""What a check says nothing of: tensors that do not require grad, and outputs that have no graph."""

from __future__ import annotations

from covector.verify.leaves import is_differentiable
from covector.verify.problem import Problem

# So many names are listed.
_FEW = 3


def not_by(problem: Problem) -> str:
    """By which tensors a derivative was checked, if others do not require grad; else nothing."""
    if problem.asked is not problem:
        return ""
    inputs, given = problem.input_names, problem.arguments.named(problem.caller.function)
    others = [
        f"`{name}`"
        for name, leaf in given.items()
        if name not in inputs and is_differentiable(leaf) and not leaf.requires_grad
    ]
    if not others:
        return ""
    by = ", ".join(f"`{name}`" for name in inputs) if len(inputs) <= _FEW else f"{len(inputs)} tensors"
    require = "does not" if len(others) == 1 else "do not"
    more = "" if len(others) <= _FEW else f" and {len(others) - _FEW} others"
    return f"; by {by}, not by {', '.join(others[:_FEW])}{more}, which {require} require grad"


def not_of(problem: Problem) -> str:
    """Which outputs have no graph, where others have one, or are numbers of Python's; else nothing."""
    if problem.asked is not problem:
        return ""
    text = ""
    if named := problem.graphless:
        text += f"; not of {', '.join(named[:_FEW])}, which {'has' if len(named) == 1 else 'have'} no graph"
    if named := problem.numbers_returned:
        what = "a number without a graph" if len(named) == 1 else "numbers without a graph"
        text += f"; not of {', '.join(named[:_FEW])}, {what}, as .item() gives"
    return text
