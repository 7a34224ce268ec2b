"""Sums over kernels of hostile sets, between bounds from all pairs: kernels fall with distance, and distances are
known but for their rounding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import oracles

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import distances, may_refuse, rounding, unsound
from .fof import linking_length
from .inputs import pick

_CASES = 16  # of one shape


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Sets of one shape, with a smoothing length of each particle."""
    x64, dtype = inputs.mode(random)
    rows, dims = int(pick(random, 0, 1, 2, 25, 64, 130)), int(random.integers(1, 9))
    smooth = ("cubic_spline", "wendland_c2", "wendland_c4", "wendland_c6") if dims <= 3 else ()
    kernel = str(pick(random, "gaussian", "top_hat", *smooth))
    form = str(pick(random, "gather", "scatter", "mean_kernel", "mean_h"))
    lines = (
        "part = jz.data.Pos(pos=pos, num=num)\n"
        f"sums = jz.radius.kernel_sums.jit(part, h, boxsize, values=values, kernel={kernel!r}, form={form!r})"
    )
    for _ in range(_CASES):
        points = inputs.points(random, rows, dims, dtype)
        length = linking_length(random, points.pos[: points.num], points.sides, points.length)
        h = float(length) * random.choice([0.5, 1.0, 1.0, 3.0], rows)
        more = {"h": h, "values": random.random(rows).astype(dtype)}
        values = points.arguments(random) | more
        if random.random() < 0.05 and rows > 0:
            h[random.integers(rows)] = pick(random, -1.0, 0.0, np.nan, np.inf)
        yield Case(lines, values, _Judge(x64, kernel, form), {"num": ("pos", "h", "values")}, "", x64)


@dataclass
class _Judge:
    x64: bool
    kernel: str
    form: str

    def __call__(self, values: dict[str, Any], outcome: Outcome) -> None:
        num, dims = values["num"], values["pos"].shape[1]
        pos, h, weight = values["pos"][:num], values["h"][:num], values["values"][:num]
        sides = inputs.sides(values["boxsize"], dims)
        must = unsound(pos, sides)
        kind = np.finfo(np.float64 if self.x64 else np.float32)
        with np.errstate(all="ignore"):
            if not (np.isfinite(h) & (h >= kind.tiny) & (h <= kind.max)).all():
                must = must or "a smoothing length is not positive, or out of range"
            low, high = self._bounds(pos, h, weight, sides) if must is None else (np.zeros(0), np.zeros(0))
            volumes = h ** float(dims) if must is None else np.ones(1)
        limits = np.finfo(values["pos"].dtype)
        extreme = (volumes < 1e6 * limits.tiny).any() or (volumes > 1e-3 / limits.tiny / 2**limits.nmant).any()
        lost = "sums may be out of range" if extreme or (high > 0.1 * limits.max).any() else None
        if expect_error(outcome, must, lost or may_refuse(pos, np.append(sides, h), self.x64)):
            return
        sums = np.asarray(outcome["sums"])
        if sums[num:].any():
            raise WrongError("rows beyond num have sums", 0, sums[num:])
        slack = 64 * float(limits.eps) * high + float(limits.tiny)
        if (sums[:num] < low - slack).any() or (sums[:num] > high + slack).any():
            raise WrongError("a sum over a kernel is not that of the pairs", high, sums[:num])

    def _bounds(self, pos: np.ndarray, h: np.ndarray, weight: np.ndarray, sides: np.ndarray) -> Any:
        if self.form == "mean_kernel":
            both = [
                _Judge(self.x64, self.kernel, form)._bounds(pos, h, weight, sides) for form in ("gather", "scatter")
            ]
            return [(one + other) / 2 for one, other in zip(*both, strict=True)]
        each = {"gather": h[:, None] + 0 * h, "scatter": h + 0 * h[:, None], "mean_h": (h + h[:, None]) / 2}[self.form]
        apart, dims = np.asarray(distances(pos, pos, sides), np.float64), pos.shape[1]
        unsure = rounding(pos, sides) + 16 * float(np.finfo(pos.dtype).eps) * apart if len(pos) else 0 * apart
        # A top hat is decided in float64; how far others fall, positions' own precision decides.
        sums = []
        for distance in (apart + unsure, np.maximum(apart - unsure, 0)):
            w = oracles.kernel_weight(self.kernel, dims, distance / each)
            sums.append((w * (weight.astype(np.float64) / each**dims)).sum(axis=1))
        return sums
