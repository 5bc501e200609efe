"""Every exception and warning class. The class says whose fault it is; the text says what to do.

Where the torch function that covector replaces raises a builtin exception for the same mistake, the
class here is an instance of that one too, so that code written for torch still catches it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.autograd.gradcheck import GradcheckError as TorchGradcheckError

__all__ = [
    "ArgumentTypeError",
    "ArgumentValueError",
    "BatchingWarning",
    "BudgetError",
    "CaseError",
    "CompileWarning",
    "CompiledMismatchError",
    "ComplexOutputError",
    "CovectorError",
    "CovectorWarning",
    "DataDependenceError",
    "DeprecatedNameWarning",
    "EmptyError",
    "EngineError",
    "ExclusiveOptionsError",
    "ForwardModeWarning",
    "GradcheckError",
    "InferenceModeError",
    "OptionError",
    "OutputError",
    "PatternError",
    "PrecisionWarning",
    "RandomnessError",
    "ResourceError",
    "ResumeError",
    "SendError",
    "StorageError",
    "StrictError",
    "UnsteadyOutputError",
    "UnsupportedError",
    "UntraceableError",
    "WorkerError",
]


class Caller(NamedTuple):
    """What the user called: the verb and the function given to it. Printed as `grad(loss)`."""

    verb: str
    function: Callable[..., Any]

    def __str__(self) -> str:
        return f"{self.verb}({self.name})"

    @property
    def name(self) -> str:
        """What a person calls the function; a custom Function's `apply` by its class."""
        name = getattr(self.function, "__name__", None) or type(self.function).__name__
        owner = getattr(self.function, "__self__", None)
        return f"{owner.__name__}.{name}" if isinstance(owner, type) else name


class CovectorError(Exception):
    """Base of every error that covector raises itself."""


class ArgumentTypeError(CovectorError, TypeError, ValueError, RuntimeError):
    """The caller passed the wrong kind of thing."""


class ArgumentValueError(CovectorError, ValueError, RuntimeError):
    """The caller passed the right kind of thing with a value that cannot work."""


class OutputError(CovectorError, TypeError, ValueError, RuntimeError):
    """The caller's function returned something that cannot be differentiated."""


class ComplexOutputError(OutputError, AssertionError):
    """The function returned complex numbers where the Jacobian of real ones was asked for."""


class OptionError(CovectorError, ValueError, AssertionError):
    """The caller asked for checks that exclude each other."""


class ExclusiveOptionsError(OptionError, NotImplementedError):
    """The caller asked for ways of computing that exclude each other."""


class EmptyError(ArgumentValueError, OutputError, IndexError, AssertionError):
    """There is no tensor to differentiate, or none to differentiate by."""


class StrictError(CovectorError, RuntimeError):
    """The caller asked to be told (`strict=True`) when something does not depend on an input."""


class GradcheckError(CovectorError, TorchGradcheckError):
    """A check did not pass; `report` says what was found.

    It is torch's error of the same name too, so that `except` clauses written for that still work.
    """

    def __init__(self, text: str, report: Any = None) -> None:
        super().__init__(text)
        self.report = report


class UnsteadyOutputError(GradcheckError, OutputError, AssertionError):
    """The caller's function returns another shape or dtype at a nearby point, so it has no derivative."""


class CaseError(CovectorError, ValueError):
    """A file given to the command line cannot be used: it is missing, broken, or has no such case."""


class RandomnessError(CovectorError, RuntimeError):
    """The caller's function drew random numbers where the directions of a batch share one run."""


class InferenceModeError(CovectorError, RuntimeError):
    """The caller's function uses tensors made under `torch.inference_mode()`, which keep no graph."""


class EngineError(CovectorError, ImportError):
    """This release of torch lacks a name that the engine needs; the text has the releases that do."""


class DataDependenceError(CovectorError, RuntimeError):
    """The caller's function branches on numbers, so its pattern may differ from point to point."""


class PatternError(CovectorError, RuntimeError):
    """A sparsity pattern lacks entries that the derivative has, or cannot be compared with it."""


class UnsupportedError(CovectorError, NotImplementedError):
    """torch lacks what the request needs; the text names it."""


class CapturedWriteError(UnsupportedError):
    """The function writes what depends on its inputs to a tensor that it captures; the text names it."""


class ResourceError(CovectorError, RuntimeError):
    """The request would take more memory than it may; the text says what to ask for instead."""


class BudgetError(ResourceError, MemoryError):
    """The request does not fit into the memory that the caller allowed; the text has the sizes."""


class StorageError(CovectorError, OSError):
    """A page, a plan or data could not be written: the disk is full, or the place is not writable."""


class UntraceableError(UnsupportedError, RuntimeError):
    """The caller's function cannot be compiled: it looks at values, draws random numbers, or is not pure."""


class CompiledMismatchError(CovectorError, RuntimeError):
    """A compiled function gave another result than the function itself."""


class SendError(CovectorError, TypeError):
    """The caller's function, or what it captures, cannot be sent to another process; the text names it."""


class WorkerError(CovectorError, RuntimeError):
    """The workers of an executor were lost, or it takes no tasks, or what one raised cannot be sent back."""


class ResumeError(CovectorError, ValueError):
    """What a file holds was begun by another call, or is damaged, so it cannot be continued."""


class CovectorWarning(UserWarning):
    """Base of every warning that covector emits itself."""


class ForwardModeWarning(CovectorWarning):
    """Forward mode has no rule for an operation, or another derivative than reverse mode."""


class BatchingWarning(CovectorWarning):
    """Directions could not be applied as one batch, so a slower rung of the ladder was used."""


class CompileWarning(CovectorWarning):
    """A function could not be compiled, and is run eagerly."""


class NoGraphWarning(CovectorWarning):
    """No output of the function has a graph, so every derivative is zero; it may have been cut."""


class PrecisionWarning(CovectorWarning):
    """A check has to difference in less than double precision."""


class DeprecatedNameWarning(CovectorWarning, FutureWarning):
    """A name that torch has deprecated, and that is here for code which uses it."""


def warn(message: str, category: type[CovectorWarning]) -> None:
    """Warn at the line of the user's that led here."""
    depth = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("covector"):
        frame = frame.f_back
        depth += 1
    warnings.warn(message, category, stacklevel=depth)


def text_of(error: BaseException) -> str:
    """What an error says; a class of the caller's may raise when it is asked."""
    try:
        return str(error)
    except Exception:
        return "(its text cannot be shown)"


def described(error: BaseException) -> str:
    """The class of an error, and what it says."""
    return f"{type(error).__name__}: {text_of(error)}"


def first_sentence(error: BaseException) -> str:
    """The beginning of an error's text, without the full stop."""
    return text_of(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")[:200]


def describe_origin(value: Any) -> str:
    """What something is and where it comes from."""
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name else f"an instance of {type(value).__qualname__}"
