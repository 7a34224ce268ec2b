"""A process that compares answers of the GPU with those of the CPU: ``python -m gpu.compare JOB``. A finding an input.

Integers have to be equal, and floats bit for bit, except for the sums of a catalogue, which may differ by 1e-6. Twice
the same call on the GPU has to give the same bits.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jztree as jz
from jztree_utils import ics

from .child import one_line, tell

_SUMS_TO = 1e-6
_SIDES = (1.0, 0.75, 1.25)
KS = (1, 8, 16, 32, 64, 300)


def inputs(small: bool) -> Iterator[dict[str, Any]]:
    """What to compare on, many small inputs before a few large ones."""
    sizes = (0, 1, 31, 400) if small else (0, 1, 31, 10_000)
    kinds = list(itertools.product((3, 2), ("float32", "float64"), ("uniform", "clustered"), ("periodic", "open")))
    for n in sizes:
        for dims, dtype, kind, box in kinds[: 4 if small else None]:
            ks = [k for k in KS if k <= n]
            yield {"n": n, "dims": dims, "dtype": dtype, "kind": kind, "box": box, "ks": ks[:2] if small else ks}
    for dims, dtype, kind, box in kinds[: 0 if small else None]:
        yield {"n": 10**6, "dims": dims, "dtype": dtype, "kind": kind, "box": box, "ks": [16] if dims == 3 else [8]}


def key_of(given: dict[str, Any]) -> str:
    return f"{given['kind']} n={given['n']} {given['dims']}d {given['dtype']} {given['box']}"


def particles(given: dict[str, Any]) -> jz.data.ParticleData:
    """Positions, masses and velocities on the host."""
    n, dims, dtype = given["n"], given["dims"], np.dtype(given["dtype"])
    random = np.random.default_rng(n + dims)
    if given["kind"] == "clustered" and n >= 1000:
        pos = np.asarray(ics.clustered_particles(n, seed=5).pos, dtype)[:, :dims].copy()
    elif given["kind"] == "clustered":
        pos = (0.02 * random.standard_normal((n, dims)) % 1).astype(dtype) % dtype.type(1)
    else:
        pos = random.random((n, dims)).astype(dtype) % dtype.type(1)
    return jz.data.ParticleData(
        pos=pos, mass=random.random(n).astype(dtype), vel=random.standard_normal((n, dims)).astype(dtype)
    )


def calls(given: dict[str, Any]) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Functions of particles on a device, by name."""
    n, dims = given["n"], given["dims"]
    box = list(_SIDES[:dims]) if given["box"] == "periodic" else 0.0
    rlink = 0.3 * float(np.prod(_SIDES[:dims])) ** (1 / dims) * max(n, 1) ** (-1 / dims)
    cfg = jz.config.TreeConfig(masses=True)
    yield "order", lambda part: jz.tree.zsort(part.pos, boxsize=box)[1]
    yield "tree", lambda part: jz.tree.zsort_and_tree.jit(part, cfg, boxsize=box)
    for k in given["ks"]:
        yield f"knn k={k}", lambda part, k=k: jz.knn.knn.jit(part, k=k, boxsize=box)
    if given["ks"]:
        yield (
            "separate queries",
            lambda part: jz.knn.knn.jit(part, k=given["ks"][-1], boxsize=box, part_query=part.pos[::-1] + 0.01),
        )
    step, mean = n // 200 + 1, max(n, 1) / 2 / float(np.prod(_SIDES[:dims]))  # masses are 1/2 on average
    spheres = jz.overdensity.spherical_overdensity.jit
    yield "spheres", lambda part: spheres(part, part.pos[::step], [2e4 * mean, 200 * mean, 5 * mean], boxsize=box)
    yield "labels", lambda part: jz.fof.fof_labels.jit(part, rlink, box)
    yield "catalogue", lambda part: jz.fof.fof_and_catalogue.jit(part, rlink, box)


def answer(call: Callable[[Any], Any], part: Any, device: Any) -> list[np.ndarray] | str:
    """The arrays that a call gives on a device, or the sentence of its error."""
    with jax.default_device(device):
        try:
            return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.block_until_ready(call(part)))]
        except (ValueError, TypeError, RuntimeError) as error:
            return str(error).rpartition("jztree: ")[2]


def difference(name: str, a: Any, b: Any) -> str | None:
    """In words, how two answers differ; None if they are as equal as they have to be."""
    if isinstance(a, str) or isinstance(b, str):
        return None if isinstance(a, str) and a == b else f"{a if isinstance(a, str) else b}"
    for place, (x, y) in enumerate(zip(a, b, strict=True)):
        if x.shape != y.shape:
            return f"output {place} has shapes {x.shape} and {y.shape}"
        real = np.issubdtype(x.dtype, np.floating)
        same = (x == y) | (np.isnan(x) & np.isnan(y)) if real else x == y
        if same.all():
            continue
        wrong = int(same.size - np.count_nonzero(same))
        if real:
            x, y = x[~same].astype(np.float64), y[~same].astype(np.float64)
            with np.errstate(invalid="ignore"):
                apart = np.abs(x - y) / np.maximum(np.abs(x), np.abs(y))
            largest = float(np.where(np.isfinite(apart), apart, np.inf).max())
            if name == "catalogue" and largest <= _SUMS_TO:
                continue
            return f"output {place}: {wrong} of {same.size} numbers differ, by {largest:.2g} at most"
        return f"output {place}: {wrong} of {same.size} integers differ"
    return None


def twice_equal(a: Any, b: Any) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a is b or a == b
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def compared(given: dict[str, Any], gpu: Any, cpu: Any) -> dict[str, str]:
    """What is wrong, by call; nothing is the best."""
    found, host = {}, particles(given)
    there, here = (jax.device_put(host, device) for device in (gpu, cpu))
    for name, call in calls(given):
        try:
            first = answer(call, there, gpu)
            if not twice_equal(first, answer(call, there, gpu)):
                found[f"{name}, twice"] = "two runs give different bits"
            wrong = difference(name, first, answer(call, here, cpu))
            if wrong:
                found[name] = wrong
        except Exception as error:
            found[name] = one_line(error)
    return found


def main() -> None:
    job = json.loads(sys.argv[1])
    gpu, cpu = jax.devices()[0], jax.devices("cpu")[0]
    for given in inputs(job["small"]):
        if key_of(given) not in job["done"]:
            with jax.enable_x64(given["dtype"] == "float64"):
                tell(key=key_of(given), wrong=compared(given, gpu, cpu))


if __name__ == "__main__":
    main()
