"""The rule of each operation, by its name; elementwise operations are known by torch's tag."""

from __future__ import annotations

from covector._engine.observe import Call
from covector.sparsity.rules import (
    blocks,
    elementwise,
    moves,
    planes,
    products,
    reductions,
    scans,
    scatters,
    windows,
)
from covector.sparsity.tracker import Rule

FAMILIES = (elementwise, moves, reductions, products, windows, planes, scans, blocks, scatters)

RULES: dict[str, Rule] = {name: rule for family in FAMILIES for name, rule in family.RULES.items()}


def rule_of(call: Call) -> Rule | None:
    """The rule for an operation; None if there is none."""
    rule = RULES.get(call.name)
    if rule is None and call.pointwise:
        return elementwise.elementwise
    return rule
