"""Peaks of a density over ranks, compared with the peaks of one device."""

import logging
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, ROWS, SETS, deal, even, joined, make, mesh_of, square_mesh, uneven
from jax.sharding import PartitionSpec as P

import jztree as jz
from jztree.comm import _ranks
from jztree.config import KNNConfig
from jztree.data import Pos
from jztree.hierarchy import DensityPeaks, _peaks_over_ranks, density_peaks, squeeze_peaks
from jztree.tree import ghosts

pytestmark = pytest.mark.emulated

NDEV, K = 3, 6  # The tests share the compiled search over these devices, with ROWS particles each, in three dimensions.
FIELDS = [name for name in DensityPeaks.__slots__ if name not in ("peak", "num")]


def dealt(values: np.ndarray, counts: np.ndarray, rows: int = ROWS) -> np.ndarray:
    """Return one value per particle in blocks of ``counts``; rows of padding are NaN."""
    stacked = np.full((len(counts), rows), np.nan, values.dtype)
    ends = np.cumsum(counts)
    for rank, (end, count) in enumerate(zip(ends, counts, strict=True)):
        stacked[rank, :count] = values[end - count : end]
    return stacked


def over_devices(
    pos: np.ndarray, density: np.ndarray, counts: np.ndarray, k: int = K, rows: int = ROWS, **options: Any
) -> DensityPeaks:
    part = deal(pos, counts, rows)
    shares = Pos(pos=jnp.asarray(part.pos), num=jnp.asarray(part.num))
    mesh = options.pop("mesh", None) or mesh_of(len(counts))
    return density_peaks.smap(mesh, jit=True)(shares, dealt(density, counts, rows), k, **options)


def check(result: DensityPeaks, expected: DensityPeaks, counts: np.ndarray, case: str = "") -> None:
    """Compare peaks over ranks with the peaks of one device."""
    total, num = int(expected.num), np.asarray(result.num)
    assert num.sum() == total
    np.testing.assert_array_equal(joined(result.peak, counts), expected.peak, case)
    assert all((np.asarray(result.peak)[rank, count:] == -1).all() for rank, count in enumerate(counts))
    for name in FIELDS:
        rows, single = np.asarray(getattr(result, name)), np.asarray(getattr(expected, name))
        np.testing.assert_array_equal(joined(rows, num), single[:total], f"{case}, {name}")
        padding = {"density": -np.inf, "saddle_density": -np.inf, "persistence": 0}.get(name, -1)
        assert all((rows[rank, count:] == padding).all() for rank, count in enumerate(num)), f"{case}, {name}"


def densities(n: int, kind: str, dtype: Any = np.float32) -> np.ndarray:
    random = np.random.default_rng(n)
    if kind == "equal":
        return np.ones(n, dtype)
    if kind == "ties":
        return random.integers(0, 4, n).astype(dtype)
    if kind == "special":
        return random.choice(np.array([-np.inf, -1, -0.0, 0, 2, np.inf, np.finfo(dtype).smallest_subnormal], dtype), n)
    return random.lognormal(0, 1, n).astype(dtype)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_several_devices_give_the_peaks_of_one(ndev: int) -> None:
    for name in SETS:
        pos, counts, _ = make(name, ndev)
        for kind, box in (("random", 1.0), ("ties", None), ("equal", None), ("special", 1.0)):
            if "outlier" in name and box:
                continue
            density = densities(len(pos), kind)
            expected = density_peaks.jit(pos, density, K, boxsize=box)
            result = over_devices(pos, density, counts, boxsize=box)
            if ndev > 1:
                check(result, expected, counts, f"{name}, {kind}, box {box}")
            jax.tree.map(np.testing.assert_array_equal, squeeze_peaks(result), squeeze_peaks(expected))


@pytest.mark.slow  # test_several_devices_give_the_peaks_of_one has this case for three devices
@pytest.mark.parametrize("ndev", [2, 4, 8])
def test_a_lattice_with_ties_gives_the_peaks_of_one_device(ndev: int) -> None:
    pos, counts, _ = make("lattice with ties", ndev)
    density = densities(len(pos), "ties")
    check(over_devices(pos, density, counts), density_peaks.jit(pos, density, K), counts)


@pytest.mark.parametrize("k", [1, 2, 100])
def test_few_particles_give_the_peaks_of_one_device(k: int) -> None:
    """With ``k=1``, all particles are peaks, on more rows than the first buffer; with 100, all are neighbours."""
    for n in (0, 1, 2, 40):
        pos, density = oracles.uniform(n, 2), densities(n, "ties")
        expected = density_peaks.jit(pos, density, k)
        for counts in (even(n, NDEV), uneven(n, NDEV)):
            check(over_devices(pos, density, counts, k, rows=40), expected, counts)


def test_devices_without_rows_have_no_peaks() -> None:
    result = density_peaks.smap(mesh_of(2), jit=True)(np.zeros((2, 0, 3), np.float32), np.zeros((2, 0), np.float32), 4)
    np.testing.assert_array_equal(result.num, [0, 0])
    assert result.peak.shape == result.row.shape == (2, 0)


