"""Reports: what people read, word for word, and what machines read."""

import gc
import io
import json
import pickle
import re
import subprocess
import sys
import weakref
from dataclasses import dataclass
from functools import partial
from html import unescape
from pathlib import Path

import pytest
import torch
from rich.console import Console

import covector
from covector.errors import CovectorError
from covector.verify.finding import Outcome, Table
from mutants import ruled

ROOT = Path(__file__).parent.parent.parent

x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)


class Cube(torch.autograd.Function):
    """x^3, with a backward for squares where x is negative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x > 0, 3 * x**2, 2 * x)


def cube(x):
    return Cube.apply(x)


def drawn(x):
    return x * torch.rand(3, dtype=x.dtype)


def nudged(x):
    x.data.add_(1)
    return x**2


def powers(state):
    return {"square": state["a"] ** 2, "spun": state["z"] * 1j}


X = "torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)"

SNAPSHOTS = {
    "wrong": (
        lambda: covector.check(cube, x),
        f"""\
check(cube): FAILED
reverse mode disagrees with central differences
  entry                  analytic   numeric      error     allowed
  d output[1] / d x[1]   -2         3 +- 1e-09   5.0e+00   > 3.0e-03
  1 of 9 entries differ.
  possible: the gradient is wrong at `x[1]` only, in one entry of the Jacobian; it is -0.667 x the
      numeric one there
    look at: a branch of a piecewise function that is taken at the value -1, or an index in the
        backward; one entry does not tell which: check more inputs with values like that one
reproduce:
  import torch, covector
  from test_report import cube
  print(covector.check(
      cube,
      {X},
      seed=0,
  ))
how: 3 x 3 entries column by column, step 1e-06; 21 calls of the function""",
    ),
    "right": (
        lambda: covector.check(torch.sin, x),
        """\
check(sin): PASSED
checks: reverse mode, gradient kind, determinism, linearity, undefined cotangents
how: 3 x 3 entries column by column, step 1e-06; none is off by more than 4e-07; 7 calls of the
    function""",
    ),
    "kink": (
        lambda: covector.check(torch.relu, torch.zeros(1, dtype=torch.float64, requires_grad=True)),
        """\
check(relu): FAILED
reverse mode: FAILED: the function is not differentiable at this point
  entry                     analytic   numeric   error     allowed
  d output[0] / d arg0[0]   0          0.5       5.0e-01   > 5.1e-04
  not differentiable here; the analytic value lies between the one-sided slopes 0 and 1.
  1 of 1 entries differ.
  almost certain: the slopes on the two sides of the point differ, the analytic value lies between
      them
    look at: the inputs: move them away from the kink, or pass kinks="pass"
reproduce:
  import torch, covector
  print(covector.check(
      torch.relu,
      torch.tensor([0.0], dtype=torch.float64, requires_grad=True),
      seed=0,
  ))
how: 1 x 1 entries column by column, step 1e-06; 22 calls of the function""",
    ),
    "random": (
        lambda: covector.check(drawn, x),
        """\
check(drawn): FAILED
purity: FAILED: the function draws random numbers: output[0] differs between two runs on the same
    input
  Draw the numbers outside and pass them in, or seed the generator inside the function. Dropout in a
      module is off after module.eval().
""",
    ),
    "mutation": (
        lambda: covector.check(nudged, x, eps=1e-5),
        f"""\
check(nudged): FAILED
purity: FAILED: the function changes its input x in place
  A derivative is taken at a point; let the function work on a copy.
reproduce:
  import torch, covector
  from test_report import nudged
  print(covector.check(
      nudged,
      {X},
      eps=1e-05,
      seed=0,
  ))
how: 3 x 3 entries; 1 call of the function""",
    ),
    "unsupported": (
        lambda: covector.check(lambda x: Cube.apply(x.abs()), x, check_forward_ad=True),
        """\
check(<lambda>): UNSUPPORTED
forward mode: UNSUPPORTED: Cube defines no jvp, which forward mode needs; define it, or leave
    check_forward_ad out
