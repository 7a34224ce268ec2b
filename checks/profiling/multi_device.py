"""Scaling of the library over devices: time per stage, rows sent, rounds, and compile time, relative to one device.

    python checks/profiling/multi_device.py --host-devices 4 --output profile.json --plot profile.png
    srun python checks/profiling/multi_device.py --weak 4000000 --strong 16000000 --output profile.json

Runs over any number of processes, and over the first 1, 2, 4, ... of their devices. Particles are uniform in a periodic
box, in random order, so nearly all have to be sent. Every stage is timed separately, after compilation. Its
runs alternate with runs of the same stage on one device with as many particles, because shared machines drift. Ratios
are ratios of medians. The ratio of CPU time, available for one process, is the additional work of the distribution.
Counts come from a separate run with `jztree.stats`. The rounds of the union-find are also counted for a chain that
winds through all devices, the worst case of the geometry.

Weak scaling fixes the number of particles per device, strong scaling the total number. Host devices of one CPU share
its cores, so neither gets faster with more devices, and the ratio to one device is the cost of the distribution.
"""

import argparse
import datetime
import importlib.metadata
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jztree as jz
from jztree import launch
from jztree.launch import leave_threads_for_callbacks
from jztree_utils import ics

K = 8
BOX = 1.0
_call_numbers = itertools.count()


# Measured stages


@dataclass(frozen=True, order=True)
class Case:
    """Particles uniform over the first ``devices`` devices, ``rows`` on each."""

    devices: int
    rows: int

    @property
    def total(self) -> int:
        return self.devices * self.rows

    def mesh(self) -> Mesh:
        auto = (jax.sharding.AxisType.Auto,)
        return jax.make_mesh((self.devices,), ("ranks",), axis_types=auto, devices=jax.devices()[: self.devices])


@dataclass(frozen=True)
class Stage:
    """A function of the library and its twin on one device.

    Attributes:
        options: Function that returns the options for the total number of particles.
        given: The input of the function: "part" in random order; "sorted" in z-order, like in a running simulation; or
            "tree", which adds the hierarchy of the sorted particles.
    """

    name: str
    over_devices: Any
    alone: Any
    options: Callable[[int], dict[str, Any]]
    given: str = "part"

    def of(self, function: Callable[..., Any], inputs: "Inputs") -> Any:
        """Call a twin of the function."""
        tree = {"th": inputs.th} if self.given == "tree" else {}
        particles = inputs.part if self.given == "part" else inputs.partz
        return function(particles, **tree, **self.options(inputs.total), boxsize=BOX)


@dataclass(frozen=True)
class Inputs:
    """Particles in random order, the same in z-order, and their hierarchy."""

    part: Any
    partz: Any
    th: Any
    total: int


def mean_radius(rnn: jax.Array, **_: Any) -> jax.Array:
    return jnp.mean(rnn, axis=-1)


def linked(b: float) -> Callable[[int], dict[str, Any]]:
    """Options for a linking length of ``b`` mean separations."""
    return lambda total: {"rlink": b * BOX * total ** (-1 / 3)}


def nearest(**options: Any) -> Callable[[int], dict[str, Any]]:
    return lambda _: {"k": K, **options}


def nothing(_: int) -> dict[str, Any]:
    return {}


_reduced = nearest(result="reduce", reduce_func=mean_radius)
STAGES = (
    Stage("zsort", jz.tree.distr_zsort, jz.tree.zsort, nothing),
    Stage("zsort and tree", jz.tree.zsort_and_tree, jz.tree.zsort_and_tree, nothing),
    Stage("knn", jz.knn.knn, jz.knn.knn, nearest()),
    Stage("knn, reduced", jz.knn.knn, jz.knn.knn, _reduced),
    Stage("knn, tree given", jz.knn.knn, jz.knn.knn, nearest(), given="tree"),
    Stage("labels b=0.2", jz.fof.distr_fof_labels, jz.fof.fof_labels, linked(0.2)),
    Stage("labels b=0.2, tree given", jz.fof.distr_fof_labels, jz.fof.fof_labels, linked(0.2), given="tree"),
    Stage("catalogue b=0.2", jz.fof.fof_and_catalogue, jz.fof.fof_and_catalogue, linked(0.2)),
    Stage("zsort, sorted", jz.tree.distr_zsort, jz.tree.zsort, nothing, given="sorted"),
    Stage("knn, sorted", jz.knn.knn, jz.knn.knn, nearest(), given="sorted"),
    Stage("labels b=0.2, sorted", jz.fof.distr_fof_labels, jz.fof.fof_labels, linked(0.2), given="sorted"),
    Stage("catalogue b=0.2, sorted", jz.fof.fof_and_catalogue, jz.fof.fof_and_catalogue, linked(0.2), given="sorted"),
    Stage("labels b=0.7", jz.fof.distr_fof_labels, jz.fof.fof_labels, linked(0.7)),
    Stage("catalogue b=0.7", jz.fof.fof_and_catalogue, jz.fof.fof_and_catalogue, linked(0.7)),
)


