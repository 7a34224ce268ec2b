"""A process that times on the device: ``python -m gpu.measure JOB``. It prints one finding per call.

It times calls of one library on one sample, our kernels one by one, or the rates of plain JAX. The library determines
which `jztree` to import, so the import is late.
"""

# ruff: noqa: PLC0415
import contextlib
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from .calls import CALLS
from .cases import B
from .libraries import Library, opened
from .samples import Sample
from .session import one_line, tell

_PATIENCE = 20.0  # seconds for the timed runs of one call; longer calls get fewer runs
_FEWEST = 3
_IN_A_ROW = 20
_SHORT = 0.02  # seconds: shorter calls are also timed without waiting for each
_QUERIES, _AT_ONCE = 256, 16  # for which distances are counted
_CHAINS, _STEPS = 4, 256  # of products, to measure their rate
K = 16  # of the kernels
LEAF_SIZES = (16, 20, 32, 40)  # in addition to the default


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds until the entire result is ready."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def timings(call: Callable[[], Any], runs: int) -> dict[str, Any]:
    """Return the seconds of a compiled call."""
    first = timed(call)
    seconds = [timed(call) for _ in range(max(min(runs, int(_PATIENCE / max(first, 1e-9))), _FEWEST))]
    middle = statistics.median(seconds)
    result = {"seconds": middle, "fastest": min(seconds), "slowest": max(seconds), "runs": len(seconds)}
    if middle < _SHORT:
        result["seconds in a row"] = timed(lambda: in_a_row(call)) / _IN_A_ROW
    return result


def in_a_row(call: Callable[[], Any]) -> Any:
    """Run a call several times without waiting. Keep only the last result, so that the peak of memory stays low."""
    out = None
    for _ in range(_IN_A_ROW):
        out = call()
    return out


def peak_bytes() -> int | None:
    """Return the peak device memory of this process; None if the platform does not report it."""
    stats = jax.devices()[0].memory_stats()
    return None if stats is None else int(stats["peak_bytes_in_use"])


