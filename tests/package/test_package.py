"""What is published: it is built here as an index would get it, installed beside a torch, and used there."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import covector

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = PROJECT["project"]["version"]


def tracked(folder):
    """The files in a folder, relative to it, without what Python and pip leave there."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix()
        for path in files
        if "__pycache__" not in path.parts and not any(part.endswith(".egg-info") for part in path.parts)
    }


def test_files_that_are_read_are_part_of_the_package():
    """Every file beside the modules is in the wheel."""
    listed = {f"covector/{name}" for name in PROJECT["tool"]["setuptools"]["package-data"]["covector"]}
    beside = {name for name in tracked(SOURCE) if not name.endswith(".py")}
    assert beside == listed


def test_the_extras_that_people_ask_for():
    """The usual ones are there, and covector itself asks for minimal versions only."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert {"plot", "sparse", "pytest", "dev", "docs", "dist"} <= set(extras)
    assert not [line for line in PROJECT["project"]["dependencies"] if "<" in line or "==" in line]


def run(*command, cwd):
    """The output of a command that has to succeed, and sees nothing of the sources here."""
    around = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    around["PIP_NO_CACHE_DIR"] = "1"  # a cache would be in the home, which may be read-only
    command = [str(part) for part in command]
    done = subprocess.run(command, cwd=cwd, env=around, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """A copy of the project, so that building it leaves nothing behind."""
    copy = tmp_path_factory.mktemp("source") / "covector"
    kept_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "_build")
    shutil.copytree(ROOT, copy, ignore=kept_out)
    return copy


@pytest.fixture(scope="session")
def built(source):
    """The folder with the source distribution and the wheel that was made from it."""
    run(sys.executable, "-m", "build", cwd=source)
    return source / "dist"


@pytest.mark.sweep
def test_the_wheel_has_the_package_and_nothing_else(built):
    """Every module, the data, the types, the licence."""
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"covector-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"covector-{VERSION}.dist-info/METADATA").decode()
    info = {name for name in names if ".dist-info/" in name}
    assert names - info == tracked(SOURCE)
    assert "covector/py.typed" in names
    assert f"covector-{VERSION}.dist-info/licenses/LICENSE" in info
    assert "License-Expression: BSD-3-Clause" in metadata
    assert "Requires-Dist: torch>=2.9\n" in metadata
    assert metadata.partition("\n\n")[2].strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()


@pytest.mark.sweep
def test_the_source_distribution_has_what_make_needs(built):
    """Sources, tests, pages, tools."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for folder in ("src", "tests", "docs", "examples", "benchmarks", "tools"):
        wanted = {f"{folder}/{name}" for name in tracked(ROOT / folder) if not name.startswith("_build")}
        assert not {name for name in wanted - names if "/." not in name}
    assert {"Makefile", "constraints.txt", "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names


class Environment:
    """An environment of its own, in which a torch is installed and nothing else."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        venv.create(folder, with_pip=True)
        self.install("-c", ROOT / "constraints.txt", "torch")
        self.torch = self.release("torch")

    def install(self, *requirements):
        return run(self.bin / "python", "-m", "pip", "install", *requirements, cwd=self.folder)

    def release(self, package):
        code = f"from importlib.metadata import version; print(version({package!r}))"
        return run(self.bin / "python", "-c", code, cwd=self.folder).strip()


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """The one that the tests below share; each installs covector in its own way."""
    return Environment(tmp_path_factory.mktemp("environment"))


SUITE = """
import torch
from torch.autograd import gradcheck

def test_sine():
    assert gradcheck(torch.sin, torch.ones(3, dtype=torch.float64, requires_grad=True))
"""

USE = """
import importlib.resources, inspect, torch, covector
for name in covector.__all__:
    assert getattr(covector, name) is not None
from covector import *
assert importlib.resources.files("covector").joinpath("py.typed").is_file()
report = covector.check(torch.sin, torch.ones(3, dtype=torch.float64, requires_grad=True))
assert report
report.to_html("report.html")
print(len(covector.__all__), inspect.getfile(covector))
"""


def use(environment):
    """Every public name, a check, the command and the pytest plugin, as a new user would."""
    count, where = run(environment.bin / "python", "-c", USE, cwd=environment.folder).split()
    assert int(count) == len(covector.__all__)
    assert Path(where).is_relative_to(environment.folder)
    assert run(environment.bin / "covector", "--version", cwd=environment.folder) == f"covector {VERSION}\n"
    (environment.folder / "test_suite.py").write_text(SUITE, encoding="utf-8")
    suite = run(
        environment.bin / "python", "-m", "pytest", "--covector", "test_suite.py", cwd=environment.folder
    )
    assert "1 passed" in suite
    assert "covector" in suite


@pytest.mark.sweep
@pytest.mark.parametrize("way", ["wheel", "source distribution", "folder"])
def test_installed_beside_a_torch(way, built, source, environment):
    """The torch that is there stays, and everything that is public works."""
    what = {
        "wheel": next(built.glob("*.whl")),
        "source distribution": next(built.glob("*.tar.gz")),
        "folder": source,
    }[way]
    environment.install(f"covector[pytest] @ {what.as_uri()}")
    assert environment.release("torch") == environment.torch
    use(environment)
    run(environment.bin / "python", "-m", "pip", "uninstall", "--yes", "covector", cwd=environment.folder)
