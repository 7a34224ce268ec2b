"""Searches within a radius, spheres, spanning trees and peaks over devices, compared with the results of one device.

Some devices have no particles. Other parts judge the results of one device.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .devices import DEAL, ROWS, dealt_counts
from .distances import may_refuse, unsound
from .fof import linking_length
from .inputs import pick
from .peaks import densities

_CASES = 30  # of one compiled function
_PART = "part = jz.data.Pos(pos=deal(pos, counts), num=np.array(counts, np.int32))\n"
# Functions over devices, and the results to compare: theirs, and results of one device.
_TREE = """
found = jz.squeeze_tree(search(part, boxsize=boxsize, core_k={core_k}))
many, one = ([tree.i, tree.j, tree.exact, tree.length] for tree in (found, here(pos, boxsize=boxsize, core_k={core_k})))
"""
_CORE_K = 3
_KINDS = {
    "tree": ("spanning_tree", _TREE.format(core_k=None)),
    "reachability": ("spanning_tree", _TREE.format(core_k=_CORE_K)),
    "count": (
        "count_within",
        "many = [join(search(part, radius, boxsize=boxsize), counts)]\none = [here(pos, radius, boxsize=boxsize)]",
    ),
    "count of each": (
        "count_within",
        "many = [join(search(part, deal(reach, counts), boxsize=boxsize), counts)]\n"
        "one = [here(pos, reach, boxsize=boxsize)]",
    ),
    "counts": (
        "count_within",
        "radii = np.array([radius / 2, radius, 2 * radius])\n"
        "many = [join(search(part, radii=radii, boxsize=boxsize), counts)]\n"
        "one = [here(pos, radii=radii, boxsize=boxsize)]",
    ),
    "lists": (
        "neighbours_within",
        "many = search(part, radius, boxsize=boxsize, nearest_first=True)\n"
        "one = here(pos, radius, boxsize=boxsize, nearest_first=True)\n"
        "totals = np.asarray(many.splits)[:, -1]\n"
        "numbers = join(np.diff(np.asarray(many.splits), axis=1), counts)\n"
        "many = [numbers, join(many.index, totals), join(many.distance, totals)]\n"
        "one = [np.diff(one.splits), one.index[: one.splits[-1]], one.distance[: one.splits[-1]]]",
    ),
    "nearest": (
        "nearest_within",
        "many = [join(x, counts) for x in jax.tree.leaves(search(part, radius, 3, boxsize=boxsize))]\n"
        "one = jax.tree.leaves(here(pos, radius, 3, boxsize=boxsize))",
    ),
    "pairs": (
        "pairs_within",
        "def edges(found):\n"
        "    num = np.asarray(found.num).reshape(-1)\n"
        "    columns = [np.asarray(x).reshape(len(num), -1, x.shape[-1]) for x in"
        " (found.i[..., None], found.j[..., None], found.shift)]\n"
        "    rows = [np.concatenate([x[rank, :n] for x in columns], axis=1) for rank, n in enumerate(num)]\n"
        "    rows = np.concatenate(rows)\n"
        "    return rows[np.lexsort(rows.T)]\n"
        "many = [edges(search(part, radius, boxsize=boxsize, full=True))]\n"
        "one = [edges(here(pos, radius, boxsize=boxsize, full=True))]",
    ),
    "pair counts": (
        "pair_counts",
        "ends = np.array([0.0, 0.4, 1.0, 3.0]) * radius\n"
        "many = [np.asarray(search(part, ends, boxsize=boxsize).count)]\n"
        "one = [np.asarray(here(pos, ends, boxsize=boxsize).count)]",
    ),
    "sums": (
        "kernel_sums",
        "many = [join(search(part, deal(reach, counts), boxsize=boxsize, form='mean_h'), counts)]\n"
        "one = [here(pos, reach, boxsize=boxsize, form='mean_h')]",
    ),
    "clusters": (
        "dbscan",
        "many = [join(x, counts) for x in search(part, radius, min_samples=3, boxsize=boxsize)]\n"
        "one = here(pos, radius, min_samples=3, boxsize=boxsize)",
    ),
    "peaks": (
        "density_peaks",
        "shared = jz.squeeze_peaks(search(part, deal(level, counts), k, boxsize=boxsize))\n"
        "many, one = (jax.tree.leaves(peaks) for peaks in (shared, here(pos, level, k, boxsize=boxsize)))",
    ),
    "spheres": (
        "spherical_overdensity",
        "many = [join(x, counts) for x in jax.tree.leaves(search(part, density, queries=part, boxsize=boxsize))]\n"
        "one = jax.tree.leaves(here(pos, density, queries=pos, boxsize=boxsize))",
    ),
}
# The modules of functions that are not in jz.radius.
_MODULES = {"clusters": "fof", "peaks": "hierarchy", "spheres": "overdensity", "tree": "mst", "reachability": "mst"}


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield many sets for one compiled function."""
    x64, dtype = inputs.mode(random)
    kind = pick(random, *_KINDS)
    ndev, dims = int(pick(random, 2, 3, 4, 5, 8)), int(random.integers(1, 4))
    name, lines = _KINDS[kind]
    k = int(pick(random, 1, 2, 3, 8, 20, 200))
    function = f"jz.{_MODULES.get(kind, 'radius')}.{name}"
    setup = DEAL.format(ndev=ndev, rows=ROWS) + f"search, here = {function}.smap(mesh, jit=True), {function}.jit\n"
    for _ in range(_CASES):
        counts = dealt_counts(random, ndev)
        points = inputs.points(random, sum(counts), dims, dtype)
        pos = np.where(np.isfinite(points.pos), points.pos, 0).astype(dtype)
        radius = linking_length(random, pos, points.sides, points.length)
        if kind == "pairs":  # pairs with all images may exceed any capacity
            radius = min(radius, 3 * float(np.min(points.sides[points.sides > 0], initial=np.inf)))
        values = {"pos": pos, "boxsize": points.arguments(random)["boxsize"], "counts": counts, "radius": radius}
        rows: tuple[str, ...] = ("pos",)
        if "reach" in lines:
            values["reach"] = (points.length * 10 ** random.uniform(-3, 0, len(pos))).astype(dtype)
            rows = "pos", "reach"
        if kind == "peaks":
            values |= {"level": densities(random, len(pos), dtype), "k": k}
            rows = "pos", "level"
        if kind == "spheres":
            decades = random.uniform(-2, 3) - dims * np.log10(max(radius, 1e-60))
            values["density"] = float(10 ** np.clip(decades, -25, 25))
        yield Case(_PART + lines, values, _Judge(kind, x64), {"counts": rows}, setup, x64)


