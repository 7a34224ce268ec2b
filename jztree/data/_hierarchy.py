"""The plane hierarchy, as a pytree; `jztree.tree` builds it."""

import jax
import jax.numpy as jnp
import numpy as np

from .._transform.pytrees import pytree
from ._classes import static_field
from ._describe import describe_hierarchy


@pytree
class TreeHierarchy:
    """Planes of nodes over z-ordered particles.

    The flat arrays hold all planes, plane 0 (the leaves) first; the methods return one plane. Node ``i`` of plane ``p``
    covers the nodes ``splits(p)[i]`` to ``splits(p)[i + 1]`` of plane ``p - 1`` (the particles, for plane 0) and the
    particles ``particle_splits(p)[i]`` to ``particle_splits(p)[i + 1]``. If some rows hold no particles, nodes at the
    end of a plane are empty; their boxes are inverted (lower = inf, upper = -inf).

    Each box is the smallest one around the positions of the node, after these were wrapped into the periodic box. Boxes
    and masses have derivatives. A face of a box has the derivatives of the particle on it, and a sum has the
    derivatives of the particles of the node.

    Below, ``m`` is the number of nodes in all planes.

    Attributes:
        plane_sizes: Number of nodes of each plane; static.
        flat_splits: ``(m + planes,)`` int32, the start of each node in the plane below.
        flat_particle_splits: ``(m + planes,)`` int32, the start of each node among the particles.
        flat_lower: ``(m, d)``, the lower corners of the boxes, dtype of the positions.
        flat_upper: ``(m, d)``, the upper corners of the boxes.
        flat_mass: ``(m,)``, or None unless ``cfg.masses``. It is float64 if masses are.
        flat_center_of_mass: ``(m, d)``, or None unless ``cfg.masses``. It is float64 if masses are.
        flat_particle_splits_per_type: ``(types, m + planes)`` int32, the start of each node among the particles of each
            type, which are separate arrays; ``flat_splits`` and ``flat_particle_splits`` then count the particles of
            every type together. None unless one hierarchy was built for several types.
    """

    plane_sizes: tuple[int, ...] = static_field()
    flat_splits: jax.Array
    flat_particle_splits: jax.Array
    flat_lower: jax.Array
    flat_upper: jax.Array
    flat_mass: jax.Array | None = None
    flat_center_of_mass: jax.Array | None = None
    flat_particle_splits_per_type: jax.Array | None = None

    def __repr__(self) -> str:
        return describe_hierarchy(self)

    @property
    def num_planes(self) -> int:
        """Number of planes; the highest is ``num_planes - 1``."""
        return len(self.plane_sizes)

    def num_nodes(self, plane: int) -> int:
        """Return the number of nodes of a plane."""
        return self.plane_sizes[plane]

    def node_slice(self, plane: int) -> slice:
        """Return the slice of a plane's nodes in the flat arrays."""
        start = sum(self.plane_sizes[:plane])
        return slice(start, start + self.plane_sizes[plane])

    def _split_slice(self, plane: int) -> slice:
        nodes = self.node_slice(plane)
        return slice(nodes.start + plane, nodes.stop + plane + 1)

    def splits(self, plane: int) -> jax.Array:
        """Return ``(nodes + 1,)`` int32: the start of each node in the plane below, and the end."""
        return self.flat_splits[self._split_slice(plane)]

    def particle_splits(self, plane: int) -> jax.Array:
        """Return ``(nodes + 1,)`` int32: the start of each node among the particles, and the end."""
        return self.flat_particle_splits[self._split_slice(plane)]

    def particle_splits_of(self, kind: int, plane: int) -> jax.Array:
        """Return the start of each node among the particles of type ``kind``, and the end.

        Args:
            kind: Number of the type, from 0.
            plane: Number of the plane.

        Returns:
            ``(nodes + 1,)`` int32.

        Raises:
            ValueError: If the hierarchy was not built for several types, or has no such type.
        """
        if self.flat_particle_splits_per_type is None:
            raise ValueError(
                "this hierarchy was built for one type; build it with "
                "jztree.tree.zsort_and_tree_multi_type(..., one_hierarchy=True)."
            )
        kinds = self.flat_particle_splits_per_type.shape[0]
        if isinstance(kind, bool) or not isinstance(kind, (int, np.integer)) or not 0 <= kind < kinds:
            raise ValueError(f"kind is {kind!r}; it must be a type of this hierarchy, from 0 to {kinds - 1}.")
        return self.flat_particle_splits_per_type[kind, self._split_slice(plane)]

    def count(self, plane: int) -> jax.Array:
        """Return ``(nodes,)`` int32: the number of particles in each node."""
        return jnp.diff(self.particle_splits(plane))

    def lower(self, plane: int) -> jax.Array:
        """Return ``(nodes, d)``: the lower corners of the boxes."""
        return self.flat_lower[self.node_slice(plane)]

    def upper(self, plane: int) -> jax.Array:
        """Return ``(nodes, d)``: the upper corners of the boxes."""
        return self.flat_upper[self.node_slice(plane)]

    def center(self, plane: int) -> jax.Array:
        """Return ``(nodes, d)``: the centres of the boxes; NaN for empty nodes."""
        return 0.5 * self.lower(plane) + 0.5 * self.upper(plane)

    def mass(self, plane: int) -> jax.Array:
        """Return ``(nodes,)``: the mass of each node.

        Raises:
            ValueError: If the hierarchy was built without masses.
        """
        return self._moments(self.flat_mass)[self.node_slice(plane)]

    def center_of_mass(self, plane: int) -> jax.Array:
        """Return ``(nodes, d)``: the centre of mass of each node; 0 for massless nodes.

        Raises:
            ValueError: If the hierarchy was built without masses.
        """
        return self._moments(self.flat_center_of_mass)[self.node_slice(plane)]

    def _moments(self, values: jax.Array | None) -> jax.Array:
        if values is None:
            raise ValueError("this hierarchy was built without masses; build it with TreeConfig(masses=True).")
        return values
