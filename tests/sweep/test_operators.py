"""Every operator that torch can differentiate: covector against torch.func, on torch's own samples.

Each operator of torch's database is a test. Its samples become functions of their differentiable
tensors alone, and every verb of CHECKS is asked of both libraries. Where torch.func refuses, plain
autograd, applied row by row, is the judge; where torch.func is wrong, EXPLAINED says why, plain
autograd judges again, and an entry that is no longer needed fails.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import covector
from covector.errors import CovectorWarning

pytestmark = pytest.mark.sweep

OPERATORS = {op.full_name: op for op in op_db if op.supports_autograd and torch.float64 in op.dtypes}

SAMPLES = 5  # per operator, spread over the first that its generator yields
TRIED = 60  # of these; some generators yield thousands
MANY_ELEMENTS = 450  # larger samples are used only where an operator has no smaller one
MANY_ENTRIES = 100_000  # of a Jacobian
MANY_SECOND = 8  # inputs of a Hessian

Tensors = list[Tensor]
Answer = list[Tensor] | Exception


@dataclass(frozen=True)
class Problem:
    """One sample of an operator, as a function of the tensors to differentiate by."""

    function: Callable[..., tuple[Tensor, ...]]
    primals: tuple[Tensor, ...]

    @property
    def argnums(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(range(len(self.primals)))

    @cached_property
    def outputs(self) -> tuple[Tensor, ...]:
        """The value at the primals."""
        torch.manual_seed(0)
        return self.function(*self.primals)

    @cached_property
    def randomness(self) -> str:
        """The `randomness` to ask for: a random operator is compared on one draw for all directions."""
        try:
            torch.vmap(lambda _: self.function(*self.primals))(torch.zeros(2))
        except RuntimeError as error:
            return "same" if "randomness" in str(error) else "error"
        return "error"

    @cached_property
    def tangents(self) -> tuple[Tensor, ...]:
        """A direction to push along."""
        return _random_like(self.primals, seed=1)

    @cached_property
    def cotangents(self) -> tuple[Tensor, ...]:
        """A direction to pull back."""
        return _random_like(self.outputs, seed=2)

    @property
    def is_real(self) -> bool:
        """Whether a Jacobian exists in torch's sense."""
        return not any(tensor.is_complex() for tensor in (*self.primals, *self.outputs))

    @property
    def inputs_size(self) -> int:
        """The number of elements to differentiate by."""
        return sum(tensor.numel() for tensor in self.primals)

    @property
    def outputs_size(self) -> int:
        """The number of elements to differentiate."""
        return sum(tensor.numel() for tensor in self.outputs)

    def weighted(self, *primals: Tensor) -> Tensor:
        """A real scalar: the outputs, weighted by the cotangents and summed."""
        outputs = self.function(*primals)
        return sum((_real(v) * _real(y)).sum() for v, y in zip(self.cotangents, outputs, strict=True))


