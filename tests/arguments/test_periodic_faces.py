"""Clumps at the faces of a periodic box: order and distances follow from the given positions without wrapping.

Half of the coordinates of such a clump are outside the box. Wrapped into it, they would lose most of their digits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import deal, even, joined, mesh_of

import jztree as jz

pytestmark = pytest.mark.emulated

WIDTHS = [1e-7, 1e-6, 1e-4, 1e-2, 0.3]
# float32 cannot represent 0.7 and 0.1, or positions wrapped into such a box.
BOXES: list[Any] = [1.0, 0.7, [0.1, 0.25, 0.0]]


def clump(width: float, box: Any, dtype: Any, n: int = 250, boxes: Any = 0, seed: int = 0) -> np.ndarray:
    """Return points around a corner, some exactly on a face. boxes: box lengths from the origin to the corner."""
    lengths = np.where(oracles.full_box(box, 3) > 0, oracles.full_box(box, 3), 1.0)
    random = np.random.default_rng(seed)
    pos = random.standard_normal((n, 3)) * width * lengths.max()
    pos = np.where(random.random(pos.shape) < 0.05, 0.0, pos)
    return (pos + boxes * lengths).astype(dtype)


def exact_distances(query: np.ndarray, pos: np.ndarray, box: Any) -> np.ndarray:
    """Return ``(q, n)`` distances to the nearest images, in extended precision."""
    x, y = query.astype(np.longdouble)[:, None], pos.astype(np.longdouble)
    length = oracles.full_box(box, 3).astype(np.longdouble)
    shift = length * np.rint((x - y) / np.where(length > 0, length, 1))
    # Shifting the coordinate that is farther out loses no digits.
    difference = np.where(np.abs(x) > np.abs(y), (x - shift) - y, x - (y + shift))
    return np.sqrt((difference**2).sum(axis=-1))


def assert_rounded_once(result: np.ndarray, exact: np.ndarray) -> None:
    """Assert that float32 distances are right to half of the last digit; float64 distances are computed in float64."""
    ulps = 0.5001 if result.dtype == np.float32 else 3
    assert (np.abs(result - exact) <= ulps * np.spacing(result)).all()


def assert_exact(result: Any, query: np.ndarray, pos: np.ndarray, box: Any) -> None:
    rad, idx = map(np.asarray, result)
    every = exact_distances(query, pos, box)
    nearest = np.sort(every, axis=1)[:, : rad.shape[1]]
    ordered = np.sort(idx, axis=1)
    assert (ordered[:, 1:] != ordered[:, :-1]).all(), "a neighbour was found twice"
    assert (np.diff(rad, axis=1) >= 0).all()
    assert_rounded_once(rad, np.take_along_axis(every, idx, axis=1))
    np.testing.assert_allclose(rad, nearest.astype(np.float64), rtol=4 * np.finfo(rad.dtype).eps)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("box", BOXES, ids=str)
def test_clump_around_a_corner_has_exact_neighbours(width: float, box: Any, dtype: Any) -> None:
    pos = clump(width, box, dtype)
    for k in (1, 5, 40):
        assert_exact(jz.knn.knn.jit(pos, k, box), pos, pos, box)
    queries = clump(width, box, dtype, 60, seed=1)
    assert_exact(jz.knn.knn.jit(pos, 6, box, part_query=queries), queries, pos, box)
    rad, idx = jz.knn.knn.jit(pos, 5, box, exclude_self=True)
    assert (np.asarray(idx) != np.arange(len(pos))[:, None]).all()
    np.testing.assert_array_equal(rad, jz.knn.knn.jit(pos, 6, box)[0][:, 1:])


@pytest.mark.parametrize("boxes", [1, -1, 3, [-2, 0, 5]], ids=str)
@pytest.mark.parametrize("width", [1e-5, 1e-2, 0.3])
def test_clump_several_boxes_away_has_exact_neighbours(boxes: Any, width: float, dtype: Any) -> None:
    pos = clump(width, 1.0, dtype, boxes=boxes)
    assert_exact(jz.knn.knn.jit(pos, 6, 1.0), pos, pos, 1.0)
    queries = clump(width, 1.0, dtype, 60, seed=1)
    assert_exact(jz.knn.knn.jit(pos, 6, 1.0, part_query=queries), queries, pos, 1.0)


@pytest.mark.parametrize("boxes", [500, [-3000, 0, 70]], ids=str)
def test_distances_are_exact_below_the_rounding_of_many_box_lengths(x64: None, boxes: Any) -> None:
    """Multiples of 0.7 are rounded by up to 1e-13, which is comparable to the width of the clump."""
    pos = clump(1e-12, 0.7, np.float64, boxes=boxes)
    for k in (1, 5, 40):
        assert_exact(jz.knn.knn.jit(pos, k, 0.7), pos, pos, 0.7)
    inside = clump(1e-12, 0.7, np.float64, 60, seed=1)
    assert_exact(jz.knn.knn.jit(pos, 6, 0.7, part_query=inside), inside, pos, 0.7)
    far = jz.radius.count_within.jit(pos, 1.5e-12, boxsize=0.7, queries=inside)
    np.testing.assert_array_equal(far, (exact_distances(inside, pos, 0.7) <= 1.5e-12).sum(axis=1))


@pytest.mark.parametrize("half", [0.5, 0.35])
def test_box_centred_on_the_origin_has_exact_neighbours(half: float, dtype: Any) -> None:
    pos = (oracles.uniform(800, 3, np.float64) * 2 * half - half).astype(dtype)
    assert_exact(jz.knn.knn.jit(pos, 8, 2 * half), pos, pos, 2 * half)
    pos = (oracles.clustered(800, 3, np.float64) * 2 * half - half).astype(dtype)
    assert_exact(jz.knn.knn.jit(pos, 40, 2 * half), pos, pos, 2 * half)


@pytest.mark.parametrize("box", [1.0, 0.7])
def test_twelve_decades_around_a_corner_have_exact_neighbours(box: float, dtype: Any) -> None:
    random = np.random.default_rng(5)
    pos = (random.standard_normal((300, 3)) * 10.0 ** random.uniform(-14, -1, (300, 1))).astype(dtype)
    assert_exact(jz.knn.knn.jit(pos, 6, box), pos, pos, box)


def test_images_of_one_position_are_at_distance_0(dtype: Any) -> None:
    place = np.array([[-0.25, -(2.0**-20), 0.375]])
    pos = np.concatenate([place + shift for shift in ([0, 0, 0], [1, 0, 0], [2, 1, -3])]).astype(dtype)
    rad, idx = jz.knn.knn(pos, 3, 1.0)
    separation = np.where(dtype == np.float32, 2.0**-23, 0.0)  # float32 does not have all digits of the third
    assert np.asarray(rad).max() <= separation
    np.testing.assert_array_equal(np.sort(idx, axis=1), np.broadcast_to(np.arange(3), (3, 3)))


@pytest.mark.parametrize("width", [1e-7, 1e-5, 1e-2])
def test_max_radius_near_a_corner_agrees_with_counts(width: float, dtype: Any) -> None:
    pos = clump(width, 1.0, dtype)
    every = exact_distances(pos, pos, 1.0)
    radius = float(np.median(every)) / 3
    rad, idx = map(np.asarray, jz.knn.knn.jit(pos, 12, 1.0, max_radius=radius))
    count = np.asarray(jz.radius.count_within.jit(pos, radius, boxsize=1.0))
    np.testing.assert_array_equal(count, (every <= radius).sum(axis=1))
    np.testing.assert_array_equal((idx >= 0).sum(axis=1), np.minimum(count, 12))
    assert_rounded_once(rad[idx >= 0], np.take_along_axis(every, idx, axis=1)[idx >= 0])
    nearest = jz.radius.nearest_within.jit(pos, radius, 12, boxsize=1.0)
    np.testing.assert_array_equal(nearest.distance, rad)


@pytest.mark.parametrize("width", [1e-7, 1e-4, 1e-2])
def test_densities_equal_those_in_open_space(width: float, dtype: Any) -> None:
    pos = clump(width, 1.0, dtype)
    part = jz.data.PosMass(pos=jnp.asarray(pos), mass=jnp.ones(len(pos), dtype))
    for density in (jz.density.knn_density, jz.density.sph_density):
        np.testing.assert_allclose(density.jit(part, 8, boxsize=1.0), density.jit(part, 8), rtol=1e-5)
    velocity = pos * dtype(1 / width)
    sums = [jz.radius.kernel_sums.jit(pos, width, boxsize=box) for box in (1.0, None)]
    np.testing.assert_allclose(*sums, rtol=1e-5)
    result, expected = (
        np.asarray(jz.radius.sph_derivative.jit(part, 2 * width, velocity, derivative="divergence", boxsize=box))
        for box in (1.0, None)
    )
    oracles.assert_near(result, expected, 1e-4 if dtype == np.float32 else 1e-8)


@pytest.mark.parametrize("width", [1e-6, 1e-2])
def test_devices_agree_on_a_clump_around_a_corner(width: float) -> None:
    mesh, pos = mesh_of(3), clump(width, 1.0, np.float32, 600)
    counts = even(len(pos), 3)
    rad, idx = map(np.asarray, jz.knn.knn.jit(pos, 6, 1.0))
    result, rows = jz.knn.knn.smap(mesh, jit=True)(deal(pos, counts), 6, 1.0, result="rad_globalidx")
    np.testing.assert_array_equal(joined(result, counts), rad)
    np.testing.assert_array_equal(joined(rows, counts), idx)


@pytest.mark.parametrize("box", [None, 1.0])
def test_distances_are_rounded_once(box: Any, dtype: Any) -> None:
    pos = oracles.uniform(700, 3, dtype, seed=5)
    assert_exact(jz.knn.knn.jit(pos, 8, box), pos, pos, box)
    if dtype == np.float32:
        # Use units in which squares exceed the range of float32.
        for unit in (2.0**-100, 2.0**100):
            small = pos * np.float32(unit)
            lengths = None if box is None else unit
            np.testing.assert_array_equal(
                jz.knn.knn.jit(small, 8, lengths)[0], jz.knn.knn.jit(pos, 8, box)[0] * np.float32(unit)
            )


@pytest.mark.parametrize("box", [None, 1.0, 0.7])
def test_radius_including_a_distance_includes_the_neighbour(box: Any, dtype: Any) -> None:
    pos = oracles.uniform(900, 3, dtype, seed=5) - dtype(0.4)
    distance = jz.knn.knn.jit(pos, 8, box)[0][:, -1]
    radius = jz.radius.radius_including(distance)
    assert radius.dtype == distance.dtype
    assert (np.asarray(jz.radius.count_within.jit(pos, distance, boxsize=box)) < 8).any(), (
        "no distance was rounded down"
    )
    assert (np.asarray(jz.radius.count_within.jit(pos, radius, boxsize=box)) == 8).all()
    assert (np.asarray(jz.knn.knn.jit(pos, 8, box, max_radius=radius)[1]) >= 0).all()
    lists = jz.radius.neighbours_within.jit(pos, radius, boxsize=box)
    np.testing.assert_array_equal(np.diff(lists.splits), 8)


def test_friends_at_the_radius_including_their_distance_are_linked() -> None:
    for pair in np.random.RandomState(0).rand(20, 2, 3).astype(np.float32):
        rlink = float(jz.radius.radius_including(jz.knn.knn.jit(pair, 2)[0][0, 1]))
        assert len(set(np.asarray(jz.fof.fof_labels.jit(pair, rlink)[1]).tolist())) == 1


def test_radius_including_keeps_kind_and_shape(x64: None) -> None:
    assert type(jz.radius.radius_including(np.float32(1))) is np.float32
    assert jz.radius.radius_including(np.ones((2, 3))).shape == (2, 3)
    result = jax.jit(jz.radius.radius_including)(jnp.array([0.0, 1.0, np.inf], np.float32))
    np.testing.assert_array_equal(result, np.nextafter(np.array([0, 1, np.inf], np.float32), np.float32(np.inf)))
    with pytest.raises(TypeError, match="float32 or float64, not int"):
        jz.radius.radius_including(np.arange(3))


def test_gradient_of_neighbour_distances_near_a_corner() -> None:
    pos = clump(1e-6, 1.0, np.float32, 50)

    def gradient(box: Any) -> jax.Array:
        return jax.jit(jax.grad(lambda x: jz.knn.knn(x, 4, box, result="drad")[:, 1:].sum()))(pos)

    np.testing.assert_allclose(gradient(1.0), gradient(None), rtol=1e-4, atol=1e-6)
