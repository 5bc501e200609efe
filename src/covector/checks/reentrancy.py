"""Whether the backward is reentrant: one cotangent gives one gradient, however often it is pulled back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from covector._chart import AnyPlace
from covector.checks.run import CheckRun
from covector.verify import constants
from covector.verify.finding import Finding, failed, passed
from covector.verify.vectors import PIECE, Cotangent, combined, products, unit

# Vectors are dependent if the square of a singular value is at most this share of that of the largest.
_DEPENDENT = 1e-13

# How often a cotangent is pulled back to measure how far its gradients are apart.
_RUNS = 5


class _Spread(NamedTuple):
    """How far gradients of one cotangent are apart at most, where, and what was run."""

    size: float
    where: str
    runs: str


def determinism(run: CheckRun) -> Finding:
    """Pulling the same cotangent back again gives the same gradient, to `nondet_tol`.

    As in torch, `nondet_tol` bounds an entry of the Jacobian, or in fast mode the gradient of a cotangent of
    length one.
    """
    tolerance, found = run.options.nondet_tol, _of_two_pullbacks(run)
    if found is None and run.custom:
        found = _of_more_pullbacks(run)
    if found is not None and tolerance > 0:
        rows = _chosen(run.problem.outputs.size)
        found = _of_products(run) if run.options.fast else _repeated(run, rows, lambda _: None)
    if found is None or found.size <= tolerance:
        return passed("determinism")
    return failed(
        "determinism",
        f"{found.runs} differ by {found.size:.1e} at {found.where}, more than nondet_tol={tolerance:g}",
        "If the operation is nondeterministic by design, pass nondet_tol.",
    )


def _of_two_pullbacks(run: CheckRun) -> _Spread | None:
    """How far gradients of the random cotangent are apart; None if the two that are known are the same."""
    reverse = run.reverse
    first, again = reverse.pulled_coordinates, reverse.again
    if torch.equal(again, first):
        reverse.again = first  # one of them is enough
        return None
    # Either the other size or sign gives another gradient, or another run does. What is off at every other
    # run is off in one of two that follow each other; what was off once is right now.
    if (found := _of_repeated(run, 2)) is None:
        return _of_cotangent(run, [again, reverse.pulled_as_again()])
    return _of_repeated(run, _RUNS - len(reverse.repeated)) or found


def _of_more_pullbacks(run: CheckRun) -> _Spread | None:
    """The same for a backward that differs at times, by as many pullbacks as torch makes."""
    if run.options.fast:
        # What a look found may be a matter of the run.
        return _of_repeated(run, 2) if run.verdict(run.reverse).suspected else None
    reverse, height = run.reverse, run.problem.outputs.size
    chosen = _chosen(height, _busy(reverse.cotangents))
    # Up to so many, nothing adds up to zero; torch pulls every row back, so one more may be.
    one_more = len(reverse.cotangents) + len(chosen) <= height
    sums = _Sums(_sums_to_zero(reverse.cotangents, chosen, one_more=one_more), reverse.mixed)
    spread, again = _repeated(run, chosen, sums.add), _of_repeated(run, 1)
    found = spread or again
    if found is None:
        together = torch.zeros(height, dtype=torch.float64)
        together[chosen] = 1.0
        if one_more:
            sums.add(reverse.pull_coordinates(torch.from_numpy(reverse.cotangents[0]) - together).numpy())
        if sums.beyond_rounding(run):
            found = _of_others(run)
        if found is None and sums.beyond_tolerance(run):
            reverse.odd = reverse.odd or Cotangent(together, "with one number that is not zero")
    return found


def _of_others(run: CheckRun) -> _Spread | None:
    """How far the pullbacks that were made once are from two others, of which one at least is not off."""
    reverse = run.reverse
    first = torch.from_numpy(reverse.mixed[1:])
    return _worst(
        _of_cotangent(run, [gradient, *(reverse.pulled_as_sent(cotangent) for _ in range(2))])
        for gradient, cotangent in zip(first, reverse.random.others, strict=True)
    )


def _of_repeated(run: CheckRun, times: int) -> _Spread | None:
    """How far the gradients of the random cotangent are apart, once it was pulled back so often again."""
    for _ in range(times):
        run.reverse.pull_again()
    return _of_cotangent(run, run.reverse.repeated)


def _of_cotangent(run: CheckRun, gradients: list[Tensor]) -> _Spread | None:
    """How far gradients of one cotangent are apart; None if they are the same."""
    pairs = [(a, b) for a, b in combinations(gradients, 2) if not torch.equal(a, b)]
    differences = (_difference(a, b) for a, b in pairs)  # one at a time: each may be large
    size, at = max(((float(off.max()), int(off.argmax())) for off in differences), default=(0.0, 0))
    if size == 0:
        return None
    where = run.problem.inputs.label(at, run.problem.input_names)
    count = "two" if len(gradients) == 2 else len(gradients)
    return _Spread(size, where, f"{count} runs of the backward on the same cotangent")


def _worst(spreads: Iterable[_Spread | None]) -> _Spread | None:
    """The largest; None if there is none."""
    return max(filter(None, spreads), key=lambda spread: spread.size, default=None)


def _of_products(run: CheckRun) -> _Spread | None:
    """How far the gradients of a cotangent of length one are apart: one for each output, as in torch."""
    reverse, whole = run.reverse, torch.from_numpy(run.reverse.cotangents[0])

    def spread(place: AnyPlace, name: str) -> _Spread | None:
        part = torch.zeros_like(whole)
        part[place.start : place.stop] = whole[place.start : place.stop]
        length = part.norm().clamp_min(torch.finfo(torch.float64).tiny)
        found = _of_cotangent(run, [reverse.pull_coordinates(part / length) for _ in range(_RUNS)])
        runs = f"{_RUNS} runs of the backward on a cotangent of {name} of length one"
        return found and found._replace(runs=runs)

    return _worst(map(spread, run.problem.outputs.places, run.problem.output_names))


def _repeated(run: CheckRun, rows: Sequence[int], use: Callable[[np.ndarray], None]) -> _Spread | None:
    """How far gradients are apart if these rows are pulled back two times, one after the other.

    Whatever the period of a fault is, it does not hit two runs that follow each other. What changes once is
    seen in the random cotangent, which is pulled back before and after. None of the gradients is kept.
    """
    outputs, names = run.problem.outputs, run.problem.output_names

    def spread(row: int) -> _Spread | None:
        pulled = [run.reverse.pull_coordinates(unit(outputs.size, row)) for _ in range(2)]
        use(pulled[0].numpy())
        found = _of_cotangent(run, pulled)
        return found and found._replace(where=f"d {outputs.label(row, names)} / d {found.where}")

    return _worst(map(spread, rows))


def _chosen(height: int, left_out: Sequence[int] = ()) -> list[int]:
    """Some of so many rows, but for those that are left out, which are in order."""
    rest = height - len(left_out)
    positions = np.linspace(0, rest - 1, min(rest, constants.REPEATED_ROWS)).round().astype(int)
    for row in left_out:
        positions[positions >= row] += 1
    return positions.tolist()


def _busy(cotangents: np.ndarray) -> list[int]:
    """The two rows that are not repeated, so as to stay within torch's number of pullbacks.

    They are those where most cotangents have numbers other than zero, so that each of these has a relation
    to the others.
    """
    busy = np.flatnonzero(np.count_nonzero(cotangents, axis=0) >= min(3, len(cotangents)))
    return sorted({*busy[:1].tolist(), *busy[-1:].tolist()})


def _sums_to_zero(cotangents: np.ndarray, rows: Sequence[int], *, one_more: bool) -> np.ndarray:
    """The coefficients with which the cotangents and these unit vectors add up to zero.

    Unit vectors make up for whatever the cotangents add up to in their rows: these sums vanish in all others.
    With one more vector, the first cotangent without the unit vectors, there is one more sum.
    """
    count, others = len(cotangents), np.ones(cotangents.shape[1], dtype=bool)
    others[rows] = False
    gram = np.zeros((count, count))
    for start in range(0, len(others), PIECE):
        part = cotangents[:, start : start + PIECE][:, others[start : start + PIECE]]
        gram += products(part, part)
    squares, vectors = np.linalg.eigh(gram)
    mixed = vectors[:, squares <= _DEPENDENT * squares.max(initial=0.0)].T
    sums = np.hstack([mixed, -mixed @ cotangents[:, rows], np.zeros((len(mixed), int(one_more)))])
    if not one_more:
        return sums
    first = np.concatenate([-np.eye(1, count)[0], np.ones(len(rows)), [1.0]])
    return np.vstack([sums, first])


class _Sums:
    """What pullbacks of vectors that add up to zero add up to: of one linear map, zero."""

    def __init__(self, coefficients: np.ndarray, images: np.ndarray) -> None:
        """From the coefficients, and the pullbacks of the first vectors."""
        self._images, self._of_images = images, coefficients[:, : len(images)]
        self._next = iter(coefficients.T[len(images) :, :, None])
        self._others: np.ndarray | None = None
        """What the others add up to, and the sizes of that."""

    def add(self, image: np.ndarray) -> None:
        """The pullback of the next vector."""
        if self._others is None:
            self._others = np.zeros((2, len(self._of_images), len(image)))
        off, size = self._others
        coefficient = next(self._next)
        with np.errstate(all="ignore"):
            for span in self._spans():
                term = coefficient * image[span]
                off[:, span] += term
                size[:, span] += np.abs(term, out=term)

    def _spans(self) -> Iterator[slice]:
        return (slice(at, at + PIECE) for at in range(0, self._images.shape[1], PIECE))

    def _sums(self) -> Iterator[np.ndarray]:
        """What all add up to, and the sizes of that, some columns at a time: nobody keeps them."""
        for span in self._spans():
            images = self._images[:, span]
            with np.errstate(all="ignore"):
                sums = np.stack(
                    [combined(self._of_images, images), combined(abs(self._of_images), abs(images))]
                )
                yield sums if self._others is None else sums + self._others[:, :, span]

    def beyond_rounding(self, run: CheckRun) -> bool:
        """Whether a sum is off by more than its rounding error."""
        largest = max((float(size.max(initial=0.0)) for _, size in self._sums()), default=0.0)
        allowed = constants.ROUNDINGS_OF_A_SUM * run.problem.rounding * largest
        return any(bool((abs(off) > allowed).any()) for off, _ in self._sums())

    def beyond_tolerance(self, run: CheckRun) -> bool:
        """Whether a sum is off by more than the tolerance: these are not the pullbacks of one linear map."""
        if run.problem.low_precision:
            return False
        pairs = (map(torch.from_numpy, sums) for sums in self._sums())
        return not all(run.close(off, torch.zeros_like(off), size) for off, size in pairs)


def _difference(a: Tensor, b: Tensor) -> Tensor:
    """How far numbers are apart; those that are no numbers are the same as each other, and as no others."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(torch.inf))
