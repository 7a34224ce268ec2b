"""The command line with less memory than the particles need: the same bytes as in memory, after any interruption."""

import errno
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import headers
import numpy as np
import pytest
from headers import write_types
from processes import Ended, environments_of, run_commands
from utils.test_cli_devices import check_equal

from jztree_utils import cli, io
from jztree_utils.cli._commands import dry_run
from jztree_utils.large import _plan
from jztree_utils.large._steps import Steps

pytestmark = pytest.mark.usefixtures("one_device", "small_pieces")
N = 3000
MASS_TABLE = np.array([0.0, 1.5, 0.0, 0.0, 0.0, 0.0])


@pytest.fixture
def snapshot(tmp_path: Path, write_gadget: Callable[..., Path]) -> Path:
    """Return a snapshot in three files, with identifiers in random order; the second file has no stars."""
    random = np.random.default_rng(2)
    pos, vel = random.random((2, N, 3), np.float32)
    columns = {"Velocities": vel, "Masses": random.random(N, np.float32), "ParticleIDs": random.permutation(N)}
    folder = tmp_path / "snapdir"
    folder.mkdir()
    stars = {"Coordinates": random.random((600, 3), np.float32), "Masses": random.random(600, np.float32)}
    stars |= {"Velocities": random.random((600, 3), np.float32), "ParticleIDs": N + random.permutation(600)}
    ends = zip([0, 1200, 1500], [1200, 1500, N], [0, 400, 400], [400, 400, 600], strict=True)
    for part, (start, end, first_star, last_star) in enumerate(ends):
        path = folder / f"snap_001.{part}.hdf5"
        held = {name: column[start:end] for name, column in columns.items()}
        counts = {"ThisFile": [0, end - start, 0, 0, last_star - first_star, 0], "Total": [0, N, 0, 0, 600, 0]}
        header = {"MassTable": np.zeros(6), **{f"NumPart_{name}": np.array(nums) for name, nums in counts.items()}}
        write_gadget(path, pos[start:end], num_files=3, columns=held, header=header)
        with h5py.File(path, "a") as file:
            for name, column in stars.items() if first_star < last_star else ():
                file[f"PartType4/{name}"] = column[first_star:last_star]
    return folder


def fof(snapshot: Path, output: Path | None, *options: str) -> int:
    to = [] if output is None else ["-o", str(output)]
    return cli.main(["fof", str(snapshot), *to, "--npart-min", "3", "--b", "0.7", *options])


MEMORY = ("--memory", "100kB")  # for 595 particles
# The command line with little memory, which may fail in a step.
SCRIPT = """
import os, sys
from jztree_utils import _constants, cli
from jztree_utils import _constants
from jztree_utils.large import _plan, _steps
_constants.PROGRAM_BYTES, _plan._FEWEST = 0, 10
step = _steps.Steps.step
def fails(steps, name, *args):
    if name == os.environ.get("FAIL_IN"):
        raise ValueError("interrupted")
    return step(steps, name, *args)
_steps.Steps.step = fails
sys.exit(cli.main())
"""


