"""Where a function takes a tensor out of the graph: `detach`, `.data`, `.item()`, `no_grad`.

A derivative that is cut is not the derivative of the function. `traced` runs a function once, follows every
tensor that depends on an input, and gives the lines at which the graph is left on the way to an output.
`Held` is the same function with what was cut held at the value that it had in that run: the function of which
reverse mode computes the derivative.

The forward of a custom Function runs without a graph. That cuts nothing, unless its backward uses a tensor
that forward computed: the second derivative then lacks the part through that tensor. Such a tensor is held
where the backward reads it, while the outputs of the forward move.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from covector._engine.graph import is_backward, is_forward
from covector._engine.levels import GradMode
from covector._redirect import redirect, undisturbed
from covector._tree import Arguments, flatten, unflatten
from covector.checks.state import unchanged
from covector.errors import Caller
from covector.verify.leaves import is_differentiable

_OURS = f"{Path(__file__).parent.parent}{os.sep}"
_TORCHS = f"{Path(inspect.getfile(torch)).parent}{os.sep}"
_BETWEEN = (_TORCHS, __file__, inspect.getfile(undisturbed))
_FUNCTION = str(Path(inspect.getfile(torch.autograd.Function)))

# How numbers leave torch. What Python computes from them is not followed.
_EXITS = {"item", "tolist", "numpy", "__float__", "__complex__", "__array__"}
_WRITTEN = {
    "__float__": "float()",
    "__complex__": "complex()",
    "__array__": "NumPy",
    "data": ".data",
    "parameter": "Parameter()",
}
_NUMBERS = (float, complex, list, np.ndarray)
_COPIES = {"tensor", "as_tensor", "new_tensor", "asarray", "scalar_tensor", "parameter"}
_ALIASING = {"data", "detach", "detach_"}
# How numbers become integers. What chooses among them (argmax, sort, a comparison) has no derivative anyway.
_CASTS = {"long", "int", "short", "to", "type", "type_as"}

# An expression of more letters than this is not repeated.
_LONG = 60

NO_GRAD = "no_grad"

# How a tensor is cut that the forward of a custom Function computes and its backward uses.
SAVED = "saved in forward"


@dataclass(frozen=True)
class Cut:
    """A line of the caller's at which a tensor that depends on an input leaves the graph."""

    how: str
    file: str
    line: int
    expression: str = ""

    @property
    def place(self) -> str:
        """File and line, as an editor takes them."""
        name = self.file if self.file.startswith("<") else Path(self.file).name  # code that is in no file
        return f"{name}:{self.line}"

    @property
    def is_saved(self) -> bool:
        """Whether it is a tensor that a forward computes and its backward uses."""
        return self.how == SAVED

    def __str__(self) -> str:
        if self.is_saved:
            return f"`{self.expression}` ({self.place})" if self.expression else f"a tensor of {self.place}"
        through = f" through `{self.expression}`" if self.expression else ""
        return f"the derivative{through} is cut by {_quoted(self.how)} at {self.place}"


def _quoted(how: str) -> str:
    return "NumPy" if how == "NumPy" else f"`{how}`"


# A call that cuts: its file, its line, the function of torch that is called there, and for which time.
_Call = tuple[str, int, str, int]


@dataclass(frozen=True)
class _Value:
    """What a call gave in the run that was traced, and the cut that it is."""

    cut: Cut
    result: Any


@dataclass(frozen=True)
class Cuts:
    """The lines that matter for the outputs of a run, and the values at every line that may."""

    lines: tuple[Cut, ...]
    exits: tuple[Cut, ...]
    """Where numbers leave torch. What Python does with them is not followed: they may matter too."""
    values: dict[_Call, _Value]

    def without(self, *cuts: Cut) -> Cuts:
        """The same, with what is cut there not held."""
        values = {call: value for call, value in self.values.items() if value.cut not in cuts}
        lines, exits = (tuple(cut for cut in some if cut not in cuts) for some in (self.lines, self.exits))
        return Cuts(lines, exits, values)


