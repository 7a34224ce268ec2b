"""Spherical overdensities in hostile sets, judged by sorting all distances."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from overdensity.test_overdensity import brute

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import distances, may_refuse, on_lattice, outside, unsound
from .inputs import pick

_CASES = 16  # of one shape
_CALL = (
    "found = jz.overdensity.spherical_overdensity{twin}(jz.data.PosMass(pos=pos, mass=mass, num=num), density, "
    "queries=centre, boxsize=boxsize, cfg=jz.config.OverdensityConfig(npart_min={least}))"
)
_NEAR = 1e-9  # relative differences that rounding may decide either way


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape."""
    x64, dtype = inputs.mode(random)
    rows, dims, centres = int(pick(random, 1, 2, 25, 64, 130)), int(random.integers(1, 5)), int(pick(random, 1, 6))
    minimum, method = int(pick(random, 1, 3, 10)), pick(random, "", ".jit", ".jit")
    shared, densities = pick(random, "none", "number", "each"), int(pick(random, 1, 3))
    for _ in range(_CASES if method else _CASES // 4):
        points = inputs.points(random, rows, dims, dtype)
        centre = inputs.positions(random, centres, dtype, points.sides, points.length)
        if points.num and random.random() < 0.7:
            centre[:] = points.pos[random.integers(0, points.num, centres)]
        unit = float(pick(random, 1.0, 1.0, 1e-15, 1e15))
        mass = {"none": None, "number": unit, "each": (unit * random.random(rows)).astype(dtype)}[shared]
        density = _densities(random, densities, dims, points.length, points.num, 1.0 if mass is None else unit)
        values = points.arguments(random) | {"mass": mass, "centre": centre, "density": density}
        if random.random() < 0.08:
            _spoil(random, values)
        columns = ("pos", "mass") if shared == "each" else ("pos",)
        lines = _CALL.format(twin=method, least=minimum)
        yield Case(lines, values, _Judge(minimum, x64), {"num": columns, "": ("centre",)}, x64=x64)


def _densities(random: np.random.Generator, count: int, dims: int, length: float, num: int, unit: float) -> np.ndarray:
    """Return mean densities of the set or of a possible clump in it."""
    with np.errstate(all="ignore"):
        mean = max(num, 1) * unit / np.float64(length) ** dims
        return np.clip(mean * 10 ** random.uniform(-2, 5, count), 1e-300, 1e300)


def _spoil(random: np.random.Generator, values: dict[str, Any]) -> None:
    if isinstance(values["mass"], np.ndarray) and values["num"] and random.random() < 0.5:
        values["mass"][random.integers(values["num"])] = pick(random, -1.0, np.nan, np.inf)
    elif random.random() < 0.5:
        values["density"][0] = pick(random, 0.0, -1.0, np.nan, np.inf)
    else:
        values["centre"][0, 0] = pick(random, np.nan, np.inf)


class _Judge:
    def __init__(self, minimum: int, x64: bool) -> None:
        self.least, self.x64 = minimum, x64

    def __call__(self, values: dict[str, Any], outcome: Outcome) -> None:
        num, centre, density = values["num"], values["centre"], values["density"]
        pos, sides = values["pos"][:num], inputs.sides(values["boxsize"], centre.shape[1])
        mass = None if values["mass"] is None else np.broadcast_to(values["mass"], len(values["pos"]))[:num]
        must = unsound(np.concatenate([pos, centre]), sides)
        if mass is not None and not (np.isfinite(mass) & (mass >= 0)).all():
            must = must or "a mass is negative or not finite"
        if not (np.isfinite(density) & (density > 0)).all():
            must = must or "a density is not positive and finite"
        everything = np.concatenate([pos, centre])
        may = may_refuse(everything, np.append(sides, density), self.x64)
        if must is None and may is None and outcome.error is not None:
            may = self._beyond_range(pos, mass, centre, density, sides)
        if expect_error(outcome, must, may):
            return
        if outside(everything, sides) or sides.max() > 1e60 or 0 < sides.max() < 1e-60 or not num:
            return  # other parts judge such rounding
        self._compare(outcome["found"], pos, mass, centre, density, sides)

    def _beyond_range(self, pos: Any, mass: Any, centre: Any, density: Any, sides: np.ndarray) -> str | None:
        expected = brute(pos, mass, centre, density, sides, self.least)
        sizes = np.concatenate([np.ravel(expected[name]) for name in ("mass", "radius", "vmax")])
        sizes, kind = sizes[sizes > 0], np.finfo(pos.dtype)
        if ((sizes > 0.99 * float(kind.max)) | (sizes < 1.01 * float(kind.tiny))).any():
            return "the mass, the radius or vmax of a sphere is beyond the range"
        return None

    def _compare(self, result: Any, pos: Any, mass: Any, centre: Any, density: Any, sides: np.ndarray) -> None:
        lower, upper = (
            brute(pos, mass, centre, density * factor, sides, self.least) for factor in (1 - _NEAR, 1 + _NEAR)
        )
        sure = (lower["count"] == upper["count"]) & _distinct(centre, pos, sides)[:, None]
        expected = brute(pos, mass, centre, density, sides, self.least)
        for name in ("count", "mass", "radius"):
            _check(name, expected[name], np.asarray(getattr(result, name)), sure)
        _check("vmax", expected["vmax"], np.asarray(result.vmax), sure.all(axis=1))


def _distinct(centre: np.ndarray, pos: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """Return for which centres all distances, and half the box, differ by more than rounding."""
    if on_lattice(np.concatenate([centre, pos]), sides):
        return np.ones(len(centre), bool)
    edge = sides[sides > 0].min(initial=np.inf) / 2
    # Two distances may be equal in float64 although the library, which takes no roots, distinguishes them.
    r = distances(centre, pos, sides)
    r = np.sort(np.column_stack([r, np.full(len(r), edge)]) if np.isfinite(edge) else r, axis=1)
    gap = np.diff(r, axis=1)
    return ((gap == 0) | (gap > _NEAR * r[:, 1:])).all(axis=1)


def _check(name: str, expected: np.ndarray, result: np.ndarray, sure: np.ndarray) -> None:
    kind = np.finfo(result.dtype if result.dtype.kind == "f" else np.float64)
    with np.errstate(invalid="ignore"):
        same = np.abs(result - expected) <= (16 * float(kind.eps) + 1e-13) * np.abs(expected) + 2 * float(kind.tiny)
    same |= (np.isnan(result) & np.isnan(expected)) | (expected > float(kind.max))
    if not (same | ~sure).all():
        raise WrongError(f"the {name} of a sphere is not that of sorted distances", expected, result)
