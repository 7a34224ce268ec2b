"""Results of a search: differentiable distances, and the identity of the neighbours.

The kernels find neighbours and have no derivatives. A small shift does not change which neighbours are nearest, so the
derivative of a distance is that of the distance to a fixed particle. Between coincident points it is 0.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..data import RankIdx
from ..derivatives import nearest_difference, unit
from ..jax_ext import Exact, is_concrete


def radii(query: jax.Array, pos: jax.Array, box: Exact, rad: jax.Array, idx: jax.Array) -> jax.Array:
    """Return ``rad`` with its derivatives by positions and box lengths; ``idx`` are rows of ``pos``."""
    # Plain calls are faster without a rule for derivatives.
    return rad if is_concrete((query, pos, box)) else _radii(query, pos, box, rad, idx)


@jax.custom_jvp
def _radii(query: jax.Array, pos: jax.Array, box: Exact, rad: jax.Array, idx: jax.Array) -> jax.Array:
    del query, pos, box, idx
    return rad


@_radii.defjvp
def _radii_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    query, pos, box, rad, idx = primals
    difference, difference_dot = jax.jvp(lambda *at: _differences(*at, rad, idx), (query, pos, box), tangents[:3])
    # Call `_radii` again, because the second derivative needs its rule too.
    return _radii(query, pos, box, rad, idx), _along(difference, difference_dot)


@functools.partial(jax.jit, inline=True)
def _differences(query: jax.Array, pos: jax.Array, box: Exact, rad: jax.Array, idx: jax.Array) -> jax.Array:
    """Return vectors from neighbours to queries, ``(q, k, d)``; 0 for missing neighbours and those at distance 0."""
    apart = ((rad > 0) & (idx >= 0))[..., None]
    # Use plain indexing, because reverse mode has to transpose the linear part. Padding rows may hold any values;
    # replacing them with zeros keeps them out of the sums over all rows.
    near = jnp.where(apart, pos[jnp.maximum(idx, 0)], 0)
    return nearest_difference(jnp.where(apart, query[:, None, :], 0), near, box)


@functools.partial(jax.jit, inline=True)
def _along(difference: jax.Array, change: jax.Array) -> jax.Array:
    """Return the change of the length of ``difference``."""
    return jnp.sum(unit(difference) * change, axis=-1)


@jax.custom_jvp
def radii_over_ranks(
    query: jax.Array, pos: jax.Array, box: Exact, rad: jax.Array, nearest: jax.Array, offsets: jax.Array
) -> jax.Array:
    """Return ``rad`` with its derivatives with respect to the positions on all ranks and to box lengths.

    For derivatives, each rank gathers all positions.

    Args:
        query: ``(q, d)``.
        pos: ``(n, d)``, the rank's particles.
        box: Periodic box.
        rad: ``(q, k)``.
        nearest: ``(q, k)`` int32, the numbers of the neighbours, counted over all ranks; -1 if missing.
        offsets: ``(r,)`` int32, the number of each rank's first particle.
    """
    del query, pos, box, nearest, offsets
    return rad


@radii_over_ranks.defjvp
def _radii_over_ranks_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    query, pos, box, rad, nearest, offsets = primals
    ndev, n = comm.num_ranks(), pos.shape[0]
    if ndev * n >= 2**31:
        raise ValueError(
            f"derivatives of distances support less than 2**31 rows over all devices, but there are {ndev * n}; use "
            "fewer particles."
        )
    rank, row = comm.rank_and_row(offsets, nearest)
    flat = jnp.where(nearest < 0, -1, rank * n + row)
    all_pos, all_pos_dot = (comm.all_gather(x).reshape(ndev * n, -1) for x in (pos, tangents[1]))

    def found(query: jax.Array, pos: jax.Array, box: Exact) -> jax.Array:
        return radii(query, pos, box, rad, flat)

    return jax.jvp(found, (query, all_pos, box), (tangents[0], all_pos_dot, tangents[2]))


@functools.partial(jax.jit, inline=True)
def origin_without_padding(origin: RankIdx, num: int | jax.Array) -> RankIdx:
    """Return ``origin`` of ``(q,)`` rows, with -1 in the padding rows from ``num`` on."""
    real = jnp.arange(origin.idx.shape[0], dtype=jnp.int32) < kernels.as_num(num)
    return RankIdx(jnp.where(real, origin.rank, -1), jnp.where(real, origin.idx, -1))
