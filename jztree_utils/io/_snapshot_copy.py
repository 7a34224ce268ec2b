"""Copy a whole HDF5 snapshot, with all types and datasets, in another row order or with additional columns.

The files of the input become one file, or the requested number of files with equal shares of each type. Rows are copied
in slices, as bytes, so any type is possible. `_row_order` describes the reordering. The copy keeps the attributes,
chunks and filters of each dataset. All groups without particles come from the first file, apart from the counts in the
header. SWIFT's ``Cells``, which give the rows of the particles in each region, are left out if the rows differ from the
input.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ._attributes import attribute_dtype, holds_text_or_numbers, read_attribute, whole_numbers
from ._catalogue_content import CatalogueInfo
from ._columns import Advance, row_slices
from ._errors import SnapshotError
from ._files import PathLike, create_hdf5, get_dataset, get_group, open_hdf5, output_path
from ._files_of_snapshot import kind_of_file
from ._hdf5_columns import OpenFile, check_filters, row_dtype, write_bytes
from ._hdf5_snapshots import is_simulation
from ._header import NUM_FILES, parse_header
from ._made_with import MADE, write_made
from ._read_options import ReadOptions
from ._row_order import RowOrder

_CELLS = "Cells"


@dataclass(frozen=True)
class AddedColumn:
    """A dataset to add to the particles of a type.

    Attributes:
        dtype: Dtype of the values.
        read: Function ``read(start, stop)`` that returns the values ``(stop - start,)`` of a range of rows.
        attributes: Attributes of the dataset.
    """

    dtype: np.dtype
    read: Callable[[int, int], np.ndarray]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class _File:
    """One file of the snapshot.

    Attributes:
        path: The file.
        here: Number of particles of each type.
        names: Names of the datasets with one row per particle, by type.
    """

    path: Path
    here: tuple[int, ...]
    names: Mapping[int, tuple[str, ...]]


def check_copied(paths: Sequence[Path], options: ReadOptions | None = None) -> None:
    """Check that `copy_snapshot` can copy a snapshot. Only the first file is checked.

    Args:
        paths: The files of the snapshot.
        options: Options for reading the snapshot. If it is read only by dataset names, its types are not those of the
            file.

    Raises:
        SnapshotError: If the snapshot cannot be copied.
    """
    by_name = options is not None and options.format == "hdf5"
    if not by_name and kind_of_file(paths[0]) == "hdf5":
        with open_hdf5(paths[0]) as file:
            if is_simulation(file):
                return
    raise SnapshotError(
        f"{paths[0]} is not read as an HDF5 snapshot of Gadget, AREPO, GIZMO or SWIFT. Only such a snapshot can be "
        "copied with all its contents; to make one from the particles of one type, use jztree convert."
    )


def copy_snapshot(
    path: PathLike,
    parts: Sequence[Path],
    *,
    order: Mapping[int, RowOrder] | None = None,
    columns: Mapping[int, Mapping[str, AddedColumn]] | None = None,
    attributes: Mapping[str, Mapping[str, Any]] | None = None,
    info: CatalogueInfo | None = None,
    advance: Advance | None = None,
    num_files: int = 1,
) -> None:
    """Write the full contents of a snapshot to one file or to several.

    The function needs a few 10 MB. For a type in another order it needs up to 1 GB, plus three times the bytes of its
    order, plus disk space for one of its datasets in addition to the output.

    Args:
        path: The file to write; an existing file is replaced once the new one is complete. Several files have a number
            before the suffix, see `names_of_files`.
        parts: The files of the snapshot in order, as returned by `find_parts`.
        order: The new order of rows, by type. Types without an entry keep their order.
        columns: Datasets to add, or to replace those with the same name, by type; their rows are in the order of the
            snapshot.
        attributes: Attributes to add to groups without particles, such as Parameters, by the name of the group.
        info: The origin of the groups that the order or the columns refer to; this is also written to the file.
        advance: Called with the number of particles copied since the last call.
        num_files: Number of files to write. Each has an equal share of the rows of each type, within one row.

    Raises:
        SnapshotError: If the files cannot be read or are inconsistent.
        OutputError: If the output cannot be written.
        ValueError: If an order has another number of rows, or ``num_files`` is below 1.
    """
    check_copied(parts)
    files = [_look(part) for part in parts]
    totals = _totals(files)
    for ptype, rows in (order or {}).items():
        num = totals[ptype] if 0 <= ptype < len(totals) else 0
        if len(rows.rows) != num:
            raise ValueError(
                f"The order of type {ptype} has {len(rows.rows)} rows, but the snapshot has {num} particles of this "
                "type; give an order of all particles of the type."
            )
    moved = bool(order) or len(files) > 1 or num_files > 1
    with ExitStack() as opened:
        # The first file gets its final name last, when the others exist.
        outs = [opened.enter_context(create_hdf5(name)) for name in names_of_files(path, num_files)]
        for number, out in enumerate(outs):
            _copy_frame(files[0], out, totals, leave_out=(MADE, _CELLS) if moved else (MADE,))
            share = [stop - start for start, stop in (_share(total, number, num_files) for total in totals)]
            _set_counts(out["Header"], share, number, num_files)
            for name, entries in (attributes or {}).items():
                out.require_group(name).attrs.update(entries)
            if info is not None:
                write_made(out, info)
        for ptype in np.flatnonzero(totals).tolist():
            particles = _Type(files, ptype, (order or {}).get(ptype), output_path(path).parent)
            particles.copy(outs, (columns or {}).get(ptype, {}), advance)
        for out in outs:
            _link_types(files[0], out, totals)


def names_of_files(path: PathLike, num_files: int) -> list[PathLike]:
    """Return the file names of a snapshot: ``path`` alone, or ``snapshot_099.0.hdf5`` and so on for several files.

    Raises:
        ValueError: If ``num_files`` is below 1.
    """
    if num_files < 1:
        raise ValueError(f"num_files is {num_files}; it must be at least 1.")
    if num_files == 1:
        return [path]
    base, suffix = os.path.splitext(path)
    return [f"{base}.{number}{suffix}" for number in range(num_files)]


def _share(total: int, number: int, num_files: int) -> tuple[int, int]:
    """Return the range of rows of a type that one of the files holds."""
    return total * number // num_files, total * (number + 1) // num_files


def _look(path: Path) -> _File:
    """Survey one file. Raises SnapshotError if it cannot be copied."""
    with open_hdf5(path) as file:
        here = parse_header(file)[1]
        names = {
            ptype: tuple(sorted(_row_datasets(get_group(file, f"PartType{ptype}"), num)))
            for ptype, num in enumerate(here)
            if num
        }
        return _File(path, here, names)


def _totals(files: Sequence[_File]) -> list[int]:
    """Return the number of particles of each type in all files."""
    first = files[0]
    for file in files:
        if len(file.here) != len(first.here):
            raise SnapshotError(
                f"{file.path} counts {len(file.here)} types of particles, but {first.path} {len(first.here)}; give the "
                "files of one snapshot."
            )
    return [sum(counts) for counts in zip(*(file.here for file in files), strict=True)]


def _row_datasets(group: h5py.Group, num: int) -> Iterator[str]:
    """Yield the names of the datasets with one row per particle, including those in subgroups (in EAGLE)."""
    for name, item in _datasets(group):
        if item.shape and item.shape[0] == num and item.size:
            if not _has_fixed_size(item.id.get_type()):
                raise SnapshotError(
                    f"{group.file.filename} holds {str(item.name).lstrip('/')} with rows of variable length, which "
                    "cannot be copied; write the file without it."
                )
            yield name


def _datasets(group: h5py.Group, prefix: str = "") -> Iterator[tuple[str, h5py.Dataset]]:
    for name in group:
        item = group[name]
        if isinstance(item, h5py.Group):
            yield from _datasets(item, f"{prefix}{name}/")
        elif isinstance(item, h5py.Dataset):
            yield prefix + name, item


def _has_fixed_size(kind: Any) -> bool:
    """Return whether the dataset stores the values themselves, not references to them."""
    text = kind.get_class() == h5py.h5t.STRING and kind.is_variable_str()
    return not text and not any(kind.detect_class(special) for special in (h5py.h5t.VLEN, h5py.h5t.REFERENCE))


def _copy_frame(first: _File, out: h5py.File, totals: list[int], leave_out: Sequence[str]) -> None:
    """Copy everything except the particle groups that are not empty."""
    with open_hdf5(first.path) as file:
        copy_attributes(file, out)
        for name in file:
            link = file.get(name, getlink=True)
            if isinstance(link, h5py.SoftLink):
                out[name] = h5py.SoftLink(link.path)
            elif name not in leave_out and _type_of(file, name, totals) is None:
                file.copy(name, out)


def _type_of(file: h5py.File, name: str, totals: list[int]) -> str | None:
    """Return the particle group with this name or alias, such as SWIFT's ``GasParticles``, or None."""
    for ptype, total in enumerate(totals):
        group = f"PartType{ptype}"
        if total and (name == group or (group in file and file[name] == file[group])):
            return group
    return None


