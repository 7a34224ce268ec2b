"""Checks of the names of outputs that need no file, before JAX is imported, which takes seconds."""

import os
import re
from argparse import Namespace

from .arguments import PARQUET

OUTPUTS = ("output", "plot", "snapshot_output", "group_ids_output")  # options for output file names
NUMPY_SUFFIX, TABLE_SUFFIX = ".npz", ".parquet"
_PICTURES = (".png", ".pdf", ".svg")
_FOREIGN = (*_PICTURES, TABLE_SUFFIX, ".npy", NUMPY_SUFFIX, ".txt", ".csv", ".json", ".toml", ".py")
# The formats of matplotlib. An installation may lack some; `jztree_utils.plot` checks this.
_FORMATS = ("avif", "eps", "gif", "jpeg", "jpg", "pdf", "pgf", "png", "ps", "raw", "rgba", "svg", "svgz", "tif", "tiff",
            "webp")  # fmt: skip
_PAGES = (".html", ".htm")


def check_names_of_outputs(args: Namespace) -> None:
    """Raise ValueError if the name of an output has a wrong suffix or placeholder, or if two outputs are one file."""
    placeholders = ("n", "name") if hasattr(args, "snapshot") else ()
    outputs = {option: getattr(args, option) for option in OUTPUTS if getattr(args, option, None) is not None}
    for option, output in outputs.items():
        foreign = [word for word in re.findall(r"\{([^{}]*)\}", output) if word not in placeholders]
        if foreign:
            advice = "use {n} for the number of a snapshot, or {name} for its name" if placeholders else "leave it out"
            raise ValueError(f"The output {output} has the unknown placeholder {{{foreign[0]}}}; {advice}.")
        if option == "plot" or args.command == "plot":
            check_picture_suffix(output)
        elif args.command == "view":
            check_page_suffix(output)
        elif args.command == "convert":
            check_layout_suffix(output, args.layout)
        else:
            check_suffix(output)
    check_different([*outputs.values()])


def check_suffix(output: str) -> None:
    """Raise ValueError if an HDF5 output has the suffix of another format."""
    suffix = _suffix(output)
    if suffix in _FOREIGN:
        advice = "; --plot and jztree plot draw pictures" if suffix in _PICTURES else ""
        if suffix == TABLE_SUFFIX:
            advice = "; jztree convert makes a Parquet file of a catalogue"
        raise ValueError(f"The output {output} would be an HDF5 file; give it a name in .hdf5{advice}.")


def check_picture_suffix(output: str) -> None:
    """Raise ValueError if a picture does not have the suffix of a format of matplotlib."""
    if _suffix(output)[1:] not in _FORMATS:
        raise ValueError(
            f"The picture {output} does not have the suffix of a known format; use one of {', '.join(_FORMATS)}."
        )


def check_page_suffix(output: str) -> None:
    """Raise ValueError if a view does not have the suffix of an HTML file."""
    if _suffix(output) not in _PAGES:
        raise ValueError(f"The view {output} would be an HTML file; give it a name in .html.")


def check_layout_suffix(output: str, layout: str | None) -> None:
    """Raise ValueError if the suffix of an output does not fit its layout; None if the input decides the layout."""
    suffix = _suffix(output)
    kinds = {"numpy": ("a NumPy file of several arrays", NUMPY_SUFFIX), PARQUET: ("a Parquet file", TABLE_SUFFIX)}
    if layout not in kinds:
        if layout is not None or suffix not in (".npy", NUMPY_SUFFIX, TABLE_SUFFIX):
            check_suffix(output)
        return
    words, required = kinds[layout]
    if suffix != required:
        raise ValueError(f"The output {output} would be {words}; give it a name in {required}.")


def check_different(outputs: list[str]) -> None:
    """Raise ValueError if two outputs are one file."""
    places = [os.path.realpath(output) for output in outputs]
    for place, output in zip(places, outputs, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"Two outputs have the same name, {output}; give them different names.")


def _suffix(output: str) -> str:
    return os.path.splitext(output)[1].lower()
