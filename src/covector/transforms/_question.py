"""From a call of `jacobian` or `hessian` to the problem behind it, and from its answer to the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from covector._engine.messages import writes_to_leaf
from covector._engine.reverse import Run
from covector._tree import Arguments, Evaluation, unflatten
from covector.errors import Caller
from covector.transforms._batch import check_samples
from covector.transforms._complex import RealForm, check_dtypes
from covector.transforms._derive import Options, Problem, Samples
from covector.transforms._door import Accept, accept_differentiable, bind, output_paths, runner


class Question:
    """One call: the arguments bound and checked, the function made one of real tensors."""

    def __init__(
        self,
        caller: Caller,
        options: Options,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        *,
        value: bool = False,
    ) -> None:
        self.caller = caller
        self.options = options
        self._value = value
        self._bound = arguments = bind(caller, args, kwargs, options.argnums, options.argnames)
        primals = arguments.primals()
        check_dtypes(caller, primals, options.complex, self._names)
        count = None
        if options.batch_dim is not None:
            count = check_samples(caller, primals, options.batch_dim, self._names)
        run = runner(caller, arguments, self.accept(count), has_aux=options.has_aux)
        run = _on_copies(run)
        run = _with_value(run) if value else run
        self.real_form: RealForm | None = None
        if options.complex is not None:
            self.real_form = RealForm(caller, arguments, run, samples=count is not None)
            arguments, run = self.real_form.arguments, self.real_form.run
        samples = None if options.batch_dim is None else Samples(options.batch_dim, options.batch_dim)
        self.problem = Problem(caller, arguments, run, samples)

    def _names(self) -> list[str]:
        return self._bound.paths(self.caller.function)

    def accept(self, count: int | None) -> Accept:
        """What the function has to return: real or complex tensors as asked for, with all samples."""
        options = self.options

        def accept(caller: Caller, evaluation: Evaluation) -> None:
            accept_differentiable(caller, evaluation)
            outputs = evaluation.outputs
            check_dtypes(caller, outputs, options.complex, lambda: output_paths(evaluation))
            if options.batch_dim is not None:
                check_samples(caller, outputs, options.batch_dim, lambda: output_paths(evaluation), count)

        return accept

    def answer(self, blocks: Sequence[Tensor], evaluation: Evaluation, *, order: int) -> Any:
        """The result for the caller, from the real blocks of the derivative."""
        leaves: Sequence[Any] = blocks
        if self.real_form is not None and self.options.complex is not None:
            leaves = self.real_form.arranged(blocks, order, self.options.complex)
        for _ in range(order):
            leaves = _in_trees(leaves, self._bound)
        derivative = unflatten(leaves, evaluation.spec)
        if not (self._value or self.options.has_aux):
            return derivative
        value, aux = self._carried(evaluation)
        parts = [*([value] if self._value else []), derivative, *([aux] if self.options.has_aux else [])]
        return tuple(parts)

    def _carried(self, evaluation: Evaluation) -> tuple[Any, Any]:
        """The value and the auxiliary part, which come back together."""
        value, aux, extra = None, None, evaluation.aux
        if self._value:
            count = evaluation.spec.num_leaves
            value, extra = unflatten(extra[:count], evaluation.spec), extra[count:]
        if self.options.has_aux:
            aux = evaluation._replace(aux=extra).aux_value()
        return value, aux


def _in_trees(leaves: Sequence[Any], arguments: Arguments) -> list[Any]:
    """Each run of leaves, one per tensor to differentiate by, as a tree like the selected arguments."""
    count = len(arguments.chosen)
    return [arguments.tree_of(leaves[start : start + count]) for start in range(0, len(leaves), count)]


def _on_copies(run: Run) -> Run:
    """The same function on copies: one that works in place meets the same point in every run.

    A leaf that requires grad needs none at first: torch lets nobody write to it, so that a function that
    tries is run again on copies. They are made inside the run, so that tangents are copied too.
    """

    def copying(leaves: list[Any]) -> Evaluation:
        try:
            return run([_copy(leaf) if not _protected(leaf) else leaf for leaf in leaves])
        except RuntimeError as error:
            if not writes_to_leaf(error):
                raise
        return run([_copy(leaf) for leaf in leaves])

    return copying


def _protected(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_leaf and torch.is_grad_enabled()


def _copy(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _with_value(run: Run) -> Run:
    """The same function, whose outputs also ride along as auxiliary values."""

    def carrying(leaves: list[Any]) -> Evaluation:
        evaluation = run(leaves)
        return evaluation._replace(aux=[*evaluation.outputs, *evaluation.aux])

    return carrying
