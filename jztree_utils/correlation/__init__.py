"""Two-point correlation functions: the excess of particle pairs at a distance over a random distribution.

All functions use the exact counts of `jztree.radius.pair_counts`. In a periodic box the number of random pairs is
known, and the estimator is ``DD / RR - 1`` (Peebles & Hauser 1974, ApJS 28, 19). Otherwise it needs random particles
that fill the same volume, and is ``(DD - 2 DR + RR) / RR`` (Landy & Szalay 1993, ApJ 412, 64), with each count divided
by the total number of such pairs. Leaving out the particles of one region at a time gives a jackknife covariance
(Norberg et al. 2009, MNRAS 396, 19).

Everything except the counts uses NumPy in float64.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import ArrayLike

from jztree.data import Particles, get_num, get_pos
from jztree.radius import PairCounts

from ._arguments import (
    OTHERWISE,
    Sample,
    bin_edges,
    check_number,
    check_reach,
    real_numbers,
    sample_of,
    whole_number,
)
from ._estimators import Estimate, natural, shortcomings

__all__ = ["Correlation", "cube_regions", "multipoles", "power_law", "wp", "wp_from_counts", "xi", "xi_from_counts"]


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """A correlation function in bins.

    An unknown value is NaN. This affects a bin without random pairs. It affects all bins if a set has fewer than two
    particles or weights that sum to 0, or if no bin has a pair of data and randoms. The function then warns once, with
    the bins and the reason.

    Attributes:
        edges: ``(b + 1,)`` float64, edges of the distance: r, s, or rp.
        value: ``(b,)`` float64, or ``(l, b)`` for multipoles.
        pairs: ``(b,)`` int64, number of data pairs in each bin, in both orders.
        samples: ``(num_regions, *value.shape)`` float64, the function without each region in turn, or None.
        occupied: ``(num_regions,)`` bool, the regions with particles, or None.
    """

    edges: np.ndarray
    value: np.ndarray
    pairs: np.ndarray
    samples: np.ndarray | None = None
    occupied: np.ndarray | None = None

    @property
    def centre(self) -> np.ndarray:
        """``(b,)`` float64, the geometric mean of the edges of each bin; for a bin that starts at 0, half its end."""
        low, high = self.edges[:-1], self.edges[1:]
        return np.where(low > 0, np.sqrt(low * high), high / 2)

    @property
    def covariance(self) -> np.ndarray | None:
        """The jackknife covariance of ``value.ravel()``, or None without regions.

        It is ``(n - 1) / n`` times the sum of squares about the mean of the ``n`` samples that each leave out one
        region with particles.
        """
        if self.samples is None:
            return None
        flat = self.samples.reshape(len(self.samples), -1)
        flat = flat if self.occupied is None else flat[self.occupied]
        apart = flat - flat.mean(axis=0)
        return (len(flat) - 1) / len(flat) * apart.T @ apart

    @property
    def error(self) -> np.ndarray | None:
        """The square root of the covariance's diagonal, in the shape of ``value``; None without regions."""
        covariance = self.covariance
        return None if covariance is None else np.sqrt(np.diag(covariance)).reshape(self.value.shape)


def xi(
    part: Particles | ArrayLike,
    edges: ArrayLike,
    boxsize: ArrayLike | None = None,
    randoms: Particles | ArrayLike | None = None,
    **options: Any,
) -> Correlation:
    """Return the correlation function ``xi(r)``.

    Args:
        part: A particle class with ``pos`` ``(n, d)``, or an array of positions.
        edges: ``(b + 1,)`` ascending edges of the distance, in the unit of the positions.
        boxsize: Periodic length, or one per dimension; 0 or None means open.
        randoms: Random particles in the same volume. None: the box is periodic, and the number of random pairs is
            computed.
        **options: ``weight`` and ``randoms_weight``, ``(n,)``; ``region``, ``randoms_region`` and ``num_regions`` for a
            jackknife; see `jztree.radius.pair_counts`.

    Returns:
        Values ``(b,)``, with the edges and the numbers of pairs.

    Raises:
        TypeError, ValueError: If an argument is invalid.

    Warns:
        RuntimeWarning: If a value is NaN; see `Correlation`.
    """
    found, sample, dims = bin_edges(edges, "edges"), sample_of(part, boxsize, randoms, options), get_pos(part).shape[1]
    if randoms is None:
        check_reach(found, "edges", sample.box.min() / 2, OTHERWISE)
    value, pairs = sample.estimate(found, lambda: _shells(found, dims))
    return _correlation("xi", value, found, pairs, occupied=sample.occupied())


