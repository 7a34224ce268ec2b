"""What all stages share: where things are, what was found before, and how much time is left."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .child import Child
from .record import Record

_LEAST_SECONDS = 5.0


@dataclass
class Session:
    """One run of the check.

    work: folder for what need not be kept: builds, samples, peers. data: the reference snapshots. wheels: folder with
    packages of peers, or None. small: a run that only tries the script. words: time only calls whose keys contain one
    of these. deadline: on the clock of `time.monotonic`.
    """

    record: Record
    child: Child
    work: Path
    data: Path
    wheels: Path | None
    small: bool
    source: str
    runs: int
    words: list[str] = field(default_factory=list)
    deadline: float | None = None

    def seconds(self, most: float) -> float:
        """How long something may take that wants ``most``."""
        return most if self.deadline is None else min(most, self.deadline - time.monotonic())

    def is_over(self) -> bool:
        return self.seconds(2 * _LEAST_SECONDS) < _LEAST_SECONDS

    def missing(self, stage: str, key: str, source: str | None = None) -> bool:
        return not self.record.has(stage, key, source or self.source)

    def put(self, stage: str, key: str, finding: dict[str, Any], source: str | None = None) -> None:
        self.record.put(stage, key, source or self.source, finding)
        print(f"{stage}: {key}: {brief(finding)}", flush=True)


def brief(finding: dict[str, Any]) -> str:
    """A finding in a few words, for the log."""
    if "error" in finding:
        return f"ERROR {finding['error']}"
    if finding.get("wrong"):
        return "; ".join(f"{name}: {text}" for name, text in finding["wrong"].items())
    if "seconds" in finding:
        peak = finding.get("peak_bytes")
        return f"{1e3 * finding['seconds']:.3g} ms" + (f", {peak / 1e9:.3g} GB" if peak else "")
    return (
        ", ".join(f"{name} {value}" for name, value in finding.items() if not isinstance(value, (dict, list))) or "ok"
    )
