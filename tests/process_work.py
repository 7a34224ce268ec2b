"""The work of the processes of test_processes_library.py. Not a test: each process runs it on all devices, and compares
the data on its own devices with the result of one device for all particles.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import oracles

import jztree
from jztree import data, fof, hierarchy, knn, launch, mst
from jztree.config import FofConfig

RANKS, NPAD, BOX = 4, 40, 1.0


def start(shape: tuple[int, ...] = (RANKS,)) -> jax.sharding.Mesh:
    """Join the processes. Return the mesh of their devices."""
    launch.initialize(heartbeat_timeout_seconds=100)
    return jax.make_mesh(shape, ("nodes", "gpus")[-len(shape) :])


def particles(n: int = 1201, seed: int = 1) -> data.ParticleData:
    random = np.random.default_rng(seed)
    return data.ParticleData(
        pos=oracles.clustered(n, 3, seed=seed),
        mass=random.lognormal(size=n).astype(np.float32),
        vel=(100 + 30 * random.standard_normal((n, 3))).astype(np.float32),
        id=random.permutation(n).astype(np.int32),
    )


def dealt(part: Any) -> Any:
    """Distribute ``part`` over the ranks, as NumPy arrays. JAX gives each device its block."""
    return jax.tree.map(np.array, data.expand_particles(part, RANKS, NPAD))


def near(n: int = 300, seed: int = 3) -> Any:
    """Return particles for which every rank needs most of the others' particles."""
    return dealt(data.Pos(pos=oracles.uniform(n, 3, seed=seed)))


def own_ranks(tree: Any) -> Iterator[tuple[int, Any]]:
    """Yield the blocks of the ranks of this process, without the axis over ranks."""
    leaves, structure = jax.tree.flatten(tree)
    blocks = [{shard.index[0].start: np.asarray(shard.data)[0] for shard in leaf.addressable_shards} for leaf in leaves]
    for rank in sorted(blocks[0]):
        yield rank, jax.tree.unflatten(structure, [of_leaf[rank] for of_leaf in blocks])


