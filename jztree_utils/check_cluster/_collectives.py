"""Tests of the collectives that jztree uses: their results and their speed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jztree import launch

AXIS = "ranks"
REPEATS = 5
MAX_RAGGED_DEVICES = 32
STEP = 1009  # row i of rank r in the tests is r * STEP + i
_WITHOUT_RAGGED = (
    "! ragged_all_to_all gives wrong results here; set JZTREE_EXCHANGE=dense in the environment of every process, so "
    "that jztree moves particles with all_to_all instead."
)


@dataclass(frozen=True)
class Collective:
    """A collective, and its expected result.

    Attributes:
        name: Name of the collective in JAX.
        apply: Function of ``(m,)`` int32 of a rank, with ``m`` a multiple of the number of ranks, and of this number.
        expected: Function of the rank, the number of ranks and ``m`` that returns the correct result of ``apply`` for
            `rows_of`.
    """

    name: str
    apply: Callable[[jax.Array, int], jax.Array]
    expected: Callable[[jax.Array, int, int], jax.Array]


@dataclass(frozen=True)
class Measurement:
    """The result for one collective: wrong elements on this process, and seconds, the minimum of `REPEATS`."""

    num_wrong: int
    seconds: float
    megabytes: float


# Expected results of collectives on ``(m,)`` rows, on ``rank`` of ``num``.


def _gathered(rank: jax.Array, num: int, m: int) -> jax.Array:
    sender, row = jnp.divmod(jnp.arange(m, dtype=jnp.int32), m // num)
    return sender * STEP + row


def _exchanged(rank: jax.Array, num: int, m: int) -> jax.Array:
    return _gathered(rank, num, m) + rank * (m // num)


def _ragged_sizes(sender: jax.Array, receiver: jax.Array, block: int) -> jax.Array:
    """Return the number of rows that one rank sends to another: unequal, sometimes zero, at most a block."""
    return block * ((sender + receiver) % 3) // 2


def _ragged_all_to_all(x: jax.Array, num: int) -> jax.Array:
    rank, ranks, block = jax.lax.axis_index(AXIS), jnp.arange(num, dtype=jnp.int32), len(x) // num
    return jax.lax.ragged_all_to_all(
        x,
        jnp.full(len(x), -1, jnp.int32),
        input_offsets=block * ranks,
        send_sizes=_ragged_sizes(rank, ranks, block),
        output_offsets=jnp.full(num, rank * block, jnp.int32),
        recv_sizes=_ragged_sizes(ranks, rank, block),
        axis_name=AXIS,
    )


def _exchanged_ragged(rank: jax.Array, num: int, m: int) -> jax.Array:
    sender, row = jnp.divmod(jnp.arange(m, dtype=jnp.int32), m // num)
    return jnp.where(row < _ragged_sizes(sender, rank, m // num), _exchanged(rank, num, m), -1)


COLLECTIVES = (
    Collective(
        "psum",
        lambda x, num: jax.lax.psum(x, AXIS),
        lambda rank, num, m: num * rows_of(0, m) + STEP * (num * (num - 1) // 2),
    ),
    Collective("pmax", lambda x, num: jax.lax.pmax(x, AXIS), lambda rank, num, m: rows_of(num - 1, m)),
    Collective("all_gather", lambda x, num: jax.lax.all_gather(x[: len(x) // num], AXIS, tiled=True), _gathered),
    Collective("all_to_all", lambda x, num: jax.lax.all_to_all(x, AXIS, 0, 0, tiled=True), _exchanged),
    Collective(
        "ppermute",
        lambda x, num: jax.lax.ppermute(x, AXIS, [(rank, (rank + 1) % num) for rank in range(num)]),
        lambda rank, num, m: rows_of((rank - 1) % num, m),
    ),
)
# Missing in XLA's CPU backend. On more than 32 devices, it can end the process (openxla/xla#47283); jztree does not use
# it there.
RAGGED = Collective("ragged_all_to_all", _ragged_all_to_all, _exchanged_ragged)


def rows_of(rank: jax.Array | int, m: int) -> jax.Array:
    """Return ``(m,)`` int32, the test data of a rank."""
    return rank * STEP + jnp.arange(m, dtype=jnp.int32)


def measure(collective: Collective, megabytes: float, mesh: jax.sharding.Mesh) -> Measurement:
    """Run a collective on ``megabytes`` of int32 per rank, compare all results, and measure the time."""
    num = mesh.size
    m = max(1, round(megabytes * 1e6 / 4 / num)) * num
    spec = jax.P(AXIS)

    def mapped(function: Callable[..., jax.Array], num_inputs: int) -> Callable[..., jax.Array]:
        # Without the check of replication, results that the collective makes equal return from every rank for
        # comparison.
        inputs = (spec,) * num_inputs
        return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=inputs, out_specs=spec, check_vma=False))

    def count_wrong(result: jax.Array) -> jax.Array:
        wrong = result != collective.expected(jax.lax.axis_index(AXIS), num, m)
        return jnp.sum(wrong, dtype=jnp.int32)[None]

    rows = mapped(lambda: rows_of(jax.lax.axis_index(AXIS), m), 0)()
    run = mapped(lambda x: collective.apply(x, num), 1)
    wrong = mapped(count_wrong, 1)(run(rows))
    num_wrong = sum(int(np.asarray(shard.data)[0]) for shard in wrong.addressable_shards)
    return Measurement(num_wrong, min(_seconds(run, rows) for _ in range(REPEATS)), m * 4 / 1e6)


def _seconds(run: Callable[[jax.Array], jax.Array], rows: jax.Array) -> float:
    """Return the time of one run."""
    start = time.perf_counter()
    run(rows).block_until_ready()
    return time.perf_counter() - start


def describe_measurement(measurement: Measurement, num_wrong: int) -> str:
    """Format a line of the table; ``num_wrong`` is the number on all ranks together."""
    verdict = "ok" if num_wrong == 0 else f"WRONG in {num_wrong} elements"
    rate = measurement.megabytes / 1000 / measurement.seconds
    return f"{measurement.megabytes:9.3f} MB  {measurement.seconds * 1e3:9.3f} ms  {rate:8.3f} GB/s  {verdict}"


def check_collectives(megabytes: Sequence[float], report: Callable[[str], None]) -> int:
    """Measure and report all collectives. Return the number of wrong elements on all ranks."""
    report(f"{'collective':<18}{'per device':>12}  {'time':>12}  {'per device':>13}")
    mesh = jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    ragged = () if jax.default_backend() == "cpu" or mesh.size > MAX_RAGGED_DEVICES else (RAGGED,)
    total, wrong_ragged = 0, 0
    for collective in (*COLLECTIVES, *ragged):
        for size in megabytes:
            measurement = measure(collective, size, mesh)
            counts = launch.gather_texts(f"check_cluster/{collective.name}/{size}", str(measurement.num_wrong))
            num_wrong = sum(map(int, counts))
            total += num_wrong
            wrong_ragged += num_wrong if collective is RAGGED else 0
            report(f"{collective.name:<18}{describe_measurement(measurement, num_wrong)}")
    if wrong_ragged > 0:
        report(_WITHOUT_RAGGED)
    return total
