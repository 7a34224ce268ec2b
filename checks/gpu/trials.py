"""A process that times one experiment of `experiments`: ``python -m gpu.trials JOB``. It prints one finding per line.

A trial yields lines: a name, and a function that returns the call to time.
"""

import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jztree as jz
from jztree import kernels

from .calls import NEIGHBOURS
from .cases import BOX
from .experiments import CLUSTERED, DIMS, SIZES, STEPS, TREES, reduced
from .libraries import opened
from .measure import given_call, hierarchy_call, in_a_row, kernels_of, timings
from .samples import SEED, Sample, power
from .session import one_line, tell

K = 8
Line = tuple[str, Callable[[], Callable[[], Any]]]


class Trials:
    """The lines of each experiment. With ``small``, sets have a thousandth of the particles."""

    def __init__(self, home: Path, folder: Path, small: bool) -> None:
        self.library, self.folder, self.small = opened("ours", home), folder, small

    def number(self, n: int) -> int:
        return reduced(n, self.small)

    def positions(self, kind: str, n: int) -> jax.Array:
        return jnp.asarray(Sample(kind, n).positions(self.folder))

    def timed_call(self, function: str, n: int, **options: Any) -> Callable[[], Any]:
        return self.library.call(function, self.positions("uniform", n), 1.0, **options)

    def sizes(self) -> Iterator[Line]:
        """Yield the search alone, with top planes of up to 64 and 32 nodes, and with leaves of three sizes."""
        for kind, n in (*(("uniform", n) for n in SIZES), *(("clustered", n) for n in CLUSTERED)):
            points = self._sorted(Sample(kind, self.number(n)))
            for top, leaf_size in TREES:
                yield (
                    f"{kind} {power(n)} top={top} leaf={leaf_size}",
                    lambda points=points, top=top, leaf_size=leaf_size: _search(*points, top, leaf_size),
                )

    def _sorted(self, sample: Sample) -> tuple[Any, ...]:
        pos, box = self.positions(sample.kind, sample.n), jz.jax_ext.exact(BOX, (3,))
        lower, upper = jax.jit(lambda p: kernels.bounds(p, sample.n))(pos)[:2]
        posz = jax.jit(lambda p, low, high: kernels.zsort(p, sample.n, low, high, box))(pos, lower, upper)[1]
        return posz, lower, upper, box

    def stages(self) -> Iterator[Line]:
        """Yield the kernels one by one."""
        for n in (10**6, 10**7):
            sample = Sample("uniform", self.number(n))
            for name, call in kernels_of(self.positions(sample.kind, sample.n), sample):
                if "leaves of" in name:
                    break
                yield f"uniform {power(n)} {name}", lambda call=call: call

    def limits(self) -> Iterator[Line]:
        """Yield kNN with and without a limit of twice the mean radius."""
        for n in (10**6, 3 * 10**6):
            sample = Sample("uniform", self.number(n))
            pos, limit = self.positions(sample.kind, sample.n), 2 * sample.radius(K)
            yield f"{power(n)} no limit", lambda pos=pos: lambda: jz.knn.knn.jit(pos, K, boxsize=BOX)
            yield (
                f"{power(n)} limit",
                lambda pos=pos, limit=limit: lambda: jz.knn.knn.jit(pos, K, boxsize=BOX, max_radius=limit),
            )

    def leaves(self) -> Iterator[Line]:
        """Yield searches within a radius with several sizes of leaves."""
        sample = Sample("uniform", self.number(10**6))
        pos, radius = self.positions(sample.kind, sample.n), sample.radius(NEIGHBOURS)
        edges = np.geomspace(min(radius, 0.01), 0.05, 21)
        calls = {
            "pair_counts": lambda cfg: jz.radius.pair_counts.jit(pos, edges, boxsize=BOX, cfg=cfg),
            "count_within": lambda cfg: jz.radius.count_within.jit(pos, radius, boxsize=BOX, cfg=cfg),
            "neighbours_within": lambda cfg: jz.radius.neighbours_within.jit(pos, radius, boxsize=BOX, cfg=cfg),
        }
        for function, sizes in (
            ("pair_counts", (24, 48, 64, 96, 128)),
            ("count_within", (24, 32, 40)),
            ("neighbours_within", (24, 32, 40)),
        ):
            for size in sizes:
                cfg = jz.config.RadiusConfig(tree=jz.config.TreeConfig(leaf_size=size))
                yield f"{function} leaf={size}", lambda call=calls[function], cfg=cfg: lambda: call(cfg)

    def dimensions(self) -> Iterator[Line]:
        """Yield kNN in many dimensions, open and periodic."""
        for dims in DIMS:
            pos = jnp.asarray(np.random.default_rng(SEED).random((self.number(10**6), dims), np.float32))
            for box in (None, BOX):
                yield (
                    f"{dims}D {'periodic' if box else 'open'}",
                    lambda pos=pos, box=box: lambda: jz.knn.knn.jit(pos, K, boxsize=box),
                )

    def queries(self) -> Iterator[Line]:
        """Yield searches with the most queries that leave 1, 2, 4 or 8 per warp, and with one query more.

        Then a warp answers twice as many, so the two times compare these numbers. Far queries are few among many
        particles, and near ones are the particles. common/cuda/query_groups.cuh has the limits.
        """
        multiprocessors = getattr(jax.devices()[0], "core_count", None) or 2
        num_near, num_far = 16 * multiprocessors, min(64 * multiprocessors, 8192)
        n = 10**4 if self.small else 10**6
        searches = {
            "far query": lambda q: self.timed_call("query", n, k=K, box=BOX, queries=q),
            "far count_within": lambda q: self.timed_call(
                "count_within", n, radius=Sample("uniform", n).radius(NEIGHBOURS), box=BOX, queries=q
            ),
            "near knn": lambda q: self.timed_call("knn", q, k=K, box=BOX),
        }
        for name, search in searches.items():
            for step in STEPS:
                for extra in (0, 1):
                    queries = (num_far if "far" in name else num_near) * step + extra
                    if queries <= n // 8 or "near" in name:
                        yield (
                            f"{name}, step of {step}: {step * (1 + extra)} per warp",
                            lambda search=search, queries=queries: search(queries),
                        )

    def rows(self) -> Iterator[Line]:
        """Yield single calls, and 20 in a row without waiting."""
        for n, k in ((10**6, 8), (10**6, 30), (10**6, 64), (10**7, 8)):
            number = self.number(n)

            def call(number: int = number, k: int = k) -> Callable[[], Any]:
                return self.timed_call("knn", number, k=k, box=BOX)

            yield f"{power(n)} k={k} single", call
            yield f"{power(n)} k={k} in a row", lambda call=call: functools.partial(in_a_row, call())

    def small_sets(self) -> Iterator[Line]:
        """Yield searches of few particles."""
        for n in (10**3, 10**4, 10**5):
            sample = Sample("uniform", self.number(n))
            yield f"{power(n)} knn", lambda n=sample.n: self.timed_call("knn", n, k=K, box=BOX)
            rlink = sample.linking_length(0.2)
            yield (
                f"{power(n)} labels",
                lambda n=sample.n, rlink=rlink: self.timed_call("labels", n, rlink=rlink, box=BOX),
            )

    def profile(self) -> Iterator[Line]:
        """Yield calls whose kernels the profiler measures."""
        n = self.number(10**6)
        sample = Sample("uniform", n)
        for k in (8, 16, 32):
            yield f"knn k={k}", lambda k=k: self.timed_call("knn", n, k=k, box=BOX)
        for function in ("count_within", "neighbours_within", "pair_counts"):
            yield (
                function,
                lambda function=function: self.timed_call(function, n, radius=sample.radius(NEIGHBOURS), box=BOX),
            )
        yield "labels", lambda: self.timed_call("labels", n, rlink=sample.linking_length(0.2), box=BOX)


