"""The cuts of the z-order into ranges of ranks. Most ranks are emulated: each has the rows of a type, and
counts are summed over types in the same way.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import make, mesh_of

import jztree as jz
from jztree import comm, kernels
from jztree.jax_ext import exact
from jztree.tree import _splitters

pytestmark = pytest.mark.emulated

ROWS = 400  # capacity for the rows of each rank

Keys = tuple[jax.Array, jax.Array, Any]
wide_sum = comm.wide_sum


def _haloes(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return particles; half are in isothermal spheres of very different sizes."""
    size = rng.pareto(1, 200)
    halo = rng.choice(200, n, p=size / size.sum())
    away = rng.standard_normal((n, 3))
    away *= 0.03 * rng.random((n, 1)) / np.linalg.norm(away, axis=1, keepdims=True)
    inside = rng.random((200, 3))[halo] + away * np.cbrt(size / size.max())[halo, None]
    return np.where(rng.random((n, 1)) < 0.5, inside % 1, rng.random((n, 3)))


SETS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "uniform": lambda rng, n: rng.random((n, 3)),
    "all equal": lambda rng, n: np.full((n, 3), 0.3),
    "few places": lambda rng, n: rng.integers(0, 3, (n, 3)) / 4,
    "most at one place": lambda rng, n: np.where(rng.random((n, 1)) < 0.9, 0.3, rng.random((n, 3))),
    "a range of 1e12": lambda rng, n: np.r_[[[1e12, 0, 0]], rng.random((n - 1, 3)) - 0.5],
    "clumps": lambda rng, n: rng.random((n, 3)) ** 9,
    "haloes": _haloes,
    "next to each other": lambda rng, n: np.r_[[[0, 0, 0]], 1 + rng.integers(0, n, (n - 1, 3)) * 2.0**-52],
}


def counts_of(ranks: int, n: int, how: str, rng: np.random.Generator) -> np.ndarray:
    """Return how many of ``n`` rows each rank has."""
    if how == "on few ranks":
        return np.bincount(rng.choice(rng.integers(0, ranks, 3), n), minlength=ranks)
    return n // ranks + (np.arange(ranks) < n % ranks)


def keys_of(pos: np.ndarray) -> Keys:
    return jnp.asarray(pos.min(axis=0)), jnp.asarray(pos.max(axis=0)), exact(0.0, (pos.shape[1],))


def find(shares: jax.Array, counts: jax.Array, keys: Keys) -> tuple[jax.Array, Any]:
    """Return the cuts of emulated ranks, ``(splitters, r)``, and the search that found them."""
    result = _splitters.find_splitters(list(shares), list(counts), keys)
    there = jnp.moveaxis(result.rows, 0, 1)[..., None]
    cut = jax.vmap(lambda rows, left: _splitters._cut_ties(rows[:, 0], rows[:, 1], comm.Wide(left[0], left[1])))
    return cut(there, result.left)[..., 0], result


@pytest.fixture(params=[2, 5, pytest.param(64, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(comm, "num_ranks", lambda: request.param)
    return request.param


@pytest.mark.long
@pytest.mark.parametrize("sums", ["short", "wide"])
def test_cuts_equal_those_of_the_globally_sorted_rows(
    ranks: int, sums: str, x64: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sums == "wide":
        monkeypatch.setattr(_splitters.comm, "wide_sum", lambda count, maximum: wide_sum(count))
    compiled = jax.jit(find)
    for number, (name, points) in enumerate(SETS.items()):
        for n, how in ((400, "random"), (400, "sorted"), (150, "on few ranks"), (3, "random"), (1, "sorted")):
            rng = np.random.default_rng(number)
            pos = points(rng, n)
            if how == "sorted":
                pos = pos[oracles.z_order(pos)]
            counts, order = counts_of(ranks, n, how, rng), oracles.z_order(pos)
            owner = np.repeat(np.arange(ranks), counts)[order]
            shares = np.full((ranks, ROWS, 3), np.nan)
            for rank in range(ranks):
                shares[rank, : counts[rank]] = pos[order[owner == rank]]
            cuts, _ = compiled(shares, counts.astype(np.int32), keys_of(pos))
            ends = np.cumsum(counts_of(ranks, n, "equal", rng))[:-1]
            expected = [np.bincount(owner[:end], minlength=ranks) for end in ends]
            np.testing.assert_array_equal(cuts, expected, f"{name}, {n} {how}")


@pytest.mark.watched
@pytest.mark.long
def test_without_rows_all_cuts_are_at_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comm, "num_ranks", lambda: 3)
    cuts, _ = find(jnp.ones((3, 5, 3)), jnp.zeros(3, jnp.int32), keys_of(np.ones((1, 3), np.float32)))
    np.testing.assert_array_equal(cuts, np.zeros((2, 3)))


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    """Run JAX's loop step by step, so that steps can be counted."""
    while condition(state):
        state = body(state)
    return state


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "name", "maximum"), [(2048, "uniform", 5), (2048, "haloes", 8), (64, "clumps", 12)], indirect=["ranks"]
)
def test_sums_are_few_and_small(ranks: int, name: str, maximum: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use 100 rows per rank."""
    numbers: list[int] = []

    def counted(count: jax.Array, maximum: int) -> comm.Wide:
        numbers.append(count.size * (1 if maximum < 2**31 else 2))
        return wide_sum(count, maximum)

    monkeypatch.setattr(_splitters.comm, "wide_sum", counted)
    pos = SETS[name](np.random.default_rng(1), 100 * ranks).astype(np.float32)
    pos, _ = jz.tree.zsort.jit(pos)
    monkeypatch.setattr(jax.lax, "while_loop", while_loop)
    cuts, _ = find(pos[None], jnp.full(1, len(pos), jnp.int32), keys_of(np.asarray(pos)))
    np.testing.assert_array_equal(cuts[:, 0], 100 * np.arange(1, ranks))
    assert len(numbers) <= maximum
    assert 4 * sum(numbers) < 1e6


def test_one_sum_in_the_compiled_search() -> None:
    """There is one sum for any number of splitters, which also gives the total number of rows."""
    _, _, part = make("uniform", 4)
    sort = jz.tree.distr_zsort.smap(mesh_of(4))
    text = str(jax.make_jaxpr(sort)(part))
    sums = re.findall(r"i32\[(\d+),(\d+)\]\S* = psum\w*\[", text)
    assert sums == [("1", str(_splitters._FEWEST_PARTS))]


@pytest.mark.watched
def test_totals_above_32_bits() -> None:
    """There are 1e10 rows for 3 ranks, about a third in each of three parts."""
    total = 10**10
    ends = [total // 3 - 1, 2 * (total // 3), total, total]
    sums = jnp.asarray([[end >> 16, end & 0xFFFF] for end in ends], jnp.int32)
    own = jnp.asarray([[1, 3, 6, 6]], jnp.int32)
    places, left = jnp.zeros((2, 8), jnp.uint32), jnp.full((2, 2), -1, jnp.int32)
    rows, groups = jnp.asarray([[[0, 6]] * 2], jnp.int32), jnp.ones(2, jnp.int32)
    step = jnp.asarray([0, 61, 2], jnp.int32)
    places, left, rows = kernels.choose_parts(sums, own, places, left, rows, groups, step)
    # Shares begin at 3333333334 and 6666666667.
    np.testing.assert_array_equal(places[:, 0], [1 << 29, 2 << 29])
    np.testing.assert_array_equal(left, [[0, 2], [0, 1]])
    np.testing.assert_array_equal(rows, [[[1, 2], [3, 3]]])