def xi_from_counts(count: ArrayLike, num: int, edges: ArrayLike, boxsize: ArrayLike) -> Correlation:
    """Return `xi` of a periodic box from existing pair counts, for example from many devices.

    Args:
        count: ``(b,)`` integers, counts of `jztree.radius.pair_counts` within one set of particles.
        num: Number of particles in the set.
        edges: ``(b + 1,)``, the same as for the counts.
        boxsize: ``(d,)``, one length per dimension, all positive.

    Returns:
        Values ``(b,)``, with the edges and the numbers of pairs.

    Raises:
        ValueError: If an argument is invalid.
    """
    pairs, found, box = _counted(count, {"edges": edges}, boxsize)
    check_number(num)
    check_reach(found[0], "edges", box.min() / 2)
    return _correlation("xi", _from_counts(pairs, num, _shells(found[0], len(box)), box), found[0], pairs)


def wp_from_counts(
    count: ArrayLike, num: int, edges: ArrayLike, along: ArrayLike, boxsize: ArrayLike, los: int = -1
) -> Correlation:
    """Return `wp` of a periodic box from existing pair counts; see `xi_from_counts`.

    Args:
        count: ``(b, p)`` integers, counted with ``mode="rp_pi"`` along the axis ``los``.
        num: Number of particles.
        edges: ``(b + 1,)`` edges of the distance across the line of sight, the same as for the counts.
        along: ``(p + 1,)`` edges along it, the ``edges_b`` of the counts; the first is 0.
        boxsize: ``(3,)`` lengths, all positive.
        los: The axis of the line of sight.

    Returns:
        Values ``(b,)``, lengths in the unit of the positions.

    Raises:
        TypeError, ValueError: If an argument is invalid.
    """
    pairs, (found, steps), box = _counted(count, {"edges": edges, "along": along}, boxsize)
    check_number(num)
    if len(box) != 3 or los not in range(-3, 3):
        raise ValueError(
            f"boxsize is {box} and los {los!r}; boxsize must have 3 lengths, and los must be from -3 to 2."
        )
    check_reach(found, "edges", np.delete(box, los).min() / 2)
    check_reach(steps, "along", box[los] / 2)
    value = _from_counts(pairs, num, _cylinders(found, steps), box)
    return _correlation("wp", value, found, pairs, 2 * np.diff(steps))


def _counted(count: Any, edges: dict[str, Any], boxsize: Any) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    if isinstance(count, PairCounts):
        raise TypeError("count is a PairCounts; give its attribute count.")
    pairs, box = np.asarray(count), real_numbers(boxsize, "boxsize")
    found = [bin_edges(one, name) for name, one in edges.items()]
    if pairs.shape != tuple(len(one) - 1 for one in found) or box.ndim != 1 or not np.all(box > 0):
        shapes = " and ".join(str(one.shape) for one in found)
        raise ValueError(
            f"counts have shape {pairs.shape}, edges {shapes}, and the box is {boxsize}; give one more edge than "
            "counts, and one positive length per dimension."
        )
    return pairs, found, box


def _from_counts(pairs: np.ndarray, num: int, volume: np.ndarray, box: np.ndarray) -> Estimate:
    """Return the function in cells of the given volume, from pairs of ``num`` particles."""
    num = int(num)  # its square may overflow 32 bits
    reason = f"there {'is 1 particle' if num == 1 else f'are {num} particles'}, but a pair needs 2"
    return natural(pairs, num * (num - 1), volume / np.prod(box), reason)


def _correlation(
    name: str,
    found: Estimate,
    edges: np.ndarray,
    pairs: np.ndarray,
    over: Any = (1.0,),
    option: str = "",
    occupied: np.ndarray | None = None,
) -> Correlation:
    """Build the result from `Estimate.integrated` ``over`` cells. Warn once if values are NaN or cells were joined."""
    text = shortcomings(name, found, edges, option, occupied)
    if text:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    values = found.integrated(np.asarray(over))
    total = pairs.reshape(len(pairs), -1).sum(axis=1)
    samples = None if occupied is None else values[1:]
    return Correlation(edges=edges, value=values[0], pairs=total, samples=samples, occupied=occupied)