""",
    ),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_text(name):
    """The report as people see it; where the number of evaluations may vary, up to there."""
    act, expected = SNAPSHOTS[name]
    text = str(act())
    assert text.startswith(expected) if expected.endswith("\n") else text == expected


def test_lines_fit_a_terminal():
    """No line of these is wider than a hundred columns."""
    for name, (act, _) in SNAPSHOTS.items():
        assert max(map(len, str(act()).splitlines())) <= 100, name


def test_paths_at_both_ends():
    """Trees of inputs and outputs, complex parts and indices are written as Python has them."""
    state = {
        "a": torch.ones(2, 2, dtype=torch.float64, requires_grad=True),
        "z": torch.ones(1, dtype=torch.complex128, requires_grad=True),
    }
    report = covector.check(powers, (state,))
    assert report
    assert report.inputs == ("state['a']", "state['z']")
    assert report.outputs == ("output['square']", "output['spun']")
    wrong = covector.check(lambda state: Cube.apply(-state["a"]) + state["z"].real, (state,))
    assert wrong.worst.mismatches[0].entry.output == "output[0, 0]"
    assert wrong.worst.mismatches[0].entry.input == "state['a'][0, 0]"


def test_data():
    """A report is true or false, a dict, and JSON that another program can read."""
    report = covector.check(cube, x)
    assert not report
    assert report.outcome is Outcome.FAILED
    data = json.loads(report.to_json())
    assert data == json.loads(json.dumps(report.to_dict()))
    assert data["outcome"] == "failed"
    assert data["function"] == "cube"
    assert data["seed"] == 0
    assert data["evaluations"] == 21
    assert "cause" not in data
    assert data["seconds"] > 0
    (found,) = [f for f in data["findings"] if f["outcome"] == "failed"]
    mismatch = found["mismatches"][0]
    assert mismatch["entry"] == {"output": "output[1]", "input": "x[1]"}
    assert mismatch["analytic"] == -2.0
    assert mismatch["error"] == pytest.approx(5.0)
    nan = covector.check(torch.log, -x.detach().requires_grad_())
    assert "NaN" not in nan.to_json()


REPORT_KEYS = [
    "version",
    "function",
    "verb",
    "outcome",
    "inputs",
    "outputs",
    "method",
    "seed",
    "evaluations",
    "seconds",
    "reproduce",
    "findings",
    "tables",
]
FINDING_KEYS = [
    "check",
    "outcome",
    "summary",
    "mismatches",
    "count",
    "entries",
    "advice",
    "counted",
    "diagnoses",
    "facts",
    "tables",
]
MISMATCH_KEYS = ["entry", "analytic", "numeric", "bound", "allowed", "note", "row", "column", "error"]
DIAGNOSIS_KEYS = ["rule", "evidence", "look", "confidence", "tested", "sure"]


def test_the_keys_of_the_data_are_pinned_and_documented():
    """Programs read them: a change here is a new version of the data."""
    data = covector.check(cube, x).to_dict()
    assert data["version"] == 1
    assert list(data) == REPORT_KEYS
    found = next(f for f in data["findings"] if f["mismatches"])
    assert list(found) == FINDING_KEYS
    assert list(found["mismatches"][0]) == MISMATCH_KEYS
    assert list(found["diagnoses"][0]) == DIAGNOSIS_KEYS
    document = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    for key in (*REPORT_KEYS, *FINDING_KEYS, *MISMATCH_KEYS, *DIAGNOSIS_KEYS):
        assert f"| `{key}` |" in document, key


def test_a_report_can_be_pickled_without_what_belongs_to_the_caller():
    """Reports travel between processes; the function and its tensors stay where they are."""
    report = covector.check(lambda x: cube(x), x)
    assert report.source is not None
    copy = pickle.loads(pickle.dumps(report))
    assert copy == report
    assert str(copy) == str(report)
    assert copy.source is None


def test_a_passed_gradcheck_keeps_nothing_alive():
    """What a check needed is gone with its answer."""
    inputs = torch.ones(3, dtype=torch.float64, requires_grad=True)
    watched = weakref.ref(inputs)
    assert covector.gradcheck(torch.sin, inputs)
    del inputs
    gc.collect()
    assert watched() is None


class Wrong:
    """Calls that fail, for which the report has to say how to make them again."""

    small = staticmethod(lambda: covector.check(cube, x))
    large = staticmethod(lambda: covector.check(cube, X_LARGE))
    options = staticmethod(
        lambda: covector.check(cube, (x,), atol=1e-7, fast_mode=True, max_entries=2, seed=3)
    )
    numbers = staticmethod(lambda: covector.check(scaled, (x, 2.5, None)))
    keywords = staticmethod(lambda: covector.check(scaled, (x,), {"factor": 2.0}))
    chosen = staticmethod(lambda: covector.check(scaled, (x.detach(), 2.0), argnums=0))
    second = staticmethod(lambda: _caught(covector.gradgradcheck, saved, x))
    given = staticmethod(lambda: _caught(covector.gradgradcheck, saved, x, G))
    custom = staticmethod(lambda: covector.check(Cube.apply, x))
    torch_function = staticmethod(lambda: covector.check(torch.relu, torch.zeros(2).requires_grad_()))
    complex_numbers = staticmethod(lambda: covector.check(conjugated, Z))
    transposed = staticmethod(lambda: covector.check(strided, (M.T,)))
    module = staticmethod(lambda: covector.check(MODEL, torch.ones(2, 3).double()))
    method = staticmethod(lambda: covector.check(MODEL.forward, x))
    network = staticmethod(lambda: covector.check(network(), BATCH))
    evaluated = staticmethod(lambda: covector.check(network().eval(), BATCH))
    method_of_a_network = staticmethod(
        lambda: covector.check(network().forward, BATCH.clone().requires_grad_())
    )
    half_precision = staticmethod(lambda: covector.check(network(torch.bfloat16), BATCH.bfloat16()))
    networks = staticmethod(lambda: covector.check(both, (torch.nn.Linear(3, 1).double(), Model(), x)))
    named_lambda = staticmethod(lambda: covector.check(CUBES, x))
    parameters = staticmethod(lambda: covector.check(tree, (-M.detach(), PARAMETERS)))
    sparse = staticmethod(
        lambda: covector.check(filled, (-torch.eye(2)).double().to_sparse().requires_grad_())
    )
    sparse_large = staticmethod(lambda: covector.check(filled, SPARSE))
    kinds = staticmethod(lambda: covector.check(kinds, (x, torch.float64, float("inf"), torch.Size([3]))))


def scaled(x, factor, nothing=None):
    return factor * cube(x)


def conjugated(z):
    return Conjugated.apply(z)


def strided(m):
    return Cube.apply(m) if not m.is_contiguous() else m**3


def saved(x):
    return Saved.apply(x)


class Conjugated(torch.autograd.Function):
    """z^2 without the conjugate."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z * z

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


