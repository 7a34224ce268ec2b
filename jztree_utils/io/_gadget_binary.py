"""Binary snapshots of Gadget-1/2, formats 1 and 2, in both byte orders, one file at a time.

The format: users' guide of Gadget-2 (Springel 2005, MNRAS 364, 1105), section 6. A file is a sequence of blocks, each
between two 4-byte integers with its length in bytes. In format 2, a small block with the name precedes each block. A
block has the particles of all types, one type after the other. By default, Gadget-4 writes the same format with another
header.
"""

from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from ._columns import Column, Survey
from ._errors import SnapshotError
from ._header import SnapshotHeader, checked_box, checked_header
from ._plain_rows import Place, RawPart, Streams, open_raw
from ._read_options import ReadOptions

_HEADER_BYTES = 256
_HEADER = np.dtype(
    [
        ("npart", "u4", 6),
        ("mass", "f8", 6),
        ("time", "f8"),
        ("redshift", "f8"),
        ("flag_sfr", "i4"),
        ("flag_feedback", "i4"),
        ("npart_total", "u4", 6),
        ("flag_cooling", "i4"),
        ("num_files", "i4"),
        ("boxsize", "f8"),
        ("omega0", "f8"),
        ("omega_lambda", "f8"),
        ("hubble", "f8"),
        ("flag_age", "i4"),
        ("flag_metals", "i4"),
        ("npart_total_high", "u4", 6),
    ]
)
_NAMES = {"pos": "POS", "vel": "VEL", "id": "ID", "mass": "MASS", "internal_energy": "U"}
_GAS = 0
_ADVICE = "write it as HDF5 (SnapFormat=3), or with the option GADGET2_HEADER of Gadget-4"


class _Blocks(NamedTuple):
    """An open file whose blocks are read in sequence."""

    path: Path
    file: IO[bytes]
    order: Literal["<", ">"]  # byte order, in the notation of NumPy dtypes
    labelled: bool

    def number(self) -> int:
        """Read the next 4-byte integer. Raises EOFError at the end of the file."""
        bytes_ = self.file.read(4)
        if len(bytes_) < 4:
            raise EOFError("it ends too early")
        return int(np.frombuffer(bytes_, f"{self.order}u4")[0])

    def label(self) -> str | None:
        """Read the name before a block in format 2; None in format 1."""
        if not self.labelled:
            return None
        if self.number() != 8:
            raise EOFError("a block has no name")
        name = self.file.read(8)[:4].decode("latin-1").strip()
        self.number()
        return name


def survey_binary(path: Path, ptype: int | None, options: ReadOptions) -> Survey:
    """Survey one binary file.

    Args:
        path: The file.
        ptype: The particle type; None to read only the header.
        options: Options for reading the snapshot.

    Raises:
        SnapshotError: If the file is truncated, or its header or a block has a wrong length.
    """
    if options.names:
        raise SnapshotError(
            f"{path} is a binary snapshot of Gadget, which has no dataset names; leave the names of datasets out."
        )
    with open_raw(path) as streams:
        blocks = _begin(path, streams)
        entries = _read_header(blocks)
        header = _header(path, entries, options)
        here = tuple(int(n) for n in entries["npart"])
        order = ", big-endian" if blocks.order == ">" else ""
        title = f"Gadget snapshot of format {2 if blocks.labelled else 1}{order}"
        if ptype is None:
            return Survey(title, header, here, None)
        columns, places = _find_columns(blocks, entries, ptype, header.redshift)
    num = here[ptype] if 0 <= ptype < len(here) else 0
    return Survey(title, header, here, RawPart(path=path, num=num, columns=columns, places=places))


def _begin(path: Path, streams: Streams) -> _Blocks:
    """Return the blocks of a file, with the byte order and format from its first eight bytes."""
    file = streams.file
    begin = file.read(8)
    file.seek(0)
    labelled = begin[4:] == b"HEAD"
    length = 8 if labelled else _HEADER_BYTES
    order: Literal["<", ">"] = ">" if int.from_bytes(begin[:4], "big") in (length, *range(100, 4097)) else "<"
    return _Blocks(path, file, order, labelled)


