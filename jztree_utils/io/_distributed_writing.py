"""Writing with many devices and processes, from inside a mapped function: `distr_write_hdf5`.

Every rank writes its own data. If a single rank raised an error, the others would hang in their next collective. So all
ranks first share errors, then remove the files written so far, and then all raise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.typing import ArrayLike

from jztree import kernels
from jztree.comm import all_gather, get_rank_info
from jztree.data import check_representable
from jztree.jax_ext import vary_along, varying_axes

from ._files import PathLike
from ._rank_writer import REASONS, DatasetForm, RankWriter


def distr_write_hdf5(
    base_name: PathLike, data: Any, num: ArrayLike | None = None, attrs: Mapping[str, Any] | None = None
) -> jax.Array:
    """Write the data of all ranks to ``base_name.0.hdf5``, ``base_name.1.hdf5``, ..., joined by ``base_name.hdf5``.

    All ranks must call this inside `jax.shard_map`, compiled or not; outside of a mesh there is one rank. Names in the
    files are those in ``data``. The joint file has virtual datasets: these show the rows of all ranks without padding,
    in rank order, and read them from the other files, which must stay in the same folder.

    Args:
        base_name: Path without a suffix, the same on all ranks; the folder must exist on every host. Existing files
            with these names are replaced. Files of an earlier run with more ranks are not removed.
        data: A pytree (dataclass, dict, ..., nested) of arrays. Nested names are groups. Arrays of one dimension or
            more, ``(n, ...)``, have rows; all arrays in one dataclass or dict must have the same ``n``. Numbers without
            rows (``num``, ``ngroups``, a mass that all particles share) become ``(r,)`` in the joint file, one per
            rank. None is left out.
        num: Number of leading rows to write, for everything in ``data``. By default an entry ``num`` or ``ngroups``
            sets it for its dataclass or dict and everything nested in it; without such an entry, all rows are written.
        attrs: Attributes of the files; an entry that is a mapping has the attributes of the group or dataset of that
            name (such as ``{"Groups/mass": {"unit": "1e10 Msun/h"}}``). Values must be known when the function is
            traced.

    Returns:
        An int32 scalar, 0. JAX writes asynchronously. To wait for completion, return the scalar from the mapped
        function and block on it, or call `jax.effects_barrier`. If a rank fails, every rank raises the same error with
        the rank and the reason, the logger ``jztree`` has the details, and neither incomplete files nor incomplete sets
        of files remain.

    Raises:
        TypeError, ValueError: If data or attributes cannot be written. The function raises when it is traced.
    """
    rank, ndev, _ = get_rank_info()
    columns = _collect(data, num)
    base = Path(os.fspath(base_name))
    writer = RankWriter(base, ndev, [column.form for column in columns], _sort_attributes(attrs, columns))
    counts = all_gather(jnp.stack([jnp.asarray(column.num, jnp.int32) for column in columns]))
    written = _worst(_on_host(writer.write, rank, counts, *(column.array for column in columns)))
    placed = _worst(_on_host(writer.put_in_place, rank, written))
    finished = _worst(_on_host(writer.finish, rank, written, placed))
    failed = jnp.maximum(jnp.maximum(written, placed), finished)
    status = jnp.zeros((), jnp.int32)
    for code, reason in enumerate(REASONS, 1):
        sentence = reason.sentence.replace("{name}", str(base))
        status = kernels.check(status, failed // ndev == code, [failed % ndev], sentence)
    # The compiler drops a check with an unused result, but not a host callback.
    _on_host(lambda *_: 0, status)
    return status


def _worst(status: jax.Array) -> jax.Array:
    """Return the largest status of the ranks. The result is the same on every rank, also for JAX's type checks."""
    _, _, axes = get_rank_info()
    return jax.lax.pmax(vary_along(status, frozenset(axes)), axes) if axes else status


class _Column(NamedTuple):
    """The part of a dataset on one rank, with ``num`` valid rows (1 for a number)."""

    form: DatasetForm
    array: jax.Array
    num: Any


_NUMS = ("num", "ngroups")


def _collect(data: Any, num: Any) -> list[_Column]:
    """Collect everything in ``data`` to write. Raises TypeError or ValueError if something cannot be written."""
    check_representable(data)
    result = [(_name(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(data)[0]]
    leaves = dict(result)
    if not leaves:
        raise ValueError("data holds no arrays; give at least one.")
    if len(leaves) < len(result):
        raise ValueError(
            f"data holds two arrays with the same name; the names are {sorted(name for name, _ in result)}."
        )
    lengths: dict[str, tuple[int, str]] = {}
    columns = []
    for name, leaf in leaves.items():
        array = jnp.asarray(leaf)
        if array.dtype.kind not in "biufc":
            raise TypeError(f"{name} has dtype {array.dtype}, which HDF5 does not support; convert it or leave it out.")
        if array.ndim == 0:
            columns.append(_Column(DatasetForm(name, None, array.dtype), array, 1))
            continue
        rows = array.shape[0]
        first, other = lengths.setdefault(name.rpartition("/")[0], (rows, name))
        if rows != first:
            raise ValueError(
                f"{name} has {rows} rows, but {other} in the same dataclass or dict has {first}; put arrays with "
                "another number of rows into a separate dataclass or dict."
            )
        columns.append(
            _Column(DatasetForm(name, array.shape[1:], array.dtype), array, _num_of(name, rows, leaves, num))
        )
    return columns


def _name(path: tuple[Any, ...]) -> str:
    """Return the name in the file of a pytree leaf; an array that is not nested is called data."""
    words = [str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path]
    return "/".join(words) or "data"


def _num_of(name: str, rows: int, leaves: Mapping[str, Any], num: Any) -> Any:
    """Return the number of valid rows of the array ``name``: ``num``, or the nearest outer entry num or ngroups."""
    if num is not None:
        return num
    group = name
    while group:
        group = group.rpartition("/")[0]
        for entry in _NUMS:
            result = leaves.get(f"{group}/{entry}" if group else entry)
            if result is not None and np.ndim(result) == 0:
                return result
    return rows


def _sort_attributes(attrs: Mapping[str, Any] | None, columns: Sequence[_Column]) -> dict[str, dict[str, Any]]:
    """Sort attributes by the name of their group or dataset; "" is the file."""
    known = {column.form.name for column in columns}
    known |= {str(parent) for name in known for parent in Path(name).parents if str(parent) != "."}
    sorted_attrs: dict[str, dict[str, Any]] = {"": {}}
    for name, value in (attrs or {}).items():
        if not isinstance(value, Mapping):
            sorted_attrs[""][name] = _plain_attribute(name, value)
        elif name in known:
            sorted_attrs[name] = {entry: _plain_attribute(entry, inner) for entry, inner in value.items()}
        else:
            raise ValueError(
                f"attrs has entries for {name!r}, but data has only {sorted(known)}; use one of these names."
            )
    return sorted_attrs


def _plain_attribute(name: str, value: Any) -> Any:
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"The attribute {name} is traced, but attributes must have known values; put it into data instead."
        )
    return value if isinstance(value, (str, bytes)) else np.asarray(value)


def _on_host(function: Callable[..., int], *arguments: Any) -> jax.Array:
    """Call ``function`` with NumPy arrays on the host, once per device, and return its int32 scalar.

    On CPUs, the function gets the device's own buffers. `io_callback` would copy them with a thread of the pool in
    which all devices of the process may be waiting for that copy: with as many devices as cores this deadlocks (seen
    with jax 0.10.2).
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
