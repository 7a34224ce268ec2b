"""The command line: warnings about input that is accepted, but is probably a mistake."""

import json
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from headers import write_types
from test_cli_runs import run

from jztree_utils import cli, io, plot
from jztree_utils.cli._commands.suggestions import suggest

UNITS = {"UnitLength_in_cm": 3.085678e24, "UnitMass_in_g": 1.989e43, "UnitVelocity_in_cm_per_s": 1e5}


@pytest.fixture
def write(tmp_path, write_gadget, random) -> Any:
    """Write 500 particles in a box of length 2 from ``begin`` on, and 12 outside by up to ``excess``."""

    def made(excess: float, begin: float = 0.0, ptype: int = 1) -> Path:
        pos = begin + 2 * random.random((500, 3))
        pos[:12, 1] = begin + 2 + np.linspace(excess / 2, excess, 12)
        header = UNITS | {"BoxSize": 2.0, "HubbleParam": 0.7}
        return write_gadget(tmp_path / "s.hdf5", pos.astype(np.float32), header=header, ptype=ptype)

    return made


# Positions outside the box


@pytest.mark.parametrize("devices", [1, 3])
@pytest.mark.parametrize("begin", [0.0, -1.0])
def test_particles_outside_the_box_are_counted(write, use_devices, tmp_path, capsys, begin, devices) -> None:
    use_devices(devices)
    path = str(write(0.08, begin))
    words = (
        "jztree: warning: 12 particles are outside the periodic box, by up to 0.08 Mpc/h along dimension 1 "
        f"({begin:g} to {begin + 2:g}); their periodic images are inside. If the box is wrong, give another "
        "one with --boxsize.\n"
    )
    calls = (["fof"], ["knn", "-k", "2"], ["xi", "--bins", "0.1,0.5,3"])
    for command, *rest in calls:
        status, out, err = run(command, path, *rest, capsys=capsys)
        assert (status, err) == (0, words)
        status, out, err = run(command, path, *rest, "--json", capsys=capsys)
        assert (status, err) == (0, "")
        assert json.loads(out)["outside_box"] == {"particles": 12, "excess": pytest.approx(0.08, rel=1e-5)}
    assert run("plot", "density", path, "-o", str(tmp_path / "x.png"), capsys=capsys)[2] == words


@pytest.mark.parametrize(("excess", "begin"), [(0.0, 0.0), (0.0, -1.0), (2e-7, 0.0)])
def test_particles_in_the_box_or_on_its_face_pass_silently(write, one_device, capsys, excess, begin) -> None:
    path = str(write(excess, begin))
    status, out, err = run("fof", path, "--json", capsys=capsys)
    assert (status, err, json.loads(out)["outside_box"]) == (0, "", None)
    assert run("fof", path, capsys=capsys)[2] == ""


@pytest.mark.parametrize("devices", [1, 3])
def test_one_attached_particle_outside_the_box_is_counted(tmp_path, use_devices, random, capsys, devices) -> None:
    use_devices(devices)
    pos = {0: random.random((50, 3)), 1: random.random((300, 3))}
    pos[0][7] = [0.5, -0.03, 1.02]  # one particle, although two of its coordinates are outside
    header = {"BoxSize": 1.0, "MassTable": np.ones(6)}
    write_types(tmp_path / "s.hdf5", header, {ptype: {"Coordinates": rows} for ptype, rows in pos.items()})
    attached = run("fof", str(tmp_path / "s.hdf5"), "--attach", "0", "--b", "0.5", capsys=capsys)
    assert (attached[0], "1 particle is outside the periodic box, by up to 0.03 along" in attached[2]) == (0, True)
    use_devices(1)
    assert run("fof", str(tmp_path / "s.hdf5"), "--b", "0.5", capsys=capsys)[2] == ""


# Masses and the mass table


