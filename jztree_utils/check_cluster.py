"""Checks how JAX runs here: ``python -m jztree_utils.check_cluster``, alone or with srun or mpirun in front.

Prints from process 0 what there is (processes, hosts, devices, CPUs, versions), tests the collectives that jztree uses
for right results and speed, and names well-known traps that it finds, each with what to do. The exit code is 1 if a
result is wrong or if the processes do not find each other.
"""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jztree
from jztree import launch
from jztree.launch import num_visible_gpus

AXIS = "ranks"
REPEATS = 5
STEP = 1009
"""Row ``i`` of rank ``r`` in the tests of collectives is ``r * STEP + i``."""
DEFAULT_MEGABYTES = (0.001, 1.0, 16.0)
# Under this many CPUs, communication of a GPU waits for its process. The published guide gives 8 to each.
CPUS_OF_A_GPU = 4
# A start takes seconds. After this time, say what might be in the way; JAX itself waits for 300 s.
PATIENCE_SECONDS = 20


@dataclass(frozen=True)
class Facts:
    """What a process finds out about itself and its host; from ``platform`` on, after JAX has started."""

    host: str
    address: str | None
    """What the host's own name resolves to."""
    num_cpus: int
    """Those that this process may use."""
    host_cpus: int
    host_gpus: int
    versions: tuple[str, ...]
    platform: str = ""
    device_kind: str = ""
    process_id: int = 0
    num_processes: int = 1
    num_local_devices: int = 0


@dataclass(frozen=True)
class Collective:
    """A collective, and what it must give.

    apply: takes ``(m,)`` int32 of a rank, with ``m`` a multiple of the number of ranks, and that number.
    expected: takes the rank, the number of ranks and ``m``, and returns what ``apply`` must give for `rows_of`.
    """

    name: str
    apply: Callable[[jax.Array, int], jax.Array]
    expected: Callable[[jax.Array, int, int], jax.Array]


@dataclass(frozen=True)
class Measurement:
    """Of one collective: wrong elements on the devices of this process, and seconds, the least of `REPEATS`."""

    num_wrong: int
    seconds: float
    megabytes: float


# What there is


def facts_before_start() -> Facts:
    return Facts(
        host=socket.gethostname(),
        address=_own_address(),
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        host_cpus=os.cpu_count() or 1,
        host_gpus=num_visible_gpus({}) or 0,
        versions=versions(),
    )


def facts_after_start(facts: Facts) -> Facts:
    devices = jax.local_devices()
    return dataclasses.replace(
        facts,
        platform=devices[0].platform,
        device_kind=devices[0].device_kind,
        process_id=jax.process_index(),
        num_processes=jax.process_count(),
        num_local_devices=len(devices),
    )


def _own_address() -> str | None:
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
    except OSError:
        return None


def versions() -> tuple[str, ...]:
    """Python and the packages that take part, those of GPUs and MPI if they are there."""
    found = [f"Python {platform.python_version()}", f"jztree {jztree.__version__}"]
    for name in ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "numpy", "mpi4py"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)


def gather_facts(facts: Facts) -> list[Facts]:
    """Those of all processes, without the collectives that are still to be tested."""
    texts = launch.gather_texts("check_cluster/facts", json.dumps(dataclasses.asdict(facts)))
    return [Facts(**(values | {"versions": tuple(values["versions"])})) for values in map(json.loads, texts)]


# Traps: each takes the environment, the facts of this process and those of all, and returns a sentence or None


