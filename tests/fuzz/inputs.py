"""Hostile input: positions, boxes, units, and numbers of rows."""

from typing import Any, NamedTuple

import numpy as np

DTYPES = (np.float32, np.float64)
_EDGES = (0, 1, 2, 3, 8, 23, 24, 25, 47, 48, 49)  # around the sizes of one leaf and two


def pick(random: np.random.Generator, *choices: Any) -> Any:
    """Return one of the choices, with equal probability. Repeat a choice to make it more likely."""
    return choices[int(random.integers(len(choices)))]


def cases(method: str) -> range:
    """Return the cases of one shape, fewer if JAX compiles single operations, because that takes longer."""
    return range(6 if method == "eager" else 24)


def mode(random: np.random.Generator) -> tuple[bool, Any]:
    """Return whether JAX's 64-bit mode is on, and the dtype of positions."""
    x64 = bool(random.random() < 0.5)
    return x64, DTYPES[int(x64 and random.random() < 0.75)]


class Points(NamedTuple):
    """Positions ``(n, d)`` in a box; the first ``num`` count.

    length: of the box, also if it is open. boxsize: the argument. sides: ``(d,)``, its lengths, 0 if open.
    """

    pos: np.ndarray
    num: int
    boxsize: Any
    sides: np.ndarray
    length: float

    def arguments(self, random: np.random.Generator) -> dict[str, Any]:
        """Return the arguments by name, with garbage in padding rows."""
        return {"pos": padded(random, self.pos, self.num), "num": self.num, "boxsize": self.boxsize}


def points(random: np.random.Generator, rows: int, dims: int, dtype: Any, box_dtype: Any = None) -> Points:
    """Return a set of points. box_dtype: of a traced box; None leaves the box in the form of user input."""
    length = unit(random, dtype)
    boxsize = box(random, dims, length)
    if box_dtype is not None:
        with np.errstate(over="ignore", under="ignore"):
            boxsize = sides(boxsize, dims).astype(box_dtype)
    lengths, num = sides(boxsize, dims), used_rows(random, rows)
    return Points(positions(random, rows, dtype, lengths, length), num, boxsize, lengths, length)


def spoil_position(random: np.random.Generator, values: dict[str, Any]) -> None:
    """Make one coordinate of the arguments invalid, if there is any."""
    if values["num"] > 0:
        place = random.integers(values["num"]), random.integers(values["pos"].shape[1])
        values["pos"][place] = pick(random, np.nan, np.inf, -np.inf)


def unit(random: np.random.Generator, dtype: Any) -> float:
    """Return the length of a box in some unit, mostly a moderate one."""
    if random.random() < 0.6:
        return float(pick(random, 1.0, 1.0, 37.5, 0.1, 100.0, 1 / 3))
    maximum = float(np.finfo(np.float32).max)
    if dtype == np.float32 or random.random() < 0.5:
        return float(pick(random, 1e-38, 1.1754944e-38, 1e-30, 1e-12, 1e12, 1e19, 1e30, 1e38, maximum))
    return float(pick(random, 1e-300, 1e-160, 1e-100, 1e100, 1e160, 1e300))


def box(random: np.random.Generator, dims: int, length: float) -> Any:
    """Return a box argument: open, periodic, or one length per dimension, some of which may be open."""
    kind = random.random()
    if kind < 0.25:
        return pick(random, None, 0.0, 0, [0.0] * dims)
    if kind < 0.6:
        return length
    lengths = [length * float(pick(random, 1.0, 1.0, 0.5, 0.7)) for _ in range(dims)]
    return [0.0 if random.random() < 0.3 else side for side in lengths]


def sides(boxsize: Any, dims: int) -> np.ndarray:
    """Return ``(d,)`` float64 lengths, 0 if open."""
    return np.broadcast_to(np.asarray(0.0 if boxsize is None else boxsize, np.float64), (dims,))


def used_rows(random: np.random.Generator, rows: int) -> int:
    """Return the number of rows with particles: all, or a number near a leaf size."""
    if random.random() < 0.3:
        return rows
    return int(min(pick(random, *_EDGES, int(random.integers(0, rows + 1))), rows))


def positions(random: np.random.Generator, rows: int, dtype: Any, boxsize: np.ndarray, length: float) -> np.ndarray:
    """Return finite positions in and around a box of lengths ``boxsize``; open dimensions have size ``length``."""
    side = np.where(boxsize > 0, boxsize, length)
    x = _pattern(random, rows, len(side))
    with np.errstate(over="ignore", under="ignore"):
        x = x * side
        for twist in (_clumps_at_faces, _duplicates, _at_faces, _around_zero, _outside, _far):
            if random.random() < 0.2:
                x = twist(random, x, side, boxsize, dtype)
        widest = float(np.finfo(dtype).max)
        return np.clip(x, -widest, widest).astype(dtype)


