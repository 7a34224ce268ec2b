"""How `jztree.launch` reads the environments of launchers, and its errors for incomplete ones."""

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gpus
import jax
import pytest

from jztree import launch
from jztree.launch import _environments as environment
from jztree.launch import _failure

pytestmark = pytest.mark.fast

# Variables that Slurm sets in task 5 of `srun -N2 -n6 --gres=gpu:4` in a larger job.
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "r[1-2]n[005-006],r3n[001,004-008]",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NODELIST": "r1n[005-006]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
SLURM_ONE_NODE = SLURM | {
    "SLURM_STEP_NODELIST": "r1n005",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "6",
    "SLURM_NODEID": "0",
}
# Variables in the job's batch script, before srun.
SLURM_BATCH = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
# Open MPI 5.0
OMPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "PMIX_NAMESPACE": "prterun-login1-22966@1",
}
# MPICH 5.0
MPICH = {"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1", "PMI_FD": "9"}
PALS = {"PALS_APID": "a-b-c", "PALS_RANKID": "2", "PALS_LOCAL_RANKID": "0", "PMI_SIZE": "4", "PMI_LOCAL_SIZE": "2"}
JAX = {"JAX_COORDINATOR_ADDRESS": "node7:1234", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "0"}

LAUNCHERS = ("SLURM_", "OMPI_", "PMI", "PALS_", "MPI_LOCAL", "JAX_COORDINATOR", "JAX_NUM_PROC", "JAX_PROCESS")


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch):
    """Add variables to an environment that is otherwise that of a single process."""
    for name in list(launch.os.environ):
        if name.startswith((*LAUNCHERS, "CUDA_", "PBS_")) or name.endswith("_proxy"):
            monkeypatch.delenv(name)

    def put(*parts: dict[str, str]) -> None:
        for part in parts:
            for name, value in part.items():
                monkeypatch.setenv(name, value)

    return put


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch):
    """Record the arguments for starting JAX, but do not start it. `initialize` otherwise sees a single process."""
    calls: list[dict] = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **arguments: calls.append(arguments))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(launch, "coordinator", lambda: SimpleNamespace(num_processes=1))
    monkeypatch.setattr(launch, "num_visible_gpus", lambda _: None)
    monkeypatch.setattr(environment, "_ask_mpi4py", lambda _: None)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    return calls


# Detection


@pytest.mark.parametrize(
    ("environment", "several"),
    [
        ({}, False),
        (SLURM, True),
        (SLURM_BATCH, False),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, False),  # srun --pty bash
        (OMPI, True),
        (OMPI | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, False),
        (MPICH, True),
        (PALS, True),
        (JAX, True),
        ({"JAX_COORDINATOR_ADDRESS": "node7:1234"}, True),
        (JAX | {"JAX_NUM_PROCESSES": "1"}, False),
        (SLURM | {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, False),
        (SLURM | {"PMI_SIZE": "1", "PMI_RANK": "0"}, True),  # from the shell that submitted the job
        (SLURM | {"PMI_SIZE": "1", "PMI_RANK": "0", "PMI_FD": "9"}, False),  # mpirun -n 1 in a job
    ],
)
def test_several_processes_are_detected_from_the_environment(environ, environment, several) -> None:
    environ(environment)
    assert launch.should_init_jax_distributed() is several


def test_single_process_starts_nothing(environ, started) -> None:
    assert launch.initialize() is False
    environ(SLURM_BATCH)
    assert launch.initialize() is False
    assert started == []
    assert sys.excepthook is sys.__excepthook__ or "launch" not in sys.excepthook.__module__


def test_importing_initializes_no_device() -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(launch.__file__).parents[1])!r})
import jztree.launch
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
assert "mpi4py" not in sys.modules
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


# Variables that are read


def test_slurm_over_nodes() -> None:
    place = environment.detect(SLURM)
    assert place == environment.Place("Slurm", 6, 5, 1, 2, host="r1n005", job="4711.1")
    assert not place.on_one_host


def test_slurm_on_one_node() -> None:
    place = environment.detect(SLURM_ONE_NODE)
    assert (place.host, place.local_size, place.on_one_host) == ("127.0.0.1", 6, True)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node001", "node001"),
        ("node001,host2", "node001"),
        ("node[001-0015],host2", "node001"),
        ("node[007,009-015]-ib", "node007-ib"),
        ("r[1-2]n[005-006],login1", "r1n005"),
    ],
)
def test_first_host(nodes, first) -> None:
    assert environment._first_host(nodes) == first


def test_tasks_of_nodes() -> None:
    assert environment._tasks_of_nodes("4(x2),3") == [4, 4, 3]
    assert environment._tasks_of_nodes("8") == [8]
    assert environment._tasks_of_nodes("") == []


def test_open_mpi() -> None:
    place = environment.detect(OMPI)
    assert place == environment.Place("Open MPI", 4, 3, 3, 4, job="prterun-login1-22966@1")
    assert place.on_one_host


