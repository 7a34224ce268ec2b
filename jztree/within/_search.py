"""The common part of searches within a radius: preparation of sources, queries and radii for kernels.

Over the ranks of a mesh, each rank searches its particles and the ghosts within the radii of its queries; see
`jztree.tree.stage`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import Radii, as_ascending, as_one_radius, check_box, check_particles, check_queries, is_given
from ..config import RadiusConfig
from ..data import RankIdx
from ..jax_ext import Exact
from ..particles import Index, Particles, check_num
from ..tree.stage import InputParticles, Stage, opened, prepare_stage, starts_of_ranks


@dataclass
class SearchArguments:
    """The arguments of a search.

    Attributes:
        sources: The sources, with the data that the search needs.
        queries: The queries, with the data that the search needs. None if they are the sources.
        radii: Search radii, in the rows of the queries.
        box: Periodic box.
        cfg: Options.
        faults: Possible faults besides faults of the positions.
        numbered: Whether to number the particles over ranks.
        least_reach: Lower limit of the search radii of this rank. The search uses the largest limit of any rank.
    """

    sources: InputParticles
    queries: InputParticles | None
    radii: Radii
    box: Exact
    cfg: RadiusConfig
    faults: Sequence[comm.Fault] = ()
    numbered: bool = False
    least_reach: jax.Array | None = None


@dataclass
class PreparedSearch:
    """The arguments of a search in the form of kernel arguments.

    Attributes:
        stage: Own sources and queries.
        sources: Sources, over ranks with ghosts.
        queries: None if they are the sources, row by row.
        columns: Data of the sources.
        query_columns: Data of the queries.
        origin: Rank and row of each source in the input.
        rows: ``(q,)`` int32, the output row of each query. None means the same row.
        radii: In the order of output rows.
        starts: ``(r,)`` int32, the number of the first source in the input of each rank. None if it is not needed.
    """

    stage: Stage
    sources: kernels.Tree
    queries: kernels.Tree | None
    columns: Any
    query_columns: Any
    origin: RankIdx
    rows: jax.Array | None
    radii: Radii
    starts: jax.Array | None = None

    def count_sources(self, box: Exact) -> list[jax.Array]:
        """Count the sources within the radii of each query, and sum their columns, in output rows.

        A query with ``m`` radii has ``m`` counts and ``m`` sums.
        """
        words, per_query = self.radii.words(), self.radii.per_query()
        sets = self.sources, self.columns, self.queries, self.rows
        return list(kernels.count_within(*sets, words, per_query, box))

    def send_back(self, answers: Any) -> Any:
        """Return arrays with one row per output row, in the rows of the given queries."""
        return self.stage.send_back(answers) if self.stage.is_distributed else answers


def read_sets(
    part: Particles | Index | ArrayLike, boxsize: ArrayLike | None, queries: Particles | ArrayLike | None
) -> tuple[InputParticles, InputParticles | None, InputParticles, Exact]:
    """Read sources, which may be an index, and queries.

    Returns:
        The sources; the queries, None if they are the sources; the particles that search, never None; and the box.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments, or if the positions of both do not match.
    """
    part, boxsize, index = opened(part, boxsize)
    pos = check_particles(part)
    sources, box = InputParticles(pos, check_num(part), th=index), check_box(boxsize, pos.shape[1])
    if queries is None:
        return sources, None, sources, box
    searching = InputParticles(check_queries(queries, pos), check_num(queries), name="the query positions")
    return sources, searching, searching, box


def read_radii(radius: ArrayLike | None, radii: ArrayLike | None, queries: InputParticles) -> Radii:
    """Read ``radius`` or ``radii``. Raise ValueError unless the user passed exactly one."""
    if is_given(radius) == is_given(radii):
        raise ValueError("pass either radius, one length per query, or radii, ascending lengths for all queries.")
    rows = (queries.num_rows,), queries.num
    return as_one_radius(radius, *rows) if is_given(radius) else as_ascending(radii, *rows)


def prepare_search(args: SearchArguments) -> PreparedSearch:
    """Sort the particles and prepare kernel arguments. Over ranks, also bring the ghosts."""
    sources, queries, radii = args.sources, args.queries, args.radii
    # Over ranks, the radii move with the queries.
    moves = comm.num_ranks() > 1 and radii.of_each is not None
    query_radii = jnp.asarray(radii.words().words) if moves else None
    if queries is None:
        sources = replace(sources, data=(sources.data, query_radii))
    else:
        sources = replace(sources, data=(sources.data, None))
        queries = replace(queries, data=(queries.data, query_radii))
    stage = prepare_stage(sources, queries, args.box, args.cfg, "radius_ghosts", args.faults)
    sorted_sources, searching = stage.sources, stage.queries
    (columns, _), (query_columns, query_radii) = sorted_sources.data, searching.data
    if not stage.is_distributed:
        trees = sorted_sources.tree(), None if sorted_sources is searching else searching.tree()
        return PreparedSearch(stage, *trees, columns, query_columns, sorted_sources.origin, searching.rows, radii)
    radii = radii if query_radii is None else Radii(None, Exact(query_radii))
    around = stage.with_ghosts(_reach(stage, radii, args.least_reach), (columns, sorted_sources.origin))
    columns, origin = around.data
    starts = starts_of_ranks(sorted_sources.given_num()) if args.numbered else None
    return PreparedSearch(stage, around.tree(), searching.tree(), columns, query_columns, origin, None, radii, starts)


def _reach(stage: Stage, radii: Radii, min_reach: jax.Array | None) -> jax.Array:
    """Return the search radius of each box of queries."""
    queries = stage.queries.pos
    exchanged = stage.exchange_boxes()
    reach = radii.outermost(queries.shape[0], queries.dtype)[:, None]
    if min_reach is not None:
        reach = jnp.maximum(reach, _farther(comm.all_max(comm.after(min_reach, exchanged)), queries.dtype))
    return stage.open_leaves(reach)[1]


def _farther(length: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    """Round a length up to the dtype of the positions."""
    return jnp.nextafter(length.astype(dtype), jnp.asarray(jnp.inf, dtype))
