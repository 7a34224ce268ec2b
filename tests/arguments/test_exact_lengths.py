"""Radii, linking lengths and boxes keep all bits of a float64 in every unit, even if JAX has only float32.

Particles are on lattices whose spacing is a power of two, and lengths are the spacing or the numbers next to it, so a
single bit decides.
"""

from collections.abc import Callable
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from devices import deal, even, joined, mesh_of
from oracles import RUN_TIME_ERROR

from jztree.config import CatalogueConfig, FofConfig
from jztree.data import ParticleData, Pos, squeeze_catalogue
from jztree.fof import dbscan, fof_and_catalogue, fof_labels
from jztree.knn import knn
from jztree.radius import count_within, kernel_sums, nearest_within, neighbours_within, pair_counts, pairs_within

pytestmark = pytest.mark.emulated

# The last are subnormal as float32.
SPACINGS = [2.0**-60, 2.0**-75, 2.0**-100, 2.0**-120, 2.0**-130, 2.0**-140]
SIDE = 3


@pytest.fixture(params=SPACINGS, ids=lambda spacing: f"2^{int(np.log2(spacing))}")
def spacing(request: pytest.FixtureRequest) -> float:
    skip_if_emulated_and_subnormal(request.param)
    return float(request.param)


def skip_if_emulated_and_subnormal(spacing: float) -> None:
    if spacing < np.finfo(np.float32).tiny:
        gpus.skip_where_subnormal_numbers_vanish()


def lattice(spacing: float) -> np.ndarray:
    """Return nine places in two dimensions, with 12 pairs at the spacing."""
    axes = np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij")
    return (np.stack(axes, axis=-1).reshape(-1, 2) * spacing).astype(np.float32)


# The number of neighbours at the spacing, summed over the nine, and the number of places, which are alone otherwise.
PAIRS, PLACES = 24, SIDE * SIDE


def nearest(pos: Any, radius: Any) -> int:
    result = nearest_within.jit(pos, radius, 7)
    assert int((np.asarray(result.index) >= 0).sum()) == int(np.sum(result.count))
    return int(np.sum(result.count)) - PLACES


def in_a_bin_along(pos: Any, radius: Any) -> int:
    """Return the number of pairs if the bin holds those along the line of sight and at right angles to it, or none."""
    both = [
        int(np.asarray(pair_counts(pos, [0, radius], mode="rp_pi", edges_b=[0, radius], los=los).count)[0, 0])
        for los in (0, 1)
    ]
    assert both[0] == both[1]
    return {0: 0, PAIRS + 16: PAIRS}[both[0]]


def linked(pos: Any, radius: Any) -> int:
    """Return the number of pairs if all are linked or none are."""
    label = np.asarray(fof_labels.jit(pos, radius)[1])
    return {1: PAIRS, PLACES: 0}[len(np.unique(label))]


def clustered(pos: Any, radius: Any) -> int:
    cluster = np.asarray(dbscan.jit(pos, radius, min_samples=2)[0])
    assert len(np.unique(cluster)) == 1
    return PAIRS if cluster[0] == 0 else 0


