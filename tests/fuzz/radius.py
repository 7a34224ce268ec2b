"""Counts and lists within a radius, and DBSCAN, in hostile sets, judged by all pairs."""

import functools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import oracles

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import may_refuse, unsound, within
from .fof import linking_length
from .inputs import pick

_CALLS = {
    "eager": "count = jz.radius.count_within(part, radius, boxsize=boxsize)\n"
    "lists = jz.radius.neighbours_within(part, radius, boxsize=boxsize, nearest_first={nearest})",
    "jit": "count = jz.radius.count_within.jit(part, radius, boxsize=boxsize)\n"
    "lists = jz.radius.neighbours_within.jit(part, radius, boxsize=boxsize, nearest_first={nearest})",
    "index": "index = jz.build_index.jit(part, boxsize)\n"
    "count = jz.count_within.jit(index, radius)\n"
    "lists = jz.neighbours_within.jit(index, radius, nearest_first={nearest})",
    "dbscan": "cluster, core = jz.dbscan.jit(part, radius, min_samples={least}, boxsize=boxsize)",
}


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape."""
    x64, dtype = inputs.mode(random)
    method = pick(random, "eager", "jit", "jit", "index", "dbscan", "dbscan")
    rows, dims = int(pick(random, 0, 1, 2, 25, 64, 64, 130)), int(random.integers(1, 9))
    nearest, minimum = bool(random.random() < 0.5), int(pick(random, 1, 2, 3, 3, 3, 8, 40))
    lines = "part = jz.data.Pos(pos=pos, num=num)\n" + _CALLS[method].format(nearest=nearest, least=minimum)
    for _ in inputs.cases(method):
        points = inputs.points(random, rows, dims, dtype)
        radius = linking_length(random, points.pos[: points.num], points.sides, points.length)
        values = points.arguments(random) | {"radius": radius}
        if random.random() < 0.08:
            _spoil(random, values)
        judge = functools.partial(_judge_clusters, minimum) if method == "dbscan" else _judge_lists
        yield Case(lines, values, partial(_judge, judge, x64, method == "dbscan"), {"num": ("pos",)}, "", x64)


def _spoil(random: np.random.Generator, values: dict[str, Any]) -> None:
    if random.random() < 0.4:
        values["radius"] = pick(random, -1.0, np.nan, np.inf)
    else:
        inputs.spoil_position(random, values)


def _judge(judge: Any, x64: bool, finite: bool, values: dict[str, Any], outcome: Outcome) -> None:
    num, radius = values["num"], float(values["radius"])
    pos, sides = values["pos"][:num], inputs.sides(values["boxsize"], values["pos"].shape[1])
    must = unsound(pos, sides)
    if not radius >= 0 or (finite and np.isinf(radius)):
        must = must or "the radius is negative or not finite"
    if expect_error(outcome, must, may_refuse(pos, np.append(sides, min(radius, 1e308)), x64)):
        return
    judge(num, *within(pos, pos, np.full(num, radius), sides), outcome)


def _judge_lists(num: int, surely: np.ndarray, possibly: np.ndarray, outcome: Outcome) -> None:
    count, lists = np.asarray(outcome["count"]), outcome["lists"]
    if count[num:].any():
        raise WrongError("rows beyond num have neighbours", 0, count[num:])
    low, high = surely.sum(axis=1), possibly.sum(axis=1)
    if (count[:num] < low).any() or (count[:num] > high).any():
        raise WrongError("a count is not that of the pairs", low, count[:num])
    splits, total = np.asarray(lists.splits), int(lists.splits[-1])
    if not np.array_equal(np.diff(splits), count):
        raise WrongError("lists are not as long as counts", count, np.diff(splits))
    row, index = np.repeat(np.arange(len(count)), count), np.asarray(lists.index)[:total]
    listed = np.zeros_like(possibly)
    listed[row, index] = True
    if listed.sum() != total or (surely & ~listed).any() or (listed & ~possibly).any():
        raise WrongError("lists are not those of the pairs", possibly, listed)


def _judge_clusters(minimum: int, num: int, surely: np.ndarray, possibly: np.ndarray, outcome: Outcome) -> None:
    cluster, core = np.asarray(outcome["cluster"]), np.asarray(outcome["core"])
    if core[num:].any() or (cluster[num:] != -1).any():
        raise WrongError("rows beyond num are in clusters", -1, cluster[num:])
    if not np.array_equal(surely, possibly):
        return  # both decisions are correct for some pairs
    expected, cores = oracles.clusters_of(possibly, minimum)
    if not np.array_equal(core[:num], cores):
        raise WrongError("a core is none, or the other way around", cores, core[:num])
    if not np.array_equal(cluster[:num], expected):
        raise WrongError("clusters are not those of the pairs", expected, cluster[:num])
