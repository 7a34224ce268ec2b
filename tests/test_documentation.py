"""Every Python block of the README and of docs/ runs, those of one page in one namespace, in a folder of its own."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """Line number and text of each Python block."""
    text = page.read_text()
    return [(text.count("\n", 0, m.start(1)), m[1]) for m in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)]


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for line, block in python_blocks(page):
        # Empty lines in front make tracebacks name the line of the page.
        exec(compile("\n" * line + block, str(page), "exec"), namespace)
    assert namespace, "a page with Python blocks defines something"


def test_local_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
