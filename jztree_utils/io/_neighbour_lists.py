"""Neighbour lists in HDF5, with the groups ``Header`` and ``Neighbours``; every dataset has its unit as attributes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ._attributes import text_attribute, whole_number
from ._catalogue_content import Column, write_column
from ._errors import SnapshotError
from ._files import PathLike, create_hdf5, get_dataset, get_group, open_hdf5
from ._hdf5_columns import KINDS, check_form, read_all, wrong_form
from ._header import SnapshotHeader
from ._native_catalogue import read_header_group, write_header_group

_INDICES = "Neighbours/indices"


@dataclass(kw_only=True)
class Neighbours:
    """Neighbour lists, densities, or both, for ``n`` particles, one row per particle, in the order of the snapshot.

    Attributes:
        distances: ``(n, k)`` float32 or float64, comoving, ascending; or None.
        indices: ``(n, k)`` integers, rows of the neighbours; None if and only if ``distances`` is None.
        density: ``(n,)`` floats, mass (or particles, if ``by_number``) per comoving volume; or None.
        k: Number of neighbours in the lists or densities, including the particle itself; None means the length of the
            lists.
        by_number: Whether ``density`` counts particles.
        ndim: Number of dimensions of the volume in ``density``.
        id: ``(n,)`` integers, identifiers of the particles, or None.
        header: Header of the snapshot: box, cosmology, units.
        made_with: The options of the call that made the lists, as the command line writes them.
    """

    distances: Any = None
    indices: Any = None
    density: Any = None
    k: int | None = None
    by_number: bool = False
    ndim: int = 3
    id: Any = None
    header: SnapshotHeader | None = None
    made_with: str | None = None

    @property
    def num_neighbours(self) -> int | None:
        """The length of the lists; without lists, ``k``."""
        return self.k if self.distances is None else int(np.shape(self.distances)[-1])


def write_neighbours(path: PathLike, neighbours: Neighbours) -> None:
    """Write neighbour lists as HDF5, with the unit of each dataset as attributes.

    Args:
        path: The file to write; an existing file is replaced once the new one is complete.
        neighbours: The lists.

    Raises:
        ValueError: If the lists are inconsistent.
        OutputError: If the file cannot be written.
    """
    _check_lists(neighbours)
    header, k = neighbours.header or SnapshotHeader(), neighbours.num_neighbours
    kind = "number density" if neighbours.by_number else "density"
    meaning = f"from the {k or ''} nearest particles, including the particle itself, per comoving volume"
    columns = {
        "distances": ("length", "comoving distances, the nearest first, including the particle itself"),
        "indices": ("1", "rows of the neighbours, in the order of the snapshot"),
        "density": (kind, f"{kind} {meaning}"),
        "id": ("1", "identifiers of the particles"),
    }
    with create_hdf5(path) as file:
        write_header_group(file, neighbours.header)
        group = file.create_group("Neighbours")
        group.attrs.update({"by_number": neighbours.by_number, "ndim": neighbours.ndim})
        if k is not None:
            group.attrs["k"] = k
        if neighbours.made_with is not None:
            group.attrs["made_with"] = neighbours.made_with
        for name, (unit, words) in columns.items():
            if getattr(neighbours, name) is not None:
                column = Column(getattr(neighbours, name), unit, words)
                write_column(group, name, column, header, neighbours.ndim)


def read_neighbours(path: PathLike) -> Neighbours:
    """Read neighbour lists of `write_neighbours` as NumPy arrays.

    Raises:
        SnapshotError: If the lists cannot be read.
    """
    with open_hdf5(Path(path)) as file:
        group = get_group(file, "Neighbours")
        lists = ["distances", "indices"]
        if "density" in group and not any(name in group for name in lists):
            lists = []
        names = [*lists, *(name for name in ("density", "id") if name in group)]
        _check_forms({name: get_dataset(file, f"Neighbours/{name}") for name in names})
        columns = {name: read_all(file, f"Neighbours/{name}") for name in names}
        if lists:
            _check_rows(Path(path), columns["indices"])
        ndim = whole_number(group, "ndim")
        made_with = text_attribute(group, "made_with") or None
        return Neighbours(
            **columns,
            k=whole_number(group, "k"),
            by_number=bool(whole_number(group, "by_number")),
            ndim=3 if ndim is None else ndim,
            header=read_header_group(file),
            made_with=made_with,
        )


def _check_lists(neighbours: Neighbours) -> None:
    """Raise ValueError unless `read_neighbours` could read the lists."""
    for name, needed in _needed_shapes(neighbours).items():
        if (given := getattr(neighbours, name)) is None:
            continue
        kinds, values = "iu" if name in ("indices", "id") else "f", np.asarray(given)
        if values.shape != needed or values.dtype.kind not in kinds:
            raise ValueError(
                f"{name} of neighbours are {values.dtype} of shape {values.shape}; they must be {KINDS[kinds]} of "
                f"shape {needed}, like the other columns."
            )
    if neighbours.indices is not None:
        _check_indices(neighbours)


def _needed_shapes(neighbours: Neighbours) -> dict[str, tuple[int, ...]]:
    """Return the required shape of each column. Raises ValueError for invalid or incomplete lists."""
    lists = [neighbours.distances is not None, neighbours.indices is not None]
    if not any(lists) and np.ndim(neighbours.density) == 1:
        return dict.fromkeys(("density", "id"), np.shape(neighbours.density))
    if not all(lists):
        raise ValueError("neighbours lack distances or indices; give both, or only densities (n,).")
    shape = np.shape(neighbours.indices)
    if len(shape) != 2 or not shape[1]:
        raise ValueError(f"indices of neighbours have shape {shape}; it must be (n, k) with k of at least 1.")
    return dict.fromkeys(("distances", "indices"), shape) | dict.fromkeys(("density", "id"), shape[:1])


def _check_indices(neighbours: Neighbours) -> None:
    """Raise ValueError unless the indices are valid row numbers of the particles."""
    indices = np.asarray(neighbours.indices)
    n = len(indices)
    if indices.size and not (indices.min() >= 0 and indices.max() < n):
        raise ValueError(
            f"indices of neighbours are from {indices.min()} to {indices.max()}, but they must be rows of the "
            f"{n} particles, 0 to {n - 1}."
        )


def _check_forms(columns: Mapping[str, h5py.Dataset]) -> None:
    """Raise SnapshotError unless every column has one row per particle, with equal numbers of distances and indices."""
    if "indices" not in columns:
        density = columns["density"]
        if len(density.shape or ()) != 1:
            raise wrong_form(density, "f", "(n,), one row per particle")
        for name, column in columns.items():
            check_form(column, "iu" if name == "id" else "f", density.shape, "one row per particle")
        return
    indices = columns["indices"]
    if len(indices.shape or ()) != 2 or not indices.shape[1]:
        raise wrong_form(indices, "iu", "(n, k) with k of at least 1, one row per particle")
    for name, column in columns.items():
        shape = indices.shape if name in ("distances", "indices") else indices.shape[:1]
        check_form(
            column, "iu" if name in ("indices", "id") else "f", shape, f"because {_INDICES} has shape {indices.shape}"
        )


def _check_rows(path: Path, indices: np.ndarray) -> None:
    """Raise SnapshotError unless the indices are valid row numbers of the particles."""
    n = len(indices)
    if n and not (indices.min() >= 0 and indices.max() < n):
        raise SnapshotError(
            f"{path} holds {_INDICES} from {indices.min()} to {indices.max()}, but they must be rows of its {n} "
            f"particles, 0 to {n - 1}; write or copy it again."
        )
