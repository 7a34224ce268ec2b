"""Properties of the groups of a snapshot that does not fit into memory, from the particles around each group."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jztree.data import FofCatalogue, ParticleData, squeeze_catalogue
from jztree.density import smoothing_length
from jztree.fof import sort_by_group
from jztree.jax_ext import exact
from jztree.substructure import Subhaloes, subhaloes

from ... import io, large
from ..._arrays import box_lengths
from .group_properties import GroupOptions, group_properties
from .particles import Member
from .spheres import is_sphere

_NUMBER = "number of the group"  # a name that no other column has


@dataclass
class WindowProperties:
    """Computes the properties and the subhaloes of groups in a window, equal to the results of a search in memory.

    Attributes:
        options: The options of the properties.
        boxsize: The box.
        masses: The shared mass of the particles in groups, and of each other type; None for individual masses.
        types: The types that may be in groups, the grouped type first.
        neighbours: Number of neighbours that the results depend on.
        wide: Whether to compute in float64.
    """

    options: GroupOptions
    boxsize: Any
    masses: list[float | None]
    types: list[int]
    neighbours: int
    wide: bool

    def __call__(self, window: large.Window) -> large.NearGroups:
        """Return the results for the groups of a window."""
        if len(window.particles) < self.neighbours:
            return large.NearGroups(np.full(len(window.groups), np.inf))
        with jax.enable_x64(self.wide):
            records = window.particles
            part = self._particles(records, self.masses[0], Member)
            part.row = np.arange(len(part.pos), dtype=np.int32)
            if len(self.types) > 1:
                part.kind = large.padded(np.asarray(self.types, np.int32)[window.types], len(part.pos))
            others = [
                self._particles(rows, mass, ParticleData)
                for rows, mass in zip(window.others, self.masses[1:], strict=True)
            ]
            label = _first_rows(records["group"], window.num_groups, len(part.pos))
            grouped, cata = self._sort(part, label)
            columns = jax.device_get(self._properties(grouped, cata, others)) if self.options.neighbours else {}
            distance = np.asarray(self._distance(grouped))
            bound = self._subhaloes(grouped, cata)
        records, cata = records[np.asarray(grouped.row)[: len(records)]], squeeze_catalogue(jax.device_get(cata))
        result = _of_groups(window, records["group"], cata, columns, distance)
        return result if bound is None else result._replace(**_subhaloes(records, cata, bound))

    # Compiled one by one, because a single program would hold the arrays of all searches at once.

    @cached_property
    def _sort(self) -> Any:
        def sort(part: Member, label: jax.Array) -> Any:
            box = exact(box_lengths(self.boxsize, part.pos.shape[1]), (part.pos.shape[1],))
            return sort_by_group(part, label, self.options.cfg.catalogue, box)

        return jax.jit(sort)

    @cached_property
    def _properties(self) -> Any:
        return jax.jit(
            lambda grouped, cata, others: group_properties(grouped, cata, self.boxsize, self.options, others)
        )

    @cached_property
    def _distance(self) -> Any:
        return jax.jit(lambda grouped: smoothing_length(grouped, self.neighbours, boxsize=self.boxsize or None))

    def _subhaloes(self, grouped: Member, cata: FofCatalogue) -> Subhaloes | None:
        if self.options.subhaloes is None:
            return None
        return jax.device_get(self.options.subhaloes.find(grouped, cata, self.boxsize or None, subhaloes.jit))

    def _particles(self, records: np.ndarray, mass: float | None, kind: Any) -> Any:
        capacity = large.capacity_for(len(records))
        names = [name for name in ("pos", "vel", "mass", "internal_energy") if name in (records.dtype.names or ())]
        columns: dict[str, Any] = {name: large.padded(records[name], capacity) for name in names}
        return kind(**({"mass": mass} | columns), num=len(records))


def _first_rows(group: np.ndarray, num_groups: int, capacity: int) -> np.ndarray:
    """Return the first row of the group of each particle, its own row without a group."""
    label = np.arange(capacity, dtype=np.int32)
    listed = np.flatnonzero(group < num_groups)
    _, first, number = np.unique(group[listed], return_index=True, return_inverse=True)
    label[listed] = listed[first[number]] if len(listed) else listed
    return label


def _of_groups(
    window: large.Window, group: np.ndarray, cata: FofCatalogue, columns: dict[str, np.ndarray], distance: np.ndarray
) -> large.NearGroups:
    """Return the columns of the groups of a window.

    Args:
        window: The window.
        group: The group of each particle, in group order.
        cata: The groups of the window.
        columns: Their columns.
        distance: The distance of each particle to the last of its neighbours.
    """
    count, offset = np.asarray(cata.count, np.int64), np.asarray(cata.offset, np.int64)
    number = group[offset]
    order = np.argsort(number)
    rows = order[np.searchsorted(number[order], window.groups)] if len(number) else order
    starts = np.cumsum(count) - count
    farthest = np.maximum.reduceat(distance[io.member_rows(count, offset)], starts) if len(count) else distance[:0]
    for name, column in columns.items():
        if is_sphere(name):
            radius = np.asarray(column)[: len(count)]
            farthest = np.maximum(farthest, np.where(np.isnan(radius), np.inf, radius))
    reach = np.asarray(cata.max_radius)[rows] + farthest[rows]
    return large.NearGroups(reach, {name: np.asarray(column)[: len(count)][rows] for name, column in columns.items()})


def _subhaloes(records: np.ndarray, cata: FofCatalogue, bound: Subhaloes) -> dict[str, Any]:
    """Return the subhaloes of all groups of a window, and their members in the order of binding.

    The parent of a subhalo is its place among the subhaloes of its group.
    """
    listed = int(np.asarray(cata.count, np.int64).sum())
    ids = records["id" if "id" in (records.dtype.names or ()) else "row"][:listed]
    members = Member(pos=np.empty((listed, 0)), id=ids, row=np.arange(listed), num=listed)
    columns = bound.columns()
    table = {name: io.Column(values, "1", "") for name, values in columns.items()}
    table["most_bound"] = io.Column(ids[columns["most_bound"]], "1", "")
    number = {_NUMBER: io.Column(records["group"][np.asarray(cata.offset)], "1", "")}
    ordered = io.order_with_subhaloes(
        members, cata, table, np.asarray(bound.subhalo)[:listed], np.asarray(bound.energy)[:listed], number
    )
    lists = {name: column.values for name, column in ordered.subhaloes.items()}
    begins = np.searchsorted(lists["group"], lists["group"])  # the first subhalo of the group of each
    lists["parent"] = np.where(lists["parent"] < 0, -1, lists["parent"] - begins)
    lists["group"] = ordered.extra[_NUMBER].values[lists["group"]]
    return {"lists": lists, "members": records[ordered.part.row]}


def subhalo_table(lists: dict[str, np.ndarray]) -> dict[str, io.Column]:
    """Return the subhaloes of all groups in the form of catalogue files, from the lists of `WindowProperties`."""
    begins = np.searchsorted(lists["group"], lists["group"])
    parent = np.where(lists["parent"] < 0, -1, lists["parent"] + begins)
    ids, rows = lists["most_bound"], np.arange(len(parent))
    return io.subhalo_columns(lists | {"parent": parent.astype(lists["parent"].dtype), "most_bound": rows}, ids)
