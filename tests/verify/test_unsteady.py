"""Outputs and tangents of another kind than they should be, and batches of derivatives: what a check says."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import covector
from covector.errors import UnsteadyOutputError

each_speed = pytest.mark.parametrize("fast", [False, True], ids=["exhaustive", "fast"])
edge = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
pair = tuple(torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64, requires_grad=True) for _ in range(2))


# Outputs that change next to the point

CHANGING = {
    "shape": (lambda x: x.sum().expand(2 if x[0] > 1 else 3), "torch.float64 of shape (2,)"),
    "dtype": (lambda x: (x * 2).float() if x[0] > 1 else x * 2, "torch.float32 of shape (2,)"),
    "dtype of integers beside": (
        lambda x: (x * 2, torch.tensor(1, dtype=torch.int32 if x[0] > 1 else torch.int64)),
        "torch.int32 of shape ()",
    ),
    "shape of integers beside": (
        lambda x: (x * 2, (x > 1).nonzero()),
        "torch.int64 of shape (2, 1)",
    ),
}


@each_speed
@pytest.mark.parametrize(("function", "text"), CHANGING.values(), ids=CHANGING.keys())
def test_an_output_that_changes_nearby(function: Any, text: str, fast: bool) -> None:
    """The class is torch's, and a GradcheckError; the text says what the output becomes."""
    with pytest.raises(AssertionError):
        torch.autograd.gradcheck(function, edge, fast_mode=fast)
    with pytest.raises(UnsteadyOutputError) as caught:
        covector.gradcheck(function, edge, fast_mode=fast)
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, torch.autograd.gradcheck.__globals__["GradcheckError"])
    assert text in " ".join(str(caught.value).split())
    assert caught.value.report.findings[0].check == "purity"


@each_speed
def test_an_output_that_changes_nearby_where_an_answer_is_asked_for(fast: bool) -> None:
    """`raise_exception=False` returns False; torch raises all the same."""
    function = CHANGING["dtype"][0]
    with pytest.raises(AssertionError):
        torch.autograd.gradcheck(function, edge, raise_exception=False, fast_mode=fast)
    assert covector.gradcheck(function, edge, raise_exception=False, fast_mode=fast) is False


# Tangents of another kind


def doubling(push: Any) -> Any:
    """2 x, with a jvp of one's own."""

    class Doubling(Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> Tensor:
            return 2 * cotangent

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            return push(tangent)

    return Doubling.apply


TANGENTS = {
    "right": (lambda t: 2 * t, True),
    "complex": (lambda t: torch.complex(2 * t, 0 * t), False),
    "float32": (lambda t: (2 * t).float(), True),
}


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@each_speed
@pytest.mark.parametrize(("push", "right"), TANGENTS.values(), ids=TANGENTS.keys())
def test_the_dtype_of_a_tangent(push: Any, right: bool, fast: bool) -> None:
    """With `check_grad_dtypes` a real output has a real tangent; without, its numbers decide."""
    keywords = {"check_forward_ad": True, "raise_exception": False, "fast_mode": fast}
    for library in (torch.autograd, covector):
        assert library.gradcheck(doubling(push), edge, check_grad_dtypes=True, **keywords) is right
        assert library.gradcheck(doubling(push), edge, **keywords) is True


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_the_dtype_of_a_tangent_is_named() -> None:
    report = covector.check(
        doubling(TANGENTS["complex"][0]), edge, check_forward_ad=True, check_grad_dtypes=True
    )
    (found,) = [found for found in report.findings if found.check == "tangent kind"]
    assert found.summary == "the tangent of output has dtype torch.complex128, expected torch.float64"


# Batches


class Tripled(Function):
    """2 g, but 3 g in a batch."""

    @staticmethod
    def forward(g: Tensor) -> Tensor:
        return 2 * g

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return 2 * cotangent

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return 2 * tangent

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any], g: Tensor) -> tuple[Tensor, Any]:
        return 3 * g, in_dims[0]


class Wrong(Function):
    """2 x, of which a batch of derivatives is 3."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return Tripled.apply(cotangent)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Any:
        return Tripled.apply(tangent)


def second_by_second(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * 3, Wrong.apply(y) + x


BATCHES = {
    "check_batched_grad": {"check_batched_grad": True},
    "check_batched_forward_grad": {"check_batched_forward_grad": True, "check_forward_ad": True},
}


@pytest.mark.parametrize(("keyword", "keywords"), BATCHES.items(), ids=BATCHES.keys())
def test_which_batch_is_wrong(keyword: str, keywords: dict[str, bool]) -> None:
    """The output and the input are named, with both numbers and the keyword; nothing else is accused."""
    report = covector.check(second_by_second, pair, **keywords)
    (found,) = [found for found in report.findings if found.outcome == "failed"]
    assert found.check == ("batched gradients" if "forward" not in keyword else "batched forward gradients")
    assert found.summary.startswith("vmap over d output[1] / d y gives another result than a loop: got ")
    got, expected = (
        float(word.partition(" ")[2]) for word in found.summary.split(": ")[1].split(", at")[0].split(", ")
    )
    assert got == pytest.approx(1.5 * expected, rel=1e-5)
    assert f"{keyword}=False" in found.advice


@pytest.mark.parametrize("fast", [False, True])
def test_a_wrong_batch_that_was_not_asked_for(fast: bool) -> None:
    """Derivatives may be taken in batches, but a batch is believed only if it agrees with a single one."""
    for library in (torch.autograd, covector):
        assert library.gradcheck(second_by_second, pair, check_forward_ad=True, fast_mode=fast)


class Alone(Function):
    """2 x, whose derivatives look at a number."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return 2 * cotangent if cotangent.sum().item() < torch.inf else cotangent

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return 2 * tangent if tangent.sum().item() < torch.inf else tangent


@pytest.mark.parametrize(("keyword", "keywords"), BATCHES.items(), ids=BATCHES.keys())
def test_a_batch_that_raises(keyword: str, keywords: dict[str, bool]) -> None:
    """The error comes from its cause, and names the keyword that asked for the batch."""
    for library in (torch.autograd, covector):
        with pytest.raises(torch.autograd.gradcheck.__globals__["GradcheckError"]) as caught:
            library.gradcheck(Alone.apply, edge, **keywords)
        assert isinstance(caught.value.__cause__, RuntimeError)
    assert f"Pass {keyword}=False" in str(caught.value)


def test_a_backward_that_raises() -> None:
    """The error comes from what it raised."""

    def fails(cotangent: Tensor) -> Tensor:
        raise KeyError("lost")

    x = edge.detach().clone().requires_grad_()

    def function(x: Tensor) -> Tensor:
        y = 2 * x
        y.register_hook(fails)
        return y * 1

    with pytest.raises(covector.GradcheckError, match="lost") as caught:
        covector.gradcheck(function, x)
    assert isinstance(caught.value.__cause__, KeyError)
