"""Catalogue files: three layouts with the same content, published names and units, and data that cannot be written."""

import itertools
import os
import tempfile
import time
from dataclasses import replace

import h5py
import headers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jztree.data import FofCatalogue, ParticleData
from jztree_utils import io

settings.register_profile("catalogues", max_examples=25, deadline=None)
settings.load_profile("catalogues")

LAYOUTS = ("native", "gadget4", "swift", "soap")
HEADER = replace(
    headers.FLAT,
    boxsize=100.0,
    hubble=0.5,
    mass_table=(0.0, 2.0, 0.0, 0.0, 0.0, 0.0),
    npart_total=(2**33, 2**40 + 5, 0, 0, 0, 0),
    unit_length_in_cm=3.085678e21,
)
INFO = io.CatalogueInfo(
    linking_length=0.25, npart_min=3, num_particles=2**34, ptype=1, source="snap.hdf5", header=HEADER
)
OWN = ("count", "offset", "com_pos", "com_inertia_radius", "max_radius", "mass", "com_vel", "vel_dispersion")


def make_catalogue(counts: np.ndarray, random: np.random.Generator, dim: int = 3) -> FofCatalogue:
    g = len(counts)
    return FofCatalogue(
        ngroups=g,
        count=counts.astype(np.int32),
        offset=(np.cumsum(counts) - counts).astype(np.int32),
        com_pos=random.random((g, dim)),
        com_inertia_radius=random.random(g),
        max_radius=random.random(g).astype(np.float32),
        mass=random.random(g),
    )


