"""Correlation functions of particles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import Particles

from ._arguments import OTHERWISE, bin_edges, check_reach, naming_order, whole_number
from ._from_counts import check_ells, in_multipoles, projected, spherical
from ._result import Correlation
from ._sample import in_three, sample_of


def xi(
    part: Particles | ArrayLike,
    edges: ArrayLike,
    boxsize: ArrayLike | None = None,
    randoms: Particles | ArrayLike | None = None,
    **options: Any,
) -> Correlation:
    """Return the correlation function ``xi(r)``.

    Args:
        part: A particle class with ``pos`` ``(n, d)``, or an array of positions.
        edges: ``(b + 1,)`` ascending edges of the distance, in the unit of the positions.
        boxsize: Periodic length, or one per dimension; 0 or None means open.
        randoms: Random particles in the same volume. None: the box is periodic, and the number of random pairs is
            computed.
        **options: ``weights`` and ``random_weights``, ``(n,)``; ``regions``, ``random_regions`` and ``num_regions`` for
            a jackknife; see `jztree.radius.pair_counts`. ``per_side``: a jackknife without randoms, which leaves out
            each of the ``per_side**d`` equal parts of the box; 2 or more, in 1 to 3 dimensions. ``queries``,
            ``query_weights`` and ``query_regions``: a second tracer; the result is then the cross-correlation of both.
            ``query_randoms``, ``query_random_weights`` and ``query_random_regions``: randoms for the second tracer;
            None means the same randoms for both. ``estimator``: ``"landy_szalay"``, the default, or ``"natural"``,
            ``DD / RR - 1``. ``separations=True`` also computes the mean separation of the pairs in each bin; see
            `mean_separations`. ``progress=True`` reports the progress of the counts on standard error; see
            `jztree_utils.progress`.

    Returns:
        Values ``(b,)``, with the edges and the numbers of pairs.

    Raises:
        TypeError, ValueError: If an argument is invalid.

    Warns:
        RuntimeWarning: If a value is NaN; see `Correlation`.
    """
    result, sample = bin_edges(edges, "edges"), sample_of(part, boxsize, randoms, options)
    if sample.box is not None:
        check_reach(result, "edges", sample.box.min() / 2, OTHERWISE)
    return spherical(sample.counts(result), result, sample.parts)


@naming_order
def wp(
    part: Particles | ArrayLike,
    edges: ArrayLike,
    pi_max: float,
    boxsize: ArrayLike | None = None,
    randoms: Particles | ArrayLike | None = None,
    num_pi: int = 40,
    los: int | str = -1,
    **options: Any,
) -> Correlation:
    """Return the projected correlation function ``wp(rp) = 2 int_0^pi_max xi(rp, pi) dpi`` (Davis & Peebles 1983).

    With randoms, a cell without random pairs is joined to the next cell of its bin that has random pairs, otherwise to
    the last one that has: their counts are added, and ``xi`` is taken as constant over them. A warning names these
    bins.

    Args:
        part, boxsize, randoms: See `xi`, in 3 dimensions.
        edges: ``(b + 1,)`` edges of the distance across the line of sight, in the unit of the positions.
        pi_max: Maximum distance along the line of sight, in the same unit.
        num_pi: The number of equal cells along the line of sight.
        los: The axis of the line of sight. ``"midpoint"`` means from an observer at the origin, and needs randoms.
        **options: See `xi`.

    Returns:
        Values ``(b,)``, lengths in the unit of the positions.

    Raises:
        TypeError, ValueError: If an argument is invalid.

    Warns:
        RuntimeWarning: If a value is NaN, or cells were joined.
    """
    whole_number(num_pi, "num_pi")
    if isinstance(pi_max, bool) or not isinstance(pi_max, (int, float, np.integer, np.floating)):
        raise TypeError(f"pi_max is {pi_max!r}; it must be a number.")
    if not 0 < pi_max < np.inf:
        raise ValueError(f"pi_max is {pi_max}; it must be positive and finite.")
    sample = in_three(sample_of(part, boxsize, randoms, options), "wp", los)
    result, along = bin_edges(edges, "edges"), np.linspace(0, pi_max, num_pi + 1)
    if sample.box is not None:
        axis = int(los)
        check_reach(result, "edges", np.delete(sample.box, axis).min() / 2, OTHERWISE)
        check_reach(along, "pi_max", sample.box[axis] / 2, OTHERWISE)
    bins = {"mode": "rp_pi", "edges_b": along, "los": los}
    counts = sample.counts(result, **bins)
    return projected(counts, result, along, sample.parts, "a smaller num_pi", counts.axis)


def multipoles(
    part: Particles | ArrayLike,
    edges: ArrayLike,
    boxsize: ArrayLike | None = None,
    randoms: Particles | ArrayLike | None = None,
    ells: tuple[int, ...] = (0, 2, 4),
    num_mu: int = 100,
    los: int | str = -1,
    **options: Any,
) -> Correlation:
    """Return multipoles ``(2 l + 1) int_0^1 xi(s, mu) P_l(mu) dmu`` for each even ``l`` of ``ells``.

    Args:
        part, boxsize, randoms: See `xi`, in 3 dimensions.
        edges: ``(b + 1,)`` edges of the distance s, in the unit of the positions.
        ells: Even multipole orders.
        num_mu: The number of equal cells of ``|mu|``. xi is taken as constant in each cell; empty cells are joined, see
            `wp`.
        los: See `wp`.
        **options: See `xi`.

    Returns:
        Values ``(len(ells), b)``, with the edges and the numbers of pairs.

    Raises:
        TypeError, ValueError: If an argument is invalid.

    Warns:
        RuntimeWarning: If a value is NaN, or cells were joined.
    """
    whole_number(num_mu, "num_mu")
    check_ells(ells)
    sample = in_three(sample_of(part, boxsize, randoms, options), "multipoles", los)
    result, cosines = bin_edges(edges, "edges"), np.linspace(0, 1, num_mu + 1)
    if sample.box is not None:
        check_reach(result, "edges", sample.box.min() / 2, OTHERWISE)
    bins = {"mode": "s_mu", "edges_b": cosines, "los": los}
    counts = sample.counts(result, **bins)
    return in_multipoles(counts, result, cosines, ells, sample.parts, "a smaller num_mu")
