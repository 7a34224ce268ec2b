"""``jztree fof``: groups of snapshots, their catalogues and pictures."""

import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jztree.config import CatalogueConfig, FofConfig
from jztree.data import FofCatalogue, squeeze_catalogue

from ... import io, plot
from ...separation import MeanSeparation
from .._particles import many_devices
from .._particles.bound_subhaloes import subhalo_options
from .._particles.group_properties import CENTRES, SOFTENING, GroupOptions, describe, shapes
from .._particles.known_properties import missing_in_words, types_in_words, with_all_properties
from .._particles.particles import GAS, Groups, Member, Particles
from .._particles.reading import Source
from .._particles.spheres import is_sphere
from .._report import column, is_quiet, number, print_json, print_pairs, print_table, say, stage, warn
from . import dry_run, fof_large
from .argument_checks import particle_types, sphere_names, with_properties
from .arguments import B
from .earlier_outputs import made_with
from .fof_scan import run_scan
from .fof_snapshots import warn_of_order, write_copies
from .header_arguments import what_to_give
from .outputs import Run, prepare_runs
from .snapshots import box_in_words, read_checked

_LARGEST = 10  # number of groups in the printed table
_TABLE = {"m200c": "mass", "vmax": "velocity", "concentration": ""}  # its columns with --properties, and their units
_PERCOLATES = 1.0  # mean separations; in three dimensions, nearly all random particles are in one group from 0.9 on
# Particle properties that a snapshot may lack, and the consequences.
_MISSING = (
    ("mass", "masses", "the catalogue leaves out columns that need them"),
    ("vel", "velocities", "the catalogue leaves out columns that need them"),
    ("id", "identifiers", "members are identified by their row in it, from 0"),
)


@dataclass(frozen=True)
class _Result:
    """Groups and their members in the order of the files.

    Attributes:
        info: How they were found.
        options: The options of their properties.
        cata: The groups.
        ids: Returns ``(m,)``, the identifiers of the members.
        numbers: Returns the group of each particle by type, see `io.group_of_rows`.
        rows: Returns ``(m,)``, the rows of the members in the snapshot; used with subhaloes only.
        extra: Further columns of the groups.
        by_type: Particles of each type in each group, None for one type.
        subhaloes: The table of subhaloes, None if they were not requested.
        left_out: Properties that the snapshot lacks data for, in words.
    """

    info: io.CatalogueInfo
    options: GroupOptions
    cata: FofCatalogue
    ids: Callable[[], np.ndarray]
    numbers: Callable[[], dict[int, np.ndarray]]
    rows: Callable[[], np.ndarray]
    extra: dict[str, io.Column]
    by_type: io.TypeTable | None = None
    subhaloes: dict[str, io.Column] | None = None
    left_out: str = ""

    @property
    def tables(self) -> dict[str, Any]:
        """The tables of the catalogue, as arguments of `io.write_catalogue`."""
        return {"extra": self.extra, "by_type": self.by_type, "subhaloes": self.subhaloes}


def run_fof(args: Namespace) -> None:
    """Find groups in each snapshot, write the catalogue, plot them, print a summary."""
    mesh = many_devices.all_devices()
    if args.scan_b is not None:
        run_scan(args, mesh)
        return
    todo = prepare_runs(args, mesh)
    attach, matter = particle_types("--attach", args.attach), particle_types("--matter", args.matter)
    spheres = sphere_names(args.overdensity) if with_properties(args) else ()
    layout = None if args.output is None else args.layout
    work = dry_run.groups(args.plot is not None, bool(spheres))

    def run_one(run: Run, source: Source) -> None:
        if fof_large.is_piecewise(args, source, mesh, work):
            _run_piecewise(args, run, source, mesh, layout, spheres)
        else:
            _run_one(args, run, source, mesh, layout, spheres)

    def plan(run: Run, source: Source) -> dry_run.Plan:
        return fof_large.plan(args, run, source, mesh) if fof_large.is_piecewise(args, source, mesh, work) else ([], {})

    dry_run.each_run(args, todo, mesh, work, run_one, types=(attach, matter), layout=layout, plan=plan)


