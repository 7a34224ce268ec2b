"""Extensions of JAX: maps over devices, exact float64 arguments, and compiled twins of public functions.

* `expanding_shard_map` and `shard_map_constructor` map functions over the devices of a mesh.
* `varying_axes` and `vary_along` return and set the mesh axes along which values vary inside `jax.shard_map`.
* `get_rank_info` returns the rank of the device, and `tree_map_by_len` maps over arrays of one length.
* `Exact` carries a float64 number through JAX in its default 32-bit mode, so that a linking length of 0.1 is compared
  as 0.1 and not as the nearest float32.
* `jit_constructor` makes the function stored as ``f.jit``.
* `with_twins` and `with_smap` are decorators that store ``.jit`` and ``.smap`` with a function, in a form that editors
  and type checkers understand. Twins take the same arguments, and all accept arrays of other libraries (DLPack).
"""

from ._transform.exact import Exact, exact, exact_to_float
from ._transform.mappers import expanding_shard_map, shard_map_constructor
from ._transform.ranks import get_rank_info
from ._transform.rows import tree_map_by_len
from ._transform.shard_map import is_concrete, vary_along, varying_axes
from ._transform.twins import jit_constructor, with_smap, with_twins

__all__ = [
    "Exact",
    "exact",
    "exact_to_float",
    "expanding_shard_map",
    "get_rank_info",
    "is_concrete",
    "jit_constructor",
    "shard_map_constructor",
    "tree_map_by_len",
    "vary_along",
    "varying_axes",
    "with_smap",
    "with_twins",
]
