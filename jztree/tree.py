"""z-order and the plane hierarchy: what every algorithm here, and any that users write, stands on.

Positions are sorted by Morton keys of 128 bits over the periodic box, or over their bounding box in open dimensions.
Over the sorted particles lie planes of nodes: plane 0 holds the leaves, each plane above groups runs of nodes of the
plane below, and the top plane has at most 64 nodes. Boundaries follow the **window rule**: each window of ``leaf_size``
rows (of ``fan_out`` nodes, further up) contributes the one boundary where Morton keys differ in the highest bit. So
nodes follow the cells of the z-order, and their number depends on nothing but the number of rows: it is known when a
function is traced. The cost is that of sorting, O(n), plus one pass.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import kernels
from .config import TreeConfig
from .data import get_num, get_pos, map_rows, static_field
from .jax_ext import Exact, exact, is_concrete, jit_constructor

__all__ = [
    "TreeHierarchy",
    "build_tree_hierarchy",
    "search_sorted_z",
    "zsort",
    "zsort_and_tree",
    "zsort_and_tree_multi_type",
]

MAX_DIMS = 8
_TOP_PLANE_NODES = 64
_NOT_FINITE = "row {0} of %s is NaN or infinite; remove such particles, or set num to leave out rows at the end."


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
class TreeHierarchy:
    """Planes of nodes over z-ordered particles.

    The flat arrays hold all planes, plane 0 (the leaves) first; the methods give one plane. Node ``i`` of plane ``p``
    covers the nodes ``splits(p)[i]`` to ``splits(p)[i + 1]`` of plane ``p - 1`` (of the particles, for plane 0) and the
    particles ``particle_splits(p)[i]`` to ``particle_splits(p)[i + 1]``. If fewer rows than the arrays have hold
    particles, nodes at the end of a plane are empty; their boxes are inverted (lower = inf, upper = -inf).

    Boxes are tight and hold the positions wrapped into the periodic box.

    plane_sizes: number of nodes of each plane; static.
    flat_splits, flat_particle_splits: ``(m + planes,)`` int32.
    flat_lower, flat_upper: ``(m, d)``, the corners of the boxes, dtype of the positions.
    flat_mass: ``(m,)``, flat_center_of_mass: ``(m, d)``; None unless ``cfg.masses``.
    """

    plane_sizes: tuple[int, ...] = static_field()
    flat_splits: jax.Array
    flat_particle_splits: jax.Array
    flat_lower: jax.Array
    flat_upper: jax.Array
    flat_mass: jax.Array | None = None
    flat_center_of_mass: jax.Array | None = None

    @property
    def num_planes(self) -> int:
        """Number of planes; the highest is ``num_planes - 1``."""
        return len(self.plane_sizes)

    def num_nodes(self, plane: int) -> int:
        """Number of nodes of a plane."""
        return self.plane_sizes[plane]

    def node_slice(self, plane: int) -> slice:
        """The nodes of a plane in the flat arrays."""
        start = sum(self.plane_sizes[:plane])
        return slice(start, start + self.plane_sizes[plane])

    def _split_slice(self, plane: int) -> slice:
        nodes = self.node_slice(plane)
        return slice(nodes.start + plane, nodes.stop + plane + 1)

    def splits(self, plane: int) -> jax.Array:
        """``(nodes + 1,)`` int32: where each node starts in the plane below, and the end."""
        return self.flat_splits[self._split_slice(plane)]

    def particle_splits(self, plane: int) -> jax.Array:
        """``(nodes + 1,)`` int32: where each node starts among the particles, and the end."""
        return self.flat_particle_splits[self._split_slice(plane)]

    def count(self, plane: int) -> jax.Array:
        """``(nodes,)`` int32: particles of each node."""
        return jnp.diff(self.particle_splits(plane))

    def lower(self, plane: int) -> jax.Array:
        """``(nodes, d)``: lower corners of the boxes."""
        return self.flat_lower[self.node_slice(plane)]

    def upper(self, plane: int) -> jax.Array:
        """``(nodes, d)``: upper corners of the boxes."""
        return self.flat_upper[self.node_slice(plane)]

    def center(self, plane: int) -> jax.Array:
        """``(nodes, d)``: centres of the boxes; NaN for empty nodes."""
        return 0.5 * self.lower(plane) + 0.5 * self.upper(plane)

    def mass(self, plane: int) -> jax.Array:
        """``(nodes,)``: mass of each node. Raises ValueError if the hierarchy was built without masses."""
        return self._moments(self.flat_mass)[self.node_slice(plane)]

    def center_of_mass(self, plane: int) -> jax.Array:
        """``(nodes, d)``: centre of mass of each node; 0 for massless nodes. Raises like `mass`."""
        return self._moments(self.flat_center_of_mass)[self.node_slice(plane)]

    def _moments(self, values: jax.Array | None) -> jax.Array:
        if values is None:
            raise ValueError("this hierarchy was built without masses; build it with TreeConfig(masses=True).")
        return values


def plane_sizes(n: int, cfg: TreeConfig) -> tuple[int, ...]:
    """Number of nodes of each plane over ``n`` rows, by the window rule."""
    sizes = [max(1, -(-n // cfg.leaf_size))]
    while sizes[-1] > _TOP_PLANE_NODES:
        sizes.append(-(-sizes[-1] // cfg.fan_out))
    return tuple(sizes)


def check_positions(pos: Any, what: str = "positions", max_dims: int = MAX_DIMS) -> jax.Array:
    """``pos`` as a JAX array; TypeError or ValueError in words if it is not ``(n, d)`` float32 or float64."""
    if pos.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(f"{what} must be float32 or float64, not {pos.dtype}; convert them with .astype('float32').")
    if np.ndim(pos) != 2 or not 1 <= pos.shape[1] <= max_dims:
        raise ValueError(f"{what} must have shape (n, d) with d from 1 to {max_dims}; their shape is {pos.shape}.")
    if pos.shape[0] >= 2**31:
        raise ValueError(f"there are {pos.shape[0]} {what}; one device can index at most 2**31 - 1 rows.")
    return jnp.asarray(pos)


def check_num(part: Any, what: str = "num") -> Any:
    """``num`` of ``part``; ValueError in words if it is known and not between 0 and the number of rows."""
    num, n = get_num(part), get_pos(part).shape[0]
    if np.ndim(num) != 0 or not np.issubdtype(jnp.result_type(num), np.integer):
        raise TypeError(f"{what} is {num}; it counts the rows that hold particles, so it must be one integer.")
    if is_concrete(num) and not 0 <= int(num) <= n:
        raise ValueError(f"{what} is {num}; it counts the rows that hold particles, so it must be from 0 to {n}.")
    return num


def check_real(value: Any, what: str) -> np.ndarray:
    """``value`` as float64 NumPy numbers; TypeError in words if it is not made of real numbers."""
    array = np.asarray(value)
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        raise TypeError(f"{what} is {value!r}; it must be a real number or an array of such.")
    return array.astype(np.float64)


def check_range(value: np.ndarray, what: str, may_vanish: bool = False) -> None:
    """ValueError in words if a length is beyond what JAX can carry in the mode it is in.

    may_vanish: one that is too small counts as 0.
    """
    widest = np.finfo(jax.dtypes.canonicalize_dtype(np.float64))
    if np.any((value > widest.max) | ((value > 0) & (value < widest.tiny) & (not may_vanish))):
        raise ValueError(
            f"{what} is {value}, beyond the range of float32; choose another unit of length, or switch on "
            "jax_enable_x64."
        )


def check_box(boxsize: Any, dims: int) -> Exact:
    """``boxsize`` as one exact length a dimension, 0 where open; ValueError in words if it cannot be one."""
    if isinstance(boxsize, Exact):
        return boxsize
    if boxsize is None:
        boxsize = 0.0
    if np.shape(boxsize) not in ((), (dims,)):
        raise ValueError(
            f"boxsize must be one length or {dims}, one a dimension (0 where open); its shape is {np.shape(boxsize)}."
        )
    if is_concrete(boxsize):
        lengths = check_real(boxsize, "boxsize")
        if not (np.all(np.isfinite(lengths)) and np.all(lengths >= 0)):
            raise ValueError(f"boxsize is {boxsize}; lengths must be finite and positive, or 0 where open.")
        check_range(lengths, "boxsize")
    return exact(boxsize, (dims,))


def _checked_bounds(pos: jax.Array, num: Any, what: str = "the positions") -> tuple[jax.Array, jax.Array, jax.Array]:
    """Bounding box of ``pos``, and ``num``, which raises at run time if a row is not finite."""
    lower, upper, bad = kernels.bounds(pos, num)
    return lower, upper, kernels.check(num, bad >= 0, [bad], _NOT_FINITE % what)


def permute_particles(part: Any, index: jax.Array) -> Any:
    """``part`` with every property in the order ``index``, ``(n,)`` int32."""
    return map_rows(lambda leaf: kernels.gather_rows(jnp.asarray(leaf), index), part)


def zsort(part: Any, boxsize: Any = None) -> tuple[Any, jax.Array]:
    """Sort particles in z-order.

    part: a particle class with ``pos`` ``(n, d)``, or an array of positions.
    boxsize: periodic length, or one a dimension; 0 or None is open.

    Returns ``part`` sorted and the ``(n,)`` int32 rows it was taken from. The sort is stable: coincident particles keep
    their order. (More than 32 particles that are apart but share all 128 bits of their key are in the order of a finer
    grid.) Rows that are NaN or infinite come after all others, and rows from ``num`` on last. Positions are wrapped for
    the order only.

    Raises TypeError or ValueError for positions or a box of the wrong kind.
    """
    pos = check_positions(get_pos(part))
    box = check_box(boxsize, pos.shape[1])
    num = check_num(part)
    lower, upper, _ = kernels.bounds(pos, num)
    index = kernels.zsort(pos, num, lower, upper, box)
    return permute_particles(part, index), index


def search_sorted_z(posz: Any, query: Any, boxsize: Any = None, side: str = "left") -> jax.Array:
    """Where positions belong among z-ordered ones, as `numpy.searchsorted` finds it for numbers.

    posz: ``(n, d)`` positions or a particle class, sorted by `zsort` with the same ``boxsize``.
    query: ``(q, d)`` positions, in any order.
    side: ``"left"`` for the first row whose Morton key is not below the query's, ``"right"`` for the first above it.

    Returns ``(q,)`` int32 rows, from 0 to the number of particles. Queries outside the domain of ``posz`` count as on
    its edge. Raises TypeError or ValueError for arguments of the wrong kind.
    """
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', not {side!r}.")
    pos = check_positions(get_pos(posz))
    wanted = check_positions(get_pos(query), "query positions")
    if wanted.shape[1] != pos.shape[1]:
        raise ValueError(f"queries have {wanted.shape[1]} dimensions, but the particles have {pos.shape[1]}.")
    box = check_box(boxsize, pos.shape[1])
    lower, upper, _ = kernels.bounds(pos, check_num(posz))
    return kernels.search(pos, get_num(posz), wanted.astype(pos.dtype), lower, upper, box, side == "right")


def build_tree_hierarchy(partz: Any, cfg_tree: TreeConfig | None = None, boxsize: Any = None) -> TreeHierarchy:
    """The plane hierarchy over particles that are in z-order already.

    partz: as returned by `zsort` with the same ``boxsize``; its ``mass`` is used if ``cfg_tree.masses``.

    Raises TypeError or ValueError for arguments of the wrong kind, and at run time if a position is NaN or infinite or
    the particles are not in z-order.
    """
    cfg = cfg_tree or TreeConfig()
    pos = check_positions(get_pos(partz))
    box = check_box(boxsize, pos.shape[1])
    lower, upper, num = _checked_bounds(pos, check_num(partz))
    return _build(partz, pos, num, lower, upper, box, cfg)


def _build(
    partz: Any, pos: jax.Array, num: jax.Array, lower: jax.Array, upper: jax.Array, box: Exact, cfg: TreeConfig
) -> TreeHierarchy:
    sizes = plane_sizes(pos.shape[0], cfg)
    splits, particle_splits, node_lower, node_upper = kernels.hierarchy(
        pos, num, lower, upper, box, sizes, cfg.leaf_size, cfg.fan_out
    )
    th = TreeHierarchy(
        plane_sizes=sizes,
        flat_splits=splits,
        flat_particle_splits=particle_splits,
        flat_lower=node_lower,
        flat_upper=node_upper,
    )
    if not cfg.masses:
        return th
    mass, center = kernels.node_masses(pos, _mass_rows(partz, pos), splits, box, sizes)
    return dataclasses.replace(th, flat_mass=mass, flat_center_of_mass=center)


def _mass_rows(part: Any, pos: jax.Array) -> jax.Array:
    """Masses in the dtype of the positions, ``(n,)`` or ``(1,)``."""
    mass = getattr(part, "mass", None)
    if mass is None:
        raise ValueError("TreeConfig(masses=True) needs particles with a mass, and these have none.")
    mass = jnp.asarray(mass, pos.dtype).reshape(-1)
    if mass.shape[0] not in (1, pos.shape[0]):
        raise ValueError(f"mass must be one number or one a particle; there are {mass.shape[0]} for {pos.shape[0]}.")
    return mass


def zsort_and_tree(part: Any, cfg_tree: TreeConfig | None = None, data: Any = None, boxsize: Any = None) -> Any:
    """Sort particles in z-order and build the hierarchy over them.

    part: a particle class with ``pos`` ``(n, d)``, or an array of positions.
    data: a pytree whose leaves all have ``n`` rows, to be sorted along.
    boxsize: periodic length, or one a dimension; 0 or None is open.

    Returns ``(partz, th)``, or ``(partz, dataz, th)`` if ``data`` is given. Raises TypeError or ValueError for
    arguments of the wrong kind, and at run time if a position is NaN or infinite.
    """
    partz, index, th = sort_and_build(part, cfg_tree or TreeConfig(), boxsize)
    if data is None:
        return partz, th
    n = get_pos(part).shape[0]
    for leaf in jax.tree.leaves(data):
        if np.ndim(leaf) == 0 or leaf.shape[0] != n:
            raise ValueError(f"every array in data must have {n} rows, one a particle; one has shape {np.shape(leaf)}.")
    dataz = jax.tree.map(lambda leaf: kernels.gather_rows(jnp.asarray(leaf), index), data)
    return partz, dataz, th


def sort_and_build(part: Any, cfg: TreeConfig, boxsize: Any) -> tuple[Any, jax.Array, TreeHierarchy]:
    """`zsort_and_tree` that also returns the ``(n,)`` int32 rows in z-order; rows that are not finite are an error."""
    pos = check_positions(get_pos(part))
    box = check_box(boxsize, pos.shape[1])
    lower, upper, num = _checked_bounds(pos, check_num(part))
    index = kernels.zsort(pos, num, lower, upper, box)
    partz = permute_particles(part, index)
    return partz, index, _build(partz, get_pos(partz), num, lower, upper, box, cfg)


def kernel_tree(partz: Any, num: Any, th: TreeHierarchy) -> tuple[Any, ...]:
    """The hierarchy ``th`` over ``partz``, of which the first ``num`` rows hold particles, as kernels take it."""
    arrays = (th.flat_splits, th.flat_particle_splits, th.flat_lower, th.flat_upper)
    return (get_pos(partz), kernels.as_num(num), *arrays, th.plane_sizes)


def zsort_and_tree_multi_type(
    parts: Sequence[Any], cfg_tree: TreeConfig | None = None, boxsize: Any = None
) -> tuple[tuple[Any, ...], tuple[TreeHierarchy, ...]]:
    """Sort several particle types in z-order and build one hierarchy over all of them.

    parts: particle classes (or arrays of positions) of one dtype and number of dimensions.

    Returns ``(parts_z, ths)``: each type sorted, and for each type the hierarchy with its own particle splits. All
    hierarchies have the same planes and nodes, so node ``i`` is the same region for every type; boxes hold the
    particles of all types, and a node may be empty of one type.

    Raises TypeError or ValueError for arguments of the wrong kind, and at run time if a position is NaN or infinite.
    """
    cfg = cfg_tree or TreeConfig()
    positions = [check_positions(get_pos(part), f"positions of type {i}") for i, part in enumerate(parts)]
    if not positions or any(p.shape[1] != positions[0].shape[1] or p.dtype != positions[0].dtype for p in positions):
        kinds = [f"{p.dtype} with {p.shape[1]} dimensions" for p in positions]
        raise ValueError(f"all types need one dtype and number of dimensions, and one type at least; given: {kinds}.")
    if cfg.masses:
        raise ValueError("TreeConfig(masses=True) is for one type; build a hierarchy a type to have its masses.")
    box = check_box(boxsize, positions[0].shape[1])
    bounds = [
        _checked_bounds(pos, check_num(part), f"the positions of type {i}")
        for i, (pos, part) in enumerate(zip(positions, parts, strict=True))
    ]
    lower = functools.reduce(jnp.minimum, [low for low, _, _ in bounds])
    upper = functools.reduce(jnp.maximum, [high for _, high, _ in bounds])
    num = sum(count for _, _, count in bounds)
    # Rows without particles may stand between the types; they are moved behind all particles first.
    valid = [jnp.arange(pos.shape[0]) < count for pos, (_, _, count) in zip(positions, bounds, strict=True)]
    first = jnp.argsort(~jnp.concatenate(valid), stable=True).astype(jnp.int32)
    pos = kernels.gather_rows(jnp.concatenate(positions), first)
    index = kernels.zsort(pos, num, lower, upper, box)
    order = kernels.gather_rows(first, index)
    th = _build(None, kernels.gather_rows(pos, index), kernels.as_num(num), lower, upper, box, cfg)
    kind = jnp.concatenate([jnp.full(p.shape[0], i, jnp.int32) for i, p in enumerate(positions)])
    starts = np.cumsum([0] + [p.shape[0] for p in positions])
    typed = [_one_type(part, th, order, kind[order] == i, int(starts[i])) for i, part in enumerate(parts)]
    return tuple(part for part, _ in typed), tuple(th for _, th in typed)


def _one_type(part: Any, th: TreeHierarchy, order: jax.Array, mine: jax.Array, start: int) -> tuple[Any, TreeHierarchy]:
    """The rows of one type out of an order over all types (``mine`` marks them), and the hierarchy as it sees it."""
    (rows,) = jnp.nonzero(mine, size=get_pos(part).shape[0])
    before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(mine, dtype=jnp.int32)])
    splits = before[th.flat_particle_splits]
    leaf_splits = splits[: th.plane_sizes[0] + 1]
    flat_splits = jnp.concatenate([leaf_splits, th.flat_splits[th.plane_sizes[0] + 1 :]])
    return permute_particles(part, order[rows] - start), dataclasses.replace(
        th, flat_splits=flat_splits, flat_particle_splits=splits
    )


def exact_box_argument(arguments: dict[str, Any]) -> dict[str, Any]:
    """What `jit_constructor` is to replace in the arguments of a public function: ``boxsize``, checked and exact.

    The first argument is a particle class, an array of positions, or a sequence of these.
    """
    part = next(iter(arguments.values()))
    if isinstance(part, (list, tuple)) and part:
        part = part[0]
    return {"boxsize": check_box(arguments["boxsize"], check_positions(get_pos(part)).shape[1])}


zsort.jit = jit_constructor(zsort, (), exact_box_argument)  # type: ignore[attr-defined]
search_sorted_z.jit = jit_constructor(  # type: ignore[attr-defined]
    search_sorted_z, ("side",), exact_box_argument
)
build_tree_hierarchy.jit = jit_constructor(  # type: ignore[attr-defined]
    build_tree_hierarchy, ("cfg_tree",), exact_box_argument
)
zsort_and_tree.jit = jit_constructor(zsort_and_tree, ("cfg_tree",), exact_box_argument)  # type: ignore[attr-defined]
zsort_and_tree_multi_type.jit = jit_constructor(  # type: ignore[attr-defined]
    zsort_and_tree_multi_type, ("cfg_tree",), exact_box_argument
)
