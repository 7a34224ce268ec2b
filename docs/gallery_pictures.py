"""Sphinx extension: run the commands of the gallery page to make its pictures when the site is built.

The commands run in the folder `FOLDER`, next to the page; git does not track this folder.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "gallery"
_PAGE = Path(__file__).parent / "gallery.md"


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension; Sphinx calls this."""
    app.connect("config-inited", lambda _app, _config: make())  # before Sphinx checks that the pictures exist
    return {"parallel_read_safe": True}


def commands() -> list[list[str]]:
    """Return the arguments of each call of ``jztree`` on the page."""
    lines = _PAGE.read_text().splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("jztree ")]


def make() -> None:
    """Run the commands whose pictures do not exist yet. Remove the folder to make all of them again."""
    FOLDER.mkdir(exist_ok=True)
    for arguments in commands():
        if not (FOLDER / arguments[arguments.index("-o") + 1]).exists():
            subprocess.run([sys.executable, "-m", "jztree", *arguments, "-q"], cwd=FOLDER, check=True)
