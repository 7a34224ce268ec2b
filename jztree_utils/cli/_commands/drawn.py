"""The data for pictures and views: the particles of a snapshot, and the groups in a catalogue."""

from argparse import Namespace
from dataclasses import replace

import numpy as np

from ... import io
from ...mass_function import with_units
from .._particles.box import check_box, corners_of, count_outside, find_outside
from .._report import warn
from .input_files import SAMPLE
from .snapshots import complete_header, read_options, snapshot_path


def positions_of(args: Namespace) -> tuple[np.ndarray, io.SnapshotHeader]:
    """Return the positions of the particles of the first input, and its header with all known units."""
    path = snapshot_path(args.input[0])
    snapshot = io.open_snapshot(path, args.type, read_options(args))
    pos = snapshot.read("pos", finite=True)
    corners, header = corners_of(pos), complete_header(path, snapshot.header)
    check_box(corners, header)
    outside = find_outside(corners, header, lambda low, high: count_outside(pos, low, high))
    if outside is not None:
        warn(outside.sentence)
    return pos, header


def mass_of(args: Namespace) -> float | np.ndarray | None:
    """Return the masses of the particles of the first input, or their common mass; None without masses."""
    snapshot = io.open_snapshot(snapshot_path(args.input[0]), args.type, read_options(args))
    if snapshot.shared_mass is not None:
        return snapshot.shared_mass
    return snapshot.read("mass", finite=True) if "mass" in snapshot.present(("pos",), ("mass",)) else None


def catalogue_of(args: Namespace, path: str) -> io.CatalogueContent:
    """Read a catalogue. Raises ValueError for a snapshot, because its groups are not known yet."""
    source = snapshot_path(path)
    if path == SAMPLE or source.is_dir() or not io.is_catalogue(source):
        io.read_header(source)
        raise ValueError(
            f"{_command(args)} draws groups, but {path} is a snapshot; find its groups with "
            f"jztree fof {path} -o halos.hdf5, and give halos.hdf5."
        )
    content = io.read_catalogue_content(source)
    header = with_units(read_options(args).complete(content.header))
    return replace(content, info=replace(content.info, header=header))


def groups_of(args: Namespace, header: io.SnapshotHeader) -> io.CatalogueContent:
    """Return the contents of --catalogue in the units of a snapshot.

    Args:
        header: Header of the snapshot.

    Raises:
        ValueError: If the catalogue belongs to another box.
    """
    content = catalogue_of(args, args.catalogue)
    if header.unit_length_in_cm is not None:
        content = io.convert_h(content, header.h_free)
    box = content.header.boxsize
    if box and header.boxsize and not np.allclose(box, header.boxsize, rtol=1e-4):
        raise ValueError(
            f"{args.catalogue} has the box {box}, but the snapshot has {header.boxsize}; give the catalogue of the "
            "snapshot."
        )
    return content


def columns_of(content: io.CatalogueContent) -> dict[str, np.ndarray]:
    """Return the extra columns of a catalogue by name."""
    return {name: np.asarray(column.values) for name, column in content.extra.items()}


def _command(args: Namespace) -> str:
    return f"plot {args.kind}" if args.command == "plot" else str(args.command)
