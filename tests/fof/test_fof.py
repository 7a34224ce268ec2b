"""Friends-of-friends labels compared with connected components, under JAX transformations, and `fof_is_superset`."""

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
from jztree.config import FofConfig, TreeConfig
from jztree.fof import fof_and_catalogue, fof_is_superset, fof_labels

pytestmark = [pytest.mark.emulated, pytest.mark.watched]

N = 900
SAMPLES = {"uniform": oracles.uniform, "clustered": oracles.clustered}


def input_labels(pos: Any, rlink: Any, box: Any = 0.0, **options: Any) -> np.ndarray:
    """Return labels in input order, compiled without `.jit`. Check that they are the smallest rows of their groups."""
    label = np.asarray(fof_labels(pos, rlink, box, output_order="input", **options)[1])
    np.testing.assert_array_equal(label, oracles.smallest_members(label))
    return label


def assert_groups(pos: np.ndarray, rlink: float, box: Any = None) -> None:
    """Compare both orders of output with the connected components of the pairs."""
    expected = oracles.smallest_members(oracles.components(pos, rlink, box))
    np.testing.assert_array_equal(input_labels(jnp.asarray(pos), rlink, box), expected)
    posz, label = map(np.asarray, fof_labels(jnp.asarray(pos), rlink, box))
    order = np.asarray(tree.zsort(jnp.asarray(pos), boxsize=box)[1])
    np.testing.assert_array_equal(posz, pos[order])
    np.testing.assert_array_equal(label, oracles.smallest_members(expected[order]))
    np.testing.assert_array_equal(label[label], label)


# Exactness


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("box", ["open", "periodic", "mixed"])
@pytest.mark.parametrize("dims", range(1, 9))
def test_equals_connected_components(dims: int, box: str, sample: str, dtype: Any) -> None:
    pos = SAMPLES[sample](N, dims, dtype)
    separation = N ** (-1 / dims)
    for factor in (0.02, 0.2, 0.7, 1.0):
        assert_groups(pos, factor * separation, oracles.box_lengths(box, dims))


@pytest.mark.aarch64
@pytest.mark.core
@pytest.mark.parametrize("n", [1, 2, 3, 23, 24, 25, 48, 49, 200])
@pytest.mark.parametrize("box", ["open", "periodic"])
def test_any_number_of_particles(n: int, box: str, dtype: Any) -> None:
    assert_groups(oracles.uniform(n, 3, dtype), 0.5 * n ** (-1 / 3), oracles.box_lengths(box, 3))


def test_no_particles() -> None:
    _, label = fof_labels(jnp.zeros((0, 3)), 0.1)
    assert label.shape == (0,)
    _, cata = fof_and_catalogue(jnp.zeros((0, 3)), 0.1)
    assert int(cata.ngroups) == 0


@pytest.mark.core
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
def test_labels_do_not_depend_on_the_shape_of_the_tree(rlink: float, leaf_size: int, fan_out: int) -> None:
    pos = jnp.asarray(oracles.clustered(3000, 3))
    cfg = FofConfig(tree=TreeConfig(leaf_size=leaf_size, fan_out=fan_out))
    np.testing.assert_array_equal(input_labels(pos, rlink, 1.0, cfg=cfg), input_labels(pos, rlink, 1.0))


# Padding, th, traced values


@pytest.mark.parametrize("num", [0, 1, 24, 300, 400])
@pytest.mark.parametrize("filler", [0.0, 0.5, np.nan], ids=str)
def test_padding_rows_are_separate_groups(num: int, filler: float) -> None:
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
    ours, reference = fof_and_catalogue(partz, 0.02, 1.0, th=th), fof_and_catalogue(part, 0.02, 1.0)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(reference), strict=True):
        np.testing.assert_array_equal(a, b)


def test_arrays_and_user_particle_classes() -> None:
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
def test_property_grid_points_equal_connected_components(grid: np.ndarray, num: int, rlink: float, box: float) -> None:
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
def test_property_floats_equal_connected_components(pos: np.ndarray, rlink: float, box: float) -> None:
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


# fof_is_superset


def test_fof_is_superset_of_small_examples() -> None:
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


def test_fof_is_superset_equals_brute_force() -> None:
    random = np.random.default_rng(4)
    for n in (0, 1, 2, 30):
        for _ in range(40):
            sup, sub = random.integers(-3, 3, n) * 10**6, random.integers(-5, 5, n)
            mask = random.random(n) < 0.5
            for looked in (None, mask):
                sample = np.ones(n, bool) if looked is None else looked
                expected = all(len(set(sup[sample & (sub == label)])) == 1 for label in set(sub[sample]))
                assert bool(fof_is_superset(sup, sub, looked)) == expected


def test_fof_is_superset_of_mismatched_labels_raises() -> None:
    with pytest.raises(TypeError, match="igroup_sup and igroup must be integers, not float32"):
        fof_is_superset(jnp.arange(3), jnp.arange(3.0))
    with pytest.raises(ValueError, match=r"\(3,\).*\(4,\)"):
        fof_is_superset(jnp.arange(3), jnp.arange(4))
    with pytest.raises(ValueError, match=r"\(2,\)"):
        fof_is_superset(jnp.arange(3), jnp.arange(3), mask=jnp.ones(2, bool))


@pytest.mark.parametrize("exponent", [-700, -600, -400, 0, 300])
@pytest.mark.parametrize("box", [0.0, 16.0], ids=["open", "periodic"])
def test_float64_pairs_at_the_linking_length_in_any_unit(exponent: int, box: float, x64: None) -> None:
    """Their distance is 5 units. Squares may leave the range of float64 although the numbers do not."""
    unit = 2.0**exponent
    pos = np.array([[1.0, 1.0], [4.0, 5.0]]) * unit
    for rlink, expected in ((np.nextafter(5 * unit, 0), [0, 1]), (5 * unit, [0, 0])):
        label = fof_labels(jnp.asarray(pos), float(rlink), box * unit, output_order="input")[1]
        np.testing.assert_array_equal(label, expected)
