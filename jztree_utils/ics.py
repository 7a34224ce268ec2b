"""Particle distributions for tests and timings: uniform, Gaussian, clustered, Hernquist, and real N-body samples.

Each function takes a seed and returns the same particles for the same seed. Lengths are in units of the box or of the
scale radius.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import DTypeLike

from jztree.comm import get_rank_info
from jztree.data import ParticleData, PosMass, pad_particles
from jztree.jax_ext import with_smap

from ._constants import KM_PER_S, PARSEC, SOLAR_MASS
from .io import read_snapshot

__all__ = [
    "SAMPLE_2D",
    "SAMPLE_2D_BOXSIZE",
    "SAMPLE_3D",
    "SAMPLE_3D_UNITS",
    "SAMPLE_DATA",
    "clustered_particles",
    "cosmo_2d_sample",
    "cosmo_3d_sample",
    "gaussian_particles",
    "hernquist_particles",
    "hernquist_posmass",
    "soneira_peebles_particles",
    "uniform_particles",
]

SAMPLE_DATA = Path(__file__).parent / "sample_data"
SAMPLE_2D = SAMPLE_DATA / "pos2d_cosmo_128_100.npy"
SAMPLE_2D_BOXSIZE = 100.0
SAMPLE_3D = SAMPLE_DATA / "snapshot_048.hdf5"
# These are missing from the header of the file: Mpc/h, 1e10 Msun/h, km/s, and that the run is cosmological.
SAMPLE_3D_UNITS: dict[str, Any] = {
    "unit_length_in_cm": 1e6 * PARSEC,
    "unit_mass_in_g": 1e10 * SOLAR_MASS,
    "unit_velocity_in_cm_per_s": KM_PER_S,
    "comoving": True,
}

_BLOCK = 2**20  # number of particles sampled at a time, so that temporary arrays stay small compared to the output


@with_smap(in_specs=(None,) * 5, out_specs=P(-1), static_argnums=(0, 3, 4))
def uniform_particles(N: int, total_mass: float = 1.0, seed: int = 0, npad: int = 0, dim: int = 3) -> PosMass:
    """Sample ``N`` independent uniform points in the unit box.

    You can call this under `jax.jit` with ``N``, ``npad`` and ``dim`` static. Each of several devices samples its own
    ``N`` points, with ``seed`` plus its rank as the seed.

    Args:
        N: Number of points on this device.
        total_mass: Mass of the particles on all devices together, shared equally.
        seed: Seed of the random numbers.
        npad: Rows of padding to append.
        dim: Number of dimensions.

    Returns:
        ``pos`` ``(N + npad, dim)`` float32 in [0, 1), a scalar ``mass``, ``num`` ``N``, and ``num_total``, ``N`` times
        the number of devices.

    Raises:
        ValueError: If ``N`` or ``npad`` is negative.
    """
    _check_number(N)
    rank, ndev, _ = get_rank_info()
    pos = jax.random.uniform(jax.random.PRNGKey(seed + rank), (N, dim), dtype=jnp.float32)
    mass = total_mass / max(N * ndev, 1)
    return pad_particles(PosMass(pos=pos, mass=mass, num=N, num_total=N * ndev), npad)


@with_smap(in_specs=(None,) * 6, out_specs=P(-1), static_argnums=(0, 4, 5))
def gaussian_particles(
    N: int, scale: float = 1.0, total_mass: float = 1.0, seed: int = 0, npad: int = 0, dim: int = 3
) -> PosMass:
    """Sample ``N`` independent points of an isotropic normal distribution around the origin, without a box.

    You can call this under `jax.jit` with ``N``, ``npad`` and ``dim`` static. For several devices see
    `uniform_particles`.

    Args:
        N: Number of points on this device.
        scale: Standard deviation of each coordinate.
        total_mass: Mass of the particles on all devices together, shared equally.
        seed: Seed of the random numbers.
        npad: Rows of padding to append.
        dim: Number of dimensions.

    Returns:
        ``pos`` ``(N + npad, dim)`` float32 in the unit of ``scale``, a scalar ``mass``, ``num`` ``N``, and
        ``num_total``, ``N`` times the number of devices.

    Raises:
        ValueError: If ``N`` or ``npad`` is negative.
    """
    _check_number(N)
    rank, ndev, _ = get_rank_info()
    pos = scale * jax.random.normal(jax.random.PRNGKey(seed + rank), (N, dim), dtype=jnp.float32)
    mass = total_mass / max(N * ndev, 1)
    return pad_particles(PosMass(pos=pos, mass=mass, num=N, num_total=N * ndev), npad)


@with_smap(in_specs=(None,) * 7, out_specs=P(-1), static_argnums=(0, 4, 5, 6))
def hernquist_posmass(
    N: int,
    a: float = 1.0,
    total_mass: float = 1.0,
    seed: int = 0,
    npad: int = 0,
    dim: int = 3,
    rmax: float | None = None,
) -> PosMass:
    """Sample ``N`` independent points of a Hernquist (1990, ApJ 356, 359) sphere around the origin.

    The fraction of the mass within r is ``r^2 / (r + a)^2``. You can call this under `jax.jit` with ``N``, ``npad``,
    ``dim`` and ``rmax`` static. For several devices see `uniform_particles`; for a given range of radii see
    `hernquist_particles`.

    Args:
        N: Number of points on this device.
        a: Scale radius.
        total_mass: Mass of the particles on all devices together, shared equally.
        seed: Seed of the random numbers.
        npad: Rows of padding to append.
        dim: Number of dimensions; directions are isotropic.
        rmax: The largest radius, in the unit of ``a``; None means no limit.

    Returns:
        ``pos`` ``(N + npad, dim)`` float32 in the unit of ``a``, a scalar ``mass``, ``num`` ``N``, and ``num_total``,
        ``N`` times the number of devices.

    Raises:
        ValueError: If ``N`` or ``npad`` is negative, or ``rmax`` is not positive.
    """
    _check_number(N)
    if rmax is not None:
        _check_positive(rmax=rmax)
    rank, ndev, _ = get_rank_info()
    radius_key, direction_key = jax.random.split(jax.random.PRNGKey(seed + rank))
    within = jax.random.uniform(radius_key, (N, 1), dtype=jnp.float32)
    if rmax is not None:
        within = within * (rmax / (rmax + a)) ** 2
    root = jnp.sqrt(within)
    radius = a * root * (1 + root) / (1 - within)  # root / (1 - root), without subtracting nearly equal numbers
    direction = jax.random.normal(direction_key, (N, dim), dtype=jnp.float32)
    pos = radius * direction / jnp.linalg.norm(direction, axis=-1, keepdims=True)
    mass = total_mass / max(N * ndev, 1)
    return pad_particles(PosMass(pos=pos, mass=mass, num=N, num_total=N * ndev), npad)


def clustered_particles(
    N: int,
    total_mass: float = 1.0,
    seed: int = 0,
    npad: int = 0,
    background: float = 0.5,
    characteristic_mass: float = 1e-3,
    concentration: float | None = None,
) -> PosMass:
    """Sample ``N`` particles in the periodic unit box: haloes as in a simulation, and a uniform background.

    Haloes are spheres with the profile of Navarro, Frenk & White (1997, ApJ 490, 493), cut at r200, the radius with a
    mean density of 200 times that of the box. Their masses follow a power law with an exponential cutoff (Press &
    Schechter 1974, ApJ 187, 425), ``dn/dlnM ~ M^-0.9 exp(-M/M*)``, from 20 particles upwards. Their centres are
    uniform, so particles cluster only on scales below the size of a halo. Rows are in random order.

    Args:
        N: Number of particles.
        total_mass: Mass of the particles together, shared equally.
        seed: Seed of the random numbers.
        npad: Rows of padding to append.
        background: The fraction of particles outside haloes; about half of the particles of a simulation at redshift 0.
        characteristic_mass: M* as a fraction of the mass of the box; 1e-3 is the value for a box of 100 Mpc/h at
            redshift 0.
        concentration: r200 over the scale radius of every halo. None means ``9 (M/M*)^-0.13``, between 4 and 30
            (Bullock et al. 2001, MNRAS 321, 559).

    Returns:
        ``pos`` ``(N + npad, 3)`` float32 in [0, 1), a scalar ``mass``, and ``num`` and ``num_total`` ``N``.

    Raises:
        ValueError: If a number is out of range.
    """
    _check_number(N)
    if not 0 <= background <= 1:
        raise ValueError(
            f"background is {background!r}; it must be the fraction of particles outside haloes, from 0 to 1."
        )
    _check_positive(
        characteristic_mass=characteristic_mass, concentration=1.0 if concentration is None else concentration
    )
    random = np.random.default_rng(seed)
    in_halos = N - round(background * N)
    counts = _halo_counts(random, in_halos, characteristic_mass * N)
    pos = np.empty((N, 3), np.float32)
    pos[in_halos:] = random.random((N - in_halos, 3), np.float32)
    _fill_halos(random, pos[:in_halos], counts, N, characteristic_mass * N, concentration)
    pos = pos[random.permutation(N)]  # random.shuffle is seven times slower
    part = PosMass(pos=jnp.asarray(pos), mass=total_mass / max(N, 1), num=N, num_total=N)
    return pad_particles(part, npad)


def _halo_counts(random: np.random.Generator, total: int, characteristic: float) -> np.ndarray:
    """Sample the particle numbers of the haloes, ``total`` in sum, by inversion of the tabulated mass function."""
    if total == 0:
        return np.zeros(0, np.int64)
    smallest = 20.0
    masses = np.geomspace(smallest, max(20 * characteristic, 2 * smallest), 4096)
    density = masses**-0.9 * np.exp((smallest - masses) / characteristic)
    cumulative = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    drawn: list[np.ndarray] = []
    missing = total
    while missing > 0:
        uniform = random.random(max(missing // 200, 16)) * cumulative[-1]
        counts = np.exp(np.interp(uniform, cumulative, np.log(masses))).astype(np.int64)
        ends = np.cumsum(counts)
        counts = counts[ends <= missing]
        if not len(counts):  # fewer particles remain than the sampled halo has
            counts = np.asarray([missing])
        drawn.append(counts)
        missing -= int(counts.sum())
    return np.concatenate(drawn)


def _fill_halos(
    random: np.random.Generator,
    pos: np.ndarray,
    counts: np.ndarray,
    total: int,
    characteristic: float,
    concentration: float | None,
) -> None:
    """Write the positions of the haloes' particles to ``pos``, halo by halo."""
    centres = random.random((len(counts), 3))
    radii = np.cbrt(3 * counts / (800 * np.pi * total))
    relation = np.clip(9 * (counts / max(characteristic, 1e-9)) ** -0.13, 4, 30)
    concentrations = relation if concentration is None else np.full(len(counts), float(concentration))
    halo = np.repeat(np.arange(len(counts)), counts)
    for start in range(0, len(pos), _BLOCK):
        rows = halo[start : start + _BLOCK]
        radius = radii[rows] * _nfw_radii(random.random(len(rows)), concentrations[rows])
        inside = (centres[rows] + radius[:, None] * _directions(random, len(rows))) % 1.0
        block = inside.astype(np.float32)
        block[block == 1] = 0  # a float64 just below the box length rounds to it
        pos[start : start + _BLOCK] = block


