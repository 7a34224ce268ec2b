"""Particle classes that compute their positions, and their way through a search.

A class may compute ``pos`` from its leaves, for example from displacements, and likewise its masses or velocities. A
search computes them once, for the given particles, and carries them as columns that move with the rows of the class.
The results then refer to the given particles, even if the class would compute other values after the move.
`jztree.data._computed` unwraps the class again.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

# The particle properties that searches read.
_READ = ("pos", "mass", "vel", "id", "v_rad", "zplus1")
_BUILT_IN = (list, dict, str, bytes, int, float, complex, type(None), np.ndarray, np.generic, jax.Array)


@functools.lru_cache
def is_computed(cls: Any, name: str) -> bool:
    """Return whether objects of this class compute the attribute instead of storing it."""
    return isinstance(inspect.getattr_static(cls, name, None), (property, functools.cached_property))


@jax.tree_util.register_pytree_with_keys_class
class ComputedParticles:
    """A particle class together with its computed properties as columns.

    Its leaves are the columns and the leaves of the class.

    Attributes:
        part: The unchanged class.
        columns: Arrays by name, with one row per particle.
    """

    __slots__ = ("columns", "part")

    def __init__(self, part: Any, columns: dict[str, Any]) -> None:
        self.part, self.columns = part, columns

    def __getattr__(self, name: str) -> Any:
        if name in ComputedParticles.__slots__:  # not set yet
            raise AttributeError(name)
        return self.columns[name] if name in self.columns else getattr(self.part, name)

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Any]:
        """Return the columns, then the leaves of the class under the names that they have there."""
        paths, structure = jax.tree_util.tree_flatten_with_path(self.part)
        named = [(jax.tree_util.keystr(path).removeprefix("."), leaf) for path, leaf in paths]
        keyed = [(jax.tree_util.GetAttrKey(name), leaf) for name, leaf in [*self.columns.items(), *named]]
        return keyed, (tuple(self.columns), structure)

    def tree_flatten(self) -> tuple[list[Any], Any]:
        """Return the same without names."""
        leaves, structure = jax.tree.flatten(self.part)
        return [*self.columns.values(), *leaves], (tuple(self.columns), structure)

    @classmethod
    def tree_unflatten(cls, aux: Any, leaves: Sequence[Any]) -> "ComputedParticles":
        """Invert `tree_flatten`."""
        names, structure = aux
        leaves = list(leaves)
        columns = dict(zip(names, leaves[: len(names)], strict=True))
        return cls(jax.tree.unflatten(structure, leaves[len(names) :]), columns)


def computed_by(part: Any, names: Sequence[str] = ()) -> list[str]:
    """Return the names of the properties that a particle class may compute instead of storing them.

    Args:
        part: A particle class.
        names: See `attach_columns`.
    """
    cls: Any = type(part)
    if isinstance(part, (*_BUILT_IN, ComputedParticles, type)):
        return []
    return [name for name in dict.fromkeys((*_READ, *names)) if is_computed(cls, name)]


def over_devices(func: Callable[[Any], Any], part: Any) -> Any:
    """Apply ``func`` to the particles of each device.

    Particles have a leading axis over devices; leaves that all devices share need not have it.
    """
    leaves, structure = jax.tree.flatten(part)
    ndev = next((leaf.shape[0] for leaf in leaves if np.ndim(leaf) > 1), 0)
    axes = [0 if np.shape(leaf)[:1] == (ndev,) else None for leaf in leaves]
    if not ndev:
        return func(part)
    return jax.vmap(lambda *leaves_of_device: func(jax.tree.unflatten(structure, leaves_of_device)), axes)(*leaves)


def attach_columns(part: Any, names: Sequence[str] = (), pos: Any = None) -> Any:
    """Return ``part``, wrapped in `ComputedParticles` if it computes a property with one row per particle.

    Args:
        part: A particle class.
        names: Properties to read besides positions, masses, velocities, identifiers, and those of light cones.
        pos: Its positions, if they are already computed.
    """
    computed = computed_by(part, names)
    if not computed or not hasattr(part, "pos") or jax.tree_util.all_leaves([part]):
        return part
    leaf_ids = {id(leaf) for leaf in jax.tree.leaves(part)}
    pos = part.pos if pos is None else pos
    rows = np.shape(pos)[:1]
    columns = {}
    for name in computed:
        value = pos if name == "pos" else getattr(part, name)
        is_array = isinstance(value, (jax.Array, np.ndarray))
        if is_array and id(value) not in leaf_ids and (name == "pos" or np.shape(value)[:1] == rows):
            columns[name] = value
    return ComputedParticles(part, columns) if columns else part
