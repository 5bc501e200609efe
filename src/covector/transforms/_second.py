"""Second derivatives of scalar functions, by pulling directions back through the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from covector._engine.twice import another_way
from covector._linear import Pullback, Pushforward
from covector._tree import Arguments, Evaluation
from covector.errors import Caller, CapturedWriteError, CovectorError, UnsupportedError
from covector.transforms._door import accept_scalar, runner

T = TypeVar("T")


def reverse_first(by_reverse: Callable[[], T], by_forward: Callable[[], T]) -> T:
    """Reverse over reverse; where an operation has no second derivative that way, forward over reverse."""
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
    try:
        return by_forward()
    except RuntimeError:
        raise failure from None


class Gradient(NamedTuple):
    """The gradient of a scalar function, as a function to differentiate again."""

    caller: Caller
    arguments: Arguments
    has_aux: bool

    def run(self, leaves: list[Any]) -> Evaluation:
        """The gradient at these leaves; the value and the auxiliary part ride along."""
        inner = self.arguments.at(leaves)
        scalar = runner(self.caller, inner, accept_scalar, has_aux=self.has_aux)
        pullback = Pullback(self.caller, scalar, inner)
        evaluation = pullback.evaluation
        gradients = pullback.apply([torch.ones_like(evaluation.outputs[0])])
        return evaluation._replace(outputs=gradients, aux=[*evaluation.outputs, *evaluation.aux])

    def pullback(self) -> Pullback:
        """V -> v^T H, which is H v."""
        return Pullback(self.caller, self.run, self.arguments)

    def pushforward(self) -> Pushforward:
        """U -> H u."""
        return Pushforward(self.caller, self.run, self.arguments)

    def pushforward_of(self, position: int) -> Pushforward:
        """U -> (the diagonal block of H for one variable) u."""
        moved = self.arguments.at(self.arguments.leaves)
        moved.chosen = [self.arguments.chosen[position]]

        def run(leaves: list[Any]) -> Evaluation:
            evaluation = self.run(leaves)
            return evaluation._replace(outputs=[evaluation.outputs[position]])

        return Pushforward(self.caller, run, moved)

    def answer(self, derivative: Any, evaluation: Evaluation) -> Any:
        """The derivative, with the auxiliary part beside it if that is asked for."""
        return (derivative, auxiliary(evaluation)) if self.has_aux else derivative


def value_of(evaluation: Evaluation) -> Any:
    """The value that rode along with a gradient."""
    return evaluation.aux[0]


def auxiliary(evaluation: Evaluation) -> Any:
    """The auxiliary part that rode along with a gradient."""
    return evaluation._replace(aux=evaluation.aux[1:]).aux_value()
