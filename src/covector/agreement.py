"""`agree`: the derivatives of one function by several ways of computing them, against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from covector._engine.modes import TRACING
from covector._engine.rounding import EVERY, RandomRounding
from covector._random import seeded
from covector._tree import Arguments
from covector.checks.arguments import arguments_of, as_tuple, caller_of, module_call
from covector.checks.state import quiet, unchanged
from covector.errors import ArgumentTypeError, ArgumentValueError, Caller, first_sentence
from covector.kernels import limits
from covector.kernels.batches import Batch, batched_rows
from covector.kernels.bench import Bench, RunOf, Sample, Seen, Settings
from covector.kernels.comparison import PASSING_SHARE, compare
from covector.kernels.findings import lens_finding
from covector.kernels.lenses.modes import compiled, nested, pushed, through
from covector.kernels.row import Row, Status, row_of, row_of_error
from covector.kernels.subject import Subject, random_like, variables
from covector.kernels.truth import truth_of
from covector.report.report import Report
from covector.transforms._calls import rightly_called
from covector.transforms._door import check_seed, summary
from covector.verify.finding import Finding, Outcome, Table
from covector.verify.leaves import is_differentiable

_VERB = "agree"

# How many times the noise of the function two ways of computing it may differ. A way that is wrong differs by
# orders of magnitude more; one that adds numbers up in another order by a few times.
_RATIO = 10.0

# Along how many directions forward mode is compared, beside one for each input.
_DIRECTIONS = 4


class _Alone(Bench):
    """A function that is compared with itself: what it gives without a mode is true, but for its noise."""

    def seen(self, run: RunOf, sample: Sample, *, nudge_both: bool = False) -> Seen:
        """The function as it is, and with every operation rounded at random."""
        as_it_is = run(sample.leaves, sample.cotangents)
        generator = seeded(self.settings.seed)
        rounded = []
        for number in range(limits.RUNS):
            leaves = self.nudged(sample.leaves, generator)
            with RandomRounding(self.settings.seed + number, EVERY):
                rounded.append(run(leaves, sample.cotangents))
        return Seen(as_it_is, as_it_is, rounded)


Look = Callable[[_Alone, str], Iterator[Row]]


def _eager(bench: _Alone, name: str) -> Iterator[Row]:
    """The same call again: a function that is not deterministic agrees with nothing."""
    yield from through(bench, name, bench.kernel.function)


def _forward(bench: _Alone, name: str) -> Iterator[Row]:
    """<v, J u> by forward mode is <J^T v, u>, along directions in one input each and in all of them."""
    chosen, sample = bench.arguments.chosen, bench.sample
    known = [truth for truth in bench.truths.gradients if truth is not None]
    slopes, expected, noise, least = [], [], [], []
    for tangents in _directions(bench):
        found = pushed(bench.kernel, bench.leaves, tangents)
        terms = [
            (_double(v).conj() * _double(t)).real
            for v, t in zip(sample.cotangents, found, strict=True)
            if v is not None and t is not None
        ]
        along = {f"grad {n}": _real(tangents[i]) for i, n in zip(chosen, bench.names, strict=True)}
        pairs = [(truth, along[truth.name]) for truth in known]
        slopes.append(sum(float(term.sum()) for term in terms))
        expected.append(sum(float((truth.golden * u).sum()) for truth, u in pairs))
        noise.append(
            [sum(float((e[number] * u).sum()) for e, u in _errors(pairs)) for number in range(limits.RUNS)]
        )
        sizes = [term.norm() for term in terms] + [(truth.golden * u).norm() for truth, u in pairs]
        least.append(sum(float(size) for size in sizes))
    dtype = max((truth.dtype for truth in known), key=lambda d: torch.finfo(d).eps)
    golden = torch.tensor(expected, dtype=torch.float64)
    runs = [golden + row for row in torch.tensor(noise, dtype=torch.float64).T]
    truth = truth_of("the slope along a direction", golden, golden, runs)
    floor = (torch.finfo(dtype).eps * torch.tensor(least, dtype=torch.float64)).square()
    truth = replace(truth, least=floor)
    got = torch.tensor(slopes, dtype=torch.float64)
    yield row_of(name, [compare(got, truth, bench.settings.ratio, bench.alpha)])


def _errors(pairs: Sequence[Any]) -> list[tuple[Tensor, Tensor]]:
    return [(truth.errors, u) for truth, u in pairs]


def _directions(bench: _Alone) -> Iterator[list[Tensor | None]]:
    """Tangents for one input each, where there are several, and for all of them."""
    chosen = bench.arguments.chosen
    groups = [[i] for i in chosen] if len(chosen) > 1 else []
    for number, some in enumerate([*groups, *([list(chosen)] * _DIRECTIONS)]):
        drawn = random_like(bench.leaves, bench.settings.seed + 11 + number)
        yield [
            None if i not in chosen or t is None else t if i in some else torch.zeros_like(t)
            for i, t in enumerate(drawn)
        ]


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.complex128 if tensor.is_complex() else torch.float64)


def _real(tensor: Tensor | None) -> Tensor:
    """A direction in real numbers, as gradients are compared."""
    assert tensor is not None
    return torch.view_as_real(_double(tensor)) if tensor.is_complex() else _double(tensor)


def _vmapped(bench: _Alone, name: str) -> Iterator[Row]:
    """Two points as a batch, differentiated as a whole and each within the batch."""
    ways = {"the gradient of a batch": Batch.of_the_batch, "a batch of gradients": Batch.within_the_batch}
    yield from batched_rows(bench, name, ways)


def _exported(bench: _Alone, name: str) -> Iterator[Row]:
    """The program that torch.export makes, differentiated."""
    places = [i for i, leaf in enumerate(bench.leaves) if isinstance(leaf, Tensor)]

    class Whole(Module):
        def forward(self, *tensors: Tensor) -> Any:
            leaves = list(bench.leaves)
            for index, tensor in zip(places, tensors, strict=True):
                leaves[index] = tensor
            args, kwargs = bench.arguments.rebuild(leaves)
            return bench.kernel.function(*args, **kwargs)

    leaves = variables(bench.leaves, bench.arguments.chosen)
    with TRACING:
        program = torch.export.export(Whole(), tuple(leaves[i] for i in places), strict=False).module()

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(args, kwargs)
        given = arguments.select(arguments.slots, single=False).leaves
        return program(*(given[i] for i in places))

    yield from through(bench, name, call)


MODES: dict[str, Look] = {
    "eager": _eager,
    "reverse": nested,
    "forward": _forward,
    "vmapped": _vmapped,
    "compiled": compiled,
    "exported": _exported,
}


@rightly_called
def agree(
    func: Callable[..., Any],
    inputs: Any,
    kwargs: dict[str, Any] | None = None,
    *,
    modes: Sequence[str] = tuple(MODES),
    seed: int = 0,
) -> Report:
    """Compare the derivatives of a function by several ways of computing them, without a reference.

    The function is run and differentiated as it is; every mode has to give the same outputs and the same
    derivative, in the precision of the inputs, but for rounding: how far that goes is measured by runs in
    which every operation is rounded at random. A mode that torch cannot run is a remark, not a failure.

    Args:
        func: takes the inputs, returns a tree of tensors; a module is differentiated by its parameters too.
        inputs: a tensor, or a tuple of trees; derivatives are taken by the tensors that require grad.
        kwargs: keyword arguments of `func`.
        modes: which to compare:
            "eager" (again, by autograd), "reverse" (on a level of a function transform), "forward"
            (forward mode, against reverse along random directions), "vmapped" (two points at once),
            "compiled" (traced by torch.compile, fullgraph, forward and backward), "exported" (the program
            that torch.export makes, differentiated).
        seed: of everything random here.

    Returns:
        A `Report`, true if all modes that could be run agree.

    Raises:
        ArgumentTypeError, ArgumentValueError: the call itself is wrong.

    Example:
        >>> import torch, covector
        >>> x = torch.linspace(0.1, 1, 5, requires_grad=True)
        >>> bool(covector.agree(torch.log, x, modes=("eager", "forward", "vmapped")))
        True
    """
    started = time.perf_counter()
    caller = caller_of(_VERB, func)
    names = _modes(caller, modes)
    check_seed(str(caller), seed)
    caller, arguments = _arguments(caller, inputs, kwargs)
    bench = _bench(caller, arguments, seed)
    with unchanged(func), quiet():
        try:
            bench.truths  # noqa: B018 - made here, where it can fail
        except Exception as error:
            rows = [(name, [row_of_error("without a mode", error)]) for name in names[:1]]
        else:
            rows = [(name, _rows(bench, name)) for name in names]
    return Report(
        Caller(_VERB, func).name,
        _VERB,
        _findings(rows),
        tuple(bench.names),
        tuple(bench.output_names),
        f"each mode against the function as it is, noise floor of {limits.RUNS} runs rounded at random, "
        f"ratio {_RATIO:g}",
        seed,
        bench.kernel.count.forward,
        time.perf_counter() - started,
        tables=(_table(rows),),
    )


def _modes(caller: Caller, modes: Any) -> list[str]:
    if not isinstance(modes, Iterable):
        raise ArgumentTypeError(f"{caller}: modes must be names of modes, got {summary(modes)}.")
    given = [modes] if isinstance(modes, str) else list(modes)
    for name in given:
        if name not in MODES:
            raise ArgumentValueError(f"{caller}: there is no mode {name!r}; there are {', '.join(MODES)}.")
    if not given:
        raise ArgumentValueError(f"{caller}: modes is empty; there are {', '.join(MODES)}.")
    return list(dict.fromkeys(given))


def _arguments(caller: Caller, inputs: Any, kwargs: Any) -> tuple[Caller, Arguments]:
    if kwargs is not None and not isinstance(kwargs, dict):
        raise ArgumentTypeError(f"{caller}: kwargs must be a dict, got {summary(kwargs)}.")
    if isinstance(caller.function, Module):
        made, arguments = module_call(caller.function, inputs, kwargs)
        return Caller(_VERB, made.function), arguments
    return caller, arguments_of(caller, as_tuple(inputs), kwargs)


def _bench(caller: Caller, arguments: Arguments, seed: int) -> _Alone:
    subject = Subject(caller.function, arguments)
    leaves = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in arguments.leaves]
    dtypes = {str(leaf.dtype).removeprefix("torch.") for leaf in leaves if is_differentiable(leaf)}
    names = arguments.paths(caller.function)
    settings = Settings(_RATIO, 0.0, seed)
    return _Alone(subject, subject, leaves, settings, ", ".join(sorted(dtypes)), names)


def _rows(bench: _Alone, name: str) -> list[Row]:
    """What a mode gives beside the function as it is; what it raises says that it is not supported."""
    try:
        return [_within_noise(row) for row in MODES[name](bench, name)]
    except Exception as error:
        return [Row(name, Status.UNSUPPORTED, f"{type(error).__name__}: {first_sentence(error)}")]


def _within_noise(row: Row) -> Row:
    """Two results agree if they are no further apart than the noise, up to half of the values."""
    seen = row.comparison
    if row.status is not Status.INCONCLUSIVE or seen is None:
        return row
    close = not seen.wrong and seen.condition < PASSING_SHARE
    return replace(row, status=Status.PASSED, text="") if close else row


def _findings(rows: Sequence[tuple[str, list[Row]]]) -> tuple[Finding, ...]:
    found = [_finding(name, some) for name, some in rows]
    compared = [name for name, some in rows if any(row.status in _TOLD for row in some)]
    if compared:
        return tuple(found)
    text = "none of the modes could be run, so nothing was compared"
    return (*found, Finding("modes", Outcome.INCONCLUSIVE, text))


def _finding(name: str, rows: Sequence[Row]) -> Finding:
    """What a mode gave; noise that hides the values leaves it undecided."""
    doubtful = [row for row in rows if row.status is Status.INCONCLUSIVE]
    if doubtful:
        return Finding(name, Outcome.INCONCLUSIVE, doubtful[0].text, advice=_NOISY)
    return lens_finding(name, rows)


_NOISY = "The function draws random numbers, or loses its digits at this point: try others, or float64."
_TOLD = (Status.PASSED, Status.FAILED, Status.INCONCLUSIVE)


def _table(rows: Sequence[tuple[str, list[Row]]]) -> Table:
    """Every mode."""
    found = [(name, str(row.status), row.ratio, row.text) for name, some in rows for row in some]
    return Table("modes", ("mode", "outcome", "ratio", "remark"), tuple(found))
