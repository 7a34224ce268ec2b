"""A zoom-in simulation made from the sample: one part unchanged, the rest as particles of 8 and 64 times the mass.

The sample's particles are in the order of a lattice. Heavy particles are the centres of mass of the lattice blocks that
they replace. Groups of light particles alone are the same as in the whole sample.
"""

from pathlib import Path

import h5py
import numpy as np
import pytest
from headers import UNITS, write_types
from scipy.spatial import cKDTree
from test_cli_devices import run_cli

from jztree_utils import cli, ics, io

_SIDE, _FINE, _MEDIUM = 48, 24, 40  # cells along the side of the sample, and of the blocks with finer particles


def blocks(pos: np.ndarray, box: float, size: int) -> np.ndarray:
    """Return ``(m, 3)`` centres of blocks of ``size`` cells along each side; pos: ``(s, s, s, 3)``."""
    cells = pos.shape[0] // size
    parts = pos.reshape(cells, size, cells, size, cells, size, 3).transpose(0, 2, 4, 1, 3, 5, 6)
    parts = parts.reshape(cells, cells, cells, size**3, 3)
    separation = parts - parts[:, :, :, :1]
    separation -= box * np.round(separation / box)
    return (parts[:, :, :, 0] + separation.mean(axis=3)) % box


def write_zoom(path: Path, own_masses: bool = False) -> np.ndarray:
    """Write the snapshot, and return the identifiers of high-resolution particles."""
    part, header = io.read_snapshot(ics.SAMPLE_3D)
    box, mass = float(header.boxsize), float(part.mass)
    pos = part.pos.astype(np.float64).reshape(_SIDE, _SIDE, _SIDE, 3)
    rows = np.arange(_SIDE**3).reshape(_SIDE, _SIDE, _SIDE)[:_FINE, :_FINE, :_FINE].ravel()
    medium = np.ones((_SIDE // 2,) * 3, bool)
    medium[: _FINE // 2, : _FINE // 2, : _FINE // 2] = False
    coarse = np.ones((_SIDE // 4,) * 3, bool)
    coarse[: _MEDIUM // 4, : _MEDIUM // 4, : _MEDIUM // 4] = False
    medium &= ~coarse.repeat(2, 0).repeat(2, 1).repeat(2, 2)
    kinds = {1: part.pos[rows], 2: blocks(pos, box, 2)[medium], 3: blocks(pos, box, 4)[coarse]}
    counts = [len(kinds.get(ptype, [])) for ptype in range(6)]
    each = np.asarray([0, mass, 8 * mass, 64 * mass, 0, 0])
    assert np.dot(counts, each) == pytest.approx(_SIDE**3 * mass)  # the mass of all matter
    message = {"BoxSize": box, "Time": 1.0, "Redshift": 0.0, "Omega0": 0.31, "OmegaLambda": 0.69, "HubbleParam": 0.68}
    types = {ptype: {"Coordinates": places.astype(np.float32)} for ptype, places in kinds.items()}
    for ptype, columns in types.items():
        columns |= {"Masses": np.full(counts[ptype], each[ptype], np.float32)} if own_masses else {}
    types[1]["ParticleIDs"] = part.id[rows].astype(np.uint64)
    write_types(path, message | UNITS | {"MassTable": np.where(own_masses, 0, each)}, types)
    return np.asarray(part.id[rows], np.int64)


def members(path: Path) -> list[frozenset[int]]:
    cata, ids, _ = io.read_catalogue(path)
    return [frozenset(ids[a : a + n].tolist()) for a, n in zip(cata.offset, cata.count, strict=True)]


def test_groups_of_high_resolution_equal_those_of_the_whole(tmp_path, one_device, capsys) -> None:
    fine = set(write_zoom(tmp_path / "zoom.hdf5").tolist())
    result = {}
    for name, snapshot in (("whole", "sample"), ("zoom", str(tmp_path / "zoom.hdf5"))):
        assert cli.main(["fof", snapshot, "-o", str(tmp_path / f"{name}_groups.hdf5")]) == 0
        result[name] = tmp_path / f"{name}_groups.hdf5"
    assert "0.78125 by their mass and Omega0, but 1.5625 by their number" in capsys.readouterr().err
    info = io.read_catalogue(result["zoom"])[2]
    assert info.linking_length == pytest.approx(0.15625, rel=1e-6)
    inside = [group for group in members(result["whole"]) if group <= fine]
    assert len(inside) >= 8
    alone = set(members(result["zoom"]))
    assert sum(group in alone for group in inside) == len(inside)


@pytest.mark.parametrize("within", ["6.4", "inf"])
def test_heavy_particles_stay_out_of_groups_they_are_far_from(within, tmp_path, one_device) -> None:
    write_zoom(tmp_path / "zoom.hdf5")
    call = ["fof", str(tmp_path / "zoom.hdf5"), "--attach", "2,3", "--attach-within", within, "--npart-min", "1"]
    assert cli.main([*call, "-o", str(tmp_path / "c.hdf5")]) == 0
    content = io.read_catalogue_content(tmp_path / "c.hdf5")
    joined = content.by_type.count[content.by_type.count[:, 1] > 0, 2:4].sum()
    with h5py.File(tmp_path / "zoom.hdf5") as file:
        light, *heavy = (file[f"PartType{ptype}/Coordinates"][:].astype(np.float64) for ptype in (1, 2, 3))
    distance, _ = cKDTree(light % 37.5, boxsize=37.5).query(np.concatenate(heavy) % 37.5)
    assert joined == np.count_nonzero(distance <= float(within) * content.info.linking_length)
    assert (joined == len(distance)) == (within == "inf")


@pytest.mark.slow
def test_masses_of_each_particle_over_processes(tmp_path, one_device) -> None:
    write_zoom(tmp_path / "zoom.hdf5", own_masses=True)
    assert cli.main(["fof", str(tmp_path / "zoom.hdf5"), "-o", str(tmp_path / "one.hdf5")]) == 0
    ended = run_cli(["fof", "zoom.hdf5", "-o", "two.hdf5"], tmp_path)
    assert [single.returncode for single in ended] == [0, 0], ended
    assert "".join(single.output for single in ended).count("jztree: warning: ") == 1
    single, two = (io.read_catalogue(tmp_path / name)[2] for name in ("one.hdf5", "two.hdf5"))
    assert single.mean_separation == two.mean_separation
    assert members(tmp_path / "one.hdf5") == members(tmp_path / "two.hdf5")
