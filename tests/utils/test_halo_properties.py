"""`--properties` against brute force over all particles, and haloes with known closed-form properties."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from headers import COSMOLOGY, write_types

from jztree_utils import cli, ics, io
from jztree_utils.cli._commands.argument_checks import sphere_names
from jztree_utils.cli._particles.spheres import virial_overdensity

MPC, MSUN, KM = 3.085678e24, 1.989e33, 1e5
UNITS = {"unit_length_in_cm": MPC, "unit_mass_in_g": 1e10 * MSUN, "unit_velocity_in_cm_per_s": KM}
G = 6.6743e-8 * 1e10 * MSUN / (MPC * KM**2)
NAMES = ("200c", "500c", "2500c", "200m", "vir", "100c")


def critical(omega0: float, a: float) -> float:
    """Return the critical density of a flat universe in comoving units per h: 3 H^2 / (8 pi G) a^3."""
    return 3 * 1e4 / (8 * np.pi * G) * (omega0 / a**3 + 1 - omega0) * a**3


def thresholds(omega0: float, a: float) -> dict[str, float]:
    """Return mean comoving densities by name, as the papers define them."""
    of_critical = critical(omega0, a)
    x = omega0 / a**3 / (omega0 / a**3 + 1 - omega0) - 1
    times = {"200c": 200.0, "500c": 500.0, "2500c": 2500.0, "100c": 100.0, "vir": 18 * np.pi**2 + 82 * x - 39 * x**2}
    return {name: number * of_critical for name, number in times.items()} | {"200m": 200 * omega0 * critical(omega0, 1)}


def sphere(r: np.ndarray, mass: np.ndarray, density: float, minimum: int = 10) -> tuple[float, float, int]:
    """Return mass, radius and particle number of the sphere at which the density first falls below the threshold.

    r: sorted distances.
    """
    total, volume = np.cumsum(mass), 4 / 3 * np.pi * np.append(r[1:], np.inf) ** 3
    if total[minimum - 1] <= density * 4 / 3 * np.pi * r[minimum - 1] ** 3:
        return 0.0, 0.0, 0
    last = minimum - 1 + int(np.argmax(total[minimum - 1 :] <= density * volume[minimum - 1 :]))
    return total[last], (total[last] / (4 / 3 * np.pi * density)) ** (1 / 3), last + 1


def brute(
    centre: np.ndarray,
    pos: np.ndarray,
    vel: np.ndarray,
    mass: np.ndarray,
    box: float,
    density: dict[str, float],
    a: float,
) -> dict[str, Any]:
    """Return the properties of one halo in float64, computed directly from their definitions."""
    separation = pos - centre
    separation -= box * np.round(separation / box)
    order = np.argsort((separation**2).sum(axis=1), kind="stable")
    separation, vel, mass = separation[order], vel[order], mass[order]
    r = np.sqrt((separation**2).sum(axis=1))
    result: dict[str, Any] = {}
    for name, expected in density.items():
        result[f"m{name}"], result[f"r{name}"], count = sphere(r, mass, expected)
        inside = slice(0, count)
        if name == "200m":
            speed = np.sqrt(G * np.cumsum(mass)[9 : max(count, 9)] / (a * r[9 : max(count, 9)]))
            result["vmax"], result["rmax"] = (speed.max(), r[9 + speed.argmax()]) if count else (0.0, 0.0)
        if name != "200c":
            continue
        result["count_200c"] = count
        w, x, v = mass[inside], separation[inside], vel[inside]
        if not count:
            result |= {"spin": 0.0, "vel_dispersion_200c": 0.0, "com_vel_200c": np.zeros(3)}
            continue
        bulk = w @ v / w.sum()
        momentum = (w[:, None] * np.cross(a * x, v - bulk)).sum(axis=0)
        total, radius = result["m200c"], a * result["r200c"]
        result["spin"] = np.linalg.norm(momentum) / (np.sqrt(2) * total * np.sqrt(G * total / radius) * radius)
        result["com_vel_200c"] = bulk
        result["vel_dispersion_200c"] = np.sqrt(w @ ((v - bulk) ** 2).sum(axis=1) / w.sum() / 3)
    return result


def columns_of(path: Path, *arguments: str) -> dict[str, np.ndarray]:
    """Return all columns of the catalogue of a call."""
    assert cli.main(["fof", *arguments, "-o", str(path)]) == 0
    with h5py.File(path) as file:
        return {name: data[()] for name, data in file["Groups"].items()}


def assert_all(result: dict[str, np.ndarray], expected: list[dict[str, Any]], rows: np.ndarray, rtol: float) -> None:
    for name in expected[0]:
        want = np.array([column[name] for column in expected])
        np.testing.assert_allclose(result[name][rows], want, rtol=rtol, atol=1e-4 * rtol, err_msg=name)


def write(path: Path, header: dict[str, Any], types: dict[int, dict[str, np.ndarray]]) -> Path:
    """Write a Gadget snapshot with particles of several types."""
    stored = {"pos": "Coordinates", "vel": "Velocities", "mass": "Masses", "id": "ParticleIDs"}
    units = {"UnitLength_in_cm": MPC, "UnitMass_in_g": 1e10 * MSUN, "UnitVelocity_in_cm_per_s": KM}
    columns = {ptype: {stored[name]: rows for name, rows in columns.items()} for ptype, columns in types.items()}
    return write_types(path, COSMOLOGY | units | {"Redshift": 0.0, "Time": 1.0} | header, columns)


# Real haloes


@pytest.mark.long
def test_haloes_of_a_simulation_match_brute_force(use_devices, shared_data, tmp_path) -> None:
    use_devices(1)
    snapshot = shared_data / "sample_48" / "snapshot_048.hdf5"
    result = columns_of(tmp_path / "c.hdf5", "sample", "--overdensity", "100c")
    with h5py.File(snapshot) as file:
        header = dict(file["Header"].attrs)
        pos, vel = (file[f"PartType1/{name}"][()].astype(np.float64) for name in ("Coordinates", "Velocities"))
    rows, box = np.arange(0, len(result["count"]), 3), float(header["BoxSize"])
    density, masses = thresholds(float(header["Omega0"]), 1.0), np.full(len(pos), header["MassTable"][1])
    assert set(density) == set(NAMES)
    expected = [
        brute(result["centre_pos"][row].astype(np.float64), pos, vel, masses, box, density, 1.0) for row in rows
    ]
    assert_all(result, expected, rows, 3e-4)  # OmegaLambda of the header ignores radiation
    assert sum(column["m200c"] > 0 for column in expected) > 20
    none = result["m200c"] == 0
    assert none.any()
    of_sphere = [name for name in result if name.endswith("_200c")]
    assert len(of_sphere) == 10
    for name in (*of_sphere, "r200c", "spin", "concentration"):
        assert not result[name][none].any(), name
        assert np.isfinite(result[name]).all(), name
    large = result["count"] >= 300
    complete = np.linalg.norm(result["angular_momentum"], axis=1)[large]
    complete /= np.sqrt(2 * G * result["m200c"] * result["r200c"])[large]
    assert np.median(complete) > 1.5 * np.median(result["spin"][large])


@pytest.mark.slow
def test_every_layout_has_the_same_numbers(use_devices, tmp_path) -> None:
    use_devices(1)
    contents = {}
    for layout in ("native", "gadget4", "swift"):
        path = tmp_path / f"{layout}.hdf5"
        assert cli.main(["fof", "sample", "--properties", "-o", str(path), "--layout", layout]) == 0
        contents[layout] = io.read_catalogue_content(path)
    native = contents["native"]
    for layout, content in contents.items():
        assert set(content.extra) == set(native.extra)
        assert content.info.spheres_of == "all matter, type 1"
        h = 0.68 if layout == "swift" else 1.0
        for name, column in native.extra.items():
            factor = {"mass": h, "length": h, "length*velocity": h, "density": 1 / h**2}.get(column.kind, 1.0)
            got = content.extra[name]
            np.testing.assert_allclose(got.values * factor, column.values, rtol=1e-5, err_msg=f"{layout}: {name}")
            assert got.definition == column.definition
    with h5py.File(tmp_path / "gadget4.hdf5") as file:
        np.testing.assert_array_equal(file["Group/Group_M_TopHat200"], native.extra["mvir"].values)


# Centres


def test_printed_table_has_mass_velocity_and_concentration(tmp_path, use_devices, capsys, monkeypatch) -> None:
    """A group without a sphere has a dash."""
    use_devices(1)
    monkeypatch.setattr("jztree_utils.cli._commands.fof._LARGEST", 1000)
    result = columns_of(tmp_path / "c.hdf5", "sample", "--properties", "--npart-min", "40", "--b", "0.15")
    assert not result["m200c"].all()
    lines = capsys.readouterr().out.splitlines()
    (head,) = (row for row, line in enumerate(lines) if line.split()[:2] == ["group", "particles"])
    titles = lines[head].split("   ")
    assert [title.strip() for title in titles[-3:]] == ["m200c [1e10 Msun/h]", "vmax [km/s]", "concentration"]
    for row, line in enumerate(lines[head + 1 :]):
        for cell, name in zip(line.split()[-3:], ("m200c", "vmax", "concentration"), strict=True):
            value = result[name][row]
            assert cell == "-" if not value > 0 else float(cell) == pytest.approx(value, rel=1e-3)
    assert cli.main(["fof", "sample", "-q"]) == 0
    assert cli.main(["fof", "sample"]) == 0
    assert "m200c" not in capsys.readouterr().out


@pytest.mark.long
def test_requested_centres_are_used(use_devices, tmp_path, capsys) -> None:
    """The lowest potential of the largest group equals a sum over pairs. The output names the kind of every centre."""
    use_devices(1)
    words = {"potential": "lowest potential", "densest": "densest particle", "mass": "centre of mass"}
    result = {}
    for centre, said in words.items():
        path = tmp_path / f"{centre}.hdf5"
        result[centre] = columns_of(path, "sample", "--properties", "--centre", centre, "--npart-min", "500")
        assert f"around the {said}" in capsys.readouterr().out.replace("particle of lowest", "lowest")
        with h5py.File(path) as file:
            assert said in file["Groups/centre_pos"].attrs["description"]
            ids, rlink = file["Members/id"][:], float(file["FriendsOfFriends"].attrs["linking_length"])
    np.testing.assert_array_equal(result["densest"]["centre_pos"], result["densest"]["densest_pos"])
    np.testing.assert_array_equal(result["mass"]["centre_pos"], result["mass"]["com_pos"])
    part, header = io.read_snapshot(ics.SAMPLE_3D)
    order = np.argsort(part.id)
    rows, one = order[np.searchsorted(part.id[order], ids)], result["potential"]
    for first, count, centre in zip(one["offset"], one["count"], one["centre_pos"], strict=True):
        pos = part.pos[rows[first : first + count]].astype(np.float64)
        separation = pos[:, None] - pos
        separation -= header.boxsize * np.round(separation / header.boxsize)
        inverse = 1 / np.sqrt((separation**2).sum(axis=2) + (0.1 * rlink) ** 2)
        np.testing.assert_array_equal(part.pos[rows[first + np.argmax(inverse.sum(axis=1))]], centre)


# Haloes in closed form


def halo(random: np.random.Generator, radii: np.ndarray, centre: np.ndarray) -> np.ndarray:
    method = random.standard_normal((len(radii), 3))
    return centre + radii[:, None] * method / np.linalg.norm(method, axis=1, keepdims=True)


@pytest.mark.long
def test_isothermal_and_nfw_spheres(use_devices, tmp_path, random) -> None:
    """M(<r) of both is known. Particles have equal steps in mass, so the expected mass is accurate to one particle."""
    use_devices(1)
    box, n, mass = 20.0, 20_000, 1e5
    step = (np.arange(n) + 0.5) / n
    density = thresholds(0.3, 1.0)
    radius = (mass / (4 / 3 * np.pi * density["200c"])) ** (1 / 3)
    # Isothermal: M = mass r / radius, up to 2 radii.
    isothermal = halo(random, 2 * radius * step, np.full(3, 5.0))
    # NFW of concentration 8, up to its radius of 200c.
    x = np.geomspace(1e-6, 8, 200_000)
    shape = np.log1p(x) - x / (1 + x)
    nfw = halo(random, np.interp(step * shape[-1], shape, x) * radius / 8, np.array([14.0, 14.0, 14.0]))
    pos = np.concatenate([isothermal, nfw]).astype(np.float32)
    masses = np.repeat([2 * mass / n, mass / n], n).astype(np.float32)
    path = write(tmp_path / "a.hdf5", {"BoxSize": box}, {1: {"pos": pos, "mass": masses, "vel": 0 * pos}})
    result = columns_of(tmp_path / "c.hdf5", str(path), "--rlink", "0.5", "--overdensity", "100c,800c")
    sphere_of = {"isothermal": 0, "nfw": 1}
    if result["com_pos"][0, 0] > 10:
        sphere_of = {"isothermal": 1, "nfw": 0}
    single = sphere_of["isothermal"]
    # The centre is wrong by the distance of some particles, which contains half a per cent of the mass.
    for name in ("200c", "500c", "800c", "2500c"):
        share = np.sqrt(density["200c"] / (float(name[:-1]) / 200 * density["200c"]))
        np.testing.assert_allclose(result[f"m{name}"][single], mass * share, rtol=0.01, err_msg=name)
        np.testing.assert_allclose(result[f"r{name}"][single], radius * share, rtol=0.01, err_msg=name)
    second = sphere_of["nfw"]
    np.testing.assert_allclose(result["m200c"][second], mass, rtol=0.01)
    np.testing.assert_allclose(result["concentration"][second], 8, rtol=0.02)
    np.testing.assert_allclose(result["rmax"][second], 2.1626 * radius / 8, rtol=0.1)
    assert (result["spin"] == 0).all()


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_zoom_with_three_masses_and_gas(count, use_devices, tmp_path, random, capsys) -> None:
    """Spheres contain the matter of every type, regardless of which types join the groups."""
    use_devices(count)
    a, box = 0.5, 10.0
    masses, types, centres = {0: 0.4, 1: 2.0, 2: 16.0, 3: 128.0}, {}, random.random((4, 3)) * 10
    for ptype, mass in masses.items():
        num = {0: 3000, 1: 3000, 2: 200, 3: 50}[ptype]
        pos = centres[random.integers(0, 4, num)] + random.normal(0, 0.05, (num, 3))
        vel = random.normal(0, 200, (num, 3)) * np.sqrt(a)
        rows = {"pos": (pos % box).astype(np.float32), "vel": vel.astype(np.float32)}
        types[ptype] = rows | {"mass": np.full(num, mass, np.float32), "id": np.arange(num) + 10_000 * ptype}
    path = write(tmp_path / "a.hdf5", {"BoxSize": box, "Redshift": 1.0, "Time": a}, types)
    arguments = (str(path), "--rlink", "0.05", "--overdensity", "100c")
    result = columns_of(tmp_path / "c.hdf5", *arguments)
    assert "all matter, types 0, 1, 2, 3" in capsys.readouterr().out
    pos, mass = (np.concatenate([rows[name] for rows in types.values()]).astype(np.float64) for name in ("pos", "mass"))
    vel = np.concatenate([rows["vel"] for rows in types.values()]).astype(np.float64) * np.sqrt(a)
    density, rows = thresholds(0.3, a), np.arange(len(result["count"]))
    centre = result["centre_pos"].astype(np.float64)
    expected = [brute(column, pos, vel, mass, box, density, a) for column in centre]
    assert_all(result, expected, rows, 1e-4)
    assert (result["m200c"] > 0).any()
    # If types are left out, the output reports their mass.
    assert cli.main(["fof", *arguments, "--matter", "2", "--json", "-o", str(tmp_path / "d.hdf5")]) == 0
    message = json.loads(capsys.readouterr().out)["spheres_of"]
    assert message == (
        "types 1, 2; without type 0 (3,000 particles, mass 1200 1e10 Msun/h); without type 3 (50 particles, mass "
        "6400 1e10 Msun/h)"
    )
    assert io.read_catalogue(tmp_path / "d.hdf5")[2].spheres_of == message
    with h5py.File(tmp_path / "d.hdf5") as file:
        assert (file["Groups/m200c"][:] < result["m200c"]).any()


@pytest.mark.long
@pytest.mark.parametrize(
    ("header", "without", "message"),
    [
        ({}, {0: "vel"}, "velocities and spin within r200c, because type 0 has no velocities."),
        ({"OmegaLambda": None}, {}, "because the snapshot has no OmegaLambda; give --omega-lambda."),
        ({"OmegaLambda": 0.6}, {}, "masses and radii of vir, because its universe is curved and has a cosmological"),
        ({}, {1: "mass"}, "masses and radii of spheres, vmax, rmax, concentration and spin, because the snapshot has "
         "no masses."),
        ({}, {}, None),
    ],
)  # fmt: skip
def test_omitted_properties_are_named(header, without, message, use_devices, tmp_path, random, capsys) -> None:
    use_devices(1)
    types = {
        ptype: {
            "pos": 5 + random.normal(0, 0.05, (200, 3)),
            "vel": random.normal(0, 200, (200, 3)),
            "mass": np.full(200, 2.0),
        }
        for ptype in (0, 1)
    }
    for ptype, name in without.items():
        del types[ptype][name]
    path = write(tmp_path / "a.hdf5", {"BoxSize": 10.0}, types)
    with h5py.File(path, "r+") as file:
        for name, value in header.items():
            file["Header"].attrs.pop(name)
            file["Header"].attrs.update({} if value is None else {name: value})
    result = columns_of(tmp_path / "c.hdf5", str(path), "--rlink", "0.1", "--properties")
    out = " ".join(capsys.readouterr().out.split())
    assert ("left out" in out) == (message is not None)
    assert message is None or message in out
    everything = {"spin", "m200c", "mvir", "m200m", "com_vel_200c", "vmax"}
    assert (everything <= result.keys()) == (message is None)


def test_attached_types_that_lack_a_property_are_named(use_devices, tmp_path, random, capsys) -> None:
    use_devices(1)
    rows = {"pos": random.random((50, 3)), "vel": random.random((50, 3)), "mass": np.ones(50)}
    types = {0: {"pos": rows["pos"]}, 1: rows, 4: rows | {"id": np.arange(50)}}
    path = write(tmp_path / "a.hdf5", {"BoxSize": 1.0}, types)
    assert cli.main(["fof", str(path), "--attach", "all", "--properties"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "no masses type 0 has none; the catalogue leaves out columns that need them" in out
    assert "no velocities type 0 has none;" in out
    assert "no identifiers types 0 and 1 have none; members are identified by their row" in out
    assert "because type 0 has no masses." in out
    assert "spheres of" not in out


@pytest.mark.parametrize("layout", ["native", "swift"])
def test_empty_catalogue_has_columns_without_rows(layout, use_devices, tmp_path) -> None:
    """If groups need more particles than exist, the columns exist but have no rows."""
    use_devices(1)
    call = ("sample", "--properties", "--npart-min", "200000", "--layout", layout)
    result = columns_of(tmp_path / "c.hdf5", *call)
    assert {"spin", "densest_pos", "com_vel_200c", "vmax", "axis_ratios_200c"} <= result.keys()
    assert not any(len(column) for column in result.values())


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_particles_for_a_density(n, tmp_path, error_of) -> None:
    np.save(tmp_path / "a.npy", np.zeros((n, 3)))
    words = f"--properties needs 3 particles to find the densest one, but there are {n};"
    assert words in error_of("fof", tmp_path / "a.npy", "--boxsize", "1", "--properties", "--npart-min", "1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--matter", "1"], "--matter 1 has no effect without --properties or --overdensity;"),
        (["--centre", "mass"], "--centre mass has no effect without --properties or --overdensity;"),
        (["--attach-within", "3"], "--attach-within 3.0 has no effect without --attach; add --attach, or remove it."),
    ],
)
def test_options_without_effect_raise(arguments, words, snapshot, error_of) -> None:
    assert words in error_of("fof", snapshot, *arguments)


# Names


def test_virial_overdensity() -> None:
    header = io.SnapshotHeader(omega0=1.0, omega_lambda=0.0)
    assert virial_overdensity(header) == pytest.approx(18 * np.pi**2)
    flat = io.SnapshotHeader(omega0=0.3, omega_lambda=0.7)
    assert virial_overdensity(flat) == pytest.approx(101.14, abs=0.01)
    early = io.SnapshotHeader(omega0=0.3, omega_lambda=0.7, redshift=9.0)
    assert virial_overdensity(early) == pytest.approx(177.5, abs=0.3)
    open_one = io.SnapshotHeader(omega0=0.3, omega_lambda=0.0)
    assert virial_overdensity(open_one) == pytest.approx(18 * np.pi**2 - 42 - 32 * 0.49)
    assert virial_overdensity(io.SnapshotHeader(omega0=0.3, omega_lambda=0.9)) is None
    assert virial_overdensity(io.SnapshotHeader(omega0=0.3)) is None


def test_names_of_spheres() -> None:
    default = ("200c", "500c", "2500c", "200m", "vir")
    assert sphere_names(None) == default
    assert sphere_names("100c, 178.0m,200c,vir") == (*default, "100c", "178m")
    for text in ("100x", "0c", "c", "1e3c", "100c,"):
        with pytest.raises(ValueError, match="it must be names such as 100c,178m,vir"):
            sphere_names(text)
