"""The result of a correlation function, its errors, and the fit of a power law."""

import sys
import traceback
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._counts import Counts
from ._estimators import Estimate, shortcomings
from ._separations import separations_of

_IN_WORDS = {"multipoles": "xi(s, mu)", "w_theta": "w(theta)"}  # statistics in warnings
POWER_LAWS = ("xi", "w_theta")  # statistics without a unit, of one distance


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """A correlation function in bins.

    An unknown value is NaN. This affects a bin without random pairs. It affects all bins if a set has fewer than two
    particles or weights that sum to 0, or if no bin has a pair of data and randoms. The function then warns once, with
    the bins and the reason.

    Attributes:
        edges: ``(b + 1,)`` float64, edges of the distance: r, s, or rp.
        value: ``(b,)`` float64, or ``(l, b)`` for multipoles.
        pairs: ``(b,)`` int64, number of data pairs in each bin, in both orders; for two tracers, once.
        samples: ``(num_regions, *value.shape)`` float64, the function without each region in turn, or None.
        occupied: ``(num_regions,)`` bool, the regions with particles, or None.
        separation: ``(b,)`` float64, the mean distance of the data pairs in each bin, NaN without pairs; None unless it
            was requested.
        cross: Whether the pairs join two tracers, so that each pair counts once.
        statistic: ``"xi"``, ``"wp"``, ``"multipoles"`` or, with edges in degrees, ``"w_theta"``.
        ells: The multipole orders of the rows of ``value``, or None.
        pi_max: The end of the integral of ``wp`` along the line of sight, or None.
    """

    edges: np.ndarray
    value: np.ndarray
    pairs: np.ndarray
    samples: np.ndarray | None = None
    occupied: np.ndarray | None = None
    separation: np.ndarray | None = None
    cross: bool = False
    statistic: str = "xi"
    ells: tuple[int, ...] | None = None
    pi_max: float | None = None

    @property
    def centre(self) -> np.ndarray:
        """``(b,)`` float64, the geometric mean of the edges of each bin; for a bin that starts at 0, half its end."""
        low, high = self.edges[:-1], self.edges[1:]
        return np.where(low > 0, np.sqrt(low * high), high / 2)

    @property
    def covariance(self) -> np.ndarray | None:
        """The jackknife covariance of ``value.ravel()``, or None without regions.

        It is ``(n - 1) / n`` times the sum of squares about the mean of the ``n`` samples that each leave out one
        region with particles. Without such a region, it is NaN.
        """
        if self.samples is None:
            return None
        flat = self.samples.reshape(len(self.samples), -1)
        flat = flat if self.occupied is None else flat[self.occupied]
        if not len(flat):
            return np.full((flat.shape[1], flat.shape[1]), np.nan)
        offset = flat - flat.mean(axis=0)
        return (len(flat) - 1) / len(flat) * offset.T @ offset

    @property
    def error(self) -> np.ndarray | None:
        """The square root of the covariance's diagonal, in the shape of ``value``; None without regions."""
        covariance = self.covariance
        return None if covariance is None else np.sqrt(np.diag(covariance)).reshape(self.value.shape)


def result(
    name: str,
    counts: Counts,
    results: Estimate,
    edges: np.ndarray,
    over: Any = (1.0,),
    advice: str = "",
    ells: tuple[int, ...] | None = None,
    pi_max: float | None = None,
) -> Correlation:
    """Build the result of a public function. Warn once if values are NaN or cells were joined.

    The warning names the first line outside this package as its origin.

    Args:
        name: The statistic of the result; see `Correlation`.
        counts: The pairs.
        found: The function in cells.
        edges: ``(b + 1,)`` edges of the bins.
        over: See `Estimate.integrated`.
        advice: The second way to avoid joined cells, after "give more randoms, or".
        ells: See `Correlation`.
        pi_max: See `Correlation`.
    """
    occupied = counts.occupied()
    text = shortcomings(_IN_WORDS.get(name, name), results, edges, advice, occupied)
    if text:
        warnings.warn(text, RuntimeWarning, stacklevel=_level_of_caller())
    values, number = results.integrated(np.asarray(over)), counts.number
    samples = None if occupied is None else values[1:]
    pairs = number.reshape(len(number), -1).sum(axis=1)
    return Correlation(
        edges=edges,
        value=values[0],
        pairs=pairs,
        samples=samples,
        occupied=occupied,
        separation=separations_of(counts.counts["dd"]),
        cross="queries" in counts.sets,
        statistic=name,
        ells=ells,
        pi_max=None if pi_max is None else float(pi_max),
    )


def _level_of_caller() -> int:
    """Return the ``stacklevel`` for a warning of the calling function to name the first line outside the tools."""
    frames = traceback.walk_stack(sys._getframe(1))
    outside = (
        i for i, (frame, _) in enumerate(frames, 1) if not frame.f_globals["__name__"].startswith("jztree_utils.")
    )
    return next(outside, 1)


def power_law(correlation: Correlation, low: float = 0.0, high: float = np.inf) -> tuple[float, float]:
    """Fit a power law ``(r / r0)**-gamma`` to the bins between ``low`` and ``high``.

    This is a least-squares fit of the logarithms, weighted by the jackknife errors if they exist.

    Args:
        correlation: ``xi(r)`` or ``w(theta)``. The values of ``wp`` are lengths, so they have no such fit.
        low, high: Use only bins between these distances, in the unit of ``correlation.edges``.

    Returns:
        ``r0``, in the unit of ``correlation.edges``, and ``gamma``.

    Raises:
        ValueError: If ``correlation`` is ``wp`` or multipoles, or fewer than two bins in this range are positive.
    """
    if correlation.statistic not in POWER_LAWS:
        raise ValueError(
            f"correlation is {correlation.statistic}; a power law (r / r0)**-gamma needs {' or '.join(POWER_LAWS)}."
        )
    r, value = correlation.centre, correlation.value
    used = (correlation.edges[:-1] >= low) & (correlation.edges[1:] <= high) & (value > 0)
    if value.ndim != 1 or used.sum() < 2:
        raise ValueError("a power law needs a function of one distance with at least two positive bins.")
    error = correlation.error
    weights = np.ones(used.sum()) if error is None else value[used] / np.maximum(error[used], 1e-300)
    slope, height = np.polyfit(np.log(r[used]), np.log(value[used]), 1, w=weights)
    return float(np.exp(height / -slope)), float(-slope)
