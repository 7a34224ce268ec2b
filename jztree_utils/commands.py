"""The work behind the command line: from a snapshot to a halo catalogue or to neighbours.

Imported after the arguments have been read, because it imports JAX.
"""

import dataclasses
import importlib.util
import math
import platform
from argparse import Namespace
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import jztree
from jztree.comm import initialize
from jztree.config import CatalogueConfig, FofConfig
from jztree.data import FofCatalogue, ParticleData
from jztree.kernels import native_info

from . import ics, io, plot
from .compute import Particles, all_devices, read_particles
from .report import number, print_pairs, print_table, stage

SAMPLE = "sample"  # the word that stands for the snapshot that comes with the package
_BUILD_CUDA = "JZTREE_CUDA=ON pip install ."
_BLOCK = 2**20  # rows whose density is computed at a time, so that intermediate results stay small


def join_processes() -> bool:
    """Make the processes that were started together one; whether this is the first of them, which does all printing.

    Raises ValueError, with a sentence for the user, if they cannot come together.
    """
    try:
        initialize()
    except RuntimeError as error:
        raise ValueError(" ".join(str(error).split())) from error
    return jax.process_index() == 0


def run_fof(args: Namespace) -> None:
    """``jztree fof``: find groups, write the catalogue, draw them, print a summary.

    Raises ValueError, OSError or ImportError with a sentence for the user, before any long work where that is possible.
    """
    mesh = all_devices()
    with io.failing_together(mesh):
        _check_not_negative("--b", args.b)
        _check_not_negative("--rlink", args.rlink)
        _check_at_least("--npart-min", args.npart_min, 1)
        if args.plot is not None:
            plot.check_picture(args.plot)
        path = _check_paths(args.snapshot, args.output, args.plot)
    part = _read(path, args.type, ("mass", "vel", "id"), mesh)
    with io.failing_together(mesh):
        rlink = _linking_length(args, part)
    found = part.find_groups(rlink, FofConfig(catalogue=CatalogueConfig(npart_min=args.npart_min)))
    pos = part.column("pos") if args.plot is not None else None
    info = io.CatalogueInfo(
        linking_length=rlink,
        npart_min=args.npart_min,
        num_particles=part.num,
        ptype=args.type,
        source=path.name,
        header=part.header,
    )
    with io.failing_together(mesh):
        if found is not None:
            _finish_groups(args, part, pos, *found, info)


def _finish_groups(
    args: Namespace, part: Particles, pos: Any, ids: np.ndarray, cata: FofCatalogue, info: io.CatalogueInfo
) -> None:
    """Order, write, draw and print the groups. pos: positions of all particles, if they are to be drawn."""
    with stage("order the catalogue"):
        members = ParticleData(pos=np.empty((len(ids), 0), np.float32), id=ids, num=len(ids))
        members, cata = io.canonical_order(members, cata)
    if args.output is not None:
        with stage("write the catalogue") as told:
            io.write_catalogue(args.output, cata, members.id, info)
            told.detail = str(args.output)
    if args.plot is not None:
        with stage("draw the halos", part.num) as told:
            _draw(args, pos, cata, part.header)
            told.detail = str(args.plot)
    _summarise_groups(cata, info, part)


def run_knn(args: Namespace) -> None:
    """``jztree knn``: find neighbours, estimate densities, write them, print a summary.

    Raises ValueError, OSError or ImportError with a sentence for the user, before any long work where that is possible.
    """
    mesh = all_devices()
    with io.failing_together(mesh):
        _check_at_least("-k", args.k, 1)
        if args.density and args.k < 3:
            raise ValueError(
                f"--density needs -k of at least 3, the particle itself and two neighbours; {args.k} was given."
            )
        path = _check_paths(args.snapshot, args.output)
    part = _read(path, args.type, ("mass", "id") if args.density else ("id",), mesh)
    with io.failing_together(mesh):
        if args.k > part.num:
            held = f"{part.num} particles of type {args.type}"
            raise ValueError(f"-k is {args.k} but the snapshot holds only {held}; choose a -k of at most that.")
    neighbours = part.find_neighbours(args.k)
    mass, ids = (part.column(name) for name in ("mass", "id"))
    with io.failing_together(mesh):
        if neighbours is not None:
            _finish_neighbours(args, part, *neighbours, mass, ids)


def _finish_neighbours(
    args: Namespace, part: Particles, distances: np.ndarray, indices: np.ndarray, mass: Any, ids: Any
) -> None:
    """Estimate densities, write and print the neighbours."""
    found = io.Neighbours(
        distances=distances,
        indices=indices,
        by_number=mass is None,
        ndim=part.ndim,
        id=ids,
        header=part.header,
    )
    if args.density:
        with stage("estimate densities", part.num):
            found.density = neighbour_density(distances, indices, mass, part.ndim)
    if args.output is not None:
        with stage("write the neighbours") as told:
            io.write_neighbours(args.output, found)
            told.detail = str(args.output)
    _summarise_neighbours(found)


