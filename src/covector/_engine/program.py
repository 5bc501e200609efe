"""Programs: a function traced once into a graph, with the tensors that it captures as inputs, and compiled.

`trace` runs the function under `make_fx` on real tensors and gives a `Program`; `lower` makes it callable.
"""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from covector._engine import versions
from covector._engine.bindings import by_functions
from covector._engine.messages import runs_higher_order
from covector._engine.modes import TRACING
from covector._engine.observe import Call, Observer, WaysOut, tensors_in
from covector._engine.outside import GONE, Get, Outside, Place, always, is_plain, outside_of
from covector._engine.ready import keep_apart, short, untransposed, written_out
from covector._engine.tensors import version
from covector._lazy import lazy
from covector._tree import LEAF, Spec, flatten, unflatten
from covector.errors import Caller, UnsupportedError, UntraceableError

Kind = tuple[Any, ...]
Flat = Callable[..., Any]
Run = Callable[..., Sequence[Tensor]]

_aten = torch.ops.aten

# The name of a place that was made up for a tensor which stands nowhere.
CONSTANT = "constant"

_BASES = {_aten.eye.default, _aten.eye.m}
# Elements of a basis that is kept: 8 MB in double precision.
_LARGEST_BASIS = 2**20

# Of no effect where nothing is recorded.
_NOTHING = {_aten.detach.default, _aten.alias.default, _aten.lift_fresh.default}


class Result(NamedTuple):
    """The structure of what a function returned; `tensors` says which of its leaves are tensors."""

    spec: Spec
    leaves: list[Any]
    tensors: list[int]

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """The result with these tensors."""
        if self.spec is LEAF and self.tensors:
            return tensors[0]
        leaves = list(self.leaves)
        for index, tensor in zip(self.tensors, tensors, strict=True):
            leaves[index] = tensor
        return unflatten(leaves, self.spec)


@dataclass(frozen=True)
class Program:
    """A function as a graph of operations: of its arguments, then of the tensors that it captures."""

    module: GraphModule
    result: Result
    captured: tuple[tuple[Place, ...], ...]
    """The places of each captured tensor; all of them held the same tensor."""
    kinds: tuple[Kind, ...]
    """What each captured tensor has to be like; the same tensor may have become another one by `.data`."""
    guards: tuple[Place, ...]
    """Values from outside that have to be the same for the program to be the function."""
    fixed: tuple[str, ...]
    """What is built into the graph and cannot be read anew."""
    required: tuple[bool, ...] | None = None
    """Which arguments required grad, if the function looks at that."""

    @property
    def size(self) -> int:
        """How many operations the graph has."""
        return sum(node.op == "call_function" for node in self.module.graph.nodes)

    def inputs(self, arguments: Sequence[Tensor]) -> list[Tensor] | None:
        """The captured tensors as they are now; None if the program is not the function any more.

        `arguments` are the tensors among those of the call.
        """
        if self.required is not None and self.required != _required(arguments):
            return None
        try:
            for get, value, guard in self._guarded:
                if get() is not value and not guard.holds():
                    return None
            tensors = []
            for get, kind, others in self._read:
                tensor = get()
                if kind is not None and (not isinstance(tensor, Tensor) or _kind(tensor) != kind):
                    return None
                for other in others:
                    if other.get() is not tensor:
                        return None
                tensors.append(tensor)
        except GONE:
            return None
        return tensors

    # What every call goes through, without the names that errors need.
    @lazy
    def _guarded(self) -> list[tuple[Get, Any, Place]]:
        return [(guard.get, guard.value, guard) for guard in self.guards]

    @lazy
    def _read(self) -> list[tuple[Get, Kind | None, Sequence[Place]]]:
        """For each captured tensor its first place, what it has to be like, and its other places."""
        return [
            (first.get, None if first.name == CONSTANT else kind, others)
            for (first, *others), kind in zip(self.captured, self.kinds, strict=True)
        ]

    def constants(self) -> dict[int, Tensor]:
        """The tensors that are built into the graph, by the position of the input that they are given as."""
        inputs = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        first = len(inputs) - len(self.captured)
        return {
            first + number: places[0].value
            for number, places in enumerate(self.captured)
            if places[0].name == CONSTANT
        }

    def changed(self) -> str | None:
        """The name of a value from outside that is not what it was."""
        return next((guard.name for guard in self.guards if not guard.holds()), None)


