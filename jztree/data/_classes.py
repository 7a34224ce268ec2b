"""Particle classes, labels, and names of rows."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._transform.plain_calls import holds_rows
from .._transform.pytrees import pytree
from ._describe import describe_arrays, describe_particles

Array = jax.Array | np.ndarray


def static_field(**kwargs: Any) -> Any:
    """Declare a dataclass field that is part of the pytree structure: compiled in, not traced."""
    return field(metadata={"static": True}, **kwargs)


@holds_rows
@pytree
class Pos:
    """Positions.

    Attributes:
        pos: ``(n, d)`` float32 or float64.
        num: Number of leading rows that hold particles. None means all.
        num_total: The number of particles on all devices together, static under tracing.
    """

    pos: Array
    num: int | Array | None = None
    num_total: int | None = static_field(default=None)

    def __repr__(self) -> str:
        return describe_particles(self)


@holds_rows
@pytree
class PosMass:
    """Positions and masses.

    Attributes:
        pos: ``(n, d)`` float32 or float64.
        mass: ``(n,)``, or a scalar that all particles share.
        num: Number of leading rows that hold particles; see `Pos`.
        num_total: The number of particles on all devices; see `Pos`.
    """

    pos: Array
    mass: float | Array | None = None
    num: int | Array | None = None
    num_total: int | None = static_field(default=None)

    def __repr__(self) -> str:
        return describe_particles(self)


@holds_rows
@pytree
class ParticleData:
    """The particles of a snapshot.

    Attributes:
        pos: ``(n, d)`` float32 or float64.
        mass: ``(n,)``, or a scalar that all particles share, or None.
        vel: ``(n, d)`` or None.
        id: ``(n,)`` integers or None.
        num: Number of leading rows that hold particles; see `Pos`.
        num_total: The number of particles on all devices; see `Pos`.
    """

    pos: Array
    mass: float | Array | None = None
    vel: Array | None = None
    id: Array | None = None
    num: int | Array | None = None
    num_total: int | None = static_field(default=None)

    def __repr__(self) -> str:
        return describe_particles(self)


class RankIdx(NamedTuple):
    """The location of particles.

    Attributes:
        rank: int32, the rank of the device.
        idx: int32, the row on that device.
    """

    rank: jax.Array
    idx: jax.Array

    def __repr__(self) -> str:
        return describe_arrays(self)


class Label(NamedTuple):
    """The group of each particle, identified by the group's first particle in z-order.

    Attributes:
        irank: int32, the rank that holds the first particle.
        igroup: int32, the row on that rank. With ``linearize_labels=True``, the row in the joined particles of all
            ranks.
    """

    irank: jax.Array
    igroup: jax.Array

    def stacked(self) -> jax.Array:
        """Return ``(n, 2)`` int32: rank and row."""
        return jnp.stack([self.irank, self.igroup], axis=-1)

    def __repr__(self) -> str:
        return describe_arrays(self)
