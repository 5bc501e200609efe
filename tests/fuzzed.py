"""Examples for the fuzzer: a public door, inputs, a function and keywords, all as plain data.

An example prints as the Python that makes it again, so that one that failed can be kept in a table. The
function may misbehave in one way, at one of its runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as registry

DTYPES = ("float64", "float32", "complex128", "bfloat16", "complex64", "float16", "int64", "bool")
LAYOUTS = ("contiguous", "strided", "transposed", "expanded", "offset", "not a leaf", "coo", "csr")
VALUES = ("normal", "zero", "nan", "infinite", "huge", "tiny")


class Planted(Exception):
    """What a function of an example raises."""


class PlantedOnce(Planted, RuntimeError):
    """The same, of the class that torch raises where it has no rule, so that another way may be tried."""


@dataclass(frozen=True)
class Leaf:
    """A tensor to be made."""

    shape: tuple[int, ...] = (3,)
    dtype: str = "float64"
    layout: str = "contiguous"
    values: str = "normal"
    tracked: bool = True
    grad: bool = False

    def made(self, generator: torch.Generator) -> Tensor:
        """The tensor, in its layout, with a gradient of its own if it shall have one."""
        tensor = self._laid_out(generator)
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            tensor.requires_grad_(self.tracked)
            if self.layout == "not a leaf":
                return tensor * 1
            if self.grad and self.tracked and tensor.layout is torch.strided:
                tensor.grad = torch.ones_like(tensor)
        return tensor

    def _numbers(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        dtype = getattr(torch, self.dtype)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        numbers = torch.randn(shape, generator=generator, dtype=wide)
        scale = {"zero": 0.0, "nan": float("nan"), "infinite": float("inf"), "huge": 1e30, "tiny": 1e-30}
        numbers = numbers * scale.get(self.values, 1.0)
        return (
            torch.nan_to_num(numbers).to(dtype) if dtype in (torch.int64, torch.bool) else numbers.to(dtype)
        )

    def _laid_out(self, generator: torch.Generator) -> Tensor:
        shape, layout = self.shape, self.layout
        if layout == "strided" and shape:
            return self._numbers((*shape[:-1], 2 * shape[-1]), generator)[..., ::2]
        if layout == "transposed":
            return self._numbers(shape[::-1], generator).permute(tuple(reversed(range(len(shape)))))
        if layout == "expanded" and shape:
            return self._numbers((1, *shape[1:]), generator).expand(shape)
        if layout == "offset":
            count = int(torch.Size(shape).numel())
            return self._numbers((count + 1,), generator)[1:].view(shape)
        if layout == "coo" and shape:
            return self._numbers(shape, generator).to_sparse()
        if layout == "csr" and len(shape) == 2:
            return self._numbers(shape, generator).to_sparse_csr()
        return self._numbers(shape, generator)


# --- functions


class Numpy(torch.autograd.Function):
    """x ** 3 by numpy: it cannot be batched, and has no forward mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 3)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Wrong(torch.autograd.Function):
    """x ** 2 with a gradient of 3 x, so that a check looks for what is wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] * g


class BackwardOf(torch.autograd.Function):
    """The identity, whose backward is what an example says."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, misbehave: Callable[[Tensor], Any]) -> Tensor:
        ctx.misbehave = misbehave
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return ctx.misbehave(g), None


def _raise(_: Any) -> Any:
    raise Planted("in the backward")


def _in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y.mul_(2)
    return y


BODIES: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "square": lambda x: x * x,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
    "cumsum": lambda x: x.cumsum(0) if x.dim() else x,
    "flip": lambda x: x.flip(0) * x if x.dim() else x,
    "outer": lambda x: x.reshape(-1)[:, None] * x.reshape(-1),
    "first": lambda x: x.reshape(-1)[:1],
    "detach": lambda x: x.detach() * x,
    "constant": lambda x: torch.ones_like(x),
    "branch": lambda x: x.sin() if float(x.detach().abs().sum()) > 1 else x.cos(),
    "in place": _in_place,
    "numpy": Numpy.apply,
    "wrong": Wrong.apply,
    "random": lambda x: x * torch.rand(x.shape),
    "solve": lambda x: torch.linalg.inv(torch.outer(x.reshape(-1), x.reshape(-1)) + torch.eye(x.numel())),
    "backward raises": lambda x: BackwardOf.apply(x, _raise),
    "backward of None": lambda x: BackwardOf.apply(x, lambda g: None),
    "backward of another shape": lambda x: BackwardOf.apply(x, lambda g: g.new_zeros(7, 7)),
    "backward of another dtype": lambda x: BackwardOf.apply(x, lambda g: g.to(torch.complex64)),
    "backward of text": lambda x: BackwardOf.apply(x, lambda g: "text"),
    "backward in place": lambda x: BackwardOf.apply(x, lambda g: g.mul_(2)),
}

