"""The backward of a function as a function: what a check of second derivatives looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from covector._chart import ShapeChange
from covector._engine import graph, reverse
from covector._random import seeded
from covector._tree import Evaluation, flatten
from covector.checks.arguments import as_tuple
from covector.errors import ArgumentTypeError, ArgumentValueError
from covector.transforms._door import summary
from covector.verify.likes import tensors_for_outputs
from covector.verify.problem import Problem


def backward_of(problem: Problem, count: int) -> Callable[..., tuple[Tensor, ...]]:
    """The backward of a problem's function: inputs and cotangents to gradients."""
    chosen = problem.arguments.chosen
    kinds = [(output.shape, output.is_complex()) for output in problem.graph_outputs]

    def run(leaves: list[Any]) -> Evaluation:
        args, kwargs = problem.arguments.rebuild(leaves)
        outputs, spec = flatten(tensors_for_outputs(problem.caller, problem.caller.function(*args, **kwargs)))
        kept = [outputs[i] for i in problem.kept if i < len(outputs) and isinstance(outputs[i], Tensor)]
        if [(output.shape, output.is_complex()) for output in kept] != kinds:
            raise ShapeChange("the function returns fewer tensors, or others in shape or kind, than before")
        return Evaluation(kept, spec, [], None)

    def pull(*args: Any) -> tuple[Tensor, ...]:
        leaves = flatten(args[:count])[0]
        variables = [leaves[i] for i in chosen]
        if not torch.is_grad_enabled() or not all(variable.requires_grad for variable in variables):
            return tuple(reverse.record(run, leaves, chosen).pull(args[count:]))
        # On the leaves themselves: a function may remember what it computed from them, and the graph of it.
        with torch.enable_grad():
            outputs = run(leaves).outputs
            pulled = graph.backward(outputs, args[count:], variables, keep=True, record=True)
            if any(graph.survey(output).once for output in outputs):
                # torch gives such a gradient without its graph, and a second derivative would lack a term.
                pulled = [value if value is None else graph.refused(value, variables) for value in pulled]
            connected = any(value is not None and value.requires_grad for value in pulled)
            # One that lost its graph counts as constant to torch, and nobody would look at it.
            pulled = [
                graph.constant(value, variables)
                if connected and value is not None and not value.requires_grad
                else value
                for value in pulled
            ]
        pairs = zip(variables, pulled, strict=True)
        return tuple(torch.zeros_like(x) if value is None else value for x, value in pairs)

    return pull


def given_cotangents(problem: Problem, grad_outputs: Any) -> tuple[Tensor, ...]:
    """The caller's cotangents, if there is one for each output that requires grad, of its shape."""
    given = as_tuple(grad_outputs)
    outputs = problem.graph_outputs
    if len(given) != len(outputs):
        raise ArgumentValueError(
            f"{problem.caller}: grad_outputs must have a tensor for each output that requires grad, "
            f"{len(outputs)} in all, got {len(given)}."
        )
    for index, (cotangent, output) in enumerate(zip(given, outputs, strict=True)):
        if not isinstance(cotangent, Tensor):
            raise ArgumentTypeError(
                f"{problem.caller}: grad_outputs[{index}] must be a tensor, got {summary(cotangent)}. "
                "Undefined cotangents are looked at with check_undefined_grad; for zeros, pass zeros."
            )
        if cotangent.shape != output.shape:
            raise ArgumentValueError(
                f"{problem.caller}: grad_outputs[{index}] has shape {tuple(cotangent.shape)}, expected "
                f"{tuple(output.shape)}, that of {problem.output_names[index]}."
            )
    return given


def random_cotangents(problem: Problem, scattered: bool, seed: int) -> tuple[Tensor, ...]:
    """Random cotangents for each differentiable output, on request not contiguous."""
    generator = seeded(seed)
    drawn = []
    for place in problem.outputs.places:
        value = place.random(generator)
        if scattered and place.has_strides and value.numel() > 1:
            # Every other element of twice the memory, as torch lays them out: it still has a view(-1).
            value = value.repeat_interleave(2, dim=-1)[..., ::2]
        drawn.append(value.requires_grad_())
    return tuple(drawn)
