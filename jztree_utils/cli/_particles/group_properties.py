"""Group properties outside the catalogue: centres, shapes, spherical overdensities, circular velocities, spins.

`describe` gives their definitions. Spheres are centred on each group. They include all matter, not only the members of
the group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jztree import halos
from jztree.config import FofConfig
from jztree.data import FofCatalogue, ParticleData, Pos
from jztree.density import knn_density
from jztree.overdensity import SphereProperties, sphere_properties, spherical_overdensity

from .spheres import PROPERTIES_OF, peak_within, threshold_in_words
from .subhalo_search import SubhaloOptions

NEIGHBOURS = 32  # number of neighbours in the density estimate that selects the densest particle
# The possible centres of spheres, in words.
CENTRES = {
    "potential": "the particle of lowest potential of the group",
    "densest": "the densest particle of the group",
    "mass": "the centre of mass of the group",
}
# Softening of the potential in linking lengths: a fiftieth of the mean separation if the linking length is a fifth of
# that. In haloes with known centres, half and twice this value work equally well; without softening, the centres are up
# to twice as far off.
SOFTENING = 0.1
_SPHERES = "Lacey & Cole 1994, MNRAS 271, 676"
_OF_SPHERE = ("count", "com_pos", "com_vel", "vel_dispersion", "com_inertia_radius", "shape_tensor", "angular_momentum")


@dataclass(frozen=True)
class GroupOptions:
    """Options for the group properties. They are compile-time constants.

    Attributes:
        cfg: Options of the group finder.
        attach_within: Maximum distance of attached particles, in linking lengths.
        densities: A name and a mean comoving density for each spherical overdensity.
        gravity: Newton's constant in the units of the particles, None if the units are unknown.
        neighbours: Number of neighbours in the density estimate that selects the densest particle; 0 switches off all
            properties.
        scale_factor: Scale factor of the universe.
        centre: Centre of the spheres, a key of `CENTRES`.
        softening: Softening length of the potential, in the unit of the positions.
        subhaloes: Options of the search for bound subhaloes, None to leave it out.
    """

    cfg: FofConfig
    attach_within: float | None = None
    densities: tuple[tuple[str, float], ...] = ()
    gravity: float | None = None
    neighbours: int = 0
    scale_factor: float = 1.0
    centre: str = "potential"
    softening: float = 0.0
    subhaloes: SubhaloOptions | None = None

    @property
    def peak_within(self) -> str | None:
        """The sphere that limits the search for the largest circular velocity; None without spheres."""
        return peak_within(dict(self.densities))


def group_properties(
    grouped: Any, cata: FofCatalogue, boxsize: Any, options: GroupOptions, matter: Sequence[Any] = ()
) -> dict[str, jax.Array]:
    """Return the properties that need particles, one row per group.

    The function raises the same errors as the library functions that it calls.

    Args:
        grouped: The particles of one device in group order.
        cata: Their groups.
        boxsize: Periodic length, or one per dimension; 0 means open.
        options: Selects the properties.
        others: Matter of other types, which counts in spheres.

    Returns:
        ``(g, ...)`` columns by name; `describe` gives their definitions.
    """
    density = knn_density(grouped, max(options.neighbours, 3), boxsize=boxsize)
    densest = halos.densest_particle(grouped, cata, density)
    result = {"densest_pos": densest.part.pos, "densest_density": densest.density}
    result["centre_pos"] = _centres(grouped, cata, densest.part.pos, boxsize, options)
    if not options.densities:
        return result
    centre = Pos(pos=result["centre_pos"], num=cata.ngroups)
    return result | _spheres(_all_matter(grouped, matter), centre, boxsize, options)


def _centres(grouped: Any, cata: FofCatalogue, densest: jax.Array, boxsize: Any, options: GroupOptions) -> jax.Array:
    if options.centre == "potential":
        lowest = halos.lowest_potential_particle(grouped, cata, softening=options.softening, boxsize=boxsize)
        return jnp.asarray(lowest.part.pos)
    return densest if options.centre == "densest" else jnp.asarray(cata.com_pos)


def _all_matter(grouped: Any, matter: Sequence[Any]) -> ParticleData:
    """Join all particles into one object, with unused rows last; it has velocities if all types have them."""
    kinds = [grouped, *matter]
    rows = [kind.pos.shape[0] for kind in kinds]
    nums = [num if kind.num is None else kind.num for num, kind in zip(rows, kinds, strict=True)]
    held = [jnp.arange(n, dtype=jnp.int32) < num for n, num in zip(rows, nums, strict=True)]
    order = jnp.argsort(~jnp.concatenate(held), stable=True)
    mass = [jnp.broadcast_to(jnp.asarray(kind.mass), (n,)) for n, kind in zip(rows, kinds, strict=True)]
    moving = all(kind.vel is not None for kind in kinds)
    return ParticleData(
        pos=_joined([kind.pos for kind in kinds], order),
        mass=_joined(mass, order),
        vel=_joined([kind.vel for kind in kinds], order) if moving else None,
        num=sum(jnp.asarray(num, jnp.int32) for num in nums),
    )


def _joined(columns: Sequence[Any], order: jax.Array) -> jax.Array:
    if len(columns) == 1:
        return jnp.asarray(columns[0])
    wide = jnp.result_type(*columns)
    return jnp.concatenate([jnp.asarray(column, wide) for column in columns])[order]


def _spheres(matter: ParticleData, centre: Pos, boxsize: Any, options: GroupOptions) -> dict[str, jax.Array]:
    """Return the spherical overdensities of all matter around each group's centre, and the properties based on them."""
    result: dict[str, jax.Array] = {}
    names, thresholds = zip(*options.densities, strict=True)
    # Peculiar velocities require physical lengths.
    gravity = None if options.gravity is None else options.gravity / options.scale_factor
    spheres = spherical_overdensity(matter, thresholds, queries=centre, boxsize=boxsize, gravity=gravity or 1.0)
    for place, name in enumerate(names):
        result |= {f"m{name}": spheres.mass[:, place], f"r{name}": spheres.radius[:, place]}
    peak, within = spheres, options.peak_within
    if within is not None and dict(options.densities)[within] > min(thresholds):
        # With a larger search radius, the result would depend on the requested spheres.
        peak = spherical_overdensity(
            matter, dict(options.densities)[within], queries=centre, boxsize=boxsize, gravity=gravity or 1.0
        )
    if gravity is not None:
        result |= {"vmax": peak.vmax, "rmax": peak.rmax}
    if PROPERTIES_OF in names:
        mass, radius = result[f"m{PROPERTIES_OF}"], result[f"r{PROPERTIES_OF}"]
        inside = sphere_properties(matter, radius, queries=centre, boxsize=boxsize)
        result |= _of_sphere(inside)
        if gravity is not None:
            result["concentration"] = halos.concentration(mass, radius, peak.vmax, gravity=gravity)
        if options.gravity is not None and inside.angular_momentum is not None:
            result["spin"] = halos.spin(inside, mass, radius, options.gravity, scale_factor=options.scale_factor)
    return result