def test_mpich_and_pals() -> None:
    assert environment.detect(MPICH) == environment.Place("PMI", 2, 1, 1, 2)
    assert environment.detect(PALS) == environment.Place("PMI", 4, 2, 0, 2, job="a-b-c")


def test_mpirun_inside_a_slurm_job_takes_precedence() -> None:
    # The daemons of mpirun are tasks of a separate step, and their variables are inherited.
    daemon = SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    assert environment.detect(daemon | OMPI).source == "Open MPI"
    assert environment.detect(SLURM_BATCH | OMPI).source == "Open MPI"


def test_srun_with_pmi_is_slurm() -> None:
    place = environment.detect(SLURM | {"PMI_SIZE": "6", "PMI_RANK": "5"})
    assert (place.source, place.host) == ("Slurm", "r1n005")


def test_user_variables_take_precedence() -> None:
    place = environment.detect(SLURM | {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:99"})
    assert (place.num_processes, place.host, place.port) == (6, "10.0.0.1", 99)
    assert environment.detect(OMPI | JAX).num_processes == 3
    assert environment.detect(OMPI | {"JAX_COORDINATOR_PORT": "77"}).port == 77
    assert environment.split_address("[::1]:80") == {"host": "[::1]", "port": 80}
    assert environment.split_address("node7") == {"host": "node7"}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES must be a number; it is 'two'"),
        (SLURM | {"SLURM_PROCID": "x"}, "SLURM_PROCID must be a number"),
        ({"JAX_COORDINATOR_ADDRESS": "node:port"}, "with a number as the port, not 'node:port'"),
    ],
)
def test_environment_variables_that_are_not_numbers_raise(environ, environment, message) -> None:
    environ(environment)
    with pytest.raises(ValueError, match=message):
        launch.should_init_jax_distributed()


# Arguments for JAX


def test_start_under_slurm(environ, started) -> None:
    environ(SLURM)
    launch.initialize(heartbeat_timeout_seconds=7)
    (call,) = started
    assert call["coordinator_address"].startswith("r1n005:6")
    assert (call["num_processes"], call["process_id"], call["local_device_ids"]) == (6, 5, None)
    assert call["heartbeat_timeout_seconds"] == 7


def test_start_on_one_host_needs_no_name(environ, started) -> None:
    environ(OMPI)
    launch.initialize()
    assert started[0]["coordinator_address"].startswith("127.0.0.1:6")


def test_explicit_arguments_take_precedence(environ, started) -> None:
    environ(SLURM, JAX)
    launch.initialize("host:5", num_processes=9, process_id=8, local_device_ids=3)
    assert started[0]["coordinator_address"] == "host:5"
    assert (started[0]["num_processes"], started[0]["process_id"], started[0]["local_device_ids"]) == (9, 8, 3)


def test_ports_of_different_jobs_differ() -> None:
    ports = [environment._port_of_job(environment.Place("Slurm", 2, job=f"4711.{step}"), {}) for step in range(50)]
    assert len(set(ports)) > 45
    assert all(61440 <= port < 65536 for port in ports)
    second = environment.Place("Slurm", 2, 1, 0, 1, "node", job="4711.3")
    assert environment._port_of_job(second, {"PBS_JOBID": "1"}) == ports[3]
    assert environment._port_of_job(environment.Place("PMI", 2), {"PBS_JOBID": "1"}) != environment._port_of_job(
        environment.Place("PMI", 2), {"PBS_JOBID": "2"}
    )


SEVERAL_HOSTS = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


def test_several_hosts_with_unknown_first_host_raise(environ, started) -> None:
    environ(OMPI, SEVERAL_HOSTS)
    with pytest.raises(ValueError, match=r"process 3 of 4 cannot know the host .* install mpi4py, or set"):
        launch.initialize()


def test_several_hosts_with_mpi4py(environ, started, monkeypatch) -> None:
    environ(OMPI, SEVERAL_HOSTS)
    world = SimpleNamespace(Get_size=lambda: 4, bcast=lambda ours, root: ("node1", 1234))
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(COMM_WORLD=world))
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace())
    assert environment._ask_mpi4py(environment.detect(OMPI)) == ("node1", 1234)
    world.Get_size = lambda: 1
    with pytest.raises(RuntimeError, match=r"mpi4py sees 1 processes, but Open MPI has started 4"):
        environment._ask_mpi4py(environment.detect(OMPI))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    assert environment._ask_mpi4py(environment.detect(OMPI)) is None


def test_several_hosts_with_mpirun_in_a_slurm_job(environ, started) -> None:
    environ(OMPI, SEVERAL_HOSTS, SLURM_BATCH, {"SLURM_JOB_NODELIST": SLURM["SLURM_JOB_NODELIST"]})
    launch.initialize()
    assert started[0]["coordinator_address"].startswith("r1n005:")


