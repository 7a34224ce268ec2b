"""Two-point correlation functions: the excess of particle pairs at a distance over a random distribution.

All functions use the exact counts of `jztree.radius.pair_counts`. In a periodic box the number of random pairs is
known, and the estimator is ``DD / RR - 1`` (Peebles & Hauser 1974, ApJS 28, 19). Otherwise it needs random particles
that fill the same volume, and is ``(DD - 2 DR + RR) / RR`` (Landy & Szalay 1993, ApJ 412, 64), with each count divided
by the total number of such pairs. Leaving out the particles of one region at a time gives a jackknife covariance
(Norberg et al. 2009, MNRAS 396, 19).

Everything except the counts uses NumPy in float64.
"""

import math
import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.polynomial import legendre

from jztree.data import get_num, get_pos
from jztree.radius import PairCounts, pair_counts

from ._pair_estimators import Estimate, Weights, landy_szalay, natural, shortcomings

__all__ = ["Correlation", "cube_regions", "multipoles", "power_law", "wp", "wp_from_counts", "xi", "xi_from_counts"]


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """A correlation function in bins.

    edges: ``(b + 1,)`` edges of the distance: r, s, or rp. value: ``(b,)``, or ``(l, b)`` for multipoles. pairs:
        ``(b,)`` int64, data pairs in each bin, in both orders. samples: ``(num_regions, *value.shape)``, the function
        with each region left out, or None. occupied: ``(num_regions,)``, which regions hold particles, or None.

    An unknown value is NaN. This affects a bin without random pairs. It affects all bins if a set has fewer than two
    particles or weights that sum to 0, or if no bin has a pair of data and randoms. The function then warns once, with
    the bins and the reason.
    """

    edges: np.ndarray
    value: np.ndarray
    pairs: np.ndarray
    samples: np.ndarray | None = None
    occupied: np.ndarray | None = None

    @property
    def centre(self) -> np.ndarray:
        """``(b,)``, the geometric mean of the edges of each bin; for a bin that begins at 0, half its end."""
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


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """The particles to correlate, with the options of `pair_counts`."""

    part: Any
    randoms: Any
    boxsize: Any
    weight: Any
    randoms_weight: Any
    region: Any
    randoms_region: Any
    num_regions: int | None

    def __post_init__(self) -> None:
        dims = get_pos(self.part).shape[1]
        box = _real(0.0 if self.boxsize is None else self.boxsize, "boxsize")
        if box.shape not in ((), (dims,)):
            raise ValueError(f"boxsize must be one length or {dims}; its shape is {box.shape}.")
        if not (np.all(np.isfinite(box)) and np.all(box >= 0)):
            raise ValueError(f"boxsize is {self.boxsize}; lengths must be finite and positive, or 0 where open.")
        if self.randoms is None and not np.all(box > 0):
            raise ValueError("without randoms, the box must be periodic in all dimensions; give boxsize, or randoms.")
        if self.randoms is None and (self.region is not None or self.num_regions is not None):
            raise ValueError(
                "what random pairs there are without a region is not known; give randoms, with randoms_region."
            )
        if self.randoms is None and (self.randoms_weight is not None or self.randoms_region is not None):
            raise ValueError("randoms_weight and randoms_region are of randoms, which were not given.")
        if len({one is None for one in (self.region, self.randoms_region, self.num_regions)}) > 1:
            raise ValueError("a jackknife takes region, randoms_region and num_regions, all three of them.")

    @property
    def box(self) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.boxsize, np.float64), (get_pos(self.part).shape[1],))

    def estimate(self, edges: np.ndarray, volume: Any, **bins: Any) -> tuple[Estimate, np.ndarray]:
        """Return the correlation in all cells, and the numbers of data pairs.

        volume: a function without arguments that returns the volume of each cell; called if randoms is None.
        """
        options = {"boxsize": self.boxsize, "num_regions": self.num_regions} | bins
        data = Weights(self.part, self.weight, self.region, "data")
        dd = _counts(self.part, edges, weight=self.weight, region=self.region, **options)
        number = np.asarray(dd.count)
        if self.randoms is None:
            pairs = number if dd.weight is None else np.asarray(dd.weight)
            return natural(pairs, data.pairs(), volume() / np.prod(self.box), data.fault()), number
        # Count these first: the errors distinguish between data and randoms.
        dr = _counts(
            self.part,
            edges,
            part_b=self.randoms,
            weight=self.weight,
            weight_b=self.randoms_weight,
            region=self.region,
            region_b=self.randoms_region,
            **options,
        )
        rr = _counts(self.randoms, edges, weight=self.randoms_weight, region=self.randoms_region, **options)
        randoms = Weights(self.randoms, self.randoms_weight, self.randoms_region, "randoms")
        return landy_szalay(dd, dr, rr, data, randoms, self.num_regions or 0), number

    def occupied(self) -> np.ndarray | None:
        """Return ``(num_regions,)``, which regions hold particles; None without regions."""
        if self.num_regions is None:
            return None
        both = ((self.part, self.region), (self.randoms, self.randoms_region))
        regions = np.concatenate([np.asarray(region)[: int(get_num(part))] for part, region in both])
        return np.bincount(regions, minlength=self.num_regions) > 0


