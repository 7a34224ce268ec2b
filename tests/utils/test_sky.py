"""Coordinates, groups and matches on the sky compared with their definitions in 80 bits, and with astropy."""

from typing import Any

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from jztree_utils import sky

WIDE = np.longdouble
# Objects around RA = 0, both poles, and everywhere; with equal directions and opposite ones.
SPECIAL_RA = np.array([0.0, 360.0, -360.0, 0.0, 123.0, 77.0, 180.0, 359.9999, 1e-4, 720.5, 0.0, 90.0, 270.0])
SPECIAL_DEC = np.array([0.0, 0.0, 0.0, 90.0, 90.0, -90.0, 0.0, 0.0, 1e-4, 89.9999, -89.9999, 45.0, -45.0])


def catalogue(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return objects: a third uniform on the sphere, a third close to RA = 0, and a third close to the poles."""
    random = np.random.default_rng(seed)
    ra, dec = random.uniform(0, 360, n), np.degrees(np.arcsin(random.uniform(-1, 1, n)))
    ra[: n // 3], dec[: n // 3] = random.normal(0, 1, n // 3), random.normal(0, 1, n // 3)
    dec[n // 3 : 2 * n // 3] = np.sign(dec[n // 3 : 2 * n // 3]) * (90 - abs(random.normal(0, 1, 2 * n // 3 - n // 3)))
    return ra, dec


def exact_vectors(ra: np.ndarray, dec: np.ndarray) -> np.ndarray:
    """Return unit vectors in 80 bits."""
    ra, dec = (np.asarray(array, WIDE) * (4 * np.arctan(WIDE(1)) / 180) for array in (ra, dec))
    return np.stack([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)], axis=-1)


def exact_angles(one: Any, second: Any) -> np.ndarray:
    """Return the angles in degrees between all directions of two catalogues, from vector products in 80 bits."""
    a, b = exact_vectors(*one)[:, None], exact_vectors(*second)[None]
    return np.arctan2(np.linalg.norm(np.cross(a, b), axis=-1), (a * b).sum(axis=-1)) * (45 / np.arctan(WIDE(1)))


def test_positions_match_their_definition() -> None:
    ra, dec = catalogue(500, 1)
    pos = sky.to_cartesian(ra, dec)
    assert pos.dtype == np.float64
    assert np.abs(pos - exact_vectors(ra, dec)).max() < 2.5e-16
    distance = np.random.default_rng(2).uniform(0, 1000, 500)
    np.testing.assert_allclose(sky.to_cartesian(ra, dec, distance), pos * distance[:, None], rtol=1e-15)
    np.testing.assert_array_equal(sky.to_cartesian(ra, dec, 2.0), 2 * pos)


def test_special_directions_are_exact() -> None:
    pos = sky.to_cartesian([0, 90, 180, 270, 360, -90, 12.5, 99.0], [0, 0, 0, 0, 0, 0, 90, -90])
    x, y, z = [1, 0, 0], [0, 1, 0], [0, 0, 1]
    np.testing.assert_array_equal(pos, [x, y, np.negative(x), np.negative(y), x, np.negative(y), z, np.negative(z)])
    ra, dec, distance = sky.from_cartesian([[0, 0, 0], [0, 0, -2], [1, -1e-300, 0], [-1, 0, 0]])
    np.testing.assert_array_equal(np.stack([ra, dec, distance]), [[0, 0, 0, 180], [0, -90, 0, 0], [0, 2, 1, 1]])


def test_coordinates_survive_a_round_trip() -> None:
    ra, dec = catalogue(500, 3)
    distance = np.random.default_rng(4).uniform(1, 1000, 500)
    result = sky.from_cartesian(sky.to_cartesian(ra, dec, distance))
    assert sky.angular_separation(result[0], result[1], ra, dec).max() < 1e-13
    assert np.all((result[0] >= 0) & (result[0] < 360))
    np.testing.assert_allclose(result[2], distance, rtol=1e-15)


def test_separations_are_exact_from_tiny_to_opposite() -> None:
    single = np.concatenate([catalogue(60, 5), [SPECIAL_RA, SPECIAL_DEC]], axis=1)
    tiny = 10.0 ** np.random.default_rng(6).uniform(-12, 0, single.shape)
    nearest = single[0] + tiny[0], np.clip(single[1] + tiny[1], -90, 90)
    opposite = nearest[0] + 180, -nearest[1]
    for second in (single, nearest, opposite):
        result = sky.angular_separation(single[0][:, None], single[1][:, None], second[0], second[1])
        exact = exact_angles(single, second).astype(np.float64)
        # Coordinates and oracle are rounded to 1e-19 radians, so zero is zero up to this.
        np.testing.assert_allclose(result, exact, rtol=1e-15, atol=1e-16)
    assert sky.angular_separation(10.0, 20.0, 10.0, 20.0) == 0
    assert sky.angular_separation(0.0, 90.0, 123.0, -90.0) == 180


def test_chords_and_angles_are_inverse() -> None:
    angles = np.concatenate([[0.0], np.geomspace(1e-12, 90, 40), [120.0, 179.0, 180.0]])
    chords = sky.chord_of_angle(angles)
    exact = 2 * np.sin(angles.astype(WIDE) * (2 * np.arctan(WIDE(1)) / 180))
    np.testing.assert_allclose(chords, exact.astype(np.float64), rtol=3e-16)
    assert chords[-1] == 2
    np.testing.assert_allclose(sky.angle_of_chord(chords), angles, rtol=1e-13)


def einstein_de_sitter(redshift: np.ndarray) -> np.ndarray:
    """Return comoving distances in Mpc/h for Omega_m = 1."""
    return 2 * 2997.92458 * -np.expm1(-0.5 * np.log1p(redshift))


def test_redshifts_and_distances_are_inverse() -> None:
    redshift = np.concatenate([[0.0], np.geomspace(1e-8, 1100, 300)])
    distance = einstein_de_sitter(redshift)
    np.testing.assert_allclose(sky.redshift_at(distance, einstein_de_sitter), redshift, rtol=1e-12)
    ra, dec = catalogue(len(redshift), 7)
    pos = sky.to_cartesian(ra, dec, redshift=redshift, cosmology=einstein_de_sitter)
    np.testing.assert_array_equal(pos, sky.to_cartesian(ra, dec, distance))
    assert sky.redshift_at([], einstein_de_sitter).shape == (0,)
    with pytest.raises(ValueError, match="no redshift up to 16384"):
        sky.redshift_at([6000.0], einstein_de_sitter)


@pytest.mark.parametrize("rlink", [0.0, 0.3, 2.0, 40.0, 180.0])
def test_groups_equal_connected_components(rlink: float) -> None:
    for n in (0, 1, 2, 300):
        ra, dec = (np.concatenate(both) for both in zip(catalogue(n, 8), (SPECIAL_RA, SPECIAL_DEC), strict=True))
        ra, dec = ra[:n], dec[:n]
        # Equal directions have an angle of 0 up to the rounding of the oracle.
        links = exact_angles((ra, dec), (ra, dec)) <= rlink + 1e-13
        label = connected_components(links)[1] if n else np.zeros(0, int)
        first = np.array([np.flatnonzero(label == array)[0] for array in label], np.int32)
        result = sky.angular_groups(ra, dec, rlink)
        assert result.dtype == np.int32
        np.testing.assert_array_equal(result, first)


@pytest.mark.parametrize("n", [0, 1, 300])
def test_groups_with_a_length_per_object_equal_connected_components(n: int) -> None:
    ra, dec = catalogue(n, 8)
    length = 10.0 ** np.random.default_rng(9).uniform(-2, 1, n)
    chord = 2 * np.sin(exact_angles((ra, dec), (ra, dec)) * (np.arctan(WIDE(1)) / 90))
    reach = sky.chord_of_angle(length)
    label = connected_components(chord <= (reach[:, None] + reach) / 2)[1] if n else np.zeros(0, int)
    first = np.array([np.flatnonzero(label == array)[0] for array in label], np.int32)
    np.testing.assert_array_equal(sky.angular_groups(ra, dec, length), first)
    np.testing.assert_array_equal(sky.angular_groups(ra, dec, np.full(n, 0.3)), sky.angular_groups(ra, dec, 0.3))


def test_groups_continue_across_zero_and_poles() -> None:
    ring = np.arange(0.0, 360.0, 20.0)  # around the north pole, in steps of 0.035 degrees
    ra = np.concatenate([[359.99, 0.0, 0.01, 719.98, 180.0], ring, [45.0, 225.0]])
    dec = np.concatenate([[0.0] * 5, np.full(len(ring), 89.9), [-89.99, -89.99]])
    result = sky.angular_groups(ra, dec, 0.05)
    np.testing.assert_array_equal(result, [0, 0, 0, 0, 4, *[5] * len(ring), *[5 + len(ring)] * 2])


def expected_matches(angle: np.ndarray, k: int, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    index, separation = np.full((len(angle), k), -7), np.full((len(angle), k), np.inf)
    for row, nearest in enumerate(angle):
        order = [number for number in np.argsort(nearest, kind="stable") if nearest[number] <= radius[row]][:k]
        index[row, : len(order)], separation[row, : len(order)] = order, nearest[order]
    return index, separation


@pytest.mark.parametrize("k", [1, 5, 300])
def test_matches_equal_brute_force(k: int) -> None:
    single, second = catalogue(200, 9), catalogue(250, 10)
    angle = exact_angles(single, second).astype(np.float64)
    for radius in (180.0, 1.5, np.random.default_rng(11).uniform(0, 5, 200)):
        index, separation = expected_matches(angle, k, np.broadcast_to(radius, 200))
        result = sky.match(*single, *second, k=k, radius=radius, fill_value=-7)
        np.testing.assert_array_equal(result.index, index)
        np.testing.assert_allclose(result.separation, separation, rtol=1e-14)
        np.testing.assert_array_equal(result.count, (index >= 0).sum(axis=1))
    np.fill_diagonal(within := exact_angles(single, single).astype(np.float64), np.inf)
    result = sky.match(*single, k=k, radius=3.0)
    index, separation = expected_matches(within, k, np.full(200, 3.0))
    np.testing.assert_array_equal(result.index, np.where(index == -7, -1, index))
    np.testing.assert_array_equal(result.found, np.isfinite(separation))


def test_all_objects_around_equal_brute_force() -> None:
    single, second = catalogue(200, 12), catalogue(250, 13)
    angle = exact_angles(single, second).astype(np.float64)
    for radius in (0.0, 1.5, 100.0, 180.0, np.random.default_rng(14).uniform(0, 5, 200)):
        row, row_b = np.nonzero(angle <= np.broadcast_to(radius, 200)[:, None])
        order = np.lexsort((angle[row, row_b], row))
        result = sky.search_around(*single, *second, radius)
        np.testing.assert_array_equal(result[0], row[order])
        np.testing.assert_array_equal(result[1], row_b[order])
        np.testing.assert_allclose(result[2], angle[row, row_b][order], rtol=1e-14)


def test_objects_at_equal_separations_are_in_order_of_rows() -> None:
    single, second, separation = sky.search_around(
        [10.0, 10.0], [0, 0], [11, 9, 10, 9, 11, 10], [0, 0, 0, 0, 0, 0.5], 1.0
    )
    np.testing.assert_array_equal(single, np.repeat([0, 1], 6))
    np.testing.assert_array_equal(second, np.tile([2, 5, 0, 1, 3, 4], 2))
    assert (np.diff(separation[:6]) >= 0).all()


def test_radius_includes_objects_at_exactly_this_separation() -> None:
    single, second = catalogue(40, 15), catalogue(40, 16)
    nearest = sky.match(*single, *second)
    assert sky.match(*single, *second, radius=nearest.separation[:, 0]).found.all()
    below = np.nextafter(nearest.separation[:, 0], 0)
    assert not sky.match(*single, *second, radius=below).found.any()
    assert len(sky.search_around(*single, *second, nearest.separation[:, 0])[0]) == 40
    assert len(sky.search_around(*single, *second, below)[0]) == 0


def test_few_objects_have_the_documented_results() -> None:
    sample = [10.0, 20.0], [0.0, 0.0]
    none: tuple[list[float], list[float]] = ([], [])
    for item, second, shape in ((none, sample, (0, 3)), (sample, none, (2, 3)), (none, none, (0, 3))):
        result = sky.match(*item, *second, k=3)
        assert result.index.shape == result.separation.shape == shape
        assert not result.found.any()
        assert all(len(column) == 0 for column in sky.search_around(*item, *second, 5.0))
    assert sky.match([10.0], [0.0], k=2).index.tolist() == [[-1, -1]]
    assert sky.match([10.0], [0.0], [190.0], [0.0], k=2).index.tolist() == [[0, -1]]
    assert sky.to_cartesian(*none).shape == (0, 3)
    assert [item.shape for item in sky.from_cartesian(np.zeros((0, 3)))] == [(0,)] * 3


def test_astropy_has_the_same_matches_and_positions() -> None:
    coordinates, units = pytest.importorskip("astropy.coordinates"), pytest.importorskip("astropy.units")
    cosmology = pytest.importorskip("astropy.cosmology").FlatLambdaCDM(H0=70, Om0=0.3)
    single, second = catalogue(150, 17), catalogue(120, 18)
    reference = [coordinates.SkyCoord(*both, unit="deg") for both in (single, second)]
    result = sky.match(*single, *second, k=3)
    for nth in (1, 2, 3):
        index, angle, _ = coordinates.match_coordinates_sky(*reference, nthneighbor=nth)
        np.testing.assert_array_equal(result.index[:, nth - 1], index)
        np.testing.assert_allclose(result.separation[:, nth - 1], angle.deg, rtol=1e-12)
    row, row_b, angle, _ = coordinates.search_around_sky(*reference, 2 * units.deg)
    order = np.lexsort((angle.deg, row))
    around = sky.search_around(*single, *second, 2.0)
    np.testing.assert_array_equal(np.stack(around[:2]), np.stack([row, row_b])[:, order])
    np.testing.assert_allclose(around[2], angle.deg[order], rtol=1e-12)
    redshift = np.linspace(0, 3, 150)
    pos = sky.to_cartesian(*single, redshift=redshift, cosmology=cosmology)
    distance = cosmology.comoving_distance(redshift)
    placed = coordinates.SkyCoord(*single, distance, unit=("deg", "deg", "Mpc")).cartesian.xyz.to_value("Mpc").T
    np.testing.assert_allclose(pos, placed, rtol=1e-13, atol=1e-10)
    np.testing.assert_allclose(sky.redshift_at(distance.value, cosmology), redshift, rtol=1e-12)


NAN = float("nan")
INVALID: list[tuple[Any, str]] = [
    (lambda: sky.to_cartesian([1.0, NAN], [0, 0]), "row 1 of ra is nan; it must be finite"),
    (lambda: sky.match([1.0], [0], [2.0], [np.inf]), "row 0 of source_dec is inf"),
    (lambda: sky.angular_groups([1, 2], [90, -90.5], 1), "row 1 of dec is -90.5; declinations"),
    (lambda: sky.to_cartesian([1, 2], [0]), "ra has 2 rows, and dec has 1"),
    (lambda: sky.to_cartesian([[1]], [0]), r"ra has shape \(1, 1\)"),
    (lambda: sky.to_cartesian([1, 2], [0, 0], [3, -1]), "row 1 of distance is -1"),
    (lambda: sky.to_cartesian([1, 2], [0, 0], [3]), "give one distance per object"),
    (lambda: sky.to_cartesian([1], [0], NAN), "distance is nan"),
    (lambda: sky.to_cartesian([1], [0], redshift=[-0.1], cosmology=einstein_de_sitter), "row 0 of redshift is -0.1"),
    (
        lambda: sky.to_cartesian([1, 2], [0, 0], redshift=[1], cosmology=einstein_de_sitter),
        "give one redshift per object",
    ),
    (lambda: sky.to_cartesian([1], [0], redshift=[1]), "give both, or neither"),
    (lambda: sky.to_cartesian([1], [0], [1], redshift=[1], cosmology=einstein_de_sitter), "give only one"),
    (lambda: sky.redshift_at([1.0], lambda z: 1.0), "one distance per redshift"),
    (lambda: sky.redshift_at([1.0], lambda z: 50 + z), "must increase"),
    (lambda: sky.from_cartesian([[1, 2]]), r"pos has shape \(1, 2\)"),
    (lambda: sky.angular_groups([1], [0], 181), "rlink is 181; angles must be from 0 to 180"),
    (lambda: sky.angular_groups([1, 2], [0, 0], [1]), r"one angle, or \(2,\), one per object"),
    (lambda: sky.angular_groups([1, 2], [0, 0], [1, NAN]), "row 1 of rlink is nan"),
    (lambda: sky.match([1], [0], [1], [0], fill_value=2**63), "within the range of int64"),
    (lambda: sky.angular_separation([1, 2], [0, 0, 0], 0, 0), r"\(2,\), \(3,\), \(\) and \(\); they must broadcast"),
    (lambda: sky.match([1], [0], [1], [0], radius=-1), "radius is -1"),
    (lambda: sky.search_around([1], [0], [1], [0], [1, 2]), r"radius has shape \(2,\)"),
    (lambda: sky.match([1], [0], [1]), "give both, or neither"),
    (lambda: sky.match([1], [0], [1], [0], k=0), "k is 0; it must be at least 1"),
    (lambda: sky.angular_separation(0, 0, 0, 91), "query_dec is 91"),
    (lambda: sky.angle_of_chord(2.1), "between unit vectors"),
    (lambda: sky.chord_of_angle([10, 190]), "row 1 of angle is 190"),
]


def test_invalid_values_raise() -> None:
    for call, message in INVALID:
        with pytest.raises(ValueError, match=message):
            call()


def test_wrong_types_raise() -> None:
    for call in (
        lambda: sky.to_cartesian(["a"], [0]),
        lambda: sky.match([1], [0], [1], [0], k=1.5),
        lambda: sky.match([1], [0], [1], [0], fill_value=1.5),
        lambda: sky.match([1], [0], [1], [0], fill_value=None),
        lambda: sky.redshift_at([1.0], "Planck18"),
        lambda: sky.to_cartesian([1j], [0]),
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("per_object", [False, True])
@pytest.mark.parametrize("lengths", [(3.0, 20.0), (20.0, 3.0), (0.0, 5.0), (5.0, 0.0), (500.0, 40.0)])
def test_survey_groups_equal_components_of_linked_pairs(lengths: tuple[float, float], per_object: bool) -> None:
    random = np.random.default_rng(8)
    ra, dec = catalogue(300, 6)
    distance = np.concatenate([random.uniform(0, 20, 50), random.uniform(0, 400, 200), np.full(50, 100.0)])
    ra[-25:], dec[-25:] = ra[-50:-25], dec[-50:-25]  # equal places
    spread = random.uniform(0.5, 1.5, (2, 300)) if per_object else np.ones((2, 300))
    across, along = np.array(lengths)[:, None] * spread
    half_chord = np.sin(exact_angles((ra, dec), (ra, dec)).astype(np.float64) * np.pi / 360)
    linked = half_chord * (distance[:, None] + distance) <= (across[:, None] + across) / 2
    linked &= np.abs(distance[:, None] - distance) <= (along[:, None] + along) / 2
    _, group = connected_components(linked, directed=False)
    first = np.unique(group, return_index=True)[1][group]
    np.testing.assert_array_equal(
        sky.survey_groups(ra, dec, distance, *((across, along) if per_object else lengths)), first
    )
    assert len(np.unique(first)) < 300


def test_survey_groups_of_no_objects_and_invalid_arguments() -> None:
    assert sky.survey_groups([], [], [], 1, 1).shape == (0,)
    for arguments, text in (
        (([1.0], 1, 1), r"distance has shape \(1,\), and ra \(2,\); give one distance per object"),
        (([1.0, -1], 1, 1), "row 1 of distance is -1; it must be at least 0"),
        (([1.0, 1], [1], 1), r"transverse has shape \(1,\); it must be one length, or \(2,\), one per object"),
        (([1.0, 1], 1, -2), "line_of_sight is -2; it must be at least 0"),
    ):
        with pytest.raises(ValueError, match=text):
            sky.survey_groups([1, 2], [0, 0], *arguments)


class Angle:
    """Angles with a unit, in the style of a Quantity of astropy."""

    def __init__(self, degrees: Any, unit: str = "rad") -> None:
        self.degrees, self.unit = np.asarray(degrees, np.float64), unit

    def to_value(self, unit: str) -> np.ndarray:
        if self.unit == "Mpc":
            raise ValueError("no angle")
        assert unit == "deg"
        return self.degrees

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.radians(self.degrees)


def test_angles_with_a_unit_become_degrees() -> None:
    (ra, dec), second = catalogue(40, 1), catalogue(30, 2)
    np.testing.assert_array_equal(sky.to_cartesian(Angle(ra), Angle(dec)), sky.to_cartesian(ra, dec))
    np.testing.assert_array_equal(sky.angular_groups(Angle(ra), dec, Angle(9.0)), sky.angular_groups(ra, dec, 9.0))
    matches, expected = sky.match(ra, dec, Angle(second[0]), Angle(second[1])), sky.match(ra, dec, *second)
    np.testing.assert_array_equal(matches.index, expected.index)
    np.testing.assert_array_equal(
        sky.angular_separation(Angle(ra[0]), dec[0], ra[1], dec[1]),
        sky.angular_separation(ra[0], dec[0], ra[1], dec[1]),
    )
    counts = [sky.angular_pair_counts(ra, dec, edges).count for edges in (Angle([0.0, 9.0]), [0.0, 9.0])]
    np.testing.assert_array_equal(*counts)
    with pytest.raises(TypeError, match="ra has the unit Mpc"):
        sky.to_cartesian(Angle(ra, "Mpc"), dec)


@pytest.mark.parametrize("kind", ["dict", "structured", "DataFrame", "Table", "QTable", "SkyCoord"])
def test_radec_of_other_packages(kind: str) -> None:
    ra, dec = catalogue(20, 3)
    table = np.empty(20, [("RA", float), ("DEC", float), ("z", float)])
    table["RA"], table["DEC"] = ra, dec
    if kind == "DataFrame":
        source = pytest.importorskip("pandas").DataFrame({"ra": ra, "Dec": dec})
    elif kind in ("Table", "QTable"):
        units = pytest.importorskip("astropy.units")
        source = getattr(pytest.importorskip("astropy.table"), kind)()
        source["ra"], source["dec"] = np.radians(ra) * units.rad, dec * units.deg
    elif kind == "SkyCoord":
        coordinates = pytest.importorskip("astropy.coordinates")
        source = coordinates.SkyCoord(ra, dec, unit="deg").galactic
    else:
        source = table if kind == "structured" else {"Ra": ra.tolist(), "dec": dec}
    coordinates_of_source = sky.radec(source)
    np.testing.assert_allclose(sky.to_cartesian(*coordinates_of_source), sky.to_cartesian(ra, dec), atol=1e-12)


def test_radec_without_coordinates_raises() -> None:
    with pytest.raises(
        TypeError, match="source is list; it must be a SkyCoord, or a table with the columns ra and dec"
    ):
        sky.radec([1.0, 2.0])
    with pytest.raises(ValueError, match="the table has 2 columns ra, but needs one; its columns are ra, RA, dec"):
        sky.radec({"ra": [1.0], "RA": [1.0], "dec": [2.0]})
    with pytest.raises(ValueError, match="the table has 0 columns dec"):
        sky.radec({"ra": [1.0]})
