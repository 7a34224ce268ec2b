"""The timed calls, in one list: to time another function, add an entry to `CALLS`, and a case to `cases`.

A call takes a library of `libraries`, positions on the device (a JAX array), an effort, which scales the allocations of
the library, and options. It returns a function without arguments, which is timed.
"""

# ruff: noqa: PLC0415 - the process that starts the others does not import JAX
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .samples import SEED, masses, uniform, velocities

NEIGHBOURS = 30  # average number within the radius of fixed-radius searches
_FLOAT = 4  # bytes of a number
_ROW = 3 * _FLOAT  # bytes of a position

Timed = Callable[[], Any]


@dataclass(frozen=True)
class TimedCall:
    """A call, and how to compare and judge its results.

    Attributes:
        call: Returns the function to time.
        digest: Returns a few numbers that are equal for two libraries if their results are the same.
        bytes_per_particle: Bytes on float32 if every input is read once and every output is written once.
        bytes_per_neighbour: The same, for each of ``k`` neighbours.
        published: Whether the published library has the function.
        fixed_radius: Whether the options are a radius and a box; `cases.within_case` times all calls with it.
    """

    call: Callable[..., Timed]
    digest: Callable[[Any], dict[str, Any]]
    bytes_per_particle: int
    bytes_per_neighbour: int = 0
    published: bool = False
    fixed_radius: bool = False

    def bytes_to_move(self, n: int, k: int = 0) -> int:
        """Return the bytes of a call on ``n`` particles."""
        return n * (self.bytes_per_particle + k * self.bytes_per_neighbour)


# Neighbours


def _knn(library: Any, pos: Any, effort: float, k: int, box: float) -> Timed:
    allocation = library.allocation("KNNConfig", effort)
    return lambda: library.jz.knn.knn.jit(pos, k=k, boxsize=box or None, **allocation)


def _query(library: Any, pos: Any, effort: float, k: int, box: float, queries: int | None = None) -> Timed:
    import jax.numpy as jnp

    number = len(pos) if queries is None else queries
    allocation, query = library.allocation("KNNConfig", effort), jnp.asarray(uniform(number, SEED + 3))
    return lambda: library.jz.knn.knn.jit(pos, k=k, boxsize=box or None, part_query=query, **allocation)


