"""Read launcher variables from the environment: number of processes, number of this one, address of process 0.

Slurm (inside srun), Open MPI, PMI (MPICH, Intel MPI, PALS), and JAX's own variables, which take precedence. On one host
this is sufficient; over several hosts the address of process 0 comes from Slurm, from mpi4py or from the user.
"""

import contextlib
import dataclasses
import importlib
import ipaddress
import os
import re
import socket
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Ports above the range of Linux for clients (net.ipv4.ip_local_port_range), like JAX's own detection.
_FIRST_PORT, _NUM_PORTS = 61440, 4096


@dataclass(frozen=True)
class Place:
    """The environment's information on the processes that were started together; None for unknown values."""

    source: str
    num_processes: int | None = None
    process_id: int | None = None
    local_rank: int | None = None
    local_size: int | None = None
    host: str | None = None
    """The host of process 0."""
    port: int | None = None
    job: str | None = None
    """A job name shared by all processes that were started together, and by no others."""

    @property
    def on_one_host(self) -> bool:
        return self.num_processes is not None and self.local_size == self.num_processes


# Variable names of each launcher, by field of `Place` and in its order; the first one that is set counts. MPICH, Intel
# MPI and Cray's PALS share PMI.
_MPI_VARIABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "Open MPI": {
        "num_processes": ("OMPI_COMM_WORLD_SIZE",),
        "process_id": ("OMPI_COMM_WORLD_RANK",),
        "local_rank": ("OMPI_COMM_WORLD_LOCAL_RANK",),
        "local_size": ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        "job": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"),
    },
    "PMI": {
        "num_processes": ("PMI_SIZE", "PALS_SIZE"),
        "process_id": ("PMI_RANK", "PALS_RANKID"),
        "local_rank": ("PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID"),
        "local_size": ("PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "MPI_LOCALNRANKS"),
        "job": ("PALS_APID", "PMI_JOBID", "I_MPI_HYDRA_UUID"),
    },
}

# Variables for the connection of a process to the PMI launcher that started it.
_PMI_CONNECTIONS = ("PMI_FD", "PMI_PORT", "PMI_CONTROL_FD", "PALS_APID")


def detect(environ: Mapping[str, str]) -> Place:
    """Read the variables of launchers and of the user from ``environ``; the user's JAX variables take precedence.

    Raises:
        ValueError: If a variable should be a number but is not.
    """
    slurm, mpi = _from_slurm(environ), _from_mpi(environ)
    place = slurm or mpi or Place("environment")
    if slurm is not None and mpi is not None:
        # mpirun inside a Slurm job starts its daemons with srun, and the processes inherit their ranks. srun with PMI
        # sets both kinds of variables, with equal values, and then Slurm knows more.
        equal = (slurm.num_processes, slurm.process_id) == (mpi.num_processes, mpi.process_id)
        # A single PMI process whose launcher cannot be reached is that of a shell or container around this task.
        inherited = mpi.source == "PMI" and mpi.num_processes == 1 and not any(map(environ.get, _PMI_CONNECTIONS))
        place = slurm if equal or inherited else mpi
    address = split_address(environ.get("JAX_COORDINATOR_ADDRESS"))
    address.setdefault("port", _number(environ, "JAX_COORDINATOR_PORT"))
    count, number = _number(environ, "JAX_NUM_PROCESSES"), _number(environ, "JAX_PROCESS_ID")
    return merge(Place("JAX variables", count, number, **address), place)


