"""``jztree view``: particles and haloes in 3D, in an HTML file for a browser."""

from argparse import Namespace
from typing import Any

from ... import io, view
from .._report import print_json, say, stage, take_seconds
from .argument_checks import check_arguments
from .drawn import columns_of, groups_of, positions_of
from .snapshots import snapshot_path


def run_view(args: Namespace) -> None:
    """Write the view of a snapshot."""
    check_arguments(args)
    view.check_view(args.output)
    names = [*args.input, *filter(None, [args.catalogue])]
    io.check_output(args.output, apart_from=tuple(snapshot_path(name) for name in names))
    summary: dict[str, Any] = {"input": args.input[0], "catalogue": args.catalogue, "output": args.output}
    if args.dry_run:
        say(f"would write a view of {args.input[0]} to {args.output}")
    else:
        with stage("write the view") as report:
            _write(args)
            report.detail = args.output
        summary["seconds"] = take_seconds()
    if args.json:
        print_json(summary)


def _write(args: Namespace) -> None:
    pos, header = positions_of(args)
    content = None if args.catalogue is None else groups_of(args, header)
    view.view_in_3d(
        pos,
        args.output,
        header.boxsize,
        catalogue=None if content is None else content.catalogue,
        columns=None if content is None else columns_of(content),
        max_particles=args.particles,
        max_halos=args.halos,
        length_unit=io.unit_name(header, "length"),
        mass_unit=io.unit_name(header, "mass"),
        title=args.title,
    )
