"""Comoving distances from redshifts and back, with the cosmology of the user."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._arguments import check_not_negative, finite_numbers, numbers_per_object

_STEPS = 1024  # of the table of distances, equal in log(1 + z)
_LOWEST, _HIGHEST = 2.0**-10, 2.0**14  # the last redshift of the table is between these powers of 2
_ROUNDS = 12  # each reduces the error by at least a factor of 100


def comoving_distances(redshift: Any, cosmology: Any) -> np.ndarray:
    """Return the comoving distances of redshifts, ``(n,)``; see `to_cartesian` for the arguments and errors."""
    redshifts = numbers_per_object(redshift, "redshift")
    check_not_negative(redshifts, "redshift")
    return _distances(redshifts, cosmology)


def redshift_at(distance: ArrayLike, cosmology: object) -> np.ndarray:
    """Return the redshifts at comoving distances.

    Args:
        distance: ``(n,)`` distances of at least 0, in the unit of the cosmology (Mpc for astropy).
        cosmology: A function that returns the comoving distances of redshifts, or a cosmology of astropy. Distances
            must increase from 0 on, up to twice the largest redshift or up to 0.001.

    Returns:
        ``(n,)`` float64, up to rounding.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If a distance is negative, NaN, infinite or not reached by any redshift, or if the distances of the
            cosmology do not increase.
    """
    required = numbers_per_object(distance, "distance")
    check_not_negative(required, "distance")
    redshifts, table = _table(required.max(initial=0.0), cosmology)
    cell = np.clip(np.searchsorted(table, required) - 1, 0, _STEPS - 1)
    slope = np.diff(redshifts)[cell] / np.diff(table)[cell]
    result = redshifts[cell] + (required - table[cell]) * slope
    for _ in range(_ROUNDS):
        step = (required - _distances(np.maximum(result, 0), cosmology)) * slope
        result = np.maximum(result + step, 0)
        if np.all(np.abs(step) <= 4 * np.finfo(np.float64).eps * result):
            break
    return result


def _table(farthest: float, cosmology: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return redshifts from 0 on, and their distances up to at least ``farthest``."""
    top = _LOWEST
    while _distances(np.array([top]), cosmology)[0] < farthest:
        top *= 2
        if top > _HIGHEST:
            raise ValueError(f"distance reaches {farthest:g}, but no redshift up to {_HIGHEST:g} is so far away.")
    redshifts = np.expm1(np.linspace(0, np.log1p(top), _STEPS + 1))
    table = _distances(redshifts, cosmology)
    if table[0] != 0 or not np.all(np.diff(table) > 0):
        raise ValueError("the distances of the cosmology must increase with redshift, and be 0 at redshift 0.")
    return redshifts, table


def _distances(redshift: np.ndarray, cosmology: Any) -> np.ndarray:
    function = getattr(cosmology, "comoving_distance", cosmology)
    if not callable(function):
        raise TypeError(f"cosmology is {cosmology!r}; it must be a function of redshift or a cosmology of astropy.")
    values = function(redshift)
    result = finite_numbers(values.to_value("Mpc") if hasattr(values, "to_value") else values, "cosmology(redshift)")
    if result.shape != redshift.shape:
        raise ValueError(
            f"cosmology returned distances of shape {result.shape} for redshifts of shape {redshift.shape}; it must "
            "return one distance per redshift."
        )
    check_not_negative(result, "cosmology(redshift)")
    return result
