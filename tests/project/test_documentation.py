"""Every Python block of the README and of docs/ must run, with one namespace and one folder per page, and print the
output shown on the page. So must the notebook. Drawings must be reproducible, and links must have targets.
"""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jztree_utils.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
# Its output is for four devices, so it runs in a separate process.
GUIDE = DOCS / "multi_device.md"
# Its blocks also run as cells of the notebook made from it.
QUICKSTART = DOCS / "quickstart.md"
# The commands of this page run between its Python blocks.
COMMANDS = DOCS / "snapshot_to_catalogue.md"
# Pages whose blocks need optional packages.
NEEDS = {"pytorch.md": "torch"}
SLOW = (COMMANDS, DOCS / "own_algorithms.md", DOCS / "properties.md")


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Return the line number and text of each block of a language."""
    text = page.read_text()
    return [
        (text.count("\n", 0, m.start(1)), m[1]) for m in re.finditer(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    ]


def run_block(page: Path, line: int, block: str, namespace: dict[str, object]) -> None:
    """Run a Python block, or a block of commands of ``jztree``."""
    if (line, block) in blocks(page, "python"):
        # Leading empty lines make tracebacks name the line of the page.
        exec(compile("\n" * line + block, str(page), "exec"), namespace)
        return
    for command in block.splitlines():
        program, *arguments = shlex.split(command)
        assert program == "jztree"
        assert main(arguments) == 0, command


def assert_printed(page: Path, printed: str) -> None:
    """Assert that all lines of the page were printed, in any order: devices print asynchronously or share a line."""
    for line in "".join(text for _, text in blocks(page, "text")).splitlines():
        assert line in printed, f"{line!r} is not in\n{printed}"


def load(script: Path) -> ModuleType:
    """Load a script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in SLOW else (), id=page.name)
        for page in PAGES
        if page not in (GUIDE, QUICKSTART) and blocks(page, "python")
    ],
)
def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for line, block in blocks(page, "(?:python|sh)" if page == COMMANDS else "python"):
        run_block(page, line, block, namespace)
    assert_printed(page, capsys.readouterr().out)


@pytest.fixture
def notebook_cells() -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(load(DOCS / "notebook.py").notebook_of(QUICKSTART.read_text()))["cells"]
    return cells


@pytest.mark.long
def test_notebook_runs(
    notebook_cells: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its cells are plain Python, so Jupyter is not needed."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for number, cell in enumerate(notebook_cells):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number} of the quickstart", "exec"), namespace)
    assert Path("halos.png").exists()
    assert_printed(QUICKSTART, capsys.readouterr().out)


def test_notebook_refers_to_no_image_files(notebook_cells: list[dict[str, Any]]) -> None:
    assert "](drawings/" in QUICKSTART.read_text()
    assert not [cell for cell in notebook_cells if "![" in "".join(cell["source"])]


@pytest.mark.long
def test_guide_prints_the_documented_output_on_four_devices(tmp_path: Path) -> None:
    script = "\n".join(block for _, block in blocks(GUIDE, "python"))
    four = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"  # the last value counts
    environ = {**os.environ, "XLA_FLAGS": four, "JAX_PLATFORMS": "cpu"}
    environ.pop("PJRT_NPROC", None)
    paths = [path for path in sys.path if path and "site-packages" not in path]
    command = [sys.executable, "-P", "-c", f"import sys; sys.path[:0] = {paths!r}\n{script}"]
    run = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert_printed(GUIDE, run.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "folder", "made_elsewhere"),
    [("draw", "drawings/", set()), ("charts", "drawings/performance/", {"against_n.png"})],
    ids=["drawings", "charts"],
)
def test_drawings_match_the_pages(script: str, folder: str, made_elsewhere: set[str], tmp_path: Path) -> None:
    """The first script compares the boundaries that it draws with the library's."""
    load(DOCS / "drawings" / f"{script}.py").main(tmp_path)
    shown = {name for page in PAGES for name in re.findall(rf"!\[[^\]]*\]\({folder}([^/)]+)\)", page.read_text())}
    assert {path.name for path in tmp_path.iterdir()} == shown - made_elsewhere
    assert {path.name for path in (DOCS / folder).glob("*.png")} == shown


def test_every_page_is_in_one_list_of_the_index() -> None:
    """A page has one place: tutorials, how-to guides, explanation or reference."""
    lists = re.findall(r"^```{toctree}\n(.*?)^```", (DOCS / "index.md").read_text(), re.M | re.S)
    lines = [line for text in lists for line in text.splitlines() if line and not line.startswith(":")]
    listed = sorted(re.sub(r"^.*<(.*)>$", r"\1", line) for line in lines)
    pages = {page.relative_to(DOCS).with_suffix("") for kind in ("*.md", "api/*.rst") for page in DOCS.glob(kind)}
    assert listed == sorted(map(str, pages - {Path("index")}))


def test_links_within_the_repository_resolve() -> None:
    for page in PAGES:
        for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text()):
            linked = page.parent / target if target else page
            built = linked == QUICKSTART.with_suffix(".ipynb")  # by `make docs`
            assert built or linked.exists(), f"{page.name} links to {target}"
            assert not heading or heading in headings(linked), f"{page.name} links to {target}#{heading}"


def headings(page: Path) -> set[str]:
    """Return the anchors of the headings of a page: lower case, with hyphens for spaces and no other characters."""
    titles = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
