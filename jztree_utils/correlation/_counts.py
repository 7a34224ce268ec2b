"""Pair counts of one or two tracers, and the estimate that follows from them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jztree.data import check_no_unit
from jztree.radius import PairCounts

from ._arguments import check_number
from ._estimators import Estimate, Pairs, in_box, pairs_of, with_randoms
from ._totals import Totals, totals_of_number

# The names of sets in messages.
SETS = {"data": "data", "data_b": "second data", "randoms": "randoms", "randoms_b": "second randoms"}
# The sets of each count: the first given set of each tuple.
_OF = {
    "dd": (("data",), ("data_b",)),
    "dr": (("data",), ("randoms_b", "randoms")),
    "rd": (("data_b",), ("randoms",)),
    "rr": (("randoms",), ("randoms_b",)),
}


@dataclass(frozen=True)
class Counts:
    """Valid pair counts, with the totals of their sets.

    Attributes:
        counts: The counts by name: ``dd``, and perhaps ``dr``, ``rd`` and ``rr``.
        sets: The totals by name: ``data``, and perhaps ``data_b``, ``randoms`` and ``randoms_b``.
    """

    counts: dict[str, PairCounts]
    sets: dict[str, Totals]

    @property
    def number(self) -> np.ndarray:
        """The numbers of data pairs."""
        return np.asarray(self.counts["dd"].count)

    def estimate(self, share: np.ndarray) -> Estimate:
        """Return the function in all cells.

        Args:
            share: The volume of each cell around a particle, as a fraction of the box; used without randoms.
        """
        pairs, fault = {name: self._pairs(name) for name in self.counts}, self._fault()
        if "rr" not in pairs:
            return in_box(pairs["dd"], share, fault)
        crosses = [pairs["dr"], pairs.get("rd", pairs["dr"])] if "dr" in pairs else []
        return with_randoms(pairs["dd"], crosses, pairs["rr"], fault)

    def occupied(self) -> np.ndarray | None:
        """Return ``(num_regions,)`` bool, the regions with particles; None without regions."""
        if self.sets["data"].num_regions is None:
            return None
        return np.sum([one.num for one in self.sets.values()], axis=0) > 0

    def _pairs(self, name: str) -> Pairs:
        sets = [self.sets[one] for one in names_of(name, self.sets)]
        every = sets[0].pairs() if len(sets) == 1 else sets[0].sums() * sets[1].sums()
        return pairs_of(self.counts[name], every)

    def _fault(self) -> str:
        """Return the first reason why the sets do not allow an estimate, or an empty text."""
        names = [names_of(count, self.sets) for count in self.counts]
        alone = {one[0] for one in names if len(one) == 1}
        faults = [one.fault(SETS[name], name in alone) for name, one in self.sets.items()]
        return next(filter(None, faults), "")

    def check(self, shape: Sequence[int]) -> None:
        """Raise ValueError unless counts have this shape and the same regions, and match the totals of their sets."""
        for name, one in self.counts.items():
            if np.shape(one.count) != tuple(shape):
                raise ValueError(
                    f"{name} has counts of shape {np.shape(one.count)}, but the edges give {tuple(shape)}; give one "
                    "more edge than counts in each dimension."
                )
            sets = names_of(name, self.sets)
            if (one.weight is not None) != any(self.sets[key].rounding is not None for key in sets):
                held = "no weights" if one.weight is None else "weights"
                raise ValueError(
                    f"{name} has {held}, unlike the totals of {' and '.join(sets)}; give the same weights to "
                    "pair_counts and to totals."
                )
            regions = {None if one.region_count is None else one.region_count.shape[0]}
            if regions != {self.sets[key].num_regions for key in sets}:
                raise ValueError(
                    f"{name} has other regions than the totals of {' and '.join(sets)}; give the same regions and "
                    "num_regions to pair_counts and to totals, for all sets or for none."
                )
        regions = {one.num_regions for one in self.sets.values()}
        if len(regions) > 1:
            raise ValueError(
                f"{' and '.join(self.sets)} have different numbers of regions, or some have none; count all with the "
                "same num_regions, or all without regions."
            )


def names_of(count: str, given: Collection[str]) -> list[str]:
    """Return the names of the set or the two sets of a count, of the given ones."""
    found = [[name for name in names if name in given] for names in _OF[count]]
    return [names[0] for names in found if names]


def counts_of(dd: Any, data: Any, others: dict[str, Any]) -> Counts:
    """Return the counts of the arguments of a function that starts from counts.

    Args:
        dd: Pairs of data.
        data: Totals of the data.
        others: Further counts and totals by name.

    Raises:
        TypeError, ValueError: If an argument is invalid, or one is missing.
    """
    names = [*_OF, *SETS]
    for name in others:
        if name not in names:
            raise TypeError(f"{name} is not an argument; use {', '.join(names)}.")
    given = {"dd": dd, "data": data} | {name: one for name, one in others.items() if one is not None}
    _check_complete(given.keys())
    counts = {name: _as_counts(given[name], name) for name in _OF if name in given}
    return Counts(counts, {name: _as_totals(given[name], name) for name in SETS if name in given})


def _check_complete(given: Any) -> None:
    """Raise ValueError if an argument is missing, or has no effect."""
    needs = {
        "dr": {"rr"},
        "rd": {"dr", "data_b"},
        "rr": {"randoms"},
        "randoms": {"rr"},
        "randoms_b": {"rr", "data_b"},
    }
    if "dr" in given and "data_b" in given:
        needs["dr"] = {"rr", "rd"}
    for name, needed in needs.items():
        missing = [one for one in sorted(needed) if one not in given]
        if name in given and missing:
            raise ValueError(f"{name} needs {' and '.join(missing)}; give {missing[0]} also, or leave out {name}.")


def _as_counts(given: Any, name: str) -> PairCounts:
    if isinstance(given, PairCounts):
        return given
    check_no_unit(given, name)
    numbers = np.asarray(given)
    if numbers.dtype.kind not in "iuf":
        raise TypeError(f"{name} is {given!r:.60}; it must be a PairCounts or an array of numbers of pairs.")
    if not np.all(np.isfinite(numbers) & (numbers >= 0)):
        raise ValueError(f"{name} has a number of pairs that is negative, NaN or infinite; counts must be at least 0.")
    return PairCounts(count=numbers)  # type: ignore[arg-type]


def _as_totals(given: Any, name: str) -> Totals:
    if isinstance(given, Totals):
        return given
    check_number(given, name)
    return totals_of_number(int(given))  # its square may exceed 32 bits
