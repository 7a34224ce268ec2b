"""Particles that are sorted once for many searches."""

from dataclasses import dataclass, field
from typing import Any

import jax

_DEVICES = (
    "the index was built on {0} device{1}, but this call runs on {2}; build it on the same devices, with "
    "jztree.build_index.smap(mesh, jit=True) for several."
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Index:
    """Particles, sorted once for many searches; see `jztree.build_index`.

    An index is a pytree of arrays, so it passes through `jax.jit`, `jax.lax.scan`, `jax.vmap` and `jax.shard_map`. On
    several devices, the arrays differ between devices.

    Attributes:
        part: The particles, in the order of the caller.
        box: Periodic box, exact.
        sources: The particles in z-order with their hierarchy; see `jztree.tree.stage.SortedParticles`.
        cfg: Options of the hierarchy.
        num_devices: Number of devices that hold the particles.
    """

    part: Any
    box: Any
    sources: Any
    cfg: Any = field(metadata={"static": True})
    num_devices: int = field(metadata={"static": True})

    def __repr__(self) -> str:
        shape, dtype = getattr(self.sources.part, "shape", None), getattr(self.sources.part, "dtype", None)
        if shape is None:  # another object than an array, inside a transformation of JAX
            return f"Index({self.sources.part})"
        rows = " x ".join(f"{n:,}" for n in shape[:-1])
        return f"Index({rows} rows in {shape[-1]}D, {dtype})"


def check_devices(index: Index, ndev: int) -> None:
    """Raise ValueError unless ``ndev`` devices hold the particles of an index."""
    if index.num_devices != ndev:
        raise ValueError(_DEVICES.format(index.num_devices, "s" * (index.num_devices > 1), ndev))


def particles_of(part: Any) -> Any:
    """Return the particles of an index, or ``part`` itself if it is not an index."""
    return part.part if isinstance(part, Index) else part
