"""Checks of the columns that ``jztree fof --properties`` writes."""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from jztree.data import FofCatalogue, ParticleData

from ... import io, verify
from .._particles.group_properties import NEIGHBOURS, SOFTENING, GroupOptions
from .._particles.known_properties import comoving_densities, newton
from .._particles.spheres import PROPERTIES_OF, is_sphere, peak_within, sphere_densities

OF_SUBHALOES = "subhaloes/"  # beginning of the names of their columns
_SAMPLES = 50  # spheres that are computed again by default, from all matter
_ROUNDED = 4  # error of positions that were converted to another unit and back, in units of the last digit
_AXES = {"lengths": "axis_lengths", "ratios": "axis_ratios", "directions": "principal_axes"}


@dataclass(frozen=True)
class Properties:
    """The properties of groups, and the particles to compute them from.

    Attributes:
        args: The arguments of the call.
        content: The catalogue, in the units of the snapshot.
        grouped: All particles that may be in groups, in group order.
        matter: All particles that count in spheres.
        header: Header of the snapshot.
        types: Types of the matter.
        is_converted: Whether the file of the catalogue has other units than the snapshot, so that values are rounded.
    """

    args: Namespace
    content: io.CatalogueContent
    grouped: ParticleData
    matter: ParticleData
    header: io.SnapshotHeader
    types: Sequence[int]
    is_converted: bool = False

    def checks(self) -> Iterator[verify.Verification]:
        """Yield the checks of the columns."""
        cata, centre = self._catalogue, self._values("centre_pos")
        yield from self._particles(cata)
        yield from self._axes(cata, "")
        if centre is None:
            return
        yield from self._spheres(centre)
        if (radius := self._values(f"r{PROPERTIES_OF}")) is not None:
            yield from self._inside(centre, radius)

    @property
    def _catalogue(self) -> FofCatalogue:
        """The groups, whose members are in group order."""
        count = np.asarray(self.content.catalogue.count, np.int64)
        return replace(self.content.catalogue, offset=np.cumsum(count) - count)

    def _values(self, name: str) -> np.ndarray | None:
        column = self.content.extra.get(name)
        return None if column is None else np.asarray(column.values)

    def _particles(self, cata: FofCatalogue) -> Iterator[verify.Verification]:
        """Check densest particles and the centres of spheres."""
        options: dict[str, Any] = {"boxsize": self.header.boxsize or None, "samples": self.args.samples}
        densest, density, centre = map(self._values, ("densest_pos", "densest_density", "centre_pos"))
        if densest is not None and density is not None:
            neighbours = min(NEIGHBOURS, len(self.grouped.pos))
            check = verify.densest_particle(self.grouped, cata, densest, density, neighbours, **options)
            yield replace(check, columns=("densest_pos", "densest_density"))
        if centre is None:
            return
        kind = json.loads(self.content.info.made_with or "{}").get("centre", GroupOptions.centre)
        if kind == "potential":
            softening = SOFTENING * (self.content.info.linking_length or 0.0)
            check = verify.lowest_potential_particle(self.grouped, cata, centre, softening=softening, **options)
            yield replace(check, columns=("centre_pos",))
            return
        expected = np.asarray(cata.com_pos) if kind == "mass" else densest
        if expected is not None:
            wrong = np.flatnonzero((expected != centre).any(axis=1))
            faults = tuple(f"group {row} has the centre {centre[row].tolist()}, not {expected[row]}" for row in wrong)
            yield verify.Verification("centres", len(centre), len(centre), faults, columns=("centre_pos",))

    def _axes(self, of: Any, suffix: str) -> Iterator[verify.Verification]:
        columns = {name: self._values(f"{stored}{suffix}") for name, stored in _AXES.items()}
        needed = (of.shape_tensor, of.com_inertia_radius, *columns.values())
        if all(column is not None for column in needed):
            check = verify.principal_axes(of, SimpleNamespace(**columns))
            names = tuple(f"{stored}{suffix}" for stored in _AXES.values())
            yield replace(check, content=f"{check.content}{suffix.replace('_', ' ')}", columns=names)

    def _spheres(self, centre: np.ndarray) -> Iterator[verify.Verification]:
        """Check the spheres, and the largest circular velocity in the sphere that limits its search."""
        options = self._options_of_spheres(centre)
        names = list(dict.fromkeys(name[1:] for name in self.content.extra if is_sphere(f"r{name[1:]}")))
        densities = sphere_densities(self.header, names, comoving_densities(self.header, self.types))
        gravity, within = newton(self.header), peak_within(dict(densities))
        for name, density in densities:
            radius, mass, vmax, rmax = map(self._values, (f"r{name}", f"m{name}", "vmax", "rmax"))
            if radius is None or mass is None:
                continue
            peak: dict[str, Any] = {}
            if name == within and gravity is not None and vmax is not None and rmax is not None:
                peak = {"vmax": vmax, "rmax": rmax, "gravity": gravity / self.header.scale_factor}
            check = verify.spheres(self.matter, density, radius, mass, **options, **peak)
            columns = [f"{column[0]}{name}" if column in ("radius", "mass") else column for column in check.columns]
            yield replace(check, content=f"spheres {name}", columns=tuple(columns))

    def _options_of_spheres(self, centre: np.ndarray) -> dict[str, Any]:
        box, samples = self.header.boxsize or None, self.args.samples or _SAMPLES
        largest = max(np.abs(self.matter.pos).max(initial=0.0), np.max(self.header.boxsize))
        error = _ROUNDED * np.finfo(centre.dtype).eps * float(largest) if self.is_converted else 0.0
        return {"queries": centre, "boxsize": box, "samples": samples, "centre_error": error}

    def _inside(self, centre: np.ndarray, radius: np.ndarray) -> Iterator[verify.Verification]:
        """Check the properties of the particles in the spheres."""
        suffix, names = f"_{PROPERTIES_OF}", [name for name in self.content.extra if name.endswith(f"_{PROPERTIES_OF}")]
        columns = {name.removesuffix(suffix): self._values(name) for name in names}
        needed = dict.fromkeys(("shape_tensor", "com_inertia_radius", "angular_momentum"))
        inside = SimpleNamespace(**needed | columns, ngroups=len(radius))
        check = verify.sphere_properties(self.matter, radius, inside, **self._options_of_spheres(centre))
        yield replace(
            check,
            content=f"{check.content} {PROPERTIES_OF}",
            columns=tuple(f"{name}{suffix}" for name in check.columns),
        )
        yield from self._axes(inside, suffix)
        gravity, mass = newton(self.header), self._values(f"m{PROPERTIES_OF}")
        vmax, spin, concentration = map(self._values, ("vmax", "spin", "concentration"))
        if gravity is None or mass is None:
            return
        a = self.header.scale_factor
        if spin is not None and inside.angular_momentum is not None:
            yield replace(verify.spin(inside, mass, radius, spin, gravity, scale_factor=a), columns=("spin",))
        if vmax is not None and concentration is not None:
            check = verify.concentration(mass, radius, vmax, concentration, gravity=gravity / a)
            yield replace(check, columns=("concentration",))


def unchecked(content: io.CatalogueContent, checked: Sequence[str]) -> str:
    """Return a sentence about the columns of a catalogue that no check covers; empty if every column has a check."""
    columns: Mapping[str, Any] = io.catalogue_columns(content.catalogue, content.extra)
    words = [name for name in columns if name not in checked]
    words += [f"{name} of subhaloes" for name in content.subhaloes or {} if f"{OF_SUBHALOES}{name}" not in checked]
    return f"not checked: {', '.join(words)}" if words else ""
