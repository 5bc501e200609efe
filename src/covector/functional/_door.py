"""The door of every verb here: what is checked once, so that nothing inside has to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covector._engine import levels, reverse, scopes
from covector._engine.compiled import tracing
from covector._tree import LEAF, Arguments, Evaluation, flatten, select_all
from covector.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    Caller,
    EmptyError,
    OutputError,
    StrictError,
)
from covector.transforms._door import called, check_dense, hint_on_numbers, summary

Tensors = list[Tensor]


class Call(NamedTuple):
    """One call of a verb: what the caller gave, and what is asked of the result."""

    caller: Caller
    inputs: tuple[Tensor, ...]
    one_input: bool
    create_graph: bool = False
    strict: bool = False

    def modes(self) -> levels.GradMode:
        """Inside, results are recorded if that was asked for, and not otherwise."""
        return levels.GradMode(enabled=self.create_graph)

    def scope(self) -> type[scopes.PlainScope]:
        """How results are connected to graphs at top level."""
        return scopes.OpenScope if self.create_graph else scopes.PlainScope

    def arguments(self) -> Arguments:
        """The inputs as linear maps take them."""
        return select_all(self.inputs)

    def handed_over(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Results as the caller may have them: without a graph, unless that was asked for."""
        if self.create_graph:
            return tuple(tensors)
        return tuple([scopes.detached(t) if t.requires_grad else t for t in tensors])

    def like_inputs(self, tensors: Sequence[Tensor]) -> Any:
        """Results arranged as the inputs were given: a tensor or a tuple."""
        results = self.handed_over(tensors)
        return results[0] if self.one_input else results

    def like_outputs(self, evaluation: Evaluation, tensors: Sequence[Tensor]) -> Any:
        """Results arranged as the function returned: a tensor or a tuple."""
        results = self.handed_over(tensors)
        return results[0] if one_output(evaluation) else results


def one_output(evaluation: Evaluation) -> bool:
    """Whether the function returned a tensor, not a tuple."""
    return evaluation.spec is LEAF


def open_call(
    verb: str, function: Any, inputs: Any, *, create_graph: bool = False, strict: bool = False
) -> Call:
    """A call with a function and with one tensor, or a tuple of tensors, to differentiate by."""
    if not callable(function):
        raise ArgumentTypeError(
            f"functional.{verb}: the first argument must be a function, got {summary(function)}. "
            f"Write {verb}(f, x), not {verb}(f(x), x)."
        )
    caller = Caller(f"functional.{verb}", function)
    if isinstance(create_graph, Tensor) or isinstance(strict, Tensor):
        raise ArgumentTypeError(
            f"{caller}: several inputs go into one tuple: write {verb}(func, (a, b)), not {verb}(func, a, b)."
        )
    tensors = as_tensors(caller, "inputs", inputs)
    for position, tensor in enumerate(tensors):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise ArgumentTypeError(
                f"{caller}: inputs must be floating-point or complex tensors, but "
                f"{place('inputs', position, inputs)} has dtype {tensor.dtype}. Convert it, or let the "
                "function capture it."
            )
    if not tensors:
        raise EmptyError(f"{caller}: inputs is an empty tuple: there is nothing to differentiate by.")
    # What dynamo traces inside another transform may be differentiated by that.
    create_graph = create_graph or levels.traced_inside()
    if not create_graph and levels.active() and levels.recording():
        raise ArgumentValueError(
            f"{caller}: inside a reverse-mode transform the result would count as a constant, because "
            "create_graph=False cuts it off. Pass create_graph=True; or use the verb of the same name in "
            "covector itself, which composes."
        )
    return Call(caller, tensors, not isinstance(inputs, tuple), create_graph, strict)


def as_tensors(caller: Caller, name: str, value: Any) -> tuple[Tensor, ...]:
    """A tensor, or a tuple of tensors, as a tuple."""
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, tuple):
        for position, element in enumerate(value):
            if not isinstance(element, Tensor):
                raise ArgumentTypeError(
                    f"{caller}: {name}[{position}] must be a tensor, got {summary(element)}."
                )
        return tuple(value)
    raise ArgumentTypeError(
        f"{caller}: {name} must be a tensor or a tuple of tensors, got {summary(value)}."
        + (" Write tuple(...) around the list." if isinstance(value, list) else "")
    )


def place(name: str, position: int, value: Any) -> str:
    """How a person would write one of the tensors."""
    return f"{name}[{position}]" if isinstance(value, tuple) else name


def runner(call: Call, accept: Callable[[Call, Evaluation], None] | None = None) -> reverse.Run:
    """The caller's function on its inputs, the result checked; without `accept`, every tensor will do."""
    caller = call.caller

    def run(leaves: list[Any]) -> Evaluation:
        evaluation = _evaluation(caller, called(caller, leaves, {}, leaves))
        if call.strict:
            _check_recorded(caller, evaluation)
        if accept is not None:
            accept(call, evaluation)
        return evaluation

    return run


def record(call: Call, run: reverse.Run) -> reverse.Recording:
    """One run of the function, to be pulled back through."""
    return reverse.record(run, call.inputs, range(len(call.inputs)), call.scope())


def _evaluation(caller: Caller, returned: Any) -> Evaluation:
    if isinstance(returned, Tensor):
        return Evaluation([returned], LEAF, [], None)
    if not isinstance(returned, tuple):
        what = f"the function must return a tensor or a tuple of tensors, got {summary(returned)}."
        raise OutputError(f"{caller}: {what} {hint_on_numbers(returned)}".rstrip())
    for position, output in enumerate(returned):
        if not isinstance(output, Tensor):
            raise OutputError(
                f"{caller}: the function must return a tensor or a tuple of tensors, but output[{position}] "
                f"is {summary(output)}."
            )
    if not returned:
        raise EmptyError(
            f"{caller}: the function returned an empty tuple: there is nothing to differentiate."
        )
    outputs, spec = flatten(tuple(returned))
    return Evaluation(outputs, spec, [], None)


