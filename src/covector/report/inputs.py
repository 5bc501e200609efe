"""Large inputs of a check, made again: as they were made, if that is known, else from a file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy
import torch
from torch import Tensor

from covector._chart import dense, dense_twin, is_strided
from covector._files import write

# Of how many numbers draws are repeated, in all, to see whether they made the inputs: a fifth of a second.
_MANY = 10**7

# Tensors whose making is not known are written out up to so many numbers in all: some lines of text.
_SOME = 40


@dataclass(frozen=True)
class Input:
    """A tensor that goes by a name, and the lines that make it if they are known."""

    name: str
    value: Tensor
    made: tuple[str, ...] = ()

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.value.shape)) or "a scalar"
        layout = "" if is_strided(self.value) else f", {self.value.layout}"
        return f"{self.name}: {self.value.dtype}, {shape}{layout}"


def known_inputs(tensors: Mapping[str, Tensor]) -> tuple[Input, ...]:
    """The tensors in the order of their making, with the lines that make them if these are known.

    They are, if numbers are regular, or if the seed that was set last leads to them, to the last bit.
    """
    draws, known = _Draws(torch.initial_seed()), []
    pending = {name: value for name, value in tensors.items() if _can_be_drawn(value)}
    for name, value in list(pending.items()):
        if line := _regular(value):
            known.append(Input(name, pending.pop(name), (f"{name} = {line}",)))
    while (found := draws.next_of(pending)) is not None:
        name, lines = found
        known.append(Input(name, pending.pop(name), (*lines[:-1], f"{name} = {lines[-1]}")))
    made = {given.name for given in known}
    rest = {name: value for name, value in tensors.items() if name not in made}
    few = sum(value.shape.numel() for value in rest.values()) <= _SOME
    return (
        *known,
        *(Input(name, value, _numbers(name, value) if few else ()) for name, value in rest.items()),
    )


# The dtypes that torch draws random numbers in.
_DRAWN = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64)


def _can_be_drawn(value: Tensor) -> bool:
    return type(value) is Tensor and _is_plain(value) and value.dtype in _DRAWN


def _is_plain(value: Tensor) -> bool:
    """Whether numbers, dtype and shape are all there is to a tensor."""
    return (
        is_strided(value)
        and value.device.type == "cpu"
        and value.is_contiguous()
        and not value.is_conj()
        and value.numel() > 0
    )


def _numbers(name: str, value: Tensor) -> tuple[str, ...]:
    """The lines that make a tensor from its numbers; none if there is more to it than these."""
    if not (text := written_out(value)):
        return ()
    lines = wrap(text, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return f"{name} = {lines[0]}", *lines[1:]


def written_out(value: Tensor) -> str:
    """A tensor as Python with all of its numbers; nothing if there is more to it than these."""
    numbers = _dense(value)
    if numbers is None or not _is_plain(numbers) or not bool(numbers.isfinite().all()):
        return ""
    return _like(value, f"torch.tensor({numbers.tolist()!r}, dtype={value.dtype}", ")")


def _like(value: Tensor, made: str, end: str = "") -> str:
    """The expression that makes a tensor like another one, of one that makes its numbers.

    That may be a call which is still open, and takes `requires_grad` as its last argument.
    """
    if isinstance(value, torch.nn.Parameter):
        return f"torch.nn.Parameter({made}{end})"
    if is_strided(value) and end:
        return f"{made}{', requires_grad=True' if value.requires_grad else ''}{end}"
    layout = "" if is_strided(value) else f".to_sparse(layout={value.layout})"
    return f"{made}{end}{layout}{'.requires_grad_()' if value.requires_grad else ''}"


# A sparse tensor of more numbers than this, zeros included, is not made dense.
_DENSE = 10**6


def _dense(value: Tensor) -> Tensor | None:
    """A tensor on the CPU in strided layout, if that has all there is to it."""
    if value.device.type != "cpu" or not (is_strided(value) or value.shape.numel() <= _DENSE):
        return None
    return dense_twin(value)


def _regular(value: Tensor) -> str:
    """How a tensor is made whose numbers are all the same, or evenly spaced; to the last bit."""
    flat, grad = value.detach().flatten(), ", requires_grad=True" if value.requires_grad else ""
    first, last = flat[0].item(), flat[-1].item()
    if not bool(flat.isfinite().all()):
        return ""
    if bool((flat == flat[0]).all()):
        return f"torch.full({tuple(value.shape)}, {first!r}, dtype={value.dtype}{grad})"
    if value.dim() != 1 or value.is_complex() or len(flat) < 3:  # any two numbers are evenly spaced
        return ""
    if not torch.equal(torch.linspace(first, last, len(flat), dtype=value.dtype), flat):
        return ""
    return f"torch.linspace({first!r}, {last!r}, {len(flat)}, dtype={value.dtype}{grad})"


@dataclass(frozen=True)
class _Draw:
    """A way to make a tensor from random numbers: what is called, and how that is written."""

    call: Callable[[Tensor, torch.Generator], Tensor]
    text: Callable[[Tensor], str]


def _plain(value: Tensor) -> str:
    grad = ", requires_grad=True" if value.requires_grad else ""
    return f"({tuple(value.shape)}, dtype={value.dtype}{grad})"


def _double(value: Tensor) -> str:
    grad = ".requires_grad_()" if value.requires_grad else ""
    return f"({tuple(value.shape)}).double(){grad}"


# The draws that are tried. Numbers that are drawn in float32 and made double are a frequent way to write it.
_DRAWS = (
    _Draw(
        lambda x, g: torch.randn(x.shape, dtype=x.dtype, generator=g),
        lambda x: f"torch.randn{_plain(x)}",
    ),
    _Draw(
        lambda x, g: torch.rand(x.shape, dtype=x.dtype, generator=g),
        lambda x: f"torch.rand{_plain(x)}",
    ),
    _Draw(
        lambda x, g: torch.randn(x.shape, dtype=torch.float32, generator=g).double(),
        lambda x: f"torch.randn{_double(x)}",
    ),
    _Draw(
        lambda x, g: torch.rand(x.shape, dtype=torch.float32, generator=g).double(),
        lambda x: f"torch.rand{_double(x)}",
    ),
)


class _Draws:
    """The random numbers after a seed, as far as they were used."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator = torch.Generator()
        self.started = False
        self.left = _MANY

    def next_of(self, tensors: Mapping[str, Tensor]) -> tuple[str, tuple[str, ...]] | None:
        """The tensor that the next draw made, and the lines that make it."""
        for fresh in (False, True) if self.started else (True,):
            for (name, value), draw in itertools.product(tensors.items(), _DRAWS):
                if self._makes(value, draw, fresh):
                    seeded = (f"torch.manual_seed({self.seed})",) if fresh else ()
                    return name, (*seeded, draw.text(value))
        return None

    def _makes(self, value: Tensor, draw: _Draw, fresh: bool) -> bool:
        """Whether a draw makes a tensor; if it does, the next goes on after it."""
        self.left -= value.numel()
        if self.left < 0:
            return False
        before = self.generator.get_state()
        if fresh:
            self.generator.manual_seed(self.seed)
        drawn = draw.call(value, self.generator)
        if drawn.dtype == value.dtype and torch.equal(drawn, value.detach()):
            self.started = True
            return True
        self.generator.set_state(before)
        return False


