"""Peaks of a density and the saddles that join them, on the graph of nearest neighbours."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from ..arguments import (
    Kind,
    check_box,
    check_one_a_particle,
    check_particles,
    check_real,
    check_real_dtype,
    flat,
    known_integer,
    row_fault,
    shape_of,
)
from ..config import KNNConfig, without_masses
from ..jax_ext import is_concrete
from ..particles import Array, Index, Particles, check_num
from ..tree.stage import InputParticles, Stage, opened, prepare_stage

_BAD_PERSISTENCE = "persistence must be at least 0."
_BAD_RATIO = "ratio must be at least 1."
_NEGATIVE = (
    "ratio needs densities that are not negative, but a saddle has a negative density; pass persistence, for example "
    "for logarithms of densities."
)
_NAN = "the density of row {0} is NaN; pass a density for every particle."


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
class DensityPeaks:
    """The peaks of a density, densest first, and the saddle where each ends.

    The table of peaks has a row for each of the ``n`` rows of particles. Only the first ``num`` are peaks. From there
    on, rows and numbers are -1, densities are -infinity, and persistences are 0.

    Attributes:
        peak: ``(n,)`` int32, the number of each particle's peak; -1 for rows of padding.
        row: ``(n,)`` int32, the row of the particle at each peak.
        density: ``(n,)``, the density of this particle.
        saddle: ``(n,)`` int32, the row of the particle at the saddle where the peak ends. -1 if it does not end.
        saddle_density: ``(n,)``, the density of this particle; -infinity if the peak does not end.
        parent: ``(n,)`` int32, the number of the denser peak that continues at the saddle. -1 if it does not end.
        across: ``(n,)`` int32, the number of a peak in the set that the peak's set meets at the saddle: the peak of
            the neighbour across the saddle. -1 if the peak does not end.
        persistence: ``(n,)``, the density of the peak minus that of the saddle, and 0 if both are equal; infinite if
            the peak does not end. On CPUs, XLA rounds a difference below the smallest normal number to 0.
        num: int32, the number of peaks.
    """

    peak: jax.Array
    row: jax.Array
    density: jax.Array
    saddle: jax.Array
    saddle_density: jax.Array
    parent: jax.Array
    across: jax.Array
    persistence: jax.Array
    num: jax.Array

    def merge(self, persistence: ArrayLike | None = None, *, ratio: ArrayLike | None = None) -> jax.Array:
        """Return the clusters that remain if peaks below a threshold merge with their neighbours (ToMATo).

        The result is that of Algorithm 1 of Chazal et al. (2013, J. ACM 60, 41). Particles are added one by one,
        densest first. Each joins the cluster of its densest neighbour. Then, for one denser neighbour after the other,
        the clusters of the particle and of the neighbour merge if the density of the sparser of their peaks minus the
        density of the particle is below the threshold. The denser peak continues.

        So a weak peak merges with its neighbour across the saddle. ``parent`` may be another peak: the densest one that
        is connected above the saddle, even if the peaks in between are strong. The paper leaves the order of the denser
        neighbours open; here, the densest one is the first. It decides if a weak peak meets several strong ones at its
        saddle. The paper drops clusters whose peak has a density below the threshold; this function keeps them.

        The cost is a few passes over the rows for any threshold. Under `jax.jit`, a new threshold does not compile
        again.

        Args:
            persistence: The threshold of density differences, at least 0: ``persistence`` of a weak peak is below it.
                With 0, no peaks merge. With infinity, all peaks merge that end at a finite depth.
            ratio: In place of ``persistence``, the threshold of ``density / saddle_density``, at least 1, for densities
                that are not negative. The ratio of two zeros, or of two infinities, is 1.

        Returns:
            ``(n,)`` int32, the number of the densest peak of each particle's cluster; -1 for rows of padding.

        Raises:
            TypeError: If neither or both thresholds are given, or if the threshold is not a real number.
            ValueError: If the threshold is not one number, is too small or NaN, or, with ``ratio``, if a saddle has a
                negative density; at run time if the numbers are traced. If the peaks are the result of `jax.vmap`.

        Examples:
            >>> pos = np.array([[0.0], [1.0], [1.9], [2.7], [3.4]])  # with k=2, a chain
            >>> peaks = jz.density_peaks(pos, np.array([10.0, 6.0, 8.0, 4.0, 5.0]), 2)
            >>> peaks.merge(1.5)  # the third peak is weak, and the second one is across its saddle
            Array([0, 0, 1, 1, 1], dtype=int32)
            >>> peaks.merge(ratio=1.4)
            Array([0, 0, 0, 0, 0], dtype=int32)
        """
        if (persistence is None) == (ratio is None):
            raise TypeError("merge needs one threshold: pass persistence or ratio, such as peaks.merge(ratio=3.0).")
        if jnp.ndim(self.peak) != 1:
            raise ValueError(
                f"merge needs the peaks of one set, but these have the shape {jnp.shape(self.peak)}; use jax.vmap."
            )
        if ratio is None:
            threshold, fault = _check_threshold(persistence, "persistence", 0, self.persistence.dtype)
            return _merged(self, self.persistence, threshold, kernels.check(self.num, fault, [], _BAD_PERSISTENCE))
        threshold, fault = _check_threshold(ratio, "ratio", 1, self.persistence.dtype)
        ratios, negative = _ratios(self)
        num = kernels.check(kernels.check(self.num, fault, [], _BAD_RATIO), negative, [], _NEGATIVE)
        return _merged(self, ratios, threshold, num)


def _check_threshold(value: Any, name: str, minimum: int, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return a threshold, and whether it is invalid.

    The values of an array in ``dtype`` that are below a known result are those below the given number.
    """
    shape = shape_of(value, name)
    if shape != ():
        raise ValueError(f"{name} must be one number; its shape is {shape}.")
    if not is_concrete(value):
        check_real_dtype(value, name)
        return value, ~(value >= minimum)
    number = check_real(value, name)
    if not number >= minimum:
        raise ValueError(f"{name} is {number:g}; it must be at least {minimum}.")
    with np.errstate(over="ignore"):
        threshold = number.astype(dtype)
    threshold = np.where(threshold < number, np.nextafter(threshold, np.asarray(np.inf, dtype)), threshold)
    # XLA treats smaller numbers as 0.
    return np.where(number > 0, np.maximum(threshold, np.finfo(dtype).tiny), threshold), False


