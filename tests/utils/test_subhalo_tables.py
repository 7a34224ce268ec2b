"""Subhaloes in catalogues: read again from each layout, with the names and the offsets of Gadget-4."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import jztree as jz
from jztree.data import FofCatalogue, ParticleData
from jztree_utils import io
from jztree_utils.io import CatalogueContent, CatalogueInfo, Column, TypeTable

# Three groups of 30, 20 and 10 particles; the second one has no subhalo.
COUNTS = np.array([30, 20, 10])
GROUP, COUNT, PARENT = np.array([0, 0, 0, 2]), np.array([15, 6, 4, 10]), np.array([-1, 0, 1, -1])
OF_TYPE_4 = np.array([3, 0, 4, 1])  # particles of type 4 in each subhalo; the other ones are of type 1
LAYOUTS = ("native", "gadget4", "swift", "soap")
HEADER = io.SnapshotHeader(
    boxsize=50.0, redshift=1.0, time=0.5, omega0=0.3, omega_lambda=0.7, hubble=0.5, comoving=True,
    unit_length_in_cm=3e24, unit_mass_in_g=2e43, unit_velocity_in_cm_per_s=1e5,
)  # fmt: skip


def subhaloes() -> dict[str, Column]:
    random = np.random.default_rng(1)
    return {
        "group": Column(GROUP, "1", "group"),
        "count": Column(COUNT, "1", "particles"),
        "mass": Column(random.random(4), "mass", "mass"),
        "pos": Column(random.random((4, 3)), "length", "most bound particle"),
        "vel": Column(random.random((4, 3)), "velocity", "velocity of the core"),
        "com_pos": Column(random.random((4, 3)), "length", "centre of mass"),
        "com_vel": Column(random.random((4, 3)), "velocity", "mean velocity"),
        "angular_momentum": Column(random.random((4, 3)), "length*velocity", "angular momentum"),
        "parent": Column(PARENT, "1", "parent"),
        "depth": Column(np.array([0, 1, 2, 0]), "1", "depth"),
        "vmax": Column(random.random(4), "velocity", "largest circular velocity"),
        "spin": Column(random.random(4), "1", "spin parameter"),
        "most_bound_id": Column(np.array([2**60, 5, 6, 7]), "1", "identifier"),
    }


def content(types: bool) -> CatalogueContent:
    table, by_type = subhaloes(), None
    if types:
        counts = np.zeros((4, 6), int)
        counts[:, 1], counts[:, 4] = COUNT - OF_TYPE_4, OF_TYPE_4
        table["count_by_type"] = Column(counts, "1", "particles of each type")
        of_groups = np.zeros((3, 6), int)
        of_groups[:, 1], of_groups[:, 4] = [20, 20, 9], [10, 0, 1]
        by_type = TypeTable(of_groups, of_groups * 0.5)
    catalogue = FofCatalogue(
        ngroups=3,
        count=COUNTS,
        offset=np.cumsum(COUNTS) - COUNTS,
        com_pos=np.random.default_rng(2).random((3, 3)),
        mass=COUNTS * 0.5,
    )
    info = CatalogueInfo(header=HEADER, ptype=1)
    return CatalogueContent(catalogue=catalogue, ids=np.arange(60), info=info, by_type=by_type, subhaloes=table)


@pytest.mark.fast
@pytest.mark.parametrize("types", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_read_subhaloes_equal_written_ones(tmp_path: Path, layout: str, types: bool) -> None:
    path = tmp_path / "groups.hdf5"
    io.write_catalogue_content(path, content(types), layout)
    read = io.read_catalogue_content(path)
    table, expected = dict(read.subhaloes or {}), dict(content(types).subhaloes or {})
    if layout == "gadget4" and not types:
        np.testing.assert_array_equal(table.pop("count_by_type").values[:, 1], COUNT)
    assert table.keys() == expected.keys()
    h = HEADER.hubble if layout in ("swift", "soap") else 1.0
    for name, column in expected.items():
        power = {"mass": 1, "length": 1, "length*velocity": 1}.get(column.kind, 0)
        np.testing.assert_allclose(table[name].values, column.values / h**power, rtol=1e-14)
        assert table[name].kind == column.kind
    # A catalogue that was read can be written in each layout, and read from there.
    for target in LAYOUTS:
        io.write_catalogue_content(path, read, target)
        read = io.read_catalogue_content(path)
        assert read.subhaloes is not None
        np.testing.assert_array_equal(read.subhaloes["parent"].values, PARENT)
        assert not read.extra


@pytest.mark.fast
@pytest.mark.parametrize("types", [False, True])
def test_gadget4_links_groups_and_subhaloes(tmp_path: Path, types: bool) -> None:
    path = tmp_path / "fof_subhalo_tab_000.hdf5"
    io.write_catalogue_content(path, content(types), "gadget4")
    with h5py.File(path) as file:
        assert file["Header"].attrs["Nsubhalos_Total"] == file["Header"].attrs["Nsubgroups_ThisFile"] == 4
        groups, rows = file["Group"], file["Subhalo"]
        assert groups["GroupFirstSub"][()].tolist() == [0, -1, 3]
        assert groups["GroupNsubs"][()].tolist() == [3, 0, 1]
        assert rows["SubhaloGrNr"][()].tolist() == rows["SubhaloGroupNr"][()].tolist() == GROUP.tolist()
        assert rows["SubhaloRankInGr"][()].tolist() == [0, 1, 2, 0]
        assert rows["SubhaloParentRank"][()].tolist() == [0, 0, 1, 0]
        offsets = rows["SubhaloOffsetType"][()]
        assert rows["SubhaloPos"].attrs["unit"] == groups["GroupPos"].attrs["unit"]
    if types:
        assert offsets[:, 1].tolist() == [0, 12, 18, 40]
        assert offsets[:, 4].tolist() == [0, 3, 3, 10]
    else:
        assert offsets[:, 1].tolist() == [0, 15, 21, 50]


@pytest.mark.fast
def test_units_per_h_convert_subhaloes(tmp_path: Path) -> None:
    free = replace(content(False), info=CatalogueInfo(header=replace(HEADER, h_free=True), ptype=1))
    io.write_catalogue_content(tmp_path / "groups.hdf5", free, "gadget4")
    table = io.read_catalogue_content(tmp_path / "groups.hdf5").subhaloes
    assert table is not None
    np.testing.assert_allclose(table["pos"].values, subhaloes()["pos"].values * 0.5)
    np.testing.assert_allclose(table["mass"].values, subhaloes()["mass"].values * 0.5)
    np.testing.assert_array_equal(table["vel"].values, subhaloes()["vel"].values)


@pytest.mark.fast
def test_no_subhaloes_are_written_and_read(tmp_path: Path) -> None:
    empty = {name: replace(column, values=column.values[:0]) for name, column in subhaloes().items()}
    for layout in LAYOUTS:
        io.write_catalogue_content(tmp_path / "groups.hdf5", replace(content(False), subhaloes=empty), layout)
        table = io.read_catalogue_content(tmp_path / "groups.hdf5").subhaloes
        assert table is not None
        assert len(table["count"].values) == 0
        io.write_catalogue_content(tmp_path / "groups.hdf5", replace(content(False), subhaloes=None), layout)
        assert io.read_catalogue_content(tmp_path / "groups.hdf5").subhaloes is None


@pytest.mark.fast
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": None}, "no column group"),
        ({"group": [0, 0, 2, 0]}, "must ascend"),
        ({"group": [0, 0, 2, 3]}, "at most 2"),
        ({"count": [15, 6, 10, 10]}, "group 0 have 31 particles"),
        ({"count": [15, 6, 0, 10]}, "each subhalo needs one"),
        ({"mass": [1.0, 2.0]}, "a row for each of 4"),
        ({"a/b": [1, 2, 3, 4]}, "a name without a slash"),
    ],
)
def test_inconsistent_subhaloes_raise(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    table = {name: column for name, column in subhaloes().items() if change.get(name, 0) is not None}
    table |= {name: Column(np.asarray(values), "1", "") for name, values in change.items() if values is not None}
    for layout in ("native", "gadget4"):
        with pytest.raises(ValueError, match=message):
            io.write_catalogue_content(tmp_path / "groups.hdf5", replace(content(False), subhaloes=table), layout)


@pytest.mark.fast
def test_soap_has_a_row_for_each_subhalo(tmp_path: Path) -> None:
    path, complete = tmp_path / "halos.hdf5", content(True)
    radius = Column(np.array([1.0, 2.0, 3.0]), "length", "radius")
    complete.catalogue.max_radius = np.array([5.0, 4.0, 3.0])
    io.write_catalogue_content(path, replace(complete, extra={"r200c": radius}), "soap")
    with h5py.File(path) as file:
        assert file["Header"].attrs["NumSubhalos_Total"].tolist() == [4]
        for name in file["Header"].attrs["SubhaloTypes"]:
            rows = [item for item in file[name].values() if isinstance(item, h5py.Dataset)]
            assert [len(item) for item in rows] == [4] * len(rows)
        rows = {name: file[name][()].tolist() for name in ("SOAP/HostHaloIndex", "SOAP/SubhaloRankByBoundMass")}
        assert rows["SOAP/HostHaloIndex"] == [0, 0, 0, 3]
        order = np.argsort(-subhaloes()["mass"].values[:3])
        assert rows["SOAP/SubhaloRankByBoundMass"] == [*np.argsort(order), 0]
        assert file["InputHalos/IsCentral"][()].tolist() == [1, 0, 0, 1]
        assert file["InputHalos/NumberOfBoundParticles"][()].tolist() == COUNT.tolist()
        assert file["BoundSubhalo/NumberOfStarParticles"][()].tolist() == OF_TYPE_4.tolist()
        assert file["InputHalos/FOF/Sizes"][()].tolist() == [30, 0, 0, 10]
        assert file["SO/200_crit/SORadius"][()].tolist() == [2.0, 0, 0, 6.0]  # free of h, which is 0.5
        assert (file["BoundSubhalo/EncloseRadius"][()] > np.array([10, 10, 10, 6])).all()


@pytest.mark.fast
def test_members_of_subhaloes_are_in_the_order_of_groups(tmp_path: Path) -> None:
    rows = np.random.default_rng(4).permutation(60)
    numbers = io.number_subhaloes({1: rows}, subhaloes(), COUNTS)[1][np.argsort(rows)]
    expected = np.repeat([0, 1, 2, -1, -1, 3], [15, 6, 4, 5, 20, 10])
    np.testing.assert_array_equal(numbers, expected)


@pytest.mark.fast
@pytest.mark.parametrize(("column", "value"), [("SubhaloLen", 40), ("SubhaloGroupNr", -1), ("SubhaloGroupNr", 9)])
def test_subhaloes_of_other_groups_are_not_read(tmp_path: Path, column: str, value: int) -> None:
    path = tmp_path / "groups.hdf5"
    io.write_catalogue_content(path, content(False), "gadget4")
    with h5py.File(path, "r+") as file:
        file[f"Subhalo/{column}"][0] = value
    with pytest.raises(io.SnapshotError, match="wrong subhaloes"):
        io.read_catalogue_content(path)


@pytest.mark.fast
def test_order_by_binding_puts_subhaloes_and_bound_particles_first() -> None:
    random = np.random.default_rng(3)
    group, subhalo = random.integers(-1, 4, 200), random.integers(-1, 3, 200)
    energy = random.standard_normal(200)
    rows = io.order_by_binding(group, np.where(subhalo < 0, -1, 3 * group + subhalo), energy)
    last = 99
    keys = [
        (group[row] if group[row] >= 0 else last, subhalo[row] if subhalo[row] >= 0 else last, energy[row])
        for row in rows
        if group[row] >= 0
    ]
    assert keys == sorted(keys)
    assert (group[rows[len(keys) :]] < 0).all()
    assert sorted(rows.tolist()) == list(range(200))


def test_order_of_files_has_bound_particles_first_and_keeps_all_links(tmp_path: Path) -> None:
    """Random subhaloes of random groups: the rows that subhaloes, parents and particles refer to stay the same."""
    random = np.random.default_rng(5)
    pos = np.concatenate([random.normal(x, 0.02, (size, 3)) for x, size in ((1, 30), (2, 50), (3, 30), (4, 9))])
    part = ParticleData(pos=pos, id=random.permutation(len(pos)) + 7, mass=random.random(len(pos)))
    grouped, cata = jz.friends_of_friends(part, 0.2, npart_min=20)
    n, offset, count = len(pos), np.asarray(cata.offset)[:3], np.asarray(cata.count)[:3]
    group = np.repeat(np.arange(3), 4)
    parent = np.where(np.arange(12) % 4 == 0, -1, 4 * group + random.integers(0, np.maximum(np.arange(12) % 4, 1)))
    subhalo, energy = np.full(n, -1), random.standard_normal(n)
    for g in range(3):
        numbers = np.append(np.arange(4), random.integers(-1, 4, count[g] - 4))
        subhalo[offset[g] : offset[g] + count[g]] = np.where(numbers < 0, -1, numbers + 4 * g)
    rows = [np.flatnonzero(subhalo == s) for s in range(12)]
    most_bound = np.array([row[np.argmin(energy[row])] for row in rows])
    columns = {"group": group, "count": [len(row) for row in rows], "parent": parent, "most_bound": most_bound,
               "pos": np.asarray(grouped.pos)[most_bound], "mass": random.random(12)}  # fmt: skip
    table = io.subhalo_columns(columns, ids=grouped.id)
    ordered = io.order_with_subhaloes(grouped, cata, table, subhalo, energy)
    assert (np.diff(ordered.subhaloes["group"].values) >= 0).all()
    assert ordered.cata.count.tolist() == sorted(count.tolist(), reverse=True)
    old = np.array([np.flatnonzero(table["mass"].values == mass)[0] for mass in ordered.subhaloes["mass"].values])
    energy_of = dict(zip(np.asarray(grouped.id).tolist(), energy.tolist(), strict=True))
    subhalo_of = dict(zip(np.asarray(grouped.id).tolist(), subhalo.tolist(), strict=True))
    place, ids = 0, np.asarray(ordered.part.id)
    for new, s in enumerate(old):
        if new and group[old[new - 1]] != group[s]:
            place = int(np.cumsum(ordered.cata.count)[ordered.subhaloes["group"].values[new] - 1])
        members = ids[place : place + len(rows[s])].tolist()
        assert [subhalo_of[i] for i in members] == [s] * len(rows[s])
        assert [energy_of[i] for i in members] == sorted(energy_of[i] for i in members)
        assert members[0] == ordered.subhaloes["most_bound_id"].values[new]
        expected = ordered.subhaloes["parent"].values[new]
        assert (old[expected] if expected >= 0 else -1) == parent[s]
        place += len(members)
    assert sorted(ids.tolist()) == sorted(np.asarray(part.id).tolist())
    info = CatalogueInfo(header=HEADER, ptype=1)
    members = ids[: ordered.cata.count.sum()]
    path = tmp_path / "groups.hdf5"
    io.write_catalogue(path, ordered.cata, members, info, layout="gadget4", subhaloes=ordered.subhaloes)
    assert io.read_catalogue_content(path).subhaloes is not None
    with pytest.raises(ValueError, match="'colour' of subhaloes has no definition"):
        io.subhalo_columns({"colour": np.zeros(3)})


@pytest.mark.fast
def test_subhaloes_of_arepo_are_read(tmp_path: Path) -> None:
    """AREPO writes no kinds, another name of the groups, and columns that the library does not know."""
    path = tmp_path / "fof_subhalo_tab_099.hdf5"
    io.write_catalogue_content(path, content(True), "gadget4")
    with h5py.File(path, "r+") as file:
        table = file["Subhalo"]
        for name in ("SubhaloGroupNr", "SubhaloRankInGr", "SubhaloParentRank", "com_vel", "depth", "spin"):
            del table[name]
        for data in table.values():
            data.attrs.clear()
        table["SubhaloSFR"] = np.ones(4)
        table["SubhaloCM"][...] = np.ones((4, 3))
    read = io.read_catalogue_content(path).subhaloes
    assert read is not None
    assert set(read) == set(content(True).subhaloes or {}) - {"parent", "depth", "com_vel", "spin"}
    np.testing.assert_array_equal(read["group"].values, GROUP)
    np.testing.assert_array_equal(read["com_pos"].values, np.ones((4, 3)))
    assert read["vel"].kind == "velocity"
