"""Group numbers of particles as columns of a snapshot, under the names of SWIFT and its tools.

``FOFGroupIDs`` count from 1, like ``Groups/GroupIDs`` of SWIFT's catalogues. They are 2147483647 for particles without
a group, the value of the parameter ``FOF:group_id_default``. HBT-HERONS and pynbody read both. ``GroupNr_bound`` counts
from 0, like ``InputHalos/HaloCatalogueIndex`` of SOAP's catalogues, and is -1 for particles without a row there, which
is a group or a subhalo; swiftgalaxy reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ._catalogue_content import CatalogueInfo, Column
from ._header import SnapshotHeader, unit_attributes
from ._snapshot_copy import AddedColumn
from ._subhaloes import members_of_subhaloes
from ._swift_catalogue import NO_GROUP, dataset_attributes, fof_parameters

_NO_ROW = -1


def number_subhaloes(
    places: Mapping[int, np.ndarray], subhaloes: Mapping[str, Column], counts: np.ndarray
) -> dict[int, np.ndarray]:
    """Return the subhalo of each particle by type, -1 for none.

    Args:
        places: By type, ``(n,)``, the place of each particle among the members of groups, or their number for none.
        subhaloes: The table of subhaloes.
        counts: ``(g,)``, the number of particles of each group.
    """
    numbers = np.append(members_of_subhaloes(subhaloes, counts), _NO_ROW)
    return {ptype: numbers[place] for ptype, place in places.items()}


def group_number_columns(
    groups: Mapping[int, np.ndarray],
    ngroups: int,
    info: CatalogueInfo,
    layout: str | None = None,
    subhaloes: Mapping[int, np.ndarray] | None = None,
) -> dict[int, dict[str, AddedColumn]]:
    """Return the columns by type, for `copy_snapshot`, of every type with particles in the snapshot.

    Args:
        groups: Result of `group_of_rows` for types that may be in groups.
        ngroups: Number of groups.
        info: The origin of the groups, with the header.
        layout: Layout of the catalogue; ``GroupNr_bound`` is for "soap" only.
        subhaloes: Result of `number_subhaloes`, None if the rows of the catalogue are groups.
    """
    header = info.header or SnapshotHeader()
    required = {"FOFGroupIDs": _Numbers(groups, ngroups, 1, NO_GROUP, "friends-of-friends group")}
    if layout == "soap":
        of_groups = replace(required["FOFGroupIDs"], first=0, none=_NO_ROW)
        of_subhaloes = None if subhaloes is None else _Numbers(subhaloes, _NO_ROW, 0, _NO_ROW, "subhalo")
        required["GroupNr_bound"] = of_subhaloes or of_groups
    held = [ptype for ptype, num in enumerate(header.npart_total) if num]
    return {ptype: {name: numbers.column(ptype, header) for name, numbers in required.items()} for ptype in held}


def group_number_parameters(info: CatalogueInfo) -> dict[str, Mapping[str, np.bytes_]]:
    """Return the attributes that belong to the columns, for `copy_snapshot`."""
    return {"Parameters": fof_parameters(info)}


@dataclass(frozen=True)
class _Numbers:
    """The numbers of the groups or subhaloes of particles.

    Attributes:
        rows: By type, ``(n,)``, the row of the group of each particle; particles of other types are in none.
        missing: The row of particles without a group.
        first: Number of the group in row 0.
        none: Number of particles without a group.
        words: The kind of group, in words.
    """

    rows: Mapping[int, np.ndarray]
    missing: int
    first: int
    none: int
    words: str

    def column(self, ptype: int, header: SnapshotHeader) -> AddedColumn:
        """Return the column of a type."""
        rows = self.rows.get(ptype)

        def read(start: int, stop: int) -> np.ndarray:
            if rows is None:
                return np.full(stop - start, self.none)
            numbers = rows[start:stop].astype(np.int64)
            return np.where(numbers == self.missing, self.none, numbers + self.first)

        words = f"number of the {self.words}, from {self.first}; {self.none} without a {self.words.split()[-1]}"
        if header.h_free:
            return AddedColumn(np.dtype(np.int64), read, dataset_attributes("1", words, header))
        return AddedColumn(np.dtype(np.int64), read, unit_attributes(header, "1") | {"description": words})