def _from_slurm(environ: Mapping[str, str]) -> Place | None:
    """Return this task of a job step. A batch script is not in a step, although Slurm sets most variables there."""
    # A shell that srun starts in an allocation of four tasks is a step of one task.
    in_step = {"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_STEP_NODELIST"} <= environ.keys()
    num_processes = _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if in_step else None
    if num_processes is None:
        return None
    tasks = _tasks_of_nodes(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number(environ, "SLURM_NODEID") or 0
    local_size = tasks[node] if node < len(tasks) else None
    on_one_host = _number(environ, "SLURM_STEP_NUM_NODES") == 1 or local_size == num_processes
    return Place(
        "Slurm",
        num_processes,
        _number(environ, "SLURM_PROCID"),
        _number(environ, "SLURM_LOCALID"),
        num_processes if on_one_host else local_size,
        # A host name might not resolve, even on the host itself.
        host="127.0.0.1" if on_one_host else _first_host(environ["SLURM_STEP_NODELIST"]),
        # Several steps of one job may run at the same time on one node.
        job=f"{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}",
    )


def _from_mpi(environ: Mapping[str, str]) -> Place | None:
    for source, names in _MPI_VARIABLES.items():
        count, number, rank, size = (_number(environ, *names[field]) for field in names if field != "job")
        if count is not None and number is not None:
            return Place(source, count, number, rank, size, job=_first_set(environ, *names["job"]))
    return None


def _first_set(environ: Mapping[str, str], *names: str) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the first variable in ``names`` that is set and not empty, as a number."""
    for name in names:
        if text := environ.get(name):
            try:
                return int(text)
            except ValueError:
                raise ValueError(f"the environment variable {name} must be a number; it is {text!r}.") from None
    return None


def _first_host(nodes: str) -> str:
    """Return the first name in Slurm's list: ``r1n005`` of ``r[1-2]n[005-007,009],login1``."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def _tasks_of_nodes(counts: str) -> list[int]:
    """Return ``[4, 4, 3]`` for Slurm's ``4(x2),3``; empty for any other format."""
    parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip()) for part in counts.split(",")]
    return [] if None in parts else [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))]


def split_address(address: str | None) -> dict[str, Any]:
    """Split ``host:port``, ``[::1]:port``, ``host`` or ``::1`` into host and port.

    Raises:
        ValueError: If the port is not a number.
    """
    if not address:
        return {}
    with contextlib.suppress(ValueError):
        # An IPv6 address without brackets has no port.
        return {"host": f"[{ipaddress.IPv6Address(address)}]"}
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        return {"host": address}
    if not port.isdecimal():
        raise ValueError(f"the coordinator address must be host:port, with a number as the port, not {address!r}.")
    return {"host": host, "port": int(port)}


def merge(first: Place, second: Place) -> Place:
    """Return ``first`` with its missing values taken from ``second``."""
    values = {name: value for name, value in vars(first).items() if value is not None}
    if first.num_processes is None and first.process_id is None:
        values["source"] = second.source
    return dataclasses.replace(second, **values)


def complete(place: Place, environ: Mapping[str, str]) -> Place | None:
    """Return ``place`` with all values that JAX needs, or None for a single process.

    Raises:
        ValueError: If a value is unknown.
    """
    if place.num_processes == 1 or (place.num_processes, place.process_id, place.host) == (None, None, None):
        return None
    if place.num_processes is None or place.process_id is None:
        missing = "the number of processes" if place.num_processes is None else "the number of this process"
        raise ValueError(
            f"{missing} is unknown, but a start of several processes was requested; start them with srun or mpirun, or "
            "set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in each."
        )
    if not 0 <= place.process_id < place.num_processes:
        raise ValueError(
            f"the number of this process is {place.process_id}, from {place.source}; with {place.num_processes} "
            f"processes it must be from 0 to {place.num_processes - 1}."
        )
    if place.port is not None and not 0 < place.port < 65536:
        raise ValueError(f"the port of process 0 is {place.port}; it must be from 1 to 65535.")
    if place.host is None and place.on_one_host:
        place = dataclasses.replace(place, host="127.0.0.1")
    if place.host is None:
        place = _find_coordinator(place, environ)
    return dataclasses.replace(place, port=place.port or _port_of_job(place, environ))


