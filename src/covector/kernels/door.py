"""`check_kernel` and `kernelcheck`: what is asked, in which dtypes, through which lenses, and the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from covector._described import described_by
from covector._tasks.progress import progress
from covector.checks.arguments import as_tuple, caller_of
from covector.checks.state import quiet, unchanged
from covector.errors import ArgumentTypeError, ArgumentValueError, Caller, GradcheckError
from covector.kernels import limits
from covector.kernels.bench import Settings
from covector.kernels.findings import lens_table, ratio_table
from covector.kernels.lenses.table import LENSES, Lens
from covector.kernels.prepare import Request, benches, dtypes_of
from covector.kernels.trial import tried
from covector.report.report import Report
from covector.report.reproduce import Call, call_again
from covector.transforms._calls import rightly_called
from covector.transforms._door import check_seed, summary
from covector.verify.finding import Outcome

_VERB = "check_kernel"


@rightly_called
def check_kernel(
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Any,
    kwargs: dict[str, Any] | None = None,
    *,
    dtypes: torch.dtype | Sequence[torch.dtype] | None = None,
    lenses: Sequence[str] | None = None,
    ratio: float = 3.0,
    nondet_tol: float = 0.0,
    seed: int = 0,
) -> Report:
    """Compare a kernel with a reference, in the kernel's own precision and in every way it will be called.

    Kernel, reference and golden values (the reference in float64) see the same numbers. The error of the
    kernel is measured against the noise of the reference in the same dtype: of every output and every
    gradient, as a whole, on every slice along every axis, and in its largest entry.
    `docs/how-to/kernels.md` explains it.

    Args:
        kernel: what is to be checked: a function, an `nn.Module`, an operator of `torch.library`.
        reference: plain torch code of the same arguments, that also runs in float64.
        inputs: a tensor, or a tuple of trees; or a function of a size that makes them, to vary sizes.
            Gradients are compared by the tensors that require grad; if none does, outputs alone are.
        kwargs: keyword arguments of both.
        dtypes: the dtypes to check in; None means the inputs' own.
        lenses: names of the lenses to look through; one with a "-" before it is left out of all.
        ratio: how many times the reference's noise a right kernel may have.
        nondet_tol: how much two runs on the same inputs may differ.
        seed: of everything random here.

    Returns:
        A `Report`, true if everything passed.

    Raises:
        ArgumentTypeError, ArgumentValueError: the call itself is wrong.

    Example:
        >>> import torch, covector
        >>> def silu(x):
        ...     return x / (1 + torch.exp(-x))
        >>> x = torch.randn(16, 33, dtype=torch.bfloat16, requires_grad=True)
        >>> bool(covector.check_kernel(silu, torch.nn.functional.silu, x, lenses=["layout", "again"]))
        True
    """
    started = time.perf_counter()
    caller = _checked(kernel, reference, kwargs, ratio, nondet_tol, seed)
    wanted = _lenses(lenses)
    settings = Settings(float(ratio), float(nondet_tol), seed)
    request = Request(caller, reference, inputs, kwargs or {}, dtypes_of(caller, dtypes), settings)
    trials, runs = [], 0
    steps = len(request.dtypes) * (len(wanted) + 2)
    with unchanged(kernel), quiet(), progress(str(caller), steps, done=-1) as advance:
        for bench in benches(request):
            label = f" ({bench.dtype})" if len(request.dtypes) > 1 else ""
            trials.append(tried(bench, wanted, lambda step: advance(f"{caller}: {step}"), label))
            runs += bench.kernel.count.forward
    findings = tuple(found for trial in trials for found in trial.findings)
    right = all(found.outcome is Outcome.PASSED for found in findings)
    return Report(
        caller.name,
        _VERB,
        findings,
        tuple(bench.names),
        tuple(bench.output_names),
        f"golden values in float64, noise floor of {limits.RUNS} runs of the reference, ratio {ratio:g}, "
        f"at most {limits.FALSE_ALARMS:g} of right kernels accused",
        seed,
        runs,
        time.perf_counter() - started,
        "" if right else _again(kernel, request, dtypes, lenses),
        tables=(ratio_table(trials), lens_table(trials)),
    )


@described_by(check_kernel)
@rightly_called
def kernelcheck(
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Any,
    kwargs: dict[str, Any] | None = None,
    *,
    dtypes: torch.dtype | Sequence[torch.dtype] | None = None,
    lenses: Sequence[str] | None = None,
    ratio: float = 3.0,
    nondet_tol: float = 0.0,
    seed: int = 0,
    raise_exception: bool = True,
) -> bool:
    """Whether a kernel is right, against a reference; raises if that was not shown.

    `check_kernel` gives a report.

    Args:
        raise_exception: with False, a check that does not pass returns False instead of raising.

    Raises:
        GradcheckError: the kernel was not shown to be right; its `report` says what was found.
        ArgumentTypeError, ArgumentValueError: the call itself is wrong.

    Example:
        >>> import torch, covector
        >>> x = torch.randn(16, 33, requires_grad=True)
        >>> silu = torch.nn.functional.silu
        >>> covector.kernelcheck(lambda x: x * x.sigmoid(), silu, x, lenses=["layout", "again"])
        True
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    report = check_kernel(
        kernel,
        reference,
        inputs,
        kwargs,
        dtypes=dtypes,
        lenses=lenses,
        ratio=ratio,
        nondet_tol=nondet_tol,
        seed=seed,
    )
    if not report and raise_exception:
        raise GradcheckError(str(report), report) from report.cause
    return bool(report)


