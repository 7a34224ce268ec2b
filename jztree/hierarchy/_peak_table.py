"""The table of the peaks of a density: the saddles where they end, and the clusters that remain if weak ones merge."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._transform.pytrees import pytree
from ..arguments import check_real, check_real_dtype, shape_of
from ..jax_ext import is_concrete
from ..mst import on_host
from ..particles import check_representable

_BAD_PERSISTENCE = "persistence must be at least 0."
_PADDING = {"density": -np.inf, "saddle_density": -np.inf, "persistence": 0}
_BAD_RATIO = "ratio must be at least 1."
_NEGATIVE = (
    "ratio needs densities that are not negative, but a saddle has a negative density; pass persistence, for example "
    "for logarithms of densities."
)


@pytree
class DensityPeaks:
    """The peaks of a density, densest first, and the saddle where each ends.

    The table of peaks has a row for each of the ``n`` rows of particles. Only the first ``num`` are peaks. From there
    on, rows and numbers are -1, densities are -infinity, and persistences are 0.

    Over several devices, rows of particles count the particles on all devices, without padding, beginning with the
    first device. Peaks are numbered over all devices, and the table continues on the next device. A device
    lists the peaks in its share of the particles in falling density, so the first devices list more peaks.
    `squeeze_peaks` joins the peaks on all devices.

    Attributes:
        peak: ``(n,)`` int32, the number of each particle's peak; -1 for rows of padding.
        row: ``(n,)`` int32, the row of the particle at each peak.
        density: ``(n,)``, the density of this particle.
        saddle: ``(n,)`` int32, the row of the particle at the saddle where the peak ends. -1 if it does not end.
        saddle_density: ``(n,)``, the density of this particle; -infinity if the peak does not end.
        parent: ``(n,)`` int32, the number of the denser peak that continues at the saddle. -1 if it does not end.
        across: ``(n,)`` int32, the number of a peak in the set that the peak's set meets at the saddle: the peak of
            the neighbour across the saddle. -1 if the peak does not end.
        persistence: ``(n,)``, the density of the peak minus that of the saddle, and 0 if both are equal; infinite if
            the peak does not end. On CPUs, XLA rounds a difference below the smallest normal number to 0.
        num: int32, the number of peaks.
    """

    peak: jax.Array
    row: jax.Array
    density: jax.Array
    saddle: jax.Array
    saddle_density: jax.Array
    parent: jax.Array
    across: jax.Array
    persistence: jax.Array
    num: jax.Array

    def merge(self, persistence: ArrayLike | None = None, *, ratio: ArrayLike | None = None) -> jax.Array:
        """Return the clusters that remain if peaks below a threshold merge with their neighbours (ToMATo).

        The result is that of Algorithm 1 of Chazal et al. (2013, J. ACM 60, 41). Particles are added one by one,
        densest first. Each joins the cluster of its densest neighbour. Then, for one denser neighbour after the other,
        the clusters of the particle and of the neighbour merge if the density of the sparser of their peaks minus the
        density of the particle is below the threshold. The denser peak continues.

        So a weak peak merges with its neighbour across the saddle. ``parent`` may be another peak: the densest one that
        is connected above the saddle, even if the peaks in between are strong. The paper leaves the order of the denser
        neighbours open; here, the densest one is the first. It decides if a weak peak meets several strong ones at its
        saddle. The paper drops clusters whose peak has a density below the threshold; this function keeps them.

        The cost is a few passes over the rows for any threshold. Under `jax.jit`, a new threshold does not compile
        again.

        Args:
            persistence: The threshold of density differences, at least 0: ``persistence`` of a weak peak is below it.
                With 0, no peaks merge. With infinity, all peaks merge that end at a finite depth.
            ratio: In place of ``persistence``, the threshold of ``density / saddle_density``, at least 1, for densities
                that are not negative. The ratio of two zeros, or of two infinities, is 1.

        Returns:
            ``(n,)`` int32, the number of the densest peak of each particle's cluster; -1 for rows of padding.

        Raises:
            TypeError: If neither or both thresholds are given, or if the threshold is not a real number.
            ValueError: If the threshold is not one number, is too small or NaN, or, with ``ratio``, if a saddle has a
                negative density; at run time if the numbers are traced. If the peaks are the result of `jax.vmap`, or
                peaks of several devices, which `squeeze_peaks` joins.
            NotImplementedError: In a function that is mapped over several devices.

        Examples:
            >>> pos = np.array([[0.0], [1.0], [1.9], [2.7], [3.4]])  # with k=2, a chain
            >>> peaks = jz.density_peaks(pos, np.array([10.0, 6.0, 8.0, 4.0, 5.0]), 2)
            >>> peaks.merge(1.5)  # the third peak is weak, and the second one is across its saddle
            Array([0, 0, 1, 1, 1], dtype=int32)
            >>> peaks.merge(ratio=1.4)
            Array([0, 0, 0, 0, 0], dtype=int32)
        """
        if (persistence is None) == (ratio is None):
            raise TypeError("merge needs one threshold: pass persistence or ratio, such as peaks.merge(ratio=3.0).")
        if comm.num_ranks() > 1:
            raise NotImplementedError(
                f"merge supports one device, but it was mapped over {comm.num_ranks()}; call it outside of smap with "
                "jztree.squeeze_peaks(peaks)."
            )
        if jnp.ndim(self.num) > 0:
            raise ValueError(
                f"merge needs the peaks of one set, but these have the shape {jnp.shape(self.peak)}; use jax.vmap, or "
                "jztree.squeeze_peaks for the peaks of several devices."
            )
        if ratio is None:
            threshold, fault = _check_threshold(persistence, "persistence", 0, self.persistence.dtype)
            return _merged(self, self.persistence, threshold, kernels.check(self.num, fault, [], _BAD_PERSISTENCE))
        threshold, fault = _check_threshold(ratio, "ratio", 1, self.persistence.dtype)
        ratios, negative = _ratios(self)
        num = kernels.check(kernels.check(self.num, fault, [], _BAD_RATIO), negative, [], _NEGATIVE)
        return _merged(self, ratios, threshold, num)


def squeeze_peaks(peaks: DensityPeaks) -> DensityPeaks:
    """Join the peaks on all devices to the peaks of one device, without padding.

    Not for use under a JAX transformation. If the devices belong to several processes, all processes must call this
    function together. Each process then holds all peaks.

    Args:
        peaks: The result of `jztree.density_peaks.smap`. Peaks of one device lose the rows of padding.

    Returns:
        Peaks with a row for each particle, whose columns are NumPy arrays.

    Raises:
        TypeError: If ``peaks`` is not a `DensityPeaks`.

    Examples:
        >>> pos = np.array([[0.0], [1.0], [1.9], [2.7], [3.4]])  # with k=2, a chain
        >>> peaks = jz.density_peaks(pos, np.array([10.0, 6.0, 8.0, 4.0, 5.0]), 2)
        >>> jz.squeeze_peaks(peaks).parent
        array([-1,  0,  0, -1, -1], dtype=int32)
    """
    if not isinstance(peaks, DensityPeaks):
        raise TypeError(f"peaks must be a jztree.hierarchy.DensityPeaks, not {type(peaks).__name__}.")
    check_representable({"peaks": peaks})
    peak, row = (on_host(column).reshape(-1) for column in (peaks.peak, peaks.row))
    rows, listed = int(np.sum(peak >= 0)), np.flatnonzero(row >= 0)

    def joined(name: str) -> Any:
        column = getattr(peaks, name)
        # Densities may be traced for their derivatives.
        column, numbers = (on_host(column), np) if is_concrete(column) else (column, jnp)
        padding = numbers.full(rows - len(listed), _PADDING.get(name, -1), column.dtype)
        return numbers.concatenate([column.reshape(-1)[listed], padding])

    names = [field.name for field in fields(DensityPeaks) if field.name not in ("peak", "num")]
    columns = {name: joined(name) for name in names}
    particles: Any = peak[peak >= 0]
    return DensityPeaks(peak=particles, num=jnp.int32(len(listed)), **columns)


def _check_threshold(value: Any, name: str, minimum: int, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return a threshold, and whether it is invalid.

    The values of an array in ``dtype`` that are below a known result are those below the given number.
    """
    shape = shape_of(value, name)
    if shape != ():
        raise ValueError(f"{name} must be one number; its shape is {shape}.")
    if not is_concrete(value):
        check_real_dtype(value, name)
        return value, ~(value >= minimum)
    number = check_real(value, name)
    if not number >= minimum:
        raise ValueError(f"{name} is {number:g}; it must be at least {minimum}.")
    with np.errstate(over="ignore"):
        threshold = number.astype(dtype)
    threshold = np.where(threshold < number, np.nextafter(threshold, np.asarray(np.inf, dtype)), threshold)
    # XLA treats smaller numbers as 0.
    return np.where(number > 0, np.maximum(threshold, np.finfo(dtype).tiny), threshold), False


