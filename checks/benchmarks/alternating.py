"""CPU time of the kernels in several builds: instruction sets, or this checkout and another one.

    python checks/benchmarks/alternating.py --sets x86-64-v3 x86-64-v4 [--n 100000] [--runs 9] [--record]
    checks/benchmarks/against_commit.sh 81f6d58

Each build runs in its own process, on one core, and the processes take turns, so that other programs disturb all builds
alike. The figure of a row is the minimum CPU time of its runs, after compilation, tree included, for uniform points in
3D. With --sets, the libraries must be compiled with JZTREE_INSTRUCTION_SETS=ALL. A row is marked if float64 takes more
than 2.5 times as long as float32, or x86-64-v3 more than 2.2 times as long as x86-64-v4.
"""

import argparse
import importlib.machinery
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
HISTORY = ROOT / "checks" / "results" / "alternating.jsonl"
KERNELS = (
    *("knn 1", "knn 8", "knn 8 periodic", "knn 33", "knn 100"),
    *("counts", "lists", "kernel sums", "pair counts", "groups", "tree"),
)
DTYPES = ("float32", "float64")
WIDE, NARROW = 2.5, 2.2  # largest ratios of float64 to float32, and of x86-64-v3 to x86-64-v4


def call_of(jz: Any, kernel: str, pos: Any) -> Callable[[], Any]:
    """Return the call of a row; it must work in older versions of the library also."""
    n = len(pos)
    radius = (30 / n * 3 / (4 * math.pi)) ** (1 / 3)
    if kernel.startswith("knn"):
        k, boxsize = int(kernel.split()[1]), 1.0 if kernel.endswith("periodic") else None
        return lambda: jz.knn.knn.jit(pos, k, boxsize=boxsize)
    if kernel.startswith("softened"):  # sums over all images, which no row of the default table has
        field = {"potentials": "potential", "accelerations": "acceleration"}[kernel.split()[1]]
        return lambda: getattr(jz.gravity, field).jit(pos, softening=0.02, boxsize=1.0)
    spanning_tree = getattr(jz.mst, "spanning_tree", None) or jz.mst.euclidean
    edges, groups = [radius * i / 8 for i in range(9)], np.arange(n, dtype=np.int32) // 250 * 250
    return {
        "counts": lambda: jz.radius.count_within.jit(pos, radius),
        "lists": lambda: jz.radius.neighbours_within.jit(pos, radius),
        "kernel sums": lambda: jz.radius.kernel_sums.jit(pos, radius),
        "pair counts": lambda: jz.radius.pair_counts.jit(pos, edges).count.words,
        "groups": lambda: jz.fof.fof_labels.jit(pos, 0.2 * n ** (-1 / 3)),
        "tree": lambda: spanning_tree.jit(pos),
        "group potentials": lambda: jz.gravity.potential.jit(pos, groups=groups),  # not in the first versions
    }[kernel]


def work(source: str) -> None:
    """Run the rows that the parent names, one per line, with the library in ``source``, and print their CPU times."""
    # Before the finder of an editable installation of another checkout.
    sys.meta_path.insert(0, importlib.machinery.PathFinder)  # type: ignore[arg-type]
    sys.path.insert(0, source)
    import jax  # noqa: PLC0415

    jax.config.update("jax_enable_x64", True)
    import jztree as jz  # noqa: PLC0415

    calls: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        kernel, dtype, n = line.strip().split(",")
        if line not in calls:
            calls[line] = call_of(jz, kernel, jax.numpy.asarray(np.random.default_rng(1).random((int(n), 3)), dtype))
            jax.block_until_ready(calls[line]())
        before = time.process_time()
        jax.block_until_ready(calls[line]())
        print(time.process_time() - before, flush=True)


def start(source: Path, instruction_set: str | None) -> subprocess.Popen[str]:
    """Start the process of one build on the last core that this process may use."""
    settings = os.environ | ({} if instruction_set is None else {"JZTREE_INSTRUCTION_SET": instruction_set})
    core = max(os.sched_getaffinity(0))
    return subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, "-P", __file__, "--work", str(source)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=settings,
        text=True,
    )


def cpu_seconds(builds: dict[str, subprocess.Popen[str]], row: str, runs: int) -> dict[str, float]:
    """Return the minimum CPU time of a row in each build."""
    times: dict[str, list[float]] = {name: [] for name in builds}
    for _ in range(runs):
        for name, process in builds.items():
            assert process.stdin is not None
            assert process.stdout is not None
            print(row, file=process.stdin, flush=True)
            times[name].append(float(process.stdout.readline()))
    return {name: min(seconds) for name, seconds in times.items()}


def marks(table: dict[str, dict[str, float]], row: str) -> str:
    """Return the marks of a row that is slower than its type or its instruction set explains."""
    kernel, dtype, n = row.split(",")
    seconds, single = table[row], table.get(f"{kernel},float32,{n}", {})
    slow = [name for name in seconds if dtype == "float64" and seconds[name] > WIDE * single[name]]
    narrow = seconds.get("x86-64-v3", 0) > NARROW * seconds.get("x86-64-v4", float("inf"))
    return "".join([*(f"  float64 is slow with {name}" for name in slow), "  x86-64-v3 is slow" * narrow])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=[], help="instruction sets of this checkout")
    parser.add_argument("--against", type=Path, help="another checkout, compiled into its jztree/lib")
    parser.add_argument("--kernels", nargs="*", default=KERNELS, help="for example 'knn 8', 'softened potentials'")
    parser.add_argument("--n", type=int, default=100_000, help="number of points")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--record", action="store_true", help=f"append the result to {HISTORY.name}")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work(arguments.work)
    builds = {name: start(ROOT, name) for name in arguments.sets}
    if arguments.against:
        level = os.environ.get("JZTREE_INSTRUCTION_SET")
        builds = {arguments.against.name: start(arguments.against, level), "this checkout": start(ROOT, level)}
    table: dict[str, dict[str, float]] = {}
    print(f"{'CPU ms, ' + str(arguments.n) + ' points':24}", *(f"{name:>14}" for name in builds), "last over first")
    for kernel in arguments.kernels:
        for dtype in DTYPES:
            row = f"{kernel},{dtype},{arguments.n}"
            table[row] = cpu_seconds(builds, row, arguments.runs)
            times = list(table[row].values())
            print(
                f"{kernel + ', ' + dtype:24}",
                *(f"{1e3 * seconds:14.2f}" for seconds in times),
                f"{times[-1] / times[0]:8.2f}{marks(table, row)}",
                flush=True,
            )
    if arguments.record:
        from timing import append_record, machine  # noqa: PLC0415

        figures = {"machine": machine(), "n": arguments.n, "runs": arguments.runs, "cpu_seconds": table}
        append_record(HISTORY, figures)


if __name__ == "__main__":
    main()
