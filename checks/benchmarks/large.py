"""Groups of a snapshot larger than memory: CPU seconds, peak of memory and disk, and equality with a search in memory.

    python checks/benchmarks/large.py [--particles 2e8] [--files 32] [--limit 2e9] [--kills 10] [--folder FOLDER]
        [--output results.jsonl]

The limit holds for the data of the process (RLIMIT_DATA), so an allocation beyond it fails.
"""

import argparse
import contextlib
import filecmp
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from timing import append_record, machine

_IN_HALOES = 0.6
_OF_LIMIT = 0.7  # share of the limit that --memory names; threads and compilers reserve the rest
# The command line, with a limit of its data.
_LIMITED = """
import resource, sys
from jztree_utils import cli
resource.setrlimit(resource.RLIMIT_DATA, ({limit}, resource.RLIM_INFINITY))
sys.exit(cli.main())
"""


def write_snapshot(folder: Path, particles: int, files: int) -> None:
    """Write a snapshot of clustered particles in random order: haloes with a power law of masses, and a background."""
    box, per_file = 1000.0 * (particles / 2e8) ** (1 / 3), particles // files
    halo_draws = np.random.default_rng(0)
    weights = np.minimum(halo_draws.pareto(0.9, particles // 1000) + 1, 6e6)
    centres = halo_draws.random((len(weights), 3)) * box
    cumulated, members = np.cumsum(weights) / weights.sum(), _IN_HALOES * particles * weights / weights.sum()
    radii = 0.25 * box / particles ** (1 / 3) * np.maximum(members, 1) ** (1 / 3)
    clustered = int(_IN_HALOES * per_file)
    folder.mkdir(parents=True)
    for number in range(files):
        draws = np.random.default_rng(number + 1)
        halo = np.searchsorted(cumulated, draws.random(clustered)).clip(0, len(weights) - 1)
        distance = radii[halo] * draws.random(clustered) ** 2
        direction = draws.normal(size=(clustered, 3)).astype(np.float32)
        direction /= np.linalg.norm(direction, axis=1)[:, None]
        pos = np.empty((per_file, 3), np.float32)
        pos[:clustered] = np.mod(centres[halo] + direction * distance[:, None], box)
        pos[clustered:] = draws.random((per_file - clustered, 3)) * box
        pos[pos >= box] = 0
        pos = pos[draws.permutation(per_file)]
        counts = np.eye(6, dtype=np.int64)[1]
        header = {"BoxSize": box, "Time": 1.0, "Redshift": 0.0, "MassTable": 1.0 * counts}
        header |= {"NumFilesPerSnapshot": np.int32(files), "NumPart_ThisFile": per_file * counts}
        header |= {"NumPart_Total": per_file * files * counts}
        with h5py.File(folder / f"snap_000.{number}.hdf5", "w") as file:
            file.create_group("Header").attrs.update(header)
            file["PartType1/Coordinates"] = pos
            file["PartType1/Velocities"] = draws.normal(0, 200, (per_file, 3)).astype(np.float32)
            # Identifiers in an order that differs from that of the rows.
            ids = np.arange(per_file, dtype=np.int64) * files + number
            file["PartType1/ParticleIDs"] = ids * 1_000_003 % (per_file * files)


def run(
    snapshot: Path, output: Path, *options: str, limit: int | None = None, kills: int = 0, lifetime: float = 0.0
) -> dict[str, float]:
    """Run ``jztree fof`` and return its CPU seconds, and its peaks of memory and of files beside the output in bytes.

    Args:
        snapshot: The snapshot.
        output: The catalogue.
        *options: Further options.
        limit: Bytes of data that the process may allocate.
        kills: How often the process is killed at a random moment and started again.
        lifetime: The mean number of seconds until then.
    """
    command = [
        sys.executable,
        "-c",
        _LIMITED.format(limit=limit or -1),
        "fof",
        str(snapshot),
        "-o",
        str(output),
        "-q",
        *options,
    ]
    pieces, sizes, ended = Path(f"{output}.pieces"), [0], threading.Event()
    environ, draws = os.environ | {"JAX_PLATFORMS": "cpu"}, random.Random(1)

    def watch() -> None:
        while not ended.wait(0.2):
            sizes.append(sum(_sizes(pieces)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start, usages = time.monotonic(), []
    try:
        for number in range(kills + 1):
            process = subprocess.Popen(command, env=environ)
            if number < kills:
                time.sleep(draws.uniform(0, 2 * lifetime))
                process.kill()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            usages.append(usage)
    finally:
        ended.set()
        watcher.join()
    if process.returncode:
        raise RuntimeError(f"jztree fof ended with status {process.returncode}.")
    return {
        "CPU seconds": sum(usage.ru_utime + usage.ru_stime for usage in usages),
        "seconds": time.monotonic() - start,
        "peak bytes on disk": max(sizes),
        "peak bytes resident": 1024 * max(usage.ru_maxrss for usage in usages),
    }


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            yield 512 * path.stat().st_blocks


def measure(folder: Path, particles: int, files: int, limit: float, kills: int) -> dict[str, Any]:
    """Return the figures of a search in pieces, and of one in memory if ``kills`` is not negative.

    The search in memory must give the same bytes, and so must a search in pieces that is killed ``kills`` times.
    """
    snapshot = folder / f"{particles}"
    if not snapshot.exists():
        write_snapshot(snapshot, particles, files)
    options = "--memory", f"{_OF_LIMIT * limit / 1e6:.0f}MB"
    result: dict[str, Any] = {
        "particles": particles,
        "files": files,
        "limit in bytes": limit,
        "bytes of the snapshot": sum(path.stat().st_size for path in snapshot.iterdir()),
        "in pieces": run(snapshot, folder / "pieces.hdf5", *options, limit=int(limit)),
    }
    result["disk over snapshot"] = result["in pieces"]["peak bytes on disk"] / result["bytes of the snapshot"]
    if kills >= 0:
        result["in memory"] = run(snapshot, folder / "whole.hdf5")
        result["CPU seconds over those in memory"] = (
            result["in pieces"]["CPU seconds"] / result["in memory"]["CPU seconds"]
        )
        _check_equal(folder / "pieces.hdf5", folder / "whole.hdf5")
    if kills > 0:
        lifetime = result["in pieces"]["seconds"] / (kills + 1)
        output = folder / "killed.hdf5"
        killed = run(snapshot, output, *options, limit=int(limit), kills=kills, lifetime=lifetime)
        result["killed"] = {"times": kills, **killed}
        _check_equal(output, folder / "whole.hdf5")
    return result


def _check_equal(path: Path, expected: Path) -> None:
    if not filecmp.cmp(path, expected, shallow=False):
        raise AssertionError(f"{path} differs from {expected}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=float, default=2e8)
    parser.add_argument("--files", type=int, default=32)
    parser.add_argument("--limit", type=float, default=2e9, help="bytes")
    parser.add_argument("--kills", type=int, default=-1, help="compare with a search in memory, and kill so many times")
    parser.add_argument("--folder", type=Path, help="the snapshot and the catalogues (default: a temporary folder)")
    parser.add_argument("--output", type=Path, help="a file of records, to which a line is appended")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = args.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures = {"machine": machine(), **measure(folder, int(args.particles), args.files, args.limit, args.kills)}
    print(json.dumps(figures, indent=2))
    if args.output is not None:
        append_record(args.output, figures)


if __name__ == "__main__":
    main()