def trap_alone(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    if facts.num_processes > 1:
        return None
    inside_step = "SLURM_STEP_NODELIST" in environ
    if not inside_step and "SLURM_JOB_ID" in environ and _is_several(environ.get("SLURM_NTASKS")):
        return (
            f"The Slurm job has {environ['SLURM_NTASKS']} tasks, but this process was started without srun and is "
            "alone: put srun in front of python."
        )
    # Launchers that jztree does not read, and those it reads if it then found one process all the same.
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE"):
        if _is_several(environ.get(name)):
            return (
                f"{name} says that {environ[name]} processes were started, but each is process 0 of 1: in each, set "
                "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, and unset what contradicts them."
            )
    if "PMIX_RANK" in environ and "OMPI_COMM_WORLD_SIZE" not in environ and not inside_step:
        return (
            "An MPI launcher has started this process, but no variable says how many there are: set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in each process."
        )
    return None


def trap_host_name(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    if facts.address is None:
        return (
            f"The host does not know its own name {facts.host}, and gloo, mpi4py or JAX may wait for it without end: "
            f'add a line "127.0.0.1 {facts.host}" to /etc/hosts (with its address in the network if there are several '
            "hosts)."
        )
    if len({one.host for one in everyone}) > 1 and (facts.address.startswith("127.") or facts.address == "::1"):
        return (
            f"The name {facts.host} stands for {facts.address} on that host, which the other hosts cannot reach: give "
            "the name its address in the network in /etc/hosts."
        )
    return None


def trap_proxy(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    proxies = [name for name in ("grpc_proxy", "https_proxy", "http_proxy") if environ.get(name)]
    if not proxies:
        return None
    exempt = [entry.strip() for entry in environ.get("no_proxy", "").split(",")]
    sentence = (
        f"{' and '.join(proxies)} would lead gRPC, with which JAX processes find each other, to a proxy; "
        "jztree.launch.initialize() goes around it, but for jax.distributed.initialize() unset it or list the hosts in "
        "no_proxy."
    )
    wildcards = [entry for entry in exempt if "*" in entry]
    if wildcards:
        sentence += f" gRPC reads no wildcards such as {wildcards[0]} in no_proxy."
    return sentence


def trap_few_cpus(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    asked = int(environ.get("SLURM_CPUS_PER_TASK") or 0)
    if asked > facts.num_cpus:
        return (
            f"--cpus-per-task is {asked} but a process may use {facts.num_cpus} of its host's {facts.host_cpus} CPUs: "
            "srun does not take the number from sbatch since Slurm 22.05, so put "
            "'export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK' before it."
        )
    needed = CPUS_OF_A_GPU * facts.num_local_devices if facts.platform == "gpu" else 2
    if facts.num_cpus >= min(needed, facts.host_cpus):
        return None
    if "SLURM_JOB_ID" in environ:
        remedy = "ask for more with --cpus-per-task, and export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
    elif "OMPI_COMM_WORLD_SIZE" in environ:
        remedy = "give mpirun the option --bind-to none, or --map-by slot:PE=8 for 8 CPUs each"
    else:
        remedy = "see taskset, or how your launcher binds processes to CPUs"
    return (
        f"A process may use {facts.num_cpus} of its host's {facts.host_cpus} CPUs, and communication needs "
        f"{needed} or more to be fast: {remedy}."
    )


def trap_several_gpus(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    if facts.platform != "gpu" or facts.num_local_devices == 1:
        return None
    return (
        f"A process drives {facts.num_local_devices} GPUs, which works but is slower than one process a GPU: start "
        f"{facts.num_local_devices} tasks for each of these, with --ntasks-per-node as large as the number in --gres."
    )


def trap_shared_gpus(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    neighbours = sum(one.host == facts.host for one in everyone)
    if facts.platform != "gpu" or not 0 < facts.host_gpus < neighbours:
        return None
    return (
        f"{neighbours} processes on {facts.host} share {facts.host_gpus} GPUs, which NCCL refuses: start one process a "
        "GPU."
    )


def trap_idle_gpus(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    chosen = environ.get("JAX_PLATFORMS") or environ.get("JAX_PLATFORM_NAME") or ""
    if facts.platform != "cpu" or facts.host_gpus == 0 or chosen.startswith("cpu"):
        return None
    return (
        f"JAX runs on the CPU of a host with {facts.host_gpus} GPUs: install jax[cuda12] or jax[cuda13], and see that "
        "CUDA_VISIBLE_DEVICES names some."
    )


def trap_unequal(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    if len({one.num_local_devices for one in everyone}) > 1:
        numbers = ", ".join(str(one.num_local_devices) for one in everyone)
        return f"Processes have different numbers of devices ({numbers}): give each the same --gres and the same tasks."
    if len({one.versions for one in everyone}) > 1:
        other = next(one for one in everyone if one.versions != everyone[0].versions)
        differ = ", ".join(sorted(set(other.versions) ^ set(everyone[0].versions)))
        return (
            f"Processes on {everyone[0].host} and {other.host} run different versions ({differ}): activate one of them."
        )
    return None


TRAPS = (
    trap_alone,
    trap_host_name,
    trap_proxy,
    trap_few_cpus,
    trap_several_gpus,
    trap_shared_gpus,
    trap_idle_gpus,
    trap_unequal,
)


def traps(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> list[str]:
    """The sentences of those traps in which this process is."""
    found = (trap(environ, facts, everyone) for trap in TRAPS)
    return [sentence for sentence in found if sentence is not None]


def _is_several(number: str | None) -> bool:
    return number is not None and number.isdecimal() and int(number) > 1


# Collectives


def _psum(x: jax.Array, num: int) -> jax.Array:
    return jax.lax.psum(x, AXIS)


def _psum_expected(rank: jax.Array, num: int, m: int) -> jax.Array:
    return num * jnp.arange(m, dtype=jnp.int32) + STEP * (num * (num - 1) // 2)


def _pmax(x: jax.Array, num: int) -> jax.Array:
    return jax.lax.pmax(x, AXIS)


def _pmax_expected(rank: jax.Array, num: int, m: int) -> jax.Array:
    return rows_of(num - 1, m)


def _all_gather(x: jax.Array, num: int) -> jax.Array:
    return jax.lax.all_gather(x[: len(x) // num], AXIS, tiled=True)


def _all_gather_expected(rank: jax.Array, num: int, m: int) -> jax.Array:
    sender, row = jnp.divmod(jnp.arange(m, dtype=jnp.int32), m // num)
    return sender * STEP + row


def _all_to_all(x: jax.Array, num: int) -> jax.Array:
    return jax.lax.all_to_all(x, AXIS, 0, 0, tiled=True)


def _all_to_all_expected(rank: jax.Array, num: int, m: int) -> jax.Array:
    return _all_gather_expected(rank, num, m) + rank * (m // num)


def _ppermute(x: jax.Array, num: int) -> jax.Array:
    return jax.lax.ppermute(x, AXIS, [(rank, (rank + 1) % num) for rank in range(num)])


def _ppermute_expected(rank: jax.Array, num: int, m: int) -> jax.Array:
    return rows_of((rank - 1) % num, m)


def _ragged_sizes(sender: jax.Array, receiver: jax.Array, block: int) -> jax.Array:
    """Rows that go from one rank to another: unequal, sometimes none, at most a block."""
    return block * ((sender + receiver) % 3) // 2


def _ragged_all_to_all(x: jax.Array, num: int) -> jax.Array:
    rank, ranks, block = jax.lax.axis_index(AXIS), jnp.arange(num, dtype=jnp.int32), len(x) // num
    return jax.lax.ragged_all_to_all(
        x,
        jnp.full(len(x), -1, jnp.int32),
        input_offsets=block * ranks,
        send_sizes=_ragged_sizes(rank, ranks, block),
        output_offsets=jnp.full(num, rank * block, jnp.int32),
        recv_sizes=_ragged_sizes(ranks, rank, block),
        axis_name=AXIS,
    )


def _ragged_all_to_all_expected(rank: jax.Array, num: int, m: int) -> jax.Array:
    sender, row = jnp.divmod(jnp.arange(m, dtype=jnp.int32), m // num)
    return jnp.where(row < _ragged_sizes(sender, rank, m // num), _all_to_all_expected(rank, num, m), -1)


COLLECTIVES = (
    Collective("psum", _psum, _psum_expected),
    Collective("pmax", _pmax, _pmax_expected),
    Collective("all_gather", _all_gather, _all_gather_expected),
    Collective("all_to_all", _all_to_all, _all_to_all_expected),
    Collective("ppermute", _ppermute, _ppermute_expected),
)
# XLA's CPU backend does not have it.
RAGGED = Collective("ragged_all_to_all", _ragged_all_to_all, _ragged_all_to_all_expected)


def rows_of(rank: jax.Array | int, m: int) -> jax.Array:
    """``(m,)`` int32, the test data of a rank."""
    return rank * STEP + jnp.arange(m, dtype=jnp.int32)


def measure(collective: Collective, megabytes: float, mesh: jax.sharding.Mesh) -> Measurement:
    """Run a collective on ``megabytes`` of int32 a rank, compare all results, and take the time."""
    num = mesh.size
    m = max(1, round(megabytes * 1e6 / 4 / num)) * num
    spec = jax.P(AXIS)

    def mapped(function: Callable[..., jax.Array], num_inputs: int) -> Callable[..., jax.Array]:
        # Without the check of replication, what a collective makes equal comes back from every rank, to be compared.
        inputs = (spec,) * num_inputs
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=spec, check_vma=False))

    def count_wrong(result: jax.Array) -> jax.Array:
        wrong = result != collective.expected(jax.lax.axis_index(AXIS), num, m)
        return jnp.sum(wrong, dtype=jnp.int32)[None]

    rows = mapped(lambda: rows_of(jax.lax.axis_index(AXIS), m), 0)()
    run = mapped(lambda x: collective.apply(x, num), 1)
    wrong = mapped(count_wrong, 1)(run(rows))
    num_wrong = sum(int(np.asarray(shard.data)[0]) for shard in wrong.addressable_shards)
    return Measurement(num_wrong, min(_seconds(run, rows) for _ in range(REPEATS)), m * 4 / 1e6)


def _seconds(run: Callable[[jax.Array], jax.Array], rows: jax.Array) -> float:
    start = time.perf_counter()
    run(rows).block_until_ready()
    return time.perf_counter() - start


# The report


def describe(everyone: Sequence[Facts]) -> str:
    first = everyone[0]
    hosts = list(dict.fromkeys(one.host for one in everyone))
    num_devices = sum(one.num_local_devices for one in everyone)
    shown = ", ".join(hosts[:8]) + (", ..." if len(hosts) > 8 else "")
    cpus = sorted({one.num_cpus for one in everyone})
    lines = {
        "processes": str(len(everyone)),
        "hosts": f"{len(hosts)} ({shown})",
        "devices": f"{num_devices} ({first.platform}, {first.device_kind}), {first.num_local_devices} a process",
        "CPUs": f"{' to '.join(map(str, {cpus[0]: 0, cpus[-1]: 0}))} a process, {first.host_cpus} on host {first.host}",
        "versions": ", ".join(first.versions),
    }
    return "\n".join(f"{name:<10} {text}" for name, text in lines.items())


def describe_traps(sentences_of_all: Sequence[Sequence[str]]) -> str:
    """Each sentence once, with the processes it holds for if these are not all."""
    lines = []
    for sentence in dict.fromkeys(sentence for sentences in sentences_of_all for sentence in sentences):
        those = [str(process) for process, sentences in enumerate(sentences_of_all) if sentence in sentences]
        some = f" (process {', '.join(those[:8])}{', ...' if len(those) > 8 else ''})"
        lines.append(f"! {sentence}{'' if len(those) == len(sentences_of_all) else some}")
    return "\n".join(lines)


def describe_measurement(measurement: Measurement, num_wrong: int) -> str:
    verdict = "ok" if num_wrong == 0 else f"WRONG in {num_wrong} elements"
    rate = measurement.megabytes / 1000 / measurement.seconds
    return f"{measurement.megabytes:9.3f} MB  {measurement.seconds * 1e3:9.3f} ms  {rate:8.3f} GB/s  {verdict}"


_WITHOUT_RAGGED = (
    "! ragged_all_to_all gives wrong results here; set JZTREE_EXCHANGE=dense in the environment of all processes, so "
    "that jztree moves particles with all_to_all instead."
)


def check_collectives(megabytes: Sequence[float], report: Callable[[str], None]) -> int:
    """Measure and report all; the number of wrong elements on all ranks."""
    report(f"{'collective':<18}{'a device':>12}  {'time':>12}  {'a device':>13}")
    mesh = jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    ragged = () if jax.default_backend() == "cpu" else (RAGGED,)
    total, wrong_ragged = 0, 0
    for collective in (*COLLECTIVES, *ragged):
        for size in megabytes:
            measurement = measure(collective, size, mesh)
            counts = launch.gather_texts(f"check_cluster/{collective.name}/{size}", str(measurement.num_wrong))
            num_wrong = sum(map(int, counts))
            total += num_wrong
            wrong_ragged += num_wrong if collective is RAGGED else 0
            report(f"{collective.name:<18}{describe_measurement(measurement, num_wrong)}")
    if wrong_ragged > 0:
        report(_WITHOUT_RAGGED)
    return total


# The command


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m jztree_utils.check_cluster", description=(__doc__ or "").strip())
    parser.add_argument(
        "--megabytes",
        type=float,
        nargs="+",
        default=list(DEFAULT_MEGABYTES),
        help="sizes of what each device sends (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout", type=float, default=300, help="seconds after which it gives up (default: %(default)s)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks; the exit code."""
    options = parse(arguments)
    with _alarm(options.timeout, lambda: _give_up(options.timeout)):
        before = facts_before_start()
        try:
            with _alarm(PATIENCE_SECONDS, lambda: _print_waiting(before)):
                launch.initialize()
                everyone = gather_facts(facts_after_start(before))
        except (ValueError, RuntimeError) as error:
            _print_lines(describe_traps([traps(os.environ, before, [before])]), f"The processes did not start: {error}")
            return 1
        facts = everyone[jax.process_index()]
        report = _print_lines if facts.process_id == 0 else _print_nothing
        report(describe(everyone), "")
        texts = launch.gather_texts("check_cluster/traps", json.dumps(traps(os.environ, facts, everyone)))
        found = describe_traps([json.loads(text) for text in texts])
        report(found or "None of the well-known traps.", "")
        num_wrong = check_collectives(options.megabytes, report)
    report("", "All results are right." if num_wrong == 0 else f"{num_wrong} elements are WRONG.")
    return 0 if num_wrong == 0 else 1


@contextlib.contextmanager
def _alarm(seconds: float, action: Callable[[], Any]) -> Iterator[None]:
    """Calls ``action`` if what is inside takes longer than ``seconds``; a thread, as the main one may be in a wait."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _print_waiting(facts: Facts) -> None:
    _print_lines(
        f"A process on {facts.host} has waited for its peers for {PATIENCE_SECONDS} s; what may be in the way:",
        describe_traps([traps(os.environ, facts, [facts])])
        or "none of the well-known traps; do all hosts allow connections to each other?",
    )


def _give_up(seconds: float) -> None:
    _print_lines(
        f"After {seconds:g} s a collective is still running on {socket.gethostname()}: NCCL_DEBUG=INFO in the "
        "environment makes NCCL say what it tries, and gloo needs host names that lead to each other."
    )
    os._exit(1)


def _print_lines(*lines: str) -> None:
    print(*(line for line in lines), sep="\n", flush=True)


def _print_nothing(*_: str) -> None:
    """What all processes but the first print."""


if __name__ == "__main__":
    sys.exit(main())
