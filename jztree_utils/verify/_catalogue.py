"""The check of a catalogue, and the properties of a set of particles, which spheres share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jztree.halos import DEFINITIONS

from ._points import ULPS, Points, Verification, integers_of, sample_rows

_AXES_OF_VECTOR = ((1, 2), (2, 0), (0, 1))  # the axes of the components of a vector product


class Property(NamedTuple):
    """A property of a set of particles.

    Attributes:
        name: Its column in a catalogue.
        words: Its name in sentences.
        truth: Its value.
        size: The size of the summands, which rounding errors are proportional to.
    """

    name: str
    words: str
    truth: np.ndarray
    size: float


def catalogue(
    grouped: Any, cata: Any, *, boxsize: ArrayLike | None = None, samples: int | None = None, seed: int = 0
) -> Verification:
    """Check all columns of a catalogue of `jztree.friends_of_friends`.

    Args:
        grouped: The particles in group order, on one device.
        cata: The catalogue.
        boxsize: The box of the groups.
        samples: Number of groups to check. None means as many as take some seconds.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [9.0, 9.0]], np.float32)
        >>> verify.catalogue(*jz.friends_of_friends(pos, 1.5, npart_min=3)).passed
        True
    """
    points, ngroups = Points(grouped, boxsize), int(cata.ngroups)
    count, offset, faults = rows_of_groups(points, cata)
    if faults:
        return Verification("catalogue", ngroups, 0, faults)
    sample = sample_rows(ngroups, max(int(count.max(initial=1)), 1), samples, seed)
    means = getattr(cata, "means", None) or {}
    wrong, checked = [], {"count": None, "offset": None}
    for group in sample:
        rows = slice(offset[group], offset[group] + count[group])
        for quantity in properties(points, grouped, rows, tuple(means)):
            column = means.get(quantity.name, getattr(cata, quantity.name, None))
            if column is None:
                continue
            checked[quantity.name] = None
            if differs(points, quantity, np.asarray(column[group])):
                wrong.append(f"group {group} has the {in_words(quantity, column[group])}")
    held = [name for name in (*DEFINITIONS, *means) if means.get(name, getattr(cata, name, None)) is not None]
    missing = [name for name in held if name not in checked]
    note = f"  {', '.join(missing)} were not checked, because the particles lack their properties"
    notes = (note,) if missing and len(sample) else ()
    return Verification("catalogue", ngroups, len(sample), tuple(wrong), notes, tuple(checked))


def rows_of_groups(points: Points, cata: Any) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return the counts and the first rows of the groups of a catalogue, and a sentence if they are impossible."""
    ngroups = int(cata.ngroups)
    count, offset = (integers_of(getattr(cata, name), name, (None,))[:ngroups] for name in ("count", "offset"))
    if len(count) < ngroups:
        return count, offset, (f"{ngroups} groups have only {len(count)} rows",)
    order = np.argsort(offset, kind="stable")
    ends = np.append(offset[order][1:], len(points))  # no particle is in two groups
    wrong = order[(count[order] < 1) | (offset[order] < 0) | (offset[order] + count[order] > ends)]
    if not len(wrong):
        return count, offset, ()
    rows = f"{offset[wrong[0]]} to {(offset + count)[wrong[0]]}"
    return count, offset, (f"group {wrong[0]} has the rows {rows}, which are not its own",)


def differs(points: Points, quantity: Property, reported: np.ndarray) -> bool:
    """Return whether a reported value is not the true one, rounded to its dtype."""
    difference, largest = reported.astype(np.float64) - quantity.truth, np.abs(quantity.truth).max()
    if quantity.name == "com_pos":
        difference, largest = points.nearest(difference[None]), points.scale
    tolerance = ULPS * (np.finfo(reported.dtype).eps * largest + np.finfo(np.float64).eps * quantity.size)
    return not (np.abs(difference) <= tolerance).all()


def in_words(quantity: Property, reported: Any) -> str:
    """Describe a wrong value."""
    return f"{quantity.words} {np.asarray(reported).tolist()}, but its particles have {quantity.truth.tolist()}"


def properties(
    points: Points, part: Any, rows: Any, means: tuple[str, ...] = (), origin: np.ndarray | None = None
) -> Iterator[Property]:
    """Yield the properties of a set of particles.

    Args:
        points: All particles.
        part: Their properties.
        rows: The set, a slice or an array.
        means: Names of further columns.
        origin: The place whose nearest images count; None means the first particle.
    """
    weight = weights_of(part, len(points))[rows]
    shares = weight / weight.sum() if weight.sum() > 0 else np.full(len(weight), 1 / len(weight))
    first = points.pos[rows][0] if origin is None else origin
    offsets = points.offsets(first, rows)
    centre = shares @ offsets
    offsets = offsets - centre
    squares = (offsets**2).sum(axis=1)
    spread = shares @ squares
    tensor = (offsets.T * shares) @ offsets / (spread or 1.0)
    yield Property("mass", "mass", weight.sum(), 0.0)
    yield Property("com_pos", "centre", first + centre, points.scale)
    yield Property("com_inertia_radius", "radius of inertia", np.sqrt(spread), points.scale)
    yield Property("max_radius", "largest distance", np.sqrt(squares.max()), points.scale)
    yield Property("shape_tensor", "shape tensor", tensor, points.scale / (np.sqrt(spread) or 1.0))
    if (column := getattr(part, "vel", None)) is not None:
        vel = np.asarray(column, np.float64)[rows]
        mean, fastest = shares @ vel, float(np.abs(vel).max())
        dispersion = np.sqrt(shares @ ((vel - mean) ** 2).mean(axis=1))
        yield Property("com_vel", "velocity", mean, fastest)
        yield Property("vel_dispersion", "velocity dispersion", dispersion, fastest)
        if points.dims > 1:
            rotation = shares @ _vector_products(offsets, vel - mean)
            yield Property("angular_momentum", "angular momentum", rotation, points.scale * fastest)
    columns = {name: getattr(part, name) for name in means}
    if (zplus1 := getattr(part, "zplus1", None)) is not None:
        columns["scale_factor"] = 1 / np.asarray(zplus1, np.float64)
    if (column := getattr(part, "v_rad", None)) is not None:
        columns["v_rad"] = column
    for name, column in columns.items():
        values = np.asarray(column, np.float64)[rows]
        yield Property(name, f"mean {name}", shares @ values, float(np.abs(values).max()))


def weights_of(part: Any, num: int) -> np.ndarray:
    """Return the masses of ``num`` particles in float64; 1 without masses."""
    mass = getattr(part, "mass", None)
    weight = np.asarray(1.0 if mass is None else mass, np.float64)
    return weight[:num] if weight.ndim else np.full(num, weight)


def _vector_products(offsets: np.ndarray, vel: np.ndarray) -> np.ndarray:
    """Return the components of x cross v, ``(n, d (d - 1) / 2)``, in the order of `jztree.data.FofCatalogue`."""
    dims = offsets.shape[1]
    pairs = _AXES_OF_VECTOR if dims == 3 else itertools.combinations(range(dims), 2)
    return np.stack([offsets[:, i] * vel[:, j] - offsets[:, j] * vel[:, i] for i, j in pairs], axis=1)
