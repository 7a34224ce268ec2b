"""The mean of masses, bit-identical for any number of devices.

Masses are written as fractions of a power of two, in two words of 20 bits. Their sums are exact in 64-bit integers, in
any order, for up to 2^43 particles.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_BITS = 20
_ROWS = 2**22  # rows per sum, to limit memory


def mean_of(mass: Any) -> float | None:
    """Return the mean of masses ``(n,)`` on the host; None for invalid masses, which the search then reports.

    Args:
        mass: An array, or an object whose slices are arrays.
    """
    slices = [slice(start, start + _ROWS) for start in range(0, len(mass), _ROWS)]
    extremes = [extreme(mass[rows]) for rows in slices for extreme in (np.min, np.max)] or [0.0]
    smallest, largest = float(np.min(extremes)), float(np.max(extremes))
    unit = _unit(smallest, largest)
    if unit is None:
        return None
    sums = np.zeros(2, np.int64)
    for rows in slices:
        sums += [word.sum() for word in _words(np, mass[rows], unit)]
    return _mean(sums.tolist(), len(mass), unit, smallest, largest)


def mean_over_devices(mass: Any, num: Any, total: int, placed: Any) -> float | None:
    """Return the mean of masses ``(r, n)``, for the first ``num`` ``(r,)`` rows of each rank, ``total`` rows in all.

    Args:
        placed: A sharding that replicates results to all processes. JAX must be in its 64-bit mode.
    """

    smallest, largest = map(float, jax.jit(_extremes, out_shardings=placed)(mass, num))
    unit = _unit(smallest, largest)
    if unit is None:
        return None
    sums = jax.jit(_sums, out_shardings=placed)(mass, num, unit)
    return _mean([int(word) for word in sums], total, unit, smallest, largest)


def _extremes(mass: jax.Array, num: jax.Array) -> tuple[jax.Array, jax.Array]:
    held = _held(mass, num)
    return jnp.min(mass, where=held, initial=jnp.inf), jnp.max(mass, where=held, initial=-jnp.inf)


def _sums(mass: jax.Array, num: jax.Array, unit: Any) -> list[jax.Array]:
    held = _held(mass, num)
    return [jnp.sum(word, where=held) for word in _words(jnp, mass, unit)]


def _held(mass: jax.Array, num: jax.Array) -> jax.Array:
    return jnp.arange(mass.shape[1]) < num[:, None]


def _unit(smallest: float, largest: float) -> float | None:
    """Return the power of two above all masses; None if one is negative or not finite, or all are zero."""
    return (
        float(np.ldexp(1.0, int(np.frexp(largest)[1]))) if 0 <= smallest <= largest < np.inf and largest > 0 else None
    )


def _words(xp: Any, mass: Any, unit: float) -> list[Any]:
    high = mass.astype(xp.float64) * (2**_BITS / unit)
    low = (high - xp.floor(high)) * 2**_BITS
    return [xp.floor(word).astype(xp.int64) for word in (high, low)]


def _mean(sums: list[int], num: int, unit: float, smallest: float, largest: float) -> float:
    if smallest == largest:
        return smallest
    return ((sums[0] << _BITS) + sums[1]) / num * (unit / 2 ** (2 * _BITS))
