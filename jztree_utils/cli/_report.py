"""The output of the command line: a line per stage as it ends, tables, and a summary for scripts.

Users read standard output, at the level that they choose. Scripts can request JSON on it; then it contains only JSON.
"""

import json
import math
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_NAMES = 30  # width of the column of stage names
QUIET, NORMAL, VERBOSE = 0, 1, 2


@dataclass
class _Output:
    """The level of output, and the times for the summary."""

    level: int = NORMAL
    seconds: dict[str, float] = field(default_factory=dict)


_output = _Output()


@contextmanager
def telling(level: int) -> Iterator[None]:
    """Set the level of output inside the block: QUIET, NORMAL or VERBOSE."""
    before = _output.level
    _output.level = level
    try:
        yield
    finally:
        _output.level = before


def is_quiet() -> bool:
    """Return whether output for users is off."""
    return _output.level <= QUIET


def is_verbose() -> bool:
    """Return whether the user requested verbose output."""
    return _output.level >= VERBOSE


def say(text: str = "", level: int = NORMAL) -> None:
    """Print a line for users."""
    if _output.level >= level:
        print(text)
        sys.stdout.flush()


def warn(sentence: str) -> None:
    """Print a warning to standard error; only the first of several processes prints."""
    jax = sys.modules.get("jax")
    first = jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0
    if _output.level >= NORMAL and first:
        print(f"jztree: warning: {sentence}", file=sys.stderr)


@contextmanager
def warnings_told() -> Iterator[None]:
    """Print warnings of the block with `warn`, without the code line that Python would show."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        yield
    for warning in caught:
        warn(str(warning.message))


@dataclass
class Stage:
    """The report of a stage, apart from its time.

    Attributes:
        particles: Number of processed particles, for the rate; 0 shows no rate.
        detail: Words at the end of the line.
    """

    particles: int = 0
    detail: str = ""


@contextmanager
def stage(name: str, particles: int = 0, level: int = NORMAL) -> Iterator[Stage]:
    """Time the block and print a line when it has ended without error. The block may fill in the `Stage` that it gets.

    Args:
        name: The task, in words such as ``"read the snapshot"``.
        particles: Number of processed particles, for the rate; 0 shows no rate.
        level: The minimum level of output for the line.
    """
    report = Stage(particles)
    start = time.perf_counter()
    yield report
    seconds = time.perf_counter() - start
    _output.seconds[name] = _output.seconds.get(name, 0.0) + seconds
    rate = f"{with_prefix(report.particles / max(seconds, 1e-9))} particles/s" if report.particles else ""
    say(f"  {name:<{_NAMES}}{seconds:9.3f} s   {rate:<20}  {report.detail}".rstrip(), level)


def take_seconds() -> dict[str, float]:
    """Return the time of each stage since the last call, in seconds."""
    taken, _output.seconds = _output.seconds, {}
    return {name: round(seconds, 6) for name, seconds in taken.items()}


def print_json(summary: Any) -> None:
    """Print a summary for scripts, on one line; numbers that JSON lacks (infinite, NaN) become null."""
    print(json.dumps(_plain(summary), allow_nan=False))
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """Return ``value`` in types that JSON has."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def with_prefix(number: float) -> str:
    """Format a number with three digits and a metric prefix, such as ``2.35 M``."""
    for size, prefix in _PREFIXES:
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g} "


def number(value: float) -> str:
    """Format a number with six digits; integers in full and with separators."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def column(values: Iterable[float]) -> list[str]:
    """Format numbers with equal decimals for comparison; the largest has six digits."""
    numbers = [float(value) for value in values]
    largest = max((abs(value) for value in numbers), default=0.0)
    place = math.floor(math.log10(largest)) if 0 < largest < math.inf else 0
    form = f".{max(5 - place, 0)}f" if -4 <= place < 9 else ".5e"
    return [format(value, form) for value in numbers]


def print_pairs(pairs: Sequence[tuple[str, str]], level: int = NORMAL) -> None:
    """Print names and values in two columns, from a minimum level of output."""
    width = max(len(name) for name, _ in pairs) + 2
    for name, value in pairs:
        say(f"  {name:<{width}}{value}", level)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, aligned to the right, with the minimum width for each column."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        say("  " + "   ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)))
