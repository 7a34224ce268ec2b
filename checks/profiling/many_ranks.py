"""Time and memory of one among very many ranks, measured on one device with emulated messages of the other ranks.

    python checks/profiling/many_ranks.py [--rows 100000] [--ranks 16 2048] [--output many_ranks.json] [--plot many.png]

Particles are uniform in a periodic box. The rank under test has a range in the middle of the z-order. The published
boxes and radii of the other ranks are those of the same number of particles each. Every kernel that processes messages
of other ranks is compiled and timed separately, as the minimum of several runs. The kernels that a single device also
needs are
listed for comparison. `agreed` is the memory of the data that ranks share: boxes, and sums for the splitters of the
sort. The time of the collectives is a model (see collectives.py), with the latency and bandwidth of a generic network.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from collectives import FUNCTIONS, Network, add_network, collectives_of, network_of
from multi_device import machine

from jztree import kernels, launch
from jztree.jax_ext import exact
from jztree.tree import zsort_and_tree

BOXES = 256  # boxes of a rank in the search
TOLD = 2**17  # boxes that all ranks publish to each other, at least 32 per rank
ROOM = 2**14  # capacity for boxes of nearby ranks
K = 8
Boxes = tuple[jax.Array, ...]


@dataclass(frozen=True)
class Row:
    """Milliseconds of one rank's kernels, and megabytes of its data about other ranks."""

    ranks: int
    alone_ms: dict[str, float]
    with_others_ms: dict[str, float]
    agreed_mb: dict[str, float]
    collectives_ms: dict[str, float]


