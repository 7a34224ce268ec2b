"""``jztree verify``: correct results pass, and each planted error of a file is found."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from headers import COSMOLOGY, UNITS, write_types

from jztree_utils import cli

pytestmark = pytest.mark.usefixtures("one_device_in_fixtures")


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("catalogue") / "halos.hdf5"
    assert cli.main(["fof", "sample", "-o", str(path), "-q"]) == 0
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


@pytest.mark.slow
def test_catalogue_with_properties_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "halos.hdf5"
    assert cli.main(["fof", "sample", "-o", str(path), "--properties", "--npart-min", "300", "-q"]) == 0
    assert cli.main(["verify", str(path), "sample", "--samples", "3", "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    spheres = {f"spheres {name}" for name in ("2500c", "500c", "200c", "200m", "vir")}
    properties = {"densest particles", "particles of lowest potential", "principal axes", "principal axes 200c"}
    properties |= {"properties of spheres 200c", "spins", "concentrations"}
    expected = {"members", "group labels", "catalogue", *spheres, *properties}
    assert {check["content"] for check in checks} == expected
    assert not any(check["faults"] for check in checks)


@pytest.fixture(scope="module")
def with_properties(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a catalogue with all properties, and its snapshot of dark matter, stars that are attached, and gas."""
    folder, random = tmp_path_factory.mktemp("properties"), np.random.default_rng(4)
    types = {}
    for ptype, num in {0: 40, 1: 120, 4: 40}.items():
        pos = random.random((2, 3))[random.integers(2, size=num)] * 10 + random.normal(0, 0.15, (num, 3))
        types[ptype] = {
            "Coordinates": (pos % 10).astype(np.float32),
            "Velocities": random.normal(0, 100, (num, 3)).astype(np.float32),
            "Masses": random.uniform(250, 500, num).astype(np.float32),
            "ParticleIDs": random.permutation(num) + 10_000 * ptype,
        }
    write_types(folder / "snap.hdf5", COSMOLOGY | UNITS | {"BoxSize": 10.0}, types)
    options = ["--properties", "--attach", "4", "--rlink", "0.3", "--overdensity", "100m"]
    assert cli.main(["fof", str(folder / "snap.hdf5"), "-o", str(folder / "halos.hdf5"), *options, "-q"]) == 0
    return folder / "halos.hdf5", folder / "snap.hdf5"


