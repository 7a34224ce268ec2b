"""Nearest neighbours of hostile sets, judged by all distances in extended precision."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import oracles

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import distances, may_refuse, on_lattice, rounding, unsound
from .inputs import pick

_PARTS = ("pos", "jz.data.Pos(pos=pos, num=num)", "SimpleNamespace(pos=pos, num=num)")
_CALLS = {
    "eager": "rad, idx = jz.knn.knn({part}, {k}, boxsize=boxsize{query})",
    "jit": "rad, idx = jz.knn.knn.jit({part}, {k}, boxsize=boxsize{query})",
    "traced": "rad, idx = search({part}, boxsize, {query_argument})",
    "sorted": "posz, th = jz.tree.zsort_and_tree.jit({part}, boxsize=boxsize)\n"
    "rad, idx = jz.knn.knn.jit(posz, {k}, boxsize=boxsize, th=th{query})",
}
_TRACED = "search = jax.jit(lambda part, box, query: jz.knn.knn(part, {k}, boxsize=box, part_query=query))"


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield searches of one shape."""
    x64, dtype = inputs.mode(random)
    rows, dims = int(pick(random, 1, 2, 25, 64, 64, 130)), int(random.integers(1, 9))
    method = pick(random, "eager", "jit", "jit", "traced", "sorted")
    k = int(min(pick(random, 1, 2, 4, 8, 33, rows), rows))
    part = pick(random, *_PARTS[:2]) if method == "eager" else _PARTS[1]
    queries = int(pick(random, 0, 0, 9))
    query = ", part_query=query" if queries else ""
    lines = _CALLS[method].format(part=part, k=k, query=query, query_argument="query" if queries else "None")
    setup = _TRACED.format(k=k) if method == "traced" else ""
    for _ in inputs.cases(method):
        values = _values(random, x64, dtype, rows, dims, queries, method)
        if part == "pos":
            del values["num"]
        judge = partial(_judge, k, x64)
        yield Case(lines, values, judge, {"num": ("pos",), "": ("query",)}, setup, x64)


def _values(
    random: np.random.Generator, x64: bool, dtype: Any, rows: int, dims: int, queries: int, method: str
) -> dict[str, Any]:
    kind = np.float64 if x64 else np.float32
    points = inputs.points(random, rows, dims, dtype, kind if method == "traced" else None)
    values = points.arguments(random)
    if queries:
        scale = float(pick(random, 1.0, 1.0, 3.0))
        values["query"] = inputs.positions(random, queries, dtype, points.sides * scale, points.length * scale)
    if random.random() < 0.08:
        _spoil(random, values)
    return values


def _spoil(random: np.random.Generator, values: dict[str, Any]) -> None:
    """Make the arguments invalid."""
    if random.random() < 0.3:
        values["boxsize"] = np.full_like(values["boxsize"], -1.0) if isinstance(values["boxsize"], np.ndarray) else -1.0
    else:
        inputs.spoil_position(random, values)


def _judge(k: int, x64: bool, values: dict[str, Any], outcome: Outcome) -> None:
    num = values.get("num", len(values["pos"]))
    pos = values["pos"][:num]
    sides = inputs.sides(values["boxsize"], pos.shape[1])
    reason = unsound(pos, sides) or ("k is larger than num" if k > num else None)
    reason = reason or (unsound(values["query"], sides) if "query" in values else None)
    everything = np.concatenate([pos, values.get("query", pos[:0])])
    if expect_error(outcome, reason, may_refuse(everything, sides, x64)):
        return
    rad, idx = np.asarray(outcome["rad"]), np.asarray(outcome["idx"])
    if "posz" in outcome.names:
        pos = permuted(np.asarray(outcome["posz"].pos)[:num], pos)
    query = values.get("query", pos)
    padding, (rad, idx) = (rad[len(query) :], idx[len(query) :]), (rad[: len(query)], idx[: len(query)])
    if not (np.isinf(padding[0]).all() and (padding[1] == -1).all()):
        raise WrongError("rows beyond num have neighbours", "inf and -1", padding)
    check_neighbours(pos, query, sides, (rad, idx), "query" not in values)


def permuted(result: np.ndarray, given: np.ndarray) -> np.ndarray:
    row = f"V{given.itemsize * given.shape[1]}"
    if not np.array_equal(np.sort(result.view(row), axis=0), np.sort(given.copy().view(row), axis=0)):
        raise WrongError("sorted positions are not those that were given", given, result)
    return result


def check_neighbours(
    pos: np.ndarray, query: np.ndarray, sides: np.ndarray, result: tuple[np.ndarray, np.ndarray], own: bool
) -> None:
    rad, idx = result
    if idx.min(initial=0) < 0 or idx.max(initial=0) >= len(pos):
        raise WrongError("a neighbour that is no particle", f"rows from 0 to {len(pos) - 1}", idx)
    ordered = np.sort(idx, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise WrongError("a neighbour was found twice", "distinct rows", idx)
    if own and not ((idx[:, 0] == np.arange(len(pos))).all() and (rad[:, 0] == 0).all()):
        raise WrongError("a point is not its own first neighbour", np.arange(len(pos)), (idx[:, 0], rad[:, 0]))
    every = distances(query, pos, sides)
    atol = rounding(np.concatenate([pos, query]), sides)
    check_radii("a radius is not that of the nearest", np.sort(every, axis=1)[:, : rad.shape[1]], rad, atol)
    check_radii("a radius is not that of its neighbour", np.take_along_axis(every, idx, axis=1), rad, atol)
    if (rad[:, 1:] < rad[:, :-1]).any():
        raise WrongError("radii are not in order", "", rad)
    if on_lattice(np.concatenate([pos, query]), sides):
        expected = oracles.brute_knn(pos, rad.shape[1], sides, None if own else query)
        if not np.array_equal(idx, expected):
            raise WrongError("ties do not go to the lower row in z-order", expected, idx)


def check_radii(kind: str, expected: np.ndarray, result: np.ndarray, atol: float) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = expected.astype(result.dtype)
        off = np.abs(result - expected) > 8 * np.finfo(result.dtype).eps * expected + atol
    bad = off & ~(np.isinf(nearest) & np.isinf(result)) | np.isnan(result)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise WrongError(kind, f"{nearest[row, column]} (query {row}, neighbour {column})", result[row, column])
