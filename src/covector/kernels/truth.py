"""What a kernel is compared with: golden values in float64, and the noise of the reference in the dtype."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covector._chart import ShapeChange
from covector._lazy import lazy
from covector.kernels.limits import freedom_of_reference
from covector.kernels.slices import Slicing, slicings


def real(tensor: Tensor) -> Tensor:
    """The numbers of a tensor in float64, on the CPU; a complex one has an axis for its two parts."""
    tensor = tensor.detach()
    tensor = torch.view_as_real(tensor.resolve_conj().to(torch.complex128)) if tensor.is_complex() else tensor
    return tensor.to("cpu", torch.float64)


def ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of the dtype, at each value."""
    info = torch.finfo(dtype)
    least = info.tiny * info.eps
    sizes = values.abs().nan_to_num(0.0, 0.0, 0.0).clamp_min(least)
    _, exponent = torch.frexp(sizes)
    return (info.eps * torch.exp2(exponent.double() - 1)).clamp_min(least)


def nudged(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """An eighth of the entries one ulp up, an eighth one down: half an ulp in the root mean square."""
    values = real(tensor)
    steps = torch.randint(0, 8, values.shape, generator=generator)
    moved = values + ulp(values, tensor.dtype) * ((steps == 0).double() - (steps == 1).double())
    moved = torch.where(moved.abs() <= torch.finfo(tensor.dtype).max, moved, values)
    if tensor.is_complex():
        moved = torch.view_as_complex(moved)
    return moved.to(tensor.device, tensor.dtype)


# The floor of an entry is no less than this share of the mean square of its slice: four runs may agree by
# chance, and an entry that the others cancel has their noise.
SHARE = 0.02

# A slice whose values are no more than so many times its noise is what is left of terms that cancel.
CANCELLED = 4

# The share of the entries without which a problem may be well-conditioned.
NOISIEST = 0.125


@dataclass(frozen=True)
class Cut:
    """An axis in slices: the floor of each entry there, how many entries count, and their freedom."""

    slicing: Slicing
    floor: Tensor
    counts: Tensor
    freedom: float


@dataclass(frozen=True)
class Truth:
    """Golden values of one tensor, the errors of the reference's runs, and the floor under both."""

    name: str
    golden: Tensor
    errors: Tensor
    """One row for each run of the reference in the dtype."""
    dtype: torch.dtype
    judged: Tensor
    """Where golden and the reference in the dtype are finite."""
    eager: Tensor
    """What the reference gave in the dtype, with inputs as they are."""
    least: Tensor | None = None
    """A floor that this one is not below, from other cotangents of the same scale."""

    @lazy
    def ulps(self) -> Tensor:
        """The distance of neighbouring numbers at each entry.

        Below eps of the root mean square of the tensor there is nothing to be right about: sums of numbers
        of that size are rounded there, so the distance does not get smaller.
        """
        values = self.golden[self.judged]
        scale = float(values.square().mean().sqrt()) if values.numel() else 0.0
        info = torch.finfo(self.dtype)
        return ulp(self.golden, self.dtype).clamp_min(info.eps**2 * scale)

    @lazy
    def run_squares(self) -> Tensor:
        """The squares of the errors of each run, with that of rounding."""
        return self.errors.square() + self.ulps.square() / 12

    @lazy
    def floor(self) -> Tensor:
        """The square of the noise, for each entry."""
        own = self.run_squares.mean(0)
        return own if self.least is None else torch.maximum(own, self.least)

    @lazy
    def steady_floor(self) -> Tensor:
        """The floor, and no less than what is typical of the tensor, relative to its values."""
        sizes = self.golden.square()
        known = self.judged & (sizes > 0)
        if not bool(known.any()):
            return self.floor
        typical = (self.floor[known] / sizes[known]).median()
        return torch.maximum(self.floor, typical * torch.where(known, sizes, 0.0))

    @lazy
    def mean_floor(self) -> float:
        """The mean of the floor over the tensor."""
        return float(self.floor[self.judged].mean()) if bool(self.judged.any()) else 0.0

    @lazy
    def whole_floor(self) -> Tensor:
        """What the whole tensor is judged by."""
        return self.steady_floor + SHARE * self.mean_floor

    @lazy
    def freedom(self) -> float:
        """The degrees of freedom of the whole tensor."""
        sums = self.run_squares.reshape(len(self.errors), -1).sum(1, keepdim=True)
        return min(max(freedom_of_reference(sums), 1.0), max(1, self.golden.numel()))

    @lazy
    def largest_error(self) -> float:
        """Of all runs of the reference."""
        return float(self.errors.abs().max()) if self.errors.numel() else 0.0

    @lazy
    def largest_ulp(self) -> float:
        """Of the entries that are judged."""
        return float(torch.where(self.judged, self.ulps, 0.0).max()) if self.judged.numel() else 0.0

    @lazy
    def cuts(self) -> list[Cut]:
        """Every axis in slices, with what these are judged by."""
        return [self._cut(slicing) for slicing in slicings(self.golden.shape)]

    def _cut(self, slicing: Slicing) -> Cut:
        counts = slicing.sums(self.judged.double()).clamp_min(1.0)
        level, size = (
            slicing.sums(torch.where(self.judged, squares, 0.0)) / counts
            for squares in (self.floor, self.golden.square())
        )
        # What cancels, or is zero as the first row of a causal mask, may have the noise of the whole tensor:
        # how much less the reference has there depends on its order of operations.
        cancelled = torch.maximum(level, level.new_tensor(self.mean_floor / SHARE))
        floor = self.steady_floor + SHARE * slicing.spread(
            torch.where(size > CANCELLED**2 * level, level, cancelled)
        )
        freedom = freedom_of_reference(torch.stack([slicing.sums(run / floor) for run in self.run_squares]))
        return Cut(slicing, floor, counts, min(freedom, self.golden.numel() / slicing.count))

    @lazy
    def condition(self) -> float:
        """The noise floor, as a share of the values: of all, or without the noisiest entries if that is less.

        Where a maximum of coarse numbers hangs on one rounding, a few entries of its gradient are all noise,
        and the others are sharp.
        """
        floor, size = self.floor[self.judged], self.golden[self.judged].square()
        kept = floor <= _quantile(floor, 1 - NOISIEST) if floor.numel() else floor.bool()
        whole = _share(floor, size)
        return min(whole, _share(floor[kept], size[kept])) if bool(size[kept].any()) else whole


def _quantile(numbers: Tensor, share: float) -> Tensor:
    return numbers.kthvalue(max(1, int(share * numbers.numel()))).values


def _share(floor: Tensor, size: Tensor) -> float:
    total = float(size.sum())
    return (float(floor.sum()) / total) ** 0.5 if total > 0 else 0.0


def truth_of(name: str, golden: Tensor, eager: Tensor, runs: list[Tensor]) -> Truth:
    """A tensor of the reference: in float64, in the dtype, and in the dtype with inputs nudged."""
    exact, seen = real(golden), real(eager)
    if any(run.shape != golden.shape for run in (eager, *runs)):
        raise ShapeChange(f"{name} of the reference has another shape each time")
    errors = torch.stack([real(run) - exact for run in runs])
    judged = exact.isfinite() & seen.isfinite() & errors.isfinite().all(0)
    errors = torch.where(judged, errors, 0.0)
    return Truth(name, exact, errors, eager.dtype, judged, seen)
