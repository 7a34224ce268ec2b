"""Subhaloes of hostile sets, judged by sums over all pairs of their members, and by the order of the table."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from substructure.subfind import World, energies_of

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .inputs import pick

_CASES = 12  # of one shape
_LINES = """part = jz.data.ParticleData(pos=pos, vel=vel, mass=mass, num=num)
grouped, cata = jz.friends_of_friends.jit(part, rlink, boxsize=boxsize, npart_min=2)
result = jz.subhaloes{way}(grouped, cata, gravity, softening=softening, boxsize=boxsize, hubble=hubble,
    scale_factor=0.5, min_bound={min_bound}, neighbours={neighbours}, candidates={candidates!r})"""


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape."""
    x64, dtype = inputs.mode(random)
    rows, dims = int(pick(random, 0, 1, 2, 25, 90, 90, 200)), int(pick(random, 1, 2, 3, 3, 3))
    way, min_bound = pick(random, ".jit", ".jit", ""), int(pick(random, 1, 2, 5, 20))
    neighbours, candidates = int(pick(random, 2, 5, 32, 300)), pick(random, "density", "phase_space")
    lines = _LINES.format(way=way, min_bound=min_bound, neighbours=neighbours, candidates=candidates)
    for _ in range(_CASES if way else _CASES // 4):
        values = _set(random, rows, dims, dtype)
        if random.random() < 0.1 and rows:
            values["vel"][random.integers(rows)] = np.nan
        yield Case(lines, values, partial(_judge, min_bound), {"num": ("pos", "vel", "mass")}, "", x64)


def _set(random: np.random.Generator, rows: int, dims: int, dtype: Any) -> dict[str, Any]:
    """Return clumps in any units, some with particles at one place, of any mass."""
    length, speed, weight = (10.0 ** int(pick(random, 0, 0, -6, 6)) for _ in range(3))
    centres = random.random((3, dims))
    pos = centres[random.integers(0, 3, rows)] + random.normal(0, 0.03, (rows, dims))
    same = random.random(rows) < float(pick(random, 0, 0, 0.3, 1))
    pos[same] = centres[0]
    mass = random.lognormal(0, 1, rows) * (random.random(rows) < float(pick(random, 1, 1, 0.5, 0)))
    heat = float(pick(random, 0, 0.1, 1, 5))
    return {
        "pos": (length * (pos % 1)).astype(dtype),
        "vel": (speed * (heat * random.standard_normal((rows, dims)) + 10 * random.random(dims))).astype(dtype),
        "mass": (weight * mass).astype(dtype),
        "num": int(pick(random, rows, rows, random.integers(0, rows + 1))),
        "boxsize": pick(random, None, None, length),
        "rlink": length * float(pick(random, 0.03, 0.1, 0.4)),
        "softening": length * float(pick(random, 0, 1e-3, 0.05)),
        "gravity": length * speed**2 / weight / max(rows, 1),
        "hubble": speed / length * float(pick(random, 0, 0, 1)),
    }


def _judge(min_bound: int, values: dict[str, Any], outcome: Outcome) -> None:
    num = values["num"]
    reason = "a velocity is NaN" if np.isnan(values["vel"][:num]).any() else None
    if expect_error(outcome, reason):
        return
    result, cata = outcome["result"], outcome["cata"]
    label, energy, table = np.asarray(result.subhalo), np.asarray(result.energy), result.columns()
    _same(
        "the number of bound particles is wrong",
        np.bincount(label + 1, minlength=len(table["count"]) + 1)[1:],
        table["count"],
    )
    if (table["count"] < min_bound).any() or (label[num:] >= 0).any() or (energy[label < 0] != 0).any():
        raise WrongError("a subhalo has too few particles, or particles that do not exist", "", table["count"])
    _check_order(table)
    pos, vel, mass = (
        np.asarray(column) for column in (outcome["grouped"].pos, outcome["grouped"].vel, outcome["grouped"].mass)
    )
    constants = {name: values[name] for name in ("gravity", "softening", "hubble")}
    world = World(pos, vel, mass, np.zeros(0), **constants, scale_factor=0.5)
    for number in range(len(table["count"])):
        rows = np.flatnonzero(label == number)
        begin, group = (np.asarray(cata.offset)[table["group"][number]], np.asarray(cata.count)[table["group"][number]])
        if rows[0] < begin or rows[-1] >= begin + group:
            raise WrongError("a subhalo has particles of another group", (begin, group), rows)
        if not (energy[rows] < 0).all() or energy[table["most_bound"][number]] != energy[rows].min():
            raise WrongError("a particle is not bound, or the most bound one is wrong", "", energy[rows])
        if values["boxsize"] is None:
            _check_energies(world, rows, energy[rows], table["vel"][number])


def _check_energies(world: World, rows: np.ndarray, energy: np.ndarray, vel: np.ndarray) -> None:
    """Compare energies with sums over all pairs, unless equal potentials leave the centre open."""
    expected, _ = energies_of(world, rows, vel.astype(float))
    still = World(*world[:3], world.density, *world[4:7], hubble=0.0, scale_factor=world.scale_factor)
    kinetic = ((world.vel[rows] - vel.astype(float)) ** 2).sum(axis=1) / 2
    depth = np.abs(energies_of(still, rows, vel.astype(float))[0] - kinetic)
    tolerance = 3e-3 * depth + 1e-5 * kinetic + 1e-6 * (world.vel[rows].astype(float) ** 2).sum(axis=1)
    if world.hubble == 0 and (np.abs(energy - expected) > tolerance).any():
        raise WrongError("an energy is wrong", expected, energy)


def _check_order(table: dict[str, np.ndarray]) -> None:
    group, parent, depth, count = (table[name] for name in ("group", "parent", "depth", "count"))
    inner = parent >= 0
    expected = np.where(inner, depth[parent] + 1 if len(depth) else depth, 0)
    _same("the depth of a subhalo is wrong", expected, depth)
    _same("the parent is in another group", group[parent[inner]], group[inner])
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    if (np.diff(group) < 0).any():
        raise WrongError("the subhaloes are not in the order of the groups", "", group)
    for begin, end in zip(starts, np.append(starts[1:], len(group))[: len(starts)], strict=True):
        others = count[begin + 1 : end]
        if (np.diff(others) > 0).any():
            raise WrongError("the subhaloes of a group are not in the order of their counts", "", count[begin:end])


def _same(kind: str, expected: np.ndarray, result: np.ndarray) -> None:
    if not np.array_equal(expected, result):
        raise WrongError(kind, expected, result)
