"""A process that calls every kernel of one device on small inputs, to be watched: ``python -m gpu.exercise``."""

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jztree as jz


def exercise(n: int, dims: int, dtype: Any, box: float) -> None:
    """Sort, tree, neighbours of all kinds, groups, catalogue and spherical overdensities."""
    random = np.random.default_rng(n)
    part = jz.data.ParticleData(
        pos=jnp.asarray(random.random((n, dims)) ** 3, dtype),
        mass=jnp.asarray(random.random(n), dtype),
        vel=jnp.asarray(random.standard_normal((n, dims)), dtype),
        num=n - n // 10,
    )
    partz, th = jz.tree.zsort_and_tree.jit(part, jz.config.TreeConfig(masses=True), boxsize=box)
    out: list[Any] = [jz.tree.search_sorted_z(partz, part.pos, boxsize=box)]
    for k in (k for k in (1, 8, 40, 300) if k <= n - n // 10):
        out.append(jz.knn.knn.jit(part, k=k, boxsize=box))
        out.append(jz.knn.knn.jit(partz, k=k, boxsize=box, th=th, part_query=part.pos + 0.1))
    spheres = jz.overdensity.spherical_overdensity
    out.append(spheres.jit(part, part.pos[:20], [300.0 * max(n, 1), 3.0 * max(n, 1)], boxsize=box))
    out.append(jz.fof.fof_labels.jit(part, 0.5 * max(n, 1) ** (-1 / dims), box, output_order="input"))
    out.append(jz.fof.fof_and_catalogue.jit(part, 0.5 * max(n, 1) ** (-1 / dims), box))
    jax.block_until_ready(out)


def mapped(n: int) -> None:
    """What one device runs of the functions over devices."""
    mesh = jax.make_mesh((1,), ("gpus",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])
    pos = jnp.asarray(np.random.default_rng(n).random((1, n, 3)), jnp.float32)
    part = jz.data.ParticleData(pos=pos, num=jnp.asarray([n - 3], jnp.int32))
    jax.block_until_ready(jz.knn.knn.smap(mesh, jit=True)(part, k=5))
    spheres = jz.overdensity.spherical_overdensity.smap(mesh, jit=True)
    jax.block_until_ready(spheres(part, jz.data.Pos(pos=pos[:, :9]), 2.0 * n))
    jax.block_until_ready(jz.fof.fof_and_catalogue.smap(mesh, jit=True)(part, 0.1))


def main() -> None:
    small = json.loads(sys.argv[1])
    for n in (0, 1, 31, 500) if small else (0, 1, 31, 500, 5000):
        exercise(n, 3, np.float32, 1.0)
    exercise(400, 2, np.float32, 0.0)
    mapped(400)
    with jax.enable_x64(True):
        exercise(400, 3, np.float64, 1.0)
    print("exercised")


if __name__ == "__main__":
    main()
