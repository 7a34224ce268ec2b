"""Pictures made by the command line."""

from typing import Any

import h5py
import numpy as np
import pytest
from test_cli_runs import run

from jztree_utils import plot

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.mark.long
def test_pictures(tmp_path, capsys) -> None:
    catalogue, neighbours = str(tmp_path / "c.hdf5"), str(tmp_path / "n.hdf5")
    assert run("fof", "sample", "-o", catalogue, capsys=capsys)[0] == 0
    assert run("knn", "sample", "-o", neighbours, capsys=capsys)[0] == 0
    foreign = tmp_path / "fof_tab_000.hdf5"
    with h5py.File(foreign, "w") as file:
        header = {"Ngroups_Total": 2, "NumFiles": 1, "BoxSize": 37.5, "Redshift": 0.0, "HubbleParam": 0.7}
        file.create_group("Header").attrs.update(header)
        file.create_group("Group")["GroupLen"] = np.asarray([90, 40], np.int32)
        file["Group/GroupPos"] = np.ones((2, 3), np.float32)
    marked = ("plot", "density", "sample", "--catalogue", str(foreign), "-o", str(tmp_path / "x.png"))
    status, out, _ = run(*marked, capsys=capsys)
    assert (status, "times the mean density" in out) == (0, True)
    with h5py.File(foreign, "a") as file:
        file["Header"].attrs["BoxSize"] = 75.0
    status, _, err = run(*marked, capsys=capsys)
    assert (status, "has the box 75.0, but the snapshot has 37.5" in err) == (2, True)
    for kind, *arguments in (
        ("halos", "sample", "--catalogue", catalogue),
        ("density", "sample"),
        ("density", "sample", "--slab", "10,15.5", "--smooth", "8", "--surface-density", "--catalogue", catalogue),
        ("halo", "sample", "--catalogue", catalogue, "--halo", "3", "--surface-density"),
        ("mass-function", catalogue),
        ("mass-function", catalogue, catalogue),
        ("sizes", catalogue),
        ("distances", neighbours),
    ):
        picture = tmp_path / f"{kind}.png"
        status, _, err = run("plot", kind, *arguments, "-o", str(picture), capsys=capsys)
        assert (status, err) == (0, "")
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_mass_functions_of_different_runs_raise(tmp_path, capsys) -> None:
    paths = []
    for box in (37.5, 75.0):
        paths.append(str(tmp_path / f"fof_tab_{box}.hdf5"))
        with h5py.File(paths[-1], "w") as file:
            header = {"Ngroups_Total": 1, "NumFiles": 1, "BoxSize": box, "Redshift": 0.0, "HubbleParam": 0.7}
            file.create_group("Header").attrs.update(header)
            file.create_group("Group")["GroupLen"] = np.asarray([90], np.int32)
            file["Group/GroupPos"], file["Group/GroupMass"] = np.ones((1, 3), np.float32), np.ones(1, np.float32)
    status, _, err = run("plot", "mass-function", *paths, "-o", str(tmp_path / "a.png"), capsys=capsys)
    assert (status, f"{paths[0]} has boxsize 37.5, but {paths[1]} has 75.0" in err) == (2, True)


@pytest.mark.long
def test_a_halo_of_a_catalogue_with_spheres(tmp_path, monkeypatch, capsys) -> None:
    """Its spheres are drawn around its centre. Rows that do not exist are refused."""
    catalogue = str(tmp_path / "c.hdf5")
    call = ("fof", "sample", "-o", catalogue, "--npart-min", "500", "--overdensity", "100c")
    assert run(*call, capsys=capsys)[0] == 0
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plot, "plot_halo", lambda pos, *given, **named: drawn.update(given=given, named=named))
    picture = ("plot", "halo", "sample", "--catalogue", catalogue, "-o", str(tmp_path / "x.png"))
    assert run(*picture, "--halo", "1", "--surface-density", capsys=capsys)[0] == 0
    with h5py.File(catalogue) as file:
        centre, spheres, box, _ = drawn["given"]
        np.testing.assert_array_equal(centre, file["Groups/centre_pos"][1])
        assert set(spheres) == {"r200c", "r500c", "r2500c", "r200m", "rvir", "r100c"}
        assert all(radius == file[f"Groups/{name}"][1] for name, radius in spheres.items())
        count = len(file["Groups/count"])
    assert (box, drawn["named"]["length_unit"], drawn["named"]["mass_unit"]) == (37.5, "Mpc/h", "1e10 Msun/h")
    assert drawn["named"]["mass"] == pytest.approx(4.1025, rel=1e-3)
    status, _, err = run(*picture, "--halo", "99999", capsys=capsys)
    words = f"--halo is 99999, but {catalogue} has rows 0 to {count - 1}; give a row in this range."
    assert (status, words in err) == (2, True)


def test_colours_of_masses_need_masses(tmp_path, capsys) -> None:
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((50, 3)))
    call = ("plot", "density", str(tmp_path / "a.npy"), "--boxsize", "1", "--surface-density")
    status, _, err = run(*call, "-o", str(tmp_path / "x.png"), capsys=capsys)
    assert (status, "has no masses of type 1; leave --surface-density out, which needs them." in err) == (2, True)