def _random_like(tensors: tuple[Tensor, ...], seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in tensors)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def problems(op: Any) -> list[Problem]:
    """A few samples of the operator, the small ones if there are any."""
    torch.manual_seed(0)
    samples = islice(op.sample_inputs("cpu", torch.float64, requires_grad=True), TRIED)
    usable = [
        problem for problem in (_problem(op, s) for s in samples) if problem.primals and problem.outputs
    ]
    small = [p for p in usable if 0 < p.inputs_size <= MANY_ELEMENTS and p.outputs_size <= MANY_ELEMENTS]
    if not small:
        return sorted(usable, key=lambda problem: (problem.inputs_size == 0, problem.inputs_size))[:1]
    spread = {index * (len(small) - 1) // (SAMPLES - 1) for index in range(SAMPLES)}
    return [small[index] for index in sorted(spread)]


def _problem(op: Any, sample: Any) -> Problem:
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    # The database marks what an operator can be differentiated by. Sparse arguments stay fixed: their
    # directions would have to share their pattern.
    places = [
        index
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.layout is torch.strided
    ]

    def function(*primals: Tensor) -> tuple[Tensor, ...]:
        # Some operators update a fixed argument (running statistics), so each run has its own.
        inner = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        for place, primal in zip(places, primals, strict=True):
            inner[place] = primal
        value, args, kwargs = tree_unflatten(inner, spec)
        result = sample.output_process_fn_grad(op.gradcheck_wrapper(op.op, value, *args, **kwargs))
        return tuple(
            leaf if leaf.layout is torch.strided else leaf.to_dense()
            for leaf in tree_leaves(result)
            if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        )

    return Problem(function, tuple(leaves[place].detach() for place in places))


def _vjp(library: Any, problem: Problem) -> Tensors:
    output, pull = library.vjp(problem.function, *problem.primals)
    return [*output, *pull(problem.cotangents)]


def _jvp(library: Any, problem: Problem) -> Tensors:
    output, image = library.jvp(problem.function, problem.primals, problem.tangents)
    return [*output, *image]


def _linearize(library: Any, problem: Problem) -> Tensors:
    output, push = library.linearize(problem.function, *problem.primals)
    return [*output, *push(*problem.tangents)]


def _jacrev(library: Any, problem: Problem) -> Tensors:
    return tree_leaves(library.jacrev(problem.function, problem.argnums)(*problem.primals))


def _jacfwd(library: Any, problem: Problem) -> Tensors:
    jacobian = library.jacfwd(problem.function, problem.argnums, randomness=problem.randomness)
    return tree_leaves(jacobian(*problem.primals))


def _hessian(library: Any, problem: Problem) -> Tensors:
    second = library.hessian(problem.weighted, problem.argnums, randomness=problem.randomness)
    return tree_leaves(second(*problem.primals))


def _hessian_of_outputs(library: Any, problem: Problem) -> Tensors:
    second = library.hessian(problem.function, problem.argnums, randomness=problem.randomness)
    return tree_leaves(second(*problem.primals))


def _reverse_over_reverse(library: Any, problem: Problem) -> Tensors:
    gradient = library.jacrev(problem.weighted, problem.argnums)
    return tree_leaves(library.jacrev(gradient, problem.argnums)(*problem.primals))


def _forward_over_reverse(library: Any, problem: Problem) -> Tensors:
    jacobian = library.jacrev(problem.function, problem.argnums)
    second = library.jacfwd(jacobian, problem.argnums, randomness=problem.randomness)
    return tree_leaves(second(*problem.primals))


class Reference:
    """Plain autograd, one row at a time: it needs a first-order formula per operator, and no batching."""

    def vjp(self, problem: Problem) -> Tensors:
        """The outputs, and the cotangents pulled back."""
        primals, outputs = _recorded(problem.function, problem.primals)
        return [*problem.outputs, *_pulled(outputs, problem.cotangents, primals)]

    def jvp(self, problem: Problem) -> Tensors:
        """The outputs, and the tangents multiplied by each row of the Jacobian."""
        primals, outputs = _recorded(problem.function, problem.primals)
        images = []
        for output in outputs:
            products = [
                sum((_real(g) * _real(u)).sum() for g, u in zip(row, problem.tangents, strict=True))
                for row in _rows(output, primals)
            ]
            real = torch.stack(products).reshape(_real(output).shape) if products else _real(output).detach()
            image = torch.view_as_complex(real) if output.is_complex() else real
            images.append(image.to(output.dtype))
        return [*problem.outputs, *images]

    def jacobian(self, problem: Problem) -> Tensors:
        """A block for each pair of an output and a primal."""
        return _jacobian(*_recorded(problem.function, problem.primals), record=False)

    def jacobian_by_columns(self, problem: Problem) -> Tensors:
        """The same in the dtype of the outputs, which is that of the images of a tangent."""
        dtypes = [output.dtype for output in problem.outputs for _ in problem.primals]
        return [block.to(dtype) for block, dtype in zip(self.jacobian(problem), dtypes, strict=True)]

    def hessian(self, problem: Problem) -> Tensors:
        """A block for each pair of primals."""
        primals, output = _recorded(problem.weighted, problem.primals)
        gradient = _pulled([output], [torch.ones_like(output)], primals, record=True)
        return _jacobian(primals, gradient, record=False)

    def hessian_of_outputs(self, problem: Problem) -> Tensors:
        """A block for each output and pair of primals."""
        primals, outputs = _recorded(problem.function, problem.primals)
        return _jacobian(primals, _jacobian(primals, outputs, record=True), record=False)


def _recorded(function: Callable[..., Any], primals: tuple[Tensor, ...]) -> tuple[list[Tensor], Any]:
    torch.manual_seed(0)
    leaves = [primal.detach().requires_grad_() for primal in primals]
    return leaves, function(*leaves)


def _pulled(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], primals: Tensors, *, record: bool = False
) -> Tensors:
    pairs = [(y, v) for y, v in zip(outputs, cotangents, strict=True) if y.requires_grad]
    if not pairs:
        return [torch.zeros_like(primal) for primal in primals]
    along = [v for _, v in pairs]
    return list(
        torch.autograd.grad(
            [y for y, _ in pairs], primals, along,
            retain_graph=True, create_graph=record, allow_unused=True, materialize_grads=True,
        )
    )  # fmt: skip


