"""Coordinates that are much larger than the differences that matter: far from the origin, or many periods away."""

from typing import Any

import numpy as np
import oracles
import pytest

from jztree.data import Pos
from jztree.fof import fof_labels
from jztree.knn import knn
from jztree.radius import count_within, neighbours_within, pair_counts, pairs_within

pytestmark = pytest.mark.emulated


def line(offset: float, spread: float, dtype: Any, n: int = 200) -> np.ndarray:
    """Return points that differ in the second coordinate only; the first is far away."""
    return np.stack([np.full(n, offset), oracles.uniform(n, 1, np.float64)[:, 0] * spread], axis=1).astype(dtype)


@pytest.mark.parametrize(
    ("offset", "spread"), [(1e10, 1e-18), (1e20, 1e-8), (3e24, 1e-4), (1e27, 1.0), (-1e30, 1.0), (4e37, 1e-30)]
)
def test_float32_set_far_from_the_origin(offset: float, spread: float, dtype: Any) -> None:
    """Scaled by its own width alone, the set would overflow."""
    pos = line(offset, spread, dtype)
    radius, index = knn(pos, 4)
    separation = np.abs(pos[:, None, 1].astype(np.float64) - pos[:, 1])
    np.testing.assert_allclose(radius, np.sort(separation, axis=1)[:, :4], rtol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(separation, np.asarray(index), axis=1), radius, rtol=1e-6)
    for rlink in (0.3 * spread, 0.01 * spread):
        gaps = np.diff(np.sort(pos[:, 1].astype(np.float64)))
        assert len(set(np.asarray(fof_labels(pos, rlink)[1]))) == 1 + np.sum(gaps > rlink)


def test_float64_set_far_from_the_origin(x64: None) -> None:
    pos = line(1e140, 1e-60, np.float64)
    radius, _ = knn(pos, 4)
    separation = np.sort(np.abs(pos[:, None, 1] - pos[:, 1]), axis=1)[:, :4]
    np.testing.assert_allclose(radius, separation, rtol=1e-12)


def test_queries_far_from_the_sources() -> None:
    """Every point is far away in one dimension, by the same distance."""
    pos, query = line(1e28, 1.0, np.float32), Pos(pos=line(1e28, 1.0, np.float32, 50)[::-1] * np.float32(0.999))
    radius, _ = knn(pos, 2, part_query=query)
    exact = np.linalg.norm(query.pos[:, None].astype(np.float64) - pos, axis=-1)
    np.testing.assert_allclose(radius, np.sort(exact, axis=1)[:, :2], rtol=1e-6)


@pytest.mark.parametrize("far", [1e3, 1e9, 1e16, 1e18, 1e20, 1e30])
@pytest.mark.parametrize("box", [[1.542243, 1.542243, 1.542243], [1.0, 0.0, 1.25]])
def test_positions_many_periods_away_are_wrapped(far: float, box: list[float], dtype: Any) -> None:
    """The remainder of an exact division gives the position of such large numbers in the box."""
    length = np.array(box)
    pos = (oracles.uniform(300, 3, np.float64) * np.where(length > 0, far, 1)).astype(dtype)
    inside = np.where(length > 0, np.fmod(pos.astype(np.float64), np.where(length > 0, length, 1)), pos)
    separation = inside[:, None] - inside
    separation -= length * np.round(separation / np.where(length > 0, length, 1))
    exact = np.sqrt(np.sum(separation**2, axis=-1))
    radius, _ = knn(pos, 3, boxsize=box)
    # Wrapped positions have the precision of the box.
    np.testing.assert_allclose(radius, np.sort(exact, axis=1)[:, :3], rtol=1e-5, atol=4 * np.finfo(dtype).eps)
    label = fof_labels(pos, 0.12, box, output_order="input")[1]
    expected = oracles.smallest_members(oracles.components(inside, 0.12, box))
    np.testing.assert_array_equal(oracles.smallest_members(label), expected)


@pytest.mark.parametrize("separation", [2.0**-1022, 2.0**-1000, 2.0**-800])
@pytest.mark.parametrize("box", [0.0, 2.0**130], ids=["open", "periodic"])
def test_pairs_with_squares_negligible_relative_to_the_set(separation: float, box: float, x64: None) -> None:
    """Whether two particles are within a radius depends on these two alone, not on other particles."""
    far = 2.0**123
    pos = np.array([[far, 0.0], [far, separation], [far, 3 * separation], [0.0, separation]])
    for radius, linked, nearest in (
        (0.0, [0, 1, 2, 3], [1, 1, 1, 1]),
        (np.nextafter(separation, 0), [0, 1, 2, 3], [1, 1, 1, 1]),
        (separation, [0, 0, 2, 3], [2, 2, 1, 1]),
        (2 * separation, [0, 0, 0, 3], [2, 3, 2, 1]),
        (3 * separation, [0, 0, 0, 3], [3, 3, 3, 1]),
    ):
        np.testing.assert_array_equal(fof_labels(pos, radius, box, output_order="input")[1], linked)
        np.testing.assert_array_equal(count_within(pos, radius, boxsize=box), nearest)
        np.testing.assert_array_equal(np.diff(neighbours_within(pos, radius, boxsize=box).splits), nearest)
        pairs = pairs_within(pos, radius, boxsize=box, full=True)
        np.testing.assert_array_equal(np.bincount(np.asarray(pairs.i)[: int(pairs.num)], minlength=4) + 1, nearest)
        _, result = knn(pos, 4, boxsize=box, max_radius=radius)
        np.testing.assert_array_equal(np.sum(np.asarray(result) >= 0, axis=1), nearest)
        if radius > 0:
            counts = pair_counts(pos, [0.0, radius], boxsize=box)
            np.testing.assert_array_equal(np.asarray(counts.count), [sum(nearest) - 4])


@pytest.mark.parametrize("unit", [2.0**-1000, 2.0**-800, 1.0])
@pytest.mark.parametrize(
    ("los", "first", "across", "along"),
    [
        (1, [0, 0, 0], 3, 4),
        # The midpoint of two particles (0, 4) apart is at (3, 2).
        ("midpoint", [3, 0, 0], 12 / np.sqrt(13), 8 / np.sqrt(13)),
    ],
)
def test_lines_of_sight_for_pairs_with_negligible_squares(
    unit: float, los: Any, first: list[int], across: float, along: float, x64: None
) -> None:
    pos = np.array([first, [3, 4, 0], [0, 0, 0]]) * unit
    pos[2, 0] = 2.0**123
    distance = np.hypot(across, along)
    edges = ((0.9, 1.1, 2), (1.1, 1.2, 0), (0.8, 0.9, 0))  # with the number of pairs between them, in both orders
    for mode, item, second in (("rp_pi", across, along * unit), ("s_mu", distance, along / distance)):
        for low, high, number in edges:
            for low_b, high_b, number_b in edges:
                ends, ends_b = np.multiply((low, high), item * unit), np.multiply((low_b, high_b), second)
                result = pair_counts(pos, ends, mode=mode, edges_b=ends_b, los=los)
                assert np.sum(result.count) == min(number, number_b), (mode, low, low_b)
