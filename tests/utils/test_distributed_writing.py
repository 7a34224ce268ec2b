"""Files written by all ranks together."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from test_distributed_io import RANKS, files, make_mesh

from jztree.data import FofCatalogue, ParticleData
from jztree.jax_ext import shard_map_constructor
from jztree_utils import io
from jztree_utils.io import _rank_writer


def mapped(data: Any, base: Path, ranks: int, **options: Any) -> Callable[[], Any]:
    """Return a call that writes ``data``, whose arrays have a leading axis of ranks, and waits for the end."""

    def write(data: Any) -> Any:
        return io.distr_write_hdf5(base, data, **options)

    smap = shard_map_constructor(write, in_specs=P(-1), out_specs=P())(make_mesh(ranks), jit=True)
    return lambda: jax.block_until_ready(smap(data))


def make_particles(nums: list[int], rows: int, random: np.random.Generator) -> ParticleData:
    ranks = len(nums)
    return ParticleData(
        pos=random.random((ranks, rows, 3), np.float32),
        mass=random.random(ranks, np.float32),
        vel=None,
        id=random.integers(0, 2**32, (ranks, rows), np.uint32),
        num=np.asarray(nums, np.int32),
    )


def make_groups(nums: list[int], rows: int, random: np.random.Generator) -> FofCatalogue:
    shape = (len(nums), rows)
    return FofCatalogue(
        ngroups=np.asarray(nums, np.int32),
        count=random.integers(1, 99, shape).astype(np.int32),
        offset=random.integers(0, 99, shape).astype(np.int32),
        com_pos=random.random((*shape, 3), np.float32),
        com_inertia_radius=random.random(shape, np.float32),
        max_radius=random.random(shape, np.float32),
    )


def joined(column: np.ndarray, nums: list[int]) -> np.ndarray:
    return np.concatenate([rows[:num] for rows, num in zip(column, nums, strict=True)])


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("empty", ["none", "first", "all but the last", "all"])
def test_combined_file_contains_the_rows_of_every_rank(tmp_path, random, ranks, empty) -> None:
    nums = {"none": [5, 9, 1, 6], "first": [0, 9, 1, 6], "all but the last": [0, 0, 0, 3], "all": [0] * 4}[empty]
    nums = nums[-ranks:]
    part, groups = make_particles(nums, 9, random), make_groups(nums[::-1], 10, random)
    mapped({"part": part, "groups": groups}, tmp_path / "out", ranks)()
    assert files(tmp_path) == sorted(["out.hdf5", *(f"out.{rank}.hdf5" for rank in range(ranks))])
    with h5py.File(tmp_path / "out.hdf5") as file:
        for group, data, counts in (("part", part, nums), ("groups", groups, nums[::-1])):
            for name in data.__dataclass_fields__:
                value = getattr(data, name)
                if value is None or name == "num_total":
                    assert name not in file[group]
                    continue
                expected = value if value.ndim == 1 else joined(value, counts)
                np.testing.assert_array_equal(file[group][name][()], expected)
                assert file[group][name].dtype == value.dtype
    for rank in range(ranks):
        with h5py.File(tmp_path / f"out.{rank}.hdf5") as file:
            np.testing.assert_array_equal(file["part/pos"][()], part.pos[rank, : nums[rank]])
            assert file["part/mass"][()] == part.mass[rank]


def test_combined_file_may_be_moved_with_the_others(tmp_path, random, monkeypatch) -> None:
    part = make_particles([3, 4], 5, random)
    (tmp_path / "first").mkdir()
    monkeypatch.chdir(tmp_path)
    mapped(part, Path("first/out"), 2)()
    shutil.move("first", "second")
    with h5py.File("second/out.hdf5") as file:
        np.testing.assert_array_equal(file["pos"][()], joined(part.pos, [3, 4]))
        assert file.attrs["num_files"] == 2
    os.unlink("second/out.1.hdf5")
    with h5py.File("second/out.hdf5") as file:
        assert np.isnan(file["pos"][3:]).all()
        assert (file["id"][3:] == 2**32 - 1).all()


def test_attributes_and_explicit_num(tmp_path, random) -> None:
    data = {"a": {"x": random.random((2, 6, 2)), "y": np.arange(12, dtype=np.int32).reshape(2, 6)}}
    attrs = {"b": 0.2, "a": {"meaning": "some"}, "a/x": {"unit": "Mpc", "to_cgs": [1.0, 2.0]}}
    mapped(data, tmp_path / "out", 2, num=4, attrs=attrs)()
    for name, rows in (("out.0.hdf5", 4), ("out.hdf5", 8)):
        with h5py.File(tmp_path / name) as file:
            assert file.attrs["b"] == 0.2
            assert file["a"].attrs["meaning"] == "some"
            assert file["a/x"].attrs["unit"] == "Mpc"
            assert file["a/x"].attrs["to_cgs"].tolist() == [1.0, 2.0]
            assert file["a/x"].shape == (rows, 2)


@pytest.mark.parametrize("compiled", [False, True])
def test_outside_of_any_mesh(tmp_path, random, compiled, x64) -> None:
    data = (random.random((5, 2)), random.random(5) < 0.5, random.integers(0, 2**63, 5), np.zeros(5) + 1j)

    def write(data: Any) -> Any:
        return io.distr_write_hdf5(tmp_path / "out", data, num=3)

    assert (jax.jit(write) if compiled else write)(data) == 0
    with h5py.File(tmp_path / "out.hdf5") as file:
        for place, column in enumerate(data):
            np.testing.assert_array_equal(file[str(place)][()], column[:3])
    assert files(tmp_path) == ["out.0.hdf5", "out.hdf5"]


def test_single_array_and_existing_files(tmp_path) -> None:
    for length in (5, 3):
        io.distr_write_hdf5(tmp_path / "out", jnp.arange(length)).block_until_ready()
        with h5py.File(tmp_path / "out.hdf5") as file:
            assert file["data"][()].tolist() == list(range(length))
    assert files(tmp_path) == ["out.0.hdf5", "out.hdf5"]


def test_as_many_devices_as_cores_and_many_rows(tmp_path, random) -> None:
    # JAX's own callbacks hang here: they wait for a thread to copy over 100 kB, while all threads are in callbacks.
    part = make_particles([200_000] * 4, 200_000, random)
    mapped(part, tmp_path / "out", 4)()
    with h5py.File(tmp_path / "out.hdf5") as file:
        np.testing.assert_array_equal(file["pos"][()], part.pos.reshape(-1, 3))


def test_callbacks_of_other_platforms(tmp_path, random, monkeypatch) -> None:
    # Use the code for platforms where XLA provides no host buffers; it also works on CPUs, with few rows.
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, default, **_: default(*args))
    part = make_particles([3, 4], 5, random)
    mapped(part, tmp_path / "out", 2)()
    with h5py.File(tmp_path / "out.hdf5") as file:
        np.testing.assert_array_equal(file["pos"][()], joined(part.pos, [3, 4]))
    with pytest.raises(Exception, match=r"the folder of .* is missing on rank 1"):
        mapped(part, tmp_path / "missing" / "out", 2)()


def test_long_names(tmp_path, random) -> None:
    part = make_particles([3, 4], 5, random)
    mapped(part, tmp_path / ("long" * 40), 2)()
    with h5py.File(tmp_path / f"{'long' * 40}.hdf5") as file:
        np.testing.assert_array_equal(file["pos"][()], joined(part.pos, [3, 4]))


def test_written_data_equals_the_data_read(snapshot, tmp_path) -> None:
    with jax.enable_x64(True):
        part, header = io.read_snapshot_sharded(snapshot, make_mesh(4), fields=("pos", "id"), npad=3)
        mapped(part, tmp_path / "out", 4, attrs={"Header": header.boxsize})()
    with h5py.File(snapshot) as complete, h5py.File(tmp_path / "out.hdf5") as file:
        np.testing.assert_array_equal(file["pos"][()], complete["PartType1/Coordinates"][()])
        np.testing.assert_array_equal(file["id"][()], complete["PartType1/ParticleIDs"][()])


# Data that cannot be written


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ({}, {}, "data holds no arrays"),
        ({"a": np.zeros((4, 3)), "b": np.zeros(5)}, {}, "b has 5 rows, but a in the same dataclass or dict has 4"),
        ({"a": jnp.asarray(np.zeros(4, jnp.bfloat16))}, {}, "a has dtype bfloat16"),
        ({"a": {"b": np.zeros(4)}, "a/b": np.zeros(4)}, {}, "two arrays with the same name"),
        (np.zeros(3), {"attrs": {"x": {"unit": "1"}}}, "entries for 'x'"),
    ],
)
def test_data_that_cannot_be_written(tmp_path, data, options, message) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        io.distr_write_hdf5(tmp_path / "out", data, **options)
    assert files(tmp_path) == []


def test_attributes_must_be_known(tmp_path) -> None:
    with pytest.raises(TypeError, match="attribute x is traced"):
        jax.jit(lambda x: io.distr_write_hdf5(tmp_path / "out", x, attrs={"x": x}))(jnp.zeros(3))


# Ranks that fail


@pytest.fixture
def failing(monkeypatch) -> Iterator[dict[str, Any]]:
    """Functions to call instead of steps, by the name of the replaced function; they receive the file name."""
    instead: dict[str, Any] = {}

    def patch(module: Any, name: str, place: int) -> None:
        original = getattr(module, name)

        def replaced(*args: Any, **kwargs: Any) -> Any:
            if name in instead:
                instead[name](Path(args[place]).name)
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, replaced)

    patch(_rank_writer, "check_output", 0)
    patch(_rank_writer, "create_empty", 1)
    patch(_rank_writer, "fill_hdf5", 0)
    patch(_rank_writer, "rename", 1)
    return instead


def only(part_of_name: str, error: Exception) -> Callable[[str], None]:
    def fail(name: str) -> None:
        if part_of_name in name:
            raise error

    return fail


@pytest.mark.parametrize(
    ("step", "name", "error", "message"),
    [
        (
            "check_output",
            ".2.hdf5",
            io.OutputError("The folder is missing.", 2),
            "the folder of .* is missing on rank 2",
        ),
        ("create_empty", ".1.hdf5", io.OutputError("No.", 13), "rank 1 has no permission to write"),
        ("create_empty", ".0.hdf5", OSError(30, "Read-only file system"), "rank 0 has no permission to write"),
        ("fill_hdf5", ".3.hdf5", OSError(28, "No space left on device"), "rank 3 has no space left"),
        ("fill_hdf5", "out.hdf5", OSError(122, "Quota exceeded"), "rank 0 has no space left"),
        ("fill_hdf5", ".3.hdf5", ZeroDivisionError("a bug"), "rank 3 could not write"),
        ("fill_hdf5", ".hdf5", MemoryError(), "rank 3 could not write"),  # on all ranks
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_rank_that_cannot_write(tmp_path, random, failing, caplog, step, name, error, message, before) -> None:
    caplog.set_level(logging.ERROR, "jztree")
    (tmp_path / "unrelated").touch()
    write = mapped(make_particles([3, 4, 0, 5], 5, random), tmp_path / "out", 4)
    if before:
        write()
    there = {path: (tmp_path / path).stat().st_mtime_ns for path in files(tmp_path)}
    failing[step] = only(name, error)
    for _ in range(2):
        with pytest.raises(Exception, match=f"jztree: {message}"):
            write()
        assert {path: (tmp_path / path).stat().st_mtime_ns for path in files(tmp_path)} == there
    assert str(error) in caplog.text
    failing.clear()
    write()
    assert len(files(tmp_path)) == 6


@pytest.mark.parametrize("name", [".1.hdf5", "out.hdf5"])
def test_file_that_cannot_be_moved_into_place(tmp_path, random, failing, name) -> None:
    write = mapped(make_particles([3, 4], 5, random), tmp_path / "out", 2)
    failing["rename"] = only(name, PermissionError(13, "Permission denied"))
    with pytest.raises(Exception, match=r"jztree: rank \d has no permission to write"):
        write()
    assert not any(file.endswith(".part") for file in files(tmp_path))
    assert "out.hdf5" not in files(tmp_path)
    if name == ".1.hdf5":
        assert files(tmp_path) == []


def test_output_name_is_a_folder_on_one_rank(tmp_path, random) -> None:
    (tmp_path / "out.1.hdf5").mkdir()
    with pytest.raises(Exception, match="jztree: rank 1 could not write"):
        mapped(make_particles([3, 4, 5], 5, random), tmp_path / "out", 3)()
    assert files(tmp_path) == ["out.1.hdf5"]


def test_missing_folder(tmp_path, random) -> None:
    with pytest.raises(Exception, match=r"the folder of .*missing.* is missing on rank"):
        mapped(make_particles([3, 4], 5, random), tmp_path / "missing" / "out", 2)()
    assert files(tmp_path) == []


def test_num_larger_than_the_number_of_rows(tmp_path, random) -> None:
    with pytest.raises(Exception, match="rank 1 could not write"):
        mapped(make_particles([3, 6], 5, random), tmp_path / "out", 2)()
    assert files(tmp_path) == []


def test_errors_are_raised_if_the_result_is_unused(tmp_path, failing) -> None:
    def write(x: jax.Array) -> None:
        io.distr_write_hdf5(tmp_path / "out", x)

    smap = shard_map_constructor(write, in_specs=P(-1), out_specs=None)(make_mesh(4), jit=True)

    def run() -> None:
        smap(jnp.zeros((4, 5)))
        jax.effects_barrier()

    failing["fill_hdf5"] = only(".1.hdf5", OSError(28, "No space left on device"))
    with pytest.raises(Exception, match="rank 1 has no space left"):
        run()
    failing.clear()
    run()
