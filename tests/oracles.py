"""Test inputs, and independent oracles: brute force, SciPy and Python integers."""

import dataclasses
import itertools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gpus
import jax
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

# The possible types of an error at run time: JAX does not keep the type stable between calls.
RUN_TIME_ERROR = (ValueError, jax.errors.JaxRuntimeError)


def one_sentence(error: Any) -> bool:
    """Return whether the message of a caught error (from ``pytest.raises``) is one line that ends like a sentence."""
    text = gpus.without_program(str(error.value)).strip()
    return "\n" not in text and text.endswith(".")


# Inputs


def uniform(n: int, dims: int, dtype: Any = np.float32, seed: int = 1) -> np.ndarray:
    """Return points spread evenly over the unit box."""
    return np.random.default_rng(seed).random((n, dims)).astype(dtype)


def clustered(n: int, dims: int, dtype: Any = np.float32, seed: int = 2) -> np.ndarray:
    """Return points in a dozen clumps of very different density in the unit box, some across its faces."""
    random = np.random.default_rng(seed)
    centre, width = random.random((12, dims)), 10 ** random.uniform(-4, -1, 12)
    clump = random.integers(0, 12, n)
    pos = centre[clump] + width[clump, None] * random.standard_normal((n, dims))
    return inside_box((pos % 1.0).astype(dtype))


def lattice(side: int, dims: int, dtype: Any = np.float32, spacing: float = 1.0) -> np.ndarray:
    """Return points at ``spacing`` times integers, in random order."""
    axes = np.meshgrid(*[np.arange(side) * spacing] * dims, indexing="ij")
    pos = np.stack(axes, axis=-1).reshape(-1, dims)
    return np.random.default_rng(3).permutation(pos).astype(dtype)


def inside_box(pos: np.ndarray) -> np.ndarray:
    """Set coordinates of ``pos`` that rounding has raised to 1 back to 0."""
    return np.where(pos >= 1, 0, pos).astype(pos.dtype)


def box_lengths(kind: str, dims: int, length: float = 1.0) -> Any:
    """Return a box argument: ``open``, ``periodic``, or ``mixed`` (every other dimension open, two lengths else)."""
    if kind == "open":
        return None
    if kind == "periodic":
        return length
    return [0.0 if d % 2 else length * (1 + d / 4) for d in range(dims)]


def full_box(box: Any, dims: int) -> np.ndarray:
    """Return ``(d,)`` float64 lengths, 0 if open."""
    return np.broadcast_to(np.asarray(0.0 if box is None else box, np.float64), (dims,))


def wrapped(pos: np.ndarray, box: Any) -> np.ndarray:
    """Return positions wrapped into the box, computed in float64 and rounded to their dtype."""
    length, wide = full_box(box, pos.shape[1]), pos.astype(np.float64)
    periodic = length > 0
    moved = wide - length * np.floor(wide / np.where(periodic, length, 1.0))
    keep = ~periodic | ((wide >= 0) & (wide < length))
    return np.where(keep, pos, moved.astype(pos.dtype))


def squared_distances(a: np.ndarray, b: np.ndarray, box: Any = None, factor: Any = 1.0) -> np.ndarray:
    """Return ``(len(a), len(b))`` squared distances to the nearest images in float64.

    Lengths are multiplied by the factor. Squares are added in the order of the dimensions.
    """
    total = np.zeros((len(a), len(b)))
    for d, length in enumerate(full_box(box, a.shape[1])):
        x, y = a[:, d].astype(np.float64), b[:, d].astype(np.float64)
        difference = x[:, None] - y
        if length > 0:
            i, j = np.nonzero(np.abs(difference) > 0.49 * length)  # for the other pairs, no shift is nearer
            x, y = x[i].astype(np.longdouble), y[j].astype(np.longdouble)
            shift = np.rint((x - y) / length) * np.longdouble(length)
            # Shifting the coordinate that is farther out loses no digits, so the difference is rounded once.
            difference[i, j] = np.where(np.abs(x) > np.abs(y), (x - shift) - y, x - (y + shift))
        total += (difference * factor) ** 2
    return total