def _run_piecewise(
    args: Namespace, run: Run, source: Source, mesh: Mesh, layout: str | None, spheres: tuple[str, ...]
) -> None:
    """Find the groups of a snapshot that does not fit into memory, write the catalogue, print a summary."""
    with io.failing_together(mesh):
        if io.is_shared(mesh) and not run.files:
            raise ValueError("Several processes share temporary files next to the catalogue; give its name with -o.")
        part = fof_large.open_pieces(source, layout, bool(spheres))
        rlink = _linking_length(args, part.separation)
        options, left_out = _group_options(args, part, rlink, spheres)
        _warn_of_length(args, rlink, part.separation)
    with fof_large.find_groups(args, run, part, rlink, options, mesh) as groups:
        columns, subhaloes = fof_large.find_properties(part, groups, options)
        with groups.together():
            if jax.process_index() != 0:
                return
            fof_large.warn_of_particles(part, groups)
            cata = groups.catalogue
            if options.neighbours:
                columns |= shapes(cata, columns)
            extra = {name: io.Column(values, *describe(name, options)) for name, values in columns.items()}
            info = _info(args, run, source, part, rlink, part.spheres_of if options.densities else None)
            by_type = fof_large.count_types(part, groups)
            tables: dict[str, Any] = {"extra": extra, "by_type": by_type, "subhaloes": subhaloes}
            members = groups.ids, lambda: fof_large.numbers_of(part, groups), groups.rows
            result = _Result(info, options, cata, *members, left_out=left_out, **tables)
            _finish(args, run, part, part.part.pos, result)


def _group_options(
    args: Namespace, part: Particles, rlink: float, spheres: tuple[str, ...]
) -> tuple[GroupOptions, str]:
    """Return the options of the properties of groups, and the properties that the snapshot lacks data for, in words."""
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=args.npart_min))
    within = args.attach_within if args.attach_within < math.inf else None
    options, left_out = GroupOptions(cfg=cfg, attach_within=within), ""
    if spheres:
        options = with_all_properties(options, part, spheres, args.centre, rlink)
        if left_out := missing_in_words(options, part, spheres):
            left_out += what_to_give(part.header)
    if args.subhaloes:
        softening = SOFTENING * rlink if args.softening is None else args.softening
        candidates = args.candidates.replace("-", "_")
        options = replace(options, subhaloes=subhalo_options(part, softening, args.min_bound, candidates))
    return options, left_out


def _run_one(
    args: Namespace, run: Run, source: Source, mesh: Mesh, layout: str | None, spheres: tuple[str, ...]
) -> None:
    names = ("mass", "vel", "id", *(("internal_energy",) if args.subhaloes else ()))
    part = read_checked(source, names, mesh, layout, bool(spheres))
    separation = part.separation
    with io.failing_together(mesh):
        rlink = _linking_length(args, separation)
        options, left_out = _group_options(args, part, rlink, spheres)
        _warn_of_length(args, rlink, separation)
    result = part.find_groups(rlink, options, with_rows=bool(run.copies))
    pos = part.column("pos") if run.plot is not None else None
    with io.failing_together(mesh):
        if result is not None:
            info = _info(args, run, source, part, rlink, part.spheres_of if options.densities else None)
            _finish(args, run, part, pos, _in_order(part, result, info, options, left_out))


def _info(
    args: Namespace, run: Run, source: Source, part: Particles, rlink: float, spheres_of: str | None = None
) -> io.CatalogueInfo:
    """Return the description of a catalogue that its file stores."""
    separation = part.separation
    return io.CatalogueInfo(
        linking_length=rlink,
        mean_separation=None if separation is None else separation.value,
        separation_by=None if separation is None else separation.by,
        npart_min=args.npart_min,
        num_particles=part.num,
        ptype=source.ptype,
        source=run.path.name,
        header=part.header,
        made_with=made_with(args, run.path, source.options),
        spheres_of=spheres_of,
    )


