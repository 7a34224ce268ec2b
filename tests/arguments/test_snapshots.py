"""Real input, compared with stored reference results of three independent codes and SciPy."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from devices import joined, mesh_of

from jztree import data, tree
from jztree.fof import distr_fof_labels, fof_and_catalogue, fof_labels
from jztree.knn import knn

pytestmark = pytest.mark.emulated

REFERENCES = {
    "48": "sample_48/snapshot_048.fof_b0.2.json",
    "64": "snap_64/snapshot_000.fof_b0.2.json",
    "128": "snapshot_128.fof_b0.2.json",
    "2d": "pos2d_cosmo_128_100.fof_b0.2.json",
}
ALL = pytest.mark.parametrize("name", REFERENCES)


def load(folder: Path, name: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Return positions in file order, and the reference."""
    path = folder / REFERENCES[name]
    reference = json.loads(path.read_text())
    if name == "2d":
        return np.load(path.parent / reference["data"]), reference
    parts = []
    for part in reference["data"]:
        with h5py.File(path.parent / part) as file:
            parts.append(file["PartType1/Coordinates"][:])
    return np.concatenate(parts), reference


def sha256(values: Any) -> str:
    return hashlib.sha256(np.asarray(values).astype("<i8").tobytes()).hexdigest()


@ALL
def test_partition_and_sizes(shared_data: Path, name: str) -> None:
    pos, reference = load(shared_data, name)
    assert pos.dtype == np.float32
    assert len(pos) == reference["n_particles"]
    label = np.asarray(
        fof_labels.jit(jnp.asarray(pos), reference["rlink"], reference["boxsize"], output_order="input")[1]
    )
    sizes = np.sort(np.bincount(label, minlength=len(pos)))[::-1]
    sizes = sizes[sizes > 0]
    assert len(sizes) == reference["n_groups_total"]
    assert sizes[:50].tolist() == reference["largest_50_sizes"]
    assert sha256(sizes) == reference["sizes_sha256"]
    assert sha256(label) == reference["partition_sha256"]


@ALL
def test_partition_does_not_depend_on_the_order_of_the_particles(shared_data: Path, name: str) -> None:
    pos, reference = load(shared_data, name)
    order = np.random.default_rng(61).permutation(len(pos))
    partz, label = fof_labels.jit(
        data.ParticleData(pos=jnp.asarray(pos[order]), id=jnp.asarray(order)), reference["rlink"], reference["boxsize"]
    )
    smallest = jax.ops.segment_min(partz.id, label, len(pos))
    by_file = np.empty(len(pos), np.int64)
    by_file[np.asarray(partz.id)] = np.asarray(smallest)[np.asarray(label)]
    assert sha256(by_file) == reference["partition_sha256"]


@ALL
def test_catalogue_of_the_largest_groups(shared_data: Path, name: str) -> None:
    pos, reference = load(shared_data, name)
    box, mass = reference["boxsize"], reference["particle_mass_1e10Msun_h"]
    part = data.ParticleData(pos=jnp.asarray(pos), mass=mass, id=jnp.arange(len(pos)))
    grouped, cata = fof_and_catalogue.jit(part, reference["rlink"], box)
    assert int(cata.ngroups) == reference["n_groups_ge20"]
    assert int(cata.count.sum()) == reference["particles_in_groups_ge20"]
    ids, offset, count = np.asarray(grouped.id), np.asarray(cata.offset), np.asarray(cata.count)
    first = np.array([ids[offset[g] : offset[g] + count[g]].min() for g in range(int(cata.ngroups))])
    largest = np.lexsort((first, -count[: len(first)]))[:20]
    for group, expected in zip(largest, reference["top20"], strict=True):
        assert count[group] == expected["size"]
        assert first[group] == expected["min_particle_index"]
        difference = np.asarray(cata.com_pos[group], np.float64) - expected["com"]
        np.testing.assert_allclose(difference - box * np.rint(difference / box), 0, atol=1e-7 * box)
        if mass is not None:
            np.testing.assert_allclose(cata.mass[group], expected["mass_1e10Msun_h"], rtol=1e-6)


def assert_neighbour_sums(rad: np.ndarray, idx: np.ndarray, reference: dict[str, Any], rtol: float) -> None:
    rad = rad.astype(np.float64)
    sums = [math.fsum(rad[:, i]) for i in range(1, 8)]
    np.testing.assert_allclose(sums, reference["knn_k8_sum_dist_index1to7"], rtol=rtol)
    np.testing.assert_allclose(math.fsum(sums), reference["knn_k8_sum_dist_total"], rtol=rtol)
    np.testing.assert_allclose(rad[:, 7].max(), reference["knn_k8_max_dist_index7"], rtol=10 * rtol)
    np.testing.assert_allclose(rad[:, 1].min(), reference["knn_k8_min_dist_index1"], rtol=10 * rtol)
    assert rad[:, 7].argmax() == reference["knn_k8_argmax_index7"]
    assert (idx[:, 0] == np.arange(len(idx))).sum() == reference["knn_k8_self_is_index0_count"]


