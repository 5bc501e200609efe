"""The door: what it takes, what it says of bad input, what it costs, and what stays as it was."""

import json
import re

import pytest
import torch

import covector
import kernel_families as families
from covector.errors import ArgumentTypeError, ArgumentValueError, GradcheckError
from covector.kernels.limits import largest_quotient, largest_ratio
from covector.verify.finding import Outcome
from drawn import randn
from kernel_table import entry
from watched import Counted, Terminal, errors_shown

F32, BF16 = torch.float32, torch.bfloat16


def rows(report, lens):
    return [row for row in report.tables[1].rows if row[0] == lens]


def product(inputs, outputs):
    """A kernel of so many inputs and outputs, the reference, and how often it was run."""
    calls = {"forward": 0, "backward": 0}

    def reference(*xs):
        y = xs[0].sin()
        for x in xs[1:]:
            y = y * x.sin()
        return y if outputs == 1 else (y, xs[0].cos())

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *xs):
            calls["forward"] += 1
            ctx.save_for_backward(*xs)
            return reference(*xs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g, h=None):
            calls["backward"] += 1
            xs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            with torch.enable_grad():
                return torch.autograd.grad(reference(*xs), xs, g if h is None else (g, h))

    return Product.apply, reference, calls


# torch.compile runs what it traced, forward and backward, and not the Function.
COMPILED = 2

# Calls that torch refuses before they reach a Function without rules: nested, batched, in forward mode.
TURNED_AWAY = 10


@pytest.mark.parametrize("size", [100, pytest.param(1000, marks=pytest.mark.sweep)])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (3, 1), (2, 2), (5, 1)])
def test_a_large_kernel_is_run_60_times_at_most(size, inputs, outputs):
    """Forward and backward together, with every lens, and with the gradient check in float64."""
    kernel, reference, calls = product(inputs, outputs)
    report = covector.check_kernel(kernel, reference, tuple(randn(size, size, seed=i) for i in range(inputs)))
    assert report, report
    assert 40 < calls["forward"] + calls["backward"] + COMPILED <= 60, calls
    assert 0 <= report.evaluations + COMPILED // 2 - calls["forward"] <= TURNED_AWAY


def with_every_rule():
    """A Function that torch can batch, push forward and differentiate twice, and how often it was run."""
    calls = {"forward": 0, "backward": 0}

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(x):
            calls["forward"] += 1
            return torch.sin(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, g):
            calls["backward"] += 1
            return g * torch.cos(ctx.saved_tensors[0])

        @staticmethod
        def jvp(ctx, t):
            calls["backward"] += 1
            return t * torch.cos(ctx.saved_tensors[0])

        @staticmethod
        def vmap(info, in_dims, x):
            return Sine.apply(x), in_dims[0]

    return Sine.apply, calls


def as_operator():
    """An operator of torch.library, whose registration is asked about too."""
    calls = {"forward": 0, "backward": 0}

    @torch.library.custom_op("covector_tests::counted_sine", mutates_args=())
    def sine(x: torch.Tensor) -> torch.Tensor:
        calls["forward"] += 1
        return torch.sin(x)

    def backward(ctx, g):
        calls["backward"] += 1
        return g * torch.cos(ctx.saved_tensors[0])

    sine.register_fake(torch.empty_like)
    sine.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    return sine, calls


# The backward of a backward is torch's own.
TWICE = 1


@pytest.mark.parametrize("make", [with_every_rule, as_operator])
def test_a_large_kernel_of_which_every_lens_has_something_to_ask_is_run_60_times_at_most(make):
    """All modes, second derivatives, the questions about an operator."""
    kernel, calls = make()
    report = covector.check_kernel(kernel, lambda x: torch.sin(x), randn(10, 8, 8, 8))
    assert report, report
    # An operator is counted when it is compiled too, and its backward when it is traced.
    compiled = COMPILED if make is with_every_rule else 0
    assert 40 < calls["forward"] + calls["backward"] + compiled + TWICE <= 60, calls


