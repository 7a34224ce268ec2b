"""Pair counts of one or two tracers, and the estimate that follows from them."""

import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from jztree.data import check_no_unit
from jztree.radius import PairCounts

from ._arguments import check_number
from ._estimators import Estimate, Pairs, in_box, pairs_of, with_randoms
from ._totals import Totals, totals_of_number

# The names of sets in messages.
SETS = {"data": "data", "queries": "second data", "randoms": "randoms", "query_randoms": "second randoms"}
# The sets of each count: the first given set of each tuple.
_OF = {
    "dd": (("data",), ("queries",)),
    "dr": (("data",), ("query_randoms", "randoms")),
    "rd": (("queries",), ("randoms",)),
    "rr": (("randoms",), ("query_randoms",)),
}
# The functions that start from counts, by mode.
_FUNCTIONS = {
    "r": "xi_from_counts",
    "theta": "xi_from_counts",
    "rp_pi": "wp_from_counts",
    "s_mu": "multipoles_from_counts",
}
_LONGEST = 80  # characters of a value in a message


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The modes, the bins and the space that a function needs.

    Attributes:
        modes: The modes of `jztree.pair_counts` that the function can use.
        edges: ``(b + 1,)`` edges of the first quantity.
        edges_b: ``(c + 1,)`` edges of the second quantity, or None.
        second: The argument of the function with ``edges_b``.
        dims: Number of dimensions; None means any.
        box: ``(d,)`` lengths of the periodic box, or None with randoms.
        los: The axis of the line of sight; None means any.
    """

    modes: tuple[str, ...]
    edges: np.ndarray
    edges_b: np.ndarray | None = None
    second: str = ""
    dims: int | None = None
    box: np.ndarray | None = None
    los: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the bins."""
        return tuple(len(edges) - 1 for edges in (self.edges, self.edges_b) if edges is not None)


