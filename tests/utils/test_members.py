"""Members of one group, read from a snapshot by the identifiers in a catalogue."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from headers import write_types
from test_cli_runs import run

from jztree.data import FofCatalogue
from jztree_utils import ics, io
from jztree_utils.io import _members

RNG = np.random.default_rng(5)
NUM = {0: 30, 1: 50}
COUNT = np.array([[4, 9], [0, 6], [3, 0]])  # members of types 0 and 1


@pytest.fixture(params=[7, 10**6], ids=["blocks", "one block"])
def held(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the path of a snapshot, its arrays by type, and a catalogue with the rows of its members."""
    monkeypatch.setattr(_members, "_BLOCK", request.param)
    ids = RNG.permutation(2**40 + np.arange(sum(NUM.values())))
    arrays = {}
    for ptype, (num, identifiers) in enumerate(zip(NUM.values(), np.split(ids, [NUM[0]]), strict=True)):
        columns = {"Coordinates": RNG.random((num, 3)), "Velocities": RNG.random((num, 3)), "ParticleIDs": identifiers}
        arrays[ptype] = columns | ({"Masses": RNG.random(num)} if ptype == 0 else {})
    header = {"BoxSize": 1.0, "MassTable": np.array([0, 2.0, 0, 0, 0, 0]), "Time": 1.0, "Redshift": 0.0}
    path = write_types(tmp_path / "snap.hdf5", header, arrays)
    shuffled = {ptype: RNG.permutation(num)[: COUNT[:, ptype].sum()] for ptype, num in NUM.items()}
    rows = {ptype: np.split(listed, np.cumsum(COUNT[:-1, ptype])) for ptype, listed in shuffled.items()}
    members = [
        RNG.permutation(np.concatenate([arrays[ptype]["ParticleIDs"][rows[ptype][group]] for ptype in NUM]))
        for group in range(3)
    ]
    count = COUNT.sum(axis=1)
    groups = FofCatalogue(
        ngroups=3,
        count=count,
        offset=np.cumsum(count) - count,
        com_pos=np.zeros((3, 3)),
        com_inertia_radius=np.zeros(3),
    )
    table = io.TypeTable(count=np.pad(COUNT, ((0, 0), (0, 4))), mass=np.zeros((3, 6)))
    content = io.CatalogueContent(
        catalogue=groups, ids=np.concatenate(members), info=io.CatalogueInfo(ptype=1), by_type=table
    )
    return path, arrays, content, rows


def test_members_of_each_group_and_type(held: Any) -> None:
    path, arrays, content, expected = held
    for source in (path, io.open_snapshot(path, 0)):
        for group in range(3):
            part, rows = io.read_members(source, content, group, ptype=0)
            assert sorted(rows) == sorted(expected[0][group])
            assert part.num == len(rows)
            of_group = content.ids[np.isin(content.ids, part.id)]
            np.testing.assert_array_equal(part.id, of_group)  # in the order of the catalogue
            for name, column in (("pos", "Coordinates"), ("id", "ParticleIDs"), ("mass", "Masses")):
                np.testing.assert_array_equal(getattr(part, name), arrays[0][column][rows])
    part, rows = io.read_members(path, content, 0, fields=("pos", "mass"))
    assert (sorted(rows), part.mass, part.vel) == (sorted(expected[1][0]), 2.0, None)


def test_members_that_do_not_fit_raise(held: Any) -> None:
    path, _, content, _ = held
    for group in (-1, 3):
        with pytest.raises(
            IndexError, match=rf"group is {group}, but the catalogue has 3 groups; .* row from 0 to 2\."
        ):
            io.read_members(path, content, group)
    with pytest.raises(TypeError, match=r"group is 1\.0; it must be an integer, the row of one group in the catalogue"):
        io.read_members(path, content, 1.0)
    with pytest.raises(ValueError, match=f"ptype is 0, but {path} was opened for type 1; leave out ptype"):
        io.read_members(io.open_snapshot(path, 1), content, 0, ptype=0)
    with pytest.raises(io.SnapshotError, match=r"members of group 0 are unknown, .* no identifiers of members; write"):
        io.read_members(path, replace(content, ids=None), 0)
    with pytest.raises(io.SnapshotError, match=f"group 0 has 9 members of type 1, but {path} has 0 particles"):
        io.read_members(path, replace(content, ids=content.ids + 1000), 0)
    with h5py.File(path, "a") as file:
        ids = file["PartType1/ParticleIDs"]
        ids[...] = np.resize(content.ids[:2], 50)
    with pytest.raises(io.SnapshotError, match="give the snapshot from which the catalogue was made"):
        io.read_members(path, content, 0)


@pytest.mark.usefixtures("one_device")
def test_members_of_a_catalogue_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "c.hdf5")
    assert run("fof", "sample", "-o", path, capsys=capsys)[0] == 0
    content, snapshot = io.read_catalogue_content(path), io.open_snapshot(ics.SAMPLE_3D)
    for group in (0, 3):
        part, _ = io.read_members(snapshot, content, group)
        assert part.num == content.catalogue.count[group]
        centre = np.asarray(content.catalogue.com_pos)[group]
        displacement = part.pos - centre
        displacement -= 37.5 * np.round(displacement / 37.5)
        max_distance = np.linalg.norm(displacement, axis=1).max()
        np.testing.assert_allclose(max_distance, content.catalogue.max_radius[group], rtol=1e-5)