def test_every_mode_of_a_plain_function_is_run():
    """A mode that never works would be unsupported for everybody, and nobody would know."""
    report = covector.check_kernel(torch.nn.functional.silu, torch.nn.functional.silu, randn(6, 9))
    assert {row[1]: row[3] for row in rows(report, "modes")} == {
        "torch.compile (fullgraph)": "passed",
        "torch.vmap": "passed",
        "forward mode": "passed",
        "torch.func": "passed",
        "autocast": "passed",
        "no_grad": "passed",
        "inference mode": "passed",
        "activation checkpointing": "passed",
        "CUDA graphs": "not looked at",
    }


def test_the_inputs_of_the_caller_stay_as_they_are():
    """Values, gradients, layout and the random state; also where a kernel writes and where it raises."""
    x = randn(12, 20).detach()[:, ::2].requires_grad_()
    before, state = x.detach().clone(), torch.get_rng_state()

    def broken(x):
        x.detach().zero_()
        raise RuntimeError("no such device")

    report = covector.check_kernel(broken, torch.sin, x)
    assert "no such device" in report.findings[0].summary
    covector.check_kernel(torch.sin, torch.sin, x)
    assert torch.equal(x, before)
    assert x.grad is None
    assert x.stride() == (20, 2)
    assert torch.equal(state, torch.get_rng_state())


def test_a_reference_that_does_not_run_in_float64():
    """It is named, with what to do; lenses that need no truth go on."""

    def reference(x):
        return x @ torch.ones(4, 4, dtype=F32)

    report = covector.check_kernel(lambda x: x @ torch.ones(4, 4), reference, randn(8, 4))
    found = report.findings[0]
    assert found.outcome is Outcome.INCONCLUSIVE
    assert {row[0] for row in report.tables[1].rows if row[3] == "passed"} == {"again", "in place"}
    assert {f.check for f in report.findings} == {"reference", "again", "in place"}
    assert "no golden values" in rows(report, "layout")[0][5]
    assert found.summary.startswith(
        "the reference raised RuntimeError: expected m1 and m2 to have the same dtype"
    )
    assert "follows the dtype of its inputs" in found.advice


BAD_KERNELS = {
    "another shape": (
        lambda x: torch.sin(x)[:-1],
        "output: shape (8, 6) and float32 in the reference, shape (7, 6)",
    ),
    "another dtype": (lambda x: torch.sin(x).double(), "and float64 in the kernel"),
    "two outputs": (lambda x: (torch.sin(x), x), "2 outputs, the reference has 1"),
    "no tensor": (lambda x: 3.0, "a float, the reference gives a tensor"),
    "no gradient": (lambda x: torch.sin(x.detach()), "grad x: there is none, the reference has one"),
    "NaN": (lambda x: torch.sin(x) / (x != x[0, 0]), "where the reference is finite"),
}


@pytest.mark.parametrize("name", BAD_KERNELS)
def test_what_differs_in_kind_is_said(name):
    """Shapes, dtypes, numbers of outputs, gradients, infinities."""
    kernel, text = BAD_KERNELS[name]
    report = covector.check_kernel(kernel, lambda x: torch.sin(x), randn(8, 6), lenses=["again"])
    assert report.outcome is Outcome.FAILED
    assert text in report.findings[0].summary


def test_a_kernel_that_raises_under_one_lens():
    """The lens says so, and the others go on."""

    def kernel(x):
        return torch.sin(x.view(-1)).view(x.shape)

    report = covector.check_kernel(kernel, torch.sin, randn(12, 8))
    assert {f.check for f in report.findings if f.outcome is Outcome.FAILED} == {"layout"}
    assert (
        "raised RuntimeError: view size is not compatible"
        in next(f for f in report.findings if f.check == "layout").summary
    )
    assert all(row[3] in ("passed", "not looked at", "unsupported") for row in rows(report, "again"))
    assert len({row[0] for row in report.tables[1].rows}) == 9


