"""Trees: containers of torch's registry, paths, and the selection of arguments."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.utils import _pytree as registry

from covector._tree import LEAF, Arguments, flatten, leaf_paths, select, unflatten
from covector.errors import ArgumentTypeError, ArgumentValueError, Caller

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class State:
    position: torch.Tensor
    momentum: torch.Tensor


registry.register_dataclass(State)

x, y, z = (torch.full((2,), float(n)) for n in range(3))

TREES = [
    x,
    (x, [y, {"a": z}]),
    Pair(x, (y,)),
    OrderedDict(b=x, a=y),
    {"s": State(x, y)},
    State(x, State(y, z)),
    (),
    None,
    (x, None, 3),
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_round_trip(tree):
    """Flattening and rebuilding gives the same container with the same leaves."""
    leaves, spec = flatten(tree)
    again = unflatten(leaves, spec)
    assert type(again) is type(tree)
    assert all(a is b for a, b in zip(flatten(again)[0], leaves, strict=True))
    assert flatten(again)[1] == spec


def test_a_bare_tensor_takes_the_short_way():
    assert flatten(x)[1] is LEAF


def test_paths_read_like_python():
    """Each leaf is written the way its owner would write it."""
    assert leaf_paths({"layer1.weight": x, "b": [y, Pair(x, z)]}, "params") == [
        "params['layer1.weight']",
        "params['b'][0]",
        "params['b'][1].left",
        "params['b'][1].right",
    ]
    assert leaf_paths(State(x, y), "state") == ["state.position", "state.momentum"]
    assert leaf_paths(x, "x") == ["x"]


def function(a, b, *rest, scale=1.0):
    """A function to select arguments of."""


CALLER = Caller("grad", function)


def chosen(argnums=0, argnames=None, args=(x, {"k": y}, z), kwargs=None):
    arguments = select(CALLER, args, kwargs or {"scale": x}, argnums, argnames)
    return arguments.paths(function), arguments.single


@pytest.mark.parametrize(
    ("argnums", "argnames", "paths", "single"),
    [
        (0, None, ["a"], True),
        (-1, None, ["arg2"], True),
        (1, None, ["b['k']"], True),
        ((2, 0), None, ["arg2", "a"], False),
        ((-2,), None, ["b['k']"], False),
        (0, "scale", ["scale"], True),
        (0, "b", ["b['k']"], True),
        (0, ("scale", "a"), ["scale", "a"], False),
        ((1,), "scale", ["b['k']", "scale"], False),
    ],
)
def test_selection(argnums, argnames, paths, single):
    """Positions, negative positions, names of keywords and names of positional parameters."""
    assert chosen(argnums, argnames) == (paths, single)


@pytest.mark.parametrize(
    ("argnums", "argnames", "error", "text"),
    [
        (3, None, ArgumentValueError, "argnums=3 is out of range: the call has 3 positional arguments"),
        (-4, None, ArgumentValueError, "argnums=-4 is out of range"),
        ((0, 0), None, ArgumentValueError, "selected twice"),
        ((0, -3), None, ArgumentValueError, "selected twice"),
        ((0,), "a", ArgumentValueError, "selected twice"),
        ((), None, ArgumentValueError, "nothing to differentiate"),
        (0, (), ArgumentValueError, None),
        (
            [0],
            None,
            ArgumentTypeError,
            "argnums must be an int, a tuple of ints, or None for all, got [0] (list)",
        ),
        (True, None, ArgumentTypeError, "got True (bool)"),
        (("a",), None, ArgumentTypeError, "argnums must hold ints, got 'a' (str)"),
        (
            (torch.zeros(2),),
            None,
            ArgumentTypeError,
            "argnums must hold ints, got a tensor.",
        ),
        (1, "scale", ArgumentValueError, "give a tuple: argnums=(1,)"),
        (0, "missing", ArgumentValueError, "no argument named 'missing'; it has: a, b, scale"),
        (0, (1,), ArgumentTypeError, "argnames must be a string or a tuple of strings, got 1 (int)"),
    ],
)
def test_bad_selection(argnums, argnames, error, text):
    """Each mistake is named, with the function that the user called."""
    if text is None:  # no names at all: the default position is used
        assert chosen(argnums, argnames) == (["a"], True)
        return
    with pytest.raises(error) as caught:
        chosen(argnums, argnames)
    assert str(caught.value).startswith("grad(function): ")
    assert text in str(caught.value)


def test_rebuild_puts_leaves_back_in_place():
    """Positional and keyword arguments come back with the leaves that were swapped in."""
    arguments = Arguments((x, [y]), {"k": {"z": z}})
    args, kwargs = arguments.rebuild([1, 2, 3])
    assert (args, kwargs) == ([1, [2]], {"k": {"z": 3}})
