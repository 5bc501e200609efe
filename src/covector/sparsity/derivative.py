"""Derivatives as a plan sees them: linear maps to push and pull groups of columns and rows through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from covector._engine.reverse import Run
from covector._linear import LinearMap, Pullback, Pushforward
from covector._tree import Arguments, Evaluation
from covector.errors import Caller
from covector.transforms._complex import check_dtypes
from covector.transforms._door import accept_differentiable, check_dense, output_paths, runner
from covector.transforms._second import Gradient, reverse_first


@dataclass(frozen=True)
class Jacobian:
    """The first derivative of a function."""

    caller: Caller
    symmetric: ClassVar[bool] = False
    verb: ClassVar[str] = "jacobian_plan"

    @property
    def __wrapped__(self) -> Any:
        """The function, where a compiler looks for what is captured."""
        return self.caller.function

    def run(self, arguments: Arguments) -> Run:
        """The function on copies of flat leaves, so that one that works in place can be run again."""
        inner = runner(self.caller, arguments, _accept_real, has_aux=False)
        return lambda leaves: inner(_copies(leaves))

    def forward(self, arguments: Arguments) -> LinearMap:
        """U -> J u."""
        return Pushforward(self.caller, self.run(arguments), arguments)

    def reverse(self, arguments: Arguments) -> LinearMap:
        """V -> J^T v."""
        return Pullback.of(self.caller, self.run(arguments), arguments)

    def value(self, evaluation: Evaluation) -> Any:
        """The value of the function."""
        return evaluation.value()


@dataclass(frozen=True)
class Hessian:
    """The second derivative of a scalar function, which is symmetric: both products are the same."""

    caller: Caller
    symmetric: ClassVar[bool] = True
    verb: ClassVar[str] = "hessian_plan"

    @property
    def __wrapped__(self) -> Any:
        """The function, where a compiler looks for what is captured."""
        return self.caller.function

    def _gradient(self, arguments: Arguments) -> Gradient:
        gradient = Gradient.of(self.caller, arguments)
        return gradient._replace(scalar=lambda leaves: gradient.scalar(_copies(leaves)))

    def run(self, arguments: Arguments) -> Run:
        """The gradient on flat leaves."""
        return self._gradient(arguments).run

    def forward(self, arguments: Arguments) -> LinearMap:
        """U -> H u."""
        return self._gradient(arguments).pushforward()

    def reverse(self, arguments: Arguments) -> LinearMap:
        """V -> H v, by reverse mode twice."""
        gradient = self._gradient(arguments)
        return reverse_first(gradient.pullback, gradient.pushforward)

    def value(self, evaluation: Evaluation) -> Any:
        """The value of the function, which rode along with the gradient."""
        return evaluation.aux[0]


Derivative = Jacobian | Hessian


def _accept_real(caller: Caller, evaluation: Evaluation) -> None:
    accept_differentiable(caller, evaluation)
    check_dense(caller, evaluation.outputs, lambda: output_paths(evaluation))
    check_dtypes(caller, evaluation.outputs, None, lambda: output_paths(evaluation))


def _copies(leaves: list[Any]) -> list[Any]:
    return [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
