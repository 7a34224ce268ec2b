"""``jztree fof`` for snapshots that do not fit into memory: the groups are found piece by piece, with files on disk."""

import math
import time
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jztree.config import CatalogueConfig, FofConfig
from jztree.data import ParticleData

from ... import io, large
from ..._memory import bytes_in_words
from .._particles.box import check_box, find_outside
from .._particles.group_properties import NEIGHBOURS, GroupOptions
from .._particles.group_windows import WindowProperties, subhalo_table
from .._particles.on_disk import OnDisk, on_disk
from .._particles.reading import Source, open_matter
from .._report import is_quiet, number, stage, warn
from .._verbose import print_snapshot
from .argument_checks import with_properties
from .dry_run import Work, memory_needed
from .outputs import Run
from .snapshots import open_checked

_NAMES = ("mass", "vel", "id")
_SAMPLE, _SLABS = 200_000, 4  # number of points for the timing, and the largest number of their slabs


def is_piecewise(args: Namespace, source: Source, mesh: Mesh, work: Work) -> bool:
    """Return whether to find groups piece by piece: on request, or if the particles do not fit into memory."""
    if args.memory is not None:
        return True
    if io.is_shared(mesh):
        return False
    need, have = memory_needed(source, mesh, work)
    return have is not None and need > have


def open_pieces(source: Source, layout: str | None, spheres: bool) -> OnDisk:
    """Open the snapshot without reading particles; with ``spheres``, also the matter that counts in spheres."""
    with stage("open the snapshot"):
        snapshots = open_checked(source, layout)
        print_snapshot(snapshots)
        return on_disk(snapshots, _NAMES, open_matter(source, snapshots) if spheres else None)


def find_groups(
    args: Namespace, run: Run, part: OnDisk, rlink: float, options: GroupOptions, mesh: Mesh
) -> large.LargeGroups:
    """Find the groups, and check the box. The next call with the same options continues an interrupted one."""
    work = stage("find groups piece by piece", part.num)
    with jax.enable_x64(part.wide), warnings.catch_warnings(), work as report:
        # Each slice would warn; instead a single warning follows below.
        warnings.filterwarnings("ignore", message=".* differ from the mass in the MassTable")
        groups = large.group_pieces(
            _types(args, part),
            rlink,
            part.header.boxsize or None,
            options.cfg,
            attach_within=options.attach_within,
            memory=args.memory,
            folder=folder_of(run),
            mesh=mesh,
            quiet=is_quiet(),
            by_id=True,
            keep=needs_surroundings(options),
            check=lambda corners: check_box(corners, part.header),
        )
        report.detail = f"{groups.slabs} slabs"
    return groups


def _types(args: Namespace, part: OnDisk) -> list[large.Pieces]:
    """Return the particles of the grouped type and of attached types."""
    names = (*_NAMES, "internal_energy") if args.subhaloes else _NAMES
    return [large.pieces_of(snapshot, part.wide, names) for snapshot in part.snapshots]


def needs_surroundings(options: GroupOptions) -> bool:
    """Return whether results depend on the particles around groups."""
    return options.neighbours > 0 or options.subhaloes is not None


def find_properties(
    part: OnDisk, groups: large.LargeGroups, options: GroupOptions
) -> tuple[dict[str, np.ndarray], dict[str, io.Column] | None]:
    """Find the properties of groups that depend on the particles around them, and their subhaloes."""
    if not needs_surroundings(options):
        return {}, None
    matter = [large.pieces_of(snapshot, part.wide) for snapshot in part.matter]
    masses = [None if part.attached else part.snapshot.shared_mass, *(pieces.shared_mass for pieces in matter)]
    neighbours = options.neighbours or min(NEIGHBOURS, sum(snapshot.num for snapshot in part.snapshots))
    properties = WindowProperties(options, part.header.boxsize, masses, part.types(), neighbours, part.wide)
    with stage("find properties", part.num), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* differ from the mass in the MassTable")
        columns, lists = groups.near_groups(properties, matter)
    return columns, None if options.subhaloes is None else subhalo_table(lists)


