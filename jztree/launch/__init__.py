"""Join processes that srun, mpirun or a user with JAX's variables has started. A single process works unchanged.

`initialize` reads the number of processes and the number of this process from the environment, and starts JAX's
distributed runtime with these numbers. It differs from JAX's own ``jax.distributed.initialize`` in these points:

* A single process on a host gets all GPUs of that host. If Slurm has bound a process to a GPU, the process gets this
  GPU. JAX takes the GPU whose number is the process's rank on the host, even if the process cannot see this GPU.
* Open MPI 5, MPICH, Intel MPI and PALS are detected. On one host the environment is sufficient; over several hosts the
  address of process 0 comes from Slurm, from mpi4py or from the user.
* gRPC, which JAX uses for coordination, does not send messages to process 0 through a web proxy.
* If one process raises or is killed, all processes end within seconds. If one exits early, those that wait for it end.
  Without this, a process that raises waits for its peers at exit, and they wait for it in a collective. SIGTERM ends a
  process. With JAX's preemption service, SIGTERM would have no effect.
* An error in a host callback on one device also ends all processes, if other devices wait for that one and cannot
  continue.

Importing this module starts nothing.
"""

import contextlib
import functools
import os
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import jax

from . import _agreement, _peers
from ._callbacks import watch_callbacks as watch_callbacks
from ._environments import Place, complete, detect, local_gpus, merge, num_visible_gpus, split_address
from ._host_devices import leave_threads_for_callbacks as leave_threads_for_callbacks
from ._peers import forget_failed_callbacks as forget_failed_callbacks
from ._waiting import calling as calling

__all__ = ["abort", "initialize", "should_init_jax_distributed"]

# JAX's default heartbeat timeout. Debuggers and batch systems suspend processes for a while.
_JAX_HEARTBEAT_SECONDS = 100

# Variables that gRPC reads; it ignores them in capitals.
_PROXY_VARIABLES, _NO_PROXY = ("grpc_proxy", "https_proxy", "http_proxy"), "no_grpc_proxy"


