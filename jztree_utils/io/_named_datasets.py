"""HDF5 files of any layout, with dataset names from the user."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from ._columns import Column, Survey
from ._errors import OPTION, SnapshotError
from ._files import check_links
from ._hdf5_columns import Hdf5Part, read_all, stored_as
from ._header import SnapshotHeader, box_in_header
from ._read_options import ReadOptions

_MOST_LISTED = 8


def survey_datasets(file: h5py.File, ptype: int | None, options: ReadOptions) -> Survey:
    """Survey the particles in the datasets that ``options`` names, without conversion, as type 1.

    The header is only used for the box, and only if no box is given.

    Args:
        file: The open file.
        ptype: Not used, because the datasets have no types.
        options: Options for reading the snapshot, with the names.

    Raises:
        SnapshotError: If no dataset is named, or a dataset is missing.
    """
    if options.pos is None:
        raise _what_to_name(file)
    columns = {name: stored_as(file, dataset) for name, dataset in options.names.items()}
    pos = columns["pos"]
    num = pos.shape[0] if pos.shape else 0
    mass = 0.0
    if "mass" in columns and not columns["mass"].shape:  # one number for all particles
        mass = _number(file, columns.pop("mass"))
    box = box_in_header(file) if options.box is None else options.box
    if Path(pos.name).name == "IntCoordinates":  # Gadget-4's name; other integers are not supported
        columns["pos"] = replace(pos, box=_positive(file, box))
    header = SnapshotHeader(boxsize=box, npart_total=(0, num), mass_table=(0.0, mass))
    part = Hdf5Part(path=Path(file.filename), num=num, columns=columns, usual={})
    return Survey(f"HDF5 dataset {pos.name}", options.complete(header), (0, num), part)


def _what_to_name(file: h5py.File) -> SnapshotError:
    """Return the error for a file without named positions, with a list of candidate datasets."""
    check_links(file, "Header")
    result: list[str] = []

    def look(name: str, item: h5py.Group | h5py.Dataset) -> bool | None:
        if isinstance(item, h5py.Dataset) and len(item.shape or ()) == 2 and 1 <= item.shape[1] <= 8:
            result.append(name)
        return len(result) > _MOST_LISTED or None

    file.visititems(look)
    listed = ", ".join(result[:_MOST_LISTED]) + (", ..." if len(result) > _MOST_LISTED else "")
    candidates = f"such as {listed}" if result else "but the file has no dataset of shape (n, d)"
    return SnapshotError(
        f"{file.filename} is not a snapshot of Gadget, AREPO or SWIFT, because it has no group Header with "
        f"NumPart_ThisFile; name the dataset of positions ({OPTION}), {candidates}.",
        "pos",
    )


def _number(file: h5py.File, column: Column) -> float:
    value = np.asarray(read_all(file, column.name))
    if value.dtype.kind not in "iuf":
        raise SnapshotError(f"{file.filename} holds {column.name} of dtype {value.dtype}; it must be a number.")
    return float(value)


def _positive(file: h5py.File, box: float | tuple[float, ...]) -> np.ndarray:
    lengths = np.asarray(box)
    if not (lengths > 0).all():
        raise SnapshotError(
            f"{file.filename} holds integer coordinates, which are fractions of a box, but no box; give the length of "
            f"the box ({OPTION}).",
            "boxsize",
        )
    return lengths
