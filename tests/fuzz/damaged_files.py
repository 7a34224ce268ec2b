"""Damaged copies of files, for tests that read them. Each copy has one fault, described by a sentence.

`damage` accepts any file that the library reads: snapshots, catalogues and neighbour lists in HDF5, NumPy files, and
the binary formats of Gadget. For a snapshot in several files, pass the folder; one of its files is damaged.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

_LONGEST = 40  # characters of a value in a sentence
_EMPTY = h5py.Empty("f8")


def damage(path: Path, folder: Path, random: np.random.Generator) -> tuple[Path, str]:
    """Copy ``path`` into ``folder`` with one fault, chosen by ``random``. Return the copy and the fault as a sentence.

    path: a file, or the folder of a snapshot in several files. folder: created if needed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / path.name
    if path.is_dir():
        shutil.copytree(path, copy, dirs_exist_ok=True)
        files = sorted(file for file in copy.iterdir() if file.is_file())
        single = files[random.integers(len(files))]
    else:
        shutil.copyfile(path, copy)
        single = copy
    os.chmod(single, 0o644)
    kinds = [_damage_bytes, _damage_attribute, _damage_attribute, _damage_dataset, _damage_dataset]
    kind = kinds[random.integers(len(kinds))] if h5py.is_hdf5(single) else _damage_bytes
    return copy, f"{single.name}: {kind(single, random)}."


def _damage_bytes(path: Path, random: np.random.Generator) -> str:
    data = bytearray(path.read_bytes())
    before = bytes(data)
    fault = _BYTES[random.integers(len(_BYTES))]
    message = fault(data, random)
    if len(data) == len(before):
        for heap in _heaps(before):
            data[heap] = before[heap]
    path.write_bytes(bytes(data))
    return message


def _heaps(data: bytes) -> list[slice]:
    """Return the text heaps of an HDF5 file. If these are damaged, the HDF5 library may hang in any reader."""
    begins = [at.start() for at in re.finditer(b"GCOL", data)]
    return [slice(begin, begin + int.from_bytes(data[begin + 8 : begin + 16], "little")) for begin in begins]


def _place(data: bytearray, random: np.random.Generator) -> int:
    """Return a position in a file; half are near its start, where formats keep their metadata."""
    return int(random.integers(max(1, min(len(data), 2048) if random.random() < 0.5 else len(data))))


def _cut(data: bytearray, random: np.random.Generator) -> str:
    length = _place(data, random)
    del data[length:]
    return f"it is cut off after {length} bytes"


def _flip(data: bytearray, random: np.random.Generator) -> str:
    places = [_place(data, random) for _ in range(random.integers(1, 4))]
    for place in places:
        data[place : place + 1] = bytes([data[place] ^ 1 << int(random.integers(8))])
    return f"a bit is flipped in each of the bytes {places}"


def _overwrite(data: bytearray, random: np.random.Generator) -> str:
    place, length = _place(data, random), int(random.choice([1, 4, 8, 64, 512]))
    length = min(length, len(data) - place)
    value = int(random.choice([0, 255, 256]))
    data[place : place + length] = random.bytes(length) if value > 255 else bytes([value]) * length
    return f"{length} bytes from {place} on are {'random' if value > 255 else value}"


def _shift(data: bytearray, random: np.random.Generator) -> str:
    place, length = _place(data, random), int(random.integers(1, 16))
    if random.random() < 0.5:
        data[place:place] = bytes(length)
        return f"{length} bytes are put in at {place}"
    del data[place : place + length]
    return f"{length} bytes are left out at {place}"


_BYTES: tuple[Callable[[bytearray, np.random.Generator], str], ...] = (_cut, _flip, _flip, _overwrite, _shift)


def _damage_attribute(path: Path, random: np.random.Generator) -> str:
    with h5py.File(path, "r+") as file:
        holders = [item for item in [file, *_items(file)] if len(item.attrs)]
        if not holders:
            return _damage_one_dataset(file, random)
        holder = holders[random.integers(len(holders))]
        names = sorted(holder.attrs)
        name = names[random.integers(len(names))]
        return f"attribute {name} of {holder.name} {_set_attribute(holder, name, random)}"


def _set_attribute(holder: Any, name: str, random: np.random.Generator) -> str:
    try:
        old = np.asarray(holder.attrs[name])
    except (OSError, TypeError):  # of a type that h5py cannot read
        old = np.zeros(1)
    del holder.attrs[name]
    wrong = _attribute_values(old)
    number = int(random.integers(len(wrong) + 1))
    if number == len(wrong):
        return "is missing"
    value, dtype = wrong[number]
    if isinstance(value, h5py.HLObject):
        value = value.ref
    if callable(value):
        value = value(holder)
    holder.attrs.create(name, value, dtype=dtype)
    return f"is {str(value)[:_LONGEST]!r} ({dtype or getattr(value, 'dtype', type(value).__name__)})"