def _rows(output: Tensor, primals: Tensors, *, record: bool = False) -> Iterator[Tensors]:
    real = _real(output)
    for index in range(real.numel()):
        basis = torch.zeros_like(real, memory_format=torch.contiguous_format, requires_grad=False)
        basis.view(-1)[index] = 1
        yield _pulled([real], [basis], primals, record=record)


def _jacobian(primals: Tensors, outputs: Sequence[Tensor], *, record: bool) -> Tensors:
    blocks = []
    for output in outputs:
        rows = list(_rows(output, primals, record=record))
        for position, primal in enumerate(primals):
            shape = (*output.shape, *primal.shape)
            stack = [row[position] for row in rows]
            blocks.append(torch.stack(stack).reshape(shape) if stack else primal.new_zeros(shape))
    return blocks


def _small_jacobian(op: Any, problem: Problem) -> bool:
    return problem.is_real and problem.inputs_size * problem.outputs_size <= MANY_ENTRIES


def _small_hessian(op: Any, problem: Problem) -> bool:
    real = not any(primal.is_complex() for primal in problem.primals)
    return op.supports_gradgrad and real and problem.inputs_size <= MANY_SECOND


def _small_hessian_of_outputs(op: Any, problem: Problem) -> bool:
    return _small_hessian(op, problem) and problem.is_real and problem.outputs_size <= 4 * MANY_SECOND


@dataclass(frozen=True)
class Check:
    """One verb: when it is asked, how each library answers, and who judges where torch.func does not."""

    applies: Callable[[Any, Problem], bool]
    ours: Callable[[Any, Problem], Tensors]
    theirs: Callable[[Any, Problem], Tensors]
    reference: Callable[[Problem], Tensors]


def _always(op: Any, problem: Problem) -> bool:
    return True


plain = Reference()

CHECKS = {
    "vjp": Check(_always, _vjp, _vjp, plain.vjp),
    "jvp": Check(_always, _jvp, _jvp, plain.jvp),
    "linearize": Check(_always, _linearize, _jvp, plain.jvp),
    "jacrev": Check(_small_jacobian, _jacrev, _jacrev, plain.jacobian),
    "jacfwd": Check(_small_jacobian, _jacfwd, _jacfwd, plain.jacobian_by_columns),
    "hessian": Check(_small_hessian, _hessian, _reverse_over_reverse, plain.hessian),
    "hessian of outputs": Check(
        _small_hessian_of_outputs, _hessian_of_outputs, _forward_over_reverse, plain.hessian_of_outputs
    ),
}


def _central_jacobian(problem: Problem) -> Tensors:
    """The Jacobian by central differences, a column at a time."""
    step = 1e-6
    columns = []
    for position, primal in enumerate(problem.primals):
        for index in range(primal.numel()):
            ends = []
            for sign in (1, -1):
                moved = [p.clone() for p in problem.primals]
                moved[position].view(-1)[index] += sign * step
                ends.append(problem.function(*moved))
            columns.append([(up - down) / (2 * step) for up, down in zip(*ends, strict=True)])
    stacks = [torch.stack(images, dim=-1) for images in zip(*columns, strict=True)]
    sizes = [primal.numel() for primal in problem.primals]
    return [
        block.reshape((*output.shape, *primal.shape))
        for output, stack in zip(problem.outputs, stacks, strict=True)
        for primal, block in zip(problem.primals, stack.split(sizes, dim=-1), strict=True)
    ]


def _difference(got: Answer, expected: Answer, tolerance: float = 1e-8) -> str | None:
    """What is wrong with our answer, if anything."""
    if isinstance(got, Exception):
        return f"covector refuses: {got!r}"
    if isinstance(expected, Exception):
        return f"nobody can judge the answer: {expected!r}"
    if len(got) != len(expected):
        return f"{len(got)} tensors instead of {len(expected)}"
    for ours, theirs in zip(got, expected, strict=True):
        finite = theirs[theirs.isfinite()].abs().double() if not theirs.is_complex() else theirs.abs()
        scale = max(1.0, finite.max().item()) if finite.numel() else 1.0
        try:
            torch.testing.assert_close(
                ours, theirs, rtol=tolerance, atol=tolerance * scale, equal_nan=True
            )  # fmt: skip
        except AssertionError as error:
            return " ".join(str(error).split())
    return None