CALLS: dict[str, Callable[[Any, Any], int]] = {
    "counted": lambda pos, radius: int(np.sum(count_within(pos, radius))) - PLACES,
    "counted_for_each": lambda pos, radius: int(np.sum(count_within.jit(pos, np.full(PLACES, radius)))) - PLACES,
    "counted_in_other_code": lambda pos, radius: int(jax.jit(lambda x: count_within(x, radius).sum())(pos)) - PLACES,
    "listed": lambda pos, radius: int(neighbours_within.jit(pos, radius).splits[-1]) - PLACES,
    "listed_as_pairs": lambda pos, radius: int(pairs_within.jit(pos, radius, full=True).num),
    "listed_for_each": lambda pos, radius: int(pairs_within(pos, np.full(PLACES, radius), full=True).num),
    "nearest": nearest,
    "nearest_for_each": lambda pos, radius: (
        int((np.asarray(knn(pos, 7, max_radius=np.full(PLACES, radius))[1]) >= 0).sum()) - PLACES
    ),
    "in_a_bin": lambda pos, radius: int(np.asarray(pair_counts.jit(pos, [0.0, radius]).count)[0]),
    "in_a_bin_along": in_a_bin_along,
    "linked": linked,
    "clustered": clustered,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_lengths_one_bit_apart_are_distinguished(call: Callable[[Any, Any], int], spacing: float) -> None:
    pos = lattice(spacing)
    assert call(pos, np.nextafter(spacing, 0)) == 0
    assert call(pos, spacing) == PAIRS
    assert call(pos, np.nextafter(spacing, 1)) == PAIRS


def test_lengths_one_bit_apart_are_distinguished_with_64_bit_types(x64: None, spacing: float) -> None:
    pos = lattice(spacing).astype(np.float64)
    for name, call in CALLS.items():
        assert call(pos, np.nextafter(spacing, 0)) == 0, name
        assert call(pos, spacing) == PAIRS, name


@pytest.mark.long
@pytest.mark.parametrize("spacing", [2.0**-100, 2.0**-140], ids=str)
def test_lengths_one_bit_apart_are_distinguished_over_devices(spacing: float) -> None:
    skip_if_emulated_and_subnormal(spacing)
    counts, mesh = even(PLACES, 2), mesh_of(2)
    part = deal(lattice(spacing), counts, 5)

    def over_devices(function: Any, *args: Any, **options: Any) -> Any:
        return function.smap(mesh, jit=True)(part, *args, **options)

    for length, expected in ((np.nextafter(spacing, 0), 0), (spacing, PAIRS)):
        for radius in (length, np.full((2, 5), length)):
            assert joined(over_devices(count_within, radius), counts).sum() - PLACES == expected
            neighbours = joined(over_devices(knn, 7, max_radius=radius)[1], counts)
            assert (neighbours >= 0).sum() - PLACES == expected
        partz, label = over_devices(fof_labels, length)
        label = joined(label, partz.num)
        assert len(np.unique(label)) == (1 if expected else PLACES)
        cluster = joined(over_devices(dbscan, length, min_samples=2)[0], counts)
        assert (cluster == (0 if expected else -1)).all()
        assert int(np.sum(over_devices(pairs_within, length, full=True).num)) == expected
        assert int(np.asarray(over_devices(pair_counts, [0, length]).count)[0]) == expected


@pytest.mark.parametrize("box", [1e145, 1e300, [0.0, 2e144 * 2], np.finfo(np.float64).max], ids=str)
@pytest.mark.parametrize("traced", [False, True], ids=["known", "traced"])
def test_box_longer_than_the_largest_coordinate_raises(x64: None, box: Any, traced: bool) -> None:
    gpus.skip_where_kernels_cannot_raise()
    pos = jnp.asarray(lattice(1.0), jnp.float64)
    call = jax.jit(lambda box: knn(pos, 3, boxsize=box)) if traced else lambda box: knn(pos, 3, boxsize=box)
    with pytest.raises(RUN_TIME_ERROR, match=r"boxsize is .*; lengths must be at most 3\.1"):
        jax.block_until_ready(call(jnp.asarray(box)))


@pytest.mark.parametrize("unit", [2.0**480, 2.0**-480], ids=["2^480", "2^-480"])
def test_results_scale_with_the_longest_box(x64: None, unit: float) -> None:
    pos = np.random.default_rng(4).random((300, 3))
    expected, index = knn(pos, 4, boxsize=1.0)
    radii, rows = knn(pos * unit, 4, boxsize=unit)
    np.testing.assert_array_equal(np.asarray(radii), np.asarray(expected) * unit)
    np.testing.assert_array_equal(rows, index)
    for label in (lambda x: fof_labels(pos * x, 0.1 * x, x)[1], lambda x: count_within(pos * x, 0.1 * x, boxsize=x)):
        np.testing.assert_array_equal(label(unit), label(1.0))


@pytest.mark.parametrize("spacing", [2.0**-60, 2.0**-100, 2.0**-120], ids=str)
def test_box_lengths_one_bit_apart_are_distinguished(spacing: float) -> None:
    """Two particles are three spacings apart, and across the face by the excess of the box length over that."""
    pos = np.array([[0.0], [3 * spacing]], np.float32)
    for last, neighbours in ((0, True), (1, False)):
        box = 4 * spacing * (1 + last * 2.0**-52)
        assert count_within(pos, spacing, boxsize=box).tolist() == [1 + neighbours] * 2
        assert count_within.jit(pos, spacing, boxsize=[box]).tolist() == [1 + neighbours] * 2
        assert len(np.unique(fof_labels.jit(pos, spacing, box)[1])) == 2 - neighbours
        assert int(pairs_within.jit(pos, spacing, boxsize=box).num) == neighbours
        assert int(np.asarray(pair_counts(pos, [0, spacing], boxsize=box).count)[0]) == 2 * neighbours
        # The distance across the face is the same, rounded to float32.
        assert np.asarray(knn(pos, 2, box)[0])[:, 1].tolist() == [np.float32(box - 3 * spacing)] * 2


@pytest.mark.parametrize("spacing", [2.0**-60, 2.0**-100, 2.0**-120], ids=str)
def test_smoothing_lengths_one_bit_apart_are_distinguished(spacing: float) -> None:
    """The top hat ends there, and its integral is 1, so sums are numbers divided by lengths."""
    pos = (np.arange(5)[:, None] * spacing).astype(np.float32)
    for h, numbers in ((np.nextafter(spacing, 0), [1, 1, 1, 1, 1]), (spacing, [2, 3, 3, 3, 2])):
        for given in (h, np.full(5, h)):
            sums = np.asarray(kernel_sums.jit(pos, given, kernel="top_hat")) * 2 * spacing
            np.testing.assert_allclose(sums, numbers, rtol=1e-6)


@pytest.mark.parametrize("spacing", [2.0**-60, 2.0**-100, 2.0**-110], ids=str)
def test_attach_within_one_bit_apart_is_distinguished(spacing: float) -> None:
    pos = np.array([[0.0], [spacing]], np.float32)
    part, gas = (ParticleData(pos=x, id=np.arange(len(x), dtype=np.int32)) for x in (pos, pos[1:] * 2))
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=1))
    for within, rows in ((np.nextafter(1, 0), [2, 1]), (1.0, [3])):
        for find in (fof_and_catalogue, fof_and_catalogue.jit):
            cata = squeeze_catalogue(find(part, spacing, None, cfg, attached=gas, attach_within=within)[1])
            assert np.asarray(cata.count).tolist() == rows