def _required(tensors: Sequence[Tensor]) -> tuple[bool, ...]:
    return tuple(tensor.requires_grad for tensor in tensors)


def _kind(tensor: Tensor) -> Kind:
    stride = tensor.stride() if tensor.layout is torch.strided else None
    return tensor.shape, stride, tensor.dtype, tensor.device, tensor.layout


def trace(caller: Caller, function: Flat, tensors: Sequence[Tensor], *, as_called: bool = False) -> Program:
    """Run the function once on these tensors, and keep what it did as a graph.

    Nothing is recorded meanwhile, which takes fewer operations. For a function that looks at grad mode it is
    as the caller has it (`as_called`), and the program holds for that.

    Raises:
        UntraceableError: the function branches on values, draws random numbers, or changes a tensor.
    """
    found = outside_of(caller.function)
    watched = [places[0] for places in found.tensors.values()]
    watched += [always("an argument", tensor) for tensor in tensors]
    before = [version(place.value) for place in watched]
    results: list[Result] = []
    sizing: list[_Sizing] = []

    def flat(*inputs: Tensor) -> list[Tensor]:
        sizing.clear()
        with Observer(lambda call: None, partial(_note_sizing, sizing), lambda name, tensor: None):
            leaves, spec = flatten(function(*inputs))
        indices = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        results.append(Result(spec, constants, indices))
        return [*(leaves[i] for i in indices), *(each.tensor for each in sizing)]

    inputs = [t.detach().requires_grad_(as_called and t.requires_grad) for t in tensors]
    try:
        with (
            TRACING,
            nullcontext() if as_called else torch.no_grad(),
            WaysOut(partial(_refuse_reading, caller)),
        ):
            module = make_fx(flat, tracing_mode="real")(*inputs)
    except RuntimeError as error:
        raise _explained(caller, error) from error
    for place, known in zip(watched, before, strict=True):
        if version(place.value) != known:
            raise UntraceableError(
                f"{caller}: the function changes {place.name} in place (as batch normalization in training "
                "mode does with its statistics); a compiled function has to be pure. Put the module in "
                ".eval() mode, or return the new tensor."
            )
    _check_draws(caller, module, lambda: function(*tensors))
    steady = _steady(caller, module, sizing, found)
    program = _lifted(module, results[-1], found)
    program = replace(program, guards=(*program.guards, *steady))
    if not as_called:
        return program
    mode = Place("grad mode", torch.is_grad_enabled, torch.is_grad_enabled())
    guards = (*program.guards, *found.requiring_grad(), mode)
    return replace(program, guards=guards, required=_required(tensors))


def _explained(caller: Caller, error: RuntimeError) -> RuntimeError:
    """Ours where tracing is what failed; the error itself where the function is."""
    if runs_higher_order(error):
        return UntraceableError(
            f"{caller}: the function uses an operator that takes functions (torch.cond, a scan, flex "
            "attention), of which no program is made. Use torch.where or a loop; with fallback='eager' it "
            "runs as it is."
        )
    if isinstance(error, UntraceableError) or "tracing tensor" not in str(error):
        return error
    return UntraceableError(
        f"{caller}: the function looks at the value of a tensor (an `if`, a loop, `.item()` or `float()` on "
        f"it){_line_of(error.__traceback__)}; a graph is traced once for all values. Use torch.where; "
        "with fallback='eager' it runs as it is."
    )


# The folders of torch's code and of ours; a user's own folder may have the same name.
_NOT_THE_USERS = tuple(
    f"{Path(file).parents[up]}{os.sep}" for file, up in ((torch.__file__, 0), (__file__, 1))
)