def _nfw_radii(uniform: np.ndarray, concentration: np.ndarray) -> np.ndarray:
    """Return the radii in r200 that enclose the fraction ``uniform`` of NFW haloes, from one common table."""
    x = np.geomspace(1e-5, max(40.0, 1.1 * concentration.max(initial=1.0)), 4096)
    enclosed = np.log(_nfw_mass(x))
    required = np.log(np.maximum(uniform, 1e-300) * _nfw_mass(concentration))
    return np.minimum(np.exp(np.interp(required, enclosed, np.log(x))) / concentration, 1.0)


def _nfw_mass(x: np.ndarray) -> np.ndarray:
    """Return the mass of an NFW halo within ``x`` scale radii, in its natural unit; a series replaces cancellation."""
    return np.where(x < 1e-3, x**2 * (0.5 - 2 * x / 3), np.log1p(x) - x / (1 + x))


def soneira_peebles_particles(
    clusters: int,
    levels: int,
    eta: int = 2,
    ratio: float = 1.76,
    radius: float = 0.1,
    total_mass: float = 1.0,
    seed: int = 0,
    npad: int = 0,
) -> PosMass:
    """Sample particles in the periodic unit box whose correlation function is a known power law.

    There are ``clusters`` spheres at random positions. Each contains the centres of ``eta`` smaller spheres, and so on
    (Soneira & Peebles 1978, AJ 83, 845). Spheres of the first level have ``radius``, and each further level reduces the
    radius by the factor ``ratio``. The centres after ``levels`` levels are the particles, ``clusters eta**levels`` in
    number. Between the sizes of the smallest and the largest spheres, ``xi(r)`` falls like ``r**-gamma``, where
    ``gamma = 3 - log(eta) / log(ratio)``. The default values give 1.77, the value of galaxies.

    Args:
        clusters: Number of spheres of the first level.
        levels: Number of levels.
        eta: Number of smaller spheres in a sphere.
        ratio: Radius of a sphere over that of the next level.
        radius: Radius of the spheres of the first level, in box lengths.
        total_mass: Mass of the particles together, shared equally.
        seed: Seed of the random numbers.
        npad: Rows of padding to append.

    Returns:
        ``pos`` ``(N + npad, 3)`` float32 in [0, 1), with neighbours in neighbouring rows, a scalar ``mass``, and
        ``num`` and ``num_total`` ``N``.

    Raises:
        ValueError: If a number is out of range.
    """
    for name, number in {"clusters": clusters, "levels": levels, "eta": eta}.items():
        if number < 1:
            raise ValueError(f"{name} is {number!r}; it must be at least 1.")
    _check_positive(ratio=ratio, radius=radius)
    random = np.random.default_rng(seed)
    pos = random.random((clusters, 3))
    for level in range(levels):
        pos = np.repeat(pos, eta, axis=0)
        reach = radius * ratio**-level * np.cbrt(random.random(len(pos)))
        pos += reach[:, None] * _directions(random, len(pos))
    inside = (pos % 1.0).astype(np.float32)
    inside[inside == 1] = 0  # a float64 just below the box length rounds to it
    part = PosMass(pos=jnp.asarray(inside), mass=total_mass / len(pos), num=len(pos), num_total=len(pos))
    return pad_particles(part, npad)


