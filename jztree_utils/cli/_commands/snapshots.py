"""The snapshots in the arguments of a call: their paths, how to read them, and their contents."""

import dataclasses
import warnings
from argparse import Namespace
from pathlib import Path

from jax.sharding import Mesh

from ... import ics, io
from ...mass_function import with_units
from .._particles.box import check_box, find_outside
from .._particles.particles import Particles
from .._particles.reading import Source, open_matter, open_types, read_particles
from .._report import VERBOSE, number, stage, warn
from .._verbose import print_snapshot
from .argument_checks import box_lengths
from .flag_values import real
from .header_arguments import header_entries
from .input_files import SAMPLE


def snapshot_path(name: str) -> Path:
    """Return the path of a snapshot, given by a path or by the name of the sample."""
    return ics.SAMPLE_3D if name == SAMPLE else Path(name)


def read_options(args: Namespace) -> io.ReadOptions:
    """Return how to read snapshots. Raises ValueError for an invalid box size or unit, or too large a number."""
    entries = {name: getattr(args, name) for name in ("format", "pos", "vel", "mass", "id")}
    entries |= header_entries(args, real)
    return io.ReadOptions(**entries, boxsize=box_lengths(args.boxsize))


def source_of(
    path: Path, args: Namespace, mesh: Mesh, attach: tuple[int, ...] | None = (), matter: tuple[int, ...] | None = ()
) -> Source:
    """Return the particles selected by the options. Raises ValueError on all processes for an invalid option."""
    with io.failing_together(mesh):
        return Source(path, args.type, attach, read_options(args), matter)


def open_checked(source: Source, layout: str | None) -> list[io.Snapshot]:
    """Open the snapshot once for each of its types, the grouped type first; only headers are read.

    Args:
        layout: Layout of its catalogue, None without a catalogue.

    Raises:
        SnapshotError: If the snapshot is unusable; see `io.open_snapshot`.
        ValueError: If the layout cannot hold its catalogue.
    """
    snapshots = open_types(source)
    for snapshot in snapshots:
        snapshot.header = complete_header(source.path, snapshot.header)
    if layout is not None:
        (ndim,) = snapshots[0].layout("pos")[1]
        io.check_layout(layout, snapshots[0].header, ndim, source.ptype)
    return snapshots


def complete_header(path: Path, header: io.SnapshotHeader) -> io.SnapshotHeader:
    """Return the header with units that its file lacks: units of the sample, or units that follow from its masses."""
    if path == ics.SAMPLE_3D and header.unit_length_in_cm is None:
        header = dataclasses.replace(header, **ics.SAMPLE_3D_UNITS)
    return with_units(header)


def read_checked(
    source: Source, optional: tuple[str, ...], mesh: Mesh, layout: str | None = None, spheres: bool = False
) -> Particles:
    """Read the particles and print a description of the snapshot.

    Args:
        source: The snapshot, and its particles to read.
        optional: Properties that are read if they exist.
        mesh: The devices for the particles.
        layout: See `open_checked`.
        spheres: Whether spheres, and therefore other matter, are needed.
    """
    with io.failing_together(mesh), stage("open the snapshot", level=VERBOSE):
        snapshots = open_checked(source, layout)
        matter = open_matter(source, snapshots) if spheres else None
        print_snapshot(snapshots)
    with stage("read the snapshot") as report, warnings.catch_warnings():
        # Each process would warn about its rows; instead the first process warns below.
        warnings.filterwarnings("ignore", message=".* differ from the mass in the MassTable")
        part = read_particles(snapshots, optional, mesh, matter)
        report.particles = part.num
        report.detail = part.snapshot.description
    corners = part.corners()
    with io.failing_together(mesh):
        check_box(corners, part.header)
    part.outside = find_outside(corners, part.header, part.count_outside)
    for sentence in part.differing_masses():
        warn(sentence)
    if part.outside is not None:
        warn(part.outside.sentence)
    return part


def box_in_words(header: io.SnapshotHeader) -> str:
    """Describe the box, for example ``50 x 50 x 100``."""
    if not header.boxsize:
        return "none (open)"
    lengths = header.boxsize if isinstance(header.boxsize, tuple) else (header.boxsize,)
    return " x ".join(number(float(length)) for length in lengths)
