"""Nearest neighbours within a radius in hostile sets, by kNN and with their counts, judged by all pairs."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import oracles

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import distances, may_refuse, on_lattice, rounding, unsound, within
from .fof import linking_length
from .inputs import pick
from .knn import check_radii

_PART = "part = jz.data.Pos(pos=pos, num=num)\n"
_CALLS = {
    "eager": "rad, idx = jz.nearest(part, {k}, boxsize=boxsize{query}, max_radius=radius)\n"
    "found = jz.nearest_within(part, radius, {k}, boxsize=boxsize{query})",
    "jit": "rad, idx = jz.nearest.jit(part, {k}, boxsize=boxsize{query}, max_radius=radius)\n"
    "found = jz.nearest_within.jit(part, radius, {k}, boxsize=boxsize{query})",
    "traced": "(rad, idx), found = search(part, {query_argument}, radius, boxsize)",
    "index": "index = jz.build_index.jit(part, boxsize)\n"
    "rad, idx = jz.nearest.jit(index, {k}{query}, max_radius=radius)\n"
    "found = jz.nearest_within.jit(index, radius, {k}{query})",
}
_TRACED = """
@jax.jit
def search(part, query, radius, box):
    nearest = jz.nearest(part, {k}, boxsize=box, queries=query, max_radius=radius)
    return nearest, jz.nearest_within(part, radius, {k}, boxsize=box, queries=query)
"""


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield searches of one shape."""
    x64, dtype = inputs.mode(random)
    rows, dims = int(pick(random, 1, 2, 25, 64, 130)), int(random.integers(1, 9))
    method = pick(random, "eager", "jit", "jit", "traced", "index")
    k, queries = int(pick(random, 1, 2, 4, 8, 33, rows + 3)), int(pick(random, 0, 0, 9))
    query = ", queries=query" if queries else ""
    lines = _PART + _CALLS[method].format(k=k, query=query, query_argument="query" if queries else "None")
    setup = _TRACED.format(k=k) if method == "traced" else ""
    each = bool(random.random() < 0.4)
    kind = (np.float64 if x64 else np.float32) if method == "traced" else None
    asking = ("query", "radius") if queries else ("pos", "radius")
    of_rows = {"num": ("pos",), "": asking} if queries else {"num": asking if each else ("pos",)}
    if queries and not each:
        of_rows[""] = ("query",)
    for _ in inputs.cases(method):
        points = inputs.points(random, rows, dims, dtype, kind)
        values = points.arguments(random)
        if queries:
            values["query"] = inputs.positions(random, queries, dtype, points.sides, points.length)
        values["radius"] = _radius(random, points, queries or rows, each)
        if kind is not None:
            with np.errstate(over="ignore", under="ignore"):
                values["radius"] = np.asarray(values["radius"], kind)
        if random.random() < 0.08:
            _spoil(random, values)
        yield Case(lines, values, partial(_judge, k, x64), of_rows, setup, x64)


def _radius(random: np.random.Generator, points: inputs.Points, asking: int, each: bool) -> Any:
    used = points.pos[: points.num]
    if not each:
        return float("inf") if random.random() < 0.05 else linking_length(random, used, points.sides, points.length)
    selected = [linking_length(random, used, points.sides, points.length) for _ in range(4)]
    return random.choice([*selected, selected[0], 0.0, np.inf], asking)


def _spoil(random: np.random.Generator, values: dict[str, Any]) -> None:
    radius = values["radius"]
    if random.random() < 0.4 and (np.ndim(radius) == 0 or values["num"] > 0):
        wrong = pick(random, -1.0, np.nan)
        if np.ndim(radius) == 0:
            values["radius"] = type(radius)(wrong) if isinstance(radius, float) else np.asarray(wrong, radius.dtype)
        else:
            radius[0] = wrong
    else:
        inputs.spoil_position(random, values)


