"""What comes in: the options and the inputs of a check, looked at before any work."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from covector._chart import is_opaque, kind_of, overlaps, refusal
from covector._engine.tensors import PLAIN, plain
from covector._tree import Argnames, Argnums, Arguments, select
from covector.errors import ArgumentTypeError, ArgumentValueError, Caller, OptionError
from covector.transforms._door import check_seed, refuse_class, summary
from covector.transforms.module import as_function
from covector.verify.leaves import is_differentiable
from covector.verify.options import Options

_INFINITY = float("inf")


def caller_of(verb: str, func: Any) -> Caller:
    """The function, with the verb that it was given to."""
    if not callable(func):
        raise ArgumentTypeError(
            f"{verb}: the first argument must be a function, got {summary(func)}. "
            f"Write {verb}(f, x), not {verb}(f(x), x)."
        )
    refuse_class(verb, func)
    return Caller(verb, func)


def checked(verb: str, options: Options) -> Options:
    """The options, if they do not exclude each other."""
    forward, reverse = (
        ("check_fwd_over_rev", "check_rev_over_rev")
        if verb == "gradgradcheck"
        else ("check_forward_ad", "check_backward_ad")
    )
    if not (options.forward or options.reverse):
        raise OptionError(f"{verb}: nothing to check: set {forward} or {reverse}.")
    if options.batched and not options.reverse:
        raise OptionError(f"{verb}: check_batched_grad needs {reverse}.")
    if options.batched_forward and not options.forward:
        raise OptionError(f"{verb}: check_batched_forward_grad needs {forward}.")
    tol = options.tol
    if tol.kinks not in ("fail", "pass"):
        raise ArgumentValueError(f"{verb}: kinks must be 'fail' or 'pass', got {tol.kinks!r}.")
    numbers = (("eps", tol.eps), ("atol", tol.atol), ("rtol", tol.rtol), ("nondet_tol", options.nondet_tol))
    for name, value in numbers:
        if not (type(value) is float and 0.0 < value < _INFINITY):
            check_number(verb, name, value, positive=name == "eps")
    for name, count, least in (("probes", options.probes, 0), ("max_entries", options.max_entries, 1)):
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < least):
            raise ArgumentValueError(f"{verb}: {name} must be an int of at least {least}, got {count!r}.")
    check_seed(verb, options.seed)
    return options


def check_number(verb: str, name: str, value: Any, *, positive: bool) -> None:
    """Refuse what is no number, or negative, or (where it has to be positive) zero or infinite."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ArgumentTypeError(f"{verb}: {name} must be a number, got {value!r} ({type(value).__name__}).")
    if not (0 < value < _INFINITY if positive else value >= 0):
        expected = "positive and finite" if positive else "zero or positive"
        raise ArgumentValueError(f"{verb}: {name} must be {expected}, got {value!r}.")


def as_tuple(inputs: Any) -> tuple[Any, ...]:
    """Positional arguments: one by itself, or a sequence of them."""
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _requires_grad(leaf: Any) -> bool:
    return is_differentiable(leaf) and leaf.requires_grad


def arguments_of(
    caller: Caller,
    inputs: Any,
    kwargs: dict[str, Any] | None = None,
    argnums: Argnums | None = None,
    argnames: Argnames = None,
) -> Arguments:
    """The call's arguments, with what is to be checked marked."""
    args = as_tuple(inputs)
    if not args and not kwargs:
        raise ArgumentValueError(
            f"{caller}: there are no inputs, so there is nothing to differentiate by. Pass a tensor, "
            "or several in a tuple."
        )
    if argnums is not None or argnames is not None:
        arguments = select(caller, args, kwargs or {}, 0 if argnums is None else argnums, argnames)
        if not arguments.only(is_differentiable).chosen:
            raise ArgumentTypeError(
                f"{caller}: what argnums and argnames select holds no floating-point or complex tensor: "
                f"{_kinds(caller, arguments)}."
            )
    else:
        arguments = Arguments(args, kwargs or {})
        arguments.select(arguments.slots, single=False).only(_requires_grad)
    if not arguments.chosen:
        raise ArgumentValueError(
            f"{caller}: no input requires grad, so there is nothing to check: {_kinds(caller, arguments)}."
            f"{_advice(caller, arguments)}"
        )
    for position, tensor in enumerate(arguments.primals()):
        if type(tensor) not in PLAIN:
            tensor = plain(tensor)
        if (reason := refusal(tensor)) is not None:
            raise ArgumentTypeError(f"{caller}: {arguments.paths(caller.function)[position]} {reason}")
        if overlaps(tensor):
            raise ArgumentValueError(
                f"{caller}: elements of {arguments.paths(caller.function)[position]} share memory (a "
                "stride is 0 or too short), so one cannot be moved without the others. Pass its "
                ".contiguous()."
            )
    return arguments


def require_tangents(caller: Caller, arguments: Arguments) -> None:
    """Refuse to check forward mode by tensors that take no tangent."""
    for position, tensor in enumerate(arguments.primals()):
        if is_opaque(tensor):
            keyword = "check_fwd_over_rev" if caller.verb == "gradgradcheck" else "check_forward_ad"
            raise OptionError(
                f"{caller}: {arguments.paths(caller.function)[position]} is an mkldnn tensor, which takes no "
                f"tangent; pass it as a strided one, or leave {keyword} out."
            )


def module_call(module: Module, inputs: Any, kwargs: dict[str, Any] | None) -> tuple[Caller, Arguments]:
    """A module as a function of its parameters and its inputs, the parameters all to be checked."""
    function, params = as_function(module)
    arguments = Arguments((params, *as_tuple(inputs)), kwargs or {})
    arguments.select(arguments.slots, single=False)
    ours = {id(value) for value in params.values()}
    arguments.only(lambda leaf: is_differentiable(leaf) and (id(leaf) in ours or leaf.requires_grad))
    return Caller("check", function), arguments


def _advice(caller: Caller, arguments: Arguments) -> str:
    """What to do about a call in which nothing requires grad."""
    advice = ""
    if any(isinstance(leaf, Tensor) for leaf in arguments.leaves):
        advice += (
            " Call .requires_grad_() on the tensors to differentiate by; they have to be floating-point or "
            "complex."
        )
    if closed := [type(leaf).__name__ for leaf in arguments.leaves if is_dataclass(leaf)]:
        advice += (
            f" {closed[0]} is not a registered pytree, so the tensors in it are not seen: call "
            f"torch.export.register_dataclass({closed[0]}) once."
        )
    if isinstance(caller.function, Module) and caller.verb != "check":
        advice += " To check a module by its parameters, use check."
    tensor = "torch.tensor(1.0, dtype=torch.float64, requires_grad=True)"
    return advice or f" Pass a tensor that requires grad, such as {tensor}."


def _kinds(caller: Caller, arguments: Arguments) -> str:
    """Each leaf of a call, and what it is."""
    arguments.select(arguments.slots, single=False)
    kinds = [
        f"{kind_of(leaf)} without grad" if isinstance(leaf, Tensor) else type(leaf).__name__
        for leaf in arguments.leaves
    ]
    named = zip(arguments.paths(caller.function), kinds, strict=True)
    return "; ".join(f"{name} is {kind}" for name, kind in named)
