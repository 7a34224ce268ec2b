"""Kernels for minimum spanning trees."""

import jax
import jax.numpy as jnp

from ..jax_ext import Exact
from ._call import Tree, call, i32, listed, sizes

__all__ = ["spanning_tree"]


def spanning_tree(
    tree: Tree, rows: jax.Array | None, near: jax.Array, core_row: jax.Array | None, box: Exact
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Find the minimum spanning tree of particles. The caller provides derivatives.

    Edges are ordered by length, then by the smaller row of their ends, then by the larger row.

    Args:
        tree: A hierarchy.
        rows: ``(n,)`` int32, the output row of each z-ordered particle. None means the same row.
        near: ``(n, k)`` int32, the z-ordered rows of the nearest particles of each, itself included; -1 after the last.
            They only steer the search.
        core_row: ``(n,)`` int32, the z-ordered row of the particle at the core distance of each. The length of an edge
            is then the largest of its distance and the core distances of its ends. None means its distance.
        box: ``(d,)`` lengths, 0 if open.

    Returns:
        ``ends`` ``(n - 1, 2)`` int32, the smaller row first; ``length`` ``(n - 1,)`` in the dtype of the positions;
        ``exact`` ``(n - 1, 2)`` uint32, low and high word of the smallest float64 linking length that links the ends;
        and ``measure`` ``(n - 1, 2)`` int32, the rows whose distance is the length, without rows if there are no core
        distances. From the number of edges on, rows are -1 and lengths infinite.
    """
    edges = max(tree.posz.shape[0] - 1, 0)
    float_rows = jax.ShapeDtypeStruct((edges,), tree.posz.dtype)
    words = jax.ShapeDtypeStruct((edges, 2), jnp.uint32)
    measured = 0 if core_row is None else edges
    return call(
        "spanning_tree",
        (i32(edges, 2), float_rows, words, i32(measured, 2)),
        *(*tree.arrays, near, listed(core_row), listed(rows)),
        box.words,
        gradients="stopped",
        plane_sizes=sizes(tree.plane_sizes),
        reachability=core_row is not None,
    )
