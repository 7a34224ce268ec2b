"""Two-point correlation functions: the excess of particle pairs at a distance over a random distribution.

All functions use the exact counts of `jztree.radius.pair_counts`. In a periodic box the number of random pairs is
known, and the estimator is ``DD / RR - 1`` (Peebles & Hauser 1974, ApJS 28, 19). Otherwise it needs random particles
that fill the same volume, and is ``(DD - 2 DR + RR) / RR`` (Landy & Szalay 1993, ApJ 412, 64), with each count divided
by the total number of such pairs, ``N (N - 1)`` within a set. For two tracers it is ``(D1D2 - D1R2 - D2R1 + R1R2) /
R1R2``. Leaving out the particles of one region at a time gives a jackknife covariance (Norberg et al. 2009, MNRAS 396,
19).

Everything except the counts uses NumPy in float64.
"""

from ._arguments import bin_edges as bin_edges
from ._arguments import real_numbers as real_numbers
from ._arguments import whole_number as whole_number
from ._from_counts import multipoles_from_counts, wp_from_counts, xi_from_counts
from ._functions import multipoles, wp, xi
from ._regions import cube_regions
from ._result import POWER_LAWS as POWER_LAWS
from ._result import Correlation, power_law
from ._separations import mean_separations
from ._totals import Totals, totals

# Names imported "as" themselves are for other packages of the tools, and not public.

__all__ = [
    "Correlation",
    "Totals",
    "cube_regions",
    "mean_separations",
    "multipoles",
    "multipoles_from_counts",
    "power_law",
    "totals",
    "wp",
    "wp_from_counts",
    "xi",
    "xi_from_counts",
]
