"""What the command line prints: a line a stage as it ends, and tables."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass
class Stage:
    """What is told of a stage beside its time.

    particles: how many were worked on, for the rate; 0 tells none.
    detail: words at the end of the line.
    """

    particles: int = 0
    detail: str = ""


@contextmanager
def stage(name: str, particles: int = 0) -> Iterator[Stage]:
    """Time the block and print a line when it has ended well. The block may fill in the `Stage` it gets."""
    told = Stage(particles)
    start = time.perf_counter()
    yield told
    seconds = time.perf_counter() - start
    rate = f"{with_prefix(told.particles / max(seconds, 1e-9))} particles/s" if told.particles else ""
    print(f"  {name:<22}{seconds:9.3f} s   {rate:<20}  {told.detail}".rstrip())
    sys.stdout.flush()


def with_prefix(number: float) -> str:
    """A number in three digits with a metric prefix, such as ``2.35 M``."""
    for size, prefix in _PREFIXES:
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g} "


def number(value: float) -> str:
    """A number in six digits; whole numbers in full and with separators."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    width = max(len(name) for name, _ in pairs) + 2
    for name, value in pairs:
        print(f"  {name:<{width}}{value}")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose columns are as wide as they must be, aligned to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        print("  " + "   ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)))
