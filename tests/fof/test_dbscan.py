"""DBSCAN compared with the algorithm of its paper, and with scikit-learn if that is installed."""

from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, SETS, deal, even, joined, make, mesh_of, uneven

from jztree.data import Pos
from jztree.fof import dbscan, fof_labels

pytestmark = pytest.mark.emulated


def slow(pos: np.ndarray, eps: float, minimum: int, box: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Find clusters from all pairs."""
    return oracles.clusters_of(oracles.squared_distances(pos, pos, box) <= np.float64(eps) ** 2, minimum)


def assert_clusters(result: Any, expected: Any) -> None:
    np.testing.assert_array_equal(result[1], expected[1])
    np.testing.assert_array_equal(result[0], expected[0])


@pytest.mark.parametrize("dims", range(1, 9))
@pytest.mark.parametrize("kind", ["open", "periodic", "mixed"])
def test_equals_the_reference_implementation(dims: int, kind: str) -> None:
    box = oracles.box_lengths(kind, dims)
    pos = np.concatenate([oracles.clustered(500, dims), oracles.uniform(300, dims)])
    eps = [0.0005, 0.01, 0.04, 0.09, 0.15, 0.2, 0.25, 0.25][dims - 1]
    for minimum in (1, 2, 5, 12):
        expected = slow(pos, eps, minimum, box)
        assert_clusters(dbscan(pos, eps, min_samples=minimum, boxsize=box), expected)
        assert_clusters(dbscan.jit(pos, eps, min_samples=minimum, boxsize=box), expected)
    assert len(np.unique(slow(pos, eps, 5, box)[0])) > 2


@pytest.mark.parametrize("minimum", [1, 2, 3, 20, 150, 400])
@pytest.mark.parametrize("kind", ["open", "periodic"])
def test_eps_from_zero_to_wider_than_the_set(kind: str, minimum: int) -> None:
    """Most counts end early: nodes or near leaves suffice, or the remaining nodes cannot."""
    box = oracles.box_lengths(kind, 3)
    pos = np.concatenate([oracles.clustered(400, 3), oracles.uniform(400, 3)])
    kinds = set()
    for eps in (0.0, 0.003, 0.02, 0.07, 0.15, 0.25, 0.4, 0.6, 0.9, 2.0):
        label, core = slow(pos, eps, minimum, box)
        assert_clusters(dbscan.jit(pos, eps, min_samples=minimum, boxsize=box), (label, core))
        kinds |= set(np.where(core, "core", np.where(label < 0, "noise", "border")))
    if 2 < minimum < 400:
        assert kinds == {"core", "border", "noise"}


@pytest.mark.parametrize("spread", [1.0, 0.0], ids=["uniform", "one place"])
def test_eps_wider_than_the_set(spread: float) -> None:
    """Nodes are counted as a whole: there would be 10^10 pairs."""
    pos = oracles.uniform(100_000, 3) * np.float32(spread)
    for minimum in (2, 5, 100_000):
        label, core = dbscan.jit(pos, 2.0, min_samples=minimum)
        assert np.asarray(core).all()
        assert not np.asarray(label).any()
    assert not np.asarray(dbscan.jit(pos, 2.0, min_samples=100_001)[1]).any()


@pytest.mark.parametrize("name", SETS)
def test_difficult_inputs(name: str) -> None:
    pos = make(name, 3)[0]
    for box in (None, 1.0) if "outlier" not in name else (None,):
        for minimum in (2, 4):
            assert_clusters(
                dbscan.jit(pos, SETS[name][2], min_samples=minimum, boxsize=box), slow(pos, SETS[name][2], minimum, box)
            )


@pytest.mark.aarch64
@pytest.mark.core
def test_border_points_join_the_first_cluster() -> None:
    """A point is between two clusters, nearer to the second. Test all orders of rows."""
    line = np.r_[np.arange(5) * 0.1, 0.95, 1.45 + np.arange(5) * 0.1][:, None].astype(np.float32)
    for seed in range(20):
        pos = np.random.default_rng(seed).permutation(line)
        result = dbscan(pos, 0.56, min_samples=5)
        assert_clusters(result, slow(pos, 0.56, 5))


def test_small_min_samples_equals_friends_of_friends() -> None:
    pos = oracles.clustered(2_000, 3)
    label, core = dbscan.jit(pos, 0.02, min_samples=1)
    assert np.asarray(core).all()
    group = fof_labels.jit(pos, 0.02, output_order="input")[1]
    np.testing.assert_array_equal(oracles.smallest_members(label), group)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_particles_and_padding(n: int) -> None:
    pos = oracles.uniform(n, 3)
    for minimum in (1, 2):
        assert_clusters(dbscan(pos, 9.0, min_samples=minimum), slow(pos, 9.0, minimum))
    part = Pos(pos=np.concatenate([oracles.uniform(300, 3), np.full((50, 3), 0.5, np.float32)]), num=300)
    label, core = dbscan.jit(part, 0.15, min_samples=4)
    assert_clusters((label[:300], core[:300]), slow(part.pos[:300], 0.15, 4))
    assert (np.asarray(label)[300:] == -1).all()
    assert not np.asarray(core)[300:].any()


@pytest.mark.long
def test_equals_scikit_learn() -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    pos = np.concatenate([oracles.clustered(5_000, 3), oracles.uniform(2_000, 3)])
    for eps, minimum in ((0.02, 5), (0.05, 10), (0.05, 40)):
        model = cluster.DBSCAN(eps=eps, min_samples=minimum).fit(pos.astype(np.float64))
        label, core = dbscan.jit(pos, eps, min_samples=minimum)
        np.testing.assert_array_equal(label, model.labels_)
        np.testing.assert_array_equal(np.nonzero(np.asarray(core))[0], model.core_sample_indices_)


@pytest.mark.parametrize("minimum", [jnp.int32(4), np.int16(4), np.array(4)], ids=["jax", "numpy", "array"])
def test_concrete_integer_arrays_as_min_samples(minimum: Any) -> None:
    pos = oracles.clustered(200, 3)
    expected = dbscan(pos, 0.05, min_samples=4)
    part = deal(pos, even(200, 3))
    for result in (dbscan(pos, 0.05, min_samples=minimum), dbscan.jit(pos, 0.05, min_samples=minimum)):
        np.testing.assert_array_equal(result[0], expected[0])
    over = dbscan.smap(mesh_of(3), jit=True)(part, 0.05, min_samples=minimum)
    np.testing.assert_array_equal(joined(over[0], even(200, 3)), expected[0])


@pytest.mark.parametrize("call", [dbscan, dbscan.jit])
def test_min_samples_above_particle_count_gives_only_noise(call: Any) -> None:
    for minimum in (51, 2**31, 2**40):
        label, core = call(oracles.uniform(50, 3), 10.0, min_samples=minimum)
        assert not np.any(core)
        assert np.all(np.asarray(label) == -1)


@pytest.mark.parametrize("eps", [-1.0, np.nan, np.inf])
def test_invalid_traced_eps_is_named(eps: float) -> None:
    gpus.skip_where_kernels_cannot_raise()
    pos = oracles.uniform(50, 3)
    with pytest.raises(oracles.RUN_TIME_ERROR, match=f"jztree: eps is -?{eps:g}; it must be finite") as error:
        jax.block_until_ready(jax.jit(dbscan)(pos, np.float32(eps)))
    assert oracles.one_sentence(error)
    assert "rlink" not in str(error.value)
    with pytest.raises(TypeError, match="min_samples must be an integer that is known"):
        jax.jit(dbscan)(pos, 0.1, min_samples=5)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("name", SETS)
def test_several_devices_give_the_clusters_of_one(name: str, ndev: int) -> None:
    pos, counts, stacked = make(name, ndev)
    mapped = dbscan.smap(mesh_of(ndev), jit=True)
    for box in (None, 1.0) if "outlier" not in name else (None,):
        label, core = mapped(stacked, SETS[name][2], min_samples=4, boxsize=box)
        assert_clusters(
            (joined(label, counts), joined(core, counts)), dbscan.jit(pos, SETS[name][2], min_samples=4, boxsize=box)
        )
        for rank, count in enumerate(counts):
            assert (np.asarray(label)[rank, count:] == -1).all()


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "dims"), [(np.float32, 3), (np.float64, 5), (np.float64, 3)])
def test_over_devices_in_64_bit_mode(x64: None, dtype: Any, dims: int) -> None:
    pos, eps = oracles.clustered(600, dims).astype(dtype), 0.03 if dims == 3 else 0.15
    result = dbscan.smap(mesh_of(3), jit=True)(deal(pos, uneven(600, 3), 600), eps, min_samples=4)
    assert_clusters([joined(column, uneven(600, 3)) for column in result], dbscan.jit(pos, eps, min_samples=4))


@pytest.mark.long
def test_border_points_between_chains_over_devices() -> None:
    """Chains pass through all ranks, with borders between them."""
    pos = np.random.default_rng(4).random((1_000, 2)).astype(np.float32)
    result = dbscan.smap(mesh_of(4), jit=True)(deal(pos, even(1_000, 4)), 0.035, min_samples=5)
    assert_clusters([joined(column, even(1_000, 4)) for column in result], slow(pos, 0.035, 5))


def test_inside_a_user_jit_function() -> None:
    pos = oracles.clustered(500, 3)
    result = jax.jit(lambda x, eps: dbscan(x, eps, min_samples=4))(pos, np.float32(0.05))
    assert_clusters(result, slow(pos, float(np.float32(0.05)), 4))
