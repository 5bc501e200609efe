"""The door of every transform: what is checked once, so that nothing inside has to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.nn import Module

from covector._chart import is_strided
from covector._engine import messages
from covector._engine.compiled import tracing
from covector._engine.reverse import Run
from covector._engine.writes import WriteRefused, run_watched
from covector._tree import (
    LEAF,
    Argnames,
    Argnums,
    Arguments,
    Evaluation,
    Spec,
    check_argnums,
    describe,
    flatten,
    leaf_paths,
    select,
    select_all,
    tuple_of,
)
from covector.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    Caller,
    CapturedWriteError,
    InferenceModeError,
    OutputError,
    UnsupportedError,
)

Accept = Callable[[Caller, Evaluation], None]

# Further seeds are made from one by adding to it, and torch takes those of 64 bits.
_SEEDS = 2**62
# What may be the matter with a function that returns a number, or nothing.
_LOST = "Did it call .item(), or forget to return?"

# Verbs that covector.functional has too, with the inputs behind the function.
_OF_FUNCTIONAL = ("jacobian", "hessian")

RANDOMNESS = ("error", "same", "different")


def check_function(verb: str, function: Any, argnums: Any = 0) -> Caller:
    """The verb and the function it was given, which has to be callable; argnums are those of a verb(f)(x)."""
    if not callable(function):
        raise ArgumentTypeError(
            f"{verb}: the first argument must be a function, got {summary(function)}. "
            f"Write {verb}(f)(x), not {verb}(f(x))."
        )
    if isinstance(function, type):
        refuse_class(verb, function)
    caller = Caller(verb, function)
    if type(argnums) is not int:
        check_argnums(caller, argnums, _instead(verb))
    return caller


def _instead(verb: str) -> str:
    """What to write instead of verb(f, x), if the verb takes a function alone."""
    if verb in _OF_FUNCTIONAL:
        return f"{verb}(f, x) is in covector.functional; here it is {verb}(f)(x)."
    return f"Write {verb}(f)(x), not {verb}(f, x)."


# Classes that are no functions, how they are written, and what is passed instead.
_CLASSES = ((Function, "autograd.Function", ".apply"), (Module, "nn.Module", "(...), a module of that class"))


def refuse_class(verb: str, function: Any) -> None:
    """Refuse the class of a custom Function, or of a module, where its `apply` or an instance is meant."""
    for kind, written, instead in _CLASSES:
        if isinstance(function, type) and issubclass(function, kind):
            name = function.__name__
            raise ArgumentTypeError(f"{verb}: got {name}, a subclass of {written}. Pass {name}{instead}.")


def check_batching(verb: str, chunk_size: Any, randomness: Any) -> None:
    """`chunk_size` is None or a positive int, `randomness` one of three words."""
    if chunk_size is not None:
        if not isinstance(chunk_size, int) or isinstance(chunk_size, bool):
            raise ArgumentTypeError(
                f"{verb}: chunk_size must be None or a positive int, got {chunk_size!r} "
                f"({type(chunk_size).__name__})."
            )
        if chunk_size <= 0:
            raise ArgumentValueError(
                f"{verb}: chunk_size must be positive, got {chunk_size}. It is the number of "
                "directions that are applied at once; None applies all."
            )
    if randomness not in RANDOMNESS:
        raise ArgumentValueError(
            f"{verb}: randomness must be one of {', '.join(map(repr, RANDOMNESS))}, got {randomness!r}."
        )


def check_seed(verb: str, seed: Any) -> None:
    """`seed` is an int that torch's generators take."""
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ArgumentTypeError(f"{verb}: seed must be an int, got {seed!r} ({type(seed).__name__}).")
    if not -_SEEDS < seed < _SEEDS:
        raise ArgumentValueError(f"{verb}: seed must be less than 2**62 in size, got {seed}.")


def bind(
    caller: Caller, args: Sequence[Any], kwargs: dict[str, Any], argnums: Argnums, argnames: Argnames
) -> Arguments:
    """The arguments of a call, those to differentiate marked and checked."""
    return check_primals(caller, select(caller, args, kwargs, argnums, argnames))


def check_primals(caller: Caller, arguments: Arguments) -> Arguments:
    """Every leaf to differentiate by is a floating-point or complex tensor, and there is one."""
    leaves = arguments.leaves
    for position, index in enumerate(arguments.chosen):
        leaf = leaves[index]
        if not isinstance(leaf, Tensor):
            raise ArgumentTypeError(
                f"{caller}: can only differentiate by tensors, but "
                f"{arguments.paths(caller.function)[position]} is {summary(leaf)}. "
                "Make it a tensor, or select other arguments with argnums/argnames."
            )
        if not (leaf.is_floating_point() or leaf.is_complex()):
            raise ArgumentTypeError(
                f"{caller}: can only differentiate by floating-point or complex tensors, but "
                f"{arguments.paths(caller.function)[position]} has dtype {leaf.dtype}. Convert it, "
                "or select other arguments with argnums/argnames."
            )
    if not arguments.chosen:
        raise ArgumentTypeError(
            f"{caller}: there is no tensor to differentiate by: the selected arguments are empty."
        )
    return arguments