def traced(call: Callable[[], Any], *, through_backwards: bool = False) -> Cuts:
    """Run a function, and find where tensors that depend on its inputs leave the graph.

    Gradients that the function computes inside are not followed; with `through_backwards`, every line counts
    that may matter for them.
    """
    with _Tracer() as tracer:
        outputs = call()
    leaves = [leaf for leaf in flatten(outputs)[0] if isinstance(leaf, Tensor)]
    reached = set().union(*(tracer.lost_in(leaf) for leaf in leaves))
    found = dict.fromkeys(tracer.found)
    unused = {cut for cut in found if cut.is_saved and cut not in tracer.used}
    lines = tuple(cut for cut in found if cut not in unused and (through_backwards or cut in reached))
    exits = tuple(cut for cut in found if cut in tracer.exits and cut not in lines)
    return Cuts(lines, exits, tracer.values).without(*unused)


_NOTHING: frozenset[Cut] = frozenset()


class _Told(TorchFunctionMode):
    """A mode that knows calls apart, and is told of parameters, which torch makes without asking modes."""

    def __init__(self) -> None:
        super().__init__()
        self._met: Counter[tuple[str, int, str]] = Counter()

    def _call(self, frame: FrameType | None, name: str) -> _Call | None:
        """Which call of the caller's this is, if it is one."""
        if frame is None:
            return None
        line = frame.f_code.co_filename, frame.f_lineno, name
        self._met[line] += 1
        return *line, self._met[line]

    def __enter__(self) -> Self:
        self._redirected = redirect({_MAKING: (Parameter.__new__, _made)})
        self._redirected.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._redirected.__exit__(*raised)


_MAKING = "torch.nn.Parameter.__new__"
_original = undisturbed(_MAKING, Parameter.__new__)


def _made(kind: type, data: Any = None, requires_grad: bool = True) -> Any:
    """A parameter, of which the modes of this thread are told."""
    if isinstance(data, Tensor) and has_torch_function((data,)):
        return handle_torch_function(parameter, (data,), data, kind, requires_grad)
    return _original(kind, data, requires_grad)


def parameter(data: Tensor, kind: type, requires_grad: bool) -> Any:
    """A parameter on the memory of a tensor."""
    return _original(kind, data, requires_grad)