def inputs_over(mesh: Mesh, case: Case) -> Inputs:
    part = ics.uniform_particles.smap(mesh, jit=True)(case.rows)
    partz, th = jz.tree.zsort_and_tree.smap(mesh, jit=True)(part, boxsize=BOX)
    return Inputs(part, partz, th, case.total)


def inputs_alone(case: Case) -> Inputs:
    part = ics.uniform_particles(case.total)
    partz, th = jz.tree.zsort_and_tree.jit(part, boxsize=BOX)
    return Inputs(part, partz, th, case.total)


# Measurement


class Time(NamedTuple):
    """Wall-clock seconds, and the CPU seconds of this process, on which other programs have little influence."""

    wall: float
    cpu: float


def timed(call: Callable[[], Any]) -> Time:
    """Return the time until the result of ``call`` is ready."""
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(call())
    return Time(time.perf_counter() - wall, time.process_time() - cpu)


def counted(call: Callable[[], Any] | None) -> dict[str, int]:
    """Return the counts of `jztree.stats` in ``call``, summed over all processes. With None, this process counts 0."""
    with jz.stats.statistics() as counters:
        if call is not None:
            jax.block_until_ready(call())
    texts = launch.gather_texts(f"profiling/{next(_call_numbers)}", json.dumps(counters.counts))
    everyone = [json.loads(text) for text in texts]
    return {
        name: sum(numbers.get(name, 0) for numbers in everyone)
        for name in sorted({n for numbers in everyone for n in numbers})
    }


@dataclass
class Runs:
    """Times of a stage, over devices and on one; the first of each includes tracing and compiling."""

    over: list[Time] = field(default_factory=list)
    alone: list[Time] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        over, first = medians(self.over[1:]), self.over[0].wall
        result = {"seconds": over.wall, "first call seconds": first, "compile seconds": max(first - over.wall, 0.0)}
        if self.alone:
            alone = medians(self.alone[1:])
            result |= {"one device seconds": alone.wall, "ratio": over.wall / alone.wall}
        if self.alone and jax.process_count() == 1:
            result |= {"cpu seconds": over.cpu, "one device cpu seconds": alone.cpu, "cpu ratio": over.cpu / alone.cpu}
        return result


def medians(times: list[Time]) -> Time:
    return Time(statistics.median(time.wall for time in times), statistics.median(time.cpu for time in times))


def measure_stage(stage: Stage, mesh: Mesh, over: Inputs | None, alone: Inputs | None, runs: int) -> dict[str, Any]:
    """Return times and counts of one stage.

    Args:
        over: Input over the devices; None in a process without a device of the mesh.
        alone: Input on one device; None skips this run.
    """
    calls, mapped = Runs(), stage.over_devices.smap(mesh, jit=True)
    for _ in range(runs + 1):
        if over is not None:
            calls.over.append(timed(lambda: stage.of(mapped, over)))
        if alone is not None:
            calls.alone.append(timed(lambda: stage.of(stage.alone.jit, alone)))
    counts = counted(None if over is None else lambda: stage.of(mapped, over))
    return (calls.summary() if over is not None else {}) | {"counts": counts}


def takes_part(mesh: Mesh) -> bool:
    return any(device.process_index == jax.process_index() for device in mesh.devices.flat)


def measure(case: Case, stages: Sequence[Stage], runs: int, alone_up_to: int) -> dict[str, Any]:
    """Measure all stages of one case. Process 0 also runs them on one device, while the others wait for it."""
    mesh = case.mesh()
    over = inputs_over(mesh, case) if takes_part(mesh) else None
    alone = inputs_alone(case) if jax.process_index() == 0 and case.total <= alone_up_to else None
    result = {stage.name: measure_stage(stage, mesh, over, alone, runs) for stage in stages}
    return {"devices": case.devices, "rows": case.rows, "total": case.total, "stages": result}


# A chain through all devices


