"""Friends-of-friends groups against connected components, and the catalogue against slow sums."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jztree import data, tree
from jztree.config import CatalogueConfig, FofConfig, TreeConfig
from jztree.fof import fof_and_catalogue, fof_is_superset, fof_labels

N = 900
SAMPLES = {"uniform": oracles.uniform, "clustered": oracles.clustered}


def input_labels(pos: Any, rlink: Any, box: Any = 0.0, **options: Any) -> np.ndarray:
    """Labels in input order, compiled without `.jit`; checked to be the smallest rows of their groups."""
    label = np.asarray(fof_labels(pos, rlink, box, output_order="input", **options)[1])
    np.testing.assert_array_equal(label, oracles.smallest_members(label))
    return label


def assert_groups(pos: np.ndarray, rlink: float, box: Any = None) -> None:
    """Compare both orders of output with the connected components of all pairs."""
    expected = oracles.smallest_members(oracles.components(pos, rlink, box))
    np.testing.assert_array_equal(input_labels(jnp.asarray(pos), rlink, box), expected)
    posz, label = fof_labels(jnp.asarray(pos), rlink, box)
    order = np.asarray(tree.zsort(jnp.asarray(pos), boxsize=box)[1])
    np.testing.assert_array_equal(posz, pos[order])
    np.testing.assert_array_equal(label, oracles.smallest_members(expected[order]))
    np.testing.assert_array_equal(label[label], label)


# Exactness


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("box", ["open", "periodic", "mixed"])
@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_equals_connected_components(dims: int, box: str, sample: str, dtype: Any) -> None:
    pos = SAMPLES[sample](N, dims, dtype)
    separation = N ** (-1 / dims)
    for factor in (0.02, 0.2, 0.7, 1.0):
        assert_groups(pos, factor * separation, oracles.box_lengths(box, dims))


@pytest.mark.parametrize("n", [1, 2, 3, 23, 24, 25, 48, 49, 200])
@pytest.mark.parametrize("box", ["open", "periodic"])
def test_any_number_of_particles(n: int, box: str, dtype: Any) -> None:
    assert_groups(oracles.uniform(n, 3, dtype), 0.5 * n ** (-1 / 3), oracles.box_lengths(box, 3))


def test_no_particles() -> None:
    _, label = fof_labels(jnp.zeros((0, 3)), 0.1)
    assert label.shape == (0,)
    _, cata = fof_and_catalogue(jnp.zeros((0, 3)), 0.1)
    assert int(cata.ngroups) == 0


@pytest.mark.parametrize("factor", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("sample", SAMPLES)
def test_many_particles_equal_scipy(sample: str, factor: float) -> None:
    pos = SAMPLES[sample](12_000, 3)
    rlink = factor * 12_000 ** (-1 / 3)
    expected = oracles.smallest_members(oracles.components_of_many(pos, rlink, 1.0))
    np.testing.assert_array_equal(input_labels(jnp.asarray(pos), rlink, 1.0), expected)


@pytest.mark.parametrize("leaf_size", [2, 5, 24, 2000])
@pytest.mark.parametrize("fan_out", [2, 8])
@pytest.mark.parametrize("rlink", [0.001, 0.02, 0.3])
def test_answer_does_not_depend_on_the_shape_of_the_tree(rlink: float, leaf_size: int, fan_out: int) -> None:
    pos = jnp.asarray(oracles.clustered(3000, 3))
    cfg = FofConfig(tree=TreeConfig(leaf_size=leaf_size, fan_out=fan_out))
    np.testing.assert_array_equal(input_labels(pos, rlink, 1.0, cfg=cfg), input_labels(pos, rlink, 1.0))


# Hard input


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
    """Some pairs of a lattice with a spacing that has no binary form are linked and some are not: as float64 has it."""
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


def test_pairs_within_rounding_of_the_linking_length_are_decided_in_float64() -> None:
    """Pairs at distances within a few float32 steps of the linking length, each pair far from all others."""
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
    """0.1 in float32 is above 0.1 in float64: the pair below is between the two."""
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
    apart = 0.1 - 0.09375
    assert labels(jnp.asarray(pos), apart, 0.1, output_order="input")[1].tolist() == [0, 0]
    assert labels(jnp.asarray(pos), np.nextafter(apart, 0), 0.1, output_order="input")[1].tolist() == [0, 1]


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
    """In units of the outlier's distance the squares are at the lower end of float32."""
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
def test_float64_scaling_beyond_the_range_of_float32(exponent: int, box: float, x64: None) -> None:
    """Lengths pass through JAX as words of float32; the range and the digits of float64 must survive that."""
    pos, scale = oracles.lattice(9, 3, np.float64, 0.1), 2.0**exponent
    scaled = input_labels(jnp.asarray(pos * scale), 0.1 * scale, box * scale)
    np.testing.assert_array_equal(scaled, input_labels(jnp.asarray(pos), 0.1, box))