def can_be_saved(value: Tensor) -> bool:
    """Whether an array can hold a tensor."""
    return _dense(value) is not None


def save(inputs: tuple[Input, ...], path: Path) -> bool:
    """Save tensors as arrays; False if there are none."""
    arrays: dict[str, Any] = {given.name: _array(given.value) for given in inputs}
    if arrays:
        write(path, lambda file: numpy.savez_compressed(file, **arrays))
    return bool(arrays)


def loaded(given: Input) -> tuple[str, ...]:
    """The line that takes a tensor from what was saved."""
    cast = "" if _has_array_dtype(given.value) else f".to({given.value.dtype})"
    return (f"{given.name} = {_like(given.value, f'torch.from_numpy(saved[{given.name!r}]){cast}')}",)


def _has_array_dtype(value: Tensor) -> bool:
    """Whether numpy has the dtype; it lacks those of less than half precision, and bfloat16."""
    return value.dtype not in (torch.bfloat16, torch.complex32) and value.element_size() > (
        1 if value.is_floating_point() else 0
    )


def _array(value: Tensor) -> Any:
    value = dense(value.detach()).resolve_conj().resolve_neg()
    if not _has_array_dtype(value):
        value = value.to(torch.complex64 if value.is_complex() else torch.float32)
    return value.numpy()
