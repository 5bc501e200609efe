"""`case`: what a file of cases may say, and what becomes of it."""

import re

import pytest
import torch

import covector
from covector.cases import _registered, load
from covector.errors import CaseError, CovectorError


@pytest.fixture
def registered():
    """The cases registered during a test, forgotten after it."""
    start = len(_registered)
    yield lambda: _registered[start:]
    del _registered[start:]


def the(cases):
    (found,) = cases
    return found


def test_the_function_stays_as_it_is(registered):
    def f(x):
        return x

    assert covector.case((3,))(f) is f
    assert the(registered()).function is f
    assert the(registered()).name == "f"


def test_shapes_become_random_tensors_that_require_grad(registered):
    """The same numbers each time, others for another seed; torch's generator is left alone."""
    covector.case((2, 3), (), seed=1)(torch.mul)
    covector.case((2, 3), ())(torch.mul)
    state = torch.get_rng_state()
    first, second = registered()
    a, b = first.arguments()
    assert (a.shape, b.shape, a.dtype) == ((2, 3), (), torch.float64)
    assert a.requires_grad
    assert b.requires_grad
    assert torch.equal(a, first.arguments()[0])
    assert not torch.equal(a, second.arguments()[0])
    assert torch.equal(state, torch.get_rng_state())


def test_what_is_checked(registered):
    """Tensors that require grad, or all of them if none does; the caller's stay as they are."""
    plain, leaf = torch.ones(2), torch.ones(2, requires_grad=True)
    covector.case(plain, leaf, 3, [plain])(torch.add)
    covector.case(plain, {"a": plain}, torch.arange(2))(torch.add)
    covector.case(plain, plain, argnums=1)(torch.add)
    mixed, all_of_them, selected = [one.arguments() for one in registered()]
    assert [getattr(leaf, "requires_grad", None) for leaf in mixed[:3]] == [False, True, None]
    assert mixed[1] is leaf
    assert all_of_them[0].requires_grad
    assert all_of_them[1]["a"].requires_grad
    assert not all_of_them[2].requires_grad
    assert not plain.requires_grad
    assert selected[0] is selected[1] is plain


def test_factories_are_called_each_time(registered):
    covector.case(lambda: torch.ones(2), torch.float32)(lambda x, dtype: x.to(dtype))
    made = the(registered())
    assert made.arguments()[0] is not made.arguments()[0]
    assert made.arguments()[1] is torch.float32


def test_modules_functions_and_names(registered):
    class Twice(torch.autograd.Function):
        pass

    covector.case((3,))(Twice)
    covector.case((3,))(torch.nn.Tanh())
    covector.case((3,), name="other", dtype=[torch.float32, torch.float64])(torch.sin)
    names = [one.name for one in registered()]
    assert names == ["Twice", "Tanh", "other[float32]", "other[float64]"]
    assert registered()[0].function == Twice.apply


def test_names_in_a_file_are_unique(tmp_path, registered):
    """Several cases of one function are numbered, in the order in which they were registered."""
    path = tmp_path / "several.py"
    path.write_text(
        "import covector, torch\nfor n in (1, 2):\n    covector.case((n,))(torch.sin)\n", encoding="utf-8"
    )
    assert [one.name for one in load(path)] == ["sin[1]", "sin[2]"]
    assert [one.inputs for one in load(path)] == [((1,),), ((2,),)]


def test_loading_is_no_running(tmp_path, registered):
    """The guard for scripts holds, and a file that leaves the interpreter does not take us with it."""
    path = tmp_path / "script.py"
    path.write_text(
        "import covector, torch\ncovector.case((2,))(torch.sin)\nif __name__ == '__main__': exit(1)\n",
        encoding="utf-8",
    )
    assert the(load(path)).name == "sin"
    path.write_text("raise SystemExit(3)", encoding="utf-8")
    with pytest.raises(CaseError, match=r"script.py could not be loaded.\n(.*\n)*SystemExit: 3"):
        load(path)


MISUSE = [
    (
        lambda: covector.case((3,), atoll=1),
        TypeError,
        "case: unknown keyword atoll; it takes argnums, argnames, eps",
    ),
    (
        lambda: covector.case((3,), dtype="float32"),
        TypeError,
        "case: dtype must be a torch.dtype, or several",
    ),
    (
        lambda: covector.case((3,), dtype=()),
        TypeError,
        "case: dtype must be a torch.dtype, or several, got ()",
    ),
    (lambda: covector.case((3,), order=3), ValueError, "case: order must be 1 or 2, got 3"),
    (lambda: covector.case((3,), kwargs=3), TypeError, "case: kwargs must be a dict, got 3"),
    (lambda: covector.case(lambda x: x), TypeError, "@covector.case((3, 4))"),
    (
        lambda: covector.case(4, 3)(torch.sin),
        TypeError,
        "case: the inputs are 4, 3, and no tensor to differentiate by. A shape is a tuple: case((4, 3)).",
    ),
    (lambda: covector.case(4)(torch.sin), TypeError, "A shape is a tuple: case((4,))."),
    (lambda: covector.case((3,))(3), TypeError, "case: only a function can be checked, got 3"),
    (lambda: covector.case((3,))(torch.nn.Tanh), TypeError, "case: Tanh is a class. Pass an instance of it"),
]


@pytest.mark.parametrize(("act", "kind", "text"), MISUSE, ids=[row[2] for row in MISUSE])
def test_misuse(act, kind, text, registered):
    """A mistake is refused where it is written, and nothing is registered."""
    with pytest.raises(kind, match=re.escape(text)) as caught:
        act()
    assert isinstance(caught.value, CovectorError)
    assert registered() == []


def test_stacked_cases_are_told_apart_by_dtype(tmp_path):
    path = tmp_path / "stacked.py"
    path.write_text(
        "import covector, torch\n"
        "covector.case((2,))(torch.sin)\n"
        "covector.case((2,), dtype=torch.complex128)(torch.sin)\n"
        "covector.case((2,))(torch.cos)\n"
        "covector.case((3,))(torch.cos)\n",
        encoding="utf-8",
    )
    names = [case.name for case in load(path)]
    assert names == ["sin[float64]", "sin[complex128]", "cos[1]", "cos[2]"]


def test_a_case_with_a_reference_is_a_kernel(registered):
    """It is checked against the reference, with the keywords of `check_kernel`."""
    from covector._results import Request, _run

    covector.case((9, 7), dtype=torch.bfloat16, reference=torch.square, lenses=["again"])(lambda x: x * x)
    covector.case((9, 7), dtype=torch.float32, reference=torch.square, lenses=["again"])(
        lambda x: x * x * 1.01
    )
    right, wrong = [_run(one, Request("cases.py", None)) for one in registered()]
    assert right.outcome == "passed", right.text
    assert wrong.outcome == "failed"
    assert wrong.text.startswith("check_kernel(<lambda>): FAILED")


KERNEL_MISTAKES = [
    ({"reference": 3}, "case: the reference must be a function, got"),
    ({"reference": torch.sin, "order": 2}, "case: order=2 does not go with a reference"),
    (
        {"reference": torch.sin, "atol": 1.0},
        "case: unknown keyword atol; it takes dtypes, lenses, ratio, nondet_tol",
    ),
]


@pytest.mark.parametrize(("options", "text"), KERNEL_MISTAKES)
def test_a_case_of_a_kernel_that_makes_no_sense(options, text):
    """Refused where it is written."""
    with pytest.raises(CovectorError, match=re.escape(text)):
        covector.case((3,), **options)
