"""A process that computes results on the GPU: ``python -m gpu.answers JOB``.

It compares them with CPU results and reports one finding per input. Integers must be equal, and floats bit for bit,
except for sums of many numbers, which may differ by 1e-6. Two identical calls on the GPU must give the same bits.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import jztree as jz
from jztree_utils import ics

from .inputs import key_of
from .session import one_line, tell
from .within import questions

_SUMS_TO = 1e-6
_SUMS = ("catalogue", "sums over spheres", "weighted counts", "kernel sums", "reductions, sum", "separations")
_SIDES = (1.0, 0.75, 1.25)


def particles(job_input: dict[str, Any]) -> jz.data.ParticleData:
    """Return positions, masses and velocities on the host."""
    n, dims, dtype = job_input["n"], job_input["dims"], np.dtype(job_input["dtype"])
    random = np.random.default_rng(n + dims)
    if job_input["kind"] == "clustered" and n >= 1000:
        pos = np.asarray(ics.clustered_particles(n, seed=5).pos, dtype)[:, :dims].copy()
    elif job_input["kind"] == "clustered":
        pos = (0.02 * random.standard_normal((n, dims)) % 1).astype(dtype) % dtype.type(1)
    else:
        pos = random.random((n, dims)).astype(dtype) % dtype.type(1)
    return jz.data.ParticleData(
        pos=pos, mass=random.random(n).astype(dtype), vel=random.standard_normal((n, dims)).astype(dtype)
    )


def calls(job_input: dict[str, Any]) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield functions of particles on a device, by name."""
    n, dims = job_input["n"], job_input["dims"]
    box: Any = list(_SIDES[:dims]) if job_input["box"] == "periodic" else 0.0
    # The same leaf size on both devices, because their defaults differ.
    volume, cfg = float(np.prod(_SIDES[:dims])), jz.config.TreeConfig(masses=True, leaf_size=jz.config.GPU_LEAF_SIZE)
    rlink = 0.3 * (volume / max(n, 1)) ** (1 / dims)
    tree = jz.tree.zsort_and_tree.jit
    yield "order", lambda part: jz.tree.zsort(part.pos, boxsize=box)[1]
    yield "tree", lambda part: tree(part, cfg, boxsize=box)
    for k in job_input["ks"]:
        yield f"knn k={k}", lambda part, k=k: jz.knn.knn.jit(part, k=k, boxsize=box)

    query = jz.knn.knn.jit
    for k in job_input["ks"][-1:]:
        yield "separate queries", lambda part, k=k: query(part, k=k, boxsize=box, part_query=part.pos[::-1] + 0.01)
    step, mean = n // 200 + 1, max(n, 1) / 2 / volume  # masses are 1/2 on average
    spheres = jz.overdensity.spherical_overdensity.jit
    yield "spheres", lambda part: spheres(part, part.pos[::step], [2e4 * mean, 200 * mean, 5 * mean], boxsize=box)
    yield "labels", lambda part: jz.fof.fof_labels.jit(part, rlink, box)
    yield "labels by lengths", lambda part: jz.fof.fof_labels.jit(part, 2 * rlink * part.mass, box)
    yield "catalogue", lambda part: jz.fof.fof_and_catalogue.jit(part, rlink, box)
    inside, reach = jz.overdensity.sphere_properties.jit, np.full(-(-n // step), rlink, job_input["dtype"])
    yield "sums over spheres", lambda part: inside(part, part.pos[::step], reach, boxsize=box)
    lowest = jz.halos.lowest_potential_particle.jit
    yield (
        "lowest potentials",
        lambda part: lowest(*jz.fof.fof_and_catalogue.jit(part, rlink, box), softening=0.1 * rlink, boxsize=box),
    )
    yield from questions(n, dims, box, (volume / max(n, 1)) ** (1 / dims))
    yield "labels in input order", lambda part: jz.fof.fof_labels.jit(part, rlink, box, output_order="input")
    yield "a given tree", lambda part: list(_in_given_tree(part, job_input["ks"], box, *tree(part, cfg, boxsize=box)))


def _in_given_tree(part: Any, ks: list[int], box: Any, partz: Any, th: Any) -> Iterator[Any]:
    yield jz.tree.search_sorted_z(partz, part.pos, boxsize=box)
    for k in ks:
        yield jz.knn.knn.jit(partz, k=k, boxsize=box, th=th, part_query=part.pos + 0.1)


def answer(call: Callable[[Any], Any], part: Any, device: Any) -> list[np.ndarray] | str:
    """Return the arrays that a call gives on a device, or its error message."""
    with jax.default_device(device):
        try:
            return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.block_until_ready(call(part)))]
        except (ValueError, TypeError, RuntimeError) as error:
            return str(error).rpartition("jztree: ")[2]


def difference(a: Any, b: Any, sums: bool = False) -> str | None:
    """Return a description of the difference of two results; None if they are as equal as required.

    Args:
        a: A list of arrays, or an error message.
        b: The expected ones.
        sums: Whether the numbers are sums of many, which may differ by `_SUMS_TO`.
    """
    if isinstance(a, str) or isinstance(b, str):
        return None if isinstance(a, str) and a == b else f"{a if isinstance(a, str) else b}"
    for place, (x, y) in enumerate(zip(a, b, strict=True)):
        if x.shape != y.shape:
            return f"output {place} has shapes {x.shape} and {y.shape}"
        real = np.issubdtype(x.dtype, np.floating)
        equal = (x == y) | (np.isnan(x) & np.isnan(y)) if real else x == y
        if equal.all():
            continue
        wrong = f"output {place}: {int(equal.size - np.count_nonzero(equal))} of {equal.size}"
        if not real:
            return f"{wrong} integers differ"
        x, y = x[~equal].astype(np.float64), y[~equal].astype(np.float64)
        with np.errstate(invalid="ignore"):
            offset = np.abs(x - y) / np.maximum(np.abs(x), np.abs(y))
        largest = float(np.where(np.isfinite(offset), offset, np.inf).max())
        if not sums or largest > _SUMS_TO:
            return f"{wrong} numbers differ, by {largest:.2g} at most"
    return None


def same_bits(a: Any, b: Any) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and a == b
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def compared(job_input: dict[str, Any], gpu: Any, cpu: Any) -> dict[str, str]:
    """Return the differences by call; empty without differences."""
    result, host = {}, particles(job_input)
    on_gpu, on_cpu = (jax.device_put(host, device) for device in (gpu, cpu))
    for name, call in calls(job_input):
        try:
            first = answer(call, on_gpu, gpu)
            if name == "phase space" and isinstance(first, str) and "this function supports" in first:
                continue  # it needs kernels for twice as many dimensions, which only the stage `dimensions` compiles
            if not same_bits(first, answer(call, on_gpu, gpu)):
                result[f"{name}, twice"] = "two runs give different bits"
            if wrong := difference(first, answer(call, on_cpu, cpu), sums=name.startswith(_SUMS)):
                result[name] = wrong
        except Exception as error:
            result[name] = one_line(error)
    return result


def main() -> None:
    job = json.loads(sys.argv[1])
    gpu, cpu = jax.devices()[0], jax.devices("cpu")[0]
    for job_input in job["inputs"]:
        with jax.enable_x64(job_input["dtype"] == "float64"):
            tell(key=key_of(job_input), wrong=compared(job_input, gpu, cpu))


if __name__ == "__main__":
    main()
