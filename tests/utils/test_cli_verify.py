"""``jztree verify``: correct results pass, and each planted error of a file is found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from jztree_utils import cli

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("catalogue") / "halos.hdf5"
    assert cli.main(["fof", "sample", "-o", str(path), "-q"]) == 0
    return path


@pytest.fixture(scope="module")
def with_spheres(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("catalogue") / "halos.hdf5"
    assert cli.main(["fof", "sample", "-o", str(path), "--properties", "--npart-min", "300", "-q"]) == 0
    return path


def changed(path: Path, folder: Path, name: str, change: Callable[[np.ndarray], Any]) -> Path:
    """Return a copy of a file with another dataset."""
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    with h5py.File(copy, "a") as file:
        values = file[name][()]
        change(values)
        file[name][...] = values
    return copy


def test_catalogue_with_spheres_passes_and_planted_errors_are_found(
    with_spheres: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", str(with_spheres), "sample", "--samples", "20", "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    spheres = {f"spheres {name}" for name in ("2500c", "500c", "200c", "200m", "vir")}
    assert {check["content"] for check in checks} == {"members", "group labels", "catalogue", *spheres}
    assert not any(check["faults"] for check in checks)
    for name, sphere in (("m200c", "200c"), ("rvir", "vir")):
        result = changed(with_spheres, tmp_path, f"Groups/{name}", lambda rows: rows.__imul__(1.001))
        assert cli.main(["verify", str(result), "sample", "--samples", "20"]) == 2
        assert f"its spheres {sphere} have faults" in capsys.readouterr().err


def swap(rows: np.ndarray) -> None:
    rows[[0, -1]] = rows[[-1, 0]]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("Members/id", swap, "its group labels and catalogue have faults"),
        ("Members/id", lambda rows: rows.__setitem__(0, rows[1]), "its members have faults"),
        ("Members/id", lambda rows: rows.__setitem__(0, 10**7), "its members have faults"),
        ("Groups/com_pos", lambda rows: rows.__iadd__(4e-3), "its catalogue have faults"),
        ("Groups/mass", lambda rows: rows.__imul__(1.001), "its catalogue have faults"),
        ("Groups/com_vel", lambda rows: rows.__imul__(1.001), "its catalogue have faults"),
        ("Groups/max_radius", lambda rows: rows.__imul__(1.001), "its catalogue have faults"),
    ],
)
def test_planted_errors_of_catalogues_are_found(
    catalogue: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, change: Any, message: str
) -> None:
    result = changed(catalogue, tmp_path, name, change)
    assert cli.main(["verify", str(result), "sample", "--samples", "100"]) == 2
    error = capsys.readouterr().err
    assert f"jztree: error: {result} does not agree with the snapshot: {message}.\n" in error


def test_planted_error_of_neighbours_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "neighbours.hdf5"
    assert cli.main(["knn", "sample", "-k", "4", "-o", str(path), "-q"]) == 0
    assert cli.main(["verify", str(path), "sample", "--samples", "100"]) == 0
    assert "neighbours: 100 of 110,592 rows checked, no fault" in capsys.readouterr().out
    (tmp_path / "changed").mkdir()
    wrong = changed(path, tmp_path / "changed", "Neighbours/indices", lambda rows: rows.__iadd__(rows == rows[:, 3:]))
    assert cli.main(["verify", str(wrong), "sample", "--samples", "100"]) == 2
    assert "its neighbours have faults" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}"], "verify needs a result and its snapshot, but 1 files were given"),
        (["{}", "sample", "--samples", "0"], "--samples is 0; it must be at least 1"),
        (["sample", "sample"], "sample"),
        (["{}", "{}"], "is a catalogue of groups, not a snapshot"),
    ],
)
def test_invalid_arguments_are_one_sentence(
    catalogue: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["verify", *(word.format(catalogue) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
