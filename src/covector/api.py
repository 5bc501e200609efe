"""`check`, `gradcheck` and `gradgradcheck`: what decides, explains and reports, put together."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from torch.nn import Module

from covector._chart import ShapeChange
from covector._described import described_by
from covector._tree import Argnames, Argnums, Arguments
from covector.checks.arguments import (
    arguments_of,
    as_tuple,
    caller_of,
    checked,
    module_call,
    require_tangents,
)
from covector.checks.dtypes import dtypes_noted
from covector.checks.run import CheckRun
from covector.checks.second import backward_of, given_cotangents, random_cotangents
from covector.checks.state import quiet, unchanged
from covector.checks.table import run_checks
from covector.checks.unchecked import not_by, not_of
from covector.diagnose.diagnosis import diagnosed
from covector.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    Caller,
    CovectorError,
    GradcheckError,
    PrecisionWarning,
    UnsteadyOutputError,
    warn,
)
from covector.evidence.cuts import Cut, held_at
from covector.evidence.evidence import evidence_of
from covector.evidence.worst import worst
from covector.report.figures import Source
from covector.report.report import Report
from covector.report.reproduce import Call, reproduction
from covector.report.uncompared import not_run, without_backward, without_comparison
from covector.transforms._calls import rightly_called
from covector.transforms._door import summary
from covector.transforms._plan import memory_limit
from covector.verify.finding import Finding, Outcome
from covector.verify.likes import tensors_for_inputs
from covector.verify.options import Options, Tolerance
from covector.verify.problem import Problem

seen_by: list[Callable[[Report], object]] = []
"""Who sees each report that `check` gives, and those of a check that returns False instead of raising: the
plugin of pytest shows and counts them."""

StopGradients: TypeAlias = Literal["fail", "constant"]


@rightly_called
def check(
    func: Callable[..., Any],
    inputs: Any,
    kwargs: dict[str, Any] | None = None,
    *,
    argnums: Argnums | None = None,
    argnames: Argnames = None,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    kinks: Literal["fail", "pass"] = "fail",
    stop_gradients: StopGradients = "fail",
    probes: int | None = None,
    max_entries: int | None = None,
    masked: bool = False,
    taylor: bool = False,
    seed: int = 0,
    max_memory: int | str | None = None,
) -> Report:
    """Compare the derivatives of a function with differences, and report what was found.

    An entry passes if `|analytic - numeric| <= atol + rtol * |numeric|`. Nothing is called wrong on the
    evidence of one difference quotient: suspects are looked at again with several steps, extrapolation
    and an error bound. An `nn.Module` is checked by all its parameters, and by the inputs that require
    grad; its buffers stay as they are.

    Args:
        func: takes the inputs, returns a tree of tensors.
        inputs: a tensor, or a tuple of trees; the tensors in them that require grad are checked.
        kwargs: keyword arguments of `func`.
        argnums, argnames: which arguments to check, instead of those that require grad.
        eps: the step of the first look, in units of `max(1, |x|)`.
        atol, rtol: the entry rule.
        nondet_tol: how much two runs of the backward may differ.
        check_undefined_grad: also check that undefined cotangents and tangents count as zero.
        check_grad_dtypes: also check the dtype of gradients.
        check_batched_grad, check_batched_forward_grad: also check `vmap` over the derivative.
        check_forward_ad, check_backward_ad: which modes to check.
        fast_mode: compare along one random direction instead of four, and leave the outcome open rather than
            move each of many numbers by itself.
        kinks: "fail" or "pass" where the function is not differentiable and the analytic value lies
            between the one-sided slopes.
        stop_gradients: "constant" holds what the function takes out of the graph (`detach()`, `.data`,
            `.item()`, `no_grad`) at its value while the function is differenced, so that the rest of the
            derivative is checked; with "fail", a derivative that is cut is wrong.
        probes: along how many random directions to difference first; with 0, every number of the inputs is
            moved by itself. If left out, along four, or one in fast mode.
        max_entries: look at no more than this many numbers of the inputs and of the outputs, a random
            sample of them.
        masked: of a sparse tensor only the elements that it specifies are variables, and gradients have to
            be zero elsewhere; otherwise every element is, and differences are taken with inputs that specify
            all of them (see docs/sparse.md).
        taylor: also measure with which order the Taylor remainder along a random direction falls: 2 with a
            right derivative, 3 with the second derivative too. A second opinion, in which no step is chosen.
        seed: of everything random here.
        max_memory: what a batch of evaluations may take beside what one run takes: bytes, or a string
            such as "500MB"; 32 MB if left out.

    Returns:
        A `Report`, true if everything passed.

    Raises:
        ArgumentTypeError, ArgumentValueError, OptionError: the call itself is wrong.

    Example:
        >>> import torch, covector
        >>> x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
        >>> bool(covector.check(torch.log, x))
        True
    """
    memory = None if max_memory is None else memory_limit("check", max_memory)
    options = Options(
        Tolerance(atol, rtol, eps, kinks),
        seed=seed,
        max_memory=memory,
        fast=fast_mode,
        probes=probes,
        max_entries=max_entries,
        nondet_tol=nondet_tol,
        reverse=check_backward_ad,
        forward=check_forward_ad,
        undefined=check_undefined_grad,
        masked=bool(masked),
        dtypes=check_grad_dtypes,
        batched=check_batched_grad,
        batched_forward=check_batched_forward_grad,
        taylor=bool(taylor),
    )
    checked("check", options)
    caller = caller_of("check", func)
    if kwargs is not None and not isinstance(kwargs, dict):
        raise ArgumentTypeError(f"{caller}: kwargs must be a dict, got {summary(kwargs)}.")
    if isinstance(func, Module):
        caller, arguments = module_call(func, inputs, kwargs)
    else:
        caller, given = tensors_for_inputs(caller, as_tuple(inputs))
        arguments = arguments_of(caller, given, kwargs, argnums, argnames)
    caller, held = _held(caller, arguments, stop_gradients)
    chosen = {"argnums": argnums, "argnames": argnames, **_written(held)}
    extra = {name: value for name, value in chosen.items() if value is not None}
    call = Call("check", func, as_tuple(inputs), kwargs or {}, extra)
    with dtypes_noted(func, inputs, kwargs):
        done = _check(caller, arguments, options)
    report = _report(done, call, held=held)
    _show(report)
    return report


@described_by(check)
@rightly_called
def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
    kinks: Literal["fail", "pass"] = "fail",
    stop_gradients: StopGradients = "fail",
    seed: int = 0,
    max_memory: int | str | None = None,
) -> bool:
    """Whether the derivatives of a function agree with differences; raises if not.

    Drop-in for `torch.autograd.gradcheck`: the same keywords, the same verdicts but for what
    docs/coming-from-torch.md lists, and an error that names the wrong entries. `check` gives a report.
    Of a module only the inputs are checked, as in torch. Inputs and outputs may be sparse.

    Args:
        raise_exception: with False, a check that does not pass returns False instead of raising.

    Raises:
        GradcheckError: the check did not pass; its `report` says what was found.
        ArgumentTypeError, ArgumentValueError, OptionError: the call itself is wrong.

    Example:
        >>> import torch, covector
        >>> x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
        >>> covector.gradcheck(torch.log, x)
        True
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    memory = None if max_memory is None else memory_limit("gradcheck", max_memory)
    options = Options(
        Tolerance(atol, rtol, eps, kinks),
        seed=seed,
        max_memory=memory,
        brief=not (raise_exception or seen_by),
        fast=fast_mode,
        nondet_tol=nondet_tol,
        reverse=check_backward_ad,
        forward=check_forward_ad,
        undefined=check_undefined_grad,
        masked=bool(masked),
        dtypes=check_grad_dtypes,
        batched=check_batched_grad,
        batched_forward=check_batched_forward_grad,
    )
    caller = caller_of("gradcheck", func)
    checked("gradcheck", options)
    caller, given = tensors_for_inputs(caller, as_tuple(inputs))
    arguments = arguments_of(caller, given)
    caller, held = _held(caller, arguments, stop_gradients)
    with dtypes_noted(func, inputs):
        done = _check(caller, arguments, options)
    if done.right or options.brief:  # a report takes as long to write as a small check to make
        return done.right
    call = Call("gradcheck", func, as_tuple(inputs), extra=_written(held))
    return _refuted(_report(done, call, held=held), raise_exception)


