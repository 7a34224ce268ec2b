"""Group numbers of particles as columns of a snapshot, under the names of SWIFT and its tools.

``FOFGroupIDs`` count from 1, like ``Groups/GroupIDs`` of SWIFT's catalogues. They are 2147483647 for particles without
a group, the value of the parameter ``FOF:group_id_default``. HBT-HERONS and pynbody read both. ``GroupNr_bound`` counts
from
0, like ``InputHalos/HaloCatalogueIndex`` of SOAP's catalogues, and is -1 for particles without a group; swiftgalaxy
reads it.
"""

from collections.abc import Mapping

import numpy as np

from ._catalogue_content import CatalogueInfo
from ._header import SnapshotHeader, unit_attributes
from ._snapshot_copy import AddedColumn
from ._swift_catalogue import NO_GROUP, dataset_attributes, fof_parameters

_NO_ROW = -1


def group_number_columns(
    groups: Mapping[int, np.ndarray], ngroups: int, info: CatalogueInfo, layout: str | None = None
) -> dict[int, dict[str, AddedColumn]]:
    """Return the columns by type, for `copy_snapshot`, of every type with particles in the snapshot.

    Args:
        groups: Result of `group_of_rows` for types that may be in groups.
        ngroups: Number of groups.
        info: The origin of the groups, with the header.
        layout: Layout of the catalogue; ``GroupNr_bound`` is for "soap" only.
    """
    header = info.header or SnapshotHeader()
    required = [("FOFGroupIDs", 1, NO_GROUP)] + ([("GroupNr_bound", 0, _NO_ROW)] if layout == "soap" else [])
    held = (ptype for ptype, num in enumerate(header.npart_total) if num)
    return {
        ptype: {name: _column(groups.get(ptype), ngroups, first, none, header) for name, first, none in required}
        for ptype in held
    }


def group_number_parameters(info: CatalogueInfo) -> dict[str, Mapping[str, np.bytes_]]:
    """Return the attributes that belong to the columns, for `copy_snapshot`."""
    return {"Parameters": fof_parameters(info)}


def _column(groups: np.ndarray | None, ngroups: int, first: int, none: int, header: SnapshotHeader) -> AddedColumn:
    """Return the column of one type; without ``groups``, no particle is in one. Group 0 has the number ``first``."""

    def read(start: int, stop: int) -> np.ndarray:
        if groups is None:
            return np.full(stop - start, none)
        numbers = groups[start:stop].astype(np.int64)
        return np.where(numbers == ngroups, none, numbers + first)

    words = f"number of the friends-of-friends group, from {first}; {none} without a group"
    if header.h_free:
        return AddedColumn(np.dtype(np.int64), read, dataset_attributes("1", words, header))
    return AddedColumn(np.dtype(np.int64), read, unit_attributes(header, "1") | {"description": words})
