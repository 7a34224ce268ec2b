"""Links between subhaloes of hostile outputs, on one device and over devices, judged by matching with dictionaries."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from links.test_descendants import slow_links

from jztree.links import SubhaloMembers

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .devices import DEAL
from .inputs import pick

_CASES = 30  # of one shape
_LINES = """
first = jz.links.SubhaloMembers({ids}, {subhalo}, {energy}, {num})
second = jz.links.SubhaloMembers({later_ids}, {later_subhalo}, None, {later_num})
links = find(first, second, {number}, weights="{weights}")
subhalo, score = np.ravel(links.subhalo), np.ravel(links.score)
"""
_ON_ONE = {name: name for name in ("ids", "subhalo", "energy", "num", "later_ids", "later_subhalo", "later_num")}
_DEALT = {name: f"deal({name}, {count})" for name, count in (
    ("ids", "counts"), ("subhalo", "counts"), ("energy", "counts"),
    ("later_ids", "later_counts"), ("later_subhalo", "later_counts"))}  # fmt: skip
_DEALT |= {"num": "np.array(counts, np.int32)", "later_num": "np.array(later_counts, np.int32)"}


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield pairs of outputs of one shape."""
    x64, kind = inputs.mode(random)
    rows, later_rows = (int(pick(random, 0, 1, 2, 9, 40, 150)) for _ in range(2))
    number, ndev = int(pick(random, 0, 1, 2, 7, 60)), int(pick(random, 1, 1, 2, 3))
    weights = pick(random, "sublink", "lhalotree")
    names = _ON_ONE if ndev == 1 else _DEALT
    lines = _LINES.format(**names, number=number, weights=weights)
    setup = "find = jz.descendants.jit\n"
    if ndev > 1:
        setup = DEAL.format(ndev=ndev, rows=max(rows, later_rows, 1)) + "find = jz.descendants.smap(mesh, jit=True)\n"
    dtype = pick(random, np.int32, np.int64, np.uint64)
    for _ in range(_CASES):
        values = _outputs(random, rows, later_rows, number, dtype, kind)
        if ndev > 1:
            for name, count in (("counts", "num"), ("later_counts", "later_num")):
                values[name] = random.multinomial(values[count], np.full(ndev, 1 / ndev)).tolist()
        yield Case(lines, values, _Judge(number, weights, x64), {}, setup, x64)


def _outputs(
    random: np.random.Generator, rows: int, later_rows: int, number: int, dtype: Any, kind: Any
) -> dict[str, Any]:
    limits = np.iinfo(dtype)
    pool = np.unique(random.integers(limits.min, limits.max, 2 * (rows + later_rows) + 4, dtype, endpoint=True))
    dense = np.arange(len(pool)).astype(dtype) * dtype(pick(random, 1, 2**16, 2**20))
    pool = random.permutation(pool if random.random() < 0.5 else dense)
    ids, later_ids = pool[:rows], random.permutation(pool[: max(later_rows, rows)])[:later_rows]
    energy = random.standard_normal(rows)
    if random.random() < 0.6:
        energy = np.round(energy)
    tiny = float(np.finfo(kind).smallest_subnormal)
    special = random.choice([0.0, -0.0, tiny, -tiny, np.inf, -np.inf, float(np.finfo(kind).max)], rows)
    energy = np.where(random.random(rows) < float(pick(random, 0, 0, 0.2)), special, energy).astype(kind)
    values = {
        "ids": ids,
        "subhalo": random.integers(-1, max(number, 1), rows) if number else np.full(rows, -1),
        "energy": energy,
        "num": int(random.integers(0, rows + 1)) if random.random() < 0.5 else rows,
        "later_ids": later_ids,
        "later_subhalo": random.integers(-1, int(pick(random, 1, 3, 50)), later_rows),
        "later_num": int(random.integers(0, later_rows + 1)) if random.random() < 0.5 else later_rows,
    }
    fault = random.random()
    if fault < 0.05 and rows:
        values["energy"][random.integers(rows)] = np.nan
    elif fault < 0.1 and rows:
        values["subhalo"][random.integers(rows)] = pick(random, -2, number, 2**31 - 1)
    elif fault < 0.2:
        name = pick(random, "ids", "later_ids")
        if len(values[name]) > 1:
            values[name][-1] = values[name][0]
    return values


class _Judge:
    def __init__(self, number: int, weights: str, x64: bool) -> None:
        self.number, self.weights, self.x64 = number, weights, x64

    def __call__(self, values: dict[str, Any], outcome: Outcome) -> None:
        num, later_num = values["num"], values["later_num"]
        columns = {name: values[name][:num] for name in ("ids", "subhalo", "energy")}
        energy = columns["energy"] if self.x64 else columns["energy"].astype(np.float32)
        part = SubhaloMembers(columns["ids"], columns["subhalo"], energy)
        later = SubhaloMembers(values["later_ids"][:later_num], values["later_subhalo"][:later_num])
        reason = self._reason(part, later)
        # Without subhaloes the result is empty, so compiled code drops the checks.
        if expect_error(outcome, reason if self.number else None, reason):
            return
        descendants, scores = slow_links(part, later, self.number, self.weights)
        subhalo, score = outcome["subhalo"], outcome["score"]
        if not np.array_equal(subhalo[: self.number], descendants) or (subhalo[self.number :] != -1).any():
            raise WrongError("a descendant is wrong", descendants, subhalo)
        if not np.allclose(score[: self.number], scores, rtol=3e-7, atol=0):
            raise WrongError("a score is wrong", scores, score)

    def _reason(self, part: SubhaloMembers, later: SubhaloMembers) -> str | None:
        """Return why the outputs are invalid, if they are."""
        subhalo, energy = np.asarray(part.subhalo), np.asarray(part.energy)
        if ((subhalo < -1) | (subhalo >= self.number)).any():
            return "a subhalo is out of range"
        if np.isnan(energy[subhalo >= 0]).any():
            return "an energy is NaN"
        repeated = any(len(np.unique(np.asarray(side.id))) < len(np.asarray(side.id)) for side in (part, later))
        return "identifiers repeat" if repeated else None
