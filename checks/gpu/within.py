"""Fixed-radius calls for the comparison of GPU and CPU results, like those of `answers`."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jztree as jz

Question = tuple[str, Callable[[Any], Any]]
_SUBHALOES = 37
MANY = 10**5  # from this number of particles on, count pairs instead of listing them


def questions(n: int, dims: int, box: Any, spacing: float) -> Iterator[Question]:
    """Yield functions of particles with a mean distance ``spacing`` on a device, by name."""
    within = jz.radius
    radii = np.array([0.2, 0.5, 0.9]) * spacing
    yield "counts", lambda part: within.count_within.jit(part, radii[1], boxsize=box)
    yield "counts in several radii", lambda part: within.count_within.jit(part, radii=radii, boxsize=box)
    yield "nearest within", lambda part: within.nearest_within.jit(part, radii[2], 5, boxsize=box)
    yield "knn within", lambda part: jz.knn.knn.jit(part, 6, boxsize=box, max_radius=radii[1])
    yield "weighted counts", lambda part: within.count_within.jit(part, radii[1], boxsize=box, weights=part.mass)
    yield "pair counts", lambda part: within.pair_counts.jit(part, radii, boxsize=box).count
    yield "dbscan", lambda part: jz.dbscan.jit(part, radii[1], min_samples=4, boxsize=box)
    yield "spanning tree", lambda part: jz.spanning_tree.jit(part, boxsize=box)
    yield "reachability tree", lambda part: jz.spanning_tree.jit(part, boxsize=box, core_k=4)
    yield "density peaks", lambda part: jz.density_peaks.jit(part, part.mass, 6, boxsize=box)
    yield "descendants", lambda part: jz.descendants.jit(*_outputs(part), _SUBHALOES)
    yield "phase space", lambda part: jz.phase_space_labels.jit(part, radii[1], 0.5, boxsize=box)
    if n <= MANY:
        yield from _of_all_pairs(dims, box, radii)


def _outputs(part: Any) -> tuple[jz.links.SubhaloMembers, jz.links.SubhaloMembers]:
    """Return the members of subhaloes in two outputs, in different orders."""
    rows = np.arange(len(part.pos), dtype=np.int32)
    first = jz.links.SubhaloMembers(rows, rows % _SUBHALOES, part.mass, part.num)
    return first, jz.links.SubhaloMembers(rows[::-1], rows[::-1] % 5, None, part.num)


def _of_all_pairs(dims: int, box: Any, radii: np.ndarray) -> Iterator[Question]:
    within, lists = jz.radius, jz.radius.neighbours_within.jit
    yield "lists", lambda part: lists(part, radii[1], boxsize=box)
    yield "lists, nearest first", lambda part: lists(part, radii[1], boxsize=box, nearest_first=True)
    yield "pairs and images", lambda part: within.pairs_within.jit(part, radii[1], boxsize=box)
    rows_alone = {"boxsize": box, "quantities": "ij"}
    yield "rows of pairs", lambda part: within.pairs_within.jit(part, radii[1], **rows_alone)
    if dims > 1:
        yield "pairs by separation and depth", lambda part: _pairs(part, box, "rp_pi", radii, radii)
        yield "pairs by cosine", lambda part: _pairs(part, box, "s_mu", radii, np.linspace(0, 1, 5))
        yield "separations", lambda part: _separations(part, box, radii)
        if box == 0:
            yield "pairs seen by an observer", lambda part: _pairs(part, box, "rp_pi", radii, radii, "midpoint")
    for how in ("sum", "max"):
        yield (
            f"reductions, {how}",
            lambda part, how=how: within.reduce_within.jit(part, radii[1], _pull, boxsize=box, how=how),
        )
    for form in ("gather", "scatter", "mean_kernel", "mean_h"):
        yield f"kernel sums, {form}", lambda part, form=form: _sums(part, radii[2], box, form)


def _pairs(part: Any, box: Any, mode: str, edges: Any, edges_b: Any, los: Any = -1) -> Any:
    # Sums of weights that are a power of two are exact in any order.
    weight = np.full(part.pos.shape[0], 0.5, part.pos.dtype)
    counts = jz.radius.pair_counts.jit(part, edges, boxsize=box, mode=mode, edges_b=edges_b, los=los, weights=weight)
    return counts.count, counts.weight


def _separations(part: Any, box: Any, edges: Any) -> jax.Array:
    return jz.radius.pair_counts.jit(part, edges, boxsize=box, separations=True).separation.to_float()


def _pull(query: Any, source: Any, vector: jax.Array, distance: jax.Array) -> Any:
    """Return positive numbers, whose sums lose no digits."""
    return source.mass * distance, jax.numpy.abs(vector) * query.mass[:, None]


def _sums(part: Any, reach: float, box: Any, form: str) -> jax.Array:
    h = np.linspace(0.3 * reach, reach, part.pos.shape[0], dtype=part.pos.dtype)
    return jz.radius.kernel_sums.jit(part, h, boxsize=box, form=form)
