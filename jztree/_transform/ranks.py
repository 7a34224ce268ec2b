"""The ranks of a mesh, from the viewpoint of the device that runs a function."""

import math
from typing import Any

import jax


def manual_axes() -> tuple[str, ...]:
    """Return the mesh axes that `jax.shard_map` maps over; an empty tuple outside it."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(name for name in mesh.axis_names if name in mesh.manual_axes)


def get_rank_info(axis_name: Any = None) -> tuple[Any, int, tuple[str, ...]]:
    """Return the rank of this device, the number of ranks, and the names of the mesh axes of the ranks.

    Args:
        axis_name: One or several axes of the mesh. None means all.

    Returns:
        The rank, a traced int32 scalar, the number of ranks and the names. Outside of any mesh, the result is
        ``(0, 1, ())``.
    """
    names = manual_axes() if axis_name is None else (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    if not names:
        return 0, 1, ()
    sizes = jax.sharding.get_abstract_mesh().shape
    # For a tuple, JAX adds and multiplies, even if it has one name.
    return jax.lax.axis_index(names if len(names) > 1 else names[0]), math.prod(sizes[name] for name in names), names