def _search(posz: Any, lower: Any, upper: Any, box: Any, top: int, leaf_size: int) -> Callable[[], Any]:
    """Return the search in a hierarchy with at most ``top`` nodes in its top plane."""
    cfg = jz.config.TreeConfig(leaf_size=leaf_size)
    sizes = (-(-len(posz) // leaf_size),)
    while sizes[-1] > top:
        sizes += (-(-sizes[-1] // cfg.fan_out),)
    arrays = hierarchy_call(posz, lower, upper, box, sizes, cfg)()[:4]
    return given_call(
        lambda p, a: kernels.knn(kernels.Tree(p, kernels.as_num(len(posz)), *a, sizes), None, None, None, K, box),
        posz,
        arrays,
    )


def main() -> None:
    job = json.loads(sys.argv[1])
    trials = Trials(Path(job["home"]), Path(job["folder"]), job["small"])
    for name, prepared in getattr(trials, job["trial"])():
        if name in job["known"]:
            continue
        try:
            call = prepared()
            jax.block_until_ready(call())
            finding = timings(call, job["runs"]) if job["runs"] else {}
        except Exception as error:
            text = one_line(error)  # the library may lack kernels for many dimensions
            finding = {"left out" if "this function supports" in text else "error": text}
        tell(key=f"{job['experiment']}: {name}", **finding)


if __name__ == "__main__":
    main()
