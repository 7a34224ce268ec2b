"""All checks that need a GPU, in one command for a machine with JAX and the CUDA compiler, without a network.

    make gpu-check                                                     # all stages, results in checks/results
    python checks/gpu --stages build,smoke,figures --budget 280        # some stages, with a time limit
    python checks/gpu --stages time,peers,floor,report --peer-wheels DIR --only knn
    python checks/gpu --libraries libraries --stages build,experiments --budget 600
    CUDAARCHS=90 python checks/gpu --compile libraries                 # on a machine without a GPU, and then
    python checks/gpu --libraries libraries                            # on the machine with one

Findings are stored immediately. A later call runs the missing parts, if the sources and the flags are the same. A
number after the name of a stage is its time limit in seconds.
"""

import argparse
import datetime
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import building, comparison, correctness, experiments, report, timing
from .session import ROOT, Record, Session, fingerprint


@dataclass(frozen=True)
class Stage:
    """A part of the check.

    Attributes:
        run: Runs its missing parts.
        purpose: A few words for users.
        seconds: The expected time on a machine with 16 cores and an H100.
        record: The name of its findings in the record, if another stage has them.
    """

    run: Callable[[Session], None]
    purpose: str
    seconds: int
    record: str = ""


# In the order of execution: after ten minutes, the first four are done.
STAGES: dict[str, Stage] = {
    "build": Stage(building.run, "compile the kernels for this GPU and 1 to 3 dimensions, and record calls", 150),
    "smoke": Stage(comparison.smoke, "one call of each kernel with 1e4 and 1e6 particles, compared with the CPU", 25),
    "figures": Stage(
        timing.figures, "the times to beat: kNN and friends-of-friends, 1e6 and 1e7 particles", 30, "time"
    ),
    "compare": Stage(comparison.compare, "results of GPU and CPU on many inputs", 200),
    "dimensions": Stage(building.run_all_dims, "compile the kernels for 4 to 8 dimensions too, for the tests", 150),
    "test": Stage(correctness.test, "one case of each test", 500),
    "sanitize": Stage(correctness.sanitize, "the four tools of compute-sanitizer, over calls of each kernel", 60),
    "experiments": Stage(
        experiments.run, "measurements that decide the next changes of kernels, with expected outcomes", 480
    ),
    "floor": Stage(timing.floor, "the limits of the device", 10),
    "time": Stage(timing.run, "all timed cases of this library", 900),
    "buffers": Stage(timing.run, "some with the kernels outside of command buffers", 200),
    "peers": Stage(timing.run, "other libraries", 900),
    "report": Stage(report.write, "the tables", 1),
}


def table_of_stages() -> str:
    """Return one line per stage."""
    head = "stages, in this order, with the seconds expected for 16 cores and an H100:\n"
    return head + "\n".join(f"  {name:11}{stage.seconds:5}  {stage.purpose}" for name, stage in STAGES.items())


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python checks/gpu",
        description=__doc__,
        epilog=table_of_stages(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stages", default=",".join(STAGES), help="stages to run, separated by commas (default: all)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="time limit of the whole run (default: none)")
    parser.add_argument("--platform", choices=("cuda", "cpu"), default="cuda", help="cpu only tests the script")
    parser.add_argument("--quick", action="store_true", help="use a few small inputs, to test the script")
    parser.add_argument(
        "--only",
        default="",
        help="compare only inputs, and time only calls, whose names contain a word of this list, separated by commas",
    )
    parser.add_argument("--runs", type=int, default=11, help="number of runs of each timed call (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=ROOT / "checks" / "results", help="folder for results")
    parser.add_argument("--name", help="name of the results, gpu_NAME.json and .md (default: GPU and date)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gpu-check", help="folder for temporary files")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="reference snapshots")
    parser.add_argument(
        "--peer-wheels", type=Path, metavar="DIR", help="folder with packages of other libraries to time"
    )
    parser.add_argument(
        "--libraries", type=Path, metavar="DIR", help="use the libraries that --compile DIR made, instead of compiling"
    )
    parser.add_argument(
        "--compile", type=Path, metavar="DIR", help="only compile the libraries for CUDAARCHS into DIR, without a GPU"
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
        libraries=options.libraries.resolve() if options.libraries else None,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the stages; return 1 if there is an error among the findings."""
    options = parse(arguments)
    try:
        stages = chosen_stages(options.stages)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.compile is not None:
        return compile_only(options, all_dims="dimensions" in stages)
    if options.platform == "cuda" and not report.name_of_gpu():
        print("nvidia-smi finds no GPU; to test the script without one, give --platform cpu --quick.", file=sys.stderr)
        return 2
    session = open_session(options, set(stages))
    for name in stages if options.fresh else ():
        session.record.forget(STAGES[name].record or name)
    end = None if options.budget is None else time.monotonic() + options.budget
    for name in (name for name in STAGES if name in stages):
        limits = [end, None if stages[name] is None else time.monotonic() + (stages[name] or 0.0)]
        session.deadline = min((limit for limit in limits if limit is not None), default=None)
        if name == "peers" and {"time", "buffers"} & set(stages):
            continue  # an earlier stage times each case with this library, and right after it with the peers
        if name == "buffers" and "time" in stages:
            continue  # likewise
        if name == "report" or not session.is_over():
            STAGES[name].run(session)
            report.save(session)
        else:
            print(f"{name}: no time is left; run this stage again", flush=True)
    return 1 if failures(session.record) else 0


def compile_only(options: argparse.Namespace, all_dims: bool) -> int:
    """Compile libraries for another machine; return 1 if that fails."""
    try:
        building.compile_into(open_session(options, set()), options.compile.resolve(), all_dims)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"The libraries are in {options.compile}; use them with --libraries {options.compile}.")
    return 0


def failures(record: Record) -> list[str]:
    """Return the failures of this library; peers may fail."""
    result = []
    for stage, findings in record.data["stages"].items():
        for key, finding in findings.items():
            wrong = finding.get("error") or finding.get("wrong") or finding.get("failed")
            if stage != "peers" and (wrong or not correctness.is_clean(finding.get("verdict"))):
                result.append(f"{stage}: {key}")
    return result