class _Tracer(_Told):
    """Follows tensors that depend on an input beside the graph that torch makes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Cut] = []
        self.exits: set[Cut] = set()
        self.used: set[Cut] = set()
        """Of the tensors that a forward computes, those that a backward uses."""
        self.values: dict[_Call, _Value] = {}
        self._lost: dict[int, tuple[Tensor, frozenset[Cut]]] = {}
        """By the identity of a tensor: the cuts through which it depends on an input. It is kept, since its
        identity is taken again when it is gone."""
        self._written: dict[int, frozenset[Cut]] = {}
        """By the address of a storage: the cuts behind what was written into it past the graph."""
        self._aliases: dict[int, Tensor] = {}
        """By their identity, what was made by `.data` or `detach`."""
        self._at = _NOWHERE  # the call that is followed
        self._followed: _Call | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name = _name(func)
        # Of the tensor that a new one is like, nothing but device and dtype is taken.
        given = _tensors((tuple(args[1:] if name == "new_tensor" else args), kwargs or {}))
        lost = _NOTHING.union(*map(self.lost_in, given))
        connected = any(tensor.requires_grad for tensor in given)
        result = func(*args, **(kwargs or {}))
        self._at = _caller()
        self._followed = self._call(self._at.frame, name)
        if self._at.pass_ == _FORWARD:
            if connected or lost:
                self._follow_forward(name, result, lost)
            return result
        if self._at.pass_ == _BACKWARD:
            self.used.update(cut for cut in lost if cut.is_saved)
        if name in _ALIASING:
            self._aliases.update((id(alias), alias) for alias in _tensors(result))
        if name in _EXITS and (connected or lost) and isinstance(result, _NUMBERS):
            self.exits |= lost or self._cut(name, result)
        elif connected or lost:
            self._follow(name, args, result, lost, connected)
        return result

    def lost_in(self, tensor: Tensor) -> frozenset[Cut]:
        """The cuts through which a tensor depends on an input."""
        _, lost = self._lost.get(id(tensor), (tensor, _NOTHING))
        if tensor.requires_grad:  # as the output of a custom Function, once its forward has returned
            return frozenset(cut for cut in lost if not cut.is_saved)
        return lost | self._written.get(_address(tensor), _NOTHING) if self._written else lost

    def _follow_forward(self, name: str, result: Any, lost: frozenset[Cut]) -> None:
        """Mark what the forward of a custom Function computes: a cut, if its backward uses it."""
        own = self._cut(name, result, SAVED) | frozenset(cut for cut in lost if not cut.is_saved)
        self._lost.update((id(t), (t, own)) for t in _tensors(result) if is_differentiable(t))

    def _follow(
        self, name: str, args: Sequence[Any], result: Any, lost: frozenset[Cut], connected: bool
    ) -> None:
        """Mark the results of a call with the cuts behind them."""
        for tensor in _tensors(result):
            cast = name in _CASTS and tensor.dtype is not torch.bool
            if not (lost or cast or is_differentiable(tensor)):
                continue
            in_place = bool(args) and tensor is args[0]
            beside = in_place and id(tensor) in self._aliases  # the graph does not know whom it writes to
            past = connected and (beside or not tensor.requires_grad or name == "parameter")
            cuts = lost | self._cut(name, result, ".data" if beside else "") if past else lost
            if cuts:
                self._lost[id(tensor)] = tensor, cuts
            if cuts and in_place:
                address = _address(tensor)
                self._written[address] = self._written.get(address, _NOTHING) | cuts

    def _cut(self, name: str, result: Any, how: str = "") -> frozenset[Cut]:
        """The cut that this call is, if a line of the caller's makes it."""
        if name.endswith("_like") or (name.startswith("new_") and name not in _COPIES):
            return _NOTHING  # nothing but shape and dtype is taken
        frame, call = self._at.frame, self._followed
        if frame is None or call is None:
            return _NOTHING
        how = how or _how(name)
        cut = Cut(how, call[0], call[1], _expression(frame, how))
        self.found.append(cut)
        self.values[call] = _Value(cut, _copied(result))
        return frozenset((cut,))