def _line_of(trace: TracebackType | None) -> str:
    """Where in the user's code something happened."""
    return _line([(frame.filename, frame.lineno, frame.line) for frame in traceback.extract_tb(trace)])


def _line(frames: Sequence[tuple[str, int | None, str | None]]) -> str:
    for file, number, text in reversed(frames):
        if not file.startswith(_NOT_THE_USERS):
            return f", at {file}:{number}: `{text}`"
    return ""


def _refuse_reading(caller: Caller, how: str, tensor: Tensor) -> None:
    """Hand no numbers of a tensor to something that tracing does not see."""
    frames = [(frame.filename, frame.lineno, frame.line) for frame in traceback.extract_stack()]
    raise UntraceableError(
        f"{caller}: the function takes the numbers out of a tensor ({how}){_line(frames)}; what is computed "
        "with them cannot be traced. Use torch's operations; with fallback='eager' it runs as it is."
    )


class _Sizing(NamedTuple):
    """A tensor by whose values a size is decided, and where in the user's code."""

    tensor: Tensor
    line: str


# Operations that decide on a size by some of their arguments only: by which.
_SIZED_BY = {_aten.index.Tensor: "indices", _aten.masked_select.default: "mask"}


def _note_sizing(sizing: list[_Sizing], call: Call) -> None:
    """Note by what an operation decides how large its result is, if it decides by values."""
    if torch.Tag.dynamic_output_shape not in call.function.tags:
        return
    name = _SIZED_BY.get(call.function)
    deciding = list(tensors_in(call.arguments.values() if name is None else [call.arguments[name]]))
    if name == "indices":
        deciding = [index for index in deciding if index.dtype in (torch.bool, torch.uint8)]
    if deciding:
        line = _line([(frame.filename, frame.lineno, frame.line) for frame in traceback.extract_stack()])
        sizing += [_Sizing(tensor, line) for tensor in deciding]


def _steady(caller: Caller, module: GraphModule, sizing: Sequence[_Sizing], found: Outside) -> list[Place]:
    """Captured tensors by whose values sizes are decided, and which have to be as they were.

    The tensors that decide are the last results of the graph, and are taken off it here.
    """
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    made = list(output.args[0])
    count = len(made) - len(sizing)
    output.args = (made[:count],)
    steady = []
    for node, each in zip(made[count:], sizing, strict=True):
        for source in _sources(node):
            if source.op == "placeholder":
                raise UntraceableError(
                    f"{caller}: the function makes a tensor whose size depends on values{each.line}; a graph "
                    "is traced once for all values. Use torch.where, or multiply by the mask; with "
                    "fallback='eager' it runs as it is."
                )
            tensor = getattr(module, str(source.target))
            for place in found.tensors.get(id(tensor), ()):
                steady.append(Place(place.name, partial(_unchanged, place, tensor), version(tensor)))
    return steady


def _sources(node: Node) -> list[Node]:
    """The inputs and constants from which a node is computed."""
    met = dict.fromkeys([node])
    pending = [node]
    for one in pending:  # it grows on the way
        new = [each for each in one.all_input_nodes if each not in met]
        met.update(dict.fromkeys(new))
        pending += new
    return [one for one in met if one.op in ("placeholder", "get_attr")]


def _unchanged(place: Place, tensor: Tensor) -> int:
    """The version of a tensor, if it stands where it stood."""
    return version(tensor) if place.get() is tensor else -1


class _Drawn(Exception):
    """A random number was drawn."""


def _line_of_draw(run: Callable[[], Any]) -> str:
    """Where in the user's code a run draws random numbers."""

    def stop_at_draw(call: Call) -> None:
        if call.random:
            raise _Drawn

    try:
        with Observer(stop_at_draw, lambda call: None, lambda name, tensor: None):
            run()
    except _Drawn as drawn:
        return _line_of(drawn.__traceback__)
    return ""


