"""The cluster check: known problems, detection of wrong results, and runs in one process and in two."""

import dataclasses
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import run_processes

from jztree_utils import check_cluster
from jztree_utils.check_cluster import _collectives
from jztree_utils.check_cluster._facts import Facts
from jztree_utils.check_cluster._traps import describe_traps, traps

FACTS = Facts(
    host="node1",
    address="10.0.0.1",
    num_cpus=8,
    host_cpus=64,
    host_gpus=0,
    versions=("Python 3.12.1", "jax 0.10.2"),
    platform="cpu",
    num_processes=2,
    num_local_devices=1,
)
GPU_FACTS = dataclasses.replace(FACTS, platform="gpu", device_kind="H200", host_gpus=4)
ALONE = dataclasses.replace(FACTS, num_processes=1)


def changed(facts: Facts = FACTS, **values: object) -> Facts:
    return dataclasses.replace(facts, **values)  # type: ignore[arg-type]


# Known problems


def test_no_warnings_without_traps() -> None:
    environ = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "node[1-2]", "no_proxy": "*"}
    assert traps(environ, FACTS, [FACTS, changed(host="node2", process_id=1)]) == []
    assert traps({}, ALONE, [ALONE]) == []
    assert traps({"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "8"}, GPU_FACTS, [GPU_FACTS] * 4) == []


@pytest.mark.parametrize(
    ("environ", "facts", "message"),
    [
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}, ALONE, "put srun in front of python"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, ALONE, "4 processes were started, but each is process 0 of 1"),
        ({"MV2_COMM_WORLD_SIZE": "4"}, ALONE, "4 processes were started, but each is process 0 of 1"),
        ({"PMIX_RANK": "1"}, ALONE, "no variable has the number of processes"),
        ({}, changed(address=None), "cannot resolve its own name node1.*/etc/hosts"),
        ({"http_proxy": "http://proxy:80"}, FACTS, "http_proxy would make gRPC.*use a proxy.*unset it"),
        ({"grpc_proxy": "p", "https_proxy": "p"}, FACTS, "grpc_proxy and https_proxy would"),
        ({"http_proxy": "p", "no_proxy": "a,10.0.*"}, FACTS, r"ignores wildcards such as 10\.0\.\* in no_proxy"),
        ({"SLURM_CPUS_PER_TASK": "16"}, FACTS, r"may use 8 of its host's 64 CPUs.*SRUN_CPUS_PER_TASK"),
        ({"SLURM_JOB_ID": "1"}, changed(num_cpus=1), "request more with --cpus-per-task"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, changed(num_cpus=1), "--bind-to none"),
        ({}, changed(GPU_FACTS, num_cpus=3), "communication needs at least 4"),
        ({}, changed(GPU_FACTS, num_local_devices=2), "drives 2 GPUs.*slower than one process per GPU"),
        ({}, changed(GPU_FACTS, host_gpus=1), "2 processes on node1 share 1 GPUs"),
        ({}, changed(host_gpus=4), "on the CPU of a host with 4 GPUs: install"),
    ],
)
def test_each_trap_gives_one_sentence(environ, facts, message) -> None:
    (sentence,) = traps(environ, facts, [facts, facts])
    assert re.search(message, sentence)
    assert sentence.endswith(".")


def test_traps_between_processes() -> None:
    second = changed(host="node2", process_id=1)
    (sentence,) = traps({}, changed(address="127.0.1.1"), [changed(address="127.0.1.1"), second])
    assert "which other hosts cannot reach" in sentence
    (sentence,) = traps({}, FACTS, [FACTS, changed(second, num_local_devices=2)])
    assert "different numbers of devices (1, 2)" in sentence
    (sentence,) = traps({}, FACTS, [FACTS, changed(second, versions=("Python 3.12.1", "jax 0.11.0"))])
    assert "node1 and node2 run different versions (jax 0.10.2, jax 0.11.0)" in sentence


def test_gpus_left_idle_on_purpose() -> None:
    facts = changed(host_gpus=4)
    assert traps({"JAX_PLATFORMS": "cpu"}, facts, [facts]) == []


def test_a_sentence_is_printed_once() -> None:
    text = describe_traps([["All."], ["All.", "Some."]])
    assert text.splitlines() == ["! All.", "! Some. (process 1)"]


# Collectives


def test_ragged_sizes_give_the_expected_result() -> None:
    num, m = 4, 64
    block = m // num
    size = np.asarray(_collectives._ragged_sizes(*jnp.mgrid[:num, :num], block))
    assert size.max() <= block
    assert size.min() == 0
    for rank in range(num):
        result = np.full(m, -1)
        for sender in range(num):
            rows = np.asarray(_collectives.rows_of(sender, m))
            start = rank * block  # start of the sender's rows for this rank
            result[sender * block :][: size[sender, rank]] = rows[start:][: size[sender, rank]]
        np.testing.assert_array_equal(result, _collectives._exchanged_ragged(jnp.int32(rank), num, m))


@pytest.mark.parametrize("name", [collective.name for collective in _collectives.COLLECTIVES])
def test_wrong_results_are_reported(name, monkeypatch, capsys) -> None:
    (good,) = (collective for collective in _collectives.COLLECTIVES if collective.name == name)
    bad = dataclasses.replace(good, apply=lambda x, num: good.apply(x, num).at[1].add(1))
    monkeypatch.setattr(_collectives, "COLLECTIVES", (bad,))
    assert check_cluster.main(["--megabytes", "0.01"]) == 1
    assert f"WRONG in {jax.device_count()} elements" in capsys.readouterr().out


# The command


@pytest.mark.long
def test_single_process(capsys) -> None:
    num_threads = threading.active_count()
    assert check_cluster.main(["--megabytes", "0.001", "0.1"]) == 0
    out = capsys.readouterr().out
    for text in ("processes  1\n", "hosts      1 (", "devices    ", "CPUs       ", "jax 0.", "All results are right."):
        assert text in out
    collectives = len(_collectives.COLLECTIVES) + (jax.default_backend() != "cpu")  # a GPU has ragged_all_to_all too
    assert out.count(" ok\n") == 2 * collectives
    assert threading.active_count() == num_threads, threading.enumerate()


def test_startup_failure_is_reported(monkeypatch, capsys) -> None:
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "node7:1234")
    assert check_cluster.main([]) == 1
    assert "did not start: the number of processes is unknown" in capsys.readouterr().out


RUN = """
import sys
from jztree_utils import check_cluster
sys.exit(check_cluster.main(["--megabytes", "0.01"]))
"""


@pytest.mark.long
def test_two_processes() -> None:
    first, second = run_processes(RUN, timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), first.output
    for text in ("processes  2\n", "devices    4 (cpu, cpu), 2 per process\n", "All results are right.\n"):
        assert text in first.output
    for text in ("processes", "ok", "right"):
        assert text not in second.output


@pytest.mark.long
def test_wrong_result_in_one_of_two_processes() -> None:
    spoil = """
import dataclasses, jax
from jztree_utils.check_cluster import _collectives
good = _collectives.COLLECTIVES[0]
def apply(x, num):
    return good.apply(x, num) + (jax.lax.axis_index("ranks") == 3)
_collectives.COLLECTIVES = (dataclasses.replace(good, apply=apply),)
"""
    ended = run_processes(RUN.replace("sys.exit", f"{spoil}\nsys.exit"), timeout=60)
    assert [process.returncode for process in ended] == [1, 1]
    assert "elements are WRONG" in ended[0].output
