"""The command line as people use it: its output, its files, its exit code."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

import covector
from covector import cli
from covector._index import stem_of

ROOT = Path(__file__).parent.parent.parent
SOURCE = Path(covector.__file__).parent.parent

CASES = {
    "good cases.py": """
        import covector, torch
        from beside import sine

        covector.case((3,), order=2)(sine)

        @covector.case((2, 2), dtype=(torch.float32, torch.complex128))
        @covector.case(lambda: torch.eye(2, dtype=torch.float64), name="identity")
        def square(x):
            from later import power
            return power(x)

        @covector.case((2,), torch.ones(2, dtype=torch.float64), kwargs={"scale": 3.0}, check_forward_ad=True)
        def scaled(x, y, *, scale):
            print("scaled on standard output")
            return scale * x * y

        covector.case((5, 3))(torch.nn.Linear(3, 2).double())
    """,
    "beside.py": """
        import covector

        @covector.case((3,))  # not asked for: this file is not a target
        def sine(x):
            return x.sin()
    """,
    "later.py": "def power(x): return x * x",
    "bad.py": """
        import os
        import covector, torch

        @covector.case((2,))
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                print("doubling")
                return 2 * x

            @staticmethod
            def backward(ctx, g):
                return 3 * g

        @covector.case((2,))
        def raises(x):
            raise KeyError("lost")

        @covector.case((2,))
        def dies(x):
            os._exit(7)

        @covector.case((2,), order=2)
        def saved(x):
            return Saved.apply(x)

        class Saved(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x**2)
                return x**3

            @staticmethod
            def backward(ctx, g):
                return 3 * g * ctx.saved_tensors[0]

        covector.case(3.0)(torch.sin)
        covector.case((2,), name="<script>")(torch.cos)
    """,
    "syntax.py": "import covector\ndef f(:\n    pass\n",
    "broken.py": "import covector\nimport covectr\n",
    "empty.py": "import covector\n",
    "misused.py": "import covector\n\n@covector.case\ndef f(x):\n    return x\n",
    "stuck.py": "import time\ntime.sleep(1000)\n",
    "not python.txt": "hello",
    "hanging.py": """
        import time
        import covector

        @covector.case((2,))
        def hangs(x):
            print("about to hang", flush=True)
            time.sleep(1000)
    """,
    "slow.py": """
        import time
        import covector, torch

        covector.case((2,))(torch.sin)

        @covector.case((2,))
        def hangs(x):
            time.sleep(1000)
    """,
}

RUNS = {
    "good": ["check", "good cases.py", "--jobs", "1", "--json", "good.json"],
    "bad": ["check", "bad.py", "--json", "bad.json", "--html", "pages of bad"],
    "hanging": ["check", "hanging.py", "--timeout", "3", "--html", "pages of hanging"],
    "bench": [
        "bench",
        "good cases.py::scaled",
        "bad.py::Double",
        "--seconds",
        "0.01",
        "--json",
        "bench.json",
    ],
}


@pytest.fixture(scope="module", autouse=True)
def _workers_find_this_source():
    """Workers started by this process, whose folder changes, load the covector that is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SOURCE))
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The files above."""
    folder = tmp_path_factory.mktemp("cases")
    for name, text in CASES.items():
        lines = text.split("\n")
        indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        (folder / name).write_text("\n".join(line[indent:] for line in lines), encoding="utf-8")
    return folder


def command(*arguments):
    return [sys.executable, "-m", "covector", *arguments]


def environment():
    return {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "100", "NO_COLOR": "1"}


class Run(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def runs(folder):
    """Every run of the table: two in processes, as people run them, and meanwhile the others in this one."""

    def run(name):
        ended = subprocess.run(
            command(*RUNS[name]), cwd=folder, env=environment(), capture_output=True, text=True, timeout=300
        )
        return Run(ended.returncode, ended.stdout, ended.stderr)

    with ThreadPoolExecutor(2) as pool:
        apart = {name: pool.submit(run, name) for name in ("bad", "bench")}
        here = {name: run_here(folder, arguments) for name, arguments in RUNS.items() if name not in apart}
        return {**here, **{name: ended.result() for name, ended in apart.items()}}


def run_here(folder, arguments):
    """A command in this process; its workers are forked from one that has loaded torch already."""
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
    ):
        patch.chdir(folder)
        return Run(cli.main(arguments), out.getvalue(), err.getvalue())


def lines_of(run):
    """The lines on standard output, in an order that does not depend on who ended first, without times."""
    return [re.sub(r"\d+\.\d+ s", "# s", line) for line in run.stdout.splitlines()]


def test_all_passed(runs, folder):
    """One line for each case; what cases print is not in the way; files beside can be imported."""
    run = runs["good"]
    assert (run.returncode, run.stderr) == (0, "")
    lines = lines_of(run)
    assert sorted(lines[:-2]) == [
        "PASSED        good cases.py::Linear  # s",
        "PASSED        good cases.py::identity  # s",
        "PASSED        good cases.py::scaled  # s",
        "PASSED        good cases.py::sine  # s",
        "PASSED        good cases.py::square[complex128]  # s",
        "PASSED        good cases.py::square[float32]  # s",
    ]
    assert lines[-2:] == ["", "6 cases in # s: 6 passed"]
    data = json.loads((folder / "good.json").read_text(encoding="utf-8"))
    assert (data["version"], data["interrupted"], data["cases"]) == (1, False, 6)
    assert [result["name"] for result in data["results"]][:2] == ["sine", "identity"]
    scaled = next(result for result in data["results"] if result["name"] == "scaled")
    assert "scaled on standard output" in scaled["output"]
    assert {finding["check"] for finding in scaled["reports"][0]["findings"]} >= {
        "forward mode",
        "reverse mode",
    }


def test_each_way_to_fail(runs):
    """A wrong derivative, first or second, an exception, a crash and a case without tensors."""
    run = runs["bad"]
    assert (run.returncode, run.stderr) == (1, "")
    lines = lines_of(run)
    assert sorted(lines[:6]) == [
        "CRASHED       bad.py::dies  # s",
        "FAILED        bad.py::Double  # s",
        "FAILED        bad.py::saved  # s",
        "PASSED        bad.py::<script>  # s",
        "RAISED        bad.py::raises  # s",
        "RAISED        bad.py::sin  # s",
    ]
    summary = "6 cases in # s: 1 crashed, 2 failed, 1 passed, 2 raised"
    assert lines[-3:] == [f"pages: {Path('pages of bad') / 'index.html'}", "", summary]
    shown = {part.partition("\n")[0]: part for part in run.stdout.split("\n--- bad.py::")[1:]}
    assert list(shown) == [
        "Double failed", "raises raised", "dies crashed", "saved failed", "sin raised",
    ]  # fmt: skip
    assert shown["Double failed"].startswith("Double failed\ncheck(Double.apply): FAILED\n")
    assert "\n--- printed by bad.py::Double, the last 20 lines\ndoubling\n" in shown["Double failed"]
    assert shown["Double failed"].count("doubling") == 20
    assert "gradgradcheck(saved): FAILED" in shown["saved failed"]
    assert "no input requires grad" in shown["sin raised"]
    assert RAISED.fullmatch(shown["raises raised"])
    assert shown["dies crashed"] == "dies crashed\nthe process ended with exit code 7\n"


RAISED = re.compile(r"""raises raised
Traceback \(most recent call last\):
  File ".*bad\.py", line \d+, in raises
    raise KeyError\("lost"\)
