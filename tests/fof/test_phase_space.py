"""Friends-of-friends groups in phase space against all pairs of positions and scaled velocities."""

from dataclasses import dataclass
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import deal, even, joined, mesh_of, uneven
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

import jztree as jz
from jztree.data import ParticleData, sort_catalogue, squeeze_catalogue
from jztree.fof import fof_labels, phase_space_groups, phase_space_labels

pytestmark = pytest.mark.emulated

N = 600


def particles(dims: int, dtype: Any = np.float32, n: int = N, masses: bool = False) -> ParticleData:
    """Return clumps that overlap in space and have different mean velocities and dispersions."""
    rng = np.random.default_rng(dims)
    clump = rng.integers(0, 6, n)
    pos = rng.random((3, dims))[clump % 3] + 0.05 * rng.standard_normal((n, dims))
    vel = 500 * rng.standard_normal((6, dims))[clump] + rng.choice([20.0, 100.0], 6)[clump][:, None] * rng.random(
        (n, dims)
    )
    mass = rng.uniform(1, 3, n).astype(dtype) if masses else None
    return ParticleData(
        pos=(pos % 1).astype(dtype), vel=vel.astype(dtype), mass=mass, id=np.arange(n, dtype=np.int32), num=n
    )


def scaled(vel: np.ndarray, rlink: float, vlink: float) -> np.ndarray:
    """Return velocities in the unit of positions, rounded as in the library."""
    wide = np.float64 if jax.config.jax_enable_x64 else np.float32
    return vel * vel.dtype.type(wide(rlink) / wide(vlink))


def expected_labels(part: Any, rlink: float, vlink: float, box: Any) -> np.ndarray:
    """Return the smallest row of each particle's group, from all pairs."""
    pos, vel = np.asarray(part.pos), np.asarray(part.vel)
    lengths = np.concatenate([oracles.full_box(box, pos.shape[1]), np.zeros(pos.shape[1])])
    both = np.concatenate([pos, scaled(vel, rlink, vlink)], axis=1)
    return oracles.smallest_members(oracles.components(both, rlink, lengths))


def defined_labels(pos: Any, vel: Any, rlink: float, vlink: float, box: Any = None) -> np.ndarray:
    """Return the smallest row of each particle's group from the definition, in float64 without rounding before."""
    dx2 = oracles.squared_distances(pos, pos, box)
    dv2 = oracles.squared_distances(np.asarray(vel, np.float64), np.asarray(vel, np.float64))
    linked = dx2 / rlink**2 + dv2 / vlink**2 <= 1
    return oracles.smallest_members(connected_components(coo_array(linked), directed=False)[1])


def adaptive_labels(part: ParticleData, rlink: float, vlink: float, group_rlink: float, box: Any) -> np.ndarray:
    """Return labels with velocities in units of the dispersion of each group in space."""
    pos, vel = np.asarray(part.pos), np.asarray(part.vel, np.float64)
    group = oracles.smallest_members(oracles.components(pos, group_rlink, box))
    label = np.empty(len(pos), int)
    for number in np.unique(group):
        rows = np.flatnonzero(group == number)
        mass = np.ones(len(rows)) if part.mass is None else np.asarray(part.mass, np.float64)[rows]
        mean = np.average(vel[rows], axis=0, weights=mass)
        dispersion = np.sqrt(np.average(((vel[rows] - mean) ** 2).mean(axis=1), weights=mass))
        unit = vlink * dispersion if dispersion > 0 else 1.0
        label[rows] = rows[defined_labels(pos[rows], vel[rows], rlink, unit, box)]
    return label


@pytest.mark.parametrize("dims", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["open", "periodic", "mixed"])
def test_labels_equal_all_pairs(dims: int, kind: str, dtype: Any) -> None:
    part, box = particles(dims, dtype), oracles.box_lengths(kind, dims)
    for rlink, vlink in ((0.1, 150.0), (0.3, 60.0), (0.05, 1e4)):
        label = phase_space_labels(part, rlink, vlink, boxsize=box)
        np.testing.assert_array_equal(label, expected_labels(part, rlink, vlink, box))
        np.testing.assert_array_equal(label, defined_labels(part.pos, part.vel, rlink, vlink, box))


def test_streams_that_cross_are_separate_groups() -> None:
    rng = np.random.default_rng(1)
    pos = rng.random((400, 3)).astype(np.float32) * np.float32(0.2)
    stream = np.repeat([0, 1], 200)
    vel = np.stack([np.where(stream, 300.0, -300.0), *rng.standard_normal((2, 400))], axis=1).astype(np.float32)
    part = ParticleData(pos=pos, vel=vel)
    assert len(np.unique(fof_labels(part, 0.1)[1])) == 1
    label = phase_space_labels(part, 0.1, 100.0)
    np.testing.assert_array_equal(label, np.where(stream, 200, 0))


