"""Every public function with arbitrary arguments: a result or an error of ours, and nothing else changed.

`make test` draws a few hundred examples, `make sweep` twenty thousand (`FUZZ=n` for another number,
`FUZZ_SEED=k` for other ones). What once failed is kept in `KEPT`, by kind.
"""

from __future__ import annotations

import os
import re
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.utils import _pytree as registry

import covector
from covector import compat, functional
from covector import scipy as covector_scipy
from covector._engine.messages import missing_kernel
from covector.errors import CovectorError
from covering import random_examples
from doors import DOORS, NOT_CALLED, TRANSFORMS, Call, ones
from fuzzed import Example, Function, Leaf, Made, Planted, Thing, examples
from watched import marks, state

pytestmark = [
    pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

SOURCE = str(Path(covector.__file__).parent)
# Seconds after which an example is said to hang. Most take milliseconds; on a busy machine the first that
# compiles has waited for a minute.
PATIENCE = 600


class Hang(BaseException):
    """An example that did not come to an end."""


@contextmanager
def patience() -> Iterator[None]:
    """End what hangs, with its traceback."""

    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def directions(kind: str, like: Any) -> Any:
    """Tangents or cotangents as an example wants them."""
    if kind == "like" or kind == "ones":
        return ones(like)
    if kind == "none":
        return None
    if kind == "text":
        return "text"
    if kind == "too few":
        return like[:-1] if isinstance(like, tuple | list) else ()
    change = {
        "another shape": lambda t: torch.ones(5, dtype=t.dtype),
        "complex": lambda t: torch.ones(t.shape, dtype=torch.complex128),
        "integers": lambda t: torch.ones(t.shape, dtype=torch.int64),
    }[kind]
    return registry.tree_map_only(Tensor, change, like)


def skeleton(tree: Any) -> str:
    """The containers of a tree, with the identity of each leaf."""
    leaves, spec = registry.tree_flatten(tree)
    return f"{spec} {[id(leaf) for leaf in leaves]}"


def tried(example: Example) -> str:
    """How the call of an example ended; nothing happens that should not."""
    door = DOORS[example.door]
    listed, keywords = example.made()
    inputs = tuple(listed)
    function = Made(example.function, lambda f, *args: door.use(Call(f, args, {}, ones)))
    call = Call(function, inputs, keywords, lambda like: directions(example.directions, like))
    tensors = [leaf for leaf in registry.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    tidy = example.function.misbehaviour != "writes to its inputs"
    random = example.function.body != "random"
    enabled = torch.is_grad_enabled()
    before, marked, shape = state(random=random), marks(tensors), skeleton(inputs)
    raised: BaseException | None = None
    try:
        with warnings.catch_warnings(), patience():
            warnings.simplefilter("ignore")
            door.use(call)
    except (Exception, Hang) as error:
        raised = error
    after = state(random=random)
    torch._C._set_grad_enabled(enabled)
    if raised is not None and not acceptable(raised, function):
        raise AssertionError(f"{example}: {type(raised).__name__}: {raised}") from raised
    if example.function.misbehaviour == "turns gradients off" and example.door in TRANSFORMS:
        before["grad mode"] = after["grad mode"]  # a transform may leave that as the function did
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert not changed, f"{example}: changed {changed}"
    assert not tidy or marks(tensors) == marked, f"{example}: an input was changed"
    # These differentiate by moving the caller's own tensors, and hand the function what they are in.
    moves = example.door.startswith("compat.get_numerical")
    assert moves or skeleton(inputs) == shape, f"{example}: a container of the caller's was changed"
    return "a result" if raised is None else type(raised).__name__


def acceptable(error: BaseException, function: Made) -> bool:
    """Whether an error is one of ours, the function's own, or torch's word on the function's derivative."""
    if isinstance(error, CovectorError | Planted):
        return True
    if function.spec.body.startswith("backward") and isinstance(error, RuntimeError):
        return True  # torch's word on a backward that returns what no gradient can be
    if type(error).__module__.startswith("torch._dynamo") and function.runs > 1:
        return True  # of a compiled function that changed after it was compiled
    if isinstance(error, RuntimeError) and missing_kernel(error):
        return True  # torch's word on a sparse tensor for which it lacks an operation, by name
    if function.spec.misbehaviour == "writes to its inputs" and re.search("in-?place operation", str(error)):
        return True  # torch's word on what the function did to its graph, or to a leaf
    link: BaseException | None = error
    while link is not None:
        if any(link is own for own in function.raised):
            return True
        link = link.__cause__
    return False


# --- what once failed

CSR, COO, EXPANDED = (Leaf((2, 2), "float64", layout) for layout in ("csr", "coo", "expanded"))
NO_NUMBERS = Leaf((0,))
KEPT = [
    # Arguments of a kind that was not asked about.
    Example("grad", keywords={"argnames": 3}),
    Example("as_function", keywords={"names": 3}),
    Example("check_adjoint", keywords={"seed": "a"}),
    Example("check_pattern", keywords={"seed": 2**70}),
    Example("check_pattern", keywords={"points": "a"}),
    Example("compile", keywords={"backend": "bad"}),
    Example("compat.get_analytical_jacobian", keywords={"nondet_tol": "a"}),
    Example("compat.get_analytical_jacobian", function=Function(end="none")),
    Example("compat.get_numerical_jacobian_wrt_specific_input", inputs=({},)),
    Example("compat.get_numerical_jacobian_wrt_specific_input", keywords={"eps": None}),
    Example("compat.get_numerical_jacobian", inputs=(EXPANDED,)),
    Example("SparsityPattern", inputs=([Leaf(())],)),
    # Layouts and dtypes that a step on the way does not have.
    Example("SparsityPattern", inputs=(Leaf((3, 2), "bfloat16"),)),
    Example("scipy.objective", function=Function("abs", "scalar")),
    Example("as_sparse_gradcheck", inputs=(Leaf((2, 2), "complex128", "csr"),)),
    Example("hessian_plan", inputs=(CSR,), function=Function(end="scalar")),
    Example("check_pattern", inputs=(COO,)),
    Example("jacfwd", inputs=(Leaf(), CSR)),
    Example("jvp", inputs=(COO,)),
    Example("sparse_jacobian", inputs=(EXPANDED,), function=Function(end="scalar")),
    Example("check_adjoint", inputs=(COO,)),
    Example("functional.jacobian", inputs=(Leaf(()),), function=Function(end="sparse")),
    # Zeros without memory, which forward mode puts where there is no tangent: writing to them ended Python.
    Example(
        "gradcheck",
        inputs=(Leaf((3,), "float32", values="infinite"),),
        function=Function("random", "scalar"),
        keywords={"check_forward_ad": True},
    ),
    # A direction in another layout than the primal's.
    Example("hvp", inputs=(Leaf((3,), "float64", "coo"),), function=Function("abs", "scalar")),
    # Nothing to look at.
    Example("gradcheck", inputs=(NO_NUMBERS,), function=Function("backward in place")),
    # Inputs of which one has no gradient.
    Example("gradgradcheck", inputs=(Leaf(), Leaf()), function=Function("detach", "the first, as it is")),
    # A function that does something else the next time.
    Example("gradgradcheck", function=Function("sin", "tensor", "returns None", 2)),
    Example("gradgradcheck", function=Function("abs", "tree", "changes shape", 2)),
    Example("jacobian_plan", function=Function("flip", "tensor", "changes shape", 7)),
    Example("sparse_hessian", function=Function("sin", "scalar", "fails once", 5)),
    Example("compile", function=Function("solve", "detached")),
    Example("compile", function=Function("branch", "complex"), keywords={"differentiable": True}),
    Example("kernelcheck", function=Function("sqrt", "scalar", "turns gradients off", 7)),
    Example("compat.get_analytical_jacobian", function=Function("abs", "complex", "turns gradients off")),
    Example("compat.get_numerical_jacobian", function=Function("abs", "tensor", "turns gradients off")),
    Example(
        "compat.get_numerical_jacobian_wrt_specific_input",
        function=Function("abs", "tensor", "turns gradients off", 3),
    ),
    Example("agree", function=Function("in place", "tensor", "turns gradients off", 6)),
    Example("as_sparse_gradcheck", (Leaf((2, 0), "float64", "offset"),), Function("abs", "tensor")),
    Example("kernelcheck", function=Function("abs", "tree", "returns None", 8)),
    Example("check_kernel", function=Function("abs", "tree", "returns None", 10)),
    Example("scipy.jacobian_operator", function=Function("abs", "scalar", "changes shape", 2)),
    Example("check_adjoint", function=Function("random", "tensor", "changes shape", 6)),
    Example("check_adjoint", (Leaf(()),), Function("branch", "scalar", "returns None", 12)),
    Example("functionalize", function=Function("exp", "nothing", "writes to its inputs")),
    Example("gradgradcheck", function=Function("abs", "complex", "changes dtype", 2)),
    Example("kernelcheck", function=Function("abs", "complex", "changes shape", 3)),
    Example("kernelcheck", function=Function("abs", "integers", "changes shape", 4)),
    # Sparse tensors in forward mode.
    Example("jacfwd", (Leaf(()),), Function("abs", "sparse")),
    Example("gradgradcheck", (Leaf(), Leaf((0,), "int64", "coo")), keywords={"check_fwd_over_rev": True}),
    # A negative seed.
    Example("check", (Leaf(), Leaf((), "float32")), Function("detach"), {"seed": -1}),
    # What cannot be registered.
    Example("case", keywords={"dtype": None}),
    Example("case", keywords={"name": 3}),
    # Zeros that have no memory, which go into an array or to another process.
    Example("hessian", function=Function("abs", "scalar"), keywords={"out": Thing("file")}),
    Example("hessian", function=Function("abs", "scalar"), keywords={"executor": Thing("threads")}),
]


@pytest.mark.parametrize("example", KEPT, ids=lambda e: f"{e.door}-{e.function.body}")
def test_what_once_failed(example: Example) -> None:
    tried(example)


# Later than this, doors have done what differs from one run to the next.
RUNS = 25


@pytest.mark.sweep
@pytest.mark.parametrize("misbehaviour", ["returns None", "changes shape", "fails once"])
@pytest.mark.parametrize("door", DOORS)
def test_something_else_at_any_run(door: str, misbehaviour: str) -> None:
    """A function that is not one, whichever run shows it."""
    for at in range(1, RUNS + 1):
        for body, end in (("abs", "tree"), ("abs", "scalar"), ("in place", "tensor")):  # the last is linear
            tried(Example(door, function=Function(body, end, misbehaviour, at)))


# --- what has not failed yet


def fuzz(count: int, offset: int) -> Any:
    """A test of so many examples."""

    @random_examples(count, offset)
    @given(example=examples({name: door.verb for name, door in DOORS.items()}))
    def run(example: Example) -> None:
        torch.manual_seed(0)
        tried(example)

    return run


@pytest.mark.parametrize("part", range(6))
def test_a_few_examples(part: int) -> None:
    """Three hundred in all."""
    fuzz(50, part)()


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(20))
def test_many_examples(part: int) -> None:
    """Twenty thousand in all."""
    count = int(os.environ.get("FUZZ", "20000"))
    print(f"FUZZ={count}")
    fuzz(max(1, count // 20), 100 + part)()


SHAPES = ((2, 3), (0, 0), (2,), (-1, 3), ("a", 2), None, 3, (2**62, 2), (2.0, 3), (True, 2))
POINTERS = ([0, 1, 2], [0], [0, 2, 1], [0.0, 1.0, 2.0], [0, 1, 2**62], [[0, 1, 2]], ["a"] * 3, [{}] * 3)
INDICES = ([0, 1], [0, 5], [-1, 1], [0.0, 1.0], [], [2**62, 1], [True, False], [{}] * 2)


@pytest.mark.parametrize("make", [np.array, list], ids=["arrays", "lists"])
def test_patterns_of_anything(make: Any) -> None:
    """A pattern that is one can be shown and put beside others; what is none is refused."""
    made = 0
    for shape, indptr, indices in product(SHAPES, POINTERS, INDICES):
        try:
            pattern = covector.SparsityPattern(shape, make(indptr), make(indices))
        except CovectorError:
            continue
        made += 1
        assert str(pattern)
        assert pattern.covers(pattern)
        for other in (pattern.T.T, np.ones((2, 2)), 3, "text"):
            with suppress(CovectorError):
                pattern.covers(other)
    assert made == (1 if make is np.array else 0)


def test_every_public_function_is_driven() -> None:
    """No door is forgotten when one is added."""
    public = set(covector.__all__)
    public |= {f"functional.{name}" for name in functional.__all__}
    public |= {f"compat.{name}" for name in compat.__all__}
    public |= {f"scipy.{name}" for name in covector_scipy.__all__}
    assert public == set(DOORS) | NOT_CALLED
