"""Trees of tensors: flatten, rebuild, name the leaves, and pick the arguments to differentiate.

A container is whatever torch's own registry knows (tuples, lists, dicts, named tuples, dataclasses
that the user registered).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from reprlib import repr as shortened
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor
from torch.autograd import Function
from torch.nn import Module

from covector._engine.containers import registry
from covector.errors import ArgumentTypeError, ArgumentValueError, Caller

Spec: TypeAlias = registry.TreeSpec
Argnums = int | tuple[int, ...] | None
Argnames = str | tuple[str, ...] | None

_NO_KEYWORDS: dict[str, Any] = {}
_NOTHING: list[Any] = []

LEAF: Spec = registry.tree_flatten(0)[1]


def flatten(tree: Any) -> tuple[list[Any], Spec]:
    """The leaves of a tree, in order, and what is needed to rebuild it."""
    if isinstance(tree, Tensor):
        return [tree], LEAF
    if type(tree) is tuple and tree and _all_tensors(tree):
        return list(tree), tuple_of(len(tree))
    return registry.tree_flatten(tree)


def _all_tensors(values: Sequence[Any]) -> bool:
    for value in values:  # noqa: SIM110 - half the time of `all`, on the path of every call
        if not isinstance(value, Tensor):
            return False
    return True


def tuple_of(count: int) -> Spec:
    """The structure of a tuple of this many leaves."""
    return _TUPLES[count] if count < _FEW else registry.tree_flatten((0,) * count)[1]


# Tables, not caches, which torch.compile warns of.
_FEW = 8
_TUPLES = [registry.tree_flatten((0,) * count)[1] for count in range(_FEW)]


def unflatten(leaves: Sequence[Any], spec: Spec) -> Any:
    """The tree with these leaves."""
    if spec is LEAF:
        return leaves[0]
    return registry.tree_unflatten(leaves, spec)


def leaf_paths(tree: Any, root: str) -> list[str]:
    """How a person would write each leaf: `params['layer1.weight']`, `x[0]`."""
    return [root + registry.keystr(path) for path, _ in registry.tree_leaves_with_path(tree)]


def describe(spec: Spec) -> str:
    """The structure of a tree on one line, a `*` for each leaf."""
    return registry.treespec_pprint(spec)


class Evaluation(NamedTuple):
    """What one run of the caller's function returned, flat."""

    outputs: list[Any]
    spec: Spec
    aux: list[Any]
    aux_spec: Spec | None

    def value(self) -> Any:
        """The output as the function returned it."""
        return self.outputs[0] if self.spec is LEAF else unflatten(self.outputs, self.spec)

    def aux_value(self) -> Any:
        """The auxiliary part as the function returned it."""
        assert self.aux_spec is not None
        return unflatten(self.aux, self.aux_spec)


class Slot(NamedTuple):
    """One argument of a call: its leaves are `leaves[start:stop]` of the call's."""

    key: int | str
    start: int
    stop: int
    spec: Spec

    def take(self, leaves: Sequence[Any]) -> Any:
        if self.spec is LEAF:
            return leaves[self.start]
        return unflatten(leaves[self.start : self.stop], self.spec)


def _leaf_slots(count: int) -> list[Slot]:
    """The slots of a call with this many tensors and nothing else."""
    return [Slot(index, index, index + 1, LEAF) for index in range(count)]


_SLOTS = list(map(_leaf_slots, range(_FEW)))