def _find_coordinator(place: Place, environ: Mapping[str, str]) -> Place:
    """Add the host of process 0 to a ``place`` on several hosts. Raise ValueError if it is unknown."""
    found = _ask_mpi4py(place)
    if found is not None:
        return dataclasses.replace(place, host=found[0], port=place.port or found[1])
    if "SLURM_JOB_NODELIST" in environ:
        # mpirun fills the nodes of a job in order.
        return dataclasses.replace(place, host=_first_host(environ["SLURM_JOB_NODELIST"]))
    launcher = re.search(r"tcp://([^,:]+)[,:]", environ.get("OMPI_MCA_orte_hnp_uri", ""))
    if launcher is not None:
        # Up to Open MPI 4: the host of mpirun, which is the first host unless a host file differs.
        return dataclasses.replace(place, host=launcher[1])
    raise ValueError(
        f"process {place.process_id} of {place.num_processes} cannot know the host of process 0: the processes are on "
        f"several hosts and {place.source} does not name it; install mpi4py, or set JAX_COORDINATOR_ADDRESS to "
        "host:port of process 0."
    )


def _ask_mpi4py(place: Place) -> tuple[str, int] | None:
    """Return host and a free port of process 0, broadcast by MPI; None without mpi4py.

    Raises:
        RuntimeError: If mpi4py was built for another MPI than the launcher's: then it sees every process as a single
            one.
    """
    try:
        world = importlib.import_module("mpi4py.MPI").COMM_WORLD  # starts MPI
    except (ImportError, RuntimeError):  # RuntimeError if mpi4py finds no MPI library
        return None
    if world.Get_size() != place.num_processes:
        raise RuntimeError(
            f"mpi4py sees {world.Get_size()} processes, but {place.source} has started "
            f"{place.num_processes}: it was built for another MPI than the one that starts the processes; install it "
            "again with 'pip install --no-binary mpi4py mpi4py', or set JAX_COORDINATOR_ADDRESS to host:port of "
            "process 0."
        )
    with socket.create_server(("", 0)) as listener:
        own_address = socket.gethostname(), int(listener.getsockname()[1])
    address: tuple[str, int] = world.bcast(own_address, root=0)
    return address


def _port_of_job(place: Place, environ: Mapping[str, str]) -> int:
    """Return a port that is the same for all processes of a job, and most likely differs between jobs."""
    job = place.job or _first_set(environ, "PBS_JOBID", "LSB_JOBID", "JOB_ID")
    if job is None and place.on_one_host:
        job = str(_launcher_pid())  # MPICH provides no job name
    return _FIRST_PORT + zlib.crc32(f"jztree {job}".encode()) % _NUM_PORTS


def _launcher_pid() -> int:
    """Return the nearest MPI launcher among the ancestors of this process, or its parent without such an ancestor."""
    pid = os.getppid()
    with contextlib.suppress(OSError):
        while pid > 1:
            name, fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)
            if re.search(r"hydra|mpiexec|mpirun|prte|orted", name):
                return pid
            pid = int(fields.split()[1])
    return os.getppid()


def local_gpus(place: Place, environ: Mapping[str, str], num_visible: int | None) -> list[int] | None:
    """Return the GPUs of this process, as positions among the visible GPUs; None means all visible GPUs.

    ``num_visible`` is their number, or None if it is unknown or 0.
    """
    if place.local_rank is None or place.local_size is None or place.local_size < 2 or num_visible is None:
        return None
    if num_visible == 1 or "JAX_LOCAL_DEVICE_IDS" in environ:
        return None  # the launcher has assigned one to each process (--gpus-per-task), or the user has chosen
    if num_visible % place.local_size == 0:
        share = num_visible // place.local_size
        return list(range(place.local_rank * share, (place.local_rank + 1) * share))
    return [place.local_rank % num_visible]


def num_visible_gpus(environ: Mapping[str, str]) -> int | None:
    """Return the number of visible GPUs, without starting CUDA; None if it is unknown or 0."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if name in environ:
            entries = [entry.strip() for entry in environ[name].split(",")]
            # Entries after an invalid device (-1, or Slurm's NoDevFiles) do not count.
            valid = [bool(re.match(r"\d+$|GPU-|MIG-", entry)) for entry in entries] + [False]
            return valid.index(False) or None
    return len([path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdecimal()]) or None