def _of_sphere(inside: SphereProperties) -> dict[str, jax.Array]:
    columns = {name: getattr(inside, name) for name in _OF_SPHERE}
    return {f"{name}_{PROPERTIES_OF}": column for name, column in columns.items() if column is not None}


def shapes(cata: FofCatalogue, extra: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return principal axes of groups and of their spheres, on the host, because unused rows would be expensive.

    Args:
        cata: Groups without padding.
        extra: The results of `group_properties` for these groups.

    Returns:
        ``(g, ...)`` columns by name; `describe` gives their definitions.
    """
    if cata.com_pos.shape[1] < 2:
        return {}
    result = _axes(cata, cata.shape_tensor, cata.com_inertia_radius, "")
    tensor = f"shape_tensor_{PROPERTIES_OF}"
    if tensor in extra:
        empty = np.asarray(extra[f"count_{PROPERTIES_OF}"]) == 0
        of_sphere = _axes(cata, extra[tensor], extra[f"com_inertia_radius_{PROPERTIES_OF}"], f"_{PROPERTIES_OF}")
        for name, column in of_sphere.items():
            result[name] = np.where(empty.reshape(-1, *[1] * (column.ndim - 1)), column.dtype.type(0), column)
    return result


def _axes(cata: FofCatalogue, tensor: Any, radius: Any, suffix: str) -> dict[str, np.ndarray]:
    """Return the axes of groups or of an equal number of spheres. The function is compiled once for both."""
    columns = {"com_inertia_radius": radius, "max_radius": radius, "shape_tensor": tensor}
    rows = FofCatalogue(ngroups=cata.ngroups, count=cata.count, offset=cata.offset, com_pos=cata.com_pos, **columns)
    with jax.enable_x64(cata.com_pos.dtype == np.float64):
        axes = halos.principal_axes.jit(rows)
    result = {"axis_lengths": axes.lengths, "axis_ratios": axes.ratios, "principal_axes": axes.directions}
    return {f"{name}{suffix}": np.asarray(column) for name, column in result.items()}


def describe(name: str, options: GroupOptions) -> tuple[str, str]:
    """Return the kind of unit of a property and its definition in words, with the source."""
    if name in halos.DEFINITIONS:
        kind, words, source = halos.DEFINITIONS[name]
        if name == "densest_density":
            words += f", by the {NEIGHBOURS} nearest neighbours (Casertano & Hut 1985, ApJ 298, 80)"
        if name in ("spin", "concentration"):
            words += f"; M and R are m{PROPERTIES_OF} and r{PROPERTIES_OF}"
        return kind, f"{words} ({source})" if source else words
    if name == "centre_pos":
        softened = ", by the gravity of the group only, with Plummer softening of a tenth of the linking length"
        return "length", f"position of {CENTRES[options.centre]}{softened if options.centre == 'potential' else ''}"
    if name == "vmax":
        return (
            "velocity",
            f"largest circular velocity sqrt(G M(<r) / r) around centre_pos with r up to r{options.peak_within}, "
            "starting at the tenth particle",
        )
    if name == "rmax":
        return "length", "comoving radius with the circular velocity vmax"
    base, _, sphere = name.rpartition("_")
    if base == "count":
        return "1", f"number of all particles at most r{sphere} from centre_pos"
    if base in halos.DEFINITIONS:
        kind, words, source = halos.DEFINITIONS[base]
        words = f"{words}; for all particles at most r{sphere} from centre_pos, instead of those of the group"
        return kind, f"{words} ({source})" if source else words
    sphere = f"the sphere around centre_pos with a mean density of {threshold_in_words(name[1:])}"
    missing = "0 without such a sphere, NaN if it reaches half the box"
    if name.startswith("m"):
        return "mass", f"mass of all particles in {sphere}; {missing} ({_SPHERES})"
    return "length", f"comoving radius of {sphere}; {missing} ({_SPHERES})"