def serpentine(legs: int, devices: int) -> np.ndarray:
    """Return particles at unit distance on a line that crosses a long box ``legs`` times: ``(n, 3)`` float32, in order.

    The box is so long that z-order cuts it across, so every leg passes through all devices. Legs are at distance 2.
    """
    side = math.isqrt(legs - 1) + 1
    length = max(2 * side, 8) * devices
    along = np.arange(length, dtype=np.float32)
    parts: list[np.ndarray] = []
    for leg in range(legs):
        row, column = divmod(leg, side)
        place = np.array([0, 2 * (column if row % 2 == 0 else side - 1 - column), 2 * row], np.float32)
        points = np.stack([along[:: -1 if leg % 2 else 1], 0 * along, 0 * along], axis=-1) + place
        # One particle half-way connects one leg to the next.
        parts += [(parts[-1][-1] + points[0])[None] / 2, points] if parts else [points]
    return np.concatenate(parts)


def spread(pos: np.ndarray, mesh: Mesh) -> jz.data.Pos:
    """Distribute particles over the devices of ``mesh``. Every process holds the full ``pos``."""
    part = jz.data.expand_particles(jz.data.Pos(pos=pos, num=len(pos), num_total=len(pos)), mesh.size)

    def globally(leaf: Any) -> jax.Array:
        values = np.asarray(leaf)
        return jax.make_array_from_callback(values.shape, NamedSharding(mesh, P(*mesh.axis_names)), lambda i: values[i])

    return jax.tree.map(lambda leaf: globally(leaf) if np.ndim(leaf) else leaf, part)


def chain_rounds(legs: int, devices: int) -> dict[str, int]:
    """Return the rounds of the union-find for a chain that passes through all devices ``legs`` times."""
    mesh = Case(devices, 1).mesh()
    pos = np.random.default_rng(legs).permutation(serpentine(legs, devices))
    part = spread(pos, mesh) if takes_part(mesh) else None
    labels = jz.fof.distr_fof_labels.smap(mesh, jit=True)
    counts = counted(None if part is None else lambda: labels(part, 1.25))
    return {
        "devices": devices,
        "legs": legs,
        "particles": len(pos),
        "pieces": legs * (devices - 1) + 1,
        "rounds": counts.get("rounds.union_find", 0),
        "pointer jumps": counts.get("rounds.pointer_jumping", 0),
    }


# Output


