"""Catalogues that cannot be written or read."""

import itertools
import os
import re
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
from test_catalogues import HEADER, INFO, LAYOUTS, OWN, full_content

from jztree.data import ParticleData
from jztree.halos import inertia_tensor
from jztree_utils import io


@pytest.mark.parametrize(
    ("layout", "change", "words"),
    [
        ("velociraptor", {}, "layout is 'velociraptor'; it must be one of native, gadget4, swift"),
        ("gadget4", {"catalogue": 2}, "three dimensions, but the groups have 2"),
        ("swift", {"catalogue": 2}, "three dimensions, but the groups have 2"),
        ("swift", {"info": io.CatalogueInfo()}, "needs the units"),
        ("swift", {"info": replace(INFO, header=replace(HEADER, hubble=None))}, "needs h and Omega0"),
        ("gadget4", {"info": replace(INFO, header=replace(HEADER, h_free=True, hubble=None))}, "HubbleParam"),
        ("gadget4", {"info": replace(INFO, ptype=6)}, "types 0 to 5"),
        ("native", {"extra": {"x": io.Column(np.zeros(5), "1", "")}}, "6 groups"),
        ("native", {"extra": {"mass": io.Column(np.zeros(6), "1", "")}}, "has the name 'mass'"),
        ("native", {"extra": {"a/b": io.Column(np.zeros(6), "1", "")}}, "has the name 'a/b'"),
        (
            "gadget4",
            {"extra": {"GroupLen": io.Column(np.zeros(6), "1", "")}},
            "column GroupLen has the name of a dataset",
        ),
        ("swift", {"extra": {"x": io.Column(np.array(["a"] * 6), "1", "")}}, "give numbers"),
        ("native", {"extra": {"x": io.Column(np.zeros(6), "colour", "")}}, "'colour' is not a kind"),
        ("native", {"by_type": io.TypeTable(np.ones((6, 6), int), np.zeros((6, 6)))}, "do not add up"),
        ("native", {"by_type": io.TypeTable(np.ones((6, 5), int), np.zeros((6, 6)))}, re.escape("(6, 6)")),
    ],
)
def test_content_that_a_layout_cannot_store_is_refused(tmp_path, layout, change, words) -> None:
    content = full_content()
    if change.get("catalogue") == 2:
        change = {"catalogue": replace(content.catalogue, com_pos=content.catalogue.com_pos[:, :2])}
    with pytest.raises(ValueError, match=words) as error:
        io.write_catalogue_content(tmp_path / "a.hdf5", replace(content, **change), layout)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", [*OWN, "shape_tensor", "angular_momentum"])
def test_columns_that_could_not_be_read_back(tmp_path, name) -> None:
    content = full_content()
    values = getattr(content.catalogue, name)
    wrong = values[:, None] if name not in ("count", "com_pos") else values.astype(complex)
    with pytest.raises(ValueError, match=rf"The {name} of the catalogue are .* for 6 groups in 3 dimensions\.$"):
        io.write_catalogue_content(
            tmp_path / "a.hdf5", replace(content, catalogue=replace(content.catalogue, **{name: wrong}))
        )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("layout", ["gadget4", "swift"])
def test_inertia_tensors_follow_the_unit_of_length(tmp_path, layout) -> None:
    """Lengths per h become lengths without h and back. The shape tensor is the same number in both."""
    h_free = layout == "gadget4"
    content = replace(full_content(), info=replace(INFO, header=replace(HEADER, h_free=h_free)))
    io.write_catalogue_content(tmp_path / "a.hdf5", content, layout)
    result = io.read_catalogue(tmp_path / "a.hdf5")[0]
    factor = HEADER.hubble if h_free else 1 / HEADER.hubble
    np.testing.assert_array_equal(result.shape_tensor, content.catalogue.shape_tensor)
    expected = np.asarray(inertia_tensor(content.catalogue)) * factor**2
    np.testing.assert_allclose(inertia_tensor(result), expected, rtol=1e-6)
    with h5py.File(tmp_path / "a.hdf5") as file:
        data = file["Group" if layout == "gadget4" else "Groups"]["shape_tensor"]
        assert data.attrs["kind"] == "1"
        cgs = "Conversion factor to physical CGS (including cosmological corrections)"
        assert data.attrs.get(cgs, 1) == 1