@pytest.mark.parametrize("spacing", [2.0**-100, 2.0**-130, 2.0**-140], ids=str)
def test_subnormal_traced_lengths_are_not_flushed(spacing: float) -> None:
    """XLA flushes them to 0, but kernels do not."""
    skip_if_emulated_and_subnormal(spacing)
    pos = lattice(spacing)
    minimum = np.float32(spacing)
    for length, expected in ((np.nextafter(minimum, np.float32(0)), 0), (minimum, PAIRS)):
        assert int(np.sum(jax.jit(count_within)(pos, length))) - PLACES == expected
        label = jax.jit(lambda pos, length: fof_labels(pos, length)[1])(pos, length)
        assert len(np.unique(label)) == (1 if expected else PLACES)


@pytest.mark.parametrize(
    ("find", "length", "words"),
    [
        (count_within, -1e-40, "radius is negative or NaN"),
        (lambda pos, radii: count_within(pos, radii=radii), [2e-40, 1e-40], "the radii of a query do not ascend"),
        (lambda pos, limit: knn(pos, 2, max_radius=limit), -1e-40, "max_radius is negative or NaN"),
        (
            lambda pos, edges: pair_counts(pos, edges).count,
            [-1e-40, 1.0],
            "edges must be strictly ascending and at least 0",
        ),
        (lambda pos, edges: pair_counts(pos, edges).count, [0.0, 2e-40, 1e-40], "edges must be strictly ascending"),
    ],
    ids=["radius", "radii", "max_radius", "first edge", "edges"],
)
def test_invalid_subnormal_traced_lengths_raise(find: Any, length: Any, words: str) -> None:
    """XLA flushes them to 0, and so would treat them as not negative, and as equal."""
    pos = np.random.default_rng(3).random((40, 3)).astype(np.float32)
    with pytest.raises(RUN_TIME_ERROR, match=words):
        jax.block_until_ready(jax.jit(find)(pos, jnp.asarray(length, jnp.float32)))