KeyError: 'lost'
""")
HANGS = """\
TIMED OUT     hanging.py::hangs  # s

--- hanging.py::hangs timed out
the time limit of 3 s was reached
--- printed by hanging.py::hangs
about to hang

pages: pages of hanging/index.html

1 case in # s: 1 timed out
"""


def test_a_case_that_hangs(runs, folder):
    """It is stopped at its limit; what it printed is shown."""
    run = runs["hanging"]
    assert (run.returncode, run.stderr, "\n".join(lines_of(run)) + "\n") == (1, "", HANGS)
    index = (folder / "pages of hanging" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'class="hint" title="([^"]*)"', index) == ["the time limit of 3 s was reached"]
    assert "timed out" in index


def test_pages_and_data_of_failures(runs, folder):
    """A page for each case that has a report; an index of all; the same as JSON."""
    pages = folder / "pages of bad"
    assert sorted(page.name for page in pages.iterdir()) == [
        "bad.py-Double.html", "bad.py-saved.html", f"{stem_of('bad.py::<script>')}.html", "index.html",
    ]  # fmt: skip
    index = (pages / "index.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in index
    assert "<script>" not in index
    assert 'href="bad.py-Double.html"' in index
    assert all(name in index for name in ("raises", "dies", "crashed"))
    hints = re.findall(r'class="hint" title="([^"]*)"', index)
    assert any("KeyError" in hint and "lost" in hint for hint in hints)
    assert "Double.apply" in (pages / "bad.py-Double.html").read_text(encoding="utf-8")
    data = json.loads((folder / "bad.json").read_text(encoding="utf-8"))
    outcomes = {result["name"]: result["outcome"] for result in data["results"]}
    assert outcomes["saved"] == "failed"
    assert outcomes["dies"] == "crashed"
    saved = next(result for result in data["results"] if result["name"] == "saved")
    reports = [covector.Report.from_dict(report) for report in saved["reports"]]
    assert [report.outcome for report in reports] == ["passed", "failed"]
    assert str(reports[1]) == saved["text"]


def test_chosen_cases_as_json_on_standard_output(folder, monkeypatch, capsys):
    """A name stands for all cases of a function, each is run once, and nothing but JSON is printed."""
    monkeypatch.chdir(folder)
    targets = ["good cases.py::square", "good cases.py::identity", "good cases.py::square[float32]"]
    assert cli.main(["check", *targets, "--json", "-", "--jobs", "1"]) == 0
    captured = capsys.readouterr()
    names = [result["name"] for result in json.loads(captured.out)["results"]]
    assert names == ["square[float32]", "square[complex128]", "identity"]
    assert captured.err == ""


def test_syntax_error(folder, monkeypatch, capsys):
    """The file, the line, the place; exit code 2."""
    monkeypatch.chdir(folder)
    code, said = cli.main(["check", "syntax.py"]), capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert re.fullmatch(
        r"covector check: syntax\.py could not be loaded\.\n"
        r'  File ".*syntax\.py", line 2\n    def f\(:\n          \^\nSyntaxError: invalid syntax\n',
        said.err,
    )


def test_bench(runs, folder):
    """A row for each comparison; a check that fails says so; what a function prints is not seen."""
    run = runs["bench"]
    assert (run.returncode, run.stderr) == (0, "")
    assert "doubling" not in run.stdout
    assert "scaled on" not in run.stdout
    header = "case                          task                       ratio    covector       torch  note"
    assert run.stdout.startswith(header)
    rows = json.loads((folder / "bench.json").read_text(encoding="utf-8"))["rows"]
    tasks = ["gradcheck", "gradcheck, fast mode", "jacrev", "jacfwd", "functional.jacobian"]
    assert [(row["case"], row["task"]) for row in rows] == [
        *(("scaled", task) for task in tasks), *(("Double", task) for task in tasks),
    ]  # fmt: skip
    assert all(row["ratio"] > 0 and row["ours"] > 0 and row["theirs"] > 0 for row in rows[:5])
    assert re.fullmatch(r"\d+ pairs?; the check fails by covector and torch", rows[5]["note"])
    assert rows[7]["ratio"] is None
    assert rows[7]["note"].startswith("refused by torch: RuntimeError: ")


def test_bench_of_what_raises(folder, monkeypatch, capsys):
    """It has a row that says so; the others are measured all the same."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    targets = ["bad.py::raises", "bad.py::<script>"]
    code = cli.main(["bench", *targets, "--seconds", "0.01", "--json", "bench raises.json"])
    said = capsys.readouterr()
    assert (code, said.err) == (1, "")
    first, *others = json.loads((folder / "bench raises.json").read_text(encoding="utf-8"))["rows"]
    assert (first["case"], first["ratio"], first["note"]) == ("raises", None, "raised KeyError: 'lost'")
    assert len(others) == 5
    assert all(row["case"] == "<script>" and row["ratio"] > 0 for row in others)
    assert re.search(r"^raises +- +- +-  raised KeyError: 'lost'$", said.out, re.MULTILINE)


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert re.fullmatch(r"covector \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


def test_help_is_enough_to_get_going(capsys):
    """It shows a file of cases and the commands, which are those that there are."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for text in (
        "@covector.case((4, 3))",
        "covector check cases.py",
        "covector bench cases.py",
        "Exit codes: 0",
    ):
        assert text in shown


def test_the_example_in_the_help_runs(tmp_path, monkeypatch, capsys):
    """The file of cases that the help shows is one."""
    monkeypatch.chdir(tmp_path)
    code = cli.EPILOG.split("\n\n    ", 1)[1].split("Then:")[0]
    (tmp_path / "cases.py").write_text(
        "\n".join(line.removeprefix("    ") for line in code.splitlines()), encoding="utf-8"
    )
    assert cli.main(["check", "cases.py"]) == 0
    assert capsys.readouterr().out.count("PASSED") == 2


def test_the_page(tmp_path, monkeypatch, capsys):
    """The file in `docs/command-line.md` ends as the page says."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    (tmp_path / "cases.py").write_text(
        re.search(r"```python\n# cases.py\n(.*?)```", page, re.DOTALL).group(1), encoding="utf-8"
    )
    shown = re.search(r"\$ covector check cases.py\n(.*?)```", page, re.DOTALL).group(1)
    assert cli.main(["check", "cases.py", "--jobs", "1"]) == 1
    printed = capsys.readouterr().out
    without_times = [re.sub(r"\d+\.\d+ s", "# s", text) for text in (shown, printed)]
    assert without_times[1].startswith(without_times[0])
    assert "check(Cube.apply): FAILED" in printed


