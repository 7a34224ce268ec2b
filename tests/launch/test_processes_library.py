"""The library over two processes of two devices. Results must equal one device's results. If an error occurs on one
rank, in the library or in user code, all processes must end with an error that names the cause.
"""

import re
from pathlib import Path

import pytest
from processes import run_processes

SLOW = pytest.mark.slow

# Far more than needed, even on a busy machine.
SECONDS = 90
# The limit for errors. It is below the 60 s after which XLA aborts a process that waits for one of its own devices, and
# below the 100 s of the heartbeats, so that neither of these ends a process.
FAULT_SECONDS = 50

START = """
import os, threading
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import jztree as jz
import process_work as work

"""
MESH = "mesh = work.start()\n"
WARM_KNN = """
part, search = work.near(), jz.knn.knn.smap(mesh, jit=True)
jax.block_until_ready(search(part, k=6))
print("ready", flush=True)
"""


# Results


@pytest.mark.long
@pytest.mark.parametrize("shape", [pytest.param((4,), marks=SLOW), (2, 2)])
def test_several_processes_agree_with_one_device(shape: tuple[int, ...]) -> None:
    script = f"""
mesh = work.start(shape={shape})
work.check_catalogue(mesh)
work.check_peaks(mesh)  # which searches neighbours and joins edges, as spanning trees do
"""
    if len(shape) == 1:
        script += """
work.check_neighbours(mesh)
work.check_spanning_tree(mesh)
work.check_neighbours(mesh, part_query=jz.data.Pos(pos=work.particles(203, seed=5).pos))
work.check_labels(mesh, work.particles(), 0.02)
work.check_spanning_tree(mesh, core_k=4)
"""
    for returncode, output in run_processes(START + script + "print('all equal')", timeout=SECONDS):
        assert returncode == 0, output
        assert output.endswith("all equal\n")


# Capacities

CAPACITY = (
    MESH
    + """
part, small = work.near(), jz.config.KNNConfig(ghost_rows=1)

def rmean(part, cfg):
    rad, _ = jz.knn.knn(part, k=6, cfg=cfg)
    jax.debug.callback(lambda radius: None, rad[0, 0])
    return rad

rmean.smap = jz.jax_ext.shard_map_constructor(rmean, in_specs=(P(-1), None), out_specs=P(-1))
work.report(lambda: rmean.smap(mesh, jit=True)(part, small))
work.report(lambda: jz.fof.distr_fof_labels.smap(mesh, jit=True)(part, 0.1, cfg=jz.config.FofConfig(edge_rows=1)))
work.check_neighbours(mesh)  # nothing of that is left
"""
)


@pytest.mark.slow
def test_explicit_capacity_that_is_too_small_raises_on_all_processes() -> None:
    ended = run_processes(START + CAPACITY + "print('went on')", timeout=SECONDS)
    for returncode, output in ended:
        assert returncode == 0, output
        assert output.endswith("went on\n")
        assert "Exception ignored" not in output
    first, second = (re.findall("^CapacityError (.*)$", output, re.MULTILINE) for _, output in ended)
    assert first == second
    ghosts = (
        r"knn_ghosts (\d+) 116 jztree: rank \d needs capacity for \1 rows .* has capacity for 116; set ghost_rows .*\."
    )
    edges = r"fof_edges (\d+) 1 jztree: rank \d needs capacity for \1 rows .* has capacity for 1; set edge_rows .*\."
    assert len(first) == 2
    assert re.fullmatch(ghosts, first[0])
    assert re.fullmatch(edges, first[1])


@SLOW
def test_default_capacity_that_is_too_small_is_enlarged() -> None:
    # All particles are within a linking length of each other, so each rank receives all particles of higher ranks.
    script = """
import logging
logging.getLogger("jztree").addHandler(logging.StreamHandler())
logging.getLogger("jztree").setLevel("INFO")
close = jz.data.Pos(pos=np.float32(0.3) + np.float32(1e-3) * work.particles(8002).pos)
work.check_labels(mesh, close, 0.1)
print("all equal")
"""
    for returncode, output in run_processes(START + MESH + script, timeout=SECONDS):
        assert returncode == 0, output
        assert output.count("capacity of fof_ghosts:") == 1
        assert output.endswith("all equal\n")


# Faults on one rank


DIFFERENT_CALLS = {
    "jz.knn.knn.smap(mesh, jit=True)(part, k=6 + jax.process_index())": r"knn\(.*k=6.* calls knn\(.*k=7",
    "jz.fof.fof_labels.smap(mesh, jit=True)(part, 0.1 + 0.05 * jax.process_index())": (
        r"fof_labels\(.*0\.1.* calls fof_labels\(.*0\.15"
    ),
    "(jz.knn.knn if jax.process_index() else jz.density.knn_density).smap(mesh, jit=True)(part, k=8)": (
        r"knn_density\(.* calls knn\("
    ),
    "jz.knn.knn.smap(mesh, jit=True)(work.near(300 + 40 * jax.process_index()), k=6)": (
        r"knn\(.*float32\[4, 115, 3\].* calls knn\(.*float32\[4, 125, 3\]"
    ),
}


