"""Find friends-of-friends groups over the ranks of a mesh.

1. Sort the particles of every rank in z-order; each rank gets a range.
2. Send each rank the particles of higher ranks within the linking length of its boxes (`jztree.tree.ghosts`). If each
   particle has its own length, this is the mean of the largest lengths in the box and on the other rank. The rank finds
   the groups of its particles and these ghosts.
3. A ghost in one group with a particle of this rank is an edge between that group and a group of the ghost's rank. A
   distributed union-find (native/groups/group_graph.h) solves the graph with these edges: hooks to the smaller label,
   then pointer jumping. No rank ever holds the whole graph.

The lower rank finds a pair of particles on two ranks, because the other particle is within the linking length of one of
its boxes. So every link is found once.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels, stats
from .._transform.capacity import choose_capacity
from ..arguments import Radii
from ..config import FofConfig
from ..data import Label
from ..tree.ghosts import Surroundings
from ..tree.stage import Stage
from ._lengths import reach_over_ranks

_MIN_EDGES = 1024
_TOO_MANY = (
    "labels that are single rows have 32 bits, but there are 2**31 or more particles over all devices; use "
    "distr_fof_labels with linearize_labels=False."
)


@dataclass
class Groups:
    """The groups of a rank's particles, for any kind of label.

    Attributes:
        num: Number of particles of the rank.
        local: ``(m,)`` int32, the first row of each row's group on this rank.
        forest: Joins these groups over the ranks; see `kernels.take_hooks`.
    """

    num: jax.Array
    local: jax.Array
    forest: kernels.Forest

    def labels(self) -> Label:
        return Label(*kernels.own_labels(self.local, self.forest, self.num, comm.get_rank_info()[0]))

    def joined_labels(self) -> jax.Array:
        """Return rows of the joined particles, ``(n,)`` int32. Raise on all ranks if they exceed int32."""
        total = comm.wide_sum(self.num)
        checked = kernels.check(self.num, total.exceeds_int32(), [], _TOO_MANY)
        starts = comm.starts_of(comm.all_gather(checked))
        return kernels.own_joined_labels(self.local, self.forest, self.num, comm.get_rank_info()[0], starts)


def groups_over_ranks(stage: Stage, lengths: Radii, cfg: FofConfig) -> Groups:
    """Find the groups of the sources of a stage.

    Args:
        stage: The particles.
        lengths: Linking lengths, if there is one per particle, in the order of the stage.
        cfg: Options.
    """
    own = stage.sources
    near = stage.with_ghosts(reach_over_ranks(stage, lengths), lengths.of_each, lower_only=True, filled=False)
    rlink = lengths.words() if lengths.of_each is None else near.data
    local = kernels.fof(near.tree(), None, rlink, stage.box, filled=False)
    forest, num = _solve(local, own.num, near.route(), own.pos.shape[0], cfg)
    return Groups(num, local, forest)


def _solve(
    local: jax.Array, num: jax.Array, around: Surroundings, n: int, cfg: FofConfig
) -> tuple[kernels.Forest, jax.Array]:
    """Join the local groups over the ranks.

    Args:
        local: ``(m,)`` int32, the first row of each row's group on this rank.
        num: Number of the rank's particles.
        around: Own particles and ghosts.
        n: Number of the rank's rows.
        cfg: Options.

    Returns:
        The forest of local groups, whose roots are the first particles of the joined groups; and ``num``, available
        only after all checks.
    """
    rank, _, _ = comm.get_rank_info()
    capacity = choose_capacity("fof_edges", cfg.edge_rows, n // 16 + _MIN_EDGES, around.room.rows)
    # Ghosts come last on every rank, so labels of own particles are own rows everywhere.
    owner_label = around.more(local, filled=False, own=False)
    edges, found = kernels.group_edges(local, owner_label, around.traffic.received, rank, capacity.rows)
    needs = comm.all_gather(found)
    what, advice = "links between its groups and others'", "set edge_rows in the configuration to that or more."
    checked = comm.require_capacity(found, needs, capacity, what, advice)
    num = comm.after(num, checked)
    forest = kernels.begin_forest(local, around.order, around.traffic.sent, rank, edges, checked, n)
    forest, rounds, steps = _union(forest, edges, checked, jnp.max(needs) > 0, rank)
    stats.record("rounds.union_find", jnp.where(rank == 0, rounds, 0))
    stats.record("rounds.pointer_jumping", jnp.where(rank == 0, steps, 0))
    return forest, num


def _union(
    forest: kernels.Forest, edges: jax.Array, num: jax.Array, unsolved: jax.Array, rank: jax.Array
) -> tuple[kernels.Forest, jax.Array, jax.Array]:
    """Hook and jump until both ends of every edge agree. Return the forest, and the numbers of rounds and jumps."""
    buffer_rows = edges.shape[0]

    def jump(state: Any) -> Any:
        forest, edges, _, steps = state
        ranks, rows, counts = kernels.ask_parents(forest, edges, num)
        answers = comm.fetch(forest[0], ranks, rows, counts, buffer_rows, filled=False)
        forest, edges, moved = kernels.move_up(answers, num, forest, edges)
        return forest, edges, comm.all_max(moved), steps + 1

    def take_hooks(messages: jax.Array, counts: jax.Array, forest: kernels.Forest) -> kernels.Forest:
        return kernels.take_hooks(messages, counts, rank, forest)

    def one_round(state: Any) -> Any:
        forest, edges, _, rounds, steps = state
        dest, message = kernels.propose_hooks(edges, num)
        forest = comm.deliver([message], dest, num, take_hooks, forest, buffer_rows)
        going = jnp.ones(2, jnp.int32)
        forest, edges, going, steps = jax.lax.while_loop(
            lambda state: state[2][0] > 0, jump, (forest, edges, going, steps)
        )
        return forest, edges, comm.vary(going[1] > 0), rounds + 1, steps

    zero = jnp.int32(0)
    forest, _, _, rounds, steps = jax.lax.while_loop(
        lambda state: state[2], one_round, (forest, edges, comm.vary(unsolved), zero, zero)
    )
    return forest, rounds, steps