@given(g=st.integers(0, 8), unused=st.integers(0, 2), with_members=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_catalogue_round_trip(g, unused, with_members, seed) -> None:
    random = np.random.default_rng(seed)
    cata = make_catalogue(random.integers(1, 9, g + unused), random)
    cata.ngroups = np.int32(g)
    num = int(cata.count[:g].sum())
    members = random.integers(0, 2**64, num, dtype=np.uint64) if with_members else None
    header = io.SnapshotHeader(boxsize=(1.0, 2.0, 0.0), redshift=0.5, npart_total=(0, 2**40), mass_table=(0.0, 2.5))
    info = io.CatalogueInfo(linking_length=0.1, npart_min=7, num_particles=99, ptype=1, source="snap", header=header)
    with tempfile.TemporaryDirectory() as folder:
        io.write_catalogue(f"{folder}/c.hdf5", cata, members, info)
        assert os.listdir(folder) == ["c.hdf5"]
        back, read_members, read_info = io.read_catalogue(f"{folder}/c.hdf5")
    assert read_info == info
    assert back.ngroups == g
    for name in ("count", "offset", "com_pos", "com_inertia_radius", "max_radius", "mass"):
        np.testing.assert_array_equal(getattr(back, name), getattr(cata, name)[:g])
        assert getattr(back, name).dtype == getattr(cata, name).dtype
    assert back.com_vel is None
    assert back.vel_dispersion is None
    if with_members:
        np.testing.assert_array_equal(read_members, members)
    else:
        assert read_members is None


@given(seed=st.integers(0, 2**32 - 1), g=st.integers(0, 6), with_rest=st.booleans())
def test_canonical_order_depends_on_the_groups_only(seed, g, with_rest) -> None:
    random = np.random.default_rng(seed)
    groups = [random.integers(1, 4) for _ in range(g)]
    ids = random.permutation(sum(groups) + (5 if with_rest else 0))
    ends = np.cumsum([0, *groups])
    sets = [frozenset(ids[a:b]) for a, b in itertools.pairwise(ends)]
    expected = sorted(sets, key=lambda members: (-len(members), min(members)))
    results = []
    for _ in range(2):
        order = random.permutation(g)
        gaps = np.sort(random.integers(0, g + 1, len(ids) - ends[-1]))  # groups before each ungrouped particle
        rest = np.split(random.permutation(ids[ends[-1] :]), np.searchsorted(gaps, np.arange(1, g + 1)))
        rows = [rest[0]]
        for i, after in zip(order, rest[1:], strict=True):
            rows += [random.permutation(list(sets[i])), after]
        cata = make_catalogue(np.asarray([len(sets[i]) for i in order], np.int64), random)
        cata.offset += np.searchsorted(gaps, np.arange(1, g + 1)).astype(np.int32)
        cata.mass = np.asarray([float(min(sets[i])) for i in order])
        shuffled = np.concatenate(rows).astype(np.uint64)
        part = ParticleData(pos=np.zeros((len(shuffled), 3)), id=shuffled)
        results.append(io.canonical_order(part, cata)[:2])
    for part, cata in results:
        np.testing.assert_array_equal(part.id, results[0][0].id)
        result = [frozenset(part.id[o : o + c]) for o, c in zip(cata.offset, cata.count, strict=True)]
        assert result == expected
        np.testing.assert_array_equal(part.id[ends[-1] :], np.sort(ids[ends[-1] :]))
        np.testing.assert_array_equal(cata.mass, [min(members) for members in expected])


def test_canonical_order_refuses_another_catalogue(random) -> None:
    cata = make_catalogue(np.asarray([3, 4]), random)
    with pytest.raises(ValueError, match="does not belong"):
        io.canonical_order(ParticleData(pos=np.zeros((6, 3))), cata)
    for offset in ([0, 2], [-1, 3], [0, 6], [4, 1]):  # groups that overlap, or are partly outside
        cata.offset = np.asarray(offset, np.int32)
        with pytest.raises(ValueError, match="does not belong"):
            io.canonical_order(ParticleData(pos=np.zeros((9, 3))), cata)


def test_number_of_members_must_match_the_counts(tmp_path, random) -> None:
    with pytest.raises(ValueError, match="counts 7 members"):
        io.write_catalogue(tmp_path / "c.hdf5", make_catalogue(np.asarray([3, 4]), random), np.arange(6))
    assert os.listdir(tmp_path) == []


# Layouts


def full_content(g: int = 6, seed: int = 0, types: bool = True) -> io.CatalogueContent:
    """Return ``g`` groups with everything that a catalogue can hold."""
    random = np.random.default_rng(seed)
    by_type = io.TypeTable(random.integers(1, 9, (g, 6)), random.random((g, 6)))
    count = by_type.count.sum(axis=1)
    catalogue = FofCatalogue(
        ngroups=g,
        count=count.astype(np.int32),
        offset=(np.cumsum(count) - count).astype(np.int32),
        com_pos=random.random((g, 3)).astype(np.float32),
        com_inertia_radius=random.random(g),
        max_radius=random.random(g).astype(np.float32),
        mass=by_type.mass.sum(axis=1),
        com_vel=random.normal(size=(g, 3)),
        vel_dispersion=random.random(g),
        shape_tensor=random.random((g, 3, 3)),
        angular_momentum=random.random((g, 3)),
    )
    extra = {
        "m200c": io.Column(random.random(g), "mass", "mass in a sphere"),
        "r200c": io.Column(random.random(g), "length", "its radius"),
        "densest_density": io.Column(random.random(g), "density", "the largest density"),
        "spin": io.Column(random.random(g), "1", "spin parameter, of Çelik"),
    }
    return io.CatalogueContent(
        catalogue=catalogue,
        ids=random.permutation(int(count.sum())).astype(np.uint64),
        info=INFO,
        extra=extra,
        by_type=by_type if types else None,
    )


def assert_same(result: io.CatalogueContent, expected: io.CatalogueContent, rtol: float) -> None:
    for name, column in io.catalogue_columns(expected.catalogue, expected.extra).items():
        second = io.catalogue_columns(result.catalogue, result.extra)[name]
        assert (second.kind, second.definition, second.values.dtype) == (
            column.kind,
            column.definition,
            column.values.dtype,
        )
        np.testing.assert_allclose(second.values, column.values, rtol, err_msg=name)
    assert result.extra.keys() == expected.extra.keys()
    np.testing.assert_array_equal(result.ids, expected.ids)
    np.testing.assert_array_equal(result.by_type.count, expected.by_type.count)
    np.testing.assert_allclose(result.by_type.mass, expected.by_type.mass, rtol)


@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("second", LAYOUTS)
def test_nothing_is_lost_between_layouts(tmp_path, first, second) -> None:
    content = full_content()
    io.write_catalogue_content(tmp_path / "a.hdf5", content, first)
    io.write_catalogue_content(tmp_path / "b.hdf5", io.read_catalogue_content(tmp_path / "a.hdf5"), second)
    io.write_catalogue_content(tmp_path / "c.hdf5", io.read_catalogue_content(tmp_path / "b.hdf5"), "gadget4")
    result = io.read_catalogue_content(tmp_path / "c.hdf5")
    assert_same(result, content, 5e-7)
    header = result.info.header
    assert header.boxsize == pytest.approx(HEADER.boxsize, rel=1e-15)
    assert result.info.linking_length == pytest.approx(INFO.linking_length, rel=1e-15)
    # SWIFT has no mass table.
    assert replace(header, boxsize=100.0, mass_table=HEADER.mass_table) == HEADER
    assert replace(result.info, linking_length=0.25, header=HEADER) == INFO


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("g", [0, 1, 4])
def test_layouts_hold_catalogues_of_any_size_and_few_columns(tmp_path, layout, g) -> None:
    content = full_content(g, types=False)
    catalogue = replace(content.catalogue, com_vel=None, mass=None, vel_dispersion=None, angular_momentum=None)
    io.write_catalogue_content(tmp_path / "a.hdf5", replace(content, catalogue=catalogue, ids=None, extra={}), layout)
    assert io.is_catalogue(tmp_path / "a.hdf5")
    result = io.read_catalogue_content(tmp_path / "a.hdf5")
    assert result.catalogue.ngroups == g
    assert result.catalogue.com_pos.shape == (g, 3)
    np.testing.assert_array_equal(result.catalogue.count, catalogue.count)
    np.testing.assert_array_equal(result.catalogue.offset, catalogue.offset)
    absent = (
        result.ids,
        result.by_type,
        result.catalogue.mass,
        result.catalogue.com_vel,
        result.catalogue.vel_dispersion,
    )
    assert absent == (None,) * 5


def test_files_are_independent_of_time_and_input_order(tmp_path) -> None:
    content = full_content(9)
    count = np.asarray(content.catalogue.count, np.int64)
    written = []
    for seed in (1, 2):
        groups = np.random.default_rng(seed).permutation(9)
        rows = [np.arange(o, o + c) for o, c in zip(content.catalogue.offset, count, strict=True)]
        ids = content.ids[np.concatenate([rows[group] for group in groups])]
        columns = {name: getattr(content.catalogue, name)[groups] for name in OWN}
        columns["offset"] = (np.cumsum(count[groups]) - count[groups]).astype(np.int32)
        extra = {name: replace(column, values=column.values[groups]) for name, column in content.extra.items()}
        by_type = io.TypeTable(content.by_type.count[groups], content.by_type.mass[groups])
        part = ParticleData(pos=np.zeros((len(ids), 3)), id=ids)
        part, cata, extra, by_type = io.canonical_order(part, FofCatalogue(ngroups=9, **columns), extra, by_type)
        np.testing.assert_array_equal(by_type.count.sum(axis=1), cata.count)
        assert (np.diff(cata.count) <= 0).all()
        for layout in LAYOUTS:
            path = tmp_path / f"{layout}.hdf5"
            io.write_catalogue(path, cata, part.id, INFO, layout=layout, extra=extra, by_type=by_type)
        written.append([(tmp_path / f"{layout}.hdf5").read_bytes() for layout in LAYOUTS])
        time.sleep(1.1 * (seed == 1))  # HDF5 stores times, if any, in seconds
    assert written[0] == written[1]


def test_gadget4_names_and_offsets(tmp_path) -> None:
    content = full_content()
    io.write_catalogue_content(tmp_path / "fof_tab_000.hdf5", content, "gadget4")
    with h5py.File(tmp_path / "fof_tab_000.hdf5") as file:
        held = {name: data[()] for name, data in file["Group"].items()}
        attributes, parameters, ids = dict(file["Header"].attrs), dict(file["Parameters"].attrs), file["IDs/ID"][()]
        vel = dict(file["Group/GroupVel"].attrs)
    assert (attributes["Ngroups_ThisFile"], attributes["Ngroups_Total"], attributes["NumFiles"]) == (6, 6, 1)
    assert (attributes["Nids_Total"], attributes["Redshift"], attributes["BoxSize"]) == (len(ids), 1.0, 100.0)
    assert (parameters["HubbleParam"], parameters["UnitLength_in_cm"]) == (0.5, 3.085678e21)
    np.testing.assert_array_equal(held["GroupLen"], content.catalogue.count)
    np.testing.assert_array_equal(held["GroupLenType"].sum(axis=1), held["GroupLen"])
    np.testing.assert_allclose(held["GroupMassType"].sum(axis=1), held["GroupMass"])
    np.testing.assert_array_equal(held["Group_M_Crit200"], content.extra["m200c"].values)
    np.testing.assert_array_equal(held["GroupVel"], content.catalogue.com_vel / 2)
    assert (vel["a_scaling"], vel["velocity_scaling"]) == (-1.0, 1.0)
    assert set(held["GroupAscale"]) == {0.5}
    for ptype in range(6):
        lengths, starts = held["GroupLenType"][:, ptype], held["GroupOffsetType"][:, ptype]
        assert [int(start) for start in starts] == [int(lengths[:group].sum()) for group in range(6)]
    assert held["GroupLen"].dtype == np.int32
    assert held["GroupOffsetType"].dtype == np.int64


def test_swift_values_are_physical_by_their_attributes(tmp_path) -> None:
    content = full_content()
    io.write_catalogue_content(tmp_path / "a.hdf5", content, "swift")
    h, a, (length, mass, velocity) = 0.5, 0.5, (3.085678e21, 1.989e43, 1e5)
    expected = {
        "Masses": content.catalogue.mass * mass / h,
        "Centres": content.catalogue.com_pos * length * a / h,
        "com_vel": content.catalogue.com_vel * velocity,
        "angular_momentum": content.catalogue.angular_momentum * length * a / h * velocity,
        "densest_density": content.extra["densest_density"].values * mass / h / (length * a / h) ** 3,
        "spin": content.extra["spin"].values,
    }
    with h5py.File(tmp_path / "a.hdf5") as file:
        units = file["Units"].attrs
        base = {
            "U_L": units["Unit length in cgs (U_L)"][0],
            "U_M": units["Unit mass in cgs (U_M)"][0],
            "U_t": units["Unit time in cgs (U_t)"][0],
        }
        for name, physical in expected.items():
            data = file["Groups"][name]
            factor = np.prod([value ** data.attrs[f"{unit} exponent"][0] for unit, value in base.items()])
            scaled = factor * a ** data.attrs["a-scale exponent"][0]
            message = [
                data.attrs[f"Conversion factor to {which} cosmological corrections)"][0]
                for which in ("CGS (not including", "physical CGS (including")
            ]
            np.testing.assert_allclose(message, [factor, scaled], rtol=1e-12)
            np.testing.assert_allclose(data[()] * scaled, physical, rtol=1e-6)
            assert data.attrs["h-scale exponent"][0] == 0
        np.testing.assert_array_equal(file["Groups/GroupIDs"][()], np.arange(1, 7))
        np.testing.assert_array_equal(file["Groups/Sizes"][()], content.catalogue.count)
        np.testing.assert_array_equal(file["Header"].attrs["BoxSize"], [200.0] * 3)
        assert file["Header"].attrs["OutputType"] == b"FOF"


def test_catalogues_of_gadget4_in_several_files(tmp_path) -> None:
    """Simulation codes write no additional columns, single precision, and files without groups."""
    random = np.random.default_rng(0)
    lengths, pos = random.integers(20, 90, 7).astype(np.int32), random.random((7, 3)).astype(np.float32)
    for part, rows in enumerate((slice(0, 4), slice(4, 4), slice(4, 7))):
        with h5py.File(tmp_path / f"fof_tab_003.{part}.hdf5", "w") as file:
            here = {"Ngroups_ThisFile": len(lengths[rows]), "Ngroups_Total": 7, "NumFiles": 3, "Redshift": 3.0}
            file.create_group("Header").attrs.update(here | {"Time": 0.25, "BoxSize": 1.0})
            file.create_group("Parameters").attrs.update({"HubbleParam": 0.7, "ComovingIntegrationOn": 1})
            if part != 1:
                group = file.create_group("Group")
                group["GroupLen"], group["GroupPos"] = lengths[rows], pos[rows]
                group["GroupVel"], group["GroupSFR"] = pos[rows], pos[rows, 0]
    result = io.read_catalogue_content(tmp_path / "fof_tab_003.2.hdf5")
    np.testing.assert_array_equal(result.catalogue.count, lengths)
    np.testing.assert_array_equal(result.catalogue.com_pos, pos)
    np.testing.assert_array_equal(result.catalogue.com_vel, pos * 4)
    assert (result.catalogue.max_radius, result.ids, dict(result.extra)) == (None, None, {})
    assert (result.info.header.hubble, result.info.header.redshift) == (0.7, 3.0)
    (tmp_path / "fof_tab_003.1.hdf5").unlink()
    with pytest.raises(io.SnapshotError, match=r"fof_tab_003\.1\.hdf5"):
        io.read_catalogue(tmp_path / "fof_tab_003.0.hdf5")


def test_counts_above_32_bits(tmp_path) -> None:
    content = full_content(3, types=False)
    count = np.asarray([2**33, 2**32, 2**31], np.int64)
    catalogue = replace(content.catalogue, count=count, offset=np.cumsum(count) - count)
    for layout in LAYOUTS:
        io.write_catalogue_content(tmp_path / f"{layout}.hdf5", replace(content, catalogue=catalogue, ids=None), layout)
        result = io.read_catalogue(tmp_path / f"{layout}.hdf5")[0]
        np.testing.assert_array_equal(result.count, count)
        np.testing.assert_array_equal(result.offset, catalogue.offset)