VACUOUS = {
    "zero": (lambda x: x * 0, "it is zero everywhere"),
    "constant": (lambda x: torch.ones_like(x) + 0 * x, "it does not depend on the inputs"),
    "empty": (lambda x: x[:0], "it has no entries"),
    "unused": (lambda x: torch.ones(3), "does not depend on the inputs"),
}


@pytest.mark.parametrize("name", VACUOUS)
def test_what_would_pass_anyway_is_not_passed(name):
    """And is said."""
    function, text = VACUOUS[name]
    report = covector.check_kernel(function, function, randn(8, 6), lenses=["again"])
    assert report.outcome is Outcome.INCONCLUSIVE
    assert any(text in f.summary for f in report.findings), report


def test_a_right_sum_passes():
    """Its gradient has equal entries, but depends on the cotangent."""
    assert covector.check_kernel(lambda x: x.sum(-1), lambda x: x.sum(-1), randn(8, 6), lenses=["again"])


def test_an_ill_conditioned_problem_is_inconclusive():
    """The condition is measured, and inputs are named that would settle it."""

    def function(x):
        return torch.sin(1000 * x)

    x = randn(24, 40, dtype=BF16)
    report = covector.check_kernel(function, function, x, lenses=["again"])
    found = report.findings[0]
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "ill-conditioned: the noise floor is" in found.summary
    assert found.advice.startswith("With these inputs times 0.0625 the noise floor is")
    smaller = (x.detach() * 0.0625).requires_grad_()
    assert covector.check_kernel(function, function, smaller, lenses=["again"])


def test_a_maximum_of_coarse_numbers_is_not_ill_conditioned():
    """A few entries of its gradient hang on one rounding; the others are judged."""

    def right(x):
        return x.reshape(6, 4, 2, 5, 2).amax((2, 4))

    def reference(x):
        return torch.nn.functional.max_pool2d(x[None], 2)[0]

    x = randn(6, 8, 10, dtype=BF16)
    assert covector.check_kernel(right, reference, x, lenses=["in place"])

    def wrong(x):
        return right(x) * torch.tensor([1, 1, 1, 1, 1.1]).to(x.dtype)

    assert covector.check_kernel(wrong, reference, x, lenses=["in place"]).outcome is Outcome.FAILED


def test_a_wrong_kernel_says_where():
    """The slices, the entries with both errors in ulp, and the rule that fits."""
    one = entry("attention", "scale of one head", torch.float16)
    report = covector.check_kernel(one.kernel, one.reference, one.inputs)
    found = report.findings[0]
    assert "of axis 1 (of size 3)" in found.diagnoses[0].evidence
    assert found.diagnoses[0].evidence.startswith("`grad k`: what is wrong lies at the last index of axis 1")
    slices, entries = found.tables
    assert slices.rows[0][0] == "grad k[:, 2, :, :]"
    assert slices.rows[0][1] > slices.rows[0][2]
    assert entries.columns == ("entry", "kernel", "golden", "error [ulp]", "reference's [ulp]", "floor [ulp]")


DIAGNOSED = [
    (lambda x: 2 * torch.sin(x), "factor", "2 x the golden values"),
    (lambda x: -torch.sin(x), "factor", "wrong sign"),
    (lambda x: torch.sin(x.T), "transposed", "the last two axes are exchanged"),
    (lambda x: torch.sin(x).roll(1, 0), "displaced", "one place later along axis 0"),
    (lambda x: 0 * x, "zero", "zero everywhere"),
    (lambda x: torch.sin(x) + torch.sin(x).mean(1, keepdim=True), "missing term", "the same along axis 1"),
    (lambda x: torch.sin(x) * (1 + x[:, :1]), "multiple", "a multiple of the golden values"),
    (lambda x: torch.sin(x) + x * x[:, :1], "multiple", "for each line along axis 1, a multiple of `x`"),
    (
        lambda x: torch.sin(x) * (torch.arange(24) < 20) + (torch.arange(24) < 20),
        "never written",
        "the last 4 indices, from 20, the tail of a block of 4 of axis 1",
    ),
]


