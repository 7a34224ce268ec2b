"""The stage `experiments`: measurements that decide which kernels to change next, each with its expected outcome.

An experiment is a process with a time limit (`trials`), so that all together take at most eight minutes. Each line that
it times is a finding. The last finding of an experiment has its claims, and whether the lines agree with each.
"""

import contextlib
import csv
import io
import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import timing
from .cases import between_figures
from .samples import Sample, power
from .session import Session, home, module

SIZES = (400_000, 630_000, 10**6, 2 * 10**6, 4 * 10**6, 6 * 10**6, 10**7)
CLUSTERED = (10**6, 4 * 10**6)
TREES = ((64, 24), (32, 24), (32, 32), (32, 40))  # the largest top plane, and the leaf size
DIMS = (4, 6, 8)
STEPS = (1, 2, 4, 8)
STAGE = "experiments"
# The profiled kernels, and the metrics with their names in the record.
PROFILED = ("search_short", "report", "tally_balls", "write_lists", "tally_pairs", "link_to_later")
METRICS = {
    "gpu__time_duration.sum": "duration",
    "smsp__inst_executed.sum": "instructions",
    "smsp__inst_executed.avg.per_cycle_active": "instructions per cycle of a scheduler",
    "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active": "use of the integer pipe",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": "warps that wait for global memory",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio": "warps that wait for shared memory",
    "l1tex__t_sector_hit_rate.pct": "hits in the first cache",
    "lts__t_sectors.sum": "sectors through the second cache",
    "dram__bytes.sum": "bytes of memory",
    "launch__registers_per_thread": "registers",
}
PEERS_SECONDS = 60.0

Lines = Mapping[str, float]  # the seconds of each line, without the name of the experiment
Claims = Mapping[str, Callable[[Lines], bool]]


@dataclass(frozen=True)
class Experiment:
    """Lines that one process times.

    Attributes:
        trial: The method of `trials.Trials` that yields them.
        seconds: The time limit.
        claims: The expected outcomes. A claim about lines that were not timed has no outcome.
        variables: Environment variables of the process.
        profiler: Whether the profiler measures the kernels, instead of the process the calls.
    """

    trial: str
    seconds: float
    claims: Claims = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    profiler: bool = False


