"""Random programs of 2 to 4 processes. In each, one process fails at some moment, or does something harmless.

If it fails, all processes must end in time, and the others must print the cause. Otherwise all must succeed, and none
may print a message of `jztree.launch`.
"""

import re
import signal
import textwrap
from typing import NamedTuple

import numpy as np
import pytest
from processes import run_processes

SECONDS = 50  # less than the time limits of JAX
PROGRAM = """
import atexit, multiprocessing, os, signal, subprocess, sys, threading, time
import jax, jax.numpy as jnp, numpy as np, jztree as jz
rank = int(os.environ["JAX_PROCESS_ID"])
jz.launch.initialize(heartbeat_timeout_seconds=100)
{started}
mesh = jax.make_mesh((jax.device_count(),), ("ranks",))
pos, k = np.random.default_rng(1).random((mesh.size, 20, 3), np.float32), 4
rank_sum = lambda: jax.lax.psum(jax.lax.axis_index("ranks"), "ranks")
total = jax.jit(jax.shard_map(rank_sum, mesh=mesh, in_specs=(), out_specs=jax.P()))

def called(device):
    {called}
    return np.float32(0)

def summed(x):
    device, _, _ = jz.comm.get_rank_info()
    x += jz.comm.vary(jax.pure_callback(called, jax.ShapeDtypeStruct((), jnp.float32), device))
    return jz.comm.all_max(x.sum() * k)
summed.smap = jz.jax_ext.shard_map_constructor(summed, in_specs=jax.P(-1), out_specs=jax.P(-1))
{meshed}
for step in range(4):
    {loop}
    jax.block_until_ready({work})
print("went well", flush=True)
{last}
"""
WORKS = {
    "plain": "total()",
    "summed": "summed.smap(mesh, jit=True)(pos)",
    "knn": "jz.knn.knn.smap(mesh, jit=True)(jz.data.Pos(pos=pos), k, boxsize=1.0)",
    "labels": "jz.fof.fof_labels.smap(mesh, jit=True)(jz.data.Pos(pos=pos), 0.05 * k)",
}
LIBRARY = ("summed", "knn", "labels")
EARLY, ANYWHERE = ("started", "meshed", "loop"), ("started", "meshed", "loop", "last")


class Fault(NamedTuple):
    """Code that one process runs. The others must print ``message``; if it is empty, all processes must succeed."""

    code: str
    message: str = ""
    moments: tuple[str, ...] = EARLY
    works: tuple[str, ...] = tuple(WORKS)
    returncode: int = 1


FAILED = r"ends because process {rank} of {count} on host \S+ has failed: "
THREAD = "thread = threading.Thread(target={}); thread.start(); thread.join()"
FORK = "child = multiprocessing.get_context('fork').Process(target={}); child.start(); child.join()"
LATER = "threading.Timer(0.3, lambda: {}).start(); time.sleep(100)"
FAULTS = {
    "raises": Fault("raise ValueError('bad data')", FAILED + "ValueError: bad data\n"),
    "is interrupted": Fault("raise KeyboardInterrupt", FAILED + "KeyboardInterrupt\n", returncode=-signal.SIGINT),
    "aborts": Fault("jz.launch.abort('no file', 2)", FAILED + "no file\n", returncode=2),
    "aborts in a thread": Fault(LATER.format("jz.launch.abort('no file', 2)"), FAILED + "no file\n", returncode=2),
    "raises in a callback": Fault("raise OSError('disk')", "OSError: disk\n", moments=("called",), works=("summed",)),
    "has a NaN": Fault("pos = pos * np.nan", r"row 0 of the positions is NaN", ("meshed", "loop"), ("knn", "labels")),
    "calls another k": Fault("k = 5", "calls of the processes differ", ("meshed", "loop"), ("knn", "labels")),
    "does nothing": Fault("pass", moments=ANYWHERE),
    "catches an error": Fault("try: 1 // 0\nexcept ZeroDivisionError: pass", moments=ANYWHERE),
    "catches an exit": Fault("try: sys.exit(2)\nexcept SystemExit: pass", moments=ANYWHERE),
    "raises in a thread": Fault(THREAD.format("lambda: 1 // 0"), moments=ANYWHERE),
    "has a fork that raises": Fault(FORK.format("lambda: 1 // 0"), moments=ANYWHERE),
    "has a fork that exits": Fault(FORK.format("lambda: sys.exit(3)"), moments=ANYWHERE),
    "starts a program that fails": Fault("subprocess.run([sys.executable, '-c', '1 // 0'])", moments=ANYWHERE),
    "is slow": Fault("time.sleep(8)", moments=ANYWHERE, works=LIBRARY),
    "raises at its exit": Fault("atexit.register(lambda: 1 // 0)", moments=ANYWHERE),
    "replaces sys.exit": Fault("sys.exit = exit", moments=ANYWHERE),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3 * len(FAULTS)))
def test_random_program_ends_as_expected(number: int) -> None:
    random = np.random.default_rng(number)
    name, fault = list(FAULTS.items())[number % len(FAULTS)]
    count, devices = int(random.integers(2, 5)), int(random.integers(1, 3))
    rank, moment, work = int(random.integers(count)), str(random.choice(fault.moments)), str(random.choice(fault.works))
    condition = f"device == {rank * devices}" if moment == "called" else f"rank == {rank}"
    condition += f" and step == {random.integers(4)}" if moment == "loop" else ""
    indent = "    " * (moment in ("called", "loop"))
    code = textwrap.indent(f"if {condition}:\n{textwrap.indent(fault.code, '    ')}", indent).strip()
    codes = dict.fromkeys(("started", "called", "meshed", "loop", "last"), "pass") | {moment: code}
    script = PROGRAM.format(work=WORKS[work], **codes)
    ended = run_processes(script, count, devices, timeout=SECONDS)
    case = f"process {rank} of {count} {name} ({moment}, {work}, {devices} devices each)"
    for process, (returncode, output) in enumerate(ended):
        if not fault.message:
            assert returncode == 0, f"{case}:\n{output}"
            assert "went well\n" in output, f"{case}:\n{output}"
            assert "jztree:" not in output, f"{case}:\n{output}"
            continue
        assert returncode == (fault.returncode if process == rank else 1), f"{case}:\n{output}"
        message = fault.message.format(rank=rank, count=count)
        assert process == rank or re.search(message, output), f"{case}:\n{output}"
