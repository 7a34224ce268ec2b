"""``--dry-run``: the planned actions of a call, with estimates of time and memory.

The time is measured on uniform points, on the available devices, and scaled as N log N. The memory is the upper bound
by design of the algorithms: their input, their output and six times the positions.
"""

import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jztree.fof import fof_and_catalogue
from jztree.hierarchy import dendrogram
from jztree.knn import knn
from jztree.mst import spanning_tree
from jztree.radius import pair_counts

from ... import io
from ..._memory import available_memory, bytes_in_words
from .._library_sentence import is_memory_error
from .._particles.reading import Source, check_fits, open_matter, open_types
from .._report import number, print_json, print_pairs, say
from .._verbose import print_machine, print_memory_peak
from .outputs import Run, announce
from .snapshots import open_checked, source_of

_SAMPLE = 200_000  # number of points for the timing
_WORDS_OF_DESIGN = 6  # times the positions, in addition to input and output


TypeNumbers = tuple[int, ...] | None  # None means all others
Plan = tuple[list[tuple[str, str]], dict[str, Any]]  # names and values in words, and for scripts


@dataclass(frozen=True)
class Work:
    """The work to do on the particles.

    Attributes:
        optional: Properties that are read if they exist.
        run: Does the work for points in a periodic box of length 1.
        output_bytes: Size of the result per particle, as a function of the size of a coordinate.
        returned: Whether the input columns are also returned, in another order.
        spheres: Whether other matter is read for spheres.
    """

    optional: tuple[str, ...]
    run: Callable[[jax.Array], Any]
    output_bytes: Callable[[int], int]
    returned: bool
    spheres: bool = False


def groups(draw: bool, spheres: bool) -> Work:
    """Return the work of finding groups; with ``draw``, the host needs the positions at the end."""

    def run(pos: jax.Array) -> Any:
        return fof_and_catalogue(pos, 0.2 * pos.shape[0] ** (-1 / pos.shape[1]), boxsize=1.0)

    return Work(("mass", "vel", "id"), run, lambda size: 12 + (3 * size if draw else 0), True, spheres)


def neighbours(k: int, lists: bool = True) -> Work:
    """Return the work of finding neighbours; with ``lists``, these are copied to the host, otherwise only densities."""
    bytes_of = lambda size: k * (4 + size) if lists else size  # noqa: E731
    return Work(("id",), lambda pos: knn(pos, min(k, pos.shape[0]), boxsize=1.0), bytes_of, False)


def clusters(core_k: int | None = None) -> Work:
    """Return the work of finding clusters at all linking lengths, see `jztree.mst.spanning_tree`."""

    def run(pos: jax.Array) -> Any:
        return dendrogram(spanning_tree(pos, boxsize=1.0, core_k=None if core_k is None else min(core_k, pos.shape[0])))

    # The tree and its clusters take 64 bytes. The search takes three times the memory of other searches.
    return Work(("mass", "id"), run, lambda size: 64 + 3 * _WORDS_OF_DESIGN * size, False)


def pairs() -> Work:
    """Return the work of counting pairs, up to a tenth of the box; the widest bins take the longest."""
    edges = np.geomspace(1e-3, 0.1, 21)
    return Work((), lambda pos: pair_counts(pos, edges, boxsize=1.0), lambda _: 0, False)


def each_run(
    args: Namespace,
    todo: Sequence[Run],
    mesh: Mesh,
    work: Work,
    do: Callable[[Run, Source], None],
    *,
    types: tuple[TypeNumbers, TypeNumbers] = ((), ()),
    layout: str | None = None,
    check: Callable[[Source], None] = lambda _: None,
    plan: Callable[[Run, Source], Plan] = lambda *_: ([], {}),
) -> None:
    """Print the machine, and call ``do`` for each run. With ``--dry-run``, print the estimate for ``work`` instead.

    Args:
        args: The options of the call.
        todo: The runs.
        mesh: The devices.
        work: The work of each run, for estimates and for errors about memory.
        do: Does a run.
        types: Attached types, and types that count in spheres; see `Source`.
        layout: Layout of the catalogues that would be written, if any.
        check: Checks the options of a run; it raises on all processes, also with ``--dry-run``.
        plan: Describes the steps and the time of a run for ``--dry-run``, if they differ from ``work``.
    """
    print_machine(mesh)
    for run in todo:
        source = source_of(run.path, args, mesh, *types)
        check(source)
        if args.dry_run:
            print_estimate(source, run, mesh, work, args.json, layout, plan(run, source))
        else:
            announce(run, todo)
            with _memory_errors_explained(source, mesh, work):
                do(run, source)
            print_memory_peak(mesh)