class _Judge:
    def __init__(self, kind: str, x64: bool) -> None:
        self.kind, self.x64 = kind, x64

    def __call__(self, values: dict[str, Any], outcome: Outcome) -> None:
        pos = values["pos"]
        sides = inputs.sides(values["boxsize"], pos.shape[1])
        lengths = np.append(sides, [values["radius"], *values.get("reach", ())])
        too_few = "core_k is above num" if self.kind == "reachability" and len(pos) < _CORE_K else None
        if expect_error(outcome, unsound(pos, sides) or too_few, self._may_refuse(values, lengths, sides)):
            return
        if self.kind in ("lists", "nearest", "sums") and _vanishing(pos):
            return
        for result, column in zip(outcome["many"], outcome["one"], strict=True):
            result, expected = np.asarray(result), np.asarray(column)
            if result.shape != expected.shape or not self._same(result, expected):
                raise WrongError(f"{self.kind} depends on the number of devices", expected, result)

    def _may_refuse(self, values: dict[str, Any], lengths: np.ndarray, sides: np.ndarray) -> str | None:
        pos = values["pos"]
        if self.kind == "sums":
            return "a sum may be out of range"
        if self.kind == "spheres":
            return "a radius or a peak may be out of range"
        if self.kind == "pair counts" and not values["radius"] * 0.4 > 0:
            return "edges do not ascend"
        far = np.abs(pos.astype(np.float64)) / 2.0**29 >= np.where(sides > 0, sides, np.inf)
        if self.kind == "pairs" and (far.any() or (values["radius"] >= 2.0**29 * sides[sides > 0]).any()):
            return "a position or the radius is too many boxes away"
        return may_refuse(pos, lengths, self.x64)

    def _same(self, result: np.ndarray, expected: np.ndarray) -> bool:
        if self.kind != "sums":
            return np.array_equal(result, expected, equal_nan=result.dtype.kind == "f")
        # Sums in float64, in another order.
        return bool((np.abs(result - expected) <= 4 * np.finfo(result.dtype).eps * np.abs(expected)).all())


def _vanishing(pos: np.ndarray) -> bool:
    """Return whether some squared distances vanish in float64 relative to the set; equally near rows may swap."""
    wide = np.sort(pos.astype(np.longdouble), axis=0)
    steps = np.diff(wide, axis=0)
    return bool((steps[steps > 0] < np.abs(wide).max(initial=0) * np.longdouble(2) ** -400).any())
