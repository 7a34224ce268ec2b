"""Correlation functions from existing pair counts, for example from many devices or processes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import ArrayLike

from jztree.radius import PairCounts

from ._arguments import axis_of, bin_edges, check_reach, real_numbers
from ._counts import Counts, Layout, counts_of
from ._regions import BoxParts, parts_of
from ._result import Correlation, result
from ._totals import Totals


def xi_from_counts(
    dd: PairCounts | ArrayLike,
    data: Totals | int,
    edges: ArrayLike,
    boxsize: ArrayLike | None = None,
    per_side: int | None = None,
    **others: Any,
) -> Correlation:
    """Return `xi` from pair counts of `jztree.radius.pair_counts`, for example from many devices.

    In a periodic box, give ``boxsize``. Otherwise give ``rr`` and ``randoms``. With ``dr``, the estimator is that of
    Landy & Szalay, ``(DD - DR - RD + RR) / RR``, and without it the natural one, ``DD / RR - 1``. Counts with regions
    give a jackknife.

    Args:
        dd: Pairs within the data; or pairs of two tracers, the data and the second data. A `PairCounts`, or ``(b,)``
            numbers of pairs. With ``separations=True`` in the call of `jztree.pair_counts`, the result has the mean
            separation.
        data: The result of `totals` with the weights and regions of the counts; or the number of particles, without
            weights and regions.
        edges: ``(b + 1,)``, the same as for the counts.
        boxsize: ``(d,)``, one length per dimension, all positive; only without randoms.
        per_side: For a jackknife without randoms: ``cube_regions(part, 0, boxsize, per_side)`` made the regions of the
            counts. At least 2, in 1 to 3 dimensions.
        **others: Further counts: ``rr``, pairs within the randoms, or of the randoms of both tracers; ``dr``, pairs of
            the data and the randoms (of the second tracer, if it has its own); for two tracers ``rd``, pairs of the
            randoms and the second data, in any order. Further totals: ``randoms``; for two tracers ``queries``, and
            ``query_randoms`` if the second tracer has its own randoms.

    Returns:
        Values ``(b,)``, with the edges and the numbers of pairs.

    Raises:
        TypeError, ValueError: If an argument is invalid, one is missing, or the counts and totals do not fit: another
            mode, other edges, dimensions or boxes, or pairs within a set for pairs of two sets.

    Warns:
        RuntimeWarning: If a value is NaN; see `Correlation`.

    Examples:
        On several devices, call ``jz.pair_counts.smap(mesh, jit=True)`` with distributed particles.

        >>> from jztree_utils import correlation
        >>> data = np.array([[0.1], [0.15], [0.5], [0.55]], np.float32)
        >>> edges = [0.0, 0.1, 0.2]
        >>> dd = jz.pair_counts(data, edges, boxsize=1.0)
        >>> correlation.xi_from_counts(dd, correlation.totals(data), edges, boxsize=[1.0]).value
        array([ 0.66666667, -1.        ])
    """
    counts, result, box = counts_of(dd, data, others), bin_edges(edges, "edges"), _box(boxsize, others)
    counts.check(Layout(modes=("r", "theta"), edges=result, box=box))
    if box is not None and counts.is_angular:
        raise ValueError("counts of angles have no periodic box; leave out boxsize, and give rr and randoms.")
    if box is not None:
        check_reach(result, "edges", box.min() / 2)
    return spherical(counts, result, _parts(per_side, box, counts))


def wp_from_counts(
    dd: PairCounts | ArrayLike,
    data: Totals | int,
    edges: ArrayLike,
    along: ArrayLike,
    boxsize: ArrayLike | None = None,
    los: int | None = None,
    per_side: int | None = None,
    **others: Any,
) -> Correlation:
    """Return `wp` from pair counts; see `xi_from_counts`.

    Args:
        dd: See `xi_from_counts`, counted with ``mode="rp_pi"``, ``(b, p)``.
        data: See `xi_from_counts`.
        edges: ``(b + 1,)`` edges of the distance across the line of sight, the same as for the counts.
        along: ``(p + 1,)`` edges along it, the ``edges_b`` of the counts; the first is 0.
        boxsize: ``(3,)`` lengths, all positive; only without randoms.
        los: The axis of the line of sight; only without randoms. None means the axis of the counts, or the last axis if
            these are plain numbers.
        per_side: See `xi_from_counts`.
        **others: See `xi_from_counts`.

    Returns:
        Values ``(b,)``, lengths in the unit of the positions.

    Raises:
        TypeError, ValueError: If an argument is invalid, one is missing, or the counts and totals do not fit: another
            mode, other edges, dimensions or boxes, or pairs within a set for pairs of two sets.

    Warns:
        RuntimeWarning: If a value is NaN, or cells were joined; see `wp`.
    """
    counts, box = counts_of(dd, data, others), _box(boxsize, others, 3)
    result, steps = bin_edges(edges, "edges"), bin_edges(along, "along")
    if steps[0] != 0:
        raise ValueError(f"along begins at {steps[0]:g}; wp is the integral from 0, so count with edges_b from 0.")
    sight = None if los is None else axis_of(los)
    layout = Layout(modes=("rp_pi",), edges=result, edges_b=steps, second="along", dims=3, box=box, los=sight)
    counts.check(layout)
    axis = counts.axis if sight is None else sight
    if box is not None:
        check_reach(result, "edges", np.delete(box, axis).min() / 2)
        check_reach(steps, "along", box[axis] / 2)
    return projected(counts, result, steps, _parts(per_side, box, counts), "fewer edges along", axis)


def multipoles_from_counts(
    dd: PairCounts | ArrayLike,
    data: Totals | int,
    edges: ArrayLike,
    cosines: ArrayLike,
    boxsize: ArrayLike | None = None,
    ells: tuple[int, ...] = (0, 2, 4),
    per_side: int | None = None,
    **others: Any,
) -> Correlation:
    """Return `multipoles` from pair counts; see `xi_from_counts`.

    Args:
        dd: See `xi_from_counts`, counted with ``mode="s_mu"``, ``(b, m)``.
        data: See `xi_from_counts`.
        edges: ``(b + 1,)`` edges of the distance s, the same as for the counts.
        cosines: ``(m + 1,)`` edges of mu, from 0 to 1, the ``edges_b`` of the counts.
        boxsize: ``(3,)`` lengths, all positive; only without randoms.
        ells: Even multipole orders.
        per_side: See `xi_from_counts`.
        **others: See `xi_from_counts`.

    Returns:
        Values ``(len(ells), b)``, with the edges and the numbers of pairs.

    Raises:
        TypeError, ValueError: If an argument is invalid, one is missing, or the counts and totals do not fit: another
            mode, other edges, dimensions or boxes, or pairs within a set for pairs of two sets.

    Warns:
        RuntimeWarning: If a value is NaN, or cells were joined; see `wp`.
    """
    counts, box = counts_of(dd, data, others), _box(boxsize, others, 3)
    result, steps = bin_edges(edges, "edges"), bin_edges(cosines, "cosines")
    check_ells(ells)
    if steps[0] != 0 or steps[-1] != 1:
        raise ValueError(f"cosines are from {steps[0]:g} to {steps[-1]:g}; multipoles need all, from 0 to 1.")
    counts.check(Layout(modes=("s_mu",), edges=result, edges_b=steps, second="cosines", dims=3, box=box))
    if box is not None:
        check_reach(result, "edges", box.min() / 2)
    return in_multipoles(counts, result, steps, ells, _parts(per_side, box, counts), "fewer cosines")


def spherical(counts: Counts, edges: np.ndarray, parts: BoxParts | None) -> Correlation:
    """Return ``xi(r)``. Without randoms, ``parts`` describe the box."""
    share = np.ones((1, 1))
    if parts is not None:
        share = parts.shares(_balls(edges, len(parts.box)), lambda: parts.spheres(edges))
    name = "w_theta" if counts.is_angular else "xi"
    return result(name, counts, counts.estimate(share), edges)


def projected(
    counts: Counts, edges: np.ndarray, along: np.ndarray, parts: BoxParts | None, advice: str, axis: int
) -> Correlation:
    """Return ``wp(rp)``; see `spherical` and `result`."""
    share = np.ones((1, 1))
    if parts is not None:
        # Rings around the line of sight, on both sides of a particle.
        rings = np.pi * np.diff(edges**2)[:, None] * 2 * np.diff(along)
        share = parts.shares(rings, lambda: parts.cylinders(edges, along, axis))
    return result("wp", counts, counts.estimate(share), edges, 2 * np.diff(along), advice, pi_max=along[-1])


def in_multipoles(
    counts: Counts, edges: np.ndarray, cosines: np.ndarray, ells: tuple[int, ...], parts: BoxParts | None, advice: str
) -> Correlation:
    """Return the multipoles of ``xi(s, mu)``; see `spherical` and `result`."""
    share = np.ones((1, 1))
    if parts is not None:
        cells = _balls(edges, 3)[:, None] * np.diff(cosines)
        share = parts.shares(cells, lambda: parts.sectors(edges, cosines, counts.axis))
    integral = [np.diff(legendre.legval(cosines, legendre.legint([0] * int(ell) + [2 * ell + 1]))) for ell in ells]
    orders = tuple(int(ell) for ell in ells)
    return result("multipoles", counts, counts.estimate(share), edges, np.stack(integral), advice, ells=orders)


def check_ells(ells: Any) -> None:
    """Raise ValueError unless ``ells`` are even multipole orders."""
    if np.ndim(ells) != 1 or len(ells) == 0 or any(ell not in range(0, 1000, 2) for ell in ells):
        raise ValueError(f"ells are {ells}; they must be one or more even numbers of at least 0, such as (0, 2, 4).")


def _balls(edges: np.ndarray, dims: int) -> np.ndarray:
    """Return the volumes between balls with these radii."""
    return math.pi ** (dims / 2) / math.gamma(dims / 2 + 1) * np.diff(edges**dims)


def _parts(per_side: Any, box: np.ndarray | None, counts: Counts) -> BoxParts | None:
    """Return the parts of the box, a single one without a jackknife; None with randoms.

    Raises:
        TypeError, ValueError: If ``per_side`` is invalid, or does not match the regions of the counts.
    """
    regions = counts.sets["data"].num_regions
    if box is None:
        if per_side is not None:
            raise ValueError("with rr, per_side has no effect, because the randoms have regions; leave it out.")
        return None
    parts = BoxParts(box, 1) if per_side is None else parts_of(per_side, box)
    if regions != (None if per_side is None else parts.num):
        raise ValueError(
            f"the counts have {regions or 'no'} regions and per_side is {per_side}; without randoms, a jackknife needs "
            "the regions of cube_regions(part, 0, boxsize, per_side) and the same per_side, or neither."
        )
    for name, total in counts.sets.items():
        if total.corners is not None and not parts.has(total.corners):
            raise ValueError(
                f"the regions of {name} do not fit its particles: some particles are in other parts of the box than "
                "their region; pass cube_regions(part, 0, boxsize, per_side) of the same particles to pair_counts and "
                "totals."
            )
    return parts


def _box(boxsize: Any, others: dict[str, Any], dims: int | None = None) -> np.ndarray | None:
    """Return the box lengths, or None with counts of randoms."""
    if others.get("rr") is not None:
        if boxsize is not None:
            raise ValueError("with rr, the box has no effect; leave out boxsize.")
        return None
    if boxsize is None:
        raise ValueError("without rr, the box must be periodic in every dimension; give boxsize, or rr and randoms.")
    box = real_numbers(boxsize, "boxsize")
    if box.ndim != 1 or (dims is not None and len(box) != dims) or not np.all((box > 0) & np.isfinite(box)):
        raise ValueError(
            f"boxsize is {boxsize}; it must be ({dims or 'd'},), one positive and finite length per dimension."
        )
    return box