def reduced(n: int, small: bool) -> int:
    """Return ``n`` particles, or ``n / 1000`` to test the script."""
    return max(n // 1000, 100) if small else n


def _ns(lines: Lines, n: int, top: int = 32, leaf: int = 24, kind: str = "uniform") -> float:
    """Return the time of a search per particle."""
    return lines[f"{kind} {power(n)} top={top} leaf={leaf}"] / n


def _spread(values: Iterable[float]) -> float:
    numbers = list(values)
    return max(numbers) / min(numbers)


_SIZES: Claims = {
    "32 top nodes: from 1e6 to 1e7, the times per particle differ by at most 15 %": lambda lines: (
        _spread(_ns(lines, n) for n in SIZES if n >= 10**6) <= 1.15
    ),
    "32 top nodes: 6.3e5 takes at most 15 % more per particle than 4e5": lambda lines: (
        _ns(lines, 630_000) <= 1.15 * _ns(lines, 400_000)
    ),
    "64 top nodes: 4e6 takes at least 1.3, 6e6 at least 1.7 times as long per particle as 1e7": lambda lines: (
        _ns(lines, 4 * 10**6, 64) >= 1.3 * _ns(lines, 10**7, 64)
        and _ns(lines, 6 * 10**6, 64) >= 1.7 * _ns(lines, 10**7, 64)
    ),
    "leaves of 32 and 40 take at most 5 % longer than leaves of 24": lambda lines: all(
        _ns(lines, n, 32, leaf) <= 1.05 * _ns(lines, n) for n in SIZES for leaf in (32, 40)
    ),
    "64 top nodes: clustered 4e6 takes at least 1.2 times as long as with 32": lambda lines: (
        _ns(lines, 4 * 10**6, 64, kind="clustered") >= 1.2 * _ns(lines, 4 * 10**6, kind="clustered")
    ),
}
_STAGES: Claims = {
    "z-order of 1e7 takes 1.8 to 2.8 ms": lambda lines: 1.8e-3 <= lines["uniform 1e7 z-order"] <= 2.8e-3,
    "hierarchy of 1e7 takes at most 0.6 ms": lambda lines: lines["uniform 1e7 plane hierarchy"] <= 0.6e-3,
    "kNN to input rows takes at least 1 ms longer than in z-order": lambda lines: (
        lines["uniform 1e7 knn k=16 to input rows"] >= lines["uniform 1e7 knn k=16 in z-order"] + 1e-3
    ),
}
_LIMITS: Claims = {
    "a limit of twice the mean radius makes no search longer": lambda lines: all(
        lines[f"{n} limit"] <= 1.02 * lines[f"{n} no limit"] for n in ("1e6", "3e6")
    )
}
_LEAVES: Claims = {
    "pair counts take least time with leaves of 64, at most 0.6 of that with 24": lambda lines: (
        min((24, 48, 64, 96, 128), key=lambda size: lines[f"pair_counts leaf={size}"]) == 64
        and lines["pair_counts leaf=64"] <= 0.6 * lines["pair_counts leaf=24"]
    ),
    "counts and lists take at most 5 % longer with leaves of 32 than with 24": lambda lines: all(
        lines[f"{call} leaf=32"] <= 1.05 * lines[f"{call} leaf=24"] for call in ("count_within", "neighbours_within")
    ),
}
_DIMENSIONS: Claims = {
    "6D and 8D are at least three times faster open than periodic": lambda lines: all(
        3 * lines[f"{dims}D open"] <= lines[f"{dims}D periodic"] for dims in DIMS[1:]
    )
}
_QUERIES: Claims = {
    f"{search}: at {step} or {2 * step} queries per warp, the times differ by at most 10 %": (
        lambda lines, search=search, step=step: (  # type: ignore[misc]
            _spread(lines[f"{search}, step of {step}: {step * times} per warp"] for times in (1, 2)) <= 1.1
        )
    )
    for search, step in itertools.product(("far query", "far count_within", "near knn"), STEPS)
}
_ROWS: Claims = {
    "20 calls in a row take at most 20 times a single call": lambda lines: all(
        lines[f"{case} in a row"] <= 20 * lines[f"{case} single"]
        for case in ("1e6 k=8", "1e6 k=30", "1e6 k=64", "1e7 k=8")
    )
}

# In the order of execution: the first decide most.
EXPERIMENTS = {
    "sizes": Experiment("sizes", 100, _SIZES),
    "queries": Experiment("queries", 45, _QUERIES),
    "limits": Experiment("limits", 20, _LIMITS),
    "leaves": Experiment("leaves", 45, _LEAVES),
    "stages": Experiment("stages", 45, _STAGES),
    "profile": Experiment("profile", 60, variables={"JZTREE_COMMAND_BUFFERS": "0"}, profiler=True),
    "dimensions": Experiment("dimensions", 45, _DIMENSIONS),
    "rows": Experiment("rows", 30, _ROWS, {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}),
    "small sets": Experiment("small_sets", 15),
    "small sets without command buffers": Experiment("small_sets", 15, variables={"JZTREE_COMMAND_BUFFERS": "0"}),
}


def run(session: Session) -> None:
    """Run the missing experiments, each within its time, and then time the sizes between the figures with the peer."""
    for name, experiment in EXPERIMENTS.items():
        if not session.is_over() and (not session.words or any(word in name for word in session.words)):
            with limited(session, experiment.seconds):
                _run(session, name, experiment)
    if not session.is_over() and not session.words:
        with limited(session, PEERS_SECONDS):
            _time_between_figures(session)


@contextlib.contextmanager
def limited(session: Session, seconds: float) -> Iterator[None]:
    """Limit the time of a part of the stage."""
    before = session.deadline
    session.deadline = time.monotonic() + session.seconds(seconds)
    yield
    session.deadline = before


def _run(session: Session, name: str, experiment: Experiment) -> None:
    """Time the missing lines of an experiment, and compare them with its claims."""
    if not session.missing(STAGE, name):
        return
    if experiment.profiler and not shutil.which("ncu"):
        session.put(STAGE, name, {"left out": "ncu, NVIDIA's profiler, is not on the PATH"})
        return
    for n in CLUSTERED if name == "sizes" else ():
        timing.make_sample(session, Sample("clustered", reduced(n, session.small)))
    job = {
        "experiment": name,
        "trial": experiment.trial,
        "home": str(home()),
        "folder": str(session.samples),
        "small": session.small,
        "runs": 0 if experiment.profiler else session.runs,
        "known": list(_lines(session, name)),
    }
    report = session.work / "ncu.csv"
    command = [*(profiler(report) if experiment.profiler else ()), *module("trials", job)]
    problem = session.collect(STAGE, command, experiment.seconds, variables=experiment.variables)
    if experiment.profiler and report.exists():
        for key, measured in metrics(report.read_text()).items():
            session.put(STAGE, f"{name}: {key}", measured)
    if problem is not None and not problem["late"]:
        session.put(STAGE, name, {"error": str(problem)})
        return
    outcomes = judged(experiment.claims, _lines(session, name))
    session.put(STAGE, name, {"claims": outcomes, "complete": problem is None})


def _lines(session: Session, name: str) -> dict[str, float]:
    """Return the seconds of the lines of an experiment that were timed with these sources."""
    begin, findings = f"{name}: ", session.record.stage(STAGE)
    return {
        key.removeprefix(begin): finding["seconds"]
        for key, finding in findings.items()
        if key.startswith(begin) and "seconds" in finding and not session.missing(STAGE, key)
    }


def judged(claims: Claims, lines: Lines) -> dict[str, bool | None]:
    """Return whether the lines agree with each claim; None if the lines of a claim are missing."""
    outcomes: dict[str, bool | None] = {}
    for text, holds in claims.items():
        try:
            outcomes[text] = holds(lines)
        except KeyError:
            outcomes[text] = None
    return outcomes


def profiler(report: Path) -> list[str]:
    """Return the start of a command whose process the profiler measures."""
    report.unlink(missing_ok=True)
    names = f"regex:({'|'.join(PROFILED)})"
    limits = ["--kernel-name", names, "--launch-count", "24"]
    return ["ncu", "--csv", "--log-file", str(report), *limits, "--metrics", ",".join(METRICS)]


def metrics(report: str) -> dict[str, dict[str, float | str]]:
    """Return the metrics of each launch in a report of the profiler, a table after lines of other text."""
    table = report[max(report.find('"ID"'), 0) :]
    launches: dict[str, dict[str, float | str]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        if row.get("Metric Name") in METRICS:
            launch = launches.setdefault(f"{row['ID']} {row['Kernel Name'][:60]}", {})
            launch[METRICS[row["Metric Name"]]] = f"{row['Metric Value']} {row['Metric Unit']}".strip()
    return launches


def _time_between_figures(session: Session) -> None:
    """Time the cases that no figure covers, with this library and, if its package is there, the published one."""
    site = timing.install_peers(session) if session.wheels else None
    for case in between_figures(session.small):
        for library, folder in (("ours", home()), ("published", site)):
            if folder is not None and not session.is_over():
                timing.time_case(session, case, library, folder)