@pytest.mark.long
def test_errors_of_a_rank_or_of_calls_that_differ_raise_on_all_processes() -> None:
    """All but the last are caught. The last ends all processes."""
    script = f"""
part = work.near()
for call in {list(DIFFERENT_CALLS)}:
    work.report(lambda: eval(call))
jax.block_until_ready(search(part, k=6))
print("went on", flush=True)
cfg = jz.config.KNNConfig(ghost_rows=1)
mine = jax.jit(lambda part: jz.knn.knn.smap(mesh)(part, k=6, cfg=cfg)[0])
for _ in range(2):
    work.report(lambda: mine(part))
part.pos[3, 17] = np.nan
work.report(lambda: search(part, k=6))
jax.block_until_ready(mine(work.near()))
"""
    for returncode, output in run_processes(START + MESH + WARM_KNN + script, timeout=SECONDS):
        assert returncode == 1, output
        *call_errors, small, again, nan = re.findall("^error (.*)$", output, re.MULTILINE)
        for error, difference in zip(call_errors, DIFFERENT_CALLS.values(), strict=True):
            assert re.search(f"the calls of the processes differ: process 0 calls {difference}", error)
        assert "went on\n" in output
        sentence = r"jztree: rank \d needs capacity for \d+ rows of .* has capacity for 116; set ghost_rows in"
        assert re.search(sentence, small)
        assert re.search(sentence, again)
        assert "jztree: on rank 3: row 17 of the positions is NaN or infinite" in nan
        assert re.search(f"ends with this error(.|\n)*{sentence}", output)


@pytest.mark.long
@pytest.mark.parametrize("failing", [pytest.param(0, marks=SLOW), 1])
def test_exception_while_the_other_process_is_inside_the_library(failing: int) -> None:
    script = f"""
for i in range(1000):
    if i == 3 and jax.process_index() == {failing}: raise ValueError("bad data")
    jax.block_until_ready(search(part, k=6))
"""
    ended = run_processes(START + MESH + WARM_KNN + script, timeout=FAULT_SECONDS)
    assert [process.returncode for process in ended] == [1, 1]
    assert "ValueError: bad data\n" in ended[failing].output
    assert re.search(rf"ends because process {failing} of 2 .* ValueError: bad data\n", ended[1 - failing].output)


CALLBACKS = {
    "debug": "jax.debug.callback(fail_on_3, rank)",
    "pure": "part.num += jz.comm.vary(jax.pure_callback(fail_on_3, jax.ShapeDtypeStruct((), jnp.int32), rank))",
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "kind"),
    [
        (2, "debug"),
        pytest.param(2, "pure", marks=SLOW),
        pytest.param(4, "debug", marks=SLOW),
        pytest.param(1, "debug", marks=SLOW),
    ],
)
def test_callback_that_raises_on_one_rank_raises_at_once_and_ends_all_processes(count: int, kind: str) -> None:
    script = f"""
def fail_on_3(rank):
    if rank == 3: raise ValueError("the disk is full")
    return np.int32(0)

def searched(part):
    rank, _, _ = jz.comm.get_rank_info()
    {CALLBACKS[kind]}
    return jz.knn.knn(part, k=6)[0]

searched.smap = jz.jax_ext.shard_map_constructor(searched, in_specs=P(-1), out_specs=P(-1))
try:
    jax.block_until_ready(searched.smap(mesh, jit=True)(part))
finally:
    # A single process would wait at its end until XLA aborts it.
    if {count} == 1: threading.Timer(5, os._exit, (1,)).start()
"""
    ended = run_processes(START + MESH + WARM_KNN + script, count, devices=4 // count, timeout=FAULT_SECONDS)
    assert [process.returncode for process in ended] == [1] * count
    assert re.search(r"JaxRuntimeError: INTERNAL(.|\n)*ValueError: the disk is full\n", ended[-1].output)
    for _, output in ended[:-1]:
        assert re.search(f"ends because process {count - 1} of {count} .* ValueError: the disk is full\n", output)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=SLOW)])
def test_caught_callback_error_does_not_affect_later_calls(count: int) -> None:
    """The error must not affect later calls that take long."""
    script = """
logging = __import__("logging")
logging.disable(logging.CRITICAL)

def wait(x):
    __import__("time").sleep(6)
    return x

slow = jax.jit(lambda x: jax.pure_callback(wait, x, x))

def fail(radius): raise ValueError("the disk is full")

def written(part):
    jax.debug.callback(fail, jz.knn.knn(part, k=6)[0][0, 0])

written.smap = jz.jax_ext.shard_map_constructor(written, in_specs=P(-1), out_specs=None)
work.report(lambda: written.smap(mesh, jit=True)(part))
jax.block_until_ready(search(part, k=6))
jax.block_until_ready(slow(jnp.float32(1)))
print("went on")
"""
    ended = run_processes(START + MESH + WARM_KNN + script, count=count, devices=4 // count, timeout=FAULT_SECONDS)
    for returncode, output in ended:
        assert returncode == 0, output
        assert "error INTERNAL" in output
        assert output.endswith("went on\n")


# JAX's persistent cache


@pytest.mark.slow
def test_second_process_does_not_compile_again(tmp_path: Path) -> None:
    script = """
jax.config.update("jax_compilation_cache_dir", os.environ["CACHE"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
mesh, part = work.start(), work.dealt(work.particles())
counts = work.count_cache_events()
jax.block_until_ready(jz.knn.knn.smap(mesh, jit=True)(part, k=6, boxsize=1.0))
jax.block_until_ready(jz.fof.fof_and_catalogue.smap(mesh, jit=True)(part, 0.02, 1.0))
print(*(f"{name} {count}" for name, count in counts.items()))
"""
    env = {"CACHE": str(tmp_path)}
    for expected in ("hits 0 misses 2 requests 2", "hits 2 misses 0 requests 2"):
        ((returncode, output),) = run_processes(START + script, count=1, devices=4, timeout=SECONDS, env=env)
        assert returncode == 0, output
        assert output.endswith(f"{expected}\n")
