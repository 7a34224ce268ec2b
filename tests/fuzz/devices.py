"""kNN and groups over devices, some without particles, judged like results of one device and compared with them."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import oracles

from . import fof, inputs, knn
from .case import Case, Outcome, WrongError, expect_error
from .distances import groups_may_vanish, may_refuse, unsound
from .inputs import pick

_CASES = 40  # of one compiled function
ROWS = 12  # capacity of a device
DEAL = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
mesh = jax.sharding.Mesh(np.array(jax.devices()[:{ndev}]), ("ranks",))
def deal(rows, counts):
    filler = dict(f=np.nan, i=-7).get(rows.dtype.kind, 7)
    dealt = np.full(({ndev}, {rows}, *rows.shape[1:]), filler, rows.dtype)
    for rank, end in enumerate(np.cumsum(counts)):
        dealt[rank, : counts[rank]] = rows[end - counts[rank] : end]
    return dealt
def join(dealt, counts):
    return np.concatenate([np.asarray(dealt)[rank, : counts[rank]] for rank in range({ndev})])
"""
_KNN = "search = jz.knn.knn.smap(mesh, jit=True)\n"
_KNN_LINES = """
part = jz.data.Pos(pos=deal(pos, counts), num=np.array(counts, np.int32))
rad, idx = search(part, {k}, boxsize=boxsize{query})
rad, idx = join(rad, {asked}), join(idx, {asked})
one_rad, one_idx = jz.knn.knn.jit(pos, {k}, boxsize=boxsize{one_query})
"""
_QUERY = ", part_query=jz.data.Pos(pos=deal(query, query_counts), num=np.array(query_counts, np.int32))"
_FOF = "label = jz.fof.fof_labels.smap(mesh, jit=True)\n"
_FOF_LINES = """
ids = np.arange(len(pos), dtype=np.int32)
part = jz.data.ParticleData(pos=deal(pos, counts), id=deal(ids, counts), num=np.array(counts, np.int32))
partz, igroup = label(part, deal(rlink, counts) if np.ndim(rlink) else rlink, boxsize)
rows, igroup = join(partz.id, partz.num), join(igroup, partz.num)
"""
_CATALOGUE = "find = jz.fof.fof_and_catalogue.smap(mesh, jit=True)\n"
_CATALOGUE_LINES = """
ids = np.arange(len(pos), dtype=np.int32)
part = jz.data.ParticleData(pos=deal(pos, counts), id=deal(ids, counts), num=np.array(counts, np.int32))
cfg = jz.config.FofConfig(catalogue=jz.config.CatalogueConfig(npart_min=2))
grouped, cata = find(part, rlink, boxsize, cfg)
rows, counted = join(grouped.id, grouped.num), jz.data.squeeze_catalogue(cata, offset_mode="global", nparts=grouped.num)
_, one = jz.fof.fof_and_catalogue.jit(pos, rlink, boxsize, cfg)
one = jz.data.squeeze_catalogue(one)
"""


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield many sets for one compiled function."""
    x64, dtype = inputs.mode(random)
    ndev, dims = int(pick(random, 2, 3, 4, 5, 8)), int(random.integers(1, 4))
    kind = pick(random, "knn", "knn", "fof", "catalogue")
    deal = DEAL.format(ndev=ndev, rows=ROWS)
    k, queries = int(pick(random, 1, 4, 9)), bool(random.random() < 0.5)
    per_row = kind == "fof" and bool(random.random() < 0.5)
    for _ in range(_CASES):
        counts = dealt_counts(random, ndev)
        # Use the values of fof, with all rows in use; kNN does not use the linking length.
        values = fof.set_of(random, x64, dtype, sum(counts), dims, per_row=per_row)
        values["pos"] = np.where(np.isfinite(values["pos"]), values["pos"], 0).astype(dtype)
        values |= {"counts": counts, "num": sum(counts)}
        rows = {"counts": ("pos", "rlink") if per_row else ("pos",)}
        if kind == "knn":
            del values["rlink"]
            if queries:
                values["query_counts"] = dealt_counts(random, ndev)
                sides = inputs.sides(values["boxsize"], dims)
                length = float(sides.max()) or 1.0
                values["query"] = inputs.positions(random, sum(values["query_counts"]), dtype, sides * 2, length)
                rows["query_counts"] = ("query",)
            lines = _KNN_LINES.format(
                k=k,
                query=_QUERY if queries else "",
                one_query=", part_query=query" if queries else "",
                asked="query_counts" if queries else "counts",
            )
            yield Case(lines, values, partial(_judge_neighbours, k, x64), rows, deal + _KNN, x64)
        elif kind == "fof":
            yield Case(_FOF_LINES, values, partial(_judge_labels, x64), rows, deal + _FOF, x64)
        else:
            yield Case(_CATALOGUE_LINES, values, partial(_judge_catalogue, x64), rows, deal + _CATALOGUE, x64)


def dealt_counts(random: np.random.Generator, ndev: int) -> list[int]:
    """Return the number of rows of each device; some have none, some are full."""
    kind = random.random()
    if kind < 0.2:
        return [0] * (ndev - 1) + [int(random.integers(0, ROWS + 1))]
    row_limit = ROWS + 1 if kind < 0.7 else 3
    return [int(n) for n in random.integers(0, row_limit, ndev) * (random.random(ndev) < 0.7)]


def _judge_neighbours(k: int, x64: bool, values: dict[str, Any], outcome: Outcome) -> None:
    pos, query = values["pos"], values.get("query", values["pos"])
    sides = inputs.sides(values["boxsize"], pos.shape[1])
    everything = np.concatenate([pos, query])
    must = unsound(everything, sides) or ("k is larger than num" if k > len(pos) else None)
    if expect_error(outcome, must, may_refuse(everything, sides, x64)):
        return
    result = np.asarray(outcome["rad"]), np.asarray(outcome["idx"])
    knn.check_neighbours(pos, query, sides, result, "query" not in values)
    for name, column in zip(("rad", "idx"), result, strict=True):
        if not np.array_equal(column, outcome[f"one_{name}"]):
            raise WrongError(f"{name} depends on the number of devices", np.asarray(outcome[f"one_{name}"]), column)


def _judge_labels(x64: bool, values: dict[str, Any], outcome: Outcome) -> None:
    if expect_error(outcome, *fof.refusal(values, x64)):
        return
    rows, label = np.asarray(outcome["rows"]), np.asarray(outcome["igroup"])
    sides = inputs.sides(values["boxsize"], values["pos"].shape[1])
    fof.check_order(values["pos"], values["pos"][rows], rows, len(rows), sides, "z")
    if not np.array_equal(label, oracles.smallest_members(label)):
        raise WrongError("a label is not the smallest row of its group", oracles.smallest_members(label), label)
    rlink = values["rlink"][rows] if np.ndim(values["rlink"]) else values["rlink"]
    fof.check_partition(label, *fof.partitions(values["pos"][rows], rlink, sides))


def _judge_catalogue(x64: bool, values: dict[str, Any], outcome: Outcome) -> None:
    must, may = fof.refusal(values, x64)
    if expect_error(outcome, must, may or groups_may_vanish(values["pos"])):
        return
    rows = np.asarray(outcome["rows"])
    if not np.array_equal(np.sort(rows), np.arange(len(values["pos"]))):
        raise WrongError("rows that came back are not those that were given", len(values["pos"]), rows)
    cata, single_cata = outcome["counted"], outcome["one"]
    for name in ("count", "com_pos", "com_inertia_radius", "max_radius"):
        several, single = np.asarray(getattr(cata, name)), np.asarray(getattr(single_cata, name))
        eps = float(np.finfo(values["pos"].dtype).eps)
        scale = float(np.abs(values["pos"]).max(initial=0)) + float(np.max(values["boxsize"] or 0.0))
        if several.shape != single.shape or not (np.abs(several - single) <= 8 * eps * scale * (name != "count")).all():
            raise WrongError(f"{name} depends on the number of devices", single, several)
    sides = inputs.sides(values["boxsize"], values["pos"].shape[1])
    surely, possibly = fof.partitions(values["pos"], float(values["rlink"]), sides)
    if np.array_equal(surely, possibly):
        _check_runs(cata, rows, possibly)


def _check_runs(cata: Any, rows: np.ndarray, label: np.ndarray) -> None:
    for first, count in zip(cata.offset, cata.count, strict=True):
        members = rows[first : first + count]
        if len(set(label[members])) != 1 or (label == label[members[0]]).sum() != count:
            raise WrongError("a row of the catalogue is not one whole group", label[rows], (first, count))
