"""Sphinx extension: the tables of all columns of groups and subhaloes.

The build writes a catalogue of the sample with all properties in each layout, so the page agrees with the files.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from jztree.substructure import DEFINITIONS

_MARK = "<!-- the table -->"
_GROUPS = {"native": "Groups", "gadget4": "Group", "swift": "Groups"}
_OTHER_THAN_COLUMNS = ("GroupAscale", "GroupIDs")


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension; Sphinx calls this."""
    app.connect("source-read", fill_in)
    return {"parallel_read_safe": True}


def fill_in(_app: Any, page: str, source: list[str]) -> None:
    """Insert the table into its page."""
    if page in TABLES:
        source[0] = source[0].replace(_MARK, TABLES[page]())


def table_of_subhaloes() -> str:
    """Return the table in Markdown: name, definition and paper of each column."""
    lines = ["| column | definition | paper |", "|---|---|---|"]
    for name, (_, words, paper) in DEFINITIONS.items():
        definition = words.replace("|", "\\|")
        lines.append(f"| `{name}` | {definition} | {paper} |")
    return "\n".join(lines)


def table_of_groups() -> str:
    """Return the table in Markdown: name, definition with its source, kind of unit, and names in other layouts."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {layout: Path(folder, f"{layout}.hdf5") for layout in _GROUPS}
        for layout, path in paths.items():
            run("fof", "sample", "--properties", "--layout", layout, "-o", path)
        found = {layout: columns_of(path, _GROUPS[layout]) for layout, path in paths.items()}
    lines = ["| native | what it is | unit | gadget4 | swift |", "|---|---|---|---|---|"]
    for name, column in found["native"].items():
        others = [name_of(column, found[layout]) for layout in ("gadget4", "swift")]
        what, unit = column.text().replace("|", "\\|"), column.attrs["kind"].replace("*", " × ")
        lines.append(" | ".join(["", f"`{name}`", what, unit, *others, ""]).strip())
    return "\n".join(lines)


def run(*arguments: Any) -> None:
    """Run a command of the command line."""
    subprocess.run([sys.executable, "-m", "jztree", *map(str, arguments), "-q"], check=True)


class Column:
    """A dataset of a file, usable after the file is closed."""

    def __init__(self, data: h5py.Dataset) -> None:
        self.values, self.attrs = data[()], dict(data.attrs)

    def text(self) -> str:
        """Return the description that the file stores for the column."""
        text = self.attrs.get("description", self.attrs.get("Description", ""))
        return text.decode() if isinstance(text, bytes) else text


def columns_of(path: Path, group: str) -> dict[str, Column]:
    """Return the columns of a file by name."""
    with h5py.File(path) as file:
        return {name: Column(data) for name, data in file[group].items() if name not in _OTHER_THAN_COLUMNS}


def name_of(column: Column, others: dict[str, Column]) -> str:
    """Return the names of a column in another layout, found by its description, otherwise by its values.

    Descriptions come first because units may differ.
    """
    said = [name for name, other in others.items() if other.text() == column.text()]
    same = said or [name for name, other in others.items() if np.array_equal(column.values, other.values)]
    return " ".join(f"`{name}`" for name in same) or "—"


TABLES = {"properties": table_of_groups, "subhaloes": table_of_subhaloes}
