"""Properties of the groups of a snapshot that does not fit into memory, from the particles around each group."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jztree.data import FofCatalogue, ParticleData, squeeze_catalogue
from jztree.fof import sort_by_group
from jztree.jax_ext import exact
from jztree.knn import knn
from jztree.tree import zsort

from ... import io, large
from ..._arrays import box_lengths
from .group_properties import GroupOptions, group_properties
from .particles import Member
from .spheres import is_sphere

_FEWEST = 1024  # capacity of the smallest window


@dataclass
class WindowProperties:
    """Computes the properties of groups in a window as `group_properties` does for all particles.

    Attributes:
        options: The options of the properties.
        boxsize: The box.
        corners: The corners of all particles, which determine the z-order.
        masses: The shared mass of the particles of each type, the grouped type first; None for individual masses.
        wide: Whether to compute in float64.
    """

    options: GroupOptions
    boxsize: Any
    corners: np.ndarray
    masses: list[float | None]
    wide: bool

    def __call__(self, window: large.Window) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the columns of the groups, and the distances that they depend on."""
        if len(window.particles) < self.options.neighbours:
            return {}, np.full(len(window.groups), np.inf)
        with jax.enable_x64(self.wide):
            records = self._in_z_order(window.particles)
            part = self._particles(records, self.masses[0], Member)
            part.row = np.arange(len(part.pos), dtype=np.int32)
            others = [
                self._particles(rows, mass, ParticleData)
                for rows, mass in zip(window.others, self.masses[1:], strict=True)
            ]
            label = _first_rows(records["group"], window.num_groups, len(part.pos))
            row, cata, columns, distance = jax.device_get(self._search(part, label, others))
        return _of_groups(window, records["group"][row[: len(records)]], squeeze_catalogue(cata), columns, distance)

    @cached_property
    def _search(self) -> Any:
        options = self.options

        def search(part: Member, label: jax.Array, others: list[ParticleData]) -> Any:
            box = exact(box_lengths(self.boxsize, part.pos.shape[1]), (part.pos.shape[1],))
            grouped, cata = sort_by_group(part, label, options.cfg.catalogue, box)
            columns = group_properties(grouped, cata, self.boxsize, options, others)
            neighbours = knn(grouped, options.neighbours, boxsize=self.boxsize or None)
            return grouped.row, cata, columns, neighbours[0][:, -1]

        return jax.jit(search)

    def _in_z_order(self, records: np.ndarray) -> np.ndarray:
        """Return particles in the z-order of all particles, as in a search in memory."""
        box = box_lengths(self.boxsize, records["pos"].shape[1])
        pos = large.padded(records["pos"], _capacity(len(records)))
        order = np.asarray(zsort.jit(pos, box, (self.corners[0], self.corners[1]))[1])
        return records[order[order < len(records)]]

    def _particles(self, records: np.ndarray, mass: float | None, kind: Any) -> Any:
        capacity = _capacity(len(records))
        names = [name for name in ("pos", "vel", "mass") if name in (records.dtype.names or ())]
        columns: dict[str, Any] = {name: large.padded(records[name], capacity) for name in names}
        return kind(**({"mass": mass} | columns), num=len(records))


def _capacity(num: int) -> int:
    """Return a capacity, of which there are few, because each is compiled."""
    return max(_FEWEST, 1 << max(num - 1, 0).bit_length())


def _first_rows(group: np.ndarray, num_groups: int, capacity: int) -> np.ndarray:
    """Return the first row of the group of each particle, its own row without a group."""
    label = np.arange(capacity, dtype=np.int32)
    listed = np.flatnonzero(group < num_groups)
    _, first, number = np.unique(group[listed], return_index=True, return_inverse=True)
    label[listed] = listed[first[number]] if len(listed) else listed
    return label


def _of_groups(
    window: large.Window, group: np.ndarray, cata: FofCatalogue, columns: dict[str, np.ndarray], distance: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the columns of the groups of a window, and the largest distances that they depend on.

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
    return {name: np.asarray(column)[: len(count)][rows] for name, column in columns.items()}, reach
