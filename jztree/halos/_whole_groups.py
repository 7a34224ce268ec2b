"""Collect all particles of each group on the device of its catalogue row."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm
from .._transform.capacity import choose_capacity
from ..arguments import known_integer
from ..data import FofCatalogue
from ._densest import Ends, check_groups, ends_of, groups_of_rows, groups_of_segments
from ._rows import are_used


class WholeGroups(NamedTuple):
    """The particles of the groups whose catalogue rows are here, ``m`` rows; rows of a group are contiguous.

    Attributes:
        columns: Properties of the particles.
        rank: ``(m,)`` int32, the device that holds each particle.
        row: ``(m,)`` int32, the row there.
        ngroups: int32, the number of groups.
        count: ``(g,)`` int32, the particles of each group.
        offset: ``(g,)`` int32, the first row of each group; ``m`` for rows without a group.
        ends: The groups that continue on other devices.
        route: The path of the rows. None on one device.
    """

    columns: Any
    rank: jax.Array
    row: jax.Array
    ngroups: jax.Array
    count: jax.Array  # type: ignore[assignment]  # the name is also a method of tuples
    offset: jax.Array
    ends: Ends
    route: comm.Route | None

    def groups_of_rows(self) -> jax.Array:
        """Return ``(m,)`` int32: the catalogue row of each particle's group, ``g`` for particles in no group."""
        n, used = self.row.shape[0], are_used(self.ngroups, self.count.shape[0])
        return groups_of_segments(used, self.count, self.offset, n, n, n)

    def send_back(self, answers: Any, fill: Any) -> Any:
        """Return answers ``(m, ...)`` to the rows of the particles, and ``fill`` to particles in no group."""
        return answers if self.route is None else comm.send_back(answers, self.route, fill=fill)


def first_rows_of_groups(cata: FofCatalogue, start: jax.Array, num: jax.Array, n: int) -> jax.Array:
    """Return ``(n,)`` int32, the first of the joined rows of each particle's group; -1 for particles in no group.

    Args:
        cata: The catalogue, with at least one row.
        start: ``(g,)`` int32, the first of the joined rows of each group that begins here.
        num: int32, the number of particles here.
        n: The number of rows.
    """
    ends = ends_of(cata, num)
    begun_before = comm.all_gather(start[ends.last])[ends.owner()]
    group = groups_of_rows(cata, num, ends, n)
    return jnp.append(start, begun_before).at[group].get(mode="fill", fill_value=-1)


def whole_groups(columns: Any, cata: FofCatalogue, num: jax.Array, group_rows: int | None) -> WholeGroups:
    """Collect whole groups, or raise on every device if the catalogue belongs to other particles.

    Args:
        columns: A pytree of arrays ``(n, ...)``, particles in group order.
        cata: The catalogue of the groups, with at least one row.
        num: int32, the number of particles here.
        group_rows: The capacity for particles on each of several devices. None means a capacity sufficient for almost
            all data sets.
    """
    if group_rows is not None:
        known_integer(group_rows, "group_rows", 1)
    n, catalogue_rows = jax.tree.leaves(columns)[0].shape[0], np.shape(cata.count)[0]
    ends = ends_of(cata, num)
    group = groups_of_rows(cata, num, ends, n)
    num = check_groups(cata, num, ends, group)
    rank, ndev, _ = comm.get_rank_info()
    rows, origin = jnp.arange(n, dtype=jnp.int32), jnp.full((n,), rank, jnp.int32)
    ngroups, count, offset = (jnp.asarray(column, jnp.int32) for column in (cata.ngroups, cata.count, cata.offset))
    if ndev == 1:
        return WholeGroups(columns, origin, rows, comm.after(ngroups, num), count, offset, ends, None)
    to_rank = jnp.where(group == catalogue_rows, ends.owner(), jnp.where(group < catalogue_rows, rank, -1))
    capacity = choose_capacity("group_rows", group_rows, n + n // 4 + 16, n * ndev)
    (columns, origin, rows), _, route = comm.exchange_by_rank(
        (columns, origin, rows),
        to_rank,
        num,
        capacity,
        what="particles of groups that begin there",
        advice="set group_rows to that or more.",
        name="groups",
    )
    # Rows arrive in the order of the devices, and only later devices hold more rows of the last group.
    listed_row = jnp.cumsum((group < catalogue_rows).astype(jnp.int32), dtype=jnp.int32) - 1
    offset = jnp.where(offset < n, listed_row[jnp.clip(offset, 0, n - 1)], capacity.rows)
    return WholeGroups(columns, origin, rows, ngroups, count, offset, ends, route)