# The arguments of `pair_counts` for the randoms, and their names here.
_NAMES = {"part_b": "randoms", "weight_b": "randoms_weight", "region_b": "randoms_region"}


def _counts(part: Any, edges: np.ndarray, **options: Any) -> PairCounts:
    """Call `pair_counts`, with errors that name the arguments of this module.

    The call is not compiled as a whole: JAX would turn the ValueError for an invalid number into a JaxRuntimeError.
    """
    try:
        return pair_counts(part, edges, **options)
    except (TypeError, ValueError) as error:
        raise type(error)(re.sub("|".join(_NAMES), lambda found: _NAMES[found[0]], str(error))) from error


_OTHERWISE = ", or give randoms"


def _real(value: Any, name: str) -> np.ndarray:
    """Return ``value`` as float64. Raises TypeError unless it consists of real numbers."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} is {value!r}; it must be a real number or an array of such.")
    return array.astype(np.float64)


def _whole(value: Any, name: str) -> int:
    """Return ``value``. Raises TypeError or ValueError unless it is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; it must be an integer.")
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1.")
    return int(value)


def _edges(edges: Any, name: str) -> np.ndarray:
    """Return bin edges as float64. Raises TypeError or ValueError if they do not ascend from 0 or more."""
    found = _real(edges, name)
    if found.ndim != 1 or len(found) < 2:
        raise ValueError(
            f"{name} must be two ascending numbers or more, (b + 1,) for b bins; their shape is {found.shape}."
        )
    if not (found[0] >= 0 and np.all(np.diff(found) > 0)):
        text = " ".join(str(found).split())
        text = text if len(text) <= 120 else f"{text[:110]} ..."
        raise ValueError(f"{name} are {text}; they must be ascending numbers from 0 on.")
    return found


def _check_reach(edges: np.ndarray, name: str, longest: float, otherwise: str = "") -> None:
    """Raise ValueError if spheres with these radii would meet their periodic images."""
    if edges.max() > longest:
        raise ValueError(
            f"{name} reaches {edges.max():g}, more than half the box, {longest:g}, where the number of random pairs is "
            f"not that of spheres; end before{otherwise}."
        )


def _sample(part: Any, boxsize: Any, randoms: Any, others: dict[str, Any]) -> _Sample:
    names = ("weight", "randoms_weight", "region", "randoms_region", "num_regions")
    for name in others:
        if name not in names:
            raise TypeError(f"{name} is no option of correlation functions; they are {', '.join(names)}.")
    return _Sample(part=part, boxsize=boxsize, randoms=randoms, **{name: others.get(name) for name in names})


def xi(part: Any, edges: Any, boxsize: Any = None, randoms: Any = None, **options: Any) -> Correlation:
    """Return the correlation function ``xi(r)``.

    part: a particle class with ``pos`` ``(n, d)``, or an array of positions. edges: ``(b + 1,)`` ascending.
    boxsize: periodic length, or one per dimension; 0 or None is open.
    randoms: random particles in the same volume. None: the box is periodic, and the number of random pairs is computed.
    options: ``weight`` and ``randoms_weight``, ``(n,)``; ``region``, ``randoms_region`` and ``num_regions`` for a
        jackknife; see `jztree.radius.pair_counts`.

    Raises TypeError or ValueError for invalid arguments. Warns if a value is NaN; see `Correlation`.
    """
    found, sample, dims = _edges(edges, "edges"), _sample(part, boxsize, randoms, options), get_pos(part).shape[1]
    if randoms is None:
        _check_reach(found, "edges", sample.box.min() / 2, _OTHERWISE)
    value, pairs = sample.estimate(found, lambda: _shells(found, dims))
    return _correlation("xi", value, found, pairs, occupied=sample.occupied())


def xi_from_counts(count: Any, num: int, edges: Any, boxsize: Any) -> Correlation:
    """Return `xi` of a periodic box from existing pair counts, for example from many devices.

    count: ``(b,)``, counts of `jztree.radius.pair_counts` within one set of particles. num: number of these particles.
        edges: ``(b + 1,)``, the same as for the counts. boxsize: ``(d,)``, one length per dimension, all positive.

    Raises ValueError for invalid arguments.
    """
    pairs, found, box = _counted(count, {"edges": edges}, boxsize)
    _check_number(num)
    _check_reach(found[0], "edges", box.min() / 2)
    return _correlation("xi", _from_counts(pairs, num, _shells(found[0], len(box)), box), found[0], pairs)


