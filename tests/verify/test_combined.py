"""Functions that look elementwise to the first look, and what must not hide there."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import covector
from watched import Counted

N = 150


def given(forward: Callable[..., Tensor], backward: Callable[..., Tensor | tuple[Tensor, ...]]):
    """A function with this forward and this backward, which gets the cotangent and the inputs."""

    class Given(Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return forward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            return backward(cotangent, *ctx.saved_tensors)

    return Given.apply


def point(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def one_off(values: Tensor, by: float) -> Tensor:
    values = values.clone()
    values.view(-1)[values.numel() // 3] += by
    return values


WRONG = {
    "lacks a small entry beside large ones": (
        given(lambda x: 1e4 * x.sin() + 1e-3 * x.roll(1), lambda v, x: 1e4 * v * x.cos()),
        (N,),
    ),
    "has an entry too many": (
        given(torch.sin, lambda v, x: v * x.cos() + 1e-3 * v.roll(1)),
        (N,),
    ),
    "lacks one entry": (
        given(
            lambda x: torch.cat([x[:1].exp() + 1e-3 * x[-1:], x[1:].exp()]),
            lambda v, x: v * x.exp(),
        ),
        (N,),
    ),
    "is transposed": (
        given(lambda x: x.sin() + x.roll(1), lambda v, x: v * x.cos() + v.roll(1)),
        (N,),
    ),
    "one entry is off": (
        given(torch.sin, lambda v, x: v * one_off(x.cos(), 1e-3)),
        (N,),
    ),
    "two entries of a column cancel in their sum": (
        given(
            lambda x: x.expand(N, N).sin(),
            lambda v, x: (v * x.cos()).sum(0) + 1e-3 * (v[0] - v[1]),
        ),
        (N,),
    ),
}

WRONG_PAIRS = {
    "a broadcast input is off by one row": given(
        lambda x, y: x.exp() * y,
        lambda v, x, y: ((v * x.exp() * y).sum(1, keepdim=True), (one_off(v, 1e-2) * x.exp()).sum(0)),
    ),
    "the gradients are exchanged": given(
        lambda x, y: x.exp() * y.exp().sum(),
        lambda v, x, y: ((v * y.exp()).sum(1, keepdim=True), (v * x.exp() * y.exp()).sum(0)),
    ),
}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_wrong(name, fast):
    function, shape = WRONG[name]
    assert not covector.gradcheck(function, point(*shape), fast_mode=fast, raise_exception=False)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", WRONG_PAIRS)
def test_wrong_with_broadcasting(name, fast):
    inputs = (point(N // 3, 1), point(N // 3))
    assert not covector.gradcheck(WRONG_PAIRS[name], inputs, fast_mode=fast, raise_exception=False)


@pytest.mark.parametrize("fast", [False, True])
def test_a_missing_conjugate(fast):
    z = point(N, dtype=torch.complex128)
    right = given(lambda z: z * z, lambda v, z: 2 * v * z.conj())
    wrong = given(lambda z: z * z, lambda v, z: 2 * v * z)
    assert covector.gradcheck(right, z, fast_mode=fast)
    assert not covector.gradcheck(wrong, z, fast_mode=fast, raise_exception=False)


RIGHT = {
    "elementwise": (torch.sin, [(N,)]),
    "steep": (torch.tan, [(20, 20)]),
    "complex output": (lambda x: torch.polar(x.exp(), x), [(N,)]),
    "broadcast": (torch.atan2, [(12, 1, 7), (9, 1)]),
    "two outputs": (lambda x: (x.sin(), (x.cos(), x.exp())), [(N,)]),
    "a scalar beside a tensor": (torch.mul, [(), (N,)]),
    "not elementwise at all": (lambda x: x.softmax(0), [(N,)]),
    "not everywhere elementwise": (lambda x: x + x.roll(1).sin(), [(N,)]),
}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_right(name, fast):
    function, shapes = RIGHT[name]
    assert covector.gradcheck(function, tuple(point(*shape) for shape in shapes), fast_mode=fast)


def calls_of(function, *shapes):
    report = covector.check(function, tuple(point(*shape) for shape in shapes))
    assert report
    return report.evaluations


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.sin, [(5_000,)]),
        (torch.hypot, [(100, 1), (70,)]),
        (lambda x: x.softmax(1), [(100, 10)]),
        (lambda x: x.sin().sum(), [(500,)]),
        (lambda x, y: x * y * (1.0 if x.sum().item() < 1e9 else 2.0), [(3, 500), (500,)]),
    ],
    ids=["elementwise", "broadcast", "rows", "one output", "cannot be batched"],
)
def test_four_directions_take_nine_runs_whatever_the_function_is(function, shapes):
    """The graph, and two for each direction."""
    assert calls_of(function, *shapes) == 9


@torch.library.custom_op("covector_tests::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    """A registered operator: in a batch, torch applies it point by point."""
    cube_calls.append(x.shape)
    return x**3


cube_calls: list[torch.Size] = []
cube.register_autograd(
    lambda ctx, cotangent: 3 * ctx.saved_tensors[0] ** 2 * cotangent,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_an_operator_without_a_batching_rule_is_not_batched():
    """It would be applied point by point, and torch would say so."""
    x = point(40)
    cube_calls.clear()
    assert covector.gradcheck(lambda x: cube(x).flip(0), x)
    assert len(cube_calls) == 9
    with pytest.raises(covector.GradcheckError):
        covector.gradcheck(lambda x: cube(x) + 1e-3 * x.detach(), x, fast_mode=True)


@pytest.mark.parametrize("fast", [False, True])
def test_a_scalar_beside_a_steep_output(fast):
    """Steep enough for the probes to leave it open."""
    x = (1e-3 * torch.tensor([[-1.1, -1.0], [1.6, -1.4]], dtype=torch.float64)).requires_grad_()
    assert covector.gradcheck(lambda x: (1e3 * cube(1e3 * x).sin(), 1.5 * x.sum()), x, fast_mode=fast)


def test_torch_makes_no_remarks_on_operators_without_a_batching_rule(capfd):
    """It would write one to standard error for every batch."""
    assert covector.gradcheck(cube, point(5))
    assert capfd.readouterr().err == ""


@torch.library.custom_op("covector_tests::slope", mutates_args=())
def slope(x: Tensor) -> Tensor:
    """The sine, whose backward has two entries too many, such that their cotangents nearly cancel."""
    return x.sin()


def _slope_backward(ctx, cotangent):
    wrong = torch.zeros_like(cotangent)
    wrong[2] = 2e-4 * (cotangent[0] + cotangent[1])
    return cotangent * ctx.saved_tensors[0].cos() + wrong


slope.register_autograd(
    _slope_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


@pytest.mark.parametrize("fast", [False, True])
def test_entries_whose_cotangents_nearly_cancel(fast):
    x = torch.tensor([0.3, 0.5, 0.7], dtype=torch.float64, requires_grad=True)
    assert not covector.gradcheck(slope, x, fast_mode=fast, raise_exception=False)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("size", [3, 200])
def test_a_backward_that_rounds_its_cotangent_is_not_linear(size, fast):
    """Of unit cotangents, which are not rounded, every row is right."""
    rounding = given(torch.sin, lambda v, x: v.bfloat16().double() * x.cos())
    assert not covector.gradcheck(rounding, point(size), fast_mode=fast, raise_exception=False)


def test_what_it_is_about_a_cotangent_is_said_where_others_add_up():
    """Else it is no matter of that cotangent: one that is rounded adds up with no other."""
    expanded = given(torch.sin, lambda v, x: (2 if v.stride() == (0,) else 1) * v * x.cos())
    assert "for a cotangent that is expanded" in " ".join(str(covector.check(expanded, point(6))).split())
    rounded = given(torch.sin, lambda v, x: (v * x.cos()).bfloat16().double())
    said = " ".join(str(covector.check(rounded, point(6))).split())
    assert "the pullback of a sum is not the sum of the pullbacks" in said


def batchable(
    forward: Callable[..., Tensor],
    backward: Callable[..., Tensor],
    rule: Callable[..., tuple[Tensor, int]] | None = None,
):
    """The same as `given`, by a Function that can be batched: by this rule, or by one that torch makes."""

    class Given(Function):
        generate_vmap_rule = rule is None

        @staticmethod
        def forward(*inputs):
            return forward(*inputs)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, *cotangents):
            return backward(*cotangents, *ctx.saved_tensors)

    if rule is not None:
        Given.vmap = staticmethod(rule)
    return Given.apply


@pytest.mark.parametrize("size", [5, 500])
def test_a_batching_rule_that_loses_points_accuses_nobody(size):
    lost = batchable(torch.sin, lambda v, x: v * x.cos(), lambda info, dims, x: (x[:1].sin(), 0))
    assert covector.gradcheck(lost, point(size))


def test_one_row_is_pulled_back_less_often():
    """Of a single output every cotangent is a multiple of any other."""

    def pulls(function):
        count = []
        counted = batchable(function, lambda v, x: count.append(v) or v * torch.ones_like(x))
        assert covector.gradcheck(counted, point(4), check_undefined_grad=False)
        return len(count)

    repeated = 4 - 1  # rows that are pulled back again, in case they differ from run to run
    assert pulls(lambda x: x.sum()) < pulls(lambda x: x.clone()) - repeated


def spread(largest: float, *shape: int) -> Tensor:
    x = torch.ones(shape, dtype=torch.float64)
    x[0] = largest
    return x.requires_grad_()


def lacks(entry: float):
    """An entry of the second input for the first output that the backward does not know of."""
    return batchable(lambda x: torch.cat([2 * x[:1] + entry * x[1:2], 2 * x[1:]]), lambda v, x: 2 * v)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(("largest", "entry"), [(1e3, 1e-4), (1e6, 0.1), (1e8, 5.0)])
def test_a_long_step_does_not_hide_what_a_short_one_would_show(largest, entry, fast):
    assert not covector.gradcheck(lacks(entry), spread(largest, N), fast_mode=fast, raise_exception=False)


def test_nor_along_rows():
    wrong = batchable(
        lambda x: x.sum(1) + torch.cat([x[1:2, 0], torch.zeros(99, dtype=x.dtype)]),
        lambda v, x: v[:, None].expand_as(x),
    )
    assert not covector.gradcheck(wrong, spread(1e7, 100, 4), raise_exception=False)


def test_nor_in_a_report_on_many_cells():
    wrong = batchable(
        lambda x: torch.cat([2 * x[:1] + 0.05 * x[1:2], 2 * x[1:]]), lambda v, x: 2 * (1 + 1e-4) * v
    )
    assert not covector.check(wrong, spread(1e4, 1000))


@pytest.mark.parametrize("fast", [False, True])
def test_rounding_of_a_large_entry_hides_no_small_one(fast):
    wrong = batchable(lambda x: torch.cat([1e9 * (x - 1), 0.1 * x]), lambda v, x: 1e9 * v[:1] + 0.4 * v[1:])
    assert not covector.gradcheck(wrong, spread(1.0, 1), fast_mode=fast, raise_exception=False)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("inner", [torch.bfloat16, torch.float16, torch.float32])
def test_a_cast_inside_hides_nothing(inner, fast):
    log = batchable(torch.log, lambda v, x: -3 * v / x)
    x = spread(1.0, 2)
    assert not covector.gradcheck(
        lambda x: log(x.to(inner)).double(), x, fast_mode=fast, raise_exception=False
    )


def skipped(v: Tensor, x: Tensor) -> Tensor:
    """Rows without a cotangent are left out, and what is left is put in the wrong place."""
    keep = v.abs().sum(1) > 0
    if bool(keep.all()):
        return v * x.cos()
    out = torch.zeros_like(x)
    out[: int(keep.sum())] = (v * x.cos())[keep]
    return out


NOT_LINEAR = {
    "NaN for a zero": lambda v, x: v * v / v * x.cos(),
    "skips zeros": skipped,
    "clips outliers": lambda v, x: v.clamp(-3 * v.std(), 3 * v.std()) * x.cos(),
    "zero for any zero": lambda v, x: torch.where((v == 0).any(), v * 0, v) * x.cos(),
    "drops the sign": lambda v, x: v.abs() * x.cos(),
    "drops the negative": lambda v, x: v.relu() * x.cos(),
}


@pytest.mark.parametrize("shape", [(20, 10), (40, 30)])
@pytest.mark.parametrize("name", NOT_LINEAR)
def test_a_backward_that_is_right_for_dense_cotangents_only(name, shape):
    wrong = given(torch.sin, NOT_LINEAR[name])
    assert not covector.gradcheck(wrong, point(*shape), raise_exception=False)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fast", [False, True])
def test_the_sign_of_a_single_cotangent(fast, seed):
    wrong = given(lambda x: x.sin().sum(), lambda v, x: v.relu() * x.cos())
    assert not covector.check(wrong, point(3), fast_mode=fast, seed=seed)


def test_a_short_cut_where_one_of_two_cotangents_is_zero():
    wrong = batchable(
        lambda x: (x.sin(), x.exp()),
        lambda a, b, x: a * 0 if not b.any() else a * x.cos() + b * x.exp(),
    )
    assert not covector.gradcheck(wrong, point(20), raise_exception=False)


def increasing(x: Tensor) -> Tensor:
    if (x.detach().diff() <= 0).any():
        raise ValueError("not sorted")
    return x.cumsum(0)


def test_a_guess_that_leaves_the_domain_is_no_error():
    x = torch.arange(200, dtype=torch.float64).mul(1.5e-6).requires_grad_()
    assert covector.gradcheck(increasing, x)


def test_a_jvp_that_writes_to_its_tangent_spoils_no_other_check():
    class Writes(Function):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx, tangent):
            result = tangent.clamp(-1, 1) * ctx.saved_tensors[0].cos()
            tangent.zero_()
            return result

    x = point(5)
    first, second = (
        covector.check(Writes.apply, x, check_forward_ad=True, check_backward_ad=False) for _ in range(2)
    )
    assert not first
    assert not second
    assert [f.outcome for f in first.findings] == [f.outcome for f in second.findings]


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_backward_that_writes_to_its_cotangent_spoils_no_other_check(fast_mode):
    """Random cotangents are the same for every check of this shape, and each backward gets a copy."""

    def written(cotangent: Tensor, x: Tensor) -> Tensor:
        return cotangent.mul_(x.cos())

    x = point(7)
    report = covector.check(given(torch.sin, written), x, fast_mode=fast_mode)
    assert "writes to its cotangent" in str(report)
    for _ in range(2):
        assert covector.gradcheck(torch.sin, x, fast_mode=fast_mode)
        assert covector.gradcheck(given(torch.sin, lambda v, x: v * x.cos()), x, fast_mode=fast_mode)


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_pole_next_to_the_point_does_not_end_batches(fast_mode):
    """There values are not around the known one, but a batch still gives what single runs give."""
    counted = Counted(torch.tan)
    x = torch.linspace(-1, 1, N, dtype=torch.float64)
    x[0] = torch.pi / 2 - 1e-5
    assert covector.gradcheck(counted, x.requires_grad_(), fast_mode=fast_mode)
    assert counted.runs < N


def test_slices_of_a_batch_are_made_contiguous_where_they_have_to_be():
    """Some operations refuse other ones, and would be evaluated one by one."""
    shapes = []

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        shapes.append(x.shape)
        return torch.nn.functional.group_norm(x, 1, weight, bias)

    assert covector.check(function, (point(2, 6), point(6), point(6)), probes=0)
    assert len(shapes) < 7
