"""Stages, memory and hard inputs on one CPU device.

    python checks/benchmarks/one_device.py [--n 1000000] [--runs 7] [--output results.json]

Stages are timed separately and together, after compilation, with float32 input in random order and output in input
order.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from inputs import linking_length, uniform
from timing import machine, seconds

import jztree as jz
from jztree_utils import ics

K = 8


def stages(pos: jax.Array, boxsize: float | None, runs: int) -> dict[str, float]:
    """Return the median seconds of each step of kNN and friends-of-friends."""
    partz, th = jz.tree.zsort_and_tree.jit(pos, boxsize=boxsize)
    rlink = linking_length(0.2, len(pos))
    return seconds(
        {
            "zsort": lambda: jz.tree.zsort.jit(pos, boxsize=boxsize),
            "hierarchy": lambda: jz.tree.build_tree_hierarchy.jit(partz, boxsize=boxsize),
            "knn, tree given": lambda: jz.knn.knn.jit(partz, k=K, th=th, boxsize=boxsize),
            "knn": lambda: jz.knn.knn.jit(pos, k=K, boxsize=boxsize),
            "labels, tree given": lambda: jz.fof.fof_labels.jit(partz, rlink, boxsize or 0.0, th=th),
            "labels": lambda: jz.fof.fof_labels.jit(pos, rlink, boxsize or 0.0, output_order="input"),
            "catalogue": lambda: jz.fof.fof_and_catalogue.jit(pos, rlink, boxsize or 0.0),
        },
        runs,
    )


def hard_inputs(n: int) -> dict[str, np.ndarray]:
    """Return inputs that are hard for trees, ``(n, 3)`` float32 each."""
    rng, points = np.random.default_rng(2), uniform(n)
    outlier = points.copy()
    outlier[0] = 1e12
    return {
        "uniform": points,
        "clustered": np.asarray(ics.clustered_particles(n, seed=3).pos),
        "all equal": np.full((n, 3), 0.5, np.float32),
        "half duplicates": np.concatenate([points[: n // 2]] * 2)[rng.permutation(n // 2 * 2)],
        "collinear": (np.linspace(0, 1, n)[:, None] * np.array([1, 2, 3])).astype(np.float32)[rng.permutation(n)],
        "range 1e12": (points * 10.0 ** rng.uniform(-12, 0, (n, 1))).astype(np.float32),
        "one outlier": outlier,
        "lattice": rng.permutation(np.stack(np.indices((round(n ** (1 / 3)),) * 3), -1).reshape(-1, 3)).astype("f4"),
    }


def hard_ratios(n: int, runs: int) -> dict[str, dict[str, float]]:
    """Return the time per particle on hard inputs relative to uniform points."""
    out: dict[str, dict[str, float]] = {}
    for name, pos in hard_inputs(n).items():
        x, rlink = jax.numpy.asarray(pos), 0.2 * float(np.ptp(pos)) / n ** (1 / 3)
        result = seconds(
            {"knn": lambda x=x: jz.knn.knn.jit(x, k=K), "labels": lambda x=x, r=rlink: jz.fof.fof_labels.jit(x, r)},
            runs,
        )
        out[name] = {key: value / len(pos) for key, value in result.items()}
    return {name: {key: row[key] / out["uniform"][key] for key in row} for name, row in out.items()}


MEMORY_SCRIPT = """
import ctypes, sys, jax, numpy as np, jztree as jz
def status(key):
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith(key))) * 1024
what, n = sys.argv[1], int(sys.argv[2])
calls = {
    "knn": lambda x: jz.knn.knn.jit(x, k=8),
    "labels": lambda x: jz.fof.fof_labels.jit(x, 0.2 * n ** (-1 / 3), output_order="input")[1],
    "catalogue": lambda x: jz.fof.fof_and_catalogue.jit(x, 0.2 * n ** (-1 / 3)),
    "counts within r": lambda x: jz.radius.count_within.jit(x, 1.93 * n ** (-1 / 3)),
    "lists within r": lambda x: jz.radius.neighbours_within.jit(x, 1.93 * n ** (-1 / 3)),
    "pairs within r": lambda x: jz.radius.pairs_within.jit(x, 1.93 * n ** (-1 / 3)),
    "lists, plain call": lambda x: jz.radius.neighbours_within(x, 1.93 * n ** (-1 / 3)),
    "pairs, plain call": lambda x: jz.radius.pairs_within(x, 1.93 * n ** (-1 / 3)),
    "pair counts": lambda x: jz.radius.pair_counts.jit(x, np.linspace(0, 1.93 * n ** (-1 / 3), 9)).count.words,
}
pos = jax.random.uniform(jax.random.key(0), (n, 3)).block_until_ready()
# Compile first, because memory of the compiler does not count.
jax.block_until_ready(calls[what](pos))
# JAX releases memory that it shares with NumPy at its next call.
jax.block_until_ready(jax.device_put(np.ones(3)) + 1)
getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
out = jax.block_until_ready(calls[what](pos))
outputs = sum(leaf.nbytes for leaf in jax.tree.leaves(out))
print((status("VmHWM") - before - outputs) / pos.nbytes)
"""


# Searches with 30 neighbours per particle.
MEMORY_WITHIN_RADIUS = (
    "counts within r",
    "lists within r",
    "pairs within r",
    "lists, plain call",
    "pairs, plain call",
    "pair counts",
)
MEMORY_OF_GROUPS = ("knn", "labels", "catalogue")


def memory(n: int, calls: tuple[str, ...]) -> dict[str, float]:
    """Return the peak memory of each call in its own process, without inputs and outputs, relative to the positions."""

    def one(name: str) -> float:
        run = subprocess.run(
            [sys.executable, "-P", "-c", MEMORY_SCRIPT, name, str(n)], capture_output=True, text=True, check=True
        )
        return float(run.stdout)

    return {name: one(name) for name in calls}


def measure(n: int, runs: int) -> dict[str, Any]:
    """Return all figures as nested dictionaries ready for JSON."""
    pos = jax.numpy.asarray(uniform(n))
    return {
        "machine": machine(),
        "n": n,
        "runs": runs,
        "stages open": stages(pos, None, runs),
        "stages periodic": stages(pos, 1.0, runs),
        "time on hard inputs over uniform": hard_ratios(n // 10, runs),
        "peak memory over positions": memory(n, MEMORY_OF_GROUPS + MEMORY_WITHIN_RADIUS),
    }


def show(results: dict[str, Any], indent: int = 0) -> None:
    """Print nested results, numbers to three digits."""
    for key, value in results.items():
        if isinstance(value, dict):
            print(" " * indent + f"{key}:")
            show(value, indent + 2)
        else:
            print(
                " " * indent + f"{key}: {value:.3g}" if isinstance(value, float) else " " * indent + f"{key}: {value}"
            )


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=1_000_000, help="number of particles (default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=7, help="number of counted runs, whose median counts (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="save the results to this JSON file")
    arguments = parser.parse_args()
    results = measure(arguments.n, arguments.runs)
    show(results)
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