def check_direction(caller: Caller, primals: Any, along: Any, kind: str) -> tuple[Arguments, list[Tensor]]:
    """A tuple of primals, to be differentiated by all of them, and the leaves of a tuple like it."""
    if not isinstance(primals, tuple):
        raise ArgumentTypeError(
            f"{caller}: primals must be a tuple, so that func(*primals) can be called, got "
            f"{type(primals).__name__}. For one primal write (x,)."
        )
    arguments = check_primals(caller, select_all(primals))
    spec = tuple_of(len(primals)) if arguments.flat else flatten(primals)[1]
    names = lambda: arguments.paths(caller.function)  # noqa: E731
    return arguments, check_match(caller, kind, along, arguments.primals(), spec, names)


def check_dense(caller: Caller, tensors: Sequence[Tensor], names: Callable[[], Sequence[str]]) -> None:
    """The blocks of a Jacobian are strided, so what stands on their sides has to be."""
    for position, tensor in enumerate(tensors):
        if not is_strided(tensor):
            layout = str(tensor.layout).removeprefix("torch.").lstrip("_")
            raise UnsupportedError(
                f"{caller}: a Jacobian is dense, and {names()[position]} has the layout {layout}. Ask for "
                "products (grad, vjp, hvp), which take every layout; or differentiate by a dense tensor, and "
                "let the function convert it."
            )


def runner(caller: Caller, arguments: Arguments, accept: Accept, *, has_aux: bool) -> Run:
    """The caller's function on flat leaves, its result checked by `accept`."""

    def run(leaves: list[Any]) -> Evaluation:
        args, kwargs = arguments.rebuild(leaves)
        returned = called(caller, args, kwargs, list(map(leaves.__getitem__, arguments.chosen)))
        if has_aux:
            evaluation = _with_aux(caller, returned)
        elif isinstance(returned, Tensor):
            evaluation = Evaluation([returned], LEAF, [], None)
        else:
            evaluation = Evaluation(*flatten(returned), [], None)
        accept(caller, evaluation)
        return evaluation

    return run


def called(caller: Caller, args: Sequence[Any], kwargs: dict[str, Any], variables: Sequence[Tensor]) -> Any:
    """What the caller's function returns; it wrote nothing of the variables to a tensor from outside."""
    try:
        if tracing():
            # Where it cannot go on, torch.compile shows this line above that of the function.
            return caller.function(*args, **kwargs)  # without fullgraph=True it breaks here: run eagerly
        return run_watched(caller.function, args, kwargs, variables)
    except (RuntimeError, WriteRefused) as error:
        raise explained(caller, error) from error


def _with_aux(caller: Caller, returned: Any) -> Evaluation:
    """What a function returned that returns an auxiliary part, flat."""
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise OutputError(
            f"{caller}: with has_aux=True the function must return a tuple (output, aux), got "
            f"{summary(returned)}."
        )
    return Evaluation(*flatten(returned[0]), *flatten(returned[1]))


def _writes_to(caller: Caller, name: str) -> CapturedWriteError:
    return CapturedWriteError(
        f"{caller}: the function wrote a value that depends on its inputs to {name}, a captured tensor, "
        f"which would carry a part of this derivative away. If {name} is to record a value, write a "
        ".detach()ed one to it; if the result depends on it, pass it as an argument, or work on a .clone()."
    )


def explained(caller: Caller, error: RuntimeError | WriteRefused) -> RuntimeError:
    """The error itself, or ours where torch's does not say what to do."""
    if isinstance(error, WriteRefused):
        return _writes_to(caller, error.name)
    if messages.has_inference_tensor(error):
        return InferenceModeError(
            f"{caller}: the function uses a tensor that was made under torch.inference_mode(); such a "
            "tensor keeps no graph, so it cannot take part in a derivative. Make it outside "
            "inference_mode (torch.no_grad() is enough), or pass a .clone() made outside."
        )
    if messages.mutates_captured(error):
        return UnsupportedError(
            f"{caller}: the function would mutate a captured Tensor, which torch does not allow inside a "
            "batch or a nested transform (batch normalization in training mode does so with its running "
            "statistics, and it mixes the samples). Put the module in .eval() mode, or pass that tensor as "
            "an argument; where there is a choice, mode='reverse' does not need a batch of runs."
        )
    return error