class Saved(torch.autograd.Function):
    """x^3 with a slope that was saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(3 * x**2)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


def _caught(door, *arguments):
    with pytest.raises(covector.GradcheckError) as caught:
        door(*arguments)
    return caught.value.report


X_LARGE = torch.linspace(-1.1, 1, 30, dtype=torch.float64, requires_grad=True)
Z = torch.tensor([1 + 2j, 0.5 - 1j], requires_grad=True)
M = torch.tensor([[1.0, -2.0, 3.0]] * 2, dtype=torch.float64, requires_grad=True)
BATCH = torch.linspace(-1, 1.5, 12, dtype=torch.float64).square().reshape(4, 3) - 0.5
G = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64, requires_grad=True)

SPARSE = (torch.eye(30) * torch.linspace(-1, 1, 30)).double().to_sparse_csr().requires_grad_()
CUBES = lambda x: cube(x) * 1.0
PARAMETERS = {"w": torch.nn.Parameter(M[0].detach()), "b": [torch.nn.Parameter(x.detach()[:2] - 2)]}


class Model(torch.nn.Module):
    """Cubes of a linear layer."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 3, dtype=torch.float64))

    def forward(self, x):
        return cube(x * self.weight)


MODEL = Model()


class Cubed(torch.nn.Module):
    """Cubes, as the last layer of a network."""

    def __init__(self, times, *, power=1):
        super().__init__()
        self.times, self.power = times, power

    def forward(self, x):
        return self.times * cube(x) ** self.power


def network(dtype=torch.float64):
    """A network of random weights, of classes of torch's and one with arguments of its own."""
    layers = torch.nn.Linear(3, 4, bias=False), torch.nn.BatchNorm1d(4), torch.nn.Tanh(), Cubed(2, power=2)
    return torch.nn.Sequential(*layers).to(dtype)


def both(first, second, x):
    return first(second(x))


class Hidden(Cubed):
    """A module that does not keep what it was constructed with."""

    def __init__(self, given):
        super().__init__(2 * given)


def filled(x):
    return cube(x.to_dense())


def kinds(x, dtype, most, shape):
    return cube(x).to(dtype).clamp(max=most).reshape(shape)


@pytest.mark.parametrize("name", [name for name in vars(Wrong) if not name.startswith("_")])
def test_what_reproduces_does(name, tmp_path, monkeypatch):
    """What a report gives, pasted into an empty file, gives the same findings."""
    monkeypatch.chdir(tmp_path)
    report = getattr(Wrong, name)()
    assert not report
    if "save_inputs" in report.reproduce:
        report.save_inputs("inputs.npz")
    assert "define first" not in report.reproduce
    assert _pasted(report.reproduce, {}).findings == report.findings


def _wrapped(x):
    return covector.check(lambda x: cube(x), x)


def _closure(x):
    def inner(x):
        return cube(x)

    return covector.check(inner, x)


def _class():
    class Inner(Cube):
        pass

    return Inner


# What a reader has to define before the code runs: the call, and how that is said.
UNDEFINED = {
    "a lambda": (lambda: _wrapped(x), r"function, the lambda of line \d+ in test_report\.py"),
    "a closure": (lambda: _closure(x), r"inner, the function of line \d+ in test_report\.py"),
    "a class": (lambda: covector.check(_class().apply, x), "Inner, the class of that name"),
    "a module": (lambda: covector.check(Hidden(1), x), "module, the Hidden that was given"),
    "its method": (lambda: covector.check(Hidden(1).forward, x), "module, the Hidden that was given"),
    "a partial": (lambda: covector.check(partial(cube), x), "function, the partial that was given"),
    "blocks": (
        lambda: covector.check(filled, (-torch.eye(4)).double().to_sparse_bsr((2, 2)).requires_grad_()),
        r"x: torch\.float64, 4 x 4, torch\.sparse_bsr",
    ),
    "captured": (lambda: covector.check(held, x), "_, the Tensor which the function holds itself"),
}


def held(_):
    return cube(x)


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_cannot_be_made_again_has_to_be_defined_first(name):
    """Said before the line that needs it."""
    call, said = UNDEFINED[name]
    report = call()
    assert not report
    (missing,) = re.findall(r"# define first: (.*)", report.reproduce)
    assert re.fullmatch(said, missing)


