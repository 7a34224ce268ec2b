"""Positions in data frames and tables, and in float64 NumPy arrays, which JAX would round in its 32-bit mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from jztree.data import Pos, check_no_unit, get_pos


def from_table(value: Any, name: str) -> Any:
    """Return a data frame or a ``Table`` of astropy as an array ``(n, d)``, and a column as ``(n,)``; others unchanged.

    Raises:
        TypeError: If a column of a ``Table`` has a unit or masked entries.
    """
    if isinstance(value, (np.ndarray, jax.Array)):
        return value
    if hasattr(value, "colnames"):
        for column in value.colnames:
            check_no_unit(value[column], f"column {column} of {name}")
        return np.stack([np.asarray(value[column]) for column in value.colnames], axis=-1)
    return value.to_numpy() if hasattr(value, "to_numpy") else value


def box_lengths(boxsize: ArrayLike | None, dims: int) -> np.ndarray:
    """Return the length of the box in each dimension, ``(dims,)`` float64; 0 for an open dimension."""
    return np.broadcast_to(np.asarray(0.0 if boxsize is None else boxsize, np.float64), (dims,))


@contextmanager
def full_precision(*sets: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the sets, and keep float64 in the block if a set has its positions in a float64 NumPy array.

    All sets then have float64 positions, because the searches need one dtype, and are `Pos` without further columns.

    Args:
        *sets: Particle classes or arrays of positions, or None.
    """
    if not any(_is_float64(get_pos(part)) for part in sets if part is not None):
        yield sets
        return
    with jax.enable_x64(True):
        yield tuple(None if part is None else _in_float64(part) for part in sets)


def _is_float64(pos: Any) -> bool:
    return isinstance(pos, np.ndarray) and pos.dtype == np.float64


def _in_float64(part: Any) -> Pos:
    return Pos(pos=get_pos(part).astype(np.float64), num=getattr(part, "num", None))