def wp_from_counts(count: Any, num: int, edges: Any, along: Any, boxsize: Any, los: int = -1) -> Correlation:
    """Return `wp` of a periodic box from existing pair counts; see `xi_from_counts`.

    count: ``(b, p)``, counted with ``mode="rp_pi"`` along the axis ``los``. along: ``(p + 1,)``, its ``edges_b``, from
        0 on. boxsize: ``(3,)``.
    """
    pairs, (found, steps), box = _counted(count, {"edges": edges, "along": along}, boxsize)
    _check_number(num)
    if len(box) != 3 or los not in range(-3, 3):
        raise ValueError(f"boxsize {boxsize} and los {los!r} must be of 3 dimensions.")
    _check_reach(found, "edges", np.delete(box, los).min() / 2)
    _check_reach(steps, "along", box[los] / 2)
    value = _from_counts(pairs, num, _cylinders(found, steps), box)
    return _correlation("wp", value, found, pairs, 2 * np.diff(steps))


def _counted(count: Any, edges: dict[str, Any], boxsize: Any) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    if isinstance(count, PairCounts):
        raise TypeError("count is a PairCounts; give its count.")
    pairs, box = np.asarray(count), _real(boxsize, "boxsize")
    found = [_edges(one, name) for name, one in edges.items()]
    if pairs.shape != tuple(len(one) - 1 for one in found) or box.ndim != 1 or not np.all(box > 0):
        shapes = " and ".join(str(one.shape) for one in found)
        raise ValueError(
            f"counts have shape {pairs.shape}, edges {shapes}, and the box is {boxsize}; there must be one edge more "
            "than counts, and one positive length a dimension."
        )
    return pairs, found, box


def _check_number(num: Any) -> None:
    if np.ndim(num) or not np.issubdtype(np.asarray(num).dtype, np.integer):
        raise TypeError(f"num is {num!r}; it is the number of particles, an integer.")
    if num < 0:
        raise ValueError(f"num is {num}; it is the number of particles, at least 0.")


def _from_counts(pairs: np.ndarray, num: int, volume: np.ndarray, box: np.ndarray) -> Estimate:
    """Return the function in cells of the given volume, from pairs of ``num`` particles."""
    num = int(num)  # its square may overflow 32 bits
    reason = f"there {'is 1 particle' if num == 1 else f'are {num} particles'}, and a pair needs 2"
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
    """Build the result. Warn once if values are NaN or cells were joined. over: see `Estimate.integrated`."""
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
    """Return the volumes of rings around the line of sight, in front of and behind a particle."""
    return np.pi * np.diff(edges**2)[:, None] * 2 * np.diff(along)


def wp(
    part: Any,
    edges: Any,
    pi_max: float,
    boxsize: Any = None,
    randoms: Any = None,
    num_pi: int = 40,
    los: int | str = -1,
    **options: Any,
) -> Correlation:
    """Return the projected correlation function ``wp(rp) = 2 int_0^pi_max xi(rp, pi) dpi`` (Davis & Peebles 1983).

    part, boxsize, randoms, options: see `xi`, in 3 dimensions. edges: ``(b + 1,)`` edges of the distance across the
        line of sight. num_pi: the number of equal cells along it. los: its axis, or ``"midpoint"``, from an observer at
        the origin, with randoms.

    With randoms, a cell without random pairs is joined to the next cell of its bin that has some, or else to the last
    one: their counts are added, and ``xi`` is taken as constant over them. A warning names these bins.

    Returns lengths. Raises and warns like `xi`.
    """
    _whole(num_pi, "num_pi")
    if isinstance(pi_max, bool) or not isinstance(pi_max, (int, float, np.integer, np.floating)):
        raise TypeError(f"pi_max is {pi_max!r}; it must be a number.")
    if not 0 < pi_max < np.inf:
        raise ValueError(f"pi_max is {pi_max}; it must be positive and finite.")
    sample = _in_three(_sample(part, boxsize, randoms, options), "wp", los)
    found, along = _edges(edges, "edges"), np.linspace(0, pi_max, num_pi + 1)
    if randoms is None:
        box, axis = sample.box, int(los)
        _check_reach(found, "edges", np.delete(box, axis).min() / 2, _OTHERWISE)
        _check_reach(along, "pi_max", box[axis] / 2, _OTHERWISE)

    options = {"mode": "rp_pi", "edges_b": along, "los": los}
    value, pairs = sample.estimate(found, lambda: _cylinders(found, along), **options)
    return _correlation("wp", value, found, pairs, 2 * np.diff(along), "num_pi", sample.occupied())