def _pasted(code, names):
    """The report that a script shows, printed or as an error."""
    shown = []
    try:
        exec(compile(code, "pasted", "exec"), {**names, "print": shown.append})
    except covector.GradcheckError as error:
        return error.report
    (report,) = shown
    return report


def _drawn():
    """Inputs made in the ways that are recognised, in another order than they are passed in."""
    torch.manual_seed(7)
    w = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    b = torch.rand(3, 5).double().requires_grad_()
    torch.manual_seed(7)
    return (torch.randn(4, 5, dtype=torch.float64, requires_grad=True), {"w": w, "b": [b]})


def tree(a, params):
    return cube(a @ params["w"]) @ params["b"][0]


def test_drawn_inputs_are_drawn_again():
    """By the seed that was set last: the code runs by itself, in a fresh interpreter."""
    report = covector.check(tree, _drawn())
    assert not report
    assert (
        report.reproduce
        == """\
import torch, covector
from test_report import tree
torch.manual_seed(7)
a = torch.randn((4, 5), dtype=torch.float64, requires_grad=True)
torch.manual_seed(7)
params_w = torch.randn((5, 3), dtype=torch.float64, requires_grad=True)
params_b_0 = torch.rand((3, 5)).double().requires_grad_()
print(covector.check(tree, (a, {'w': params_w, 'b': [params_b_0]}), seed=0))"""
    )
    state = torch.get_rng_state()
    assert _pasted(report.reproduce, {}).findings == report.findings
    torch.set_rng_state(state)


def test_regular_inputs_are_made_again():
    """Numbers that are evenly spaced, or all the same."""
    a = torch.linspace(-2, 2, 300, dtype=torch.float64, requires_grad=True)
    b = torch.full((2, 150), 0.3, dtype=torch.float64, requires_grad=True)
    report = covector.check(regular, (a, b))
    assert not report
    assert report.reproduce.splitlines()[2:4] == [
        "a = torch.linspace(-2.0, 2.0, 300, dtype=torch.float64, requires_grad=True)",
        "b = torch.full((2, 150), 0.3, dtype=torch.float64, requires_grad=True)",
    ]
    assert _pasted(report.reproduce, {}).findings == report.findings


def regular(a, b):
    return cube(a), b


def test_nothing_is_drawn_from_the_callers_generator():
    """Looking for the draws that made an input leaves the caller's random numbers as they were."""
    inputs = _drawn()
    before = torch.get_rng_state()
    assert not covector.check(tree, inputs)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.bfloat16])
def test_inputs_of_unknown_making_are_saved_beside_the_page(tmp_path, dtype, monkeypatch):
    """Text says how they are saved, and loads them; a page has them beside it."""
    given = (torch.linspace(-1.1, 1, 50) ** 3).to(dtype).requires_grad_()
    report = covector.check(cube, given)
    assert not report
    flat = report.reproduce.replace("\n#    ", "")
    said = r"# run first, in the session that has the report: (report.save_inputs\(.*?\)), which writes (.*)"
    (remark,) = re.findall(said, flat)
    assert remark == ("report.save_inputs('inputs.npz')", f"x: {dtype}, 50")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert _pasted(f"{remark[0]}\n{report.reproduce}", {"report": report}).findings == report.findings
    assert report.to_html(tmp_path / "page.html") == tmp_path / "page.html"
    shown = re.search(
        r"<h2>Reproduce</h2><pre><code>(.*?)</code>",
        (tmp_path / "page.html").read_text(encoding="utf-8"),
        re.S,
    )
    again = _pasted(unescape(shown[1]), {})
    assert again.findings == report.findings
    assert sorted(file.name for file in tmp_path.iterdir()) == ["elsewhere", "page.html", "page.npz"]


def test_the_inputs_of_an_error_are_saved_by_its_report():
    """A door that raises returns none; the error has it."""
    report = _caught(covector.gradcheck, cube, (torch.linspace(-1.1, 1, 50).double() ** 3).requires_grad_())
    said = "where `error` is the exception (sys.last_value if nothing caught it)"
    remark = f"# run first, {said}: error.report.save_inputs('inputs.npz'), which writes x:"
    assert remark in report.reproduce.replace("\n#    ", "")


def test_some_tens_of_numbers_of_unknown_making_are_written_out():
    """In all of the inputs: nothing has to be saved."""
    a, b = ((torch.linspace(-1.1, 1, size).double() ** 3).requires_grad_() for size in (19, 20))
    report = covector.check(regular, (a, b))
    assert not report
    assert "inputs.npz" not in report.reproduce
    assert max(map(len, report.reproduce.splitlines())) <= 100
    assert _pasted(report.reproduce, {}).findings == report.findings


SCRIPT = """\
import torch, covector
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, grad):
        return grad
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    def forward(self, x):
        return Twice.apply(self.weight * x)
def cube(x):
    return Twice.apply(x**3)
x = torch.ones(2, dtype=torch.float64, requires_grad=True)
layer = Layer()
for given in (Twice.apply, cube, layer):
    print(covector.check(given, x).reproduce)
print(covector.check(Layer(), x).reproduce)
"""

