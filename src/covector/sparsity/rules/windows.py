"""Windows: convolutions and poolings, where an element of the result reads a window of each channel."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from covector.sparsity.dependence import Dependence, merged, united
from covector.sparsity.rules.lines import by_plane, over, selected
from covector.sparsity.tracker import Dependences, NoRule, Operation

Integers = NDArray[np.int64]


class Geometry(NamedTuple):
    """Where a window lies: element o of the far side meets element o * stride - padding + tap * dilation."""

    near: tuple[int, ...]
    far: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


class Meetings(NamedTuple):
    """Every element of the far side with every element of the near side in its window, and by which tap."""

    far: Integers
    near: Integers
    tap: Integers
    sizes: tuple[int, int]

    def turned(self) -> Meetings:
        """The same, seen from the other side."""
        return Meetings(self.near, self.far, self.tap, (self.sizes[1], self.sizes[0]))

    def pattern(self) -> Any:
        """Which elements of the near side each element of the far side meets."""
        data = np.ones(len(self.far), dtype=bool)
        return sparse.csr_array((data, (self.far, self.near)), shape=self.sizes)


@lru_cache(maxsize=32)
def meetings(geometry: Geometry) -> Meetings:
    """All meetings in all dimensions, elements of each side numbered in order."""
    far = near = tap = np.zeros(1, dtype=np.int64)
    for near_size, far_size, kernel, stride, padding, dilation in zip(*geometry, strict=True):
        o, t = (
            part.reshape(-1) for part in np.meshgrid(np.arange(far_size), np.arange(kernel), indexing="ij")
        )
        i = o * stride - padding + t * dilation
        inside = (i >= 0) & (i < near_size)
        o, t, i = o[inside], t[inside], i[inside]
        far = (far[:, None] * far_size + o).reshape(-1)
        near = (near[:, None] * near_size + i).reshape(-1)
        tap = (tap[:, None] * kernel + t).reshape(-1)
    sizes = (int(np.prod(geometry.far, dtype=np.int64)), int(np.prod(geometry.near, dtype=np.int64)))
    return Meetings(far, near, tap, sizes)


def _tuple(value: Any, count: int) -> tuple[int, ...]:
    """An argument that is given once for all dimensions, or for each."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    return tuple(int(v) for v in (values * count if len(values) == 1 else values))


