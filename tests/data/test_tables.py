"""Catalogues as tables of pandas and astropy, if these are installed."""

import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jztree.data import FofCatalogue, _catalogue, _tables

UNITS = {"length": "Mpc/h", "mass": "1e10 Msun/h", "velocity": "km/s"}


def catalogue(count: list[int], rows: int, mark: float = 0) -> FofCatalogue:
    """Return groups whose columns encode their row and component, with padding rows."""
    row = mark + np.arange(rows)
    vector = row[:, None] + [0.0, 0.25, 0.5]
    return FofCatalogue(
        ngroups=np.int32(len(count)),
        count=np.array(count + [0] * (rows - len(count)), np.int32),
        offset=(10 * row).astype(np.int32),
        com_pos=vector.astype(np.float32),
        com_inertia_radius=row,
        max_radius=row,
        com_vel=-vector,
    )


def dealt() -> FofCatalogue:
    return jax.tree.map(
        lambda *leaves: jnp.stack(leaves), catalogue([7, 5], 3), catalogue([], 3), catalogue([9], 3, 100)
    )


def test_every_column_has_a_unit_or_none_on_purpose() -> None:
    columns = catalogue([7], 1).columns().keys() - {"count", "offset", "offset_rank", "means", "scale_factor"}
    assert "shape_tensor" in columns
    assert columns <= _tables.POWERS.keys()


def test_pandas_table_has_one_column_per_component() -> None:
    pytest.importorskip("pandas")
    table = catalogue([7, 5], 4).to_pandas(units=UNITS)
    assert list(table.columns) == [
        *("count", "offset", "com_pos_x", "com_pos_y", "com_pos_z", "com_inertia_radius", "max_radius"),
        *("com_vel_x", "com_vel_y", "com_vel_z"),
    ]
    assert len(table) == 2
    assert table["com_pos_y"].tolist() == [0.25, 1.25]
    assert table["com_pos_y"].dtype == np.float32
    assert table["count"].sum() == 12
    assert table.attrs["units"]["com_vel_z"] == "km/s"
    assert table.attrs["units"].keys() == set(table.columns) - {"count", "offset"}
    assert catalogue([7], 1).to_pandas().attrs["units"] == {}


def test_astropy_table_keeps_vectors_and_has_units() -> None:
    units = pytest.importorskip("astropy.units")
    from astropy.cosmology.units import littleh  # noqa: PLC0415

    table = catalogue([7, 5], 4).to_astropy(units=UNITS | {"velocity": units.km / units.s})
    assert table["com_pos"].shape == (2, 3)
    assert table["com_pos"].unit == units.Mpc / littleh
    assert isinstance(table["com_pos"], units.Quantity)
    assert table["com_pos"].dtype == np.float32
    assert table["com_vel"][1, 2].to_value(units.m / units.s) == -1500
    assert table["count"].unit is None
    with pytest.raises(ValueError, match=r"the unit of mass, 'stones'"):
        catalogue([7], 1).to_astropy(units={"mass": "stones"})


@pytest.mark.parametrize("kind", ["pandas", "astropy"])
def test_tables_of_the_catalogue_of_several_devices(kind: str) -> None:
    pytest.importorskip(kind)
    table = getattr(dealt(), f"to_{kind}")()
    assert np.asarray(table["rank"]).tolist() == [0, 0, 2]
    assert np.asarray(table["offset"]).tolist() == [0, 10, 1000]
    joined = getattr(dealt(), f"to_{kind}")(nparts=[50, 20, 2000])
    assert np.asarray(joined["offset"]).tolist() == [0, 10, 1070]
    assert "rank" not in (joined.columns if kind == "pandas" else joined.colnames)
    assert len(getattr(catalogue([], 3), f"to_{kind}")()) == 0


def test_units_of_products() -> None:
    spin = replace(catalogue([7], 1), mass=np.ones(1))
    words = _tables.factors_in_words
    names = {name: words(_tables.POWERS[name], UNITS) for name in ("angular_momentum", "mass")}
    assert names == {"angular_momentum": "(Mpc/h) (km/s)", "mass": "1e10 Msun/h"}
    assert words(_tables.POWERS["angular_momentum"], {"length": "kpc"}) == ""
    assert words((-3, 1, 0), UNITS) == "(Mpc/h)^-3 (1e10 Msun/h)"
    assert "mass" in _catalogue._rows_by_name(spin, None)


@pytest.mark.parametrize("kind", ["pandas", "astropy"])
def test_missing_package_and_unknown_unit_raise(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    make: Any = getattr(catalogue([7], 1), f"to_{kind}")
    with pytest.raises(ValueError, match="units has the key 'pos'"):
        make(units={"pos": "kpc"})
    for name in (kind, f"{kind}.table"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {kind}"):
        make()
