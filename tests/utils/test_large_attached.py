"""Attached particles of other types, more than memory holds: they join the same groups as in memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from utils.test_large import interrupted

import jztree as jz
from jztree_utils import large
from jztree_utils.large import _plan
from jztree_utils.large._steps import Steps

pytestmark = pytest.mark.usefixtures("small_pieces")
N = 2000


def clustered(num: int, seed: int, dims: int = 3, dtype: Any = np.float32) -> jz.data.ParticleData:
    """Return particles, two thirds in clumps."""
    random, centres = np.random.default_rng(seed), np.random.default_rng(0).random((12, dims))
    pos = random.random((num, dims))
    clumped = random.random(num) < 2 / 3
    pos[clumped] = (centres[random.integers(12, size=num)] + random.normal(0, 0.01, (num, dims)))[clumped] % 1
    return of(pos, random, dtype)


def of(pos: np.ndarray, random: np.random.Generator | None = None, dtype: Any = np.float32) -> jz.data.ParticleData:
    random = random or np.random.default_rng(len(pos))
    vel, mass = random.normal(size=pos.shape).astype(dtype), random.random(len(pos)).astype(dtype)
    return jz.data.ParticleData(pos=pos.astype(dtype), vel=vel, mass=mass, id=random.permutation(len(pos)))


def memory_for(rows: int, dims: int = 3) -> float:
    return rows * _plan._WORDS * dims * 4


def pieces_of(part: jz.data.ParticleData) -> list[jz.data.ParticleData]:
    half = len(part.pos) // 2
    return [jax.tree.map(lambda leaf: leaf[rows], part) for rows in (slice(half), slice(half, None))]  # noqa: B023


def compare(
    types: list[jz.data.ParticleData],
    rlink: float,
    box: Any,
    rows: int,
    *,
    within: float | None = 6.4,
    npart_min: int = 4,
    devices: int = 1,
) -> int:
    """Compare groups with a search in memory; devices hold ``rows`` particles each. Return the number of groups."""
    options: dict[str, Any] = {"npart_min": npart_min, "attach_within": within}
    numbered, start = [], 0
    for part in types:  # the mean of the rows identifies the members
        numbered.append(
            jz.data.ParticleData(pos=part.pos, vel=part.vel, mass=part.mass, id=start + np.arange(len(part.pos)))
        )
        start += len(part.pos)
    particles, cata = jz.friends_of_friends(numbered[0], rlink, boxsize=box, attached=numbered[1:], **options)
    memory = devices * memory_for(rows, types[0].pos.shape[1])
    options |= {"memory": memory, "mesh": Mesh(np.array(jax.devices()[:devices]), ("device",))}
    pieces = [pieces_of(part) for part in types]
    with large.friends_of_friends(pieces[0], rlink, box, attached=pieces[1:], quiet=True, **options) as groups:
        blocks, numbers, by_type = list(groups.members()), groups.numbers(), groups.by_type()
        labels = np.concatenate(list(groups.labels()))
    for name, column in cata.columns().items():
        if name != "offset":
            np.testing.assert_array_equal(getattr(groups.catalogue, name), column, err_msg=name)
    members = [np.arange(first, first + count) for first, count in zip(cata.offset, cata.count, strict=True)]
    order = np.concatenate([np.empty(0, int), *members])
    expected = np.asarray(particles.id)[order]
    rows_of_members = np.concatenate([rows for _, rows in blocks])
    np.testing.assert_array_equal(rows_of_members, expected)
    np.testing.assert_array_equal(numbers[expected], np.repeat(np.arange(cata.ngroups), cata.count))
    assert np.count_nonzero(numbers < cata.ngroups) == len(expected)
    np.testing.assert_array_equal(
        np.concatenate([block.pos for block, _ in blocks]), np.asarray(particles.pos)[order].astype(types[0].pos.dtype)
    )
    assert by_type is not None
    kind = np.searchsorted(np.cumsum([len(part.pos) for part in types]), expected, side="right")
    for number in range(len(types)):
        counts = np.bincount(numbers[expected][kind == number], minlength=int(cata.ngroups))
        np.testing.assert_array_equal(by_type[0][:, number], counts)
    np.testing.assert_allclose(by_type[1].sum(axis=1), np.asarray(cata.mass), rtol=1e-5)
    assert len(labels) == start
    first = np.full(int(cata.ngroups) + 1, start)
    np.minimum.at(first, numbers, np.arange(start))
    listed = numbers < cata.ngroups
    np.testing.assert_array_equal(labels[listed], first[numbers[listed]])
    return int(cata.ngroups)


DARK, GAS, STARS = clustered(N, 3), clustered(1500, 1), clustered(300, 2)
GRID = np.stack(np.meshgrid(*[np.arange(12)] * 3), axis=-1).reshape(-1, 3) / 12
IS_ODD = np.rint(12 * GRID).sum(axis=1) % 2 == 1
LEFT, RIGHT = (np.random.default_rng(4).random((600, 3)) * [0.3, 1, 1] + [low, 0, 0] for low in (0, 0.6))


@pytest.mark.parametrize("box", [None, 1.0])
@pytest.mark.parametrize("within", [None, 6.4, 0.5, 0.0])
@pytest.mark.parametrize(("npart_min", "devices"), [(1, 3), (2, 1), (6, 1)])
def test_groups_equal_the_results_in_memory(devices: int, box: Any, within: float | None, npart_min: int) -> None:
    options: dict[str, Any] = {"within": within, "npart_min": npart_min, "devices": devices}
    assert compare([DARK, GAS, STARS], 0.02, box, 500, **options) > 10


CASES = pytest.mark.parametrize(
    ("types", "rlink", "box", "rows"),
    [
        pytest.param([of(GRID), of(GRID + 1 / 24)], 0.01, 1.0, 500, id="equal distances"),
        pytest.param([of(GRID[~IS_ODD]), of(GRID[IS_ODD])], 0.06, None, 300, id="checkerboard"),
        pytest.param([of(GRID), of(GRID), of(GRID + np.array([0, 0, 1 / 24]))], 1 / 12, None, 900, id="equal places"),
        pytest.param([of(np.repeat(GRID[::40], 30, axis=0)), of(GRID)], 0.0, 1.0, 400, id="coincident sources"),
        pytest.param([of(LEFT), of(RIGHT)], 0.05, None, 200, id="slabs of one type alone, open"),
        pytest.param([of(LEFT), of(RIGHT)], 0.05, 1.0, 200, id="slabs of one type alone"),
        pytest.param([of(np.concatenate([LEFT, RIGHT])), of(LEFT)], 0.05, 1.0, 200, id="slabs without attached"),
        pytest.param([DARK, of(GRID[:0]), STARS], 0.02, 1.0, 500, id="a type without particles"),
        pytest.param([DARK, of(GRID[:0])], 0.02, 1.0, 500, id="no attached particles"),
        pytest.param([of(GRID[100:101]), GAS], 0.02, 1.0, 500, id="one linked particle"),
        pytest.param([of(GRID[100:103]), of(GRID[5:6])], 0.02, None, 300, id="one attached particle"),
        pytest.param([DARK, of(np.full((900, 3), 0.4))], 0.02, 1.0, 500, id="all attached at one place"),
        pytest.param([of(3 * DARK.pos - 1), of(3 * GAS.pos - 1)], 0.02, 1.0, 500, id="outside the box"),
        pytest.param([of(DARK.pos * [9, 1, 1]), of(GAS.pos * [9, 1, 1])], 0.05, [0, 1.0, 0], 400, id="two open axes"),
        pytest.param([DARK, of(GAS.pos * 1e4)], 0.02, None, 500, id="far away"),
        pytest.param([clustered(N, 5, 1), clustered(N, 6, 1)], 1e-4, 1.0, 500, id="one dimension"),
        pytest.param([clustered(N, 5, 4), clustered(N, 6, 4)], 0.05, 1.0, 800, id="four dimensions"),
    ],
)


@CASES
@pytest.mark.parametrize("within", [None, 1.5])
def test_special_places_join_the_groups_of_a_search_in_memory(
    types: list[jz.data.ParticleData], rlink: float, box: Any, rows: int, within: float | None
) -> None:
    for npart_min in (1, 3):
        compare(types, rlink, box, rows, within=within, npart_min=npart_min)


@pytest.mark.parametrize("moment", [3, 20, 26, 31, 33, 36, 45, 60])
def test_interrupted_run_continues_with_the_same_bytes(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(folder: Path) -> Any:
        options: dict[str, Any] = {"attached": [[GAS], [STARS]], "memory": memory_for(500), "npart_min": 3}
        with large.friends_of_friends([DARK], 0.02, 1.0, folder=folder, quiet=True, **options) as groups:
            members = [(part.pos, part.mass, part.id, rows) for part, rows in groups.members()]
            return groups.catalogue.columns(), list(groups.labels()), members, groups.by_type()

    with monkeypatch.context() as patch:
        patch.setattr(Steps, "append", interrupted(moment, Steps.append))
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, search(tmp_path / "run"), search(tmp_path / "whole"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_temporary_files_are_at_most_as_large_as_estimated(
    dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types, sizes = [[clustered(num, num, dtype=dtype)] for num in (8000, 12000)], list[int]()
    append = Steps.append

    def measured(steps: Steps, *arguments: Any) -> None:
        append(steps, *arguments)
        sizes.append(sum(path.stat().st_size for path in tmp_path.rglob("*.rows")))

    monkeypatch.setattr(Steps, "append", measured)
    memory = memory_for(3000) * np.dtype(dtype).itemsize / 4
    options: dict[str, Any] = {"attached": types[1:], "attach_within": 0.5, "memory": memory, "quiet": True}
    with jax.enable_x64(dtype == np.float64):
        large.friends_of_friends(types[0], 0.02, 1.0, folder=tmp_path / "run", **options)
    assert max(sizes) < large.disk_bytes([large.pieces_of(pieces) for pieces in types])


@pytest.mark.parametrize(
    ("pieces", "options", "message"),
    [
        ([DARK], {"attached": GAS}, "attached must be a sequence"),
        ([DARK.pos], {"attached": [[GAS]]}, r"pieces have the properties pos float32\[3\], but attached\[0\] has id"),
        ([DARK], {"attached": [[of(GAS.pos, dtype=np.float64)]]}, r"but attached\[0\] has id int64, mass float64"),
        (
            [DARK],
            {"attached": [[GAS], [replace(STARS, mass=-STARS.mass)]]},
            r"mass of row 0 of attached\[1\] is negative",
        ),
        ([DARK], {"attached": [[GAS]], "attach_within": -1.0}, "attach_within is -1"),
        ([DARK], {"attached": [[GAS]], "attach_within": np.inf}, "attach_within is inf"),
        ([of(DARK.pos[:0])], {"attached": [[GAS]]}, "but part has no particles"),
        ([DARK], {"attached": [[replace(GAS, pos=GAS.pos * np.nan)]]}, "pos of row 0 is NaN or infinite"),
    ],
)
def test_invalid_arguments_raise(pieces: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        large.friends_of_friends(pieces, 0.02, 1.0, memory=memory_for(500), quiet=True, **options)