def _checked(kernel: Any, reference: Any, kwargs: Any, ratio: Any, nondet_tol: Any, seed: Any) -> Caller:
    """The kernel with its verb, if the call makes sense."""
    caller = caller_of(_VERB, kernel)
    if not callable(reference):
        raise ArgumentTypeError(
            f"{caller}: the reference must be a function of the same arguments, got {summary(reference)}. "
            f"Write {_VERB}(kernel, reference, inputs)."
        )
    if kwargs is not None and not isinstance(kwargs, dict):
        raise ArgumentTypeError(f"{caller}: kwargs must be a dict, got {summary(kwargs)}.")
    for name, value in (("ratio", ratio), ("nondet_tol", nondet_tol)):
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ArgumentTypeError(f"{caller}: {name} must be a number, got {value!r}.")
    if not 1 <= ratio < float("inf"):
        raise ArgumentValueError(
            f"{caller}: ratio must be at least 1, got {ratio!r}: no kernel is held to less noise than the "
            "reference."
        )
    if not nondet_tol >= 0:
        raise ArgumentValueError(f"{caller}: nondet_tol must be zero or positive, got {nondet_tol!r}.")
    check_seed(str(caller), seed)
    return caller


def _lenses(names: Sequence[str] | None) -> tuple[Lens, ...]:
    """The lenses that are asked for."""
    if names is None:
        return LENSES
    if not isinstance(names, Iterable):
        raise ArgumentTypeError(f"{_VERB}: lenses must be names of lenses, got {summary(names)}.")
    names = (names,) if isinstance(names, str) else tuple(names)
    known = [lens.name for lens in LENSES]
    for name in names:
        if not isinstance(name, str) or name.removeprefix("-") not in known:
            raise ArgumentValueError(f"{_VERB}: there is no lens {name!r}; there are {', '.join(known)}.")
    left_out = {name[1:] for name in names if name.startswith("-")}
    named = {name for name in names if not name.startswith("-")} or set(known)
    return tuple(lens for lens in LENSES if lens.name in named - left_out)


def _again(kernel: Any, request: Request, dtypes: Any, lenses: Any) -> str:
    """The call as Python."""
    settings = request.settings
    options = {
        "dtypes": (dtypes, None),
        "lenses": (lenses, None),
        "ratio": (settings.ratio, Settings.ratio),
        "nondet_tol": (settings.nondet_tol, Settings.nondet_tol),
    }
    changed = [f"{name}={value!r}" for name, (value, default) in options.items() if value != default]
    call = Call(_VERB, kernel, as_tuple(request.inputs), request.kwargs, reference=request.reference)
    return call_again(call, [*changed, f"seed={settings.seed}"]).text()
