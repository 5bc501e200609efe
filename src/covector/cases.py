"""Cases for the command line: a function, what it is called with, and the keywords of its check."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function

from covector._tree import flatten, unflatten
from covector.api import check
from covector.errors import ArgumentTypeError, ArgumentValueError, CaseError
from covector.kernels.door import check_kernel
from covector.transforms._door import check_seed, summary
from covector.verify.leaves import is_differentiable

Target = TypeVar("Target", bound=Callable[..., Any])


def _keywords(verb: Callable[..., Any]) -> tuple[str, ...]:
    """What a case may say beside its seed."""
    return tuple(
        name
        for name, parameter in inspect.signature(verb).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != "seed"
    )


_OPTIONS = _keywords(check)
_KERNEL_OPTIONS = _keywords(check_kernel)


@dataclass(frozen=True)
class Case:
    """One check to be made; its inputs are made when it is."""

    name: str
    function: Callable[..., Any]
    file: Path
    inputs: tuple[Any, ...]
    kwargs: dict[str, Any]
    dtype: torch.dtype
    order: int
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    """What a kernel is compared with, if it is one."""

    def arguments(self) -> tuple[Any, ...]:
        """Fresh inputs: the same numbers each time."""
        generator = torch.Generator().manual_seed(self.seed)
        made = tuple(self._made(value, generator) for value in self.inputs)
        if self.options.get("argnums") is not None or self.options.get("argnames") is not None:
            return made
        return _requiring_grad(made)

    def _made(self, value: Any, generator: torch.Generator) -> Any:
        if _is_shape(value):
            return torch.randn(value, dtype=self.dtype, generator=generator).requires_grad_()
        return value() if callable(value) and not isinstance(value, Tensor) else value


_registered: list[Case] = []


def case(
    *inputs: Any,
    kwargs: dict[str, Any] | None = None,
    dtype: torch.dtype | Sequence[torch.dtype] = torch.float64,
    name: str | None = None,
    order: int = 1,
    seed: int = 0,
    reference: Callable[..., Any] | None = None,
    **options: Any,
) -> Callable[[Target], Target]:
    """Register a function to be checked by `covector check FILE`; the function stays as it is.

    Used as a decorator, as often as there are sets of inputs, or called: `case((3,))(torch.sin)`. It takes
    functions, modules, and classes derived from `torch.autograd.Function`.

    Args:
        inputs: what the function is called with. A tuple of ints is a shape, of which a random tensor
            is made; a function without arguments is called to make the input; a tensor and anything else
            is taken as it is. The tensors that require grad are checked, among them those made from
            shapes; if none does, all of them.
        kwargs: keyword arguments of the function.
        dtype: of the tensors made from shapes; several of them make several cases.
        name: what the case is called, instead of the function's name.
        order: 2 to check the second derivative as well.
        seed: of the random tensors, and of the check.
        reference: plain torch code of the same arguments: the function is a kernel, and is checked by
            `check_kernel` against it.
        options: keywords of `check`, such as `atol` or `fast_mode`; with a reference, of `check_kernel`.

    Raises:
        ArgumentTypeError, ArgumentValueError: the case makes no sense.

    Example:
        >>> import torch, covector
        >>> @covector.case((4, 3), (3,))
        ... @covector.case((3,), torch.ones(3), dtype=(torch.float32, torch.complex128), atol=1e-4)
        ... def product(a, b):
        ...     return a * b
        >>> product(2, 3)
        6
    """
    file = Path(sys._getframe(1).f_code.co_filename).resolve()
    dtypes = tuple(dtype) if isinstance(dtype, list | tuple) else (dtype,)
    check_seed("case", seed)
    if name is not None and not isinstance(name, str):
        raise ArgumentTypeError(f"case: the name must be a text, got {summary(name)}.")
    _validate(inputs, kwargs, dtypes, order, options, reference)

    def register(target: Target) -> Target:
        function = _callable(target)
        if not kwargs and not isinstance(target, torch.nn.Module):
            _refuse_sizes(inputs)
        called = name or _name(target)
        for one in dtypes:
            label = called if len(dtypes) == 1 else f"{called}[{str(one).removeprefix('torch.')}]"
            _registered.append(
                Case(
                    label,
                    function,
                    file,
                    inputs,
                    dict(kwargs or {}),
                    one,
                    order,
                    seed,
                    dict(options),
                    reference,
                )
            )
        return target

    return register


def load(path: Path) -> list[Case]:
    """The cases that a file registers, their names made unique; the file may import what lies beside it."""
    require_file(path)
    path = path.resolve()
    spec = importlib.util.spec_from_file_location(f"covector_case_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise CaseError(f"{path.name}: this is not a Python file.")
    start = len(_registered)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if str(path.parent) not in sys.path:
        # It stays there: functions may import what lies beside them when they run.
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise CaseError(f"{path.name} could not be loaded.\n{user_traceback(error)}") from error
    found = [registered for registered in _registered[start:] if registered.file == path]
    if not found:
        raise CaseError(
            f"{path.name} registers no case. Give a function its inputs: "
            "@covector.case((3, 4)) above it checks it on a random tensor of that shape."
        )
    return _unique(found)


def require_file(path: Path) -> None:
    """Refuse a path at which there is no file."""
    if os.path.isdir(path):
        raise CaseError(f"{path} is a folder. Name the files in it: covector check {path}/*.py")
    if not os.path.isfile(path):
        raise CaseError(f"there is no file {path}.")


def chosen(cases: Sequence[Case], name: str | None, file: str) -> list[Case]:
    """The cases that a name stands for: one of them, or all those of a function."""
    if name is None:
        return list(cases)
    found = [one for one in cases if one.name == name or one.name.startswith(f"{name}[")]
    if not found:
        known = ", ".join(one.name for one in cases)
        raise CaseError(f"{file} has no case called {name}; it has {known}.")
    return found


def _validate(
    inputs: tuple[Any, ...],
    kwargs: Any,
    dtypes: tuple[Any, ...],
    order: Any,
    options: dict[str, Any],
    reference: Any,
) -> None:
    """Refuse what cannot become a case, where it is written."""
    if len(inputs) == 1 and callable(inputs[0]) and hasattr(inputs[0], "__code__"):
        wanted = inspect.signature(inputs[0]).parameters.values()
        if any(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in wanted):
            raise ArgumentTypeError(
                f"case: {inputs[0].__name__} takes arguments, so it cannot make an input. "
                "As a decorator, case has to be called with inputs: @covector.case((3, 4))."
            )
    if kwargs is not None and not isinstance(kwargs, dict):
        raise ArgumentTypeError(f"case: kwargs must be a dict, got {summary(kwargs)}.")
    if not dtypes or not all(isinstance(dtype, torch.dtype) for dtype in dtypes):
        raise ArgumentTypeError(f"case: dtype must be a torch.dtype, or several, got {dtypes!r}.")
    if order not in (1, 2):
        raise ArgumentValueError(f"case: order must be 1 or 2, got {order!r}.")
    if reference is not None and not callable(reference):
        raise ArgumentTypeError(f"case: the reference must be a function, got {summary(reference)}.")
    if reference is not None and order == 2:
        raise ArgumentValueError(
            "case: order=2 does not go with a reference: check_kernel looks at second derivatives by itself."
        )
    known = _OPTIONS if reference is None else _KERNEL_OPTIONS
    if unknown := sorted(set(options) - set(known)):
        raise ArgumentTypeError(f"case: unknown keyword {unknown[0]}; it takes {', '.join(known)}.")


def _refuse_sizes(inputs: tuple[Any, ...]) -> None:
    """Refuse ints as the only inputs: nothing could be differentiated by, and a shape was meant."""
    if inputs and all(type(value) is int for value in inputs):
        raise ArgumentTypeError(
            f"case: the inputs are {', '.join(map(str, inputs))}, and no tensor to differentiate by. "
            f"A shape is a tuple: case({inputs})."
        )


def _callable(target: Any) -> Callable[..., Any]:
    if isinstance(target, type):
        if issubclass(target, Function):
            return target.apply
        raise ArgumentTypeError(
            f"case: {target.__name__} is a class. Pass an instance of it, case(...)({target.__name__}(...)), "
            "or a class derived from torch.autograd.Function."
        )
    if not callable(target):
        raise ArgumentTypeError(f"case: only a function can be checked, got {summary(target)}.")
    return target


def _name(target: Any) -> str:
    return getattr(target, "__name__", None) or type(target).__name__


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(size, int) and not isinstance(size, bool) for size in value
    )


def _requiring_grad(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, all their tensors requiring grad if none does."""
    leaves, spec = flatten(args)
    if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
        return args
    return unflatten(
        [leaf.detach().clone().requires_grad_() if is_differentiable(leaf) else leaf for leaf in leaves], spec
    )


def _unique(cases: list[Case]) -> list[Case]:
    """Cases of one name are told apart by their dtypes, or numbered from 1."""
    dtypes: dict[str, list[torch.dtype]] = {}
    for one in cases:
        dtypes.setdefault(one.name, []).append(one.dtype)
    apart = {name for name, used in dtypes.items() if 1 < len(used) == len(set(used))}
    cases = [
        replace(one, name=f"{one.name}[{str(one.dtype).removeprefix('torch.')}]")
        if one.name in apart
        else one
        for one in cases
    ]
    names = [one.name for one in cases]
    numbers = {name: itertools.count(1) for name in names if names.count(name) > 1}
    return [
        replace(one, name=f"{one.name}[{next(numbers[one.name])}]") if one.name in numbers else one
        for one in cases
    ]


def user_traceback(error: BaseException) -> str:
    """The traceback of an error, without the frames of covector and of the import system."""
    ours = str(Path(__file__).parent)
    shown = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = shown
    while link is not None:
        kept = [f for f in link.stack if not f.filename.startswith((ours, "<frozen"))]
        link.stack = traceback.StackSummary.from_list(kept)
        link = link.__cause__ or link.__context__
    return "".join(shown.format()).rstrip()
