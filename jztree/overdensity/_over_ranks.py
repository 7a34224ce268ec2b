"""Spherical overdensities over the ranks of a mesh.

1. Sort the particles and centres of all ranks in z-order, cut them into ranges together, and give each rank a range of
   both.
2. Each rank computes the spheres of its centres from its own particles. Particles of other ranks can only make spheres
   denser, so this gives a radius within which all particles are needed.
3. A centre is open if the ball of that radius reaches boxes of other ranks' particles. Its rank receives the particles
   within it (`jztree.tree.ghosts`) and computes the sphere again. A result is final if it depends only on radii already
   searched. It is then the result of one device, because the kernel adds masses in the order of distance. Otherwise
   the next round searches the new radius. If haloes are smaller than a rank's domain, one round is enough for nearly
   all.
4. Results are sent back to the ranks of the centres.
"""

from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._checks import at_least_normal
from .._transform.capacity import Room
from ..config import OverdensityConfig
from ..data import PosMass, get_num, get_pos, replace_num, split_rows
from ..jax_ext import Exact, exact_to_float
from ..tree import build_in_domain, kernel_tree
from ..tree._over_ranks import Moved, Movers, sort_over_ranks
from ..tree._zorder import Domain, domain_of
from ..tree.ghosts import Blocks, Surroundings, boxes_of, close_boxes, ghost_room, leaves_of, surroundings, tell_all

__all__ = ["Spheres", "nearest_few", "spheres_over_ranks", "widest_sphere"]

# Search farther than necessary by this factor, because particles of other ranks make spheres grow.
_FURTHER = 1.2

Spheres = tuple[jax.Array, ...]


def nearest_few(
    tree: kernels.Tree, centres: Any, num: Any, domain: Domain, cfg: OverdensityConfig
) -> tuple[jax.Array, Blocks]:
    """Return the distance of the ``npart_min``-th nearest particle of every centre, and the leaves of the centres.

    tree: of the particles, in the form that kernels need. centres: ``(q, d)`` in z-order in ``domain``. The distance is
    -1 in rows from ``num`` on.
    """
    th = build_in_domain(centres, num, domain, cfg.tree)
    queries = kernel_tree(centres, num, th)
    rad, _ = kernels.knn(tree, None, queries, None, cfg.npart_min, domain.box)
    return jnp.where(jnp.arange(centres.shape[0], dtype=jnp.int32) < kernels.as_num(num), rad[:, -1], -1), leaves_of(th)


def spheres_over_ranks(
    source: PosMass, centre: jax.Array, centre_num: Any, density: Exact, box: Exact, cfg: OverdensityConfig
) -> Spheres:
    """Return radii, masses, numbers of particles, and peaks (see `kernels.overdensity`) of this rank's centres.

    source: this rank's particles with masses in the form that kernels need. centre: ``(q, d)``.
    """
    names = ["the positions", "the centres"]
    domain, nums = domain_of([get_pos(source), centre], [get_num(source), centre_num], names, box, of_first=True)
    rooms = [Room(get_pos(source).shape[0] + centre.shape[0], "sort")] * 2
    movers = [Movers(source, None, nums[0], named=False), Movers(centre, None, nums[1], named=False)]
    sources, centres = sort_over_ranks(movers, domain, rooms, on_ranks=[domain, domain.whole()])
    search = _Search(sources, centres, density, domain, cfg)
    return search.sent_home(search.answer())


def widest_sphere(box: Exact, dtype: Any) -> jax.Array:
    """Return the largest search radius: half the smallest periodic length, rounded up; infinite in an open box."""
    lengths = jnp.asarray(exact_to_float(box), dtype)
    return jnp.min(jnp.where(lengths > 0, lengths / 2, jnp.inf)) * (1 + 4 * jnp.finfo(dtype).eps)


