"""Groups in phase space of hostile sets, judged by all pairs of positions and scaled velocities."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import oracles
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import distances, may_refuse, unsound
from .fof import check_partition, linking_length, partitions
from .inputs import pick

_PART = "jz.data.ParticleData(pos=pos, vel=vel, num=num)"
_OPTIONS = "rlink, vlink, boxsize=boxsize, group_rlink=group_rlink"
_CALLS = {
    "eager": f"label = jz.phase_space_labels({_PART}, {_OPTIONS})",
    "jit": f"label = jz.phase_space_labels.jit({_PART}, {_OPTIONS})",
}


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape."""
    x64, dtype = inputs.mode(random)
    rows, dims = int(pick(random, 0, 1, 2, 25, 64, 64, 130)), int(random.integers(1, 5))
    method, adaptive = pick(random, "eager", "jit", "jit"), bool(random.random() < 0.5)
    for _ in inputs.cases(method):
        values = _values(random, rows, dims, dtype, adaptive)
        if random.random() < 0.08:
            inputs.spoil_position(random, values)
        elif random.random() < 0.05 and values["num"]:
            values["vel"][random.integers(values["num"]), 0] = pick(random, np.nan, np.inf)
        yield Case(_CALLS[method], values, _Judge(x64), {"num": ("pos", "vel")}, "", x64)


def _values(random: np.random.Generator, rows: int, dims: int, dtype: Any, adaptive: bool) -> dict[str, Any]:
    """Return the arguments. Velocities and positions have linking lengths of one size, in any unit."""
    points = inputs.points(random, rows, dims, dtype)
    while not 1e-25 < points.length < 1e25:
        points = inputs.points(random, rows, dims, dtype)
    used = points.pos[: points.num]
    rlink = linking_length(random, used, points.sides, points.length)
    rlink = rlink if 1e-25 < rlink < 1e25 else 0.3 * points.length
    vlink = float(rlink * 10 ** random.uniform(-2, 2))
    vel = vlink * random.standard_normal((rows, dims)) * float(pick(random, 0.01, 0.3, 1, 10))
    if random.random() < 0.3:
        vel = np.floor(2 * vel / vlink) / 2 * vlink  # many equal differences, some equal to the linking length
    if random.random() < 0.2:
        vel = np.broadcast_to(vel[:1], vel.shape).copy() if rows else vel
    values = points.arguments(random) | {"vel": vel.astype(dtype), "rlink": rlink, "vlink": vlink, "group_rlink": None}
    if adaptive:
        values |= {"vlink": float(pick(random, 0.3, 1, 3)), "group_rlink": rlink * float(pick(random, 1, 1.5, 4))}
    return values


class _Judge:
    def __init__(self, x64: bool) -> None:
        self.x64 = x64

    def __call__(self, values: dict[str, Any], outcome: Outcome) -> None:
        num, rlink = values["num"], values["rlink"]
        pos, vel = values["pos"][:num], values["vel"][:num]
        sides = inputs.sides(values["boxsize"], values["pos"].shape[1])
        reason = unsound(pos, sides) or (None if np.isfinite(vel).all() else "a velocity is not finite")
        if expect_error(outcome, reason, may_refuse(pos, np.append(sides, rlink), self.x64)):
            return
        label = np.asarray(outcome["label"])
        if not np.array_equal(label[num:], np.arange(num, len(label))):
            raise WrongError("rows beyond num are not groups of their own", np.arange(num, len(label)), label[num:])
        label = label[:num]
        if not np.array_equal(label, oracles.smallest_members(label)):
            raise WrongError("a label is not the smallest row of its group", oracles.smallest_members(label), label)
        if values["group_rlink"] is None:
            wide = np.float64 if self.x64 else np.float32
            scaled = vel * vel.dtype.type(wide(rlink) / wide(values["vlink"]))
            both = np.concatenate([pos, scaled], axis=1), np.append(sides, np.zeros_like(sides))
            check_partition(label, *partitions(both[0], rlink, both[1]))
        else:
            self._check_adaptive(values, pos, vel, sides, label)

    def _check_adaptive(
        self, values: dict[str, Any], pos: np.ndarray, vel: np.ndarray, sides: np.ndarray, label: np.ndarray
    ) -> None:
        certain_labels, maximum = partitions(pos, values["group_rlink"], sides)
        if (maximum[label] != maximum).any():
            raise WrongError("particles of different groups in space are joined", maximum, label)
        if not np.array_equal(certain_labels, maximum):
            return  # the groups in space depend on rounding
        vel = vel.astype(np.longdouble)
        surely, possibly = np.eye(len(pos), dtype=bool), np.eye(len(pos), dtype=bool)
        for first in np.unique(certain_labels):
            rows = np.flatnonzero(certain_labels == first)
            spread = vel[rows] - vel[rows].mean(axis=0)
            dispersion = np.sqrt((spread**2).mean())
            # Velocities that are equal up to rounding have no dispersion, or one of rounding errors.
            if dispersion <= 1e-4 * np.abs(vel[rows]).max() and (vel[rows] != vel[rows[0]]).any():
                return
            separation = distances(pos[rows], pos[rows], sides) / values["rlink"]
            speed = distances(vel[rows], vel[rows], np.zeros_like(sides))
            equal = speed == 0
            measure = separation**2 + np.where(equal, 0, (speed / (values["vlink"] * (dispersion or 1))) ** 2)
            margin = 1e-3 if pos.dtype == np.float32 else 1e-8
            surely[np.ix_(rows, rows)] = measure < 1 - margin
            possibly[np.ix_(rows, rows)] = measure < 1 + margin
        if len(pos):
            check_partition(label, _groups(surely), _groups(possibly))


def _groups(linked: np.ndarray) -> np.ndarray:
    return oracles.smallest_members(connected_components(coo_array(linked), directed=False)[1])