def _check_recorded(caller: Caller, evaluation: Evaluation) -> None:
    """With `strict`, every output comes from something that requires grad."""
    for position, output in enumerate(evaluation.outputs):
        if not output.requires_grad:
            raise StrictError(
                f"{caller}: {output_name(evaluation, position)} does not require grad, so it depends on no "
                f"input; strict=True refuses that. {_WITHOUT_STRICT}"
            )


def output_name(evaluation: Evaluation, position: int) -> str:
    """How a person would write one of the outputs."""
    return "the output" if one_output(evaluation) else f"output[{position}]"


def accept_dense(call: Call, evaluation: Evaluation) -> None:
    """Every strided tensor will do."""
    check_dense(
        call.caller,
        evaluation.outputs,
        lambda: [output_name(evaluation, i) for i in range(len(evaluation.outputs))],
    )


def check_dense_inputs(call: Call) -> None:
    """Every input is strided."""
    given = "inputs" if call.one_input else call.inputs
    check_dense(
        call.caller, call.inputs, lambda: [place("inputs", i, given) for i in range(len(call.inputs))]
    )


def accept_one_number(call: Call, evaluation: Evaluation) -> None:
    """The function returned one tensor with one real element."""
    caller, outputs = call.caller, evaluation.outputs
    if not one_output(evaluation):
        raise OutputError(
            f"{caller}: the function must return a single tensor, got a tuple of {len(outputs)}. "
            "Return the one that is to be differentiated."
        )
    if outputs[0].numel() != 1:
        raise OutputError(
            f"{caller}: the function must return a tensor with one element, got shape "
            f"{tuple(outputs[0].shape)}. Reduce it (.sum() or .mean())."
        )
    if outputs[0].is_complex():
        raise OutputError(
            f"{caller}: the function must return a real number, got {outputs[0].dtype}. Return its .real, "
            ".imag or .abs()."
        )


def vector(call: Call, name: str, v: Any, like: Sequence[Tensor], of: str) -> Tensors:
    """The vector of a product, checked against the tensors that it has to fit; ones if it is None."""
    caller = call.caller
    if isinstance(v, Tensor) and len(like) == 1:
        return [_fitting(call, name, v, like[0])]
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise ArgumentValueError(
                f"{caller}: {name} can be left out only if there is one {of} with one element, got "
                f"{_shapes(like)}. Give {name}, of the same {'shape' if len(like) == 1 else 'shapes'}."
            )
        if like[0].is_complex():
            raise ArgumentValueError(
                f"{caller}: {name} can be left out only if the {of} is real, got {like[0].dtype}. Give "
                f"{name} to say which direction is meant."
            )
        return [torch.ones_like(like[0])]
    given = as_tensors(caller, name, v)
    if len(given) != len(like):
        raise ArgumentValueError(
            f"{caller}: {name} must have one tensor for each {of}: expected {len(like)}, got {len(given)}."
        )
    return [_fitting(call, place(name, i, v), a, b) for i, (a, b) in enumerate(zip(given, like, strict=True))]


def _fitting(call: Call, name: str, v: Tensor, like: Tensor) -> Tensor:
    """One tensor of the vector, in the dtype of the tensor that it belongs to."""
    if v.shape != like.shape:
        raise ArgumentValueError(
            f"{call.caller}: {name} has the wrong shape: expected {tuple(like.shape)}, got {tuple(v.shape)}."
        )
    if v.is_complex() != like.is_complex():
        raise ArgumentValueError(
            f"{call.caller}: {name} must be {'complex' if like.is_complex() else 'real'} as what it belongs "
            f"to is, got {v.dtype}."
        )
    if not tracing() and v.is_inference():
        v = v.clone()
    if not call.create_graph:
        v = v.detach()
    return v if v.dtype == like.dtype else v.to(like.dtype)


def _shapes(tensors: Sequence[Tensor]) -> str:
    return " and ".join(str(tuple(tensor.shape)) for tensor in tensors)


_WITHOUT_STRICT = "Without strict its derivative is zero."


def check_real_inputs(call: Call) -> None:
    """A Hessian has one entry per pair of real numbers."""
    for position, tensor in enumerate(call.inputs):
        if tensor.is_complex():
            raise ArgumentTypeError(
                f"{call.caller}: inputs[{position}] is complex ({tensor.dtype}); a Hessian is made for real "
                "inputs. Differentiate a function of torch.view_as_real(z), or use hvp/vhp, which take "
                "complex vectors."
            )


def check_reached(call: Call, pulled: Sequence[Tensor | None], of: str, missing: str) -> None:
    """With `strict`, every input was reached; and with `create_graph`, by what can be differentiated."""
    for position, value in enumerate(pulled):
        if value is None:
            raise StrictError(
                f"{call.caller}: {missing} does not depend on inputs[{position}]; strict=True refuses that. "
                f"{_WITHOUT_STRICT}"
            )
        if call.create_graph and not value.requires_grad:
            raise StrictError(
                f"{call.caller}: {of} with respect to inputs[{position}] does not depend on the inputs, so "
                "it cannot be differentiated again; strict=True refuses that when create_graph=True. "
                f"{_WITHOUT_STRICT}"
            )
