"""The result of a search for a spanning tree."""

from dataclasses import dataclass

import jax

from ..data import static_field


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
class SpanningTree:
    """The edges of a spanning tree of ``n`` particles, shortest first.

    There are ``n - 1`` rows of edges, of which the first ``num`` are edges; with padding, there are fewer edges than
    rows. The rows after the last edge have ends -1 and length infinity.

    Attributes:
        i: ``(n - 1,)`` int32, the smaller input row of the ends.
        j: ``(n - 1,)`` int32, the larger input row.
        length: ``(n - 1,)``, in the unit and dtype of the positions, ascending.
        exact: ``(n - 1, 2)`` uint32, the length in float64: the low and the high word of its bits.
        num: int32, the number of edges.
        rows: ``n``, the number of rows of particles, static under tracing.
    """

    i: jax.Array
    j: jax.Array
    length: jax.Array
    exact: jax.Array
    num: jax.Array
    rows: int = static_field(default=0)
