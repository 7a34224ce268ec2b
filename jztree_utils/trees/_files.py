"""Files of merger trees: Gadget-4's layout, which ytree opens, and the columns of SubLink.

Gadget-4 (Springel et al. 2021, MNRAS 506, 2871): ``TreeTable`` has a row for each tree, ``TreeHalos`` one for each
subhalo, tree after tree. Links there are rows of the same tree. ``TreeTimes`` has a time for each snapshot number.

SubLink (Rodriguez-Gomez et al. 2015, MNRAS 449, 49): one dataset per column in the file itself. Links are identifiers
of subhaloes, ``SubhaloID``, which are unique in the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from .. import io
from ._checking import check_trees
from ._merger_trees import MergerTrees

LAYOUTS = ("gadget4", "sublink")


class _Link(NamedTuple):
    """A column of links: its name in `MergerTrees`, in Gadget-4's layout and in SubLink's, and its definition."""

    name: str
    gadget4: str
    sublink: str
    words: str


# Gadget-4 has no columns for the ends of branches and the latest descendants; their names here are in its style.
_LINKS = (
    _Link("descendant", "TreeDescendant", "DescendantID", "descendant"),
    _Link("first_progenitor", "TreeFirstProgenitor", "FirstProgenitorID", "progenitor with the largest mass history"),
    _Link("next_progenitor", "TreeNextProgenitor", "NextProgenitorID", "next progenitor of the same descendant"),
    _Link("last_progenitor", "TreeLastProgenitor", "LastProgenitorID", "last row of the branch"),
    _Link("main_leaf", "TreeMainLeafProgenitor", "MainLeafProgenitorID", "last row of the main branch"),
    _Link("root", "TreeRootDescendant", "RootDescendantID", "latest descendant"),
    _Link("first_in_group", "TreeFirstHaloInFOFgroup", "FirstSubhaloInFOFGroupID", "central of the group"),
    _Link("next_in_group", "TreeNextHaloInFOFgroup", "NextSubhaloInFOFGroupID", "next subhalo of the group"),
)
_NUMBERS = {"snapshot": "SnapNum", "subhalo": "SubhaloNr", "group": "GroupNr"}
_SKIPS, _HISTORY, _MASS = "DescendantSkips", "SubhaloMassHistory", "SubhaloTreeMass"
_SKIPS_WORDS = "1 if the descendant is in the output after the next one, because the next one lacks the subhalo"
_HISTORY_WORDS = "sum of the masses of the main branch"
_MASS_WORDS = "mass that decides the main branch"


def write_trees(
    path: str | os.PathLike[str],
    trees: MergerTrees,
    headers: Mapping[int, io.SnapshotHeader],
    properties: Mapping[str, io.Column] | None = None,
    *,
    layout: str = "gadget4",
) -> None:
    """Write merger trees as HDF5, with units and definitions as attributes.

    Args:
        path: The file to write; an existing file is replaced once the new one is complete.
        trees: The trees.
        headers: The header of each snapshot, by its number. The last one gives the box, the cosmology and the units.
        properties: Further columns by their names in the file, such as ``SubhaloPos``: a row for each subhalo, in the
            order of the trees.
        layout: "gadget4", or "sublink".

    Raises:
        OutputError: If the file cannot be written.
        ValueError: If the layout is unknown, a header is missing, or a property has an invalid name or length.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it must be one of {', '.join(LAYOUTS)}.")
    if missing := sorted(set(trees.snapshot.tolist()) - set(headers)):
        raise ValueError(f"headers has no header of snapshot {missing[0]}; give one for each snapshot of the trees.")
    columns = _gadget4_columns(trees) if layout == "gadget4" else _sublink_columns(trees)
    for name, column in (properties or {}).items():
        if "/" in name or not name.strip(".") or (name in columns and layout == "gadget4"):
            raise ValueError(f"A property has the name {name!r}, which is reserved or invalid; choose another name.")
        if np.shape(column.values)[:1] != (len(trees),):
            raise ValueError(
                f"{name} has shape {np.shape(column.values)}; it must have a row for each of {len(trees)} subhaloes."
            )
        columns[name] = column
    header = headers[max(headers)] if headers else io.SnapshotHeader()
    with io.create_hdf5(path) as file:
        rows = file.create_group("TreeHalos") if layout == "gadget4" else file
        for name, column in columns.items():
            io.write_column(rows, name, column, header)
        if layout == "gadget4":
            _write_tables(file, trees, headers, header)


def _gadget4_columns(trees: MergerTrees) -> dict[str, io.Column]:
    start = np.repeat(trees.starts[:-1], np.diff(trees.starts))
    columns = {
        "TreeID": io.Column(trees.tree, "1", "tree"),
        "TreeIndex": io.Column(_small(np.arange(len(trees)) - start), "1", "row in the tree"),
    }
    for link in _LINKS:
        rows = getattr(trees, link.name)
        in_tree = _small(np.where(rows < 0, -1, rows - start))
        columns[link.gadget4] = io.Column(in_tree, "1", f"{link.words}, a row in the tree; -1 for none")
    columns["TreeMainProgenitor"] = columns["TreeFirstProgenitor"]
    for name, stored in _NUMBERS.items():
        columns[stored] = io.Column(_small(getattr(trees, name)), "1", f"{name} of the output")
    columns[_SKIPS] = io.Column(trees.skips.astype(np.int8), "1", _SKIPS_WORDS)
    columns[_HISTORY] = io.Column(trees.mass_history, "mass", _HISTORY_WORDS)
    columns[_MASS] = io.Column(trees.mass, "mass", _MASS_WORDS)
    return columns


