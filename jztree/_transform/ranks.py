"""The ranks of a mesh, as the device that a function runs on sees them."""

import math
from typing import Any

import jax


def manual_axes() -> tuple[str, ...]:
    """The axes of the mesh that `jax.shard_map` maps over; none outside of it."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(name for name in mesh.axis_names if name in mesh.manual_axes)


def get_rank_info(axis_name: Any = None) -> tuple[Any, int, tuple[str, ...]]:
    """The rank of this device (a traced int32 scalar), the number of ranks, and the names of the mesh axes they run
    over.

    axis_name: one or several axes of the mesh; None means all. Outside of any mesh: ``(0, 1, ())``.
    """
    names = manual_axes() if axis_name is None else (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    if not names:
        return 0, 1, ()
    sizes = jax.sharding.get_abstract_mesh().shape
    return jax.lax.axis_index(names), math.prod(sizes[name] for name in names), names
