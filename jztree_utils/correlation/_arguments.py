"""The arguments of correlation functions, and the counts of their pairs."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from jztree.data import get_num, get_pos
from jztree.radius import PairCounts, pair_counts

from ._estimators import Estimate, Weights, landy_szalay, natural

OTHERWISE = ", or give randoms"


def real_numbers(value: Any, name: str) -> np.ndarray:
    """Return ``value`` as float64. Raises TypeError unless it is a real number or an array of real numbers."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} is {value!r}; it must be a real number or an array of real numbers.")
    return array.astype(np.float64)


def whole_number(value: Any, name: str) -> int:
    """Return ``value``. Raises TypeError or ValueError unless it is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; it must be an integer.")
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1.")
    return int(value)


def bin_edges(edges: Any, name: str) -> np.ndarray:
    """Return bin edges as float64. Raises TypeError or ValueError if they do not ascend from 0 or more."""
    found = real_numbers(edges, name)
    if found.ndim != 1 or len(found) < 2:
        raise ValueError(
            f"{name} have shape {found.shape}; they must be two or more ascending numbers, (b + 1,) for b bins."
        )
    if not (found[0] >= 0 and np.all(np.diff(found) > 0)):
        text = " ".join(str(found).split())
        text = text if len(text) <= 120 else f"{text[:110]} ..."
        raise ValueError(f"{name} are {text}; they must be ascending numbers of at least 0.")
    return found


def check_reach(edges: np.ndarray, name: str, longest: float, otherwise: str = "") -> None:
    """Raise ValueError if spheres with these radii would meet their periodic images."""
    if edges.max() > longest:
        raise ValueError(
            f"{name} reaches {edges.max():g}, but the number of random pairs is known only up to half the box, "
            f"{longest:g}; end there or before{otherwise}."
        )


def check_number(num: Any) -> None:
    """Raise TypeError or ValueError unless ``num`` is an integer of at least 0."""
    if np.ndim(num) or not np.issubdtype(np.asarray(num).dtype, np.integer):
        raise TypeError(f"num is {num!r}; it must be the number of particles, an integer.")
    if num < 0:
        raise ValueError(f"num is {num}; it must be the number of particles, at least 0.")


@dataclass(frozen=True, kw_only=True)
class Sample:
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
        box = real_numbers(0.0 if self.boxsize is None else self.boxsize, "boxsize")
        if box.shape not in ((), (dims,)):
            raise ValueError(
                f"boxsize has shape {box.shape}; it must be one length, or {dims} lengths, one per dimension."
            )
        if not (np.all(np.isfinite(box)) and np.all(box >= 0)):
            raise ValueError(
                f"boxsize is {self.boxsize}; lengths must be finite and positive, or 0 for open dimensions."
            )
        if self.randoms is None and not np.all(box > 0):
            raise ValueError("without randoms, the box must be periodic in every dimension; give boxsize, or randoms.")
        if self.randoms is None and (self.region is not None or self.num_regions is not None):
            raise ValueError(
                "without randoms, the number of random pairs outside a region is unknown; give randoms and "
                "randoms_region."
            )
        if self.randoms is None and (self.randoms_weight is not None or self.randoms_region is not None):
            raise ValueError(
                "randoms_weight or randoms_region were given without randoms; give randoms, or leave both out."
            )
        if len({one is None for one in (self.region, self.randoms_region, self.num_regions)}) > 1:
            raise ValueError("a jackknife needs region, randoms_region and num_regions; give all three, or none.")

    @property
    def box(self) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.boxsize, np.float64), (get_pos(self.part).shape[1],))

    def estimate(self, edges: np.ndarray, volume: Any, **bins: Any) -> tuple[Estimate, np.ndarray]:
        """Return the correlation in all cells, and the numbers of data pairs.

        Args:
            edges: ``(b + 1,)`` edges of the distance.
            volume: A function without arguments that returns the volume of each cell; called if randoms is None.
            **bins: Further options of `pair_counts`.
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
        """Return ``(num_regions,)`` bool, the regions with particles; None without regions."""
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


def sample_of(part: Any, boxsize: Any, randoms: Any, others: dict[str, Any]) -> Sample:
    """Check the arguments of a correlation function. Raises TypeError or ValueError if one is invalid."""
    names = ("weight", "randoms_weight", "region", "randoms_region", "num_regions")
    for name in others:
        if name not in names:
            raise TypeError(f"{name} is not an option of correlation functions; use {', '.join(names)}.")
    return Sample(part=part, boxsize=boxsize, randoms=randoms, **{name: others.get(name) for name in names})