@described_by(check)
@rightly_called
def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
    kinks: Literal["fail", "pass"] = "fail",
    stop_gradients: StopGradients = "fail",
    seed: int = 0,
    max_memory: int | str | None = None,
) -> bool:
    """Whether the second derivatives of a function agree with differences of the first; raises if not.

    Drop-in for `torch.autograd.gradgradcheck`. What is checked is the backward of `func`, as a function
    of the inputs and of the cotangents.

    Args:
        grad_outputs: the cotangents, like the outputs; drawn at random if left out.
        gen_non_contig_grad_outputs: draw cotangents that are not contiguous.
        raise_exception: with False, a check that does not pass returns False instead of raising.
        check_fwd_over_rev, check_rev_over_rev: by which modes the backward is differentiated.

    Raises:
        GradcheckError: the check did not pass; its `report` says what was found.
        ArgumentTypeError, ArgumentValueError, OptionError: the call itself is wrong.

    Example:
        >>> import torch, covector
        >>> x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
        >>> covector.gradgradcheck(torch.log, x)
        True
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    memory = None if max_memory is None else memory_limit("gradgradcheck", max_memory)
    options = Options(
        Tolerance(atol, rtol, eps, kinks),
        seed=seed,
        max_memory=memory,
        brief=not (raise_exception or seen_by),
        fast=fast_mode,
        nondet_tol=nondet_tol,
        reverse=check_rev_over_rev,
        forward=check_fwd_over_rev,
        undefined=check_undefined_grad,
        masked=bool(masked),
        dtypes=check_grad_dtypes,
        batched=check_batched_grad,
    )
    caller = caller_of("gradgradcheck", func)
    checked("gradgradcheck", options)
    caller, given = tensors_for_inputs(caller, as_tuple(inputs))
    with unchanged(func) as device:
        with dtypes_noted(func, given):
            first = Problem(caller, arguments_of(caller, given), masked=options.masked, device=device)
        if not first.differentiable:
            if options.brief:
                return False
            again = reproduction(Call("gradgradcheck", func, given), options, by_name=first.closes_over)
            return _refuted(without_backward(caller, first, again.text()), raise_exception)
        if grad_outputs is None:
            cotangents = random_cotangents(first, gen_non_contig_grad_outputs, seed)
        else:
            cotangents = given_cotangents(first, grad_outputs)
        backward = Caller("gradgradcheck", backward_of(first, len(given)))
        arguments = arguments_of(backward, (*given, *cotangents))
        backward, held = _held(backward, arguments, stop_gradients)
        extra = {} if grad_outputs is None else {"grad_outputs": grad_outputs}
        extra |= _written(held)
        if gen_non_contig_grad_outputs:
            extra["gen_non_contig_grad_outputs"] = True
        call = Call("gradgradcheck", func, given, {}, extra)
        try:
            done = _check(backward, arguments, options, first)
            if done.right or options.brief:
                return done.right
            report = _report(done, call, first, held)
        except (RuntimeError, ShapeChange) as error:
            if isinstance(error, CovectorError) or (found := not_run(error)) is None:
                raise
            if options.brief:
                return False
            again = reproduction(call, options, by_name=first.closes_over)
            report = without_comparison(caller, first, again.text(), found, error)
    return _refuted(report, raise_exception)


def _held(
    caller: Caller, arguments: Arguments, stop_gradients: StopGradients
) -> tuple[Caller, tuple[Cut, ...]]:
    """The function with what it takes out of the graph held constant, if that was asked for, and where."""
    if stop_gradients == "constant":
        return held_at(caller, arguments, through_backwards=caller.verb == "gradgradcheck")
    if stop_gradients != "fail":
        raise ArgumentValueError(
            f"{caller}: stop_gradients must be 'fail' or 'constant', got {stop_gradients!r}."
        )
    return caller, ()


def _written(held: tuple[Cut, ...]) -> dict[str, Any]:
    """How it is written that something is held constant."""
    return {"stop_gradients": "constant"} if held else {}


class _Checked(NamedTuple):
    """A run of all checks, and what was found."""

    run: CheckRun
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def right(self) -> bool:
        """Whether everything passed."""
        for found in self.findings:  # noqa: SIM110 - in every check
            if found.outcome is not Outcome.PASSED:
                return False
        return True


def _check(caller: Caller, arguments: Arguments, options: Options, first: Problem | None = None) -> _Checked:
    """Make the checks; of the backward of the function of a problem, if there is a first one."""
    started = time.perf_counter()
    if options.forward:
        require_tangents(caller, arguments)
    with unchanged(caller.function) as device:
        problem = Problem(
            caller,
            arguments,
            options.max_entries,
            options.seed,
            masked=options.masked,
            device=device if first is None else first.device,
            first=first,
        )
        run = CheckRun(problem, options)
        if problem.low_precision and run.above is None and problem.coarse:
            warn(
                f"{caller}: an input has less than double precision, and the function does not take float64; "
                "differences are too coarse for a sharp verdict.",
                PrecisionWarning,
            )
        with quiet():
            findings = run_checks(run)
            if not options.brief:
                findings = _explained(run, findings)
    return _Checked(run, findings, time.perf_counter() - started)


def _explained(run: CheckRun, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings with their worst entries, and with what these say about the mistake."""
    if all(found.outcome is Outcome.PASSED for found in findings):
        return findings
    evidence = evidence_of(run, findings)
    shown = [
        found if about is None else worst(about) for found, about in zip(findings, evidence, strict=True)
    ]
    return diagnosed(shown, evidence, run.raised)


