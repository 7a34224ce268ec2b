"""Validation of the positions of particles, and of queries that must match them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..particles import check_movable, check_num, check_representable, check_rows, get_pos

MAX_DIMS = 8


def check_positions(pos: Any, name: str = "positions", max_dims: int = MAX_DIMS) -> jax.Array:
    """Return ``pos`` as a JAX array.

    Raises:
        TypeError: If its dtype is not float32 or float64.
        ValueError: If its shape is not ``(n, d)`` with d from 1 to ``max_dims``.
    """
    if pos.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(f"{name} must be float32 or float64, not {pos.dtype}; convert them with .astype('float32').")
    if np.ndim(pos) != 2 or not 1 <= pos.shape[1] <= max_dims:
        raise ValueError(f"{name} must have shape (n, d) with d from 1 to {max_dims}; their shape is {pos.shape}.")
    check_rows(pos.shape[0], name)
    return jnp.asarray(pos)


def check_particles(part: Any, name: str = "positions", max_dims: int = MAX_DIMS) -> jax.Array:
    """Return the positions of ``part``, the argument of a public function.

    Raises:
        TypeError: If it is not a particle class, or if JAX or the kernels cannot hold one of its arrays.
        ValueError: If JAX or the kernels would change its numbers by more than rounding, or if positions have an
            invalid shape.
    """
    pos = get_pos(part)
    check_representable({f"the array of {name}": part} if pos is part else part)
    check_movable(part)
    return check_positions(pos, name, max_dims)


def check_queries(part_query: Any, pos: jax.Array) -> jax.Array:
    """Return the positions of ``part_query``.

    Args:
        part_query: A particle class, or an array of positions.
        pos: The positions of the particles.

    Raises:
        TypeError: If the queries have no valid positions.
        ValueError: If their shape, dtype or ``num`` is invalid, or if they do not match ``pos``.
    """
    query = check_particles(part_query, "query positions")
    check_num(part_query, "num of part_query")
    check_alike(query, pos, "queries are", "the particles are")
    return query


def check_alike(query: jax.Array, pos: jax.Array, that: str, this: str) -> None:
    """Raise ValueError if positions differ from ``pos`` in dimensions or precision.

    Args:
        query: Positions ``(m, d)``.
        pos: Positions ``(n, d)``.
        that: The owner of ``query`` with a verb, for the message.
        this: The owner of ``pos`` with a verb.
    """
    if query.shape[1] != pos.shape[1]:
        raise ValueError(
            f"{that} {query.dtype} with {query.shape[1]} dimensions, but {this} {pos.dtype} with {pos.shape[1]}; both "
            "must have the same number of dimensions."
        )
    if query.dtype != pos.dtype:
        first, second = (words.rpartition(" ")[0] for words in (that, this))
        raise ValueError(
            f"{that} {query.dtype}, but {this} {pos.dtype}; both must have one dtype: convert the positions of {first} "
            f"with .astype('{pos.dtype}'), or those of {second} with .astype('{query.dtype}')."
        )
