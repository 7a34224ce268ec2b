"""Directions on the sky as unit vectors and back, angles, and chords.

Sines and cosines take degrees: multiples of 90 degrees are exact, and close to them, the relative error stays
at the rounding error. So both poles are single points, RA = 0 equals RA = 360, and small angles have small errors. No
function uses the arccosine, whose error at small angles is 1e-8.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..correlation import real_numbers
from ._arguments import (
    check_declinations,
    check_not_negative,
    checked_angles,
    checked_directions,
    finite_numbers,
    in_degrees,
)
from ._distances import comoving_distances


def to_cartesian(
    ra: ArrayLike,
    dec: ArrayLike,
    distance: ArrayLike | None = None,
    redshift: ArrayLike | None = None,
    cosmology: object = None,
) -> np.ndarray:
    """Return Cartesian positions around the observer at the origin.

    The x axis points to RA = 0 and Dec = 0, the y axis to RA = 90 and Dec = 0, and the z axis to the north pole.

    Args:
        ra: ``(n,)`` right ascensions in degrees, any real numbers.
        dec: ``(n,)`` declinations in degrees, from -90 to 90.
        distance: ``(n,)`` comoving distances, or one for all objects. Without distances and redshifts, the positions
            are unit vectors.
        redshift: ``(n,)`` redshifts of at least 0, instead of distances.
        cosmology: Required with ``redshift``: a function that returns the comoving distances of redshifts, or a
            cosmology of astropy. With astropy, distances are in Mpc, not in Mpc/h.

    Returns:
        ``(n, 3)`` float64 in the unit of the distances.

    Raises:
        TypeError: If an argument is not of plain real numbers.
        ValueError: If coordinates are NaN or infinite, declinations are outside the range, distances are negative,
            lengths differ, or arguments do not match.
    """
    ra, dec = checked_directions(ra, dec)
    unit = unit_vectors(ra, dec)
    if (redshift is None) != (cosmology is None):
        raise ValueError("redshift and cosmology convert redshifts to distances together; give both, or neither.")
    if distance is not None and redshift is not None:
        raise ValueError("distance and redshift were both given; give only one.")
    if redshift is not None:
        distance = comoving_distances(redshift, cosmology)
    if distance is None:
        return unit
    lengths = finite_numbers(distance, "distance")
    if lengths.shape not in ((), ra.shape):
        name = "distance" if redshift is None else "redshift"
        raise ValueError(f"{name} has shape {lengths.shape}, and ra {ra.shape}; give one {name} per object.")
    check_not_negative(lengths, "distance")
    return unit * lengths[..., None]


def radec(source: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return right ascensions and declinations from an object of another package, for the functions of this module.

    Args:
        source: A ``SkyCoord`` of astropy in any frame, which is transformed to ICRS; or a data frame, a ``Table``, a
            dict or a structured array with columns ``ra`` and ``dec``, in upper or lower case, in degrees or with a
            unit of astropy.

    Returns:
        ``(n,)`` float64 each, in degrees.

    Raises:
        TypeError: If the source is of another kind, or a column does not hold real numbers.
        ValueError: If it does not have one column of each name, or a coordinate is invalid.

    Examples:
        >>> from jztree_utils import sky
        >>> sky.radec({"name": ["Vega", "Altair"], "RA": [279.23, 297.70], "DEC": [38.78, 8.87]})
        (array([279.23, 297.7 ]), array([38.78,  8.87]))
    """
    if hasattr(source, "icrs"):
        place = source.icrs
        return checked_directions(np.atleast_1d(place.ra.deg), np.atleast_1d(place.dec.deg))
    names = getattr(getattr(source, "dtype", None), "names", None)
    if names is None:
        if not hasattr(source, "keys"):
            raise TypeError(
                f"source is {type(source).__name__}; it must be a SkyCoord, or a table with the columns ra and dec."
            )
        names = list(source.keys())
    columns = []
    for angle in ("ra", "dec"):
        matches = [name for name in names if str(name).lower() == angle]
        if len(matches) != 1:
            table_columns = ", ".join(map(str, names))
            raise ValueError(
                f"the table has {len(matches)} columns {angle}, but needs one; its columns are {table_columns:.200}."
            )
        columns.append(source[matches[0]])
    return checked_directions(columns[0], columns[1])


