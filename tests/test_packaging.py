"""What the package says of itself agrees in all the places where it does."""

import re
import tomllib
from pathlib import Path
from typing import Any

import jztree

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_version_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert jztree.__version__ == version
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == version  # type: ignore[index]
    assert version in (ROOT / "CHANGELOG.md").read_text()


def test_the_licence_is_the_one_that_is_told() -> None:
    assert PROJECT["project"]["license"] == "MIT"
    assert re.search(r"^license: MIT$", (ROOT / "CITATION.cff").read_text(), re.M)
    licences = [(ROOT / path).read_text() for path in PROJECT["project"]["license-files"]]
    assert all("MIT License" in text for text in licences)
    author = PROJECT["project"]["authors"][0]["name"]
    assert f"Copyright (c) 2026 {author}" in licences[0]


def test_kernels_are_compiled_with_the_oldest_jax_that_may_run_them() -> None:
    """JAX refuses what was compiled with newer headers than its own."""
    (needed,) = (req for req in PROJECT["project"]["dependencies"] if req.startswith("jax>="))
    major, minor = map(int, needed.removeprefix("jax>=").split("."))
    assert f"jax>={major}.{minor},<{major}.{minor + 1}" in PROJECT["build-system"]["requires"]


def test_every_extra_that_a_message_names_exists() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    sources = [path for folder in ("jztree", "jztree_utils") for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r"jztree\[(\w+)\]", path.read_text())}
    assert named
    assert named <= extras.keys()