def test_several_hosts_with_open_mpi_4(environ, started) -> None:
    uri = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}
    environ(OMPI, SEVERAL_HOSTS, uri)
    launch.initialize()
    assert started[0]["coordinator_address"].startswith("10.96.0.1:")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"JAX_COORDINATOR_ADDRESS": "node7:1234"}, "the number of processes is unknown"),
        ({"JAX_NUM_PROCESSES": "2"}, "the number of this process is unknown"),
        (JAX | {"JAX_PROCESS_ID": "3"}, "is 3, from JAX variables; with 3 processes it must be from 0 to 2"),
    ],
)
def test_missing_or_invalid_environment_raises(environ, started, environment, message) -> None:
    environ(environment)
    with pytest.raises(ValueError, match=message):
        launch.initialize()


def test_unknown_host(environ, started, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise socket.gaierror("Name or service not known")

    environ(JAX)
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(RuntimeError, match=r"cannot find the address of node7.*/etc/hosts"):
        launch.initialize()


def test_port_in_use(environ, started) -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        environ(JAX, {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{listener.getsockname()[1]}"})
        with pytest.raises(RuntimeError, match=r"cannot listen on port \d+ .* set JAX_COORDINATOR_PORT"):
            launch.initialize()


def test_grpc_bypasses_the_proxy(environ, started, monkeypatch) -> None:
    monkeypatch.delenv("no_grpc_proxy", raising=False)
    environ(SLURM_ONE_NODE)
    launch.initialize()
    assert "no_grpc_proxy" not in launch.os.environ
    environ({"https_proxy": "http://proxy:3128", "no_proxy": "*.local,10.0.0.0/8"})
    launch.initialize()
    assert launch.os.environ["no_grpc_proxy"] == "*.local,10.0.0.0/8,127.0.0.1"


# GPUs


@pytest.mark.parametrize(
    ("local_rank", "local_size", "visible", "expected"),
    [
        (2, 4, 4, [2]),  # one each
        (0, 1, 4, None),  # all
        (1, 2, 4, [2, 3]),
        (3, 4, 1, None),  # with --gpus-per-task=1, each task sees only its own
        (2, 3, 4, [2]),
        (3, 4, 2, [1]),  # two share one
        (3, 4, None, None),
        (None, None, 4, None),
    ],
)
def test_share_of_the_gpus(local_rank, local_size, visible, expected) -> None:
    place = environment.Place("Slurm", 8, 5, local_rank, local_size)
    assert environment.local_gpus(place, {}, visible) == expected


def test_gpus_selected_by_the_user_are_left_to_jax() -> None:
    place = environment.Place("Slurm", 8, 5, 1, 4)
    assert environment.local_gpus(place, {"JAX_LOCAL_DEVICE_IDS": "0"}, 4) is None


@pytest.mark.parametrize(
    ("visible", "count"),
    [("2,3", 2), ("GPU-8f3a, MIG-1a", 2), ("0,1,-1,2", 2), ("-1", None), ("NoDevFiles", None), ("", None)],
)
def test_visible_gpus(visible, count) -> None:
    assert environment.num_visible_gpus({"CUDA_VISIBLE_DEVICES": visible}) == count


# The end


def test_abort_of_a_single_process_exits(capsys) -> None:
    with pytest.raises(SystemExit) as exit_:
        launch.abort("no file", 2)
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "no file\n"


def test_failed_callback_gives_other_processes_a_summary_of_one_line() -> None:
    def fail() -> None:
        raise ValueError("the disk is full")

    def run() -> None:
        jax.jit(lambda: jax.debug.callback(fail))()
        jax.effects_barrier()

    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        run()
    assert "Traceback" in str(raised.value)
    summary = gpus.without_program(_failure.summary_of(raised.value))
    assert summary.startswith("jax.errors.JaxRuntimeError: ")
    assert summary.endswith(": ValueError: the disk is full")
    assert "\n" not in summary


def test_gather_texts_of_one_process() -> None:
    assert launch.gather_texts("any", "text") == ["text"]


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("fe80::1", {"host": "[fe80::1]"}),
        ("[fe80::1]", {"host": "[fe80::1]"}),
        ("[fe80::1]:1234", {"host": "[fe80::1]", "port": 1234}),
        ("node7", {"host": "node7"}),
        ("10.0.0.7:1234", {"host": "10.0.0.7", "port": 1234}),
    ],
)
def test_addresses(address: str, parts: dict) -> None:
    assert environment.split_address(address) == parts


@pytest.mark.parametrize("port", [0, 70000])
def test_port_out_of_range_raises(port: int, environ, started) -> None:
    environ(JAX | {"JAX_COORDINATOR_ADDRESS": f"node7:{port}"})
    with pytest.raises(ValueError, match=f"the port of process 0 is {port}; it must be from 1 to 65535"):
        launch.initialize()
    assert started == []
