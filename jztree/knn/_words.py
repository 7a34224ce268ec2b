"""The words of ``result``: parsing them, and computing the entry for each.

Searches on one device and on several compute their results in different ways (`Found`), but a word has the same meaning
for both.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import kernels
from ..data import RankIdx, map_rows, release, replace_num
from ..particles import check_movable, field_names, num_rows

WORDS = ("rad", "drad", "rankidx", "globalidx", "part", "reduce", "query", "queryidx")
DISTANCES = frozenset({"rad", "drad"})
ABOUT_QUERIES = frozenset({"query", "queryidx"})
# Values for missing neighbours; 0 in all other entries.
MISSING_VALUES = {"rad": jnp.inf, "rankidx": (-1, -1), "globalidx": -1}


def property_names(part: Any) -> list[str]:
    """Return the names of the properties of particles, including properties that are None."""
    leaves = [None, *jax.tree.leaves(part)]
    names = [name for name in field_names(part) if name not in ("num", "num_total")]
    return [name for name in names if any(getattr(part, name) is leaf for leaf in leaves)]


def parse_result(result: str, part: Any, reduce_func: Any) -> list[str]:
    """Parse the words of ``result``. Match the longest known word first, because field names may contain ``_``."""
    fields = property_names(part)
    known = sorted([*WORDS, *fields], key=len, reverse=True)
    words, rest = [], f"_{result}" if isinstance(result, str) else "_"
    while rest:
        word = next((w for w in known if rest == f"_{w}" or rest.startswith(f"_{w}_")), None)
        if word is None:
            break
        words.append(word)
        rest = rest[len(word) + 1 :]
    if rest:
        given = "an array" if isinstance(result, (jax.Array, np.ndarray)) else repr(result)
        raise ValueError(
            f"result is {given}; it must be one or several of {', '.join([*WORDS, *fields])}, joined by '_'."
        )
    for word in words:
        if word in fields and getattr(part, word) is None:
            raise ValueError(
                f"result contains {word!r}, but the particles have no such property; remove that word, or add the "
                "property."
            )
    if ("reduce" in words) != (reduce_func is not None):
        raise ValueError(
            "result='reduce' and reduce_func need each other; pass both, or leave out the one that was given."
        )
    return words


def as_result(entries: list[Any]) -> Any:
    """Return the result of a search for the entries of its words."""
    return entries[0] if len(entries) == 1 else tuple(entries)


@dataclass
class Found:
    """The neighbours of queries.

    Attributes:
        rad: Distances, ``(q, k)``.
        idx: Rows of the neighbours in ``source``, ``(q, k)`` int32; -1 for missing neighbours.
        source: Particles that contain the neighbours.
        others: Functions that compute the entries for all other words, called on demand.
        is_limited: Whether queries may have fewer than ``k`` neighbours. Properties of missing neighbours are then 0.
    """

    rad: jax.Array
    idx: jax.Array
    source: Any
    others: Mapping[str, Callable[[], Any]]
    is_limited: bool = False

    def entry(self, word: str) -> Any:
        """Return the entry for a word."""
        if word in DISTANCES:
            return self.rad
        if word in self.others:
            return self.others[word]()
        if word == "part":
            return self._neighbours()
        return self._zero_missing(field_of(self.source, word, self.idx))

    def _neighbours(self) -> Any:
        """Return the neighbours, a particle class of arrays ``(q, k, ...)``."""
        source = replace_num(self.source, None)
        near = map_rows(lambda leaf: self._zero_missing(take(jnp.asarray(leaf), self.idx)), source)
        moved = [one is not other for one, other in zip(*map(jax.tree.leaves, (near, source)), strict=True)]
        return release(near, self.idx >= 0, jax.tree.unflatten(jax.tree.structure(near), moved))

    def _zero_missing(self, leaf: jax.Array) -> jax.Array:
        """Return ``leaf`` ``(q, k, ...)``, with 0 for missing neighbours."""
        if not self.is_limited:
            return leaf
        exists = (self.idx >= 0).reshape(self.idx.shape + (1,) * (leaf.ndim - 2))
        return jnp.where(exists, leaf, jnp.zeros((), leaf.dtype))


def reduced(reduce_func: Callable[..., Any], found: Found, origin: RankIdx, query: Any, queryidx: RankIdx) -> Any:
    """Call ``reduce_func`` with neighbours in z-order.

    Args:
        reduce_func: Function of the user; see `knn`.
        found: The neighbours.
        origin: Rank and row of each source in the input.
        query: The queries.
        queryidx: Rank and row of each query in the input.

    Raises:
        ValueError: If the result does not have one row per query.
        TypeError: If kernels cannot move the rows of the result.
    """
    part, query = release(found.source), release(query)
    made = reduce_func(part=part, rnn=found.rad, inn=found.idx, origin=origin, query=query, queryidx=queryidx)
    rows = found.rad.shape[0]
    for leaf in jax.tree.leaves(made):
        if np.ndim(leaf) == 0 or leaf.shape[0] != rows:
            raise ValueError(
                f"reduce_func must return arrays with {rows} rows, one per query; one has shape {np.shape(leaf)}."
            )
    check_movable({"what reduce_func returns": made})
    return made


def take(leaf: jax.Array, idx: jax.Array) -> jax.Array:
    """Return ``leaf[idx]`` for rows ``(q, k)``. For missing neighbours, the values are arbitrary."""
    return kernels.gather_rows(leaf, _valid_rows(idx)).reshape(*idx.shape, *leaf.shape[1:])


@functools.partial(jax.jit, inline=True)
def _valid_rows(idx: jax.Array) -> jax.Array:
    return jnp.maximum(idx, 0).reshape(-1)


def field_of(source: Any, name: str, idx: jax.Array) -> jax.Array:
    """Return a field of the neighbours, ``(q, k, ...)``."""
    leaf = jnp.asarray(getattr(source, name))
    shared = leaf.ndim == 0 or leaf.shape[0] != num_rows(source)
    return jnp.broadcast_to(leaf, (*idx.shape, *leaf.shape)) if shared else take(leaf, idx)
