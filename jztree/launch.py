"""Starting several processes: under srun, under mpirun, by JAX's own variables, or not at all.

`initialize` finds out from the environment how many processes there are and which one this is, and starts JAX's
distributed runtime with that. JAX detects some of it alone; what is different here, and why:

* One process with all GPUs of its host gets all of them, and one that Slurm has bound to its GPU gets that. JAX takes
  the GPU whose number is the process's rank on the host, whatever the process can see.
* Open MPI 5, MPICH, Intel MPI and PALS are found. On one host nothing but the environment is needed; over several
  hosts the address of process 0 comes from Slurm, from mpi4py or from the user.
* gRPC, which JAX uses to coordinate, is kept from sending what goes to process 0 through a web proxy.
* An error on one process ends all within seconds. Left alone, a process that raises waits at exit for its peers, and
  these wait for it in a collective. SIGTERM ends a process, where JAX's preemption service would swallow it.
* An error in a host callback on one device ends all too, if other devices wait for that one (`watch_callbacks`).

This module imports no other of jztree, and importing it starts nothing.
"""

import atexit
import contextlib
import dataclasses
import importlib
import logging
import os
import re
import socket
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import jax

__all__ = ["abort", "initialize", "should_init_jax_distributed"]

DEFAULT_HEARTBEAT_TIMEOUT_SECONDS = 30
"""After this time without a sign of life a process counts as gone. JAX's own 100 s keep a large job idle for longer
than is needed to tell a busy node from a dead one: a thread of its own, which needs no Python, sends the heartbeats."""

# Ports above what Linux hands out to clients (net.ipv4.ip_local_port_range), as in JAX's own detection.
_FIRST_PORT, _NUM_PORTS = 61440, 4096

# Time for a process to report the error that it shares with its peers by itself, before they end it.
_GRACE_SECONDS = 0.5
# What it may take to tell the peers; the coordinator may be gone.
_TELL_SECONDS = 3.0
# For how long a process may be at work after a peer has finished.
_FINISH_SECONDS = 3600
_FAILURE_KEY = "jztree/launch/failure"
# What JAX takes for the heartbeat timeout if the user starts its runtime and does not say.
_JAX_HEARTBEAT_SECONDS = 100
# Between the end of that timeout and the word of it.
_HEARTBEAT_MARGIN_SECONDS = 10
# What collectives say when a peer is gone; which one it was, they know only by the number of a port, or not at all.
_LOST_PEER = re.compile(r"(gloo|nccl).*(closed|peer|pipe|remote|reset)", re.IGNORECASE | re.DOTALL)

# Where JAX reports that a host callback has raised, and how.
_CALLBACK_LOGGERS = ("jax._src.callback", "jax._src.debugging")
_CALLBACK_FAILED = re.compile(r"jax\.\w+(\.\w+)? failed")
# Time for a program to be told of that by JAX, before it counts as stuck.
_STUCK_SECONDS = 3.0


@dataclass(frozen=True)
class Place:
    """What the environment says about the processes that were started together; None for what it does not say."""

    source: str
    num_processes: int | None = None
    process_id: int | None = None
    local_rank: int | None = None
    local_size: int | None = None
    host: str | None = None
    """Of process 0."""
    port: int | None = None
    job: str | None = None
    """The same for all processes that were started together, and for no others."""

    @property
    def on_one_host(self) -> bool:
        return self.num_processes is not None and self.local_size == self.num_processes


# Names of the variables of each launcher, by field; the first that is set counts. MPICH, Intel MPI and Cray's PALS
# share PMI.
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
# What gRPC reads; it does not know them in capitals.
_PROXY_VARIABLES, _NO_PROXY = ("grpc_proxy", "https_proxy", "http_proxy"), "no_grpc_proxy"


# Public