@pytest.mark.parametrize(("kernel", "rule", "text"), DIAGNOSED, ids=[f"{d[1]} {d[2]}" for d in DIAGNOSED])
def test_the_mistake_is_named(kernel, rule, text):
    """As in a gradient check."""
    report = covector.check_kernel(kernel, lambda x: torch.sin(x), randn(24, 24), lenses=["again"])
    first = report.findings[0].diagnoses[0]
    assert (first.rule, text in first.evidence) == (rule, True)


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        (slice(0, 16), "the sum over the first 16 of 20 rows of the output"),
        (slice(8, None), "leaves the first 8 of 20 rows of the output out of a sum"),
    ],
)
def test_a_sum_that_lacks_some_rows_is_named(kept, text):
    """The gradient of a bias, of which a block is lost."""

    class Shifted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bias):
            return x + bias

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return g, g[kept].sum(0)

    report = covector.check_kernel(
        Shifted.apply, lambda x, bias: x + bias, (randn(20, 9), randn(9)), lenses=["in place"]
    )
    assert text in report.findings[0].diagnoses[0].evidence, report


def test_modules_share_their_parameters():
    """Those of the kernel are given to both."""

    class Fused(torch.nn.Linear):
        def forward(self, x):
            return (x[..., None, :] * self.weight).sum(-1) + self.bias

    torch.manual_seed(0)
    kernel, reference = Fused(6, 5), torch.nn.Linear(6, 5)
    report = covector.check_kernel(kernel, reference, randn(7, 6), lenses=["requires grad"])
    assert report, report
    assert [row[0] for row in report.tables[0].rows] == [
        "output",
        "grad params['weight']",
        "grad params['bias']",
        "grad x",
    ]
    with pytest.raises(ArgumentValueError, match="parameters of the same names and shapes"):
        covector.check_kernel(kernel, torch.nn.Linear(6, 4), randn(7, 6))


def test_trees_keywords_and_several_dtypes():
    """A dict of inputs, a keyword, two dtypes in one report."""

    def kernel(batch, *, shift):
        return {"y": batch["x"] * batch["w"] + shift}

    inputs = ({"x": randn(12, 10), "w": randn(10, seed=1)},)
    report = covector.check_kernel(
        kernel, kernel, inputs, {"shift": 1.0}, dtypes=[torch.bfloat16, torch.float32], lenses=["layout"]
    )
    assert report, report
    assert {row[1] for row in report.tables[0].rows} == {"bfloat16", "float32"}
    assert {row[0] for row in report.tables[0].rows} == {"output['y']", "grad batch['x']", "grad batch['w']"}


def test_outputs_alone_where_nothing_requires_grad():
    """A kernel for inference."""
    report = covector.check_kernel(
        torch.sin, torch.sin, randn(8, 6).detach(), lenses=["layout", "again", "in place"]
    )
    assert report, report
    assert [row[0] for row in report.tables[0].rows] == ["output"]


def test_complex_kernels():
    """Both parts of a number are compared."""
    x = torch.view_as_complex(randn(12, 10, 2).detach()).requires_grad_()
    assert covector.check_kernel(lambda x: x * x, torch.square, x, lenses=["layout", "again"])
    report = covector.check_kernel(lambda x: (x * x).conj(), torch.square, x, lenses=["again"])
    assert report.outcome is Outcome.FAILED