@jax.jit
def _ratios(peaks: DensityPeaks) -> tuple[jax.Array, jax.Array]:
    """Return the density of each peak over that of its saddle, and whether that of any saddle is negative."""
    top, level = jax.lax.stop_gradient((peaks.density, peaks.saddle_density))
    ends = peaks.saddle >= 0
    is_one = ((top == 0) & (level == 0)) | (top == level)
    ratios = jnp.where(is_one, 1, top) / jnp.where(is_one | ~ends, 1, level)
    return ratios, jnp.any(ends & (level < 0))


@jax.jit
def _merged(peaks: DensityPeaks, strength: jax.Array, threshold: jax.Array, num: jax.Array) -> jax.Array:
    """Return the number of the strong peak at the end of the path of ``across`` from each particle's peak.

    When a weak peak ends, all other peaks of its set are weaker and have merged with it. It then merges with the set at
    the other end of the edge, which contains the peak `across`. That peak may be sparser, but then it has ended before,
    and its path leads to the peak of this set. So paths have no circles, and each ends in the peak of the cluster.
    """
    number = jnp.arange(peaks.peak.shape[0], dtype=jnp.int32)
    weak = (number < num) & (peaks.across >= 0) & (jax.lax.stop_gradient(strength) < threshold)
    top = roots(jnp.where(weak, peaks.across, number))
    return jnp.where(peaks.peak >= 0, top[peaks.peak], -1)


