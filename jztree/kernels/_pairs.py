"""The kernel for pair counts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._transform.exact import WORDS
from ..jax_ext import Exact
from ._call import Tree, call, listed, sizes, words_of

__all__ = ["PairBins", "PairSet", "pair_counts"]


class PairSet(NamedTuple):
    """A set of particles whose pairs are counted: z-ordered, with weights and regions.

    Attributes:
        tree: A hierarchy.
        weight: ``(n,)`` in the dtype of the positions. None means that each particle has weight 1.
        region: ``(n,)`` int32 from 0 on, or None without regions.
    """

    tree: Tree
    weight: jax.Array | None
    region: jax.Array | None

    def arrays(self) -> tuple[jax.Array, ...]:
        """Return the arrays as kernel arguments."""
        none = jnp.zeros((0,), self.tree.posz.dtype)
        return *self.tree.arrays, none if self.weight is None else self.weight, listed(self.region)


class PairBins(NamedTuple):
    """Bins of pairs in one or two quantities.

    Attributes:
        mode: ``"r"`` has no second quantity; ``"rp_pi"`` and ``"s_mu"`` have one.
        edges: ``(b + 1,)`` edges of the distance, or of the distance across the line of sight.
        edges_b: Edges of the second quantity, or None.
        axis: The axis of the line of sight. If it is the number of dimensions, the line of sight is from the origin to
            the middle of each pair.
    """

    mode: str
    edges: Exact
    edges_b: Exact | None
    axis: int

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the bins."""
        both = [self.edges] if self.edges_b is None else [self.edges, self.edges_b]
        return tuple(edges.words.shape[0] - 1 for edges in both)


def pair_counts(
    one: PairSet, other: PairSet | None, bins: PairBins, box: Exact, regions: int, *, separations: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Count pairs in bins, and sum the products of their weights; see `jztree.radius.pair_counts`.

    Args:
        one: A set of particles.
        other: Another set. None counts pairs within ``one``, each in both orders.
        bins: The bins.
        box: ``(d,)`` lengths, 0 if open.
        regions: Number of regions.
        separations: Whether to multiply each product of weights by the first quantity of the pair. Weights may then be
            None. It takes time for every pair, because pairs cannot be added together.

    Returns:
        ``(1 + regions, b, 2)`` uint32, 64-bit counts with the lower word first: the number of pairs, and of the
        pairs with a member in each region; and ``(1 + regions, b, w)`` words of float64 sums in the form of
        `jztree.jax_ext.Exact`, or ``(0, b, w)`` if neither set has weights, unless ``separations`` is True.
    """
    second, rows, columns = one if other is None else other, 1 + regions, int(np.prod(bins.shape()))
    weighted = separations or one.weight is not None or second.weight is not None
    wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    words = jax.ShapeDtypeStruct(
        (rows if weighted else 0, columns, 1 if wide else WORDS), np.float64 if wide else np.float32
    )
    return call(
        "pair_counts",
        (jax.ShapeDtypeStruct((rows, columns, 2), jnp.uint32), words),
        *one.arrays(),
        *second.arrays(),
        bins.edges.words,
        words_of(bins.edges_b),
        box.words,
        gradients="refused" if weighted else "stopped",
        plane_sizes=sizes(one.tree.plane_sizes),
        other_plane_sizes=sizes(second.tree.plane_sizes),
        self=other is None,
        separations=separations,
        mode=np.int64(("r", "rp_pi", "s_mu").index(bins.mode)),
        axis=np.int64(bins.axis),
    )
