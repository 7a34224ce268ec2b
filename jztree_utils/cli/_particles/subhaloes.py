"""Subhaloes of groups: find them, and sort them and their members into the order of a catalogue."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import jztree as jz
from jztree.data import FofCatalogue

from ... import io
from .group_properties import GroupOptions

MIN_BOUND = 20
# Names of columns in files that differ from the library's, and columns that files do not have.
_RENAMED = {"angular_momentum": "specific_angular_momentum"}
_LEFT_OUT = ("most_bound",)
_OF_PARTICLES = ("subhalo", "energy", "kind")


@dataclass(frozen=True)
class SubhaloTable:
    """Subhaloes, in the order of the groups, and their members.

    Attributes:
        number: ``(m,)``, the subhalo of each member of a group, -1 for none.
        energy: ``(m,)``, its energy.
        kind: ``(m,)``, its type; None if all have the same type.
        columns: Properties by name, one row per subhalo.
    """

    number: np.ndarray
    energy: np.ndarray
    kind: np.ndarray | None
    columns: dict[str, np.ndarray]


def table_of(result: dict[str, Any], members: Any = slice(None)) -> SubhaloTable:
    """Return the subhaloes of members of groups.

    Args:
        result: The columns of `jztree.Subhaloes` without unused rows, and the types ``kind`` of the particles, or None.
        members: Rows of the members among the particles.
    """
    number, energy, kind = (
        None if column is None else np.asarray(column)[members] for column in map(result.pop, _OF_PARTICLES)
    )
    assert number is not None
    assert energy is not None
    return SubhaloTable(number, energy, kind, {name: np.asarray(column) for name, column in result.items()})


def find(grouped: Any, cata: FofCatalogue, boxsize: Any, options: GroupOptions) -> jz.Subhaloes:
    """Return the subhaloes of the groups of one device."""
    assert options.gravity is not None
    return jz.subhaloes(
        grouped,
        cata,
        options.gravity,
        softening=options.softening,
        boxsize=boxsize or None,
        hubble=options.hubble,
        scale_factor=options.scale_factor,
        min_bound=MIN_BOUND,
    )


def sorted_by_binding(
    ids: np.ndarray, cata: FofCatalogue, table: SubhaloTable, order: np.ndarray
) -> tuple[np.ndarray, dict[str, io.Column]]:
    """Return the order of members in a catalogue with subhaloes, and the columns of the subhaloes.

    Args:
        ids: ``(m,)``, identifiers of the members in the order of the catalogue.
        cata: The catalogue in its order.
        table: The subhaloes, before the catalogue was sorted.
        order: ``(m,)``, the place in ``table`` of each member.
    """
    number, energy = table.number[order], table.energy[order]
    group = np.repeat(np.arange(len(cata.count)), np.asarray(cata.count, np.int64))
    inside = number >= 0
    of_subhalo = np.zeros(len(table.columns["count"]), np.int64)
    of_subhalo[number[inside]] = group[inside]
    rows = np.argsort(of_subhalo, kind="stable")  # in a group, the order is the same
    new_number = np.append(np.argsort(rows), -1)
    number = new_number[number]
    sorting = io.order_by_binding(group, number, energy)
    columns = {name: column[rows] for name, column in table.columns.items() if name not in _LEFT_OUT}
    columns |= {"group": of_subhalo[rows].astype(np.int32), "parent": new_number[columns["parent"]].astype(np.int32)}
    described = {
        _RENAMED.get(name, name): io.Column(values, jz.substructure.DEFINITIONS[name].kind, _in_words(name))
        for name, values in columns.items()
    }
    first = np.flatnonzero((np.diff(number[sorting], prepend=-2) != 0) & (number[sorting] >= 0))
    described["most_bound_id"] = io.Column(ids[sorting][first], "1", "identifier of the particle of lowest energy")
    if table.kind is not None:
        held = number[inside] * io.NUM_TYPES + table.kind[order][inside]
        counts = np.bincount(held, minlength=len(rows) * io.NUM_TYPES).reshape(len(rows), io.NUM_TYPES)
        described["count_by_type"] = io.Column(counts, "1", _in_words("count_by_type"))
    return sorting, described


def _in_words(name: str) -> str:
    _, words, source = jz.substructure.DEFINITIONS[name]
    return f"{words} ({source})" if source else words