def test_the_page_on_ci(tmp_path, monkeypatch):
    """The cases in `docs/how-to/ci.md` pass with the command of its workflow, which leaves its files."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")
    (tmp_path / "cases.py").write_text(
        re.search(r"```python\n# cases.py\n(.*?)```", page, re.DOTALL).group(1), encoding="utf-8"
    )
    (command,) = re.findall(r"- run: covector (.+)", page)
    assert cli.main([*command.split(), "--jobs", "1"]) == 0
    saved = json.loads((tmp_path / "cases.json").read_text(encoding="utf-8"))
    assert saved["cases"] == len(saved["results"]) == 4
    assert (tmp_path / "derivatives" / "cases" / "index.html").exists()


def test_pages_of_cases_in_several_folders_do_not_meet():
    """A path may be written in several ways, and each way is another case."""
    names = (
        "a.py::f",
        "./a.py::f",
        "../a.py::f",
        "/a.py::f",
        "a//b.py::f",
        "a/b.py::f",
        "a.b.py::f",
        "a-b.py::f",
    )
    assert len({stem_of(name) for name in names}) == len(names)
    assert stem_of("a/b.py::f") == "a-b.py-f"


def test_cases_do_not_meet(tmp_path, monkeypatch):
    """Each has a page of its own, whatever is left of its name in that of a file."""
    monkeypatch.chdir(tmp_path)
    names = [
        "a/b",
        "a b",
        "a-b",
        "\u0394",
        "\u00e9",
        "\udce9",
        f"{'long' * 50}, first",
        f"first, {'long' * 50}",
    ]
    cases = "".join(f"covector.case((2,), name={name!r})(torch.sin)\n" for name in names)
    (tmp_path / "cases.py").write_text(f"import covector, torch\n{cases}", encoding="utf-8")
    assert cli.main(["check", "cases.py", "--jobs", "1", "--html", "pages", "--json", "found.json"]) == 0
    pages = {
        result["page"]
        for result in json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["results"]
    }
    assert {path.name for path in (tmp_path / "pages").iterdir()} == {"index.html", *pages}
    assert len(pages) == len(names)


def test_files_do_not_meet(tmp_path, capsys):
    """Files in different folders may import different modules of one name."""
    for folder, verb in (("first", "sin"), ("second", "cos")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(
            f"import torch\nfunction = torch.{verb}\n", encoding="utf-8"
        )
        (tmp_path / folder / "cases.py").write_text(
            "import covector\nfrom same import function\ncovector.case((2,))(function)\n", encoding="utf-8"
        )
    files = [str(tmp_path / folder / "cases.py") for folder in ("first", "second")]
    assert cli.main(["check", *files, "--jobs", "1"]) == 0
    assert re.findall(r"::(\w+) ", capsys.readouterr().out) == ["sin", "cos"]


MISUSE = [
    (["check", "nowhere.py"], "covector check: there is no file nowhere.py.\n"),
    (["check", "."], "covector check: . is a folder. Name the files in it: covector check ./*.py\n"),
    (
        ["check", "bad.py::nothing"],
        "covector check: bad.py has no case called nothing; "
        "it has Double, raises, dies, saved, sin, <script>.\n",
    ),
    (
        ["check", "empty.py"],
        "covector check: empty.py registers no case. Give a function its inputs: @covector.case((3, 4)) "
        "above it checks it on a random tensor of that shape.\n",
    ),
    (["check", "broken.py"], "ModuleNotFoundError: No module named 'covectr'\n"),
    (["check", "misused.py"], "As a decorator, case has to be called with inputs: @covector.case((3, 4)).\n"),
    (["check", "not python.txt"], "covector check: not python.txt: this is not a Python file.\n"),
    (
        ["check", "stuck.py", "--timeout", "0.5"],
        "covector check: stuck.py could not be loaded: the time limit of 0.5 s was reached.\n",
    ),
    (
        ["check", "bad.py", "--json", "no/where.json"],
        "covector check: --json no/where.json: there is no folder no.\n",
    ),
    (["bench", "bad.py", "--json", "."], "covector bench: --json .: this is a folder.\n"),
    (
        ["check", "bad.py", "--html", "bad.py"],
        "covector check: --html bad.py: this is a file, and pages go into a folder.\n",
    ),
    (
        ["check", "bad.py", "--html", "bad.py/pages"],
        "--html bad.py/pages: pages cannot be written there: [Errno 20] Not a directory: 'bad.py/pages'.\n",
    ),
    (["bench", "nowhere.py"], "covector bench: there is no file nowhere.py.\n"),
    (["bench", "syntax.py"], "SyntaxError: invalid syntax\n"),
]


@pytest.mark.parametrize(("arguments", "text"), MISUSE, ids=[" ".join(row[0]) for row in MISUSE])
def test_misuse(arguments, text, folder, monkeypatch, capsys):
    """Exit code 2, a message that says what to do, and nothing run."""
    monkeypatch.chdir(folder)
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.endswith(text)
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["chek"], "invalid choice: 'chek'"),
        (["check"], "the following arguments are required: FILE[::NAME]"),
        (["check", "a.py", "--bogus"], "covector check: error: unrecognized arguments: --bogus"),
        (["check", "a.py", "--jobs", "0"], "argument --jobs/-j: must be positive, got 0"),
        (["check", "a.py", "--timeout", "soon"], "argument --timeout: invalid float value: 'soon'"),
    ],
)
def test_misuse_of_options(arguments, text, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


# Whoever starts the tests in the background has them ignore interruptions, and so would the command.
HEEDING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from covector.cli import main
sys.exit(main())
"""