def _in_order(part: Particles, groups: Groups, info: io.CatalogueInfo, options: GroupOptions, left_out: str) -> _Result:
    """Return groups of a search in memory in the order of the files."""
    columns = groups.extra
    if options.neighbours:
        with stage("find shapes"):
            columns = columns | shapes(squeeze_catalogue(groups.cata), columns)
    with stage("order the catalogue"):
        num, bound = len(groups.ids), groups.subhaloes
        members = Member(pos=np.empty((num, 0), np.float32), id=groups.ids, row=groups.rows, num=num)
        extra = {name: io.Column(values, *describe(name, options)) for name, values in columns.items()}
        subhaloes = None
        if bound is None:
            members, cata, extra, by_type = io.canonical_order(members, groups.cata, extra, groups.by_type)
        else:
            table = io.subhalo_columns(bound.columns, groups.ids)
            members, cata, extra, by_type, subhaloes = io.order_with_subhaloes(
                members, groups.cata, table, bound.subhalo, bound.energy, extra, groups.by_type
            )
    tables: dict[str, Any] = {"extra": extra, "by_type": by_type, "subhaloes": subhaloes}
    count = np.asarray(cata.count, np.int64)
    numbers = lambda: io.group_of_rows(members.row, count, _nums(part))  # noqa: E731
    return _Result(info, options, cata, lambda: members.id, numbers, lambda: members.row, left_out=left_out, **tables)


def _finish(args: Namespace, run: Run, part: Particles, pos: Any, result: _Result) -> None:
    """Write, plot and print the groups; ``pos`` are all positions, if they are plotted."""
    if run.output is not None:
        with stage("write the catalogue") as report:
            ids = None if args.no_ids else result.ids()
            io.write_catalogue(run.output, result.cata, ids, result.info, layout=args.layout, **result.tables)
            report.detail = run.output
    if run.copies:
        _write_copies(args, run, part, result)
    _plot(run, part, pos, result.cata)
    _report(args, run, part, result)


def _write_copies(args: Namespace, run: Run, part: Particles, result: _Result) -> None:
    """Write the copies of the snapshot that match its catalogue."""
    count, places, of_subhaloes = np.asarray(result.cata.count, np.int64), None, None
    if result.subhaloes is not None:
        rows = result.rows()
        places = io.group_of_rows(rows, np.ones_like(rows), _nums(part))
        of_subhaloes = io.number_subhaloes(places, result.subhaloes, count)
    write_copies(run, part.snapshot, result.numbers(), len(count), result.info, args.layout, places, of_subhaloes)


def _nums(part: Particles) -> dict[int, int]:
    """Return the number of particles of each type that may be in groups."""
    return {snapshot.ptype: snapshot.num for snapshot in part.snapshots}


def _report(args: Namespace, run: Run, part: Particles, result: _Result) -> None:
    """Print the groups and warnings."""
    if args.json:
        print_json(_summary(run, part, result))
    elif not is_quiet():
        _tell(part, result)
    warn_of_order(run, args.layout)
    if part.separation is not None and part.separation.doubt and args.rlink is None:
        warn(f"{part.separation.doubt} If it is wrong, give the linking length with --rlink.")
    if result.left_out:
        say(f"\n  left out: {result.left_out}.")


def _linking_length(args: Namespace, separation: MeanSeparation | None) -> float:
    """Return ``--rlink``, or ``--b`` times the mean separation of the particles."""
    if args.rlink is not None:
        return float(args.rlink)
    if separation is None:
        raise ValueError(
            "The snapshot has no BoxSize, so the mean separation is unknown; give the linking length with --rlink, or "
            "the box with --boxsize."
        )
    b = B if args.b is None else args.b
    rlink = b * separation.value
    if not math.isfinite(rlink):
        raise ValueError(f"--b times the mean separation is {rlink:g}; give a smaller --b, or the correct --boxsize.")
    return rlink


