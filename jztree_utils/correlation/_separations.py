"""Mean separations of the pairs in bins of their distance."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import Particles, get_num
from jztree.radius import PairCounts, pair_counts

from .. import progress as reports
from .._arrays import from_table, full_precision
from ._progress import counting


def mean_separations(
    part: Particles | ArrayLike,
    edges: ArrayLike,
    boxsize: ArrayLike | None = None,
    queries: Particles | ArrayLike | None = None,
    mode: str = "r",
    edges_b: ArrayLike | None = None,
    los: int | str = -1,
    weights: ArrayLike | None = None,
    query_weights: ArrayLike | None = None,
    progress: bool = False,
) -> np.ndarray:
    """Return the mean separation of the pairs that `jztree.radius.pair_counts` counts, in each bin of ``edges``.

    `jztree.pair_counts` counts the same pairs; with two quantities, the mean is over all bins of ``edges_b``. The
    separation is the first quantity: r, s or rp. It is computed in float64, and weighted by the product of both
    weights.

    This function uses one device. On several devices, count the pairs with ``separations=True`` and pass them to
    `xi_from_counts`, `wp_from_counts` or `multipoles_from_counts`, whose results then have the mean separation.

    Args:
        part, edges, boxsize, queries, mode, edges_b, los, weights, query_weights: See `jztree.radius.pair_counts`.
        progress: Whether to report the progress on standard error; see `jztree_utils.progress`.

    Returns:
        ``(b,)`` float64, NaN for bins without pairs, or whose weights sum to 0.

    Raises:
        TypeError, ValueError: If an argument is invalid.
    """
    part, queries = from_table(part, "part"), from_table(queries, "queries")
    options: dict[str, Any] = {"mode": mode, "edges_b": edges_b, "los": los}
    options |= {"weights": from_table(weights, "weights"), "query_weights": from_table(query_weights, "query_weights")}
    task, quiet = "mean separations", not progress
    num = 0 if quiet else int(get_num(part))
    work = 0 if quiet else num * int(get_num(part if queries is None else queries))
    with (
        reports.progress(task, work, "possible pairs", quiet=quiet) as advance,
        counting(task, work, 2 * num, advance, quiet=quiet),  # the kernel runs twice
        full_precision(part, queries) as (places, places_b),
    ):
        separation = separations_of(
            pair_counts(places, edges, boxsize=boxsize, queries=places_b, separations=True, **options)
        )
    assert separation is not None
    return separation


def separations_of(counts: PairCounts) -> np.ndarray | None:
    """Return ``(b,)`` float64, the mean separation in each bin of the first quantity; None if it was not requested."""
    if counts.separation is None:
        return None
    number = counts.count if counts.weight is None else counts.weight
    sums, numbers = (_over_second(values) for values in (counts.separation, number))
    return np.divide(sums, numbers, out=np.full(len(sums), np.nan), where=numbers != 0)


def _over_second(values: Any) -> np.ndarray:
    """Return the sums over the bins of the second quantity, ``(b,)`` float64."""
    array = np.asarray(values)
    return array.reshape(len(array), -1).sum(axis=1).astype(np.float64)
