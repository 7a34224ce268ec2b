"""Friends-of-friends labels of hostile sets, judged by all pairs within the linking length."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import oracles
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import distances, may_refuse, on_lattice, unsound, within
from .inputs import pick

_PART = "jz.data.ParticleData(pos=pos, id=np.arange(len(pos), dtype=np.int32), num=num)"
_CALLS = {
    "eager": "partz, igroup = jz.fof.fof_labels({part}, rlink, boxsize, output_order={order!r})",
    "jit": "partz, igroup = jz.fof.fof_labels.jit({part}, rlink, boxsize, output_order={order!r})",
    "traced": "partz, igroup = label({part}, rlink, boxsize)",
    "sorted": "sortedz, th = jz.tree.zsort_and_tree.jit({part}, boxsize=boxsize)\n"
    "reach = rlink[np.asarray(sortedz.id)] if np.ndim(rlink) else rlink\n"
    "partz, igroup = jz.fof.fof_labels.jit(sortedz, reach, boxsize, th=th)",
}
_TRACED = "label = jax.jit(lambda part, r, box: jz.fof.fof_labels(part, r, box, output_order={order!r}))"


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape."""
    x64, dtype = inputs.mode(random)
    rows, dims = int(pick(random, 0, 1, 2, 25, 64, 64, 130)), int(random.integers(1, 9))
    method = pick(random, "eager", "jit", "jit", "traced", "sorted")
    order = pick(random, "z", "input") if method != "sorted" else "z"
    lines = _CALLS[method].format(part=_PART, order=order)
    setup = _TRACED.format(order=order) if method == "traced" else ""
    per_row = bool(random.random() < 0.4)
    for _ in inputs.cases(method):
        values = set_of(random, x64, dtype, rows, dims, method == "traced", per_row)
        yield Case(
            lines, values, partial(_judge, order, x64), {"num": ("pos", "rlink") if per_row else ("pos",)}, setup, x64
        )


def set_of(
    random: np.random.Generator,
    x64: bool,
    dtype: Any,
    rows: int,
    dims: int,
    traced: bool = False,
    per_row: bool = False,
) -> dict[str, Any]:
    """Return positions, their number, a box and linking lengths, which sometimes must be refused.

    per_row: whether every row has its own length.
    """
    kind = np.float64 if x64 else np.float32
    points = inputs.points(random, rows, dims, dtype, kind if traced else None)
    rlink: Any = linking_length(random, points.pos[: points.num], points.sides, points.length)
    if per_row:
        rlink = _lengths(random, points, rows, rlink)
    if traced:
        with np.errstate(over="ignore", under="ignore"):
            rlink = kind(rlink)
    values = points.arguments(random) | {"rlink": rlink}
    if random.random() < 0.08:
        _spoil(random, values)
    return values


def _lengths(random: np.random.Generator, points: Any, rows: int, length: float) -> np.ndarray:
    """Return a linking length per row. The means of many pairs are exactly ``length``."""
    kind = random.random()
    if kind < 0.3:  # some of two lengths whose mean is the given one, and a bit less
        part = length * float(pick(random, 0.0, 0.25, 0.5, 1.0))
        both = length + np.where(random.random(rows) < 0.5, part, -part)
        return np.where(random.random(rows) < 0.2, np.nextafter(both, 0), both)
    if kind < 0.6:
        used = points.pos[: points.num]
        sample = [linking_length(random, used, points.sides, points.length) for _ in range(3)]
        return random.choice([*sample, length, 0.0], rows)
    return np.asarray(length * 10 ** random.uniform(-3, 1, rows))


def linking_length(random: np.random.Generator, pos: np.ndarray, sides: np.ndarray, length: float) -> float:
    """Return a critical linking length for these positions: often exactly the distance of a pair, or near it."""
    side = float(sides[sides > 0].min(initial=np.inf))
    kind = random.random()
    if kind < 0.5 and len(pos) > 1 and np.isfinite(pos).all():
        a, b = random.integers(len(pos), size=2)
        rlink = float(distances(pos[a : a + 1], pos[b : b + 1], sides)[0, 0])
        for _ in range(int(random.integers(0, 3))):
            rlink = float(np.nextafter(rlink, float(pick(random, 0.0, np.inf))))
    elif kind < 0.9:
        rlink = length * float(pick(random, 0.01, 0.1, 0.2, 0.25, 0.5, random.random()))
    else:
        # Above half a periodic box, some image of a particle is within reach exactly if its nearest image is.
        rlink = float(pick(random, 0.0, *(np.array([0.5, 0.75, 1, 3]) * (side if np.isfinite(side) else length))))
    return rlink