def _warn_of_length(args: Namespace, rlink: float, separation: MeanSeparation | None) -> None:
    """Warn of a linking length at which groups merge into one."""
    if separation is not None and rlink > _PERCOLATES * separation.value:
        flag = "--b" if args.rlink is None else "--rlink"
        warn(
            f"The linking length, {number(rlink)}, is {number(rlink / separation.value)} mean separations, and joins "
            f"nearly all particles; a usual value is {B}. Check {flag}."
        )


def _plot(run: Run, part: Particles, pos: Any, cata: FofCatalogue) -> None:
    """Draw the picture of a run, if it has one."""
    if run.plot is None:
        return
    with stage("draw the halos", part.num) as report:
        plot.plot_halos(
            pos,
            cata,
            part.header.boxsize,
            run.plot,
            length_unit=io.unit_name(part.header, "length"),
            mass_unit=io.unit_name(part.header, "mass"),
            title=f"{part.num:,} particles",
        )
        report.detail = run.plot


def _summary(run: Run, part: Particles, result: _Result) -> dict[str, Any]:
    """Return a summary for scripts."""
    cata, info, extra = result.cata, result.info, result.extra
    rows, outputs = slice(0, _LARGEST), ("output", "snapshot_output", "group_ids_output", "plot")
    largest = {"count": cata.count, "mass": cata.mass, "com_pos": cata.com_pos, "max_radius": cata.max_radius}
    largest |= {name: column.values for name, column in extra.items()}
    return {
        **run.summary(part, *outputs, units=("length", "mass", "velocity")),
        "attached": {str(ptype): particles.num_total for ptype, particles in part.attached.items()},
        "groups": len(cata.count),
        "particles_in_groups": int(np.asarray(cata.count, np.int64).sum()),
        "npart_min": info.npart_min,
        "spheres_of": info.spheres_of,
        "without_sphere": _lacking(extra, lambda mass: mass == 0),
        "sphere_too_large": _lacking(extra, np.isnan),
        "linking_length": info.linking_length,
        "mean_separation": None if part.separation is None else asdict(part.separation),
        "redshift": part.header.redshift,
        "largest": {name: np.asarray(values)[rows] for name, values in largest.items() if values is not None},
        "centre": result.options.centre if result.options.neighbours else None,
        "left_out": result.left_out or None,
        "subhaloes": None if result.subhaloes is None else len(result.subhaloes["count"].values),
    }


def _lacking(extra: dict[str, io.Column], which: Callable[[np.ndarray], np.ndarray]) -> dict[str, int]:
    """Return, for each sphere, the number of groups whose mass in it satisfies ``which``."""
    spheres = {name[1:]: extra[f"m{name[1:]}"].values for name in extra if is_sphere(name)}
    return {name: int(np.count_nonzero(which(np.asarray(mass)))) for name, mass in spheres.items()}


def _lacking_in_words(extra: dict[str, io.Column], ngroups: int) -> list[tuple[str, str]]:
    """Return lines about groups that have no sphere because their density is too low, or whose sphere is too large."""
    kinds = (
        (
            "no sphere",
            lambda mass: mass == 0,
            "mass and radius are 0, because the density of the nearest ten particles is too low",
        ),
        (
            "sphere too large",
            np.isnan,
            "mass and radius are NaN, because the density within half the box exceeds the threshold",
        ),
    )
    lines = []
    for title, which, why in kinds:
        held = {name: count for name, count in _lacking(extra, which).items() if count}
        if held:
            counts = ", ".join(f"{name} in {count:,} ({100 * count / ngroups:.0f} %)" for name, count in held.items())
            lines.append((title, f"of {ngroups:,} groups, {counts}; {why}"))
    return lines