def test_large_velocity_length_gives_groups_in_space() -> None:
    part = particles(3)
    label = phase_space_labels(part, 0.05, 1e12, boxsize=1.0)
    np.testing.assert_array_equal(label, fof_labels(part, 0.05, 1.0, output_order="input")[1])


@pytest.mark.parametrize("masses", [False, True])
@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_adaptive_labels_equal_all_pairs_of_each_group(dims: int, masses: bool, dtype: Any) -> None:
    part = particles(dims, dtype, masses=masses)
    for rlink, group_rlink, vlink in ((0.05, 0.05, 0.4), (0.02, 0.1, 1.0), (0.05, 0.1, 0.2)):
        label = phase_space_labels.jit(part, rlink, vlink, boxsize=1.0, group_rlink=group_rlink)
        np.testing.assert_array_equal(label, adaptive_labels(part, rlink, vlink, group_rlink, 1.0))


def test_groups_in_space_are_never_joined() -> None:
    part = particles(3)
    label = phase_space_labels(part, 0.04, 1e6, boxsize=1.0, group_rlink=0.04)
    np.testing.assert_array_equal(label, fof_labels(part, 0.04, 1.0, output_order="input")[1])


def test_equal_velocities_have_no_dispersion() -> None:
    part = ParticleData(pos=oracles.uniform(80, 3), vel=np.full((80, 3), 7, np.float32))
    label = phase_space_labels(part, 0.2, 0.1, boxsize=1.0, group_rlink=0.2)
    np.testing.assert_array_equal(label, fof_labels(part, 0.2, 1.0, output_order="input")[1])


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("group_rlink", [None, 0.3])
def test_few_particles(n: int, group_rlink: float | None) -> None:
    part = particles(3, n=n)
    for call in (phase_space_labels, phase_space_labels.jit):
        label = call(part, 0.2, 10.0, group_rlink=group_rlink, boxsize=1.0)
        assert label.shape == (n,)
    _, cata = phase_space_groups(part, 0.2, 10.0, boxsize=1.0, group_rlink=group_rlink)
    assert cata.ngroups == 0


@pytest.mark.parametrize("group_rlink", [None, 0.1])
def test_padding_rows_are_separate_groups(group_rlink: float | None) -> None:
    part, num, vlink = particles(3), 400, 150.0 if group_rlink is None else 0.5
    used = jax.tree.map(lambda leaf: leaf[:num] if np.ndim(leaf) else num, part)
    pos, vel = (np.where(np.arange(N)[:, None] < num, item, np.nan) for item in (part.pos, part.vel))
    padded = ParticleData(pos=pos, vel=vel, id=part.id, num=jnp.asarray(num))
    label = phase_space_labels.jit(padded, 0.08, vlink, boxsize=1.0, group_rlink=group_rlink)
    expected = phase_space_labels(used, 0.08, vlink, boxsize=1.0, group_rlink=group_rlink)
    np.testing.assert_array_equal(label[:num], expected)
    np.testing.assert_array_equal(label[num:], np.arange(num, N))


@pytest.mark.parametrize("group_rlink", [None, 0.1])
def test_catalogue_describes_the_groups(group_rlink: float | None, dtype: Any) -> None:
    part = particles(3, dtype, masses=True)
    lengths, options = (0.08, 150.0 if group_rlink is None else 0.5), {"boxsize": 1.0, "group_rlink": group_rlink}
    grouped, cata = phase_space_groups.jit(part, *lengths, **options, npart_min=2)
    cata, rows = squeeze_catalogue(cata), np.asarray(grouped.id)
    label = np.asarray(phase_space_labels(part, *lengths, **options))
    sizes = np.bincount(label, minlength=N)
    assert len(cata.count) == (sizes >= 2).sum() > 3
    for i, (offset, count) in enumerate(zip(cata.offset, cata.count, strict=True)):
        members = rows[offset : offset + count]
        assert (label[members] == label[members[0]]).all()
        assert sizes[label[members[0]]] == count
        mass = part.mass[members].astype(np.float64)
        np.testing.assert_allclose(cata.mass[i], mass.sum(), rtol=1e-6)
        mean = np.average(part.vel[members].astype(np.float64), axis=0, weights=mass)
        np.testing.assert_allclose(cata.com_vel[i], mean, rtol=1e-5, atol=1e-3)
        assert cata.com_pos.shape == (len(cata.count), 3)


