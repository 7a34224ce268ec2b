"""Every Python block of the README and of docs/ runs, those of one page in one namespace, in a folder of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# What it prints is that of four devices, so it has a process of its own.
GUIDE = ROOT / "docs" / "multi_device.md"


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """Line number and text of each Python block."""
    text = page.read_text()
    return [(text.count("\n", 0, m.start(1)), m[1]) for m in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != GUIDE and python_blocks(page)], ids=lambda page: page.name
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for line, block in python_blocks(page):
        # Empty lines in front make tracebacks name the line of the page.
        exec(compile("\n" * line + block, str(page), "exec"), namespace)
    assert namespace, "a page with Python blocks defines something"


def test_guide_prints_what_it_says_on_four_devices(tmp_path: Path) -> None:
    """All lines that the page shows come out, in any order: devices print when they like."""
    script = "\n".join(block for _, block in python_blocks(GUIDE))
    environ = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    environ.pop("PJRT_NPROC", None)
    paths = [path for path in sys.path if path and "site-packages" not in path]
    command = [sys.executable, "-P", "-c", f"import sys; sys.path[:0] = {paths!r}\n{script}"]
    run = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    shown = re.findall(r"^```text\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    for line in "".join(shown).splitlines():
        # Devices that print at the same time may share a line.
        assert line in run.stdout, f"{line!r} is not in\n{run.stdout}"


def test_local_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