def accept_tensors(caller: Caller, evaluation: Evaluation) -> None:
    """The function returned tensors, at least one, and nothing else."""
    if not evaluation.outputs:
        raise OutputError(f"{caller}: the function must return at least one tensor, got none.")
    for position, output in enumerate(evaluation.outputs):
        if not isinstance(output, Tensor):
            alone = evaluation.spec is LEAF
            raise OutputError(
                f"{caller}: the function must return tensors only, but "
                f"{output_paths(evaluation)[position]} is {summary(output)}. "
                + (_LOST if alone else "Return what is not to be differentiated as aux, with has_aux=True.")
            )


def accept_differentiable(caller: Caller, evaluation: Evaluation) -> None:
    """The function returned floating-point or complex tensors and nothing else."""
    first = evaluation.outputs[0] if evaluation.spec is LEAF else None
    if isinstance(first, Tensor) and first.is_floating_point():
        return
    accept_tensors(caller, evaluation)
    for position, output in enumerate(evaluation.outputs):
        if not (output.is_floating_point() or output.is_complex()):
            raise OutputError(
                f"{caller}: outputs must be floating-point or complex tensors, but "
                f"{output_paths(evaluation)[position]} has dtype {output.dtype}. Return it as aux, with "
                "has_aux=True."
            )


def hint_on_numbers(returned: Any) -> str:
    """What may be the matter with a function that returns a number, or nothing, where a tensor should be."""
    return _LOST if returned is None or isinstance(returned, int | float | complex) else ""


# What gives the Jacobian of a function that is not scalar, in place of these.
_JACOBIANS = {"sparse_hessian": "sparse_jacobian", "hessian_plan": "jacobian_plan"}


def accept_scalar(caller: Caller, evaluation: Evaluation) -> None:
    """The function returned one real tensor without dimensions."""
    outputs = evaluation.outputs
    if len(outputs) != 1 or not isinstance(outputs[0], Tensor) or evaluation.spec is not LEAF:
        raise OutputError(
            f"{caller}: the function must return one scalar tensor, got {summary(evaluation.value())}. "
            + (hint_on_numbers(evaluation.value()) or "To return more than the value, use has_aux=True.")
        )
    if outputs[0].dim():
        shape = tuple(outputs[0].shape)
        raise OutputError(
            f"{caller}: the function must return a scalar (a tensor of shape ()), got shape {shape}. "
            f"Reduce it (.sum() or .mean()); or use {_JACOBIANS.get(caller.verb, 'jacrev/jacfwd')} for the "
            "whole Jacobian; or use vjp for the product with one cotangent."
        )
    if outputs[0].is_complex():
        raise OutputError(
            f"{caller}: the function must return a real scalar, got {outputs[0].dtype}. Return its "
            ".real, .imag or .abs(), or use vjp, which takes a complex cotangent."
        )


def output_paths(evaluation: Evaluation) -> list[str]:
    """How a person would write each output."""
    return leaf_paths(evaluation.value(), "output")


def check_match(
    caller: Caller,
    kind: str,
    tree: Any,
    like: Sequence[Tensor],
    spec: Spec,
    names: Callable[[], list[str]],
) -> list[Tensor]:
    """The leaves of a tree of tangents or cotangents, in the dtypes of the tensors that they have to fit."""
    if spec is LEAF and isinstance(tree, Tensor) and alike(tree, like[0]):
        return [tree]
    leaves, given = flatten(tree)
    if given is not spec and given != spec:
        raise ArgumentValueError(
            f"{caller}: the {kind}s must have the structure {describe(spec)}, got {describe(given)}."
        )
    for position, (leaf, tensor) in enumerate(zip(leaves, like, strict=True)):
        if not isinstance(leaf, Tensor):
            raise ArgumentTypeError(
                f"{caller}: the {kind} for {names()[position]} must be a tensor, got {summary(leaf)}."
            )
        if not alike(leaf, tensor):
            if tensor.is_complex() or not leaf.is_complex():
                leaves[position] = leaf.to(tensor.dtype)
            if not alike(leaves[position], tensor):
                raise ArgumentValueError(
                    f"{caller}: the {kind} for {names()[position]} must be like it: expected "
                    f"{_kind(tensor)}, got {_kind(leaf)}."
                )
    return leaves


def alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and device."""
    return a.shape == b.shape and a.dtype == b.dtype and a.device == b.device


def _kind(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}, {tensor.dtype}, {tensor.device}"


def summary(value: Any) -> str:
    """What something is, on one line."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
