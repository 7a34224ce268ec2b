"""Cycles through the parts, reduces failing cases, and reports the faults."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import jax
import numpy as np

from .case import Case, WrongError

_BATCHES_BEFORE_CLEARING = 150  # because compiled functions stay in memory


@dataclass
class Finding:
    """A fault: its origin, the smallest case that shows it, and the number of such cases."""

    place: str
    case: Case
    wrong: WrongError
    count: int = 1

    def text(self) -> str:
        """Return the report."""
        script = "\n".join("    " + line for line in self.case.script().splitlines())
        return (
            f"{self.place}: {self.wrong.kind}\n\n{script}\n\n"
            f"  expected: {self.wrong.expected}\n  found:    {self.wrong.found}\n"
        )


@dataclass
class Tally:
    """The results of one part."""

    cases: int = 0
    batches: int = 0
    seconds: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)


def cases_of(name: str, part: ModuleType, seed: int, batch: int) -> Iterator[Case]:
    """Yield the cases of one batch, always the same for the same seed."""
    yield from part.batch(np.random.default_rng([seed, batch, *name.encode()]))


@dataclass
class Run:
    """Runs batches, always of the part with the least time so far, until time or cases are used up.

    parts: modules by name. seconds: the total time. cases: the limit for each part. only: the only batch; None: 0, 1,
    2, ... shrinking: the time limit in seconds for reducing one case.
    announce: called before each case with part, batch and case. report: called with each new fault.
    """

    parts: dict[str, ModuleType]
    seed: int
    seconds: float = np.inf
    cases: float = np.inf
    only: int | None = None
    shrinking: float = 20.0
    announce: Callable[[str, int, int], None] = lambda part, batch, index: None
    report: Callable[[Finding], None] = lambda finding: None

    def __post_init__(self) -> None:
        self.tallies = {name: Tally() for name in self.parts}
        self.end = time.monotonic() + self.seconds

    def run(self) -> dict[str, Tally]:
        """Return the results of each part."""
        for number in itertools.count(1):
            waiting = [name for name, tally in self.tallies.items() if not self._is_over(tally)]
            if not waiting:
                return self.tallies
            name = min(waiting, key=lambda name: self.tallies[name].seconds)
            start = time.monotonic()
            self._run_batch(name)
            self.tallies[name].batches += 1
            self.tallies[name].seconds += time.monotonic() - start
            if number % _BATCHES_BEFORE_CLEARING == 0:
                jax.clear_caches()
        raise AssertionError

    def _is_over(self, tally: Tally) -> bool:
        done = self.only is not None and tally.batches > 0
        return done or tally.cases >= self.cases or time.monotonic() > self.end

    def _run_batch(self, name: str) -> None:
        tally = self.tallies[name]
        batch = tally.batches if self.only is None else self.only
        for index, case in enumerate(cases_of(name, self.parts[name], self.seed, batch)):
            if tally.cases >= self.cases or time.monotonic() > self.end:
                break
            self.announce(name, batch, index)
            wrong = case.check()
            tally.cases += 1
            if wrong is not None:
                self._note(tally, case, wrong, f"{name} (seed {self.seed}, batch {batch}, case {index})")

    def _note(self, tally: Tally, case: Case, wrong: WrongError, place: str) -> None:
        if wrong.kind in tally.findings:
            tally.findings[wrong.kind].count += 1
            return
        finding = Finding(place, *smaller(case, wrong, time.monotonic() + self.shrinking))
        tally.findings[wrong.kind] = finding
        self.report(finding)


def smaller(case: Case, wrong: WrongError, end: float) -> tuple[Case, WrongError]:
    """Return a case with fewer rows and shorter numbers that fails in the same way."""

    def still_wrong(second: Case) -> WrongError | None:
        if time.monotonic() > end:
            return None
        result = second.check()
        return result if result is not None and result.kind == wrong.kind else None

    for candidates in (_with_fewer_rows, _with_fewer_digits):
        case, wrong = _descend(case, wrong, candidates, still_wrong)
    return case, wrong


def _descend(case: Case, wrong: WrongError, candidates: Any, still_wrong: Any) -> tuple[Case, WrongError]:
    """Take the first candidate that still fails, repeatedly."""
    progress = True
    while progress:
        progress = False
        for second in candidates(case):
            result = still_wrong(second)
            if result is not None:
                case, wrong, progress = second, result, True
                break
    return case, wrong


def _with_fewer_rows(case: Case) -> Iterator[Case]:
    """Yield cases without halves, quarters, ... of the rows of each kind."""
    for count, names in case.rows.items():
        present = [name for name in names if name in case.values]
        n = len(case.values[present[0]]) if present else 0
        chunk = n // 2
        while chunk >= 1:
            for first in range(0, n, chunk):
                yield _without(case, count, present, first, min(first + chunk, n))
            chunk //= 2


def _without(case: Case, count: str, names: Sequence[str], first: int, last: int) -> Case:
    values = dict(case.values)
    for name in names:
        values[name] = np.delete(values[name], np.s_[first:last], axis=0)
    if isinstance(values.get(count), list):  # counts of each device in order
        kept = np.repeat(np.arange(len(values[count])), values[count])
        values[count] = np.bincount(np.delete(kept, np.s_[first:last]), minlength=len(values[count])).tolist()
        values["num"] = sum(values[count])
    elif count in values:
        values[count] -= max(0, min(last, values[count]) - first)
    return dataclasses.replace(case, values=values)


def _with_fewer_digits(case: Case) -> Iterator[Case]:
    """Yield cases with arrays of floats rounded to one, two or three digits."""
    for name, value in case.values.items():
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            continue
        for digits in (1, 2, 3):
            short = np.vectorize(lambda x, digits=digits: float(f"{x:.{digits - 1}e}"), otypes=[np.float64])(value)
            short = short.astype(value.dtype) if value.size else value
            if not np.array_equal(short, value, equal_nan=True):
                yield dataclasses.replace(case, values=case.values | {name: short})
                break
