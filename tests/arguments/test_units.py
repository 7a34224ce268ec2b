"""Numbers in any unit: results are correct up to rounding, or an error names the quantity that is out of range.

The oracles apply the definitions in NumPy's long doubles, which have a wider range than float32 and float64.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of

from jztree import data, halos
from jztree.config import CatalogueConfig, FofConfig, TreeConfig
from jztree.density import knn_density, smoothing_length, sph_density
from jztree.fof import fof_and_catalogue, fof_labels
from jztree.knn import knn
from jztree.overdensity import spherical_overdensity
from jztree.tree import build_tree_hierarchy, zsort, zsort_and_tree

CLUMPS, MEMBERS, RLINK = 6, 40, 0.05
CFG = FofConfig(catalogue=CatalogueConfig(npart_min=20))
MASSES = TreeConfig(masses=True)
# Units of length, mass and velocity, and the results that float32 cannot represent.
UNITS = [
    (1.0, 1.0, 1.0, None),
    (3e24, 1e33, 1e7, None),
    (1e36, 1e36, 1e1, None),
    (1e-25, 1e-30, 1e-5, None),
    (1e-30, 1e-37, 1e37, None),
    (1e37, 1e-35, 1e-30, None),
    (1e38, 1.0, 1.0, "row {row} of the positions is NaN or infinite, or larger than 4.2e37"),
    (1e-39, 1.0, 1.0, "is so small that its axes are outside the range of float32"),
    (1.0, 1e38, 1.0, "the mass of the group in row 0 of the catalogue is outside the range of float32"),
    (1.0, 1e-39, 1.0, "row 0 has a mass that is negative, NaN or outside the range of float32"),
    (1.0, 1.0, 1e38, "row {row} has a velocity that is NaN, infinite or larger than 4.2e37"),
    (1e30, 1.0, 1e30, "the angular_momentum .* is outside the range of float32"),
    (1e-25, 1.0, 1e-25, "the angular_momentum .* is outside the range of float32"),
]
NAMES = [f"{length:g}-{mass:g}-{velocity:g}" for length, mass, velocity, _ in UNITS]


@pytest.fixture(autouse=True)
def _kernels_raise() -> None:
    gpus.skip_where_kernels_cannot_raise()


def clumps(length: float, mass: float, velocity: float, dtype: Any) -> data.ParticleData:
    """Return six groups of 40 particles each within the unit box, in other units."""
    random = np.random.default_rng(51)
    n = CLUMPS * MEMBERS
    centre = np.repeat(random.random((CLUMPS, 3)), MEMBERS, axis=0)
    pos = centre + 0.01 * random.standard_normal((n, 3))
    return data.ParticleData(
        pos=(pos * length).astype(dtype),
        mass=((0.5 + random.random(n)) * mass).astype(dtype),
        vel=(random.standard_normal((n, 3)) * velocity).astype(dtype),
        id=np.arange(n, dtype=np.int32),
    )


def by_definition(part: data.ParticleData, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the catalogue entries of one group, in long doubles."""
    pos, mass, vel = (np.asarray(x)[rows].astype(np.longdouble) for x in (part.pos, part.mass, part.vel))
    total = mass.sum()
    centre, speed = (mass[:, None] * pos).sum(axis=0) / total, (mass[:, None] * vel).sum(axis=0) / total
    x, v = pos - centre, vel - speed
    radius2 = (x**2).sum(axis=1)
    size2 = (mass * radius2).sum() / total
    tensor = (mass[:, None, None] * x[:, :, None] * x[:, None, :]).sum(axis=0) / total
    return {
        "mass": total,
        "com_pos": centre,
        "com_vel": speed,
        "com_inertia_radius": np.sqrt(size2),
        "max_radius": np.sqrt(radius2.max()),
        "vel_dispersion": np.sqrt((mass * (v**2).sum(axis=1)).sum() / total / 3),
        "angular_momentum": (mass[:, None] * np.cross(x, v)).sum(axis=0) / total,
        "shape_tensor": tensor / size2,
    }


