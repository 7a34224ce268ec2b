"""Find the files of one snapshot, by their names and contents."""

import filecmp
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import h5py

from ._errors import SnapshotError
from ._files import check_is_file, list_folder, unreadable

_PART_NAME = re.compile(r"(?P<base>.+)\.(?P<part>[0-9]+)(?P<suffix>(\.(hdf5|h5))?)", re.IGNORECASE)
_PART = re.compile(r"\.\d+$")
_SUFFIXES = (".hdf5", ".h5")
_MAGIC = {b"\x89HDF\r\n\x1a\n": "hdf5", b"\x93NUMPY": "npy", b"PK\x03\x04": "npz", b"PK\x05\x06": "npz"}
_LONGEST_HEADER = 4096


def kind_of_file(path: Path) -> str | None:
    """Return the file type from the first bytes: "hdf5", "npy", "npz", "binary" (Gadget's own formats), or None.

    Raises:
        SnapshotError: If the file cannot be read.
    """
    check_is_file(path)
    try:
        with open(path, "rb") as file:
            begin = file.read(_LONGEST_HEADER + 8)
    except OSError as error:
        raise unreadable(path, error) from None
    for magic, kind in _MAGIC.items():
        if begin.startswith(magic):
            return kind
    if is_gadget_record(begin):
        return "binary"
    return "hdf5" if h5py.is_hdf5(path) else None  # HDF5 may follow a block of other data


def base_name(path: Path) -> str:
    """Return the name of a snapshot or a catalogue without suffix and part number."""
    return _PART.sub("", path.stem if path.suffix else path.name)


def number_in_name(path: Path) -> str:
    """Return the digits at the end of the name of a snapshot or a catalogue; empty if it has none."""
    digits = re.search(r"(\d+)\D*$", base_name(path))
    return digits[1] if digits else ""


def is_gadget_record(begin: bytes) -> bool:
    """Return whether a file begins with a header in a Fortran record (format 1), or with its label (format 2)."""
    for length in (int.from_bytes(begin[:4], "little"), int.from_bytes(begin[:4], "big")):
        closed = begin[4 + length : 8 + length] == begin[:4]
        if closed and ((length == 8 and begin[4:8] == b"HEAD") or 100 <= length <= _LONGEST_HEADER):
            return True
    return False


def file_of(path: Path) -> Path:
    """Return ``path``, or a file of the only snapshot in the folder ``path``.

    Raises:
        SnapshotError: If a folder holds no snapshot or more than one.
    """
    if not os.path.isdir(path):
        return path
    files = [file for file in list_folder(path) if file.suffix.lower() in _SUFFIXES]
    files = files or [file for file in list_folder(path) if file.is_file() and kind_of_file(file) is not None]
    if not files:
        raise SnapshotError(
            f"The folder {path} holds no snapshot: no .hdf5 or .h5 file, and no other recognised file; give a "
            "snapshot, or its folder."
        )
    matches = {file: _PART_NAME.fullmatch(file.name) for file in files}
    bases = {match["base"] + match["suffix"] for match in matches.values() if match}
    # SWIFT puts a file with virtual datasets of all parts next to them; it adds no particles.
    files = [file for file in files if matches[file] or file.name not in bases]
    names = sorted({match["base"] if match else file.name for file, match in matches.items() if file in files})
    if len(names) > 1:
        listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise SnapshotError(f"The folder {path} holds more than one snapshot ({listed}); give a file of one snapshot.")
    return files[0]


def all_parts(path: Path, num_files: int) -> list[Path]:
    """Return all files of a snapshot in ``num_files``, including ``path``, in order.

    Raises:
        SnapshotError: If the name of ``path`` has no part number, or a part is missing (the message names it).
    """
    if num_files <= 1:
        return [path]
    match = _PART_NAME.fullmatch(path.name)
    if match is None:
        raise SnapshotError(
            f"{path} is one of {num_files} files according to its header, but its name does not end in a part number "
            "such as .0.hdf5; give the parts their original names."
        )
    result = _numbered_files(path, match)
    num_missing = num_files - sum(number < num_files for number in result)
    if num_missing:
        missing = next(number for number in range(num_files) if number not in result)
        name = path.with_name(f"{match['base']}.{missing}{match['suffix']}")
        more = f" and {num_missing - 1} more" if num_missing > 1 else ""
        raise SnapshotError(
            f"Part {missing} of the {num_files} parts of this snapshot is missing{more}; put {name} into their folder."
        )
    return [result[number] for number in range(num_files)]


def check_alone(path: Path, folder: Path) -> None:
    """Raise SnapshotError if ``path`` is a whole snapshot according to its header, but its folder has more parts."""
    match = _PART_NAME.fullmatch(path.name)
    numbered = _numbered_files(path, match) if match else {}
    if len(numbered) > 1:
        raise SnapshotError(
            f"The folder {folder} holds {len(numbered)} files, but according to its header {path.name} is a whole "
            "snapshot; give a file."
        )


def _numbered_files(path: Path, match: re.Match[str]) -> dict[int, Path]:
    """Return the files in the folder of ``path`` whose names differ only in the part number, by that number.

    Raises:
        SnapshotError: If two files have the same number, such as 1 and 01.
    """
    result: dict[int, Path] = {}
    for file in list_folder(path.parent):
        part_name = _PART_NAME.fullmatch(file.name)
        if part_name and (part_name["base"], part_name["suffix"]) == (match["base"], match["suffix"]):
            number = int(part_name["part"])
            if number in result:
                raise SnapshotError(f"{result[number]} and {file} have the same part number; remove one of them.")
            result[number] = file
    return result


def parts_beside(path: Path) -> list[Path]:
    """Return the file ``path``, and the files whose names differ from its name only in the part number."""
    match = _PART_NAME.fullmatch(path.name)
    return [path, *(_numbered_files(path, match).values() if match else ())]


def check_no_copies(paths: Sequence[Path]) -> None:
    """Raise SnapshotError if two of several files are the same, by a link or as a copy.

    Files are read only if others have the same size, and in full only if a piece from the middle is also the same.
    """
    alike: dict[tuple[int, bytes], list[Path]] = {}
    sizes = [path.stat().st_size for path in paths]
    occurring = Counter(sizes)
    for path, size in zip(paths, sizes, strict=True):
        if occurring[size] > 1:
            alike.setdefault((size, _piece(path, size // 2)), []).append(path)
    for first, *others in alike.values():
        for other in others:
            if filecmp.cmp(first, other, shallow=False):
                raise SnapshotError(
                    f"{first} and {other} are copies of the same file; give each part of the snapshot once."
                )


def _piece(path: Path, place: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(place)
            return file.read(_LONGEST_HEADER)
    except OSError as error:
        raise unreadable(path, error) from None