# Padding, th, traced values


@pytest.mark.parametrize("num", [0, 1, 24, 300, 400])
@pytest.mark.parametrize("filler", [0.0, 0.5, np.nan], ids=str)
def test_rows_beyond_num_are_groups_of_their_own(num: int, filler: float) -> None:
    pos = np.full((400, 3), filler, np.float32)
    pos[:num] = oracles.uniform(num, 3)
    part = data.Pos(pos=jnp.asarray(pos), num=num)
    expected = np.arange(400)
    if num:
        expected[:num] = oracles.smallest_members(oracles.components(pos[:num], 0.1, 1.0))
    np.testing.assert_array_equal(input_labels(part, 0.1, 1.0), expected)
    partz, label = fof_labels(part, 0.1, 1.0)
    np.testing.assert_array_equal(label, oracles.smallest_members(label))
    np.testing.assert_array_equal(label[num:], np.arange(num, 400))
    assert int(partz.num) == num


@pytest.mark.parametrize("num", [None, 700], ids=["full", "padded"])
def test_th_gives_the_same_answer(num: int | None) -> None:
    part = data.Pos(pos=jnp.asarray(oracles.clustered(N, 3)), num=num)
    partz, th = tree.zsort_and_tree(part, boxsize=1.0)
    usual = fof_labels(part, 0.02, 1.0)[1]
    for order in ("z", "input"):
        again, label = fof_labels(partz, 0.02, 1.0, th=th, output_order=order)
        np.testing.assert_array_equal(label, usual)
        np.testing.assert_array_equal(again.pos, partz.pos)
    ours, theirs = fof_and_catalogue(partz, 0.02, 1.0, th=th), fof_and_catalogue(part, 0.02, 1.0)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_arrays_and_own_particle_classes() -> None:
    pos = jnp.asarray(oracles.uniform(200, 2))
    part = data.ParticleData(pos=pos, id=jnp.arange(200), mass=2.0)
    partz, label = fof_labels(part, 0.05)
    posz, same = fof_labels(pos, 0.05)
    np.testing.assert_array_equal(label, same)
    np.testing.assert_array_equal(partz.pos, posz)
    np.testing.assert_array_equal(pos[partz.id], posz)
    assert fof_labels(part, 0.05, output_order="input")[0] is part


def test_values_may_be_traced() -> None:
    pos = jnp.asarray(oracles.uniform(N, 3))

    @jax.jit
    def labels(rlink: jax.Array, box: jax.Array, num: jax.Array) -> jax.Array:
        return fof_labels(data.Pos(pos=pos, num=num), rlink, box, output_order="input")[1]

    for rlink, box, num in ((0.05, 1.0, N), (0.1, 0.0, 500), (0.25, 1.5, 100)):
        expected = input_labels(data.Pos(pos=pos, num=num), float(np.float32(rlink)), box)
        np.testing.assert_array_equal(labels(rlink, box, num), expected)


