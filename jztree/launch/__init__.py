"""Join processes that srun, mpirun or a user with JAX's variables has started. A single process works unchanged.

`initialize` reads the number of processes and the number of this process from the environment, and starts JAX's
distributed runtime with these numbers. It differs from JAX's own ``jax.distributed.initialize`` in these points:

* A single process on a host gets all GPUs of that host. If Slurm has bound a process to a GPU, the process gets this
  GPU. JAX takes the GPU whose number is the process's rank on the host, even if the process cannot see this GPU.
* Open MPI 5, MPICH, Intel MPI and PALS are detected. On one host the environment is sufficient; over several hosts the
  address of process 0 comes from Slurm, from mpi4py or from the user.
* gRPC, which JAX uses for coordination, does not send messages to process 0 through a web proxy.
* If one process ends by an exception, all others print its error and end within five seconds.
* SIGTERM ends a process. With JAX's preemption service, SIGTERM would have no effect.
"""

import os
import socket
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import jax

from . import _failure
from ._coordinator import agree as agree
from ._coordinator import coordinator
from ._coordinator import gather_texts as gather_texts
from ._environments import Place, complete, detect, local_gpus, merge, num_visible_gpus, split_address
from ._host_devices import leave_threads_for_callbacks as leave_threads_for_callbacks

__all__ = ["abort", "initialize", "should_init_jax_distributed"]

# Variables that gRPC reads; it ignores them in capitals.
_PROXY_VARIABLES, _NO_PROXY = ("grpc_proxy", "https_proxy", "http_proxy"), "no_grpc_proxy"


def should_init_jax_distributed() -> bool:
    """Return whether the environment shows that this process belongs to a start of several processes.

    It knows Slurm (inside srun), Open MPI, PMI (MPICH, Intel MPI, PALS), and JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES
    and JAX_PROCESS_ID.

    Raises:
        ValueError: If a variable should be a number but is not.
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
    heartbeat_timeout_seconds: int = 60,
    initialization_timeout_seconds: int = 60,
    shutdown_timeout_seconds: int = 300,
) -> bool:
    """Combine the processes that were started together into one JAX program. If one fails, all end.

    Call it in every process before using a device. It does nothing in a single process, or at a second call. If you
    have called ``jax.distributed.initialize`` before, it only makes all processes end together.

    If a process ends by an exception, all others print its name and its error, and end within five seconds. In this
    time, the failed process joins its threads, calls its `atexit` functions and flushes its files. All other faults are
    left to JAX and its three time limits. In interactive Python, an exception ends no process.

    Arguments that you omit come from the environment.

    Args:
        coordinator_address: ``host:port`` of process 0, the same in all processes.
        num_processes: The number of processes, the same in all processes.
        process_id: The number of this process, from 0.
        local_device_ids: The GPUs of this process, among the GPUs that it can see. By default, the processes on a host
            share the visible GPUs equally. If there are as many GPUs as processes, each process gets one. A single
            process gets all.
        heartbeat_timeout_seconds: If a process sends no heartbeat for this time, for example because it was killed, it
            counts as lost, and JAX ends all others. A process that a debugger or a batch system suspends sends none.
        initialization_timeout_seconds: If a process has not started within this time, JAX ends the others 5 s later.
        shutdown_timeout_seconds: If a process has ended without an exception, and others still run after this time, JAX
            ends them.

    Returns:
        Whether there are several processes.

    Raises:
        ValueError: If numbers are missing or contradict each other, or if the coordinator is unknown.
        RuntimeError: If the port of the coordinator is in use, if this host cannot resolve its name, or if JAX has
            already started its devices.
    """
    if not jax.distributed.is_initialized():
        given = Place("arguments", num_processes, process_id, **split_address(coordinator_address))
        place = complete(merge(given, detect(os.environ)), os.environ)
        if place is None:
            return False
        limits = {
            "heartbeat_timeout_seconds": heartbeat_timeout_seconds,
            "initialization_timeout": initialization_timeout_seconds,
            "shutdown_timeout_seconds": shutdown_timeout_seconds,
        }
        _start(place, local_device_ids, limits)
    several = bool(coordinator().num_processes > 1)
    if several:
        _failure.watch(coordinator())
    return several


def abort(message: str, code: int = 1) -> NoReturn:
    """Print ``message``, and end this process and all others immediately.

    Use it for errors that you report without a traceback. After ``sys.exit`` on one process, the others would wait. In
    a single process, or before `initialize`, it acts like ``sys.exit`` with a message.

    Args:
        message: The text to print.
        code: The exit code of this process.

    Raises:
        SystemExit: In a single process, or before `initialize`.
    """
    _failure.fail(message, code)


def _start(place: Place, local_device_ids: int | Sequence[int] | None, limits: dict[str, Any]) -> None:
    assert place.host is not None
    assert place.port is not None
    _check_coordinator(place.process_id, place.host.strip("[]"), place.port)
    _keep_off_proxies(place.host.strip("[]"))
    if jax.config.values.get("jax_cpu_collectives_implementation") is None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX would warn about all variables with "_proxy" in their names, including Intel MPI's HYDRA_BSTRAP_PROXY_ID.
    jax.config.update("jax_check_proxy_envs", False)
    if "JAX_ENABLE_PREEMPTION_SERVICE" not in os.environ:
        # It would catch SIGTERM, with which scancel and mpirun end processes.
        jax.config.update("jax_enable_preemption_service", False)
    if local_device_ids is None:
        local_device_ids = local_gpus(place, os.environ, num_visible_gpus(os.environ))
    seconds = limits["initialization_timeout"]
    report = (
        f"jztree: process {place.process_id} on host {socket.gethostname()} has waited {seconds} s for all "
        f"{place.num_processes} processes to meet at {place.host}:{place.port}; start all of them, check that they "
        "reach this address, or pass a longer initialization_timeout_seconds to initialize."
    )
    # JAX ends the process 5 s later, in C++, with a message that does not give the reason.
    timer = threading.Timer(seconds, _failure.print_at_once, (report,))
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            coordinator_address=f"{place.host}:{place.port}",
            num_processes=place.num_processes,
            process_id=place.process_id,
            local_device_ids=local_device_ids,
            # All values are known by now; detection would replace None by a GPU of its choice.
            cluster_detection_method="deactivate",
            **limits,
        )
    finally:
        timer.cancel()


def _check_coordinator(process_id: int | None, host: str, port: int) -> None:
    """Raise RuntimeError for faults that would otherwise cause a silent wait of minutes, or an abort in C++."""
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise RuntimeError(
            f"process {process_id} on host {socket.gethostname()} cannot find the address of {host}, the host of "
            f"process 0 ({error}); add that name to /etc/hosts, or set JAX_COORDINATOR_ADDRESS to an IP address and "
            "port of process 0."
        ) from error
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if process_id == 0:
                listener.bind(("", port))
        except OSError as error:
            raise RuntimeError(
                f"process 0 cannot listen on port {port} of host {socket.gethostname()} ({error.strerror}); set "
                "JAX_COORDINATOR_PORT to another port in all processes."
            ) from error


def _keep_off_proxies(host: str) -> None:
    """Let gRPC alone reach ``host`` without the proxy of the environment. gRPC has no wildcards in ``no_proxy``."""
    if any(os.environ.get(name) for name in _PROXY_VARIABLES):
        direct = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy") or ""
        os.environ[_NO_PROXY] = ",".join(filter(None, [direct, host]))
