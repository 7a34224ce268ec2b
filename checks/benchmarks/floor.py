"""The times of the stages relative to the limits of the machine: memory bandwidth, and the vector rate of distances.

    python checks/benchmarks/floor.py [--n 1000000]

The floor of a stage is the time to read its input and write its output once, or to compute the distances that its tree
cannot exclude, whichever is longer. Bandwidth and vector rate are measured, with as many threads as the library has.
The distances are counted for a sample of particles: those to all particles of the leaves whose boxes are within the
particle's final radius. No search through this tree can omit these distances.
"""

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from inputs import linking_length, uniform
from timing import machine, seconds

import jztree as jz

K = 8


def memory_bandwidth(threads: int) -> float:
    """Return the bytes per second, read and written, of copies that exceed all caches."""
    arrays = [(np.ones(2**25, np.float32), np.ones(2**25, np.float32)) for _ in range(threads)]

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(5):
            np.copyto(*pair)

    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        list(pool.map(copy, arrays))
        took = time.perf_counter() - start
    return threads * 5 * 2 * arrays[0][0].nbytes / took


def distance_rate(threads: int) -> float:
    """Return the squared distances in 3D per second, for particles in the first cache, in code that XLA vectorises.

    The rate is measured on one thread and multiplied by the number of threads.
    """
    pos, steps = jnp.asarray(np.random.default_rng(0).random((3, 2048), dtype=np.float32)), 100_000

    @jax.jit
    def search(pos: jax.Array) -> jax.Array:
        def step(i: jax.Array, smallest: jax.Array) -> jax.Array:
            return jnp.minimum(smallest, jnp.square(pos - pos[:, i % 2048][:, None]).sum(axis=0))

        return jax.lax.fori_loop(0, steps, step, jnp.full(2048, jnp.inf, jnp.float32))

    return threads * steps * 2048 / seconds({"search": lambda: search(pos)}, 3)["search"]


def open_distances(posz: np.ndarray, th: Any, radius: np.ndarray, sample: int = 500) -> float:
    """Return the mean number of distances per particle to the leaves within its ``radius``, ``(n,)``, of a sample."""
    low, high, count = (np.asarray(values) for values in (th.lower(0), th.upper(0), th.count(0)))
    rows = np.random.default_rng(4).choice(len(posz), sample, replace=False)
    total = 0
    for row in rows:
        gap = np.maximum(np.maximum(low - posz[row], posz[row] - high), 0)
        total += int(count[(gap**2).sum(axis=1) <= radius[row] ** 2].sum())
    return total / sample


def floors(n: int) -> dict[str, dict[str, float]]:
    """Return seconds, bytes and distances of each stage of kNN and friends-of-friends in an open box."""
    pos, rlink = jnp.asarray(uniform(n)), linking_length(0.2, n)
    posz, th = jz.tree.zsort_and_tree.jit(pos)
    radius = np.asarray(jz.knn.knn.jit(posz, k=K, th=th, result="rad"))[:, -1]
    tree_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(th))
    result = seconds(
        {
            "z-sort": lambda: jz.tree.zsort.jit(pos),
            "hierarchy": lambda: jz.tree.build_tree_hierarchy.jit(posz),
            "kNN, k=8, tree given": lambda: jz.knn.knn.jit(posz, k=K, th=th),
            "labels, b=0.2, tree given": lambda: jz.fof.fof_labels.jit(posz, rlink, th=th),
        },
        5,
    )
    moved = {"z-sort": 28 * n, "hierarchy": 12 * n + tree_bytes}
    moved |= {"kNN, k=8, tree given": (12 + 8 * K) * n + tree_bytes, "labels, b=0.2, tree given": 16 * n + tree_bytes}
    host = np.asarray(posz)
    # Each pair of linked particles needs one distance.
    distances = {
        "kNN, k=8, tree given": n * open_distances(host, th, radius),
        "labels, b=0.2, tree given": n * open_distances(host, th, np.full(n, rlink)) / 2,
    }
    return {
        name: {"seconds": value, "bytes": moved[name], "distances": distances.get(name, 0.0)}
        for name, value in result.items()
    }


def main() -> None:
    """Measure and print a table for Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=1_000_000, help="number of particles (default: %(default)s)")
    n = parser.parse_args().n
    threads = min(machine()["native"]["num_threads"], len(os.sched_getaffinity(0)))
    bandwidth, rate = memory_bandwidth(threads), distance_rate(threads)
    print(f"{bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.1f}e9 distances per second, {threads} threads\n")
    print("| stage | measured | bytes | distances per particle | floor | times the floor |\n|---|---|---|---|---|---|")
    for name, call in floors(n).items():
        floor = max(call["bytes"] / bandwidth, call["distances"] / rate)
        print(
            f"| {name} | {call['seconds'] * 1e3:.0f} ms | {call['bytes'] / 1e6:.0f} MB | {call['distances'] / n:.0f} | "
            f"{floor * 1e3:.1f} ms | {call['seconds'] / floor:.1f} |"
        )


if __name__ == "__main__":
    main()
