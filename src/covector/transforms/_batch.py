"""Samples: functions that treat a batch sample by sample, and the Jacobian of each sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from covector._engine import levels
from covector._engine.compiled import without_values
from covector._linear import LinearMap
from covector.errors import ArgumentTypeError, ArgumentValueError, Caller, OutputError

Blocks = list[list[Tensor]]


class Samples(NamedTuple):
    """Where the samples lie: their axis in the inputs, and in the outputs."""

    inputs: int
    outputs: int


def check_batch_dim(verb: str, batch_dim: Any) -> None:
    """`batch_dim` is None or an axis counted from the front."""
    if batch_dim is None:
        return
    if isinstance(batch_dim, bool) or not isinstance(batch_dim, int):
        raise ArgumentTypeError(
            f"{verb}: batch_dim must be None or an int, got {batch_dim!r} ({type(batch_dim).__name__})."
        )
    if batch_dim < 0:
        raise ArgumentValueError(
            f"{verb}: batch_dim={batch_dim} is negative. It is the axis of the samples in every input and "
            "output, whatever their number of axes, so it is counted from the front: 0, 1, ..."
        )


def check_samples(
    caller: Caller,
    tensors: Sequence[Tensor],
    batch_dim: int,
    names: Callable[[], list[str]],
    count: int | None = None,
) -> int:
    """The number of samples that these tensors have along `batch_dim`, all the same."""
    fault = ArgumentValueError if count is None else OutputError
    for position, tensor in enumerate(tensors):
        shape = tuple(tensor.shape)
        if tensor.ndim <= batch_dim:
            raise fault(
                f"{caller}: with batch_dim={batch_dim} the samples lie along that axis of every input and "
                f"output, but {names()[position]} has shape {shape}, which has no axis {batch_dim}."
            )
        count = shape[batch_dim] if count is None else count
        if shape[batch_dim] != count:
            raise fault(
                f"{caller}: with batch_dim={batch_dim} every input that is differentiated by, and every "
                f"output, has the same number of samples, but {names()[position]} has shape {shape}: "
                f"{shape[batch_dim]} along axis {batch_dim} instead of {count}, which the first of these "
                "inputs has. "
                "Parameters have no samples: leave them out of argnums, or leave batch_dim out."
            )
    assert count is not None
    return count


def check_rows(
    caller: Caller, pullback: LinearMap, primals: list[Tensor], blocks: Blocks, samples: Samples
) -> None:
    """The pullback of a random cotangent is, sample by sample, the transposed blocks times it."""
    outputs = pullback.evaluation.outputs
    if outputs[0].shape[samples.outputs] < 2:
        return
    matrices = [
        [_matrices(block, out.ndim) for block in row] for out, row in zip(outputs, blocks, strict=True)
    ]
    turned = [[matrix.mT for matrix in column] for column in zip(*matrices, strict=True)]
    _check_sides(caller, pullback, turned, _Sides(outputs, samples.outputs, primals, samples.inputs))


def check_columns(
    caller: Caller, forward: LinearMap, primals: list[Tensor], blocks: Blocks, samples: Samples
) -> None:
    """The image of a random tangent is, sample by sample, the blocks times it."""
    if primals[0].shape[samples.inputs] < 2:
        return
    axes = [row[0].ndim - primals[0].ndim + 1 for row in blocks]
    matrices = [[_matrices(block, n) for block in row] for row, n in zip(blocks, axes, strict=True)]
    outputs = [
        row[0].new_empty(row[0].shape[:n]).movedim(0, samples.outputs)
        for row, n in zip(blocks, axes, strict=True)
    ]
    _check_sides(caller, forward, matrices, _Sides(primals, samples.inputs, outputs, samples.outputs))


class _Sides(NamedTuple):
    """What a linear map takes and what it gives, and the axes of the samples there."""

    source: list[Tensor]
    source_axis: int
    target: list[Tensor]
    target_axis: int


def _check_sides(caller: Caller, derivative: LinearMap, matrices: Blocks, sides: _Sides) -> None:
    """The map does what the matrices of the samples do, which stand by target and source."""
    if without_values():
        return
    # A norm, not a sum of absolute values: these would take as much memory as the result.
    sizes = [_total([vector_norm(m, 1, dim=1) for m in column]) for column in zip(*matrices, strict=True)]
    rows = [_per_sample(tensor, sides.source_axis) for tensor in _scattered_like(sides.source)]
    for vectors in _telling(rows, sizes):
        products = [
            [_placed(p, tensor, sides.target_axis) for p in _product(row, vectors.rows)]
            for tensor, row in zip(sides.target, matrices, strict=True)
        ]
        placed = zip(vectors.rows, sides.source, strict=True)
        directions = [_placed(v, tensor, sides.source_axis) for v, tensor in placed]
        probe = _Probe(directions, sides.source_axis, sides.target_axis, vectors.ground)
        _check_batchwise(caller, derivative, probe, products)


def _matrices(block: Tensor, axes: int) -> Tensor:
    """A block as a matrix for each sample; `axes` of its axes come before those of the input."""
    shape = block.shape
    return block.detach().reshape(shape[0], shape[1:axes].numel(), shape[axes:].numel())


def _per_sample(tensor: Tensor, axis: int) -> Tensor:
    """A row for each sample."""
    first = tensor.movedim(axis, 0)
    return first.reshape(first.shape[0], first.shape[1:].numel())


def _product(matrices: list[Tensor], vectors: list[Tensor]) -> list[Tensor]:
    """The sum of matrix times vector, sample by sample, and the same of absolute values."""
    pairs = [(m, v.to(m).unsqueeze(-1)) for m, v in zip(matrices, vectors, strict=True)]
    plain = _total([(m @ v).squeeze(-1) for m, v in pairs])
    return [plain, _total([(m.abs() @ v.abs()).squeeze(-1) for m, v in pairs])]


def _total(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], start=parts[0])


def _placed(product: Tensor, like: Tensor, axis: int) -> Tensor:
    """A row for each sample in the shape of a tensor that has its samples along this axis."""
    shape = like.movedim(axis, 0).shape
    return product.reshape(shape).movedim(0, axis)


class _Probe(NamedTuple):
    """Directions for a linear map, and along which axis the samples lie in them and in their images.

    An image of up to `ground` may be the rounding of larger numbers.
    """

    directions: list[Tensor]
    axis: int
    image_axis: int
    ground: Tensor


def _check_batchwise(caller: Caller, derivative: LinearMap, probe: _Probe, products: Blocks) -> None:
    """The map gives for a direction what the Jacobians of the samples give for it.

    `products` holds, for each image of the map, the product of the samples' Jacobians with the
    direction, and the same product of absolute values, which says how exact it can be. Where entries
    cancel it can be less exact than that, so a suspicion is looked into.
    """
    with torch.no_grad():
        images = derivative.apply(probe.directions)
        pairs = zip(images, products, strict=True)
        sizes = [size for _, size in products]
        if any(_differs(image, *product) for image, product in pairs) and _mixes(derivative, probe, sizes):
            raise OutputError(
                f"{caller}: batch_dim asks for the Jacobian of each sample, but the function mixes the "
                "samples: an output of one depends on the input of another (as batch normalization in "
                "training mode, or a sum over the batch, does). Leave batch_dim out for the whole "
                "Jacobian."
            )


def _tolerance(dtype: torch.dtype) -> float:
    """How much of its size an element may be off; less would be rounding, in single precision too."""
    return float(torch.finfo(dtype).eps ** 0.75)


def _rounding(dtype: torch.dtype) -> float:
    """What rounding leaves of a number that is zero, as a part of the numbers it was computed from."""
    return 64 * torch.finfo(dtype).eps


def _finite(size: Tensor) -> Tensor:
    """Sizes, of which those that are infinite or no numbers do not count."""
    return size.nan_to_num(0.0, 0.0)


def _differs(image: Tensor, expected: Tensor, size: Tensor) -> bool:
    if not expected.numel():
        return False
    wrong = (image - expected).abs() > _tolerance(expected.dtype) * size
    return bool(levels.bare(wrong.any()).any())


def _mixes(derivative: LinearMap, probe: _Probe, sizes: Sequence[Tensor]) -> bool:
    """Whether a direction that is zero in some samples has an image that is not zero there.

    The samples are told apart by the digits of their number, so that every pair is looked at.
    """
    usual = [_finite(size).movedim(probe.image_axis, 0).amax(0) for size in sizes]
    numbers = torch.arange(probe.directions[0].shape[probe.axis])
    for digit in range(len(numbers).bit_length()):
        for moving in ((numbers >> digit) % 2 == 0, (numbers >> digit) % 2 == 1):
            some = [
                (d.movedim(probe.axis, -1) * moving.to(d)).movedim(-1, probe.axis) for d in probe.directions
            ]
            images = [image.movedim(probe.image_axis, 0) for image in derivative.apply(some)]
            pairs = zip(images, usual, strict=True)
            if any(_reaches(image, moving, size, probe.ground) for image, size in pairs):
                return True
    return False


def _reaches(image: Tensor, moving: Tensor, usual: Tensor, ground: Tensor) -> bool:
    """Whether samples that do not move have an image, beside the usual size of each of its elements."""
    still = image[~moving].abs()
    if not still.numel():
        return False
    noise = _tolerance(image.dtype) * usual + _rounding(image.dtype) * usual.amax() + ground.to(usual)
    return bool(levels.bare(still > noise).any())


class _Vectors(NamedTuple):
    """What the Jacobians of the samples are multiplied with, a row for each sample; `ground` as in _Probe."""

    rows: list[Tensor]
    ground: Tensor


def _telling(vectors: Sequence[Tensor], sizes: Sequence[Tensor]) -> Iterator[_Vectors]:
    """Vectors in which nothing large hides something small, from any and the sizes of what they multiply.

    First each element is divided by its size. Elements of size zero follow alone, for theirs is unknown:
    where samples mix, what they do to their own and to the others may cancel.
    """
    sizes = [size.to(vector.dtype) for size, vector in zip(sizes, vectors, strict=True)]
    pairs = list(zip(vectors, sizes, strict=True))
    nothing = vectors[0].new_zeros(())
    yield _Vectors([_divided(vector, size) for vector, size in pairs], nothing)
    if any(levels.bare(size == 0).any() for size in sizes):
        largest = sum((_finite(size).amax() for size in sizes if size.numel()), start=nothing)
        ground = _rounding(nothing.dtype) * largest.clamp(max=1)
        yield _Vectors([torch.where(size == 0, vector, 0) for vector, size in pairs], ground)


def _divided(vector: Tensor, size: Tensor) -> Tensor:
    if not size.numel():
        return vector
    # What is as small as the rounding of the others may be nothing else.
    size = torch.maximum(size, _rounding(size.dtype) * _finite(size).amax())
    sound = (size > torch.finfo(size.dtype).tiny) & size.isfinite()
    return torch.where(sound, vector / size, vector)


def _scattered_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Directions without any regularity, the same ones each time; nothing is drawn, so vmap allows it."""
    return [_scattered(t.numel()).reshape(tuple(t.shape)).to(t.dtype).to(t.device) for t in tensors]


def _scattered(count: int) -> Tensor:
    """Numbers between 0.5 and 1.5: the far digits of a sine."""
    return (torch.arange(count, dtype=torch.float64) + 1).mul(12.9898).sin().mul(43758.5453).remainder(
        1
    ) + 0.5


def samples_first(stack: Tensor, axis: int) -> Tensor:
    """Images of directions, which are stacked in front, with the axis of the samples before that."""
    return stack.movedim(axis + 1, 0)
