"""Spherical overdensities over the ranks of a mesh.

1. Particles and centres of all ranks are sorted in z-order, cut into ranges together; each rank gets a range of both.
2. Every rank answers for its centres from its own particles. Others can only make a sphere larger, so that is a radius
   within which all particles are needed.
3. Centres whose ball of that radius reaches boxes of other ranks' particles are open. Their ranks get what lies there
   (`jztree.ghosts`), and answer again. An answer that rests on a radius that was looked into is final: the
   kernel adds masses in the order of distance, so it is that of one device. Else the new radius is the next to be
   looked into. For haloes that fit into a few radii of a rank's domain, one round is enough.
4. Answers travel back to where the centres came from.
"""

from typing import Any

import jax
import jax.numpy as jnp

from . import comm, kernels
from .capacity import Room
from .config import OverdensityConfig
from .data import PosMass, get_num, get_pos, replace_num, split_rows
from .ghosts import Surroundings, boxes_of, ghost_room, leaves_of, surroundings
from .jax_ext import Exact
from .tree import build_in_domain, kernel_tree
from .zorder import Domain, Moved, Movers, domain_of, sort_over_ranks

# How much farther than necessary to look, because spheres grow by the particles of others.
_FURTHER = 1.2

Spheres = tuple[jax.Array, ...]


def spheres_over_ranks(
    source: PosMass, centre: jax.Array, centre_num: Any, density: Exact, box: Exact, cfg: OverdensityConfig
) -> Spheres:
    """Radii, masses, numbers of particles, and peaks (see `kernels.overdensity`) of this rank's centres.

    source: this rank's particles with masses as kernels take them. centre: ``(q, d)``.
    """
    names = ["the positions", "the centres"]
    domain, nums = domain_of([get_pos(source), centre], [get_num(source), centre_num], names, box)
    rooms = [Room(get_pos(source).shape[0] + centre.shape[0], "sort")] * 2
    sources, centres = sort_over_ranks(
        [Movers(source, None, nums[0]), Movers(centre, None, nums[1])], domain, rooms
    )
    search = _Search(sources, centres, density, domain, cfg)
    return search.sent_home(search.answer())


class _Search:
    def __init__(
        self, sources: Moved, centres: Moved, density: Exact, domain: Domain, cfg: OverdensityConfig
    ) -> None:
        self.sources, self.centres, self.density, self.domain, self.cfg = sources, centres, density, domain, cfg
        self.rank = comm.get_rank_info()[0]
        self.leaves = leaves_of(self._tree_over(sources.part, sources.num))
        self.groups = leaves_of(self._tree_over(centres.part, centres.num))
        self.boxes = boxes_of(centres.part, centres.num, domain, self.groups)
        splits, lower, upper = boxes_of(sources.part.pos, sources.num, domain, self.leaves)
        # The first collective after both exchanges.
        wait = comm.after(sources.num, centres.num) - sources.num
        self.known = comm.all_gather_rows((lower, upper, jnp.diff(splits) + wait))

    def answer(self) -> Spheres:
        rows = jnp.arange(self.centres.part.shape[0], dtype=jnp.int32)
        everyone = (rows < self.centres.num).astype(jnp.int32)
        spheres = self._spheres(self.sources.part, self.sources.num, everyone)

        def one(state: tuple[Spheres, jax.Array, jax.Array]) -> tuple[Spheres, jax.Array, jax.Array]:
            spheres, pending = self._look_around(*state[:2])
            return spheres, pending, comm.all_max(jnp.max(pending))

        return jax.lax.while_loop(lambda state: state[2] > 0, one, (spheres, everyone, jnp.int32(1)))[0]

    def sent_home(self, spheres: Spheres) -> Spheres:
        """What is asked for of the spheres, at the rows that the centres came from."""
        rows = [kernels.scatter_rows(column, self.centres.merge) for column in spheres[:4]]
        return tuple(comm.send_back(rows, self.centres.route, name="results"))

    def _tree_over(self, part: Any, num: jax.Array) -> Any:
        return build_in_domain(part, num, self.domain, self.cfg.tree)

    def _spheres(self, part: Any, num: jax.Array, wanted: jax.Array) -> Spheres:
        tree = kernel_tree(part, num, self._tree_over(part, num))
        centres, num = self.centres.part, self.centres.num
        return kernels.overdensity(
            tree, part.mass, centres, num, wanted, self.density, self.domain.box, self.cfg.npart_min
        )

    def _look_around(self, spheres: Spheres, pending: jax.Array) -> tuple[Spheres, jax.Array]:
        """Answers of pending centres with the particles of other ranks, and which centres need a further look."""
        asked = jnp.where(pending > 0, spheres[4] * _FURTHER, 0)
        around, still_open = self._bring(asked)
        pending = pending * still_open
        columns, rebuild = split_rows(self.sources.part)
        del columns
        found = self._spheres(replace_num(rebuild(around.rows), around.num), around.num, pending)
        # Asked for the nearest few at any distance, a rank was told of these, or there are not so many anywhere.
        looked = jnp.where(jnp.isinf(asked), jnp.where(jnp.isinf(found[4]), jnp.inf, 0), asked)
        merged = tuple(
            jnp.where((pending > 0).reshape(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(found, spheres, strict=True)
        )
        return merged, pending * (found[4] > looked)

    def _bring(self, asked: jax.Array) -> tuple[Surroundings, jax.Array]:
        """Own particles, with all that are within the radius ``asked`` of centres, and which centres have such."""
        q = asked.shape[0]
        # As for neighbours: an infinite radius asks for the nearest `npart_min`.
        radius = jnp.broadcast_to(asked[:, None], (q, self.cfg.npart_min))
        open_leaves, wanted = kernels.open_leaves(
            self.groups, self.boxes, radius, None, self.known, self.rank, self.domain.box
        )
        columns, _ = split_rows(self.sources.part)
        around = surroundings(
            columns,
            self.sources.part.pos,
            self.sources.num,
            self.leaves,
            (self.boxes[1], self.boxes[2], wanted),
            self.domain.box,
            ghost_room("overdensity_ghosts", self.cfg.ghost_rows, self.sources.part.pos.shape[0]),
        )
        leaf = jnp.searchsorted(self.groups[0], jnp.arange(q), side="right") - 1
        return around, open_leaves[jnp.clip(leaf, 0, open_leaves.shape[0] - 1)]
