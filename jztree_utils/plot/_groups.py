"""Plots of the distribution of group sizes, and comparisons with halo mass functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import FofCatalogue, check_no_units, squeeze_catalogue

from .._arrays import box_lengths
from ..mass_function import MODELS, Cosmology, Units, mass_function, poisson_interval
from ._figure import Path, drawing
from ._style import COLOURS, REFERENCE, label_logarithmic, with_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BIN = 0.2  # bin width of the mass function, in decades
_MSUN, _PER_CUBIC_MPC = r"$h^{-1}\,\mathrm{M}_\odot$", r"$h^3\,\mathrm{Mpc}^{-3}$"
_IN_BIN = 9  # number of masses per bin for the average of the reference


def plot_group_sizes(
    catalogue: FofCatalogue, path: Path | None = None, *, mass_unit: str = "", title: str = ""
) -> Figure:
    """Plot the number of groups that are at least as large as the abscissa, without bins.

    Args:
        catalogue: Groups. The plot shows their masses, or their numbers of particles if they have no masses.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        mass_unit: Unit of mass in the label.
        title: Title above the picture; the default is the number of groups.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
    """
    with drawing(path, (6.4, 4.8)) as figure:
        draw_sizes(figure.subplots(), squeeze_catalogue(catalogue), mass_unit, title)
        return figure


def draw_sizes(ax: Axes, groups: FofCatalogue, unit: str, title: str = "") -> None:
    """Draw `plot_group_sizes` on existing axes, for groups without unused rows."""
    sizes = np.sort(np.asarray(groups.count if groups.mass is None else groups.mass))[::-1]
    label = "group particles" if groups.mass is None else with_unit("group mass", unit)
    ax.set(xlabel=label, ylabel="groups at least as large", title=title or f"{len(sizes):,} groups")
    if len(sizes):
        ax.loglog(sizes, np.arange(1, len(sizes) + 1), drawstyle="steps-post", color=COLOURS[0])
        label_logarithmic(ax.xaxis)
        label_logarithmic(ax.yaxis)


def plot_group_numbers(
    b: ArrayLike, groups: ArrayLike, path: Path | None = None, *, npart_min: int | None = None, title: str = ""
) -> Figure:
    """Plot the number of groups against the linking length.

    Args:
        b: ``(m,)``, linking lengths in mean separations.
        groups: ``(m,)``, numbers of groups.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        npart_min: The smallest number of particles of these groups, for the label.
        title: Title above the picture.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
        ValueError: If the shapes differ.
    """
    b, groups = np.asarray(b, np.float64), np.asarray(groups)
    if b.ndim != 1 or b.shape != groups.shape:
        raise ValueError(f"b has shape {b.shape}, and groups {groups.shape}; both must be (m,), with the same m.")
    with drawing(path, (6.4, 4.8)) as figure:
        ax = figure.subplots()
        ax.plot(b, groups, "o-", color=COLOURS[0], markersize=4)
        label = "groups" if npart_min is None else f"groups of at least {npart_min:,} particles"
        ax.set(xlabel="linking length $b$ [mean separations]", ylabel=label, title=title)
        ax.set_ylim(bottom=0)
        return figure


def plot_mass_function(
    groups: FofCatalogue | ArrayLike | Sequence[FofCatalogue | ArrayLike],
    boxsize: ArrayLike,
    path: Path | None = None,
    *,
    units: Units | None = None,
    cosmology: Cosmology | None = None,
    redshift: float | Sequence[float] = 0.0,
    model: str = "warren",
    definition: str | None = None,
    particle_mass: float | None = None,
    length_unit: str = "",
    mass_unit: str = "",
    title: str = "",
) -> Figure:
    """Plot the number of groups per volume and decade of mass, with Poisson errors, and a reference for haloes.

    Errors are intervals that hold the expected number with 68 % probability (Gehrels 1986). The lower panel shows
    groups over the reference, averaged over each bin of 0.2 decades.

    Args:
        groups: A `FofCatalogue` with masses, or an array ``(g,)`` of masses; or a list, such as the catalogues of
            several snapshots, each in its colour with its redshift.
        boxsize: Length of the box in three dimensions, or one per dimension; positive.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        units: Units of masses and lengths; see `jztree_utils.mass_function.units_of`. None shows the numbers
            unchanged, without a reference.
        cosmology: Cosmology of the reference; the legend shows its sigma8 and n_s. None draws no reference: use None if
            `jztree_utils.mass_function.why_not_described` returns a reason.
        redshift: Redshift of the snapshot; for a list of ``groups`` a list of the same length.
        model: Model of the reference; see `jztree_utils.mass_function.mass_function`. The legend marks a model for
            other masses.
        definition: The definition of an array of masses, by the name of their column, such as ``"m200m"``; None if
            unknown.
        particle_mass: The mass of a particle if all have the same. Bin edges are between its multiples. Catalogues do
            not need it.
        length_unit, mass_unit: Units in the labels, if ``units`` is None.
        title: Title above the picture.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
        ValueError: If masses or the box are missing, a mass is not positive and finite, the model is unknown, or the
            numbers of groups and redshifts differ.
    """
    check_no_units(groups=groups, boxsize=boxsize, particle_mass=particle_mass)
    sets, redshifts = _sets(groups, redshift)
    definition = "mass" if any(isinstance(masses, FofCatalogue) for masses in sets) else definition
    with drawing(path, (6.4, 6.0)) as figure:
        samples = [
            _count(*_masses(masses, particle_mass), _volume(boxsize), units or Units(1.0, 1.0)) for masses in sets
        ]
        volume_unit = f"({length_unit})$^{{-3}}$" if length_unit else ""
        if units is not None:
            mass_unit, volume_unit = _MSUN, _PER_CUBIC_MPC
        has_groups = any(bins.counts.any() for bins in samples)
        if cosmology is None or units is None or not has_groups:
            upper = lower = figure.subplots()
        else:
            upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
            _draw_references(upper, lower, samples, cosmology, redshifts, model, definition)
        for number, bins in enumerate(samples):
            state = f"redshift {redshifts[number]:.4g}: " if len(sets) > 1 else ""
            _draw_counts(upper, bins, COLOURS[number % len(COLOURS)], f"{state}{bins.counts.sum():,} groups")
        upper.legend()
        upper.set(title=title, ylabel=with_unit("d$n$ / d$\\,$log$_{10}\\,M$", volume_unit))
        label = "group mass $M$" if definition in (None, "mass") else f"$M$ = {definition}"
        lower.set(xlabel=with_unit(label, mass_unit))
        if has_groups:
            label_logarithmic(lower.xaxis)
            label_logarithmic(upper.yaxis)
        return figure


def _sets(groups: Any, redshift: Any) -> tuple[list[Any], list[float]]:
    """Return the sets of groups, and their redshifts. Raises ValueError if the numbers of both differ."""
    is_list = isinstance(groups, (list, tuple)) and any(isinstance(row, FofCatalogue) or np.ndim(row) for row in groups)
    sets = list(groups) if is_list else [groups]
    redshifts = [float(value) for value in np.atleast_1d(redshift)]
    if len(sets) != len(redshifts):
        raise ValueError(
            f"groups has {len(sets)} sets and redshift {len(redshifts)} numbers; give one redshift per set of groups."
        )
    return sets, redshifts


@dataclass
class _Bins:
    """Groups counted in bins of mass with ``edges`` ``(b + 1,)``, in a ``volume``."""

    edges: np.ndarray
    counts: np.ndarray
    volume: float

    @property
    def centres(self) -> np.ndarray:
        return np.sqrt(self.edges[1:] * self.edges[:-1])

    def density(self, counts: np.ndarray) -> np.ndarray:
        """Return ``counts`` of each bin per volume and decade."""
        return counts / self.volume / np.diff(np.log10(self.edges))


def _masses(groups: Any, particle_mass: float | None) -> tuple[np.ndarray, float | None]:
    """Return the masses of groups, and the mass of a particle if it divides all masses."""
    if particle_mass is not None and not 0 < particle_mass < np.inf:
        raise ValueError(f"particle_mass is {particle_mass}; it must be positive and finite, or None.")
    if not isinstance(groups, FofCatalogue):
        mass = np.asarray(groups, np.float64)
    elif groups.mass is None:
        raise ValueError(
            "these groups have no masses; give an array of masses, such as the counts times the particle mass."
        )
    else:
        mass = np.asarray(squeeze_catalogue(groups).mass, np.float64)
        particle_mass = particle_mass or particle_mass_of(groups)
    if mass.ndim != 1:
        raise ValueError(
            f"groups are masses of shape {mass.shape}; a mass function needs a catalogue, or positive masses (g,)."
        )
    is_valid = (mass > 0) & np.isfinite(mass)
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise ValueError(f"the mass of group {row} is {mass[row]:g}; masses must be positive and finite.")
    return mass, particle_mass if particle_mass and _are_multiples(mass / particle_mass) else None


def _are_multiples(numbers: np.ndarray) -> bool:
    """Return whether masses are multiples of the particle mass, apart from rounding to float32."""
    nearest = np.maximum(np.round(numbers), 1)
    return bool(np.all(np.abs(numbers - nearest) < 0.01 + 1e-6 * numbers))


def particle_mass_of(groups: FofCatalogue) -> float | None:
    """Return the particle mass if all particles have the same, otherwise None, also for catalogues without masses."""
    if groups.mass is None:
        return None
    rows = squeeze_catalogue(groups)
    each = np.asarray(rows.mass, np.float64) / np.maximum(np.asarray(rows.count), 1)
    return float(each.mean()) if len(each) and np.ptp(each) < 1e-4 * each[0] else None


def _volume(boxsize: Any) -> float:
    lengths = box_lengths(boxsize, 3)
    if not np.all((lengths > 0) & np.isfinite(lengths)):
        raise ValueError(
            f"boxsize is {boxsize}, but a mass function needs the volume of the groups; give positive, finite lengths."
        )
    return float(lengths.prod())


def _count(mass: np.ndarray, quantum: float | None, volume: float, units: Units) -> _Bins:
    mass, volume = mass * units.mass, volume * units.length**3
    quantum = None if quantum is None else quantum * units.mass
    if not len(mass):
        return _Bins(np.empty(0), np.zeros(0, int), volume)
    smallest, largest = mass.min(), mass.max()
    steps = 10 ** (_BIN * np.arange(int(np.log10(largest / smallest) / _BIN) + 3))
    if quantum is None:
        edges = smallest * (1 - 1e-6) * steps
    else:
        # Between the possible masses, otherwise the number of masses per bin would vary at random.
        edges = np.unique(np.round(round(smallest / quantum) * steps) - 0.5) * quantum
    # The last edge is the first above the largest mass.
    edges = edges[: np.searchsorted(edges, largest, side="right") + 1]
    return _Bins(edges, np.histogram(mass, edges)[0], volume)


def _draw_counts(ax: Axes, bins: _Bins, colour: str, label: str) -> None:
    ax.set(xscale="log", yscale="log")
    filled = bins.counts > 0
    lower, upper = poisson_interval(bins.counts)
    errors = bins.density(np.stack([bins.counts - lower, upper - bins.counts]))[:, filled]
    heights = bins.density(bins.counts)[filled]
    ax.errorbar(bins.centres[filled], heights, errors, fmt="o", color=colour, label=label)
    if len(heights) == 1:  # the limits of a single mass would be equal up to rounding
        ax.update_datalim([(mass, heights[0]) for mass in bins.edges[[np.argmax(filled), np.argmax(filled) + 1]]])


def _draw_references(
    upper: Axes,
    lower: Axes,
    samples: list[_Bins],
    cosmology: Cosmology,
    redshifts: list[float],
    model: str,
    definition: str | None,
) -> None:
    """Draw a curve for each sample, and the ratio of the groups to it, for masses of a ``definition``, None if unknown.

    The first curve has the label of the definition.
    """
    described = MODELS[model].mass
    other = ", for other masses" if definition and described not in (None, definition) else ""
    label: str | None = f"{MODELS[model].name}{other}\n$\\sigma_8$ = {cosmology.sigma8:g}, $n_s$ = {cosmology.n_s:g}"
    lower.axhline(1, color=REFERENCE)
    highest = 0.0
    for number, (bins, redshift) in enumerate(zip(samples, redshifts, strict=True)):
        if not len(bins.counts):
            continue
        per_decade = lambda mass, z=redshift: mass_function(cosmology, mass, z, model) * np.log(10)  # noqa: E731
        fine = np.geomspace(bins.edges[0], bins.edges[-1], 200)
        colour = COLOURS[number % len(COLOURS)]
        upper.plot(fine, per_decade(fine), color=REFERENCE if len(samples) == 1 else colour, zorder=1, label=label)
        label = None
        inside = np.geomspace(bins.edges[:-1], bins.edges[1:], _IN_BIN)
        expected = np.trapezoid(per_decade(inside), dx=1 / (_IN_BIN - 1), axis=0)
        ratio = [bins.density(counts) / expected for counts in (bins.counts, *poisson_interval(bins.counts))]
        middle, low, high = (values[bins.counts > 0] for values in ratio)
        lower.errorbar(bins.centres[bins.counts > 0], middle, (middle - low, high - middle), fmt="o", color=colour)
        highest = max(highest, middle.max())
    lower.set(ylabel="ratio", ylim=(0, np.clip(1.3 * highest, 2, 3)))
