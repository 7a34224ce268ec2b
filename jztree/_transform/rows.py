"""Map over leaves of pytrees by their length."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

_Tree = TypeVar("_Tree")


def tree_map_by_len(fn: Callable[[Any], Any], tree: _Tree, N: int, axis: int = 0) -> _Tree:
    """Apply ``fn`` to every array in ``tree`` that has the length ``N`` along an axis; others are unchanged.

    Args:
        fn: A function of an array.
        tree: A pytree.
        N: The length.
        axis: The axis.

    Returns:
        The new pytree.
    """

    def of_length(leaf: Any) -> bool:
        return -np.ndim(leaf) <= axis < np.ndim(leaf) and np.shape(leaf)[axis] == N

    return jax.tree.map(lambda leaf: fn(leaf) if of_length(leaf) else leaf, tree)
