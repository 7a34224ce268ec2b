"""Potentials and accelerations of hostile sets, judged by sums over all pairs, or over all images by Ewald."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gravity.test_group_potential import plummer_terms, spline_terms
from gravity.test_periodic_box import ewald_sums

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .inputs import pick

_CASES = 10  # of one shape
_LABELS = """first, inverse = np.unique(names, return_index=True, return_inverse=True)[1:]
groups = first[inverse].astype(np.int32)
"""
_LINES = """part = jz.data.PosMass(pos=pos, mass=mass, num=num)
how = dict(softening=softening, kernel={kernel!r}, boxsize=boxsize, groups=groups, error={error}, gravity=3.0)
potential, acceleration = jz.potential{way}(part, **how), jz.acceleration{way}(part, **how)"""
_LIMIT = 3  # times the error of most particles
_FEW, _LIMIT_OF_FEW = 0.02, 30  # the fraction of particles whose accelerations may have larger errors; their limit


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape."""
    x64, dtype = inputs.mode(random)
    kind = pick(random, "open", "groups", "images")
    rows = int(pick(random, 0, 1, 2, 20, 60) if kind == "images" else pick(random, 0, 1, 2, 40, 300, 700))
    dims = 3 if kind == "images" else int(pick(random, 1, 2, 3, 3, 4))
    way, kernel = pick(random, ".jit", ".jit", ""), pick(random, "plummer", "spline")
    error = float(pick(random, 1e-2, 1e-3, 1e-3, 1e-5))
    has_groups = kind == "groups"
    lines = (_LABELS if has_groups else "groups = None\n") + _LINES.format(kernel=kernel, error=error, way=way)
    columns = ("pos", "mass", "names") if has_groups else ("pos", "mass")
    for _ in range(_CASES if way else _CASES // 4):
        values = _set(random, rows, dims, kind, dtype)
        if random.random() < 0.1 and values["num"] > 0:
            values["pos"][random.integers(values["num"])] = np.nan
        yield Case(lines, values, _Judge(error, kernel == "spline", has_groups), {"num": columns}, "", x64)


def _set(random: np.random.Generator, rows: int, dims: int, kind: str, dtype: Any) -> dict[str, Any]:
    """Return places in a unit of length, masses, and the names of random groups."""
    length, weight = (10.0 ** int(pick(random, 0, 0, -6, 6)) for _ in range(2))
    pos = inputs.positions(random, rows, np.float64, np.ones(dims), 1.0) % 1
    if kind == "images":
        pos = np.round(pos, 7)  # the oracle loses the digits of smaller distances across a face
    num, sides = inputs.used_rows(random, rows), np.ones(dims)
    if kind == "images":
        sides = random.choice([1.0, 1.0, 0.6, 2.0], 3)
    return {
        "pos": inputs.padded(random, (length * sides * pos).astype(dtype), num),
        "mass": (weight * random.lognormal(0, 1, rows) * (random.random(rows) < 0.9)).astype(dtype),
        "num": num,
        "boxsize": tuple((length * sides).tolist()) if kind == "images" else None,
        "names": random.integers(0, max(1, int(pick(random, 1, 3, rows))), rows),
        "softening": length * float(pick(random, 0.0, 0.0, 1e-3, 0.1)),
    }


class _Judge:
    def __init__(self, error: float, spline: bool, has_groups: bool) -> None:
        self.error, self.spline, self.has_groups = error, spline, has_groups

    def __call__(self, values: dict[str, Any], outcome: Outcome) -> None:
        num, pos = values["num"], values["pos"]
        if np.isnan(pos[:num]).any():
            expect_error(outcome, "a position is NaN")
            return
        gaps = np.abs(pos[:num, None].astype(np.float64) - pos[:num])
        if ((gaps > 0) & (gaps < 1e-100)).any():
            return  # the sums below are out of range
        potential, acceleration, depth, strength = self.expected(values)
        largest = np.abs(np.concatenate([[0], potential, acceleration.ravel()])).max()
        if expect_error(outcome, None, None if largest < 1e-2 * float(np.finfo(pos.dtype).max) else "large"):
            return
        for name, expected, scale in (("potential", potential, depth), ("acceleration", acceleration, strength)):
            result = np.asarray(outcome[name], np.float64)
            if result[num:].any():
                raise WrongError(f"a row of padding has a {name}", 0, result[num:])
            errors, size = (
                np.abs(x).reshape(len(x), expected[0].size if num else 1).max(axis=1)
                for x in (result[:num] - expected, expected)
            )
            size = size + scale
            tiny, rounding = (float(value) * 10 for value in (np.finfo(pos.dtype).tiny, np.finfo(pos.dtype).eps))
            bad = ~(errors <= (_LIMIT * self.error + rounding) * size + tiny)
            worst = ~(errors <= (_LIMIT_OF_FEW * self.error + rounding) * size + tiny)
            if worst.any() or bad.sum() > (_FEW * num if name == "acceleration" else 0):
                raise WrongError(f"the {name} is wrong", expected[bad], result[:num][bad])

    def expected(self, values: dict[str, Any]) -> tuple[np.ndarray, ...]:
        """Return potentials, accelerations, and the sums of the sizes of their terms."""
        num, box, softening = values["num"], values["boxsize"], values["softening"]
        pos, mass = values["pos"][:num].astype(np.float64), 3 * values["mass"][:num].astype(np.float64)
        away = pos[None] - pos[:, None]
        if box is not None:
            away -= np.asarray(box) * np.round(away / np.asarray(box))
        distance = np.sqrt((away**2).sum(axis=-1))
        soft = spline_terms if self.spline and softening > 0 else plummer_terms
        pairs = ~np.eye(num, dtype=bool)
        if self.has_groups:
            pairs &= values["names"][:num, None] == values["names"][None, :num]
        first, third = (np.where(pairs & (distance + softening > 0), term, 0) for term in soft(distance, softening))
        depth, strength = first @ mass, (third * distance) @ mass
        if box is None:
            return -depth, ((third * mass)[..., None] * away).sum(axis=1), depth, strength
        if num == 0:
            return np.zeros(0), np.zeros((0, 3)), depth, strength
        potential, acceleration, norm = ewald_sums(pos, mass, box, np.arange(num), softening, self.spline)
        shortest = min(box)
        # Forces of images half a box away have no direction, and the oracle chooses one.
        width = 1e-6 if values["pos"].dtype == np.float32 else 1e-14
        is_halfway = (np.abs(np.abs(away) / box - 0.5) < width).any(axis=-1)
        undefined = (is_halfway & pairs).any(axis=1) & (softening > 0)
        strength[undefined] = np.inf
        return potential, acceleration, norm + mass.sum() / shortest, strength + mass.sum() / shortest**2