def interrupted(folder, signum):
    """A run that is sent a signal while its second case hangs."""
    arguments = ["check", "slow.py", "--jobs", "1", "--json", f"{signum.name}.json"]
    with subprocess.Popen(
        [sys.executable, "-c", HEEDING, *arguments],
        cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        first = process.stdout.readline()
        workers = children(process.pid)
        process.send_signal(signum)
        rest, errors = process.communicate(timeout=120)
    return process.returncode, first, rest, errors, workers


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.sweep)])
def test_interrupted(signum, folder):
    """What ended before is shown and saved, and no process stays behind."""
    code, first, rest, errors, workers = interrupted(folder, signum)
    assert first.startswith("PASSED        slow.py::sin  ")
    assert re.fullmatch(r"\ninterrupted: 1 of 2 cases in \d+\.\d s: 1 passed\n", rest)
    assert (code, errors) == (130, "")
    data = json.loads((folder / f"{signum.name}.json").read_text(encoding="utf-8"))
    assert (data["interrupted"], data["cases"], len(data["results"])) == (True, 2, 1)
    assert workers
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "a process stayed behind"
        time.sleep(0.1)


def test_the_reader_has_gone(folder, monkeypatch, capfd):
    """`covector check FILE | head -0` ends without a word of complaint."""
    monkeypatch.chdir(folder)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        assert cli.main(["check", "good cases.py::identity"]) == 130
    assert capfd.readouterr().err == ""


def children(process):
    """The processes below one, from /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process:
            child = int(path.parent.name)
            found += [child, *children(child)]
    return found
