"""``jztree plot``: pictures of snapshots, catalogues, merger trees and neighbours, saved or shown."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

from jztree.data import FofCatalogue

from ... import io, plot, trees
from ...mass_function import Cosmology, default_model, units_of, why_not_described
from ...plot import particle_mass_of
from .._particles.spheres import is_sphere
from .._report import print_json, say, stage, take_seconds
from .argument_checks import check_arguments, slab
from .drawn import catalogue_of, columns_of, groups_of, mass_of, positions_of
from .snapshots import snapshot_path

_MASS = "mass"  # the column of group masses


def run_plot(args: Namespace) -> None:
    """Draw a picture, and save or show it.

    Raises:
        ValueError, OSError, ImportError: If an argument is invalid, or a file or a package cannot be used. The message
            is a sentence for the user.
    """
    check_arguments(args)
    if args.output is not None:
        plot.check_picture(args.output)
        names = [*args.input, *filter(None, [args.catalogue])]
        io.check_output(args.output, apart_from=tuple(snapshot_path(name) for name in names))
    if args.dry_run:
        say(f"would draw {args.kind} of {', '.join(args.input)} as {args.output or 'a window'}")
        if args.json:
            print_json({"kind": args.kind, "input": args.input, "output": args.output})
        return
    with stage(f"draw {args.kind}") as report:
        figure = _DRAW[args.kind](args)
        report.detail = args.output or ""
    if args.json:
        print_json({"kind": args.kind, "input": args.input, "output": args.output, "seconds": take_seconds()})
    if args.output is None:
        plot.show(figure)


def _halos(args: Namespace) -> Any:
    pos, header = positions_of(args)
    groups, words = _with_radii(args, len(pos), header)
    return plot.plot_halos(
        pos,
        groups,
        header.boxsize,
        args.output,
        length_unit=io.unit_name(header, "length"),
        mass_unit=io.unit_name(header, "mass"),
        redshift=_redshift(header),
        circles=words,
        title=args.title,
    )


def _redshift(header: io.SnapshotHeader) -> float | None:
    """Return the redshift of a cosmological snapshot, otherwise None."""
    return header.redshift if header.omega0 and header.comoving is not False else None


def _density(args: Namespace) -> Any:
    pos, header = positions_of(args)
    groups, words = (None, "") if args.catalogue is None else _with_radii(args, len(pos), header)
    return plot.plot_density(
        pos,
        header.boxsize,
        args.output,
        catalogue=groups,
        slab=slab(args.slab),
        smooth=args.smooth,
        circles=words,
        length_unit=io.unit_name(header, "length"),
        redshift=_redshift(header),
        title=args.title,
        **_surface(args, header),
    )


def _surface(args: Namespace, header: io.SnapshotHeader) -> dict[str, Any]:
    """Return the masses of particles and their unit, if colours are masses over areas.

    Raises:
        ValueError: If the snapshot has no masses.
    """
    if not args.surface_density:
        return {}
    mass = mass_of(args)
    if mass is None:
        raise ValueError(
            f"{args.input[0]} has no masses of type {args.type}; leave --surface-density out, which needs them."
        )
    return {"mass": mass, "mass_unit": io.unit_name(header, "mass") or "mass"}


def _halo(args: Namespace) -> Any:
    pos, header = positions_of(args)
    content = groups_of(args, header)
    columns, groups = columns_of(content), content.catalogue
    if not 0 <= args.halo < len(groups.count):
        held = f"rows 0 to {len(groups.count) - 1}; give a row in this range" if len(groups.count) else "no halo"
        raise ValueError(f"--halo is {args.halo}, but {args.catalogue} has {held}.")
    centres = columns.get("centre_pos", groups.com_pos)
    spheres = {name: column[args.halo] for name, column in columns.items() if is_sphere(name)}
    if not any(radius > 0 for radius in spheres.values()):
        if groups.max_radius is None:
            raise ValueError(
                f"Halo {args.halo} of {args.catalogue} has no sphere; write the catalogue with jztree fof --properties."
            )
        centres, spheres = groups.com_pos, {"farthest member": np.asarray(groups.max_radius)[args.halo]}
    return plot.plot_halo(
        pos,
        np.asarray(centres)[args.halo],
        spheres,
        header.boxsize,
        args.output,
        subhaloes=_satellites(content, args.halo),
        length_unit=io.unit_name(header, "length"),
        redshift=_redshift(header),
        title=args.title,
        **_surface(args, header),
    )


def _satellites(content: io.CatalogueContent, halo: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return positions and half-mass radii of the subhaloes of a halo but the first; None if the catalogue has none."""
    table = content.subhaloes
    if table is None or "half_mass_radius" not in table:
        return None
    rows = np.flatnonzero(np.asarray(table["group"].values) == halo)[1:]
    return np.asarray(table["pos"].values)[rows], np.asarray(table["half_mass_radius"].values)[rows]


def _tree(args: Namespace) -> Any:
    path = args.input[0]
    forest, times = trees.read_trees(path), trees.read_times(path)
    last = np.flatnonzero(forest.snapshot == forest.snapshot.max(initial=0))
    if args.halo >= len(last):
        raise ValueError(f"--halo is {args.halo}, but the last output of {path} has {len(last)} subhaloes.")
    row = int(last[np.argsort(-forest.mass[last], kind="stable")[args.halo]])
    return plot.plot_merger_tree(
        forest, row, args.output, redshifts=times.redshifts, mass_unit=times.mass_unit, title=args.title
    )


