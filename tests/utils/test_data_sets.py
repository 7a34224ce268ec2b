"""Classes of arrays in HDF5: data read must equal data written."""

import dataclasses
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import oracles
import pytest
from devices import mesh_of

import jztree as jz
from jztree import data
from jztree.data import FofCatalogue, ParticleData, Pos
from jztree_utils import io


def particles(n: int = 300) -> ParticleData:
    pos = oracles.uniform(n, 3)
    return ParticleData(pos=pos, mass=2.0, vel=pos * 3, id=np.arange(n) + 2**40, num=n - 20, num_total=n - 20)


def assert_equal(result: Any, expected: Any) -> None:
    for field in dataclasses.fields(expected):
        single, second = getattr(result, field.name), getattr(expected, field.name)
        assert (single is None) == (second is None), field.name
        if second is not None:
            np.testing.assert_array_equal(single, second)
            assert np.asarray(single).dtype.kind == np.asarray(second).dtype.kind


def test_particles_and_catalogue_round_trip(tmp_path: Path) -> None:
    part = dataclasses.replace(particles(), id=np.arange(300, dtype=np.int32))
    grouped, cata = jz.fof.fof_and_catalogue.jit(part, 0.13, 1.0)
    file = tmp_path / "out.hdf5"
    io.write_h5file(file, part=particles(), grouped=grouped, cata=cata)
    result = io.read_h5file(file, part=ParticleData, grouped=ParticleData, cata=FofCatalogue)
    assert_equal(result["part"], data.squeeze_particles(particles()))
    assert result["part"].id.dtype == np.int64
    assert_equal(result["grouped"], data.squeeze_particles(grouped))
    expected = data.squeeze_catalogue(cata)
    assert expected.ngroups > 0
    assert_equal(result["cata"], expected)
    np.testing.assert_array_equal(result["cata"].max_radius, expected.max_radius)
    assert type(result["part"].num) is int
    everything = io.read_h5file(file)
    assert everything["part"]["num_total"] == 280
    io.write_h5file(file, squeeze=False, part=particles())
    assert_equal(io.read_h5file(file, part=ParticleData)["part"], particles())


@pytest.mark.long
def test_data_of_several_devices_is_joined(tmp_path: Path) -> None:
    stacked = data.expand_particles(data.Pos(pos=particles().pos), 2, npad=3)
    grouped, cata = jz.fof.fof_and_catalogue.smap(mesh_of(2), jit=True)(stacked, 0.13, 1.0)
    io.write_h5file(tmp_path / "out.hdf5", part=grouped, cata=cata)
    result = io.read_h5file(tmp_path / "out.hdf5", part=Pos, cata=FofCatalogue)
    assert result["part"].pos.shape == (300, 3)
    np.testing.assert_array_equal(result["cata"].count, data.squeeze_catalogue(cata).count)


def test_nested_empty_and_scalar_values(tmp_path: Path) -> None:
    values = {"table": {"x": np.arange(3), "none": None}, "flag": True, "empty": np.zeros((0, 3)), "label": np.int8(3)}
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        io.write_to_hdf5(file.create_group("all"), values, compression="lzf")
        io.write_to_hdf5(file.create_group("plain"), values, compression=None)
        assert file["all/table/x"].compression == "lzf"
        assert file["plain/table/x"].compression is None
        result = io.read_from_hdf5(file["all"], dict)
    assert sorted(result) == ["empty", "flag", "label", "table"]
    assert result["flag"] is True
    assert result["empty"].shape == (0, 3)
    assert list(result["table"]) == ["x"]
    assert io.squeeze_any(values) is values


def test_invalid_input_and_missing_data_raise(tmp_path: Path) -> None:
    file = tmp_path / "out.hdf5"
    with pytest.raises(TypeError, match="no data were given"):
        io.write_h5file(file)
    with pytest.raises(TypeError, match="name has dtype <U3, which HDF5 does not support"):
        io.write_h5file(file, some={"name": "abc"})
    assert not file.exists()
    io.write_h5file(file, some={"vel": np.zeros(3)})
    with pytest.raises(io.SnapshotError, match="has no group other; it holds some"):
        io.read_h5file(file, other=Pos)
    with pytest.raises(io.SnapshotError, match="has no pos, which ParticleData needs; it holds vel"):
        io.read_h5file(file, some=ParticleData)
    with pytest.raises(io.SnapshotError):
        io.read_h5file(tmp_path / "none.hdf5")
