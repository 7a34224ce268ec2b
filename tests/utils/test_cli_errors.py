"""The command line: bad input, and failures during a run."""

import os
import re
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from test_cli import files

from jztree_utils import cli, io
from jztree_utils.cli._commands import snapshots
from jztree_utils.cli._commands.input_files import check_inputs
from jztree_utils.cli._particles.reading import Source, open_types, read_particles

pytestmark = pytest.mark.usefixtures("one_device")


def check_refused(arguments: list[str], folder: Path, capsys, message: str) -> None:
    """Assert exit status 2, an error of one sentence, and no output files."""
    before = {name: (folder / name).stat().st_mtime_ns for name in files(folder)}
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"jztree: error: [^\n]+\n", err)
    assert "Traceback" not in err
    assert message in err, err
    assert {name: (folder / name).stat().st_mtime_ns for name in files(folder)} == before


def test_picture_without_matplotlib(snapshot, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "jztree_utils.plot._notebook_figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    check_refused(["fof", str(snapshot), "--plot", str(tmp_path / "a.png")], tmp_path, capsys, "jztree-native[plot]")


@pytest.mark.parametrize("command", ["fof", "knn"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_positions_name_the_row(command, value, tmp_path, write_gadget, random, capsys) -> None:
    pos = random.random((200, 3)).astype(np.float32)
    pos[123, 1] = value
    path = write_gadget(tmp_path / "a.hdf5", pos)
    words = f"Row 123 of the positions of type 1 in {path} is NaN or infinite; remove such particles."
    check_refused([command, str(path), "-o", str(tmp_path / "out.hdf5")], tmp_path, capsys, words)
    check_refused(["plot", "density", str(path), "-o", str(tmp_path / "a.png")], tmp_path, capsys, words)


def test_open_box_needs_a_linking_length(tmp_path, write_gadget, random, capsys) -> None:
    path = write_gadget(tmp_path / "a.hdf5", random.random((50, 3)), header={"BoxSize": None})
    check_refused(["fof", str(path)], tmp_path, capsys, "give the linking length with --rlink")
    assert cli.main(["fof", str(path), "--rlink", "0.1"]) == 0
    assert "none (open)" in capsys.readouterr().out


def test_damaged_snapshots(tmp_path, snapshot, write_parts, random, capsys) -> None:
    cut = tmp_path / "cut.hdf5"
    cut.write_bytes(snapshot.read_bytes()[:9000])
    text = tmp_path / "text.hdf5"
    text.write_text("Not a snapshot.\n")
    integers = tmp_path / "integers.hdf5"
    integers.write_bytes(snapshot.read_bytes())
    with h5py.File(integers, "a") as file:
        del file["PartType1/Coordinates"]
        file["PartType1/Coordinates"] = np.ones((500, 3), np.int64)
    parts = write_parts(random.random((40, 3)), (10, 20), "snap_009")
    parts[1].unlink()
    (tmp_path / "empty").mkdir()
    message = {
        cut: "truncated",
        text: "not an HDF5",
        integers: "int64",
        parts[2]: parts[1].name,
        tmp_path / "empty": "no .hdf5",
    }
    for path, words in message.items():
        check_refused(["fof", str(path), "-o", str(tmp_path / "out.hdf5")], tmp_path, capsys, words)


@pytest.mark.parametrize("count", [1, 3])
def test_corners_of_the_particles(count, tmp_path, write_gadget, random) -> None:
    if len(jax.devices()) < count:
        pytest.skip(f"needs {count} devices")
    mesh = jax.make_mesh((count,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])
    for num in (2, 50):  # fewer particles than devices, or not a multiple
        pos = (random.random((num, 3)) + np.asarray([5, -7, 0])).astype(np.float32)
        source = Source(write_gadget(tmp_path / "a.hdf5", pos))
        part = read_particles(open_types(source), (), mesh)
        np.testing.assert_array_equal(part.corners(), [pos.min(axis=0), pos.max(axis=0)])


def test_box_that_cannot_hold_the_positions(tmp_path, write_gadget, random, capsys) -> None:
    pos = random.random((50, 3)) * 1.02 + np.asarray([0, -0.3, 0])  # slightly wider than the box, and shifted
    path, output = write_gadget(tmp_path / "a.hdf5", pos), str(tmp_path / "out.hdf5")
    assert cli.main(["fof", str(path)]) == 0
    assert "outside the periodic box, by up to 0.2" in capsys.readouterr().err
    wide = str(write_gadget(tmp_path / "b.hdf5", pos * [1, 1, 1.4]))
    message = "but the periodic box has the length 1 in this dimension; give the correct box with --boxsize"
    check_refused(["fof", wide, "-o", output], tmp_path, capsys, message)
    check_refused(["knn", wide, "-o", output], tmp_path, capsys, message)
    check_refused(["plot", "density", wide, "-o", str(tmp_path / "out.png")], tmp_path, capsys, message)
    assert cli.main(["fof", wide, "--boxsize", "1,1,2"]) == 0


@pytest.mark.parametrize("command", [["fof"], ["knn"], ["convert"], ["plot", "density"]], ids=lambda words: words[-1])
def test_invalid_snapshots_are_refused(command, tmp_path, write_gadget, random, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    pos = random.random((30, 3))
    Path("empty.hdf5").touch()
    Path("notes.txt").write_text("Not a snapshot.\n" * 100)
    with h5py.File("table.hdf5", "w") as file:
        file["a/b"] = np.arange(5)
    write_gadget(Path("group.hdf5"), pos)
    with h5py.File("group.hdf5", "a") as file:
        del file["PartType1"]
    write_gadget(Path("none.hdf5"), pos[:0])
    write_gadget(Path("stars.hdf5"), pos, ptype=4)
    np.savez("names.npz", x=pos)
    os.mkfifo("pipe")
    message = {
        "missing.hdf5": "The file missing.hdf5 does not exist",
        ".": "holds more than one snapshot",
        "empty.hdf5": "is empty",
        "notes.txt": "is not an HDF5 file",
        "table.hdf5": "name the dataset of positions (--pos)",
        "group.hdf5": "has no dataset PartType1/Coordinates",
        "none.hdf5": "no particles of type 1; it holds none",
        "stars.hdf5": "no particles of type 1; it holds 30 of type 4",
        "names.npz": "Name the positions (--pos)",
        "pipe": "is not a regular file",
    }
    for name, words in message.items():
        check_refused([*command, name, "-o", "out.png" if "plot" in command else "out.hdf5"], tmp_path, capsys, words)


def test_errors_of_the_operating_system(snapshot, tmp_path, monkeypatch, capsys) -> None:
    """The superuser may read and write everything, so the refusals are simulated for all users."""
    (tmp_path / "closed").mkdir()

    def refuse(path: Any, *_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    output = ["-o", str(tmp_path / "closed" / "out.hdf5")]
    with monkeypatch.context() as patched:
        patched.setattr(io._files.os, "open", refuse)
        check_refused(["fof", str(snapshot), *output], tmp_path, capsys, "cannot be written (Permission denied)")
    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", refuse)
        check_refused(["fof", str(snapshot), *output], tmp_path, capsys, "cannot be read (Permission denied)")


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_no_space_for_printed_output(snapshot) -> None:
    with open("/dev/full", "w") as full, open(os.devnull) as nothing:
        command = [sys.executable, "-P", "-m", "jztree_utils.cli", "knn", str(snapshot)]
        done = subprocess.run(command, stdin=nothing, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "jztree: error: Reading or writing failed (No space left on device).\n",
    )


# Interruptions


def test_failure_while_writing_leaves_nothing(snapshot, tmp_path, capsys, monkeypatch) -> None:
    output = tmp_path / "out.hdf5"
    for failure, status in ((KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 2)):

        def fail(*_: object, failure: BaseException = failure) -> None:
            raise failure

        monkeypatch.setattr(io._neighbour_lists, "write_column", fail)
        assert cli.main(["knn", str(snapshot), "-o", str(output)]) == status
        assert re.fullmatch(r"jztree: [^\n]+\n", capsys.readouterr().err)
        assert files(tmp_path) == ["snapshot.hdf5"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of the system")
@pytest.mark.parametrize(
    "output",
    [
        "-o out.hdf5",
        pytest.param("--plot out.png", marks=pytest.mark.slow),
        pytest.param("--plot out.pdf", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("limit", [100, 3000])  # with the first, opening or closing the file fails
def test_no_space_for_the_output(tmp_path, output, limit) -> None:
    code = f"""
import resource, sys
from jztree_utils.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.exit(main(["fof", "sample", *{output.split()}]))
"""
    # The limit also applies to JAX's cache of compiled programs, and to temporary files of the compiler for GPUs.
    env = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(
        r"jztree: error: Writing out\.\w+ failed \(File too large\); nothing was written\.\n", done.stderr
    )
    assert files(tmp_path) == []


def test_sentences_of_the_library_end_without_the_name_of_the_program(snapshot, capsys, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("INVALID_ARGUMENT: jztree: the box is too small. [executable_name='jit_fof']")

    monkeypatch.setattr(snapshots, "read_particles", fail)
    assert cli.main(["fof", str(snapshot)]) == 2
    assert capsys.readouterr().err == "jztree: error: The box is too small.\n"


@pytest.mark.parametrize("command", [["fof"], ["fof", "--properties"], ["knn"], ["hdbscan"], ["xi"]])
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")]
)
def test_memory_errors_give_need_and_remedies(command, error, snapshot, capsys, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(snapshots, "read_particles", fail)
    assert cli.main([*command, str(snapshot)]) == 2
    num = io.open_snapshot(snapshot).num
    assert re.fullmatch(
        rf"jztree: error: There is not enough memory: {num:,} particles need about [\d.]+ [kM]iB on one device, which "
        r"had [\d.]+ [GT]iB; use more devices .*, a machine with more memory, or another --type\. --dry-run prints "
        r"this estimate\.\n",
        capsys.readouterr().err,
    )


@pytest.mark.parametrize(("command", "output"), [("convert", "out.npz"), ("plot density", "out.png")])
def test_memory_errors_of_other_commands_give_the_allocation(command, output, snapshot, capsys, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64")

    monkeypatch.setattr(io, "open_snapshot", fail)
    assert cli.main([*command.split(), str(snapshot), "-o", str(snapshot.parent / output)]) == 2
    assert "not enough memory (Unable to allocate 7.45 GiB" in capsys.readouterr().err


def test_missing_file_of_several_processes_is_reported_after_they_have_joined(monkeypatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    check_inputs(Namespace(snapshot=["nowhere.hdf5"]))  # raises nothing


def test_unexpected_exceptions_are_reported_as_bugs(snapshot, capsys, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(snapshots, "read_particles", fail)
    assert cli.main(["fof", str(snapshot)]) == 1
    assert "unexpected" in capsys.readouterr().err
    assert cli.main(["fof", str(snapshot), "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


# Starts a program that heeds interrupts, even if the tests run in the background of a shell, which ignores them.
HEEDING = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize(
    ("moment", "number", "what"),
    [
        ("import 'numpy._core", signal.SIGINT, "interrupted"),
        pytest.param("import 'jaxlib", signal.SIGINT, "interrupted", marks=pytest.mark.slow),
        ("  load JAX", signal.SIGTERM, "terminated"),
        ("  read the snapshot", signal.SIGINT, "interrupted"),
    ],
)
def test_process_interrupted_by_the_user(tmp_path, moment, number, what) -> None:
    """One interrupt must suffice, also during imports of compiled modules and in compiled code."""
    python = [sys.executable, "-P", "-u", *(["-v"] if moment.startswith("import") else [])]  # -v reports imports
    # Pairs up to the largest distance in many bins take half a minute, so the signal arrives during the work.
    work = ["xi", "sample", "--bins", "0.1,18.7,2000", "-o", str(tmp_path / "xi.hdf5")]
    command = [*python, "-m", "jztree_utils.cli", *work]
    command = [sys.executable, "-c", HEEDING, *command]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    while not process.stdout.readline().startswith(moment):
        assert process.poll() is None
    process.send_signal(number)
    message, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert re.search(rf"^jztree: {what}[^\n]+\n\Z", message, re.M)
    assert "Traceback" not in message
    assert files(tmp_path) == []


def test_process_with_a_closed_output_pipe(tmp_path) -> None:
    command = [sys.executable, "-P", "-m", "jztree_utils.cli", "fof", "sample"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert err == ""


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "JAX_PLATFORMS",
            "foo",
            "JAX has no device to run on .*, and in the environment JAX_PLATFORMS is 'foo'; correct the environment",
        ),
        ("JAX_ENABLE_X64", "foo", "invalid truth value 'foo' for environment 'JAX_ENABLE_X64'."),
        ("JZTREE_INSTRUCTION_SET", "foo", "the environment variable JZTREE_INSTRUCTION_SET is 'foo', but jztree is"),
    ],
)
def test_process_with_a_bad_environment(name, value, message) -> None:
    command = [sys.executable, "-P", "-m", "jztree_utils.cli", "fof", "sample", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {name: value})
    assert done.returncode == 2
    assert re.fullmatch(f"jztree: error: {message}[^\n]*\\.?\n", done.stderr)