@dataclass(frozen=True)
class Explained:
    """Why torch.func is no judge, and who is instead; without a judge, covector must refuse."""

    reason: str
    judge: Callable[[Problem], Tensors] | None
    tolerance: float = 1e-8

    def complaint(self, got: Answer, problem: Problem) -> str | None:
        """What is wrong with our answer all the same, if anything."""
        if self.judge is None:
            return None if isinstance(got, Exception) else "covector answers where it should refuse"
        return _difference(got, _answer(self.judge, problem), self.tolerance)


_CONSTANT_STATISTICS = (
    "under vmap torch computes the weight's cotangent from the saved mean and deviation as if these did "
    "not depend on x, so d2y/dw dx is wrong; torch.func batches even a single row"
)
_WRITTEN_TWICE = (
    "the sample writes several elements to one place, and torch's backward gives each of them the "
    "cotangent; the database skips the operator's gradient checks too"
)
_WRONG_ORDER = "torch's forward-mode rule of cholesky_inverse is wrong away from the identity"
_DROPPED_TANGENT = "torch.library.custom_op drops tangents without a word: torch.func.jvp gives zeros"

# Where torch.func itself is wrong, or right about something else. Most were settled by central
# differences on sampled cases; linalg.norm, _native_batch_norm_legit, max_unpool3d, logcumsumexp and the
# dropped tangents of jvp and jacfwd were not: there plain autograd is the only judge.
EXPLAINED = {
    ("as_strided_scatter", "linearize"): Explained(
        "torch's backward of as_strided_scatter lets the overwritten elements through (the database "
        "expects test_fn_grad to fail); linearize goes through it, torch.func.jvp does not",
        plain.jvp,
    ),
    ("as_strided_scatter", "jacfwd"): Explained(
        "torch.func cannot batch it, and plain autograd is wrong as above", _central_jacobian, 1e-6
    ),
    ("cdist", "jacrev"): Explained(
        "torch's batching rule for the backward of cdist is wrong unless an operand is batched too",
        plain.jacobian,
    ),
    ("cholesky_inverse", "linearize"): Explained(_WRONG_ORDER, plain.jvp),
    ("cholesky_inverse", "jvp"): Explained(_WRONG_ORDER, plain.jvp),
    ("cholesky_inverse", "jacfwd"): Explained(_WRONG_ORDER, plain.jacobian),
    ("linalg.norm.subgradients_at_zero", "hessian of outputs"): Explained(
        "there is no second derivative at zero; forward over reverse gives NaN, reverse over reverse "
        "that of the subgradient",
        plain.hessian_of_outputs,
    ),
    ("scatter_reduce.prod", "linearize"): Explained(
        "torch has no forward-mode rule for prod and gives zeros without a word", plain.jvp
    ),
    ("nn.functional.linear_cross_entropy.chunked", "linearize"): Explained(_DROPPED_TANGENT, plain.jvp),
    ("nn.functional.linear_cross_entropy.chunked_none", "linearize"): Explained(_DROPPED_TANGENT, plain.jvp),
    ("nn.functional.linear_cross_entropy.chunked", "jvp"): Explained(_DROPPED_TANGENT, plain.jvp),
    ("nn.functional.linear_cross_entropy.chunked_none", "jvp"): Explained(_DROPPED_TANGENT, plain.jvp),
    ("nn.functional.linear_cross_entropy.chunked", "jacfwd"): Explained(_DROPPED_TANGENT, plain.jacobian),
    ("nn.functional.linear_cross_entropy.chunked_none", "jacfwd"): Explained(
        _DROPPED_TANGENT, plain.jacobian
    ),
    ("scatter_reduce.prod", "jvp"): Explained(_DROPPED_TANGENT, plain.jvp),
    ("scatter_reduce.prod", "jacfwd"): Explained(_DROPPED_TANGENT, plain.jacobian),
    ("logcumsumexp", "linearize"): Explained(
        "its backward takes the logarithm of the cotangent, whose derivative has fewer digits",
        plain.jvp,
        1e-4,
    ),
    ("nn.functional.max_unpool1d", "linearize"): Explained(_WRITTEN_TWICE, plain.jvp),
    ("nn.functional.max_unpool2d", "linearize"): Explained(_WRITTEN_TWICE, plain.jvp),
    ("nn.functional.max_unpool3d", "linearize"): Explained(_WRITTEN_TWICE, plain.jvp),
    ("native_batch_norm", "hessian"): Explained(_CONSTANT_STATISTICS, plain.hessian),
    ("_native_batch_norm_legit", "hessian"): Explained(_CONSTANT_STATISTICS, plain.hessian),
    ("nn.functional.batch_norm", "hessian"): Explained(_CONSTANT_STATISTICS, plain.hessian),
    ("native_batch_norm", "hessian of outputs"): Explained(_CONSTANT_STATISTICS, plain.hessian_of_outputs),
    ("nn.functional.batch_norm", "hessian of outputs"): Explained(
        _CONSTANT_STATISTICS, plain.hessian_of_outputs
    ),
    ("nn.functional.layer_norm", "hessian"): Explained(_CONSTANT_STATISTICS, plain.hessian),
    ("nn.functional.layer_norm", "hessian of outputs"): Explained(
        _CONSTANT_STATISTICS, plain.hessian_of_outputs
    ),
}