def _shells(edges: np.ndarray, dims: int) -> np.ndarray:
    ball = math.pi ** (dims / 2) / math.gamma(dims / 2 + 1)
    return ball * np.diff(edges**dims)


def _cylinders(edges: np.ndarray, along: np.ndarray) -> np.ndarray:
    """Return the volumes of rings around the line of sight, on both sides of a particle."""
    return np.pi * np.diff(edges**2)[:, None] * 2 * np.diff(along)


def wp(
    part: Particles | ArrayLike,
    edges: ArrayLike,
    pi_max: float,
    boxsize: ArrayLike | None = None,
    randoms: Particles | ArrayLike | None = None,
    num_pi: int = 40,
    los: int | str = -1,
    **options: Any,
) -> Correlation:
    """Return the projected correlation function ``wp(rp) = 2 int_0^pi_max xi(rp, pi) dpi`` (Davis & Peebles 1983).

    With randoms, a cell without random pairs is joined to the next cell of its bin that has random pairs, otherwise to
    the last one that has: their counts are added, and ``xi`` is taken as constant over them. A warning names these
    bins.

    Args:
        part, boxsize, randoms: See `xi`, in 3 dimensions.
        edges: ``(b + 1,)`` edges of the distance across the line of sight, in the unit of the positions.
        pi_max: Maximum distance along the line of sight, in the same unit.
        num_pi: The number of equal cells along the line of sight.
        los: The axis of the line of sight. ``"midpoint"`` means from an observer at the origin, and needs randoms.
        **options: See `xi`.

    Returns:
        Values ``(b,)``, lengths in the unit of the positions.

    Raises:
        TypeError, ValueError: If an argument is invalid.

    Warns:
        RuntimeWarning: If a value is NaN, or cells were joined.
    """
    whole_number(num_pi, "num_pi")
    if isinstance(pi_max, bool) or not isinstance(pi_max, (int, float, np.integer, np.floating)):
        raise TypeError(f"pi_max is {pi_max!r}; it must be a number.")
    if not 0 < pi_max < np.inf:
        raise ValueError(f"pi_max is {pi_max}; it must be positive and finite.")
    sample = _in_three(sample_of(part, boxsize, randoms, options), "wp", los)
    found, along = bin_edges(edges, "edges"), np.linspace(0, pi_max, num_pi + 1)
    if randoms is None:
        box, axis = sample.box, int(los)
        check_reach(found, "edges", np.delete(box, axis).min() / 2, OTHERWISE)
        check_reach(along, "pi_max", box[axis] / 2, OTHERWISE)

    options = {"mode": "rp_pi", "edges_b": along, "los": los}
    value, pairs = sample.estimate(found, lambda: _cylinders(found, along), **options)
    return _correlation("wp", value, found, pairs, 2 * np.diff(along), "num_pi", sample.occupied())


def multipoles(
    part: Particles | ArrayLike,
    edges: ArrayLike,
    boxsize: ArrayLike | None = None,
    randoms: Particles | ArrayLike | None = None,
    ells: tuple[int, ...] = (0, 2, 4),
    num_mu: int = 100,
    los: int | str = -1,
    **options: Any,
) -> Correlation:
    """Return multipoles ``(2 l + 1) int_0^1 xi(s, mu) P_l(mu) dmu`` for each even ``l`` of ``ells``.

    Args:
        part, boxsize, randoms: See `xi`, in 3 dimensions.
        edges: ``(b + 1,)`` edges of the distance s, in the unit of the positions.
        ells: Even multipole orders.
        num_mu: The number of equal cells of ``|mu|``. xi is taken as constant in each cell; empty cells are joined, see
            `wp`.
        los: See `wp`.
        **options: See `xi`.

    Returns:
        Values ``(len(ells), b)``, with the edges and the numbers of pairs.

    Raises:
        TypeError, ValueError: If an argument is invalid.

    Warns:
        RuntimeWarning: If a value is NaN, or cells were joined.
    """
    whole_number(num_mu, "num_mu")
    if np.ndim(ells) != 1 or len(ells) == 0 or any(ell not in range(0, 1000, 2) for ell in ells):
        raise ValueError(f"ells are {ells}; they must be one or more even numbers of at least 0, such as (0, 2, 4).")
    sample = _in_three(sample_of(part, boxsize, randoms, options), "multipoles", los)
    found, cosines = bin_edges(edges, "edges"), np.linspace(0, 1, num_mu + 1)
    if randoms is None:
        check_reach(found, "edges", sample.box.min() / 2, OTHERWISE)

    def volume() -> np.ndarray:
        return 4 / 3 * np.pi * np.diff(found**3)[:, None] * np.diff(cosines)

    value, pairs = sample.estimate(found, volume, mode="s_mu", edges_b=cosines, los=los)
    integral = [np.diff(legendre.legval(cosines, legendre.legint([0] * int(ell) + [2 * ell + 1]))) for ell in ells]
    return _correlation("xi(s, mu)", value, found, pairs, np.stack(integral), "num_mu", sample.occupied())