def _judge(k: int, x64: bool, values: dict[str, Any], outcome: Outcome) -> None:
    num, query = values["num"], values.get("query")
    pos, sides = values["pos"][:num], inputs.sides(values["boxsize"], values["pos"].shape[1])
    asking = num if query is None else len(query)
    radius = np.broadcast_to(np.asarray(values["radius"], np.float64), len(values["pos"] if query is None else query))
    radius = radius[:asking]
    everything = pos if query is None else np.concatenate([pos, query])
    # A single radius is checked even without queries.
    looked_at = radius if np.ndim(values["radius"]) else np.asarray(values["radius"])
    must = unsound(everything, sides) or (None if (looked_at >= 0).all() else "a radius is negative or not a number")
    lengths = np.append(sides, radius[np.isfinite(radius)])
    if expect_error(outcome, must, may_refuse(everything, lengths, x64)):
        return
    rad, idx, result = np.asarray(outcome["rad"]), np.asarray(outcome["idx"]), outcome["found"]
    if not (np.array_equal(rad, result.distance) and np.array_equal(idx, result.index)):
        raise WrongError("nearest_within is not knn with that max_radius", (rad, idx), (result.distance, result.index))
    count = np.asarray(result.count)
    if not (np.isinf(rad[asking:]).all() and (idx[asking:] == -1).all() and (count[asking:] == 0).all()):
        raise WrongError("rows beyond num have neighbours", "inf, -1 and 0", (rad[asking:], idx[asking:]))
    lists = rad[:asking], idx[:asking], count[:asking]
    _check(pos, pos if query is None else query, radius, sides, lists, query is None)


def _check(
    pos: np.ndarray, query: np.ndarray, radius: np.ndarray, sides: np.ndarray, result: tuple[Any, Any, Any], own: bool
) -> None:
    rad, idx, count = result
    surely, possibly = within(query, pos, radius, sides)
    if (count < surely.sum(axis=1)).any() or (count > possibly.sum(axis=1)).any():
        raise WrongError("a count is not that of those within the radius", possibly.sum(axis=1), count)
    there = np.arange(rad.shape[1]) < count[:, None]
    if not (np.array_equal(idx >= 0, there) and np.array_equal(np.isfinite(rad), there)):
        raise WrongError("there are not as many neighbours as are counted", count, idx)
    row, column = np.nonzero(there)
    selected = np.zeros(possibly.shape, int)
    np.add.at(selected, (row, idx[row, column]), 1)
    if (selected > 1).any():
        raise WrongError("a neighbour was found twice", "distinct rows", idx)
    if (selected.astype(bool) & ~possibly).any():
        raise WrongError("a neighbour is beyond the radius", radius, idx)
    if own and not ((idx[:, 0] == np.arange(len(pos))).all() and (rad[:, 0] == 0).all()):
        raise WrongError("a point is not its own first neighbour", np.arange(len(pos)), (idx[:, 0], rad[:, 0]))
    if len(pos) == 0:
        return
    every, atol = distances(query, pos, sides), rounding(np.concatenate([pos, query]), sides)
    reference = np.where(there, np.take_along_axis(every, np.where(there, idx, 0), axis=1), np.inf)
    check_radii("a radius is not that of its neighbour", reference, rad, atol)
    if (rad[:, 1:] < rad[:, :-1]).any():
        raise WrongError("radii are not in order", "", rad)
    if np.array_equal(surely, possibly):
        nearest = np.sort(np.where(possibly, every, np.inf), axis=1)[:, : rad.shape[1]]
        check_radii("a radius is not that of the nearest", nearest, rad[:, : nearest.shape[1]], atol)
        _check_ties(pos, query, sides, idx, there, own)


def _check_ties(
    pos: np.ndarray, query: np.ndarray, sides: np.ndarray, idx: np.ndarray, there: np.ndarray, own: bool
) -> None:
    k = min(len(pos), idx.shape[1])
    if not on_lattice(np.concatenate([pos, query]), sides) or k == 0:
        return
    expected = np.where(there[:, :k], oracles.brute_knn(pos, k, sides, None if own else query), -1)
    if not np.array_equal(idx[:, :k], expected):
        raise WrongError("ties do not go to the lower row in z-order", expected, idx)