def padded(random: np.random.Generator, pos: np.ndarray, num: int) -> np.ndarray:
    """Fill ``pos`` with garbage in the rows from ``num`` on."""
    pos[num:] = pick(random, np.nan, np.inf, -np.inf, 0.0, np.finfo(pos.dtype).max)
    return pos


def _pattern(random: np.random.Generator, rows: int, dims: int) -> np.ndarray:
    """Return points of the unit cube."""
    uniform = random.random((rows, dims))
    return pick(random, _plain, _plain, _clumps, _lattice, _lattice, _collinear, _equal, _scales)(random, uniform)


def _plain(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return x


def _clumps(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return clumps of very different widths, some on faces and corners."""
    rows, dims = x.shape
    centre, width = random.random((4, dims)), 10 ** random.uniform(-9, -1, 4)
    centre = np.where(random.random((4, dims)) < 0.3, 0.0, centre)
    which = random.integers(0, 4, rows)
    return (centre[which] + width[which, None] * (x - 0.5)) % 1.0


def _lattice(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return points at few places, so that there are equal distances and duplicates."""
    cells = int(pick(random, 2, 4, 8, 16))
    return np.floor(x * cells) / cells


def _collinear(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    direction = random.choice([0.0, 1.0, 0.5, 0.3], x.shape[1])
    return x[:, :1] * direction


def _equal(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(random.random(x.shape[1]), x.shape).copy()


def _scales(random: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Return points at distances over twelve decades around a point."""
    return (0.5 * (x - 0.5) * 10 ** random.uniform(-12, 0, (len(x), 1)) + float(pick(random, 0.0, 0.5))) % 1.0


# Twists


def _some(random: np.random.Generator, x: np.ndarray, share: float) -> np.ndarray:
    return random.random(x.shape) < share


def _duplicates(random: np.random.Generator, x: np.ndarray, *_: Any) -> np.ndarray:
    return x[random.integers(0, len(x), len(x))] if len(x) else x


def _clumps_at_faces(
    random: np.random.Generator, x: np.ndarray, side: np.ndarray, boxsize: np.ndarray, dtype: Any
) -> np.ndarray:
    """Return clumps on both sides of faces, edges and corners of the box, or of a box several periods away."""
    clumps, dims = 3, x.shape[1]
    face = random.integers(-3, 4, (clumps, dims)) * float(random.random() < 0.4)
    face += np.where(random.random((clumps, dims)) < 0.2, random.random((clumps, dims)), random.integers(0, 2, dims))
    width = 10 ** random.uniform(-7, 0, (clumps, 1))
    which = random.integers(0, clumps, len(x))
    return (face[which] + width[which] * random.uniform(-0.5, 0.5, x.shape)) * side


def _at_faces(
    random: np.random.Generator, x: np.ndarray, side: np.ndarray, boxsize: np.ndarray, dtype: Any
) -> np.ndarray:
    """Return coordinates at the faces of the box and next to them."""
    narrow = side.astype(dtype)
    top, below, above = (
        np.asarray(v, np.float64) for v in (narrow, np.nextafter(narrow, dtype(0)), np.nextafter(narrow, dtype(np.inf)))
    )
    places = np.stack([np.zeros_like(top), -np.zeros_like(top), top, below, above, top / 2, -(top - below)])
    selected = np.take_along_axis(places, random.integers(0, len(places), x.shape), axis=0)
    return np.where(_some(random, x, 0.4), selected, x)


def _around_zero(
    random: np.random.Generator, x: np.ndarray, side: np.ndarray, boxsize: np.ndarray, dtype: Any
) -> np.ndarray:
    """Return coordinates that are zero, of either sign, or among the smallest numbers."""
    kind = np.finfo(dtype)
    minimum, tiny = float(kind.smallest_subnormal), float(kind.tiny)
    selected = random.choice([0.0, -0.0, minimum, -minimum, 7 * minimum, tiny, -tiny, tiny / 2], x.shape)
    return np.where(_some(random, x, 0.5), selected, x)


def _outside(
    random: np.random.Generator, x: np.ndarray, side: np.ndarray, boxsize: np.ndarray, dtype: Any
) -> np.ndarray:
    """Shift some rows by whole boxes."""
    moved = random.integers(-3, 4, x.shape) * float(pick(random, 1, 1, 1e3, 1e9))
    return np.where(_some(random, x, 0.3), x + moved * side, x)


def _far(random: np.random.Generator, x: np.ndarray, side: np.ndarray, boxsize: np.ndarray, dtype: Any) -> np.ndarray:
    """Move one row far away."""
    if len(x):
        x[random.integers(len(x))] *= float(pick(random, 1e3, 1e12, -1e12))
    return x
