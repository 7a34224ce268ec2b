"""The number of the group of each particle as columns of a snapshot, under the names that SWIFT and its tools have.

``FOFGroupIDs`` count from 1, as ``Groups/GroupIDs`` of SWIFT's catalogues, and are 2147483647 where there is no group,
which ``FOF:group_id_default`` of the parameters says: HBT-HERONS and pynbody read both. ``GroupNr_bound`` counts from
0, as ``InputHalos/HaloCatalogueIndex`` of SOAP's catalogues, and is -1 where there is no group: swiftgalaxy reads it.
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
    """The columns by type, for `copy_snapshot`, of all types that the snapshot has particles of.

    groups: of `group_of_rows`, those of types that are in groups. ngroups: how many there are. info: with the header.
    layout: of the catalogue; ``GroupNr_bound`` is for "soap" only.
    """
    header = info.header or SnapshotHeader()
    wanted = [("FOFGroupIDs", 1, NO_GROUP)] + ([("GroupNr_bound", 0, _NO_ROW)] if layout == "soap" else [])
    held = (ptype for ptype, num in enumerate(header.npart_total) if num)
    return {
        ptype: {name: _column(groups.get(ptype), ngroups, first, none, header) for name, first, none in wanted}
        for ptype in held
    }


def group_number_parameters(info: CatalogueInfo) -> dict[str, Mapping[str, np.bytes_]]:
    """The attributes that go with them, for `copy_snapshot`."""
    return {"Parameters": fof_parameters(info)}


def _column(groups: np.ndarray | None, ngroups: int, first: int, none: int, header: SnapshotHeader) -> AddedColumn:
    """The column of one type. groups: None if no particle of it is in any. first: the number of the first group."""

    def read(start: int, stop: int) -> np.ndarray:
        if groups is None:
            return np.full(stop - start, none)
        numbers = groups[start:stop].astype(np.int64)
        return np.where(numbers == ngroups, none, numbers + first)

    words = f"number of the friends-of-friends group, from {first}; {none} for none"
    if header.h_free:
        return AddedColumn(np.dtype(np.int64), read, dataset_attributes("1", words, header))
    return AddedColumn(np.dtype(np.int64), read, unit_attributes(header, "1") | {"description": words})