def _report(
    checked: _Checked, call: Call, first: Problem | None = None, held: tuple[Cut, ...] = ()
) -> Report:
    run, findings, seconds = checked
    problem, options = run.problem, run.options
    lines = ", ".join(dict.fromkeys(f"{cut.how} at {cut.place}" for cut in held))
    again = None if checked.right else reproduction(call, options, by_name=problem.closes_over)
    chosen = call.extra.keys() & {"argnums", "argnames"}
    without = "" if chosen or not checked.right else not_by(problem)
    return Report(
        (problem if first is None else first).caller.name,
        call.verb,
        findings,
        tuple(problem.input_names),
        tuple(problem.output_names),
        (f"{run.method}; held constant: {lines}" if held else f"{run.method}{without}") + not_of(problem),
        options.seed,
        run.runs,
        seconds,
        "" if again is None else again.text(),
        run.raised,
        Source(run, partial(unchanged, call.function), again),
        (run.taylor.table(),) if options.taylor and run.taylor.rates else (),
    )


def _refuted(report: Report, raise_exception: bool) -> bool:
    """What becomes of a check that did not pass: it raises, or False is returned and the report is seen."""
    __tracebackhide__ = True
    if not raise_exception:
        _show(report)
        return False
    kind = UnsteadyOutputError if isinstance(report.cause, ShapeChange) else GradcheckError
    error = kind(str(report), report)
    error.__cause__ = report.cause
    raise error


def _show(report: Report) -> None:
    for see in seen_by:
        see(report)