def machine() -> dict[str, Any]:
    """Return the properties of the machine that affect the results."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "cpu": next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load average": os.getloadavg()[0],
        "platform": jax.default_backend(),
        "device kind": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
    }


def cases_of(devices: Sequence[int], weak: Sequence[int], strong: Sequence[int]) -> list[Case]:
    """Return each case once, even if weak and strong scaling share it."""
    requested = {Case(n, rows) for n in devices for rows in weak} | {
        Case(n, total // n) for n in devices for total in strong
    }
    return sorted(requested)


def table(result: dict[str, Any]) -> str:
    """Format the stages of one case, one per line, with rows sent in percent."""
    sent = ("sort", "ghosts", "results", "groups")
    heads = ["seconds", "one device", "ratio", "cpu ratio", "compile", *(f"{name} %" for name in sent), "rounds"]
    lines = [f"{result['devices']} devices, {result['rows']} particles each"]
    lines.append(f"{'':26}" + "".join(f"{head:>11}" for head in heads))
    for name, stage in result["stages"].items():
        numbers = [stage.get(key) for key in ("seconds", "one device seconds", "ratio", "cpu ratio", "compile seconds")]
        texts = ["" if number is None else f"{number:.3g}" for number in numbers]
        counts = stage["counts"]
        shares = [100 * counts[f"rows.{key}"] / result["total"] if f"rows.{key}" in counts else None for key in sent]
        texts += ["" if share is None else f"{share:.2f}" for share in shares]
        lines.append(f"{name:26}" + "".join(f"{text:>11}" for text in [*texts, counts.get("rounds.union_find", "")]))
    return "\n".join(lines)


def chain_table(chains: list[dict[str, int]]) -> str:
    lines = ["a chain through all devices", "".join(f"{key:>14}" for key in chains[0])]
    return "\n".join(lines + ["".join(f"{number:>14}" for number in chain.values()) for chain in chains])


def plot(results: dict[str, Any], path: Path) -> None:
    """Plot weak and strong scaling, with one line per stage, and the rounds of the chain."""
    try:
        import matplotlib as mpl  # noqa: PLC0415

        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError:
        launch.abort("--plot needs matplotlib; install it with 'pip install matplotlib', or leave --plot out.")
    figure, (weak, strong, rounds) = plt.subplots(1, 3, figsize=(13, 4.5), layout="constrained")
    draw_scaling(weak, results, "rows", results["weak"], "particles on each device")
    draw_scaling(strong, results, "total", results["strong"], "particles in all")
    figure.legend(*weak.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=7)
    draw_rounds(rounds, results["chains"])
    figure.savefig(path, dpi=70)


def draw_scaling(axes: Any, results: dict[str, Any], key: str, sizes: Sequence[int], what: str) -> None:
    """Plot the seconds of each stage over the number of devices, with one style per size."""
    for number, size in enumerate(sizes):
        cases = [case for case in results["cases"] if case[key] == size]
        devices = [case["devices"] for case in cases]
        for colour, name in enumerate(results["stages"]):
            seconds = [case["stages"][name]["seconds"] for case in cases]
            style = {
                "linestyle": ("-", ":", "--")[number % 3],
                "color": f"C{colour}",
                "label": None if number else name,
            }
            axes.plot(devices, seconds, marker="o", markersize=3, linewidth=1, **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(devices, [str(number) for number in devices])
    axes.set(yscale="log", xlabel="devices", ylabel="seconds", title=f"{', '.join(map(str, sizes))} {what}")


def draw_rounds(axes: Any, chains: list[dict[str, int]]) -> None:
    for devices in sorted({chain["devices"] for chain in chains}):
        selected = [chain for chain in chains if chain["devices"] == devices]
        pieces = [chain["pieces"] for chain in selected]
        axes.plot(pieces, [chain["rounds"] for chain in selected], "o-", label=f"rounds, {devices} devices")
        axes.plot(
            pieces, [chain["pointer jumps"] for chain in selected], "s:", label=f"pointer jumps, {devices} devices"
        )
    axes.set(xscale="log", xlabel="pieces of the chain", title="union-find of a chain through all devices")
    if chains:
        axes.legend(fontsize=7)


def numbers(text: str) -> list[int]:
    return [int(float(word)) for word in text.split(",") if word]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=numbers, help="numbers of devices (default: 1, 2, 4, ... and all)")
    parser.add_argument("--host-devices", type=int, metavar="NUM", help="emulate this number of devices on the CPU")
    parser.add_argument("--weak", type=numbers, default="250000", help="particles per device (default: %(default)s)")
    parser.add_argument("--strong", type=numbers, default="1000000", help="total particles (default: %(default)s)")
    parser.add_argument(
        "--legs", type=numbers, default="1,4,16,64,256", help="numbers of legs of chains (default: %(default)s)"
    )
    parser.add_argument("--stages", default="", help="run only stages with a word of this list in their names")
    parser.add_argument("--runs", type=int, default=5, help="counted runs, whose median counts (default: %(default)s)")
    parser.add_argument(
        "--alone-up-to",
        type=int,
        default=20_000_000,
        metavar="NUM",
        help="run on one device only up to this total of particles (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, help="save the results to this JSON file")
    parser.add_argument("--plot", type=Path, help="draw the results to this file")
    return parser.parse_args()


def default_devices() -> list[int]:
    every = jax.device_count()
    return sorted({2**i for i in range(every.bit_length()) if 2**i <= every} | {every})


def profile(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return all figures in nested dictionaries ready for JSON; print them after each measurement."""
    devices = arguments.devices or default_devices()
    words = arguments.stages.split(",")
    stages = [stage for stage in STAGES if any(word in stage.name for word in words)]
    speak = print if jax.process_index() == 0 else lambda *_, **__: None
    results: dict[str, Any] = {"machine": machine(), "runs": arguments.runs, "stages": [s.name for s in stages]}
    results |= {"weak": arguments.weak, "strong": [total // devices[-1] * devices[-1] for total in arguments.strong]}
    results |= {"cases": [], "chains": []}
    for case in cases_of(devices, arguments.weak, results["strong"]):
        results["cases"].append(measure(case, stages, arguments.runs, arguments.alone_up_to))
        speak(table(results["cases"][-1]), flush=True)
    for number, legs in itertools.product([number for number in devices if number > 1], arguments.legs):
        results["chains"].append(chain_rounds(legs, number))
    if results["chains"]:
        speak(chain_table(results["chains"]))
    results["machine"]["load average at the end"] = os.getloadavg()[0]
    return results


def main() -> None:
    """Measure, print and save."""
    arguments = parse_arguments()
    if arguments.host_devices:
        # JAX reads this when it starts its devices, after initialize().
        flag = f"--xla_force_host_platform_device_count={arguments.host_devices}"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
        leave_threads_for_callbacks()
    jz.comm.initialize()
    results = profile(arguments)
    if jax.process_index() == 0 and arguments.output:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    if jax.process_index() == 0 and arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
