"""The native kernels: one documented function a kernel. No other module calls `jax.ffi`.

A kernel sees one device and never communicates. It takes and returns arrays of static shape and a dynamic ``num``
(int32 scalar, how many leading rows count), and gives the same bits whatever the number of threads. Shapes: ``n`` rows,
``d`` dims, ``q`` query rows, ``k`` neighbours, ``m`` nodes of all planes together, ``s`` splits of all planes together
(``m`` + number of planes), ``g`` catalogue rows.

Kernels have no derivatives; callers stop gradients or define them.
"""

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .jax_ext import Exact, vary_along, varying_axes

_TARGETS = (
    "ask_parents",
    "belongs",
    "bounds",
    "catalogue",
    "check",
    "cover",
    "fof",
    "gather_rows",
    "group_by_rank",
    "group_edges",
    "group_order",
    "group_parts",
    "group_segments",
    "group_targets",
    "hierarchy",
    "hook",
    "key_counts",
    "key_positions",
    "knn",
    "lengths",
    "move_up",
    "node_masses",
    "open_leaves",
    "pack_parts",
    "pack_segments",
    "place_rows",
    "propose_hooks",
    "scatter_rows",
    "search",
    "select_ghosts",
    "settle_groups",
    "straddling_sums",
    "unpack_segments",
    "zsort",
)
_LIBRARIES = Path(__file__).parent / "lib"


def _load(name: str) -> ctypes.CDLL:
    path = _LIBRARIES / f"lib{name}.so"
    if not _LIBRARIES.exists() and (Path(__file__).parents[1] / "CMakeLists.txt").exists():
        raise ImportError(
            f"Python has imported jztree from its source folder {_LIBRARIES.parents[1]}, where nothing is compiled, "
            "and not as it was installed; start Python in another folder, or install with 'pip install .' first."
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"jztree's native library {path} cannot be loaded ({error}); install jztree again with 'pip install .' in "
            "its source folder, which needs a C++17 compiler."
        ) from error
    library.jztree_instruction_set.restype = ctypes.c_char_p
    library.jztree_best_instruction_set.restype = ctypes.c_char_p
    return library


@functools.cache
def _cpu_library() -> ctypes.CDLL:
    """The library for the best instruction set of this machine, or for the one that JZTREE_INSTRUCTION_SET names."""
    plain = _load("jztree_cpu")
    wanted = os.environ.get("JZTREE_INSTRUCTION_SET") or plain.jztree_best_instruction_set().decode()
    if wanted == plain.jztree_instruction_set().decode():
        return plain
    return _load(f"jztree_cpu_{wanted}")


def _register() -> None:
    """Register every kernel for the CPU, and for GPUs one that says that there are none."""
    library = _cpu_library()
    missing = jax.ffi.pycapsule(library.jztree_missing)
    for target in _TARGETS:
        handler = jax.ffi.pycapsule(getattr(library, f"jztree_{target}"))
        jax.ffi.register_ffi_target(f"jztree_{target}", handler, platform="cpu")
        for platform in ("CUDA", "ROCM"):
            jax.ffi.register_ffi_target(f"jztree_{target}", missing, platform=platform)


_register()


def set_num_threads(num: int | None) -> None:
    """Let CPU kernels use at most ``num`` threads each; None means all that XLA's pool has, which is the default.

    Results do not depend on it. Raises ValueError if ``num`` is below 1.
    """
    if num is not None and num < 1:
        raise ValueError(f"the number of threads must be at least 1, or None for all; {num} was given.")
    _cpu_library().jztree_set_thread_limit(ctypes.c_int(num or 0))


def native_info() -> dict[str, Any]:
    """Which native libraries are in use: ``cpu_library``, ``instruction_set``, ``num_threads``, ``cuda_library``."""
    library = _cpu_library()
    return {
        "cpu_library": library._name,
        "instruction_set": library.jztree_instruction_set().decode(),
        "num_threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cuda_library": None,
    }


