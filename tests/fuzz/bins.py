"""Pair counts in bins of one quantity or two, in hostile sets, judged by all pairs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import distances, may_refuse, outside, unsound, within
from .fof import linking_length
from .inputs import pick

_CASES = 24  # of one shape
_ROUNDING = 1e-12  # of quantities that the definition does not decide from the positions alone


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape, with one number of edges and one line of sight."""
    x64, dtype = inputs.mode(random)
    mode = str(pick(random, "r", "rp_pi", "rp_pi", "s_mu"))
    dims = int(random.integers(1, 9)) if mode == "r" else int(pick(random, 2, 3, 3))
    los = pick(random, "midpoint", -1, *range(dims)) if mode != "r" else -1
    rows, others = int(pick(random, 0, 1, 25, 64, 130, 400)), int(pick(random, 0, 0, 90))
    bins, bins_b, jit = int(pick(random, 1, 3, 8, 40)), int(pick(random, 1, 5, 40)), pick(random, "", ".jit", ".jit")
    second = "" if mode == "r" else f", mode={mode!r}, edges_b=edges_b, los={los!r}"
    reference = ", queries=other" if others else ""
    call = f"jz.radius.pair_counts{jit}(part, edges, boxsize=boxsize{reference}{second})"
    lines = f"part = jz.data.Pos(pos=pos, num=num)\nfound = {call}"
    for _ in range(_CASES if jit else _CASES // 4):
        points = inputs.points(random, rows, dims, dtype)
        if los == "midpoint":
            points = points._replace(boxsize=None, sides=np.zeros(dims))
        values = points.arguments(random) | {"edges": _edges(random, points, bins)}
        if mode != "r":
            values["edges_b"] = _cosines(random, bins_b) if mode == "s_mu" else _edges(random, points, bins_b)
        if others:
            values["other"] = inputs.positions(random, others, dtype, points.sides, points.length)
        if random.random() < 0.05:
            inputs.spoil_position(random, values)
        yield Case(lines, values, _Judge(x64, mode, los), {"num": ("pos",)}, "", x64)


def _edges(random: np.random.Generator, points: inputs.Points, bins: int) -> np.ndarray:
    """Return lengths from 0 on: some equal distances of pairs, others are evenly spaced."""
    largest = linking_length(random, points.pos[: points.num], points.sides, points.length) or points.length
    edges = largest * np.arange(bins + 1) / bins
    if random.random() < 0.5:
        sample = [linking_length(random, points.pos[: points.num], points.sides, points.length) for _ in range(bins)]
        edges[1:] = np.sort(sample)
    for i in range(1, bins + 1):
        edges[i] = max(edges[i], np.nextafter(edges[i - 1], np.inf))
    return edges


def _cosines(random: np.random.Generator, bins: int) -> np.ndarray:
    even = np.arange(bins + 1) / bins
    return even if random.random() < 0.5 else np.append(0, np.cumsum(0.01 + random.random(bins)) / (2 * bins))


@dataclass
class _Judge:
    x64: bool
    mode: str
    los: Any

    def __call__(self, values: dict[str, Any], outcome: Outcome) -> None:
        pos, edges = values["pos"][: values["num"]], values["edges"]
        reference, sides = values.get("other", pos), inputs.sides(values["boxsize"], values["pos"].shape[1])
        lengths = np.concatenate([sides, edges, values.get("edges_b", edges[:0])])
        everything = np.concatenate([pos, reference])
        if expect_error(outcome, unsound(pos, sides), may_refuse(everything, lengths, self.x64)):
            return
        separation = distances(pos, reference, sides) > 0
        first, second = self._within(pos, reference, sides, values)
        count = np.asarray(outcome["found"].count).reshape(len(edges) - 1, -1)
        total = count.cumsum(axis=0).cumsum(axis=1)
        for i in range(len(edges) - 1):
            for j in range(count.shape[1]):
                low, high = ((first[side][i] & second[side][j] & separation).sum() for side in (0, 1))
                if not low <= total[i, j] <= high:
                    raise WrongError(f"pairs up to the edges {i + 1}, {j + 1}", (low, high), total[i, j])

    def _within(self, pos: np.ndarray, second: np.ndarray, sides: np.ndarray, values: dict[str, Any]) -> Any:
        """Return the pairs surely and possibly within each edge of both quantities after the first one."""
        edges, edges_b = values["edges"][1:], values.get("edges_b", np.zeros(2))[1:]
        if self.mode == "r":
            everywhere = [np.ones((len(pos), len(second)), bool)]
            return _decided(pos, second, edges, sides), (everywhere, everywhere)
        if self.los == "midpoint":
            s, across, along, rounding = _sighted(pos, second)
            if self.mode == "rp_pi":
                return _bounded(across, s * rounding, edges), _bounded(along, s * rounding, edges_b)
            return _decided(pos, second, edges, sides), _bounded(along / np.where(s > 0, s, 1), rounding, edges_b)
        axis = [self.los % len(sides)]
        rest = [d for d in range(len(sides)) if d != axis[0]]
        if self.mode == "rp_pi":
            across = _decided(pos[:, rest], second[:, rest], edges, sides[rest])
            return across, _decided(pos[:, axis], second[:, axis], edges_b, sides[axis])
        s, along = distances(pos, second, sides), distances(pos[:, axis], second[:, axis], sides[axis])
        cosine = along / np.where(s > 0, s, 1)
        everything = np.concatenate([pos, second]).astype(np.float64)
        lost = 64 * np.finfo(np.float64).eps * np.abs(everything).max(initial=0) if outside(everything, sides) else 0
        slip = _ROUNDING + lost / np.where(s > 0, s, 1)
        return _decided(pos, second, edges, sides), _bounded(cosine, slip, edges_b)


def _decided(a: np.ndarray, b: np.ndarray, edges: np.ndarray, sides: np.ndarray) -> tuple[list[Any], list[Any]]:
    """Return the pairs surely and possibly within each edge, by the definition."""
    result = [within(a, b, np.full(len(a), edge), sides) for edge in edges]
    return [surely for surely, _ in result], [possibly for _, possibly in result]


def _bounded(quantity: np.ndarray, error: np.ndarray, edges: np.ndarray) -> tuple[list[Any], list[Any]]:
    """Return the same for a quantity that is known up to an error."""
    return [quantity < edge - error for edge in edges], [quantity <= edge + error for edge in edges]


def _sighted(pos: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return distances, separations across and along the direction from the origin to the middle, and relative errors.

    If the middle is close to the origin, float64 represents it with few digits.
    """
    a, b = pos.astype(np.longdouble)[:, None], second.astype(np.longdouble)[None]
    s, m = b - a, a + b
    length = np.sqrt((m**2).sum(axis=-1))
    unit = m / np.where(length > 0, length, 1)[..., None]
    along = (s * unit).sum(axis=-1)
    across = np.sqrt(((s - along[..., None] * unit) ** 2).sum(axis=-1))
    rounding = np.where((length > 0) & (length < 1e-290), 2, _ROUNDING)
    return np.sqrt((s**2).sum(axis=-1)), across, np.abs(along), rounding
