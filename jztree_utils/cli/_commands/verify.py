"""``jztree verify``: checks of a catalogue or of neighbour lists by brute force."""

import json
import math
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jztree.data import ParticleData

from ... import io, verify
from .._particles.reading import Source, open_matter, open_types
from .._report import print_json, say, stage, take_seconds
from .argument_checks import check_arguments, particle_types
from .drawn import catalogue_of
from .snapshots import complete_header, read_options, snapshot_path
from .verify_properties import Properties, unchecked
from .verify_subhaloes import NEEDED_OF_SUBHALOES, verify_subhaloes


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
    columns = [column for check in done for column in check.columns]
    missing = unchecked(content, columns) if content is not None else ""
    if missing:
        say(f"\n{missing}")
    if args.json:
        print_json(
            {
                "result": result,
                "checks": [vars(check) | {"missed": check.probability_missed()} for check in done],
                "not_checked": missing,
                "seconds": take_seconds(),
            }
        )
    if wrong := [check.content for check in done if not check.passed]:
        raise ValueError(f"{result} does not agree with the snapshot: faults in its {' and '.join(wrong)}.")


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
    if ids is None or info.linking_length is None:
        raise ValueError(
            f"{args.input[0]} lacks the identifiers of its members or its linking length; give a catalogue of "
            "jztree fof without --no-ids."
        )
    is_converted = header.unit_length_in_cm is not None and content.header.h_free != header.h_free
    if is_converted:
        content = io.convert_h(content, header.h_free)
    made_with = json.loads(info.made_with or "{}")
    snapshots = [snapshot, *open_types(replace(source, attach=_attached_types(content, source, made_with)))[1:]]
    parts = [part, *map(_read, snapshots[1:])]
    cata, box = content.catalogue, header.boxsize or None
    count = np.asarray(cata.count, np.int64)
    rows, faults = _rows_of(ids, parts)
    yield verify.Verification("members", len(rows), len(rows), faults)
    if faults:
        return
    rlink, options = content.info.linking_length or 0.0, {"boxsize": box, "samples": args.samples}
    nums = [len(particles.pos) for particles in parts]
    labels = _labels(count, rows, nums)
    yield verify.group_labels(part, labels[0], rlink, npart_min=info.npart_min or 1, **options)
    within = made_with.get("attach_within")
    limit = math.inf if within is None else within * rlink
    for attached, particles, label_of_type in zip(snapshots[1:], parts[1:], labels[1:], strict=True):
        check = verify.attached(part, labels[0], particles, label_of_type, limit, **options)
        yield replace(check, content=f"attached particles of type {attached.ptype}")
    columns = {name: column[rows] for name, column in _joined(parts).items()}
    if content.by_type is not None:
        types = np.repeat([item.ptype for item in snapshots], nums)[rows]
        yield _types(content.by_type, count, types, columns.get("mass"))
    cata = replace(cata, offset=np.cumsum(count) - count)
    grouped = ParticleData(**columns, num=len(rows))
    yield verify.catalogue(grouped, cata, **options)
    has_columns = (content.subhaloes or {}).keys() >= NEEDED_OF_SUBHALOES and grouped.vel is not None
    if made_with.get("subhaloes") and has_columns:
        yield verify_subhaloes(args, content, made_with, (grouped, cata, ids, rows), snapshots)
    if content.extra:
        checked = _properties(args, content, parts, rows, snapshots, source)
        yield from replace(checked, is_converted=is_converted).checks()


def _labels(count: np.ndarray, rows: np.ndarray, nums: list[int]) -> list[np.ndarray]:
    """Return the group of each particle by type, -1 for none and for single particles of attached types."""
    label = np.full(sum(nums), -1)
    label[rows] = np.repeat(np.arange(len(count)), count)
    label[rows[np.repeat(count == 1, count) & (rows >= nums[0])]] = -1
    return np.split(label, np.cumsum(nums)[:-1])


