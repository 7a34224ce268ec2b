"""One call of each native kernel: recorded on the CPU, and repeated on the GPU.

``python -m gpu.kernel_calls JOB``. Programs on one device and on four host devices call all kernels. While they run on
the CPU, this module stores the arguments of the first call of each function of `jztree.kernels`, and then the results
of the call alone. A second process repeats each call on the GPU and compares the results. So the kernels that only
programs over several devices use also run on one GPU.

Kernels leave parts of some results undefined, such as rows after the last valid one. To find these parts, each call
runs twice on the CPU, with two different bytes in all memory that is allocated.
"""

import ctypes
import functools
import inspect
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jztree as jz
from jztree import kernels
from jztree_utils import ics

from .answers import difference
from .session import one_line, tell

_FLAGS = ("tree_fits",)  # functions whose results count as true if they are not 0
DEVICES = 4  # of the programs over several devices
# Functions that sum many numbers, in another order on GPUs.
_SUMS = (
    "catalogue",
    "catalogue_of_rank",
    "count_within",
    "kernel_sums",
    "node_masses",
    "reduce_lists",
    "sphere_sums",
    "straddling_sums",
)
_LISTS = {"take_hooks": 1}  # results that list rows in any order, by function
_PERTURB = -6  # M_PERTURB of malloc.h in glibc
_SMALL = jz.config.FofConfig(catalogue=jz.config.CatalogueConfig(npart_min=5))


@dataclass(frozen=True)
class Recorded:
    """A call of a function of `jztree.kernels`, with NumPy arrays.

    Attributes:
        function: The name of the function.
        args: Its arguments.
        options: Its keyword arguments.
        results: Its results on the CPU.
        defined: Which numbers of the results the kernel defines.
    """

    function: str
    args: Any
    options: dict[str, Any]
    results: tuple[np.ndarray, ...] = ()
    defined: tuple[np.ndarray, ...] = ()

    @property
    def is_double(self) -> bool:
        """Whether the call needs JAX's 64-bit types."""
        leaves = jax.tree.leaves((self.args, self.options))
        return any(isinstance(leaf, np.ndarray) and leaf.dtype == np.float64 for leaf in leaves)

    def compiled(self) -> Callable[[], Any]:
        """Return the call, compiled, with its arrays on the default device."""
        leaves, form = jax.tree.flatten((self.args, self.options))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]

        def call(arrays: list[jax.Array]) -> Any:
            arguments = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                arguments[place] = array
            args, options = jax.tree.unflatten(form, arguments)
            return getattr(kernels, self.function)(*args, **options)

        return functools.partial(jax.jit(call), [jnp.asarray(leaves[place]) for place in places])

    def answered(self) -> "Recorded":
        """Return the call with its results."""
        call, result = self.compiled(), []
        for byte in (0x55, 0xAA):
            ctypes.CDLL(None).mallopt(_PERTURB, byte)
            result.append([np.array(leaf) for leaf in jax.tree.leaves(jax.block_until_ready(call()))])
        ctypes.CDLL(None).mallopt(_PERTURB, 0)
        defined = [(a == b) | (np.isnan(a) & np.isnan(b)) for a, b in zip(*result, strict=True)]
        return replace(self, results=tuple(result[0]), defined=tuple(defined))


class Recorder:
    """Stores the first call of each function of `jztree.kernels` in a folder, while it is installed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, {path.stem for path in folder.glob("*.pickle")}
        self._original = {
            name: value
            for name, value in vars(kernels).items()
            if inspect.isfunction(value) and value.__module__.startswith("jztree.kernels.")
        }

    def __enter__(self) -> None:
        for name, function in self._original.items():
            setattr(kernels, name, functools.partial(self._call, name, function))

    def __exit__(self, *_: object) -> None:
        for name, function in self._original.items():
            setattr(kernels, name, function)

    def _call(self, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        results = function(*args, **options)
        leaves, form = jax.tree.flatten((args, options))
        arrays = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array | np.ndarray)]
        if name in self._known or not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(results)):
            return results

        def store(*values: Any) -> None:
            if name in self._known:
                return
            self._known.add(name)
            arguments = list(leaves)
            for place, value in zip(arrays, values, strict=True):
                arguments[place] = np.array(value)
            write(self._folder, Recorded(name, *jax.tree.unflatten(form, arguments)))

        jax.debug.callback(store, *(leaves[place] for place in arrays))
        return results


def read(folder: Path, name: str) -> Recorded:
    """Return the call of a function."""
    call: Recorded = pickle.loads((folder / f"{name}.pickle").read_bytes())
    return call


def write(folder: Path, call: Recorded) -> None:
    """Store a call."""
    partial = folder / f"{call.function}.partial"
    partial.write_bytes(pickle.dumps(call))
    partial.rename(partial.with_suffix(".pickle"))


def record(folder: Path, n: int, dims: int = 3, dtype: str = "float32") -> None:
    """Record the calls of programs with ``n`` particles on the CPU; calls that the folder already has stay.

    For float64, the whole process must use JAX's 64-bit types, because callbacks run in other threads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with Recorder(folder):
        for program in (*one_device(n, dims, dtype), *several_devices(n, dims, dtype)):
            jax.block_until_ready(program())
        jax.effects_barrier()
    for path in folder.glob("*.pickle"):
        call = read(folder, path.stem)
        if not call.results:
            write(folder, call.answered())


