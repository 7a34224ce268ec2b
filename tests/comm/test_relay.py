"""Rows relayed by other ranks, among many ranks, or few ranks treated as many."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from devices import mesh_of
from jax.sharding import PartitionSpec as P

from jztree import comm
from jztree._transform.capacity import Capacity
from jztree.comm import _exchange, _ranks, _relay
from jztree.jax_ext import shard_map_constructor

pytestmark = pytest.mark.emulated

N = 400  # rows of each rank

# The destination of each row, by its rank and its number.
TRAFFIC: dict[str, Callable[[int, np.ndarray, np.ndarray], np.ndarray]] = {
    "whole ranges to one other": lambda ndev, rank, _: (rank + 3) % ndev,
    "to two neighbours": lambda ndev, rank, row: (rank + np.where(row % 2, 1, -1)) % ndev,
    "half to the first": lambda ndev, rank, row: np.where(row < 200 // ndev, 0, (5 * rank + 1) % ndev),
    "few leave": lambda ndev, rank, row: np.where(row == 7, (rank + 1) % ndev, rank),
    "nobody leaves": lambda ndev, rank, row: rank,
    "in every order": lambda ndev, rank, row: (row * 7919 + rank * 31) % ndev,
}


def traffic(name: str, ndev: int) -> np.ndarray:
    rank, row = np.indices((ndev, N))
    return np.broadcast_to(TRAFFIC[name](ndev, rank, row), (ndev, N)).astype(np.int32)


def mapped(f: Callable[..., Any], ndev: int) -> Callable[..., Any]:
    return shard_map_constructor(f, in_specs=P(-1), out_specs=P(-1))(mesh_of(ndev), jit=True)


def exchanged(ndev: int) -> Callable[..., Any]:
    def there_and_back(values: Any, dest: Any, num: Any) -> Any:
        options = {"method": "dense", "chunk_rows": N}
        rows = {"value": values, "half": values.astype(jnp.float16)}
        got, count, route = comm.exchange_by_rank(rows, dest, num, Capacity(3 * N, "all"), **options)
        return got["value"], got["half"], count, comm.send_back(got["value"] + 1, route, fill=-1, **options)

    return mapped(there_and_back, ndev)


def check_exchange(ndev: int, name: str, exchange: Callable[..., Any]) -> None:
    dest, num = traffic(name, ndev), np.full(ndev, N, np.int32)
    num[1] = N // 2
    values = np.arange(ndev * N, dtype=np.int32).reshape(ndev, N)
    got, half, counts, answers = exchange(values, dest, num)
    sent = np.arange(N) < num[:, None]
    for rank in range(ndev):
        want = values[(dest == rank) & sent]
        assert counts[rank] == len(want)
        np.testing.assert_array_equal(got[rank, : len(want)], want, name)
        np.testing.assert_array_equal(half[rank, : len(want)], want.astype(np.float16), name)
    np.testing.assert_array_equal(answers, np.where(sent, values + 1, -1), name)


def check_tables(ndev: int, name: str, both: Callable[..., Any]) -> None:
    dest, num = traffic(name, ndev), np.full(ndev, N, np.int32)
    dest[:, ::9], num[1] = -1, N // 2
    row = (np.arange(N) * 7 % N + np.zeros((ndev, 1))).astype(np.int32)
    table = np.arange(ndev * N, dtype=np.float32).reshape(ndev, N)
    total, answers = both(table, dest, row, num)
    counts = (np.arange(N) < num[:, None]) & (dest >= 0)
    np.testing.assert_array_equal(total, [np.sum(row[counts & (dest == rank)]) for rank in range(ndev)], name)
    np.testing.assert_array_equal(answers, np.where(counts, table[dest, row], 0), name)


def delivered_and_fetched(ndev: int) -> Callable[..., Any]:
    def receive(buffer: jax.Array, counts: jax.Array, state: jax.Array) -> jax.Array:
        used = jnp.arange(buffer.shape[1]) < counts[:, None]
        return state + jnp.sum(jnp.where(used, buffer[..., 0].astype(jnp.int32), 0), dtype=jnp.int32)

    def both(table: Any, dest: Any, row: Any, num: Any) -> Any:
        total = comm.deliver([row], dest, num, receive, comm.vary(jnp.int32(0)), N)
        return total, comm.fetch(table, dest, row, num, N)

    return mapped(both, ndev)


def check_all(ndev: int) -> None:
    exchange, both = exchanged(ndev), delivered_and_fetched(ndev)
    for name in TRAFFIC:
        check_exchange(ndev, name, exchange)
        check_tables(ndev, name, both)


@pytest.fixture
def as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ranks, "_FEW_RANKS", 1)


@pytest.mark.parametrize("ndev", [3, pytest.param(4, marks=pytest.mark.slow), 8])
def test_exchange_of_any_traffic_pattern(ndev: int, as_many: None) -> None:
    exchange = exchanged(ndev)
    for name in TRAFFIC:
        check_exchange(ndev, name, exchange)


@pytest.mark.parametrize("ndev", [pytest.param(3, marks=pytest.mark.slow), 4, pytest.param(8, marks=pytest.mark.slow)])
def test_deliver_and_fetch_of_any_traffic_pattern(ndev: int, as_many: None) -> None:
    both = delivered_and_fetched(ndev)
    for name in TRAFFIC:
        check_tables(ndev, name, both)


def test_arrays_without_rows(as_many: None) -> None:
    def everything(values: Any, dest: Any, num: Any) -> Any:
        got, count, route = comm.exchange_by_rank([values], dest, num, Capacity(0, "all"), method="dense")
        same = comm.deliver([dest], dest, num, lambda _packed, _counts, state: state + 1, count, N)
        return [*got, *comm.send_back(got, route, method="dense"), comm.fetch(values, dest, dest, num, N)], same

    nothing = np.zeros((4, 0, 3), np.float32), np.zeros((4, 0), np.int32), np.zeros(4, np.int32)
    arrays, same = mapped(everything, 4)(*nothing)
    assert [array.shape for array in arrays] == [(4, 0, 3)] * 3
    assert not np.any(same)


@pytest.mark.parametrize(
    ("name", "direct", "maximum"),
    [
        # Rows in all buffers of one rank, as multiples of the rows of a rank.
        ("whole ranges to one other", False, 4),
        ("to two neighbours", False, 4),
        ("few leave", False, 0.7),
        ("nobody leaves", False, 0),
        ("in every order", True, 1.5),
    ],
)
def test_buffers_of_skewed_traffic(
    name: str, direct: bool, maximum: float, as_many: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A direct exchange of a whole range takes 8 times the rows of a rank among 8 ranks, and 64 times among 64."""
    taken: dict[str, list[int]] = {"direct": [], "through others": []}

    def counting(what: str) -> Callable[[jax.Array], jax.Array]:
        def counted(buffer: jax.Array) -> jax.Array:
            size = buffer.shape[0] * buffer.shape[1]
            rank = comm.get_rank_info()[0]
            jax.debug.callback(lambda rank: taken[what].append(size) if rank == 0 else None, rank)
            return comm.swap(buffer)

        return counted

    monkeypatch.setattr(_exchange, "swap", counting("direct"))
    monkeypatch.setattr(_relay, "swap", counting("through others"))
    dest = traffic(name, 8)
    there = lambda dest: comm.exchange_by_rank(dest, dest, N, Capacity(2 * N, "all"), chunk_rows=N, method="dense")[0]  # noqa: E731
    jax.block_until_ready(mapped(there, 8)(dest))
    jax.effects_barrier()
    assert not taken["through others" if direct else "direct"]
    assert sum(taken["direct"] + taken["through others"]) <= maximum * N


