"""From a call of a verb to the Jacobian behind it, and from its blocks to the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from covector._chart import Chart, Repeated
from covector._engine.messages import writes_to_leaf
from covector._engine.scopes import Run, is_simple
from covector._engine.tensors import refuses_writes
from covector._lazy import lazy
from covector._linear import LinearMap, Pullback, Pushforward
from covector._tree import Argnames, Argnums, Arguments, Evaluation, unflatten
from covector.errors import ArgumentValueError, Caller
from covector.transforms._batch import Samples, check_batch_dim, check_samples
from covector.transforms._complex import RealForm, check_convention, check_dtypes
from covector.transforms._door import (
    Accept,
    accept_differentiable,
    bind,
    check_batching,
    check_dense,
    output_paths,
    runner,
)
from covector.transforms._plan import check_mode, memory_limit

if TYPE_CHECKING:
    from covector._tasks.work import Work

Coordinates = Chart | Repeated


class Request(NamedTuple):
    """What is asked of a Jacobian or a Hessian; the same words as the keywords of the verbs.

    Beside those, verbs differ in what the function may return (`accept`), whether its value is given, and
    whether it is run on `copies` of the caller's tensors.
    """

    argnums: Argnums
    argnames: Argnames
    has_aux: bool
    chunk_size: int | None
    randomness: str
    mode: str = "auto"
    max_memory: Any = None
    batch_dim: int | None = None
    complex: str | None = None
    work: Work | None = None
    accept: Accept = accept_differentiable
    value: bool = False
    copies: bool = True

    def checked(self, verb: str) -> Request:
        """This request, if its values make sense, with the memory limit in bytes."""
        check_batching(verb, self.chunk_size, self.randomness)
        check_mode(verb, self.mode)
        check_batch_dim(verb, self.batch_dim)
        check_convention(verb, self.complex)
        if self.max_memory is None:
            return self
        return self._replace(max_memory=memory_limit(verb, self.max_memory))

    def working(self, verb: str, executor: Any, out: Any) -> Request:
        """This request, in blocks if there is an executor that computes them or a place to write them to."""
        if executor is None and out is None:
            return self
        from covector._tasks.work import work_of

        if out is not None and (self.has_aux or self.batch_dim is not None or self.complex is not None):
            raise ArgumentValueError(
                f"{verb}: out takes one real matrix, so it does not go with has_aux, batch_dim or complex. "
                "Leave out away, or these."
            )
        return self._replace(work=work_of(verb, executor, out))

    def is_plain(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Whether nothing more is asked for than rows by one of several tensors, which need no copies."""
        if kwargs or type(self.argnums) is not int or not 0 <= self.argnums < len(args):
            return False
        return (not self.copies or len(args) == 1) and self[1:] in _PLAIN and is_simple(args)

    def bind(self, caller: Caller, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        """The call's arguments, those to differentiate marked; complex ones only if that is asked for."""
        arguments = bind(caller, args, kwargs, self.argnums, self.argnames)
        primals, names = arguments.primals(), lambda: arguments.paths(caller.function)
        check_dtypes(caller, primals, self.complex, names)
        check_dense(caller, primals, names)
        return arguments


# What is asked for beside the argument, if that is nothing but the rows of a Jacobian.
_PLAIN = [
    Request(0, None, False, None, "error", mode, copies=copies)[1:]
    for mode, copies in (("reverse", False), ("auto", True), ("reverse", True))
]


def accept_real(caller: Caller, evaluation: Evaluation) -> None:
    """The function returned real floating-point tensors and nothing else."""
    accept_differentiable(caller, evaluation)
    check_dtypes(caller, evaluation.outputs, None, lambda: output_paths(evaluation))


class Problem:
    """A function of real tensors on flat leaves, the point, and who asked."""

    def __init__(
        self, caller: Caller, arguments: Arguments, run: Run, samples: Samples | None = None
    ) -> None:
        self.caller, self.arguments, self.run, self.samples = caller, arguments, run, samples

    @lazy
    def inputs(self) -> Coordinates:
        """The coordinates to differentiate by."""
        primals = self.arguments.primals()
        return Chart.of(primals) if self.samples is None else Repeated.of(primals, self.samples.inputs)

    def outputs(self, outputs: list[Tensor]) -> Coordinates:
        """The coordinates of what the function returned."""
        return Chart.of(outputs) if self.samples is None else Repeated.of(outputs, self.samples.outputs)

    def at(self, leaves: list[Any]) -> Problem:
        """The same function at another point."""
        return Problem(self.caller, self.arguments.at(leaves), self.run, self.samples)

    def pullback(self) -> Pullback:
        """The derivative by reverse mode."""
        return Pullback.of(self.caller, self.run, self.arguments)

    def derivative(self, mode: str, *, go_around: bool = True) -> LinearMap:
        """The derivative by one mode; not to `go_around` missing forward-mode rules raises NoForwardRule."""
        if mode == "reverse":
            return self.pullback()
        return Pushforward(self.caller, self.run, self.arguments, go_around=go_around)


class Question:
    """One call: the arguments bound and checked, the function made one of real tensors."""

    def __init__(self, caller: Caller, request: Request, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.request = request
        self._bound = arguments = request.bind(caller, args, kwargs)
        samples, count = None, None
        if request.batch_dim is not None:
            samples = Samples(request.batch_dim, request.batch_dim)
            names = lambda: arguments.paths(caller.function)  # noqa: E731
            count = check_samples(caller, arguments.primals(), request.batch_dim, names)
        run = runner(caller, arguments, self._accepting(count), has_aux=request.has_aux)
        run = _on_copies(run) if request.copies else run
        run = _with_value(run) if request.value else run
        self.real_form: RealForm | None = None
        if request.complex is not None:
            self.real_form = RealForm(caller, arguments, run, samples=count is not None)
            arguments, run = self.real_form.arguments, self.real_form.run
        self.problem = Problem(caller, arguments, run, samples)

    def _accepting(self, count: int | None) -> Accept:
        """What the function has to return: real or complex tensors as asked for, with all samples."""
        accept, batch_dim, convention = self.request.accept, self.request.batch_dim, self.request.complex

        def accepting(caller: Caller, evaluation: Evaluation) -> None:
            accept(caller, evaluation)
            outputs = evaluation.outputs
            check_dtypes(caller, outputs, convention, lambda: output_paths(evaluation))
            if batch_dim is not None:
                check_samples(caller, outputs, batch_dim, lambda: output_paths(evaluation), count)

        return accepting

    def answer(self, blocks: Sequence[Tensor], evaluation: Evaluation, *, order: int) -> Any:
        """The result for the caller, from the real blocks of the derivative."""
        leaves: Sequence[Any] = blocks if order == 1 else _cast(blocks, self.problem.arguments)
        if self.real_form is not None and self.request.complex is not None:
            leaves = self.real_form.arranged(leaves, order, self.request.complex)
        for _ in range(order):
            leaves = _in_trees(leaves, self._bound)
        derivative = unflatten(leaves, evaluation.spec)
        with_value, with_aux = self.request.value, self.request.has_aux
        if not (with_value or with_aux):
            return derivative
        value, aux = self._carried(evaluation)
        return (*([value] if with_value else []), derivative, *([aux] if with_aux else []))

    def _carried(self, evaluation: Evaluation) -> tuple[Any, Any]:
        """The value and the auxiliary part, which come back together."""
        value, aux, extra = None, None, evaluation.aux
        if self.request.value:
            count = evaluation.spec.num_leaves
            value, extra = unflatten(extra[:count], evaluation.spec), extra[count:]
        if self.request.has_aux:
            aux = evaluation._replace(aux=extra).aux_value()
        return value, aux


def _cast(blocks: Sequence[Tensor], arguments: Arguments) -> Sequence[Tensor]:
    """Each block of a Hessian in the dtype of the input by which it was differentiated first."""
    dtypes = [tensor.dtype for tensor in arguments.primals()]
    count = len(dtypes)
    if count == 1:
        return blocks
    return [block.to(dtypes[i // count % count]) for i, block in enumerate(blocks)]


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
            return run([_copy(leaf) for leaf in leaves])
        except RuntimeError as error:
            if not writes_to_leaf(error):
                raise
        return run([_copy(leaf, all_of_them=True) for leaf in leaves])

    return copying


def _copy(leaf: Any, *, all_of_them: bool = False) -> Any:
    if not isinstance(leaf, Tensor) or (not all_of_them and refuses_writes(leaf)):
        return leaf
    return leaf.clone()


def _with_value(run: Run) -> Run:
    """The same function, whose outputs also ride along as auxiliary values."""

    def carrying(leaves: list[Any]) -> Evaluation:
        evaluation = run(leaves)
        return evaluation._replace(aux=[*evaluation.outputs, *evaluation.aux])

    return carrying
