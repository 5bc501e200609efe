"""The machinery of the benchmarks, on tasks that take no time: what is kept, compared and written."""

import json
import multiprocessing
import os
import signal
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks import _plot, _results, areas, growth
from benchmarks._board import ASIDE, BYTES, COUNT, FULL, QUICK, SECONDS, Area, Row, Task
from benchmarks._measure import Ratio, Stopped, elsewhere, seconds_of
from benchmarks._results import FOLDER, Record, ResultsError, Store, moves, read
from benchmarks._run import Run, choose
from benchmarks._tables import Headline, Pages, cells, table
from benchmarks.zoo.measure import CHECKS, RIGHT, WRONG, Cost, Result
from benchmarks.zoo.rows import rows as zoo_rows
from benchmarks.zoo.rows import totals as zoo_totals

FORK = multiprocessing.get_context("fork")
HERE = {
    "date": "2026-11-17T12:00",
    "commit": "abc",
    "load": 0.1,
    "source": "s",
    "python": "3",
    "cpu": "c",
    "cpus": 2,
}


@pytest.fixture(autouse=True)
def _same_place(monkeypatch):
    """The same environment for every run, found in no time."""
    monkeypatch.setattr("benchmarks._run.environment", lambda: dict(HERE))


def ratio(name, value=0.5, spread=0.1, **more):
    """A row that was measured."""
    return Row.of(name, "peer", Ratio(value, value - spread, value + spread, value, 1.0), 1.0, **more)


class Fake:
    """An area of tasks that count how often they are measured."""

    def __init__(self, *names, slow=(), needs=None):
        self.measured = []
        self.events = {}
        self.area = Area("fake", "Nothing.", lambda: [self.task(name, slow, needs or {}) for name in names])

    def task(self, name, slow, needs):
        def measure(effort):
            self.measured.append(name)
            self.events.pop(name, lambda: None)()
            yield ratio(name)

        return Task(name, measure, needs=needs.get(name, ()), peer="peer", slow=name in slow)

    def run(self, folder, effort=FULL, words=(), **more):
        self.said = []
        run = Run(Store(folder, effort.quick), effort, say=self.said.append, **more)
        return run.measure(choose([self.area], words, effort))


def stop():
    raise KeyboardInterrupt


# --- what is kept


def test_a_run_that_was_stopped_is_continued(tmp_path):
    fake = Fake("a", "b", "c")
    fake.events["b"] = stop
    with pytest.raises(KeyboardInterrupt):
        fake.run(tmp_path)
    assert [row.name for row in read(tmp_path / "unfinished.json")["fake"].rows] == ["a"]
    assert not Store(tmp_path, False).complete()
    found = fake.run(tmp_path)
    assert fake.measured == ["a", "b", "b", "c"]
    assert [row.name for row in found] == ["a", "b", "c"]
    assert not (tmp_path / "unfinished.json").exists()
    _, record = Store(tmp_path, False).complete()["fake"]
    assert record.rows == found
    assert record.environment["commit"] == "abc"


