"""Ranks, and exchange of rows between them. All communication of `jztree` between devices uses this package.

A function inside `jax.shard_map` is one of ``r`` ranks, numbered over all axes of the mesh. Outside of any mesh there
is one rank, and all functions here are plain local operations. Rows of whole pytrees are packed into one buffer,
because each collective costs compile time and latency.

All ranks must make the same calls in the same order, with arrays of the same shapes and dtypes. If one rank raised an
error alone, the other ranks would wait forever for it in the next collective. So all ranks first exchange possible
errors (`check`), and then raise together. Each next operation must use the count that the check returns: this
dependence keeps XLA from running a later collective before the check.

An exchange in dense rounds needs two buffers of a fixed size, regardless of the number of rows per rank.
"""

from ..launch import initialize, should_init_jax_distributed
from ._agree import Fault, after, check, check_all
from ._agree import check_and_gather as check_and_gather
from ._agree import require_capacity as require_capacity
from ._counts import Wide as Wide
from ._counts import rank_and_row as rank_and_row
from ._counts import share as share
from ._counts import starts_of
from ._counts import wide_sum as wide_sum
from ._counts import wide_total as wide_total
from ._exchange import Route, exchange, exchange_by_rank, send_back
from ._ranks import (
    all_gather,
    all_gather_rows,
    all_max,
    all_min,
    get_rank_info,
    in_shard_map_context,
    num_ranks,
    shift,
    swap,
    vary,
)
from ._ranks import of_rank as of_rank
from ._ranks import rows_of_adjacent as rows_of_adjacent
from ._rounds import chunk_of as chunk_of
from ._sort import sort_by_keys as sort_by_keys
from ._tables import deliver, fetch
from ._tables import rows_and_values as rows_and_values
from ._traffic import Traffic as Traffic
from ._traffic import traffic_of as traffic_of

# Names imported "as" themselves are for other packages of the library, and not public.
__all__ = [
    "Fault",
    "Route",
    "after",
    "all_gather",
    "all_gather_rows",
    "all_max",
    "all_min",
    "check",
    "check_all",
    "deliver",
    "exchange",
    "exchange_by_rank",
    "fetch",
    "get_rank_info",
    "in_shard_map_context",
    "initialize",
    "num_ranks",
    "send_back",
    "shift",
    "should_init_jax_distributed",
    "starts_of",
    "swap",
    "vary",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # the public name