def test_an_error_in_each_column_is_found_by_the_check_of_its_column(
    with_properties: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalogue, snapshot = map(str, with_properties)
    assert cli.main(["verify", catalogue, snapshot, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["not_checked"] == ""
    check_of = {column: check["content"] for check in summary["checks"] for column in check["columns"]}
    with h5py.File(catalogue) as file:
        columns = set(file["Groups"])
    check_of["mass_by_type"] = "types"
    assert columns == {*check_of, "count_by_type"}
    for name in columns - {"count", "count_by_type", "offset"}:  # reading compares these with the members
        result = changed(with_properties[0], tmp_path, f"Groups/{name}", plant)
        assert cli.main(["verify", str(result), snapshot, "-q"]) == 2
        assert check_of[name] in capsys.readouterr().err, name


@pytest.mark.parametrize("layout", ["native", "gadget4"])
def test_an_error_in_a_column_of_subhaloes_is_found(
    with_properties: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    catalogue, snapshot = tmp_path / "subhaloes.hdf5", str(with_properties[1])
    options = ["--subhaloes", "--min-bound", "8", "--attach", "0,4", "--rlink", "0.3", "--layout", layout]
    assert cli.main(["fof", snapshot, "-o", str(catalogue), *options, "-q"]) == 0
    assert cli.main(["verify", str(catalogue), snapshot, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    missing = summary["not_checked"].removeprefix("not checked: ").split(", ")
    assert sorted(missing) == ["spin of subhaloes", "vel of subhaloes"]
    (check,) = (check for check in summary["checks"] if check["content"] == "subhaloes")
    assert check["rows"] == check["checked"] >= 2
    folder = tmp_path / "changed"
    folder.mkdir()
    if layout == "gadget4":
        for name in ("SubhaloPos", "SubhaloIDMostbound", "SubhaloMass", "SubhaloLenType"):
            result = changed(catalogue, folder, f"Subhalo/{name}", plant)
            assert cli.main(["verify", str(result), snapshot, "-q"]) == 2, name
        return
    for column in check["columns"]:
        result = changed(catalogue, folder, column.replace("subhaloes", "Subhaloes"), plant)
        assert cli.main(["verify", str(result), snapshot, "-q"]) == 2
        assert "subhaloes" in capsys.readouterr().err, column
    for name, change in (("Subhaloes/vmax", lambda rows: rows.__setitem__(0, np.nan)), ("Members/id", swap_first)):
        result = changed(catalogue, folder, name, change)
        assert cli.main(["verify", str(result), snapshot, "-q"]) == 2
        assert "faults in its subhaloes" in capsys.readouterr().err, name
    for name in ("vel", "parent", "depth", "most_bound_id"):
        with h5py.File(changed(catalogue, folder, "Subhaloes/vmax", lambda rows: None), "a") as file:
            del file[f"Subhaloes/{name}"]
        assert cli.main(["verify", str(folder / catalogue.name), snapshot, "--samples", "1"]) == 0
        assert "group of subhaloes" in capsys.readouterr().out.partition("\nnot checked: ")[2]
    without_velocities = Path(shutil.copy(snapshot, folder / "snap.hdf5"))
    with h5py.File(without_velocities, "a") as file:
        for ptype in (0, 1, 4):
            del file[f"PartType{ptype}/Velocities"]
    assert cli.main(["verify", str(catalogue), str(without_velocities), "--samples", "1"]) == 0
    assert "group of subhaloes" in capsys.readouterr().out.partition("\nnot checked: ")[2]


def swap_first(rows: np.ndarray) -> None:
    rows[[0, 1]] = rows[[1, 0]]


def test_columns_without_a_check_are_named(
    with_properties: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = changed(with_properties[0], tmp_path, "Groups/mass", lambda rows: None)
    with h5py.File(copy, "a") as file:
        column = file.create_dataset("Groups/colour", data=np.zeros(len(file["Groups/mass"])))
        column.attrs.update(kind="1", description="colour")
    assert cli.main(["verify", str(copy), str(with_properties[1]), "--samples", "1"]) == 0
    assert capsys.readouterr().out.endswith("\nnot checked: colour\n")


AXES = {"axis_lengths", "axis_ratios", "principal_axes"}


@pytest.mark.parametrize(
    ("missing", "unchecked"),
    [
        ("m200m", {"r200m", "vmax", "rmax"}),
        ("r200m", {"m200m", "vmax", "rmax"}),
        ("r100m", {"m100m"}),
        ("rmax", {"vmax"}),
        ("com_inertia_radius", AXES),
        ("com_inertia_radius_200c", {f"{name}_200c" for name in AXES}),
    ],
)
def test_columns_that_another_column_needs_are_not_checked_without_it(
    with_properties: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    missing: str,
    unchecked: set[str],
) -> None:
    copy = changed(with_properties[0], tmp_path, "Groups/mass", lambda rows: None)
    with h5py.File(copy, "a") as file:
        del file[f"Groups/{missing}"]
    assert cli.main(["verify", str(copy), str(with_properties[1]), "--samples", "1"]) == 0
    assert set(capsys.readouterr().out.partition("\nnot checked: ")[2].strip().split(", ")) == unchecked


def plant(rows: np.ndarray) -> None:
    """Change one value of the first row by a thousandth, or by 1; the largest one, because others may be 0."""
    row = rows[0].reshape(-1) if rows.ndim > 1 else rows[:1]
    largest = np.argmax(np.abs(row))
    row[largest] = row[largest] + 1 if rows.dtype.kind in "iu" else 1.001 * row[largest]


@pytest.fixture(scope="module")
def of_several_types(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the catalogue and the snapshot of dark matter, and of stars that are attached."""
    folder, random = tmp_path_factory.mktemp("types"), np.random.default_rng(4)
    centres, types = random.random((30, 3)), {}
    for ptype, num in {1: 2000, 4: 700}.items():
        pos = centres[random.integers(30, size=num)] + random.normal(0, 0.02, (num, 3))
        types[ptype] = {"Coordinates": pos % 1, "ParticleIDs": random.permutation(num) + 10_000 * ptype}
    types[4]["Masses"] = random.random(700, np.float32)
    write_types(folder / "snap.hdf5", {"BoxSize": 1.0, "MassTable": [0, 2.1, 0, 0, 0, 0]}, types)
    output = folder / "halos.hdf5"
    options = ["--attach", "4", "--attach-within", "1", "--rlink", "0.012"]
    assert cli.main(["fof", str(folder / "snap.hdf5"), "-o", str(output), *options, "-q"]) == 0
    return output, folder / "snap.hdf5"


def test_catalogue_of_several_types_passes(
    of_several_types: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", *map(str, of_several_types), "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [check["content"] for check in checks] == [
        "members",
        "group labels",
        "attached particles of type 4",
        "types",
        "catalogue",
    ]
    assert [check["rows"] for check in checks[1:3]] == [2000, 700]


def test_mass_of_the_mass_table_keeps_float64_with_float32_masses_of_attached_types(
    of_several_types: tuple[Path, Path], tmp_path: Path
) -> None:
    output = tmp_path / "halos.hdf5"
    assert (
        cli.main(["fof", str(of_several_types[1]), "-o", str(output), "--attach", "4", "--rlink", "0.012", "-q"]) == 0
    )
    with h5py.File(output) as file:
        mass, count = (file[f"Groups/{name}_by_type"][:, 1] for name in ("mass", "count"))
    np.testing.assert_allclose(mass, 2.1 * count, rtol=1e-14)


def exchange_star(rows: np.ndarray) -> None:
    """Replace a star of the first group by a star of another group, and the other way around."""
    stars = np.flatnonzero(rows >= 40_000)
    rows[stars[[0, -1]]] = rows[stars[[-1, 0]]]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("Members/id", exchange_star, "attached particles of type 4"),
        ("Groups/mass_by_type", lambda rows: rows.__imul__(1.001), "faults in its types"),
        ("Groups/count_by_type", lambda rows: rows.__iadd__([0, 1, 0, 0, -1, 0]), "faults in its types"),
    ],
)
def test_planted_errors_of_several_types_are_found(
    of_several_types: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    change: Any,
    message: str,
) -> None:
    output, snapshot = of_several_types
    result = changed(output, tmp_path, name, change)
    assert cli.main(["verify", str(result), str(snapshot)]) == 2
    assert message in capsys.readouterr().err


def test_shared_identifiers_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "snap.npz", pos=np.zeros((30, 3), np.float32), id=np.arange(30) // 2, boxsize=1.0)
    arguments = [str(tmp_path / "halos.hdf5"), str(tmp_path / "snap.npz")]
    assert cli.main(["fof", arguments[1], "-o", arguments[0], "--rlink", "0.1"]) == 0
    assert cli.main(["verify", *arguments]) == 2
    assert "share the identifier 0, so that the members of groups are unknown" in capsys.readouterr().err


def swap(rows: np.ndarray) -> None:
    rows[[0, -1]] = rows[[-1, 0]]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("Members/id", swap, "faults in its group labels and catalogue"),
        ("Members/id", lambda rows: rows.__setitem__(0, rows[1]), "faults in its members"),
        ("Members/id", lambda rows: rows.__setitem__(0, 10**7), "faults in its members"),
        ("Groups/com_pos", lambda rows: rows.__iadd__(4e-3), "faults in its catalogue"),
        ("Groups/mass", lambda rows: rows.__imul__(1.001), "faults in its catalogue"),
        ("Groups/com_vel", lambda rows: rows.__imul__(1.001), "faults in its catalogue"),
        ("Groups/max_radius", lambda rows: rows.__imul__(1.001), "faults in its catalogue"),
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
    assert "faults in its neighbours" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["sample", "sample"], "sample"), (["{}", "{}"], "is a catalogue of groups, not a snapshot")],
)
def test_invalid_arguments_are_one_sentence(
    catalogue: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["verify", *(word.format(catalogue) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