def run_info(args: Namespace) -> None:
    """``jztree info``: versions, devices, native libraries and instruction set in use, and what there is for GPUs."""
    native = native_info()
    versions = [(name, metadata.version(name)) for name in ("jax", "jaxlib", "numpy", "h5py")]
    devices = [f"{device.platform}:{device.id} ({device.device_kind})" for device in jax.devices()]
    print_pairs(
        [
            ("jztree", jztree.__version__),
            *versions,
            ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
            ("devices", ", ".join(devices)),
            ("CPU library", str(native["cpu_library"])),
            ("instruction set", str(native["instruction_set"])),
            ("CPU threads", str(native["num_threads"])),
            ("CUDA library", str(native.get("cuda_library") or "none")),
            ("GPU backend", gpu_backend(native, [device.platform for device in jax.devices()])),
        ]
    )


def gpu_backend(native: dict[str, Any], platforms: Sequence[str]) -> str:
    """What there is for GPUs, and what to do if something is missing.

    native: of `jztree.kernels.native_info`. platforms: of the devices that JAX has.
    """
    if not native.get("cuda_library"):
        return (
            f"none; where the CUDA compiler is (nvcc, 'module load cuda'), build it in the source folder: {_BUILD_CUDA}"
        )
    words = f"CUDA, architectures {native.get('cuda_architectures') or 'unknown'}"
    if "gpu" in platforms:
        return f"{words}, in use"
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return f"{words}, not in use: this JAX is for CPUs only; pip install 'jax[cuda13]' or 'jax[cuda12]'"
    return f"{words}, not in use: JAX sees no GPU (nvidia-smi, JAX_PLATFORMS and CUDA_VISIBLE_DEVICES say why)"


def neighbour_density(distances: np.ndarray, indices: np.ndarray, mass: Any, ndim: int) -> np.ndarray:
    """The density around each particle, from the distance to its last neighbour.

    distances: ``(n, k)``, ascending, k at least 3; the first is the particle itself, at distance 0.
    indices: ``(n, k)``, rows of the neighbours.
    mass: ``(n,)``, a scalar, or None, which counts particles.
    ndim: dimensions of space.

    Returns ``(n,)`` of the dtype of ``distances``: ``(m_2 + ... + m_(k-1)) / V(r_k)`` with the volume ``V`` of a ball.
    The particle itself and the last neighbour, which sets the radius, do not count, which makes the estimate of a
    uniform density unbiased (Casertano & Hut 1985, ApJ 298, 80). It is inf where the last neighbour is at distance 0.
    """
    n, k = distances.shape
    density = np.empty(n, distances.dtype)
    unit_ball = math.pi ** (ndim / 2) / math.gamma(ndim / 2 + 1)
    for start in range(0, n, _BLOCK):
        rows = slice(start, start + _BLOCK)
        if np.ndim(mass) == 0:
            enclosed = (k - 2) * (1.0 if mass is None else float(mass))
        else:
            enclosed = np.asarray(mass)[indices[rows, 1 : k - 1]].sum(axis=1, dtype=np.float64)
        with np.errstate(divide="ignore", over="ignore"):
            density[rows] = enclosed / (unit_ball * distances[rows, -1].astype(np.float64) ** ndim)
    return density