def test_works_inside_jit_vmap_and_scan() -> None:
    batch = jnp.stack([jnp.asarray(oracles.uniform(200, 3, seed=s)) for s in range(3)])
    rlinks = jnp.array([0.05, 0.1, 0.2])
    find = lambda pos, rlink: fof_labels(pos, rlink, 1.0)[1]  # noqa: E731
    single = jnp.stack([find(pos, rlink) for pos, rlink in zip(batch, rlinks, strict=True)])
    np.testing.assert_array_equal(jax.vmap(find)(batch, rlinks), single)
    np.testing.assert_array_equal(jax.jit(jax.vmap(find))(batch, rlinks), single)
    scanned = jax.lax.scan(lambda carry, x: (carry, find(*x)), 0, (batch, rlinks))[1]
    np.testing.assert_array_equal(scanned, single)


def test_jit_gives_the_same_bits() -> None:
    part = data.ParticleData(pos=jnp.asarray(oracles.clustered(N, 3)), mass=3.0, vel=jnp.ones((N, 3)))
    for order in ("z", "input"):
        plain, compiled = (f(part, 0.02, 1.0, output_order=order) for f in (fof_labels, fof_labels.jit))
        np.testing.assert_array_equal(plain[1], compiled[1])
        np.testing.assert_array_equal(plain[0].pos, compiled[0].pos)
    plain, compiled = (f(part, 0.02, 1.0) for f in (fof_and_catalogue, fof_and_catalogue.jit))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(compiled), strict=True):
        np.testing.assert_array_equal(a, b)


def test_new_values_do_not_compile_again(count_compilations: Any) -> None:
    pos = jnp.asarray(oracles.uniform(211, 3))
    cfg = FofConfig()

    def call(rlink: Any, box: Any, num: int) -> None:
        fof_labels.jit(data.Pos(pos=pos, num=num), rlink, box, cfg=cfg)
        fof_and_catalogue.jit(data.Pos(pos=pos, num=num), rlink, box, cfg=cfg)

    call(0.1, 1.0, 211)
    with count_compilations() as compiled:
        for rlink, box, num in (
            (0.2, 1.0, 100),
            (0.1, 0.9, 211),
            (0, 1, 5),
            (0.1, [1.0, 0.0, 2.0], 211),
            (0.3, None, 7),
        ):
            call(rlink, box, num)
    assert compiled == []


def test_editing_a_configuration_after_the_call_changes_nothing() -> None:
    part, cfg = data.Pos(pos=jnp.asarray(oracles.clustered(N, 3))), FofConfig()
    before = fof_and_catalogue.jit(part, 0.02, 1.0, cfg=cfg)[1]
    cfg.catalogue.npart_min = 3
    edited = fof_and_catalogue.jit(part, 0.02, 1.0, cfg=cfg)[1]
    again = fof_and_catalogue.jit(part, 0.02, 1.0, cfg=FofConfig())[1]
    np.testing.assert_array_equal(before.count, again.count)
    assert edited.count.shape == (N // 3,)


# Properties

GRID_POINTS = hnp.arrays(np.int8, (40, 2), elements=st.integers(0, 7))
LENGTHS = st.sampled_from([0.0, 0.125, 0.25, 0.176776695296636, 0.2795084971874737, 0.5])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(grid=GRID_POINTS, num=st.integers(1, 40), rlink=LENGTHS, box=st.sampled_from([0.0, 1.0, 1.25]))
def test_property_any_grid_points_equal_connected_components(
    grid: np.ndarray, num: int, rlink: float, box: float
) -> None:
    pos = (grid / 8).astype(np.float32)
    label = fof_labels.jit(data.Pos(pos=jnp.asarray(pos), num=num), rlink, box, output_order="input")[1]
    expected = oracles.smallest_members(oracles.components(pos[:num], rlink, box))
    np.testing.assert_array_equal(label, [*expected, *range(num, 40)])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    pos=hnp.arrays(np.float32, (30, 3), elements=st.floats(-2, 2, width=32, allow_subnormal=False)),
    rlink=st.floats(0, 0.5),
    box=st.sampled_from([0.0, 1.0, 1.1]),
)
def test_property_any_floats_equal_connected_components(pos: np.ndarray, rlink: float, box: float) -> None:
    label = fof_labels.jit(jnp.asarray(pos), rlink, box, output_order="input")[1]
    np.testing.assert_array_equal(label, oracles.smallest_members(oracles.components(pos, rlink, box)))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(grid=GRID_POINTS, seed=st.integers(0, 1000), shift=st.integers(-4, 4), rlink=LENGTHS)