@pytest.mark.parametrize(("ndev", "many", "lengths"), [(7, 7, (7,)), (8, 8, (2, 4)), (8, 1, (2, 2, 2))])
def test_swap_over_a_grid_equals_a_swap_of_one_hop(
    ndev: int, many: int, lengths: tuple[int, ...], as_many: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ranks, "_MANY_RANKS", many)
    assert _ranks._grid(ndev) == lengths
    buffer = np.arange(ndev * ndev * 6, dtype=np.float32).reshape(ndev, ndev, 2, 3)
    np.testing.assert_array_equal(mapped(comm.swap, ndev)(buffer), buffer.swapaxes(0, 1))


def test_grids_are_as_square_as_possible() -> None:
    grids = {1: (1,), 32: (32,), 37: (37,), 64: (8, 8), 72: (8, 9), 512: (8, 8, 8), 2048: (8, 16, 16), 514: (2, 257)}
    assert {ndev: _ranks._grid(ndev) for ndev in grids} == grids


@pytest.mark.slow
@pytest.mark.parametrize("ndev", [37, 64, 72])
def test_many_devices(ndev: int) -> None:
    """Use enough devices to count as many, without changing the limit."""
    folders = [str(Path(__file__).parents[1]), str(Path(comm.__file__).parents[2])]
    script = f"import sys; sys.path[:0] = {folders}; from comm import test_relay; test_relay.check_all({ndev})"
    environ = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={ndev}", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-P", "-c", script], env=environ, check=True, timeout=500)
