"""Elements that the function puts in another order, and the backward in that order once more."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from covector.diagnose.case import Case
from covector.diagnose.rules.observation import Observation
from covector.diagnose.rules.reach import Axes, pairs_of_axes
from covector.diagnose.suspects import Suspect

# How sure it is if the numbers are those of the other order, and if only the places are.
_NUMBERS, _PLACES = 0.96, 0.85


def not_undone(case: Case) -> Iterator[Observation]:
    """Along an axis of the input and one of the output, J is a permutation, and its inverse is computed."""
    for s in case.suspects:
        for axes in pairs_of_axes(s):
            true, got = axes.pattern(s.support), axes.pattern(s.nonzero)
            if not _is_permutation(true) or not torch.equal(got, true.T) or torch.equal(got, true):
                continue
            text = (
                f"along {axes.name(s)}, the function puts the elements of {s.inputs.name} in another order, "
                f"and the {case.noun} is put in that order once more, not back"
            )
            yield Observation(text, _NUMBERS if _has_numbers(s, axes, got) else _PLACES, s.where)
            break


def _is_permutation(pattern: Tensor) -> bool:
    """Whether each index goes to one index, and each to another."""
    square = pattern.shape[0] == pattern.shape[1]
    return square and bool((pattern.sum(0) == 1).all()) and bool((pattern.sum(1) == 1).all())


def _has_numbers(s: Suspect, axes: Axes, got: Tensor) -> bool:
    """Whether the numbers at these places are the true ones of the same outputs, or of the same inputs."""
    outputs, inputs = s.outputs.shape, s.inputs.shape
    if outputs is None or inputs is None:
        return False
    places = axes.output, len(outputs) + axes.input
    numeric = s.numeric.where(s.support, 0.0).reshape(*outputs, *inputs).movedim(places, (0, 1))
    at = got.reshape(*got.shape, *[1] * (numeric.dim() - 2))
    return any(
        s.explains((at * numeric.sum(axis, keepdim=True)).movedim((0, 1), places).reshape(s.numeric.shape))
        for axis in (0, 1)
    )
