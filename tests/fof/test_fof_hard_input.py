"""Friends-of-friends groups of hard sets: at the linking length, clumps, chains, duplicates, a range of 1e12."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from fof.test_fof import N, assert_groups, input_labels
from jztree.fof import fof_labels

pytestmark = pytest.mark.emulated


@pytest.mark.parametrize("rlink", [0.0, 0.4, 1e-30])
@pytest.mark.parametrize("box", [0.0, 10.0], ids=["open", "periodic"])
def test_all_points_equal_are_one_group(box: float, rlink: float, dtype: Any) -> None:
    np.testing.assert_array_equal(input_labels(jnp.full((3000, 3), 0.3, dtype), rlink, box), 0)


def test_a_hundred_thousand_equal_points() -> None:
    np.testing.assert_array_equal(input_labels(jnp.full((100_000, 3), 7.5), 0.0, 10.0), 0)


@pytest.mark.parametrize("box", [0.0, 8.0], ids=["open", "periodic"])
def test_linking_length_zero_joins_coincident_points_only(box: float, dtype: Any) -> None:
    pos = np.random.default_rng(5).permutation(np.repeat(oracles.uniform(60, 3, dtype) * 8, 15, axis=0))
    assert_groups(pos, 0.0, box)


def test_linking_length_zero_joins_periodic_images(dtype: Any) -> None:
    pos = np.random.default_rng(5).permutation(np.repeat(oracles.lattice(4, 2, dtype), 6, axis=0))
    shift = np.random.default_rng(6).integers(-2, 3, pos.shape).astype(dtype) * 4
    assert len(np.unique(input_labels(jnp.asarray(pos + shift), 0.0, 4.0))) == 16
    assert_groups(pos + shift, 0.0, 4.0)


def test_half_of_the_points_are_duplicates(dtype: Any) -> None:
    pos = oracles.uniform(N, 3, dtype)
    pos[1::2] = pos[0::2]
    for rlink in (0.0, 0.01, 0.07):
        assert_groups(pos, rlink, 1.0)


@pytest.mark.parametrize("direction", [(1, 0, 0), (0, 0, 1), (1, 1, 1), (1, -0.3, 0.01)], ids=str)
def test_collinear_points(direction: tuple[float, ...], dtype: Any) -> None:
    pos = (oracles.uniform(N, 1, dtype) * np.array(direction)).astype(dtype)
    for rlink in (1e-4, 1e-3, 4e-3):
        assert_groups(pos, rlink)


@pytest.mark.parametrize("spacing", [1.0, 0.1, 0.3, 1 / 3, 1e-3], ids=lambda s: f"{s:.3g}")
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("neighbour", [-1, 0, 1], ids=["below", "at", "above"])
def test_linking_length_at_the_spacing_of_a_lattice(dims: int, spacing: float, neighbour: int, dtype: Any) -> None:
    """The spacing has no binary form, so some pairs are linked and others are not: float64 arithmetic decides."""
    side = {1: 200, 2: 25, 3: 9}[dims]
    pos = oracles.lattice(side, dims, dtype, spacing)
    rlink = float(np.nextafter(spacing, np.inf * neighbour)) if neighbour else spacing
    assert_groups(pos, rlink)
    assert_groups(pos, rlink, spacing * side)
    assert_groups(pos, rlink, spacing * (side - 1))


@pytest.mark.parametrize("diagonal", [2, 3])
def test_linking_length_at_the_diagonal_of_a_lattice(diagonal: int, dtype: Any) -> None:
    pos = oracles.lattice(8, 3, dtype, 0.7)[::5]
    for rlink in (0.7 * diagonal**0.5, float(np.float32(0.7)) * diagonal**0.5):
        assert_groups(pos, rlink, 5.6)
        assert_groups(pos, rlink)


def test_pairs_within_rounding_of_linking_length_are_decided_in_float64() -> None:
    """Test pairs at distances within a few float32 steps of the linking length, each pair far from all others."""
    random = np.random.default_rng(14)
    first = np.arange(400, dtype=np.float32)[:, None] * 4 + random.random((400, 3), np.float32)
    direction = random.standard_normal((400, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    second = (first + 0.1 * direction).astype(np.float32)
    pos = np.concatenate([first, second])
    distance = np.sqrt(((first.astype(np.float64) - second) ** 2).sum(axis=1))
    for rlink in (0.1, float(np.float32(0.1)), *distance[:20]):
        assert_groups(pos, float(rlink))
        assert_groups(pos, float(rlink), 1600.0)


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
def test_linking_length_is_not_rounded_to_float32(jit: bool) -> None:
    """The distance of the pair is between 0.1 in float64 and 0.1 in float32, which is larger."""
    distance = np.float32(0.1)
    pos = jnp.array([[0.0], [distance]], jnp.float32)
    labels = fof_labels.jit if jit else fof_labels
    assert labels(pos, 0.1, output_order="input")[1].tolist() == [0, 1]
    assert labels(pos, float(distance), output_order="input")[1].tolist() == [0, 0]
    assert labels(pos, distance, output_order="input")[1].tolist() == [0, 0]
    below = float(np.nextafter(np.float64(distance), 0))
    assert labels(pos, below, output_order="input")[1].tolist() == [0, 1]
    assert labels(pos, np.float64(0.1), output_order="input")[1].tolist() == [0, 1]
    assert jax.jit(lambda x: labels(x, 0.1, output_order="input")[1])(pos).tolist() == [0, 1]


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
def test_box_is_not_rounded_to_float32(jit: bool) -> None:
    labels = fof_labels.jit if jit else fof_labels
    pos = np.array([[0.0], [0.09375]], np.float32)
    separation = 0.1 - 0.09375
    assert labels(jnp.asarray(pos), separation, 0.1, output_order="input")[1].tolist() == [0, 0]
    assert labels(jnp.asarray(pos), np.nextafter(separation, 0), 0.1, output_order="input")[1].tolist() == [0, 1]


@pytest.mark.parametrize("rlink", [3.0, 1e6, 1e18, 1e30])
def test_huge_linking_length_joins_everything(rlink: float, dtype: Any) -> None:
    np.testing.assert_array_equal(input_labels(jnp.asarray(oracles.clustered(5000, 3, dtype)), rlink), 0)


@pytest.mark.parametrize("rlink", [1e39, 1e150, 1e300])
def test_huge_linking_length_in_float64(rlink: float, x64: None) -> None:
    np.testing.assert_array_equal(input_labels(jnp.asarray(oracles.uniform(500, 3, np.float64)), rlink), 0)


@pytest.mark.parametrize("side", [1.0, 0.7, 37.5])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_linking_length_of_half_the_box(dims: int, side: float, dtype: Any) -> None:
    random = np.random.default_rng(15)
    sparse = (side * random.random((3, dims))).astype(dtype)
    assert_groups(sparse, side / 2, side)
    opposite = np.array([[0.0] * dims, [side / 2] + [0.0] * (dims - 1)], dtype)
    assert_groups(opposite, side / 2, side)
    assert_groups(oracles.uniform(400, dims, dtype) * dtype(side), side / 2, side)


@pytest.mark.parametrize("share", [0.500001, 0.75, 1.0, 1.7, 3.0, 1e6, 1e30])
@pytest.mark.parametrize("box", [1.0, [1.0, 0.3, 0.0]], ids=["cube", "mixed"])
def test_linking_length_above_half_the_box(box: Any, share: float, dtype: Any) -> None:
    """Some image of a particle is within reach exactly if its nearest one is."""
    rlink = share * float(np.max(box))
    random = np.random.default_rng(18)
    for n in (2, 3, 9, 300):
        pos = random.random((n, 3))
        pos[:, 2] *= 30  # the open dimension of the mixed box
        assert_groups(pos.astype(dtype), rlink, box)


@pytest.mark.parametrize("box", [1.0, 37.5, 0.1, 67.77])
def test_points_at_and_next_to_the_faces_of_the_box(box: float, dtype: Any) -> None:
    faces = np.array([0, 1e-9, -1e-9, 1e-6, -1e-6, 0.5, 1, 1 - 1e-9, 1 + 1e-9, 1 - 1e-6, 1 + 1e-6, 2, -1, 7.25]) * box
    pos = np.stack(np.meshgrid(faces, faces, indexing="ij"), axis=-1).reshape(-1, 2).astype(dtype)
    for rlink in (0.0, 1e-9, 1.5e-9, 1e-6, 2.1e-6, 0.26, 0.5):
        assert_groups(pos, rlink * box, box)


def test_positions_outside_the_box_are_wrapped(dtype: Any) -> None:
    pos = np.round(oracles.uniform(N, 3, dtype) * 512) / 512
    shift = np.random.default_rng(6).integers(-3, 4, pos.shape).astype(dtype)
    np.testing.assert_array_equal(
        input_labels(jnp.asarray(pos + shift), 0.06, 1.0), input_labels(jnp.asarray(pos), 0.06, 1.0)
    )
    assert_groups(pos + shift, 0.06, 1.0)


@pytest.mark.parametrize("exponent", [3, 12, 18, 22, 25, 37])
def test_one_far_outlier(exponent: int) -> None:
    pos = oracles.uniform(N, 3)
    pos[13] = 10.0**exponent
    assert_groups(pos, 0.04)


@pytest.mark.parametrize("exponent", [17.0, 17.4, 18.0, 21.5])
@pytest.mark.parametrize("rlink", [0.08, 0.1])
def test_outlier_so_far_that_squares_of_small_distances_vanish(rlink: float, exponent: float) -> None:
    """In units of the outlier's distance, the squares are at the lower end of float32."""
    for seed in range(3):
        pos = oracles.uniform(200, 3, seed=seed)
        pos[3] = 10.0**exponent
        assert_groups(pos, rlink)