class _Search:
    def __init__(self, sources: Moved, centres: Moved, density: Exact, domain: Domain, cfg: OverdensityConfig) -> None:
        self.sources, self.centres, self.density, self.domain, self.cfg = sources, centres, density, domain, cfg
        self.rank = comm.get_rank_info()[0]
        pos, num = sources.part.pos, sources.num
        self.widest = widest_sphere(domain.box, pos.dtype)
        th = build_in_domain(pos, num, domain, cfg.tree)
        self.tree, self.leaves = kernel_tree(pos, num, th), leaves_of(th)
        whole = domain.whole()
        self.nearest, self.groups = nearest_few(self.tree, centres.part, centres.num, whole, cfg)
        self.boxes = boxes_of(centres.part, centres.num, whole, self.groups)
        boxes = boxes_of(pos, num, domain, self.leaves)
        # This is the first collective after both exchanges.
        self.known = tell_all(pos, num, domain, self.leaves, boxes, centres.num)
        self.close = close_boxes(boxes, self.known)

    def answer(self) -> Spheres:
        everyone = self.nearest >= 0
        spheres = self._spheres(self.tree, self.sources.part.mass, everyone)

        def one(state: tuple[Spheres, jax.Array, jax.Array]) -> tuple[Spheres, jax.Array, jax.Array]:
            spheres, pending = self._look_around(*state[:2])
            return spheres, pending, comm.all_max(jnp.any(pending).astype(jnp.int32))

        return jax.lax.while_loop(lambda state: state[2] > 0, one, (spheres, everyone, jnp.int32(1)))[0]

    def sent_home(self, spheres: Spheres) -> Spheres:
        """Return radii, masses, numbers of particles and peaks in the input rows of the centres."""
        rows = [kernels.scatter_rows(column, self.centres.merge) for column in spheres[:4]]
        return tuple(comm.send_back(rows, self.centres.route, name="results"))

    def _spheres(self, tree: kernels.Tree, mass: jax.Array, wanted: jax.Array) -> Spheres:
        nearest = jnp.where(wanted, self.nearest, -1)
        least, box = self.cfg.npart_min, self.domain.box
        return kernels.overdensity(tree, mass, self.centres.part, nearest, self.density, box, least)

    def _look_around(self, spheres: Spheres, pending: jax.Array) -> tuple[Spheres, jax.Array]:
        """Compute pending spheres with the particles of other ranks. Return all spheres and those still pending."""
        asked = jnp.where(pending, at_least_normal(spheres[4]) * _FURTHER, 0)
        around, is_open = self._bring(asked)
        _, rebuild = split_rows(self.sources.part)
        part = replace_num(rebuild(around.rows), around.num)
        th = build_in_domain(part.pos, around.num, self.domain, self.cfg.tree)
        pending &= is_open
        found = self._spheres(kernel_tree(part.pos, around.num, th), part.mass, pending)
        # An infinite radius requests the nearest few only. If they are missing now, they do not exist.
        looked = jnp.where(jnp.isfinite(asked), asked, jnp.where(jnp.isfinite(found[4]), 0, jnp.inf))
        of_row = [pending.reshape(-1, *[1] * (column.ndim - 1)) for column in found]
        spheres = tuple(jnp.where(*columns) for columns in zip(of_row, found, spheres, strict=True))
        # If a sphere received too few particles, request the nearest few, at any distance. If the search
        # has already reached the widest sphere that fits the box, there is no sphere.
        rests_on = at_least_normal(found[4])
        needed = jnp.where(jnp.isfinite(asked), jnp.minimum(rests_on, self.widest), rests_on)
        return spheres, pending & (needed > looked)

    def _bring(self, asked: jax.Array) -> tuple[Surroundings, jax.Array]:
        """Return own particles and ghosts within radius ``asked`` of the centres, and which centres may have ghosts."""
        far = jnp.isinf(asked)
        open_wide, wide = self._open(jnp.where(far, 0, asked), None)
        open_few, few = self._open(jnp.where(far, asked, 0), self.cfg.npart_min)
        is_open, radius = jnp.maximum(open_wide, open_few), jnp.maximum(at_least_normal(wide), at_least_normal(few))
        pos = self.sources.part.pos
        around = surroundings(
            split_rows(self.sources.part)[0],
            pos,
            self.sources.num,
            self.leaves,
            lambda: self.known,
            (self.boxes[1], self.boxes[2], radius),
            self.domain.box,
            ghost_room("overdensity_ghosts", self.cfg.ghost_rows, pos.shape[0]),
        )
        leaf = jnp.searchsorted(self.groups[0], jnp.arange(asked.shape[0], dtype=jnp.int32), side="right") - 1
        return around, is_open[jnp.clip(leaf, 0, is_open.shape[0] - 1)] > 0

    def _open(self, radius: jax.Array, enough: int | None) -> tuple[jax.Array, jax.Array]:
        """Return the leaves of centres that reach other ranks' particles, and the search radius of each box."""
        return kernels.open_leaves(
            self.groups, self.boxes, radius[:, None], None, self.known, self.close, self.rank, self.domain.box, enough
        )
