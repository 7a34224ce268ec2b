"""Data about each process, its host and its devices."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import jax

import jztree
from jztree import launch
from jztree.launch import num_visible_gpus


@dataclass(frozen=True)
class Facts:
    """Data about a process and its host; entries from ``platform`` on need a running JAX."""

    host: str
    address: str | None
    """The address that the host's own name resolves to."""
    num_cpus: int
    """Number of CPUs that this process may use."""
    host_cpus: int
    host_gpus: int
    versions: tuple[str, ...]
    platform: str = ""
    device_kind: str = ""
    process_id: int = 0
    num_processes: int = 1
    num_local_devices: int = 0


def facts_before_start() -> Facts:
    """Return the data that need no devices and no peers."""
    return Facts(
        host=socket.gethostname(),
        address=_own_address(),
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        host_cpus=os.cpu_count() or 1,
        host_gpus=num_visible_gpus({}) or 0,
        versions=versions(),
    )


def facts_after_start(facts: Facts) -> Facts:
    """Return ``facts``, completed by JAX's data about devices and processes."""
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
    """Return the address that the host's own name resolves to, or None."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
    except OSError:
        return None


def versions() -> tuple[str, ...]:
    """Return the versions of Python and the relevant packages, also for GPUs and MPI if installed."""
    result = [f"Python {platform.python_version()}", f"jztree {jztree.__version__}"]
    for name in ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "numpy", "mpi4py"):
        try:
            result.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(result)


def gather_facts(facts: Facts) -> list[Facts]:
    """Return the facts from all processes, without the collectives that are not tested yet."""
    texts = launch.gather_texts("check_cluster/facts", json.dumps(dataclasses.asdict(facts)))
    return [Facts(**(values | {"versions": tuple(values["versions"])})) for values in map(json.loads, texts)]


def describe(everyone: Sequence[Facts]) -> str:
    """Describe the facts from all processes, in lines."""
    first = everyone[0]
    hosts = list(dict.fromkeys(process.host for process in everyone))
    num_devices = sum(process.num_local_devices for process in everyone)
    shown = ", ".join(hosts[:8]) + (", ..." if len(hosts) > 8 else "")
    cpus = sorted({process.num_cpus for process in everyone})
    lines = {
        "processes": str(len(everyone)),
        "hosts": f"{len(hosts)} ({shown})",
        "devices": f"{num_devices} ({first.platform}, {first.device_kind}), {first.num_local_devices} per process",
        "CPUs": f"{' to '.join(map(str, {cpus[0]: 0, cpus[-1]: 0}))} per process, {first.host_cpus} on host "
        "{first.host}",
        "versions": ", ".join(first.versions),
    }
    return "\n".join(f"{name:<10} {text}" for name, text in lines.items())
