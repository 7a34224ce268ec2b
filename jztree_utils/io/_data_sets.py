"""Particle classes, catalogues and other classes of arrays in HDF5: one group per object, one dataset per field."""

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import h5py
import jax
import numpy as np

from jztree.data import FofCatalogue, check_no_units, squeeze_catalogue, squeeze_particles

from ._errors import SnapshotError
from ._files import PathLike, create_hdf5, open_hdf5
from ._hdf5_types import read_values

_Class = TypeVar("_Class")


def squeeze_any(data: Any) -> Any:
    """Return particles or a catalogue without padding, joined over all devices; other objects are unchanged.

    See `jztree.data.squeeze_particles` and `jztree.data.squeeze_catalogue`, whose offsets remain rows of each device.
    """
    if isinstance(data, FofCatalogue):
        return squeeze_catalogue(data)
    return squeeze_particles(data) if hasattr(data, "pos") and not isinstance(data, type) else data


def write_to_hdf5(group: h5py.Group, data: Any, *, compression: str | None = "gzip", compression_opts: int = 4) -> None:
    """Write the fields of a class of arrays, or the entries of a dict, into a group, under their names.

    Args:
        group: An open group, or file.
        data: A dataclass, named tuple or mapping of arrays, numbers, and nested objects of these kinds, which become
            groups. None is left out. Values must not be traced.
        compression, compression_opts: Options of h5py for arrays.

    Raises:
        TypeError: If HDF5 does not support a dtype.
    """
    check_no_units(data=data)
    for name, value in _fields(data).items():
        if value is None:
            continue
        if _fields(value):
            write_to_hdf5(group.create_group(name), value, compression=compression, compression_opts=compression_opts)
            continue
        array = np.asarray(value)
        if array.dtype.kind not in "biufc":
            raise TypeError(f"{name} has dtype {array.dtype}, which HDF5 does not support; convert it or leave it out.")
        packed = array.ndim > 0 and array.size > 0 and compression is not None
        options = {"compression": compression} if packed else {}
        if packed and compression == "gzip":
            options["compression_opts"] = compression_opts  # type: ignore[assignment]
        group.create_dataset(name, data=array, **options)


def _fields(data: Any) -> dict[str, Any]:
    """Return the members of a class or a mapping, by name; empty for an array or a number."""
    if isinstance(data, FofCatalogue):
        return {"ngroups": data.ngroups} | data.columns()
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    if isinstance(data, tuple) and hasattr(data, "_asdict"):
        return dict(data._asdict())
    return {str(name): value for name, value in data.items()} if isinstance(data, Mapping) else {}


def read_from_hdf5(group: h5py.Group, cls: type[_Class]) -> _Class:
    """Read the data of `write_to_hdf5` into an object of a class, with NumPy arrays and Python numbers.

    Args:
        group: An open group, or file.
        cls: A class that takes the names of datasets as arguments. Datasets without an argument are ignored, and
            arguments without a dataset have their defaults.

    Raises:
        SnapshotError: If the group lacks a required argument of the class.
    """
    arguments = {} if issubclass(cls, dict) else inspect.signature(cls).parameters
    takes_all = issubclass(cls, dict) or any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
    result = {name: _value(item) for name, item in group.items() if name in arguments or takes_all}
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, data in arguments.items():
        if data.kind in named and data.default is data.empty and name not in result:
            raise SnapshotError(
                f"{group.file.filename}: the group {group.name} has no {name}, which {cls.__name__} needs; it holds "
                f"{', '.join(sorted(group)) or 'nothing'}."
            )
    return cls(**result)


def _value(item: Any) -> Any:
    if isinstance(item, h5py.Group):
        return {name: _value(inner) for name, inner in item.items()}
    value = read_values(item)
    return value.item() if np.ndim(value) == 0 else value


def write_h5file(file_name: PathLike, squeeze: bool = True, **data_sets: Any) -> None:
    """Write classes of arrays to the groups of an HDF5 file: ``write_h5file("out.hdf5", part=part, cata=cata)``.

    Args:
        file_name: The file to write; an existing file is replaced once the new one is complete.
        squeeze: Remove padding, see `squeeze_any`.
        **data_sets: See `write_to_hdf5`, by the name of their group.

    Raises:
        TypeError: If no data are given, or HDF5 does not support a dtype.
        OutputError: If the file cannot be written.
    """
    if not data_sets:
        raise TypeError("no data were given; give them by name, such as part=part.")
    with create_hdf5(file_name) as file:
        for name, data in jax.device_get(data_sets).items():
            write_to_hdf5(file.create_group(name), squeeze_any(data) if squeeze else data)


def read_h5file(file_name: PathLike, **data_classes: type) -> dict[str, Any]:
    """Read data of `write_h5file`: ``read_h5file("out.hdf5", part=ParticleData)["part"]``.

    Args:
        file_name: The file to read.
        **data_classes: The class of each group to read, by name; without classes, every group is read as a dict.

    Returns:
        Objects by name.

    Raises:
        SnapshotError: If the file is unusable, or a group is missing.
    """
    with open_hdf5(Path(file_name)) as file:
        if not data_classes:
            return {name: _value(item) for name, item in file.items()}
        for name in data_classes:
            if not isinstance(file.get(name), h5py.Group):
                held = ", ".join(sorted(file)) or "nothing"
                raise SnapshotError(f"{file_name} has no group {name}; it holds {held}.")
        return {name: read_from_hdf5(file[name], cls) for name, cls in data_classes.items()}
