"""``jztree fof`` for snapshots that do not fit into memory: the groups are found piece by piece, with files on disk."""

import math
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jztree.config import FofConfig

from ... import io, large
from ..._memory import bytes_in_words
from .._particles.box import check_box, find_outside
from .._particles.on_disk import OnDisk, on_disk
from .._particles.reading import Source
from .._report import is_quiet, stage, warn
from .._verbose import print_snapshot
from .argument_checks import IN_MEMORY
from .dry_run import Work, memory_needed
from .outputs import Run
from .snapshots import open_checked

_NAMES = ("mass", "vel", "id")


def is_piecewise(args: Namespace, source: Source, mesh: Mesh, work: Work) -> bool:
    """Return whether to find groups piece by piece: on request, or if the particles do not fit into memory."""
    if args.memory is not None:
        return True
    if io.is_shared(mesh) or any(getattr(args, name) for name in IN_MEMORY):
        return False
    need, have = memory_needed(source, mesh, work)
    return have is not None and need > have


def open_pieces(source: Source, layout: str | None) -> OnDisk:
    """Open the snapshot without reading particles."""
    with stage("open the snapshot"):
        (snapshot,) = open_checked(source, layout)
        print_snapshot([snapshot])
        return on_disk(snapshot, _NAMES)


def find_groups(args: Namespace, run: Run, part: OnDisk, rlink: float, cfg: FofConfig, mesh: Mesh) -> large.LargeGroups:
    """Find the groups, and check the box. The next call with the same options continues an interrupted one."""
    work = stage("find groups piece by piece", part.num)
    with jax.enable_x64(part.wide), warnings.catch_warnings(), work as report:
        # Each slice would warn; instead a single warning follows below.
        warnings.filterwarnings("ignore", message=".* differ from the mass in the MassTable")
        groups = large.group_pieces(
            large.pieces_of(part.snapshot, part.wide),
            rlink,
            part.header.boxsize or None,
            cfg,
            memory=args.memory,
            folder=folder_of(run),
            mesh=mesh,
            quiet=is_quiet(),
            by_id=True,
            check=lambda corners: check_box(corners, part.header),
        )
        report.detail = f"{groups.slabs} slabs"
    return groups


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


def plan(args: Namespace, run: Run, source: Source) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Describe the passes over the files and the temporary files, in words and for scripts."""
    (snapshot,) = open_checked(source, None)
    pieces = large.pieces_of(snapshot, on_disk(snapshot, _NAMES).wide)
    rows, disk = large.rows_in(args.memory, pieces), large.disk_bytes(pieces)
    slabs = math.ceil(snapshot.num / rows)
    lines = [
        ("passes", "2 over the files: the positions of all particles, then the properties of members of groups"),
        ("slabs", f"about {slabs:,} of at most {rows:,} particles"),
        (
            "disk",
            f"up to {bytes_in_words(disk)} in {folder_of(run) or 'the folder for temporary files'}, until the end",
        ),
    ]
    return lines, {"slabs": slabs, "bytes_on_disk": disk}