MODULE = """\
import torch
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, grad):
        return grad
def cut(x):
    return Twice.apply(x**3)
class Of:
    Inner = Twice
    @staticmethod
    def cut(x):
        return cut(x)
    class Function(Twice):
        pass
"""

IMPORTS = """\
import multiprocessing, sys, torch, covector
import plain
from plain import Twice, Of, cut
x = torch.ones(2, dtype=torch.float64, requires_grad=True)
def own(x):
    return cut(x)
if __name__ == "__main__":
    for f in (cut, plain.cut, Twice.apply, Of.cut, Of.Function.apply):
        print(covector.check(f, x).reproduce)
    sys.modules["__mp_main__"] = sys.modules["__main__"]
    own.__module__ = "__mp_main__"  # as in a process that was spawned
    print(covector.check(own, x).reproduce)
"""


def test_what_a_script_defines_has_to_be_defined_first(tmp_path):
    """A name of `__main__` is not there in another session: said, and torch is imported."""
    (tmp_path / "wrong.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run([sys.executable, tmp_path / "wrong.py"], capture_output=True, text=True, check=True)
    assert done.stdout.count("import torch, covector\n") == 4
    assert re.findall(r"# define first: (.*)", done.stdout) == [
        "Twice, the class of wrong.py",
        "cube, the function of wrong.py",
        "layer, the Layer of wrong.py",
        "Layer, the class of wrong.py",
    ]


def test_what_a_script_imports_is_imported(tmp_path):
    """Whatever it is called there; a process that was spawned has the script under a second name."""
    (tmp_path / "plain.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "script.py").write_text(IMPORTS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True
    )
    said = re.findall(r"(?:from|# define) .*|(?<=covector\.check\()\s*[\w.]+", done.stdout)
    assert [*map(str.strip, said)] == [
        *("from plain import cut", "cut") * 2,
        *("from plain import Twice", "Twice.apply"),
        *("from plain import Of", "Of.cut"),
        *("from plain import Of", "Of.Function.apply"),
        *("# define first: own, the function of script.py", "own"),
    ]


class Dropped(torch.nn.Module):
    """A parameter that is not used, and random numbers."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x):
        return torch.nn.functional.dropout(self.used(x), 0.5, self.training)


def test_an_argument_is_not_taken_for_a_tensor_that_the_function_holds():
    """A function that draws random numbers gives other values if nothing is moved."""
    report = covector.check(Dropped().double(), torch.randn(3, 2).double())
    assert report.findings[0].check == "purity"
    assert "define first" not in report.reproduce


def test_inputs_that_are_made_again_are_not_saved(tmp_path):
    """Nor those of a report that was read from its data."""
    report = covector.check(cube, x)
    unknown = covector.check(cube, (torch.linspace(-1.1, 1, 50).double() ** 3).requires_grad_())
    for nothing in (report, covector.Report.from_json(unknown.to_json())):
        with pytest.raises(covector.errors.ArgumentValueError) as caught:
            nothing.save_inputs(tmp_path / "inputs.npz")
        assert str(caught.value) == (
            "Report.save_inputs: there is nothing to save: the code under `reproduce` reads no file. It "
            "reads one where a check failed on strided tensors on the CPU that the code can neither write "
            "out nor draw again; a report that was read from data has lost them."
        )
    assert list(tmp_path.iterdir()) == []
    assert unknown.save_inputs(tmp_path / "inputs.npz") == tmp_path / "inputs.npz"


def test_the_error_that_would_have_shown_is_one_that_does():
    """Where noise hides the first differences, entries are judged, and what these allow is said."""
    point = torch.tensor([0.5, -0.2, 1.5], dtype=torch.float64, requires_grad=True)
    single = lambda x: x.float().exp().double()
    report = covector.check(single, point)
    assert report
    (visible,) = map(float, re.findall(r"; none is off by more than ([^\s;,]+)", report.how))
    assert not covector.check(lambda x: single(x) + 2 * visible * x.detach(), point)
    assert visible < 0.01


def test_tensors_that_do_not_require_grad_are_named():
    """In a report that passes, unless the arguments were chosen; numbers are no tensors."""
    a, b = torch.ones(2, dtype=torch.float64, requires_grad=True), torch.ones(2, dtype=torch.float64)
    scaled = lambda a, b, c: a * b * c
    assert "; by `a`, not by `b`, which does not require grad; " in covector.check(scaled, (a, b, 2.0)).how
    assert "not by `b`, `c`, which do not require grad" in covector.check(scaled, (a, b, b)).how
    for report in (covector.check(scaled, (a, b, b), argnums=0), covector.check(scaled, (a, a, a))):
        assert "require" not in report.how


def test_numbers_among_the_outputs_are_named():
    """They have no graph; integers, such as the place of a maximum, have no derivative either way."""
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    report = covector.check(lambda t: (t * 2, t.sum().item()), x)
    assert "; not of `output[1]`, a number without a graph, as .item() gives; " in report.how
    assert "not of" not in covector.check(lambda t: (t * 2, t.argmax(), 3), x).how
    assert (
        "; not of `output[1]`, which has no graph; " in covector.check(lambda t: (t, t.cos().detach()), x).how
    )


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self):
        return True


def shown(report, file):
    report.show(file)
    return file.getvalue()


def test_show_is_plain_where_colour_is_not_wanted(monkeypatch):
    """To a file, with NO_COLOR, on a dumb terminal, and without rich."""
    report = covector.check(cube, x)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in shown(report, Terminal())
    assert shown(report, io.StringIO()) == f"{report}\n"
    with monkeypatch.context() as dumb:
        dumb.setenv("TERM", "dumb")
        assert shown(report, Terminal()) == f"{report}\n"
    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "rich.console", None)
        assert shown(report, Terminal()) == f"{report}\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(report, Terminal()) == f"{report}\n"


def test_show_writes_to_standard_output(capsys):
    """Without a file."""
    report = covector.check(cube, x)
    report.show()
    assert capsys.readouterr().out == f"{report}\n"


@pytest.mark.parametrize("width", [72, 100, 200])
def test_rich_shows_the_same_within_the_width(width):
    """Verdict, entries, diagnosis and how to reproduce it, never wider than a hundred columns."""
    console = Console(file=Terminal(), force_terminal=True, width=width, record=True)
    report = covector.check(cube, x)
    console.print(report)
    text = console.export_text()
    assert text.splitlines()[0].split() == ["check(cube)", "FAILED"]
    assert max(len(line.rstrip()) for line in text.splitlines()) <= min(width, 100)
    flat = "".join(text.split())
    for part in ("doutput[1]/dx[1]", "`x[1]`only", "lookat:", "covector.check(", "21calls"):
        assert part in flat, part
    assert "checks: reverse mode" in _rich_text(covector.check(torch.sin, x))


def _rich_text(report):
    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(report)
    return console.export_text()


def test_a_name_that_is_too_long_is_broken_not_cut():
    """Long paths of a tree take lines of their own."""
    path = "a_parameter_with_a_very_long_name_that_somebody_chose_for_good_reasons"
    state = {path: {path: torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)}}
    text = str(covector.check(lambda state: cube(state[path][path]), (state,)))
    assert max(map(len, text.splitlines())) <= 100
    assert "".join(text.split()).count(f"dstate['{path}']['{path}'][0]") == 1


def test_the_error_carries_the_report():
    """`GradcheckError` is a RuntimeError, its text is the report's."""
    with pytest.raises(RuntimeError) as caught:
        covector.gradcheck(cube, x)
    assert isinstance(caught.value, covector.GradcheckError)
    assert str(caught.value.report) == str(caught.value)
    assert covector.gradcheck(cube, x, raise_exception=False) is False
    assert covector.gradcheck(torch.sin, x) is True


def test_names_of_a_custom_function():
    """`apply` is called by its class, and its inputs as `forward` has them."""
    report = covector.check(Cube.apply, x)
    assert str(report).startswith("check(Cube.apply): FAILED")
    assert report.inputs == ("x",)


def test_names_in_second_order():
    """A gradient is called grad_x, a cotangent grad_output."""

    class Saved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            square = x**2
            ctx.save_for_backward(square)
            return square * x

        @staticmethod
        def backward(ctx, g):
            return 3 * g * ctx.saved_tensors[0]

    def saved(x):
        return Saved.apply(x)

    assert covector.gradcheck(saved, x)
    with pytest.raises(covector.GradcheckError, match=r"gradgradcheck\(saved\): FAILED") as caught:
        covector.gradgradcheck(saved, x)
    assert str(caught.value.report.worst.mismatches[0].entry) == "d grad_x[2] / d x[2]"


def test_a_backward_that_raises_is_reported_once_with_its_cause():
    """One finding with the class of the exception, which stays reachable with its traceback."""

    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise KeyError("lost")

    with pytest.raises(covector.GradcheckError) as caught:
        covector.gradcheck(Raises.apply, x)
    assert str(caught.value).count("KeyError") == 1
    assert isinstance(caught.value.__cause__, KeyError)


def test_code_written_for_torch_catches_the_error():
    """Torch's own class of the same name."""
    from torch.autograd.gradcheck import GradcheckError

    with pytest.raises(GradcheckError):
        covector.gradcheck(cube, x)


def tilted(x, *, slope=1.0):
    return slope * x


MISUSE = [
    (lambda: covector.gradcheck(cube(x), x), TypeError, "Write gradcheck(f, x), not gradcheck(f(x), x)."),
    (lambda: covector.check(torch.mul, x, [x]), TypeError, "kwargs must be a dict, got"),
    (lambda: covector.check(torch.mul, x, x), TypeError, "write check(func, (a, b)), not check(func, a, b)"),
    (
        lambda: covector.check(tilted, x, slope=2),
        TypeError,
        "check: there is no keyword 'slope'; tilted takes one of that name: pass it as kwargs={'slope': 2}",
    ),
    (
        lambda: covector.gradcheck(tilted, x, slope=[2]),
        TypeError,
        "no keyword 'slope'; tilted takes one of that name: pass functools.partial(tilted, slope=...).",
    ),
    (
        lambda: covector.check(torch.nn.functional.softplus, x, beta=2.0),
        TypeError,
        "no keyword 'beta'. If softplus takes one, pass it as kwargs={'beta': 2.0}.",
    ),
    (
        lambda: covector.gradgradcheck(torch.sin, x, fastmode=True),
        TypeError,
        "gradgradcheck: there is no keyword 'fastmode'. Did you mean 'fast_mode'?",
    ),
    (lambda: covector.check(inputs=x, slope=2), TypeError, "check: func is missing; write check(func, x)."),
    (lambda: covector.gradcheck(lambda v: v, x, slope=2), TypeError, "pass functools.partial(func, slope=2)"),
    (lambda: covector.check(tilted, x, x=2), TypeError, "no keyword 'x'. If tilted takes one"),
    (lambda: covector.gradcheck(torch.mul, x, x), TypeError, "gradcheck: several inputs go into one tuple"),
    (lambda: covector.gradgradcheck(torch.addcmul, x, x, x), TypeError, "gradgradcheck: several inputs go"),
    (lambda: covector.agree(torch.addcmul, x, x, x), TypeError, "agree: several inputs go into one tuple"),
    (
        lambda: covector.check_kernel(torch.mul, torch.mul, x, x),
        TypeError,
        "write check_kernel(kernel, reference, (a, b)), not check_kernel(kernel, reference, a, b)",
    ),
    (
        lambda: covector.functional.jacobian(torch.mul, x, x),
        TypeError,
        "functional.jacobian(mul): several inputs go into one tuple: write jacobian(func, (a, b))",
    ),
    (lambda: covector.check(cube, x, eps=0), ValueError, "eps must be positive and finite, got 0"),
    (lambda: covector.check(cube, x, eps=float("nan")), ValueError, "eps must be positive and finite"),
    (lambda: covector.check(cube, x, eps="1e-3"), TypeError, "eps must be a number, got '1e-3' (str)"),
    (lambda: covector.gradcheck(cube, x, atol=-1), ValueError, "atol must be zero or positive, got -1"),
    (lambda: covector.gradcheck(cube, x, rtol=-1), ValueError, "rtol must be zero or positive, got -1"),
    (
        lambda: covector.check(cube, x, max_entries=0),
        ValueError,
        "max_entries must be an int of at least 1, got 0",
    ),
    (lambda: covector.check(cube, x, probes=-1), ValueError, "probes must be an int of at least 0, got -1"),
    (lambda: covector.check(cube, x, seed="a"), TypeError, "seed must be an int, got 'a'"),
    (lambda: covector.check(cube, x, kinks="ok"), ValueError, "kinks must be 'fail' or 'pass', got 'ok'"),
    (
        lambda: covector.gradcheck(lambda x: x.sum().item(), x),
        TypeError,
        "must return tensors, got 1.5",
    ),
    (lambda: covector.gradcheck(lambda x: None, x), TypeError, "must return tensors, got None"),
    (
        lambda: covector.check(lambda a, b: a * b, (x, torch.arange(3)), argnums=1),
        TypeError,
        "select holds no floating-point or complex tensor",
    ),
    (lambda: covector.gradcheck(torch.sin, x.detach()), ValueError, "arg0 is torch.float64 without grad"),
]


@pytest.mark.parametrize(("act", "kind", "text"), MISUSE, ids=[row[2] for row in MISUSE])
def test_misuse(act, kind, text):
    """A wrong call is an error of the call, never a verdict."""
    with pytest.raises(kind, match=re.escape(text)) as caught:
        act()
    assert isinstance(caught.value, CovectorError)


class Soft(torch.autograd.Function):
    """A softmax whose backward forgets that each output depends on every input of its row."""

    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g


def test_the_worst_entries_are_shown():
    """Also those that the check itself had no need to look at; and all of them are counted."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, generator=draw, dtype=torch.float64).requires_grad_()
    finding = covector.check(Soft.apply, x).worst
    right = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), x).reshape(8, 8)
    wrong = torch.autograd.functional.jacobian(Soft.apply, x).reshape(8, 8)
    expected = (right - wrong).abs().flatten().sort(descending=True).values[:8]
    errors = torch.tensor([m.error for m in finding.mismatches], dtype=torch.float64)
    torch.testing.assert_close(errors, expected, rtol=1e-6, atol=1e-8)
    for m in finding.mismatches:
        assert abs(m.numeric - right[m.row, m.column]) <= m.bound
    assert finding.extent == "32 of 64 entries differ; 8 are shown."
    # A kink that is let pass looks wrong to a single difference: only judged entries are shown.
    judged = covector.check(Soft.apply, x, kinks="pass").worst
    assert judged.mismatches
    for m in judged.mismatches:
        assert abs(m.numeric - right[m.row, m.column]) <= m.bound
    assert judged.extent.startswith("At least")


def test_of_a_sample_as_many_entries_differ_as_its_diagnosis_explains():
    """Of a Jacobian that is too large to be held, what was seen is counted."""
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    twice = ruled(torch.sin, lambda g, x: 2 * g * x.cos())
    finding = covector.check(twice, x.requires_grad_()).worst
    assert finding.extent == f"At least {finding.count} of 1440000 entries differ; 8 are shown."
    explained = f"explains {finding.count} of {finding.count} wrong entries in a sample"
    assert finding.diagnoses[0].tested == explained
    errors = [m.error for m in finding.mismatches]
    assert errors == sorted(errors, reverse=True)
    for m in finding.mismatches:
        assert m.row == m.column
        assert m.numeric == pytest.approx(float(x.detach().cos().flatten()[m.row]), rel=1e-6)


def test_a_mistake_of_no_known_kind_says_so():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, generator=draw, dtype=torch.float64).requires_grad_()
    words = "No known kind of mistake fits these entries."
    weights = torch.rand(2, 4, generator=draw, dtype=torch.float64)
    found = covector.check(ruled(torch.sin, lambda g, x: g * x.cos() * weights), x).worst
    assert found.advice == words
    assert found.facts == (
        "8 wrong entries: all on the diagonal; the ratio analytic / numeric lies between 0.1768 and 0.6219.",
    )
    assert covector.check(cube, x).worst.advice == ""


class Raising(Soft):
    """A backward that raises."""

    @staticmethod
    def backward(ctx, g):
        raise ValueError("no gradient today")  # this line is named


def test_a_derivative_that_raises_says_where():
    """By the name of the file, wherever that lies."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    marked = [i for i, text in enumerate(lines, 1) if text.endswith('today")  # this line is named')]
    text = str(covector.check(Raising.apply, x))
    assert "the derivative raised ValueError: no gradient today\n" in text
    assert f"  It was raised at line {marked[0]} of {Path(__file__).name}, in backward.\n" in text
    assert str(Path(__file__).parent) not in text