def _attached_types(
    content: io.CatalogueContent, source: Source, made_with: Mapping[str, Any]
) -> tuple[int, ...] | None:
    """Return the types that were attached, None for all others."""
    if content.by_type is None or "attach" in made_with:
        return particle_types("--attach", made_with.get("attach"))
    return tuple(ptype for ptype in np.flatnonzero(content.by_type.count.any(axis=0)).tolist() if ptype != source.ptype)


def _joined(parts: Sequence[ParticleData]) -> dict[str, Any]:
    """Return the properties that all types have, with a row for each particle."""
    columns = {}
    for name in ("pos", "mass", "vel"):
        held = [getattr(part, name) for part in parts]
        if all(column is not None for column in held):
            pairs = zip(held, parts, strict=True)
            rows = [column if np.ndim(column) else np.full(len(part.pos), column) for column, part in pairs]
            columns[name] = np.concatenate(rows)
    return columns


def _types(table: io.TypeTable, count: np.ndarray, types: np.ndarray, mass: np.ndarray | None) -> verify.Verification:
    """Check the numbers and masses of the particles of each type in each group, from the members in group order."""
    place = np.repeat(np.arange(len(count)), count) * io.NUM_TYPES + types
    size = len(count) * io.NUM_TYPES
    counts = np.bincount(place, minlength=size).reshape(-1, io.NUM_TYPES)
    masses = np.bincount(place, 0.0 * place if mass is None else mass, minlength=size).reshape(-1, io.NUM_TYPES)
    wrong = (table.count != counts).any(axis=1) | ~np.isclose(table.mass, masses, 1e-6, 0).all(axis=1)
    faults = tuple(
        f"group {group} has {table.count[group].tolist()} particles of each type with the masses "
        f"{table.mass[group].tolist()}, but its members have {counts[group].tolist()} and {masses[group].tolist()}"
        for group in np.flatnonzero(wrong)
    )
    return verify.Verification("types", len(count), len(count), faults)


def _rows_of(ids: np.ndarray, parts: Sequence[ParticleData]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the row of each member among all types, and a sentence if members have no row, or are in two groups."""
    has_ids = all(part.id is not None for part in parts)
    all_ids = np.concatenate([np.asarray(part.id) if has_ids else part.pos[:, 0] for part in parts])
    all_ids = all_ids if has_ids else np.arange(len(all_ids))
    order = np.argsort(all_ids)
    if (equal := np.flatnonzero(all_ids[order[1:]] == all_ids[order[:-1]])).size:
        raise ValueError(
            f"The particles in rows {order[equal[0]]} and {order[equal[0] + 1]} share the identifier "
            f"{all_ids[order[equal[0]]]}, so that the members of groups are unknown; such catalogues cannot be checked."
        )
    place = np.minimum(np.searchsorted(all_ids, ids, sorter=order), len(all_ids) - 1)
    rows = order[place]
    without_row, times = np.flatnonzero(all_ids[rows] != ids), np.bincount(rows, minlength=len(all_ids))
    if len(without_row):
        return rows, (f"the snapshot has no particle with the identifier {ids[without_row[0]]}",)
    if times.max(initial=0) > 1:
        return rows, (f"the particle with the identifier {all_ids[times.argmax()]} is a member {times.max()} times",)
    return rows, ()


def _properties(
    args: Namespace,
    content: io.CatalogueContent,
    parts: Sequence[ParticleData],
    rows: np.ndarray,
    snapshots: list[io.Snapshot],
    source: Source,
) -> Properties:
    """Return the properties of groups with the particles to compute them from; ``rows`` are the members."""
    matter = json.loads(content.info.made_with or "{}").get("matter", "all")
    others = open_matter(replace(source, matter=particle_types("--matter", matter)), snapshots).snapshots
    columns = _joined(parts)
    order = np.concatenate([rows, np.setdiff1d(np.arange(len(columns["pos"])), rows)])
    return Properties(
        args,
        content,
        ParticleData(**{name: column[order] for name, column in columns.items()}, num=len(order)),
        ParticleData(**_joined([*parts, *map(_read, others)])),
        snapshots[0].header,
        [snapshot.ptype for snapshot in (*snapshots, *others)],
    )
