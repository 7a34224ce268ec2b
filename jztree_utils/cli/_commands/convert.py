"""``jztree convert``: catalogues and snapshots in other formats."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jztree.data import ParticleData

from ... import io
from .._report import is_quiet, print_json, print_pairs, say, stage, take_seconds, warn
from .._verbose import print_snapshot
from .argument_checks import check_arguments
from .arguments import CATALOGUE_LAYOUTS, PARQUET, SNAPSHOT_LAYOUTS
from .output_names import NUMPY_SUFFIX, TABLE_SUFFIX, check_layout_suffix
from .snapshots import read_options, snapshot_path


def run_convert(args: Namespace) -> None:
    """Write a catalogue or a snapshot in another format.

    Raises:
        ValueError, OSError: If an argument is invalid, or a file cannot be used. The message is a sentence for the
            user.
    """
    check_arguments(args)
    path, options = snapshot_path(args.input), read_options(args)
    is_catalogue = options.pos is None and path.is_file() and io.is_catalogue(path)
    known = (*CATALOGUE_LAYOUTS, PARQUET) if is_catalogue else SNAPSHOT_LAYOUTS
    layout = args.layout or _layout_of_name(args.output, is_catalogue) or known[0]
    if layout not in known:
        kind = "catalogue" if is_catalogue else "snapshot"
        raise ValueError(f"{path} is a {kind}, but --layout is {layout}; use {' or '.join(known)}.")
    check_layout_suffix(args.output, layout)
    if layout == PARQUET:
        io.check_parquet()
    io.check_output(args.output, apart_from=_files_of(path, options, is_catalogue))
    if args.dry_run:
        say(f"would write {path} as {args.output} in the layout {layout}")
        if args.json:
            print_json({"input": str(path), "output": args.output, "layout": layout})
        return
    held = _convert_catalogue(path, args, layout) if is_catalogue else _convert_snapshot(path, args, options, layout)
    if args.json:
        print_json({"input": str(path), "output": args.output, "layout": layout, "seconds": take_seconds()} | held)
    elif not is_quiet():
        say()
        print_pairs([(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in held.items()])


def _layout_of_name(output: str, is_catalogue: bool) -> str | None:
    """Return the layout that the name of an output implies, or None."""
    if is_catalogue:
        return PARQUET if Path(output).suffix == TABLE_SUFFIX else None
    return "numpy" if output.endswith((".npy", NUMPY_SUFFIX)) else None


def _files_of(path: Path, options: io.ReadOptions, is_catalogue: bool) -> tuple[Path, ...]:
    """Return all input files."""
    return tuple(io.find_catalogue_parts(path) if is_catalogue else io.find_sources(path, options))


def _convert_catalogue(path: Path, args: Namespace, layout: str) -> dict[str, int]:
    with stage("read the catalogue"):
        content = io.read_catalogue_content(path)
    with stage("write the catalogue") as report:
        if layout == PARQUET:
            io.ReadCatalogue.of(content).to_parquet(args.output)
        else:
            io.write_catalogue_content(args.output, content, layout)
        report.detail = args.output
    if content.subhaloes is not None and layout == PARQUET:
        warn(f"{args.output} has no subhaloes, because it is a table of groups; the other layouts hold them.")
    if layout == "gadget4" and io.catalogue_layout(path) != layout:
        warn(
            f"GroupOffsetType and GroupLenType of {args.output} refer to the snapshot in group order; jztree fof "
            "--snapshot-output FILE writes the snapshot in this order."
        )
    return {"groups": len(content.catalogue.count)}


def _convert_snapshot(path: Path, args: Namespace, options: io.ReadOptions, layout: str) -> dict[str, int | str]:
    with stage("read the snapshot") as report:
        snapshot = io.open_snapshot(path, args.type, options)
        if layout == "gadget4" and args.type >= io.NUM_TYPES:
            raise ValueError(
                f"--type is {args.type}, but a snapshot of Gadget-4 has types 0 to 5; write a {NUMPY_SUFFIX} file "
                "instead."
            )
        names = snapshot.present(("pos",), ("mass", "vel", "id"))
        print_snapshot([snapshot])
        columns = {name: snapshot.read(name) for name in names}
        report.particles, report.detail = snapshot.num, snapshot.description
    with stage("write the snapshot", snapshot.num) as report:
        if layout == "numpy":
            with io.atomic_output(args.output) as temporary, open(temporary, "wb") as file:
                np.savez(file, boxsize=snapshot.header.boxsize, **columns)
        else:
            columns, header = _per_h(columns, snapshot.header)
            io.write_snapshot(args.output, ParticleData(**columns, num=snapshot.num), header, args.type)
        report.detail = args.output
    return {"particles": snapshot.num, "properties": ", ".join(names)}


def _per_h(columns: dict[str, Any], header: io.SnapshotHeader) -> tuple[dict[str, Any], io.SnapshotHeader]:
    """Return columns and header in units per h, the convention of Gadget readers for a cosmological run.

    Raises:
        ValueError: If the conversion needs h and the header does not have it.
    """
    if not header.h_free or header.comoving is False:
        return columns, header
    if not header.hubble:
        raise ValueError(
            f"Gadget-4 has units per h, but the header of the snapshot has no h; write a {NUMPY_SUFFIX} file instead."
        )
    h = header.hubble
    lengths = np.asarray(header.boxsize, np.float64) * h
    box = float(lengths) if lengths.ndim == 0 else tuple(lengths.tolist())
    for name in columns.keys() & {"pos", "mass"}:
        columns[name] = np.multiply(columns[name], h, dtype=np.asarray(columns[name]).dtype)
    return columns, replace(header, h_free=False, boxsize=box)