@pytest.mark.long
@pytest.mark.parametrize("ndev", [3, 1])
@pytest.mark.parametrize("group_rlink", [None, 0.06])
@pytest.mark.parametrize("spread", [uneven, even])
def test_several_devices_give_the_groups_of_one(ndev: int, group_rlink: float | None, spread: Any) -> None:
    single, vlink = particles(3, masses=True), 150.0 if group_rlink is None else 0.5
    counts = spread(N, ndev)
    part = deal(single.pos, counts)
    for name in ("vel", "mass"):
        column = getattr(single, name)
        wide = np.full((ndev, part.pos.shape[1], *column.shape[1:]), 1e6, column.dtype)
        for rank, (end, count) in enumerate(zip(np.cumsum(counts), counts, strict=True)):
            wide[rank, :count] = column[end - count : end]
        setattr(part, name, wide)
    lengths, options = (0.06, vlink), {"boxsize": 1.0, "group_rlink": group_rlink}
    mesh = mesh_of(ndev)
    label = phase_space_labels.smap(mesh, jit=True)(part, *lengths, **options)
    expected = phase_space_labels(single, *lengths, **options)
    np.testing.assert_array_equal(joined(label, counts), expected)
    _, cata = phase_space_groups.smap(mesh, jit=True)(part, *lengths, **options)
    cata, expected_cata = sort_catalogue(squeeze_catalogue(cata)), phase_space_groups(single, *lengths, **options)[1]
    np.testing.assert_array_equal(np.ravel(cata.count), expected_cata.count)
    np.testing.assert_allclose(cata.com_vel.reshape(-1, 3), expected_cata.com_vel, rtol=1e-5, atol=1e-2)


def test_catalogue_is_differentiable() -> None:
    part = particles(3, masses=True)

    def total(pos: jax.Array, vel: jax.Array) -> tuple[jax.Array, jax.Array]:
        given = ParticleData(pos=pos, vel=vel, mass=part.mass)
        cata = phase_space_groups(given, 0.08, 0.5, boxsize=1.0, group_rlink=0.1)[1]
        return jnp.sum(cata.com_pos) + jnp.sum(cata.com_vel), cata.ngroups

    slopes = jax.jit(jax.grad(total, (0, 1), has_aux=True))
    (by_pos, by_vel), ngroups = slopes(jnp.asarray(part.pos), jnp.asarray(part.vel))
    assert jnp.isfinite(by_pos).all()
    np.testing.assert_allclose(by_vel.sum(axis=0), np.full(3, ngroups), rtol=1e-4)


def test_vmap_equals_single_calls() -> None:
    part = particles(2)
    pos, vel = (np.asarray(item).reshape(4, -1, 2) for item in (part.pos, part.vel))

    def labels(pos: Any, vel: Any) -> Any:
        return phase_space_labels(ParticleData(pos=pos, vel=vel), 0.1, 1.0, boxsize=1.0, group_rlink=0.1)

    result = jax.vmap(labels)(pos, vel)
    for i in range(4):
        np.testing.assert_array_equal(result[i], labels(pos[i], vel[i]))


@pytest.mark.parametrize("group_rlink", [None, 0.1])
def test_float32_particles_in_float64_mode_need_no_promotion(group_rlink: float | None, x64: None) -> None:
    pos = oracles.uniform(60, 3)
    part = ParticleData(pos=pos, vel=oracles.uniform(60, 3, seed=2))
    expected = phase_space_labels(part, 0.1, 0.5, boxsize=1.0, group_rlink=group_rlink)
    with jax.numpy_dtype_promotion("strict"):
        result = phase_space_labels(part, 0.1, 0.5, boxsize=1.0, group_rlink=group_rlink)
    np.testing.assert_array_equal(result, expected)


def test_half_precision_velocities_give_the_groups_of_their_values() -> None:
    pos, vel = oracles.uniform(60, 3), oracles.uniform(60, 3, seed=2).astype(np.float16)
    result = phase_space_labels(ParticleData(pos=pos, vel=vel), 0.3, 0.3)
    expected = phase_space_labels(ParticleData(pos=pos, vel=vel.astype(np.float32)), 0.3, 0.3)
    np.testing.assert_array_equal(result, expected)


FINDERS = pytest.mark.parametrize("find", [phase_space_labels, phase_space_groups])


