"""Fixed radius: cost per particle from 1e4 particles on, hard inputs relative to the cost of their pairs, the cost per
pair of a user's function, and memory.

    python checks/benchmarks/radius.py [--most N] [--hard N] [--reduced N] [--memory N] [--runs 3] [--record]

Times are CPU seconds, summed over threads, the minimum of the runs, after compilation, tree included, for float32 input
in random order. After each figure is the limit for a release. against_peers.py compares the speed with other libraries.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from inputs import uniform
from one_device import MEMORY_WITHIN_RADIUS, hard_inputs, memory
from timing import Call, append_record, least_cpu_seconds, machine

import jztree as jz

HISTORY = Path(__file__).parents[1] / "results" / "radius.jsonl"
NEIGHBOURS = 30
# Limits for a release: the cost per particle relative to the minimum over all numbers of particles, the time on hard
# inputs relative to the cost of their pairs, and memory relative to the positions.
FLAT, HARD, MEMORY = 2.0, 3.0, 6.0
# Nanoseconds per pair of a reduction. A plain loop over all pairs takes as long.
PAIR = 15.0
# Lists of more pairs may exceed the memory of the machine.
MOST_PAIRS = 1e8


def calls(pos: np.ndarray, radius: float, num_pairs: float) -> dict[str, Call]:
    """Return counts and pair counts within a radius, and lists if they are not too long."""
    x, edges = jax.numpy.asarray(pos), (radius or 1.0) * np.arange(9) / 8
    result: dict[str, Call] = {
        "counts": lambda: jz.radius.count_within.jit(x, radius),
        "pair counts": lambda: jz.radius.pair_counts.jit(x, edges).count.words,
    }
    if num_pairs <= MOST_PAIRS:
        result["lists"] = lambda: jz.radius.neighbours_within.jit(x, radius)
    return result


def count_pairs(pos: np.ndarray, radius: float) -> float:
    """Return the total number of pairs within the radius, including each particle with itself."""
    return float(np.asarray(jz.radius.count_within.jit(jax.numpy.asarray(pos), radius), np.float64).sum())


def uniform_radius(n: int) -> float:
    """Return the radius of the sphere with ``NEIGHBOURS`` of ``n`` uniform points in the unit box."""
    return float((NEIGHBOURS / n * 3 / (4 * np.pi)) ** (1 / 3))


def flatness(largest: int, runs: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield microseconds per particle, for the same number of neighbours."""
    for n in (n for n in (10**4, 10**5, 10**6, 10**7) if n <= largest):
        result = least_cpu_seconds(calls(uniform(n), uniform_radius(n), n * NEIGHBOURS), runs)
        yield n, {name: seconds / n * 1e6 for name, seconds in result.items()}


def hard(n: int, runs: int) -> Iterator[tuple[str, float, dict[str, float]]]:
    """Yield pairs per particle, and the time relative to uniform points.

    The time is divided by that of uniform points with as many pairs, or with as many particles, whichever is longer.
    Within the radius, half of the particles have at least the usual number of neighbours.
    """
    points, usual = uniform(n), uniform_radius(n)
    pairs_there = count_pairs(points, usual) / n
    reference = least_cpu_seconds(calls(points, usual, 0), runs)
    for name, pos in hard_inputs(n).items():
        radius = float(np.median(np.asarray(jz.knn.knn.jit(jax.numpy.asarray(pos), k=NEIGHBOURS + 1)[0])[:, -1]))
        pairs = count_pairs(pos, radius) / len(pos)
        result = least_cpu_seconds(calls(pos, radius, pairs * len(pos)), runs)
        needs = max(1.0, pairs / pairs_there) * len(pos) / n
        yield name, pairs, {call: seconds / reference[call] / needs for call, seconds in result.items()}


