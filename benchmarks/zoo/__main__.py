"""`python -m benchmarks.zoo [--only NAME] [--held-out | --all]`: gradient checks against torch's."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.zoo import chosen, report
from benchmarks.zoo.measure import LIMIT, measure
from benchmarks.zoo.table import details, saved


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("--only", default="", help="the entries whose name contains this")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--held-out", action="store_true", help="the third that nothing is tuned on")
    which.add_argument("--all", action="store_true", help="that third, too")
    parser.add_argument("--theirs", action="store_true", help="torch's checks only, to try an entry")
    parser.add_argument("--details", action="store_true", help="also a line for every check")
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds for one check")
    parser.add_argument("--json", type=Path, help="save all numbers here")
    parser.add_argument("--list", action="store_true", help="the names, and nothing is run")
    options = parser.parse_args()

    entries = chosen(None if options.all else options.held_out, options.only)
    if options.list:
        print(*(f"{entry.package}: {entry.name}" for entry in entries), sep="\n")
    elif options.theirs:
        for entry in entries:
            print(details(measure(entry, ("theirs",), options.limit)), flush=True)
    else:
        results = report(entries, options.limit, every_check=options.details)
        if options.json:
            options.json.write_text(json.dumps([saved(result) for result in results], indent=2) + "\n")


if __name__ == "__main__":
    main()