def test_nondet_tol_allows_for_a_spread():
    """Which is shown in ulp."""
    count = [0]

    def kernel(x):
        count[0] += 1
        return torch.sin(x) * (1 + 1.2e-7 * (count[0] % 2))

    x = randn(12, 10)
    strict = covector.check_kernel(kernel, torch.sin, x, lenses=["again"])
    assert "ulp) from the first call" in next(f.summary for f in strict.findings if f.check == "again")
    assert covector.check_kernel(kernel, torch.sin, x, lenses=["again"], nondet_tol=1e-5)


REFUSED = [
    ({"kernel": 3}, ArgumentTypeError, "the first argument must be a function"),
    ({"reference": None}, ArgumentTypeError, "the reference must be a function of the same arguments"),
    ({"ratio": 0.5}, ArgumentValueError, "ratio must be at least 1, got 0.5"),
    ({"ratio": "3"}, ArgumentTypeError, "ratio must be a number"),
    ({"nondet_tol": -1}, ArgumentValueError, "nondet_tol must be zero or positive"),
    (
        {"lenses": ["layouts"]},
        ArgumentValueError,
        "there is no lens 'layouts'; there are layout, requires grad",
    ),
    ({"dtypes": torch.int32}, ArgumentTypeError, "dtypes must be floating-point dtypes, got torch.int32"),
    ({"dtypes": 3}, ArgumentTypeError, "dtypes must be floating-point dtypes, got 3"),
    ({"lenses": 3}, ArgumentTypeError, "lenses must be names of lenses, got 3"),
    ({"dtypes": []}, ArgumentValueError, "dtypes is empty"),
    ({"inputs": torch.arange(3)}, ArgumentTypeError, "the inputs hold no floating-point tensor"),
    ({"inputs": torch.eye(3).to_sparse()}, ArgumentTypeError, "only dense tensors can be compared"),
    ({"kwargs": [1]}, ArgumentTypeError, "kwargs must be a dict"),
    ({"seed": "x"}, ArgumentTypeError, "seed must be an int"),
]


@pytest.mark.parametrize(("change", "error", "text"), REFUSED, ids=[r[2][:40] for r in REFUSED])
def test_calls_that_make_no_sense(change, error, text):
    """Are refused before any work."""
    call = {"kernel": torch.sin, "reference": torch.sin, "inputs": torch.ones(3)} | change
    with pytest.raises(error, match=text.replace("(", r"\(").replace("[", r"\[")):
        covector.check_kernel(call.pop("kernel"), call.pop("reference"), call.pop("inputs"), **call)


def test_kernelcheck_raises():
    """With the report as text and as an attribute; or returns False."""
    with pytest.raises(GradcheckError, match=r"check_kernel\(cos\): FAILED") as caught:
        covector.kernelcheck(torch.cos, torch.sin, randn(8, 6))
    assert caught.value.report.outcome is Outcome.FAILED
    assert covector.kernelcheck(torch.cos, torch.sin, randn(8, 6), raise_exception=False) is False


def test_the_report_in_all_its_forms(tmp_path):
    """JSON and the page have the tables; the terminal shows them no wider than a hundred columns."""
    report = covector.check_kernel(torch.cos, torch.sin, randn(8, 6), lenses=["again"])
    data = json.loads(report.to_json())
    assert [table["title"] for table in data["tables"]] == ["error over noise floor", "lenses"]
    assert data["findings"][0]["tables"][0]["columns"][0] in ("slice", "entry")
    report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Error over noise floor" in page
    assert "<td>called twice</td>" in page
    assert '<td class="beyond">failed</td>' in page
    assert "Jacobians" not in page
    assert max(map(len, str(report).splitlines())) <= 100
    call = "print(covector.check_kernel(torch.cos, torch.sin, arg0, lenses=['again'], seed=0))"
    assert report.reproduce.splitlines()[-1] == call


def test_what_reproduces_a_kernel_makes_its_inputs():
    """Pasted, it gives the same findings: few numbers are written out, random ones drawn again."""
    torch.manual_seed(5)
    for inputs in (torch.tensor([0.5, 2.0]), torch.randn(8, 6, dtype=torch.bfloat16)):
        report = covector.check_kernel(torch.cos, torch.sin, inputs, lenses=["again"])
        shown = []
        exec(compile(report.reproduce, "pasted", "exec"), {"print": shown.append})
        assert [again.findings for again in shown] == [report.findings]