def _directions(random: np.random.Generator, num: int) -> np.ndarray:
    """Sample ``num`` unit vectors, uniform on the sphere."""
    z = random.uniform(-1, 1, num)
    angle = random.uniform(0, 2 * np.pi, num)
    across = np.sqrt(1 - z**2)
    return np.stack([across * np.cos(angle), across * np.sin(angle), z], axis=-1)


def hernquist_particles(
    N: int,
    total_mass: float = 1.0,
    seed: int = 0,
    npad: int = 0,
    scale_radius: float = 1.0,
    dynamic_range: float = 1e12,
    dtype: DTypeLike = jnp.float32,
) -> PosMass:
    """Sample ``N`` particles of a Hernquist (1990, ApJ 356, 359) sphere around the origin, with a huge range of radii.

    The mass within r is ``M r^2 / (r + a)^2``, cut to ``a / sqrt(dynamic_range) <= r <= a sqrt(dynamic_range)``. The
    first two rows are on the two cuts, so the sample spans the range for any ``N``.

    Args:
        N: Number of particles.
        total_mass: Mass of the particles together, shared equally.
        seed: Seed of the random numbers.
        npad: Rows of padding to append.
        scale_radius: The length ``a``.
        dynamic_range: The largest radius over the smallest.
        dtype: float32 or float64.

    Returns:
        ``pos`` ``(N + npad, 3)`` of ``dtype`` in the unit of ``scale_radius``, a scalar ``mass``, and ``num`` and
        ``num_total`` ``N``.

    Raises:
        ValueError: If a number is out of range, or ``dtype`` is float64 and the 64-bit mode of JAX is off.
    """
    _check_number(N)
    _check_positive(scale_radius=scale_radius, dynamic_range=dynamic_range)
    if dynamic_range <= 1:
        raise ValueError(
            f"dynamic_range is {dynamic_range!r}; it must be the largest radius over the smallest, above 1."
        )
    kind = np.dtype(dtype)
    if kind not in (np.float32, np.float64):
        raise ValueError(f"dtype is {kind}; it must be float32 or float64.")
    if jax.dtypes.canonicalize_dtype(kind) != kind:
        raise ValueError(
            'dtype is float64, but the 64-bit mode of JAX is off; call jax.config.update("jax_enable_x64", True) first.'
        )
    random = np.random.default_rng(seed)
    ends = np.asarray([dynamic_range**-0.5, dynamic_range**0.5])
    smallest, largest = (ends / (1 + ends)) ** 2
    roots = np.sqrt(random.uniform(smallest, largest, N))  # square root of the mass within r, r / (r + a)
    radii = np.clip(roots / (1 - roots), *ends)
    radii[:2] = ends[:N]
    pos = scale_radius * radii[:, None] * _directions(random, N)
    return pad_particles(PosMass(pos=jnp.asarray(pos, kind), mass=total_mass / max(N, 1), num=N, num_total=N), npad)