def from_cartesian(pos: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the right ascension, declination and distance of positions; the inverse of `to_cartesian`.

    Args:
        pos: ``(n, 3)`` positions around the observer at the origin.

    Returns:
        Right ascensions from 0 to below 360 and declinations, in degrees, and distances in the unit of the positions;
        ``(n,)`` float64 each. The position of the observer has the coordinates 0, 0, 0.

    Raises:
        TypeError: If positions are not plain real numbers.
        ValueError: If the shape is not ``(n, 3)``, or a position is NaN or infinite.
    """
    result = finite_numbers(pos, "pos")
    if result.ndim != 2 or result.shape[1] != 3:
        raise ValueError(f"pos has shape {result.shape}; it must be (n, 3).")
    x, y, z = result.T
    across = np.hypot(x, y)
    ra = np.mod(np.degrees(np.arctan2(y, x)), 360)
    ra[(ra >= 360) | (across == 0)] = 0  # a tiny negative angle rounds to 360
    return ra, np.degrees(np.arctan2(z, across)), np.hypot(across, z)


def angular_separation(ra: ArrayLike, dec: ArrayLike, query_ra: ArrayLike, query_dec: ArrayLike) -> np.ndarray:
    """Return the angles between directions, from 0 to 180 degrees, up to rounding also at both ends.

    ``sin^2`` and ``cos^2`` of half the angle are sums of terms that are not negative, and their ratio gives the angle.
    The first is the haversine formula.

    Args:
        ra, dec: Coordinates in degrees, of any shape.
        query_ra, query_dec: Coordinates of the other directions, of a shape that broadcasts.

    Returns:
        Angles in degrees, float64, of the joint shape.

    Raises:
        TypeError: If the coordinates are not plain real numbers.
        ValueError: If a coordinate is invalid.
    """
    coordinates = {"ra": ra, "dec": dec, "query_ra": query_ra, "query_dec": query_dec}
    ra, dec, query_ra, query_dec = (finite_numbers(in_degrees(angles), name) for name, angles in coordinates.items())
    check_declinations(dec, "dec")
    check_declinations(query_dec, "query_dec")
    try:
        np.broadcast_shapes(ra.shape, dec.shape, query_ra.shape, query_dec.shape)
    except ValueError:
        raise ValueError(
            f"ra, dec, query_ra and query_dec have the shapes {ra.shape}, {dec.shape}, {query_ra.shape} and "
            f"{query_dec.shape}; they must broadcast to one shape."
        ) from None
    return separations(Directions.of(ra, dec), Directions.of(query_ra, query_dec))


class Directions(NamedTuple):
    """Directions in the form that `separations` needs, so that pairs of rows share the work of their rows.

    Attributes:
        ra: Right ascensions from -180 to 180 degrees.
        dec: Declinations in degrees.
        across: The cosines of the declinations.
    """

    ra: np.ndarray
    dec: np.ndarray
    across: np.ndarray

    @classmethod
    def of(cls, ra: np.ndarray, dec: np.ndarray) -> Directions:
        """Return these directions, which must be valid."""
        turned = np.fmod(ra, 360)
        return cls(turned - 360 * np.rint(turned / 360), dec, _sine_cosine(dec)[1])

    def rows(self, index: Any) -> Directions:
        """Return the directions at an index, or an array of indices."""
        return Directions(*(column[index] for column in self))


def separations(directions: Directions, sources: Directions) -> np.ndarray:
    """Return the angles between directions, whose shapes broadcast; see `angular_separation`."""
    around = _sine_cosine(_difference(directions.ra, sources.ra) / 2)
    across = directions.across * sources.across
    sine_squared = _sine((directions.dec - sources.dec) / 2) ** 2 + across * around[0] ** 2
    cosine_squared = _sine((directions.dec + sources.dec) / 2) ** 2 + across * around[1] ** 2
    return np.degrees(2 * np.arctan2(np.sqrt(sine_squared), np.sqrt(cosine_squared)))


def _difference(ra: np.ndarray, source_ra: np.ndarray) -> np.ndarray:
    """Return a difference of right ascensions between -180 and 180 degrees, up to its rounding error.

    The order of the operations matters: ``359.9 - 0.1 - 360`` has the rounding error of 360.
    """
    direct = ra - source_ra
    return np.where(np.abs(direct) <= 180, direct, (180 - np.abs(ra)) + (180 - np.abs(source_ra)))


def chord_of_angle(angle: ArrayLike) -> np.ndarray:
    """Return the distances ``2 sin(angle / 2)`` between unit vectors.

    Use them as edges or radii for the searches of `jztree` among unit vectors, for example on many devices.

    Args:
        angle: Angles from 0 to 180 degrees, of any shape.

    Returns:
        Distances from 0 to 2, float64, of the same shape.

    Raises:
        TypeError: If angles are not plain real numbers.
        ValueError: If an angle is outside the range.
    """
    return 2 * _sine_cosine(checked_angles(angle, "angle") / 2)[0]


def angle_of_chord(chord: ArrayLike) -> np.ndarray:
    """Return the angles of distances between unit vectors; the inverse of `chord_of_angle`.

    Args:
        chord: Distances from 0 to 2, of any shape. Rounding may raise a distance of unit vectors slightly above 2.

    Returns:
        Angles from 0 to 180 degrees, float64, of the same shape.

    Raises:
        TypeError: If distances are not real numbers.
        ValueError: If a distance is outside the range.
    """
    lengths = real_numbers(chord, "chord")
    if not np.all((lengths >= 0) & (lengths <= 2 + _ROUNDING)):
        raise ValueError("chord has values outside the range from 0 to 2; give distances between unit vectors.")
    return np.degrees(2 * np.arcsin(np.minimum(lengths / 2, 1)))


# The limit of the rounding errors of a chord between unit vectors in float64.
_ROUNDING = 1e-15


def inclusive_chord(angle: np.ndarray) -> np.ndarray:
    """Return chords that no rounding error makes smaller than the distance of unit vectors at these angles."""
    return chord_of_angle(angle) + _ROUNDING


def chord_edges(edges: np.ndarray) -> np.ndarray:
    """Return the chords of bin edges in degrees. The edge at 180 degrees includes all unit vectors."""
    return np.where(edges == 180, 2 + _ROUNDING, chord_of_angle(edges))


def unit_vectors(ra: np.ndarray, dec: np.ndarray) -> np.ndarray:
    """Return unit vectors ``(n, 3)`` float64 of valid coordinates."""
    (sine, cosine), (height, across) = _sine_cosine(ra), _sine_cosine(dec)
    return np.stack([across * cosine, across * sine, height], axis=-1)


def _sine_cosine(angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sine and the cosine of an angle in degrees."""
    rest, quarter = _in_quarter(angle)
    sine, cosine, swapped = np.sin(rest), np.cos(rest), quarter & 1 == 1
    if not quarter.any():
        return sine, cosine
    return (
        _signed(np.where(swapped, cosine, sine), quarter >= 2),
        _signed(np.where(swapped, sine, cosine), (quarter == 1) | (quarter == 2)),
    )


def _sine(angle: np.ndarray) -> np.ndarray:
    """Return the sine of an angle in degrees, with the same bits as `_sine_cosine`."""
    rest, quarter = _in_quarter(angle)
    sine, swapped = np.sin(rest), quarter & 1 == 1
    return _signed(np.where(swapped, np.cos(rest), sine) if swapped.any() else sine, quarter >= 2)


def _in_quarter(angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return an angle minus the nearest multiple of 90 degrees, in radians, and this multiple, from 0 to 3.

    The remainders by 360 and by 90 degrees have no rounding error.
    """
    turned = np.fmod(angle, 360)
    quarters = np.rint(turned / 90)
    return np.radians(turned - 90 * quarters), np.asarray(quarters, np.int8) & 3


def _signed(values: np.ndarray, negative: np.ndarray) -> np.ndarray:
    return np.where(negative, -values, values)
