"""The ladder of a linear map: which rung carried a batch, and why."""

import pytest
import torch

from covector._chart import Chart
from covector._linear import Batching, Linearized, Pullback, Pushforward
from covector._tree import select_all
from covector.errors import BatchingWarning, Caller, ForwardModeWarning
from covector.transforms._door import accept_tensors, runner

x = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)


def linear_map(kind, function):
    caller, arguments = Caller("test", function), select_all((x,))
    return kind(caller, runner(caller, arguments, accept_tensors, has_aux=False), arguments)


def sine(x):
    return x.sin()


class LegacySine(torch.autograd.Function):
    """A Function without `setup_context`: no nesting level takes it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_forward(x)
        return x.sin()

    @staticmethod
    def jvp(ctx, t):
        return t * ctx.saved_tensors[0].cos()


@pytest.mark.parametrize("kind", [Pullback.of, Pushforward, Linearized])
@pytest.mark.parametrize("chunk_size", [None, 1, 2])
def test_batch_equals_single_applications(kind, chunk_size):
    """A batch, in any chunk, is the stack of its single applications."""
    mapped = linear_map(kind, sine)
    directions = torch.randn(5, 3, dtype=x.dtype)
    (batch,) = mapped.apply_batch([directions], chunk_size=chunk_size)
    single = torch.stack([mapped.apply([direction])[0] for direction in directions])
    torch.testing.assert_close(batch, single)
    assert mapped.batching == Batching("vmap")


@pytest.mark.parametrize("kind", [Pullback.of, Pushforward, Linearized])
def test_no_directions(kind):
    """An empty batch gives an empty stack of the right shape."""
    (images,) = linear_map(kind, sine).apply_batch([torch.zeros(0, 3, dtype=x.dtype)])
    assert images.shape == (0, 3)


def test_matrix_is_the_image_of_the_basis():
    mapped = linear_map(Pullback.of, sine)
    (rows,) = mapped.matrix(Chart.of([x]), chunk_size=2, randomness="error")
    torch.testing.assert_close(rows, x.cos().diag())


def test_a_batch_that_fails_goes_down_to_the_loop_and_says_why():
    """The map stays on the lower rung, and warns once."""
    mapped = linear_map(Pushforward, LegacySine.apply)
    with pytest.warns(BatchingWarning, match="because the batch failed: In order to use") as caught:
        (columns,) = mapped.matrix(Chart.of([x]), chunk_size=2, randomness="error")
    torch.testing.assert_close(columns, x.cos().diag())
    assert len(caught) == 1
    assert mapped.batching.rung == "loop"
    assert mapped.batching.reasons[0].startswith("vmap: In order to use an autograd.Function")


def test_a_missing_forward_rule_goes_to_the_graph_of_the_pullback():
    """The batch then runs through the recorded graph."""

    def attention(x):
        q = x.expand(1, 1, 2, 3)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    mapped = linear_map(Pushforward, attention)
    with pytest.warns(ForwardModeWarning):
        (columns,) = mapped.matrix(Chart.of([x]), chunk_size=None, randomness="error")
    (again,) = linear_map(Pushforward, sine).matrix(Chart.of([x]), chunk_size=None, randomness="error")
    assert columns.shape == (3, 1, 1, 2, 3)
    assert again.shape == (3, 3)
    assert mapped.batching.rung == "graph"
    assert "scaled_dot_product" in mapped.batching.reasons[0]


def test_an_error_of_the_function_is_not_taken_for_a_failed_batch():
    """If the loop fails too, its error is what the caller sees."""

    def fails(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match=r"^mine$"):
        linear_map(Pushforward, fails).matrix(Chart.of([x]), chunk_size=None, randomness="error")