def _call(target: str, out: Any, *args: Any, aliases: dict[int, int] | None = None, **attributes: Any) -> Any:
    """Call a kernel; ``out`` is a ShapeDtypeStruct or a tuple of them.

    aliases: arguments by their place -> outputs by theirs, that begin as what the argument holds.
    Inside `jax.shard_map`, all outputs differ along the mesh axes along which any input does.
    """
    arrays = [jax.lax.stop_gradient(jnp.asarray(arg)) for arg in args]
    axes = varying_axes(arrays)
    call = jax.ffi.ffi_call(f"jztree_{target}", out, vmap_method="sequential", input_output_aliases=aliases)
    results = call(*(vary_along(array, axes) for array in arrays), **attributes)
    return jax.tree.map(lambda result: vary_along(result, axes), results)


def _sizes(values: Sequence[int]) -> np.ndarray:
    return np.asarray(values, np.int64)


def _i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def as_num(num: Any) -> jax.Array:
    """A count, or an array of counts, as the int32 that kernels take."""
    return jnp.asarray(num, jnp.int32)


def bounds(pos: jax.Array, num: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Bounding box of the finite rows: ``lower`` and ``upper``, each ``(d,)``, and the first row that is not finite.

    pos: ``(n, d)``. The third output is an int32 scalar, -1 if all rows are finite.
    """
    box = jax.ShapeDtypeStruct((pos.shape[1],), pos.dtype)
    return _call("bounds", (box, box, _i32()), pos, as_num(num))


def zsort(pos: jax.Array, num: Any, lower: jax.Array, upper: jax.Array, box: Exact) -> jax.Array:
    """The rows of ``pos`` in z-order, ``(n,)`` int32: a stable sort by Morton key.

    pos: ``(n, d)``. lower, upper: ``(d,)``, the domain of the keys where the box is open. box: ``(d,)`` lengths, 0
    where open. Rows that are not finite come after all others, and rows from ``num`` on last, both in their order.
    """
    return _call("zsort", _i32(pos.shape[0]), pos, as_num(num), lower, upper, box.words)


def search(
    posz: jax.Array, num: Any, query: jax.Array, lower: jax.Array, upper: jax.Array, box: Exact, right: bool
) -> jax.Array:
    """Where queries belong in the z-order of ``posz``, ``(q,)`` int32.

    posz: ``(n, d)``, sorted by `zsort` with the same ``lower``, ``upper`` and ``box``. query: ``(q, d)``. Returns the
    first row whose key is not below the query's; with ``right``, the first whose key is above it.
    """
    return _call("search", _i32(query.shape[0]), posz, as_num(num), query, lower, upper, box.words, right=right)


def hierarchy(
    posz: jax.Array,
    num: Any,
    lower: jax.Array,
    upper: jax.Array,
    box: Exact,
    plane_sizes: Sequence[int],
    leaf_size: int,
    fan_out: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """The plane hierarchy by the window rule.

    posz: ``(n, d)``, sorted by `zsort` with the same ``lower``, ``upper`` and ``box``. Returns ``splits`` and
    ``particle_splits``, ``(s,)`` int32, and the boxes' ``lower`` and ``upper``, ``(m, d)``; planes one after the other.
    The last output, an int32 scalar, is not 0 if the rows are not in z-order.
    """
    nodes, dims = sum(plane_sizes), posz.shape[1]
    boxes = jax.ShapeDtypeStruct((nodes, dims), posz.dtype)
    splits = _i32(nodes + len(plane_sizes))
    return _call(
        "hierarchy",
        (splits, splits, boxes, boxes, _i32()),
        *(posz, as_num(num), lower, upper, box.words),
        plane_sizes=_sizes(plane_sizes),
        leaf_size=np.int64(leaf_size),
        fan_out=np.int64(fan_out),
    )


def node_masses(
    posz: jax.Array, mass: jax.Array, splits: jax.Array, box: Exact, plane_sizes: Sequence[int]
) -> tuple[jax.Array, jax.Array]:
    """Mass ``(m,)`` and centre of mass ``(m, d)`` of every node, summed in float64.

    posz: ``(n, d)``. mass: ``(n,)``, or ``(1,)`` if all particles share it; dtype of ``posz``.
    """
    nodes = sum(plane_sizes)
    out = jax.ShapeDtypeStruct((nodes,), posz.dtype), jax.ShapeDtypeStruct((nodes, posz.shape[1]), posz.dtype)
    return _call("node_masses", out, posz, mass, splits, box.words, plane_sizes=_sizes(plane_sizes))


def belongs(tree: tuple[Any, ...], box: Exact) -> jax.Array:
    """Whether a hierarchy covers exactly these particles and every one lies in the box of its leaf, int32 scalar.

    tree: ``(posz, num, splits, particle_splits, lower, upper, plane_sizes)``. All other kernels that take a hierarchy
    rely on it.
    """
    *arrays, plane_sizes = tree
    return _call("belongs", _i32(), *arrays, box.words, plane_sizes=_sizes(plane_sizes))


def checked_lengths(box: Exact, rlink: Exact | None = None) -> tuple[Exact, Exact]:
    """``box`` and ``rlink``, or an error at run time if these cannot be box lengths and a linking length for them.

    The caller must go on with what it wanted checked of these, as with `check`. All other kernels rely on it.
    """
    words = [jnp.asarray(box.words), jnp.zeros((0, 1), jnp.float32) if rlink is None else jnp.asarray(rlink.words)]
    checked = _call("lengths", tuple(jax.ShapeDtypeStruct(word.shape, word.dtype) for word in words), *words)
    return Exact(checked[0]), Exact(checked[1])


def knn(
    sources: tuple[Any, ...],
    source_rows: jax.Array | None,
    queries: tuple[Any, ...] | None,
    query_rows: jax.Array | None,
    k: int,
    box: Exact,
    *,
    own_offset: Any = -1,
    open_leaves: jax.Array | None = None,
    domain: tuple[jax.Array, jax.Array] | None = None,
    found: tuple[jax.Array, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The ``k`` nearest sources of every query: radii ``(q, k)`` and rows ``(q, k)`` int32, nearest first.

    sources, queries: ``(posz, num, splits, particle_splits, lower, upper, plane_sizes)`` of a hierarchy. None for
        ``queries``: the sources themselves, each its own first neighbour.
    source_rows: ``(n,)`` int32, the row to report for each z-ordered source; None reports z-ordered rows.
    query_rows: ``(q,)`` int32, the output row of each z-ordered query; None writes in z-order.
    own_offset: int32 scalar: query i is source ``i + own_offset``, and its own first neighbour; negative: it is none.
    open_leaves: int32, one a leaf of the queries: which are searched. The others keep their rows of ``found``, a pair
        of what this function returns.

    domain: lower and upper corner, ``(d,)``, of the set that sources and queries are part of; None: there are no
    others.

    Ties go to the lower z-ordered row. Where there are fewer than ``k`` sources, and for query rows from ``num`` on,
    the radius is infinite and the row -1.
    """
    *source_arrays, source_sizes = sources
    *query_arrays, query_sizes = sources if queries is None else queries
    shape, dtype = (query_arrays[0].shape[0], k), source_arrays[0].dtype
    old = (jnp.zeros((0, k), dtype), jnp.zeros((0, k), jnp.int32)) if found is None else found
    return _call(
        "knn",
        (jax.ShapeDtypeStruct(shape, dtype), _i32(*shape)),
        *(*source_arrays, _listed(source_rows)),
        *(*query_arrays, _listed(query_rows)),
        as_num(0 if queries is None else own_offset),
        _listed(open_leaves),
        box.words,
        jnp.zeros((0, 0), dtype) if domain is None else jnp.stack(domain),
        *old,
        aliases=None if found is None else {18: 0, 19: 1},
        plane_sizes=_sizes(source_sizes),
        query_plane_sizes=_sizes(query_sizes),
        self=queries is None,
    )


def fof(tree: tuple[Any, ...], rows: jax.Array | None, rlink: Exact, box: Exact) -> jax.Array:
    """Friends-of-friends labels, ``(n,)`` int32.

    tree: ``(posz, num, splits, particle_splits, lower, upper, plane_sizes)`` of a hierarchy.
    rows: ``(n,)`` int32, the output row of each z-ordered particle; None writes in z-order.
    rlink: scalar, the linking length.

    A label is the smallest output row of the group. Rows from ``num`` on are groups of their own.
    """
    *arrays, plane_sizes = tree
    return _call(
        "fof",
        _i32(arrays[0].shape[0]),
        *(*arrays, _listed(rows), rlink.words, box.words),
        plane_sizes=_sizes(plane_sizes),
    )


def group_order(label: jax.Array, num: Any, npart_min: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The order of particles by group, and the groups of at least ``npart_min`` particles.

    label: ``(n,)`` int32, the first row of each row's group. Returns ``order`` ``(n,)`` (rows of listed groups, group
    after group; then all others), the number of groups, and ``count`` and ``offset``, each ``(n // npart_min,)``.
    """
    n = label.shape[0]
    rows = _i32(n // npart_min)
    return _call("group_order", (_i32(n), _i32(), rows, rows), label, as_num(num), npart_min=np.int64(npart_min))


def catalogue(
    pos: jax.Array,
    mass: jax.Array | None,
    vel: jax.Array | None,
    ngroups: jax.Array,
    count: jax.Array,
    offset: jax.Array,
    box: Exact,
) -> tuple[jax.Array, ...]:
    """Sums over groups: mass, centre, inertia radius, largest radius, velocity and velocity dispersion, in that order.

    pos ``(n, d)``, mass ``(n,)`` or ``(1,)``, vel ``(n, d)``: of particles in group order, one dtype. What is None is
    left out of the sums; without ``vel`` the last two outputs are empty.
    """
    none = jnp.zeros((0,), jnp.uint32)
    return _catalogue(pos, mass, vel, ngroups, count, offset, box, none, 0)[1:]


def _catalogue(
    pos: jax.Array,
    mass: jax.Array | None,
    vel: jax.Array | None,
    ngroups: jax.Array,
    count: jax.Array,
    offset: jax.Array,
    box: Exact,
    ends: jax.Array,
    rank: Any,
) -> tuple[jax.Array, ...]:
    (n_groups,), dims, dtype = count.shape, pos.shape[1], pos.dtype
    scalar, vector = jax.ShapeDtypeStruct((n_groups,), dtype), jax.ShapeDtypeStruct((n_groups, dims), dtype)
    speeds = (vector, scalar) if vel is not None else (jax.ShapeDtypeStruct((0,), dtype),) * 2
    none = jnp.zeros((0,), dtype)
    return _call(
        "catalogue",
        (_i32(n_groups), scalar, vector, scalar, scalar, *speeds),
        *(pos, none if mass is None else mass, none if vel is None else vel, ngroups, count, offset, box.words),
        *(ends, as_num(rank)),
    )


def check(num: Any, failed: Any, numbers: Sequence[Any], sentence: str) -> jax.Array:
    """``num``, or an error with ``sentence`` at run time if ``failed``.

    The caller must go on with the returned ``num``; an output that nobody uses is removed by the compiler. ``{0}``,
    ``{1}`` in ``sentence`` stand for ``numbers`` (int32 scalars).
    """
    values = jnp.stack([as_num(number) for number in numbers]) if numbers else jnp.zeros((0,), jnp.int32)
    return _call("check", _i32(), as_num(num), jnp.asarray(failed, jnp.int32), values, sentence=sentence)


def gather_rows(array: jax.Array, index: jax.Array) -> jax.Array:
    """``array[index]`` along the leading axis, ``index`` being ``(q,)`` int32 inside the array. Differentiable."""
    return _differentiable_gather(array, index) if jnp.issubdtype(array.dtype, jnp.inexact) else _gather(array, index)


def scatter_rows(array: jax.Array, index: jax.Array) -> jax.Array:
    """``out`` with ``out[index] = array``, where ``index``, ``(n,)`` int32, orders all ``n`` rows. Differentiable."""
    return _differentiable_scatter(array, index) if jnp.issubdtype(array.dtype, jnp.inexact) else _scatter(array, index)


def _gather(array: jax.Array, index: jax.Array) -> jax.Array:
    return _call("gather_rows", jax.ShapeDtypeStruct((index.shape[0], *array.shape[1:]), array.dtype), array, index)


def _scatter(array: jax.Array, index: jax.Array) -> jax.Array:
    return _call("scatter_rows", jax.ShapeDtypeStruct(array.shape, array.dtype), array, index)


_differentiable_gather = jax.custom_jvp(_gather)
_differentiable_scatter = jax.custom_jvp(_scatter)


@_differentiable_gather.defjvp
def _gather_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return _differentiable_gather(*primals), tangents[0][primals[1]]


@_differentiable_scatter.defjvp
def _scatter_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return _differentiable_scatter(*primals), jnp.zeros_like(tangents[0]).at[primals[1]].set(
        tangents[0], unique_indices=True
    )


def pack_segments(
    arrays: Sequence[jax.Array], order: jax.Array | None, starts: jax.Array, counts: jax.Array, chunk: int
) -> jax.Array:
    """Segments of rows packed into one buffer, ``(s, chunk, words)`` uint32, whatever arrays the rows are made of.

    arrays: each ``(n, ...)``. order: ``(m,)`` int32 rows; None is all rows in their order. starts, counts: ``(s,)``
        int32: segment i holds the rows ``order[starts[i] + j]`` for j below ``counts[i]`` and ``chunk``. What comes
        after them in the buffer is undefined.
    """
    out = jax.ShapeDtypeStruct((starts.shape[0], chunk, row_words(arrays)), jnp.uint32)
    return _call("pack_segments", out, _listed(order), as_num(starts), as_num(counts), *arrays)


def row_words(arrays: Sequence[jax.Array]) -> int:
    """Words of 32 bits that a row of all ``arrays`` together needs when it is packed."""
    return -(-sum(int(np.prod(array.shape[1:])) * array.dtype.itemsize for array in arrays) // 4)


def unpack_segments(
    buffer: jax.Array, order: jax.Array | None, starts: jax.Array, counts: jax.Array, arrays: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """``arrays`` with row j of segment i of a buffer of `pack_segments` as row ``order[starts[i] + j]``."""
    out = tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays)
    aliases = {4 + i: i for i in range(len(arrays))}
    args = buffer, _listed(order), as_num(starts), as_num(counts), *arrays
    return _call("unpack_segments", out, *args, aliases=aliases)


def place_rows(
    source: Sequence[jax.Array],
    from_order: jax.Array | None,
    start: Any,
    arrays: Sequence[jax.Array],
    to_order: jax.Array | None,
    target: Any,
    count: Any,
) -> tuple[jax.Array, ...]:
    """``arrays`` with row ``from_order[start + j]`` of ``source`` as row ``to_order[target + j]``, j below ``count``.

    An order is a list of rows, int32; None is all rows in their order.
    """
    place = jnp.stack([as_num(start), as_num(target), as_num(count)])
    out = tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays)
    aliases = {3 + len(arrays) + i: i for i in range(len(arrays))}
    return _call("place_rows", out, _listed(from_order), _listed(to_order), place, *source, *arrays, aliases=aliases)


def _listed(order: jax.Array | None) -> jax.Array:
    """An order as kernels take it: empty for all rows in their order."""
    return jnp.zeros((0,), jnp.int32) if order is None else order


def group_by_rank(rank: jax.Array, num: Any, ndev: int) -> tuple[jax.Array, jax.Array]:
    """Rows in the order of their ranks, ``(m,)`` int32, stable, and how many each rank has, ``(ndev,)``.

    rank: ``(m,)`` int32. Rows from ``num`` on and those whose rank is not from 0 to ndev - 1 are left out.
    """
    return _call("group_by_rank", (_i32(rank.shape[0]), _i32(ndev)), rank, as_num(num))


def key_counts(
    posz: jax.Array, num: Any, lower: jax.Array, upper: jax.Array, box: Exact, splitters: jax.Array, place: Any
) -> jax.Array:
    """How many rows have a key below each of 256 ways to go on with a splitter, ``(s, 256)`` int32.

    posz: ``(n, d)``, in the order of the keys. splitters: ``(s, 4)`` uint32, 128-bit keys, highest word first, whose
        bytes from number ``place`` (0 to 15, from the top) on are 0.
    """
    out = _i32(splitters.shape[0], 256)
    return _call("key_counts", out, posz, as_num(num), lower, upper, box.words, splitters, as_num(place))


def key_positions(
    posz: jax.Array, num: Any, lower: jax.Array, upper: jax.Array, box: Exact, splitters: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """How many rows have a key below each splitter, and how many have it: two ``(s,)`` int32. As in `key_counts`."""
    rows = _i32(splitters.shape[0])
    return _call("key_positions", (rows, rows), posz, as_num(num), lower, upper, box.words, splitters)


def open_leaves(
    leaves: tuple[jax.Array, jax.Array, jax.Array],
    own: tuple[jax.Array, jax.Array, jax.Array],
    radius: jax.Array,
    rows: jax.Array | None,
    sources: tuple[jax.Array, jax.Array, jax.Array],
    rank: Any,
    box: Exact,
) -> tuple[jax.Array, jax.Array]:
    """Which leaves of queries may have neighbours on other ranks, int32, and how far each of the rank's boxes has to
    look.

    leaves, own: ``(particle_splits, lower, upper)`` of the queries' leaves, and of the boxes that the rank publishes.
    radius: ``(q, k)``, what is known of the queries' radii; rows: where in it each z-ordered query is, None: at its
    place.
    sources: ``(lower, upper, count)`` of the boxes of sources that the ranks published, ``(r, b, d)`` and ``(r, b)``.

    The radius of a box, in the dtype of the positions, is -1 if none of its queries needs another rank.
    """
    lower, upper, count = sources
    out = _i32(leaves[1].shape[0]), jax.ShapeDtypeStruct((own[1].shape[0],), own[1].dtype)
    args = (*leaves, *own, radius, _listed(rows), lower, upper, count, as_num(rank), box.words)
    return _call("open_leaves", out, *args, ranks=np.int64(count.shape[0]))


def select_ghosts(
    posz: jax.Array,
    num: Any,
    blocks: tuple[jax.Array, jax.Array, jax.Array],
    wanted: tuple[jax.Array, jax.Array, jax.Array],
    rank: Any,
    box: Exact,
    room: int,
    lower_only: bool,
) -> tuple[jax.Array, jax.Array]:
    """The rows that each rank is to have: ``(room,)`` int32 grouped by rank, and how many for each, ``(r,)``.

    posz: ``(n, d)``. blocks: ``(particle_splits, lower, upper)`` of runs of rows that are near each other. wanted:
        ``(lower, upper, radius)`` of the boxes that the ranks published, ``(r, b, d)`` and ``(r, b)``: a rank wants
        what is within the radius of one of its boxes (negative: nothing). The rank itself has all its rows.
        lower_only: higher ranks get nothing.

    Counts are right even if ``room`` is too small for the rows.
    """
    lower, upper, radius = wanted
    args = (posz, as_num(num), *blocks, lower, upper, radius, as_num(rank), box.words)
    return _call("select_ghosts", (_i32(room), _i32(radius.shape[0])), *args, lower_only=lower_only)


def group_parts(
    rank: Any, root_rank: jax.Array, root_row: jax.Array, num: Any, chunk: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """What this rank holds of each group: its parts, each named by its first row here.

    root_rank, root_row: ``(n,)`` int32, the group of each row: the rank and the row of its first particle, which comes
        no later than the row itself.
    chunk: how many parts there is to be room for when each rank tells each other rank about one window of its rows.

    Returns ``label`` ``(n,)`` int32, the first row here of the group of each row (rows from ``num`` on are alone);
    ``count`` ``(n,)`` int32, particles of the part at its first row and 0 elsewhere; ``parts`` ``(n,)`` int32, those of
    groups that begin on other ranks, in the order of their roots, then -1; how many these are; and into how many
    windows, a power of two, the rows of each rank must be cut at least so that ``chunk`` suffices. The last output is
    the first row whose root cannot be that, int32, -1 if there is none; all else is then meaningless.
    """
    rows = _i32(root_rank.shape[0])
    out = (rows, rows, rows, _i32(), _i32(), _i32())
    return _call("group_parts", out, as_num(rank), root_rank, root_row, as_num(num), chunk=np.int64(chunk))


def pack_parts(
    groups: tuple[jax.Array, jax.Array, jax.Array],
    parts: tuple[jax.Array, jax.Array],
    window: Any,
    windows: Any,
    shape: tuple[int, int],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What to tell the owners of the groups in one of ``windows`` windows of their rows.

    groups: ``root_rank``, ``root_row`` and ``count``; parts: ``parts`` and their number; see `group_parts`.
    shape: ranks and chunk.

    Returns ``(ranks, chunk, 2)`` int32, for each part the row of its root and its particles, -1 and 0 where there is
    none; and ``starts`` and ``counts``, ``(ranks,)`` int32: which of ``parts`` these are.
    """
    ranks, chunk = shape
    out = _i32(ranks, chunk, 2), _i32(ranks), _i32(ranks)
    return _call("pack_parts", out, *groups, *parts, as_num(window), as_num(windows))


def settle_groups(
    rank: Any,
    root_rank: jax.Array,
    count: jax.Array,
    told: jax.Array,
    window: Any,
    windows: Any,
    places: jax.Array,
    tally: jax.Array,
    npart_min: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Decide which groups of a window of this rank's rows are listed, and where their parts go. Windows come in order.

    told: ``(r, chunk, 2)`` int32, what all ranks packed with `pack_parts` for this rank and window.
    places: ``(n, 2)`` uint32, at the first row of each part, where it starts among the particles of all listed groups
        of its owner: low and high word; all bits set if the group has fewer than ``npart_min`` particles.
    tally: ``(4,)`` uint32: the particles of the groups listed so far, and of the largest group, two words each.

    Returns the places of what was told, ``(r, chunk, 2)`` uint32; ``places`` with those of this rank's own parts of
    these groups; and ``tally``.
    """
    outs = [jax.ShapeDtypeStruct(shape, jnp.uint32) for shape in (told.shape, places.shape, tally.shape)]
    arguments = (root_rank, count, told, as_num(window), as_num(windows), places, tally)
    return _call("settle_groups", tuple(outs), as_num(rank), *arguments, aliases={6: 1}, npart_min=np.int64(npart_min))


def group_targets(
    rank: Any,
    root_rank: jax.Array,
    root_row: jax.Array,
    num: Any,
    label: jax.Array,
    places: jax.Array,
    tallies: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Where each particle goes if all are dealt out in equal shares in group order.

    That order is rank by rank: the listed groups that begin on the rank, then its particles in no listed group.

    label, places: see `group_parts` and `settle_groups`. tallies: ``(r, 5)`` uint32, of all ranks: what `settle_groups`
    returned, and the particles it holds of no listed group.

    Returns ``to_rank``, ``(n,)`` int32 (-1 from ``num`` on), and ``target``, ``(n,)`` int32, the row there, or its
    bitwise complement for the first particle of a listed group.
    """
    rows = _i32(root_rank.shape[0])
    arguments = (root_rank, root_row, as_num(num), label, places, tallies)
    return _call("group_targets", (rows, rows), as_num(rank), *arguments)


def group_segments(
    rank: Any, target: jax.Array, num: Any, tallies: jax.Array, room: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Groups that begin among particles that have come from other ranks.

    target, tallies: see `group_targets`; ``target`` is ``(n,)`` int32, of the particles as they arrived. room: how many
    groups there may be.

    Returns ``place``, ``(n,)`` int32, the row of each; how many leading rows continue the last group of the ranks
    before; the number of groups; and ``count`` and ``offset``, ``(room,)`` int32: the rows of each group on this rank,
    and the first.
    """
    out = _i32(target.shape[0]), _i32(), _i32(), _i32(room), _i32(room)
    return _call("group_segments", out, as_num(rank), target, as_num(num), tallies)


def straddling_words(dims: int) -> int:
    """Words of 32 bits that hold a rank's sums over the groups that it shares with its neighbours."""
    return 4 * (5 + 3 * dims)


def straddling_sums(
    particles: tuple[jax.Array, jax.Array | None, jax.Array | None],
    segments: tuple[jax.Array, jax.Array, jax.Array],
    head: Any,
    box: Exact,
    number: Any,
    known: jax.Array,
    rank: Any,
) -> jax.Array:
    """Sums over this rank's part of the group that the ranks before began, and of the last one that begins here.

    particles: ``pos``, ``mass`` and ``vel`` as in `catalogue`.
    segments: ``ngroups``, ``count`` and ``offset``, and head, the leading rows: see `group_segments`.
    number: 0, 1, 2: masses, then centres, then spreads.
    known: ``(r, straddling_words(d))`` uint32, what all ranks found so far; zeros at first.

    Returns this rank's row of what is known next.
    """
    pos, mass, vel = particles
    none = jnp.zeros((0,), pos.dtype)
    arrays = (pos, none if mass is None else mass, none if vel is None else vel, *segments, as_num(head), box.words)
    out = jax.ShapeDtypeStruct(known.shape[1:], jnp.uint32)
    return _call("straddling_sums", out, *arrays, as_num(number), known, as_num(rank))


def catalogue_of_rank(
    particles: tuple[jax.Array, jax.Array | None, jax.Array | None],
    segments: tuple[jax.Array, jax.Array, jax.Array],
    box: Exact,
    known: jax.Array,
    rank: Any,
) -> tuple[jax.Array, ...]:
    """`catalogue` of the groups that begin on this rank, all ranks' parts of them included.

    Arguments as in `straddling_sums`, ``known`` after all three passes. Returns the count of each group, ``(g,)``
    int32, then what `catalogue` returns.
    """
    return _catalogue(*particles, *segments, box, known, rank)


def group_edges(
    label: jax.Array, owner_label: jax.Array, received: jax.Array, rank: Any, room: int
) -> tuple[jax.Array, jax.Array]:
    """Links between groups of different ranks, each once: ``(room, 4)`` int32, rank and row of both ends, and how many.

    label: ``(m,)`` int32, the first row of each row's group, over own rows and then ghosts of higher ranks.
        owner_label: ``(m,)`` int32, the first row of the row's group on the rank that owns it. received: ``(r,)``
        int32, how many of the rows are of each rank.

    The number is right even if ``room`` is too small.
    """
    return _call("group_edges", (_i32(room, 4), _i32()), label, owner_label, received, as_num(rank))


def propose_hooks(edges: jax.Array, num: Any) -> tuple[jax.Array, jax.Array]:
    """For every edge ``(e, 4)`` whose ends differ, the rank of the larger end ``(e,)``, and what to tell it, ``(e,
    3)``.

    The message is the row of the larger end, and the rank and row of the smaller one. The rank is -1 where ends agree.
    """
    return _call("propose_hooks", (_i32(edges.shape[0]), _i32(edges.shape[0], 3)), edges, as_num(num))


def hook(messages: jax.Array, counts: jax.Array, parent: jax.Array) -> jax.Array:
    """``parent``, ``(n, 2)`` int32 rank and row, with the smallest of its own and what messages propose.

    messages: ``(r, chunk, 3)`` uint32, as `propose_hooks` makes them; ``counts`` ``(r,)`` int32 of each rank's count.
    """
    out = jax.ShapeDtypeStruct(parent.shape, parent.dtype)
    return _call("hook", out, messages, counts, parent, aliases={2: 0})


def ask_parents(parent: jax.Array, edges: jax.Array, num: Any, rank: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Whose parents to ask for: ranks and rows, ``(n + 2 e,)`` int32, and how many.

    First the ends of the edges, then the parents of the hooked vertices of ``parent``.
    """
    most = _i32(parent.shape[0] + 2 * edges.shape[0])
    return _call("ask_parents", (most, most, _i32()), parent, edges, as_num(num), as_num(rank))


def move_up(
    answers: jax.Array, num: Any, rank: Any, parent: jax.Array, edges: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``parent`` and ``edges`` moved to the answers, ``(n + 2 e, 2)``, to `ask_parents`; and ``(2,)`` int32 whether any
    moved and whether there are edges whose ends differ.
    """
    out = tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (parent, edges))
    args = (answers, as_num(num), as_num(rank), parent, edges)
    return _call("move_up", (*out, _i32(2)), *args, aliases={3: 0, 4: 1})


def cover(
    posz: jax.Array,
    num: Any,
    lower: jax.Array,
    upper: jax.Array,
    box: Exact,
    leaves: tuple[jax.Array, jax.Array, jax.Array],
    most: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """At most ``most`` boxes that cover particles in z-order closely: ``(particle_splits, lower, upper)``.

    posz, num, lower, upper, box: as in `hierarchy`. leaves: ``(particle_splits, lower, upper)`` of runs of the rows.
    The boxes hold consecutive rows; there are ``(most + 1,)`` splits, and boxes that are not needed are empty and
    inverted.
    """
    boxes = jax.ShapeDtypeStruct((most, posz.shape[1]), posz.dtype)
    return _call("cover", (_i32(most + 1), boxes, boxes), posz, as_num(num), lower, upper, box.words, *leaves)