def _of_radii(out: Any) -> dict[str, Any]:
    rows = np.asarray(out[0][:: max(len(out[0]) // 10_000, 1)], np.float64)
    return {"finite": bool(np.isfinite(rows).all()), "sum of radii": float(rows.sum())}


# Groups


def _labels(library: Any, pos: Any, effort: float, rlink: float, box: float) -> Timed:
    allocation = library.allocation("FofConfig", effort)
    return lambda: library.jz.fof.fof_labels.jit(pos, rlink=rlink, boxsize=box, output_order="z", **allocation)


def _of_labels(out: Any) -> dict[str, Any]:
    import jax.numpy as jnp

    label = out[1]
    groups = int(jnp.sum(label == jnp.arange(label.shape[0], dtype=label.dtype)))
    return {"finite": groups > 0, "groups": groups}


def _catalogue(library: Any, pos: Any, effort: float, rlink: float, box: float) -> Timed:
    import jax.numpy as jnp

    allocation, n = library.allocation("FofConfig", effort), len(pos)
    mass, vel = jnp.asarray(masses(n)), jnp.asarray(velocities(n))
    part = library.jz.data.ParticleData(pos=pos, mass=mass, vel=vel, **library.counts(n))
    return lambda: library.jz.fof.fof_and_catalogue.jit(part, rlink=rlink, boxsize=box, **allocation)


def _of_catalogue(out: Any) -> dict[str, Any]:
    ngroups = int(np.ravel(out[1].ngroups)[0])
    count = np.asarray(out[1].count).ravel()[:ngroups]
    return {"finite": True, "groups": ngroups, "grouped": int(count.sum()), "largest": int(count.max(initial=0))}


def _spheres(library: Any, pos: Any, effort: float, rlink: float, box: float) -> Timed:
    """Time three densities around the densest particle of each group, found before."""
    jz = library.jz
    grouped, cata = jz.fof.fof_and_catalogue.jit(jz.data.Pos(pos=pos), rlink, box)
    nearness = jz.density.knn_density.jit(grouped, 32, boxsize=box)
    densest = jz.halos.densest_particle.jit(grouped, cata, nearness)
    centre = jz.data.Pos(pos=densest.part.pos, num=cata.ngroups)
    density = [times * len(pos) / box**3 for times in (500 / 0.3, 200 / 0.3, 200)]
    return lambda: jz.overdensity.spherical_overdensity.jit(pos, density, queries=centre, boxsize=box)


def _of_spheres(out: Any) -> dict[str, Any]:
    count = np.asarray(out.count)
    return {"finite": True, "spheres": int((count > 0).sum()), "largest": int(count.max(initial=0))}


def _spanning_tree(library: Any, pos: Any, effort: float, radius: float, box: float) -> Timed:
    return lambda: library.jz.spanning_tree.jit(pos, boxsize=box)


def _of_tree(out: Any) -> dict[str, Any]:
    return {"finite": bool(np.isfinite(out.length).all()), "sum": float(np.asarray(out.length, np.float64).sum())}


# Within a radius


def _pair_counts(library: Any, pos: Any, effort: float, radius: float, box: float) -> Timed:
    """Time counts in 20 bins, up to a twentieth of the box; ``radius`` is that of the other fixed-radius calls."""
    edges = np.geomspace(min(radius, 0.01 * box), 0.05 * box, 21)
    return lambda: library.jz.radius.pair_counts.jit(pos, edges, boxsize=box)


def _count_within(
    library: Any, pos: Any, effort: float, radius: float, box: float, queries: int | None = None
) -> Timed:
    import jax.numpy as jnp

    query = None if queries is None else jnp.asarray(uniform(queries, SEED + 3))
    return lambda: library.jz.radius.count_within.jit(pos, radius, boxsize=box, queries=query)


def _kernel_sums(library: Any, pos: Any, effort: float, radius: float, box: float) -> Timed:
    return lambda: library.jz.radius.kernel_sums.jit(pos, radius, boxsize=box)


def _dbscan(library: Any, pos: Any, effort: float, radius: float, box: float) -> Timed:
    return lambda: library.jz.dbscan.jit(pos, radius, min_samples=10, boxsize=box)


def _neighbours_within(library: Any, pos: Any, effort: float, radius: float, box: float) -> Timed:
    return lambda: library.jz.radius.neighbours_within.jit(pos, radius, boxsize=box)


def _of_sums(out: Any) -> dict[str, Any]:
    import jax.numpy as jnp

    return {"finite": bool(jnp.all(jnp.isfinite(out))), "sum": float(np.asarray(out, np.float64).sum())}


def _of_clusters(out: Any) -> dict[str, Any]:
    import jax.numpy as jnp

    return {"finite": True, "clusters": int(jnp.max(out[0], initial=-1)) + 1, "cores": int(jnp.sum(out[1]))}


def _of_pairs(out: Any) -> dict[str, Any]:
    return {"finite": True, "pairs": int(np.asarray(out.count).sum())}


def _of_lists(out: Any) -> dict[str, Any]:
    return {"finite": True, "pairs": int(np.asarray(out.splits[-1]).sum())}


# Calls with a fixed radius are in order of memory: pair counts need none, and lists need most.
CALLS = {
    "knn": TimedCall(_knn, _of_radii, _ROW, 2 * _FLOAT, published=True),
    "query": TimedCall(_query, _of_radii, 2 * _ROW, 2 * _FLOAT, published=True),
    # Positions in z-order are also returned.
    "labels": TimedCall(_labels, _of_labels, 2 * _ROW + _FLOAT, published=True),
    # Positions, velocities and masses are read and written.
    "catalogue": TimedCall(_catalogue, _of_catalogue, 2 * (2 * _ROW + _FLOAT), published=True),
    "spheres": TimedCall(_spheres, _of_spheres, _ROW),
    "pair_counts": TimedCall(_pair_counts, _of_pairs, _ROW, fixed_radius=True),
    "count_within": TimedCall(_count_within, _of_sums, _ROW + _FLOAT, fixed_radius=True),
    "kernel_sums": TimedCall(_kernel_sums, _of_sums, _ROW + _FLOAT, fixed_radius=True),
    # Two rows, a length in two precisions.
    "spanning_tree": TimedCall(_spanning_tree, _of_tree, _ROW + 5 * _FLOAT, fixed_radius=True),
    # A label and a mask.
    "dbscan": TimedCall(_dbscan, _of_clusters, _ROW + _FLOAT + _FLOAT // 4, fixed_radius=True),
    "neighbours_within": TimedCall(
        _neighbours_within, _of_lists, _ROW + _FLOAT + 2 * _FLOAT * NEIGHBOURS, fixed_radius=True
    ),
}
