"""Forward mode: run a function once with tangents attached.

The outermost push of a program opens a dual level and nothing else; a push inside another transform,
or inside somebody's dual level, takes a nesting level, so that tangents are never confused.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covector._chart import is_strided, overlaps
from covector._engine import levels
from covector._engine.graph import written_out
from covector._engine.messages import rejects_tangent
from covector._engine.reverse import Run
from covector._engine.right import right_rules
from covector._engine.twice import NestedRules
from covector._tree import Evaluation
from covector.errors import UnsupportedError

_make_dual = torch._VF._make_dual
_unpack_dual = torch._VF._unpack_dual


class Pushed(NamedTuple):
    """One run of a function, and the tangent of each output; None where an output has none."""

    evaluation: Evaluation
    tangents: list[Tensor | None]

    def filled(self) -> list[Tensor]:
        """The tangents, with zeros where an output does not depend on the inputs."""
        return [
            torch.zeros_like(output) if tangent is None else tangent
            for output, tangent in zip(self.evaluation.outputs, self.tangents, strict=True)
        ]


def push(
    run: Run,
    leaves: Sequence[Any],
    chosen: Sequence[int],
    tangents: Sequence[Tensor],
    *,
    recorded: bool = True,
) -> Pushed:
    """J u: run the function on these leaves, the chosen ones moving along the tangents.

    Not `recorded`, the result is not to be differentiated again, and no rule is put in place of a wrong one:
    for a check, which is to find it.
    """
    with levels.EagerTensors():
        inner = [_ordinary(leaf) for leaf in leaves]
        again = levels.dual_level_open() or levels.recording() or _recorded((*inner, *tangents))
        on_level = again or levels.active()
        nested = again or (on_level and levels.nested_batches())
        looked = partial(_looked_at, run, nested) if nested or recorded else run
        pushed = (_push_on_level if on_level else _push_plain)(looked, list(inner), chosen, tangents)
        if on_level or not recorded or not _recorded(pushed.tangents):
            return pushed
        # The function captures a tensor that requires grad. Forward formulas may work in place on plain
        # tensors, which reverse mode could not go through; on a level they do not.
        looked = partial(_looked_at, run, True)
        return _push_on_level(looked, inner, chosen, tangents)


def _looked_at(run: Run, nested: bool, leaves: list[Any]) -> Evaluation:
    """A run in which no wrong rule is used."""
    with right_rules():
        if not nested:
            return run(leaves)
        with NestedRules():
            return run(leaves)


def raised_by_rule(error: BaseException) -> bool:
    """Whether this came out of the rule for tangents of a custom Function, or torch refused what it gave."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return rejects_tangent(error) or any(map(_is_rule, frames))


def _is_rule(frame: FrameType) -> bool:
    """Whether this is a run of the rule for tangents of a custom Function, which is given its context."""
    code = frame.f_code
    if code.co_name != "jvp" or code.co_argcount == 0:
        return False
    return isinstance(frame.f_locals.get(code.co_varnames[0]), torch.autograd.function.FunctionCtx)


def nobody_records(leaves: Sequence[Any]) -> bool:
    """Whether no transform around, no dual level and no graph takes part in what is done with these."""
    return not (levels.active() or levels.dual_level_open() or _recorded(leaves))


def _recorded(leaves: Sequence[Any]) -> bool:
    """Whether reverse mode records what is computed with these."""
    if torch.is_grad_enabled():
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                return True
    return False


def _push_plain(run: Run, leaves: list[Any], chosen: Sequence[int], tangents: Sequence[Tensor]) -> Pushed:
    with levels.DualLevel():
        for index, tangent in zip(chosen, tangents, strict=True):
            leaves[index] = _dual(leaves[index], tangent)
        return _parted(run(leaves), None)


def _parted(evaluation: Evaluation, level: int | None) -> Pushed:
    """What was run in forward mode with its tangents apart, as it may leave the level, if it was on one."""
    found, spec, aux, aux_spec = evaluation
    outputs: list[Tensor] = []
    tangents: list[Tensor | None] = []
    for output in found:
        # Others than strided tensors have no tangent.
        primal, tangent = _unpack_dual(output, level=0) if is_strided(output) else (output, None)
        if level is not None:
            primal = levels.unwrap(primal, level)
            tangent = None if tangent is None else levels.unwrap(tangent, level)
        outputs.append(primal)
        tangents.append(tangent if tangent is None else written_out(tangent))
    if aux:
        aux = [_left(leaf, level) if isinstance(leaf, Tensor) else leaf for leaf in aux]
    return Pushed(Evaluation(outputs, spec, aux, aux_spec), tangents)


def _left(leaf: Tensor, level: int | None) -> Tensor:
    """The tensor as it may leave the level, if any: without its tangent, which a thread may keep alive."""
    primal, tangent = _unpack_dual(leaf, level=0)
    primal = leaf if tangent is None else primal
    return primal if level is None else levels.unwrap(primal, level)


def _dual(leaf: Tensor, tangent: Tensor) -> Tensor:
    """The leaf with its tangent; a copy of a leaf whose elements share memory, which a tangent's may not."""
    try:
        return _make_dual(leaf, tangent, level=0)
    except RuntimeError as error:
        if not is_strided(leaf):
            raise UnsupportedError(
                f"torch has no tangents of tensors with layout {leaf.layout}. Differentiate by a strided "
                "one, and convert it inside the function; or use reverse mode."
            ) from error
        if not overlaps(leaf):
            raise
        return _make_dual(leaf.clone(), tangent, level=0)


def _push_on_level(run: Run, leaves: list[Any], chosen: Sequence[int], tangents: Sequence[Tensor]) -> Pushed:
    """The push on a nesting level."""
    inner, moving = list(leaves), dict(zip(chosen, tangents, strict=True))
    with levels.JvpLevel() as level:
        number = level.number
        for index, leaf in enumerate(inner):
            if index in moving:
                # What works in place on both needs both in the same batches.
                inner[index] = _dual(leaf, levels.in_batches_of(moving[index], (leaf,)))
            elif isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                # One that is not strided stays as it is, as a tensor that the function captures does.
                inner[index] = levels.wrap(leaf, number)
        return _parted(run(inner), number)


def _ordinary(leaf: Any) -> Any:
    """The leaf, copied if it was made under inference mode and so keeps no version counter."""
    return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf
