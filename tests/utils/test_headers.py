"""Header entries under the names of other codes, options that replace them, and units inferred from masses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import headers
import numpy as np
import pytest

from jztree.data import ParticleData
from jztree_utils import cli, ics, io
from jztree_utils import mass_function as mf
from jztree_utils.cli._commands.arguments import parse
from jztree_utils.cli._commands.snapshots import complete_header, read_options

pytestmark = pytest.mark.usefixtures("one_device")
_UNITS = ("--unit-length", "Mpc/h", "--unit-mass", "1e10 Msun/h", "--unit-velocity", "km/s")


def write_gizmo(path: Path, num: int, random: np.random.Generator) -> np.ndarray:
    """Write a snapshot in the format of GIZMO since 2021. Return its velocities as stored."""
    counts = [0, num, 0, 0, 0, 0]
    header = {
        "BoxSize": 60000.0,
        "ComovingIntegrationOn": 1,
        "GIZMO_version": 2022,
        "HubbleParam": 0.7,
        "MassTable": [0.0, 1e-3, 0.0, 0.0, 0.0, 0.0],
        "NumFilesPerSnapshot": 1,
        "NumPart_ThisFile": counts,
        "NumPart_Total": counts,
        "Omega_Baryon": 0.045,
        "Omega_Lambda": 0.73,
        "Omega_Matter": 0.27,
        "Omega_Radiation": 0.0,
        "Redshift": 3.0,
        "Time": 0.25,
        # GIZMO divides them by h; its parameter file states kpc/h and 1e10 Msun/h.
        "UnitLength_In_CGS": 3.085678e21 / 0.7,
        "UnitMass_In_CGS": 1.989e43 / 0.7,
        "UnitVelocity_In_CGS": 1e5,
    }
    vel = random.normal(0, 100, (num, 3)).astype(np.float32)
    with h5py.File(path, "w") as file:
        file.create_group("Header").attrs.update(header)
        file["PartType1/Coordinates"] = random.random((num, 3)) * 60000
        file["PartType1/Velocities"] = vel
    return vel


def test_headers_of_gizmo(tmp_path, random) -> None:
    stored = write_gizmo(tmp_path / "a.hdf5", 40, random)
    snapshot = io.open_snapshot(tmp_path / "a.hdf5")
    header = snapshot.header
    assert snapshot.description == "GIZMO snapshot: 40 particles of type 1, box 60000 kpc/h, z = 3"
    assert (header.omega0, header.omega_lambda, header.omega_baryon, header.hubble) == (0.27, 0.73, 0.045, 0.7)
    units = (header.unit_length_in_cm, header.unit_mass_in_g, header.unit_velocity_in_cm_per_s)
    np.testing.assert_allclose(units, (3.085678e21, 1.989e43, 1e5), rtol=1e-12)
    np.testing.assert_allclose(snapshot.read("vel"), stored / 2, rtol=1e-6)
    second = io.ReadOptions(redshift=0.0, hubble=0.5)
    again = io.open_snapshot(tmp_path / "a.hdf5", options=second)
    np.testing.assert_array_equal(again.read("vel"), stored)
    assert (again.header.redshift, again.header.time, again.header.hubble) == (0.0, 1.0, 0.5)


def test_units_of_gizmo_without_cosmology(tmp_path, random) -> None:
    """Units do not contain h then, and the header states the units of the numbers."""
    write_gizmo(tmp_path / "a.hdf5", 4, random)
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        file["Header"].attrs.update(ComovingIntegrationOn=0, UnitLength_In_CGS=3.085678e18)
    header = io.read_header(tmp_path / "a.hdf5")
    assert (header.unit_length_in_cm, io.unit_name(header, "length")) == (3.085678e18, "pc")


def clumps(random: np.random.Generator) -> ParticleData:
    centres = np.repeat(random.random((4, 3)) * 30, 300, axis=0)
    pos = (centres + random.normal(0, 0.08, centres.shape)) % 30
    mass = random.uniform(4, 5, len(pos)).astype(np.float32)
    vel = random.normal(0, 200, pos.shape).astype(np.float32)
    return ParticleData(pos=pos.astype(np.float32), mass=mass, vel=vel, id=np.arange(len(pos)), num=len(pos))


@pytest.mark.long
def test_options_replace_missing_header_entries(tmp_path, random, capsys) -> None:
    part = clumps(random)
    header = replace(headers.FLAT, boxsize=30.0, redshift=0.5, time=1 / 1.5, comoving=None)
    io.write_snapshot(tmp_path / "stated.hdf5", part, header)
    np.savez(tmp_path / "a.npz", pos=part.pos, mass=part.mass, vel=part.vel, id=part.id)
    options = ["--boxsize", "30", "--omega0", "0.3", "--omega-lambda", "0.7", "--hubble", "0.7", "--redshift", "0.5"]
    common = ["--rlink", "0.1", "--properties"]
    result = []
    for name, arguments in (("stated.hdf5", []), ("a.npz", [*options, *_UNITS])):
        output = tmp_path / f"{name}.c.hdf5"
        assert cli.main(["fof", str(tmp_path / name), *arguments, *common, "-o", str(output)]) == 0
        assert "left out" not in capsys.readouterr().out
        with h5py.File(output) as file:
            result.append({name: (column[()], dict(column.attrs)) for name, column in file["Groups"].items()})
    single, second = result
    assert single.keys() == second.keys()
    for name in single:
        np.testing.assert_allclose(single[name][0], second[name][0], rtol=1e-5, err_msg=name)
        assert single[name][1] == second[name][1]
    assert cli.main(["fof", str(tmp_path / "a.npz"), "--boxsize", "30", *common]) == 0
    out = capsys.readouterr().out
    needed = "give --omega0, --omega-lambda, --unit-length, --unit-mass, --unit-velocity."
    assert " ".join(out.split()).endswith(needed)


@pytest.mark.parametrize(("length", "mass", "free"), [("Mpc", "1e10Msun", True), ("kpc/h", "Msun/h", False)])
def test_units_by_name(length, mass, free) -> None:
    options = read_options(parse(["fof", "a", "--unit-length", length, "--unit-mass", mass, "--unit-velocity", "2e5"]))
    header = options.complete(io.SnapshotHeader(hubble=0.7))
    assert header.h_free == free
    assert [io.unit_name(header, kind) for kind in ("length", "mass")] == [length, mass.replace("10M", "10 M")]
    assert header.unit_velocity_in_cm_per_s == 2e5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--unit-length", "furlong"], "--unit-length is furlong; it must be pc, kpc, Mpc (append /h if it is per h)"),
        (["--unit-velocity", "c"], "--unit-velocity is c; it must be km/s or a number in cm/s."),
        (["--unit-length", "Mpc", "--unit-mass", "Msun/h"], "give either both per h or neither."),
        (["--unit-length", "-3"], "--unit-length is -3; it must be a number from 1e-60 to 1e+60, in cm."),
        (["--omega0", "-1"], "--omega0 is -1; it must be a number from 0 to 1e+06."),
        (["--redshift", "nan"], "--redshift is nan; it must be a number from -0.999999 to 1e+09."),
        (["--hubble", "fast"], "Argument --hubble: 'fast' is not a number"),
    ],
)
def test_invalid_options(arguments, words, snapshot, error_of) -> None:
    joined = [f"{flag}={value}" for flag, value in zip(arguments[::2], arguments[1::2], strict=True)]
    assert words in error_of("fof", snapshot, *joined)


@pytest.mark.long
def test_units_are_inferred_from_masses(tmp_path, capsys) -> None:
    """The sample file does not state units, and a copy cannot be recognised by its name."""
    copy, output = tmp_path / "copy.hdf5", tmp_path / "c.hdf5"
    copy.write_bytes(Path(ics.SAMPLE_3D).read_bytes())
    header = io.read_header(copy)
    assert header.unit_length_in_cm is None
    known = complete_header(copy, header)
    assert [io.unit_name(known, kind) for kind in ("length", "mass", "velocity")] == ["Mpc/h", "1e10 Msun/h", "km/s"]
    assert known == replace(complete_header(ics.SAMPLE_3D, header), comoving=None)
    assert cli.main(["fof", str(copy), "--properties", "--json", "-o", str(output)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["units"] == {"length": "Mpc/h", "mass": "1e10 Msun/h", "velocity": "km/s"}
    assert "spin" in summary["largest"]
    assert io.read_catalogue(output)[2].header.unit_mass_in_g == 1.989e43


@pytest.mark.parametrize("entry", [{"unit_length_in_cm": 1.0}, {"omega0": 0.9}, {"mass_table": (0.0, 0.0)}])
def test_ambiguous_units_are_not_inferred(entry: dict[str, Any]) -> None:
    header = replace(io.read_header(ics.SAMPLE_3D), **entry)
    assert mf.with_units(header) == header