class Held:
    """A function with what its cuts give held at the values of one run."""

    def __init__(self, function: Callable[..., Any], cuts: Cuts) -> None:
        update_wrapper(self, function)
        self._function, self._cuts = function, cuts
        # Whether a function closes over its inputs is read from here.
        self.__closure__ = getattr(function, "__closure__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs at other inputs, with the values of the cuts as they were."""
        with Holding(self._cuts):
            return self._function(*args, **kwargs)


def held_at(
    caller: Caller, arguments: Arguments, *, through_backwards: bool = False
) -> tuple[Caller, tuple[Cut, ...]]:
    """The caller's function with what it cuts held at its values for these arguments, and the lines."""
    leaves = list(arguments.leaves)
    for index in arguments.chosen:
        leaves[index] = leaves[index].detach().clone().requires_grad_()
    args, kwargs = arguments.rebuild(leaves)
    with unchanged(caller.function), GradMode(enabled=True):
        cuts = traced(lambda: caller.function(*args, **kwargs), through_backwards=through_backwards)
    # What a backward takes from its forward is no cut that somebody meant.
    cuts = cuts.without(*(cut for cut in cuts.lines if cut.is_saved))
    return Caller(caller.verb, Held(caller.function, cuts)), (*cuts.lines, *cuts.exits)


class Holding(_Told):
    """Inside, each call that cuts is answered with the value that it had."""

    def __init__(self, cuts: Cuts) -> None:
        super().__init__()
        self._values = cuts.values
        self._names = {name for _, _, name, _ in cuts.values}
        self._saved: dict[int, tuple[Tensor, Tensor]] = {}
        """By the identity of what a forward computed: the tensor, and what a backward reads instead."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = _name(func), kwargs or {}
        at = _caller() if self._saved or name in self._names else _NOWHERE
        if self._saved and at.pass_ == _BACKWARD:
            args, kwargs = self._as_saved((tuple(args), kwargs))
        result = func(*args, **kwargs)
        call = self._call(at.frame, name)
        if call not in self._values:
            return result
        value = self._values[call]
        if value.cut.is_saved:
            pairs = zip(_tensors(result), _tensors(value.result), strict=True)
            self._saved.update((id(moved), (moved, held)) for moved, held in pairs)
            return result
        return _answered(func, args, result, value.result)

    def _as_saved(self, given: Any) -> Any:
        """Arguments of a call in a backward, with what a forward computed as it was."""
        leaves, spec = flatten(given)
        held = [
            self._saved[id(leaf)][1] if id(leaf) in self._saved and not leaf.requires_grad else leaf
            for leaf in leaves
        ]
        return unflatten(held, spec)


def _answered(func: Callable[..., Any], args: Sequence[Any], result: Any, value: Any) -> Any:
    """The result of a call, with the numbers that it had."""
    if not isinstance(result, Tensor):
        return _copied(value)
    if args and result is args[0]:
        result.data.copy_(value)
        return result
    held = value.to(result.dtype, copy=True)
    return func(held, *args[1:]) if func is parameter else held


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]


def _copied(value: Any) -> Any:
    """The numbers of a result, on memory of their own."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    return type(value)(map(_copied, value)) if type(value) in (tuple, list) else value


def _address(tensor: Tensor) -> int:
    """Where the numbers of a tensor are; -1 for one that has no memory of its own."""
    try:
        return tensor.untyped_storage().data_ptr() or -1
    except (RuntimeError, NotImplementedError):
        return -1


def _name(func: Callable[..., Any]) -> str:
    """What a person calls a function of torch; an attribute is read by its `__get__`."""
    name = getattr(func, "__name__", "")
    return getattr(func.__self__, "__name__", name) if name == "__get__" else name  # type: ignore[attr-defined]


def _how(name: str) -> str:
    """What a cut is called."""
    if name in _EXITS or name in _COPIES or name in _ALIASING or torch.is_grad_enabled():
        return _WRITTEN.get(name, f"{name}()")
    return NO_GRAD


class _At(NamedTuple):
    """Where a call of torch stands: the frame of the caller's, and the pass of a custom Function it is in."""

    frame: FrameType | None
    pass_: str = ""


_FORWARD, _BACKWARD, _NOWHERE = "forward", "backward", _At(None)


def _caller() -> _At:
    """Where the caller calls torch; nowhere, if it is torch that does so for a custom Function, or we."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        if _pass_of(frame):
            return _NOWHERE
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith(_OURS):
        return _NOWHERE
    outer: FrameType | None = frame
    while outer is not None and not outer.f_code.co_filename.startswith(_OURS):
        if found := _pass_of(outer):
            return _At(frame, found)
        outer = outer.f_back
    return _At(frame)


def _pass_of(frame: FrameType) -> str:
    """Which pass of a custom Function a frame is, or runs."""
    code = frame.f_code
    if code.co_filename == _FUNCTION:
        return _BACKWARD if is_backward(code) else _FORWARD
    return _FORWARD if code.co_name == "forward" and is_forward(code) else ""


def _expression(frame: FrameType, how: str) -> str:
    """What is cut, as it is written, if that is short."""
    first, last, start, stop = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    if first is None or first != last or start is None or stop is None:
        return ""
    line = linecache.getline(frame.f_code.co_filename, first, frame.f_globals)
    text = line.encode()[start:stop].decode(errors="ignore")
    for written in (
        rf"(.*)\.{re.escape(how)}",
        rf"(.*){re.escape(how)}",
        rf"[\w.]*{re.escape(how[:-1])}(.*)\)",
    ):
        if how != NO_GRAD and (inside := re.fullmatch(written, text)):
            text = inside[1]
            break
    return text if len(text) <= _LONG else ""