def should_init_jax_distributed() -> bool:
    """Whether the environment says that this is one of several processes that were started together.

    Knows Slurm (inside srun), Open MPI, PMI (MPICH, Intel MPI, PALS), and JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES
    and JAX_PROCESS_ID. Raises ValueError if one of these variables is not a number where it must be one.
    """
    place = detect(os.environ)
    if place.num_processes is None:
        return place.host is not None
    return place.num_processes > 1


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    *,
    heartbeat_timeout_seconds: int = DEFAULT_HEARTBEAT_TIMEOUT_SECONDS,
    initialization_timeout_seconds: int = 300,
) -> bool:
    """Make the processes that were started together one JAX program, and let an error on one of them end all.

    To be called before anything that uses a device. Does nothing in a process that is alone, nor when it is called
    again; after the user's own ``jax.distributed.initialize`` only the second half is done. Every process must call it.

    coordinator_address: ``host:port`` of process 0; what is not given here and below comes from the environment.
    num_processes, process_id: how many processes there are, and which this is, from 0.
    local_device_ids: the GPUs of this process among those it can see. By default the processes on a host share the
        visible GPUs evenly: one each if there are as many, all if there is one process.
    heartbeat_timeout_seconds: a process without a sign of life for this long is gone, and all others end.
    initialization_timeout_seconds: how long to wait for all processes to start.

    Returns whether there are several processes.

    Raises ValueError if numbers are missing or contradict each other, or if the coordinator cannot be known;
    RuntimeError if its port is taken, its name unknown to this host, or if JAX has started its devices already.
    """
    heartbeat = _JAX_HEARTBEAT_SECONDS
    if not jax.distributed.is_initialized():
        heartbeat = heartbeat_timeout_seconds
        given = Place("arguments", num_processes, process_id, **_split_address(coordinator_address))
        place = _complete(_merge(given, detect(os.environ)), os.environ)
        if place is None:
            return False
        _start(place, local_device_ids, heartbeat, initialization_timeout_seconds)
    state = _jax_state()
    if state.num_processes > 1:
        _end_together(state, heartbeat)
    return bool(state.num_processes > 1)


def abort(message: str, code: int = 1) -> NoReturn:
    """Print ``message`` and end this process and all its peers at once, this one with exit code ``code``.

    For errors that are reported without a traceback, where ``sys.exit`` on one process would leave the others waiting.
    Alone, or before `initialize`, it is ``sys.exit`` with a message. Raises SystemExit in that case.
    """
    if _watch is None:
        print(message, file=sys.stderr, flush=True)
        raise SystemExit(code)
    _watch.end(message, message, code)


def gather_texts(name: str, text: str, timeout_seconds: int = 300) -> list[str]:
    """What each process has given as ``text``, by process; to be called by all, every time with another ``name``.

    Goes through JAX's coordinator, so it works before devices are started and where collectives do not. Raises
    jax.errors.JaxRuntimeError if not all processes have come within ``timeout_seconds``.
    """
    state = _jax_state()
    if state.client is None or state.num_processes == 1:
        return [text]
    folder = f"jztree/texts/{name}/"
    state.client.key_value_set(f"{folder}{state.process_id}", text)
    state.client.wait_at_barrier(f"jztree/texts/{name}", timeout_seconds * 1000)
    texts = {int(key.rpartition("/")[2]): value for key, value in state.client.key_value_dir_get(folder)}
    return [texts[process] for process in range(state.num_processes)]


# What the environment says


def detect(environ: Mapping[str, str]) -> Place:
    """What launchers and the user have written into ``environ``; the user's JAX variables go first.

    Raises ValueError for what should be a number and is none.
    """
    slurm, mpi = _from_slurm(environ), _from_mpi(environ)
    place = Place("environment")
    if slurm is not None and mpi is not None:
        # mpirun inside a Slurm job starts its daemons with srun, whose ranks the processes inherit. srun with PMI
        # sets both, equal, and then Slurm knows more.
        equal = (slurm.num_processes, slurm.process_id) == (mpi.num_processes, mpi.process_id)
        place = slurm if equal else mpi
    elif slurm is not None or mpi is not None:
        place = slurm or mpi or place
    explicit = Place(
        "JAX variables",
        _number(environ, "JAX_NUM_PROCESSES"),
        _number(environ, "JAX_PROCESS_ID"),
        **_split_address(environ.get("JAX_COORDINATOR_ADDRESS")),
    )
    if explicit.port is None:
        explicit = dataclasses.replace(explicit, port=_number(environ, "JAX_COORDINATOR_PORT"))
    return _merge(explicit, place)


