"""Catalogues on the sky: positions from right ascension and declination, matches, groups, ``w(theta)``, regions.

All angles are in degrees, or have a unit of astropy. Right ascensions may be any real numbers; declinations are from
-90 to 90. An angle ``theta`` between two directions is the chord ``2 sin(theta / 2)`` between their unit vectors, so
every search is a search of `jztree` in three dimensions, without special cases at RA = 0 and at the poles. All
computations are in float64, in any mode of JAX.
"""

from ._coordinates import angle_of_chord, angular_separation, chord_of_angle, from_cartesian, radec, to_cartesian
from ._correlation import angular_pair_counts, w_theta
from ._distances import redshift_at
from ._groups import angular_groups, survey_groups
from ._matches import Matches, match, search_around
from ._regions import healpix_regions, region_centres, region_of

__all__ = [
    "Matches",
    "angle_of_chord",
    "angular_groups",
    "angular_pair_counts",
    "angular_separation",
    "chord_of_angle",
    "from_cartesian",
    "healpix_regions",
    "match",
    "radec",
    "redshift_at",
    "region_centres",
    "region_of",
    "search_around",
    "survey_groups",
    "to_cartesian",
    "w_theta",
]
