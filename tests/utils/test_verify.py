"""Checks by brute force: correct results pass, and each planted error is found."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import jztree as jz
from jztree_utils import ics, verify
from jztree_utils.verify import _points

N, BOX, RLINK = 1500, 2.0, 0.08
pytestmark = pytest.mark.fast


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def pos(request: pytest.FixtureRequest) -> Iterator[np.ndarray]:
    random = np.random.default_rng(3)
    clumps = random.random((30, 3))[random.integers(30, size=N)] + random.normal(0, 0.02, (N, 3))
    with jax.enable_x64(request.param == np.float64):
        yield (BOX * clumps).astype(request.param)  # some are outside the box


def nearest(pos: np.ndarray, k: int = 5, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    result = jz.nearest(pos, k, boxsize=BOX, **options)
    return np.array(result.distance), np.array(result.index)


def labels(pos: np.ndarray) -> np.ndarray:
    return np.array(jz.group_labels(pos, RLINK, boxsize=BOX))


def test_correct_neighbours_pass(pos: np.ndarray) -> None:
    verify.neighbours(pos, *nearest(pos), boxsize=BOX).raise_if_wrong()
    verify.neighbours(pos, *nearest(pos, exclude_self=True), boxsize=BOX, exclude_self=True).raise_if_wrong()
    limited = nearest(pos, max_radius=0.05, queries=pos[:40])
    verify.neighbours(pos, *limited, boxsize=BOX, queries=pos[:40], max_radius=0.05).raise_if_wrong()
    everything = nearest(pos[:3], 4, allow_missing=True)
    verify.neighbours(pos[:3], *everything, boxsize=BOX).raise_if_wrong()


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (lambda distance, index: np.copyto(index[7, 3:4], index[8, 3:4] + 1), "reports the distance"),
        (lambda distance, index: np.copyto(index[7, 3:4], index[7, 2:3]), "lists a row twice"),
        (lambda distance, index: np.copyto(distance[7, 4:], distance[7, 4:] * 1.0001), "reports the distance"),
        (lambda distance, index: (np.copyto(distance[7, 4:], np.inf), np.copyto(index[7, 4:], -1)), "but it is"),
        (lambda distance, index: np.copyto(index[7, 4:], -1), "which is at inf"),
        (lambda distance, index: np.copyto(distance[7, 4:], np.nan), "reports the distance nan"),
    ],
    ids=["wrong row", "row listed twice", "distance changed", "neighbour left out", "row left out", "NaN"],
)
def test_planted_errors_of_neighbours_are_found(pos: np.ndarray, plant: Any, message: str) -> None:
    distance, index = nearest(pos)
    plant(distance, index)
    result = verify.neighbours(pos, distance, index, boxsize=BOX)
    assert len(result.faults) == 1
    assert "row 7" in result.faults[0]
    assert message in result.faults[0]
    with pytest.raises(AssertionError, match="row 7"):
        result.raise_if_wrong()


def test_groups_pass_and_planted_labels_are_found(pos: np.ndarray) -> None:
    label = labels(pos)
    verify.group_labels(pos, label, RLINK, boxsize=BOX).raise_if_wrong()
    verify.group_labels(pos, label + 7, RLINK, boxsize=BOX).raise_if_wrong()
    member = np.flatnonzero(np.bincount(label, minlength=N)[label] > 2)[0]
    moved = label.copy()
    moved[member] = label[label != label[member]][0]
    assert "have different labels" in str(verify.group_labels(pos, moved, RLINK, boxsize=BOX))
    first, second = np.unique(label)[:2]
    joined = np.where(label == second, first, label)
    assert "no chain of links" in str(verify.group_labels(pos, joined, RLINK, boxsize=BOX))


def test_attached_particles_pass_and_planted_labels_are_found(pos: np.ndarray) -> None:
    label, stars = labels(pos), pos[:200] + pos.dtype.type(0.01)
    label[label % 3 == 0] = -1
    distance, nearest = (np.array(column)[:, 0] for column in jz.nearest(pos, 1, queries=stars, boxsize=BOX))
    of_stars = np.where(distance <= 0.012, label[nearest], -1)
    assert (of_stars >= 0).any()
    verify.attached(pos, label, stars, of_stars, 0.012, boxsize=BOX).raise_if_wrong()
    verify.attached(pos, label, stars, label[nearest], boxsize=BOX).raise_if_wrong()
    (far,), planted = np.flatnonzero(distance > 0.012)[:1], label[nearest]
    planted[far] = 7
    faults = verify.attached(
        pos, label, stars, np.where(distance > 0.012, planted, of_stars), 0.012, boxsize=BOX
    ).faults
    assert any(fault.startswith(f"row {far} has the label 7, but the nearest grouped particle is") for fault in faults)
    planted[:] = of_stars
    planted[3] = -2
    (fault,) = verify.attached(pos, label, stars, planted, 0.012, boxsize=BOX).faults
    assert fault.startswith("row 3 has the label -2, but the nearest")


def test_counts_pass_and_a_lost_count_is_found(pos: np.ndarray) -> None:
    count = np.array(jz.count_within(pos, 0.1, boxsize=BOX))
    verify.counts_within(pos, 0.1, count, boxsize=BOX).raise_if_wrong()
    count[11] -= 1
    (fault,) = verify.counts_within(pos, 0.1, count, boxsize=BOX).faults
    assert fault.startswith("row 11 has the count")


def test_pair_counts_pass_and_a_lost_pair_is_found(pos: np.ndarray) -> None:
    edges = np.array([0.0, 0.05, 0.1, 0.2])
    count = np.asarray(jz.pair_counts(pos, edges, boxsize=BOX).count).astype(np.int64)
    verify.pair_counts(pos, edges, count, boxsize=BOX).raise_if_wrong()
    between = np.asarray(jz.pair_counts(pos, edges, boxsize=BOX, queries=pos[:99]).count).astype(np.int64)
    verify.pair_counts(pos, edges, between, boxsize=BOX, queries=pos[:99]).raise_if_wrong()
    count[1] -= 2
    assert "bin 1 has" in verify.pair_counts(pos, edges, count, boxsize=BOX).faults[0]


def test_spanning_trees_pass_and_planted_edges_are_found(pos: np.ndarray) -> None:
    tree = jz.spanning_tree(pos, boxsize=BOX)
    i, j, length = (np.array(column) for column in (tree.i, tree.j, tree.length))
    verify.spanning_tree(pos, tree, boxsize=BOX).raise_if_wrong()

    def faults(i: np.ndarray, j: np.ndarray, length: np.ndarray) -> str:
        return str(verify.spanning_tree(pos, SimpleNamespace(i=i, j=j, length=length), boxsize=BOX))

    longer = length.copy()
    longer[20] *= 1.001
    assert "edge 20 has the length" in faults(i, j, longer)
    longer[20] = np.nan
    assert "edge 20 has the length nan" in faults(i, j, longer)
    ends = np.append(i[:-1], i[0]), np.append(j[:-1], j[0])  # the longest edge is missing
    assert "no path joins" in faults(*ends, np.append(length[:-1], length[0]))
    assert "particles need" in faults(i[:-1], j[:-1], length[:-1])
    # Replace the shortest edge by a longer one between the same two parts.
    far = int(np.argmax(np.abs(pos - pos[i[0]]).sum(axis=1)))
    side = _side_of(i[1:], j[1:], j[0], N)
    start = i[0] if side[far] else j[0]
    second = np.sqrt(((_nearest(pos[start].astype(np.float64) - pos[far])) ** 2).sum())
    changed = faults(np.append(i[1:], start), np.append(j[1:], far), np.append(length[1:], second).astype(length.dtype))
    assert "less than the longest edge" in changed


def _nearest(offset: np.ndarray) -> np.ndarray:
    return offset - BOX * np.rint(offset / BOX)


def _side_of(i: np.ndarray, j: np.ndarray, start: int, n: int) -> np.ndarray:
    """Return which vertices are joined with ``start``."""
    reached = np.zeros(n, bool)
    reached[start] = True
    for _ in range(n):
        before = reached.sum()
        both = reached[i] | reached[j]
        reached[i[both]] = reached[j[both]] = True
        if reached.sum() == before:
            break
    return reached


def test_catalogues_pass_and_moved_centres_are_found() -> None:
    part, boxsize = ics.cosmo_3d_sample()
    rlink = 0.2 * boxsize / part.num_total ** (1 / 3)
    grouped, cata = jz.friends_of_friends(part, rlink, boxsize=boxsize)
    verify.catalogue(grouped, cata, boxsize=boxsize).raise_if_wrong()
    centre = np.array(cata.com_pos)
    centre[4] += 1e-4 * boxsize
    assert "group 4 has the centre" in str(verify.catalogue(grouped, replace(cata, com_pos=centre), boxsize=boxsize))
    mass = np.array(cata.mass)
    mass[4] *= 1.0001
    assert "group 4 has the mass" in str(verify.catalogue(grouped, replace(cata, mass=mass), boxsize=boxsize))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("com_pos", "centre"),
        ("mass", "mass"),
        ("com_inertia_radius", "radius of inertia"),
        ("max_radius", "largest distance"),
        ("com_vel", "velocity"),
        ("vel_dispersion", "velocity dispersion"),
        ("shape_tensor", "shape tensor"),
    ],
)
@pytest.mark.parametrize("factor", [1.001, np.nan])
def test_each_wrong_column_of_a_catalogue_is_found(column: str, words: str, factor: float) -> None:
    random = np.random.default_rng(0)
    part = jz.data.ParticleData(
        pos=random.random((N, 3), np.float32), mass=random.random(N, np.float32), vel=random.random((N, 3), np.float32)
    )
    grouped, cata = jz.friends_of_friends(part, RLINK, boxsize=1.0, npart_min=3)
    verify.catalogue(grouped, cata, boxsize=1.0).raise_if_wrong()
    values = np.array(getattr(cata, column))
    values[4] *= factor
    result = verify.catalogue(grouped, replace(cata, **{column: values}), boxsize=1.0)
    assert f"group 4 has the {words}" in str(result)


def test_particles_in_two_groups_and_too_many_groups_are_found() -> None:
    grouped, cata = jz.friends_of_friends(np.random.default_rng(0).random((N, 3), np.float32), RLINK, npart_min=3)
    count = np.array(cata.count)
    count[4] += 1
    assert "group 4 has the rows" in str(verify.catalogue(grouped, replace(cata, count=count)))
    assert "have only" in str(verify.catalogue(grouped, replace(cata, ngroups=int(cata.ngroups) + 1)))


def test_padding_is_neither_source_nor_query() -> None:
    padded = jz.data.pad_particles(jz.data.Pos(pos=np.random.default_rng(0).random((99, 3), np.float32), num=99), 20)
    for result in (
        verify.neighbours(padded, *jz.nearest(padded, 4)),
        verify.neighbours(padded, *jz.nearest(padded, 4, queries=padded), queries=padded),
        verify.group_labels(padded, jz.group_labels(padded, 0.2), 0.2),
        verify.counts_within(padded, 0.2, jz.count_within(padded, 0.2)),
        verify.spanning_tree(padded, jz.spanning_tree(padded)),
    ):
        result.raise_if_wrong()
        assert result.rows == 99


def test_limits_of_each_query_and_infinite_radii_pass(pos: np.ndarray) -> None:
    limits = np.linspace(0, 0.2, N).astype(pos.dtype)
    limited = nearest(pos, max_radius=limits, allow_missing=True)
    verify.neighbours(pos, *limited, boxsize=BOX, max_radius=limits).raise_if_wrong()
    verify.counts_within(pos, np.inf, jz.count_within(pos, np.inf, boxsize=BOX), boxsize=BOX).raise_if_wrong()


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda pos: verify.neighbours(pos, np.zeros((9, 2)), np.zeros((8, 2), int)), r"distance has shape \(9, 2\)"),
        (lambda pos: verify.neighbours(pos, np.zeros((8, 2)), np.zeros((8, 3), int)), "index has"),
        (lambda pos: verify.neighbours(pos, np.zeros((8, 2)), np.zeros((8, 2))), "rows are integers"),
        (lambda pos: verify.group_labels(pos, np.zeros(9), 0.1), "label has shape"),
        (lambda pos: verify.group_labels(pos, np.zeros(8), np.full(8, 0.1)), "a single linking length"),
        (lambda pos: verify.group_labels(pos, np.zeros(8), np.nan), "rlink is nan"),
        (lambda pos: verify.group_labels(np.full((8, 3), np.nan), np.zeros(8), 0.1), "the position of row 0"),
        (lambda pos: verify.group_labels(pos[None], np.zeros(8), 0.1), "without an axis over devices"),
        (lambda pos: verify.counts_within(pos, 0.1, np.zeros((8, 2))), "count has shape"),
        (lambda pos: verify.counts_within(pos, 0.1, np.zeros(8), queries=pos[:, :2]), "the queries have 2 dimensions"),
        (lambda pos: verify.pair_counts(pos, [0.1, 0.2, 0.3], [1]), "count has shape"),
        (lambda pos: verify.pair_counts(pos, [0.3, 0.2], [1]), "ascending"),
    ],
)
def test_results_of_other_particles_raise(check: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        check(np.random.default_rng(0).random((8, 3)))


def test_the_description_names_rows_and_probability(pos: np.ndarray) -> None:
    result = verify.neighbours(pos, *nearest(pos), boxsize=BOX, samples=100)
    assert result.checked == 100
    assert result.probability_missed(0.01) == pytest.approx(0.99**100)
    assert str(result).startswith(
        "neighbours: 100 of 1,500 rows checked, no fault\n  probability of missing an error: 0.9048"
    )
    assert verify.neighbours(pos, *nearest(pos), boxsize=BOX).probability_missed() == 0
    with pytest.raises(ValueError, match="samples is 0; pass a number of at least 1"):
        verify.neighbours(pos, *nearest(pos), boxsize=BOX, samples=0)


@pytest.mark.parametrize("n", [0, 1])
def test_no_particles_or_one_pass(n: int) -> None:
    few = np.zeros((n, 3), np.float32)
    verify.group_labels(few, jz.group_labels(few, 1.0), 1.0).raise_if_wrong()
    verify.counts_within(few, 1.0, jz.count_within(few, 1.0)).raise_if_wrong()
    verify.spanning_tree(few, jz.spanning_tree(few)).raise_if_wrong()
    grouped, cata = jz.friends_of_friends(few, 1.0, npart_min=1)
    verify.catalogue(grouped, cata).raise_if_wrong()
    verify.lowest_potential_particle(grouped, cata, cata.com_pos).raise_if_wrong()
    verify.principal_axes(cata, jz.halos.principal_axes(cata)).raise_if_wrong()
    radius = np.zeros(n, np.float32)
    inside = jz.sphere_properties(few, radius, queries=few)
    verify.sphere_properties(few, radius, inside, queries=few).raise_if_wrong()
    sphere = jz.spherical_overdensity(few, 1.0, queries=few)
    peak = {"vmax": sphere.vmax, "rmax": sphere.rmax}
    verify.spheres(few, 1.0, sphere.radius, sphere.mass, queries=few, **peak).raise_if_wrong()


def test_columns_of_a_light_cone_pass_and_are_named_without_their_properties() -> None:
    random = np.random.default_rng(0)
    part = jz.data.ParticleData(pos=random.random((N, 2), np.float32), vel=random.random((N, 2), np.float32))
    grouped, cata = jz.friends_of_friends(part, 0.01, npart_min=3)
    assert not verify.catalogue(grouped, cata).notes
    moving = replace(cata, v_rad=np.zeros(len(cata.count)))
    assert "v_rad were not checked, because the particles lack" in str(verify.catalogue(grouped, moving))


def test_particles_that_are_not_densest_or_lowest_are_found() -> None:
    random = np.random.default_rng(0)
    pos = random.normal(0.5, 0.04, (300, 3)).astype(np.float32)
    grouped, cata = jz.friends_of_friends(pos, 0.3, boxsize=1.0, npart_min=20)
    density = np.asarray(jz.knn_density(grouped, 8, boxsize=1.0))
    densest = jz.halos.densest_particle(grouped, cata, density)
    assert verify.densest_particle(grouped, cata, densest.part, densest.density, 8, boxsize=1.0).passed
    second = np.argsort(density)[-2]
    result = verify.densest_particle(
        grouped, cata, np.asarray(grouped)[second][None], [density[second]], 8, boxsize=1.0
    )
    assert "above that of its densest" in result.faults[0]
    lowest = jz.halos.lowest_potential_particle(grouped, cata, boxsize=1.0)
    assert verify.lowest_potential_particle(grouped, cata, lowest.part, boxsize=1.0).passed
    result = verify.lowest_potential_particle(grouped, cata, np.asarray(grouped)[second][None], boxsize=1.0)
    assert "below that of its centre" in result.faults[0]
    result = verify.lowest_potential_particle(grouped, cata, np.full((1, 3), 0.123), boxsize=1.0)
    assert "has no particle at" in result.faults[0]


def test_default_sample_of_densest_particles_counts_the_distances_to_all_particles(monkeypatch) -> None:
    pos = (np.arange(40)[:, None] + np.linspace(0, 0.1, 5)).astype(np.float32).reshape(-1, 1)
    grouped, cata = jz.friends_of_friends(pos, 0.5, npart_min=2)
    densest = jz.halos.densest_particle(grouped, cata, jz.knn_density(grouped, 3))
    monkeypatch.setattr(_points, "PAIRS", 15 * len(pos))
    result = verify.densest_particle(grouped, cata, densest.part, densest.density, 3)
    assert (result.passed, result.rows, result.checked) == (True, 40, 15)


def test_spheres_that_do_not_fit_the_box_pass() -> None:
    random = np.random.default_rng(0)
    part = jz.data.ParticleData(
        pos=random.random((400, 3), np.float32), mass=np.ones(400, np.float32), vel=random.random((400, 3), np.float32)
    )
    centres, density = np.append(part.pos[:20], part.pos[:1] + 30, axis=0), 390.0
    sphere = jz.spherical_overdensity(part, density, queries=centres, boxsize=1.0, gravity=2.0)
    assert np.isnan(sphere.radius).any()
    assert (sphere.radius == 0).any()
    peak = {"vmax": sphere.vmax, "rmax": sphere.rmax, "gravity": 2.0}
    verify.spheres(part, density, sphere.radius, sphere.mass, queries=centres, boxsize=1.0, **peak).raise_if_wrong()
    inside = jz.sphere_properties(part, np.asarray(sphere.radius), queries=centres, boxsize=1.0)
    options = {"queries": centres, "boxsize": 1.0}
    verify.sphere_properties(part, sphere.radius, inside, **options).raise_if_wrong()
    radius = np.where(np.isnan(sphere.radius), 0, sphere.radius)
    assert "but its radius is 0.0" in str(verify.sphere_properties(part, radius, inside, **options))


def test_spheres_that_contain_the_whole_box_are_nan() -> None:
    x, centres = np.random.default_rng(0).random((400, 1), np.float32), np.zeros((1, 1), np.float32)
    sphere = jz.spherical_overdensity(x, 20.0, queries=centres, boxsize=1.0)
    assert np.isnan(sphere.radius).all()
    verify.spheres(x, 20.0, sphere.radius, sphere.mass, queries=centres, boxsize=1.0).raise_if_wrong()
    assert not verify.spheres(x, 20.0, [0.5], [400.0], queries=centres, boxsize=1.0).passed
