"""Masses and centres of mass of runs of particles."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import check_box, check_classes, check_flag, check_particles, common_dtype, mass_faults, mass_rows
from ..data import PosMass, with_computed
from ..jax_ext import with_twins
from ..particles import check_num, check_representable, shape_of_pos
from ._derivatives import of_moments
from ._zorder import corners_of

_BAD_RUNS = "ispl does not fit these particles; it must ascend from at least 0 to at most {0}, the number of particles."


def _exact_box(arguments: dict[str, Any]) -> dict[str, Any]:
    check_classes(arguments)
    return {"boxsize": check_box(arguments["boxsize"], (1, *shape_of_pos(arguments["part"]))[-1])}


@with_twins(
    {"ispl": P(-1), "part": P(-1), "kahan_summation": None, "block_size": None, "boxsize": P()},
    P(-1),
    prepare=_exact_box,
)
@with_computed
def center_of_mass(
    ispl: Any, part: Any, kahan_summation: bool = True, block_size: int = 32, *, boxsize: ArrayLike | None = None
) -> PosMass:
    """Compute the mass and the centre of mass of runs of particles, such as groups or nodes.

    Args:
        ispl: ``(m + 1,)`` integers, the start of each run among the rows, and the end: run ``i`` holds rows ``ispl[i]``
            to ``ispl[i + 1]``. `TreeHierarchy.particle_splits` returns such an array.
        part: Particles with ``mass``, ``(n,)`` or a number that all share.
        kahan_summation: Accepted for the published interface; has no effect, because sums use float64.
        block_size: Accepted for the published interface; has no effect.
        boxsize: Periodic length, or one per dimension, into which positions are wrapped; 0 or None means open. Runs
            must not cross its faces: the mean is of wrapped coordinates, like that of the nodes of a hierarchy.

    Returns:
        `jztree.data.PosMass` of ``m`` rows, in the dtype of positions or masses, whichever is wider: centres, 0 if the
        mass is 0, and masses. Both have derivatives.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if ``ispl`` does not ascend, or if a position or a mass
            is invalid.

    Examples:
        >>> part = jz.data.PosMass(pos=jnp.array([[0.0], [1.0], [5.0]]), mass=jnp.array([1.0, 3.0, 1.0]))
        >>> jz.tree.center_of_mass(np.array([0, 2, 3]), part).pos  # of the rows 0 and 1, and of the row 2
        Array([[0.75],
               [5.  ]], dtype=float32)
    """
    check_flag(kahan_summation, "kahan_summation")
    del block_size
    pos, num = check_particles(part), check_num(part)
    box = check_box(boxsize, pos.shape[1])
    splits = _splits(ispl)
    dtype = common_dtype(pos, getattr(part, "mass", None)) if getattr(part, "mass", None) is not None else pos.dtype
    mass = mass_rows(part, dtype)
    if mass is None:
        raise ValueError("center_of_mass needs particles with a mass, but these have none; add masses.")
    count = kernels.as_num(num)
    wrong = (splits[0] < 0) | (splits[-1] > count) | jnp.any(splits[1:] < splits[:-1])
    faults = [*corners_of(pos, count, "the positions")[1], *mass_faults(mass, count, pos.shape[0])]
    checked = comm.check_all(count, [*faults, comm.Fault(wrong, [count], _BAD_RUNS)])
    splits, sizes = comm.after(splits, checked), (splits.shape[0] - 1,)
    if not sizes[0]:
        return PosMass(pos=jnp.zeros((0, pos.shape[1]), dtype), mass=jnp.zeros(0, dtype))
    pos = pos.astype(dtype)
    moments = kernels.node_masses(pos, mass, splits, box, sizes)
    total, centre = of_moments(sizes, moments, pos, mass, box, splits)
    return PosMass(pos=centre, mass=total)


def _splits(ispl: Any) -> jax.Array:
    """Return ``ispl`` as int32; invalid rows become -1 or exceed any number of rows."""
    check_representable({"ispl": ispl})
    dtype = getattr(ispl, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.integer) or np.ndim(ispl) != 1 or np.shape(ispl)[0] < 1:
        type_in_words = type(ispl).__name__ if dtype is None else f"{dtype} {np.shape(ispl)}"
        raise ValueError(
            f"ispl must be an array of integers (m + 1,), the starts of the runs and the end, not {type_in_words}."
        )
    kind = jnp.iinfo(dtype)
    rows = jnp.clip(ispl, max(kind.min, -1), min(kind.max, 2**31 - 1))
    return rows.astype(jnp.int32)