def cells(first: int, last: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the boxes of the cells ``first`` to ``last`` in z-order.

    Bisection divides the unit cube into ``2**bits`` cells.
    """
    number = np.arange(first, last, dtype=np.int64)
    lower, size = np.zeros((last - first, 3)), np.ones(3)
    for bit in range(bits):
        axis = bit % 3
        size[axis] /= 2
        lower[:, axis] += size[axis] * (number >> (bits - 1 - bit) & 1)
    return lower.astype(np.float32), (lower + size).astype(np.float32)


def least_ms(call: Callable[[], Any], runs: int) -> float:
    """Return the shortest time of several runs."""
    jax.block_until_ready(call())
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def timed(runs: int, function: Callable[..., Any], *arrays: Any) -> tuple[float, Any]:
    """Return the milliseconds of a compiled function, and its result."""
    compiled = jax.jit(function)
    return least_ms(lambda: compiled(*arrays), runs), compiled(*arrays)


def splitters(runs: int, posz: jax.Array, ranks: int, keys: tuple[Any, ...]) -> tuple[float, int]:
    """Return the milliseconds of this rank's share in the search for splitters, six sums in all, and the size of a sum.

    The rank's rows are in random order, so that every cell has some.
    """
    other_ranks, parts = ranks - 1, max(4096, 16 << (ranks - 1).bit_length())
    bits, word = parts.bit_length() - 1, 63

    def one(places: jax.Array, rows_before: jax.Array, rows: jax.Array, groups: jax.Array, step: jax.Array) -> Any:
        counts = kernels.count_parts(posz, *keys, places, rows[0], groups, step, parts)
        sums = jnp.stack([counts >> 16, counts & 0xFFFF], axis=-1)
        return kernels.choose_parts(sums, counts[None], places, rows_before, rows, groups, step)

    none = jnp.zeros((other_ranks, kernels.splitter_words(3)), jnp.uint32), jnp.full((other_ranks, 2), -1, jnp.int32)
    every = jnp.tile(jnp.asarray([0, len(posz)], jnp.int32), (1, other_ranks, 1))
    first, (places, left, rows) = timed(
        runs, one, *none, every, jnp.ones(other_ranks, jnp.int32), jnp.asarray([0, word - bits, bits], jnp.int32)
    )
    groups, bits_left = jnp.arange(1, ranks, dtype=jnp.int32), bits - other_ranks.bit_length()
    later, _ = timed(
        runs, one, places, left, rows, groups, jnp.asarray([0, word - bits - bits_left, bits_left], jnp.int32)
    )
    return first + 5 * later, parts


class Rank:
    """One of ``ranks`` ranks, a power of two: its range of uniform particles, and the messages of the others."""

    def __init__(self, ranks: int, rows: int, runs: int, network: Network) -> None:
        self.ranks, self.rows, self.runs, self.rank, self.network = ranks, rows, runs, ranks // 2, network
        self.corners, self.box, self.num = (jnp.zeros(3), jnp.ones(3)), exact(1.0, (3,)), jnp.int32(rows)
        self.alone_ms: dict[str, float] = {}
        self.with_others_ms: dict[str, float] = {}
        self.told = min(BOXES, max(32, TOLD // ranks))
        random, (lower, upper) = np.random.default_rng(0), self.boxes_of([self.rank], BOXES)
        rows_of_boxes = random.integers(0, BOXES, rows)
        self.given = jnp.asarray(
            lower[rows_of_boxes] + (upper[rows_of_boxes] - lower[rows_of_boxes]) * random.random((rows, 3), np.float32)
        )

    def boxes_of(self, ranks: Sequence[int], each: int) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper corners of ``each`` boxes of each of ``ranks``, ``(b, 3)``."""
        bits = (self.ranks * each).bit_length() - 1
        result = [cells(rank * each, (rank + 1) * each, bits) for rank in ranks]
        lower, upper = (np.concatenate(corners) for corners in zip(*result, strict=True))
        return lower, upper

    def note(self, into: dict[str, float], name: str, function: Callable[..., Any], *arrays: Any) -> Any:
        """Return the result of a function, and store its milliseconds under ``name``."""
        into[name], result = timed(self.runs, function, *arrays)
        return result

    def measure(self) -> Row:
        """Measure all kernels."""
        radius = self.search_own()
        splitters = self.splitters()
        published_boxes, required = self.open_leaves(radius)
        came = self.boxes_that_come(published_boxes, required)
        self.ghosts(came)
        numbers = 4 * (3 + 3 + 1)  # bytes of a box and its radius, or its particle count
        agreed = {
            "boxes of all": self.ranks * self.told * numbers / 1e6,
            "boxes that want ghosts": len(came[1]) * numbers / 1e6,
            "splitters": splitters,
            "rows sent": 2 * 6 * self.ranks * 4 / 1e6,
        }
        return Row(self.ranks, self.alone_ms, self.with_others_ms, agreed, self.collectives())

    def collectives(self) -> dict[str, float]:
        """Return the model time of the collectives of a kNN call in milliseconds, summed by kind."""
        result = collectives_of(FUNCTIONS[f"kNN, k = {K}"], self.ranks, self.rows)
        kinds = {collective.name: 0.0 for collective in result}
        for one in result:
            kinds[one.name] += 1e3 * one.seconds(self.network)
        return kinds

    def search_own(self) -> jax.Array:
        """Return distances to neighbours among own particles. A single device also runs this search."""
        sort = lambda x: zsort_and_tree(x, boxsize=1.0)  # noqa: E731
        self.pos, th = self.note(self.alone_ms, "sort and hierarchy", sort, self.given)
        arrays = th.flat_splits, th.flat_particle_splits, th.flat_lower, th.flat_upper
        self.leaves = th.particle_splits(0), th.lower(0), th.upper(0)
        return self.note(
            self.alone_ms,
            "search",
            lambda x: kernels.knn(
                kernels.Tree(x, self.num, *arrays, th.plane_sizes), None, None, None, K, self.box, domain=self.corners
            ),
            self.pos,
        )[0]

    def splitters(self) -> float:
        """Find the start of each rank's range. Return the megabytes of a sum over the ranks."""
        random = np.random.default_rng(1).random((self.rows, 3), np.float32)
        spread, _ = zsort_and_tree(jnp.asarray(random), boxsize=1.0)
        keys = *self.corners, self.box
        self.with_others_ms["splitters"], parts = splitters(self.runs, spread, self.ranks, keys)
        return 4 * parts / 1e6

    def covered(self, largest: int) -> Boxes:
        """Return at most ``most`` boxes around own particles."""
        cover = lambda x: kernels.covering_boxes(x, self.num, *self.corners, self.box, self.leaves, largest)  # noqa: E731
        return self.note(self.with_others_ms, f"own boxes, {largest}", cover, self.pos)

    def published(self, ranks: Sequence[int], each: int) -> Boxes:
        """Return ``each`` boxes of each of ``ranks``, and the number of particles in them."""
        shape = len(ranks), each
        corners = [jnp.asarray(side.reshape(*shape, 3)) for side in self.boxes_of(ranks, each)]
        return *corners, jnp.full(shape, self.rows // each, jnp.int32)

    def open_leaves(self, radius: jax.Array) -> tuple[Boxes, Boxes]:
        """Return the published boxes of the ranks, and the rank's boxes with the radius that each requests."""
        boxes = self.covered(BOXES)
        if self.told < BOXES:
            self.covered(self.told)
        published_boxes = self.published(range(self.ranks), self.told)
        close = self.published([self.rank - 1, self.rank, self.rank + 1], BOXES) if self.told < BOXES else ()
        opened, required = self.note(
            self.with_others_ms,
            "open leaves",
            lambda r, *of: kernels.open_leaves(self.leaves, boxes, r, None, of[:3], of[3:], self.rank, self.box, K),
            radius,
            *published_boxes,
            *close,
        )
        if not jnp.any(opened > 0):
            raise RuntimeError("the rank has no neighbours, so the results would be meaningless; use more rows.")
        return published_boxes, (boxes[1], boxes[2], required)

    def boxes_that_come(self, published_boxes: Boxes, required: Boxes) -> Boxes:
        """Return the offsets of each rank, and the boxes from nearby ranks, all with the largest radius."""

        def select(*arrays: jax.Array) -> Any:
            return kernels.select_boxes(arrays[:3], arrays[3:], self.rank, self.box, ROOM, higher_only=False)

        _, counts = self.note(self.with_others_ms, "boxes to send", select, *required, *published_boxes)
        # Ranks are alike, so every rank that must know some of this rank's boxes requests some of its particles.
        candidates, radius = np.flatnonzero(np.asarray(counts)), float(jnp.max(required[2]))
        lower, upper = self.boxes_of(candidates, BOXES)
        own_boxes = [np.asarray(side)[self.rank] for side in published_boxes[:2]]
        low, high = own_boxes[0].min(axis=0), own_boxes[1].max(axis=0)
        straight = np.maximum(np.maximum(low - upper, lower - high), 0)
        around = np.maximum(1 - (np.maximum(upper, high) - np.minimum(lower, low)), 0)
        comes = (np.minimum(straight, around) ** 2).sum(axis=1) <= radius**2
        splits = np.searchsorted(np.repeat(candidates, BOXES)[comes], np.arange(self.ranks + 1))
        room = ((0, ROOM - comes.sum()), (0, 0))
        boxes = [jnp.asarray(np.pad(side[comes], room)) for side in (lower, upper)]
        return jnp.asarray(splits, jnp.int32), *boxes, jnp.full(ROOM, radius)

    def ghosts(self, came: Boxes) -> None:
        """Select the particles that other ranks request."""
        select = lambda x, *boxes: kernels.select_ghosts(  # noqa: E731
            x, self.num, self.leaves, boxes, self.rank, self.box, 2 * self.rows
        )
        _, sent = self.note(self.with_others_ms, "ghosts to send", select, self.pos, *came)
        if not jnp.sum(sent) > self.rows:
            raise RuntimeError(
                "no rank requests particles of the rank, so the results would be meaningless; use more rows."
            )


def show(row: Row) -> None:
    """Print a row of the table."""
    print(f"{row.ranks} ranks")
    for name, numbers, unit in (
        ("alone", row.alone_ms, "ms"),
        ("with others", row.with_others_ms, "ms"),
        ("collectives by the model", row.collectives_ms, "ms"),
        ("agreed", row.agreed_mb, "MB"),
    ):
        parts = ", ".join(f"{label} {number:.3g}" for label, number in numbers.items())
        print(f"  {name}: {sum(numbers.values()):.3g} {unit} ({parts})", flush=True)


def draw(rows: list[Row], path: Path) -> None:
    """Plot the time of kNN against the number of ranks, for a fixed number of particles per rank."""
    try:
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError:
        launch.abort("--plot needs matplotlib; install it with 'pip install matplotlib', or leave --plot out.")
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    ranks, below = [row.ranks for row in rows], np.zeros(len(rows))
    parts = {
        "one device": [sum(row.alone_ms.values()) for row in rows],
        "boxes and splitters of others": [sum(row.with_others_ms.values()) for row in rows],
        "collectives (model)": [sum(row.collectives_ms.values()) for row in rows],
    }
    for name, times in parts.items():
        axes.fill_between(ranks, below, below + times, label=name, alpha=0.7)
        below = below + times
    axes.set(xscale="log", xlabel="ranks", ylabel="ms", xlim=(ranks[0], ranks[-1]), ylim=(0, None))
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, print, and save if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="particles per rank (default: %(default)s)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 128, 2048, 16384], help="powers of two")
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each kernel (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="save the rows to this JSON file")
    parser.add_argument("--plot", type=Path, help="draw the rows to this file")
    add_network(parser)
    arguments = parser.parse_args()
    network = network_of(arguments)
    rows = []
    for ranks in arguments.ranks:
        if ranks < 2 or ranks & (ranks - 1):
            parser.error(f"--ranks has {ranks}; each must be a power of two of at least 2.")
        rows.append(Rank(ranks, arguments.rows, arguments.runs, network).measure())
        show(rows[-1])
    if arguments.output:
        measured = [asdict(row) for row in rows]
        results = {"machine": machine(), "rows": arguments.rows, "network": network._asdict(), "measured": measured}
        arguments.output.write_text(json.dumps(results) + "\n")
    if arguments.plot:
        draw(rows, arguments.plot)


if __name__ == "__main__":
    main()
