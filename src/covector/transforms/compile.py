"""`compile`: a derivative that is called many times, traced once and compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covector._chart import is_strided
from covector._engine import levels
from covector._engine.compiled import is_transform, without_values
from covector._engine.modes import TRACING
from covector._engine.outside import GONE, Place, by_value, outside_of
from covector._engine.program import CONSTANT, Program, Run, lower, quietly, trace
from covector._engine.scopes import here
from covector._engine.watch import GradModeWatch
from covector._tasks.progress import progress
from covector._tree import Arguments, flatten
from covector.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    Caller,
    CompileWarning,
    ForwardModeWarning,
    UntraceableError,
    warn,
)
from covector.transforms._door import check_function, summary
from covector.transforms._plan import least_seconds
from covector.transforms._verified import check_gradients, check_same, moved

# Programs for the same kinds of arguments, after which a value from outside is taken to change at each call.
_MOST_PROGRAMS = 8
# A ratio of two such times that is not by chance.
_CLEARLY_LESS = 0.8


@dataclass(frozen=True)
class CompiledPlan:
    """What was decided and made for one structure of arguments."""

    arguments: str
    """The arguments: shapes and dtypes of tensors, values of the rest."""
    backend: str
    """What was asked for; or "replay", if that was measured to be faster than inductor, and by how much."""
    seconds: float
    """How long it took to trace, compile and verify."""
    mode: str = ""
    """The mode that was measured to be faster, and by how much; empty if there was no choice."""
    operations: int | None = None
    """How many operations the traced graph has; None with `differentiable`, where torch.compile has it."""
    captured: tuple[str, ...] = ()
    """Tensors from outside, which are read at each call."""
    guarded: int = 0
    """How many other values from outside are compared at each call."""
    fixed: tuple[str, ...] = ()
    """What is built in, and not looked at again."""

    def __str__(self) -> str:
        size = "" if self.operations is None else f"{self.operations} operations, "
        parts = [f"{self.arguments}: {size}{self.backend}, {self.seconds:.2f} s"]
        if self.mode:
            parts.append(self.mode)
        if self.captured:
            parts.append(f"reads {', '.join(self.captured)}")
        if self.fixed:
            parts.append(f"fixed: {', '.join(self.fixed)}")
        return "; ".join(parts)


class Plans(tuple[CompiledPlan, ...]):
    """Plans, one on a line."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "nothing compiled yet"


class _Made(NamedTuple):
    """A program, what runs it, and how these were chosen, for `CompiledPlan`."""

    program: Program
    run: Run
    mode: str
    backend: str


class _Entry(NamedTuple):
    """One compiled program; or a function of the arguments as they are, if it could not be traced."""

    plan: CompiledPlan | None
    program: Program | None
    run: Run
    required: Sequence[Place] = ()
    """Where it stands which captured tensors require grad, if results can be differentiated by them."""

    def applies(self, tensors: Sequence[Tensor]) -> bool:
        """Whether this is still the function, called with arguments of which these are the tensors."""
        if self.program is not None:
            return self.program.inputs(tensors) is not None
        try:
            return all(place.holds() for place in self.required)
        except GONE:
            return False


def compile(
    func: Callable[..., Any],
    *,
    backend: str | Callable[..., Any] = "inductor",
    fallback: str | None = None,
    differentiable: bool = False,
) -> Compiled:
    """A function, usually a derivative, that is traced at its first call and then only computed.

    For a derivative that is called many times, by an optimizer, a sampler or a solver. The first call with
    arguments of some structure (tree, shapes, strides, dtypes, devices, other values) traces, compiles, and
    compares the result with the eager one; further calls take some microseconds beside the computation.
    Tensors that the function captures are read at each call, from where they stand; other values from outside
    are compared, and a new one compiles anew.

    Args:
        func: any pure function of trees of tensors: `covector.hessian(f)`, `torch.vmap(covector.grad(f))`.
        backend: "inductor" compiles to machine code; "replay" runs the traced operations, and needs no
            compiler; or a backend of `torch.compile`.
        fallback: "eager" runs what cannot be traced eagerly, with a `CompileWarning`; None raises.
        differentiable: whether results can be differentiated; they carry no graph if not.

    Returns:
        A function like `func`. Its `plans` tell what was compiled.

    Raises:
        ArgumentTypeError, ArgumentValueError: an option, or (at a call) an argument, cannot work.
        UntraceableError: (at a call) the function branches on values, draws random numbers, or is not pure.
        CompiledMismatchError: (at a call) the compiled result is not the eager one.

    Example:
        >>> import torch, covector
        >>> scale = torch.tensor(2.0)
        >>> fast = covector.compile(covector.grad(lambda x: (scale * x**2).sum()), backend="replay")
        >>> fast(torch.tensor([1.0, 2.0]))
        tensor([4., 8.])
        >>> _ = scale.fill_(1.0)
        >>> fast(torch.tensor([1.0, 2.0]))
        tensor([2., 4.])
    """
    caller = check_function("compile", func)
    if fallback not in (None, "eager"):
        raise ArgumentValueError(f"compile: fallback must be None or 'eager', got {fallback!r}.")
    if not isinstance(backend, str) and not callable(backend):
        raise ArgumentTypeError(
            "compile: backend must be 'inductor', 'replay' or a backend of torch.compile, got "
            f"{summary(backend)}."
        )
    every = ("inductor", "replay", *torch.compiler.list_backends(exclude_tags=()))
    if isinstance(backend, str) and backend not in every:
        named = dict.fromkeys(("inductor", "replay", *torch.compiler.list_backends()))  # not those for tests
        near = "".join(f" Did you mean {name!r}?" for name in get_close_matches(backend, every, 1))
        raise ArgumentValueError(
            f"compile: backend must be one of {', '.join(named)}, got {backend!r}.{near}"
        )
    return Compiled(caller, backend, fallback, differentiable)


