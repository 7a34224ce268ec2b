"""Every layout stores the radii of spheres together with the centres from which they are measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from test_catalogues import LAYOUTS, assert_same, full_content

from jztree_utils import cli, ics, io, plot


def content_with_centres(g: int = 6) -> io.CatalogueContent:
    """Return groups whose spheres are not around their centres of mass, some across the face of the box."""
    content = full_content(g)
    centre = np.random.default_rng(1).uniform(0, 100, (g, 3)).astype(np.float32)
    column = io.Column(centre, "length", "position of the particle of lowest potential")
    return replace(content, extra=dict(content.extra) | {"centre_pos": column})


def test_gadget4_has_the_centres_of_spheres_as_positions(tmp_path) -> None:
    content = content_with_centres()
    io.write_catalogue_content(tmp_path / "a.hdf5", content, "gadget4")
    with h5py.File(tmp_path / "a.hdf5") as file:
        group = file["Group"]
        np.testing.assert_array_equal(group["GroupPos"], content.extra["centre_pos"].values)
        np.testing.assert_array_equal(group["GroupCM"], content.catalogue.com_pos)
        assert "lowest potential" in group["GroupPos"].attrs["description"]
        assert "centre of mass" in group["GroupCM"].attrs["description"]
        assert "centre_pos" not in group


def test_gadget4_has_the_centres_of_mass_without_spheres(tmp_path) -> None:
    content = replace(full_content(), extra={})
    io.write_catalogue_content(tmp_path / "a.hdf5", content, "gadget4")
    with h5py.File(tmp_path / "a.hdf5") as file:
        np.testing.assert_array_equal(file["Group/GroupPos"], content.catalogue.com_pos)
        assert "GroupCM" not in file["Group"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_centres_pass_through_every_layout(tmp_path, layout) -> None:
    content = content_with_centres()
    io.write_catalogue_content(tmp_path / "a.hdf5", content, layout)
    call = ["convert", str(tmp_path / "a.hdf5"), "-o", str(tmp_path / "b.hdf5"), "--layout", "gadget4"]
    assert cli.main(call) == 0
    assert_same(io.read_catalogue_content(tmp_path / "b.hdf5"), content, 5e-7)


def test_no_groups_have_no_centres(tmp_path) -> None:
    for layout in LAYOUTS:
        io.write_catalogue_content(tmp_path / "a.hdf5", content_with_centres(0), layout)
        assert io.read_catalogue_content(tmp_path / "a.hdf5").extra["centre_pos"].values.shape == (0, 3)


def test_old_gadget4_files_with_centre_of_mass_as_position_stay_readable(tmp_path) -> None:
    content = content_with_centres()
    io.write_catalogue_content(tmp_path / "a.hdf5", content, "gadget4")
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:  # the layout of earlier versions
        file.move("Group/GroupPos", "Group/centre_pos")
        file.move("Group/GroupCM", "Group/GroupPos")
    assert_same(io.read_catalogue_content(tmp_path / "a.hdf5"), content, 0)


def arepo(path: Path, pos: np.ndarray, com: np.ndarray, radius: float) -> Path:
    """Write a catalogue of AREPO with spheres."""
    g = len(pos)
    with h5py.File(path, "w") as file:
        header = {"Ngroups_ThisFile": g, "Ngroups_Total": g, "NumFiles": 1, "Redshift": 0.0, "Time": 1.0}
        file.create_group("Header").attrs.update(header | {"BoxSize": 1.0, "HubbleParam": 0.7})
        file["Group/GroupLen"] = np.full(g, 30, np.int32)
        file["Group/GroupPos"], file["Group/GroupCM"] = pos.astype(np.float32), com.astype(np.float32)
        file["Group/Group_R_Crit200"] = np.full(g, radius, np.float32)
    return path


def test_spheres_of_arepo_are_drawn_around_its_positions(snapshot, tmp_path, monkeypatch) -> None:
    pos, com = np.random.default_rng(3).random((2, 4, 3), np.float32)
    catalogue = str(arepo(tmp_path / "fof_subhalo_tab_000.hdf5", pos, com, 0.1))
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(plot, "plot_halo", lambda _, centre, spheres, *rest, **named: drawn.update(halo=centre))
    monkeypatch.setattr(plot, "plot_density", lambda *given, catalogue, **named: drawn.update(all=catalogue))
    for kind in (("halo", "--halo", "2"), ("density",)):
        call = ["plot", kind[0], str(snapshot), "--catalogue", catalogue, "-o", str(tmp_path / "x.png"), *kind[1:]]
        assert cli.main(call) == 0
    np.testing.assert_array_equal(drawn["halo"], pos[2])
    np.testing.assert_array_equal(drawn["all"].com_pos, pos)
    np.testing.assert_array_equal(io.read_catalogue(catalogue).catalogue.com_pos, com)


def test_the_farthest_member_is_drawn_around_the_centre_of_mass(snapshot, tmp_path, monkeypatch) -> None:
    """For a group too small for a sphere, max_radius is measured from its centre of mass."""
    content = content_with_centres()
    extra = {name: content.extra[name] for name in ("centre_pos",)}
    extra["r200c"] = io.Column(np.zeros(6), "length", "radius")
    header = replace(content.info.header, boxsize=1.0)
    content = replace(content, extra=extra, info=replace(content.info, header=header))
    io.write_catalogue_content(tmp_path / "c.hdf5", content)
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(
        plot, "plot_halo", lambda _, centre, spheres, *rest, **named: drawn.update(centre=centre, spheres=spheres)
    )
    call = ["plot", "halo", str(snapshot), "--catalogue", str(tmp_path / "c.hdf5"), "-o", str(tmp_path / "x.png")]
    assert cli.main(call) == 0
    assert list(drawn["spheres"]) == ["farthest member"]
    np.testing.assert_array_equal(drawn["centre"], content.catalogue.com_pos[0])


def test_soap_encloses_members_around_both_centres(tmp_path, random) -> None:
    """Members are on both sides of a box face, and the densest part is far from the centre of mass."""
    content = content_with_centres(1)
    box = content.info.header.boxsize
    members = np.concatenate([random.uniform(-1, 1, (20, 3)), random.uniform(4, 5, (30, 3))])
    com, centre = members.mean(axis=0), members[0]
    max_distance = np.linalg.norm(members - com, axis=1).max()
    catalogue = replace(content.catalogue, com_pos=com[None], max_radius=np.array([max_distance]))
    column = io.Column(centre[None] % box, "length", "a centre")
    io.write_catalogue_content(
        tmp_path / "a.hdf5", replace(content, catalogue=catalogue, extra={"centre_pos": column}), "soap"
    )
    with h5py.File(tmp_path / "a.hdf5") as file:
        h = content.info.header.hubble
        radius = file["BoundSubhalo/EncloseRadius"][0] * h
        for name in ("InputHalos/HaloCentre", "BoundSubhalo/CentreOfMass"):
            separation = members - file[name][0] * h
            separation -= box * np.round(separation / box)
            assert np.linalg.norm(separation, axis=1).max() <= radius * (1 + 1e-6)
        assert radius < max_distance + np.linalg.norm(com - centre) * (1 + 1e-6)
        assert file["BoundSubhalo/EncloseRadius"].attrs["U_L exponent"][0] == 1


@pytest.mark.parametrize(
    ("values", "kind"), [(np.zeros(6), "length"), (np.zeros((6, 3), np.int32), "length"), (np.zeros((6, 3)), "1")]
)
@pytest.mark.parametrize("layout", ["gadget4", "swift", "soap"])
def test_column_with_the_name_of_centres_but_other_content_raises(tmp_path, values, kind, layout) -> None:
    content = replace(full_content(), extra={"centre_pos": io.Column(values, kind, "")})
    with pytest.raises(ValueError, match=r"The extra column centre_pos holds .* give the centres of the spheres"):
        io.write_catalogue_content(tmp_path / "a.hdf5", content, layout)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_mass_around_gadget4_positions_equals_that_of_the_spheres(one_device, tmp_path) -> None:
    """NumPy sums the particles of the snapshot within Group_R_Crit200 of GroupPos."""
    path = tmp_path / "fof_tab_000.hdf5"
    call = ["fof", "sample", "--properties", "--npart-min", "300", "--layout", "gadget4", "-o", str(path)]
    assert cli.main(call) == 0
    snapshot = io.open_snapshot(ics.SAMPLE_3D)
    pos, box = snapshot.read("pos").astype(np.float64), snapshot.header.boxsize
    with h5py.File(path) as file:
        groups = {name: data[()].astype(np.float64) for name, data in file["Group"].items()}
    assert (groups["Group_R_Crit200"] > 0).sum() > 10
    for centre, radius, mass in zip(
        *(groups[f"Group{name}"] for name in ("Pos", "_R_Crit200", "_M_Crit200")), strict=True
    ):
        separation = pos - centre
        separation -= box * np.round(separation / box)
        held = (np.linalg.norm(separation, axis=1) <= radius * (1 + 1e-6)).sum() * snapshot.header.mass_table[1]
        np.testing.assert_allclose(held, mass, rtol=1e-4)
    assert np.linalg.norm(groups["GroupPos"] - groups["GroupCM"], axis=1).max() > 0