@jax.jit
def _ratios(peaks: DensityPeaks) -> tuple[jax.Array, jax.Array]:
    """Return the density of each peak over that of its saddle, and whether that of any saddle is negative."""
    top, level = jax.lax.stop_gradient((peaks.density, peaks.saddle_density))
    ends = peaks.saddle >= 0
    is_one = ((top == 0) & (level == 0)) | (top == level)
    ratios = jnp.where(is_one, 1, top) / jnp.where(is_one | ~ends, 1, level)
    return ratios, jnp.any(ends & (level < 0))


@jax.jit
def _merged(peaks: DensityPeaks, strength: jax.Array, threshold: jax.Array, num: jax.Array) -> jax.Array:
    """Return the number of the strong peak at the end of the path of ``across`` from each particle's peak.

    When a weak peak ends, all other peaks of its set are weaker and have merged with it. It then merges with the set at
    the other end of the edge, which contains the peak `across`. That peak may be sparser, but then it has ended before,
    and its path leads to the peak of this set. So paths have no circles, and each ends in the peak of the cluster.
    """
    number = jnp.arange(peaks.peak.shape[0], dtype=jnp.int32)
    weak = (number < num) & (peaks.across >= 0) & (jax.lax.stop_gradient(strength) < threshold)
    top = jax.lax.while_loop(
        lambda top: jnp.any(top[top] != top), lambda top: top[top], jnp.where(weak, peaks.across, number)
    )
    return jnp.where(peaks.peak >= 0, top[peaks.peak], -1)