@contextmanager
def _memory_errors_explained(source: Source, mesh: Mesh, work: Work) -> Iterator[None]:
    """Give errors of the block about memory a message with the estimated need and ways to meet it."""
    have = available_memory(mesh.devices.flat[0])
    try:
        yield
    except Exception as error:
        if is_memory_error(error):
            snapshots, need = open_types(source), memory_needed(source, mesh, work)[0]
            devices = "one device" if mesh.size == 1 else f"each of {mesh.size} devices"
            free = "" if have is None else f", which had {bytes_in_words(have)}"
            error.on_command_line = (  # type: ignore[attr-defined]
                f"There is not enough memory: {sum(snapshot.num for snapshot in snapshots):,} particles need about "
                f"{bytes_in_words(need)} on {devices}{free}; use more devices (GPUs, or processes on several "
                "machines), a machine with more memory, or another --type. --dry-run prints this estimate."
            )
        raise


def print_estimate(
    source: Source,
    run: Run,
    mesh: Mesh,
    work: Work,
    as_json: bool = False,
    layout: str | None = None,
    plan: Plan = ([], {}),
) -> None:
    """Print the planned actions.

    The function raises the same errors as reading the particles, but it reads only headers.

    Args:
        source: The particles that would be read.
        run: The planned outputs.
        mesh: The devices that would be used.
        work: The work to estimate.
        as_json: Print JSON for scripts instead of text.
        layout: Layout of the catalogue that would be written, if any.
        plan: The steps and their time, if they differ from ``work``.
    """
    snapshots = open_checked(source, layout)
    matter = _matter(source, snapshots, work)
    check_fits([*snapshots, *matter], mesh.size)
    dtype, (ndim,) = snapshots[0].layout("pos")
    num = sum(snapshot.num for snapshot in snapshots)
    memory = _memory([*snapshots, *matter], work, mesh)
    have = available_memory(mesh.devices.flat[0])
    lines, facts = plan
    if not facts:
        seconds = _seconds(work, num, ndim, dtype, mesh)
        facts = {"seconds": seconds}
        lines = [("time", f"about {number(float(f'{seconds:.1g}'))} s for the search only")]
    if as_json:
        facts |= {"particles": num, "devices": mesh.size, "bytes_a_device": memory, "bytes_available": have}
        print_json({"snapshot": str(source.path), "output": run.output} | facts)
        return
    fits = "" if have is None else f" of {bytes_in_words(have)}: {'fits' if memory <= have else 'does not fit'}"
    say(f"  {source.path}")
    print_pairs(
        [
            ("snapshot", snapshots[0].description),
            *(("attached", snapshot.description) for snapshot in snapshots[1:]),
            ("would write", ", ".join(run.all) or "nothing"),
            ("devices", f"{mesh.size} ({mesh.devices.flat[0].device_kind})"),
            ("memory", f"about {bytes_in_words(memory)} on each device{fits}"),
            *lines,
        ]
    )


def memory_needed(source: Source, mesh: Mesh, work: Work) -> tuple[int, int | None]:
    """Return the bytes that work needs on each device, and the available bytes, None if unknown."""
    snapshots = open_types(source)
    need = _memory([*snapshots, *_matter(source, snapshots, work)], work, mesh)
    return need, available_memory(mesh.devices.flat[0])


def _matter(source: Source, snapshots: list[io.Snapshot], work: Work) -> list[io.Snapshot]:
    """Return the matter that is read for spheres, in addition to ``snapshots``."""
    return open_matter(source, snapshots).snapshots if work.spheres else []


def _memory(snapshots: list[io.Snapshot], work: Work, mesh: Mesh) -> int:
    """Return the bytes on each device."""
    dtype, (ndim,) = snapshots[0].layout("pos")
    total, size = 0, dtype.itemsize
    for snapshot in snapshots:
        row = 0
        for name in snapshot.present(("pos",), work.optional):
            if name != "mass" or snapshot.shared_mass is None:
                dtype, shape = snapshot.layout(name)
                row += dtype.itemsize * math.prod(shape)
        twice = 2 if work.returned else 1
        total += snapshot.num * (twice * row + _WORDS_OF_DESIGN * size * ndim + work.output_bytes(size))
    return -(-total // mesh.size)


def _seconds(work: Work, num: int, ndim: int, dtype: np.dtype, mesh: Mesh) -> float:
    """Estimate the time of the search for ``num`` particles from the time of a sample of points on one device."""
    n = min(num, _SAMPLE)
    with jax.enable_x64(dtype == np.float64):
        points = jnp.asarray(np.random.default_rng(1).random((n, ndim)), dtype)
        run = jax.jit(work.run)
        jax.block_until_ready(run(points))
        start = time.perf_counter()
        jax.block_until_ready(run(points))
        measured = time.perf_counter() - start
    # The devices of one CPU share its cores.
    offset = {(d.process_index, 0 if d.platform == "cpu" else d.id) for d in mesh.devices.flat}
    return measured * (num * math.log2(num + 2)) / (n * math.log2(n + 2)) / len(offset)