def _read_header(blocks: _Blocks) -> Any:
    """Read the entries of the header. Raises SnapshotError if it is not a Gadget-2 header."""
    blocks.label()
    length = blocks.number()
    if length != _HEADER_BYTES:
        raise SnapshotError(
            f"{blocks.path} is a binary snapshot with a header of {length} bytes, but it must have "
            f"{_HEADER_BYTES} bytes, like that of Gadget-2; {_ADVICE}."
        )
    bytes_ = blocks.file.read(length)
    if len(bytes_) < length or blocks.number() != length:
        raise EOFError("its header is cut off")
    return np.frombuffer(bytes_, _HEADER.newbyteorder(blocks.order), count=1)[0]


def _header(path: Path, entries: Any, options: ReadOptions) -> SnapshotHeader:
    high = entries["npart_total_high"].astype(np.uint64) << np.uint64(32)
    total = tuple(int(n) for n in entries["npart_total"].astype(np.uint64) + high)
    num_files = max(1, int(entries["num_files"]))
    if num_files == 1 and not any(total):  # some codes for initial conditions write this
        total = tuple(int(n) for n in entries["npart"])
    header = SnapshotHeader(
        boxsize=checked_box([entries["boxsize"]], str(path)) if options.box is None else options.box,
        time=float(entries["time"]),
        redshift=float(entries["redshift"]),
        omega0=float(entries["omega0"]),
        omega_lambda=float(entries["omega_lambda"]),
        hubble=float(entries["hubble"]),
        mass_table=tuple(float(mass) for mass in entries["mass"]),
        npart_total=total,
        num_files=num_files,
    )
    return options.complete(checked_header(header, str(path)))


def _find_columns(
    blocks: _Blocks, entries: Any, ptype: int, redshift: float
) -> tuple[dict[str, Column], dict[str, Place]]:
    """Find the columns of one type and the start of their rows. Raises SnapshotError if a block has a wrong length."""
    npart = entries["npart"].astype(np.int64)
    gas = npart * (np.arange(len(npart)) == _GAS)
    held = {"mass": npart * (entries["mass"] == 0), "internal_energy": gas}
    columns: dict[str, Column] = {}
    places: dict[str, Place] = {}
    if not 0 <= ptype < len(npart) or npart[ptype] == 0:
        return columns, places
    factor = float((1 + redshift) ** -0.5)
    for name, label in _NAMES.items():
        rows = held.get(name, npart)
        # Internal energies follow the masses of other types, even if gas has a shared mass.
        if not (rows[ptype] or (ptype == _GAS and rows.any())) or not _go_to(blocks, label):
            continue
        width = 3 if name in ("pos", "vel") else 1
        start = blocks.file.tell() + 4
        try:
            itemsize = _itemsize(blocks, label, int(rows.sum()) * width)
        except SnapshotError:
            if blocks.labelled or name != "internal_energy":
                raise
            continue  # without labels, another block may follow the masses
        if rows[ptype] == 0:
            continue
        before = int(rows[:ptype].sum()) * width * itemsize
        kind = "u" if name == "id" else "f"
        columns[name] = Column(
            name=f"block {label}",
            stored=np.dtype(f"{blocks.order}{kind}{itemsize}"),
            shape=(int(rows[ptype]), 3) if width == 3 else (int(rows[ptype]),),
            factor=factor if name == "vel" else 1.0,
        )
        places[columns[name].name] = Place(start + before)
    return columns, places


def _go_to(blocks: _Blocks, name: str) -> bool:
    """Go to the named block from the current position; return False without one. Format 1 has a fixed block order."""
    while True:
        place = blocks.file.tell()
        try:
            label = blocks.label()
        except EOFError:
            blocks.file.seek(place)
            return False
        if label is None or label == name:
            return label is not None or _more(blocks)
        blocks.file.seek(blocks.number() + 4, 1)


def _more(blocks: _Blocks) -> bool:
    more = bool(blocks.file.read(1))
    if more:
        blocks.file.seek(-1, 1)
    return more


def _itemsize(blocks: _Blocks, name: str, numbers: int) -> int:
    """Return the bytes of each number of a block, 4 or 8, from its length. The position is then after the block.

    Blocks of more than 4 GB exist. They store the lower 32 bits of their lengths on both sides.
    """
    report = blocks.number()
    start = blocks.file.tell()
    for itemsize in (4, 8):
        length = numbers * itemsize
        if length % 2**32 != report:
            continue
        blocks.file.seek(start + length)
        if blocks.number() == report:
            return itemsize
        blocks.file.seek(start)
    raise SnapshotError(
        f"The block {name} of {blocks.path} has {report} bytes, but it must have {4 * numbers} or {8 * numbers}; the "
        f"file is truncated, or has blocks in another order; {_ADVICE}."
    )
