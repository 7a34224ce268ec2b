"""Groups of more particles than memory holds: the same as in memory, after any interruption."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import jztree as jz
from jztree_utils import large
from jztree_utils.large import _plan
from jztree_utils.large._steps import Steps

pytestmark = pytest.mark.usefixtures("small_pieces")
N = 2000


def particles(seed: int = 0, dtype: Any = np.float32, dims: int = 3) -> jz.data.ParticleData:
    random = np.random.default_rng(seed)
    pos, vel = random.random((2, N, dims)).astype(dtype)
    return jz.data.ParticleData(pos=pos, vel=vel, mass=random.random(N).astype(dtype), id=random.permutation(N))


def at(pos: np.ndarray) -> jz.data.ParticleData:
    return jz.data.ParticleData(pos=pos.astype(np.float32), mass=2.0)


def in_pieces(part: jz.data.ParticleData, number: int = 3) -> list[jz.data.ParticleData]:
    """Return particles in pieces. The second piece is empty."""
    ends = [0, *np.linspace(len(part.pos) // 3, len(part.pos), number).astype(int)]
    ends[1:1] = [ends[1]]
    return [
        jax.tree.map(lambda leaf: leaf if np.ndim(leaf) == 0 else leaf[start:end], part)  # noqa: B023
        for start, end in itertools.pairwise(ends)
    ]


def memory_for(rows: int, part: jz.data.ParticleData) -> float:
    return rows * _plan._WORDS * part.pos.shape[1] * part.pos.itemsize


def compare(part: jz.data.ParticleData, rlink: float, box: Any, rows: int, npart_min: int = 4, devices: int = 1) -> int:
    """Compare groups with a search in memory; devices hold ``rows`` particles each. Return the number of groups."""
    particles, cata = jz.friends_of_friends(part, rlink, boxsize=box, npart_min=npart_min)
    label = np.asarray(jz.group_labels(part, rlink, boxsize=box))
    mesh = Mesh(np.array(jax.devices()[:devices]), ("device",))
    options = {"memory": devices * memory_for(rows, part), "npart_min": npart_min, "mesh": mesh, "quiet": True}
    pieces = in_pieces(part)
    with large.friends_of_friends(pieces, rlink, box, **options) as groups:
        labels, blocks, numbers = list(groups.labels()), list(groups.members()), groups.numbers()
    assert [len(piece) for piece in labels] == [len(piece.pos) for piece in pieces]
    np.testing.assert_array_equal(np.concatenate(labels), label)
    for name, column in cata.columns().items():
        if name != "offset":
            np.testing.assert_array_equal(getattr(groups.catalogue, name), column, err_msg=name)
    assert (np.bincount(numbers, minlength=cata.ngroups)[: cata.ngroups] == cata.count).all()
    # The same particles in the same order, with the largest group first.
    members = [np.arange(first, first + count) for first, count in zip(cata.offset, cata.count, strict=True)]
    order = np.concatenate([np.empty(0, int), *members])
    np.testing.assert_array_equal(np.concatenate([block.pos for block, _ in blocks]), np.asarray(particles.pos)[order])
    rows_of_members = np.concatenate([rows for _, rows in blocks])
    np.testing.assert_array_equal(part.pos[rows_of_members], np.asarray(particles.pos)[order])
    assert (numbers[rows_of_members] == np.repeat(np.arange(cata.ngroups), cata.count)).all()
    np.testing.assert_array_equal(groups.catalogue.offset, np.cumsum(cata.count) - np.asarray(cata.count))
    return int(cata.ngroups)


LATTICE = np.stack(np.meshgrid(*[np.arange(12)] * 3), axis=-1).reshape(-1, 3) / 12
CHAIN = np.stack([np.random.default_rng(1).permutation(N) / N, np.zeros(N)], axis=1)


CASES = pytest.mark.parametrize(
    ("part", "rlink", "box", "rows"),
    [
        pytest.param(particles(), 0.05, None, N, id="one slab"),
        pytest.param(particles(), 0.05, None, 500, id="open box"),
        pytest.param(particles(dims=2), 0.012, 1.0, 300, id="two dimensions"),
        pytest.param(at(3 * particles().pos - 1), 0.05, 1.0, 700, id="outside the box"),
        pytest.param(at(particles().pos * [1, 1, 30]), 0.2, [0, 1.0, 30.0], 700, id="periodic in some dimensions"),
        pytest.param(at(np.repeat(particles().pos[:40], 50, axis=0)), 0.0, 1.0, 500, id="equal points"),
        pytest.param(at(particles().pos * [0, 1, 1]), 0.01, 1.0, 500, id="plane"),
        pytest.param(at(particles().pos * [0, 3, 1]), 0.09, [0, 0, 1.0], 700, id="groups wider than half the box"),
        pytest.param(at(LATTICE), 1 / 12, 1.0, 900, id="ties at the linking length"),
        pytest.param(at(CHAIN), 1.01 / N, 1.0, 300, id="one group in all slabs"),
        pytest.param(at(particles().pos[:0]), 0.1, 1.0, 300, id="no particles"),
        pytest.param(at(particles().pos[:1]), 0.1, 1.0, 300, id="one particle"),
        pytest.param(particles(), 0.05, 1.0, 500, id="periodic box"),
    ],
)


@CASES
def test_groups_equal_the_results_in_memory(part: jz.data.ParticleData, rlink: float, box: Any, rows: int) -> None:
    compare(part, rlink, box, rows)


@CASES
def test_groups_of_several_devices_equal_the_results_in_memory(
    part: jz.data.ParticleData, rlink: float, box: Any, rows: int
) -> None:
    compare(part, rlink, box, rows, devices=4)
    compare(part, rlink, box, rows, npart_min=1, devices=3)


def test_float64_groups_equal_the_results_in_memory() -> None:
    with jax.enable_x64(True):
        assert compare(particles(dtype=np.float64), 0.05, 1.0, 500) > 20


def test_groups_are_independent_of_memory_and_of_the_smallest_group() -> None:
    assert {compare(particles(2), 0.05, 1.0, rows, npart_min=1) for rows in (400, 900, N)} == {
        len(np.unique(jz.group_labels(particles(2).pos, 0.05, boxsize=1.0)))
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("box", [None, 1.0])
def test_neighbours_and_counts_equal_the_results_in_memory(dtype: Any, box: float | None) -> None:
    part, queries = particles(dtype=dtype), jz.data.Pos(pos=particles(1, dtype).pos[:50], num=40)
    places, memory = queries.pos[:40], memory_for(500 + 40 * 2, part)
    options = {"queries": queries, "boxsize": box, "memory": memory, "quiet": True}
    with jax.enable_x64(dtype == np.float64):
        neighbours = jz.nearest(part.pos, 4, queries=places, boxsize=box)
        counts = jz.count_within(part.pos, 0.2, queries=places, boxsize=box)
    result = large.nearest(in_pieces(part), 4, **options)
    np.testing.assert_array_equal(result.distance, neighbours.distance)
    np.testing.assert_array_equal(result.index, neighbours.index)
    np.testing.assert_array_equal(large.count_within(in_pieces(part), 0.2, **options), counts)


@pytest.mark.parametrize("k", [0, -3])
def test_neighbours_need_a_positive_number(k: int) -> None:
    pos = np.zeros((4, 3), np.float32)
    with pytest.raises(ValueError, match=f"k must be at least 1, not {k}"):
        large.nearest([pos], k, queries=pos, quiet=True)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (np.nan, "memory is nan; it must be a positive number of bytes"),
        (np.inf, "memory is inf; it must be a positive number"),
        (-1, "memory is -1; it must be a positive number"),
        ("8GB", "memory is '8GB'; it must be a number of bytes"),
    ],
)
def test_invalid_memory_raises(memory: Any, message: str) -> None:
    pos = particles().pos
    for search in (
        lambda: large.friends_of_friends([pos], 0.1, memory=memory),
        lambda: large.nearest([pos], 2, queries=pos[:3], memory=memory),
        lambda: large.count_within([pos], 0.1, queries=pos[:3], memory=memory),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            search()


def test_iterators_of_pieces_give_the_same_neighbours_and_counts() -> None:
    pos = particles().pos
    pieces, options = [pos[:700], pos[700:710], pos[710:]], {"queries": pos[:50], "quiet": True}
    expected, result = (large.nearest(sources, 5, **options) for sources in (pieces, iter(pieces)))
    jax.tree.map(np.testing.assert_array_equal, result, expected)
    counts = large.count_within((piece for piece in pieces), 0.1, **options)
    np.testing.assert_array_equal(counts, large.count_within(pieces, 0.1, **options))
    assert (large.nearest(iter([]), 2, queries=pos[:3], quiet=True).index == -1).all()


def test_missing_neighbours_and_no_sources() -> None:
    few, queries = particles().pos[:3], particles(1).pos[:5]
    distance, index = large.nearest([few[:1], few[1:]], 5, queries=queries, quiet=True)
    assert np.isinf(distance[:, 3:]).all()
    assert (index[:, 3:] == -1).all()
    assert (np.sort(index[:, :3], axis=1) == np.arange(3)).all()
    assert (large.nearest([few[:0]], 2, queries=queries, quiet=True).index == -1).all()
    assert (large.count_within([few[:0]], 1.0, queries=queries, quiet=True) == 0).all()
    assert large.count_within([few], 1.0, queries=queries[:0], quiet=True).shape == (0,)


def interrupted(moment: int, function: Callable[..., None]) -> Callable[..., None]:
    """Return ``function``, which raises KeyboardInterrupt in the call with this number, after its work."""
    calls = iter(range(moment))

    def call(*args: Any) -> None:
        function(*args)
        if next(calls, None) is None:
            raise KeyboardInterrupt

    return call


@pytest.mark.parametrize("moment", [0, 1, 3, 6, 10, 15, 21, 24])
def test_interrupted_run_continues_with_the_same_bytes(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = particles()
    options = {"memory": memory_for(500, part), "npart_min": 2, "quiet": True}
    with large.friends_of_friends(in_pieces(part), 0.05, 1.0, **options) as groups:
        expected = groups.catalogue.columns(), list(groups.labels()), [rows for _, rows in groups.members()]
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Steps, "append", interrupted(moment, Steps.append))
        with pytest.raises(KeyboardInterrupt):
            large.friends_of_friends(in_pieces(part), 0.05, 1.0, **options, folder=folder)
    with large.friends_of_friends(in_pieces(part), 0.05, 1.0, **options, folder=folder) as groups:
        result = groups.catalogue.columns(), list(groups.labels()), [rows for _, rows in groups.members()]
    jax.tree.map(np.testing.assert_array_equal, result, expected)
    assert not folder.exists()


def test_complete_folder_gives_the_groups_without_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, folder = particles(), tmp_path / "run"
    options = {"memory": memory_for(900, part), "quiet": True, "folder": folder}
    first = large.friends_of_friends(in_pieces(part), 0.05, 1.0, **options)
    monkeypatch.setattr(Steps, "append", interrupted(0, Steps.append))
    again = large.friends_of_friends(in_pieces(part), 0.05, 1.0, **options)
    jax.tree.map(np.testing.assert_array_equal, again.catalogue.columns(), first.catalogue.columns())
    with pytest.raises(ValueError, match="an unfinished run with another linking length; remove the folder"):
        large.friends_of_friends(in_pieces(part), 0.06, 1.0, **options)
    with pytest.raises(ValueError, match="holds other files; choose an empty folder"):
        large.friends_of_friends(in_pieces(part), 0.05, 1.0, **options | {"folder": tmp_path})


def test_temporary_files_take_less_than_the_particles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, sizes, append = particles(), [], Steps.append

    def measured(steps: Steps, name: str, rows: np.ndarray) -> None:
        append(steps, name, rows)
        sizes.append(sum(path.stat().st_size for path in steps.folder.glob("*.rows")))

    monkeypatch.setattr(Steps, "append", measured)
    large.friends_of_friends(in_pieces(part), 0.05, 1.0, memory=memory_for(500, part), quiet=True).close()
    assert max(sizes) < 1.5 * sum(column.nbytes for column in (part.pos, part.vel, part.mass, part.id))


@pytest.mark.parametrize(
    ("pieces", "options", "message"),
    [
        (lambda part: iter(in_pieces(part)), {}, "friends_of_friends reads each piece twice"),
        (lambda part: [part, part.pos], {}, r"pieces\[1\] has the properties pos"),
        (lambda part: [part.pos * np.nan], {}, "pos of row 0 is NaN or infinite"),
        (lambda part: [replace(part, mass=-part.mass)], {}, "mass of row 0 is negative"),
        (lambda part: [part.pos], {"memory": 10}, "memory is 0.00977 kiB, .*; give more"),
        (
            lambda part: [np.full_like(part.pos, 0.5)],
            {"memory": 9e4},
            "have nearly the same coordinate .*; give more mem",
        ),
        (lambda part: [np.full_like(part.pos, 0.5)], {"memory": 9e4, "rlink": 0.0}, "have nearly the same coordinate"),
        (lambda part: [part.pos], {"rlink": 0.6, "memory": 9e4}, "The linking length 0.6 is so long"),
        (lambda part: [part.pos], {"rlink": -1.0}, "rlink"),
        (lambda part: [part.pos], {"boxsize": [1.0, 1.0]}, "boxsize"),
    ],
)
def test_invalid_arguments_raise(pieces: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        large.friends_of_friends(pieces(particles()), **{"rlink": 0.05, "boxsize": 1.0, "quiet": True} | options)