def _from_slurm(environ: Mapping[str, str]) -> Place | None:
    """This task of a job step. A batch script, where Slurm sets most of this too, is not in one."""
    if "SLURM_JOB_ID" not in environ or "SLURM_PROCID" not in environ or "SLURM_STEP_NODELIST" not in environ:
        return None
    # A shell that srun has started in an allocation of four tasks is a step of one task.
    num_processes = _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
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
        # The name of a host might not resolve, even on the host itself.
        host="127.0.0.1" if on_one_host else _first_host(environ["SLURM_STEP_NODELIST"]),
        # Steps of one job may run side by side on one node.
        job=f"{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '')}",
    )


def _from_mpi(environ: Mapping[str, str]) -> Place | None:
    for source, names in _MPI_VARIABLES.items():
        num_processes = _number(environ, *names["num_processes"])
        process_id = _number(environ, *names["process_id"])
        if num_processes is None or process_id is None:
            continue
        return Place(
            source,
            num_processes,
            process_id,
            _number(environ, *names["local_rank"]),
            _number(environ, *names["local_size"]),
            job=next((environ[name] for name in names["job"] if name in environ), None),
        )
    return None


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is set and not empty."""
    for name in names:
        text = environ.get(name, "")
        if text:
            try:
                return int(text)
            except ValueError:
                raise ValueError(f"the environment variable {name} must be a number; it is {text!r}.") from None
    return None


def _first_host(nodes: str) -> str:
    """The first name in Slurm's list: ``r1n005`` of ``r[1-2]n[005-007,009],login1``."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def _tasks_of_nodes(counts: str) -> list[int]:
    """``[4, 4, 3]`` of Slurm's ``4(x2),3``; empty if it is anything else."""
    tasks: list[int] = []
    for part in counts.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            return []
        tasks += [int(match[1])] * int(match[2] or 1)
    return tasks


def _split_address(address: str | None) -> dict[str, Any]:
    """Host and port of ``host:port``, ``[::1]:port`` or ``host``. Raises ValueError if the port is no number."""
    if not address:
        return {}
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        return {"host": address}
    if not port.isdecimal():
        raise ValueError(f"a coordinator address is host:port, with a number for the port; {address!r} was given.")
    return {"host": host, "port": int(port)}


def _merge(first: Place, second: Place) -> Place:
    """``first``, with what it leaves open taken from ``second``."""
    values = {
        field.name: getattr(second, field.name) if getattr(first, field.name) is None else getattr(first, field.name)
        for field in dataclasses.fields(Place)
    }
    known = first.num_processes is not None or first.process_id is not None
    return Place(**(values | {"source": first.source if known else second.source}))


# From there to what JAX needs


def _complete(place: Place, environ: Mapping[str, str]) -> Place | None:
    """``place`` with all that JAX needs, or None if there is one process. Raises ValueError if something is unknown."""
    if place.num_processes is None and place.process_id is None and place.host is None:
        return None
    if place.num_processes == 1:
        return None
    if place.num_processes is None or place.process_id is None:
        missing = "the number of processes" if place.num_processes is None else "the number of this process"
        raise ValueError(
            f"{missing} is not known although a start of several processes was asked for; start them with srun or "
            "mpirun, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in each."
        )
    if not 0 <= place.process_id < place.num_processes:
        raise ValueError(
            f"the number of a process must be from 0 to {place.num_processes - 1} among {place.num_processes} "
            f"processes; {place.process_id} was given by {place.source}."
        )
    if place.host is None and place.on_one_host:
        place = dataclasses.replace(place, host="127.0.0.1")
    if place.host is None:
        place = _find_coordinator(place, environ)
    if place.port is None:
        place = dataclasses.replace(place, port=_port_of_job(place, environ))
    return place