def multipoles(
    part: Any,
    edges: Any,
    boxsize: Any = None,
    randoms: Any = None,
    ells: tuple[int, ...] = (0, 2, 4),
    num_mu: int = 100,
    los: int | str = -1,
    **options: Any,
) -> Correlation:
    """Return multipoles ``(2 l + 1) int_0^1 xi(s, mu) P_l(mu) dmu`` for each even ``l`` of ``ells``.

    part, boxsize, randoms, options: see `xi`, in 3 dimensions. edges: ``(b + 1,)`` edges of the distance s. num_mu: the
        number of equal cells of ``|mu|``. xi is taken as constant in each cell; empty cells are joined, see `wp`. los:
        see `wp`.

    Returns values ``(len(ells), b)``. Raises and warns like `xi`.
    """
    _whole(num_mu, "num_mu")
    if np.ndim(ells) != 1 or len(ells) == 0 or any(ell not in range(0, 1000, 2) for ell in ells):
        raise ValueError(f"ells are {ells}; they must be one or more even numbers from 0 on, such as (0, 2, 4).")
    sample = _in_three(_sample(part, boxsize, randoms, options), "multipoles", los)
    found, cosines = _edges(edges, "edges"), np.linspace(0, 1, num_mu + 1)
    if randoms is None:
        _check_reach(found, "edges", sample.box.min() / 2, _OTHERWISE)

    def volume() -> np.ndarray:
        return 4 / 3 * np.pi * np.diff(found**3)[:, None] * np.diff(cosines)

    value, pairs = sample.estimate(found, volume, mode="s_mu", edges_b=cosines, los=los)
    integral = [np.diff(legendre.legval(cosines, legendre.legint([0] * int(ell) + [2 * ell + 1]))) for ell in ells]
    return _correlation("xi(s, mu)", value, found, pairs, np.stack(integral), "num_mu", sample.occupied())


def _in_three(sample: _Sample, what: str, los: Any) -> _Sample:
    if get_pos(sample.part).shape[1] != 3:
        raise ValueError(f"{what} is for particles in 3 dimensions; these have {get_pos(sample.part).shape[1]}.")
    if isinstance(los, str) and los == "midpoint":
        if sample.randoms is None:
            raise ValueError("los is 'midpoint', which is for volumes that are not a periodic box; give randoms.")
    elif los not in range(-3, 3):
        raise ValueError(f"los is {los!r}; it is the axis of the line of sight, from 0 to 2, or 'midpoint'.")
    return sample


def cube_regions(part: Any, lower: Any, upper: Any, per_side: int) -> np.ndarray:
    """Return regions for a jackknife, ``(n,)`` int32: the ``per_side**d`` equal parts of a box.

    part: a particle class with ``pos`` ``(n, d)``, or positions. lower, upper: ``(d,)`` or numbers, the corners of the
        box. Particles outside the box get the nearest region; rows from ``num`` on get region 0.

    Raises TypeError or ValueError for invalid arguments, and for NaN positions.
    """
    given = np.asarray(part) if isinstance(part, list) else part
    places, num = np.array(get_pos(given), np.float64), int(get_num(given))
    places[num:] = 0
    low, side = np.asarray(lower, np.float64), np.asarray(upper, np.float64) - lower
    if not (np.all(side > 0) and np.all(np.isfinite(side))):
        raise ValueError(f"the box is from {lower} to {upper}; upper must be above lower, and both finite.")
    if np.isnan(places).any():
        raise ValueError(f"row {np.isnan(places).any(axis=1).argmax()} of the positions is NaN; it is in no region.")
    shape = (_whole(per_side, "per_side"),) * places.shape[1]
    if math.prod(shape) >= 2**31:
        raise ValueError(f"{per_side} parts a side are {math.prod(shape)} regions, more than int32 can number.")
    cells = np.floor(np.clip((places - low) / side, 0, 1) * per_side).astype(np.int64)
    regions = np.ravel_multi_index(tuple(np.minimum(cells, per_side - 1).T), shape).astype(np.int32)
    regions[num:] = 0
    return regions


def power_law(found: Correlation, low: float = 0.0, high: float = np.inf) -> tuple[float, float]:
    """Fit a power law ``(r / r0)**-gamma`` to the bins between ``low`` and ``high``; return ``r0`` and ``gamma``.

    This is a least-squares fit of the logarithms, weighted by the jackknife errors if they exist.

    Raises ValueError if fewer than two of these bins are positive.
    """
    r, value = found.centre, found.value
    used = (found.edges[:-1] >= low) & (found.edges[1:] <= high) & (value > 0)
    if value.ndim != 1 or used.sum() < 2:
        raise ValueError("a power law takes a function of one distance with two positive bins at least.")
    error = found.error
    weights = np.ones(used.sum()) if error is None else value[used] / np.maximum(error[used], 1e-300)
    slope, height = np.polyfit(np.log(r[used]), np.log(value[used]), 1, w=weights)
    return float(np.exp(height / -slope)), float(-slope)