@dataclass
class Closed:
    """A class that is no pytree."""

    tensor: torch.Tensor


@pytest.mark.parametrize("door", [covector.check, covector.gradcheck])
def test_tensors_in_an_unknown_class(door):
    with pytest.raises(CovectorError) as caught:
        door(lambda p: p.tensor**2, (Closed(x),))
    assert str(caught.value).endswith(
        "Closed is not a registered pytree, so the tensors in it are not seen: call "
        "torch.export.register_dataclass(Closed) once."
    )


def test_only_a_module_is_sent_to_check():
    plain = torch.ones(2, dtype=torch.float64)
    with pytest.raises(CovectorError, match=r"To check a module by its parameters, use check\.$"):
        covector.gradcheck(torch.nn.Linear(2, 2).double(), plain)
    with pytest.raises(CovectorError, match=r"they have to be floating-point or complex\.$"):
        covector.check(torch.sin, plain)


def test_the_names_that_people_see():
    """The public list, the version and the rooms; SciPy is there without an import of its own."""
    assert set(covector.__all__) < set(dir(covector))
    assert covector.__version__
    assert covector.scipy.objective
    assert not [name for name in dir(covector) if name.startswith("_") and name != "__version__"]


def test_names_of_columns_are_no_markup():
    """What stands between brackets is part of the name, with rich too."""
    table = Table("errors", ("entry", "error [ulp]"), (("x[0]", 3.5),))
    shown = covector.Report("kernel", "check_kernel", (), tables=(table,))
    assert "error [ulp]" in _rich_text(shown)
    assert "error [ulp]" in str(shown)


