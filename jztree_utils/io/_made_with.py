"""The metadata of outputs: the options of the call that made an output of any kind, and how a catalogue was made."""

import dataclasses
from pathlib import Path
from typing import Any

import h5py

from jztree.data import check_no_unit

from ._attributes import number, text_attribute, whole_number
from ._catalogue_content import LENGTHS, CatalogueInfo
from ._files import PathLike, get_group, open_hdf5

MADE = "FriendsOfFriends"
_GROUPS = (MADE, "Neighbours", "Clusters", "Correlation")


def read_made_with(path: PathLike) -> str | None:
    """Return the options that made a catalogue in any layout, or a file of neighbours, clusters or correlations.

    Returns:
        The options as JSON, or None if the file does not store them.

    Raises:
        SnapshotError: If the file cannot be read.
    """
    with open_hdf5(Path(path)) as file:
        return next((text_attribute(file[name], "made_with") for name in _GROUPS if name in file), "") or None


def write_made(file: h5py.File, info: CatalogueInfo) -> None:
    """Write how the catalogue was made, apart from the header."""
    created = {f.name: getattr(info, f.name) for f in dataclasses.fields(info) if f.name != "header"}
    file.create_group(MADE).attrs.update(
        {name: _storable(name, value) for name, value in created.items() if value is not None}
    )


def _storable(name: str, value: Any) -> Any:
    """Return ``value``; in text, such as a file name, characters that are not UTF-8 are escaped."""
    check_no_unit(value, name)
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def read_made(file: h5py.File) -> dict[str, Any]:
    """Read the metadata written by `write_made`, as arguments of `CatalogueInfo`.

    Raises:
        SnapshotError: If the metadata is invalid.
    """
    if MADE not in file:
        return {}
    group = get_group(file, MADE)
    created: dict[str, Any] = {name: number(group, name) for name in LENGTHS}
    created |= {name: whole_number(group, name) for name in ("npart_min", "num_particles", "ptype")}
    texts = ("source", "made_with", "separation_by", "spheres_of")
    created |= {name: text_attribute(group, name) for name in texts if name in group.attrs}
    return {name: value for name, value in created.items() if value is not None}