def share(n: int, rank: int) -> slice:
    """Return the rows of a rank in equal shares; if they are not divisible, the first ranks have one more."""
    rows = [n // RANKS + (r < n % RANKS) for r in range(RANKS)]
    return slice(sum(rows[:rank]), sum(rows[: rank + 1]))


def check_neighbours(mesh: jax.sharding.Mesh, **options: Any) -> None:
    """Compare radii bit for bit, and rows of neighbours."""
    part = particles()
    queries = options.get("part_query")
    expected = [np.asarray(x) for x in knn.knn.jit(part, k=6, boxsize=BOX, **options)]
    options |= {} if queries is None else {"part_query": dealt(queries)}
    asking = dealt(part) if queries is None else options["part_query"]
    ends = np.concatenate([[0], np.cumsum(asking.num)])
    for rank, answer in own_ranks(knn.knn.smap(mesh, jit=True)(dealt(part), k=6, boxsize=BOX, **options)):
        for result, required in zip(answer, expected, strict=True):
            np.testing.assert_array_equal(result[: asking.num[rank]], required[ends[rank] : ends[rank + 1]])


def check_labels(mesh: jax.sharding.Mesh, part: Any, rlink: float, boxsize: float = BOX) -> None:
    """Compare particles and linear labels exactly."""
    partz, labels = fof.fof_labels.jit(part, rlink, boxsize)
    out = fof.distr_fof_labels.smap(mesh, jit=True)(dealt(part), rlink, boxsize, linearize_labels=True)
    for rank, (own, label) in own_ranks(out):
        rows = share(part.pos.shape[0], rank)
        assert own.num == rows.stop - rows.start
        np.testing.assert_array_equal(own.pos[: own.num], partz.pos[rows])
        np.testing.assert_array_equal(label[: own.num], labels[rows])


def check_spanning_tree(mesh: jax.sharding.Mesh, core_k: int | None = None) -> None:
    """Compare the edges bit for bit."""
    part = particles()
    expected = mst.spanning_tree.jit(part, boxsize=BOX, core_k=core_k)
    tree = mst.spanning_tree.smap(mesh, jit=True)(dealt(part), boxsize=BOX, core_k=core_k)
    for rank, own in own_ranks({name: getattr(tree, name) for name in ("i", "j", "length", "exact", "num")}):
        rows = share(part.pos.shape[0] - 1, rank)
        assert own.pop("num") == rows.stop - rows.start
        for name, result in own.items():
            np.testing.assert_array_equal(result[: rows.stop - rows.start], getattr(expected, name)[rows])
    jax.tree.map(np.testing.assert_array_equal, mst.squeeze_tree(tree), mst.squeeze_tree(expected))


def check_peaks(mesh: jax.sharding.Mesh) -> None:
    """Compare the peaks of masses bit for bit."""
    part, shares = particles(), dealt(particles())
    expected = hierarchy.density_peaks.jit(part, part.mass, 6, boxsize=BOX)
    peaks = hierarchy.density_peaks.smap(mesh, jit=True)(shares, shares.mass, 6, boxsize=BOX)
    jax.tree.map(np.testing.assert_array_equal, hierarchy.squeeze_peaks(peaks), hierarchy.squeeze_peaks(expected))


def check_catalogue(mesh: jax.sharding.Mesh, rlink: float = 0.02) -> None:
    """Compare particles in group order and counts exactly, and sums to 1e-6."""
    part = particles()
    partz, label = jax.tree.map(np.asarray, fof.fof_labels.jit(part, rlink, BOX))
    n, npart_min = len(label), FofConfig().catalogue.npart_min
    nums = [share(n, rank).stop - share(n, rank).start for rank in range(RANKS)]
    order = oracles.order_over_ranks(label, nums, npart_min)
    grouped = data.map_rows(lambda leaf: leaf[order], partz)
    cata = data.squeeze_catalogue(jax.tree.map(np.asarray, fof.fof_and_catalogue.jit(part, rlink, BOX)[1]))
    cata.offset = order.argsort()[np.flatnonzero(np.bincount(label) >= npart_min)]
    assert cata.ngroups > RANKS
    for rank, (own, ours) in own_ranks(fof.fof_and_catalogue.smap(mesh, jit=True)(dealt(part), rlink, BOX)):
        rows = share(n, rank)
        for name in ("pos", "mass", "vel", "id"):
            np.testing.assert_array_equal(getattr(own, name)[: own.num], getattr(grouped, name)[rows])
        here = (cata.offset >= rows.start) & (cata.offset < rows.stop)
        ours = data.squeeze_catalogue(ours)
        assert ours.ngroups == here.sum()
        np.testing.assert_array_equal(ours.count, cata.count[here])
        np.testing.assert_array_equal(ours.offset, cata.offset[here] - rows.start)
        separation = ours.com_pos - cata.com_pos[here]
        np.testing.assert_allclose(separation - BOX * np.rint(separation / BOX), 0, atol=1e-6)
        for name in ("mass", "com_vel", "com_inertia_radius", "max_radius", "vel_dispersion"):
            np.testing.assert_allclose(getattr(ours, name), getattr(cata, name)[here], rtol=1e-6, err_msg=name)


def report(run: Callable[[], Any]) -> None:
    """Print the error that ``run`` raises."""
    try:
        jax.block_until_ready(run())
    except jztree.CapacityError as error:
        print("CapacityError", error.option, error.need, error.have, error, flush=True)
    except Exception as error:
        print("error", error, flush=True)


def count_cache_events() -> dict[str, int]:
    """Return a dictionary in which JAX's compilation cache counts its hits, misses and requests from now on."""
    names = {"cache_hits": "hits", "cache_misses": "misses", "compile_requests_use_cache": "requests"}
    counts = dict.fromkeys(names.values(), 0)

    def count(event: str, **_: Any) -> None:
        name = names.get(event.rpartition("/")[2])
        if name is not None:
            counts[name] += 1

    jax.monitoring.register_event_listener(count)
    return counts