def _attribute_values(old: np.ndarray) -> list[tuple[Any, Any]]:
    """Return replacements for an attribute, each with its dtype in the file (None: that of the value)."""
    numbers = (0, -1, 0.5, np.nan, np.inf, -np.inf, 1e300, 1e-300, 2**31, 2**32 - 1, 2**62, np.uint64(2**63))
    alike = [np.full(old.shape, number) for number in numbers] if old.dtype.kind in "iufb" else []
    others: list[Any] = [
        _EMPTY,
        np.zeros(0),
        np.zeros((0, 3)),
        np.zeros(3),
        np.ones((2, 2)),
        np.ones(6),
        np.ones(7, np.int64),
        np.full(6, 1 + 2j),
        1j,
        True,
        "a word",
        "",
        b"\xff\xfe",
        np.array([b"ab", b"c"]),
        np.zeros(2, [("x", "f8"), ("y", "i4")]),
        np.void(b"opaque"),
        np.float16(1),
        np.longdouble(1) / 3,
        *numbers,
    ]
    kinds = [
        (lambda holder: holder.ref, h5py.ref_dtype),
        (lambda holder: holder.file["/"].ref, h5py.ref_dtype),
        ([np.arange(3), np.arange(2)], h5py.vlen_dtype(np.int32)),
        (1, h5py.enum_dtype({"A": 1}, np.int32)),
        ("ü€", h5py.string_dtype("utf-8")),
    ]
    return [(value, None) for value in (*alike, *others)] + kinds  # type: ignore[operator]


def _damage_dataset(path: Path, random: np.random.Generator) -> str:
    with h5py.File(path, "r+") as file:
        return _damage_one_dataset(file, random)


def _damage_one_dataset(file: h5py.File, random: np.random.Generator) -> str:
    names = [str(item.name) for item in _items(file) if isinstance(item, h5py.Dataset)]
    if not names:
        file.attrs["stray"] = 1
        return "an attribute is added"
    name = names[random.integers(len(names))]
    faults = (_retype, _reshape, _relink, _store_otherwise, _spoil)
    return f"{name} {faults[random.integers(len(faults))](file, name, random)}"


def _items(file: h5py.File) -> list[Any]:
    """Return all groups and datasets of a file, each once."""
    result: list[Any] = []
    file.visititems(lambda _, item: result.append(item))
    return result


def _replace(file: h5py.File, name: str, **options: Any) -> Any:
    """Replace a dataset by another one, keeping its attributes."""
    attributes = _attributes(file[name])
    del file[name]
    data = file.create_dataset(name, **options)
    data.attrs.update(attributes)
    return data


def _attributes(data: Any) -> dict[str, Any]:
    return {key: value for key, value in data.attrs.items() if not isinstance(value, h5py.Empty)}


def _retype(file: h5py.File, name: str, random: np.random.Generator) -> str:
    """Change the dtype of a dataset, possibly to one that is not numeric."""
    old = file[name]
    shape = old.shape or ()
    small = h5py.h5t.IEEE_F32LE.copy()  # a bfloat16
    small.set_fields(15, 7, 8, 0, 7)
    small.set_size(2)
    small.set_ebias(127)
    nibble = h5py.h5t.STD_U8LE.copy()  # a 4-bit integer
    nibble.set_precision(4)
    wide = h5py.h5t.STD_U64LE.copy()  # a 128-bit integer
    wide.set_size(16)
    wide.set_precision(128)
    special = {"bfloat16": small, "an integer of 4 bits": nibble, "an integer of 128 bits": wide}
    special |= {"a bit field": h5py.h5t.STD_B32LE, "a time": h5py.h5t.UNIX_D32LE}
    kinds = ["i1", "u1", "i2", "u2", ">i4", "u8", "f2", ">f4", "f8", ">f8", "g", "c8", "c16", "?", "S3", "V4"]
    kinds += [np.dtype([("x", "f4"), ("y", "f4")]), h5py.ref_dtype, h5py.string_dtype(), h5py.vlen_dtype(np.float32)]
    kinds += [h5py.enum_dtype({"A": 0}, "i4"), np.dtype(("f4", (3,)))]
    number = int(random.integers(len(kinds) + len(special)))
    if number < len(kinds):
        kind = kinds[number]
        numeric = isinstance(kind, str) and kind not in ("S3", "V4")
        if numeric and old.dtype.kind in "iuf":
            with np.errstate(all="ignore"):
                _replace(file, name, data=old[()].astype(kind))
        else:
            _replace(file, name, shape=shape, dtype=kind)
        return f"is of dtype {kind}"
    words, type_id = list(special.items())[number - len(kinds)]
    del file[name]
    parent, _, last = name.rpartition("/")
    h5py.h5d.create(file.require_group(parent or "/").id, last.encode(), type_id, h5py.h5s.create_simple(shape))
    return f"is of the type {words}"


