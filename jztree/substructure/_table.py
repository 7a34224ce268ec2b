"""The result of a search for subhaloes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

_OF_PARTICLES = ("subhalo", "energy")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Subhaloes:
    """Bound subhaloes, and the particles of each; see `subhaloes`.

    ``subhalo`` and ``energy`` have the rows of ``grouped``. The other columns have ``s`` rows, one per subhalo; rows
    from ``num`` on are 0, or -1 if they are row numbers. Subhaloes are in the order of the groups in the catalogue. In
    a group, the central subhalo comes first, then the others by falling count. On several devices, the subhaloes of a
    group are on the device of its catalogue row, and row numbers refer to the joined rows. Lengths have
    the unit of the positions.

    Attributes:
        subhalo: ``(n,)`` int32, the subhalo that the particle is bound to; -1 for none.
        energy: ``(n,)``, its energy per mass: kinetic in the frame of the core, internal and potential. 0 if the
            particle is in no subhalo.
        num: int32, the number of subhaloes.
        group: ``(s,)`` int32, the row of the group in the catalogue.
        parent: ``(s,)`` int32, the next larger subhalo that contains it; -1 for none.
        depth: ``(s,)`` int32, the number of larger subhaloes that contain it; 0 for central subhaloes.
        count: ``(s,)`` int32, the number of bound particles.
        count_by_type: ``(s, t)`` int32, their number by type. None without types.
        mass: ``(s,)``, their mass.
        most_bound: ``(s,)`` int32, the row of the particle of lowest energy.
        pos: ``(s, d)``, the position of the particle of lowest potential.
        vel: ``(s, d)``, the mean velocity of the core.
        com_pos: ``(s, d)``, the centre of mass.
        com_vel: ``(s, d)``, the mean velocity.
        vmax: ``(s,)``, the largest circular velocity.
        rmax: ``(s,)``, the radius of the largest circular velocity.
        half_mass_radius: ``(s,)``, the radius of half the mass.
        vel_dispersion: ``(s,)``, the one-dimensional velocity dispersion.
        angular_momentum: ``(s, d * (d - 1) / 2)``, per mass; see `jztree.data.FofCatalogue`.
        spin: ``(s,)``, the spin parameter of Peebles (1969).
    """

    subhalo: jax.Array
    energy: jax.Array
    num: jax.Array
    group: jax.Array
    parent: jax.Array
    depth: jax.Array
    count: jax.Array
    count_by_type: jax.Array | None
    mass: jax.Array
    most_bound: jax.Array
    pos: jax.Array
    vel: jax.Array
    com_pos: jax.Array
    com_vel: jax.Array
    vmax: jax.Array
    rmax: jax.Array
    half_mass_radius: jax.Array
    vel_dispersion: jax.Array
    angular_momentum: jax.Array
    spin: jax.Array

    def tables(self) -> dict[str, jax.Array]:
        """Return the columns with one row per subhalo by name, including unused rows."""
        names = [name for name in self.__dataclass_fields__ if name not in (*_OF_PARTICLES, "num")]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def columns(self) -> dict[str, Any]:
        """Return the columns with one row per subhalo by name, as NumPy arrays without unused rows.

        If the columns have a leading axis over devices, the devices are joined.
        """
        num, table = np.atleast_1d(np.asarray(self.num)), self.tables()
        if np.ndim(self.num) == 0:
            return {name: np.asarray(column)[: num[0]] for name, column in table.items()}
        used = np.arange(self.group.shape[1]) < num[:, None]
        return {name: np.asarray(column)[used] for name, column in table.items()}

    def __repr__(self) -> str:
        return f"Subhaloes({self.group.shape} rows, {self.subhalo.shape} particles)"
