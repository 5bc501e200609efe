"""Second derivatives of scalar functions, by pulling directions back through the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from covector._engine import reverse
from covector._engine.scopes import PlainScope, Run
from covector._engine.twice import another_way
from covector._linear import Pullback, Pushforward
from covector._tree import Arguments, Evaluation
from covector.errors import Caller, CapturedWriteError, CovectorError, UnsupportedError
from covector.transforms._door import accept_scalar, runner
from covector.transforms._question import Problem

T = TypeVar("T")


def reverse_first(by_reverse: Callable[[], T], by_forward: Callable[[], T] | None = None) -> T:
    """Reverse over reverse; where an operation has no second derivative that way, forward over reverse.

    Fused attention and distances have others beside them that do, so these are tried before.
    """
    try:
        return by_reverse()
    except CapturedWriteError:
        raise
    except UnsupportedError as error:
        failure: RuntimeError = error
    except CovectorError:
        raise
    except RuntimeError as error:
        failure = error
    if (again := another_way(failure)) is not None:
        with again:
            return by_reverse()
    if by_forward is None:
        raise failure
    try:
        return by_forward()
    except RuntimeError:
        raise failure from None


class Gradient(NamedTuple):
    """The gradient of a scalar function on flat leaves, as a function to differentiate again."""

    caller: Caller
    arguments: Arguments
    scalar: Run
    at_top: type[PlainScope] = PlainScope

    @classmethod
    def of(cls, caller: Caller, arguments: Arguments, *, has_aux: bool = False) -> Gradient:
        """The gradient of the caller's function."""
        return cls(caller, arguments, runner(caller, arguments, accept_scalar, has_aux=has_aux))

    def run(self, leaves: list[Any]) -> Evaluation:
        """The gradient at these leaves; the value and the auxiliary part ride along."""
        recording = reverse.record(self.scalar, leaves, self.arguments.chosen)
        evaluation = recording.evaluation
        gradients = recording.pull([torch.ones_like(evaluation.outputs[0])])
        return evaluation._replace(outputs=gradients, aux=[*evaluation.outputs, *evaluation.aux])

    def record(self) -> reverse.Recording:
        """One run of the function and its backward; the outputs are the gradients."""
        arguments = self.arguments
        return reverse.record_gradient(self.scalar, arguments.leaves, arguments.chosen, self.at_top)

    def pullback(self) -> Pullback:
        """V -> v^T H, which is H v."""
        return Pullback(self.caller, self.record(), self.arguments)

    def pushforward(self) -> Pushforward:
        """U -> H u."""
        return Pushforward(self.caller, self.run, self.arguments)

    def only(self, position: int) -> Problem:
        """The gradient by one variable, as a function of it: its Jacobian is a diagonal block of H."""
        arguments = self.arguments.at(self.arguments.leaves)
        arguments.chosen = [self.arguments.chosen[position]]

        def run(leaves: list[Any]) -> Evaluation:
            evaluation = self.run(leaves)
            return evaluation._replace(outputs=[evaluation.outputs[position]])

        return Problem(self.caller, arguments, run)


def value_of(evaluation: Evaluation) -> Any:
    """The value that rode along with a gradient."""
    return evaluation.aux[0]


def auxiliary(evaluation: Evaluation) -> Any:
    """The auxiliary part that rode along with a gradient."""
    return evaluation._replace(aux=evaluation.aux[1:]).aux_value()