def count_types(part: OnDisk, groups: large.LargeGroups) -> io.TypeTable | None:
    """Return the numbers and masses of the types in each group, None for one type."""
    table = groups.by_type()
    if table is None:
        return None
    result = io.TypeTable(*(np.zeros((len(rows), io.NUM_TYPES), rows.dtype) for rows in table))
    result.count[:, part.types()], result.mass[:, part.types()] = table
    return result


def numbers_of(part: OnDisk, groups: large.LargeGroups) -> dict[int, np.ndarray]:
    """Return the group of each particle by type, see `io.group_of_rows`."""
    ends = np.cumsum([snapshot.num for snapshot in part.snapshots])
    return dict(zip(part.types(), np.split(groups.numbers(), ends[:-1]), strict=True))


def warn_of_particles(part: OnDisk, groups: large.LargeGroups) -> None:
    """Warn of particles outside the box, and of masses that differ from the table."""
    part.outside = find_outside(groups.corners, part.header, part.count_outside)
    for sentence in part.differing_masses():
        warn(sentence)
    if part.outside is not None:
        warn(part.outside.sentence)


def folder_of(run: Run) -> Path | None:
    """Return the folder of the temporary files, next to the first output; None without an output."""
    return Path(f"{run.files[0]}.pieces") if run.files else None


def plan(args: Namespace, run: Run, source: Source, mesh: Mesh) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Describe the passes over the files, the temporary files, and the time, in words and for scripts."""
    snapshots = open_checked(source, None)
    part = on_disk(snapshots, _NAMES, open_matter(source, snapshots) if with_properties(args) else None)
    keeps, types = with_properties(args) or args.subhaloes, _types(args, part)
    matter = [large.pieces_of(opened, part.wide) for opened in part.matter]
    rows = large.rows_in(args.memory, large.joined_types(types), devices=len(mesh.local_devices))
    rows = min(rows, max(-(-sum(pieces.num for pieces in types) // mesh.size), 1))
    disk = large.disk_bytes(types, matter if keeps else None)
    slabs, seconds = math.ceil(part.num / rows), _seconds(types, rows) / mesh.size
    passes = [
        "positions of all particles",
        "their sorted copies",
        *(["those around attached particles", "counts of groups"] if part.attached else []),
        "properties of all particles",
        "members of groups",
        *(["surroundings of groups"] if keeps else []),
    ]
    lines = [
        ("passes", f"{len(passes)}: {', '.join(passes)}"),
        ("slabs", f"about {slabs:,} of at most {rows:,} particles"),
        (
            "disk",
            f"up to {bytes_in_words(disk)} in {folder_of(run) or 'the folder for temporary files'}, until the end",
        ),
        (
            "time",
            f"about {number(float(f'{seconds:.1g}'))} s without reading the snapshot, --properties and --subhaloes",
        ),
    ]
    return lines, {"slabs": slabs, "bytes_on_disk": disk, "seconds": seconds}


def _seconds(types: list[large.Pieces], rows: int) -> float:
    """Estimate the time for all particles from that of random points in as many slabs, if these are few."""
    pieces, random = large.joined_types(types), np.random.default_rng(1)
    share = min(_SAMPLE / pieces.num, 1.0)
    nums = [math.ceil(share * particles.num) for particles in types]
    sample = [large.pieces_of([_random_points(pieces, num, random)]) for num in nums]
    rlink = 0.2 * nums[0] ** (-1 / pieces.columns["pos"][1][0])
    cfg, seconds = FofConfig(catalogue=CatalogueConfig(npart_min=2)), 0.0
    rows = max(sum(nums) // min(-(-pieces.num // rows), _SLABS), 1)
    for _ in range(2):  # the first search compiles
        start = time.perf_counter()
        large.group_pieces(sample, rlink, 1.0, cfg, rows=rows, quiet=True, by_id=True).close()
        seconds = time.perf_counter() - start
    return seconds * pieces.num / sum(nums)


def _random_points(pieces: large.Pieces, num: int, random: np.random.Generator) -> ParticleData:
    """Return random points with the properties of particles."""
    held = {name: pieces.columns[name] for name in ("vel", "mass") if name in pieces.columns}
    columns: dict[str, Any] = {name: np.zeros((num, *shape), kind) for name, (kind, shape) in held.items()}
    dtype, shape = pieces.columns["pos"]
    return ParticleData(pos=random.random((num, *shape)).astype(dtype), id=np.arange(num), **columns)
