"""All checks that need a GPU, in one command for a machine with JAX and the CUDA compiler, without a network.

    make gpu-check                                                     # all stages, results in checks/results
    python checks/gpu --stages build,test:300,compare --budget 560     # some stages, with a time limit
    python checks/gpu --stages time,peers,floor,report --peer-wheels DIR --only knn

Stages are build (compile for the available GPU), test (the whole suite), compare (results of GPU and CPU), sanitize
(compute-sanitizer), floor (the limits of the device), time (this library), buffers (the same with its kernels outside
of command buffers), peers (others), report (the tables). Findings are stored immediately. A later call runs the missing
parts, if the sources and the flags are the same. A number after the name of a stage is its time limit in seconds.
"""

import argparse
import datetime
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import building, correctness, report, timing
from .session import ROOT, Record, Session, fingerprint

STAGES: dict[str, Callable[[Session], None]] = {
    "build": building.run,
    "test": correctness.test,
    "compare": correctness.compare,
    "sanitize": correctness.sanitize,
    "floor": timing.floor,
    "time": timing.run,
    "buffers": timing.run,
    "peers": timing.run,
    "report": report.write,
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python checks/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", default=",".join(STAGES), help="stages to run, separated by commas (default: all)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="time limit of the whole run (default: none)")
    parser.add_argument("--platform", choices=("cuda", "cpu"), default="cuda", help="cpu only tests the script")
    parser.add_argument("--quick", action="store_true", help="use a few small inputs, to test the script")
    parser.add_argument(
        "--only", default="", help="time only calls whose names contain a word of this list, separated by commas"
    )
    parser.add_argument("--runs", type=int, default=11, help="number of runs of each timed call (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=ROOT / "checks" / "results", help="folder for results")
    parser.add_argument("--name", help="name of the results, gpu_NAME.json and .md (default: GPU and date)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gpu-check", help="folder for temporary files")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="reference snapshots")
    parser.add_argument(
        "--peer-wheels", type=Path, metavar="DIR", help="folder with packages of other libraries to time"
    )
    parser.add_argument("--xla-flags", default="", metavar="FLAGS", help="the value of XLA_FLAGS (default: none)")
    parser.add_argument("--fresh", action="store_true", help="delete earlier findings of the requested stages")
    parser.add_argument("--commit", default="", help="commit to record in the results, if git does not know it")
    return parser.parse_args(arguments)


def chosen_stages(text: str) -> dict[str, float | None]:
    """Return names and seconds. Raises ValueError for an unknown name."""
    stages: dict[str, float | None] = {}
    for word in filter(None, text.split(",")):
        name, _, seconds = word.partition(":")
        if name not in STAGES:
            raise ValueError(f"{name!r} is not a stage; choose from {', '.join(STAGES)}.")
        stages[name] = float(seconds) if seconds else None
    return stages


def open_session(options: argparse.Namespace, stages: set[str]) -> Session:
    """Make the folders, and open the record."""
    today = datetime.date.today().isoformat()
    name = options.name or f"{report.name_of_gpu() or options.platform}_{today}"
    record = Record(options.results.resolve() / f"gpu_{name}.json")
    source = " ".join([fingerprint("jztree"), *options.xla_flags.split()])
    record.data |= {"date": today, "source": source, "machine": report.machine(options.platform, options.commit)}
    record.save()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    return Session(
        record=record,
        platform=options.platform,
        work=work,
        data=options.data.resolve(),
        wheels=options.peer_wheels.resolve() if options.peer_wheels else None,
        small=options.quick,
        source=source,
        runs=2 if options.quick else options.runs,
        words=[word for word in options.only.split(",") if word],
        stages=stages,
        xla_flags=options.xla_flags,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the stages; return 1 if there is an error among the findings."""
    options = parse(arguments)
    try:
        stages = chosen_stages(options.stages)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.platform == "cuda" and not report.name_of_gpu():
        print("nvidia-smi finds no GPU; to test the script without one, give --platform cpu --quick.", file=sys.stderr)
        return 2
    session = open_session(options, set(stages))
    for name in stages if options.fresh else ():
        session.record.forget(name)
    end = None if options.budget is None else time.monotonic() + options.budget
    for name in (name for name in STAGES if name in stages):
        limits = [end, None if stages[name] is None else time.monotonic() + (stages[name] or 0.0)]
        session.deadline = min((limit for limit in limits if limit is not None), default=None)
        if name == "peers" and {"time", "buffers"} & set(stages):
            continue  # an earlier stage times each case with this library, and right after it with the peers
        if name == "buffers" and "time" in stages:
            continue  # likewise
        if name == "report" or not session.is_over():
            STAGES[name](session)
        else:
            print(f"{name}: no time is left; run this stage again", flush=True)
    return 1 if failures(session.record) else 0


def failures(record: Record) -> list[str]:
    """Return the failures of this library; peers may fail."""
    found = []
    for stage, findings in record.data["stages"].items():
        for key, one in findings.items():
            wrong = one.get("error") or one.get("wrong") or one.get("failed")
            if stage != "peers" and (wrong or not correctness.is_clean(one.get("verdict"))):
                found.append(f"{stage}: {key}")
    return found
