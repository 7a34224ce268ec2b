"""The native kernels: one documented function per kernel. No other package calls `jax.ffi`.

A kernel runs on one device and never communicates. It takes and returns arrays of static shape and a dynamic ``num``
(int32 scalar, the number of valid leading rows). Results are bitwise identical for any number of threads. Shapes: ``n``
rows, ``d`` dims, ``q`` query rows, ``k`` neighbours, ``m`` nodes (sum over the planes), ``s`` splits (``m`` + number of
planes), ``g`` catalogue rows.

Kernels have no derivatives. The packages that call them define derivatives. If a caller defines none, it is an error to
differentiate a float result of a kernel.
"""

from ._call import Tree, as_num
from ._checks import check, check_lengths, checked_lengths, tree_fits
from ._ghosts import open_leaves, row_boxes, select_boxes, select_ghosts
from ._group_graph import (
    Forest,
    ask_parents,
    begin_forest,
    group_edges,
    move_up,
    own_joined_labels,
    own_labels,
    propose_hooks,
    take_hooks,
)
from ._groups import (
    catalogue,
    catalogue_of_rank,
    group_order,
    group_parts,
    group_segments,
    group_targets,
    pack_parts,
    settle_groups,
    straddling_sums,
    straddling_words,
)
from ._library import native_info, set_num_threads
from ._neighbours import fof, knn
from ._order import (
    bounds,
    choose_parts,
    count_parts,
    covering_boxes,
    hierarchy,
    is_sorted,
    key_positions,
    node_masses,
    search,
    splitter_words,
    zsort,
)
from ._overdensity import overdensity, sphere_sums
from ._pairs import PairBins, PairSet, pair_counts
from ._potential import lowest_potential
from ._radius import (
    KernelTerm,
    count_within,
    enough_within,
    kernel_sums,
    least_within,
    neighbours_within,
    pairs_within,
)
from ._rows import (
    gather_rows,
    group_by_rank,
    pack_segments,
    place_rows,
    row_words,
    scatter_rows,
    unpack_segments,
    unwritten,
)

__all__ = [
    "Forest",
    "KernelTerm",
    "PairBins",
    "PairSet",
    "Tree",
    "as_num",
    "ask_parents",
    "begin_forest",
    "bounds",
    "catalogue",
    "catalogue_of_rank",
    "check",
    "check_lengths",
    "checked_lengths",
    "choose_parts",
    "count_parts",
    "count_within",
    "covering_boxes",
    "enough_within",
    "fof",
    "gather_rows",
    "group_by_rank",
    "group_edges",
    "group_order",
    "group_parts",
    "group_segments",
    "group_targets",
    "hierarchy",
    "is_sorted",
    "kernel_sums",
    "key_positions",
    "knn",
    "least_within",
    "lowest_potential",
    "move_up",
    "native_info",
    "neighbours_within",
    "node_masses",
    "open_leaves",
    "overdensity",
    "own_joined_labels",
    "own_labels",
    "pack_parts",
    "pack_segments",
    "pair_counts",
    "pairs_within",
    "place_rows",
    "propose_hooks",
    "row_boxes",
    "row_words",
    "scatter_rows",
    "search",
    "select_boxes",
    "select_ghosts",
    "set_num_threads",
    "settle_groups",
    "sphere_sums",
    "splitter_words",
    "straddling_sums",
    "straddling_words",
    "take_hooks",
    "tree_fits",
    "unpack_segments",
    "unwritten",
    "zsort",
]
