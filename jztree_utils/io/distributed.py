"""Reading and writing with many devices and processes: everyone reads and writes what is its own, and nothing else.

Reading: `shard_rows` deals out rows of anything that can be read by ranges, `read_snapshot_sharded` those of a
snapshot. Writing: `distr_write_hdf5`, from inside a mapped function: a file a rank and one that shows them as one.

A rank that raised alone would leave the others waiting in their next collective. So what fails is told to all first,
and then all raise, after what had been written has been removed.
"""

import errno
import functools
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import replace as rename
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jztree import kernels
from jztree.comm import all_gather, get_rank_info
from jztree.data import ParticleData, check_carried, fits_float32
from jztree.jax_ext import vary_along, varying_axes

from ._files import PathLike, check_output, create_empty, fill_hdf5, output_path, temporary_beside
from .header import SnapshotHeader
from .options import ReadOptions
from .processes import failing_together
from .snapshot import Snapshot, open_snapshot

_LOG = logging.getLogger("jztree")


# Reading


def share(total: int, rank: int, ndev: int) -> tuple[int, int]:
    """The first row of a rank and the one behind its last, if ``total`` rows are dealt out equally, off by one."""
    return total * rank // ndev, total * (rank + 1) // ndev


def shard_rows(read_rows: Callable[[int, int], np.ndarray], total: int, mesh: Mesh, npad: int = 0) -> jax.Array:
    """Rows dealt out to all devices of a mesh in equal consecutive blocks, of which each process reads its own only.

    read_rows: ``read_rows(start, stop)`` gives the rows from ``start`` to ``stop`` as a NumPy array ``(stop - start,
        ...)``. It is called once for each device of this process, also with ``start == stop``.
    total: rows in all, the same on every process.
    mesh: the devices; rank r is the r-th of ``mesh.devices.flat``.
    npad: rows of padding to add on every device.

    Returns ``(r, ceil(total / r) + npad, ...)``, spread over the devices by its first axis. Numbers of 64 bits become
    32 bits unless JAX's 64-bit mode is on. Raises ValueError if no device of the mesh belongs to this process,
    ``read_rows`` gives another number of rows, or integers do not fit into 32 bits then.
    """
    ndev = mesh.size
    rows = -(-total // ndev) + npad
    blocks = []
    for rank, device in enumerate(mesh.devices.flat):
        if _is_mine(device):
            start, stop = share(total, rank, ndev)
            blocks.append(jax.device_put(_padded(read_rows(start, stop), stop - start, rows), device))
    if not blocks:
        raise ValueError(f"Process {jax.process_index()} has none of the {ndev} devices of the mesh; use its devices.")
    return jax.make_array_from_single_device_arrays((ndev, *blocks[0].shape[1:]), _by_rank(mesh), blocks)


def _is_mine(device: jax.Device) -> bool:
    return device.process_index == jax.process_index()


def _padded(read: np.ndarray, num: int, rows: int) -> np.ndarray:
    """``(1, rows, ...)``: what was read and zeros behind it, in a dtype that JAX has."""
    if read.shape[:1] != (num,):
        raise ValueError(f"read_rows was asked for {num} rows, but gave an array of shape {read.shape}.")
    check_carried(read)
    padded = np.zeros((1, rows, *read.shape[1:]), jax.dtypes.canonicalize_dtype(read.dtype))
    padded[0, :num] = read
    return padded


def _by_rank(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P(mesh.axis_names))


def _one_each(values: np.ndarray, mesh: Mesh) -> jax.Array:
    """``(r,)``: one number for each rank."""
    return jax.make_array_from_callback(values.shape, _by_rank(mesh), lambda index: values[index])


def num_of_each_rank(total: int, mesh: Mesh) -> jax.Array:
    """``(r,)`` int32: how many of the rows that `shard_rows` has dealt out are those of each rank."""
    shares = [share(total, rank, mesh.size) for rank in range(mesh.size)]
    return _one_each(np.asarray([stop - start for start, stop in shares], np.int32), mesh)


def read_snapshot_sharded(
    path: PathLike,
    mesh: Mesh,
    npad: int = 0,
    ptype: int = 1,
    fields: Sequence[str] = ("pos", "mass", "vel", "id"),
    optional: Sequence[str] = (),
    id_words: bool = False,
    options: ReadOptions | None = None,
) -> tuple[ParticleData, SnapshotHeader]:
    """Particles of one type, dealt out to all devices of a mesh; each process reads the rows of its devices only.

    path, ptype, fields, optional, options: as in `read_snapshot`; the snapshot may have any number of files.
    mesh: the devices of all processes; rank r is the r-th of ``mesh.devices.flat``.
    npad: rows of padding to add on every device.
    id_words: give identifiers as two words of 32 bits, the low one first, which JAX holds in its default 32-bit mode
        too; `join_words` puts them together again.

    Returns the particles and the header. With ``r`` devices and ``n = ceil(total / r) + npad`` rows a device:
    pos, vel: ``(r, n, d)`` float32 or float64; float64 become float32 unless JAX's 64-bit mode is on. Units as in
        `read_snapshot`.
    mass: ``(r, n)``, or ``(r,)`` if all particles share it, in the dtype of ``pos`` then.
    id: ``(r, n)`` integers, or ``(r, n, 2)`` uint32 with ``id_words``.
    num: ``(r,)`` int32, equal but for one at most. num_total: all particles.

    All processes must call this. Raises, on all of them if on any, like `read_snapshot`, and ValueError if identifiers
    have 64 bits, JAX's 64-bit mode is off, and ``id_words`` is not set.
    """
    with failing_together(mesh):
        snapshot = open_snapshot(path, ptype, options)
        part = shard_snapshot(snapshot, mesh, snapshot.present(fields, optional), npad, id_words)
    return part, snapshot.header


def shard_snapshot(
    snapshot: Snapshot,
    mesh: Mesh,
    names: Sequence[str],
    npad: int = 0,
    id_words: bool = False,
    advance: Callable[[int], None] | None = None,
    finite: bool = False,
) -> ParticleData:
    """The properties ``names``, positions among them, of the particles of a snapshot, as in `read_snapshot_sharded`.

    advance: called now and then with the number of rows of a property that this process has read since.
    finite: as in `Snapshot.read`.

    Errors are those of this process alone; see `failing_together`.
    """

    def read(name: str, start: int, stop: int) -> np.ndarray:
        rows: np.ndarray = snapshot.read(name, start, stop, advance, finite=finite)
        if name == "id":
            return _as_jax_holds(rows, id_words)
        check_carried({name: rows})
        return rows

    shared = snapshot.shared_mass if "mass" in names else None
    read_here = [name for name in names if name != "mass" or shared is None]
    columns: dict[str, Any] = {
        name: shard_rows(functools.partial(read, name), snapshot.num, mesh, npad) for name in read_here
    }
    if shared is not None:
        masses = np.full(mesh.size, shared)
        check_carried({"mass": masses})
        if fits_float32(shared):
            masses = masses.astype(columns["pos"].dtype)
        columns["mass"] = _one_each(masses, mesh)
    num = num_of_each_rank(snapshot.num, mesh)
    return ParticleData(**columns, num=num, num_total=snapshot.num)


def _as_jax_holds(ids: np.ndarray, words: bool) -> np.ndarray:
    """Identifiers as words, or as they are. Raises ValueError if JAX would drop their upper bits."""
    if words:
        return split_words(ids)
    if jax.dtypes.canonicalize_dtype(ids.dtype) != ids.dtype:
        raise ValueError(
            "The identifiers have 64 bits, which JAX holds in its 64-bit mode only; switch it on with "
            "jax.config.update('jax_enable_x64', True), or ask for id_words=True, or leave 'id' out of fields."
        )
    return ids


def split_words(ids: np.ndarray) -> np.ndarray:
    """Integers ``(n,)`` as words of 32 bits, ``(n, 2)`` uint32, the low one first. `join_words` undoes it."""
    wide = ids.astype(np.int64 if ids.dtype.kind == "i" else np.uint64).view(np.uint64)
    return np.stack([wide & 0xFFFFFFFF, wide >> 32], axis=1).astype(np.uint32)


def join_words(words: Any, dtype: Any = np.uint64) -> np.ndarray:
    """Integers ``(n,)`` of a dtype out of their words ``(n, 2)`` uint32, the low one first."""
    words = np.asarray(words).astype(np.uint64)
    return (words[..., 0] | words[..., 1] << np.uint64(32)).astype(dtype)


# Writing


class _Reason(NamedTuple):
    """Why writing failed: the errors of the system that mean it, and the sentence for the user."""

    errors: tuple[int, ...]
    sentence: str


_NOTHING_LEFT = "nothing was written; the log of that rank has more."
# A status is 0, or the place of a reason in this table, from 1 on, times the number of ranks, plus the rank.
_REASONS = (
    _Reason((), f"rank {{0}} could not write its file of {{name}}; {_NOTHING_LEFT}"),
    _Reason(
        (errno.ENOENT, errno.ENOTDIR),
        f"rank {{0}} finds no folder for {{name}}, so {_NOTHING_LEFT}",
    ),
    _Reason(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        f"rank {{0}} may not write to the folder of {{name}}, so {_NOTHING_LEFT}",
    ),
    _Reason(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        f"rank {{0}} has no space left for its file of {{name}}, so {_NOTHING_LEFT}",
    ),
)


def distr_write_hdf5(base_name: PathLike, data: Any, num: Any = None, attrs: Mapping[str, Any] | None = None) -> Any:
    """Write what the ranks hold: ``base_name.0.hdf5``, ``base_name.1.hdf5``, ..., and ``base_name.hdf5`` for all.

    To be called inside `jax.shard_map` by all ranks, compiled or not; outside of any mesh there is one rank. Names in
    the files are those in ``data``. The file for all holds virtual datasets: it shows the rows of all ranks without
    padding, in the order of the ranks, and reads them from the other files, which must stay beside it.

    base_name: path without a suffix, the same on all ranks; the folder must be there for all of them. Files of these
        names are replaced. None of an earlier run with more ranks is removed.
    data: a pytree (dataclass, dict, ..., nested) of arrays. Nested names are groups. Arrays of one dimension or more,
        ``(n, ...)``, have rows; all in one dataclass or dict must have the same ``n``. Numbers without rows (``num``,
        ``ngroups``, a mass that all particles share) become ``(r,)`` in the file for all, one a rank. None is left out.
    num: how many leading rows to write, for everything in ``data``. By default each dataclass or dict with an entry
        ``num`` or ``ngroups`` says it for itself and what is in it; if none does, all rows are written.
    attrs: attributes of the files; an entry that is a mapping holds the attributes of the group or dataset of that name
        (such as ``{"Groups/mass": {"unit": "1e10 Msun/h"}}``). Values must be known when the function is traced.

    Returns an int32 scalar, 0. JAX writes asynchronously: return it from the mapped function and block on it, or call
    `jax.effects_barrier`, to know that all is written. If a rank fails, every rank raises one error that names the rank
    and the reason, the logger ``jztree`` has the details, and no file is left half-written or without the others.

    Raises TypeError or ValueError, when traced, for data or attributes that cannot be written.
    """
    rank, ndev, _ = get_rank_info()
    columns = _collect(data, num)
    base = Path(os.fspath(base_name))
    writer = _Writer(base, ndev, [column.spec for column in columns], _sort_attributes(attrs, columns))
    counts = all_gather(jnp.stack([jnp.asarray(column.num, jnp.int32) for column in columns]))
    written = _worst(_on_host(writer.write, rank, counts, *(column.array for column in columns)))
    placed = _worst(_on_host(writer.put_in_place, rank, written))
    finished = _worst(_on_host(writer.finish, rank, written, placed))
    failed = jnp.maximum(jnp.maximum(written, placed), finished)
    status = jnp.zeros((), jnp.int32)
    for code, reason in enumerate(_REASONS, 1):
        sentence = reason.sentence.replace("{name}", str(base))
        status = kernels.check(status, failed // ndev == code, [failed % ndev], sentence)
    # The compiler drops a check whose result nobody uses, but not a call of the host.
    _on_host(lambda *_: 0, status)
    return status


def _worst(status: jax.Array) -> jax.Array:
    """The largest status of all ranks, which is then the same on all, for the type checks of JAX too."""
    _, _, axes = get_rank_info()
    return jax.lax.pmax(vary_along(status, frozenset(axes)), axes) if axes else status


class _Spec(NamedTuple):
    """A dataset: its name with those of its groups, its shape without the rows (None: a number), and its dtype."""

    name: str
    shape: tuple[int, ...] | None
    dtype: np.dtype


class _Column(NamedTuple):
    """What one rank holds of a dataset; num: how many of its rows count (1 for a number)."""

    spec: _Spec
    array: jax.Array
    num: Any


_NUMS = ("num", "ngroups")


def _collect(data: Any, num: Any) -> list[_Column]:
    """Everything in ``data`` that is to be written. Raises TypeError or ValueError if it cannot be."""
    check_carried(data)
    found = [(_name(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(data)[0]]
    leaves = dict(found)
    if not leaves:
        raise ValueError("There is nothing to write: data holds no arrays.")
    if len(leaves) < len(found):
        raise ValueError(f"data holds two arrays of one name; the names are {sorted(name for name, _ in found)}.")
    lengths: dict[str, tuple[int, str]] = {}
    columns = []
    for name, leaf in leaves.items():
        array = jnp.asarray(leaf)
        if array.dtype.kind not in "biufc":
            raise TypeError(f"{name} is {array.dtype}, which HDF5 has no numbers for; convert it or leave it out.")
        if array.ndim == 0:
            columns.append(_Column(_Spec(name, None, array.dtype), array, 1))
            continue
        rows = array.shape[0]
        first, other = lengths.setdefault(name.rpartition("/")[0], (rows, name))
        if rows != first:
            raise ValueError(
                f"{name} has {rows} rows, but {other} beside it has {first}; put what belongs to other rows into a "
                "dataclass or dict of its own."
            )
        columns.append(_Column(_Spec(name, array.shape[1:], array.dtype), array, _num_of(name, rows, leaves, num)))
    return columns


def _name(path: tuple[Any, ...]) -> str:
    """The name of a leaf of a pytree in a file; an array that is not in anything is called data."""
    words = [str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path]
    return "/".join(words) or "data"


def _num_of(name: str, rows: int, leaves: Mapping[str, Any], num: Any) -> Any:
    """How many rows of the array ``name`` count: ``num``, or what the closest entry num or ngroups above it says."""
    if num is not None:
        return num
    group = name
    while group:
        group = group.rpartition("/")[0]
        for entry in _NUMS:
            found = leaves.get(f"{group}/{entry}" if group else entry)
            if found is not None and np.ndim(found) == 0:
                return found
    return rows


def _sort_attributes(attrs: Mapping[str, Any] | None, columns: Sequence[_Column]) -> dict[str, dict[str, Any]]:
    """Attributes by the name of what they belong to, "" being the file."""
    known = {column.spec.name for column in columns}
    known |= {str(parent) for name in known for parent in Path(name).parents if str(parent) != "."}
    sorted_attrs: dict[str, dict[str, Any]] = {"": {}}
    for name, value in (attrs or {}).items():
        if not isinstance(value, Mapping):
            sorted_attrs[""][name] = _plain_attribute(name, value)
        elif name in known:
            sorted_attrs[name] = {entry: _plain_attribute(entry, inner) for entry, inner in value.items()}
        else:
            raise ValueError(f"attrs has entries for {name!r}, which data does not hold; it holds {sorted(known)}.")
    return sorted_attrs


def _plain_attribute(name: str, value: Any) -> Any:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"The attribute {name} is traced; attributes must be known, so put it into data instead.")
    return value if isinstance(value, (str, bytes)) else np.asarray(value)


def _on_host(function: Callable[..., int], *arguments: Any) -> jax.Array:
    """What ``function`` of NumPy arrays returns, an int32 scalar; it is called by each device, on its host.

    On CPUs it gets the device's own buffers. `io_callback` would copy them, with a thread of the pool in which all
    devices of the process may be waiting for that copy: with as many devices as cores it never ends (seen, jax 0.10.2).
    """
    status = jax.ShapeDtypeStruct((), jnp.int32)
    arrays = [jnp.asarray(argument) for argument in arguments]

    def in_place(_: Any, out: Any, *buffers: Any) -> None:
        np.asarray(out)[...] = function(*(np.asarray(buffer) for buffer in buffers))

    def by_value(*copies: Any) -> np.ndarray:
        return np.asarray(function(*(np.asarray(copy) for copy in copies)), np.int32)

    result = jax.lax.platform_dependent(
        *arrays,
        cpu=buffer_callback(in_place, status, has_side_effect=True),
        default=lambda *copies: io_callback(by_value, status, *copies),
    )
    return vary_along(result, varying_axes(arrays))


@dataclass
class _Writer:
    """The work on the host, in three steps; each is called once for every rank and returns a status.

    Files are written under temporary names, which belong to one rank each, so steps share nothing in memory.
    """

    base: Path
    ndev: int
    specs: list[_Spec]
    attrs: dict[str, dict[str, Any]]

    def __post_init__(self) -> None:
        self.token = secrets.token_hex(6)

    def write(self, rank: np.ndarray, counts: np.ndarray, *arrays: np.ndarray) -> int:
        """Write the file of the rank, and on rank 0 that for all. counts: ``(r, c)``, rows of each rank and dataset."""

        def write_all() -> None:
            self._write_file(rank, lambda file: self._fill(file, counts[rank], arrays))
            if rank == 0:
                self._write_file(None, lambda file: self._fill_virtual(file, counts))

        return self._try(rank, write_all)

    def put_in_place(self, rank: np.ndarray, failed: np.ndarray) -> int:
        """Give the file of the rank its name, or remove what was written if any rank has failed."""

        def put_or_remove() -> None:
            if failed:
                self._remove_temporary(rank)
            else:
                self._put_in_place(rank)

        return self._try(rank, put_or_remove)

    def finish(self, rank: np.ndarray, failed_writing: np.ndarray, failed_placing: np.ndarray) -> int:
        """Give the file for all its name, now that those it refers to are there, or remove them if one is missing."""

        def finish_or_remove() -> None:
            if failed_placing:
                self._remove_temporary(rank)
                self._file(rank).unlink(missing_ok=True)
            elif rank == 0 and not failed_writing:
                self._put_in_place(None)

        return self._try(rank, finish_or_remove)

    def _try(self, rank: np.ndarray, step: Callable[[], None]) -> int:
        """The status of a step. Nothing may be raised here: the other ranks would wait for this one."""
        try:
            step()
        except Exception as error:
            _LOG.exception("rank %d: writing %s failed", rank, self._file(rank))
            return _reason_number(error) * self.ndev + int(rank)
        return 0

    def _file(self, rank: Any) -> Path:
        return self.base.with_name(f"{self.base.name}.hdf5" if rank is None else f"{self.base.name}.{int(rank)}.hdf5")

    def _temporary(self, rank: Any) -> Path:
        which = "all" if rank is None else int(rank)  # long names are cut, and must differ all the same
        return temporary_beside(output_path(self._file(rank)), f"{self.token}.{which}")

    def _put_in_place(self, rank: Any) -> None:
        try:
            rename(self._temporary(rank), output_path(self._file(rank)))
        except OSError:
            with suppress(OSError):
                os.unlink(self._temporary(rank))
            raise

    def _remove_temporary(self, rank: np.ndarray) -> None:
        for file in [rank] if rank else [rank, None]:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self._temporary(file))

    def _write_file(self, rank: Any, fill: Callable[[h5py.File], None]) -> None:
        check_output(self._file(rank))
        temporary = self._temporary(rank)
        create_empty(temporary, output_path(self._file(rank)))
        with fill_hdf5(temporary) as file:
            fill(file)
            for name, attributes in self.attrs.items():
                (file[name] if name else file).attrs.update(attributes)

    def _fill(self, file: h5py.File, counts: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        for spec, num, array in zip(self.specs, counts, arrays, strict=True):
            if spec.shape is not None and not 0 <= num <= len(array):
                raise ValueError(f"num is {num}, but {spec.name} has {len(array)} rows.")
            file.create_dataset(spec.name, data=array if spec.shape is None else array[:num])

    def _fill_virtual(self, file: h5py.File, counts: np.ndarray) -> None:
        file.attrs["num_files"] = self.ndev
        for place, spec in enumerate(self.specs):
            nums = counts[:, place].astype(np.int64)
            stops = np.cumsum(nums)
            layout = h5py.VirtualLayout((stops[-1], *(spec.shape or ())), spec.dtype)
            for rank in np.flatnonzero(nums):
                source = () if spec.shape is None else (nums[rank], *spec.shape)
                rows = slice(stops[rank] - nums[rank], stops[rank])
                layout[rows] = h5py.VirtualSource(self._file(rank).name, spec.name, source, spec.dtype)
            file.create_virtual_dataset(spec.name, layout, fillvalue=_missing(spec.dtype))


def _missing(dtype: np.dtype) -> Any:
    """What a virtual dataset shows if a file of a rank is gone: a number that is likely to be noticed."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if dtype.kind == "u" else np.iinfo(dtype).min
    return dtype.type(np.nan) if dtype.kind in "fc" else None


def _reason_number(error: Exception) -> int:
    """The place in the table of reasons, from 1 on: the first is for all errors that no other one is for."""
    number = getattr(error, "errno", None)
    return next((place for place, reason in enumerate(_REASONS, 1) if number in reason.errors), 1)