def test_property_permutation_translation_scaling_and_duplicates(
    grid: np.ndarray, seed: int, shift: int, rlink: float
) -> None:
    pos = (grid / 8).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(pos))
    label = np.asarray(fof_labels.jit(jnp.asarray(pos), rlink, 1.0, output_order="input")[1])
    moved = fof_labels.jit(jnp.asarray(4 * (pos[order] + np.float32(shift))), 4 * rlink, 4.0, output_order="input")[1]
    np.testing.assert_array_equal(moved, oracles.smallest_members(label[order]))
    doubled = fof_labels.jit(jnp.asarray(np.concatenate([pos, pos])), rlink, 1.0, output_order="input")[1]
    np.testing.assert_array_equal(doubled, np.concatenate([label, label]))


# The catalogue


def moving_particles(n: int, dims: int, dtype: Any, spread: float = 0.004) -> data.ParticleData:
    """Compact clumps, two of them across the faces of the unit box, and a tenth of the particles anywhere."""
    random = np.random.default_rng(41)
    centre = random.random((9, dims))
    centre[0], centre[1] = 0.0, 0.999
    pos = centre[random.integers(0, 9, n)] + spread * random.standard_normal((n, dims))
    pos[::10] = random.random((len(pos[::10]), dims))
    return data.ParticleData(
        pos=jnp.asarray(oracles.inside_box((pos % 1.0).astype(dtype))),
        mass=jnp.asarray(random.lognormal(size=n), dtype),
        vel=jnp.asarray(100 + 30 * random.standard_normal((n, dims)), dtype),
        id=jnp.arange(n),
    )


def assert_catalogue(part: data.ParticleData, rlink: float, box: Any, npart_min: int, num: int) -> int:
    """Compare `fof_and_catalogue` with slow sums in float64; returns the number of groups."""
    n, dims = part.pos.shape
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=npart_min))
    grouped, cata = fof_and_catalogue(part, rlink, box, cfg)
    partz, label = fof_labels(part, rlink, box)
    zpos, label = np.asarray(partz.pos)[:num], np.asarray(label)[:num]
    mass = np.ones(num) if part.mass is None else np.broadcast_to(np.asarray(partz.mass), (n,))[:num]
    vel = np.zeros((num, dims)) if part.vel is None else np.asarray(partz.vel)[:num]
    slow = oracles.slow_catalogue(zpos, mass, vel, label, box, npart_min)
    np.testing.assert_array_equal(grouped.id[:num], partz.id[:num][slow.order])
    np.testing.assert_array_equal(grouped.pos[:num], zpos[slow.order])
    groups = int(cata.ngroups)
    assert groups == len(slow.count)
    np.testing.assert_array_equal(cata.count[:groups], slow.count)
    np.testing.assert_array_equal(cata.offset[:groups], slow.offset)
    rtol = max(1e-12, 4 * float(np.finfo(part.pos.dtype).eps))
    difference = np.asarray(cata.com_pos[:groups], np.float64) - slow.com_pos
    length = oracles.full_box(box, dims)
    difference -= length * np.rint(difference / np.where(length > 0, length, 1))
    np.testing.assert_allclose(difference, 0, atol=rtol)
    assert ((cata.com_pos[:groups] < np.where(length > 0, length, np.inf)) & (cata.com_pos[:groups] >= 0)).all()
    checked = {"com_inertia_radius", "max_radius"}
    checked |= {"mass"} if part.mass is not None else set()
    checked |= {"com_vel", "vel_dispersion"} if part.vel is not None else set()
    for name in checked:
        np.testing.assert_allclose(
            getattr(cata, name)[:groups], getattr(slow, name), rtol=rtol, atol=1e-14, err_msg=name
        )
    for name in checked | {"count", "offset", "com_pos"}:
        assert getattr(cata, name).shape[0] == n // npart_min
        np.testing.assert_array_equal(getattr(cata, name)[groups:], 0, err_msg=name)
    assert (cata.mass is None) == (part.mass is None)
    assert (cata.com_vel is None) == (cata.vel_dispersion is None) == (part.vel is None)
    return groups


