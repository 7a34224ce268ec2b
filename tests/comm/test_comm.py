"""Ranks, and the exchange of rows between them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of, square_mesh
from jax.sharding import PartitionSpec as P

import jztree as jz
from jztree import CapacityError, comm
from jztree._transform.capacity import Capacity, choose_capacity
from jztree.comm import _exchange, _ranks
from jztree.jax_ext import shard_map_constructor

pytestmark = pytest.mark.emulated

N = 500


def mapped(f: Callable[..., Any], mesh: jax.sharding.Mesh, out_specs: Any = None) -> Callable[..., Any]:
    return shard_map_constructor(f, in_specs=P(-1), out_specs=out_specs or P(-1))(mesh, jit=True)


def rows_to_send(ndev: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return rows of many dtypes, their destination ranks (the first rank sends all to the last), and their numbers."""
    rng = np.random.default_rng(ndev)
    rows = {
        "vector": rng.normal(size=(ndev, N, 3)).astype(np.float32),
        "flag": rng.integers(0, 2, (ndev, N)).astype(bool),
        "half": rng.normal(size=(ndev, N)).astype(np.float16),
        "number": np.arange(ndev * N, dtype=np.int32).reshape(ndev, N),
    }
    dest = rng.integers(0, ndev, (ndev, N)).astype(np.int32)
    dest[0] = ndev - 1
    num = rng.integers(0, N + 1, ndev).astype(np.int32)
    num[0] = N
    return rows, dest, num


