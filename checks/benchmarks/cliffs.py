"""Finds cliffs of the neighbour search: values of k, or kinds of input, that take far longer than comparable ones.

    python checks/benchmarks/cliffs.py [--n 30000] [--runs 3] [--output cliffs.json]

Times are CPU time per query, summed over threads, tree included; the minimum of several runs. A row is a cliff if it
takes more than 4 times its allowed time. Three rows limit this time: the next smaller k' > 1 by its own time multiplied
by (k log2(k + 1)) / (k' log2(k' + 1)), the next larger k by its own time, and uniform points of the same dimensions and
k > 1 by theirs. The exit status is 1 if there is a cliff.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np
from inputs import uniform
from one_device import hard_inputs
from timing import least_cpu_seconds, machine

import jztree as jz

NEIGHBOURS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 1000)
LIMIT = 4.0


@dataclass(frozen=True)
class Row:
    """The CPU time of one search, in seconds per query."""

    kind: str
    dims: int
    k: int
    seconds: float


@dataclass(frozen=True)
class Cliff:
    """A row, its time over the limit, and the row that sets this limit."""

    row: Row
    factor: float
    beside: str


def work(k: int) -> float:
    """Return the allowed growth of the cost with ``k``."""
    return k * math.log2(k + 1)


def allowed(rows: list[Row], row: Row) -> Iterator[tuple[float, str]]:
    """Yield the limits of a row by comparable rows, in seconds per query, each with the name of that row."""
    similar_rows = [candidate for candidate in rows if (candidate.kind, candidate.dims) == (row.kind, row.dims)]
    # The first neighbour of the points themselves needs no search, so it sets no limit.
    smaller_k, larger_k = [r for r in similar_rows if 1 < r.k < row.k], [r for r in similar_rows if r.k > row.k]
    if smaller_k:
        last = max(smaller_k, key=lambda candidate: candidate.k)
        yield last.seconds * work(row.k) / work(last.k), f"k={last.k}"
    if larger_k:
        following = min(larger_k, key=lambda candidate: candidate.k)
        yield following.seconds, f"k={following.k}"
    for uniform_row in rows:
        if (
            (uniform_row.kind, uniform_row.dims, uniform_row.k) == ("uniform", row.dims, row.k)
            and row.kind != "uniform"
            and row.k > 1
        ):
            yield uniform_row.seconds, "uniform"


def cliffs(rows: list[Row]) -> list[Cliff]:
    """Return the rows that take more than `LIMIT` times their allowed time, each once."""
    result = []
    for row in rows:
        factor, reference = max(
            ((row.seconds / largest, name) for largest, name in allowed(rows, row)), default=(0.0, "")
        )
        if factor > LIMIT:
            result.append(Cliff(row, factor, reference))
    return result


def sets(n: int) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """Yield kinds of input: name, sources, and queries if these are not the sources."""
    for dims in (1, 2, 4, 6, 8):
        yield "uniform", uniform(n, dims), None
    yield from ((kind, pos, None) for kind, pos in hard_inputs(n).items())
    points, queries = uniform(n), uniform(n, seed=3)
    yield "pairs of duplicates", np.repeat(points[: n // 2], 2, axis=0), None
    yield "each point 8 times", np.repeat(points[: n // 8], 8, axis=0), None
    yield "each point 40 times", np.repeat(points[: n // 40], 40, axis=0), None
    yield "separate queries", points, queries
    yield "queries around the sources", points, 3 * queries - 1
    yield "queries next to the sources", points, queries + np.float32(2)
    yield "queries at one point", points, np.full((n, 3), 0.5, np.float32)


def measure(n: int, runs: int) -> Iterator[list[Row]]:
    """Yield the rows of one kind of input after the other."""
    for kind, pos, query in sets(n):
        x, q = jax.numpy.asarray(pos), None if query is None else jax.numpy.asarray(query)
        calls = {
            str(k): lambda k=k, x=x, q=q: jz.knn.knn.jit(x, k=k, part_query=q) for k in NEIGHBOURS if k <= len(pos)
        }
        queries = len(pos if query is None else query)
        yield [Row(kind, pos.shape[1], int(k), t / queries) for k, t in least_cpu_seconds(calls, runs).items()]


def show(rows: list[Row]) -> None:
    """Print the times of one kind of input, in microseconds of CPU time per query."""
    times = " ".join(f"{row.k}:{row.seconds * 1e6:.3g}" for row in rows)
    print(f"{rows[0].kind}, {rows[0].dims}D, k:us: {times}", flush=True)


def main() -> int:
    """Measure, print the times and the cliffs, and save if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--n", type=int, default=30_000, help="number of particles, and of queries (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=3, help="number of counted runs (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="save the rows and cliffs to this JSON file")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for some in measure(arguments.n, arguments.runs):
        show(some)
        rows += some
    result = cliffs(rows)
    for cliff in result:
        row = cliff.row
        print(f"cliff: {row.kind}, {row.dims}D, k={row.k}: {cliff.factor:.1f} times the limit from {cliff.beside}")
    print(f"{len(result)} cliffs in {len(rows)} rows")
    if arguments.output:
        results = {"machine": machine(), "n": arguments.n, "rows": [asdict(row) for row in rows]}
        arguments.output.write_text(json.dumps(results | {"cliffs": [asdict(cliff) for cliff in result]}) + "\n")
    return 1 if result else 0


if __name__ == "__main__":
    sys.exit(main())
