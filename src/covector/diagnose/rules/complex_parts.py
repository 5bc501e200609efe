"""Real and imaginary parts: a conjugate that is missing, a part that is lost."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from covector.diagnose.case import Case
from covector.diagnose.rules.observation import Observation


def conjugate(case: Case) -> Iterator[Observation]:
    """The imaginary parts of the cotangent, of the gradient, or of both have the wrong sign."""
    for s in case.suspects:
        rows = torch.where(s.outputs.imaginary, -1.0, 1.0).to(s.numeric)[:, None]
        columns = torch.where(s.inputs.imaginary, -1.0, 1.0).to(s.numeric)
        for what, signs in (
            ("a conjugate is missing in", rows * columns),
            ("the result is conjugated in", columns.expand_as(s.numeric)),
            ("the cotangent is conjugated in", rows.expand_as(s.numeric)),
        ):
            if bool((s.support & (signs < 0)).any()) and s.explains(s.numeric * signs):
                text = f"{what} the {case.noun} for {{where}}: imaginary parts have the wrong sign"
                yield Observation(text, 0.95, s.where)
                break


def real_part(case: Case) -> Iterator[Observation]:
    """Imaginary parts are lost."""
    for s in case.suspects:
        for what, lost in (
            (f"the {case.noun} for {{where}} has a real part only", s.inputs.imaginary.expand_as(s.bad)),
            (
                "the imaginary part of the cotangent is lost on the way to {where}",
                s.outputs.imaginary[:, None].expand_as(s.bad),
            ),
        ):
            kept = torch.where(lost, torch.zeros_like(s.numeric), s.numeric)
            if (s.support & lost).any() and (s.support & ~lost).any() and s.explains(kept):
                yield Observation(what, 0.96, s.where)
