"""The error if the published package jz-tree, which has the same import name, is also installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jztree

ADVICE = "uninstall jztree-native, jztree, jztree-cu12, jztree-cu13, and install the package that you want."


def said(folder: Path, first: bool) -> str:
    """Return the last line of an import that searches a folder before or after all others.

    It runs without site-packages (-S), because an editable installation takes precedence over any folder.
    """
    sources = str(Path(jztree.__file__).parents[1])
    folders = [str(folder), sources] if first else [sources, str(folder)]
    code = f"import sys; sys.path[:0] = {folders}; import jztree"
    ended = subprocess.run([sys.executable, "-S", "-P", "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    return ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["jztree", "jztree-cu12", "jztree-cu13"])
def test_installed_distribution_of_the_same_name_raises(name: str, tmp_path: Path) -> None:
    message = tmp_path / f"{name.replace('-', '_')}-1.2.3.dist-info"
    message.mkdir()
    (message / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
    sentence = said(tmp_path, first=False)
    assert sentence.startswith("ImportError: the published package jz-tree is installed in this environment")
    assert f"({name} 1.2.3)" in sentence
    assert sentence.endswith(ADVICE)


def test_files_of_another_package_raise(tmp_path: Path) -> None:
    (tmp_path / "jztree").mkdir()
    for name in ("__init__.py", "_distributions.py"):
        shutil.copy(Path(jztree.__file__).parent / name, tmp_path / "jztree")
    (tmp_path / "jztree" / "tools.py").touch()
    sentence = said(tmp_path, first=True)
    assert "(its file tools.py)" in sentence
    assert sentence.endswith(ADVICE)