def _link_types(first: _File, out: h5py.File, totals: list[int]) -> None:
    """Restore the aliases of particle groups."""
    with open_hdf5(first.path) as file:
        for name in file:
            group = _type_of(file, name, totals)
            if group is not None and name not in out and group in out:
                out[name] = out[group]


def copy_attributes(source: Any, target: Any) -> None:
    """Copy the attributes that are text or numbers. Others, such as references, point into the source file."""
    for name in source.attrs:
        if holds_text_or_numbers(source, name):
            target.attrs.create(name, read_attribute(source, name), dtype=attribute_dtype(source, name))


def _set_counts(header: h5py.Group, counts: list[int], number: int, num_files: int) -> None:
    """Set the counts in the header of one of the files, from its number of particles of each type."""
    here = np.asarray(counts, np.uint64)
    kind = np.asarray(read_attribute(header, "NumPart_ThisFile")).dtype
    header.attrs["NumPart_ThisFile"] = here.astype(kind) if (here.astype(kind) == here).all() else here
    if num_files > 1 and NUM_FILES not in header.attrs:
        header.attrs[NUM_FILES] = np.int32(num_files)
    _modify_attributes(header, {NUM_FILES: num_files, "ThisFile": number, "Virtual": 0})


def _modify_attributes(group: h5py.Group, values: Mapping[str, int]) -> None:
    """Change the attributes that exist."""
    for name, value in values.items():
        if whole_numbers(group, name) is not None:
            group.attrs.modify(name, np.full_like(read_attribute(group, name), value))


