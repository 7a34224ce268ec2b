"""What is said where another package of the same name is installed."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["jztree-cu12", "jztree-cu13"])
def test_another_distribution_of_this_name_is_an_error(name: str, tmp_path: Path) -> None:
    told = tmp_path / f"{name.replace('-', '_')}-1.2.3.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import jztree"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        f"ImportError: {name} 1.2.3 is installed in this environment, and its"
    )
    assert f"uninstall both, jztree and {name}, and install the one that is wanted." in ended.stderr