def assert_nearest(result: Any, pos: np.ndarray, query: np.ndarray, allowed: np.ndarray, box: Any = None) -> None:
    """Assert that every row has the nearest ``allowed`` sources ``(q, n)``, or all sources if they are fewer."""
    rad, idx = (np.asarray(part) for part in result)
    distance2 = np.where(allowed, squared_distances(query, pos, box), np.inf)
    has_neighbour = np.arange(rad.shape[1]) < allowed.sum(axis=1)[:, None]
    np.testing.assert_array_equal(idx >= 0, has_neighbour)
    np.testing.assert_array_equal(np.isfinite(rad), has_neighbour)
    row = np.nonzero(has_neighbour)[0]
    assert allowed[row, idx[has_neighbour]].all(), "a neighbour is not allowed"
    assert len(set(zip(row, idx[has_neighbour], strict=True))) == has_neighbour.sum(), "a neighbour is there twice"
    nearest = np.sqrt(np.sort(distance2, axis=1)[:, : rad.shape[1]])
    nearest = np.pad(nearest, ((0, 0), (0, rad.shape[1] - nearest.shape[1])), constant_values=np.inf)
    rtol = 1e-5 if rad.dtype == np.float32 else 1e-13
    atol = 8 * np.finfo(rad.dtype).eps * (1.0 if box is None else max(1.0, float(np.max(box))))
    np.testing.assert_allclose(rad[has_neighbour], nearest[has_neighbour], rtol=rtol, atol=atol)
    np.testing.assert_allclose(rad[has_neighbour], np.sqrt(distance2[row, idx[has_neighbour]]), rtol=rtol, atol=atol)


def bins_of(exceeds: Callable[[float], np.ndarray], edges: Any) -> np.ndarray:
    """Return the bin of each quantity, or -1. A bin excludes its lower edge, unless 0, and includes its upper edge.

    exceeds: for an edge, whether each quantity is above it.
    """
    place = np.full(exceeds(edges[0]).shape, -1)
    for i, (low, high) in enumerate(itertools.pairwise(edges)):
        above = True if low == 0 else exceeds(low)
        place[above & ~exceeds(high)] = i
    return place


# z-order


def morton_keys(pos: np.ndarray, box: Any = None) -> list[int]:
    """Return keys as Python integers: 2 * floor(64 / d) bits per dimension, with dimension 0 first in each level.

    All dimensions have one cell size: the largest of the box lengths and, if open, the extents of the positions.
    """
    dims = pos.shape[1]
    length, wide = full_box(box, dims), pos.astype(np.float64)
    low = np.where(length > 0, 0.0, wide.min(axis=0))
    extent = np.where(length > 0, length, wide.max(axis=0) - low).max()
    return [_morton_key(row, low, length, extent, dims) for row in wide]