def _check_not_negative(option: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{option} is {value:g}; it must be a number of at least 0.")


def _check_at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{option} is {value}; it must be at least {least}.")


def _check_paths(snapshot: str, *outputs: str | None) -> Path:
    """The path of the snapshot, once it is known that it is there and that all outputs can be written."""
    path = ics.SAMPLE_3D if snapshot == SAMPLE else Path(snapshot)
    inputs = io.find_parts(path)
    given = [output for output in outputs if output is not None]
    for place, output in enumerate(given):
        if any(Path(output).resolve() == Path(other).resolve() for other in given[:place]):
            raise io.OutputError(f"Two outputs have the same name, {output}; give them different names.")
        io.check_output(output, apart_from=tuple(inputs))
    return path


def _read(path: Path, ptype: int, optional: tuple[str, ...], mesh: Mesh) -> Particles:
    """The particles, with the stage printed."""
    with io.failing_together(mesh):
        _check_at_least("--type", ptype, 0)
    with stage("read the snapshot") as told:
        part = read_particles(path, ptype, optional, mesh)
        told.particles = part.num
        files = f"{part.header.num_files} files" if part.header.num_files > 1 else "1 file"
        told.detail = f"{part.num:,} particles of type {ptype} in {files}"
    if path == ics.SAMPLE_3D:
        part.header = dataclasses.replace(part.header, **ics.SAMPLE_3D_UNITS)
    return part


def _linking_length(args: Namespace, part: Particles) -> float:
    """``--rlink``, or ``--b`` times the mean separation of the particles, which needs a box."""
    if args.rlink is not None:
        return float(args.rlink)
    lengths = np.broadcast_to(np.asarray(part.header.boxsize, np.float64), (part.ndim,))
    if not (lengths > 0).all():
        raise ValueError(
            "The snapshot has no BoxSize, so the mean separation is unknown; give the length with --rlink."
        )
    return float(args.b * (lengths.prod() / part.num) ** (1 / part.ndim))


def _draw(args: Namespace, pos: Any, cata: FofCatalogue, header: io.SnapshotHeader) -> None:
    plot.plot_halos(
        pos,
        cata,
        header.boxsize,
        args.plot,
        length_unit=io.unit_name(header, "length"),
        mass_unit=io.unit_name(header, "mass"),
        title=f"{len(pos):,} particles",
    )


def _summarise_groups(cata: FofCatalogue, info: io.CatalogueInfo, part: Particles) -> None:
    header = info.header or io.SnapshotHeader()
    length, mass = (f" {io.unit_name(header, kind)}".rstrip() for kind in ("length", "mass"))
    n, count = part.num, np.asarray(cata.count, np.int64)
    grouped = int(count.sum())
    pairs = [
        ("groups", f"{len(count):,} of at least {info.npart_min:,} particles"),
        ("particles in groups", f"{grouped:,} of {n:,} ({100 * grouped / n:.1f} %)"),
        ("linking length", f"{number(info.linking_length or 0.0)}{length}{_in_separations(info, part)}"),
        ("box", f"{_box_in_words(header)}{length if header.boxsize else ''}"),
    ]
    if len(count):
        pairs.append(("group sizes", f"{count.min():,} to {count.max():,} particles, median {np.median(count):,.0f}"))
        if cata.mass is not None:
            masses = np.asarray(cata.mass, np.float64)
            pairs.append(("group masses", f"{number(masses.min())} to {number(masses.max())}{mass}"))
    for name, words in (("mass", "masses"), ("vel", "velocities")):
        if name not in part.properties:
            pairs.append((f"no {words}", "the snapshot holds none; the catalogue leaves out what needs them"))
    if "id" not in part.properties:
        pairs.append(("no identifiers", "the snapshot holds none; members are told by their row in it, from 0"))
    print()
    print_pairs(pairs)
    if len(count):
        print()
        print_table(*_largest_groups(cata, header))


def _in_separations(info: io.CatalogueInfo, part: Particles) -> str:
    n, ndim = part.num, part.ndim
    lengths = np.broadcast_to(np.asarray(info.header.boxsize if info.header else 0.0, np.float64), (ndim,))
    if info.linking_length is None or not (lengths > 0).all():
        return ""
    return f", {number(info.linking_length / float(lengths.prod() / n) ** (1 / ndim))} mean separations"


def _largest_groups(cata: FofCatalogue, header: io.SnapshotHeader) -> tuple[list[str], list[list[str]]]:
    """Heading and rows of the table of the ten largest groups."""

    def heading(name: str, kind: str) -> str:
        unit = io.unit_name(header, kind)
        return f"{name} [{unit}]" if unit else name

    centres = np.asarray(cata.com_pos, np.float64)
    columns = [("group", [number(row) for row in range(len(centres))])]
    columns.append(("particles", [number(int(count)) for count in cata.count]))
    if cata.mass is not None:
        columns.append((heading("mass", "mass"), [number(float(mass)) for mass in cata.mass]))
    for axis in range(centres.shape[1]):
        name = "xyz"[axis] if axis < 3 else f"x{axis}"
        columns.append((heading(name, "length"), [number(float(x)) for x in centres[:, axis]]))
    columns.append((heading("radius", "length"), [number(float(r)) for r in cata.max_radius]))
    head = [name for name, _ in columns]
    return head, [[cells[row] for _, cells in columns] for row in range(min(10, len(centres)))]


def _summarise_neighbours(found: io.Neighbours) -> None:
    header = found.header or io.SnapshotHeader()
    length = f" {io.unit_name(header, 'length')}".rstrip()
    last = found.distances[:, -1]
    k = found.distances.shape[1]
    pairs = [
        ("particles", f"{len(last):,}"),
        ("neighbours", f"{k:,} each, the particle itself among them"),
        ("box", f"{_box_in_words(header)}{length if header.boxsize else ''}"),
        ("distance to the last", _range_in_words(last) + length),
    ]
    if found.density is not None:
        mass = "particles" if found.by_number else io.unit_name(header, "mass")
        unit = f" {mass} / ({length.strip()})^{found.ndim}" if mass and length else ""
        pairs.append(("density", _range_in_words(found.density) + unit))
    print()
    print_pairs(pairs)


def _range_in_words(values: np.ndarray) -> str:
    least, median, most = (number(float(value)) for value in (values.min(), np.median(values), values.max()))
    return f"{least} to {most}, median {median}"


def _box_in_words(header: io.SnapshotHeader) -> str:
    if not header.boxsize:
        return "none (open)"
    lengths = header.boxsize if isinstance(header.boxsize, tuple) else (header.boxsize,)
    return " x ".join(number(float(length)) for length in lengths)
