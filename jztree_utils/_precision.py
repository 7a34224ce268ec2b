"""Positions in float64 NumPy arrays, which JAX would round to float32 in its 32-bit mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from jztree.data import Pos, get_pos


@contextmanager
def full_precision(*sets: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the sets, and keep float64 in the block if one of them has its positions in a float64 NumPy array.

    All sets then have float64 positions, because the searches need one dtype, and are `Pos` without further columns.

    Args:
        *sets: Particle classes or arrays of positions, or None.
    """
    if not any(_is_float64(get_pos(one)) for one in sets if one is not None):
        yield sets
        return
    with jax.enable_x64(True):
        yield tuple(None if one is None else _in_float64(one) for one in sets)


def _is_float64(pos: Any) -> bool:
    return isinstance(pos, np.ndarray) and pos.dtype == np.float64


def _in_float64(part: Any) -> Pos:
    return Pos(pos=get_pos(part).astype(np.float64), num=getattr(part, "num", None))