def test_a_process_that_was_killed_loses_the_task_in_hand_alone(tmp_path):
    fake = Fake("a", "b")
    fake.events["b"] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    child = FORK.Process(target=fake.run, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    fake.events.clear()
    fake.run(tmp_path)
    assert fake.measured == ["b"]


def test_what_is_complete_is_measured_again_if_that_is_asked_for(tmp_path):
    fake = Fake("a")
    fake.run(tmp_path)
    assert [row.name for row in fake.run(tmp_path)] == ["a"]
    assert fake.measured == ["a"]
    fake.run(tmp_path, again=True)
    assert fake.measured == ["a", "a"]


@pytest.mark.parametrize(
    ("key", "kept"), [("source", False), ("torch", False), ("commit", True), ("load", True)]
)
def test_other_source_and_other_versions_are_measured_anew(tmp_path, monkeypatch, key, kept):
    fake = Fake("a", "b")
    fake.run(tmp_path, words=["fake a"])
    monkeypatch.setattr("benchmarks._run.environment", lambda: {**HERE, key: "other"})
    fake.run(tmp_path)
    assert fake.measured == (["a", "b"] if kept else ["a", "a", "b"])


def test_other_settings_of_an_area_are_measured_anew(tmp_path):
    fake = Fake("a")
    fake.run(tmp_path)
    fake.area = replace(fake.area, settings={"limit": "20 GB"})
    fake.run(tmp_path)
    assert fake.measured == ["a", "a"]
    assert "limit 20 GB" in Pages([fake.area], Store(tmp_path, False).complete(), ()).region("fake")


def test_a_part_of_an_area_is_not_an_area(tmp_path):
    fake = Fake("a", "b")
    assert [row.name for row in fake.run(tmp_path, words=["fake b"])] == ["b"]
    assert not Store(tmp_path, False).complete()
    fake.run(tmp_path)
    assert fake.measured == ["b", "a"]
    assert {row.name for row in Store(tmp_path, False).complete()["fake"][1].rows} == {"a", "b"}


def test_a_task_that_raises_is_said_and_tried_again(tmp_path):
    fake = Fake("a", "b")
    fake.events["a"] = lambda: 1 / 0
    first = fake.run(tmp_path)
    assert first[0].note == "raised ZeroDivisionError: division by zero"
    assert first[0].value is None
    assert [row.note for row in fake.run(tmp_path)] == ["", ""]
    assert fake.measured == ["a", "b", "a"]


def test_a_peer_that_is_missing_is_named_in_the_table(tmp_path):
    fake = Fake("a", "b", needs={"a": ("no_such_package",)})
    fake.run(tmp_path)
    assert fake.measured == ["b"]
    shown = Pages([fake.area], Store(tmp_path, False).complete(), ()).region("fake")
    assert "skipped: no_such_package not installed" in shown


def test_a_newer_file_wins_for_the_areas_that_it_has(tmp_path):
    for date, values in (("2026-01-01", {"one": 0.1, "two": 0.1}), ("2026-01-02", {"two": 0.2})):
        records = {name: Record(HERE, rows=[ratio("a", value)]) for name, value in values.items()}
        _results.write(tmp_path / f"{date}.json", records, quick=False)
    found = Store(tmp_path, False).complete()
    assert {area: (file, record.rows[0].ratio) for area, (file, record) in found.items()} == {
        "one": ("2026-01-01.json", 0.1),
        "two": ("2026-01-02.json", 0.2),
    }


# --- quick runs


def test_a_quick_run_is_marked_and_never_shown(tmp_path):
    fake = Fake("a", "b", slow=("b",))
    assert [row.name for row in fake.run(tmp_path, QUICK)] == ["a"]
    (path,) = tmp_path.glob("*.json")
    assert path.name.endswith("-quick.json")
    assert json.loads(path.read_text(encoding="utf-8"))["quick"] is True
    assert "fake" in Store(tmp_path, True).complete()
    assert not Store(tmp_path, False).complete()
    fake.run(tmp_path)
    assert fake.measured == ["a", "a", "b"]


# --- words


def test_words_name_areas_or_parts_of_tasks():
    one, two = Fake("x", "y").area, replace(Fake("fake x").area, name="two")
    chosen = lambda *words: [
        (choice.area.name, [task.name for task in choice.tasks]) for choice in choose([one, two], words, FULL)
    ]
    assert chosen() == [("fake", ["x", "y"]), ("two", ["fake x"])]
    assert chosen("fake") == [("fake", ["x", "y"])]
    assert chosen("x") == [("fake", ["x"]), ("two", ["fake x"])]
    assert chosen("nothing") == []


# --- comparing


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (ratio("a", 0.5), ratio("a", 0.6), False),  # quartiles overlap
        (ratio("a", 0.5), ratio("a", 0.8), True),
        (ratio("a", 0.8), ratio("a", 0.5), True),
        (ratio("a", 0.5, 0.0, unit=BYTES), ratio("a", 0.51, 0.0, unit=BYTES), False),  # noise
        (ratio("a", 0.5, 0.0, unit=BYTES), ratio("a", 0.53, 0.0, unit=BYTES), True),
        (Row.count("a", "p", 1, 5), Row.count("a", "p", 1, 7), False),
        (Row.count("a", "p", 1, 5), Row.count("a", "p", 2, 5), True),
        (ratio("a"), Row("a", "peer", note="skipped"), True),
        (Row("a", "peer", note="skipped"), Row("a", "peer", note="skipped"), False),
    ],
)
def test_what_moved(before, after, moved):
    assert bool(moves([before], [after])) == moved


def test_moves_are_said_with_their_quartiles():
    before = [ratio("a", 0.5, area="x"), ratio("gone", area="x"), ratio("elsewhere", area="y")]
    after = [ratio("a", 0.2, area="x"), ratio("new", area="x", unit=BYTES)]
    assert [str(move) for move in moves(before, after)] == [
        "better x: a / peer  0.5 (0.4-0.6) -> 0.2 (0.1-0.3)",
        "gone   x: gone / peer  0.5 (0.4-0.6) -> -",
        "new    x: new, memory / peer  - -> 0.5 (0.4-0.6)",
    ]


