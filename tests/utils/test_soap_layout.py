"""Catalogues in the layout of SOAP, inspected with h5py alone; tests of their readers are elsewhere."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
from test_catalogues import full_content

from jztree_utils import cli, io


def test_hdf5_groups_named_in_the_header_have_one_row_per_group(tmp_path) -> None:
    content = full_content()
    io.write_catalogue_content(tmp_path / "halos.hdf5", content, "soap")
    g, h = len(content.catalogue.count), content.info.header.hubble
    with h5py.File(tmp_path / "halos.hdf5") as file:
        header = file["Header"].attrs
        assert header["OutputType"] == b"SOAP"
        assert header["NumSubhalos_ThisFile"].tolist() == header["NumSubhalos_Total"].tolist() == [g]
        names = ["BoundSubhalo", "InputHalos", "InputHalos/FOF", "InputHalos/jztree", "SO/200_crit"]
        assert list(header["SubhaloTypes"]) == names
        for name in names:
            rows = [item for item in file[name].values() if isinstance(item, h5py.Dataset)]
            assert [len(item) for item in rows] == [g] * len(rows)
            assert all("U_M exponent" in item.attrs for item in rows)
        assert file["InputHalos/HaloCatalogueIndex"][:].tolist() == list(range(g))
        np.testing.assert_array_equal(file["InputHalos/FOF/Sizes"], content.catalogue.count)
        np.testing.assert_allclose(file["SO/200_crit/TotalMass"], content.extra["m200c"].values / h, rtol=1e-6)
        np.testing.assert_allclose(file["SO/200_crit/SORadius"], content.extra["r200c"].values / h, rtol=1e-6)
        np.testing.assert_allclose(file["BoundSubhalo/CentreOfMass"], content.catalogue.com_pos / h, rtol=1e-6)
        assert file["Cells/Counts/Subhalos"][:].tolist() == [g]
        np.testing.assert_allclose(file["Cells/Meta-data"].attrs["size"], np.ravel(header["BoxSize"]))


def test_names_of_spheres(tmp_path) -> None:
    content = full_content()
    radius = content.extra["r200c"]
    extra = {f"r{name}": radius for name in ("500c", "200m", "vir", "178m")} | {"centre_pos": replace(radius)}
    centre = io.Column(np.random.default_rng(1).random((6, 3)), "length", "a centre")
    content = replace(content, extra=extra | {"centre_pos": centre})
    io.write_catalogue_content(tmp_path / "halos.hdf5", content, "soap")
    with h5py.File(tmp_path / "halos.hdf5") as file:
        assert sorted(file["SO"]) == ["178_mean", "200_mean", "500_crit", "BN98"]
        h = content.info.header.hubble
        np.testing.assert_allclose(file["InputHalos/HaloCentre"], centre.values / h, rtol=1e-12)


def test_no_groups(tmp_path) -> None:
    io.write_catalogue_content(tmp_path / "halos.hdf5", full_content(0), "soap")
    assert len(io.read_catalogue_content(tmp_path / "halos.hdf5").catalogue.count) == 0


def test_box_is_required(tmp_path) -> None:
    content = full_content()
    open_box = replace(content, info=replace(content.info, header=replace(content.info.header, boxsize=0.0)))
    with pytest.raises(ValueError, match="The layout soap needs a periodic box, but the box is open; give one"):
        io.write_catalogue_content(tmp_path / "halos.hdf5", open_box, "soap")
    with pytest.raises(ValueError, match="The layout soap needs the units"):
        io.write_catalogue_content(tmp_path / "halos.hdf5", replace(content, info=io.CatalogueInfo()), "soap")


def test_catalogue_read_as_a_snapshot_raises(tmp_path, refused) -> None:
    path = tmp_path / "halos.hdf5"
    io.write_catalogue_content(path, full_content(), "soap")
    with refused("is a catalogue of groups, not a snapshot"):
        io.open_snapshot(path)
    with h5py.File(path, "r+") as file:
        del file["InputHalos/jztree"]  # SOAP itself does not write it
    with refused("is a SOAP file of SWIFT; give a snapshot"):
        io.open_snapshot(path)


def test_numbers_of_the_rows_of_the_catalogue(write_gadget, random, tmp_path, one_device) -> None:
    units = {"UnitLength_in_cm": 3.1e24, "UnitMass_in_g": 2e43, "UnitVelocity_in_cm_per_s": 1e5}
    ids = random.permutation(300).astype(np.uint64)
    path = write_gadget(
        tmp_path / "snapshot.hdf5", random.random((300, 3), np.float32), columns={"ParticleIDs": ids}, header=units
    )
    catalogue, numbered = tmp_path / "halos.hdf5", tmp_path / "numbered.hdf5"
    call = ["fof", path, "--rlink", "0.07", "--npart-min", "2", "--layout", "soap", "-o", catalogue]
    assert cli.main([str(argument) for argument in [*call, "--group-ids-output", numbered]]) == 0
    with h5py.File(catalogue) as groups, h5py.File(numbered) as file:
        rows, numbers = file["PartType1/GroupNr_bound"][:], file["PartType1/FOFGroupIDs"][:]
        ends = np.cumsum(groups["InputHalos/FOF/Sizes"][:])
        members = np.split(groups["Members/id"][:], ends)[:-1]
        for row, expected in zip(groups["InputHalos/HaloCatalogueIndex"][:], members, strict=True):
            assert sorted(ids[rows == row].tolist()) == expected.tolist()
    np.testing.assert_array_equal(numbers, np.where(rows < 0, 2147483647, rows + 1))
