"""Distances from the definition, in extended precision, and the accuracy to require of results."""

import numpy as np
import oracles


def distances(a: np.ndarray, b: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """Return ``(len(a), len(b))`` distances to the nearest images, in NumPy's widest float."""
    total = np.zeros((len(a), len(b)), np.longdouble)
    for d, side in enumerate(sides.astype(np.longdouble)):
        x, y = a[:, None, d].astype(np.longdouble), b[None, :, d].astype(np.longdouble)
        difference = x - y
        if side > 0:
            shift = np.rint(difference / side) * side
            # Shifting the coordinate that is farther out loses no digits.
            difference = np.where(np.abs(x) > np.abs(y), (x - shift) - y, x - (y + shift))
        total += difference**2
    return np.sqrt(total)


def outside(pos: np.ndarray, sides: np.ndarray) -> bool:
    """Return whether any position is outside its periodic box."""
    return bool(((sides > 0) & ((pos < 0) | (pos.astype(np.float64) >= sides))).any())


def rounding(pos: np.ndarray, sides: np.ndarray) -> float:
    """Return the allowed absolute error of distances.

    Distances are those of the given positions, inside the box or not. For float32 positions outside it, the library
    computes in float64. Positions many periods away are wrapped by a remainder.
    """
    minimum = 2 * float(np.finfo(pos.dtype).smallest_subnormal)
    if pos.dtype == np.float64:
        minimum += vanishing(pos, sides)
    if not outside(pos, sides):
        return minimum
    periodic, side = np.abs(pos[:, sides > 0]).astype(np.float64), sides[sides > 0]
    exact = pos.dtype == np.float64 and bool((periodic < 2.0**25 * side).all())
    epsilon = np.finfo(np.longdouble if exact else np.float64).eps
    return minimum + float(8 * np.sqrt(len(sides)) * epsilon * max(float(periodic.max()), float(side.max())))


def vanishing(pos: np.ndarray, sides: np.ndarray) -> float:
    """Return the size of distances whose squares leave the range of float64, relative to the size of the set."""
    widest = max(float(np.abs(pos).max(initial=0)), float(sides.max(initial=0)))
    return float(np.ldexp(widest, -870))


def on_lattice(pos: np.ndarray, sides: np.ndarray) -> bool:
    """Return whether all coordinates and lengths are small multiples of one power of two, so that squares are exact."""
    numbers = np.concatenate([pos.astype(np.float64).ravel(), sides])
    maximum = np.abs(numbers).max(initial=0)
    if maximum == 0:
        return True
    if maximum > 1e30 or maximum < 1e-30:
        return False
    cell = 2.0 ** (np.floor(np.log2(maximum)) - 9)
    return bool((numbers / cell == np.rint(numbers / cell)).all())


def unsound(pos: np.ndarray, sides: np.ndarray) -> str | None:
    """Return why positions and box must be refused, or None."""
    if not np.isfinite(pos).all():
        return "a position is not finite"
    if not (np.isfinite(sides).all() and (sides >= 0).all()):
        return "the box is negative or not finite"
    return None


def beyond_float32(sides: np.ndarray, x64: bool) -> str | None:
    """Return why the box may be refused: in 32-bit mode, JAX cannot represent it."""
    kind = np.finfo(np.float32)
    if not x64 and ((sides > kind.max) | ((sides > 0) & (sides < kind.tiny))).any():
        return "the box is beyond the range of float32"
    return None


def within(query: np.ndarray, pos: np.ndarray, radius: np.ndarray, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sources, ``(q, n)``, that are surely and possibly within a radius of each query.

    Pairs within rounding of a radius are decided in float64. If the library need not keep all bits of the positions,
    both decisions are correct. The radii are one per query, ``(q,)``, or one per pair, ``(q, n)``.
    """
    radius = radius if radius.ndim == 2 else radius[:, None]
    reach = np.where(np.isfinite(radius), radius, 0)
    everything = np.concatenate([query, pos]).astype(np.float64)
    separation = distances(query, pos, sides)
    nearest, lost = 8 * np.finfo(np.float64).eps * reach, 0.0
    if outside(everything, sides):
        lost += 16 * np.finfo(np.float64).eps * float(np.abs(everything[:, sides > 0]).max())
    surely, possibly = separation < reach - nearest - lost, separation <= reach + nearest + lost
    surely |= (query[:, None] == pos[None]).all(axis=-1)
    decided = possibly & _within_in_float64(query, pos, reach, sides)
    all_of_them, none = np.isinf(radius), ~(radius >= 0)
    surely, possibly = (np.where(lost > 0, side, surely | decided) for side in (surely, possibly))
    return (surely | all_of_them) & ~none, (possibly | all_of_them) & ~none


def _within_in_float64(query: np.ndarray, pos: np.ndarray, reach: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """Apply the definition. A power-of-two scale keeps squares near a radius in range and is exact."""
    factor = np.ldexp(1.0, np.where(reach > 0, -np.frexp(reach)[1], 1000).clip(-1000, 1000))
    with np.errstate(over="ignore"):
        return oracles.squared_distances(query, pos, sides, factor) <= (reach * factor) ** 2


def groups_may_vanish(pos: np.ndarray) -> str | None:
    """Return why a catalogue may be refused: groups at the origin with axes too small for the dtype are an error."""
    if np.abs(pos[pos != 0]).min(initial=1) < 1e12 * float(np.finfo(pos.dtype).tiny):
        return "a group may be so small that its axes are beyond the range"
    return None


def may_refuse(pos: np.ndarray, lengths: np.ndarray, x64: bool) -> str | None:
    """Return why numbers may be refused for their unit: the library returns correct results or raises an error."""
    maximum = 1e37 if pos.dtype == np.float32 else 1e99
    if np.abs(pos).max(initial=0) > maximum or lengths.max(initial=0) > maximum:
        return "coordinates are near the end of the range"
    return beyond_float32(lengths, x64)
