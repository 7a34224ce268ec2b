"""The pictures of the gallery: what the commands of its page make, when the site is built.

Used by Sphinx as an extension. The commands are run in the folder `FOLDER`, beside the page, which git does not know.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "gallery"
_PAGE = Path(__file__).parent / "gallery.md"


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("config-inited", lambda _app, _config: make())  # before Sphinx looks whether they are there
    return {"parallel_read_safe": True}


def commands() -> list[list[str]]:
    """The arguments of each call of ``jztree`` on the page."""
    lines = _PAGE.read_text().splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("jztree ")]


def make() -> None:
    """Run them, unless what they write is there already. Remove the folder to have all made anew."""
    FOLDER.mkdir(exist_ok=True)
    for arguments in commands():
        if not (FOLDER / arguments[arguments.index("-o") + 1]).exists():
            subprocess.run([sys.executable, "-m", "jztree", *arguments, "-q"], cwd=FOLDER, check=True)