def arguments(sample: Sample, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call: lengths instead of numbers."""
    parameters = {name: value for name, value in options.items() if name not in ("b", "neighbours")}
    if "b" in options:
        parameters["rlink"] = sample.linking_length(options["b"])
    if "neighbours" in options:
        parameters["radius"] = sample.radius(options["neighbours"])
    return parameters


def measured(library: Library, pos: Any, what: str, parameters: dict[str, Any], runs: int) -> dict[str, Any]:
    """Return time, memory and digest of a call, with the first effort that succeeds."""
    failed: list[tuple[float, str]] = []
    for effort in library.efforts:
        try:
            call = library.call(what, pos, effort, **parameters)
            start = time.perf_counter()
            out = jax.block_until_ready(call())
            result: dict[str, Any] = {"first call": time.perf_counter() - start, "peak_bytes": peak_bytes()}
            result |= {"effort": effort, "efforts that failed": failed, "digest": CALLS[what].digest(out)}
            del out
            if result["digest"]["finite"]:
                return result | timings(call, runs)
            failed.append((effort, "the result is not finite"))
        except Exception as error:
            failed.append((effort, one_line(error)))
    return {"error": failed[0][1], "efforts that failed": failed}


# The kernels of this library one by one


def kernels_of(pos: Any, sample: Sample) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield names and calls in a periodic box, compiled separately. Results needed later are computed once more."""
    import jztree as jz
    from jztree import kernels

    n, cfg = len(pos), jz.config.TreeConfig()
    sizes, box = jz.tree.plane_sizes(n, cfg), jz.jax_ext.exact(sample.side, (pos.shape[1],))

    def tree(p: Any, arrays: Any) -> kernels.Tree:
        return kernels.Tree(p, kernels.as_num(n), *arrays, sizes)

    bounds = given_call(lambda p: kernels.bounds(p, n), pos)
    yield "bounds", bounds
    lower, upper = bounds()[:2]
    zsort = given_call(lambda p, low, high: kernels.zsort(p, n, low, high, box), pos, lower, upper)
    yield "z-order", zsort
    index, posz = zsort()
    build = hierarchy_call(posz, lower, upper, box, sizes, cfg)
    yield "plane hierarchy", build
    arrays = build()[:4]
    yield "check of a given hierarchy", given_call(lambda p, a: kernels.tree_fits(tree(p, a), box), posz, arrays)
    search = given_call(lambda p, a: kernels.knn(tree(p, a), None, None, None, K, box), posz, arrays)
    yield f"knn k={K} in z-order", search
    search = given_call(lambda p, a, i: kernels.knn(tree(p, a), i, None, i, K, box), posz, arrays, index)
    yield f"knn k={K} to input rows", search
    for b in B:
        rlink = jz.jax_ext.exact(sample.linking_length(b), ())
        link = given_call(lambda p, a, rlink=rlink: kernels.fof(tree(p, a), None, rlink, box), posz, arrays)
        yield f"links b={b}", link
        order = given_call(lambda rows: kernels.group_order(rows, n, 20), link())
        yield f"group order b={b}", order
        rows, *groups = order()
        grouped = kernels.gather_rows(posz, rows)
        yield (
            f"sums over groups b={b}",
            given_call(lambda p, g: kernels.catalogue(p, None, None, *g, box), grouped, groups),
        )
    yield from _with_other_leaves(posz, lower, upper, box, sample)


def _with_other_leaves(
    posz: Any, lower: Any, upper: Any, box: Any, sample: Sample
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the searches again, in hierarchies with smaller and larger leaves."""
    import jztree as jz
    from jztree import kernels

    for size in LEAF_SIZES:
        cfg = jz.config.TreeConfig(leaf_size=size)
        sizes, num = jz.tree.plane_sizes(len(posz), cfg), kernels.as_num(len(posz))
        rlink = jz.jax_ext.exact(sample.linking_length(B[0]), ())
        arrays = hierarchy_call(posz, lower, upper, box, sizes, cfg)()[:4]

        def search(p: Any, a: Any, sizes: Any = sizes, num: Any = num) -> Any:
            return kernels.knn(kernels.Tree(p, num, *a, sizes), None, None, None, K, box)

        def link(p: Any, a: Any, sizes: Any = sizes, num: Any = num, rlink: Any = rlink) -> Any:
            return kernels.fof(kernels.Tree(p, num, *a, sizes), None, rlink, box)

        yield f"knn k={K} in z-order, leaves of {size}", given_call(search, posz, arrays)
        yield f"links b={B[0]}, leaves of {size}", given_call(link, posz, arrays)


def given_call(function: Callable[..., Any], *arrays: Any) -> Callable[[], Any]:
    """Return a compiled call with given arrays."""
    return functools.partial(jax.jit(function), *arrays)


def hierarchy_call(posz: Any, lower: Any, upper: Any, box: Any, sizes: tuple[int, ...], cfg: Any) -> Callable[[], Any]:
    """Return the call that builds a hierarchy with planes of the given sizes over particles in z-order."""
    import jztree as jz
    from jztree import kernels

    return given_call(
        lambda p, low, high: kernels.hierarchy(
            p, len(posz), low, high, box, sizes, jz.config.leaf_size_of(cfg), cfg.fan_out
        ),
        posz,
        lower,
        upper,
    )


def stages(pos: Any, sample: Sample, runs: int) -> dict[str, Any]:
    """Return the timings of each kernel."""
    result = {}
    for name, call in kernels_of(pos, sample):
        jax.block_until_ready(call())
        result[name] = timings(call, runs)
    return {"stages": result}


def distances(pos: Any, k: int, box: float) -> dict[str, float]:
    """Return the mean number of particles per query in leaves that the ball of its ``k`` nearest neighbours touches.

    Every search of this tree that opens whole leaves has to compute at least these distances.
    """
    import jztree as jz

    partz, th = jz.tree.zsort_and_tree.jit(pos, boxsize=box or None)
    query = partz[:: max(len(pos) // _QUERIES, 1)][:_QUERIES]
    radius = jz.knn.knn.jit(partz, k=k, boxsize=box or None, th=th, part_query=query, result="rad")[:, -1]
    touched, leaves = jax.jit(_touched), (th.lower(0), th.upper(0), th.count(0))
    slices = [slice(i, i + _AT_ONCE) for i in range(0, len(query), _AT_ONCE)]
    counts = [touched(query[rows], radius[rows], *leaves, box) for rows in slices]
    return {"distances a query": float(jnp.concatenate(counts).mean())}


def _touched(query: Any, radius: Any, lower: Any, upper: Any, count: Any, box: Any) -> Any:
    """Return the particles in the leaves within ``radius`` of each query; ``box`` is 0 in open dimensions."""
    middle, half = 0.5 * (lower + upper), 0.5 * (upper - lower)
    gap = jnp.abs(query[:, None] - middle)
    gap = jnp.where(box > 0, jnp.minimum(gap, box - gap), gap)
    reached = (jnp.maximum(gap - half, 0) ** 2).sum(axis=-1) <= (radius**2)[:, None]
    return jnp.where(reached & (count > 0), count, 0).sum(axis=-1, dtype=jnp.float32)


# Device limits


def rates(small: bool) -> dict[str, float]:
    """Return rates of plain JAX: bytes moved by large copies and sums, and float32 instructions per second.

    A fused multiply-add, which the library does not use, also counts as one instruction.
    """
    n, rows, steps = (2**16, 2**10, 16) if small else (2**28, 2**24, _STEPS)

    def products(x: Any, factors: Any) -> Any:
        """Multiply by factors unknown to the compiler, so that it can neither fold nor fuse the products.

        Several chains run at once, so that no product waits for the previous one.
        """
        values = [x + i for i in range(_CHAINS)]
        for _ in range(steps):
            values = [value * factors[0] for value in values]
        return sum(values)

    return {
        "copy bytes per second": 2 * 4 * n / _seconds(lambda x, _: -x, n),
        "add bytes per second": 3 * 4 * n / _seconds(lambda x, y: x + y, n),
        "instructions per second": _CHAINS * steps * rows / _seconds(products, rows),
    }


def _seconds(function: Callable[[Any, Any], Any], n: int) -> float:
    """Return the median time of a compiled function of two arrays of ``n`` numbers."""
    x, y = jnp.linspace(0, 1, n), jnp.full(n, 0.999)
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(x, y))
    result: float = timings(lambda: compiled(x, y), 20)["seconds"]
    return result


def main() -> None:
    job = json.loads(sys.argv[1])
    if "rates" in job:
        tell(key="rates", **rates(**job["rates"]))
        return
    library, sample, runs = opened(job["library"], Path(job["home"])), Sample(**job["sample"]), job["runs"]
    pos = jnp.asarray(sample.positions(Path(job["folder"])))
    for call in job["calls"]:
        what, options = call["what"], call["options"]
        with contextlib.suppress(BrokenPipeError):
            if what == "stages":
                result = stages(pos, sample, runs)
            elif what == "distances":
                result = distances(pos, **options)
            else:
                result = measured(library, pos, what, arguments(sample, options), runs)
            tell(key=call["key"], **result)


if __name__ == "__main__":
    main()
