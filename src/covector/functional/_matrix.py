"""Whole matrices: the Jacobian of a call as blocks, by output and input, asked for as the transforms ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from covector._chart import Chart, is_strided
from covector._engine import reverse
from covector._images import Directions
from covector._linear import Pullback
from covector._tree import Evaluation
from covector.errors import ExclusiveOptionsError, OptionError
from covector.functional._door import Call, Tensors, check_reached
from covector.transforms._batch import Blocks
from covector.transforms._complex import RealForm
from covector.transforms._derive import derive
from covector.transforms._question import Problem, Request

# A batch of directions holds at most this many numbers of input and output together.
_NUMBERS = 2**22


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


def _request(mode: str, randomness: str, numbers: int) -> Request:
    """By one mode, in batches of directions that have this many numbers each."""
    return Request(None, None, False, max(1, _NUMBERS // max(1, numbers)), randomness, mode)


def by_columns(call: Call, run: reverse.Run) -> tuple[Evaluation, Blocks]:
    """One run of the function, and its Jacobian by forward mode; a complex one is d/dz."""
    form = RealForm(call.caller, call.arguments(), run, samples=False)
    problem = Problem(call.caller, form.arguments, form.run)
    # A function that draws has one Jacobian for each draw: all columns belong to the same one.
    request = _request("forward", "same", Chart.of(call.inputs).size)
    derived = derive(problem, request)
    blocks, count = form.arranged(derived.flat(), 1, "holomorphic"), len(call.inputs)
    return derived.evaluation, [blocks[start : start + count] for start in range(0, len(blocks), count)]


class Rows(Pullback):
    """v -> J^T v through a recording; where a batch fails, the rows are made one by one, in silence.

    The original makes them one by one always, so nothing is lost that was promised.
    """

    _refuses_draws = False
    _batch_failures = (Exception,)

    def __init__(
        self, call: Call, recording: reverse.Recording, derivative: str = "", name: str = ""
    ) -> None:
        super().__init__(call.caller, recording, call.arguments())
        self._call, self._names = call, (derivative, name)

    def apply(self, direction: Tensors, *, keep: bool = True) -> Tensors:
        pulled = self._recording.reach(direction, keep=keep)
        if self._call.strict:
            check_reached(self._call, pulled, *self._names)
        return self._recording.filled(pulled)

    def matrix(self, over: Directions, **how: Any) -> Tensors:
        """The images of the basis; connected to the inputs where single images are, if that is asked for."""
        rows = super().matrix(over, **how)
        if self._call.create_graph and self._lost_graph(over, rows):
            return super().matrix(over, **{**how, "chunk_size": 1})
        return rows

    def _lost_graph(self, over: Directions, rows: Tensors) -> bool:
        """Whether a batch depends on nothing where a single row does: some batching rules drop an operand."""
        if all(stack.requires_grad for stack in rows) or over.size == 0:
            return False
        single = self._recording.pull([stack[0] for stack in over.basis(0, 1)])
        pairs = zip(single, rows, strict=True)
        return any(one.requires_grad and not stack.requires_grad for one, stack in pairs)

    def _lowered(self, reason: str) -> None:
        self.batching = self.batching.down("loop", reason)

    def blocks(self) -> Blocks:
        """The Jacobian."""
        outputs = self.evaluation.outputs
        count = sum(output.numel() for output in outputs)
        if count == 1 == len(outputs) and is_strided(outputs[0]):  # a plan would take longer
            row = self.apply([torch.ones_like(outputs[0])])
            return [[image.reshape((*outputs[0].shape, *image.shape)) for image in row]]
        inputs = sum(variable.numel() for variable in self._recording.variables)
        problem = Problem(self._caller, self._arguments, _never)
        return derive(problem, _request("reverse", "different", inputs + count), pullback=self).blocks


def by_rows(
    call: Call, recording: reverse.Recording, *, together: bool, derivative: str, name: Callable[[int], str]
) -> Blocks:
    """The Jacobian through a recording; `derivative` and `name` of an output say what `strict` refuses.

    `together` sends the rows of all outputs through the graph in one batch. Otherwise each output has
    its own batches: what is found about a block is about that output alone, and no zero cotangent meets
    an infinite slope of another output.
    """
    if together:
        parts = [Rows(call, recording)]
    else:
        count = len(recording.evaluation.outputs)
        parts = [Rows(call, recording.only(i), derivative, name(i)) for i in range(count)]
    return [list(call.handed_over(row)) for part in parts for row in part.blocks()]


def _never(leaves: list[Any]) -> Evaluation:
    raise AssertionError("the function was run before")


def arranged(call: Call, blocks: Sequence[Sequence[Tensor]], *, one_row: bool) -> Any:
    """Blocks as the caller gets them: a tensor or a tuple for each side."""
    rows = tuple(row[0] if call.one_input else tuple(row) for row in blocks)
    return rows[0] if one_row else rows