def _check_draws(caller: Caller, module: GraphModule, run: Callable[[], Any]) -> None:
    """No operation draws random numbers; one that may, but does not, goes where nothing needs it."""
    for node in reversed(module.graph.nodes):
        if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        if _argument(node, "dropout_p") != 0:
            raise UntraceableError(
                f"{caller}: the function draws random numbers with {node.target}"
                f"{_line_of_draw(run)}; a compiled function gives the same result for "
                "the same arguments. Draw outside, and pass the numbers."
            )
        if not node.users:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _argument(node: Node, name: str) -> Any:
    """What an operation was given for an argument; None if it has no such argument."""
    for position, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == name:
            given = node.args[position] if position < len(node.args) else node.kwargs.get(name)
            return argument.default_value if given is None else given
    return None


def _is_basis(node: Node) -> bool:
    """Whether a node makes the basis of a Jacobian, and not too large a one.

    Read from memory it takes part in vectorized loops; computed in them, entry by entry, it slows them down.
    """
    return node.target in _BASES and prod(node.args[:2]) <= _LARGEST_BASIS  # type: ignore[arg-type]


def _lifted(module: GraphModule, result: Result, found: Outside) -> Program:
    """The graph with the captured tensors as inputs, after the arguments."""
    graph = module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    by_tensor: dict[int, Node] = {}
    captured: list[tuple[Place, ...]] = []
    fixed: list[str] = []
    for node in [node for node in graph.nodes if node.op == "get_attr" or _is_basis(node)]:
        tensor = (
            node.target(*node.args, **node.kwargs) if callable(node.target) else getattr(module, node.target)
        )
        if id(tensor) not in by_tensor:
            places = found.tensors.get(id(tensor))
            if places is None and not callable(node.target):
                fixed.append(f"a tensor of shape {tuple(tensor.shape)} made in the function or out of sight")
            if places is None:
                places = [always(CONSTANT, tensor)]
            last = inputs[-1] if inputs else None
            with graph.inserting_after(last) if last is not None else graph.inserting_before():
                by_tensor[id(tensor)] = graph.placeholder(f"captured_{len(captured)}")
            inputs.append(by_tensor[id(tensor)])
            captured.append(tuple(places))
        node.replace_all_uses_with(by_tensor[id(tensor)])
        graph.erase_node(node)
    for node in [node for node in graph.nodes if node.target in _NOTHING]:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    constants = {
        n for n, places in zip(by_tensor.values(), captured, strict=True) if places[0].name == CONSTANT
    }
    keep_apart(graph, constants)
    graph.eliminate_dead_code()
    bare = GraphModule({}, graph)
    untransposed(bare)
    bare.recompile()
    fixed += [f"{value!r}, a result" for value in result.leaves if value is not None and is_plain(value)]
    kinds = tuple(_kind(places[0].value) for places in captured)
    return Program(bare, result, tuple(captured), kinds, tuple(found.values), (*fixed, *found.skipped))


def quietly(run: Run, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Run a program with nothing recorded."""
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        return run(*inputs)
    finally:
        torch._C._set_grad_enabled(before)


def lower(caller: Caller, program: Program, example: Sequence[Tensor], backend: Any) -> Run:
    """The program as a function of flat tensors, by a backend.

    Args:
        caller: named in errors.
        program: what to compile.
        example: tensors like those that it will be called with.
        backend: "replay" runs the graph as it is; "inductor" compiles it; others are for torch.compile.
    """
    if backend == "replay":
        return by_functions(short(program.module, program.constants()), example).forward
    if backend != "inductor":
        return torch.compile(program.module, backend=backend, fullgraph=True, dynamic=False)
    named = os.environ.get("CXX")
    if not any(map(shutil.which, [named] if named else ["g++", "clang++", "c++", "cl"])):
        raise UnsupportedError(
            f"{caller}: backend='inductor' needs a C++ compiler, and there is none "
            f"({f'CXX={named}' if named else 'g++, clang++'}). Install one, or pass backend='replay', which "
            "runs the traced graph without one."
        )
    versions.require(versions.NEEDED_BY_INDUCTOR, "backend='inductor'")
    from torch._inductor import standalone_compile

    written_out(program.module, example)
    with torch.no_grad():
        return standalone_compile(program.module, list(example), dynamic_shapes="from_example_inputs")
