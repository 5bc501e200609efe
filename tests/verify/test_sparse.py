"""Sparse inputs and outputs: right derivatives pass, wrong ones are rejected, bad input is refused."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import covector
from covector._chart import Chart, Pattern
from covector.errors import ArgumentTypeError, CovectorError, OutputError, UnsupportedError
from covector.verify.finding import Finding, Outcome
from covering import covered, paired
from sparse_cases import BOTH, DTYPES, IN, KINDS, MASKED, OPERATIONS, OUT, Case, every_case, numbers
from sparse_faults import FACTOR, FAULTS, dense, multiplied, pattern_of
from sparse_table import decorated, exists, original, verdict, written

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:.*:UserWarning:torch"),
    pytest.mark.usefixtures("unexplained"),
]

each_kind = pytest.mark.parametrize("kind", KINDS)
each_masked = pytest.mark.parametrize("masked", MASKED, ids=["masked", "unmasked"])
each_side = pytest.mark.parametrize("side", ["in", "out", "both"])


def csr(dtype: torch.dtype = torch.float64) -> Tensor:
    return KINDS["CSR"](dtype, 0).requires_grad_()


def coo(dtype: torch.dtype = torch.float64) -> Tensor:
    return KINDS["COO"](dtype, 0).requires_grad_()


def failed(function: Callable[..., Any], inputs: Any, **keywords: Any) -> dict[str, Finding]:
    """The checks that fail, by name."""
    report = covector.check(function, inputs, **keywords)
    return {f.check: f for f in report.findings if f.outcome is Outcome.FAILED}


# Right derivatives


@pytest.mark.parametrize(
    ("operation", "kind", "dtype", "masked"),
    paired(OPERATIONS, list(KINDS), DTYPES, MASKED),
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_what_torch_has_passes(operation, kind, dtype, masked):
    """Whatever torch can differentiate by the rule that is asked for; nothing else."""
    case = Case(operation, kind, dtype, masked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = verdict(covector.gradcheck, case.function, case.inputs(), masked)
        assert (ours is True) == (exists(case) and case.follows)


@pytest.mark.parametrize(("kind", "dtype", "fast"), paired(list(KINDS), DTYPES, [False, True]), ids=str)
def test_a_gradient_that_is_masked_and_one_that_is_not(kind, dtype, fast):
    """Each is right under one rule, as in torch; `x` leaves elements out."""
    if "batch" in kind:  # torch has no to_dense of it with a derivative
        return
    for masked_grad, masked in product(MASKED, MASKED):
        x = KINDS[kind](dtype, 0).requires_grad_()

        def whole(x: Tensor, masked_grad: bool = masked_grad) -> Tensor:
            return x.to_dense(masked_grad=masked_grad)

        ours = covector.gradcheck(whole, x, masked=masked, fast_mode=fast, raise_exception=False)
        assert ours == (masked_grad == masked)
        assert fast or ours == verdict(original, whole, x, masked)


@pytest.mark.parametrize(
    ("operations", "dtype"),
    [(IN, DTYPES[0]), (OUT, DTYPES[0]), (BOTH, DTYPES[0]), (IN, DTYPES[1]), (BOTH, DTYPES[1])],
    ids=["in, real", "out, real", "both, real", "in, complex", "both, complex"],
)
@each_masked
def test_every_kind_is_covered(operations, dtype, masked):
    """For each side and layout some operation passes; torch makes no complex tensor sparse differentiably.

    Complex outputs of strided inputs are covered by the custom Functions below.
    """
    passed = set()
    for operation in operations:
        for kind in KINDS:
            case = Case(operation, kind, dtype, masked)
            if kind not in passed and verdict(covector.gradcheck, case.function, case.inputs(), masked):
                passed.add(kind)
    assert passed == set(KINDS)


# Wrong derivatives


@pytest.mark.parametrize(
    ("side", "kind", "dtype", "masked"), paired(["in", "out", "both"], list(KINDS), DTYPES, MASKED)
)
def test_wrong_derivatives_are_rejected(side, kind, dtype, masked):
    """And the right one is not; each of them in one mode, and in the other with the next kind."""
    template = KINDS[kind](dtype, 0)
    for number, (name, fault) in enumerate(FAULTS.items(), list(KINDS).index(kind)):
        right = name == "right" or (name == "missing conjugate" and not dtype.is_complex)
        function = multiplied(side, template, fault, FACTOR[dtype], masked)
        x = numbers(*template.shape, dtype=dtype) if side == "out" else template.clone()
        x.requires_grad_()
        fast = number % 2 == 0
        passed = covector.gradcheck(function, x, masked=masked, fast_mode=fast, raise_exception=False)
        assert passed == right, name


def test_the_entry_is_named_by_its_index():
    """Not by its place among the values."""
    for masked in MASKED:
        function = multiplied("in", csr().detach(), FAULTS["dropped element"], 1.5, masked)
        found = failed(function, csr(), masked=masked)["reverse mode"]
        assert str(found.mismatches[0].entry) == "d output[0, 0] / d x[0, 0]"
    function = multiplied("in", csr(torch.complex128).detach(), FAULTS["dropped element"], 1.5, False)
    entries = [str(m.entry) for m in failed(function, csr(torch.complex128))["reverse mode"].mismatches]
    assert "d output[0, 0].imag / d x[0, 0].imag" in entries


# The kind of a gradient


def gradient_as(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """X -> dense(x), with the right numbers in a gradient of another kind."""

    class ToDense(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.x = x.detach()
            return x.to_dense()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return change(g, ctx.x)

    return ToDense.apply


def _without_first(g: Tensor, x: Tensor) -> Tensor:
    g = g.clone()
    g[0, 0] = 0
    return g.to_sparse(layout=x.layout)


GRADIENTS = {
    "strided": (lambda g, x: g, True, "has layout torch.strided, expected torch.sparse_csr"),
    "strided, unmasked": (lambda g, x: g, False, "has layout torch.strided, expected torch.sparse_csr"),
    "beyond the mask": (
        lambda g, x: g.to_sparse_csr(),
        True,
        "goes beyond the mask: it is ",
    ),
    "lacks an element": (
        _without_first,
        False,
        "does not specify x[0, 0], by which the derivative is not",
    ),
}


# Where our verdict is not the original's: it does not mind a strided gradient, if its numbers are right.
DIFFERS = {"strided, unmasked"}


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_kind_of_a_gradient_is_reported_by_name(name):
    change, masked, text = GRADIENTS[name]
    found = failed(gradient_as(change), csr(), masked=masked)["gradient kind"]
    assert verdict(original, gradient_as(change), csr(), masked) == (name in DIFFERS)
    assert found.summary.startswith("the gradient for x ")
    assert text in found.summary


def test_another_sparse_layout_is_reported():
    """Torch's engine itself accepts a gradient of another sparse layout."""
    found = failed(gradient_as(lambda g, x: g.to_sparse_csc()), csr(), masked=True)
    text = " ".join(finding.summary for finding in found.values())
    assert "sparse_csc" in text.lower().replace("sparsecsc", "sparse_csc")


