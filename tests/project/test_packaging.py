"""The metadata of the package must be consistent in all places."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jax
import pytest
import yaml

import jztree
from jztree.kernels import native_info

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS: dict[str, Any] = PROJECT["dependency-groups"]


def test_version_is_the_same_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert jztree.__version__ == version
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == version  # type: ignore[index]
    assert version in (ROOT / "CHANGELOG.md").read_text()


def test_licence_files_match_the_metadata() -> None:
    assert PROJECT["project"]["license"] == "MIT"
    assert re.search(r"^license: MIT$", (ROOT / "CITATION.cff").read_text(), re.M)
    licences = [(ROOT / path).read_text() for path in PROJECT["project"]["license-files"]]
    assert all("MIT License" in text for text in licences)
    author = PROJECT["project"]["authors"][0]["name"]
    assert f"Copyright (c) 2026 {author}" in licences[0]


def test_kernels_are_compiled_with_the_oldest_supported_jax() -> None:
    """JAX refuses libraries compiled with headers newer than its own."""
    (needed,) = (req for req in PROJECT["project"]["dependencies"] if req.startswith("jax>="))
    major, minor = map(int, needed.removeprefix("jax>=").split("."))
    assert f"jax>={major}.{minor},<{major}.{minor + 1}" in PROJECT["build-system"]["requires"]


def test_conda_recipe_has_the_requirements_of_the_package() -> None:
    recipe = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text())
    needs = {
        section: {need for need in each if isinstance(need, str)} for section, each in recipe["requirements"].items()
    }
    project = PROJECT["project"]
    assert recipe["context"]["version"] == project["version"]
    expected = {f"python {project['requires-python']}", *project["dependencies"]}
    assert {need.replace(" ", "") for need in needs["run"]} == {need.replace(" ", "") for need in expected}
    built_with = {need.replace(" ", "") for need in needs["host"]}
    assert built_with == {"python", "pip", *PROJECT["build-system"]["requires"]}
    assert {need for need in needs["build"] if need.startswith("cmake")} == {
        f"cmake {need.removeprefix('cmake')}" for need in GROUPS["build"] if "cmake" in need
    }
    scripts = [f"{name} = {target}" for name, target in project["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    assert recipe["about"]["summary"] == project["description"]
    assert recipe["about"]["license"] == project["license"]
    assert recipe["about"]["license_file"] == project["license-files"]


def test_workflows_run_existing_targets_and_scripts() -> None:
    """Make commands must be targets of the Makefile, and scripts must exist."""
    lines = re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(), re.M)
    targets = {target for line in lines for target in line.split()}
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"].values()
        commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
        assert set(re.findall(r"\bmake ([a-z-]+)", "\n".join(commands))) <= targets, path.name
        assert all((ROOT / name).exists() for name in re.findall(r"^\.ci/\w+", "\n".join(commands), re.M)), path.name


def test_makefile_uses_presets_and_groups_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    presets = json.loads((ROOT / "CMakePresets.json").read_text())
    builds = {preset["name"] for preset in presets["buildPresets"]}
    used = set(re.findall(r"\$\(build\) (\w+)", makefile)) | set(re.findall(r"\(call emulate,(\w+)", makefile))
    assert {"dev", "emulated", "watched", "sanitized"} <= used <= builds
    groups = set(re.findall(r"\$\(VENV\)/group-(\w+)", makefile)) | set(re.findall(r"--group (\w+)", makefile))
    assert {"build", "test", "lint", "docs"} <= groups <= GROUPS.keys()
    (editable,) = PROJECT["tool"]["scikit-build"]["overrides"]
    (folder,) = (preset["binaryDir"] for preset in presets["configurePresets"] if preset["name"] == "dev")
    assert folder == f"${{sourceDir}}/{editable['build-dir']}"


def test_read_the_docs_builds_the_site_like_the_makefile() -> None:
    settings = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())
    commands = "\n".join(settings["build"]["jobs"]["install"])
    assert {"build", "docs"} == set(re.findall(r"--group (\w+)", commands)) <= GROUPS.keys()
    assert "--editable" in commands  # the pages of columns and pictures run the compiled library
    assert settings["sphinx"] == {"configuration": "docs/conf.py", "fail_on_warning": True}


def test_citation_has_the_papers_of_the_algorithms() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "type", "title", "abstract", "authors", "keywords", "license", "version"} <= citation.keys()
    titles = [paper["title"].lower() for paper in citation["references"]]
    sources = "".join(path.read_text() for path in (ROOT / "jztree/native").rglob("*") if path.suffix in (".h", ".cuh"))
    sources = re.sub(r"\n *// *", " ", sources).lower()
    cited = re.findall(r'\(\d{4}\),\s"([^"]+)"', sources)
    assert len(cited) > 5
    assert not [paper for paper in cited if not any(title.startswith(paper) for title in titles)]


CUDA_PACKAGES = {
    generation: tomllib.loads((ROOT / f"packaging/cuda{generation}/pyproject.toml").read_text())
    for generation in ("12", "13")
}


@pytest.mark.parametrize("generation", CUDA_PACKAGES)
def test_cuda_packages_agree_with_the_package_that_requires_them(generation: str) -> None:
    package, name = CUDA_PACKAGES[generation], f"jztree-native-cuda{generation}"
    project, settings = package["project"], package["tool"]["scikit-build"]
    assert project["name"] == name
    assert f"{name}=={project['version']}" in PROJECT["project"]["optional-dependencies"][f"cuda{generation}"]
    assert settings["cmake"]["define"]["JZTREE_CUDA_PACKAGE"] == name.replace("-", "_")
    assert package["build-system"] == PROJECT["build-system"]
    for key in ("version", "requires-python", "license", "authors"):
        assert project[key] == PROJECT["project"][key], key


def test_wheels_are_built_for_the_generation_of_each_compiler(tmp_path: Path) -> None:
    programs = {
        f"nvcc-{item}": f"echo 'Cuda compilation tools, release {item}.4, V{item}.4.131'" for item in CUDA_PACKAGES
    }
    programs |= {"pip": 'echo "pip $CUDACXX $JZTREE_INSTRUCTION_SETS ${*: -1}"', "auditwheel": ":"}
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "checks").mkdir()
    script = shutil.copy(ROOT / "checks/wheel.sh", tmp_path / "checks")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "CUDACXX": "nvcc-13 nvcc-12", "JZTREE_CUDA": "ON"}
    result = subprocess.run([script], env=environ, capture_output=True, text=True, check=True).stdout
    assert result.splitlines() == [
        "pip nvcc-13 nvcc-12 ALL .",
        "pip nvcc-13 ALL ./packaging/cuda13",
        "pip nvcc-12 ALL ./packaging/cuda12",
    ]


# With this option, CMake does not have to ask JAX.
FFI_INCLUDE = f"-DJZTREE_FFI_INCLUDE={jax.ffi.include_dir()}"
BUILD_VARIABLES = ("CUDAARCHS", "CUDACXX", "JZTREE_CUDA", "JZTREE_INSTRUCTION_SETS")


def configured(folder: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Return the output of CMake for an installation."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("there is no CMake")
    variables = {name: value for name, value in os.environ.items() if name not in BUILD_VARIABLES}
    command = [cmake, "-S", str(ROOT), "-B", str(folder), f"-DPython_EXECUTABLE={sys.executable}", *options]
    return subprocess.run(command, env=variables | environ, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
def test_cuda_kernels_are_for_all_architectures_unless_some_are_named(tmp_path: Path) -> None:
    done = configured(tmp_path, FFI_INCLUDE, JZTREE_CUDA="ON")
    assert done.returncode == 0, done.stderr
    assert re.search(r"architectures [0-9a-z;-]*90-real;[0-9a-z;-]*-virtual", done.stdout), done.stdout


@pytest.mark.long
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines have one instruction set")
def test_installations_are_for_this_machine_and_the_baseline_unless_all_are_requested(tmp_path: Path) -> None:
    best = native_info()["best_instruction_set"]
    baseline, *higher = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
    for sets, expected in (
        (None, [baseline, *(name for name in higher if name == best)]),
        ("ALL", [baseline, *higher]),
        ("NATIVE", [best]),
    ):
        variable = {} if sets is None else {"JZTREE_INSTRUCTION_SETS": sets}
        options = [] if sets is None else [FFI_INCLUDE]
        done = configured(tmp_path / str(sets), *options, JZTREE_CUDA="OFF", **variable)
        assert done.returncode == 0, done.stderr
        assert re.findall(r"CPU kernels for (.*)", done.stdout)[0].replace(";", " ").split() == expected
    done = configured(tmp_path / "wrong", JZTREE_CUDA="OFF", JZTREE_INSTRUCTION_SETS="all")
    assert done.returncode == 1
    assert "JZTREE_INSTRUCTION_SETS is all; set it to ALL, LOCAL" in " ".join(done.stderr.split())


def test_packages_have_all_instruction_sets() -> None:
    recipe = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text())
    assert recipe["build"]["script"]["env"]["JZTREE_INSTRUCTION_SETS"] == "ALL"


@pytest.mark.long
def test_cuda_kernels_without_a_compiler_for_them(tmp_path: Path) -> None:
    for choice, code in (("ON", 1), ("AUTO", 0)):
        done = configured(tmp_path / choice, FFI_INCLUDE, JZTREE_CUDA=choice, CUDACXX="no-such-compiler")
        assert done.returncode == code, done.stderr
        assert "no CUDA compiler (nvcc) was found" in (done.stderr if code else done.stdout)


def test_extras_named_in_messages_exist() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    sources = [path for folder in ("jztree", "jztree_utils") for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r"jztree-native\[(\w+)\]", path.read_text())}
    assert named
    assert named <= extras.keys()
