"""The table of a search for subhaloes in the form and the order of catalogue files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import FofCatalogue, map_rows, squeeze_particles
from jztree.substructure import DEFINITIONS

from ._catalogue import canonical_order
from ._catalogue_content import Column, TypeTable, described
from ._subhaloes import check_subhaloes, order_by_binding

_Part = TypeVar("_Part")
_ROW = "row of the group"  # a name that no other column has


class OrderedSubhaloes(NamedTuple):
    """Particles, catalogue and subhaloes in the order of the files.

    Attributes:
        part: The particles, in the order of `order_by_binding`.
        cata: The groups.
        extra: Further columns of the groups.
        by_type: Particles of each type in each group, or None.
        subhaloes: The columns of the subhaloes.
    """

    part: Any
    cata: FofCatalogue
    extra: dict[str, Column]
    by_type: TypeTable | None
    subhaloes: dict[str, Column]


def subhalo_columns(columns: Mapping[str, ArrayLike], ids: ArrayLike | None = None) -> dict[str, Column]:
    """Return the columns of a search for subhaloes with their units and definitions.

    Args:
        columns: Columns by name, with one row per subhalo. Names without a definition raise.
        ids: ``(n,)``, the identifiers of the particles; ``most_bound``, the row of a particle, becomes
            ``most_bound_id``.

    Raises:
        ValueError: If a column has an unknown name.
    """
    held = {name: np.asarray(values) for name, values in columns.items()}
    most_bound = held.pop("most_bound", None)
    if names := held.keys() - DEFINITIONS.keys():
        raise ValueError(
            f"The column {min(names)!r} of subhaloes has no definition; give it as a jztree_utils.io.Column."
        )
    table = {name: Column(values, *described(DEFINITIONS[name])) for name, values in held.items()}
    if most_bound is not None and ids is not None:
        words = DEFINITIONS["most_bound"].words.replace("row", "identifier")
        table["most_bound_id"] = Column(np.asarray(ids)[most_bound], "1", words)
    return table


def order_with_subhaloes(
    part: _Part,
    cata: FofCatalogue,
    subhaloes: Mapping[str, Column],
    subhalo: ArrayLike,
    energy: ArrayLike,
    extra: Mapping[str, Column] | None = None,
    by_type: TypeTable | None = None,
) -> OrderedSubhaloes:
    """Sort particles, groups and subhaloes into the order of the files; see `canonical_order` for the groups.

    Args:
        part: Particles in group order, ``n`` rows; the particles of several ranks are joined to one set.
        cata: The catalogue of ``part``; its ``offset`` is a row of the joined set.
        subhaloes: Columns of the subhaloes by name. ``group`` is a row of ``cata``, ``parent`` a row of this table.
        subhalo: ``(n,)``, the subhalo of each row of ``part``, -1 for none.
        energy: ``(n,)``, the energy of each row of ``part``.
        extra, by_type: See `canonical_order`.

    Returns:
        The arguments in their new order. Subhaloes of a group keep their order.

    Raises:
        ValueError: See `canonical_order`; also if the subhaloes do not belong to the groups.
    """
    held: Any = squeeze_particles(part)
    n = len(held.pos)
    ngroups = int(cata.ngroups)
    numbered = _Rows(held.pos, getattr(held, "id", None), np.arange(n), n)
    row_of_group = {_ROW: Column(np.arange(ngroups), "1", "")}
    rows, cata, columns, by_type = canonical_order(numbered, cata, {**(extra or {}), **row_of_group}, by_type)
    rank = np.empty(ngroups, np.int64)
    rank[columns.pop(_ROW).values] = np.arange(ngroups)
    group = rank[np.asarray(subhaloes["group"].values)] if ngroups else np.zeros(0, np.int64)
    order = np.argsort(group, kind="stable")
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    table = {name: replace(column, values=np.asarray(column.values)[order]) for name, column in subhaloes.items()}
    table["group"] = replace(table["group"], values=group[order])
    if "parent" in table:
        parent = table["parent"].values
        table["parent"] = replace(table["parent"], values=np.where(parent < 0, -1, number[parent]))
    counts = np.asarray(cata.count, np.int64)
    check_subhaloes(table, counts)
    of_group = np.full(n, -1)
    of_group[: counts.sum()] = np.repeat(np.arange(ngroups), counts)
    # One more entry, for the particles of no subhalo.
    of_subhalo = np.append(number, -1)[np.asarray(subhalo)[rows.row]]
    bound = rows.row[order_by_binding(of_group, of_subhalo, np.asarray(energy)[rows.row])]
    return OrderedSubhaloes(map_rows(lambda leaf: np.asarray(leaf)[bound], held), cata, columns, by_type, table)


class _Rows(NamedTuple):
    """Particles by their rows, with the properties that determine the order."""

    pos: Any
    id: Any
    row: Any
    num: int