def _reshape(file: h5py.File, name: str, random: np.random.Generator) -> str:
    """Change the number of rows or dimensions."""
    rows = file[name][()]
    shapes: list[Any] = [rows[:0], rows[:-1], rows[:1], np.concatenate([rows, rows[:1]]) if rows.ndim else rows]
    shapes += [rows.ravel(), rows[..., None], rows.T, rows.ravel()[:1].reshape(()) if rows.size else rows, _EMPTY]
    if rows.ndim > 1:
        shapes += [rows[:, :0], rows[:, :-1], np.concatenate([rows] * 4, axis=1)]
    new = shapes[random.integers(len(shapes))] if rows.ndim else np.ones((2, 2))
    _replace(file, name, data=new)
    return f"has the shape {getattr(new, 'shape', None)} instead of {rows.shape}"


def _relink(file: h5py.File, name: str, random: np.random.Generator) -> str:
    """Make a name a link to nothing or to something else."""
    others = [str(item.name) for item in _items(file) if item.name != name] or ["/"]
    second = others[random.integers(len(others))]
    links = {
        "is missing": None,
        "is a group": h5py.Group,
        "is a link to nothing": h5py.SoftLink("/nowhere"),
        "is a link to itself": h5py.SoftLink(name),
        "is a link to a file that is missing": h5py.ExternalLink("missing.hdf5", name),
        f"is a link to {second}": h5py.SoftLink(second),
        "is a link to the file itself": h5py.ExternalLink(Path(file.filename).name, name),
        "is a type": np.dtype("f4"),
    }
    words = list(links)[random.integers(len(links))]
    del file[name]
    if links[words] is h5py.Group:
        file.create_group(name)
    elif links[words] is not None:
        file[name] = links[words]
    return words


def _store_otherwise(file: h5py.File, name: str, random: np.random.Generator) -> str:
    """Store rows in another place or compressed, so that HDF5 has to fetch or unpack them."""
    rows = file[name][()]
    if rows.ndim == 0 or not rows.size:
        del file[name]
        return "is missing"
    kind = int(random.integers(5))
    if kind == 0:
        external = [("missing.raw", 0, rows.nbytes)]
        _replace(file, name, shape=rows.shape, dtype=rows.dtype, external=external)
        return "has its numbers in a file that is missing"
    if kind == 1:
        layout = h5py.VirtualLayout(rows.shape, rows.dtype)
        layout[: len(rows) // 2] = h5py.VirtualSource("missing.hdf5", "x", (len(rows) // 2, *rows.shape[1:]))
        del file[name]
        file.create_virtual_dataset(name, layout)
        return "shows a file that is missing"
    if kind == 2:
        _replace(file, name, shape=(2**50, *rows.shape[1:]), dtype=rows.dtype, chunks=(1024, *rows.shape[1:]))
        return "has 2**50 rows, of which none was written"
    data = _replace(file, name, data=rows, chunks=rows.shape, compression="gzip", fletcher32=True)
    _, packed = data.id.read_direct_chunk((0,) * rows.ndim)
    if kind == 3:
        data.id.write_direct_chunk((0,) * rows.ndim, packed[: len(packed) // 2])
        return "has a compressed chunk that is cut off"
    spoilt = bytearray(packed)
    spoilt[random.integers(len(spoilt))] ^= 0x10
    data.id.write_direct_chunk((0,) * rows.ndim, bytes(spoilt))
    return "has a compressed chunk with a flipped bit"


def _spoil(file: h5py.File, name: str, random: np.random.Generator) -> str:
    """Write nonsensical numbers in one row or in all."""
    rows = file[name][()]
    if rows.dtype.kind not in "iuf" or not rows.size:
        del file[name]
        return "is missing"
    if rows.dtype.kind == "f":
        values = [np.nan, np.inf, -np.inf, np.finfo(rows.dtype).max, -np.finfo(rows.dtype).max, 0, -1]
    else:
        values = [0, np.iinfo(rows.dtype).max, np.iinfo(rows.dtype).min]
    value = values[random.integers(len(values))]
    flat = rows.reshape(-1).copy()
    place = int(random.integers(flat.size))
    everywhere = random.random() < 0.3
    flat[slice(None) if everywhere else place] = value
    file[name][...] = flat.reshape(rows.shape)
    return f"is {value} {'everywhere' if everywhere else f'at place {place}'}"
