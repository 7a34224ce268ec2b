"""Tables of catalogue files: all columns, including properties, with the units stored in the file."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_catalogues import HEADER, full_content

from jztree_utils import cli, io

LAYOUTS = ("native", "gadget4", "swift", "soap")


@pytest.fixture(params=LAYOUTS)
def file(request, tmp_path) -> tuple[str, Path, io.CatalogueContent]:
    content = full_content()
    io.write_catalogue_content(tmp_path / "c.hdf5", content, request.param)
    return request.param, tmp_path / "c.hdf5", content


def test_read_catalogue_unpacks_into_three_values(file) -> None:
    _, path, content = file
    read = io.read_catalogue(path)
    catalogue, ids, info = read
    assert catalogue.ngroups == 6
    np.testing.assert_array_equal(ids, content.ids)
    assert info is read.info
    assert read.content.extra.keys() == content.extra.keys()


def test_astropy_has_all_columns_as_quantities(file) -> None:
    units = pytest.importorskip("astropy.units")
    from astropy.cosmology.units import littleh  # noqa: PLC0415
    from astropy.table import QTable  # noqa: PLC0415

    layout, path, content = file
    table = io.read_catalogue(path).to_astropy()
    assert type(table) is QTable
    own = {name for name, column in io.catalogue_columns(content.catalogue, content.extra).items()}
    assert set(table.colnames) == own | {"count_by_type", "mass_by_type"}
    # Physical values do not depend on the layout; h is 0.5.
    per_h = units.dimensionless_unscaled if layout in ("swift", "soap") else 1 / littleh
    for name, given, unit, cgs in (
        ("com_pos", content.catalogue.com_pos, units.kpc, units.cm),
        ("r200c", content.extra["r200c"].values, units.kpc, units.cm),
        ("m200c", content.extra["m200c"].values, 1.989e43 * units.g, units.g),
        ("mass_by_type", content.by_type.mass, 1.989e43 * units.g, units.g),
    ):
        result = table[name].to_value(cgs * per_h) / (1 if layout in ("swift", "soap") else HEADER.hubble)
        np.testing.assert_allclose(result, given * (1 * unit).to_value(cgs) / HEADER.hubble, rtol=1e-3, err_msg=name)
    assert table["vel_dispersion"].unit == units.km / units.s
    assert table["angular_momentum"].unit == units.kpc * per_h * units.km / units.s
    assert table["densest_density"].unit.is_equivalent(units.g / units.cm**3 / per_h**2)
    assert getattr(table["spin"], "unit", None) is None
    assert table["m200c"].info.description == "mass in a sphere"


def test_pandas_has_all_columns_and_their_units(file) -> None:
    pytest.importorskip("pandas")
    layout, path, _ = file
    per_h = "" if layout in ("swift", "soap") else "/h"
    table = io.read_catalogue(path).to_pandas()
    assert len(table) == 6
    units = table.attrs["units"]
    assert {"com_pos_z", "shape_tensor_xy", "m200c", "spin", "count_by_type_5"} <= set(table.columns)
    assert units["m200c"] == units["mass_by_type_0"] == f"1e10 Msun{per_h}"
    assert units["com_pos_x"] == f"kpc{per_h}"
    assert units["com_vel_y"] == "km/s"
    assert units["densest_density"] == f"(kpc{per_h})^-3 (1e10 Msun{per_h})"
    assert units["angular_momentum_x"] == f"(kpc{per_h}) (km/s)"
    assert "spin" not in units
    assert table.attrs["definitions"]["r200c"] == "its radius"


def test_units_without_a_name_are_in_cgs(tmp_path) -> None:
    units = pytest.importorskip("astropy.units")
    content = full_content()
    header = replace(HEADER, unit_length_in_cm=3.5e20, h_free=True, unit_velocity_in_cm_per_s=None)
    io.write_catalogue_content(tmp_path / "c.hdf5", replace(content, info=replace(content.info, header=header)))
    table = io.read_catalogue(tmp_path / "c.hdf5").to_astropy()
    np.testing.assert_allclose(table["r200c"].to_value(units.cm), content.extra["r200c"].values * 3.5e20)
    assert not isinstance(table["com_vel"], units.Quantity)


def test_parquet_equals_pandas(file, tmp_path, capsys) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("pandas")
    _, path, _ = file
    expected = io.read_catalogue(path).to_pandas()
    assert cli.main(["convert", str(path), "-o", str(tmp_path / "c.parquet"), "-q"]) == 0
    table = parquet.read_table(tmp_path / "c.parquet")
    assert table.column_names == list(expected.columns)
    for name in table.column_names:
        np.testing.assert_array_equal(table[name].to_numpy(), expected[name].to_numpy(), name)
        message = {key.decode(): value.decode() for key, value in table.field(name).metadata.items()}
        assert message["unit"] == expected.attrs["units"].get(name, "")
        assert message["description"]
    assert table.schema.metadata[b"jztree.redshift"] == b"1.0"
    again = (tmp_path / "c.parquet").read_bytes()
    io.read_catalogue(path).to_parquet(tmp_path / "c.parquet")
    assert (tmp_path / "c.parquet").read_bytes() == again


def test_parquet_needs_pyarrow_and_its_name(file, snapshot, tmp_path, monkeypatch, error_of) -> None:
    _, path, _ = file
    assert "jztree convert makes a Parquet file of a catalogue." in error_of(
        "fof", snapshot, "-o", tmp_path / "a.parquet"
    )
    assert "is a snapshot, but --layout is parquet; use gadget4 or numpy." in error_of(
        "convert", snapshot, "-o", tmp_path / "a.parquet", "--layout", "parquet"
    )
    assert "would be a Parquet file; give it a name in .parquet." in error_of(
        "convert", path, "-o", tmp_path / "a.hdf5", "--layout", "parquet"
    )
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "Parquet files need pyarrow; install it with: pip install pyarrow." in error_of(
        "convert", path, "-o", tmp_path / "a.parquet"
    )
    assert not list(tmp_path.glob("a.*"))


@pytest.mark.parametrize("kind", ["pandas", "astropy"])
def test_missing_package_raises(monkeypatch, file, kind: str) -> None:
    make: Any = getattr(io.read_catalogue(file[1]), f"to_{kind}")
    for name in (kind, f"{kind}.table"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {kind}"):
        make()