def _small(values: np.ndarray) -> np.ndarray:
    """Return integers as int32 if they fit."""
    limits = np.iinfo(np.int32)
    fits = values.size == 0 or (values.min() >= limits.min and values.max() <= limits.max)
    return values.astype(np.int32 if fits else np.int64)


def _sublink_columns(trees: MergerTrees) -> dict[str, io.Column]:
    columns = {
        "SubhaloID": io.Column(np.arange(len(trees)), "1", "identifier, in depth-first order"),
        "SubhaloIDRaw": io.Column(trees.snapshot * 10**12 + trees.subhalo, "1", "SnapNum * 10**12 + SubfindID"),
        "TreeID": io.Column(trees.tree, "1", "tree"),
        "SnapNum": io.Column(trees.snapshot.astype(np.int16), "1", "snapshot of the subhalo"),
        "SubfindID": io.Column(_small(trees.subhalo), "1", "subhalo in its snapshot"),
        "SubhaloGrNr": io.Column(_small(trees.group), "1", "group of the subhalo"),
        "Mass": io.Column(trees.mass.astype(np.float32), "mass", _MASS_WORDS),
        "MassHistory": io.Column(trees.mass_history.astype(np.float32), "mass", _HISTORY_WORDS),
        _SKIPS: io.Column(trees.skips.astype(np.int8), "1", _SKIPS_WORDS),
    }
    of_links = {
        link.sublink: io.Column(getattr(trees, link.name), "1", f"SubhaloID: {link.words}; -1 for none")
        for link in _LINKS
    }
    return columns | of_links


def _write_tables(
    file: h5py.File, trees: MergerTrees, headers: Mapping[int, io.SnapshotHeader], header: io.SnapshotHeader
) -> None:
    """Write the header, the table of trees and the times of the snapshots."""
    sizes = {"Ntrees": trees.num_trees, "Nhalos": len(trees)}
    attributes = file.create_group("Header").attrs
    attributes.update({f"{name}_{of}": np.int64(size) for name, size in sizes.items() for of in ("ThisFile", "Total")})
    attributes.update({"NumFiles": np.int32(1), "LastSnapShotNr": np.int32(max(headers, default=-1))})
    io.write_parameters(file, header)
    table = file.create_group("TreeTable")
    table["Length"] = _small(np.diff(trees.starts))
    table["StartOffset"] = trees.starts[:-1]
    table["TreeID"] = np.arange(trees.num_trees)
    times = file.create_group("TreeTimes")
    for name in ("time", "redshift"):
        of_snapshots = [getattr(headers.get(i), name, np.nan) for i in range(max(headers, default=-1) + 1)]
        times[name.capitalize()] = np.asarray(of_snapshots, np.float64)


class Times(NamedTuple):
    """The axis and the unit of a picture of merger trees.

    Attributes:
        redshifts: The redshift of each snapshot, by its number; None if they are unknown.
        mass_unit: Unit of mass, empty if it is unknown.
    """

    redshifts: dict[int, float] | None
    mass_unit: str


def read_times(path: str | os.PathLike[str]) -> Times:
    """Read the redshifts and the unit of mass of a file of merger trees; see `read_trees`."""
    with io.open_hdf5(Path(path)) as file:
        redshift = np.ravel(io.read_all(file, "TreeTimes/Redshift") if "TreeTimes/Redshift" in file else [])
        if redshift.dtype.kind not in "iuf":
            raise io.SnapshotError(f"{path} holds TreeTimes/Redshift of dtype {redshift.dtype}; write the trees again.")
        unit = io.text_attribute(file[f"TreeHalos/{_MASS}"], "unit")
    redshifts = {number: value for number, value in enumerate(redshift.tolist()) if np.isfinite(value)}
    return Times(redshifts or None, "" if "lacks this unit" in unit else unit)


def read_trees(path: str | os.PathLike[str]) -> MergerTrees:
    """Read merger trees that `write_trees` has written in Gadget-4's layout, and check them.

    Args:
        path: The file.

    Raises:
        SnapshotError: If the file cannot be read.
        ValueError: If the trees are inconsistent, see `check_trees`.
    """
    with io.open_hdf5(Path(path)) as file:
        length = io.read_all(file, "TreeTable/Length")
        starts = np.concatenate([[0], np.cumsum(length, dtype=np.int64)])
        start = np.repeat(starts[:-1], length)

        def column(name: str) -> np.ndarray:
            values = io.read_all(file, f"TreeHalos/{name}")
            if values.shape != start.shape:
                raise io.SnapshotError(
                    f"{path} holds TreeHalos/{name} of shape {values.shape}, but TreeTable counts {len(start)} "
                    "subhaloes; write the trees again."
                )
            return values

        links = {link.name: column(link.gadget4).astype(np.int64) for link in _LINKS}
        numbers = {name: column(stored).astype(np.int64) for name, stored in _NUMBERS.items()}
        mass, history, skips = column(_MASS), column(_HISTORY), column(_SKIPS) > 0
    order = np.empty(len(start), np.int64)
    order[np.lexsort((numbers["subhalo"], numbers["snapshot"]))] = np.arange(len(start))
    trees = MergerTrees(
        **numbers,
        **{name: np.where(rows < 0, -1, rows + start) for name, rows in links.items()},
        mass=mass,
        mass_history=history,
        skips=skips,
        starts=starts,
        order=order,
    )
    check_trees(trees)
    return trees