ENDS: dict[str, Callable[[list[Tensor], Tensor], Any]] = {
    "tensor": lambda parts, total: torch.cat([part.reshape(-1) for part in parts]) if parts else total,
    "scalar": lambda parts, total: total,
    "tuple": lambda parts, total: tuple(parts),
    "tree": lambda parts, total: {"parts": parts, "total": (total, None)},
    "with an auxiliary": lambda parts, total: (total, {"text": "aux", "parts": parts}),
    "none": lambda parts, total: None,
    "text": lambda parts, total: "text",
    "number": lambda parts, total: 3.0,
    "integers": lambda parts, total: torch.arange(3),
    "nothing": lambda parts, total: (),
    "complex": lambda parts, total: total * 1j,
    "detached": lambda parts, total: total.detach(),
    "sparse": lambda parts, total: (parts[0] if parts else total).reshape(-1).to_sparse(),
    "the first, as it is": lambda parts, total: parts[0] if parts else total,
}

MISBEHAVIOURS = (
    "",
    "raises",
    "fails once",
    "runs out of memory",
    "recurses",
    "recurses for ever",
    "returns None",
    "changes shape",
    "changes dtype",
    "writes to its inputs",
    "empties its containers",
    "uses threads",
    "deletes its inputs",
    "turns gradients off",
    "keeps its inputs",
)


@dataclass(frozen=True)
class Function:
    """A function to be made: what it does to each tensor, what it returns, and how it misbehaves when."""

    body: str = "sin"
    end: str = "tensor"
    misbehaviour: str = ""
    at: int = 1


class Made:
    """A function of an example, which remembers what left it as an exception."""

    def __init__(self, function: Function, door: Callable[..., Any] | None = None) -> None:
        self.spec, self.door = function, door
        self.runs, self.kept = 0, []
        self.raised: list[BaseException] = []
        self.__name__ = "fuzzed"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs += 1
        try:
            return self._run(args, kwargs)
        except BaseException as error:
            self.raised.append(error)
            raise

    def _run(self, args: Any, kwargs: Any) -> Any:
        now = self.runs >= self.spec.at
        kind = self.spec.misbehaviour if now else ""
        if kind == "raises":
            raise Planted(f"run {self.runs}")
        if kind == "fails once" and self.runs == self.spec.at:
            raise PlantedOnce(f"run {self.runs}")
        if kind == "runs out of memory":
            raise MemoryError(f"run {self.runs}")
        if kind == "recurses for ever":
            return self(*args, **kwargs) if self.runs < 10_000 else None
        tensors = [x for x in registry.tree_leaves((args, kwargs)) if _differentiable(x)]
        if kind == "uses threads":
            with ThreadPoolExecutor(2) as pool:
                result = pool.submit(self._result, tensors).result()
        else:
            result = self._result(tensors)
        return self._after(kind, tensors, (args, kwargs), result)

    def _result(self, tensors: list[Tensor]) -> Any:
        body = BODIES[self.spec.body]
        parts = [body(x if x.layout is torch.strided else x.to_dense()) for x in tensors]
        total = sum((part.sum() for part in parts), torch.zeros(()))
        return ENDS[self.spec.end](parts, total)

    def _after(self, kind: str, tensors: list[Tensor], given: Any, result: Any) -> Any:
        if kind == "returns None":
            return None
        if kind == "changes shape":
            return registry.tree_map_only(Tensor, lambda y: torch.stack([y, y]), result)
        if kind == "changes dtype":
            return registry.tree_map_only(Tensor, lambda y: y.to(torch.float32), result)
        if kind == "writes to its inputs":
            with torch.no_grad():
                for tensor in tensors:
                    tensor.add_(1)
        if kind == "empties its containers":
            for part in [*given[0], *given[1].values()]:
                if isinstance(part, list | dict):
                    part.clear()
        if kind == "deletes its inputs":
            tensors.clear()
        if kind == "turns gradients off":
            torch.set_grad_enabled(False)
        if kind == "keeps its inputs":
            self.kept += [*tensors, result]
        if kind == "recurses" and self.door is not None:
            self.door, door = None, self.door
            door(self, *(x.detach() for x in tensors))
        return result


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


