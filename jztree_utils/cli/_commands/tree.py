"""``jztree tree``: merger trees of the subhaloes in a sequence of snapshots or catalogues."""

import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from ... import io, trees
from .._particles import many_devices
from .._report import QUIET, VERBOSE, is_quiet, is_verbose, print_json, print_pairs, say, stage, take_seconds, telling
from .argument_checks import check_arguments, check_several
from .arguments import parse
from .earlier_outputs import READING
from .fof import run_fof


def run_tree(args: Namespace) -> None:
    """Link the subhaloes of catalogues or snapshots, and write their merger trees.

    Raises:
        ValueError, OSError: If an argument is invalid, or a file cannot be used. The message is a sentence for the
            user.
    """
    mesh = many_devices.all_devices()
    with io.failing_together(mesh):
        check_arguments(args)
        snapshots = trees.number_outputs([name for name in args.input if not trees.has_catalogue(name)])
        catalogues = trees.find_catalogues([name for name in args.input if trees.has_catalogue(name)])
        for number in snapshots.keys() & catalogues.keys():
            raise ValueError(
                f"{snapshots[number]} and {catalogues[number]} have the same number, {number}; give only one."
            )
        check_several([*snapshots.values(), *catalogues.values()])
        inputs = [part for path in catalogues.values() for part in io.find_catalogue_parts(path)]
        io.check_output(args.output, apart_from=tuple(inputs))
    if args.dry_run:
        paths = [*catalogues.values(), *snapshots.values()]
        say(f"would link {len(paths)} outputs and write {args.output} in the layout {args.layout}")
        if args.json:
            print_json({"inputs": list(map(str, paths)), "output": args.output})
        return
    with _catalogues_of(args, snapshots) as temporary, io.failing_together(mesh):
        if jax.process_index() == 0:
            _link(args, catalogues | temporary)


@contextmanager
def _catalogues_of(args: Namespace, snapshots: dict[int, Path]) -> Iterator[dict[int, Path]]:
    """Find the subhaloes of snapshots; their catalogues exist until the end of the block."""
    output = io.output_path(args.output)
    folder = output.parent / f".{output.name}.catalogues"
    temporary = {number: folder / f"{number}.hdf5" for number in snapshots}
    try:
        for number, snapshot in snapshots.items():
            folder.mkdir(exist_ok=True)
            options = parse(["fof", str(snapshot), "--subhaloes", "-o", str(temporary[number])])
            for option in READING:
                setattr(options, option, getattr(args, option))
            with stage("find the subhaloes") as report, telling(VERBOSE if is_verbose() else QUIET):
                run_fof(options)
                report.detail = str(snapshot)
        yield temporary
    finally:
        if jax.process_index() == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _link(args: Namespace, catalogues: dict[int, Path]) -> None:
    with stage("link the subhaloes") as report:
        result = trees.trees_of_catalogues(catalogues, ptype=args.type, weights=args.weights, skip=not args.no_skip)
        report.detail = f"{len(catalogues)} outputs"
    with stage("write the trees") as report:
        trees.write_trees(args.output, *result, layout=args.layout)
        report.detail = args.output
    forest = result.trees
    numbers: dict[str, Any] = {
        "outputs": len(catalogues),
        "subhalos": len(forest),
        "trees": forest.num_trees,
        "links": int((forest.descendant >= 0).sum()),
        "links that skip an output": int(forest.skips.sum()),
    }
    if args.json:
        print_json({"output": args.output, "layout": args.layout, "seconds": take_seconds()} | numbers)
    elif not is_quiet():
        say()
        print_pairs([(name, f"{value:,}") for name, value in numbers.items()])
