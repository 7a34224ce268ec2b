"""Sort and compare catalogues."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..particles import check_width
from ._catalogue import FofCatalogue, by_rank, row_capacity
from ._rows import on_auto_axes, rows_differ


def sort_catalogue(cata: FofCatalogue, by: str = "count", descending: bool = True) -> FofCatalogue:
    """Sort ``cata`` by a column, largest groups first; the sort is stable and unused rows stay last.

    The particles do not move, so ``offset`` is still the row of the group's first particle.

    Args:
        cata: The catalogue of one rank, or of a mesh of one rank; `FofCatalogue.flatten` joins the catalogue of several
            ranks.
        by: The column to sort by; it must hold one number per group.
        descending: Whether the largest number comes first. Groups whose number is NaN come last in either case.

    Returns:
        The sorted catalogue.

    Raises:
        TypeError: If ``cata`` is not a `FofCatalogue`.
        ValueError: For a column that the catalogue lacks or that has more than one number per group, and for a
            catalogue of several ranks.

    Examples:
        >>> pos = np.array([[0.1], [0.2], [0.7], [0.8], [0.9]], np.float32)
        >>> _, catalogue = jz.friends_of_friends(pos, 0.15, npart_min=2)
        >>> jz.data.sort_catalogue(catalogue, by="count", descending=False).count
        array([2, 3], dtype=int32)
    """
    check_width({"cata": cata})
    cata = by_rank(cata)
    if np.size(cata.ngroups) != 1:
        raise ValueError("the catalogue has several ranks; join them with .flatten() or squeeze_catalogue first.")
    cata = cata.flatten()
    key = {**cata.columns(), **(cata.means or {})}.get(by)
    if key is None or not hasattr(key, "ndim") or key.ndim != 1:
        held = [name for name, rows in {**cata.columns(), **(cata.means or {})}.items() if np.ndim(rows) == 1]
        raise ValueError(
            f"by={by!r} is not a column with one number per group; this catalogue has {', '.join(held) or 'none'}."
        )
    cata = on_auto_axes(cata)
    key = jnp.asarray(on_auto_axes(key))
    order = _order_of(key, jnp.asarray(cata.ngroups, jnp.int32), bool(descending))
    # Keep NumPy arrays as NumPy: JAX would truncate 64-bit offsets.
    sort = lambda leaf: leaf[np.asarray(order)] if isinstance(leaf, np.ndarray) else _rows_at(leaf, order)  # noqa: E731
    return FofCatalogue(ngroups=cata.ngroups, **jax.tree.map(sort, cata.columns()))


@functools.partial(jax.jit, static_argnames="descending", inline=True)
def _order_of(key: jax.Array, ngroups: jax.Array, descending: bool) -> jax.Array:
    """Return the stable order of the groups; NaN come last, and unused rows after them."""
    used = jnp.arange(key.shape[0], dtype=jnp.int32) < ngroups
    order = jnp.argsort(key, stable=True, descending=descending)
    order = order[jnp.argsort(jnp.isnan(key[order]), stable=True)]
    return order[jnp.argsort(~used[order], stable=True)]


@functools.partial(jax.jit, inline=True)
def _rows_at(leaf: jax.Array, order: jax.Array) -> jax.Array:
    return leaf[order]


def catalogues_equal(c1: FofCatalogue, c2: FofCatalogue) -> jax.Array:
    """Return whether two catalogues hold the same numbers in the same rows, ignoring unused rows.

    NaN is equal to NaN.

    Args:
        c1: A catalogue of one rank or of several ranks.
        c2: Another catalogue of the same number of ranks.

    Returns:
        A bool scalar.

    Raises:
        TypeError: If an argument is not a `FofCatalogue`.
        ValueError: If the catalogues have different columns or numbers of ranks.
    """
    check_width({"c1": c1, "c2": c2})
    c1, c2 = by_rank(c1), by_rank(c2)
    structures: list[Any] = [jax.tree.structure(a) for a in (c1, c2)]
    if structures[0] != structures[1]:
        raise ValueError("catalogues_equal needs catalogues with the same columns, but these have different columns.")
    ngroups = [jnp.atleast_1d(jnp.asarray(on_auto_axes(a.ngroups))) for a in (c1, c2)]
    if ngroups[0].shape != ngroups[1].shape:
        raise ValueError(
            f"the catalogues have {ngroups[0].size} and {ngroups[1].size} ranks; join both with .flatten()."
        )
    c1, c2 = c1.flatten(), c2.flatten()
    columns = jax.tree.leaves(c1.columns()), jax.tree.leaves(c2.columns())
    return _are_equal(ngroups, c1.ngroups, columns, min(row_capacity(c1), row_capacity(c2)))


@functools.partial(jax.jit, static_argnames="rows", inline=True)
def _are_equal(ngroups: list[jax.Array], num: Any, columns: tuple[list[Any], list[Any]], rows: int) -> jax.Array:
    used = jnp.arange(rows, dtype=jnp.int32) < jnp.asarray(num, jnp.int32)
    equal = [(ngroups[0] == ngroups[1]).all()]
    for a, b in zip(*columns, strict=True):
        equal.append(~(rows_differ(a[:rows], b[:rows]) & used).any())
    return jnp.stack(equal).all()