def test_a_function_that_makes_inputs_goes_by_its_name():
    def made(size):
        return torch.linspace(0, 1, size)

    report = covector.check_kernel(torch.cos, torch.sin, made, lenses=[])
    assert report.reproduce.endswith("(covector.check_kernel(torch.cos, torch.sin, made, lenses=[], seed=0))")


def test_what_shows_in_one_way_of_calling_alone_is_not_almost_certain():
    """Another epsilon: the right numbers as given, and a fraction of them for small inputs."""

    def norm(epsilon):
        return lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)

    report = covector.check_kernel(norm(1e-3), norm(1e-6), randn(16, 33).bfloat16(), lenses=["scale"])
    (found,) = [found for found in report.findings if found.outcome is Outcome.FAILED]
    assert found.check == "scale"
    assert "an epsilon that is not the reference's" in found.diagnoses[0].look
    assert {diagnosis.sure for diagnosis in found.diagnoses} == {"likely"}


def test_a_reproduction_names_lambdas_and_keyword_arguments():
    report = covector.check_kernel(
        lambda x, scale: x.cos() * scale,
        lambda x, scale: x.sin() * scale,
        randn(40),
        {"scale": 2.0},
        lenses=[],
    )
    assert "check_kernel(kernel, reference, x, {'scale': 2.0}, lenses=[], seed=0)" in report.reproduce
    assert str(report).count("# define first: ") == 2


def test_a_bar_names_the_step(monkeypatch):
    """On a terminal, of every dtype and every lens."""
    shown = errors_shown(monkeypatch, Terminal())
    lenses = ["layout", "again"]
    assert covector.check_kernel(torch.sin, torch.sin, randn(6, 9), dtypes=(BF16, F32), lenses=lenses)
    for step in ("outputs and gradients", "layout", "again", "gradient check in float64"):
        for dtype in ("bfloat16", "float32"):
            assert f"check_kernel(sin): {step} ({dtype})" in shown.getvalue()
    assert "8/8" not in shown.getvalue()  # the last step has begun


def test_a_reference_that_computes_in_less_than_float64_is_named():
    """Its values are no golden ones; for a dtype that is coarser still they are good enough."""

    def reference(x):
        return torch.sin(x.float()).to(x.dtype)

    report = covector.check_kernel(torch.sin, reference, randn(6, 9), lenses=["again"])
    assert report.outcome is Outcome.INCONCLUSIVE
    assert "the reference computes in float32" in report.findings[0].summary
    assert covector.check_kernel(torch.sin, reference, randn(6, 9, dtype=BF16), lenses=["again"])


OTHER_OUTPUTS = {
    "a shorter one": lambda x: x.sin()[1:],
    "two": lambda x: (x.sin(), x.cos()),
    "none": lambda x: None,
}


@pytest.mark.parametrize("name", OTHER_OUTPUTS)
def test_a_kernel_that_gives_something_else_is_reported_once(name):
    """Lenses that need no truth go on; those that do have nothing to look at, and say so."""
    report = covector.check_kernel(OTHER_OUTPUTS[name], torch.sin, randn(6, 9))
    assert [f.check for f in report.findings if f.outcome is not Outcome.PASSED] == ["as given"], report
    assert {row[3] for row in rows(report, "layout") + rows(report, "modes")} == {"not looked at"}
    assert {row[3] for row in rows(report, "again")} == {"passed", "not looked at"}


def test_a_kernel_that_raises_is_reported_once():
    """There is nothing to look at."""
    report = covector.check_kernel(lambda x: 1 / 0, torch.sin, randn(6, 9))
    assert [f.check for f in report.findings] == ["as given"]
    assert {row[3] for row in report.tables[1].rows} == {"not looked at"}