def test_a_line_of_a_report() -> None:
    """What `assert check(f, x)` shows names the function, the outcome and the first wrong entry."""
    x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    assert repr(covector.check(torch.log, x)) == "<check(log): PASSED; print() shows all of it>"
    line = repr(covector.check(lambda x: x * x.detach(), x))
    assert line.startswith(
        "<check(<lambda>): FAILED: reverse mode disagrees with central differences, d output["
    )
    assert "is 2, numeric 4" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("function", "point"),
    [
        (torch.log, [1e-5, 2e-4, 1.0, 3.0]),
        (lambda x: (x * 1e6).sin(), [1e-7, -3e-7, 2e-7]),
        (lambda x: x * 1.0, [1e150, -2e150, 3e149]),
        (lambda x: (x - 0.5).abs(), [0.5 + 1e-7, 0.5 - 1e-8, 2.0]),
    ],
    ids=["log", "a short wave", "large numbers", "kinks nearby"],
)
def test_entries_that_are_known_too_little_do_not_count_as_right(function, point) -> None:
    """All of the diagonal is off by a hundredth, of which single differences do not show everything."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(function(leaf), leaf, g)
            return 1.01 * gradient

    report = covector.check(Wrong.apply, torch.tensor(point, dtype=torch.float64, requires_grad=True))
    text = str(report)
    assert report.outcome == "failed"
    assert f"of {len(point) ** 2} entries differ" in text
    assert report.worst.count == len(point) or "At least" in text
    assert " only" not in text
    assert "right at" not in text