@flat(density=Kind(P(-1)), k=Kind(None, lambda k, _: _check_k(k)))
def density_peaks(
    part: Particles | Index | Array,
    density: Array,
    k: int,
    *,
    boxsize: ArrayLike | None = None,
    cfg: KNNConfig | None = None,
) -> DensityPeaks:
    """Find the peaks of a density, the particles that belong to each, and the saddles between them.

    Two particles are neighbours if one of them is among the ``k`` nearest particles of the other. Of two particles with
    equal densities, the one in the smaller row counts as denser, so no two are equally dense.

    A particle without a denser neighbour is a peak. Every other particle belongs to the peak of its densest neighbour.

    Imagine a level that falls from the highest density. The particles above it form connected sets of neighbours. A
    particle that the level reaches, and whose denser neighbours belong to several sets, is a saddle and joins them. The
    densest peak of the joined sets continues. The other peaks end at this saddle, and their parent is the peak that
    continues. The densest peak of each connected part of the graph never ends. `DensityPeaks.merge` returns the
    clusters that remain if peaks of low persistence merge.

    This is the first step of SUBFIND (Springel et al. 2001, MNRAS 328, 726), which looks only at the two nearest of the
    denser neighbours, and of clustering by density peaks. The algorithm is that of Chazal et al. (2013, J. ACM 60, 41).
    The search for neighbours takes most of the time.

    The function runs on one device. ``smap`` over several devices raises an error.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        density: ``(n,)``, float32 or float64, for example from `jztree.density`, or its logarithm.
            Infinite numbers are valid.
        k: The number of nearest particles that are neighbours of a particle, at least 1. The particle itself is the
            first. If there are fewer particles, all are neighbours. Particles at equal distances count in z-order, like
            neighbours of `jztree.knn.knn`.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped. An
            index has its own box.
        cfg: Options. None means the defaults.

    Returns:
        The peaks. Their densities and persistences are differentiable with respect to ``density`` at fixed peaks and
        saddles.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a position is NaN or infinite, or a density is NaN.
        NotImplementedError: On several devices.

    Examples:
        >>> pos = np.array([[0.0], [1.0], [1.9], [2.7], [3.4]])  # with k=2, a chain
        >>> peaks = jz.density_peaks(pos, np.array([10.0, 6.0, 8.0, 4.0, 5.0]), 2)
        >>> peaks.peak, peaks.persistence[:peaks.num]
        (Array([0, 0, 1, 1, 2], dtype=int32), Array([inf,  2.,  1.], dtype=float32))
    """
    cfg = without_masses(checked_config(cfg, KNNConfig))
    part, boxsize, index = opened(part, boxsize)
    pos = check_particles(part)
    num, k = check_num(part), _check_k(k)
    density = _check_density(density, pos)
    if comm.num_ranks() > 1:
        raise NotImplementedError(
            f"jztree.hierarchy.density_peaks supports one device, but it was mapped over {comm.num_ranks()}; call it "
            "outside of smap with the particles on one device."
        )
    levels = jax.lax.stop_gradient(density)
    fault = row_fault(jnp.isnan(levels), num, _NAN)
    box = check_box(boxsize, pos.shape[1])
    stage = prepare_stage(InputParticles(pos, num, th=index), None, box, cfg, "knn_ghosts", [fault])
    places = jnp.arange(levels.shape[0], dtype=jnp.int32)
    order = kernels.sort_words([*kernels.descending_words(levels), places], stage.sources.num)
    rank = jnp.zeros_like(order).at[order].set(places, unique_indices=True)
    return _table(density, order, rank, *_forest(stage, rank, k), stage.sources.num)


def _check_k(k: Any) -> int:
    k = known_integer(k, "k")
    if not 1 <= k < 2**31:
        raise ValueError(f"k is {k}; it must be from 1 to 2**31 - 1, because a particle is its own first neighbour.")
    return k


def _check_density(density: ArrayLike, pos: jax.Array) -> jax.Array:
    check_one_a_particle(density, pos, "density")
    density = jnp.asarray(density)
    if density.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(f"density must be float32 or float64, not {density.dtype}; convert it with .astype('float32').")
    return density