def _find_coordinator(place: Place, environ: Mapping[str, str]) -> Place:
    """``place`` with the host of process 0, of processes on several hosts. Raises ValueError if it cannot be known."""
    found = _ask_mpi4py(place)
    if found is not None:
        return dataclasses.replace(place, host=found[0], port=place.port or found[1])
    if "SLURM_JOB_NODELIST" in environ:
        # mpirun fills the nodes of a job in their order.
        return dataclasses.replace(place, host=_first_host(environ["SLURM_JOB_NODELIST"]))
    launcher = re.search(r"tcp://([^,:]+)[,:]", environ.get("OMPI_MCA_orte_hnp_uri", ""))
    if launcher is not None:
        # Up to Open MPI 4: where mpirun runs, which is the first host, unless a host file says otherwise.
        return dataclasses.replace(place, host=launcher[1])
    raise ValueError(
        f"process {place.process_id} of {place.num_processes} cannot know the host of process 0: the processes are on "
        f"several hosts and {place.source} does not tell; install mpi4py, or set JAX_COORDINATOR_ADDRESS to host:port "
        "of process 0."
    )


def _ask_mpi4py(place: Place) -> tuple[str, int] | None:
    """Host and a free port of process 0, told to all by MPI; None without mpi4py.

    Raises RuntimeError if mpi4py belongs to another MPI than the launcher: every process is then alone in it.
    """
    try:
        world = importlib.import_module("mpi4py.MPI").COMM_WORLD  # starts MPI
    except (ImportError, RuntimeError):  # the latter if mpi4py finds no MPI library
        return None
    if world.Get_size() != place.num_processes:
        raise RuntimeError(
            f"mpi4py sees {world.Get_size()} processes where {place.source} has started "
            f"{place.num_processes}: it was built for another MPI than the one that starts the processes; install it "
            "again with 'pip install --no-binary mpi4py mpi4py', or set JAX_COORDINATOR_ADDRESS to host:port of "
            "process 0."
        )
    mine = (socket.gethostname(), _free_port()) if place.process_id == 0 else None
    address: tuple[str, int] = world.bcast(mine, root=0)
    return address


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _port_of_job(place: Place, environ: Mapping[str, str]) -> int:
    """A port that is the same for all processes of a job, and most likely another one for another job."""
    job = place.job or next((environ[name] for name in ("PBS_JOBID", "LSB_JOBID", "JOB_ID") if name in environ), None)
    if job is None and place.on_one_host:
        job = str(_launcher_pid())  # MPICH names its jobs nowhere
    return _FIRST_PORT + zlib.crc32(f"jztree {job}".encode()) % _NUM_PORTS


def _launcher_pid() -> int:
    """The nearest MPI launcher that this process descends from, past shells between; else its parent."""
    pid = os.getppid()
    while pid > 1:
        try:
            name, fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)
        except OSError:
            break
        if re.search(r"hydra|mpiexec|mpirun|prte|orted", name):
            return pid
        pid = int(fields.split()[1])
    return os.getppid()


def local_gpus(place: Place, environ: Mapping[str, str], num_visible: int | None) -> list[int] | None:
    """The GPUs of this process, as places among the ``num_visible`` that it can see; None leaves it all of these.

    num_visible: None if that is not known, or if there are none.
    """
    if "JAX_LOCAL_DEVICE_IDS" in environ or num_visible is None:
        return None
    if place.local_rank is None or place.local_size is None or place.local_size < 2:
        return None
    if num_visible == 1:
        return None  # the launcher has given each process its own (--gpus-per-task)
    if num_visible % place.local_size == 0:
        share = num_visible // place.local_size
        return list(range(place.local_rank * share, (place.local_rank + 1) * share))
    return [place.local_rank % num_visible]