def expected_at(rank: int, dest: np.ndarray, num: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows sent to a rank, in the order of sources and then of rows."""
    return np.concatenate([s * N + np.flatnonzero(dest[s, : num[s]] == rank) for s in range(len(num))])


RAGGED_SIZES: list[tuple[int, list[int]]] = []  # for every emulated collective, the rank and its rows to each rank


def emulated_ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
) -> Any:
    """Emulate XLA's operation on platforms without it: gather all rows, and let each rank select its own.

    Ranks that expect other sizes than the others send get wrong data, while XLA's operation may wait forever.
    """
    me = jax.lax.axis_index(axis_name)
    message = [jax.lax.all_gather(x, axis_name) for x in (operand, input_offsets, send_sizes, output_offsets)]
    operands, starts, sizes, places = message
    rows = jnp.arange(output.shape[0])
    for source in range(operands.shape[0]):
        row = rows - places[source, me]
        ours = (row >= 0) & (row < sizes[source, me])
        output = jnp.where(ours[:, None], operands[source, (starts[source, me] + row) % operand.shape[0]], output)
    agreed = jnp.all(recv_sizes == sizes[:, me]) & jnp.all(starts[me] + send_sizes <= operand.shape[0])
    jax.debug.callback(lambda sent, me: RAGGED_SIZES.append((int(me), np.asarray(sent).tolist())), send_sizes, me)
    return jnp.where(agreed, output, jnp.uint32(0xDEADBEEF))


@pytest.fixture(params=["few", "many"])
def few_or_many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use the normal code for few ranks, and the code for many ranks."""
    if request.param == "many":
        monkeypatch.setattr(_ranks, "_FEW_RANKS", 1)
    return request.param


@pytest.fixture(params=["dense", "dense, through others", "ragged"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All exchange methods; the ragged one with an emulated collective, which CPUs lack."""
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", emulated_ragged_all_to_all)
    if "others" in request.param:
        monkeypatch.setattr(_ranks, "_FEW_RANKS", 1)
    return request.param.split(",")[0]


@pytest.fixture
def in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move few rows in rounds, like many rows."""
    monkeypatch.setattr(_exchange, "_SINGLE_ROUND_BYTES", 0)


@pytest.mark.core
@pytest.mark.parametrize("ndev", [1, 3, 4])
def test_exchange_and_send_back(ndev: int, method: str) -> None:
    check_exchange_and_send_back(ndev, method)


@pytest.mark.core
@pytest.mark.parametrize("ndev", [3, 4])
def test_dense_exchange_in_rounds(ndev: int, in_rounds: None) -> None:
    check_exchange_and_send_back(ndev, "dense")


def check_exchange_and_send_back(ndev: int, method: str) -> None:
    rows, dest, num = rows_to_send(ndev)

    def there_and_back(rows: Any, dest: Any, num: Any) -> Any:
        # With `in_rounds`, chunks are so small that the dense exchange takes several rounds.
        options = {"method": method, "chunk_rows": 80 * ndev}
        got, count, route = comm.exchange_by_rank(rows, dest, num, Capacity(ndev * N, "all"), **options)
        answer = {"number": got["number"] + 1, "vector": 2 * got["vector"]}
        return got, count, comm.send_back(answer, route, fill={"number": -1, "vector": 0.5}, **options)

    got, counts, answers = mapped(there_and_back, mesh_of(ndev))(rows, dest, num)
    for rank in range(ndev):
        want = expected_at(rank, dest, num)
        assert counts[rank] == len(want)
        for name, column in rows.items():
            flat = column.reshape(ndev * N, *column.shape[2:])
            np.testing.assert_array_equal(np.asarray(got[name])[rank, : len(want)], flat[want], name)
            assert not np.any(np.asarray(got[name])[rank, len(want) :])
        sent = num[rank]
        np.testing.assert_array_equal(answers["number"][rank, :sent], rows["number"][rank, :sent] + 1)
        np.testing.assert_array_equal(answers["vector"][rank, :sent], 2 * rows["vector"][rank, :sent])
        assert np.all(np.asarray(answers["number"])[rank, sent:] == -1)
        assert np.all(np.asarray(answers["vector"])[rank, sent:] == 0.5)


def test_ragged_collective_moves_only_rows_that_leave_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", emulated_ragged_all_to_all)
    rows, dest, num = rows_to_send(4)

    def there(rows: Any, dest: Any, num: Any) -> Any:
        return comm.exchange_by_rank(rows, dest, num, Capacity(4 * N, "all"), method="ragged")[0]

    RAGGED_SIZES.clear()
    jax.block_until_ready(mapped(there, mesh_of(4))(rows, dest, num))
    jax.effects_barrier()
    want = [[int(np.sum(dest[r, : num[r]] == second)) * (r != second) for second in range(4)] for r in range(4)]
    assert sorted(RAGGED_SIZES) == list(enumerate(want))


@pytest.mark.parametrize(("leaving", "chunks"), [(0, []), (1, [64]), (64, [64]), (200, [64] * 4), (257, [1000])])
def test_dense_exchange_takes_a_small_buffer_for_few_rows(
    leaving: int, chunks: list[int], monkeypatch: pytest.MonkeyPatch, in_rounds: None
) -> None:
    """Return the number of rows that leave a rank for another, and the capacity of each round in rows per rank."""
    taken: list[int] = []
    swap = comm.swap

    def counted(packed: jax.Array) -> jax.Array:
        rank = comm.get_rank_info()[0]
        jax.debug.callback(lambda rank: taken.append(packed.shape[1]) if rank == 0 else None, rank)
        return swap(packed)

    monkeypatch.setattr(_exchange, "swap", counted)
    rows = np.arange(4 * 2000, dtype=np.int32).reshape(4, 2000)
    dest = np.broadcast_to(np.arange(4, dtype=np.int32)[:, None], (4, 2000)).copy()
    dest[1, 100 : 100 + leaving] = 3

    def there(rows: Any, dest: Any) -> Any:
        return comm.exchange_by_rank(rows, dest, 2000, Capacity(4000, "all"), method="dense", chunk_rows=4000)[0]

    got = mapped(there, mesh_of(4))(rows, dest)
    jax.effects_barrier()
    assert taken == chunks
    for rank in range(4):
        want = rows[dest == rank]
        np.testing.assert_array_equal(got[rank, : len(want)], want)


def test_unknown_method_raises() -> None:
    with pytest.raises(ValueError, match="'dense', 'ragged' or None"):
        mapped(lambda x: comm.exchange_by_rank(x, x, 3, Capacity(4, "x"), method="carrier pigeon")[0], mesh_of(2))(
            np.zeros((2, 4), np.int32)
        )


def test_rows_that_do_not_fit_raise_on_every_rank() -> None:
    rows, _, num = rows_to_send(4)
    to_last = np.full((4, N), 3, np.int32)

    def there(rows: Any, dest: Any, num: Any) -> Any:
        place = choose_capacity("parcels", 400, 400, 4 * N)
        return comm.exchange_by_rank(rows, dest, num, place, what="parcels", advice="take a larger van.")[1]

    with pytest.raises(
        CapacityError, match=rf"rank 3 needs capacity for {num.sum()} rows of parcels.*400; take a larger van"
    ):
        mapped(there, mesh_of(4))(rows, to_last, num)


@pytest.mark.parametrize("two_axes", [False, True])
def test_fetch_returns_rows_for_any_number_of_requests(two_axes: bool, few_or_many: str) -> None:
    mesh = square_mesh() if two_axes else mesh_of(4)
    rows, _, num = rows_to_send(4)
    rng = np.random.default_rng(1)
    rank = rng.integers(-1, 4, (4, N)).astype(np.int32)
    rank[2] = 0  # all request from one rank
    row = rng.integers(0, N, (4, N)).astype(np.int32)
    got = mapped(lambda table, rank, row, num: comm.fetch(table, rank, row, num, 300), mesh)(
        rows["vector"], rank, row, num
    )
    want = np.where((rank >= 0)[..., None], rows["vector"][rank, row], 0)
    want[np.arange(N) >= num[:, None]] = 0
    np.testing.assert_array_equal(got, want)


def test_deliver_sends_every_row_once(few_or_many: str) -> None:
    _, dest, num = rows_to_send(4)
    values = np.random.default_rng(2).integers(0, 1000, (4, N)).astype(np.int32)

    def receive(buffer: jax.Array, counts: jax.Array, state: jax.Array) -> jax.Array:
        used = jnp.arange(buffer.shape[1]) < counts[:, None]
        return state + jnp.sum(jnp.where(used, buffer[..., 0].astype(jnp.int32), 0), dtype=jnp.int32)

    def total(values: Any, dest: Any, num: Any) -> Any:
        return comm.deliver([values], dest, num, receive, comm.vary(jnp.int32(0)), 300)

    got = mapped(total, mesh_of(4))(values, dest, num)
    want = [sum(values[s, : num[s]][dest[s, : num[s]] == rank].sum() for s in range(4)) for rank in range(4)]
    np.testing.assert_array_equal(got, want)


def test_rank_info_inside_and_outside_shard_map() -> None:
    assert comm.get_rank_info() == (0, 1, ())
    assert not comm.in_shard_map_context()
    seen = []

    def rank_of(_x: Any) -> Any:
        rank, ndev, axes = comm.get_rank_info()
        seen.append((ndev, axes, comm.in_shard_map_context()))
        return rank, comm.get_rank_info("gpus")[0]

    rank, on_node = mapped(rank_of, square_mesh())(np.zeros((4, 1), np.float32))
    np.testing.assert_array_equal(rank, [0, 1, 2, 3])
    np.testing.assert_array_equal(on_node, [0, 1, 0, 1])
    assert seen[-1] == (4, ("nodes", "gpus"), True)


def test_shift_and_reductions() -> None:
    x = np.arange(4, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)

    def ring(x: Any) -> Any:
        return comm.shift(x), comm.shift(x, -1), comm.all_max(x), comm.all_min(x), comm.all_gather(x)

    ahead, behind, maximum, minimum, everyone = mapped(ring, mesh_of(4), (P(-1), P(-1), P(), P(), P(-1)))(x)
    np.testing.assert_array_equal(ahead[:, 0], [3, 0, 1, 2])
    np.testing.assert_array_equal(behind[:, 0], [1, 2, 3, 0])
    np.testing.assert_array_equal(maximum, [3, 3, 3])
    np.testing.assert_array_equal(minimum, [0, 0, 0])
    np.testing.assert_array_equal(everyone[2], x)


def test_failed_check_raises_the_error_of_the_first_failing_rank() -> None:
    def fails(x: Any) -> Any:
        rank = comm.get_rank_info()[0]
        return comm.check(jnp.int32(5), rank >= 2, [rank * 10], "the number is {0}.")

    with pytest.raises(Exception, match="on rank 2: the number is 20"):
        jax.block_until_ready(mapped(fails, mesh_of(4))(np.zeros((4, 1), np.float32)))


@pytest.mark.parametrize("total", [0, 1, 3, 4, 1000, 2**31, 5 * 10**9, 8 * 2**31 - 8])
@pytest.mark.parametrize("ndev", [1, 3, 8])
def test_shares_of_counts_above_32_bits(total: int, ndev: int) -> None:
    wide = comm.Wide(jnp.int32(total >> 16), jnp.int32(total & 0xFFFF))
    if -(-total // ndev) >= 2**31:
        pytest.skip("a rank cannot hold so many rows")
    counts, starts = comm.share(wide, jnp.arange(ndev, dtype=jnp.int32), ndev)
    want = np.full(ndev, total // ndev) + (np.arange(ndev) < total % ndev)
    np.testing.assert_array_equal(counts, want)
    np.testing.assert_array_equal(np.int64(starts.high) * 65536 + np.int64(starts.low), np.cumsum(want) - want)


def test_statistics_count_what_leaves_a_rank() -> None:
    rows, dest, num = rows_to_send(4)

    def there(rows: Any, dest: Any, num: Any) -> Any:
        return comm.exchange_by_rank(rows, dest, num, Capacity(4 * N, "all"), name="parcels")[1]

    send = mapped(there, mesh_of(4))
    send(rows, dest, num)
    with jz.stats.statistics() as s:
        for _ in range(2):
            jax.block_until_ready(send(rows, dest, num))
    leaving = sum(int(np.sum(dest[r, : num[r]] != r)) for r in range(4))
    assert s["rows.parcels"] == 2 * leaving
    assert s["nothing"] == 0
    assert "rows.parcels" in str(s)
    send(rows, dest, num)
    assert s["rows.parcels"] == 2 * leaving


@pytest.mark.long
@pytest.mark.parametrize("ndev", [2, 4])
def test_unfilled_exchange_gives_the_same_rows_and_derivatives(ndev: int) -> None:
    """The received rows are the same, and have the same derivative."""
    rows, dest, num = rows_to_send(ndev)
    place = Capacity(ndev * N, "test")

    def moved(filled: bool) -> Callable[..., Any]:
        def f(rows: Any, dest: jax.Array, num: jax.Array) -> Any:
            arrived, count, _ = comm.exchange_by_rank(rows, dest, num, place, filled=filled)
            used = jnp.arange(place.rows) < count
            return jax.tree.map(lambda leaf: jnp.where(used.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0), arrived)

        return f

    given = jax.tree.map(jnp.asarray, (rows, dest, num))
    for leaf, expected in zip(
        *(jax.tree.leaves(mapped(moved(filled), mesh_of(ndev))(*given)) for filled in (False, True)), strict=True
    ):
        np.testing.assert_array_equal(leaf, expected)

    def total(vector: jax.Array, filled: bool) -> jax.Array:
        return jnp.sum(mapped(moved(filled), mesh_of(ndev))(vector, *given[1:]) ** 2)

    gradients = [jax.grad(total)(given[0]["vector"], filled) for filled in (False, True)]
    np.testing.assert_array_equal(*gradients)
    assert np.any(gradients[0])


@pytest.mark.parametrize("ranks", [1, 2, 5, 16, 17])
def test_of_rank_selects_the_entry_of_each_rank(ranks: int) -> None:
    table = np.random.default_rng(ranks).integers(0, 1000, ranks).astype(np.int32)
    rank = np.random.default_rng(1).integers(0, ranks, 200).astype(np.int32)
    np.testing.assert_array_equal(comm.of_rank(jnp.asarray(table), jnp.asarray(rank)), table[rank])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_checked_values_of_every_rank_are_returned(dtype: Any) -> None:
    with jax.enable_x64(dtype is np.int64):
        value = np.array([[1, -(2**31)], [2**31 - 1, 7], [0, -1]], dtype) * dtype(1 if dtype is np.int32 else 2**20)

        def f(value: jax.Array, bad: jax.Array) -> Any:
            fault = comm.Fault(bad[0] > 0, [bad[0]], "number {0} is bad.")
            return comm.check_and_gather(jnp.int32(5), [fault], value)

        check = mapped(f, mesh_of(3), (P(-1), P(-1)))
        bad = np.zeros((3, 1), np.int32)
        num, message = check(jnp.asarray(value), jnp.asarray(bad))
        assert message.dtype == dtype
        np.testing.assert_array_equal(num, 5)
        for rank in range(3):
            np.testing.assert_array_equal(message[rank], value)
        bad[1] = 3
        with pytest.raises(oracles.RUN_TIME_ERROR, match="on rank 1: number 3 is bad"):
            jax.block_until_ready(check(jnp.asarray(value), jnp.asarray(bad)))
