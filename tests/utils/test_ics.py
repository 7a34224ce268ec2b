"""Test distributions: shapes, ranges, and their documented statistical laws."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import cKDTree

from jztree_utils import ics

MAKERS = [ics.uniform_particles, ics.gaussian_particles, ics.clustered_particles, ics.hernquist_particles]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("n", [0, 1, 2, 37, 5000])
def test_shapes_padding_and_mass(maker, n) -> None:
    part = maker(n, total_mass=3.0, npad=4)
    assert part.pos.shape == (n + 4, 3)
    assert part.pos.dtype == jnp.float32
    assert (part.num, part.num_total) == (n, n)
    assert part.mass == 3.0 / max(n, 1)
    assert np.isfinite(part.pos[:n]).all()
    assert np.isnan(part.pos[n:]).all()


@pytest.mark.parametrize("maker", MAKERS)
def test_same_seed_gives_the_same_particles(maker) -> None:
    first, same, second = (np.asarray(maker(1000, seed=seed).pos) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("maker", MAKERS)
def test_negative_numbers_are_refused(maker) -> None:
    with pytest.raises(ValueError, match="-1"):
        maker(-1)
    with pytest.raises(ValueError, match="-2"):
        maker(10, npad=-2)


@pytest.mark.parametrize("maker", [ics.uniform_particles, ics.gaussian_particles])
def test_under_jit(maker) -> None:
    part = jax.jit(maker, static_argnames=("N", "npad"))(N=50, npad=3)
    # If compiled as a whole, JAX may round the steps from random bits to coordinates differently.
    np.testing.assert_allclose(part.pos, maker(50, npad=3).pos, rtol=1e-6, atol=1e-7)
    assert part.num_total == 50


def test_uniform_particles_match_the_published_guide() -> None:
    part = ics.uniform_particles(1000, seed=3)
    np.testing.assert_array_equal(part.pos, jax.random.uniform(jax.random.PRNGKey(3), (1000, 3), dtype=jnp.float32))


def test_gaussian_moments() -> None:
    pos = np.asarray(ics.gaussian_particles(40000, scale=2.0, dim=5).pos)
    assert pos.shape == (40000, 5)
    np.testing.assert_allclose(pos.std(axis=0), 2.0, rtol=0.02)
    np.testing.assert_allclose(pos.mean(axis=0), 0.0, atol=0.05)


# Clustered


def test_clustered_particles_fill_the_box_in_random_order() -> None:
    pos = np.asarray(ics.clustered_particles(20000).pos)
    assert pos.min() >= 0
    assert pos.max() < 1
    steps = np.abs(np.diff(pos, axis=0))
    distance = np.sqrt((np.minimum(steps, 1 - steps) ** 2).sum(axis=1))
    assert np.median(distance) == pytest.approx(0.48, abs=0.02)  # the value for independent uniform points


def test_background_sets_the_particles_in_halos() -> None:
    nearest = []
    for background in (0.0, 0.5, 1.0):
        pos = np.asarray(ics.clustered_particles(20000, background=background).pos, np.float64)
        distance = cKDTree(pos, boxsize=1).query(pos, k=8)[0][:, -1]
        nearest.append(np.mean(distance < 0.5 * 20000 ** (-1 / 3)))
    assert nearest[0] > 0.95
    assert 0.4 < nearest[1] < 0.6
    assert nearest[2] < 0.02


def test_mass_function() -> None:
    characteristic = 1e4
    counts = ics._halo_counts(np.random.default_rng(0), 10**8, characteristic)
    assert counts.sum() == 10**8
    assert np.sort(counts)[5] >= 20
    x = np.geomspace(20, 20 * characteristic, 20000)
    above = np.cumsum((x**-0.9 * np.exp(-x / characteristic))[::-1])[::-1]
    for minimum in (50, 500, 5000):
        expected = np.interp(minimum, x, above) / above[0]
        assert np.mean(counts >= minimum) == pytest.approx(expected, rel=0.05)


def test_halo_profile() -> None:
    random = np.random.default_rng(1)
    uniform, concentration = random.random(1000), random.uniform(4, 30, 1000)
    radius = ics._nfw_radii(uniform, concentration)

    def enclosed(x: np.ndarray) -> np.ndarray:
        return np.log1p(x) - x / (1 + x)

    np.testing.assert_allclose(enclosed(radius * concentration) / enclosed(concentration), uniform, atol=1e-4)
    assert radius.max() <= 1


def test_halos_have_200_times_the_mean_density() -> None:
    total, counts = 10**6, np.asarray([50000])
    pos = np.empty((50000, 3), np.float32)
    ics._fill_halos(np.random.default_rng(4), pos, counts, total, 1000.0, 8.0)
    offset = (pos - pos[0] + 0.5) % 1 - 0.5
    radius = np.sqrt(((offset - offset.mean(axis=0)) ** 2).sum(axis=1)).max()
    assert 50000 / (4 / 3 * np.pi * radius**3) == pytest.approx(200 * total, rel=0.05)


@pytest.mark.parametrize(
    "wrong",
    [{"background": 1.5}, {"characteristic_mass": 0.0}, {"concentration": -1.0}, {"characteristic_mass": np.nan}],
)
def test_clustered_arguments(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ics.clustered_particles(100, **wrong)


# Hernquist


@pytest.mark.parametrize("n", [2, 100000])
def test_hernquist_range_of_radii(n) -> None:
    pos = np.asarray(ics.hernquist_particles(n, scale_radius=3.0).pos, np.float64)
    radius = np.sqrt((pos**2).sum(axis=1))
    assert radius.max() / radius.min() == pytest.approx(1e12, rel=1e-5)
    if n > 2:
        sorted_radius = np.sort(radius)
        expected = (sorted_radius / (sorted_radius + 3.0)) ** 2
        assert np.abs(expected - np.linspace(0, 1, n)).max() < 1.63 / np.sqrt(n)  # Kolmogorov-Smirnov at 1 %
        np.testing.assert_allclose(np.median(pos, axis=0), 0, atol=0.1)


def test_hernquist_in_float64() -> None:
    with pytest.raises(ValueError, match="jax_enable_x64"):
        ics.hernquist_particles(10, dtype=np.float64)
    with jax.enable_x64(True):
        assert ics.hernquist_particles(10, dtype=np.float64).pos.dtype == np.float64


@pytest.mark.parametrize("wrong", [{"scale_radius": 0.0}, {"dynamic_range": 1.0}, {"dtype": np.int32}])
def test_hernquist_arguments(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ics.hernquist_particles(10, **wrong)


def test_soneira_peebles_particles() -> None:
    part = ics.soneira_peebles_particles(7, 4, eta=3, radius=0.01, total_mass=3.0, npad=2)
    n = 7 * 3**4
    assert (part.pos.shape, part.num, part.num_total, part.mass) == ((n + 2, 3), n, n, 3.0 / n)
    pos = np.asarray(part.pos[:n], np.float64)
    assert ((pos >= 0) & (pos < 1)).all()
    # Points of a cluster are at most two times the summed radii of the levels apart.
    clusters = pos.reshape(7, -1, 3)
    separation = clusters[:, :, None] - clusters[:, None]
    separation -= np.round(separation)
    assert np.linalg.norm(separation, axis=-1).max() < 2 * 0.01 * sum(1.76**-level for level in range(4))
    second = ics.soneira_peebles_particles(7, 4, eta=3, radius=0.01, seed=1)
    assert not np.array_equal(second.pos, part.pos[:n])


@pytest.mark.parametrize(("eta", "ratio"), [(2, 1.76), (3, 2.0)])
def test_soneira_peebles_law(eta: int, ratio: float) -> None:
    levels = round(13 * np.log(2) / np.log(eta))
    pos = np.asarray(ics.soneira_peebles_particles(30, levels, eta, ratio).pos, np.float64)
    tree = cKDTree(pos, boxsize=1.0)
    edges = 0.1 * ratio ** -np.array([levels - 3.0, 4.0])
    pairs = tree.count_neighbors(tree, edges) - len(pos)  # within a radius: one power more, in each dimension
    assert np.log(pairs[1] / pairs[0]) / np.log(edges[1] / edges[0]) == pytest.approx(np.log(eta) / np.log(ratio), 0.05)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [({"clusters": 0}, "clusters"), ({"levels": 0}, "levels"), ({"eta": 0}, "eta"), ({"ratio": 0.0}, "ratio")],
)
def test_soneira_peebles_arguments(wrong: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ics.soneira_peebles_particles(**({"clusters": 2, "levels": 2} | wrong))


# Samples


def test_samples_equal_those_of_the_reference() -> None:
    flat, flat_box = ics.cosmo_2d_sample(), ics.SAMPLE_2D_BOXSIZE
    part, box = ics.cosmo_3d_sample()
    for name, pos, length in (("pos2d_cosmo_128_100", flat, flat_box), ("snapshot_048", part.pos, box)):
        reference = json.loads((ics.SAMPLE_DATA / f"{name}.fof_b0.2.json").read_text())
        assert pos.shape == (reference["n_particles"], reference["ndim"])
        assert length == reference["boxsize"]
        assert isinstance(pos, jax.Array)
        assert pos.dtype == jnp.float32
    assert part.mass == pytest.approx(reference["particle_mass_1e10Msun_h"])
    assert part.vel.shape == part.pos.shape
    assert len(np.unique(part.id)) == part.num == 48**3