def test_torch_s_own_gradients_are_a_remark():
    """Their numbers are right, and the user cannot change them."""
    report = covector.check(lambda x: torch.mm(x, torch.ones(6, 2, dtype=torch.float64)), csr())
    assert report
    text = "the gradient for x has layout torch.strided"
    assert text in next(f for f in report.findings if f.check == "gradient kind").summary
    assert f"remark: {text}" in str(report)


def test_zeros_beyond_the_mask_are_no_fault():
    """As in torch: what is not specified has a derivative of zero, and that may be said."""
    half = torch.ones(4, 6, dtype=torch.float64)
    half[csr().detach().to_dense() == 0] = 0

    def function(x: Tensor) -> Tensor:
        return half * x.to_dense(masked_grad=False)

    assert covector.gradcheck(function, csr(), masked=True)
    assert verdict(original, function, csr(), masked=True)


def test_zeros_that_a_gradient_leaves_out_are_no_fault():
    """to_sparse drops them."""
    assert covector.gradcheck(lambda x: x.to_dense(masked_grad=False)[:2], csr(), masked=False)


def test_a_dtype_that_is_asked_for():
    class Narrow(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.pattern = Pattern.of(x.detach())
            return x.to_dense()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return ctx.pattern.build(g.reshape(-1)[ctx.pattern.positions].to(torch.float32))

    report = covector.check(Narrow.apply, csr(), masked=True, check_grad_dtypes=True)
    found = next(f for f in report.findings if f.check == "gradient kind")
    # torch casts a gradient to the dtype of its input, so nothing is left to complain about.
    assert found.outcome is Outcome.PASSED


def test_a_backward_that_ignores_the_indices_of_the_cotangent():
    """It is right only for the cotangents that specify what the output does."""

    class Careless(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.pattern = pattern_of(x)
            return ctx.pattern.build(2 * dense(x).reshape(-1)[ctx.pattern.positions])

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            padded = torch.zeros(ctx.pattern.values_shape, dtype=g.dtype)
            padded[: g._nnz()] = 2 * g.values()
            return ctx.pattern.build(padded)

    assert covector.gradcheck(Careless.apply, csr(), masked=True)
    full = numbers(4, 6, dtype=torch.float64).to_sparse_csr().requires_grad_()
    assert set(failed(Careless.apply, full, masked=False)) == {"unspecified cotangents"}
    assert verdict(decorated, Careless.apply, full, masked=False) is False


def test_an_output_that_specifies_other_elements_nearby():
    """Masked, what the output leaves out is no part of it, so it must not come and go."""
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64, requires_grad=True)
    found = failed(lambda x: x.to_sparse(), x, masked=True)["purity"]
    assert "specifies other elements at a nearby point, for example [0, 1]" in found.summary
    assert verdict(original, lambda x: x.to_sparse(), x, masked=True) is False
    assert covector.gradcheck(lambda x: x.to_sparse(), x, masked=False)


# Doors, options, and the caller


@each_masked
def test_second_order(masked):
    """The original refuses it; wrong second derivatives are rejected."""
    assert covector.gradgradcheck(lambda x: x * x, coo(), masked=masked)
    factor = numbers(6, 2, dtype=torch.float64).requires_grad_()
    assert covector.gradgradcheck(lambda x, d: x @ d, (coo(), factor), masked=False)
    # Its backward is masked, the derivative of that is not.
    assert not covector.gradgradcheck(torch.sparse.mm, (coo(), factor), masked=masked, raise_exception=False)
    with pytest.raises(covector.GradcheckError, match="FAILED"):
        covector.gradgradcheck(lambda x: Saved.apply(x), coo(), masked=masked)


class Saved(Function):
    """x * x, whose backward forgets that it depends on x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.detach()
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g * ctx.x


def test_second_order_that_torch_lacks_is_named():
    with pytest.raises(
        covector.GradcheckError, match="UNSUPPORTED: torch does not have a derivative of aten::_s"
    ):
        covector.gradgradcheck(lambda x: torch.sparse.sum(x, 0), coo(), masked=True)
    with pytest.raises(covector.GradcheckError) as caught:
        covector.gradgradcheck(lambda x: x.to_dense(masked_grad=False), coo(torch.complex128))
    summary = caught.value.report.worst.summary
    assert summary.endswith("does not have a derivative of _to_sparse for complex numbers")


@each_kind
def test_forward_mode_is_unsupported_by_name(kind):
    x = KINDS[kind](torch.float64, 0).requires_grad_()
    with pytest.raises(
        covector.GradcheckError,
        match=f"forward mode: UNSUPPORTED: torch has no forward mode for inputs of layout {x.layout}",
    ):
        covector.gradcheck(
            lambda x: x.to_dense(), x, masked=True, check_backward_ad=False, check_forward_ad=True
        )


def test_forward_mode_of_a_dense_input_through_a_sparse_constant():
    """Torch lacks what that needs, and says so in a hundred lines."""
    x = numbers(6, 2, dtype=torch.float64).requires_grad_()
    matrix = csr().detach()
    assert covector.gradcheck(lambda x: matrix @ x, x)
    with pytest.raises(
        covector.GradcheckError, match="UNSUPPORTED: torch has no forward-mode rule for aten::"
    ):
        covector.gradcheck(lambda x: matrix @ x, x, check_forward_ad=True)


def test_batched_gradients_are_unsupported_by_name():
    with pytest.raises(
        covector.GradcheckError, match=r"torch has no vmap over tensors of layout torch.sparse_csr"
    ):
        covector.gradcheck(lambda x: x.to_dense(), csr(), masked=True, check_batched_grad=True)


def test_trees_keywords_and_a_sample():
    """Sparse tensors stand wherever tensors may."""

    def function(tree: dict[str, Tensor], scale: Tensor) -> dict[str, Tensor]:
        return {"product": scale * tree["x"].to_dense(masked_grad=False), "same": tree["x"].clone()}

    x, scale = csr(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    assert covector.check(function, ({"x": x},), {"scale": scale})
    assert covector.check(function, ({"x": x},), {"scale": scale}, max_entries=5)
    assert covector.check(function, ({"x": x.detach()},), {"scale": scale.detach()}, argnums=0)


def test_a_sparse_parameter_of_a_module():
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(coo().detach())

        def forward(self, x: Tensor) -> Tensor:
            return torch.sparse.mm(self.weight, x)

    assert covector.check(Layer(), (numbers(6, 2, dtype=torch.float64),), masked=True)


def test_a_function_that_closes_over_its_input():
    """Masked it is differenced in place; unmasked there is no place for the elements that x lacks."""
    for x in (csr(), coo()):
        before = x.detach().clone()
        assert covector.gradcheck(lambda _: x.to_dense(), x, masked=True)
        with pytest.raises(UnsupportedError, match="specifies too few elements for masked=False"):
            covector.gradcheck(lambda _: x.to_dense(), x, masked=False)
        assert torch.equal(x.detach().to_dense(), before.to_dense())
        assert x.grad is None


@each_kind
@each_masked
def test_nothing_of_the_caller_changes(kind, masked):
    """Also when the function raises, or writes to what it is given."""
    x = KINDS[kind](torch.float64, 0).requires_grad_()
    before = x.detach().clone()
    calls = 0

    def raises_later(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise KeyError("later")
        return 2 * x

    def writes(x: Tensor) -> Tensor:
        with torch.no_grad():
            Chart.around([x], masked=True).point([x]).mul_(2)
        return 2 * x

    with pytest.raises(KeyError):
        covector.gradcheck(raises_later, x, masked=masked)
    covector.check(writes, x, masked=masked)
    assert torch.equal(x.detach().to_dense(), before.to_dense())
    assert Pattern.of(x.detach()).indices[0].equal(Pattern.of(before).indices[0])
    assert x.requires_grad
    assert x.grad is None
    assert x.grad_fn is None


@each_masked
def test_the_function_runs_once_for_each_difference(masked):
    """The graph; without a mask the point, with all elements; and two runs for each direction."""
    x = csr()
    runs = 1 + 2 * 4 if masked else 2 + 2 * 4
    assert covector.check(lambda x: 2 * x, x, masked=masked).evaluations == runs
    assert (
        covector.check(lambda x: (2 * x).to_dense(masked_grad=masked), x, masked=masked).evaluations == runs
    )


def test_no_warning_is_emitted():
    """That torch cannot batch sparse tensors is known beforehand."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = coo()
        for masked in MASKED:
            assert covector.gradcheck(lambda x, m=masked: x.to_dense(masked_grad=m), x, masked=masked)


@pytest.mark.parametrize("masked", MASKED)
def test_without_elements(masked):
    """Nothing specified, no rows, no dimensions."""
    empty = torch.zeros(2, 3, dtype=torch.float64).to_sparse_csr().requires_grad_()
    assert covector.gradcheck(lambda x: x.to_dense(masked_grad=masked), empty, masked=masked)
    empty = torch.zeros(0, 3, dtype=torch.float64).to_sparse().requires_grad_()
    assert covector.gradcheck(lambda x: x.to_dense(), empty, masked=masked)
    scalar = torch.tensor(2.0, dtype=torch.float64).to_sparse().requires_grad_()
    assert covector.gradcheck(lambda x: x.to_dense(), scalar, masked=masked)


def test_float32_is_differenced_in_double_precision():
    x = coo().detach().to(torch.float32).requires_grad_()
    for masked in MASKED:
        assert covector.gradcheck(lambda x: x * x, x, masked=masked)


def test_duplicates_are_coordinates_of_their_own():
    x = KINDS["COO, uncoalesced"](torch.float64, 0).requires_grad_()
    report = covector.check(lambda x: x.to_dense(masked_grad=True), x, masked=True)
    assert report
    assert "24 x 5 entries" in report.method


# Bad input


def _jagged() -> Tensor:
    parts = [torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def _broken() -> Tensor:
    return torch.sparse_coo_tensor(
        torch.tensor([[0, 9]]), torch.ones(2, dtype=torch.float64), (3,), check_invariants=False
    ).requires_grad_()


def _unsorted() -> Tensor:
    return torch.sparse_csr_tensor(
        torch.tensor([0, 2]),
        torch.tensor([1, 0]),
        torch.ones(2, dtype=torch.float64),
        (1, 2),
        check_invariants=False,
    ).requires_grad_()


BAD_INPUT = {
    "nested": (
        lambda: covector.gradcheck(lambda x: x, _jagged()),
        "x is a nested tensor, which is not supported",
    ),
    "broken": (
        lambda: covector.gradcheck(lambda x: x.to_dense(), _broken()),
        "x violates the invariants of torch.sparse_coo: size is inconsistent with indices",
    ),
    "unsorted": (
        lambda: covector.gradcheck(lambda x: x.to_dense(), _unsorted()),
        "x violates the invariants of torch.sparse_csr",
    ),
    "integers": (
        lambda: covector.check(
            lambda x: x.to_dense(), torch.eye(2, dtype=torch.int64).to_sparse(), argnums=0
        ),
        "holds no floating-point or complex tensor: x is sparse_coo torch.int64",
    ),
    "integers without argnums": (
        lambda: covector.gradcheck(lambda x: x.to_dense(), torch.eye(2, dtype=torch.int64).to_sparse()),
        "no input requires grad, so there is nothing to check: x is sparse_coo torch.int64 without grad",
    ),
    "nested output": (lambda: covector.gradcheck(lambda x: _jagged(), csr()), "an output is a nested tensor"),
    "broken output": (
        lambda: covector.gradcheck(lambda x: _broken(), csr()),
        "an output violates the invariants of torch.sparse_coo",
    ),
    "not a checker": (lambda: covector.as_sparse_gradcheck(3), "expected a function like gradcheck, got 3"),
    "decorated, broken": (
        lambda: covector.as_sparse_gradcheck(torch.autograd.gradcheck)(lambda x: x.to_dense(), _broken()),
        "input 0 violates the invariants",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input(name):
    """A clear error of our own, never a verdict, never a crash."""
    act, text = BAD_INPUT[name]
    with pytest.raises((ArgumentTypeError, OutputError, ValueError), match=re.escape(text)) as caught:
        act()
    assert isinstance(caught.value, CovectorError)


def test_an_unsupported_layout_names_the_supported_ones():
    from covector._chart import SUPPORTED, refusal

    class Odd:
        is_nested, is_meta, layout = False, False, "torch.odd"

    assert SUPPORTED == "strided, mkldnn, sparse_coo, sparse_csr, sparse_csc, sparse_bsr, sparse_bsc"
    assert f"has layout torch.odd, which is not supported (supported are {SUPPORTED})" in refusal(Odd())


# The decorator

CHECKERS = {
    "torch": torch.autograd.gradcheck,
    "torch, fast": functools.partial(torch.autograd.gradcheck, fast_mode=True),
    "ours": covector.gradcheck,
    "ours, partial": functools.partial(covector.gradcheck, atol=1e-6),
}


DECORATED = [("ours, partial", kind) for kind in KINDS] + [(name, "CSR") for name in CHECKERS]


@pytest.mark.parametrize(
    ("name", "kind", "masked"),
    covered(
        [(*row, masked) for row in DECORATED for masked in MASKED],
        lambda name, kind, masked: masked == ((list(KINDS).index(kind) + len(name)) % 2 == 0),
    ),
)
def test_the_decorator(name, kind, masked):
    """Any checker of strided functions becomes one of sparse functions."""
    checker = covector.as_sparse_gradcheck(CHECKERS[name])
    assert checker.__name__ == "gradcheck"
    template = KINDS[kind](torch.float64, 0)
    for side in ("in", "out", "both"):
        x = numbers(*template.shape, dtype=torch.float64) if side == "out" else template.clone()
        x.requires_grad_()
        for fault in ("right", "scaled"):
            function = multiplied(side, template, FAULTS[fault], 1.5, masked)
            ours = verdict(checker, function, x, masked)
            if ours != (fault == "right"):
                # What torch cannot build from its values, in a batch, is not checked by either.
                assert not ours
                assert verdict(decorated, function, x, masked) is None


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("masked", MASKED)
def test_sparse_inside_and_strided_at_both_ends(masked, fast):
    """Without a mask the sum gets a cotangent without its zeros, and torch's ignores the indices of it."""

    def strided(x: Tensor) -> Tensor:
        return torch.sparse.sum(x.to_sparse(2), -1).to_dense(masked_grad=masked)

    checker = functools.partial(covector.gradcheck, fast_mode=fast, raise_exception=False)
    x = numbers(4, 6, 2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(strided, x, raise_exception=False) is masked
    assert checker(strided, x) is masked
    hybrid = KINDS["COO, hybrid"](torch.float64, 0).requires_grad_()
    inside = covector.as_sparse_gradcheck(checker)
    assert inside(lambda x: torch.sparse.sum(x, -1), hybrid, masked=masked) is masked


def test_the_decorator_on_second_derivatives_and_reports():
    twice = covector.as_sparse_gradcheck(torch.autograd.gradgradcheck)
    assert twice(
        lambda x, d: torch.sparse.mm(x, d), (coo(), numbers(6, 2, dtype=torch.float64).requires_grad_())
    )
    report = covector.as_sparse_gradcheck(covector.check)(lambda x: x.to_sparse_csr(), coo(), masked=True)
    assert isinstance(report, covector.Report)
    assert report


def test_the_case_list_is_what_it_says():
    cases = list(every_case())
    assert len(cases) == len(OPERATIONS) * len(KINDS) * len(DTYPES) * len(MASKED)
    assert {case.operation.side for case in cases} == {"in", "out", "both"}


def test_the_table_in_the_docs_covers_the_cases():
    """Each operation has a row, each kind a column, and each cell three counts or a dash."""
    header, _, *rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in written().splitlines()
    ]
    assert header == ["operation", *KINDS]
    assert [row[0] for row in rows] == [f"`{operation.name}`" for operation in OPERATIONS]
    cells = [cell for row in rows for cell in row[1:]]
    assert len(cells) == len(KINDS) * len(OPERATIONS)
    for cell in cells:
        torch_has, theirs, ours = map(int, ["0", "0", "0"] if cell == "-" else cell.split())
        assert theirs <= ours <= torch_has <= len(DTYPES) * len(MASKED), cell


def test_a_second_derivative_that_torch_lacks():
    """A verdict like others: an error with a report, or the answer no."""
    matrix = torch.eye(3, dtype=torch.float64).to_sparse_csr().requires_grad_()
    inputs = (matrix, torch.ones(3, 3, dtype=torch.float64, requires_grad=True))
    with pytest.raises(covector.GradcheckError, match="UNSUPPORTED") as caught:
        covector.gradgradcheck(torch.sparse.mm, inputs, masked=True)
    assert caught.value.report.outcome is Outcome.UNSUPPORTED
    assert "does not have an operation of this backward on CSR tensors" in caught.value.report.worst.summary
    assert covector.gradgradcheck(torch.sparse.mm, inputs, masked=True, raise_exception=False) is False


def test_a_product_that_torch_lacks():
    blocks = torch.eye(4, dtype=torch.float64).to_sparse_bsr((2, 2)).requires_grad_()
    dense = torch.ones(4, 4, dtype=torch.float64, requires_grad=True)
    report = covector.check(lambda a, b: a @ b, (blocks, dense), masked=True)
    assert report.outcome is Outcome.UNSUPPORTED
    assert report.worst.summary == "torch does not have addmm for Strided + SparseBsc @ Strided"