def num_visible_gpus(environ: Mapping[str, str]) -> int | None:
    """How many GPUs this process can see, without starting CUDA; None if there are none or nothing tells."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if name in environ:
            entries = [entry.strip() for entry in environ[name].split(",")]
            # Entries after one that is no device do not count (-1, or Slurm's NoDevFiles).
            valid = [bool(re.match(r"\d+$|GPU-|MIG-", entry)) for entry in entries] + [False]
            return valid.index(False) or None
    return len([path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdecimal()]) or None


# Starting JAX


def _start(place: Place, local_device_ids: int | Sequence[int] | None, heartbeat: int, initialization: int) -> None:
    assert place.host is not None
    assert place.port is not None
    _check_coordinator(place)
    _keep_off_proxies(place.host)
    if jax.config.values.get("jax_cpu_collectives_implementation") is None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with contextlib.suppress(AttributeError):
        # JAX would warn of all variables with "_proxy" in their names, one of them Intel MPI's HYDRA_BSTRAP_PROXY_ID.
        jax.config.update("jax_check_proxy_envs", False)
    if "JAX_ENABLE_PREEMPTION_SERVICE" not in os.environ:
        # It would catch SIGTERM and wait for a call that jztree never makes: scancel and mpirun could not end us.
        with contextlib.suppress(AttributeError):
            jax.config.update("jax_enable_preemption_service", False)
    if local_device_ids is None:
        local_device_ids = local_gpus(place, os.environ, num_visible_gpus(os.environ))
    jax.distributed.initialize(
        coordinator_address=f"{place.host}:{place.port}",
        num_processes=place.num_processes,
        process_id=place.process_id,
        local_device_ids=local_device_ids,
        # All is known by now; detection would put a GPU of its choice where there is None.
        cluster_detection_method="deactivate",
        heartbeat_timeout_seconds=heartbeat,
        initialization_timeout=initialization,
    )


def _check_coordinator(place: Place) -> None:
    """Raise RuntimeError for what would otherwise be a silent wait of minutes, or an abort in C++."""
    assert place.host is not None
    assert place.port is not None
    try:
        socket.getaddrinfo(place.host.strip("[]"), place.port)
    except OSError as error:
        raise RuntimeError(
            f"process {place.process_id} on host {socket.gethostname()} cannot find the address of {place.host}, the "
            f"host of process 0 ({error}); add that name to /etc/hosts, or set JAX_COORDINATOR_ADDRESS to an IP "
            "address and port of process 0."
        ) from error
    if place.process_id == 0:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", place.port))
            except OSError as error:
                raise RuntimeError(
                    f"process 0 cannot listen on port {place.port} of host {socket.gethostname()} ({error.strerror}); "
                    "set JAX_COORDINATOR_PORT to another port in all processes."
                ) from error


def _keep_off_proxies(host: str) -> None:
    """Let gRPC, and nothing else in this process, reach ``host`` without the proxy that the environment names.

    gRPC reads no wildcards in ``no_proxy``, so it must hold the host itself.
    """
    if any(os.environ.get(name) for name in _PROXY_VARIABLES):
        direct = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy") or ""
        os.environ[_NO_PROXY] = ",".join(filter(None, [direct, host.strip("[]")]))


def _jax_state() -> Any:
    """Rank, number of processes and the client of the coordinator.

    JAX has no public way to these that does not start the devices.
    """
    from jax._src import distributed  # noqa: PLC0415

    return distributed.global_state


# Ending together


class _Watch:
    """Tells the peers when this process fails, ends it when one of them does, and lets it leave when all have finished.

    The message travels through the key-value store of JAX's coordinator, where a thread of every process waits for one
    key. A process that is killed writes nothing; JAX ends its peers when its heartbeats stop.
    """

    def __init__(self, state: Any, heartbeat: int) -> None:
        self.state, self.heartbeat = state, heartbeat
        self.client = state.client
        self.process_id = int(state.process_id)
        self.num_processes = int(state.num_processes)
        self.pid = os.getpid()
        self.exit_code: object = None
        self.ending = threading.Event()
        self.listener = threading.Thread(target=self.listen, name="jztree peers", daemon=True)

    @property
    def name(self) -> str:
        return f"process {self.process_id} of {self.num_processes} on host {socket.gethostname()}"

    def start(self) -> None:
        self.plain_excepthook, self.plain_exit = sys.excepthook, sys.exit
        sys.excepthook, sys.exit = self.excepthook, self.exit
        # Runs before JAX's own, which was registered when JAX was imported.
        atexit.register(self.finish)
        self.listener.start()

    # How this process ends

    def excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != self.pid:  # a fork
            return self.plain_excepthook(kind, error, trace)
        lines = traceback.format_exception(kind, error, trace)
        summary = _summary_of(error)
        if _LOST_PEER.search(summary):
            self.wait_for_the_cause(summary)
        # From now on this process ends by itself.
        self.ending.set()
        report = f"jztree: {self.name} ends with this error, and with it all others:\n{''.join(lines)}"
        self.end(report, summary, 130 if issubclass(kind, KeyboardInterrupt) else 1)

    def wait_for_the_cause(self, summary: str) -> None:
        """Let this process be ended by what ended a peer: by the peer's own message, which `listen` gets, or by JAX,
        which names the peer when its heartbeats stop. Returns if neither comes.
        """
        # A peer that could say what it was has said so before it left.
        if not self.ending.wait(2 * _GRACE_SECONDS):
            _print_at_once(
                f"jztree: {self.name} has lost the connection to another process; which one will be known when that "
                f"process has missed its heartbeats for {self.heartbeat} s. What was seen here: {summary}"
            )
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(self.heartbeat + _HEARTBEAT_MARGIN_SECONDS)

    def exit(self, code: Any = None, /) -> NoReturn:
        """``sys.exit``, whose argument is told nowhere else."""
        self.exit_code = code
        self.plain_exit(code)

    def finish(self) -> None:
        """At exit: fail if ``sys.exit`` said so, else wait for the peers.

        JAX would wait too, but for 300 s, and then end those that are still at work, say writing a file.
        """
        if os.getpid() != self.pid or self.state.client is not self.client:
            return
        if self.exit_code not in (None, 0):
            code = self.exit_code if isinstance(self.exit_code, int) else 1
            self.end("", f"sys.exit({self.exit_code!r}) was called", code)
        try:
            jax.effects_barrier()
        except Exception:
            # JAX's own exit would stumble over this, and leave a connection open that aborts the process.
            traceback.print_exc()
            forget_failed_callbacks()
        with contextlib.suppress(Exception):
            self.client.wait_at_barrier("jztree/launch/finished", _FINISH_SECONDS * 1000)
            # A thread that is still inside gRPC would crash when Python ends; this wakes it.
            self.client.key_value_set(_FAILURE_KEY, "")
        self.listener.join(_TELL_SECONDS)

    def end(self, report: str, summary: str, code: int) -> NoReturn:
        """Print ``report``, tell the peers the ``summary``, and leave without waiting for anything."""
        self.ending.set()
        _print_at_once(report)
        # In a thread, because the coordinator may be out of reach.
        teller = threading.Thread(target=self.tell, args=(summary,), daemon=True)
        try:
            teller.start()
            teller.join(_TELL_SECONDS)
        except RuntimeError:  # at exit Python starts no threads any more
            self.tell(summary)
        self.leave(code)

    def tell(self, summary: str) -> None:
        # Another process may have failed before; its message is the one that counts.
        with contextlib.suppress(Exception):
            self.client.key_value_set(_FAILURE_KEY, f"{self.name} has failed: {summary}")

    def leave(self, code: int) -> NoReturn:
        if self.process_id == 0:
            # The coordinator ends with this process, and JAX aborts those that are still there.
            time.sleep(2 * _GRACE_SECONDS)
        os._exit(code)

    # How its peers end it

    def listen(self) -> None:
        message = self.wait_for_failure()
        if not message or self.ending.wait(_GRACE_SECONDS):
            return
        self.ending.set()
        _print_at_once(f"jztree: {self.name} ends because {message}")
        self.leave(1)

    def wait_for_failure(self) -> str:
        """What a peer says when it fails; empty once there is nothing to wait for any more."""
        while True:
            try:
                return str(self.client.blocking_key_value_get(_FAILURE_KEY, 3_600_000))
            except Exception as error:
                if "DEADLINE_EXCEEDED" in str(error):
                    continue
                if "UNAVAILABLE" in str(error) and self.process_id != 0:
                    # JAX notices at the same time and aborts the process, without naming the other.
                    where = f", which coordinates the others at {self.state.coordinator_address}"
                    _print_at_once(f"jztree: {self.name} ends because process 0{where}, is gone.")
                    os._exit(1)
                return ""  # JAX was shut down


_watch: _Watch | None = None


def _end_together(state: Any, heartbeat: int) -> None:
    """Start the watch, once. Not in an interactive Python, which should outlive an error."""
    global _watch  # noqa: PLW0603
    if _watch is None and not hasattr(sys, "ps1"):
        _watch = _Watch(state, heartbeat)
        _watch.start()
        watch_callbacks()


# Host callbacks


def watch_callbacks() -> None:
    """End this process and its peers when a host callback raises and other devices wait for the one that it was on.

    A device whose callback raises (`jax.debug.callback`, `jax.pure_callback`, `jax.experimental.io_callback`) leaves
    the computation. If the others are in a collective, Python does not get the error, because it waits for all
    devices: XLA aborts a process that is alone after 60 s on CPUs, and several processes wait for ever. Where nobody
    waits, the error comes out of JAX as always, and nothing is done here. May be called again.
    """
    for name in _CALLBACK_LOGGERS:
        # A filter sees the report without changing where it is printed, which a handler would.
        logging.getLogger(name).addFilter(_note_failed_callback)


def forget_failed_callbacks() -> None:
    """Let JAX forget the error of a run with host callbacks, once it has been reported.

    JAX keeps it, and raises it again whenever something waits for callbacks, `jax.effects_barrier` and the end of the
    process among it. There is no public way to this.
    """
    from jax._src import dispatch  # noqa: PLC0415

    dispatch.runtime_tokens.clear()


def _note_failed_callback(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and _CALLBACK_FAILED.fullmatch(record.getMessage()):
        threading.Thread(target=_end_if_stuck, args=(error,), name="jztree callbacks", daemon=True).start()
    return True


def _end_if_stuck(error: BaseException) -> None:
    """End because of the ``error`` of a callback if what was being computed then is not finished after a while."""
    time.sleep(_GRACE_SECONDS)  # until JAX has made the arrays that the computation will fill
    pending = [array for array in jax.live_arrays() if _is_pending(array)]
    time.sleep(_STUCK_SECONDS - _GRACE_SECONDS)
    if not any(_is_pending(array) for array in pending):
        return
    summary, text = _summary_of(error), "".join(traceback.format_exception(error))
    report = f"a host callback raised this error, and devices wait for the one that it was on:\n{text}"
    if hasattr(sys, "ps1"):
        _print_at_once(f"jztree: {report}")
    elif _watch is not None:
        _watch.end(f"jztree: {_watch.name} ends, and with it all others: {report}", summary, 1)
    else:
        _print_at_once(f"jztree: this process ends: {report}")
        os._exit(1)


def _is_pending(array: jax.Array) -> bool:
    with contextlib.suppress(RuntimeError):  # it may be deleted at any time
        return not array.is_deleted() and not array.is_ready()  # type: ignore[attr-defined]
    return False


def _summary_of(error: BaseException) -> str:
    """The last line of a traceback, without the notes that JAX adds to it."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _print_at_once(text: str) -> None:
    """One write, so that the messages of several processes do not mix; after what was printed before."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.write(text if text.endswith("\n") or not text else f"{text}\n")
        sys.stderr.flush()
