"""Masks: one that the backward forgets, turns round, or draws again."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from covector.diagnose.case import Case
from covector.diagnose.rules.observation import Observation
from covector.diagnose.suspects import Suspect, listed

# Fewer elements than this are no mask.
_FEW = 3

# So many elements on either side of a mask show that it is inverted, or another one.
_EITHER_SIDE = 2


def unspecified(case: Case) -> Iterator[Observation]:
    """Every wrong entry is by an element that the gradient, which is sparse, leaves out."""
    left_out = case.evidence.unspecified
    wrong = [s.inputs.coordinates[s.bad.any(0)] for s in case.suspects]
    if left_out is None or not all(bool(torch.isin(some, left_out).all()) for some in wrong):
        return
    for s in case.suspects:
        text = (
            f"the {case.noun} for {{where}} is masked: it does not specify the elements by which entries are "
            "wrong, and is right at those that it specifies"
        )
        yield Observation(text, 0.98, s.where)


def masked(case: Case) -> Iterator[Observation]:
    """Elements that no output depends on get a gradient; where others are wrong too, their place tells."""
    for s in case.suspects:
        unused = ~s.used
        count, wrong = int(unused.sum()), s.bad.any(0)
        if count <= _FEW or bool(unused.all()) or not bool(wrong[unused].all()):
            continue
        place, alone = _alike(s, unused), torch.equal(unused, wrong) and bool(s.exact[:, ~unused].all())
        if not alone and (not place or s.inputs.part is None or len(s.inputs.part.shape) < 2):
            continue
        rest = "it is right" if alone else "it is wrong too, as where they are part of a sum"
        text = (
            f"no output depends on {count} of {unused.numel()} elements of {s.inputs.name}{case.coverage}"
            f"{place}, and the {case.noun} there is not zero; elsewhere {rest}"
        )
        yield Observation(text, 0.93 if alone else 0.8, s.where, explained=int(s.bad[:, unused].sum()))


def _alike(s: Suspect, elements: Tensor) -> str:
    """What the indices of some elements have in common, and no others do."""
    index = s.inputs.index
    if index is None or s.inputs.part is None:
        return ""
    for axis in range(index.shape[1]):
        at = index[elements, axis].unique()
        if torch.equal(torch.isin(index[:, axis], at), elements):
            places = listed([str(place) for place in at.tolist()])
            word = "index" if len(at) == 1 else "indices"
            return f" (all at {word} {places} of dimension {axis})" if len(at) <= 2 * _FEW else ""
    if index.shape[1] > 1:
        row, column = index[:, -2], index[:, -1]
        for what, region in (("above", column > row), ("below", column < row)):
            if torch.equal(region, elements):
                return f" (all {what} the diagonal)"
    return ""


def inverted(case: Case) -> Iterator[Observation]:
    """The gradient is zero exactly where it should not be."""
    for s in case.suspects:
        true, got = s.support, s.nonzero
        if bool((true & got).any()) or min(int(true.sum()), int(got.sum())) < _EITHER_SIDE:
            continue
        # Which element goes where is right: each output has its element, in one of the two or in the other.
        both = true | got
        if bool((both.sum(1) == 1).all()) and bool((both.sum(0) == 1).all()):
            text = (
                f"the {case.noun} for {{where}} is zero at the {int(true.sum())} elements where the numeric "
                f"one is not, and not zero at the {int(got.sum())} others: a mask is inverted"
            )
            yield Observation(text, 0.95, s.where)


def another(case: Case) -> Iterator[Observation]:
    """The gradient is zero at elements where it should not be, and not zero at others where it should."""
    for s in case.suspects:
        true, got = s.used, s.nonzero.any(0)
        lost, gained, kept = true & ~got, got & ~true, true & got
        if min(int(lost.sum()), int(gained.sum())) < _EITHER_SIDE or not bool(kept.any()):
            continue
        if not bool(s.exact[:, kept].all()):
            continue
        text = (
            f"the {case.noun} for {{where}} is zero at {int(lost.sum())} elements{case.coverage} where "
            f"the numeric one is not, not zero at {int(gained.sum())} where that is, and right at the "
            f"{int(kept.sum())} where neither is: another mask"
        )
        yield Observation(text, 0.93, s.where)


def drawn_again(case: Case) -> Iterator[Observation]:
    """The gradient of one cotangent is zero at other elements each time, and the same where it is not."""
    if (share := case.evidence.changing_zeros) is not None:
        text = (
            f"{case.rule} draws a mask of its own at each call: of one cotangent, the gradient is zero at "
            f"other elements each time ({share[0]} of {share[1]} change), and the same where it is not"
        )
        yield Observation(text, 0.96)
