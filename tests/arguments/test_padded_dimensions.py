"""Kernels pad rows of 4 to 7 dimensions to 8: results must equal results for rows that the caller pads with zeros."""

from typing import Any

import jax
import numpy as np
import oracles
import pytest
from devices import deal, even, joined, mesh_of
from oracles import KernelSum, assert_near

import jztree as jz
from jztree.radius import count_within, kernel_sums, neighbours_within, pair_counts, pairs_within

pytestmark = pytest.mark.emulated

PADDED = range(4, 8)
BOXES = (None, [1.0, 0.0, 1.3, 0.9, 0.0, 1.1, 1.2])


def padded(rows: np.ndarray) -> np.ndarray:
    return np.pad(rows, [(0, 0), (0, 8 - rows.shape[1])])


def box_of(box: Any, dims: int) -> tuple[Any, Any]:
    """Return the box for rows of ``dims`` dimensions, and for padded rows."""
    return (None, None) if box is None else (box[:dims], box[:dims] + [0.0] * (8 - dims))


def assert_same(result: Any, expected: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, result, expected)


@pytest.mark.parametrize("box", BOXES, ids=["open", "mixed"])
def test_searches_are_bitwise_equal_with_padded_dimensions(box: Any, dtype: Any) -> None:
    for dims in PADDED:
        pos, query = oracles.uniform(160, dims, dtype) * 2 - dtype(0.5), oracles.uniform(30, dims, dtype, seed=2)
        (own, complete), radius = box_of(box, dims), 0.3 * dims**0.5
        assert_same(jz.knn.knn.jit(pos, 5, own), jz.knn.knn.jit(padded(pos), 5, complete))
        result = jz.knn.knn.jit(pos, 40, own, part_query=query, max_radius=radius)
        assert_same(result, jz.knn.knn.jit(padded(pos), 40, complete, part_query=padded(query), max_radius=radius))
        assert_same(count_within.jit(pos, radius, boxsize=own), count_within.jit(padded(pos), radius, boxsize=complete))
        result, expected = (
            neighbours_within.jit(item, radius, boxsize=box) for item, box in ((pos, own), (padded(pos), complete))
        )
        assert_same(result.splits, expected.splits)
        np.testing.assert_array_equal(np.sort(result.distance), np.sort(expected.distance))
        result, expected = (
            jz.fof.fof_labels.jit(*item)[1] for item in ((pos, radius, own), (padded(pos), radius, complete))
        )
        assert_same(result, expected)
        edges = np.linspace(0, radius, 5)
        result, expected = (
            pair_counts.jit(column, edges, boxsize=box) for column, box in ((pos, own), (padded(pos), complete))
        )
        assert_same(result.count, expected.count)


@pytest.mark.parametrize("box", BOXES, ids=["open", "mixed"])
def test_vectors_and_shifts_of_pairs_drop_padded_dimensions(box: Any, dtype: Any) -> None:
    for dims in PADDED:
        pos = oracles.uniform(40, dims, dtype) * 2 - dtype(0.5)
        own, complete = box_of(box, dims)
        result, expected = (
            pairs_within.jit(column, 0.9, boxsize=box) for column, box in ((pos, own), (padded(pos), complete))
        )
        count = int(result.num)
        assert count == int(expected.num) > 0
        rows, places = (
            {(int(i), int(j), *map(int, shift[:dims])): place for place, (i, j, shift) in enumerate(edges)}
            for edges in (
                zip(*(np.asarray(x)[:count] for x in (column.i, column.j, column.shift)), strict=True)
                for column in (result, expected)
            )
        )
        assert rows.keys() == places.keys()
        order = [places[key] for key in rows]
        assert result.vector.shape[1] == dims
        np.testing.assert_array_equal(np.asarray(result.vector)[:count], np.asarray(expected.vector)[order, :dims])
        np.testing.assert_array_equal(np.asarray(result.distance)[:count], np.asarray(expected.distance)[order])


@pytest.mark.parametrize("box", BOXES, ids=["open", "mixed"])
def test_kernel_sums_and_their_derivatives(x64: None, box: Any) -> None:
    """Norms and components of tensors count the given dimensions only."""
    for dims in PADDED:
        random = np.random.default_rng(dims)
        pos, radii = random.random((60, dims)), box_of(box, dims)[0]
        value, vector = random.normal(size=60), random.normal(size=(60, dims))
        h = 0.35 * dims**0.5
        sums = KernelSum("gaussian", box=radii)
        assert_near(
            kernel_sums.jit(pos, h, boxsize=radii, values=value, kernel="gaussian"), sums(pos, pos, h, h, value), 1e-10
        )

        weight = random.normal(size=(60, dims))
        for values, derivative, by in (
            (value, None, weight[:, 0]),
            (value, "gradient", weight),
            (vector, "divergence", weight[:, 0]),
        ):
            known = {"h": h, "boxsize": radii, "values": values, "kernel": "gaussian", "derivative": derivative}
            assert_slope(lambda pos, by=by, known=known: (by * kernel_sums(pos, **known)).sum(), pos, random)


def assert_slope(loss: Any, pos: np.ndarray, random: np.random.Generator) -> None:
    """Assert that the gradient is the slope along some direction."""
    step = 1e-6 * random.normal(size=pos.shape)
    both = jax.jit(jax.value_and_grad(loss))
    slope = (both(pos + step)[0] - both(pos - step)[0]) / 2
    np.testing.assert_allclose((both(pos)[1] * step).sum(), slope, rtol=1e-4)


@pytest.mark.long
def test_devices_find_the_same_neighbours() -> None:
    pos = oracles.uniform(240, 6)
    result = jz.knn.knn.smap(mesh_of(3), jit=True)(deal(pos, even(240, 3)), 5)[0]
    np.testing.assert_array_equal(joined(np.asarray(result), even(240, 3)), jz.knn.knn.jit(pos, 5)[0])