def check_catalogue(part: data.ParticleData, ids: np.ndarray, cata: Any) -> None:
    """Compare a catalogue with its definition. ids: of the particles in group order. cata: without padding."""
    axes = halos.principal_axes(cata)
    assert cata.ngroups == CLUMPS
    eps = float(np.finfo(np.asarray(cata.com_pos).dtype).eps)
    for group in range(CLUMPS):
        rows = ids[cata.offset[group] : cata.offset[group] + cata.count[group]]
        assert set(rows) == set(range(rows[0] // MEMBERS * MEMBERS, (rows[0] // MEMBERS + 1) * MEMBERS))
        for name, expected in by_definition(part, rows).items():
            result = np.asarray(getattr(cata, name)[group]).astype(np.longdouble)
            scale = np.abs(expected).max()
            # The oracle measures positions from the origin, and not from the group's first particle.
            assert np.abs(result - expected).max() <= max(8 * eps, 1e-13) * scale, name
        lengths = np.asarray(axes.lengths[group]).astype(np.longdouble)
        size = np.longdouble(cata.com_inertia_radius[group])
        assert abs((lengths**2).sum() / size**2 - 1) < 100 * eps


@pytest.mark.parametrize(
    "call",
    [
        lambda part: fof_and_catalogue.jit(part, RLINK),
        lambda part: spherical_overdensity.jit(part, 1.0, queries=part.pos[:1]),
        lambda part: zsort_and_tree.jit(part, MASSES),
    ],
    ids=["catalogue", "spheres", "tree"],
)
def test_masses_that_underflow_in_the_dtype_of_positions(x64: None, call: Callable[[Any], Any]) -> None:
    # A Python number gets the dtype of the positions.
    part = data.PosMass(pos=np.random.default_rng(2).random((9, 3), np.float32), mass=1e-38)
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"mass .* outside the range of float32"):
        jax.block_until_ready(call(part))


@pytest.mark.parametrize("ndev", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("length", "mass", "velocity", "refused"), UNITS, ids=NAMES)
def test_catalogue_in_any_unit(
    length: float, mass: float, velocity: float, refused: str | None, ndev: int, dtype: Any
) -> None:
    part = clumps(length, mass, velocity, dtype)

    def found() -> tuple[np.ndarray, Any]:
        if ndev == 1:
            grouped, cata = fof_and_catalogue.jit(part, RLINK * length, cfg=CFG)
            return np.asarray(grouped.id), data.squeeze_catalogue(cata)
        stacked = data.expand_particles(part, ndev)
        grouped, cata = fof_and_catalogue.smap(mesh_of(ndev), jit=True)(stacked, RLINK * length, cfg=CFG)
        ids = data.flatten_particles(grouped).id
        return np.asarray(ids), data.squeeze_catalogue(cata, offset_mode="global", nparts=grouped.num)

    if refused is None or dtype == np.float64:
        check_catalogue(part, *found())
        return
    column = part.vel if "velocity" in refused else part.pos
    row = int(np.argmax((np.abs(column) > 4.2535296e37).any(axis=1)))
    row %= len(part.pos) // ndev
    with pytest.raises(Exception, match=refused.format(row=row)) as error:
        found()
    assert ndev == 1 or "on rank " in str(error.value)


@pytest.mark.parametrize(("length", "velocity"), [(1e-160, 1e130), (1e-300, 1e100), (1e140, 1e-170), (1e140, 1e140)])
@pytest.mark.parametrize("ndev", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_catalogue_of_float64_whose_squares_leave_its_range(
    length: float, velocity: float, ndev: int, x64: None
) -> None:
    part = clumps(length, 1.0, velocity, np.float64)
    if ndev == 1:
        grouped, cata = fof_and_catalogue.jit(part, RLINK * length, cfg=CFG)
        check_catalogue(part, np.asarray(grouped.id), data.squeeze_catalogue(cata))
        return
    grouped, cata = fof_and_catalogue.smap(mesh_of(4), jit=True)(
        data.expand_particles(part, 4), RLINK * length, cfg=CFG
    )
    ids = np.asarray(data.flatten_particles(grouped).id)
    check_catalogue(part, ids, data.squeeze_catalogue(cata, offset_mode="global", nparts=grouped.num))


def test_masses_of_float64_keep_their_range_with_positions_of_float32(x64: None) -> None:
    part = clumps(1.0, 1.0, 1.0, np.float32)
    part.mass = part.mass.astype(np.float64) * 2e43
    grouped, cata = fof_and_catalogue.jit(part, RLINK, cfg=CFG)
    assert cata.mass.dtype == jnp.float64
    check_catalogue(part, np.asarray(grouped.id), data.squeeze_catalogue(cata))
    th = zsort_and_tree.jit(part, MASSES)[1]
    np.testing.assert_allclose(th.mass(th.num_planes - 1).sum(), part.mass.sum(), rtol=1e-14)
    assert np.all(knn_density.jit(part, 8) > 1e43)
    with pytest.raises(
        Exception, match=r"row 0 has a mass .* outside the range of float32.*positions and masses in float64"
    ):
        jax.block_until_ready(spherical_overdensity(part, 1e46, queries=part.pos[:2]).mass)


@pytest.mark.parametrize("mass", [2e43, 1e-43])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_float64_numbers_that_jax_would_truncate_are_refused(compiled: bool, mass: float) -> None:
    part = clumps(1.0, 1.0, 1.0, np.float32)
    part.mass = np.full(len(part.pos), mass)
    words = rf"mass holds {mass:g}".replace("+", r"\+") + r", which is outside the range of float32 .*jax_enable_x64"

    def calls(function: Any, *arguments: Any, **options: Any) -> Callable[[], Any]:
        return lambda: (function.jit if compiled else function)(part, *arguments, **options)

    for call in (
        calls(fof_and_catalogue, RLINK),
        calls(knn_density, 8),
        calls(sph_density, 8),
        calls(spherical_overdensity, 1.0, queries=part.pos[:2]),
        calls(zsort_and_tree, MASSES),
        lambda: data.expand_particles(part, 2),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    part.mass, part.vel = None, np.full((len(part.pos), 3), 1e40)
    with pytest.raises(ValueError, match=r"vel holds 1e\+40"):
        calls(fof_and_catalogue, RLINK)()
    part.pos = part.pos.astype(np.float64) * 1e40
    for function in (knn, smoothing_length):
        with pytest.raises(ValueError, match=r"positions holds|pos holds"):
            calls(function, 8)()


def with_bad_mass(value: float, row: int) -> data.ParticleData:
    part = clumps(1.0, 1.0, 1.0, np.float32)
    part.mass[row] = value
    return part


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0, 1e-40])
def test_bad_masses_name_their_row(value: float) -> None:
    part = with_bad_mass(value, 77)
    partz, index = zsort(part)
    where = int(np.flatnonzero(np.asarray(index) == 77)[0])
    for row, call in (
        (77, lambda: fof_and_catalogue.jit(part, RLINK)[1].count),
        (77, lambda: knn_density.jit(part, 8)),
        (77, lambda: sph_density.jit(part, 8)),
        (77, lambda: spherical_overdensity.jit(part, 1.0, queries=part.pos[:2]).count),
        (77, lambda: zsort_and_tree.jit(part, MASSES)[1].flat_mass),
        (where, lambda: build_tree_hierarchy.jit(partz, MASSES).flat_mass),
    ):
        with pytest.raises(Exception, match=f"row {row} has a mass that is negative, NaN or outside") as error:
            jax.block_until_ready(call())
        assert oracles.one_sentence(error)


def test_bad_masses_in_padding_do_not_matter() -> None:
    part = with_bad_mass(np.nan, 239)
    part.num, part.vel[239] = 239, np.inf
    assert np.isfinite(fof_and_catalogue.jit(part, RLINK)[1].mass).all()
    assert np.isfinite(knn_density.jit(part, 8)).all()
    assert np.isfinite(zsort_and_tree.jit(part, MASSES)[1].flat_mass).all()


@pytest.mark.parametrize(
    "what", ["mass", *(pytest.param(item, marks=pytest.mark.slow) for item in ("vel", "attached mass", "shared mass"))]
)
def test_bad_rows_on_one_rank_raise_on_all(what: str) -> None:
    part, attached = clumps(1.0, 1.0, 1.0, np.float32), clumps(1.0, 1.0, 1.0, np.float32)
    words = "on rank 2: row 5 has a "
    if what == "mass":
        part.mass[2 * 60 + 5] = np.nan
    elif what == "vel":
        part.vel[2 * 60 + 5, 1] = -np.inf
    elif what == "attached mass":
        attached.mass[2 * 60 + 5] = -1
        words = r"on rank 2: row 5 of attached\[0\] has a mass"
    else:
        part.mass, attached.mass, words = np.float32(-1), np.float32(1), "on rank 0: the mass that all particles share"
    find = fof_and_catalogue.smap(mesh_of(4), jit=True)
    with pytest.raises(Exception, match=words):
        find(data.expand_particles(part, 4), RLINK, cfg=CFG, attached=data.expand_particles(attached, 4))


@pytest.mark.parametrize("length", [1e-44, 1e-40, 1e-38, 1e-30, 1e30, 4e37])
@pytest.mark.parametrize("ndev", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_neighbours_and_links_in_any_unit_of_length(ndev: int, length: float) -> None:
    """Include subnormal coordinates, which XLA flushes to 0."""
    pos = (np.random.default_rng(52).random((240, 3)) * length).astype(np.float32)
    wide = pos.astype(np.float64) / length
    rlink = 0.15 * length
    if ndev == 1:
        rad, idx = knn.jit(pos, k=5)
        label = fof_labels.jit(pos, rlink, output_order="input")[1]
    else:
        stacked = data.expand_particles(data.ParticleData(pos=pos, id=np.arange(240, dtype=np.int32)), ndev)
        mesh = mesh_of(ndev)
        rad, idx = (np.asarray(x).reshape(-1, 5) for x in knn.smap(mesh, jit=True)(stacked, k=5))
        partz, label = fof_labels.smap(mesh, jit=True)(stacked, rlink)
        order = np.asarray(data.flatten_particles(partz).id)
        label = oracles.smallest_members(np.asarray(label).reshape(-1)[np.argsort(order)])
    separation = np.sqrt(((wide[:, None] - wide[None]) ** 2).sum(axis=-1))
    expected = np.sort(separation, axis=1)[:, :5]
    spacing = float(np.float32(1e-45)) / length
    np.testing.assert_allclose(np.asarray(rad, np.float64) / length, expected, rtol=1e-6, atol=spacing)
    np.testing.assert_allclose(
        np.take_along_axis(separation, np.asarray(idx), axis=1), expected, rtol=1e-6, atol=spacing
    )
    linked = oracles.components(pos.astype(np.float64) / length, rlink / length)
    np.testing.assert_array_equal(oracles.smallest_members(np.asarray(label)), oracles.smallest_members(linked))


@pytest.mark.parametrize("separate", [False, True], ids=["own", "queries"])
@pytest.mark.parametrize("count", [9, 300])
def test_distances_that_are_tiny_compared_with_the_extent(count: int, separate: bool) -> None:
    """Scaling a set of extent 9e29 so that squares fit would flush these coordinates to 0, but none are equal."""
    clump = np.arange(count, dtype=np.float32) * np.float32(1e-42)
    clump[1::4] = -clump[::4][: len(clump[1::4])]
    clump[3::4] = clump[::4][: len(clump[3::4])]
    pos = np.append(clump, np.float32(9e29))[np.random.default_rng(53).permutation(count + 1)][:, None]
    query = pos[::2] if separate else None
    rad, idx = knn.jit(pos, count + 1, part_query=query)
    wide = pos.astype(np.float64)
    separation = np.abs((wide if query is None else wide[::2]) - wide.T)
    np.testing.assert_array_equal(rad, np.sort(separation, axis=1).astype(np.float32))
    np.testing.assert_array_equal(np.take_along_axis(separation, np.asarray(idx), axis=1), np.sort(separation, axis=1))
    for rlink in (0.0, 1e-44, 1.5e-42):
        label = fof_labels.jit(pos, rlink, output_order="input")[1]
        np.testing.assert_array_equal(label, oracles.smallest_members(oracles.components(wide, rlink)))


def test_positions_too_far_apart_raise() -> None:
    far = np.array([[-3e38, 0, 0], [3e38, 0, 0]], np.float32)
    for function in (smoothing_length, knn_density):
        with pytest.raises(Exception, match=r"row 0 of the positions is NaN or infinite, or larger than 4\.2e37"):
            jax.block_until_ready(function(far, 2 if function is smoothing_length else 3 - 1, queries=far))


@pytest.mark.long
def test_radii_that_xla_flushes_to_zero_give_finite_densities() -> None:
    pos = (np.arange(40, dtype=np.float32) * np.float32(1e-44))[:, None] * np.ones((1, 3), np.float32)
    for density in (knn_density, sph_density):
        with pytest.raises(Exception, match="the density in row 0 is outside the range of float32; choose"):
            jax.block_until_ready(density.jit(pos, 8))
        assert np.isinf(density.jit(np.zeros((8, 3), np.float32), 8)).all()


@pytest.mark.parametrize(
    ("length", "mass"),
    [(1.0, 1.0), (3e24, 1e36), (3e24, 1.0), (1e-20, 1e-36), (1e-12, 1e38), (1e13, 1.0), (1e12, 1e-3), (1e-13, 1.0)],
)
def test_densities_in_any_unit(length: float, mass: float, dtype: Any) -> None:
    part = clumps(length, mass, 1.0, dtype)
    pos, masses = part.pos.astype(np.longdouble), part.mass.astype(np.longdouble)
    separation = np.sqrt(((pos[:, None] - pos[None]) ** 2).sum(axis=-1))
    order = np.argsort(separation, axis=1)[:, :8]
    radius = np.take_along_axis(separation, order, axis=1)[:, -1]
    expected = masses[order[:, 1:-1]].sum(axis=1) / (4 * np.longdouble(math.pi) / 3 * radius**3)
    kept = np.finfo(dtype)
    if ((expected >= kept.tiny) & (expected <= kept.max)).all():
        result = np.asarray(knn_density.jit(part, 8)).astype(np.longdouble)
        assert np.abs(result / expected - 1).max() < 40 * kept.eps
    else:
        for density in (knn_density, sph_density):
            with pytest.raises(Exception, match=r"the density in row \d+ is outside the range of float32"):
                jax.block_until_ready(density.jit(part, 8))


def test_sums_that_overflow_float32_are_named() -> None:
    part = clumps(1.0, 1.0, 1.0, np.float32)
    part.mass = np.full(len(part.pos), 1e38, np.float32)
    for words, call in (
        (
            "the mass of the group in row 0 of the catalogue",
            lambda: fof_and_catalogue.jit(part, RLINK, cfg=CFG)[1].mass,
        ),
        ("the mass of a node", lambda: zsort_and_tree.jit(part, MASSES)[1].flat_mass),
        ("the radius, the mass or vmax of the sphere in row 0", lambda: spheres(part).mass),
    ):
        with pytest.raises(Exception, match=f"{words} is outside the range of float32; choose .*jax_enable_x64"):
            jax.block_until_ready(call())


def spheres(part: data.ParticleData, density: float = 1e38) -> Any:
    return spherical_overdensity.jit(part, density, queries=part.pos[:2], gravity=6.6743e-8)


@pytest.mark.parametrize(("length", "mass"), [(1.0, 1.0), (3e11, 1e33), (1e-9, 1e-30), (1e-10, 1e-3)])
def test_spheres_in_any_unit(length: float, mass: float, dtype: Any) -> None:
    part = clumps(length, mass, 1.0, dtype)
    density = 1e5 * mass / length**3
    result = spheres(part, density)
    masses = part.mass.astype(np.longdouble)
    for row in range(2):
        separation = np.sqrt(((part.pos.astype(np.longdouble) - part.pos[row]) ** 2).sum(axis=1))
        order = np.argsort(separation)
        inside = np.cumsum(masses[order])
        volume = 4 * np.longdouble(math.pi) / 3
        below = inside[:-1] <= volume * separation[order][1:] ** 3 * density
        last = int(np.argmax(below & (np.arange(len(below)) >= 1)))
        assert result.count[row] == last + 1
        np.testing.assert_allclose(float(result.mass[row] / mass), float(inside[last] / mass), rtol=1e-6)
        radius = np.cbrt(inside[last] / volume / density)
        np.testing.assert_allclose(float(result.radius[row] / length), float(radius / length), rtol=1e-6)
        assert 0 < result.vmax[row] < np.inf


@pytest.mark.parametrize(
    ("dims", "length", "mass", "radii"),
    [
        (1, 1e-300, 1e-300, "1e-150 to 1e+300"),
        (1, 1e-160, 1.0, "1e-150 to 1e+300"),
        (2, 1e-160, 1e-150, "1e-150 to 1e+150"),
        (3, 1e-120, 1e-150, "1e-100 to 1e+100"),
        (4, 1e-80, 1e-150, "1e-75 to 1e+75"),
    ],
)
def test_spheres_whose_volumes_underflow_are_refused(
    dims: int, length: float, mass: float, radii: str, x64: None
) -> None:
    pos = np.random.default_rng(1).normal(size=(200, dims)) * length
    part = data.PosMass(pos=pos, mass=np.full(200, mass))
    words = f"sphere in row 0 is outside the range of float64; choose other units, in which radii are from {radii}."
    density = float(mass / np.longdouble(length) ** dims)
    with pytest.raises(Exception, match=re.escape(words)):
        jax.block_until_ready(spherical_overdensity(part, density, queries=pos[:1]))


@pytest.mark.long
def test_inertia_tensor_and_spin_in_centimetres() -> None:
    unit, cgs = (
        data.squeeze_catalogue(
            fof_and_catalogue.jit(clumps(length, 1.0, speed, np.float32), RLINK * length, cfg=CFG)[1]
        )
        for length, speed in ((1.0, 1.0), (3e24, 1e7))
    )
    expected = unit.shape_tensor * unit.com_inertia_radius[:, None, None] ** 2
    np.testing.assert_allclose(halos.inertia_tensor(unit), expected, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(np.trace(halos.inertia_tensor(unit)[0]), unit.com_inertia_radius[0] ** 2, rtol=1e-6)
    words = (
        "the inertia_tensor of the group in row 0 of the catalogue holds squares of lengths outside the range of "
        "float32"
    )
    for function in (halos.inertia_tensor, halos.inertia_tensor.jit):
        with pytest.raises(oracles.RUN_TIME_ERROR, match=words):
            jax.block_until_ready(function(cgs))
    spins = [
        halos.spin(cata, np.full(CLUMPS, 1e20, np.float32), np.float32(0.1) * np.full(CLUMPS, length, "f"), gravity)
        for cata, length, gravity in ((unit, 1.0, 1e-20), (cgs, 3e24, 1e-20 * 3e24 * 1e14))
    ]
    np.testing.assert_allclose(spins[1], spins[0], rtol=1e-4)
    assert np.all((np.asarray(spins[0]) > 0) & np.isfinite(spins[0]))
