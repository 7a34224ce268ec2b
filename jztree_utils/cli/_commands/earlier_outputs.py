"""Check whether an output already exists and equals the output that a call would write.

An output stores the options that it depends on, and enough data to identify its snapshot: the number of particles, the
time, the size of its files, and a checksum of parts of the first file. The modification time is ignored, because copies
have another date. A picture stores none of this, so it counts only if it is next to its catalogue.
"""

import hashlib
import json
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jztree import __version__

from ... import io
from .._report import say
from .arguments import B
from .header_arguments import FLAGS
from .output_names import OUTPUTS

READING = ("type", "format", "pos", "vel", "mass", "id", "boxsize", *FLAGS)
_OF_SUBHALOES = ("subhaloes", "softening", "min_bound", "candidates")
_OPTIONS = {
    "fof": (
        *READING,
        *("b", "rlink", "npart_min", "attach", "attach_within", "properties", "overdensity", "matter", "centre"),
        *("no_ids", "snapshot_files", *_OF_SUBHALOES),
    ),
    "knn": (*READING, "k", "kernel", "lists"),
    "hdbscan": (*READING, "min_cluster_size", "min_samples", "epsilon", "method", "single"),
    "xi": (*READING, "bins", "linear", "projected", "los"),
}
_PIECE = 2**16  # bytes per piece, at the start, middle and end of a file, for the checksum


def made_with(args: Namespace, path: Path, options: io.ReadOptions | None) -> str:
    """Return the metadata that an output stores about its call, as JSON.

    Args:
        args: The arguments of the call.
        path: The snapshot.
        options: How it is read.

    Raises:
        SnapshotError: If the snapshot does not exist.
    """
    return json.dumps(_record(args, path, options))


def _record(args: Namespace, path: Path, reading: io.ReadOptions | None) -> dict[str, Any]:
    options = {name: getattr(args, name) for name in _OPTIONS[args.command]}
    if args.command == "fof":
        options["b"] = B if args.b is None and args.rlink is None else args.b
        options["attach"] = ",".join(sorted(args.attach.split(","))) if args.attach else None
        options["attach_within"] = args.attach_within if args.attach else None
        if not args.subhaloes:  # earlier versions do not record them
            options = {name: value for name, value in options.items() if name not in _OF_SUBHALOES}
    elif args.command == "knn":
        options["kernel"] = args.kernel or ("knn" if args.density else None)
        options["lists"] = args.lists or options["kernel"] is None
    return {"jztree": __version__, "command": args.command, **options, "snapshot": _identity(path, reading)}


def _identity(path: Path, options: io.ReadOptions | None) -> dict[str, Any]:
    """Return the data that identify a snapshot."""
    parts, header = io.find_parts(path, options), io.read_header(path, options)
    return {
        "particles": list(header.npart_total),
        "time": header.time,
        "redshift": header.redshift,
        "bytes": sum(part.stat().st_size for part in parts),
        "checksum": _checksum(parts[0]),
    }


def _checksum(path: Path) -> str:
    """Return the checksum of three pieces of a file. These contain particles, so they differ between runs."""
    result, size = hashlib.sha256(), path.stat().st_size
    with open(path, "rb") as file:
        for place in (0, size // 2, max(size - _PIECE, 0)):
            file.seek(place)
            result.update(file.read(_PIECE))
    return result.hexdigest()


def are_there(
    args: Namespace, path: Path, options: io.ReadOptions | None, files: Sequence[str], picture: str | None
) -> bool:
    """Return whether the outputs of a snapshot exist, for a call whose output names depend on the snapshot.

    Args:
        args: The arguments of the call.
        path: The snapshot.
        options: How it is read.
        files: Names of the HDF5 outputs.
        picture: Name of the picture, None without one.

    Raises:
        OutputError: If an output of another call exists. The message has a remedy.
    """
    outputs = [*files, *([] if picture is None else [picture])]
    templates = [getattr(args, name, None) for name in OUTPUTS]
    if args.overwrite or not files or not any("{n" in name for name in templates if name is not None):
        return False
    held = [name for name in files if Path(name).exists()]
    for name in held:
        _check_same(args, name, _record(args, path, options))
    # A picture that is older than the catalogue belongs to another catalogue.
    if len(held) < len(files) or (picture is not None and not _is_newer(picture, files[0])):
        return False
    names = " and ".join(outputs)
    say(f"{names} exists already, with the same options, so {path} is skipped; --overwrite writes it again.")
    return True


def _is_newer(path: str, reference: str) -> bool:
    return os.path.exists(path) and os.stat(path).st_mtime_ns >= os.stat(reference).st_mtime_ns


def _check_same(args: Namespace, output: str, required: dict[str, Any]) -> None:
    """Raise OutputError, with the difference, unless ``output`` was made with the ``wanted`` options."""
    difference = _difference(output, required)
    layout = io.catalogue_layout(output)
    if difference is None and layout is not None and layout != args.layout:
        difference = f"has the layout {layout}, and --layout is {args.layout}"
    if difference is not None:
        raise io.OutputError(
            f"{output} exists already, but {difference}; write it again with --overwrite, or give another name."
        )


def _difference(output: str, required: dict[str, Any]) -> str | None:
    """Describe the first difference between the metadata of an output and ``wanted``; None if there is none."""
    try:
        report = json.loads(io.read_made_with(output) or "{}")
    except (io.SnapshotError, json.JSONDecodeError):
        report = {}
    if not report:
        return "does not have the options that it was made with"
    for name, value in required.items():
        if (held := report.get(name)) == value:
            continue
        if name == "snapshot":
            return "was made from another snapshot"
        if name in ("jztree", "command"):
            return f"was made by {_in_words(name, held)}, but this is {_in_words(name, value)}"
        return f"was made {_in_words(name, held)}, but this call is {_in_words(name, value)}"
    return None


def _in_words(name: str, value: Any) -> str:
    """Return words such as ``with --npart-min 20``."""
    if name in ("jztree", "command"):
        return f"jztree {value}"
    flag = f"-{name}" if len(name) == 1 and name != "b" else f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return f"without {flag}"
    return f"with {flag}" if value is True else f"with {flag} {value}"
