"""Catalogues as tables of pandas, astropy and Apache Parquet: all columns, with units and definitions."""

# ruff: noqa: PLC0415 - all are optional
from typing import TYPE_CHECKING, Any

import numpy as np

from jztree.data import tables

from ._catalogue_content import CatalogueContent, Column, catalogue_columns
from ._files import PathLike, atomic_output
from ._header import SnapshotHeader, unit_name, unit_powers
from ._native_catalogue import type_columns

if TYPE_CHECKING:
    import astropy.table
    import pandas
    import pyarrow

_CGS = {"length": "cm", "mass": "g", "velocity": "cm/s"}


def to_pandas(content: CatalogueContent) -> "pandas.DataFrame":
    """Return all columns of a catalogue, one row per group; see `jztree_utils.io.ReadCatalogue.to_pandas`."""
    columns, powers = _columns(content)
    table = tables.to_pandas(_values(columns), _units(content.header), powers)
    table.attrs["definitions"] = {name: column.definition for name, column in columns.items()}
    return table


def to_astropy(content: CatalogueContent) -> "astropy.table.QTable":
    """Return all columns of a catalogue, one row per group; see `jztree_utils.io.ReadCatalogue.to_astropy`."""
    columns, powers = _columns(content)
    table = tables.to_astropy(_values(columns), _units(content.header), powers)
    for name, column in columns.items():
        table[name].info.description = column.definition
    return table


def write_parquet(path: PathLike, content: CatalogueContent) -> None:
    """Write all columns of a catalogue to a Parquet file; see `jztree_utils.io.ReadCatalogue.to_parquet`."""
    check_parquet()
    import pyarrow.parquet

    with atomic_output(path) as temporary:
        pyarrow.parquet.write_table(_to_arrow(content), temporary)


def check_parquet() -> None:
    """Raise ImportError, with installation advice, if pyarrow is missing."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow; install it with: pip install pyarrow.") from error


def _to_arrow(content: CatalogueContent) -> "pyarrow.Table":
    import pyarrow

    columns, powers = _columns(content)
    units, fields, arrays = _units(content.header), [], []
    for name, parts in tables.components(_values(columns)).items():
        about = {"unit": tables.factors_in_words(powers[name], units), "description": columns[name].definition}
        for part, values in parts.items():
            arrays.append(pyarrow.array(np.ascontiguousarray(values)))
            fields.append(pyarrow.field(part, arrays[-1].type, metadata=about))
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields, metadata=_made(content)))


def _made(content: CatalogueContent) -> dict[str, str]:
    """Return how the catalogue was made, as text."""
    info, header = content.info, content.header
    created = {name: getattr(info, name) for name in ("source", "linking_length", "npart_min", "ptype", "made_with")}
    created |= {name: getattr(header, name) for name in ("boxsize", "redshift", "omega0", "omega_lambda", "hubble")}
    return {f"jztree.{name}": str(value) for name, value in created.items() if value is not None}


def _columns(content: CatalogueContent) -> tuple[dict[str, Column], dict[str, tables.Powers]]:
    """Return all columns, and the powers of the units of length, mass and velocity in them."""
    columns = catalogue_columns(content.catalogue, content.extra) | type_columns(content.by_type)
    powers = {name: unit_powers(content.header, column.kind, content.ndim)[2:] for name, column in columns.items()}
    return columns, powers


def _values(columns: dict[str, Column]) -> dict[str, np.ndarray]:
    return {name: np.asarray(column.values) for name, column in columns.items()}


def _units(header: SnapshotHeader) -> dict[str, Any]:
    """Return the known units of length, mass and velocity, by name or, without a name, in cgs."""
    cgs = {
        "length": header.unit_length_in_cm,
        "mass": header.unit_mass_in_g,
        "velocity": header.unit_velocity_in_cm_per_s,
    }
    return {kind: unit_name(header, kind) or _in_cgs(header, kind, unit) for kind, unit in cgs.items() if unit}


def _in_cgs(header: SnapshotHeader, kind: str, unit: float) -> str:
    per_h = "" if kind == "velocity" or header.comoving is False or header.h_free else "/h"
    return f"{unit:.9g} {_CGS[kind]}{per_h}"
