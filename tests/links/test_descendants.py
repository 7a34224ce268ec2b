"""Descendants of subhaloes, compared with matching by dictionaries, on one device and over ranks."""

from typing import Any

import jax
import numpy as np
import pytest
from devices import DEVICE_COUNTS, mesh_of
from oracles import RUN_TIME_ERROR

import jztree as jz
from jztree.links import Descendants, SubhaloMembers, skip_output
from jztree_utils import io

pytestmark = pytest.mark.emulated

WEIGHTS = ["lhalotree", "sublink"]


def slow_links(part: SubhaloMembers, later: SubhaloMembers, number: int, weights: str) -> tuple[Any, Any]:
    """Return the descendants and scores by the definitions."""
    of_later = dict(zip(np.asarray(later.id).tolist(), np.asarray(later.subhalo).tolist(), strict=True))
    ids, subhalo, energy = (np.asarray(column) for column in (part.id, part.subhalo, part.energy))
    descendants, best = np.full(number, -1), np.zeros(number, np.float32)
    for i in range(number):
        rows = np.flatnonzero(subhalo == i)
        rows = rows[np.lexsort((ids[rows].astype(np.uint64), energy[rows]))]
        used = len(rows) if weights == "sublink" else -(-len(rows) // 2)
        scores: dict[int, float] = {}
        for rank, row in enumerate(rows[:used], start=1):
            descendant = of_later.get(ids[row].item(), -1)
            if descendant >= 0:
                weight = np.float32(rank) ** np.float32(-1 if weights == "sublink" else -2 / 3)
                scores[descendant] = scores.get(descendant, 0.0) + float(weight)
        for descendant, score in sorted(scores.items()):
            if np.float32(score) > best[i]:
                descendants[i], best[i] = descendant, score
    return descendants, best


def random_outputs(seed: int, n: int, number: int) -> tuple[SubhaloMembers, SubhaloMembers]:
    """Return two outputs with common particles in another order, equal energies, and particles of one output only."""
    random = np.random.default_rng(seed)
    ids = np.unique(random.integers(0, 2**64 - 1, n + n // 4, dtype=np.uint64))
    random.shuffle(ids)
    first, second = ids[:n], random.permutation(ids[n // 10 :])
    subhalo = random.integers(-1, number, n)
    origin = np.full(len(ids), -1)
    origin[:n] = subhalo
    # Most particles stay together, so that links are like the links of haloes.
    place = {identifier: i for i, identifier in enumerate(ids.tolist())}
    later = np.array([origin[place[identifier]] for identifier in second.tolist()]) // 2
    moved = random.random(len(later)) < 0.3
    later[moved] = random.integers(-1, number, moved.sum())
    energy = -random.integers(0, 40, n).astype(np.float32)
    return SubhaloMembers(first, subhalo, energy), SubhaloMembers(second, later)


def assert_links(links: Descendants, part: SubhaloMembers, later: SubhaloMembers, number: int, weights: str) -> None:
    descendants, scores = slow_links(part, later, number, weights)
    np.testing.assert_array_equal(np.ravel(links.subhalo)[:number], descendants)
    np.testing.assert_allclose(np.ravel(links.score)[:number], scores, rtol=3e-7)
    assert not np.any(np.ravel(links.subhalo)[number:] != -1)
    assert not np.any(links.skips)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("n", "number"), [(0, 0), (0, 3), (1, 1), (40, 1), (300, 400), (3000, 40)])
def test_links_equal_matching_by_dictionaries(n: int, number: int, weights: Any) -> None:
    part, later = random_outputs(n, n, number) if n > 1 else (_no_particles(n), _no_particles(n))
    for find in (jz.descendants, jz.descendants.jit):
        assert_links(find(part, later, number, weights=weights), part, later, number, weights)


def _no_particles(n: int) -> SubhaloMembers:
    return SubhaloMembers(np.arange(n), np.zeros(n, np.int32), np.zeros(n))


def dealt(members: SubhaloMembers, ndev: int) -> SubhaloMembers:
    """Return members over devices, with two thirds on the first one and rows of padding."""
    n = len(members.id)
    counts = [n - n // 3, *np.diff(np.arange(ndev) * (n // 3) // max(ndev - 1, 1))] if ndev > 1 else [n]
    starts = np.cumsum(counts) - counts

    def deal(column: Any) -> Any:
        if column is None:
            return None
        rows = np.zeros((ndev, max(counts) + 3), column.dtype)
        for rank, (start, count) in enumerate(zip(starts, counts, strict=True)):
            rows[rank, :count] = column[start : start + count]
        return rows

    columns = (deal(column) for column in (members.id, members.subhalo, members.energy))
    return SubhaloMembers(*columns, np.asarray(counts, np.int32))


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_links_are_the_same_over_ranks(ndev: int, weights: Any) -> None:
    for seed, number in ((1, 37), (2, 2)):
        part, later = random_outputs(seed, 900, number)
        links = jz.descendants.jit(part, later, number, weights=weights)
        find = jz.descendants.smap(mesh_of(ndev), jit=True)
        over_ranks = find(dealt(part, ndev), dealt(later, ndev), number, weights=weights)
        assert over_ranks.subhalo.shape == (ndev, -(-number // ndev))
        for column, distributed in zip(links, over_ranks, strict=True):
            np.testing.assert_array_equal(column, np.ravel(distributed)[:number])


def test_order_of_rows_has_no_effect() -> None:
    part, later = random_outputs(5, 500, 20)
    order = np.random.default_rng(1).permutation(500)
    shuffled = SubhaloMembers(part.id[order], part.subhalo[order], part.energy[order])
    for column, again in zip(jz.descendants(part, later, 20), jz.descendants(shuffled, later, 20), strict=True):
        np.testing.assert_array_equal(column, again)


@pytest.mark.parametrize("dtype", [np.int16, np.uint32, np.int64])
def test_identifiers_of_different_types_match(dtype: Any) -> None:
    ids = np.arange(100).astype(dtype) - np.asarray(0 if np.dtype(dtype).kind == "u" else 50, dtype)
    part = SubhaloMembers(ids, np.arange(100) // 50, np.arange(100.0))
    later = SubhaloMembers(ids.astype(np.int64), 1 - np.arange(100) // 50)
    np.testing.assert_array_equal(jz.descendants(part, later, 2).subhalo, [1, 0])
    words = SubhaloMembers(io.split_words(ids), later.subhalo)
    np.testing.assert_array_equal(jz.descendants(part, words, 2).subhalo, [1, 0])


def test_wide_identifiers_in_64_bit_mode(x64: None) -> None:
    part, later = random_outputs(3, 400, 11)
    as_jax = jax.tree.map(jax.numpy.asarray, (part, later))
    assert_links(jz.descendants.jit(*as_jax, 11), part, later, 11, "sublink")


def test_most_bound_core_outweighs_the_particles_of_a_large_neighbour() -> None:
    """A stripped satellite keeps its core: 5 of 40 particles give 1 + ... + 1/5, and the other 35 only 2.0."""
    part = SubhaloMembers(np.arange(40), np.zeros(40, np.int32), np.arange(40.0))
    later = SubhaloMembers(np.arange(40), np.where(np.arange(40) < 5, 3, 0))
    assert jz.descendants(part, later, 1).subhalo[0] == 3


@pytest.mark.parametrize("name", ["part", "later"])
def test_repeated_identifiers_raise_and_are_counted(name: str) -> None:
    part, later = random_outputs(4, 300, 9)
    rows = np.r_[np.arange(300), 5, 5, 17]
    outputs = {"part": part, "later": later}
    copied = outputs[name]
    outputs[name] = SubhaloMembers(
        copied.id[rows], copied.subhalo[rows], None if copied.energy is None else copied.energy[rows]
    )
    with pytest.raises(ValueError, match=f"3 particles of {name} have the identifier"):
        jz.descendants(outputs["part"], outputs["later"], 9)
    find = jz.descendants.smap(mesh_of(2), jit=True)
    with pytest.raises(RUN_TIME_ERROR, match=f"3 particles of {name} have the identifier"):
        find(dealt(outputs["part"], 2), dealt(outputs["later"], 2), 9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subhalo": np.array([0, 1, 2])}, "above 1 in row 2"),
        ({"subhalo": np.array([0, -2, 1])}, "below -1 .* in row 1"),
        ({"subhalo": np.array([0.0, 1.0, 1.0])}, "must be integers"),
        ({"subhalo": np.zeros(4, int)}, "id of part must be integers of the shape"),
        ({"energy": np.array([np.nan, 0, 0])}, "energy of part is NaN in row 0"),
        ({"energy": None}, "energy of part must be floats"),
        ({"energy": np.zeros(2)}, "energy of part must be floats"),
        ({"id": np.zeros(3)}, "id of part must be integers"),
        ({"num": 4}, "from 0 to 3"),
    ],
)
def test_invalid_members_raise(change: dict[str, Any], message: str) -> None:
    columns = {"id": np.arange(3), "subhalo": np.array([0, 1, -1]), "energy": np.zeros(3)}
    later = SubhaloMembers(np.arange(3), np.zeros(3, int))
    with pytest.raises(ValueError, match=message):
        jz.descendants(SubhaloMembers(**(columns | change)), later, 2)


@pytest.mark.fast
def test_invalid_options_raise() -> None:
    part = _no_particles(3)
    with pytest.raises(TypeError, match="part must be a"):
        jz.descendants(part.id, part, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="subhalo of later must be an array, not list"):
        jz.descendants(part, SubhaloMembers(np.arange(1), [0]), 1)  # type: ignore[arg-type]


def _links(subhalo: list[int]) -> Descendants:
    column = np.asarray(subhalo, np.int32)
    return Descendants(column, (column >= 0).astype(np.float32), np.zeros(len(column), bool))


# Subhaloes 0 to 5: kept; lost in the centre of 0; merged with 0; not in the next output; ended; only in the next one.
NEXT, NEXT_OF_NEXT, AFTER_NEXT = [0, 0, 0, -1, -1, 2], [0, 3, -1], [0, 2, 0, 1, -1, -1]


def test_lost_subhaloes_skip_the_next_output() -> None:
    links = skip_output(_links(NEXT), _links(NEXT_OF_NEXT), _links(AFTER_NEXT))
    np.testing.assert_array_equal(links.subhalo, [0, 2, 0, 1, -1, 2])
    np.testing.assert_array_equal(links.skips, [False, True, False, True, False, False])


def test_links_skip_outputs_over_ranks() -> None:
    def over(links: Descendants) -> Descendants:
        return Descendants(*(np.reshape(column, (3, -1)) for column in links))

    arguments = _links(NEXT), _links(NEXT_OF_NEXT), _links(AFTER_NEXT)
    over_ranks = skip_output.smap(mesh_of(3), jit=True)(*map(over, arguments))
    for column, distributed in zip(skip_output(*arguments), over_ranks, strict=True):
        np.testing.assert_array_equal(column, np.ravel(distributed))


def test_next_output_without_subhaloes_is_skipped() -> None:
    links = skip_output(_links([-1, -1]), _links([]), _links([1, -1]))
    np.testing.assert_array_equal(links.subhalo, [1, -1])
    np.testing.assert_array_equal(links.skips, [True, False])
    with pytest.raises(ValueError, match="same output"):
        skip_output(_links([0]), _links([0]), _links([0, 0]))


@pytest.mark.long
def test_subhaloes_of_the_finder_link_over_ranks() -> None:
    """The numbers of `jz.subhaloes` over ranks refer to its joined table, which `jz.descendants` expects."""
    random = np.random.default_rng(8)
    centres = random.random((12, 3))
    pos = (np.repeat(centres, 50, axis=0) + random.normal(0, 0.002, (600, 3))).astype(np.float32)
    results = []
    for ndev in (1, 3):
        links = []
        for seed in (1, 2):
            order = np.random.default_rng(seed).permutation(600).reshape(ndev, -1)
            part = jz.data.ParticleData(
                pos=pos[order], vel=np.zeros_like(pos[order]), mass=np.ones(order.shape, np.float32),
                id=order.astype(np.int32), num=np.full(ndev, 600 // ndev, np.int32),
            )  # fmt: skip
            mesh = mesh_of(ndev)
            grouped, cata = jz.friends_of_friends.smap(mesh, jit=True)(part, 0.01, npart_min=20)
            bound = jz.subhaloes.smap(mesh, jit=True)(grouped, cata, 1.0, softening=0.001)
            members = SubhaloMembers(grouped.id, bound.subhalo, bound.energy, grouped.num)
            links.append((members, bound.columns()["pos"]))
        (first, centres_of_first), (later, centres_of_later) = links
        answer = jz.descendants.smap(mesh, jit=True)(first, later, len(centres_of_first))
        descendant = np.ravel(answer.subhalo)[: len(centres_of_first)]
        np.testing.assert_allclose(centres_of_later[descendant], centres_of_first, atol=1e-6)
        results.append(sorted(np.ravel(answer.score)[: len(centres_of_first)].tolist()))
    assert results[0] == results[1]
    assert len(results[0]) >= 10
