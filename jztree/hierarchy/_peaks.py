"""Peaks of a density and the saddles that join them, on the graph of nearest neighbours."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from ..arguments import Kind, check_box, check_one_a_particle, check_particles, flat, known_integer, row_fault
from ..config import KNNConfig, without_masses
from ..particles import Array, Index, Particles, check_num
from ..tree.stage import InputParticles, Stage, opened, prepare_stage
from ._peak_table import DensityPeaks, ends_of_peaks, roots, table_of
from ._peaks_over_ranks import peaks_over_ranks

_NAN = "the density of row {0} is NaN; pass a density for every particle."


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

    Two particles are neighbours if one is among the ``k`` nearest particles of the other. Of two particles with
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

    Over several devices, the peaks are the same for any number of devices, bit for bit; see `DensityPeaks` for their
    distribution. A device holds its particles, the particles of other devices near its own, and two numbers for each
    particle of its share of the densities. Each device also holds the edges that join all peaks, 12 bytes for each
    peak, and ends the peaks in the order of the edges. For derivatives, each device gathers all densities.

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
        CapacityError: On all devices, if the particles of other devices do not fit ``cfg.ghost_rows``.

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
    levels = jax.lax.stop_gradient(density)
    fault = row_fault(jnp.isnan(levels), num, _NAN)
    box, particles = check_box(boxsize, pos.shape[1]), InputParticles(pos, num, th=index)
    if comm.num_ranks() > 1:
        return peaks_over_ranks(particles, density, k, box, cfg, fault)
    stage = prepare_stage(particles, None, box, cfg, "knn_ghosts", [fault])
    places = jnp.arange(levels.shape[0], dtype=jnp.int32)
    order = kernels.sort_words([*kernels.descending_words(levels), places], stage.sources.num)
    rank = _inverse(order)
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
    """Return the rank of the peak of the row with each rank, ``(n,)``, and the results of `kernels.peak_forest`."""
    sources, n = stage.sources, rank.shape[0]
    assert sources.rows is not None
    num_neighbours = min(k, n) - 1
    neighbours = jnp.zeros((n, 0), jnp.int32)
    if num_neighbours > 0:
        tree = sources.tree()
        neighbours = kernels.knn(tree, None, None, None, num_neighbours, stage.box, others=True, radii=False)[1]
    rank = kernels.gather_rows(rank, sources.rows)
    peak = roots(kernels.densest_neighbours(neighbours, 0, rank, sources.num))
    return _at_ranks(rank, peak), *kernels.peak_forest(neighbours, 0, rank, sources.num, peak)


@functools.partial(jax.jit, inline=True)
def _inverse(order: jax.Array) -> jax.Array:
    return jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=jnp.int32), unique_indices=True)


@functools.partial(jax.jit, inline=True)
def _at_ranks(rank: jax.Array, peak: jax.Array) -> jax.Array:
    """Return the ranks of the peaks of rows, in the order of the ranks of the rows."""
    return jnp.zeros_like(rank).at[rank].set(rank[peak], unique_indices=True)


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
        summit: See `_forest`.
        ends: See `kernels.peak_forest`.
        edges: Number of edges.
        num: Number of particles.
    """
    n = density.shape[0]
    places = jnp.arange(n, dtype=jnp.int32)
    is_peak = (summit == places) & (places < num)
    number = jnp.cumsum(is_peak, dtype=jnp.int32) - 1
    peaks = jnp.sum(is_peak, dtype=jnp.int32)
    peak_rows = kernels.group_by_rank(jnp.where(is_peak, 0, 1).astype(jnp.int32), n, 2)[0]
    joined = jnp.where(ends < 0, -1, number[summit[ends]])
    saddle, parent, across = ends_of_peaks(joined, ends[:, 0], edges, n, 0, peaks)
    row = jnp.where(places < peaks, order[peak_rows], -1)
    saddle = jnp.where(saddle >= 0, order[saddle], -1)
    peak = jnp.where(places < num, number[summit[rank]], -1)
    return table_of(peak, (row, density[row]), (saddle, density[saddle]), parent, across, peaks)
