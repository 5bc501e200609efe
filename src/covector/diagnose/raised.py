"""Where a derivative raised: the user's line, told apart from ours and torch's."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import replace
from pathlib import Path

import torch

from covector.errors import described
from covector.verify.finding import Finding

# Where the code lies that is not the user's.
_OURS = (str(Path(__file__).parent.parent), str(Path(inspect.getfile(torch)).parent))


def located(found: Finding, raised: BaseException | None) -> Finding:
    """A finding on a derivative that raised, with the line of the user's that did."""
    if raised is None or found.summary != f"the derivative raised {described(raised)}":
        return found
    frames = traceback.extract_tb(raised.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith((*_OURS, "<"))]
    if not theirs:
        return found
    where = f"at line {theirs[-1].lineno} of {Path(theirs[-1].filename).name}, in {theirs[-1].name}"
    return replace(found, advice=f"It was raised {where}.")
