"""Friends-of-friends groups with a linking length per particle, compared with connected components."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import SETS, deal, even, joined, make, mesh_of, uneven
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

import jztree as jz
from jztree import data, tree
from jztree.config import CatalogueConfig, FofConfig, TreeConfig
from jztree.fof import fof_and_catalogue, fof_labels

pytestmark = pytest.mark.emulated

N = 700
SAMPLES = {"uniform": oracles.uniform, "clustered": oracles.clustered}


def labels(pos: Any, rlink: Any, box: Any = None, find: Any = fof_labels, **options: Any) -> np.ndarray:
    """Return labels in input order."""
    return np.asarray(find(pos, rlink, box, output_order="input", **options)[1])


def expected(pos: np.ndarray, rlink: Any, box: Any = None) -> np.ndarray:
    return oracles.smallest_members(oracles.components(pos, rlink, box))


def lengths_of(kind: str, pos: np.ndarray, mean: float) -> np.ndarray:
    """Return linking lengths around ``mean``."""
    random, n = np.random.default_rng(8), len(pos)
    if kind == "gradient":  # a factor of 10 across the box
        return np.asarray(mean * 10 ** (pos[:, 0].astype(np.float64) - 0.5))
    if kind == "random":
        return mean * 10 ** random.uniform(-2, 0.3, n)
    result = np.where(random.random(n) < 0.5, 0.0, mean / 4)  # zeros, and a few very long ones
    result[random.integers(n, size=3)] = [20 * mean, 5 * mean, 1e30]
    return np.asarray(result)


# Exactness


@pytest.mark.watched
@pytest.mark.parametrize("kind", ["gradient", "random", "few long"])
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("box", ["open", "periodic", "mixed"])
@pytest.mark.parametrize("dims", [1, 2, 4, 3])
def test_equals_connected_components(dims: int, box: str, sample: str, kind: str, dtype: Any) -> None:
    pos, sides = SAMPLES[sample](N, dims, dtype), oracles.box_lengths(box, dims)
    for factor in (0.05, 0.5, 1.2):
        rlink = lengths_of(kind, pos, factor * N ** (-1 / dims))
        np.testing.assert_array_equal(labels(jnp.asarray(pos), rlink, sides), expected(pos, rlink, sides))


@pytest.mark.core
@pytest.mark.parametrize("n", [0, 1, 2, 25, 200])
def test_any_number_of_particles(n: int, dtype: Any) -> None:
    pos = oracles.uniform(n, 3, dtype)
    rlink = lengths_of("random", pos, 0.3) if n else np.zeros(0)
    want = expected(pos, rlink) if n else np.zeros(0)
    np.testing.assert_array_equal(labels(jnp.asarray(pos), rlink, find=fof_labels.jit), want)


@pytest.mark.core
@pytest.mark.parametrize("length", [0.0, 1e-30, 0.02, 0.1, 1e30])
@pytest.mark.parametrize("sample", SAMPLES)
def test_equal_lengths_give_the_labels_of_one_length(sample: str, length: float, dtype: Any) -> None:
    pos = jnp.asarray(SAMPLES[sample](3000, 3, dtype))
    np.testing.assert_array_equal(labels(pos, np.full(3000, length), 1.0), labels(pos, length, 1.0))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("power", [-140, -100, -60, 0, 60, 100])
def test_last_bit_of_a_length_decides(power: int, x64: bool, dtype: Any) -> None:
    """On a lattice, the mean of two lengths is the spacing, or one of the next numbers."""
    if power == -140:
        gpus.skip_where_subnormal_numbers_vanish()
    random, spacing = np.random.default_rng(3), 2.0**power
    pos = oracles.lattice(5, 3, dtype, spacing)
    with jax.enable_x64(x64 or dtype == np.float64):
        for part in (0.0, 0.25, 0.5):
            long = random.random(len(pos)) < 0.5
            rlink = np.where(long, 1 + part, 1 - part) * spacing
            below = random.random(len(pos)) < 0.5
            rlink = np.where(below, np.nextafter(rlink, 0), rlink)
            want = expected(pos.astype(np.float64) / spacing, rlink / spacing)
            np.testing.assert_array_equal(labels(jnp.asarray(pos), rlink), want)


def test_many_particles_at_one_place_with_different_lengths() -> None:
    random = np.random.default_rng(4)
    pos = np.repeat(np.asarray([[0, 0, 0], [0.5, 0, 0], [0, 0.5, 0], [0.25, 0.3, 0.2]], np.float32), 300, axis=0)
    for scale in (0.0, 0.3, 0.5, 0.51, 0.6, 2.0):
        rlink = scale * random.random(len(pos)) ** 4
        np.testing.assert_array_equal(labels(jnp.asarray(pos), rlink), expected(pos, rlink))


def test_many_particles_equal_the_pairs_of_a_kd_tree() -> None:
    pos = oracles.clustered(12_000, 3).astype(np.float64)
    rlink = lengths_of("gradient", pos, 0.4 * len(pos) ** (-1 / 3))
    pairs = cKDTree(pos, boxsize=1.0).query_pairs(rlink.max(), output_type="ndarray")
    separation = pos[pairs[:, 0]] - pos[pairs[:, 1]]
    separation -= np.rint(separation)
    a, b = pairs[np.linalg.norm(separation, axis=1) <= rlink[pairs].mean(axis=1)].T
    graph = coo_array((np.ones(len(a), bool), (a, b)), (len(pos), len(pos)))
    want = oracles.smallest_members(connected_components(graph, directed=False)[1])
    with jax.enable_x64(True):
        np.testing.assert_array_equal(labels(jnp.asarray(pos), rlink, 1.0), want)


@pytest.mark.parametrize("leaf_size", [2, 24, 2000])
def test_labels_do_not_depend_on_the_shape_of_the_tree(leaf_size: int) -> None:
    pos = oracles.clustered(2000, 3)
    rlink = lengths_of("random", pos, 0.05)
    cfg = FofConfig(tree=TreeConfig(leaf_size=leaf_size, fan_out=2))
    np.testing.assert_array_equal(labels(jnp.asarray(pos), rlink, 1.0, cfg=cfg), labels(jnp.asarray(pos), rlink, 1.0))


# Forms of the input


@pytest.mark.fast
@pytest.mark.parametrize("num", [0, 1, 300])
def test_lengths_of_padding_are_ignored(num: int) -> None:
    pos = oracles.uniform(400, 3)
    rlink = lengths_of("gradient", pos, 0.1)
    want = np.r_[expected(pos[:num], rlink[:num]) if num else np.zeros(0, int), np.arange(num, 400)]
    rlink[num:] = np.resize([np.nan, -1, np.inf], 400 - num)
    part = data.Pos(pos=jnp.asarray(pos), num=num)
    for find in (fof_labels, fof_labels.jit, jax.jit(fof_labels, static_argnames="output_order")):
        np.testing.assert_array_equal(labels(part, rlink, find=find), want)


def test_lengths_move_with_the_rows_of_sorted_particles() -> None:
    pos = oracles.clustered(N, 3)
    rlink = lengths_of("random", pos, 0.05)
    posz, order = tree.zsort(jnp.asarray(pos), boxsize=1.0)
    partz, th = tree.zsort_and_tree(jnp.asarray(pos), boxsize=1.0)
    np.testing.assert_array_equal(posz, partz)
    label = fof_labels(partz, rlink[np.asarray(order)], 1.0, th=th)[1]
    np.testing.assert_array_equal(label, expected(pos[np.asarray(order)], rlink[np.asarray(order)], 1.0))
    np.testing.assert_array_equal(fof_labels(jnp.asarray(pos), rlink, 1.0)[1], label)


@pytest.mark.fast
@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        np.float32,
        np.float16,
        jnp.asarray,
        lambda part: np.asarray(part)[::-1][::-1],
        lambda part: np.repeat(part, 2)[::2],
        lambda part: np.ma.array(part, mask=False),
    ],
)
def test_form_of_lengths_does_not_matter(form: Callable[[Any], Any]) -> None:
    pos = oracles.uniform(200, 3)
    rlink = np.round(lengths_of("gradient", pos, 0.1) * 64) / 64  # exact in float16
    np.testing.assert_array_equal(labels(jnp.asarray(pos), form(rlink)), expected(pos, rlink))


@pytest.mark.fast
def test_integer_lengths_are_accepted() -> None:
    pos = 10 * oracles.uniform(200, 3)
    rlink = np.random.default_rng(2).integers(0, 3, 200)
    np.testing.assert_array_equal(labels(jnp.asarray(pos), rlink), expected(pos, rlink))


def test_vmapped_call_equals_single_calls() -> None:
    pos = np.stack([oracles.uniform(200, 3, seed=seed) for seed in range(3)])
    rlink = np.stack([lengths_of("random", column, 0.2) for column in pos]).astype(np.float32)
    result = jax.vmap(lambda a, b: fof_labels(a, b, output_order="input")[1])(jnp.asarray(pos), jnp.asarray(rlink))
    for column, lengths, got in zip(pos, rlink, result, strict=True):
        np.testing.assert_array_equal(got, expected(column, lengths))


@pytest.mark.fast
def test_catalogue_has_the_groups_of_the_labels() -> None:
    pos = oracles.clustered(N, 3)
    rlink = lengths_of("random", pos, 0.05)
    part = data.ParticleData(pos=jnp.asarray(pos), id=np.arange(N, dtype=np.int32))
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=2))
    grouped, cata = fof_and_catalogue.jit(part, rlink, 1.0, cfg)
    cata = data.squeeze_catalogue(cata)
    assert groups_of(grouped.id, cata) == members(expected(pos, rlink, 1.0))


def members(label: np.ndarray, minimum: int = 2) -> set[frozenset[int]]:
    groups = [frozenset(np.flatnonzero(label == value).tolist()) for value in np.unique(label)]
    return {group for group in groups if len(group) >= minimum}


def groups_of(ids: Any, cata: Any) -> set[frozenset[int]]:
    ends = zip(np.asarray(cata.offset), np.asarray(cata.count), strict=True)
    return {frozenset(np.asarray(ids)[start : start + count].tolist()) for start, count in ends}


# Errors


@pytest.mark.fast
@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf], ids=str)
@pytest.mark.parametrize("find", [fof_labels, fof_labels.jit, fof_and_catalogue, jax.jit(fof_labels)])
def test_invalid_length_names_the_row(find: Any, bad: float) -> None:
    rlink = np.full(40, 0.1)
    rlink[[31, 35]] = bad
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"row 31 of rlink .*finite, at least 0.*\(2 such rows\)"):
        jax.block_until_ready(find(jnp.asarray(oracles.uniform(40, 3)), rlink))


@pytest.mark.fast
@pytest.mark.parametrize("find", [fof_labels, fof_labels.jit])
def test_length_outside_the_range_of_jax_names_the_row(find: Any) -> None:
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"row 3 of rlink .* within the range of float32"):
        jax.block_until_ready(find(jnp.zeros((5, 3)), [0, 1, 1e30, 1e300, 0]))


@pytest.mark.fast
@pytest.mark.parametrize("shape", [(1,), (39,), (40, 1), (1, 40), (40, 3), (0,)], ids=str)
@pytest.mark.parametrize("find", [fof_labels, fof_labels.jit, fof_and_catalogue.jit, jax.jit(fof_labels)])
def test_invalid_shape_of_lengths_raises(find: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"rlink must be .* one per particle, \(40,\); its shape is") as error:
        find(jnp.asarray(oracles.uniform(40, 3)), np.full(shape, 0.1, np.float32))
    assert oracles.one_sentence(error)


@pytest.mark.fast
@pytest.mark.parametrize("value", [True, 1j, "far"], ids=str)
def test_lengths_that_are_not_numbers_raise(value: Any) -> None:
    with pytest.raises(TypeError, match="rlink"):
        fof_labels(jnp.asarray(oracles.uniform(40, 3)), np.full(40, value))


@pytest.mark.fast
def test_masked_lengths_raise() -> None:
    rlink = np.ma.array(np.full(40, 0.1), mask=np.arange(40) == 3)
    with pytest.raises(TypeError, match="rlink is a masked array"):
        fof_labels(jnp.asarray(oracles.uniform(40, 3)), rlink)


# Attached particles


def attached_groups(primary: np.ndarray, rlink: np.ndarray, second: np.ndarray, within: float | None) -> Any:
    """Return the groups. Attached particles are numbered after the primary ones."""
    distance, nearest = cKDTree(primary.astype(np.float64), boxsize=1.0).query(second.astype(np.float64))
    label, own = oracles.components(primary, rlink, 1.0), len(primary) + np.arange(len(second))
    reached = distance <= (np.inf if within is None else within) * rlink[nearest]
    return members(np.concatenate([label, np.where(reached, label[nearest], own)]))


@pytest.mark.parametrize("within", [None, 0.3, 1.5])
@pytest.mark.parametrize("ndev", [1, 4])
def test_length_of_the_nearest_particle_limits_attached_particles(ndev: int, within: float | None) -> None:
    primary, second = oracles.clustered(600, 3), oracles.clustered(300, 3, seed=5)
    second = (second + np.float32(0.01)) % np.float32(1)
    rlink = lengths_of("random", primary, 0.05)
    parts = [deal(pos, uneven(len(pos), ndev), rows=700) for pos in (primary, second)]
    parts[1] = replace(parts[1], id=parts[1].id + len(primary))
    stacked = rlink[np.maximum(parts[0].id, 0)]
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=2))
    if ndev == 1:
        single, two, stacked = *jax.tree.map(lambda rows: jnp.asarray(rows)[0], parts), stacked[0]
        grouped, cata = fof_and_catalogue.jit(single, stacked, 1.0, cfg, attached=two, attach_within=within)
        ids, cata = grouped.id, data.squeeze_catalogue(cata)
    else:
        find = fof_and_catalogue.smap(mesh_of(ndev), jit=True)
        grouped, cata = find(parts[0], stacked, 1.0, cfg, attached=parts[1], attach_within=within)
        cata = data.squeeze_catalogue(cata, offset_mode="global", nparts=grouped.num)
        ids = joined(grouped.id, grouped.num)
    assert groups_of(ids, cata) == attached_groups(primary, rlink, second, within)


# Several devices


@pytest.mark.long
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("ndev", [3, 4])
def test_several_devices_give_the_labels_of_one(ndev: int, name: str) -> None:
    pos, counts, part = make(name, ndev)
    for kind in ("random", "gradient" if "outlier" not in name and "crowds" not in name else "few long"):
        rlink = lengths_of(kind, pos, SETS[name][2])
        stacked = np.where(part.id >= 0, rlink[np.maximum(part.id, 0)], np.nan)
        for box in (0.0, 1.0):
            if "outlier" in name and box:
                continue
            _, label = fof_labels.smap(mesh_of(ndev), jit=True)(part, stacked, box, output_order="input")
            want = labels(jnp.asarray(pos), rlink, box, find=fof_labels.jit)
            np.testing.assert_array_equal(joined(label, counts), want, f"{kind}, box {box}")


@pytest.mark.parametrize("x64", [False, True])
def test_devices_need_no_implicit_promotion(x64: bool) -> None:
    pos = oracles.uniform(300, 3)
    rlink = lengths_of("random", pos, 0.2)
    counts = uneven(300, 4)
    part = deal(pos, counts, rows=300)
    find = fof_labels.smap(mesh_of(4), jit=True)
    with jax.enable_x64(x64), jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        _, label = find(part, rlink[np.maximum(part.id, 0)], 1.0, output_order="input")
    np.testing.assert_array_equal(joined(label, counts), expected(pos, rlink, 1.0))


def test_sorted_particles_of_devices_keep_their_lengths() -> None:
    pos = oracles.clustered(300, 3)
    rlink = lengths_of("random", pos, 0.1)
    part = deal(pos, uneven(300, 4), rows=300)
    partz, th = tree.zsort_and_tree.smap(mesh_of(4), jit=True)(part, boxsize=1.0)
    lengths = rlink[np.maximum(np.asarray(partz.id), 0)]
    _, label = fof_labels.smap(mesh_of(4), jit=True)(partz, lengths, 1.0, th=th)
    want = expected(pos, rlink, 1.0)[joined(partz.id, partz.num)]
    np.testing.assert_array_equal(joined(label, partz.num), oracles.smallest_members(want))


def test_devices_bring_few_ghosts_if_lengths_vary_over_the_box() -> None:
    """One device has long lengths. The others need ghosts only within their own short lengths."""
    random = np.random.default_rng(2)
    pos = random.random((8000, 3)).astype(np.float32)
    rlink = np.where((pos < 0.5).all(axis=1), 0.2, 0.002)  # the first device of the z-order
    part = deal(pos, even(len(pos), 8))
    find = jz.fof.distr_fof_labels.smap(mesh_of(8), jit=True)

    def ghosts(lengths: Any) -> int:
        with jz.stats.statistics() as result:
            jax.block_until_ready(find(part, lengths, 0.0))
        return int(result["rows.ghosts"])

    assert ghosts(rlink[np.maximum(part.id, 0)]) < ghosts(0.101) / 2


def test_invalid_length_on_one_device_raises_on_all() -> None:
    part = deal(oracles.uniform(80, 3), even(80, 4), rows=20)
    rlink = np.full((4, 20), 0.1)
    rlink[2, 7] = -1
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"on rank 2.*row 7 of rlink"):
        jax.block_until_ready(fof_labels.smap(mesh_of(4), jit=True)(part, rlink))