def _tell(part: Particles, result: _Result) -> None:
    header, cata, info, options = part.header, result.cata, result.info, result.options
    extra, subhaloes = result.extra, result.subhaloes
    length, mass = (f" {io.unit_name(header, kind)}".rstrip() for kind in ("length", "mass"))
    n, count = (
        part.num + sum(particles.num_total or 0 for particles in part.attached.values()),
        np.asarray(cata.count, np.int64),
    )
    grouped = int(count.sum())
    pairs = [
        ("groups", f"{len(count):,} of at least {info.npart_min:,} particles"),
        ("particles in groups", f"{grouped:,} of {n:,} ({100 * grouped / n:.1f} %)"),
        ("linking length", f"{number(info.linking_length or 0.0)}{length}{_in_separations(info, part.separation)}"),
        ("box", f"{box_in_words(header)}{length if header.boxsize else ''}"),
    ]
    if subhaloes is not None:
        bound = subhaloes["count"].values
        limit = f" of at least {options.subhaloes.min_bound:,} bound particles" if options.subhaloes else ""
        pairs.append(("subhaloes", f"{len(bound):,}{limit}; {bound.sum():,} particles are bound"))
        pairs += _energies_in_words(part)
    if info.spheres_of:
        pairs.append(("spheres of", f"{info.spheres_of}, around {CENTRES[options.centre]}"))
    if len(count):
        pairs.append(("group sizes", f"{count.min():,} to {count.max():,} particles, median {np.median(count):,.0f}"))
        if cata.mass is not None:
            masses = np.asarray(cata.mass, np.float64)
            pairs.append(("group masses", f"{number(masses.min())} to {number(masses.max())}{mass}"))
        pairs += _lacking_in_words(extra, len(count))
    for name, words, instead in _MISSING:
        if name not in part.properties:
            types = part.types_without(name)
            who = "the snapshot has none" if len(types) == len(part.types()) else f"{types_in_words(types)} none"
            pairs.append((f"no {words}", f"{who}; {instead}"))
    say()
    print_pairs(pairs)
    if len(count):
        say()
        print_table(*_largest_groups(cata, header, extra))


def _energies_in_words(part: Particles) -> list[tuple[str, str]]:
    """Return a line about the internal energies of gas, if there is gas."""
    if GAS not in part.types():
        return []
    missing = GAS in part.types_without("internal_energy")
    words = f"type {GAS} has none; its particles count as collisionless" if missing else f"of type {GAS}"
    return [("internal energies", words)]


def _in_separations(info: io.CatalogueInfo, separation: MeanSeparation | None) -> str:
    if info.linking_length is None or separation is None:
        return ""
    return f", {number(info.linking_length / separation.value)} mean separations, {separation}"


def _largest_groups(
    cata: FofCatalogue, header: io.SnapshotHeader, extra: dict[str, io.Column]
) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows of the table of the largest groups, with some of the further columns if they exist."""

    def heading(name: str, kind: str) -> str:
        unit = io.unit_name(header, kind) if kind else ""
        return f"{name} [{unit}]" if unit else name

    rows = slice(0, _LARGEST)
    centres = np.asarray(cata.com_pos)[rows]
    columns = [("group", [number(row) for row in range(len(centres))])]
    columns.append(("particles", [number(int(count)) for count in cata.count[rows]]))
    if cata.mass is not None:
        columns.append((heading("mass", "mass"), column(cata.mass[rows])))
    for axis in range(centres.shape[1]):
        name = "xyz"[axis] if axis < 3 else f"x{axis}"
        columns.append((heading(name, "length"), column(centres[:, axis])))
    columns.append((heading("radius", "length"), column(cata.max_radius[rows])))
    for name, kind in _TABLE.items():
        if name in extra:
            values = np.asarray(extra[name].values, np.float64)[rows]
            is_known = values > 0
            cells = np.full(len(values), "-", object)
            cells[is_known] = column(values[is_known])
            columns.append((heading(name, kind), cells.tolist()))
    head = [name for name, _ in columns]
    return head, [[cells[row] for _, cells in columns] for row in range(len(centres))]