def _forest(stage: Stage, rank: jax.Array, k: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the results of `kernels.peak_forest` for the graph of nearest neighbours."""
    sources, n = stage.sources, rank.shape[0]
    assert sources.rows is not None
    num_neighbours = min(k, n) - 1
    neighbours = jnp.zeros((n, 0), jnp.int32)
    if num_neighbours > 0:
        tree = sources.tree()
        neighbours = kernels.knn(tree, None, None, None, num_neighbours, stage.box, others=True, radii=False)[1]
    return kernels.peak_forest(neighbours, kernels.gather_rows(rank, sources.rows), sources.num)


@functools.partial(jax.jit, inline=True)
def _table(
    density: jax.Array,
    order: jax.Array,
    rank: jax.Array,
    summit: jax.Array,
    ends: jax.Array,
    edges: jax.Array,
    num: jax.Array,
) -> DensityPeaks:
    """Return the peaks.

    Args:
        density: ``(n,)``.
        order: ``(n,)`` int32, the row of each rank.
        rank: ``(n,)`` int32, the rank of each row.
        summit: See `kernels.peak_forest`.
        ends: See `kernels.peak_forest`.
        edges: Number of edges.
        num: Number of particles.
    """
    n = density.shape[0]
    places = jnp.arange(n, dtype=jnp.int32)
    is_peak = summit == places
    number = jnp.cumsum(is_peak, dtype=jnp.int32) - 1
    peaks = jnp.sum(is_peak, dtype=jnp.int32)
    peak_rows = kernels.group_by_rank(jnp.where(is_peak, 0, 1).astype(jnp.int32), n, 2)[0]
    joined = jnp.where(ends < 0, -1, number[summit[ends]])
    ended, saddle, parent, across = _ends_of_peaks(joined, ends[:, 0], edges, n)

    def of_peaks(values: jax.Array) -> jax.Array:
        return jnp.full(n, -1, jnp.int32).at[ended].set(values, mode="drop")

    saddle = of_peaks(saddle)
    row = jnp.where(places < peaks, order[peak_rows], -1)
    saddle = jnp.where(saddle >= 0, order[saddle], -1)
    top, pass_level = (jnp.where(rows >= 0, density[rows], -jnp.inf) for rows in (row, saddle))
    return DensityPeaks(
        peak=jnp.where(places < num, number[summit[rank]], -1),
        row=row,
        density=top,
        saddle=saddle,
        saddle_density=pass_level,
        parent=of_peaks(parent),
        across=of_peaks(across),
        persistence=jnp.where(places < peaks, jnp.where(saddle >= 0, _above(top, pass_level), jnp.inf), 0),
        num=peaks,
    )


def _above(top: jax.Array, level: jax.Array) -> jax.Array:
    """Return ``top - level``, and 0 if both are the same infinity."""
    is_equal = jnp.isinf(top) & (top == level)
    return jnp.where(is_equal, 0, top) - jnp.where(is_equal, 0, level)


def _ends_of_peaks(
    joined: jax.Array, saddle: jax.Array, edges: jax.Array, n: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the peak that ends at each edge, the rank of its saddle, its parent, and the peak across the saddle.

    Args:
        joined: ``(m, 2)`` int32, the peaks that each edge joins, from the highest level down.
        saddle: ``(m,)`` int32, the rank of the saddle of each edge.
        edges: Number of edges.
        n: Number of rows of the table of peaks.

    Returns:
        Four arrays ``(m,)`` int32. From the last edge on, the peak is ``n``.
    """
    children, _ = kernels.dendrogram(joined, edges, n)
    densest = kernels.first_rows(children, edges, n)
    place = jnp.arange(densest.shape[0], dtype=jnp.int32)
    both = jnp.where(children < n, children, densest[jnp.maximum(children - n, 0)])
    ended = jnp.where(place < edges, jnp.max(both, axis=1), n)
    # All edges of a saddle join the set of its peak, so the last edge forms the set that continues.
    is_last = jnp.append(saddle[1:] != saddle[:-1], jnp.ones(min(len(place), 1), bool))
    last = jax.lax.cummin(jnp.where(is_last, place, densest.shape[0]), reverse=True)
    across = jnp.where(both[:, 0] > both[:, 1], joined[:, 1], joined[:, 0])
    return ended, saddle, densest[last], across
