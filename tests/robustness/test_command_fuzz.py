"""The command with arbitrary arguments and files: an exit code, and never a traceback of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from covector import bench, cli
from covering import random_examples
from watched import state

FILES = {
    "good.py": "import covector, torch\ncovector.case((2,))(torch.sin)\n",
    "wrong.py": "import covector\n@covector.case((2,))\ndef wrong(x):\n    return x.detach() * x\n",
    "empty.py": "",
    "syntax.py": "def :",
    "raises.py": "raise KeyError('lost')",
    "leaves.py": "import sys\nsys.exit(3)",
    "crashes.py": "import os\nos._exit(5)",
    "nasty <b>.py": "import covector, torch\ncovector.case((2,), name='../<script>::x')(torch.cos)\n",
}
LATIN = b"# \xe9\n"
TARGETS = (
    *FILES,
    "good.py::sin",
    "good.py::cos",
    "good.py::",
    "nasty <b>.py::../<script>::x",
    "latin.py",
    "missing.py",
    "folder",
    ".",
    "",
    "::",
    "null\0.py",
    "half\udce9.py",
    "long" * 1000,
)
VALUES: dict[str, tuple[str, ...]] = {
    "--jobs": ("1", "2", "0", "-1", "a", "1.5", str(2**70)),
    "--timeout": ("60", "inf", "nan", "0", "-1", "a", "1e300"),
    "--json": ("-", "found.json", ".", "folder", "missing/found.json", "good.py/found.json", "null\0"),
    "--html": ("pages", "deep/pages", "folder", "good.py", "good.py/pages", "null\0"),
    "--dask": ("", "nowhere", "tcp://", "tcp://127.0.0.1:1", "udp://x"),
    "--seconds": ("0.001", "0", "nan", "a"),
    "--unknown": ("1",),
}

options = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.sampled_from([[name], *([name, value] for value in VALUES[name])])
)
commands = st.tuples(
    st.sampled_from(["check"] * 6 + ["bench", "bad", ""]),
    st.lists(st.sampled_from(TARGETS), max_size=3),
    st.lists(options, max_size=2),
).map(lambda parts: [parts[0], *parts[1], *(word for option in parts[2] for word in option)])


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: Any) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "latin.py").write_bytes(LATIN)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_CONNECTING", 0.1)
    monkeypatch.setattr(bench, "warm_up", lambda: None)
    monkeypatch.setattr(bench, "rows", lambda case, seconds: iter(()))


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("count", [25, pytest.param(600, marks=pytest.mark.sweep)])
def test_any_arguments(count: int, capsys: Any) -> None:
    """What is misused is said to be, by the code 2 and on standard error."""

    @random_examples(count)
    @given(arguments=commands)
    def run(arguments: list[str]) -> None:
        assume(not {"bench", "crashes.py"} <= set(arguments))  # which would end this process
        torch.manual_seed(0)
        before = state()
        try:
            code = cli.main(arguments)
        except SystemExit as left:  # of the reader of arguments
            code = left.code
        said = capsys.readouterr()
        assert state() == before
        assert code in (cli.Exit.PASSED, cli.Exit.FAILED, cli.Exit.MISUSED), (arguments, said)
        assert (code == cli.Exit.MISUSED) == bool(said.err), (arguments, said)

    run()