@pytest.mark.parametrize("name", ["48", "128"])
def test_neighbour_sums(shared_data: Path, name: str) -> None:
    pos, reference = load(shared_data, name)
    rad, idx = knn.jit(jnp.asarray(pos), 8, boxsize=reference["boxsize"])
    assert_neighbour_sums(np.asarray(rad), np.asarray(idx), reference, 1e-8)


def test_neighbour_sums_in_float64(shared_data: Path, x64: None) -> None:
    pos, reference = load(shared_data, "48")
    rad, idx = knn.jit(jnp.asarray(pos, jnp.float64), 8, boxsize=reference["boxsize"])
    assert_neighbour_sums(np.asarray(rad), np.asarray(idx), reference, 1e-14)


def test_one_tree_serves_neighbours_and_groups(shared_data: Path) -> None:
    pos, reference = load(shared_data, "48")
    box = reference["boxsize"]
    partz, th = tree.zsort_and_tree.jit(data.ParticleData(pos=jnp.asarray(pos), id=jnp.arange(len(pos))), boxsize=box)
    label = fof_labels.jit(partz, reference["rlink"], box, th=th)[1]
    sizes = np.sort(np.bincount(np.asarray(label)))[::-1]
    assert sha256(sizes[sizes > 0]) == reference["sizes_sha256"]
    rad, ids = knn.jit(partz, 8, boxsize=box, th=th, result="rad_id")
    order = np.argsort(np.asarray(partz.id))
    assert_neighbour_sums(np.asarray(rad)[order], np.asarray(ids)[order], reference, 1e-8)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "48" else pytest.mark.slow) for name in REFERENCES]
)
def test_partition_over_four_devices(shared_data: Path, name: str) -> None:
    pos, reference = load(shared_data, name)
    part = data.ParticleData(pos=jnp.asarray(pos), id=jnp.arange(len(pos)))
    find = distr_fof_labels.smap(mesh_of(4), jit=True)
    stacked = data.expand_particles(part, 4)
    partz, label = find(stacked, reference["rlink"], reference["boxsize"], linearize_labels=True)
    counts = np.asarray(partz.num)
    ids, label = joined(partz.id, counts), joined(label, counts)
    smallest = np.full(len(pos), len(pos))
    np.minimum.at(smallest, label, ids)
    by_file = np.empty(len(pos), np.int64)
    by_file[ids] = smallest[label]
    assert sha256(by_file) == reference["partition_sha256"]


@pytest.mark.parametrize("name", ["48", pytest.param("64", marks=pytest.mark.slow)])
def test_catalogue_over_four_devices(shared_data: Path, name: str) -> None:
    pos, reference = load(shared_data, name)
    per_device = data.expand_particles(data.Pos(pos=jnp.asarray(pos)), 4)
    grouped, stacked = fof_and_catalogue.smap(mesh_of(4), jit=True)(
        per_device, reference["rlink"], reference["boxsize"]
    )
    cata = data.sort_catalogue(data.squeeze_catalogue(stacked, offset_mode="global", nparts=grouped.num))
    assert cata.ngroups == reference["n_groups_ge20"]
    assert cata.count.sum() == reference["particles_in_groups_ge20"]
    assert cata.count[:20].tolist() == [group["size"] for group in reference["top20"]]


@pytest.mark.parametrize("name", ["48", pytest.param("128", marks=pytest.mark.slow)])
def test_neighbour_sums_over_four_devices(shared_data: Path, name: str) -> None:
    pos, reference = load(shared_data, name)
    stacked = data.expand_particles(data.Pos(pos=jnp.asarray(pos)), 4)
    rad, idx = knn.smap(mesh_of(4), jit=True)(stacked, 8, boxsize=reference["boxsize"])
    counts = np.asarray(stacked.num)
    assert_neighbour_sums(joined(rad, counts), joined(idx, counts), reference, 1e-8)
    one_rad, one_idx = knn.jit(jnp.asarray(pos), 8, boxsize=reference["boxsize"])
    np.testing.assert_array_equal(joined(rad, counts), one_rad)
    np.testing.assert_array_equal(joined(idx, counts), one_idx)