class Compiled:
    """A function that `compile` made."""

    def __init__(self, caller: Caller, backend: Any, fallback: str | None, differentiable: bool) -> None:
        self.__wrapped__ = caller.function
        self.__name__ = caller.name
        self.__doc__ = getattr(caller.function, "__doc__", None)
        self._caller = caller
        self._backend = backend
        self._fallback = fallback
        self._through_dynamo = None
        if differentiable:
            self._through_dynamo = torch.compile(
                caller.function,
                fullgraph=True,
                dynamic=False,
                backend="aot_eager" if backend == "replay" else backend,
            )
        self._entries: dict[Any, list[_Entry]] = {}
        self._warned = False

    @property
    def plans(self) -> Plans:
        """What was compiled, in the order in which it was."""
        entries = [entry for several in list(self._entries.values()) for entry in several]
        return Plans(entry.plan for entry in entries if entry.plan is not None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return self  # as a function is

    def __repr__(self) -> str:
        count = len(self.plans)
        return f"<{self._caller}, {count} plan{'' if count == 1 else 's'}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function, computed by the program for arguments like these."""
        if here.recorded or levels.active() or levels.dual_level_open() or without_values():
            return self.__wrapped__(*args, **kwargs)  # a part of what somebody else traces or differentiates
        key, tensors = self._key(*(flatten((args, kwargs)) if kwargs else flatten(args)))
        for entry in self._entries.get(key, ()):
            if entry.program is None:
                if entry.applies(tensors):
                    return entry.run(*args, **kwargs)
                continue
            captured = entry.program.inputs(tensors)
            if captured is not None:
                return entry.program.result.filled(quietly(entry.run, [*tensors, *captured]))
        return self._first(key, tensors, args, kwargs)

    def _key(self, leaves: Sequence[Any], structure: Any) -> tuple[Any, list[Tensor]]:
        """What the arguments have to have in common with earlier ones, and the tensors among them."""
        autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        modes = torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled()
        key: list[Any] = [structure, torch.get_default_dtype(), levels.default_device(), autocast, *modes]
        tensors: list[Tensor] = []
        try:
            for leaf in leaves:
                if isinstance(leaf, Tensor):
                    if leaf.layout is not torch.strided:
                        raise TypeError(leaf.layout)
                    tensors.append(leaf)
                    key += (leaf.shape, leaf.stride(), leaf.dtype, leaf.device)
                    if self._through_dynamo is not None:
                        key.append(leaf.requires_grad and torch.is_grad_enabled())
                else:
                    hash(leaf)
                    key += (type(leaf), by_value(leaf))
        except (TypeError, RuntimeError) as error:
            raise ArgumentTypeError(
                f"{self._caller}: arguments must be dense tensors and values that can be compared (numbers, "
                f"strings), got {summary(leaf)}. Let the function capture it, or call the function itself."
            ) from error
        return tuple(key), tensors

    def _first(
        self, key: Any, tensors: Sequence[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compile for these arguments, then run."""
        with TRACING, progress(f"{self._caller}: compiling"):
            entries = self._entries.setdefault(key, [])
            if not any(entry.applies(tensors) for entry in entries):  # otherwise another thread was faster
                try:
                    self._refuse_too_many(entries)
                    entries.append(self._compiled(args, kwargs))
                except UntraceableError as error:
                    if self._fallback is None:
                        raise
                    self._warn(error)
                    entries.append(_Entry(None, None, self.__wrapped__))
        return self(*args, **kwargs)

    def _refuse_too_many(self, entries: Sequence[_Entry]) -> None:
        if len(entries) < _MOST_PROGRAMS:
            return
        program = entries[-1].program
        name = None if program is None else program.changed()
        raise UntraceableError(
            f"{self._caller}: {_MOST_PROGRAMS} programs were compiled for the same kinds of arguments, "
            f"because {name or 'something'} outside of the function changes. Pass it as an argument."
        )

    def _warn(self, error: UntraceableError) -> None:
        if not self._warned:
            self._warned = True
            warn(f"{error} It is run eagerly.", CompileWarning)

    def _compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Entry:
        start = perf_counter()
        call = _Call(args, kwargs)
        if self._through_dynamo is not None:
            found = outside_of(self.__wrapped__)
            values = [places[0].value for places in found.tensors.values()]
            check_gradients(self._caller, self._through_dynamo, args, kwargs, values)
            backend = f"{self._backend}, differentiable"
            plan = CompiledPlan(call.described(), backend, perf_counter() - start)
            return _Entry(plan, None, self._through_dynamo, found.requiring_grad())
        # What the function keeps from its first run is there when it is traced.
        eager = call.on_tensors(self.__wrapped__)
        expected = eager(*call.tensors)
        if not all(is_strided(leaf) for leaf in flatten(expected)[0] if isinstance(leaf, Tensor)):
            raise UntraceableError(
                f"{self._caller}: the function returns a sparse tensor, and programs give dense ones only. "
                "Of a sparse Jacobian or Hessian, compile a plan: jacobian_plan(f, x).compile()."
            )
        near = moved(call.tensors)
        with GradModeWatch() as watch:
            try:
                expected_near = eager(*near)
            except Exception:  # the function is not defined nearby
                near, expected_near = call.tensors, eager(*call.tensors)
        call.looks_at_grad_mode = watch.asked
        program, run, mode, backend = self._made(call)
        captured = self._captured(program, call)
        for tensors, result in ((call.tensors, expected), (near, expected_near)):
            compiled = program.result.filled(quietly(run, [*tensors, *captured]))
            check_same(self._caller, compiled, result)
        plan = CompiledPlan(
            call.described(),
            backend,
            perf_counter() - start,
            mode,
            program.size,
            tuple(places[0].name or "a tensor" for places in program.captured if places[0].name != CONSTANT),
            len(program.guards),
            program.fixed,
        )
        return _Entry(plan, program, run)

    def _made(self, call: _Call) -> _Made:
        """The program by the mode whose operations take less time, compiled if that makes it faster."""
        programs = self._traced(call)
        inputs = {mode: [*call.tensors, *self._captured(program, call)] for mode, program in programs.items()}
        runs = {mode: lower(self._caller, p, inputs[mode], "replay") for mode, p in programs.items()}
        times = dict(
            zip(runs, least_seconds([partial(quietly, runs[m], inputs[m]) for m in runs]), strict=True)
        )
        mode, *others = sorted(times, key=times.__getitem__)
        ratios = [f"{times[mode] / times[other]:.2g} of the time of {other} mode" for other in others]
        reason = f"{mode} mode, whose operations took {ratios[0]}" if ratios else ""
        made = _Made(programs[mode], runs[mode], reason, str(self._backend))
        if self._backend == "replay":
            return made
        run = lower(self._caller, made.program, inputs[mode], self._backend)
        if self._backend == "inductor":
            both = [partial(quietly, either, inputs[mode]) for either in (made.run, run)]
            operations, compiled = least_seconds(both)
            ratio = operations / compiled
            if ratio < _CLEARLY_LESS:
                return made._replace(backend=f"replay, which took {ratio:.2g} of the time of inductor")
        return made._replace(run=run)

    def _traced(self, call: _Call) -> dict[str, Program]:
        """The program, or those of both modes if the function lets them be chosen."""
        # What wraps a transform has its attributes too, but is not it.
        by_mode: Any = getattr(self.__wrapped__, "by_mode", None)
        may_choose = by_mode is not None and is_transform(self.__wrapped__)
        programs: dict[str, Program] = {}
        for mode in ("reverse", "forward") if may_choose else ():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", ForwardModeWarning)  # torch lacks a rule
                    programs[mode] = call.traced(self._caller, by_mode(mode))
            except (RuntimeError, ForwardModeWarning):  # the mode does not do, or nothing does
                continue
        if len(programs) == 2:
            return programs
        return {"": call.traced(self._caller, self.__wrapped__)}

    def _captured(self, program: Program, call: _Call) -> Sequence[Tensor]:
        """The tensors from outside that a program reads, if nothing else there has changed meanwhile."""
        captured = program.inputs(call.tensors)
        if captured is None:
            raise UntraceableError(
                f"{self._caller}: {program.changed() or 'something'} outside of the function changes while "
                "it runs. Pass it as an argument."
            )
        return captured


class _Call:
    """The arguments of a call, of which the tensors are to be traced."""

    looks_at_grad_mode = False
    """Whether the function does, which is known once it was run."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._arguments = Arguments(args, kwargs)
        leaves = self._arguments.leaves
        self._where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.tensors: list[Tensor] = [leaves[i] for i in self._where]

    def on_tensors(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of the tensors alone."""

        def flat(*tensors: Tensor) -> Any:
            leaves = list(self._arguments.leaves)
            for index, tensor in zip(self._where, tensors, strict=True):
                leaves[index] = tensor
            args, kwargs = self._arguments.rebuild(leaves)
            return function(*args, **kwargs)

        return flat

    def traced(self, caller: Caller, function: Callable[..., Any]) -> Program:
        """The program of the function for these arguments."""
        flat = self.on_tensors(function)
        return trace(caller, flat, self.tensors, as_called=self.looks_at_grad_mode)

    def described(self) -> str:
        """The arguments on a line."""
        return ", ".join(_kind(leaf) for leaf in self._arguments.leaves) or "no arguments"


def _kind(leaf: Any) -> str:
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
