"""Peaks of hostile densities, judged by a flood on the lists of nearest neighbours."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import flood
import numpy as np

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import may_refuse, unsound
from .inputs import pick

_PART = "jz.data.Pos(pos=pos, num=num)"
_CALLS = {
    "eager": "peaks = jz.density_peaks({part}, density, {k}, boxsize=boxsize)",
    "jit": "peaks = jz.density_peaks.jit({part}, density, {k}, boxsize=boxsize)",
    "traced": "peaks = find({part}, density, boxsize)",
}
_NEAR = "\nnear = jz.knn.knn.jit({part}, {k}, boxsize, result='globalidx', allow_missing=True)"
_MERGED = "\nmerged = peaks.merge(threshold)"
_TRACED = "find = jax.jit(lambda part, density, box: jz.density_peaks(part, density, {k}, boxsize=box))"


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape."""
    x64, dtype = inputs.mode(random)
    rows, dims = int(pick(random, 0, 1, 2, 25, 64, 64, 130)), int(random.integers(1, 9))
    method, k = pick(random, "eager", "jit", "jit", "traced"), int(pick(random, 1, 2, 3, 8, 20, 200))
    lines = (_CALLS[method] + _NEAR + _MERGED).format(part=_PART, k=k)
    setup = _TRACED.format(k=k) if method == "traced" else ""
    kind = np.float64 if x64 else np.float32
    for _ in inputs.cases(method):
        values = inputs.points(random, rows, dims, dtype, kind if method == "traced" else None).arguments(random)
        values["density"] = densities(random, rows, kind if random.random() < 0.5 else np.float32)
        # From the smallest normal float32 on, because XLA rounds smaller differences to 0.
        values["threshold"] = float(pick(random, np.finfo(np.float32).tiny, 0.5, 1, random.lognormal(0, 3), np.inf))
        if random.random() < 0.08:
            inputs.spoil_position(random, values)
        if random.random() < 0.05 and rows:
            values["density"][random.integers(rows)] = np.nan
        yield Case(lines, values, partial(_judge, x64), {"num": ("pos", "density")}, setup, x64)


def densities(random: np.random.Generator, rows: int, dtype: Any) -> np.ndarray:
    """Return densities with ties, infinities, zeros of both signs and subnormal numbers."""
    density = random.lognormal(0, 3, rows)
    if random.random() < 0.5:
        density = np.floor(density)
    minimum = float(np.finfo(dtype).smallest_subnormal)
    special = random.choice(
        [0.0, -0.0, minimum, -minimum, 5 * minimum, np.inf, -np.inf, float(np.finfo(dtype).max)], rows
    )
    share = float(pick(random, 0, 0, 0.1, 1))
    return np.where(random.random(rows) < share, special, density).astype(dtype)


def _judge(x64: bool, values: dict[str, Any], outcome: Outcome) -> None:
    num, density = values["num"], values["density"]
    pos, sides = values["pos"][:num], inputs.sides(values["boxsize"], values["pos"].shape[1])
    reason = unsound(pos, sides) or ("a density is NaN" if np.isnan(density[:num]).any() else None)
    if expect_error(outcome, reason, may_refuse(pos, sides, x64)):
        return
    peaks, n = outcome["peaks"], len(density)
    graph = flood.graph(np.asarray(outcome["near"])[:num])
    expected = flood.flood(graph, density[:num])
    count = len(expected.row)
    if int(peaks.num) != count:
        raise WrongError("the number of peaks is wrong", count, int(peaks.num))
    check("the peak of a particle is wrong", expected.peak, peaks.peak, -1)
    for name in ("row", "saddle", "parent", "across"):
        check(f"the {name} of a peak is wrong", getattr(expected, name), getattr(peaks, name), -1)
    merged = flood.tomato(graph, density[:num], values["threshold"])
    number = np.zeros(n, int)
    number[expected.row] = np.arange(count)
    check("the cluster of a particle is wrong", number[merged], outcome["merged"], -1)
    top = density[expected.row]
    level = np.where(expected.saddle >= 0, density[expected.saddle] if n else top, -np.inf).astype(density.dtype)
    check("the density of a peak is wrong", top, peaks.density, -np.inf)
    check("the density of a saddle is wrong", level, peaks.saddle_density, -np.inf)
    with np.errstate(invalid="ignore", over="ignore"):
        above = np.where(top == level, 0, top - level)
    normal = (np.abs(above) >= np.finfo(density.dtype).tiny) | (above == 0)  # XLA treats smaller numbers as 0
    above = np.where(expected.saddle >= 0, np.where(normal, above, peaks.persistence[:count]), np.inf)
    check("a persistence is wrong", above, peaks.persistence, 0)


def check(kind: str, expected: np.ndarray, result: Any, padding: float) -> None:
    """Check the first rows of an array, and the padding after them."""
    result = np.asarray(result)
    complete = np.append(expected, np.full(len(result) - len(expected), padding)).astype(result.dtype)
    if not np.array_equal(complete, result):
        raise WrongError(kind, complete, result)