# --- files


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a file of results"),
        ("[]", "not a file of results"),
        ("{}", "not a file of results"),
        ('{"schema": "covector-bench/0", "areas": {}}', "has the schema 'covector-bench/0', expected"),
        ('{"schema": "covector-bench/1", "areas": {"a": {}}}', "damaged"),
        ('{"schema": "covector-bench/1", "areas": {"a": {"rows": [{"nothing": 1}]}}}', "damaged"),
    ],
)
def test_another_file_is_refused(tmp_path, text, said):
    path = tmp_path / "2026-01-01.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ResultsError, match=said):
        read(path)
    with pytest.raises(ResultsError, match=r"2026-01-01\.json"):
        Store(tmp_path, False).complete()


def test_rows_come_back_from_a_file_as_they_were(tmp_path):
    rows = [
        ratio("a", part=ASIDE, facts={"n": 3}, area="x", task="t"),
        Row.count("c", "p", 0, None),
        Row("n", "p", note="why"),
    ]
    _results.write(tmp_path / "f.json", {"x": Record(HERE, 1.5, ["t"], rows)}, quick=False)
    assert read(tmp_path / "f.json")["x"] == Record(HERE, 1.5, ["t"], rows)


def test_the_environment_says_what_was_measured_on():
    found = _results.environment()
    assert {"date", "commit", "source", "python", "cpu", "cpus", "load", "torch", "covector"} <= set(found)
    assert Record(found).matches(_results.environment())


# --- tables


def test_regions_are_replaced_and_the_rest_is_kept():
    fake = Fake("a")
    found = {"fake": ("2026-01-01.json", Record(HERE, 60, ["a"], [ratio("a", area="fake")]))}
    pages = Pages([fake.area], found, [Headline("An a", "fake", "a", "peer")])
    page = "before\n<!-- bench: {} -->\nby hand\n<!-- /bench -->\nafter\n"
    for name in ("fake", "all", "overview", "headlines"):
        written = pages.rewritten(page.format(name))
        assert written.startswith(f"before\n<!-- bench: {name} -->\n\n")
        assert written.endswith("\n\n<!-- /bench -->\nafter\n")
        assert "by hand" not in written
        assert pages.rewritten(written) == written
    assert "| An a | peer | 0.500 | 0.400 to 0.600 |" in pages.region("headlines")
    assert "| [fake](#fake) | 1 | 1 of 1 |  | 1.0 min |" in pages.region("overview")
    with pytest.raises(KeyError, match="no region is called 'other'"):
        pages.rewritten(page.format("other"))


def test_what_was_not_measured_is_said():
    fake = Fake("a")
    pages = Pages([fake.area], {}, [Headline("An a", "fake", "a", "peer")])
    assert pages.region("fake") == "Not measured yet: `make bench ONLY=fake`."
    assert "An a" not in pages.region("headlines")


def test_losses_stand_out():
    shown = table([ratio("over", 1.5), ratio("ok"), Row.count("bugs", "p", 2, 3), ratio("aside", part=ASIDE)])
    lines = shown.splitlines()[2:]
    assert lines[0] == "| over | peer | **1.50** | 1.40 to 1.60 | 1.00 | **over** | 1.5 s | 1.0 s |"
    assert lines[1] == "| ok | peer | 0.500 | 0.400 to 0.600 | 1.00 | ok | 500.0 ms | 1.0 s |"
    assert lines[2] == "| bugs | p |  |  | 0 | **over** | **2** | 3 |"
    assert lines[3].startswith("| aside (held aside) |")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.0123"), (4e-7, "4.0e-07")],
)
def test_three_digits(value, shown):
    assert cells(ratio("a", value, 0.0))[2] == shown


@pytest.mark.parametrize("page", areas.PAGES, ids=lambda path: path.parent.name)
def test_committed_tables_are_those_of_the_committed_files(page):
    """`python -m benchmarks --tables` writes them."""
    text = page.read_text(encoding="utf-8")
    assert "<!-- bench: " in text
    assert areas.pages(Store(FOLDER, False).complete()).rewritten(text) == text


def test_headlines_are_rows():
    """Of every area that was measured."""
    pages = areas.pages(Store(FOLDER, False).complete())
    every = {(row.area, row.name, row.peer) for area in areas.AREAS for row in pages.rows(area)}
    measured = {area for area, _, _ in every}
    wanted = {(one.area, one.name, one.peer) for one in areas.HEADLINES}
    assert {one for one in wanted if one[0] in measured} <= every


def test_names_are_unique():
    """A task is found again by its name."""
    assert len({area.name for area in areas.AREAS}) == len(areas.AREAS)
    for area in areas.AREAS:
        names = [task.name for task in area.tasks()]
        assert len(set(names)) == len(names), area.name