@FINDERS
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"vlink": 0.0}, ValueError, "vlink is 0; it must be above 0"),
        ({"rlink": 0.0}, ValueError, "rlink is 0; it must be above 0"),
        ({"rlink": None}, TypeError, "rlink is None; it must be a real number"),
        ({"vlink": None}, TypeError, "vlink is None; it must be a real number"),
        ({"group_rlink": 0.1}, ValueError, "group_rlink 0.1 is smaller than rlink 0.2"),
        ({"part": oracles.uniform(5, 3)}, ValueError, "need velocities"),
        ({"part": ParticleData(pos=oracles.uniform(5, 3))}, ValueError, "ParticleData has none"),
        ({"part": ParticleData(pos=oracles.uniform(5, 5), vel=oracles.uniform(5, 5))}, ValueError, "from 1 to 4"),
        ({"part": ParticleData(pos=oracles.uniform(5, 3), vel=oracles.uniform(5, 2))}, ValueError, "the shape of the"),
    ],
)
def test_invalid_arguments_raise(find: Any, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"part": particles(3), "rlink": 0.2, "vlink": 10.0} | changes
    for call in (find, find.jit):
        with pytest.raises(error, match=message) as raised:
            call(**arguments)
        assert oracles.one_sentence(raised)


@FINDERS
@pytest.mark.parametrize("group_rlink", [None, 0.3])
@pytest.mark.parametrize("field", ["pos", "vel"])
def test_nan_raises_with_its_row(find: Any, group_rlink: float | None, field: str) -> None:
    part = particles(3)
    getattr(part, field)[17, 1] = np.nan
    what = "velocity" if field == "vel" else "position"
    with pytest.raises(oracles.RUN_TIME_ERROR, match=f"row 17 .*{what}"):
        jax.block_until_ready(find(part, 0.2, 10.0, boxsize=1.0, group_rlink=group_rlink))


@FINDERS
def test_velocity_out_of_range_raises(find: Any) -> None:
    part = particles(3)
    part.vel[[3, 5]] = 1e30
    with pytest.raises(oracles.RUN_TIME_ERROR, match="row 3 has a velocity that is larger than"):
        jax.block_until_ready(find(part, 1.0, 1e-10, boxsize=1.0))


@FINDERS
@pytest.mark.parametrize(
    ("rlink", "vlink", "group_rlink", "message"),
    [
        (0.2, 0.0, 0.3, "rlink divided by vlink is not in the range of float32; both must be above 0"),
        (0.0, 1.0, 0.3, "rlink divided by vlink is not in the range of float32; both must be above 0"),
        (0.2, 1.0, 0.1, "group_rlink is smaller than rlink"),
    ],
)
def test_traced_lengths_that_are_invalid_raise(
    find: Any, rlink: float, vlink: float, group_rlink: float, message: str
) -> None:
    gpus.skip_where_kernels_cannot_raise()
    part = particles(3)
    with pytest.raises(oracles.RUN_TIME_ERROR, match=message):
        jax.block_until_ready(
            jax.jit(lambda *lengths: find(part, *lengths[:2], boxsize=1.0, group_rlink=lengths[2]))(
                rlink, vlink, group_rlink
            )
        )


def test_dispersion_of_a_group_follows_its_catalogue() -> None:
    """Two particles move at one dispersion of their group from each other; both sides of this length are tested."""
    part = particles(3)
    _, cata = jz.fof.fof_and_catalogue(part, 10.0)
    distance = np.linalg.norm(part.vel[0] - part.vel[1]) / float(cata.vel_dispersion[0])
    far = np.linalg.norm(part.pos[0] - part.pos[1])
    pair = ParticleData(pos=part.pos, vel=part.vel)
    shorter, longer = distance * 0.999, distance * 1.001
    reach = 1e4 * far  # positions then hardly count
    labels = [np.asarray(phase_space_labels(pair, reach, item, group_rlink=reach)) for item in (shorter, longer)]
    for item, label in zip((shorter, longer), labels, strict=True):
        np.testing.assert_array_equal(label, adaptive_labels(pair, reach, item, reach, None))


@jax.tree_util.register_dataclass
@dataclass
class Orbit:
    """Particles that compute their positions and velocities."""

    start: Any
    speed: Any
    id: Any

    @property
    def pos(self) -> Any:
        return self.start + 0.001 * self.speed

    @property
    def vel(self) -> Any:
        return 2 * self.speed


@pytest.mark.parametrize("group_rlink", [None, 0.1])
def test_computed_velocities_give_the_groups_of_stored_ones(group_rlink: float | None) -> None:
    part = particles(3)
    orbit = Orbit(jnp.asarray(part.pos), jnp.asarray(part.vel), jnp.asarray(part.id))
    stored = ParticleData(pos=orbit.pos, vel=orbit.vel, id=orbit.id)
    lengths, options = (0.1, 150.0 if group_rlink is None else 0.5), {"group_rlink": group_rlink}
    label = phase_space_labels.jit(orbit, *lengths, **options)
    np.testing.assert_array_equal(label, phase_space_labels.jit(stored, *lengths, **options))
    grouped, cata = phase_space_groups.jit(orbit, *lengths, **options)
    assert isinstance(grouped, Orbit)
    np.testing.assert_array_equal(cata.count, phase_space_groups.jit(stored, *lengths, **options)[1].count)
