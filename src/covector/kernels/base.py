"""The kernel as it was given: outputs and gradients beside the truth, and whether that says anything."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from covector._engine.messages import is_out_of_memory
from covector._random import seeded
from covector.kernels.bench import Bench, Sample, compact, raised
from covector.kernels.comparison import PASSING_SHARE, Comparison
from covector.kernels.rules import Around
from covector.kernels.subject import random_like, variables
from covector.kernels.truth import Truth, real
from covector.verify.finding import Outcome
from covector.verify.leaves import doubled, is_differentiable

# How inputs are scaled in search of some for which the problem is not ill-conditioned.
_FACTORS = (0.25, 0.0625, 4.0)


# Of outputs with more rows than these, sums over some of them are not tried.
_ROWS = 64


def compared(bench: Bench) -> list[Comparison]:
    """Every output and gradient of the kernel; what would pass whatever the kernel did is not passed."""
    try:
        run = bench.run_first()
    except Exception as error:
        outcome = Outcome.INCONCLUSIVE if is_out_of_memory(error) else Outcome.FAILED
        return [Comparison("kernel", outcome, f"it {raised(error)}")]
    found = bench.compared(run, bench.truths)
    moved = _elsewhere(bench)
    return [_settled(bench, _guarded(one, moved)) for one in found]


def around(bench: Bench) -> Around:
    """What rules may ask about the tensors of a kernel that is wrong."""
    chosen = zip(bench.arguments.chosen, bench.names, strict=True)
    known = {t.name: t.golden for t in bench.truths.outputs if t is not None}
    return Around(known | {name: real(bench.leaves[i]) for i, name in chosen}, partial(_sums, bench))


def _sums(bench: Bench, name: str) -> Tensor | None:
    """A gradient of golden by the first row of the output, by the first two, and so on."""
    names = [f"grad {one}" for one in bench.names]
    pulled = [c for c in bench.sample.cotangents if c is not None]
    if name not in names or len(pulled) != 1 or not pulled[0].dim() or not 1 < len(pulled[0]) <= _ROWS:
        return None
    leaves = variables([doubled(compact(leaf)) for leaf in bench.leaves], bench.arguments.chosen)
    with torch.enable_grad():
        outputs = bench.reference(leaves)
        found = []
        for row in range(1, len(pulled[0])):
            few = [None if c is None else doubled(c).clone() for c in bench.sample.cotangents]
            for cotangent in few:
                if cotangent is not None:
                    cotangent[row:] = 0
            found.append(bench.reference.pull(outputs, leaves, few, retain_graph=True)[names.index(name)])
    known = [real(gradient) for gradient in found if gradient is not None]
    return torch.stack(known) if len(known) == len(found) else None


def _elsewhere(bench: Bench) -> dict[str, Tensor]:
    """The reference at other inputs and cotangents of the same scale: what does not move is constant."""
    generator = seeded(bench.settings.seed + 4)
    leaves = [
        leaf.detach()
        .flatten()[torch.randperm(leaf.numel(), generator=generator).to(leaf.device)]
        .reshape(leaf.shape)
        if i in bench.arguments.chosen
        else leaf
        for i, leaf in enumerate(bench.leaves)
    ]
    cotangents = random_like(bench.sample.cotangents, bench.settings.seed + 5)
    try:
        run = bench.reference.run(variables(leaves, bench.arguments.chosen), cotangents)
    except Exception:  # the inputs have a structure that it insists on
        return {}
    if len(run.outputs) != len(bench.output_names):  # nothing that could be compared
        return {}
    named = [*zip(bench.output_names, run.outputs, strict=True)]
    named += [(f"grad {name}", g) for name, g in zip(bench.names, run.gradients, strict=True)]
    return {name: tensor for name, tensor in named if is_differentiable(tensor)}


def _guarded(comparison: Comparison, moved: dict[str, Tensor]) -> Comparison:
    """A comparison that passed, unless it could not have failed."""
    truth = comparison.truth
    if comparison.outcome is not Outcome.PASSED:
        return comparison
    if truth is None:
        return (
            comparison if not comparison.name.startswith("grad ") else _vacuous(comparison, "there is none")
        )
    if truth.golden.numel() == 0:
        return _vacuous(comparison, "it has no entries")
    if not bool(truth.judged.any()):
        return _vacuous(comparison, "no entry of the reference is finite")
    if not bool(truth.golden.any()):
        return _vacuous(comparison, "it is zero everywhere")
    there = moved.get(comparison.name)
    if there is not None and truth.golden.numel() > 1 and _constant(truth, there):
        return _vacuous(comparison, "it does not depend on the inputs")
    return comparison


def _constant(truth: Truth, there: Tensor) -> bool:
    """Whether all entries are the same number, here and elsewhere."""
    eager = truth.eager.flatten()
    return bool((eager == eager[0]).all()) and bool((there.detach().double() == float(eager[0])).all())


def _vacuous(comparison: Comparison, why: str) -> Comparison:
    advice = "Choose inputs for which it has something to show, or do not ask for it."
    return replace(
        comparison,
        outcome=Outcome.INCONCLUSIVE,
        summary=f"this test would pass whatever the kernel did: {why}",
        advice=advice,
    )


def _settled(bench: Bench, comparison: Comparison) -> Comparison:
    """An ill-conditioned comparison, with inputs for which it would not be, if there are some nearby."""
    if comparison.outcome is not Outcome.INCONCLUSIVE or comparison.worst is None or comparison.advice:
        return comparison
    return replace(comparison, advice=_inputs_that_settle(bench, comparison.name))


def _inputs_that_settle(bench: Bench, name: str) -> str:
    candidates: list[tuple[str, list[Any]]] = [
        (f"these inputs times {factor:g}", _mapped(bench, lambda leaf, f=factor: leaf * f))
        for factor in _FACTORS
    ]
    candidates.append(("these inputs in float32", _mapped(bench, lambda leaf: leaf.float())))
    for words, leaves in candidates:
        try:
            truths = bench.truths_of(
                Sample(leaves, random_like(bench.reference(leaves), bench.settings.seed + 1))
            )
        except Exception:  # the reference does not take them
            continue
        truth = next(
            (t for t in (*truths.outputs, *truths.gradients) if t is not None and t.name == name), None
        )
        if truth is not None and bench.settings.ratio * truth.condition < PASSING_SHARE:
            return (
                f"With {words} the noise floor is {truth.condition:.2g} of the values, which would settle it."
            )
    return (
        "Choose inputs for which the reference in this dtype keeps some digits; scaling these did not help."
    )


def _mapped(bench: Bench, change: Any) -> list[Any]:
    return [
        change(leaf.detach()) if i in bench.arguments.chosen else leaf for i, leaf in enumerate(bench.leaves)
    ]
