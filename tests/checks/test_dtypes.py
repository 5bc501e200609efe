"""A module and its inputs in different dtypes: torch's own error, with a note."""

import pytest
import torch

import covector

DOUBLE, SINGLE = torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3)


class Mixed(torch.nn.Linear):
    """Parameters of two dtypes, so that nobody knows which is meant."""

    def __init__(self):
        super().__init__(3, 3)
        self.scale = torch.nn.Parameter(DOUBLE[0])


@pytest.mark.parametrize("verb", [covector.check, covector.gradcheck, covector.gradgradcheck])
def test_mixed_dtypes_have_a_note(verb):
    with pytest.raises(RuntimeError, match=r"^mat1 and mat2 must have the same dtype") as raised:
        verb(torch.nn.Linear(3, 3), DOUBLE.clone().requires_grad_())
    assert type(raised.value) is RuntimeError
    assert raised.value.__notes__ == [
        "The input is float64, the parameters of Linear are float32: pass model.double(), or x.float() "
        "(docs/how-to/float32.md)."
    ]


def test_a_convolution_has_it_too():
    with pytest.raises(RuntimeError) as raised:
        covector.check(torch.nn.Conv1d(3, 3, 1).double(), torch.ones(1, 3, 3, requires_grad=True))
    assert "The input is float32, the parameters of Conv1d are float64" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("function", "x"),
    [(Mixed(), DOUBLE), (lambda x: x @ SINGLE.T, DOUBLE), (torch.nn.Linear(4, 3).double(), DOUBLE)],
)
def test_where_it_is_not_certain_there_is_no_note(function, x):
    with pytest.raises(RuntimeError) as raised:
        covector.check(function, x.clone().requires_grad_())
    assert not hasattr(raised.value, "__notes__")