def reductions(n: int, runs: int) -> dict[str, float]:
    """Return nanoseconds per pair of sums of a function of pairs, and of a loop over all pairs in JAX."""
    pos = jax.numpy.asarray(uniform(n))
    mass = jax.numpy.ones(n)
    part = jz.data.PosMass(pos=pos, mass=mass)

    def weight(query: Any, source: Any, vector: jax.Array, distance: jax.Array) -> jax.Array:
        return source.mass * jax.numpy.exp(-((distance / 0.1) ** 2))

    @jax.jit
    def loop(pos: jax.Array, mass: jax.Array) -> jax.Array:
        def one(positions: jax.Array) -> jax.Array:
            square = jax.numpy.sum((pos - positions) ** 2, axis=1)
            return jax.numpy.sum(jax.numpy.where(square <= 0.4**2, mass * jax.numpy.exp(-square / 0.1**2), 0))

        return jax.lax.map(one, pos)

    radius = uniform_radius(n)
    result = least_cpu_seconds(
        {
            "within 0.4": lambda: jz.radius.reduce_within.jit(part, 0.4, weight),
            f"{NEIGHBOURS} neighbours": lambda: jz.radius.reduce_within.jit(part, radius, weight),
            "plain loop": lambda: loop(pos, mass),
        },
        runs,
    )
    pairs = count_pairs(np.asarray(pos), 0.4), count_pairs(np.asarray(pos), radius), float(n) ** 2
    return {name: seconds / number * 1e9 for (name, seconds), number in zip(result.items(), pairs, strict=True)}


def show(title: str, row: dict[str, float], largest: str) -> None:
    """Print numbers to three digits after a title, and their limit."""
    print(
        f"{title:<48}" + ", ".join(f"{name} {value:.3g}" for name, value in row.items()) + f" ({largest})", flush=True
    )


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure and print."""
    results: dict[str, Any] = {"machine": machine(), "microseconds a particle": {}, "hard inputs": {}}
    print(json.dumps(results["machine"]))
    costs = results["microseconds a particle"]
    for n, row in flatness(arguments.most, arguments.runs):
        costs[f"{n:.0e}"] = row
        smallest = {name: min(row_costs[name] for row_costs in costs.values() if name in row_costs) for name in row}
        growth = max(row[name] / smallest[name] for name in row)
        show(
            f"{n:.0e} particles, us of CPU per particle", row, f"{growth:.2g} times the least so far; at most {FLAT:g}"
        )
    for name, pairs, row in hard(arguments.hard, arguments.runs):
        results["hard inputs"][name] = {"within r": pairs} | row
        show(f"{name}, {pairs:.3g} within r, time over cost of pairs", row, f"at most {HARD:g}")
    results["nanoseconds a pair"] = reductions(arguments.reduced, arguments.runs)
    show("reductions, ns of CPU per pair", results["nanoseconds a pair"], f"within 0.4 at most {PAIR:g}")
    results["memory over positions"] = memory(arguments.memory, MEMORY_WITHIN_RADIUS)
    for name, value in results["memory over positions"].items():
        show("memory without results, over positions", {name: value}, f"at most {MEMORY:g}")
    return results


def main() -> None:
    """Measure, print, and save if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=10**7, help="largest number of particles (default: %(default)s)")
    parser.add_argument(
        "--hard", type=int, default=10**5, help="number of particles of hard inputs (default: %(default)s)"
    )
    parser.add_argument(
        "--reduced", type=int, default=20_000, help="number of particles of reductions (default: %(default)s)"
    )
    parser.add_argument(
        "--memory", type=int, default=10**6, help="number of particles for memory (default: %(default)s)"
    )
    parser.add_argument(
        "--runs", type=int, default=3, help="number of runs, whose minimum counts (default: %(default)s)"
    )
    parser.add_argument("--record", action="store_true", help=f"append the results to {HISTORY.name}, one line per run")
    arguments = parser.parse_args()
    results = measure(arguments)
    if arguments.record:
        append_record(HISTORY, results)


if __name__ == "__main__":
    main()