def test_dynamic_range_of_1e12(dtype: Any) -> None:
    random = np.random.default_rng(12)
    pos = (random.standard_normal((N, 3)) * 10 ** random.uniform(-12, 0, (N, 1))).astype(dtype)
    for rlink in (1e-12, 1e-8, 1e-3):
        assert_groups(pos, rlink)


@pytest.mark.parametrize("exponent", [-80, -20, 1, 83, 100])
@pytest.mark.parametrize("box", [0.0, 1.0], ids=["open", "periodic"])
def test_scaling_by_a_power_of_two_changes_nothing(exponent: int, box: float, dtype: Any) -> None:
    pos, scale = oracles.uniform(N, 3, dtype), 2.0**exponent
    scaled = input_labels(jnp.asarray(pos * dtype(scale)), 0.06 * scale, box * scale)
    np.testing.assert_array_equal(scaled, input_labels(jnp.asarray(pos), 0.06, box))


@pytest.mark.parametrize("exponent", [-400, -160, -90, 90, 130, 400])
@pytest.mark.parametrize("box", [0.0, 0.9], ids=["open", "periodic"])
def test_float64_scaling_outside_the_range_of_float32(exponent: int, box: float, x64: None) -> None:
    """Lengths pass through JAX as float32 words, which must keep the range and the digits of float64."""
    pos, scale = oracles.lattice(9, 3, np.float64, 0.1), 2.0**exponent
    scaled = input_labels(jnp.asarray(pos * scale), 0.1 * scale, box * scale)
    np.testing.assert_array_equal(scaled, input_labels(jnp.asarray(pos), 0.1, box))
