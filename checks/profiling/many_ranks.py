"""What one of very many ranks does and holds, measured on one device: its own kernels, with the messages of the others
made up.

    python checks/profiling/many_ranks.py [--rows 100000] [--ranks 16 128 2048 16384] [--output many_ranks.json]

Particles are uniform in a periodic box. The rank under test owns a range of the z-order in the middle; what the others
publish, boxes and radii, is what they would publish for as many particles each. Every kernel that works on messages of
all ranks is timed by itself, compiled, the least of some runs; beside it stand the kernels that a single device needs
too. `agreed` is the memory of what all ranks know of each other: boxes, and sums for the splitters of the sort.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from multi_device import machine

from jztree import kernels
from jztree.jax_ext import exact
from jztree.tree import zsort_and_tree

BOXES = 256  # that a rank publishes
K = 8


@dataclass(frozen=True)
class Row:
    """Milliseconds of one rank's kernels, and megabytes of what is agreed upon."""

    ranks: int
    alone_ms: dict[str, float]
    with_others_ms: dict[str, float]
    agreed_mb: dict[str, float]


def cells(first: int, last: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """The boxes of the cells from number ``first`` up to ``last`` of the ``2**bits`` that bisection makes of the unit
    cube, in z-order.
    """
    number = np.arange(first, last, dtype=np.int64)
    lower, size = np.zeros((last - first, 3)), np.ones(3)
    for bit in range(bits):
        axis = bit % 3
        size[axis] /= 2
        lower[:, axis] += size[axis] * (number >> (bits - 1 - bit) & 1)
    return lower.astype(np.float32), (lower + size).astype(np.float32)


def least_ms(call: Callable[[], Any], runs: int) -> float:
    """The shortest of some runs."""
    jax.block_until_ready(call())
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def timed(runs: int, function: Callable[..., Any], *arrays: Any) -> tuple[float, Any]:
    """Milliseconds of a compiled function, and its result."""
    compiled = jax.jit(function)
    return least_ms(lambda: compiled(*arrays), runs), compiled(*arrays)


def measure(ranks: int, rows: int, runs: int) -> Row:
    """One rank of ``ranks``, which is a power of two."""
    bits = (ranks * BOXES).bit_length() - 1
    lower, upper = cells(0, ranks * BOXES, bits)
    rank, random = ranks // 2, np.random.default_rng(0)
    mine = random.integers(rank * BOXES, (rank + 1) * BOXES, rows)
    given = jnp.asarray(lower[mine] + (upper[mine] - lower[mine]) * random.random((rows, 3), np.float32))
    corners, box, num = (jnp.zeros(3), jnp.ones(3)), exact(1.0, (3,)), jnp.int32(rows)

    alone: dict[str, float] = {}
    others: dict[str, float] = {}
    alone["sort and hierarchy"], (pos, th) = timed(runs, lambda x: zsort_and_tree(x, boxsize=1.0), given)
    arrays = th.flat_splits, th.flat_particle_splits, th.flat_lower, th.flat_upper
    leaves = th.particle_splits(0), th.lower(0), th.upper(0)
    alone["search"], (radius, _) = timed(
        runs,
        lambda x: kernels.knn(kernels.Tree(x, num, *arrays, th.plane_sizes), None, None, None, K, box, domain=corners),
        pos,
    )
    others["own boxes"], own = timed(runs, lambda x: kernels.covering_boxes(x, num, *corners, box, leaves, BOXES), pos)
    published = jnp.asarray(lower.reshape(ranks, BOXES, 3)), jnp.asarray(upper.reshape(ranks, BOXES, 3))
    counts = jnp.full((ranks, BOXES), rows // BOXES, jnp.int32)
    others["open leaves"], (opened, wanted) = timed(
        runs,
        lambda r, a, b: kernels.open_leaves(leaves, own, r, None, (a, b, counts), rank, box, K),
        radius,
        *published,
    )
    reach = jnp.full((ranks, BOXES), jnp.max(wanted))
    others["ghosts to send"], (_, sent) = timed(
        runs,
        lambda x, a, b: kernels.select_ghosts(x, num, leaves, (a, b, reach), rank, box, 2 * rows, False),
        pos,
        *published,
    )
    splitters = jnp.zeros((ranks - 1, kernels.splitter_words(3)), jnp.uint32)
    one_byte, _ = timed(runs, lambda x: kernels.key_counts(x, num, *corners, box, splitters, jnp.int32(0)), pos)
    passes = 5  # that tell uniform particles apart: three to the rank, two within it
    others[f"splitters ({passes} bytes)"] = passes * one_byte
    if not (jnp.any(opened > 0) and jnp.sum(sent) > rows):
        raise RuntimeError("the rank has no neighbours, so nothing of this means anything.")
    boxes = ranks * BOXES * 4 * (6 + 1) / 1e6
    agreed = {"boxes of sources": boxes, "boxes that want ghosts": boxes, "splitters": 2 * ranks * 256 * 4 / 1e6}
    return Row(ranks, alone, others, agreed | {"rows sent": 6 * ranks * 4 / 1e6})


def show(row: Row) -> None:
    """Print a row of the table."""
    print(f"{row.ranks} ranks")
    for name, numbers, unit in (
        ("alone", row.alone_ms, "ms"),
        ("with others", row.with_others_ms, "ms"),
        ("agreed", row.agreed_mb, "MB"),
    ):
        parts = ", ".join(f"{what} {number:.3g}" for what, number in numbers.items())
        print(f"  {name}: {sum(numbers.values()):.3g} {unit} ({parts})", flush=True)


def main() -> None:
    """Measure, print, and save if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="particles a rank (default: %(default)s)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 128, 2048, 16384], help="powers of two")
    parser.add_argument("--runs", type=int, default=5, help="of each kernel (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="also save the rows there, as JSON")
    arguments = parser.parse_args()
    rows = []
    for ranks in arguments.ranks:
        if ranks < 2 or ranks & (ranks - 1):
            parser.error(f"--ranks must be powers of two from 2 on, not {ranks}.")
        rows.append(measure(ranks, arguments.rows, arguments.runs))
        show(rows[-1])
    if arguments.output:
        results = {"machine": machine(), "rows": arguments.rows, "measured": [asdict(row) for row in rows]}
        arguments.output.write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
