"""Particles of one or two tracers with their randoms, and the counts of their pairs."""

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from jztree.data import get_num, get_pos
from jztree.radius import PairCounts, pair_counts

from .._arrays import from_table, full_precision
from ..progress import progress
from ._arguments import axis_of, real_numbers
from ._counts import SETS, Counts, counts_of, names_of
from ._progress import counting
from ._regions import BoxParts, parts_of
from ._totals import Totals, totals

# The arguments of `jztree.pair_counts` for the second set.
_SECOND = ("queries", "query_weights", "query_regions")
# The arguments of each set: its particles, weights and regions.
_SETS = {
    "data": ("part", "weights", "regions"),
    "queries": ("queries", "query_weights", "query_regions"),
    "randoms": ("randoms", "random_weights", "random_regions"),
    "query_randoms": ("query_randoms", "query_random_weights", "query_random_regions"),
}
_FLAGS = ("separations", "progress")
_NAMES = [name for names in _SETS.values() for name in names]
_NUMBER_OPTIONS = ("num_regions", "per_side", "estimator")
_OPTIONS = [*(name for name in _NAMES if name not in ("part", "randoms")), *_NUMBER_OPTIONS, *_FLAGS]
_ESTIMATORS = ("landy_szalay", "natural")


class _Set(NamedTuple):
    """A set of particles, with the names of the arguments."""

    part: Any
    weight: Any
    region: Any
    names: tuple[str, str, str]

    @property
    def num(self) -> int:
        return int(get_num(self.part))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The particles to correlate, with the options of the functions.

    Attributes:
        sets: The sets by name; see `Counts`.
        boxsize: The box of the user.
        num_regions: Number of regions, or None.
        per_side: Number of parts of the box per side, 1 without them.
        natural: Whether to use the natural estimator.
        separations: Whether to compute mean separations.
        progress: Whether to report progress.
    """

    sets: dict[str, _Set]
    boxsize: Any
    num_regions: int | None
    per_side: int
    natural: bool
    separations: bool
    progress: bool

    @property
    def dims(self) -> int:
        return int(get_pos(self.sets["data"].part).shape[1])

    @property
    def box(self) -> np.ndarray | None:
        """The box lengths without randoms, otherwise None."""
        if "randoms" in self.sets:
            return None
        return np.broadcast_to(np.asarray(self.boxsize, np.float64), (self.dims,))

    @property
    def parts(self) -> BoxParts | None:
        """The parts of the box without randoms, otherwise None."""
        return None if self.box is None else BoxParts(self.box, self.per_side)

    def counts(self, edges: np.ndarray, **bins: Any) -> Counts:
        """Count all pairs that the estimator needs.

        Args:
            edges: ``(b + 1,)`` edges of the distance.
            **bins: Further options of `jztree.pair_counts`.
        """
        with full_precision(*(particles.part for particles in self.sets.values())) as parts:
            pairs = zip(self.sets.items(), parts, strict=True)
            sets = {name: particles._replace(part=part) for (name, particles), part in pairs}
            return replace(self, sets=sets)._counts(edges, bins)

    def _counts(self, edges: np.ndarray, bins: dict[str, Any]) -> Counts:
        options = {"boxsize": self.boxsize, "num_regions": self.num_regions} | bins
        sets, result = {name: names_of(name, self.sets) for name in self._needed()}, {}
        work = {name: self.sets[letters[0]].num * self.sets[letters[-1]].num for name, letters in sets.items()}
        quiet = not self.progress
        with progress("count pairs", sum(work.values()), "possible pairs", quiet=quiet) as advance:
            for name, of in sets.items():
                task = f"count pairs of {' and '.join(SETS[letter] for letter in of)}"
                separations = self.separations and name == "dd"
                particles = self.sets[of[0]].num * (1 + separations)  # the kernel sums separations in a second run
                with counting(task, work[name], particles, advance, quiet=quiet):
                    result[name] = _counted(
                        [self.sets[letter] for letter in of], edges, options | {"separations": separations}
                    )
        sums = {name: self._totals(particles) for name, particles in self.sets.items()}
        dd, data = result.pop("dd"), sums.pop("data")
        return counts_of(dd, data, result | sums)

    def _needed(self) -> list[str]:
        """Return the names of the counts that the estimator needs."""
        if "randoms" not in self.sets:
            return ["dd"]
        crosses = ["dr", "rd"] if "queries" in self.sets else ["dr"]
        return ["dd", *([] if self.natural else crosses), "rr"]

    def _totals(self, particles: _Set) -> Totals:
        return totals(particles.part, particles.weight, particles.region, self.num_regions)


def sample_of(part: Any, boxsize: Any, randoms: Any, others: dict[str, Any]) -> Sample:
    """Check the arguments of a correlation function. Raises TypeError or ValueError if one is invalid."""
    for name in others:
        if name not in _OPTIONS:
            raise TypeError(f"{name} is not an option of correlation functions; use {', '.join(_OPTIONS)}.")
    others = {name: from_table(value, name) for name, value in others.items()}
    part, randoms = from_table(part, "part"), from_table(randoms, "randoms")
    arguments = {name: others.get(name) for name in _NAMES} | {"part": part, "randoms": randoms}
    num_regions, estimator = others.get("num_regions"), others.get("estimator", "landy_szalay")
    for name in _FLAGS:
        if not isinstance(others.get(name, False), (bool, np.bool_)):
            raise TypeError(f"{name} is {others[name]!r}; it must be True or False.")
    _check_sets(arguments)
    _check_box(part, boxsize, randoms is None)
    _check_regions(arguments, num_regions)
    if estimator not in _ESTIMATORS:
        raise ValueError(f"estimator is {estimator!r}; it must be one of {', '.join(map(repr, _ESTIMATORS))}.")
    per_side, num_parts = others.get("per_side"), None
    if per_side is not None:
        num_parts = _give_parts(arguments, per_side, boxsize, num_regions)
    sets = {
        letter: _Set(arguments[names[0]], arguments[names[1]], arguments[names[2]], names)
        for letter, names in _SETS.items()
    }
    return Sample(
        sets={name: particles for name, particles in sets.items() if particles.part is not None},
        boxsize=boxsize,
        num_regions=num_regions if num_parts is None else num_parts,
        per_side=1 if per_side is None else int(per_side),
        natural=estimator == "natural",
        **{name: bool(others.get(name, False)) for name in _FLAGS},
    )


def in_three(sample: Sample, what: str, los: Any) -> Sample:
    """Return ``sample``. Raises ValueError if it or the line of sight is not valid in three dimensions."""
    if sample.dims != 3:
        raise ValueError(f"the particles have {sample.dims} dimensions, but {what} needs 3.")
    if not (isinstance(los, str) and los == "midpoint"):
        axis_of(los)
    elif sample.box is not None:
        raise ValueError(
            "los is 'midpoint', which needs randoms, because the volume is not a periodic box; give randoms."
        )
    return sample


def _check_sets(arguments: dict[str, Any]) -> None:
    """Raise ValueError if weights, regions or randoms are given without their particles."""
    for part, weight, region in _SETS.values():
        if arguments[part] is None and not (arguments[weight] is None and arguments[region] is None):
            raise ValueError(f"{weight} or {region} were given without {part}; give {part}, or leave both out.")
    if arguments["query_randoms"] is not None:
        for name in ("queries", "randoms"):
            if arguments[name] is None:
                raise ValueError(f"query_randoms needs {name}; give {name} also, or leave out query_randoms.")


def _check_box(part: Any, boxsize: Any, periodic: bool) -> None:
    dims = get_pos(part).shape[1]
    box = real_numbers(0.0 if boxsize is None else boxsize, "boxsize")
    if box.shape not in ((), (dims,)):
        raise ValueError(f"boxsize has shape {box.shape}; it must be one length, or {dims} lengths, one per dimension.")
    if not (np.all(np.isfinite(box)) and np.all(box >= 0)):
        raise ValueError(f"boxsize is {boxsize}; lengths must be finite and positive, or 0 for open dimensions.")
    if periodic and not np.all(box > 0):
        raise ValueError("without randoms, the box must be periodic in every dimension; give boxsize, or randoms.")


def _give_parts(arguments: dict[str, Any], per_side: Any, boxsize: Any, num_regions: Any) -> int:
    """Set the regions of the data to the parts of the box, and return their number.

    Raises:
        TypeError, ValueError: If ``per_side`` is invalid, or other regions or randoms were given.
    """
    if arguments["randoms"] is not None or num_regions is not None:
        raise ValueError(
            "per_side is for a periodic box without randoms; leave it out, or leave out randoms, regions and "
            "num_regions."
        )
    dims = get_pos(arguments["part"]).shape[1]
    parts = parts_of(per_side, np.broadcast_to(np.asarray(boxsize, np.float64), (dims,)))
    for name in ("data", "queries"):
        part, _, region = _SETS[name]
        if arguments[part] is not None:
            arguments[region] = parts.regions(arguments[part])
    return parts.num


def _check_regions(arguments: dict[str, Any], num_regions: Any) -> None:
    regions = {region: arguments[region] for part, _, region in _SETS.values() if arguments[part] is not None}
    if arguments["randoms"] is None and (
        num_regions is not None or any(parts is not None for parts in regions.values())
    ):
        raise ValueError(
            "without randoms, the number of random pairs outside a region is unknown; give randoms and "
            "random_regions, or per_side instead of regions."
        )
    if len({parts is None for parts in (*regions.values(), num_regions)}) > 1:
        raise ValueError(
            f"a jackknife needs {', '.join(regions)} and num_regions; give all {_NUMBERS[len(regions)]}, or none."
        )


_NUMBERS = {2: "three", 3: "four", 4: "five"}  # of arguments for a jackknife, by the number of sets


def _counted(sets: list[_Set], edges: np.ndarray, options: dict[str, Any]) -> PairCounts:
    """Call `jztree.pair_counts` and wait for the result, with errors that name the arguments of this package.

    The call is not compiled as a whole: JAX would turn the ValueError for an invalid number into a JaxRuntimeError.
    """
    one, other = sets[0], sets[1] if len(sets) > 1 else None
    second = {} if other is None else dict(zip(_SECOND, (other.part, other.weight, other.region), strict=True))
    try:
        result = pair_counts(one.part, edges, weights=one.weight, regions=one.region, **second, **options)
        np.asarray(result.count)
        return result
    except (TypeError, ValueError) as error:
        raise type(error)(_in_our_names(str(error), one, other)) from error


def _in_our_names(text: str, one: _Set, other: _Set | None) -> str:
    """Return a message of `jztree.pair_counts` with the names of the sets."""
    if other is not None:
        first = other.names[0]
        names = {"the query positions": f"the positions of {first}", "the queries": first}
        names |= dict(zip(_SECOND, other.names, strict=True))
        text, replaced = re.subn("|".join(names), lambda match: names[match[0]], text)
        if replaced:
            return text
    if one.names[0] == "part":
        return text
    return re.sub("the positions|a weight|a region", lambda result: f"{result[0]} of {one.names[0]}", text, count=1)