WRONG = (np.float64(1), np.array([b"a"] * 6), np.full((6, 2, 2), -1.5), np.full(6, -(2**62)), np.zeros((6, 0)))


@pytest.mark.parametrize(
    "layout", [item if item == "native" else pytest.param(item, marks=pytest.mark.slow) for item in LAYOUTS]
)
def test_wrong_values_raise_no_other_error(tmp_path, layout) -> None:
    """Every dataset and every attribute of a group in turn gets a wrong type or shape."""
    complete, places = tmp_path / "c.hdf5", []
    io.write_catalogue_content(complete, full_content(), layout)
    with h5py.File(complete) as file:
        file.visititems(lambda name, item: places.append((name, None)) if isinstance(item, h5py.Dataset) else None)
        places += [(group, name) for group in file for name in file[group].attrs]
    refused = 0
    for number, ((place, name), wrong) in enumerate(itertools.product(places, WRONG)):
        path = tmp_path / f"{number}.hdf5"  # a new name: file systems wait for the disk if a name is reused
        shutil.copy(complete, path)
        with h5py.File(path, "a") as file:
            if name is None:
                del file[place]
                file[place] = wrong
            else:
                file[place].attrs[name] = wrong
        try:
            io.read_catalogue_content(path)
        except io.SnapshotError:
            refused += 1
    assert refused > 20


def test_files_that_are_not_snapshots_raise(tmp_path) -> None:
    for layout in LAYOUTS:
        io.write_catalogue_content(tmp_path / "c.hdf5", full_content(), layout)
        with pytest.raises(io.SnapshotError, match="is a catalogue of groups, not a snapshot"):
            io.open_snapshot(tmp_path / "c.hdf5")
    lists = np.zeros((3, 2))
    io.write_neighbours(tmp_path / "n.hdf5", io.Neighbours(distances=lists, indices=lists.astype(np.int32)))
    with pytest.raises(io.SnapshotError, match="is a file of neighbours, not a snapshot"):
        io.open_snapshot(tmp_path / "n.hdf5")


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("Clusters", "a file of clusters"),
        ("Correlation", "a correlation function"),
        ("TreeTable", "a file of merger trees"),
    ],
)
def test_results_with_a_snapshot_header_are_not_snapshots(snapshot, refused, group, words) -> None:
    with h5py.File(snapshot, "a") as file:
        del file["PartType1"]
        file.create_group(group)
    with refused(f"is {words}, not a snapshot"):
        io.open_snapshot(snapshot)


def test_files_that_are_not_catalogues_raise(tmp_path) -> None:
    random = np.random.default_rng(0)
    io.write_snapshot(tmp_path / "snapshot.hdf5", ParticleData(pos=random.random((5, 3))))
    assert not io.is_catalogue(tmp_path / "snapshot.hdf5")
    with pytest.raises(io.SnapshotError, match="is not a catalogue"):
        io.read_catalogue(tmp_path / "snapshot.hdf5")
    with pytest.raises(io.SnapshotError, match="no group Neighbours"):
        io.read_neighbours(tmp_path / "snapshot.hdf5")
    lost = {"native": "Groups/com_pos", "gadget4": "Group/GroupPos", "swift": "Groups/Centres"}
    for layout, name in lost.items():
        io.write_catalogue_content(tmp_path / "c.hdf5", full_content(), layout)
        with h5py.File(tmp_path / "c.hdf5", "a") as file:
            del file[name]
        with pytest.raises(io.SnapshotError, match="com_pos"):
            io.read_catalogue(tmp_path / "c.hdf5")
        io.write_catalogue_content(tmp_path / "c.hdf5", full_content(), layout)
        with h5py.File(tmp_path / "c.hdf5", "a") as file:
            del file[name]
            file[name] = np.zeros((3, 3))
        with pytest.raises(io.SnapshotError, match=rf"{name}, but it must be floats of shape \(6, 3\)"):
            io.read_catalogue(tmp_path / "c.hdf5")
