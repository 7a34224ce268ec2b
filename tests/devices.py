"""Sets of particles distributed over devices in all critical ways, for tests of distributed functions."""

from collections.abc import Callable

import jax
import numpy as np
import pytest

from jztree.data import ParticleData

# Every count needs a compilation, so only some are in the suite that runs on each change.
DEVICE_COUNTS = [pytest.param(ndev, marks=() if ndev == 3 else pytest.mark.slow) for ndev in (1, 2, 3, 4, 7, 8)]
ROWS = 1200  # of every device in every set, so that a function compiles once for all sets


def first_devices(ndev: int) -> list[jax.Device]:
    """Return devices to map over. Skip the test if there are fewer, as on a machine with one GPU."""
    if len(jax.devices()) < ndev:
        pytest.skip(f"needs {ndev} devices")
    return jax.devices()[:ndev]


def mesh_of(ndev: int) -> jax.sharding.Mesh:
    """Return a mesh of the first devices."""
    return jax.sharding.Mesh(np.array(first_devices(ndev)), ("gpus",))


def square_mesh() -> jax.sharding.Mesh:
    """Return a mesh with two axes, of the type that JAX makes by default."""
    return jax.make_mesh((2, 2), ("nodes", "gpus"), devices=first_devices(4))


def deal(pos: np.ndarray, counts: np.ndarray, rows: int = ROWS) -> ParticleData:
    """Return particles in consecutive blocks of ``counts``, with row numbers as ids. Padding is far away."""
    ndev, dims = len(counts), pos.shape[1]
    stacked = np.full((ndev, rows, dims), 1e6, pos.dtype)
    ids = np.full((ndev, rows), -7, np.int32)
    ends = np.cumsum(counts)
    for rank, (end, count) in enumerate(zip(ends, counts, strict=True)):
        stacked[rank, :count] = pos[end - count : end]
        ids[rank, :count] = np.arange(end - count, end)
    return ParticleData(pos=stacked, id=ids, num=np.asarray(counts, np.int32))


def even(n: int, ndev: int) -> np.ndarray:
    """Return equal counts, up to a difference of one."""
    return np.diff(np.arange(ndev + 1) * n // ndev)


def uneven(n: int, ndev: int) -> np.ndarray:
    """Return random counts; if there are more than two ranks, every other one is empty."""
    rng = np.random.default_rng(ndev)
    cuts = np.sort(rng.integers(0, n + 1, max(ndev // 2 - 1, 0)))
    counts = np.zeros(ndev, int)
    counts[:: 2 if ndev > 2 else 1][: len(cuts) + 1] = np.diff(np.r_[0, cuts, n])
    return counts


def all_on_last(n: int, ndev: int) -> np.ndarray:
    counts = np.zeros(ndev, int)
    counts[-1] = n
    return counts


def joined(stacked: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the joined rows of the ranks, without padding."""
    return np.concatenate([np.asarray(stacked)[rank, :count] for rank, count in enumerate(counts)])


def _clustered(rng: np.random.Generator) -> np.ndarray:
    clumps = [rng.normal(centre, 0.01, (200, 3)) for centre in rng.random((4, 3))]
    return np.concatenate([*clumps, rng.random((200, 3))]) % 1


def _serpentine(rng: np.random.Generator) -> np.ndarray:
    """Return a chain that passes through every part of the unit square, back and forth, with points 1/200 apart."""
    lines = [np.c_[np.arange(0, 1, 1 / 200), np.full(200, y)] for y in (0.1, 0.5, 0.9)]
    lines[1] = lines[1][::-1]
    links = [np.c_[np.full(79, x), np.linspace(y, y + 0.4, 81)[1:-1]] for x, y in ((0.995, 0.1), (0.0, 0.5))]
    path = np.concatenate([lines[0], links[0], lines[1], links[1], lines[2]])
    return np.c_[path, np.full(len(path), 0.5)]


def _crowded(rng: np.random.Generator) -> np.ndarray:
    """Return points around the origin, some equal. An outlier puts all points into one cell of the keys."""
    return np.r_[rng.random((500, 3)) - 0.5, rng.integers(-2, 3, (400, 3)) / 8, [[1e30, 0, 0]]]


def _corners(rng: np.random.Generator) -> np.ndarray:
    """Return corners of a cube, one at 0, where the spacing of floats is smaller than a cell of the keys."""
    return rng.choice([0, 0, 0.5], (900, 3))


# name: (positions, their distribution over devices, linking length)
SETS: dict[str, tuple[Callable[[np.random.Generator], np.ndarray], Callable[[int, int], np.ndarray], float]] = {
    "uniform": (lambda rng: rng.random((1200, 3)), even, 0.06),
    "uniform, ranks without particles": (lambda rng: rng.random((1000, 3)), uneven, 0.06),
    "percolating": (lambda rng: rng.random((1200, 3)), even, 0.14),
    "clustered": (_clustered, uneven, 0.012),
    "all on the last rank": (lambda rng: rng.random((700, 3)), all_on_last, 0.08),
    "all particles equal": (lambda rng: np.full((900, 3), 0.3), all_on_last, 0.1),
    "two places": (lambda rng: rng.choice([0.25, 0.75], (1000, 1)) * np.ones((1, 3)), even, 0.1),
    "lattice with ties": (lambda rng: rng.integers(0, 8, (1000, 3)) / 8, even, 0.13),
    "fewer particles than ranks": (lambda rng: rng.random((3, 3)), even, 0.5),
    "no more than k": (lambda rng: rng.random((5, 3)), even, 0.3),
    "chain through every rank and back": (_serpentine, even, 1.01 / 200),
    "far outlier": (lambda rng: np.r_[rng.random((600, 3)), [[1e7, 0, 0]]], even, 0.06),
    "one key but for an outlier": (_crowded, even, 0.06),
    "crowds of one key": (lambda rng: _crowded(rng)[rng.integers(0, 600, 900)] * 1e-14 + _corners(rng), uneven, 0.06),
}


def make(name: str, ndev: int) -> tuple[np.ndarray, np.ndarray, ParticleData]:
    """Return the float32 positions of a set, the counts of each rank, and the distributed particles."""
    points, counts_of, _ = SETS[name]
    pos = points(np.random.default_rng(5)).astype(np.float32)
    if "outlier" not in name:
        pos %= np.float32(1)
    counts = counts_of(len(pos), ndev)
    return pos, counts, deal(pos, counts)