def should_init_jax_distributed() -> bool:
    """Return whether the environment shows that this process belongs to a start of several processes.

    It knows Slurm (inside srun), Open MPI, PMI (MPICH, Intel MPI, PALS), and JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES
    and JAX_PROCESS_ID.

    Returns:
        A bool.

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
    heartbeat_timeout_seconds: int | None = None,
    initialization_timeout_seconds: int = 60,
    end_together: bool = True,
) -> bool:
    """Combine the processes that were started together into one JAX program. If one fails, all end.

    Call it in every process before using a device. It does nothing in a single process, or at a second call. If you
    have called ``jax.distributed.initialize`` before, it only makes all processes end together. If not all processes
    start in time, it prints an explanation, and JAX raises an error or ends the process.

    Arguments that you omit come from the environment.

    Args:
        coordinator_address: ``host:port`` of process 0, the same in all processes.
        num_processes: The number of processes, the same in all processes.
        process_id: The number of this process, from 0.
        local_device_ids: The GPUs of this process, among those that it can see. By default, the processes on a host
            share the visible GPUs equally. If there are as many GPUs as processes, each process gets one. A single
            process gets all.
        heartbeat_timeout_seconds: If a process sends no heartbeat for this time, it counts as lost, and all others end.
            None means JAX's default, 100 s. While a debugger or a batch system suspends a process, it sends no
            heartbeats.
        initialization_timeout_seconds: The time to wait for all processes to start.
        end_together: Whether all processes end if one raises an exception or is killed. The others then print
            the reason. A process that raises an exception first reports it, calls `atexit` functions, and flushes open
            files, for at most 10 s. If a process ends early, for example by ``sys.exit``, the processes that compute
            something with it end. With False, JAX alone handles failures: the others then wait for ever for a process
            that has raised an exception. In interactive Python, this option has no effect.

    Returns:
        Whether there are several processes.

    Raises:
        ValueError: If numbers are missing or contradict each other, or if the coordinator is unknown.
        RuntimeError: If the port of the coordinator is in use, if this host cannot resolve its name, or if JAX has
            already started its devices.
    """
    heartbeat = _JAX_HEARTBEAT_SECONDS
    if not jax.distributed.is_initialized():
        heartbeat = heartbeat_timeout_seconds or _JAX_HEARTBEAT_SECONDS
        given = Place("arguments", num_processes, process_id, **split_address(coordinator_address))
        place = complete(merge(given, detect(os.environ)), os.environ)
        if place is None:
            return False
        _start(place, local_device_ids, heartbeat, initialization_timeout_seconds)
    state = _jax_state()
    if state.num_processes > 1 and end_together:
        _peers.end_together(state, heartbeat)
        watch_callbacks()
    return bool(state.num_processes > 1)


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
    peers = _peers.current()
    if peers is None:
        print(message, file=sys.stderr, flush=True)
        raise SystemExit(code)
    peers.end(message, message, code)


def gather_texts(name: str, text: str, timeout_seconds: int = 300) -> list[str]:
    """Return the ``text`` of every process, in the order of the processes.

    It uses JAX's coordinator, so it works before devices are started, and also if collectives do not work.

    Args:
        name: A new name for each call, the same in all processes.
        text: The text of this process.
        timeout_seconds: The time to wait for the other processes.

    Raises:
        jax.errors.JaxRuntimeError: If not all processes have called it within the time.
    """
    state = _jax_state()
    if state.client is None or state.num_processes == 1:
        return [text]
    folder = f"jztree/texts/{name}/"
    state.client.key_value_set(f"{folder}{state.process_id}", text)
    state.client.wait_at_barrier(f"jztree/texts/{name}", timeout_seconds * 1000)
    texts = {int(key.rpartition("/")[2]): value for key, value in state.client.key_value_dir_get(folder)}
    return [texts[process] for process in range(state.num_processes)]


def agree(call: str, processes: Iterable[int]) -> None:
    """Raise ValueError on all of ``processes`` if their calls differ; see `jztree.launch._agreement`."""
    _agreement.agree(call, processes, _jax_state())


def _start(place: Place, local_device_ids: int | Sequence[int] | None, heartbeat: int, initialization: int) -> None:
    assert place.host is not None
    assert place.port is not None
    _check_coordinator(place)
    _keep_off_proxies(place.host)
    if jax.config.values.get("jax_cpu_collectives_implementation") is None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    with contextlib.suppress(AttributeError):
        # JAX would warn about all variables with "_proxy" in their names, including Intel MPI's HYDRA_BSTRAP_PROXY_ID.
        jax.config.update("jax_check_proxy_envs", False)
    if "JAX_ENABLE_PREEMPTION_SERVICE" not in os.environ:
        # It would catch SIGTERM and wait for a call that jztree never makes, so scancel and mpirun could not end the
        # process.
        with contextlib.suppress(AttributeError):
            jax.config.update("jax_enable_preemption_service", False)
    if local_device_ids is None:
        local_device_ids = local_gpus(place, os.environ, num_visible_gpus(os.environ))
    late = threading.Timer(max(initialization - 2.5, 0), _say_that_it_took_too_long, (place, initialization))
    late.daemon = True
    late.start()
    try:
        with _giving_up_after(max(initialization - 2, 1)):
            jax.distributed.initialize(
                coordinator_address=f"{place.host}:{place.port}",
                num_processes=place.num_processes,
                process_id=place.process_id,
                local_device_ids=local_device_ids,
                # All values are known by now; detection would replace None by a GPU of its choice.
                cluster_detection_method="deactivate",
                heartbeat_timeout_seconds=heartbeat,
                initialization_timeout=initialization,
            )
    finally:
        late.cancel()


@contextlib.contextmanager
def _giving_up_after(seconds: int) -> Iterator[None]:
    """Make JAX's service in process 0 give up after ``seconds`` and report the missing processes.

    By default it waits an hour, while its clients give up after their own limit without this information. JAX has no
    public API for this.
    """
    from jax._src import distributed  # noqa: PLC0415

    library = distributed._jax
    service = library.get_distributed_runtime_service
    library.get_distributed_runtime_service = functools.partial(service, cluster_register_timeout=seconds)
    try:
        yield
    finally:
        library.get_distributed_runtime_service = service


def _say_that_it_took_too_long(place: Place, seconds: int) -> None:
    """Report the timeout just before JAX, which ends the process with a C++ stack trace."""
    assert place.host is not None
    assert place.port is not None
    try:
        socket.create_connection((place.host.strip("[]"), place.port), 0.3).close()
        what = "one has not started, has ended or cannot reach that address, and JAX names it below (task names); or "
        what += "another program listens on that port"
    except OSError as error:
        what = f"process 0 has not started, has ended, or cannot be reached at that address ({error})"
    _peers.print_at_once(
        f"jztree: process {place.process_id} on host {socket.gethostname()} has waited {seconds} s for all "
        f"{place.num_processes} processes to meet at {place.host}:{place.port}: {what}. If starting takes longer, "
        "pass initialization_timeout_seconds to initialize."
    )


def _check_coordinator(place: Place) -> None:
    """Raise RuntimeError for faults that would otherwise cause a silent wait of minutes, or an abort in C++."""
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
    """Let gRPC, and nothing else in this process, reach ``host`` without the proxy set in the environment.

    gRPC supports no wildcards in ``no_proxy``, so it must contain the host itself.
    """
    if any(os.environ.get(name) for name in _PROXY_VARIABLES):
        direct = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy") or ""
        os.environ[_NO_PROXY] = ",".join(filter(None, [direct, host.strip("[]")]))


def _jax_state() -> Any:
    """Return rank, number of processes and the client of the coordinator.

    JAX has no public API for these that does not start the devices.
    """
    from jax._src import distributed  # noqa: PLC0415

    return distributed.global_state