# --- the command


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The command on a fake area, in a folder and with a page of its own."""
    fake = Fake("a", "b")
    page = tmp_path / "page.md"
    page.write_text("<!-- bench: fake -->\n<!-- /bench -->\n", encoding="utf-8")
    monkeypatch.setattr(command, "AREAS", [fake.area])
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    write = lambda found: Pages([fake.area], found, ()).write([page])
    monkeypatch.setattr(command, "scoreboard", write)

    def call(*words):
        monkeypatch.setattr("sys.argv", ["benchmarks", *words])
        return command.main()

    fake.call, fake.page = call, page
    return fake


def test_the_command_measures_writes_and_compares(made, tmp_path, capsys):
    assert made.call() == 0
    assert "| a | peer | 0.500 |" in made.page.read_text(encoding="utf-8")
    (path,) = tmp_path.glob("2*.json")
    old = read(path)
    old["fake"].rows[0] = replace(old["fake"].rows[0], ratio=2.0, low=1.9, high=2.1)
    _results.write(tmp_path / "old.json", old, quick=False)
    capsys.readouterr()
    assert made.call("--compare", str(tmp_path / "old.json")) == 0
    said = capsys.readouterr().out
    assert "better fake: a / peer  2 (1.9-2.1) -> 0.5 (0.4-0.6)" in said
    assert "fake: b" not in said.partition("moved beyond")[2]
    assert "a quick run" not in said
    assert made.measured == ["a", "b"]
    assert made.call("--quick", "--compare", str(tmp_path / "old.json")) == 0
    assert "a quick run has few repetitions" in capsys.readouterr().out


def test_the_command_that_is_stopped_says_how_to_go_on(made, capsys):
    made.events["b"] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    assert made.call() == 130
    assert "the same command continues" in capsys.readouterr().out
    assert made.call() == 0
    assert made.measured == ["a", "b", "b"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_command_stops_after_the_task_in_which_an_interruption_was_lost(made, signum):
    """What a callback raises is printed by Python, and dropped."""

    def lose():
        thing = {1}
        weakref.finalize(thing, os.kill, os.getpid(), signum)

    made.events["a"] = lose
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert made.call() == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert made.measured == ["a"]
    assert made.call() == 0
    assert made.measured == ["a", "b"]


def test_a_quick_command_writes_no_page(made):
    before = made.page.read_text(encoding="utf-8")
    assert made.call("--quick") == 0
    assert made.page.read_text(encoding="utf-8") == before


def test_the_command_refuses_what_is_not_there(made, tmp_path, capsys):
    assert made.call("nothing") == 2
    assert "nothing has nothing in its name" in capsys.readouterr().out
    assert made.call("--compare", str(tmp_path / "none.json")) == 2
    assert "no such file" in capsys.readouterr().err
    assert made.call("--list") == 0
    assert capsys.readouterr().out == "fake: a, b\n"
    assert made.measured == []


# --- measuring elsewhere


def test_a_measurement_elsewhere_ends_at_its_limits():
    def forever():
        while True:
            pass

    def large():
        kept = bytearray(limit)  # a child need not hold what its parent does
        kept[::4096] = b"x" * len(kept[::4096])
        forever()

    assert elsewhere(FORK, lambda: 3, 60) == 3
    # If memory runs out, it is the one to be ended.
    assert (
        elsewhere(FORK, lambda: Path("/proc/self/oom_score_adj").read_text(encoding="utf-8"), 60) == "1000\n"
    )
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        elsewhere(FORK, lambda: 1 / 0, 60)
    with pytest.raises(RuntimeError, match="exit code 7"):
        elsewhere(FORK, lambda: os._exit(7), 60)
    with pytest.raises(Stopped, match=r"over 0.05 s"):
        elsewhere(FORK, forever, 60, seconds=0.05)
    limit = 600_000_000
    with pytest.raises(Stopped, match="GB"):
        elsewhere(FORK, large, 60, memory=limit)


def test_short_calls_are_timed_in_blocks():
    calls = []
    found = seconds_of(lambda: calls.append(1), times=3, enough=60.0, block=1e-3)
    assert len(found) == 3
    assert len(calls) > 30


# --- growth


def grown(power, peer_power):
    """Rows of a curve, in time."""
    for n in (100, 200, 400, 800, 1600):
        theirs = 1e-6 * n**peer_power if n < 1600 else None
        facts = {"curve": "Jacobian", "n": n}
        yield Row(f"n = {n}", "torch.func", SECONDS, ours=1e-6 * n**power, theirs=theirs, facts=facts)


def test_exponents_are_those_of_the_largest_sizes():
    (total,) = growth.totals(list(grown(1.0, 2.5)))
    assert total.ours == pytest.approx(1.0)
    assert total.theirs == pytest.approx(2.5)
    assert (total.name, total.peer) == ("Jacobian: exponent of time", "torch.func")


def test_sizes_follow_the_memory_limit():
    for curve in growth.CURVES.values():
        small, large = curve.sizes(1e6), curve.sizes(2e10)
        assert len(small) == 4
        assert large[: len(small)] == small
        assert len(large) > 4
        assert curve.bytes_of(large[-1]) <= 2e10 < curve.bytes_of(round(1.1 * growth.CLOSE * large[-1]) + 1)
        assert large == sorted(set(large))


def growing(power):
    """A side that has taken n^power microseconds, and as many bytes."""
    return growth.Side({n: growth.Point([1e-6 * n**power], float(n**power)) for n in (100, 200, 400)})


def test_a_size_that_would_exceed_a_limit_is_not_tried(monkeypatch):
    """By the last two sizes; what may be within the limit is tried."""
    assert growing(2).expected(800, lambda point: point.seconds[0]) == pytest.approx(0.64)
    assert growing(2).beyond(8000, 64) == ""
    assert growing(2).beyond(8000, 40) == "some 64 s, over 40 s"
    assert growing(2).beyond(8000, round(64 / growth.HOPELESS) + 1) == ""
    monkeypatch.setattr(growth, "LIMIT", 1e9)
    assert growing(3).beyond(1600, 10_000) == "some 4 GB, over 1.0 GB"
    assert growth.Side().beyond(10**9, 1) == ""


def test_a_side_that_has_ended_says_why(monkeypatch):
    """At each larger size, without being tried again; a size is not measured if no side is left."""
    sides = {name: growing(3) for name in ("covector", "torch.func")}
    monkeypatch.setattr(growth, "_side", lambda curve, name: sides[name])
    curve = growth.Curve("made up", dict.fromkeys(sides), 100, 2, float)
    rows = list(growth.measure(curve, 10_000, FULL))
    why = f"some 1000000 s, over {growth.LIMIT_SECONDS} s, by its growth so far"
    notes = [f"{name} not tried at n = 10,000: {why}" for name in sides]
    assert {row.note for row in rows} == {"; ".join(notes)}
    assert list(growth.measure(curve, 20_000, FULL)) == []


def test_every_side_has_a_style():
    assert {side for curve in growth.CURVES.values() for side in curve.sides} == set(_plot.STYLES)


def test_figures_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(_plot, "FOLDER", tmp_path)
    rows = list(grown(1.0, 2.0))
    growth.draw([*rows, *(replace(row, unit=BYTES) for row in rows)])
    assert {path.name for path in tmp_path.iterdir()} == {
        f"growth-{what}.{suffix}" for what in ("time", "memory") for suffix in ("png", "svg")
    }
    first = (tmp_path / "growth-time.svg").read_bytes()
    growth.draw([*rows, *(replace(row, unit=BYTES) for row in rows)])
    assert (tmp_path / "growth-time.svg").read_bytes() == first


# --- the zoo


def checked(**verdicts):
    """A result in which our checks take a second and torch's two."""
    costs = {
        check: Cost(
            verdicts.get(str(check), WRONG if check.wrong else RIGHT),
            1.0 if check.side == "ours" else 2.0,
            runs=300,
        )
        for check in CHECKS
    }
    return Result("entry", "package", (1, 1), batched=True, costs=costs)


def test_an_entry_of_the_zoo_has_a_row_for_each_way_and_one_for_its_verdicts():
    rows = list(zoo_rows(checked()))
    assert [row.ratio for row in rows if row.unit == SECONDS] == [0.5] * 4
    assert [(row.ours, row.theirs) for row in rows if row.unit == COUNT] == [(0, 0)]
    sums = {row.name: row.ratio for row in zoo_totals(rows)}
    assert sums["sum: wrong, exhaustive"] == 0.5


def test_times_of_different_verdicts_are_not_compared():
    rows = {row.name: row for row in zoo_rows(checked(**{"theirs, wrong, exhaustive": RIGHT}))}
    row = rows["entry: wrong, exhaustive"]
    assert row.ratio is None
    assert row.note == "covector says wrong, torch right"
    assert rows["entry: untrue verdicts, of 4"].theirs == 1


def test_an_entry_that_is_not_installed_is_said():
    (row,) = zoo_rows(Result("entry", "package", note="skipped: package not installed"))
    assert row.note == "skipped: package not installed"
