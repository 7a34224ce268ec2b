"""Error messages about files. This module needs only the Python standard library."""

import contextlib
import difflib
import itertools
import os
from pathlib import Path

_MOST_NAMES = 1000  # of a folder, to be quick


def printable(text: str) -> str:
    """Return the text with escapes for line breaks, control characters and invalid bytes, which names may contain."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def missing_folder(output: str | os.PathLike[str]) -> str:
    """Return the error message for an output whose folder does not exist."""
    return f"The folder of the output {output} is missing; create the folder first."


def no_regular_file(output: str | os.PathLike[str]) -> str:
    """Return the error message for an output whose name belongs to a folder or a device."""
    return f"The output {output} exists and is not a regular file; choose another name."


def absent_file(path: Path) -> str:
    """Return the error message for a file that does not exist, with the most similar name in its folder."""
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        names = [entry.name for entry in itertools.islice(entries, _MOST_NAMES) if entry.name != path.name]
    similar_names = difflib.get_close_matches(path.name, names, 1)
    advice = f"; {path.parent / similar_names[0]} has a similar name" if similar_names else ""
    return printable(f"The file {path} does not exist; check the path{advice}.")