def _particles(n: int, dims: int, dtype: Any) -> jz.data.ParticleData:
    random = np.random.default_rng(n)
    pos = np.asarray(ics.clustered_particles(n, seed=5).pos, np.float32)[:, :dims]
    return jz.data.ParticleData(
        pos=jnp.asarray(pos, dtype),
        mass=jnp.asarray(random.random(n, np.float32), dtype),
        vel=jnp.asarray(random.standard_normal((n, dims), np.float32), dtype),
        id=jnp.arange(n, dtype=jnp.int32),
        num=jnp.asarray(n - n // 50, jnp.int32),
    )


def one_device(n: int, dims: int = 3, dtype: Any = "float32") -> Iterator[Callable[[], Any]]:
    """Yield programs on one device. Together with `several_devices`, they call all kernels.

    In three dimensions, the lists of neighbours are short; otherwise they are long.
    """
    part, box, spacing = _particles(n, dims, dtype), 1.0, n ** (-1 / dims)
    centre = jz.data.Pos(pos=part.pos[: n // 100 + 1], num=jnp.asarray(n // 100, jnp.int32))
    reach, cfg = 0.5 * spacing, jz.config.TreeConfig(masses=True)
    label = functools.partial(jz.fof.fof_and_catalogue.jit, part, 0.2 * spacing, box, cfg=_SMALL)
    yield lambda: jz.knn.knn.jit(part, k=16 if dims == 3 else 200, boxsize=box)
    yield label
    yield lambda: jz.overdensity.spherical_overdensity.jit(part, [200.0 * n], queries=centre, boxsize=box)
    yield lambda: jz.overdensity.sphere_properties.jit(
        part, jnp.full(len(centre.pos), reach), queries=centre, boxsize=box
    )
    yield lambda: jz.halos.lowest_potential_particle.jit(*label(), softening=0.1 * spacing, boxsize=box)
    if dims <= 3:
        yield lambda: jz.subhaloes.jit(*label(), 1.0, softening=0.1 * spacing, boxsize=box, min_bound=5)
    yield lambda: jz.radius.count_within.jit(part, reach, boxsize=box)
    yield lambda: jz.radius.nearest_within.jit(part, reach, 5, boxsize=box)
    yield lambda: jz.radius.neighbours_within.jit(part, reach, boxsize=box)
    yield lambda: jz.radius.pairs_within.jit(part, reach, boxsize=box)
    yield lambda: jz.radius.pair_counts.jit(part, [0.2 * spacing, reach], boxsize=box)
    yield lambda: jz.radius.kernel_sums.jit(part, reach, boxsize=box)
    yield lambda: jz.dbscan.jit(part, reach, min_samples=5, boxsize=box)
    yield lambda: jz.radius.neighbours_within.jit(part, reach, boxsize=box).query()
    yield lambda: jz.radius.reduce_within.jit(
        part, reach, lambda query, source, vector, distance: distance, boxsize=box
    )
    yield lambda: jz.density_peaks.jit(part, part.mass, 6, boxsize=box)
    edges = jz.spanning_tree.jit(part, boxsize=box)
    yield lambda: jz.dendrogram.jit(edges)
    yield lambda: jz.cut.jit(edges, 0.2 * spacing)
    partz, th = jz.tree.zsort_and_tree.jit(part, cfg, boxsize=box)
    yield lambda: jz.tree.search_sorted_z(partz, part.pos, boxsize=box)
    yield lambda: jz.knn.knn.jit(partz, k=5, boxsize=box, th=th)
    # A box length that is known only when the program runs.
    yield functools.partial(jax.jit(lambda side: jz.tree.zsort(part.pos, boxsize=side)), jnp.asarray(box))
    yield functools.partial(_boxes_to_send, dims)


def _boxes_to_send(dims: int) -> Any:
    """Call the kernel that only programs with more than 64 ranks use."""
    ranks, boxes = 100, 32
    corner = jnp.asarray(np.random.default_rng(1).random((ranks, boxes, dims), np.float32))
    published_boxes = corner, corner + 0.05, jnp.ones((ranks, boxes), jnp.int32)
    own_boxes = corner[7], corner[7] + 0.05, jnp.full(boxes, 0.02, jnp.float32)
    return kernels.select_boxes(own_boxes, published_boxes, 7, jz.jax_ext.exact(1.0, (dims,)), ranks * boxes, False)


def several_devices(n: int, dims: int = 3, dtype: Any = "float32") -> Iterator[Callable[[], Any]]:
    """Yield programs over four devices, whose kernels each run on one device."""
    mesh = jax.make_mesh(
        (DEVICES,), ("ranks",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:DEVICES]
    )
    part = jz.data.expand_particles(_particles(n, dims, dtype), DEVICES)
    spacing = n ** (-1 / dims)
    centre = jz.data.Pos(pos=part.pos[:, :9], num=jnp.minimum(part.num, 9))
    # With this linking length, groups span devices.
    rlink = 0.7 * spacing
    yield lambda: jz.knn.knn.smap(mesh, jit=True)(part, k=5)
    yield lambda: jz.tree.distr_zsort.smap(mesh, jit=True)(part, equalize=False)
    yield lambda: jz.overdensity.spherical_overdensity.smap(mesh, jit=True)(part, 200.0 * n, queries=centre)
    yield lambda: jz.fof.fof_and_catalogue.smap(mesh, jit=True)(part, rlink, cfg=_SMALL, attached=[part])
    yield lambda: jz.dbscan.smap(mesh, jit=True)(part, rlink, min_samples=5)
    yield lambda: jz.spanning_tree.smap(mesh, jit=True)(part)


def run(name: str, folder: Path) -> None:
    """Repeat a recorded call on the default device. The results stay there, because kernels leave parts undefined."""
    call = read(folder, name)
    with jax.enable_x64(call.is_double):
        jax.block_until_ready(call.compiled()())


def repeat(name: str, folder: Path) -> str | None:
    """Repeat a recorded call on the default device. Return how its results differ; None if they do not."""
    call = read(folder, name)
    with jax.enable_x64(call.is_double):
        leaves = jax.tree.leaves(jax.block_until_ready(call.compiled()()))
    result, expected = (
        [_compared(name, place, *arrays) for place, arrays in enumerate(zip(results, _defined(call), strict=True))]
        for results in (leaves, call.results)
    )
    return difference(result, expected, sums=name in _SUMS)


def _defined(call: Recorded) -> list[np.ndarray]:
    """Return which numbers of the results have a meaning."""
    defined = list(call.defined)
    if call.function == "settle_groups":
        # The CPU kernel also writes the places of rows that are not the first of a part of a group.
        defined[1] = defined[1] & (np.asarray(call.args[2]) > 0)[:, None]
    return defined


def _compared(name: str, place: int, result: Any, defined: np.ndarray) -> np.ndarray:
    """Return the part of a result that is compared, with 0 for the rest. ``place``: its place among the results."""
    array = np.asarray(result)
    if name in _FLAGS:
        array = array != 0
    array = np.where(defined, array, np.zeros((), array.dtype))
    return np.sort(array) if _LISTS.get(name) == place else array


def main() -> None:
    job = json.loads(sys.argv[1])
    if "record" in job:
        record(Path(job["folder"]), **job["record"])
        return
    for folder, name, key in job["calls"]:
        try:
            wrong = repeat(name, Path(folder)) if job["compares"] else run(name, Path(folder))
        except Exception as error:
            wrong = one_line(error)
        tell(key=key, wrong={name: wrong} if wrong else {})


if __name__ == "__main__":
    main()