# --- keywords: of each, what works and what does not

_folders: list[TemporaryDirectory[str]] = []


def _folder() -> Path:
    """A new one, instead of that of the example before."""
    _folders[:] = [TemporaryDirectory()]
    return Path(_folders[0].name)


def _no_workers() -> Executor:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    return executor


def _read_only() -> Any:
    array = np.zeros((3, 3))
    array.flags.writeable = False
    return array


_THINGS: dict[str, Callable[[], Any]] = {
    "threads": lambda: ThreadPoolExecutor(2),
    "no workers": _no_workers,
    "zeros": lambda: np.zeros((3, 3)),
    "read-only": _read_only,
    "file": lambda: _folder() / "matrix.npy",
    "folder": _folder,
}


@dataclass(frozen=True)
class Thing:
    """What is no tensor and no plain data, by its name; made anew for each example."""

    name: str

    def made(self, generator: torch.Generator) -> Any:
        """The thing itself."""
        return _THINGS[self.name]()


KEYWORDS: dict[str, tuple[Any, ...]] = {
    "argnums": (0, 1, (0,), (0, 1), -1, None, 5, "a", (), True, (0, 0), 1.5, [0]),
    "argnames": (None, "a", ("a",), "missing", 3, ()),
    "has_aux": (False, True),
    "chunk_size": (None, 1, 2, 100, 0, -1, "a", True),
    "randomness": ("error", "same", "different", "bad", None, 3),
    "mode": ("auto", "reverse", "forward", "bad", None, 0),
    "max_memory": (None, "1KB", "1GB", 1, 0, -1, "bad", 10**6, 1.5, True),
    "batch_dim": (None, 0, -1, 1, 7, "a"),
    "complex": (None, "holomorphic", "real", "bad", 3),
    "strict": (False, True),
    "create_graph": (False, True),
    "vectorize": (False, True),
    "strategy": ("reverse-mode", "forward-mode", "bad", None),
    "outer_jacobian_strategy": ("reverse-mode", "forward-mode", "bad"),
    "layout": ("coo", "csr", "csc", "scipy", "bad", None),
    "local": (False, True),
    "verify": (True, False),
    "pattern": (None, "bad", ((1, 0, 1),)),
    "eps": (1e-6, 1e-3, 0.0, -1.0, float("nan"), float("inf"), "a", None),
    "atol": (1e-5, 0.0, -1.0, float("nan"), "a", float("inf")),
    "rtol": (1e-3, 0.0, -1.0, float("nan"), "a"),
    "nondet_tol": (0.0, 1.0, -1.0, "a"),
    "raise_exception": (True, False),
    "check_undefined_grad": (True, False),
    "check_grad_dtypes": (False, True),
    "check_batched_grad": (False, True),
    "check_batched_forward_grad": (False, True),
    "check_forward_ad": (False, True),
    "check_backward_ad": (True, False),
    "check_fwd_over_rev": (False, True),
    "check_rev_over_rev": (True, False),
    "gen_non_contig_grad_outputs": (False, True),
    "fast_mode": (False, True),
    "masked": (False, True),
    "kinks": ("fail", "pass", "bad", None),
    "stop_gradients": ("fail", "constant", "bad"),
    "probes": (None, 1, 3, 0, -1, "a", 1.5),
    "max_entries": (None, 1, 5, 0, -1, "a"),
    "taylor": (False, True),
    "seed": (0, 1, -1, "a", 2**70),
    "remove": ("mutations", "mutations_and_views", "bad"),
    "backend": ("replay", "bad", 3),
    "fallback": (None, "eager", "bad"),
    "differentiable": (False, True),
    "points": (1, 2, 0, -1, "a"),
    "modes": (("eager", "reverse"), ("eager", "forward", "vmapped"), (), ("bad",), "eager", ("eager",)),
    "lenses": (None, (), ("layout",), ("bad",), "layout"),
    "dtypes": (None, torch.float32, (torch.float64, torch.float32), (), "bad", 3),
    "ratio": (3.0, 0.0, -1.0, "a"),
    "grad_out": (1.0, 2.0, 0.5),
    "names": ("*", "weight", "missing", 3, ()),
    "order": (1, 2, 3, "a"),
    "name": (None, "named", "<b>", 3),
    "kwargs": (None, {}, {"a": 1.0}, 3, {3: 1}, ()),
    "grad_outputs": (None, Leaf(), Leaf(()), Leaf((2, 2)), 3, "text", ()),
    "dtype": (torch.float64, (torch.float32, torch.float64), torch.int64, (), "bad", None),
    "is_forward_ad": (False, True),
    "executor": (None, Thing("threads"), Thing("no workers"), "bad", 3),
    "out": (
        None,
        Thing("zeros"),
        Thing("read-only"),
        Thing("file"),
        Thing("folder"),
        "matrix",
        3,
        Leaf((3, 3)),
    ),
}


