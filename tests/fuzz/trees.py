"""Minimum spanning trees of hostile sets, judged by Kruskal's algorithm on all pairs in extended precision."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import oracles

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import distances, may_refuse, on_lattice, rounding, unsound
from .inputs import pick

_PART = "jz.data.Pos(pos=pos, num=num)"
_CALLS = {
    "eager": "tree = jz.spanning_tree({part}, boxsize=boxsize, core_k={core_k})",
    "jit": "tree = jz.spanning_tree.jit({part}, boxsize=boxsize, core_k={core_k})",
    "traced": "tree = span({part}, boxsize)",
}
_TRACED = "span = jax.jit(lambda part, box: jz.spanning_tree(part, boxsize=box, core_k={core_k}))"


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape."""
    x64, dtype = inputs.mode(random)
    rows, dims = int(pick(random, 0, 1, 2, 25, 64, 64, 130)), int(random.integers(1, 9))
    method = pick(random, "eager", "jit", "jit", "traced")
    core_k = pick(random, None, None, 1, 2, 7, 30)
    lines = _CALLS[method].format(part=_PART, core_k=core_k)
    setup = _TRACED.format(core_k=core_k) if method == "traced" else ""
    kind = np.float64 if x64 else np.float32
    for _ in inputs.cases(method):
        values = inputs.points(random, rows, dims, dtype, kind if method == "traced" else None).arguments(random)
        if random.random() < 0.08:
            inputs.spoil_position(random, values)
        yield Case(lines, values, partial(_judge, core_k or 1, x64), {"num": ("pos",)}, setup, x64)


def _judge(core_k: int, x64: bool, values: dict[str, Any], outcome: Outcome) -> None:
    num = values["num"]
    pos, sides = values["pos"][:num], inputs.sides(values["boxsize"], values["pos"].shape[1])
    reason = unsound(pos, sides) or ("core_k is above num" if core_k > max(num, 1) else None)
    if expect_error(outcome, reason, may_refuse(pos, sides, x64)):
        return
    tree, edges = outcome["tree"], max(num - 1, 0)
    ends, length = np.stack([tree.i, tree.j], axis=1), np.asarray(tree.length)
    if int(tree.num) != edges or not ((ends[edges:] == -1).all() and np.isinf(length[edges:]).all()):
        raise WrongError("there are not num - 1 edges", edges, (tree.num, ends))
    check_tree(_lengths(core_k, pos, sides), ends[:edges], length[:edges], rounding(pos, sides))
    if on_lattice(pos, sides):
        expected = oracles.kruskal(_lengths(core_k, pos, sides))
        if not np.array_equal(ends[:edges], expected):
            raise WrongError("ties do not go to the lower rows", expected, ends[:edges])


def _lengths(core_k: int, pos: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """Return the lengths of edges between all pairs."""
    every = distances(pos, pos, sides)
    if core_k == 1 or not len(pos):
        return every
    core = np.sort(every, axis=1)[:, core_k - 1]
    return np.maximum(every, np.maximum(core[:, None], core))


def check_tree(every: np.ndarray, ends: np.ndarray, length: np.ndarray, atol: float) -> None:
    """Check that edges join all particles, and that their lengths are ascending, right and the smallest."""
    if not ((ends >= 0).all() and (ends < len(every)).all() and (ends[:, 0] < ends[:, 1]).all()):
        raise WrongError("the ends of an edge are no pair of rows", f"rows from 0 to {len(every) - 1}", ends)
    parents = np.arange(len(every))
    for low, high in ends:
        if parents[low] == parents[high]:
            raise WrongError("an edge closes a circle", "a tree", ends)
        parents[parents == parents[high]] = parents[low]
    if (length[1:] < length[:-1]).any():
        raise WrongError("edges are not in the order of lengths", "", length)
    best = oracles.kruskal(every)
    for kind, expected in (
        ("a length is not that of its edge", every[ends[:, 0], ends[:, 1]]),
        ("the edges are not the shortest", every[best[:, 0], best[:, 1]]),
    ):
        with np.errstate(over="ignore", invalid="ignore"):
            off = np.abs(length - expected) > 4 * np.finfo(length.dtype).eps * expected + atol
        if off.any():
            raise WrongError(kind, expected[off].astype(length.dtype), length[off])