def _mass_function(args: Namespace) -> Any:
    contents = [catalogue_of(args, path) for path in args.input]
    header, column = contents[0].header, args.mass or _MASS
    _check_same_run(args.input, [content.header for content in contents])
    model = args.model or default_model(column)
    cosmologies = [
        _cosmology(args, path, content, model, column) for path, content in zip(args.input, contents, strict=True)
    ]
    masses = [particle_mass_of(content.catalogue) for content in contents if len(content.catalogue.count)] or [None]
    return plot.plot_mass_function(
        [
            content.catalogue if column == _MASS else _masses(path, content, column)
            for path, content in zip(args.input, contents, strict=True)
        ],
        header.boxsize,
        args.output,
        units=units_of(header),
        cosmology=None if None in cosmologies else cosmologies[0],
        redshift=[content.header.redshift for content in contents],
        model=model,
        definition=column,
        particle_mass=masses[0] if column != _MASS and len(set(masses)) == 1 else None,
        title=args.title,
        length_unit=io.unit_name(header, "length"),
        mass_unit=io.unit_name(header, "mass"),
    )


def _check_same_run(paths: list[str], headers: list[io.SnapshotHeader]) -> None:
    """Raise ValueError unless all catalogues have the box, the units and the cosmology of the first."""
    for path, header in zip(paths, headers, strict=True):
        for name in ("boxsize", "unit_length_in_cm", "unit_mass_in_g", "h_free", "omega0", "omega_lambda", "hubble"):
            first, value = getattr(headers[0], name), getattr(header, name)
            if first != value and not (first and value and np.allclose(first, value, rtol=1e-4)):
                raise ValueError(
                    f"{paths[0]} has {name} {first}, but {path} has {value}; draw catalogues of one simulation "
                    "together."
                )


def _masses(path: str, content: io.CatalogueContent, name: str) -> np.ndarray:
    """Return the masses in a column of a catalogue. Groups without a mass are left out, and their number is printed.

    Args:
        path: Path of the catalogue.
        content: Contents of the catalogue.
        name: Name of the column.

    Returns:
        Float64 masses above 0, in the unit of the catalogue.

    Raises:
        ValueError: If the catalogue has no such column.
    """
    held = {name: column for name, column in content.extra.items() if column.kind == "mass"}
    if name not in held:
        known = ", ".join([*([] if content.catalogue.mass is None else [_MASS]), *held]) or "no masses"
        raise ValueError(f"--mass is {name}, but {path} has {known}; jztree fof --properties writes masses of spheres.")
    mass = np.asarray(held[name].values, np.float64)
    missing = np.count_nonzero(~(mass > 0))
    if missing:
        say(f"  {missing:,} of {len(mass):,} groups have no {name}, and are left out")
    return np.asarray(mass[mass > 0])


def _cosmology(args: Namespace, path: str, content: io.CatalogueContent, model: str, mass: str) -> Cosmology | None:
    """Return the cosmology of a model's curve; print a reason and return None if it does not describe ``mass``."""
    header = content.header
    reason = why_not_described(content.info, content.by_type is not None, model, mass)
    if units_of(header) is None:
        reason = "its units or h are unknown"
    elif not header.omega0 or header.omega_lambda is None or not header.hubble:
        reason = "it has no cosmology (Omega0, OmegaLambda, HubbleParam)"
    if reason:
        say(f"  {path} is not compared with the mass function of halos: {reason}")
        return None
    return Cosmology.of_header(header, sigma8=args.sigma8, n_s=args.n_s)


def _sizes(args: Namespace) -> Any:
    content = catalogue_of(args, args.input[0])
    unit = io.unit_name(content.header, "mass")
    return plot.plot_group_sizes(content.catalogue, args.output, mass_unit=unit, title=args.title)


def _distances(args: Namespace) -> Any:
    result = io.read_neighbours(args.input[0])
    if result.distances is None:
        raise ValueError(f"{args.input[0]} has densities but no distances; write lists with jztree knn ... --lists.")
    header = result.header or io.SnapshotHeader()
    unit = io.unit_name(header, "length")
    return plot.plot_neighbour_distances(
        result.distances, header.boxsize, args.output, ndim=result.ndim, length_unit=unit, title=args.title
    )


def _with_radii(args: Namespace, num: int, header: io.SnapshotHeader) -> tuple[FofCatalogue, str]:
    """Return the groups of --catalogue with a radius to draw, and its description, for ``num`` particles."""
    content = groups_of(args, header)
    groups, words = plot.with_radii(content.catalogue, num, header.boxsize, columns_of(content))
    if content.catalogue.max_radius is None:
        say(f"  {args.catalogue} has no max_radius of its groups; the radius of the circles is {words}")
    return groups, words


_DRAW: dict[str, Callable[[Namespace], Any]] = {
    "halos": _halos,
    "density": _density,
    "halo": _halo,
    "tree": _tree,
    "mass-function": _mass_function,
    "sizes": _sizes,
    "distances": _distances,
}
