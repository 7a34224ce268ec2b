"""Sums over kernels in hostile sets, judged by bounds from all pairs. Kernels decrease with distance, and distances are
known up to rounding. The effect of rounding on gradients is bounded also.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import oracles

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import distances, may_refuse, rounding, unsound
from .fof import linking_length
from .inputs import pick

_CASES = 16  # of one shape
_SMOOTH = ("cubic_spline", "wendland_c2", "wendland_c4", "wendland_c6")
_CALL = (
    "jz.radius.kernel_sums{jit}(part, h, boxsize=boxsize{query}, values=values, kernel={kernel!r}, "
    "form={form!r}{derivative})"
)
_TRACED = "sums_of = jax.jit(lambda part, h, boxsize, values, query=None, query_h=None: {call})"


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield sets of one shape, with one smoothing length for all or one per particle."""
    x64, dtype = inputs.mode(random)
    rows, dims = int(pick(random, 0, 1, 2, 25, 64, 130)), int(random.integers(1, 9))
    kernel = str(pick(random, "gaussian", "top_hat", *(_SMOOTH if dims <= 3 else ())))
    form = str(pick(random, "gather", "scatter", "mean_kernel", "mean_h"))
    queries, method = int(pick(random, 0, 0, 9)), pick(random, "eager", "jit", "jit", "traced")
    gradient = kernel in _SMOOTH and bool(random.random() < 0.3)
    call = _CALL.format(
        jit=".jit" if method == "jit" else "",
        query=", queries=query, query_h=query_h" if queries else "",
        kernel=kernel,
        form=form,
        derivative=', derivative="gradient"' if gradient else "",
    )
    traced = "sums_of(part, h, boxsize, values" + (", query, query_h)" if queries else ")")
    lines = f"part = jz.data.Pos(pos=pos, num=num)\nsums = {traced if method == 'traced' else call}"
    setup = _TRACED.format(call=call) if method == "traced" else ""
    kind = (np.float64 if x64 else np.float32) if method == "traced" else None
    shared = bool(random.random() < 0.3), bool(random.random() < 0.5)
    for _ in range(_CASES if method != "eager" else _CASES // 4):
        points = inputs.points(random, rows, dims, dtype, kind)
        values = points.arguments(random) | {"values": random.random(rows).astype(dtype)}
        values["h"] = _lengths(random, points, rows, shared[0], kind)
        if queries:
            values["query"] = inputs.positions(random, queries, dtype, points.sides, points.length)
            values["query_h"] = _lengths(random, points, queries, shared[1], kind)
        own = ("pos", "values") if shared[0] else ("pos", "h", "values")
        asking = ("query",) if shared[1] else ("query", "query_h")
        of_rows = {"num": own, "": asking} if queries else {"num": own}
        yield Case(lines, values, _Judge(x64, kernel, form, gradient), of_rows, setup, x64)


def _lengths(random: np.random.Generator, points: inputs.Points, rows: int, shared: bool, kind: Any) -> Any:
    length = float(linking_length(random, points.pos[: points.num], points.sides, points.length))
    wrong = random.random() < 0.05
    with np.errstate(over="ignore", under="ignore"):
        if shared:
            h = float(pick(random, -1.0, 0.0, np.nan, np.inf)) if wrong else length
            return h if kind is None else np.asarray(h, kind)
        each = length * random.choice([0.5, 1.0, 1.0, 3.0], rows)
        if wrong and rows > 0:
            each[random.integers(rows)] = pick(random, -1.0, 0.0, np.nan, np.inf)
        return each if kind is None else each.astype(kind)


@dataclass
class _Sides:
    """Queries and sources, with the smoothing lengths and values of valid rows."""

    query: np.ndarray
    pos: np.ndarray
    h_query: np.ndarray
    h: np.ndarray
    weight: np.ndarray
    sides: np.ndarray

    @classmethod
    def of(cls, values: dict[str, Any]) -> "_Sides":
        num = values["num"]
        pos, sides = values["pos"][:num], inputs.sides(values["boxsize"], values["pos"].shape[1])
        h = np.broadcast_to(np.asarray(values["h"], np.float64), len(values["pos"]))[:num]
        query = values.get("query", pos)
        h_query = np.broadcast_to(np.asarray(values["query_h"], np.float64), len(query)) if "query" in values else h
        return cls(query, pos, h_query, h, values["values"][:num].astype(np.float64), sides)

    def each(self, form: str) -> np.ndarray:
        """Return ``(q, n)``, the smoothing length of each pair."""
        own, reference = self.h_query[:, None], self.h[None, :]
        return {"gather": own + 0 * reference, "scatter": reference + 0 * own, "mean_h": (own + reference) / 2}[form]

    def apart(self) -> tuple[np.ndarray, np.ndarray]:
        """Return distances ``(q, n)``, and the error bound of each."""
        result = np.asarray(distances(self.query, self.pos, self.sides), np.float64)
        if result.size == 0:
            return result, result
        everything = np.concatenate([self.query, self.pos])
        # Float64 decides a top hat. For other kernels, the precision of the positions limits the accuracy.
        return result, rounding(everything, self.sides) + 16 * float(np.finfo(self.pos.dtype).eps) * result


@dataclass
class _Judge:
    x64: bool
    kernel: str
    form: str
    gradient: bool

    def __call__(self, values: dict[str, Any], outcome: Outcome) -> None:
        given = _Sides.of(values)
        dims, limits = len(given.sides), np.finfo(given.pos.dtype)
        must = self._refusal(values, given)
        if must is not None and outcome.error is None and np.size(outcome["sums"]) == 0:
            return  # inside a user's own jit, an empty result does not depend on any check
        lengths = np.concatenate([given.h, given.h_query])
        with np.errstate(all="ignore"):
            low, high = self._bounds(given) if must is None else (np.zeros(0), np.zeros(0))
            volumes = lengths ** float(dims + self.gradient) if must is None else np.ones(1)
        extreme = (volumes < 1e6 * limits.tiny).any() or (volumes > 1e-3 / limits.tiny / 2**limits.nmant).any()
        largest = np.abs(np.concatenate([low.ravel(), high.ravel()])).max(initial=0)
        lost = "sums may be out of range" if extreme or not largest < 0.1 * limits.max else None
        everything = np.concatenate([given.pos, given.query])
        if expect_error(outcome, must, lost or may_refuse(everything, np.append(given.sides, lengths), self.x64)):
            return
        sums, used = np.asarray(outcome["sums"]), len(given.query)
        if sums[used:].any():
            raise WrongError("rows beyond num have sums", 0, sums[used:])
        slack = 64 * float(limits.eps) * np.maximum(np.abs(low), np.abs(high)) + float(limits.tiny)
        if not ((sums[:used] >= low - slack) & (sums[:used] <= high + slack)).all():
            what = "a gradient of a sum" if self.gradient else "a sum over a kernel"
            raise WrongError(f"{what} is not that of the pairs", (low, high), sums[:used])

    def _refusal(self, values: dict[str, Any], given: _Sides) -> str | None:
        kind = np.finfo(np.float64 if self.x64 else np.float32)
        # A single length is checked even if there are no rows. Of two equivalent lengths, one is checked.
        shared = [values[name] for name in ("h", "query_h") if name in values and np.ndim(values[name]) == 0]
        lengths = np.concatenate([given.h, given.h_query, np.asarray(shared, np.float64)])
        if not (np.isfinite(lengths) & (lengths >= kind.tiny) & (lengths <= kind.max)).all():
            return "a smoothing length is not positive, or out of range"
        return unsound(np.concatenate([given.pos, given.query]), given.sides)

    def _bounds(self, given: _Sides) -> tuple[np.ndarray, np.ndarray]:
        if self.form == "mean_kernel":
            both = [replace(self, form=form)._bounds(given) for form in ("gather", "scatter")]
            return (both[0][0] + both[1][0]) / 2, (both[0][1] + both[1][1]) / 2
        return self._gradients(given) if self.gradient else self._sums(given)

    def _sums(self, given: _Sides) -> tuple[np.ndarray, np.ndarray]:
        each, (separation, unsure), dims = given.each(self.form), given.apart(), len(given.sides)
        sums = []
        for distance in (separation + unsure, np.maximum(separation - unsure, 0)):
            w = oracles.kernel_weight(self.kernel, dims, distance / each)
            # Volumes that vanish matter only if there is a neighbour.
            sums.append(np.where(w > 0, w * (given.weight / each**dims), 0).sum(axis=1))
        return sums[0], sums[1]

    def _gradients(self, given: _Sides) -> tuple[np.ndarray, np.ndarray]:
        each, (separation, unsure), dims = given.each(self.form), given.apart(), len(given.sides)
        steepness, bend = _slope(self.kernel, dims, np.minimum(separation / each, 1))
        straight = oracles.nearest_differences(given.query, given.pos, given.sides)
        unit = straight / np.where(separation > 0, separation, 1)[..., None]
        share = given.weight / each ** (dims + 1)
        slope = np.where(steepness != 0, share * steepness, 0)[..., None]
        result = np.where(unit != 0, slope * unit, 0).sum(axis=1)  # 0 at distance 0, however small h is
        is_near = separation < each + unsure
        # If two images are equally near, the gradient may be that to either.
        half = (given.sides > 0) & (np.abs(np.abs(straight) - given.sides / 2) <= 2 * unsure[..., None])
        torn = np.where((is_near & half.any(axis=-1)), 2 * np.abs(steepness), 0)
        loose = np.where(is_near, bend * unsure / each + 2e-5 * bend, 0) + torn
        loose += 64 * float(np.finfo(given.pos.dtype).eps) * np.abs(steepness)
        off = np.where(loose > 0, share * loose, 0).sum(axis=1)[:, None]
        return result - off, result + off


def _slope(kernel: str, dims: int, q: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the derivative of the kernel by ``q``, from differences, and a bound on the change of its vector."""
    step = 2.0**-17
    ends = [oracles.kernel_weight(kernel, dims, np.clip(x, 0, 1)) for x in (q - step, q + step)]
    width = np.minimum(q + step, 1) - np.maximum(q - step, 0)
    places = np.linspace(0, 1, 400)
    change = np.diff(oracles.kernel_weight(kernel, dims, places)) / np.diff(places)
    bend = 1.5 * float(np.max(np.abs(np.diff(change)))) * 400
    return np.where(q >= 1, 0, (ends[1] - ends[0]) / width), max(bend, float(np.max(np.abs(change))))
