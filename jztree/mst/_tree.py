"""The result of a search for a spanning tree."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from .._transform.pytrees import pytree
from ..data import static_field
from ..jax_ext import is_concrete
from ..particles import check_representable


@pytree
class CoreSize:
    """The number of particles that determines core distances.

    Attributes:
        number: int32, at least 2. It may be traced, so that each number does not compile again.
        near: The number of near particles to find, at least ``number``, static under tracing: one of a few sizes.
    """

    number: Any
    near: int = static_field(default=0)

    def column(self, near: jax.Array) -> jax.Array:
        """Return the particle at the core distance, for lists of the nearest others ``(n, m)``."""
        return jax.lax.dynamic_index_in_dim(near, self.number - 2, axis=1, keepdims=False)


@pytree
class SpanningTree:
    """The edges of a spanning tree of ``n`` particles, shortest first, and of equal lengths the smallest square first.

    There are ``n - 1`` rows, and the first ``num`` are edges; with padding, there are fewer edges than rows. The rows
    after the last edge have ends -1 and length infinity.

    Over several devices, each device has ``n`` rows of particles and ``n`` rows of edges. All devices get equal shares
    of the edges, and the order continues on the next device. Ends are rows of the particles on all devices, without
    padding, beginning with the first device. `squeeze_tree` joins the edges on all devices.

    Attributes:
        i: ``(n - 1,)`` int32, the smaller input row of the ends.
        j: ``(n - 1,)`` int32, the larger input row.
        length: ``(n - 1,)``, in the unit and dtype of the positions, ascending.
        exact: ``(n - 1, 2)`` uint32, the length in float64: the low and the high word of its bits. It is the smallest
            linking length that joins the ends.
        num: int32, the number of edges.
        rows: ``n``, the number of rows of particles, static under tracing.
    """

    i: jax.Array
    j: jax.Array
    length: jax.Array
    exact: jax.Array
    num: jax.Array
    rows: int = static_field(default=0)


def squeeze_tree(tree: SpanningTree) -> SpanningTree:
    """Join the edges on all devices to the tree of one device, without padding.

    Not for use under a JAX transformation. If the devices belong to several processes, all processes must call this
    function together. Each process then holds all edges.

    Args:
        tree: The result of `jztree.spanning_tree.smap`. A tree of one device loses the rows that hold no edges.

    Returns:
        NumPy arrays with a row for each edge. ``rows`` is the number of edges plus 1, so without particles it is 1.

    Raises:
        TypeError: If ``tree`` is not a `SpanningTree`.
    """
    if not isinstance(tree, SpanningTree):
        raise TypeError(f"tree must be a jztree.mst.SpanningTree, not {type(tree).__name__}.")
    check_representable({"tree": tree})
    num = np.atleast_1d(on_host(tree.num))
    total = int(num.sum())

    def joined(array: Any) -> Any:
        value = on_host(array) if is_concrete(array) else array  # lengths may be traced for their derivatives
        parts = value.reshape(len(num), -1, *value.shape[np.ndim(tree.num) + 1 :])
        concatenate = np.concatenate if is_concrete(array) else jnp.concatenate
        return concatenate([part[:count] for part, count in zip(parts, num, strict=True)])

    columns = {name: joined(getattr(tree, name)) for name in ("i", "j", "length", "exact")}
    return SpanningTree(**columns, num=jnp.int32(total), rows=total + 1)


def on_host(array: Any) -> np.ndarray:
    """Return an array whose rows may be on devices of other processes."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)