def _morton_key(row: np.ndarray, low: np.ndarray, length: np.ndarray, extent: float, dims: int) -> int:
    bits = 2 * (64 // dims)
    cells = [_cell(float(row[d]), float(low[d]), float(length[d]), float(extent), bits) for d in range(dims)]
    key = 0
    for bit in reversed(range(bits)):
        for cell in cells:
            key = key << 1 | cell >> bit & 1
    return key


def _cell(x: float, low: float, length: float, extent: float, bits: int) -> int:
    if length > 0 and not 0 <= x < length:
        x -= length * math.floor(x / length)
    place = (x - low) * (1.0 / extent) if extent > 0 else 0.0
    return min(max(int(math.ldexp(place, bits)), 0), 2**bits - 1)


def z_order(pos: np.ndarray, box: Any = None) -> np.ndarray:
    """Return the rows of ``pos`` in z-order. Equal keys are in the z-order of their bits, and ties in input order."""
    places = list(zip(morton_keys(pos, box), coordinate_bits(pos, box), strict=True))
    return np.array(sorted(range(len(pos)), key=places.__getitem__), np.int64)


def coordinate_bits(pos: np.ndarray, box: Any = None) -> list[int]:
    """Return the interleaved bits of the float64 coordinates, which rise with the numbers, as Python integers."""
    length = full_box(box, pos.shape[1])
    return [
        _interleaved([_rising_bits(float(x), float(size)) for x, size in zip(row, length, strict=True)]) for row in pos
    ]


def _rising_bits(x: float, length: float) -> int:
    if length > 0 and not 0 <= x < length:
        x -= length * math.floor(x / length)
    (bits,) = struct.unpack("<q", struct.pack("<d", x + 0.0))
    return bits + 2**63 if bits >= 0 else -1 - bits


def _interleaved(numbers: list[int]) -> int:
    return int("".join(str(number >> bit & 1) for bit in reversed(range(64)) for number in numbers), 2)


def inverse(order: np.ndarray) -> np.ndarray:
    """Return ``rank`` with ``rank[order] = 0, 1, 2, ...``."""
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank


# Neighbours


def scipy_knn(source: np.ndarray, query: np.ndarray, k: int, box: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return radii and rows from a k-d tree in float64."""
    length = full_box(box, source.shape[1])
    moved = [wrapped(pos.astype(np.float64), box) for pos in (source, query)]
    moved = [np.where((length > 0) & (pos >= length), 0.0, pos) for pos in moved]
    return cKDTree(moved[0], boxsize=length).query(moved[1], k=[*range(1, k + 1)])


def brute_knn(source: np.ndarray, k: int, box: Any = None, query: np.ndarray | None = None) -> np.ndarray:
    """Return rows of neighbours with the tie rule: lower z-ordered row first, own point before all others.

    Use it only for positions whose squared distances are exact.
    """
    distance2 = squared_distances(source if query is None else query, source, box)
    if query is None:
        np.fill_diagonal(distance2, -1.0)
    rank = inverse(z_order(source, box))
    orders = [np.lexsort((rank, row))[:k] for row in distance2]
    return np.array(orders, np.intp).reshape(len(orders), min(k, len(source)))


def assert_neighbours(
    rad: Any, idx: Any, source: np.ndarray, query: np.ndarray, box: Any = None, rtol: float | None = None
) -> None:
    """Assert that ``rad`` and ``idx`` are the nearest neighbours: SciPy's radii, and distinct rows at these radii."""
    rad, idx = np.asarray(rad), np.asarray(idx)
    rtol = rtol or 8 * float(np.finfo(rad.dtype).eps)
    atol = 1e-15 * float(full_box(box, source.shape[1]).max())  # SciPy's own rounding across the boundary
    expected, _ = scipy_knn(source, query, idx.shape[1], box)
    np.testing.assert_allclose(rad, expected, rtol=rtol, atol=atol)
    ordered = np.sort(idx, axis=1)
    assert (ordered[:, 1:] != ordered[:, :-1]).all(), "a neighbour was found twice"
    assert (np.diff(rad, axis=1) >= 0).all(), "radii are not in order"
    np.testing.assert_allclose(rad, pair_distances(query, source, idx, box), rtol=rtol, atol=atol)


def pair_distances(query: np.ndarray, source: np.ndarray, idx: np.ndarray, box: Any = None) -> np.ndarray:
    """Return the distances from each query to the given rows of ``source``, in float64."""
    difference = query[:, None, :].astype(np.float64) - source[idx].astype(np.float64)
    length = full_box(box, source.shape[1])
    difference -= length * np.rint(difference / np.where(length > 0, length, 1.0))
    return np.sqrt((difference**2).sum(axis=-1))


# Groups


def components(pos: np.ndarray, rlink: Any, box: Any = None) -> np.ndarray:
    """Return labels of the connected components of pairs with squared distance at most ``rlink**2`` in float64.

    With a length per point, the mean of the lengths of both points counts.
    """
    length = np.broadcast_to(np.asarray(rlink, np.float64), len(pos))
    linked = squared_distances(pos, pos, box) <= ((length[:, None] + length) / 2) ** 2
    return connected_components(coo_array(linked), directed=False)[1]


def components_of_many(pos: np.ndarray, rlink: float, box: Any = None) -> np.ndarray:
    """Compute `components` from the pairs of a k-d tree, with less memory. Not for pairs at exactly ``rlink``."""
    tree = cKDTree(wrapped(pos.astype(np.float64), box), boxsize=full_box(box, pos.shape[1]))
    a, b = tree.query_pairs(rlink, output_type="ndarray").T
    return connected_components(coo_array((np.ones(len(a), bool), (a, b)), (len(pos), len(pos))), directed=False)[1]


def kruskal(weight: np.ndarray) -> np.ndarray:
    """Return the ends of the edges of the minimum spanning tree, ``(n - 1, 2)``, by weight and then by rows.

    Args:
        weight: ``(n, n)``, of the edges between all pairs.
    """
    low, high = np.triu_indices(len(weight), 1)
    parents = np.arange(len(weight))
    edges = []
    for edge in np.lexsort((high, low, weight[low, high])):
        roots = parents[low[edge]], parents[high[edge]]
        if roots[0] != roots[1]:
            parents[parents == max(roots)] = min(roots)
            edges.append((low[edge], high[edge]))
    return np.array(edges, int).reshape(-1, 2)


def clusters_of(nearest: np.ndarray, minimum: int) -> tuple[np.ndarray, np.ndarray]:
    """Return DBSCAN's clusters and cores, starting from one point after the other (Ester et al. 1996).

    A cluster grows until it cannot reach any more points. near: ``(n, n)`` bool.
    """
    core, label, clusters = nearest.sum(axis=1) >= minimum, np.full(len(nearest), -1), 0
    for start in np.nonzero(core)[0]:
        if label[start] >= 0:
            continue
        label[start], reach = clusters, [start]
        while reach:
            for second in np.nonzero(nearest[reach.pop()] & (label < 0))[0]:
                label[second] = clusters
                if core[second]:
                    reach.append(second)
        clusters += 1
    return label, core


def smallest_members(label: Any) -> np.ndarray:
    """Return the partition in a form that does not depend on labels: for each row, the smallest row of its group."""
    _, first, group = np.unique(np.asarray(label), return_index=True, return_inverse=True)
    return first[group]


def order_over_ranks(label: np.ndarray, nums: Any, npart_min: int) -> np.ndarray:
    """Return rows in the group order of ranks that hold ``nums`` consecutive rows each.

    label: the smallest row of the group. Each rank has the listed groups whose first row it holds, then its rows in no
    listed group.
    """
    rows = np.arange(len(label))
    first = np.where(np.bincount(label, minlength=len(label))[label] >= npart_min, label, rows)
    unlisted = np.bincount(first, minlength=len(label))[first] < npart_min
    owner = np.repeat(np.arange(len(nums)), nums)[first]
    return np.lexsort((rows, first, unlisted, owner))


def one_device_order(cata: Any, n: int) -> np.ndarray:
    """Return the order that sorts the ``n`` joined rows of several ranks as on one device.

    cata: a catalogue with global offsets.
    """
    count = np.asarray(cata.count, np.int64)
    members = np.repeat(cata.offset - (np.cumsum(count) - count), count) + np.arange(count.sum())
    return np.concatenate([members, np.setdiff1d(np.arange(n), members)])


@dataclass
class SlowCatalogue:
    """A catalogue in float64. ``order`` is the rows in group order; every other field has one entry per group."""

    order: np.ndarray
    count: np.ndarray
    offset: np.ndarray
    mass: np.ndarray
    com_pos: np.ndarray
    com_vel: np.ndarray
    com_inertia_radius: np.ndarray
    max_radius: np.ndarray
    vel_dispersion: np.ndarray
    inertia_tensor: np.ndarray
    angular_momentum: np.ndarray

    @property
    def shape_tensor(self) -> np.ndarray:
        trace = np.trace(self.inertia_tensor, axis1=1, axis2=2)[:, None, None]
        return self.inertia_tensor / np.where(trace > 0, trace, 1)


def slow_catalogue(
    pos: np.ndarray, mass: np.ndarray, vel: np.ndarray, label: np.ndarray, box: Any, npart_min: int
) -> SlowCatalogue:
    """Return the catalogue of z-ordered particles; ``label`` is the smallest row of the group."""
    groups = [np.flatnonzero(label == first) for first in np.unique(label)]
    listed = [rows for rows in groups if len(rows) >= npart_min]
    members = np.concatenate([*listed, np.empty(0)]).astype(np.int64)
    count = np.array([len(rows) for rows in listed], np.int64)
    moments = [_group_moments(pos[rows], mass[rows], vel[rows], box) for rows in listed]
    columns = [np.array([moment[i] for moment in moments]) for i in range(8)]
    dims = pos.shape[1]
    for i, shape in {1: (dims,), 2: (dims,), 6: (dims, dims), 7: (dims * (dims - 1) // 2,)}.items():
        columns[i] = columns[i].reshape(len(listed), *shape)
    order = np.concatenate([members, np.setdiff1d(np.arange(len(pos)), members)])
    return SlowCatalogue(order, count, np.cumsum(count) - count, *columns)


def _group_moments(pos: np.ndarray, mass: np.ndarray, vel: np.ndarray, box: Any) -> tuple[Any, ...]:
    pos, mass, vel = (values.astype(np.float64) for values in (pos, mass, vel))
    length = full_box(box, pos.shape[1])
    safe = np.where(length > 0, length, 1.0)
    offset = pos - pos[0]
    offset -= length * np.rint(offset / safe)
    weight = mass / mass.sum()
    centre, speed = weight @ offset, weight @ vel
    between, relative = offset - centre, vel - speed
    radius2 = (between**2).sum(axis=1)
    tensor = sum(w * np.outer(x, x) for w, x in zip(weight, between, strict=True))
    rotation = weight @ _cross(between, relative)
    com_pos = pos[0] + centre
    com_pos -= length * np.floor(com_pos / safe)
    dispersion = np.sqrt(weight @ (relative**2).sum(axis=1) / pos.shape[1])
    radii = np.sqrt(weight @ radius2), np.sqrt(radius2.max())
    return mass.sum(), com_pos, speed, *radii, dispersion, tensor, rotation


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return ``(n, d * (d - 1) / 2)``: in 3D the cross product, otherwise ``a_i b_j - a_j b_i`` for i < j."""
    dims = a.shape[1]
    if dims == 3:
        return np.cross(a, b)
    pairs = itertools.combinations(range(dims), 2)
    return np.array([a[:, i] * b[:, j] - a[:, j] * b[:, i] for i, j in pairs]).reshape(-1, len(a)).T


# Kernels


def kernel_weight(kernel: str, dims: int, q: np.ndarray, truncate: float = 4.0) -> np.ndarray:
    """Return ``W(r, h) h^d`` at ``q = r / h``, normalised by its integral."""
    shapes: dict[str, Any] = {
        "top_hat": np.ones_like,
        "gaussian": lambda q: np.exp(-((truncate * q) ** 2) / 2),
        "cubic_spline": lambda q: np.where(q < 0.5, 1 - 6 * q**2 + 6 * q**3, 2 * (1 - q) ** 3),
        "wendland_c2": lambda q: (1 - q) ** 3 * (1 + 3 * q) if dims == 1 else (1 - q) ** 4 * (1 + 4 * q),
        "wendland_c4": lambda q: (
            (1 - q) ** 5 * (1 + 5 * q + 8 * q**2) if dims == 1 else (1 - q) ** 6 * (1 + 6 * q + 35 / 3 * q**2)
        ),
        "wendland_c6": lambda q: (
            (1 - q) ** 7 * (1 + 7 * q + 19 * q**2 + 21 * q**3)
            if dims == 1
            else (1 - q) ** 8 * (1 + 8 * q + 25 * q**2 + 32 * q**3)
        ),
    }
    x, w = np.polynomial.legendre.leggauss(200)
    # Integrate both halves separately, because the spline consists of two polynomials.
    x, w = np.r_[(x + 1) / 4, (x + 3) / 4], np.r_[w, w] / 4
    surface = 2 * math.pi ** (dims / 2) / math.gamma(dims / 2)
    norm = surface * np.sum(w * x ** (dims - 1) * shapes[kernel](x))
    return (q <= 1) * shapes[kernel](np.minimum(q, 1)) / norm


def nearest_differences(query: np.ndarray, pos: np.ndarray, box: Any) -> np.ndarray:
    """Return vectors from sources to queries, by the nearest image, (q, n, d) in float64."""
    difference = query.astype(np.float64)[:, None] - pos.astype(np.float64)[None]
    lengths = np.broadcast_to(np.asarray(0.0 if box is None else box, np.float64), pos.shape[1:])
    return difference - lengths * np.rint(difference / np.where(lengths > 0, lengths, 1))


@dataclass(frozen=True)
class KernelSum:
    """Sums of values over a kernel by all pairs, in float64."""

    kernel: str = "cubic_spline"
    form: str = "gather"
    box: Any = None
    truncate: float = 4.0

    def __call__(self, query: Any, pos: Any, h: Any, h_query: Any, v: Any) -> np.ndarray:
        if self.form == "mean_kernel":
            both = (dataclasses.replace(self, form=form) for form in ("gather", "scatter"))
            return sum(item(query, pos, h, h_query, v) for item in both) / 2
        reference = np.broadcast_to(np.asarray(h, np.float64), len(pos))[None, :]
        own = np.broadcast_to(np.asarray(h_query, np.float64), len(query))[:, None]
        lengths = {"gather": own + 0 * reference, "scatter": reference + 0 * own, "mean_h": (reference + own) / 2}[
            self.form
        ]
        distance = np.sqrt((nearest_differences(query, pos, self.box) ** 2).sum(axis=-1))
        w = kernel_weight(self.kernel, pos.shape[1], distance / lengths, self.truncate) / lengths ** pos.shape[1]
        return np.tensordot(w, np.asarray(v, np.float64), 1)


def assert_near(result: Any, expected: Any, rtol: float) -> None:
    """Assert equality up to a fraction of the largest value."""
    np.testing.assert_allclose(result, expected, rtol=0, atol=rtol * np.abs(expected).max(initial=1e-300))


def assert_slopes(total: Callable[..., Any], point: Sequence[Any], argnums: tuple[int, ...], step: float) -> None:
    """Assert that the derivatives of ``total`` in random directions equal finite differences. Needs 64-bit types."""
    for argument, slope in zip(argnums, jax.grad(total, argnums=argnums)(*point), strict=True):
        assert np.isfinite(slope).all()
        change = np.random.default_rng(argument).normal(size=np.shape(point[argument]))
        ends = [
            total(*(x + move * change if i == argument else x for i, x in enumerate(point))) for move in (step, -step)
        ]
        np.testing.assert_allclose(np.sum(slope * change), (ends[0] - ends[1]) / (2 * step), 1e-12 / step, 1e-14 / step)
