"""Arrays that no memory can hold must raise before they are allocated, with their size and a remedy."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import oracles
import pytest
from devices import mesh_of

import jztree as jz
from jztree._transform import memory
from jztree.data import Pos, expand_particles

POS = oracles.uniform(40, 3)
R = jz.radius


CALLS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "pairs": (
        lambda: R.pairs_within(POS, 0.1, boxsize=1.0, capacity=10**9),
        r"capacity for 1,000,000,000 pairs",
        "36,000,000,000",
    ),
    "pairs, jit": (
        lambda: R.pairs_within.jit(POS, 0.1, boxsize=1.0, capacity=10**9),
        "smaller radius or capacity",
        "36,000,",
    ),
    "pairs, rows": (
        lambda: R.pairs_within.jit(POS, 0.1, boxsize=1.0, capacity=10**9, quantities="ij"),
        "pairs",
        "8,000,000,000",
    ),
    "neighbours": (lambda: R.neighbours_within(POS, 2.0), "capacity for 1,600 neighbours", "12,800"),
    "neighbours, jit": (lambda: R.neighbours_within.jit(POS, 0.1), "use a smaller radius, or count_within", "10,240"),
    "reduce": (
        lambda: R.reduce_within.jit(POS, 0.1, lambda query, source, vector, distance: distance, capacity=1500),
        "1,500 pairs of a block",
        "12,000",
    ),
    "nearest": (lambda: R.nearest_within.jit(POS, 0.1, 2**31 - 1), "max_neighbours", "687,194,767,040"),
    "knn": (lambda: jz.knn.knn(POS, 39), r"39 neighbours \(k\) for 40 queries .* smaller k", "12,480"),
    "knn, jit": (lambda: jz.knn.knn.jit(POS, 2, part_query=np.tile(POS, (20, 1))), "800 queries", "12,800"),
}


@pytest.mark.parametrize("name", CALLS)
def test_too_large_arrays_raise_with_their_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, words, needed = CALLS[name]
    monkeypatch.setattr(memory, "largest_memory", lambda: 10_000)
    with pytest.raises(MemoryError, match=rf"{words}") as error:
        jax.block_until_ready(call())
    assert f"take {needed}" in str(error.value)
    assert "the largest memory here has 10,000" in str(error.value)
    assert oracles.one_sentence(error)


def test_lists_over_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = expand_particles(Pos(pos=POS), 2)
    monkeypatch.setattr(memory, "largest_memory", lambda: 10_000)
    with pytest.raises(MemoryError, match="capacity for 5,000 pairs take 180,000 bytes"):
        R.pairs_within.smap(mesh_of(2), jit=True)(stacked, 0.1, capacity=5000)


def test_no_error_if_memory_just_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.largest_memory() > 2**26
    monkeypatch.setattr(memory, "largest_memory", lambda: 40 * 39 * 8)
    assert jz.knn.knn(POS, 39)[0].shape == (40, 39)
    assert R.neighbours_within(POS, 2.0, queries=POS[:39]).index.shape == (40 * 39,)


@pytest.mark.parametrize(("limit", "expected"), [("max", None), ("4096\n", 4096), (str(2**80), None)])
def test_memory_limit_of_a_control_group(
    limit: str, expected: int | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = memory._host_memory()
    monkeypatch.setattr(memory, "_CONTROL_GROUP", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text(limit)
    assert memory._host_memory() >= complete if expected is None else memory._host_memory() == expected


@pytest.mark.parametrize("way", ["plain", "jit", "smap"])
def test_exhausted_memory_is_explained(way: str) -> None:
    """XLA allocates nothing here: a callback raises the error of XLA."""

    def exhausted(_: Any) -> Any:
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 24000000000 bytes.")

    def fail(rnn: jax.Array, **_: Any) -> jax.Array:
        return jax.pure_callback(exhausted, jax.ShapeDtypeStruct(rnn.shape, rnn.dtype), rnn)

    calls = {
        "plain": lambda: jz.knn.knn(POS, 3, result="reduce", reduce_func=fail),
        "jit": lambda: R.reduce_within.jit(POS, 0.1, lambda q, s, v, d: fail(d)),
        "smap": lambda: jz.knn.knn.smap(mesh_of(1), jit=True)(POS[None], 3, result="reduce", reduce_func=fail),
    }
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED") as error:
        jax.block_until_ready(calls[way]())
    (note,) = [note for note in error.value.__notes__ if note.startswith("jztree:")]
    assert "ran out of memory. Use fewer particles or queries" in note
