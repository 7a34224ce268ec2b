"""Speed and memory of one CPU device, beside other libraries, as ratios within one run.

    python checks/benchmarks/one_device.py [--n 1000000] [--runs 7] [--output results.json] [--no-peers]

Stages are timed apart and together, after compilation, with float32 input in random order and output in input order.
Peers are timed alternately with jztree on the same input, building included, because shared machines drift; a ratio is
that of medians. Peers that are not installed are left out (``pip install '.[benchmark]'`` brings them).
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import peers
from timing import Call, machine, seconds, timed

import jztree as jz
from jztree_utils import ics

K = 8


def uniform(n: int, dims: int = 3, seed: int = 1) -> np.ndarray:
    """Uniform positions in the unit box, ``(n, dims)`` float32."""
    return np.random.default_rng(seed).random((n, dims), dtype=np.float32)


def linking_length(b: float, n: int) -> float:
    """``b`` mean particle separations of ``n`` particles in the unit box."""
    return b * n ** (-1 / 3)


def knn_peers(pos: np.ndarray) -> peers.Peers:
    """kNN of all points with other libraries, on two threads: build and query."""
    return {
        "nanoflann": peers.nanoflann(pos, K),
        "pykdtree": peers.pykdtree(pos, pos, K),
        "scipy": peers.scipy(pos, K),
    }


def fof_peers(pos: np.ndarray, rlink: float) -> peers.Peers:
    """Friends-of-friends with kdcount: only its tree and its linking, and with the groups it makes of them."""
    return {
        "kdcount_links": peers.kdcount_links(pos, rlink, 1.0),
        "kdcount_groups": peers.kdcount(pos, rlink, 1.0),
    }


def compare(ours: Call, others: peers.Peers, runs: int) -> dict[str, Any]:
    """Median seconds of ``ours`` and of the peers that are there, and how many times slower each peer is."""
    there = {name: call for name, call in others.items() if call is not None}
    found = seconds({"jztree": ours} | there, runs)
    return {"seconds": found, "ratios": {name: found[name] / found["jztree"] for name in there}}


def stages(pos: jax.Array, boxsize: float | None, runs: int) -> dict[str, float]:
    """Median seconds of each step of kNN and friends-of-friends."""
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
    """Inputs that are bad for trees, ``(n, 3)`` float32 each."""
    rng, even = np.random.default_rng(2), uniform(n)
    outlier = even.copy()
    outlier[0] = 1e12
    return {
        "uniform": even,
        "clustered": np.asarray(ics.clustered_particles(n, seed=3).pos),
        "all equal": np.full((n, 3), 0.5, np.float32),
        "half duplicates": np.concatenate([even[: n // 2]] * 2)[rng.permutation(n // 2 * 2)],
        "collinear": (np.linspace(0, 1, n)[:, None] * np.array([1, 2, 3])).astype(np.float32)[rng.permutation(n)],
        "range 1e12": (even * 10.0 ** rng.uniform(-12, 0, (n, 1))).astype(np.float32),
        "one outlier": outlier,
        "lattice": rng.permutation(np.stack(np.indices((round(n ** (1 / 3)),) * 3), -1).reshape(-1, 3)).astype("f4"),
    }


def hard_ratios(n: int, runs: int) -> dict[str, dict[str, float]]:
    """Time on hard inputs over that on uniform points, per particle."""
    out: dict[str, dict[str, float]] = {}
    for name, pos in hard_inputs(n).items():
        x, rlink = jax.numpy.asarray(pos), 0.2 * float(np.ptp(pos)) / n ** (1 / 3)
        found = seconds(
            {"knn": lambda x=x: jz.knn.knn.jit(x, k=K), "labels": lambda x=x, r=rlink: jz.fof.fof_labels.jit(x, r)},
            runs,
        )
        out[name] = {key: value / len(pos) for key, value in found.items()}
    return {name: {key: row[key] / out["uniform"][key] for key in row} for name, row in out.items()}


MEMORY_SCRIPT = """
import sys, jax, numpy as np, jztree as jz
def status(key):
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith(key))) * 1024
what, n = sys.argv[1], int(sys.argv[2])
calls = {
    "knn": lambda x: jz.knn.knn.jit(x, k=8),
    "labels": lambda x: jz.fof.fof_labels.jit(x, 0.2 * n ** (-1 / 3), output_order="input")[1],
    "catalogue": lambda x: jz.fof.fof_and_catalogue.jit(x, 0.2 * n ** (-1 / 3)),
}
pos = jax.random.uniform(jax.random.key(0), (n, 3)).block_until_ready()
jax.block_until_ready(calls[what](pos[: n // 100]))
calls[what](pos[:1000])
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
out = jax.block_until_ready(calls[what](pos))
outputs = sum(leaf.nbytes for leaf in jax.tree.leaves(out))
print((status("VmHWM") - before - outputs) / pos.nbytes)
"""


def memory(n: int) -> dict[str, float]:
    """Peak resident memory beyond inputs and outputs, in units of the positions' size, each in a process of its own."""

    def one(what: str) -> float:
        run = subprocess.run(
            [sys.executable, "-P", "-c", MEMORY_SCRIPT, what, str(n)], capture_output=True, text=True, check=True
        )
        return float(run.stdout)

    return {what: one(what) for what in ("knn", "labels", "catalogue")}


def compile_seconds(pos: jax.Array) -> dict[str, float]:
    """Trace and compile time of the first call, less that of the second; shapes that nothing else here uses."""
    part = pos[:9973]
    calls = {
        "knn": lambda: jz.knn.knn.jit(part, k=7),
        "fof_and_catalogue": lambda: jz.fof.fof_and_catalogue.jit(part, 0.01),
    }
    return {name: timed(call) - timed(call) for name, call in calls.items()}


def measure(n: int, runs: int, with_peers: bool) -> dict[str, Any]:
    """All figures, as nested dictionaries ready for JSON."""
    pos = jax.numpy.asarray(uniform(n))
    host = np.asarray(pos)
    results: dict[str, Any] = {"machine": machine(), "n": n, "runs": runs, "compile seconds": compile_seconds(pos)}
    results["stages open"] = stages(pos, None, runs)
    results["stages periodic"] = stages(pos, 1.0, runs)
    others = knn_peers(host) if with_peers else {}
    results["knn k=8"] = compare(lambda: jz.knn.knn.jit(pos, k=K), others, runs)
    for b in (0.2, 0.7):
        rlink = linking_length(b, n)
        others = fof_peers(host, rlink) if with_peers else {}
        ours = lambda rlink=rlink: jz.fof.fof_labels.jit(pos, rlink, 1.0, output_order="input")[1]  # noqa: E731
        results[f"labels b={b}"] = compare(ours, others, runs)
    results["time on hard inputs over uniform"] = hard_ratios(n // 10, runs)
    results["peak memory over positions"] = memory(n)
    return results


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
    parser.add_argument("--n", type=int, default=1_000_000, help="particles (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=7, help="counted runs; medians are taken (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="also save the results there, as JSON")
    parser.add_argument("--no-peers", action="store_true", help="leave other libraries out")
    arguments = parser.parse_args()
    results = measure(arguments.n, arguments.runs, not arguments.no_peers)
    show(results)
    if arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