class Arguments:
    """The arguments of one call, flat, with the leaves to differentiate singled out."""

    __slots__ = ("chosen", "flat", "leaves", "selected", "single", "slots")

    leaves: list[Any]
    slots: list[Slot]
    selected: list[Slot]
    chosen: Sequence[int]
    single: bool
    flat: bool
    """Positional tensors and nothing else: no tree has to be rebuilt."""

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.selected, self.chosen, self.single = _NOTHING, (), False
        self.flat = not kwargs and _all_tensors(args)
        if self.flat:
            count = len(args)
            self.leaves, self.slots = list(args), _SLOTS[count] if count < _FEW else _leaf_slots(count)
            return
        self.leaves, self.slots = [], []
        keyed: Iterator[tuple[int | str, Any]] = chain(enumerate(args), kwargs.items())
        for key, tree in keyed:
            start = len(self.leaves)
            leaves, spec = flatten(tree)
            self.leaves.extend(leaves)
            self.slots.append(Slot(key, start, len(self.leaves), spec))

    def select(self, slots: list[Slot], *, single: bool) -> Arguments:
        """Mark these arguments as the ones to differentiate; `single` drops the tuple around results."""
        self.selected = slots
        self.single = single
        if len(slots) == 1:
            self.chosen = range(slots[0].start, slots[0].stop)
        else:
            self.chosen = [index for slot in slots for index in range(slot.start, slot.stop)]
        return self

    def primals(self) -> list[Any]:
        """The leaves to differentiate."""
        leaves = self.leaves
        return [leaves[index] for index in self.chosen]

    def rebuild(self, leaves: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Positional and keyword arguments with these leaves in place of the original ones."""
        if self.flat:
            return leaves, _NO_KEYWORDS
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for slot in self.slots:
            if isinstance(slot.key, int):
                args.append(slot.take(leaves))
            else:
                kwargs[slot.key] = slot.take(leaves)
        return args, kwargs

    def tree_of(self, values: Sequence[Any]) -> Any:
        """One value per leaf to differentiate, arranged like the selected arguments."""
        if self.single and self.selected[0].spec is LEAF:
            return values[0]
        if self.flat:
            return tuple(values)
        trees, start = [], 0
        for slot in self.selected:
            count = slot.stop - slot.start
            trees.append(unflatten(values[start : start + count], slot.spec))
            start += count
        return trees[0] if self.single else tuple(trees)

    def at(self, leaves: list[Any]) -> Arguments:
        """The same call at other leaves."""
        moved = Arguments.__new__(Arguments)
        moved.leaves, moved.slots, moved.selected = leaves, self.slots, self.selected
        moved.chosen, moved.single, moved.flat = self.chosen, self.single, self.flat
        return moved

    def named(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Every leaf, whether it is chosen or not, by how a person would write it."""
        every = self.at(self.leaves)
        return dict(zip(every.select(every.slots, single=False).paths(function), self.leaves, strict=True))

    def only(self, wanted: Callable[[Any], bool]) -> Arguments:
        """Keep, of the leaves to differentiate, those that satisfy a condition."""
        self.chosen = [index for index in self.chosen if wanted(self.leaves[index])]
        return self

    def paths(self, function: Callable[..., Any]) -> list[str]:
        """How a person would write each leaf to differentiate."""
        names = parameter_names(function)
        path_of: dict[int, str] = {}
        for slot in self.selected:
            paths = leaf_paths(slot.take(self.leaves), _slot_name(slot, names))
            path_of.update(zip(range(slot.start, slot.stop), paths, strict=True))
        return [path_of[index] for index in self.chosen]


def _slot_name(slot: Slot, names: list[str]) -> str:
    if isinstance(slot.key, str):
        return slot.key
    return names[slot.key] if slot.key < len(names) else f"arg{slot.key}"


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters; empty where Python cannot tell."""
    if isinstance(function, Module):
        return parameter_names(function.forward)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, Function):
        # The `apply` of a custom Function takes what its `forward` takes after the context.
        legacy = owner.setup_context is Function.setup_context
        return parameter_names(owner.forward)[1 if legacy else 0 :]
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def select(
    caller: Caller,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    argnums: Argnums = 0,
    argnames: Argnames = None,
) -> Arguments:
    """The call of `caller.function` with the arguments that `argnums`/`argnames` name marked."""
    arguments = Arguments(args, kwargs)
    if argnames is None and type(argnums) is int and 0 <= argnums < len(args):
        return arguments.select([arguments.slots[argnums]], single=True)
    count = len(args)
    positions, names = _requested(caller, argnums, argnames, count)
    slots = [arguments.slots[_position(caller, argnum, count)] for argnum in positions]
    slots += [_named(caller, arguments, name, count) for name in names]
    if len({slot.key for slot in slots}) != len(slots):
        raise ArgumentValueError(
            f"{caller}: an argument is selected twice by "
            f"argnums={argnums!r}, argnames={argnames!r} in a call with {count} positional arguments. "
            "Name each argument once."
        )
    single = (isinstance(argnames, str) and not positions) or (isinstance(argnums, int) and not names)
    return arguments.select(slots, single=single)


def select_all(args: Sequence[Any]) -> Arguments:
    """The call `function(*args)` with every argument marked."""
    arguments = Arguments(args, _NO_KEYWORDS)
    return arguments.select(arguments.slots, single=False)


def _requested(
    caller: Caller, argnums: Argnums, argnames: Argnames, count: int
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    names = (argnames,) if isinstance(argnames, str) else _texts(caller, argnames)
    check_argnums(caller, argnums)
    if argnums is None:
        positions = tuple(range(count))
    elif isinstance(argnums, tuple):
        positions = argnums
    elif names:
        if argnums != 0:
            raise ArgumentValueError(
                f"{caller}: argnums={argnums} beside argnames={argnames!r} is ambiguous. To select by "
                f"position and by name, give a tuple: argnums=({argnums},)."
            )
        positions = ()
    else:
        positions = (argnums,)
    if not positions and not names:
        raise ArgumentValueError(
            f"{caller}: nothing to differentiate: argnums={argnums!r}, argnames={argnames!r}. "
            "Name at least one argument."
        )
    return positions, names


def _texts(caller: Caller, argnames: Argnames) -> tuple[str, ...]:
    if argnames is None:
        return ()
    if not isinstance(argnames, tuple | list):
        raise ArgumentTypeError(
            f"{caller}: argnames must be a string or a tuple of strings, got {argnames!r} "
            f"({type(argnames).__name__})."
        )
    return tuple(argnames)


def check_argnums(caller: Caller, argnums: Any, instead: str = "") -> None:
    """Refuse what is no int, no tuple of ints and not None; of an input, say what to write `instead`."""
    if argnums is None:
        return
    several = isinstance(argnums, tuple)
    for argnum in argnums if several else (argnums,):
        if not isinstance(argnum, int) or isinstance(argnum, bool):
            expected = "hold ints" if several else "be an int, a tuple of ints, or None for all"
            got = (
                "a tensor" if isinstance(argnum, Tensor) else f"{shortened(argnum)} ({type(argnum).__name__})"
            )
            hint = f" {instead}" if instead and _is_input(argnum) else ""
            raise ArgumentTypeError(f"{caller}: argnums must {expected}, got {got}.{hint}")


def _is_input(value: Any) -> bool:
    """Whether this is no position but what a function is called with: a tensor, an array, or numbers."""
    if isinstance(value, list):
        return any(map(_is_input, value))
    return isinstance(value, Tensor | float | complex) or bool(getattr(value, "shape", ()))


def _position(caller: Caller, argnum: int, count: int) -> int:
    if not -count <= argnum < count:
        raise ArgumentValueError(
            f"{caller}: argnums={argnum} is out of range: the call has {count} positional "
            f"argument{'' if count == 1 else 's'}. Arguments given by keyword are selected with "
            "argnames=."
        )
    return argnum % count


def _named(caller: Caller, arguments: Arguments, name: Any, count: int) -> Slot:
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"{caller}: argnames must be a string or a tuple of strings, got {name!r} "
            f"({type(name).__name__})."
        )
    for slot in arguments.slots[count:]:
        if slot.key == name:
            return slot
    known = parameter_names(caller.function)
    if name in known[:count]:
        return arguments.slots[known.index(name)]
    given = [*known[:count], *(str(slot.key) for slot in arguments.slots[count:])]
    raise ArgumentValueError(
        f"{caller}: the call has no argument named {name!r}; "
        f"it has: {', '.join(given) or 'none with a known name'}."
    )