class _Type:
    """The particles of one type in all files."""

    def __init__(self, files: Sequence[_File], ptype: int, order: RowOrder | None, folder: Path) -> None:
        """Set the order, None for that of the snapshot, and the folder for data that do not fit into memory."""
        self._files = [file for file in files if file.here[ptype]]
        self._ptype, self._order, self._folder = ptype, order, folder
        self._group = f"PartType{ptype}"
        self._total = sum(file.here[ptype] for file in self._files)

    def copy(self, outs: Sequence[h5py.File], added: Mapping[str, AddedColumn], advance: Advance | None) -> None:
        """Write all datasets and the added columns; each file gets its share of the rows."""
        names = self._names()
        fields = len(names) + len(set(added) - set(names))
        shares = (_share(self._total, number, len(outs)) for number in range(len(outs)))
        held = [(out, stop - start) for out, (start, stop) in zip(outs, shares, strict=True) if stop > start]
        with open_hdf5(self._files[0].path) as file:
            for out, num in held:
                group = out.create_group(self._group)
                _create(group, get_group(file, self._group), names, added, num)
                _modify_attributes(group, {"NumberOfParticles": num, "NumberOfFields": fields})  # attributes of SWIFT
        retained = [name for name in names if name not in added]
        for number, name in enumerate(retained):
            created = [out[f"{self._group}/{name}"] for out, _ in held]
            self._fill(created, self._stored_rows(created[0]))
            if advance is not None:
                advance(self._total * (number + 1) // len(retained) - self._total * number // len(retained))
        for name, column in added.items():
            created = [out.create_dataset(f"{self._group}/{name}", (num,), column.dtype) for out, num in held]
            for data in created:
                data.attrs.update(column.attributes)
            self._fill(created, self._added_rows(column))

    def _names(self) -> tuple[str, ...]:
        """Return the datasets with one row per particle. Raises SnapshotError unless every file has the same ones."""
        first = self._files[0]
        names = first.names[self._ptype]
        for file in self._files:
            if missing := sorted(set(names) ^ set(file.names[self._ptype])):
                raise SnapshotError(
                    f"Only one of {first.path} and {file.path} holds {self._group}/{missing[0]} with one row per "
                    "particle; write the parts in the same form."
                )
        return names

    def _fill(self, created: Sequence[h5py.Dataset], slices: Iterator[np.ndarray]) -> None:
        """Write all rows, which arrive in the order of the snapshot, to one dataset after the other."""
        if self._order is not None:
            slices = self._order.apply(slices, self._folder, created[0].chunks[0] if created[0].chunks else 1)
        number = start = 0
        for rows in slices:
            while len(rows):
                free = created[number].shape[0] - start
                write_bytes(created[number], start, rows[:free])
                number, start = (number, start + len(rows)) if len(rows) < free else (number + 1, 0)
                rows = rows[free:]

    def _stored_rows(self, like: h5py.Dataset) -> Iterator[np.ndarray]:
        """Yield the rows of a dataset in all files, as bytes, for the output dataset ``like``."""
        for file in self._files:
            num = file.here[self._ptype]
            with open_hdf5(file.path) as held:
                data = get_dataset(held, str(like.name).lstrip("/"))
                if data.shape[1:] != like.shape[1:] or data.id.get_type() != like.id.get_type():
                    raise SnapshotError(
                        f"{file.path} holds {like.name[1:]} in rows of another shape or type than "
                        f"{self._files[0].path}; write the parts in the same form."
                    )
                reader, chunk = OpenFile(held), data.chunks[0] if data.chunks else 1
                for start, stop in row_slices(slice(0, num), row_dtype(data).itemsize, chunk):
                    yield reader.read_bytes(data, slice(start, stop))

    def _added_rows(self, column: AddedColumn) -> Iterator[np.ndarray]:
        for start, stop in row_slices(slice(0, self._total), column.dtype.itemsize):
            rows = np.ascontiguousarray(column.read(start, stop), column.dtype)
            yield rows.view(np.dtype((np.void, column.dtype.itemsize)))


def _create(
    target: h5py.Group,
    source: h5py.Group,
    names: Collection[str],
    left_out: Collection[str],
    total: int,
    prefix: str = "",
) -> None:
    """Copy a group of particles; row datasets are created but not filled.

    Args:
        target: The new group.
        source: The group to copy.
        names: Names of the datasets with one row per particle.
        left_out: Names of unwanted datasets.
        total: Number of rows.
        prefix: Prefix of the names of the group's members.
    """
    copy_attributes(source, target)
    for name in source:
        item, path = source[name], prefix + name
        if isinstance(item, h5py.Group):
            _create(target.create_group(name), item, names, left_out, total, f"{path}/")
        elif path in names and path not in left_out:
            _create_rows(target, name, item, total)
        elif isinstance(item, h5py.Dataset) and path not in left_out:
            source.copy(name, target)


def _create_rows(target: h5py.Group, name: str, source: h5py.Dataset, total: int) -> None:
    """Create a dataset like another one, with ``total`` rows."""
    shape = (total, *source.shape[1:])
    kind, space = source.id.get_type().copy(), h5py.h5s.create_simple(shape)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if source.chunks and not source.is_virtual and _can_write(source):
        plist = source.id.get_create_plist().copy()
        plist.set_chunk(tuple(map(min, source.chunks, shape)))
    plist.set_obj_track_times(False)  # otherwise two runs would write different bytes
    created = h5py.Dataset(h5py.h5d.create(target.id, name.encode(), kind, space, plist))
    copy_attributes(source, created)


def _can_write(source: h5py.Dataset) -> bool:
    """Return whether all filters of a dataset can also compress; some are available as decoders only."""
    check_filters(source)
    plist = source.id.get_create_plist()
    filters = [plist.get_filter(place)[0] for place in range(plist.get_nfilters())]
    return all(h5py.h5z.get_filter_info(number) & h5py.h5z.FILTER_CONFIG_ENCODE_ENABLED for number in filters)
