"""The command line."""

import argparse
import datetime
import time
from collections.abc import Iterator

from . import runner
from .case import Case, drawn


def main() -> int:
    """Run the requested cases. Return 1 if any went wrong, otherwise 0."""
    options = _arguments()
    print(f"faults: seed {options.seed}", flush=True)
    start = time.monotonic()
    tally = runner.run(_cases(options), options.workers, options.seconds, lambda text: print(text, flush=True))
    for wrong, count in tally.wrong.items():
        print(f"  {count} of: {wrong}")
    print(
        f"faults: {tally.cases} cases in {time.monotonic() - start:.0f} s, the longest took {tally.longest:.0f} s; "
        f"{tally.wrong.total()} were wrong"
    )
    return int(bool(tally.wrong))


def _cases(options: argparse.Namespace) -> Iterator[tuple[str, Case]]:
    numbers = range(options.cases) if options.case is None else [options.case]
    for number in numbers:
        case = drawn(options.seed, number)
        if options.kind in case.kind.name:
            yield f"seed {options.seed}, case {number}", case


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="faults", description="Faults in programs of several processes, judged.")
    parser.add_argument("--cases", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after so many")
    parser.add_argument("--seed", type=int, default=int(f"{datetime.date.today():%Y%m%d}"), help="default: the date")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time (default: 2)")
    parser.add_argument("--case", type=int, help="only this one, as a report names it")
    parser.add_argument("--kind", default="", help="only those with these words in their name")
    return parser.parse_args()
