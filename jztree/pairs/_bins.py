"""Bins of pairs: validation of user input, and conversion to kernel arguments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm
from ..arguments import (
    at_least_normal,
    check_box,
    check_range,
    check_real,
    check_word,
    in_order,
    is_length,
    shape_of,
    shown,
)
from ..jax_ext import Exact, exact, exact_to_float, is_concrete
from ..kernels import PairBins
from ..particles import check_no_unit, particles_of, shape_of_pos

MODES = ("r", "rp_pi", "s_mu")
_SECOND = {"rp_pi": "pi", "s_mu": "mu"}
_BAD = "{0} must be strictly ascending and at least 0; sort them and remove duplicates."
_NO_MIDDLE = (
    "los='midpoint' requires an open box, because a pair in a periodic box has several midpoints; leave out boxsize, "
    "or pass an axis."
)
_BAD_COSINES = "edges_b must be strictly ascending cosines from 0 to 1; sort them and remove other values."


def exact_bins(arguments: dict[str, Any]) -> PairBins:
    """Return the bins of `pair_counts` from its arguments, for the twins."""
    part, boxsize = next(iter(arguments.values())), arguments["boxsize"]
    dims = shape_of_pos(particles_of(part))[-1]
    bins = as_bins(arguments, dims)
    if part is particles_of(part):
        sight_faults(bins, check_box(boxsize, dims))
    return bins


def as_bins(edges: dict[str, Any], dims: int) -> PairBins:
    """Return the bins of a pair count.

    Args:
        edges: The arguments ``mode``, ``edges``, ``edges_b`` and ``los`` by name.
        dims: Number of dimensions.

    Raises:
        TypeError: If edges are not numbers.
        ValueError: If an argument is invalid.
    """
    mode, second, los = edges["mode"], edges["edges_b"], edges["los"]
    check_word(mode, "mode", MODES)
    axis = _line_of_sight(los, max(dims, 1))  # the search reports positions without coordinates
    if mode == "r":
        if second is not None:
            raise ValueError(
                "edges_b are edges of pi or mu, which mode='r' does not use; leave them out, or use another mode."
            )
        return PairBins(mode, _edges(edges["edges"], "edges"), None, -1)
    if second is None:
        raise ValueError(f"mode={mode!r} needs edges_b, the edges of {_SECOND[mode]}.")
    if dims not in (2, 3):
        raise ValueError(f"mode={mode!r} needs positions in 2 or 3 dimensions, but these have {dims}.")
    edges_b = _edges(second, "edges_b", 1.0 if mode == "s_mu" else np.inf)
    return PairBins(mode, _edges(edges["edges"], "edges"), edges_b, axis)


def _line_of_sight(los: Any, dims: int) -> int:
    """Return the axis, or ``dims`` if the line of sight is towards the midpoint of each pair."""
    if isinstance(los, str) and los == "midpoint":
        return dims
    if isinstance(los, bool) or not isinstance(los, (int, np.integer)) or not -dims <= los < dims:
        raise ValueError(
            f"los is {los!r}; it must be the axis of the line of sight, from 0 to {dims - 1}, or 'midpoint', from "
            "the origin to the middle of each pair."
        )
    return int(los) % dims


def sight_faults(bins: PairBins, box: Exact) -> list[comm.Fault]:
    """Return the faults of the line of sight for run time. Raise ValueError if they are known now."""
    if bins.mode == "r" or bins.axis < box.words.shape[0]:
        return []
    periodic = jnp.any(jnp.asarray(exact_to_float(box)) > 0)
    if is_concrete(periodic) and periodic:
        raise ValueError(_NO_MIDDLE)
    return [comm.Fault(periodic, [], _NO_MIDDLE)]


def _edges(edges: Any, name: str, largest: float = np.inf) -> Exact:
    if isinstance(edges, Exact):
        return edges
    check_no_unit(edges, name)
    shape = shape_of(edges, name)
    if len(shape) != 1 or shape[0] < 2:
        raise ValueError(f"{name} must be an array (b + 1,) of at least two ascending numbers; its shape is {shape}.")
    if is_concrete(edges):
        return _known(edges, name, largest)
    numbers = exact(edges, shape)
    number = jnp.asarray(numbers.words)[:, 0]  # the other words of a traced number are 0
    order = in_order(number)
    is_valid = jnp.all(is_length(number)) & jnp.all(order[1:] > order[:-1]) & (number[-1] <= largest)
    sentence = _BAD.format(name) if largest == np.inf else _BAD_COSINES
    return comm.after(numbers, comm.check(jnp.int32(0), ~is_valid, [], sentence))


def _known(edges: Any, name: str, largest: float) -> Exact:
    values = check_real(edges, name)
    if not (np.all(values[1:] > values[:-1]) and values[0] >= 0):
        raise ValueError(f"{name} are {shown(values)}; they must be strictly ascending and at least 0.")
    if values[-1] > largest:
        raise ValueError(f"{name} are {shown(values)}; they are cosines, so they must be at most 1.")
    check_range(values[np.isfinite(values)], name, may_be_small=True)
    return exact(edges, values.shape)


def reach_of(bins: PairBins, dtype: np.dtype[Any]) -> jax.Array:
    """Return the largest distance of pairs in a bin, in the dtype of the positions, rounded up."""
    reach = jnp.asarray(exact_to_float(bins.edges)[-1])
    if bins.mode == "rp_pi" and bins.edges_b is not None:
        reach = reach + jnp.asarray(exact_to_float(bins.edges_b)[-1])
    reach = jax.lax.stop_gradient(reach)
    widest = at_least_normal(reach.astype(dtype)) * (1 + 4 * jnp.finfo(dtype).eps)
    return jnp.nextafter(widest, jnp.asarray(jnp.inf, dtype))
