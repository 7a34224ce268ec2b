"""Catalogues of hostile sets in all kinds of particle classes, judged by sums over groups in float64."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import oracles

from . import fof, inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import groups_may_vanish, on_lattice, outside
from .inputs import pick

_CASES = 16  # of one shape
_FIELDS = "pos=pos, mass=mass, vel=vel, id=id, num=num"
# The arguments of each class, and its definition.
_CLASSES = {
    "jz.data.ParticleData": "",
    "Registered": "import dataclasses\n@jax.tree_util.register_dataclass\n@dataclasses.dataclass\nclass Registered:\n"
    "    pos: object\n    mass: object\n    vel: object\n    id: object\n    num: object\n    extra: object",
    "Plain": "import dataclasses\n@dataclasses.dataclass\nclass Plain:\n"
    "    pos: object\n    mass: object\n    vel: object\n    id: object\n    num: object\n    extra: object",
    "Named": "import collections\nNamed = collections.namedtuple('Named', 'pos mass vel id num extra')",
    "SimpleNamespace": "from types import SimpleNamespace",
    "dict": "",
}
_EXTRAS = ("int8", "bool", "float16", "bfloat16", "uint16", "uint32", "int64", "uint64", "complex64", "float64", "int4")
_CALLS = {
    "eager": "grouped, cata = jz.fof.fof_and_catalogue({part}, rlink, boxsize, {cfg})",
    "jit": "grouped, cata = jz.fof.fof_and_catalogue.jit({part}, rlink, boxsize, {cfg})",
}
_CFG = "jz.config.FofConfig(catalogue=jz.config.CatalogueConfig(npart_min={least}))"


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape and class."""
    x64, dtype = inputs.mode(random)
    rows, dims = int(pick(random, 0, 1, 2, 25, 64, 64)), int(random.integers(1, 5))
    kind = pick(random, "jz.data.ParticleData", "jz.data.ParticleData", *_CLASSES)
    minimum = int(pick(random, 1, 2, 2, 5))
    has_extra = kind != "jz.data.ParticleData"
    part = f"{kind}({_FIELDS}{', extra=extra' if has_extra else ''})"
    method = pick(random, *_CALLS)
    lines = _CALLS[method].format(part=part, cfg=_CFG.format(least=minimum))
    extra = pick(random, *_EXTRAS) if has_extra else None
    shared, moving = pick(random, "none", "number", "each", "each"), bool(random.random() < 0.7)
    for _ in range(_CASES if method == "jit" else _CASES // 2):
        values = fof.set_of(random, x64, dtype, rows, dims)
        values |= _properties(random, rows, dims, dtype, shared, moving)
        if extra is not None:
            values["extra"] = _extra(random, extra, rows)
        columns = ("pos", "mass", "vel", "id", "extra")
        counted = tuple(name for name in columns if np.ndim(values.get(name)) > 0)
        yield Case(lines, values, _Judge(minimum, x64, kind), {"num": counted}, _CLASSES[kind], x64)


def _properties(
    random: np.random.Generator, rows: int, dims: int, dtype: Any, shared: str, moving: bool
) -> dict[str, Any]:
    """Return masses, velocities and identifiers in hostile units."""
    unit = float(pick(random, 1.0, 1.0, 1.0, 1e-30, 1e30, 1e38, 1e-38))
    masses = {"none": None, "number": unit, "each": (unit * (random.random(rows) + 0.1)).astype(dtype)}
    speed = float(pick(random, 1.0, 1.0, 1e-20, 1e15, 0.0))
    vel = (speed * random.standard_normal((rows, dims))).astype(dtype) if moving else None
    large = random.random() < 0.2
    ids = random.permutation(rows) + (2**40 if large else 0)
    return {"mass": masses[shared], "vel": vel, "id": ids.astype(np.int64 if large else np.int32)}


def _extra(random: np.random.Generator, dtype: str, rows: int) -> np.ndarray:
    """Return a property of an unusual dtype, which JAX supports but NumPy may not, with numbers that fit 32 bits."""
    import ml_dtypes  # noqa: PLC0415 - registers JAX's dtypes by name

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    return random.integers(0, 2 if dtype == "bool" else 7, (rows, 2)).astype(kind)


class _Judge:
    def __init__(self, minimum: int, x64: bool, kind: str) -> None:
        self.least, self.x64, self.kind = minimum, x64, kind

    def __call__(self, values: dict[str, Any], outcome: Outcome) -> None:
        must, may = fof.refusal(values, self.x64)
        if expect_error(outcome, must, may or self._may_refuse(values)):
            return
        grouped, cata = outcome["grouped"], outcome["cata"]
        num = values["num"]
        result = {name: _field(grouped, name) for name in ("pos", "mass", "vel", "id", "extra") if name in values}
        rows = _rows_of(values["id"], np.asarray(result["id"]), num)
        for name, column in result.items():
            _check_column(name, values[name], column, rows)
        pos, sides = values["pos"][:num], inputs.sides(values["boxsize"], values["pos"].shape[1])
        surely, possibly = fof.partitions(pos, float(values["rlink"]), sides)
        if not np.array_equal(surely, possibly):
            return  # both partitions are correct
        if 0 < num <= 64 and on_lattice(pos, sides):
            expected = _group_order(pos, possibly, sides, self.least)
            if not np.array_equal(rows, expected):
                raise WrongError("particles are not in group order", expected, rows)
        _check_groups(cata, rows, possibly, self.least)
        _check_sums(cata, rows, values, sides, possibly)

    def _may_refuse(self, values: dict[str, Any]) -> str | None:
        if self.kind in ("dict", "SimpleNamespace", "Plain"):
            return "this is no pytree"
        if values["id"].dtype == np.int64 and not self.x64:
            return "identifiers of 64 bits do not fit"
        if values.get("extra") is not None and values["extra"].dtype.name == "int4":
            return "less than a byte"
        mass = values["mass"]
        if mass is not None and (np.max(mass, initial=0) > 1e36 or (np.asarray(mass) < 2e-38).any()):
            return "masses are near the end of the range"
        if values["vel"] is not None:
            # Padding rows may hold any values.
            far, fast = (np.float64(np.abs(values[name][: values["num"]]).max(initial=0)) for name in ("pos", "vel"))
            if far * fast > 1e-2 * float(np.finfo(values["pos"].dtype).max):
                return "angular momenta are near the end of the range"
            kind = np.finfo(values["pos"].dtype)
            nearest, slow = (_smallest(values[name][: values["num"]]) for name in ("pos", "vel"))
            if nearest * slow * float(kind.eps) ** 2 < float(kind.tiny):
                return "differences of places and of velocities may be so small that their product has no digits"
        return groups_may_vanish(values["pos"][: values["num"]])


def _smallest(values: np.ndarray) -> float:
    return float(np.abs(values[values != 0]).min(initial=np.inf))


def _field(grouped: Any, name: str) -> Any:
    return grouped[name] if isinstance(grouped, dict) else getattr(grouped, name)


def _rows_of(given: np.ndarray, result: np.ndarray, num: int) -> np.ndarray:
    """Return the given row of each particle found, by identifier."""
    place = {int(identifier): row for row, identifier in enumerate(given)}
    rows = np.array([place.get(int(identifier), -1) for identifier in result[:num]], np.int64)
    if not np.array_equal(np.sort(rows), np.arange(num)):
        raise WrongError("identifiers that came back are not those that were given", given[:num], result[:num])
    return rows


def _check_column(name: str, given: Any, result: Any, rows: np.ndarray) -> None:
    """Check that a property moved with its particles, bit for bit if JAX supports its dtype."""
    if np.ndim(given) == 0:
        if given is not None and not np.isclose(float(result), np.float32(given), rtol=1e-7, atol=1e-37):
            raise WrongError(f"the {name} that all particles share changed", given, result)
        return
    column = np.asarray(result)
    if len(column) != len(given):
        raise WrongError(f"the column {name} has another number of rows", len(given), len(column))
    expected = np.asarray(given)[rows].astype(column.dtype)
    if expected.tobytes() != column[: len(rows)].tobytes():
        raise WrongError(f"the column {name} did not go with its particles", expected, column[: len(rows)])


def _group_order(pos: np.ndarray, label: np.ndarray, sides: np.ndarray, minimum: int) -> np.ndarray:
    """Return rows group by group in the z-order of first particles, followed by rows in no listed group."""
    place = oracles.inverse(oracles.z_order(pos, sides))
    first = np.full(len(pos), len(pos))
    np.minimum.at(first, label, place)
    unlisted = np.bincount(label, minlength=len(pos))[label] < minimum
    return np.lexsort((place, np.where(unlisted, 0, first[label]), unlisted))


def _check_groups(cata: Any, rows: np.ndarray, label: np.ndarray, minimum: int) -> None:
    """Check that listed groups are contiguous rows with all their particles, and that no group is missing."""
    ngroups = int(cata.ngroups)
    sizes = np.bincount(label, minlength=1)[label] if len(label) else label
    expected = len(np.unique(label[sizes >= minimum])) if len(label) else 0
    if ngroups != expected:
        raise WrongError("the catalogue has another number of groups", expected, ngroups)
    end = 0
    for group in range(ngroups):
        first, count = int(cata.offset[group]), int(cata.count[group])
        members = rows[first : first + count]
        if first != end or count < minimum or len(set(label[members])) != 1 or sizes[members[0]] != count:
            raise WrongError("a row of the catalogue is not one whole group", label[rows], (first, count))
        end = first + count


def _check_sums(cata: Any, rows: np.ndarray, values: dict[str, Any], sides: np.ndarray, label: np.ndarray) -> None:
    """Check every number of every listed group against sums in extended precision."""
    for group in range(int(cata.ngroups)):
        members = rows[int(cata.offset[group]) :][: int(cata.count[group])]
        for name, want in _moments(values, members, sides).items():
            result = np.asarray(getattr(cata, name)[group])
            kind = np.finfo(result.dtype)
            if max(float(np.abs(want.value).max(initial=0)), want.scale) > float(kind.max):
                continue
            atol = 32 * float(kind.eps) * want.scale + want.lost + 2 * float(kind.tiny)
            if not (np.abs(result - want.value) <= atol).all():
                raise WrongError(f"{name} of a group is not that of its particles", want.value, result)


class _Sum(NamedTuple):
    """value: the correct result. scale: the size of the terms of the sum. lost: an additional error that is allowed."""

    value: Any
    scale: float
    lost: float = 0.0


def _moments(values: dict[str, Any], members: np.ndarray, sides: np.ndarray) -> dict[str, _Sum]:
    """Return the properties of a group in extended precision."""
    wide = np.longdouble
    pos = values["pos"][members].astype(wide)
    mass = values["mass"]
    weight = (
        np.ones(len(members), wide)
        if mass is None
        else np.broadcast_to(np.asarray(mass, wide), len(values["pos"]))[members]
    )
    built: dict[str, _Sum] = {}
    if mass is not None:
        built["mass"] = _Sum(weight.sum(), float(weight.sum()))
    share = weight / weight.sum() if weight.sum() > 0 else np.full(len(members), 1 / wide(len(members)))
    x = pos - pos[0]
    x -= np.where(sides > 0, sides * np.rint(x / np.where(sides > 0, sides, 1)), 0)
    width = float(np.abs(x).max())
    if ((sides > 0) & (np.abs(x).max(axis=0) > 0.24 * sides)).any():
        return built  # groups wider than half the box have no unique centre
    x -= share @ x
    place = float(np.abs(pos).max()) + float(sides.max())
    kind = values["pos"].dtype if outside(values["pos"][members], sides) else np.float64
    lost = 16 * float(np.finfo(kind).eps) * place
    built["com_inertia_radius"] = _Sum(np.sqrt(share @ (x**2).sum(axis=1)), width, lost)
    built["max_radius"] = _Sum(np.sqrt((x**2).sum(axis=1).max()), width, lost)
    return built | _motion(values, members, share, x, _Sum(0, width, lost))


def _motion(values: dict[str, Any], members: np.ndarray, share: Any, x: Any, width: _Sum) -> dict[str, _Sum]:
    if values["vel"] is None:
        return {}
    vel = values["vel"][members].astype(np.longdouble)
    mean = share @ vel
    speed = float(np.abs(vel).max())
    dispersion = np.sqrt(share @ ((vel - mean) ** 2).sum(axis=1) / vel.shape[1])
    built = {"com_vel": _Sum(mean, speed), "vel_dispersion": _Sum(dispersion, speed)}
    if vel.shape[1] > 1:
        rotation = share @ oracles._cross(x, vel - mean)
        built["angular_momentum"] = _Sum(rotation, width.scale * speed, width.lost * speed)
    return built
