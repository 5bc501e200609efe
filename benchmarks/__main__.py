"""`make bench`, or `python -m benchmarks [AREA | part of a task's name ...]`: covector beside its peers.

What was measured is kept, so that the same command continues a run that was stopped. Complete areas go to
`benchmarks/results/<date>.json`, and from there into the tables of the pages.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks._board import FULL, QUICK
from benchmarks._results import FOLDER, ResultsError, Store, moves, read, read_quick
from benchmarks._run import Run, choose
from benchmarks.areas import AREAS, scoreboard
from covector.cli import interruptible


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    made.add_argument("words", nargs="*", help="areas by name, or tasks by a part of theirs; none for all")
    made.add_argument("--quick", action="store_true", help="fewer rows and repetitions; never in a page")
    made.add_argument("--again", action="store_true", help="measure anew what is there already")
    made.add_argument("--compare", type=Path, metavar="FILE", help="then show what moved since these results")
    made.add_argument("--tables", action="store_true", help="measure nothing, write the tables and figures")
    made.add_argument("--list", action="store_true", help="the areas and their tasks; nothing is measured")
    return made


def main() -> int:
    """Measure, write, compare."""
    options = parser().parse_args()
    effort = QUICK if options.quick else FULL
    store = Store(FOLDER, options.quick)
    try:
        before = _rows(options.compare) if options.compare else []
        choices = choose(AREAS, options.words, effort)
        if not choices:
            print(f"nothing has {' or '.join(options.words)} in its name; --list shows what there is")
            return 2
        if options.list:
            for choice in choices:
                print(f"{choice.area.name}: {', '.join(task.name for task in choice.tasks)}")
            return 0
        rows = []
        if not options.tables:
            with interruptible() as raise_lost:  # the processes of a measurement end with it
                rows = Run(store, effort, again=options.again, between=raise_lost).measure(choices)
        if not options.quick:
            for page in scoreboard(store.complete()):
                print(f"written: {page}")
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nstopped; what was measured is in {store.unfinished}, and the same command continues")
        return 130
    met = [row.verdict == "ok" for row in rows if row.verdict]
    print(f"\n{sum(met)} of {len(met)} within target")
    if options.compare:
        tasks = {(choice.area.name, task.name) for choice in choices for task in choice.tasks}
        found = moves([row for row in before if (row.area, row.task) in tasks], rows)
        if options.quick or read_quick(options.compare):
            print("\na quick run has few repetitions: its quartiles are narrower than what chance does")
        print(f"\nmoved beyond the quartiles since {options.compare}:", *(found or ["nothing"]), sep="\n")
    return 0


def _rows(path: Path) -> list:
    if not path.exists():
        raise ResultsError(f"{path}: there is no such file to compare with")
    return [row for record in read(path).values() for row in record.rows]


if __name__ == "__main__":
    sys.exit(main())
