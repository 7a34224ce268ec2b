"""Densities and smoothing lengths from the k nearest neighbours.

All functions search with `jztree.knn.nearest` and reduce the neighbours of each query during the search (``reduce``),
so they keep no neighbour list. On several devices, they send only the positions and masses of ghosts. In addition to
the search, they cost a few operations per neighbour.

* `smoothing_length` is the distance to the k-th neighbour.
* `knn_density` is the mass in the ball of that radius, divided by its volume (Casertano & Hut 1985). It is unbiased in
  a uniform distribution, and its only parameter is ``k``, but it jumps when neighbours change.
* `sph_density` weights neighbours by a smoothing kernel, like smoothed particle hydrodynamics (SPH).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from . import comm
from .arguments import (
    check_mass,
    check_particles,
    common_dtype,
    flat,
    is_subnormal,
    known_integer,
    mass_faults,
    mass_rows,
    row_fault,
)
from .config import KNNConfig
from .data import Pos, PosMass, get_num
from .derivatives import ratio
from .knn import field_of, nearest
from .particles import Array, Index, Particles, check_width, get_num_total, particles_of
from .sph import SphKernel, sph_kernel_of

__all__ = ["knn_density", "smoothing_length", "sph_density", "sph_kernel"]

_LOST = (
    "the density in row {0} is outside the range of %s; choose another unit of length or mass, or switch on "
    "jax_enable_x64 and give positions in float64."
)


@flat()
def smoothing_length(
    part: Particles | Index | Array,
    k: int,
    *,
    queries: Particles | Array | None = None,
    boxsize: ArrayLike | None = None,
    order: str = "input",
    cfg: KNNConfig | None = None,
) -> jax.Array:
    """Return the distance from every query to its ``k``-th neighbour.

    A smoothing kernel with this length is 0 from this distance on. Some SPH codes call half of this distance the
    smoothing length. The result is differentiable with respect to positions and box.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        k: Number of neighbours. A particle is its own first neighbour.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped.
            Equal on all ranks. An index has its own box.
        queries: ``q`` positions of the same dtype, or a particle class. None means the particles themselves.
        order: Order of the results: ``"input"`` for that of the queries, or ``"z"`` for their z-order.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        ``(q,)`` lengths in the unit and dtype of the positions, one per query. Rows from ``num`` of the queries on are
        0.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments, such as a ``k`` above the number of particles.

    Examples:
        >>> pos = np.array([[0.0], [1.0], [3.0]], np.float32)
        >>> jz.smoothing_length(pos, 2)
        Array([1., 1., 2.], dtype=float32)
    """

    def last(rnn: jax.Array, **_: Any) -> jax.Array:
        return jnp.where(jnp.isinf(rnn[:, -1]), 0, rnn[:, -1])

    return _reduced(last, part, k, (queries, boxsize, order, cfg))


@flat()
def knn_density(
    part: Particles | Index | Array,
    k: int,
    *,
    queries: Particles | Array | None = None,
    boxsize: ArrayLike | None = None,
    order: str = "input",
    cfg: KNNConfig | None = None,
) -> jax.Array:
    """Return the density at every query, from the mass within the distance to its ``k``-th neighbour.

    The estimate is ``(m_2 + ... + m_(k-1)) / V(r_k)``, where ``V`` is the volume of a ball in the dimensions of the
    positions. The sum excludes the particle itself and the last neighbour, which sets the radius. So the estimate of a
    uniform density is unbiased, with a relative scatter of ``1 / sqrt(k - 3)`` (Casertano & Hut 1985, ApJ 298, 80).
    With ``queries``, a query is not its own neighbour, and the sum begins with ``m_1``.

    The result is differentiable with respect to positions, masses and box.

    Args:
        part: Particles with ``pos`` ``(n, d)`` and ``mass`` ``(n,)``, or one mass for all. Without masses, or for an
            array of positions, the result is a number density.
        k: Number of neighbours, including the particle itself: at least 3, or 2 with ``queries``.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped.
            Equal on all ranks. An index has its own box.
        queries: ``q`` positions of the same dtype, or a particle class. None means the particles themselves.
        order: Order of the results: ``"input"`` for that of the queries, or ``"z"`` for their z-order.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        ``(q,)`` masses (or numbers) per volume, in the units of the particles, one per query. The dtype is that of a
        mass times a length in JAX. A density is inf if all ``k`` neighbours coincide with the query. Rows from ``num``
        of the queries on are 0.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: If ``k`` is too small or too large, if masses have the wrong shape, or for other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a mass is negative, NaN or infinite, or a density is
            outside the range of its dtype.

    Examples:
        >>> pos = np.arange(5, dtype=np.float32)[:, None]
        >>> jz.knn_density(pos, 3, boxsize=5.0)
        Array([0.5, 0.5, 0.5, 0.5, 0.5], dtype=float32)
    """
    dims = _dims(part)
    first = 1 if queries is None else 0
    _check_at_least(k, first + 2)
    unit_ball = math.pi ** (dims / 2) / math.gamma(dims / 2 + 1)

    def density(part: Any, rnn: jax.Array, inn: jax.Array, **_: Any) -> jax.Array:
        return _mean(_masses(part, inn[:, first:-1], rnn.dtype), rnn, unit_ball, dims)

    return _reduced(density, part, k, (queries, boxsize, order, cfg))


@flat()
def sph_density(
    part: Particles | Index | Array,
    k: int,
    *,
    queries: Particles | Array | None = None,
    boxsize: ArrayLike | None = None,
    kernel: str = "cubic_spline",
    bias_correction: bool = False,
    order: str = "input",
    cfg: KNNConfig | None = None,
) -> jax.Array:
    """Return the density at every query, from its neighbours weighted by a smoothing kernel.

    The estimate is ``m_1 W(r_1, h) + ... + m_k W(r_k, h)``, where ``h``, the radius of support of ``W``, is the
    distance to the ``k``-th neighbour (`smoothing_length`). The weight of this neighbour is therefore 0.

    A particle counts as its own first neighbour, with the full weight ``W(0, h)``. This is correct for particles that
    keep a distance from each other, like SPH particles. For random positions, it overestimates the density by this
    term. The result is differentiable with respect to positions, masses and box.

    Args:
        part: See `knn_density`, with positions in 1 to 3 dimensions.
        k: Number of neighbours, including the particle itself; at least 2.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped.
            Equal on all ranks. An index has its own box.
        queries: ``q`` positions of the same dtype, or a particle class. None means the particles themselves.
        kernel: ``"cubic_spline"`` (Monaghan & Lattanzio 1985, A&A 149, 135), or ``"wendland_c2"``, ``"wendland_c4"`` or
            ``"wendland_c6"`` (Wendland 1995; normalisation of Dehnen & Aly 2012, MNRAS 425, 1068), which allow more
            neighbours. In 3 dimensions, use 30 to 60 neighbours for the spline, and 60 to 400 for the others.
        bias_correction: Whether to subtract ``epsilon m_1 W(0, h)`` from the density. Dehnen & Aly (2012, eqs 18 and
            19) chose ``epsilon(k)`` so that a glass has a uniform density. It exists only for Wendland kernels in 3
            dimensions, without ``queries``.
        order: Order of the results: ``"input"`` for that of the queries, or ``"z"`` for their z-order.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        ``(q,)`` masses (or numbers) per volume, like `knn_density`; inf if all ``k`` neighbours coincide with the
        query.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: If ``k`` is too small, if the kernel is unknown or not available in these dimensions, if the
            correction does not exist, or for other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a mass is negative, NaN or infinite, or a density is
            outside the range of its dtype.

    Examples:
        >>> pos = np.arange(5, dtype=np.float32)[:, None]
        >>> jz.sph_density(pos, 3, boxsize=5.0)
        Array([1.3333334, 1.3333334, 1.3333334, 1.3333334, 1.3333334], dtype=float32)
    """
    dims = _dims(part)
    smoothing = sph_kernel_of(kernel, dims)
    _check_at_least(k, 2)
    excess = _excess(kernel, known_integer(k, "k"), dims, queries) if bias_correction else 0.0

    def density(part: Any, rnn: jax.Array, inn: jax.Array, **_: Any) -> jax.Array:
        return _smoothed(_masses(part, inn, rnn.dtype), rnn, smoothing, excess, dims)

    return _reduced(density, part, k, (queries, boxsize, order, cfg))


def density_of_neighbours(part: PosMass, distance: jax.Array, rows: jax.Array, dims: int) -> jax.Array:
    """Return the density `sph_density` of neighbours, for the cubic spline.

    Args:
        part: Particles that contain the neighbours.
        distance: ``(q, k)`` distances of the neighbours, ascending.
        rows: ``(q, k)`` int32, their rows.
        dims: Number of dimensions.
    """
    masses = _masses(part, rows, distance.dtype)
    return _smoothed(masses, distance, sph_kernel_of("cubic_spline", dims), 0.0, dims)


def sph_kernel(q: Any, kernel: str, dims: int) -> jax.Array:
    """Return ``W(r, h) h^d`` of a smoothing kernel of `sph_density` at ``q = r / h``.

    The kernel is 0 at distances ``r`` of at least ``h``. Its integral over space is 1.

    Args:
        q: Distances in units of ``h``, any shape, not negative.
        kernel: ``"cubic_spline"``, ``"wendland_c2"``, ``"wendland_c4"`` or ``"wendland_c6"``; see `sph_density`.
        dims: The number of dimensions ``d``: 1, 2 or 3.

    Returns:
        Numbers without a unit, in the shape of ``q``.

    Raises:
        ValueError: If the kernel is unknown or not available in these dimensions.

    Examples:
        >>> jz.density.sph_kernel(np.array([0.0, 0.5, 1.0], np.float32), "wendland_c2", 1)
        Array([1.25    , 0.390625, 0.      ], dtype=float32)
    """
    smoothing = sph_kernel_of(kernel, dims)
    check_width({"q": q})
    q = jnp.asarray(q)
    if not jnp.issubdtype(q.dtype, jnp.floating):
        q = q.astype(float)
    return smoothing.norm * smoothing.shape(jnp.minimum(q, 1))


# epsilon_100 and alpha of the excess of the self-contribution in 3 dimensions (Dehnen & Aly 2012, eq. 19).
_BIAS = {"wendland_c2": (0.0294, 0.977), "wendland_c4": (0.01342, 1.579), "wendland_c6": (0.0116, 2.236)}


def _excess(kernel: str, k: int, dims: int, queries: Particles | ArrayLike | None) -> float:
    """Return the excess of the self-contribution in a glass, relative to that contribution."""
    if kernel not in _BIAS or dims != 3 or queries is not None:
        raise ValueError(
            f"bias_correction exists for {', '.join(_BIAS)} in 3 dimensions without queries, but not for {kernel} "
            f"in {dims} dimension(s){'' if queries is None else ' with queries'}; set bias_correction=False."
        )
    epsilon, alpha = _BIAS[kernel]
    return epsilon * (k / 100) ** -alpha


def _dims(part: Particles | Index | ArrayLike) -> int:
    return int(check_particles(particles_of(part)).shape[1])


def _check_at_least(k: int, minimum: int) -> None:
    """Raise ValueError if ``k`` is below ``minimum``; `nearest` reports values that are not integers."""
    if isinstance(k, (int, np.integer)) and k < minimum:
        raise ValueError(f"k is {k}, but this density needs at least {minimum} neighbours; use a larger k.")


def _reduced(
    func: Any, part: Particles | Index | ArrayLike, k: int, search: tuple[Any, Any, str, KNNConfig | None]
) -> jax.Array:
    """Apply ``func`` to the neighbours of each query. Only positions and masses are sorted and sent.

    Args:
        func: See ``reduce`` of `nearest`.
        part: Particles or an index.
        k: Number of neighbours.
        search: The arguments ``queries``, ``boxsize``, ``order`` and ``cfg`` of the density.
    """
    queries, boxsize, order, cfg = search
    index, part = part, particles_of(part)
    pos = check_particles(part)
    mass = check_mass(part)
    if mass is not None and np.shape(mass) not in ((), pos.shape[:1]):
        raise ValueError(
            f"mass has shape {np.shape(mass)}; it must be one number per particle, {pos.shape[:1]}, or one for all."
        )
    sources = PosMass(pos=pos, mass=mass, num=getattr(part, "num", None), num_total=get_num_total(part))
    if queries is not None:
        query_pos = check_particles(queries, "query positions")
        queries = Pos(pos=query_pos, num=getattr(queries, "num", None))
    searched = dataclasses.replace(index, part=sources) if isinstance(index, Index) else sources
    density = nearest(searched, k, queries=queries, boxsize=boxsize, reduce=func, order=order, cfg=cfg)
    faults = mass_faults(
        mass_rows(sources, common_dtype(pos, *(() if mass is None else (mass,)))), get_num(sources), pos.shape[0]
    )
    faults.append(row_fault(jnp.isnan(density), None, _LOST % density.dtype))
    return jnp.where(comm.check_all(0, faults) == 0, density, jnp.nan)


def _masses(part: PosMass, idx: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    """Return the masses of neighbours, ``(q, m)``; 1 if particles have no mass."""
    if part.mass is None:
        return jnp.ones(idx.shape, dtype)
    mass = field_of(part, "mass", idx)
    return mass.astype(common_dtype(mass, jnp.zeros((), dtype)))


@functools.partial(jax.jit, static_argnames=("smoothing", "excess", "dims"), inline=True)
def _smoothed(mass: jax.Array, distance: jax.Array, smoothing: SphKernel, excess: float, dims: int) -> jax.Array:
    """Return the density of neighbours for a kernel that ends at the last, minus ``excess`` of the first.

    Args:
        mass: ``(q, k)``.
        distance: ``(q, k)``.
        smoothing: The smoothing kernel.
        excess: The fraction of the first term to subtract.
        dims: Number of dimensions.
    """
    h = distance[:, -1:]
    sound = (h > 0) & (h < jnp.inf)  # `_per_volume` handles the other rows, but they must not become NaN
    weight = smoothing.shape(ratio(jnp.where(sound, distance, 0), jnp.where(sound, h, 1)))
    weighed = _sum(mass * weight.astype(mass.dtype)) - excess * mass[:, 0]
    return _per_volume(smoothing.norm * weighed, h[:, 0], dims)


@functools.partial(jax.jit, static_argnames=("unit_ball", "dims"), inline=True)
def _mean(mass: jax.Array, distance: jax.Array, unit_ball: float, dims: int) -> jax.Array:
    """Return the mean density of neighbours in the ball that ends at the last.

    Args:
        mass: ``(q, m)``.
        distance: ``(q, k)``.
        unit_ball: The volume of a ball of radius 1.
        dims: Number of dimensions.
    """
    return _per_volume(_sum(mass) / unit_ball, distance[:, -1], dims)


def _sum(terms: jax.Array) -> jax.Array:
    """Sum over the last axis by halves; the rounding error grows with the logarithm of the number of terms."""
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        remainder = terms[..., 2 * half :]
        terms = jnp.concatenate([terms[..., :half] + terms[..., half : 2 * half], remainder], axis=-1)
    return terms[..., 0]


def _per_volume(mass: jax.Array, radius: jax.Array, dims: int) -> jax.Array:
    """Return ``mass / radius^dims``: inf at radius 0, 0 without a particle, NaN if out of the range of the dtype."""
    sound = (radius > 0) & (radius < jnp.inf)
    density = _over_power(mass, jnp.where(sound, radius, 1).astype(mass.dtype), dims)
    is_lost = (density == jnp.inf) | ((jnp.abs(density) < jnp.finfo(density.dtype).tiny) & (mass != 0))
    at_zero = jnp.where(is_subnormal(radius), jnp.nan, jnp.inf)  # XLA treats such a radius as 0, but it is not 0
    return jnp.where(sound, jnp.where(is_lost, jnp.nan, density), jnp.where(radius > 0, 0, at_zero))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _over_power(mass: jax.Array, radius: jax.Array, dims: int) -> jax.Array:
    """Return ``mass / radius^dims``, step by step so that float32 overflows only if the result does."""
    density, inverse = mass, 1 / radius
    for _ in range(dims):
        density = density * inverse  # not a division: XLA would merge several into one by the product
    return density


@_over_power.defjvp
def _over_power_jvp(dims: int, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    """Avoid the inverse radius, whose derivative may overflow although this derivative does not."""
    density, radius = _over_power(*primals, dims), primals[1]
    return density, _over_power(tangents[0], radius, dims) - dims * ratio(density, radius) * tangents[1]
