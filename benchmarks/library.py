"""Every function of an image library that takes one of these lists of arguments, in both modes.

Nobody chose the functions: what can be called and differentiated is checked, with up to two lists of
arguments for each. Nothing was tuned on them.
"""

from __future__ import annotations

import importlib
import inspect
import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import covector
from benchmarks._board import ASIDE, Area, Effort, Row, Task
from benchmarks._measure import Ratio, one_thread
from benchmarks.gradcheck import _seconds

MODULES = (
    "color", "filters", "enhance", "losses", "morphology", "feature", "metrics",
    "geometry.transform", "geometry.conversions", "geometry.linalg", "geometry.epipolar", "geometry.camera",
    "geometry.bbox", "geometry.subpix", "geometry.calibration",
)  # fmt: skip


def _uniform(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64) * 0.8 + 0.1


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _near_identity(size: int, rows: int | None = None) -> Tensor:
    return (torch.eye(size, dtype=torch.float64) + 0.05 * _normal(size, size))[None, : rows or size]


def _image() -> Tensor:
    return _uniform(1, 3, 5, 6)


# Lists of arguments: images with sizes, kernels, numbers and maps, points, vectors, matrices, classes.
ARGUMENTS: tuple[Callable[[], list[Any]], ...] = (
    lambda: [_image()],
    lambda: [_uniform(1, 1, 8, 8)],
    lambda: [_image(), _image()],
    lambda: [_image(), (3, 3)],
    lambda: [_image(), 3],
    lambda: [_image(), (3, 3), (1.5, 1.5)],
    lambda: [_image(), 0.5],
    lambda: [_image(), torch.ones(3, 3, dtype=torch.float64)],
    lambda: [_image(), torch.tensor([0.3], dtype=torch.float64)],
    lambda: [_image(), (7, 8)],
    lambda: [_image(), _near_identity(3), (5, 6)],
    lambda: [_image(), _near_identity(3, 2)],
    lambda: [_normal(2, 3)],
    lambda: [_normal(2, 4)],
    lambda: [torch.linalg.qr(_normal(2, 3, 3))[0]],
    lambda: [0.2 * _normal(2, 5, 3), _normal(2, 5, 3)],
    lambda: [_uniform(1, 9, 2), _uniform(1, 9, 2)],
    lambda: [_uniform(1, 9, 2), _uniform(1, 9, 2), torch.ones(1, 9, dtype=torch.float64)],
    lambda: [_near_identity(3), _uniform(1, 4, 2)],
    lambda: [_near_identity(4), _uniform(1, 4, 3)],
    lambda: [_normal(2, 4, 3, 3), torch.randint(0, 4, (2, 3, 3))],
    lambda: [_normal(2, 3), _uniform(2, 3).round()],
    lambda: [_uniform(1, 5, 2), _uniform(1, 5, 2), _normal(1, 3, 3)],
    lambda: [_normal(2, 3, 3), _normal(2, 3, 3)],
)
LISTS_EACH = 2
SEED = 1


class Case(NamedTuple):
    """A function and the arguments that it takes."""

    function: Callable[..., Any]
    make: Callable[[], list[Any]]

    def arguments(self) -> tuple[Any, ...]:
        """The same ones each time; what is differentiable requires grad."""
        torch.manual_seed(SEED)
        made = self.make()
        for value in made:
            if isinstance(value, Tensor) and value.is_floating_point():
                value.requires_grad_()
        return tuple(made)

    def differentiable(self) -> bool:
        """Whether it can be called, gives tensors, and these depend on what requires grad."""
        try:
            given = self.function(*self.arguments())
        except Exception:
            return False
        outputs = given if isinstance(given, tuple | list) else [given]
        tensors = all(isinstance(output, Tensor) for output in outputs)
        return tensors and any(output.requires_grad and output.numel() > 0 for output in outputs)


def cases() -> list[Case]:
    """All that can be checked."""
    found: dict[Callable[..., Any], list[Case]] = {}
    for name in MODULES:
        module = importlib.import_module(f"kornia.{name}")
        for public, function in sorted(vars(module).items()):
            if public.startswith("_") or not inspect.isfunction(function) or function in found:
                continue
            tried = (Case(function, make) for make in ARGUMENTS)
            some = (case for case in tried if case.differentiable())
            found[function] = [case for case, _ in zip(some, range(LISTS_EACH), strict=False)]
    return [case for some in found.values() for case in some]


def _verdict(checker: Callable[..., bool], case: Case, fast: bool) -> bool | None:
    try:
        return checker(case.function, case.arguments(), fast_mode=fast, raise_exception=False)
    except Exception:
        return None


def checks(mode: str, target: float, effort: Effort) -> Iterator[Row]:
    """The sum over all of them, how many verdicts differ, and how many take longer than torch's."""
    fast, sides = mode == "fast", {"ours": covector.gradcheck, "theirs": torch.autograd.gradcheck}
    totals, slower = {side: [0.0] * effort.rounds for side in sides}, 0
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        every = cases()[:: 10 if effort.quick else 1]
        verdicts = [{side: _verdict(sides[side], case, fast) for side in sides} for case in every]
        for case in every:
            best = dict.fromkeys(sides, float("inf"))
            for turn in range(effort.rounds):
                for side in random.sample(list(sides), len(sides)):
                    seconds = _seconds(partial(_verdict, sides[side], case, fast))
                    totals[side][turn] += seconds
                    best[side] = min(best[side], seconds)
            slower += best["ours"] > best["theirs"]
    differing = sum(verdict["ours"] != verdict["theirs"] for verdict in verdicts)
    peer = f"torch, {mode}"
    yield Row.of(f"{mode}, sum", peer, Ratio.of(totals["ours"], totals["theirs"]), target, part=ASIDE)
    many = f"of {len(every)}"
    yield Row.count(f"{mode}, other verdicts, {many}", peer, differing, part=ASIDE)
    yield Row.count(f"{mode}, slower than torch, {many}", peer, slower, target=None, part=ASIDE)


def tasks() -> Iterator[Task]:
    """Both modes."""
    for mode, target in (("fast", 1.0), ("exhaustive", 0.3)):
        yield Task(mode, partial(checks, mode, target), needs=("kornia",), peer=f"torch, {mode}")


AREA = Area(
    "library",
    "Every function of an image library (kornia) that takes one of a few lists of arguments and can be "
    "differentiated. Nobody chose them, and nothing was tuned on them.",
    tasks,
)
