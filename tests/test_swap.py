"""`swap`: covector answers for torch, however torch's names were imported, and everything is put back."""

import contextlib
import functools
import inspect
import threading

import pytest
import torch
from torch.autograd import gradcheck as checked_early
from torch.func import grad as early
from torch.func import hessian, jacrev

import covector
from covector.compat import DOORS, peer
from covector.errors import UnsupportedError

partial = functools.partial(early, argnums=0)
x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)

ROWS = [(module, ours.__name__) for module, functions in DOORS.items() for ours in functions]


def theirs(module, name):
    return getattr(__import__(module, fromlist=["_"]) if module != GRADCHECK else CHECKS, name)


GRADCHECK = "torch.autograd.gradcheck"
CHECKS = inspect.getmodule(torch.autograd.gradcheck)


def state(function):
    return function.__code__, function.__defaults__, function.__kwdefaults__, dict(vars(function))


BEFORE = {row: state(theirs(*row)) for row in ROWS}


@pytest.fixture(autouse=True)
def _everything_is_put_back():
    yield
    assert {row: state(theirs(*row)) for row in ROWS} == BEFORE


def scaled(x, *, scale):
    return (scale * x**2).sum()


def is_covector():
    """Whether covector answers: torch's `grad` takes no `argnames`."""
    try:
        partial(scaled, argnames="scale")(torch.ones(2), scale=torch.tensor(3.0))
    except TypeError:
        return False
    return True


@pytest.mark.parametrize(("module", "name"), ROWS, ids=[".".join(row) for row in ROWS])
def test_every_door(module, name, monkeypatch):
    """Each name of the table is torch's function outside, and is answered inside; its signature stays."""
    function = theirs(module, name)
    signature = inspect.signature(function)
    with covector.swap():
        assert function.__code__ is not BEFORE[module, name][0]
        assert inspect.signature(function) == signature
        with pytest.raises((TypeError, AttributeError)) as caught:
            function()
        assert any("covector" in str(entry.path) for entry in caught.traceback)


def test_names_imported_before():
    """Functions imported by name, partials and attributes are all answered."""
    assert not is_covector()
    with covector.swap():
        assert is_covector()
        assert jacrev(torch.sin)(x.detach()).shape == (2, 2)
        assert torch.equal(hessian(torch.prod)(x.detach()), torch.tensor([[0.0, 1], [1, 0]]).double())
        assert checked_early(torch.relu, torch.zeros(1, requires_grad=True).double(), kinks="pass")
    assert not is_covector()


def test_after_an_exception():
    with pytest.raises(KeyError), covector.swap():
        raise KeyError
    assert not is_covector()


def test_nested_and_overlapping():
    """It lasts until the last one ends, in whatever order they end."""
    first, second = covector.swap(), covector.swap()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_covector()
    second.__exit__(None, None, None)
    assert not is_covector()
    with covector.swap(), covector.swap():
        assert is_covector()
    assert not is_covector()


def test_threads():
    """Swaps that begin and end on many threads leave nothing behind."""
    failures = []

    def work():
        for _ in range(50):
            with covector.swap():
                if not is_covector():
                    failures.append("not answered")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_peer_is_torch_also_inside():
    """What is fetched to compare with stays torch's, and so does what it calls."""
    with covector.swap():
        torchs = peer(GRADCHECK, "gradgradcheck")
        assert inspect.signature(torchs).parameters["eps"].default == 1e-6
        assert torchs(torch.sin, x)
        with pytest.raises(TypeError):
            torchs(torch.sin, x, kinks="pass")
        assert torchs(lambda x: x.sin() / (not is_covector()), x)
        assert is_covector()


def test_covector_is_not_affected():
    """It gives the same inside, and never comes by the functions that are answered by it."""
    inputs = (x.detach(),)
    runs = [
        lambda: covector.grad(torch.prod)(*inputs),
        lambda: covector.jacfwd(torch.sin)(*inputs),
        lambda: covector.hessian(torch.prod)(*inputs),
        lambda: covector.linearize(torch.sin, *inputs)[1](torch.ones(2, dtype=torch.float64)),
        lambda: covector.functionalize(lambda x: x.clone().add_(1))(*inputs),
        lambda: covector.jvp(torch.sin, inputs, inputs)[1],
        lambda: torch.tensor(covector.gradgradcheck(torch.sin, x)),
    ]
    outside = [run() for run in runs]
    with covector.swap():
        for expected, run in zip(outside, runs, strict=True):
            torch.testing.assert_close(run(), expected, rtol=0, atol=0)


def test_with_vmap_and_compile():
    """Torch's `vmap` is not swapped, and composes with what is."""
    with covector.swap():
        rows = torch.vmap(early(torch.prod))(torch.ones(3, 2))
        compiled = torch.compile(lambda x: early(torch.prod)(x), backend="eager")
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2))
    assert torch.equal(rows, torch.ones(3, 2))


def test_something_else_was_there_first(monkeypatch):
    """What is not torch's own function is refused by name, and nothing stays half swapped."""
    monkeypatch.setattr(torch.func, "jacfwd", functools.partial(torch.func.jacfwd))
    with (
        pytest.raises(UnsupportedError, match=r"torch.func.jacfwd is an instance of partial, not torch's"),
        covector.swap(),
    ):
        pass
    monkeypatch.undo()
    original = torch.func.vjp
    monkeypatch.setattr(torch.func, "vjp", lambda *args: original(*args))
    with pytest.raises(UnsupportedError, match=r"torch.func.vjp is .*<lambda>"), covector.swap():
        pass
    monkeypatch.undo()


def compiled_once(a):
    _, pull = torch.func.vjp(torch.sin, a)
    gradient = torch.func.grad(lambda b: (b**2).sum(), argnums=0)(a)
    return gradient + pull(a)[0] + jacrev(torch.sin)(a).sum(0) + torch.func.jvp(torch.sin, (a,), (a,))[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("inside_first", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_inside_compile(inside_first):
    """Compiled code in one graph: before, inside and after a swap, in any order; covector answers inside."""
    point = x.detach()
    with covector.swap():
        by_name = torch.compile(
            lambda a: early(scaled, argnames="scale")(a, scale=a), fullgraph=True, backend="eager"
        )
        torch.testing.assert_close(by_name(point), point**2)
    expected = 2 * point + 2 * point * point.cos() + point.cos()
    for swapped in (inside_first, not inside_first, inside_first):
        torch.compiler.reset()
        with covector.swap() if swapped else contextlib.nullcontext():
            result = torch.compile(compiled_once, fullgraph=True, backend="eager")(point)
        torch.testing.assert_close(result, expected)
