"""An index: particles that are sorted once for many searches.

An index holds the particles in the order of the user, and the result of the sort: positions in z-order, the hierarchy
over them, and the way from input rows to z-ordered rows. A search on an index brings only its own data (weights, radii,
velocities) to the z-order. It then computes the same as a search that sorts, with the same bits.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import no_box
from ..config import TreeConfig, leaf_size_of
from ..data import get_pos, replace_num, split_rows
from ..jax_ext import Exact
from ..particles import Index, check_devices, num_rows
from . import TreeHierarchy, build_in_domain, permute_particles
from ._input import InputParticles
from ._particles import SortedParticles

_SAMPLE = 1024  # about the number of particles whose positions are compared
_OTHER_ROWS = (
    "the index was built for %d rows of particles, but now has %d; build an index of the new particles with "
    "jztree.build_index."
)
_CHANGED = (
    "the arrays of the index were changed, so that its hierarchy no longer fits its particles; build an index of the "
    "changed particles with jztree.build_index."
)
_TREE = "th belongs to particles, but the first argument is an index, which has its own hierarchy; leave out th."


def opened(part: Any, boxsize: ArrayLike | None = None, th: Any = None) -> tuple[Any, Any, Any]:
    """Return particles, box, and the index or hierarchy over the particles.

    Args:
        part: Particles, or an index.
        boxsize: Periodic box of particles. None or 0.0 with an index.
        th: Hierarchy over particles. None with an index.

    Returns:
        ``(part, boxsize, th)``. For an index: its particles, its exact box, and the index as ``th``.

    Raises:
        ValueError: If a box or a hierarchy comes with an index, or if the index belongs to another number of devices or
            to another number of particles.
    """
    if not isinstance(part, Index):
        return part, boxsize, th
    no_box(boxsize)
    if th is not None:
        raise ValueError(_TREE)
    check_devices(part, comm.num_ranks())
    rows, built = num_rows(part.part), part.sources.given_rows()
    if rows != built:
        raise ValueError(_OTHER_ROWS % (built, rows))
    return part.part, part.box, part


def index_of(part: Any, box: Exact, sources: SortedParticles, cfg: TreeConfig) -> Index:
    """Return the index of particles from their z-order.

    Args:
        part: The particles in the order of the user.
        box: Periodic box.
        sources: Their positions in z-order.
        cfg: Options of the hierarchy.
    """
    moved = sources.moved
    if moved is not None:
        sources = dataclasses.replace(sources, moved=dataclasses.replace(moved, part=None, data=None))
    # The user may write to NumPy arrays later.
    part = jax.tree.map(lambda leaf: jnp.array(leaf) if isinstance(leaf, np.ndarray) else leaf, part)
    box = Exact(jnp.asarray(box.words))
    return Index(part, box, dataclasses.replace(sources, data=None), cfg, comm.num_ranks())


def faults_of_index(particles: InputParticles) -> list[comm.Fault]:
    """Return the possible faults of an index ``particles.th`` with changed arrays.

    They depend on ``particles.num``: if nothing used this number, the compiler would remove the checks that return it.
    """
    index = particles.th
    assert isinstance(index, Index)
    sources: SortedParticles = index.sources
    if sources.moved is None:
        tree_fits = kernels.tree_fits(sources.tree(), index.box, sources.rows) != 0
        pos, posz = jax.lax.stop_gradient((jnp.asarray(get_pos(index.part)), sources.pos))
        return [comm.Fault(~tree_fits | _is_moved(pos, posz, sources.rows, sources.num), [], _CHANGED)]
    sent, received = sources.moved.route.sent, sources.moved.route.received
    num = comm.after(sources.num, particles.num)
    route_fits = (jnp.minimum(jnp.min(sent), jnp.min(received)) >= 0) & (jnp.sum(received, dtype=jnp.int32) == num)
    tree_fits = kernels.tree_fits(sources.tree(), index.box, sources.moved.merge) != 0
    return [comm.Fault(~(route_fits & tree_fits), [], _CHANGED)]


@functools.partial(jax.jit, inline=True)
def _is_moved(pos: jax.Array, posz: jax.Array, rows: jax.Array, num: jax.Array) -> jax.Array:
    """Return whether any of a sample of particles has another position than in the z-order.

    Args:
        pos: ``(n, d)``, in the order of the user.
        posz: ``(n, d)``, in z-order.
        rows: ``(n,)`` int32, the row in ``pos`` of each z-ordered particle.
        num: Number of particles.
    """
    places = jnp.arange(0, posz.shape[0], max(posz.shape[0] // _SAMPLE, 1), dtype=jnp.int32)
    is_other = (pos[rows[places]] != posz[places]).any(axis=1)
    return jnp.any(is_other & (places < num))


def sorted_by_index(given: InputParticles, num: jax.Array, cfg: TreeConfig) -> SortedParticles:
    """Return the particles of an index in z-order, with the data of a search.

    Args:
        given: The particles of the index, ``given.th``, with the data of the search.
        num: Number of particles, available only after all checks.
        cfg: Options of the hierarchy that the search asks for.
    """
    index = given.th
    assert isinstance(index, Index)
    sources: SortedParticles = index.sources
    sources = dataclasses.replace(sources, num=num, th=_hierarchy(index, num, cfg))
    posz, rows, moved = sources.pos, sources.rows, sources.moved
    if moved is None:
        assert rows is not None
        data = jax.tree.map(lambda leaf: kernels.gather_rows(jnp.asarray(leaf), rows), given.data)
        return dataclasses.replace(sources, part=permute_particles(given.part, rows, posz), data=data)
    # Exchange rows only after the checks.
    moved = dataclasses.replace(moved, route=moved.route.after(num))
    sources = dataclasses.replace(sources, moved=moved)
    columns, rebuild = split_rows(given.part)
    properties, data = [column for column in columns if column is not given.pos], given.data
    if jax.tree.leaves((properties, data)):
        properties, data = moved.bring((properties, data))
    in_order = iter(properties)
    part = rebuild([posz if column is given.pos else next(in_order) for column in columns])
    return dataclasses.replace(sources, part=replace_num(part, num), data=data)


def _hierarchy(index: Index, num: jax.Array, cfg: TreeConfig) -> TreeHierarchy:
    """Return the hierarchy of the index, or another one if the search asks for leaves of another size."""
    sources: SortedParticles = index.sources
    options = index.cfg if cfg.leaf_size is None and index.cfg.leaf_size is not None else cfg
    if (leaf_size_of(options), options.fan_out) == (leaf_size_of(index.cfg), index.cfg.fan_out):
        assert sources.th is not None
        return sources.th
    assert sources.domain is not None
    return build_in_domain(sources.part, num, sources.domain, options)