def test_subnormal_traced_edges_are_not_flushed() -> None:
    pos = lattice(1.0)
    counted = jax.jit(pair_counts)(pos, jnp.asarray([0, 1e-40, 2e-40, 1], jnp.float32))
    assert np.asarray(counted.count).tolist() == [0, 0, PAIRS]


@pytest.mark.long
def test_sums_of_weights_are_accurate_in_every_unit() -> None:
    random = np.random.default_rng(4)
    pos, weight = random.random((60, 2)).astype(np.float32), random.random(60)
    wide = pos.astype(np.float64)
    separation = np.sqrt(((wide[:, None] - wide[None]) ** 2).sum(axis=-1))
    for unit in (1.0, 2.0**-40, 2.0**-60):
        own = (weight * unit).astype(np.float32)
        is_near = (separation <= 0.3) & (separation > 0)
        expected = (is_near * np.multiply.outer(own.astype(np.float64), own.astype(np.float64))).sum()
        result = pair_counts(pos, [0, 0.3], weights=own).weight
        np.testing.assert_allclose(np.asarray(result), [expected], rtol=1e-14)
        part = deal(pos, even(60, 3), 20)
        result = pair_counts.smap(mesh_of(3), jit=True)(part, [0, 0.3], weights=own.reshape(3, 20)).weight
        np.testing.assert_allclose(np.asarray(result), [expected], rtol=2.0**-44)


def test_derivatives_in_tiny_boxes() -> None:
    """Test derivatives with respect to a traced box, and to positions in a box that is not traced."""
    spacing = 2.0**-90
    pos = np.array([[0.0], [3 * spacing]], np.float32)
    box = np.float32(4 * spacing)

    def across(pos: jax.Array, box: Any) -> jax.Array:
        return knn(Pos(pos=pos), 2, box, result="drad")[0, 1]

    assert float(jax.jit(jax.grad(across, argnums=1))(jnp.asarray(pos), box)) == 1
    for side in (box, float(box), 4 * spacing * (1 + 2.0**-52)):
        by_pos = jax.jit(lambda pos, side=side: jax.grad(across)(pos, side))(jnp.asarray(pos))
        assert by_pos.tolist() == [[1], [-1]]


@pytest.mark.parametrize("power", [0, -120, -124])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_boxes_between_float32_numbers(power: int, share: float) -> None:
    """Two particles are nearer to each other across the face than the spacing of float32."""
    last = np.float32(np.ldexp(1 - 2.0**-23, power))
    gap = float(np.ldexp(share, power - 25))
    pos, box = np.array([[0], [last]], np.float32), float(last) + gap
    for part, result in ((0.5, 1), (0.99, 1), (1.01, 2)):
        assert count_within(pos, part * gap, boxsize=box).tolist() == [result] * 2
        assert (np.asarray(knn(pos, 2, box, max_radius=part * gap)[1]) >= 0).sum() == 2 * result


def test_max_radius_for_wrapped_positions_that_lose_precision() -> None:
    """The last is wrapped to where float32 has steps of 65,536, so its neighbours are searched in float64."""
    skip_if_emulated_and_subnormal(1e-44)
    pos = np.array([[0, 1e-44, 1e-45], [0, 0, 1e-45], [-1e-45, 1e-45, 1e-44]], np.float32)
    for radius in (6e-39, 1e-10, [5e11, 6e-39, 6e-39]):
        assert np.sort(np.asarray(knn(pos, 3, 1e12, max_radius=radius)[1])).tolist() == [[0, 1, 2]] * 3
