"""The command line with snapshots in any unit, and with masses and velocities that are not numbers."""

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from jztree_utils import cli, io

COUNTS = pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])


def clumps(random: np.random.Generator, length: float) -> np.ndarray:
    """Return three groups of 50 particles each, far apart, in a box of ``length``."""
    centre = np.repeat([[0.2, 0.2, 0.2], [0.5, 0.6, 0.5], [0.8, 0.3, 0.7]], 50, axis=0)
    return (centre + 0.01 * random.standard_normal((150, 3))) * length


def catalogue(path: Path, output: Path, *arguments: str) -> tuple[Any, dict[str, Any]]:
    assert cli.main(["fof", str(path), "--rlink", arguments[0], *arguments[1:], "-o", str(output)]) == 0
    with h5py.File(output) as file:
        return io.read_catalogue(output)[0], {name: data[()] for name, data in file["Groups"].items()}


@COUNTS
@pytest.mark.parametrize("where", ["column", "header"])
def test_masses_in_grams(count, where, use_devices, tmp_path, random, write_gadget) -> None:
    use_devices(count)
    pos = clumps(random, 1.0).astype(np.float32)
    mass = np.full(150, 2e43)
    columns = {"Masses": mass} if where == "column" else {}
    header = {} if where == "column" else {"MassTable": np.where(np.arange(6) == 1, 2e43, 0.0)}
    path = write_gadget(tmp_path / "a.hdf5", pos, columns=columns, header=header)
    cata, _ = catalogue(path, tmp_path / "out.hdf5", "0.05")
    np.testing.assert_allclose(cata.mass, 50 * 2e43, rtol=1e-14)
    np.testing.assert_allclose(np.sort(cata.com_pos[:, 0]), [0.2, 0.5, 0.8], atol=0.01)


@COUNTS
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lengths_in_centimetres(count, dtype, use_devices, tmp_path, random, write_gadget) -> None:
    use_devices(count)
    length = 3e24
    pos = clumps(random, length).astype(dtype)
    path = write_gadget(tmp_path / "a.hdf5", pos, header={"BoxSize": length})
    cata, columns = catalogue(path, tmp_path / "out.hdf5", str(0.05 * length), "--properties")
    assert all(np.isfinite(column).all() for column in columns.values())
    for group in range(3):
        members = pos[np.argmin(np.abs(pos[::50, 0] - cata.com_pos[group, 0])) * 50 :][:50].astype(np.float64) / length
        values, vectors = np.linalg.eigh(np.cov(members, rowvar=False, bias=True))
        np.testing.assert_allclose(columns["axis_lengths"][group] / length, np.sqrt(values[::-1]), rtol=1e-5)
        along = np.abs(np.sum(columns["principal_axes"][group] * vectors.T[::-1], axis=1))
        np.testing.assert_allclose(along, 1, rtol=1e-5)


@COUNTS
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("Masses", np.nan, "Row 23 of the masses of type 1 in {path} is NaN or infinite"),
        ("Masses", -2.0, "Row 123 of type 1 (row 23 in {path.name}) has a mass that is negative, NaN or outside"),
        ("Velocities", np.inf, "Row 23 of the velocities of type 1 in {path} is NaN or infinite"),
        (
            "Velocities",
            2e38,
            "Row 123 of type 1 (row 23 in {path.name}) has a velocity that is NaN, infinite or larger",
        ),
    ],
)
def test_bad_rows_are_those_of_the_snapshot(
    count, name, value, words, use_devices, tmp_path, capsys, write_parts
) -> None:
    use_devices(count)
    random = np.random.default_rng(8)
    columns = {"Masses": np.full(150, 2.5, np.float32), "Velocities": random.random((150, 3)).astype(np.float32)}
    columns[name][123] = value
    paths = write_parts(clumps(random, 1.0).astype(np.float32), [40, 100], **columns)
    assert cli.main(["fof", str(paths[0]), "--rlink", "0.05", "--properties"]) == 2
    *warned, err = capsys.readouterr().err.splitlines()
    assert len(warned) == (value == -2.0)  # this mass differs from the one in the mass table
    assert re.fullmatch(r"jztree: error: [^\n]+\.", err)
    assert words.format(path=paths[2]) in err


@pytest.mark.long
def test_bad_rows_of_attached_types(tmp_path, capsys, random) -> None:
    path = tmp_path / "a.hdf5"
    pos = clumps(random, 1.0).astype(np.float32)
    with h5py.File(path, "w") as file:
        header = file.create_group("Header").attrs
        header["BoxSize"], header["Time"], header["MassTable"] = 1.0, 1.0, np.zeros(6)
        header["NumPart_ThisFile"] = header["NumPart_Total"] = np.array([150, 150, 0, 0, 0, 0])
        header["NumFilesPerSnapshot"] = 1
        for ptype in (0, 1):
            mass = np.ones(150, np.float32)
            mass[7] = -1.0 if ptype == 0 else 1.0
            file[f"PartType{ptype}/Coordinates"], file[f"PartType{ptype}/Masses"] = pos, mass
    assert cli.main(["fof", str(path), "--rlink", "0.05", "--attach", "0"]) == 2
    assert "Row 7 of type 0 has a mass that is negative, NaN" in capsys.readouterr().err