def roots(above: jax.Array) -> jax.Array:
    """Return the end of each row's path to the next rows ``above``, ``(n,)``; rows at an end are above themselves."""
    return jax.lax.while_loop(lambda top: jnp.any(top[top] != top), lambda top: top[top], above)


def table_of(
    peak: jax.Array,
    top: tuple[jax.Array, jax.Array],
    saddle: tuple[jax.Array, jax.Array],
    parent: jax.Array,
    across: jax.Array,
    num: jax.Array,
) -> DensityPeaks:
    """Return the peaks, for columns of the table that are -1 from ``num`` on.

    Args:
        peak: ``(n,)`` int32, the number of each particle's peak.
        top: ``(n,)``, the row of each peak, and the density there; any number for rows of -1.
        saddle: ``(n,)``, the same of the saddle where the peak ends.
        parent: ``(n,)`` int32.
        across: ``(n,)`` int32.
        num: Number of peaks.
    """
    density, level = (jnp.where(rows >= 0, values, -jnp.inf) for rows, values in (top, saddle))
    is_peak, ends = top[0] >= 0, saddle[0] >= 0
    return DensityPeaks(
        peak=peak,
        row=top[0],
        density=density,
        saddle=saddle[0],
        saddle_density=level,
        parent=parent,
        across=across,
        persistence=jnp.where(is_peak, jnp.where(ends, _above(density, level), jnp.inf), 0),
        num=num,
    )


def _above(top: jax.Array, level: jax.Array) -> jax.Array:
    """Return ``top - level``, and 0 if both are the same infinity."""
    is_equal = jnp.isinf(top) & (top == level)
    return jnp.where(is_equal, 0, top) - jnp.where(is_equal, 0, level)


def ends_of_peaks(
    joined: jax.Array, saddle: jax.Array, edges: jax.Array, rows: int, first: int | jax.Array, num: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the place of the saddle where each peak ends, its parent, and the peak across the saddle.

    Args:
        joined: ``(m, 2)`` int32, the peaks that each edge joins, from the highest level down.
        saddle: ``(m,)`` int32, the place of the saddle of each edge; -1 after the last.
        edges: Number of edges.
        rows: Number of rows of the results.
        first: The number of the peak in the first row.
        num: The number of peaks in the rows.

    Returns:
        Three arrays ``(rows,)`` int32; -1 if a peak does not end.
    """
    n = joined.shape[0] + 1  # edges join at most this number of peaks
    children, _ = kernels.dendrogram(joined, edges, n)
    densest = kernels.first_rows(children, edges, n)
    place = jnp.arange(n - 1, dtype=jnp.int32)
    both = jnp.where(children < n, children, densest[jnp.maximum(children - n, 0)])
    ended = jnp.max(both, axis=1) - first
    # All edges of a saddle join the set of its peak, so the last edge forms the set that continues.
    is_last = jnp.append(saddle[1:] != saddle[:-1], jnp.ones(min(len(place), 1), bool))
    last = jax.lax.cummin(jnp.where(is_last, place, densest.shape[0]), reverse=True)
    across = jnp.where(both[:, 0] > both[:, 1], joined[:, 1], joined[:, 0])
    row = jnp.where((place < edges) & (ended >= 0) & (ended < num), ended, rows)

    def of_peaks(values: jax.Array) -> jax.Array:
        return comm.vary(jnp.full(rows, -1, jnp.int32)).at[row].set(values, mode="drop")

    return of_peaks(saddle), of_peaks(densest[last]), of_peaks(across)