@pytest.mark.parametrize("devices", [1, 3])
def test_masses_that_differ_from_the_table_are_counted(write, use_devices, tmp_path, capsys, devices) -> None:
    use_devices(devices)
    path = write(0.0)
    masses = np.full(500, 2.5, np.float32)
    with h5py.File(path, "r+") as file:
        file["PartType1/Masses"] = masses
    with warnings.catch_warnings(action="error"):
        assert run("fof", str(path), capsys=capsys)[2] == ""
        io.read_snapshot(path, fields=("pos", "mass"))
    masses[[3, 77, 400]] = 2.6, 2.6, 2.5001
    with h5py.File(path, "r+") as file:
        file["PartType1/Masses"][:] = masses
    words = (
        f"{path} holds 3 particles of type 1 whose masses differ from the mass in the MassTable, 2.5; their own masses "
        "are used. Correct the file if these are wrong."
    )
    assert run("fof", str(path), capsys=capsys)[2] == f"jztree: warning: {words}\n"
    assert run("convert", str(path), "-o", str(tmp_path / "a.npz"), capsys=capsys)[2] == f"jztree: warning: {words}\n"
    with pytest.warns(UserWarning, match="3 particles of type 1 whose masses differ") as warned:
        part = io.read_snapshot(path, fields=("pos", "mass"))[0]
    assert str(warned[0].message) == words
    np.testing.assert_array_equal(part.mass, masses)


# Linking lengths


@pytest.mark.parametrize("arguments", [["--b", "1.5"], ["--rlink", "0.378"]])
def test_linking_length_above_the_mean_separation_warns(write, one_device, capsys, arguments) -> None:
    status, _, err = run("fof", str(write(0.0)), *arguments, capsys=capsys)
    assert (status, err.startswith("jztree: warning: The linking length, 0.37")) == (0, True), err
    assert "mean separations, and joins nearly all particles; a usual value is 0.2. Check " in err
    assert err.endswith(f"Check {arguments[0]}.\n")


def test_linking_length_of_many_mean_separations_is_refused(write, error_of) -> None:
    err = error_of("fof", write(0.0), "--b", "20")
    assert "--b is 20: a linking length of 20 mean separations joins all particles; a usual value is 0.2." in err
    assert "Give lengths in the unit of the positions with --rlink." in err


def test_usual_linking_lengths_pass_silently(write, one_device, capsys) -> None:
    assert run("fof", str(write(0.0)), "--b", "0.99", capsys=capsys)[2] == ""


# Unknown options


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["fof", "--linking-length", "0.2"], "use --b (in mean separations) or --rlink (in the unit of the positions)"),
        (["fof", "--linking_length=0.2"], "use --b (in mean separations) or --rlink (in the unit of the positions)"),
        (["fof", "--min-particles", "32"], "use --npart-min"),
        (["fof", "--npart_min", "32"], "use --npart-min"),
        (["fof", "--propertys"], "use --properties"),
        (["fof", "--box-size", "3"], "use --boxsize"),
        (["knn", "--neighbors", "3"], "use -k"),
        (["plot", "density", "--models", "tinker"], "use --model"),
    ],
)
def test_unknown_options_get_a_suggestion(arguments, advice, error_of) -> None:
    command, given = (
        " ".join(["jztree", arguments[0]]),
        " ".join(argument for argument in arguments if argument[:2] == "--"),
    )
    err = error_of(*arguments)
    assert f"{command} has no option {given}" in err
    assert err.endswith(f"; {advice}, and see {command} --help.\n")


@pytest.mark.parametrize("arguments", [["fof", "--colour"], ["xi", "--linking-length"], ["info", "--no-ids"]])
def test_unknown_options_unlike_any_get_no_suggestion(arguments, error_of) -> None:
    assert error_of(*arguments).endswith(f"has no option {arguments[1]}; see jztree {arguments[0]} --help.\n")


def test_unknown_configuration_options_get_a_suggestion(error_of, tmp_path) -> None:
    (tmp_path / "run.toml").write_text("[fof]\nlinking-length = 0.2\n")
    err = error_of("fof", "sample", f"--config={tmp_path / 'run.toml'}")
    assert "has an option 'linking_length', which fof does not have; use --b (in mean separations) or --rlink" in err
    assert "Its options are attach, attach-within, b, " in err


def test_suggestions_are_options_of_the_command() -> None:
    assert suggest("--linking-length", ["--rlink"]) == "use --rlink (in the unit of the positions)"
    assert suggest("--linking-length", ["--boxsize", "-k"]) == ""


def test_pictures_warn_of_masses_too(write, one_device, tmp_path, capsys, monkeypatch) -> None:
    path = write(0.0)
    with h5py.File(path, "r+") as file:
        file["PartType1/Masses"] = np.full(500, 3.0)
    monkeypatch.setattr(plot, "plot_density", lambda *given, **named: None)
    call = ["plot", "density", str(path), "--surface-density", "-o", str(tmp_path / "x.png")]
    assert cli.main(call) == 0
    err = capsys.readouterr().err
    assert err.startswith(f"jztree: warning: {path} holds 500 particles of type 1 whose masses differ")
    assert err.count("\n") == 1
