"""Groups at one linking length, and the tree of clusters at every length."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._transform.pytrees import pytree
from ..arguments import Kind, check_box, check_length, flat
from ..data import static_field
from ..jax_ext import Exact, with_twins
from ..mst import SpanningTree
from ..particles import check_representable


def _check_tree(tree: Any, name: str) -> SpanningTree:
    if not isinstance(tree, SpanningTree):
        raise TypeError(
            f"tree must be a jztree.mst.SpanningTree, such as jztree.spanning_tree returns, not {type(tree).__name__}."
        )
    check_representable({"tree": tree})
    if comm.num_ranks() > 1:
        raise NotImplementedError(
            f"jztree.hierarchy.{name} supports one device, but it was mapped over {comm.num_ranks()}; call it outside "
            "of smap with jztree.mst.squeeze_tree(tree)."
        )
    if jnp.ndim(tree.num) > 0 or jnp.ndim(tree.i) > 1:
        raise ValueError(
            f"tree has arrays of shape {jnp.shape(tree.i)}, so it is that of several devices; call jztree.hierarchy."
            f"{name} with jztree.mst.squeeze_tree(tree)."
        )
    return tree


def _exact_length(rlink: ArrayLike, _: Any = None) -> Exact:
    return check_length(rlink, check_box(None, 1), "rlink")


@flat(tree=Kind(P(-1)), rlink=Kind(P(), _exact_length))
def cut(tree: SpanningTree, rlink: ArrayLike) -> jax.Array:
    """Return the friends-of-friends groups at a linking length.

    For the tree of `jztree.spanning_tree`, the labels equal the result of `jztree.group_labels` with the same box,
    bit for bit. With ``core_k``, they are groups by mutual reachability distance.

    Args:
        tree: The minimum spanning tree of ``n`` rows of particles.
        rlink: The linking length, in the unit of the positions. Edges of at most this length, in float64, are kept.

    Returns:
        ``(n,)`` int32, the smallest row of each row's group. Each row from ``num`` of the particles on is a separate
        group.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: If ``rlink`` is negative or not finite; at run time if it is traced. If the tree is that of several
            devices, which `jztree.mst.squeeze_tree` joins.
        NotImplementedError: On several devices.

    Examples:
        >>> tree = jz.spanning_tree(np.array([[0.0], [1.0], [3.0], [3.5]], np.float32))
        >>> jz.cut(tree, 0.7), jz.cut(tree, 1.5)
        (Array([0, 1, 2, 2], dtype=int32), Array([0, 0, 2, 2], dtype=int32))
    """
    tree = _check_tree(tree, "cut")
    edges = jnp.stack([tree.i, tree.j], axis=1)
    return kernels.cut_tree(edges, tree.exact, tree.num, _exact_length(rlink), tree.rows)


@pytree
class Dendrogram:
    """Clusters of single linkage.

    Each of the ``n`` rows of particles is a cluster with the number of the row. Edge ``e`` of the spanning tree joins
    two clusters, and the result has the number ``n + e``. With padding, only the first ``num`` edges exist.

    Attributes:
        left: ``(n - 1,)`` int32, the smaller number of the two clusters that an edge joins. -1 from ``num`` on.
        right: ``(n - 1,)`` int32, the larger number.
        length: ``(n - 1,)``, the length of the edge, in the unit and dtype of the positions. Infinite from ``num`` on.
        exact: ``(n - 1, 2)`` uint32, the length in float64: the low and the high word of its bits.
        count: ``(n - 1,)`` int32, the number of particles of the cluster that the edge forms. 0 from ``num`` on.
        parent: ``(2 n - 1,)`` int32, the number of the cluster into which each cluster is joined, -1 for the last one
            and for clusters that do not exist.
        num: int32, the number of edges.
        rows: ``n``, the number of rows of particles, static under tracing.
    """

    left: jax.Array
    right: jax.Array
    length: jax.Array
    exact: jax.Array
    count: jax.Array
    parent: jax.Array
    num: jax.Array
    rows: int = static_field(default=0)

    def exact_lengths(self) -> np.ndarray:
        """Return the lengths of the edges that exist, ``(num,)`` NumPy float64."""
        words = np.asarray(self.exact)[: int(self.num)].astype(np.uint64)
        return (words[:, 0] | words[:, 1] << np.uint64(32)).view(np.float64)

    def linkage(self) -> np.ndarray:
        """Return the clusters in the format of `scipy.cluster.hierarchy.linkage`, ``(num, 4)`` NumPy float64.

        Raises:
            ValueError: If there is no edge, or if rows of padding precede the numbers of clusters.
        """
        num = int(self.num)
        if num < 1 or num != self.rows - 1:
            raise ValueError(
                f"linkage needs at least two particles and no padding, but {num} edges join {self.rows} rows; remove "
                "the padding before you find the tree."
            )
        columns = self.left, self.right, self.exact_lengths(), self.count
        return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


@with_twins({"tree": P(-1)}, P(-1))
def dendrogram(tree: SpanningTree) -> Dendrogram:
    """Return the clusters that the edges of a spanning tree join, shortest edge first.

    On a CPU, one thread joins the clusters. A GPU joins them in parallel.

    Args:
        tree: The minimum spanning tree of ``n`` rows of particles.

    Returns:
        The clusters. Their lengths have the derivatives of the tree.

    Raises:
        TypeError: If ``tree`` is not a `jztree.mst.SpanningTree`.
        ValueError: If the tree is that of several devices, which `jztree.mst.squeeze_tree` joins.
        NotImplementedError: On several devices.

    Examples:
        >>> tree = jz.spanning_tree(np.array([[0.0], [1.0], [3.0], [3.5]], np.float32))
        >>> clusters = jz.dendrogram(tree)
        >>> clusters.left, clusters.right, clusters.count
        (Array([2, 0, 4], dtype=int32), Array([3, 1, 5], dtype=int32), Array([2, 2, 4], dtype=int32))
    """
    tree = _check_tree(tree, "dendrogram")
    n = tree.rows
    children, count = kernels.dendrogram(jnp.stack([tree.i, tree.j], axis=1), tree.num, n)
    smaller, larger, parent = _relations(children, n)
    return Dendrogram(
        left=smaller,
        right=larger,
        length=tree.length,
        exact=tree.exact,
        count=count,
        parent=parent,
        num=tree.num,
        rows=n,
    )


@functools.partial(jax.jit, static_argnames="n", inline=True)
def _relations(children: jax.Array, n: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the smaller and the larger child of each cluster that an edge forms, and the parent of every cluster."""
    edges = len(children)
    formed = jnp.broadcast_to(n + jnp.arange(edges, dtype=jnp.int32)[:, None], children.shape)
    # Children that do not exist get a row after the last one.
    place = jnp.where(children < 0, n + edges, children)
    parent = jnp.full(n + edges + 1, -1, jnp.int32).at[place].set(formed)[: n + edges]
    return jnp.min(children, axis=1), jnp.max(children, axis=1), parent
