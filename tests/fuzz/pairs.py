"""Lists of pairs with all images in the box, in hostile sets and small boxes, judged by all pairs and images."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import may_refuse, unsound
from .fof import linking_length
from .inputs import pick

_FARTHEST = 2.5  # largest radius in box lengths
_PART = "part = jz.data.Pos(pos=pos, num=num)\n"
_CALLS = {
    "eager": "pairs = jz.radius.pairs_within(part, radius, boxsize=boxsize{options})",
    "jit": "pairs = jz.radius.pairs_within.jit(part, radius, boxsize=boxsize{options})",
    "index": "pairs = jz.pairs_within.jit(jz.build_index.jit(part, boxsize), radius{options})",
}


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape."""
    x64, dtype = inputs.mode(random)
    method = pick(random, "eager", "jit", "jit", "index")
    rows, dims = int(pick(random, 0, 1, 2, 9, 25, 40)), int(random.integers(1, 4))
    queries, full = int(pick(random, 0, 0, 7)), bool(random.random() < 0.5)
    options = (", queries=query" if queries else "") + (", full=True" if full else "")
    each = bool(random.random() < 0.4) and (queries > 0 or full)
    asking = ("query",) if queries else ("pos",)
    asking += ("radius",) if each else ()
    of_rows = {"num": ("pos",), "": asking} if queries else {"num": asking}
    kind = "separate" if queries else "full" if full else "half"
    for _ in inputs.cases(method):
        points = inputs.points(random, rows, dims, dtype)
        values = points.arguments(random)
        if queries:
            values["query"] = inputs.positions(random, queries, dtype, points.sides, points.length)
        values["radius"] = _radius(random, points, queries or rows, each)
        if random.random() < 0.08:
            _spoil(random, values)
        lines = _PART + _CALLS[method].format(options=options)
        yield Case(lines, values, partial(_judge, kind, x64), of_rows, "", x64)


def _radius(random: np.random.Generator, points: inputs.Points, asking: int, each: bool) -> Any:
    """Return radii that reach some images of the box, but not thousands."""
    used, sides = points.pos[: points.num], points.sides
    maximum = _FARTHEST * float(sides[sides > 0].min(initial=np.inf))
    selected = [min(linking_length(random, used, sides, points.length), maximum) for _ in range(4 if each else 1)]
    return random.choice([*selected, 0.0], asking) if each else selected[0]


def _spoil(random: np.random.Generator, values: dict[str, Any]) -> None:
    if random.random() < 0.4 and np.ndim(values["radius"]) == 0:
        values["radius"] = pick(random, -1.0, np.nan, np.inf)
    else:
        inputs.spoil_position(random, values)


def _judge(kind: str, x64: bool, values: dict[str, Any], outcome: Outcome) -> None:
    num = values["num"]
    pos, sides = values["pos"][:num], inputs.sides(values["boxsize"], values["pos"].shape[1])
    query = values.get("query", pos)
    radius = np.broadcast_to(values["radius"], len(values.get("query", values["pos"])))[: len(query)]
    everything = np.concatenate([pos, query])
    must = unsound(everything, sides) or _unsound_radius(np.asarray(values["radius"]), radius, sides)
    # The shifts of such positions overflow.
    far = np.abs(everything.astype(np.float64)) / 2.0**29 >= np.where(sides > 0, sides, np.inf)
    may = "a position is too many boxes away" if must is None and far.any() else None
    finite = radius[np.isfinite(radius)]
    if expect_error(outcome, must, may or may_refuse(everything, np.append(sides, finite), x64)):
        return
    if far.any():
        raise WrongError("no error although a position is too many boxes away", "an error", "an answer")
    _check(_Images(pos, query, radius, sides, kind), outcome["pairs"])


def _unsound_radius(given: np.ndarray, radius: np.ndarray, sides: np.ndarray) -> str | None:
    # A single radius is checked even if there are no queries.
    looked_at = radius if given.ndim else given
    if not (looked_at >= 0).all():
        return "a radius is negative or not a number"
    return "an infinite radius reaches all images" if np.isinf(looked_at).any() and (sides > 0).any() else None