def _spoil(random: np.random.Generator, values: dict[str, Any]) -> None:
    if random.random() < 0.4:
        bad = pick(random, -1.0, np.nan, np.inf)
        if np.ndim(values["rlink"]):
            values["rlink"][random.integers(len(values["rlink"]), size=min(2, len(values["rlink"])))] = bad
        else:
            values["rlink"] = type(values["rlink"])(bad)
    else:
        inputs.spoil_position(random, values)


def refusal(values: dict[str, Any], x64: bool) -> tuple[str | None, str | None]:
    """Return why a call must be refused, and why it may be refused."""
    pos, rlink = values["pos"][: values["num"]], np.float64(values["rlink"])
    rlink = rlink[: values["num"]] if rlink.ndim else rlink
    sides = inputs.sides(values["boxsize"], pos.shape[1])
    must = unsound(pos, sides)
    if not np.all(np.isfinite(rlink) & (rlink >= 0)):
        must = must or "the linking length is negative or not finite"
    return must, may_refuse(pos, np.append(sides, rlink), x64)


def _judge(order: str, x64: bool, values: dict[str, Any], outcome: Outcome) -> None:
    if expect_error(outcome, *refusal(values, x64)):
        return
    num = values["num"]
    pos, sides = values["pos"][:num], inputs.sides(values["boxsize"], values["pos"].shape[1])
    rows, label = np.asarray(outcome["partz"].id), np.asarray(outcome["igroup"])
    check_order(values["pos"], np.asarray(outcome["partz"].pos), rows, num, sides, order)
    if not np.array_equal(label[num:], np.arange(num, len(label))):
        raise WrongError("rows beyond num are not groups of their own", np.arange(num, len(label)), label[num:])
    label = label[:num]
    if not np.array_equal(label, oracles.smallest_members(label)):
        raise WrongError("a label is not the smallest row of its group", oracles.smallest_members(label), label)
    rlink = values["rlink"]
    surely, possibly = partitions(pos[rows[:num]], rlink[rows[:num]] if np.ndim(rlink) else rlink, sides)
    check_partition(label, surely, possibly)


def check_order(given: np.ndarray, pos: np.ndarray, rows: np.ndarray, num: int, sides: np.ndarray, order: str) -> None:
    """Check that positions were returned with their rows, in the requested order."""
    if not np.array_equal(np.sort(rows[:num]), np.arange(num)):
        raise WrongError("rows that came back are not those that were given", np.arange(num), rows[:num])
    if pos[:num].tobytes() != given[rows[:num]].tobytes():
        raise WrongError("positions differ from the positions of their rows", given[rows[:num]], pos[:num])
    if order == "input" and not np.array_equal(rows, np.arange(len(rows))):
        raise WrongError("rows are not in input order", np.arange(len(rows)), rows)
    if order == "z" and 0 < num <= 64 and on_lattice(given[:num], sides):
        expected = oracles.z_order(given[:num], sides)
        if not np.array_equal(rows[:num], expected):
            raise WrongError("rows are not in z-order", expected, rows[:num])


def partitions(pos: np.ndarray, rlink: Any, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest member of each row's group, with undecided pairs not linked, and with them linked.

    rlink: one linking length, or one per row.
    """
    length = np.broadcast_to(np.float64(rlink), len(pos))
    surely, possibly = within(pos, pos, (length[:, None] + length) / 2, sides)
    return _groups(surely), _groups(possibly)


def _groups(linked: np.ndarray) -> np.ndarray:
    return (
        oracles.smallest_members(connected_components(coo_array(linked), directed=False)[1])
        if len(linked)
        else np.zeros(0, int)
    )


def check_partition(label: np.ndarray, surely: np.ndarray, possibly: np.ndarray) -> None:
    """Check that groups are unions of sets with sure links, and parts of sets with all possible links."""
    if (label[surely] != label).any():
        raise WrongError("particles that are linked are in different groups", possibly, label)
    if (possibly[label] != possibly).any():
        raise WrongError("particles that are not linked are in one group", possibly, label)
