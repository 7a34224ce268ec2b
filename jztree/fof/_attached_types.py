"""Attach particles of other types to the group of their nearest primary particle, like gas and stars in Gadget.

Only primary particles form groups, so that components that are naturally denser (gas that cools, stars) do not form
separate groups (Dolag et al. 2009, MNRAS 399, 497). An attached particle whose nearest primary is farther than a limit
forms its own group. If each primary has its own linking length, that of the nearest primary determines the limit. Over
ranks, an attached particle moves to the rank of its nearest primary, if that is within the limit, and is stored after
the primaries there. The first particle of its group then comes before it, on that rank or a lower one, unless it is the
first itself. `jztree.fof._group_order` requires nothing else of the order of particles.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels
from .._transform.capacity import choose_capacity
from ..arguments import NO_LIMIT, Radii, check_real, is_length
from ..config import FofConfig, KNNConfig
from ..data import Label, get_num, get_pos, replace_num
from ..jax_ext import Exact, exact, exact_to_float, is_concrete
from ..knn import SearchArguments, entries_of, knn
from ..particles import check_rows, get_num_total, num_rows, replace_field

# In linking lengths. Gadget-4 searches within 0.1 (for gas, within the smoothing length). It doubles this length until
# it finds a primary or the length is at least 4, which happens at 6.4.
ATTACH_WITHIN = 6.4

_NO_PRIMARIES = (
    "attached particles join the group of the nearest particle of part, but part has no particles; pass the particles "
    "to link as part, or attached=None."
)
_BAD_LIMIT = (
    "attach_within is %s; it must be a number of linking lengths, finite and not negative, or None for no limit."
)


@jax.tree_util.register_dataclass
@dataclass
class _Labelled:
    """Primary particles to search, with their groups.

    Attributes:
        pos: ``(n, d)``.
        num: Number of rows that hold particles.
        irank: ``(n,)`` int32, rank of the first particle of the group.
        igroup: ``(n,)`` int32, its row on that rank.
        limit: ``(n, w)``, words of the largest distance of particles that it attracts, or None.
    """

    pos: Any
    num: int | jax.Array
    irank: Any
    igroup: Any
    limit: Any = None


class _Joined(NamedTuple):
    """Particles of one or several types.

    Attributes:
        part: A particle class.
        num: Number of rows that hold particles, int32.
        label: The group of each particle.
    """

    part: Any
    num: jax.Array
    label: jax.Array


def check_attached(part: Any, attached: Any) -> None:
    """Raise ValueError or TypeError if ``attached`` cannot be concatenated with ``part``."""
    structures = [jax.tree.structure(_uncounted(particles)) for particles in (part, attached)]
    if len(set(structures)) > 1:
        raise TypeError(
            f"part has {_properties(part)}, but attached has {_properties(attached)}; they are joined, so pass both in "
            "the same class with the same properties."
        )
    n, m = num_rows(part), num_rows(attached)
    for leaf, attached_leaf in zip(
        jax.tree.leaves(_uncounted(part)), jax.tree.leaves(_uncounted(attached)), strict=True
    ):
        if _row_shape(leaf, n) != _row_shape(attached_leaf, m):
            raise ValueError(
                "properties of part and attached must have the same shape per particle, because they are joined, "
                f"but one has shape {np.shape(leaf)} for {n} particles and the other {np.shape(attached_leaf)} for {m}."
            )


def attach_limit(within: Any, lengths: Radii) -> Radii:
    """Return the largest distances of attached particles: ``within`` times the linking lengths.

    Args:
        within: Number of linking lengths. None means no limit.
        lengths: The linking lengths.

    Returns:
        One distance, or one per primary particle.

    Raises:
        TypeError: If ``within`` is not a number.
        ValueError: If ``within`` is negative, NaN or infinite; at run time if it is traced.
    """
    if within is None:
        return NO_LIMIT
    if isinstance(within, Radii):
        return within
    if np.shape(within) != ():
        raise ValueError(f"attach_within must be one number for all particles; its shape is {np.shape(within)}.")
    length = lengths.words()
    shape = length.words.shape[:-1]
    if not is_concrete(within):
        limit = within * exact_to_float(length)
        bad = ~is_length(jnp.asarray(within, limit.dtype)) | jnp.isinf(limit).any()
        checked = comm.check(jnp.int32(0), bad, [], _BAD_LIMIT % "infinite, NaN or negative")
        return lengths.with_words(comm.after(exact(limit, shape), checked))
    value = float(check_real(within, "attach_within"))
    if not (np.isfinite(value) and value >= 0):
        raise ValueError(_BAD_LIMIT % f"{value:g}")
    return lengths.with_words(exact(exact_to_float(length) * value, shape))


def attach(
    partz: Any, label: jax.Array, attached: Sequence[Any], box: Exact, limit: Radii, cfg: FofConfig
) -> tuple[Any, jax.Array]:
    """Append attached particles to the primary ones, with the label of their nearest primary.

    A particle that is too far from every primary gets its row as label.

    Args:
        partz: Primary particles, in the order of the rows in ``label``.
        label: ``(n,)`` int32, the group of each primary.
        attached: Particles of the other types.
        box: Periodic box.
        limit: Largest distance, or one per primary.
        cfg: Options.

    Returns:
        The particles of every type as one class, with a row for every input row and with ``num`` set; and their labels.

    Raises:
        ValueError or jax.errors.JaxRuntimeError: At run time, if there are attached particles but no primaries.
    """
    n, num, given_num = num_rows(partz), _count(partz), get_num(partz)
    if not is_concrete(given_num) or int(given_num) < 1:  # in a trace, JAX traces comparisons of known arrays too
        num = _check_primaries(num, attached)
        partz = replace_num(partz, num)
    joined = _Joined(partz, num, label)
    for particles in attached:
        if n == 0:  # the particles are padding
            group = jnp.zeros(num_rows(particles), jnp.int32)
        else:
            # The nearest neighbour is a discrete choice, without a derivative.
            constants = jax.lax.stop_gradient((partz, particles))
            nearest = _nearest(*constants, box, limit, KNNConfig(tree=cfg.tree))
            group = kernels.gather_rows(label, jnp.clip(nearest, 0, n - 1))
            group = _with_single_groups(group, nearest, joined.num)
        joined = _put_together(joined, _Joined(particles, _count(particles), group))
    return joined.part, _with_labels_of_padding(joined.label, joined.num)


def _check_primaries(num: jax.Array, attached: Sequence[Any]) -> jax.Array:
    """Return ``num``, the number of this rank's primaries.

    Raise on every rank if there are attached particles but no primaries.
    """
    primaries, attached_count = comm.all_max(jnp.stack([num, sum(map(_count, attached), jnp.int32(0))]))
    return kernels.check(num, (primaries < 1) & (attached_count > 0), [], _NO_PRIMARIES)


@functools.partial(jax.jit, inline=True)
def _with_single_groups(group: jax.Array, nearest: jax.Array, num: jax.Array) -> jax.Array:
    """Return ``group``, or the row plus ``num`` for particles without a nearest primary."""
    return jnp.where(nearest >= 0, group, num + _row_numbers(group))


@functools.partial(jax.jit, inline=True)
def _with_labels_of_padding(label: jax.Array, num: jax.Array) -> jax.Array:
    rows = _row_numbers(label)
    return jnp.where(rows < num, label, rows)


def _nearest(primaries: Any, attached: Any, box: Exact, limit: Radii, cfg: KNNConfig) -> jax.Array:
    """Return the row of the nearest primary of each particle within the limit, or -1, ``(m,)`` int32."""

    def search(radius: Radii) -> jax.Array:
        options: Any = {"boxsize": box, "max_radius": radius, "allow_missing": True, "cfg": cfg}
        return knn(primaries, 1, part_query=attached, result="globalidx", **options).reshape(-1)

    if limit.of_each is None:
        return search(limit)
    nearest = jnp.clip(search(NO_LIMIT), 0, num_rows(primaries) - 1)
    return search(Radii(None, Exact(kernels.gather_rows(jnp.asarray(limit.of_each.words), nearest))))


def _count(part: Any) -> jax.Array:
    """Return ``num`` of ``part``, limited to its rows: it may be used before its run-time check."""
    return jnp.clip(kernels.as_num(get_num(part)), 0, num_rows(part))


def attach_over_ranks(
    partz: Any, num: jax.Array, label: Label, attached: Sequence[Any], box: Exact, limit: Radii, cfg: FofConfig
) -> tuple[Any, jax.Array, Label]:
    """Attach particles on all ranks; see `attach`.

    Args:
        partz: This rank's range of the primaries in z-order.
        num: Number of its rows that hold particles.
        label: Group of each primary.
        attached: This rank's particles of the other types.
        box: Periodic box.
        limit: Largest distance, or one per row of ``partz``.
        cfg: Options.

    Returns:
        This rank's particles of every type, their number, and their groups.

    Raises:
        jax.errors.JaxRuntimeError: On every rank, if there are attached particles but no primaries.
        CapacityError: On every rank, if the attached particles that a rank receives do not fit its buffer.
    """
    num = _check_primaries(num, attached)
    joined = _Joined(partz, num, jnp.stack(label, axis=-1))
    for particles in attached:
        of_each = None if limit.of_each is None else limit.of_each.words
        received = _bring(_Labelled(get_pos(partz), num, *label, of_each), particles, box, limit, cfg)
        counts = jnp.stack(
            [jnp.full_like(received.label[:, 0], comm.get_rank_info()[0]), joined.num + _row_numbers(received.label)],
            axis=-1,
        )
        joined = _put_together(joined, received._replace(label=jnp.where(received.label < 0, counts, received.label)))
    return joined.part, joined.num, Label(joined.label[:, 0], joined.label[:, 1])


def _row_numbers(rows: jax.Array) -> jax.Array:
    return jnp.arange(rows.shape[0], dtype=jnp.int32)


def _bring(places: _Labelled, attached: Any, box: Exact, limit: Radii, cfg: FofConfig) -> _Joined:
    """Bring attached particles to the rank of their nearest primary.

    Args:
        places: This rank's primaries.
        attached: This rank's attached particles.
        box: Periodic box.
        limit: Largest distance, or one per primary, which is then also in ``places``.
        cfg: Options.

    Returns:
        The particles whose nearest primary is on this rank, with their groups as ``(m, 2)`` rank and row; and this
        rank's particles whose nearest primary is too far, with -1.
    """
    search = KNNConfig(tree=cfg.tree, ghost_rows=cfg.ghost_rows)
    # The nearest neighbour is a discrete choice, without a derivative.
    constants = jax.lax.stop_gradient((places, attached))

    def nearest(words: list[str], radius: Radii) -> Any:
        return entries_of(SearchArguments(*constants, 1, box, words, None, False, search, limit=radius))

    anywhere = Radii(exact(np.inf, ()), None)  # unlike `NO_LIMIT`, it permits a search without primaries
    if limit.of_each is not None:
        _, words = nearest(["rankidx", "limit"], anywhere)
        limit = Radii(None, Exact(words[:, 0]))
    primary, irank, igroup = nearest(["rankidx", "irank", "igroup"], limit if limit.given() else anywhere)
    group = jnp.where(primary.rank >= 0, jnp.concatenate([irank, igroup], axis=-1), -1)
    # Particles that join no group stay on their rank.
    to = jnp.where(primary.rank[:, 0] >= 0, primary.rank[:, 0], comm.get_rank_info()[0])
    m = num_rows(attached)
    # The nearest primaries of many particles may be on one rank, for example if all gas is in one halo.
    capacity = choose_capacity("attached_rows", cfg.attached_rows, m + m // 4, m * comm.num_ranks())
    (part, label), num, _ = comm.exchange_by_rank(
        (_in_rows(_uncounted(attached), m), group),
        to,
        get_num(attached),
        capacity,
        what="particles attached to its groups",
        advice="set attached_rows in the configuration to that or more.",
        name="attached",
    )
    part = _counted(part, num, get_num_total(attached))
    return _Joined(part, num, label)


@functools.partial(jax.jit, static_argnames=("n", "m"), inline=True)
def _joined_order(nums: tuple[jax.Array, jax.Array], n: int, m: int) -> tuple[jax.Array, jax.Array]:
    """Return the number of particles of two sets of ``n`` and ``m`` rows, and their order with the padding last."""
    first, num = nums[0], nums[0] + nums[1]
    rows = jnp.arange(n + m, dtype=jnp.int32)
    padding = jnp.where(rows - nums[1] < n, rows - nums[1], rows)
    return num, jnp.where(rows < first, rows, jnp.where(rows < num, rows - first + n, padding))


def _put_together(first: _Joined, second: _Joined) -> _Joined:
    """Concatenate particles of two types, with the padding of both last."""
    n, m = num_rows(first.part), num_rows(second.part)
    check_rows(n + m, "particles of all types together")
    num, order = _joined_order((first.num, second.num), n, m)

    def join(leaf: Any, attached_leaf: Any) -> jax.Array:
        return kernels.gather_rows(jnp.concatenate([leaf, attached_leaf]), order)

    part = jax.tree.map(join, _in_rows(_uncounted(first.part), n), _in_rows(_uncounted(second.part), m))
    totals = [get_num_total(particles.part) for particles in (first, second)]
    part = _counted(part, num, None if None in totals else sum(total or 0 for total in totals))
    return _Joined(part, num, join(first.label, second.label))


def _uncounted(part: Any) -> Any:
    """Return ``part`` without its counts, which may be set for one class and not for the other."""
    return replace_field(replace_num(part, None), "num_total", None)


def _counted(part: Any, num: jax.Array, total: int | None) -> Any:
    """Return ``part`` with these counts, if it has such fields."""
    return replace_num(part if total is None else replace_field(part, "num_total", total), num)


def _row_shape(leaf: Any, n: int) -> tuple[int, ...]:
    """Return the shape of a property of one particle, for properties per particle and shared ones."""
    return np.shape(leaf)[1:] if np.ndim(leaf) > 0 and np.shape(leaf)[0] == n else np.shape(leaf)


def _in_rows(part: Any, n: int) -> Any:
    """Broadcast every property of ``part`` to one row per particle."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (n, *_row_shape(leaf, n))), part)


def _properties(part: Any) -> str:
    paths, _ = jax.tree_util.tree_flatten_with_path(_uncounted(part))
    return ", ".join(jax.tree_util.keystr(path).lstrip(".") for path, _ in paths) or "positions alone"
