"""Haloes with known answers: Plummer spheres in equilibrium, at rest and in motion. Not a test."""

from typing import Any

import numpy as np


def plummer(n: int, mass: float, size: float, seed: int = 1, widest: float = 10.0) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and velocities of a Plummer sphere in equilibrium, for a constant of gravity of 1.

    The sphere ends at ``widest`` times its size. No particle is faster than 0.95 of the escape velocity.
    """
    random = np.random.default_rng(seed)
    enclosed = widest**3 / (1 + widest**2) ** 1.5 * random.random(n)
    radius = size / np.sqrt(enclosed ** (-2 / 3) - 1)
    # The ratio q of the speed to the escape velocity has the density q^2 (1 - q^2)^(7/2) (Aarseth et al. 1974).
    ratio = np.zeros(n)
    missing = np.ones(n, bool)
    while missing.any():
        q, y = 0.95 * random.random(n), 0.1 * random.random(n)
        ratio = np.where(missing & (y < q**2 * (1 - q**2) ** 3.5), q, ratio)
        missing &= ratio == 0
    speed = ratio * np.sqrt(2 * mass) * (radius**2 + size**2) ** -0.25
    return radius[:, None] * _directions(random, n), speed[:, None] * _directions(random, n)


def _directions(random: np.random.Generator, n: int) -> np.ndarray:
    normal = random.standard_normal((n, 3))
    result: np.ndarray = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    return result


def placed(*haloes: tuple[tuple[np.ndarray, np.ndarray], Any, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return positions and velocities of haloes at places and with velocities, and the halo of each particle."""
    pos = np.concatenate([pos + np.asarray(place) for (pos, _), place, _ in haloes])
    vel = np.concatenate([vel + np.asarray(motion) for (_, vel), _, motion in haloes])
    return pos, vel, np.repeat(np.arange(len(haloes)), [len(pos) for (pos, _), _, _ in haloes])


def nfw(n: int, mass: float, radius: float, concentration: float, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and velocities of a halo of Navarro, Frenk & White, cut at a radius, for a gravity of 1.

    Velocities are normal in each direction, with the dispersion of the isotropic Jeans equation, below 0.9 of the
    escape velocity.
    """
    random = np.random.default_rng(seed)
    table = np.geomspace(1e-4, 1, 2000) * radius
    x = concentration * table / radius
    enclosed = mass * (np.log1p(x) - x / (1 + x)) / (np.log1p(concentration) - concentration / (1 + concentration))
    density = 1 / (x * (1 + x) ** 2)
    depth = mass / radius + _integrals_to_end(table, enclosed / table**2)
    dispersion2 = _integrals_to_end(table, density * enclosed / table**2) / density
    places = np.interp(random.random(n), enclosed / mass, table)
    speed = np.sqrt(np.interp(places, table, dispersion2))[:, None] * random.standard_normal((n, 3))
    limit = 0.9 * np.sqrt(2 * np.interp(places, table, depth))
    size = np.linalg.norm(speed, axis=1)
    speed *= np.minimum(1, limit / size)[:, None]
    return places[:, None] * _directions(random, n), speed


def _integrals_to_end(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the integral of ``y`` from each ``x`` to the last."""
    parts = np.diff(x) * (y[1:] + y[:-1]) / 2
    return np.append(np.cumsum(parts[::-1])[::-1], 0)