# --- examples


@dataclass(frozen=True)
class Example:
    """One call: the door, what goes through it, and how many bytes of freedom the drawing left."""

    door: str
    inputs: tuple[Any, ...] = (Leaf(),)
    function: Function = Function()
    keywords: dict[str, Any] = field(default_factory=dict)
    directions: Any = "like"
    """What is given as tangents or cotangents: like the primals, or something else."""

    def made(self) -> tuple[list[Any], dict[str, Any]]:
        """The inputs as tensors, in trees of this example's own, and the keywords."""
        generator = torch.Generator().manual_seed(0)
        return registry.tree_map_only(
            (Leaf, Thing), lambda leaf: leaf.made(generator), (list(self.inputs), self.keywords)
        )


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
# Half of all tensors are ordinary, so that a fault is not hidden by another that is refused first.
leaves = st.one_of(
    st.builds(Leaf),
    st.builds(Leaf, shapes),
    st.builds(Leaf, shapes, st.sampled_from(DTYPES), st.sampled_from(LAYOUTS)),
    st.builds(
        Leaf,
        shapes,
        st.sampled_from(DTYPES),
        st.sampled_from(LAYOUTS),
        st.sampled_from(VALUES),
        st.booleans(),
        st.booleans(),
    ),
)
others = st.sampled_from([None, 3, 2.5, "text", True, 1j, ()])
trees = st.one_of(
    leaves,
    leaves,
    st.recursive(
        st.one_of(leaves, others),
        lambda inner: st.one_of(
            st.lists(inner, max_size=2),
            st.lists(inner, max_size=2).map(tuple),
            st.dictionaries(st.sampled_from(["a", "b", "<i>"]), inner, max_size=2),
        ),
        max_leaves=4,
    ),
)
functions = st.one_of(
    st.builds(Function, st.sampled_from(sorted(BODIES)), st.sampled_from(["tensor", "scalar"])),
    st.builds(
        Function,
        st.sampled_from(sorted(BODIES)),
        st.sampled_from(sorted(ENDS)),
        st.sampled_from(MISBEHAVIOURS),
        st.integers(1, 12),
    ),
)
DIRECTIONS = (
    "like",
    "like",
    "like",
    "ones",
    "none",
    "text",
    "too few",
    "another shape",
    "complex",
    "integers",
)


@st.composite
def examples(draw: st.DrawFn, doors: dict[str, Callable[..., Any]]) -> Example:
    """An example for one of the doors, by name; keywords are among those that it has."""
    door = draw(st.sampled_from(sorted(doors)))
    known = [name for name in inspect.signature(doors[door]).parameters if name in KEYWORDS]
    # The first two of each are ones that work; others are drawn, but not in every example.
    bold = draw(st.booleans())
    chosen = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
    keywords = {name: draw(st.sampled_from(KEYWORDS[name][: None if bold else 2])) for name in chosen}
    inputs = tuple(draw(st.lists(trees, min_size=1, max_size=2)))
    return Example(door, inputs, draw(functions), keywords, draw(st.sampled_from(DIRECTIONS)))