@dataclass(frozen=True)
class Verdict:
    """Who judged our answer to one verb on one sample, and what was found."""

    verb: str
    judge: str
    complaint: str | None = None


@dataclass
class Tally:
    """What was compared so far."""

    compared: set[str] = field(default_factory=set)
    samples: int = 0
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"{len(self.compared)} operators, {self.samples} samples"]
        lines += [f"  {verb}, {judge}: {count}" for (verb, judge), count in sorted(self.verdicts.items())]
        return "\n".join([*lines, f"  warnings: {dict(self.warnings)}"])


def _answer(ask: Callable[..., Tensors], *args: Any) -> Answer:
    torch.manual_seed(0)
    try:
        return ask(*args)
    except Exception as error:
        return error


def judged(name: str, verb: str, problem: Problem) -> Verdict:
    """Our answer to one verb against torch.func's, or else against plain autograd's."""
    check = CHECKS[verb]
    ours = _answer(check.ours, covector, problem)
    theirs = _answer(check.theirs, torch.func, problem)
    if not isinstance(theirs, Exception):
        verdict = Verdict(verb, "against torch.func", _difference(ours, theirs))
    elif not isinstance(ours, Exception):
        expected = _answer(check.reference, problem)
        verdict = Verdict(verb, "against plain autograd", _difference(ours, expected))
    else:
        return Verdict(verb, "refused by both")
    explained = EXPLAINED.get((name, verb))
    if verdict.complaint and explained:
        return Verdict(verb, "explained", explained.complaint(ours, problem))
    return verdict


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name: str, tally: Tally) -> None:
    """Both libraries agree on the operator; covector refuses nothing more, and keeps the inputs."""
    op = OPERATORS[name]
    verdicts = []
    with warnings.catch_warnings(record=True) as emitted:
        warnings.simplefilter("always")
        samples = problems(op)
        for problem in samples:
            before = [primal.clone() for primal in problem.primals]
            verdicts += [judged(name, verb, problem) for verb in CHECKS if CHECKS[verb].applies(op, problem)]
            assert _difference(list(problem.primals), before, tolerance=0) is None
    if any(verdict.judge != "refused by both" for verdict in verdicts):
        tally.compared.add(name)
    tally.samples += len(samples)
    tally.verdicts.update((verdict.verb, verdict.judge) for verdict in verdicts)
    tally.warnings.update(w.category.__name__ for w in emitted if issubclass(w.category, CovectorWarning))

    assert [verdict for verdict in verdicts if verdict.complaint] == []
    needed = {verdict.verb for verdict in verdicts if verdict.judge == "explained"}
    assert needed == {verb for operator, verb in EXPLAINED if operator == name}
    assert {verdict.judge for verdict in verdicts if verdict.verb == "vjp"} - {"refused by both"}


def test_explained_names_operators() -> None:
    """Every entry of EXPLAINED belongs to an operator and a verb that are compared."""
    assert {operator for operator, _ in EXPLAINED} <= set(OPERATORS)
    assert {verb for _, verb in EXPLAINED} <= set(CHECKS)


def test_summary(tally: Tally, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    """Every operator that was to be compared was, and there are more than 400 of them."""
    with capsys.disabled():
        print(f"\n{tally}")
    chosen = [item for item in request.session.items if item.originalname == "test_operator"]
    assert len(tally.compared) == len(chosen)
    assert len(tally.compared) > 400 or len(chosen) < len(OPERATORS)
    assert len(OPERATORS) > 400
