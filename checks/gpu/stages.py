"""The kernels of this library one by one, and the distances that no search of its tree can do without."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from .libraries import linking_length

_QUERIES = 256  # for which distances are counted
_AT_ONCE = 16
K = 16


def apart(pos: Any, side: float, runs: int) -> dict[str, dict[str, Any]]:
    """Timings of each kernel on positions in a periodic box, compiled apart."""
    from .measure import timings  # noqa: PLC0415

    found = {}
    for name, call in kernels_of(pos, side):
        jax.block_until_ready(call())
        found[name] = timings(call, runs)
    return found


def kernels_of(pos: Any, side: float) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and calls; what one returns is computed once more for those that follow."""
    import jztree as jz  # noqa: PLC0415
    from jztree import kernels  # noqa: PLC0415

    n, cfg = len(pos), jz.config.TreeConfig()
    sizes = jz.tree.plane_sizes(n, cfg)
    box = jz.jax_ext.exact(side, (pos.shape[1],))

    def given(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        return functools.partial(jax.jit(function), *arguments)

    bounds = given(lambda p: kernels.bounds(p, n), pos)
    yield "bounds", bounds
    lower, upper, _ = bounds()
    zsort = given(lambda p, low, high: kernels.zsort(p, n, low, high, box), pos, lower, upper)
    yield "z-order", zsort
    index, posz = zsort()

    def hierarchy(p: Any, low: Any, high: Any) -> Any:
        return kernels.hierarchy(p, n, low, high, box, sizes, cfg.leaf_size, cfg.fan_out)

    build = given(hierarchy, posz, lower, upper)
    yield "plane hierarchy", build
    arrays = build()[:4]

    def tree(p: Any, a: Any) -> kernels.Tree:
        return kernels.Tree(p, kernels.as_num(n), *a, sizes)

    yield "check of a given hierarchy", given(lambda p, a: kernels.belongs(tree(p, a), box), posz, arrays)
    yield f"knn k={K} in z-order", given(lambda p, a: kernels.knn(tree(p, a), None, None, None, K, box), posz, arrays)
    yield (
        f"knn k={K} to input rows",
        given(lambda p, a, i: kernels.knn(tree(p, a), i, None, i, K, box), posz, arrays, index),
    )
    for b in (0.2, 0.7):
        rlink = jz.jax_ext.exact(linking_length(b, n, side), ())
        link = given(lambda p, a, rlink=rlink: kernels.fof(tree(p, a), None, rlink, box), posz, arrays)
        yield f"links b={b}", link
        label = link()
        order = given(lambda rows: kernels.group_order(rows, n, 20), label)
        yield f"group order b={b}", order
        rows, *groups = order()
        grouped = kernels.gather_rows(posz, rows)
        yield (
            f"sums over groups b={b}",
            given(lambda p, g: kernels.catalogue(p, None, None, *g, box), grouped, groups),
        )


def distances(pos: Any, k: int, box: float) -> dict[str, float]:
    """Particles in the leaves that the ball of the ``k`` nearest neighbours touches, a query on average.

    Every search of this tree that opens whole leaves has to compute at least these distances.
    """
    import jztree as jz  # noqa: PLC0415

    partz, th = jz.tree.zsort_and_tree.jit(pos, boxsize=box or None)
    stride = max(len(pos) // _QUERIES, 1)
    query = partz[::stride][:_QUERIES]
    radius = jz.knn.knn.jit(partz, k=k, boxsize=box or None, th=th, part_query=query, result="rad")[:, -1]
    touched = jax.jit(_touched)
    counts = [
        touched(query[i : i + _AT_ONCE], radius[i : i + _AT_ONCE], th.lower(0), th.upper(0), th.count(0), box)
        for i in range(0, len(query), _AT_ONCE)
    ]
    return {"distances a query": float(jnp.concatenate(counts).mean())}


def _touched(query: Any, radius: Any, lower: Any, upper: Any, count: Any, box: Any) -> Any:
    """Particles in the leaves within ``radius`` of each query; ``box`` is 0 where open."""
    middle, half = 0.5 * (lower + upper), 0.5 * (upper - lower)
    apart_ = jnp.abs(query[:, None] - middle)
    apart_ = jnp.where(box > 0, jnp.minimum(apart_, box - apart_), apart_)
    outside = jnp.maximum(apart_ - half, 0)
    near = (outside**2).sum(axis=-1) <= (radius**2)[:, None]
    return jnp.where(near & (count > 0), count, 0).sum(axis=-1, dtype=jnp.float32)
