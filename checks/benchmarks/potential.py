"""Gravitational potentials: particles per second and core, and errors, next to pytreegrav if it is installed.

    python checks/benchmarks/potential.py [--n N] [--error 1e-3] [--runs 2] [--peer-angle 0.7] [--record]

Rates are particles per CPU second, summed over threads, the best of the runs, after compilation, tree included, for
float32 input in random order. Errors are relative, compared with sums over all pairs in float64 for a sample of
particles: the error that 99.9 % of the sample does not exceed.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from inputs import uniform
from timing import Call, append_record, least_cpu_seconds, machine

import jztree as jz

HISTORY = Path(__file__).parents[1] / "results" / "potential.jsonl"
SAMPLE = 1000
PAIRS_AT_A_TIME = 10**7


def sphere(n: int) -> np.ndarray:
    """Return a Plummer sphere with a scale radius of 0.02, cut at 1."""
    random = np.random.default_rng(1)
    radius = 0.02 / np.sqrt(random.random(n) ** (-2 / 3) - 1 + 1e-9)
    direction = random.standard_normal((n, 3))
    pos: np.ndarray = np.minimum(radius, 1)[:, None] * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    return pos.astype(np.float32)


def clusters(n: int) -> np.ndarray:
    """Return clusters of many sizes with steep profiles, in a background of 30 %."""
    random = np.random.default_rng(2)
    number = max(n // 500, 4)
    cluster, centre, size = random.integers(0, number, n), random.random((number, 3)), random.pareto(1, number) + 1
    direction, radius = random.standard_normal((n, 3)), 1e-3 * np.minimum(size, 100) ** (1 / 3)
    pos = (
        centre[cluster] + (radius[cluster] * random.random(n) / np.linalg.norm(direction, axis=1))[:, None] * direction
    )
    return np.where(random.random(n)[:, None] < 0.3, random.random((n, 3)), pos).astype(np.float32)


SETS: dict[str, Callable[[int], np.ndarray]] = {"uniform": uniform, "Plummer": sphere, "clusters": clusters}


def sums_over_pairs(pos: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the potentials of some particles of mass 1 in float64."""
    wide, result = pos.astype(np.float64), np.zeros(len(rows))
    for place, row in enumerate(rows):
        for first in range(0, len(wide), PAIRS_AT_A_TIME):
            distance = np.linalg.norm(wide[first : first + PAIRS_AT_A_TIME] - wide[row], axis=1)
            result[place] -= (1 / distance[distance > 0]).sum()
    return result


def pytreegrav(pos: np.ndarray, angle: float) -> Call | None:
    """Compute potentials with the Barnes-Hut tree of pytreegrav, on one thread."""
    try:
        from pytreegrav import Potential  # noqa: PLC0415 - a peer is optional
    except ImportError:
        return None
    wide, mass = pos.astype(np.float64), np.ones(len(pos))
    return lambda: Potential(wide, mass, method="tree", theta=angle)


def compare(pos: np.ndarray, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return rate and error of each library."""
    x = jnp.asarray(pos)
    calls: dict[str, Call] = {"jztree": lambda: jz.potential.jit(x, error=options.error)}
    peer = pytreegrav(pos, options.peer_angle)
    if peer is not None:
        calls["pytreegrav"] = peer
    rows = np.random.default_rng(3).choice(len(pos), min(options.sample, len(pos)), replace=False)
    expected, times = sums_over_pairs(pos, rows), least_cpu_seconds(calls, options.runs)
    errors = {name: np.abs(np.asarray(call())[rows] / expected - 1) for name, call in calls.items()}
    return {
        name: {"per_second": len(pos) / times[name], "error": float(np.quantile(errors[name], 0.999))} for name in calls
    }


def main() -> None:
    """Print a table, and append it to the results if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=10**6, help="number of particles")
    parser.add_argument("--error", type=float, default=1e-3)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="particles whose errors are computed")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--peer-angle", type=float, default=0.7, help="the opening angle of pytreegrav")
    parser.add_argument("--record", action="store_true", help=f"append the results to {HISTORY.name}")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name in options.sets:
        results[name] = compare(SETS[name](options.n), options)
        for library, row in results[name].items():
            print(f"{name:10s}{library:12s}{row['per_second']:12.3g} per second   99.9 % below {row['error']:.1e}")
    if options.record:
        line = {"machine": machine(), "n": options.n, "error": options.error, "peer_angle": options.peer_angle}
        append_record(HISTORY, {**line, "potentials": results})


if __name__ == "__main__":
    main()