class _Convolution:
    """The two sides of a convolution and the weight between them."""

    def __init__(self, operation: Operation, sides: tuple[Tensor, Tensor], weight: Tensor) -> None:
        """Windows lie on the first side; `weight` is (far channels, near channels of a group, ...)."""
        count = weight.ndim - 2
        stride, padding, dilation = (_tuple(operation[n], count) for n in ("stride", "padding", "dilation"))
        self.groups = operation["groups"] or 1
        self.near, self.far = near, far = sides
        self.weight = weight
        kernel = tuple(weight.shape[2:])
        self.meetings = meetings(
            Geometry(tuple(near.shape[-count:]), tuple(far.shape[-count:]), kernel, stride, padding, dilation)
        )
        self.known = operation.known(weight)

    def pulled(self, dependence: Dependence, *, turned: bool) -> Dependence:
        """What the far side reads of the near side; turned, the near side of the far side."""
        target = self.near if turned else self.far
        meeting = self.meetings.turned() if turned else self.meetings
        ids, groups = dependence.ids, self.groups
        ids = ids.reshape(target.shape[0], groups, -1, meeting.sizes[1])
        shape = (target.shape[0], groups, target.shape[1] // groups, meeting.sizes[0])
        masks = self._masks(turned=turned)
        if masks is None:
            channels = over(dependence.with_ids(ids), [2], keepdim=True)
            found = selected(channels, meeting.pattern())
            return found.expand(shape).reshape(target.shape)
        return self._masked(dependence.with_ids(ids), masks, meeting, shape, target)

    def _masks(self, *, turned: bool) -> Tensor | None:
        """Where a constant weight is not zero, by (group, target, source, tap); None if full."""
        if not self.known:
            return None
        weight = (self.weight.detach() != 0).cpu().flatten(2)
        if bool(weight.all()):
            return None
        masks = weight.reshape(self.groups, -1, *weight.shape[1:])
        return masks.transpose(1, 2) if turned else masks

    def _masked(
        self, source: Dependence, masks: Tensor, meeting: Meetings, shape: tuple[int, ...], target: Tensor
    ) -> Dependence:
        """Channel by channel of the target; channels with zeros at the same taps share the work."""
        parts: list[Dependence] = []
        place = torch.empty(masks.shape[0], masks.shape[1], dtype=torch.int64)
        for group in range(masks.shape[0]):
            kinds, kind_of = torch.unique(masks[group].flatten(1), dim=0, return_inverse=True)
            place[group] = kind_of + len(parts)
            lines = source.ids[:, group].reshape(shape[0], -1)
            for kind in kinds.reshape(len(kinds), *masks.shape[2:]):
                parts.append(selected(source.with_ids(lines), _reads(kind.numpy(), meeting)))
        sets, ids = merged(parts)
        stacked = torch.stack(ids, dim=1)
        chosen = stacked[:, place.reshape(-1)]
        return Dependence(chosen.reshape(target.shape), sets)


def _reads(mask: NDArray[np.bool_], meeting: Meetings) -> Any:
    """The elements of all source channels that an element of the target reads, by a mask (channel, tap)."""
    channel, at = np.nonzero(mask[:, meeting.tap])
    columns = channel * meeting.sizes[1] + meeting.near[at]
    shape = (meeting.sizes[0], mask.shape[0] * meeting.sizes[1])
    return sparse.csr_array((np.ones(len(at), dtype=bool), (meeting.far[at], columns)), shape=shape)


def convolution(operation: Operation) -> Dependences:
    """The result reads windows of the input, the weight of its channel, and its bias."""
    source, weight, result = operation["input"], operation["weight"], operation.result
    turned = bool(operation["transposed"])
    if source.ndim != weight.ndim:
        raise NoRule
    sides: tuple[Tensor, Tensor] = (result, source) if turned else (source, result)
    parts = []
    moving = operation.dependence(source)
    if moving is not None:
        parts.append(_Convolution(operation, sides, weight).pulled(moving, turned=turned))
    taps = operation.dependence(weight)
    if taps is not None:
        parts.append(_by_channel(taps, operation, turned=turned))
    bias = operation.dependence(operation["bias"])
    if bias is not None:
        parts.append(bias.with_ids(_as_channel(bias.ids, result.ndim)))
    return [united(parts, result.shape)]


def _as_channel(ids: Tensor, ndim: int) -> Tensor:
    return ids.reshape(1, -1, *[1] * (ndim - 2))


def _by_channel(taps: Dependence, operation: Operation, *, turned: bool) -> Dependence:
    """All of the weight that belongs to a channel of the result."""
    groups, ids = operation["groups"] or 1, taps.ids
    if turned:  # (channels of the input, channels of a group of the result, ...)
        ids = (
            ids.reshape(groups, -1, ids.shape[1], *ids.shape[2:])
            .transpose(0, 1)
            .flatten(1, 2)
            .transpose(0, 1)
        )
    channels = over(taps.with_ids(ids.flatten(1)), [1], keepdim=False)
    return channels.with_ids(_as_channel(channels.ids, operation.result.ndim))


def convolution_backward(operation: Operation) -> Dependences:
    """The gradients of a convolution by its input, its weight and its bias."""
    gradient, source, weight = (operation[name] for name in ("grad_output", "input", "weight"))
    if source.ndim != weight.ndim:
        raise NoRule
    turned = bool(operation["transposed"])
    sides = (gradient, source) if turned else (source, gradient)
    by_input, by_weight, by_bias = operation.results
    return [
        _to_input(operation, sides, by_input, turned=turned),
        _to_weight(operation, by_weight, turned=turned),
        _to_bias(operation, by_bias),
    ]


def _to_input(
    operation: Operation, sides: tuple[Tensor, Tensor], result: Tensor | None, *, turned: bool
) -> Dependence | None:
    gradient = operation.dependence(operation["grad_output"])
    weight = operation.dependence(operation["weight"])
    parts = []
    if result is None:
        return None
    if gradient is not None:
        parts.append(_Convolution(operation, sides, operation["weight"]).pulled(gradient, turned=not turned))
    if weight is not None:
        parts.append(over(weight, range(weight.ids.ndim), keepdim=True))
    return united(parts, result.shape) if parts else None


def _to_weight(operation: Operation, result: Tensor | None, *, turned: bool) -> Dependence | None:
    if result is None:
        return None
    parts = []
    for name, axis in (("grad_output", 1 if turned else 0), ("input", 0 if turned else 1)):
        found = operation.dependence(operation[name])
        if found is None:
            continue
        axes = [a for a in range(found.ids.ndim) if a != 1]
        channels = over(found, axes, keepdim=False)
        if channels.ids.numel() != result.shape[axis]:  # groups: channels of all of them
            channels = over(channels, [0], keepdim=True)
        shape = [1] * result.ndim
        shape[axis] = channels.ids.numel()
        parts.append(channels.reshape(shape))
    return united(parts, result.shape) if parts else None


def _to_bias(operation: Operation, result: Tensor | None) -> Dependence | None:
    gradient = operation.dependence(operation["grad_output"])
    if result is None or gradient is None:
        return None
    return over(gradient, [axis for axis in range(gradient.ids.ndim) if axis != 1], keepdim=False)


def _pooling(operation: Operation, near: Tensor, far: Tensor) -> Meetings:
    """The windows of a pooling from the near side to the far side."""
    count = 3 if "3d" in operation.name else 1 if "1d" in operation.name else 2
    kernel = _tuple(operation["kernel_size"], count)
    stride = _tuple(operation["stride"] or kernel, count)
    padding, dilation = _tuple(operation["padding"] or 0, count), _tuple(operation["dilation"] or 1, count)
    near_size, far_size = tuple(near.shape[-count:]), tuple(far.shape[-count:])
    return meetings(Geometry(near_size, far_size, kernel, stride, padding, dilation))


def pool(operation: Operation) -> Dependences:
    """Each element reads its window; the indices of a largest element lie in it."""
    result = operation.result
    meeting = _pooling(operation, operation["self"], result)
    if len(operation.results) == 2:
        _remember_choices(operation, meeting)
    source = operation.dependence(operation["self"])
    if source is None:
        return [None for _ in operation.results]
    first = by_plane(source, meeting.pattern(), result.shape)
    return [first, *(None for _ in operation.results[1:])]


pool.chooses = True  # type: ignore[attr-defined]


def _remember_choices(operation: Operation, meeting: Meetings) -> None:
    """The indices that a pooling returns are those of elements of their windows."""
    indices = operation.results[1]
    assert indices is not None
    ids = torch.arange(meeting.sizes[0]).expand(indices.numel() // max(meeting.sizes[0], 1), -1)
    operation.tracker.choose(indices, Dependence(ids.reshape(indices.shape), meeting.pattern()))


def pool_backward(operation: Operation) -> Dependences:
    """Each element of the input reads the windows that it is part of."""
    gradient = operation.moving("grad_output")
    meeting = _pooling(operation, operation["self"], operation["grad_output"]).turned()
    return [by_plane(gradient, meeting.pattern(), operation.result.shape)]


RULES = {
    "convolution": convolution,
    "_convolution": convolution,
    "convolution_overrideable": convolution,
    "convolution_backward": convolution_backward,
    **dict.fromkeys((f"max_pool{n}d_with_indices" for n in (2, 3)), pool),
    **dict.fromkeys((f"avg_pool{n}d" for n in (1, 2, 3)), pool),
    **dict.fromkeys((f"max_pool{n}d_with_indices_backward" for n in (2, 3)), pool_backward),
    **dict.fromkeys((f"avg_pool{n}d_backward" for n in (2, 3)), pool_backward),
}
