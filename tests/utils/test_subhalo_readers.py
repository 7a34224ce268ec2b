"""Subhaloes in the layout of Gadget-4, opened by yt and pynbody."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_subhalo_tables import COUNT, COUNTS, GROUP, HEADER, content

from jztree.data import ParticleData
from jztree_utils import io

pytestmark = pytest.mark.slow

# The first member of each subhalo: those of a group follow one another.
FIRST = np.array([0, 15, 21, 50])


def test_yt_finds_the_members_of_subhaloes(tmp_path: Path) -> None:
    yt: Any = pytest.importorskip("yt")
    yt.set_log_level("error")
    path = tmp_path / "fof_subhalo_tab_000.0.hdf5"
    io.write_catalogue_content(path, content(False), "gadget4")
    data = yt.load(str(path))
    assert len(data.all_data()["Subhalo", "particle_mass"]) == len(COUNT)
    for i, (first, count) in enumerate(zip(FIRST, COUNT, strict=True)):
        subhalo = data.halo("Subhalo", i)
        assert subhalo.group_identifier == GROUP[i]
        np.testing.assert_array_equal(subhalo["Subhalo", "member_ids"], np.arange(first, first + count))


def test_pynbody_finds_the_members_of_subhaloes(tmp_path: Path) -> None:
    pynbody: Any = pytest.importorskip("pynbody")
    random = np.random.default_rng(0)
    part = ParticleData(pos=random.random((60, 3)), vel=random.random((60, 3)), mass=2.0, id=np.arange(60))
    io.write_snapshot(tmp_path / "snapshot_000.hdf5", part, HEADER)
    io.write_catalogue_content(tmp_path / "fof_subhalo_tab_000.hdf5", content(False), "gadget4")
    halos = pynbody.load(str(tmp_path / "snapshot_000.hdf5")).halos()
    assert [len(halo) for halo in halos] == COUNTS.tolist()
    members = [subhalo["iord"] for halo in halos for subhalo in halo.subhalos]
    assert len(members) == len(COUNT)
    for ids, first, count in zip(members, FIRST, COUNT, strict=True):
        np.testing.assert_array_equal(ids, np.arange(first, first + count))
