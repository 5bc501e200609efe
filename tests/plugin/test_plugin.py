"""The plugin, on suites that know nothing of it."""

import re
import sys
from pathlib import Path

import pytest
import torch

TORCH = sys.modules["torch.autograd.gradcheck"]
CODE = {name: getattr(TORCH, name).__code__ for name in ("gradcheck", "gradgradcheck")}


@pytest.fixture(autouse=True)
def _torch_is_as_before():
    """Whatever an inner run did, torch's functions are torch's again."""
    yield
    for name, code in CODE.items():
        function = getattr(TORCH, name)
        assert function.__code__ is code
        assert function.__kwdefaults__["eps"] == 1e-6
        assert not hasattr(function, "__signature__")
    assert torch.autograd.gradcheck is TORCH.gradcheck


class Recorder:
    """What the reports of an inner run carry."""

    def __init__(self):
        self.checks = {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.partition("::")[2]
        self.checks.setdefault(name, []).extend(report.covector)


def summary_of(result):
    """The lines of covector's part of the summary, without times."""
    lines = result.stdout.lines
    start = next(i for i, line in enumerate(lines) if re.fullmatch(r"=+ covector =+", line))
    stop = next(i for i, line in enumerate(lines) if i > start and line.startswith("="))
    return [re.sub(r"\d+\.\d+", "#", line) for line in lines[start + 1 : stop]]


def failure_of(result, test):
    """The part of the output that shows how a test failed."""
    text = result.stdout.str()
    found = re.search(rf"^_+ {test} _+$\n(.*?)(?=^_+ \w+ _+$|^=+ )", text, re.DOTALL | re.MULTILINE)
    return re.sub(r"\+- \S+", "+- #", found.group(1))


def test_every_way_to_import_gradcheck_is_answered(suite, run):
    """No test of the suite goes past covector, except the one that runs no check."""
    recorder = Recorder()
    result = run("--covector", plugins=[recorder])
    assert result.ret == 0
    assert len(recorder.checks) == 33
    unanswered = [name for name, checks in recorder.checks.items() if not checks]
    assert unanswered == ["test_looks_at_the_signature"]
    assert len(recorder.checks["test_way[two in a helper]"]) == 2
    assert {check["what"] for check in recorder.checks["test_expects_the_error"]} == {"gradcheck(double)"}


def test_without_the_flag_nothing_is_answered(suite, run):
    """The suite runs as if covector were not there."""
    result = run()
    assert result.ret == 0
    assert "covector" not in result.stdout.str().replace("covector_pytest", "").partition("collected")[2]


def test_the_failure_is_our_report(wrong, run):
    """In the error where it is raised, in a section of its own where a test asks for an answer."""
    result = run("--covector")
    result.assert_outcomes(passed=1, failed=2)
    assert failure_of(result, "test_raises").startswith(RAISES)
    assert "covector_pytest.py" not in result.stdout.str()
    assert SECTION in failure_of(result, "test_answers")


RAISES = """
x = tensor([0.1000, 0.5000, 0.9000], dtype=torch.float64, requires_grad=True)

    def test_raises(x):
>       gradcheck(double, x)
E       covector.errors.GradcheckError: gradcheck(double): FAILED
E       reverse mode disagrees with central differences
"""
SECTION = """\
------------------------- covector: gradcheck(double) --------------------------
gradcheck(double): FAILED
reverse mode disagrees with central differences
"""


def test_the_summary(wrong, run):
    """How many checks, how they ended, the time, the slowest ones."""
    lines = summary_of(run("--covector"))
    assert lines[:2] == ["3 checks in # s: 2 failed, 1 passed", "slowest:"]
    assert sorted(lines[2:]) == [
        "    # s  gradcheck(double)  test_wrong.py::test_answers",
        "    # s  gradcheck(double)  test_wrong.py::test_raises",
        "    # s  gradcheck(sin)  test_wrong.py::test_right",
    ]


def test_the_flag_swallows_no_path(wrong, run):
    """`pytest --covector FILE` is the flag and a file."""
    result = run("--covector", "test_wrong.py::test_right")
    result.assert_outcomes(passed=1)
    assert summary_of(result)[0] == "1 check in # s: 1 passed"


def test_other_values_are_refused(wrong, run):
    """With the ways in which the flag can be written."""
    result = run("--covector=both")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    expected = "argument --covector/--covector=compare: ignored explicit argument 'both'"
    assert expected in result.stderr.str()
    result = run("--covector", "compare")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "there is no file compare; to compare, write --covector=compare." in result.stderr.str()


def test_pages_imply_the_flag(wrong, run):
    result = run("--covector-report=pages")
    result.assert_outcomes(passed=1, failed=2)
    assert summary_of(result)[0] == "3 checks in # s: 2 failed, 1 passed"
    assert (wrong / "pages" / "test_wrong.py-test_raises-1.html").exists()


def test_a_failure_names_the_command_that_repeats_it(wrong, run, monkeypatch):
    """The functions of a test are its own, so that code could not be pasted; from any folder."""
    folder = wrong / "a folder"
    folder.mkdir()
    (wrong / "pytest.ini").write_text("[pytest]", encoding="utf-8")
    (folder / "test_wrong_too.py").write_text(
        (wrong / "test_wrong.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    monkeypatch.chdir(folder)
    result = run("--covector", "-k", "raises")
    result.stdout.fnmatch_lines(["E*reproduce: pytest test_wrong_too.py::test_raises --covector"])
    result = run("--covector", "-k", "raises", "--rootdir", str(wrong))
    result.stdout.fnmatch_lines(["E*reproduce: pytest test_wrong_too.py::test_raises --covector"])
    monkeypatch.chdir(wrong)
    result = run("--covector", "-k", "raises", "a folder")
    result.stdout.fnmatch_lines(["E*reproduce: pytest 'a folder/test_wrong_too.py::test_raises' --covector"])


def test_folders_with_a_conftest_of_their_own(wrong, run):
    """There pytest asks each plugin whether it belongs to the folder."""
    for name in ("first", "second"):
        (wrong / name).mkdir()
        (wrong / name / "conftest.py").write_text("import pytest\n", encoding="utf-8")
        (wrong / name / f"test_{name}.py").write_text(
            (wrong / "test_wrong.py").read_text(encoding="utf-8"), encoding="utf-8"
        )
    result = run("--covector")
    result.assert_outcomes(passed=3, failed=6)
    assert summary_of(result)[0] == "9 checks in # s: 6 failed, 3 passed"


def test_a_torch_that_covector_does_not_work_with_is_a_usage_error(pytester):
    """The reason, and nothing of the inside of pytest."""
    pytester.makeconftest("import torch\ndel torch._C._functorch._wrap_for_grad")
    pytester.makepyfile("import torch\ndef test_nothing(): pass")
    result = pytester.runpytest_subprocess("--covector")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --covector: covector does not work with torch *_wrap_for_grad. It is*"]
    )


def test_a_run_without_checks_says_so(pytester, run):
    pytester.makepyfile("def test_nothing(): pass")
    assert summary_of(run("--covector")) == ["no gradcheck ran"]


DIFFERENT = """
import torch
from torch.autograd import gradcheck

class Absolute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.abs()

def absolute(x):
    return Absolute.apply(x)

def detached(x):
    return x.detach() * 3, x * 2

x = torch.ones(2, dtype=torch.float64, requires_grad=True)

def test_torch_misses_this():
    assert gradcheck(absolute, x)

def test_torch_accuses_this():
    assert gradcheck(detached, x, check_forward_ad=True)

def test_same():
    assert gradcheck(torch.sin, x)
"""


def test_compare(pytester, run):
    """Both are asked; the tests end as torch has them; what differs is shown with our report."""
    pytester.makepyfile(test_different=DIFFERENT)
    result = run("--covector=compare")
    result.assert_outcomes(passed=2, failed=1)
    lines = summary_of(result)
    assert lines[:3] == [
        "3 checks in # s: 1 failed, 2 passed",
        "beside torch: # s against # s, which is # of its time for all checks together, "
        "and # for the median check",
        "verdicts that differ: 2",
    ]
    missed = lines.index("  test_different.py::test_torch_misses_this")
    assert lines[missed + 1 : missed + 3] == [
        "    gradcheck(absolute): covector failed, torch passed",
        "      gradcheck(absolute): FAILED",
    ]
    assert lines[missed + 3].startswith(
        "      linearity: FAILED: the backward is not linear in the cotangent"
    )
    accused = lines.index("  test_different.py::test_torch_accuses_this")
    assert lines[accused + 1] == "    gradcheck(detached): covector passed, torch failed"
    # Of torch's error, the message and the line of the test: nothing of the inside of torch or of covector.
    result.stdout.fnmatch_lines(["test_different.py:*: GradcheckError"])
    result.stdout.no_fnmatch_line("*gradcheck.py:*")
    assert "test_same" not in "".join(lines[: lines.index("slowest:")])


def test_compare_on_the_suite(suite, run):
    """Nothing of ours gets into torch's run, though its `gradgradcheck` calls `gradcheck`."""
    recorder = Recorder()
    result = run("--covector=compare", plugins=[recorder])
    assert result.ret == 0
    checks = [check for found in recorder.checks.values() for check in found]
    assert len(checks) == 34
    assert all(check["peer_outcome"] and check["peer_seconds"] > 0 for check in checks)
    assert "verdicts that differ: none" in summary_of(result)


def test_pages_and_index(wrong, run):
    """A page for each check that did not pass, and an index that links to it."""
    result = run("--covector", "--covector-report", "out of here")
    folder = wrong / "out of here"
    pages = sorted(path.name for path in folder.iterdir())
    assert pages == ["index.html", "test_wrong.py-test_answers-1.html", "test_wrong.py-test_raises-1.html"]
    assert "gradcheck(double)" in (folder / pages[1]).read_text(encoding="utf-8")
    index = (folder / "index.html").read_text(encoding="utf-8")
    assert "<h1>2 checks did not pass</h1>" in index
    assert all(f'href="{page}"' in index for page in pages[1:])
    assert "test_right" not in index
    assert "`backward` returns 1.500 x" in index
    page = (folder / pages[1]).read_text(encoding="utf-8")
    assert '<a href="index.html">all checks</a> &middot; <code>test_wrong.py::test_answers</code>' in page
    assert summary_of(result)[-1] == f"pages: {folder / 'index.html'}"


EXPECTED = """
import pytest, torch
from suite_helpers import double
from torch.autograd import gradcheck

@pytest.mark.xfail
def test_known(x):
    assert gradcheck(double, x)

def test_refused(x):
    with pytest.raises(RuntimeError):
        gradcheck(double, x)
"""


def test_the_index_tells_a_failed_check_from_a_failed_test(wrong, pytester, run):
    """A failure that is expected is not red; pages of an earlier run are gone, other files are not."""
    (wrong / "test_wrong.py").unlink()
    pytester.makepyfile(test_expected=EXPECTED)
    pages = wrong / "pages"
    pages.mkdir()
    (pages / "mine.html").write_text("<p>not covector's</p>", encoding="utf-8")
    (pages / "old.html").write_text('<meta name="generator" content="covector">', encoding="utf-8")
    result = run("--covector-report", "pages")
    result.assert_outcomes(passed=1, xfailed=1)
    assert summary_of(result)[0] == "2 checks in # s: 2 failed as the test expects"
    index = (pages / "index.html").read_text(encoding="utf-8")
    assert (
        '<span class="chip calm">failed</span> <span class="chip calm">test expected failure</span>' in index
    )
    assert '<span class="chip calm">failed</span> <span class="chip calm">test passed</span>' in index
    assert 'class="chip failed"' not in index
    assert sorted(path.name for path in pages.iterdir()) == [
        "index.html", "mine.html", "test_expected.py-test_known-1.html",
        "test_expected.py-test_refused-1.html",
    ]  # fmt: skip


def test_a_folder_that_cannot_be_is_a_sentence(wrong, run):
    (wrong / "file").write_text("", encoding="utf-8")
    result = run("--covector-report=file/pages")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "pages cannot be written there" in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


def test_differences_are_accepted(pytester, run):
    """One option writes them, another one reads them: those that are listed are not shown."""
    pytester.makepyfile(test_different=DIFFERENT)
    lines = summary_of(run("--covector=compare", "--covector-differences=known.txt"))
    assert "verdicts that differ: 2" in lines
    assert any(line.startswith("2 differences written to ") for line in lines)
    known = (pytester.path / "known.txt").read_text(encoding="utf-8").splitlines()
    assert known == [
        "test_different.py::test_torch_accuses_this gradcheck(detached): covector passed, torch failed",
        "test_different.py::test_torch_misses_this gradcheck(absolute): covector failed, torch passed",
    ]
    lines = summary_of(run("--covector=compare", "--covector-accept=known.txt"))
    assert "verdicts that differ: none, and 2 accepted" in lines
    assert "linearity" not in "".join(lines)
    assert "not met" not in "".join(lines)


def test_accepted_differences_that_are_not_met_are_listed(pytester, run):
    """A list that somebody wrote: comments mean nothing, and a test whose name is mistyped is seen."""
    pytester.makepyfile(test_different=DIFFERENT)
    torch_accuses = "test_torch_accuses_this gradcheck(detached): covector passed, torch failed"
    (pytester.path / "known.txt").write_text(
        f"# agreed on\n\n  test_different.py::{torch_accuses} \ntest_diferent.py::{torch_accuses}\n",
        encoding="utf-8",
    )
    lines = summary_of(run("--covector=compare", "--covector-accept=known.txt"))
    assert "verdicts that differ: 1, and 1 accepted" in lines
    at = lines.index("accepted, but not met in this run: 1")
    assert lines[at + 1] == f"  test_diferent.py::{torch_accuses}"


@pytest.mark.parametrize("option", ["accept", "differences"])
def test_lists_of_differences_belong_to_a_comparison(option, run):
    result = run("--covector", f"--covector-{option}=known.txt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "which --covector=compare finds" in result.stderr.str()


def test_a_list_that_is_not_there_accepts_nothing(pytester, run):
    """A path that is mistyped is an error, and no file is made."""
    pytester.makepyfile(test_different=DIFFERENT)
    result = run("--covector=compare", "--covector-accept=knwon.txt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        "--covector-accept=knwon.txt: there is no such file. --covector-differences=knwon.txt writes"
        in result.stderr.str()
    )
    assert not (pytester.path / "knwon.txt").exists()


@pytest.mark.parametrize("option", ["accept", "differences"])
@pytest.mark.parametrize("name", ["missing/known.txt", "folder", f"{'long' * 100}/known.txt"])
def test_a_list_of_differences_that_cannot_be_is_a_sentence(name, option, pytester, run):
    pytester.makepyfile(test_different=DIFFERENT)
    (pytester.path / "folder").mkdir()
    result = run("--covector=compare", f"--covector-{option}={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--covector-{option}={name}" in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


def test_a_list_that_is_no_text_is_a_sentence(pytester, run):
    (pytester.path / "binary").write_bytes(b"\xff\xfe\x00")
    result = run("--covector=compare", "--covector-accept=binary")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--covector-accept=binary: 'utf-8' codec can't decode" in result.stderr.str()


COLLIDING = """
import pytest, torch
from suite_helpers import double
from torch.autograd import gradcheck

@pytest.fixture
def checked(x):
    gradcheck(double, x, raise_exception=False)

@pytest.mark.parametrize("name", ["a b", "a-b"])
def test_one(x, checked, name):
    gradcheck(double, x, raise_exception=False)
    gradcheck(double, x, raise_exception=False)
"""


def test_a_gradcheck_of_covectors_own_name_that_returns_false_is_counted(pytester, run):
    """Once each, whatever becomes of the test, with the page that one answered for torch has."""
    pytester.makepyfile(
        """
        import torch
        from covector import gradcheck, gradgradcheck

        x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)

        def square(x):
            return x * x.detach()

        def test_asserts():
            assert gradcheck(square, x, raise_exception=False)

        def test_is_told():
            assert not gradcheck(square, x, raise_exception=False)
            assert not gradgradcheck(torch.detach, x, raise_exception=False)
            assert not torch.autograd.gradcheck(square, x, raise_exception=False)
        """
    )
    result = run("--covector", "--covector-report", "pages")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["4 checks in * s: 1 failed, 3 failed as the test expects"])
    assert len(list((pytester.path / "pages").iterdir())) == 1 + 4


def test_no_page_is_lost(wrong, pytester, run):
    """Several checks in one test, in its fixtures, and in tests of nearly one name."""
    (wrong / "test_wrong.py").unlink()
    pytester.makepyfile(test_colliding=COLLIDING)
    run("--covector", "--covector-report", "pages").assert_outcomes(passed=2)
    names = [page.name for page in (wrong / "pages").iterdir()]
    assert len(names) == 1 + 6


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.sweep)])
def test_workers(workers, wrong, run_apart):
    """Under pytest-xdist the controller counts what the workers checked."""
    (wrong / "test_more.py").write_text(
        (wrong / "test_wrong.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    result = run_apart("--covector", "-n", workers, "--covector-report", "pages")
    result.assert_outcomes(passed=2, failed=4)
    lines = summary_of(result)
    assert re.fullmatch(r"6 checks in # s: (4 failed, 2 passed|2 passed, 4 failed)", lines[0])
    assert len(lines) == 8
    index = (wrong / "pages" / "index.html").read_text(encoding="utf-8")
    pages = re.findall(r'href="(.*?)"', index)
    assert len(set(pages)) == 4
    assert all((wrong / "pages" / page).is_file() for page in pages)
    assert result.stdout.str().count("covector: gradcheck(double)") == 2


LAZY = """
import sys

def test_nothing_is_loaded():
    assert "torch" not in sys.modules
    assert "covector" not in sys.modules

def test_torch_imported_in_a_test():
    import torch
    from torch.autograd import gradcheck

    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(torch.sin, x, kinks="pass")  # a keyword that torch does not know

def test_loader_is_sound():
    import importlib.resources, inspect, torch
    assert inspect.getsource(torch).strip()
    assert (importlib.resources.files(torch) / "version.py").is_file()
"""


def test_starting_loads_neither_torch_nor_covector(pytester, run_apart):
    """With the flag or without it; and torch is answered for from the moment that it is imported."""
    pytester.makepyfile(test_lazy=LAZY)
    result = run_apart("--covector")
    result.assert_outcomes(passed=3)
    assert summary_of(result)[0] == "1 check in # s: 1 passed"


COVECTOR_FIRST = """
def test_covector_imported_before_torch():
    import covector  # torch is imported in the middle of this
    from torch.autograd import gradcheck
    import torch

    assert gradcheck(torch.relu, torch.zeros(1, dtype=torch.float64, requires_grad=True), kinks="pass")
"""


@pytest.mark.sweep
def test_covector_may_be_loaded_before_torch(pytester, run_apart):
    """Torch is answered for all the same."""
    pytester.makepyfile(test_lazy=COVECTOR_FIRST)
    run_apart("--covector").assert_outcomes(passed=1)


MARKED = """
import pytest, torch, unittest
from torch.autograd import gradcheck as theirs, gradgradcheck as second

zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
x = torch.ones(2, dtype=torch.float64, requires_grad=True)

@pytest.mark.covector(kinks="pass")
class TestClass:
    def test_fixture(self, gradcheck):
        assert gradcheck(torch.relu, zero)

    def test_answered(self):
        assert theirs(torch.relu, zero)

    def test_the_call_wins(self):
        assert not theirs(torch.relu, zero, kinks="fail", raise_exception=False)

    @pytest.mark.covector(kinks="fail")
    def test_the_nearest_wins(self):
        assert not theirs(torch.relu, zero, raise_exception=False)

@pytest.mark.covector(kinks="pass")
class Case(unittest.TestCase):
    def test_method(self):
        self.assertTrue(theirs(torch.relu, zero))

@pytest.mark.covector(check_forward_ad=True)
def test_keyword_of_the_other(gradgradcheck):
    assert gradgradcheck(torch.sin, x) and theirs(torch.sin, x)

@pytest.mark.covector(fastmode=True)
def test_typo(gradcheck):
    gradcheck(torch.sin, x)

@pytest.mark.covector(1e-4)
def test_no_name(gradcheck):
    gradcheck(torch.sin, x)
"""


def test_markers_and_fixtures(pytester, run):
    """Keywords for the checks of a test, answered or by the fixture."""
    pytester.makepyfile(test_marked=MARKED)
    result = run("--covector", "--strict-markers")
    result.assert_outcomes(passed=6, failed=2)
    advice = (
        "it takes keywords of covector.gradcheck, gradgradcheck and kernelcheck, such as atol=1e-4 or "
        "fast_mode=True."
    )
    assert f"@pytest.mark.covector got fastmode; {advice}" in result.stdout.str()
    assert f"@pytest.mark.covector got a value without a name; {advice}" in result.stdout.str()


KERNELS = """
import pytest, torch

@pytest.mark.covector(lenses=["again"], atol=1e-4)
def test_right(kernelcheck):
    assert kernelcheck(lambda x: x * x, torch.square, torch.randn(9, 7, requires_grad=True))

@pytest.mark.covector(lenses=["again"])
def test_wrong(kernelcheck):
    kernelcheck(kernel=lambda x: x * x * 1.01, reference=torch.square, inputs=torch.randn(9, 7))
"""


def test_fixture_for_kernels(pytester, run):
    """Counted, with the keywords of the marker that it takes."""
    pytester.makepyfile(test_kernels=KERNELS)
    result = run("--strict-markers")
    result.assert_outcomes(passed=1, failed=1)
    assert "kernelcheck(<lambda>)" in result.stdout.str()
    assert "check_kernel(<lambda>): FAILED" in result.stdout.str()
    assert "2 checks" in summary_of(result)[0]


def test_fixture_without_the_flag(pytester, run):
    """The fixture needs no flag; torch's own checks stay torch's, and torch knows no `kinks`."""
    pytester.makepyfile(test_marked=MARKED)
    result = run("-k", "test_fixture or test_keyword_of_the_other or test_method")
    result.assert_outcomes(passed=2, failed=1, deselected=5)
    assert "2 checks" in summary_of(result)[0]


def test_switched_off(pytester):
    """`-p no:covector` is as if it were not installed."""
    result = pytester.runpytest_subprocess("-p", "no:covector", "--covector")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "unrecognized arguments: --covector" in result.stderr.str()


OUTSIDE = """
import torch
from torch.autograd import gradcheck
x = torch.ones(2, dtype=torch.float64, requires_grad=True)
assert gradcheck(torch.sin, x, kinks="pass")

def test_nothing(): pass
"""


def test_checks_outside_a_test_count(pytester, run):
    pytester.makepyfile(test_outside=OUTSIDE)
    assert summary_of(run("--covector"))[-1] == "    # s  gradcheck(sin)  (outside a test)"


def test_the_error_of_a_function_is_its_own(pytester, run):
    """What a function raises while it is checked reaches the test, with the lines that raised it."""
    pytester.makepyfile(
        """
        import torch
        from torch.autograd import gradcheck

        def lost(x):
            raise KeyError("lost")

        def test_lost():
            gradcheck(lost, torch.ones(2, dtype=torch.float64, requires_grad=True))
        """
    )
    result = run("--covector")
    result.stdout.fnmatch_lines(['>   *raise KeyError("lost")', "E * KeyError: 'lost'"])
    assert summary_of(result)[0] == "1 check in # s: 1 raised KeyError"


def test_interrupted(pytester, run):
    """What was checked before an interruption is summed up, and torch is put back."""
    pytester.makepyfile(
        """
        import torch
        from torch.autograd import gradcheck
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)

        def interrupt(x):
            raise KeyboardInterrupt

        def test_right():
            assert gradcheck(torch.sin, x)

        def test_interrupted():
            gradcheck(interrupt, x)
        """
    )
    result = run("--covector", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert summary_of(result)[0] == "1 check in # s: 1 passed"


def test_the_page(pytester, run):
    """The tests shown in `docs/pytest.md` pass, without the flag."""
    page = (Path(__file__).parent.parent.parent / "docs" / "pytest.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n# test_layer.py\n(.*?)```", page, re.DOTALL).group(1)
    (pytester.path / "test_layer.py").write_text(code, encoding="utf-8")
    result = run("--strict-markers")
    result.assert_outcomes(passed=3)
    assert summary_of(result)[0] == "3 checks in # s: 3 passed"


def test_the_page_on_ci(pytester, run):
    """The suite in `docs/how-to/ci.md` passes with each command of the page, under its `pytest.ini`."""
    page = (Path(__file__).parent.parent.parent / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")
    files = dict(re.findall(r"```(?:python|ini)\n# (\S+)\n(.*?)```", page, re.DOTALL))
    for name in ("test_layers.py", "pytest.ini"):
        (pytester.path / name).write_text(files[name], encoding="utf-8")
    commands = re.findall(r"(?:\$|- run:) pytest (.+)", page)
    assert len(commands) == 2
    for command in commands:
        result = run(*command.split())
        result.assert_outcomes(passed=1)
        assert summary_of(result)[0].startswith("1 check ")


def test_something_else_was_there_first(pytester, run):
    """A conftest that replaces torch's function where it lives is told so."""
    pytester.makeconftest(
        """
        import functools, sys
        import torch
        import pytest

        module = sys.modules["torch.autograd.gradcheck"]
        original = module.gradcheck
        module.gradcheck = functools.partial(original, atol=1e-4)

        def pytest_unconfigure():
            module.gradcheck = original
        """
    )
    result = run("--covector")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert (
        "ERROR: --covector: torch.autograd.gradcheck.gradcheck is an instance of partial, not torch's own "
        "function, so it cannot be swapped."
    ) in result.stderr.str()
    module = sys.modules["torch.autograd.gradcheck"]
    module.gradcheck = getattr(module.gradcheck, "func", module.gradcheck)


def test_a_check_that_a_test_calls_itself_has_a_page(pytester, run):
    """The test imports covector, and asks no name of torch's."""
    pytester.makepyfile(
        """
        import torch, covector

        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g * 3

        def test_own():
            covector.gradcheck(Double.apply, torch.ones(3, dtype=torch.float64, requires_grad=True))

        def test_other():
            raise ValueError("nothing to do with it")
        """
    )
    result = run("--covector-report=pages")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["1 check in * s: 1 failed"])
    index = (pytester.path / "pages" / "index.html").read_text(encoding="utf-8")
    assert "gradcheck(Double.apply)" in index
    assert len(list((pytester.path / "pages").glob("*test_own*.html"))) == 1


def test_a_check_by_its_own_name(pytester, run):
    """What pytest shows of a failure is the line of the test and the report, nothing of covector's code."""
    pytester.makepyfile(
        """
        import torch
        from covector import check, gradcheck

        x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)

        def square(x):
            return x * x.detach()

        def test_raises():
            gradcheck(square, x)

        def test_asserts():
            assert check(square, x)
        """
    )
    result = run()
    result.assert_outcomes(failed=2)
    shown = failure_of(result, "test_raises")
    assert "GradcheckError: gradcheck(square): FAILED" in shown
    assert "api.py" not in shown
    assert "_door.py" not in shown
    assert "assert <check(square): FAILED: reverse mode disagrees" in failure_of(result, "test_asserts")


def test_reports_of_check_in_a_test_that_fails(pytester, run):
    """They are shown, counted, and have pages; those of a test that passes are its own affair."""
    pytester.makepyfile(
        """
        import torch, covector

        x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)

        def square(x):
            return x * x.detach()

        def test_asserts():
            assert covector.check(square, x)

        def test_expects():
            assert not covector.check(square, x)
        """
    )
    result = run("--covector", "--covector-report=pages")
    result.assert_outcomes(passed=1, failed=1)
    shown = failure_of(result, "test_asserts")
    assert "covector: check(square)" in shown
    assert "d output[1] / d x[1]" in shown
    (line,) = [line for line in summary_of(result) if "failed" in line]
    assert line.startswith("1 check in")
    pages = sorted(path.name for path in (pytester.path / "pages").glob("*.html"))
    assert len(pages) == 2
    assert "test_asserts" in (pytester.path / "pages" / "index.html").read_text(encoding="utf-8")