def _in_three(sample: Sample, what: str, los: Any) -> Sample:
    if get_pos(sample.part).shape[1] != 3:
        raise ValueError(f"the particles have {get_pos(sample.part).shape[1]} dimensions, but {what} needs 3.")
    if isinstance(los, str) and los == "midpoint":
        if sample.randoms is None:
            raise ValueError(
                "los is 'midpoint', which needs randoms, because the volume is not a periodic box; give randoms."
            )
    elif los not in range(-3, 3):
        raise ValueError(f"los is {los!r}; it must be the axis of the line of sight, from 0 to 2, or 'midpoint'.")
    return sample


def cube_regions(part: Particles | ArrayLike, lower: ArrayLike, upper: ArrayLike, per_side: int) -> np.ndarray:
    """Return regions for a jackknife: the ``per_side**d`` equal parts of a box.

    Args:
        part: A particle class with ``pos`` ``(n, d)``, or positions.
        lower, upper: ``(d,)`` or numbers, the corners of the box. Particles outside the box get the nearest region;
            rows from ``num`` on get region 0.
        per_side: Number of parts along each side.

    Returns:
        ``(n,)`` int32 region numbers, from 0.

    Raises:
        TypeError, ValueError: If an argument is invalid, or a position is NaN.
    """
    given = np.asarray(part) if isinstance(part, list) else part
    places, num = np.array(get_pos(given), np.float64), int(get_num(given))
    places[num:] = 0
    low, high = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
    side = high - low
    if not (np.all(side > 0) and np.all(np.isfinite(side))):
        raise ValueError(f"the box is from {low} to {high}; both must be finite, and upper must be above lower.")
    if np.isnan(places).any():
        raise ValueError(
            f"row {np.isnan(places).any(axis=1).argmax()} of the positions is NaN, so it has no region; remove it."
        )
    shape = (whole_number(per_side, "per_side"),) * places.shape[1]
    if math.prod(shape) >= 2**31:
        raise ValueError(
            f"{per_side} parts per side give {math.prod(shape)} regions, but int32 can number {2**31 - 1}; use fewer."
        )
    cells = np.floor(np.clip((places - low) / side, 0, 1) * per_side).astype(np.int64)
    regions = np.ravel_multi_index(tuple(np.minimum(cells, per_side - 1).T), shape).astype(np.int32)
    regions[num:] = 0
    return regions


def power_law(found: Correlation, low: float = 0.0, high: float = np.inf) -> tuple[float, float]:
    """Fit a power law ``(r / r0)**-gamma`` to the bins between ``low`` and ``high``.

    This is a least-squares fit of the logarithms, weighted by the jackknife errors if they exist.

    Args:
        found: A correlation function of one distance.
        low, high: Use only bins between these distances, in the unit of the positions.

    Returns:
        ``r0``, in the unit of the positions, and ``gamma``.

    Raises:
        ValueError: If fewer than two bins in this range are positive.
    """
    r, value = found.centre, found.value
    used = (found.edges[:-1] >= low) & (found.edges[1:] <= high) & (value > 0)
    if value.ndim != 1 or used.sum() < 2:
        raise ValueError("a power law needs a function of one distance with at least two positive bins.")
    error = found.error
    weights = np.ones(used.sum()) if error is None else value[used] / np.maximum(error[used], 1e-300)
    slope, height = np.polyfit(np.log(r[used]), np.log(value[used]), 1, w=weights)
    return float(np.exp(height / -slope)), float(-slope)
