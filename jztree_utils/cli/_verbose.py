"""The additional output of ``-v``: the machine, the full snapshot, compilation, rows sent, memory.

It goes to the same place as the stages. No data are collected unless ``-v`` is set.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax
from jax.sharding import Mesh

from jztree import __version__, stats
from jztree.kernels import native_info

from .. import io
from .._memory import bytes_in_words
from ._report import VERBOSE, Stage, is_verbose, number, print_pairs, say

_COMPILING = "/jax/core/compile/"  # prefix of JAX's events of tracing, lowering and compiling
_PROPERTIES = ("pos", "vel", "mass", "id")
_ROWS = {
    "rows.sort": "sorting",
    "rows.ghosts": "ghosts",
    "rows.results": "results",
    "rows.groups": "bringing groups together",
}


def print_machine(mesh: Mesh) -> None:
    """Print versions, native libraries and devices."""
    if not is_verbose():
        return
    native = native_info()
    kinds = Counter(device.device_kind for device in mesh.devices.flat)
    processes = len({device.process_index for device in mesh.devices.flat})
    libraries = [("CPU library", f"{native['cpu_library']}, {native['num_threads']} threads")]
    if native["cuda_library"]:
        libraries.append(("CUDA library", f"{native['cuda_library']} for {native['cuda_architectures']}"))
    print_pairs(
        [
            ("versions", f"jztree {__version__}, jax {jax.__version__}"),
            *libraries,
            ("instruction set", str(native["instruction_set"])),
            ("devices", ", ".join(f"{count} ({kind})" for kind, count in kinds.items())),
            ("processes", str(processes)),
        ],
        VERBOSE,
    )


def print_snapshot(snapshots: Sequence[io.Snapshot]) -> None:
    """Print the metadata of a snapshot, from one `io.Snapshot` for each of its types."""
    if not is_verbose():
        return
    first, header = snapshots[0], snapshots[0].header
    per_h = "" if header.comoving is False or header.h_free else "/h"
    units = {
        f"cm{per_h}": header.unit_length_in_cm,
        f"g{per_h}": header.unit_mass_in_g,
        "cm/s": header.unit_velocity_in_cm_per_s,
    }
    cosmology = {"Omega0": header.omega0, "OmegaLambda": header.omega_lambda, "h": header.hubble}
    size = sum(path.stat().st_size for path in first.paths)
    print_pairs(
        [
            ("files", f"{len(first.paths):,} ({bytes_in_words(size)}), the first is {first.paths[0]}"),
            ("recognised as", first.description),
            ("particle types", ", ".join(f"{num:,} of type {ptype}" for ptype, num in first.types.items())),
            *((f"type {snapshot.ptype}", ", ".join(_properties(snapshot))) for snapshot in snapshots),
            ("time and redshift", f"{number(header.time)} and {number(header.redshift)}"),
            ("cosmology", _known(cosmology, "{1} = {0}")),
            ("units", _known(units, "{0} {1}")),
        ],
        VERBOSE,
    )


def _properties(snapshot: io.Snapshot) -> Iterator[str]:
    """Yield descriptions such as ``pos float32 (3)``."""
    for name in snapshot.present(("pos",), _PROPERTIES):
        if name == "mass" and snapshot.shared_mass is not None:
            yield f"mass {number(snapshot.shared_mass)} each"
            continue
        dtype, shape = snapshot.layout(name)
        yield f"{name} {dtype}" + (f" ({', '.join(map(str, shape))})" if shape else "")


def _known(values: dict[str, float | None], form: str) -> str:
    words = [form.format(number(value), name) for name, value in values.items() if value is not None]
    return ", ".join(words) or "unknown"


@contextmanager
def compilation(report: Stage) -> Iterator[None]:
    """Add to the report of a stage the time that JAX spent on compiling, including tracing and lowering."""
    if not is_verbose():
        yield
        return
    spans: list[tuple[float, float]] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith(_COMPILING):
            now = time.perf_counter()
            spans.append((now - duration_secs, now))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    report.detail = f"{report.detail}, {_covered(spans):.3f} s of it compiling".lstrip(", ")


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the time covered by ``spans``, which may overlap: a nested trace is part of both spans."""
    seconds, end = 0.0, 0.0
    for begin, stop in sorted(spans):
        seconds += max(stop - max(begin, end), 0.0)
        end = max(end, stop)
    return seconds


@contextmanager
def rows_sent(mesh: Mesh) -> Iterator[None]:
    """Print the number of rows that the devices of this process send to others in the block."""
    if not is_verbose() or mesh.size == 1:
        yield
        return
    with stats.statistics() as counted:
        yield
    words = [f"{counted[name]:,} ({meaning})" for name, meaning in _ROWS.items() if name in counted.counts]
    whose = " by the devices of the first process" if io.is_shared(mesh) else ""
    say(f"  rows sent{whose}: {', '.join(words) or 'none'}", VERBOSE)
    if rounds := counted["rounds.union_find"]:
        say(f"  rounds of joining groups across devices: {rounds}", VERBOSE)


def print_memory_peak(mesh: Mesh) -> None:
    """Print the peak memory of this process, and of each of its GPUs."""
    if not is_verbose():
        return
    peaks = {"this process": _peak_of_process()}
    for device in mesh.local_devices:
        if device.platform != "cpu":
            peaks[str(device)] = (device.memory_stats() or {}).get("peak_bytes_in_use", 0)
    words = [f"{bytes_in_words(peak)} ({name})" for name, peak in peaks.items() if peak]
    print_pairs([("memory peak", ", ".join(words) or "unknown")], VERBOSE)


def _peak_of_process() -> int:
    """Return bytes, or 0 if the system does not report them."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
