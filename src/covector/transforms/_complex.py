"""Complex derivatives: a function of complex tensors as one of real tensors, and the named conventions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covector._chart import CONVENTIONS, Chart, Place, Sides, Wirtinger
from covector._engine import levels
from covector._engine.compiled import without_values
from covector._engine.reverse import Run
from covector._tree import Arguments, Evaluation
from covector.errors import ArgumentTypeError, ArgumentValueError, Caller, OutputError

_NAMES = "complex='holomorphic', 'wirtinger' or 'real'"


def check_convention(verb: str, convention: Any) -> None:
    """`complex` is None or one of three words."""
    if convention is not None and convention not in CONVENTIONS:
        raise ArgumentValueError(
            f"{verb}: complex must be None or one of {', '.join(map(repr, CONVENTIONS))}, got {convention!r}."
        )


def check_dtypes(
    caller: Caller, tensors: Sequence[Tensor], convention: str | None, names: Callable[[], list[str]]
) -> None:
    """Without a convention every tensor is real; a holomorphic function has complex ones only."""
    if convention is not None and convention != "holomorphic":
        return
    for position, tensor in enumerate(tensors):
        if tensor.is_complex() and convention is None:
            raise ArgumentTypeError(
                f"{caller}: {names()[position]} is complex ({tensor.dtype}), and there is more than one "
                f"derivative of a complex function. Name one with {_NAMES}, which jacobian and hessian take: "
                "d/dz of a holomorphic function (checked); the pair d/dz, d/dz*; or real blocks by real and "
                "imaginary parts. Or use vjp or jvp, which take complex tensors."
            )
        if not tensor.is_complex() and convention is not None:
            raise ArgumentTypeError(
                f"{caller}: complex='holomorphic' is for functions from complex tensors to complex tensors, "
                f"but {names()[position]} has dtype {tensor.dtype}. Use complex='wirtinger' or 'real'."
            )


class RealForm:
    """A function of complex tensors as one of their real and imaginary parts."""

    def __init__(self, caller: Caller, arguments: Arguments, run: Run, *, samples: bool) -> None:
        self._caller = caller
        self._run = run
        self._inputs = Chart.of(arguments.primals()).elementwise()
        self._outputs: tuple[Place, ...] = ()
        self._lead = 1 if samples else 0
        self._chosen = arguments.chosen
        leaves = list(arguments.leaves)
        for index, place in zip(self._chosen, self._inputs, strict=True):
            leaves[index] = place.to_real(leaves[index])
        self.arguments = arguments.at(leaves)

    def run(self, leaves: list[Any]) -> Evaluation:
        """Run the function on the tensors with these real and imaginary parts."""
        leaves = list(leaves)
        for index, place in zip(self._chosen, self._inputs, strict=True):
            leaves[index] = place.from_parts(leaves[index])
        evaluation = self._run(leaves)
        self._outputs = Chart.of(evaluation.outputs).elementwise()
        outputs = [p.to_real(t) for p, t in zip(self._outputs, evaluation.outputs, strict=True)]
        return evaluation._replace(outputs=outputs)

    def sides(self, block: int, order: int) -> Sides:
        """Between what a block lies; blocks are counted output by output, then input by input."""
        inputs = []
        for _ in range(order):
            block, position = divmod(block, len(self._inputs))
            inputs.append(self._inputs[position])
        return Sides(self._outputs[block], tuple(reversed(inputs)), self._lead)

    def arranged(self, blocks: Sequence[Tensor], order: int, convention: str) -> list[Any]:
        """Real blocks of a derivative of this order, put together by a convention."""
        if convention == "holomorphic":
            self.check_holomorphic(blocks, order)
        put_together = CONVENTIONS[convention]
        return [put_together(block, self.sides(i, order)) for i, block in enumerate(blocks)]

    def check_holomorphic(self, blocks: Sequence[Tensor], order: int) -> None:
        """The Cauchy-Riemann equations hold: no derivative by a conjugate is there."""
        if without_values():
            return
        for position, block in enumerate(blocks):
            sides = self.sides(position, order)
            if not block.numel() or not any(place.dtype.is_complex for place in sides.inputs):
                continue
            defect = _Defect.of(block.detach(), sides)
            wrong = _fails(defect, torch.finfo(block.dtype).eps)
            if bool(levels.bare(wrong).any()):
                conjugate, plain = (_largest(part, wrong) for part in (defect.conjugate, defect.plain))
                raise OutputError(
                    f"{self._caller}: the function is not holomorphic: the Cauchy-Riemann equations fail, "
                    f"with |df/dz*| up to {conjugate:.3g} where |df/dz| is up to {plain:.3g}. Use "
                    "complex='wirtinger' for both derivatives, or complex='real'."
                )


class _Defect(NamedTuple):
    """How far a block is from obeying the Cauchy-Riemann equations: |df/dz*| and |df/dz|, entry by entry.

    The axes from `first_axis` on are those of the inputs.
    """

    conjugate: Tensor
    plain: Tensor
    first_axis: int

    @classmethod
    def of(cls, block: Tensor, sides: Sides) -> _Defect:
        """For a block between complex tensors; of several derivatives by conjugates, the largest."""
        plain, *conjugates = _leaves(CONVENTIONS["wirtinger"](block, sides))
        return cls(torch.stack(conjugates).abs().amax(0), plain.abs(), len(sides.output.shape))


def _leaves(derivative: Any) -> list[Tensor]:
    """The derivatives in nested pairs; the one by no conjugate comes first."""
    if not isinstance(derivative, Wirtinger):
        return [derivative]
    return [*_leaves(derivative.dz), *_leaves(derivative.dz_conj)]


def _fails(defect: _Defect, eps: float) -> Tensor:
    """Where the derivative by a conjugate is more than rounding.

    Each entry is compared with itself. It may also be the rounding of the larger entries of its row, or
    of numbers about one that cancelled in it; but not of other rows, which are computed apart.
    """
    conjugate, plain, first_axis = defect
    size = torch.maximum(conjugate, plain).nan_to_num(0.0, 0.0)
    inputs = list(range(first_axis, size.ndim))
    row = size.amax(inputs, keepdim=True) if inputs else size
    rounding = 64 * eps * (row + size.amax().clamp(max=1))
    return conjugate > eps**0.5 * plain + rounding


def _largest(part: Tensor, where: Tensor) -> float:
    return float(levels.bare(torch.where(where, part, 0)).amax())
