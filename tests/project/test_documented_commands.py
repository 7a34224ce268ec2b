"""All ``jztree`` commands in the documentation and in its help must exist; commands of the main pages must run."""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from jztree_utils import ics, io, plot
from jztree_utils.cli import main
from jztree_utils.cli._commands import arguments, help_texts
from jztree_utils.cli._commands.configuration_file import options_of_commands
from jztree_utils.cli._particles import many_devices
from jztree_utils.io._header import header_attributes
from project.test_documentation import DOCS, PAGES, ROOT, blocks, load

COMMAND_LINE = DOCS / "command_line.md"
HELP = [text for name, text in vars(help_texts).items() if name.endswith("_EPILOG")]


def commands(text: str) -> list[list[str]]:
    """Return the arguments of each call of ``jztree`` in shell lines, without comments and redirections."""
    result = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if "jztree " in line else []
        for place, word in enumerate(words):
            if word == "jztree":
                end = next(
                    (n for n, second in enumerate(words) if n > place and second in ("|", ">", ">>", "&&")), None
                )
                result.append(words[place + 1 : end])
                break
    return result


def shell(page: Path) -> list[list[str]]:
    return commands("".join(text for _, text in blocks(page, "(?:sh|bash|console)")))


def results(page: Path) -> list[list[str]]:
    """Return the commands of a page that write groups or neighbours of one snapshot."""
    return [command for command in shell(page) if command[0] in ("fof", "knn") and "-o" in command]


@pytest.mark.parametrize("page", [page for page in PAGES if shell(page)], ids=lambda page: page.name)
def test_documented_commands_exist(page: Path) -> None:
    for command in shell(page):
        assert arguments.parse(command).command is not None, command


def test_help_examples_parse() -> None:
    examples = commands("".join(re.findall(r"^  jztree .*\n", "".join(HELP), re.MULTILINE)))
    assert len(examples) > 10
    for command in examples:
        arguments.parse(command)


def test_documented_xla_flags_exist() -> None:
    """XLA ends a process with an unknown flag."""
    flags = {flag for page in PAGES for flag in re.findall(r"--xla_\w+=\w*", page.read_text())}
    assert {"--xla_gpu_executable_terminate_timeout=30", "--xla_gpu_enable_command_buffer="} <= flags
    script = "import jax; jax.devices()"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"XLA_FLAGS": " ".join(sorted(flags)), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr


def test_documented_options_exist() -> None:
    parsers = options_of_commands(arguments.build_parser()).values()
    known = {flag for options in parsers for option in options.values() for flag in option.option_strings}
    for page in (COMMAND_LINE, DOCS / "snapshot_to_catalogue.md", ROOT / "README.md"):
        spans = re.findall(r"`((?:jztree |-)[^`\n]+)`", page.read_text())
        message = {flag for span in spans for flag in re.findall(r"(?<!\S)--?[a-z][a-z0-9-]*", span)}
        assert message
        assert message - {"--no-build-isolation", "--help", "--config"} <= known, page.name  # the first is a pip option


@pytest.fixture
def files_of_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small files with the names used on the pages, use one device, and open no window."""
    mesh = jax.make_mesh((1,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    monkeypatch.setattr(many_devices, "all_devices", lambda: mesh)
    monkeypatch.setattr(plot, "show", lambda figure: None)
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(5)
    pos = (random.random((20, 1, 3)) * 37.5 + random.normal(0, 0.2, (20, 30, 3))).reshape(-1, 3) % 37.5
    np.save("points.npy", pos)
    with h5py.File("output.hdf5", "w") as file:
        file["particles/xyz"], file["particles/m"] = pos, np.ones(len(pos))
    counts, masses = (0, 600, 0, 0, 600, 0), (0.0, 500.0, 0.0, 0.0, 250.0, 0.0)
    about = replace(io.read_header(ics.SAMPLE_3D), npart_total=counts, mass_table=masses, **ics.SAMPLE_3D_UNITS)
    with h5py.File("odd.hdf5", "w") as file:
        file.create_group("Header").attrs.update(header_attributes(about) | {"NumPart_ThisFile": counts})
        for ptype in (1, 4):
            file[f"PartType{ptype}/Coordinates"] = pos.astype(np.float32)
            file[f"PartType{ptype}/Velocities"] = random.normal(0, 1, pos.shape).astype(np.float32)
            file[f"PartType{ptype}/ParticleIDs"] = np.arange(len(pos), dtype=np.uint64) + 1000 * ptype
    Path("snapdir_099").mkdir()
    for copy in ("snapdir_099/snapshot_099.hdf5", "snapshot_099.hdf5"):
        shutil.copy("odd.hdf5", copy)


@pytest.mark.slow
def test_gallery_shows_the_files_its_commands_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly")
    gallery = load(DOCS / "gallery_pictures.py")
    page = (DOCS / "gallery.md").read_text()
    assert gallery.commands() == shell(DOCS / "gallery.md")
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    gallery.make()
    shown = set(re.findall(r"\{image\} gallery/(\S+)", page)) | set(re.findall(r'src="([^"]+)"', page))
    assert {path.name for path in tmp_path.iterdir()} == shown | {"halos.hdf5", "neighbours.hdf5"}


@pytest.mark.usefixtures("files_of_the_pages")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(ROOT / "README.md", marks=pytest.mark.slow, id="README.md"),
        pytest.param(COMMAND_LINE, id="options"),
    ],
)
def test_commands_of_a_page_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knn", "snapshot_099.hdf5", "-q", "-o", "neighbours.hdf5"]) == 0
    for command in shell(page):
        words = [name for word in command for name in (sorted(glob.glob(word)) if "*" in word else [word])]
        assert main(words) == 0, (command, capsys.readouterr().err)
        output = arguments.parse(words)
        if getattr(output, "output", None):
            assert Path(output.output.replace("{n}", "099")).exists()
        check_result(words, capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("files_of_the_pages")
@pytest.mark.parametrize("page", [page for page in PAGES if results(page)], ids=lambda page: page.name)
def test_results_of_a_page_pass_the_checks_by_brute_force(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in results(page):
        words = [name for word in command for name in (sorted(glob.glob(word)) if "*" in word else [word])]
        assert main(words) == 0, (command, capsys.readouterr().err)
        assert check_result(words, capsys) or "--no-ids" in words or "--density" in words or "--kernel" in words, (
            command
        )


def check_result(words: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Check the groups or the neighbours that a command has written. Return whether its file has what checks need."""
    options = arguments.parse(words)
    if options.command not in ("fof", "knn") or options.output is None or options.dry_run:
        return False
    capsys.readouterr()
    (output,) = glob.glob(options.output.replace("{n}", "[0-9][0-9][0-9]"))
    status = main(["verify", output, options.snapshot[0], "--samples", "20"])
    error = capsys.readouterr().err
    assert status == 0 or "lacks the identifiers" in error or "densities only" in error, (words, error)
    return status == 0
