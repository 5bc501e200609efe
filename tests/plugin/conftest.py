"""How the tests run pytest on other suites."""

import shutil
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import covector

HERE = Path(__file__).parent
SOURCE = Path(covector.__file__).parent.parent
collect_ignore = ["suite"]

# Where the package is installed, pytest finds the plugin by itself; elsewhere it has to be named.
LOADED = [] if entry_points(group="pytest11", name="covector") else ["-p", "covector_pytest"]
LOADED += ["-p", "no:zarr"]  # a plugin of zarr, which loads all of it wherever pytest starts


class Loaded:
    """The modules that inner runs loaded: pytester forgets them, but torch's cannot be loaded twice."""

    def __init__(self):
        self.modules = {}

    def pytest_unconfigure(self):
        self.modules = dict(sys.modules)

    def keep(self, folder):
        for name, module in self.modules.items():
            if not str(getattr(module, "__file__", "")).startswith(str(folder)):
                sys.modules.setdefault(name, module)


@pytest.fixture(autouse=True)
def _loaded(tmp_path_factory):
    """Set up before pytester, and so torn down after it."""
    loaded = Loaded()
    yield loaded
    loaded.keep(tmp_path_factory.getbasetemp())


@pytest.fixture
def run(_loaded, pytester):
    """Run pytest in this process, on what lies in the folder of the test."""

    def run(*args, plugins=(), **kwargs):
        arguments = [*LOADED, "-p", "no:cacheprovider", *args]
        result = pytester.runpytest_inprocess(*arguments, plugins=[_loaded, *plugins], **kwargs)
        _loaded.keep(pytester.path)
        return result

    return run


@pytest.fixture
def run_apart(pytester, monkeypatch):
    """The same in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))

    def run(*args):
        return pytester.runpytest_subprocess(*LOADED, "-p", "no:cacheprovider", *args)

    return run


@pytest.fixture
def suite(pytester):
    """A copy of the third-party suite."""
    shutil.copytree(HERE / "suite", pytester.path, dirs_exist_ok=True)
    return pytester.path


@pytest.fixture
def wrong(pytester, suite):
    """A suite with one test that fails, one that asks for an answer, and one that passes."""
    for name in suite.glob("test_*.py"):
        name.unlink()
    pytester.makepyfile(
        test_wrong="""
        import torch
        from suite_helpers import double
        from torch.autograd import gradcheck

        def test_raises(x):
            gradcheck(double, x)

        def test_answers(x):
            assert gradcheck(double, x, raise_exception=False)

        def test_right(x):
            assert gradcheck(torch.sin, x)
        """
    )
    return suite
