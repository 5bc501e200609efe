"""`python -m benchmarks.zoo [part of a name]`: every check of an entry in detail, to try it."""

from __future__ import annotations

import argparse

from benchmarks.zoo import chosen
from benchmarks.zoo.measure import LIMIT, measure
from benchmarks.zoo.rows import details


def main() -> None:
    """Measure the entries and print a line for each check."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="the entries whose name contains this")
    parser.add_argument("--theirs", action="store_true", help="torch's checks only")
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds for one check")
    options = parser.parse_args()
    sides = ("theirs",) if options.theirs else ("ours", "theirs")
    for entry in chosen(aside=False, part=options.part):
        print(details(measure(entry, sides, options.limit)), flush=True)


if __name__ == "__main__":
    main()