@pytest.mark.long
@pytest.mark.parametrize("dims", [4, pytest.param(3, marks=pytest.mark.slow)])
def test_float64_gives_the_peaks_of_one_device(x64: None, dims: int) -> None:
    pos, counts = oracles.clustered(900, dims, np.float64) % 1, even(900, NDEV)
    for kind in ("random", "special"):
        density = densities(900, kind, np.float64)
        density += np.where(np.isfinite(density), np.arange(900) % 7 * 1e-13, 0)  # differences that float32 loses
        check(over_devices(pos, density, counts, boxsize=1.0), density_peaks.jit(pos, density, K, boxsize=1.0), counts)


@pytest.mark.slow  # tests of few particles, of buffers and of float64 use 2, 1 and 4 dimensions
@pytest.mark.parametrize("dims", [1, 4, 8])
def test_other_dimensions_give_the_peaks_of_one_device(dims: int) -> None:
    pos, counts = oracles.uniform(400, dims), even(400, NDEV)
    density = densities(400, "random")
    check(over_devices(pos, density, counts, 4, rows=200), density_peaks.jit(pos, density, 4), counts)


@pytest.mark.long
@pytest.mark.parametrize("through_others", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_mesh_with_two_axes_gives_the_peaks_of_one_device(
    monkeypatch: pytest.MonkeyPatch, through_others: bool
) -> None:
    if through_others:
        monkeypatch.setattr(_ranks, "_FEW_RANKS", 1)
        monkeypatch.setattr(ghosts, "_FEW_REQUESTS", 0)
    pos, density, counts = oracles.clustered(700, 3), densities(700, "random"), even(700, 4)
    result = over_devices(pos, density, counts, rows=700 + through_others, mesh=square_mesh())
    check(result, density_peaks.jit(pos, density, K), counts)


def test_buffers_for_peaks_and_edges_grow(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the particles of a chain are peaks."""
    monkeypatch.setattr(_peaks_over_ranks, "_MIN_ROWS", 1)
    pos, density, counts = np.arange(900, dtype=np.float32)[:, None], densities(900, "random"), even(900, NDEV)
    with caplog.at_level(logging.INFO, "jztree"):
        result = over_devices(pos, density, counts, 3, rows=300, cfg=KNNConfig(ghost_rows=9))
    assert {message.split()[3].split(":")[0] for message in caplog.messages} == {"peak_edges", "peaks"}
    check(result, density_peaks.jit(pos, density, 3), counts)


@pytest.mark.long
def test_an_index_gives_the_same_peaks() -> None:
    pos, density, counts = oracles.uniform(900, 3), densities(900, "ties"), even(900, NDEV)
    part = deal(pos, counts)
    shares = Pos(pos=jnp.asarray(part.pos), num=jnp.asarray(part.num))
    index = jz.build_index.smap(mesh_of(NDEV), jit=True)(shares, boxsize=1.0)
    result = density_peaks.smap(mesh_of(NDEV), jit=True)(index, dealt(density, counts), K)
    check(result, density_peaks.jit(pos, density, K, boxsize=1.0), counts)


@pytest.mark.long
def test_derivatives_are_those_of_one_device() -> None:
    pos, density, counts = oracles.uniform(120, 3), densities(120, "random"), even(120, NDEV)
    find = density_peaks.smap(mesh_of(NDEV), jit=True)
    part = deal(pos, counts, 40)

    def total(peaks: DensityPeaks) -> jax.Array:
        depth = jnp.where(peaks.saddle >= 0, peaks.persistence, 0)
        return jnp.sum(depth) + jnp.sum(jnp.where(peaks.row >= 0, peaks.density, 0))

    single = jax.grad(lambda density: total(density_peaks.jit(pos, density, 5)))(jnp.asarray(density))
    several = jax.grad(lambda density: total(find(part.pos, density, 5)))(jnp.asarray(density.reshape(NDEV, 40)))
    np.testing.assert_array_equal(np.asarray(several).ravel(), single)


def test_squeezed_peaks_merge_like_those_of_one_device() -> None:
    pos, counts, _ = make("clustered", NDEV)
    density = densities(len(pos), "random")
    peaks, expected = over_devices(pos, density, counts), density_peaks.jit(pos, density, K)
    np.testing.assert_array_equal(squeeze_peaks(peaks).merge(ratio=1.5), expected.merge(ratio=1.5))
    with pytest.raises(
        ValueError, match=r"the shape \(3, 1200\).*jztree.squeeze_peaks for the peaks of several devices"
    ):
        peaks.merge(ratio=1.5)
    mapped = jax.shard_map(lambda peaks: peaks.merge(1.0), mesh=mesh_of(NDEV), in_specs=P("gpus"), out_specs=P("gpus"))
    with pytest.raises(NotImplementedError, match="merge supports one device, but it was mapped over 3"):
        mapped(peaks)


def test_peaks_of_another_class_raise() -> None:
    with pytest.raises(TypeError, match=r"peaks must be a jztree\.hierarchy\.DensityPeaks, not list"):
        squeeze_peaks([])  # type: ignore[arg-type]


def test_nan_density_on_a_device_raises_with_rank_and_row() -> None:
    gpus.skip_where_kernels_cannot_raise()
    pos, counts, _ = make("uniform", NDEV)
    density = densities(len(pos), "random")
    density[counts[0] + 5] = np.nan
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"rank 1.*the density of row 5 is NaN"):
        over_devices(pos, density, counts)