@dataclass(frozen=True)
class Counts:
    """Valid pair counts, with the totals of their sets.

    Attributes:
        counts: The counts by name: ``dd``, and perhaps ``dr``, ``rd`` and ``rr``.
        sets: The totals by name: ``data``, and perhaps ``queries``, ``randoms`` and ``query_randoms``.
    """

    counts: dict[str, PairCounts]
    sets: dict[str, Totals]

    @property
    def number(self) -> np.ndarray:
        """The numbers of data pairs."""
        return np.asarray(self.counts["dd"].count)

    @property
    def is_angular(self) -> bool:
        """Whether the bins contain angles."""
        return self.counts["dd"].mode == "theta"

    @property
    def axis(self) -> int:
        """The axis of the line of sight. The last axis if the counts do not have one."""
        los = self.counts["dd"].los
        return los if isinstance(los, int) else -1

    def estimate(self, share: np.ndarray) -> Estimate:
        """Return the function in all cells.

        Args:
            share: See `in_box`; used without randoms.
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
        return np.sum([totals.num for totals in self.sets.values()], axis=0) > 0

    def _pairs(self, name: str) -> Pairs:
        sets = [self.sets[letter] for letter in names_of(name, self.sets)]
        every = sets[0].pairs() if len(sets) == 1 else sets[0].sums() * sets[1].sums()
        return pairs_of(self.counts[name], every)

    def _fault(self) -> str:
        """Return the first reason why the sets do not allow an estimate, or an empty text."""
        names = [names_of(count, self.sets) for count in self.counts]
        alone = {letters[0] for letters in names if len(letters) == 1}
        faults = [totals.fault(SETS[name], name in alone) for name, totals in self.sets.items()]
        return next(filter(None, faults), "")

    def check(self, layout: Layout) -> None:
        """Raise ValueError unless the counts have this layout, and match each other and the totals of their sets."""
        modes = {pairs.mode for pairs in self.counts.values() if pairs.mode is not None}
        if len(modes) > 1:
            raise ValueError(
                f"the counts have different modes, {' and '.join(sorted(modes))}; count all with one mode."
            )
        for name, pairs in self.counts.items():
            sets = names_of(name, self.sets)
            _check_layout(name, pairs, layout)
            _check_second_set(name, pairs, sets)
            self._check_columns(name, pairs, sets)
        self._check_space(layout)
        regions = {total.num_regions for total in self.sets.values()}
        if len(regions) > 1:
            raise ValueError(
                f"{' and '.join(self.sets)} have different numbers of regions, or some have none; count all with the "
                "same num_regions, or all without regions."
            )

    def _check_columns(self, name: str, pairs: PairCounts, sets: list[str]) -> None:
        """Raise ValueError unless the counts have weights and regions if the totals of their sets have them."""
        if (pairs.weight is not None) != any(self.sets[key].rounding is not None for key in sets):
            held = "no weights" if pairs.weight is None else "weights"
            raise ValueError(
                f"{name} has {held}, unlike the totals of {' and '.join(sets)}; give the same weights to "
                "pair_counts and to totals."
            )
        regions = {None if pairs.region_count is None else pairs.region_count.shape[0]}
        if regions != {self.sets[key].num_regions for key in sets}:
            raise ValueError(
                f"{name} has other regions than the totals of {' and '.join(sets)}; give the same regions and "
                "num_regions to pair_counts and to totals, for all sets or for none."
            )

    def _check_space(self, layout: Layout) -> None:
        """Raise ValueError unless dimensions, box and line of sight of counts, totals and layout agree."""
        boxes = {name: np.asarray(pairs.boxsize) for name, pairs in self.counts.items() if pairs.boxsize is not None}
        dims = {name: len(box) for name, box in boxes.items()}
        dims |= {name: total.dims for name, total in self.sets.items() if total.dims is not None}
        dims |= {} if layout.box is None else {"boxsize": len(layout.box)}
        dims |= {} if layout.dims is None else {"the function": layout.dims}
        _check_equal("numbers of dimensions", dims, operator.eq)
        boxes |= {} if layout.box is None else {"boxsize": layout.box}
        _check_equal("boxes", boxes, _agree)
        sights: dict[str, Any] = {name: pairs.los for name, pairs in self.counts.items() if pairs.los is not None}
        if layout.los is not None:
            sights["los"] = layout.los % 3
        _check_equal("lines of sight", sights, operator.eq)


def _check_layout(name: str, pairs: PairCounts, layout: Layout) -> None:
    """Raise ValueError unless the counts have the modes and the bins of the layout."""
    if pairs.mode is not None and pairs.mode not in layout.modes:
        raise ValueError(
            f"{name} was counted with mode={pairs.mode!r}, but this function needs mode={layout.modes[0]!r}; use "
            f"{_FUNCTIONS[pairs.mode]}, or count again."
        )
    if np.shape(pairs.count) != layout.shape:
        raise ValueError(
            f"{name} has counts of shape {np.shape(pairs.count)}, but the edges give {layout.shape}; give one more "
            "edge than counts in each dimension."
        )
    for counted, edges, argument in (
        (pairs.edges, layout.edges, "edges"),
        (pairs.edges_b, layout.edges_b, layout.second),
    ):
        if counted is not None and edges is not None and not _agree(np.asarray(counted), edges):
            raise ValueError(
                f"{name} was counted with the edges {_short(np.asarray(counted))}, but {argument} are {_short(edges)}; "
                "give the edges of the counts."
            )


def _check_second_set(name: str, pairs: PairCounts, sets: list[str]) -> None:
    """Raise ValueError if counts within a set are given for two sets, or the reverse."""
    if pairs.cross is None or pairs.cross == (len(sets) == 2):
        return
    if pairs.cross:
        missing = next(key for keys in _OF[name] for key in keys if key not in sets)
        raise ValueError(f"{name} has pairs of two sets, but the totals {missing} of the second set are missing.")
    raise ValueError(
        f"{name} has pairs within one set, but there are totals of {' and '.join(sets)}; count the pairs of both, "
        "with the second set as queries."
    )


def _check_equal(quantity: str, values: dict[str, Any], agree: Callable[[Any, Any], bool]) -> None:
    """Raise ValueError unless all values agree with the first."""
    first = next(iter(values), "")
    for name, value in values.items():
        if not agree(values[first], value):
            raise ValueError(
                f"{first} and {name} have different {quantity}, {_short(values[first])} and {_short(value)}; use the "
                "same for all counts, totals and arguments."
            )


def _agree(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether numbers are equal apart from rounding to float32."""
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-6, atol=0)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def names_of(count: str, letters: Collection[str]) -> list[str]:
    """Return the names of the set or the two sets of a count, of the given ones."""
    result = [[name for name in names if name in letters] for names in _OF[count]]
    return [names[0] for names in result if names]


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
    arguments = {"dd": dd, "data": data} | {name: value for name, value in others.items() if value is not None}
    _check_complete(arguments.keys())
    counts = {name: _as_counts(arguments[name], name) for name in _OF if name in arguments}
    return Counts(counts, {name: _as_totals(arguments[name], name) for name in SETS if name in arguments})


def _check_complete(arguments: Any) -> None:
    """Raise ValueError if an argument is missing, or has no effect."""
    needs = {
        "dr": {"rr"},
        "rd": {"dr", "queries"},
        "rr": {"randoms"},
        "randoms": {"rr"},
        "query_randoms": {"rr", "queries"},
    }
    if "dr" in arguments and "queries" in arguments:
        needs["dr"] = {"rr", "rd"}
    for name, needed in needs.items():
        missing = [argument for argument in sorted(needed) if argument not in arguments]
        if name in arguments and missing:
            raise ValueError(f"{name} needs {' and '.join(missing)}; give {missing[0]} also, or leave out {name}.")


def _as_counts(counts: Any, name: str) -> PairCounts:
    if isinstance(counts, PairCounts):
        return counts
    check_no_unit(counts, name)
    numbers = np.asarray(counts)
    if numbers.dtype.kind not in "iuf":
        raise TypeError(f"{name} is {counts!r:.60}; it must be a PairCounts or an array of numbers of pairs.")
    if not np.all(np.isfinite(numbers) & (numbers >= 0)):
        raise ValueError(f"{name} has a number of pairs that is negative, NaN or infinite; counts must be at least 0.")
    return PairCounts(count=numbers)  # type: ignore[arg-type]


def _as_totals(sums: Any, name: str) -> Totals:
    if isinstance(sums, Totals):
        return sums
    check_number(sums, name)
    return totals_of_number(int(sums))  # its square may exceed 32 bits
