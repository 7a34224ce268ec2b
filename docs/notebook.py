"""Make the quickstart notebook from its page: python docs/notebook.py

As a Sphinx extension, make it when the site is built; git does not track it. Text becomes Markdown cells and Python
blocks become code cells, without output. Pictures of the page are left out, because they are not downloaded with the
notebook.
"""

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "quickstart.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")


def setup(app: Any) -> dict[str, bool]:
    """Connect the extension; Sphinx calls this."""
    app.connect("config-inited", lambda _app, _config: make())  # before Sphinx checks that the file exists
    return {"parallel_read_safe": True}


def make() -> None:
    NOTEBOOK.write_text(notebook_of(PAGE.read_text()))


def notebook_of(page: str) -> str:
    """Return the notebook of a page in Markdown, as JSON."""
    without_output = re.sub(r"^```text\n.*?^```\n|^!\[[^\]]*\]\([^)]*\)\n\n?", "", page, flags=re.M | re.S)
    parts = re.split(r"^```python\n(.*?)^```\n", without_output, flags=re.M | re.S)
    cells = [cell(text.strip("\n"), i, "code" if i % 2 else "markdown") for i, text in enumerate(parts) if text.strip()]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def cell(text: str, number: int, kind: str) -> dict[str, Any]:
    """Return a cell that has not been run."""
    run = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, **run, "source": text.splitlines(keepends=True)}


if __name__ == "__main__":
    make()