@pytest.mark.parametrize("box", ["open", "periodic", "mixed"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_catalogue_equals_slow_sums(dims: int, box: str, dtype: Any) -> None:
    part = moving_particles(1200, dims, dtype)
    groups = assert_catalogue(part, 0.004 if dims < 3 else 0.008, oracles.box_lengths(box, dims), 10, 1200)
    assert groups >= 5


@pytest.mark.parametrize("npart_min", [1, 2, 20, 150, 1200, 1201])
def test_smallest_group_of_the_catalogue(npart_min: int) -> None:
    assert_catalogue(moving_particles(1200, 3, np.float32), 0.008, 1.0, npart_min, 1200)


@pytest.mark.parametrize("mass", ["array", "number", "none"])
@pytest.mark.parametrize("vel", [True, False], ids=["vel", "no_vel"])
def test_mass_may_be_shared_or_missing_and_velocities_too(mass: str, vel: bool, dtype: Any) -> None:
    part = moving_particles(800, 3, dtype)
    part.mass = {"array": part.mass, "number": dtype(4.1), "none": None}[mass]
    part.vel = part.vel if vel else None
    assert assert_catalogue(part, 0.008, 1.0, 5, 800) > 3


def test_mass_as_a_python_number_keeps_the_dtype_of_the_particles(x64: None) -> None:
    part = moving_particles(300, 3, np.float32)
    part.mass = 4.1
    cata = fof_and_catalogue(part, 0.008, 1.0)[1]
    assert cata.com_pos.dtype == cata.mass.dtype == np.float32


@pytest.mark.parametrize("num", [0, 3, 500])
def test_catalogue_of_padded_particles(num: int) -> None:
    part = moving_particles(800, 3, np.float32)
    part.num = num
    if num == 0:
        assert int(fof_and_catalogue(part, 0.008, 1.0)[1].ngroups) == 0
        return
    assert_catalogue(part, 0.008, 1.0, 3, num)


def test_catalogue_of_particles_outside_the_box() -> None:
    part = moving_particles(800, 3, np.float32)
    shift = np.random.default_rng(42).integers(-1, 2, (800, 3))
    inside = fof_and_catalogue(part, 0.008, 1.0)[1]
    part.pos = part.pos + jnp.asarray(shift, jnp.float32)
    outside = fof_and_catalogue(part, 0.008, 1.0)[1]
    np.testing.assert_array_equal(np.sort(outside.count), np.sort(inside.count))
    order, other = np.argsort(np.asarray(outside.mass)), np.argsort(np.asarray(inside.mass))
    difference = outside.com_pos[order] - inside.com_pos[other]
    np.testing.assert_allclose(difference - np.rint(difference), 0, atol=1e-6)


def test_centre_just_below_the_box_length_is_inside() -> None:
    pos = np.repeat(np.array([[1 - 2**-24, 0.5]], np.float32), 40, axis=0)
    pos[:20, 0] = 0.0
    cata = fof_and_catalogue(jnp.asarray(pos), 0.01, 1.0)[1]
    centre = float(cata.com_pos[0, 0])
    assert 0 <= centre < 1
    assert min(centre, 1 - centre) <= 1e-7


def test_velocity_sums_are_in_double_precision() -> None:
    """A million equal masses of 0.1: a float32 sum would be off in the third digit."""
    n = 200_000
    part = data.ParticleData(pos=jnp.full((n, 3), 0.5), mass=jnp.full(n, 0.1), vel=jnp.full((n, 3), 1e4 + 0.1))
    cata = fof_and_catalogue(part, 0.1, 1.0)[1]
    np.testing.assert_allclose(cata.mass[0], n * float(np.float32(0.1)), rtol=1e-7)
    np.testing.assert_array_equal(cata.com_vel[0], np.full(3, np.float32(1e4 + 0.1)))
    np.testing.assert_allclose(cata.vel_dispersion[0], 0, atol=1e-7)
    np.testing.assert_array_equal(cata.com_pos[0], 0.5)


def test_massless_groups_have_a_centre() -> None:
    part = data.PosMass(pos=jnp.asarray(oracles.uniform(50, 3)), mass=jnp.zeros(50))
    cata = fof_and_catalogue(part, 5.0)[1]
    np.testing.assert_allclose(cata.com_pos[0], part.pos.mean(axis=0), rtol=1e-6)
    assert float(cata.mass[0]) == 0


def test_integer_masses_and_velocities() -> None:
    part = data.ParticleData(pos=jnp.zeros((50, 3)), mass=jnp.full(50, 2), vel=jnp.full((50, 3), 7))
    cata = fof_and_catalogue(part, 0.1)[1]
    assert float(cata.mass[0]) == 100
    np.testing.assert_array_equal(cata.com_vel[0], 7)


# fof_is_superset


def test_superset() -> None:
    fine, coarse = jnp.array([0, 0, 2, 2, 4]), jnp.array([1, 1, 1, 1, 4])
    assert bool(fof_is_superset(coarse, fine))
    assert not bool(fof_is_superset(fine, coarse))
    assert bool(fof_is_superset(fine, fine))
    assert bool(fof_is_superset(fine, coarse, mask=jnp.array([True, True, False, False, True])))
    assert not bool(fof_is_superset(fine, coarse, mask=jnp.array([True, False, True, False, True])))
    assert bool(fof_is_superset(fine, coarse, mask=jnp.zeros(5, bool)))


def test_larger_linking_length_is_a_superset() -> None:
    pos = jnp.asarray(oracles.uniform(N, 3))
    small, large = input_labels(pos, 0.05, 1.0), input_labels(pos, 0.06, 1.0)
    assert bool(fof_is_superset(large, small))
    assert not bool(fof_is_superset(small, large))
    assert bool(jax.jit(fof_is_superset)(large, small))


def test_superset_of_labels_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\(3,\).*\(4,\)"):
        fof_is_superset(jnp.arange(3), jnp.arange(4))
    with pytest.raises(ValueError, match=r"\(2,\)"):
        fof_is_superset(jnp.arange(3), jnp.arange(3), mask=jnp.ones(2, bool))


# Bad input

FINDERS = pytest.mark.parametrize(
    "find",
    [fof_labels, fof_labels.jit, fof_and_catalogue, fof_and_catalogue.jit],
    ids=["labels", "labels_jit", "cata", "cata_jit"],
)


@FINDERS
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
def test_position_that_is_not_finite_names_the_row(find: Any, bad: float) -> None:
    pos = oracles.uniform(40, 3)
    pos[31, 1] = bad
    with pytest.raises(oracles.RUN_TIME_ERROR, match="row 31 ") as error:
        jax.block_until_ready(find(jnp.asarray(pos), 0.1))
    assert oracles.one_sentence(error)


@FINDERS
@pytest.mark.parametrize("rlink", [-0.1, np.nan, np.inf, -np.inf], ids=str)
def test_bad_linking_length(find: Any, rlink: float) -> None:
    with pytest.raises(ValueError, match=f"rlink is {rlink:g}") as error:
        find(jnp.asarray(oracles.uniform(40, 3)), rlink)
    assert oracles.one_sentence(error)


@FINDERS
@pytest.mark.parametrize("rlink", [[0.1], [0.1, 0.2], "far", None, 1j], ids=str)
def test_linking_length_that_is_no_number(find: Any, rlink: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        find(jnp.asarray(oracles.uniform(40, 3)), rlink)
    assert "rlink" in str(error.value)


@FINDERS
@pytest.mark.parametrize("box", [1.0, [0.0, 1.0, 5.0]], ids=str)
def test_linking_length_above_half_the_box(find: Any, box: Any) -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    above = float(np.nextafter(0.5, 1))
    with pytest.raises(ValueError, match=r"0.5.* 1") as error:
        find(pos, above, box)
    assert oracles.one_sentence(error)
    find(pos, 0.5, box)


@pytest.mark.parametrize("rlink", [-0.1, 0.51, np.nan, np.inf], ids=str)
def test_bad_traced_linking_length(rlink: float) -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    for find in (fof_labels, fof_and_catalogue):
        traced = jax.jit(lambda length, find=find: find(pos, length, 1.0))
        with pytest.raises(oracles.RUN_TIME_ERROR, match="linking length") as error:
            jax.block_until_ready(traced(rlink))
        assert oracles.one_sentence(error)
        assert f"{rlink:g}" in str(error.value)
        jax.block_until_ready(traced(0.1))  # the same compiled function works after the error


@pytest.mark.parametrize("box", [-1.0, np.nan, np.inf, 0.15], ids=str)
def test_bad_traced_box(box: float) -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    traced = jax.jit(lambda length: fof_labels(pos, 0.1, length))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="box") as error:
        jax.block_until_ready(traced(box))
    assert oracles.one_sentence(error)
    jax.block_until_ready(traced(1.0))


@FINDERS
@pytest.mark.parametrize("box", [-1.0, np.nan, [1.0, 1.0], [1.0, -1.0, 0.0]], ids=str)
def test_bad_box(find: Any, box: Any) -> None:
    with pytest.raises(ValueError, match="boxsize") as error:
        find(jnp.asarray(oracles.uniform(40, 3)), 0.1, box)
    assert oracles.one_sentence(error)


@FINDERS
@pytest.mark.parametrize(
    ("pos", "kind", "words"),
    [
        (np.zeros((5, 3), np.int32), TypeError, "int32"),
        (np.zeros((5, 3), np.complex64), TypeError, "complex64"),
        (np.zeros(5, np.float32), ValueError, r"\(5,\)"),
        (np.zeros((2, 5, 3), np.float32), ValueError, r"\(2, 5, 3\)"),
        (np.zeros((5, 5), np.float32), ValueError, r"1 to 4.*\(5, 5\)"),
    ],
    ids=["int", "complex", "1-D", "3-D", "5 dims"],
)
def test_positions_of_the_wrong_kind(find: Any, pos: np.ndarray, kind: type[Exception], words: str) -> None:
    for part in (pos, data.Pos(pos=pos)):
        with pytest.raises(kind, match=words) as error:
            find(part, 0.1)
        assert oracles.one_sentence(error)


@FINDERS
def test_mass_and_velocities_that_do_not_fit(find: Any) -> None:
    if find in (fof_labels, fof_labels.jit):
        return
    pos = jnp.zeros((50, 3))
    with pytest.raises(ValueError, match="mass"):
        find(data.ParticleData(pos=pos, mass=jnp.ones(7)), 0.1)
    with pytest.raises(ValueError, match="velocities"):
        find(data.ParticleData(pos=pos, vel=jnp.ones((50, 2))), 0.1)


def test_unknown_output_order() -> None:
    with pytest.raises(ValueError, match="'original'"):
        fof_labels(jnp.zeros((5, 3)), 0.1, output_order="original")


@pytest.mark.parametrize("case", ["other_particles", "other_number", "other_num", "unsorted", "other_box"])
def test_th_of_something_else_never_gives_a_wrong_answer(case: str) -> None:
    pos = oracles.uniform(500, 3)
    posz, th = tree.zsort_and_tree(jnp.asarray(pos), boxsize=1.0)
    part, box = {
        "other_particles": (tree.zsort(jnp.asarray(oracles.uniform(500, 3, seed=2)))[0], 1.0),
        "other_number": (posz[:499], 1.0),
        "other_num": (data.Pos(pos=posz, num=480), 1.0),
        "unsorted": (jnp.asarray(pos), 1.0),
        "other_box": (posz, 0.4),
    }[case]
    try:
        label = jax.block_until_ready(fof_labels(part, 0.05, box, th=th)[1])
    except oracles.RUN_TIME_ERROR as error:
        refused = str(error)
    else:
        expected = oracles.smallest_members(oracles.components(np.asarray(data.get_pos(part)), 0.05, box))
        np.testing.assert_array_equal(label, expected)
        return
    assert "zsort_and_tree" in refused
