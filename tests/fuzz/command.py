"""The command line, and a parent process that survives if the library ends the worker.

Cases run in a separate process, which records each case before it runs. If the process dies or hangs, the case is drawn
again here and printed, but not run.
"""

import argparse
import datetime
import importlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from . import runner

PARTS = (
    "knn",
    "nearest",
    "fof",
    "phases",
    "trees",
    "peaks",
    "links",
    "radius",
    "bins",
    "pairs",
    "sums",
    "catalogue",
    "spheres",
    "subhaloes",
    "gravity",
    "gradients",
    "files",
    "devices",
    "ranks",
)
# A case hangs if the process has used this much CPU time, in seconds, and at least as much wall-clock time, since other
# programs may occupy a busy machine. A waiting process uses no CPU time, and has longer.
_PATIENCE, _PATIENCE_WITH_WAITS = 180.0, 900.0


def main() -> int:
    """Run the requested parts; return 1 if there is a fault."""
    options = _arguments()
    if options.worker is not None:
        return _work(options)
    print(f"fuzz: seed {options.seed}, parts {','.join(options.parts)}", flush=True)
    if not _sanitizers_notice():
        return 1
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "case"
        command = [sys.executable, str(Path(__file__).parent), *_repeat(options), "--worker", str(notes)]
        process = subprocess.Popen(command)
        try:
            code = _watch(process, notes)
        finally:
            process.kill()
        if code in (0, 1):
            return code
        _report_end(notes, options.seed, "hangs" if code is None else f"ended the process with {code}")
        return 1


def _sanitizers_notice() -> bool:
    """Return whether planted errors end a process, if the library in use was built with sanitizers."""
    if os.environ.get("JZTREE_INSTRUCTION_SET") != "sanitized":
        return True
    call = "import ctypes, jztree; ctypes.CDLL(jztree.kernels.native_info()['cpu_library']).jztree_planted_{}(7)"
    for error, words in (("overrun", "heap-buffer-overflow"), ("overflow", "signed integer overflow")):
        ended = subprocess.run([sys.executable, "-c", call.format(error)], capture_output=True, text=True, check=False)
        if ended.returncode == 0 or words not in ended.stderr:
            print(f"fuzz: the sanitizers do not notice a planted {error}:\n{ended.stderr}")
            return False
    return True


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fuzz", description="Random hostile input for jztree, judged by slow oracles."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="for all parts together (default: 60)")
    parser.add_argument("--cases", type=float, default=float("inf"), help="at most so many of each part")
    parser.add_argument("--seed", type=int, default=int(f"{datetime.date.today():%Y%m%d}"), help="default: the date")
    parser.add_argument(
        "--parts",
        type=_parts,
        default=list(PARTS),
        help=f"some of {','.join(PARTS)}, separated by commas; default: all",
    )
    parser.add_argument("--batch", type=int, help="only this batch of each part, as a report names it")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def _parts(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    return names


def _repeat(options: argparse.Namespace) -> list[str]:
    """Return the options for the worker process."""
    given = [f"--seconds={options.seconds}", f"--cases={options.cases}", f"--seed={options.seed}"]
    batch = [] if options.batch is None else [f"--batch={options.batch}"]
    return [*given, *batch, f"--parts={','.join(options.parts)}"]


def _work(options: argparse.Namespace) -> int:
    # Raise run-time errors in the call that causes them.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    with Path(options.worker).open("wb", buffering=0) as notes:

        def announce(part: str, batch: int, index: int) -> None:
            os.pwrite(notes.fileno(), f"{part} {batch} {index} \n".encode(), 0)

        parts = {name: importlib.import_module(f"fuzz.{name}") for name in options.parts}
        limits = (options.seconds, options.cases, options.batch)
        said = {"announce": announce, "report": lambda finding: print(finding.text(), flush=True)}
        tallies = runner.Run(parts, options.seed, *limits, **said).run()
    for name, tally in tallies.items():
        print(f"{name}: {tally.cases} cases of {tally.batches} shapes in {tally.seconds:.0f} s", end="")
        print(f"; {len(tally.findings)} faults" if tally.findings else "")
        for finding in tally.findings.values():
            print(f"  {finding.count} of: {finding.wrong.kind}")
    return int(any(tally.findings for tally in tallies.values()))


def _watch(process: subprocess.Popen[bytes], notes: Path) -> int | None:
    """Return the exit code of the process; None if it hangs."""
    last, since, computed = "", time.monotonic(), 0.0
    while True:
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            current = notes.read_text() if notes.exists() else ""
            if current != last:
                last, since, computed = current, time.monotonic(), _computing_time(process.pid)
            waited, busy = time.monotonic() - since, _computing_time(process.pid) - computed
            if min(waited, busy) > _PATIENCE or waited > _PATIENCE_WITH_WAITS:
                return None


def _computing_time(process: int) -> float:
    """Return the CPU seconds of all threads of a process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _report_end(notes: Path, seed: int, what: str) -> None:
    message: Sequence[str] = notes.read_text().split("\n")[0].split() if notes.exists() else ()
    if len(message) != 3:
        print(f"fuzz: what started {what}, before the first case.")
        return
    name, batch, index = message[0], int(message[1]), int(message[2])
    part = importlib.import_module(f"fuzz.{name}")
    case = next(itertools.islice(runner.cases_of(name, part, seed, batch), index, None))
    print(f"{name} (seed {seed}, batch {batch}, case {index}): this {what}:\n\n{case.script()}\n", flush=True)
