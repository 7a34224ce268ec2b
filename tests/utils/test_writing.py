"""Files are written completely or not at all."""

import dataclasses
import os

import h5py
import jax.numpy as jnp
import numpy as np
import pytest
from test_io import files, one_sentence

from jztree_utils import io

pytestmark = pytest.mark.fast


def test_failure_while_writing_leaves_the_old_file(tmp_path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write_half(failure: type[BaseException]) -> None:
        with io.atomic_output(path) as temporary:
            temporary.write_text("half")
            raise failure

    for failure, raised in ((KeyboardInterrupt,) * 2, (RuntimeError,) * 2, (OSError, io.OutputError)):
        with pytest.raises(raised):
            write_half(failure)
        assert files(tmp_path) == ["a.txt"]
        assert path.read_text() == "old"
    with io.atomic_output(path) as temporary:
        temporary.write_text("new")
    assert files(tmp_path) == ["a.txt"]
    assert path.read_text() == "new"


def test_new_files_have_ordinary_permissions_and_links_stay_links(tmp_path) -> None:
    (tmp_path / "plain").write_text("")
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    for name in ("new", "link"):
        with io.atomic_output(tmp_path / name) as temporary:
            temporary.write_text("text")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "text"


@pytest.mark.parametrize("name", ["missing/a.hdf5", "folder", "input.hdf5", "file/a.hdf5", "x" * 300])
def test_outputs_that_cannot_be_written(tmp_path, name) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "input.hdf5").write_text("precious")
    before = files(tmp_path)
    with pytest.raises(io.OutputError) as error:
        io.check_output(tmp_path / name, apart_from=(tmp_path / "input.hdf5",))
    assert name in one_sentence(error)
    assert files(tmp_path) == before
    assert (tmp_path / "input.hdf5").read_text() == "precious"


def test_write_protected_places(tmp_path, monkeypatch) -> None:
    # Permissions do not apply to a privileged user, so simulate the refusal of the system.
    (tmp_path / "old.hdf5").write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(io.OutputError, match="write-protected") as error:
            io.check_output(tmp_path / "old.hdf5")
        one_sentence(error)

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(io.OutputError, match="Permission denied") as error:
        io.check_output(tmp_path / "new.hdf5")
    one_sentence(error)


# Neighbours


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        (
            "indices",
            np.zeros(5, int),
            r"indices of neighbours have shape \(5,\); it must be \(n, k\) with k of at least 1",
        ),
        ("indices", np.zeros((5, 0), int), r"have shape \(5, 0\)"),
        ("indices", np.zeros((5, 3)), "they must be integers"),
        ("indices", np.full((5, 3), 5), "from 5 to 5, but they must be rows of the 5 particles, 0 to 4"),
        ("indices", np.full((5, 3), -1), "from -1 to -1, but"),
        (
            "distances",
            np.zeros((5, 2)),
            r"distances .* are float64 of shape \(5, 2\); they must be floats of shape \(5, 3\)",
        ),
        ("distances", None, "neighbours lack distances or indices; give both, or only densities"),
        ("density", np.zeros(4), r"density of neighbours .* must be floats of shape \(5,\)"),
        ("id", np.zeros((5, 3), int), r"id of neighbours .* must be integers of shape \(5,\)"),
    ],
)
def test_inconsistent_neighbours_are_not_written(tmp_path, name, wrong, words) -> None:
    result = io.Neighbours(
        distances=jnp.zeros((5, 3)), indices=np.zeros((5, 3), int), density=np.zeros(5), id=np.arange(5)
    )
    with pytest.raises(ValueError, match=words):
        io.write_neighbours(tmp_path / "k.hdf5", dataclasses.replace(result, **{name: wrong}))
    assert not list(tmp_path.iterdir())


def test_neighbours_round_trip(tmp_path, random) -> None:
    result = io.Neighbours(
        distances=random.random((5, 3)),
        indices=random.integers(0, 5, (5, 3), dtype=np.int32),
        density=random.random(5),
        by_number=True,
        ndim=2,
        header=io.SnapshotHeader(unit_length_in_cm=10.0),
    )
    io.write_neighbours(tmp_path / "k.hdf5", result)
    back = io.read_neighbours(tmp_path / "k.hdf5")
    for name in ("distances", "indices", "density"):
        np.testing.assert_array_equal(getattr(back, name), getattr(result, name))
    assert back.by_number
    assert back.ndim == 2
    assert back.id is None
    assert back.header == result.header
    with h5py.File(tmp_path / "k.hdf5") as file:
        assert file["Neighbours/density"].attrs["to_cgs"] == pytest.approx(1e-2)


def test_densities_without_neighbour_lists(tmp_path, random) -> None:
    result = io.Neighbours(density=random.random(5), id=np.arange(5), k=32)
    io.write_neighbours(tmp_path / "k.hdf5", result)
    again = io.read_neighbours(tmp_path / "k.hdf5")
    np.testing.assert_array_equal(again.density, result.density)
    assert (again.distances, again.indices, again.num_neighbours) == (None, None, 32)
    for wrong in (io.Neighbours(), io.Neighbours(indices=np.zeros((2, 1), int)), io.Neighbours(density=np.zeros(()))):
        with pytest.raises(ValueError, match="neighbours lack distances or indices"):
            io.write_neighbours(tmp_path / "k.hdf5", wrong)
    with pytest.raises(ValueError, match=r"id of neighbours .* must be integers of shape \(5,\)"):
        io.write_neighbours(tmp_path / "k.hdf5", dataclasses.replace(result, id=np.arange(4)))
    with h5py.File(tmp_path / "k.hdf5", "a") as file:
        del file["Neighbours/id"]
        file["Neighbours/id"] = np.arange(4)
    with pytest.raises(io.SnapshotError, match="Neighbours/id"):
        io.read_neighbours(tmp_path / "k.hdf5")
