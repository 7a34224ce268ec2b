"""Messages to hundreds of ranks, emulated here, against plain NumPy loops over the ranks.

Also results on few ranks with as little information about each other as among thousands.
"""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scripts
from devices import SETS, deal, even, joined, make, mesh_of

import jztree as jz
from jztree import kernels
from jztree.comm import _exchange
from jztree.jax_ext import exact
from jztree.tree import ghosts

pytestmark = pytest.mark.emulated

RANKS, BOXES, ME = 300, 3, 117
SPACES = pytest.mark.parametrize("period", [0.0, 1.0], ids=["open", "periodic"])
KINDS = pytest.mark.parametrize("kind", ["spread", "clustered", "one place"])
# Kernel distances may be larger than these by this rounding error.
SPARE = 1e-4


@dataclasses.dataclass
class Boxes:
    """Boxes ``(n, d)``, with their ranks, particle numbers and radii, ``(n,)``."""

    lower: np.ndarray
    upper: np.ndarray
    rank: np.ndarray
    count: np.ndarray
    radius: np.ndarray

    def of_ranks(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the boxes in the form that all ranks publish."""
        shape = -1, BOXES, self.lower.shape[1]
        return self.lower.reshape(shape), self.upper.reshape(shape), self.count.reshape(-1, BOXES)


def made_up(rng: np.random.Generator, kind: str, dims: int) -> Boxes:
    """Return the boxes of every rank. Every fifth rank is empty, every fifth has one particle."""
    centre = rng.random((RANKS, 1, dims))
    if kind == "clustered":
        centre = 0.5 + 0.4 * rng.choice([-1, 1], (RANKS, 1, dims)) * centre**4
    middle = centre + rng.normal(0, 0.02, (RANKS, BOXES, dims))
    size = rng.random((RANKS, BOXES, dims)) * 0.05
    count = rng.integers(0, 9, (RANKS, BOXES))
    count[::5] = 0
    count[1::5] = [1] + [0] * (BOXES - 1)
    size[1::5] = 0
    if kind == "one place":
        middle, size = np.full_like(middle, 0.3), np.zeros_like(size)
    lower, upper = (np.clip(middle + side * size / 2, 0, 1).astype(np.float32) for side in (-1, 1))
    empty = count[..., None] == 0
    lower, upper = np.where(empty, np.float32(np.inf), lower), np.where(empty, np.float32(-np.inf), upper)
    radius = np.where(rng.random(count.shape) < 0.7, rng.random(count.shape) * 0.2, -1).astype(np.float32)
    flat = lambda array: array.reshape(RANKS * BOXES, *array.shape[2:])  # noqa: E731
    rank = np.repeat(np.arange(RANKS), BOXES)
    return Boxes(flat(lower), flat(upper), rank, flat(count).astype(np.int32), flat(radius))


def apart(a: tuple[Any, Any], b: tuple[Any, Any], period: float) -> np.ndarray:
    """Return the smallest distances between all boxes ``a`` and all boxes ``b``, to the nearest images."""
    (alow, ahigh), (blow, bhigh) = ([np.asarray(x, np.float64) for x in pair] for pair in (a, b))
    images = [-period, 0.0, period] if period else [0.0]
    with np.errstate(invalid="ignore"):
        each = [
            np.maximum(np.maximum(blow + shift - ahigh[:, None], alow[:, None] - bhigh - shift), 0) for shift in images
        ]
    return np.sqrt((np.min(each, axis=0) ** 2).sum(axis=-1))


def farthest(a: tuple[Any, Any], b: tuple[Any, Any], period: float) -> np.ndarray:
    """Return upper limits of the largest distances between points in each box of ``a`` and each box of ``b``."""
    (alow, ahigh), (blow, bhigh) = ([np.asarray(x, np.float64) for x in pair] for pair in (a, b))
    maximum = np.maximum(bhigh - alow[:, None], ahigh[:, None] - blow)
    return np.sqrt((np.minimum(maximum, period / 2 if period else np.inf) ** 2).sum(axis=-1))


def between(result: np.ndarray, nearest: np.ndarray, limit: np.ndarray) -> None:
    """Assert that everything within the limit was found, and nothing that is clearly outside it."""
    assert not np.any((nearest <= limit) & ~result)
    assert not np.any((nearest > limit * (1 + SPARE) + SPARE) & result)


def grouped(order: Any, counts: Any) -> list[list[int]]:
    """Return the entries of an order, rank by rank."""
    order, counts = np.asarray(order), np.asarray(counts)
    return [part.tolist() for part in np.split(order, np.cumsum(counts))[:-1]]


@pytest.mark.watched("True-3-periodic-clustered")
@KINDS
@SPACES
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("higher_only", [False, True])
def test_boxes_are_sent_to_ranks_that_may_have_wanted_rows(
    kind: str, period: float, dims: int, higher_only: bool
) -> None:
    rng = np.random.default_rng(dims)
    others = made_up(rng, kind, dims)
    own = made_up(rng, kind, dims)
    if not period:
        own.lower += 0.1  # so that some are outside all boxes
        own.upper += 0.1
    expected = own.lower, own.upper, own.radius
    call = lambda room: kernels.select_boxes(  # noqa: E731
        expected, others.of_ranks(), ME, exact(period, (dims,)), room, higher_only
    )
    order, counts = call(RANKS * RANKS * BOXES)
    assert np.all(np.asarray(order)[np.sum(counts) :] == -1)
    result = np.zeros((RANKS, len(own.radius)), bool)
    for rank, boxes in enumerate(grouped(order, counts)):
        assert boxes == sorted(set(boxes))
        result[rank, boxes] = True
    with np.errstate(invalid="ignore"):
        gaps = np.nan_to_num(apart((own.lower, own.upper), (others.lower, others.upper), period), nan=np.inf)
    gaps[:, others.count == 0] = np.inf
    gaps[(own.radius < 0) | (own.count == 0)] = np.inf
    nearest = gaps.reshape(len(gaps), RANKS, BOXES).min(axis=2).T
    nearest[: ME + 1 if higher_only else 0] = nearest[ME] = np.inf
    between(result, nearest, np.maximum(own.radius, 0)[None])
    assert result.any()
    few, same = call(50)
    np.testing.assert_array_equal(same, counts)
    np.testing.assert_array_equal(few, np.asarray(order)[:50])


@pytest.mark.watched("3-periodic-clustered")
@KINDS
@SPACES
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_rows_are_sent_to_ranks_whose_boxes_are_near(kind: str, period: float, dims: int) -> None:
    rng = np.random.default_rng(10 + dims)
    others = made_up(rng, kind, dims)
    # Other ranks send their boxes that request particles; the rank itself sends none.
    came = (others.count > 0) & (others.rank != ME)
    splits = np.searchsorted(others.rank[came], np.arange(RANKS + 1)).astype(np.int32)
    arrays = [np.resize(array[came], (came.sum() + 7, *array.shape[1:])) for array in (others.lower, others.upper)]
    radius = np.resize(others.radius[came], came.sum() + 7)
    n, num = 250, 230
    pos = rng.random((n, dims)).astype(np.float32)
    pos = pos[np.argsort(pos[:, 0])] if kind != "one place" else np.full((n, dims), 0.31, np.float32)
    room = 60_000

    def select(blocks: int) -> Any:
        few = runs(pos, np.linspace(0, num, blocks + 1).astype(np.int32))
        return kernels.select_ghosts(pos, num, few, (splits, *arrays, radius), ME, exact(period, (dims,)), room)

    order, counts = select(11)
    listed = int(np.sum(counts))
    for blocks in (1, 2, 200):  # blocks of different lengths
        again = select(blocks)
        np.testing.assert_array_equal(again[1], counts)
        np.testing.assert_array_equal(again[0][:listed], order[:listed])
    result = np.zeros((RANKS, num), bool)
    for rank, rows in enumerate(grouped(order, counts)):
        assert rows == sorted(set(rows))
        result[rank, rows] = True
    assert result[ME].all()
    gaps = apart((pos[:num], pos[:num]), (others.lower[came], others.upper[came]), period) - others.radius[came]
    gaps[:, others.radius[came] < 0] = np.inf
    nearest = np.full((RANKS, num), np.inf)
    np.minimum.at(nearest, others.rank[came], gaps.T)
    nearest[ME] = -1
    between(result, nearest, np.zeros((1, 1)))
    assert 0 < result.sum() - num < RANKS * num


@SPACES
@pytest.mark.parametrize("num", [0, 1, 900])
def test_boxes_that_cover_rows_are_equal_with_and_without_leaves(num: int, period: float, dtype: Any) -> None:
    pos = np.random.default_rng(num).random((1000, 2)).astype(dtype)
    pos[:num:7] += dtype(2 * period)  # outside the box
    pos, _ = jz.tree.zsort(jnp.asarray(pos[:num]), boxsize=period)
    pos = jnp.pad(pos, [(0, 1000 - num), (0, 0)])
    th = jz.tree.build_tree_hierarchy(jz.data.Pos(pos=pos, num=num), boxsize=period)
    box, corners = exact(period, (2,)), kernels.bounds(pos, num)[:2]
    cover = lambda leaves, maximum: kernels.covering_boxes(pos, num, *corners, box, leaves, maximum)  # noqa: E731
    few = ghosts.runs_of(pos, jnp.int32(num), box)
    for maximum in (1, 40):
        for value, reference in zip(cover(ghosts.leaves_of(th), maximum), cover(few, maximum), strict=True):
            np.testing.assert_array_equal(value, reference)


@SPACES
@pytest.mark.parametrize(("n", "num"), [(0, 0), (1, 0), (1, 1), (32, 32), (33, 33), (1000, 0), (1000, 64), (1000, 999)])
def test_few_rows_get_one_box_each(n: int, num: int, period: float, dtype: Any) -> None:
    pos = np.random.default_rng(n + num).uniform(-2, 2, (n, 2)).astype(dtype)
    splits, lower, upper = kernels.row_boxes(jnp.asarray(pos), num, exact(period, (2,)), 32)
    assert splits.dtype == jnp.int32
    assert lower.dtype == upper.dtype == dtype
    np.testing.assert_array_equal(splits, np.minimum(32 * np.arange(max(1, -(-n // 32)) + 1), num))
    wrapped = pos.astype(np.float64) % period if period else pos
    expected = runs(wrapped[:num].astype(dtype), np.asarray(splits))
    np.testing.assert_allclose(lower, expected[1], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(upper, expected[2], rtol=1e-6, atol=1e-6)


def runs(pos: np.ndarray, splits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``splits`` of rows, and the box around each run."""
    lower, upper = np.full((2, len(splits) - 1, pos.shape[1]), np.inf, np.float32)
    upper *= -1
    for run, (first, last) in enumerate(itertools.pairwise(splits)):
        if first < last:
            lower[run], upper[run] = pos[first:last].min(axis=0), pos[first:last].max(axis=0)
    return splits, lower, upper


@pytest.mark.watched("True-40-3-periodic-clustered", "False-None-3-open-spread")
@KINDS
@SPACES
@pytest.mark.parametrize("dims", [1, 3])
@pytest.mark.parametrize("enough", [None, 1, 40, 10**6])
@pytest.mark.parametrize("none_closer", [True, False])
def test_leaves_are_open_if_other_ranks_may_have_candidates(
    kind: str, period: float, dims: int, enough: int | None, none_closer: bool
) -> None:
    rng = np.random.default_rng(20 + dims)
    others = made_up(rng, kind, dims)
    pos = rng.random((200, dims)).astype(np.float32) * (1 if period else 2)
    pos = pos[np.argsort(pos[:, 0])]
    radius = np.where(rng.random(200) < 0.9, rng.random(200) * 0.05, np.inf).astype(np.float32)
    radius[100:] *= 1e-3  # so that not all leaves are open
    leaves, own = (
        runs(pos, np.r_[0, 7, 7, 20:200:9, 200].astype(np.int32)),
        runs(pos, np.r_[0:200:17, 200].astype(np.int32)),
    )
    box = exact(period, (dims,))
    finer = made_up(rng, kind, dims)
    finer = None if none_closer else Boxes(*(column[: 3 * BOXES] for column in dataclasses.astuple(finer)))
    opened, required = kernels.open_leaves(
        leaves, own, radius[:, None], None, others.of_ranks(), finer and finer.of_ranks(), ME, box, enough
    )
    needed = bounds(leaves, own, radius, [others, finer or others], period, enough)
    gaps = np.nan_to_num(apart(leaves[1:], (others.lower, others.upper), period), nan=np.inf)
    gaps[:, (others.count == 0) | (others.rank == ME)] = np.inf
    full = np.diff(leaves[0]) > 0
    nearest = np.where(full, gaps.min(axis=1), np.inf)
    opened = np.asarray(opened) > 0
    between(opened, nearest, needed)
    for i, maximum in enumerate(np.asarray(required)):
        inside = opened & full & (leaves[0][:-1] < own[0][i + 1]) & (leaves[0][1:] > own[0][i])
        expected = needed[inside].max() if inside.any() else -1
        assert maximum == expected or expected <= maximum <= expected * (1 + SPARE) + SPARE


def bounds(
    leaves: Any, own: Any, radius: np.ndarray, known: list[Boxes], period: float, enough: int | None
) -> np.ndarray:
    """Return the search radius of each leaf: the largest of its queries, or the one within which boxes known hold
    enough particles.
    """
    of_box = np.array([radius[first:last].max() for first, last in itertools.pairwise(own[0])], np.float64)
    for sample in known:
        used = sample.count > 0
        for i, distances in enumerate(farthest(own[1:], (sample.lower[used], sample.upper[used]), period)):
            order = np.argsort(distances)
            until = np.searchsorted(np.cumsum(sample.count[used][order]), enough or 2**60)
            if until < len(order):
                of_box[i] = min(of_box[i], distances[order[until]])
    needed = np.zeros(len(leaves[1]))
    for leaf, (first, last) in enumerate(itertools.pairwise(leaves[0])):
        touched = (own[0][:-1] < last) & (own[0][1:] > first)
        if first < last:
            needed[leaf] = min(of_box[touched].max(), radius[first:last].max())
    return needed


def test_nonexistent_boxes_raise() -> None:
    gpus.skip_where_kernels_cannot_raise()
    pos = np.zeros((5, 3), np.float32)
    blocks = runs(pos, np.array([0, 5], np.int32))
    boxes = (
        np.array([0, 4], np.int32),
        np.zeros((2, 3), np.float32),
        np.zeros((2, 3), np.float32),
        np.zeros(2, np.float32),
    )
    with pytest.raises(Exception, match="the boxes of the ranks end after the last box"):
        jnp.asarray(kernels.select_ghosts(pos, 5, blocks, boxes, 0, exact(0.0, (3,)), 10)[0]).block_until_ready()


FEW_SETS = ["uniform, ranks without particles", "clustered", "no more than k", "far outlier"]


@pytest.fixture(params=[1, 3], ids=["one box", "three boxes"])
def few_boxes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Give ranks few boxes of each other, as among thousands, so that the capacity for others' boxes has to grow.

    Rows move in rounds, as do many rows.

    Returns the number of rows per device. No other test uses this number, so its compiled functions are not reused.
    """
    monkeypatch.setattr(ghosts, "_KNOWN_BOXES", 0)
    monkeypatch.setattr(ghosts, "_LEAST_KNOWN", request.param)
    monkeypatch.setattr(ghosts, "_FEW_REQUESTS", 0)
    monkeypatch.setattr(ghosts, "_BOX_ROWS", 8)
    monkeypatch.setattr(_exchange, "_SINGLE_ROUND_BYTES", 0)
    return 1210 + request.param // 2


@pytest.mark.long
def test_neighbours_are_equal_if_ranks_know_little_of_each_other(few_boxes: int) -> None:
    search, box = jz.knn.knn.smap(mesh_of(4), jit=True), 1.0 if few_boxes % 2 else None
    query = np.random.default_rng(3).normal(0.5, 0.6, (500, 3)).astype(np.float32) % (1 if box else 9)
    asked = deal(query, even(500, 4), few_boxes)
    for name in FEW_SETS:
        pos, counts, _ = make(name, 4)
        part, k = deal(pos, counts, few_boxes), min(5, len(pos))
        result = [joined(column, counts) for column in search(part, k=k, boxsize=box)]
        np.testing.assert_equal(result, [np.asarray(column) for column in jz.knn.knn.jit(pos, k, box)], name)
        result = [joined(column, asked.num) for column in search(part, k=k, boxsize=box, part_query=asked)]
        want = jz.knn.knn.jit(pos, k, box, part_query=query)
        np.testing.assert_equal(result, [np.asarray(column) for column in want], f"{name}, other queries")


@pytest.mark.long
def test_groups_are_equal_if_ranks_know_little_of_each_other(few_boxes: int) -> None:
    find = jz.fof.distr_fof_labels.smap(mesh_of(4), jit=True)
    for name in FEW_SETS:
        (pos, counts, _), rlink = make(name, 4), SETS[name][2]
        partz, label = find(deal(pos, counts, few_boxes), rlink, linearize_labels=True)
        _, one = jz.fof.fof_labels.jit(pos, rlink, output_order="z")
        np.testing.assert_array_equal(joined(label, np.asarray(partz.num)), one, name)


SIXTY_FOUR = """
import jax, numpy as np, jztree as jz
from scipy.spatial import cKDTree
from devices import deal, even, joined, mesh_of
from jztree.tree import ghosts

rng = np.random.default_rng(6)
clump = 0.5 + 0.4 * rng.choice([-1, 1], (6000, 3)) * rng.random((6000, 1)) ** 4 * rng.random((6000, 3))
pos = (np.r_[clump, rng.random((6000, 3))] % 1).astype(np.float32)
counts = even(len(pos), 64)
part = deal(pos, counts, rows=counts.max())
want = [np.asarray(column) for column in jz.knn.knn(pos, 8, 1.0)]
np.testing.assert_allclose(want[0], cKDTree(pos.astype(float), boxsize=1).query(pos.astype(float), 8)[0], rtol=1e-5)
for told in (256, 32):
    ghosts._KNOWN_BOXES, ghosts._LEAST_KNOWN = 0, told
    jax.clear_caches()
    with jz.stats.statistics() as counted:
        found = jz.knn.knn.smap(mesh_of(64), jit=True)(part, k=8, boxsize=1.0)
    np.testing.assert_equal([joined(column, counts) for column in found], want)
    print("ghosts", counted["rows.ghosts"])
"""


@pytest.mark.slow
def test_sixty_four_devices() -> None:
    folders = [str(Path(__file__).parents[1]), str(Path(jz.__file__).parents[1])]
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=64",
        "PYTHONPATH": os.pathsep.join(folders),
    }
    call = [sys.executable, "-P", "-c", SIXTY_FOUR]
    ended = subprocess.run(call, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stderr
    # Times for ranks of 190 particles that request particles of many others. For 4000 particles there are as many.
    close, wide = (int(line.split()[1]) for line in ended.stdout.splitlines())
    assert close <= wide < 1.4 * close


@pytest.mark.long
def test_communication_grows_slowly_with_the_number_of_ranks() -> None:
    script = scripts.profiling("collectives")
    few, many = (script.collectives_of(script.FUNCTIONS["kNN, k = 8"], ranks, 1000) for ranks in (16, 16384))
    assert len(few) <= 23
    assert len(many) <= 72
    # Messages from all ranks to all others: boxes and counts.
    assert sum(item.bytes for item in many if item.name == "all_gather") < 20e6


@pytest.mark.slow
def test_profiling_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "checks" / "profiling")
    script = scripts.profiling("many_ranks")
    output, picture = tmp_path / "many.json", tmp_path / "many.png"
    arguments = [
        "--rows",
        "2000",
        "--ranks",
        "16",
        "1024",
        "--runs",
        "1",
        "--output",
        str(output),
        "--plot",
        str(picture),
    ]
    monkeypatch.setattr(sys, "argv", ["many_ranks.py", *arguments])
    script.main()
    assert "1024 ranks" in capsys.readouterr().out
    results = json.loads(output.read_text())
    assert [row["ranks"] for row in results["measured"]] == [16, 1024]
    assert all(milliseconds > 0 for row in results["measured"] for milliseconds in row["with_others_ms"].values())
    assert picture.stat().st_size > 0


@pytest.mark.slow
def test_number_of_ghosts_grows_little_with_fewer_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an open box, in which ranges of ranks begin and end with particles after jumps of the z-order."""
    part = deal(np.random.default_rng(6).random((160_000, 3)).astype(np.float32), even(160_000, 8), rows=20_001)
    sent = []
    for message in (256, 32):
        monkeypatch.setattr(ghosts, "_KNOWN_BOXES", 0)
        monkeypatch.setattr(ghosts, "_LEAST_KNOWN", message)
        jax.clear_caches()
        with jz.stats.statistics() as counted:
            jax.block_until_ready(jz.knn.knn.smap(mesh_of(8), jit=True)(part, k=8))
        sent.append(counted["rows.ghosts"])
    assert sent[0] <= sent[1] < 1.02 * sent[0]
