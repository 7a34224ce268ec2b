"""``jztree verify``: checks of a catalogue or of neighbour lists by brute force."""

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from jztree.data import ParticleData

from ... import io, verify
from .._particles.known_properties import comoving_densities
from .._particles.reading import Source, open_matter
from .._particles.spheres import is_sphere, sphere_densities
from .._report import print_json, say, stage, take_seconds
from .argument_checks import check_arguments, particle_types
from .drawn import catalogue_of
from .snapshots import complete_header, read_options, snapshot_path


def run_verify(args: Namespace) -> None:
    """Compute samples of a result again from its snapshot, and print the checks.

    Raises:
        ValueError, OSError: If an argument is invalid, a file cannot be used, or the result is wrong. The message is a
            sentence for the user.
    """
    check_arguments(args)
    result, source = args.input[0], Source(snapshot_path(args.input[1]), args.type, options=read_options(args))
    is_catalogue = io.is_catalogue(Path(result))
    content = catalogue_of(args, result) if is_catalogue else None
    if content is not None and content.info.ptype is not None:
        source = replace(source, ptype=content.info.ptype)
    with stage("read the snapshot") as report:
        snapshot = io.open_snapshot(source.path, source.ptype, source.options)
        snapshot.header = complete_header(source.path, snapshot.header)
        part = _read(snapshot)
        report.particles, report.detail = snapshot.num, snapshot.description
    if args.dry_run:
        say(f"would check {result}")
        return
    checks = _neighbours(args, part, snapshot) if content is None else _groups(args, content, part, snapshot, source)
    done = []
    for check in checks:
        done.append(check)
        say(f"\n{check}")
    if args.json:
        print_json(
            {
                "result": result,
                "checks": [vars(check) | {"missed": check.probability_missed()} for check in done],
                "seconds": take_seconds(),
            }
        )
    if wrong := [check.content for check in done if not check.passed]:
        raise ValueError(f"{result} does not agree with the snapshot: its {' and '.join(wrong)} have faults.")


def _read(snapshot: io.Snapshot) -> ParticleData:
    """Read the properties that catalogues depend on."""
    names = snapshot.present(("pos",), ("mass", "vel", "id"))
    return ParticleData(**{name: snapshot.read(name, finite=name != "id") for name in names}, num=snapshot.num)


def _neighbours(args: Namespace, part: ParticleData, snapshot: io.Snapshot) -> Iterator[verify.Verification]:
    lists = io.read_neighbours(args.input[0])
    if lists.distances is None:
        raise ValueError(f"{args.input[0]} has densities only; give a file with neighbours, from jztree knn --lists.")
    yield verify.neighbours(
        part, lists.distances, lists.indices, boxsize=snapshot.header.boxsize or None, samples=args.samples
    )


def _groups(
    args: Namespace, content: io.CatalogueContent, part: ParticleData, snapshot: io.Snapshot, source: Source
) -> Iterator[verify.Verification]:
    header, info = snapshot.header, content.info
    ids = content.ids_by_group
    if ids is None or info.linking_length is None or content.by_type is not None:
        raise ValueError(
            f"{args.input[0]} lacks the identifiers of its members or its linking length, or has members of several "
            "types, which cannot be checked; give a catalogue of jztree fof without --no-ids and --attach."
        )
    if header.unit_length_in_cm is not None:
        content = io.convert_h(content, header.h_free)
    cata, box = content.catalogue, header.boxsize or None
    count = np.asarray(cata.count, np.int64)
    rows, faults = _rows_of(ids, part)
    yield verify.Verification("members", len(rows), len(rows), faults)
    if faults:
        return
    label = np.full(snapshot.num, -1)
    label[rows] = np.repeat(np.arange(len(count)), count)
    rlink, options = content.info.linking_length or 0.0, {"boxsize": box, "samples": args.samples}
    yield verify.group_labels(part, label, rlink, npart_min=info.npart_min or 1, **options)
    columns = {name: getattr(part, name) for name in ("pos", "mass", "vel")}
    members = {name: column[rows] if np.ndim(column) else column for name, column in columns.items()}
    cata = replace(cata, offset=np.cumsum(count) - count)
    yield verify.catalogue(ParticleData(**members, num=len(rows)), cata, **options)
    yield from _spheres(args, content, part, snapshot, source)


def _rows_of(ids: np.ndarray, part: ParticleData) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the row of each member, and a sentence if there are members without a row, or in two groups."""
    all_ids = np.arange(len(part.pos)) if part.id is None else np.asarray(part.id)
    order = np.argsort(all_ids)
    place = np.minimum(np.searchsorted(all_ids, ids, sorter=order), len(all_ids) - 1)
    rows = order[place]
    without_row, times = np.flatnonzero(all_ids[rows] != ids), np.bincount(rows, minlength=len(all_ids))
    if len(without_row):
        return rows, (f"the snapshot has no particle with the identifier {ids[without_row[0]]}",)
    if times.max(initial=0) > 1:
        return rows, (f"the particle with the identifier {all_ids[times.argmax()]} is a member {times.max()} times",)
    return rows, ()


def _spheres(
    args: Namespace, content: io.CatalogueContent, part: ParticleData, snapshot: io.Snapshot, source: Source
) -> Iterator[verify.Verification]:
    """Check the spheres of a catalogue that was made with --properties."""
    names = [name[1:] for name in content.extra if is_sphere(name)]
    if not names:
        return
    matter = json.loads(content.info.made_with or "{}").get("matter", "all")
    matter_snapshots = open_matter(replace(source, matter=particle_types("--matter", matter)), [snapshot]).snapshots
    types = [part, *map(_read, matter_snapshots)]
    everything = ParticleData(
        pos=np.concatenate([particles.pos for particles in types]),
        mass=np.concatenate([np.broadcast_to(np.asarray(particles.mass), len(particles.pos)) for particles in types]),
    )
    densities = comoving_densities(
        snapshot.header, [source.ptype, *(matter_type.ptype for matter_type in matter_snapshots)]
    )
    for name, density in sphere_densities(snapshot.header, names, densities):
        check = verify.spheres(
            everything,
            density,
            content.extra[f"r{name}"].values,
            content.extra[f"m{name}"].values,
            queries=content.extra["centre_pos"].values,
            boxsize=snapshot.header.boxsize or None,
            samples=args.samples or 50,
        )
        yield replace(check, content=f"spheres {name}")