class _Images:
    """All images of sources that may be within reach of a query: (query, source, image) in float64 and wider.

    surely, possibly: masks of the partners. shift, vector: ``(q, n, images, d)``.
    """

    def __init__(self, pos: np.ndarray, query: np.ndarray, radius: np.ndarray, sides: np.ndarray, kind: str) -> None:
        dims = len(sides)
        period = np.where(sides > 0, sides, np.inf)
        separation = pos.astype(np.longdouble)[None] - query.astype(np.longdouble)[:, None]
        reach = np.where(np.isfinite(radius), radius, 0)
        steps = np.where(sides > 0, np.ceil(reach.max(initial=0) / period + 0.5), 0).astype(int)
        images = np.stack(np.meshgrid(*[np.arange(-m, m + 1) for m in steps], indexing="ij"), axis=-1).reshape(-1, dims)
        nearest = -np.rint(separation / period)
        self.shift = (np.where(sides > 0, nearest, 0)[:, :, None] + images).astype(np.int64)
        self.vector = separation[:, :, None] + self.shift * sides.astype(np.longdouble)
        self.distance = np.sqrt((self.vector**2).sum(axis=-1))
        # The error of products and sums in float64.
        size = np.abs(pos.astype(np.float64))[None] + np.abs(query.astype(np.float64))[:, None]
        self.loose = 8 * np.finfo(np.float64).eps * (size[:, :, None] + np.abs(self.shift) * sides).sum(axis=-1)
        self.loose += 2 * float(np.finfo(pos.dtype).smallest_subnormal)
        if pos.dtype == np.float64:
            self.loose += np.ldexp(max(float(size.max(initial=0)), float(sides.max(initial=0))), -400)
        far, unlimited = reach[:, None, None], np.isinf(radius)[:, None, None]
        slack = self.loose + 8 * np.finfo(np.float64).eps * far
        # If squares are exact, the definition decides.
        decided = (self.vector**2).sum(axis=-1).astype(np.float64) <= far * far
        exact = _is_on_lattice(pos, query, sides) & (np.abs(self.shift).max(axis=-1, initial=0) <= 8)
        self.surely = np.where(exact, decided, self.distance < far - slack) | unlimited
        self.possibly = np.where(exact, decided, self.distance <= far + slack) | unlimited
        if kind != "separate":
            self._leave_out(kind == "half")

    def _leave_out(self, half: bool) -> None:
        """Exclude pairs of a particle with itself, and one of each pair and its mirror image."""
        n = len(self.shift)
        i, j = np.arange(n)[:, None, None], np.arange(n)[None, :, None]
        moved = self.shift.any(axis=-1)
        there = (i != j) | moved
        if half:
            first = np.take_along_axis(self.shift, (self.shift != 0).argmax(axis=-1)[..., None], axis=-1)[..., 0]
            there = (i < j) | ((i == j) & (first > 0))
        self.surely, self.possibly = self.surely & there, self.possibly & there


def _is_on_lattice(pos: np.ndarray, query: np.ndarray, sides: np.ndarray) -> bool:
    """Return whether all coordinates and lengths are small multiples of a power of two, so that squares are exact."""
    numbers = np.concatenate([pos.astype(np.float64).ravel(), query.astype(np.float64).ravel(), sides])
    maximum = float(np.abs(numbers).max(initial=0))
    if maximum == 0 or not 1e-100 < maximum < 1e100:
        return False
    cell = 2.0 ** (np.floor(np.log2(maximum)) - 18)
    return bool((numbers / cell == np.rint(numbers / cell)).all())


def _check(images: _Images, result: Any) -> None:
    num, dims = int(result.num), images.shift.shape[-1]
    i, j, shift = np.asarray(result.i), np.asarray(result.j), np.asarray(result.shift)
    vector, distance = np.asarray(result.vector), np.asarray(result.distance)
    if not ((i[num:] == -1).all() and (j[num:] == -1).all() and np.isinf(distance[num:]).all()):
        raise WrongError("there is something behind the last pair", -1, (i[num:], j[num:], distance[num:]))
    if (np.diff(i[:num]) < 0).any():
        raise WrongError("pairs do not ascend", "", i[:num])
    q, n = images.shift.shape[:2]
    place = {(a, b, *images.shift[a, b, c].tolist()): c for a, b, c in np.argwhere(images.possibly).tolist()}
    listed = np.zeros(images.possibly.shape, int)
    for row in range(num):
        key = (int(i[row]), int(j[row]), *shift[row].tolist())
        if key not in place:
            raise WrongError("a pair that is none", f"one of {len(place)} of {q} queries and {n} sources", key)
        listed[key[0], key[1], place[key]] += 1
        _check_vector(images, (key[0], key[1], place[key]), vector[row], distance[row], dims)
    if (listed > 1).any():
        raise WrongError("a pair is there twice", "", np.argwhere(listed > 1)[0])
    if (images.surely & (listed == 0)).any():
        missing = np.argwhere(images.surely & (listed == 0))[0]
        raise WrongError("a pair is missing", (missing[:2], images.shift[tuple(missing)]), num)


def _check_vector(images: _Images, place: tuple[int, int, int], vector: np.ndarray, distance: Any, dims: int) -> None:
    expected, length = images.vector[place], images.distance[place]
    eps, loose = float(np.finfo(vector.dtype).eps), images.loose[place]
    if (np.abs(vector - expected) > 2 * eps * np.abs(expected) + loose).any():
        raise WrongError("a vector is not that between the pair", expected, vector)
    if abs(distance - length) > 4 * eps * length + np.sqrt(dims) * loose:
        raise WrongError("a distance is not that between the pair", length, distance)