def cosmo_2d_sample() -> jax.Array:
    """Return a two-dimensional slice of a cosmological simulation, 128^2 particles in a periodic box.

    The length of the box is `SAMPLE_2D_BOXSIZE`. The data are from jz-tree (MIT licence). Friends-of-friends results
    are next to the file (`SAMPLE_2D`).

    Returns:
        Positions ``(16384, 2)`` float32 in [0, 100).
    """
    return jnp.asarray(np.load(SAMPLE_2D))


def cosmo_3d_sample() -> tuple[ParticleData, float]:
    """Return dark matter of a cosmological N-body simulation, 48^3 particles at redshift 0, and the box length.

    Rows are in Lagrangian order. The sample was made with pysco-nbody (flat LCDM, Om=0.31, h=0.68). Friends-of-friends
    and neighbour results are next to the file (`SAMPLE_3D`).

    Returns:
        Particles of JAX arrays, and the box length, 37.5 Mpc/h. The particles have ``pos`` ``(110592, 3)`` float32 in
        Mpc/h, a scalar ``mass`` in 1e10 Msun/h, ``vel`` ``(110592, 3)`` float32 in km/s (peculiar), ``id``
        ``(110592,)`` uint32, ``num`` and ``num_total``.
    """
    part, header = read_snapshot(SAMPLE_3D)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if np.ndim(leaf) else leaf, part), float(header.boxsize)  # type: ignore[arg-type]


def _check_number(N: int) -> None:
    if N < 0:
        raise ValueError(f"N is {N}; it must be the number of particles, at least 0.")


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not (number > 0 and np.isfinite(number)):
            raise ValueError(f"{name} is {number!r}; it must be positive and finite.")