def test_warnings_are_those_of_a_search_in_memory(
    tmp_path: Path, write_gadget: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(1)
    pos = random.random((N, 3), np.float32)
    pos[:3] += np.float32(0.01)
    pos[0, 0] = 1.02
    path = write_gadget(tmp_path / "snap.hdf5", pos, columns={"Masses": random.random(N, np.float32)})
    warnings = []
    for options in ((), MEMORY):
        assert fof(path, None, *options) == 0
        warnings.append(capsys.readouterr().err)
    assert warnings[0].count("warning:") == 2
    assert warnings[0] == warnings[1]


@pytest.mark.parametrize("count", [2, 4])
def test_several_devices_write_the_bytes_of_a_search_in_memory(
    snapshot: Path, tmp_path: Path, use_devices: Callable[[int], None], count: int
) -> None:
    assert fof(snapshot, tmp_path / "whole.hdf5") == 0
    use_devices(count)
    assert fof(snapshot, tmp_path / "pieces.hdf5", "--memory", f"{100 * count}kB") == 0
    assert (tmp_path / "pieces.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()


@pytest.mark.parametrize(
    ("options", "moment", "count"),
    [((), "catalogue1", 3), (("--attach", "4"), "attach0", 3), (("--attach", "4"), "count0", 1)],
)
def test_several_processes_write_the_bytes_of_a_search_in_memory_after_an_interruption(
    snapshot: Path, tmp_path: Path, options: tuple[str, ...], moment: str, count: int
) -> None:
    command = [sys.executable, "-c", SCRIPT, "fof", str(snapshot), "-o", "pieces.hdf5", "--npart-min", "3"]
    command += ["--b", "0.7", "--memory", "200kB", "--snapshot-output", "copy.hdf5", *options]

    def run(count: int, **variables: str) -> list[Ended]:
        return run_commands([command] * count, environments_of(count), env=variables, cwd=tmp_path)

    ends = run(count, FAIL_IN=moment)
    assert [end.returncode for end in ends] == [2] * count, ends
    assert (tmp_path / "pieces.hdf5.pieces" / f"share{2 * count - 1}" / "slab0.npz").exists()
    ends = run(2)
    assert [end.returncode for end in ends] == [0, 0], ends
    copy = "--snapshot-output", str(tmp_path / "whole_copy.hdf5")
    assert fof(snapshot, tmp_path / "whole.hdf5", *copy, *options) == 0
    assert (tmp_path / "pieces.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()
    assert (tmp_path / "copy.hdf5").read_bytes() == (tmp_path / "whole_copy.hdf5").read_bytes()
    assert not (tmp_path / "pieces.hdf5.pieces").exists()


@pytest.mark.parametrize("layout", ["native", "gadget4"])
def test_catalogue_has_the_bytes_of_a_search_in_memory(snapshot: Path, tmp_path: Path, layout: str) -> None:
    assert fof(snapshot, tmp_path / "whole.hdf5", "--layout", layout) == 0
    assert fof(snapshot, tmp_path / "pieces.hdf5", "--layout", layout, *MEMORY) == 0
    assert (tmp_path / "pieces.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()
    assert not (tmp_path / "pieces.hdf5.pieces").exists()


def test_copies_have_the_bytes_of_a_search_in_memory(snapshot: Path, tmp_path: Path) -> None:
    for name, options in (("whole", ()), ("pieces", MEMORY)):
        copies = (
            "--snapshot-output",
            str(tmp_path / f"{name}.s.hdf5"),
            "--group-ids-output",
            str(tmp_path / f"{name}.g"),
        )
        assert fof(snapshot, None, *copies, *options) == 0
    for suffix in (".s.hdf5", ".g"):
        assert (tmp_path / f"pieces{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()


@pytest.fixture(scope="module")
def two_types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a snapshot of dark matter in clumps and filaments, and of gas."""
    path, random = tmp_path_factory.mktemp("types") / "snap_001.hdf5", np.random.default_rng(8)
    centres, types = random.random((60, 3)), dict[int, dict[str, np.ndarray]]()
    for ptype, num in {0: 1500, 1: 4000}.items():
        clumps = centres[random.integers(60, size=num)] + random.normal(0, 0.006, (num, 3))
        pos = np.where(random.random((num, 1)) < 0.7, clumps, random.random((num, 3)))
        types[ptype] = {
            "Coordinates": (50 * pos % 50).astype(np.float32),
            "Velocities": random.normal(0, 100, (num, 3)).astype(np.float32),
            "ParticleIDs": random.permutation(num).astype(np.uint64) + 10000 * ptype,
        }
    types[0] |= {name: random.random(1500, np.float32) for name in ("Masses", "InternalEnergy")}
    return write_types(path, headers.COSMOLOGY | headers.UNITS | {"BoxSize": 50.0, "MassTable": MASS_TABLE}, types)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--properties", "--npart-min", "5000"), id="no groups"),
        pytest.param(("--properties", "--boxsize", "0", "--rlink", "0.5"), id="open box"),
        pytest.param(("--centre", "mass", "--overdensity", "50m", "--matter", "1"), id="centres of mass"),
        pytest.param(("--subhaloes", "--npart-min", "5000"), id="subhaloes of no groups"),
        pytest.param(("--subhaloes", "--min-bound", "10"), id="subhaloes"),
        pytest.param(("--subhaloes", "--min-bound", "10", "--candidates", "phase-space"), id="phase space"),
        pytest.param(("--properties", "--subhaloes", "--min-bound", "10", "--layout", "gadget4"), id="Gadget-4"),
        pytest.param(("--subhaloes", "--type", "0", "--min-bound", "8"), id="internal energies"),
        pytest.param(("--properties",), id="lowest potential"),
        pytest.param(("--attach", "0", "--properties"), id="attached gas"),
        pytest.param(("--attach", "0", "--subhaloes", "--min-bound", "10"), id="subhaloes of attached gas"),
        pytest.param(("--type", "0", "--attach", "1", "--subhaloes", "--min-bound", "8"), id="attached to gas"),
    ],
)
def test_properties_equal_the_results_in_memory_up_to_rounding(
    two_types: Path, tmp_path: Path, use_devices: Callable[[int], None], options: tuple[str, ...], count: int
) -> None:
    command = ["fof", str(two_types), *([] if "--npart-min" in options else ["--npart-min", "5"]), *options]
    assert cli.main([*command, "-o", str(tmp_path / "whole.hdf5")]) == 0
    use_devices(count)
    assert cli.main([*command, "-o", str(tmp_path / "pieces.hdf5"), "--memory", f"{1.4 * count}MB"]) == 0
    check_equal(tmp_path / "pieces.hdf5", tmp_path / "whole.hdf5")


def test_memory_that_messages_demand_is_soon_enough(
    two_types: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Groups whose results need farther particles may demand more than the first message, which counts a margin."""
    command = ["fof", str(two_types), "--npart-min", "5", "--properties", "-o", str(tmp_path / "out.hdf5"), "--memory"]
    memory, failures = "200kB", 0
    while cli.main([*command, memory]):
        needed = re.search(r"The thinnest interval .* give at least ([0-9.]+) ([kM]iB)", capsys.readouterr().err)
        assert needed is not None
        memory, failures = "".join(needed.groups()), failures + 1
        assert failures <= 2
    assert failures


def test_time_of_subhaloes_of_gas_is_estimated(two_types: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fof", str(two_types), "--type", "0", "--subhaloes", "--memory", "1.4MB", "--dry-run"]
    assert cli.main(command) == 0
    assert "surroundings of groups" in capsys.readouterr().out


def test_copies_with_subhaloes_have_the_bytes_of_a_search_in_memory(two_types: Path, tmp_path: Path) -> None:
    for name, options in (("whole", ()), ("pieces", ("--memory", "1.4MB"))):
        copies = "--snapshot-output", str(tmp_path / f"{name}.hdf5")
        command = ["fof", str(two_types), "--npart-min", "5", "--subhaloes", "--min-bound", "10", *copies, *options]
        assert cli.main(command) == 0
    assert (tmp_path / "pieces.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="Gadget-4's distance"),
        pytest.param(("--npart-min", "1", "--attach-within", "0.7"), id="particles alone"),
        pytest.param(("--attach-within", "inf", "--layout", "gadget4"), id="any distance"),
        pytest.param(("--type", "0", "--attach", "all", "--layout", "soap"), id="attached to gas"),
        pytest.param(("--boxsize", "0", "--rlink", "0.4", "--layout", "swift"), id="open box"),
    ],
)
def test_attached_particles_join_the_groups_of_a_search_in_memory(
    two_types: Path, tmp_path: Path, use_devices: Callable[[int], None], options: tuple[str, ...], count: int
) -> None:
    for name, memory in (("whole", ()), ("pieces", ("--memory", f"{0.2 * count}MB"))):
        use_devices(count if memory else 1)
        outputs = [
            *("-o", str(tmp_path / f"{name}.hdf5"), "--snapshot-output", str(tmp_path / f"{name}.copy.hdf5")),
            *("--group-ids-output", str(tmp_path / f"{name}.numbers.hdf5")),
        ]
        length = () if "--rlink" in options else ("--b", "2")
        assert (
            cli.main(["fof", str(two_types), "--attach", "0", "--npart-min", "5", *length, *options, *memory, *outputs])
            == 0
        )
    for suffix in ("", ".copy", ".numbers"):
        result, expected = (tmp_path / f"{name}{suffix}.hdf5" for name in ("pieces", "whole"))
        assert result.read_bytes() == expected.read_bytes(), suffix
    box = options[:2] if "--boxsize" in options else ()
    assert cli.main(["verify", str(tmp_path / "pieces.hdf5"), str(two_types), *box]) == 0


def step_until(steps: Steps, moment: str, step: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Do a step. Raise ValueError at the one with the name ``moment``."""
    if name == moment:
        raise ValueError("interrupted")
    return step(steps, name, *arguments)


@pytest.mark.parametrize("moment", ["window0_1", "window1_0"])
def test_interrupted_properties_continue_with_the_same_bytes(
    two_types: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    options = ("--properties", "--subhaloes", "--min-bound", "10", "--memory", "1.4MB")
    command = ["fof", str(two_types), "--npart-min", "5", *options]
    assert cli.main([*command, "-o", str(tmp_path / "at_once.hdf5")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Steps, "step", functools.partialmethod(step_until, moment, Steps.step))
        assert cli.main([*command, "-o", str(tmp_path / "continued.hdf5")]) == 2
    assert cli.main([*command, "-o", str(tmp_path / "continued.hdf5")]) == 0
    assert (tmp_path / "continued.hdf5").read_bytes() == (tmp_path / "at_once.hdf5").read_bytes()


@pytest.mark.parametrize("box", [(), ("--boxsize", "0", "--rlink", "0.05")], ids=["periodic", "open"])
def test_pictures_have_the_bytes_of_a_search_in_memory(snapshot: Path, tmp_path: Path, box: tuple[str, ...]) -> None:
    pytest.importorskip("matplotlib")
    for name, options in (("whole", ()), ("pieces", MEMORY)):
        picture = str(tmp_path / f"{name}.png")
        arguments = ["fof", str(snapshot), "--npart-min", "3", "--plot", picture, *box, *options]
        assert cli.main(arguments) == 0
    assert (tmp_path / "pieces.png").read_bytes() == (tmp_path / "whole.png").read_bytes()


def test_particles_without_identifiers_and_velocities(
    tmp_path: Path, write_gadget: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gadget(tmp_path / "snap.hdf5", np.random.default_rng(1).random((N, 3)))
    summaries = []
    for name, options in (("whole", ()), ("pieces", ("--memory", "200kB"))):
        assert fof(path, tmp_path / f"{name}.hdf5", *options, "--json") == 0
        summary = json.loads(capsys.readouterr().out)
        summaries.append({key: value for key, value in summary.items() if key not in ("output", "seconds")})
    assert (tmp_path / "pieces.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()
    assert summaries[0] == summaries[1]


def test_snapshot_that_does_not_fit_is_grouped_in_pieces(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dry_run, "available_memory", lambda device: 100_000)
    monkeypatch.setattr(_plan, "host_memory", lambda: 130_000)
    assert fof(snapshot, tmp_path / "pieces.hdf5", "--dry-run") == 0
    planned = capsys.readouterr().out
    assert "does not fit" in planned
    assert "about 6 of at most 580 particles" in planned
    assert "4: positions of all particles, their sorted copies" in planned
    assert f"in {tmp_path / 'pieces.hdf5.pieces'}, until the end" in planned
    assert re.search("about [0-9.]+ s without reading the snapshot", planned)
    assert fof(snapshot, tmp_path / "pieces.hdf5") == 0
    assert "find groups piece by piece" in capsys.readouterr().out
    monkeypatch.undo()
    assert fof(snapshot, tmp_path / "whole.hdf5") == 0
    assert (tmp_path / "pieces.hdf5").read_bytes() == (tmp_path / "whole.hdf5").read_bytes()


def test_killed_run_continues_with_the_same_bytes(snapshot: Path, tmp_path: Path) -> None:
    output, folder = tmp_path / "pieces.hdf5", tmp_path / "pieces.hdf5.pieces"
    command = [sys.executable, "-c", SCRIPT, "fof", str(snapshot), "-o", str(output), "--npart-min", "3", "--b", "0.7"]
    process = subprocess.Popen([*command, *MEMORY], env=os.environ | {"JAX_PLATFORMS": "cpu"})
    while process.poll() is None and not (folder / "share0" / "slab1.npz").exists():
        time.sleep(0.01)
    process.kill()
    assert process.wait() != 0
    assert (folder / "share0" / "slab1.npz").exists()
    assert not output.exists()
    assert fof(snapshot, output, *MEMORY) == 0
    assert fof(snapshot, tmp_path / "whole.hdf5") == 0
    assert output.read_bytes() == (tmp_path / "whole.hdf5").read_bytes()


def test_damaged_file_is_named_and_the_run_continues_with_a_sound_one(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, output = snapshot / "snap_001.2.hdf5", tmp_path / "pieces.hdf5"
    shutil.copy(damaged, tmp_path / "sound")
    with h5py.File(damaged, "a") as file:
        file["PartType1/Coordinates"][700] = np.nan
    assert fof(snapshot, output, *MEMORY) == 2
    assert f"Row 700 of the positions of type 1 in {damaged} is NaN" in capsys.readouterr().err
    damaged.unlink()
    assert fof(snapshot, output, *MEMORY) == 2
    assert "snap_001.2.hdf5" in capsys.readouterr().err
    shutil.copy(tmp_path / "sound", damaged)
    names = []
    append = Steps.append
    monkeypatch.setattr(Steps, "append", lambda steps, name, rows: (names.append(name), append(steps, name, rows)))
    assert fof(snapshot, output, *MEMORY) == 0
    assert "pos0" not in names  # of the earlier run
    assert fof(snapshot, tmp_path / "whole.hdf5") == 0
    assert output.read_bytes() == (tmp_path / "whole.hdf5").read_bytes()


@pytest.mark.parametrize(("row", "moment"), [(5, "slab2"), (2500, "labels0")])
def test_changed_file_is_named(
    snapshot: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    row: int,
    moment: str,
) -> None:
    output, file = tmp_path / "pieces.hdf5", snapshot / f"snap_001.{0 if row < 1200 else 2}.hdf5"
    with monkeypatch.context() as patch:
        patch.setattr(Steps, "step", functools.partialmethod(step_until, moment, Steps.step))
        assert fof(snapshot, output, *MEMORY) == 2
    before = file.stat()
    with h5py.File(file, "a") as changed:
        changed["PartType1/Coordinates"][row % 1500] += np.float32(1e-3)
    for unchanged in snapshot.iterdir():
        if unchanged != file:
            unchanged.touch()
    capsys.readouterr()
    assert fof(snapshot, output, *MEMORY) == 2
    error = capsys.readouterr().err
    assert f"jztree: error: {file} changed after an earlier step had read it; restore it" in error
    # The same change, with the size and the time of the earlier file.
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fof(snapshot, output, *MEMORY) == 2
    assert f"jztree: error: {file} changed" in capsys.readouterr().err


def test_full_disk_is_reported_and_the_run_continues(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, append = tmp_path / "pieces.hdf5", Steps.append

    def full(steps: Steps, name: str, rows: np.ndarray) -> None:
        append(steps, name, rows[: len(rows) // 2] if name == "pos3" else rows)
        if name == "pos3":
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Steps, "append", full)
        assert fof(snapshot, output, *MEMORY) == 2
    assert f"The disk of {output}.pieces/share0 is full; free some space" in capsys.readouterr().err
    assert fof(snapshot, output, *MEMORY) == 0
    assert fof(snapshot, tmp_path / "whole.hdf5") == 0
    assert output.read_bytes() == (tmp_path / "whole.hdf5").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--memory", "8"), "'8' is not a size with a unit, such as 8GB"),
        (("--memory", "1kB"), "memory is 0.977 kiB, but"),
        ((*MEMORY, "--boxsize", "0.5"), "The positions span"),
    ],
)
def test_invalid_options_are_one_sentence(
    snapshot: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert fof(snapshot, None, *options) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_members_are_in_the_order_of_identifiers(snapshot: Path, tmp_path: Path) -> None:
    assert fof(snapshot, tmp_path / "pieces.hdf5", *MEMORY) == 0
    catalogue, ids, _ = io.read_catalogue(tmp_path / "pieces.hdf5")
    for offset, count in zip(catalogue.offset, catalogue.count, strict=True):
        assert (np.diff(ids[offset : offset + count]) > 0).all()