def test_limits_follow_from_the_ratio():
    """Quantiles of Fisher's distribution: simulated, at a rate that can be counted."""
    generator = torch.Generator().manual_seed(0)
    for freedom in (1, 4, 20):
        errors = torch.randn(40_000, freedom, generator=generator, dtype=torch.float64).square().mean(1)
        floors = torch.randn(40_000, 4 * freedom, generator=generator, dtype=torch.float64).square().mean(1)
        share = (torch.sqrt(9 * errors / floors) > largest_ratio(3.0, 0.01, freedom)).double().mean()
        assert 0.008 < float(share) < 0.012
        largest = torch.randn(40_000, freedom, generator=generator).abs().amax(1)
        theirs = torch.randn(40_000, 4 * freedom, generator=generator).abs().amax(1)
        assert float((3 * largest / theirs > largest_quotient(3.0, 0.01, freedom)).double().mean()) <= 0.01


@pytest.mark.sweep
def test_right_kernels_are_not_accused_over_many_seeds(capsys):
    """Unfused and differently ordered ones, in three dtypes and two sizes."""
    from kernel_table import MAKERS, OTHERS, SHAPES
    from kernel_table import randn as drawn

    accused, count = [], 0
    for seed in range(40):
        for family, others in OTHERS.items():
            for kernel in (MAKERS[family][0](), *others):
                for dtype in (F32, BF16, torch.float16):
                    inputs = drawn(*SHAPES[family], dtype=dtype, seed=seed)
                    report = covector.check_kernel(
                        kernel, MAKERS[family][1], inputs, lenses=["in place"], seed=seed
                    )
                    count += 1
                    if report.findings[0].outcome is not Outcome.PASSED:
                        accused.append(f"{family} {dtype} {seed}: {report.findings[0].summary}")
    with capsys.disabled():
        print(f"\n{len(accused)} of {count} right kernels accused", *accused, sep="\n")
    assert not accused


def test_families_are_kernels():
    """The table's kernels are Functions, so that lenses meet what people write."""
    assert families.softmax().__self__.__mro__[1] is torch.autograd.Function


def test_numbers_that_the_reference_refuses_are_left_out():
    """An expanded matrix is singular: that its solve raises is not held against the kernel."""
    generator = torch.Generator().manual_seed(0)
    matrix = (torch.eye(6) + 0.1 * torch.randn(6, 6, generator=generator)).requires_grad_()
    inverted = lambda a: torch.linalg.inv(a).sum(-1)
    solved = lambda a: torch.linalg.solve(a, torch.ones(6, dtype=a.dtype))
    report = covector.check_kernel(inverted, solved, matrix, lenses=["layout"])
    rows = {row[1]: row for row in report.tables[1].rows}
    assert rows["inputs expanded"][3] == "not looked at", report
    assert "the reference raised" in rows["inputs expanded"][5]
    assert report


@pytest.mark.parametrize("run", [1, 5, 20])
def test_a_kernel_for_which_the_memory_does_not_suffice_is_not_accused(run):
    """It may be right all the same, and the report says what could not be run."""
    kernel = Counted(torch.sin, fails_at=run, error=MemoryError)
    report = covector.check_kernel(kernel, torch.sin, randn(4), lenses=("scale", "again"))
    assert kernel.runs >= run
    assert not [finding for finding in report.findings if finding.outcome is Outcome.FAILED], report
    assert re.search("MemoryError|out of memory", report.to_json())


def test_a_function_for_which_the_memory_does_not_suffice_is_not_accused():
    """The same of `agree`."""
    report = covector.agree(Counted(torch.sin, fails_at=1, error=MemoryError), randn(4), modes=("eager",))
    assert [finding.outcome for finding in report.findings][-1] is Outcome.INCONCLUSIVE
    assert "MemoryError" in str(report)
